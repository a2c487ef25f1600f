"""The mean-field limit from a thousand tokens to a million.

n tokens drawn independently and uniformly move under time-dependent heads, the same for every n;
each path is another draw of the tokens. Energy, dissipation and the first two moments of the tokens
are held against the limit n -> infinity, for which `--reference` evenly spread points stand. The
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
from numpy.typing import NDArray

from wflow import study, tokens
from wflow._checks import whole
from wflow._problem import count_steps
from wflow.cli import guarded
from wflow.errors import InputError
from wflow.fits import PowerLaw, power_law
from wflow.heads import Frozen, HeadLaw, Oscillating

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

FloatArray = NDArray[np.float64]

MARGIN = 0.1  # of a slope: the root mean square of a few draws is itself random
RESIDUAL = 10.0  # the ledger's residual may exceed that of the reference by this factor
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
    flow: Literal["softmax", "unnormalised", "effective"] = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    direction: Literal["descent", "ascent"] = "descent"
    """Whether the tokens move down or up the energy."""
    paths: int = 8
    """Independent draws of the tokens for each n; the run files hold 16 n d bytes of each."""
    tokens_seed: int = 42
    """Seed of the tokens."""
    t_final: float = 1.0
    """End time T."""
    dt: float = 0.05
    """Time step."""
    method: Literal["auto", "exact", "fast"] = "auto"
    """Exact sums over all pairs, fast ones by series, or what takes less time."""
    tolerance: float = 1e-10
    """Relative error that fast sums keep below."""
    out: study.Folder = Path("results/mean_field_large")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.paths, "--paths", 2, why="an interval needs two")
        whole(self.heads, "--heads")
        whole(self.tokens_seed, "--tokens-seed", 0)
        whole(self.reference, "--reference", 2)
        count_steps(self.t_final, self.dt, "--dt")
        for n in self.n:
            whole(n, "--n", 2)
        if list(self.n) != sorted(set(self.n)) or len(self.n) < 2:
            raise InputError(
                f"--n is {' '.join(map(str, self.n))}: expected two or more rising numbers"
            )
        if self.reference < self.n[-1]:
            raise InputError(
                f"--reference is {self.reference}: expected at least the largest --n, {self.n[-1]}"
            )


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


def draws(flags: MeanFieldLarge, n: int) -> FloatArray:
    """Independent uniform clouds (paths, n, d); every n has draws of its own."""
    keys = [[flags.tokens_seed, flags.d, n, path] for path in range(flags.paths)]
    seeds = [int(np.random.SeedSequence(key).generate_state(1, np.uint32)[0]) for key in keys]
    return np.array([tokens.uniform(n, flags.d, seed=seed) for seed in seeds])


def main() -> int:
    flags = study.command_line(MeanFieldLarge, __doc__)
    law: HeadLaw = Oscillating(flags.d) if flags.law == "oscillating" else Frozen()

    def task(x0: FloatArray) -> dict[str, Any]:
        paths = len(x0) if x0.ndim == 3 else 1
        return {
            "x0": x0, "law": law, "heads": flags.heads, "t_final": flags.t_final, "dt": flags.dt,
            "paths": paths, "seed": flags.seed, "flow": flags.flow, "direction": flags.direction,
            "scheme": "heun",
            "snapshots": (flags.t_final,), "snapshot_paths": range(paths), "method": flags.method,
            "tolerance": flags.tolerance,
        }  # fmt: skip

    tasks = {f"n{n:07d}": task(draws(flags, n)) for n in flags.n}
    tasks["reference"] = task(evenly_spread(flags.reference, flags.d))
    with study.session("mean_field_large", flags) as session:
        files = session.solve(tasks)
        del tasks
        with session.progress(len(files), "moments") as advance:
            table, energies = collect(flags, files, advance)
        fits = fit(table)
        session.finish(
            table=with_fits(table, fits),
            text=report(flags, table, fits),
            findings=findings(flags, table, fits),
            figures={"mean_field_limit": limit_figure(flags, table, fits, energies)},
        )
    return 0


def at_end(file: Path) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Quantities at T, each (paths, components), and what belongs to the run, (paths, time)."""
    from wflow.runfile import open_run

    with open_run(file) as ds:
        series = {name: ds[name].values for name in ("time", "energy", "edi_residual")}
        series["sum_error"] = ds["sum_error"].values if "sum_error" in ds else np.zeros((1, 1))
        found = {name: ds[name].isel(time=-1).values[:, None] for name in ("energy", "dissipation")}
        means, squares = [], []
        for place in range(ds.sizes["snapshot_path"]):  # one cloud in memory at a time
            x = ds["tokens"].isel(snapshot_path=place, snapshot=-1).values
            means.append(x.mean(axis=0))
            squares.append((x.T @ x / len(x)).ravel())
    return found | {"mean": np.array(means), "second_moment": np.array(squares)}, series


def collect(
    flags: MeanFieldLarge, files: dict[str, Path], advance: Callable[[int], None]
) -> tuple["Dataset", dict[str, FloatArray]]:
    """Squared deviations from the limit by n and path, and the energies over time by run."""
    import xarray

    limit, series = at_end(files["reference"])
    advance(1)
    energies = {"time": series["time"], "reference": series["energy"]}
    reference_residual = float(np.abs(series["edi_residual"]).max())
    shape = (len(flags.n), flags.paths)
    squared = {name: np.empty(shape) for name in QUANTITIES}
    residual, error = np.empty(shape), np.empty(shape)
    for i, n in enumerate(flags.n):
        name = f"n{n:07d}"
        found, series = at_end(files[name])
        for key, values in found.items():
            squared[key][i] = np.sum((values - limit[key]) ** 2, axis=1)
        residual[i] = np.abs(series["edi_residual"]).max(axis=1)
        error[i] = series["sum_error"].max(axis=1)
        energies[name] = series["energy"]
        advance(1)
    dims = ("n", "path")
    variables: dict[str, Any] = {
        f"{name}_deviation_sq": (
            dims,
            values,
            {"long_name": f"squared deviation of the {QUANTITIES[name]} at T", "units": "1"},
        )
        for name, values in squared.items()
    }
    text = "largest residual of the energy balance in size"
    variables["residual"] = (dims, residual, {"long_name": text, "units": "1"})
    text += ", reference"
    variables["reference_residual"] = ((), reference_residual, {"long_name": text, "units": "1"})
    text = "largest estimated relative error of the sums; 0: exact sums"
    variables["sum_error"] = (dims, error, {"long_name": text, "units": "1"})
    coords = {
        "n": ("n", list(flags.n), {"long_name": "number of tokens n"}),
        "path": ("path", np.arange(flags.paths), {"long_name": "draw of the tokens"}),
    }
    return xarray.Dataset(variables, coords), energies


Fits = dict[str, PowerLaw]


def fit(table: "Dataset") -> Fits:
    """The mean square a n^(2b) of every deviation."""
    n = table["n"].values
    return {name: power_law(n, table[f"{name}_deviation_sq"].values) for name in QUANTITIES}


def slope(found: PowerLaw) -> tuple[float, float, float]:
    """Exponent b of the root mean square, and its interval."""
    low, high = found.exponent_ci
    return found.exponent / 2, low / 2, high / 2


def with_fits(table: "Dataset", fits: Fits) -> "Dataset":
    """The table with slopes and their intervals, for the summary."""
    added: dict[str, Any] = {}
    for name, found in fits.items():
        b, low, high = slope(found)
        text = f"exponent b of the root mean square deviation a n^b of the {QUANTITIES[name]}"
        added[f"{name}_slope"] = ((), b, {"long_name": text, "units": "1"})
        text += ", bootstrap interval over draws, 95 %"
        added[f"{name}_slope_ci"] = ("bound", [low, high], {"long_name": text, "units": "1"})
    ends = ("bound", ["low", "high"], {"long_name": "end of the interval"})
    return table.assign(added).assign_coords(bound=ends)


def slope_text(found: PowerLaw) -> str:
    b, low, high = slope(found)
    return f"{b:.3f} ({low:.3f} to {high:.3f})"


def findings(flags: MeanFieldLarge, table: "Dataset", fits: Fits) -> list[study.Finding]:
    """Every prediction, and what came out."""
    rows = []
    for name, found in fits.items():
        b, _, high = slope(found)
        near = abs(b + 0.5) <= MARGIN
        rows.append(
            study.Finding(
                f"the {QUANTITIES[name]} at T deviates from the limit like n^(-1/2): slope -0.5 "
                f"within {MARGIN:g}",
                "[MHT] Thm 5.1 and the central limit theorem",
                f"slope {slope_text(found)}",
                "held" if near else "held in part" if high < 0 else "not held",
            )
        )
    residual, of_limit = table["residual"].values, float(table["reference_residual"])
    rows.append(
        study.Finding(
            "the energy balance closes as well for the largest number of tokens as for the least",
            "chain rule, docs/mathematics.md section 4",
            f"largest residual {residual[0].max():.2e} at n = {flags.n[0]}, "
            f"{residual[-1].max():.2e} at n = {flags.n[-1]}, {of_limit:.2e} for the limit",
            "held" if residual.max() <= RESIDUAL * of_limit else "not held",
        )
    )
    error = table["sum_error"].values
    if error.any():
        rows.append(
            study.Finding(
                f"the fast sums keep their tolerance {flags.tolerance:g}",
                "docs/mathematics.md section 13",
                f"largest estimate {error.max():.2e}",
                "held" if error.max() <= flags.tolerance else "not held",
            )
        )
    return rows


def report(flags: MeanFieldLarge, table: "Dataset", fits: Fits) -> str:
    """The tables."""
    columns: dict[str, list[str]] = {"n": [str(n) for n in flags.n]}
    for name in QUANTITIES:
        mean_sq = table[f"{name}_deviation_sq"].mean("path").values
        columns[name.replace("_", " ")] = [f"{value:.3e}" for value in np.sqrt(mean_sq)]
    columns["largest residual"] = [f"{row.max():.2e}" for row in table["residual"].values]
    columns["error of the sums"] = [
        f"{row.max():.1e}" if row.any() else "exact" for row in table["sum_error"].values
    ]
    slopes = {
        "quantity": [name.replace("_", " ") for name in QUANTITIES],
        "slope": [slope_text(found) for found in fits.values()],
    }
    return "\n\n".join(
        (
            f"Uniform tokens, d = {flags.d}, H = {flags.heads} {flags.law} heads, {flags.flow}, "
            f"{flags.direction}, T = {flags.t_final:g}; root mean square deviation at T from the "
            f"limit ({flags.reference} evenly spread points) over {flags.paths} draws:",
            study.markdown_table(columns),
            "Slopes in n, with 95 % bootstrap intervals over the draws:",
            study.markdown_table(slopes),
        )
    )


def limit_figure(
    flags: MeanFieldLarge, table: "Dataset", fits: Fits, energies: dict[str, FloatArray]
) -> "Figure":
    """Deviations against n with the slope -1/2, and energies over time against the limit."""
    from matplotlib import colormaps

    from wflow._figure import PAGE, grid, log_axis, style, time_axis

    n = np.array(flags.n, float)
    fine = np.geomspace(n[0], n[-1], 50)
    with style():
        figure, axes = grid(1, 2, PAGE, 3.4)
        left, right = axes.flat
        for place, (name, found) in enumerate(fits.items()):
            colour = colormaps["viridis"](0.84 * place / (len(fits) - 1))
            mean_sq = table[f"{name}_deviation_sq"].mean("path").values
            left.plot(n, np.sqrt(mean_sq), color=colour, marker="osD^"[place], linestyle="none",
                      markersize=4.5, label=f"{name.replace('_', ' ')}, ${slope(found)[0]:.2f}$",
                      )  # fmt: skip
            left.plot(fine, np.sqrt(found(fine)), color=colour, linewidth=0.9)
        anchor = float(np.sqrt(table["energy_deviation_sq"].mean("path").values[0]))
        left.plot(fine, 0.3 * anchor * (fine / n[0]) ** -0.5, color="0.5", linestyle=(0, (3, 1.5)),
                  linewidth=0.9, label="$n^{-1/2}$")  # fmt: skip
        left.set_xscale("log")
        left.set_yscale("log")
        log_axis(left)
        left.set_xlabel("number of tokens $n$")
        left.set_ylabel("rms deviation from the limit at $T$")
        low, high = left.get_ylim()
        left.set_ylim(low, high * (high / low) ** 0.6)  # room for the legend above the lines
        left.legend(title="quantity, slope", loc="upper right")
        time = energies["time"]
        for place, m in enumerate(flags.n[:3]):
            colour = colormaps["viridis"](0.84 * place / 2)
            values = energies[f"n{m:07d}"]
            right.plot(time, values.T, color=colour, linewidth=0.6, alpha=0.8)
            right.plot([], [], color=colour, label=f"$n = {m}$")
        right.plot(time, energies["reference"][0], color="black", linewidth=1.4, label="limit")
        time_axis(right)
        right.set_ylabel("energy $E$")
        right.legend()
        figure.suptitle(
            f"uniform tokens, $d$ = {flags.d}, $H$ = {flags.heads} {flags.law} heads, "
            f"{flags.flow}, {flags.paths} draws; lines: fits $a\\,n^b$",
            fontsize=8.5, x=0.01, ha="left",
        )  # fmt: skip
    return figure


if __name__ == "__main__":
    sys.exit(guarded(main))
