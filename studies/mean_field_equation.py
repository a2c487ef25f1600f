"""Particles against the mean-field equation: energy, budget, moments and W_2, with rates in n.

Tokens are drawn from a density, and n of them move under the same oscillating heads as the density
itself, which the mean-field equation moves. Energy, terms of the budget and moments at the end
deviate from the equation like n^(-1/2), the distance W_2 at the rate of independent samples. The
equation is solved on two meshes, whose difference is its error.

    python studies/mean_field_equation.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, section 5: Theorem 5.1
bounds W_2 at the end by W_2 at the start. The rate of the others is that of the central limit
theorem (docs/theory/transport.md).
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from _mean_field import Meshed, Sizes, clouds

import wflow
from wflow import InputError, SaveAt, fits, meanfield, study, transport
from wflow.analysis.fits import mean_and_error
from wflow.cli import script
from wflow.heads import Oscillating
from wflow.plots.figure import PAGE, grid, legend_below, log_log, style, time_axis
from wflow.study import Direction, Finding, FloatArray, FlowName

MARGIN = 0.1  # of a slope: the root mean square of a few draws is itself random
CLOSES = 0.01  # residual of the energy balance over what was dissipated
# Theorem 5.1 bounds W_2 at T by that at 0, which is that of independent samples.
SOURCE_OF_W2 = "[MHT] Thm 5.1 (upper bound), docs/theory/transport.md"
SOURCE_OF_MOMENTS = "central limit theorem and propagation of chaos, docs/theory/transport.md"
RATES = {2: "$n^{-1/2}$", 3: r"$(\log n / n)^{1/2}$"}
CONCENTRATION = 2.0  # of the initial density
MESHES = ("equation", "coarse")
ORDERS = {2: 2.0, 3: 1.5}  # of the equation in the width of the cells, at least
QUANTITIES = {
    "energy": "energy $E$",
    "dissipation": "dissipation",
    "weight_power": "power of the heads",
    "mean": "first moment",
    "second_moment": "second moment",
}
SERIES = ("energy", "dissipation", "weight_power")


@dataclass(frozen=True, kw_only=True)
class MeanFieldEquation(study.Flags):
    """Flags of this study."""

    durations: ClassVar = {"smoke": "seconds", "cpu": "about half an hour", "paper": "many hours"}
    presets: ClassVar = {
        "smoke": {
            "n": (8, 16, 32), "w2_circle": 16, "w2_sphere": 32, "arcs": 32, "cells": 42,
            "heads": 2, "paths": 2, "t_final": 0.2,
        },
        "cpu": {},
        "paper": {
            "w2_circle": 1000000, "w2_sphere": 3000, "arcs": 8192, "cells": 40962, "paths": 32,
        },
    }  # fmt: skip
    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """Defaults of the flags below. The findings of smoke mean nothing."""
    d: Meshed = (2, 3)
    """Dimensions: 2 for the circle, 3 for the sphere."""
    n: Sizes = (100, 300, 1000, 3000, 10000, 100000, 1000000)
    """Numbers of tokens n."""
    w2_circle: int = 10000
    """Largest n whose W_2 is measured on the circle."""
    w2_sphere: int = 1000
    """Largest n whose W_2 is measured on the sphere."""
    arcs: int = 2048
    """Cells of the coarse mesh of the circle; the other has twice as many."""
    cells: int = 10242
    """Cells of the coarse mesh of the sphere: 12, 42, 162 and so on; the other has four times as
    many."""
    heads: study.Count = 4
    """Number of heads H."""
    flow: FlowName = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    direction: Direction = "descent"
    """Whether the tokens move down or up the energy."""
    paths: study.TwoOrMore = 8
    """Independent draws of the tokens for each n."""
    t_final: study.Positive = 1.0
    dt: study.Positive = 0.05
    """Time step of the tokens, rk4; the equation chooses its own."""
    out: study.Folder = Path("results/mean_field_equation")

    def check(self) -> None:
        super().check()
        for name in ("w2_circle", "w2_sphere"):
            if (most := getattr(self, name)) < self.n[1]:
                raise InputError(
                    f"--{name.replace('_', '-')} is {most}: expected at least the second of --n, "
                    f"{self.n[1]}, as a rate needs two"
                )


def bump(x: FloatArray) -> FloatArray:
    """Return the initial density, of von Mises and Fisher, up to a factor."""
    return np.asarray(np.exp(CONCENTRATION * x[:, 0]))


def draw(n: int, d: int, *, seed: int) -> FloatArray:
    """Return independent tokens (n, d) of the initial density; d is 2 or 3."""
    rng = np.random.Generator(np.random.Philox(seed))
    if d == 2:
        angles = rng.vonmises(0.0, CONCENTRATION, n)
        return np.column_stack((np.cos(angles), np.sin(angles)))
    u = rng.random(n)
    # The first coordinate has the density exp(c z) on [-1, 1].
    z = 1 + np.log(u + (1 - u) * math.exp(-2 * CONCENTRATION)) / CONCENTRATION
    turns, r = 2 * math.pi * rng.random(n), np.sqrt(np.maximum(0.0, 1 - z * z))
    return np.column_stack((z, r * np.cos(turns), r * np.sin(turns)))


def meshes(flags: MeanFieldEquation, d: int) -> dict[str, meanfield.Mesh]:
    """Return the mesh of the equation and one of cells of twice the width, for its error."""
    coarse = meanfield.Circle(flags.arcs) if d == 2 else meanfield.Sphere(flags.cells)
    return {"coarse": coarse, "equation": coarse.refined()}


def w2_up_to(flags: MeanFieldEquation, d: int) -> int:
    """Return the largest n whose W_2 is measured."""
    return int(flags.w2_circle if d == 2 else flags.w2_sphere)


def run_name(d: int, n: int | str) -> str:
    return f"d{d}_n{n:07d}" if isinstance(n, int) else f"d{d}_{n}"


def tasks(flags: MeanFieldEquation) -> dict[str, dict[str, Any]]:
    """Return all runs: name -> arguments of `wflow.solve` or `wflow.meanfield.solve`."""
    found: dict[str, dict[str, Any]] = {}
    for d in flags.d:
        common = {
            "law": Oscillating(d), "heads": flags.heads, "t_final": flags.t_final,
            "seed": flags.seed, "flow": flags.flow, "direction": flags.direction,
        }  # fmt: skip
        for n in flags.n:
            found[run_name(d, n)] = common | {
                "x0": clouds(draw, flags.seed, n, d, flags.paths), "dt": flags.dt, "scheme": "rk4",
                "paths": flags.paths,
                "save": SaveAt(snapshots=(flags.t_final,), paths=range(flags.paths)),
            }  # fmt: skip
        for name, mesh in meshes(flags, d).items():
            save = SaveAt(snapshots=np.linspace(0, flags.t_final, 5).tolist())
            found[run_name(d, name)] = common | {"density": bump, "mesh": mesh, "save": save}
    return found


def at_end(run: "study.Dataset") -> dict[str, FloatArray]:
    """Return quantities at T, each (paths, components), of tokens or densities."""
    found = {name: run[name].isel(time=-1).values[:, None] for name in SERIES}
    means, squares = [], []
    for place in range(run.sizes["snapshot_path"]):  # one cloud in memory at a time
        if "density" in run:
            x = run["centres"].values
            masses = run["density"].values[place, -1] * run["areas"].values
        else:
            x = run["tokens"].isel(snapshot_path=place, snapshot=-1).values
            masses = np.full(len(x), 1 / len(x))
        means.append(masses @ x)
        squares.append(((x * masses[:, None]).T @ x).ravel())
    return found | {"mean": np.array(means), "second_moment": np.array(squares)}


def collect(flags: MeanFieldEquation, files: dict[str, Path]) -> "study.Dataset":
    """Return squared deviations from the equation, W_2 to it, and the error of the equation."""
    limits = {}
    for d in flags.d:
        for name in MESHES:
            with wflow.open(files[run_name(d, name)]) as run:
                limits[d, name] = at_end(run)

    def measure(d: int, n: int) -> dict[str, Any]:
        limit = limits[d, "equation"]
        with wflow.open(files[run_name(d, n)]) as run:
            ends = at_end(run)
            found: dict[str, Any] = {
                f"{name}_sq": np.sum((ends[name] - limit[name]) ** 2, axis=1) for name in QUANTITIES
            }
            found["residual"] = np.abs(run["edi_residual"].values).max(axis=1)
            found["w2"] = found["w2_lower"] = np.full(flags.paths, np.nan)
            if n <= w2_up_to(flags, d):
                found["w2"], found["w2_lower"] = distances(flags, files, d, run)
        return found

    def error(d: int) -> dict[str, Any]:
        fine, coarse = (limits[d, name] for name in MESHES)
        found: dict[str, Any] = {
            f"{name}_error": np.linalg.norm(fine[name] - coarse[name]) / (2 ** ORDERS[d] - 1)
            for name in QUANTITIES
        }
        with wflow.open(files[run_name(d, "equation")]) as run:
            found["limit_residual"] = np.abs(run["edi_residual"].values).max()
            found["dissipated"] = run["dissipated"].values[0, -1]
        with wflow.open(files[run_name(d, measured_on(d))]) as run:
            found["w2_cells"] = quantisation(run)
        return found

    dims = {"d": (flags.d, "dimension d")}
    texts = {f"{name}_sq": f"squared deviation of the {text} at T"
             for name, text in QUANTITIES.items()}  # fmt: skip
    texts["residual"] = "largest residual of the energy balance in size"
    texts["w2"] = "W_2 between tokens and equation at T, or an upper bound"
    texts["w2_lower"] = "lower bound of that, equal to it where it is exact"
    table = study.tabulate(
        dims | {"n": (flags.n, "number of tokens n")},
        measure,
        {name: (("path",), text) for name, text in texts.items()},
        {"path": (np.arange(flags.paths), "draw of the tokens")},
        "deviations",
    )
    errors = {f"{name}_error": f"error of the {text} of the equation by its cells, estimated"
              for name, text in QUANTITIES.items()}  # fmt: skip
    errors["limit_residual"] = "largest residual of the energy balance of the equation"
    errors["w2_cells"] = "W_2 between the equation and the masses at the centres of its cells"
    errors["dissipated"] = "energy that the equation dissipates up to T"
    return table.merge(study.tabulate(dims, error, errors))


def measured_on(d: int) -> str:
    """Return the run of the equation to which W_2 is measured; on the sphere, on coarse cells."""
    return "equation" if d == 2 else "coarse"


def distances(
    flags: MeanFieldEquation, files: dict[str, Path], d: int, run: "study.Dataset"
) -> tuple[FloatArray, FloatArray]:
    """Return W_2 between the tokens of every path and the equation at T, and its lower bound."""
    mesh = meshes(flags, d)[measured_on(d)]
    with wflow.open(files[run_name(d, measured_on(d))]) as limit:
        density = limit["density"].values[0, -1]
    found = [
        transport.density_distance(density, tokens, mesh)
        for tokens in run["tokens"].isel(snapshot=-1).values
    ]
    return np.array([w2.value for w2 in found]), np.array([w2.lower for w2 in found])


def quantisation(run: "study.Dataset") -> float:
    """Return W_2 between a density that is constant on its cells and its masses at their centres.

    The mean square distance to the centre is a^2/12 on an arc, and 5 a/(18 sqrt 3) on a regular
    hexagon of area a, as most cells of the sphere nearly are.
    """
    areas = run["areas"].values
    masses = run["density"].values[0, -1] * areas
    square = areas**2 / 12 if run.sizes["axis"] == 2 else 5 * areas / (18 * math.sqrt(3))
    return math.sqrt(masses @ square / masses.sum())


def fit(table: "study.Dataset", d: int, name: str) -> fits.PowerLaw | None:
    """Fit a n^b to a mean squared deviation, or to W_2, over the n that resolve it.

    Where the deviation is less than three times the error of the equation, it says nothing.
    """
    part = table.sel(d=d)
    n = table["n"].values
    if name == "w2":
        values = part["w2"].values
        kept = np.isfinite(values).all(axis=1)
        return fits.power_law(n[kept], values[kept])
    values = part[f"{name}_sq"].values
    kept = np.sqrt(values.mean(axis=1)) > 3 * float(part[f"{name}_error"])
    return fits.power_law(n[kept], values[kept]) if kept.sum() > 1 else None


def findings(flags: MeanFieldEquation, table: "study.Dataset") -> list[Finding]:
    """Return every claim with its verdict."""
    found = [
        Finding.slope(
            f"the {text} of $n$ tokens deviates from that of the equation like $n^{{-1/2}}$: the "
            f"slope is -0.5 within {MARGIN:g}",
            SOURCE_OF_MOMENTS,
            {f"$d = {d}$:": fit(table, d, name) for d in flags.d}, -0.5, MARGIN, root=True,
        ).of_theorem()
        for name, text in QUANTITIES.items()
    ]  # fmt: skip
    laws = {f"$d = {d}$:": fit(table, d, "w2") for d in flags.d}
    known = {}
    for name, d in zip(laws, flags.d, strict=True):
        n = np.array([n for n in flags.n if n <= w2_up_to(flags, d)], dtype=float)
        rate = n**-0.5 if d == 2 else np.sqrt(np.log(n) / n)
        known[name] = float(np.polyfit(np.log(n), np.log(rate), 1)[0])
    found.append(Finding.slope(
        "$W_2$ between $n$ tokens and the equation falls like that of independent samples, like "
        f"{RATES[2]} on the circle and {RATES[3]} on the sphere: the slopes agree within "
        f"{MARGIN:g}",
        SOURCE_OF_W2, laws, known, MARGIN,
        note="; known " + ", ".join(f"{slope:.3f}" for slope in known.values()),
    ).of_theorem())  # fmt: skip
    residual = table["residual"].max(("n", "path")).values
    limit = table["limit_residual"].values
    found.append(Finding.decided(
        "the balance of the energy closes, for n tokens and for the equation: to "
        f"{100 * CLOSES:g} % of what is dissipated", "chain rule, docs/theory/energy.md",
        "; ".join(
            f"$d = {d}$: largest residual {of_tokens:.1e} and {of_equation:.1e} of "
            f"{dissipated:.2g}"
            for d, of_tokens, of_equation, dissipated in zip(
                flags.d, residual, limit, table["dissipated"].values, strict=True
            )
        ), np.maximum(residual, limit) < CLOSES * table["dissipated"].values,
        known=np.isfinite(residual + limit),
    ).of_theorem())  # fmt: skip
    return found


# Tables and figures
# ------------------


def report(flags: MeanFieldEquation, table: "study.Dataset") -> str:
    """Return deviations of every n, the error of the equation, W_2 and slopes, by dimension."""
    parts = []
    for d in flags.d:
        part = table.sel(d=d)
        columns: dict[str, list[str]] = {
            "n": [str(n) for n in flags.n]
            + ["error of the equation", "masses at the centres of the cells", "slope"]
        }
        for name, text in QUANTITIES.items():
            mean = np.sqrt(part[f"{name}_sq"].values.mean(axis=1))
            law = fit(table, d, name)
            columns[text] = [f"{value:.2e}" for value in (*mean, float(part[f"{name}_error"]))] + [
                "", study.slope_text(law, ".2f", root=True)
            ]  # fmt: skip
        w2 = part["w2"].values
        lower = part["w2_lower"].values
        columns["W_2"] = [
            ""
            if np.isnan(row).any()
            else study.mean_text(row)
            + ("" if np.array_equal(row, least) else f", at least {least.mean():.3g}")
            for row, least in zip(w2, lower, strict=True)
        ] + ["", f"{float(part['w2_cells']):.3g}", study.slope_text(fit(table, d, "w2"), ".2f")]
        residual = part["residual"].values.max(axis=1)
        columns["residual"] = [
            f"{value:.1e}" for value in (*residual, float(part["limit_residual"]))
        ] + ["", ""]
        mesh = meshes(flags, d)["equation"]
        parts += [
            f"d = {d}, {mesh}, H = {flags.heads} oscillating heads, {flags.flow}, "
            f"{flags.direction}, T = {flags.t_final:g}: root mean square deviation of n tokens "
            f"from the equation at T over {flags.paths} draws, W_2, and the largest residual of "
            "the energy balance:",
            study.markdown_table(columns),
        ]
    return "\n\n".join(parts)


def rates_figure(flags: MeanFieldEquation, table: "study.Dataset") -> "study.Figure":
    """Draw deviations and W_2 against n, a panel for each dimension."""
    from matplotlib.ticker import NullFormatter

    looks = (("#0072B2", "o"), ("#56B4E9", "v"), ("#CC79A7", "D"), ("#D55E00", "s"),
             ("#009E73", "^"))  # fmt: skip
    n = np.array(flags.n, dtype=float)
    with style():
        figure, axes = grid(1, len(flags.d), PAGE, 3.9)
        for axis, d in zip(axes.flat, flags.d, strict=True):
            part = table.sel(d=d)
            for (name, text), (colour, marker) in zip(QUANTITIES.items(), looks, strict=True):
                law = fit(table, d, name)
                mean = np.sqrt(part[f"{name}_sq"].values.mean(axis=1))
                slope = f"$n^{{{law.exponent / 2:.2f}}}$" if law else "not resolved"
                axis.plot(n, mean, marker, color=colour, markersize=4, label=f"{text}: {slope}")
                if law:
                    axis.plot(n, np.sqrt(law(n)), color=colour, linewidth=0.9)
            w2 = part["w2"].values
            kept = np.isfinite(w2).all(axis=1)
            law = fit(table, d, "w2")
            assert law is not None, "two of --n are measured"
            mean, error = mean_and_error(w2[kept])
            axis.errorbar(
                n[kept], mean, yerr=error, color="black", marker="P", linestyle="none",
                markersize=5, label=f"$W_2$: $n^{{{law.exponent:.2f}}}$, known {RATES[d]}",
            )  # fmt: skip
            axis.plot(n[kept], law(n[kept]), color="black", linewidth=0.9)
            log_log(axis)
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set(xlabel="Number of tokens $n$", ylabel="Deviation from the equation at $T$")
            axis.set_title(f"{'Circle' if d == 2 else 'Sphere'}, $d$ = {d}")
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=7)
    return figure


def budget_figure(flags: MeanFieldEquation, files: dict[str, Path]) -> "study.Figure":
    """Draw terms of the budget over time: the equation, and the range of clouds of the least n."""
    labels = {"energy": "$E$", "dissipation": "dissipation", "weight_power": "power of the heads"}
    n = flags.n[min(1, len(flags.n) - 1)]
    with style():
        figure, axes = grid(1, len(flags.d), PAGE, 2.9)
        for axis, d in zip(axes.flat, flags.d, strict=True):
            with (
                wflow.open(files[run_name(d, "equation")]) as run,
                wflow.open(files[run_name(d, n)]) as tokens,
            ):
                for name, colour in zip(SERIES, ("#0072B2", "#D55E00", "#009E73"), strict=True):
                    values = tokens[name].values
                    axis.fill_between(
                        tokens["time"].values, values.min(axis=0), values.max(axis=0),
                        color=colour, alpha=0.25, linewidth=0,
                    )  # fmt: skip
                    axis.plot(run["time"].values, run[name].values[0], color=colour,
                              label=labels[name])  # fmt: skip
            time_axis(axis)
            axis.set_title(
                f"{'Circle' if d == 2 else 'Sphere'}: lines $n = \\infty$, bands {flags.paths} "
                f"clouds of $n$ = {n}"
            )
        legend_below(figure, axes[0, 0], 3)
    return figure


def main() -> None:
    flags = study.command_line(MeanFieldEquation, __doc__)
    with study.session("mean_field_equation", flags) as session:
        files = session.solve(tasks(flags))
        table = collect(flags, files)
        figures = {"rates": rates_figure(flags, table), "budget": budget_figure(flags, files)}
        for d in flags.d:
            with wflow.open(files[run_name(d, "equation")]) as run:
                figures[f"density_d{d}"] = wflow.plots.density_snapshots(run)
        session.finish(table, report(flags, table), findings(flags, table), figures)


if __name__ == "__main__":
    script(main)
