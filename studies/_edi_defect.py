"""Orders, limits, tables and figures of the study `edi_defect`."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import study
from wflow._core.tableaux import TABLEAUX
from wflow.analysis.fits import line, mean_and_error
from wflow.plots.figure import PAGE, grid, log_axis, style
from wflow.study import Finding
from wflow.study.frame import Verdict

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


_SCHEMES = {"euler": "Euler", "heun": "Heun", "rk4": "RK4"}


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
                    axis.loglog(steps, size, label=_SCHEMES[scheme], **look)
                axis.set_title(problem[:1].upper() + problem[1:] if row == 0 else "")
                if row == 1:
                    axis.set_xlabel(r"Time step $\Delta t$ ($10^{-3}$)")
                if column == 0:
                    axis.set_ylabel(f"|Residual| {label}")
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
        axis.set_xlabel("Number of heads $H$")
        axis.set_ylabel(r"Mean residual at $T$, $\Delta t \to 0$")
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
        axis.set_xlabel("Number of heads $H$")
        axis.set_ylabel(r"Defect, mean over $t \geq T/2$")
        axis.set_title(f"$\\Delta t$ = {float(table['ou_step'][-1]):g}; bars: ± 2 standard errors")
        figure.suptitle(title, fontsize=8.5, x=0.01, ha="left")
    return figure


# Name -> order; in a scheme of order 1 integrals are sums of what is recorded.
SCHEMES = {name: TABLEAUX[name].order for name in ("euler", "heun", "rk4")}


SLOPE_TOLERANCE = 0.15
SIGMAS = 3.0  # standard errors within which a mean counts as zero
FLOOR = 2e-13  # residuals below this are rounding, without information on the order


LONG_NAMES = {
    "energy_change": "change of the energy, E(T) - E(0)",
    "edi_residual": "residual of the balance with the dissipation at T",
    "edi_residual_upper_gradient": "residual of the balance with G^2 at T",
    "defect": "integral of the defect, dissipation - G^2",
    "gap": "gap between the residuals less the left sum of the defect (rounding for euler)",
    "late_defect": "defect averaged over t >= T/2",
}


def balance(file: Path, dt: float) -> dict[str, NDArray[np.float64]]:
    """The balance at the end of a run, per path: change of E, residuals, defect, their gap."""
    with wflow.open(file) as run:
        energy = run["energy"].values
        residual = run["edi_residual"].values[:, -1]
        upper = run["edi_residual_upper_gradient"].values[:, -1]
        spent = (run["dissipated"] - run["dissipated_upper_gradient"]).values[:, -1]
        rate = run["edi_defect"].values
        late = rate[:, run["time"].values >= run["time"].values[-1] / 2].mean(axis=1)
    summed = dt * rate[:, :-1].sum(axis=1)
    return {
        "energy_change": energy[:, -1] - energy[:, 0],
        "edi_residual": residual,
        "edi_residual_upper_gradient": upper,
        "defect": spent,
        "gap": np.abs(residual - upper - summed),
        "late_defect": late,
    }


def order(steps: list[float], residuals: NDArray[np.float64]) -> float:
    """The order of a residual in the step, from the two smallest steps that are above rounding.

    inf where at most one residual is above rounding: it vanishes, and its order cannot be
    estimated.
    """
    size = np.abs(residuals)
    used = np.flatnonzero(size > FLOOR)[-2:]
    if len(used) < 2:
        return math.inf
    ratio = math.log(steps[used[0]] / steps[used[1]])
    return math.log(size[used[0]] / size[used[1]]) / ratio


def cell(value: float, digits: int = 3) -> str:
    """A residual as the tables show it; rounding is recognised by its size."""
    return "< 1e-13" if abs(value) < 1e-13 else f"{value:.{digits - 1}e}"


def orders_text(table: "Dataset", name: str, problem: str) -> str:
    slopes = table[f"order_{name}"].sel(problem=problem).values
    cells = ["rounding" if math.isinf(slope) else f"{slope:.2f}" for slope in slopes]
    return ", ".join(f"{s} {text}" for s, text in zip(SCHEMES, cells, strict=True))


def intercept(steps: list[float], samples: NDArray[np.float64]) -> tuple[float, float]:
    """Limit of the mean of samples (steps, paths) as the step goes to 0, and its standard error.

    Weighted least squares of a line through the means, whose noises are independent.
    """
    mean, error = mean_and_error(samples)
    design = np.stack([np.ones(len(steps)), np.array(steps)], axis=1)
    weighted = design / error[:, None]
    covariance = np.linalg.inv(weighted.T @ weighted)
    line = covariance @ weighted.T @ (mean / error)
    return float(line[0]), float(np.sqrt(covariance[0, 0]))


def add_orders(table: "Dataset") -> None:
    """Add the orders in the step of both residuals of the runs with frozen heads."""
    steps = list(table["step"].values)
    for name in ("edi_residual", "edi_residual_upper_gradient"):
        slopes = [
            [order(steps, table[name].sel(problem=p, scheme=s).values) for s in SCHEMES]
            for p in table["problem"].values
        ]
        attrs = {"long_name": f"order in dt of {LONG_NAMES[name]}", "units": "1"}
        table[f"order_{name}"] = (("problem", "scheme"), slopes, attrs)


def add_limits(table: "Dataset") -> None:
    """Add the results of the runs with noise: residuals as dt -> 0, and the defect over H.

    The power law is that of the mean defect over t >= T/2, at the smallest step, H >= 2, with a
    bootstrap interval over paths: the mean is positive, not each path.
    """
    for key in ("edi_residual", "edi_residual_upper_gradient"):
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


def report(flags: Any, table: "Dataset") -> str:
    """The tables."""
    rows: dict[str, list[str]] = {
        title: []
        for title in ("problem", "scheme", "dt", "E(T) - E(0)", "edi_residual",
                      "edi_residual_upper_gradient", "integral of edi_defect", "gap - integral")
    }  # fmt: skip
    for problem in table["problem"].values:
        for scheme in SCHEMES:
            for k, dt in enumerate(flags.steps):
                if SCHEMES[scheme] > 1 and k < flags.halvings:
                    continue  # the orders below show the rest
                at = table.sel(problem=problem, scheme=scheme).isel(step=k)
                defect = float(at["defect"])
                rows["problem"].append(str(problem))
                rows["scheme"].append(scheme)
                rows["dt"].append(f"{dt:g}")
                rows["E(T) - E(0)"].append(f"{float(at['energy_change']):.4f}")
                rows["edi_residual"].append(cell(float(at["edi_residual"])))
                upper = float(at["edi_residual_upper_gradient"])
                rows["edi_residual_upper_gradient"].append(cell(upper))
                rows["integral of edi_defect"].append(
                    f"{defect:.4f}" if abs(defect) > 1e-12 else "0"
                )
                rows["gap - integral"].append(
                    cell(float(at["gap"])) if SCHEMES[scheme] == 1 else ""
                )
    slopes = {
        "problem": [str(p) for p in table["problem"].values],
        "order of edi_residual": [
            orders_text(table, "edi_residual", str(p)) for p in table["problem"].values
        ],
        "order of edi_residual_upper_gradient": [
            orders_text(table, "edi_residual_upper_gradient", str(p))
            for p in table["problem"].values
        ],
    }
    noisy: dict[str, list[str]] = {
        title: []
        for title in (
            "H",
            "dt",
            "edi_residual",
            "edi_residual_upper_gradient",
            "edi_defect, t >= T/2",
        )
    }
    for heads in flags.noisy_heads:
        for k, dt in enumerate(flags.noisy_steps):
            at = table.sel(heads=heads).isel(ou_step=k)
            noisy["H"].append(str(heads))
            noisy["dt"].append(f"{dt:g}")
            for title, name in (
                ("edi_residual", "ou_edi_residual"),
                ("edi_residual_upper_gradient", "ou_edi_residual_upper_gradient"),
                ("edi_defect, t >= T/2", "ou_late_defect"),
            ):
                mean, error = mean_and_error(at[name].values)
                known = abs(float(mean)) > 1e-12
                noisy[title].append(f"{float(mean):.4f} ± {float(error):.4f}" if known else "0")
    return "\n\n".join(
        (
            f"Frozen heads, T = {flags.t_final:g}:",
            study.markdown_table(rows),
            "Order in dt, between the two smallest steps:",
            study.markdown_table(slopes),
            f"Ornstein-Uhlenbeck heads, softmax, T = {flags.t_final / 2:g}, {flags.paths} paths, "
            "mean ± standard error:",
            study.markdown_table(noisy),
        )
    )


def closes(table: "Dataset", name: str, problem: str) -> Verdict:
    """Whether a residual vanishes: at the order of every scheme or faster; at some lower order."""
    slopes = table[f"order_{name}"].sel(problem=problem).values
    orders = np.array(list(SCHEMES.values()))
    if np.all(slopes >= orders - SLOPE_TOLERANCE):
        return "confirmed"
    # Steps that are not small yet show an order that is off; a defect shows none.
    return "confirmed in part" if np.all(slopes >= orders / 2) else "not confirmed"


def of_noise(flags: Any, table: "Dataset") -> list[Finding]:
    """Findings of the runs with noise: residuals as dt -> 0, and the defect over the head count."""
    rows = []
    for name, key in (("`dissipation`", "edi_residual"), ("G^2", "edi_residual_upper_gradient")):
        mean, error = table[f"ou_limit_{key}"].values, table[f"ou_limit_error_{key}"].values
        limits = dict(zip(flags.noisy_heads, zip(mean, error, strict=True), strict=True))
        away = [h for h, (value, error) in limits.items() if abs(value) > SIGMAS * error]
        source = "Itô's formula" if key == "edi_residual" else "[MHT] Thm 4.13, eq. 148"
        rows.append(
            Finding.decided(
                f"with noise, the mean residual with {name} vanishes with the step",
                source,
                "limit as dt -> 0: "
                + "; ".join(f"H = {h}: {v:.4f} ± {e:.4f}" for h, (v, e) in limits.items()),
                [h not in away for h in limits],
            )
        )
    if "defect_exponent" in table.attrs:
        low, high = table.attrs["defect_exponent_ci"]
        rows.append(
            Finding.decided(
                "the defect of Ornstein-Uhlenbeck heads falls with their number H",
                "docs/theory/energy.md",
                f"mean over t >= T/2 like H^b, b = {table.attrs['defect_exponent']:.3f} (95 % "
                f"interval {low:.3f} to {high:.3f}), H >= 2",
                high < 0,
            )
        )
    return rows
