"""Hidden states of a network as clouds of tokens on the sphere."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wflow.errors import InputError
from wflow.nets._modes import evaluating
from wflow.nets._trained_heads import Array, blocks_of, body_of, order_of
from wflow.nets._wide import wide
from wflow.nets.continuous import ContinuousTransformer, NodeTransformer
from wflow.sphere import as_tokens


class Clouds(NamedTuple):
    """Hidden states of a network on the sphere, as the network itself moves them.

    times : (K + 1,), in the time of `head_law` without t_final
    tokens : (K + 1, samples, n, d), unit vectors
    radii : (K + 1,), mean norm of the tokens (of what a layer norm sees of them)
    """

    times: Array
    tokens: Array
    radii: Array


class Motion(NamedTuple):
    """How much each layer adds to the hidden states: mean norm over the tokens, (L,) each."""

    attention: Array
    feed_forward: Array  # 0 for blocks without one


def tokens_of(network: nn.Module, inputs: Tensor) -> NDArray[np.float64]:
    """Token embeddings of inputs as a cloud on the sphere: the directions u = C x/|C x|.

    C takes the mean over the entries away where the blocks have layer norms, as these do.

    Parameters
    ----------
    network : as for `head_law`
    inputs : what the network is given: images, token ids; for a body alone, hidden states
        (samples, tokens, width)

    Returns
    -------
    (n, d) for one sample, (samples, n, d) for more: as `wflow.solve` takes them

    Raises
    ------
    InputError
        For a token without direction, and for padded samples: cut them to the tokens that are
        there, and take samples of one length together.
    """
    hidden, _ = _hidden_states(network, inputs)
    tokens = _directions(network, hidden)[0]
    return tokens[0] if len(tokens) == 1 else tokens


def clouds_of(network: nn.Module, inputs: Tensor) -> Clouds:
    """The hidden states of a network at the ends of its blocks (discrete) or steps, on the sphere.

    Parameters and errors as for `tokens_of`. Returns Clouds(times, tokens, radii).
    """
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
    found = [_directions(network, state) for state in states]
    return Clouds(
        np.asarray(times, np.float64),
        np.stack([tokens for tokens, _ in found]),
        np.array([radius for _, radius in found]),
    )


def motion_of(network: nn.Module, inputs: Tensor) -> Motion:
    """What attention and feed-forward layers add, so that one sees how much a head law leaves out.

    Parameters and errors as for `tokens_of`. Means over all evaluations of a block.
    """
    blocks = blocks_of(network)
    parts = [(block.attention, block.feed_forward) for block in blocks]
    seen: dict[int, list[float]] = {}

    def note(module: nn.Module, _: Any, output: Tensor) -> None:
        seen.setdefault(id(module), []).append(float(wide(output).norm(dim=-1).mean()))

    modules = {id(part): part for pair in parts for part in pair if part is not None}
    handles = [part.register_forward_hook(note) for part in modules.values()]
    try:
        with evaluating(network), torch.no_grad():
            network(inputs)
    finally:
        for handle in handles:
            handle.remove()
    table = [[float(np.mean(seen.get(id(part), [0.0]))) for part in pair] for pair in parts]
    return Motion(*np.array(table).T)


def _hidden_states(network: nn.Module, inputs: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """What the body of a network is given: hidden states, and the context beside them."""
    body = body_of(network)
    hidden, context = inputs, dict[str, Any]()
    if body is not network:
        caught: list[tuple[Tensor, dict[str, Any]]] = []

        def catch(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            caught.append((given[0], dict(named)))

        handle = body.register_forward_pre_hook(catch, with_kwargs=True)
        try:
            with evaluating(network), torch.no_grad():
                network(inputs)
        finally:
            handle.remove()
        hidden, context = caught[0]
    if hidden.ndim != 3:
        raise InputError(
            f"the hidden states have shape {tuple(hidden.shape)}: expected (samples, tokens, width)"
        )
    for name in ("mask", "valid"):
        there = context.get(name)
        if there is not None and not bool(there.all()):
            raise InputError(
                "some samples are padded: cut each to the tokens that are there, and take samples "
                "of one length together"
            )
    return hidden, context


def _directions(network: nn.Module, hidden: Tensor) -> tuple[NDArray[np.float64], float]:
    """Unit tokens (samples, n, d) of hidden states, and their mean norm."""
    x = wide(hidden).cpu().numpy().astype(np.float64)
    if isinstance(blocks_of(network)[0].norm_attention, nn.LayerNorm):
        x = x - x.mean(axis=-1, keepdims=True)
    radius = float(np.sqrt(np.einsum("...k,...k->...", x, x)).mean())
    tokens = as_tokens(x, "hidden states")
    if tokens.shape[-1] != blocks_of(network)[0].attention.width:
        raise InputError(f"the hidden states have width {tokens.shape[-1]}, and the blocks another")
    return tokens, radius
