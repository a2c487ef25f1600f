"""Long times: tokens come to rest where the heads stop changing the energy, and not elsewhere.

[MHT] Theorem 4.16: if int |dE/dt| dt < inf, where dE/dt is the change of the energy by the heads
alone, every omega-limit point of the tokens is stationary, so that G^2 vanishes. Here the heads are
frozen; relax to the identity (Ornstein-Uhlenbeck without noise); fluctuate about it (with noise,
for several head counts H); or follow an oscillating target with common or spread phases. For each
the study shows G^2, the integral of |dE/dt|, and how far the cloud goes between snapshots.

    python studies/long_time.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import wflow
from wflow import InputError, SaveAt, clusters, study, transport
from wflow._core.checks import count_steps
from wflow.analysis.fits import PowerLaw, mean_and_error, power_law
from wflow.cli import script
from wflow.heads import Frozen, OrnsteinUhlenbeck, Oscillating
from wflow.plots.figure import PAGE, caption, grid, legend_below, spaced, style, time_axis
from wflow.study import Finding, FloatArray
from wflow.study.frame import Verdict

Limits = dict[str, clusters.OmegaLimit]
SNAPSHOTS = 80  # intervals of time between snapshots
RECORDS = 1000  # times at which the energy budget is recorded, about
REST = 1e-10  # of its largest value, of a G^2 that counts as zero
SLOPE = (-1.15, -0.85)  # of the plateau of G^2 over the head count: like 1/H
THEOREM = "[MHT] Theorem 4.16"
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


@dataclass(frozen=True, kw_only=True)
class LongTime(study.TokenFlags):
    """Flags of this study."""

    n: study.Count | None = 60
    """Number of tokens; of digits or a FILE a random subset of that size."""
    heads: study.Count = 4
    """Head count of the runs with frozen and with relaxing heads."""
    noisy_heads: study.Distinct[study.Count] = (4, 16, 64)
    """Head counts of the runs with noise."""
    spread_heads: study.Distinct[study.Count] = (2, 4, 16)
    """Head counts of the runs with oscillating heads of spread phases."""
    sigma2: study.Positive = 2.0
    """Variance sigma^2 of the noise of the heads per unit time."""
    t_final: study.Positive = 200.0
    dt: study.Positive = 0.05
    """Time step of the runs without noise, by rk4."""
    noisy_dt: study.Positive = 0.01
    """Time step of the runs with noise, by euler."""
    paths: study.TwoOrMore = 32
    """Monte Carlo paths of the runs with noise; all share the initial tokens and heads."""
    out: study.Folder = Path("results/long_time")

    def check(self) -> None:
        super().check()
        for dt in (self.dt, self.noisy_dt):
            if (steps := count_steps(self.t_final, dt)) < SNAPSHOTS:
                raise InputError(
                    f"--t-final {self.t_final:g} is {steps} steps of {dt:g}: expected "
                    f"{SNAPSHOTS} or more, one per snapshot; lower --dt and --noisy-dt"
                )


def tasks(flags: LongTime, x0: FloatArray) -> dict[str, dict[str, Any]]:
    """Return all runs: name -> arguments of `wflow.solve`."""
    d = x0.shape[1]
    snapshots = np.linspace(0, flags.t_final, SNAPSHOTS + 1).tolist()

    def run(law: Any, heads: int, dt: float, **more: Any) -> dict[str, Any]:
        every = max(1, count_steps(flags.t_final, dt) // RECORDS)
        return {
            "x0": x0, "law": law, "heads": heads, "t_final": flags.t_final, "dt": dt,
            "seed": flags.seed, "scheme": "rk4",
            "save": SaveAt(every=every, snapshots=snapshots, budget=True),
        } | more  # fmt: skip

    def relaxing(sigma2: float) -> OrnsteinUhlenbeck:
        return OrnsteinUhlenbeck(np.eye(d), rate=1.0, sigma2=sigma2)

    runs = {
        "frozen_one": run(Frozen(), 1, flags.dt),
        "frozen": run(Frozen(), flags.heads, flags.dt),
        "frozen_effective": run(Frozen(), flags.heads, flags.dt, flow="effective"),
        "relaxing": run(relaxing(0.0), flags.heads, flags.dt),
    }
    for count in flags.noisy_heads:
        noise = {"paths": flags.paths, "scheme": "euler"}
        runs[f"noisy_{count:05d}"] = run(relaxing(flags.sigma2), count, flags.noisy_dt, **noise)
    runs["common"] = run(Oscillating(d, phases="common"), flags.heads, flags.dt)
    for count in flags.spread_heads:
        runs[f"spread_{count:05d}"] = run(Oscillating(d, phases="spread"), count, flags.dt)
    return runs


def collect(flags: LongTime, files: dict[str, Path], limits: Limits) -> "study.Dataset":
    """Return the numbers of the runs, by name, and the series of W₂ between snapshots."""

    def measure(name: str) -> dict[str, Any]:
        limit, file = limits[name], files[name]
        with wflow.open(file) as run:
            time = run["time"].values
            late = time >= time[-1] / 2
            gradient = run["upper_gradient_sq"].values[:, late].mean(axis=1)
            dissipation = run["dissipation"].values[:, late].mean(axis=1)
            residual = np.diff(run["edi_residual"].mean("path").values[late][[0, -1]])[0]
            residual /= np.diff(time[late][[0, -1]])[0]
        moved = transport.over_time(file, to="previous")
        numbers = (
            limit.decay.mean[0], limit.decay.mean[-1], limit.decay.exponent,
            *limit.decay.exponent_ci, *limit.power_integral, *limit.power_tail,
            *mean_and_error(dissipation), residual, limit.w2_last,
        )  # fmt: skip
        return dict(zip(NAMES, map(float, numbers), strict=True)) | {
            "gradient_late": np.append(gradient, [np.nan] * (flags.paths - len(gradient))),
            "w2_speed": moved.values[0] / moved["elapsed"].values,
        }

    with wflow.open(list(files.values())[-1]) as run:
        at = run["snapshot"].values[1:]
    series: dict[str, Any] = {
        "gradient_late": (("path",), "G^2, mean over the tail; NaN beyond the paths of a run"),
        "w2_speed": (("snapshot",), "W_2 between consecutive snapshots over their time, path 0"),
    }
    along = {
        "path": (np.arange(flags.paths), "path"),
        "snapshot": (at, "time of the later snapshot"),
    }
    table = study.tabulate({"run": (list(files), "run")}, measure, series | NAMES, along)
    return table.drop_vars("path")


def plateau(flags: LongTime, table: "study.Dataset") -> PowerLaw | None:
    """Fit the plateau of G^2 against the head count of the runs with noise; None for one count."""
    if len(flags.noisy_heads) < 2:
        return None
    rows = [f"noisy_{count:05d}" for count in flags.noisy_heads]
    return power_law(np.array(flags.noisy_heads), table["gradient_late"].sel(run=rows).values)


def findings(
    flags: LongTime, table: "study.Dataset", limits: Limits, fit: PowerLaw | None
) -> list[Finding]:
    """Return what the runs say about the theorem, its converse, and the noise."""
    quiet = {name: limit for name, limit in limits.items() if limit.integrable == "yes"}
    counter = [
        f"{label(flags, name)} ({run.verdict})"
        for name, run in quiet.items()
        if run.verdict != "stationary"
    ]
    text = f"{len(quiet) - len(counter)} of {len(quiet)} runs with integrable dE/dt are stationary"
    if counter:
        text += f"; {', '.join(counter)}"
    theorem = Finding.decided(
        "tokens come to rest where int |dE/dt| dt < inf", THEOREM, text,
        [run.verdict == "stationary" for run in quiet.values()],
        known=[run.verdict != "undecided" for run in quiet.values()],
    ).of_theorem()  # fmt: skip
    relaxing = limits["relaxing"]
    text = f"int |dE/dt| dt = {relaxing.power_integral[0]:.3g}, of it "
    text += f"{relaxing.power_integral[1]:.1e} in the tail; {relaxing.reasons[0]}"
    relax = Finding.decided(
        "int |dE/dt| dt < inf for heads that relax to their mean, and the tokens come to rest",
        f"{THEOREM}, section 6", text,
        [relaxing.integrable == "yes", relaxing.verdict == "stationary"],
        known=[relaxing.integrable in ("yes", "no"), relaxing.verdict != "undecided"],
    )  # fmt: skip
    return [theorem, relax, of_noise(flags, table, limits, fit), of_oscillations(flags, limits)]


def of_noise(
    flags: LongTime, table: "study.Dataset", limits: Limits, fit: PowerLaw | None
) -> Finding:
    noisy = {count: limits[f"noisy_{count:05d}"] for count in flags.noisy_heads}
    resting = [count for count, limit in noisy.items() if limit.verdict == "stationary"]
    moving = [count for count, limit in noisy.items() if limit.verdict == "not stationary"]
    fed = [count for count, limit in noisy.items() if limit.integrable == "no"]
    text = f"tokens at rest for {len(resting)} of {len(noisy)} head counts; "
    if fed:
        few = min(fed)
        row = table.sel(run=f"noisy_{few:05d}")
        text += f"the mean of dE/dt does not vanish for H = {', '.join(map(str, fed))} (H = {few}: "
        text += f"{float(row['power_late']):.3g} ± {float(row['power_late_error']):.1g}, what the "
        text += f"tokens dissipate, {float(row['dissipation_late']):.3g}, but for the residual of "
        text += f"the scheme, {float(row['residual_late']):.2g})"
    else:
        text += "the mean of dE/dt vanishes within its error"
    inverse = fit is not None and SLOPE[0] <= fit.exponent <= SLOPE[1]
    if fit is not None:
        text += f"; G^2 stays on a plateau like H^{fit.exponent:.3f}"
    undecided = len(noisy) - len(resting) - len(moving)
    verdict: Verdict = "inconclusive" if undecided else "not confirmed"
    if len(resting) == len(noisy) and not fed:
        verdict = "confirmed"
    elif inverse and len(moving) == len(noisy):
        verdict = "confirmed in part"
        text += ": at rest in the limit of many heads only"
    return Finding(
        "int |dE/dt| dt < inf in expectation for heads with noise, and the tokens come to rest",
        "[MHT] section 6", text, verdict,
    )  # fmt: skip


def of_oscillations(flags: LongTime, limits: Limits) -> Finding:
    names = [name for name in limits if name.startswith(("common", "spread"))]
    moving = [name for name in names if limits[name].verdict == "not stationary"]
    text = "; ".join(
        f"{label(flags, name)}: {limits[name].verdict}, last G^2 {limits[name].decay.mean[-1]:.1e}"
        for name in names
    )
    if "common" in moving and len(moving) < len(names):
        text += " (many spread phases average out, and Theta_t hardly moves)"
    return Finding.decided(
        "tokens do not come to rest under oscillating heads", "[MHT] section 6", text,
        ["common" in moving and name in moving for name in names],
        known=[limits[name].verdict != "undecided" for name in names],
    )  # fmt: skip


# Tables and figures
# ------------------

COLOURS = {"frozen": "#000000", "relaxing": "#0072B2", "noisy": "#D55E00", "common": "#A0527F"}
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (5, 1.5, 1, 1.5)))
MARKS = "os^D"


def label(flags: LongTime, name: str) -> str:
    """Return what a run is called in tables and figures."""
    kind, _, count = name.partition("_")
    if kind == "frozen":
        many = {"": flags.heads, "one": 1, "effective": flags.heads}[count]
        return f"frozen, H = {many}" + (", effective" if count == "effective" else "")
    names = {"relaxing": "relaxing", "noisy": "with noise", "common": "common phases"}
    heads = int(count) if count else flags.heads
    return f"{names.get(kind, 'spread phases')}, H = {heads}"


def report(flags: LongTime, table: "study.Dataset", limits: Limits, fit: PowerLaw | None) -> str:
    """Return the table of the runs, and what of the noise does not vanish."""
    rows, noise = [], []
    for name, limit in limits.items():
        row, (low, high) = table.sel(run=name), limit.decay.exponent_ci
        rows.append({
            "heads": label(flags, name),
            "G^2, first window": f"{float(row['first']):.2e}",
            "last window": f"{float(row['last']):.2e}",
            "p of t^-p": f"{limit.decay.exponent:.2f} ({low:.2f} to {high:.2f})",
            "tokens": limit.verdict,
            "int abs(dE/dt)": f"{limit.power_integral[0]:.3g}",
            "of it in the tail": f"{limit.power_integral[1]:.1e}",
            "integrable": limit.integrable,
            "last W_2": f"{limit.w2_last:.1e}",
        })  # fmt: skip
    for count in flags.noisy_heads:
        name = f"noisy_{count:05d}"
        row = table.sel(run=name)
        power, error = float(row["power_late"]), float(row["power_late_error"])
        spent, spread = float(row["dissipation_late"]), float(row["dissipation_late_error"])
        noise.append({
            "H": f"{count}",
            "G^2": study.mean_text(row["gradient_late"].values),
            "power of the heads": f"{power:.3g} ± {error:.1g}",
            "dissipation": f"{spent:.3g} ± {spread:.1g}",
            "residual": f"{float(row['residual_late']):.2g}",
            "integrable": limits[name].integrable,
        })  # fmt: skip
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


def figure(
    flags: LongTime, table: "study.Dataset", files: dict[str, Path], x0: FloatArray
) -> "study.Figure":
    """Draw G^2, the integral of |dE/dt| and the speed of the cloud in W₂ over time, all runs."""
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
                "color": COLOURS.get(kind, "#009E73"), "linestyle": DASHES[k % 4],
                "marker": MARKS[k % 4], "linewidth": 1.0, "markersize": 3.0,
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
                axis.plot(t, shown, label=label(flags, name).replace("H =", "$H$ ="),
                          markevery=spaced(len(t), 5, number, len(files)), **look)  # fmt: skip
            if np.isfinite(error).all():
                low = np.maximum(gradient - error, 1e-300)
                axes[0, 0].fill_between(time, low, gradient + error, color=look["color"], alpha=0.2,
                                        linewidth=0)  # fmt: skip
        # Down to where tokens are at rest; G^2 is a squared speed.
        for axis, text, rest in zip(axes[0], labels_of, (REST, 0.0, REST**0.5), strict=True):
            axis.set(yscale="log", ylabel=text)
            values = np.concatenate([line.get_ydata() for line in axis.get_lines()])
            if (values := values[values > 0]).size:
                high = values.max()
                axis.set_ylim(max(values.min(), rest * high) / 1.5, 1.5 * high)
            time_axis(axis)
        legend_below(drawing, axes[0, 0], 3)
        n, d = x0.shape
        caption(
            drawing,
            f"$n$ = {n}, $d$ = {d}, softmax (one run effective), descent; with noise: mean over "
            f"{flags.paths} paths, band: ± standard error",
        )
    return drawing


def main() -> None:
    flags = study.command_line(LongTime, __doc__)
    with study.session("long_time", flags) as session:
        x0 = flags.cloud()
        files = session.solve(tasks(flags, x0))
        limits = {name: clusters.omega_limit(file, tolerance=REST) for name, file in files.items()}
        table = collect(flags, files, limits)
        fit = plateau(flags, table)
        session.finish(
            table, report(flags, table, limits, fit), findings(flags, table, limits, fit),
            {"long_time": figure(flags, table, files, x0)},
        )  # fmt: skip


if __name__ == "__main__":
    script(main)
