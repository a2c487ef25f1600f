"""Minimizing movements: the flow in the limit of small steps, and the rate of convergence.

x^k = argmin E(t_k, y) + W^2(y, x^{k-1})/(2 tau), with heads that move in time. In W₂ the steps
converge to the flow `unnormalised`, v = -gbar, in the metric W_b weighted by the effective mobility
to `effective`, v = -gbar/b, at first order in tau: [MHT] Theorems 3.11 and 4.7. For one head
`effective` is softmax attention; for more heads it is not, and the study shows that the minimizing
movements keep a distance from it that does not fall with tau.

    python studies/jko.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from metric import METRICS, Curve, power_laws
from numpy.typing import NDArray

import wflow
from wflow import SaveAt, fits, jko, study, transport
from wflow._core.checks import count_steps
from wflow._core.threads import numba_threads
from wflow.cli import script
from wflow.heads import HeadLaw, OrnsteinUhlenbeck, Oscillating
from wflow.study import Direction, Finding, MetricName, SchemeName
from wflow.study.folder import keep_or_replace


class Case(NamedTuple):
    """Minimizing movements in one metric against explicit runs of some flows."""

    name: str
    metric: MetricName
    noisy: bool
    one_head: bool
    flows: tuple[str, ...]
    source: str

    def heads(self, many: int) -> int:
        """Return the number of heads, where the cases with more than one have `many`."""
        return 1 if self.one_head else many

    @property
    def scheme(self) -> SchemeName:
        """Scheme of the explicit runs and of the heads."""
        return "euler" if self.noisy else "rk4"


SLOPE_TOLERANCE = 0.15
PLATEAU_TOLERANCE = 0.05  # relative: distance to softmax against that between the two flows
GAP_TOLERANCE = 1e-6  # of the energy identity, relative to the fall of the energy
FLOWS = ("unnormalised", "effective", "softmax")
MOVEMENTS = "movements"  # folder of their run files, from which --resume continues
Array = NDArray[np.floating]
Laws = dict[tuple[str, str], fits.PowerLaw]
CASES = (
    Case("W_2, H heads", "w2", False, False, ("unnormalised",), "[MHT] Thm 3.11, Prop. 4.6"),
    Case("W_b, H heads", "weighted", False, False, ("effective", "softmax"), "[MHT] Thm 4.7"),
    Case("W_b, one head", "weighted", False, True, ("softmax",), "[MHT] Thm 4.7, Cor. 4.8"),
    Case("W_2, H noisy heads", "w2", True, False, ("unnormalised",), "[MHT] Thm 3.11, Prop. 4.6"),
    Case("W_b, H noisy heads", "weighted", True, False, ("effective", "softmax"), "[MHT] Thm 4.7"),
)
WORK = {
    "steps": "steps",
    "iterations": "iterations of L-BFGS, all steps",
    "not_converged": "steps that did not converge",
    "recouplings": "better matchings found",
    "inequality_gap": "smallest s (E(x) - E(y)) - W^2/(2 tau) of a step",
    "gradient_norm": "largest gradient left in a step",
}
IDENTITY = {
    "energy_fall": "fall of the energy in the step (ascent: rise)",
    "distance_term": "W^2(y, x) / (2 tau)",
    "interpolation_term": "int_0^tau W^2(y_r, x) / (2 r^2) dr",
    "slope_term": "int_0^tau G^2(y_r) / 2 dr",
    "identity_gap": "what is left of the identity",
}


@dataclass(frozen=True, kw_only=True)
class Jko(study.TokenFlags):
    """Flags of this study."""

    tokens: str = "uniform"
    """Initial tokens of each path: cross-polytope, uniform, clusters, digits, or a FILE."""
    tokens_seed: study.Natural = 0
    """Seed of the initial tokens of path 0; the next paths have the next seeds."""
    n: study.Count = 40
    """Number of tokens."""
    d: study.Dimension = 3
    """Dimension: tokens live on the sphere S^(d-1)."""
    heads: study.TwoOrMore = 4
    """Number of heads H of the cases with more than one."""
    sigma2: study.Positive = 2.0
    """Variance sigma^2 per unit time of the Ornstein-Uhlenbeck heads of the noisy cases."""
    taus: study.Compared[study.Positive] = (0.0625, 0.03125, 0.015625, 0.0078125)
    """Steps of the minimizing movements."""
    t_final: study.Positive = 1.0
    """Time at which they are compared with the flow: a whole number of all steps."""
    dt: study.Positive = 0.0009765625
    """Step of the explicit runs (rk4; Euler-Maruyama with noise) and of all heads."""
    paths: study.TwoOrMore = 8
    """Initial clouds, one per path; with noise also the paths of the heads."""
    direction: Direction = "descent"
    """Whether the tokens move down or up the energy."""
    segments: study.Count = 1
    """Segments of a path from one step to the next in W_b."""
    tolerance: study.Positive = 1e-9
    """Relative gradient at which a step is solved."""
    out: study.Folder = Path("results/jko")

    def check(self) -> None:
        super().check()
        for tau in self.taus:
            count_steps(self.t_final, tau)
            count_steps(tau, self.dt)

    def law(self, case: Case) -> HeadLaw:
        """Return the law of the heads of a case."""
        if case.noisy:
            return OrnsteinUhlenbeck(np.eye(self.d), rate=1.0, sigma2=self.sigma2)
        return Oscillating(self.d)


def run_name(case: Case, flow: str) -> str:
    """Name of the explicit run that a case is compared with."""
    law = "ou" if case.noisy else "oscillating"
    return f"{law}_{'one_head' if case.one_head else 'heads'}_{flow}"


def tasks(flags: Jko, x0: Array) -> dict[str, dict[str, Any]]:
    """Return the explicit runs: name -> arguments of `wflow.solve`."""
    return {
        run_name(case, flow): {
            "x0": x0, "law": flags.law(case), "heads": case.heads(flags.heads),
            "t_final": flags.t_final, "dt": flags.dt, "paths": flags.paths, "seed": flags.seed,
            "flow": flow, "direction": flags.direction,
            "scheme": case.scheme,
            "save": SaveAt(every=16, snapshots=(0.0, flags.t_final), paths=range(flags.paths)),
        }
        for case in CASES
        for flow in case.flows
    }  # fmt: skip


def movements(
    flags: Jko, x0: Array, ends: dict[str, Array], advance: Callable[[int], None]
) -> "study.Dataset":
    """Compute minimizing movements of every case, step and path, and distances to the flows."""
    named = {case.name: case for case in CASES}
    folder = flags.out / MOVEMENTS
    folder.mkdir(exist_ok=True)

    def measure(name: str, path: int, tau: float) -> dict[str, Any]:
        case = named[name]
        file = folder / f"case{list(named).index(name)}_path{path}_tau{tau!r}.h5"
        with jko.minimizing_movements(
            x0[path], flags.law(case), heads=case.heads(flags.heads),
            t_final=flags.t_final, tau=tau, dt=flags.dt, metric=case.metric,
            direction=flags.direction, seed=flags.seed, path=path,
            scheme=case.scheme, segments=flags.segments,
            tolerance=flags.tolerance, **keep_or_replace(file, flags),
        ) as run:  # fmt: skip
            end, work = run["tokens"].values[-1], work_of(run)
        advance(int(work["steps"]))

        def away(flow: str) -> float:
            if flow not in case.flows:
                return np.nan
            return transport.w2(end, ends[run_name(case, flow)][path])

        return work | {"distance": [away(flow) for flow in FLOWS]}

    def apart(name: str, path: int) -> dict[str, float]:
        runs = [ends[run_name(named[name], flow)][path] for flow in named[name].flows]
        return {"between": transport.w2(*runs) if len(runs) > 1 else np.nan}

    cases: dict[str, Any] = {
        "case": (list(named), "metric and heads"),
        "path": (np.arange(flags.paths), "initial tokens, and noise"),
    }
    table = study.tabulate(
        cases | {"tau": (flags.taus, "step tau")},
        measure,
        WORK | {"distance": (("flow",), "W_2 at T between the movement and the explicit run")},
        {"flow": (FLOWS, "flow of the explicit run")},
    )
    between = {"between": "W_2 at T between the effective and softmax runs"}
    table = table.merge(study.tabulate(cases, apart, between))
    return table.transpose("case", "flow", "tau", "path")


def work_of(run: "study.Dataset") -> dict[str, float]:
    """Return the work of the minimisations of one run, by the names of `WORK`."""
    return {
        "steps": run.sizes["time"] - 1,
        "iterations": int(run["iterations"].sum()),
        "not_converged": int((~run["converged"]).sum()),
        "recouplings": int(run["recouplings"].sum()),
        "inequality_gap": float(run["inequality_gap"].values[1:].min()),
        "gradient_norm": float(run["gradient_norm"].max()),
    }


def identities(flags: Jko, x0: NDArray[np.float64]) -> "study.Dataset":
    """Return terms of De Giorgi's identity of the first step, with heads drawn from the seed."""
    heads = study.initial_heads(flags.seed, flags.heads, flags.d)

    def measure(name: Any, tau: float, path: int) -> dict[str, Any]:
        first = jko.energy_inequality(
            x0[path], heads, tau, metric=name, direction=flags.direction,
            segments=flags.segments, tolerance=flags.tolerance,
        )  # fmt: skip
        fall = first.energy_before - first.energy_after
        terms = (first.distance_term, first.interpolation_term, first.slope_term, first.gap)
        values = dict(zip(IDENTITY, (fall, *terms), strict=True))
        return values | {"identity_converged": first.converged}

    texts = {name: f"{text}, first step" for name, text in IDENTITY.items()}
    return study.tabulate(
        {
            "metric": (list(METRICS), "metric of the step"),
            "tau": (flags.taus, "step tau"),
            "path": (np.arange(flags.paths), "initial tokens, and noise"),
        },
        measure,
        texts | {"identity_converged": "whether all minimisations did"},
    )


def findings(table: "study.Dataset", laws: Laws) -> list[Finding]:
    """Return every prediction with its verdict."""
    smallest = table.sel(tau=table["tau"].min())
    rows = []
    for case in CASES:
        flow = case.flows[0]
        last = float(smallest["distance"].sel(case=case.name, flow=flow).mean())
        rows.append(Finding.slope(
            f"{case.name}: minimizing movements converge to `{flow}` at first order in tau "
            f"(slope 1 within {SLOPE_TOLERANCE:g})", case.source, laws[case.name, flow], 1.0,
            SLOPE_TOLERANCE, note=f", distance {last:.1e} at the smallest tau",
        ).of_theorem())  # fmt: skip
    for case in (case for case in CASES if len(case.flows) > 1):
        law, at = laws[case.name, "softmax"], smallest["distance"].sel(case=case.name)
        far, near = (float(at.sel(flow=flow).mean()) for flow in ("softmax", "effective"))
        apart = float(table["between"].sel(case=case.name).mean())
        stays = abs(far / apart - 1) <= PLATEAU_TOLERANCE
        low, high = np.array(law.exponent_ci) - 1
        first_order = max(-low, high) <= SLOPE_TOLERANCE
        other = low > SLOPE_TOLERANCE or high < -SLOPE_TOLERANCE
        rows.append(Finding.decided(
            f"{case.name}: minimizing movements in W_b converge to softmax attention",
            "[MHT] Thm 4.7 and Cor. 4.8, read for H > 1",
            f"distance to `softmax` {far:.3f} at the smallest tau, slope {law.exponent:.3f}; "
            f"`softmax` and `effective` are {apart:.3f} apart, and the distance to "
            f"`effective` is {near:.1e}"
            + ("; it stays at that plateau: the steps follow `effective`" if stays else ""),
            first_order and not stays, known=first_order or other or stays,
        ))  # fmt: skip
    steps, failed = (int(table[name].sum()) for name in ("steps", "not_converged"))
    least = float(table["inequality_gap"].min())
    falls = Finding.decided(
        "the energy falls (ascent: rises) by at least W^2/(2 tau) in every step, at the heads "
        "of its end", "[MHT] Thm 3.11",
        f"smallest margin {least:.1e} in {steps} steps, {failed} of them not converged",
        least >= -1e-12 and not failed,
    )  # fmt: skip
    relative = abs(table["identity_gap"]) / abs(table["energy_fall"])
    worst = {name: float(relative.sel(metric=name).max()) for name in table["metric"].values}
    identity = Finding.decided(
        "E(x) - E(y) = W^2/(2 tau) + int_0^tau W^2(y_r, x)/(2 r^2) dr",
        "De Giorgi; docs/theory, minimizing movements",
        "largest gap over the fall of the energy: "
        + ", ".join(f"{name} {gap:.1e}" for name, gap in worst.items()),
        [gap <= GAP_TOLERANCE for gap in worst.values()],
    )
    return [*rows, falls, identity]


# Tables and figures
# ------------------


def fraction(value: float) -> str:
    """Return 1/k for a number that is one, else the number."""
    k = round(1 / value)
    return f"1/{k}" if k > 1 and abs(k * value - 1) < 1e-9 else f"{value:g}"


def report(flags: Jko, table: "study.Dataset", laws: Laws) -> str:
    """Return the tables."""
    distances, work = [], []
    for case in CASES:
        part = table.sel(case=case.name)
        for flow in case.flows:
            at = part["distance"].sel(flow=flow)
            row = {"minimizing movements": case.name, "explicit run": flow}
            for tau in flags.taus:
                row[f"tau {tau:g}"] = study.mean_text(at.sel(tau=tau).values)
            distances.append(row | {"slope": study.slope_text(laws[case.name, flow])})
        steps = int(part["steps"].sum())
        work.append({
            "minimizing movements": case.name, "steps": str(steps),
            "iterations a step": f"{int(part['iterations'].sum()) / steps:.1f}",
            "not converged": str(int(part["not_converged"].sum())),
            "matched again": str(int(part["recouplings"].sum())),
            "largest gradient left": f"{float(part['gradient_norm'].max()):.1e}",
        })  # fmt: skip
    titles = ("E(x) - E(y)", "W^2/(2 tau)", "int W^2/(2 r^2)", "int G^2/2")
    terms = []
    for name in table["metric"].values:
        for tau in flags.taus:
            term = table.sel(metric=name, tau=tau)
            mean = term[list(IDENTITY)].mean("path")
            row = {"metric": str(name), "tau": f"{tau:g}"}
            for title, key in zip(titles, list(IDENTITY)[:4], strict=True):
                row[title] = f"{float(mean[key]):.6f}"
            terms.append(row | {"gap": f"{float(np.abs(term['identity_gap']).max()):.1e}"})
    kind = "oscillating heads, or Ornstein-Uhlenbeck heads where noisy"
    return "\n\n".join((
        f"W₂ at T = {flags.t_final:g} between minimizing movements and explicit runs with "
        f"dt = {flags.dt:g}; H = {flags.heads} {kind}; n = {flags.n}, d = {flags.d}, "
        f"{flags.direction}; mean ± standard error over {flags.paths} paths:",
        study.markdown_table(distances),
        "The minimisations:",
        study.markdown_table(work),
        f"Energy identity of the first step, H = {flags.heads}, mean over {flags.paths} "
        "clouds; gap: largest:",
        study.markdown_table(terms),
    ))  # fmt: skip


def distance_figure(flags: Jko, table: "study.Dataset", laws: Laws) -> "study.Figure":
    """Draw the distance to the explicit runs against tau: one head, more heads, noisy heads."""
    panels: dict[str, list[Curve]] = {}
    for case in CASES:
        heads = "Ornstein-Uhlenbeck heads" if case.noisy else "Oscillating heads"
        panel = "One head" if case.one_head else f"{heads}, $H$ = {flags.heads}"
        for flow in case.flows:
            fit = laws[case.name, flow]
            mean = table["distance"].sel(case=case.name, flow=flow).mean("path").values
            label = f"${METRICS[case.metric]}$ to {flow}: {fit.exponent:.2f}"
            panels.setdefault(panel, []).append(Curve(mean, fit, flow, label))
    facts = f"$n$ = {flags.n}, $d$ = {flags.d}, {flags.paths} paths, {flags.direction}"
    return power_laws(
        table["tau"].values, panels,
        (r"Step $\tau$", f"$W_2$ to the explicit run at $t$ = {flags.t_final:g}"),
        [fraction(tau) for tau in flags.taus],
        headroom=30.0, legend="Steps, run: slope", title=f"{facts}; band: 95 % of the fit",
    )  # fmt: skip


def main() -> None:
    flags = study.command_line(Jko, __doc__)
    with study.session("jko", flags) as session:
        x0 = flags.clouds(flags.paths)
        ends = {}
        for name, file in session.solve(tasks(flags, x0)).items():
            with wflow.open(file) as run:
                ends[name] = run["tokens"].values[:, -1]
        steps = sum(count_steps(flags.t_final, tau) for tau in flags.taus)
        progress = session.progress(len(CASES) * flags.paths * steps, "minimizing movements")
        with numba_threads(flags.compute.threads), progress as advance:
            table = movements(flags, x0, ends, advance).merge(identities(flags, x0))
        tau, distance = table["tau"].values, table["distance"]
        laws = {  # resampled over the paths
            (c.name, flow): fits.power_law(tau, distance.sel(case=c.name, flow=flow).values)
            for c in CASES
            for flow in c.flows
        }
        session.finish(
            table, report(flags, table, laws), findings(table, laws),
            {"distance": distance_figure(flags, table, laws)},
        )  # fmt: skip


if __name__ == "__main__":
    script(main)
