"""Tables and figures of the study `rwpo_benchmarks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wflow import nets, study
from wflow.study import networks

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rwpo_benchmarks import Found, RwpoBenchmarks

HALF, CELLS = 4.5, 96  # of the square on which densities are drawn
SHOWN = ("OT-Flow", "printed", "corrected", "chosen")
COLOURS = dict(zip(SHOWN, ("#6b6b6b", "#b8860b", "#c1440e", "#0b3c5d"), strict=True))


def title(target: str) -> str:
    return target.replace("_", " ").capitalize().replace("gaussian", "Gaussian")


# Figures
# -------


def figures(found: Found) -> dict[str, Figure]:
    """Samples and densities of seed 0, as figures 2 and 3 of the paper have them, and curves."""
    edges = np.linspace(-HALF, HALF, CELLS + 1)

    def histogram(target: str) -> np.ndarray:
        x = nets.data.planar(target, 400_000).numpy()
        return np.histogram2d(x[:, 0], x[:, 1], edges, density=True)[0]

    def points(axis: Any, values: np.ndarray, _: np.ndarray) -> None:
        x = values[:4000]
        axis.plot(*x.T, ",", color="#0b3c5d", alpha=0.5, rasterized=True)
        outside = float((np.abs(x) > HALF).any(axis=1).mean())
        if outside > 0.001:
            axis.text(0.03, 0.03, f"{100 * outside:.1f} % outside", fontsize=6,
                      transform=axis.transAxes)  # fmt: skip

    def image(axis: Any, values: np.ndarray, target: np.ndarray) -> None:
        axis.imshow(values.T, origin="lower", extent=(-HALF, HALF, -HALF, HALF), cmap="magma",
                    vmin=0, vmax=float(np.quantile(target, 0.995)), rasterized=True)  # fmt: skip

    models = [name for name in SHOWN if name in found.models()]
    clouds = squares(
        found, models, "samples", lambda target: nets.data.planar(target, 4000).numpy(), points
    )
    models = [name for name in models if name != "printed"]  # which has no density
    densities = squares(found, models, "density", histogram, image)
    return {"samples": clouds, "densities": densities, "curves": curves(found)}


def squares(
    found: Found,
    models: Sequence[str],
    key: str,
    truth: Callable[[str], np.ndarray],
    draw: Callable[[Any, np.ndarray, np.ndarray], None],
) -> Figure:
    """A column for each density, a row for the target and each model, drawn from their values."""
    from wflow.plots.figure import PAGE, grid, style

    targets = found.targets(*models)
    with style():
        size = len(models) + 1, len(targets)
        figure, axes = grid(*size, PAGE, 0.3 + 1.45 * size[0], sharex=True, sharey=True)
        for axis, target in zip(axes.T, targets, strict=True):
            values = {"target": truth(target)}
            values |= {
                name: found.histories[target, name][0][key].values
                for name in models
                if key in found.histories[target, name][0]
            }
            axis[0].set_title(title(target))
            for place, name in zip(axis, ("target", *models), strict=True):
                if name in values:
                    draw(place, values[name], values["target"])
                place.set(xlim=(-HALF, HALF), ylim=(-HALF, HALF), xticks=[], yticks=[],
                          aspect="equal")  # fmt: skip
        for row, name in zip(axes, ("target", *models), strict=True):
            row[0].set_ylabel(name)
    return figure


def curves(found: Found) -> Figure:
    """Distance to held-out data over the training: mean and range over the seeds."""
    from wflow.plots.figure import PAGE, grid, style
    from wflow.plots.networks import draw_histories

    targets = found.targets()
    columns = min(3, len(targets))
    rows = -(-len(targets) // columns)
    with style():
        figure, axes = grid(rows, columns, PAGE, 0.4 + 2.1 * rows, sharex=True)
        for axis, target in zip(axes.flat, targets, strict=False):
            drawn = {name: found.histories.get((target, name), []) for name in SHOWN}
            draw_histories(axis, drawn, "sliced_w2", COLOURS, log=True)
            axis.set_title(title(target))
        for axis in axes.flat[len(targets) :]:
            axis.set_visible(False)
        for row in axes:
            row[0].set_ylabel("Sliced $W_2$ to held-out data")
        for axis in axes.flat[max(0, len(targets) - columns) : len(targets)]:  # none is below
            axis.set_xlabel("Iteration")
            axis.tick_params(labelbottom=True)
        handles, texts = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside lower center", ncols=4)
    return figure


# Tables
# ------


def number(value: float) -> str:
    """A distance for a cell: two digits after the point, or three figures of a large one."""
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"


def cell(values: Sequence[float] | np.ndarray, style: Any = number) -> str:
    return networks.mean_and_spread(list(values), style)


def main_table(found: Found) -> str:
    """One row for each target and model."""
    rows = []
    for target, model in found.records:
        values = {
            key: found.values(target, model, key)
            for key in ("sliced_w2", "equal_time", "equal_time_base", "mmd", "nll", "step_seconds",
                        "lost", "folded", "lam", "beta")
        }  # fmt: skip
        ess = [np.nanmin(r["ess"]) for r in found.records[target, model] if r["ess"]]
        printed = model.startswith("printed")
        rows.append({
            "target": title(target),
            "floor": number(found.floors[target]),
            "model": model,
            "seeds": str(len(values["nll"])),
            "sliced $W_2$": cell(values["sliced_w2"]),
            "in equal time": cell(values["equal_time"]),
            "OT-Flow then": cell(values["equal_time_base"]),
            "1000 MMD$^2$": cell(1000 * values["mmd"], lambda v: f"{v:.2f}"),
            "NLL": f"({cell(values['nll'])})" if printed else cell(values["nll"]),
            "not inverted or folded (%)": cell(
                100 * values["folded" if printed else "lost"], lambda v: f"{v:.2g}"
            ),
            "ms per step": cell(1000 * values["step_seconds"], lambda v: f"{v:.0f}"),
            "$\\lambda$": cell(values["lam"], lambda v: f"{v:.2f}"),
            "$\\beta$": cell(values["beta"], lambda v: f"{v:.2f}"),
            "least ESS": cell(ess, lambda v: f"{v:.0f}"),
        })  # fmt: skip
    return study.markdown_table(rows)


def trial_table(flags: RwpoBenchmarks, found: Found) -> str:
    """Validation scores of the variants, the best first."""
    tried, order = found.trials, found.scores
    names = ["OT-Flow", *sorted(order, key=lambda name: order[name])]
    first = flags.trial_targets[0]

    def column(target: str, key: str) -> list[str]:
        return [cell([r[key] for r in tried[f"trial {target} {name}"]]) for name in names]

    table = {
        "variant": names,
        "options": [tried[f"trial {first} {name}"][0]["options"] for name in names],
        "ratio": ["1", *(f"{np.exp(order[name]):.2f}" for name in names[1:])],
    }
    for target in flags.trial_targets:
        table[f"sliced $W_2$, {title(target).lower()}"] = column(target, "sliced_w2")
    table["NLL, " + title(first).lower()] = column(first, "nll")
    return study.markdown_table(table)


def report(flags: RwpoBenchmarks, found: Found) -> str:
    """The tables."""
    names = {" ".join(key): key for key in found.records}
    results = networks.Results(
        {name: found.records[key] for name, key in names.items()},
        {name: found.histories[key] for name, key in names.items()},
    )
    alpha = ", ".join(f"{weight:g}" for weight in flags.alpha)
    parts = [
        networks.caption(flags, flags.seeds, results, "fresh points of each density")
        + f" $n_t$ = {flags.steps}, width {flags.width}, {flags.iterations} iterations with "
        f"{flags.batch} points, Adam with rates from {flags.rates[0]:g} to {flags.rates[1]:g}; "
        f"weights of likelihood, transport and HJB {alpha}, and with eq. 16 1, 1, 0.1. Measured on "
        f"{flags.points:,} held-out points: sliced $W_2$ by 256 directions, MMD of Gaussian "
        "kernels at 1/4 to 4 times the median distance, negative log likelihood (NLL) in double "
        "precision; that of the printed flow, in brackets, is what (24) sums, which is no "
        "likelihood. The floor is the sliced $W_2$ of two samples of the target. In equal time: "
        "that of the shorter training of the flow and OT-Flow, by the processor time of a step, on "
        f"{flags.curve:,} points; then OT-Flow's at that time.",
        main_table(found),
    ]
    if found.scores:
        parts += [
            f"Variants of the layer after {flags.trial_iterations} iterations on validation data, "
            f"with {flags.trial_seeds} other seed{'s' if flags.trial_seeds > 1 else ''}; chosen: "
            f"{found.best}. The ratio is the geometric mean of the distance over OT-Flow's.",
            trial_table(flags, found),
        ]
    return "\n\n".join(parts)
