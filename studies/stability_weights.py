"""Distance between flows with different weights, against [MHT] Theorem 5.5 and Remark 5.6.

Two ways to change the weights: H heads sampled from a law Theta of many heads in the place of all
of them, and every head D_h moved to D_h + ε Z_h. W₂ between the flows is fitted by a power law
in H and in ε, at the end time and for the largest W₂ over time.

    python studies/stability_weights.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, Theorem 5.5, Remark 5.6.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from _stability import ComparedFlows, Perturbation

import wflow
from wflow import SaveAt, study, transport
from wflow.analysis.fits import PowerLaw, mean_and_error, power_law
from wflow.cli import script
from wflow.heads import Frozen, OrnsteinUhlenbeck
from wflow.plots.figure import PAGE, caption, grid, log_axis, minus, style
from wflow.study import Direction, FloatArray

TOLERANCE = 0.1
Fits = dict[tuple[str, str], PowerLaw]
PREDICTED = {"sampled": -0.5, "frozen": 1.0, "ornstein-uhlenbeck": 1.0}
WHEN = ("end", "largest")


@dataclass(frozen=True, kw_only=True)
class StabilityWeights(ComparedFlows):
    """Flags of this study."""

    law_heads: study.TwoOrMore = 1024
    """Number of heads of the full law Theta."""
    heads: study.Compared[study.Count] = (4, 8, 16, 32, 64, 128, 256)
    """Head counts H of the samples drawn from it, with replacement."""
    base_heads: study.Count = 8
    """Number of heads that are perturbed."""
    eps: study.Compared[Perturbation] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
    """Sizes of the perturbation D_h + ε Z_h, Z_h symmetric Gaussian."""
    size: study.Positive = 0.5
    """Size of the heads: D_h = size (Z + Z^T), Z standard normal."""
    paths: study.TwoOrMore = 24
    """Samples of each head count, and perturbations of each size."""
    direction: Direction = "descent"
    """Whether the tokens move down or up the energy."""
    t_final: study.Positive = 2.0
    dt: study.Positive = 0.05
    """Time step; frozen heads by rk4, Ornstein-Uhlenbeck heads by euler."""
    times: study.Count = 10
    """Number of times, after the start, at which W₂ is computed."""
    out: study.Folder = Path("results/stability_weights")


def gaussian(seed: list[int], heads: int, d: int) -> FloatArray:
    """Return Z + Z^T for standard normal Z, (heads, d, d)."""
    z = np.random.default_rng(seed).standard_normal((heads, d, d))
    return np.asarray(z + z.swapaxes(-1, -2))


def tasks(flags: StabilityWeights, x0: FloatArray) -> dict[str, dict[str, Any]]:
    """Return all runs: name -> arguments of `wflow.solve`."""
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

    runs = {"law": frozen | {"heads": full}, "frozen": frozen | {"heads": base},
             "ou": moving(np.zeros_like(base))}  # fmt: skip
    for h, count in enumerate(flags.heads):
        for p in range(flags.paths):
            rng = np.random.default_rng([flags.seed, 3, h, p])
            drawn = full[rng.integers(len(full), size=count)]
            runs[f"sampled_H{count:05d}_{p:03d}"] = frozen | {"heads": drawn}
    for e, eps in enumerate(flags.eps):
        for p in range(flags.paths):
            runs[f"frozen_eps{e}_{p:03d}"] = frozen | {"heads": base + eps * shift[p]}
        runs[f"ou_eps{e}"] = moving(eps * shift[0])
    return runs


def tokens_of(file: Path) -> FloatArray:
    """Return snapshots (path, snapshot, n, d) of a run."""
    with wflow.open(file) as run:
        return np.asarray(run["tokens"].values)


def distances(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the chordal W₂ at every time of two paths (times, n, d)."""
    return np.array([transport.w2(a, b, cost="chordal") for a, b in zip(x, y, strict=True)])


def collect(flags: StabilityWeights, files: dict[str, Path]) -> "study.Dataset":
    """Return W₂ to the reference over time, for every sample and perturbation."""
    law, base, ou = (tokens_of(files[name]) for name in ("law", "frozen", "ou"))

    def sampled(heads: int, path: int) -> dict[str, FloatArray]:
        cloud = tokens_of(files[f"sampled_H{heads:05d}_{path:03d}"])[0]
        return {"w2_sampled": distances(cloud, law[0])}

    def perturbed(eps: float, path: int) -> dict[str, FloatArray]:
        e = flags.eps.index(eps)
        frozen = tokens_of(files[f"frozen_eps{e}_{path:03d}"])[0]
        moving = tokens_of(files[f"ou_eps{e}"])[path]
        found = distances(frozen, base[0]), distances(moving, ou[path])
        return dict(zip(("w2_frozen", "w2_ornstein-uhlenbeck"), found, strict=True))

    name, each = "chordal W_2 between the flows", ("time",)
    path: dict[str, Any] = {"path": (np.arange(flags.paths), "sample or perturbation")}
    time = {"time": (flags.snapshots(), "time")}
    drawn = study.tabulate(
        {"heads": (flags.heads, "number H of sampled heads")} | path, sampled,
        {"w2_sampled": (each, f"{name} of H sampled heads and of all")}, time, "W₂ of samples",
    )  # fmt: skip
    moved = study.tabulate(
        {"eps": (flags.eps, "size of the perturbation of the heads")} | path, perturbed,
        {
            "w2_frozen": (each, f"{name} of D_h + eps Z_h and of D_h, frozen"),
            "w2_ornstein-uhlenbeck": (each, f"{name} of D_h + eps Z_h and of D_h, same noise"),
        },
        time, "W₂ of perturbations",
    )  # fmt: skip
    return drawn.merge(moved)


def reduced(table: "study.Dataset", name: str, when: str) -> tuple[FloatArray, FloatArray]:
    """Return the abscissae, and W₂ (abscissae, paths) at the end or the largest over time."""
    values = table[f"w2_{name}"]
    values = values.isel(time=-1) if when == "end" else values.max("time")
    return table[values.dims[0]].values.astype(float), values.values


def fit_all(table: "study.Dataset") -> Fits:
    """Return the power laws of the mean W₂ in H and in ε."""
    return {
        (name, when): power_law(*reduced(table, name, when)) for name in PREDICTED for when in WHEN
    }


def findings(fits: Fits) -> list[study.Finding]:
    """Return every prediction with its verdict."""
    titles = {
        "sampled": ("for H heads sampled from the law E W₂ to the flow of the full law is like "
                    "H^-1/2", "[MHT] Thm 5.5, Rem. 5.6"),
        "frozen": ("for heads D_h + ε Z_h, frozen, W₂ to the flow of D_h is like ε",
                   "[MHT] Thm 5.5"),
        "ornstein-uhlenbeck": ("for heads D_h(t) + ε Z_h, Ornstein-Uhlenbeck with the same noise, "
                               "W₂ to the flow of D_h(t) is like ε", "[MHT] Thm 5.5"),
    }  # fmt: skip
    return [
        study.Finding.slope(
            f"{prediction}, within {TOLERANCE}", source,
            {"at T": fits[name, "end"], "largest over time": fits[name, "largest"]},
            PREDICTED[name], TOLERANCE,
        ).of_theorem()
        for name, (prediction, source) in titles.items()
    ]  # fmt: skip


# Tables and figures
# ------------------


def report(flags: StabilityWeights, table: "study.Dataset", fits: Fits) -> str:
    """Return the tables."""
    parts = [
        f"n = {flags.n}, d = {flags.d}, {flags.flow}, {flags.direction}, T = {flags.t_final:g}; "
        f"chordal W₂, mean ± standard error over {flags.paths} samples."
    ]
    heads = {
        "sampled": f"H heads sampled from a law of {flags.law_heads}:",
        "frozen": f"{flags.base_heads} frozen heads D_h + ε Z_h:",
        "ornstein-uhlenbeck": f"{flags.base_heads} Ornstein-Uhlenbeck heads D_h(t) + ε Z_h:",
    }
    for name, title in heads.items():
        x, _ = reduced(table, name, "end")
        columns = {"H" if name == "sampled" else "eps": [f"{value:g}" for value in x]}
        lines = []
        for when, label in zip(WHEN, ("W_2 at T", "largest W_2 over time"), strict=True):
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


def rates_figure(flags: StabilityWeights, table: "study.Dataset", fits: Fits) -> "study.Figure":
    """Draw W₂ against H and against ε, with the fits and the predicted slopes."""
    panels = [
        (["sampled"], "Number of heads $H$", f"Heads sampled from {flags.law_heads}"),
        (["frozen", "ornstein-uhlenbeck"], r"Size of the perturbation $\varepsilon$",
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
                text = minus(f"slope {fit.exponent:.3f}")
                text = f"{known[name]}: {text}" if name in known else text
                axis.fill_between(line, *fit.band(line), color=looks[name]["color"], alpha=0.2,
                                  linewidth=0)  # fmt: skip
                axis.plot(line, fit(line), color=looks[name]["color"], linewidth=0.9)
                axis.errorbar(x, mean, 2 * error, linestyle="none", capsize=2, label=text,
                              **looks[name])  # fmt: skip
            slope = PREDICTED[names[0]]
            lowest = reduced(table, names[-1], "end")[1].mean(axis=1)[0] * 0.4
            axis.plot(x, lowest * (x / x[0]) ** slope, color="#333333", linewidth=0.9,
                      linestyle=(0, (4, 2)), label=minus(f"predicted slope {slope:g}"))  # fmt: skip
            axis.set(xscale="log", yscale="log", xlabel=label, title=title)
            axis.legend(loc="upper right" if slope < 0 else "upper left")
            log_axis(axis)
            low, high = axis.get_ylim()
            axis.set_ylim(low, high * (1.5 if slope < 0 else 6))  # space for the legend
        axes[0, 0].set_xticks(flags.heads, [str(h) for h in flags.heads])
        axes[0, 0].minorticks_off()
        axes[0, 0].set_ylabel("$W_2$ between the flows at $T$")
        caption(
            figure,
            f"$n$ = {flags.n}, $d$ = {flags.d}, {flags.flow}, {flags.direction}, $T$ = "
            f"{flags.t_final:g}, {flags.paths} samples; bars: ± 2 standard errors",
        )
    return figure


def main() -> None:
    flags = study.command_line(StabilityWeights, __doc__)
    with study.session("stability_weights", flags) as session:
        x0 = flags.cloud()
        flags = session.flags = replace(  # the summary records them
            flags, n=x0.shape[0], d=x0.shape[1], heads=tuple(sorted(flags.heads)),
            eps=tuple(sorted(flags.eps)),
        )  # fmt: skip
        files = session.solve(tasks(flags, x0))
        table = collect(flags, files)
        fits = fit_all(table)
        session.finish(
            table, report(flags, table, fits), findings(fits),
            {"rates": rates_figure(flags, table, fits)},
        )  # fmt: skip


if __name__ == "__main__":
    script(main)
