"""Trained heads as particles: do the attention layers of a GPT gather its tokens?

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

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from wflow import study
from wflow._checks import whole
from wflow._heads_figures import figures
from wflow._heads_table import PER_PASS, Layers, layers_of, tabulated, with_layers
from wflow.cli import guarded
from wflow.errors import InputError
from wflow.nets import GPT, ContinuousTransformer, data, particles, train
from wflow.nets._restore import restore_gpt

LAM = 2.0  # lambda = 1 of the published runs, whose cost has no factor 1/2
TIED = 0.1  # asymmetry, and 1 - |alignment|, up to which heads count as those of a gradient flow


@dataclass(frozen=True)
class Setup:
    """What a preset decides."""

    text: Literal["embedded", "characters"] = "characters"
    tokens: int = 64
    width: int = 48
    depth: int = 4
    heads: int = 4
    iterations: int = 600
    batch: int = 16
    steps: int = 5
    draws: int = 3


PRESETS = {
    "smoke": Setup("embedded", tokens=12, width=16, depth=2, heads=2, iterations=10, batch=4,
                   steps=2, draws=1),
    "cpu": Setup(),
    "paper": Setup(tokens=256, iterations=0),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainedHeads(study.Flags):
    """Flags of this study."""

    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """smoke: seconds, on the text that ships with wflow; cpu: small GPTs on tiny Shakespeare;
    paper: networks of the published size, which --checkpoint names."""
    checkpoint: tuple[str, ...] = ()
    """Files checkpoint.pt of trained GPTs, such as shakespeare_gpt.py writes."""
    tokens: int | None = None
    """Number of tokens of a window of the text; default: of the preset, at most the context."""
    paths: int = 4
    """Windows of the test text, a path each."""
    t_final: float = 4.0
    """End time, in passes through all layers."""
    dt: float = 0.1
    """Time step, as a share of the time that a layer has for what it adds in one pass."""
    scale: float = 0.5
    """Angle in radians up to which tokens are linked to one cluster."""
    data: str | None = None
    """Folder with the text; default: $WFLOW_DATA, ../shared/data, then a download."""
    out: study.Folder = Path("results/trained_heads")
    """Folder for run files, checkpoints, summary and figures."""

    def check(self) -> None:
        super().check()
        if self.tokens is not None:
            whole(self.tokens, "--tokens", 2)
        if self.t_final != round(self.t_final):
            raise InputError(f"--t-final is {self.t_final:g}: expected whole passes, such as 4")
        if self.dt > 1:
            raise InputError(f"--dt is {self.dt:g}: expected a share of a layer, at most 1")
        if not 0 < self.scale < math.pi:
            raise InputError(f"--scale is {self.scale:g}: expected an angle between 0 and pi")
        if self.preset == "paper" and not self.checkpoint:
            raise InputError(
                "--preset paper needs --checkpoint FILE: train the networks by "
                "studies/shakespeare_gpt.py --preset paper first"
            )
        names = [Path(file).resolve().parent.name for file in self.checkpoint]
        if len(set(names)) < len(names):
            raise InputError("--checkpoint: expected files in folders of different names")


class Network(NamedTuple):
    """A trained GPT, a text for it, and the windows of the text that it reads."""

    gpt: GPT
    text: data.Text
    windows: Tensor  # (paths, tokens)


def networks(flags: TrainedHeads, setup: Setup) -> dict[str, Network]:
    """The networks of the checkpoints, or two that are trained here."""
    found = {}
    for file in flags.checkpoint:
        gpt = restore_gpt(file)
        found[Path(file).resolve().parent.name] = gpt, text_of(gpt.vocabulary, flags)
    if not found:
        text = (
            data.embedded_text()
            if setup.text == "embedded"
            else data.shakespeare(folder=flags.data)
        )
        for name in ("baseline", "continuous"):
            found[name] = trained(name, flags, setup, text), text
    return {
        name: Network(gpt, text, windows(flags, setup, gpt, text.test))
        for name, (gpt, text) in found.items()
    }


def text_of(vocabulary: int, flags: TrainedHeads) -> data.Text:
    """The text whose tokens a network was trained on, by the size of its vocabulary."""
    embedded = data.embedded_text()
    if vocabulary == embedded.vocabulary:
        return embedded
    text = data.shakespeare(tokens="characters", folder=flags.data)
    if vocabulary == text.vocabulary:
        return text
    if vocabulary > 50_000:
        return data.shakespeare(tokens="gpt2", folder=flags.data)
    raise InputError(
        f"the network has a vocabulary of {vocabulary}: expected {embedded.vocabulary} (embedded "
        f"text), {text.vocabulary} (characters of tiny Shakespeare) or 50257 (GPT-2 byte pairs)"
    )


def trained(name: str, flags: TrainedHeads, setup: Setup, text: data.Text) -> GPT:
    """Train a GPT: with layer norms, or in continuous time without, as shakespeare_gpt.py does."""
    torch.manual_seed(flags.seed)
    continuous = name == "continuous"
    gpt = GPT(
        vocabulary=text.vocabulary,
        context=setup.tokens,
        width=setup.width,
        depth=setup.depth,
        heads=setup.heads,
        norm=not continuous,
    )
    if continuous:
        gpt.body = ContinuousTransformer(gpt.body, steps=setup.steps)
    config = train.TrainConfig(
        steps=setup.iterations,
        batch=setup.batch,
        schedule=train.Cosine(
            rate=1e-3, least=1e-4, warm_up=min(50, setup.iterations // 2), steps=setup.iterations
        ),
        optimizer="adamw",
        betas=(0.9, 0.99),
        weight_decay=0.1,
        clip=1.0,
        seed=flags.seed,
    )
    out = flags.out / f"training_{name}"
    train.train(
        gpt,
        train.objective(train.cross_entropy, LAM if continuous else 0.0),
        data.CropBatches(
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


def windows(flags: TrainedHeads, setup: Setup, gpt: GPT, text: Tensor) -> Tensor:
    """Windows of a text, spread evenly, (paths, tokens)."""
    n = min(flags.tokens or setup.tokens, gpt.context, len(text))
    starts = np.linspace(0, len(text) - n, flags.paths).astype(int)
    return torch.stack([text[start : start + n] for start in starts])


def runs(flags: TrainedHeads, setup: Setup, name: str, network: Network) -> dict[str, Any]:
    """Runs under trained and under random heads: kind of heads -> arguments of `wflow.solve`."""
    passes = round(flags.t_final)
    intervals = len(particles.head_law(network.gpt).order)
    # A block of a continuous-time model adds in each interval a share of what it adds in a pass.
    share = intervals / len(particles.blocks_of(network.gpt))
    steps = max(math.ceil(PER_PASS / intervals), round(1 / (flags.dt * share)))
    task = particles.problem(network.gpt, network.windows, steps=steps, passes=passes)
    times = task["t_final"] * np.arange(PER_PASS * passes + 1) / (PER_PASS * passes)
    task |= {"snapshots": times, "scheme": "rk4", "seed": flags.seed}
    trained = task["law"]
    laws = [trained, *(particles.randomised(trained, flags.seed + k) for k in range(setup.draws))]
    names = zip(kinds(setup), laws, strict=True)
    return {f"{name}_{kind}": task | {"law": law} for kind, law in names}


def kinds(setup: Setup) -> list[str]:
    """Kinds of heads: those of the network, and draws of random ones."""
    return ["trained", *(f"random{k}" for k in range(setup.draws))]


def random_mean(values: xr.DataArray) -> xr.DataArray:
    """Mean over the random heads."""
    return values.isel(heads=slice(1, None)).mean("heads")


def findings(table: xr.Dataset, layers: Mapping[str, Layers]) -> list[study.Finding]:
    """Hold the numbers against what is expected."""
    names = [str(name) for name in table["network"].values]
    cosine = table["cosine"].sel(heads="trained")
    rise = (cosine.isel(time=-1) - cosine.isel(time=0)).transpose("network", "path")
    gathering = study.Finding(
        "attention gathers tokens: their mean cosine rises",
        "[GLPR], for tied heads",
        listed(names, "mean cosine {:.3f} at the start, {:.3f} after one pass, {:.3f} at the end; "
               "of the network itself {:.3f} after one pass", cosine.isel(time=0),
               cosine.isel(time=PER_PASS), cosine.isel(time=-1), table["network_cosine"]),
        verdict(rise.values > 0),
    )  # fmt: skip
    last = table["cosine"].isel(time=-1).mean("path")
    drawn = last.isel(heads=slice(1, None))
    most, least = drawn.max("heads"), drawn.min("heads")
    chosen = study.Finding(
        "trained heads gather tokens more than random heads with the same singular values",
        "comparison; held if more than under every draw",
        listed(names, "mean cosine at the end {:.3f} trained, {:.3f} to {:.3f} random",
               last.sel(heads="trained"), least, most),
        verdict((last.sel(heads="trained") > most).values),
    )  # fmt: skip
    near = table["w2_network"].sel(heads="trained").transpose("network", "path")
    rest = table["network_moved"].transpose("network", "path")
    random = random_mean(table["w2_network"]).transpose("network", "path")
    carried = study.Finding(
        "the heads alone carry the tokens towards where the network takes them in one pass",
        "wflow/nets/particles.py, what is lost",
        listed(names, "W2 to the network's tokens {:.3f}, of tokens at rest {:.3f}, under random "
               "heads {:.3f}", near, rest, random),
        verdict((near < rest).values & (near < random).values),
    )  # fmt: skip
    asymmetry = np.array([np.mean(layer.tied.asymmetry) for layer in layers.values()])
    alignment = np.array([np.mean(np.abs(layer.tied.alignment)) for layer in layers.values()])
    tied = study.Finding(
        "trained heads are those of a gradient flow, D = D^T and V = +-D, so that an energy exists",
        "[MHT] section 1",
        listed(names, "mean asymmetry {:.2f} (0 for D = D^T, 0.71 for unrelated Q and K), mean "
               "|cosine| of V and (D + D^T)/2 {:.2f}", asymmetry, alignment)
        + "; no energy is recorded",
        verdict((asymmetry < TIED) & (alignment > 1 - TIED)),
    )  # fmt: skip
    return [gathering, chosen, carried, tied]


def verdict(holds: NDArray) -> Literal["held", "held in part", "not held"]:
    return "held" if holds.all() else "held in part" if holds.any() else "not held"


def listed(names: list[str], text: str, *columns: Any) -> str:
    """The text for every network, with the means of its rows of the columns."""
    means = [np.asarray(c).reshape(len(names), -1).mean(axis=1) for c in columns]
    rows = zip(names, *means, strict=True)
    return "; ".join(f"{name}: {text.format(*values)}" for name, *values in rows)


def report(
    flags: TrainedHeads,
    found: Mapping[str, Network],
    table: xr.Dataset,
    layers: Mapping[str, Layers],
) -> str:
    """The tables."""
    cells: dict[str, list[str]] = {"network": [], "heads": []}
    shown = {"mean cosine": ("cosine", ".3f"), "clusters": ("count", ".1f"),
             "W2 to start": ("w2_initial", ".3f")}  # fmt: skip
    whens = {"start": 0, "1 pass": PER_PASS, "end": -1}
    for name in table["network"].values:
        for kind in table["heads"].values:
            cells["network"].append(str(name))
            cells["heads"].append(str(kind))
            row = table.sel(network=name, heads=kind)
            for title, (key, style) in shown.items():
                for when, k in whens.items():
                    if key == "w2_initial" and k == 0:
                        continue
                    value = float(row[key].isel(time=k).mean())
                    cells.setdefault(f"{title}, {when}", []).append(f"{value:{style}}")
            value = float(row["w2_network"].mean())
            cells.setdefault("W2 to the network, 1 pass", []).append(f"{value:.3f}")
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
    lines = [f"{name}: {described(network)}" for name, network in found.items()]
    return (
        f"{'. '.join(lines)}. {flags.paths} windows of the test text, {flags.t_final:g} passes, "
        f"rk4; random heads have the singular values of the trained ones. Means over the windows; "
        f"clusters linked up to {flags.scale:g} rad:\n\n{study.markdown_table(cells)}\n\n"
        "Of tokens at rest W2 to the network's tokens after one pass is "
        + listed(list(map(str, table["network"].values)), "{:.3f}", table["network_moved"])
        + ". What the layers are made of, asymmetry 0 for D = D^T; what they add is the mean norm "
        f"over tokens:\n\n{study.markdown_table(parts)}"
    )


def described(network: Network) -> str:
    """A network in a few words."""
    blocks = particles.blocks_of(network.gpt)
    attention = blocks[0].attention
    body = network.gpt.body
    kind = f"{body.steps} Euler steps" if isinstance(body, ContinuousTransformer) else "discrete"
    normed = particles.head_law(network.gpt).centred
    with torch.no_grad():
        logits = network.gpt(network.windows[:, :-1]).output
    loss = float(train.cross_entropy(logits, network.windows[:, 1:]))
    return (
        f"{len(blocks)} blocks x {attention.heads} heads x width {attention.width}, {kind}, "
        f"{'with' if normed else 'without'} layer norms, {network.windows.shape[1]} tokens of "
        f"{network.text.source}, loss {loss:.2f} on the windows"
    )


def main() -> int:
    flags = study.command_line(TrainedHeads, __doc__)
    setup = PRESETS[flags.preset]
    with study.session("trained_heads", flags) as session:
        found = networks(flags, setup)
        tasks: dict[str, Any] = {}
        for name, network in found.items():
            tasks |= runs(flags, setup, name, network)
        files = session.solve(tasks)
        read = {name: (network.gpt, network.windows) for name, network in found.items()}
        layers = {name: layers_of(*pair) for name, pair in read.items()}
        table = with_layers(tabulated(read, kinds(setup), files, flags.scale), layers)
        session.finish(
            table,
            report(flags, found, table, layers),
            findings(table, layers),
            figures(table, layers),
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
