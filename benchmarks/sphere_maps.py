"""One velocity by the fast sums beside nonuniform Fourier transforms of ducc0 and finufft.

    pip install ducc0 finufft
    python benchmarks/sphere_maps.py [--tokens 100000 1000000] [--heads 1 8 64] [--rounds 5]

The velocity of n tokens on the sphere (d = 3) and the circle (d = 2) under H heads drawn as
Z + Z^T, softmax and unnormalised, from an array x to an array v, one thread. All sides take their
degrees from the same bounds, and the coefficients of each head from the moments of the tokens, work
that does not grow with n, by the same code. They differ in what is done per token:

- wflow: harmonics by recursion, sums in registers (`wflow.kernels.harmonic`);
- ducc0, d = 3: `adjoint_synthesis_general` for the moments; a synthesis of spin 0 for m and one of
  spin 1 for its gradient, for every head;
- finufft: type 1 for the moments, type 2 for m and its gradient, real functions in pairs as one
  complex one; on the circle, and on the sphere continued to 0 <= theta < 2 pi.

Where only the gradient of the sum of all m_h counts (unnormalised), the libraries evaluate that
alone; wflow also returns the energy and its terms. A library gets the largest epsilon at which its
velocity is within the tolerance of the exact one, measured at a few tokens, and in another row the
largest at which its error is that of wflow, or 1e-13; in both, no smaller one than its series is
worth, which its smallest epsilon shows. Libraries that are not installed are reported as missing.
ducc0 is GPL: it is used here and nowhere else.
"""

import argparse
import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numba
import numpy as np
import scipy.fft
from fast_sums import problem
from goals import SPHERE_MAPS
from numba import njit
from numpy.typing import NDArray
from report import RESULTS, goal, in_turn, median_times, quotient, spread, write

from wflow.kernels.harmonic import fast, series
from wflow.kernels.harmonic.fast import fast_sums, nodes_of, table_of
from wflow.kernels.harmonic.series import Plan, plan
from wflow.kernels.pairs.headsums import SOFTMAX, UNNORMALISED
from wflow.sphere.harmonics import count
from wflow.study.frame import machine

COMMAND = "python benchmarks/sphere_maps.py"
TOLERANCE = 1e-10
FLOWS = {"softmax": SOFTMAX, "unnormalised": UNNORMALISED}
EPSILONS = (1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14)
ROUNDING = 1e-13  # no library is asked for more
ACCURACIES = ("{}", "{}, as wflow")  # a library within the tolerance, and as accurate as wflow
HEADS_AT_ONCE = 8  # transforms of finufft that share the kernel values of a token
LIBRARIES = {3: ("ducc0", "finufft"), 2: ("finufft",)}
Floats = NDArray[np.float64]
Complex = NDArray[np.complex128]
Velocity = Callable[[], Floats]


def library(name: str) -> Any:
    """A module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


# What no side does per token: from moments of the tokens to coefficients of the heads


class Expanded(NamedTuple):
    """Coefficients (heads, K, columns) of m_h and D S_h / n, as far as each head is evaluated."""

    coefficient: Floats
    degrees: NDArray[np.int64]


def coefficients(moment: Floats, D: Floats, chosen: Plan, vectors: bool, flow: str) -> Expanded:
    """Series of the heads, or of their sum where the flow is unnormalised, from the moments.

    They end where the bounds of `fast_sums` let them: for m_h and, with `vectors`, for D S_h / n,
    else for the gradient of m_h, whose series is one degree longer.
    """
    d = D.shape[1]
    longer = chosen.degrees + (0 if vectors else 1)
    nodes, mass = nodes_of(moment, last_moment(chosen), d)
    found, _ = series.coefficients(nodes, mass, D, longer, chosen.tops, table_of(d), int(vectors))
    c = found[:-1]
    if vectors:
        c[:, :, 1:] = c[:, :, 1:] @ D.swapaxes(1, 2)
    room = series.spare(np.zeros(len(D)), chosen.low, TOLERANCE)
    rooms = np.stack([room, chosen.rho * room])
    if flow == "unnormalised":
        c, rooms = c.sum(axis=0, keepdims=True), rooms.sum(axis=1, keepdims=True)
    sizes = series.sizes_by_degree(c[:, :, :1], d)
    if vectors:
        slopes = series.sizes_by_degree(c[:, :, 1:], d)
    elif d == 3:
        slopes = series.slopes_by_degree(c[:, :, 0])
    else:
        slopes = sizes * np.arange(sizes.shape[1])
    ends = [series.shortened(*given)[0] for given in ((sizes, rooms[0]), (slopes, rooms[1]))]
    degrees = np.maximum(*ends)
    return Expanded(c[:, : count(int(degrees.max()), d)], degrees)


def last_moment(chosen: Plan) -> int:
    """Degree of the moments that a velocity needs."""
    return int(chosen.degrees.max()) + 1


# wflow


def ours(x: Floats, D: Floats, flow: str) -> Floats:
    none = np.empty((1, 0, *D.shape[1:]))
    return fast_sums(
        x[None], D[None], D[None], none, none, np.empty((1, 0)), FLOWS[flow], -1.0, TOLERANCE
    )[0][0]


# Arithmetic per token around the libraries' transforms, compiled like ours


@njit(error_model="numpy")
def angles(x):
    """Colatitude and longitude in [0, 2 pi) of points (n, 3); the angle alone of (n, 2)."""
    n, d = x.shape
    loc = np.empty((n, d - 1))
    for i in range(n):
        around = np.arctan2(x[i, 1], x[i, 0])
        loc[i, d - 2] = around if around >= 0 else around + 2 * np.pi
        if d == 3:
            loc[i, 0] = np.arctan2(np.hypot(x[i, 0], x[i, 1]), x[i, 2])
    return loc


@njit(error_model="numpy")
def add_spin(m, along, total):
    """Add grad m / m of a head, in components by theta and phi, to total (2, n)."""
    for i in range(m.shape[0]):
        inverse = 1.0 / m[i]
        total[0, i] += along[0, i] * inverse
        total[1, i] += along[1, i] * inverse


@njit(error_model="numpy")
def from_spin(loc, total, scale, v):
    """Components by theta and phi as vectors (n, 3), times `scale`."""
    for i in range(loc.shape[0]):
        ct, st = np.cos(loc[i, 0]), np.sin(loc[i, 0])
        cp, sp = np.cos(loc[i, 1]), np.sin(loc[i, 1])
        a, b = scale * total[0, i], scale * total[1, i]
        v[i, 0] = a * ct * cp - b * sp
        v[i, 1] = a * ct * sp + b * cp
        v[i, 2] = -a * st


@njit(error_model="numpy")
def add_circle(values, divide, total):
    """Add m'/m (or m') of heads given as m + i m', (heads, n), to total (n,)."""
    for h in range(values.shape[0]):
        for i in range(values.shape[1]):
            m = values[h, i]
            total[i] += m.imag / m.real if divide else m.imag


@njit(error_model="numpy")
def add_sphere(values, divide, total):
    """Add D S / m (or D S) of heads given as m + i g_x and g_y + i g_z to total (n, 3)."""
    for h in range(values.shape[0] // 2):
        for i in range(values.shape[1]):
            first, second = values[2 * h, i], values[2 * h + 1, i]
            inverse = 1.0 / first.real if divide else 1.0
            total[i, 0] += first.imag * inverse
            total[i, 1] += second.real * inverse
            total[i, 2] += second.imag * inverse


@njit(error_model="numpy")
def project(x, total, scale, v):
    """scale P_x total."""
    for i in range(x.shape[0]):
        along = x[i, 0] * total[i, 0] + x[i, 1] * total[i, 1] + x[i, 2] * total[i, 2]
        for k in range(3):
            v[i, k] = scale * (total[i, k] - along * x[i, k])


@njit(error_model="numpy")
def turn(x, total, scale, v):
    """scale times the rate of the angle, along the circle."""
    for i in range(x.shape[0]):
        v[i, 0] = -scale * total[i] * x[i, 1]
        v[i, 1] = scale * total[i] * x[i, 0]


# ducc0


@lru_cache
def triangle(degree: int) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    """Places of cosines and sines of all (m, l >= m), m outermost, and (-1)^m / sqrt(2)."""
    orders = np.concatenate([np.full(degree + 1 - m, m) for m in range(degree + 1)])
    degrees = np.concatenate([np.arange(m, degree + 1) for m in range(degree + 1)])
    cosine = degrees * (degrees + 1) + orders
    return cosine, cosine - 2 * orders, np.where(orders, (-1.0) ** orders / np.sqrt(2), 1.0)


def to_alm(c: Floats, degree: int) -> Complex:
    cosine, sine, factor = triangle(degree)
    return factor * (c[cosine] - 1j * np.where(cosine > sine, c[sine], 0.0))


def from_alm(alm: Complex, degree: int) -> Floats:
    cosine, sine, factor = triangle(degree)
    scale = np.where(cosine > sine, 2 * factor, 1.0)
    out = np.empty(count(degree, 3))
    out[sine] = -scale * alm.imag
    out[cosine] = scale * alm.real
    return out


def ducc(x: Floats, D: Floats, flow: str, epsilon: float) -> Floats:
    sht = library("ducc0").sht
    n, heads = len(x), len(D)
    chosen = plan(x, D, TOLERANCE)
    loc = angles(x)
    last = last_moment(chosen)
    alm = sht.adjoint_synthesis_general(
        map=np.full((1, n), 1.0 / n), spin=0, lmax=last, loc=loc, epsilon=epsilon, nthreads=1
    )
    found, degrees = coefficients(from_alm(alm[0], last), D, chosen, False, flow)
    c = found[:, :, 0]

    def synthesis(alm: Complex, degree: int, spin: int) -> Floats:
        mode = "DERIV1" if spin else "STANDARD"
        return sht.synthesis_general(
            alm=alm[None], spin=spin, lmax=degree, loc=loc, epsilon=epsilon, nthreads=1, mode=mode
        )

    if flow == "unnormalised":
        total = synthesis(to_alm(c[0], int(degrees[0])), int(degrees[0]), 1)
    else:
        total = np.zeros((2, n))
        for h in range(heads):
            degree = int(degrees[h])
            alm = to_alm(c[h], degree)
            add_spin(synthesis(alm, degree, 0)[0], synthesis(alm, degree, 1), total)
    v = np.empty_like(x)
    from_spin(loc, total, -1.0 / heads, v)
    return v


# finufft


@lru_cache
def grid_basis(degree: int) -> Floats:
    """Harmonics (K, N, N) at theta_i = 2 pi i/N, phi_j = 2 pi j/N, N = 2 degree + 1."""
    angle = 2 * np.pi * np.arange(2 * degree + 1) / (2 * degree + 1)
    theta, phi = np.meshgrid(angle, angle, indexing="ij")
    points = np.stack(
        [np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=-1
    ).reshape(-1, 3)
    unit = np.eye(count(degree, 3))
    return np.stack([series.expand(points, row, degree, table_of(3)) for row in unit]).reshape(
        len(unit), *theta.shape
    )


def type_two(
    places: tuple[Floats, ...], modes: Complex, epsilon: float
) -> Iterator[NDArray[np.complex128]]:
    """Values of Fourier sums (transforms, modes ...) at the places, some transforms at a time."""
    finufft = library("finufft")
    many = min(HEADS_AT_ONCE * len(places), len(modes))
    transform = finufft.Plan(
        2, modes.shape[1:], n_trans=many, eps=epsilon, isign=1, nthreads=1, modeord=1
    )
    transform.setpts(*places)
    for first in range(0, len(modes), many):
        yield transform.execute(modes[first : first + many]).reshape(many, -1)


def type_one(places: tuple[Floats, ...], shape: tuple[int, ...], epsilon: float) -> Complex:
    """sum_j exp(-i <k, t_j>) / n."""
    n = len(places[0])
    transform = library("finufft").Plan(1, shape, eps=epsilon, isign=-1, nthreads=1, modeord=1)
    transform.setpts(*places)
    return transform.execute(np.full(n, 1.0 / n, complex))


def finufft_circle(x: Floats, D: Floats, flow: str, epsilon: float) -> Floats:
    n, heads = len(x), len(D)
    chosen = plan(x, D, TOLERANCE)
    angle = angles(x)[:, 0]
    last = last_moment(chosen)
    waves = type_one((angle,), (2 * last + 1,), epsilon)[: last + 1]
    moment = np.empty(2 * last + 1)
    moment[0] = waves[0].real / np.sqrt(2 * np.pi)
    moment[1::2], moment[2::2] = waves[1:].real / np.sqrt(np.pi), -waves[1:].imag / np.sqrt(np.pi)
    found, degrees = coefficients(moment, D, chosen, False, flow)
    degree = int(degrees.max())
    c = found[:, :, 0]
    half = np.zeros((len(c), degree + 1), complex)  # of exp(i k t), k >= 0
    half[:, 0] = c[:, 0] / np.sqrt(2 * np.pi)
    half[:, 1:] = (c[:, 1::2] - 1j * c[:, 2::2]) / np.sqrt(4 * np.pi)
    whole = np.concatenate([half, half[:, :0:-1].conj()], axis=1)
    order = np.concatenate([np.arange(degree + 1), np.arange(-degree, 0)])
    modes = whole - order * whole  # m + i m': i (i k)
    total = np.zeros(n)
    for values in type_two((angle,), modes, epsilon):
        add_circle(values, flow == "softmax", total)
    v = np.empty_like(x)
    turn(x, total, -1.0 / heads, v)
    return v


def finufft_sphere(x: Floats, D: Floats, flow: str, epsilon: float) -> Floats:
    n, heads = len(x), len(D)
    chosen = plan(x, D, TOLERANCE)
    loc = angles(x)
    places = (np.ascontiguousarray(loc[:, 0]), np.ascontiguousarray(loc[:, 1]))
    basis = grid_basis(last_moment(chosen))
    found = type_one(places, basis.shape[1:], epsilon)
    weights = scipy.fft.fft2(found.conj()).real / found.size
    c, degrees = coefficients(np.tensordot(basis, weights, 2), D, chosen, True, flow)
    degree = int(degrees.max())
    basis = grid_basis(degree)
    size = len(basis)
    values = c.transpose(0, 2, 1).reshape(-1, size) @ basis.reshape(size, -1)
    pairs = (values[::2] + 1j * values[1::2]).reshape(-1, *basis.shape[1:])
    modes = scipy.fft.fft2(pairs, norm="forward")
    total = np.zeros((n, 3))
    for some in type_two(places, modes, epsilon):
        add_sphere(some, flow == "softmax", total)
    v = np.empty_like(x)
    project(x, total, -1.0 / heads, v)
    return v


# Error at a few tokens, and the rows


def exact(x: Floats, D: Floats, flow: str, some: NDArray[np.intp]) -> Floats:
    """The velocity at some tokens, pair by pair."""
    total = np.zeros((len(some), x.shape[1]))
    for matrix in D:
        values = np.exp(x[some] @ matrix @ x.T)
        ds = values @ x @ matrix.T
        total += ds / (values.sum(axis=1)[:, None] if flow == "softmax" else len(x))
    total -= np.sum(total * x[some], axis=1, keepdims=True) * x[some]
    return -total / len(D)


def measure(n: int, d: int, heads: int, flow: str, rounds: int) -> dict[str, Any]:
    """Times in turn and errors of all sides at one size."""
    x, D = (array[0] for array in problem(n, d, heads)[:2])
    some = np.linspace(0, n - 1, max(4, min(64, 20_000_000 // (n * heads) * 8))).astype(int)
    true = exact(x, D, flow, some)

    def error(v: Floats) -> float:
        return float(np.abs(v[some] - true).max() / np.abs(true).max())

    sides: dict[str, Velocity] = {"wflow": partial(ours, x, D, flow)}
    own = error(ours(x, D, flow))
    rows: dict[str, dict[str, Any]] = {"wflow": {"error": own}}
    for name in LIBRARIES[d]:
        if library(name) is None:
            continue
        side = {"ducc0": ducc, "finufft": finufft_sphere if d == 3 else finufft_circle}[name]
        errors = {EPSILONS[-1]: error(side(x, D, flow, EPSILONS[-1]))}
        floor = 1.1 * errors[EPSILONS[-1]]  # of the series, whose tolerance is that of m
        for called, least in zip(ACCURACIES, (TOLERANCE, ROUNDING), strict=True):
            for epsilon in EPSILONS:
                if epsilon not in errors:
                    errors[epsilon] = error(side(x, D, flow, epsilon))
                if errors[epsilon] <= max(least, own, floor):
                    break
            rows[called.format(name)] = {"error": errors[epsilon], "epsilon": epsilon}
            sides[called.format(name)] = partial(side, x, D, flow, epsilon)
    taken = in_turn(sides, rounds)
    for name, row in rows.items():
        row |= spread(taken[name])
    degree = int(plan(x, D, TOLERANCE).degrees.max())
    return {"n": n, "d": d, "heads": heads, "flow": flow, "degree": degree, "rows": rows}


# Where the time of wflow goes: functions of its module that follow each other, and their work
PARTS = {
    "plan": "norms, bounds and degrees",
    "expanded": "moments of the tokens, and coefficients of the heads",
    "evaluate_tokens": "the series and its gradient at the tokens",
}


def parts(n: int, heads: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of the parts of an unnormalised velocity on the sphere, and of all of it."""
    x, D = (array[0] for array in problem(n, 3, heads)[:2])
    taken: dict[str, list[float]] = {name: [] for name in ("all", *PARTS.values())}

    def timed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begun = time.perf_counter()
            found = function(*arguments)
            taken[name][-1] += time.perf_counter() - begun
            return found

        return call

    with ExitStack() as stack:
        for function, name in PARTS.items():
            stack.enter_context(
                mock.patch.object(fast, function, timed(getattr(fast, function), name))
            )
        for _ in range(rounds + 1):  # the first is warm-up
            for values in taken.values():
                values.append(0.0)
            timed(ours, "all")(x, D, "unnormalised")
    return {name: spread(values[1:]) for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--heads", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[3, 2], choices=[2, 3])
    parser.add_argument("--flows", nargs="+", default=list(FLOWS), choices=list(FLOWS))
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all sides")
    parser.add_argument("--json", type=Path, default=RESULTS / "sphere_maps.json")
    options = parser.parse_args()
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    missing = [name for name in LIBRARIES[3] if library(name) is None]
    for name in missing:
        print(f"{name} is not installed and left out: pip install {name}")
    print(f"{machine()}, 1 of {threads} threads, {options.rounds} rounds, tolerance {TOLERANCE}")
    cases = []
    for d in options.dimensions:
        for flow in options.flows:
            for heads in options.heads:
                for n in options.tokens:
                    case = measure(n, d, heads, flow, options.rounds)
                    cases.append(case)
                    said = ", ".join(
                        f"{name} {row['median_ms']:.2f} ms ({row['min_ms']:.2f} to "
                        f"{row['max_ms']:.2f}; error {row['error']:.0e})"
                        for name, row in case["rows"].items()
                    )
                    print(f"d={d} {flow} H={heads} n={n} L={case['degree']}: {said}", flush=True)
    largest = max(options.tokens), max(options.heads)
    split = parts(*largest, max(3, options.rounds)) if 3 in options.dimensions else {}
    for name, row in split.items():
        print(
            f"unnormalised, d=3, n={largest[0]}, H={largest[1]}: {name}: {row['median_ms']:.1f} ms"
        )
    times = [
        {key: value for key, value in case.items() if key != "rows"} | {"side": name} | row
        for case in cases
        for name, row in case["rows"].items()
    ]
    write(
        options.json, COMMAND, 1, tolerance=TOLERANCE, times=times, missing=missing,
        parts_of={"n": largest[0], "heads": largest[1]}, parts=split, goals=goals(cases),
    )  # fmt: skip


def goals(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours against the fastest library, the worst of all sizes and accuracies."""
    found = []
    for d, what in zip(LIBRARIES, SPHERE_MAPS, strict=True):
        ratios = []
        for case in cases:
            others = [row for name, row in case["rows"].items() if name != "wflow"]
            if case["d"] == d and others:
                fastest = min(others, key=lambda row: row["median_ms"])
                ratios.append(quotient(fastest, case["rows"]["wflow"]))
        worst = min(ratios, key=median_times, default=None)
        found.append(goal(what, COMMAND, worst, 1.0, least=True, unit="times"))
    return found


if __name__ == "__main__":
    main()
