"""Bifurcation diagrams: branches of stationary densities over the diffusion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import shown, switch
from wflow._core.errors import InputError
from wflow.plots.figure import Style, panel, require, width_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import Dataset

# Okabe and Ito's palette, ordered so that neighbours differ in lightness as well.
_COLOURS = ("#0072B2", "#E69F00", "#000000", "#009E73", "#D55E00", "#56B4E9", "#A0527F")
_LABELS = {
    "order": r"Order parameter $|\int x\,\rho|$",
    "pair_order": "Order of pairs",
    "free_energy": "Free energy $F$",
    "energy": "Energy $E$",
    "entropy": r"Entropy $-\int \rho \log \rho$",
}


def bifurcation(
    branches: Dataset | Mapping[str, Dataset],
    name: str = "order",
    *,
    relative: bool = False,
    style: Style = "screen",
    ax: Axes | None = None,
) -> Figure:
    r"""Draw branches of stationary densities over the diffusion, with their stability and folds.

    Parameters
    ----------
    branches : xarray.Dataset or dict of str to xarray.Dataset
        A branch, from `wflow.stationary.branch`, or branches by their labels. Lines are solid where
        small disturbances decay and dashed where one grows; circles are folds, diamonds the points
        at which a branch leaves the uniform density.
    name : str, default "order"
        Variable (point,) to draw, or "free_energy_difference" for F - F_uniform.
    relative : bool, default False
        Whether the diffusion is in units of the one at which the branch leaves the uniform density.
    style : {"screen", "paper"}, default: "screen"
        Size of a new figure: "screen" is 4.6 inches wide, and "paper" 3.3 inches, one column of a
        journal page.
    ax : matplotlib.axes.Axes, optional
        Existing Axes to draw in, in its own style. Default: a new figure in the style of wflow.

    Returns
    -------
    matplotlib.figure.Figure
        The new figure, or the one of `ax`.

    Raises
    ------
    InputError
        For what is no branch, and a branch without the variable or the critical diffusion.

    See Also
    --------
    wflow.stationary.branch : The branches.

    Notes
    -----
    Below the critical diffusion :math:`\kappa_c` the uniform density is unstable; a branch that
    leaves it towards :math:`\kappa > \kappa_c` makes the transition discontinuous.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> nodes = wflow.stationary.Nodes.axial(2, 24)
    >>> found = wflow.stationary.branch(np.eye(2), nodes, 1, kappa=(0.3, 1.0), step=0.3)
    >>> wflow.plots.bifurcation(found).axes[0].get_xlabel()
    'Diffusion $\\kappa$'
    """
    given = _branches(branches)
    relative = switch(relative, "relative")
    if not isinstance(name, str):
        raise InputError(f"name is {shown(name)}: expected the name of a variable of the branch")
    curves = {label: _curve(ds, name, relative) for label, ds in given.items()}
    with panel(ax, width_in(style, 4.6), 3.0) as (figure, axis):
        for k, (label, (x, y, solid, fold, start)) in enumerate(curves.items()):
            colour = _COLOURS[k % len(_COLOURS)]
            for part, stable in _parts(solid):
                axis.plot(
                    x[part],
                    y[part],
                    color=colour,
                    linestyle="-" if stable else (0, (4, 2)),
                    linewidth=1.7 if stable else 1.1,
                )
            if len(curves) > 1:
                axis.plot([], [], color=colour, linewidth=1.7, label=label)
            marks: dict[str, Any] = {
                "markerfacecolor": "white",
                "markeredgecolor": colour,
                "zorder": 4,
            }
            axis.plot(x[fold], y[fold], "o", markersize=5, **marks)
            axis.plot(x[start], y[start], "D", markersize=4, **marks)
        axis.set_xlabel(r"Diffusion $\kappa/\kappa_c$" if relative else r"Diffusion $\kappa$")
        difference = "Free energy $F - F_{uniform}$"
        axis.set_ylabel(_LABELS.get(name, difference if "difference" in name else name))
        if name in ("order", "pair_order", "free_energy_difference"):
            axis.axhline(0, color="0.75", linewidth=0.7, zorder=0)
        if len(curves) > 1:
            axis.legend(loc="best")
    return figure


def _branches(given: Any) -> dict[str, Dataset]:
    """Return branches by their labels, of one branch or of a dict of them."""
    found = {"": given} if hasattr(given, "data_vars") else given
    if not isinstance(found, Mapping) or not found:
        raise InputError(
            f"branches is {shown(given)}: expected a branch, from wflow.stationary.branch, or a "
            "dict from labels to branches"
        )
    advice = "Give what wflow.stationary.branch returns"
    for label, ds in found.items():
        if not hasattr(ds, "data_vars"):
            raise InputError(f"branches[{shown(label)}] is {shown(ds)}: expected a Dataset")
        require(ds, ["kappa", "stable", "fold", "growth"], advice)
    return {str(label): ds for label, ds in found.items()}


def _curve(ds: Dataset, name: str, relative: bool) -> tuple[NDArray, ...]:
    """Return places, values, stable segments, and which points are folds and the start."""
    if name == "free_energy_difference":
        require(ds, ["free_energy", "free_energy_uniform"], "It is made by wflow.stationary.branch")
        y = np.asarray(ds["free_energy"] - ds["free_energy_uniform"], float)
    else:
        require(ds, [name], "Give a variable (point,)")
        y = np.asarray(ds[name], float)
    x = np.asarray(ds["kappa"], float)
    if y.shape != x.shape or x.ndim != 1:
        raise InputError(f"{name} has shape {y.shape}: expected a variable (point,)")
    critical = ds.attrs.get("critical_diffusion")
    start = np.zeros(len(x), bool)
    if critical is not None:
        start[0] = True
    elif relative:
        raise InputError(
            "the branch does not begin at the uniform density: relative=True needs its attribute "
            "critical_diffusion"
        )
    fold, stable = np.asarray(ds["fold"], bool), np.asarray(ds["stable"], bool)
    marginal = fold | start  # their rate is zero: a segment is as stable as its other end
    ends = stable | marginal
    solid = ends[1:] & ends[:-1] & ~(marginal[1:] & marginal[:-1])
    return x / critical if relative and critical else x, y, solid, fold, start


def _parts(solid: NDArray) -> Iterator[tuple[slice, bool]]:
    """Yield the stretches of segments of one kind, as slices of their points."""
    first = 0
    for k in range(1, len(solid) + 1):
        if k == len(solid) or solid[k] != solid[first]:
            yield slice(first, k + 1), bool(solid[first])
            first = k
