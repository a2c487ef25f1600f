"""Figures of Datasets of results; plotting computes no results.

`style` has the settings of Matplotlib, `figure` layout and curves, `inline` the figure that
displays itself in a notebook, `tokens` clouds on the sphere, `animation` clouds in motion, `runs`
the figures of one run or of several, `networks` learning curves, `charts` curves as SVG for pages
and notebooks, `accessor` what a Dataset is asked as `ds.wflow`. It imports `_core`, `io`,
`transport` and `analysis`; `study` and `cli` may import it. Start with `runs`.
"""

from wflow.plots.animation import animate
from wflow.plots.runs import (
    clusters_over_time,
    energy_balance,
    gradient_against_heads,
    gradient_over_time,
    heads_over_time,
    plot_run,
    token_snapshots,
)

__all__ = [
    "animate",
    "clusters_over_time",
    "energy_balance",
    "gradient_against_heads",
    "gradient_over_time",
    "heads_over_time",
    "plot_run",
    "token_snapshots",
]
