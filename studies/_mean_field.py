"""Draws, tables and figures of the studies of the mean-field limit."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow import InputError, study
from wflow._core.checks import whole
from wflow.analysis.fits import PowerLaw, mean_and_error
from wflow.plots.figure import PAGE, grid, log_axis, style, time_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

FloatArray = NDArray[np.float64]


def check_rising(values: Sequence[int], name: str) -> None:
    """Refuse sizes and dimensions, given by a flag, that are below 2 or do not rise."""
    for value in values:
        whole(value, name, 2)
    if not values or list(values) != sorted(set(values)):
        raise InputError(
            f"{name} is {' '.join(map(str, values))}: expected rising numbers, each once"
        )


def check_meshed(d: Sequence[int]) -> None:
    """Refuse dimensions, given by --d, that have no mesh."""
    study.distinct(d, "--d")
    if not set(d) <= {2, 3}:
        raise InputError(
            f"--d is {' '.join(map(str, d))}: expected 2, 3 or both, where there are meshes"
        )


def clouds(draw: Callable[..., FloatArray], seed: int, n: int, d: int, paths: int) -> FloatArray:
    """The draws (paths, n, d): independent between paths, sizes and dimensions."""
    return np.array([draw(n, d, seed=study.seed_of(seed, d, n, path)) for path in range(paths)])


def evenly_spread(n: int, d: int) -> FloatArray:
    """n points (n, d) on the circle at equal angles, or on the sphere along a golden spiral.

    On the spiral z goes up in equal steps and the longitude turns by the golden angle each time.
    """
    i = np.arange(n) + 0.5
    if d == 2:
        return np.column_stack((np.cos(2 * np.pi * i / n), np.sin(2 * np.pi * i / n)))
    z = 1 - 2 * i / n
    turn = np.pi * (3 - np.sqrt(5)) * i
    r = np.sqrt(1 - z * z)
    return np.column_stack((r * np.cos(turn), r * np.sin(turn), z))


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
    names = {
        "w2": r"Distance $W_2(\mu^n_t,\ \mu^{2n}_t)$",
        "energy_gap": r"Energy gap $|E_n(t) - E_{2n}(t)|$",
    }
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
            axis.set_xlabel("Number of tokens $n$")
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
    from matplotlib.ticker import NullFormatter, NullLocator

    n = table["n"].values.astype(float)
    fine = np.geomspace(n[0], n[-1], 50)
    looks = [("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "D"), ("#A0527F", "^")]
    with style():
        figure, axes = grid(1, 2, PAGE, 3.9)
        left, right = axes.flat
        for place, (name, law) in enumerate(laws.items()):
            colour, marker = looks[place % len(looks)]
            mean_sq, error = mean_and_error(
                table[f"{name}_deviation_sq"].transpose("n", "path").values
            )
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
        left.set_xscale("log")
        left.set_yscale("log")
        log_axis(left)
        left.xaxis.set_minor_formatter(NullFormatter())
        if n[-1] < 50 * n[0]:  # one or two powers of ten say little about a scale
            left.set_xticks(n, [f"{m:g}" for m in n])
            left.xaxis.set_minor_locator(NullLocator())
        left.set_xlabel("Number of tokens $n$")
        left.set_ylabel("Root mean square deviation at $T$")
        left.legend(title="Quantity: slope of the fit", loc="upper center", ncols=2,
                    bbox_to_anchor=(0.5, -0.2), handlelength=1.6)  # fmt: skip
        left.set_title(f"Bars: standard error of {table.sizes['path']} draws")
        time, limit = energies["time"], energies["reference"][0]
        for place, m in enumerate(table["n"].values[:3]):
            shade = colormaps["viridis"](0.84 * place / 2)
            away = energies[f"n{m:07d}"] - limit
            right.fill_between(time, away.min(axis=0), away.max(axis=0), color=shade, alpha=0.3,
                               linewidth=0, label=f"$n$ = {m}, range")  # fmt: skip
            right.plot(time, away.mean(axis=0), color=shade, linewidth=1.1,
                       marker="osD"[place], markevery=max(1, len(time) // 6),
                       label=f"$n$ = {m}, mean")  # fmt: skip
        right.axhline(0.0, color="black", linewidth=0.8)
        time_axis(right)
        right.set_ylabel("Energy $E_n(t) - E_\\infty(t)$")
        right.legend(loc="upper center", ncols=3, bbox_to_anchor=(0.5, -0.2), handlelength=1.6,
                     columnspacing=1.0, fontsize=7)  # fmt: skip
        right.set_title(f"Mean and range of {table.sizes['path']} draws")
        figure.suptitle(title, fontsize=8.5, x=0.01, ha="left")
    return figure
