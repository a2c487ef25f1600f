"""Attention layers of a network as a schedule of general heads: the law and how it is built."""

import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from wflow._checks import positive, whole
from wflow.errors import InputError
from wflow.heads import QKV, Schedule
from wflow.nets._wide import wide
from wflow.nets.continuous import ContinuousTransformer, NodeTransformer
from wflow.nets.layers import Block

Array = NDArray[np.float64]


class TrainedHeads(Schedule):
    """Heads of L attention layers, one after the other, each for a time of length `duration`.

    In the k-th interval the score matrices are score_factors[k] D_{h, order[k]} and the value
    matrices value_factors[k] V_{h, order[k]}. Made by `head_law` and `randomised`.

    Parameters
    ----------
    heads : QKV with a leading axis of layers: query and key (L, H, k, d), value (L, H, d, d)
    order : (K,), which layer acts in each interval
    duration : length of an interval
    score_factors, value_factors : (K,)
    causal : whether a token sees only itself and those before it; for `wflow.solve(causal=)`
    centred : whether tokens have mean zero over their entries, as a layer norm makes them
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
        layers = len(np.asarray(heads.query))
        super().__init__([float(k) for k in range(layers)], heads, "constant")
        self.order = np.asarray(order, np.int64)
        self.duration = positive(duration, "duration")
        self.times = self.duration * np.arange(len(self.order), dtype=np.float64)
        self.score_factors = np.asarray(score_factors, np.float64)
        self.value_factors = np.asarray(value_factors, np.float64)
        self.causal, self.centred = bool(causal), bool(centred)

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
        """The same schedule with other matrices, (L, H, d, d) both."""
        layers, count, d, _ = scores.shape
        query = np.broadcast_to(np.eye(d), (layers, count, d, d))
        return TrainedHeads(
            QKV(query, scores, values), self.order.tolist(), self.duration, self.score_factors,
            self.value_factors, causal=self.causal, centred=self.centred,
        )  # fmt: skip

    def config(self) -> dict[str, Any]:
        # Matrices of a network are too large for the text of a configuration: their digest tells
        # whether a run that is resumed has the same.
        digest = hashlib.sha256()
        for array in (
            self._scores, self.layer_values, self.order, self.score_factors, self.value_factors
        ):  # fmt: skip
            digest.update(np.ascontiguousarray(array).tobytes())
        return {
            "name": "TrainedHeads",
            "shape": list(self._scores.shape),
            "intervals": len(self.order),
            "duration": self.duration,
            "causal": self.causal,
            "sha256": digest.hexdigest(),
        }

    def _at(self, table: NDArray[np.float64], t: float) -> NDArray[np.float64]:
        # A time that rounding left just below a knot belongs to it.
        nudged = t + 1e-9 * max(1.0, abs(t))
        found = int(np.searchsorted(self.times, nudged, side="right")) - 1
        k = min(max(found, 0), len(self.order) - 1)
        factors = self.score_factors if table is self._scores else self.value_factors
        return np.asarray(factors[k] * table[self.order[k]])


class Order(NamedTuple):
    """Which block acts when, in the time of the network."""

    blocks: tuple[int, ...]  # of each interval
    duration: float  # of an interval
    gain: float  # a block's output enters with this factor, so that it adds what it did


class Folded(NamedTuple):
    """One attention layer on the sphere, for an input of norm one to the attention."""

    query: Array  # (H, k, d)
    key: Array  # (H, k, d), with 1/sqrt(k)
    value: Array  # (H, d, d): W_out^h W_v^h
    query_bias: Array  # (H, k)
    drift: Array  # (d,): what biases add to every token
    norm: bool
    eps: float


def body_of(network: nn.Module) -> nn.Module:
    """The part of a network that moves hidden states; a body is its own."""
    body = getattr(network, "body", network)
    assert isinstance(body, nn.Module)
    return body


def blocks_of(network: nn.Module) -> list[Block]:
    """The blocks of a network in the order in which they act; one that is used twice comes twice.

    Raises
    ------
    InputError
        For a network with other modules between the blocks, or with none.
    """
    found: list[Block] = []
    if not _collect(body_of(network), found):
        raise InputError(
            f"{type(network).__name__} is not made of blocks of self-attention alone: expected "
            "wflow.nets.layers.Block, in a Stack, ContinuousTransformer or NodeTransformer, such "
            "as the body of ViT, GPT or TextClassifier"
        )
    return found


def _collect(module: nn.Module, found: list[Block]) -> bool:
    """Append the blocks in a module; whether there is nothing else in it."""
    if isinstance(module, Block):
        found.append(module)
        return True
    # `children` would leave a block out that is used for the second time.
    named = module.named_modules(remove_duplicate=False)
    inside = [part for name, part in named if name and "." not in name]
    if not inside or list(module.parameters(recurse=False)):
        return False
    return all(_collect(part, found) for part in inside)


def order_of(network: nn.Module) -> Order:
    """Which block acts when: discrete, [0, D) with D blocks; continuous, M times through them all;
    N-ODE, block after block."""
    body, count = body_of(network), len(blocks_of(network))
    if isinstance(body, ContinuousTransformer):
        # Each block of f = f_D o .. o f_1 adds to a step of length dt, and has dt/D to do it.
        return Order(tuple(range(count)) * body.steps, body.dt / count, float(count))
    if isinstance(body, NodeTransformer):
        return Order(tuple(range(count)), body.t_final, 1.0)
    return Order(tuple(range(count)), 1.0, 1.0)


def fold(block: Block) -> Folded:
    """The matrices of an attention layer with the gain of its layer norm in them.

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
    value = np.einsum("ab,bhk,hkc->hac", centre, out, folded[2])
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
    """All layers of a network, which must be alike in shape, norm and mask."""
    folded = [fold(block) for block in blocks]
    for number, (block, layer) in enumerate(zip(blocks, folded, strict=True)):
        if layer.norm != folded[0].norm or layer.query.shape != folded[0].query.shape:
            raise InputError(
                f"block {number} differs from block 0 in its norm, or in number or width of its "
                "heads: a schedule of heads needs blocks that are alike"
            )
        if block.attention.causal != blocks[0].attention.causal:
            raise InputError(f"block {number} is causal or block 0 is, and not both")
    return folded


def sizes(layer: Folded, radius: NDArray) -> tuple[Array, Array]:
    """Norms a of what the attention is given, for tokens of norm r, and a / r for the values.

    With a layer norm a = r / sqrt(r^2 / d + eps), about sqrt(d); without one, a = r.
    """
    d = layer.value.shape[-1]
    size = radius / np.sqrt(radius**2 / d + layer.eps) if layer.norm else radius
    return size, size / radius


def radii_given(radius: ArrayLike, intervals: int) -> Array:
    """Norms of the tokens in each interval, (intervals,)."""
    given = np.asarray(radius, np.float64)
    if given.shape not in ((), (intervals,)) or not np.isfinite(given).all() or (given <= 0).any():
        raise InputError(
            f"radius is of shape {given.shape}: expected one number > 0, or {intervals}, one for "
            "each interval of the schedule"
        )
    return np.array(np.broadcast_to(given, (intervals,)))


def rotations(count: int, d: int, centred: bool, seed: int) -> Array:
    """Random orthogonal matrices (count, d, d), uniform; `centred` ones keep (1, .., 1) fixed."""
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
