"""One evaluation of the velocity and every energy term, by wflow and by other libraries.

A variant is a function of the name's library that takes the arrays of a problem as NumPy has them,
moves them to where the library wants them, and returns the step as a call without arguments; the
call gives velocity (n, d) and six terms (TERMS) in a form that `numbers` reads. What runs inside
the call is what a solver would repeat: the arrays have been converted and the code compiled.

    E = 1/(2Hn^2) sum U,   U_hij = exp(<x_i, D_h x_j>),   v = -(1/H) sum_h g_h/m_h

with m_h, g_h and the terms of docs/theory/setting.md and energy.md. Apart from the plain einsum,
all share the best order that we know for matrix libraries: with S_h = U_h x every term but Itô's
follows from S and m, so that U is made once and read twice.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TERMS = (
    "energy",
    "weight_power",
    "ito_power",
    "martingale",
    "dissipation",
    "upper_gradient_sq",
)
FAST_TOLERANCE = 1e-10  # what wflow.solve asks of the fast sums by default

Call = Callable[[], Any]


class Problem(NamedTuple):
    """Tokens x (n, d), heads, drift and noise (H, d, d) symmetric, sigma2 (H,); float64."""

    x: NDArray[np.float64]
    heads: NDArray[np.float64]
    drift: NDArray[np.float64]
    noise: NDArray[np.float64]
    sigma2: NDArray[np.float64]


def make(n: int, heads: int, d: int, seed: int = 0) -> Problem:
    """Uniform tokens and symmetric Gaussian heads whose scores stay moderate for any d."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x /= np.linalg.norm(x, axis=1)[:, None]
    z = rng.normal(size=(3, heads, d, d)) / 2 * np.sqrt(3 / d)
    matrices, drift, noise = z + z.swapaxes(-1, -2)
    return Problem(x, matrices, drift, noise, np.full(heads, 2.0))


def matrix_products(xp: Any, x: Any, D: Any, f: Any, B: Any, sigma2: Any) -> tuple[Any, Any]:
    """The step in matrix products, for NumPy, torch and JAX alike (`xp`)."""
    n = x.shape[0]
    heads = D.shape[0]
    U = xp.exp((x @ D) @ x.T)  # (H, n, n)
    ones_x = xp.concatenate((xp.ones_like(x[:, :1]), x), axis=1)
    sums = U @ ones_x  # (H, n, 1 + d)
    m = sums[:, :, 0] / n
    S = sums[:, :, 1:] / n
    g = S @ D  # D_h = D_h^T
    g = g - (g * x).sum(-1)[:, :, None] * x
    v = -(g / m[:, :, None]).mean(0)
    b = 1 / (1 / m).mean(0)
    gbar = g.mean(0)
    gram = 1 + (x @ x.T) ** 2
    ito = U.reshape(heads, n * n) @ gram.reshape(n * n)  # (H,)
    half = 1 / (2 * heads * n)
    terms = (
        half * m.sum(),
        half * ((x @ f) * S).sum(),
        half / (4 * n) * (sigma2 * ito).sum(),
        half * ((x @ B) * S).sum(),
        -(gbar * v).sum() / n,
        (b * (v * v).sum(1)).mean(),
    )
    return v, terms


def plain_einsum(
    x: Any, D: Any, f: Any, B: Any, sigma2: Any, optimize: bool = False
) -> tuple[Any, Any]:
    """Every quantity as its formula stands, one np.einsum each; `optimize` lets it choose the order
    of contraction."""
    n, heads = len(x), len(D)
    U = np.exp(np.einsum("ia,hab,jb->hij", x, D, x, optimize=optimize))
    m = np.einsum("hij->hi", U) / n
    S = np.einsum("hij,jb->hib", U, x, optimize=optimize) / n
    g = np.einsum("hab,hib->hia", D, S, optimize=optimize)
    g -= np.einsum("hia,ia->hi", g, x)[..., None] * x
    v = -np.mean(g / m[..., None], axis=0)
    b = 1 / np.mean(1 / m, axis=0)
    gbar = g.mean(axis=0)
    pairs = 2 * heads * n * n
    gram = 1 + np.einsum("ia,ja->ij", x, x) ** 2
    terms = (
        U.sum() / pairs,
        np.einsum("hij,ia,hab,jb->", U, x, f, x, optimize=optimize) / pairs,
        np.einsum("h,hij,ij->", sigma2, U, gram, optimize=optimize) / (4 * pairs),
        np.einsum("hij,ia,hab,jb->", U, x, B, x, optimize=optimize) / pairs,
        -np.sum(gbar * v) / n,
        np.mean(b * np.sum(v * v, axis=1)),
    )
    return v, terms


def wflow_exact(problem: Problem, paths: int = 1) -> Call:
    """The step as `wflow.solve` asks for it, with exact sums; several paths hold the same."""
    from wflow.attention.cloud import evaluate

    x, D, f, B, s = (np.repeat(a[None], paths, axis=0) for a in problem)

    def step() -> Any:
        velocity, table = evaluate(x, D, drift=f, noise=B, sigma2=s, symmetric=True)
        return velocity[0], [table[name][0] for name in TERMS]

    return step


def wflow_fast(problem: Problem) -> Call:
    """The step with the fast sums of the circle and the sphere, d = 2 and 3."""
    from wflow.kernels.harmonic.fast import fast_sums
    from wflow.kernels.pairs.headsums import SOFTMAX
    from wflow.kernels.pairs.headsums import TERMS as COLUMNS

    x, D, f, B, s = (np.ascontiguousarray(a[None]) for a in problem)
    places = [COLUMNS.index(name) for name in TERMS]

    def step() -> Any:
        velocity, table, _ = fast_sums(x, D, D, f, B, s, SOFTMAX, -1.0, FAST_TOLERANCE)
        return velocity[0], [table[0, place] for place in places]

    return step


def _numpy_plain(problem: Problem) -> Call:
    return lambda: plain_einsum(*problem)


def _numpy(problem: Problem) -> Call:
    return lambda: matrix_products(np, *problem)


def _torch(problem: Problem) -> Call:
    import torch

    torch.set_num_threads(threads())
    arrays = [torch.from_numpy(a) for a in problem]

    def step() -> Any:
        with torch.no_grad():
            return matrix_products(torch, *arrays)

    return step


def _torch_compiled(problem: Problem) -> Call:
    import torch

    torch.set_num_threads(threads())
    arrays = [torch.from_numpy(a) for a in problem]
    compiled = torch.compile(
        lambda *given: matrix_products(torch, *given), fullgraph=True, dynamic=False
    )

    def step() -> Any:
        with torch.no_grad():
            return compiled(*arrays)

    return step


def _jax(problem: Problem) -> Call:
    import jax

    jax.config.update("jax_enable_x64", True)
    arrays = [jax.device_put(a) for a in problem]
    compiled = jax.jit(lambda *given: matrix_products(jax.numpy, *given))
    return lambda: jax.block_until_ready(compiled(*arrays))


def _keops(problem: Problem) -> Call:
    """Sums over j by KeOps, which makes a C++ kernel of the formula; the rest in torch."""
    import torch
    from pykeops.torch import LazyTensor

    torch.set_num_threads(threads())
    x, D, f, B, sigma2 = (torch.from_numpy(a) for a in problem)
    n = len(x)
    heads = len(D)
    ones_x = torch.cat((torch.ones_like(x[:, :1]), x), dim=1)

    def step() -> Any:
        x_i = LazyTensor(x[None, :, None, :])
        y_j = LazyTensor(x[None, None, :, :])
        z_j = LazyTensor((x @ D)[:, None, :, :])
        w_j = LazyTensor(ones_x[None, None, :, :])
        U = (x_i | z_j).exp()
        sums = (U * w_j.concat(1 + (x_i | y_j) ** 2)).sum(dim=2)  # (H, n, d + 2)
        m, S, q = sums[..., 0] / n, sums[..., 1:-1] / n, sums[..., -1]
        g = S @ D
        g = g - (g * x).sum(-1, keepdim=True) * x
        v = -(g / m[..., None]).mean(0)
        b = 1 / (1 / m).mean(0)
        half = 1 / (2 * heads * n)
        return v, (
            half * m.sum(),
            half * ((x @ f) * S).sum(),
            half / (4 * n) * (sigma2 * q.sum(1)).sum(),
            half * ((x @ B) * S).sum(),
            -(g.mean(0) * v).sum() / n,
            (b * (v * v).sum(1)).mean(),
        )

    return step


class Variant(NamedTuple):
    """How to make the step; the modules it needs; where it takes part."""

    make: Callable[[Problem], Call]
    needs: tuple[str, ...] = ()
    largest_d: int = 10**9
    most_work: int = 10**18  # H n^2 d^2 beyond which a single step would take minutes


VARIANTS = {
    "wflow, exact": Variant(wflow_exact),
    "wflow, fast": Variant(wflow_fast, ("wflow.kernels.harmonic.fast",), largest_d=3),
    "NumPy, plain einsum": Variant(_numpy_plain, most_work=10**9),
    "NumPy, matrix products": Variant(_numpy),
    "torch, eager": Variant(_torch, ("torch",)),
    "torch, compiled": Variant(_torch_compiled, ("torch",)),
    "JAX, jit": Variant(_jax, ("jax",)),
    "KeOps": Variant(_keops, ("pykeops", "torch")),
}


def missing(variant: str) -> str | None:
    """What the variant needs and this environment lacks."""
    for name in VARIANTS[variant].needs:
        if importlib.util.find_spec(name) is None:
            return name
    return None


def threads() -> int:
    """Threads for every library: those of the compiled functions of wflow."""
    import numba

    return int(numba.get_num_threads())


def numbers(result: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Velocity (n, d) and terms (6,) of a step as NumPy arrays."""
    velocity, terms = result
    return np.asarray(velocity), np.array([float(term) for term in terms])


def gap(found: Any, reference: Any) -> float:
    """Largest difference in the velocity, or relative one in a term, between two steps."""
    (v, terms), (v_ref, terms_ref) = numbers(found), numbers(reference)
    return float(max(np.abs(v - v_ref).max(), np.abs(terms / terms_ref - 1).max()))


def limit_threads(count: int) -> dict[str, str]:
    """Environment in which every library uses so many threads."""
    names = ("NUMBA", "OMP", "OPENBLAS", "MKL")
    return dict(os.environ) | {f"{name}_NUM_THREADS": str(count) for name in names}
