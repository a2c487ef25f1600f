"""The mean-field equation for smooth densities: Fourier modes on the circle, harmonics on S^2.

A density is a polynomial of degree L in the coordinates, known by its values at the nodes of a
quadrature that is exact for polynomials of degree 3 L, so that products of two are integrated
exactly. With the harmonics Y_lm and the velocity V at the nodes, the Galerkin equations are

    d rho_lm/dt = int rho <V, grad Y_lm> dx - kappa l (l + d - 2) rho_lm,

the last term being solved exactly (Lawson's schemes). They keep the mass to the last digit and
converge faster than any power of L; they know nothing of positivity, so that a density whose
coefficients have not decayed at the highest degrees is refused.

Sources: J. P. Boyd, Chebyshev and Fourier spectral methods (2001), chapters 11 and 18; J. D.
Lawson, SIAM J. Numer. Anal. 4 (1967).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import whole
from wflow._core.errors import InputError
from wflow._core.memory import check_memory
from wflow._core.tableaux import TABLEAUX
from wflow.heads.matrices import Matrices
from wflow.kernels.evaluate import HeadSums
from wflow.meanfield.fields import DensityStage, Discretisation, Scheme, Setting, TooLong
from wflow.meanfield.mesh import Quadrature, over_cells, points_of
from wflow.particles.budget import Terms
from wflow.runs.schema import TAIL
from wflow.sphere.harmonics import quadrature
from wflow.sphere.polynomials import legendre

Floats = NDArray[np.floating]
Coefficients = NDArray[np.complexfloating]

_FEWEST = 4  # degree
_TURNS = 2.8  # of the phase of a mode in a step of rk4, below sqrt(8)


class Modes(Quadrature):
    r"""Polynomials up to a degree by their values at nodes; `Fourier` and `Harmonics` make them.

    Attributes
    ----------
    degree : int
        Highest degree L.
    centres : ndarray, shape (cell, axis)
        Nodes of a quadrature that is exact for polynomials of degree 3 L.
    areas : ndarray, shape (cell,)
        Weights of the quadrature.
    dim : int
        1 for the circle, 2 for the sphere.

    Notes
    -----
    In the theory: :ref:`the spectral method <theory-spectral>`.

    Examples
    --------
    >>> from wflow import meanfield
    >>> meanfield.Fourier(10).centres.shape, meanfield.Harmonics(10).centres.shape
    ((31, 2), (496, 3))
    """

    degrees: Floats  # of the coefficients, in a shape that broadcasts to them
    counts: Floats  # how often a coefficient counts in the square norm

    def __init__(self, degree: int) -> None:
        nodes, weights = quadrature(2 if isinstance(self, Fourier) else 3, -(-3 * degree // 2))
        super().__init__(nodes, weights)
        self.degree = degree

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.degree})"

    def tail(self, values: ArrayLike) -> Any:
        r"""Return the share of the highest quarter of the degrees in values at the nodes.

        Parameters
        ----------
        values : array_like, shape (..., cell)
            Values.

        Returns
        -------
        float or ndarray, shape (...)
            Shares, between 0 and 1.

        Raises
        ------
        InputError
            For another number of nodes, and values that are not finite.

        Notes
        -----
        With the coefficients :math:`c_{lm}` of the values, those beyond the degree L included,

        .. math:: \Bigl(\sum_{l > 3L/4} |c_{lm}|^2 \Big/ \sum_l |c_{lm}|^2\Bigr)^{1/2} .

        Values are resolved where it is small: the coefficients of smooth functions decay like a
        geometric series.

        Examples
        --------
        >>> import numpy as np
        >>> from wflow import meanfield
        >>> modes = meanfield.Fourier(16)
        >>> bool(modes.tail(np.exp(modes.centres[:, 0])) < 1e-12)
        True
        """
        given = over_cells(self, values)
        flat = given.reshape(-1, self.cells)
        low = np.where(self.degrees <= 0.75 * self.degree, self._analyse(flat), 0)
        size = (flat**2) @ self.areas
        rest = ((flat - self._synthesise(low)) ** 2) @ self.areas
        share = np.sqrt(rest / np.where(size > 0, size, 1))
        return share.reshape(given.shape[:-1])[()]

    def at(self, values: ArrayLike, points: ArrayLike) -> Floats:
        """Return the polynomial with given values at the nodes, at any points.

        Parameters
        ----------
        values : array_like, shape (..., cell)
            Values at the nodes; degrees above `degree` are left out.
        points : array_like, shape (m, axis)
            Points, which are put on the unit sphere.

        Returns
        -------
        ndarray, shape (..., m)
            Values at the points.

        Raises
        ------
        InputError
            For another number of nodes, and values or points that are not finite.

        Examples
        --------
        >>> import numpy as np
        >>> from wflow import meanfield
        >>> modes, mesh = meanfield.Harmonics(8), meanfield.Sphere(42)
        >>> height = modes.at(modes.centres[:, 2], mesh.centres)
        >>> bool(np.allclose(height, mesh.centres[:, 2]))
        True
        """
        given, unit = over_cells(self, values), points_of(self, points, "points")
        found = self._analyse(given.reshape(-1, self.cells))
        placed = self._placed(found, unit.reshape(-1, self.dim + 1))
        return placed.reshape(*given.shape[:-1], *unit.shape[:-1])

    def _analyse(self, values: Floats) -> Coefficients:
        """Coefficients (paths, ...) of values (paths, cell)."""
        raise NotImplementedError

    def _synthesise(self, coefficients: Coefficients) -> Floats:
        """Values (paths, cell) of coefficients (paths, ...)."""
        raise NotImplementedError

    def _against_gradients(self, fields: Floats) -> Coefficients:
        """int <F, grad Y> for tangential fields F (paths, cell, axis): that of -div F."""
        raise NotImplementedError

    def _placed(self, coefficients: Coefficients, points: Floats) -> Floats:
        raise NotImplementedError

    def _of_unit_mass(self, coefficients: Coefficients) -> Coefficients:
        """The coefficients of densities, changed in place: rounding does not add up in the mass."""
        first: Any = (slice(None), *(0,) * (coefficients.ndim - 1))
        coefficients[first] = 1 / math.sqrt(2 * self.dim * math.pi)
        return coefficients

    def _refusal(self, density: Floats) -> tuple[int, str] | None:
        """The path of a density that is not resolved, and what is said of it."""
        tail = self.tail(density)
        path = int(np.argmax(tail))
        if tail[path] <= TAIL:
            return None
        return path, (
            f"the density is not resolved by degrees up to {self.degree}: the highest quarter of "
            f"them has the share {tail[path]:.3g} of it, expected at most {TAIL:g}; take a higher "
            "degree, more diffusion, or finite volumes (Circle, Sphere)"
        )

    @property
    def _eigenvalues(self) -> Floats:
        """Those of minus the Laplacian, l (l + d - 2)."""
        return self.degrees * (self.degrees + self.dim - 1)

    def _scalar(self, first: Coefficients, second: Coefficients) -> Floats:
        """Scalar products (paths,) in L^2 of real functions."""
        axes = tuple(range(1, first.ndim))
        return np.asarray((self.counts * (first * second.conj()).real).sum(axis=axes))


class Fourier(Modes):
    r"""Trigonometric polynomials on the circle.

    Parameters
    ----------
    degree : int
        Highest degree L, at least 4; there are about 3 L equal angles.

    Raises
    ------
    InputError
        For a smaller degree, or one that does not fit into memory.

    See Also
    --------
    Harmonics : Polynomials on the sphere.
    Circle : Equal arcs, for densities that are not smooth.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> from wflow import meanfield
    >>> modes = meanfield.Fourier(32)
    >>> run = meanfield.solve(
    ...     lambda x: np.exp(x[:, 0]), wflow.heads.Frozen(), mesh=modes, heads=np.eye(2)[None],
    ...     t_final=0.1, kappa=0.1,
    ... )
    >>> bool(run.spectral_tail.max() < 1e-12)
    True
    """

    def __init__(self, degree: int) -> None:
        degree = whole(degree, "degree", _FEWEST)
        check_memory(200.0 * degree, f"modes up to the degree {degree}", "take fewer")
        super().__init__(degree)
        self.degrees = np.arange(degree + 1.0)
        self.counts = np.where(self.degrees > 0, 2.0, 1.0)
        self._along = np.stack([-self.centres[:, 1], self.centres[:, 0]], axis=1)
        self._scale = math.sqrt(2 * math.pi) / self.cells

    def _analyse(self, values: Floats) -> Coefficients:
        return np.fft.rfft(values)[:, : self.degree + 1] * self._scale

    def _synthesise(self, coefficients: Coefficients) -> Floats:
        return np.fft.irfft(coefficients / self._scale, self.cells)

    def _against_gradients(self, fields: Floats) -> Coefficients:
        return -1j * self.degrees * self._analyse(np.einsum("pia,ia->pi", fields, self._along))

    def _placed(self, coefficients: Coefficients, points: Floats) -> Floats:
        angles = np.arctan2(points[:, 1], points[:, 0])
        waves = np.exp(1j * np.outer(self.degrees, angles)) / math.sqrt(2 * math.pi)
        return ((self.counts * coefficients) @ waves).real


class Harmonics(Modes):
    r"""Spherical harmonics up to a degree.

    Parameters
    ----------
    degree : int
        Highest degree L, at least 4; the nodes are Gauss-Legendre in z times equal angles, about
        4.5 :math:`L^2` of them.

    Raises
    ------
    InputError
        For a smaller degree, or one that does not fit into memory.

    See Also
    --------
    Fourier : Trigonometric polynomials on the circle.
    Sphere : Voronoi cells, for densities that are not smooth.

    Notes
    -----
    Transforms are FFTs along the circles of latitude and one product of matrices for every order,
    in about :math:`L^3` operations.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> from wflow import meanfield
    >>> modes = meanfield.Harmonics(12)
    >>> bool(np.isclose(modes.integrate(modes.centres[:, 2] ** 2), 4 * np.pi / 3))
    True
    """

    def __init__(self, degree: int) -> None:
        degree = whole(degree, "degree", _FEWEST)
        needed = 8.0 * (degree + 1) ** 2 * 1.5 * degree * 6
        check_memory(needed, f"harmonics up to the degree {degree}", "take fewer")
        super().__init__(degree)
        self._shape = -(-3 * degree // 2) + 1, 2 * -(-3 * degree // 2) + 1  # latitudes, longitudes
        z = self.centres[:: self._shape[1], 2]
        self._weights = self.areas[:: self._shape[1], None]
        # (order, latitude, degree)
        self._legendre, self._south, self._east = _by_colatitude(z, degree)
        orders = np.arange(degree + 1)[:, None]
        x, y = self.centres[:, 0], self.centres[:, 1]
        around = np.hypot(x, y)
        east = np.stack([-y / around, x / around, np.zeros_like(x)], axis=1)
        self._frame = np.stack([np.cross(east, self.centres), east])  # (2, cell, axis)
        self.degrees = np.broadcast_to(np.arange(degree + 1.0), (degree + 1, degree + 1))
        self.counts = np.where(orders > 0, 2.0, 1.0) * (self.degrees >= orders)

    def _analyse(self, values: Floats) -> Coefficients:
        return _summed(self._waves(values), self._legendre)

    def _synthesise(self, coefficients: Coefficients) -> Floats:
        waves = _summed(coefficients.transpose(1, 0, 2), self._legendre.transpose(0, 2, 1))
        values = np.fft.irfft(waves.transpose(0, 2, 1) * self._shape[1], self._shape[1])
        return values.reshape(len(coefficients), self.cells)

    def _against_gradients(self, fields: Floats) -> Coefficients:
        south, east = (self._waves(np.einsum("pia,ia->pi", fields, e)) for e in self._frame)
        return _summed(south, self._south) - 1j * _summed(east, self._east)

    def _waves(self, values: Floats) -> Coefficients:
        """Weighted Fourier coefficients (order, paths, latitude) along circles of latitude."""
        waves = np.fft.rfft(values.reshape(-1, *self._shape))[..., : self.degree + 1]
        return np.asarray((waves * self._weights).transpose(2, 0, 1))

    def _placed(self, coefficients: Coefficients, points: Floats) -> Floats:
        placed = np.empty((len(coefficients), len(points)))
        for first in range(0, len(points), 256):  # the tables of points are large
            part = points[first : first + 256]
            P = _by_colatitude(np.clip(part[:, 2], -1, 1), self.degree)[0]
            turns = np.arctan2(part[:, 1], part[:, 0])
            waves = np.exp(1j * np.outer(np.arange(self.degree + 1), turns))
            terms = np.einsum("pml,mnl->pmn", coefficients * self.counts, P, optimize=True)
            placed[:, first : first + 256] = np.einsum("pmn,mn->pn", terms, waves).real
        return placed


def _summed(terms: Coefficients, matrices: Floats) -> Coefficients:
    """(order, paths, k) times (order, k, l), with the paths first: (paths, order, l)."""
    paths = terms.shape[1]
    parts = np.concatenate([terms.real, terms.imag], axis=1) @ matrices
    return np.asarray((parts[:, :paths] + 1j * parts[:, paths:]).transpose(1, 0, 2))


def _by_colatitude(z: Floats, degree: int) -> tuple[Floats, Floats, Floats]:
    """Return P_lm, dP_lm/dtheta and m P_lm/sin theta, each (order, n, degree), at heights z.

    P_lm(z) e^(im phi) are orthonormal harmonics with P_lm = sin^m theta q_lm, z = cos theta; the
    real ones, made of q_lm, carry a factor sqrt(2) for m > 0. The derivatives are those to the
    south and, but for a factor i, to the east.
    """
    q, slopes = legendre(np.asarray(z, np.float64), degree)
    orders = np.arange(degree + 1)[:, None, None]
    q[1:] /= math.sqrt(2)
    slopes[1:] /= math.sqrt(2)
    sine = np.sqrt((1 - z) * (1 + z))[:, None]
    east = orders * sine ** np.maximum(orders - 1, 0) * q
    return sine**orders * q, z[:, None] * east - sine ** (orders + 1) * slopes, east


def resolved(density: Floats, modes: Modes) -> Floats:
    """Densities (cell,) or (paths, cell) of unit mass without the degrees that are left out.

    Raises
    ------
    InputError
        For a density that is not resolved.
    """
    flat = density.reshape(-1, modes.cells)
    lost = modes._refusal(flat)
    if lost is not None:
        raise InputError(lost[1])
    return modes._synthesise(modes._of_unit_mass(modes._analyse(flat))).reshape(density.shape)


@dataclass
class SpectralStage(DensityStage):
    """What is evaluated at one time.

    speeds : largest speed (paths,)
    moved : coefficients of -div(rho V)
    """

    speeds: Floats
    moved: Coefficients


class Spectral(Discretisation):
    """The equation in space on `Modes`: Galerkin's method, the diffusion being solved exactly."""

    SCHEMES: ClassVar = {name: Scheme(TABLEAUX[name]) for name in ("euler", "sra1", "heun", "rk4")}
    DEFAULT = "rk4"
    SERIES: ClassVar = ("spectral_tail",)
    BEYOND = "modes may grow without bound"

    def __init__(self, modes: Modes, setting: Setting, scheme: str) -> None:
        super().__init__(modes, setting)
        self.modes = modes
        self.tableau = self.SCHEMES[scheme].tableau
        low = self.tableau.order < 4
        self.REMEDY = (
            "more diffusion; for heads without noise scheme='rk4' needs none"
            if low
            else "a lower degree"
        )

    def evaluate(
        self, density: Floats, D: Matrices, values: Matrices | None = None,
        drift: Matrices | None = None, noise: Matrices | None = None,
        sigma2: Floats | None = None,
    ) -> SpectralStage:  # fmt: skip
        """As `Volumes.evaluate`."""
        masses = density * self.modes.areas
        with np.errstate(invalid="ignore", over="ignore"):
            velocity, log_b, cloud = self.velocity(masses, D, values)
            squares = np.einsum("pia,pia->pi", velocity, velocity)
            terms: dict[str, Any] = {"error": cloud.error}
            if self.budget:
                logs = cloud.log_mobility()
                phi = np.exp(logs).mean(axis=1)
                scale, gbar = cloud.mean_gradient()
                loss = -np.exp(scale) * np.einsum("pia,pia->pi", gbar, velocity)
                gradient = np.exp(0.0 if log_b is None else log_b) * squares
                dissipation, upper = (
                    np.einsum("pi,pi->p", masses, each) for each in (loss, gradient)
                )
                spread = self.modes._eigenvalues * self.modes._analyse(phi)
                terms |= {
                    "energy": np.einsum("pi,pi->p", masses, phi) / 2,
                    "dissipation": dissipation,
                    "upper_gradient_sq": upper,
                    "edi_defect": dissipation + self.sign * upper,
                    "diffusion_power": -self.kappa
                    * self.modes._scalar(self.modes._analyse(density), spread),
                    **self.still(),
                }
                if not (drift is None and noise is None and sigma2 is None):
                    found = HeadSums(
                        logs, np.ones_like(logs), cloud._averages(None)[1], cloud.error
                    )
                    terms |= self.moving(masses, D, found, drift, noise, sigma2)
            moved = self.modes._against_gradients(density[..., None] * velocity)
        speeds = np.sqrt(squares.max(axis=1))
        return SpectralStage(terms, np.isfinite(speeds), speeds, moved)

    def bound(self, stage: SpectralStage) -> Floats:
        """Longest steps (paths,) at which no mode grows in a uniform flow of the largest speed.

        |R(i l v dt)| exp(-kappa l^2 dt) <= 1 for the stability function R of the scheme.
        """
        v = np.maximum(stage.speeds, 1e-150)
        if self.tableau.order == 1:
            return 2 * self.kappa / v**2  # 1 + (l v dt)^2 <= e^(2 kappa l^2 dt)
        diffused = math.sqrt(8) * self.kappa / v**2  # 1 + (l v dt)^4/4 <= e^(2 kappa l^2 dt)
        if self.tableau.order == 2:
            return diffused
        return _TURNS / (v * math.sqrt(self.modes._eigenvalues.max()))

    def step(self, start, dt, first, later) -> tuple[Floats, list[Terms]]:
        """As `Volumes.step`: a step of Lawson's scheme with the tableau."""
        tableau, modes = self.tableau, self.modes
        begin = modes._analyse(start)
        rate = self.kappa * modes._eigenvalues
        stages: list[SpectralStage] = []
        for at in range(tableau.stages):
            stage = first
            if at:
                stage = later(at, modes._synthesise(self._passed(begin, stages, dt, rate, at)))
            bounds = self.bound(stage)
            if not (dt <= bounds).all():
                raise TooLong(bounds)
            stages.append(stage)
        after = self._passed(begin, stages, dt, rate, None)
        return modes._synthesise(after), [stage.terms for stage in stages]

    def _passed(self, begin, stages, dt, rate, at: int | None) -> Coefficients:
        """Coefficients at the node of stage `at`, or at the end of the step."""
        tableau = self.tableau
        node, row = (
            (1.0, tableau.weights) if at is None else (tableau.nodes[at], tableau.matrix[at])
        )
        found = np.exp(-rate * node * dt) * begin
        for weight, early, stage in zip(row, tableau.nodes, stages, strict=False):
            if weight:
                found = found + dt * weight * np.exp(-rate * (node - early) * dt) * stage.moved
        return self.modes._of_unit_mass(found)

    def series(self, stage: SpectralStage, density: Floats) -> dict[str, Any]:
        """What is recorded besides."""
        return {"spectral_tail": self.modes.tail(density)}

    def refusal(self, density: Floats) -> tuple[int, str] | None:
        """The path of a density that is not resolved, and what is said of it."""
        return self.modes._refusal(density)
