"""Figures 1 to 3 of [MHT] from the published configuration: writes four PNG files.

The folders are those of `ou_heads` and of `oscillating_heads` with `--preset published`, for tokens
of one dimension. The last figure has the panels of figures 2 and 3 side by side.

    python docs/_ext/published_heads.py results/ou_heads results/oscillating_heads --out figures

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, section 6.
"""

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from xarray import Dataset, load_dataset

import wflow
from wflow import InputError
from wflow.cli import script
from wflow.plots.figure import PAGE
from wflow.plots.style import style
from wflow.study.heads import fit_scaling

TIMES = (0.0, 0.8, 0.9, 1.0)  # of the snapshots, in units of T


class Results(NamedTuple):
    """Runs of a study by their head counts, and its summary."""

    runs: dict[int, Dataset]
    summary: Dataset


def opened(folder: Path, stack: ExitStack) -> Results:
    """Open what a study left in its folder."""
    files, summary = list(folder.glob("H*.h5")), folder / "summary.h5"
    if not files or not summary.exists():
        raise InputError(f"{folder}: expected the folder of ou_heads or oscillating_heads")
    runs = [stack.enter_context(wflow.open(file)) for file in files]
    table = load_dataset(summary, engine="h5netcdf")
    return Results(dict(sorted((ds.sizes["head"], ds) for ds in runs)), table)


Draw = Callable[[Any, Results], None]  # into a row of Axes


def snapshots(axes: list[Axes], results: Results) -> None:
    """Draw the mean tokens of the most heads at four times."""
    ds = results.runs[max(results.runs)]
    for axis, t in zip(axes, TIMES, strict=True):
        wflow.plots.token_snapshots(ds, [t * float(ds["time"][-1])], "mean", ax=axis)


def gradient(axes: list[Axes], results: Results) -> None:
    """Draw the squared upper gradient over time, and its late average against the heads."""
    averages = results.summary["upper_gradient_sq"]
    heads = averages["heads"].values.tolist()  # of the last call, whose folder may have others
    runs = {count: results.runs[count] for count in heads}
    wflow.plots.gradient_over_time(runs, ax=axes[0])
    axes[0].set_ylim(top=4 * axes[0].get_ylim()[1])  # room for the legend
    axes[0].legend(title="Heads $H$", ncols=len(runs), loc="upper right")
    fit = fit_scaling(results.summary).get("upper_gradient_sq")
    wflow.plots.gradient_against_heads(heads, averages.values, fit, ax=axes[1])


def balance(axes: list[Axes], results: Results) -> None:
    """Draw the terms of the energy balance of the most heads."""
    wflow.plots.energy_balance(results.runs[max(results.runs)], ax=axes[0])
    axes[0].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))


def together(axes: list[Axes], results: Results) -> None:
    """Draw the panels of the last two side by side; titles have the space of a panel."""
    gradient(axes[:2], results)
    balance(axes[2:], results)
    for axis in (axes[0], axes[2]):
        axis.set_title(axis.get_title(loc="left").replace("; ", "\n"))
    axes[1].set_title(axes[1].get_title(loc="left").replace(", Pearson", "\nPearson"))


def figure(rows: dict[str, Results], draw: Draw, columns: int, size: tuple[float, float]) -> Figure:
    """Make a figure with a row of panels for each law."""
    made = Figure(figsize=size, layout="constrained")
    parts = made.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for part, (law, results) in zip(parts, rows.items(), strict=True):
        part.suptitle(f"{law} heads", x=0.01, horizontalalignment="left", fontsize=9)
        draw(list(part.subplots(1, columns, squeeze=False)[0]), results)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("ou", type=Path, help="folder of ou_heads")
    parser.add_argument("oscillating", type=Path, help="folder of oscillating_heads")
    parser.add_argument("--out", type=Path, required=True, help="folder of the figures")
    given = parser.parse_args()
    with ExitStack() as stack, style():
        folders = {"Ornstein-Uhlenbeck": given.ou, "Oscillating": given.oscillating}
        rows = {law: opened(folder, stack) for law, folder in folders.items()}
        d = next(iter(rows["Oscillating"].runs.values())).sizes["axis"]
        figures = {
            "tokens": figure(rows, snapshots, len(TIMES), (PAGE, 4.6)),
            "gradient": figure(rows, gradient, 2, (PAGE, 5.8)),
            "balance": figure(rows, balance, 1, (PAGE, 5.4)),
            "panels": figure(rows, together, 3, (1.6 * PAGE, 6.0)),
        }
        given.out.mkdir(parents=True, exist_ok=True)
        for name, drawn in figures.items():
            file = given.out / f"published_d{d}_{name}.png"
            drawn.savefig(file, dpi=105)
            print(f"wrote {file}")


if __name__ == "__main__":
    script(main)
