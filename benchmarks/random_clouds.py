"""Random clouds and heads, easy and nasty, and the true errors of the fast sums on them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wflow.kernels.blocked.products import TILE_COLUMNS
from wflow.kernels.harmonic import series as passes
from wflow.kernels.harmonic.fast import expand_heads, fast_sums, table_of
from wflow.kernels.harmonic.series import plan
from wflow.kernels.pairs.headsums import SOFTMAX
from wflow.sphere.harmonics import count

Floats = NDArray[np.float64]
CLOUDS = ("uniform", "cross-polytope", "cluster", "antipodal", "repeated", "pole", "meridian")
HEADS = ("symmetric", "Ornstein-Uhlenbeck", "any", "rank one", "multiple of I", "zero")


class Case(NamedTuple):
    """One cloud with its heads: x (n, d), D and drift (heads, d, d), sigma2 (heads,)."""

    cloud: str
    head: str
    tolerance: float
    x: Floats
    D: Floats
    drift: Floats
    sigma2: Floats


class Errors(NamedTuple):
    """Estimate over true error: of single sums, of velocities, of the energy and its Itô term."""

    sums: float
    velocity: float
    terms: float


def tokens(rng: np.random.Generator, cloud: str, n: int, d: int) -> Floats:
    """Unit tokens (n, d) of the kind asked for."""
    signs = rng.choice([-1.0, 1.0], size=(n, 1))
    tight = 10.0 ** rng.uniform(-13, -0.5) * rng.normal(size=(n, d))
    if cloud == "uniform":
        x = rng.normal(size=(n, d))
    elif cloud == "cross-polytope":
        x = np.eye(d)[rng.integers(d, size=n)] * signs + 0.05 * rng.normal(size=(n, d))
    elif cloud == "cluster":
        x = rng.normal(size=d) + tight
    elif cloud == "antipodal":
        x = rng.normal(size=d) * signs + tight
    elif cloud == "repeated":
        x = rng.normal(size=(3, d))[rng.integers(3, size=n)]
    elif cloud == "pole":
        x = np.eye(d)[-1] * signs + tight
    else:  # a half circle through the poles
        x = np.zeros((n, d))
        angle = rng.uniform(0, np.pi, n)
        x[:, 0], x[:, -1] = np.sin(angle), np.cos(angle)
    return x / np.linalg.norm(x, axis=1)[:, None]


def heads(rng: np.random.Generator, head: str, count: int, d: int, norm: float) -> Floats:
    """Matrices (count, d, d) of the kind asked for; `norm` is the largest spectral norm."""
    z = rng.normal(size=(count, d, d))
    if head == "symmetric":
        D = z + z.swapaxes(-1, -2)
    elif head == "Ornstein-Uhlenbeck":
        D = np.eye(d) + (z + z.swapaxes(-1, -2)) / 2
    elif head == "any":
        D = z
    elif head == "rank one":
        D = z[:, :, :1] * z[:, :1, :]
    elif head == "multiple of I":
        D = z[:, :1, :1] * np.eye(d)
    else:
        return np.zeros((count, d, d))
    return D * (norm / np.linalg.norm(D, 2, axis=(1, 2)).max())


def case(seed: int) -> Case:
    """The random case of a seed: up to 400 tokens and 3 heads of norms 0.01 to 20."""
    rng = np.random.default_rng(seed)
    d = int(rng.choice([2, 3]))
    n = int(rng.choice([rng.integers(1, 12), rng.integers(12, 90), rng.integers(90, 400)]))
    cloud, head = str(rng.choice(CLOUDS)), str(rng.choice(HEADS))
    number = int(rng.integers(1, 4))
    norm = 10.0 ** rng.uniform(-2, 1.3)
    f = rng.normal(size=(number, d, d))
    return Case(
        cloud,
        head,
        10.0 ** rng.uniform(-13, -2.1),
        tokens(rng, cloud, n, d),
        heads(rng, head, number, d, norm),
        f + f.swapaxes(-1, -2),
        rng.uniform(0.1, 2.0, number),
    )


def errors(given: Case) -> Errors:
    """How the estimates of one case compare with the errors against extended precision."""
    x, D = given.x, given.D
    n, d = x.shape
    wide, matrices = x.astype(np.longdouble), D.astype(np.longdouble)
    U = np.exp(np.einsum("ia,hab,jb->hij", wide, matrices, wide))
    m, S = U.mean(axis=2), U @ wide / n
    sums = _series_errors(given, m, S)

    none = np.empty((1, 0, d, d))
    v, table, estimate = fast_sums(
        x[None], D[None], D[None], given.drift[None], none, given.sigma2[None], SOFTMAX, 1.0,
        given.tolerance,
    )  # fmt: skip
    flow = np.einsum("hab,hib->hia", matrices, S / m[..., None]).mean(axis=0)
    flow -= np.einsum("ia,ia->i", flow, wide)[:, None] * wide
    far = float(np.sqrt(((v[0] - flow) ** 2).sum(axis=1)).max())
    norms = np.linalg.norm(D, 2, axis=(1, 2))
    velocity = _over(2 * norms.mean() * estimate[0], far)

    share = np.asarray(given.sigma2)[:, None, None] * (1 + (wide @ wide.T) ** 2) / 4
    energy, ito = U.mean() / 2, (U * share).mean() / 2
    terms = min(
        _over(estimate[0], float(abs(table[0, 0] / energy - 1))),
        _over(2 * estimate[0], float(abs(table[0, 2] / ito - 1))),
    )
    return Errors(sums, velocity, terms)


def _series_errors(given: Case, m: NDArray, S: NDArray) -> float:
    """Smallest ratio of the bound of a head to the true errors of its m and S at the tokens."""
    x, D = given.x, given.D
    n, d = x.shape
    series = expand_heads(x, D, plan(x, D, given.tolerance), given.tolerance, 1)
    per_panel = TILE_COLUMNS // (1 + d)
    smallest = np.inf
    for place, h in enumerate(series.order):
        panel = series.panels[place // per_panel].reshape(-1, TILE_COLUMNS)
        panel = panel[: count(series.degree, d)]
        at = place % per_panel * (1 + d)
        found = [
            passes.expand(x, np.ascontiguousarray(panel[:, at + c]), series.degree, table_of(d))
            for c in range(1 + d)
        ]
        off_m = float(np.abs(found[0] / n - m[h]).max())
        off_S = float(np.sqrt(((np.stack(found[1:], 1) / n - S[h]) ** 2).sum(axis=1)).max())
        smallest = min(smallest, _over(series.error[h], max(off_m, off_S)))
    return smallest


def _over(bound: float, true: float) -> float:
    return float(bound / true) if true > 0 else float("inf")
