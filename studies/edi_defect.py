"""Where the energy balance with the squared upper gradient G^2 holds, and where it does not.

[MHT] Theorem 4.13 states the balance with G^2. By the chain rule the energy falls at the rate
`dissipation`; the two rates are equal for one head, for heads of equal mobility, for the effective
and for the unnormalised flow, and differ by `edi_defect` for softmax attention with unequal heads.

    python studies/edi_defect.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870.
"""

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import _defect_figures as pictures
from wflow import study
from wflow._checks import number, whole
from wflow._problem import count_steps
from wflow.cli import guarded
from wflow.errors import InputError
from wflow.fits import mean_and_error
from wflow.heads import Frozen, OrnsteinUhlenbeck
from wflow.rng import INITIAL_HEADS, CounterNormals

if TYPE_CHECKING:
    from xarray import Dataset

Verdict = Literal["held", "held in part", "not held"]

SCHEMES = {"euler": 1, "heun": 2, "rk4": 4}
UNEQUAL = "softmax, unequal heads"
FLOOR = 2e-13  # residuals below this are rounding and say nothing about an order
SLOPE_TOLERANCE = 0.15
SIGMAS = 3.0  # standard errors within which a mean counts as zero


@dataclass(frozen=True, kw_only=True)
class EdiDefect(study.TokenFlags):
    """Flags of this study."""

    n: int | None = 60
    """Number of tokens; of digits or a FILE a random subset of that size."""
    t_final: float = 4.0
    """End time of the runs with frozen heads; those with noise end at half of it."""
    dt: float = 0.02
    """Largest time step; it is halved --halvings times."""
    halvings: int = 3
    """How often the step is halved."""
    heads: int = 5
    """Number of unequal (and of equal) frozen heads."""
    noisy_heads: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Head counts of the runs with Ornstein-Uhlenbeck heads."""
    paths: int = 64
    """Monte Carlo paths of the runs with noise; all share the initial tokens and heads."""
    sigma2: float = 2.0
    """Variance sigma^2 of the noise of the Ornstein-Uhlenbeck heads per unit time."""
    out: study.Folder = Path("results/edi_defect")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.heads, "--heads", 2, why="one head cannot be unequal")
        whole(self.halvings, "--halvings", 1, why="an order needs two steps")
        whole(self.paths, "--paths", 2, why="a standard error needs two")
        number(self.sigma2, "--sigma2", least=0.0)
        if self.sigma2 == 0:
            raise InputError("--sigma2 is 0: expected noise; frozen heads are there anyway")
        if len(set(self.noisy_heads)) < max(2, len(self.noisy_heads)):
            raise InputError("--noisy-heads: expected two or more head counts, each once")
        for count in self.noisy_heads:
            whole(count, "--noisy-heads")
        count_steps(self.t_final, self.dt)
        # The runs with noise end at T/2, and their late defect begins at T/4.
        if abs(self.t_final / 4 / self.noisy_steps[0] % 1 - 0.5) < 0.49:
            raise InputError(
                f"--t-final is {self.t_final:g}: expected a multiple of 2 --dt, {2 * self.dt:g}, "
                "so that the runs with noise have a step at a quarter of it"
            )

    @property
    def steps(self) -> list[float]:
        """Time steps of the frozen runs, from the largest."""
        return [self.dt / 2**k for k in range(self.halvings + 1)]

    @property
    def noisy_steps(self) -> list[float]:
        """Time steps of the runs with noise."""
        return [self.dt / 2, self.dt / 4, self.dt / 8]


def problems(unequal: NDArray[np.float64]) -> dict[str, dict[str, Any]]:
    """Frozen heads and flows to compare: name -> arguments of `wflow.solve`."""
    equal = np.repeat(unequal[:1], len(unequal), axis=0)
    return {
        "softmax, one head": {"heads": unequal[:1], "flow": "softmax"},
        "softmax, equal heads": {"heads": equal, "flow": "softmax"},
        UNEQUAL: {"heads": unequal, "flow": "softmax"},
        "effective, unequal heads": {"heads": unequal, "flow": "effective"},
        "unnormalised, unequal heads": {"heads": unequal, "flow": "unnormalised"},
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


LONG_NAMES = {
    "energy_change": "change of the energy, E(T) - E(0)",
    "edi_residual": "residual of the balance with the dissipation at T",
    "edi_residual_upper_gradient": "residual of the balance with G^2 at T",
    "defect": "integral of the defect, dissipation - G^2",
    "gap": "gap between the residuals less the left sum of the defect (rounding for euler)",
    "late_defect": "defect averaged over t >= T/2",
}


def order(steps: list[float], residuals: NDArray[np.float64]) -> float:
    """The order of a residual in the step, from the two smallest steps that are above rounding.

    inf where at most one residual is above rounding: it vanishes, at an order that cannot be told.
    """
    size = np.abs(residuals)
    used = np.flatnonzero(size > FLOOR)[-2:]
    if len(used) < 2:
        return math.inf
    ratio = math.log(steps[used[0]] / steps[used[1]])
    return math.log(size[used[0]] / size[used[1]]) / ratio


def cell(value: float, digits: int = 3) -> str:
    """A residual as the tables show it; rounding is told by its size."""
    return "< 1e-13" if abs(value) < 1e-13 else f"{value:.{digits - 1}e}"


def main() -> int:
    import xarray

    flags = study.command_line(EdiDefect, __doc__)
    x0 = flags.cloud()
    d = x0.shape[1]
    flags = replace(flags, n=len(x0), d=d)  # the summary says what they were
    z = CounterNormals(flags.seed).draw((flags.heads, d, d), path=0, step=0, purpose=INITIAL_HEADS)
    cases = problems(z + z.swapaxes(-1, -2))
    common = {"x0": x0, "seed": flags.seed, "ledger": True}
    tasks: dict[str, dict[str, Any]] = {}
    for p, case in enumerate(cases.values()):
        for scheme in SCHEMES:
            for k, dt in enumerate(flags.steps):
                tasks[f"frozen{p}_{scheme}_step{k}"] = common | case | {
                    "law": Frozen(), "t_final": flags.t_final, "dt": dt, "scheme": scheme,
                }  # fmt: skip
    law = OrnsteinUhlenbeck(np.eye(d), rate=1.0, sigma2=flags.sigma2)
    noisy = common | {"law": law, "t_final": flags.t_final / 2, "paths": flags.paths}
    for heads in flags.noisy_heads:
        for k, dt in enumerate(flags.noisy_steps):
            tasks[f"ou_H{heads:05d}_step{k}"] = noisy | {"heads": heads, "dt": dt}

    with study.session("edi_defect", flags) as session:
        files = session.solve(tasks)
        table = collect(flags, list(cases), files)
        for name in ("edi_residual", "edi_residual_upper_gradient"):
            slopes = [
                [order(flags.steps, table[name].sel(problem=p, scheme=s).values) for s in SCHEMES]
                for p in cases
            ]
            attrs = {"long_name": f"order in dt of {LONG_NAMES[name]}", "units": "1"}
            dims = ("problem", "scheme")
            table[f"order_{name}"] = xarray.DataArray(slopes, dims=dims, attrs=attrs)
        add_limits(table)
        sizes = f"$n$ = {flags.n}, $d$ = {flags.d}"
        facts = f"Energy balance at $T$ = {flags.t_final:g}, frozen heads: {sizes}, "
        noisy_facts = f"Ornstein-Uhlenbeck heads, softmax: {sizes}, {flags.paths} paths, "
        session.finish(
            table=table,
            text=report(flags, table),
            findings=findings(flags, table),
            figures={
                "residuals": pictures.residuals(
                    table,
                    [UNEQUAL, "effective, unequal heads", "softmax, one head"],
                    facts + f"$H$ = {flags.heads} or 1",
                ),
                "noise": pictures.noise(table, noisy_facts + f"$T$ = {flags.t_final / 2:g}"),
            },
        )
    return 0


def collect(flags: EdiDefect, cases: list[str], files: dict[str, Path]) -> "Dataset":
    """All numbers of the runs, with names."""
    import xarray

    shape = (len(cases), len(SCHEMES), len(flags.steps))
    noisy = (len(flags.noisy_heads), len(flags.noisy_steps), flags.paths)
    frozen = {name: np.empty(shape) for name in LONG_NAMES}
    random = {name: np.empty(noisy) for name in LONG_NAMES}
    for p in range(len(cases)):
        for s, scheme in enumerate(SCHEMES):
            for k, dt in enumerate(flags.steps):
                for name, value in balance(files[f"frozen{p}_{scheme}_step{k}"], dt).items():
                    frozen[name][p, s, k] = value[0]
    for h, heads in enumerate(flags.noisy_heads):
        for k, dt in enumerate(flags.noisy_steps):
            for name, value in balance(files[f"ou_H{heads:05d}_step{k}"], dt).items():
                random[name][h, k] = value
    variables: dict[str, Any] = {}
    for name, long_name in LONG_NAMES.items():
        attrs = {"long_name": f"{long_name}, frozen heads", "units": "1"}
        variables[name] = (("problem", "scheme", "step"), frozen[name], attrs)
        attrs = {"long_name": f"{long_name}, Ornstein-Uhlenbeck heads", "units": "1"}
        variables[f"ou_{name}"] = (("heads", "ou_step", "path"), random[name], attrs)
    coords = {
        "problem": ("problem", cases, {"long_name": "flow and frozen heads"}),
        "scheme": ("scheme", list(SCHEMES), {"long_name": "time stepping"}),
        "step": ("step", flags.steps, {"long_name": "time step", "units": "1"}),
        "heads": ("heads", list(flags.noisy_heads), {"long_name": "number of heads H"}),
        "ou_step": ("ou_step", flags.noisy_steps, {"long_name": "time step, with noise"}),
        "path": ("path", np.arange(flags.paths), {"long_name": "Monte Carlo path"}),
    }
    return xarray.Dataset(variables, coords)


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


def closes(table: "Dataset", name: str, problem: str) -> Verdict:
    """Whether a residual vanishes: at the order of every scheme or faster; at some lower order."""
    slopes = table[f"order_{name}"].sel(problem=problem).values
    orders = np.array(list(SCHEMES.values()))
    if np.all(slopes >= orders - SLOPE_TOLERANCE):
        return "held"
    # Steps that are not small yet show an order that is off; a defect shows none.
    return "held in part" if np.all(slopes >= orders / 2) else "not held"


def orders_text(table: "Dataset", name: str, problem: str) -> str:
    slopes = table[f"order_{name}"].sel(problem=problem).values
    cells = ["rounding" if math.isinf(slope) else f"{slope:.2f}" for slope in slopes]
    return ", ".join(f"{s} {text}" for s, text in zip(SCHEMES, cells, strict=True))


def findings(flags: EdiDefect, table: "Dataset") -> list[study.Finding]:
    """Every prediction, and what came out."""
    names = [str(problem) for problem in table["problem"].values]
    upper, plain = "edi_residual_upper_gradient", "edi_residual"
    chain = {closes(table, plain, problem) for problem in names}
    rows = [
        study.Finding(
            "E(t) falls by the integral of `dissipation`: the residual vanishes at the order of "
            "the scheme (1, 2, 4), for every flow and any heads",
            "chain rule",
            "; ".join(f"{problem}: {orders_text(table, plain, problem)}" for problem in names),
            chain.pop() if len(chain) == 1 else "held in part",
        )
    ]
    for problem in names:
        verdict = closes(table, upper, problem)
        last = table.sel(problem=problem, scheme="rk4").isel(step=-1)
        found = f"orders {orders_text(table, upper, problem)}"
        if verdict == "not held":
            found = (
                f"residual {float(last[upper]):.4f} against a change of the energy of "
                f"{float(last['energy_change']):.4f} (rk4, smallest step), whatever the step: "
                + found
            )
        source = "[MHT] Thm 4.13" + (", classical metric" if "unnormalised" in problem else "")
        rows.append(
            study.Finding(
                f"the balance with G^2 holds: {problem}",
                source,
                found,
                verdict,
            )
        )
    gap = max(
        float(table["gap"].sel(scheme="euler").max()),
        float((table["ou_gap"] / np.maximum(1, np.abs(table["ou_energy_change"]))).max()),
    )
    rows.append(
        study.Finding(
            "the two residuals differ by the integral of `edi_defect`, the covariance over heads "
            "of gradient and inverse mobility, and by nothing else",
            "docs/mathematics.md section 4",
            f"largest gap over all runs by euler: {gap:.0e}",
            "held" if gap < 1e-11 else "not held",
        )
    )
    for name, key in (("`dissipation`", plain), ("G^2", upper)):
        mean, error = table[f"ou_limit_{key}"].values, table[f"ou_limit_error_{key}"].values
        limits = dict(zip(flags.noisy_heads, zip(mean, error, strict=True), strict=True))
        away = [h for h, (value, error) in limits.items() if abs(value) > SIGMAS * error]
        source = "Ito's formula" if key == plain else "[MHT] Thm 4.13, eq. 148"
        rows.append(
            study.Finding(
                f"with noise, the mean residual with {name} vanishes with the step",
                source,
                "limit as dt -> 0: "
                + "; ".join(f"H = {h}: {v:.4f} ± {e:.4f}" for h, (v, e) in limits.items()),
                "held" if not away else "held in part" if len(away) < len(limits) else "not held",
            )
        )
    if "defect_exponent" in table.attrs:
        low, high = table.attrs["defect_exponent_ci"]
        rows.append(
            study.Finding(
                "the defect of Ornstein-Uhlenbeck heads falls with their number H",
                "docs/mathematics.md section 4",
                f"mean over t >= T/2 like H^b, b = {table.attrs['defect_exponent']:.3f} (95 % "
                f"interval {low:.3f} to {high:.3f}), H >= 2",
                "held" if high < 0 else "not held",
            )
        )
    return rows


def add_limits(table: "Dataset") -> None:
    """Add what the runs with noise say: residuals as dt -> 0, and the defect as a power of H.

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
    values = part.values  # (heads, paths)
    draws = np.random.default_rng(0).integers(values.shape[1], size=(2000, values.shape[1]))
    means = np.concatenate([values.mean(axis=1)[None], values[:, draws].mean(axis=2).T])
    if len(values) < 2 or np.any(means <= 0):
        return
    x = np.log(part["heads"].values)
    slopes = np.log(means) @ (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    prefactor = math.exp(float(np.log(means[0]).mean() - slopes[0] * x.mean()))
    low, high = np.quantile(slopes[1:], [0.025, 0.975])
    table.attrs["defect_prefactor"], table.attrs["defect_exponent"] = prefactor, float(slopes[0])
    table.attrs["defect_exponent_ci"] = [float(low), float(high)]


def report(flags: EdiDefect, table: "Dataset") -> str:
    """The tables."""
    rows: dict[str, list[str]] = {
        title: []
        for title in ("problem", "scheme", "dt", "E(T) - E(0)", "edi_residual",
                      "edi_residual_upper_gradient", "integral of edi_defect", "gap - integral")
    }  # fmt: skip
    for problem in table["problem"].values:
        for scheme in SCHEMES:
            for k, dt in enumerate(flags.steps):
                if scheme != "euler" and k < flags.halvings:
                    continue  # the orders below say the rest
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
                rows["gap - integral"].append(cell(float(at["gap"])) if scheme == "euler" else "")
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


if __name__ == "__main__":
    sys.exit(guarded(main))
