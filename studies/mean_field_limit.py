"""Mean-field limit: distance between clouds of n and 2n tokens of one law, against n.

For each n, a cloud of n tokens and an independent one of 2n tokens from the same law move under the
same Ornstein-Uhlenbeck heads; each path draws new clouds and new noise of the heads. How W₂
between the two and the gap of their energies fall with n, at the start and at the end, is compared
with the rates of independent samples, and the growth of W₂ with the bound of [MHT] Theorem 5.1.

    python studies/mean_field_limit.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, section 5.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from _mean_field import Dimensions, Sizes, clouds

import wflow
from wflow import SaveAt, fits, stability, study, tokens
from wflow._core.checks import count_steps
from wflow.analysis.fits import PowerLaw, mean_and_error
from wflow.cli import script
from wflow.heads import OrnsteinUhlenbeck
from wflow.plots.figure import PAGE, caption, grid, legend_below, log_log, shade, style
from wflow.study import Direction, Finding, FloatArray, FlowName, slope_text

Fits = dict[tuple[str, int, int], PowerLaw]
MARGIN = 0.05  # of a slope: less than what the rates of two dimensions differ by
LAWS = {"uniform": tokens.uniform, "cross-polytope": tokens.cross_polytope}
QUANTITIES = {"w2": "W_2 between n and 2n tokens", "energy_gap": "gap |E_n - E_2n| of the energies"}


@dataclass(frozen=True, kw_only=True)
class MeanFieldLimit(study.Flags):
    """Flags of this study."""

    tokens: Literal["uniform", "cross-polytope"] = "uniform"
    """Law from which the tokens are drawn independently."""
    tokens_seed: study.Natural = 42
    """Seed of the initial tokens."""
    n: Sizes = (25, 50, 100, 200, 400, 800)
    """Numbers of tokens n; each is compared with 2n."""
    d: Dimensions = (2, 3, 4)
    """Dimensions: tokens live on the sphere S^(d-1)."""
    heads: study.Count = 4
    """Number of heads H."""
    sigma2: study.Nonnegative = 2.0
    """Variance sigma^2 of the noise of the heads per unit time."""
    flow: FlowName = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    direction: Direction = "descent"
    """Whether the tokens move down or up the energy."""
    paths: study.TwoOrMore = 32
    """Independent draws of both clouds and of the noise of the heads."""
    t_final: study.Positive = 3.0
    dt: study.Positive = 0.02
    out: study.Folder = Path("results/mean_field_limit")


def rate_of(law: str, d: int) -> tuple[str, Callable[[FloatArray], FloatArray]]:
    """Return how W₂ between independent samples falls with n, up to a factor (docs/theory)."""
    if law == "cross-polytope" and d <= 5:
        return "n^(-1/4)", lambda n: n**-0.25
    if d == 2:
        return "n^(-1/2)", lambda n: n**-0.5
    if d == 3:
        return "(log n / n)^(1/2)", lambda n: np.sqrt(np.log(n) / n)
    return f"n^(-1/{d - 1})", lambda n: n ** (-1 / (d - 1))


def expected_slope(flags: MeanFieldLimit, d: int) -> float:
    """Return the slope in log-log of the known rate over the numbers of tokens of this study."""
    n = np.array(flags.n, float)
    return float(np.polyfit(np.log(n), np.log(rate_of(flags.tokens, d)[1](n)), 1)[0])


def run_name(d: int, n: int) -> str:
    return f"d{d}_n{n:05d}"


def tasks(flags: MeanFieldLimit) -> dict[str, dict[str, Any]]:
    """Return all runs: name -> arguments of `wflow.solve`."""
    draw = LAWS[flags.tokens]
    every = count_steps(flags.t_final, flags.dt)
    save = SaveAt(every=every, snapshots=(0.0, flags.t_final), paths=range(flags.paths))
    return {
        run_name(d, n): {
            "x0": clouds(draw, flags.tokens_seed, n, d, flags.paths),
            "law": OrnsteinUhlenbeck(np.eye(d), sigma2=flags.sigma2),
            "heads": flags.heads, "t_final": flags.t_final, "dt": flags.dt,
            "paths": flags.paths, "seed": flags.seed, "flow": flags.flow,
            "direction": flags.direction, "save": save,
        }
        for d in flags.d
        for n in sorted({*flags.n, *(2 * n for n in flags.n)})
    }  # fmt: skip


def collect(flags: MeanFieldLimit, files: dict[str, Path]) -> "study.Dataset":
    """Return W₂, energy gap and bound of every dimension, number of tokens and path, at 0 and T."""

    def measure(d: int, n: int) -> dict[str, FloatArray]:
        few, many = files[run_name(d, n)], files[run_name(d, 2 * n)]
        pair = stability.compare(few, many, costs=("geodesic",))
        with wflow.open(few) as a, wflow.open(many) as b:
            energies = [run["energy"].isel(time=[0, -1]).values for run in (a, b)]
        gap = np.abs(energies[0] - energies[1])
        w2, bound = pair["w2_geodesic"].values, pair["bound_geodesic"].values
        return {"w2": w2, "energy_gap": gap, "w2_bound": bound}

    each = ("path", "time")
    texts = QUANTITIES | {"w2_bound": "bound on W_2 by [MHT] Theorem 5.1, geodesic"}
    return study.tabulate(
        {"d": (flags.d, "dimension d"), "n": (flags.n, "number of tokens n")},
        measure,
        {name: (each, text) for name, text in texts.items()},
        {
            "path": (np.arange(flags.paths), "draw of tokens and heads"),
            "time": ([0.0, flags.t_final], "time"),
        },
        "W₂",
    )


def fit(table: "study.Dataset") -> Fits:
    """Fit a n^b to every quantity, dimension and time: (name, place of d, of the time) -> fit."""
    n = table["n"].values
    return {
        (name, i, k): fits.power_law(n, table[name].isel(d=i, time=k).values)
        for name in QUANTITIES
        for i in range(table.sizes["d"])
        for k in range(2)
    }


def with_fits(flags: MeanFieldLimit, table: "study.Dataset", laws: Fits) -> "study.Dataset":
    """Return the table with slopes and their intervals, for the summary."""
    places = [[(i, k) for k in range(2)] for i in range(len(flags.d))]
    known = [expected_slope(flags, d) for d in flags.d]
    text = "slope of the known rate of W_2 between independent samples, over the same n"
    added: dict[str, Any] = {"w2_slope_known": ("d", known, text)}
    for name, long_name in QUANTITIES.items():
        text = f"exponent b of the {long_name} = a n^b"
        slopes = [[laws[name, *at].exponent for at in row] for row in places]
        added[f"{name}_slope"] = (("d", "time"), slopes, text)
        text += ", bootstrap interval over paths, 95 %"
        ends = [[laws[name, *at].exponent_ci for at in row] for row in places]
        added[f"{name}_slope_ci"] = (("d", "time", "bound"), ends, text)
    return table.merge(study.dataset(added, {"bound": (["low", "high"], "end of the interval")}))


def findings(flags: MeanFieldLimit, table: "study.Dataset", laws: Fits) -> list[Finding]:
    """Return every prediction with its verdict."""
    names = [f"d = {d}:" for d in flags.d]
    known = {name: expected_slope(flags, d) for name, d in zip(names, flags.d, strict=True)}
    start, end = ({name: laws["w2", i, k] for i, name in enumerate(names)} for k in range(2))
    rates = "; ".join(f"{rate_of(flags.tokens, d)[0]} for d = {d}" for d in flags.d)
    text = f"falls like independent samples: {rates}; slope"
    at_start = Finding.slope(
        f"W₂ between n and 2n tokens at t = 0 {text} within {MARGIN}",
        "docs/theory/transport.md", start, known, MARGIN,
        note="; known " + ", ".join(f"{slope:.3f}" for slope in known.values()),
    )  # fmt: skip
    # At the end the flow may bring the clouds together faster, but not more slowly.
    at_end = Finding.decided(
        f"W₂ between n and 2n tokens at t = T {text} larger by at most {MARGIN}",
        "[MHT] Thm 5.1 and these rates",
        "; ".join(f"{name} {slope_text(f)}, known {known[name]:.3f}" for name, f in end.items()),
        [law.exponent - known[name] <= MARGIN for name, law in end.items()],
    )
    within = (table["w2"] <= table["w2_bound"] * (1 + 1e-9)).isel(time=1)
    ratio = (table["w2"].isel(time=1) / table["w2"].isel(time=0)).values
    bounded = Finding.decided(
        "W₂(T) <= (pi/2) exp(int L ds) W₂(0), C and L independent of n", "[MHT] Thm 5.1",
        f"for {int(within.sum())} of {within.size} pairs; W₂(T)/W₂(0) at most {ratio.max():.3g}",
        bool(within.all()),
    )  # fmt: skip
    growth = [fits.power_law(table["n"].values, values) for values in ratio]
    flat = Finding.decided(
        "the factor W₂(T)/W₂(0) does not grow with n", "[MHT] Thm 5.1",
        "; ".join(
            f"{name} mean {values[0].mean():.3g} at n = {flags.n[0]}, {values[-1].mean():.3g} at "
            f"n = {flags.n[-1]}, slope {slope_text(law)}"
            for name, values, law in zip(names, ratio, growth, strict=True)
        ),
        [law.exponent_ci[0] <= MARGIN and law.exponent <= MARGIN for law in growth],
    )  # fmt: skip
    gaps = [[laws["energy_gap", i, k] for k in range(2)] for i in range(len(flags.d))]
    energy = Finding.decided(
        f"the energy gap |E_n - E_2n| falls like n^(-1/2) or faster (slope <= {MARGIN - 0.5})",
        "central limit theorem",
        "; ".join(
            f"{name} {slope_text(first)} at 0, {slope_text(last)} at T"
            for name, (first, last) in zip(names, gaps, strict=True)
        ), [law.exponent <= -0.5 + MARGIN for pair in gaps for law in pair],
    )  # fmt: skip
    return [at_start, at_end, bounded, flat, energy]


# Tables and figures
# ------------------


def report(flags: MeanFieldLimit, table: "study.Dataset", laws: Fits) -> str:
    """Return the tables."""
    titles = {"w2": "W_2", "energy_gap": "energy gap"}
    rows = []
    for i, d in enumerate(flags.d):
        for j, n in enumerate(flags.n):
            at = table.isel(d=i, n=j)
            row = {"d": str(d), "n": str(n)}
            for name, title in titles.items():
                for k, when in enumerate("0T"):
                    row[f"{title}, t = {when}"] = study.mean_text(at[name].isel(time=k).values)
            ratio = at["w2"].isel(time=1) / at["w2"].isel(time=0)
            rows.append(row | {"W_2(T)/W_2(0)": study.mean_text(ratio.values)})
    slopes = []
    for i, d in enumerate(flags.d):
        row = {"d": str(d), "known rate of W_2": rate_of(flags.tokens, d)[0]}
        row["its slope"] = f"{expected_slope(flags, d):.3f}"
        for name, title in titles.items():
            for k, when in enumerate("0T"):
                row[f"{title}, t = {when}"] = study.slope_text(laws[name, i, k])
        slopes.append(row)
    return "\n\n".join((
        f"{flags.tokens} tokens, H = {flags.heads}, sigma^2 = {flags.sigma2:g}, {flags.flow}, "
        f"{flags.direction}, T = {flags.t_final:g}; mean and standard error over "
        f"{flags.paths} draws:",
        study.markdown_table(rows),
        "Slopes in n, with bootstrap intervals over the draws:",
        study.markdown_table(slopes),
        "W₂ is geodesic and exact, between a cloud of n tokens and an independent one of 2n.",
    ))  # fmt: skip


def convergence_figure(flags: MeanFieldLimit, table: "study.Dataset", laws: Fits) -> "study.Figure":
    """Draw W₂ and energy gap against n, in log-log, with the fits."""
    from matplotlib.ticker import NullLocator

    n, dims = table["n"].values, table["d"].values
    fine = np.geomspace(n[0], n[-1], 50)
    names = {
        "w2": r"Distance $W_2(\mu^n_t,\ \mu^{2n}_t)$",
        "energy_gap": r"Energy gap $|E_n(t) - E_{2n}(t)|$",
    }
    with style():
        figure, axes = grid(1, 2, PAGE, 3.4)
        for axis, (name, label) in zip(axes.flat, names.items(), strict=True):
            for i, d in enumerate(dims):
                colour = shade(i, len(dims))
                for k, when in enumerate(("0", "T")):
                    values = table[name].isel(d=i, time=k).values
                    mean, error = mean_and_error(values)
                    dash: Any = "-" if k else (0, (3, 1.5))
                    axis.plot(fine, laws[name, i, k](fine), color=colour, linestyle=dash,
                              linewidth=0.9)  # fmt: skip
                    axis.errorbar(
                        n, mean, yerr=error, color=colour, linestyle="none", elinewidth=0.8,
                        marker="osD^vP*X"[i % 8], markersize=4.5,
                        markerfacecolor=colour if k else "white", zorder=3,
                    )  # fmt: skip
                    axis.plot([], [], color=colour, linestyle=dash, marker="osD^vP*X"[i % 8],
                              markersize=4.5, markerfacecolor=colour if k else "white",
                              label=f"$d$ = {d}, $t$ = ${when}$")  # fmt: skip
            log_log(axis)
            axis.set_xticks(n, [str(m) for m in n])
            axis.xaxis.set_minor_locator(NullLocator())
            axis.set(xlabel="Number of tokens $n$", ylabel=label)
        legend_below(figure, axes[0, 0], len(dims), columnspacing=1.5)
        caption(
            figure,
            f"{flags.tokens} tokens, $H$ = {flags.heads}, {flags.flow}, $T$ = {flags.t_final:g}, "
            f"{flags.paths} draws; bars: ± standard error; lines: fits $a\\,n^b$",
        )
    return figure


def main() -> None:
    flags = study.command_line(MeanFieldLimit, __doc__)
    with study.session("mean_field_limit", flags) as session:
        files = session.solve(tasks(flags))
        table = collect(flags, files)
        laws = fit(table)
        session.finish(
            with_fits(flags, table, laws), report(flags, table, laws),
            findings(flags, table, laws), {"convergence": convergence_figure(flags, table, laws)},
        )  # fmt: skip


if __name__ == "__main__":
    script(main)
