"""Parameters of the Lorenz-63 system from averages of its states over windows of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit, prange
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import count_steps, number, positive, reals, whole
from wflow._core.compiler.functions import kernel
from wflow._core.errors import InputError
from wflow.sampling.forward.model import ForwardModel, Pullback, TensorPullback

if TYPE_CHECKING:
    from torch import Tensor

FloatArray = NDArray[np.float64]


# Not among the entry points: a function in a closure makes the key of the cache a new one in each
# process.
@njit(error_model="numpy", inline="always")
def _velocity(x, theta, out):
    """f(x; sigma, r, beta)."""
    out[0] = theta[0] * (x[1] - x[0])
    out[1] = x[0] * (theta[1] - x[2]) - x[1]
    out[2] = x[0] * x[1] - theta[2] * x[2]


@njit(error_model="numpy", inline="always")
def _adjoint(x, theta, k, out, slope):
    """out += (df/dx)^T k, slope += (df/dtheta)^T k."""
    out[0] += -theta[0] * k[0] + (theta[1] - x[2]) * k[1] + x[1] * k[2]
    out[1] += theta[0] * k[0] - k[1] + x[0] * k[2]
    out[2] += -x[0] * k[1] - theta[2] * k[2]
    slope[0] += (x[1] - x[0]) * k[0]
    slope[1] += x[0] * k[1]
    slope[2] -= x[2] * k[2]


@kernel(parallel=True)
def _sweep(theta, start, dt, spin_up, windows, length, weights, backward, means, slopes):
    """RK4 for every row of theta (n, 3), and back again with weights (n, 3 windows).

    The integrals over the windows are carried along as components of the same scheme: they
    take the stages with the weights of RK4. Some 100 operations a step, three times as many
    with the way back, which keeps the states of one row.
    """
    steps = spin_up + windows * length
    for row in prange(theta.shape[0]):
        p = theta[row]
        states = np.empty((steps + 1, 3))
        stage, rate = np.empty((4, 3)), np.empty((4, 3))
        states[0] = start
        for step in range(steps):
            x = states[step]
            for s in range(4):
                for c in range(3):
                    ahead = 0.0
                    if s == 1 or s == 2:
                        ahead = 0.5 * dt * rate[s - 1, c]
                    elif s == 3:
                        ahead = dt * rate[2, c]
                    stage[s, c] = x[c] + ahead
                _velocity(stage[s], p, rate[s])
            window = (step - spin_up) // length
            for c in range(3):
                total = rate[0, c] + 2 * (rate[1, c] + rate[2, c]) + rate[3, c]
                states[step + 1, c] = x[c] + dt / 6 * total
                if step >= spin_up:
                    total = stage[0, c] + 2 * (stage[1, c] + stage[2, c]) + stage[3, c]
                    means[row, 3 * window + c] += total / (6 * length)
        if not backward:
            continue
        lam, eta = np.zeros(3), np.zeros(3)
        k, back, before = np.empty(3), np.empty(3), np.empty(3)
        for step in range(steps - 1, -1, -1):
            x = states[step]
            for s in range(4):
                for c in range(3):
                    ahead = 0.0
                    if s == 1 or s == 2:
                        ahead = 0.5 * dt * rate[s - 1, c]
                    elif s == 3:
                        ahead = dt * rate[2, c]
                    stage[s, c] = x[c] + ahead
                _velocity(stage[s], p, rate[s])
            for c in range(3):
                eta[c] = 0.0
                before[c] = lam[c]
                back[c] = 0.0
                if step >= spin_up:
                    window = (step - spin_up) // length
                    eta[c] = weights[row, 3 * window + c] / (6 * length)
            for s in range(3, -1, -1):
                share = 1.0 if s == 0 or s == 3 else 2.0
                for c in range(3):
                    reach = 0.0  # of this rate in the next stage
                    if s == 2:
                        reach = dt * back[c]
                    elif s < 2:
                        reach = 0.5 * dt * back[c]
                    k[c] = dt / 6 * share * lam[c] + reach
                for c in range(3):
                    back[c] = share * eta[c]
                _adjoint(stage[s], p, k, back, slopes[row])
                for c in range(3):
                    before[c] += back[c]
            for c in range(3):
                lam[c] = before[c]


class Lorenz(ForwardModel):
    r"""Averages over windows of time of a trajectory of the Lorenz-63 system.

    Parameters
    ----------
    windows : int, default 10
        Number of windows of observation, one after the other.
    window : float, default 0.2
        Length of each, a multiple of dt.
    spin_up : float, default 0.5
        Time before the first window, a multiple of dt, or 0.
    dt : float, default 0.01
        Step of the Runge-Kutta scheme of order 4.
    start : array_like, shape (3,), optional
        Initial state; (1, 1, 20) by default.
    centre : array_like, shape (3,), optional
        Values (sigma, r, beta) > 0 at x = 0; (10, 28, 8/3) by default.
    scale : float, default 0.2
        Relative change of a parameter for a unit of x.

    Attributes
    ----------
    dim : int
        3.
    outputs : int
        3 windows: (x_1, x_2, x_3) of the first window, of the second, ...

    Raises
    ------
    InputError
        For numbers out of range, and times that are no multiples of dt.

    Notes
    -----
    .. math::
        \dot x_1 = \sigma (x_2 - x_1), \quad \dot x_2 = x_1 (r - x_3) - x_2, \quad
        \dot x_3 = x_1 x_2 - \beta x_3,

    with :math:`(\sigma, r, \beta)_i = c_i e^{s x_i}`, so that they stay positive for every x; the
    outputs are averages, the integrals of [1]_ over the length of the window. The adjoint is that
    of the discrete scheme. Gradients grow with time like the distance of trajectories, about
    :math:`e^{0.9 t}`: times above 20 make them, and the likelihood, useless.

    References
    ----------
    .. [1] Han, Osher and Li, "Sparse Transformer Architectures via Regularized Wasserstein
       Proximal Operator with L1 Prior", section 4.2, example 2.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow.sampling import forward
    >>> model = forward.Lorenz(windows=2)
    >>> model.parameters(np.zeros((1, 3))).round(3)
    array([[10.   , 28.   ,  2.667]])
    >>> model(np.zeros((1, 3))).shape
    (1, 6)
    """

    dim = 3

    def __init__(
        self,
        windows: int = 10,
        *,
        window: float = 0.2,
        spin_up: float = 0.5,
        dt: float = 0.01,
        start: ArrayLike | None = None,
        centre: ArrayLike | None = None,
        scale: float = 0.2,
    ) -> None:
        self.windows, self.dt = whole(windows, "windows"), positive(dt, "dt")
        window = positive(window, "window")
        self.scale = positive(scale, "scale")
        self.length = count_steps(window, self.dt)
        spin_up = number(spin_up, "spin_up", 0.0)
        self.before = count_steps(spin_up, self.dt) if spin_up > 0 else 0
        self.steps = self.before + self.windows * self.length
        if self.steps > 10**7:
            raise InputError(f"windows and spin_up are {self.steps} steps: expected up to 1e7")
        self.outputs = 3 * self.windows
        self.start = _three((1.0, 1.0, 20.0) if start is None else start, "start")
        self.centre = _three((10.0, 28.0, 8 / 3) if centre is None else centre, "centre")
        if np.any(self.centre <= 0):
            raise InputError(f"centre is {self.centre}: expected three numbers > 0")

    def parameters(self, x: ArrayLike) -> FloatArray:
        """Return (sigma, r, beta) of points.

        Parameters
        ----------
        x : array_like, shape (n, 3)
            Points.

        Returns
        -------
        ndarray, shape (n, 3)
            Parameters of the system.

        Raises
        ------
        InputError
            For points of another shape, or not finite.
        """
        with np.errstate(over="ignore"):
            return self.centre * np.exp(self.scale * self._array(x, "x", 3))

    def evaluate(self, x: FloatArray) -> tuple[FloatArray, Pullback]:
        theta = self.parameters(x)

        def swept(weights: FloatArray, backward: bool) -> tuple[FloatArray, FloatArray]:
            means, slopes = np.zeros((len(x), self.outputs)), np.zeros((len(x), 3))
            times = (self.dt, self.before, self.windows, self.length)
            _sweep(theta, self.start, *times, weights, backward, means, slopes)
            return means, slopes

        def pullback(w: FloatArray) -> FloatArray:
            return swept(w, True)[1] * self.scale * theta

        return swept(np.zeros((0, 0)), False)[0], pullback

    def evaluate_torch(self, x: Tensor) -> tuple[Tensor, TensorPullback]:
        # The state carries its derivatives with respect to x: three of them cost less than a sweep
        # back, which would keep all states. The time goes to the number of operations, 15 a stage,
        # and not to their size: they write in place, to views that are made once.
        import torch

        exponent = x.T.contiguous() * self.scale
        sigma, r, beta = theta = x.new_tensor(self.centre)[:, None] * exponent.exp()
        d_sigma, d_r, d_beta = self.scale * theta
        state = x.new_zeros(3, 4, len(x))  # (component, value and derivatives, row)
        state[:, 0] = x.new_tensor(self.start)[:, None]
        after, stage, rate = state.clone(), torch.zeros_like(state), torch.zeros_like(state)
        means = x.new_zeros(self.windows, *state.shape)
        (x1, x2, x3), (f1, f2, f3) = stage, rate
        gap = torch.zeros_like(x1)
        (v1, v2, v3), v_gap = stage[:, 0], gap[0]  # values
        dx1, (_, df2, df3) = stage[0, 1:], rate[:, 1:]  # derivatives
        df1_sigma, df2_r, df3_beta = rate[0, 1], rate[1, 2], rate[2, 3]

        for step in range(self.steps):
            for share, ahead in ((1, 0.0), (2, self.dt / 2), (2, self.dt / 2), (1, self.dt)):
                torch.add(state, rate, alpha=ahead, out=stage)
                torch.sub(x2, x1, out=gap)
                torch.mul(sigma, gap, out=f1)
                df1_sigma.addcmul_(d_sigma, v_gap)
                torch.mul(r, x1, out=f2).sub_(x2).addcmul_(v1, x3, value=-1)
                df2.addcmul_(dx1, v3, value=-1)
                df2_r.addcmul_(d_r, v1)
                torch.mul(v1, x2, out=f3).addcmul_(beta, x3, value=-1)
                df3.addcmul_(dx1, v2)
                df3_beta.addcmul_(d_beta, v3, value=-1)
                after.add_(rate, alpha=self.dt / 6 * share)
                if step >= self.before:
                    window = means[(step - self.before) // self.length]
                    window.add_(stage, alpha=share / (6 * self.length))
            state.copy_(after)

        found = means.permute(2, 3, 0, 1).reshape(4, len(x), self.outputs)
        return found[0], lambda w: (found[1:] * w).sum(-1).T


def _three(value: ArrayLike, name: str) -> FloatArray:
    array = reals(value, name)
    if array.shape != (3,):
        raise InputError(f"{name} has shape {array.shape}: expected three numbers")
    return array
