"""Sums over all pairs of tokens: exactly or by series, by Numba or by torch.

`evaluate` gives velocities and energy terms of clouds, `velocity_adjoint` the cotangents of tokens
and heads from those of velocities, `energy_laplacian` what the diffusion of the tokens does to the
energy, `head_sums` the sums of each head at any targets over weighted sources.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import check_choice, number, shown
from wflow._core.errors import InputError
from wflow.kernels.blocked.sums import BLOCKED_FROM, blocked_sums
from wflow.kernels.blocked.weighted import blocked_head_sums
from wflow.kernels.harmonic.adjoint import choose_adjoint, fast_adjoint
from wflow.kernels.harmonic.fast import FEWEST_TOKENS, choose, fast_sums
from wflow.kernels.harmonic.laplacian import fast_laplacian
from wflow.kernels.harmonic.series import LARGEST_DEGREE, check_tolerance
from wflow.kernels.harmonic.weighted import choose_weighted, fast_head_sums
from wflow.kernels.pairs import diffusion
from wflow.kernels.pairs.adjoint import blocked_adjoint, fused_adjoint
from wflow.kernels.pairs.fused import fused_sums
from wflow.kernels.pairs.headsums import EFFECTIVE, ENERGY_TERMS, SOFTMAX, TERMS, UNNORMALISED
from wflow.kernels.pairs.weighted import pair_head_sums

FLOWS = {
    "softmax": SOFTMAX,
    "unnormalised": UNNORMALISED,
    "effective": EFFECTIVE,
}
DIRECTIONS = {"descent": -1.0, "ascent": 1.0}
METHODS, BACKENDS = ("auto", "exact", "fast"), ("numba", "torch")
# Beyond these scores, sums of exp times matrices may leave the range of the type: exp itself does
# at 709 and 88; the margin of 1e43 or 1e11 covers the number of tokens and heads and matrix norms.
RANGE = {np.float64: 610.0, np.float32: 62.0}


@dataclass(frozen=True)
class Sums:
    """Method by which sums over pairs are computed (`wflow.solve` documents the choices).

    Attributes
    ----------
    method : "exact", "fast" (series on the circle and the sphere) or "auto" (the cheaper one)
    tolerance : relative error that the fast sums keep below
    backend, device : "numba", or "torch" with the device it runs on
    """

    method: str = "auto"
    tolerance: float = 1e-10
    backend: str = "numba"
    device: str | None = None

    def resolved(self, n: int, d: int, causal: bool) -> "Sums":
        """Return these sums for n tokens in R^d, with "auto" decided where it can be.

        It becomes "exact" where no series could pay, and on the torch backend, where nothing
        decides between them.

        Raises
        ------
        InputError
            For a name, tolerance or device that cannot be used, or a series that does not exist.
        """
        check_choice("method", self.method, METHODS)
        check_choice("backend", self.backend, BACKENDS)
        method, device = self.method, self.device
        tolerance = number(self.tolerance, "tolerance")
        if method == "fast" and causal:
            raise InputError("the fast sums have no causal mask: take method='exact'")
        if self.backend == "torch":
            from wflow.kernels.torch.sums import resolve_device

            if method == "fast":
                tolerance = check_tolerance(tolerance, d)
            else:
                method = "exact"
            return Sums(method, tolerance, "torch", resolve_device(device))
        if device is not None and (not isinstance(device, str) or device != "cpu"):
            raise InputError(
                f"device is {shown(device)}, but backend='numba' runs on the CPU: give "
                "backend='torch'"
            )
        if method != "exact":
            # An impossible tolerance is an error for any n and d.
            tolerance = check_tolerance(tolerance, d if method == "fast" else 2)
        if method == "auto" and (causal or d not in LARGEST_DEGREE or n < FEWEST_TOKENS):
            method = "exact"
        return Sums(method, tolerance)

    @property
    def have_error(self) -> bool:
        """Whether these sums come with an estimate of their error."""
        return self.method != "exact"

    def config(self) -> dict[str, Any]:
        """Return the settings that decide the bits of a run, beyond exact sums by Numba."""
        fast = {"method": self.method, "tolerance": self.tolerance}
        torch = {"backend": self.backend, "device": self.device}
        return (fast if self.have_error else {}) | (torch if self.backend == "torch" else {})


EXACT = Sums("exact")


class Kernels(NamedTuple):
    """The implementations of one kind of sum.

    pairs, blocked : exact sums by Numba for d below and from `BLOCKED_FROM`
    fast : by series; returns the error (paths,) last
    torch, torch_fast : names in `kernels.torch.sums` and `.series`, which load PyTorch
    """

    pairs: Callable
    blocked: Callable
    fast: Callable
    torch: str
    torch_fast: str

    def exact(self, sums: Sums, d: int) -> Callable:
        """Return the function for exact sums on this backend; by Numba, the fastest for this d."""
        if sums.backend == "torch":
            from wflow.kernels.torch import sums as on_device

            return partial(getattr(on_device, self.torch), device=sums.device or "cpu")
        return self.pairs if d < BLOCKED_FROM else self.blocked

    def series(self, sums: Sums) -> Callable:
        """The sums by series on this backend, to this tolerance."""
        fast = self.fast
        if sums.backend == "torch":
            from wflow.kernels.torch import series as on_device

            fast = partial(getattr(on_device, self.torch_fast), device=sums.device or "cpu")
        return partial(fast, tolerance=sums.tolerance)


VELOCITIES = Kernels(fused_sums, blocked_sums, fast_sums, "torch_sums", "series_sums")
LAPLACIAN = Kernels(
    diffusion.energy_laplacian, diffusion.energy_laplacian, fast_laplacian, "torch_laplacian",
    "series_laplacian",
)  # fmt: skip
HEAD_SUMS = Kernels(
    pair_head_sums, blocked_head_sums, fast_head_sums, "torch_head_sums", "series_head_sums"
)


class Evaluation(NamedTuple):
    """Velocities and energy terms of several paths at one time.

    velocity : (paths, n, d)
    terms : name of docs/theory/energy.md -> (paths,), float64; with series also
        `sum_error`, the estimated relative error of the sums
    """

    velocity: NDArray[np.floating]
    terms: dict[str, NDArray[np.float64]]


def evaluate(
    x: NDArray[np.floating],
    D: NDArray[np.floating],
    *,
    values: NDArray[np.floating] | None = None,
    drift: NDArray[np.floating] | None = None,
    moved: NDArray[np.floating] | None = None,
    noise: NDArray[np.floating] | None = None,
    sigma2: NDArray[np.floating] | None = None,
    flow: str = "softmax",
    direction: str = "descent",
    causal: bool = False,
    symmetric: bool = False,
    sums: Sums = EXACT,
) -> Evaluation:
    """Compute velocities and all energy terms in one pass; x (paths, n, d), D (paths, heads, d, d).

    `moved` (paths, heads, d, d) is what the heads moved in the step before, for `backward_work`.
    The shapes are taken as they are: this is the solver's inner call. `symmetric` promises
    D_h = D_h^T, which halves the work.
    """
    kind = x.dtype
    alone = values is None and all(a is None for a in (drift, moved, noise, sigma2))
    x, score = _dense(x, x.shape, kind), _scores(x, D, alone, sums)
    per_path = (
        x, score, score if values is None else _dense(values, D.shape, kind),
        _moving(drift, moved, D.shape, kind), _dense_or_none(noise, D.shape, kind),
        _dense_or_none(sigma2, D.shape[:2], kind),
    )  # fmt: skip
    sign = 1.0 if values is not None else DIRECTIONS[direction]
    symmetric = symmetric and values is None and not causal
    how: dict[str, Any] = {"flow": FLOWS[flow], "sign": sign}
    also = {"symmetric": symmetric} if sums.backend == "numba" else {}
    exact = partial(VELOCITIES.exact(sums, x.shape[2]), **how, causal=causal, **also)
    if not sums.have_error:
        velocity, table = exact(*per_path)
    else:
        fast = partial(VELOCITIES.series(sums), **how)
        series = _by_series(x, score, sums, symmetric)
        velocity, table, error = _path_by_path(series, exact, fast, per_path)
    terms = dict(zip(TERMS, table.T, strict=True))
    mark_overflow(terms, ENERGY_TERMS, kind)
    if sums.have_error:
        terms["sum_error"] = error
    return Evaluation(velocity, terms)


class Adjoint(NamedTuple):
    """Cotangents of what velocities depend on.

    x : (paths, n, d)
    D : (paths, heads, d, d)
    values : (paths, heads, d, d); None for tied heads, whose cotangents are in D
    error : (paths,) largest estimated error of the fast sums, relative to them; 0 for exact sums
    """

    x: NDArray[np.floating]
    D: NDArray[np.floating]
    values: NDArray[np.floating] | None
    error: NDArray[np.float64]


def velocity_adjoint(
    x: NDArray[np.floating],
    D: NDArray[np.floating],
    cotangents: NDArray[np.floating],
    *,
    values: NDArray[np.floating] | None = None,
    flow: str = "softmax",
    direction: str = "descent",
    causal: bool = False,
    sums: Sums = EXACT,
) -> Adjoint:
    """Compute the cotangents of tokens and heads from those of the velocities (paths, n, d).

    The adjoint of `evaluate` in double precision by Numba; values may be (heads, d, d). "auto"
    takes the fast sums where they are predicted to be faster for the adjoint.
    """

    def matrices(given: NDArray) -> NDArray:
        given = given if given.ndim == 4 else given[None]
        return _dense(given[:1] if given.strides[0] == 0 else given, given.shape, x.dtype)

    score = matrices(D)
    value = score if values is None else matrices(values)
    sign = 1.0 if values is not None else DIRECTIONS[direction]
    how: dict[str, Any] = {"flow": FLOWS[flow], "sign": sign}
    adjoint = fused_adjoint if x.shape[2] < BLOCKED_FROM else blocked_adjoint
    given = [_dense(x, x.shape, x.dtype), score, value, _dense(cotangents, x.shape, x.dtype)]
    series = np.zeros(len(x), bool)
    if sums.have_error and not causal:
        series = choose_adjoint(x, score, FLOWS[flow], sums.method, sums.tolerance)
    if series.any():  # the heads of every path
        given = [np.broadcast_to(of, (len(x), *of.shape[1:])) for of in given]
    of_x, of_score, of_value, error = _path_by_path(
        series, partial(adjoint, **how, causal=causal),
        partial(fast_adjoint, **how, tolerance=sums.tolerance), tuple(given),
    )  # fmt: skip
    if values is None:
        return Adjoint(of_x, of_score + of_value, None, error)
    return Adjoint(of_x, of_score, of_value, error)


def energy_laplacian(
    x: NDArray[np.floating], D: NDArray[np.floating], sums: Sums = EXACT
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute Laplacians of the energy (paths,) and estimated relative errors of the sums (paths,),
    zero where the sums are exact; D is symmetric.
    """
    D = _dense(D, D.shape, x.dtype)
    series = _by_series(x, D, sums, symmetric=False)
    exact = LAPLACIAN.exact(sums, x.shape[2])
    laplacian, error = _path_by_path(
        series, lambda *case: (exact(*case),), LAPLACIAN.series(sums), (x, D)
    )
    return laplacian, error


class HeadSums(NamedTuple):
    """Sums of every head at every target over weighted sources; see `head_sums`.

    shift : (paths, heads, targets), 0 where none was needed
    m : (paths, heads, targets), exp(-shift) sum_j w_j exp(<x_i, D_h y_j>)
    S : (paths, heads, targets, d), exp(-shift) sum_j w_j exp(<x_i, D_h y_j>) y_j; without vectors
        (paths, heads, 0, d)
    error : (paths,) bound of |delta m| / |m| and |delta S| / |m| by series, 0 where sums are exact
    """

    shift: NDArray[np.floating]
    m: NDArray[np.floating]
    S: NDArray[np.floating]
    error: NDArray[np.float64]


def head_sums(
    x: NDArray[np.floating],
    D: NDArray[np.floating],
    *,
    sources: NDArray[np.floating] | None = None,
    weights: NDArray[np.floating] | None = None,
    causal: bool = False,
    vectors: bool = True,
    sums: Sums = EXACT,
) -> HeadSums:
    """Compute the sums m_h and S_h of every head at every target over weighted sources.

    Where scores |D_h^T x_i| |y_j| may exceed 64 (24 in single precision), or the weights leave
    1e+-200 (1e+-20), the sums are scaled by exp(-shift): then the largest |w_j| exp(s_ij - shift)
    lies between 1/2 and 1 (is 1/n with the default weights), so that m neither overflows nor, for
    weights of one sign, vanishes. Weights of both signs may cancel: rounding errors are relative
    to sum_j |w_j| exp(s_ij). A source of weight zero counts as absent.

    Parameters
    ----------
    x : (paths, targets, d) float64 or float32, the precision of the result
    D : (paths, heads, d, d), any matrices
    sources : (paths, n, d), by default x. Exact sums take vectors of any norm, the fast sums
        targets and sources on the unit sphere
    weights : (paths, n), or (paths, heads, n) for weights of each head; of any sign, finite; by
        default 1/n
    causal : target i sees the sources j <= i, which are the targets
    vectors : False leaves S out
    sums : "auto" takes the fast sums where they are predicted to be faster. By series a target
        where the tolerance relative to |m| would be missed is summed exactly

    Raises
    ------
    InputError
        For causal sums with other sources or by series, and weights of a wrong shape.
    """
    kind = x.dtype
    paths, heads = len(x), D.shape[1]
    if causal and sources is not None and sources is not x:
        raise InputError(
            "causal sums number the targets and the sources alike: leave out sources, or causal"
        )
    if causal and sums.method == "fast":
        raise InputError("the fast sums have no causal mask: take method='exact'")
    x = _dense(x, x.shape, kind)
    D = _dense(D, (paths, *D.shape[1:]), kind)
    cloud = x if sources is None else _dense(sources, (paths, *sources.shape[1:]), kind)
    n = cloud.shape[1]
    if weights is not None:
        if weights.shape not in ((paths, n), (paths, heads, n)):
            raise InputError(
                f"weights have shape {weights.shape}: expected (paths, sources) = {(paths, n)} or "
                f"(paths, heads, sources) = {(paths, heads, n)}"
            )
        weights = weights[:, None] if weights.ndim == 2 else weights
        weights = _dense(weights, weights.shape, kind)
    if sums.method == "auto" and not causal:
        series = choose_weighted(x, D, cloud, weights, sums.tolerance)
    else:
        series = np.full(paths, sums.method == "fast")
    exact = partial(HEAD_SUMS.exact(sums, x.shape[2]), causal=causal, vectors=vectors)
    fast = partial(HEAD_SUMS.series(sums), vectors=vectors)
    return HeadSums(*_path_by_path(series, exact, fast, (x, D, cloud, weights)))


def _scores(
    x: NDArray[np.floating], D: NDArray[np.floating], alone: bool, sums: Sums
) -> NDArray[np.floating]:
    """Return D as the kernels take it: kernels for large d receive heads that all paths share (a
    view with stride zero) once, where the heads have no other arrays.
    """
    shared = alone and D.strides[0] == 0 and len(D) > 0
    if shared and sums.backend == "numba" and x.shape[2] >= BLOCKED_FROM:
        return _dense(D[:1], (1, *D.shape[1:]), x.dtype)
    return _dense(D, D.shape, x.dtype)


def _by_series(x: NDArray, D: NDArray, sums: Sums, symmetric: bool) -> NDArray[np.bool_]:
    """Return which paths use the fast sums, (paths,)."""
    if sums.method == "auto":
        return choose(x, D, sums.tolerance, symmetric)
    return np.full(len(x), sums.method == "fast")


def _path_by_path(
    series: NDArray[np.bool_], exact: Callable, fast: Callable, arrays: tuple[NDArray | None, ...]
) -> tuple[NDArray, ...]:
    """Compute results by `exact` and `fast`, each for its paths, and assemble them by path.

    Exact sums have rounding errors alone: their estimate is zero.
    """
    if series.all() and series.size:
        return fast(*arrays)
    if not series.any():
        return *exact(*arrays), np.zeros(len(series))
    parts = [
        (chosen, function(*(None if array is None else array[chosen] for array in arrays)))
        for chosen, function in ((~series, exact), (series, fast))
    ]
    whole = [np.empty((len(series), *first.shape[1:]), first.dtype) for first in parts[1][1]]
    for chosen, results in parts:
        for array, values in zip(whole, (*results, 0.0), strict=False):
            array[chosen] = values
    return tuple(whole)


def mark_overflow(
    terms: dict[str, NDArray[np.float64]], names: Collection[str], kind: np.dtype
) -> None:
    """Turn NaN into inf where scores leave the range of exp in this precision.

    A sum can come out there as inf - inf: it is out of range too.
    """
    beyond = terms["max_score"] > RANGE[kind.type]
    if np.count_nonzero(beyond):
        for name in names:
            terms[name] = np.where(beyond & np.isnan(terms[name]), np.inf, terms[name])


def _dense_or_none(array: NDArray | None, shape: tuple[int, ...], kind: np.dtype) -> NDArray:
    """Return the array as `_dense` does, or an array of no heads (paths, 0, ...) for None."""
    if array is None:
        return np.empty((shape[0], 0, *shape[2:]), kind)
    return _dense(array, shape, kind)


def _moving(
    drift: NDArray | None, moved: NDArray | None, shape: tuple[int, ...], kind: np.dtype
) -> NDArray:
    """Return the drifts, followed by the last moves of the heads, as in `headsums.Heads`."""
    if moved is None:
        return _dense_or_none(drift, shape, kind)
    both = (np.zeros(shape, kind) if drift is None else drift, moved)
    return np.concatenate([_dense(part, shape, kind) for part in both], axis=1)


def _dense(array: NDArray, shape: tuple[int, ...], kind: np.dtype) -> NDArray:
    """Return `array` broadcast, contiguous and writable: one type for the compiled code."""
    flags = array.flags
    if array.shape != shape or not flags.writeable:
        array = np.array(np.broadcast_to(array, shape), kind)
    elif flags.c_contiguous and array.dtype == kind:  # mostly
        return array
    return np.ascontiguousarray(array, kind)
