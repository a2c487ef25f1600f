r"""Stationary densities of the mean-field equation, and the growth of small disturbances.

With the velocity V[rho] of the heads (s = 1 in ascent, -1 in descent) a density is stationary if

.. math:: \operatorname{div}(\rho V[\rho]) = \kappa \Delta \rho .

Where V is the gradient of a potential, it is a fixed point of the Gibbs map; otherwise of the map
that inverts the Laplacian. Both are solved by Newton's method. In the theory:
:ref:`stationary laws <theory-stationary>`.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import Direction, FlowName, check_choice, positive, reals, shown, whole
from wflow._core.errors import InputError, WflowError
from wflow.analysis.stationary.nodes import (
    LARGEST_D,
    Sector,
    as_nodes,
    axial_log_kernel,
    check_heads,
    harmonics_at,
    heights,
    kernel_matrices,
)
from wflow.analysis.stationary.uniform import SIGNS, kind_of
from wflow.attention.cloud import safe_exp
from wflow.attention.flows import Flow, as_flow
from wflow.heads.matrices import as_matrices

Floats = NDArray[np.float64]

_NEGATIVE = 1e-6  # relative to the maximum: below it truncation is cut off
MARGINAL = 1e-8  # rates above minus this are those of bifurcations and folds
_PICARD, _CYCLES = 400, 10  # iterations of the map at most, and how often Newton's method tries
_NODES = 200  # of the quadrature over the height z = <x, axis>
_ROUNDS, _TOLERANCE = 20000, 1e-11


class Equation:
    """Heads, flow and nodes: velocities of a density, and the map whose fixed points are sought.

    Densities p (cell,) are relative to the uniform law.
    """

    def __init__(
        self, D: ArrayLike, mesh: Any, flow: FlowName | Flow, direction: Direction
    ) -> None:
        matrices = as_matrices(D, "D", symmetric=True)
        if matrices.ndim not in (2, 3):
            raise InputError(f"D has shape {matrices.shape}: expected (d, d) or (H, d, d)")
        self.D = matrices.reshape(-1, *matrices.shape[-2:])
        self.nodes = as_nodes(mesh)
        check_heads(self.nodes, self.D)
        check_choice("direction", direction, SIGNS)
        self.flow, self.direction = as_flow(flow), direction
        self.sign, self.kind = SIGNS[direction], kind_of(flow, len(self.D))
        self.w = self.nodes.weights
        self.size = len(self.w)
        # A field around an axis without swirl is a gradient, whatever it is made of.
        self.gradient = self.kind != "b" or self.nodes.has_axis

    @cached_property
    def kernels(self) -> list[Floats]:
        """Kernels (H, cell, cell) by sector."""
        return [kernel_matrices(self.nodes, self.D, k) for k in range(len(self.nodes.sectors))]

    @property
    def sector(self) -> Sector:
        return self.nodes.sectors[0]

    @cached_property
    def isotropic(self) -> bool:
        """Whether every head is a multiple of I."""
        factors = np.trace(self.D, axis1=1, axis2=2) / self.D.shape[1]
        return bool(
            np.allclose(self.D, factors[:, None, None] * np.eye(self.D.shape[1]), atol=1e-12)
        )

    def mobility(self, p: Floats) -> Floats:
        """Return the mobilities (H, cell)."""
        return np.asarray(self.kernels[0] @ (self.w * p))

    def velocity(self, p: Floats) -> Floats:
        """Return the velocity (component, cell)."""
        m = self.mobility(p)
        if self.kind == "m":
            return self.sign * self.sector.derivative(m.mean(axis=0))
        if self.kind == "log m":
            return self.sign * self.sector.derivative(np.log(m).mean(axis=0))
        return self.sign * self.sector.derivative(m.mean(axis=0)) * np.mean(1 / m, axis=0)

    def _velocity_change(self, p: Floats, delta: Floats, k: int = 0) -> Floats:
        """Return the derivative (component, cell, j) of the velocity along delta (cell, j)."""
        m, sector = self.mobility(p)[:, :, None], self.nodes.sectors[k]
        change = self.kernels[k] @ (self.w[:, None] * delta)
        if self.kind == "m":
            return self.sign * sector.derivative(change.mean(axis=0))
        if self.kind == "log m":
            return self.sign * sector.derivative(np.mean(change / m, axis=0))
        gradient = self.sector.derivative(m[:, :, 0].mean(axis=0))[:, :, None]
        return self.sign * (
            sector.derivative(change.mean(axis=0)) * np.mean(1 / m, axis=0)
            - gradient * np.mean(change / m**2, axis=0)
        )

    def _tested(self, field: Floats, k: int = 0) -> Floats:
        """Integrate fields (component, cell, ...) against the gradients of harmonics: (k, ...)."""
        flat = (field * self.w.reshape(1, -1, *[1] * (field.ndim - 2))).reshape(
            -1, *field.shape[2:]
        )
        gradient = self.nodes.sectors[k].gradient
        return np.asarray(gradient.reshape(-1, gradient.shape[2]).T @ flat)

    def _potential(self, field: Floats) -> Floats:
        """Return functions (cell, ...) with the Laplacian div of fields (component, cell, ...)."""
        return np.asarray(self.sector.values @ (self._tested(field).T / self.sector.eigenvalue).T)

    def potential(self, p: Floats) -> Floats:
        """Return the potential (cell,) of the velocity, where it has one."""
        if self.kind == "b":
            return self._potential(self.velocity(p))
        m = self.mobility(p)
        return self.sign * (m if self.kind == "m" else np.log(m)).mean(axis=0)

    def gibbs(self, potential: Floats, kappa: float) -> Floats:
        """Return the density exp(potential / kappa), normalised."""
        found = np.exp((potential - potential.max()) / kappa)
        return np.asarray(found / (self.w @ found))

    def image(self, p: Floats, kappa: float) -> Floats:
        """Return the density that is stationary in the field of p."""
        if self.gradient:
            return self.gibbs(self.potential(p), kappa)
        return 1 + self._potential(p * self.velocity(p)) / kappa

    def nearby(self, p: Floats, kappa: float) -> Floats:
        """Return the density of the gradient part of the field of p, which is always positive.

        The inverse of the Laplacian alone amplifies what is far from a fixed point.
        """
        if self.gradient:
            return self.image(p, kappa)
        return self.gibbs(self._potential(self.velocity(p)), kappa)

    def tangent(self, p: Floats, kappa: float) -> tuple[Floats, Floats, Floats]:
        """Return the image, its derivative (cell, cell) by p, and that (cell,) by log kappa."""
        if not self.gradient:
            v, eye = self.velocity(p), np.eye(self.size)
            flux = v[:, :, None] * eye + p[:, None] * self._velocity_change(p, eye)
            image = 1 + self._potential(p * v) / kappa
            return image, self._potential(flux) / kappa, 1 - image
        if self.kind == "b":
            change = self._potential(self._velocity_change(p, np.eye(self.size)))
        else:
            m = self.mobility(p)[:, :, None]
            kernels = self.kernels[0] if self.kind == "m" else self.kernels[0] / m
            change = self.sign * kernels.mean(axis=0) * self.w
        potential = self.potential(p)
        image = self.gibbs(potential, kappa)
        mass = self.w * image
        change, exponent = change / kappa, potential / kappa
        return (
            image,
            image[:, None] * (change - mass @ change),
            -image * (exponent - mass @ exponent),
        )

    def rotations(self, p: Floats) -> Floats:
        """Return changes (cell, j) of the density by the rotations that leave all heads fixed."""
        d = self.nodes.d
        if self.nodes.has_axis:
            return np.zeros((self.size, 0))
        turns = []
        for a in range(d):
            for b in range(a):
                turn = np.zeros((d, d))
                turn[a, b], turn[b, a] = 1, -1
                turns.append(turn)
        swaps = np.array([[head @ turn - turn @ head for head in self.D] for turn in turns])
        values, vectors = np.linalg.eigh(np.einsum("thab,uhab->tu", swaps, swaps))
        kept = vectors[:, values < 1e-20 * max(1.0, float(np.abs(self.D).max())) ** 2]
        slope = self.sector.derivative(p)  # (axis, cell)
        moved = np.einsum("ai,tab,ib->it", slope, np.array(turns), self.nodes.centres) @ kept
        norms = np.sqrt(self.w @ moved**2)
        return np.asarray(moved[:, norms > 1e-8] / norms[norms > 1e-8])

    def linearisation(self, p: Floats, k: int) -> Floats:
        """Return the matrix (j, j) of the equation linearised at p, in harmonics of sector k."""
        sector = self.nodes.sectors[k]
        flux = self.velocity(p)[:, :, None] * sector.values
        flux = flux + p[:, None] * self._velocity_change(p, sector.values, k)
        return self._tested(flux, k)

    def defect(self, p: Floats, kappa: float) -> float:
        """Return the H^-1 residual of the equation, relative to its diffusion alone."""
        eigenvalue = self.sector.eigenvalue
        drift = self._tested(p * self.velocity(p)) / np.sqrt(eigenvalue)
        diffusion = kappa * np.sqrt(eigenvalue) * (self.sector.project @ (p - 1))
        # The flux form solves these very equations: there the last harmonics say what is missing.
        top = eigenvalue > 0.75 * eigenvalue.max()
        gap = drift - diffusion if self.gradient else diffusion[top]
        return float(np.linalg.norm(gap) / max(float(np.linalg.norm(diffusion)), kappa))

    def density(self, density: Any) -> Floats:
        """Return a density (cell,) of the user, relative to the uniform law."""
        given = reals(density, "start")
        if given.shape != (self.size,) or (given < 0).any() or not given.any():
            raise InputError(
                f"start is {shown(density)}: expected a density >= 0 at the {self.size} nodes, "
                '"ordered" or "uniform"'
            )
        return given / (self.w @ given)

    def ordered(self, kappa: float) -> Floats:
        """Return the density in the field of the leading eigenvector of the mean head."""
        x = self.nodes.centres
        axis = np.eye(self.nodes.d)[-1]
        if not self.nodes.has_axis and not self.isotropic:
            axis = np.linalg.eigh(self.sign * self.D.mean(axis=0))[1][:, -1]
        p = np.zeros(self.size)
        nearest = int(np.argmax(x @ axis))
        p[nearest] = 1 / self.w[nearest]
        return self.nearby(p, kappa)


class State:
    r"""A stationary density, with its errors, its energies and the growth of disturbances.

    What `density` returns; its arguments are taken as they are.

    Parameters
    ----------
    equation : object
        Heads, flow and nodes.
    p : ndarray, shape (cell,)
        Density relative to the uniform law.
    kappa : float
        Diffusion per unit time.

    Attributes
    ----------
    nodes : Nodes
        Nodes and weights.
    kappa : float
        Diffusion per unit time.
    density : ndarray, shape (cell,)
        Density rho per area at the nodes.

    Notes
    -----
    In the theory: :ref:`stationary laws <theory-stationary>`.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> nodes = wflow.stationary.Nodes.axial(3, 40)
    >>> state = wflow.stationary.density(2 * np.eye(3), 0.3, nodes)
    >>> bool(np.isclose(state.order, wflow.stationary.stationary_order(2.0, 3, 0.3)))
    True
    >>> state.stable
    True
    """

    def __init__(self, equation: Equation, p: Floats, kappa: float) -> None:
        self._equation, self._p, self.kappa = equation, p, kappa
        self.nodes = equation.nodes
        self.density = p / equation.nodes.areas.sum()

    def __repr__(self) -> str:
        return (
            f"State(kappa={self.kappa:.6g}, order={self.order:.6g}, residual={self.residual:.1g}, "
            f"defect={self.defect:.1g})"
        )

    @cached_property
    def residual(self) -> float:
        """Largest change of the density by one more iteration, relative to its maximum."""
        image = self._equation.image(self._p, self.kappa)
        return float(np.abs(image - self._p).max() / self._p.max())

    @cached_property
    def defect(self) -> float:
        """Residual of the equation when it is tested with all harmonics of the nodes.

        In H^-1, relative to the diffusion alone. Where the nodes do not resolve the density it is
        not small, however small the residual. For "effective" with several heads and no axis it is
        the share of the harmonics of the highest degrees.
        """
        return self._equation.defect(self._p, self.kappa)

    @property
    def energy(self) -> float:
        """Energy E."""
        return (
            float(self._equation.mobility(self._p).mean(axis=0) @ (self._equation.w * self._p)) / 2
        )

    @property
    def entropy(self) -> float:
        """Entropy ``-int rho log rho dx``."""
        p = self._p[self._p > 0]
        mass = (self._equation.w * self._p)[self._p > 0]
        return math.log(self.nodes.areas.sum()) - float(mass @ np.log(p))

    @property
    def free_energy(self) -> float:
        """Free energy F = -s E + kappa int rho log rho dx."""
        return -self._equation.sign * self.energy - self.kappa * self.entropy

    @property
    def order(self) -> float:
        """Order parameter ``|int x rho dx|``."""
        mean = (self._equation.w * self._p) @ self.nodes.centres
        return abs(float(mean[-1])) if self.nodes.has_axis else float(np.linalg.norm(mean))

    @property
    def pair_order(self) -> float:
        """Order of antipodal points, from 0 to 1: (d q - 1)/(d - 1).

        Here q is the largest eigenvalue of the second moments ``int x x^T rho dx``.
        """
        x, mass, d = self.nodes.centres, self._equation.w * self._p, self.nodes.d
        if self.nodes.has_axis:
            along = float(mass @ x[:, -1] ** 2)
            largest = max(along, (1 - along) / (d - 1))
        else:
            largest = float(np.linalg.eigvalsh(x.T @ (mass[:, None] * x))[-1])
        return (d * largest - 1) / (d - 1)

    def growth(self, count: int = 4) -> NDArray[np.complex128]:
        """Return the leading growth rates of small disturbances of the density.

        Rotations that leave the heads as they are move the density without a rate: those zeros are
        left out.

        Parameters
        ----------
        count : int, default 4
            Number of rates.

        Returns
        -------
        ndarray of complex128, shape (sector, count)
            Eigenvalues of the linearised equation by falling real part, NaN where there are no
            more. One sector; on axial nodes, one for each order 0, 1, ... of harmonics around the
            axis: symmetric disturbances, then those that are not.

        Raises
        ------
        InputError
            For a count < 1.
        """
        count = whole(count, "count", most=10000)
        found = np.full((len(self.nodes.sectors), count), np.nan, np.complex128)
        for k, sector in enumerate(self.nodes.sectors):
            matrix = self._equation.linearisation(self._p, k)
            rates = np.linalg.eigvals(matrix - self.kappa * np.diag(sector.eigenvalue))
            rates = rates[np.argsort(np.abs(rates))][self._neutral(k) :]
            rates = rates[np.argsort(-rates.real)][:count]
            found[k, : len(rates)] = rates
        return found

    def _neutral(self, k: int) -> int:
        """Return the number of modes of a sector that rotate the density."""
        if not self.nodes.has_axis:
            return self._equation.rotations(self._p).shape[1]
        return int(k == 1 and self._equation.isotropic and float(np.ptp(self._p)) > 1e-7)

    @cached_property
    def stable(self) -> bool:
        """Whether all small disturbances decay, to first order; not where one has the rate zero."""
        return bool(np.nanmax(self.growth(1).real) < -MARGINAL)

    def at(self, points: ArrayLike) -> Floats:
        r"""Return the density at other points.

        Parameters
        ----------
        points : array_like, shape (k, d)
            Unit vectors.

        Returns
        -------
        ndarray, shape (k,)
            Density per area.

        Raises
        ------
        InputError
            For what is no array of unit vectors of this dimension.

        Notes
        -----
        By the formula that the density solves, ``exp(phi / kappa)`` with the potential phi at the
        point, where there is one, and as a series of harmonics otherwise.
        """
        x = reals(points, "points")
        if x.ndim != 2 or x.shape[1] != self.nodes.d:
            raise InputError(f"points have shape {x.shape}: expected (k, {self.nodes.d})")
        if not np.allclose(np.linalg.norm(x, axis=1), 1, atol=1e-6):
            raise InputError("points must be unit vectors")
        equation, p = self._equation, self._p
        if equation.kind == "b":
            values = np.log(p) if equation.gradient else p
            mean = float(equation.w @ values)
            found = mean + harmonics_at(self.nodes, x) @ (equation.sector.project @ values)
            return np.asarray(
                (np.exp(found) if equation.gradient else found) / self.nodes.areas.sum()
            )
        mass = equation.w * p
        if self.nodes.has_axis:
            z = self.nodes.centres[:, -1]
            pairs = [(head[-1, -1], head[0, 0]) for head in equation.D]
            kernels = [
                np.exp(axial_log_kernel(x[:, -1], z, a, q, self.nodes.d)[0]) for a, q in pairs
            ]
        else:
            kernels = [np.exp(x @ head @ self.nodes.centres.T) for head in equation.D]
        m = np.array([each @ mass for each in kernels])
        potential = equation.sign * (m if equation.kind == "m" else np.log(m)).mean(axis=0)
        own = equation.potential(p)
        top = own.max()
        scale = self.nodes.areas @ np.exp((own - top) / self.kappa)
        return np.asarray(np.exp((potential - top) / self.kappa) / scale)


def density(
    D: ArrayLike,
    kappa: float,
    mesh: Any,
    *,
    flow: FlowName | Flow = "softmax",
    direction: Direction = "ascent",
    start: Literal["ordered", "uniform"] | ArrayLike = "ordered",
    tolerance: float = 1e-11,
    max_iterations: int = 60,
) -> State:
    r"""Return a stationary density of the mean-field equation.

    Parameters
    ----------
    D : array_like, shape (d, d) or (H, d, d)
        Symmetric interaction matrices.
    kappa : float
        Diffusion of the tokens per unit time, > 0.
    mesh : Nodes or mesh
        `Nodes`, whose errors fall exponentially with their number, or a mesh with `centres` and
        `areas`.
    flow : {"softmax", "effective", "unnormalised"} or wflow.Flow, default "softmax"
        Flow; one that is custom states its `potential`, for one head.
    direction : {"ascent", "descent"}, default "ascent"
        Sign s of the velocity: +1 or -1.
    start : {"ordered", "uniform"} or array_like, shape (cell,), default "ordered"
        Density where the iteration starts: "ordered" is that in the field of one point. There may
        be several stationary densities, and which is found depends on the start.
    tolerance : float, default 1e-11
        Residual at which the iteration ends.
    max_iterations : int, default 60
        Largest number of steps of Newton's method.

    Returns
    -------
    State
        The density with its errors `residual` and `defect`.

    Raises
    ------
    InputError
        For arguments out of range, heads that are not symmetric or that the nodes do not resolve.
    WflowError
        Where the iteration does not converge.

    Notes
    -----
    For "unnormalised" and "softmax" the density solves, with mobilities m_h,

    .. math::

        \rho \sim \exp\Bigl(\frac{s}{\kappa H} \sum_h m_h\Bigr), \qquad
        \rho \sim \prod_h m_h^{s/(\kappa H)},

    as these velocities are gradients for any number of heads. That of "effective" with several
    heads is one only where there is an axis; otherwise the density is expanded in harmonics, and
    the stationary flux need not vanish. Newton's method begins after damped iterations of the map.
    Both are derived in the theory, :ref:`stationary laws <theory-stationary>`; the equation is
    proposed in [1]_, section 7.1, and its stationary laws on the circle for one head are in [2]_.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870.
    .. [2] Balasubramanian, Banerjee and Rigollet, *On the structure of stationary solutions to
       McKean-Vlasov equations with applications to noisy transformers*, arXiv:2510.20094.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> D = np.array([[[2.0, 0.5], [0.5, -1.0]], [[0.0, 1.0], [1.0, 1.0]]])
    >>> state = wflow.stationary.density(D, 0.4, wflow.stationary.Nodes.circle(64))
    >>> bool(state.residual < 1e-10 and state.defect < 1e-10)
    True
    """
    kappa = positive(kappa, "kappa")
    tolerance = positive(tolerance, "tolerance")
    rounds = whole(max_iterations, "max_iterations", 0, most=10000)
    equation = Equation(D, mesh, flow, direction)
    if isinstance(start, str):
        check_choice("start", start, ("ordered", "uniform"))
        p = equation.ordered(kappa) if start == "ordered" else np.ones(equation.size)
    else:
        p = equation.density(start)
    p, error, steps = _iterated(equation, p, kappa, 1e-3), math.inf, 0
    for _ in range(_CYCLES if rounds else 1):
        p, error, further = newton(equation, p, kappa, tolerance, rounds - steps)
        steps += further
        if error <= tolerance or steps >= rounds or not math.isfinite(error):
            break
        # Where two densities have just merged, Newton's method stops and the map continues.
        p = _iterated(equation, p, kappa, tolerance)
    if not error <= max(tolerance, 1e-9):
        raise WflowError(
            f"no stationary density was found at kappa = {kappa:g}: after {steps} steps of "
            f"Newton's method the residual is {error:.2g}, expected {tolerance:.2g}. Start from "
            "the density at a larger kappa, or follow a branch with wflow.stationary.branch"
        )
    least = float(p.min() / p.max())
    if least < -_NEGATIVE:
        raise WflowError(
            f"the stationary density at kappa = {kappa:g} is negative, {least:.1g} of its maximum, "
            "where the nodes do not resolve it: take more nodes, or a larger kappa"
        )
    p = np.maximum(p, 0.0)
    p = p / (equation.w @ p)
    return State(equation, p, kappa)


def _iterated(equation: Equation, p: Floats, kappa: float, enough: float) -> Floats:
    """Iterate the map from a density, with damping where the iterates oscillate."""
    share, last = 1.0, np.zeros_like(p)
    for _ in range(_PICARD):
        gap = equation.nearby(p, kappa) - p
        error = float(np.abs(gap).max() / p.max())
        if not math.isfinite(error) or error < enough or share < 1e-2:
            break
        if equation.w @ (gap * last) < 0:
            share /= 2
        last = gap
        p = np.maximum(p + share * gap, 0.0)
    return np.asarray(p / (equation.w @ p))


def newton(
    equation: Equation, p: Floats, kappa: float, tolerance: float, rounds: int
) -> tuple[Floats, float, int]:
    """Return the density after steps of Newton's method, its residual and the number of steps."""
    best = math.inf
    for step in range(rounds + 1):
        image, change, _ = equation.tangent(p, kappa)
        gap = image - p
        best = float(np.abs(gap).max() / np.abs(p).max())
        if best <= tolerance or step == rounds or not math.isfinite(best):
            break
        turned = equation.rotations(p)
        matrix = np.eye(equation.size) - change + turned @ (turned.T * equation.w)
        delta = np.linalg.solve(matrix, gap)
        for share in (1.0, 0.5, 0.25, 0.1, 0.02):
            trial = p + share * delta
            if equation.gradient:
                trial = np.maximum(trial, 0.0)
                trial = trial / (equation.w @ trial)
            error = float(np.abs(equation.image(trial, kappa) - trial).max() / np.abs(trial).max())
            if error < best:
                break
        else:
            break
        p = trial
    if equation.gradient and math.isfinite(best):
        p = equation.image(p, kappa)  # relative accuracy where the density is small
    return p, best, step


def stationary_order(beta: float, d: int, kappa: float, flow: FlowName | Flow = "softmax") -> float:
    r"""Return the order of the most concentrated stationary law for D = beta I in ascent.

    Parameters
    ----------
    beta : float
        Factor of the head, > 0.
    d : int
        Dimension, >= 2.
    kappa : float
        Diffusion of the tokens per unit time, > 0.
    flow : {"softmax", "effective", "unnormalised"} or wflow.Flow, default "softmax"
        Flow; one that is custom states its `potential`.

    Returns
    -------
    float
        Order ``|int x mu(dx)|`` in [0, 1); zero where only the uniform law is stationary.

    Raises
    ------
    InputError
        For arguments out of range, a d above 400, or a law too narrow for the quadrature.

    Notes
    -----
    The law is the fixed point of mu -> exp(u/kappa) (or u^{1/kappa}), normalised, from a Dirac:
    axially symmetric, on Gauss-Gegenbauer nodes in the height z = <x, axis>, with

    .. math:: u(x) = \int e^{\beta \langle x, y \rangle}\, \mu(dy) .

    In the theory: :ref:`stationary laws <theory-stationary>`.

    Examples
    --------
    >>> import wflow
    >>> critical = wflow.stationary.critical_diffusion(1.0, 3)
    >>> wflow.stationary.stationary_order(1.0, 3, 2 * critical)
    0.0
    >>> 0 < wflow.stationary.stationary_order(1.0, 3, critical / 2) < 1
    True
    """
    linear = kind_of(flow, 1) == "m"
    kappa = positive(kappa, "kappa")
    beta = positive(beta, "beta")
    d = whole(d, "d", least=2)
    if d > LARGEST_D:
        raise InputError(f"d is {d}: the quadrature resolves laws up to d = {LARGEST_D}")
    if beta > _NODES**2 / 30:
        raise InputError(
            f"beta = {beta:g} makes the kernel too narrow to resolve; take beta <= "
            f"{_NODES**2 / 30:.3g}"
        )
    # Everything relative to e^beta, the largest value of the kernel.
    strength = safe_exp(math.log(kappa) - beta) if linear else kappa
    least = 30 / _NODES**2 * beta
    if strength < least:
        least = safe_exp(math.log(least) + beta) if linear else least
        remedy = f"kappa >= {least:.3g}" if math.isfinite(least) else "a smaller beta"
        raise InputError(
            f"kappa = {kappa:g} makes the stationary law too narrow to resolve; take {remedy}"
        )
    z, weight = heights(d, _NODES)
    averaged = np.exp(axial_log_kernel(z, z, beta, beta, d)[0] - beta)  # at most 1
    law = np.zeros(_NODES)
    law[-1] = 1.0  # probability at the nodes, from a Dirac at the pole
    order = 1.0
    for _ in range(_ROUNDS):
        with np.errstate(divide="ignore"):  # log 0: no mass ends there
            exponent = (averaged @ law if linear else np.log(averaged @ law)) / strength
        law = weight * np.exp(exponent - exponent.max())
        law /= law.sum()
        last, order = order, float(z @ law)
        if abs(order - last) <= _TOLERANCE:
            break
    # At the critical diffusion the iteration converges slowly: what is left there counts as zero.
    return order if order > 1e-4 else 0.0
