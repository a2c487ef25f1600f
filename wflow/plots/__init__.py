"""Figures of Datasets of results; plotting computes no results.

`figure` has style and layout, `tokens` clouds on the sphere, `runs` the figures of one run or of
several (the functions of `wflow.plots`), `networks` learning curves, `accessor` what a Dataset is
asked as `ds.wflow`. It imports `_core`, `io`, `transport` and `analysis`; `study` and `cli` may
import it. Start with `runs`.
"""

from wflow.plots.runs import (
    energy_balance,
    gradient_against_heads,
    gradient_over_time,
    plot_run,
    token_snapshots,
)

__all__ = [
    "energy_balance",
    "gradient_against_heads",
    "gradient_over_time",
    "plot_run",
    "token_snapshots",
]
