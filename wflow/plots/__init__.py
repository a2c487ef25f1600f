"""Figures of Datasets of results; plotting computes no results.

Functions that return a figure take `ax`, an existing Axes to draw in. A new figure displays itself
in a notebook; that of `ax` is displayed by pyplot if pyplot made it: end the line with a semicolon
then.

`style` has the settings of Matplotlib, `figure` layout and curves, `inline` the figure that
displays itself in a notebook, `tokens` clouds on the sphere, `densities` densities on it,
`animation` both in motion, `runs` the figures of one run or of several, `sweeps` those of a sweep,
`branches` bifurcation diagrams, `networks` learning curves, `charts` curves as SVG for pages and
notebooks, `comparison` what two runs differ in, `accessor` what a Dataset is asked as `ds.wflow`.
It imports `_core`, `runs`, `transport`, `analysis` and `distributed`; `study` and `cli` may import
it. Start with `runs`.
"""

from wflow.plots.animation import animate
from wflow.plots.branches import bifurcation
from wflow.plots.densities import density_snapshots, free_energy_over_time
from wflow.plots.runs import (
    clusters_over_time,
    energy_balance,
    gradient_against_heads,
    gradient_over_time,
    heads_over_time,
    plot_run,
    token_snapshots,
)
from wflow.plots.sweeps import sweep

__all__ = [
    "animate",
    "bifurcation",
    "clusters_over_time",
    "density_snapshots",
    "energy_balance",
    "free_energy_over_time",
    "gradient_against_heads",
    "gradient_over_time",
    "heads_over_time",
    "plot_run",
    "sweep",
    "token_snapshots",
]


def __dir__() -> list[str]:
    return __all__
