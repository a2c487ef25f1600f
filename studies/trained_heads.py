"""Trained heads as particles: clustering under the attention layers of a GPT.

The heads of a trained network become a schedule of general (Q, K, V) heads, layer by layer, the
embeddings of a text become tokens on the sphere, and `wflow.solve` moves them. Beside them: random
heads with the same singular values, which says what training has chosen, and the hidden states
of the network itself, which says what the heads alone leave out (feed-forward layers, biases, the
norms of single tokens; wflow/nets/particles.py has the list).

    python studies/trained_heads.py
    python studies/trained_heads.py --preset paper \
        --checkpoint results/shakespeare_gpt/{baseline,continuous}-0/checkpoint.pt

Without --checkpoint a small GPT and a continuous-time one are trained first. Times are in passes
through all layers; after the first pass the layers come again.

[GLPR] Geshkovski, Letrouit, Polyanskiy, Rigollet, A mathematical perspective on transformers, 2025.
[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from _trained_heads import figures
from numpy.typing import NDArray

import wflow
from wflow import InputError, clusters, nets, study, transport
from wflow._core.command_line import check_folder
from wflow.cli import script
from wflow.sphere import as_tokens
from wflow.study import Finding, networks

if TYPE_CHECKING:
    from torch import Tensor

PER_PASS = 8  # snapshots in a pass through all layers
TIED = 0.1  # asymmetry, and 1 - |alignment|, up to which heads count as those of a gradient flow
LAM = 2.0  # lambda = 1 of the published runs, whose cost has no factor 1/2


@dataclass(frozen=True, kw_only=True)
class TrainedHeads(study.Flags):
    """Flags of this study."""

    needs = networks.NEEDS
    durations: ClassVar = {"smoke": "seconds"}
    presets: ClassVar = {
        "smoke": {
            "text": "embedded", "tokens": 12, "context": 12, "width": 16, "depth": 2, "heads": 2,
            "iterations": 10, "batch": 4, "steps": 2, "draws": 1,
        },
        "cpu": {},
        "paper": {"tokens": 256},
    }  # fmt: skip
    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """smoke: the text that ships with wflow; cpu: small GPTs on tiny Shakespeare;
    paper: networks of the published size, which --checkpoint names."""
    checkpoint: tuple[str, ...] = ()
    """Files checkpoint.pt of trained GPTs, such as shakespeare_gpt.py writes."""
    tokens: study.TwoOrMore = 64
    """Number of tokens of a window of the text, at most the context of the network."""
    paths: study.Count = 4
    """Windows of the test text, a path each."""
    t_final: study.Positive = 4.0
    """End time, in passes through all layers."""
    dt: study.Share = 0.1
    """Time step, as a share of the time that a layer has for what it adds in one pass."""
    scale: study.Angle = 0.5
    """Angle in radians up to which tokens are linked to one cluster."""
    draws: study.Count = 3
    """Draws of random heads."""
    text: Literal["embedded", "characters"] = "characters"
    """Text on which networks are trained here: that of wflow, or tiny Shakespeare. This and
    the next seven are for calls without --checkpoint."""
    context: study.TwoOrMore = 64
    """Tokens that a network sees."""
    width: study.Count = 48
    """Width of the hidden states."""
    depth: study.Count = 4
    """Blocks."""
    heads: study.Count = 4
    """Heads of a block."""
    iterations: study.Count = 600
    """Iterations of AdamW."""
    batch: study.Count = 16
    """Windows in a batch."""
    steps: networks.Steps = 5
    """Steps of the continuous network."""
    data: str | None = None
    """Folder with the text; default: $WFLOW_DATA, then a download."""
    out: study.Folder = Path("results/trained_heads")
    """Folder for run files, checkpoints, summary and figures."""

    def check(self) -> None:
        super().check()
        networks.need_torch()
        check_folder(self.data, "--data")
        if self.t_final != round(self.t_final):
            raise InputError(f"--t-final is {self.t_final:g}: expected whole passes, such as 4")
        if self.preset == "paper" and not self.checkpoint:
            raise InputError(
                "--preset paper needs --checkpoint FILE: train the networks by "
                "studies/ott/shakespeare_gpt.py --preset paper first"
            )
        names = [Path(file).resolve().parent.name for file in self.checkpoint]
        if len(set(names)) < len(names):
            raise InputError("--checkpoint: expected files in folders of different names")


# Networks
# --------


class Network(NamedTuple):
    """A trained nets.GPT, a text for it, and the windows of the text that it reads."""

    gpt: nets.GPT
    text: nets.data.Text
    windows: Tensor  # (paths, tokens)


def load(flags: TrainedHeads) -> dict[str, Network]:
    """Return the networks of the checkpoints, or two that are trained here."""
    found = {}
    for file in flags.checkpoint:
        gpt = nets.train.restore(file, nets.GPT)
        found[Path(file).resolve().parent.name] = gpt, text_of(flags, gpt.vocabulary)
    if not found:
        embedded = flags.text == "embedded"
        text = nets.data.embedded_text() if embedded else nets.data.shakespeare(folder=flags.data)
        for name in ("baseline", "continuous"):
            found[name] = trained(flags, name, text), text
    return {
        name: Network(gpt, text, windows(flags, gpt, text.test))
        for name, (gpt, text) in found.items()
    }


def text_of(flags: TrainedHeads, vocabulary: int) -> nets.data.Text:
    """Return the text whose tokens a network was trained on, by the size of its vocabulary."""
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


def trained(flags: TrainedHeads, name: str, text: nets.data.Text) -> nets.GPT:
    """Train a GPT: with layer norms, or in continuous time without, as shakespeare_gpt.py does."""
    import torch

    torch.manual_seed(flags.seed)
    continuous = name == "continuous"
    gpt = nets.GPT(
        vocabulary=text.vocabulary, context=flags.context, width=flags.width, depth=flags.depth,
        heads=flags.heads, norm=not continuous,
    )  # fmt: skip
    if continuous:
        gpt.body = nets.ContinuousTransformer(gpt.body, steps=flags.steps)
    config = nets.train.TrainConfig(
        steps=flags.iterations,
        batch=flags.batch,
        schedule=nets.train.Cosine(
            rate=1e-3, least=1e-4, warm_up=min(50, flags.iterations // 2), steps=flags.iterations
        ),
        optimizer="adamw",
        betas=(0.9, 0.99),
        weight_decay=0.1,
        clip=1.0,
        seed=flags.seed,
        device=flags.compute.device or "auto",
    )
    out = flags.out / f"training_{name}"
    nets.train.train(
        gpt,
        nets.train.objective(nets.train.cross_entropy, LAM if continuous else 0.0),
        nets.data.CropBatches(
            text.train, context=flags.context, batch=flags.batch, seed=flags.seed + 1,
            vocabulary=text.vocabulary,
        ),
        config,
        out=out,
        resume=flags.resume,
        overwrite=flags.overwrite,
        label=f"training {name}",
    )  # fmt: skip
    return gpt.cpu().eval()


def windows(flags: TrainedHeads, gpt: nets.GPT, text: Tensor) -> Tensor:
    """Return windows of a text, spread evenly, (paths, tokens)."""
    import torch

    n = min(flags.tokens, gpt.context, len(text))
    starts = np.linspace(0, len(text) - n, flags.paths).astype(int)
    return torch.stack([text[start : start + n] for start in starts])


# Runs and measurements
# ---------------------


def kinds(flags: TrainedHeads) -> list[str]:
    """Return kinds of heads: those of the network, and draws of random ones."""
    return ["trained", *(f"random{k}" for k in range(flags.draws))]


def runs(flags: TrainedHeads, name: str, network: Network) -> dict[str, Any]:
    """Return runs under trained and random heads: kind -> arguments of `wflow.solve`."""
    passes = round(flags.t_final)
    intervals = len(nets.particles.head_law(network.gpt).order)
    # A block of a continuous-time model adds in each interval a share of what it adds in a pass.
    share = intervals / len(nets.particles.blocks_of(network.gpt))
    steps = max(math.ceil(PER_PASS / intervals), round(1 / (flags.dt * share)))
    task = nets.particles.problem(network.gpt, network.windows, steps=steps, passes=passes)
    times = task["t_final"] * np.arange(PER_PASS * passes + 1) / (PER_PASS * passes)
    save = replace(task["save"], snapshots=times)
    task |= {"save": save, "scheme": "rk4", "seed": flags.seed}
    drawn = (nets.particles.randomised(task["law"], flags.seed + k) for k in range(flags.draws))
    laws = zip(kinds(flags), (task["law"], *drawn), strict=True)
    return {f"{name}_{kind}": task | {"law": law} for kind, law in laws}


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
OWN = {
    "network_cosine": "mean of <x_i, x_j> of the network's hidden states after one pass",
    "network_moved": "W_2 between the network's embeddings and hidden states after one pass",
}


def measured(file: Path, end: NDArray, scale: float) -> dict[str, NDArray]:
    """Return quantities of one run: (path, time), and its final distance from the network."""
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
    """Return the mean angle between a token of one cloud and the same token of the other."""
    minus, plus = np.linalg.norm(x - y, axis=1), np.linalg.norm(x + y, axis=1)
    return float(np.mean(2 * np.arctan2(minus, plus)))


class Layers(NamedTuple):
    """Properties of a network, layer by layer."""

    tied: nets.particles.Tied
    dropped: nets.particles.Dropped
    motion: nets.particles.Motion


def layers_of(network: Network) -> Layers:
    """Return the layers of a network, for tokens of the norms that they have in it."""
    gpt, _, inputs = network
    radius = float(nets.particles.clouds_of(gpt, inputs).radii.mean())
    return Layers(
        nets.particles.tied(nets.particles.head_law(gpt)),
        nets.particles.dropped(gpt, radius=radius),
        nets.particles.motion_of(gpt, inputs),
    )


def tabulated(
    flags: TrainedHeads,
    found: Mapping[str, Network],
    layers: Mapping[str, Layers],
    files: Mapping[str, Path],
) -> study.Dataset:
    """Return all numbers: (network, heads, path, time), and what the networks do themselves.

    `files` has the run file of NETWORK_KIND.
    """
    import xarray as xr  # here, so that --help does not wait for it

    clouds = {
        name: nets.particles.clouds_of(network.gpt, network.windows).tokens
        for name, network in found.items()
    }
    values = [
        [measured(files[f"{name}_{kind}"], tokens[-1], flags.scale) for kind in kinds(flags)]
        for name, tokens in clouds.items()
    ]
    numbers = {key: np.array([[run[key] for run in row] for row in values]) for key in NAMES}
    own = {
        "network_cosine": [mean_cosine(tokens[-1]) for tokens in clouds.values()],
        "network_moved": [
            [transport.w2(x, y) for x, y in zip(tokens[0], tokens[-1], strict=True)]
            for tokens in clouds.values()
        ],
    }
    dims = ("network", "heads", "path", "time")
    time = np.arange(numbers["cosine"].shape[-1]) / PER_PASS
    table = xr.Dataset(
        {
            key: (dims[: numbers[key].ndim], numbers[key], {"long_name": text})
            for key, text in NAMES.items()
        }
        | {
            key: (("network", "path"), np.array(own[key]), {"long_name": text})
            for key, text in OWN.items()
        },
        {
            "network": list(found),
            "heads": kinds(flags),
            "time": ("time", time, {"long_name": "time in passes through all layers"}),
        },
    )
    for name, layer in layers.items():
        at, head = f"layer_{name}", f"head_{name}"
        for key in ("asymmetry", "alignment"):
            attrs = {"long_name": f"{key} of the heads of {name}"}
            table[f"{key}_{name}"] = ((at, head), getattr(layer.tied, key), attrs)
        for key in ("attention", "feed_forward"):
            attrs = {"long_name": f"mean norm of what the {key} layers of {name} add"}
            table[f"{key}_{name}"] = (at, getattr(layer.motion, key), attrs)
    return table


def mean_cosine(tokens: NDArray) -> NDArray:
    """Return the mean of <x_i, x_j> over pairs of different tokens, (path,) of (path, n, d)."""
    n = tokens.shape[1]
    square = np.square(tokens.mean(axis=1)).sum(axis=1)
    return np.asarray((n * square - 1) / (n - 1))


# Findings
# --------


def listed(names: list[str], text: str, *columns: Any) -> str:
    """Return a text for every network, with the means of its rows of the columns."""
    means = [np.asarray(c).reshape(len(names), -1).mean(axis=1) for c in columns]
    rows = zip(names, *means, strict=True)
    return "; ".join(f"{name}: {text.format(*values)}" for name, *values in rows)


def findings(table: study.Dataset) -> list[Finding]:
    """Compare the numbers with what is expected."""
    names = [str(name) for name in table["network"].values]
    cosine = table["cosine"].sel(heads="trained")
    rise = (cosine.isel(time=-1) - cosine.isel(time=0)).transpose("network", "path")
    gathering = Finding.decided(
        "attention gathers tokens: their mean cosine rises",
        "[GLPR], for tied heads",
        listed(names, "mean cosine {:.3f} at the start, {:.3f} after one pass, {:.3f} at the end; "
               "of the network itself {:.3f} after one pass", cosine.isel(time=0),
               cosine.isel(time=PER_PASS), cosine.isel(time=-1), table["network_cosine"]),
        rise.values > 0,
    )  # fmt: skip
    last = table["cosine"].isel(time=-1).mean("path")
    drawn = last.isel(heads=slice(1, None))
    most, least = drawn.max("heads"), drawn.min("heads")
    chosen = Finding.decided(
        "trained heads gather tokens more than random heads with the same singular values",
        "comparison; confirmed if more than under every draw",
        listed(names, "mean cosine at the end {:.3f} trained, {:.3f} to {:.3f} random",
               last.sel(heads="trained"), least, most),
        (last.sel(heads="trained") > most).values,
    )  # fmt: skip
    near = table["w2_network"].sel(heads="trained").transpose("network", "path")
    rest = table["network_moved"].transpose("network", "path")
    random = table["w2_network"].isel(heads=slice(1, None)).mean("heads")
    random = random.transpose("network", "path")
    carried = Finding.decided(
        "the heads alone carry the tokens towards where the network takes them in one pass",
        "wflow/nets/particles.py, what is lost",
        listed(names, "W₂ to the network's tokens {:.3f}, of tokens at rest {:.3f}, under random "
               "heads {:.3f}", near, rest, random),
        (near < rest).values & (near < random).values,
    )  # fmt: skip
    asymmetry = np.array([np.mean(table[f"asymmetry_{name}"].values) for name in names])
    alignment = np.array([np.mean(np.abs(table[f"alignment_{name}"].values)) for name in names])
    tied = Finding.decided(
        "trained heads are those of a gradient flow, D = D^T and V = +-D, so that an energy exists",
        "[MHT] section 1",
        listed(names, "mean asymmetry {:.2f} (0 for D = D^T, 0.71 for unrelated Q and K), mean "
               "|cosine| of V and (D + D^T)/2 {:.2f}", asymmetry, alignment)
        + "; no energy is recorded",
        (asymmetry < TIED) & (alignment > 1 - TIED),
    )  # fmt: skip
    return [gathering, chosen, carried, tied]


# Tables
# ------


def report(
    flags: TrainedHeads,
    found: Mapping[str, Network],
    table: study.Dataset,
    layers: Mapping[str, Layers],
) -> str:
    """Return the tables."""
    shown = {"mean cosine": ("cosine", ".3f"), "clusters": ("count", ".1f"),
             "W_2 to start": ("w2_initial", ".3f")}  # fmt: skip
    whens = {"start": 0, "1 pass": PER_PASS, "end": -1}
    rows = []
    for name in found:
        for kind in kinds(flags):
            row = table.sel(network=name, heads=kind)
            numbers = {
                f"{title}, {when}": f"{float(row[key].isel(time=k).mean()):{form}}"
                for title, (key, form) in shown.items()
                for when, k in whens.items()
                if (key, when) != ("w2_initial", "start")
            }
            after = {"W_2 to the network, 1 pass": f"{float(row['w2_network'].mean()):.3f}"}
            rows.append({"network": name, "heads": kind} | numbers | after)
    parts = [
        {
            "network": name,
            "layer": str(k),
            "asymmetry of D": f"{layer.tied.asymmetry[k].mean():.2f}",
            "cosine of V and D": f"{layer.tied.alignment[k].mean():+.2f}",
            "largest score": f"{layer.dropped.scores[k]:.3g}",
            "score of biases": f"{layer.dropped.score_bias[k]:.3g}",
            "attention adds": f"{attention:.3g}",
            "feed-forward adds": f"{forward:.3g}",
        }
        for name, layer in layers.items()
        for k, (attention, forward) in enumerate(zip(*layer.motion, strict=True))
    ]
    lines = [f"{name}: {described(network)}" for name, network in found.items()]
    return (
        f"{'. '.join(lines)}. {flags.paths} windows of the test text, {flags.t_final:g} passes, "
        f"rk4; random heads have the singular values of the trained ones. Means over the windows; "
        f"clusters linked up to {flags.scale:g} rad:\n\n{study.markdown_table(rows)}\n\n"
        "Of tokens at rest W₂ to the network's tokens after one pass is "
        + listed(list(found), "{:.3f}", table["network_moved"])
        + ". What the layers are made of, asymmetry 0 for D = D^T; what they add is the mean norm "
        f"over tokens:\n\n{study.markdown_table(parts)}"
    )


def described(network: Network) -> str:
    """Return a network in a few words."""
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


def main() -> None:
    flags = study.command_line(TrainedHeads, __doc__)
    with study.session("trained_heads", flags) as session:
        found = load(flags)
        tasks: dict[str, Any] = {}
        for name, network in found.items():
            tasks |= runs(flags, name, network)
        files = session.solve(tasks)
        layers = {name: layers_of(network) for name, network in found.items()}
        table = tabulated(flags, found, layers, files)
        session.finish(
            table, report(flags, found, table, layers), findings(table), figures(table, PER_PASS)
        )


if __name__ == "__main__":
    script(main)
