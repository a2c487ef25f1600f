"""Set Transformer: a permutation-invariant classifier of point clouds.

Lee, Lee, Kim, Kosiorek, Choi, Teh, "Set Transformer: a framework for attention-based
permutation-invariant neural networks" (ICML 2019). Points see each other through m inducing points
each layer of which costs O(n m) instead of O(n^2), and are pooled by attention. In [OTT] (arXiv
2505.13499, section 5.1 and Appendix I: ModelNet40, 5000 points) there are two induced blocks, of
width 256, or 200 as a continuous-time model, behind a linear layer that makes the widths equal.

Clouds of different sizes are padded to one, and a mask says which points are there.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from wflow._core.checks import check_choice, switch, whole
from wflow._core.errors import InputError
from wflow.nets.blocks import Stack, check_hidden, layer_norm, present, rate, share
from wflow.nets.checks import check_dense, in_memory, tensor
from wflow.nets.continuous import Output, as_flow
from wflow.nets.pretrained import Pretrained
from wflow.nets.registry import register

Form = Literal["equations", "published"]
Embedding = Literal["linear", "block"]


@register
class SetTransformer(Pretrained):
    r"""Classifier of clouds of points of any number: logits that do not depend on their order.

    `embed` makes hidden states (batch, points, width) of points, `body` moves them, `head` pools
    them. The body may be replaced by what keeps their shape, and takes `valid` and `mask` where
    clouds are padded.

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
        Number of induced blocks, the one that embeds among them.
    seeds : int, default 1
        Number k of vectors that a cloud is pooled to.
    norm : bool, default False
        Whether blocks have layer norms, behind the layers as in Lee et al.; the published model has
        none.
    skip : bool, default True
        False leaves the skip connection of the feed-forward layers out, for N-ODE blocks.
    dropout : float, default 0.0
        Rate of dropout before and after the pooling, in training only.
    form : {"equations", "published"}
        Blocks of the equations of [1]_, or those of its published code, on which [2]_ builds (see
        the notes).
    embedding : {"linear", "block"}
        What makes hidden states of points: a linear map, or the first induced block itself, from
        `features` to `width`, which the form "published" allows. The first is for continuous-time
        models, the second the published baseline.

    Raises
    ------
    InputError
        For a width that the heads cannot share, an embedding that the form does not allow, and
        sizes out of range.

    Notes
    -----
    A block lets the tokens of :math:`X` see those of :math:`Y`: :math:`H + \mathrm{relu}(W H + b)`,

    .. math::
       H = X + \mathrm{softmax}\Big(\frac{Q X (K Y)^T}{\sqrt{k}}\Big) V Y, \qquad
       H = Q X + \mathrm{softmax}\Big(\frac{Q X (K Y)^T}{\sqrt{d}}\Big) V Y

    in each head, by the equations and in the code: there the queries are on the skip connection,
    and the root is that of the width :math:`d`, not of the width :math:`k` of a head. The layer in
    front of the pooling ([1]_ eq. 11) is not in the code.

    With two blocks, 4 heads and 16 inducing points in the form "published", the baseline of width
    256 has 862,464 weights in its blocks and the continuous-time model of width 200 has 646,400:
    the 0.86 and 0.65 million of [2]_ Table 6, if biases are not counted. With them these are
    866,560 and 649,600.

    References
    ----------
    .. [1] Lee, Lee, Kim, Kosiorek, Choi, Teh, "Set Transformer: a framework for attention-based
       permutation-invariant neural networks" (2019), eqs. 6 to 11.
    .. [2] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, section 5.1 and Appendix I.

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
        form: Form = "equations",
        embedding: Embedding = "linear",
    ) -> None:
        super().__init__()
        check_choice("form", form, ("equations", "published"))
        check_choice("embedding", embedding, ("linear", "block"))
        self.features, width = whole(features, "features"), whole(width, "width")
        blocks = whole(blocks, "blocks")
        self.embed: nn.Module
        if embedding == "linear":
            self.embed = nn.Linear(self.features, width)
        elif form == "published" and blocks > 1:
            self.embed = InducedBlock(
                width, heads, inducing, norm=norm, skip=skip, form=form, features=self.features
            )
            blocks -= 1
        else:
            raise InputError(
                f"embedding is 'block' with form {form!r} and {blocks} blocks: expected the form "
                "'published', whose blocks change the width, and at least 2 blocks; or use 'linear'"
            )
        self.body: nn.Module = Stack(
            InducedBlock(width, heads, inducing, norm=norm, skip=skip, form=form)
            for _ in range(blocks)
        )
        self.head = PoolingHead(
            width, heads, classes, seeds=seeds, norm=norm, dropout=dropout, form=form
        )

    def forward(self, points: Tensor, mask: Tensor | None = None) -> Output:
        """Classify clouds.

        Parameters
        ----------
        points : Tensor, shape (batch, points, features)
            Floating point, any number of points >= 1.
        mask : Tensor, shape (batch, points), optional
            True where a point is there, at least one of a cloud: only those are seen, pooled, and
            counted in the transport cost, whatever the others hold, NaN too. By default all of
            them.

        Returns
        -------
        Output
            Logits (batch, classes), and the transport cost.

        Raises
        ------
        InputError
            For clouds of another shape, without points, or of integers, or a mask that does not
            fit. Whether each cloud has a point is checked on the CPU only.
        """
        if not torch.compiler.is_compiling():
            self._check(points, mask)
        if mask is None:
            state, cost = as_flow(self.body(self.embed(points)))
            return Output(self.head(state), cost)
        points = present(points, mask)
        block = isinstance(self.embed, InducedBlock)
        hidden = self.embed(points, mask=mask) if block else self.embed(points)
        state, cost = as_flow(self.body(hidden, valid=mask, mask=mask))
        return Output(self.head(state, mask=mask), cost)

    def _check(self, points: Tensor, mask: Tensor | None) -> None:
        features = self.features
        check_dense(points, "clouds", "real")
        if points.ndim != 3 or points.shape[1] == 0 or points.shape[2] != features:
            raise InputError(
                f"clouds are of shape {tuple(points.shape)}: expected (batch, points, {features}), "
                "with at least one point"
            )
        tensor(points, "clouds", "real", self.head.linear.weight)
        check_hidden(points, features, mask, self.head.linear.weight)
        if mask is None:
            return
        if mask.device.type == "cpu" and not mask.any(1).all():
            empty = int((~mask.any(1)).nonzero()[0, 0])
            raise InputError(
                f"cloud {empty} has no point that the mask says is there: expected at least one; "
                "leave empty clouds out"
            )


class CrossBlock(nn.Module):
    """Multi-head attention block MAB(X, Y) = H + relu(W H + b), H = X + attention(X, Y, Y).

    Lee et al. eqs. 6 and 7: queries from X, keys and values from Y. As in the published networks
    the row-wise layer is one linear map with a relu, and it takes the place of the output matrix
    of attention: four matrices in all. In the form "published" H begins with the queries, not X.

    Parameters
    ----------
    width, heads, norm, skip, form : int or bool or {"equations", "published"}
        As for `SetTransformer`.
    queries, keys : int, optional
        Width of X, in the form "published", and of Y; None is `width`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        norm: bool = False,
        skip: bool = True,
        form: Form = "equations",
        queries: int | None = None,
        keys: int | None = None,
    ) -> None:
        super().__init__()
        self.width, self.heads, self.head_width = width, heads, share(width, heads)
        self.query = nn.Linear(queries or width, width)
        self.key_value = nn.Linear(keys or width, 2 * width)
        self.feed_forward = nn.Linear(width, width)
        self.norm_attention = layer_norm(width, norm)
        self.norm_feed_forward = layer_norm(width, norm)
        self.skip = switch(skip, "skip")
        self.form = form

    def forward(self, x: Tensor, y: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Attend from x (batch, n, width) to y (batch, m, width); return (batch, n, width).

        `mask` is bool (batch, m), True where a token of y is there; a row of which none is there
        sees them all, which is finite and means nothing.
        """
        y = present(y, mask)
        asked = self.query(x)  # (batch, n, width)
        query = asked.unflatten(2, (self.heads, -1)).transpose(1, 2)  # (batch, heads, n, k)
        pair = self.key_value(y).unflatten(2, (2, self.heads, -1))  # (batch, m, 2, heads, k)
        key, value = pair.permute(2, 0, 3, 1, 4).unbind(0)  # (batch, heads, m, k)
        if mask is not None:
            mask = (mask | ~mask.any(1, keepdim=True))[:, None, None, :]  # (batch, 1, 1, m)
        published = self.form == "published"
        seen = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=self.width**-0.5 if published else None
        )  # (batch, heads, n, k)
        before = asked if published else x
        x = self.norm_attention(before + seen.transpose(1, 2).flatten(2))  # (batch, n, width)
        change = functional.relu(self.feed_forward(x))
        return self.norm_feed_forward(x + change if self.skip else change)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, skip={self.skip}, form={self.form!r}"


class InducedBlock(nn.Module):
    """Induced set attention block ISAB(X) = MAB(X, MAB(I, X)), I = m learned inducing points.

    Lee et al. eqs. 9 and 10. It maps the points in any order to their images in that order.

    Parameters
    ----------
    width, heads, inducing, norm, skip, form : int or bool or {"equations", "published"}
        As for `SetTransformer`.
    features : int, optional
        Width of what it is given, in the form "published"; None is `width`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        inducing: int,
        *,
        norm: bool = False,
        skip: bool = True,
        form: Form = "equations",
        features: int | None = None,
    ) -> None:
        super().__init__()
        self.width = whole(width, "width")
        self.features = features or self.width
        self.inducing = nn.Parameter(torch.empty(whole(inducing, "inducing"), self.width))
        nn.init.xavier_uniform_(self.inducing)
        self.gather = CrossBlock(width, heads, norm=norm, skip=skip, form=form, keys=features)
        self.spread = CrossBlock(width, heads, norm=norm, skip=skip, form=form, queries=features)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map hidden states (batch, points, features) to (batch, points, width).

        `mask` is bool (batch, points), True where a point is there: only those are seen.
        """
        check_hidden(x, self.features, mask, self.inducing)
        x = present(x, mask)
        inducing = self.inducing.expand(x.shape[0], -1, -1)
        summary = self.gather(inducing, x, mask=mask)  # (batch, m, width)
        return self.spread(x, summary)


class PoolingHead(nn.Module):
    """Pooling by attention PMA(Z) = MAB(S, relu(W Z + b)), S = k learned seeds; then linear.

    Lee et al. eq. 11: (batch, points, width) to logits (batch, classes). In the form "published" it
    is MAB(S, Z).

    Parameters
    ----------
    width, heads, classes, seeds : int
    norm, dropout, form : bool, float, {"equations", "published"}
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
        form: Form = "equations",
    ) -> None:
        super().__init__()
        self.seeds = nn.Parameter(torch.empty(whole(seeds, "seeds"), width))
        nn.init.xavier_uniform_(self.seeds)
        self.feed_forward = nn.Linear(width, width) if form == "equations" else None
        self.pool = CrossBlock(width, heads, norm=norm, form=form)
        self.linear = nn.Linear(seeds * width, whole(classes, "classes"))
        self.dropout = rate(dropout)

    def forward(self, hidden: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map hidden states (batch, points, width) to logits (batch, classes).

        `mask` is bool (batch, points), True where a point is there: only those are pooled.
        """
        hidden = functional.dropout(present(hidden, mask), self.dropout, self.training)
        if self.feed_forward is not None:
            hidden = functional.relu(self.feed_forward(hidden))
        seeds = self.seeds.expand(hidden.shape[0], -1, -1)  # (batch, k, width)
        pooled = self.pool(seeds, hidden, mask=mask).flatten(1)  # (batch, k width)
        return self.linear(functional.dropout(pooled, self.dropout, self.training))

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"
