"""Kernel, score and layer of [RWPO] against quadrature, and its training phase."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from _rwpo_dynamics import Array, Part, gaussian, grid, mixture, rate, text

from wflow import sampling

if TYPE_CHECKING:
    from rwpo_operator import RwpoOperator

KERNELS: tuple[Any, ...] = ("exact", "laplace", "published")


def attention(x: Array, nodes: Array, log_density: Array, kernel: Any, **given: Any) -> Array:
    """Attention of points (n, d) over a density on a regular grid of nodes (m, d)."""
    score = sampling.interaction(x, nodes, kernel=kernel, **given) + log_density
    weights = np.exp(score - score.max(axis=1, keepdims=True))
    return np.asarray(weights @ nodes / weights.sum(axis=1, keepdims=True))


def weighted_mean(
    x: Array, nodes: Array, density: Callable[[Array], Array], kernel: Any, **given: Any
) -> Array:
    """The same on a line, of points (n,)."""
    log_density = np.log(np.maximum(density(nodes), 1e-300))
    return attention(x[:, None], nodes[:, None], log_density, kernel, **given)[:, 0]


def soft(x: Array, width: float) -> Array:
    """Soft thresholding."""
    return np.sign(x) * np.maximum(np.abs(x) - width, 0)


# Kernel and score
# ----------------


def kernels(_: RwpoOperator) -> Part:
    """The closed form of the exact kernel, and scores in one and two dimensions."""
    from scipy.integrate import quad

    part, worst = Part("Closed form of the kernel"), 0.0
    cases = [(0.4, 1.0, 2.0), (0.1, 1.0, 0.5), (1 / 48, 1.0, 2.0), (1 / 48, 20.0, 2.0), (0.1, 1, 0)]
    for h, beta, lam in cases:

        def integrand(z: float, y: float, h=h, beta=beta, lam=lam) -> float:
            return float(np.exp(-beta / 2 * (lam * abs(z) + (z - y) ** 2 / (2 * h))))

        reach = 14 * np.sqrt(2 * h / beta) + lam * h
        for y in (-2.0, -0.31, 0.0, 1e-3, 0.05, 0.7, 3.0):
            ends = sorted({min(0.0, y) - reach, 0.0, y, y - lam * h, y + lam * h,
                           max(0.0, y) + reach})  # fmt: skip
            value = sum(
                quad(integrand, a, b, (y,), epsabs=0, epsrel=1e-13)[0] for a, b in pairwise(ends)
            )
            found = sampling.L1(lam).log_normaliser([y], h=h, beta=beta)
            worst = max(worst, abs(float(found) - np.log(value)))
    part.decide(
        "corrected: Z has a closed form for psi = lambda |x|, so that no Laplace approximation is "
        "needed (kernel `exact`)", "eq. 13",
        f"largest error of log Z against quadrature {worst:.1e} in {len(cases)} x 7 cases",
        worst < 1e-10,
    )  # fmt: skip
    rng, worst = np.random.default_rng(0), 0.0
    for d in (1, 2):
        x, context = rng.normal(size=(60, d)) + 0.05, rng.normal(size=(40, d))
        for h, beta, lam in cases[:3]:
            outside = np.abs(x) > lam * h  # elsewhere (14) has a subgradient at S(x)
            prior = sampling.L1(lam)
            log_z = prior.log_normaliser(context, h=h, beta=beta)
            scores = sampling.score(x, context, h=h, beta=beta, prior=prior)
            for k in range(d):
                at = x.astype(complex)
                at[:, k] += 1e-30j
                log = -beta / 2 * lam * np.sum(at * np.sign(at.real), axis=1)[:, None]
                log = log - beta / (4 * h) * np.sum((at[:, None] - context) ** 2, axis=2) - log_z
                top = log.real.max(axis=1, keepdims=True)
                slope = np.log(np.exp(log - top).sum(axis=1)).imag / 1e-30
                error = np.abs(slope - scores[:, k]) / (1 + np.abs(slope))
                worst = max(worst, float(error[outside[:, k]].max()))
    part.decide(
        "the score of (13) is -(beta/2)[(x - S(x))/h + (x - M)/h] outside |x_i| <= lambda h",
        "Proposition 2", f"largest relative error {worst:.1e} with the kernel `exact`, d = 1 and 2",
        worst < 1e-10,
    )  # fmt: skip
    x = rng.normal(size=(50, 3))
    given: dict[str, Any] = {"h": 0.1, "beta": 2.0, "prior": sampling.L1(0.4)}
    worst = 0.0
    for kernel in KERNELS:
        score = sampling.score(x, x, kernel=kernel, **given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of folds, the subject of `inverse`
            after = sampling.layer(x, kernel=kernel, **given)
        both = after - (soft(x, 0.04) - 0.05 * score)
        worst = max(worst, float(np.abs(both).max()))
    part.decide(
        "(12) with the score (14) is (15)", "eqs. 12, 14, 15", f"largest difference {worst:.1e}",
        worst < 1e-13,
    )  # fmt: skip
    return part


def proposition(flags: RwpoOperator) -> Part:
    """The interactions `laplace` and `published` against the exact one, for a density."""
    part, beta = Part("Proposition 2"), 1.0
    steps, lams = [0.4, 0.1, 0.025, 0.00625], [2.0, 0.5, 0.0]
    x, nodes = np.linspace(-3, 3, 1201), np.linspace(-9, 9, 9 * flags.cells // 2 + 1)
    table, scores = np.zeros((len(lams), 2, len(steps))), {}
    given: dict[str, Any]
    for i, lam in enumerate(lams):
        for j, h in enumerate(steps):
            given = {"h": h, "beta": beta, "prior": sampling.L1(lam)}
            exact = weighted_mean(x, nodes, mixture, "exact", **given)
            for k, kernel in enumerate(KERNELS[1:]):
                error = np.abs(weighted_mean(x, nodes, mixture, kernel, **given) - exact)
                table[i, k, j] = error.max()
                scores[lam, kernel, h] = beta / (2 * h) * error
    part.tables["Largest |M - M exact| for |x| <= 3 over a mixture of two Gaussians, beta = 1 (the "
                "score is beta/(2h) times it):"] = [
        {"kernel": kernel, "lambda": f"{lam:g}"}
        | {f"h = {h:g}": f"{table[i, k, j]:.2g}" for j, h in enumerate(steps)}
        for k, kernel in enumerate(KERNELS[1:]) for i, lam in enumerate(lams)
    ]  # fmt: skip
    part.variables["mean_error"] = (
        ("lam", "kernel", "h"), table, "largest |M - M exact| for |x| <= 3"
    )  # fmt: skip
    part.variables["score_error"] = (
        ("kernel", "h", "x"),
        np.array([[scores[2.0, kernel, h] for h in steps] for kernel in KERNELS[1:]]),
        "error of the score, lambda = 2",
    )
    part.coords = {"lam": (lams, "lambda"), "kernel": (list(KERNELS[1:]), "interaction"),
                   "h": (steps, "step"), "x": (x, "position")}  # fmt: skip
    places = np.searchsorted(x, [-1.0, 0.5, 1.5])
    printed = [scores[2.0, "published", h][places].max() for h in steps]
    part.decide(
        "the error of the score (14) tends to 0 with the printed U, which has S(x) in the place of "
        "S(y)", "Proposition 2, eqs. 3, 9",
        f"at x = -1, 0.5, 1.5 up to {text(printed, '.3g')} for h = {text(steps, 'g')}, lambda = 2",
        printed[-1] < 0.1 * printed[0],
    )  # fmt: skip
    fixed = [scores[2.0, "laplace", h][places].max() for h in steps]
    part.decide(
        "corrected: with S(y) (kernel `laplace`) it does at every fixed x other than 0",
        "Proposition 2", f"at x = -1, 0.5, 1.5 up to {text(fixed, '.1e')}",
        fixed[-1] < 0.01 * fixed[0],
    )  # fmt: skip
    from scipy.special import erf

    fine, near = [1 / 8, 1 / 48, 1 / 200, 1 / 800], np.linspace(-1, 1, 401)
    around = []
    for h in fine:
        given = {"h": h, "beta": beta, "prior": sampling.L1(2.0)}
        one, other = (
            weighted_mean(near, nodes, lambda y: gaussian(y, 0.0, 1.0), kernel, **given)
            for kernel in ("exact", "laplace")
        )
        around.append(float(beta / (2 * h) * np.abs(one - other).max()))
    s = np.sqrt(2 * np.log(2))
    limit = 2.0 * beta / 2 * (erf(s / np.sqrt(2)) - erf(s / 2))
    part.decide(
        "it does so uniformly in x", "Proposition 2",
        f"N(0, 1), lambda = 2: largest error {text(around, '.3f')} for h = 1/8, 1/48, 1/200, "
        f"1/800, at distances of order sqrt(h) from the kink; its limit is 0.166 beta lambda/2 = "
        f"{limit:.3f}",
        around[-1] < 0.1 * around[0],
    )  # fmt: skip
    uniform = []
    for h in steps:
        given = {"h": h, "beta": beta, "prior": sampling.NoPrior()}
        heat = sampling.interaction(x[::100, None], x[::80, None], kernel="published", **given)
        uniform.append(float(np.ptp(heat, axis=1).max()))
    gaps = []
    for kernel in KERNELS[:2]:
        found = sampling.attention_mean(
            x[::50, None], x[::30, None], h=0.1, beta=beta, prior=sampling.L1(1e-9), kernel=kernel
        ).mean
        weights = np.exp(-beta / 0.4 * (x[::50, None] - x[None, ::30]) ** 2)
        gaps.append(np.abs(found[:, 0] - weights @ x[::30] / weights.sum(axis=1)).max())
    part.decide(
        "for lambda = 0 the layer is attention with a Gaussian kernel, as printed", "eq. 3",
        f"the printed U is constant in y (range {max(uniform):.1e}): all tokens weigh the same",
        min(uniform) > 1e-6,
    )  # fmt: skip
    part.decide(
        "corrected: it is with the kernels `exact` and `laplace`", "eq. 3",
        f"largest difference {max(gaps):.1e} at lambda = 1e-9", max(gaps) < 1e-8,
    )  # fmt: skip
    smooth = sampling.separable(lambda z: np.logaddexp(z, -z), np.tanh)
    errors: dict[str, list[float]] = {"laplace": [], "published": []}
    for h in steps:
        given = {"h": h, "beta": beta, "prior": smooth}
        exact = weighted_mean(x[::10], nodes, mixture, "exact", **given)
        for kernel, values in errors.items():
            gap = np.abs(weighted_mean(x[::10], nodes, mixture, kernel, **given) - exact).max()
            values.append(float(beta / (2 * h) * gap))
    orders = {k: rate(steps[1:], e[1:]) for k, e in errors.items()}
    part.decide(
        "for a smooth psi the error of (14) is of order h, with the printed U", "section 2.3",
        f"psi = log(2 cosh x): error {text(errors['published'])}, exponent "
        f"{orders['published']:.2f}", orders["published"] > 0.8,
    )  # fmt: skip
    part.decide(
        "corrected: it is with S(y)", "section 2.3",
        f"psi = log(2 cosh x): error {text(errors['laplace'])}, exponent {orders['laplace']:.2f}",
        abs(orders["laplace"] - 1) < 0.2,
    )  # fmt: skip
    return part


def plane(flags: RwpoOperator) -> Part:
    """Z and the attention of the three interactions in two dimensions, against quadrature."""
    part, beta, lam = Part("Two dimensions"), 1.0, 2.0
    prior, steps = sampling.L1(lam), [0.1, 0.025, 0.00625]
    rng = np.random.default_rng(4)
    points, weights = np.polynomial.legendre.leggauss(80)
    worst = 0.0
    for h in steps:
        for y in rng.normal(size=(6, 2)):
            reach = 9 * np.sqrt(2 * h / beta)
            axes, masses = [], []
            for k in range(2):  # the pieces of [S(y) - reach, S(y) + reach] around the kink
                ends = np.sort([soft(y, lam * h)[k] - reach, 0.0, soft(y, lam * h)[k] + reach])
                halves = np.diff(ends)[:, None] / 2
                axes.append((ends[:-1, None] + halves * (points + 1)).ravel())
                masses.append((halves * weights).ravel())
            z = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
            log = lam * np.abs(z).sum(axis=-1) + np.sum((z - y) ** 2, axis=-1) / (2 * h)
            value = masses[0] @ np.exp(-beta / 2 * log) @ masses[1]
            worst = max(worst, abs(float(prior.log_normaliser(y, h=h, beta=beta)) - np.log(value)))
    part.decide(
        "the closed form of Z in two dimensions", "eq. 13",
        f"largest error of log Z against quadrature {worst:.1e} in 18 cases", worst < 1e-10,
    )  # fmt: skip
    side = np.linspace(-4.5, 4.5, flags.cells // 10 + 1)
    nodes = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    centres = np.array([[1.2, 0.8], [-1.0, 1.0], [0.3, -1.1]])
    distances = np.sum((nodes[:, None] - centres) ** 2, axis=2)
    log_density = np.log(np.exp(-distances / (2 * 0.4**2)).sum(axis=1) + 1e-300)
    x = rng.uniform(-2, 2, size=(200, 2))
    errors: dict[str, list[float]] = {kernel: [] for kernel in KERNELS[1:]}
    far = np.min(np.abs(x), axis=1) > 0.75
    away = []
    for h in steps:
        means = {
            kernel: attention(x, nodes, log_density, kernel, h=h, beta=beta, prior=prior)
            for kernel in KERNELS
        }
        for kernel, found in errors.items():
            error = np.linalg.norm(means[kernel] - means["exact"], axis=1)
            found.append(float(beta / (2 * h) * error.max()))
            if kernel == "laplace":
                away.append(float(beta / (2 * h) * error[far].max()))
    part.tables["Largest error of the score over a mixture of three Gaussians in the plane, lambda "
                "= 2, beta = 1, 200 points:"] = [
        {"kernel": kernel} | {f"h = {h:g}": f"{v:.2g}" for h, v in zip(steps, found, strict=True)}
        for kernel, found in {**errors, "laplace, 0.75 from the axes": away}.items()
    ]  # fmt: skip
    part.decide(
        "in two dimensions the printed U gives the score for h -> 0", "Proposition 2",
        f"largest error {text(errors['published'], '.3g')} for h = {text(steps, 'g')}",
        errors["published"][-1] < errors["published"][0],
    )  # fmt: skip
    part.decide(
        "corrected: U with S(y) does, away from the axes", "Proposition 2",
        f"largest error {text(away)} at points 0.75 and more from both, {text(errors['laplace'])} "
        "at all", away[-1] < 0.1 * away[0],
    )  # fmt: skip
    return part


def proximal_map(_: RwpoOperator) -> Part:
    """Printed forms of the proximal map."""
    part, width = Part("Proximal map"), 0.5
    x = np.linspace(-2, 2, 401)
    z = np.linspace(-3, 3, 60_001)
    minimiser = np.array([z[np.argmin(width * np.abs(z) + (z - y) ** 2 / 2)] for y in x])
    printed = np.abs(np.maximum(np.abs(x) - width, 0) - minimiser)
    part.decide(
        "S(x) = ReLU(|x| - lambda h)", "eqs. 3, after 12",
        f"off by up to {printed.max():.3g} on [-2, 2]: the sign of x is missing",
        printed.max() < 1e-3,
    )  # fmt: skip
    found = np.abs(sampling.L1(1.0).prox(x[:, None], width)[:, 0] - minimiser).max()
    part.decide(
        "corrected: S(x) = sign(x) ReLU(|x| - lambda h)", "eq. 3",
        f"within {found:.0e} of the minimiser on a grid of spacing 1e-4", found < 1e-4,
    )  # fmt: skip
    slope = (x - soft(x, width)) / width
    inside = (np.abs(x) < width) & (x != 0)
    part.decide(
        "(x - prox(x))/h is a subgradient at x", "section 2.2",
        f"for 0 < |x| < lambda h it is x/h, and the subgradient at x is lambda sign(x): off by up "
        f"to {np.abs(slope - np.sign(x))[inside].max():.2f} lambda; it is one at prox(x)",
        np.abs(slope - np.sign(x))[inside].max() < 1e-9,
    )  # fmt: skip
    return part


def scheme(flags: RwpoOperator) -> Part:
    """Steps (12) of many particles in one dimension against the Fokker-Planck equation."""
    part, beta, end = Part("The scheme (12) in one dimension"), 2.0, 1.0
    edges, x, width = grid(8.0, flags.cells)
    share = (np.arange(flags.particles) + 0.5) / flags.particles
    start = np.append(0, np.cumsum(gaussian(x, 1.0, 0.7)) * width)
    first = np.interp(share, start / start[-1], edges)
    smooth = sampling.separable(lambda z: np.logaddexp(z, -z), np.tanh)
    cases: dict[str, tuple[Any, Any, Callable[[Array], Array]]] = {
        "abs x, published": ("published", sampling.L1(1.0), np.abs),
        "abs x, laplace": ("laplace", sampling.L1(1.0), np.abs),
        "abs x, exact": ("exact", sampling.L1(1.0), np.abs),
        "log(2 cosh x), exact": ("exact", smooth, lambda y: np.logaddexp(y, -y)),
        "0, exact": ("exact", sampling.NoPrior(), np.zeros_like),
    }
    steps, errors, orders = [8, 16, 32, 64], {}, {}
    for name, (kernel, prior, psi) in cases.items():
        run = sampling.evolve_density(
            lambda y: gaussian(y, 1.0, 0.7), lambda y, p=psi: y**2 / 2 + p(y), edges=edges,
            times=[end], dt=1 / flags.steps, beta=beta,
        )  # fmt: skip
        cumulative = np.append(0, np.cumsum(run.density.values[0]) * width)
        target, found = np.interp(share, cumulative, edges), []
        for count in steps:
            h, y = end / count, first[:, None]
            for _ in range(count):
                y = y - h * y
                mean = sampling.attention_mean(
                    y, y, h=h, beta=beta, prior=prior, kernel=kernel
                ).mean
                y = y + 0.5 * (prior.prox(y, h) - mean)
            gap = np.sort(y[:, 0]) - target
            found.append([np.mean(np.abs(gap)), np.sqrt(np.mean(gap**2)),
                          abs(np.mean(y**2) - np.mean(target**2))])  # fmt: skip
        errors[name] = np.array(found).T
        orders[name] = [rate([1 / n for n in steps[:k]], e[:k])
                        for e, k in zip(errors[name], (4, 4, 3), strict=True)]  # fmt: skip
    titles = ("exponent", "of W2", "of E x^2")
    part.tables[f"Error at t = 1 against Fokker-Planck, {flags.particles} particles, phi = -x^2/2, "
                "beta = 2, from N(1, 0.49); exponents in h:"] = [
        {"psi, kernel": name}
        | {f"W1, h = 1/{n}": f"{v:.2e}" for n, v in zip(steps, e[0], strict=True)}
        | {title: f"{order:.2f}" for title, order in zip(titles, orders[name], strict=True)}
        for name, e in errors.items()
    ]  # fmt: skip
    part.variables["scheme_error"] = (
        ("scheme", "quantity", "steps"), np.array(list(errors.values())),
        "error at t = 1 against Fokker-Planck",
    )  # fmt: skip
    part.coords = {"scheme": (list(cases), "potential and interaction"), "steps": (steps, "steps"),
                   "quantity": (["W1", "W2", "second moment"], "quantity")}  # fmt: skip
    printed = errors["abs x, published"][0]
    part.decide(
        "(9) with the printed U is a first-order approximation of (7)", "section 1, eq. 9",
        f"W1 at t = 1 {text(printed)} for h = 1/8 to 1/64", printed[-1] < 0.5 * printed[0],
    )  # fmt: skip
    exact = {name.split(",")[0]: o for name, o in orders.items() if name.endswith("exact")}
    part.decide(
        "corrected: with the kernel `exact` it is, in W1", "section 1, eq. 12",
        "exponents " + ", ".join(f"{o[0]:.2f} (psi = {name})" for name, o in exact.items())
        + f"; second moments {exact['abs x'][2]:.2f} for |x|, of which a layer of width "
        "sqrt(h) around the kink is not resolved", [o[0] > 0.9 for o in exact.values()],
    )  # fmt: skip
    return part


# The layer and its training phase
# --------------------------------


def jacobians(x: Array, context: Array, prior: Any, h: float, kernel: Any) -> tuple[Array, Array]:
    """DS (n, d) and DM (n, d, d) of attention over a context that does not move, beta = 1."""
    found = sampling.attention_mean(
        x, context, h=h, beta=1.0, prior=prior, kernel=kernel, covariance=True
    )
    slope = prior.prox_derivative(x, h)
    scale = (1 - slope if kernel == "published" else np.ones_like(slope)) / (2 * h)
    assert found.covariance is not None
    return slope, found.covariance * scale[:, None, :]


def quiet_layer(x: Array, prior: Any, h: float, kernel: Any) -> Array:
    """The layer (22) without its warnings about folds."""
    found = sampling.attention_mean(x, x, h=h, beta=1.0, prior=prior, kernel=kernel)
    return np.asarray(x + 0.5 * (prior.prox(x, h) - found.mean))


def inverse(flags: RwpoOperator) -> Part:
    """(23) as an inverse of (22), folds of (22), and the backward map B."""
    part, rng = Part("The layer and its inverse"), np.random.default_rng(0)
    x = rng.normal(size=(flags.tokens // 2, 2))
    rows, trips, shares = [], [], []
    for lam in (2.0, 0.5):
        for h in (1 / 8, 1 / 48):
            for kernel in ("published", "exact"):
                prior = sampling.L1(lam)
                y = quiet_layer(x, prior, h, kernel)
                back = quiet_layer(y, prior, h, kernel)  # (23): with a plus sign, as in (22)
                slope, matrix = jacobians(x, x, prior, h, kernel)
                gradient = np.eye(2) * (1 + 0.5 * slope[:, :, None]) - 0.5 * matrix
                share = float(np.mean(np.linalg.det(gradient) < 0))
                size = float(np.sqrt(np.mean(np.sum((y - x) ** 2, axis=1))))
                trip = float(np.sqrt(np.mean(np.sum((back - x) ** 2, axis=1))))
                trips.append(trip)
                if kernel == "published":
                    shares.append(share)
                rows.append({
                    "kernel": kernel, "lambda": f"{lam:g}", "h": f"1/{1 / h:.0f}",
                    "move of (22)": f"{size:.3f}", "left after (23)": f"{trip:.3f}",
                    "det DG < 0": f"{100 * share:.1f} %",
                    "largest eigenvalue of DM": f"{np.linalg.eigvals(matrix).real.max():.2f}",
                })  # fmt: skip
    size = float(np.sqrt(np.mean(np.sum(x**2, axis=1))))
    part.tables[f"One layer (22) and one of (23) for {x.shape[0]} tokens N(0, I) in the plane, of "
                f"root mean square norm {size:.2f}, beta = 1:"] = rows  # fmt: skip
    part.decide(
        "the training phase (23) goes back along the generation phase (22)", "Algorithm 1",
        f"tokens of norm {size:.2f} come back with errors {min(trips):.2f} to {max(trips):.2f}: "
        "(23) has the sign of (22), and moves on", max(trips) < 1e-6,
    )  # fmt: skip
    part.decide(
        "the printed layer is a bijection, as (17) needs", "eq. 22, Proposition 3",
        f"det DG < 0 for {100 * min(shares):.1f} to {100 * max(shares):.1f} % of the tokens",
        max(shares) == 0,
    )  # fmt: skip
    context, least, worst = rng.normal(size=(flags.tokens // 2, 2)), np.inf, 0.0
    for lam, h, kernel in ((2.0, 1 / 8, "exact"), (2.0, 1 / 48, "exact"), (0.5, 1 / 8, "laplace")):
        given: dict[str, Any] = {"h": h, "beta": 1.0, "prior": sampling.L1(lam), "kernel": kernel}
        slope, matrix = jacobians(x, context, given["prior"], h, kernel)
        gradient = np.eye(2) * (1 - 0.5 * slope[:, :, None]) + 0.5 * matrix
        least = min(least, float(np.linalg.eigvalsh(gradient).min()))
        y = sampling.backward(x, context, **given)
        worst = max(worst, float(np.abs(sampling.backward_inverse(y, context, **given) - x).max()))
    part.decide(
        "corrected: B(x) = x - [S(x) - M(x; C)]/2 with a context C of other tokens has an inverse, "
        "DB >= 1/2", "instead of eq. 23",
        f"smallest eigenvalue {least:.3f}; x comes back within {worst:.1e}",
        [least > 0.5 - 1e-9, worst < 1e-12],
    )  # fmt: skip
    return part


def determinant(flags: RwpoOperator) -> Part:
    """Trace against log det along the layers, and what rounding leaves of the tokens."""
    part = Part("Densities (24)")
    gaps, ends, trips = [], [], []
    for count in (8, 48):
        rng, h, prior = np.random.default_rng(1), 1 / count, sampling.L1(2.0)
        start, contexts, logs, traces = rng.normal(size=(200, 2)), [], [], []
        x: Array = start
        context: Array = rng.normal(size=(flags.tokens // 2, 2))
        given: dict[str, Any] = {"h": h, "beta": 1.0, "prior": prior}
        for _ in range(count):
            slope, matrix = jacobians(x, context, prior, h, "exact")
            change = -0.5 * (np.eye(2) * slope[:, :, None] - matrix)
            logs.append(np.linalg.slogdet(np.eye(2) + change)[1])
            traces.append(np.trace(change, axis1=1, axis2=2))
            contexts.append(context)
            x = sampling.backward(x, context, **given)
            context = sampling.backward(context, context, exclude_self=True, **given)
        y = x
        for before in reversed(contexts):
            y = sampling.backward_inverse(y, before, **given)
        trips.append(float(np.abs(y - start).max()))
        difference = np.mean(np.array(traces) - np.array(logs), axis=1)
        gaps.append((difference.min(), difference.max()))
        ends.append((float(np.sum(traces, axis=0).mean()), float(np.sum(logs, axis=0).mean())))
    part.tables["Layers x <- B(x; C) of 200 tokens N(0, I) in the plane, C of "
                f"{flags.tokens // 2} others, lambda = 2, beta = 1, T = 1, means:"] = [
        {"n_t": f"{count}", "sum of traces": f"{end[0]:.2f}", "sum of log det": f"{end[1]:.2f}",
         "trace - log det of a layer": f"{gap[0]:.3f} to {gap[1]:.3f}",
         "tokens come back within": f"{trip:.1e}"}
        for count, end, gap, trip in zip((8, 48), ends, gaps, trips, strict=True)
    ]  # fmt: skip
    part.decide(
        "the trace of (24) is the change of the log density of a layer", "eq. 24",
        f"off by {gaps[0][0]:.2f} to {gaps[0][1]:.2f} a layer with n_t = 8, {gaps[1][0]:.2f} to "
        f"{gaps[1][1]:.2f} with 48: {ends[1][0]:.1f} for {ends[1][1]:.1f} in all",
        max(abs(gaps[0][1]), abs(gaps[1][1])) < 1e-2,
    )  # fmt: skip
    rng, samples, lam = np.random.default_rng(2), 400_000, 1.0
    x, h, apart = np.abs(rng.normal(size=samples)), 0.25, 0.02

    def mean(lam: float) -> float:
        return float(np.mean(np.log1p(-0.5 * (x > lam * h))))

    def smooth(lam: float) -> float:
        return float(np.mean(np.log1p(-0.5 * np.tanh(x / (lam * h)) ** 2)))

    steep, other = ((f(lam + apart) - f(lam - apart)) / (2 * apart) for f in (mean, smooth))
    density = 2 * np.exp(-((lam * h) ** 2) / 2) / np.sqrt(2 * np.pi)
    wave = np.tanh(x / (lam * h))
    inside = float(np.mean(wave * (1 - wave**2) * x / (lam**2 * h) / (1 - 0.5 * wave**2)))
    part.decide(
        "lambda can be trained through the soft thresholding of the log density", "section 4",
        f"d/d lambda of E log det(1 - DS/2), x of N(0, 1), h = 0.25, lambda = 1: {steep:.3f} by "
        f"differences, {h * density * np.log(2):.3f} in closed form, 0 by differentiation of every "
        "sample, since DS is constant but for jumps; with the smooth S(x) = x - lambda h "
        f"tanh(x/(lambda h)) {other:.3f} and {inside:.3f}", abs(steep) < 0.01,
    )  # fmt: skip
    return part


def self_weights(flags: RwpoOperator) -> Part:
    """How much of the attention a token gives itself in d dimensions."""
    part, rng = Part("Self-weights"), np.random.default_rng(3)
    dims, steps = [2, 4, 8, 16, 32, 64], [1 / 8, 1 / 48]
    weights, sizes = np.zeros((len(dims), 2)), np.zeros((len(dims), 2))
    prior = sampling.L1(2.0)
    for i, d in enumerate(dims):
        x = rng.normal(size=(flags.tokens, d))
        for j, h in enumerate(steps):
            found = sampling.attention_mean(x, x, h=h, beta=1.0, prior=prior)
            own = -prior.log_normaliser(x, h=h, beta=1.0) - found.log_sum
            weights[i, j], sizes[i, j] = np.exp(own).mean(), np.median(found.ess)
    part.tables[f"Mean weight of a token in its own attention, and median effective sample size, "
                f"{flags.tokens} tokens N(0, I), lambda = 2, beta = 1; estimate: 1/(1 + N (1 + "
                "beta/h)^(-d/2)):"] = [
        {"d": f"{d}"}
        | {f"weight, h = 1/{1 / h:.0f}": f"{weights[i, j]:.3f}" for j, h in enumerate(steps)}
        | {f"estimate, h = 1/{1 / h:.0f}": f"{1 / (1 + flags.tokens * (1 + 1 / h) ** (-d / 2)):.3f}"
           for h in steps}
        | {f"size, h = 1/{1 / h:.0f}": f"{sizes[i, j]:.3g}" for j, h in enumerate(steps)}
        for i, d in enumerate(dims)
    ]  # fmt: skip
    part.variables["self_weight"] = (("d", "h_layer"), weights, "mean weight of a token in its own "
                                     "attention")  # fmt: skip
    part.variables["ess"] = (("d", "h_layer"), sizes, "median effective sample size")
    part.coords = {"d": (dims, "dimension"), "h_layer": (steps, "step of the layer")}
    part.decide(
        "tokens interact at the dimensions of Table 1 (3 to 128)", "Table 1",
        "mean weight of a token in its own attention at d = " + ", ".join(
            f"{d}: {text(weights[i], '.2f')}" for i, d in enumerate(dims)
        ) + " (h = 1/8, 1/48)", [row.max() < 0.9 for row in weights],
    )  # fmt: skip
    spread, marks, h = [], [100, 200, 400, 800], 0.25
    y: Array = 0.15 * rng.normal(size=(flags.tokens // 4, 1))
    for k in range(1, marks[-1] + 1):
        y = quiet_layer(y, sampling.L1(2.0), h, "exact")
        if k in marks:
            spread.append(float(y.std()))
    part.decide(
        "the score term prevents collapse", "section 1",
        f"a cloud inside |x| <= lambda h (lambda = 2, h = 0.25, beta = 1) has the spread "
        f"{text(spread, '.4f')} after {text(marks, 'd')} layers (15), exponent "
        f"{rate(marks, spread):.2f}; in closed form sqrt(2h/(beta k)), "
        f"{text([np.sqrt(2 * h / k) for k in marks], '.4f')}", spread[-1] > 0.5 * spread[0],
    )  # fmt: skip
    return part
