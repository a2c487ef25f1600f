"""`wflow.lipschitz`: the largest growth of the velocities of one cloud with its tokens."""

from __future__ import annotations  # the signature of `lipschitz` shows short names

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh_tridiagonal

from wflow._core.checks import FlowName, positive, shown, whole
from wflow._core.errors import InputError, WflowError
from wflow._core.reprs import ShortResult
from wflow.attention.cloud import effective_mobility, mobility
from wflow.attention.flows import Flow
from wflow.gradients.adjoint import differentiable_problem
from wflow.gradients.tangent import velocity_tangents
from wflow.heads.laws import QKV, Frozen
from wflow.heads.matrices import check_scores
from wflow.kernels.evaluate import velocity_adjoint
from wflow.particles.options import SaveAt
from wflow.sphere.geometry import project_unchecked

Array = NDArray[np.floating]

_ROUNDING = 1e-14  # of heads times mobilities, below which a derivative is rounding


@dataclass(frozen=True, eq=False, repr=False)
class Lipschitz(ShortResult):
    """Local Lipschitz constant of a layer, as `wflow.lipschitz` returns it.

    Attributes
    ----------
    constant : float
        Largest singular value of the derivative, per unit time.
    residual : float
        ``|J^T J u - L^2 u| / L^2`` with the constant L and the unit direction u: a singular value
        lies within this relative distance of L.
    direction : ndarray, shape (n, d)
        Direction u, tangential and of norm one, in which the velocities change the most.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x = wflow.tokens.uniform(n=10, d=3, seed=0)
    >>> wflow.lipschitz(x, np.eye(3)[None]).direction.shape
    (10, 3)
    """

    constant: float
    residual: float
    direction: Array


def lipschitz(
    x: ArrayLike,
    heads: ArrayLike | QKV,
    *,
    flow: FlowName | Flow = "softmax",
    causal: bool = False,
    tolerance: float = 1e-8,
    iterations: int = 300,
) -> Lipschitz:
    r"""Return the local Lipschitz constant of a layer of attention at given tokens.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    heads : array_like of shape (heads, d, d), or wflow.heads.QKV
        Interaction matrices, or general heads.
    flow : {"softmax", "unnormalised", "effective"}, default "softmax"
        How the heads move the tokens: a flow of wflow.
    causal : bool, default False
        Whether token i attends to tokens j <= i only.
    tolerance : float, default 1e-8
        Largest residual.
    iterations : int, default 300
        Largest number of steps, each of one product with J and one with its adjoint.

    Returns
    -------
    Lipschitz
        Constant, residual and direction.

    Raises
    ------
    InputError
        For tokens, heads and options that `wflow.velocity` does not take, and a custom flow.
    WflowError
        If the iteration does not reach the tolerance, or the derivative leaves the range of floats.

    See Also
    --------
    wflow.lyapunov : Growth along a run.
    wflow.stability.growth_constant : Bound from the norms of the heads.

    Notes
    -----
    With the derivative J of the velocities on the tangent spaces of all tokens

    .. math:: L = \max_{u} \frac{|J u|}{|u|} ,

    by a Lanczos iteration on :math:`J^T J`, from products with J and its adjoint: no matrix is
    formed. The direction of the flow does not matter. For "softmax",
    tied heads and :math:`a_h = |D_h|`, as in [1]_, which has no sphere,

    .. math::

        L \le \frac1H \sum_h a_h + a_h^2
            + a_h \sqrt{1 + a_h^2}\, \min(e^{a_h}, \sqrt n) .

    In the theory: :ref:`local Lipschitz constants <theory-lipschitz>`.

    References
    ----------
    .. [1] Castin, Ablin and Peyré, *How smooth is attention?*, ICML (2024).

    Examples
    --------
    One token turns with the difference of two eigenvalues.

    >>> import numpy as np, wflow
    >>> found = wflow.lipschitz([[1.0, 0.0, 0.0]], np.diag([3.0, 2.0, 1.0])[None])
    >>> round(found.constant, 6)
    2.0
    """
    if np.ndim(heads) == 0 and not isinstance(heads, QKV):  # type: ignore[arg-type]
        raise InputError(f"heads is {shown(heads)}: expected matrices (heads, d, d), or QKV")
    problem = differentiable_problem(
        x, Frozen(), heads=heads, t_final=1.0, dt=1.0, flow=flow, causal=causal,
        save=SaveAt(budget=False),
    )  # fmt: skip
    if problem.x0.ndim != 2:
        raise InputError(f"x has shape {problem.x0.shape}: expected one cloud (n, d)")
    tolerance, count = positive(tolerance, "tolerance"), whole(iterations, "iterations", least=1)
    check_scores(problem.scores, np.dtype(np.float64), "heads")
    cloud, D, values = problem.x0, problem.scores[None], problem.values
    flow_name = problem.flow.name
    how: dict[str, Any] = {"values": values, "flow": flow_name, "causal": causal}

    def forward(u: Array) -> Array:
        inner = project_unchecked(cloud, u.reshape(cloud.shape))
        return velocity_tangents(cloud[None], D, inner[None, None], **how)[0].ravel()

    def back(w: Array) -> Array:
        found = velocity_adjoint(cloud[None], D, w.reshape(1, *cloud.shape), **how)
        return project_unchecked(cloud, found.x[0]).ravel()

    drawn = np.random.default_rng(0).standard_normal(cloud.shape)
    start = project_unchecked(cloud, drawn).ravel()
    scale = float(np.linalg.norm(D) + (0.0 if values is None else np.linalg.norm(values)))
    if flow_name != "softmax":
        of_mobilities = mobility if flow_name == "unnormalised" else effective_mobility
        scale *= float(np.max(of_mobilities(cloud, problem.scores)))
    with np.errstate(over="ignore", invalid="ignore"):
        square, error, u = _largest(
            lambda u: back(forward(u)), start, tolerance, count, (_ROUNDING * scale) ** 2
        )
    if not error <= tolerance:
        raise WflowError(
            f"the residual of the largest singular value is {error:.2g} after {count} steps, above "
            f"the tolerance {tolerance:g}: give more iterations, or a larger tolerance"
        )
    return Lipschitz(math.sqrt(square), error, u.reshape(cloud.shape))


vars(lipschitz).update(Lipschitz=Lipschitz)


def _largest(
    product: Callable[[Array], Array], start: Array, tolerance: float, count: int, rounding: float
) -> tuple[float, float, Array]:
    """Return the largest eigenvalue of a positive operator, its relative residual, and its vector.

    Lanczos iteration with all vectors kept orthogonal; values below `rounding` count as exact.
    """
    basis = [start / np.linalg.norm(start)]
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(count):
        after = product(basis[-1])
        if not np.isfinite(after).all():
            raise WflowError("the derivative leaves the range of floats: take smaller heads")
        diagonal.append(float(after @ basis[-1]))
        Q = np.array(basis)
        for _ in range(2):
            after = after - Q.T @ (Q @ after)
        rest = float(np.linalg.norm(after))
        values, vectors = eigh_tridiagonal(diagonal, beside)
        value, error = max(float(values[-1]), 0.0), rest * abs(float(vectors[-1, -1]))
        relative = 0.0 if error <= rounding else error / value
        if relative <= tolerance:
            break
        basis.append(after / rest)
        beside.append(rest)
    return value, relative, vectors[:, -1] @ Q
