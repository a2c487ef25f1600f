"""Directional derivatives of velocities and steps, for several tangent vectors at a time.

They run along with the tokens, where the adjoint runs back (docs/theory/chaos.md). The weights are
formed once for all vectors, and sums over tokens are products of matrices: for each vector, a pair
of tokens and a head take 3 d + 1 multiply-adds. Nothing of size n x n is kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wflow._core.tableaux import moved
from wflow.gradients.adjoint import Record
from wflow.kernels.evaluate import DIRECTIONS
from wflow.particles.problem import Problem
from wflow.sphere.geometry import project_unchecked

Array = NDArray[np.floating]

_ENTRIES = 2**16  # of weights that are held at a time
_PRODUCTS_FROM = 9  # coordinates from which the products of two vectors are too many to sum them


def velocity_tangents(
    x: Array,
    D: Array,
    tangents: Array,
    *,
    values: Array | None = None,
    flow: str = "softmax",
    direction: str = "descent",
    causal: bool = False,
) -> tuple[Array, float]:
    """Return the derivatives of the velocities of a cloud, and the divergence of the flow.

    Parameters
    ----------
    x : (n, d)
    D, values : (heads, d, d); values None for tied heads
    tangents : (k, n, d), tangential

    Returns
    -------
    (k, n, d), and the trace of the derivative over the tangent spaces of all tokens
    """
    (n, d), heads, k = x.shape, len(D), len(tangents)
    V, sign = (D, DIRECTIONS[direction]) if values is None else (values, 1.0)
    q, turned, image = x @ D, x @ D.swapaxes(1, 2), x @ V.swapaxes(1, 2)  # D^T x, D x, V x
    pull = np.matmul(tangents[:, None], D)  # D^T xi, (k, heads, n, d)
    counted = np.concatenate([x, np.ones((n, 1))], axis=1)
    columns = tangents.swapaxes(0, 1).reshape(n, k * d)
    few = d < _PRODUCTS_FROM
    if few:
        both = np.concatenate([x, columns], axis=1)
        columns = (both[:, :, None] * counted[:, None]).reshape(n, -1)
    aligned = _dot(turned, image)
    log_m, own, spread = np.empty((3, heads, n))
    M, change = np.empty((heads, n, d)), np.empty((k, heads, n, d + 1))
    step = max(1, _ENTRIES // (heads * n))
    for first in range(0, n, step):
        rows = slice(first, min(first + step, n))
        count = rows.stop - first
        scores = (q[:, rows].reshape(-1, d) @ x.T).reshape(heads, count, n)
        turns = scores  # <x_i, V x_j>
        if values is not None:
            turns = ((x @ V)[:, rows].reshape(-1, d) @ x.T).reshape(heads, count, n)
        hidden = np.arange(n) > np.arange(n)[rows, None] if causal else False
        seen = np.where(hidden, -np.inf, scores)
        top = seen.max(axis=2, keepdims=True)
        p = np.exp(np.subtract(seen, top, out=seen), out=seen)
        total = p.sum(axis=2, keepdims=True)
        p /= total
        log_m[:, rows] = (top + np.log(total))[..., 0]
        M[:, rows] = p @ x
        own[:, rows] = p[:, np.arange(count), np.arange(n)[rows]]
        spread[:, rows] = np.einsum("hij,hij->hi", p, aligned[:, None] - turns * scores)
        # Sums of p times the derivative of the score times x and 1, and of p times xi.
        sums = p.reshape(-1, n) @ columns
        if few:
            moments = sums.reshape(heads, count, 1 + k, d, d + 1)
            found = np.einsum("ahil,hilm->ahim", pull[:, :, rows], moments[:, :, 0])
            found += np.einsum("hil,hialm->ahim", q[:, rows], moments[:, :, 1:])
            means = moments[:, :, 1:, :, d]
        else:
            found, means = np.empty((k, heads, count, d + 1)), sums.reshape(heads, count, k, d)
            for one, xi, pulled in zip(found, tangents, pull, strict=True):
                of_scores = pulled[:, rows] @ x.T + q[:, rows] @ xi.T
                one[:] = (of_scores * p) @ counted
        found[..., :d] += np.moveaxis(means, 2, 0)
        change[:, :, rows] = found
    of_M, of_log_m = change[..., :d], change[..., d]
    of_M -= of_log_m[..., None] * M
    # The trace over a token's own tangent space: first of dM, then of d log m.
    VM, DM = M @ V.swapaxes(1, 2), M @ D.swapaxes(1, 2)
    along = _dot(x, VM)
    trace = spread - _dot(VM, DM) + along * _dot(x, DM)
    trace += own * (_dot(project_unchecked(x, image - VM), q) - _dot(x, image))
    trace += own * np.trace(V, axis1=1, axis2=2)[:, None]
    log_f = np.zeros_like(log_m)
    of_log_f = np.zeros_like(of_log_m)
    if flow != "softmax":
        log_f, of_log_f = log_m - np.log(n), of_log_m
        of_own = DM + own[..., None] * q
        if flow == "effective":
            low = log_m.min(axis=0)
            shares = np.exp(low - log_m)
            log_f = log_m - low + np.log(shares.mean(axis=0))
            shares /= shares.sum(axis=0)
            of_log_f = of_log_m - np.sum(shares * of_log_m, axis=1, keepdims=True)
            of_own = of_own - np.sum(shares[..., None] * of_own, axis=0)
        trace += _dot(project_unchecked(x, VM), of_own)
    f = sign / heads * np.exp(log_f)
    A = np.einsum("hi,hik->ik", f, VM)
    of_M += of_log_f[..., None] * M
    of_A = (f[..., None] * of_M @ V.swapaxes(1, 2)).sum(axis=1)
    radial = np.einsum("ik,ik->i", x, A)
    divergence = np.sum(f * trace) - (d - 1) * np.sum(radial)
    derivatives = project_unchecked(x, of_A) - radial[:, None] * tangents
    derivatives -= _dot(tangents, A)[..., None] * x
    return derivatives, float(divergence)


def _dot(a: Array, b: Array) -> Array:
    return np.einsum("...k,...k->...", a, b)


def step_tangents(
    problem: Problem, record: Record, path: int, tangents: Array
) -> tuple[Array, float]:
    """Return tangent vectors (k, n, d) of a path after a step, and its mean divergence."""
    dt, scheme = record.step.dt, problem.scheme
    slopes: list[Array] = []
    divergence = 0.0
    for at in range(scheme.stages):
        x, inner, values = record.points[at][path], tangents, record.values[at]
        if at:
            inner = moved(tangents, dt, scheme.matrix[at], slopes)
            inner = project_unchecked(x, inner) / record.norms[at][path]
        found, of_stage = velocity_tangents(
            x,
            record.D[at][path],
            inner,
            values=values if values is None or values.ndim == 3 else values[path],
            flow=problem.flow.name,
            direction=problem.direction,
            causal=problem.causal,
        )
        slopes.append(found)
        divergence += scheme.weights[at] * of_stage
    start = tangents
    if record.noise is not None:
        start = _geodesic_tangents(record.points[0][path], record.noise[path], tangents)
    end = moved(start, dt, scheme.weights, slopes)
    return project_unchecked(record.after[path], end) / record.norm[path], divergence


def _geodesic_tangents(x: Array, noise: Array, tangents: Array) -> Array:
    """Return the derivative of cos|u| x + sin|u|/|u| u, u = P_x noise, along tangents of x."""
    along = _dot(x, noise)[..., None]
    u = noise - along * x
    of_u = -_dot(tangents, noise)[..., None] * x - along * tangents
    angle = np.sqrt(_dot(u, u))[..., None]
    sinc = np.sinc(angle / np.pi)
    safe = np.maximum(angle, 1e-4)  # below, the derivative of sinc over the angle by its series
    bend = np.where(
        angle < safe, -1 / 3 + angle**2 / 30, (np.cos(safe) - np.sinc(safe / np.pi)) / safe**2
    )
    along_u = _dot(u, of_u)[..., None]
    return np.cos(angle) * tangents + sinc * (of_u - along_u * x) + bend * along_u * u
