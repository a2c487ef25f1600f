"""Fast sums with PyTorch: the series of `kernels.harmonic` as matrix products, on any device.

What grows with tokens, paths or heads runs on the device: harmonics, moments, coefficients of the
heads, and their evaluation at the tokens, tile by tile. Degrees, bounds of errors and the heads
that are summed exactly are decided on the CPU, by the functions of `kernels.harmonic`. Paths whose
longest series have one degree are expanded together; those whose series serve the same heads are
evaluated together. What no series can serve goes through `tiles`.

All of it is in double precision, for tokens in single precision too. Sums have a fixed order and no
atomic additions, as in `sums`.
Formulas, bounds of errors and costs: docs/theory/fast_sums.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from wflow.kernels.harmonic.fast import (
    Expanded,
    as_doubles,
    expansion_error,
    plain,
    relative_error,
    squared_forms,
)
from wflow.kernels.harmonic.series import (
    AREA,
    Plan,
    check_tolerance,
    layout,
    node_count,
    plan,
    shortened,
    spare,
)
from wflow.kernels.harmonic.weighted import masses_of, plan_weighted, sum_exactly
from wflow.kernels.pairs.headsums import ITO_POWER, N_TERMS, PAIRS, SECOND_VARIATION
from wflow.kernels.torch.sums import (
    download,
    finish,
    strong_heads,
    torch_head_sums,
    upload,
    within_memory,
)
from wflow.kernels.torch.tiles import (
    SCALARS,
    RunningSums,
    Sources,
    blocks,
    laplacian_share,
    tile_values,
    tiled_laplacian,
    tiled_sums,
)
from wflow.sphere.harmonics import count, half_quadrature, recursion_table

Floats = NDArray[np.float64]


def series_sums(
    x: NDArray[np.floating],
    score: NDArray[np.floating],
    value: NDArray[np.floating],
    drift: NDArray[np.floating],
    noise: NDArray[np.floating],
    sigma2: NDArray[np.floating],
    flow: int,
    sign: float,
    tolerance: float,
    device: str,
) -> tuple[NDArray[np.floating], Floats, Floats]:
    """Return velocities and energy terms of all paths by truncated series, on a device.

    Parameters
    ----------
    x, ..., tolerance : as for `harmonic.fast.fast_sums`; a token that would miss the tolerance in a
        head is summed exactly there
    device : as `sums.resolve_device` returns it

    Returns
    -------
    v (paths, n, d), terms (paths, N_TERMS), error (paths,), as from `harmonic.fast.fast_sums`

    Raises
    ------
    InputError
        For d > 3, a tolerance out of range, and arrays that do not fit into the memory of the GPU.
    """
    tolerance = check_tolerance(tolerance, x.shape[-1])
    others = [plain(a) for a in (value, drift, noise, sigma2)]
    heads, ito = score.shape[1], sigma2.shape[1] > 0
    moving = others[2] if ito and noise.shape[1] else None
    v = np.full_like(x, np.nan)
    terms, error = np.full((len(x), N_TERMS), np.nan), np.full(len(x), np.nan)
    with within_memory(x, score, device):
        for group in _groups(x, score, 2 if ito else 1, tolerance, device, moving):
            given = [upload(a[group.paths], device) for a in others]
            state = _running_sums(group, given, tolerance)
            found = finish(state, group.x, heads, flow, sign)
            v[group.paths], terms[group.paths] = map(download, found)
            error[group.paths] = group.errors()
            for p, one in zip(group.paths, group.series, strict=True) if ito else ():
                pairs = others[3][p, one.order] @ (one.mean + one.squares)[one.order]
                terms[p, ITO_POWER] += pairs / (2 * heads * PAIRS[ITO_POWER])
                second = one.along_noise[one.order].sum()
                terms[p, SECOND_VARIATION] += second / (2 * heads * PAIRS[SECOND_VARIATION])
    return v, terms, error


def _running_sums(group: _Group, given: Sequence[torch.Tensor], tolerance: float) -> torch.Tensor:
    """Return running sums over heads (1 or 2, 2 d + 10, paths, n), as `sums.finish` takes them.

    given : values, drifts with last moves, noise and sigma2 of all heads of the paths
    """
    heads = group.D.shape[1]

    def of(some: NDArray[np.int64]) -> list[torch.Tensor]:
        places = np.concatenate([some, heads + some])  # drifts and last moves
        return [a[:, places[places < a.shape[1]]] for a in given]

    paths, n, d = group.x.shape
    state = []
    if len(group.order):
        out = group.x.new_empty((2 * d + len(SCALARS), paths, n))
        value, drift, noise, _ = of(group.order)
        number = len(group.order)
        for chosen, rows, own, found in group.parts(tolerance):
            sums = RunningSums(own)
            m, S, shift, square = found
            sums.absorb(
                m, S, None, None, shift, square, value[chosen],
                drift[chosen, :number] if drift.shape[1] else None,
                drift[chosen, number:] if drift.shape[1] > number else None,
                noise[chosen] if noise.shape[1] else None, None,
            )  # fmt: skip
            sums.store(out[:, chosen, rows])
        state.append(out)
    if len(group.alone):
        strong = group.strong[:, group.alone]
        value, drift, noise, sigma2 = of(group.alone)
        score = group.D[:, group.alone]
        state.append(tiled_sums(group.x, score, value, drift, noise, sigma2, False, strong))
    return torch.stack(state)


def series_laplacian(
    x: NDArray[np.floating], score: NDArray[np.floating], tolerance: float, device: str
) -> tuple[Floats, Floats]:
    """Return the Laplacian of the energy summed over tokens, and its error: (paths,) each.

    Parameters
    ----------
    x, score, tolerance : as for `harmonic.laplacian.fast_laplacian`
    device : as `sums.resolve_device` returns it

    Raises
    ------
    InputError
        As for `series_sums`.
    """
    tolerance = check_tolerance(tolerance, x.shape[-1])
    n, heads = x.shape[1], score.shape[1]
    laplacian, error = (np.full(len(x), np.nan) for _ in range(2))
    with within_memory(x, score, device):
        for group in _groups(x, score, 3, tolerance, device):
            order, alone = group.order, group.alone
            total = np.zeros(len(group.paths))
            if len(order):
                shares = torch.zeros_like(group.x[..., 0])
                for chosen, rows, own, (m, S, shift, square) in group.parts(tolerance):
                    D = group.D[chosen][:, order]
                    share = laplacian_share(own, D, m, S, None, shift, square)
                    shares[chosen, rows] = share.sum(1)
                total += download(shares.sum(-1)) / n / n
                total -= [one.squares[order].sum() for one in group.series]
            if len(alone):
                exact = tiled_laplacian(group.x, group.D[:, alone], group.strong[:, alone])
                total += len(alone) * download(exact)
            laplacian[group.paths] = total / heads
            error[group.paths] = group.errors()
    return laplacian, error


def series_head_sums(
    x: NDArray[np.floating],
    D: NDArray[np.floating],
    sources: NDArray[np.floating],
    weights: NDArray[np.floating] | None,
    vectors: bool,
    tolerance: float,
    device: str,
) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating], Floats]:
    """Return (shift, m, S, error) of every head at every target by truncated series, on a device.

    Parameters
    ----------
    x, ..., tolerance : as for `harmonic.weighted.fast_head_sums`
    device : as `sums.resolve_device` returns it

    Raises
    ------
    InputError
        As for `series_sums`.
    """
    tolerance = check_tolerance(tolerance, x.shape[-1])
    (paths, targets, d), heads = x.shape, D.shape[1]
    points, clouds, matrices = as_doubles(x), as_doubles(sources), plain(D)
    given = [None if weights is None else plain(weights[p]) for p in range(paths)]
    masses = [masses_of(w) for w in given]
    planned = [
        plan_weighted(points[p], matrices[p], clouds[p], masses[p][0], tolerance)
        for p in range(paths)
    ]
    plans = [chosen for chosen, _ in planned]
    shift, m = np.zeros((paths, heads, targets)), np.full((paths, heads, targets), np.nan)
    S = np.full((paths, heads, targets if vectors else 0, d), np.nan)
    error = np.full(paths, np.nan)
    bound = np.full((paths, heads), np.inf)  # of heads without a series
    norm = np.ones((paths, heads))
    exact = partial(torch_head_sums, causal=False, vectors=vectors, device=device)
    with within_memory(x, D, device):
        for some in _alike(plans, d, device):
            own, cloud, of = (upload(a[some], device) for a in (points, clouds, matrices))
            mass = None
            if weights is not None:
                mass = upload(np.stack([np.asarray(masses[p][0]) for p in some]), device)
            found = _expansions(cloud, of, [plans[p] for p in some], int(vectors), mass)
            degrees = np.full(len(some), -1)
            for row, p in enumerate(some):
                chosen, signed = planned[p]
                order = np.flatnonzero(chosen.degrees >= 0)
                # Weights of both signs cancel, to how much no bound of a head says beforehand.
                low = np.where(signed, -np.inf, chosen.low)
                ends, missing = found.ends(row, order, low, tolerance)
                degrees[row] = ends.max(initial=-1)
                bound[p, order] = found.error[row, order] + missing
                norm[p] = masses[p][1]
            scale = upload(norm[some], device)
            for part, rows, _, values in _values(own, found.coefficient, degrees, scale):
                at = np.array(some)[part]
                m[at, :, rows] = download(values[:, :, 0].contiguous())
                if vectors:
                    S[at, :, rows] = download(values[:, :, 1:].mT.contiguous())
            for p in some:
                error[p] = sum_exactly(
                    points[p], matrices[p], clouds[p], given[p], plans[p], bound[p], norm[p],
                    tolerance, shift[p], m[p], S[p], exact,
                )  # fmt: skip
    shift, m, S = (a.astype(x.dtype, copy=False) for a in (shift, m, S))
    return shift, m, S, error


# Paths that are treated together
# -------------------------------


def _alike(plans: Sequence[Plan], d: int, device: str) -> Iterator[list[int]]:
    """Yield paths whose longest series have one degree; their coefficients fit a tile."""
    degrees = [int(chosen.degrees.max(initial=-1)) for chosen in plans]
    values = tile_values(torch.empty(0, dtype=torch.float64, device=device))
    for degree in sorted(set(degrees)):
        some = [p for p, own in enumerate(degrees) if own == degree and plans[p].finite]
        heads = len(plans[0].degrees)
        together = max(1, values // max(1, heads * count(max(degree, 0), d) * _columns(d, 2)))
        for first in range(0, len(some), together):
            yield some[first : first + together]


class _Group(NamedTuple):
    """Paths whose series serve the same heads.

    paths : their numbers
    x (paths, n, d), D (paths, heads, d, d), strong (paths, heads) : as in `tiles`
    coefficient : of all heads, as in `_Expansions`
    series, plans : one of each path
    lowest (paths, heads) : smallest value of each head's series, over the tokens; from `parts`
    """

    paths: NDArray[np.int64]
    x: torch.Tensor
    D: torch.Tensor
    strong: NDArray[np.bool_]
    coefficient: torch.Tensor
    series: list[Expanded]
    plans: list[Plan]
    lowest: torch.Tensor

    @property
    def order(self) -> NDArray[np.int64]:
        """Return heads with a series."""
        return self.series[0].order

    @property
    def alone(self) -> NDArray[np.int64]:
        """Return heads that are summed exactly."""
        return self.series[0].alone

    def errors(self) -> list[float]:
        """Return the relative error of each path, after all `parts`."""
        lowest = np.asarray(download(self.lowest))
        return [
            relative_error(one, chosen, low, self.x.shape[1])
            for one, chosen, low in zip(self.series, self.plans, lowest, strict=True)
        ]

    def parts(
        self, tolerance: float
    ) -> Iterator[tuple[slice, slice, torch.Tensor, tuple[torch.Tensor, ...]]]:
        """Yield all tokens by tiles: paths, rows, tokens, and (m, S, shift, |D^T x|^2) of the heads
        with a series, as `tiles` has them.
        """
        n, order = self.x.shape[1], self.order
        D, strong = self.D[:, order], self.strong[:, order]
        degrees = np.array([one.degrees.max() for one in self.series])
        scale = torch.full_like(D[..., 0, 0], n)
        error = np.stack([one.error[order] for one in self.series])
        limit = upload(n * error * (1 + 1 / tolerance), str(self.x.device))[..., None]
        for some, rows, own, values in _values(self.x, self.coefficient[:, order], degrees, scale):
            m, S = values[:, :, 0], values[:, :, 1:].mT
            square = torch.matmul(own[:, None], D[some]).square().sum(-1)
            shift = torch.zeros_like(m)
            good = m >= limit[some]  # false for NaN
            low = torch.where(good, m, math.inf).amin(-1)
            before = self.lowest[some]
            before[:, order] = torch.minimum(before[:, order], low)
            for p, h in (~good).any(-1).nonzero().tolist():
                at = (~good[p, h]).nonzero()[:, 0]
                path, head = some.start + p, slice(h, h + 1)
                cloud = self.x[path : path + 1]
                for block in blocks(
                    own[p : p + 1, at], Sources.of(cloud), D[path : path + 1, head],
                    strong[path : path + 1, head], None, False,
                ):  # fmt: skip
                    for _, found in block.sums:
                        redone = at[block.rows]
                        m[p, h, redone], shift[p, h, redone] = found[0][0, 0], found[4][0, 0]
                        S[p, h, redone] = found[1][0, 0]
            yield some, rows, own, (m, S, shift, square)


def _groups(
    x: NDArray[np.floating], score: NDArray[np.floating], products: int, tolerance: float,
    device: str, noise: Floats | None = None,
) -> Iterator[_Group]:  # fmt: skip
    """Yield all finite paths with their series, as `harmonic.fast.expanded` does."""
    tokens, score = as_doubles(x), plain(score)
    plans = [plan(*path, tolerance) for path in zip(tokens, score, strict=True)]
    for some in _alike(plans, tokens.shape[2], device):
        own, D = upload(tokens[some], device), upload(score[some], device)
        moving = None if noise is None else noise[some]
        found = _expansions(own, D, [plans[p] for p in some], products, noise=moving)
        series = [found.served(row, plans[p], tolerance) for row, p in enumerate(some)]
        orders = [one.order.tobytes() for one in series]
        strong = strong_heads(score[some])
        for order in dict.fromkeys(orders):
            rows = [row for row, own in enumerate(orders) if own == order]
            whole = slice(None) if len(rows) == len(some) else rows
            yield _Group(
                np.array(some)[whole], own[whole], D[whole], strong[whole],
                found.coefficient[whole, :, :, : 1 + tokens.shape[2]], [series[k] for k in rows],
                [plans[some[k]] for k in rows],
                torch.full((len(rows), score.shape[1]), math.inf, dtype=own.dtype, device=device),
            )  # fmt: skip


# Moments, coefficients, evaluation
# ---------------------------------


class _Expansions(NamedTuple):
    """Series of the heads of several paths.

    coefficient : (paths, heads, K, columns) zero beyond a head's degree
    sizes (paths, heads, L + 1) : as from `series.sizes_by_degree`, the larger of 1 and coordinates
    error, mean, squares, along_noise (paths, heads) : as in `harmonic.fast.Expanded`
    """

    coefficient: torch.Tensor
    sizes: Floats
    error: Floats
    mean: Floats
    squares: Floats
    along_noise: Floats

    def ends(
        self, path: int, order: NDArray[np.int64], low: Floats, tolerance: float
    ) -> tuple[NDArray[np.int64], Floats]:
        """Return `harmonic.series.ends` for the heads `order` of a path."""
        room = spare(self.error[path, order], low[order], tolerance)
        return shortened(self.sizes[path, order], room)

    def served(self, path: int, chosen: Plan, tolerance: float) -> Expanded:
        """Return what `harmonic.fast.expanded` does, with the degrees that are evaluated."""
        error, mean = self.error[path].copy(), self.mean[path]
        with np.errstate(invalid="ignore"):
            kept = (chosen.degrees >= 0) & (error * (1 + 1 / tolerance) <= mean)
        order = np.flatnonzero(kept)
        degrees, missing = self.ends(path, order, chosen.low, tolerance)
        error[order] += missing
        none = np.empty(0)
        return Expanded(
            order, np.flatnonzero(~kept), degrees, none, none, error, mean, self.squares[path],
            self.along_noise[path],
        )  # fmt: skip


def _expansions(
    cloud: torch.Tensor, D: torch.Tensor, plans: Sequence[Plan], products: int,
    mass: torch.Tensor | None = None, noise: Floats | None = None,
) -> _Expansions:  # fmt: skip
    """Return the series of all heads of paths whose longest ones have one degree.

    Parameters
    ----------
    cloud : (paths, n, d) sources; D : (paths, heads, d, d)
    products : as for `series.coefficients`
    mass : (paths, 1 or heads, n) of L1 norm one; None for 1/n, where means over the sources are
        computed too
    noise : (paths, heads, d, d), as for `harmonic.fast.expanded`
    """
    paths, heads, d = D.shape[:3]
    device = str(D.device)
    degrees = np.stack([chosen.degrees for chosen in plans])
    degree = int(degrees.max(initial=-1))
    error, mean, squares, along = (np.zeros((paths, heads)) for _ in range(4))
    if degree < 0:
        nothing = D.new_empty((paths, heads, 0, 1 + d))
        return _Expansions(nothing, np.zeros((paths, heads, 1)), error, mean, squares, along)
    source = _sources(cloud, degree + min(products, 2), mass)
    level = _levels(degree, d, device)
    numbers = upload(degrees.reshape(-1), device)
    D = torch.where((numbers >= 0).view(paths, heads, 1, 1), D, 0.0).reshape(-1, d, d)
    tops = np.stack([chosen.tops for chosen in plans])
    top, starts = max(int(tops.max()), degree), upload(tops.reshape(-1), device)
    columns = _columns(d, products)
    coefficient = D.new_empty((paths * heads, len(level), columns))
    strength = D.new_empty(paths * heads)
    north = torch.eye(d, dtype=D.dtype, device=device)[0]
    many = source.points.shape[-2]
    together = max(1, tile_values(D) // (many * (len(level) + 4 * columns + 8)))
    for first in range(0, paths * heads, together):
        some = slice(first, min(first + together, paths * heads))
        p = torch.arange(some.start, some.stop, device=device) // heads
        h = torch.arange(some.start, some.stop, device=device) % heads
        y = source.points[p if len(source.points) > 1 else p * 0]
        w = source.mass[p, h if source.mass.shape[1] > 1 else h * 0]
        z = torch.matmul(y, D[some].mT)
        r = z.square().sum(-1).sqrt()
        zhat = torch.where(r[..., None] > 1e-150, z / r[..., None], north)
        strength[some] = (w[:, 2] * r.exp()).sum(-1)
        radial = _radial(r, degree, top, starts[some, None], d)
        terms = _monomials(y, products, z)
        part = _projected(_harmonics(zhat, degree), terms, w, degree, d, radial)
        inside = level <= numbers[some, None]
        coefficient[some] = torch.where(inside[..., None], part, 0.0)
    coefficient = coefficient.view(paths, heads, len(level), columns)
    squared = coefficient[..., : 1 + d].square()
    by_degree = _indicator(degree, d, device)
    of_one = squared[..., 0] @ by_degree
    largest = torch.maximum(of_one, squared[..., 1:].sum(-1) @ by_degree)
    sizes = torch.sqrt(largest * by_degree.sum(0) / AREA[d])
    strengths = download(strength).reshape(paths, heads)
    factor, extra = (np.broadcast_to(a, (paths, heads)) for a in (source.factor, source.noise))
    for row, chosen in enumerate(plans):
        order = np.flatnonzero(chosen.degrees >= 0)
        bounds = (a[row, order] for a in (factor, extra, strengths))
        error[row, order] = expansion_error(chosen, order, *bounds)
    if mass is None:
        moment = _moments_with_products(source, min(products, 2), degree)
        mean = download((coefficient[..., 0] @ moment[:, :, :1])[..., 0])
        if products > 1:
            pairs = coefficient[..., 1 + d :].mT @ moment[:, None, :, 1 + d :]
            found = download(pairs)
            twice = np.array([1.0 if a == b else 2.0 for a in range(d) for b in range(a, d)])
            squares = np.einsum("phcc,c->ph", found, twice)
            if noise is not None:
                forms = np.stack([squared_forms(N) for N in noise])
                along = np.einsum("phyx,phxy->ph", found, forms)
    return _Expansions(coefficient, download(sizes), error, mean, squares, along)


class _Sources(NamedTuple):
    """As `harmonic.fast.Sources`, of several paths.

    points : (paths, q, d), or (1, q, d) where all paths have the same nodes
    mass : (paths, sets, 3, q); factor, noise : (paths, sets)
    """

    points: torch.Tensor
    mass: torch.Tensor
    factor: Floats
    noise: Floats


def _sources(cloud: torch.Tensor, last: int, mass: torch.Tensor | None) -> _Sources:
    """Return points and weights that replace sources (paths, n, d), as `harmonic.fast.sources`."""
    paths, n, d = cloud.shape
    device = str(cloud.device)
    if n <= node_count(last, d):
        own = torch.full_like(cloud[:, None, :, 0], 1 / n) if mass is None else mass
        one = np.ones((paths, own.shape[1]))
        return _Sources(cloud, torch.stack([own, own, own.abs()], dim=2), one, 0 * one)
    moment = _moments(cloud, mass, last)
    points, share, basis = _nodes(d, last, device)
    by_degree = _indicator(last, d, device)
    odd = by_degree[:, 1::2].sum(-1)
    alike, other = (2 * share * ((moment * which) @ basis[0]) for which in (1 - odd, odd))
    whole = torch.maximum(alike.abs(), other.abs())
    sizes = (moment.square() @ by_degree).sqrt()
    noise = download((sizes * (by_degree.sum(0) * AREA[d]).sqrt()).sum(-1))
    if mass is not None:
        noise = np.maximum(noise, 1.0)
    factor = 1 + 2 * download(whole.sum(-1))
    return _Sources(points[None], torch.stack([alike, other, whole], dim=2), factor, noise)


def _moments(cloud: torch.Tensor, mass: torch.Tensor | None, degree: int) -> torch.Tensor:
    """Return sums of mass_j Y_k(x_j) over the points (paths, n, d): (paths, sets, K)."""
    paths, n, d = cloud.shape
    sets = 1 if mass is None else mass.shape[1]
    found = cloud.new_zeros((paths, sets, count(degree, d)))
    for some, rows in _tiles(cloud, 2 * found.shape[2]):
        basis = _harmonics(cloud[some, rows], degree)
        if mass is None:
            found[some, 0] += basis.sum(-1) / n
        else:
            found[some] += torch.matmul(mass[some, :, rows], basis.mT)
    return found


def _moments_with_products(source: _Sources, products: int, degree: int) -> torch.Tensor:
    """Return integrals of the harmonics times 1, coordinates and products: (paths, K, columns)."""
    paths, d = len(source.mass), source.points.shape[2]
    number, many = count(degree, d), source.points.shape[1]
    found = source.points.new_empty((paths, number, _columns(d, products)))
    together = max(1, tile_values(found) // (many * (number + found.shape[2])))
    for first in range(0, paths, together):
        some = slice(first, first + together)
        y = source.points[some] if len(source.points) > 1 else source.points
        w = source.mass[some, 0]
        terms = _monomials(y, products, y)
        found[some] = _projected(_harmonics(y, degree), terms, w, degree, d)
    return found


def _projected(
    basis: torch.Tensor, terms: torch.Tensor, mass: torch.Tensor, degree: int, d: int,
    radial: Sequence[torch.Tensor] | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return sums over sources of radial_l Y_k w g(y), with g of `_monomials`: (N, K, columns).

    A harmonic of odd degree, and an odd g, change their sign at the antipode.

    Parameters
    ----------
    basis : (N or 1, K, q); terms : (N or 1, q, columns); mass : (N, 3, q)
    radial : factors (N, q) of every degree; None for ones
    """
    odd = torch.arange(terms.shape[-1], device=terms.device)
    odd = (odd > 0) & (odd <= d)
    alike, other = mass[:, 0, :, None], mass[:, 1, :, None]
    weighted = [terms * torch.where(odd, *pair) for pair in ((other, alike), (alike, other))]
    out = basis.new_empty((len(mass), basis.shape[1], terms.shape[-1]))
    start = 0
    for l in range(degree + 1):  # noqa: E741
        some = slice(start, count(l, d))
        of_degree = weighted[l % 2]
        if radial is not None:
            of_degree = of_degree * radial[l][..., None]
        out[:, some] = torch.matmul(basis[:, some], of_degree)
        start = some.stop
    return out


def _columns(d: int, products: int) -> int:
    """Return the number of `_monomials`."""
    return 1 + d * (products > 0) + d * (d + 1) // 2 * (products > 1)


def _monomials(y: torch.Tensor, products: int, z: torch.Tensor) -> torch.Tensor:
    """Return 1, the coordinates y_a (products > 0) and y_a y_b (2) or z_a z_b (3), a <= b, last."""
    parts = [torch.ones_like(y[..., :1])]
    if products > 0:
        parts.append(y)
    if products > 1:
        of = y if products == 2 else z
        a, b = torch.triu_indices(y.shape[-1], y.shape[-1], device=y.device)
        parts.append(of[..., a] * of[..., b])
    return torch.cat(parts, dim=-1)


def _values(
    x: torch.Tensor, coefficient: torch.Tensor, degrees: NDArray[np.int64], scale: torch.Tensor
) -> Iterator[tuple[slice, slice, torch.Tensor, torch.Tensor]]:
    """Yield values of series at the tokens (paths, n, d), tile by tile.

    degrees (paths,) : where those of all heads of a path end, -1 where there are none
    scale (paths, heads) : factors of them

    Yields paths, rows, tokens (paths, rows, d), and values (paths, heads, columns, rows).
    """
    paths, heads, _, columns = coefficient.shape
    degree = int(degrees.max(initial=-1))
    if degree < 0:
        return
    device, d = str(x.device), x.shape[2]
    level = _levels(degree, d, device)
    inside = level <= upload(degrees, device)[:, None]
    matrix = torch.where(inside[:, None, :, None], coefficient[:, :, : len(level)], 0.0)
    matrix = (matrix * scale[..., None, None]).mT.reshape(paths, heads * columns, len(level))
    for some, rows in _tiles(x, 2 * len(level) + 12 * heads * columns):
        own = x[some, rows]
        found = torch.bmm(matrix[some], _harmonics(own, degree))
        yield some, rows, own, found.view(len(own), heads, columns, -1)


def _tiles(x: torch.Tensor, per_token: int) -> Iterator[tuple[slice, slice]]:
    """Yield paths and rows of (paths, n, d) for which so many numbers a token fit a tile."""
    paths, n, _ = x.shape
    values = tile_values(x)
    rows = min(n, max(64, values // per_token))
    together = max(1, values // (rows * per_token))
    for p in range(0, paths, together):
        for start in range(0, n, rows):
            yield slice(p, p + together), slice(start, start + rows)


def _harmonics(points: torch.Tensor, degree: int) -> torch.Tensor:
    """Return harmonics up to a degree at unit points (N, q, d): (N, K, q).

    As `sphere.harmonics`, but with the cosines of a degree before its sines. The powers of x + iy
    are formed by doubling, and the recursion runs for all orders at once.
    """
    number, many, d = points.shape
    out = points.new_empty((number, count(degree, d), many))
    turn = torch.complex(points[..., 0].contiguous(), points[..., 1].contiguous())
    powers = turn.new_ones((number, degree + 1, many))
    if degree:
        powers[:, 1] = turn
    done = 1
    while done < degree:
        more = min(done, degree - done)
        powers[:, done + 1 : done + more + 1] = powers[:, done, None] * powers[:, 1 : more + 1]
        done += more
    cosines, sines = powers.real, powers.imag
    if d == 2:
        constant, others = recursion_table(2, degree)
        out[:, 0] = constant
        out[:, 1::2] = others * cosines[:, 1:]
        out[:, 2::2] = others * sines[:, 1:]
        return out
    starts, ups, backs = _recursion(degree, str(points.device))
    z = points[:, None, :, 2]
    q = before = points.new_empty((number, 0, many))
    for l in range(degree + 1):  # noqa: E741
        after = points.new_empty((number, l + 1, many))
        after[:, l] = starts[l]
        if l:
            torch.mul(ups[l] * z, q, out=after[:, :l])
            after[:, : l - 1] += backs[l] * before
        before, q = q, after
        middle = l * l + l + 1
        torch.mul(q, cosines[:, : l + 1], out=out[:, l * l : middle])
        torch.mul(q[:, 1:], sines[:, 1 : l + 1], out=out[:, middle : (l + 1) ** 2])
    return out


def _radial(
    r: torch.Tensor, degree: int, top: int, start: torch.Tensor, d: int
) -> list[torch.Tensor]:
    """Return kappa i_l(r), l <= degree, of sources (N, q): as `sphere.harmonics.radial_factors`.

    start : (N, 1) where the recursion of a head starts, at most `top`
    """
    odd = 1 if d == 3 else 0
    ratio = torch.zeros_like(r)
    rest = (2.0 * start + 1 if d == 3 else torch.full_like(start, 2)).to(r).expand_as(r)
    ratios = []
    for l in range(top, 0, -1):  # noqa: E741
        within = l <= start
        ratio = torch.where(within, r / (r * ratio + (2.0 * l + odd)), 0.0)
        weight = 2.0 * l - 1 if d == 3 else (2.0 if l > 1 else 1.0)
        rest = torch.where(within, ratio * rest + weight, rest)
        if l <= degree:
            ratios.append(ratio)
    factors = [(4 if d == 3 else 2) * math.pi * r.exp() / rest]
    for ratio in reversed(ratios):
        factors.append(factors[-1] * ratio)
    return factors


@lru_cache(maxsize=64)
def _levels(degree: int, d: int, device: str) -> torch.Tensor:
    """Return the degree of every harmonic: (K,)."""
    _, sizes = layout(count(degree, d), d)
    return torch.from_numpy(np.repeat(np.arange(degree + 1), sizes)).to(device)


@lru_cache(maxsize=64)
def _indicator(degree: int, d: int, device: str) -> torch.Tensor:
    """Return 1 where a harmonic has a degree, else 0: (K, L + 1)."""
    degrees = torch.arange(degree + 1, device=device)
    return (_levels(degree, d, device)[:, None] == degrees).to(torch.float64)


@lru_cache(maxsize=64)
def _recursion(
    degree: int, device: str
) -> tuple[list[float], list[torch.Tensor], list[torch.Tensor]]:
    """Return start_m; a_lm (l, 1), -a_lm b_lm (l - 1, 1) for all l: `sphere.recursion_table`."""
    table = recursion_table(3, degree)
    steps = table[int(table[0]) :]
    ups, backs = [], []
    for l in range(degree + 1):  # noqa: E741
        pairs = steps[l * (l + 1) :][: 2 * l].reshape(l, 2, 1)
        ups.append(torch.from_numpy(pairs[:, 0].copy()).to(device))
        backs.append(torch.from_numpy(pairs[: max(l - 1, 0), 1].copy()).to(device))
    return table[1 : degree + 2].tolist(), ups, backs


@lru_cache(maxsize=4)
def _nodes(d: int, last: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return nodes (q, d) and weights (q,) of `half_quadrature`, and harmonics (1, K, q) there."""
    points, weights = (torch.from_numpy(a).to(device) for a in half_quadrature(d, last))
    return points, weights, _harmonics(points[None], last)
