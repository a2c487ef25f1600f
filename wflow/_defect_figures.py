"""Figures of the study `edi_defect`, from its table."""

from typing import TYPE_CHECKING, Any

import numpy as np

from wflow._figure import PAGE, grid, log_axis, style
from wflow.fits import mean_and_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

_RESIDUALS: list[tuple[str, str, dict[str, Any]]] = [
    ("edi_residual", "with dissipation", {"color": "#0072B2", "marker": "o"}),
    ("edi_residual_upper_gradient", "with $G^2$", {"color": "#D55E00", "marker": "s"}),
]
_STYLES: dict[str, dict[str, Any]] = {
    "euler": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "heun": {"color": "#E69F00", "marker": "s", "linestyle": (0, (5, 1.5))},
    "rk4": {"color": "#009E73", "marker": "D", "linestyle": (0, (1.5, 1))},
}


def residuals(table: "Dataset", shown: list[str], title: str) -> "Figure":
    """Both residuals of some problems against the step, one line per scheme."""
    steps = table["step"].values
    with style():
        figure, axes = grid(2, len(shown), PAGE, 4.4, sharex=True, sharey=True)
        for column, problem in enumerate(shown):
            for row, (name, label) in enumerate(
                (
                    ("edi_residual", "with dissipation"),
                    ("edi_residual_upper_gradient", "with $G^2$"),
                )
            ):
                axis = axes[row, column]
                for scheme, look in _STYLES.items():
                    size = np.abs(table[name].sel(problem=problem, scheme=scheme).values)
                    size = np.maximum(size, 1e-16)
                    axis.loglog(steps, size, label=scheme, **look)
                axis.set_title(problem if row == 0 else "")
                if row == 1:
                    axis.set_xlabel(r"$10^3 \times$ time step $\Delta t$")
                if column == 0:
                    axis.set_ylabel(f"|residual {label}|")
        axes[0, 0].set_xticks(steps, [f"{1e3 * dt:g}" for dt in steps])
        axes[0, 0].minorticks_off()
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        figure.suptitle(title, fontsize=8.5, x=0.01, ha="left")
    return figure


def noise(table: "Dataset", title: str) -> "Figure":
    """Limits of the mean residuals with noise, and the defect, against the number of heads."""
    heads = table["heads"].values
    with style():
        figure, axes = grid(1, 2, PAGE, 2.7)
        axis = axes[0, 0]
        for name, label, look in _RESIDUALS:
            mean = table[f"ou_limit_{name}"].values
            error = table[f"ou_limit_error_{name}"].values
            axis.errorbar(heads, mean, 2 * error, label=label, linestyle="-", capsize=2, **look)
        axis.axhline(0, color="#888888", linewidth=0.6, zorder=0)
        axis.set_xscale("log", base=2)
        axis.set_xticks(heads, [str(h) for h in heads])
        axis.set_xlabel("heads $H$")
        axis.set_ylabel(r"mean residual at $T$, $\Delta t \to 0$")
        axis.legend(loc="best")
        axis.set_title("bars: ± 2 standard errors")
        axis = axes[0, 1]
        mean, error = mean_and_error(table["ou_late_defect"].isel(ou_step=-1).values)
        many = (heads > 1) & (mean > 0)
        axis.errorbar(heads[many], mean[many], 2 * error[many], color="#D55E00", marker="s",
                      linestyle="none", capsize=2)  # fmt: skip
        exponent = table.attrs.get("defect_exponent")
        if exponent is not None:
            line = np.geomspace(heads[many].min(), heads[many].max(), 50)
            fitted = table.attrs["defect_prefactor"] * line**exponent
            axis.plot(line, fitted, color="#333333", linestyle=(0, (4, 2)),
                      label=f"$H^{{{exponent:.2f}}}$")  # fmt: skip
            axis.legend(loc="best")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        log_axis(axis)
        axis.set_xticks(heads[heads > 1], [str(h) for h in heads[heads > 1]])
        axis.set_xlabel("heads $H$")
        axis.set_ylabel(r"defect, mean over $t \geq T/2$")
        axis.set_title(f"$\\Delta t$ = {float(table['ou_step'][-1]):g}")
        figure.suptitle(title, fontsize=8.5, x=0.01, ha="left")
    return figure
