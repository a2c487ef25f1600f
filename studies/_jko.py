"""Cases, energy identity, tables and figure of the study `jko`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from _metric import METRICS, Curve, power_laws
from numpy.typing import NDArray

from wflow import jko, study
from wflow.analysis.fits import PowerLaw
from wflow.study import MetricName, SchemeName

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

DISTANCE = "W_2 at T between the minimizing movement and the explicit run"
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


class Case(NamedTuple):
    """Minimizing movements in one metric against explicit runs of some flows."""

    name: str
    metric: MetricName
    noisy: bool
    one_head: bool
    flows: tuple[str, ...]
    source: str

    def heads(self, many: int) -> int:
        """Number of heads, where the cases with more than one have `many`."""
        return 1 if self.one_head else many

    @property
    def scheme(self) -> SchemeName:
        """Scheme of the explicit runs and of the heads."""
        return "euler" if self.noisy else "rk4"


def work_of(run: "Dataset") -> dict[str, float]:
    """Work of the minimisations of one run, by the names of `WORK`."""
    return {
        "steps": run.sizes["time"] - 1,
        "iterations": int(run["iterations"].sum()),
        "not_converged": int((~run["converged"]).sum()),
        "recouplings": int(run["recouplings"].sum()),
        "inequality_gap": float(run["inequality_gap"].values[1:].min()),
        "gradient_norm": float(run["gradient_norm"].max()),
    }


def identities(flags: Any, x0: NDArray[np.float64]) -> "Dataset":
    """Terms of De Giorgi's identity of the first step, with the heads drawn from the seed."""
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
    return study.sweep(
        {
            "metric": (list(METRICS), "metric of the step"),
            "tau": (flags.taus, "step tau"),
            "path": (np.arange(flags.paths), "initial tokens, and noise"),
        },
        measure,
        texts | {"identity_converged": "whether all minimisations did"},
    )


def fraction(value: float) -> str:
    """1/k for a number that is one, else the number."""
    k = round(1 / value)
    return f"1/{k}" if k > 1 and abs(k * value - 1) < 1e-9 else f"{value:g}"


def report(
    flags: Any,
    cases: Sequence[Case],
    table: "Dataset",
    laws: Mapping[tuple[str, str], PowerLaw],
) -> str:
    """The tables."""
    distances, work = [], []
    for case in cases:
        part = table.sel(case=case.name)
        for flow in case.flows:
            at = part["distance"].sel(flow=flow)
            row = {"minimizing movements": case.name, "explicit run": flow}
            for tau in flags.taus:
                row[f"tau {tau:g}"] = study.mean_text(at.sel(tau=tau).values, ".5f", ".5f")
            distances.append(row | {"slope": study.slope_text(laws[case.name, flow])})
        steps = int(part["steps"].sum())
        work.append(
            {
                "minimizing movements": case.name,
                "steps": str(steps),
                "iterations a step": f"{int(part['iterations'].sum()) / steps:.1f}",
                "not converged": str(int(part["not_converged"].sum())),
                "matched again": str(int(part["recouplings"].sum())),
                "largest gradient left": f"{float(part['gradient_norm'].max()):.1e}",
            }
        )
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
    return "\n\n".join(
        (
            f"W₂ at T = {flags.t_final:g} between minimizing movements and explicit runs with "
            f"dt = {flags.dt:g}; H = {flags.heads} {kind}; n = {flags.n}, d = {flags.d}, "
            f"{flags.direction}; mean ± standard error over {flags.paths} paths:",
            study.markdown_table(distances),
            "The minimisations:",
            study.markdown_table(work),
            f"Energy identity of the first step, H = {flags.heads}, mean over {flags.paths} "
            "clouds; gap: largest:",
            study.markdown_table(terms),
        )
    )


def distance_figure(
    flags: Any,
    cases: Sequence[Case],
    table: "Dataset",
    laws: Mapping[tuple[str, str], PowerLaw],
) -> "Figure":
    """Distance to the explicit runs against tau: one head, more heads, heads with noise."""
    panels: dict[str, list[Curve]] = {}
    for case in cases:
        heads = "Ornstein-Uhlenbeck heads" if case.noisy else "Oscillating heads"
        panel = "One head" if case.one_head else f"{heads}, $H$ = {flags.heads}"
        for flow in case.flows:
            fit = laws[case.name, flow]
            mean = table["distance"].sel(case=case.name, flow=flow).mean("path").values
            label = f"${METRICS[case.metric]}$ to {flow}: {fit.exponent:.2f}"
            panels.setdefault(panel, []).append(Curve(mean, fit, flow, label))
    facts = f"$n$ = {flags.n}, $d$ = {flags.d}, {flags.paths} paths, {flags.direction}"
    return power_laws(
        table["tau"].values,
        panels,
        xlabel=r"Step $\tau$",
        ylabel=f"$W_2$ to the explicit run at $t$ = {flags.t_final:g}",
        headroom=30.0,
        legend="Steps, run: slope",
        ticks=[fraction(tau) for tau in flags.taus],
        title=f"{facts}; band: 95 % of the fit",
    )
