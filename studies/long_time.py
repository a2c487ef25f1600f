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
from typing import TYPE_CHECKING, Any

import numpy as np
from _long_time import NAMES, figure, label, report
from numpy.typing import NDArray

import wflow
from wflow import InputError, SaveAt, clusters, study, transport
from wflow._core.checks import count_steps, positive, whole
from wflow.analysis.fits import PowerLaw, mean_and_error, power_law
from wflow.cli import guarded
from wflow.heads import Frozen, OrnsteinUhlenbeck, Oscillating
from wflow.study import Finding
from wflow.study.frame import Verdict

if TYPE_CHECKING:
    from xarray import Dataset

FloatArray = NDArray[np.float64]
Limits = dict[str, clusters.OmegaLimit]
SNAPSHOTS = 80  # intervals of time between snapshots
RECORDS = 1000  # times at which the energy budget is recorded, about
SLOPE = (-1.15, -0.85)  # of the plateau of G^2 over the head count: like 1/H
THEOREM = "[MHT] Theorem 4.16"


@dataclass(frozen=True, kw_only=True)
class LongTime(study.TokenFlags):
    """Flags of this study."""

    n: study.Count | None = 60
    """Number of tokens; of digits or a FILE a random subset of that size."""
    heads: int = 4
    """Head count of the runs with frozen and with relaxing heads."""
    noisy_heads: tuple[int, ...] = (4, 16, 64)
    """Head counts of the runs with noise."""
    spread_heads: tuple[int, ...] = (2, 4, 16)
    """Head counts of the runs with oscillating heads of spread phases."""
    sigma2: study.Nonnegative = 2.0
    """Variance sigma^2 of the noise of the heads per unit time."""
    t_final: study.Positive = 200.0
    """End time T."""
    dt: study.Positive = 0.05
    """Time step of the runs without noise, by rk4."""
    noisy_dt: float = 0.01
    """Time step of the runs with noise, by euler."""
    paths: study.Count = 32
    """Monte Carlo paths of the runs with noise; all share the initial tokens and heads."""
    out: study.Folder = Path("results/long_time")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.heads, "--heads")
        whole(self.paths, "--paths", 2, why="a standard error needs two")
        positive(self.sigma2, "--sigma2")
        for name in ("noisy-heads", "spread-heads"):
            values = getattr(self, name.replace("-", "_"))
            study.distinct(values, f"--{name}")
            for count in values:
                whole(count, f"--{name}")
        for dt in (self.dt, positive(self.noisy_dt, "--noisy-dt")):
            if (steps := count_steps(self.t_final, dt)) < SNAPSHOTS:
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


def collect(files: dict[str, Path], limits: Limits, flags: LongTime) -> "Dataset":
    """The numbers of the runs, by name, and the series of W₂ between snapshots."""

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
    table = study.sweep({"run": (list(files), "run")}, measure, series | NAMES, along)
    return table.drop_vars("path")


def plateau(table: "Dataset", flags: LongTime) -> PowerLaw | None:
    """The plateau of G^2 against the head count of the runs with noise; None for one count."""
    if len(flags.noisy_heads) < 2:
        return None
    rows = [f"noisy_{count:05d}" for count in flags.noisy_heads]
    return power_law(np.array(flags.noisy_heads), table["gradient_late"].sel(run=rows).values)


def findings(
    limits: Limits, table: "Dataset", fit: PowerLaw | None, flags: LongTime
) -> list[Finding]:
    """What the runs say about the theorem, its converse, and the noise."""
    quiet = {name: limit for name, limit in limits.items() if limit.integrable == "yes"}
    counter = [label(name, flags) for name, run in quiet.items() if run.verdict != "stationary"]
    text = f"{len(quiet) - len(counter)} of {len(quiet)} runs with integrable dE/dt are stationary"
    if counter:
        text += f"; not {', '.join(counter)}"
    theorem = Finding.decided(
        "tokens come to rest where int |dE/dt| dt < inf", THEOREM, text,
        [run.verdict == "stationary" for run in quiet.values()],
    )  # fmt: skip
    relaxing = limits["relaxing"]
    text = f"int |dE/dt| dt = {relaxing.power_integral[0]:.3g}, of it "
    text += f"{relaxing.power_integral[1]:.1e} in the tail; {relaxing.reasons[0]}"
    relax = Finding.decided(
        "heads that relax to their mean are integrable, and the tokens come to rest",
        f"{THEOREM}, section 6", text,
        [relaxing.integrable == "yes", relaxing.verdict == "stationary"],
    )  # fmt: skip
    return [theorem, relax, noise_finding(limits, table, fit, flags), oscillating(limits, flags)]


def noise_finding(
    limits: Limits, table: "Dataset", fit: PowerLaw | None, flags: LongTime
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
    verdict: Verdict = "not confirmed"
    if len(resting) == len(noisy) and not fed:
        verdict = "confirmed"
    elif inverse and len(moving) == len(noisy):
        verdict = "confirmed in part"
        text += ": at rest in the limit of many heads only"
    return Finding(
        "heads with noise are integrable in expectation, and the tokens come to rest",
        "[MHT] section 6", text, verdict,
    )  # fmt: skip


def oscillating(limits: Limits, flags: LongTime) -> Finding:
    names = [name for name in limits if name.startswith(("common", "spread"))]
    moving = [name for name in names if limits[name].verdict == "not stationary"]
    text = "; ".join(
        f"{label(name, flags)}: {limits[name].verdict}, last G^2 {limits[name].decay.mean[-1]:.1e}"
        for name in names
    )
    if "common" in moving and len(moving) < len(names):
        text += " (many spread phases average out, and Theta_t hardly moves)"
    return Finding.decided(
        "tokens do not come to rest under oscillating heads", "[MHT] section 6", text,
        ["common" in moving and name in moving for name in names],
    )  # fmt: skip


def main() -> int:
    flags = study.command_line(LongTime, __doc__)
    with study.session("long_time", flags) as session:
        x0 = flags.cloud()
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


if __name__ == "__main__":
    sys.exit(guarded(main))
