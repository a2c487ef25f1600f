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

import time
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from _rwpo_sampler import absorption_figure, against_gradients, bias_figure, report
from numpy.typing import NDArray

from wflow import sampling, study
from wflow.cli import script
from wflow.sampling import targets
from wflow.study import Finding
from wflow.study.frame import Verdict

if TYPE_CHECKING:
    from xarray import Dataset

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


@dataclass(frozen=True, kw_only=True)
class RwpoSampler(study.OutputFlags):
    """Flags of this study."""

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
    """smoke: seconds, whose findings mean nothing; cpu: ten minutes; paper: an hour or two."""
    targets: tuple[Literal["laplace", "mixture", "lasso"], ...] = ("laplace", "mixture", "lasso")
    """Targets of the comparison of samplers."""
    tokens: study.Count = 1000
    """Number of tokens of this comparison."""
    steps: study.Distinct[study.Positive] = (0.4, 0.2, 0.1, 0.05)
    """Its steps h in units of 1/L, L the Lipschitz constant of the gradient."""
    budgets: tuple[study.Count, ...] = (5, 10, 20, 40, 80, 160, 320)
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
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        study.distinct(self.budgets, "--budgets", 3)


# Targets and runs
# ----------------


@cache
def target(name: str, d: int, beta: float = 1.0) -> targets.Target:
    """A target in d dimensions, with lambda = 1 and at most one coordinate in five away from 0."""
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
    """Lipschitz constant L of the gradient (of the mixture, within a component)."""
    found = target(name, d)
    if isinstance(found, targets.BayesianLasso):
        return found.smoothness()
    assert isinstance(found, targets.GaussianMixture)
    return 1 / (found.beta * found.scale**2)


@cache
def references(name: str, d: int, n: int, beta: float = 1.0) -> Array:
    """Independent samples (REFERENCES, n, d)."""
    return target(name, d, beta).sample(REFERENCES * n, seed=17).reshape(REFERENCES, n, d)


@cache
def moments(name: str, d: int, beta: float = 1.0) -> tuple[Array, Array]:
    """Mean and variances of a target: exact, or of all sweeps of a long chain."""
    found = target(name, d, beta)
    if isinstance(found, targets.GaussianMixture):
        return found.mean(), np.diag(found.covariance())
    assert isinstance(found, targets.BayesianLasso)
    draws = found.reference(4000, seed=17)["samples"].values.reshape(-1, d)
    return draws.mean(axis=0), draws.var(axis=0)


def start(n: int, d: int, beta: float = 1.0) -> Array:
    """A cloud (n, d) twice as wide as a Gaussian of the temperature."""
    return 2 / np.sqrt(beta) * np.random.default_rng(29).standard_normal((n, d))


def run(flags: RwpoSampler, sampler: str, of: targets.Target, x0: Array, **how: Any) -> "Dataset":
    """A run of a sampler; what too large steps do is measured here, not warned of."""
    how |= {"beta": of.beta} | ({"threads": flags.threads} if sampler == "brwp" else {"seed": 41})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="h is .* above|at the end a token attends")
        if sampler == "ula":
            return sampling.ula(x0, of.subgradient, **how)
        return getattr(sampling, sampler)(x0, of.grad, of.prior, **how)


def ratio_of(variance: Array, exact: Array) -> Array:
    """Mean over the coordinates of variances over the exact ones."""
    return np.mean(variance / exact, axis=-1)


def sliced(x: Array, y: Array) -> float:
    return sampling.sliced_w2(x, y, projections=64)


def floor(name: str, d: int, n: int, distance: Any, beta: float = 1.0) -> Array:
    """Distances of pairs of independent samples."""
    refs = references(name, d, n, beta)
    return np.array([distance(refs[i], refs[j]) for i in range(REFERENCES) for j in range(i)])


def settled(
    flags: RwpoSampler, name: str, d: int, n: int, h: float, paths: int = 1
) -> tuple["Dataset", Array]:
    """Runs of BRWP from exact samples on, and the variance over the exact one of each."""
    of = target(name, d)
    x0 = of.sample(paths * n, seed=5).reshape(paths, n, d)
    found = run(flags, "brwp", of, x0, h=h, steps=round(flags.until / h), save_every=10**6)
    return found, ratio_of(found["sample_variance"].values[:, -1], moments(name, d)[1])


# The parts of the study
# ----------------------


def compare(flags: RwpoSampler, files: dict[str, Path], advance: Any) -> "Dataset":
    """The samplers at equal gradient evaluations, over targets, dimensions and steps."""
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
            late = {key: np.nan for key in ("ess", "absorbed")}
            late |= {key: float(found[key][0, -1]) for key in late if key in found}
        return {
            "sliced": np.array([[sliced(x, y) for y in refs] for x in clouds]),
            "w2": np.array([sampling.w2(clouds[-1], y) for y in refs[:2]]),
            "variance": ratio_of(spread, variance),
            "mean_error": np.sqrt(np.mean(away**2, axis=-1)),
            "bound": of.beta * h,
            **late,
        }

    table = study.sweep(
        {
            "target": (flags.targets, "target"),
            "d": (flags.dims, "dimension"),
            "sampler": (SAMPLERS, "sampler"),
            "step": (flags.steps, "step h in units of 1/L"),
        },
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
        {
            "budget": (budgets, "gradient evaluations of every token"),
            "reference": (np.arange(REFERENCES), "reference sample"),
            "pair": (np.arange(2), "reference sample of w2"),
        },
        advance,
    )

    def floors(distance: Any) -> tuple[tuple[str, ...], list[list[Array]]]:
        found = [[floor(name, d, flags.tokens, distance) for d in flags.dims]
                 for name in flags.targets]  # fmt: skip
        return ("target", "d", "floor_pair"), found

    return table.assign(sliced_floor=floors(sliced), w2_floor=floors(sampling.w2))


def bias(flags: RwpoSampler) -> "Dataset":
    """BRWP against h and the number of tokens, in the plane, from exact samples on."""
    paths, steps = 3, (0.1, 0.05, 0.025, 0.0125)

    def measure(name: str, n: int, h: float) -> dict[str, Array]:
        found, ratio = settled(flags, name, 2, n, h, paths)
        clouds, refs = found["samples"].values[:, 0], references(name, 2, n)
        return {
            "deficit": 1 - ratio,
            "bias_sliced": [np.mean([sliced(x, y) for y in refs]) for x in clouds],
            "bias_ess": found["ess"].values[:, -1],
            "bias_floor": floor(name, 2, n, sliced).mean(),
        }

    return study.sweep(
        {
            "smooth": (("gaussian", "laplace"), "target in the plane"),
            "n": (flags.sweep, "number of tokens"),
            "h": (steps, "step"),
        },
        measure,
        {
            "deficit": (("path",), "relative deficit of the variance"),
            "bias_sliced": (("path",), "sliced W2 to samples of the target"),
            "bias_ess": (("path",), "effective tokens of the attention"),
            "bias_floor": "sliced W2 of two samples of the target",
        },
        {"path": (np.arange(paths), "initial sample")},
    )


def mean_field_deficit(h: float) -> float:
    """Deficit of the variance of a Gaussian target for infinitely many tokens.

    y = (1 - h) x ~ N(0, t) attends to k y, k = t/(t + 2h), and rests for (1 - h)(3 - k)/2 = 1.
    """
    k = 3 - 2 / (1 - h)
    return 1 - 2 * h * k / (1 - k) / (1 - h) ** 2


def extrapolated(table: "Dataset", name: str) -> tuple[Array, NDArray[np.bool_]]:
    """Deficits for infinitely many tokens, linear in 1/ESS, and where they are resolved.

    The two largest numbers of tokens are extrapolated. A step is resolved where that changes the
    deficit by less than half of what is left.
    """
    part = table[["deficit", "bias_ess"]].sel(smooth=name).isel(n=slice(-2, None)).mean("path")
    (fewer, more), (narrow, wide) = part["deficit"].values, 1 / part["bias_ess"].values
    limit = more - wide * (fewer - more) / (narrow - wide)
    return limit, np.abs(more - limit) < 0.5 * limit


def interaction(flags: RwpoSampler) -> "Dataset":
    """Effective sample size and variance of BRWP against the dimension."""

    def measure(d: int, n: int, h: float) -> dict[str, Any]:
        found, ratio = settled(flags, "laplace", d, n, h)
        return {"scale_ess": found["ess"].values[0, -1], "scale_variance": ratio[0]}

    return study.sweep(
        {
            "scale": (flags.scales, "dimension"),
            "count": (flags.sweep[:2], "number of tokens"),
            "h_scale": ((0.05, 0.025), "step"),
        },
        measure,
        {
            "scale_ess": "effective tokens of the attention",
            "scale_variance": "variance over the exact one",
        },
    )


def absorption(flags: RwpoSampler) -> "Dataset":
    """Spread of clouds within |x_i| <= lambda h, where f = 0 and where f = |x|^2/2."""
    x0 = np.clip(0.2 * np.random.default_rng(3).standard_normal((300, 2)), -0.5, 0.5)
    of: dict[str, Any] = {"flat": np.zeros_like, "quadratic": lambda x: x}

    def measure(kernel: str, name: str) -> dict[str, Array]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="h is .* above")
            how: Any = {"kernel": kernel, "threads": flags.threads, "steps": flags.decay}
            found = sampling.brwp(x0, of[name], sampling.L1(2.0), h=ABSORBED_STEP, **how)
        return {"spread": np.sqrt(found["sample_variance"].values[0].mean(axis=-1))}

    return study.sweep(
        {
            "kernel": (("exact", "laplace", "published"), "kernel"),
            "f": (tuple(of), "smooth part of the potential"),
        },
        measure,
        {"spread": (("k",), "spread of a cloud within lambda h")},
        {"k": (np.arange(flags.decay + 1), "step")},
    )


def temperature(flags: RwpoSampler) -> "Dataset":
    """Variance and distance over the temperature, with beta lambda^2 constant or not."""

    def measure(beta: float) -> dict[str, Any]:
        case, n, cold = ("laplace", 2, beta), flags.tokens, max(1.0, beta)
        mean, variance = moments(*case)
        found = run(flags, "brwp", target(*case), start(n, 2, beta) + mean, h=0.05 / cold,
                    steps=round(120 * cold), save_every=10**6)  # fmt: skip
        x, width = found["samples"].values[0, 0], np.sqrt(variance.mean())
        last = found.isel(path=0, time=-1)
        refs = references("laplace", 2, n, beta)
        return {
            "beta_sliced": np.mean([sliced(x, y) for y in refs]) / width,
            "beta_floor": floor("laplace", 2, n, sliced, beta).mean() / width,
            "beta_variance": ratio_of(last["sample_variance"].values, variance),
            "beta_ess": float(last["ess"]),
        }

    return study.sweep(
        {"beta": (flags.betas, "inverse temperature")},
        measure,
        {
            "beta_sliced": "sliced W2 in standard deviations",
            "beta_floor": "that of two samples of the target",
            "beta_variance": "variance over the exact one",
            "beta_ess": "effective tokens of the attention",
        },
    )


def cost(flags: RwpoSampler) -> "Dataset":
    """Seconds of a step."""

    def measure(d: int, n: int, sampler: str) -> dict[str, float]:
        of, x0 = target("lasso", d), start(n, d)
        best = np.inf
        for _ in range(3):
            begun = time.perf_counter()
            run(flags, sampler, of, x0, h=0.01, steps=5, save_every=5)
            best = min(best, (time.perf_counter() - begun) / 6)
        return {"seconds": best}

    return study.sweep(
        {
            "cost_d": (flags.dims, "dimension"),
            "cost_n": (flags.sweep, "number of tokens"),
            "cost_sampler": (SAMPLERS, "sampler"),
        },
        measure,
        {"seconds": "seconds of a step"},
    )


def best(table: "Dataset") -> "Dataset":
    """The best step of every sampler and budget, chosen on two references, shown on the others.

    value, spread : mean and standard deviation of the sliced W2 over the other references
    chosen : the step
    """
    import xarray

    half = REFERENCES // 2
    chosen = table["sliced"].isel(reference=slice(half)).mean("reference").argmin("step")
    kept = table["sliced"].isel(reference=slice(half, None)).isel(step=chosen)
    return xarray.Dataset(
        {
            "value": kept.mean("reference"),
            "spread": table["sliced_floor"].std("floor_pair"),
            "chosen": table["step"].isel(step=chosen),
            "ratio": table["variance"].isel(step=chosen),
        }
    )


# What was found
# --------------


def listed(values: Any, labels: Any, style: str, name: str) -> str:
    """Values with their labels, as text."""
    pairs = zip(values, labels, strict=True)
    return ", ".join(f"{value:{style}} ({name} = {label:g})" for value, label in pairs)


def of_bias(table: "Dataset") -> list[Finding]:
    """The order of the bias, and the tokens that it takes to see it."""
    names, steps, sizes = (table[dim].values for dim in ("smooth", "h", "n"))

    def by_tokens(values: Array, style: str) -> str:
        texts = (listed(row, sizes, style, "n") for row in values)
        return "; ".join(f"{name}: {text}" for name, text in zip(names, texts, strict=True))

    found, holds = [], []
    for name in names:
        limit, known = extrapolated(table, name)
        slope = np.nan
        if known.sum() > 1:
            slope = np.polyfit(np.log(steps[known]), np.log(limit[known]), 1)[0]
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


def brwp_of(table: "Dataset", **places: Any) -> tuple[Array, Array, Array]:
    """Step bound, variance over the exact one and effective tokens of the runs of `compare`."""
    brwp = table.sel(sampler="brwp", **places).isel(budget=-1)
    bound, variance, ess = (brwp[key].values.ravel() for key in ("bound", "variance", "ess"))
    return bound, variance, ess


def of_interaction(table: "Dataset") -> Finding:
    """Whether the effective sample size tells where the variance is right."""
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


def of_dimension(table: "Dataset") -> Finding:
    """Variances in high dimensions."""
    ratio, ess = (table[key].isel(count=-1).max("h_scale").values
                  for key in ("scale_variance", "scale_ess"))  # fmt: skip
    texts = [f"{r:.2f} (d = {d}, ESS {e:.1f})"
             for r, d, e in zip(ratio, table["scale"].values, ess, strict=True)]  # fmt: skip
    return Finding.decided(
        f"the sampler keeps the variance, to {CLOSE:.0%}, in every dimension", OWN,
        f"variance over the exact one at the better step, n = {table['count'].values[-1]}: "
        + ", ".join(texts), np.abs(ratio - 1) <= CLOSE,
    )  # fmt: skip


def of_bound(table: "Dataset") -> Finding:
    """Whether the step bound separates right from wrong variances where tokens interact."""
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


def of_absorption(table: "Dataset") -> Finding:
    """Decay of a cloud within lambda h."""
    k, flat = table["k"].values, table["spread"].sel(f="flat")
    late = k >= k[-1] // 4
    slopes = {str(row["kernel"].values): np.polyfit(np.log(k[late]), np.log(row[late]), 1)[0]
              for row in flat}  # fmt: skip
    gone = table["spread"].sel(f="quadratic", kernel="exact").values
    place = int(np.searchsorted(-gone, -1e-3 * gone[0]))
    return Finding.decided(
        "a cloud within |x_i| <= lambda h shrinks like k^(-1/2) where f = 0, and geometrically "
        "where f is convex",
        THEORY, "exponents " + ", ".join(f"{slope:.3f} ({name})" for name, slope in slopes.items())
        + f"; f = |x|^2/2, h = 1/2: a thousandth of the spread after {place} steps",
        [*(abs(slope + 0.5) < 0.05 for slope in slopes.values()), place <= 15],
    )  # fmt: skip


def of_equal_effort(table: "Dataset", d: int, at_equal_time: bool = False) -> Finding:
    """BRWP against the better of the Langevin samplers, in one dimension."""
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


def of_distance(table: "Dataset") -> Finding:
    """What the exact W2 of n samples sees of a lost variance."""
    brwp = table.sel(sampler="brwp").isel(budget=-1)
    below = brwp["w2"].mean("pair") < table["w2_floor"].mean("floor_pair")
    lost = (brwp["variance"] < 0.5) & below
    return Finding.decided(
        "a cloud that is nearer in W2 than an independent sample has the spread of the target",
        THEORY, f"{int(below.sum())} of {below.size} clouds are nearer, {int(lost.sum())} of them "
        "with less than half the variance", not lost.any(),
    )  # fmt: skip


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
        session.finish(
            table,
            report(table, chosen, exact),
            findings if flags.preset != "smoke" else [],
            {
                "gradients": against_gradients(table, chosen),
                "bias": bias_figure(table, exact),
                "absorption": absorption_figure(table, BOUND, ABSORBED_STEP),
            },
        )


if __name__ == "__main__":
    script(main)
