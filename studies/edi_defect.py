"""Energy balance with the squared upper gradient G^2: where it holds, and its defect elsewhere.

[MHT] Theorem 4.13 states the balance with G^2. By the chain rule the energy falls at the rate
`dissipation`; the two rates are equal for one head, for heads of equal mobility, for the effective
and for the unnormalised flow, and differ by `edi_defect` for softmax attention with unequal heads.

    python studies/edi_defect.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870.
"""

import math
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from wflow import InputError, SaveAt, study
from wflow._core.checks import count_steps
from wflow._core.tableaux import TABLEAUX
from wflow.analysis.fits import line, mean_and_error
from wflow.cli import script
from wflow.heads import Frozen, OrnsteinUhlenbeck
from wflow.plots.figure import PAGE, caption, grid, legend_below, log_axis, style
from wflow.study import Finding, FloatArray
from wflow.study.frame import Verdict

UNEQUAL = "softmax, unequal heads"
# Name -> order; in a scheme of order 1 integrals are sums of what is recorded.
SCHEMES = {name: TABLEAUX[name].order for name in ("euler", "heun", "rk4")}
SLOPE_TOLERANCE = 0.15
SIGMAS = 3.0  # standard errors within which a mean counts as zero
FLOOR = 2e-13  # residuals below this are rounding, without information on the order
RESIDUALS = ("edi_residual", "edi_residual_upper_gradient")
LONG_NAMES = {
    "energy_change": "change of the energy, E(T) - E(0)",
    "edi_residual": "residual of the balance with the dissipation at T",
    "edi_residual_upper_gradient": "residual of the balance with G^2 at T",
    "defect": "integral of the defect, dissipation - G^2",
    "gap": "gap between the residuals less the left sum of the defect (rounding for euler)",
    "late_defect": "defect averaged over t >= T/2",
}


@dataclass(frozen=True, kw_only=True)
class EdiDefect(study.TokenFlags):
    """Flags of this study."""

    n: study.Count | None = 60
    """Number of tokens; of digits or a FILE a random subset of that size."""
    t_final: study.Positive = 4.0
    """End time of the runs with frozen heads; those with noise end at half of it."""
    dt: study.Positive = 0.02
    """Largest time step; it is halved --halvings times."""
    halvings: study.Count = 3
    """How often the step is halved."""
    heads: study.TwoOrMore = 5
    """Number of unequal (and of equal) frozen heads."""
    noisy_heads: study.Compared[study.Count] = (1, 2, 4, 8, 16, 32)
    """Head counts of the runs with Ornstein-Uhlenbeck heads."""
    paths: study.TwoOrMore = 64
    """Monte Carlo paths of the runs with noise; all share the initial tokens and heads."""
    sigma2: study.Positive = 2.0
    """Variance sigma^2 of the noise of the Ornstein-Uhlenbeck heads per unit time."""
    out: study.Folder = Path("results/edi_defect")

    def check(self) -> None:
        super().check()
        count_steps(self.t_final, self.dt)
        # The runs with noise end at T/2, and their late defect begins at T/4.
        if abs(self.t_final / 4 / self.noisy_steps[0] % 1 - 0.5) < 0.49:
            raise InputError(
                f"--t-final is {self.t_final:g}: expected a multiple of 2 --dt, {2 * self.dt:g}, "
                "so that the runs with noise have a step at a quarter of it"
            )

    @property
    def steps(self) -> list[float]:
        """Time steps of the frozen runs, from the largest."""
        return [self.dt / 2**k for k in range(self.halvings + 1)]

    @property
    def noisy_steps(self) -> list[float]:
        """Time steps of the runs with noise."""
        return [self.dt / 2, self.dt / 4, self.dt / 8]


def problems(unequal: FloatArray) -> dict[str, dict[str, Any]]:
    """Return the frozen heads and flows to compare: name -> arguments of `wflow.solve`."""
    equal = np.repeat(unequal[:1], len(unequal), axis=0)
    return {
        "softmax, one head": {"heads": unequal[:1], "flow": "softmax"},
        "softmax, equal heads": {"heads": equal, "flow": "softmax"},
        UNEQUAL: {"heads": unequal, "flow": "softmax"},
        "effective, unequal heads": {"heads": unequal, "flow": "effective"},
        "unnormalised, unequal heads": {"heads": unequal, "flow": "unnormalised"},
    }


def collect(flags: EdiDefect, x0: FloatArray, session: study.Session) -> "study.Dataset":
    """Compute all runs, and return their numbers, with names."""
    d = x0.shape[1]
    cases = problems(study.initial_heads(flags.seed, flags.heads, d))
    common: dict[str, Any] = {"x0": x0, "seed": flags.seed, "save": SaveAt(budget=True)}
    still = session.sweep(
        {
            "problem": (list(cases), "flow and frozen heads"),
            "scheme": (list(SCHEMES), "time stepping"),
            "step": (flags.steps, "time step"),
        },
        lambda run: {key: value[0] for key, value in balance(run).items()},
        {name: f"{text}, frozen heads" for name, text in LONG_NAMES.items()},
        **common, law=Frozen(), t_final=flags.t_final, dt=lambda step: step,
        heads=lambda problem: cases[problem]["heads"], flow=lambda problem: cases[problem]["flow"],
    )  # fmt: skip
    noisy = session.sweep(
        {
            "heads": (flags.noisy_heads, "number of heads H"),
            "ou_step": (flags.noisy_steps, "time step, with noise"),
        },
        lambda run: {f"ou_{key}": value for key, value in balance(run).items()},
        {
            f"ou_{name}": (("path",), f"{text}, Ornstein-Uhlenbeck heads")
            for name, text in LONG_NAMES.items()
        },
        {"path": (np.arange(flags.paths), "Monte Carlo path")},
        **common, law=OrnsteinUhlenbeck(np.eye(d), rate=1.0, sigma2=flags.sigma2),
        t_final=flags.t_final / 2, dt=lambda ou_step: ou_step, paths=flags.paths,
    )  # fmt: skip
    return still.merge(noisy)


def balance(run: "study.Dataset") -> dict[str, FloatArray]:
    """Return the balance at the end of a run, per path: change of E, residuals, defect, gap."""
    energy = run["energy"].values
    residual = run["edi_residual"].values[:, -1]
    upper = run["edi_residual_upper_gradient"].values[:, -1]
    spent = (run["dissipated"] - run["dissipated_upper_gradient"]).values[:, -1]
    rate = run["edi_defect"].values
    late = rate[:, run["time"].values >= run["time"].values[-1] / 2].mean(axis=1)
    summed = run.wflow.config["dt"] * rate[:, :-1].sum(axis=1)
    return {
        "energy_change": energy[:, -1] - energy[:, 0],
        "edi_residual": residual,
        "edi_residual_upper_gradient": upper,
        "defect": spent,
        "gap": np.abs(residual - upper - summed),
        "late_defect": late,
    }


def order(steps: list[float], residuals: FloatArray) -> float:
    """Return the order of a residual in the step, from the two smallest steps above rounding.

    inf where at most one residual is above rounding: it vanishes, and its order cannot be
    estimated.
    """
    size = np.abs(residuals)
    used = np.flatnonzero(size > FLOOR)[-2:]
    if len(used) < 2:
        return math.inf
    ratio = math.log(steps[used[0]] / steps[used[1]])
    return math.log(size[used[0]] / size[used[1]]) / ratio


def orders_text(table: "study.Dataset", name: str, problem: str) -> str:
    slopes = table[f"order_{name}"].sel(problem=problem).values
    cells = ["rounding" if math.isinf(slope) else f"{slope:.2f}" for slope in slopes]
    return ", ".join(f"{s} {text}" for s, text in zip(SCHEMES, cells, strict=True))


def intercept(steps: list[float], samples: FloatArray) -> tuple[float, float]:
    """Limit of the mean of samples (steps, paths) as the step goes to 0, and its standard error.

    Weighted least squares of a line through the means, whose noises are independent.
    """
    mean, error = mean_and_error(samples)
    design = np.stack([np.ones(len(steps)), np.array(steps)], axis=1)
    weighted = design / error[:, None]
    covariance = np.linalg.inv(weighted.T @ weighted)
    line = covariance @ weighted.T @ (mean / error)
    return float(line[0]), float(np.sqrt(covariance[0, 0]))


def add_orders(table: "study.Dataset") -> None:
    """Add the orders in the step of both residuals of the runs with frozen heads."""
    steps = list(table["step"].values)
    for name in RESIDUALS:
        slopes = [
            [order(steps, table[name].sel(problem=p, scheme=s).values) for s in SCHEMES]
            for p in table["problem"].values
        ]
        attrs = {"long_name": f"order in dt of {LONG_NAMES[name]}", "units": "1"}
        table[f"order_{name}"] = (("problem", "scheme"), slopes, attrs)


def add_limits(table: "study.Dataset") -> None:
    """Add the results of the runs with noise: residuals as dt -> 0, and the defect over H.

    The power law is that of the mean defect over t >= T/2, at the smallest step, H >= 2, with a
    bootstrap interval over paths: the mean is positive, not each path.
    """
    for key in RESIDUALS:
        samples = table[f"ou_{key}"]
        steps = list(samples["ou_step"].values)
        limits = [intercept(steps, samples.sel(heads=h).values) for h in samples["heads"].values]
        for k, name in enumerate((f"ou_limit_{key}", f"ou_limit_error_{key}")):
            text = ("limit as dt -> 0 of the mean ", "standard error of the limit of the mean ")[k]
            attrs = {"long_name": text + LONG_NAMES[key], "units": "1"}
            table[name] = ("heads", [limit[k] for limit in limits], attrs)
    part = table["ou_late_defect"].isel(ou_step=-1)
    part = part.sel(heads=part["heads"] > 1)
    if part.sizes["heads"] < 2:
        return
    # The mean is positive, not each path.
    rng = np.random.default_rng(0)
    law = line(np.log(part["heads"].values), part.values, of=np.log, seed=rng)
    if np.all(np.isfinite(law.slope_ci)):
        table.attrs["defect_prefactor"] = math.exp(law.intercept)
        table.attrs["defect_exponent"] = law.slope
        table.attrs["defect_exponent_ci"] = list(law.slope_ci)


def closes(table: "study.Dataset", name: str, problem: str) -> Verdict:
    """Return whether a residual vanishes: at the order of every scheme, or at a lower order."""
    slopes = table[f"order_{name}"].sel(problem=problem).values
    orders = np.array(list(SCHEMES.values()))
    if np.all(slopes >= orders - SLOPE_TOLERANCE):
        return "confirmed"
    # Steps that are not small yet show an order that is off; a defect shows none.
    return "confirmed in part" if np.all(slopes >= orders / 2) else "not confirmed"


def of_noise(flags: EdiDefect, table: "study.Dataset") -> list[Finding]:
    """Return findings of the runs with noise: residuals as dt -> 0, and defect over head count."""
    rows = []
    for name, key in zip(("`dissipation`", "G^2"), RESIDUALS, strict=True):
        mean, error = table[f"ou_limit_{key}"].values, table[f"ou_limit_error_{key}"].values
        limits = dict(zip(flags.noisy_heads, zip(mean, error, strict=True), strict=True))
        away = [h for h, (value, error) in limits.items() if abs(value) > SIGMAS * error]
        source = "Itô's formula" if key == "edi_residual" else "[MHT] Thm 4.13, eq. 148"
        rows.append(Finding.decided(
            f"with noise, the mean residual with {name} vanishes with the step", source,
            "limit as dt -> 0: "
            + "; ".join(f"H = {h}: {v:.4f} ± {e:.4f}" for h, (v, e) in limits.items()),
            [h not in away for h in limits],
        ))  # fmt: skip
    if "defect_exponent" in table.attrs:
        low, high = table.attrs["defect_exponent_ci"]
        rows.append(Finding.decided(
            "the defect of Ornstein-Uhlenbeck heads falls with their number H",
            "docs/theory/energy.md",
            f"mean over t >= T/2 like H^b, b = {table.attrs['defect_exponent']:.3f} (95 % "
            f"interval {low:.3f} to {high:.3f}), H >= 2", high < 0,
        ))  # fmt: skip
    return rows


def findings(flags: EdiDefect, table: "study.Dataset") -> list[Finding]:
    """Return every prediction with its verdict."""
    names = [str(problem) for problem in table["problem"].values]
    plain, upper = RESIDUALS
    chain = {closes(table, plain, problem) for problem in names}
    rows = [
        Finding(
            "E(t) falls by the integral of `dissipation`: the residual vanishes at the order of "
            "the scheme (1, 2, 4), for every flow and any heads",
            "chain rule",
            "; ".join(f"{problem}: {orders_text(table, plain, problem)}" for problem in names),
            chain.pop() if len(chain) == 1 else "confirmed in part",
        ).of_theorem()
    ]
    for problem in names:
        verdict = closes(table, upper, problem)
        last = table.sel(problem=problem, scheme="rk4").isel(step=-1)
        numbers = f"orders {orders_text(table, upper, problem)}"
        if verdict == "not confirmed":
            numbers = (
                f"residual {float(last[upper]):.4f} against a change of the energy of "
                f"{float(last['energy_change']):.4f} (rk4, smallest step), whatever the step: "
                + numbers
            )
        source = "[MHT] Thm 4.13" + (", classical metric" if "unnormalised" in problem else "")
        rows.append(Finding(f"the balance with G^2 holds: {problem}", source, numbers, verdict))
    gap = max(
        float(table["gap"].sel(scheme="euler").max()),
        float((table["ou_gap"] / np.maximum(1, np.abs(table["ou_energy_change"]))).max()),
    )
    rows.append(Finding.decided(
        "the two residuals differ by the integral of `edi_defect`, the covariance over heads "
        "of gradient and inverse mobility, and by nothing else", "docs/theory/energy.md",
        f"largest gap over all runs by euler: {gap:.0e}", gap < 1e-11,
    ).of_theorem())  # fmt: skip
    return rows + of_noise(flags, table)


# Tables and figures
# ------------------

STYLES: dict[str, dict[str, Any]] = {
    "euler": {"color": "#0072B2", "marker": "o", "linestyle": "-", "label": "Euler"},
    "heun": {"color": "#E69F00", "marker": "s", "linestyle": (0, (5, 1.5)), "label": "Heun"},
    "rk4": {"color": "#009E73", "marker": "D", "linestyle": (0, (1.5, 1)), "label": "RK4"},
}


def cell(value: Any) -> str:
    """Return a residual as the tables show it; rounding is recognised by its size."""
    return "< 1e-13" if abs(float(value)) < 1e-13 else f"{float(value):.2e}"


def report(flags: EdiDefect, table: "study.Dataset") -> str:
    """Return the tables."""
    problems = [str(problem) for problem in table["problem"].values]
    rows, noisy = [], []
    for problem, scheme, (k, dt) in product(problems, SCHEMES, enumerate(flags.steps)):
        if SCHEMES[scheme] > 1 and k < flags.halvings:
            continue  # the orders below show the rest
        at = table.sel(problem=problem, scheme=scheme).isel(step=k)
        defect = float(at["defect"])
        row = {"problem": problem, "scheme": scheme, "dt": f"{dt:g}"}
        row["E(T) - E(0)"] = f"{float(at['energy_change']):.4f}"
        row |= {name: cell(at[name]) for name in RESIDUALS}
        row["integral of edi_defect"] = f"{defect:.4f}" if abs(defect) > 1e-12 else "0"
        row["gap - integral"] = cell(at["gap"]) if SCHEMES[scheme] == 1 else ""
        rows.append(row)
    slopes = [
        {"problem": problem}
        | {f"order of {name}": orders_text(table, name, problem) for name in RESIDUALS}
        for problem in problems
    ]
    titles = {name: name for name in RESIDUALS} | {"late_defect": "edi_defect, t >= T/2"}
    for heads, (k, dt) in product(flags.noisy_heads, enumerate(flags.noisy_steps)):
        row = {"H": str(heads), "dt": f"{dt:g}"}
        for name, title in titles.items():
            values = table[f"ou_{name}"].sel(heads=heads).isel(ou_step=k).values
            known = abs(values.mean()) > 1e-12
            row[title] = study.mean_text(values) if known else "0"
        noisy.append(row)
    return "\n\n".join((
        f"Frozen heads, T = {flags.t_final:g}:",
        study.markdown_table(rows),
        "Order in dt, between the two smallest steps:",
        study.markdown_table(slopes),
        f"Ornstein-Uhlenbeck heads, softmax, T = {flags.t_final / 2:g}, {flags.paths} paths, "
        "mean ± standard error:",
        study.markdown_table(noisy),
    ))  # fmt: skip


def residuals_figure(flags: EdiDefect, table: "study.Dataset") -> "study.Figure":
    """Draw both residuals of some problems against the step, one line per scheme."""
    steps = table["step"].values
    shown = (UNEQUAL, "effective, unequal heads", "softmax, one head")
    with style():
        figure, axes = grid(2, len(shown), PAGE, 4.4, sharex=True, sharey=True)
        for (row, name), (column, problem) in product(enumerate(RESIDUALS), enumerate(shown)):
            axis = axes[row, column]
            for scheme, look in STYLES.items():
                size = np.abs(table[name].sel(problem=problem, scheme=scheme).values)
                axis.loglog(steps, np.maximum(size, 1e-16), **look)
            axis.set_title(problem[:1].upper() + problem[1:] if row == 0 else "")
            if row == 1:
                axis.set_xlabel(r"Time step $\Delta t$ ($10^{-3}$)")
            if column == 0:
                axis.set_ylabel(f"|Residual| with {('dissipation', '$G^2$')[row]}")
        axes[0, 0].set_xticks(steps, [f"{1e3 * dt:g}" for dt in steps])
        axes[0, 0].minorticks_off()
        legend_below(figure, axes[0, 0], 3)
        caption(
            figure,
            f"Energy balance at $T$ = {flags.t_final:g}, frozen heads: $n$ = {flags.n}, "
            f"$d$ = {flags.d}, $H$ = {flags.heads} or 1",
        )
    return figure


def noise_figure(flags: EdiDefect, table: "study.Dataset") -> "study.Figure":
    """Draw limits of the mean residuals with noise, and the defect, against the number of heads."""
    heads = table["heads"].values
    with style():
        figure, axes = grid(1, 2, PAGE, 2.7)
        axis = axes[0, 0]
        looks = (("with dissipation", "#0072B2", "o"), ("with $G^2$", "#D55E00", "s"))
        for name, (label, colour, marker) in zip(RESIDUALS, looks, strict=True):
            mean = table[f"ou_limit_{name}"].values
            error = table[f"ou_limit_error_{name}"].values
            axis.errorbar(heads, mean, 2 * error, label=label, linestyle="-", capsize=2,
                          color=colour, marker=marker)  # fmt: skip
        axis.axhline(0, color="#888888", linewidth=0.6, zorder=0)
        axis.set_xscale("log", base=2)
        axis.set_xticks(heads, [str(h) for h in heads])
        axis.set(xlabel="Number of heads $H$", ylabel=r"Mean residual at $T$, $\Delta t \to 0$")
        axis.legend(loc="best")
        axis.set_title("Bars: ± 2 standard errors")
        axis = axes[0, 1]
        mean, error = mean_and_error(table["ou_late_defect"].isel(ou_step=-1).values)
        many = (heads > 1) & (mean > 0)
        axis.errorbar(heads[many], mean[many], 2 * error[many], color="#D55E00", marker="s",
                      linestyle="none", capsize=2)  # fmt: skip
        exponent = table.attrs.get("defect_exponent")
        if exponent is not None:
            fine = np.geomspace(heads[many].min(), heads[many].max(), 50)
            fitted = table.attrs["defect_prefactor"] * fine**exponent
            axis.plot(fine, fitted, color="#333333", linestyle=(0, (4, 2)),
                      label=f"$H^{{{exponent:.2f}}}$")  # fmt: skip
            axis.legend(loc="best")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        log_axis(axis)
        axis.set_xticks(heads[heads > 1], [str(h) for h in heads[heads > 1]])
        axis.set(xlabel="Number of heads $H$", ylabel=r"Defect, mean over $t \geq T/2$")
        axis.set_title(f"$\\Delta t$ = {float(table['ou_step'][-1]):g}; bars: ± 2 standard errors")
        caption(
            figure,
            f"Ornstein-Uhlenbeck heads, softmax: $n$ = {flags.n}, $d$ = {flags.d}, {flags.paths} "
            f"paths, $T$ = {flags.t_final / 2:g}",
        )
    return figure


def main() -> None:
    flags = study.command_line(EdiDefect, __doc__)
    with study.session("edi_defect", flags) as session:
        x0 = flags.cloud()
        # The summary records them.
        flags = session.flags = replace(flags, n=x0.shape[0], d=x0.shape[1])
        table = collect(flags, x0, session)
        add_orders(table)
        add_limits(table)
        session.finish(
            table, report(flags, table), findings(flags, table),
            {"residuals": residuals_figure(flags, table), "noise": noise_figure(flags, table)},
        )  # fmt: skip


if __name__ == "__main__":
    script(main)
