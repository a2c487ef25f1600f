"""The BRWP sampler beside Langevin samplers: bias, number of tokens, dimension, cost.

[BRWP] replaces the noise of Langevin dynamics by the score of a cloud after a regularised
Wasserstein proximal step of the prior, which is the attention of [RWPO]. Targets with exact samples
(a Gaussian times a Laplace prior, a mixture times one) or a Gibbs sampler (the Bayesian lasso) show
how far each sampler is from its target: against the step, the number of tokens, the temperature,
the dimension, and at equal numbers of gradient evaluations.

    python studies/rwpo/rwpo_sampler.py

[BRWP] Han, Osher, Li, Splitting regularized Wasserstein proximal algorithms for nonsmooth sampling
problems, arXiv 2502.16773. [RWPO] Han, Osher, Li, Sparse Transformer Architectures via Regularized
Wasserstein Proximal Operator with L1 Prior.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from _rwpo import plain_ticks
from numpy.typing import NDArray

from wflow import sampling, study
from wflow.cli import script
from wflow.plots.figure import PAGE, grid, legend_below, style
from wflow.sampling import targets
from wflow.study import Finding
from wflow.study.frame import Verdict

Array = NDArray[np.float64]
SAMPLERS = ("brwp", "myula", "ula")
REFERENCES = 4  # independent samples of every target
BOUND = 0.05  # of beta lambda^2 h
ABSORBED_STEP = 0.5  # of the clouds within lambda h
ENOUGH = 30.0  # effective tokens
FEW = 10.0
CLOSE = 0.15  # relative error of a variance that counts as right
SLOPE = 0.3  # error of an exponent
THEORY, OWN = "docs/theory/proximal.md", "question of this study"


Budgets = Annotated[
    tuple[study.Count, ...], study.Checked(partial(study.distinct, least=3), together=True)
]
"""Type of a flag of budgets, three or more for a rate."""


@dataclass(frozen=True, kw_only=True)
class RwpoSampler(study.OutputFlags):
    """Flags of this study."""

    durations: ClassVar = {"smoke": "seconds", "cpu": "ten minutes", "paper": "an hour or two"}
    presets: ClassVar = {
        "smoke": {
            "tokens": 60, "steps": (0.2, 0.1), "budgets": (5, 10, 20), "dims": (2, 3),
            "sweep": (40, 80), "scales": (2, 3), "decay": 30, "until": 1.0,
        },
        "cpu": {},
        "paper": {
            "tokens": 4000, "steps": (0.4, 0.2, 0.1, 0.05, 0.025), "sweep": (1000, 4000, 16000),
            "budgets": (5, 10, 20, 40, 80, 160, 320, 640), "decay": 4000,
        },
    }  # fmt: skip
    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """Defaults of the flags below. The findings of smoke mean nothing."""
    targets: tuple[Literal["laplace", "mixture", "lasso"], ...] = ("laplace", "mixture", "lasso")
    """Targets of the comparison of samplers."""
    tokens: study.Count = 1000
    """Number of tokens of this comparison."""
    steps: study.Distinct[study.Positive] = (0.4, 0.2, 0.1, 0.05)
    """Its steps h in units of 1/L, L the Lipschitz constant of the gradient."""
    budgets: Budgets = (5, 10, 20, 40, 80, 160, 320)
    """Gradient evaluations of every token after which samplers are compared, three or more."""
    dims: study.Distinct[study.TwoOrMore] = (2, 10, 50)
    """Dimensions of its targets."""
    sweep: study.Compared[study.Count] = (250, 1000, 3000)
    """Numbers of tokens of the other parts, two or more."""
    scales: study.Distinct[study.TwoOrMore] = (2, 5, 10, 20, 50)
    """Dimensions in which the effective sample size is measured."""
    decay: study.Count = 2000
    """Steps of the absorbed cloud."""
    betas: study.Distinct[study.Positive] = (0.25, 1.0, 4.0, 16.0)
    """Inverse temperatures."""
    until: study.Positive = 4.0
    """Time of the runs that measure the bias."""
    threads: study.Count | None = None
    """Threads of the compiled functions; all by default. No number depends on it but the times."""
    out: study.Folder = Path("results/rwpo_sampler")


# Targets and runs
# ----------------


@cache
def target(name: str, d: int, beta: float = 1.0) -> targets.Target:
    """Return a target in d dimensions, lambda = 1, at most one coordinate in five away from 0."""
    far = -(-d // 5)
    if name == "lasso":
        return targets.BayesianLasso.drawn(d, observations=4 * d, noise=1.0, beta=beta, seed=d)
    if name == "mixture":
        means = np.zeros((4, d))
        means[:, :2] = 1.5 * np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
        return targets.GaussianMixture(means, scale=0.5, lam=1.0, beta=beta)
    mean = np.where(np.arange(d) < far, 2.0, 0.0)
    return targets.GaussianLaplace(mean, lam=0.0 if name == "gaussian" else 1.0, beta=beta)


def smoothness(name: str, d: int) -> float:
    """Return the Lipschitz constant L of the gradient (of the mixture, within a component)."""
    found = target(name, d)
    if isinstance(found, targets.BayesianLasso):
        return found.smoothness()
    assert isinstance(found, targets.GaussianMixture)
    return 1 / (found.beta * found.scale**2)


@cache
def references(name: str, d: int, n: int, beta: float = 1.0) -> Array:
    """Return independent samples (REFERENCES, n, d)."""
    return target(name, d, beta).sample(REFERENCES * n, seed=17).reshape(REFERENCES, n, d)


@cache
def moments(name: str, d: int, beta: float = 1.0) -> tuple[Array, Array]:
    """Return the mean and variances of a target: exact, or of all sweeps of a long chain."""
    found = target(name, d, beta)
    if isinstance(found, targets.GaussianMixture):
        return found.mean(), np.diag(found.covariance())
    assert isinstance(found, targets.BayesianLasso)
    draws = found.reference(4000, seed=17)["samples"].values.reshape(-1, d)
    return draws.mean(axis=0), draws.var(axis=0)


def start(n: int, d: int, beta: float = 1.0) -> Array:
    """Return a cloud (n, d) twice as wide as a Gaussian of the temperature."""
    return 2 / np.sqrt(beta) * np.random.default_rng(29).standard_normal((n, d))


def run(
    flags: RwpoSampler, sampler: str, of: targets.Target, x0: Array, **how: Any
) -> study.Dataset:
    """Run a sampler; the effect of too large steps is measured here, not warned of."""
    how |= {"beta": of.beta} | ({"threads": flags.threads} if sampler == "brwp" else {"seed": 41})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="h is .* above|at the end a token attends")
        if sampler == "ula":
            return sampling.ula(x0, of.subgradient, **how)
        return getattr(sampling, sampler)(x0, of.grad, of.prior, **how)


def ratio_of(variance: Array, exact: Array) -> Array:
    """Return the mean over the coordinates of variances over the exact ones."""
    return np.mean(variance / exact, axis=-1)


sliced = partial(sampling.sliced_w2, projections=64)


def floor(name: str, d: int, n: int, distance: Any, beta: float = 1.0) -> Array:
    """Return distances of pairs of independent samples."""
    refs = references(name, d, n, beta)
    return np.array([distance(refs[i], refs[j]) for i in range(REFERENCES) for j in range(i)])


def settled(
    flags: RwpoSampler, name: str, d: int, n: int, h: float, paths: int = 1
) -> tuple[study.Dataset, Array]:
    """Return runs of BRWP from exact samples on, and the variance over the exact one of each."""
    of = target(name, d)
    x0 = of.sample(paths * n, seed=5).reshape(paths, n, d)
    found = run(flags, "brwp", of, x0, h=h, steps=round(flags.until / h), save_every=10**6)
    return found, ratio_of(found["sample_variance"].values[:, -1], moments(name, d)[1])


# The parts of the study
# ----------------------


def compare(flags: RwpoSampler, files: dict[str, Path], advance: Any) -> study.Dataset:
    """Compare the samplers at equal gradient evaluations, over targets, dimensions and steps."""
    budgets = np.array(flags.budgets)
    if_exists = "resume" if flags.resume else "overwrite" if flags.overwrite else "error"

    def measure(name: str, d: int, sampler: str, step: float) -> dict[str, Array]:
        h = step / smoothness(name, d)
        file = flags.out / f"{name}_d{d:02d}_{sampler}_h{step:g}.h5"
        files[file.stem] = file
        of, refs = target(name, d), references(name, d, flags.tokens)
        mean, variance = moments(name, d)
        x0, steps = start(flags.tokens, d), int(budgets[-1])
        with run(flags, sampler, of, x0, h=h, steps=steps, snapshots=budgets, save_every=5,
                 out=file, if_exists=if_exists) as found:  # fmt: skip
            places = budgets // 5  # of the record times
            clouds = found["samples"].values[0]
            spread = found["sample_variance"].values[0, places]
            away = (found["sample_mean"].values[0, places] - mean) / np.sqrt(variance)
            late = {key: float(found[key][0, -1]) if key in found else np.nan
                    for key in ("ess", "absorbed")}  # fmt: skip
        return {
            "sliced": np.array([[sliced(x, y) for y in refs] for x in clouds]),
            "w2": np.array([sampling.w2(clouds[-1], y) for y in refs[:2]]),
            "variance": ratio_of(spread, variance),
            "mean_error": np.sqrt(np.mean(away**2, axis=-1)),
            "bound": of.beta * h,
            **late,
        }

    table = study.tabulate(
        {"target": (flags.targets, "target"), "d": (flags.dims, "dimension"),
         "sampler": (SAMPLERS, "sampler"), "step": (flags.steps, "step h in units of 1/L")},
        measure,
        {
            "sliced": (("budget", "reference"), "sliced W2 to a sample of the target"),
            "w2": (("pair",), "W2 to a sample of the target at the end"),
            "variance": (("budget",), "variance over the exact one"),
            "mean_error": (("budget",), "error of the mean, in standard deviations"),
            "bound": "beta lambda^2 h",
            "ess": "effective tokens of the attention",
            "absorbed": "share of coordinates absorbed",
        },
        {"budget": (budgets, "gradient evaluations of every token"),
         "reference": (np.arange(REFERENCES), "reference sample"),
         "pair": (np.arange(2), "reference sample of w2")},
        advance,
    )  # fmt: skip

    def floors(distance: Any) -> tuple[tuple[str, ...], list[list[Array]]]:
        return ("target", "d", "floor_pair"), [
            [floor(name, d, flags.tokens, distance) for d in flags.dims] for name in flags.targets
        ]

    return table.assign(sliced_floor=floors(sliced), w2_floor=floors(sampling.w2))


def bias(flags: RwpoSampler) -> study.Dataset:
    """Measure BRWP against h and the number of tokens, in the plane, from exact samples on."""
    paths, steps = 3, (0.1, 0.05, 0.025, 0.0125)

    def measure(name: str, n: int, h: float) -> dict[str, Array]:
        found, ratio = settled(flags, name, 2, n, h, paths)
        clouds, refs = found["samples"].values[:, -1], references(name, 2, n)
        return {
            "deficit": 1 - ratio,
            "bias_sliced": [np.mean([sliced(x, y) for y in refs]) for x in clouds],
            "bias_ess": found["ess"].values[:, -1],
            "bias_floor": floor(name, 2, n, sliced).mean(),
        }

    return study.tabulate(
        {"smooth": (("gaussian", "laplace"), "target in the plane"),
         "n": (flags.sweep, "number of tokens"), "h": (steps, "step")},
        measure,
        {
            "deficit": (("path",), "relative deficit of the variance"),
            "bias_sliced": (("path",), "sliced W2 to samples of the target"),
            "bias_ess": (("path",), "effective tokens of the attention"),
            "bias_floor": "sliced W2 of two samples of the target",
        },
        {"path": (np.arange(paths), "initial sample")},
    )  # fmt: skip


def mean_field_deficit(h: float) -> float:
    """Return the deficit of the variance of a Gaussian target for infinitely many tokens.

    y = (1 - h) x ~ N(0, t) attends to k y, k = t/(t + 2h), and rests for (1 - h)(3 - k)/2 = 1.
    """
    k = 3 - 2 / (1 - h)
    return 1 - 2 * h * k / (1 - k) / (1 - h) ** 2


def extrapolated(table: study.Dataset, name: str) -> tuple[Array, NDArray[np.bool_]]:
    """Return deficits for infinitely many tokens, linear in 1/ESS, and where they are resolved.

    The two largest numbers of tokens are extrapolated. A step is resolved where that changes the
    deficit by less than half of what is left.
    """
    part = table[["deficit", "bias_ess"]].sel(smooth=name).isel(n=slice(-2, None)).mean("path")
    (fewer, more), (narrow, wide) = part["deficit"].values, 1 / part["bias_ess"].values
    limit = more - wide * (fewer - more) / (narrow - wide)
    return limit, np.abs(more - limit) < 0.5 * limit


def interaction(flags: RwpoSampler) -> study.Dataset:
    """Measure effective sample size and variance of BRWP against the dimension."""

    def measure(d: int, n: int, h: float) -> dict[str, Any]:
        found, ratio = settled(flags, "laplace", d, n, h)
        return {"scale_ess": found["ess"].values[0, -1], "scale_variance": ratio[0]}

    return study.tabulate(
        {"scale": (flags.scales, "dimension"), "count": (flags.sweep[:2], "number of tokens"),
         "h_scale": ((0.05, 0.025), "step")},
        measure,
        {"scale_ess": "effective tokens of the attention",
         "scale_variance": "variance over the exact one"},
    )  # fmt: skip


def absorption(flags: RwpoSampler) -> study.Dataset:
    """Measure the spread of clouds within |x_i| <= lambda h, where f = 0 and f = |x|^2/2."""
    x0 = np.clip(0.2 * np.random.default_rng(3).standard_normal((300, 2)), -0.5, 0.5)
    of: dict[str, Any] = {"flat": np.zeros_like, "quadratic": lambda x: x}

    def measure(kernel: str, name: str) -> dict[str, Array]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="h is .* above")
            how: Any = {"kernel": kernel, "threads": flags.threads, "steps": flags.decay}
            found = sampling.brwp(x0, of[name], sampling.L1(2.0), h=ABSORBED_STEP, **how)
        return {"spread": np.sqrt(found["sample_variance"].values[0].mean(axis=-1))}

    return study.tabulate(
        {"kernel": (("exact", "laplace", "published"), "kernel"),
         "f": (tuple(of), "smooth part of the potential")},
        measure,
        {"spread": (("k",), "spread of a cloud within lambda h")},
        {"k": (np.arange(flags.decay + 1), "step")},
    )  # fmt: skip


def temperature(flags: RwpoSampler) -> study.Dataset:
    """Measure variance and distance over the temperature, with beta lambda^2 constant or not."""

    def measure(beta: float) -> dict[str, Any]:
        case, n, cold = ("laplace", 2, beta), flags.tokens, max(1.0, beta)
        mean, variance = moments(*case)
        found = run(flags, "brwp", target(*case), start(n, 2, beta) + mean, h=0.05 / cold,
                    steps=round(120 * cold), save_every=10**6)  # fmt: skip
        x, width = found["samples"].values[0, -1], np.sqrt(variance.mean())
        last = found.isel(path=0, time=-1)
        refs = references("laplace", 2, n, beta)
        return {
            "beta_sliced": np.mean([sliced(x, y) for y in refs]) / width,
            "beta_floor": floor("laplace", 2, n, sliced, beta).mean() / width,
            "beta_variance": ratio_of(last["sample_variance"].values, variance),
            "beta_ess": float(last["ess"]),
        }

    return study.tabulate(
        {"beta": (flags.betas, "inverse temperature")},
        measure,
        {
            "beta_sliced": "sliced W2 in standard deviations",
            "beta_floor": "that of two samples of the target",
            "beta_variance": "variance over the exact one",
            "beta_ess": "effective tokens of the attention",
        },
    )


def cost(flags: RwpoSampler) -> study.Dataset:
    """Return seconds of a step."""

    def measure(d: int, n: int, sampler: str) -> dict[str, float]:
        of, x0 = target("lasso", d), start(n, d)
        best = np.inf
        for _ in range(3):
            begun = time.perf_counter()
            run(flags, sampler, of, x0, h=0.01, steps=5, save_every=5)
            best = min(best, (time.perf_counter() - begun) / 6)
        return {"seconds": best}

    return study.tabulate(
        {"cost_d": (flags.dims, "dimension"), "cost_n": (flags.sweep, "number of tokens"),
         "cost_sampler": (SAMPLERS, "sampler")},
        measure,
        {"seconds": "seconds of a step"},
    )  # fmt: skip


def best(table: study.Dataset) -> study.Dataset:
    """Return the best step of every sampler and budget, chosen on two references.

    value, spread : mean and standard deviation of the sliced W2 over the other references
    chosen : the step
    """
    import xarray

    half = REFERENCES // 2
    place = table["sliced"].isel(reference=slice(half)).mean("reference").argmin("step")
    of_step = table.isel(step=place)
    return xarray.Dataset({
        "value": of_step["sliced"].isel(reference=slice(half, None)).mean("reference"),
        "spread": table["sliced_floor"].std("floor_pair"),
        "chosen": of_step["step"],
        "ratio": of_step["variance"],
    })  # fmt: skip


# What was found
# --------------


def listed(values: Any, labels: Any, style: str, name: str) -> str:
    """Return values with their labels, as text."""
    pairs = zip(values, labels, strict=True)
    return ", ".join(f"{value:{style}} ({name} = {label:g})" for value, label in pairs)


def of_bias(table: study.Dataset) -> list[Finding]:
    """Return findings on the order of the bias, and the tokens that it takes to see it."""
    names, steps, sizes = (table[dim].values for dim in ("smooth", "h", "n"))

    def by_tokens(values: Array, style: str) -> str:
        texts = (listed(row, sizes, style, "n") for row in values)
        return "; ".join(f"{name}: {text}" for name, text in zip(names, texts, strict=True))

    found, holds = [], []
    for name in names:
        limit, known = extrapolated(table, name)
        logs = np.log(steps[known]), np.log(limit[known])
        slope = np.polyfit(*logs, 1)[0] if known.sum() > 1 else np.nan
        text = listed(limit[known], steps[known], ".3f", "h")
        found.append(f"{name}: deficit {text}, exponent {slope:.2f}")
        holds.append(abs(slope - 1) <= SLOPE)
    exact = np.array([mean_field_deficit(h) for h in steps])
    gaps = np.abs(table["deficit"].sel(smooth="gaussian").mean("path").values - exact)
    least = table["deficit"].mean("path").argmin("h").values
    excess = (table["bias_sliced"].mean("path") - table["bias_floor"]).min("h").values
    return [
        Finding.decided(
            f"the bias of the variance is of first order in h (exponent within {SLOPE:g} of 1), "
            "for infinitely many tokens by extrapolation in 1/ESS, where that resolves it",
            THEORY, "; ".join(found), holds,
        ),
        Finding.decided(
            "for a Gaussian target the deficit of n tokens tends to that of infinitely many",
            THEORY, f"largest distance {listed(gaps.max(1), sizes, '.3f', 'n')}",
            np.all(np.diff(gaps, axis=0) < 0, axis=0),
        ),
        Finding.decided(
            "for fixed n there is a best step: a smaller one has a larger bias, since fewer tokens "
            "attend to each other",
            THEORY, f"best h {by_tokens(steps[least], 'g')}", least[:, :-1] < len(steps) - 1,
        ),
        Finding.decided(
            "the cloud at its best step is no further from the target than an independent sample",
            THEORY, f"sliced W2 minus the floor {by_tokens(excess, '+.3f')}", excess <= 0,
        ),
    ]  # fmt: skip


def brwp_of(table: study.Dataset, **places: Any) -> tuple[Array, Array, Array]:
    """Step bound, variance over the exact one and effective tokens of the runs of `compare`."""
    brwp = table.sel(sampler="brwp", **places).isel(budget=-1)
    bound, variance, ess = (brwp[key].values.ravel() for key in ("bound", "variance", "ess"))
    return bound, variance, ess


def of_interaction(table: study.Dataset) -> Finding:
    """Decide whether the effective sample size tells where the variance is right."""
    bound, *runs = brwp_of(table)
    ratio, ess = (
        np.append(table[key].values.ravel(), values[bound <= BOUND])
        for key, values in zip(("scale_variance", "scale_ess"), runs, strict=True)
    )
    right = np.abs(ratio - 1) <= CLOSE
    many, few = ess >= ENOUGH, ess < FEW
    share = [right[many].mean() if many.any() else 0.0, right[few].mean() if few.any() else 1.0]
    return Finding.decided(
        f"with beta lambda^2 h <= {BOUND:g} the variance is right to {CLOSE:.0%} where a token "
        f"attends to {ENOUGH:g} tokens or more, and wrong below {FEW:g}",
        THEORY,
        f"right in {right[many].sum()} of {many.sum()} runs above, {right[few].sum()} of "
        f"{few.sum()} below; ratios from {ratio[many].min(initial=9):.2f} and up to "
        f"{ratio[few].max(initial=0):.2f}",
        [share[0] >= 0.9, share[1] <= 0.1],
    )


def of_dimension(table: study.Dataset) -> Finding:
    """Return the finding on variances in high dimensions."""
    part = table[["scale_variance", "scale_ess", "scale"]].isel(count=-1).max("h_scale")
    ratio, ess, dims = (part[key].values for key in ("scale_variance", "scale_ess", "scale"))
    cases = zip(ratio, dims, ess, strict=True)
    texts = (f"{r:.2f} (d = {d}, ESS {e:.1f})" for r, d, e in cases)
    return Finding.decided(
        f"the sampler keeps the variance, to {CLOSE:.0%}, in every dimension", OWN,
        f"variance over the exact one at the better step, n = {table['count'].values[-1]}: "
        + ", ".join(texts), np.abs(ratio - 1) <= CLOSE,
    )  # fmt: skip


def of_bound(table: study.Dataset) -> Finding:
    """Decide whether the step bound separates right from wrong variances of interacting tokens."""
    first = table["d"].values[0]
    bound, ratio, _ = brwp_of(table, d=first)
    right = np.abs(ratio - 1) <= CLOSE
    inside, far = bound <= BOUND, bound >= 4 * BOUND
    return Finding.decided(
        f"the variance is right to {CLOSE:.0%} for beta lambda^2 h <= {BOUND:g}, and wrong from "
        f"{4 * BOUND:g} on (d = {first})",
        THEORY,
        f"right in {right[inside].sum()} of {inside.sum()} runs within, {right[far].sum()} of "
        f"{far.sum()} far beyond",
        [bool(right[inside].all()), not right[far].any()] if inside.any() else [False],
    )


def of_absorption(table: study.Dataset) -> Finding:
    """Return the finding on the decay of a cloud within lambda h."""
    k, flat = table["k"].values, table["spread"].sel(f="flat")
    late = k >= k[-1] // 4
    logs = np.log(k[late]), np.log(flat[:, late])
    slopes = {str(row["kernel"].values): np.polyfit(logs[0], row, 1)[0] for row in logs[1]}
    gone = table["spread"].sel(f="quadratic", kernel="exact").values
    place = int(np.searchsorted(-gone, -1e-3 * gone[0]))
    return Finding.decided(
        "a cloud within |x_i| <= lambda h shrinks like k^(-1/2) where f = 0, and geometrically "
        "where f is convex",
        THEORY, "exponents " + ", ".join(f"{slope:.3f} ({name})" for name, slope in slopes.items())
        + f"; f = |x|^2/2, h = 1/2: a thousandth of the spread after {place} steps",
        [*(abs(slope + 0.5) < 0.05 for slope in slopes.values()), place <= 15],
    )  # fmt: skip


def of_equal_effort(table: study.Dataset, d: int, at_equal_time: bool = False) -> Finding:
    """Compare BRWP with the better of the Langevin samplers, in one dimension."""
    chosen, budgets = best(table).sel(d=d), table["budget"].values
    ours = chosen["value"].sel(sampler="brwp")
    theirs, measure, ratio = chosen["value"].sel(sampler=list(SAMPLERS[1:])), "gradients", 1.0
    if at_equal_time:
        n = int(np.abs(table["cost_n"].values - table.attrs["tokens"]).argmin())
        seconds = table["seconds"].sel(cost_d=d).isel(cost_n=n)
        measure, ratio = "time", float(seconds.sel(cost_sampler="brwp") / seconds[1:].max())
        places = np.searchsorted(budgets, np.minimum(budgets * ratio, budgets[-1]), "right") - 1
        theirs = theirs.isel(budget=places).assign_coords(budget=budgets)
    theirs, spread = theirs.min("sampler"), np.sqrt(2) * chosen["spread"]
    better, worse = int((ours < theirs - spread).sum()), int((ours > theirs + spread).sum())
    shown, cells = budgets[2::2], []
    for name in table["target"].values:
        pairs = zip(*(one.sel(target=name, budget=shown).values for one in (ours, theirs)),
                    strict=True)  # fmt: skip
        cells.append(f"{name} {', '.join(f'{a:.3f} : {b:.3f}' for a, b in pairs)}")
    verdict: Verdict = "inconclusive"
    if better or worse:
        verdict = "confirmed in part" if better > worse else "not confirmed"
        verdict = "confirmed" if better > 0.9 * ours.size else verdict
    effort = f" (its step takes {ratio:.1f} times theirs)" if at_equal_time else ""
    return Finding(
        f"at equal {measure} BRWP is closer to the target than MYULA and ULA (d = {d})", OWN,
        f"sliced W2, BRWP : better of the others, after {', '.join(map(str, shown))} gradients of "
        f"BRWP{effort}: {'; '.join(cells)}; closer in {better}, further in {worse} of {ours.size} "
        "cases by more than their spread",
        verdict,
    )  # fmt: skip


def of_distance(table: study.Dataset) -> Finding:
    """Return the finding on what the exact W2 of n samples sees of a lost variance."""
    brwp = table.sel(sampler="brwp").isel(budget=-1)
    below = brwp["w2"].mean("pair") < table["w2_floor"].mean("floor_pair")
    lost = (brwp["variance"] < 0.5) & below
    return Finding.decided(
        "a cloud that is nearer in W2 than an independent sample has the spread of the target",
        THEORY, f"{int(below.sum())} of {below.size} clouds are nearer, {int(lost.sum())} of them "
        "with less than half the variance", not lost.any(),
    )  # fmt: skip


# Tables and figures
# ------------------

COLOURS = {"brwp": "#0b3c5d", "myula": "#c1440e", "ula": "#5c8a3a"}


def rows(
    table: study.Dataset, dims: dict[str, str], cells: dict[str, Callable[[study.Dataset], str]]
) -> list[dict[str, str]]:
    """Return a row for all labels of some dimensions, title -> dimension, and cells of its part."""
    found = []
    for labels in product(*(table[dim].values.tolist() for dim in dims.values())):
        part = table.sel(dict(zip(dims.values(), labels, strict=True)))
        row = {t: v if isinstance(v, str) else f"{v:g}" for t, v in zip(dims, labels, strict=True)}
        found.append(row | {title: cell(part) for title, cell in cells.items()})
    return found


def mean(name: str, style: str = ".3f", **places: Any) -> Callable[[study.Dataset], str]:
    """Return a cell with the mean of a variable, at some labels."""
    return lambda part: f"{float(part[name].sel(places).mean()):{style}}"


def pair(name: str) -> Callable[[study.Dataset], str]:
    """Return a cell with mean and standard deviation."""
    return lambda part: f"{float(part[name].mean()):.3f} ± {float(part[name].std()):.3f}"


def report(table: study.Dataset, chosen: study.Dataset, exact: Sequence[float]) -> str:
    """Return the tables; `exact` is the deficit for infinitely many tokens of a Gaussian."""
    samplers, budgets = table["sampler"].values.tolist(), table["budget"].values
    infinite = dict(zip(table["h"].values.tolist(), exact, strict=True))

    def best(sampler: str) -> Callable[[study.Dataset], str]:
        def cell(part: study.Dataset) -> str:
            own = part.sel(sampler=sampler)
            value, step, ratio = (float(own[key]) for key in ("value", "chosen", "ratio"))
            return f"{value:.3f} (h L = {step:g}, variance {ratio:.2f})"

        return cell

    shown = chosen.sel(budget=np.unique(budgets[[2, -3, -1]])).assign(floors=table["sliced_floor"])
    end = table.assign(last=table["variance"].isel(budget=-1))
    tables = {
        f"Sliced W2 to the target at equal gradient evaluations of each of n = "
        f"{table.attrs['tokens']} tokens, at the best of the steps; floor: two independent samples "
        "of n:": rows(
            shown, {"target": "target", "d": "d", "gradients": "budget"},
            {sampler: best(sampler) for sampler in samplers} | {"floor": pair("floors")},
        ),
        f"W2 after {budgets[-1]} steps, and variance over the exact one:": rows(
            end, {"target": "target", "d": "d", "h L": "step"},
            {"beta lambda^2 h": mean("bound", ".3g", sampler="brwp")}
            | {f"W2 {sampler}": mean("w2", sampler=sampler) for sampler in samplers}
            | {"floor": mean("w2_floor")}
            | {f"variance {sampler}": mean("last", sampler=sampler) for sampler in samplers[:2]}
            | {"ESS": mean("ess", ".1f", sampler="brwp"),
               "absorbed": mean("absorbed", ".2f", sampler="brwp")},
        ),
        "BRWP against h and n in the plane, from exact samples on, over three samples:": rows(
            table, {"target": "smooth", "n": "n", "h": "h"},
            {"deficit of the variance": pair("deficit"),
             "infinite n": lambda part: (
                 f"{infinite[float(part['h'])]:.3f}" if part["smooth"] == "gaussian" else ""
             ),
             "sliced W2": pair("bias_sliced"), "floor": mean("bias_floor"),
             "ESS": mean("bias_ess", ".0f")},
        ),
        "BRWP against the dimension (Gaussian times Laplace):": rows(
            table, {"d": "scale", "n": "count", "h": "h_scale"},
            {"ESS": mean("scale_ess", ".1f"), "variance": mean("scale_variance", ".2f")},
        ),
        "BRWP against the temperature (Gaussian times Laplace, d = 2):": rows(
            table, {"beta": "beta"},
            {"h": lambda part: f"{0.05 / max(1.0, float(part['beta'])):g}",
             "sliced W2 / standard deviation": mean("beta_sliced"), "floor": mean("beta_floor"),
             "variance": mean("beta_variance"), "ESS": mean("beta_ess", ".0f")},
        ),
        "Milliseconds of a step (lasso):": rows(
            1e3 * table[["seconds"]], {"d": "cost_d", "n": "cost_n"},
            {sampler: mean("seconds", ".2f", cost_sampler=sampler) for sampler in samplers},
        ),
    }  # fmt: skip
    return "\n\n".join(f"{title}\n\n{study.markdown_table(t)}" for title, t in tables.items())


@style()
def against_gradients(table: study.Dataset, chosen: study.Dataset) -> study.Figure:
    """Draw the sliced W2 against gradient evaluations, one panel for each target and dimension."""
    names, dims = table["target"].values, table["d"].values
    figure, axes = grid(len(names), len(dims), PAGE, 5.6)
    for row, name in zip(axes, names, strict=True):
        for axis, d in zip(row, dims, strict=True):
            floors = table["sliced_floor"].sel(target=name, d=d)
            low, high = float(floors.min()), float(floors.max())
            axis.axhspan(low, high, color="0.85", label="two samples of the target")
            for (sampler, colour), mark in zip(COLOURS.items(), ("o-", "s-", "^--"), strict=True):
                values = chosen["value"].sel(target=name, d=d, sampler=sampler)
                axis.loglog(table["budget"], values, mark, markersize=3, label=sampler.upper(),
                            color=colour)  # fmt: skip
            axis.set(title=f"{name}, d = {d}", ylim=(0.03, 0.9))
            plain_ticks(axis.yaxis, (0.03, 0.05, 0.1, 0.2, 0.5))
    for axis in axes[-1]:
        axis.set_xlabel("Gradient evaluations of a token")
    for axis in axes[:, 0]:
        axis.set_ylabel("Sliced $W_2$")
    legend_below(figure, axes[0, 0], ncols=4)
    return figure


@style()
def bias_figure(table: study.Dataset, exact: Sequence[float]) -> study.Figure:
    """Draw the deficit of the variance against h, and variance against effective sample size."""
    shades = ("#9dbcd4", "#3f7cac", "#0b3c5d")
    figure, axes = grid(1, 3, PAGE, 2.6)
    steps = table["h"].values
    for axis, name in zip(axes.flat, table["smooth"].values, strict=False):
        for n, colour in zip(table["n"].values, shades, strict=False):
            values = table["deficit"].sel(smooth=name, n=n)
            axis.errorbar(steps, values.mean("path"), values.std("path"), marker="o",
                          markersize=3, color=colour, label=f"n = {n}")  # fmt: skip
        if name == "gaussian":
            axis.plot(steps, exact, "k--", linewidth=1, label="infinite n")
        axis.set(xscale="log", yscale="log", ylim=(0.009, 0.35), title=f"{name}, d = 2",
                 xlabel="Step h")  # fmt: skip
        plain_ticks(axis.xaxis, steps)
        plain_ticks(axis.yaxis, (0.01, 0.02, 0.05, 0.1, 0.2))
        axis.legend(loc="lower right", fontsize=7)
    axes.flat[0].set_ylabel("Deficit of the variance")
    last = axes.flat[2]
    marks = dict(zip(table["scale"].values, "os^vD", strict=False))
    for d, mark in marks.items():
        part = table.sel(scale=d)
        last.semilogx(part["scale_ess"].values.ravel(), part["scale_variance"].values.ravel(),
                      mark, markersize=4, label=f"d = {d}")  # fmt: skip
    last.axvline(ENOUGH, color="0.6", linewidth=0.8)
    last.set(xlabel="Effective tokens", title="laplace: variance / exact", ylim=(0, 1.05))
    last.legend(loc="upper left", fontsize=7)
    return figure


@style()
def absorption_figure(table: study.Dataset) -> study.Figure:
    """Draw the spread of an absorbed cloud, and variance against beta lambda^2 h."""
    from matplotlib.lines import Line2D

    figure, axes = grid(1, 2, PAGE, 2.8)
    left, right = axes.flat
    k, flat = table["k"].values[1:], table["spread"].sel(f="flat")
    for kernel, dash in zip(table["kernel"].values, ("-", "--", ":"), strict=True):
        left.loglog(k, flat.sel(kernel=kernel)[1:], dash, label=f"f = 0, {kernel}")
    first = float(flat.sel(kernel="exact")[0])
    left.loglog(
        k,
        (first**-2 + k / (2 * ABSORBED_STEP)) ** -0.5,
        "k-.",
        linewidth=0.8,
        label="theory, f = 0",
    )
    left.loglog(k, np.maximum(table["spread"].sel(kernel="exact", f="quadratic")[1:], 1e-6),
                color="0.5", label="f quadratic, exact")  # fmt: skip
    left.set(xlabel="Step k", ylabel=r"Spread of a cloud in $|x_i| \leq \lambda h$",
             ylim=(1e-4, 10))  # fmt: skip
    left.legend(loc="upper right", fontsize=7)
    shades = dict(zip(table["d"].values, ("#0b3c5d", "#c1440e", "#999999"), strict=False))
    marks = dict(zip(table["target"].values, "os^", strict=False))
    for name, mark in marks.items():
        for d, shade in shades.items():
            part = table.sel(target=name, d=d, sampler="brwp")
            right.semilogx(part["bound"], part["variance"].isel(budget=-1), mark, color=shade,
                           markersize=4)  # fmt: skip
    right.axvline(BOUND, color="0.6", linewidth=0.8)
    right.set(xlabel=r"$\beta \lambda^2 h$", ylabel="Variance / exact", ylim=(-0.05, 1.5))
    plain_ticks(right.xaxis, (0.01, 0.02, 0.05, 0.1, 0.2, 0.4))
    keys = [("k", mark, name) for name, mark in marks.items()]
    keys += [(shade, "o", f"d = {d}") for d, shade in shades.items()]
    handles = [Line2D([], [], color=c, marker=m, ls="", label=text) for c, m, text in keys]
    right.legend(handles=handles, loc="upper right", ncols=2, fontsize=7, columnspacing=1)
    return figure


def main() -> None:
    flags = study.command_line(RwpoSampler, __doc__)
    parts = (bias, interaction, absorption, temperature, cost)
    with study.session("rwpo_sampler", flags) as session:
        runs = len(flags.targets) * len(flags.dims) * len(SAMPLERS) * len(flags.steps)
        with session.progress(runs + len(parts), "runs") as advance:
            table = compare(flags, session.files, advance)
            for part in parts:
                table = table.merge(part(flags))
                advance(1)
        table.attrs["tokens"] = flags.tokens
        findings = [
            *of_bias(table), of_interaction(table), of_dimension(table), of_bound(table),
            of_absorption(table), *(of_equal_effort(table, d) for d in flags.dims),
            of_equal_effort(table, flags.dims[0], at_equal_time=True), of_distance(table),
        ]  # fmt: skip
        chosen, exact = best(table), [mean_field_deficit(h) for h in table["h"].values]
        figures = {
            "gradients": against_gradients(table, chosen),
            "bias": bias_figure(table, exact),
            "absorption": absorption_figure(table),
        }
        shown = findings if flags.preset != "smoke" else []
        session.finish(table, report(table, chosen, exact), shown, figures)


if __name__ == "__main__":
    script(main)
