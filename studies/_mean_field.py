"""Draws, tables and figures of the studies of the mean-field limit."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow import InputError, study
from wflow.analysis.fits import PowerLaw, mean_and_error
from wflow.plots.figure import PAGE, grid, log_axis, style, time_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

FloatArray = NDArray[np.float64]


def check_rising(values: Sequence[int], name: str) -> None:
    """Refuse sizes and dimensions, given by a flag, that are below 2 or do not rise."""
    for value in values:
        study.whole(value, name, 2)
    if not values or list(values) != sorted(set(values)):
        raise InputError(
            f"{name} is {' '.join(map(str, values))}: expected rising numbers, each once"
        )


def clouds(draw: Callable[..., FloatArray], seed: int, n: int, d: int, paths: int) -> FloatArray:
    """The draws (paths, n, d): independent between paths, sizes and dimensions."""
    return np.array([draw(n, d, seed=study.seed_of(seed, d, n, path)) for path in range(paths)])


def limit_report(
    flags: Any,
    table: "Dataset",
    laws: Mapping[tuple[str, int, int], PowerLaw],
    known: Mapping[int, tuple[str, float]],
) -> str:
    """The tables of `mean_field_limit`; known: d -> rate of W₂ in words, and its slope."""
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
        row = {"d": str(d), "known rate of W_2": known[d][0], "its slope": f"{known[d][1]:.3f}"}
        for name, title in titles.items():
            for k, when in enumerate("0T"):
                row[f"{title}, t = {when}"] = study.slope_text(laws[name, i, k])
        slopes.append(row)
    return "\n\n".join(
        (
            f"{flags.tokens} tokens, H = {flags.heads}, sigma^2 = {flags.sigma2:g}, {flags.flow}, "
            f"{flags.direction}, T = {flags.t_final:g}; mean and standard error over "
            f"{flags.paths} draws:",
            study.markdown_table(rows),
            "Slopes in n, with bootstrap intervals over the draws:",
            study.markdown_table(slopes),
            "W₂ is geodesic and exact, between a cloud of n tokens and an independent one of 2n.",
        )
    )


def large_report(flags: Any, table: "Dataset", laws: Mapping[str, PowerLaw]) -> str:
    """The tables of `mean_field_large`."""
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
    return "\n\n".join(
        (
            f"Uniform tokens, d = {flags.d}, H = {flags.heads} {flags.law} heads, {flags.flow}, "
            f"{flags.direction}, T = {flags.t_final:g}; root mean square deviation at T from the "
            f"limit ({flags.reference} evenly spread points) over {flags.paths} draws:",
            study.markdown_table(columns),
            "Slopes in n, with bootstrap intervals over the draws:",
            study.markdown_table(slopes),
        )
    )


def convergence_figure(
    table: "Dataset", laws: Mapping[tuple[str, int, int], PowerLaw], title: str
) -> "Figure":
    """W₂ and energy gap against n, in log-log, with the fits."""
    from matplotlib import colormaps
    from matplotlib.ticker import NullLocator

    n, dims = table["n"].values, table["d"].values
    fine = np.geomspace(n[0], n[-1], 50)
    names = {"w2": r"$W_2(\mu^n_t,\ \mu^{2n}_t)$", "energy_gap": r"$|E_n(t) - E_{2n}(t)|$"}
    with style():
        figure, axes = grid(1, 2, PAGE, 3.4)
        for axis, (name, label) in zip(axes.flat, names.items(), strict=True):
            for i, d in enumerate(dims):
                colour = colormaps["viridis"](0.84 * i / max(len(dims) - 1, 1))
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
            axis.set_xscale("log")
            axis.set_yscale("log")
            log_axis(axis)
            axis.set_xticks(n, [str(m) for m in n])
            axis.xaxis.set_minor_locator(NullLocator())
            axis.set_xlabel("number of tokens $n$")
            axis.set_ylabel(label)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(dims),
                      columnspacing=1.5)  # fmt: skip
        figure.suptitle(title, fontsize=8.5, x=0.01, ha="left")
    return figure


def limit_figure(
    table: "Dataset", laws: Mapping[str, PowerLaw], energies: Mapping[str, FloatArray], title: str
) -> "Figure":
    """Deviations against n with the slope -1/2, and energies over time against the limit."""
    from matplotlib import colormaps

    n = table["n"].values.astype(float)
    fine = np.geomspace(n[0], n[-1], 50)
    with style():
        figure, axes = grid(1, 2, PAGE, 3.4)
        left, right = axes.flat
        for place, (name, law) in enumerate(laws.items()):
            colour = colormaps["viridis"](0.84 * place / (len(laws) - 1))
            mean_sq = table[f"{name}_deviation_sq"].mean("path").values
            left.plot(n, np.sqrt(mean_sq), color=colour, marker="osD^"[place], linestyle="none",
                      markersize=4.5, label=f"{name.replace('_', ' ')}, ${law.exponent / 2:.2f}$",
                      )  # fmt: skip
            left.plot(fine, np.sqrt(law(fine)), color=colour, linewidth=0.9)
        anchor = float(np.sqrt(table["energy_deviation_sq"].mean("path").values[0]))
        left.plot(fine, 0.3 * anchor * (fine / n[0]) ** -0.5, color="0.5", linestyle=(0, (3, 1.5)),
                  linewidth=0.9, label="$n^{-1/2}$")  # fmt: skip
        left.set_xscale("log")
        left.set_yscale("log")
        log_axis(left)
        left.set_xlabel("number of tokens $n$")
        left.set_ylabel("rms deviation from the limit at $T$")
        low, high = left.get_ylim()
        left.set_ylim(low, high * (high / low) ** 0.6)  # space for the legend above the lines
        left.legend(title="quantity, slope", loc="upper right")
        time = energies["time"]
        for place, m in enumerate(table["n"].values[:3]):
            colour = colormaps["viridis"](0.84 * place / 2)
            values = energies[f"n{m:07d}"]
            right.plot(time, values.T, color=colour, linewidth=0.6, alpha=0.8)
            right.plot([], [], color=colour, label=f"$n = {m}$")
        right.plot(time, energies["reference"][0], color="black", linewidth=1.4, label="limit")
        time_axis(right)
        right.set_ylabel("energy $E$")
        right.legend()
        figure.suptitle(title, fontsize=8.5, x=0.01, ha="left")
    return figure
