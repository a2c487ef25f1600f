"""Directional derivatives of velocities and steps, for several tangent vectors at a time.

They run along with the tokens, where the adjoint runs back (docs/theory/chaos.md). The weights are
formed once for all vectors, and sums over tokens are products of matrices: for each vector, a pair
of tokens and a head take 3 d + 1 multiply-adds. Nothing of size n x n is kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wflow._core.tableaux import moved
from wflow.gradients.adjoint import Record, norms
from wflow.kernels.evaluate import DIRECTIONS
from wflow.particles.integrate import Batch as ParticleBatch
from wflow.sphere.geometry import exponential_unchecked, project_unchecked

Array = NDArray[np.floating]

_ENTRIES = 2**14  # of weights that are held at a time
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
) -> tuple[Array, Array]:
    """Return the derivatives of the velocities of clouds, and the divergences of their flows.

    Parameters
    ----------
    x : (paths, n, d)
    D : (paths, heads, d, d)
    tangents : (paths, k, n, d), tangential
    values : of the shape of D or (heads, d, d); None for tied heads

    Returns
    -------
    (paths, k, n, d), and (paths,) traces of the derivative over the tangent spaces of all tokens
    """
    (paths, n, d), heads, k = x.shape, D.shape[1], tangents.shape[1]
    V, sign = (D, DIRECTIONS[direction]) if values is None else (values, 1.0)
    V = np.broadcast_to(V, D.shape)
    each = x[:, None]
    q, turned, image = each @ D, each @ D.swapaxes(2, 3), each @ V.swapaxes(2, 3)  # D^T x, D x, V x
    pull = tangents[:, :, None] @ D[:, None]  # D^T xi, (paths, k, heads, n, d)
    counted = np.concatenate([x, np.ones((paths, n, 1))], axis=2)
    columns = tangents.swapaxes(1, 2).reshape(paths, n, k * d)
    few = d < _PRODUCTS_FROM
    if few:
        both = np.concatenate([x, columns], axis=2)
        columns = (both[..., None] * counted[:, :, None]).reshape(paths, n, -1)
    aligned = _dot(turned, image)
    log_m, own, spread = np.empty((3, paths, heads, n))
    M, change = np.empty((paths, heads, n, d)), np.empty((paths, k, heads, n, d + 1))
    step = max(1, _ENTRIES // (paths * heads * n))
    for first in range(0, n, step):
        rows = slice(first, min(first + step, n))
        count = rows.stop - first
        scores = _scores(q[:, :, rows], x)
        turns = scores if values is None else _scores((each @ V)[:, :, rows], x)  # <x_i, V x_j>
        hidden = np.arange(n) > np.arange(n)[rows, None] if causal else False
        p = np.where(hidden, -np.inf, scores)
        top = p.max(axis=3, keepdims=True)
        p -= top
        np.exp(p, out=p)
        total = p.sum(axis=3, keepdims=True)
        p /= total
        log_m[:, :, rows] = (top + np.log(total))[..., 0]
        M[:, :, rows] = p @ each
        own[:, :, rows] = p[..., np.arange(count), np.arange(n)[rows]]
        spread[:, :, rows] = _dot(p, aligned[:, :, None] - turns * scores)
        # Sums of p times the derivative of the score times x and 1, and of p times xi.
        sums = p.reshape(paths, -1, n) @ columns
        if few:
            moments = sums.reshape(paths, heads, count, 1 + k, d, d + 1)
            found = np.einsum("pahil,philm->pahim", pull[:, :, :, rows], moments[:, :, :, 0])
            found += np.einsum("phil,phialm->pahim", q[:, :, rows], moments[:, :, :, 1:])
            means = moments[..., 1:, :, d]
        else:
            found = np.empty((paths, k, heads, count, d + 1))
            means = sums.reshape(paths, heads, count, k, d)
            for a in range(k):
                of_scores = _scores(pull[:, a, :, rows], x) + _scores(q[:, :, rows], tangents[:, a])
                found[:, a] = (of_scores * p) @ counted[:, None]
        found[..., :d] += np.moveaxis(means, 3, 1)
        change[:, :, :, rows] = found
    of_M, of_log_m = change[..., :d], change[..., d]
    of_M -= of_log_m[..., None] * M[:, None]
    # The trace over a token's own tangent space: first of dM, then of d log m.
    VM, DM = M @ V.swapaxes(2, 3), M @ D.swapaxes(2, 3)
    trace = spread - _dot(VM, DM) + _dot(each, VM) * _dot(each, DM)
    trace += own * (_dot(project_unchecked(each, image - VM), q) - _dot(each, image))
    trace += own * np.trace(V, axis1=2, axis2=3)[..., None]
    log_f, of_log_f = np.zeros_like(log_m), np.zeros_like(of_log_m)
    if flow != "softmax":
        log_f, of_log_f = log_m - np.log(n), of_log_m
        of_own = DM + own[..., None] * q
        if flow == "effective":
            low = log_m.min(axis=1, keepdims=True)
            shares = np.exp(low - log_m)
            log_f = log_m - low + np.log(shares.mean(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            of_log_f = of_log_m - np.sum(shares[:, None] * of_log_m, axis=2, keepdims=True)
            of_own = of_own - np.sum(shares[..., None] * of_own, axis=1, keepdims=True)
        trace += _dot(project_unchecked(each, VM), of_own)
    f = sign / heads * np.exp(log_f)
    A = np.einsum("phi,phik->pik", f, VM)
    of_M += of_log_f[..., None] * M[:, None]
    of_A = (f[:, None, ..., None] * of_M @ V.swapaxes(2, 3)[:, None]).sum(axis=2)
    radial = _dot(x, A)
    divergence = np.sum(f * trace, axis=(1, 2)) - (d - 1) * np.sum(radial, axis=1)
    derivatives = project_unchecked(each, of_A) - radial[:, None, :, None] * tangents
    derivatives -= _dot(tangents, A[:, None])[..., None] * each
    return derivatives, divergence


def _scores(z: Array, x: Array) -> Array:
    """Return <z_hi, x_j>, (paths, heads, rows, n), of z (paths, heads, rows, d)."""
    products = z.reshape(len(x), -1, z.shape[3]) @ x.swapaxes(1, 2)
    return products.reshape(*z.shape[:3], x.shape[1])


def _dot(a: Array, b: Array) -> Array:
    return np.asarray(np.einsum("...k,...k->...", a, b))


def step_tangents(solver: ParticleBatch, record: Record, tangents: Array) -> tuple[Array, Array]:
    """Return tangent vectors (paths, k, n, d) after a step, and its mean divergences (paths,)."""
    number, t, dt, start, move, velocities = record
    problem, values_at = solver.problem, solver.heads.values(t)
    scheme = problem.scheme
    slopes: list[Array] = []
    divergence = np.zeros(len(tangents))
    for at in range(scheme.stages):
        x, inner = start, tangents
        if at:
            y = moved(start, dt, scheme.matrix[at], velocities[:at])
            norm = norms(y)
            x = y / norm
            inner = moved(tangents, dt, scheme.matrix[at], slopes)
            inner = project_unchecked(x[:, None], inner) / norm[:, None]
        law_values = values_at(t + scheme.nodes[at] * dt)
        found, of_stage = velocity_tangents(
            x,
            np.asarray(move.inner(*scheme.row(at)[1:])),
            inner,
            values=problem.values if law_values is None else law_values,
            flow=problem.flow.name,
            direction=problem.direction,
            causal=problem.causal,
        )
        slopes.append(found)
        divergence += scheme.weights[at] * of_stage
    noise = solver.token_noise(number)
    if noise is not None:
        tangents = _geodesic_tangents(start[:, None], noise[:, None], tangents)
        start = exponential_unchecked(start, project_unchecked(start, noise))
    after = moved(start, dt, scheme.weights, velocities)
    norm = norms(after)
    end = moved(tangents, dt, scheme.weights, slopes)
    return project_unchecked((after / norm)[:, None], end) / norm[:, None], divergence


def _geodesic_tangents(x: Array, noise: Array, tangents: Array) -> Array:
    """Return the derivative of cos|u| x + sin|u|/|u| u, u = P_x noise, along tangents of x."""
    along = _dot(x, noise)[..., None]
    u = noise - along * x
    of_u = -_dot(tangents, noise)[..., None] * x - along * tangents
    angle = norms(u)
    sinc = np.sinc(angle / np.pi)
    safe = np.maximum(angle, 1e-4)  # below, the derivative of sinc over the angle by its series
    bend = np.where(
        angle < safe, -1 / 3 + angle**2 / 30, (np.cos(safe) - np.sinc(safe / np.pi)) / safe**2
    )
    along_u = _dot(u, of_u)[..., None]
    return np.cos(angle) * tangents + sinc * (of_u - along_u * x) + bend * along_u * u
