"""What the study of trained heads measures: clouds over time, and layers of networks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn

import wflow
from wflow import clusters, transport
from wflow.nets import particles
from wflow.sphere import as_tokens

PER_PASS = 8  # snapshots in a pass through all layers
QUANTITIES = ("count", "largest_share", "persistent_count", "order_parameter", "nematic_order")

NAMES = {
    "count": "number of clusters at the scale",
    "largest_share": "share of the tokens in the largest cluster",
    "persistent_count": "number of clusters of the most persistent partition",
    "order_parameter": "order parameter |mean token|",
    "nematic_order": "largest eigenvalue of the second moment of the tokens",
    "cosine": "mean of <x_i, x_j> over pairs of different tokens",
    "w2_initial": "W2 to the tokens at the start",
    "w2_final": "W2 to the tokens at the end",
    "w2_network": "W2 to the hidden states of the network after one pass",
    "angle_network": "mean angle to the same token of the network after one pass",
}


def measured(file: Path, end: NDArray, scale: float) -> dict[str, NDArray]:
    """The quantities of one run: (path, time), and how far it is from the network after a pass."""
    with wflow.open(file) as run:
        found = clusters.over_time(run, scale, quantities=QUANTITIES)
        values = {name: found[name].values for name in QUANTITIES}
        for to in ("initial", "final"):
            values[f"w2_{to}"] = transport.over_time(run, to=to).values
        n = run.sizes["token"]
        after = run["tokens"].values[:, PER_PASS]  # (path, token, axis)
    # The mean of <x_i, x_j> over pairs of different tokens.
    values["cosine"] = (n * values["order_parameter"] ** 2 - 1) / (n - 1)
    pairs = list(zip(as_tokens(after), end, strict=True))
    values["w2_network"] = np.array([transport.w2(one, two) for one, two in pairs])
    values["angle_network"] = np.array([same_tokens(one, two) for one, two in pairs])
    return values


def same_tokens(x: NDArray, y: NDArray) -> float:
    """Mean angle between a token of one cloud and the same token of the other."""
    minus, plus = np.linalg.norm(x - y, axis=1), np.linalg.norm(x + y, axis=1)
    return float(np.mean(2 * np.arctan2(minus, plus)))


def tabulated(
    found: Mapping[str, tuple[nn.Module, Tensor]],
    kinds: Sequence[str],
    files: Mapping[str, Path],
    scale: float,
) -> xr.Dataset:
    """All numbers: (network, heads, path, time), and what the networks do themselves.

    Parameters
    ----------
    found : name -> network and its inputs, a path for every sample
    kinds : kinds of heads
    files : run file of NETWORK_KIND
    scale : angle up to which tokens are linked to one cluster
    """
    rows: dict[str, list[list[NDArray]]] = {name: [] for name in NAMES}
    own: dict[str, list[NDArray]] = {"network_cosine": [], "network_moved": []}
    for name, (network, inputs) in found.items():
        clouds = particles.clouds_of(network, inputs)
        start, end = clouds.tokens[0], clouds.tokens[-1]
        own["network_moved"].append(
            np.array([transport.w2(x, y) for x, y in zip(start, end, strict=True)])
        )
        own["network_cosine"].append(mean_cosine(end))
        values = [measured(files[f"{name}_{kind}"], end, scale) for kind in kinds]
        for key in NAMES:
            rows[key].append([value[key] for value in values])
    dims = ("network", "heads", "path", "time")
    table = xr.Dataset(
        {
            key: (dims[: np.ndim(rows[key])], np.array(rows[key]), {"long_name": text})
            for key, text in NAMES.items()
        },
        {
            "network": list(found),
            "heads": list(kinds),
            "time": ("time", np.arange(np.shape(rows["cosine"])[-1]) / PER_PASS,
                     {"long_name": "time in passes through all layers"}),
        },
    )  # fmt: skip
    long = {
        "network_cosine": "mean of <x_i, x_j> of the network's hidden states after one pass",
        "network_moved": "W2 between the network's embeddings and hidden states after one pass",
    }
    for key, text in long.items():
        table[key] = (("network", "path"), np.array(own[key]), {"long_name": text})
    return table


def mean_cosine(tokens: NDArray) -> NDArray:
    """Mean of <x_i, x_j> over pairs of different tokens, (path,) of (path, n, d)."""
    n = tokens.shape[1]
    square = np.square(tokens.mean(axis=1)).sum(axis=1)
    return np.asarray((n * square - 1) / (n - 1))


class Layers(NamedTuple):
    """What a network is made of, layer by layer."""

    tied: particles.Tied
    dropped: particles.Dropped
    motion: particles.Motion


def layers_of(network: nn.Module, inputs: Tensor) -> Layers:
    """The layers of a network, for tokens of the norms that they have in it."""
    radius = float(particles.clouds_of(network, inputs).radii.mean())
    return Layers(
        particles.tied(particles.head_law(network)),
        particles.dropped(network, radius=radius),
        particles.motion_of(network, inputs),
    )


def with_layers(table: xr.Dataset, layers: Mapping[str, Layers]) -> xr.Dataset:
    """The table with the numbers of the layers, one set of variables per network."""
    for name, layer in layers.items():
        at, head = f"layer_{name}", f"head_{name}"
        for key in ("asymmetry", "alignment"):
            attrs = {"long_name": f"{key} of the heads of {name}"}
            table[f"{key}_{name}"] = ((at, head), getattr(layer.tied, key), attrs)
        for key in ("attention", "feed_forward"):
            attrs = {"long_name": f"mean norm of what the {key} layers of {name} add"}
            table[f"{key}_{name}"] = (at, getattr(layer.motion, key), attrs)
    return table
