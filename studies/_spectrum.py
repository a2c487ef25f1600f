"""Tables and figure of the study `spectrum`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from wflow import study

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

ALIGNMENTS = (
    ("one", "present"), ("two", "present"), ("all", "present"), ("none", "present"),
    ("none", "weighted"),
    ("minus, descent", "present"), ("one", "lasting"), ("slow", "lasting"), ("fast", "lasting"),
    ("common", "present"), ("common", "lasting"), ("spread", "present"),
)  # fmt: skip
SEEN = {"present": "D", "lasting": "its mean", "weighted": "weighted mean"}


def report(flags: Any, table: "Dataset") -> str:
    """Numbers of clusters and alignments, by case, dimension and head count."""
    many = max(flags.heads)
    counts = [
        {"case": name}
        | {f"d = {d}": _counts(table["count"].sel(case=name, d=d, heads=many)) for d in flags.dims}
        for name in table["case"].values
    ]
    aligned = [
        {"case": name, "eigenvector of": SEEN[which], "H": str(H)}
        | {
            f"d = {d}": study.mean_text(table[which].sel(case=name, d=d, heads=H), ".3f", ".3f")
            for d in flags.dims
        }
        for name, which in ALIGNMENTS
        for H in flags.heads
    ]
    return (
        f"Starts by the number of clusters that hold 0.9 of the tokens, H = {many}:\n\n"
        f"{study.markdown_table(counts)}\n\ncos^2 of the largest cluster and the leading "
        "eigenvector of s D, or of its mean: M, and of oscillating heads that over a period; "
        "weighted means have the weights r_h of two opposite clusters:\n\n"
        f"{study.markdown_table(aligned)}"
    )


def _counts(values: Any) -> str:
    """Return how many starts have which number of clusters: "7 x 2, 1 x 3"."""
    found, times = np.unique(values, return_counts=True)
    if len(found) > 3:
        return f"{int(found[0])} to {int(found[-1])}"
    return ", ".join(f"{t} x {int(f)}" for f, t in zip(found, times, strict=True))


def figure(flags: Any, table: "Dataset", misalignment: Callable[..., Any]) -> "Figure":
    """Eigenvectors that one and two clusters see, and misalignment against its formula."""
    from wflow.plots.figure import PAGE, grid, style

    d = np.array(flags.dims)
    several = table.sel(case="none", heads=[H for H in flags.heads if H > 1])
    with style():
        drawn, axes = grid(1, 2, PAGE, 3.1)
        left, right = axes.flat
        for marker, count, name in (("o", 1, "one cluster"), ("^", 2, "two clusters")):
            chosen = several["count"].values == count
            shown = (several[which].values[chosen] for which in ("present", "weighted"))
            left.plot(*shown, marker, markerfacecolor="none", label=name)
        left.set(
            xlabel=r"$\cos^2$ with the eigenvector of $H^{-1} \Sigma_h D_h$",
            ylabel=r"$\cos^2$ with that of $H^{-1} \Sigma_h r_h D_h$",
            xlim=(-0.03, 1.03), ylim=(-0.03, 1.03),
        )  # fmt: skip
        left.legend(loc="lower left")
        for marker, law in zip("os^", ("one", "slow", "fast"), strict=True):
            off = 1 - table["lasting"].sel(case=law).mean("start").values  # (d, heads)
            known = misalignment(flags, law, d[:, None], np.array(flags.heads))
            right.loglog(
                known.ravel(), off.ravel(), marker, label="frozen" if law == "one" else law
            )
        ends = np.array(right.get_xlim())
        right.plot(ends, ends, "k:", linewidth=1)
        right.set(
            xlabel=r"$(d - 1)\, v / (2 H L (L + r))$",
            ylabel=r"$\sin^2$ of cluster and eigenvector of $M$",
        )
        right.legend()
    return drawn
