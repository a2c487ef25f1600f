"""Layers of transformers: attention, feed-forward layer, block, stack of blocks, token embedding.

Hidden states are tensors (batch, tokens, width). Blocks keep their shape, so that a stack of them
can be the velocity of a dynamical system (`wflow.nets.ContinuousTransformer`). Inputs are checked
in eager mode only: under `torch.compile` a check would break the graph, or guard it for nothing.

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer Architectures",
arXiv 2505.13499.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from wflow._core.checks import check_choice, number, switch, whole
from wflow._core.errors import InputError
from wflow.nets.checks import in_memory, modules, tensor

__all__ = ["Attention", "Block", "FeedForward", "Flow", "Output", "Stack", "TokenEmbedding"]


def __dir__() -> list[str]:
    return __all__


# Results of bodies and networks
# ------------------------------


class Flow(NamedTuple):
    """Final hidden states of a body, and its transport cost.

    Parameters
    ----------
    state : Tensor
        Hidden states X(T), of the shape of X(0).
    cost : Tensor, shape ()
        Transport cost; 0 for a discrete network.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> body = nets.ContinuousTransformer(torch.nn.Linear(4, 4), steps=2)
    >>> body(torch.zeros(3, 5, 4)).state.shape
    torch.Size([3, 5, 4])
    """

    state: Tensor  # X(T), of the shape of X(0)
    cost: Tensor  # transport cost, one number


class Output(NamedTuple):
    """Output of a network, and the transport cost of its body.

    Parameters
    ----------
    output : Tensor
        What the network computes, such as logits.
    cost : Tensor, shape ()
        Transport cost; 0 for a discrete network.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.ViT(image=(1, 8, 8), patch=4, width=8)
    >>> logits, cost = net(torch.zeros(3, 1, 8, 8))
    >>> logits.shape, float(cost)
    (torch.Size([3, 10]), 0.0)
    """

    output: Tensor
    cost: Tensor


def as_flow(value: Any) -> Flow:
    """Convert the result of a body to a Flow; a discrete network has cost 0."""
    if isinstance(value, Flow):
        return value
    state = hidden_states(value)
    return Flow(state, state.new_zeros((), dtype=at_least_single(state.dtype)))


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """Return the type of sums: float32 for half precision, else the type itself."""
    return torch.promote_types(dtype, torch.float32)


def hidden_states(value: Any) -> Tensor:
    """Extract the hidden states from the result of a module."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Flow):
        raise InputError(
            "the blocks are a continuous-time transformer themselves: expected the blocks inside"
        )
    states = getattr(value, "last_hidden_state", None)
    if states is None and isinstance(value, tuple | list) and value:
        states = value[0]
    if not isinstance(states, Tensor):
        raise InputError(
            f"the blocks returned {type(value).__name__}: expected a tensor, a tuple that begins "
            "with one, or an object with .last_hidden_state"
        )
    return states


def wide(x: Tensor) -> Tensor:
    """Detach a tensor in double precision; single on devices that have no double."""
    return x.detach().to(torch.float32 if x.device.type == "mps" else torch.float64)


def output_of(value: Any) -> Tensor:
    """Extract the tensor from the result of a function: itself, or the first of a tuple.

    Raises
    ------
    InputError
        Where there is none.
    """
    first = value[0] if isinstance(value, tuple | list) and value else value
    if not isinstance(first, Tensor):
        raise InputError(
            f"the function returned {type(value).__name__}: expected a tensor, or a tuple that "
            "begins with one, such as Output or Flow"
        )
    return first


# Training and evaluation modes
# -----------------------------


@contextmanager
def kept_modes(model: Any) -> Iterator[None]:
    """Restore the mode of every module at the end of the block, also of frozen parts.

    Parameters
    ----------
    model : object
        The network; what is no module has no modes, and nothing is done.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        yield
    finally:
        for module, training in zip(modules, modes, strict=True):
            module.training = training


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Set evaluation mode in the block; parameters and modes as for `kept_modes`."""
    with kept_modes(model):
        if isinstance(model, nn.Module):
            model.eval()
        yield


Gelu = Literal["none", "tanh"]


class Attention(nn.Module):
    r"""Self-attention of several heads [1]_.

    Parameters
    ----------
    width : int
        Width of the hidden states.
    heads : int
        Number of heads H.
    head_width : int, optional
        Width k of a head; None is width / heads.
    causal : bool, default False
        Whether a token sees itself and those before it only.
    bias : bool, default True
        Whether linear layers have biases.
    qkv_bias : bool, optional
        The same for queries, keys and values; None is `bias`.
    project : bool, default True
        False leaves the output matrix W out: the heads one beside the other are the output.
    dropout : float, default 0.0
        Rate at which attention weights and outputs are dropped, in training only.

    Raises
    ------
    InputError
        For a width that the heads cannot share, or sizes and rates out of range.

    Notes
    -----
    With the tokens as columns of :math:`X`, and :math:`k` the width of a head, token :math:`j` gets

    .. math:: \sum_h W^h V^h X \, \mathrm{softmax}\big((K^h X)^T Q^h x_j / \sqrt{k}\big).

    The rows of ``qkv.weight`` are the queries, the keys and the values, in this order, and in each
    of them head after head: Q^h is ``qkv.weight[h * k : (h + 1) * k]``. W^h is ``out.weight[:, h *
    k : (h + 1) * k]``.

    References
    ----------
    .. [1] Vaswani et al., "Attention is all you need" (2017), section 3.2; Kan, Li, Zhang, Sahai,
       Osher, Katsoulakis, "Optimal Control for Transformer Architectures", arXiv:2505.13499, eq. 3.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> attention = nets.blocks.Attention(8, heads=2, causal=True)
    >>> attention(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    @in_memory
    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int | None = None,
        causal: bool = False,
        bias: bool = True,
        qkv_bias: bool | None = None,
        project: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.width, self.heads = whole(width, "width"), whole(heads, "heads")
        self.head_width = (
            share(width, heads) if head_width is None else whole(head_width, "head_width")
        )
        self.causal, self.dropout = switch(causal, "causal"), rate(dropout)
        bias, project = switch(bias, "bias"), switch(project, "project")
        qkv_bias = bias if qkv_bias is None else switch(qkv_bias, "qkv_bias")
        inner = self.heads * self.head_width
        if not project and inner != self.width:
            raise InputError(
                f"{heads} heads of width {self.head_width} give {inner} numbers per token, and the "
                f"hidden states have width {width}: expected the same with project=False; use "
                "project=True"
            )
        self.qkv = nn.Linear(self.width, 3 * inner, bias=qkv_bias)
        self.out: nn.Module = nn.Linear(inner, self.width, bias=bias) if project else nn.Identity()

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Apply attention to hidden states.

        Parameters
        ----------
        x : Tensor, shape (batch, tokens, width)
            Hidden states.
        mask : Tensor, shape (batch, tokens), optional
            True where a token is there: only those are seen, whatever the others hold, NaN too.
            What comes out for tokens that are not there is finite and means nothing.

        Returns
        -------
        Tensor, shape (batch, tokens, width)
            Hidden states after attention.

        Raises
        ------
        InputError
            For other shapes, or a mask that is not bool.
        """
        check_hidden(x, self.width, mask, self.qkv.weight)
        x = present(x, mask)
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, self.head_width)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (batch, heads, tokens, k)
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=None if mask is None else _visible(mask, self.causal),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal and mask is None,
        )  # (batch, heads, tokens, k)
        mixed = mixed.transpose(1, 2).reshape(batch, tokens, self.heads * self.head_width)
        return functional.dropout(self.out(mixed), self.dropout, self.training)

    def extra_repr(self) -> str:
        return (
            f"heads={self.heads}, head_width={self.head_width}, causal={self.causal}, "
            f"dropout={self.dropout}"
        )


class FeedForward(nn.Module):
    """Fully connected layer for each token, B gelu(A x + a) + b [1]_.

    Parameters
    ----------
    width : int
        Width of the hidden states.
    hidden : int
        Width between A and B.
    bias : bool, default True
        Whether a and b are there.
    gelu : {"none", "tanh"}
        `none`, the function itself; `tanh`, its approximation that GPT-2 was trained with.
    dropout : float, default 0.0
        Rate at which outputs are dropped, in training only.

    Raises
    ------
    InputError
        For sizes and rates out of range.

    References
    ----------
    .. [1] Vaswani et al. (2017), section 3.3, with the GELU of Hendrycks and Gimpel (2016); g_f of
       Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer Architectures",
       arXiv:2505.13499, eq. 4.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> nets.blocks.FeedForward(8, 32)(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    @in_memory
    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        bias: bool = True,
        gelu: Gelu = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("gelu", gelu, ("none", "tanh"))
        width, hidden, bias = whole(width, "width"), whole(hidden, "hidden"), switch(bias, "bias")
        self.up = nn.Linear(width, hidden, bias=bias)
        self.gelu = nn.GELU(approximate=gelu)
        self.down = nn.Linear(hidden, width, bias=bias)
        self.dropout = rate(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states token by token.

        Parameters
        ----------
        x : Tensor, shape (..., width)
            Hidden states.

        Returns
        -------
        Tensor, shape (..., width)
            Hidden states after the layer.

        Raises
        ------
        InputError
            For another width, type or device.
        """
        if not torch.compiler.is_compiling():
            tensor(x, "hidden states", "real", self.up.weight)
            if not x.ndim or x.shape[-1] != self.up.in_features:
                raise InputError(
                    f"hidden states are of shape {tuple(x.shape)}: expected (..., "
                    f"{self.up.in_features})"
                )
        x = self.gelu(self.up(x))  # (..., hidden)
        return functional.dropout(self.down(x), self.dropout, self.training)

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"


class Block(nn.Module):
    r"""Transformer block with its layer norms before the layers [1]_ [2]_.

    Parameters
    ----------
    width : int
        Width of the hidden states.
    heads : int
        Number of heads.
    hidden : int, optional
        Inner width of the feed-forward layer; None leaves the layer out, with its norm.
    head_width : int, optional
        Width of a head; None is width / heads.
    causal : bool, default False
        Whether a token sees itself and those before it only.
    norm : bool, default True
        False leaves the layer norms out.
    bias : bool, default True
        Whether linear layers and layer norms have biases.
    qkv_bias : bool, optional
        The same for queries, keys and values; None is `bias`.
    project : bool, default True
        False leaves the output matrix of the attention out.
    skip : bool, default True
        False leaves the skip connection of the feed-forward layer out: the blocks of N-ODE
        transformers. Without a feed-forward layer there is nothing to leave out.
    gelu : {"none", "tanh"}
        As for `FeedForward`.
    dropout : float, default 0.0
        Rate of dropout in attention and feed-forward layer.

    Raises
    ------
    InputError
        For a width that the heads cannot share, and sizes and rates out of range.

    Notes
    -----
    .. math:: u = x + \mathrm{attention}(\mathrm{norm}(x)), \qquad
       x' = u + \mathrm{ff}(\mathrm{norm}(u)),

    or :math:`x' = \mathrm{ff}(\mathrm{norm}(u))` without `skip`.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, eqs. 3, 4 and 13.
    .. [2] Radford et al., "Language models are unsupervised multitask learners" (2019), section
       2.3.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> block = nets.blocks.Block(8, heads=2, hidden=32)
    >>> block(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    @in_memory
    def __init__(
        self,
        width: int,
        heads: int,
        *,
        hidden: int | None = None,
        head_width: int | None = None,
        causal: bool = False,
        norm: bool = True,
        bias: bool = True,
        qkv_bias: bool | None = None,
        project: bool = True,
        skip: bool = True,
        gelu: Gelu = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm_attention = layer_norm(width, norm, bias)
        self.attention = Attention(
            width,
            heads,
            head_width=head_width,
            causal=causal,
            bias=bias,
            qkv_bias=qkv_bias,
            project=project,
            dropout=dropout,
        )
        self.skip = switch(skip, "skip")
        self.feed_forward: FeedForward | None = None
        if hidden is not None:
            self.norm_feed_forward = layer_norm(width, norm, bias)
            self.feed_forward = FeedForward(width, hidden, bias=bias, gelu=gelu, dropout=dropout)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map hidden states to hidden states.

        Parameters
        ----------
        x : Tensor, shape (batch, tokens, width)
            Hidden states.
        mask : Tensor, shape (batch, tokens), optional
            True where a token is there, as for `Attention.forward`.

        Returns
        -------
        Tensor, shape (batch, tokens, width)
            Hidden states after the block.
        """
        check_hidden(x, self.attention.width, mask, self.attention.qkv.weight)
        # Not x itself: a gradient that is summed in another order has other last bits.
        x = x + self.attention(self.norm_attention(present(x, mask)), mask=mask)
        if self.feed_forward is None:
            return x
        change = self.feed_forward(self.norm_feed_forward(present(x, mask)))
        return x + change if self.skip else change

    def extra_repr(self) -> str:
        return f"skip={self.skip}"


class Stack(nn.Module):
    """Blocks one after another, f = f_D o ... o f_1.

    Parameters
    ----------
    blocks : iterable of torch.nn.Module
        Modules, each of which maps hidden states to hidden states of the same shape; of a tuple, or
        an object with `.last_hidden_state`, the hidden states are taken.

    Raises
    ------
    InputError
        For no blocks.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> stack = nets.blocks.Stack([nets.blocks.Block(8, heads=2) for _ in range(3)])
    >>> len(stack), stack(torch.zeros(2, 5, 8)).shape
    (3, torch.Size([2, 5, 8]))
    """

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(modules(blocks))
        if not len(self.blocks):
            raise InputError("a stack of no blocks: expected at least one")

    def forward(
        self, x: Tensor, *arguments: Any, valid: Tensor | None = None, **context: Any
    ) -> Tensor:
        """Map hidden states through the blocks.

        Parameters
        ----------
        x : Tensor, shape (batch, tokens, width)
            Hidden states.
        *arguments : object
            As `context`, for blocks that are given them by position.
        valid : Tensor, shape (batch, tokens), optional
            True where a token is there: NaN in the others is not handed on. A network calls a stack
            and its wrapper alike, in whose transport cost only these tokens count.
        **context : object
            Handed to each block, such as a padding mask.

        Returns
        -------
        Tensor, shape (batch, tokens, width)
            Hidden states after the last block.
        """
        x = present(x, valid)
        for block in self.blocks:
            x = hidden_states(block(x, *arguments, **context))
        return x

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.blocks)

    def __getitem__(self, i: int) -> nn.Module:
        return self.blocks[i]


class TokenEmbedding(nn.Module):
    """Hidden states of a text, with learned positions: x_j = E[token_j] + P[j] [1]_.

    Parameters
    ----------
    vocabulary : int
        Number of token ids.
    context : int
        Number of positions, the length of the longest text.
    width : int
        Width of the hidden states.
    std : float, default 0.02
        Standard deviation of E and P at the start.
    dropout : float, default 0.0
        Rate at which entries are dropped, in training only.

    Raises
    ------
    InputError
        For sizes and rates out of range.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, eq. 2.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> embed = nets.blocks.TokenEmbedding(vocabulary=11, context=7, width=4)
    >>> embed(torch.tensor([[3, 0, 10]])).shape
    torch.Size([1, 3, 4])
    """

    @in_memory
    def __init__(
        self,
        vocabulary: int,
        context: int,
        width: int,
        *,
        std: float = 0.02,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        width = whole(width, "width")
        self.token = nn.Embedding(whole(vocabulary, "vocabulary"), width)
        self.position = nn.Embedding(whole(context, "context"), width)
        self.dropout = rate(dropout)
        std = number(std, "std", 0)
        nn.init.normal_(self.token.weight, std=std)
        nn.init.normal_(self.position.weight, std=std)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed token ids.

        Parameters
        ----------
        tokens : Tensor, shape (batch, tokens)
            Integers in 0 .. vocabulary - 1, at most `context` per text.

        Returns
        -------
        Tensor, shape (batch, tokens, width)
            Hidden states.

        Raises
        ------
        InputError
            For other shapes or types, texts longer than the context, ids beyond the vocabulary (on
            the CPU: see `check_tokens`).
        """
        weight = self.token.weight
        check_tokens(tokens, self.token.num_embeddings, self.position.num_embeddings, weight)
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]  # (batch, tokens, width)
        return functional.dropout(x, self.dropout, self.training)

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"


def layer_norm(width: int, norm: bool = True, bias: bool = True) -> nn.Module:
    """Return the layer norm over the width, or nothing where `norm` is False."""
    width, norm, bias = whole(width, "width"), switch(norm, "norm"), switch(bias, "bias")
    return nn.LayerNorm(width, bias=bias) if norm else nn.Identity()


def share(width: int, heads: int) -> int:
    """Return the width of a head, width / heads, which must be a whole number."""
    width, heads = whole(width, "width"), whole(heads, "heads")
    if width % heads:
        raise InputError(
            f"width {width} cannot be shared by {heads} heads: expected a multiple of {heads}, or "
            "a head_width"
        )
    return width // heads


def rate(dropout: Any) -> float:
    """Check that a rate of dropout lies in [0, 1); InputError otherwise."""
    if number(dropout, "dropout", 0) >= 1:
        raise InputError(f"dropout is {dropout}: expected a rate below 1, such as 0.1")
    return float(dropout)


_LARGE = 2.0**40  # products of larger states may be infinite


def present(x: Tensor, mask: Tensor | None) -> Tensor:
    """Make hidden states of absent tokens finite: others would spread to the result as NaN.

    Attention gives them the weight 0, and 0 * NaN is NaN, in the result and in the gradient of the
    weights. Numbers below 2^40 stay, for pooling may read them ("max with padding").
    """
    if mask is None:
        return x
    if not torch.compiler.is_compiling():
        tensor(mask, "the mask", "bool", tensor(x, "hidden states", "number", x))
        if not mask.ndim or mask.shape != x.shape[: mask.ndim]:
            raise InputError(
                f"the mask is of shape {tuple(mask.shape)}: expected the first dimensions of the "
                f"hidden states {tuple(x.shape)}, such as (batch, tokens)"
            )
    mask = mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim))
    return torch.where((x.abs() < _LARGE) | mask, x, 0)


def check_hidden(x: Tensor, width: int, mask: Tensor | None, weight: Tensor) -> None:
    """Check hidden states (batch, tokens, width) that meet a weight, and a mask (batch, tokens)."""
    if torch.compiler.is_compiling():
        return
    tensor(x, "hidden states", "real", weight)
    if x.ndim != 3 or x.shape[2] != width:
        raise InputError(
            f"hidden states are of shape {tuple(x.shape)}: expected (batch, tokens, {width})"
        )
    if mask is None:
        return
    tensor(mask, "the mask", "bool", x)
    if mask.shape != x.shape[:2]:
        raise InputError(
            f"the mask is {mask.dtype} of shape {tuple(mask.shape)}: expected torch.bool of shape "
            f"{tuple(x.shape[:2])}, True where a token is there"
        )


def check_tokens(
    tokens: Tensor, vocabulary: int, context: int | None = None, weight: Tensor | None = None
) -> None:
    """Check token ids (batch, tokens), in eager mode; ids themselves on the CPU only.

    Reading one on a GPU would wait for all its work, in every forward pass, and a bad one ends the
    process there: check ids before they are moved, as `data.CropBatches(vocabulary=)` does.

    Parameters
    ----------
    tokens : Tensor
        What was given.
    vocabulary : int
        Number of ids.
    context : int, optional
        Length of the longest text that is taken; None takes any.
    weight : Tensor, optional
        Embedding, on the device of which they must be.
    """
    if torch.compiler.is_compiling():
        return
    if weight is not None or not isinstance(tokens, Tensor):
        tensor(tokens, "token ids", "whole", weight)
    if tokens.dtype not in (torch.int64, torch.int32):
        raise InputError(f"token ids are {tokens.dtype}: expected integers, torch.int64 or int32")
    if tokens.ndim != 2 or tokens.shape[1] == 0:
        raise InputError(
            f"token ids are of shape {tuple(tokens.shape)}: expected (batch, tokens), with at "
            "least one token"
        )
    if context is not None and tokens.shape[1] > context:
        raise InputError(
            f"texts of {tokens.shape[1]} tokens: expected at most {context}, the context of the "
            "network; crop them, or build a network with a longer context"
        )
    if tokens.numel() == 0 or tokens.device.type != "cpu":
        return
    wrong = beyond(tokens, vocabulary)
    if wrong is not None:
        raise InputError(
            f"token id {wrong} is beyond the vocabulary: expected ids in "
            f"0 .. {vocabulary - 1}; was the text encoded for another network?"
        )


def beyond(tokens: Tensor, vocabulary: int) -> int | None:
    """Return a token id outside of 0 .. vocabulary - 1, or None if there is none."""
    least, most = (int(end) for end in tokens.to(torch.int64).aminmax())
    if least < 0:
        return least
    return most if most >= vocabulary else None


def _visible(mask: Tensor, causal: bool) -> Tensor:
    """Return the tokens that each token attends to: (batch, 1, 1 or tokens, tokens).

    A softmax over nothing would be NaN, and its gradient would reach every weight: in a text
    without tokens each sees all, and of those before it each token sees itself at least.
    """
    if not causal:
        return (mask | ~mask.any(1, keepdim=True))[:, None, None, :]
    tokens = mask.shape[1]
    before = torch.ones(tokens, tokens, dtype=torch.bool, device=mask.device).tril()
    itself = torch.eye(tokens, dtype=torch.bool, device=mask.device)
    return mask[:, None, None, :] & before | itself
