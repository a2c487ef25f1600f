"""Branches, runs, tables and figures of the study `phase_transition`."""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _noisy_tokens import order_of
from numpy.typing import NDArray

import wflow
from wflow import SaveAt, meanfield, stationary, study
from wflow._core.checks import count_steps
from wflow.heads import Frozen
from wflow.study import FlowName

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

FLOWS: tuple[FlowName, ...] = ("softmax", "unnormalised")
STARTS = ("uniform", "cluster")
SHOTS = (0.0, 0.06, 0.12, 0.9, 1.0)  # snapshots of the equation, over the end time
AROUND = (
    0.95,
    1.0,
    1.05,
)  # diffusions, over the critical one, between which the mode stops growing
AMPLITUDE = 1e-3  # of the mode whose growth is measured
STEADY = 0.005  # change of the order of the equation over the last tenth of the time


@dataclass(frozen=True)
class Setup:
    """Sizes of a preset."""

    n: study.Count = 1000
    paths: study.Count = 4
    t_final: study.Positive = 100.0
    dt: study.Positive = 0.005
    nodes: int = 64
    step: float = 0.1
    cells: int = 642
    ratios: tuple[float, ...] = (0.8, 0.95, 1.05, 1.1, 1.15, 1.2, 1.4, 2.0)


@cache
def branch_of(d: int, beta: float, flow: FlowName, setup: Setup) -> "xr.Dataset":
    """The branch of degree 1 of one head, as far as order reaches about 0.9."""
    critical = stationary.critical_diffusion(beta, d, flow)
    limits = critical * 0.3, critical * 10
    nodes = stationary.Nodes.axial(d, setup.nodes)
    options: dict[str, Any] = {"kappa": limits, "flow": flow, "step": setup.step}
    return stationary.branch(beta * np.eye(d), nodes, 1, **options)


def fold_of(branch: "xr.Dataset") -> float:
    """Largest diffusion of a branch, in units of the critical one."""
    return float(branch["kappa"].max()) / branch.attrs["critical_diffusion"]


def order_on(branch: "xr.Dataset", ratio: float) -> float:
    """Order of the stable part of a branch at a diffusion, zero beyond its fold."""
    kappa = branch["kappa"].values / branch.attrs["critical_diffusion"]
    top = int(np.argmax(kappa))
    kappa, order = kappa[top:][::-1], branch["order"].values[top:][::-1]
    return float(np.interp(ratio, kappa, order, left=np.nan, right=0.0))


def diagrams(d: int, betas: tuple[float, ...], setup: Setup, advance: Any) -> "xr.Dataset":
    """Closed forms, and fold and bend of the branch, for every flow and beta."""

    def measure(flow: FlowName, beta: float) -> dict[str, float]:
        known = stationary.transition(beta, d, flow)
        branch = branch_of(d, beta, flow, setup)
        kappa, order = branch["kappa"].values, branch["order"].values
        return {
            "critical": known.kappa,
            "cubic": known.cubic,
            # kappa = kappa_c (1 - cubic A^2) with the amplitude A = d r of the order r.
            "bend": float((1 - kappa[1] / known.kappa) / (d * order[1]) ** 2),
            "fold": fold_of(branch),
        }

    return study.sweep(
        {"flow": (FLOWS, "flow"), "beta": (betas, "factor of the head")},
        measure,
        {
            "critical": "critical diffusion, closed form",
            "cubic": "cubic coefficient, closed form",
            "bend": "cubic coefficient, from the second point of the branch",
            "fold": "largest diffusion of the branch over the critical one",
        },
        advance=advance,
    )


def particle_runs(flags: Any, setup: Setup) -> dict[str, dict[str, Any]]:
    """Ascent of one head from a uniform cloud and from one cluster, at every diffusion and flow."""
    starts = {
        "uniform": wflow.tokens.uniform(setup.n, flags.d, seed=flags.seed),
        "cluster": wflow.tokens.clusters(setup.n, flags.d, clusters=1, spread=0.1, seed=flags.seed),
    }
    steps = count_steps(setup.t_final, setup.dt)
    marks = np.unique(np.rint(np.linspace(0, 1, 41) * steps))
    found = {}
    for flow in FLOWS:
        critical = stationary.critical_diffusion(flags.beta, flags.d, flow)
        unit = setup.dt / ((flags.d - 1) * critical)
        save = SaveAt(
            every=max(1, steps // 100), snapshots=marks * unit, paths=range(setup.paths),
            budget=False,
        )  # fmt: skip
        for start, x0 in starts.items():
            for ratio in setup.ratios:
                found[f"{flow}_{ratio:g}_from_{start}"] = {
                    "x0": x0, "law": Frozen(), "heads": flags.beta * np.eye(flags.d)[None],
                    "t_final": steps * unit, "dt": unit, "paths": setup.paths,
                    "seed": flags.seed, "kappa": ratio * critical, "flow": flow, "save": save,
                    "direction": "ascent",
                }  # fmt: skip
    return found


def equation_runs(flags: Any, setup: Setup) -> dict[str, dict[str, Any]]:
    """The same of the equation on a mesh of the circle or the sphere.

    The uniform start is disturbed by as much as that of the particles, of order n^(-1/2).
    """
    mesh = mesh_of(flags.d, setup)
    height = mesh.centres[:, -1]
    starts = {
        "uniform": 1 + min(flags.d / math.sqrt(setup.n), 0.5) * height,
        "cluster": np.exp(20 * (height - 1)),
    }
    found = {}
    for flow in FLOWS:
        critical = stationary.critical_diffusion(flags.beta, flags.d, flow)
        t_final = setup.t_final / ((flags.d - 1) * critical)
        for start, density in starts.items():
            for ratio in setup.ratios:
                found[f"equation_{flow}_{ratio:g}_from_{start}"] = {
                    "density": density, "law": Frozen(), "mesh": mesh,
                    "heads": flags.beta * np.eye(flags.d)[None], "t_final": t_final,
                    "seed": flags.seed, "kappa": ratio * critical, "flow": flow,
                    "direction": "ascent",
                    "save": SaveAt(snapshots=(np.array(SHOTS) * t_final).tolist()),
                }  # fmt: skip
    return found


def mesh_of(d: int, setup: Setup) -> meanfield.Mesh:
    """The mesh of the equation, of the circle or the sphere."""
    return meanfield.Circle(setup.cells) if d == 2 else meanfield.Sphere(setup.cells)


def growth_runs(flags: Any, setup: Setup) -> dict[str, dict[str, Any]]:
    """The equation with a small mode of degree 1 about the critical diffusion, on two meshes.

    The mode has the amplitude exp((d - 1) (kappa_c - kappa) t) times the first: the runs end where
    that has changed by a factor of 1.6.
    """
    fine, found = mesh_of(flags.d, setup), {}
    coarse = meanfield.Circle(setup.cells // 2) if flags.d == 2 else meanfield.Sphere(
        (setup.cells - 2) // 4 + 2
    )  # fmt: skip
    for flow in FLOWS:
        critical = stationary.critical_diffusion(flags.beta, flags.d, flow)
        t_final = 10 / ((flags.d - 1) * critical)
        for name, mesh in (("fine", fine), ("coarse", coarse)):
            for ratio in AROUND:
                found[f"growth_{flow}_{ratio:g}_{name}"] = {
                    "density": 1 + AMPLITUDE * mesh.centres[:, -1], "law": Frozen(), "mesh": mesh,
                    "heads": flags.beta * np.eye(flags.d)[None], "t_final": t_final,
                    "seed": flags.seed, "kappa": ratio * critical, "flow": flow,
                    "direction": "ascent", "save": SaveAt(snapshots=(0.5 * t_final, t_final)),
                }  # fmt: skip
    return found


def criticals(flags: Any, files: dict[str, Path]) -> "xr.Dataset":
    """The diffusion at which the mode neither grows nor decays on the mesh, over the closed form.

    The rates of the mode are linear in the diffusion, with their zero at the critical one. On cells
    of twice the width the error, of second order, is four times as large: a third of the difference
    of the two is that of the finer cells.
    """

    def measure(flow: FlowName) -> dict[str, Any]:
        zeros = {}
        for name in ("fine", "coarse"):
            rates = []
            for ratio in AROUND:
                with wflow.open(files[f"growth_{flow}_{ratio:g}_{name}"]) as run:
                    first, last = orders_of(run)[-2:]
                    times = run["snapshot"].values
                    rates.append(float(np.log(last / first) / (times[-1] - times[-2])))
            slope, at_zero = np.polyfit(AROUND, rates, 1)
            zeros[name] = -at_zero / slope
        error = abs(zeros["fine"] - zeros["coarse"]) / 3
        return {"critical_equation": zeros["fine"], "critical_error": error}

    return study.sweep(
        {"flow": (FLOWS, "flow")},
        measure,
        {
            "critical_equation": "critical diffusion of the equation over the closed form",
            "critical_error": "error of that by the mesh, estimated",
        },
    )


def orders_of(run: "xr.Dataset") -> NDArray[np.float64]:
    """Order, the size of the mean token, of the densities of a run at its snapshots."""
    masses = run["areas"].values * run["density"].values[0]
    return np.asarray(np.linalg.norm(masses @ run["centres"].values, axis=1))


def equation_order(file: Path) -> tuple[float, float]:
    """Order of the equation at its end, and how much it changed over the last tenth of the time."""
    with wflow.open(file) as run:
        before, last = orders_of(run)[-2:]
    return float(last), abs(float(last - before))


def orders(flags: Any, setup: Setup, files: dict[str, Path], advance: Any) -> "xr.Dataset":
    """Order parameters over the second half of the time, and what the branch says."""
    branches = {flow: branch_of(flags.d, flags.beta, flow, setup) for flow in FLOWS}

    def measure(flow: FlowName, start: str, ratio: float) -> dict[str, Any]:
        times, square = order_of(files[f"{flow}_{ratio:g}_from_{start}"])
        late = square[:, times >= times[-1] / 2].mean(axis=1)
        branch = branches[flow]
        ordered = ratio < 1 or start == "cluster"
        equation = change = np.nan
        if flags.equation:
            equation, change = equation_order(files[f"equation_{flow}_{ratio:g}_from_{start}"])
        return {
            "order_sq": late,
            "theory": order_on(branch, ratio) if ordered else 0.0,
            "equation": equation,
            "equation_change": change,
        }

    return study.sweep(
        {
            "flow": (FLOWS, "flow"),
            "start": (STARTS, "initial cloud"),
            "ratio": (setup.ratios, "diffusion over the critical one"),
        },
        measure,
        {
            "order_sq": (
                ("path",),
                "square of the order parameter, freed of its bias",
            ),
            "theory": "order of the stable branch that the start leads to",
            "equation": "order of the equation at its end",
            "equation_change": "change of that order over the last tenth of the time",
        },
        {"path": (np.arange(setup.paths), "Monte Carlo path")},
        advance=advance,
    )


def critical_of(table: "xr.Dataset", flow: FlowName, n: int) -> tuple[float, float]:
    """Critical diffusion of n tokens over the closed form, from fluctuations above it, its error.

    In the uniform law E |m|^2 = (1/n) kappa/(kappa - critical): 1 - 1/(n E |m|^2) = critical/kappa.
    """
    part = table.sel(flow=flow, start="uniform")
    ratios = part["ratio"].values
    # Freed of its bias the square is that of the mean token, less the 1/n of independent tokens.
    square = part["order_sq"].values + 1 / n  # (ratio, path)
    high = ratios > 1.3
    estimates = ratios[high, None] * (1 - 1 / (n * np.maximum(square[high], 1 / n)))
    from wflow.analysis.fits import mean_and_error

    mean, error = mean_and_error(estimates.ravel())
    return float(mean), float(error)


def mean_order(table: "xr.Dataset") -> NDArray[np.float64]:
    """Order (flow, start, ratio), the root of the mean square over the paths."""
    return np.sqrt(np.maximum(table["order_sq"].mean("path").values, 0.0))


def report(flags: Any, setup: Setup, shapes: "xr.Dataset", table: "xr.Dataset") -> str:
    """Write the three tables."""
    rows: dict[str, list[str]] = {"beta": [f"{beta:g}" for beta in shapes["beta"].values]}
    for flow in FLOWS:
        part = shapes.sel(flow=flow)
        rows[f"{flow}: kappa_c"] = [f"{v:.4f}" for v in part["critical"].values]
        rows[f"{flow}: cubic"] = [f"{v:.4f}" for v in part["cubic"].values]
        rows[f"{flow}: fold"] = [f"{v:.4f}" for v in part["fold"].values]
    criticals: list[dict[str, str]] = []
    for flow in FLOWS:
        part = table.sel(flow=flow)
        mean, error = critical_of(table, flow, setup.n)
        critical = stationary.critical_diffusion(flags.beta, flags.d, flow)
        row = {"flow": flow, "closed form": f"{critical:.5f}"}
        if "critical_equation" in table:
            zero, off = float(part["critical_equation"]), float(part["critical_error"])
            row["equation, over it"] = f"{zero:.5f} ± {off:.1g}"
        criticals.append(row | {f"{setup.n} tokens, over it": f"{mean:.3f} ± {error:.1g}"})
    order = mean_order(table)
    columns: dict[str, list[str]] = {"kappa / critical": [f"{r:g}" for r in setup.ratios]}
    for i, flow in enumerate(FLOWS):
        for j, start in enumerate(STARTS):
            part = table.sel(flow=flow, start=start)
            cells = zip(order[i, j], part["equation"].values, part["theory"].values, strict=True)
            columns[f"{flow}, from {start}"] = [
                f"{seen:.3f} / {theory:.3f}"
                if np.isnan(equation)
                else f"{seen:.3f} / {equation:.3f} / {theory:.3f}"
                for seen, equation, theory in cells
            ]
    measured = (
        f"Critical diffusion, beta = {flags.beta:g}, of tokens from their fluctuations above it"
    )
    if "critical_equation" in table:
        measured += (
            f", of the equation where a small mode neither grows nor decays, {setup.cells} cells, "
            "with the error by these"
        )
    known = "particles / branch" if np.isnan(table["equation"]).all() else (
        "particles / equation / branch"
    )  # fmt: skip
    return (
        f"Branches of one head D = beta I, ascent, d = {flags.d}; fold in units of kappa_c:\n\n"
        f"{study.markdown_table(rows)}\n\n{measured}:\n\n"
        f"{study.markdown_table(criticals)}\n\nOrder parameter, beta = {flags.beta:g}, "
        f"n = {setup.n}, d = {flags.d}, {setup.paths} paths, mean over the second half of the "
        f"time; {known}:\n\n"
        f"{study.markdown_table(columns)}"
    )


def diagram_figure(flags: Any, setup: Setup, betas: tuple[float, ...]) -> "Figure":
    """Branches of every beta, a panel for each flow."""
    from wflow.plots import bifurcation
    from wflow.plots.figure import PAGE, grid, style

    with style():
        figure, axes = grid(1, 2, PAGE, 2.9)
        for axis, flow in zip(axes.flat, FLOWS, strict=True):
            branches = {
                rf"$\beta$ = {beta:g}": branch_of(flags.d, beta, flow, setup) for beta in betas
            }
            bifurcation(branches, relative=True, ax=axis)
            axis.set_title(f"{flow}, ascent, $D = \\beta I$, $d$ = {flags.d}")
    return figure


def hysteresis_figure(flags: Any, setup: Setup, table: "xr.Dataset") -> "Figure":
    """Orders of both starts on the branches of both flows."""
    from wflow.plots import bifurcation
    from wflow.plots.figure import PAGE, grid, style

    order = mean_order(table)
    with style():
        figure, axes = grid(1, 2, PAGE, 3.3)
        looks = {"uniform": ("o", "#0072B2", 6.5), "cluster": ("s", "#D55E00", 4.0)}
        for i, (axis, flow) in enumerate(zip(axes.flat, FLOWS, strict=True)):
            bifurcation(branch_of(flags.d, flags.beta, flow, setup), relative=True, ax=axis)
            for j, (start, (marker, colour, size)) in enumerate(looks.items()):
                axis.plot(
                    setup.ratios, order[i, j], marker, color=colour, markerfacecolor="none",
                    markersize=size, label=f"{setup.n} tokens from {start}",
                )  # fmt: skip
                equation = table["equation"].sel(flow=flow, start=start).values
                if np.isfinite(equation).any():
                    axis.plot(setup.ratios, equation, "+", color=colour, label=f"equation, {start}")
            axis.set_xlim(min(setup.ratios) - 0.05, max(setup.ratios) + 0.05)
            axis.set_title(rf"{flow}, $D = {flags.beta:g}\,I$, $d$ = {flags.d}")
        handles, labels = axis.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=2)
    return figure
