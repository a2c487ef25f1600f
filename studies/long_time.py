"""Long times: tokens come to rest where the heads stop changing the energy, and not elsewhere.

[MHT] Theorem 4.16: if int |dE/dt| dt < inf, where dE/dt is the change of the energy by the heads
alone, every omega-limit point of the tokens is stationary, so that G^2 vanishes. Here the heads are
frozen; relax to the identity (Ornstein-Uhlenbeck without noise); fluctuate about it (with noise,
for several head counts H); or follow an oscillating target with common or spread phases. For each
the study shows G^2, the integral of |dE/dt|, and how far the cloud goes between snapshots.

    python studies/long_time.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import clusters, study, transport
from wflow._checks import positive, whole
from wflow._problem import count_steps
from wflow.cli import guarded
from wflow.errors import InputError
from wflow.fits import PowerLaw, mean_and_error, power_law
from wflow.heads import Frozen, OrnsteinUhlenbeck, Oscillating

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

FloatArray = NDArray[np.float64]
Verdict = Literal["held", "held in part", "not held"]

SNAPSHOTS = 80  # intervals of time between snapshots
RECORDS = 1000  # times at which the ledger is recorded, about
SLOPE = (-1.15, -0.85)  # of the plateau of G^2 over the head count: like 1/H
THEOREM = "[MHT] Theorem 4.16"


@dataclass(frozen=True, kw_only=True)
class LongTime(study.TokenFlags):
    """Flags of this study."""

    n: int | None = 60
    """Number of tokens; of digits or a FILE a random subset of that size."""
    heads: int = 4
    """Head count of the runs with frozen and with relaxing heads."""
    noisy_heads: tuple[int, ...] = (4, 16, 64)
    """Head counts of the runs with noise."""
    spread_heads: tuple[int, ...] = (2, 4, 16)
    """Head counts of the runs with oscillating heads of spread phases."""
    sigma2: float = 2.0
    """Variance sigma^2 of the noise of the heads per unit time."""
    t_final: float = 200.0
    """End time T."""
    dt: float = 0.05
    """Time step of the runs without noise, by rk4."""
    noisy_dt: float = 0.01
    """Time step of the runs with noise, by euler."""
    paths: int = 32
    """Monte Carlo paths of the runs with noise; all share the initial tokens and heads."""
    out: study.Folder = Path("results/long_time")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.heads, "--heads")
        whole(self.paths, "--paths", 2, why="a standard error needs two")
        positive(self.sigma2, "--sigma2")
        for name in ("noisy_heads", "spread_heads"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise InputError(f"--{name.replace('_', '-')}: expected head counts, each once")
            for count in values:
                whole(count, f"--{name.replace('_', '-')}")
        for dt in (self.dt, positive(self.noisy_dt, "--noisy-dt")):
            steps = count_steps(self.t_final, dt)
            if steps < SNAPSHOTS:
                raise InputError(
                    f"--t-final {self.t_final:g} is {steps} steps of {dt:g}: expected "
                    f"{SNAPSHOTS} or more, one per snapshot; lower --dt and --noisy-dt"
                )


def tasks(flags: LongTime, x0: FloatArray) -> dict[str, dict[str, Any]]:
    """All runs: name -> arguments of `wflow.solve`."""
    d = x0.shape[1]
    snapshots = np.linspace(0, flags.t_final, SNAPSHOTS + 1).tolist()

    def run(law: Any, heads: int, dt: float, **more: Any) -> dict[str, Any]:
        every = max(1, count_steps(flags.t_final, dt) // RECORDS)
        return {
            "x0": x0, "law": law, "heads": heads, "t_final": flags.t_final, "dt": dt,
            "seed": flags.seed, "scheme": "rk4", "record_every": every, "snapshots": snapshots,
            "ledger": True,
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


def label(name: str, flags: LongTime) -> str:
    """What a run is called in tables and figures."""
    kind, _, count = name.partition("_")
    if kind == "frozen":
        many = {"": flags.heads, "one": 1, "effective": flags.heads}[count]
        return f"frozen, H = {many}" + (", effective" if count == "effective" else "")
    names = {"relaxing": "relaxing", "noisy": "with noise", "common": "common phases"}
    heads = int(count) if count else flags.heads
    return f"{names.get(kind, 'spread phases')}, H = {heads}"


def main() -> int:
    flags = study.command_line(LongTime, __doc__)
    x0 = flags.cloud()
    with study.session("long_time", flags) as session:
        files = session.solve(tasks(flags, x0))
        limits = {name: clusters.omega_limit(file) for name, file in files.items()}
        table = collect(files, limits, flags)
        fit = plateau(table, flags)
        session.finish(
            table=table,
            text=report(table, limits, fit, flags),
            findings=findings(limits, table, fit, flags),
            figures={"long_time": figure(files, table, flags, x0)},
        )
    return 0


def collect(
    files: dict[str, Path], limits: dict[str, clusters.OmegaLimit], flags: LongTime
) -> "Dataset":
    """The numbers of the runs, by name, and the series of W2 between snapshots."""
    import xarray

    columns: dict[str, list[float]] = {
        name: [] for name in (
            "first", "last", "exponent", "exponent_low", "exponent_high", "power_integral",
            "power_integral_tail", "power_late", "power_late_error", "dissipation_late",
            "dissipation_late_error", "residual_late", "w2_last",
        )
    }  # fmt: skip
    late_gradient = np.full((len(files), flags.paths), np.nan)
    w2 = np.full((len(files), SNAPSHOTS), np.nan)
    at: FloatArray = np.empty(0)
    for k, (name, file) in enumerate(files.items()):
        limit = limits[name]
        with wflow.open(file) as run:
            late = run["time"].values >= run["time"].values[-1] / 2
            gradient = run["upper_gradient_sq"].values[:, late].mean(axis=1)
            dissipation = run["dissipation"].values[:, late].mean(axis=1)
            residual = np.diff(run["edi_residual"].mean("path").values[late][[0, -1]])[0]
            residual /= np.diff(run["time"].values[late][[0, -1]])[0]
        power = limit.power_tail
        late_gradient[k, : len(gradient)] = gradient
        moved = transport.over_time(file, to="previous")
        w2[k], at = moved.values[0] / moved["elapsed"].values, moved["snapshot"].values
        mean, error = mean_and_error(dissipation)
        values = (
            limit.decay.mean[0], limit.decay.mean[-1], limit.decay.exponent,
            *limit.decay.exponent_ci, *limit.power_integral, *power, mean, error, residual,
            limit.w2_last,
        )  # fmt: skip
        for column, value in zip(columns.values(), values, strict=True):
            column.append(float(value))
    names = {
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
        "w2_last": "W2 between the last two snapshots",
    }
    dataset = xarray.Dataset(
        {
            name: (("run",), values, {"long_name": names[name], "units": "1"})
            for name, values in columns.items()
        },
        {
            "run": ("run", list(files), {"long_name": "run"}),
            "snapshot": ("snapshot", at, {"long_name": "time of the later snapshot", "units": "1"}),
        },
    )
    dataset["gradient_late"] = (
        ("run", "path"), late_gradient,
        {"long_name": "G^2, mean over the tail; NaN beyond the paths of a run", "units": "1"},
    )  # fmt: skip
    dataset["w2_speed"] = (
        ("run", "snapshot"), w2,
        {"long_name": "W2 between consecutive snapshots over their time, path 0", "units": "1"},
    )  # fmt: skip
    return dataset


def plateau(table: "Dataset", flags: LongTime) -> PowerLaw | None:
    """The plateau of G^2 against the head count of the runs with noise; None for one count."""
    if len(flags.noisy_heads) < 2:
        return None
    rows = [f"noisy_{count:05d}" for count in flags.noisy_heads]
    return power_law(np.array(flags.noisy_heads), table["gradient_late"].sel(run=rows).values)


def report(
    table: "Dataset",
    limits: dict[str, clusters.OmegaLimit],
    fit: PowerLaw | None,
    flags: LongTime,
) -> str:
    """The table of the runs, and what of the noise does not vanish."""
    rows: dict[str, list[str]] = {
        "heads": [], "G^2, first window": [], "last window": [], "p of t^-p": [], "tokens": [],
        "int abs(dE/dt)": [], "of it in the tail": [], "integrable": [], "last W2": [],
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
        rows["last W2"].append(f"{limit.w2_last:.1e}")
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


def findings(
    limits: dict[str, clusters.OmegaLimit],
    table: "Dataset",
    fit: PowerLaw | None,
    flags: LongTime,
) -> list[study.Finding]:
    """What the runs say about the theorem, its converse, and the noise."""
    quiet = {name: limit for name, limit in limits.items() if limit.integrable == "yes"}
    counter = [label(name, flags) for name, run in quiet.items() if run.verdict != "stationary"]
    text = f"{len(quiet) - len(counter)} of {len(quiet)} runs with integrable dE/dt are stationary"
    if counter:
        text += f"; not {', '.join(counter)}"
    theorem = study.Finding(
        "tokens come to rest where int |dE/dt| dt < inf", THEOREM, text,
        "held" if quiet and not counter else "not held" if len(counter) == len(quiet)
        else "held in part",
    )  # fmt: skip
    relaxing = limits["relaxing"]
    text = f"int |dE/dt| dt = {relaxing.power_integral[0]:.3g}, of it "
    text += f"{relaxing.power_integral[1]:.1e} in the tail; {relaxing.reasons[0]}"
    both = (relaxing.integrable == "yes") + (relaxing.verdict == "stationary")
    verdicts: tuple[Verdict, Verdict, Verdict] = ("not held", "held in part", "held")
    relax = study.Finding(
        "heads that relax to their mean are integrable, and the tokens come to rest",
        f"{THEOREM}, section 6", text, verdicts[both],
    )  # fmt: skip
    return [theorem, relax, noise_finding(limits, table, fit, flags), oscillating(limits, flags)]


def noise_finding(
    limits: dict[str, clusters.OmegaLimit],
    table: "Dataset",
    fit: PowerLaw | None,
    flags: LongTime,
) -> study.Finding:
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
        text += (
            f"tokens dissipate, {float(row['dissipation_late']):.3g}, but for the residual of the "
        )
        text += f"scheme, {float(row['residual_late']):.2g})"
    else:
        text += "the mean of dE/dt vanishes within its error"
    inverse = fit is not None and SLOPE[0] <= fit.exponent <= SLOPE[1]
    if fit is not None:
        text += f"; G^2 stays on a plateau like H^{fit.exponent:.3f}"
    verdict: Verdict = "not held"
    if len(resting) == len(noisy) and not fed:
        verdict = "held"
    elif inverse and len(moving) == len(noisy):
        verdict = "held in part"
        text += ": at rest in the limit of many heads only"
    return study.Finding(
        "heads with noise are integrable in expectation, and the tokens come to rest",
        "[MHT] section 6", text, verdict,
    )  # fmt: skip


def oscillating(limits: dict[str, clusters.OmegaLimit], flags: LongTime) -> study.Finding:
    names = [name for name in limits if name.startswith(("common", "spread"))]
    moving = [name for name in names if limits[name].verdict == "not stationary"]
    text = "; ".join(
        f"{label(name, flags)}: {limits[name].verdict}, last G^2 {limits[name].decay.mean[-1]:.1e}"
        for name in names
    )
    verdict: Verdict = "not held"
    if len(moving) == len(names):
        verdict = "held"
    elif "common" in moving:
        verdict = "held in part"
        text += " (many spread phases average out, and Theta_t hardly moves)"
    return study.Finding(
        "tokens do not come to rest under oscillating heads", "[MHT] section 6", text, verdict
    )


_COLOURS = {"frozen": "#000000", "relaxing": "#0072B2", "noisy": "#D55E00", "common": "#A0527F"}
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (5, 1.5, 1, 1.5)))
_MARKS = "os^D"


def figure(files: dict[str, Path], table: "Dataset", flags: LongTime, x0: FloatArray) -> "Figure":
    """G^2, the integral of |dE/dt| and the speed of the cloud in W2, over time, of all runs."""
    from wflow._figure import PAGE, grid, spaced, style, time_axis

    titles = (
        "squared upper gradient $G^2$",
        r"$\int_0^t |\overline{\partial_t E}|\, ds$, by the heads",
        r"$W_2$ per time between snapshots",
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
                gradient = run["upper_gradient_sq"].mean("path").values
                power = np.abs((run["weight_power"] + run["ito_power"]).mean("path").values)
            steps = np.diff(time) * (power[1:] + power[:-1]) / 2
            total = np.append(0.0, np.cumsum(steps))
            speed = table["w2_speed"].sel(run=name).values
            series = ((time, gradient), (time, total), (table["snapshot"].values, speed))
            for axis, (t, values) in zip(axes[0], series, strict=True):
                shown = np.where(values > 0, values, np.nan)
                axis.plot(t, shown, label=label(name, flags),
                          markevery=spaced(len(t), 5, number, len(files)), **look)  # fmt: skip
        for axis, title in zip(axes[0], titles, strict=True):
            axis.set_yscale("log")
            axis.set_title(title)
            time_axis(axis)
        axes[0, 0].set_ylim(bottom=1e-10)
        axes[0, 1].set_ylim(bottom=0.1)
        axes[0, 2].set_ylim(bottom=1e-5)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside lower center", ncols=3)
        n, d = x0.shape
        drawing.suptitle(
            f"$n$ = {n}, $d$ = {d}, softmax (one run effective), descent; with noise: mean over "
            f"{flags.paths} paths",
            fontsize=8.5, x=0.01, ha="left",
        )  # fmt: skip
    return drawing


if __name__ == "__main__":
    sys.exit(guarded(main))
