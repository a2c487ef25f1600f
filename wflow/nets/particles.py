"""Trained networks as particles: their heads as a head law, their token embeddings as a cloud::

    law = particles.head_law(gpt)                     # Q, K, V of every layer, as a schedule
    run = wflow.solve(**particles.problem(gpt, text)) # tokens of the text, moved by these heads

A block adds attention(norm(x)) to the hidden states x of its tokens, and a layer norm sees only
the direction ``u = C x/|C x|`` of each, C = I - 1 1^T/d. With ``r = |C x|`` it moves by::

    du/dt = (1/r) P_u C attention(norm(x)),   dr/dt = <u, C attention(norm(x))>,

a flow on the sphere (of mean-zero vectors) of general (Q, K, V) heads, which `wflow.solve` runs.

What is kept: the scores <W_q^h x, W_k^h y>/sqrt(k), the values W_out^h W_v^h, the gain g and the
eps of the layer norm, the causal mask, the order of the layers and, by `radius`, the norm of the
tokens. The mean over the entries is taken out exactly: no later layer norm sees it.

What is lost: feed-forward layers; biases of layer norm, attention and output (`dropped` says how
large they are; that of the keys changes no softmax); that tokens differ in norm, and the change of
their norm within an interval; for a continuous-time model with several blocks, that each block
sees what those before it made of the state at once, and not in a step of length dt. Without layer
norms the scores depend on the norms of the tokens themselves, and all of them get one.

Networks of transformers are read, too: GPT-2 as the `GPT` that it is, and BERT and its relatives,
whose blocks take x to norm_2(u + ff(u)), u = norm_1(x + attention(x)). There attention is given x
itself, so that the heads are those of a block without layer norms, at a radius r that is the norm
of x, and what is lost beside the above are gain, bias and mean of the layer norms that follow: a
direction u moves by P_u attention(r u)/r. Tokens are the directions of x, with their mean.
"""

import hashlib
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from wflow._core.checks import number, positive, reals, switch, whole
from wflow._core.errors import InputError
from wflow.attention.cloud import as_unit_tokens
from wflow.heads.laws import QKV, Schedule, register
from wflow.kernels.evaluate import evaluate
from wflow.nets.blocks import Block, Stack, check_tokens, evaluating, wide
from wflow.nets.checks import listed, module, tensor
from wflow.nets.continuous import ContinuousTransformer, NodeTransformer
from wflow.nets.models.gpt import gpt_of
from wflow.particles.options import SaveAt
from wflow.sphere.geometry import as_tokens

__all__ = [
    "Clouds",
    "Dropped",
    "Motion",
    "Tied",
    "TrainedHeads",
    "blocks_of",
    "clouds_of",
    "dropped",
    "head_law",
    "motion_of",
    "problem",
    "randomised",
    "tied",
    "tokens_of",
    "velocity",
]


def __dir__() -> list[str]:
    return __all__


# Attention layers as a schedule of general heads
# -----------------------------------------------

Array = NDArray[np.float64]


@register
class TrainedHeads(Schedule):
    """Heads of L attention layers, one after the other, each for a time of length `duration`.

    In the k-th interval the score matrices are score_factors[k] D_{h, order[k]} and the value
    matrices value_factors[k] V_{h, order[k]}. Made by `head_law` and `randomised`.

    Parameters
    ----------
    heads : QKV
        QKV with a leading axis of layers: query and key (L, H, k, d), value (L, H, d, d).
    order : sequence of int
        Number of the layer that acts in each of the K intervals.
    duration : float
        Length of an interval.
    score_factors, value_factors : array_like, shape (K,)
        Factors of scores and values in each interval.
    causal : bool
        Whether a token sees only itself and those before it; for `wflow.solve(causal=)`.
    centred : bool
        Whether tokens have mean zero over their entries, as a layer norm makes them.

    Raises
    ------
    InputError
        For heads without layers, an order of other layers, and numbers that do not fit it.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])

    >>> law = nets.particles.head_law(net)
    >>> type(law).__name__, law.layer_scores.shape, law.order.tolist()
    ('TrainedHeads', (2, 2, 6, 6), [0, 1])
    """

    def __init__(
        self,
        heads: QKV,
        order: Sequence[int],
        duration: float,
        score_factors: ArrayLike,
        value_factors: ArrayLike,
        *,
        causal: bool,
        centred: bool,
    ) -> None:
        if not isinstance(heads, QKV):
            raise InputError(f"heads are {type(heads).__name__}: expected QKV")
        query = reals(heads.query, "heads.query")
        if query.ndim != 4:
            raise InputError(f"heads.query has shape {query.shape}: expected (layers, heads, k, d)")
        layers = len(query)
        super().__init__([float(k) for k in range(layers)], heads, "constant")
        numbers = [whole(k, "a layer in order", 0) for k in listed(order, "order")]
        if not numbers or max(numbers) >= layers:
            raise InputError(f"order is {numbers}: expected numbers of layers, 0 to {layers - 1}")
        self.order = np.asarray(numbers, np.int64)
        self.duration = positive(duration, "duration")
        self.times = self.duration * np.arange(len(self.order), dtype=np.float64)
        self.score_factors = reals(score_factors, "score_factors")
        self.value_factors = reals(value_factors, "value_factors")
        for name in ("score_factors", "value_factors"):
            if getattr(self, name).shape != self.order.shape:
                raise InputError(f"{name} must be {len(numbers)} numbers, one for each of order")
        self.causal, self.centred = switch(causal, "causal"), switch(centred, "centred")

    @property
    def t_final(self) -> float:
        """End of the last interval."""
        return self.duration * len(self.order)

    @property
    def layer_scores(self) -> Array:
        """D_{h, l} without factors, (L, H, d, d)."""
        return self._scores

    @property
    def layer_values(self) -> Array:
        """V_{h, l} without factors, (L, H, d, d)."""
        assert self._values is not None
        return self._values

    def with_heads(self, scores: Array, values: Array) -> "TrainedHeads":
        """Return the same schedule with other matrices.

        Parameters
        ----------
        scores, values : array_like, shape (L, H, d, d)
            Score and value matrices of each layer and head.

        Returns
        -------
        TrainedHeads
            The schedule.

        Raises
        ------
        InputError
            For arrays of another form.
        """
        scores, values = reals(scores, "scores"), reals(values, "values")
        if scores.ndim != 4 or scores.shape[2] != scores.shape[3]:
            raise InputError(f"scores have shape {scores.shape}: expected (layers, heads, d, d)")
        layers, count, d, _ = scores.shape
        query = np.broadcast_to(np.eye(d), (layers, count, d, d))
        return TrainedHeads(
            QKV(query, scores, values), self.order.tolist(), self.duration, self.score_factors,
            self.value_factors, causal=self.causal, centred=self.centred,
        )  # fmt: skip

    def to_config(self) -> dict[str, Any]:
        # Matrices of a network are too large for the text of a configuration: their digest tells
        # whether a run that is resumed has the same.
        digest = hashlib.sha256()
        for array in (
            self._scores, self.layer_values, self.order, self.score_factors, self.value_factors
        ):  # fmt: skip
            digest.update(np.ascontiguousarray(array).tobytes())
        return {
            "shape": list(self._scores.shape),
            "intervals": len(self.order),
            "duration": self.duration,
            "causal": self.causal,
            "sha256": digest.hexdigest(),
        }

    def _at(self, table: NDArray[np.float64], t: float) -> NDArray[np.float64]:
        # A time that rounding left just below a knot belongs to it.
        nudged = t + 1e-9 * max(1.0, abs(t))
        interval = int(np.searchsorted(self.times, nudged, side="right")) - 1
        k = min(max(interval, 0), len(self.order) - 1)
        factors = self.score_factors if table is self._scores else self.value_factors
        return np.asarray(factors[k] * table[self.order[k]])


# Networks of transformers
# ------------------------

_BERTS = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
_FAMILIES = (*_BERTS, "gpt2")
_REPLACED = (
    "the layers of the {} are not those that the library made: expected them; read the network "
    "before its layers are wrapped or replaced"
)


def as_blocks(network: nn.Module) -> nn.Module:
    """Return a network of transformers as one of blocks; other networks as they are."""
    library = sys.modules.get("transformers.modeling_utils")  # there where such a network is
    module(network, "network")
    if library is None or not isinstance(network, library.PreTrainedModel):
        return network
    family = str(network.config.model_type)
    if family not in _FAMILIES:
        raise InputError(
            f"{type(network).__name__} is of the family {family} of transformers: expected one of "
            f"{', '.join(_FAMILIES)}, whose layers and tokens can be read"
        )
    # A wrapper hands on the attributes of its layer, and would be taken for it.
    if any(isinstance(part, ContinuousTransformer) for part in network.modules()):
        raise InputError(_REPLACED.format(type(network).__name__))
    if family == "gpt2":
        return gpt_of(network)
    return _Encoder(network.base_model)


class _Encoder(nn.Module):
    """Encoder of the family of BERT, with its own embeddings, norms and feed-forward layers."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        config = encoder.config
        if getattr(config, "position_embedding_type", "absolute") != "absolute":
            raise InputError(
                f"the encoder has positions that are {config.position_embedding_type}, within its "
                "attention: expected absolute ones, which are in its tokens"
            )
        self.embed, self.pad = encoder.embeddings, config.pad_token_id
        self.project = getattr(encoder, "embeddings_project", nn.Identity())  # of ELECTRA
        try:
            with torch.random.fork_rng([]):
                self.body = Stack(_PostNorm(layer) for layer in encoder.encoder.layer)
        except AttributeError:
            raise InputError(_REPLACED.format(type(encoder).__name__)) from None

    def forward(self, tokens: Tensor) -> Tensor:
        ids, positions = self.embed.word_embeddings, self.embed.position_embeddings.num_embeddings
        # RoBERTa counts positions from behind its id of padding.
        context = positions - (getattr(self.embed, "padding_idx", -1) + 1)
        check_tokens(tokens, ids.num_embeddings, context, ids.weight)
        if bool((tokens == self.pad).any()):
            raise InputError(_PADDED)
        return self.body(self.project(self.embed(tokens)))  # type: ignore[no-any-return]


class _PostNorm(Block):
    """Block of BERT: x' = norm_2(u + ff(u)), u = norm_1(x + attention(x))."""

    def __init__(self, layer: Any) -> None:
        heads, out = layer.attention.self, layer.attention.output
        count, causal = heads.num_attention_heads, heads.is_decoder
        width = heads.query.out_features // count
        super().__init__(out.dense.out_features, count, head_width=width, causal=causal, norm=False)
        self.to(out.dense.weight)
        with torch.no_grad():
            for name in ("weight", "bias"):
                parts = [getattr(part, name) for part in (heads.query, heads.key, heads.value)]
                self.attention.qkv.get_parameter(name).copy_(torch.cat(parts))
        self.attention.out = out.dense
        self.norm_1, self.norm_2 = out.LayerNorm, layer.output.LayerNorm
        inner: Any = nn.Sequential(layer.intermediate, layer.output.dense)  # any activation
        self.feed_forward = inner

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        assert self.feed_forward is not None
        x = self.norm_1(x + self.attention(x, mask=mask))
        return self.norm_2(x + self.feed_forward(x))  # type: ignore[no-any-return]


class Order(NamedTuple):
    """Order of the blocks in the time of the network."""

    blocks: tuple[int, ...]  # of each interval
    duration: float  # of an interval
    gain: float  # factor of a block's output, so that it adds what it did in the network


class Folded(NamedTuple):
    """Attention layer on the sphere, for an input of norm one to the attention."""

    query: Array  # (H, k, d)
    key: Array  # (H, k, d), with 1/sqrt(k)
    value: Array  # (H, d, d): W_out^h W_v^h
    query_bias: Array  # (H, k)
    drift: Array  # (d,): what biases add to every token
    norm: bool
    eps: float


def body_of(network: nn.Module) -> nn.Module:
    """Return the part of a network that moves hidden states; for a body, the body itself."""
    network = as_blocks(network)
    return module(getattr(network, "body", network), "the body of the network")


def blocks_of(network: nn.Module) -> list[Block]:
    """List the blocks of a network in the order in which they act.

    Parameters
    ----------
    network : torch.nn.Module
        One with a body of `blocks.Block`, or such a body; or a network of transformers of the
        families bert, roberta, xlm-roberta, camembert, electra and gpt2, whose blocks are made
        again.

    Returns
    -------
    list of Block
        The blocks; one that is used twice comes twice.

    Raises
    ------
    InputError
        For a network with other modules between the blocks, or with none.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
    >>> len(nets.particles.blocks_of(net))
    2
    """
    blocks: list[Block] = []
    if not _collect(body_of(network), blocks):
        raise InputError(
            f"{type(network).__name__} is not made of blocks of self-attention alone: expected "
            "wflow.nets.blocks.Block, in a Stack, ContinuousTransformer or NodeTransformer, such "
            "as the body of ViT, GPT or TextClassifier, or a whole network of transformers of the "
            f"families {', '.join(_FAMILIES)}"
        )
    return blocks


def _collect(module: nn.Module, blocks: list[Block]) -> bool:
    """Append the blocks of a module to a list; return whether it has no other layers."""
    if isinstance(module, Block):
        blocks.append(module)
        return True
    # `children` would leave a block out that is used for the second time.
    named = module.named_modules(remove_duplicate=False)
    inside = [part for name, part in named if name and "." not in name]
    if not inside or list(module.parameters(recurse=False)):
        return False
    return all(_collect(part, blocks) for part in inside)


def order_of(network: nn.Module) -> Order:
    """Return the order of the blocks: discrete, [0, D); continuous, M times through all D blocks;
    N-ODE, block after block."""
    body, count = body_of(network), len(blocks_of(network))
    if isinstance(body, ContinuousTransformer):
        # Each block of f = f_D o .. o f_1 adds to a step of length dt, and has dt/D to do it.
        return Order(tuple(range(count)) * body.steps, body.dt / count, float(count))
    if isinstance(body, NodeTransformer):
        return Order(tuple(range(count)), body.t_final, 1.0)
    return Order(tuple(range(count)), 1.0, 1.0)


def fold(block: Block) -> Folded:
    """Return the matrices of an attention layer with the gain of its layer norm in them.

    A layer norm takes x to sqrt(d) g * C x / |C x| + b, C = I - 1 1^T/d (up to its eps): the
    factor is left to the caller, g and C go into the matrices, b and the biases are kept apart.
    """
    attention, norm = block.attention, block.norm_attention
    d, count, k = attention.width, attention.heads, attention.head_width
    normed = isinstance(norm, nn.LayerNorm)
    if not normed and not isinstance(norm, nn.Identity):
        raise InputError(
            f"the norm of a block is {type(norm).__name__}: expected LayerNorm, or none"
        )
    centre = np.eye(d) - 1 / d if normed else np.eye(d)
    gain, shift = np.ones(d), np.zeros(d)
    if isinstance(norm, nn.LayerNorm):
        gain = gain if norm.weight is None else _numpy(norm.weight)
        shift = shift if norm.bias is None else _numpy(norm.bias)
    into = gain[:, None] * centre  # diag(g) C
    weight = _numpy(attention.qkv.weight).reshape(3, count, k, d)
    bias = np.zeros((3, count, k))
    if attention.qkv.bias is not None:
        bias = _numpy(attention.qkv.bias).reshape(3, count, k)
    bias = bias + weight @ shift
    matrix, constant = np.eye(d, count * k), np.zeros(d)
    if isinstance(attention.out, nn.Linear):
        matrix = _numpy(attention.out.weight)
        constant = constant if attention.out.bias is None else _numpy(attention.out.bias)
    out = matrix.reshape(d, count, k)
    folded = weight @ into  # (3, H, k, d)
    # What leaves along (1, .., 1) is seen by no later layer norm: C takes it away.
    value = centre @ np.einsum("bhk,hkc->hbc", out, folded[2])  # three at once would take H k d^3
    drift = centre @ (np.einsum("ahk,hk->a", out, bias[2]) + constant)
    return Folded(
        folded[0],
        folded[1] / math.sqrt(k),
        value,
        bias[0],
        drift,
        normed,
        float(norm.eps) if isinstance(norm, nn.LayerNorm) else 0.0,
    )


def fold_all(blocks: Sequence[Block]) -> list[Folded]:
    """Fold all layers of a network, which must be alike in shape, norm and mask."""
    folded = [fold(block) for block in blocks]
    for place, (block, layer) in enumerate(zip(blocks, folded, strict=True)):
        if layer.norm != folded[0].norm or layer.query.shape != folded[0].query.shape:
            raise InputError(
                f"block {place} differs from block 0 in its norm, or in number or width of its "
                "heads: a schedule of heads needs blocks that are alike"
            )
        if block.attention.causal != blocks[0].attention.causal:
            raise InputError(f"block {place} is causal or block 0 is, and not both")
    return folded


def sizes(layer: Folded, radius: NDArray) -> tuple[Array, Array]:
    """Return norms a of the input of the attention, for tokens of norm r, and a / r for values.

    With a layer norm a = r / sqrt(r^2 / d + eps), about sqrt(d); without one, a = r.
    """
    d = layer.value.shape[-1]
    size = radius / np.sqrt(radius**2 / d + layer.eps) if layer.norm else radius
    return size, size / radius


def radii_given(radius: ArrayLike, intervals: int) -> Array:
    """Return the norms of the tokens in each interval, (intervals,)."""
    given = reals(radius, "radius")
    if given.shape not in ((), (intervals,)) or (given <= 0).any():
        raise InputError(
            f"radius is of shape {given.shape}: expected one number > 0, or {intervals}, one for "
            "each interval of the schedule"
        )
    return np.array(np.broadcast_to(given, (intervals,)))


def rotations(count: int, d: int, centred: bool, seed: int) -> Array:
    """Return random orthogonal matrices (count, d, d); `centred` ones keep (1, .., 1) fixed."""
    rng = np.random.Generator(np.random.Philox(whole(seed, "seed", 0)))
    inner = d - 1 if centred else d
    q, r = np.linalg.qr(rng.standard_normal((count, inner, inner)))
    q = q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]
    if not centred:
        return np.asarray(q)
    # An orthonormal basis whose first vector is (1, .., 1)/sqrt(d).
    basis = np.linalg.qr(np.column_stack([np.ones(d), np.eye(d)[:, : d - 1]]))[0]
    rest = basis[:, 1:]
    return np.asarray(rest @ q @ rest.T + 1 / d)


def _numpy(parameter: Tensor) -> Array:
    with torch.no_grad():
        return wide(parameter).cpu().numpy().astype(np.float64)


# Hidden states as clouds of tokens on the sphere
# -----------------------------------------------


class Clouds(NamedTuple):
    """Hidden states of a network on the sphere, as the network itself moves them.

    Parameters
    ----------
    times : ndarray, shape (K + 1,)
        Times, in the time of `head_law` without `t_final`.
    tokens : ndarray, shape (K + 1, samples, n, d)
        Unit vectors.
    radii : ndarray, shape (K + 1,)
        Mean norm of the tokens, of what a layer norm sees of them.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
    >>> nets.particles.clouds_of(net, tokens).tokens.shape
    (3, 1, 5, 6)
    """

    times: Array
    tokens: Array
    radii: Array


class Motion(NamedTuple):
    """Change of the hidden states by each layer.

    Parameters
    ----------
    attention : ndarray, shape (L,)
        Mean norm over the tokens of what attention adds.
    feed_forward : ndarray, shape (L,)
        The same for the feed-forward layers; 0 for blocks without one.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
    >>> nets.particles.motion_of(net, tokens).attention.shape
    (2,)
    """

    attention: Array
    feed_forward: Array  # 0 for blocks without one


_PADDED = (
    "some samples are padded: cut each to the tokens that are there, and take samples of one "
    "length together"
)


def tokens_of(network: nn.Module, inputs: Tensor) -> NDArray[np.float64]:
    """Return the token embeddings of inputs as a cloud on the sphere: their directions.

    A token x is at C x over its norm. C takes the mean over the entries away where the blocks have
    layer norms, as these do.

    Parameters
    ----------
    network : torch.nn.Module
        As for `head_law`.
    inputs : Tensor
        What the network is given: images, token ids; for a body alone, hidden states
        (samples, tokens, width).

    Returns
    -------
    ndarray, shape (n, d) or (samples, n, d)
        Unit tokens of one sample, or of more, as `wflow.solve` takes them.

    Raises
    ------
    InputError
        For a token without direction, and for padded samples: cut them to the tokens that are
        there, and take samples of one length together.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])

    >>> nets.particles.tokens_of(net, tokens).shape
    (5, 6)
    """
    network = as_blocks(network)
    hidden, _ = _hidden_states(network, inputs)
    tokens = _directions(network, hidden)[0]
    return tokens[0] if len(tokens) == 1 else tokens


def clouds_of(network: nn.Module, inputs: Tensor) -> Clouds:
    """Return the hidden states of a network on the sphere, at the ends of its blocks or steps.

    Parameters
    ----------
    network : torch.nn.Module
        As for `head_law`.
    inputs : Tensor
        What the network is given: images, token ids; for a body alone, hidden states
        (samples, tokens, width).

    Returns
    -------
    Clouds
        Times, unit tokens and mean norms: after each block of a discrete network, after each step
        of one that is continuous in time.

    Raises
    ------
    InputError
        As `tokens_of`.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
    >>> nets.particles.clouds_of(net, tokens).times.tolist()
    [0.0, 1.0, 2.0]
    """
    network = as_blocks(network)
    hidden, context = _hidden_states(network, inputs)
    body, order = body_of(network), order_of(network)
    with evaluating(network), torch.no_grad():
        if isinstance(body, ContinuousTransformer | NodeTransformer):
            path = body.trajectory(hidden, **context)
            states, times = list(path.states), wide(path.times).cpu().numpy()
        else:
            states = [hidden]
            mask = {key: value for key, value in context.items() if key != "valid"}
            for block in blocks_of(network):
                states.append(block(states[-1], **mask))
            times = order.duration * np.arange(len(states))
    directions = [_directions(network, state) for state in states]
    return Clouds(
        np.asarray(times, np.float64),
        np.stack([tokens for tokens, _ in directions]),
        np.array([radius for _, radius in directions]),
    )


def motion_of(network: nn.Module, inputs: Tensor) -> Motion:
    """Measure how attention and feed-forward layers, which a head law leaves out, move the tokens.

    Parameters
    ----------
    network : torch.nn.Module
        As for `head_law`.
    inputs : Tensor
        What the network is given: images, token ids; for a body alone, hidden states
        (samples, tokens, width).

    Returns
    -------
    Motion
        Means over all evaluations of a block.

    Raises
    ------
    InputError
        As `tokens_of`.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
    >>> bool((nets.particles.motion_of(net, tokens).feed_forward > 0).all())
    True
    """
    network = as_blocks(network)
    blocks = blocks_of(network)
    parts = [(block.attention, block.feed_forward) for block in blocks]
    seen: dict[int, list[float]] = {}

    def note(module: nn.Module, _: Any, output: Tensor) -> None:
        seen.setdefault(id(module), []).append(float(wide(output).norm(dim=-1).mean()))

    modules = {id(part): part for pair in parts for part in pair if part is not None}
    handles = [part.register_forward_hook(note) for part in modules.values()]
    try:
        with evaluating(network), torch.no_grad():
            network(_checked_inputs(inputs))
    finally:
        for handle in handles:
            handle.remove()
    table = [[float(np.mean(seen.get(id(part), [0.0]))) for part in pair] for pair in parts]
    return Motion(*np.array(table).T)


def _hidden_states(network: nn.Module, inputs: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Return the input of the body of a network: hidden states, and the context beside them."""
    blocks_of(network)  # refuses what has none, before it refuses its inputs
    body = body_of(network)
    hidden, context = inputs, dict[str, Any]()
    if body is not network:
        caught: list[tuple[Tensor, dict[str, Any]]] = []

        def catch(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            caught.append((given[0], dict(named)))

        handle = body.register_forward_pre_hook(catch, with_kwargs=True)
        try:
            with evaluating(network), torch.no_grad():
                network(_checked_inputs(inputs))
        finally:
            handle.remove()
        hidden, context = caught[0]
    tensor(hidden, "hidden states", "real")
    if not hidden.numel():
        raise InputError(f"the inputs are of shape {tuple(hidden.shape)}: expected some")
    if hidden.ndim != 3:
        raise InputError(
            f"the hidden states have shape {tuple(hidden.shape)}: expected (samples, tokens, width)"
        )
    for name in ("mask", "valid"):
        there = context.get(name)
        if there is not None and not bool(there.all()):
            raise InputError(_PADDED)
    return hidden, context


def _checked_inputs(inputs: Any) -> Any:
    """Refuse what tokenizers of transformers return; the network checks other inputs."""
    if isinstance(inputs, Mapping):
        raise InputError(
            f"inputs are {type(inputs).__name__}: expected a tensor; of what a tokenizer returns "
            'give ["input_ids"]'
        )
    return inputs


def _directions(network: nn.Module, hidden: Tensor) -> tuple[NDArray[np.float64], float]:
    """Return unit tokens (samples, n, d) of hidden states, and their mean norm."""
    x = wide(hidden).cpu().numpy().astype(np.float64)
    if isinstance(blocks_of(network)[0].norm_attention, nn.LayerNorm):
        x = x - x.mean(axis=-1, keepdims=True)
    radius = float(np.sqrt(np.einsum("...k,...k->...", x, x)).mean())
    tokens = as_tokens(x, "hidden states")
    if tokens.shape[-1] != blocks_of(network)[0].attention.width:
        raise InputError(f"the hidden states have width {tokens.shape[-1]}, and the blocks another")
    return tokens, radius


class Dropped(NamedTuple):
    """Size of the biases that a head law leaves out, layer by layer.

    Parameters
    ----------
    score_bias : ndarray, shape (L,)
        Largest norm of K_h^T b_q over the heads, b_q the bias of the queries (with that of the
        layer norm): by so much at most a score changes.
    scores : ndarray, shape (L,)
        Largest 2-norm of D_h over the heads, the bound of a score.
    drift : ndarray, shape (L,)
        Norm of W_out b_v + b_out, which biases add to every token.
    values : ndarray, shape (L,)
        2-norm of the sum of the V_h, the bound of what is kept where attention is even.
    feed_forward : int
        Number of feed-forward layers.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
    >>> found = nets.particles.dropped(net)
    >>> found.drift.tolist(), found.feed_forward  # this GPT has no biases
    ([0.0, 0.0], 2)
    """

    score_bias: Array
    scores: Array
    drift: Array
    values: Array
    feed_forward: int


class Tied(NamedTuple):
    """Distance of heads from those of a gradient flow.

    Parameters
    ----------
    asymmetry : ndarray, shape (L, H)
        Frobenius norm of D - D^T over twice that of D: 0 for symmetric D, 1 for antisymmetric;
        1/sqrt(2) or so for unrelated Q and K.
    alignment : ndarray, shape (L, H)
        Cosine of V and (D + D^T)/2: 1 for V = c D, which climbs the energy, -1 for V = -c D.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
    >>> nets.particles.tied(nets.particles.head_law(net)).asymmetry.shape
    (2, 2)
    """

    asymmetry: Array
    alignment: Array


def head_law(
    network: nn.Module,
    *,
    t_final: float | None = None,
    radius: ArrayLike = 1.0,
    passes: int = 1,
) -> TrainedHeads:
    r"""Return the attention layers of a network as a head law, layer by layer [1]_ [2]_.

    With a the norm of what the attention is given (sqrt(d), up to the eps of the layer norm; r
    without one), r = `radius`, G = diag(g) C (G = C = I without a layer norm) and H heads, the head
    matrices are

    .. math:: D_h = \frac{a^2}{\sqrt k} (W_q^h G)^T W_k^h G, \qquad
       V_h = H \, \frac{a}{r} \, C \, W_{out}^h W_v^h G.

    The factor H is there because a law is a mean over its heads and attention is a sum. So at
    radius 1 the velocity of unit tokens x of mean zero is P_x C attention(norm(x)).

    Layer l acts on [l, l + 1) T/D. Natural times are T = D for a discrete network of D blocks,
    T = t_final for a `ContinuousTransformer` of M steps, whose D blocks act for dt/D each in every
    step with D times their values, and D t_final for a `NodeTransformer`. With another T the values
    are scaled so that each layer adds what it did. With several passes all layers come again.

    Parameters
    ----------
    network : torch.nn.Module
        One with a body of `blocks.Block`, or such a body, or a network of transformers
        (`blocks_of`).
    t_final : float, optional
        T, of one pass; None is the natural one.
    radius : array_like, default 1.0
        Norm r of the tokens in the network, one number or one for each interval of a pass; the
        larger, the slower their direction moves (`problem` measures it).
    passes : int, default 1
        How often the layers act in turn.

    Returns
    -------
    TrainedHeads
        For `wflow.solve(x0, law, causal=law.causal, t_final=law.t_final, ...)`.

    Raises
    ------
    InputError
        For a network without blocks of self-attention, blocks that differ, or numbers out of range.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune, Schönlieb, "Multi-Headed Transformer Architectures
       as Time-dependent Wasserstein Gradient Flows", arXiv:2605.18870, eq. 1.
    .. [2] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, eqs. 3 and 9.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])

    >>> law = nets.particles.head_law(net)
    >>> law.t_final, law.causal
    (2.0, True)
    """
    network = as_blocks(network)
    blocks, order = blocks_of(network), order_of(network)
    layers = fold_all(blocks)
    natural = order.duration * len(order.blocks)
    stretch = 1.0 if t_final is None else positive(t_final, "t_final") / natural
    radii = radii_given(radius, len(order.blocks))
    passes = whole(passes, "passes")
    scale = [sizes(layers[k], r) for k, r in zip(order.blocks, radii, strict=True)]
    heads = blocks[0].attention.heads
    if not (0 < stretch < math.inf and math.isfinite(heads * order.gain / stretch)):
        raise InputError(
            f"t_final is {t_final}: expected a time such as {natural:g}, the network's own; values "
            f"that are {1 / stretch if stretch else math.inf:g} times as large have no floating "
            "point numbers"
        )
    return TrainedHeads(
        QKV(
            np.stack([layer.query for layer in layers]),
            np.stack([layer.key for layer in layers]),
            np.stack([layer.value for layer in layers]),
        ),
        order.blocks * passes,
        stretch * order.duration,
        [size**2 for size, _ in scale] * passes,
        [heads * order.gain / stretch * share for _, share in scale] * passes,
        causal=blocks[0].attention.causal,
        centred=layers[0].norm,
    )


def problem(
    network: nn.Module,
    inputs: Tensor,
    *,
    steps: int = 20,
    t_final: float | None = None,
    radius: ArrayLike | None = None,
    passes: int = 1,
) -> dict[str, Any]:
    """Return the arguments of `wflow.solve` for tokens of inputs under the heads of a network.

    Parameters
    ----------
    network : torch.nn.Module
        As for `head_law`.
    inputs : Tensor
        What the network is given, a path for every sample; for a body alone, hidden states.
    steps : int, default 20
        Time steps in each interval of the schedule.
    t_final : float, optional
        As for `head_law`.
    radius : array_like, optional
        As for `head_law`; None measures, in each interval, the mean norm of the tokens when the
        network itself moves them.
    passes : int, default 1
        As for `head_law`.

    Returns
    -------
    dict
        Arguments x0, law, t_final, dt, paths, causal and save: tokens of all paths at the interval
        ends, and no energy budget, as general heads have no energy.

    Raises
    ------
    InputError
        As `head_law` and `tokens_of`.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])

    >>> import wflow
    >>> run = wflow.solve(**nets.particles.problem(net, tokens, steps=2), seed=0)
    >>> run["tokens"].shape
    (1, 3, 5, 6)
    """
    network = as_blocks(network)
    x0 = tokens_of(network, inputs)
    order = order_of(network)
    if radius is None:
        measured = clouds_of(network, inputs).radii[:-1]
        # A cloud of a continuous-time model belongs to all blocks of its step, one of an N-ODE
        # transformer to one step of a block: the intervals have the mean over theirs.
        count = len(order.blocks)
        if len(measured) >= count:
            radius = measured.reshape(count, -1).mean(axis=1)
        else:
            radius = np.repeat(measured, count // len(measured))
    law = head_law(network, t_final=t_final, radius=radius, passes=passes)
    paths = len(x0) if x0.ndim == 3 else 1
    return {
        "x0": x0,
        "law": law,
        "t_final": law.t_final,
        "dt": law.duration / whole(steps, "steps"),
        "paths": paths,
        "causal": law.causal,
        "save": SaveAt(
            snapshots=tuple((law.duration * np.arange(len(law.order) + 1)).tolist()),
            paths=tuple(range(paths)),
            budget=False,
        ),
    }


def velocity(law: TrainedHeads, x: ArrayLike, t: float = 0.0) -> NDArray[np.floating]:
    """Return the velocity that a law gives to unit tokens at one time, as in `wflow.solve`.

    Parameters
    ----------
    law : TrainedHeads
        Law of `head_law`.
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    t : float, default 0.0
        Time.

    Returns
    -------
    ndarray, shape (n, d)
        Velocities, tangential.

    Raises
    ------
    InputError
        For tokens off the sphere or of another d, and for another law.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
    >>> law = nets.particles.head_law(net)
    >>> nets.particles.velocity(law, nets.particles.tokens_of(net, tokens)).shape
    (5, 6)
    """
    tokens, t = as_unit_tokens(x), number(t, "t")
    law = _checked(law)
    scores, values = law._at(law.layer_scores, t), law.values(t)
    if tokens.shape[1] != scores.shape[-1]:
        raise InputError(f"x has d = {tokens.shape[1]}, and the heads have d = {scores.shape[-1]}")
    assert values is not None
    return evaluate(tokens[None], scores[None], values=values, causal=law.causal).velocity[0]


def dropped(network: nn.Module, *, radius: float = 1.0) -> Dropped:
    """Measure the biases that `head_law` leaves out, beside what it keeps.

    Parameters
    ----------
    network : torch.nn.Module
        As for `head_law`.
    radius : float, default 1.0
        Norm of the tokens.

    Returns
    -------
    Dropped
        Norms, layer by layer.

    Raises
    ------
    InputError
        As `head_law`.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])

    >>> nets.particles.dropped(net).scores.shape
    (2,)
    """
    blocks = blocks_of(network)
    layers = fold_all(blocks)
    r = np.asarray(positive(radius, "radius"))
    rows = []
    for layer in layers:
        a = float(sizes(layer, r)[0])
        score_bias = np.einsum("hkd,hk->hd", layer.key, layer.query_bias)
        scores = np.einsum("hka,hkb->hab", layer.query, layer.key)
        rows.append(
            (
                a * np.linalg.norm(score_bias, axis=-1).max(),
                a**2 * np.linalg.norm(scores, 2, axis=(-2, -1)).max(),
                np.linalg.norm(layer.drift),
                a * np.linalg.norm(layer.value.sum(axis=0), 2),
            )
        )
    table = np.array(rows, np.float64).T
    forward = sum(block.feed_forward is not None for block in blocks)
    return Dropped(table[0], table[1], table[2], table[3], forward)


def randomised(law: TrainedHeads, seed: int = 0) -> TrainedHeads:
    """Return random heads with the singular values of given ones, as a control without training.

    D' = U_1 D U_2^T and V' = U_3 V U_4^T with rotations U drawn uniformly for every head and
    layer, that keep the mean over the entries where the law does. Ranks and all unitarily
    invariant norms stay; directions, and how D and V belong together, go.

    Parameters
    ----------
    law : TrainedHeads
        Law of `head_law`.
    seed : int, default 0
        Seed of the rotations.

    Returns
    -------
    TrainedHeads
        Law with the random heads.

    Raises
    ------
    InputError
        For another law, or a seed below 0.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])

    >>> import numpy as np
    >>> law = nets.particles.head_law(net)
    >>> control = nets.particles.randomised(law, seed=1)
    >>> np.allclose(*(np.linalg.norm(one.layer_scores, axis=(-2, -1)) for one in (law, control)))
    True
    """
    layers, heads, d, _ = _checked(law).layer_scores.shape
    drawn = rotations(4 * layers * heads, d, law.centred, seed).reshape(4, layers, heads, d, d)
    return law.with_heads(
        drawn[0] @ law.layer_scores @ np.swapaxes(drawn[1], -1, -2),
        drawn[2] @ law.layer_values @ np.swapaxes(drawn[3], -1, -2),
    )


def tied(law: TrainedHeads) -> Tied:
    """Measure how far the heads of a law are from those of a gradient flow [1]_.

    Those of a gradient flow have D = D^T and V = +-D.

    Parameters
    ----------
    law : TrainedHeads
        Law of `head_law`.

    Returns
    -------
    Tied
        Asymmetry and alignment; NaN for a head of zero.

    Raises
    ------
    InputError
        For another law.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune, Schönlieb, "Multi-Headed Transformer Architectures
       as Time-dependent Wasserstein Gradient Flows", arXiv:2605.18870, section 1.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
    >>> found = nets.particles.tied(nets.particles.head_law(net))
    >>> bool((abs(found.alignment) <= 1).all())
    True
    """
    D, V = _checked(law).layer_scores, law.layer_values
    transposed = np.swapaxes(D, -1, -2)
    symmetric = (D + transposed) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        asymmetry = _frobenius(D - transposed) / (2 * _frobenius(D))
        inner = np.einsum("lhab,lhab->lh", V, symmetric)
        alignment = inner / (_frobenius(V) * _frobenius(symmetric))
    return Tied(asymmetry, alignment)


def _checked(law: Any) -> TrainedHeads:
    """Check that an argument is a law of `head_law`."""
    if not isinstance(law, TrainedHeads):
        raise InputError(f"law is {type(law).__name__}: expected what head_law returns")
    return law


def _frobenius(A: Array) -> Array:
    return np.sqrt(np.einsum("...ab,...ab->...", A, A))
