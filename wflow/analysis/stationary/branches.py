r"""Branches of stationary densities, continued in the diffusion through their folds.

Pseudo-arclength continuation (Keller 1977): a point (p, log kappa) of the branch is corrected by
Newton's method on the hyperplane orthogonal to the tangent, in which folds are points like others.
In the theory: :ref:`stationary laws <theory-stationary>`.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import Direction, FlowName, positive, reals, shown, whole
from wflow._core.errors import InputError, WflowError
from wflow.analysis.stationary.nodes import as_nodes
from wflow.analysis.stationary.states import MARGINAL, Equation, State
from wflow.analysis.stationary.uniform import growth_rate
from wflow.attention.flows import Flow, flow_config

if TYPE_CHECKING:
    from xarray import Dataset

Floats = NDArray[np.float64]

_TOLERANCE = 1e-11
_ROUNDS = 12  # steps of Newton's method at a point; more, and the step along the branch is halved
_SHORTEST = 1e-5  # step along the branch, relative to the longest
_RATES = 4


class _Point(NamedTuple):
    p: Floats
    log: float  # of kappa
    tangent: tuple[Floats, float]
    length: float  # along the branch
    fold: bool = False


class _Curve:
    """The equation for (p, log kappa), in the metric |dp|^2 / |p|^2 + (d log kappa)^2."""

    def __init__(self, equation: Equation) -> None:
        self.equation = equation

    def metric(self, at: Floats) -> Floats:
        w = self.equation.w
        return np.asarray(w / (w @ at**2))

    def matrix(self, p: Floats, log: float, row: tuple[Floats, float]) -> tuple[Floats, Floats]:
        """Return the Jacobian, bordered by a row, and the residual."""
        w, kappa = self.equation.w, math.exp(log)
        image, change, slope = self.equation.tangent(p, kappa)
        turned = self.equation.rotations(p)
        matrix = np.empty((len(p) + 1, len(p) + 1))
        matrix[:-1, :-1] = np.eye(len(p)) - change + turned @ (turned.T * w)
        matrix[:-1, -1] = -slope
        matrix[-1, :-1], matrix[-1, -1] = row
        return matrix, image - p

    def tangent(self, p: Floats, log: float, last: tuple[Floats, float]) -> tuple[Floats, float]:
        """Return the unit tangent that continues the last one."""
        metric = self.metric(p)
        matrix, _ = self.matrix(p, log, (metric * last[0], last[1]))
        found = np.linalg.solve(matrix, np.append(np.zeros(len(p)), 1.0))
        size = math.sqrt(float(metric @ found[:-1] ** 2) + found[-1] ** 2)
        return found[:-1] / size, float(found[-1] / size)

    def step(self, point: _Point, length: float) -> _Point | None:
        """Return the branch point at a distance, or None where Newton's method does not find it."""
        (dp, dlog), metric = point.tangent, self.metric(point.p)
        w = self.equation.w
        p, log = point.p + length * dp, point.log + length * dlog
        if self.equation.gradient:
            p = np.maximum(p, 0.0)
            p = p / (w @ p)
        for _ in range(_ROUNDS):
            if not (abs(log - point.log) < 2 and np.isfinite(p).all()):
                return None
            matrix, gap = self.matrix(p, log, (metric * dp, dlog))
            along = float(metric * dp @ (p - point.p)) + dlog * (log - point.log) - length
            if max(float(np.abs(gap).max() / np.abs(p).max()), abs(along)) < _TOLERANCE:
                break
            try:
                delta = np.linalg.solve(matrix, np.append(gap, -along))
            except np.linalg.LinAlgError:
                return None
            p, log = p + delta[:-1], log + float(delta[-1])
        else:
            return None
        if self.equation.gradient and (p < -1e-9 * p.max()).any():
            return None
        return _Point(p, log, self.tangent(p, log, point.tangent), point.length + length)

    def fold(self, point: _Point, following: _Point) -> _Point | None:
        """Return the point between two where kappa has its extremum, by bisection and secants."""
        low, high = 0.0, following.length - point.length
        below, above = point.tangent[1], following.tangent[1]
        best = None
        for _ in range(40):
            middle = low + (high - low) * min(max(below / (below - above), 0.1), 0.9)
            best = self.step(point, middle)
            if best is None or abs(best.tangent[1]) < 1e-9 or high - low < 1e-10:
                break
            if best.tangent[1] * below > 0:
                low, below = middle, best.tangent[1]
            else:
                high, above = middle, best.tangent[1]
        return best and best._replace(fold=True)


def branch(
    D: ArrayLike,
    mesh: Any,
    start: int | State,
    *,
    kappa: tuple[float, float],
    flow: FlowName | Flow = "softmax",
    direction: Direction = "ascent",
    side: int = 1,
    step: float = 0.1,
    max_points: int = 300,
    defect: float = 1e-4,
) -> Dataset:
    r"""Follow a branch of stationary densities in the diffusion, through its folds.

    Parameters
    ----------
    D : array_like, shape (d, d) or (H, d, d)
        Symmetric interaction matrices.
    mesh : Nodes or mesh
        Nodes, as for `density`.
    start : int or State
        Degree l >= 1: the branch that leaves the uniform density at kappa = s c_l, where the modes
        of this degree grow, for heads that are multiples of I on nodes `axial`. Or a state of
        the same heads and nodes, from `density`.
    kappa : tuple of float
        Least and largest diffusion, > 0; the branch ends where it leaves them.
    flow : {"softmax", "effective", "unnormalised"} or wflow.Flow, default "softmax"
        Flow; one that is custom states its `potential`, for one head.
    direction : {"ascent", "descent"}, default "ascent"
        Sign s of the velocity: +1 or -1.
    side : {1, -1}, default 1
        From a degree, the sign of the mode, and from a state, where to go: 1 to smaller diffusion,
        -1 to larger.
    step : float, default 0.1
        Longest step along the branch, in the norm of (``dp / |p|``, d log kappa).
    max_points : int, default 300
        Largest number of points.
    defect : float, default 1e-4
        Largest defect of a density, from which on the nodes no longer resolve the branch.

    Returns
    -------
    xarray.Dataset
        By `point`: kappa, arclength, order, pair_order, energy, entropy, free_energy,
        free_energy_uniform, residual, defect, fold (whether kappa has an extremum there), stable,
        growth (point, sector, mode) as in `State.growth`, and density (point, cell). The attribute
        `end` says why the branch ends, and `degree` and `critical_diffusion` where it begins.

    Raises
    ------
    InputError
        For arguments out of range, and a degree whose modes grow for no diffusion.
    WflowError
        Where no second point of the branch is found.

    Notes
    -----
    With G(p, kappa) = 0 for the fixed points, a step of length h from the point (p_0, kappa_0) with
    the unit tangent t solves [1]_

    .. math:: G(p, \kappa) = 0, \qquad
        \langle t, (p - p_0, \log \kappa/\kappa_0) \rangle = h ,

    also where kappa turns back. There the rate of one disturbance is zero.

    In the theory: :ref:`branches <theory-branches>`.

    References
    ----------
    .. [1] Keller, *Numerical solution of bifurcation and nonlinear eigenvalue problems*, in
       Applications of Bifurcation Theory (1977).

    Examples
    --------
    >>> import numpy as np, wflow
    >>> nodes = wflow.stationary.Nodes.axial(3, 40)
    >>> found = wflow.stationary.branch(
    ...     3 * np.eye(3), nodes, 1, kappa=(0.9, 3.0), flow="unnormalised"
    ... )
    >>> folds = found.kappa[found.fold]
    >>> len(folds), bool(folds[0] > found.attrs["critical_diffusion"])
    (1, True)
    """
    equation = Equation(D, as_nodes(mesh), flow, direction)
    limits = _limits(kappa)
    step, defect = positive(step, "step"), positive(defect, "defect")
    if step > 1:
        raise InputError(f"step is {step:g}: expected a number up to 1")
    count = whole(max_points, "max_points", 2, most=100000)
    side = whole(side, "side", least=-1, most=1)
    if side == 0:
        raise InputError(f"side is {shown(side)}: expected 1 or -1")
    curve = _Curve(equation)
    attrs: dict[str, Any] = {}
    if isinstance(start, State):
        first = _from_state(curve, start, side)
    else:
        first, attrs = _from_uniform(equation, start, side)
    points, end = _followed(curve, first, limits, step, count, defect)
    if len(points) < 2:
        raise WflowError(
            f"the branch has no second point between kappa = {limits[0]:g} and {limits[1]:g} "
            f"({end}): take other limits, a smaller step or more nodes"
        )
    return _dataset(equation, points, attrs | {"end": end})


def _limits(kappa: Any) -> tuple[float, float]:
    given = reals(kappa, "kappa")
    if given.shape != (2,) or not 0 < given[0] < given[1]:
        raise InputError(f"kappa is {shown(kappa)}: expected two numbers, 0 < least < largest")
    return float(given[0]), float(given[1])


def _from_uniform(equation: Equation, degree: Any, side: int) -> tuple[_Point, dict[str, Any]]:
    """Return the uniform density where modes of a degree begin to grow, and the mode as tangent."""
    degree = whole(degree, "start", 1, most=equation.size - 1)
    if not (equation.isotropic and equation.nodes.has_axis):
        raise InputError(
            "a branch leaves the uniform density in a mode of known degree only for heads that are "
            "multiples of I, on Nodes.axial(d): give a State, from wflow.stationary.density"
        )
    betas, d = equation.D[:, 0, 0], equation.nodes.d
    rate = growth_rate(betas, d, degree, 0.0, equation.flow, equation.direction)
    critical = rate / (degree * (degree + d - 2))
    if not critical > 0:
        raise InputError(
            f"modes of degree {degree} decay for every diffusion (rate {rate:.3g} without any): no "
            "branch leaves the uniform density there"
        )
    mode = equation.sector.values[:, degree - 1]
    mode = side * mode * np.sign(mode[-1])
    attrs = {"degree": degree, "critical_diffusion": critical}
    return _Point(np.ones(equation.size), math.log(critical), (mode, 0.0), 0.0), attrs


def _from_state(curve: _Curve, state: State, side: int) -> _Point:
    p = state.density * state.nodes.areas.sum()
    if len(p) != curve.equation.size:
        raise InputError(
            f"start is a state at {len(p)} nodes and the mesh has {curve.equation.size}: give the "
            "nodes of the state as mesh"
        )
    error = np.abs(curve.equation.image(p, state.kappa) - p).max() / p.max()
    if not error < 1e-6:
        raise InputError(
            "start is no stationary density of these heads and this flow (residual "
            f"{error:.2g}): give the arguments with which density found it"
        )
    log = math.log(state.kappa)
    toward = (np.zeros(len(p)), -float(side))
    return _Point(p, log, curve.tangent(p, log, toward), 0.0)


def _followed(
    curve: _Curve,
    first: _Point,
    limits: tuple[float, float],
    step: float,
    count: int,
    defect: float,
) -> tuple[list[_Point], str]:
    """Return the points of a branch, and why it ends."""
    points, length = [first], step / 2
    equation = curve.equation
    while len(points) < count:
        point = points[-1]
        following = curve.step(point, length)
        if following is not None and _bent(curve, point, following):
            following = None
        if following is None:
            length /= 2
            if length < _SHORTEST * step:
                return points, "Newton's method finds no further point"
            continue
        found = math.exp(following.log)
        if equation.defect(following.p, found) > defect:
            return points, f"the nodes do not resolve the density at kappa = {found:.4g}"
        if len(points) > 1 and float(np.ptp(following.p)) < 1e-3 * step:
            return points, "the branch has returned to the uniform density"
        if point.tangent[1] * following.tangent[1] < 0 and len(points) > 1:
            fold = curve.fold(point, following)
            if fold is not None:
                points.append(fold)
        points.append(following)
        if not limits[0] <= found <= limits[1]:
            return points, "the diffusion has left its limits"
        length = min(step, 1.5 * length)
    return points, f"{count} points were asked for"


def _bent(curve: _Curve, point: _Point, following: _Point) -> bool:
    """Return whether the tangent has turned by more than about 30 degrees."""
    metric = curve.metric(following.p)
    (dp, dlog), (ep, elog) = point.tangent, following.tangent
    size = math.sqrt(float(metric @ dp**2) + dlog**2)
    return float(metric * dp @ ep) + dlog * elog < 0.86 * size


def _dataset(equation: Equation, points: list[_Point], attrs: dict[str, Any]) -> Dataset:
    import xarray as xr

    states = [State(equation, point.p, math.exp(point.log)) for point in points]
    nodes, uniform = equation.nodes, np.ones(equation.size)
    kappas = np.array([state.kappa for state in states])
    own = State(equation, uniform, 1.0)
    growth = np.stack([state.growth(_RATES).real for state in states])
    fastest = np.nanmax(growth, axis=(1, 2))
    fields: dict[str, tuple[Any, Any, str]] = {
        "kappa": ("point", kappas, "diffusion of the tokens"),
        "order": ("point", [s.order for s in states], "order parameter |int x rho dx|"),
        "pair_order": ("point", [s.pair_order for s in states], "order of antipodal points"),
        "energy": ("point", [s.energy for s in states], "energy E"),
        "entropy": ("point", [s.entropy for s in states], "entropy -int rho log rho dx"),
        "free_energy": ("point", [s.free_energy for s in states], "free energy F"),
        "free_energy_uniform": (
            "point",
            -equation.sign * own.energy - kappas * own.entropy,
            "free energy F of the uniform density",
        ),
        "residual": ("point", [s.residual for s in states], "residual of the fixed point"),
        "defect": ("point", [s.defect for s in states], "defect of the equation"),
        "growth": (("point", "sector", "mode"), growth, "growth rates of disturbances"),
        "stable": (
            "point",
            fastest < -MARGINAL,
            "whether disturbances decay",
        ),
        "fold": ("point", [point.fold for point in points], "whether kappa has an extremum"),
        "density": (("point", "cell"), np.stack([s.density for s in states]), "density rho"),
    }
    found = xr.Dataset(
        {
            name: (dims, values, {"long_name": text})
            for name, (dims, values, text) in fields.items()
        },
        coords={
            "arclength": ("point", [point.length for point in points]),
            "centres": (("cell", "axis"), nodes.centres),
            "areas": ("cell", nodes.areas),
        },
    )
    flow = flow_config(equation.flow)
    found.attrs = attrs | {
        "flow": flow if isinstance(flow, str) else json.dumps(flow),
        "direction": equation.direction,
        "heads": json.dumps(equation.D.tolist()),
        "d": nodes.d,
    }
    return found
