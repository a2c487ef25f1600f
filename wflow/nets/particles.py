"""Trained networks as particles: their heads as a head law, their token embeddings as a cloud.

    law = particles.head_law(gpt)                     # Q, K, V of every layer, as a schedule
    run = wflow.solve(**particles.problem(gpt, text)) # tokens of the text, moved by these heads

A block adds attention(norm(x)) to the hidden states x of its tokens, and a layer norm sees only
the direction u = C x/|C x| of each, C = I - 1 1^T/d. With r = |C x| that direction moves by

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
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from wflow._checks import positive, whole
from wflow._sums import evaluate
from wflow.attention import as_unit_tokens
from wflow.errors import InputError
from wflow.heads import QKV
from wflow.nets._hidden import Clouds, Motion, clouds_of, motion_of, tokens_of
from wflow.nets._trained_heads import (
    Array,
    TrainedHeads,
    blocks_of,
    fold_all,
    order_of,
    radii_given,
    rotations,
    sizes,
)

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


class Dropped(NamedTuple):
    """Size of the biases that a head law leaves out, layer by layer, (L,) each.

    score_bias : largest |K_h^T b_q| over the heads, b_q the bias of the queries (with that of the
        layer norm): by so much at most a score changes
    scores : largest |D_h|_2 over the heads, the bound of a score
    drift : |W_out b_v + b_out|, what biases add to every token
    values : |sum_h V_h|_2, the bound of what is kept where attention is even
    feed_forward : number of feed-forward layers
    """

    score_bias: Array
    scores: Array
    drift: Array
    values: Array
    feed_forward: int


class Tied(NamedTuple):
    """How far heads are from those of a gradient flow, (L, H) each.

    asymmetry : |D - D^T|_F / (2 |D|_F): 0 for symmetric D, 1 for antisymmetric; 1/sqrt(2) or so
        for unrelated Q and K
    alignment : cosine of V and (D + D^T)/2: 1 for V = c D, which climbs the energy, -1 for V = -c D
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
    """The attention layers of a network as a head law: V_h softmax(<Q_h x, K_h y>), layer by layer.

    With a the norm of what the attention is given (sqrt(d), up to the eps of the layer norm; r
    without one), r = `radius`, G = diag(g) C (G = C = I without a layer norm) and H heads,

        D_h = (a^2/sqrt(k)) (W_q^h G)^T W_k^h G,   V_h = H (a/r) C W_out^h W_v^h G.

    The factor H is there because a law is a mean over its heads and attention is a sum. So at
    radius 1 the velocity of unit tokens x of mean zero is P_x C attention(norm(x)).

    Layer l acts on [l, l + 1) T/D. Natural times are T = D for a discrete network of D blocks,
    T = t_final for a `ContinuousTransformer` of M steps, whose D blocks act for dt/D each in every
    step with D times their values, and D t_final for a `NodeTransformer`. With another T the values
    are scaled so that each layer adds what it did. With several passes all layers come again.

    Parameters
    ----------
    network : one with a body of `layers.Block`, or such a body
    t_final : T, of one pass; None is the natural one
    radius : norm r of the tokens in the network, one number or one for each interval of a pass; the
        larger, the slower their direction moves (`problem` measures it)
    passes : how often the layers act in turn

    Returns
    -------
    TrainedHeads : for `wflow.solve(x0, law, causal=law.causal, t_final=law.t_final, ...)`

    Raises
    ------
    InputError
        For a network without blocks of self-attention, blocks that differ, or numbers out of range.

    Source: [MHT] eq. 1; [OTT] eqs. 3 and 9; docs/mathematics.md section 1.
    """
    blocks, order = blocks_of(network), order_of(network)
    layers = fold_all(blocks)
    natural = order.duration * len(order.blocks)
    stretch = 1.0 if t_final is None else positive(t_final, "t_final") / natural
    radii = radii_given(radius, len(order.blocks))
    passes = whole(passes, "passes")
    scale = [sizes(layers[k], r) for k, r in zip(order.blocks, radii, strict=True)]
    heads = blocks[0].attention.heads
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
    """Arguments of `wflow.solve` that run the tokens of inputs under the heads of a network.

    Parameters
    ----------
    network : as for `head_law`
    inputs : what the network is given, a path for every sample; for a body alone, hidden states
    steps : time steps in each interval of the schedule
    t_final, passes : as for `head_law`
    radius : as for `head_law`; None measures, in each interval, the mean norm of the tokens when
        the network itself moves them

    Returns
    -------
    dict with x0, law, t_final, dt, paths, causal, ledger (False: general heads have no energy),
    snapshots (at the interval ends) and snapshot_paths (all)

    Raises
    ------
    InputError
        As `head_law` and `tokens_of`.
    """
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
        "ledger": False,
        "snapshots": (law.duration * np.arange(len(law.order) + 1)).tolist(),
        "snapshot_paths": tuple(range(paths)),
    }


def velocity(law: TrainedHeads, x: ArrayLike, t: float = 0.0) -> NDArray[np.floating]:
    """Velocity that a law gives to unit tokens x (n, d) at time t, as `wflow.solve` forms it.

    Returns (n, d), tangential. Raises InputError for tokens off the sphere or of another d.
    """
    tokens = as_unit_tokens(x)
    scores, values = law._at(law.layer_scores, t), law.values(t)
    if tokens.shape[1] != scores.shape[-1]:
        raise InputError(f"x has d = {tokens.shape[1]}, and the heads have d = {scores.shape[-1]}")
    assert values is not None
    return evaluate(tokens[None], scores[None], values=values, causal=law.causal).velocity[0]


def dropped(network: nn.Module, *, radius: float = 1.0) -> Dropped:
    """How large the biases are that `head_law` leaves out, beside what it keeps.

    Parameters
    ----------
    network, radius : as for `head_law`

    Raises
    ------
    InputError
        As `head_law`.
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
    """Random heads with the singular values of the given ones: what training chose, taken away.

    D' = U_1 D U_2^T and V' = U_3 V U_4^T with rotations U drawn uniformly, anew for every head and
    layer, that keep the mean over the entries where the law does. Ranks and all unitarily
    invariant norms stay; directions, and how D and V belong together, go.

    Parameters
    ----------
    law : of `head_law`
    seed : of the rotations
    """
    layers, heads, d, _ = law.layer_scores.shape
    drawn = rotations(4 * layers * heads, d, law.centred, seed).reshape(4, layers, heads, d, d)
    return law.with_heads(
        drawn[0] @ law.layer_scores @ np.swapaxes(drawn[1], -1, -2),
        drawn[2] @ law.layer_values @ np.swapaxes(drawn[3], -1, -2),
    )


def tied(law: TrainedHeads) -> Tied:
    """How far the heads of a law are from those of a gradient flow, D = D^T and V = +-D.

    Source: [MHT] section 1; docs/mathematics.md section 1. A head of zero gives NaN.
    """
    D, V = law.layer_scores, law.layer_values
    transposed = np.swapaxes(D, -1, -2)
    symmetric = (D + transposed) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        asymmetry = _frobenius(D - transposed) / (2 * _frobenius(D))
        inner = np.einsum("lhab,lhab->lh", V, symmetric)
        alignment = inner / (_frobenius(V) * _frobenius(symmetric))
    return Tied(asymmetry, alignment)


def _frobenius(A: Array) -> Array:
    return np.sqrt(np.einsum("...ab,...ab->...", A, A))
