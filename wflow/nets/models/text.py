"""Text classifier: a transformer encoder with pooling over the tokens that are not padding.

Two forms: blocks of today's language models, with layer norms before the layers and learned
positions; and that of Vaswani et al., "Attention is all you need" (2017), with layer norms behind
the layers and sinusoidal positions. The latter is the network of the sentiment analysis of [OTT]
(arXiv 2505.13499, Appendix I: IMDb): width 256, feed-forward layers four times as wide, and 6
blocks with 4.74 million parameters, or 3 with 2.37 million as a continuous-time model, counted
without the embedding and the last layer.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from wflow._core.checks import check_choice, positive, switch, whole
from wflow._core.errors import InputError
from wflow.nets.blocks import (
    Attention,
    Block,
    Stack,
    TokenEmbedding,
    check_hidden,
    check_tokens,
    layer_norm,
    present,
    rate,
)
from wflow.nets.checks import in_memory
from wflow.nets.continuous import Output, as_flow
from wflow.nets.pretrained import Pretrained
from wflow.nets.registry import register

Form = Literal["pre-norm", "published"]
Pooling = Literal["mean", "first", "max", "max with padding"]
POOLINGS = ("mean", "first", "max", "max with padding")


@register
class TextClassifier(Pretrained):
    """Encoder of texts of different length, padded behind to one: logits of classes.

    `embed` makes hidden states (batch, tokens, width) of token ids, `body` moves them, `head`
    pools them. Tokens with the id `pad` are not there: no token sees them, they are not pooled,
    and they do not count in the transport cost; so the same text has the same logits in a longer
    batch (unless its padding is pooled, too). The body may be replaced by what takes `valid` and
    `mask`.

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
    pooling : {"mean", "first", "max", "max with padding"}
        `mean`, `max`, or the `first` token, over those that are there; `max with padding` is the
        maximum over all of a batch as it was padded, which is what the published code takes.
    norm : bool, default True
        False leaves the layer norms out.
    skip : bool, default True
        False leaves the skip connection of the feed-forward layers out, for N-ODE blocks.
    dropout : float, default 0.0
        Rate of dropout: in embedding, attention weights and layers (`pre-norm`), or of what the
        layers return alone (`published`).
    form : {"pre-norm", "published"}
        `pre-norm`, layer norms before the layers and at the end, GELU, learned positions;
        `published`, layer norms behind the layers and none at the end, ReLU, sinusoidal positions:
        [1]_, and the published network of [2]_.
    embedding_std : float, optional
        Standard deviation of the token embedding at the start; None is 0.02 (`pre-norm`), or 1
        (`published`). Sinusoidal positions are multiplied by it, too.

    Raises
    ------
    InputError
        For a width that the heads cannot share, a `pad` beyond the vocabulary, sizes out of range,
        and an odd width with sinusoidal positions.

    References
    ----------
    .. [1] Vaswani et al., "Attention is all you need" (2017), sections 3.1 to 3.5.
    .. [2] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, Appendix I, after Sander, Ablin, Blondel, Peyré,
       "Sinkformers" (2022).

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
        form: Form = "pre-norm",
        embedding_std: float | None = None,
    ) -> None:
        super().__init__()
        check_choice("form", form, ("pre-norm", "published"))
        self.pad = whole(pad, "pad", 0)
        if self.pad >= whole(vocabulary, "vocabulary"):
            raise InputError(f"pad is {pad}: expected a token id in 0 .. {vocabulary - 1}")
        hidden = 4 * whole(width, "width") if hidden is None else hidden
        before = form == "pre-norm"
        if embedding_std is None:
            embedding_std = 0.02 if before else 1.0
        self.embed: nn.Module = (
            TokenEmbedding(vocabulary, context, width, std=embedding_std, dropout=dropout)
            if before
            else SinusoidalEmbedding(vocabulary, context, width, pad=pad, std=embedding_std)
        )
        block = Block if before else EncoderBlock
        self.body: nn.Module = Stack(
            block(width, heads, hidden=hidden, norm=norm, skip=skip, dropout=dropout)
            for _ in range(whole(depth, "depth"))
        )
        self.head = PooledHead(width, classes, pooling=pooling, norm=before and norm)

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
        token: nn.Embedding = self.embed.token  # type: ignore[assignment]
        check_tokens(tokens, token.num_embeddings, weight=token.weight)
        there = tokens != self.pad  # (batch, tokens)
        state, cost = as_flow(self.body(self.embed(tokens), valid=there, mask=there))
        return Output(self.head(state, mask=there), cost)

    def extra_repr(self) -> str:
        return f"pad={self.pad}"


class SinusoidalEmbedding(nn.Module):
    r"""Hidden states of a text, with sinusoidal positions: x_j = E[token_j] + std P[j].

    P[j] has the entries sin(j / 10000^(2 i / width)) and cos(j / 10000^(2 i / width)), i = 0 ..
    width / 2 - 1, in turn (Vaswani et al., section 3.5). As in the published code the first token
    has position 1, and padding position 0.

    Parameters
    ----------
    vocabulary, context, width, pad : int
        As for `TextClassifier`.
    std : float
        Standard deviation of E at the start.
    """

    def __init__(
        self, vocabulary: int, context: int, width: int, *, pad: int = 0, std: float = 1.0
    ) -> None:
        super().__init__()
        if whole(width, "width") % 2:
            raise InputError(
                f"width is {width}: expected an even number, for each sine of a position has its "
                "cosine"
            )
        self.token = nn.Embedding(whole(vocabulary, "vocabulary"), width)
        self.std = positive(std, "embedding_std")
        nn.init.normal_(self.token.weight, std=self.std)
        self.context, self.pad = whole(context, "context"), pad
        table = self.std * sinusoids(self.context + 1, width)
        self.register_buffer("positions", table, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed token ids (batch, tokens): hidden states (batch, tokens, width)."""
        weight, positions = self.token.weight, self.positions
        check_tokens(tokens, self.token.num_embeddings, self.context, weight)
        place = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        place = place * (tokens != self.pad)  # (batch, tokens)
        return self.token(tokens) + positions[place]  # type: ignore[index]

    def extra_repr(self) -> str:
        return f"context={self.context}, pad={self.pad}, std={self.std:g}"


def sinusoids(count: int, width: int) -> Tensor:
    """Return sinusoidal positions 0 .. count - 1: (count, width), in torch's default type."""
    frequency = torch.exp(torch.arange(0, width, 2).double() * (-math.log(10_000) / width))
    angle = torch.arange(count).double()[:, None] * frequency  # (count, width / 2)
    table = torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)
    return table.to(torch.get_default_dtype())


class EncoderBlock(nn.Module):
    """Transformer block with its layer norms behind the layers: Vaswani et al., section 3.1.

    u = norm(x + attention(x)), x' = norm(u + ff(u)) with ff(u) = B relu(A u + a) + b, or
    x' = norm(ff(u)) without `skip`.

    Parameters
    ----------
    width, heads, hidden, norm, skip, dropout : int or bool or float
        As for `TextClassifier`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        hidden: int,
        norm: bool = True,
        skip: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm_attention = layer_norm(width, norm)
        self.up = nn.Linear(width, whole(hidden, "hidden"))
        self.down = nn.Linear(hidden, width)
        self.norm_feed_forward = layer_norm(width, norm)
        self.skip, self.dropout = switch(skip, "skip"), rate(dropout)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map hidden states (batch, tokens, width) to the same shape; mask as for `Attention`."""
        check_hidden(x, self.attention.width, mask, self.attention.qkv.weight)
        seen = functional.dropout(self.attention(x, mask=mask), self.dropout, self.training)
        x = self.norm_attention(present(x + seen, mask))
        change = self.down(functional.relu(self.up(x)))  # through (batch, tokens, hidden)
        change = functional.dropout(change, self.dropout, self.training)
        return self.norm_feed_forward(x + change if self.skip else change)

    def extra_repr(self) -> str:
        return f"skip={self.skip}, dropout={self.dropout}"


class PooledHead(nn.Module):
    """Layer norm, pooling over tokens, linear map: (batch, tokens, width) to logits.

    Parameters
    ----------
    width, classes, pooling, norm : int or str or bool
        As for `TextClassifier`.
    """

    def __init__(
        self, width: int, classes: int, *, pooling: Pooling = "mean", norm: bool = True
    ) -> None:
        super().__init__()
        check_choice("pooling", pooling, POOLINGS)
        self.norm = layer_norm(width, norm)
        self.pooling = pooling
        self.linear = nn.Linear(width, whole(classes, "classes"))

    def forward(self, hidden: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map hidden states (batch, tokens, width) to logits (batch, classes).

        `mask` is bool (batch, tokens), True where a token is there; None has all of them there.
        """
        hidden = self.norm(present(hidden, mask))
        if mask is None or self.pooling == "max with padding":
            mask = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        return self.linear(self._pooled(hidden, mask[:, :, None]))

    def _pooled(self, hidden: Tensor, there: Tensor) -> Tensor:
        """Pool (batch, tokens, width) to (batch, width); `there` is (batch, tokens, 1)."""
        if self.pooling == "mean":
            total = hidden.masked_fill(~there, 0).sum(1)
            return total / there.sum(1).clamp(min=1)
        if self.pooling != "first":
            pooled = hidden.masked_fill(~there, -torch.inf).amax(1)
        else:
            first = there.long().argmax(1, keepdim=True)  # (batch, 1, 1)
            pooled = hidden.gather(1, first.expand(-1, 1, hidden.shape[2])).squeeze(1)
        return pooled.masked_fill(~there.any(1), 0)

    def extra_repr(self) -> str:
        return f"pooling={self.pooling!r}"
