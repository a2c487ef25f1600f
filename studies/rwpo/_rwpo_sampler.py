"""Targets, runs, distances, tables and figures of the study `rwpo_sampler`."""

import time
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow import sampling, study
from wflow.sampling import targets

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

Array = NDArray[np.float64]

SAMPLERS = ("brwp", "myula", "ula")
REFERENCES = 4  # independent samples of every target
COLOURS = {"brwp": "#0b3c5d", "myula": "#c1440e", "ula": "#5c8a3a"}
BOUND = 0.05  # of beta lambda^2 h
ABSORBED_STEP = 0.5  # of the clouds within lambda h


@dataclass(frozen=True)
class Setup:
    """Sizes of a preset.

    targets : names of the targets of the comparison of samplers
    tokens : n of this comparison
    steps : their steps h in units of 1/L, L the Lipschitz constant of the gradient
    budgets : gradient evaluations of every token after which they are compared
    dims : dimensions of the targets
    sweep : numbers of tokens of the other parts
    scales : dimensions in which the effective sample size is measured
    decay : steps of the absorbed cloud
    betas : inverse temperatures
    until : time of the runs that measure the bias
    """

    targets: tuple[str, ...] = ("laplace", "mixture", "lasso")
    tokens: int = 1000
    steps: tuple[float, ...] = (0.4, 0.2, 0.1, 0.05)
    budgets: tuple[int, ...] = (5, 10, 20, 40, 80, 160, 320)
    dims: tuple[int, ...] = (2, 10, 50)
    sweep: tuple[int, ...] = (250, 1000, 3000)
    scales: tuple[int, ...] = (2, 5, 10, 20, 50)
    decay: int = 2000
    betas: tuple[float, ...] = (0.25, 1.0, 4.0, 16.0)
    until: float = 4.0


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


def run(sampler: str, of: targets.Target, x0: Array, threads: int | None, **how: Any) -> "Dataset":
    """A run of a sampler; what too large steps do is measured here, not warned of."""
    how |= {"beta": of.beta} | ({"threads": threads} if sampler == "brwp" else {"seed": 41})
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


def compare(
    setup: Setup, out: Path, if_exists: str, threads: int | None, files: dict[str, Path],
    advance: Any,
) -> "Dataset":  # fmt: skip
    """The samplers at equal gradient evaluations, over targets, dimensions and steps."""
    budgets = np.array(setup.budgets)

    def measure(name: str, d: int, sampler: str, step: float) -> dict[str, Array]:
        h = step / smoothness(name, d)
        file = out / f"{name}_d{d:02d}_{sampler}_h{step:g}.h5"
        files[file.stem] = file
        of, refs = target(name, d), references(name, d, setup.tokens)
        mean, variance = moments(name, d)
        x0, steps = start(setup.tokens, d), int(budgets[-1])
        with run(sampler, of, x0, threads, h=h, steps=steps, snapshots=budgets, save_every=5,
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
            "target": (setup.targets, "target"),
            "d": (setup.dims, "dimension"),
            "sampler": (SAMPLERS, "sampler"),
            "step": (setup.steps, "step h in units of 1/L"),
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
    pairs = REFERENCES * (REFERENCES - 1) // 2
    floors = np.empty((2, len(setup.targets), len(setup.dims), pairs))
    for i, name in enumerate(setup.targets):
        for j, d in enumerate(setup.dims):
            floors[0, i, j] = floor(name, d, setup.tokens, sliced)
            floors[1, i, j] = floor(name, d, setup.tokens, sampling.w2)
    dims = ("target", "d", "floor_pair")
    return table.assign(sliced_floor=(dims, floors[0]), w2_floor=(dims, floors[1]))


def bias(setup: Setup, threads: int | None) -> "Dataset":
    """BRWP against h and the number of tokens, in the plane, from exact samples on."""
    paths, steps = 3, (0.1, 0.05, 0.025, 0.0125)

    def measure(name: str, n: int, h: float) -> dict[str, Array]:
        of, refs = target(name, 2), references(name, 2, n)
        x0 = of.sample(paths * n, seed=5).reshape(paths, n, 2)
        found = run("brwp", of, x0, threads, h=h, steps=round(setup.until / h), save_every=10**6)
        _, variance = moments(name, 2)
        clouds = found["samples"].values[:, 0]
        return {
            "deficit": 1 - ratio_of(found["sample_variance"].values[:, -1], variance),
            "bias_sliced": [np.mean([sliced(x, y) for y in refs]) for x in clouds],
            "bias_ess": found["ess"].values[:, -1],
            "bias_floor": floor(name, 2, n, sliced).mean(),
        }

    return study.sweep(
        {
            "smooth": (("gaussian", "laplace"), "target in the plane"),
            "n": (setup.sweep, "number of tokens"),
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


def interaction(setup: Setup, threads: int | None) -> "Dataset":
    """Effective sample size and variance of BRWP against the dimension."""

    def measure(d: int, n: int, h: float) -> dict[str, Any]:
        of = target("laplace", d)
        x0 = of.sample(n, seed=5)
        found = run("brwp", of, x0, threads, h=h, steps=round(setup.until / h), save_every=10**6)
        last = found.isel(path=0, time=-1)
        ratio = ratio_of(last["sample_variance"].values, moments("laplace", d)[1])
        return {"scale_ess": float(last["ess"]), "scale_variance": float(ratio)}

    return study.sweep(
        {
            "scale": (setup.scales, "dimension"),
            "count": (setup.sweep[:2], "number of tokens"),
            "h_scale": ((0.05, 0.025), "step"),
        },
        measure,
        {
            "scale_ess": "effective tokens of the attention",
            "scale_variance": "variance over the exact one",
        },
    )


def absorption(setup: Setup, threads: int | None) -> "Dataset":
    """Spread of clouds within |x_i| <= lambda h, where f = 0 and where f = |x|^2/2."""
    x0 = np.clip(0.2 * np.random.default_rng(3).standard_normal((300, 2)), -0.5, 0.5)
    of: dict[str, Any] = {"flat": np.zeros_like, "quadratic": lambda x: x}

    def measure(kernel: str, name: str) -> dict[str, Array]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="h is .* above")
            how: Any = {"kernel": kernel, "threads": threads, "steps": setup.decay}
            found = sampling.brwp(x0, of[name], sampling.L1(2.0), h=ABSORBED_STEP, **how)
        return {"spread": np.sqrt(found["sample_variance"].values[0].mean(axis=-1))}

    return study.sweep(
        {
            "kernel": (("exact", "laplace", "published"), "kernel"),
            "f": (tuple(of), "smooth part of the potential"),
        },
        measure,
        {"spread": (("k",), "spread of a cloud within lambda h")},
        {"k": (np.arange(setup.decay + 1), "step")},
    )


def temperature(setup: Setup, threads: int | None) -> "Dataset":
    """Variance and distance over the temperature, with beta lambda^2 constant or not."""

    def measure(beta: float) -> dict[str, Any]:
        n = setup.tokens
        of, refs = target("laplace", 2, beta), references("laplace", 2, n, beta)
        cold = max(1.0, beta)
        x0 = start(n, 2, beta) + moments("laplace", 2, beta)[0]
        found = run("brwp", of, x0, threads, h=0.05 / cold, steps=round(120 * cold),
                    save_every=10**6)  # fmt: skip
        x, width = found["samples"].values[0, 0], np.sqrt(moments("laplace", 2, beta)[1].mean())
        last = found.isel(path=0, time=-1)
        return {
            "beta_sliced": np.mean([sliced(x, y) for y in refs]) / width,
            "beta_floor": floor("laplace", 2, n, sliced, beta).mean() / width,
            "beta_variance": ratio_of(
                last["sample_variance"].values, moments("laplace", 2, beta)[1]
            ),
            "beta_ess": float(last["ess"]),
        }

    return study.sweep(
        {"beta": (setup.betas, "inverse temperature")},
        measure,
        {
            "beta_sliced": "sliced W2 in standard deviations",
            "beta_floor": "that of two samples of the target",
            "beta_variance": "variance over the exact one",
            "beta_ess": "effective tokens of the attention",
        },
    )


def cost(setup: Setup, threads: int | None) -> "Dataset":
    """Seconds of a step."""

    def measure(d: int, n: int, sampler: str) -> dict[str, float]:
        of, x0 = target("lasso", d), start(n, d)
        best = np.inf
        for _ in range(3):
            begun = time.perf_counter()
            run(sampler, of, x0, threads, h=0.01, steps=5, save_every=5)
            best = min(best, (time.perf_counter() - begun) / 6)
        return {"seconds": best}

    return study.sweep(
        {
            "cost_d": (setup.dims, "dimension"),
            "cost_n": (setup.sweep, "number of tokens"),
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


# Tables and figures
# ------------------


def by_tokens(table: "Dataset", values: Array, style: str) -> str:
    """Values (smooth, n) of the part `bias` as text."""
    rows = zip(table["smooth"].values, values, strict=True)
    numbers = table["n"].values
    return "; ".join(
        f"{name}: " + ", ".join(f"{v:{style}} (n = {n})" for v, n in zip(row, numbers, strict=True))
        for name, row in rows
    )


def pair(value: Any, spread: Any) -> str:
    return f"{float(value):.3f} ± {float(spread):.3f}"


def report(setup: Setup, table: "Dataset") -> str:
    """The tables."""
    chosen = best(table)
    rows = []
    for name in setup.targets:
        for d in setup.dims:
            at = chosen.sel(target=name, d=d)
            floors = table["sliced_floor"].sel(target=name, d=d)
            for budget in (setup.budgets[2], setup.budgets[-3], setup.budgets[-1]):
                row = {"target": name, "d": str(d), "gradients": str(budget)}
                for sampler in SAMPLERS:
                    one = at.sel(sampler=sampler, budget=budget)
                    row[sampler] = (
                        f"{float(one['value']):.3f} (h L = {float(one['chosen']):g}, variance "
                        f"{float(one['ratio']):.2f})"
                    )
                rows.append(row | {"floor": pair(floors.mean(), floors.std())})
    equal = study.markdown_table(rows)
    rows = []
    for name in setup.targets:
        for d in setup.dims:
            for step in setup.steps:
                one = table.sel(target=name, d=d, step=step)
                brwp = one.sel(sampler="brwp")
                row = {"target": name, "d": str(d), "h L": f"{step:g}"}
                row |= {"beta lambda^2 h": f"{float(brwp['bound']):.3g}"}
                row |= {
                    f"W2 {sampler}": f"{float(one['w2'].sel(sampler=sampler).mean()):.3f}"
                    for sampler in SAMPLERS
                }
                row |= {"floor": f"{float(table['w2_floor'].sel(target=name, d=d).mean()):.3f}"}
                for sampler in SAMPLERS[:2]:
                    last = one["variance"].sel(sampler=sampler).isel(budget=-1)
                    row[f"variance {sampler}"] = f"{float(last):.3f}"
                row |= {
                    "ESS": f"{float(brwp['ess']):.1f}",
                    "absorbed": f"{float(brwp['absorbed']):.2f}",
                }
                rows.append(row)
    ends = study.markdown_table(rows)
    rows = []
    for name in table["smooth"].values:
        for n in table["n"].values:
            for h in table["h"].values:
                one = table.sel(smooth=name, n=n, h=h)
                mean, spread = one["deficit"].mean(), one["deficit"].std()
                rows.append({
                    "target": str(name), "n": str(n), "h": f"{h:g}",
                    "deficit of the variance": pair(mean, spread),
                    "infinite n": f"{mean_field_deficit(h):.3f}" if name == "gaussian" else "",
                    "sliced W2": pair(one["bias_sliced"].mean(), one["bias_sliced"].std()),
                    "floor": f"{float(one['bias_floor']):.3f}",
                    "ESS": f"{float(one['bias_ess'].mean()):.0f}",
                })  # fmt: skip
    biases = study.markdown_table(rows)
    rows = [
        {
            "d": str(d), "n": str(n), "h": f"{h:g}",
            "ESS": f"{float(one['scale_ess']):.1f}",
            "variance": f"{float(one['scale_variance']):.2f}",
        }
        for d in setup.scales
        for n in table["count"].values
        for h in table["h_scale"].values
        for one in [table.sel(scale=d, count=n, h_scale=h)]
    ]  # fmt: skip
    scales = study.markdown_table(rows)
    rows = [
        {
            "beta": f"{beta:g}", "h": f"{0.05 / max(1.0, beta):g}",
            "sliced W2 / standard deviation": f"{float(one['beta_sliced']):.3f}",
            "floor": f"{float(one['beta_floor']):.3f}",
            "variance": f"{float(one['beta_variance']):.3f}",
            "ESS": f"{float(one['beta_ess']):.0f}",
        }
        for beta in table["beta"].values
        for one in [table.sel(beta=beta)]
    ]  # fmt: skip
    betas = study.markdown_table(rows)
    rows = [
        {"d": str(d), "n": str(n)}
        | {
            name: f"{1e3 * float(table['seconds'].sel(cost_d=d, cost_n=n, cost_sampler=name)):.2f}"
            for name in SAMPLERS
        }
        for d in setup.dims
        for n in setup.sweep
    ]
    return "\n\n".join([
        f"Sliced W2 to the target at equal gradient evaluations of each of n = {setup.tokens} "
        "tokens, at the best of the steps; floor: two independent samples of n:", equal,
        f"W2 after {setup.budgets[-1]} steps, and variance over the exact one:", ends,
        "BRWP against h and n in the plane, from exact samples on, over three samples:", biases,
        "BRWP against the dimension (Gaussian times Laplace):", scales,
        "BRWP against the temperature (Gaussian times Laplace, d = 2):", betas,
        "Milliseconds of a step (lasso):", study.markdown_table(rows),
    ])  # fmt: skip


def against_gradients(setup: Setup, table: "Dataset") -> "Figure":
    """Sliced W2 against gradient evaluations, one panel for each target and dimension."""
    from wflow.plots.figure import PAGE, grid, style

    chosen = best(table)
    with style():
        figure, axes = grid(len(setup.targets), len(setup.dims), PAGE, 5.6)
        for row, name in zip(axes, setup.targets, strict=True):
            for axis, d in zip(row, setup.dims, strict=True):
                floors = table["sliced_floor"].sel(target=name, d=d)
                low, high = float(floors.min()), float(floors.max())
                axis.axhspan(low, high, color="0.85", label="two samples of the target")
                for sampler, mark in zip(SAMPLERS, ("o-", "s-", "^--"), strict=True):
                    values = chosen["value"].sel(target=name, d=d, sampler=sampler)
                    axis.loglog(table["budget"], values, mark, markersize=3, label=sampler.upper(),
                                color=COLOURS[sampler])  # fmt: skip
                axis.set_title(f"{name}, d = {d}")
                plain_ticks(axis, (0.03, 0.05, 0.1, 0.2, 0.5), (0.03, 0.9))
        for axis in axes[-1]:
            axis.set_xlabel("Gradient evaluations of a token")
        for axis in axes[:, 0]:
            axis.set_ylabel("Sliced $W_2$")
        handles, names = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    return figure


def plain_ticks(axis: Any, ticks: tuple[float, ...], limits: tuple[float, float]) -> None:
    """Ticks of a logarithmic ordinate as plain numbers."""
    axis.set_yscale("log")
    axis.set_ylim(*limits)
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_yticks([], minor=True)


def bias_figure(table: "Dataset") -> "Figure":
    """Deficit of the variance against h, and variance against the effective sample size."""
    from wflow.plots.figure import PAGE, grid, style

    shades = ("#9dbcd4", "#3f7cac", "#0b3c5d")
    with style():
        figure, axes = grid(1, 3, PAGE, 2.6)
        steps = table["h"].values
        for axis, name in zip(axes.flat, table["smooth"].values, strict=False):
            for n, colour in zip(table["n"].values, shades, strict=False):
                values = table["deficit"].sel(smooth=name, n=n)
                axis.errorbar(steps, values.mean("path"), values.std("path"), marker="o",
                              markersize=3, color=colour, label=f"n = {n}")  # fmt: skip
            if name == "gaussian":
                exact = [mean_field_deficit(h) for h in steps]
                axis.plot(steps, exact, "k--", linewidth=1, label="infinite n")
            axis.set_xscale("log")
            plain_ticks(axis, (0.01, 0.02, 0.05, 0.1, 0.2), (0.009, 0.35))
            axis.set_title(f"{name}, d = 2")
            axis.set_xlabel("Step h")
            axis.set_xticks(steps, [f"{h:g}" for h in steps])
            axis.set_xticks([], minor=True)
            axis.legend(loc="lower right", fontsize=7)
        axes.flat[0].set_ylabel("Deficit of the variance")
        last = axes.flat[2]
        marks = dict(zip(table["scale"].values, "os^vD", strict=False))
        for d, mark in marks.items():
            part = table.sel(scale=d)
            last.semilogx(part["scale_ess"].values.ravel(), part["scale_variance"].values.ravel(),
                          mark, markersize=4, label=f"d = {d}")  # fmt: skip
        last.axvline(30, color="0.6", linewidth=0.8)
        last.set_xlabel("Effective tokens")
        last.set_title("laplace: variance / exact")
        last.set_ylim(0, 1.05)
        last.legend(loc="upper left", fontsize=7)
    return figure


def absorption_figure(table: "Dataset") -> "Figure":
    """Spread of an absorbed cloud, and variance against beta lambda^2 h."""
    from matplotlib.lines import Line2D

    from wflow.plots.figure import PAGE, grid, style

    with style():
        figure, axes = grid(1, 2, PAGE, 2.8)
        left, right = axes.flat
        k, flat = table["k"].values[1:], table["spread"].sel(f="flat")
        for kernel, dash in zip(table["kernel"].values, ("-", "--", ":"), strict=True):
            left.loglog(k, flat.sel(kernel=kernel)[1:], dash, label=f"f = 0, {kernel}")
        first = float(flat.sel(kernel="exact")[0])
        left.loglog(k, (first**-2 + k / (2 * ABSORBED_STEP)) ** -0.5, "k-.", linewidth=0.8,
                    label="theory, f = 0")  # fmt: skip
        left.loglog(k, np.maximum(table["spread"].sel(kernel="exact", f="quadratic")[1:], 1e-6),
                    color="0.5", label="f quadratic, exact")  # fmt: skip
        left.set_ylim(1e-4, 10)
        left.set_xlabel("Step k")
        left.set_ylabel(r"Spread of a cloud in $|x_i| \leq \lambda h$")
        left.legend(loc="upper right", fontsize=7)
        shades = dict(zip(table["d"].values, ("#0b3c5d", "#c1440e", "#999999"), strict=False))
        marks = dict(zip(table["target"].values, "os^", strict=False))
        for name, mark in marks.items():
            for d, shade in shades.items():
                part = table.sel(target=name, d=d, sampler="brwp")
                right.semilogx(part["bound"], part["variance"].isel(budget=-1), mark, color=shade,
                               markersize=4)  # fmt: skip
        right.axvline(BOUND, color="0.6", linewidth=0.8)
        right.set_ylim(-0.05, 1.5)
        ticks = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
        right.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        right.set_xticks([], minor=True)
        right.set_xlabel(r"$\beta \lambda^2 h$")
        right.set_ylabel("Variance / exact")
        keys = [("k", mark, name) for name, mark in marks.items()]
        keys += [(shade, "o", f"d = {d}") for d, shade in shades.items()]
        handles = [Line2D([], [], color=c, marker=m, ls="", label=text) for c, m, text in keys]
        right.legend(handles=handles, loc="upper right", ncols=2, fontsize=7, columnspacing=1)
    return figure
