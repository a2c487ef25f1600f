"""How fast two token clouds part under the same heads, against the bound of [MHT] Theorem 5.1.

A cloud and clouds perturbed by eps move under the same heads: frozen, or Ornstein-Uhlenbeck with
the same noise, each at several sizes of the weights, up and down the energy. Their W2 over time is
compared with C exp(int_0^t L ds) W2(0), L from the norms of the heads (docs/mathematics.md,
stability), and the rates of growth with the size of the weights.

    python studies/stability_tokens.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, Theorem 5.1, Remark 5.2.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro
from numpy.typing import NDArray

from wflow import stability, study
from wflow._checks import number, positive, whole
from wflow._problem import count_steps
from wflow.cli import guarded
from wflow.errors import InputError
from wflow.heads import Frozen, HeadLaw, OrnsteinUhlenbeck
from wflow.rng import INITIAL_HEADS, CounterNormals
from wflow.sphere import normalise, project

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

FloatArray = NDArray[np.float64]

WEIGHTS = ("frozen", "ornstein-uhlenbeck")
DIRECTIONS = ("ascent", "descent")
SMALLEST = 1e-7  # perturbation of which rounding leaves the digits that rates need
COSTS: tuple[stability.Cost, ...] = ("chordal", "geodesic")


@dataclass(frozen=True, kw_only=True)
class StabilityTokens(study.TokenFlags):
    """Flags of this study."""

    tokens: Annotated[
        str,
        tyro.conf.arg(
            help="Initial tokens: cross-polytope, uniform, clusters, digits, or a FILE with one "
            "row of numbers per token. Clouds that are balanced about the centre, such as "
            "cross-polytope, part slowly."
        ),
    ] = "clusters"
    n: int | None = 100
    """Number of tokens; of digits or a FILE a random subset of that size."""
    heads: int = 8
    """Number of heads H."""
    sizes: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8)
    """Sizes of the weights: factors of all heads, 1 for those of [MHT] section 6."""
    eps: tuple[float, ...] = (1e-3, 1e-2, 1e-1)
    """Sizes of the perturbation: root mean square distance by which the tokens are moved."""
    paths: int = 8
    """Perturbations of each size; odd ones turn the whole cloud, even ones move each token by
    itself. Each has its own noise of the heads."""
    sigma2: float = 2.0
    """Variance sigma^2 of the noise of the Ornstein-Uhlenbeck heads per unit time, at size 1."""
    flow: Literal["softmax", "unnormalised", "effective"] = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    t_final: float = 4.0
    """End time T."""
    dt: float = 0.02
    """Time step."""
    times: int = 20
    """Number of times, after the start, at which W2 is computed."""
    out: study.Folder = Path("results/stability_tokens")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.heads, "--heads")
        whole(self.paths, "--paths", 2, why="an interval needs two")
        number(self.sigma2, "--sigma2", least=0.0)
        for name, values, least in (("--sizes", self.sizes, 2), ("--eps", self.eps, 1)):
            if len(values) < least or len(set(values)) < len(values):
                raise InputError(f"{name}: expected {least} or more numbers, each once")
            for value in values:
                positive(value, name)
        if min(self.eps) < SMALLEST:
            raise InputError(f"--eps has {min(self.eps):g}: expected {SMALLEST:g} or more")
        steps = count_steps(self.t_final, self.dt)
        if whole(self.times, "--times") > steps:
            raise InputError(f"--times is {self.times}: expected at most the {steps} steps")

    def snapshots(self) -> FloatArray:
        return np.linspace(0, self.t_final, self.times + 1)


def perturbed(x: FloatArray, flags: StabilityTokens, eps: float) -> FloatArray:
    """Clouds (paths, n, d): the tokens moved by eps along random fields of mean square one."""
    moved = []
    for path in range(flags.paths):
        rng = np.random.default_rng([flags.seed, path])
        skew = rng.standard_normal((x.shape[1], x.shape[1]))
        turn, each = x @ (skew - skew.T), project(x, rng.standard_normal(x.shape))
        field = turn if path % 2 else each
        moved.append(normalise(x + eps * field / np.sqrt(np.mean(np.sum(field**2, axis=1)))))
    return np.array(moved)


def cases(flags: StabilityTokens) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Names of all problems, and their places (weights, direction, size)."""
    for w, s, k in product(range(len(WEIGHTS)), range(len(DIRECTIONS)), range(len(flags.sizes))):
        yield f"{WEIGHTS[w].split('-')[0]}_{DIRECTIONS[s]}_size{k}", (w, s, k)


def main() -> int:
    flags = study.command_line(StabilityTokens, __doc__)
    x0 = flags.cloud()
    n, d = x0.shape
    flags = replace(  # the summary says what they were; sizes in order, for steps between them
        flags, n=n, d=d, sizes=tuple(sorted(flags.sizes)), eps=tuple(sorted(flags.eps))
    )
    shape = (flags.heads, d, d)
    z = CounterNormals(flags.seed).draw(shape, path=0, step=0, purpose=INITIAL_HEADS)
    first = z + z.swapaxes(-1, -2)
    clouds = {"reference": x0} | {
        f"eps{e}": perturbed(x0, flags, eps) for e, eps in enumerate(flags.eps)
    }
    tasks: dict[str, dict[str, Any]] = {}
    for name, (w, s, k) in cases(flags):
        size = flags.sizes[k]
        ou = OrnsteinUhlenbeck(size * np.eye(d), rate=1.0, sigma2=size**2 * flags.sigma2)
        law: HeadLaw = ou if w else Frozen()
        for cloud, tokens in clouds.items():
            tasks[f"{name}_{cloud}"] = {
                "x0": tokens, "law": law, "heads": size * first, "t_final": flags.t_final,
                "dt": flags.dt, "paths": flags.paths, "seed": flags.seed, "flow": flags.flow,
                "direction": DIRECTIONS[s], "snapshots": flags.snapshots(), "ledger": False,
                "snapshot_paths": range(flags.paths), "record_every": 10**9,
            }  # fmt: skip
    with study.session("stability_tokens", flags) as session:
        files = session.solve(tasks)
        pairs = len(tasks) * len(flags.eps) // len(clouds)
        with session.progress(pairs, "W2") as advance:
            table = collect(flags, files, advance)
        session.finish(
            table=table,
            text=report(flags, table),
            findings=findings(table),
            figures={
                "growth": growth_figure(flags, table),
                "rates": rate_figure(flags, table),
            },
        )
    return 0


def collect(flags: StabilityTokens, files: dict[str, Path], advance: Any) -> "Dataset":
    """W2, bound, exponent and rates of every problem, size of perturbation and path."""
    import xarray

    groups = (len(WEIGHTS), len(DIRECTIONS), len(flags.sizes))
    shape = (*groups, len(flags.eps), flags.paths, flags.times + 1)
    numbers: dict[str, Any] = {}
    growth, largest, holds = np.empty(shape[:3] + shape[4:]), np.empty(shape[:4]), {}
    fastest = np.empty(shape[:4])
    constant, rate, ci = np.empty(growth.shape), np.empty(shape[:4]), np.empty((*shape[:4], 2))
    for cost in COSTS:
        numbers[cost], holds[cost] = np.empty(shape), np.empty(shape, dtype=bool)
    time = flags.snapshots()
    for name, at in cases(flags):
        for e in range(len(flags.eps)):
            pair = stability.compare(files[f"{name}_reference"], files[f"{name}_eps{e}"])
            time = pair["snapshot"].values
            growth[at], constant[at] = pair["exponent"].values, pair["growth_constant"].values
            for cost in COSTS:
                numbers[cost][(*at, e)] = pair[f"w2_{cost}"].values
                holds[cost][(*at, e)] = pair[f"holds_{cost}"].values
            fit = stability.growth_rate(time, pair["w2_chordal"].values)
            largest[(*at, e)], rate[(*at, e)], ci[(*at, e)] = fit.largest, fit.rate, fit.ci
            logs = np.log(pair["w2_chordal"].values)
            changes = np.abs(logs[:, 1:] - logs[:, :1]) / time[1:]
            fastest[(*at, e)] = changes.max()
            advance(1)
    group = ("weights", "direction", "size")
    one, each = (*group, "path", "time"), (*group, "eps", "path", "time")
    variables: dict[str, Any] = {
        "growth_constant": (one, constant, {"long_name": "growth constant L of the heads"}),
        "exponent": (one, growth, {"long_name": "exponent of the bound, integral of L"}),
    }
    for cost in COSTS:
        name = f"{cost} W2 between the cloud and the perturbed one"
        variables[f"w2_{cost}"] = (each, numbers[cost], {"long_name": name})
        variables[f"holds_{cost}"] = (each, holds[cost], {"long_name": f"bound holds for {name}"})
    spread = (*group, "eps")
    for key, values, text in (
        ("largest_rate", largest, "largest log(W2(t) / W2(0)) / t over times and paths"),
        ("fastest_change", fastest, "largest |log(W2(t) / W2(0))| / t over times and paths"),
        ("rate", rate, "slope of the mean over paths of log W2 in time"),
    ):
        variables[key] = (spread, values, {"long_name": text})
    text = "bootstrap interval of the rate over paths, 95 %"
    variables["rate_ci"] = ((*spread, "bound"), ci, {"long_name": text})
    for name, (dims, values, attrs) in variables.items():
        variables[name] = (dims, values, attrs | {"units": "1"})
    coords = {
        "weights": ("weights", list(WEIGHTS), {"long_name": "head law"}),
        "direction": ("direction", list(DIRECTIONS), {"long_name": "up or down the energy"}),
        "size": ("size", list(flags.sizes), {"long_name": "factor of all heads"}),
        "eps": ("eps", list(flags.eps), {"long_name": "size of the perturbation"}),
        "path": ("path", np.arange(flags.paths), {"long_name": "perturbation"}),
        "time": ("time", time, {"long_name": "time", "units": "1"}),
        "bound": ("bound", ["low", "high"], {"long_name": "end of the interval"}),
    }
    return xarray.Dataset(variables, coords)


def findings(table: "Dataset") -> list[study.Finding]:
    """Every prediction, and what came out."""
    rows = []
    for cost, factor in (("chordal", "1"), ("geodesic", "pi/2")):
        holds = table[f"holds_{cost}"].values[..., 1:]
        rows.append(
            study.Finding(
                f"W2(t) <= {factor} exp(int L ds) W2(0) at every recorded time, {cost} W2",
                "[MHT] Thm 5.1",
                f"at {holds.sum()} of {holds.size} recorded times",
                "held" if holds.all() else "not held",
            )
        )
    allowed = mean_constant(table)
    fastest = table["fastest_change"].max("eps").values  # (weights, direction, size)
    rising = np.diff(fastest, axis=-1) > 0
    sizes = np.log(table["size"].values)
    found = [f"{rising.sum()} of {rising.size} steps in size raise it"]
    for (w, weights), (s, direction) in product(enumerate(WEIGHTS), enumerate(DIRECTIONS)):
        y = fastest[w, s]
        slope = np.polyfit(sizes, np.log(y), 1)[0]
        found.append(f"{weights}, {direction}: {y[0]:.3g} to {y[-1]:.3g}, like size^{slope:.2f}")
    rows.append(
        study.Finding(
            "the exponent is controlled by the size of the weights: the fastest change, "
            "max |log(W2(t)/W2(0))|/t, grows with it and vanishes with it",
            "[MHT] Rem. 5.2",
            "; ".join(found),
            "held" if rising.all() else "held in part" if rising.mean() > 0.5 else "not held",
        )
    )
    largest = table["largest_rate"].max("eps").values
    below = largest <= allowed
    share = largest / allowed
    low, high = share[..., 0].max(), share[..., -1].max()
    rows.append(
        study.Finding(
            "the largest growth rate, max log(W2(t)/W2(0))/t, stays below the mean growth constant "
            "(1/T) int L ds",
            "[MHT] Thm 5.1, Rem. 5.2",
            f"in {below.sum()} of {below.size} cases; at most {low:.2g} of it for the smallest "
            f"weights, {high:.1g} for the largest",
            "held" if below.all() else "held in part" if below.mean() > 0.5 else "not held",
        )
    )
    return rows


def mean_constant(table: "Dataset") -> FloatArray:
    """(1/T) int L ds by the trapezoidal rule, mean over paths: (weights, direction, size)."""
    L, t = table["growth_constant"].values, table["time"].values
    mean = (np.diff(t) * (L[..., 1:] + L[..., :-1]) / 2).sum(axis=-1) / (t[-1] - t[0])
    return np.asarray(mean.mean(axis=-1))


def report(flags: StabilityTokens, table: "Dataset") -> str:
    """The table."""
    titles = ("heads", "direction", "size", "mean L", "largest rate", "fastest change",
              "rate (95 % interval)", "max W2(t)/W2(0)", "bound at T", "holds")  # fmt: skip
    rows: dict[str, list[str]] = {title: [] for title in titles}
    allowed = mean_constant(table)
    for (w, weights), (s, direction), (k, size) in product(
        enumerate(WEIGHTS), enumerate(DIRECTIONS), enumerate(flags.sizes)
    ):
        at = table.isel(weights=w, direction=s, size=k)
        ratio = at["w2_chordal"] / at["w2_chordal"].isel(time=0)
        log_bound = float(at["exponent"].isel(time=-1).max()) / math.log(10)
        low, high = at["rate_ci"].isel(eps=0).values
        holds = np.stack([at[f"holds_{cost}"].values[..., 1:] for cost in COSTS])
        cells = (
            weights, direction, f"{size:g}", f"{allowed[w, s, k]:.3g}",
            f"{float(at['largest_rate'].max()):.3g}", f"{float(at['fastest_change'].max()):.3g}",
            f"{float(at['rate'].isel(eps=0)):.3g} ({low:.3g} to {high:.3g})",
            f"{float(ratio.max()):.3f}",
            f"{10**log_bound:.3g}" if log_bound < 6 else f"10^{log_bound:.0f}",
            f"{holds.sum()} of {holds.size}",
        )  # fmt: skip
        for title, cell in zip(titles, cells, strict=True):
            rows[title].append(cell)
    return "\n\n".join(
        (
            f"n = {flags.n}, d = {flags.d}, H = {flags.heads}, {flags.flow}, T = "
            f"{flags.t_final:g}, {flags.paths} perturbations of each size "
            f"{', '.join(f'{e:g}' for e in flags.eps)}:",
            study.markdown_table(rows),
            "Mean L: (1/T) int L ds, mean over paths. Largest rate: max over times, paths and eps "
            "of log(W2(t)/W2(0))/t, chordal; fastest change: of its size. Rate: slope of the mean "
            "over paths of log W2, smallest eps. Bound: exp of the exponent. Holds: at "
            f"{flags.times} times, for each path, eps, and both costs.",
        )
    )


def _colour(k: int, count: int) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](0.84 * k / max(count - 1, 1))


def growth_figure(flags: StabilityTokens, table: "Dataset") -> "Figure":
    """W2(t)/W2(0) of each size of the weights, with the bound."""
    from wflow._figure import PAGE, grid, spaced, style, time_axis

    time = table["time"].values
    count = len(flags.sizes)
    with style():
        figure, axes = grid(2, 2, PAGE, 4.8, sharex=True, sharey=True)
        bottom = top = 1.0
        for (w, weights), (s, direction) in product(enumerate(WEIGHTS), enumerate(DIRECTIONS)):
            axis = axes[w, s]
            for k, size in enumerate(flags.sizes):
                at = table.isel(weights=w, direction=s, size=k)
                ratio = at["w2_chordal"].values
                log = np.log(ratio / ratio[..., :1])  # (eps, path, time)
                log = log.reshape(-1, len(time))
                middle, low, high = log.mean(axis=0), log.min(axis=0), log.max(axis=0)
                bottom, top = min(bottom, np.exp(low).min()), max(top, np.exp(high).max())
                colour = _colour(k, count)
                axis.plot(time, np.exp(middle), color=colour, marker="osD^v"[k % 5],
                          markevery=spaced(len(time), 4, k, count), label=f"{size:g}")  # fmt: skip
                axis.fill_between(time, np.exp(low), np.exp(high), color=colour, alpha=0.15,
                                  linewidth=0)  # fmt: skip
                growth = at["exponent"].values.mean(axis=0)
                axis.plot(time, np.exp(np.minimum(growth, 50)), color=colour, linewidth=0.9,
                          linestyle=(0, (4, 2)))  # fmt: skip
            axis.set_yscale("log")
            axis.set_title(f"{weights} heads, {direction}")
            if s == 0:
                axis.set_ylabel(r"$W_2(t)\,/\,W_2(0)$")
            if w == 1:
                time_axis(axis)
        axes[0, 0].set_ylim(bottom / 2, 30 * top)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, title="size of the weights", ncols=count,
                      loc="outside lower center")  # fmt: skip
        figure.suptitle(
            _facts(flags) + "; band: all perturbations; dashed: bound",
            fontsize=8.5, x=0.01, ha="left",
        )  # fmt: skip
    return figure


def rate_figure(flags: StabilityTokens, table: "Dataset") -> "Figure":
    """Fastest changes of W2 and growth constants against the size of the weights."""
    from wflow._figure import grid, style

    allowed = mean_constant(table)
    fastest = table["fastest_change"].max("eps").values
    with style():
        figure, axes = grid(1, 1, 5.2, 3.2)
        axis = axes[0, 0]
        for (w, weights), (s, direction) in product(enumerate(WEIGHTS), enumerate(DIRECTIONS)):
            colour = ("#0072B2", "#D55E00")[w]
            dash: Any = "-" if s == 0 else (0, (1.5, 1))
            axis.plot(flags.sizes, fastest[w, s], color=colour, marker="o^"[s], linestyle=dash,
                      label=f"{weights}, {direction}")  # fmt: skip
            axis.plot(flags.sizes, allowed[w, s], color=colour, linewidth=0.9,
                      linestyle=(0, (5, 2)) if s == 0 else (0, (5, 1.5, 1, 1.5)),
                      label=f"mean $L$: {weights}, {direction}")  # fmt: skip
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(flags.sizes, [f"{size:g}" for size in flags.sizes])
        axis.minorticks_off()
        axis.set_xlabel("size of the weights")
        axis.set_ylabel(r"$\max_t\ |\log(W_2(t)/W_2(0))|\,/\,t$,  mean $L$")
        axis.set_title(_facts(flags))
        figure.legend(loc="outside lower center", ncols=2, fontsize=7)
    return figure


def _facts(flags: StabilityTokens) -> str:
    return (
        f"$n$ = {flags.n}, $d$ = {flags.d}, $H$ = {flags.heads}, {flags.flow}, "
        f"{flags.paths * len(flags.eps)} perturbations"
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
