"""Entropic transport in the log domain, with an upper and a lower bound of the cost.

For a cost matrix C (n, m), masses a, b and a temperature epsilon, one iteration is

    f_i = -epsilon log sum_j b_j exp((g_j - C_ij)/epsilon),
    g_j = -epsilon log sum_i a_i exp((f_i - C_ij)/epsilon),

and the plan is P_ij = a_i b_j exp((f_i + g_j - C_ij)/epsilon). Upper bound: the cost of P brought
to the exact marginals (Altschuler, Weed, Rigollet, Near-linear time approximation algorithms for
optimal transport via Sinkhorn iteration, 2017, algorithm 2). Lower bound: the dual value of the
potentials after two c-transforms, which makes them feasible (Villani, Optimal transport, 2009,
theorem 5.10). Only C has n m entries; POT's iterations would keep three more such arrays.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from wflow._core.compiler.functions import kernel
from wflow._core.compiler.vectors import exp2, fma, lanes, load, maximum, splat, store
from wflow._core.threads import threads_for

_LOG2E = 1 / math.log(2)
_FLOOR = -1000.0  # smallest exponent of 2: smaller ones are raised to it, and do not matter
_NOTHING = -1e30  # exponent of an absent pair
_WIDE = 4  # vectors of columns that one task sums together: it reads them row by row
_SAME = 1e-16  # W_p, in units of the largest distance, that is rounding alone
_LEAST = 1e-8  # lowest temperature, in units of the largest cost
_HOTTEST = 1e6  # likewise: beyond it the potentials are rounding, and the plan is a x b anyway
_STAGE = 60  # iterations at one temperature, after which a lower one helps more
_PATIENCE = 4  # temperatures without progress, after which lower ones bring none
_COLDER, _WARMER, _SOME = 2.0, 4.0, 5
# Over-relaxation: factors of a step, the second at temperatures below the third in units of the
# largest cost. There the plain iteration converges slowly; a factor below two keeps it stable.
_RELAXED, _RELAXED_COLD, _COLD = 1.7, 1.9, 0.01


@kernel(parallel=True)
def _sum_rows(C, s, scale, shift, find):
    """Return sum_j 2^(e_ij - t_i), e_ij = scale C_ij + s_j, and the same weighted by C_ij.

    t_i is shift_i, or with `find` the largest e_ij. C (n, k) and s (k,), k a multiple of 32.
    Returns t, sums, weighted sums : (n,)
    """
    n, k = C.shape
    width = lanes(C)
    top = shift.copy()
    sums = np.empty(n)
    weighted = np.empty(n)
    factor = splat(scale)
    low = splat(_FLOOR)
    for i in prange(n):
        at = i * k
        across = np.empty(2 * width)
        if find:
            most = splat(_NOTHING)
            more = splat(_NOTHING)
            for j in range(0, k, 2 * width):
                most = maximum(most, fma(load(C, at + j), factor, load(s, j)))
                j1 = j + width
                more = maximum(more, fma(load(C, at + j1), factor, load(s, j1)))
            store(across, 0, maximum(most, more))
            top[i] = across[:width].max()
        less = splat(top[i])
        total = splat(0.0)
        paid = splat(0.0)
        for j in range(0, k, width):
            cost = load(C, at + j)
            part = exp2(maximum(fma(cost, factor, load(s, j)) - less, low))
            total = total + part
            paid = fma(part, cost, paid)
        store(across, 0, total)
        store(across, width, paid)
        sums[i] = across[:width].sum()
        weighted[i] = across[width:].sum()
    return top, sums, weighted


@kernel(parallel=True)
def _sum_columns(C, r, scale, shift, find):
    """Return sum_i 2^(e_ij - t_j), e_ij = scale C_ij + r_i, with t_j as in `sum_rows`.

    Returns t, sums : (k,)
    """
    n, k = C.shape
    width = lanes(C)
    top = shift.copy()
    sums = np.empty(k)
    factor = splat(scale)
    low = splat(_FLOOR)
    for block in prange(k // (_WIDE * width)):
        j0 = block * _WIDE * width
        j1 = j0 + width
        j2 = j1 + width
        j3 = j2 + width
        t0 = load(top, j0)
        t1 = load(top, j1)
        t2 = load(top, j2)
        t3 = load(top, j3)
        if find:
            t0 = splat(_NOTHING)
            t1 = t0
            t2 = t0
            t3 = t0
            for i in range(n):
                own = splat(r[i])
                at = i * k
                t0 = maximum(t0, fma(load(C, at + j0), factor, own))
                t1 = maximum(t1, fma(load(C, at + j1), factor, own))
                t2 = maximum(t2, fma(load(C, at + j2), factor, own))
                t3 = maximum(t3, fma(load(C, at + j3), factor, own))
        u0 = splat(0.0)
        u1 = u0
        u2 = u0
        u3 = u0
        for i in range(n):
            own = splat(r[i])
            at = i * k
            u0 = u0 + exp2(maximum(fma(load(C, at + j0), factor, own) - t0, low))
            u1 = u1 + exp2(maximum(fma(load(C, at + j1), factor, own) - t1, low))
            u2 = u2 + exp2(maximum(fma(load(C, at + j2), factor, own) - t2, low))
            u3 = u3 + exp2(maximum(fma(load(C, at + j3), factor, own) - t3, low))
        store(top, j0, t0)
        store(top, j1, t1)
        store(top, j2, t2)
        store(top, j3, t3)
        store(sums, j0, u0)
        store(sums, j1, u1)
        store(sums, j2, u2)
        store(sums, j3, u3)
    return top, sums


class _Costs:
    """A cost matrix C (n, m), with columns added to fill vectors, and the passes over it."""

    def __init__(self, C: NDArray[np.float64]) -> None:
        self.n, self.m = C.shape
        self.width = -(-self.m // 32) * 32
        self.largest = float(C.max())
        if self.width == self.m:
            self.C = np.ascontiguousarray(C)
        else:
            self.C = np.zeros((self.n, self.width))
            self.C[:, : self.m] = C
        self._rows, self._columns = np.zeros(self.n), np.zeros(self.width)

    def _wide(self, s: NDArray) -> NDArray:
        """Extend (m,) to all columns, with no mass in the padding."""
        out = np.full(self.width, _NOTHING)
        out[: self.m] = np.maximum(s, _NOTHING)
        return out

    def soften_rows(self, g: NDArray, log_b: NDArray, eps: float) -> NDArray:
        """Return f_i = -eps log sum_j b_j exp((g_j - C_ij)/eps)."""
        s = self._wide(_LOG2E * (g / eps + log_b))
        top, sums, _ = _sum_rows(self.C, s, -_LOG2E / eps, self._rows, True)
        return -eps * (top / _LOG2E + np.log(sums))

    def soften_columns(self, f: NDArray, log_a: NDArray, eps: float) -> NDArray:
        """Return g_j = -eps log sum_i a_i exp((f_i - C_ij)/eps)."""
        r = np.maximum(_LOG2E * (f / eps + log_a), _NOTHING)
        top, sums = _sum_columns(self.C, r, -_LOG2E / eps, self._columns, True)
        return -eps * (top / _LOG2E + np.log(sums))[: self.m]

    def plan_rows(self, log_r: NDArray, log_s: NDArray, eps: float) -> tuple[NDArray, NDArray]:
        """Return the row sums of P_ij = exp(log_r_i + log_s_j - C_ij/eps), and of P_ij C_ij."""
        shift = np.minimum(-_LOG2E * log_r, -_NOTHING)
        _, sums, paid = _sum_rows(self.C, self._wide(_LOG2E * log_s), -_LOG2E / eps, shift, False)
        return sums, paid

    def plan_columns(self, log_r: NDArray, log_s: NDArray, eps: float) -> NDArray:
        """Return the column sums of the same P."""
        shift = -self._wide(_LOG2E * log_s)
        r = np.maximum(_LOG2E * log_r, _NOTHING)
        return _sum_columns(self.C, r, -_LOG2E / eps, shift, False)[1][: self.m]

    def dual(self, f: NDArray, a: NDArray, b: NDArray) -> float:
        """Return a feasible dual value near the potential f: that of two c-transforms."""
        g = -_sum_columns(self.C, f, -1.0, self._columns, True)[0][: self.m]
        f = -_sum_rows(self.C, self._wide(g), -1.0, self._rows, True)[0]
        return float(a @ f + b @ g)


class Bounds(NamedTuple):
    """Upper and lower bound of min <P, C> from the iterations."""

    upper: float
    lower: float
    iterations: int
    converged: bool


def _round(
    costs: _Costs, f: NDArray, g: NDArray, a: NDArray, b: NDArray, eps: float, enough: float
) -> float:
    """Return the cost of the plan brought to the marginals a and b.

    What the plan lacks is a small transport problem with the same costs: some iterations at a
    higher temperature carry most of it over short distances. The product of what is lacking at
    last goes over long distances, and costs at most `enough`.
    """
    tiny = np.finfo(float).tiny
    paid, mass = 0.0, 1.0
    with np.errstate(divide="ignore"):  # the logarithm of no mass
        while True:
            log_r, log_s = f / eps + np.log(a), g / eps + np.log(b)
            rows, _ = costs.plan_rows(log_r, log_s, eps)
            log_r += np.minimum(0.0, np.log(a / np.maximum(rows, tiny)))
            columns = costs.plan_columns(log_r, log_s, eps)
            column = np.minimum(1.0, b / np.maximum(columns, tiny))
            kept, cost = costs.plan_rows(log_r, log_s + np.log(column), eps)
            paid += mass * float(cost.sum())
            a, b = np.maximum(a - kept, 0.0), np.maximum(b - columns * column, 0.0)
            lacking = max(float(a.sum()), float(b.sum()))
            if lacking < 1e-15:
                return paid + mass * lacking * costs.largest
            a, b, mass = a / lacking, b / lacking, mass * lacking
            if mass * costs.largest <= enough or eps > costs.largest:
                return paid + mass * float(a @ (costs.C[:, : costs.m] @ b))
            eps *= _WARMER
            log_a, log_b = np.log(a), np.log(b)
            for _ in range(_SOME):
                f = costs.soften_rows(g, log_b, eps)
                g = costs.soften_columns(f, log_a, eps)
            f = costs.soften_rows(g, log_b, eps)


def bounds(
    C: NDArray[np.float64],
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    p: float,
    reg: float | None,
    tolerance: float,
    max_iterations: int,
) -> Bounds:
    """Halve the temperature until the bounds of W_p agree to `tolerance`.

    Parameters
    ----------
    C : (n, m) costs to the power p
    a, b : (n,), (m,) positive masses of sum one
    p : the bounds are compared as p-th roots
    reg : temperature at which to stop, in units of the largest cost; None: when they agree
    tolerance : (upper - lower) / upper of W_p
    max_iterations : in all
    """
    with threads_for(C.size):
        return _bounds(_Costs(C), a, b, p, reg, tolerance, max_iterations)


def _bounds(
    costs: _Costs,
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    p: float,
    reg: float | None,
    tolerance: float,
    max_iterations: int,
) -> Bounds:
    largest = costs.largest
    if largest == 0.0:
        return Bounds(0.0, 0.0, 0, True)
    log_a, log_b = np.log(a), np.log(b)
    lowest = largest * (_LEAST if reg is None else min(reg, _HOTTEST))
    eps = max(largest / 4, lowest)
    f, g = np.zeros(len(a)), np.zeros(len(b))
    upper, lower, iterations, idle = math.inf, 0.0, 0, 0
    while True:
        stage = min(_STAGE, max_iterations - iterations)
        f, g, used = _iterate(costs, f, g, b, log_a, log_b, eps, stage, 0.05 * tolerance)
        iterations += used
        lower = max(lower, costs.dual(f, a, b))
        found = _round(costs, f, g, a, b, eps, 0.1 * tolerance * lower)
        idle = idle + 1 if found > (1 - 0.1 * tolerance) * upper else 0
        upper = min(upper, found)
        lower = min(lower, upper)  # rounding of the sums can bring them past each other
        agree = upper ** (1 / p) - lower ** (1 / p) <= tolerance * upper ** (1 / p)
        agree = agree or upper <= _SAME**p * largest  # a cloud and itself: below any rounding
        if agree or idle == _PATIENCE or eps <= lowest or iterations >= max_iterations:
            return Bounds(upper, lower, iterations, bool(agree))
        eps = max(eps / _COLDER, lowest)


def _iterate(
    costs: _Costs,
    f: NDArray,
    g: NDArray,
    b: NDArray,
    log_a: NDArray,
    log_b: NDArray,
    eps: float,
    most: int,
    enough: float,
) -> tuple[NDArray, NDArray, int]:
    """Iterate at one temperature until at most `enough` of the mass is misplaced."""
    relaxation = _RELAXED_COLD if eps < _COLD * costs.largest else _RELAXED
    best = math.inf
    used = 0
    for used in range(1, most + 1):
        factor = relaxation if used > 3 else 1.0  # plain steps first, at every new temperature
        f = f + factor * (costs.soften_rows(g, log_b, eps) - f)
        new = costs.soften_columns(f, log_a, eps)
        # By this much the column sums of the plan miss b before the step.
        off = float(b @ np.abs(np.expm1(np.clip((g - new) / eps, -700.0, 2.0))))
        g = g + factor * (new - g)
        if off <= enough:
            break
        if off > 2 * best:
            relaxation = 1.0
        best = min(best, off)
    return costs.soften_rows(g, log_b, eps), g, used
