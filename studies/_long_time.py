"""Numbers, tables and figure of the study `long_time`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import clusters, study
from wflow.analysis.fits import PowerLaw, mean_and_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

FloatArray = NDArray[np.float64]

NAMES = {
    "first": "G^2, mean of the first window of the tail (t >= T/2)",
    "last": "G^2, mean of the last window",
    "exponent": "p of the fit G^2 = c t^-p in the tail",
    "exponent_low": "lower end of its 95 % interval",
    "exponent_high": "upper end of its 95 % interval",
    "power_integral": "int |mean dE/dt| dt over all times",
    "power_integral_tail": "int |mean dE/dt| dt over the tail",
    "power_late": "dE/dt by the heads, mean over the second half of the tail and the paths",
    "power_late_error": "its standard error",
    "dissipation_late": "dissipation, mean over the tail and the paths",
    "dissipation_late_error": "its standard error",
    "residual_late": "residual of the energy balance per unit time over the tail",
    "w2_last": "W_2 between the last two snapshots",
}


def label(name: str, flags: Any) -> str:
    """What a run is called in tables and figures."""
    kind, _, count = name.partition("_")
    if kind == "frozen":
        many = {"": flags.heads, "one": 1, "effective": flags.heads}[count]
        return f"frozen, H = {many}" + (", effective" if count == "effective" else "")
    names = {"relaxing": "relaxing", "noisy": "with noise", "common": "common phases"}
    heads = int(count) if count else flags.heads
    return f"{names.get(kind, 'spread phases')}, H = {heads}"


def report(
    table: "Dataset",
    limits: dict[str, clusters.OmegaLimit],
    fit: PowerLaw | None,
    flags: Any,
) -> str:
    """The table of the runs, and what of the noise does not vanish."""
    rows: dict[str, list[str]] = {
        "heads": [], "G^2, first window": [], "last window": [], "p of t^-p": [], "tokens": [],
        "int abs(dE/dt)": [], "of it in the tail": [], "integrable": [], "last W_2": [],
    }  # fmt: skip
    for name, limit in limits.items():
        row = table.sel(run=name)
        rows["heads"].append(label(name, flags))
        rows["G^2, first window"].append(f"{float(row['first']):.2e}")
        rows["last window"].append(f"{float(row['last']):.2e}")
        low, high = limit.decay.exponent_ci
        rows["p of t^-p"].append(f"{limit.decay.exponent:.2f} ({low:.2f} to {high:.2f})")
        rows["tokens"].append(limit.verdict)
        rows["int abs(dE/dt)"].append(f"{limit.power_integral[0]:.3g}")
        rows["of it in the tail"].append(f"{limit.power_integral[1]:.1e}")
        rows["integrable"].append(limit.integrable)
        rows["last W_2"].append(f"{limit.w2_last:.1e}")
    noise: dict[str, list[str]] = {
        "H": [], "G^2": [], "power of the heads": [], "dissipation": [], "residual": [],
        "integrable": [],
    }  # fmt: skip
    for count in flags.noisy_heads:
        row = table.sel(run=f"noisy_{count:05d}")
        gradient, error = mean_and_error(row["gradient_late"].values)
        noise["H"].append(f"{count}")
        noise["G^2"].append(f"{gradient:.3g} ± {error:.1g}")
        for title, key in (
            ("power of the heads", "power_late"),
            ("dissipation", "dissipation_late"),
        ):
            noise[title].append(f"{float(row[key]):.3g} ± {float(row[f'{key}_error']):.1g}")
        noise["residual"].append(f"{float(row['residual_late']):.2g}")
        noise["integrable"].append(limits[f"noisy_{count:05d}"].integrable)
    slope = ""
    if fit is not None:
        low, high = fit.exponent_ci
        slope = f"\n\nG^2 of the runs with noise: slope {fit.exponent:.3f} in log-log over H "
        slope += f"({low:.3f} to {high:.3f})."
    return (
        f"T = {flags.t_final:g}; windows: eighths of the tail t >= T/2; dE/dt: the change of the "
        "energy by the heads alone, weight_power + ito_power, mean over the paths.\n\n"
        f"{study.markdown_table(rows)}\n\n"
        "Heads with noise, per unit time, averages over t >= T/2 (power: t >= 3T/4) and "
        f"{flags.paths} paths. In a steady state power + residual = dissipation; the residual is "
        f"that of the scheme, first order in the step {flags.noisy_dt:g}:\n\n"
        f"{study.markdown_table(noise)}{slope}"
    )


_COLOURS = {"frozen": "#000000", "relaxing": "#0072B2", "noisy": "#D55E00", "common": "#A0527F"}


_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (5, 1.5, 1, 1.5)))


_MARKS = "os^D"


def figure(files: dict[str, Path], table: "Dataset", flags: Any, x0: FloatArray) -> "Figure":
    """G^2, the integral of |dE/dt| and the speed of the cloud in W₂, over time, of all runs."""
    from wflow.plots.figure import PAGE, grid, spaced, style, time_axis

    labels_of = (
        "Squared upper gradient $G^2$",
        r"Change by the heads, $\int_0^t |\overline{\partial_s E}|\, ds$",
        r"$W_2$ per unit time between snapshots",
    )
    with style():
        drawing, axes = grid(1, 3, PAGE, 3.9)
        seen: dict[str, int] = {}
        for number, (name, file) in enumerate(files.items()):
            kind = name.partition("_")[0]
            k = seen[kind] = seen.get(kind, -1) + 1
            look = {
                "color": _COLOURS.get(kind, "#009E73"), "linestyle": _DASHES[k % 4],
                "marker": _MARKS[k % 4], "linewidth": 1.0, "markersize": 3.0,
            }  # fmt: skip
            with wflow.open(file) as run:
                time = run["time"].values
                gradient, error = mean_and_error(run["upper_gradient_sq"].values, axis=0)
                power = np.abs((run["weight_power"] + run["ito_power"]).mean("path").values)
            steps = np.diff(time) * (power[1:] + power[:-1]) / 2
            total = np.append(0.0, np.cumsum(steps))
            speed = table["w2_speed"].sel(run=name).values
            series = ((time, gradient), (time, total), (table["snapshot"].values, speed))
            for axis, (t, values) in zip(axes[0], series, strict=True):
                shown = np.where(values > 0, values, np.nan)
                axis.plot(t, shown, label=label(name, flags).replace("H =", "$H$ ="),
                          markevery=spaced(len(t), 5, number, len(files)), **look)  # fmt: skip
            if np.isfinite(error).all():
                low = np.maximum(gradient - error, 1e-300)
                axes[0, 0].fill_between(time, low, gradient + error, color=look["color"], alpha=0.2,
                                        linewidth=0)  # fmt: skip
        for axis, text in zip(axes[0], labels_of, strict=True):
            axis.set_yscale("log")
            axis.set_ylabel(text)
            time_axis(axis)
        axes[0, 0].set_ylim(bottom=1e-10)
        axes[0, 1].set_ylim(bottom=0.1)
        axes[0, 2].set_ylim(bottom=1e-5)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside lower center", ncols=3)
        n, d = x0.shape
        drawing.suptitle(
            f"$n$ = {n}, $d$ = {d}, softmax (one run effective), descent; with noise: mean over "
            f"{flags.paths} paths, band: ± standard error",
            fontsize=8.5, x=0.01, ha="left",
        )  # fmt: skip
    return drawing
