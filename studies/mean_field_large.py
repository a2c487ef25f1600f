"""Mean-field limit from a thousand tokens to a million.

n tokens drawn independently and uniformly move under time-dependent heads, the same for every n;
each path is another draw of the tokens. Energy, dissipation and the first two moments of the tokens
are compared with the limit n -> infinity, for which `--reference` evenly spread points stand. The
sums over pairs are the fast ones wherever they take less time, so the cost is linear in n.

    python studies/mean_field_large.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, section 5.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from _mean_field import check_rising, clouds, evenly_spread, large_report, limit_figure
from numpy.typing import NDArray

import wflow
from wflow import InputError, SaveAt, fits, study, tokens
from wflow._core.checks import count_steps, whole
from wflow.cli import guarded
from wflow.heads import Frozen, HeadLaw, Oscillating
from wflow.study import Direction, Finding, FlowName

if TYPE_CHECKING:
    from xarray import Dataset

FloatArray = NDArray[np.float64]
Fits = dict[str, fits.PowerLaw]

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

    n: tuple[int, ...] = (1000, 4000, 16000, 64000, 250000, 1000000)
    """Numbers of tokens n."""
    reference: int = 1000000
    """Evenly spread points that stand for the limit."""
    d: Literal[2, 3] = 3
    """Dimension: the circle or the sphere."""
    law: Literal["oscillating", "frozen"] = "oscillating"
    """Head law: oscillating with spread phases, or frozen random heads."""
    heads: int = 8
    """Number of heads H."""
    flow: FlowName = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    direction: Direction = "descent"
    """Whether the tokens move down or up the energy."""
    paths: study.Count = 8
    """Independent draws of the tokens for each n; the run files hold 16 n d bytes of each."""
    tokens_seed: study.Natural = 42
    """Seed of the tokens."""
    t_final: study.Positive = 1.0
    """End time T."""
    dt: study.Positive = 0.05
    """Time step."""
    out: study.Folder = Path("results/mean_field_large")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.paths, "--paths", 2, why="an interval needs two")
        whole(self.heads, "--heads")
        whole(self.tokens_seed, "--tokens-seed", 0)
        study.distinct(self.n, "--n", 2)
        count_steps(self.t_final, self.dt, "--dt")
        check_rising(self.n, "--n")
        if self.reference < self.n[-1]:
            raise InputError(
                f"--reference is {self.reference}: expected at least the largest --n, {self.n[-1]}"
            )


def tasks(flags: MeanFieldLarge) -> dict[str, dict[str, Any]]:
    """All runs: name -> arguments of `wflow.solve`."""
    law: HeadLaw = Oscillating(flags.d) if flags.law == "oscillating" else Frozen()

    def task(x0: FloatArray) -> dict[str, Any]:
        paths = len(x0) if x0.ndim == 3 else 1
        return {
            "x0": x0, "law": law, "heads": flags.heads, "t_final": flags.t_final, "dt": flags.dt,
            "paths": paths, "seed": flags.seed, "flow": flags.flow, "direction": flags.direction,
            "scheme": "heun",
            "save": SaveAt(snapshots=(flags.t_final,), paths=range(paths)),
        }  # fmt: skip

    drawn = {
        f"n{n:07d}": task(clouds(tokens.uniform, flags.tokens_seed, n, flags.d, flags.paths))
        for n in flags.n
    }
    return drawn | {"reference": task(evenly_spread(flags.reference, flags.d))}


def at_end(file: Path) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Quantities at T, each (paths, components), and what belongs to the run, (paths, time)."""
    with wflow.open(file) as ds:
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
    flags: MeanFieldLarge, files: dict[str, Path], advance: Callable[[int], None]
) -> tuple["Dataset", dict[str, FloatArray]]:
    """Squared deviations from the limit by n and path, and the energies over time by run."""
    limit, series = at_end(files["reference"])
    advance(1)
    energies = {"time": series["time"], "reference": series["energy"]}
    reference_residual = float(np.abs(series["edi_residual"]).max())

    def measure(n: int) -> dict[str, FloatArray]:
        name = f"n{n:07d}"
        ends, series = at_end(files[name])
        energies[name] = series["energy"]
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
    table = study.sweep(
        {"n": (flags.n, "number of tokens n")},
        measure,
        {name: (("path",), text) for name, text in texts.items()},
        {"path": (np.arange(flags.paths), "draw of the tokens")},
        advance,
    )
    of_limit = {"long_name": f"{texts['residual']}, reference", "units": "1"}
    return table.assign(reference_residual=((), reference_residual, of_limit)), energies


def fit(table: "Dataset") -> Fits:
    """The mean square a n^(2b) of every deviation."""
    n = table["n"].values
    return {name: fits.power_law(n, table[f"{name}_deviation_sq"].values) for name in QUANTITIES}


def with_fits(table: "Dataset", laws: Fits) -> "Dataset":
    """The table with slopes and their intervals, for the summary."""
    added: dict[str, Any] = {}
    for name, law in laws.items():
        text = f"exponent b of the root mean square deviation a n^b of the {QUANTITIES[name]}"
        added[f"{name}_slope"] = ((), law.exponent / 2, text)
        ends = [bound / 2 for bound in law.exponent_ci]
        text += ", bootstrap interval over draws, 95 %"
        added[f"{name}_slope_ci"] = ("bound", ends, text)
    return table.merge(study.dataset(added, {"bound": (["low", "high"], "end of the interval")}))


def findings(flags: MeanFieldLarge, table: "Dataset", laws: Fits) -> list[Finding]:
    """Every prediction with its verdict."""
    rows = [
        Finding.slope(
            f"the {QUANTITIES[name]} at T deviates from the limit like n^(-1/2): slope -0.5 "
            f"within {MARGIN:g}",
            "central limit theorem and propagation of chaos", law, -0.5, MARGIN, root=True,
        )
        for name, law in laws.items()
    ]  # fmt: skip
    residual, of_limit = table["residual"].values, float(table["reference_residual"])
    rows.append(
        Finding.decided(
            "the energy balance closes as well for the largest number of tokens as for the least",
            "chain rule, docs/theory/energy.md",
            f"largest residual {residual[0].max():.2e} at n = {flags.n[0]}, "
            f"{residual[-1].max():.2e} at n = {flags.n[-1]}, {of_limit:.2e} for the limit",
            residual.max() <= RESIDUAL * of_limit,
        )
    )
    error = table["sum_error"].values
    if error.any():
        rows.append(
            Finding.decided(
                f"the fast sums keep their tolerance {flags.compute.tolerance:g}",
                "docs/theory/fast_sums.md", f"largest estimate {error.max():.2e}",
                error.max() <= flags.compute.tolerance,
            )
        )  # fmt: skip
    return rows


def main() -> int:
    flags = study.command_line(MeanFieldLarge, __doc__)
    with study.session("mean_field_large", flags) as session:
        files = session.solve(tasks(flags))
        with session.progress(len(files), "moments") as advance:
            table, energies = collect(flags, files, advance)
        laws = fit(table)
        title = (
            f"Uniform tokens, $d$ = {flags.d}, $H$ = {flags.heads} {flags.law} heads, "
            f"{flags.flow}, {flags.paths} draws; lines: fits $a\\,n^b$"
        )
        session.finish(
            table=with_fits(table, laws),
            text=large_report(flags, table, laws),
            findings=findings(flags, table, laws),
            figures={"mean_field_limit": limit_figure(table, laws, energies, title)},
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
