"""Decay of G^2 with the number of heads at n = infinity, and with the same heads for n tokens.

Ornstein-Uhlenbeck heads fluctuate about the identity, as in the study ou_heads, and move the
density of infinitely many tokens, uniform at the start, on the circle and on the sphere. Two
methods solve its mean-field equation: characteristics, which are evenly spread tokens, and finite
volumes. Clouds of n random tokens under the same heads stand beside them. If the law G^2 ~ 1/H is
one of the heads alone, it holds in the limit, and for every n with the same exponent.

    python studies/decay_equation.py
    python studies/decay_equation.py --d 2 --heads 1 4 16

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, section 6.
"""

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from _mean_field import Meshed, Sizes, clouds, evenly_spread

import wflow
from wflow import SaveAt, fits, meanfield, study
from wflow._core.checks import count_steps, whole
from wflow.analysis.fits import mean_and_error
from wflow.cli import script
from wflow.heads import OrnsteinUhlenbeck
from wflow.plots.figure import PAGE, grid, legend_below, log_axis, shade, style, time_axis
from wflow.study import Finding, FloatArray

BAND = (-1.05, -0.90)  # of the interval; ou_heads asks that the exponent is within 0.1 of -1
PEARSON = -0.99
SAME = 0.05  # difference of exponents, with its interval, that counts as none
POINTS = 0.02  # the same between all characteristics and a quarter of them
CHANGE = 0.05  # relative change of G^2 between them that counts as none
FEW = 3.2  # standard errors of four paths that hold the mean in 95 %, by Student's t
CLOSE = 0.01  # relative distance of cells from the limit that need not get smaller
SOURCE = "[MHT] eq. 151, fig. 2"
QUESTION = "question of this study"
METHOD = "docs/theory/mean_field.md"
# Evenly spread tokens are a quadrature of the uniform density, which the flow carries along: the
# limit by characteristics. Cells are finite volumes of the mean-field equation.
LIMIT, FEWER, CELLS, FINER = "characteristics", "fewer characteristics", "cells", "finer cells"
RECORDS = 200  # times at which the budget is recorded


@dataclass(frozen=True, kw_only=True)
class DecayEquation(study.Flags):
    """Flags of this study."""

    durations: ClassVar = {"smoke": "seconds", "cpu": "about an hour", "paper": "many hours"}
    presets: ClassVar = {
        "smoke": {
            "heads": (1, 4), "n": (6, 12), "points": 40, "arcs": 16, "cells": 42, "paths": 2,
            "finer_paths": 2, "t_final": 0.2, "dt": 0.01,
        },
        "cpu": {},
        "paper": {
            "heads": (1, 2, 4, 8, 16, 32, 64), "n": (50, 200, 800), "points": 2000, "cells": 642,
            "paths": 32, "finer_paths": 8,
        },
    }  # fmt: skip
    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """Defaults of the flags below. The findings of smoke mean nothing."""
    d: Meshed = (2, 3)
    """Dimensions: 2 for the circle, 3 for the sphere."""
    heads: study.Compared[study.Count] = (1, 2, 4, 8, 16, 32)
    """Numbers of heads H."""
    n: Sizes = (20, 50, 200)
    """Numbers of random tokens beside the limit."""
    points: Annotated[int, study.Checked(partial(whole, least=16))] = 400
    """Characteristics, evenly spread tokens; a quarter of them shows their error."""
    arcs: int = 64
    """Cells of the circle."""
    cells: int = 162
    """Cells of the sphere: 12, 42, 162, 642, 2562 and so on."""
    paths: study.TwoOrMore = 16
    """Monte Carlo paths of the heads, the same for every cloud and mesh."""
    finer_paths: study.TwoOrMore = 4
    """How many of the paths are repeated on cells of half the width."""
    t_final: study.Positive = 20.0
    """End time T; averages are over its second half."""
    dt: study.Positive = 0.005
    rate: study.Positive = 1.0
    """Rate at which the heads return to their mean, the identity."""
    sigma2: study.Positive = 2.0
    """Variance sigma^2 of the noise of the heads per unit time."""
    out: study.Folder = Path("results/decay_equation")

    def check(self) -> None:
        super().check()
        whole(self.finer_paths, "--finer-paths", most=self.paths)


def mesh_of(flags: DecayEquation, d: int) -> meanfield.Mesh:
    return meanfield.Circle(flags.arcs) if d == 2 else meanfield.Sphere(flags.cells)


def clouds_of(flags: DecayEquation, d: int) -> dict[str, FloatArray]:
    """Return tokens of every such source: evenly spread (n, d), and random (path, n, d)."""
    spread = {LIMIT: flags.points, FEWER: flags.points // 4}
    drawn = {n: clouds(wflow.tokens.uniform, flags.seed, n, d, flags.paths) for n in flags.n}
    half = drawn[flags.n[-1]][:, : flags.n[-1] // 2]
    return (
        {name: evenly_spread(n, d) for name, n in spread.items()}
        | {f"n = {n}": x for n, x in drawn.items()}
        | {even(flags): np.concatenate((half, -half), axis=1)}
    )


def even(flags: DecayEquation) -> str:
    """Name of the source with the largest n, in antipodal pairs.

    The uniform density is even and stays even, since exp<x, D y> does not change when x and y
    change sign.
    """
    return f"n = {flags.n[-1] // 2 * 2} in antipodal pairs"


def sources_of(flags: DecayEquation) -> list[str]:
    """Return the sources that move under the heads, the limit first."""
    return [LIMIT, FEWER, CELLS, FINER, *(f"n = {n}" for n in flags.n), even(flags)]


def run_name(d: int, source: str, heads: int) -> str:
    return f"d{d}_{source.replace(' = ', '').replace(' ', '_')}_H{heads:05d}"


def tasks(flags: DecayEquation) -> dict[str, dict[str, Any]]:
    """Return all runs: name -> arguments of `wflow.solve` or `wflow.meanfield.solve`."""
    every = max(1, count_steps(flags.t_final, flags.dt) // RECORDS)
    found: dict[str, dict[str, Any]] = {}
    for d in flags.d:
        cells = mesh_of(flags, d)
        meshes = {CELLS: cells, FINER: cells.refined()}
        starts = {name: {"x0": x0} for name, x0 in clouds_of(flags, d).items()} | {
            name: {"density": np.ones(mesh.cells), "mesh": mesh} for name, mesh in meshes.items()
        }
        common = {
            # The transition of the heads is exact, so that steps of any length see the same law.
            "law": OrnsteinUhlenbeck(np.eye(d), rate=flags.rate, sigma2=flags.sigma2, exact=True),
            "t_final": flags.t_final, "dt": flags.dt, "seed": flags.seed,
            "save": SaveAt(every=every, snapshots=(flags.t_final,)),
        }  # fmt: skip
        for source in sources_of(flags):
            paths = flags.finer_paths if source == FINER else flags.paths
            for heads in flags.heads:
                found[run_name(d, source, heads)] = common | starts[source] | {
                    "heads": heads, "paths": paths,
                }  # fmt: skip
    return found


def collect(flags: DecayEquation, files: dict[str, Path]) -> "study.Dataset":
    """Return G^2 averaged over t >= T/2, and the balance's residual; NaN for missing paths."""

    def measure(d: int, source: str, heads: int) -> dict[str, FloatArray]:
        values = {name: np.full(flags.paths, np.nan) for name in ("gradient", "residual")}
        with wflow.open(files[run_name(d, source, heads)]) as run:
            late = run["time"].values >= flags.t_final / 2
            count = run.sizes["path"]
            values["gradient"][:count] = run["upper_gradient_sq"].values[:, late].mean(axis=1)
            values["residual"][:count] = run["edi_residual"].values[:, -1]
        return values

    each = ("path",)
    return study.tabulate(
        {
            "d": (flags.d, "dimension d"),
            "source": (sources_of(flags), "what moves under the heads"),
            "heads": (flags.heads, "number of heads H"),
        },
        measure,
        {
            "gradient": (each, "squared upper gradient G^2, average over t >= T/2"),
            "residual": (each, "residual of the energy balance at T"),
        },
        {"path": (np.arange(flags.paths), "Monte Carlo path")},
        "G^2",
    )


def gradients(table: "study.Dataset", d: int, *sources: str) -> list[FloatArray]:
    """Return G^2 (heads, path) of each source, over the paths that all of them have."""
    found = [table["gradient"].sel(d=d, source=source).values for source in sources]
    shared = np.all([np.isfinite(values).all(axis=0) for values in found], axis=0)
    return [values[:, shared] for values in found]


def fit(table: "study.Dataset", d: int, source: str) -> fits.PowerLaw:
    """Fit a H^b to the G^2 of a source."""
    (values,) = gradients(table, d, source)
    return fits.power_law(table["heads"].values, values)


def ratio_fit(table: "study.Dataset", d: int, source: str, first: int = 0) -> fits.PowerLaw:
    """Fit a H^b to the ratio of G^2 of a source to that of the limit, path by path."""
    values, limit = gradients(table, d, source, LIMIT)
    return fits.power_law(table["heads"].values[first:], (values / limit)[first:])


def gap(table: "study.Dataset", d: int, source: str) -> tuple[float, float]:
    """Return the mean of G^2/G^2 of the limit - 1 over heads and paths, and its standard error."""
    values, limit = gradients(table, d, source, LIMIT)
    mean, error = mean_and_error((values / limit - 1).mean(axis=0))
    return float(mean), float(error)


def off_by_cells(table: "study.Dataset", d: int) -> tuple[FloatArray, FloatArray]:
    """Return by how much cells miss the G^2 of the limit, (heads, path): wide, narrow."""
    wide, narrow, limit = gradients(table, d, CELLS, FINER, LIMIT)
    return abs(wide / limit - 1), abs(narrow / limit - 1)


def findings(flags: DecayEquation, table: "study.Dataset") -> list[Finding]:
    """Return every claim with its verdict."""
    laws = {f"d = {d}:": fit(table, d, LIMIT) for d in flags.d}
    clouds = [f"n = {n}" for n in flags.n]
    low, high = BAND
    decays = Finding.slope(
        f"at n = infinity G^2 falls like 1/H: interval of the exponent within [{low:g}, {high:g}]",
        SOURCE, laws, (low + high) / 2, (high - low) / 2, whole=True,
    )  # fmt: skip
    straight = Finding.decided(
        f"at n = infinity log G^2 is linear in log H: Pearson at most {PEARSON:g}", SOURCE,
        "; ".join(f"{name} {law.pearson:.5f}" for name, law in laws.items()),
        [law.pearson <= PEARSON for law in laws.values()],
    )  # fmt: skip
    ratios = {f"d = {d}, {source}:": ratio_fit(table, d, source) for d in flags.d
              for source in clouds}  # fmt: skip
    alone = Finding.slope(
        "the decay of G^2 in H is one of the heads alone: under the same heads n tokens have the "
        f"exponent of the limit, the interval of the difference within {SAME:g}", QUESTION,
        ratios, 0.0, SAME, whole=True, note=" of the ratio of both in H",
    )  # fmt: skip
    gaps = {d: [gap(table, d, source) for source in clouds] for d in flags.d}
    steps = np.array([
        (abs(earlier[0]) - abs(later[0]), 2 * math.hypot(earlier[1], later[1]))
        for row in gaps.values()
        for earlier, later in pairwise(row)
    ])  # fmt: skip
    vanishes = Finding.decided(
        "what finitely many tokens add to G^2 gets smaller from each n to the next, by more than "
        "two standard errors", QUESTION,
        "; ".join(
            f"d = {d}: " + ", ".join(
                f"{100 * mean:.2g} ± {100 * error:.1g} % for {source}"
                for source, (mean, error) in zip(clouds, gaps[d], strict=True)
            )
            for d in flags.d
        ),
        steps[:, 0] > steps[:, 1], known=np.abs(steps[:, 0]) > steps[:, 1],
    )  # fmt: skip
    methods = [of_points(flags, table, laws), of_cells(flags, table)]
    return [decays, straight, alone, vanishes, of_symmetry(flags, table), *methods]


def of_symmetry(flags: DecayEquation, table: "study.Dataset") -> Finding:
    """Decide whether tokens in antipodal pairs are nearer to the limit, for the fewest heads."""
    text, gain = [], []
    for d in flags.d:
        drawn, paired, limit = (
            values[0] for values in gradients(table, d, f"n = {flags.n[-1]}", even(flags), LIMIT)
        )
        gain.append(fits.mean_and_error(abs(drawn / limit - 1) - abs(paired / limit - 1)))
        off = [study.mean_text(100 * (values / limit - 1)) for values in (drawn, paired)]
        text.append(f"d = {d}: {off[0]} % for n = {flags.n[-1]}, {off[1]} % in antipodal pairs")
    mean, error = np.array(gain).T
    return Finding.decided(
        "in antipodal pairs, which keep the symmetry of the limit, random tokens are nearer to its "
        f"G^2 for H = {flags.heads[0]}, by more than two standard errors", QUESTION,
        "; ".join(text), mean > 0, known=abs(mean) > 2 * error,
    )  # fmt: skip


def of_points(
    flags: DecayEquation, table: "study.Dataset", laws: dict[str, fits.PowerLaw]
) -> Finding:
    """Decide whether there are enough characteristics for the exponents."""
    text, low, high = [], [], []
    for (name, law), d in zip(laws.items(), flags.d, strict=True):
        shift = ratio_fit(table, d, FEWER)
        fewer, all_ = gradients(table, d, FEWER, LIMIT)
        change = float(abs(fewer / all_ - 1).max())
        text.append(
            f"{name} exponent by {study.slope_text(shift)}, its own interval is "
            f"{law.exponent_ci[0]:.3f} to {law.exponent_ci[1]:.3f}; G^2 by at most "
            f"{100 * change:.2g} %"
        )
        low += [shift.exponent_ci[0] / POINTS, change / CHANGE]
        high += [shift.exponent_ci[1] / POINTS, change / CHANGE]
    return Finding.within(
        f"the characteristics are enough: under the same heads a quarter of them changes the "
        f"exponent by at most {POINTS:g} and G^2 by at most {100 * CHANGE:g} %", METHOD,
        "; ".join(text), low, high, 1.0,
    )  # fmt: skip


def of_cells(flags: DecayEquation, table: "study.Dataset") -> Finding:
    """Decide whether finite volumes approach the characteristics as their cells get smaller."""
    text, nearer, known = [], [], []
    for d in flags.d:
        wide, narrow = off_by_cells(table, d)
        gain, error = fits.mean_and_error(wide - narrow)
        near = (narrow < CLOSE).all(axis=1)
        nearer += [*(near | (gain > 0))]
        known += [*(near | (abs(gain) > FEW * error))]
        text.append(
            f"d = {d}: off by up to {100 * wide.max():.2g} %, on cells of half the width by up to "
            f"{100 * narrow.max():.2g} %"
        )
    return Finding.decided(
        f"the G^2 of finite volumes is nearer to that of the characteristics on cells of half the "
        f"width, or within {100 * CLOSE:g} % of it, for every H", METHOD, "; ".join(text), nearer,
        known=known,
    )  # fmt: skip


# Tables and figures
# ------------------


def report(flags: DecayEquation, table: "study.Dataset") -> str:
    """Return G^2 of every source and number of heads, and the exponents."""
    parts = []
    for d in flags.d:
        cells = mesh_of(flags, d)
        columns = {"H": [str(heads) for heads in flags.heads]}
        for source in table["source"].values:
            values, limit = gradients(table, d, source, LIMIT)
            if source == FINER:  # of fewer paths, whose mean is another one
                columns[f"{source}, over {LIMIT}"] = [
                    study.mean_text(row) for row in values / limit
                ]
            else:
                columns[source] = [study.mean_text(row) for row in values]
        residual = table["residual"].sel(d=d, source=LIMIT).values
        columns["residual of the balance"] = [study.mean_text(row) for row in residual]
        laws = {
            source: fit(table, d, source) for source in table["source"].values if source != FINER
        }
        exponents = {
            "": list(laws),
            "exponent": [study.slope_text(law) for law in laws.values()],
            "Pearson": [f"{law.pearson:.5f}" for law in laws.values()],
        }
        if len(flags.heads) > 2:
            exponents[f"of the ratio to the limit, H >= {flags.heads[1]}"] = [
                "" if source == LIMIT else study.slope_text(ratio_fit(table, d, source, 1))
                for source in laws
            ]
        parts += [
            f"d = {d}, {flags.points} and {flags.points // 4} characteristics, {cells!r} and "
            f"{cells.refined()!r}, sigma^2 = {flags.sigma2:g}, T = {flags.t_final:g}, dt = "
            f"{flags.dt:g}: G^2 averaged over t >= T/2, mean and standard error over {flags.paths} "
            f"paths of the heads ({flags.finer_paths} for finer cells), which all columns share:",
            study.markdown_table(columns),
            study.markdown_table(exponents),
        ]
    return "\n\n".join(parts)


def decay_figure(flags: DecayEquation, table: "study.Dataset") -> "study.Figure":
    """Draw G^2 against H, a panel for each dimension."""
    from matplotlib.ticker import NullLocator

    heads = np.array(flags.heads, dtype=float)
    others = [*sources_of(flags)[4:], CELLS, FINER]
    with style():
        figure, axes = grid(1, len(flags.d), PAGE, 3.2)
        for axis, d in zip(axes.flat, flags.d, strict=True):
            law = fit(table, d, LIMIT)
            (values,) = gradients(table, d, LIMIT)
            mean, error = mean_and_error(values)
            axis.plot(heads, law(heads), color="black", linewidth=0.9)
            low, high = law.exponent_ci
            axis.errorbar(
                heads, mean, yerr=error, color="black", marker="o", linestyle="none", markersize=4,
                label=rf"$n = \infty$: $H^{{{law.exponent:.3f}}}$ ({low:.3f} to {high:.3f})",
            )  # fmt: skip
            for place, source in enumerate(others):
                values, limit = gradients(table, d, source, LIMIT)
                power = f": $H^{{{fit(table, d, source).exponent:.3f}}}$" if source != FINER else ""
                scaled = mean * values.mean(axis=1) / limit.mean(axis=1)  # as of all paths
                axis.plot(
                    heads, scaled, "sD^v<>P*"[place % 8], linestyle="none",
                    markerfacecolor="none", markersize=6,
                    color=shade(place, len(others)),
                    label=f"{source.replace('n =', '$n$ =')}{power}",
                )  # fmt: skip
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            log_axis(axis)
            axis.set_xticks(heads, [str(count) for count in flags.heads])
            axis.xaxis.set_minor_locator(NullLocator())
            axis.set(xlabel="Number of heads $H$", ylabel="$G^2$, average over $t \\geq T/2$")
            axis.set_title(f"{'Circle' if d == 2 else 'Sphere'}, $d$ = {d}")
            axis.legend(loc="lower left", fontsize=7)
    return figure


def series_figure(flags: DecayEquation, files: dict[str, Path]) -> "study.Figure":
    """Draw H G^2 over time in the limit: one curve for all H, if the law is 1/H at every time."""

    with style():
        figure, axes = grid(1, len(flags.d), PAGE, 2.9)
        for axis, d in zip(axes.flat, flags.d, strict=True):
            for place, heads in enumerate(flags.heads):
                with wflow.open(files[run_name(d, LIMIT, heads)]) as run:
                    mean = heads * run["upper_gradient_sq"].values.mean(axis=0)
                    axis.plot(
                        run["time"].values, mean, linewidth=0.9, label=f"$H$ = {heads}",
                        color=shade(place, len(flags.heads)),
                    )  # fmt: skip
            axis.set_yscale("log")
            time_axis(axis)
            axis.set_ylabel(f"$H\\,G^2$, mean of {flags.paths} paths")
            axis.set_title(f"{'Circle' if d == 2 else 'Sphere'}, $n = \\infty$")
        legend_below(figure, axes[0, 0], len(flags.heads))
    return figure


def main() -> None:
    flags = study.command_line(DecayEquation, __doc__)
    with study.session("decay_equation", flags) as session:
        files = session.solve(tasks(flags))
        table = collect(flags, files)
        session.finish(
            table, report(flags, table), findings(flags, table),
            {"decay": decay_figure(flags, table), "series": series_figure(flags, files)},
        )  # fmt: skip


if __name__ == "__main__":
    script(main)
