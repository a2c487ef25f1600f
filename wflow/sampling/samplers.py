r"""Samplers of the density exp(-beta (f + psi)): `brwp`, `myula` and `ula`.

All of them move tokens by the gradient of f and by what the sampler makes of the prior psi. They
share one driver (`wflow.runs.driver`): clouds (n, d) or (paths, n, d), records in a run file, a
state from which a killed run continues to the bit. A sampler is a `_Method`: how a cloud moves
without noise, how strong the noise is, and its settings in the run file.
"""

from __future__ import annotations  # the signatures show short names

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import (
    check_choice,
    function,
    number,
    positive,
    read_only,
    reading,
    reals,
    returned,
    shown,
    whole,
    wholes,
)
from wflow._core.errors import AccuracyWarning, BlowUpError, InputError, warn
from wflow._core.fingerprint import NotComparable, fingerprint
from wflow._core.memory import check_memory
from wflow._core.rng import CounterNormals
from wflow._version import __version__
from wflow.particles.problem import array_config
from wflow.runs.driver import IfExists, Paths, Plan, Runnable, Solver, State, place_of, run
from wflow.runs.schema import SampleLayout
from wflow.runs.store import Store
from wflow.sampling.priors import Prior, as_prior, too_long, warn_of_absorption
from wflow.sampling.proximal import Kernel, attention_mean

if TYPE_CHECKING:
    import xarray

__all__ = ["brwp", "myula", "to_arviz", "ula"]

Array = NDArray[np.float64]
Gradient = Callable[[Array], ArrayLike]
Diagnostics = dict[str, Array]  # each (paths,)

_LONELY = 2.0  # effective tokens that a token attends to, below which there is no interaction
_FAST = 30.0  # moves of a step in units of its noise; below 15 in stable steps, h L <= 1.99
_KEPT, _KEPT_BYTES = 100, 2**26  # most snapshots by default, and bytes of their tokens
_LARGEST = 1 / float(np.finfo(np.float64).eps)  # coordinates in which a step of one is rounding


# The samplers
# ------------


def brwp(
    x0: ArrayLike,
    grad: Gradient,
    prior: Prior,
    *,
    h: float,
    beta: float = 1.0,
    steps: int,
    kernel: Kernel = "exact",
    save_every: int = 1,
    snapshots: Sequence[int] | None = None,
    out: str | Path | None = None,
    if_exists: IfExists = "error",
    progress: bool = False,
    threads: int | None = None,
    checkpoint_every: float = 15.0,
) -> xarray.Dataset:
    r"""Sample by the backward regularised Wasserstein proximal scheme with splitting.

    The tokens are interacting particles without noise: the score of their law, which Langevin
    dynamics replaces by noise, comes from the attention of the tokens to each other.

    Parameters
    ----------
    x0 : array_like, shape (n, d) or (paths, n, d)
        Initial tokens: one cloud, or several that do not interact. They should be spread at least
        as widely as the target. The sampler draws no random numbers.
    grad : callable
        Gradient of f: an array (m, d) to an array (m, d), row by row.
    prior : wflow.sampling.Prior
        The prior psi, such as ``L1(lam)`` or ``NoPrior()``.
    h : float
        Step.
    beta : float, default 1.0
        Inverse temperature.
    steps : int
        Number of steps; each evaluates the gradient once for every token.
    kernel : {"exact", "laplace", "published"}, default "exact"
        Interaction of the tokens, as in `wflow.sampling.interaction`.
    save_every : int, default 1
        Steps between the times at which diagnostics are recorded; the end is always one.
    snapshots : sequence of int, optional
        Numbers of the steps, from 0 to `steps`, at whose start the tokens are kept. By default the
        end and up to 99 before it, evenly spaced, as many as fit into 64 MiB; ``[steps]`` is the
        end alone.
    out : str or pathlib.Path, optional
        Run file to write, which can be resumed. Without it the result is kept in memory.
    if_exists : {"error", "overwrite", "resume"}, default "error"
        What happens where `out` exists already, as in `wflow.solve`.
    progress : bool, default False
        Whether to show a bar with the time left.
    threads : int, optional
        Threads of the compiled functions. None means all. The result does not depend on it.
    checkpoint_every : float, default 15.0
        Seconds between the states from which a killed run resumes.

    Returns
    -------
    xarray.Dataset
        ``samples`` (path, snapshot, token, axis), ``initial_tokens``, and over ``time`` = k h:
        ``sample_mean`` and ``sample_variance`` (path, time, axis); ``speed_sq``, the mean squared
        velocity; ``ess`` and ``ess_min``, mean and minimum over the tokens of the effective number
        of tokens they attend to; ``absorbed``, the share of coordinates that S sets to zero.
        Lazy where `out` is given.

    Raises
    ------
    InputError
        For an argument that cannot be used, and a gradient that has another shape than its
        argument, or is not finite where the sampler begins.
    BlowUpError
        Where, in all paths, tokens or their gradients leave the range of numbers, or tokens become
        so large that a step is lost in their rounding; its `score` is the largest coordinate before
        the step.
    Interrupted
        A KeyboardInterrupt, on SIGINT or SIGTERM, after the step in progress, if `out` is given.

    Warns
    -----
    UserWarning
        For :math:`\beta\lambda^2 h > 0.05` (L1 norm), and where at the end tokens attend to
        themselves alone, or move in a step by more than the cloud has moved and spread.

    See Also
    --------
    wflow.sampling.myula, wflow.sampling.ula : Langevin samplers of the same densities.
    wflow.sampling.attention_mean : The mean M.

    Notes
    -----
    The target has the density :math:`\rho^*\propto\exp(-\beta(f+\psi))`. One step is

    .. math::

       y_i = x_i - h\,\nabla f(x_i), \qquad
       x_i^+ = y_i + \tfrac12\bigl(S(y_i) - M(y_i; \{y_j\})\bigr),

    where :math:`S = \operatorname{prox}_{h\psi}` and M is the mean of the attention. It is a step
    of the probability flow
    :math:`\dot x = -\nabla(f + \psi) - \beta^{-1}\nabla\log\rho` with the score of the cloud after
    a regularised Wasserstein proximal step of :math:`\psi` [1]_, [2]_. Above what n tokens can
    resolve, the bias is of first order in h for smooth :math:`\psi`; for the L1 norm that of the
    moments is, and distances fall more slowly. In a cloud within :math:`|x_i| \le \lambda h` all of
    S vanishes and the cloud contracts, its spread proportional to :math:`k^{-1/2}` after k steps:
    keep :math:`\beta\lambda^2 h \le 0.05`. A token attends to itself as well: with an ``ess`` of a
    few, for few tokens, many dimensions or a small h, the cloud has too small a variance, and with
    one of 1 it contracts to the mode. Leaving out the own token is no remedy: tokens at the rim,
    which see only those inside, then move away at the rate 3/2 a step.

    References
    ----------
    .. [1] Han, Osher and Li, *Splitting regularized Wasserstein proximal algorithms for nonsmooth
       sampling problems*, arXiv:2502.16773.
    .. [2] Han, Osher and Li, *Sparse transformer architectures via regularized Wasserstein proximal
       operator with L1 prior*, eq. 8, 14 and 22, with the interaction corrected.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import sampling
    >>> x0 = 2.0 * np.random.default_rng(0).standard_normal((100, 1))
    >>> run = sampling.brwp(x0, lambda x: x, sampling.NoPrior(), h=0.1, steps=100, threads=1)
    >>> bool(abs(run.sample_variance[0, -1, 0] - 1) < 0.2)
    True
    """
    check_choice("kernel", kernel, get_args(Kernel))
    h, beta = positive(h, "h"), positive(beta, "beta")
    checked = as_prior(prior)
    if too_long(checked, h=h, beta=beta):
        warn_of_absorption(checked, h=h, beta=beta)

    def move(x: Array, gradient: Array) -> tuple[Array, Diagnostics]:
        y = x - h * gradient
        if not np.isfinite(y).all():
            return y, {}
        attention = attention_mean(y, y, h=h, beta=beta, prior=prior, kernel=kernel)
        slope = checked.prox_derivative(y, h)
        if slope.ndim > y.ndim:
            slope = np.diagonal(slope, axis1=-2, axis2=-1)
        return y + 0.5 * (checked.prox(y, h) - attention.mean), {
            "ess": attention.ess.mean(axis=1),
            "ess_min": attention.ess.min(axis=1),
            "absorbed": np.mean(slope == 0, axis=(1, 2)),
        }

    method = _Method("brwp", h, beta, prior, {"kernel": kernel}, move, attention=True)
    problem = _sampler_run(
        method, x0, grad, steps, 0, save_every, snapshots, threads, checkpoint_every
    )
    return _run(problem, out, if_exists, progress)


def myula(
    x0: ArrayLike,
    grad: Gradient,
    prior: Prior,
    *,
    h: float,
    beta: float = 1.0,
    steps: int,
    smoothing: float | None = None,
    seed: int = 0,
    save_every: int = 1,
    snapshots: Sequence[int] | None = None,
    out: str | Path | None = None,
    if_exists: IfExists = "error",
    progress: bool = False,
    checkpoint_every: float = 15.0,
) -> xarray.Dataset:
    r"""Sample by the Moreau-Yosida regularised unadjusted Langevin algorithm.

    Every token is a separate Markov chain.

    Parameters
    ----------
    x0 : array_like, shape (n, d) or (paths, n, d)
        Initial tokens: one cloud, or several with independent noise.
    grad : callable
        Gradient of f: an array (m, d) to an array (m, d), row by row.
    prior : wflow.sampling.Prior
        The prior psi, such as ``L1(lam)``.
    h : float
        Step.
    beta : float, default 1.0
        Inverse temperature.
    steps : int
        Number of steps; each evaluates the gradient once for every token.
    smoothing : float, optional
        Parameter gamma of the envelope of psi, the step h by default. The bias that it causes is
        of its order; a gamma below h/2 makes the scheme unstable.
    seed : int, default 0
        Key of all random numbers, together with the numbers of path and step.
    save_every : int, default 1
        Steps between the times at which diagnostics are recorded; the end is always one.
    snapshots : sequence of int, optional
        Numbers of the steps, from 0 to `steps`, at whose start the tokens are kept. By default the
        end and up to 99 before it, evenly spaced, as many as fit into 64 MiB; ``[steps]`` is the
        end alone.
    out : str or pathlib.Path, optional
        Run file to write, which can be resumed. Without it the result is kept in memory.
    if_exists : {"error", "overwrite", "resume"}, default "error"
        What happens where `out` exists already, as in `wflow.solve`.
    progress : bool, default False
        Whether to show a bar with the time left.
    checkpoint_every : float, default 15.0
        Seconds between the states from which a killed run resumes.

    Returns
    -------
    xarray.Dataset
        ``samples`` (path, snapshot, token, axis), ``initial_tokens``, and over ``time`` = k h:
        ``sample_mean`` and ``sample_variance`` (path, time, axis), ``speed_sq``, the mean squared
        drift. Lazy where `out` is given.

    Raises
    ------
    InputError
        For an argument that cannot be used, a `smoothing` below h/2, and a gradient that has
        another shape than its argument, or is not finite where the sampler begins.
    BlowUpError
        Where, in all paths, tokens or their gradients leave the range of numbers, or tokens become
        so large that the noise of a step is lost in their rounding.
    Interrupted
        A KeyboardInterrupt, on SIGINT or SIGTERM, after the step in progress, if `out` is given.

    Warns
    -----
    UserWarning
        Where the step is too large for the target: at the end tokens move in a step by more than
        the cloud has moved and spread since the start.

    See Also
    --------
    wflow.sampling.brwp : Interacting tokens in place of noise.

    Notes
    -----
    With the proximal map of :math:`\gamma\psi` and standard normal :math:`\xi` [1]_,

    .. math::

       x^+ = x - h\,\nabla f(x) - \frac h\gamma\bigl(x - \operatorname{prox}_{\gamma\psi}(x)\bigr)
       + \sqrt{2h/\beta}\;\xi,

    whose stationary law tends, with h and :math:`\gamma`, to the density
    :math:`\propto\exp(-\beta(f+\psi))`.

    References
    ----------
    .. [1] Durmus, Moulines and Pereyra, *Efficient Bayesian computation by proximal Markov chain
       Monte Carlo: when Langevin meets Moreau*, SIAM J. Imaging Sci. 11 (2018), eq. 9.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import sampling
    >>> run = sampling.myula(np.zeros((500, 1)), lambda x: x, sampling.L1(1.0), h=0.1, steps=50)
    >>> bool(0.4 < run.sample_variance[0, -1, 0] < 0.6)
    True
    """
    h, beta = positive(h, "h"), positive(beta, "beta")
    gamma = h if smoothing is None else positive(smoothing, "smoothing")
    checked = as_prior(prior)
    if 2 * gamma < h:
        raise InputError(f"smoothing is {gamma:g}: expected at least half the step h = {h:g}")

    def move(x: Array, gradient: Array) -> tuple[Array, Diagnostics]:
        return x - h * gradient - h / gamma * (x - checked.prox(x, gamma)), {}

    method = _Method("myula", h, beta, prior, {"smoothing": gamma}, move)
    problem = _sampler_run(
        method, x0, grad, steps, seed, save_every, snapshots, None, checkpoint_every
    )
    return _run(problem, out, if_exists, progress)


def ula(
    x0: ArrayLike,
    grad: Gradient,
    *,
    h: float,
    beta: float = 1.0,
    steps: int,
    seed: int = 0,
    save_every: int = 1,
    snapshots: Sequence[int] | None = None,
    out: str | Path | None = None,
    if_exists: IfExists = "error",
    progress: bool = False,
    checkpoint_every: float = 15.0,
) -> xarray.Dataset:
    r"""Sample by the unadjusted Langevin algorithm.

    Every token is a separate Markov chain.

    Parameters
    ----------
    x0 : array_like, shape (n, d) or (paths, n, d)
        Initial tokens: one cloud, or several with independent noise.
    grad : callable
        Gradient, or a subgradient, of the whole potential V: an array (m, d) to an array (m, d),
        row by row.
    h : float
        Step.
    beta : float, default 1.0
        Inverse temperature.
    steps : int
        Number of steps; each evaluates the gradient once for every token.
    seed : int, default 0
        Key of all random numbers, together with the numbers of path and step.
    save_every : int, default 1
        Steps between the times at which diagnostics are recorded; the end is always one.
    snapshots : sequence of int, optional
        Numbers of the steps, from 0 to `steps`, at whose start the tokens are kept. By default the
        end and up to 99 before it, evenly spaced, as many as fit into 64 MiB; ``[steps]`` is the
        end alone.
    out : str or pathlib.Path, optional
        Run file to write, which can be resumed. Without it the result is kept in memory.
    if_exists : {"error", "overwrite", "resume"}, default "error"
        What happens where `out` exists already, as in `wflow.solve`.
    progress : bool, default False
        Whether to show a bar with the time left.
    checkpoint_every : float, default 15.0
        Seconds between the states from which a killed run resumes.

    Returns
    -------
    xarray.Dataset
        As from `wflow.sampling.myula`.

    Raises
    ------
    InputError
        For an argument that cannot be used, and a gradient that has another shape than its
        argument, or is not finite where the sampler begins.
    BlowUpError
        Where, in all paths, tokens or their gradients leave the range of numbers, or tokens become
        so large that the noise of a step is lost in their rounding.
    Interrupted
        A KeyboardInterrupt, on SIGINT or SIGTERM, after the step in progress, if `out` is given.

    Warns
    -----
    UserWarning
        Where the step is too large for the target: at the end tokens move in a step by more than
        the cloud has moved and spread since the start.

    See Also
    --------
    wflow.sampling.myula : For potentials with a nonsmooth part.

    Notes
    -----
    With standard normal :math:`\xi` [1]_,

    .. math:: x^+ = x - h\,\nabla V(x) + \sqrt{2h/\beta}\;\xi,

    whose stationary law tends to the density :math:`\propto\exp(-\beta V)`, with an error of
    first order in h.

    References
    ----------
    .. [1] Roberts and Tweedie, *Exponential convergence of Langevin distributions and their
       discrete approximations*, Bernoulli 2 (1996).

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import sampling
    >>> run = sampling.ula(np.zeros((500, 1)), lambda x: x, h=0.1, steps=50, save_every=10)
    >>> run.sizes["time"], bool(0.8 < run.sample_variance[0, -1, 0] < 1.3)
    (6, True)
    """
    h, beta = positive(h, "h"), positive(beta, "beta")

    def move(x: Array, gradient: Array) -> tuple[Array, Diagnostics]:
        return x - h * gradient, {}

    method = _Method("ula", h, beta, None, {}, move)
    problem = _sampler_run(
        method, x0, grad, steps, seed, save_every, snapshots, None, checkpoint_every
    )
    return _run(problem, out, if_exists, progress)


# What they share
# ---------------


@dataclass(frozen=True, eq=False)
class _Method:
    """Method of a sampler.

    move : x and its gradients, both (paths, n, d), to x after the step without noise, diagnostics
    settings : what its run file names beside h, beta and the prior
    attention : whether the tokens interact, in place of noise
    """

    name: str
    h: float
    beta: float
    prior: Prior | None
    settings: dict[str, Any]
    move: Callable[[Array, Array], tuple[Array, Diagnostics]]
    attention: bool = False


@dataclass(frozen=True, eq=False)
class SamplerRun(Runnable):
    """Run of a sampler, with checked arguments.

    x0 : (n, d) or (paths, n, d)
    records, snapshots : numbers of steps at whose start diagnostics and tokens are kept
    """

    method: _Method
    x0: Array
    grad: Gradient
    steps: int
    seed: int
    every: int
    records: NDArray[np.int64]
    snapshots: NDArray[np.int64]
    threads: int | None
    checkpoint_every: float

    @property
    def plan(self) -> Plan:
        """Sizes and options of the run for the driver."""
        return Plan(
            self.steps, self.paths, self.seed, self.paths, self.method.name, self.threads,
            self.checkpoint_every,
        )  # fmt: skip

    def start(self, store: Store) -> None:
        """Write the initial tokens."""
        store.write("initial_tokens", (), self.x0)

    def solver(self, first: int, last: int, paths: Paths, total: Array | None) -> SamplerBatch:
        """Return the solver of some paths, with their tokens at time 0."""
        return SamplerBatch(self, paths)

    @property
    def paths(self) -> int:
        return len(self.x0) if self.x0.ndim == 3 else 1

    def layout(self) -> SampleLayout:
        """Return the sizes of the run's file."""
        return SampleLayout(
            paths=self.paths,
            times=self.records * self.method.h,
            snapshots=self.snapshots * self.method.h,
            tokens=self.x0.shape[-2],
            axes=self.x0.shape[-1],
            attention=self.method.attention,
            per_path_x0=self.x0.ndim == 3,
        )

    def config(self) -> dict[str, Any]:
        """Return the run as JSON; x0, which the file holds, is named by its digest."""
        return {
            "sampler": self.method.name,
            "x0": array_config(self.x0),
            **self.parts(),
            "h": self.method.h,
            "beta": self.method.beta,
            "steps": self.steps,
            **self.method.settings,
            "seed": self.seed,
            "save": {"every": self.every, "snapshots": self.snapshots.tolist()},
        }

    def parts(self) -> dict[str, Any]:
        """Return the parts of the configuration that may be custom."""
        prior = self.method.prior
        described = {"grad": _described(self.grad)}
        return described | ({} if prior is None else {"prior": _described(prior)})

    def gradient(self, x: Array, step: int) -> Array:
        """Return gradients (paths, n, d), checked for their shape, and at step 0 to be finite."""
        name = getattr(self.grad, "__qualname__", type(self.grad).__name__)
        rows = x.reshape(-1, x.shape[-1])
        with reading("gradient", name, "the tokens"):
            found = self.grad(read_only(rows))
        given = returned(found, rows.shape, "grad, of tokens in rows,", finite=False)
        if step == 0 and not np.isfinite(given).all():
            row = int(np.argmin(np.isfinite(given).all(axis=1)))
            raise InputError(
                f"grad is {given[row][:4]} at the initial token {row % x.shape[-2]}, "
                f"{rows[row][:4]} ...: expected finite numbers; check grad, or begin elsewhere"
            )
        return given.reshape(x.shape)


def _described(part: Any) -> dict[str, Any]:
    """Return the entry of a prior or a gradient in a configuration.

    A dataclass of wflow is known by its fields, anything else by its fingerprint.
    """
    name = getattr(part, "__qualname__", type(part).__name__).rpartition("<locals>.")[2]
    if type(part).__module__.startswith("wflow.") and is_dataclass(part):
        values = {field.name: getattr(part, field.name) for field in fields(part)}
        if all(isinstance(value, int | float | str | bool) for value in values.values()):
            return {"name": name, **values}
    try:
        return {"name": name, "fingerprint": fingerprint(part)}
    except NotComparable as reason:
        return {"name": name, "fingerprint": None, "not_comparable": str(reason)}


def _sampler_run(
    method: _Method,
    x0: ArrayLike,
    grad: Gradient,
    steps: int,
    seed: int,
    save_every: int,
    snapshots: Sequence[int] | None,
    threads: int | None,
    checkpoint_every: float,
) -> SamplerRun:
    start = reals(x0, "x0")
    if start.ndim not in (2, 3) or 0 in start.shape:
        raise InputError(
            f"x0 has shape {start.shape}: expected (n, d), or (paths, n, d), of one token or more"
        )
    function(grad, "grad", "tokens (m, d)")
    count, every = whole(steps, "steps"), whole(save_every, "save_every")
    if snapshots is None:
        kept = _default_snapshots(count, start.nbytes)
    else:
        kept = np.unique(wholes(snapshots, "snapshots"))
    if kept.size and kept[-1] > count:
        raise InputError(f"snapshots hold step {kept[-1]}: expected numbers from 0 to {count}")
    check_memory(32.0 * (count // every), f"{count // every + 2} record times", "raise save_every")
    records = np.unique(np.append(np.arange(0, count + 1, every), count))
    key = whole(seed, "seed", 0)
    seconds = number(checkpoint_every, "checkpoint_every", least=0.0)
    return SamplerRun(method, start, grad, count, key, every, records, kept, threads, seconds)


def _default_snapshots(steps: int, size: int) -> NDArray[np.int64]:
    """Return the numbers of the last step and of those before it that are kept by default.

    size : bytes of the tokens of one snapshot
    """
    most = int(np.clip(_KEPT_BYTES // size, 1, _KEPT))
    return np.arange(steps, -1, -math.ceil(steps / most), dtype=np.int64)[:most][::-1].copy()


def _warn_lonely(run: xarray.Dataset) -> None:
    """Warn of a finished run whose tokens attend to themselves alone."""
    ess = float(run["ess"][:, -1].min()) if "ess" in run else math.inf
    if ess < _LONELY:
        warn(
            f"at the end a token attends to {ess:.2g} tokens (ess), mostly to itself: there is no "
            "interaction, and the cloud lacks the spread of the target; take more tokens or a "
            "larger h, or sample by myula",
            AccuracyWarning,
        )


def _warn_diverging(problem: SamplerRun, run: xarray.Dataset) -> None:
    """Warn of a finished run whose tokens move ever faster than noise and spread explain.

    The last two tell a step that is too large, above 2/L, from tokens on the way out of a saddle.
    """
    h, beta = problem.method.h, problem.method.beta
    moves = h * np.sqrt(run["speed_sq"][:, [0, -1]].values)
    path = int(moves[:, 1].argmax())
    noise = math.sqrt(2 * h / beta * run.sizes["axis"])
    mean, variance = (run[name][path].values for name in ("sample_mean", "sample_variance"))
    with np.errstate(over="ignore"):
        gone = math.sqrt(float(((mean[-1] - mean[0]) ** 2 + variance[-1]).sum()))
    if moves[path, 1] > max(_FAST * noise, moves[path, 0], gone):
        warn(
            f"the step h = {h:g} diverges: at the end a token of path {path} moves by "
            f"{moves[path, 1]:.3g} in a step, more than at the start ({moves[path, 0]:.3g}) and "
            f"than the noise of a step ({noise:.3g}); take a smaller h, below 2/L for a gradient "
            "of Lipschitz constant L",
            AccuracyWarning,
        )


def _run(
    problem: SamplerRun, out: str | Path | None, if_exists: IfExists, progress: bool
) -> xarray.Dataset:
    """Compute a run in memory or in a file, and warn of its defects."""
    found = run(problem, out, if_exists, progress)
    _warn_lonely(found)
    _warn_diverging(problem, found)
    return found


class SamplerBatch(Solver):
    """The tokens of some paths at one time.

    What is recorded of a step is the tokens at its start and how it moves them, so that the last
    step is computed and not taken.
    """

    def __init__(self, problem: SamplerRun, paths: Paths) -> None:
        self.problem, self.paths, x0 = problem, paths, problem.x0
        rows = slice(paths.first, paths.last)
        self.start = x0[rows] if x0.ndim == 3 else x0[None]
        self.x = self.start.copy()
        self.normals, method = CounterNormals(problem.seed), problem.method
        width = math.sqrt(2 * method.h / method.beta)  # of the noise, or of what tokens attend to
        self.noise = 0.0 if method.attention else width
        self.most = _LARGEST * max(1.0, width, float(np.abs(x0).max()))

    def state(self) -> State:
        return {"x": self.x}

    def restore(self, state: State) -> None:
        self.x = state["x"]

    def advance(self, step: int) -> int:
        """Record the start of a step, and compute it."""
        problem, lost = self.problem, self.paths.lost
        if lost.any():
            self.x[lost] = self.start[lost]
        with np.errstate(over="ignore", invalid="ignore"):
            gradient = problem.gradient(self.x, step)
            for path in np.flatnonzero(~np.isfinite(gradient).all(axis=(1, 2)) & ~lost).tolist():
                self.paths.lose(path, _bad_gradient(gradient, self.x, path, step, problem.method.h))
            moved, diagnostics = self._moved(gradient, step)
            good = (np.abs(moved) <= self.most).all(axis=(1, 2))
            for path in np.flatnonzero(~good & ~lost).tolist():
                self.paths.lose(path, _blow_up(self.x, path, step, problem.method.h))
            self._record(step, moved, diagnostics)
        if step < problem.steps:
            self.x = moved
            if self.noise:
                numbers = range(self.paths.first, self.paths.last)
                drawn = self.normals.draw_paths(moved.shape[1:], paths=numbers, step=step)
                self.x = moved + self.noise * drawn
        return step + 1

    def _moved(self, gradient: Array, step: int) -> tuple[Array, Diagnostics]:
        """Return the tokens after the step without noise; paths whose scores overflow are lost."""
        lost, method = self.paths.lost, self.problem.method
        while True:
            if lost.any():
                gradient = np.where(lost[:, None, None], 0.0, gradient)
            try:
                return method.move(self.x, gradient)
            except InputError as error:
                sizes = np.where(lost, 0.0, np.abs(self.x).max(axis=(1, 2)))
                if step == 0 or lost.all():
                    raise
                path = int(sizes.argmax())
                reason = _blow_up(self.x, path, step, method.h)
                reason.__cause__ = error
                self.paths.lose(path, reason)
                self.x[lost] = self.start[lost]

    def _record(self, step: int, moved: Array, found: Diagnostics) -> None:
        """Write the records of a step."""
        problem, x, store = self.problem, self.x, self.paths
        rows = slice(store.first, store.last)
        at = place_of(step, problem.records)
        if at is not None:
            velocity = (moved - x) / problem.method.h
            speed_sq = np.einsum("pik,pik->p", velocity, velocity) / x.shape[1]
            store.write("speed_sq", (rows, at), speed_sq)
            store.write("sample_mean", (rows, at), x.mean(axis=1))
            store.write("sample_variance", (rows, at), x.var(axis=1))
            for name, values in found.items():
                store.write(name, (rows, at), values)
        shot = place_of(step, problem.snapshots)
        if shot is not None:
            store.write("samples", (rows, shot), x)


def _bad_gradient(gradient: Array, x: Array, path: int, step: int, h: float) -> BlowUpError:
    """Return the error for a gradient that is not a number, with its token."""
    token = int(np.argmin(np.isfinite(gradient[path]).all(axis=1)))
    return BlowUpError(
        f"grad is {gradient[path, token][:4]} in step {step} of path {path}, at token {token}, "
        f"{x[path, token][:4]} ...: expected finite numbers; check grad there, or take a smaller h",
        time=step * h,
        path=path,
        score=float(np.abs(x[path]).max()),
    )


def _blow_up(x: Array, path: int, step: int, h: float) -> BlowUpError:
    largest = float(np.abs(x[path]).max())
    return BlowUpError(
        f"the step h = {h:g} blows up in step {step} of path {path}, where coordinates reach "
        f"{largest:.4g}; take a smaller h, or begin nearer to the mode of the target",
        time=step * h,
        path=path,
        score=largest,
    )


# For other libraries
# -------------------


def to_arviz(run: xarray.Dataset, *, burn_in: float = 0.5) -> xarray.DataTree:
    """Return samples with the dimensions chain and draw, as ArviZ reads them.

    Of a Langevin sampler every token is a chain, and its draws are the snapshots. The tokens of
    `brwp` interact, and move without noise: a path is a chain, whose draws are its tokens at the
    end, in no order of time, so that `burn_in` leaves nothing out and neither R-hat nor effective
    sizes say anything about convergence. Chains of `wflow.sampling.reference` keep their
    dimensions.

    Parameters
    ----------
    run : xarray.Dataset
        Of a sampler, with snapshots.
    burn_in : float, default 0.5
        Share of the snapshots that is left out at the start, >= 0 and < 1; chains of
        `wflow.sampling.reference` have none.

    Returns
    -------
    xarray.DataTree
        The group ``posterior`` with ``samples`` (chain, draw, ...), and for chains of
        `wflow.sampling.reference` ``sample_stats`` with ``lp`` (chain, draw).

    Raises
    ------
    InputError
        For what holds no samples, or none without NaN, and another burn-in.

    See Also
    --------
    wflow.sampling.reference.r_hat, wflow.sampling.reference.ess : Diagnostics of chains.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import sampling
    >>> run = sampling.ula(np.zeros((8, 2)), lambda x: x, h=0.1, steps=100)
    >>> tree = sampling.to_arviz(run)  # arviz_stats.summary(tree) is its table
    >>> dict(tree["posterior"].sizes)
    {'chain': 8, 'draw': 50, 'axis': 2}
    """
    import xarray

    burn_in = number(burn_in, "burn_in", least=0.0)
    if burn_in >= 1:
        raise InputError(f"burn_in is {burn_in:g}: expected a share of the snapshots below 1")
    dims = run["samples"].dims if isinstance(run, xarray.Dataset) and "samples" in run else ()
    if dims[:2] == ("chain", "draw"):
        groups = {"posterior": run[["samples"]]}
        if "log_density" in run:
            groups["sample_stats"] = run[["log_density"]].rename(log_density="lp")
    elif dims == ("path", "snapshot", "token", "axis") and run.sizes["snapshot"]:
        groups = {"posterior": _chains(run, burn_in).to_dataset(name="samples")}
    else:
        raise InputError(
            f"run is {shown(run)} without samples (path, snapshot, token, axis): expected the "
            "whole Dataset of a sampler with snapshots"
        )
    tree = xarray.DataTree.from_dict(groups)
    tree["posterior"].attrs |= {
        "inference_library": "wflow", "inference_library_version": __version__,
    }  # fmt: skip
    return tree


def _chains(run: xarray.Dataset, burn_in: float) -> xarray.DataArray:
    """Return samples (chain, draw, axis) of a run, without paths that blew up."""
    import xarray

    x = run["samples"].values
    x = x[np.isfinite(x).all(axis=(1, 2, 3))]
    if not len(x):
        raise InputError("run has no samples that are finite: its paths blew up")
    if "ess" in run:
        x = x[:, -1]
    else:
        x = x[:, int(burn_in * x.shape[1]) :].transpose(0, 2, 1, 3)
        x = x.reshape(-1, *x.shape[2:])
    coords = {dim: np.arange(size) for dim, size in zip(("chain", "draw"), x.shape, strict=False)}
    return xarray.DataArray(x, coords, ("chain", "draw", "axis"), attrs=run["samples"].attrs)
