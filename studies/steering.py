"""Steering: heads that carry two moons to four clusters on the sphere and back, against depth.

`wflow.control.steer` finds piecewise-constant heads of softmax attention that carry a cloud to
another in W₂ with a penalty on their squares. The study measures the cost against the depth T, and
the Hamiltonian of the maximum principle along depth: is it constant as pieces become short, with W₂
to a target as terminal cost, and with a smooth one, the mean cosine, which keeps tokens apart?

    python studies/steering.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, section 7.1.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import wflow
from wflow import SaveAt, study
from wflow.cli import script
from wflow.plots.figure import PAGE, grid, style
from wflow.study import Finding

THEORY = "[theory](#theory-steering)"
PLACES = ((1.0, 1.0, 1.0), (1.0, -1.0, -1.0), (-1.0, 1.0, -1.0), (-1.0, -1.0, 1.0))
SPREAD = 0.05  # of the tokens of a cluster about its place
NEAR = 0.25  # share of the squared distance that may be left
SPLITS = 4, 8, 16  # numbers of pieces at T = 1, for which the Hamiltonian is compared
LONGER = 10  # factor of --iterations in these searches
TARGETS = (("mean cosine", 1, 0.1), ("clusters", 2, 0.01))  # from moons: heads, penalty
WAYS = ("moons to clusters", "clusters to moons")


@dataclass(frozen=True, kw_only=True)
class Steering(study.Flags):
    """Flags of this study."""

    n: study.TwoOrMore = 16
    """Number of tokens."""
    heads: study.Count = 2
    """Number of heads."""
    depths: study.Compared[study.Positive] = (1.0, 2.0, 4.0)
    """Depths T, the end times."""
    pieces: study.Count = 4
    """Pieces with constant heads; each is a whole number of steps."""
    penalty: study.Positive = 0.01
    """Weight of the squared norm of the heads."""
    iterations: study.Count = 150
    """Largest number of iterations of L-BFGS."""
    starts: study.Count = 2
    """Searches from random heads; one more begins with the heads of the depth before."""
    dt: study.Positive = 0.125
    paths: tyro.conf.Suppress[int] = 1
    t_final: tyro.conf.Suppress[float] = 1.0
    workers: tyro.conf.Suppress[int] = 0
    out: study.Folder = Path("results/steering")


def clouds(flags: Steering) -> dict[str, study.FloatArray]:
    """Return two moons, arcs that interlock about the pole, and four clusters, (n, 3) each."""
    half = flags.n - flags.n // 2
    a = np.linspace(0, np.pi, half)
    moons = np.concatenate([
        np.stack([np.cos(a) - 0.5, np.sin(a) - 0.25], axis=1),
        np.stack([0.5 - np.cos(a), 0.25 - np.sin(a)], axis=1)[: flags.n // 2],
    ])  # fmt: skip
    rng = np.random.default_rng(flags.seed)
    clusters = np.resize(PLACES, (flags.n, 3)) / np.sqrt(3)
    clusters = clusters + SPREAD * rng.standard_normal(clusters.shape)
    lifted = np.concatenate([moons, np.ones((flags.n, 1))], axis=1)
    return {"moons": wflow.sphere.as_tokens(lifted), "clusters": wflow.sphere.as_tokens(clusters)}


def carried(flags: Steering, x0: Any, target: Any, depth: float, before: Any) -> Any:
    """Return the best of some searches, one of them from the heads of another depth."""
    starts = [(flags.heads, flags.seed + k) for k in range(flags.starts)]
    starts += [] if before is None else [(before, flags.seed)]
    found = [
        wflow.control.steer(
            x0, target, heads=heads, seed=seed, pieces=flags.pieces, t_final=depth, dt=flags.dt,
            penalty=flags.penalty, iterations=flags.iterations, compute=flags.compute,
        )
        for heads, seed in starts
    ]  # fmt: skip
    return min(found, key=lambda one: one.cost[-1])


def collect(flags: Steering) -> "study.Dataset":
    """Return costs, Hamiltonians and tokens along depth of all cases."""
    known = clouds(flags)
    before: dict[str, Any] = {}

    def measure(way: str, depth: float) -> dict[str, Any]:
        start, _, end = way.split()
        found = carried(flags, known[start], known[end], depth, before.get(way))
        # The same motion at another speed, where attention is nearly uniform.
        scale = depth / flags.depths[min(flags.depths.index(depth) + 1, len(flags.depths) - 1)]
        before[way] = scale * found.heads
        loss = wflow.losses.W2(known[end])
        run = wflow.solve(
            known[start], found.law, t_final=depth, dt=flags.dt, scheme="rk4",
            save=SaveAt(snapshots=[0, depth / 2, depth], budget=False),
        )  # fmt: skip
        return {
            "before": loss(known[start][None, None])[0],
            "terminal": found.terminal,
            "effort": found.effort,
            "slope": found.slope,
            "converged": found.converged,
            "hamiltonian": found.hamiltonian,
            "tokens": run.tokens.values[0],
        }

    table = study.tabulate(
        {"way": (WAYS, "from where to where"), "depth": (flags.depths, "depth T")},
        measure,
        {
            "before": "squared distance W₂² at the start",
            "terminal": "squared distance W₂² at the end",
            "effort": "penalty",
            "slope": "norm of the derivative of the cost, in L2 over depth",
            "converged": "whether the norm is at most 1e-5",
            "hamiltonian": (("piece",), "Hamiltonian at the start of a piece"),
            "tokens": (("part", "token", "axis"), "tokens"),
        },
        {
            "piece": (np.arange(flags.pieces), "piece"),
            "part": ((0.0, 0.5, 1.0), "share of the depth"),
            "token": (np.arange(flags.n), "token"),
            "axis": (np.arange(3), "coordinate"),
        },
        "searches",
    )
    targets: dict[str, Any] = {**known, "mean cosine": wflow.losses.MeanCosine()}
    measured: dict[str, Any] = {"spread": [], "split_slope": []}
    for target, heads, penalty in TARGETS:
        searches = [
            wflow.control.steer(
                known["moons"], targets[target], heads=heads, pieces=pieces, t_final=1.0,
                dt=1 / SPLITS[-1], penalty=penalty, tolerance=1e-7, seed=flags.seed,
                iterations=LONGER * flags.iterations, compute=flags.compute,
            )
            for pieces in SPLITS
        ]  # fmt: skip
        measured["spread"].append([np.ptp(one.hamiltonian) for one in searches])
        measured["split_slope"].append([one.slope for one in searches])
    texts = {"spread": "range of the Hamiltonian along depth", "split_slope": "slope of the cost"}
    for name, values in measured.items():
        table[name] = (("target", "split"), values, {"long_name": texts[name], "units": "1"})
    table["target"] = ("target", [target for target, _, _ in TARGETS], {"long_name": "target"})
    table["split"] = ("split", list(SPLITS), {"long_name": "number of pieces", "units": "1"})
    return table


def findings(table: "study.Dataset") -> list[Finding]:
    """Return every prediction with its verdict."""
    left = (table["terminal"] / table["before"]).sel(depth=table["depth"].max())
    cost = table["terminal"] + table["effort"]
    falls = cost.diff("depth") <= 0
    text = "; ".join(
        f"{way}: "
        + ", ".join(f"{v:.3f} (T = {t:g})" for t, v in cost.sel(way=way).to_series().items())
        for way in WAYS
    )
    return [
        Finding.decided(
            "heads carry one cloud to the other", "[MHT] section 7.1",
            "; ".join(f"{way}: {100 * float(left.sel(way=way)):.1f} % of W₂² left" for way in WAYS),
            list((left <= NEAR).values),
        ),
        Finding.decided(
            "the least cost does not rise with depth", THEORY, text, list(falls.values.ravel())
        ),
        *(constant(table.sel(target=target), f"{text} as terminal cost") for target, text in
          (("mean cosine", "the mean cosine"), ("clusters", "W₂² to a target"))),
    ]  # fmt: skip


def constant(at: "study.Dataset", cost: str) -> Finding:
    """Return whether the Hamiltonian becomes constant along depth as pieces become short."""
    spread = at["spread"].values
    sizes = [
        f"{size:.2g} ({pieces} pieces, slope {slope:.0e})"
        for pieces, size, slope in zip(SPLITS, spread, at["split_slope"].values, strict=True)
    ]
    return Finding.decided(
        f"the Hamiltonian becomes constant along depth as pieces become short, with {cost}",
        THEORY, f"range {', '.join(sizes)}", bool(spread[-1] < spread[0] / 2),
    )  # fmt: skip


# Tables and figures
# ------------------


def report(table: "study.Dataset") -> str:
    """Return the table of all cases."""
    rows = [
        {
            "case": way, "T": f"{depth:g}", "W₂² before": f"{float(at['before']):.4f}",
            "after": f"{float(at['terminal']):.4f}", "penalty": f"{float(at['effort']):.4f}",
            "slope": f"{float(at['slope']):.0e}", "converged": str(bool(at["converged"])),
            "Hamiltonian": ", ".join(f"{v:.4f}" for v in at["hamiltonian"].values),
        }
        for way in WAYS
        for depth in table["depth"].values
        for at in [table.sel(way=way, depth=depth)]
    ]  # fmt: skip
    return study.markdown_table(rows)


def figure(table: "study.Dataset") -> "study.Figure":
    """Draw the tokens of the deepest runs, seen from the pole, and the cost against depth."""
    with style():
        drawn, axes = grid(1, 4, PAGE, 2.2)
        deepest = table.sel(way=WAYS[0], depth=table["depth"].max())
        for axis, part in zip(axes[0], table["part"].values, strict=False):
            x = deepest["tokens"].sel(part=part).values
            near = x[:, 2] >= 0
            axis.plot(*x[near, :2].T, "o", color="#0072B2", label="near side")
            axis.plot(*x[~near, :2].T, "o", color="#0072B2", fillstyle="none", label="far side")
            axis.set(
                xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal", title=f"$t$ = {part:g} $T$"
            )
        axes[0, 0].legend(fontsize=6)
        for way, look in zip(WAYS, ("o-", "s--"), strict=True):
            cost = (table["terminal"] + table["effort"]).sel(way=way)
            axes[0, 3].plot(table["depth"], cost, look, label=way)
        axes[0, 3].set(xlabel="Depth $T$", title="Cost", ylim=(0, None))
        axes[0, 3].legend(fontsize=6)
    return drawn


def main() -> None:
    flags = study.command_line(Steering, __doc__)
    with study.session("steering", flags) as session:
        table = collect(flags)
        session.finish(table, report(table), findings(table), {"steering": figure(table)})


if __name__ == "__main__":
    script(main)
