"""Distance between two token clouds under the same heads, against [MHT] Theorem 5.1.

A cloud and clouds perturbed by ε move under the same heads: frozen, or Ornstein-Uhlenbeck with
the same noise, each at several sizes of the weights, up and down the energy. Their W₂ over time is
compared with C exp(int_0^t L ds) W₂(0), L from the norms of the heads
(docs/theory/stability.md), and the rates of growth with the size of the weights.

    python studies/stability_tokens.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, Theorem 5.1, Remark 5.2.
"""

import math
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from _stability import ComparedFlows, Perturbation

import wflow
from wflow import SaveAt, fits, stability, study
from wflow.cli import script
from wflow.heads import Frozen, HeadLaw, OrnsteinUhlenbeck
from wflow.plots.figure import PAGE, caption, grid, log_axis, shade, spaced, style, time_axis
from wflow.sphere import normalise, project
from wflow.study import Finding, FloatArray

WEIGHTS = ("frozen", "ornstein-uhlenbeck")
DIRECTIONS = ("ascent", "descent")
COSTS: tuple[stability.Cost, ...] = ("chordal", "geodesic")


@dataclass(frozen=True, kw_only=True)
class StabilityTokens(ComparedFlows):
    """Flags of this study."""

    tokens: Annotated[
        str,
        tyro.conf.arg(
            help="Initial tokens: cross-polytope, uniform, clusters, digits, or a FILE with one "
            "row of numbers per token. Clouds that are balanced about the centre, such as "
            "cross-polytope, part slowly."
        ),
    ] = "clusters"
    heads: study.Count = 8
    """Number of heads H."""
    sizes: study.Compared[study.Positive] = (0.05, 0.1, 0.2, 0.4, 0.8)
    """Sizes of the weights: factors of all heads, 1 for those of [MHT] section 6."""
    eps: study.Distinct[Perturbation] = (1e-3, 1e-2, 1e-1)
    """Sizes of the perturbation: root mean square distance by which the tokens are moved."""
    paths: study.TwoOrMore = 8
    """Perturbations of each size; odd ones turn the whole cloud, even ones move each token by
    itself. Each has its own noise of the heads."""
    t_final: study.Positive = 4.0
    dt: study.Positive = 0.02
    out: study.Folder = Path("results/stability_tokens")


def perturbed(x: FloatArray, flags: StabilityTokens, eps: float) -> FloatArray:
    """Return clouds (paths, n, d): the tokens moved by ε along random fields of mean square one."""
    moved = []
    for path in range(flags.paths):
        rng = np.random.default_rng([flags.seed, path])
        skew = rng.standard_normal((x.shape[1], x.shape[1]))
        turn, each = x @ (skew - skew.T), project(x, rng.standard_normal(x.shape))
        field = turn if path % 2 else each
        moved.append(normalise(x + eps * field / np.sqrt(np.mean(np.sum(field**2, axis=1)))))
    return np.array(moved)


def tasks(flags: StabilityTokens, x0: FloatArray) -> dict[str, dict[str, Any]]:
    """Return all runs: name -> arguments of `wflow.solve`."""
    d = x0.shape[1]
    first = study.initial_heads(flags.seed, flags.heads, d)
    clouds = {"reference": x0}
    clouds |= {f"eps{e}": perturbed(x0, flags, eps) for e, eps in enumerate(flags.eps)}
    save = SaveAt(every=10**9, snapshots=flags.snapshots(), paths=range(flags.paths), budget=False)
    runs = {}
    for weights, direction, size in product(WEIGHTS, DIRECTIONS, flags.sizes):
        ou = OrnsteinUhlenbeck(size * np.eye(d), rate=1.0, sigma2=size**2 * flags.sigma2)
        law: HeadLaw = Frozen() if weights == "frozen" else ou
        for cloud, tokens in clouds.items():
            runs[f"{case_name(flags, weights, direction, size)}_{cloud}"] = {
                "x0": tokens, "law": law, "heads": size * first, "t_final": flags.t_final,
                "dt": flags.dt, "paths": flags.paths, "seed": flags.seed, "flow": flags.flow,
                "direction": direction, "save": save,
            }  # fmt: skip
    return runs


def case_name(flags: StabilityTokens, weights: str, direction: str, size: float) -> str:
    return f"{weights.split('-')[0]}_{direction}_size{flags.sizes.index(size)}"


def collect(flags: StabilityTokens, files: dict[str, Path]) -> "study.Dataset":
    """Return W₂, bound, exponent and rates of every problem, size of perturbation and path."""
    with wflow.open(next(iter(files.values()))) as run:
        time = run["snapshot"].values

    def measure(weights: str, direction: str, size: float) -> dict[str, Any]:
        name = case_name(flags, weights, direction, size)
        pairs = [
            stability.compare(files[f"{name}_reference"], files[f"{name}_eps{e}"])
            for e in range(len(flags.eps))
        ]
        logs = np.log([pair["w2_chordal"].values for pair in pairs])  # (eps, path, time)
        changes = np.abs(logs[..., 1:] - logs[..., :1]) / time[1:]
        laws = [stability.growth_rate(time, pair["w2_chordal"].values) for pair in pairs]
        values = {
            "growth_constant": pairs[-1]["growth_constant"].values,
            "exponent": pairs[-1]["exponent"].values,
            "largest_rate": [law.largest for law in laws],
            "fastest_change": changes.max(axis=(1, 2)),
            "rate": [law.rate for law in laws],
            "rate_ci": [law.ci for law in laws],
        }
        for key in (f"{kind}_{cost}" for cost in COSTS for kind in ("w2", "holds")):
            values[key] = [pair[key].values for pair in pairs]
        return values

    one, each = ("path", "time"), ("eps", "path", "time")
    texts: dict[str, Any] = {
        "growth_constant": (one, "growth constant L of the heads"),
        "exponent": (one, "exponent of the bound, integral of L"),
        "largest_rate": (("eps",), "largest log(W_2(t) / W_2(0)) / t over times and paths"),
        "fastest_change": (("eps",), "largest |log(W_2(t) / W_2(0))| / t over times and paths"),
        "rate": (("eps",), "slope of the mean over paths of log W_2 in time"),
        "rate_ci": (("eps", "bound"), "bootstrap interval of the rate over paths, 95 %"),
    }
    for cost in COSTS:
        name = f"{cost} W_2 between the cloud and the perturbed one"
        texts |= {f"w2_{cost}": (each, name), f"holds_{cost}": (each, f"bound holds for {name}")}
    problems: dict[str, Any] = {
        "weights": (WEIGHTS, "head law"),
        "direction": (DIRECTIONS, "up or down the energy"),
        "size": (flags.sizes, "factor of all heads"),
    }
    along: dict[str, Any] = {
        "eps": (flags.eps, "size of the perturbation"),
        "path": (np.arange(flags.paths), "perturbation"),
        "time": (time, "time"),
        "bound": (["low", "high"], "end of the interval"),
    }
    return study.tabulate(problems, measure, texts, along, "W₂")


def mean_constant(table: "study.Dataset") -> FloatArray:
    """Return (1/T) int L ds by the trapezoidal rule, path mean: (weights, direction, size)."""
    L, t = table["growth_constant"].values, table["time"].values
    mean = (np.diff(t) * (L[..., 1:] + L[..., :-1]) / 2).sum(axis=-1) / (t[-1] - t[0])
    return np.asarray(mean.mean(axis=-1))


def findings(table: "study.Dataset") -> list[Finding]:
    """Return every prediction with its verdict."""
    rows = []
    for cost, factor in (("chordal", "1"), ("geodesic", "pi/2")):
        holds = table[f"holds_{cost}"].values[..., 1:]
        rows.append(Finding.decided(
            f"W₂(t) <= {factor} exp(int L ds) W₂(0) at every recorded time, {cost} W₂",
            "[MHT] Thm 5.1", f"at {holds.sum()} of {holds.size} recorded times", bool(holds.all()),
        ).of_theorem())  # fmt: skip
    fastest = table["fastest_change"].max("eps")
    rising = np.diff(fastest.values, axis=-1) > 0
    numbers = [f"{rising.sum()} of {rising.size} steps in size raise it"]
    for weights, direction in product(WEIGHTS, DIRECTIONS):
        y = fastest.sel(weights=weights, direction=direction).values
        slope = fits.line(np.log(table["size"].values), y[:, None], of=np.log).slope
        numbers.append(f"{weights}, {direction}: {y[0]:.3g} to {y[-1]:.3g}, like size^{slope:.2f}")
    controlled = Finding.decided(
        "the exponent of the growth of W₂ is controlled by the size of the weights: the fastest "
        "change, max |log(W₂(t)/W₂(0))|/t, grows with it and vanishes with it",
        "[MHT] Rem. 5.2", "; ".join(numbers), rising,
    )  # fmt: skip
    share = table["largest_rate"].max("eps").values / mean_constant(table)
    low, high = share[..., 0].max(), share[..., -1].max()
    bounded = Finding.decided(
        "the largest growth rate, max log(W₂(t)/W₂(0))/t, stays below the mean growth constant "
        "(1/T) int L ds", "[MHT] Thm 5.1, Rem. 5.2",
        f"in {(share <= 1).sum()} of {share.size} cases; at most {low:.2g} of it for the smallest "
        f"weights, {high:.1g} for the largest", share <= 1,
    )  # fmt: skip
    return [*rows, controlled, bounded]


# Tables and figures
# ------------------

NAMES = {"frozen": "Frozen", "ornstein-uhlenbeck": "Ornstein-Uhlenbeck"}


def report(flags: StabilityTokens, table: "study.Dataset") -> str:
    """Return the table."""
    rows = []
    allowed = mean_constant(table)
    for (w, weights), (s, direction), (k, size) in product(
        enumerate(WEIGHTS), enumerate(DIRECTIONS), enumerate(flags.sizes)
    ):
        at = table.isel(weights=w, direction=s, size=k)
        ratio = at["w2_chordal"] / at["w2_chordal"].isel(time=0)
        log_bound = float(at["exponent"].isel(time=-1).max()) / math.log(10)
        low, high = at["rate_ci"].isel(eps=0).values
        holds = np.stack([at[f"holds_{cost}"].values[..., 1:] for cost in COSTS])
        rows.append({
            "heads": weights, "direction": direction, "size": f"{size:g}",
            "mean L": f"{allowed[w, s, k]:.3g}",
            "largest rate": f"{float(at['largest_rate'].max()):.3g}",
            "fastest change": f"{float(at['fastest_change'].max()):.3g}",
            "rate (95 % interval)": f"{float(at['rate'][0]):.3g} ({low:.3g} to {high:.3g})",
            "max W_2(t)/W_2(0)": f"{float(ratio.max()):.3f}",
            "bound at T": f"{10**log_bound:.3g}" if log_bound < 6 else f"10^{log_bound:.0f}",
            "holds": f"{holds.sum()} of {holds.size}",
        })  # fmt: skip
    return "\n\n".join((
        f"n = {flags.n}, d = {flags.d}, H = {flags.heads}, {flags.flow}, T = "
        f"{flags.t_final:g}, {flags.paths} perturbations of each size "
        f"{', '.join(f'{e:g}' for e in flags.eps)}:",
        study.markdown_table(rows),
        "Mean L: (1/T) int L ds, mean over paths. Largest rate: max over times, paths and ε "
        "of log(W₂(t)/W₂(0))/t, chordal; fastest change: of its size. Rate: slope of the "
        "mean over paths of log W₂, smallest ε. Bound: exp of the exponent. Holds: at "
        f"{flags.times} times, for each path, ε, and both costs.",
    ))  # fmt: skip


def growth_figure(flags: StabilityTokens, table: "study.Dataset") -> "study.Figure":
    """Draw W₂(t)/W₂(0) of each size of the weights, with the bound."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    time = table["time"].values
    count = len(flags.sizes)
    dashed: dict[str, Any] = {"linewidth": 0.9, "linestyle": (0, (4, 2))}
    with style():
        figure, axes = grid(2, 2, PAGE, 5.2, sharex=True, sharey="row")
        for w, weights in enumerate(WEIGHTS):
            bottom = top = 1.0
            for s, direction in enumerate(DIRECTIONS):
                axis = axes[w, s]
                for k, size in enumerate(flags.sizes):
                    at = table.isel(weights=w, direction=s, size=k)
                    ratio = at["w2_chordal"].values
                    log = np.log(ratio / ratio[..., :1])  # (eps, path, time)
                    log = log.reshape(-1, len(time))
                    middle, low, high = log.mean(axis=0), log.min(axis=0), log.max(axis=0)
                    bottom, top = min(bottom, np.exp(low).min()), max(top, np.exp(high).max())
                    colour = shade(k, count)
                    axis.plot(time, np.exp(middle), color=colour, marker="osD^v"[k % 5],
                              markevery=spaced(len(time), 4, k, count), label=f"{size:g}",
                              zorder=3)  # fmt: skip
                    axis.fill_between(time, np.exp(low), np.exp(high), color=colour, alpha=0.15,
                                      linewidth=0)  # fmt: skip
                    growth = at["exponent"].values.mean(axis=0)
                    axis.plot(time, np.exp(np.minimum(growth, 50)), color=colour, **dashed)
                axis.set(yscale="log", title=f"{NAMES[weights]} heads, {direction}")
                if w == 1:
                    time_axis(axis)
            # Most of the bounds leave the panel soon: the curves would be flat beside all of them.
            axes[w, 0].set_ylim(bottom / 1.3, 3 * top)
            log_axis(axes[w, 0])
            axes[w, 0].set_ylabel(r"$W_2(t)\,/\,W_2(0)$")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        handles += [Line2D([], [], color="0.35", **dashed), Patch(color="0.35", alpha=0.2)]
        labels += ["bound", "range of all perturbations"]
        figure.legend(handles, labels, title="Size of the weights (lines: geometric means)",
                      ncols=count + 2, loc="outside lower center", handlelength=2.4,
                      columnspacing=1.2)  # fmt: skip
        caption(figure, facts_of(flags))
    return figure


def rate_figure(flags: StabilityTokens, table: "study.Dataset") -> "study.Figure":
    """Draw the fastest changes of W₂ and growth constants against the size of the weights."""
    allowed = mean_constant(table)
    fastest = table["fastest_change"].max("eps").values
    with style():
        figure, axes = grid(1, 1, 5.2, 3.2)
        axis = axes[0, 0]
        for (w, weights), (s, direction) in product(enumerate(WEIGHTS), enumerate(DIRECTIONS)):
            colour = ("#0072B2", "#D55E00")[w]
            dash: Any = "-" if s == 0 else (0, (1.5, 1))
            axis.plot(flags.sizes, fastest[w, s], color=colour, marker="o^"[s], linestyle=dash,
                      label=f"{NAMES[weights]}, {direction}")  # fmt: skip
            axis.plot(flags.sizes, allowed[w, s], color=colour, linewidth=0.9,
                      linestyle=(0, (5, 2)) if s == 0 else (0, (5, 1.5, 1, 1.5)),
                      label=f"mean $L$: {NAMES[weights]}, {direction}")  # fmt: skip
        axis.set(xscale="log", yscale="log")
        axis.set_xticks(flags.sizes, [f"{size:g}" for size in flags.sizes])
        axis.minorticks_off()
        axis.set(xlabel="Size of the weights", ylabel="Rate of change per unit time")
        axis.set_title(facts_of(flags))
        figure.legend(
            loc="outside lower center", ncols=2, fontsize=7,
            title=r"Markers: $\max_t\ |\log(W_2(t)/W_2(0))|\,/\,t$, largest of all perturbations; "
            "thin: constant $L$ of the bound",
        )  # fmt: skip
    return figure


def facts_of(flags: StabilityTokens) -> str:
    return (
        f"$n$ = {flags.n}, $d$ = {flags.d}, $H$ = {flags.heads}, {flags.flow}, "
        f"{flags.paths * len(flags.eps)} perturbations"
    )


def main() -> None:
    flags = study.command_line(StabilityTokens, __doc__)
    with study.session("stability_tokens", flags) as session:
        x0 = flags.cloud()
        # The summary records them; sizes in order, for steps between them.
        flags = session.flags = replace(
            flags, n=x0.shape[0], d=x0.shape[1], sizes=tuple(sorted(flags.sizes)),
            eps=tuple(sorted(flags.eps)),
        )  # fmt: skip
        table = collect(flags, session.solve(tasks(flags, x0)))
        session.finish(
            table, report(flags, table), findings(table),
            {"growth": growth_figure(flags, table), "rates": rate_figure(flags, table)},
        )  # fmt: skip


if __name__ == "__main__":
    script(main)
