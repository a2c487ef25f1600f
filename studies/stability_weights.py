"""Distance between flows with different weights, against [MHT] Theorem 5.5 and Remark 5.6.

Two ways to change the weights: H heads sampled from a law Theta of many heads in the place of all
of them, and every head D_h moved to D_h + ε Z_h. W₂ between the flows is fitted by a power law
in H and in ε, at the end time and for the largest W₂ over time.

    python studies/stability_weights.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, Theorem 5.5, Remark 5.6.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _stability import PREDICTED, WHEN, Fits, reduced, weights_figure, weights_report
from numpy.typing import NDArray

import wflow
from wflow import InputError, SaveAt, study
from wflow._core.checks import count_steps, number, positive, whole
from wflow.analysis.fits import power_law
from wflow.cli import guarded
from wflow.heads import Frozen, OrnsteinUhlenbeck
from wflow.study import Direction, FlowName

if TYPE_CHECKING:
    from xarray import Dataset

FloatArray = NDArray[np.float64]

TOLERANCE = 0.1
SMALLEST = 1e-7  # perturbation of which rounding leaves the digits that slopes need


@dataclass(frozen=True, kw_only=True)
class StabilityWeights(study.TokenFlags):
    """Flags of this study."""

    n: study.Count | None = 100
    """Number of tokens; of digits or a FILE a random subset of that size."""
    law_heads: int = 1024
    """Number of heads of the full law Theta."""
    heads: tuple[study.Count, ...] = (4, 8, 16, 32, 64, 128, 256)
    """Head counts H of the samples drawn from it, with replacement."""
    base_heads: int = 8
    """Number of heads that are perturbed."""
    eps: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
    """Sizes of the perturbation D_h + ε Z_h, Z_h symmetric Gaussian."""
    size: float = 0.5
    """Size of the heads: D_h = size (Z + Z^T), Z standard normal."""
    paths: study.Count = 24
    """Samples of each head count, and perturbations of each size."""
    sigma2: study.Nonnegative = 2.0
    """Variance sigma^2 of the noise of the Ornstein-Uhlenbeck heads per unit time, at size 1."""
    flow: FlowName = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    direction: Direction = "descent"
    """Whether the tokens move down or up the energy."""
    t_final: study.Positive = 2.0
    """End time T."""
    dt: study.Positive = 0.05
    """Time step; frozen heads by rk4, Ornstein-Uhlenbeck heads by euler."""
    times: int = 10
    """Number of times, after the start, at which W₂ is computed."""
    out: study.Folder = Path("results/stability_weights")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.law_heads, "--law-heads", 2, why="of one head all samples are equal")
        whole(self.base_heads, "--base-heads")
        whole(self.paths, "--paths", 2, why="an interval needs two")
        positive(self.size, "--size")
        number(self.sigma2, "--sigma2", least=0.0)
        for name, values in (("--heads", self.heads), ("--eps", self.eps)):
            study.distinct(values, name, 2)
        for count in self.heads:
            whole(count, "--heads")
        for eps in self.eps:
            if positive(eps, "--eps") < SMALLEST:
                raise InputError(f"--eps has {eps:g}: expected {SMALLEST:g} or more")
        steps = count_steps(self.t_final, self.dt)
        if whole(self.times, "--times") > steps:
            raise InputError(f"--times is {self.times}: expected at most the {steps} steps")

    def snapshots(self) -> FloatArray:
        return np.linspace(0, self.t_final, self.times + 1)


def gaussian(seed: list[int], heads: int, d: int) -> FloatArray:
    """Z + Z^T for standard normal Z, (heads, d, d)."""
    z = np.random.default_rng(seed).standard_normal((heads, d, d))
    return np.asarray(z + z.swapaxes(-1, -2))


def tasks_of(flags: StabilityWeights, x0: FloatArray) -> dict[str, dict[str, Any]]:
    """All runs: name -> arguments of `wflow.solve`."""
    d = x0.shape[1]
    save = SaveAt(every=10**9, snapshots=flags.snapshots(), budget=False)
    common = {
        "x0": x0, "t_final": flags.t_final, "dt": flags.dt, "seed": flags.seed,
        "flow": flags.flow, "direction": flags.direction, "save": save,
    }  # fmt: skip
    frozen = common | {"law": Frozen(), "scheme": "rk4"}
    full = flags.size * gaussian([flags.seed, 0], flags.law_heads, d)
    base = flags.size * gaussian([flags.seed, 1], flags.base_heads, d)
    shift = [gaussian([flags.seed, 2, p], flags.base_heads, d) / 2 for p in range(flags.paths)]

    def moving(change: FloatArray) -> dict[str, Any]:
        # Start and mean moved alike: with the same noise D_h(t) is moved so at every time.
        mean = flags.size * np.eye(d) + change
        law = OrnsteinUhlenbeck(mean, rate=1.0, sigma2=flags.size**2 * flags.sigma2)
        return common | {
            "law": law, "heads": base + change, "paths": flags.paths,
            "save": replace(save, paths=range(flags.paths)),
        }  # fmt: skip

    tasks = {"law": frozen | {"heads": full}, "frozen": frozen | {"heads": base},
             "ou": moving(np.zeros_like(base))}  # fmt: skip
    for h, count in enumerate(flags.heads):
        for p in range(flags.paths):
            rng = np.random.default_rng([flags.seed, 3, h, p])
            drawn = full[rng.integers(len(full), size=count)]
            tasks[f"sampled_H{count:05d}_{p:03d}"] = frozen | {"heads": drawn}
    for e, eps in enumerate(flags.eps):
        for p in range(flags.paths):
            tasks[f"frozen_eps{e}_{p:03d}"] = frozen | {"heads": base + eps * shift[p]}
        tasks[f"ou_eps{e}"] = moving(eps * shift[0])
    return tasks


def tokens_of(file: Path) -> FloatArray:
    """Snapshots (path, snapshot, n, d) of a run."""
    with wflow.open(file) as run:
        return np.asarray(run["tokens"].values)


def distances(x: FloatArray, y: FloatArray) -> FloatArray:
    """Chordal W₂ at every time of two paths (times, n, d)."""
    from wflow.transport import w2

    return np.array([w2(a, b, cost="chordal") for a, b in zip(x, y, strict=True)])


def collect(flags: StabilityWeights, files: dict[str, Path], advance: Any) -> "Dataset":
    """W₂ to the reference over time, for every sample and perturbation."""
    times = flags.times + 1
    sampled = np.empty((len(flags.heads), flags.paths, times))
    frozen, moving = np.empty((2, len(flags.eps), flags.paths, times))
    law, base, ou = (tokens_of(files[name]) for name in ("law", "frozen", "ou"))
    for h, count in enumerate(flags.heads):
        for p in range(flags.paths):
            cloud = tokens_of(files[f"sampled_H{count:05d}_{p:03d}"])
            sampled[h, p] = distances(cloud[0], law[0])
            advance(1)
    for e in range(len(flags.eps)):
        shifted = tokens_of(files[f"ou_eps{e}"])
        for p in range(flags.paths):
            frozen[e, p] = distances(tokens_of(files[f"frozen_eps{e}_{p:03d}"])[0], base[0])
            moving[e, p] = distances(shifted[p], ou[p])
            advance(2)
    name, each = "chordal W_2 between the flows", ("eps", "path", "time")
    variables: dict[str, Any] = {
        "w2_sampled": (("heads", "path", "time"), sampled, f"{name} of H sampled heads and of all"),
        "w2_frozen": (each, frozen, f"{name} of D_h + eps Z_h and of D_h, frozen"),
        "w2_ornstein-uhlenbeck": (each, moving, f"{name} of D_h + eps Z_h and of D_h, same noise"),
    }  # fmt: skip
    coords: dict[str, Any] = {
        "heads": (flags.heads, "number H of sampled heads"),
        "eps": (flags.eps, "size of the perturbation of the heads"),
        "path": (np.arange(flags.paths), "sample or perturbation"),
        "time": (flags.snapshots(), "time"),
    }
    return study.dataset(variables, coords)


def fit_all(table: "Dataset") -> Fits:
    """Power laws of the mean W₂ in H and in ε."""
    return {
        (name, when): power_law(*reduced(table, name, when)) for name in PREDICTED for when in WHEN
    }


def findings(fits: Fits) -> list[study.Finding]:
    """Every prediction with its verdict."""
    titles = {
        "sampled": ("H heads sampled from the law: E W₂ to the flow of the full law like H^-1/2",
                    "[MHT] Thm 5.5, Rem. 5.6"),
        "frozen": ("heads D_h + ε Z_h, frozen: W₂ to the flow of D_h like ε", "[MHT] Thm 5.5"),
        "ornstein-uhlenbeck": ("heads D_h(t) + ε Z_h, Ornstein-Uhlenbeck with the same noise: "
                               "W₂ to the flow of D_h(t) like ε", "[MHT] Thm 5.5"),
    }  # fmt: skip
    rows = [
        study.Finding.slope(
            f"{prediction}, within {TOLERANCE}", source,
            {"at T": fits[name, "end"], "largest over time": fits[name, "largest"]},
            PREDICTED[name], TOLERANCE,
        )
        for name, (prediction, source) in titles.items()
    ]  # fmt: skip
    return rows


def main() -> int:
    flags = study.command_line(StabilityWeights, __doc__)
    with study.session("stability_weights", flags) as session:
        x0 = flags.cloud()
        flags = session.flags = replace(  # the summary records them
            flags,
            n=x0.shape[0],
            d=x0.shape[1],
            heads=tuple(sorted(flags.heads)),
            eps=tuple(sorted(flags.eps)),
        )
        files = session.solve(tasks_of(flags, x0))
        count = flags.paths * (len(flags.heads) + 2 * len(flags.eps))
        with session.progress(count, "W₂") as advance:
            table = collect(flags, files, advance)
        fits = fit_all(table)
        session.finish(
            table=table,
            text=weights_report(flags, table, fits),
            findings=findings(fits),
            figures={"rates": weights_figure(flags, table, fits)},
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
