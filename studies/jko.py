"""Minimizing movements: which flow the steps follow as they become small, and how fast.

x^k = argmin E(t_k, y) + W^2(y, x^{k-1})/(2 tau), with heads that move in time. In W_2 the steps
converge to the flow `unnormalised`, v = -gbar, in the metric W_b weighted by the effective mobility
to `effective`, v = -gbar/b, at first order in tau: [MHT] Theorems 3.11 and 4.7. For one head
`effective` is softmax attention; for more heads it is not, and the study shows that the minimizing
movements keep a distance from it that does not fall with tau.

    python studies/jko.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import jko, study, transport
from wflow._checks import number, positive, whole
from wflow._metric_figures import Curve, fraction, power_laws
from wflow._problem import count_steps
from wflow._threads import numba_threads
from wflow.cli import guarded
from wflow.errors import InputError
from wflow.fits import PowerLaw, mean_and_error, power_law
from wflow.heads import HeadLaw, OrnsteinUhlenbeck, Oscillating

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

SLOPE_TOLERANCE = 0.15
PLATEAU_TOLERANCE = 0.05  # relative: distance to softmax against that between the two flows
GAP_TOLERANCE = 1e-6  # of the energy identity, relative to the fall of the energy
METRICS = ("w2", "weighted")
Array = NDArray[np.floating]


class Case(NamedTuple):
    """Minimizing movements in one metric against explicit runs of some flows."""

    name: str
    metric: str
    noisy: bool
    one_head: bool
    flows: tuple[str, ...]
    source: str


CASES = (
    Case("W_2, H heads", "w2", False, False, ("unnormalised",), "[MHT] Thm 3.11, Prop. 4.6"),
    Case("W_b, H heads", "weighted", False, False, ("effective", "softmax"), "[MHT] Thm 4.7"),
    Case("W_b, one head", "weighted", False, True, ("softmax",), "[MHT] Thm 4.7, Cor. 4.8"),
    Case("W_2, H noisy heads", "w2", True, False, ("unnormalised",), "[MHT] Thm 3.11, Prop. 4.6"),
    Case("W_b, H noisy heads", "weighted", True, False, ("effective", "softmax"), "[MHT] Thm 4.7"),
)


@dataclass(frozen=True, kw_only=True)
class Jko(study.TokenFlags):
    """Flags of this study."""

    tokens: str = "uniform"
    """Initial tokens of each path: cross-polytope, uniform, clusters, digits, or a FILE."""
    tokens_seed: int = 0
    """Seed of the initial tokens of path 0; the next paths have the next seeds."""
    n: int = 40
    """Number of tokens."""
    d: int = 3
    """Dimension: tokens live on the sphere S^(d-1)."""
    heads: int = 4
    """Number of heads H of the cases with more than one."""
    sigma2: float = 2.0
    """Variance sigma^2 per unit time of the Ornstein-Uhlenbeck heads of the noisy cases."""
    taus: tuple[float, ...] = (0.0625, 0.03125, 0.015625, 0.0078125)
    """Steps of the minimizing movements."""
    t_final: float = 1.0
    """Time at which they are compared with the flow: a whole number of all steps."""
    dt: float = 0.0009765625
    """Step of the explicit runs (rk4; Euler-Maruyama with noise) and of all heads."""
    paths: int = 8
    """Initial clouds, one per path; with noise also the paths of the heads."""
    direction: Literal["descent", "ascent"] = "descent"
    """Whether the tokens move down or up the energy."""
    segments: int = 1
    """Segments of a path from one step to the next in W_b."""
    tolerance: float = 1e-9
    """Relative gradient at which a step is solved."""
    out: study.Folder = Path("results/jko")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.n, "--n")
        whole(self.d, "--d", 2, why="tokens live on the sphere S^(d-1)")
        whole(self.heads, "--heads", 2, why="one head is a case of its own")
        whole(self.paths, "--paths", 2, why="an interval needs two")
        whole(self.segments, "--segments")
        positive(self.tolerance, "--tolerance")
        if number(self.sigma2, "--sigma2", least=0.0) == 0:
            raise InputError("--sigma2 is 0: expected noise; heads without it are there anyway")
        if len(set(self.taus)) < max(2, len(self.taus)):
            raise InputError("--taus: expected two or more steps, each once")
        count_steps(self.t_final, self.dt)
        for tau in self.taus:
            positive(tau, "--taus")
            count_steps(self.t_final, tau)
            count_steps(tau, self.dt)

    def law(self, case: Case) -> HeadLaw:
        """The law of the heads of a case."""
        if case.noisy:
            return OrnsteinUhlenbeck(np.eye(self.d), rate=1.0, sigma2=self.sigma2)
        return Oscillating(self.d)


def run_name(case: Case, flow: str) -> str:
    """Name of the explicit run that a case is compared with."""
    heads = "ou" if case.noisy else "oscillating"
    return f"{heads}_{'one_head' if case.one_head else 'heads'}_{flow}"


def main() -> int:
    flags = study.command_line(Jko, __doc__)
    x0 = flags.clouds(flags.paths)
    tasks: dict[str, dict[str, Any]] = {}
    for case in CASES:
        for flow in case.flows:
            tasks[run_name(case, flow)] = {
                "x0": x0,
                "law": flags.law(case),
                "heads": 1 if case.one_head else flags.heads,
                "t_final": flags.t_final,
                "dt": flags.dt,
                "paths": flags.paths,
                "seed": flags.seed,
                "flow": flow,
                "direction": flags.direction,
                "scheme": "euler" if case.noisy else "rk4",
                "snapshots": (0.0, flags.t_final),
                "snapshot_paths": range(flags.paths),
                "record_every": 16,
            }
    with study.session("jko", flags) as session:
        files = session.solve(tasks)
        ends = {}
        for name, file in files.items():
            with wflow.open(file) as run:
                ends[name] = run["tokens"].isel(snapshot=-1).values
        with numba_threads(flags.threads):
            table = movements(flags, x0, ends, session).merge(identities(flags, x0))
        fits = {
            (case.name, flow): slope(table, case, flow) for case in CASES for flow in case.flows
        }
        session.finish(
            table=table,
            text=report(flags, table, fits),
            findings=findings(table, fits),
            figures={"distance": distance_figure(flags, table, fits)},
        )
    return 0


def movements(flags: Jko, x0: Array, ends: dict[str, Array], session: study.Session) -> "Dataset":
    """Minimizing movements of every case, step and path, and their distance to the flows."""
    import xarray

    flows = ("unnormalised", "effective", "softmax")
    shape = (len(CASES), len(flags.taus), flags.paths)
    distance = np.full((len(CASES), len(flows), len(flags.taus), flags.paths), np.nan)
    between = np.full((len(CASES), flags.paths), np.nan)
    gap, left = np.empty(shape), np.empty(shape)
    steps, iterations, failed, recoupled = (np.zeros(shape, int) for _ in range(4))
    total = len(CASES) * flags.paths * sum(count_steps(flags.t_final, tau) for tau in flags.taus)
    with session.progress(total, "minimizing movements") as advance:
        for c, case in enumerate(CASES):
            for p in range(flags.paths):
                for k, tau in enumerate(flags.taus):
                    run = jko.minimizing_movements(
                        x0[p],
                        flags.law(case),
                        heads=1 if case.one_head else flags.heads,
                        t_final=flags.t_final,
                        tau=tau,
                        dt=flags.dt,
                        metric=case.metric,
                        direction=flags.direction,
                        seed=flags.seed,
                        path=p,
                        scheme="euler" if case.noisy else "rk4",
                        segments=flags.segments,
                        tolerance=flags.tolerance,
                    )
                    end = run["tokens"].values[-1]
                    for flow in case.flows:
                        there = ends[run_name(case, flow)][p]
                        distance[c, flows.index(flow), k, p] = transport.w2(end, there)
                    steps[c, k, p] = run.sizes["time"] - 1
                    iterations[c, k, p] = int(run["iterations"].sum())
                    failed[c, k, p] = int((~run["converged"]).sum())
                    recoupled[c, k, p] = int(run["recouplings"].sum())
                    gap[c, k, p] = float(run["inequality_gap"].values[1:].min())
                    left[c, k, p] = float(run["gradient_norm"].max())
                    advance(steps[c, k, p])
                if len(case.flows) > 1:
                    one, two = (ends[run_name(case, flow)][p] for flow in case.flows)
                    between[c, p] = transport.w2(one, two)
    dims = ("case", "tau", "path")
    variables = {
        "distance": (
            ("case", "flow", "tau", "path"), distance,
            "W_2 at T between the minimizing movement and the explicit run",
        ),
        "between": (("case", "path"), between, "W_2 at T between the effective and softmax runs"),
        "steps": (dims, steps, "steps"),
        "iterations": (dims, iterations, "iterations of L-BFGS, all steps"),
        "not_converged": (dims, failed, "steps that did not converge"),
        "recouplings": (dims, recoupled, "better matchings found"),
        "inequality_gap": (dims, gap, "smallest s (E(x) - E(y)) - W^2/(2 tau) of a step"),
        "gradient_norm": (dims, left, "largest gradient left in a step"),
    }  # fmt: skip
    return xarray.Dataset(
        {name: (d, values, {"long_name": text}) for name, (d, values, text) in variables.items()},
        {
            "case": ("case", [case.name for case in CASES], {"long_name": "metric and heads"}),
            "flow": ("flow", list(flows), {"long_name": "flow of the explicit run"}),
            "tau": ("tau", list(flags.taus), {"long_name": "step tau"}),
            "path": ("path", np.arange(flags.paths), {"long_name": "initial tokens, and noise"}),
        },
    )


IDENTITY = {
    "energy_fall": "fall of the energy in the step (ascent: rise)",
    "distance_term": "W^2(y, x) / (2 tau)",
    "interpolation_term": "int_0^tau W^2(y_r, x) / (2 r^2) dr",
    "slope_term": "int_0^tau G^2(y_r) / 2 dr",
    "identity_gap": "what is left of the identity",
}


def identities(flags: Jko, x0: Array) -> "Dataset":
    """Terms of De Giorgi's identity of the first step, with the heads drawn from the seed."""
    import xarray

    from wflow.rng import INITIAL_HEADS, CounterNormals

    z = CounterNormals(flags.seed).draw(
        (flags.heads, flags.d, flags.d), path=0, step=0, purpose=INITIAL_HEADS
    )
    terms = np.empty((len(IDENTITY), len(METRICS), len(flags.taus), flags.paths))
    converged = np.empty(terms.shape[1:], bool)
    for m, name in enumerate(METRICS):
        for k, tau in enumerate(flags.taus):
            for p in range(flags.paths):
                found = jko.energy_inequality(
                    x0[p],
                    z + z.swapaxes(-1, -2),
                    tau,
                    metric=name,
                    direction=flags.direction,
                    segments=flags.segments,
                    tolerance=flags.tolerance,
                )
                fall = found.energy_before - found.energy_after
                terms[:, m, k, p] = (
                    fall, found.distance_term, found.interpolation_term, found.slope_term, found.gap
                )  # fmt: skip
                converged[m, k, p] = found.converged
    dims = ("metric", "tau", "path")
    data = {
        name: (dims, values, {"long_name": f"{text}, first step"})
        for (name, text), values in zip(IDENTITY.items(), terms, strict=True)
    }
    data["identity_converged"] = (dims, converged, {"long_name": "whether all minimisations did"})
    return xarray.Dataset(
        data, {"metric": ("metric", list(METRICS), {"long_name": "metric of the step"})}
    )


def slope(table: "Dataset", case: Case, flow: str) -> PowerLaw:
    """Power law of the distance in tau; resampled over the paths."""
    distance = table["distance"].sel(case=case.name, flow=flow)
    return power_law(table["tau"].values, distance.transpose("tau", "path").values)


def first_order(fit: PowerLaw) -> Literal["held", "held in part", "not held"]:
    """Held by the slope; in part where only its interval reaches it."""
    if abs(fit.exponent - 1) <= SLOPE_TOLERANCE:
        return "held"
    low, high = fit.exponent_ci
    near = low <= 1 + SLOPE_TOLERANCE and high >= 1 - SLOPE_TOLERANCE
    return "held in part" if near else "not held"


def findings(table: "Dataset", fits: dict[tuple[str, str], PowerLaw]) -> list[study.Finding]:
    """Every prediction, and what came out."""
    rows = []
    for case in CASES:
        flow = case.flows[0]
        fit = fits[case.name, flow]
        low, high = fit.exponent_ci
        last = table["distance"].sel(case=case.name, flow=flow, tau=table["tau"].min()).mean()
        rows.append(
            study.Finding(
                f"{case.name}: minimizing movements converge to `{flow}` at first order in tau "
                f"(slope 1 within {SLOPE_TOLERANCE:g})",
                case.source,
                f"slope {fit.exponent:.3f} (95 % {low:.3f} to {high:.3f}), distance "
                f"{float(last):.1e} at the smallest tau",
                first_order(fit),
            )
        )
    for case in CASES:
        if len(case.flows) < 2:
            continue
        fit = fits[case.name, "softmax"]
        far = table["distance"].sel(case=case.name, flow="softmax", tau=table["tau"].min()).mean()
        near = table["distance"].sel(case=case.name, flow="effective", tau=table["tau"].min())
        apart = float(table["between"].sel(case=case.name).mean())
        stays = abs(float(far) / apart - 1) <= PLATEAU_TOLERANCE
        rows.append(
            study.Finding(
                f"{case.name}: minimizing movements in W_b converge to softmax attention",
                "[MHT] Thm 4.7 and Cor. 4.8, read for H > 1",
                f"distance to `softmax` {float(far):.3f} at the smallest tau, slope "
                f"{fit.exponent:.3f}; `softmax` and `effective` are {apart:.3f} apart, and the "
                f"distance to `effective` is {float(near.mean()):.1e}"
                + ("; it stays at that plateau: the steps follow `effective`" if stays else ""),
                "held" if abs(fit.exponent - 1) <= SLOPE_TOLERANCE and not stays else "not held",
            )
        )
    steps, least = int(table["steps"].sum()), float(table["inequality_gap"].min())
    failed = int(table["not_converged"].sum())
    rows.append(
        study.Finding(
            "the energy falls (ascent: rises) by at least W^2/(2 tau) in every step, at the heads "
            "of its end",
            "[MHT] Thm 3.11",
            f"smallest margin {least:.1e} in {steps} steps, {failed} of them not converged",
            "held" if least >= -1e-12 and not failed else "not held",
        )
    )
    relative = abs(table["identity_gap"]) / abs(table["energy_fall"])
    worst = {name: float(relative.sel(metric=name).max()) for name in METRICS}
    good = [gap <= GAP_TOLERANCE for gap in worst.values()]
    rows.append(
        study.Finding(
            "E(x) - E(y) = W^2/(2 tau) + int_0^tau W^2(y_r, x)/(2 r^2) dr",
            "De Giorgi; docs/mathematics.md, minimizing movements",
            "largest gap over the fall of the energy: "
            + ", ".join(f"{name} {gap:.1e}" for name, gap in worst.items()),
            "held" if all(good) else "held in part" if any(good) else "not held",
        )
    )
    return rows


def report(flags: Jko, table: "Dataset", fits: dict[tuple[str, str], PowerLaw]) -> str:
    """The tables."""
    columns: dict[str, list[str]] = {"minimizing movements": [], "explicit run": []}
    columns |= {f"tau {tau:g}": [] for tau in flags.taus} | {"slope": [], "95 %": []}
    work: dict[str, list[str]] = {
        title: []
        for title in ("minimizing movements", "steps", "iterations a step", "not converged",
                      "matched again", "largest gradient left")
    }  # fmt: skip
    for case in CASES:
        part = table.sel(case=case.name)
        for flow in case.flows:
            fit = fits[case.name, flow]
            columns["minimizing movements"].append(case.name)
            columns["explicit run"].append(flow)
            for tau in flags.taus:
                mean, error = mean_and_error(part["distance"].sel(flow=flow, tau=tau).values)
                columns[f"tau {tau:g}"].append(f"{float(mean):.5f} ± {float(error):.5f}")
            columns["slope"].append(f"{fit.exponent:.3f}")
            columns["95 %"].append("{:.3f} to {:.3f}".format(*fit.exponent_ci))
        steps = int(part["steps"].sum())
        work["minimizing movements"].append(case.name)
        work["steps"].append(str(steps))
        work["iterations a step"].append(f"{int(part['iterations'].sum()) / steps:.1f}")
        work["not converged"].append(str(int(part["not_converged"].sum())))
        work["matched again"].append(str(int(part["recouplings"].sum())))
        work["largest gradient left"].append(f"{float(part['gradient_norm'].max()):.1e}")
    terms: dict[str, list[str]] = {
        title: []
        for title in ("metric", "tau", "E(x) - E(y)", "W^2/(2 tau)", "int W^2/(2 r^2)",
                      "int G^2/2", "gap")
    }  # fmt: skip
    for name in METRICS:
        for tau in flags.taus:
            at = table.sel(metric=name, tau=tau).mean("path")
            worst = float(np.abs(table["identity_gap"].sel(metric=name, tau=tau)).max())
            terms["metric"].append(name)
            terms["tau"].append(f"{tau:g}")
            for title, key in zip(list(terms)[2:6], list(IDENTITY)[:4], strict=True):
                terms[title].append(f"{float(at[key]):.6f}")
            terms["gap"].append(f"{worst:.1e}")
    kind = "oscillating heads, or Ornstein-Uhlenbeck heads where noisy"
    return "\n\n".join(
        (
            f"W_2 at T = {flags.t_final:g} between minimizing movements and explicit runs with "
            f"dt = {flags.dt:g}; H = {flags.heads} {kind}; n = {flags.n}, d = {flags.d}, "
            f"{flags.direction}; mean ± standard error over {flags.paths} paths:",
            study.markdown_table(columns),
            "The minimisations:",
            study.markdown_table(work),
            f"Energy identity of the first step, H = {flags.heads}, mean over {flags.paths} "
            "clouds; gap: largest:",
            study.markdown_table(terms),
        )
    )


def distance_figure(
    flags: Jko, table: "Dataset", fits: dict[tuple[str, str], PowerLaw]
) -> "Figure":
    """Distance to the explicit runs against tau: one head, more heads, heads with noise."""
    panels: dict[str, list[Curve]] = {}
    for case in CASES:
        heads = "Ornstein-Uhlenbeck heads" if case.noisy else "oscillating heads"
        panel = "one head" if case.one_head else f"{heads}, $H$ = {flags.heads}"
        symbol = "$W_2$" if case.metric == "w2" else "$W_b$"
        for flow in case.flows:
            fit = fits[case.name, flow]
            mean = table["distance"].sel(case=case.name, flow=flow).mean("path").values
            label = f"{symbol} to {flow}: {fit.exponent:.2f}"
            panels.setdefault(panel, []).append(Curve(mean, fit, flow, label))
    facts = f"$n$ = {flags.n}, $d$ = {flags.d}, {flags.paths} paths, {flags.direction}"
    return power_laws(
        table["tau"].values,
        panels,
        xlabel=r"step $\tau$",
        ylabel=f"$W_2$ to the explicit run at $t$ = {flags.t_final:g}",
        room=30.0,
        legend="steps, run: slope",
        ticks=[fraction(tau) for tau in flags.taus],
        title=f"{facts}; band: 95 %",
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
