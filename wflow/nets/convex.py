r"""Convex test problem of optimal-transport training, solved to rounding error.

The velocity is free, one vector per step and sample, and the output layer A is linear:

.. math::

    \min_{f_0, \dots, f_{M-1}} G(X_M, y) + \frac{\lambda\,dt}{2} \sum_m |f_m|^2, \qquad
    X_{m+1} = X_m + dt\, f_m, \quad dt = T / M,

with ``G(X, y) = |A X - y|^2 / 2``, or the cross-entropy of softmax(A X). For lambda > 0 the optimum
is unique, X(T) = X(0) - (T/lambda) grad G(X(T), y), along straight lines at the constant speed
-(1/lambda) grad G(X(T), y): [OTT] F.5. For lambda = 0 it is not unique: [OTT] Theorem 1. So
properties of trained networks can be checked here on a known optimum.

X(T) is the proximal point argmin ``|X - X(0)|^2 / 2 + (T/lambda) G(X, y)``, and grad G is
monotone. So ``|dX(T)| <= |dX(0)| + (T L / lambda) |dy|`` for every lambda > 0: sharper than [OTT]
Theorem 2, and without its condition lambda > T L^2.

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer Architectures",
arXiv 2505.13499.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from wflow._core.checks import check_choice, number, positive, sum_tolerance, whole
from wflow._core.errors import InputError, WflowError
from wflow.nets.checks import tensor
from wflow.nets.continuous import Trajectory
from wflow.nets.diagnostics.measures import Stability, check_stability, operator_norm

__all__ = ["ConvexProblem"]


def __dir__() -> list[str]:
    return __all__


# Minimisation of smooth convex functions of many samples at once
# ---------------------------------------------------------------

_STEPS = 200
_HALVINGS = 40
_NEAR = 1e-12  # what a step may promise to lower the value by, where only rounding is left to gain


def by_newton(
    value: Callable[[Tensor], Tensor],
    gradient: Callable[[Tensor], Tensor],
    hessian: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    singular: bool = False,
) -> Tensor:
    """Apply Newton's method with halved steps until no sample's gradient decreases any more.

    Parameters
    ----------
    value, gradient, hessian : callable
        (batch, k) -> (batch,), (batch, k), (batch, k, k); convex in each.
    start : Tensor, shape (batch, k)
    singular : bool, default False
        Whether the Hessian may have a kernel; steps then have no part in it.

    Returns
    -------
    Tensor, shape (batch, k)
        Where the gradient vanishes to rounding if there is such a point.
    """
    x = start.clone()
    slope = gradient(x)
    best, least = x, _norm(slope)
    still = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    for _ in range(_STEPS):
        step = _newton_step(hessian(x), slope, singular)
        now = value(x)
        near = (slope * step).sum(-1).abs() <= _NEAR * (1 + now.abs())
        x = x + _damping(value, now, x, step, slope) * step
        slope = gradient(x)
        length = _norm(slope)
        # At rounding the gradient wanders: a sample is done after three steps without gain there.
        still = torch.where(near & (length >= 0.5 * least), still + 1, 0)
        best = torch.where((length < least)[:, None], x, best)
        least = torch.minimum(least, length)
        if bool((still >= 3).all()):
            break
    return best


def by_lbfgs(objective: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Minimise by torch's L-BFGS with a strong Wolfe line search, restarted until it stays."""
    x = start.clone().requires_grad_(True)
    for _ in range(3):
        before = x.detach().clone()
        search = torch.optim.LBFGS(
            [x],
            max_iter=500,
            history_size=50,
            tolerance_grad=1e-11,
            tolerance_change=1e-16,
            line_search_fn="strong_wolfe",
        )

        def closure(search: torch.optim.LBFGS = search) -> Tensor:
            search.zero_grad()
            total = objective(x)
            total.backward()
            return total

        search.step(closure)  # type: ignore[no-untyped-call]
        if torch.equal(before, x.detach()):
            break
    return x.detach()


def _newton_step(hessian: Tensor, slope: Tensor, singular: bool) -> Tensor:
    if singular:
        # A regularised step stays in the range of the Hessian, where the gradient lies, and is
        # as good as Newton's once the gradient is small.
        diagonal = torch.diagonal(hessian, dim1=1, dim2=2)
        floor = 1e-9 * diagonal.amax(1).clamp(min=torch.finfo(slope.dtype).tiny)
        eye = torch.eye(slope.shape[1], dtype=slope.dtype, device=slope.device)
        hessian = hessian + (_norm(slope) + floor)[:, None, None] * eye
    return -torch.linalg.solve(hessian, slope[:, :, None])[:, :, 0]


def _damping(
    value: Callable[[Tensor], Tensor], now: Tensor, x: Tensor, step: Tensor, slope: Tensor
) -> Tensor:
    """Return the largest 2^-k per sample that lowers the value `now` at x enough, (batch, 1)."""
    promised = (slope * step).sum(-1)
    share = torch.ones_like(now)
    # What rounding leaves of the value; at the optimum full steps are taken.
    slack = 16 * torch.finfo(now.dtype).eps * (1 + now.abs())
    for _ in range(_HALVINGS):
        tried = value(x + share[:, None] * step)
        enough = tried <= now + 1e-4 * share * promised + slack
        if bool(enough.all()):
            break
        share = torch.where(enough, share, share / 2)
    return share[:, None]


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1)


Loss = Literal["squared", "cross-entropy"]
Method = Literal["newton", "lbfgs"]


class ConvexProblem:
    """Problem of optimal transport with one velocity per step and sample [1]_.

    The output layer is linear, and the loss is convex in it.

    Everything is in double precision, on the device of `output`.

    Parameters
    ----------
    output : Tensor
        Matrix A (c, d): d entries of a state, c outputs.
    loss : {"squared", "cross-entropy"}
        "squared", G = (A X - y)^2 / 2; "cross-entropy", G = -<y, log softmax(A X)>.
    t_final : float, default 1.0
        End time T.
    steps : int, default 8
        Number M of steps.
    lam : float, default 1.0
        Weight lambda >= 0 of the transport cost as a sum (eq. 8).

    Raises
    ------
    InputError
        For an output that is no finite matrix, or numbers out of range.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, eq. 10, F.1 for the losses, F.4 to F.7 for the optimum.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> problem = nets.convex.ConvexProblem(torch.eye(2), lam=1.0)
    >>> problem.terminal_state(torch.zeros(1, 2), torch.ones(1, 2)).tolist()
    [[0.5, 0.5]]
    """

    def __init__(
        self,
        output: Tensor,
        loss: Loss = "squared",
        *,
        t_final: float = 1.0,
        steps: int = 8,
        lam: float = 1.0,
    ) -> None:
        tensor(output, "output", "number")
        if output.ndim != 2 or not output.numel() or not torch.isfinite(output).all():
            raise InputError("output must be a finite matrix (outputs, entries of a state)")
        check_choice("loss", loss, ("squared", "cross-entropy"))
        self.output = output.detach().double()
        self.loss = loss
        self.t_final = positive(t_final, "t_final")
        self.steps = whole(steps, "steps")
        self.lam = number(lam, "lam", least=0.0)

    @property
    def dt(self) -> float:
        """Length T/M of a step."""
        return self.t_final / self.steps

    @property
    def L(self) -> float:
        """Operator norm of the output layer."""
        return operator_norm(self.output)

    def value(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss G(X, y) of every sample.

        Parameters
        ----------
        x : Tensor, shape (..., d)
            States.
        y : Tensor, shape (..., c)
            Targets.

        Returns
        -------
        Tensor, shape (...)
            Losses.
        """
        return self._value(self._states(x), self._targets(x, y))

    def _value(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of checked states and targets, as a differentiable tensor."""
        logits = x @ self.output.T  # (..., c)
        if self.loss == "squared":
            return (logits - y).square().sum(-1) / 2
        return -(y * functional.log_softmax(logits, -1)).sum(-1)

    def prediction(self, x: Tensor) -> Tensor:
        """Return the model output of states: A X, or softmax(A X).

        Parameters
        ----------
        x : Tensor, shape (..., d)
            States.

        Returns
        -------
        Tensor, shape (..., c)
            Outputs.
        """
        return self._prediction(self._states(x))

    def _prediction(self, x: Tensor) -> Tensor:
        logits = x @ self.output.T
        return logits if self.loss == "squared" else torch.softmax(logits, -1)

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient A^T (prediction - y) of the loss, for y of sum one [1]_.

        Parameters
        ----------
        x : Tensor, shape (..., d)
            States.
        y : Tensor, shape (..., c)
            Targets.

        Returns
        -------
        Tensor, shape (..., d)
            Gradients with respect to the states.

        References
        ----------
        .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
           Architectures", arXiv:2505.13499, F.1.
        """
        return self._gradient(self._states(x), self._targets(x, y))

    def _gradient(self, x: Tensor, y: Tensor) -> Tensor:
        return (self._prediction(x) - y) @ self.output

    def terminal_state(self, x0: Tensor, y: Tensor) -> Tensor:
        """Return the states X(T) of the optimum, to rounding.

        Parameters
        ----------
        x0 : Tensor, shape (batch, d)
            States X(0).
        y : Tensor, shape (batch, c)
            Targets; for cross-entropy, >= 0 and of sum one to the rounding of their type.

        Returns
        -------
        Tensor, shape (batch, d)
            The roots of X + (T/lambda) grad G(X, y) = X(0).

        Raises
        ------
        InputError
            For lambda = 0, where it is not unique; for shapes that do not fit.

        Notes
        -----
        Newton's method is applied to (X - X(0))^2 / 2 + (T/lambda) G(X, y), which is strongly
        convex, with the Hessian I + (T/lambda) A^T (diag p - p p^T) A written out.
        """
        if self.lam == 0:
            raise InputError("lam is 0: the optimum is not unique; `minimise` finds one of them")
        x0, y = self._given(x0, y)
        scale = self.t_final / self.lam
        eye = torch.eye(x0.shape[1], dtype=x0.dtype, device=x0.device)

        def value(x: Tensor) -> Tensor:
            return (x - x0).square().sum(-1) / 2 + scale * self._value(x, y)

        def gradient(x: Tensor) -> Tensor:
            return x - x0 + scale * self._gradient(x, y)

        def hessian(x: Tensor) -> Tensor:
            return eye + scale * self._curvature(x)

        return by_newton(value, gradient, hessian, x0)

    def velocities(self, x0: Tensor, y: Tensor) -> Tensor:
        """Return the velocities of the optimum, all equal to -(1/lambda) grad G(X(T), y) [1]_.

        Parameters
        ----------
        x0 : Tensor, shape (batch, d)
            States X(0).
        y : Tensor, shape (batch, c)
            Targets; for cross-entropy, >= 0 and of sum one to the rounding of their type.

        Returns
        -------
        Tensor, shape (M, batch, d)
            Velocities.

        Raises
        ------
        InputError
            As `terminal_state`.

        References
        ----------
        .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
           Architectures", arXiv:2505.13499, eq. 56.
        """
        x0, y = self._given(x0, y)
        velocity = -self._gradient(self.terminal_state(x0, y), y) / self.lam
        return velocity.expand(self.steps, *x0.shape).clone()

    def objective(self, velocities: Tensor, x0: Tensor, y: Tensor) -> Tensor:
        """Return loss and weighted transport cost of every sample.

        Parameters
        ----------
        velocities : Tensor, shape (M, batch, d)
            Velocities f_m.
        x0 : Tensor, shape (batch, d)
            States X(0).
        y : Tensor, shape (batch, c)
            Targets; for cross-entropy, >= 0 and of sum one to the rounding of their type.

        Returns
        -------
        Tensor, shape (batch,)
            G(X_M, y) plus (lambda dt / 2) times the sum of the squared velocities.
        """
        x0, y = self._given(x0, y)
        velocities = self._fitting(velocities, x0)
        return self._objective(velocities, x0, y)

    def _objective(self, velocities: Tensor, x0: Tensor, y: Tensor) -> Tensor:
        reached = x0 + self.dt * velocities.sum(0)
        return self._value(reached, y) + self.lam * self._cost(velocities).sum(0)

    def minimise(
        self,
        x0: Tensor,
        y: Tensor,
        start: Tensor | int = 0,
        *,
        method: Method = "newton",
    ) -> Tensor:
        """Minimise over the velocities themselves, from any start, by derivatives from torch.

        It does not use `terminal_state`: their agreement confirms the optimum of F.5 of [1]_. With
        lambda = 0 it returns one of the optima, which depends on the start; cross-entropy then
        needs targets y > 0, or there is none.

        Parameters
        ----------
        x0 : Tensor, shape (batch, d)
            States X(0).
        y : Tensor, shape (batch, c)
            Targets; for cross-entropy, >= 0 and of sum one to the rounding of their type.
        start : Tensor or int, default 0
            Velocities (M, batch, d), or a seed of standard normal ones.
        method : {"newton", "lbfgs"}
            "newton" with all second derivatives, "lbfgs" with none.

        Returns
        -------
        Tensor, shape (M, batch, d)
            Velocities; gradients vanish to rounding for "newton", to 1e-8 or so for
            "lbfgs".

        Raises
        ------
        InputError
            For shapes that do not fit, or an unknown method.
        WflowError
            If the gradient does not vanish: for lambda = 0 there need not be an optimum.

        References
        ----------
        .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
           Architectures", arXiv:2505.13499, F.5.
        """
        check_choice("method", method, ("newton", "lbfgs"))
        x0, y = self._given(x0, y)
        begin = self._start(start, x0)
        if method == "lbfgs":
            velocities = by_lbfgs(lambda f: self._objective(f, x0, y).sum(), begin)
        else:
            velocities = self._by_newton(x0, y, begin)
        slope = torch.func.grad(lambda f: self._objective(f, x0, y).sum())(velocities)
        size = 1 + float(self._gradient(x0, y).abs().max())
        if not float(slope.abs().max()) <= 1e-6 * size:
            raise WflowError(
                f"the gradient stays at {float(slope.abs().max()):.3g}: "
                + (
                    "with lam = 0 there need not be an optimum (cross-entropy needs targets > 0)"
                    if self.lam == 0
                    else "take method='newton', or a start nearer to zero"
                )
            )
        return velocities

    def trajectory(self, x0: Tensor, velocities: Tensor) -> Trajectory:
        """Return the trajectory of given velocities, for `wflow.nets.diagnostics`.

        Parameters
        ----------
        x0 : Tensor, shape (batch, d)
            States X(0).
        velocities : Tensor, shape (M, batch, d)
            Velocities.

        Returns
        -------
        Trajectory
            States and costs, which are sums.
        """
        x0 = self._states(x0).detach()
        velocities = self._fitting(velocities, x0)
        moved = torch.cat([torch.zeros_like(x0)[None], self.dt * velocities.cumsum(0)])
        times = self.dt * torch.arange(self.steps + 1, dtype=torch.float64, device=x0.device)
        return Trajectory(x0 + moved, times, self._cost(velocities).mean(1), velocities)

    def stability(self, x1: Tensor, y1: Tensor, x2: Tensor, y2: Tensor) -> Stability:
        """Compare the optimal outputs of pairs (X(0), y) with the bound of theorem 2 of [1]_.

        Parameters
        ----------
        x1 : Tensor, shape (batch, d)
            States X(0) of the first of each pair.
        y1 : Tensor, shape (batch, c)
            Their targets.
        x2 : Tensor, shape (batch, d)
            States of the second.
        y2 : Tensor, shape (batch, c)
            Their targets.

        Returns
        -------
        Stability
            Changes of the outputs, and what the bound allows.

        Raises
        ------
        InputError
            Unless lambda > T L^2, and as `terminal_state`.

        References
        ----------
        .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
           Architectures", arXiv:2505.13499, Theorem 2.
        """
        return check_stability(
            self.prediction(self.terminal_state(x1, y1)),
            self.prediction(self.terminal_state(x2, y2)),
            x1.double(),
            x2.double(),
            y1.double(),
            y2.double(),
            t_final=self.t_final,
            L=self.L,
            lam=self.lam,
        )

    def _by_newton(self, x0: Tensor, y: Tensor, begin: Tensor) -> Tensor:
        """Apply Newton's method to the (M d) velocities of each sample, derivatives by torch."""
        steps, batch, d = begin.shape

        def one(f: Tensor, x: Tensor, target: Tensor) -> Tensor:
            """Return the objective of one sample, f (M d)."""
            parts = f.reshape(steps, d)
            reached = x + self.dt * parts.sum(0)
            cost = self.dt / 2 * parts.square().sum()
            return self._value(reached, target) + self.lam * cost

        value = torch.func.vmap(one)
        gradient = torch.func.vmap(torch.func.grad(one))
        hessian = torch.func.vmap(torch.func.hessian(one))
        optimum = by_newton(
            lambda f: value(f, x0, y),
            lambda f: gradient(f, x0, y),
            lambda f: hessian(f, x0, y),
            begin.transpose(0, 1).reshape(batch, steps * d),
            singular=self.lam == 0,
        )
        return optimum.reshape(batch, steps, d).transpose(0, 1).contiguous()

    def _curvature(self, x: Tensor) -> Tensor:
        """Return the Hessian of G: A^T A, or A^T (diag p - p p^T) A; (batch, d, d)."""
        if self.loss == "squared":
            return (self.output.T @ self.output).expand(len(x), -1, -1)
        p = self._prediction(x)  # (batch, c)
        mean = p @ self.output  # (batch, d)
        weighted = torch.einsum("bc,ci,cj->bij", p, self.output, self.output)
        return weighted - mean[:, :, None] * mean[:, None, :]

    def _cost(self, velocities: Tensor) -> Tensor:
        """Return (dt/2) |f_m|^2 of every step and sample, (M, batch)."""
        return self.dt / 2 * velocities.square().sum(-1)

    def _start(self, start: Tensor | int, x0: Tensor) -> Tensor:
        if isinstance(start, Tensor):
            return self._fitting(start.detach(), x0).clone()
        generator = torch.Generator().manual_seed(whole(start, "start", 0))
        drawn = torch.randn(self.steps, *x0.shape, generator=generator, dtype=torch.float64)
        return drawn.to(x0.device)

    def _fitting(self, velocities: Tensor, x0: Tensor) -> Tensor:
        tensor(velocities, "velocities", "real")
        if velocities.shape != (self.steps, *x0.shape):
            raise InputError(
                f"the velocities have shape {tuple(velocities.shape)}: expected "
                f"{(self.steps, *x0.shape)}, one per step and sample"
            )
        return velocities.double()

    def _states(self, x: Tensor) -> Tensor:
        """Return states (..., d) in double precision."""
        tensor(x, "the states", "number")
        d = self.output.shape[1]
        if not x.ndim or x.shape[-1] != d:
            raise InputError(f"the states have shape {tuple(x.shape)}: expected (..., {d})")
        return x.double()

    def _targets(self, x: Tensor, y: Tensor) -> Tensor:
        """Return targets (..., c) of states x (..., d) in double precision."""
        tensor(y, "y", "number")
        expected = (*x.shape[:-1], len(self.output))
        if y.shape != expected:
            raise InputError(f"y has shape {tuple(y.shape)}: expected {expected}, one per state")
        return y.double()

    def _given(self, x0: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        c, d = self.output.shape
        tensor(x0, "x0", "number")
        tensor(y, "y", "number")
        if x0.ndim != 2 or x0.shape[1] != d or y.shape != (len(x0), c):
            raise InputError(
                f"x0 has shape {tuple(x0.shape)} and y {tuple(y.shape)}: expected (batch, {d}) and "
                f"(batch, {c})"
            )
        if not len(x0) or not (x0.isfinite().all() and y.isfinite().all()):
            raise InputError("x0 and y must hold finite numbers, of one sample at least")
        unit = torch.finfo(y.dtype).eps if y.is_floating_point() else 0.0
        x0, y = x0.detach().double(), y.detach().double()
        if self.loss == "cross-entropy":
            total = y.sum(-1, keepdim=True)
            off = float((total - 1).abs().max())
            if not bool((y >= 0).all()) or off > sum_tolerance(unit, c):
                raise InputError("targets of cross-entropy are >= 0 and of sum one, row by row")
            y = y / total if off > 1e-12 else y
        return x0, y
