r"""The Fokker-Planck equation in one dimension, by finite volumes that are exact at equilibrium.

The law of dX = -V'(X, t) dt + sqrt(2/beta) dW has the density of

.. math:: \partial_t \rho = \partial_x (\rho\, \partial_x V) + \beta^{-1} \partial_{xx} \rho .

With u_i the mean density of a cell and delta = beta (V_{i+1} - V_i), the flux from cell i to cell
i + 1 over the distance dx of their centres is that of Scharfetter and Gummel, which Chang and
Cooper found again for this equation:

.. math:: F = \frac{1}{\beta\, dx}\, \bigl( B(\delta)\, u_i - B(-\delta)\, u_{i+1} \bigr),
    \qquad B(z) = \frac{z}{e^z - 1} .

It vanishes where u_{i+1}/u_i = exp(-delta), so that exp(-beta V) at the centres is stationary to
rounding, whatever the cells. The matrix of the system has no negative entry off its diagonal and
columns that sum to zero: implicit Euler steps keep positivity and mass for every length. In the
theory: :ref:`the Fokker-Planck equation <theory-fokker-planck>`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import function, positive, reals, returned, shown, switch
from wflow._core.errors import InputError
from wflow._core.memory import check_memory

if TYPE_CHECKING:
    from xarray import Dataset

__all__ = ["evolve_density"]

Array = NDArray[np.float64]
Density = Callable[[Array], ArrayLike] | ArrayLike
Potential = Callable[..., ArrayLike]

_GAMMA = 1 - math.sqrt(0.5)  # of the L-stable scheme of two stages and second order
_PARTS = 4  # Euler steps in the place of a step that would make a density negative
_ROUNDING = 1e-13  # share of the mass up to which negative values are rounding errors
_CELLS, _STEPS = 10**6, 10**7


def evolve_density(
    density: Density,
    potential: Potential,
    *,
    edges: ArrayLike,
    times: ArrayLike,
    dt: float,
    beta: float = 1.0,
    time_dependent: bool = False,
) -> Dataset:
    r"""Solve the one-dimensional Fokker-Planck equation between reflecting walls.

    .. math:: \partial_t \rho = \partial_x (\rho\, \partial_x V) + \beta^{-1} \partial_{xx} \rho .

    Densities stay nonnegative, the mass is kept to rounding, and a density proportional to
    exp(-beta V) at the centres of the cells stays as it is. The error is of second order in the
    size of the cells and in dt; potentials with kinks keep that order where the kinks lie on edges
    or centres of cells.

    Parameters
    ----------
    density : callable or array_like, shape (n,)
        Density at time 0, as a function of positions (n,), or the means of the cells; it is divided
        by its mass.
    potential : callable
        V(x) of positions (n,), or V(x, t); its values are finite.
    edges : array_like, shape (n + 1,)
        Edges of the cells, increasing; walls are at the first and the last.
    times : array_like, shape (k,)
        Times >= 0 at which the density is returned, increasing.
    dt : float
        Largest time step.
    beta : float, default 1.0
        Inverse temperature, > 0.
    time_dependent : bool, default False
        Whether the potential takes the time as its second argument.

    Returns
    -------
    xarray.Dataset
        ``density`` (time, x) at the centres x of the cells, ``width`` (x) of the cells, and the
        free energy of every time,

        .. math:: \int \rho\, (V + \beta^{-1} \log \rho)\, dx .

        The attribute ``euler_steps`` is the share of steps that were made by implicit Euler.

    Raises
    ------
    InputError
        For arguments out of range, a density that is negative or has no mass, or a potential that
        is not finite.

    Notes
    -----
    Fluxes are those of [1]_ and [2]_. Time steps are those of the L-stable diagonally implicit
    scheme of second order with two stages. No linear scheme of second order keeps every density
    nonnegative [3]_: a step that would make one negative is replaced by four steps of implicit
    Euler, as at the start from a density that is rough at the scale of a step.

    In the theory: :ref:`the Fokker-Planck equation <theory-fokker-planck>`.

    References
    ----------
    .. [1] Scharfetter, Gummel, *Large-signal analysis of a silicon Read diode oscillator*, IEEE
       Trans. Electron Devices 16 (1969).
    .. [2] Chang, Cooper, *A practical difference scheme for Fokker-Planck equations*, J. Comput.
       Phys. 6 (1970).
    .. [3] Bolley, Crouzeix, *Conservation de la positivité lors de la discrétisation des problèmes
       d'évolution paraboliques*, RAIRO Anal. Numér. 12 (1978).

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import sampling
    >>> run = sampling.evolve_density(
    ...     lambda x: np.exp(-2 * (x - 1) ** 2), np.abs, edges=np.linspace(-12, 12, 241),
    ...     times=[0, 1, 30], dt=0.05,
    ... )
    >>> error = run.density.sel(time=30) - np.exp(-abs(run.x)) / 2
    >>> bool(abs(error).max() < 1e-3)
    True
    """
    edges, times = _increasing(edges, "edges"), _increasing(times, "times", least=1)
    beta, dt = positive(beta, "beta"), positive(dt, "dt")
    moving = switch(time_dependent, "time_dependent")
    function(potential, "potential", "positions, or of positions and the time")
    if edges.size - 1 > _CELLS:
        raise InputError(f"edges are those of {edges.size - 1} cells: expected up to {_CELLS}")
    if times[0] < 0:
        raise InputError(f"times begin with {times[0]:g}: expected times >= 0")
    if times[-1] / dt > _STEPS:
        raise InputError(
            f"dt is {dt:g}, more than {_STEPS} steps up to {times[-1]:g}: give a larger one"
        )
    size = f"the density at {times.size} times in {edges.size - 1} cells"
    check_memory(16.0 * times.size * edges.size, size, "give fewer times or edges")
    centres, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)

    def values(t: float) -> Array:
        try:
            given = potential(centres, t) if moving else potential(centres)
        except TypeError as error:
            arguments = "positions and a time" if moving else "positions"
            raise InputError(f"potential does not take {arguments}: {error}") from error
        return returned(given, centres.shape, f"potential, at time {t:g},")

    stepper = _Stepper(values, centres, widths, beta, moving)
    state = _initial(density, centres, widths)
    found, now, steps = [], 0.0, 0
    for time in times:
        count = math.ceil((time - now) / dt * (1 - 1e-12))
        for k in range(count):
            state = stepper.step(state, now + k * (time - now) / count, (time - now) / count)
            state = state / (state @ widths)  # of rounding errors, which the matrix amplifies
        found.append(state)
        now, steps = float(time), steps + count
    free = [_free_energy(u, values(t), widths, beta) for t, u in zip(times, found, strict=True)]

    import xarray  # here, so that the package loads without it

    return xarray.Dataset(
        {
            "density": (("time", "x"), np.array(found), {"long_name": "density"}),
            "width": ("x", widths, {"long_name": "width of the cell"}),
            "free_energy": ("time", free, {"long_name": "free energy"}),
        },
        {
            "time": ("time", times, {"long_name": "time"}),
            "x": ("x", centres, {"long_name": "centre of the cell"}),
        },
        {"beta": beta, "dt": dt, "euler_steps": stepper.replaced / max(steps, 1)},
    )


def _increasing(given: ArrayLike, name: str, least: int = 3) -> Array:
    """Check a list of increasing finite numbers."""
    found = np.atleast_1d(reals(given, name))
    if found.ndim != 1 or found.size < least or not np.all(np.diff(found) > 0):
        raise InputError(f"{name} are {shown(given)}: expected {least} or more increasing numbers")
    return found


def _initial(density: Density, centres: Array, widths: Array) -> Array:
    """Return the means of the cells at time 0, of mass one."""
    if callable(density):
        state = returned(density(centres), centres.shape, "density")
    else:
        state = reals(density, "density")
    if state.shape != centres.shape:
        raise InputError(
            f"density has shape {state.shape}: expected ({centres.size},), one number per cell"
        )
    with np.errstate(over="ignore"):
        mass = float(state @ widths)
    if state.min() < 0 or not 0 < mass < math.inf:
        raise InputError(
            f"density has the smallest value {state.min():g} and the mass {mass:g}: expected "
            "values >= 0 and a positive mass"
        )
    return np.asarray(state / mass)


def _free_energy(state: Array, potential: Array, widths: Array, beta: float) -> float:
    inside = state > 0
    u = state[inside]
    return float(np.sum(widths[inside] * u * (potential[inside] + np.log(u) / beta)))


def _bernoulli(z: Array) -> Array:
    """Return B(z) = z / (exp(z) - 1), to rounding for every z."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return np.where(z == 0, 1.0, z / np.expm1(z))


class _Stepper:
    """Steps of du/dt = L(t) u, L tridiagonal with columns that sum to zero."""

    def __init__(
        self,
        values: Callable[[float], Array],
        centres: Array,
        widths: Array,
        beta: float,
        moving: bool,
    ) -> None:
        self.values, self.widths, self.beta, self.moving = values, widths, beta, moving
        self.rates = 1 / (beta * np.diff(centres))
        self.solvers: dict[float, Callable[[Array], Array]] = {}
        self.replaced = 0

    def solver(self, t: float, dt: float) -> Callable[[Array], Array]:
        """Return the inverse of 1 - dt L(t), by Gauss elimination."""
        from scipy.linalg.lapack import dgttrf, dgttrs

        if dt not in self.solvers:
            delta = self.beta * np.diff(self.values(t))
            right, left = self.rates * _bernoulli(delta), self.rates * _bernoulli(-delta)
            diagonal = np.ones(self.widths.size)
            diagonal[:-1] += dt * right / self.widths[:-1]
            diagonal[1:] += dt * left / self.widths[1:]
            below, above = -dt * right / self.widths[1:], -dt * left / self.widths[:-1]
            *factors, _ = dgttrf(below, diagonal, above)

            def solve(u: Array) -> Array:
                return np.asarray(dgttrs(*factors, u)[0])

            if self.moving:
                return solve
            if len(self.solvers) >= 8:  # of the lengths of steps between times
                self.solvers.clear()
            self.solvers[dt] = solve
        return self.solvers[dt]

    def step(self, u: Array, t: float, dt: float) -> Array:
        """Compute one step of second order, or four of implicit Euler if u became negative."""
        part = _GAMMA * dt
        middle = self.solver(t + part, part)(u)
        last = self.solver(t + dt, part)(u + (1 - _GAMMA) / _GAMMA * (middle - u))
        negative = last < 0
        if negative.any():
            lost = -float(last[negative] @ self.widths[negative])
            if lost > _ROUNDING:
                self.replaced += 1
                return self._euler(u, t, dt)
            last[negative] = 0.0
        return last

    def _euler(self, u: Array, t: float, dt: float) -> Array:
        part = dt / _PARTS
        for k in range(_PARTS):
            u = self.solver(t + (k + 1) * part, part)(u)
        return u
