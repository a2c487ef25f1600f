"""One evaluation of the sums over all pairs: exactly or by series, by Numba or by torch."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wflow import _blocked, _diffusion, _fast, _fused, _headsums
from wflow._checks import check_choice
from wflow._degree import LARGEST_DEGREE, check_tolerance
from wflow._fast_laplacian import fast_laplacian
from wflow.errors import InputError

FLOWS = {
    "softmax": _headsums.SOFTMAX,
    "unnormalised": _headsums.UNNORMALISED,
    "effective": _headsums.EFFECTIVE,
}
DIRECTIONS = {"descent": -1.0, "ascent": 1.0}
METHODS, BACKENDS = ("auto", "exact", "fast"), ("numba", "torch")
# Scores beyond which sums of exp times matrices may leave the range of the type: exp itself does at
# 709 and 88, and 1e43 or 1e11 is left for the number of tokens and heads and the norms of matrices.
RANGE = {np.float64: 610.0, np.float32: 62.0}


@dataclass(frozen=True)
class Sums:
    """How sums over pairs are formed (`wflow.solve` documents the choices).

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

    def settled(self, n: int, d: int, causal: bool) -> "Sums":
        """These sums for n tokens in R^d: "auto" becomes "exact" where no series could pay.

        Raises
        ------
        InputError
            For a name, tolerance or device that cannot be used, or a series that does not exist.
        """
        check_choice("method", self.method, METHODS)
        check_choice("backend", self.backend, BACKENDS)
        method, tolerance, device = self.method, self.tolerance, self.device
        if self.backend == "torch":
            if method == "fast":
                raise InputError(
                    "backend='torch' forms exact sums: take method='exact', or backend='numba' "
                    "for the fast ones"
                )
            from wflow import _torch_sums

            return Sums("exact", tolerance, "torch", _torch_sums.resolve_device(device))
        if device not in (None, "cpu"):
            raise InputError(
                f"device is {device!r}, but backend='numba' runs on the CPU: give backend='torch'"
            )
        if method == "fast" and causal:
            raise InputError("the fast sums have no causal mask: take method='exact'")
        if method != "exact":
            # A tolerance that cannot be is an error for any n and d.
            tolerance = check_tolerance(tolerance, d if method == "fast" else 2)
        if method == "auto" and (causal or d not in LARGEST_DEGREE or n < _fast.FEWEST_TOKENS):
            method = "exact"
        return Sums(method, tolerance)

    @property
    def have_error(self) -> bool:
        """Whether an estimate of their error belongs to them."""
        return self.method != "exact"

    def config(self) -> dict[str, Any]:
        """What decides on the bits of a run, beyond exact sums by Numba."""
        fast = {"method": self.method, "tolerance": self.tolerance}
        torch = {"backend": self.backend, "device": self.device}
        return (fast if self.have_error else {}) | (torch if self.backend == "torch" else {})


EXACT = Sums("exact")


class Evaluation(NamedTuple):
    """Velocities and ledger terms of several paths at one time.

    velocity : (paths, n, d)
    terms : name of docs/mathematics.md section 4 -> (paths,), float64; with series also
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
    noise: NDArray[np.floating] | None = None,
    sigma2: NDArray[np.floating] | None = None,
    flow: str = "softmax",
    direction: str = "descent",
    causal: bool = False,
    symmetric: bool = False,
    sums: Sums = EXACT,
) -> Evaluation:
    """Velocities and all ledger terms in one pass; x (paths, n, d), D (paths, heads, d, d).

    The shapes are taken as they are: this is the solver's inner call. `symmetric` promises
    D_h = D_h^T, which halves the work.
    """
    kind = x.dtype
    x, score = _dense(x, x.shape, kind), _dense(D, D.shape, kind)
    per_path = (
        x, score, score if values is None else _dense(values, D.shape, kind),
        _dense_or_none(drift, D.shape, kind), _dense_or_none(noise, D.shape, kind),
        _dense_or_none(sigma2, D.shape[:2], kind),
    )  # fmt: skip
    sign = 1.0 if values is not None else DIRECTIONS[direction]
    symmetric = symmetric and values is None and not causal
    how: dict[str, Any] = {"flow": FLOWS[flow], "sign": sign}
    exact = partial(_exact(sums, x.shape[2], symmetric), **how, causal=causal)
    fast = partial(_fast.fast_sums, **how, tolerance=sums.tolerance)

    series = _by_series(x, score, sums, symmetric)
    results = _path_by_path(series, exact, fast, per_path)
    velocity, table = results[:2]
    terms = dict(zip(_headsums.TERMS, table.T, strict=True))
    mark_overflow(terms, _headsums.TERMS[:7], kind)
    if sums.have_error:
        terms["sum_error"] = results[2]
    return Evaluation(velocity, terms)


def energy_laplacian(
    x: NDArray[np.floating], D: NDArray[np.floating], sums: Sums = EXACT
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean gradients (paths, n, d), Laplacians of the energy (paths,) and the estimated relative
    error of the sums (paths,), zero where they are exact; D symmetric.

    Where `sums` are by torch, these are by Numba.
    """
    series = _by_series(x, D, sums, symmetric=False)
    fast = partial(fast_laplacian, tolerance=sums.tolerance)
    gbar, laplacian, error = _path_by_path(series, _diffusion.energy_laplacian, fast, (x, D))
    return gbar, laplacian, error


def _exact(sums: Sums, d: int, symmetric: bool) -> Callable:
    """The exact pass over all pairs: on a GPU, or by the kernels that are best for this d."""
    if sums.backend == "torch":
        from wflow import _torch_sums

        return partial(_torch_sums.torch_sums, device=sums.device or "cpu")
    kernel = _fused.fused_sums if d < _blocked.BLOCKED_FROM else _blocked.blocked_sums
    return partial(kernel, symmetric=symmetric)


def _by_series(x: NDArray, D: NDArray, sums: Sums, symmetric: bool) -> NDArray[np.bool_]:
    """Which paths go through the fast sums: (paths,)."""
    if sums.method == "auto":
        return _fast.choose(x, D, sums.tolerance, symmetric)
    return np.full(len(x), sums.method == "fast")


def _path_by_path(
    series: NDArray[np.bool_], exact: Callable, fast: Callable, arrays: tuple[NDArray, ...]
) -> tuple[NDArray, ...]:
    """Results of `exact` and `fast`, each for its paths, put together by path.

    Exact sums have rounding errors alone: their estimate is zero.
    """
    if series.all() and series.size:
        return fast(*arrays)
    if not series.any():
        return *exact(*arrays), np.zeros(len(series))
    parts = [
        (chosen, function(*(array[chosen] for array in arrays)))
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
    if beyond.any():
        for name in names:
            terms[name] = np.where(beyond & np.isnan(terms[name]), np.inf, terms[name])


def _dense_or_none(array: NDArray | None, shape: tuple[int, ...], kind: np.dtype) -> NDArray:
    """As `_dense`; where there is none, an array of no heads: (paths, 0, ...)."""
    if array is None:
        return np.empty((shape[0], 0, *shape[2:]), kind)
    return _dense(array, shape, kind)


def _dense(array: NDArray, shape: tuple[int, ...], kind: np.dtype) -> NDArray:
    """`array` broadcast to `shape`, contiguous and writable: one type for the compiled code."""
    if array.shape != shape or not array.flags.writeable:
        array = np.array(np.broadcast_to(array, shape), kind)
    return np.ascontiguousarray(array, kind)
