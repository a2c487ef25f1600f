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

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from _trained_heads import (
    PER_PASS,
    Layers,
    Network,
    Setup,
    figures,
    kinds,
    layers_of,
    listed,
    random_mean,
    report,
    tabulated,
    text_of,
    trained,
    windows,
    with_layers,
)

from wflow import InputError, nets, study
from wflow._core.checks import whole
from wflow._core.command_line import check_folder
from wflow.cli import guarded
from wflow.study import Finding, networks

if TYPE_CHECKING:
    import xarray as xr

TIED = 0.1  # asymmetry, and 1 - |alignment|, up to which heads count as those of a gradient flow


PRESETS = {
    "smoke": Setup("embedded", tokens=12, width=16, depth=2, heads=2, iterations=10, batch=4,
                   steps=2, draws=1),
    "cpu": Setup(),
    "paper": Setup(tokens=256, iterations=0),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainedHeads(study.Flags):
    """Flags of this study."""

    needs = networks.NEEDS
    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """smoke: seconds, on the text that ships with wflow; cpu: small GPTs on tiny Shakespeare;
    paper: networks of the published size, which --checkpoint names."""
    checkpoint: tuple[str, ...] = ()
    """Files checkpoint.pt of trained GPTs, such as shakespeare_gpt.py writes."""
    tokens: int | None = None
    """Number of tokens of a window of the text; default: of the preset, at most the context."""
    paths: study.Count = 4
    """Windows of the test text, a path each."""
    t_final: study.Positive = 4.0
    """End time, in passes through all layers."""
    dt: study.Positive = 0.1
    """Time step, as a share of the time that a layer has for what it adds in one pass."""
    scale: float = 0.5
    """Angle in radians up to which tokens are linked to one cluster."""
    data: str | None = None
    """Folder with the text; default: $WFLOW_DATA, then a download."""
    out: study.Folder = Path("results/trained_heads")
    """Folder for run files, checkpoints, summary and figures."""

    def check(self) -> None:
        super().check()
        networks.need_torch()
        check_folder(self.data, "--data")
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
                "studies/ott/shakespeare_gpt.py --preset paper first"
            )
        names = [Path(file).resolve().parent.name for file in self.checkpoint]
        if len(set(names)) < len(names):
            raise InputError("--checkpoint: expected files in folders of different names")


def network_of(flags: TrainedHeads, setup: Setup) -> dict[str, Network]:
    """The networks of the checkpoints, or two that are trained here."""
    by_name = {}
    for file in flags.checkpoint:
        gpt = nets.train.restore(file, nets.GPT)
        by_name[Path(file).resolve().parent.name] = gpt, text_of(gpt.vocabulary, flags)
    if not by_name:
        text = (
            nets.data.embedded_text()
            if setup.text == "embedded"
            else nets.data.shakespeare(folder=flags.data)
        )
        for name in ("baseline", "continuous"):
            by_name[name] = trained(name, flags, setup, text), text
    return {
        name: Network(gpt, text, windows(flags, setup, gpt, text.test))
        for name, (gpt, text) in by_name.items()
    }


def runs(flags: TrainedHeads, setup: Setup, name: str, network: Network) -> dict[str, Any]:
    """Runs under trained and under random heads: kind of heads -> arguments of `wflow.solve`."""
    passes = round(flags.t_final)
    intervals = len(nets.particles.head_law(network.gpt).order)
    # A block of a continuous-time model adds in each interval a share of what it adds in a pass.
    share = intervals / len(nets.particles.blocks_of(network.gpt))
    steps = max(math.ceil(PER_PASS / intervals), round(1 / (flags.dt * share)))
    task = nets.particles.problem(network.gpt, network.windows, steps=steps, passes=passes)
    times = task["t_final"] * np.arange(PER_PASS * passes + 1) / (PER_PASS * passes)
    save = replace(task["save"], snapshots=times)
    task |= {"save": save, "scheme": "rk4", "seed": flags.seed}
    trained = task["law"]
    laws = [
        trained,
        *(nets.particles.randomised(trained, flags.seed + k) for k in range(setup.draws)),
    ]
    names = zip(kinds(setup), laws, strict=True)
    return {f"{name}_{kind}": task | {"law": law} for kind, law in names}


def findings(table: "xr.Dataset", layers: Mapping[str, Layers]) -> list[Finding]:
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
    random = random_mean(table["w2_network"]).transpose("network", "path")
    carried = Finding.decided(
        "the heads alone carry the tokens towards where the network takes them in one pass",
        "wflow/nets/particles.py, what is lost",
        listed(names, "W₂ to the network's tokens {:.3f}, of tokens at rest {:.3f}, under random "
               "heads {:.3f}", near, rest, random),
        (near < rest).values & (near < random).values,
    )  # fmt: skip
    asymmetry = np.array([np.mean(layer.tied.asymmetry) for layer in layers.values()])
    alignment = np.array([np.mean(np.abs(layer.tied.alignment)) for layer in layers.values()])
    tied = Finding.decided(
        "trained heads are those of a gradient flow, D = D^T and V = +-D, so that an energy exists",
        "[MHT] section 1",
        listed(names, "mean asymmetry {:.2f} (0 for D = D^T, 0.71 for unrelated Q and K), mean "
               "|cosine| of V and (D + D^T)/2 {:.2f}", asymmetry, alignment)
        + "; no energy is recorded",
        (asymmetry < TIED) & (alignment > 1 - TIED),
    )  # fmt: skip
    return [gathering, chosen, carried, tied]


def main() -> int:
    flags = study.command_line(TrainedHeads, __doc__)
    setup = PRESETS[flags.preset]
    with study.session("trained_heads", flags) as session:
        by_name = network_of(flags, setup)
        tasks: dict[str, Any] = {}
        for name, network in by_name.items():
            tasks |= runs(flags, setup, name, network)
        files = session.solve(tasks)
        read = {name: (network.gpt, network.windows) for name, network in by_name.items()}
        layers = {name: layers_of(*pair) for name, pair in read.items()}
        table = with_layers(tabulated(read, kinds(setup), files, flags.scale), layers)
        session.finish(
            table,
            report(flags, by_name, table, layers),
            findings(table, layers),
            figures(table, layers),
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
