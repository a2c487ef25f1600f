"""How far flows part whose weights differ, against [MHT] Theorem 5.5 and Remark 5.6.

Two ways to change the weights: H heads sampled from a law Theta of many heads in the place of all
of them, and every head D_h moved to D_h + eps Z_h. W2 between the flows is fitted by a power law in
H and in eps, at the end time and for the largest W2 over time.

    python studies/stability_weights.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, Theorem 5.5, Remark 5.6.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import study
from wflow._checks import number, positive, whole
from wflow._problem import count_steps
from wflow.cli import guarded
from wflow.errors import InputError
from wflow.fits import PowerLaw, mean_and_error, power_law
from wflow.heads import Frozen, OrnsteinUhlenbeck

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

FloatArray = NDArray[np.float64]

PREDICTED = {"sampled": -0.5, "frozen": 1.0, "ornstein-uhlenbeck": 1.0}
TOLERANCE = 0.1
SMALLEST = 1e-7  # perturbation of which rounding leaves the digits that slopes need
WHEN = ("end", "largest")


@dataclass(frozen=True, kw_only=True)
class StabilityWeights(study.TokenFlags):
    """Flags of this study."""

    n: int | None = 100
    """Number of tokens; of digits or a FILE a random subset of that size."""
    law_heads: int = 1024
    """Number of heads of the full law Theta."""
    heads: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    """Head counts H of the samples drawn from it, with replacement."""
    base_heads: int = 8
    """Number of heads that are perturbed."""
    eps: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
    """Sizes of the perturbation D_h + eps Z_h, Z_h symmetric Gaussian."""
    size: float = 0.5
    """Size of the heads: D_h = size (Z + Z^T), Z standard normal."""
    paths: int = 24
    """Samples of each head count, and perturbations of each size."""
    sigma2: float = 2.0
    """Variance sigma^2 of the noise of the Ornstein-Uhlenbeck heads per unit time, at size 1."""
    flow: Literal["softmax", "unnormalised", "effective"] = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    direction: Literal["descent", "ascent"] = "descent"
    """Whether the tokens move down or up the energy."""
    t_final: float = 2.0
    """End time T."""
    dt: float = 0.05
    """Time step; frozen heads by rk4, Ornstein-Uhlenbeck heads by euler."""
    times: int = 10
    """Number of times, after the start, at which W2 is computed."""
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
            if len(values) < 2 or len(set(values)) < len(values):
                raise InputError(f"{name}: expected two or more numbers, each once")
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
    common = {
        "x0": x0, "t_final": flags.t_final, "dt": flags.dt, "seed": flags.seed,
        "flow": flags.flow, "direction": flags.direction, "ledger": False,
        "snapshots": flags.snapshots(), "record_every": 10**9,
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
            "snapshot_paths": range(flags.paths),
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


def main() -> int:
    flags = study.command_line(StabilityWeights, __doc__)
    x0 = flags.cloud()
    flags = replace(  # the summary says what they were
        flags,
        n=x0.shape[0],
        d=x0.shape[1],
        heads=tuple(sorted(flags.heads)),
        eps=tuple(sorted(flags.eps)),
    )
    with study.session("stability_weights", flags) as session:
        files = session.solve(tasks_of(flags, x0))
        count = flags.paths * (len(flags.heads) + 2 * len(flags.eps))
        with session.progress(count, "W2") as advance:
            table = collect(flags, files, advance)
        fits = fit_all(table)
        session.finish(
            table=table,
            text=report(flags, table, fits),
            findings=findings(fits),
            figures={"rates": rate_figure(flags, table, fits)},
        )
    return 0


def tokens_of(file: Path) -> FloatArray:
    """Snapshots (path, snapshot, n, d) of a run."""
    with wflow.open(file) as run:
        return np.asarray(run["tokens"].values)


def distances(x: FloatArray, y: FloatArray) -> FloatArray:
    """Chordal W2 at every time of two paths (times, n, d)."""
    from wflow.transport import w2

    return np.array([w2(a, b, cost="chordal") for a, b in zip(x, y, strict=True)])


def collect(flags: StabilityWeights, files: dict[str, Path], advance: Any) -> "Dataset":
    """W2 to the reference over time, for every sample and perturbation."""
    import xarray

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
    name, each = "chordal W2 between the flows", ("eps", "path", "time")
    variables: dict[str, Any] = {
        "w2_sampled": (("heads", "path", "time"), sampled, f"{name} of H sampled heads and of all"),
        "w2_frozen": (each, frozen, f"{name} of D_h + eps Z_h and of D_h, frozen"),
        "w2_ornstein-uhlenbeck": (each, moving, f"{name} of D_h + eps Z_h and of D_h, same noise"),
    }  # fmt: skip
    coords = {
        "heads": ("heads", list(flags.heads), {"long_name": "number H of sampled heads"}),
        "eps": ("eps", list(flags.eps), {"long_name": "size of the perturbation of the heads"}),
        "path": ("path", np.arange(flags.paths), {"long_name": "sample or perturbation"}),
        "time": ("time", flags.snapshots(), {"long_name": "time", "units": "1"}),
    }
    data = {
        key: (dims, values, {"long_name": text, "units": "1"})
        for key, (dims, values, text) in variables.items()
    }
    return xarray.Dataset(data, coords)


Fits = dict[tuple[str, str], PowerLaw]


def reduced(table: "Dataset", name: str, when: str) -> tuple[FloatArray, FloatArray]:
    """Abscissae, and W2 (abscissae, paths) at the end or the largest over time."""
    values = table[f"w2_{name}"]
    values = values.isel(time=-1) if when == "end" else values.max("time")
    return table[values.dims[0]].values.astype(float), values.values


def fit_all(table: "Dataset") -> Fits:
    """Power laws of the mean W2 in H and in eps."""
    return {
        (name, when): power_law(*reduced(table, name, when)) for name in PREDICTED for when in WHEN
    }


def findings(fits: Fits) -> list[study.Finding]:
    """Every prediction, and what came out."""
    titles = {
        "sampled": ("H heads sampled from the law: E W2 to the flow of the full law like H^-1/2",
                    "[MHT] Thm 5.5, Rem. 5.6"),
        "frozen": ("heads D_h + eps Z_h, frozen: W2 to the flow of D_h like eps", "[MHT] Thm 5.5"),
        "ornstein-uhlenbeck": ("heads D_h(t) + eps Z_h, Ornstein-Uhlenbeck with the same noise: W2 "
                               "to the flow of D_h(t) like eps", "[MHT] Thm 5.5"),
    }  # fmt: skip
    rows = []
    for name, (prediction, source) in titles.items():
        good, parts = [], []
        for when in WHEN:
            fit = fits[name, when]
            low, high = fit.exponent_ci
            good.append(abs(fit.exponent - PREDICTED[name]) <= TOLERANCE)
            at = "at T" if when == "end" else "largest over time"
            parts.append(f"{at} slope {fit.exponent:.3f} (95 % {low:.3f} to {high:.3f})")
        verdict: Any = "held" if all(good) else "held in part" if any(good) else "not held"
        rows.append(
            study.Finding(f"{prediction}, within {TOLERANCE}", source, "; ".join(parts), verdict)
        )
    return rows


def report(flags: StabilityWeights, table: "Dataset", fits: Fits) -> str:
    """The tables."""
    parts = [
        f"n = {flags.n}, d = {flags.d}, {flags.flow}, {flags.direction}, T = {flags.t_final:g}; "
        f"chordal W2, mean ± standard error over {flags.paths} samples."
    ]
    heads = {
        "sampled": f"H heads sampled from a law of {flags.law_heads}:",
        "frozen": f"{flags.base_heads} frozen heads D_h + eps Z_h:",
        "ornstein-uhlenbeck": f"{flags.base_heads} Ornstein-Uhlenbeck heads D_h(t) + eps Z_h:",
    }
    for name, title in heads.items():
        x, _ = reduced(table, name, "end")
        columns = {"H" if name == "sampled" else "eps": [f"{value:g}" for value in x]}
        lines = []
        for when, label in zip(WHEN, ("W2 at T", "largest W2 over time"), strict=True):
            mean, error = mean_and_error(reduced(table, name, when)[1])
            columns[label] = [f"{m:.3e} ± {e:.0e}" for m, e in zip(mean, error, strict=True)]
            fit = fits[name, when]
            low, high = fit.exponent_ci
            lines.append(
                f"{label}: slope {fit.exponent:.4f} (95 % {low:.4f} to {high:.4f}), prefactor "
                f"{fit.prefactor:.4g}, Pearson {fit.pearson:.5f}"
            )
        parts += [title, study.markdown_table(columns), "\n".join(lines)]
    return "\n\n".join(parts)


def rate_figure(flags: StabilityWeights, table: "Dataset", fits: Fits) -> "Figure":
    """W2 against H and against eps, with the fits and the predicted slopes."""
    from wflow._figure import PAGE, grid, log_axis, style

    panels = [
        (["sampled"], "sampled heads $H$", f"samples of a law of {flags.law_heads} heads"),
        (["frozen", "ornstein-uhlenbeck"], r"perturbation $\varepsilon$",
         f"{flags.base_heads} heads $D_h + \\varepsilon Z_h$"),
    ]  # fmt: skip
    looks: dict[str, dict[str, Any]] = {
        "sampled": {"color": "#0072B2", "marker": "o"},
        "frozen": {"color": "#D55E00", "marker": "s"},
        "ornstein-uhlenbeck": {"color": "#009E73", "marker": "D"},
    }
    with style():
        figure, axes = grid(1, 2, PAGE, 3.0)
        for axis, (names, label, title) in zip(axes.flat, panels, strict=True):
            for name in names:
                x, y = reduced(table, name, "end")
                fit, (mean, error) = fits[name, "end"], mean_and_error(y)
                line = np.geomspace(x.min(), x.max(), 50)
                known = {"frozen": "frozen", "ornstein-uhlenbeck": "Ornstein-Uhlenbeck"}
                text = f"slope {fit.exponent:.3f}"
                text = f"{known[name]}: {text}" if name in known else text
                axis.fill_between(line, *fit.band(line), color=looks[name]["color"], alpha=0.2,
                                  linewidth=0)  # fmt: skip
                axis.plot(line, fit(line), color=looks[name]["color"], linewidth=0.9)
                axis.errorbar(x, mean, 2 * error, linestyle="none", capsize=2, label=text,
                              **looks[name])  # fmt: skip
            slope = PREDICTED[names[0]]
            lowest = reduced(table, names[-1], "end")[1].mean(axis=1)[0] * 0.4
            axis.plot(x, lowest * (x / x[0]) ** slope, color="#333333", linewidth=0.9,
                      linestyle=(0, (4, 2)), label=f"slope {slope:g}")  # fmt: skip
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xlabel(label)
            axis.set_title(title)
            axis.legend(loc="upper right" if slope < 0 else "upper left")
            log_axis(axis)
            low, high = axis.get_ylim()
            axis.set_ylim(low, high * (1.5 if slope < 0 else 6))  # room for the legend
        axes[0, 0].set_xticks(flags.heads, [str(h) for h in flags.heads])
        axes[0, 0].minorticks_off()
        axes[0, 0].set_ylabel("$W_2$ between the flows at $T$")
        figure.suptitle(
            f"$n$ = {flags.n}, $d$ = {flags.d}, {flags.flow}, {flags.direction}, $T$ = "
            f"{flags.t_final:g}, {flags.paths} samples; bars: ± 2 standard errors",
            fontsize=8.5, x=0.01, ha="left",
        )  # fmt: skip
    return figure


if __name__ == "__main__":
    sys.exit(guarded(main))
