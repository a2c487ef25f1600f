"""Diffusing tokens: energy balance with noise, and the critical diffusion of clusters.

dx = v dt + sqrt(2 kappa) P_x dB is the McKean-Vlasov equation that [MHT] section 7 points to. Three
questions: without interaction, is the stationary law uniform; does the energy budget close in
expectation with the Itô term of the tokens; and, for one head D = beta I in ascent, do clouds lose
and regain their order at the diffusion and by the amount that the stationary equation predicts?

    python studies/noisy_tokens.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import InputError, SaveAt, stationary, study
from wflow._core.checks import count_steps, whole
from wflow.analysis.fits import mean_and_error
from wflow.cli import script
from wflow.heads import Frozen, OrnsteinUhlenbeck
from wflow.plots.figure import PAGE, grid, shade, style, time_axis
from wflow.study import Finding, FlowName

LEVEL = 0.01  # of the Kolmogorov-Smirnov tests together
HALF = 0.25  # by which a ratio of residuals may be off one half: order 1, and not 0 or 2
SMALL = 0.1  # residual over the work of the diffusion, at the smallest step
FLUCTUATION = 0.3  # share of the fluctuations of n tokens by which they may be off
BUDGET = ("edi_residual", "work_diffusion", "martingale_tokens")
THEORY = "docs/theory/stationary.md"
STARTS = ("uniform", "cluster")


@dataclass(frozen=True, kw_only=True)
class NoisyTokens(study.Flags):
    """Flags of this study."""

    n: Annotated[int, study.Checked(partial(whole, least=20))] = 500
    """Number of tokens of the ordering runs; those of the energy budget take a tenth of them."""
    d: study.Dimension = 3
    """Dimension: tokens live on the sphere S^(d-1)."""
    beta: study.Positive = 2.0
    """The head of the ordering runs is D = beta I."""
    ratios: study.Distinct[study.Positive] = (0.25, 0.5, 0.75, 0.9, 1.1, 1.5, 2.0)
    """Diffusions kappa of the ordering runs, in units of the critical one."""
    flow: FlowName = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    paths: study.Count = 4
    """Monte Carlo paths of the ordering runs; all share the initial tokens."""
    t_final: study.Positive = 100.0
    """End of the ordering runs, in units of 1/((d - 1) critical kappa)."""
    dt: study.Positive = 0.02
    """Time step of the ordering runs, in the same units."""
    ledger_paths: study.TwoOrMore = 800
    """Monte Carlo paths of the runs that measure the energy balance."""
    ledger_heads: study.Count = 4
    """Heads of these runs, Ornstein-Uhlenbeck about the identity with sigma^2 = 2."""
    ledger_kappa: study.Positive = 0.5
    """Diffusion of these runs."""
    ledger_t: study.Positive = 0.8
    """End of these runs; their steps are a 50th, a 100th and a 200th of it."""
    out: study.Folder = Path("results/noisy_tokens")

    def check(self) -> None:
        super().check()
        if self.t_final < 2 * self.dt:
            least = f"two steps --dt of {self.dt:g} or more"
            raise InputError(f"--t-final is {self.t_final:g}: expected {least}")

    @property
    def critical(self) -> float:
        """Diffusion at which the uniform law loses its stability."""
        return stationary.critical_diffusion(self.beta, self.d, self.flow)


def uniform_runs(flags: NoisyTokens) -> dict[str, dict[str, Any]]:
    """Return runs of Brownian motion from one point until exp(-10) of its slowest mode is left."""
    dt = 0.05 / (flags.d - 1)
    start = np.tile(np.eye(flags.d)[0], (4 * flags.n, 1))
    heads = np.zeros((1, flags.d, flags.d))
    task = {"x0": start, "heads": heads, "t_final": 200 * dt, "dt": dt, "kappa": 1.0}
    return {"brownian": task | {"law": Frozen(), "save": SaveAt(budget=False), "seed": flags.seed}}


def budget_runs(flags: NoisyTokens) -> dict[str, dict[str, Any]]:
    """Return runs of the same problem at three steps."""
    x0 = wflow.tokens.uniform(flags.n // 10, flags.d, seed=flags.seed)
    law = OrnsteinUhlenbeck(np.eye(flags.d), rate=1.0, sigma2=2.0)
    return {
        f"ledger_{steps:03d}": {
            "x0": x0, "law": law, "heads": flags.ledger_heads, "t_final": flags.ledger_t,
            "dt": flags.ledger_t / steps, "paths": flags.ledger_paths, "seed": flags.seed,
            "kappa": flags.ledger_kappa, "flow": flags.flow, "save": SaveAt(every=steps // 50),
        }
        for steps in (50, 100, 200)
    }  # fmt: skip


def balances(files: dict[float, Path]) -> "study.Dataset":
    """Return means at the end of the runs and their standard errors, one row per step size."""
    rows: dict[str, list[float]] = {}
    for file in files.values():
        with wflow.open(file) as run:
            last = run.isel(time=-1)
            columns = {name: last[name].values for name in BUDGET}
            columns["energy_change"] = (last["energy"] - run["energy"][:, 0]).values
        for name, values in columns.items():
            mean, error = mean_and_error(values, finite=False)
            rows.setdefault(name, []).append(float(mean))
            rows.setdefault(f"{name}_error", []).append(float(error))
    import xarray  # here, so that --help does not wait for it

    return xarray.Dataset({name: ("dt", values) for name, values in rows.items()}, {"dt": [*files]})


def ordering(flags: NoisyTokens, session: study.Session) -> "study.Dataset":
    """Run ascent from a uniform cloud and from one cluster, at every diffusion.

    Return the square of the order parameter over time, its mean over the second half of the time,
    and the order parameter of the theory.
    """
    unit = 1 / ((flags.d - 1) * flags.critical)
    steps, paths = count_steps(flags.t_final, flags.dt), range(flags.paths)
    times = np.unique(np.rint(np.linspace(0, 1, 41) * steps)) * flags.dt * unit
    starts = {
        "uniform": wflow.tokens.uniform(flags.n, flags.d, seed=flags.seed),
        "cluster": wflow.tokens.clusters(flags.n, flags.d, clusters=1, spread=0.1, seed=flags.seed),
    }

    def reduce(run: "study.Dataset") -> dict[str, NDArray[np.float64]]:
        square, at = order_of(run), run["snapshot"].values
        late = square[:, at >= at[-1] / 2].mean(axis=1)
        return {"order": np.sqrt(np.maximum(late, 0.0)), "square": square}

    table = session.sweep(
        {
            "start": (STARTS, "initial cloud"),
            "ratio": (flags.ratios, "kappa over the critical one"),
        },
        reduce,
        {
            "order": (("path",), "order parameter"),
            "square": (("path", "time"), "square of the order parameter"),
        },
        {"path": (paths, "Monte Carlo path"), "time": (times, "time")},
        x0=lambda start: starts[start], law=Frozen(), heads=flags.beta * np.eye(flags.d)[None],
        t_final=steps * flags.dt * unit, dt=flags.dt * unit, paths=flags.paths, seed=flags.seed,
        kappa=lambda ratio: ratio * flags.critical, flow=flags.flow, direction="ascent",
        save=SaveAt(every=max(1, steps // 100), snapshots=times, paths=paths, budget=False),
    ).drop_vars("path")  # fmt: skip
    theory = [expected_order(flags, ratio) for ratio in flags.ratios]
    return table.assign(theory=("ratio", theory, {"long_name": "order parameter expected"}))


def order_of(run: "study.Dataset") -> NDArray:
    """Return the square of the order parameter of a run, (paths, times), corrected for finite n.

    The mean of <x_i, x_j> over pairs of different tokens is (n |mean token|^2 - 1)/(n - 1), and
    estimates the square of the order parameter.
    """
    n, mean = run.sizes["token"], run["tokens"].mean("token").values
    return (n * np.einsum("pta,pta->pt", mean, mean) - 1) / (n - 1)


def expected_order(flags: NoisyTokens, ratio: float) -> float:
    """Return the order of the stationary law; above the critical diffusion, of n tokens.

    The mean token m of n tokens in the uniform law follows an Ornstein-Uhlenbeck process of rate
    (d - 1)(kappa - critical) and E |m|^2 = (1/n) kappa/(kappa - critical).
    """
    if ratio <= 1:
        return stationary.stationary_order(flags.beta, flags.d, ratio * flags.critical, flags.flow)
    return float(min(1.0, 1 / np.sqrt((flags.n - 1) * (ratio - 1))))


def uniformity(file: Path) -> tuple[float, float]:
    """Return the smallest p-value of Kolmogorov-Smirnov tests of every coordinate, corrected."""
    from scipy.stats import beta, kstest

    with wflow.open(file) as run:
        tokens = run["tokens"].values[0, -1]
    d = tokens.shape[1]
    law = beta((d - 1) / 2, (d - 1) / 2)  # of (1 + x_k)/2 for a uniform token
    tests = [kstest((1 + tokens[:, k]) / 2, law.cdf) for k in range(d)]
    return min(1.0, d * min(t.pvalue for t in tests)), max(t.statistic for t in tests)


def findings(
    flags: NoisyTokens, ks: tuple[float, float], budget: "study.Dataset", order: "study.Dataset"
) -> list[Finding]:
    """Return the three predictions and what came out of each."""
    pvalue, distance = ks
    first = Finding.decided(
        "without interaction (H = 1, D = 0) the stationary law is uniform", THEORY,
        f"Kolmogorov-Smirnov distance at most {distance:.3g} over the coordinates, p = "
        f"{pvalue:.2g} (level {LEVEL:g})", pvalue > LEVEL,
    )  # fmt: skip
    residual, error = budget["edi_residual"].values, budget["edi_residual_error"].values
    ratio = residual[1:] / residual[:-1]
    spread = np.abs(ratio) * np.hypot(error[1:] / residual[1:], error[:-1] / residual[:-1])
    work = abs(budget["work_diffusion"].values[-1])
    off = np.append(ratio - 0.5, residual[-1])
    wide = 2 * np.append(spread, error[-1])
    second = Finding.within(
        "the balance closes in expectation: the residual halves with $dt$, and the last one is at "
        f"most {100 * SMALL:g} % of the work of the diffusion",
        "Itô's formula, docs/theory/energy.md",
        f"residual {listed(residual, error)}; ratios {listed(ratio, spread)}",
        off - wide, off + wide, np.append(np.full(ratio.size, HALF), SMALL * work),
    )  # fmt: skip
    mean = order["order"].mean("path").values  # (start, ratio)
    gap = np.abs(mean - order["theory"].values).max(axis=0)
    # Above the critical diffusion the order expected is small itself: compare with its size.
    theory, ratios = order["theory"].values, order["ratio"].values
    close = gap < np.where(ratios > 1, np.minimum(0.05, FLUCTUATION * theory), 0.05)
    at = ", ".join(f"{r:g}" for r in ratios[~close])
    within = f"order parameter within {gap[close].max(initial=0.0):.2g} of theory for both starts"
    beyond = f"at kappa = {at} critical off by up to {gap.max():.2g}"
    third = Finding.decided(
        "tokens order below the critical diffusion, as much as the stationary law does, and above "
        "it only by the fluctuations of n tokens", THEORY,
        within if close.all() else f"{within}, but {beyond}" if close.any() else beyond, close,
    )  # fmt: skip
    return [first, second, third]


# Tables and figures
# ------------------


def listed(values: NDArray, errors: NDArray) -> str:
    """Write values with their errors in a line."""
    return ", ".join(f"{v:.2g} ± {e:.1g}" for v, e in zip(values, errors, strict=True))


def report(flags: NoisyTokens, budget: "study.Dataset", order: "study.Dataset") -> str:
    """Write the two tables."""
    cells = {"dt": [f"{dt:g}" for dt in budget["dt"].values]}
    titles = {"energy_change": "E(T) - E(0)", "work_diffusion": "diffusion of tokens"}
    titles |= {"martingale_tokens": "martingale of tokens", "edi_residual": "residual"}
    for name, title in titles.items():
        pairs = zip(budget[name].values, budget[f"{name}_error"].values, strict=True)
        cells[title] = [f"{mean:.4f} ± {error:.1g}" for mean, error in pairs]
    mean = order["order"].mean("path")
    columns = {"kappa / critical": [f"{r:g}" for r in flags.ratios]}
    for start in STARTS:
        columns[f"from {start}"] = [f"{v:.3f}" for v in mean.sel(start=start).values]
    columns["theory"] = [f"{v:.3f}" for v in order["theory"].values]
    return (
        f"Energy balance, {flags.ledger_heads} Ornstein-Uhlenbeck heads, n = {flags.n // 10}, "
        f"d = {flags.d}, kappa = {flags.ledger_kappa:g}, T = {flags.ledger_t:g}, mean ± standard "
        f"error over {flags.ledger_paths} paths:\n\n{study.markdown_table(cells)}\n\n"
        f"Order parameter, one head D = {flags.beta:g} I, ascent, {flags.flow}, n = {flags.n}, "
        f"d = {flags.d}, mean over t >= T/2 and {flags.paths} paths; critical kappa "
        f"{flags.critical:.4f}:\n\n{study.markdown_table(columns)}"
    )


def order_figure(flags: NoisyTokens, order: "study.Dataset") -> "study.Figure":
    """Draw the order parameter against diffusion with the theory's curve, and over time."""
    from matplotlib.lines import Line2D

    with style():
        figure, axes = grid(1, 2, PAGE, 2.8)
        left, right = axes.flat
        for low, high, dash, label in (
            (min(flags.ratios), min(1.0, max(flags.ratios)), "-", "stationary law"),
            (max(1.05, min(flags.ratios)), max(flags.ratios), "--", "fluctuations of $n$ tokens"),
        ):
            if low < high:
                span = np.linspace(low, high, 60)
                curve = [expected_order(flags, r) for r in span]
                left.plot(span, curve, color="0.4", linestyle=dash, label=label)
        left.axvline(1.0, color="0.7", linewidth=0.8, linestyle=":")
        looks = {"uniform": ("o", "#0072B2", 7.5), "cluster": ("s", "#D55E00", 4.0)}
        for start, (marker, ink, size) in looks.items():
            values = order["order"].sel(start=start)
            error = values.std("path", ddof=1) / np.sqrt(flags.paths) if flags.paths > 1 else None
            left.errorbar(
                flags.ratios, values.mean("path"), yerr=error, fmt=marker, color=ink,
                markerfacecolor="none", markersize=size, capsize=2, label=f"from {start}",
            )  # fmt: skip
        left.set(xlabel=r"Diffusion $\kappa$ / critical $\kappa$", ylabel="Order parameter")
        left.set_ylim(-0.03, 1.03)
        left.legend(loc="upper right", handlelength=2.4)
        left.set_title(
            rf"{flags.flow}, ascent, $D = {flags.beta:g}\, I$, $n$ = {flags.n}, $d$ = {flags.d}"
        )
        for k, ratio in enumerate(flags.ratios):
            colour = shade(k, len(flags.ratios))
            for start, line in zip(STARTS, ("-", "--"), strict=True):
                square = order["square"].sel(start=start, ratio=ratio).values
                mean = np.sqrt(np.maximum(square.mean(axis=0), 0.0))
                name = f"{ratio:g}" if start == "uniform" else None
                right.plot(
                    order["time"], mean, color=colour, linestyle=line, linewidth=1, label=name
                )
                if len(square) > 1:
                    error = square.std(axis=0, ddof=1) / np.sqrt(len(square))
                    ends = square.mean(axis=0) + np.outer((-1, 1), error)
                    right.fill_between(order["time"], *np.sqrt(np.maximum(ends, 0.0)), color=colour,
                                       alpha=0.15, linewidth=0)  # fmt: skip
        right.set(ylim=(-0.03, 1.03), ylabel="Order parameter")
        time_axis(right)
        right.set_title(f"Mean of {flags.paths} paths; band: ± standard error")
        handles, names = right.get_legend_handles_labels()
        for start, line in zip(STARTS, ("-", "--"), strict=True):
            look: dict[str, Any] = {"color": "0.35", "linestyle": line, "linewidth": 1}
            handles.append(Line2D([], [], **look))
            names.append(f"from {start}")
        figure.legend(handles, names, title=r"$\kappa$ / critical", loc="outside right upper")
    return figure


def main() -> None:
    flags = study.command_line(NoisyTokens, __doc__)
    with study.session("noisy_tokens", flags) as session:
        files = session.solve(uniform_runs(flags) | budget_runs(flags))
        steps = {flags.ledger_t / k: files[f"ledger_{k:03d}"] for k in (50, 100, 200)}
        budget, order = balances(steps), ordering(flags, session)
        ks = uniformity(files["brownian"])
        figures = {"order": order_figure(flags, order)}
        with wflow.open(files["ledger_200"]) as run:
            figures["energy_balance"] = wflow.plots.energy_balance(run)
        table = budget.merge(order.drop_vars(["square", "time"])).assign(
            uniformity_pvalue=((), ks[0], {"long_name": "p-value of the uniform law, D = 0"})
        )
        session.finish(
            table, report(flags, budget, order), findings(flags, ks, budget, order), figures
        )


if __name__ == "__main__":
    script(main)
