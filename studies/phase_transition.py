"""Phase transition of tokens that diffuse: critical diffusion, order of the transition, hysteresis.

One head D = beta I in ascent. In closed form the uniform law loses its stability at a critical
diffusion, which is measured from particles and from the mean-field equation too, and a coefficient
of the amplitude equation says whether order grows from zero or by a jump. Branches of stationary
densities show the same far from the uniform law, with their folds; particles, and the equation,
from a uniform and from an ordered start show whether the state depends on the past.

    python studies/phase_transition.py

The equation is that which [MHT] proposes: Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv
2605.18870, section 7.1. What is tested is derived in docs/theory/stationary.md.
"""

import math
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from noisy_tokens import order_of
from numpy.typing import NDArray

import wflow
from wflow import InputError, SaveAt, meanfield, stationary, study
from wflow._core.checks import count_steps, positive, whole
from wflow.analysis.fits import mean_and_error
from wflow.cli import script
from wflow.heads import Frozen
from wflow.plots.figure import PAGE, grid, style
from wflow.study import Finding, FlowName

BEND = 1e-3  # error of the cubic coefficient by a point at a small amplitude
RESOLVED = 0.1  # relative distance of a critical diffusion of particles that counts as none
ON_MESH = 0.01  # the same of the equation
CLOSE = 0.05  # distance of an order parameter from that of the branch
THEORY = "docs/theory/stationary.md"
FLOWS: tuple[FlowName, ...] = ("softmax", "unnormalised")
STARTS = ("uniform", "cluster")
SHOTS = (0.0, 0.06, 0.12, 0.9, 1.0)  # snapshots of the equation, over the end time
AROUND = (0.95, 1.0, 1.05)  # diffusions, over the critical one, about which a mode stops growing
ABOVE = 1.3  # diffusions, over the critical one, from whose fluctuations that is estimated
AMPLITUDE = 1e-3  # of the mode whose growth is measured
STEADY = 0.005  # change of the order of the equation over the last tenth of the time


def _resolved(value: float, name: str) -> None:
    if positive(value, name) > 6:
        raise InputError(f"{name}: {value:g} is above 6, which the nodes resolve")


Resolved = Annotated[float, study.Checked(_resolved)]
"""Type of a flag that is a factor of the head for which the nodes are enough."""


@dataclass(frozen=True, kw_only=True)
class PhaseTransition(study.Flags):
    """Flags of this study."""

    durations: ClassVar = {"smoke": "seconds", "cpu": "about 40 minutes", "paper": "many hours"}
    presets: ClassVar = {
        "smoke": {
            "n": 60, "paths": 2, "t_final": 5.0, "dt": 0.05, "nodes": 32, "step": 0.3, "cells": 42,
            "ratios": (0.8, 1.1, 2.0),
        },
        "cpu": {},
        "paper": {
            "n": 4000, "paths": 16, "t_final": 200.0, "nodes": 96, "step": 0.05, "cells": 2562,
        },
    }  # fmt: skip
    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """Defaults of the flags below. The findings of smoke mean nothing."""
    d: Annotated[study.Dimension, study.Checked(partial(whole, most=20))] = 3
    """Dimension: tokens live on the sphere S^(d-1); the equation is solved for 2 and 3."""
    beta: Resolved = 4.0
    """The head of the runs is D = beta I."""
    betas: study.Distinct[Resolved] = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
    """Factors of the heads whose branches are followed."""
    ratios: study.Distinct[study.Positive] = (0.8, 0.95, 1.05, 1.1, 1.15, 1.2, 1.4, 2.0)
    """Diffusions of the runs, in units of the critical one."""
    n: Annotated[int, study.Checked(partial(whole, least=20))] = 1000
    """Number of tokens."""
    nodes: study.Count = 64
    """Quadrature nodes of the stationary densities."""
    step: study.Positive = 0.1
    """Step along the branches."""
    cells: study.Count = 642
    """Cells of the mean-field equation."""
    equation: bool = True
    """Whether the mean-field equation is solved beside the particles."""
    paths: study.Count = 4
    """Monte Carlo paths; all share the initial tokens."""
    t_final: study.Positive = 100.0
    """End of the runs, in units of 1/((d - 1) critical kappa)."""
    dt: study.Positive = 0.005
    """Time step of the tokens, in the same units."""
    out: study.Folder = Path("results/phase_transition")

    def check(self) -> None:
        super().check()
        if self.equation and self.d > 3:
            raise InputError(
                f"--d is {self.d}: the equation is solved for 2 and 3; give --no-equation as well"
            )
        if max(self.ratios) <= ABOVE:
            raise InputError(f"--ratios {max(self.ratios):g}: expected one above {ABOVE:g} as well")


@cache
def branch_of(flags: PhaseTransition, beta: float, flow: FlowName) -> "study.Dataset":
    """Return the branch of degree 1 of one head, as far as order reaches about 0.9."""
    critical = stationary.critical_diffusion(beta, flags.d, flow)
    return stationary.branch(
        beta * np.eye(flags.d), stationary.Nodes.axial(flags.d, flags.nodes), 1,
        kappa=(critical * 0.3, critical * 10), flow=flow, step=flags.step,
    )  # fmt: skip


def order_on(branch: "study.Dataset", ratio: float) -> float:
    """Return the order of the stable part of a branch at a diffusion, zero beyond its fold."""
    kappa = branch["kappa"].values / branch.attrs["critical_diffusion"]
    top = int(np.argmax(kappa))
    kappa, order = kappa[top:][::-1], branch["order"].values[top:][::-1]
    return float(np.interp(ratio, kappa, order, left=np.nan, right=0.0))


def diagrams(flags: PhaseTransition) -> "study.Dataset":
    """Return the closed forms, and fold and bend of the branch, for every flow and beta."""

    def measure(flow: FlowName, beta: float) -> dict[str, float]:
        known = stationary.transition(beta, flags.d, flow)
        branch = branch_of(flags, beta, flow)
        kappa, order = branch["kappa"].values, branch["order"].values
        return {
            "critical": known.kappa,
            "cubic": known.cubic,
            # kappa = kappa_c (1 - cubic A^2) with the amplitude A = d r of the order r.
            "bend": float((1 - kappa[1] / known.kappa) / (flags.d * order[1]) ** 2),
            "fold": float(kappa.max()) / branch.attrs["critical_diffusion"],
        }

    return study.tabulate(
        {"flow": (FLOWS, "flow"), "beta": (flags.betas, "factor of the head")},
        measure,
        {
            "critical": "critical diffusion, closed form",
            "cubic": "cubic coefficient, closed form",
            "bend": "cubic coefficient, from the second point of the branch",
            "fold": "largest diffusion of the branch over the critical one",
        },
        progress="branches",
    )


def task(flags: PhaseTransition, flow: FlowName, ratio: float) -> dict[str, Any]:
    """Return the arguments that runs of particles and of the equation share: ascent of one head."""
    kappa = ratio * stationary.critical_diffusion(flags.beta, flags.d, flow)
    return {
        "law": Frozen(), "heads": flags.beta * np.eye(flags.d)[None], "direction": "ascent",
        "seed": flags.seed, "flow": flow, "kappa": kappa,
    }  # fmt: skip


def rate_of(flags: PhaseTransition, flow: FlowName) -> float:
    """Return (d - 1) critical kappa, whose inverse is the unit of time."""
    return (flags.d - 1) * stationary.critical_diffusion(flags.beta, flags.d, flow)


def particle_runs(flags: PhaseTransition) -> dict[str, dict[str, Any]]:
    """Return runs of ascent of one head from a uniform cloud and from one cluster."""
    starts = {
        "uniform": wflow.tokens.uniform(flags.n, flags.d, seed=flags.seed),
        "cluster": wflow.tokens.clusters(flags.n, flags.d, clusters=1, spread=0.1, seed=flags.seed),
    }
    steps = count_steps(flags.t_final, flags.dt)
    marks = np.unique(np.rint(np.linspace(0, 1, 41) * steps))
    found = {}
    for flow, start, ratio in product(FLOWS, STARTS, flags.ratios):
        dt = flags.dt / rate_of(flags, flow)
        save = SaveAt(every=max(1, steps // 100), snapshots=marks * dt, paths=range(flags.paths),
                      budget=False)  # fmt: skip
        found[f"{flow}_{ratio:g}_from_{start}"] = task(flags, flow, ratio) | {
            "x0": starts[start], "t_final": steps * dt, "dt": dt, "paths": flags.paths,
            "save": save,
        }  # fmt: skip
    return found


def mesh_of(flags: PhaseTransition, coarse: bool = False) -> meanfield.Mesh:
    """Return the mesh of the equation, or one of cells of twice the width."""
    if flags.d == 2:
        return meanfield.Circle(flags.cells // 2 if coarse else flags.cells)
    return meanfield.Sphere((flags.cells - 2) // 4 + 2 if coarse else flags.cells)


def equation_runs(flags: PhaseTransition) -> dict[str, dict[str, Any]]:
    """Return the same runs of the equation on a mesh of the circle or the sphere.

    The uniform start is disturbed by as much as that of the particles, of order n^(-1/2).
    """
    mesh = mesh_of(flags)
    height = mesh.centres[:, -1]
    starts = {
        "uniform": 1 + min(flags.d / math.sqrt(flags.n), 0.5) * height,
        "cluster": np.exp(20 * (height - 1)),
    }
    found = {}
    for flow, start, ratio in product(FLOWS, STARTS, flags.ratios):
        t_final = flags.t_final / rate_of(flags, flow)
        found[f"equation_{flow}_{ratio:g}_from_{start}"] = task(flags, flow, ratio) | {
            "density": starts[start], "mesh": mesh, "t_final": t_final,
            "save": SaveAt(snapshots=(np.array(SHOTS) * t_final).tolist()),
        }  # fmt: skip
    return found


def growth_runs(flags: PhaseTransition) -> dict[str, dict[str, Any]]:
    """Return runs of the equation from a small mode, about the critical diffusion, on two meshes.

    The mode has the amplitude exp((d - 1) (kappa_c - kappa) t) times the first: the runs end where
    that has changed by a factor of 1.6.
    """
    meshes = {"fine": mesh_of(flags), "coarse": mesh_of(flags, coarse=True)}
    found = {}
    for flow, (name, mesh), ratio in product(FLOWS, meshes.items(), AROUND):
        t_final = 10 / rate_of(flags, flow)
        found[f"growth_{flow}_{ratio:g}_{name}"] = task(flags, flow, ratio) | {
            "density": 1 + AMPLITUDE * mesh.centres[:, -1], "mesh": mesh, "t_final": t_final,
            "save": SaveAt(snapshots=(0.5 * t_final, t_final)),
        }  # fmt: skip
    return found


def criticals(flags: PhaseTransition, files: dict[str, Path]) -> "study.Dataset":
    """Return the diffusion at which the mode rests on the mesh, over the closed form.

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

    return study.tabulate(
        {"flow": (FLOWS, "flow")},
        measure,
        {
            "critical_equation": "critical diffusion of the equation over the closed form",
            "critical_error": "error of that by the mesh, estimated",
        },
    )


def orders_of(run: "study.Dataset") -> NDArray[np.float64]:
    """Return the order, the size of the mean token, of the densities of a run at its snapshots."""
    masses = run["areas"].values * run["density"].values[0]
    return np.asarray(np.linalg.norm(masses @ run["centres"].values, axis=1))


def orders(flags: PhaseTransition, files: dict[str, Path]) -> "study.Dataset":
    """Return the order parameters over the second half of the time, and what the branch says."""
    branches = {flow: branch_of(flags, flags.beta, flow) for flow in FLOWS}

    def measure(flow: FlowName, start: str, ratio: float) -> dict[str, Any]:
        with wflow.open(files[f"{flow}_{ratio:g}_from_{start}"]) as run:
            times, square = run["snapshot"].values, order_of(run)
        last = change = np.nan
        if flags.equation:
            with wflow.open(files[f"equation_{flow}_{ratio:g}_from_{start}"]) as run:
                before, last = orders_of(run)[-2:]
            change = abs(last - before)
        ordered = ratio < 1 or start == "cluster"
        return {
            "order_sq": square[:, times >= times[-1] / 2].mean(axis=1),
            "theory": order_on(branches[flow], ratio) if ordered else 0.0,
            "equation": last,
            "equation_change": change,
        }

    return study.tabulate(
        {
            "flow": (FLOWS, "flow"),
            "start": (STARTS, "initial cloud"),
            "ratio": (flags.ratios, "diffusion over the critical one"),
        },
        measure,
        {
            "order_sq": (("path",), "square of the order parameter, freed of its bias"),
            "theory": "order of the stable branch that the start leads to",
            "equation": "order of the equation at its end",
            "equation_change": "change of that order over the last tenth of the time",
        },
        {"path": (np.arange(flags.paths), "Monte Carlo path")},
        "orders",
    )


def critical_of(table: "study.Dataset", flow: FlowName, n: int) -> tuple[float, float]:
    """Return the critical diffusion of n tokens over the closed form, and its error.

    In the uniform law E |m|^2 = (1/n) kappa/(kappa - critical): 1 - 1/(n E |m|^2) = critical/kappa.
    """
    part = table.sel(flow=flow, start="uniform")
    ratios = part["ratio"].values
    # Freed of its bias the square is that of the mean token, less the 1/n of independent tokens.
    square = part["order_sq"].values + 1 / n  # (ratio, path)
    high = ratios > ABOVE
    estimates = ratios[high, None] * (1 - 1 / (n * np.maximum(square[high], 1 / n)))
    mean, error = mean_and_error(estimates.ravel())
    return float(mean), float(error)


def mean_order(table: "study.Dataset") -> NDArray[np.float64]:
    """Return the order (flow, start, ratio), the root of the mean square over the paths."""
    return np.sqrt(np.maximum(table["order_sq"].mean("path").values, 0.0))


def of_branches(shapes: "study.Dataset") -> list[Finding]:
    """Return findings that compare closed form and continuation."""
    cubic, bend = shapes["cubic"].values, shapes["bend"].values
    error = np.abs(bend - cubic)
    first = Finding.decided(
        "branches leave the uniform law with the curvature of the amplitude equation", THEORY,
        f"difference at most {error.max():.2g} over {error.size} branches", error.ravel() < BEND,
    )  # fmt: skip
    jumps, betas = shapes["fold"].values > 1 + 1e-9, shapes["beta"].values
    second = Finding.decided(
        "a branch has a fold above the critical diffusion exactly where the cubic coefficient is "
        "negative", THEORY,
        "; ".join(
            f"{flow}: folds for $\\beta = {', '.join(map('{:g}'.format, betas[row]))}$"
            if row.any()
            else f"{flow}: no folds"
            for flow, row in zip(FLOWS, jumps, strict=True)
        ), (jumps == (cubic < 0)).ravel(),
    )  # fmt: skip
    softmax = shapes["cubic"].sel(flow="softmax").values
    third = Finding.decided(
        r"with the softmax the transition of one head is continuous, for $\beta = "
        f"{', '.join(map('{:g}'.format, betas))}$: the cubic coefficient is positive, and there "
        "is no fold", "question of this study",
        f"cubic coefficients {softmax.min():.4f} to {softmax.max():.4f}, folds at most "
        f"{shapes['fold'].sel(flow='softmax').values.max():.6f} of the critical diffusion",
        (softmax > 0) & ~jumps[FLOWS.index("softmax")],
    )  # fmt: skip
    return [first, second, third]


def of_runs(flags: PhaseTransition, table: "study.Dataset") -> list[Finding]:
    """Return findings about critical diffusion and hysteresis of particles and of the equation."""
    found = {flow: critical_of(table, flow, flags.n) for flow in FLOWS}
    off, width = np.array([(mean - 1, 2 * error) for mean, error in found.values()]).T
    first = Finding.within(
        "fluctuations of particles above the critical diffusion give its closed form, to "
        f"{100 * RESOLVED:g} % with two standard errors", THEORY,
        "; ".join(f"{flow}: {m:.3f} ± {e:.2g} of it" for flow, (m, e) in found.items()),
        off - width, off + width, RESOLVED,
    )  # fmt: skip
    order, theory = mean_order(table), table["theory"].values
    # At the critical diffusion and above it particles fluctuate by n^(-1/2) and more.
    ratios = table["ratio"].values
    noise = np.minimum(1.5 / np.sqrt(flags.n * np.maximum(np.abs(ratios - 1), 0.05)), 0.2)
    gap, known = np.abs(order - theory), np.isfinite(theory)  # where the branch was followed to
    second = Finding.decided(
        "particles end on the stable branch that their start leads to: with hysteresis between "
        "the critical diffusion and the fold, and without where there is none", THEORY,
        "; ".join(
            f"{flow} from {start}: within {np.nanmax(gap[i, j]):.2g}"
            for i, flow in enumerate(FLOWS)
            for j, start in enumerate(STARTS)
        ), (gap < CLOSE + noise)[known],
    )  # fmt: skip
    apart = np.abs(order[:, 1] - order[:, 0]).max(axis=1)
    expected = np.nanmax(np.abs(theory[:, 1] - theory[:, 0]), axis=1)
    third = Finding.decided(
        "the state of particles depends on their start only for the flows whose branches do at the "
        r"same $\beta$",
        "question of this study",
        "; ".join(
            f"{flow}: starts end up to {a:.2f} apart (branches {e:.2f})"
            for flow, a, e in zip(FLOWS, apart, expected, strict=True)
        ), (apart > 0.3) == (expected > 0.3),
    )  # fmt: skip
    findings = [first, second, third]
    equation = table["equation"].values
    if np.isfinite(equation).any():
        off = np.abs(equation - theory)
        steady = table["equation_change"].values < STEADY
        counted = steady & known
        claim = "the mean-field equation ends on the branches, from a uniform and a clustered start"
        text = f"largest distance {off[counted].max(initial=0.0):.2g}"
        if not steady.all():
            text += f"; {(~steady).sum()} of {steady.size} runs had not come to rest"
        ends = Finding.decided(claim, THEORY, text, off[counted] < CLOSE)
        if not steady.all() and ends.verdict == "confirmed":
            ends = Finding(claim, THEORY, text, "inconclusive")
        findings.append(ends)
    return findings


def of_growth(table: "study.Dataset") -> Finding:
    """Return the finding about the measured critical diffusion of the equation."""
    off, error = table["critical_equation"].values - 1, table["critical_error"].values
    return Finding.within(
        "a small mode of the mean-field equation stops growing at the closed form of the critical "
        f"diffusion, to {100 * ON_MESH:g} % with the error of the mesh", THEORY,
        "; ".join(
            f"{flow}: {1 + o:.5f} ± {e:.1g} of it"
            for flow, o, e in zip(FLOWS, off, error, strict=True)
        ), off - error, off + error, ON_MESH,
    )  # fmt: skip


# Tables and figures
# ------------------


def report(flags: PhaseTransition, shapes: "study.Dataset", table: "study.Dataset") -> str:
    """Write the three tables."""
    rows: dict[str, list[str]] = {"beta": [f"{beta:g}" for beta in shapes["beta"].values]}
    for flow in FLOWS:
        part = shapes.sel(flow=flow)
        rows[f"{flow}: kappa_c"] = [f"{v:.4f}" for v in part["critical"].values]
        rows[f"{flow}: cubic"] = [f"{v:.4f}" for v in part["cubic"].values]
        rows[f"{flow}: fold"] = [f"{v:.4f}" for v in part["fold"].values]
    measured: list[dict[str, str]] = []
    for flow in FLOWS:
        part = table.sel(flow=flow)
        mean, error = critical_of(table, flow, flags.n)
        critical = stationary.critical_diffusion(flags.beta, flags.d, flow)
        row = {"flow": flow, "closed form": f"{critical:.5f}"}
        if "critical_equation" in table:
            zero, off = float(part["critical_equation"]), float(part["critical_error"])
            row["equation, over it"] = f"{zero:.5f} ± {off:.1g}"
        measured.append(row | {f"{flags.n} tokens, over it": f"{mean:.3f} ± {error:.1g}"})
    order = mean_order(table)
    columns: dict[str, list[str]] = {"kappa / critical": [f"{r:g}" for r in flags.ratios]}
    for i, flow in enumerate(FLOWS):
        for j, start in enumerate(STARTS):
            part = table.sel(flow=flow, start=start)
            known = [part["equation"].values] * flags.equation + [part["theory"].values]
            columns[f"{flow}, from {start}"] = [
                " / ".join(f"{value:.3f}" for value in row)
                for row in zip(order[i, j], *known, strict=True)
            ]
    solved = "critical_equation" in table
    by_mode = (
        f", of the equation where a small mode neither grows nor decays, {flags.cells} cells, with "
        "the error by these" if solved else ""
    )  # fmt: skip
    return (
        f"Branches of one head D = beta I, ascent, d = {flags.d}; fold in units of kappa_c:\n\n"
        f"{study.markdown_table(rows)}\n\nCritical diffusion, beta = {flags.beta:g}, of tokens "
        f"from their fluctuations above it{by_mode}:\n\n"
        f"{study.markdown_table(measured)}\n\nOrder parameter, beta = {flags.beta:g}, "
        f"n = {flags.n}, d = {flags.d}, {flags.paths} paths, mean over the second half of the "
        f"time; particles / {'equation / ' if solved else ''}branch:\n\n"
        f"{study.markdown_table(columns)}"
    )


def diagram_figure(flags: PhaseTransition) -> "study.Figure":
    """Draw branches of every beta, a panel for each flow."""
    with style():
        figure, axes = grid(1, 2, PAGE, 2.9)
        for axis, flow in zip(axes.flat, FLOWS, strict=True):
            branches = {
                rf"$\beta$ = {beta:g}": branch_of(flags, beta, flow) for beta in flags.betas
            }
            wflow.plots.bifurcation(branches, relative=True, ax=axis)
            axis.set_title(f"{flow}, ascent, $D = \\beta I$, $d$ = {flags.d}")
    return figure


def hysteresis_figure(flags: PhaseTransition, table: "study.Dataset") -> "study.Figure":
    """Draw orders of both starts on the branches of both flows."""
    order = mean_order(table)
    with style():
        figure, axes = grid(1, 2, PAGE, 3.3)
        looks = {"uniform": ("o", "#0072B2", 6.5), "cluster": ("s", "#D55E00", 4.0)}
        for i, (axis, flow) in enumerate(zip(axes.flat, FLOWS, strict=True)):
            wflow.plots.bifurcation(branch_of(flags, flags.beta, flow), relative=True, ax=axis)
            for j, (start, (marker, colour, size)) in enumerate(looks.items()):
                axis.plot(
                    flags.ratios, order[i, j], marker, color=colour, markerfacecolor="none",
                    markersize=size, label=f"{flags.n} tokens from {start}",
                )  # fmt: skip
                equation = table["equation"].sel(flow=flow, start=start).values
                if np.isfinite(equation).any():
                    axis.plot(flags.ratios, equation, "+", color=colour, label=f"equation, {start}")
            axis.set_xlim(min(flags.ratios) - 0.05, max(flags.ratios) + 0.05)
            axis.set_title(rf"{flow}, $D = {flags.beta:g}\,I$, $d$ = {flags.d}")
        handles, labels = axis.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=2)
    return figure


def main() -> None:
    flags = study.command_line(PhaseTransition, __doc__)
    with study.session("phase_transition", flags) as session:
        runs = particle_runs(flags)
        if flags.equation:
            runs |= equation_runs(flags) | growth_runs(flags)
        files = session.solve(runs)
        shapes, table = diagrams(flags), orders(flags, files)
        found = [*of_branches(shapes), *of_runs(flags, table)]
        figures = {"branches": diagram_figure(flags), "hysteresis": hysteresis_figure(flags, table)}
        if flags.equation:
            table = table.merge(criticals(flags, files))
            found.append(of_growth(table))
            with wflow.open(files[f"equation_softmax_{min(flags.ratios):g}_from_uniform"]) as run:
                figures["density"] = wflow.plots.density_snapshots(run)
        session.finish(shapes.merge(table), report(flags, shapes, table), found, figures)


if __name__ == "__main__":
    script(main)
