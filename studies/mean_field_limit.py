"""The mean-field limit: n and 2n tokens of one law move alike, the more so the larger n.

For each n, a cloud of n tokens and an independent one of 2n tokens from the same law move under the
same Ornstein-Uhlenbeck heads; each path draws both clouds and the noise of the heads anew. How W2
between the two and the gap of their energies fall with n, at the start and at the end, is compared
with the rates of independent samples, and the growth of W2 with the bound of [MHT] Theorem 5.1.

    python studies/mean_field_limit.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, section 5.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from wflow import stability, study, tokens
from wflow._checks import number, whole
from wflow._problem import count_steps
from wflow.cli import guarded
from wflow.errors import InputError
from wflow.fits import PowerLaw, mean_and_error, power_law
from wflow.heads import OrnsteinUhlenbeck

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

FloatArray = NDArray[np.float64]

MARGIN = 0.05  # of a slope: less than what the rates of two dimensions differ by
LAWS = {"uniform": tokens.uniform, "cross-polytope": tokens.cross_polytope}
QUANTITIES = {
    "w2": "W2 between n and 2n tokens",
    "energy_gap": "gap |E_n - E_2n| of the energies",
}


@dataclass(frozen=True, kw_only=True)
class MeanFieldLimit(study.Flags):
    """Flags of this study."""

    tokens: Literal["uniform", "cross-polytope"] = "uniform"
    """Law from which the tokens are drawn independently."""
    tokens_seed: int = 42
    """Seed of the initial tokens."""
    n: tuple[int, ...] = (25, 50, 100, 200, 400, 800)
    """Numbers of tokens n; each is compared with 2n."""
    d: tuple[int, ...] = (2, 3, 4)
    """Dimensions: tokens live on the sphere S^(d-1)."""
    heads: int = 4
    """Number of heads H."""
    sigma2: float = 2.0
    """Variance sigma^2 of the noise of the heads per unit time."""
    flow: Literal["softmax", "unnormalised", "effective"] = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    direction: Literal["descent", "ascent"] = "descent"
    """Whether the tokens move down or up the energy."""
    paths: int = 32
    """Independent draws of both clouds and of the noise of the heads."""
    t_final: float = 3.0
    """End time T."""
    dt: float = 0.02
    """Time step."""
    out: study.Folder = Path("results/mean_field_limit")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.tokens_seed, "--tokens-seed", 0)
        whole(self.heads, "--heads")
        whole(self.paths, "--paths", 2, why="an interval needs two")
        number(self.sigma2, "--sigma2", least=0.0)
        count_steps(self.t_final, self.dt)
        for name, values, least in (("--n", self.n, 2), ("--d", self.d, 2)):
            for value in values:
                whole(value, name, least)
            if not values or list(values) != sorted(set(values)):
                raise InputError(
                    f"{name} is {' '.join(map(str, values))}: expected rising numbers, each once"
                )
        if len(self.n) < 2:
            raise InputError(f"--n is {self.n[0]}: a rate needs two numbers of tokens or more")


def clouds(flags: MeanFieldLimit, n: int, d: int) -> FloatArray:
    """The draws (paths, n, d): independent between paths, sizes and dimensions."""
    keys = [[flags.tokens_seed, d, n, path] for path in range(flags.paths)]
    seeds = [int(np.random.SeedSequence(key).generate_state(1, np.uint32)[0]) for key in keys]
    return np.array([LAWS[flags.tokens](n, d, seed=seed) for seed in seeds])


def rate_of(law: str, d: int) -> tuple[str, Callable[[FloatArray], FloatArray]]:
    """How W2 between independent samples falls with n, up to a factor (docs/mathematics.md)."""
    if law == "cross-polytope" and d <= 5:
        return "n^(-1/4)", lambda n: n**-0.25
    if d == 2:
        return "n^(-1/2)", lambda n: n**-0.5
    if d == 3:
        return "(log n / n)^(1/2)", lambda n: np.sqrt(np.log(n) / n)
    return f"n^(-1/{d - 1})", lambda n: n ** (-1 / (d - 1))


def expected_slope(flags: MeanFieldLimit, d: int) -> float:
    """Slope in log-log of the known rate over the numbers of tokens of this study."""
    n = np.array(flags.n, float)
    return float(np.polyfit(np.log(n), np.log(rate_of(flags.tokens, d)[1](n)), 1)[0])


def main() -> int:
    flags = study.command_line(MeanFieldLimit, __doc__)
    sizes = sorted({*flags.n, *(2 * n for n in flags.n)})
    steps = count_steps(flags.t_final, flags.dt)
    tasks: dict[str, dict[str, Any]] = {
        run_name(d, n): {
            "x0": clouds(flags, n, d), "law": OrnsteinUhlenbeck(np.eye(d), sigma2=flags.sigma2),
            "heads": flags.heads, "t_final": flags.t_final, "dt": flags.dt, "paths": flags.paths,
            "seed": flags.seed, "flow": flags.flow, "direction": flags.direction,
            "snapshots": (0.0, flags.t_final), "snapshot_paths": range(flags.paths),
            "record_every": steps,
        }
        for d in flags.d
        for n in sizes
    }  # fmt: skip
    with study.session("mean_field_limit", flags) as session:
        files = session.solve(tasks)
        with session.progress(len(flags.d) * len(flags.n), "W2") as advance:
            table = collect(flags, files, advance)
        fits = fit(table)
        session.finish(
            table=with_fits(flags, table, fits),
            text=report(flags, table, fits),
            findings=findings(flags, table, fits),
            figures={"convergence": convergence_figure(flags, table, fits)},
        )
    return 0


def run_name(d: int, n: int) -> str:
    return f"d{d}_n{n:05d}"


def collect(
    flags: MeanFieldLimit, files: dict[str, Path], advance: Callable[[int], None]
) -> "Dataset":
    """W2, energy gap and bound of every dimension, number of tokens and path, at 0 and T."""
    import xarray

    from wflow.runfile import open_run

    shape = (len(flags.d), len(flags.n), flags.paths, 2)
    w2, gap, limit = np.empty(shape), np.empty(shape), np.empty(shape)
    for i, d in enumerate(flags.d):
        for j, n in enumerate(flags.n):
            few, many = files[run_name(d, n)], files[run_name(d, 2 * n)]
            pair = stability.compare(few, many, costs=("geodesic",))
            w2[i, j], limit[i, j] = pair["w2_geodesic"].values, pair["bound_geodesic"].values
            with open_run(few) as a, open_run(many) as b:
                energies = [run["energy"].isel(time=[0, -1]).values for run in (a, b)]
            gap[i, j] = np.abs(energies[0] - energies[1])
            advance(1)
    dims = ("d", "n", "path", "time")
    text = "bound on W2 by [MHT] Theorem 5.1, geodesic"
    variables: dict[str, Any] = {
        name: (dims, values, {"long_name": long_name, "units": "1"})
        for (name, long_name), values in zip(QUANTITIES.items(), (w2, gap), strict=True)
    }
    variables["w2_bound"] = (dims, limit, {"long_name": text, "units": "1"})
    coords = {
        "d": ("d", list(flags.d), {"long_name": "dimension d"}),
        "n": ("n", list(flags.n), {"long_name": "number of tokens n"}),
        "path": ("path", np.arange(flags.paths), {"long_name": "draw of tokens and heads"}),
        "time": ("time", [0.0, flags.t_final], {"long_name": "time", "units": "1"}),
    }
    return xarray.Dataset(variables, coords)


Fits = dict[tuple[str, int, int], PowerLaw]


def fit(table: "Dataset") -> Fits:
    """a n^b of every quantity, dimension and time: (name, place of d, place of the time) -> fit."""
    n = table["n"].values
    return {
        (name, i, k): power_law(n, table[name].isel(d=i, time=k).values)
        for name in QUANTITIES
        for i in range(table.sizes["d"])
        for k in range(2)
    }


def with_fits(flags: MeanFieldLimit, table: "Dataset", fits: Fits) -> "Dataset":
    """The table with slopes and their intervals, for the summary."""
    dims = ("d", "time")
    shape = (len(flags.d), 2)
    added: dict[str, Any] = {}
    for name, long_name in QUANTITIES.items():
        slope, interval = np.empty(shape), np.empty((*shape, 2))
        for i, k in np.ndindex(shape):
            found = fits[name, i, k]
            slope[i, k], interval[i, k] = found.exponent, found.exponent_ci
        text = f"exponent b of the {long_name} = a n^b"
        added[f"{name}_slope"] = (dims, slope, {"long_name": text, "units": "1"})
        text += ", bootstrap interval over paths, 95 %"
        bounds = ((*dims, "bound"), interval, {"long_name": text, "units": "1"})
        added[f"{name}_slope_ci"] = bounds
    expected = [expected_slope(flags, d) for d in flags.d]
    text = "slope of the known rate of W2 between independent samples, over the same n"
    added["w2_slope_known"] = ("d", expected, {"long_name": text, "units": "1"})
    ends = ("bound", ["low", "high"], {"long_name": "end of the interval"})
    return table.assign(added).assign_coords(bound=ends)


def findings(flags: MeanFieldLimit, table: "Dataset", fits: Fits) -> list[study.Finding]:
    """Every prediction, and what came out."""
    known = [expected_slope(flags, d) for d in flags.d]
    rates = "; ".join(f"{rate_of(flags.tokens, d)[0]} for d = {d}" for d in flags.d)
    rows = []
    for k, when in enumerate(("t = 0", "t = T")):
        slopes = [fits["w2", i, k] for i in range(len(flags.d))]
        off = [found.exponent - slope for found, slope in zip(slopes, known, strict=True)]
        # At the end the flow may bring the clouds together faster, but not more slowly.
        kept = [abs(o) <= MARGIN if k == 0 else o <= MARGIN for o in off]
        falls = all(found.exponent_ci[1] < 0 for found in slopes)
        text = "; ".join(
            f"d = {d}: {slope_text(found)}, known {slope:.3f}"
            for d, found, slope in zip(flags.d, slopes, known, strict=True)
        )
        wanted = f"slope within {MARGIN}" if k == 0 else f"slope larger by at most {MARGIN}"
        rows.append(
            study.Finding(
                f"W2 between n and 2n tokens at {when} falls like independent samples: {rates}; "
                f"{wanted}",
                "docs/mathematics.md, transport" if k == 0 else "[MHT] Thm 5.1 and these rates",
                text,
                "held" if all(kept) else "held in part" if falls else "not held",
            )
        )
    within = (table["w2"] <= table["w2_bound"] * (1 + 1e-9)).isel(time=1)
    ratio = (table["w2"].isel(time=1) / table["w2"].isel(time=0)).values
    rows.append(
        study.Finding(
            "W2(T) <= (pi/2) exp(int L ds) W2(0), C and L independent of n",
            "[MHT] Thm 5.1",
            f"for {int(within.sum())} of {within.size} pairs; W2(T)/W2(0) is at most "
            f"{ratio.max():.3g}",
            "held" if bool(within.all()) else "not held",
        )
    )
    growth = [
        power_law(table["n"].values, ratio[i]) for i in range(len(flags.d))
    ]  # of the factor by which the flow changes W2
    flat = [found.exponent_ci[0] <= MARGIN and found.exponent <= MARGIN for found in growth]
    rows.append(
        study.Finding(
            "the factor W2(T)/W2(0) does not grow with n",
            "[MHT] Thm 5.1",
            "; ".join(
                f"d = {d}: mean {ratio[i, 0].mean():.3g} at n = {flags.n[0]}, "
                f"{ratio[i, -1].mean():.3g} at n = {flags.n[-1]}, slope {slope_text(growth[i])}"
                for i, d in enumerate(flags.d)
            ),
            "held" if all(flat) else "held in part" if any(flat) else "not held",
        )
    )
    gaps = {(i, k): fits["energy_gap", i, k] for i in range(len(flags.d)) for k in range(2)}
    fast = [found.exponent <= -0.5 + MARGIN for found in gaps.values()]
    falls = all(found.exponent_ci[1] < 0 for found in gaps.values())
    rows.append(
        study.Finding(
            f"the energy gap |E_n - E_2n| falls like n^(-1/2) or faster (slope <= {MARGIN - 0.5})",
            "central limit theorem",
            "; ".join(
                f"d = {d}: {slope_text(gaps[i, 0])} at 0, {slope_text(gaps[i, 1])} at T"
                for i, d in enumerate(flags.d)
            ),
            "held" if all(fast) else "held in part" if falls else "not held",
        )
    )
    return rows


def slope_text(found: PowerLaw) -> str:
    low, high = found.exponent_ci
    return f"{found.exponent:.3f} ({low:.3f} to {high:.3f})"


def report(flags: MeanFieldLimit, table: "Dataset", fits: Fits) -> str:
    """The tables."""
    columns: dict[str, list[str]] = {"d": [], "n": []}
    for i, d in enumerate(flags.d):
        for j, n in enumerate(flags.n):
            at = table.isel(d=i, n=j)
            columns["d"].append(str(d))
            columns["n"].append(str(n))
            row = {
                f"{title}, t = {'T' if k else '0'}": mean_text(at[name].isel(time=k).values)
                for name, title in (("w2", "W2"), ("energy_gap", "energy gap"))
                for k in range(2)
            }
            ratio = (at["w2"].isel(time=1) / at["w2"].isel(time=0)).values
            row["W2(T)/W2(0)"] = mean_text(ratio)
            for title, cell in row.items():
                columns.setdefault(title, []).append(cell)
    slopes: dict[str, list[str]] = {"d": [str(d) for d in flags.d]}
    slopes["known rate of W2"] = [rate_of(flags.tokens, d)[0] for d in flags.d]
    slopes["its slope"] = [f"{expected_slope(flags, d):.3f}" for d in flags.d]
    for name, title in (("w2", "W2"), ("energy_gap", "energy gap")):
        for k, when in enumerate("0T"):
            cells = [slope_text(fits[name, i, k]) for i in range(len(flags.d))]
            slopes[f"{title}, t = {when}"] = cells
    law = f"{flags.tokens} tokens, H = {flags.heads}, sigma^2 = {flags.sigma2:g}"
    return "\n\n".join(
        (
            f"{law}, {flags.flow}, {flags.direction}, T = {flags.t_final:g}; mean and standard "
            f"error over {flags.paths} draws:",
            study.markdown_table(columns),
            "Slopes in n, with 95 % bootstrap intervals over the draws:",
            study.markdown_table(slopes),
            "W2 is geodesic and exact, between a cloud of n tokens and an independent one of 2n.",
        )
    )


def mean_text(values: FloatArray) -> str:
    mean, error = mean_and_error(values)
    return f"{mean:.4g} ± {error:.1g}"


def convergence_figure(flags: MeanFieldLimit, table: "Dataset", fits: Fits) -> "Figure":
    """W2 and energy gap against n, in log-log, with the fits."""
    from matplotlib import colormaps
    from matplotlib.ticker import NullLocator

    from wflow._figure import PAGE, grid, log_axis, style

    n = np.array(flags.n)
    fine = np.geomspace(n[0], n[-1], 50)
    names = {"w2": r"$W_2(\mu^n_t,\ \mu^{2n}_t)$", "energy_gap": r"$|E_n(t) - E_{2n}(t)|$"}
    with style():
        figure, axes = grid(1, 2, PAGE, 3.4)
        for axis, (name, label) in zip(axes.flat, names.items(), strict=True):
            for i, d in enumerate(flags.d):
                colour = colormaps["viridis"](0.84 * i / max(len(flags.d) - 1, 1))
                for k, when in enumerate(("0", "T")):
                    values = table[name].isel(d=i, time=k).values
                    mean, error = mean_and_error(values)
                    dash: Any = "-" if k else (0, (3, 1.5))
                    axis.plot(fine, fits[name, i, k](fine), color=colour, linestyle=dash,
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
            axis.set_xlabel("number of tokens $n$")
            axis.set_ylabel(label)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(flags.d),
                      columnspacing=1.5)  # fmt: skip
        figure.suptitle(
            f"{flags.tokens} tokens, $H$ = {flags.heads}, {flags.flow}, $T$ = {flags.t_final:g}, "
            f"{flags.paths} draws; bars: ± standard error; lines: fits $a\\,n^b$",
            fontsize=8.5, x=0.01, ha="left",
        )  # fmt: skip
    return figure


if __name__ == "__main__":
    sys.exit(guarded(main))
