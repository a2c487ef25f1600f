"""Figures of the study `rwpo_digits`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from _rwpo import learning_curves

from wflow import study
from wflow.plots.figure import PAGE, grid, style
from wflow.plots.networks import COLOURS
from wflow.study.networks import Record, Results

if TYPE_CHECKING:
    from rwpo_digits import Tools

LABELS = {name: name for name in ("OT-Flow", "corrected", "with itself", "late layer")} | {
    name: f"{name} (no density)" for name in ("printed", "printed exact")
}


def figures(tools: Tools, results: Results, enough: float) -> dict[str, study.Figure]:
    """Pictures of digits, learning curves, and the attention against beta with a level of ESS."""
    curves = {
        f"d = {d}": {text: results.histories.get(f"{m} d{d}", []) for m, text in LABELS.items()}
        for d in tools.latents
    }
    colours = dict(zip(LABELS.values(), COLOURS, strict=False))
    learning = learning_curves(curves, "held_out", "Held-out negative log likelihood", colours)
    for axis, known in zip(learning.axes, tools.latents.values(), strict=False):
        level = known.floors["gaussian nll"]
        axis.axhline(level, color="k", lw=0.8, ls=":")
        axis.annotate("Gaussian", (0, level), fontsize=7)
        axis.set_ylim(top=2 * level)
    found = {"learning_curves": learning, "attention": attention(tools, enough)}
    for d, known in tools.latents.items():
        named = {model: results.records.get(f"{model} d{d}", [{}])[0] for model in LABELS}
        shown = {model: record for model, record in named.items() if "pictures" in record}
        if shown:
            rows = known.pictures | {m: record["pictures"] for m, record in shown.items()}
            found[f"samples_d{d}"] = strips(rows, tools.side)
            found[f"interpolation_d{d}"] = squares(shown, tools.side)
    return found


@style()
def strips(rows: dict[str, Any], side: int) -> study.Figure:
    """Held-out digits, their reconstructions, and samples of every model, a row each."""
    figure, axes = grid(len(rows), 1, PAGE, 0.47 * len(rows))
    for axis, (label, pictures) in zip(axes[:, 0], rows.items(), strict=True):
        images = np.array(pictures).reshape(-1, side, side)
        picture(axis, np.concatenate(list(images), axis=1))
        axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=7)
    return figure


@style()
def squares(shown: dict[str, Record], side: int) -> study.Figure:
    """Interpolations, a square for each model; the corners are held-out digits."""
    figure, axes = grid(1, len(shown), PAGE, PAGE / len(shown) + 0.3)
    for axis, (label, record) in zip(axes[0], shown.items(), strict=True):
        many = round(len(record["interpolation"]) ** 0.5)
        images = np.array(record["interpolation"]).reshape(many, many, side, side)
        picture(axis, images.transpose(0, 2, 1, 3).reshape(many * side, many * side))
        axis.set_title(label)
    return figure


def picture(axis: Any, values: np.ndarray) -> None:
    """Draw grey values without axes."""
    axis.imshow(values, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


@style()
def attention(tools: Tools, enough: float) -> study.Figure:
    """Effective sample size and weight of a token itself against beta."""
    panels = {
        "ess": "ESS of the other tokens",
        "self_weight": "Weight of itself",
        "explained": "Variance explained",
    }
    figure, axes = grid(1, len(panels), PAGE, 2.6)
    for axis, (key, label) in zip(axes[0], panels.items(), strict=True):
        for place, (d, known) in enumerate(tools.latents.items()):
            for form, dash in (("standardised", "-"), ("whitened", "--")):
                found = known.interaction[form]
                betas, values = zip(*((at.beta, getattr(at, key)) for at in found["along"]),
                                    strict=True)  # fmt: skip
                axis.plot(betas, values, dash, color=COLOURS[place + 1], label=f"d = {d}, {form}")
        axis.set_xscale("log")
        axis.axvline(found["paper"].beta, color="k", lw=0.8, ls=":")
        axis.set(xlabel="beta (h = 1/48)", ylabel=label)
    axes[0, 0].set_yscale("log")
    axes[0, 0].axhline(enough, color="k", lw=0.8, ls=":")
    axes[0, 0].set_ylim(0.9)
    axes[0, 2].set_ylim(0.0, 1.0)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure
