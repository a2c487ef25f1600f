"""Text classifier: a transformer encoder with pooling over the tokens that are not padding.

Vaswani et al., "Attention is all you need" (2017), with learned positions and layer norms before
the layers. In the sentiment analysis of [OTT] (arXiv 2505.13499, Appendix I: IMDb) the width is
256, the feed-forward layers are four times as wide, and the network has 6 blocks with 4.74 million
parameters, or 3 with 2.37 million as a continuous-time model.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from wflow._core.checks import check_choice, whole
from wflow._core.errors import InputError
from wflow.nets.blocks import Block, Stack, TokenEmbedding, check_tokens, layer_norm
from wflow.nets.checks import in_memory
from wflow.nets.continuous import Output, as_flow
from wflow.nets.pretrained import Pretrained
from wflow.nets.registry import register

Pooling = Literal["mean", "first", "max"]


@register
class TextClassifier(Pretrained):
    """Encoder of texts of different length, padded behind to one: logits of classes.

    `embed` makes hidden states (batch, tokens, width) of token ids, `body` moves them, `head`
    pools them. Tokens with the id `pad` are not there: no token sees them, they are not pooled,
    and they do not count in the transport cost; so the same text has the same logits in a longer
    batch. The body may be replaced by what takes `valid` and `mask`.

    Parameters
    ----------
    vocabulary : int
        Number of token ids, the one for padding among them.
    context : int
        Length of the longest text.
    classes : int
        Number of classes.
    width, depth, heads : int
        Width of the hidden states, number of blocks, number of heads.
    hidden : int, optional
        Inner width of the feed-forward layers; None is 4 width.
    pad : int, default 0
        Token id that fills short texts.
    pooling : {"mean", "first", "max"}
        `mean`, `max`, or the `first` token, over those that are there.
    norm : bool, default True
        False leaves the layer norms out.
    skip : bool, default True
        False leaves the skip connection of the feed-forward layers out, for N-ODE blocks.
    dropout : float, default 0.0
        Rate of dropout in embedding and blocks.

    Raises
    ------
    InputError
        For a width that the heads cannot share, a `pad` beyond the vocabulary, sizes out of range.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.TextClassifier(vocabulary=11, context=7, classes=3, width=6, depth=1, heads=2)
    >>> net(torch.tensor([[3, 1, 0], [5, 5, 2]])).output.shape  # 0 is padding
    torch.Size([2, 3])
    """

    @in_memory
    def __init__(
        self,
        *,
        vocabulary: int,
        context: int,
        classes: int,
        width: int,
        depth: int,
        heads: int,
        hidden: int | None = None,
        pad: int = 0,
        pooling: Pooling = "mean",
        norm: bool = True,
        skip: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.pad = whole(pad, "pad", 0)
        if self.pad >= whole(vocabulary, "vocabulary"):
            raise InputError(f"pad is {pad}: expected a token id in 0 .. {vocabulary - 1}")
        self.embed = TokenEmbedding(vocabulary, context, width, dropout=dropout)
        self.body: nn.Module = Stack(
            Block(
                width,
                heads,
                hidden=4 * whole(width, "width") if hidden is None else hidden,
                norm=norm,
                skip=skip,
                dropout=dropout,
            )
            for _ in range(whole(depth, "depth"))
        )
        self.head = PooledHead(width, classes, pooling=pooling, norm=norm)

    def forward(self, tokens: Tensor) -> Output:
        """Classify texts.

        Parameters
        ----------
        tokens : Tensor, shape (batch, tokens)
            Token ids, short texts filled with `pad` behind. A text of nothing but `pad` is pooled
            to zeros.

        Returns
        -------
        Output
            Logits (batch, classes), and the transport cost.

        Raises
        ------
        InputError
            For ids beyond the vocabulary, texts longer than the context, other shapes or types.
        """
        weight = self.embed.token.weight
        check_tokens(tokens, self.embed.token.num_embeddings, weight=weight)
        there = tokens != self.pad  # (batch, tokens)
        state, cost = as_flow(self.body(self.embed(tokens), valid=there, mask=there))
        return Output(self.head(state, mask=there), cost)

    def extra_repr(self) -> str:
        return f"pad={self.pad}"


class PooledHead(nn.Module):
    """Layer norm, pooling over tokens, linear map: (batch, tokens, width) to logits.

    Parameters
    ----------
    width, classes, pooling, norm : int or {"mean", "first", "max"} or bool
        As for `TextClassifier`.
    """

    def __init__(
        self, width: int, classes: int, *, pooling: Pooling = "mean", norm: bool = True
    ) -> None:
        super().__init__()
        check_choice("pooling", pooling, ("mean", "first", "max"))
        self.norm = layer_norm(width, norm)
        self.pooling = pooling
        self.linear = nn.Linear(width, whole(classes, "classes"))

    def forward(self, hidden: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map hidden states (batch, tokens, width) to logits (batch, classes).

        `mask` is bool (batch, tokens), True where a token is there; None has all of them there.
        """
        hidden = self.norm(hidden)
        if mask is None:
            mask = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        return self.linear(self._pooled(hidden, mask[:, :, None]))

    def _pooled(self, hidden: Tensor, there: Tensor) -> Tensor:
        """Pool (batch, tokens, width) to (batch, width); `there` is (batch, tokens, 1)."""
        if self.pooling == "mean":
            total = hidden.masked_fill(~there, 0).sum(1)
            return total / there.sum(1).clamp(min=1)
        if self.pooling == "max":
            pooled = hidden.masked_fill(~there, -torch.inf).amax(1)
        else:
            first = there.long().argmax(1, keepdim=True)  # (batch, 1, 1)
            pooled = hidden.gather(1, first.expand(-1, 1, hidden.shape[2])).squeeze(1)
        return pooled.masked_fill(~there.any(1), 0)

    def extra_repr(self) -> str:
        return f"pooling={self.pooling!r}"
