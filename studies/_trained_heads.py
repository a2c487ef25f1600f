"""Networks, numbers, tables and figures of the study of trained heads.

Torch is loaded when a network is made: the flags and their `--help` work without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import InputError, clusters, nets, study, transport
from wflow.analysis.fits import mean_and_error
from wflow.plots.figure import PAGE, grid, style, time_axis
from wflow.sphere import as_tokens

if TYPE_CHECKING:
    import torch
    import xarray as xr
    from matplotlib.figure import Figure
    from torch import Tensor

# Table: clouds over time, and layers of networks
# -----------------------------------------------

PER_PASS = 8  # snapshots in a pass through all layers
QUANTITIES = ("count", "largest_share", "persistent_count", "order_parameter", "nematic_order")

NAMES = {
    "count": "number of clusters at the scale",
    "largest_share": "share of the tokens in the largest cluster",
    "persistent_count": "number of clusters of the most persistent partition",
    "order_parameter": "order parameter |mean token|",
    "nematic_order": "largest eigenvalue of the second moment of the tokens",
    "cosine": "mean of <x_i, x_j> over pairs of different tokens",
    "w2_initial": "W_2 to the tokens at the start",
    "w2_final": "W_2 to the tokens at the end",
    "w2_network": "W_2 to the hidden states of the network after one pass",
    "angle_network": "mean angle to the same token of the network after one pass",
}


def measured(file: Path, end: NDArray, scale: float) -> dict[str, NDArray]:
    """The quantities of one run: (path, time), and how far it is from the network after a pass."""
    with wflow.open(file) as run:
        series = clusters.over_time(run, scale, quantities=QUANTITIES)
        values = {name: series[name].values for name in QUANTITIES}
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
    networks: Mapping[str, tuple[torch.nn.Module, Tensor]],
    kinds: Sequence[str],
    files: Mapping[str, Path],
    scale: float,
) -> xr.Dataset:
    """All numbers: (network, heads, path, time), and what the networks do themselves.

    Parameters
    ----------
    networks : name -> network and its inputs, a path for every sample
    kinds : kinds of heads
    files : run file of NETWORK_KIND
    scale : angle up to which tokens are linked to one cluster
    """
    rows: dict[str, list[list[NDArray]]] = {name: [] for name in NAMES}
    own: dict[str, list[NDArray]] = {"network_cosine": [], "network_moved": []}
    for name, (network, inputs) in networks.items():
        clouds = nets.particles.clouds_of(network, inputs)
        start, end = clouds.tokens[0], clouds.tokens[-1]
        own["network_moved"].append(
            np.array([transport.w2(x, y) for x, y in zip(start, end, strict=True)])
        )
        own["network_cosine"].append(mean_cosine(end))
        values = [measured(files[f"{name}_{kind}"], end, scale) for kind in kinds]
        for key in NAMES:
            rows[key].append([value[key] for value in values])
    import xarray as xr  # here, so that --help does not wait for it

    dims = ("network", "heads", "path", "time")
    table = xr.Dataset(
        {
            key: (dims[: np.ndim(rows[key])], np.array(rows[key]), {"long_name": text})
            for key, text in NAMES.items()
        },
        {
            "network": list(networks),
            "heads": list(kinds),
            "time": ("time", np.arange(np.shape(rows["cosine"])[-1]) / PER_PASS,
                     {"long_name": "time in passes through all layers"}),
        },
    )  # fmt: skip
    long = {
        "network_cosine": "mean of <x_i, x_j> of the network's hidden states after one pass",
        "network_moved": "W_2 between the network's embeddings and hidden states after one pass",
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
    """Properties of a network, layer by layer."""

    tied: nets.particles.Tied
    dropped: nets.particles.Dropped
    motion: nets.particles.Motion


def layers_of(network: torch.nn.Module, inputs: Tensor) -> Layers:
    """The layers of a network, for tokens of the norms that they have in it."""
    radius = float(nets.particles.clouds_of(network, inputs).radii.mean())
    return Layers(
        nets.particles.tied(nets.particles.head_law(network)),
        nets.particles.dropped(network, radius=radius),
        nets.particles.motion_of(network, inputs),
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


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def figures(table: xr.Dataset, layers: Mapping[str, Layers]) -> dict[str, Figure]:
    """The clouds over time, and the heads by layer."""
    with style():
        return {"over_time": over_time(table), "heads": by_layer(layers)}


def over_time(table: xr.Dataset) -> Figure:
    """Mean cosine, distance to the start and number of clusters, under trained and random heads."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    panels = {
        "cosine": "Mean cosine",
        "w2_initial": "$W_2$ to the start",
        "count": "Number of clusters",
    }
    time = table["time"].values
    figure, axes = grid(1, 3, PAGE, 3.2)
    for axis, (key, label) in zip(axes[0], panels.items(), strict=True):
        for k, name in enumerate(table["network"].values):
            colour = COLOURS[k % len(COLOURS)]
            values = table[key].sel(network=name)
            trained, error = mean_and_error(values.sel(heads="trained").values.T, finite=False)
            axis.plot(time, trained, color=colour, marker="os^Dv"[k % 5], markevery=PER_PASS)
            axis.fill_between(time, trained - error, trained + error, color=colour, alpha=0.25,
                              linewidth=0)  # fmt: skip
            draws = values.isel(heads=slice(1, None)).mean("path").values
            if len(draws):
                axis.plot(time, draws.mean(axis=0), color=colour, linestyle="--", linewidth=0.9)
                axis.fill_between(time, draws.min(axis=0), draws.max(axis=0), color=colour,
                                  alpha=0.10, linewidth=0)  # fmt: skip
            own = {"cosine": "network_cosine", "w2_initial": "network_moved"}.get(key)
            if own is not None:
                value, bar = mean_and_error(table[own].sel(network=name).values, finite=False)
                axis.errorbar(1.0, value, bar if np.isfinite(bar) else None, fmt="*", color=colour,
                              markersize=8, markeredgecolor="black", markeredgewidth=0.5,
                              capsize=2, zorder=4)  # fmt: skip
        time_axis(axis)
        axis.set_xlabel("Time (passes)")
        axis.set_ylabel(label)
    handles: list[Any] = [
        Line2D([], [], color=COLOURS[k % len(COLOURS)], marker="os^Dv"[k % 5], label=str(name))
        for k, name in enumerate(table["network"].values)
    ]
    paths, count = table.sizes["path"], table.sizes["heads"] - 1
    handles += [
        (Patch(color="0.35", alpha=0.3), Line2D([], [], color="0.35")),
        (Patch(color="0.35", alpha=0.12), Line2D([], [], color="0.35", linestyle="--")),
        Line2D([], [], color="0.35", marker="*", markersize=8, linestyle="none"),
    ]
    texts = [
        *map(str, table["network"].values),
        f"trained heads (mean of {paths} texts ± standard error)",
        f"random heads (mean and range of {count} draw{'s' * (count > 1)})",
        "the network itself after one pass",
    ]
    figure.legend(handles, texts, loc="outside lower center", ncols=2)
    return figure


def by_layer(layers: Mapping[str, Layers]) -> Figure:
    """How far every head is from that of a gradient flow."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    figure, axes = grid(1, 2, PAGE, 3.0)
    marks = {"asymmetry": "Asymmetry of $D$", "alignment": "Cosine of $V$ and $(D + D^T)/2$"}
    looks: list[dict[str, Any]] = [
        {"color": COLOURS[k % len(COLOURS)], "marker": "os^Dv"[k % 5], "markerfacecolor": "none",
         "linestyle": "none"}
        for k in range(len(layers))
    ]  # fmt: skip
    for axis, (key, label) in zip(axes[0], marks.items(), strict=True):
        for k, layer in enumerate(layers.values()):
            values = getattr(layer.tied, key)
            shift = 0.12 * (k - (len(layers) - 1) / 2)
            places = np.repeat(np.arange(1, len(values) + 1), values.shape[1]) + shift
            axis.plot(places, values.ravel(), **looks[k])
        axis.set_xlabel("Layer")
        axis.set_ylabel(label)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    dotted: dict[str, Any] = {"color": "0.5", "linewidth": 0.9, "linestyle": ":"}
    axes[0, 0].axhline(math.sqrt(0.5), **dotted)
    axes[0, 1].axhline(0.0, **dotted)
    handles = [Line2D([], [], **look) for look in looks] + [Line2D([], [], **dotted)]
    texts = [*(f"{name}, one head each" for name in layers), "unrelated $Q$, $K$ and $V$"]
    figure.legend(handles, texts, loc="outside lower center", ncols=3)
    return figure


LAM = 2.0  # lambda = 1 of the published runs, whose cost has no factor 1/2


@dataclass(frozen=True)
class Setup:
    """Settings of a preset."""

    text: Literal["embedded", "characters"] = "characters"
    tokens: int = 64
    width: int = 48
    depth: int = 4
    heads: int = 4
    iterations: int = 600
    batch: int = 16
    steps: int = 5
    draws: int = 3


class Network(NamedTuple):
    """A trained nets.GPT, a text for it, and the windows of the text that it reads."""

    gpt: nets.GPT
    text: nets.data.Text
    windows: Tensor  # (paths, tokens)


def text_of(vocabulary: int, flags: Any) -> nets.data.Text:
    """The text whose tokens a network was trained on, by the size of its vocabulary."""
    embedded = nets.data.embedded_text()
    if vocabulary == embedded.vocabulary:
        return embedded
    text = nets.data.shakespeare(tokens="characters", folder=flags.data)
    if vocabulary == text.vocabulary:
        return text
    if vocabulary > 50_000:
        return nets.data.shakespeare(tokens="gpt2", folder=flags.data)
    raise InputError(
        f"the network has a vocabulary of {vocabulary}: expected {embedded.vocabulary} (embedded "
        f"text), {text.vocabulary} (characters of tiny Shakespeare) or 50257 (GPT-2 byte pairs)"
    )


def trained(name: str, flags: Any, setup: Setup, text: nets.data.Text) -> nets.GPT:
    """Train a GPT: with layer norms, or in continuous time without, as shakespeare_gpt.py does."""
    import torch

    torch.manual_seed(flags.seed)
    continuous = name == "continuous"
    gpt = nets.GPT(
        vocabulary=text.vocabulary,
        context=setup.tokens,
        width=setup.width,
        depth=setup.depth,
        heads=setup.heads,
        norm=not continuous,
    )
    if continuous:
        gpt.body = nets.ContinuousTransformer(gpt.body, steps=setup.steps)
    config = nets.train.TrainConfig(
        steps=setup.iterations,
        batch=setup.batch,
        schedule=nets.train.Cosine(
            rate=1e-3, least=1e-4, warm_up=min(50, setup.iterations // 2), steps=setup.iterations
        ),
        optimizer="adamw",
        betas=(0.9, 0.99),
        weight_decay=0.1,
        clip=1.0,
        seed=flags.seed,
    )
    out = flags.out / f"training_{name}"
    nets.train.train(
        gpt,
        nets.train.objective(nets.train.cross_entropy, LAM if continuous else 0.0),
        nets.data.CropBatches(
            text.train,
            context=setup.tokens,
            batch=setup.batch,
            seed=flags.seed + 1,
            vocabulary=text.vocabulary,
        ),
        config,
        out=out,
        resume=flags.resume,
        overwrite=flags.overwrite,
        label=f"training {name}",
    )
    return gpt.cpu().eval()


def windows(flags: Any, setup: Setup, gpt: nets.GPT, text: Tensor) -> Tensor:
    """Windows of a text, spread evenly, (paths, tokens)."""
    import torch

    n = min(flags.tokens or setup.tokens, gpt.context, len(text))
    starts = np.linspace(0, len(text) - n, flags.paths).astype(int)
    return torch.stack([text[start : start + n] for start in starts])


def described(network: Network) -> str:
    """A network in a few words."""
    import torch

    blocks = nets.particles.blocks_of(network.gpt)
    attention = blocks[0].attention
    body = network.gpt.body
    kind = (
        f"{body.steps} Euler steps" if isinstance(body, nets.ContinuousTransformer) else "discrete"
    )
    normed = nets.particles.head_law(network.gpt).centred
    with torch.no_grad():
        logits = network.gpt(network.windows[:, :-1]).output
    loss = float(nets.train.cross_entropy(logits, network.windows[:, 1:]))
    return (
        f"{len(blocks)} blocks x {attention.heads} heads x width {attention.width}, {kind}, "
        f"{'with' if normed else 'without'} layer norms, {network.windows.shape[1]} tokens of "
        f"{network.text.source}, loss {loss:.2f} on the windows"
    )


def listed(names: list[str], text: str, *columns: Any) -> str:
    """The text for every network, with the means of its rows of the columns."""
    means = [np.asarray(c).reshape(len(names), -1).mean(axis=1) for c in columns]
    rows = zip(names, *means, strict=True)
    return "; ".join(f"{name}: {text.format(*values)}" for name, *values in rows)


def random_mean(values: xr.DataArray) -> xr.DataArray:
    """Mean over the random heads."""
    return values.isel(heads=slice(1, None)).mean("heads")


def report(
    flags: Any,
    networks: Mapping[str, Network],
    table: xr.Dataset,
    layers: Mapping[str, Layers],
) -> str:
    """The tables."""
    cells: dict[str, list[str]] = {"network": [], "heads": []}
    shown = {"mean cosine": ("cosine", ".3f"), "clusters": ("count", ".1f"),
             "W_2 to start": ("w2_initial", ".3f")}  # fmt: skip
    whens = {"start": 0, "1 pass": PER_PASS, "end": -1}
    for name in table["network"].values:
        for kind in table["heads"].values:
            cells["network"].append(str(name))
            cells["heads"].append(str(kind))
            row = table.sel(network=name, heads=kind)
            for title, (key, form) in shown.items():
                for when, k in whens.items():
                    if key == "w2_initial" and k == 0:
                        continue
                    value = float(row[key].isel(time=k).mean())
                    cells.setdefault(f"{title}, {when}", []).append(f"{value:{form}}")
            value = float(row["w2_network"].mean())
            cells.setdefault("W_2 to the network, 1 pass", []).append(f"{value:.3f}")
    parts: dict[str, list[str]] = {}
    for name, layer in layers.items():
        for k, (attention, forward) in enumerate(zip(*layer.motion, strict=True)):
            drop = layer.dropped
            for title, text in {
                "network": name,
                "layer": str(k),
                "asymmetry of D": f"{layer.tied.asymmetry[k].mean():.2f}",
                "cosine of V and D": f"{layer.tied.alignment[k].mean():+.2f}",
                "largest score": f"{drop.scores[k]:.3g}",
                "score of biases": f"{drop.score_bias[k]:.3g}",
                "attention adds": f"{attention:.3g}",
                "feed-forward adds": f"{forward:.3g}",
            }.items():
                parts.setdefault(title, []).append(text)
    lines = [f"{name}: {described(network)}" for name, network in networks.items()]
    return (
        f"{'. '.join(lines)}. {flags.paths} windows of the test text, {flags.t_final:g} passes, "
        f"rk4; random heads have the singular values of the trained ones. Means over the windows; "
        f"clusters linked up to {flags.scale:g} rad:\n\n{study.markdown_table(cells)}\n\n"
        "Of tokens at rest W₂ to the network's tokens after one pass is "
        + listed(list(map(str, table["network"].values)), "{:.3f}", table["network_moved"])
        + ". What the layers are made of, asymmetry 0 for D = D^T; what they add is the mean norm "
        f"over tokens:\n\n{study.markdown_table(parts)}"
    )


def kinds(setup: Setup) -> list[str]:
    """Kinds of heads: those of the network, and draws of random ones."""
    return ["trained", *(f"random{k}" for k in range(setup.draws))]
