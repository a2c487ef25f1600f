"""GPT: a causal transformer that predicts the next token of a text.

Radford et al., "Language models are unsupervised multitask learners" (GPT-2, 2019); weights shared
by embedding and output as in Press and Wolf, "Using the output embedding to improve language
models" (2017). In [OTT] (arXiv 2505.13499, Appendix I) the baseline on characters has 6 blocks of
width 384 and 10.65 million parameters, the continuous-time model 5 blocks of width 320 without
layer norms and 6.16 million.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from wflow._core.checks import number, switch, whole
from wflow._core.errors import InputError
from wflow.nets.blocks import (
    Block,
    Gelu,
    Stack,
    TokenEmbedding,
    check_tokens,
    evaluating,
    layer_norm,
)
from wflow.nets.checks import in_memory, tensor
from wflow.nets.continuous import Output, as_flow
from wflow.nets.registry import register


@register
class GPT(nn.Module):
    """Causal language model: logits of the next token, E norm(X(T)), E the token embedding.

    `embed` makes hidden states (batch, tokens, width) of token ids, `body` moves them, `head`
    reads each of them. The body may be replaced by what keeps their shape:

        net.body = ContinuousTransformer(net.body, t_final=1.0, steps=10)

    Linear maps and embeddings start as normal numbers of standard deviation 0.02, and those that
    add to the hidden states as 0.02 / sqrt(2 depth), so that their sum does not grow with the
    depth (Radford et al., section 2.3).

    Parameters
    ----------
    vocabulary : int
        Number of token ids.
    context : int
        Length of the longest text that it sees.
    width, depth, heads : int
        Width of the hidden states, number of blocks, number of heads. The feed-forward layers are
        four times as wide inside.
    norm : bool, default True
        False leaves all layer norms out, the final one too.
    bias : bool, default False
        Whether linear maps and layer norms have biases, as published GPT-2 networks do.
    skip : bool, default True
        False leaves the skip connection of the feed-forward layers out, for N-ODE blocks.
    gelu : {"none", "tanh"}
        `none`, the function itself; `tanh`, the approximation in published GPT-2 networks.
    dropout : float, default 0.0
        Rate of dropout in embedding, attention and blocks.

    Raises
    ------
    InputError
        For a width that the heads cannot share, and sizes out of range.
    """

    @in_memory
    def __init__(
        self,
        *,
        vocabulary: int,
        context: int,
        width: int,
        depth: int,
        heads: int,
        norm: bool = True,
        bias: bool = False,
        skip: bool = True,
        gelu: Gelu = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.vocabulary, self.context = whole(vocabulary, "vocabulary"), whole(context, "context")
        self.embed = TokenEmbedding(vocabulary, context, width, dropout=dropout)
        self.body: nn.Module = Stack(
            Block(
                width,
                heads,
                hidden=4 * whole(width, "width"),
                causal=True,
                norm=norm,
                bias=bias,
                skip=skip,
                gelu=gelu,
                dropout=dropout,
            )
            for _ in range(whole(depth, "depth"))
        )
        self.head = TokenHead(width, vocabulary, norm=norm, bias=bias)
        self.head.weight = self.embed.token.weight
        self._begin(0.02, 0.02 / (2 * depth) ** 0.5)

    def forward(self, tokens: Tensor) -> Output:
        """Predict each next token.

        Parameters
        ----------
        tokens : Tensor, shape (batch, tokens)
            Token ids, at most `context` per text.

        Returns
        -------
        Output
            Output(logits (batch, tokens, vocabulary), transport cost); the logits at token j are
            those of token j + 1, and depend on tokens up to j only.

        Raises
        ------
        InputError
            For ids beyond the vocabulary, texts longer than the context, other shapes or types.
        """
        state, cost = as_flow(self.body(self.embed(tokens)))
        return Output(self.head(state), cost)

    def count(self, positions: bool = False) -> int:
        """Number of parameters; those of the position embedding count if `positions` is True."""
        positions = switch(positions, "positions")
        total = sum(parameter.numel() for parameter in self.parameters())
        return total if positions else total - self.embed.position.weight.numel()

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        new: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Continue a text: draw one token after another from softmax(logits / temperature).

        Dropout is off meanwhile. Of texts longer than the context, the end is seen.

        Parameters
        ----------
        tokens : Tensor, shape (batch, tokens)
            Beginnings, of any length >= 1.
        new : int
            Number of tokens to add.
        temperature : float, default 1.0
            >= 0; below 1 likely tokens become likelier, 0 takes the likeliest.
        top_k : int, optional
            Draw from that many of the likeliest tokens; None from all.
        generator : torch.Generator, optional
            Source of the random numbers, on the device of the network.

        Returns
        -------
        Tensor, shape (batch, tokens + new)
            The result.

        Raises
        ------
        InputError
            For ids beyond the vocabulary, or numbers out of range.
        """
        new, temperature = whole(new, "new", 0), number(temperature, "temperature", 0)
        kept = self.vocabulary if top_k is None else min(whole(top_k, "top_k"), self.vocabulary)
        tensor(tokens, "tokens", "whole")
        if generator is not None and not isinstance(generator, torch.Generator):
            kind = type(generator).__name__
            raise InputError(f"generator is {kind}: expected a torch.Generator, or None")
        check_tokens(tokens.cpu(), self.vocabulary)  # once, so the ids of a GPU are read, too
        tokens = tokens.long()
        with evaluating(self):
            for _ in range(new):
                hidden = self.embed(tokens[:, -self.context :])
                state = as_flow(self.body(hidden)).state
                logits = self.head(state[:, -1])  # (batch, vocabulary)
                drawn = _draw(logits, temperature, kept, generator)  # (batch, 1)
                tokens = torch.cat([tokens, drawn], dim=1)
        return tokens

    @classmethod
    def from_gpt2(
        cls, state: Mapping[str, Tensor], *, heads: int | None = None, dropout: float = 0.0
    ) -> "GPT":
        """Make a network of the weights of a published GPT-2.

        Their names are `wte.weight`, `wpe.weight`, `h.0.ln_1.weight`, `h.0.attn.c_attn.weight`,
        ..., `ln_f.bias`, with or without `transformer.` before them. Sizes are read from the
        shapes. Matrices of linear maps stand there as (in, out), the transpose of torch's.

        Parameters
        ----------
        state : mapping
            Names and weights.
        heads : int, optional
            Number of heads, which no weight tells; None is width / 64, that of all published sizes.
        dropout : float, default 0.0
            Rate of dropout, for further training.

        Returns
        -------
        GPT
            GPT with biases and the approximate gelu, in single precision.

        Raises
        ------
        InputError
            For a weight that is missing, of another shape, or not of a GPT-2: the message names
            it, the shape found and the shape expected.
        """
        if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
            raise InputError(
                f"state is {type(state).__name__}: expected the weights of a GPT-2 by name"
            )
        state = {name.removeprefix("transformer."): weight for name, weight in state.items()}
        output = state.pop("lm_head.weight", None)
        vocabulary, width = _matrix_shape(state, "wte.weight")
        context, _ = _matrix_shape(state, "wpe.weight")
        blocks = {found[1] for name in state if (found := re.match(r"h\.(\d+)\.", name))}
        net = cls(
            vocabulary=vocabulary,
            context=context,
            width=width,
            depth=max(1, len(blocks)),
            heads=_published_heads(width) if heads is None else heads,
            bias=True,
            gelu="tanh",
            dropout=dropout,
        )
        ours = net._gpt2_names()
        for name in state:
            if name not in ours and not name.endswith((".attn.bias", ".attn.masked_bias")):
                raise InputError(
                    f"{name} is no weight of a GPT-2 of {len(blocks)} blocks: expected wte, wpe, "
                    "ln_f and blocks from h.0 on; take out what belongs to another network"
                )
        with torch.no_grad():
            for name, (parameter, transposed) in ours.items():
                target = parameter.T if transposed else parameter
                target.copy_(_fitting(state, name, tuple(target.shape)))
        shared = isinstance(output, Tensor) and torch.equal(output, state["wte.weight"])
        if output is not None and not shared:
            raise InputError(
                f"lm_head.weight is {_kind(output)} and differs from wte.weight: expected the same "
                f"matrix {(vocabulary, width)}, for GPT shares it between embedding and output"
            )
        return net

    def _gpt2_names(self) -> dict[str, tuple[Tensor, bool]]:
        """Names in a published GPT-2, our parameters, and whether they are transposed there."""
        names = {
            "wte.weight": (self.embed.token.weight, False),
            "wpe.weight": (self.embed.position.weight, False),
            "ln_f.weight": (self.get_parameter("head.norm.weight"), False),
            "ln_f.bias": (self.get_parameter("head.norm.bias"), False),
        }
        parts = {
            "ln_1": "norm_attention",
            "attn.c_attn": "attention.qkv",
            "attn.c_proj": "attention.out",
            "ln_2": "norm_feed_forward",
            "mlp.c_fc": "feed_forward.up",
            "mlp.c_proj": "feed_forward.down",
        }
        assert isinstance(self.body, Stack)
        for i in range(len(self.body)):
            for theirs, ours in parts.items():
                for kind in ("weight", "bias"):
                    parameter = self.get_parameter(f"body.blocks.{i}.{ours}.{kind}")
                    names[f"h.{i}.{theirs}.{kind}"] = parameter, parameter.ndim == 2
        return names

    def _begin(self, std: float, residual_std: float) -> None:
        """Draw all matrices; set biases to zero. Layer norms begin as they are."""
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.out.weight", "feed_forward.down.weight")):
                nn.init.normal_(parameter, std=residual_std)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


class TokenHead(nn.Linear):
    """Layer norm and linear map without bias: (..., width) to logits (..., vocabulary).

    Parameters
    ----------
    width, vocabulary, norm : int or bool
        As for `GPT`.
    bias : bool, default False
        Whether the layer norm has a bias.
    """

    def __init__(
        self, width: int, vocabulary: int, *, norm: bool = True, bias: bool = False
    ) -> None:
        super().__init__(width, vocabulary, bias=False)
        self.norm = layer_norm(width, norm, bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states to logits."""
        return super().forward(self.norm(hidden))


def _draw(
    logits: Tensor, temperature: float, kept: int, generator: torch.Generator | None
) -> Tensor:
    """Draw token ids (batch, 1) from logits (batch, vocabulary), among the `kept` largest."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    # Counted from their largest down: then no temperature, however low, makes them overflow.
    values, ids = logits.float().topk(kept, dim=-1)  # (batch, kept), the largest first
    chances = torch.softmax((values - values[:, :1]) / temperature, dim=-1)
    return ids.gather(1, torch.multinomial(chances, 1, generator=generator))


def _matrix_shape(state: Mapping[str, Any], name: str) -> tuple[int, int]:
    """Shape of the matrix of that name."""
    weight = state.get(name)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise InputError(f"{name} is {_kind(weight)}: expected a matrix, as in a published GPT-2")
    return weight.shape[0], weight.shape[1]


def _published_heads(width: int) -> int:
    if width % 64:
        raise InputError(f"wte.weight has width {width}: expected a multiple of 64; give heads")
    return width // 64


def _fitting(state: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Tensor:
    """The weight of that name, if it has that shape."""
    weight = state.get(name)
    if not isinstance(weight, Tensor) or tuple(weight.shape) != shape or weight.is_complex():
        raise InputError(
            f"{name} is {_kind(weight)}: expected shape {shape}; is it a GPT-2 of that size, with "
            "matrices as (in, out)?"
        )
    return weight


def _kind(weight: Any) -> str:
    if weight is None:
        return "missing"
    return f"of shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else f"{weight!r:.60}"
