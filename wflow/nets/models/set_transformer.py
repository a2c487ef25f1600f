"""Set Transformer: a permutation-invariant classifier of point clouds.

Lee, Lee, Kim, Kosiorek, Choi, Teh, "Set Transformer: a framework for attention-based
permutation-invariant neural networks" (ICML 2019). Points see each other through m inducing points
each layer of which costs O(n m) instead of O(n^2), and are pooled by attention. In [OTT] (arXiv
2505.13499, section 5.1 and Appendix I: ModelNet40, 5000 points) there are two induced blocks, of
width 256, or 200 as a continuous-time model, behind a linear layer that makes the widths equal.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from wflow._core.checks import switch, whole
from wflow._core.errors import InputError
from wflow.nets.blocks import Stack, check_hidden, layer_norm, rate, share
from wflow.nets.checks import in_memory, tensor
from wflow.nets.continuous import Output, as_flow
from wflow.nets.pretrained import Pretrained
from wflow.nets.registry import register


@register
class SetTransformer(Pretrained):
    """Classifier of clouds of points of any number: logits that do not depend on their order.

    `embed` makes hidden states (batch, points, width) of points, `body` moves them, `head` pools
    them. The body may be replaced by what keeps their shape.

    Parameters
    ----------
    features : int
        Coordinates of a point.
    classes : int
        Number of classes.
    width, heads : int
        Width of the hidden states, number of heads.
    inducing : int
        Number m of inducing points of a block.
    blocks : int, default 2
        Number of induced blocks. Two of width 200 with 16 inducing points have the 0.65 million
        parameters that [1]_ gives.
    seeds : int, default 1
        Number k of vectors that a cloud is pooled to.
    norm : bool, default False
        Whether blocks have layer norms, behind the layers as in Lee et al.; the published model has
        none.
    skip : bool, default True
        False leaves the skip connection of the feed-forward layers out, for N-ODE blocks.
    dropout : float, default 0.0
        Rate of dropout before and after the pooling, in training only.

    Raises
    ------
    InputError
        For a width that the heads cannot share, and sizes out of range.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, section 5.1.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.SetTransformer(features=3, classes=2, width=8, heads=2, inducing=4)
    >>> net(torch.zeros(5, 100, 3)).output.shape
    torch.Size([5, 2])
    """

    @in_memory
    def __init__(
        self,
        *,
        features: int,
        classes: int,
        width: int,
        heads: int,
        inducing: int,
        blocks: int = 2,
        seeds: int = 1,
        norm: bool = False,
        skip: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(whole(features, "features"), whole(width, "width"))
        self.body: nn.Module = Stack(
            InducedBlock(width, heads, inducing, norm=norm, skip=skip)
            for _ in range(whole(blocks, "blocks"))
        )
        self.head = PoolingHead(width, heads, classes, seeds=seeds, norm=norm, dropout=dropout)

    def forward(self, points: Tensor) -> Output:
        """Classify clouds.

        Parameters
        ----------
        points : Tensor, shape (batch, points, features)
            Floating point, any number of points >= 1.

        Returns
        -------
        Output
            Logits (batch, classes), and the transport cost.

        Raises
        ------
        InputError
            For clouds of another shape, without points, or of integers.
        """
        if not torch.compiler.is_compiling():
            self._check(points)
        state, cost = as_flow(self.body(self.embed(points)))
        return Output(self.head(state), cost)

    def _check(self, points: Tensor) -> None:
        features = self.embed.in_features
        if not isinstance(points, Tensor):
            raise InputError(f"clouds are {type(points).__name__}: expected a tensor")
        if points.ndim != 3 or points.shape[1] == 0 or points.shape[2] != features:
            raise InputError(
                f"clouds are of shape {tuple(points.shape)}: expected (batch, points, {features}), "
                "with at least one point"
            )
        if not points.is_floating_point():
            raise InputError(f"clouds are {points.dtype}: expected floating point")
        tensor(points, "points", "real", self.embed.weight)


class CrossBlock(nn.Module):
    """Multi-head attention block MAB(X, Y) = H + relu(W H + b), H = X + attention(X, Y, Y).

    Lee et al. eqs. 6 and 7: queries from X, keys and values from Y. As in the published networks
    the row-wise layer is one linear map with a relu, and it takes the place of the output matrix
    of attention: four square matrices in all.

    Parameters
    ----------
    width, heads, norm, skip : int or bool
        As for `SetTransformer`.
    """

    def __init__(self, width: int, heads: int, *, norm: bool = False, skip: bool = True) -> None:
        super().__init__()
        self.width, self.heads, self.head_width = width, heads, share(width, heads)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.feed_forward = nn.Linear(width, width)
        self.norm_attention = layer_norm(width, norm)
        self.norm_feed_forward = layer_norm(width, norm)
        self.skip = switch(skip, "skip")

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Let x (batch, n, width) see y (batch, m, width); returns (batch, n, width)."""
        query = self.query(x).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (batch, heads, n, k)
        pair = self.key_value(y).unflatten(2, (2, self.heads, -1))  # (batch, m, 2, heads, k)
        key, value = pair.permute(2, 0, 3, 1, 4).unbind(0)  # (batch, heads, m, k)
        seen = functional.scaled_dot_product_attention(query, key, value)  # (batch, heads, n, k)
        x = self.norm_attention(x + seen.transpose(1, 2).flatten(2))  # (batch, n, width)
        change = functional.relu(self.feed_forward(x))
        return self.norm_feed_forward(x + change if self.skip else change)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, skip={self.skip}"


class InducedBlock(nn.Module):
    """Induced set attention block ISAB(X) = MAB(X, MAB(I, X)), I = m learned inducing points.

    Lee et al. eqs. 9 and 10. It maps the points in any order to their images in that order.

    Parameters
    ----------
    width, heads, inducing, norm, skip : int or bool
        As for `SetTransformer`.
    """

    def __init__(
        self, width: int, heads: int, inducing: int, *, norm: bool = False, skip: bool = True
    ) -> None:
        super().__init__()
        self.width = whole(width, "width")
        self.inducing = nn.Parameter(torch.empty(whole(inducing, "inducing"), self.width))
        nn.init.xavier_uniform_(self.inducing)
        self.gather = CrossBlock(width, heads, norm=norm, skip=skip)
        self.spread = CrossBlock(width, heads, norm=norm, skip=skip)

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states (batch, points, width) to the same shape."""
        check_hidden(x, self.width, None, self.inducing)
        summary = self.gather(self.inducing.expand(x.shape[0], -1, -1), x)  # (batch, m, width)
        return self.spread(x, summary)


class PoolingHead(nn.Module):
    """Pooling by attention PMA(Z) = MAB(S, relu(W Z + b)), S = k learned seeds; then linear.

    Lee et al. eq. 11: (batch, points, width) to logits (batch, classes).

    Parameters
    ----------
    width, heads, classes, seeds, norm, dropout : int or bool or float
        As for `SetTransformer`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        classes: int,
        *,
        seeds: int = 1,
        norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.seeds = nn.Parameter(torch.empty(whole(seeds, "seeds"), width))
        nn.init.xavier_uniform_(self.seeds)
        self.feed_forward = nn.Linear(width, width)
        self.pool = CrossBlock(width, heads, norm=norm)
        self.linear = nn.Linear(seeds * width, whole(classes, "classes"))
        self.dropout = rate(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (batch, points, width) to logits (batch, classes)."""
        hidden = functional.dropout(hidden, self.dropout, self.training)
        hidden = functional.relu(self.feed_forward(hidden))
        seeds = self.seeds.expand(hidden.shape[0], -1, -1)  # (batch, k, width)
        pooled = self.pool(seeds, hidden).flatten(1)  # (batch, k width)
        return self.linear(functional.dropout(pooled, self.dropout, self.training))

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"
