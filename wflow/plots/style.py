"""Style of all figures, as settings of Matplotlib that hold while one is made or written."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from wflow._core.errors import InputError

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "mathtext.fontset": "dejavusans",
    "text.usetex": False,  # texts such as "10-90 % of paths" are none of LaTeX
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.0,
    "legend.title_fontsize": 8.0,
    "legend.frameon": False,
    "legend.handlelength": 3.4,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.6,
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
    "figure.dpi": 100,  # of the inline backend of notebooks
}


@cache
def warn_of_usetex() -> None:
    """Warn once in a process."""
    warnings.warn(
        "text.usetex is set, and figures of wflow are drawn without LaTeX: their symbols are those "
        "of Matplotlib's mathtext",
        UserWarning,
        stacklevel=2,
    )


@contextmanager
def style() -> Iterator[None]:
    try:
        import matplotlib
    except ValueError as error:
        raise InputError(
            f"Matplotlib refuses its settings ({error}): correct its file matplotlibrc or the "
            "environment variable MPLBACKEND, and draw the figures again"
        ) from None
    if matplotlib.rcParams["text.usetex"]:
        warn_of_usetex()
    with matplotlib.rc_context(STYLE):
        yield
