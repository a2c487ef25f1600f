"""`wflow.lyapunov`: exponents along runs, from tangent vectors that move with the tokens."""

from __future__ import annotations  # the signature of `lyapunov` shows short names

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.adaptive import Dopri5
from wflow._core.checks import Direction, FlowName, SchemeName, number, whole
from wflow._core.errors import AccuracyWarning, InputError, warn
from wflow._core.memory import check_memory
from wflow._core.reprs import ShortResult
from wflow._core.tableaux import Tableau
from wflow._core.threads import numba_threads
from wflow.attention.flows import Flow
from wflow.gradients.adjoint import Batch, differentiable_problem
from wflow.gradients.tangent import step_tangents
from wflow.heads.laws import QKV, HeadLaw
from wflow.kernels.evaluate import EXACT
from wflow.particles.options import Compute, SaveAt
from wflow.particles.problem import Problem
from wflow.sphere.geometry import project_unchecked

Array = NDArray[np.floating]

_BLOCKS = 20  # of time, for the errors
_TIMES = 100  # of the running averages
_RESOLVED = 0.2  # growth of a tangent vector in a step, as an exponent, that a scheme resolves
_BYTES = 2**26  # of tokens and heads of the paths that are computed together


@dataclass(frozen=True, eq=False, repr=False)
class Lyapunov(ShortResult):
    """Lyapunov exponents of runs, the largest first, as `wflow.lyapunov` returns them.

    Attributes
    ----------
    mean : ndarray, shape (k,)
        Means of the exponents over the paths, per unit time.
    interval : ndarray, shape (k, 2)
        Ends of 95 % intervals of the means, by Student's t over the paths; where there is one path,
        or all are equal, over the blocks of time.
    exponents : ndarray, shape (paths, k)
        Exponents of each path.
    errors : ndarray, shape (paths, k)
        Their standard errors, from the means over 20 blocks of time. They are right if a block is
        longer than the exponents remember.
    divergence : ndarray, shape (paths,)
        Divergence of the velocities, averaged over time. Without `kappa` it is the sum of all
        n (d - 1) exponents, up to the error of the scheme.
    times : ndarray, shape (times,)
        Times at which the running averages are kept.
    running : ndarray, shape (paths, times, k)
        Averages of the exponents up to these times: they show whether the exponents have converged.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> found = wflow.lyapunov(np.eye(3), wflow.heads.Frozen(), heads=1, t_final=1.0, dt=0.05)
    >>> found.exponents.shape, found.running.shape
    ((1, 1), (1, 20, 1))
    """

    _shown = ("mean", "interval")

    mean: Array
    interval: Array
    exponents: Array
    errors: Array
    divergence: Array
    times: Array
    running: Array


def lyapunov(
    x0: ArrayLike,
    law: HeadLaw,
    *,
    exponents: int = 1,
    transient: float = 0.0,
    heads: int | ArrayLike | QKV | None = None,
    t_final: float,
    dt: float | None = None,
    paths: int = 1,
    seed: int = 0,
    flow: FlowName | Flow = "softmax",
    direction: Direction = "descent",
    scheme: SchemeName | Dopri5 | Tableau = "euler",
    kappa: float = 0.0,
    causal: bool = False,
    compute: Compute = Compute(),
) -> Lyapunov:
    r"""Return the largest Lyapunov exponents of the tokens: rates at which nearby runs separate.

    Parameters
    ----------
    x0 : array_like, shape (n, d) or (paths, n, d)
        Initial tokens, as in `wflow.solve`.
    law : wflow.heads.HeadLaw
        How the heads move.
    exponents : int, default 1
        Number k of exponents, at most n (d - 1).
    transient : float, default 0.0
        Time at the start that the averages leave out, while the tangent vectors already move.
    heads : int, array_like of shape (heads, d, d), or wflow.heads.QKV, optional
        Number of heads, or initial matrices, as in `wflow.solve`.
    t_final : float
        End time.
    dt : float, optional
        Time step, as in `wflow.solve`.
    paths : int, default 1
        Number of Monte Carlo paths.
    seed : int, default 0
        Key of all random numbers: those of `wflow.solve`.
    flow : {"softmax", "unnormalised", "effective"}, default "softmax"
        How the heads move the tokens: a flow of wflow.
    direction : {"descent", "ascent"}, default "descent"
        Whether the tokens lower the energy or raise it.
    scheme : str, wflow.Dopri5 or wflow.Tableau, default "euler"
        Time stepping, as in `wflow.solve`; the steps of "dopri5" are those of the run.
    kappa : float, default 0.0
        Diffusion of the tokens per unit time.
    causal : bool, default False
        Whether token i attends to tokens j <= i only.
    compute : wflow.Compute, default Compute()
        Threads and paths at a time. Sums are exact and in double precision.

    Returns
    -------
    Lyapunov
        Exponents with errors, running averages and the divergence of the flow.

    Raises
    ------
    InputError
        For an argument that `wflow.solve` or `wflow.gradient` does not take, more exponents than
        n (d - 1), and fewer than 20 steps after the transient.
    BlowUpError
        If a path leaves the finite numbers.

    Warns
    -----
    AccuracyWarning
        For exponents beyond 0.2/dt, which steps of dt do not resolve.

    See Also
    --------
    wflow.lipschitz : Largest growth of a velocity at one time.
    wflow.stability.exponent : Bound from the norms of the heads.

    Notes
    -----
    Tangent vectors are moved by the exact derivative of each step and made orthonormal after it
    [1]_; with the diagonals R of these QR decompositions and heads and noise that are the same for
    all vectors

    .. math:: \lambda_j = \frac{1}{T} \sum_s \log R^{(s)}_{jj} .

    These are the exponents of the computed map: those of the flow up to the error of the scheme,
    for "euler" :math:`\log(1 + \lambda\,dt)/dt` at rest.

    In the theory: :ref:`Lyapunov exponents <theory-lyapunov>`.

    References
    ----------
    .. [1] Benettin, Galgani, Giorgilli and Strelcyn, *Lyapunov characteristic exponents for smooth
       dynamical systems and for Hamiltonian systems*, Meccanica 15 (1980).

    Examples
    --------
    One token and a fixed matrix: differences of eigenvalues.

    >>> import numpy as np, wflow
    >>> found = wflow.lyapunov(
    ...     [[1.0, 0.0, 0.0]], wflow.heads.Frozen(), heads=np.diag([3.0, 2.0, 1.0])[None],
    ...     exponents=2, t_final=30.0, dt=0.1, scheme="rk4", direction="ascent", transient=20.0,
    ... )
    >>> found.mean.round(3)
    array([-1., -2.])
    """
    problem = differentiable_problem(
        x0, law, heads=heads, t_final=t_final, dt=dt, paths=paths, seed=seed, flow=flow,
        direction=direction, scheme=scheme, kappa=kappa, causal=causal,
        save=SaveAt(budget=False), compute=compute,
    )  # fmt: skip
    if problem.sums.method == "fast":
        raise InputError("tangent vectors take exact sums: give method='exact'")
    n, d = problem.x0.shape[-2:]
    count = whole(exponents, "exponents")
    if not 1 <= count <= n * (d - 1):
        raise InputError(
            f"exponents is {count}: {n} tokens in {d} dimensions have n (d - 1) = {n * (d - 1)}"
        )
    marks = _marks(problem, number(transient, "transient"))
    least = min(problem.paths, max(1, _BYTES // _path_bytes(problem, count)))
    needed = 8 * problem.paths * len(marks) * count + least * _path_bytes(problem, count)
    check_memory(needed, "the exponents", "take fewer of them, or fewer tokens")
    save = replace(problem.save, snapshots=tuple(marks * problem.dt))
    problem = replace(problem, save=save, sums=EXACT)
    logs, divergence = _grown(problem, count)
    largest = np.abs(logs[:, -1]).max() / (marks[-1] - marks[0])  # in a step
    if problem.control is None and largest > _RESOLVED:
        warn(
            f"exponents reach {largest / problem.dt:.3g}, which steps dt = {problem.dt:g} do not "
            f"resolve: take dt below {_RESOLVED * problem.dt / largest:.2g}, or fewer exponents",
            AccuracyWarning,
        )
    return _result(logs, divergence, marks * problem.dt)


vars(lyapunov).update(Lyapunov=Lyapunov)


def _marks(problem: Problem, transient: float) -> NDArray[np.int64]:
    """Return the steps at which growth is noted: from the end of the transient to the last."""
    first = (
        int(np.rint(transient / problem.dt)) if 0 <= transient < problem.steps * problem.dt else -1
    )
    if first < 0 or problem.steps - first < _BLOCKS:
        raise InputError(
            f"transient is {transient:g} in a run of {problem.steps} steps of {problem.dt:g}: "
            f"expected a time >= 0 after which {_BLOCKS} steps are left for averages"
        )
    count = min(_TIMES, problem.steps - first)
    return np.rint(np.linspace(first, problem.steps, count + 1)).astype(np.int64)


def _path_bytes(problem: Problem, count: int) -> int:
    """Return the bytes that a step of a path takes, with its tangent vectors."""
    n, d = problem.x0.shape[-2:]
    steps = problem.scheme.stages * (n * d + problem.heads * d * d)
    return 8 * (steps + count * n * (2 * problem.heads * (d + 1) + d * (d + 5)))


def _grown(problem: Problem, count: int) -> tuple[Array, Array]:
    """Return logarithms of the growth (paths, marks, k), and the mean divergence (paths,).

    Both start at the first mark.
    """
    n, d = problem.x0.shape[-2:]
    most = max(1, _BYTES // _path_bytes(problem, count))
    if problem.control is not None:
        most = 1  # paths have steps of their own
    elif problem.compute.batch is not None:
        most = min(most, problem.compute.batch)
    marks = problem.snapshot_steps
    logs: Array = np.zeros((problem.paths, len(marks), count))
    divergence: Array = np.zeros(problem.paths)
    given = np.random.default_rng(0).standard_normal((count, n, d))
    with numba_threads(problem.compute.threads, "compute.threads"):
        for first in range(0, problem.paths, most):
            batch = Batch(problem, first, min(first + most, problem.paths))
            rows, marked = batch.rows, batch.sink.places
            x0 = batch.solver.x
            tangents = _orthonormal(project_unchecked(x0[:, None], given))[0]
            total, begun = np.zeros((len(x0), count)), marks[0] == 0
            for k, record in enumerate(batch.records(), 1):
                tangents, rate = step_tangents(batch.solver, record, tangents)
                tangents, growth = _orthonormal(tangents)
                if begun:
                    total += growth
                    divergence[rows] += record.dt * rate
                if k in marked:
                    logs[rows, marked[k]], begun = total, True
    return logs, divergence / ((marks[-1] - marks[0]) * problem.dt)


def _orthonormal(tangents: Array) -> tuple[Array, Array]:
    """Return orthonormal bases of tangents (paths, k, n, d), and the logarithms of their growth."""
    Q, R = np.linalg.qr(tangents.reshape(*tangents.shape[:2], -1).swapaxes(1, 2))
    with np.errstate(divide="ignore"):
        growth = np.log(np.abs(np.diagonal(R, axis1=1, axis2=2)))
    return Q.swapaxes(1, 2).reshape(tangents.shape), growth


def _result(logs: Array, divergence: Array, times: Array) -> Lyapunov:
    """Return the averages of growth that is summed up to the times."""
    from scipy.special import stdtrit  # here, so that `import wflow` stays light

    with np.errstate(invalid="ignore"):  # of vectors that a step takes to zero: -inf
        running = (logs[:, 1:] - logs[:, :1]) / (times[1:] - times[0])[:, None]
        ends = np.rint(np.linspace(0, len(times) - 1, _BLOCKS + 1)).astype(int)
        blocks = np.diff(logs[:, ends], axis=1) / np.diff(times[ends])[:, None]
        found = running[:, -1]
        samples = found if len(found) > 1 and np.ptp(found, axis=0).any() else blocks[0]
        half = float(stdtrit(len(samples) - 1, 0.975)) * _standard_error(samples, 0)
        errors = _standard_error(blocks, 1)
    mean = found.mean(axis=0)
    interval = np.stack([mean - half, mean + half], axis=1)
    return Lyapunov(mean, interval, found, errors, divergence, times[1:], running)


def _standard_error(samples: Array, axis: int) -> Array:
    return np.asarray(samples.std(axis=axis, ddof=1) / np.sqrt(samples.shape[axis]))
