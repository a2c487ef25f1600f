"""Mean-field limit from a thousand tokens to a million.

n tokens drawn independently and uniformly move under time-dependent heads, the same for every n;
each path is another draw of the tokens. Energy, dissipation and the first two moments of the tokens
are compared with the limit n -> infinity, for which `--reference` evenly spread points stand. The
sums over pairs are the fast ones wherever they take less time, so the cost is linear in n.

    python studies/mean_field_large.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, section 5.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from _mean_field import Sizes, clouds, evenly_spread

import wflow
from wflow import InputError, SaveAt, fits, study, tokens
from wflow.analysis.fits import PowerLaw, mean_and_error
from wflow.cli import script
from wflow.heads import Frozen, HeadLaw, Oscillating
from wflow.plots.figure import PAGE, caption, grid, log_log, shade, style, time_axis
from wflow.study import Direction, Finding, FloatArray, FlowName

Fits = dict[str, PowerLaw]
MARGIN = 0.1  # of a slope: the root mean square of a few draws is itself random
RESIDUAL = 10.0  # the residual of the energy budget may exceed that of the reference by this factor
QUANTITIES = {
    "energy": "energy E",
    "dissipation": "dissipation",
    "mean": "first moment (1/n) sum_i x_i",
    "second_moment": "second moment (1/n) sum_i x_i x_i^T",
}


@dataclass(frozen=True, kw_only=True)
class MeanFieldLarge(study.Flags):
    """Flags of this study."""

    n: Sizes = (1000, 4000, 16000, 64000, 250000, 1000000)
    """Numbers of tokens n."""
    reference: int = 1000000
    """Evenly spread points that stand for the limit."""
    d: Literal[2, 3] = 3
    """Dimension: the circle or the sphere."""
    law: Literal["oscillating", "frozen"] = "oscillating"
    """Head law: oscillating with spread phases, or frozen random heads."""
    heads: study.Count = 8
    """Number of heads H."""
    flow: FlowName = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    direction: Direction = "descent"
    """Whether the tokens move down or up the energy."""
    paths: study.TwoOrMore = 8
    """Independent draws of the tokens for each n; the run files hold 16 n d bytes of each."""
    tokens_seed: study.Natural = 42
    """Seed of the tokens."""
    t_final: study.Positive = 1.0
    dt: study.Positive = 0.05
    out: study.Folder = Path("results/mean_field_large")

    def check(self) -> None:
        super().check()
        if self.reference < self.n[-1]:
            raise InputError(
                f"--reference is {self.reference}: expected at least the largest --n, {self.n[-1]}"
            )


def common(flags: MeanFieldLarge, paths: int) -> dict[str, Any]:
    """Return the arguments of `wflow.solve` that all runs share, but for the number of paths."""
    law: HeadLaw = Oscillating(flags.d) if flags.law == "oscillating" else Frozen()
    return {
        "law": law, "heads": flags.heads, "t_final": flags.t_final, "dt": flags.dt, "paths": paths,
        "seed": flags.seed, "flow": flags.flow, "direction": flags.direction, "scheme": "heun",
        "save": SaveAt(snapshots=(flags.t_final,), paths=range(paths)),
    }  # fmt: skip


def at_end(ds: "study.Dataset") -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Return quantities at T, each (paths, components), and those of the run, (paths, time)."""
    series = {name: ds[name].values for name in ("time", "energy", "edi_residual")}
    series["sum_error"] = ds["sum_error"].values if "sum_error" in ds else np.zeros((1, 1))
    ends = {name: ds[name].isel(time=-1).values[:, None] for name in ("energy", "dissipation")}
    means, squares = [], []
    for place in range(ds.sizes["snapshot_path"]):  # one cloud in memory at a time
        x = ds["tokens"].isel(snapshot_path=place, snapshot=-1).values
        means.append(x.mean(axis=0))
        squares.append((x.T @ x / len(x)).ravel())
    return ends | {"mean": np.array(means), "second_moment": np.array(squares)}, series


def collect(
    flags: MeanFieldLarge, session: study.Session
) -> tuple["study.Dataset", dict[str, FloatArray]]:
    """Return squared deviations from the limit by n and path, and energies over time by run."""
    reference = {"x0": evenly_spread(flags.reference, flags.d), **common(flags, 1)}
    with wflow.open(session.solve({"reference": reference})["reference"]) as run:
        limit, series = at_end(run)
    energies = {"time": series["time"], "reference": series["energy"]}
    reference_residual = float(np.abs(series["edi_residual"]).max())

    def reduce(run: "study.Dataset", n: int) -> dict[str, FloatArray]:
        ends, series = at_end(run)
        energies[f"n = {n}"] = series["energy"]
        squared = {
            f"{key}_deviation_sq": np.sum((values - limit[key]) ** 2, axis=1)
            for key, values in ends.items()
        }
        error = np.broadcast_to(series["sum_error"].max(axis=1), flags.paths)
        residual = np.abs(series["edi_residual"]).max(axis=1)
        return squared | {"residual": residual, "sum_error": error}

    texts = {
        f"{name}_deviation_sq": f"squared deviation of the {text} at T"
        for name, text in QUANTITIES.items()
    }
    texts["residual"] = "largest residual of the energy balance in size"
    texts["sum_error"] = "largest estimated relative error of the sums; 0: exact sums"
    table = session.sweep(
        {"n": (flags.n, "number of tokens n")},
        reduce,
        {name: (("path",), text) for name, text in texts.items()},
        {"path": (np.arange(flags.paths), "draw of the tokens")},
        x0=lambda n: clouds(tokens.uniform, flags.tokens_seed, n, flags.d, flags.paths),
        **common(flags, flags.paths),
    )
    of_limit = {"long_name": f"{texts['residual']}, reference", "units": "1"}
    return table.assign(reference_residual=((), reference_residual, of_limit)), energies


def fit(table: "study.Dataset") -> Fits:
    """Fit a n^(2b) to the mean square of every deviation."""
    n = table["n"].values
    return {name: fits.power_law(n, table[f"{name}_deviation_sq"].values) for name in QUANTITIES}


def with_fits(table: "study.Dataset", laws: Fits) -> "study.Dataset":
    """Return the table with slopes and their intervals, for the summary."""
    added: dict[str, Any] = {}
    for name, law in laws.items():
        text = f"exponent b of the root mean square deviation a n^b of the {QUANTITIES[name]}"
        added[f"{name}_slope"] = ((), law.exponent / 2, text)
        ends = [bound / 2 for bound in law.exponent_ci]
        text += ", bootstrap interval over draws, 95 %"
        added[f"{name}_slope_ci"] = ("bound", ends, text)
    return table.merge(study.dataset(added, {"bound": (["low", "high"], "end of the interval")}))


def findings(flags: MeanFieldLarge, table: "study.Dataset", laws: Fits) -> list[Finding]:
    """Return every prediction with its verdict."""
    rows = [
        Finding.slope(
            f"the {QUANTITIES[name]} at T deviates from the limit like n^(-1/2): slope -0.5 "
            f"within {MARGIN:g}",
            "central limit theorem and propagation of chaos", law, -0.5, MARGIN, root=True,
        ).of_theorem()
        for name, law in laws.items()
    ]  # fmt: skip
    residual, of_limit = table["residual"].values, float(table["reference_residual"])
    rows.append(Finding.decided(
        "the energy balance closes as well for the largest number of tokens as for the least",
        "chain rule, docs/theory/energy.md",
        f"largest residual {residual[0].max():.2e} at n = {flags.n[0]}, "
        f"{residual[-1].max():.2e} at n = {flags.n[-1]}, {of_limit:.2e} for the limit",
        residual.max() <= RESIDUAL * of_limit,
    ))  # fmt: skip
    error = table["sum_error"].values
    if error.any():
        rows.append(Finding.decided(
            f"the fast sums keep their tolerance {flags.compute.tolerance:g}",
            "docs/theory/fast_sums.md", f"largest estimate {error.max():.2e}",
            error.max() <= flags.compute.tolerance,
        ))  # fmt: skip
    return rows


# Tables and figures
# ------------------


def report(flags: MeanFieldLarge, table: "study.Dataset", laws: Fits) -> str:
    """Return the tables."""
    columns: dict[str, list[str]] = {"n": [str(n) for n in flags.n]}
    for name in laws:
        mean_sq = table[f"{name}_deviation_sq"].mean("path").values
        columns[name.replace("_", " ")] = [f"{value:.3e}" for value in np.sqrt(mean_sq)]
    columns["largest residual"] = [f"{row.max():.2e}" for row in table["residual"].values]
    columns["error of the sums"] = [
        f"{row.max():.1e}" if row.any() else "exact" for row in table["sum_error"].values
    ]
    slopes = {
        "quantity": [name.replace("_", " ") for name in laws],
        "slope": [study.slope_text(law, root=True) for law in laws.values()],
    }
    return "\n\n".join((
        f"Uniform tokens, d = {flags.d}, H = {flags.heads} {flags.law} heads, {flags.flow}, "
        f"{flags.direction}, T = {flags.t_final:g}; root mean square deviation at T from the "
        f"limit ({flags.reference} evenly spread points) over {flags.paths} draws:",
        study.markdown_table(columns),
        "Slopes in n, with bootstrap intervals over the draws:",
        study.markdown_table(slopes),
    ))  # fmt: skip


def limit_figure(
    flags: MeanFieldLarge, table: "study.Dataset", laws: Fits, energies: dict[str, FloatArray]
) -> "study.Figure":
    """Draw deviations against n with the slope -1/2, and energies over time against the limit."""
    from matplotlib.ticker import NullFormatter, NullLocator

    n = table["n"].values.astype(float)
    fine = np.geomspace(n[0], n[-1], 50)
    looks = [("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "D"), ("#A0527F", "^")]
    with style():
        figure, axes = grid(1, 2, PAGE, 3.9)
        left, right = axes.flat
        for place, (name, law) in enumerate(laws.items()):
            colour, marker = looks[place % len(looks)]
            mean_sq, error = mean_and_error(table[f"{name}_deviation_sq"].values)
            middle = np.sqrt(mean_sq)
            low = np.sqrt(np.maximum(mean_sq - error, 0.0))
            bars = np.array([middle - low, np.sqrt(mean_sq + error) - middle])
            left.errorbar(
                n * 1.06 ** (place - (len(laws) - 1) / 2), middle,
                bars if np.isfinite(bars).all() else None, color=colour, marker=marker,
                linestyle="none", markersize=4, capsize=2, elinewidth=0.9, zorder=3,
                label=f"{name.replace('_', ' ')}: ${law.exponent / 2:.2f}$",
            )  # fmt: skip
            left.plot(fine, np.sqrt(law(fine)), color=colour, linewidth=0.9)
        anchor = float(np.sqrt(table["energy_deviation_sq"].mean("path").values[0]))
        left.plot(fine, 0.3 * anchor * (fine / n[0]) ** -0.5, color="0.5", linestyle=(0, (3, 1.5)),
                  linewidth=0.9, label="$n^{-1/2}$, predicted")  # fmt: skip
        log_log(left)
        left.xaxis.set_minor_formatter(NullFormatter())
        if n[-1] < 50 * n[0]:  # one or two powers of ten say little about a scale
            left.set_xticks(n, [f"{m:g}" for m in n])
            left.xaxis.set_minor_locator(NullLocator())
        left.set(xlabel="Number of tokens $n$", ylabel="Root mean square deviation at $T$")
        left.legend(title="Quantity: slope of the fit", loc="upper center", ncols=2,
                    bbox_to_anchor=(0.5, -0.2), handlelength=1.6)  # fmt: skip
        left.set_title(f"Bars: standard error of {table.sizes['path']} draws")
        time, limit = energies["time"], energies["reference"][0]
        for place, m in enumerate(table["n"].values[:3]):
            ink = shade(place, 3)
            away = energies[f"n = {m}"] - limit
            right.fill_between(time, away.min(axis=0), away.max(axis=0), color=ink, alpha=0.3,
                               linewidth=0, label=f"$n$ = {m}, range")  # fmt: skip
            right.plot(time, away.mean(axis=0), color=ink, linewidth=1.1,
                       marker="osD"[place], markevery=max(1, len(time) // 6),
                       label=f"$n$ = {m}, mean")  # fmt: skip
        right.axhline(0.0, color="black", linewidth=0.8)
        time_axis(right)
        right.set_ylabel("Energy $E_n(t) - E_\\infty(t)$")
        right.legend(loc="upper center", ncols=3, bbox_to_anchor=(0.5, -0.2), handlelength=1.6,
                     columnspacing=1.0, fontsize=7)  # fmt: skip
        right.set_title(f"Mean and range of {table.sizes['path']} draws")
        caption(
            figure,
            f"Uniform tokens, $d$ = {flags.d}, $H$ = {flags.heads} {flags.law} heads, "
            f"{flags.flow}, {flags.paths} draws; lines: fits $a\\,n^b$",
        )
    return figure


def main() -> None:
    flags = study.command_line(MeanFieldLarge, __doc__)
    with study.session("mean_field_large", flags) as session:
        table, energies = collect(flags, session)
        laws = fit(table)
        session.finish(
            with_fits(table, laws), report(flags, table, laws), findings(flags, table, laws),
            {"mean_field_limit": limit_figure(flags, table, laws, energies)},
        )  # fmt: skip


if __name__ == "__main__":
    script(main)
