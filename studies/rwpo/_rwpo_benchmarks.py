"""Tables and figures of the study `rwpo_benchmarks`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from _rwpo import learning_curves

from wflow import nets, study
from wflow.plots.figure import PAGE, grid, style
from wflow.study import networks
from wflow.study.networks import Record, Results

if TYPE_CHECKING:
    from rwpo_benchmarks import RwpoBenchmarks, Trials

HALF, CELLS = 4.5, 96  # of the square on which densities are drawn
POINTS = 4000  # of a sample that is drawn
SHOWN = ("OT-Flow", "printed exact", "corrected", "with itself", "chosen")
COLOURS = dict(zip(SHOWN, ("#6b6b6b", "#b8860b", "#c1440e", "#2e7d32", "#0b3c5d"), strict=True))


def title(target: str) -> str:
    return target.replace("_", " ").capitalize().replace("gaussian", "Gaussian")


# Figures
# -------


def figures(results: Results, targets: Sequence[str]) -> dict[str, study.Figure]:
    """Samples and densities of seed 0, as figures 2 and 3 of the paper have them, and curves."""
    edges = np.linspace(-HALF, HALF, CELLS + 1)

    def sample(target: str) -> np.ndarray:
        return nets.data.planar(target, POINTS).numpy()

    def histogram(target: str) -> np.ndarray:
        x = nets.data.planar(target, 400_000).numpy()
        return np.histogram2d(x[:, 0], x[:, 1], edges, density=True)[0]

    def points(axis: Any, x: np.ndarray, _: np.ndarray) -> None:
        axis.plot(*x.T, ",", color="#0b3c5d", alpha=0.5, rasterized=True)
        outside = float((np.abs(x) > HALF).any(axis=1).mean())
        if outside > 0.001:
            axis.text(0.03, 0.03, f"{100 * outside:.1f} % outside", fontsize=6,
                      transform=axis.transAxes)  # fmt: skip

    def image(axis: Any, values: np.ndarray, target: np.ndarray) -> None:
        axis.imshow(values.T, origin="lower", extent=(-HALF, HALF, -HALF, HALF), cmap="magma",
                    vmin=0, vmax=float(np.quantile(target, 0.995)), rasterized=True)  # fmt: skip

    panels = {
        title(target): {m: results.histories.get(f"{target} {m}", []) for m in SHOWN}
        for target in targets
    }
    label = "Sliced $W_2$ to held-out data"
    return {
        "samples": squares(results, targets, "samples", sample, points),
        "densities": squares(results, targets, "density", histogram, image),
        "curves": learning_curves(panels, "sliced_w2", label, COLOURS, log=True),
    }


@style()
def squares(
    results: Results,
    targets: Sequence[str],
    key: str,
    truth: Callable[[str], np.ndarray],
    draw: Callable[[Any, np.ndarray, np.ndarray], None],
) -> study.Figure:
    """A column for each density, a row for the target and each model, drawn from their values."""
    first = {name: runs[0] for name, runs in results.records.items()}
    rows = ["target", *(m for m in SHOWN if any(key in first.get(f"{t} {m}", {}) for t in targets))]
    figure, axes = grid(len(rows), len(targets), PAGE, 0.3 + 1.45 * len(rows), sharex=True,
                        sharey=True)  # fmt: skip
    for column, target in zip(axes.T, targets, strict=True):
        column[0].set_title(title(target))
        exact = truth(target)
        for axis, name in zip(column, rows, strict=True):
            record = {key: exact} if name == "target" else first.get(f"{target} {name}", {})
            if key in record:
                draw(axis, np.array(record[key]), exact)
            axis.set(xlim=(-HALF, HALF), ylim=(-HALF, HALF), xticks=[], yticks=[], aspect="equal")
    for axis, name in zip(axes[:, 0], rows, strict=True):
        axis.set_ylabel(name)
    return figure


# Tables
# ------


def number(value: float) -> str:
    """A distance for a cell: two digits after the point, or three figures of a large one."""
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"


def cell(values: Sequence[float] | np.ndarray, style: str = "") -> str:
    write = (lambda value: f"{value:{style}}") if style else number
    return networks.mean_and_spread(list(values), write)


def main_table(cells: Iterable[tuple[str, str, Record]], floors: Mapping[str, float]) -> str:
    """One row for each density and model."""
    rows = []
    for target, model, values in cells:
        printed = model.startswith("printed")
        nll, lost = cell(values["nll"]), values["folded" if printed else "lost"]
        rows.append({
            "target": title(target),
            "floor": number(floors[target]),
            "model": model,
            "sliced $W_2$": cell(values["sliced_w2"]),
            "in equal time": cell(values["equal_time"]),
            "OT-Flow then": cell(values["equal_time_base"]),
            "1000 MMD$^2$": cell(1000 * values["mmd"], ".2f"),
            "NLL": f"({nll})" if printed else nll,
            "not inverted or folded (%)": cell(100 * lost, ".2g"),
            "ms per step": cell(1000 * values["step_seconds"], ".0f"),
            "$\\lambda$": cell(values["lam"], ".2f"),
            "$\\beta$": cell(values["beta"], ".2f"),
            "least ESS": cell(values["ess"], ".0f"),
        })  # fmt: skip
    return study.markdown_table(rows)


def trial_table(flags: RwpoBenchmarks, trials: Trials) -> str:
    """Validation scores of the variants, the best first."""
    names = ["OT-Flow", *sorted(trials.scores, key=lambda name: trials.scores[name])]
    scores = {"OT-Flow": 0.0} | trials.scores

    def column(target: str, key: str) -> list[str]:
        return [cell(trials.results.values(f"trial {target} {name}", key)) for name in names]

    table = {"variant": names, "ratio": [f"{np.exp(scores[name]):.2f}" for name in names]}
    for target in flags.trial_targets:
        table[f"sliced $W_2$, {title(target).lower()}"] = column(target, "sliced_w2")
    first = flags.trial_targets[0]
    table["NLL, " + title(first).lower()] = column(first, "nll")
    return study.markdown_table(table)


def report(
    flags: RwpoBenchmarks,
    trials: Trials,
    results: Results,
    cells: Iterable[tuple[str, str, Record]],
    floors: Mapping[str, float],
) -> str:
    """The tables."""
    alpha = ", ".join(f"{weight:g}" for weight in flags.alpha)
    parts = [
        f"{networks.caption(flags, flags.seeds, results, trials.source)} d = {flags.dim}, "
        f"$n_t$ = {flags.steps}, width {flags.width}, {flags.iterations} iterations with "
        f"{flags.batch} points, Adam with rates from {flags.rates[0]:g} to {flags.rates[1]:g}; "
        f"weights of likelihood, transport and HJB {alpha}, and with eq. 16 1, 1, 0.1. Measured on "
        f"{flags.points:,} held-out points: sliced $W_2$ by 256 directions, MMD of Gaussian "
        "kernels at 1/4 to 4 times the median distance, negative log likelihood (NLL) in double "
        "precision; that of the printed flow, in brackets, is what (24) sums, which is no "
        "likelihood. The floor is the sliced $W_2$ of two samples of the target. In equal time: "
        "that of the shorter training of the flow and OT-Flow, by the least time of a step, on "
        f"{flags.curve:,} points; then OT-Flow's at that time.",
        main_table(cells, floors),
    ]
    if trials.scores:
        parts += [
            f"Variants of the layer after {flags.trial_iterations} iterations on validation data, "
            f"with {flags.trial_seeds} other seed{'s' if flags.trial_seeds > 1 else ''}; chosen: "
            f"{trials.best}. The ratio is the geometric mean of the distance over OT-Flow's.",
            trial_table(flags, trials),
        ]
    return "\n\n".join(parts)
