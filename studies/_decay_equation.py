"""Runs, table, fits and figures of the study `decay_equation`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _mean_field import clouds, evenly_spread
from numpy.typing import NDArray

import wflow
from wflow import SaveAt, fits, meanfield, study
from wflow._core.checks import count_steps
from wflow.analysis.fits import mean_and_error
from wflow.heads import OrnsteinUhlenbeck
from wflow.plots.figure import PAGE, grid, log_axis, style, time_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

FloatArray = NDArray[np.float64]
# Evenly spread tokens are a quadrature of the uniform density, which the flow carries along: the
# limit by characteristics. Cells are finite volumes of the mean-field equation.
LIMIT, FEWER, CELLS, FINER = "characteristics", "fewer characteristics", "cells", "finer cells"
RECORDS = 200  # times at which the budget is recorded


def mesh_of(flags: Any, d: int) -> meanfield.Mesh:
    return meanfield.Circle(flags.arcs) if d == 2 else meanfield.Sphere(flags.cells)


def clouds_of(flags: Any, d: int) -> dict[str, FloatArray]:
    """Tokens of every source that has them: evenly spread (n, d), and random (path, n, d)."""
    spread = {LIMIT: flags.points, FEWER: flags.points // 4}
    drawn = {n: clouds(wflow.tokens.uniform, flags.seed, n, d, flags.paths) for n in flags.n}
    half = drawn[flags.n[-1]][:, : flags.n[-1] // 2]
    return (
        {name: evenly_spread(n, d) for name, n in spread.items()}
        | {f"n = {n}": x for n, x in drawn.items()}
        | {even(flags): np.concatenate((half, -half), axis=1)}
    )


def even(flags: Any) -> str:
    """Name of the source with the largest n, in antipodal pairs.

    The uniform density is even and stays even, since exp<x, D y> does not change when x and y
    change sign.
    """
    return f"n = {flags.n[-1] // 2 * 2} in antipodal pairs"


def sources_of(flags: Any) -> list[str]:
    """What moves under the heads, the limit first."""
    return [LIMIT, FEWER, CELLS, FINER, *(f"n = {n}" for n in flags.n), even(flags)]


def run_name(d: int, source: str, heads: int) -> str:
    return f"d{d}_{source.replace(' = ', '').replace(' ', '_')}_H{heads:05d}"


def tasks(flags: Any) -> dict[str, dict[str, Any]]:
    """All runs: name -> arguments of `wflow.solve` or `wflow.meanfield.solve`."""
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


def collect(flags: Any, files: dict[str, Path], advance: Callable[[int], None]) -> "Dataset":
    """G^2 averaged over t >= T/2, and the residual of the balance; NaN for paths not computed."""

    def measure(d: int, source: str, heads: int) -> dict[str, FloatArray]:
        values = {name: np.full(flags.paths, np.nan) for name in ("gradient", "residual")}
        with wflow.open(files[run_name(d, source, heads)]) as run:
            late = run["time"].values >= flags.t_final / 2
            count = run.sizes["path"]
            values["gradient"][:count] = run["upper_gradient_sq"].values[:, late].mean(axis=1)
            values["residual"][:count] = run["edi_residual"].values[:, -1]
        return values

    each = ("path",)
    return study.sweep(
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
        advance,
    )


def gradients(table: "Dataset", d: int, *sources: str) -> list[FloatArray]:
    """G^2 (heads, path) of each source, over the paths that all of them have."""
    found = [
        table["gradient"].sel(d=d, source=source).transpose("heads", "path").values
        for source in sources
    ]
    shared = np.all([np.isfinite(values).all(axis=0) for values in found], axis=0)
    return [values[:, shared] for values in found]


def fit(table: "Dataset", d: int, source: str) -> fits.PowerLaw:
    """a H^b of the G^2 of a source."""
    (values,) = gradients(table, d, source)
    return fits.power_law(table["heads"].values, values)


def ratio_fit(table: "Dataset", d: int, source: str, first: int = 0) -> fits.PowerLaw:
    """a H^b of the ratio of G^2 of a source to that of the limit, path by path, of H from first."""
    values, limit = gradients(table, d, source, LIMIT)
    return fits.power_law(table["heads"].values[first:], (values / limit)[first:])


def gap(table: "Dataset", d: int, source: str) -> tuple[float, float]:
    """Mean of G^2/G^2 of the limit - 1 over heads and paths, and its error over the paths."""
    values, limit = gradients(table, d, source, LIMIT)
    mean, error = mean_and_error((values / limit - 1).mean(axis=0))
    return float(mean), float(error)


def off_by_cells(table: "Dataset", d: int) -> tuple[FloatArray, FloatArray]:
    """By how much cells miss the G^2 of the limit, relative to it, (heads, path): wide, narrow."""
    wide, narrow, limit = gradients(table, d, CELLS, FINER, LIMIT)
    return abs(wide / limit - 1), abs(narrow / limit - 1)


def report(flags: Any, table: "Dataset") -> str:
    """G^2 of every source and number of heads, and the exponents."""
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
        residual = table["residual"].sel(d=d, source=LIMIT).transpose("heads", "path").values
        columns["residual of the balance"] = [study.mean_text(row, ".2g") for row in residual]
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


def decay_figure(flags: Any, table: "Dataset") -> "Figure":
    """G^2 against H, a panel for each dimension."""
    from matplotlib import colormaps
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
                    color=colormaps["viridis"](0.84 * place / (len(others) - 1)),
                    label=f"{source.replace('n =', '$n$ =')}{power}",
                )  # fmt: skip
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            log_axis(axis)
            axis.set_xticks(heads, [str(count) for count in flags.heads])
            axis.xaxis.set_minor_locator(NullLocator())
            axis.set_xlabel("Number of heads $H$")
            axis.set_ylabel("$G^2$, average over $t \\geq T/2$")
            axis.set_title(f"{'Circle' if d == 2 else 'Sphere'}, $d$ = {d}")
            axis.legend(loc="lower left", fontsize=7)
    return figure


def series_figure(flags: Any, files: dict[str, Path]) -> "Figure":
    """H G^2 over time in the limit: one curve for all H, if the law is 1/H at every time."""
    from matplotlib import colormaps

    with style():
        figure, axes = grid(1, len(flags.d), PAGE, 2.9)
        for axis, d in zip(axes.flat, flags.d, strict=True):
            for place, heads in enumerate(flags.heads):
                with wflow.open(files[run_name(d, LIMIT, heads)]) as run:
                    mean = heads * run["upper_gradient_sq"].values.mean(axis=0)
                    axis.plot(
                        run["time"].values, mean, linewidth=0.9, label=f"$H$ = {heads}",
                        color=colormaps["viridis"](0.9 * place / max(len(flags.heads) - 1, 1)),
                    )  # fmt: skip
            axis.set_yscale("log")
            time_axis(axis)
            axis.set_ylabel(f"$H\\,G^2$, mean of {flags.paths} paths")
            axis.set_title(f"{'Circle' if d == 2 else 'Sphere'}, $n = \\infty$")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(flags.heads))
    return figure
