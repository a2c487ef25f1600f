"""Problems, networks, references, tables and figures of the study `rwpo_inverse`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wflow import nets, study
from wflow.sampling import forward, reference
from wflow.study import networks
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]

PROBLEMS = ("elliptic", "lorenz", "impedance")
PUBLISHED = {"without": (1.99, 2.15, 5.42), "with": (1.70, 1.87, 4.86)}  # per cent, figure 6
LAM = 2.0
# Models: whether they have attention, and what they are trained by.
MODELS = {
    "ot-flow": "OT-Flow, likelihood of pairs",
    "sparse": "sparse flow, lambda = 2 and beta = 1 at the beginning and trained, likelihood",
    "first": "sparse flow with attention in the step at the base alone, likelihood",
    "attracting": "reversed layers, in the last two steps, likelihood",
    "ot-flow-kl": "OT-Flow, reverse divergence",
    "sparse-kl": "sparse flow, reverse divergence",
    "printed-kl": "equations 22 to 24 as printed, own batch as context, reverse divergence",
    "supervised": "OT-Flow, reverse divergence and the printed supervised term",
}
SPARSE = ("sparse", "first", "attracting", "sparse-kl", "printed-kl")


@dataclass(frozen=True)
class Case:
    """One inverse problem."""

    dim: int
    noise: float  # relative to the root mean square of the deviations of the outputs
    width: int
    batch: int
    rate: float
    cells: int = 0  # of the discretisation
    scale: float = 1.0  # of the log conductivity
    tests: int = 6  # data sets with a reference posterior


@dataclass(frozen=True)
class Setup:
    """Settings of a preset, which flags may change."""

    seeds: int = 3
    steps: int = 48
    iterations: int = 12_001
    least: float = 1e-6  # learning rate at the end
    tokens: int = 256
    pairs: int = 20_000
    draws: int = 4000  # of each reference chain
    ranked: int = 1000  # data sets of the rank test
    alpha: tuple[float, float, float] = (1.0, 1.0, 0.1)
    cases: dict[str, Case] = field(
        default_factory=lambda: {
            "elliptic": Case(128, 1e-2, 128, 1024, 1e-3, cells=256),
            "lorenz": Case(3, 1e-2, 128, 1024, 1e-3),
            "impedance": Case(32, 1e-3, 512, 512, 5e-3, cells=32),
        }
    )


class Data(NamedTuple):
    """An inverse problem with its pairs."""

    case: Case
    problem: forward.InverseProblem
    summary: forward.Summary
    train: forward.Pairs
    check: forward.Pairs  # of validation, rank tests and references
    directions: FloatArray  # (k, d): those of which the data say more than the prior


@functools.cache
def data(name: str, setup_key: tuple) -> Data:
    """The problem of a case, and its pairs."""
    case, pairs, ranked = setup_key
    if name == "elliptic":
        model: forward.ForwardModel = forward.Elliptic(case.dim, 32, cells=case.cells)
    elif name == "lorenz":
        model = forward.Lorenz(windows=5)
    else:
        rows = 2 ** ((case.dim.bit_length() - 1) // 2)
        model = forward.Impedance((rows, case.dim // rows), cells=case.cells, scale=case.scale)
    trial = forward.InverseProblem(model, lam=LAM, noise=1.0).simulate(500, seed=10)
    noise = case.noise * float(np.sqrt(trial.clean.var(axis=0).mean()))
    problem = forward.InverseProblem(model, lam=LAM, noise=noise)
    train, check = problem.simulate(pairs, seed=11), problem.simulate(2 * ranked, seed=12)
    return Data(case, problem, problem.summary(1000, most=64), train, check, informed(problem))


def data_of(name: str, setup: Setup) -> Data:
    return data(name, (setup.cases[name], setup.pairs, setup.ranked))


def informed(problem: forward.InverseProblem) -> FloatArray:
    """Directions in which the mean information of the data exceeds that of the prior."""
    points = problem.prior(12, seed=13)
    prior = 0.5 * problem.lam**2 * np.eye(problem.model.dim)
    total = sum(np.linalg.inv(problem.gaussian_covariance(x)) - prior for x in points)
    values, vectors = np.linalg.eigh(total / len(points))
    return vectors.T[::-1][: max(1, int((values > prior[0, 0]).sum()))][:8]


def tensors(*arrays: FloatArray) -> tuple[torch.Tensor, ...]:
    import torch

    return tuple(torch.as_tensor(array, dtype=torch.float32) for array in arrays)


def split(name: str) -> tuple[str, str]:
    problem, _, model = name.partition(" ")
    return problem, model


def network(name: str, setup: Setup, known: Data, seed: int) -> Any:
    """A flow near the identity, with weights drawn from its seed."""
    import torch

    from wflow.nets import generative

    torch.manual_seed(seed)
    model = split(name)[1]
    phi = generative.Potential(
        known.case.dim, width=known.case.width, condition=known.summary.size, start=0.1
    )
    if model in ("ot-flow", "ot-flow-kl", "supervised"):
        return generative.OTFlow(phi, steps=setup.steps)
    if model == "printed-kl":
        return generative.SparseTransformerFlow(
            phi, steps=setup.steps, lam=LAM, convention="published", trainable=("lam", "beta"),
        )  # fmt: skip
    flow = generative.SparseTransformerFlow(
        phi, steps=setup.steps, lam=LAM, tokens=setup.tokens, trainable=("lam", "beta"),
        attended={"first": (1,), "attracting": (setup.steps - 1, setup.steps)}.get(model),
        convention="attracting" if model == "attracting" else "inverse",
    )  # fmt: skip
    rows = slice(-setup.tokens, None)
    flow.set_context(*tensors(known.train.x[rows], known.summary(known.train.y[rows])))
    return flow


def plan(name: str, setup: Setup, flags: Any, seed: int) -> Run:
    """The training run of one model with one seed."""
    from wflow.nets import generative

    problem, model = split(name)
    known = data_of(problem, setup)
    case, context = known.case, model in ("sparse", "first", "attracting", "sparse-kl")
    reverse = model.endswith("-kl") or model == "supervised"
    rows = case.batch + (setup.tokens if context else 0)

    def batches(step: int) -> tuple[torch.Tensor, ...]:
        rng = np.random.default_rng([14, seed, step])
        chosen = rng.integers(0, len(known.train.x), rows)
        clean = known.train.clean[chosen]
        y = clean + known.problem.noise * rng.standard_normal(clean.shape)
        batch = tensors(known.train.x[chosen], known.summary(y), y)
        return batch if reverse else batch[:2]

    objective: Any = generative.Likelihood(setup.alpha)
    if reverse:
        weight = 1.0 if model == "supervised" else 0.0
        objective = generative.ReverseKL(known.problem, setup.alpha, supervised=weight)
    config = nets.train.TrainConfig(
        steps=setup.iterations,
        batch=rows,
        schedule=nets.train.Cosine(case.rate, setup.least, 20, max(setup.iterations, 21)),
        clip=10.0,
        evaluate_every=max(1, setup.iterations // 20),
        checkpoint_every=max(1, setup.iterations // 4),
        seed=seed,
        device=flags.device,
    )
    x, features = tensors(known.check.x[:256], known.summary(known.check.y[:256]))

    def evaluate(flow: torch.nn.Module) -> dict[str, float]:
        """Negative log likelihood of held-out pairs."""
        density = flow.log_density(x, features)  # type: ignore[operator]
        return {"validation": float(-density.mean())}

    flow = network(name, setup, known, seed)
    return Run(flow, objective, batches, config, evaluate)


# References
# ----------


def references(name: str, setup: Setup, folder: Path) -> dict[str, FloatArray]:
    """Draws from the posteriors of the first data sets, (tests, draws, d), kept in a file."""
    known = data_of(name, setup)
    file = folder / f"reference-{name}.npz"
    key = repr((known.case, setup.draws))
    if file.exists():
        with np.load(file) as kept:
            if str(kept["key"]) == key:
                return {k: kept[k] for k in kept.files if k != "key"}
    found: dict[str, list[Any]] = {"draws": [], "r_hat": [], "ess": []}
    for k in range(known.case.tests):
        chains = reference_of(name, known, known.check.y[k], setup.draws, seed=k)
        x = chains["samples"].values
        found["draws"].append(x.reshape(-1, x.shape[2])[:: max(1, x.shape[0] * x.shape[1] // 2000)])
        found["draws"][-1] = found["draws"][-1][:2000]
        found["r_hat"].append(float(chains["r_hat"].max()))
        found["ess"].append(float(chains["ess"].min()))
    arrays = {k: np.array(values) for k, values in found.items()}
    draft = folder / f".reference-{name}-{os.getpid()}.npz"
    np.savez(draft, key=key, draws=arrays["draws"], r_hat=arrays["r_hat"], ess=arrays["ess"])
    draft.replace(file)
    return arrays


def reference_of(name: str, known: Data, y: FloatArray, draws: int, seed: int) -> Any:
    """Chains of one posterior: Gibbs where the model is linear, Langevin chains elsewhere."""
    problem = known.problem
    if name == "elliptic":
        matrix = problem.model.matrix  # type: ignore[attr-defined]
        return reference.bayesian_lasso(
            matrix, y, lam=LAM, noise=float(problem.noise[0]), draws=draws, seed=seed
        )

    def density(x: FloatArray) -> tuple[FloatArray, FloatArray]:
        return problem.log_posterior(x, y)

    if name == "lorenz":
        start = reference.tempered(
            lambda x: problem.log_likelihood(x, y),
            lambda x: -LAM * np.abs(x).sum(1),
            problem.prior(min(400, 2 * draws), seed=seed),
            moves=20 if draws > 100 else 5,
            seed=seed,
        )["samples"].values[:8]
        covariance = None
    else:
        tops = reference.climb(density, 0.1 * problem.prior(4, seed=seed), iterations=500)
        top = tops[np.argmax(density(tops)[0])]
        covariance = problem.gaussian_covariance(top)
        factor = np.linalg.cholesky(covariance)
        noise = np.random.default_rng([15, seed]).standard_normal((4, len(top)))
        start = top + noise @ factor.T
    return reference.metropolis(
        density, start, gradient=True, covariance=covariance, draws=draws, warmup=draws, seed=seed
    )


# What is measured
# ----------------

NUMBERS = {
    "validation": ("negative log likelihood of held-out pairs, at the end", "1"),
    "area": ("its mean over the evaluations of the training", "1"),
    "mean_error": ("error of the posterior mean in informed directions, in deviations", "1"),
    "spread_error": ("error of the log deviation in informed directions", "1"),
    "spread_bias": ("mean log ratio of the deviations in informed directions", "1"),
    "variance_ratio": ("trace of the posterior covariance over that of the reference", "1"),
    "relative_l1": ("relative L1 error of the posterior mean of the field", "1"),
    "reference_l1": ("that of the reference", "1"),
    "rank_p": ("least p-value of the rank tests, times their number", "1"),
    "coverage_50": ("coverage of central intervals of probability 0.5", "1"),
    "coverage_90": ("coverage of central intervals of probability 0.9", "1"),
    "attention": ("effective number of tokens of the attention", "1"),
    "seconds": ("time of the training steps", "s"),
}


def field_of(known: Data, x: FloatArray) -> FloatArray:
    """The field that parameters (n, d) describe, (n, m)."""
    model = known.problem.model
    if isinstance(model, forward.Elliptic):
        return x @ model.basis.T
    return model.parameters(x) if isinstance(model, forward.Lorenz) else model.conductivity(x)  # type: ignore


def relative_l1(known: Data, x: FloatArray, truth: FloatArray) -> float:
    exact = field_of(known, truth[None])[0]
    return float(np.abs(field_of(known, x).mean(0) - exact).sum() / np.abs(exact).sum())


def draw(flow: Any, features: FloatArray, count: int, seed: int) -> FloatArray:
    """Samples (n, count, d) of the posteriors of n data sets."""
    import torch

    weight = flow.potential.w
    each = torch.as_tensor(features).to(weight).repeat_interleave(count, 0)
    with torch.no_grad():
        x = flow.sample(len(each), seed=seed, y=each)
    return x.double().cpu().numpy().reshape(len(features), count, -1)


def measured(name: str, setup: Setup, flags: Any, training: Trained, seed: int) -> Record:
    """All quantities of a trained flow, kept beside its checkpoint."""
    setting = [repr(setup.cases[split(name)[0]]), setup.pairs, setup.ranked, setup.draws]
    folder = networks.folder_of(flags.out, name, seed)
    return networks.cached_record(
        folder, setting, training, lambda: examine(name, setup, flags, training, seed)
    )


def examine(name: str, setup: Setup, flags: Any, training: Trained, seed: int) -> Record:
    """All quantities of a trained flow."""
    import torch

    record: Record = dict.fromkeys(NUMBERS, np.nan)
    record |= {"seconds": float(training.history["seconds"].sum()), "ranks": None, "draws": None}
    if training.diverged:
        return record
    problem, model = split(name)
    known = data_of(problem, setup)
    exact = references(problem, setup, flags.out)
    flow = training.model
    curve = training.history["validation"].values
    if model != "printed-kl":  # what it sums is no log density
        record |= {"validation": float(curve[-1]), "area": float(curve[1:].mean())}
    tests = known.case.tests
    features = known.summary(known.check.y)
    drawn = draw(flow, features[:tests], 300, seed=100 + seed)
    prior = 2 / LAM**2
    errors: dict[str, list[float]] = {
        key: [] for key in ("mean", "spread", "bias", "trace", "l1", "exact")
    }
    for k in range(tests):
        sample, right = drawn[k], exact["draws"][k]
        values, vectors = np.linalg.eigh(np.cov(right.T))
        kept = vectors[:, values < 0.5 * prior]
        if not kept.shape[1]:
            kept = vectors[:, :1]
        mine, theirs = sample @ kept, right @ kept
        gap = (mine.mean(0) - theirs.mean(0)) / theirs.std(0)
        ratio = np.log(mine.std(0) / theirs.std(0))
        errors["mean"].append(float(np.sqrt((gap**2).mean())))
        errors["spread"].append(float(np.sqrt((ratio**2).mean())))
        errors["bias"].append(float(ratio.mean()))
        errors["trace"].append(float(sample.var(axis=0).sum() / right.var(axis=0).sum()))
        errors["l1"].append(relative_l1(known, sample, known.check.x[k]))
        errors["exact"].append(relative_l1(known, right, known.check.x[k]))
    rows = slice(setup.ranked, 2 * setup.ranked)
    ranked = draw(flow, features[rows], 31, seed=200 + seed) @ known.directions.T
    ranks = reference.rank_test(known.check.x[rows] @ known.directions.T, ranked)
    attention = np.nan
    if model in SPARSE:
        with torch.no_grad():
            given = tensors(known.check.x[:256], features[:256])
            attention = float(np.nanmean(flow.ess(*given).numpy()))  # type: ignore[operator]
    return record | {
        "mean_error": float(np.median(errors["mean"])),
        "spread_error": float(np.median(errors["spread"])),
        "spread_bias": float(np.median(errors["bias"])),
        "variance_ratio": float(np.median(errors["trace"])),
        "relative_l1": float(np.mean(errors["l1"])),
        "reference_l1": float(np.mean(errors["exact"])),
        "rank_p": float(min(1.0, ranks.p_value.min() * len(ranks.p_value))),
        "coverage_50": float(ranks.coverage[:, 0].mean()),
        "coverage_90": float(ranks.coverage[:, 1].mean()),
        "attention": attention,
        "ranks": ranks.counts.tolist(),
        "draws": drawn[0].tolist(),  # of the first data set, for the figures
    }


# Tables and figures
# ------------------


def short(value: float) -> str:
    return f"{value:.3g}"


def report(flags: Any, setup: Setup, results: Results, complete: bool) -> str:
    """Write a table for each problem, and what the references are worth."""
    source = (
        f"simulated pairs, lambda = {LAM:g}; {setup.iterations} iterations, n_t = {setup.steps}, "
        f"contexts of {setup.tokens} tokens"
    )
    parts = [networks.caption(flags, setup.seeds, results, source)]
    if not complete:
        parts.insert(0, "Partial run: not the sizes, seeds or models of a preset.")
    for problem in problems_of(results):
        known = data_of(problem, setup)
        exact = references(problem, setup, flags.out)
        names = [name for name in results.records if split(name)[0] == problem]
        table = {"model": [split(name)[1] for name in names]}
        part = Results({name: results.records[name] for name in names}, {})
        for key, title in (
            ("validation", "held-out NLL"), ("area", "mean NLL in training"),
            ("mean_error", "mean error"), ("spread_error", "log deviation error"),
            ("spread_bias", "log deviation bias"),
            ("variance_ratio", "variance ratio"), ("relative_l1", "relative L1"),
            ("rank_p", "rank test p"), ("coverage_50", "50 %"), ("coverage_90", "90 %"),
            ("attention", "ESS"), ("seconds", "s"),
        ):  # fmt: skip
            table[title] = networks.column(part, key, short)
        first = results.records[names[0]][0]
        parts.append(
            f"{problem}: d = {known.case.dim}, {known.problem.model.outputs} observations in "
            f"{known.summary.size} summaries, relative noise {known.case.noise:g}, "
            f"{len(known.directions)} informed directions tested by ranks of {setup.ranked} data "
            f"sets; {known.case.tests} references, largest R-hat {exact['r_hat'].max():.3f}, "
            f"least ESS {exact['ess'].min():.0f}, relative L1 error "
            f"{first['reference_l1']:.3g}:\n\n{study.markdown_table(table)}"
        )
    if "impedance" in problems_of(results):
        cells = {key: ", ".join(f"{v:g}" for v in row) for key, row in PUBLISHED.items()}
        parts.append(
            "Published relative L1 errors of three inclusions (figure 6), per cent: without "
            f"attention {cells['without']}; with it {cells['with']}."
        )
    return "\n\n".join(parts)


def problems_of(results: Results) -> list[str]:
    return list(dict.fromkeys(split(name)[0] for name in results.records))


COLOURS = {
    "ot-flow": "#0072B2",
    "sparse": "#D55E00",
    "first": "#CC79A7",
    "attracting": "#882255",
    "ot-flow-kl": "#56B4E9",
    "sparse-kl": "#E69F00",
    "printed-kl": "0.3",
    "supervised": "#009E73",
}


def curves(results: Results) -> Figure:
    """Held-out negative log likelihood over the training, one panel for each problem."""
    from wflow.plots.figure import PAGE, grid, style
    from wflow.plots.networks import draw_histories

    problems = problems_of(results)
    with style():
        figure, axes = grid(1, len(problems), PAGE, 2.8)
        handles: dict[str, Any] = {}
        for axis, problem in zip(axes.flat, problems, strict=True):
            named = {split(name): runs for name, runs in results.histories.items()}
            shown = (model for model in COLOURS if model not in ("printed-kl", "supervised"))
            drawn = {model: named.get((problem, model), []) for model in shown}
            draw_histories(axis, drawn, "validation", COLOURS)
            handles |= {line.get_label(): line for line in axis.lines}
            values = [run["validation"].values for runs in drawn.values() for run in runs]
            least = min((float(np.nanmin(v)) for v in values), default=np.inf)
            most = max((float(np.nanmax(v[:1])) for v in values), default=-np.inf)
            if np.isfinite(least) and np.isfinite(most):
                axis.set_ylim(least - 0.05 * (most - least), most + 0.3 * (most - least))
            axis.set_title(problem)
            axis.set_xlabel("Iteration")
            axis.set_ylabel("Held-out NLL")
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6)
    return figure


def histograms(results: Results) -> Figure:
    """Rank histograms of the informed directions, first seed; cut bars say their height."""
    from wflow.plots.figure import PAGE, grid, style

    names = [name for name, runs in results.records.items() if runs[0]["ranks"] is not None]
    columns = max(len([n for n in names if split(n)[0] == p]) for p in problems_of(results))
    problems = problems_of(results)
    with style():
        figure, axes = grid(len(problems), columns, PAGE, 1.3 * len(problems) + 0.5)
        axes = np.asarray(axes).reshape(len(problems), columns)
        for row, problem in zip(axes, problems, strict=True):
            own = [name for name in names if split(name)[0] == problem]
            for axis, name in zip(row, own, strict=False):
                counts = np.sum(results.records[name][0]["ranks"], axis=0)
                share = counts / counts.sum() * len(counts)
                axis.bar(range(len(share)), share, width=0.9, color=COLOURS[split(name)[1]])
                for place in np.flatnonzero(share > 3):
                    axis.text(place, 2.95, f"{share[place]:.1f}", ha="center", va="top", fontsize=5)
                axis.axhline(1.0, color="0.3", linewidth=0.8)
                axis.set_ylim(0, 3)
                axis.set_xticks([])
                axis.set_title(split(name)[1], fontsize=7)
            row[0].set_ylabel(problem)
            for axis in row[len(own) :]:
                axis.set_visible(False)
    return figure


def fields(setup: Setup, flags: Any, results: Results, problem: str) -> Figure:
    """Posterior of one data set: the reference beside flows without and with attention."""
    from wflow.plots.figure import PAGE, grid, style

    known, exact = data_of(problem, setup), references(problem, setup, flags.out)
    shown = {"reference": exact["draws"][0]}
    for name, runs in results.records.items():
        if split(name)[0] == problem and runs[0]["draws"] is not None:
            shown[split(name)[1]] = np.array(runs[0]["draws"])
    wanted = ("reference", "ot-flow", "sparse", "ot-flow-kl", "printed-kl")
    shown = {name: shown[name] for name in wanted if name in shown}
    truth = field_of(known, known.check.x[:1])[0]
    with style():
        if problem == "impedance":
            n = known.problem.model.cells  # type: ignore[attr-defined]
            figure, axes = grid(2, len(shown) + 1, PAGE, 3.0)
            axes = np.asarray(axes).reshape(2, -1)
            span = {"vmin": truth.min(), "vmax": truth.max()}

            def image(axis: Any, values: FloatArray, title: str, **look: Any) -> None:
                axis.imshow(values.reshape(n, n).T, origin="lower", extent=(0, 1, 0, 1), **look)
                axis.set_title(title, fontsize=7)
                axis.set_xticks([])
                axis.set_yticks([])

            image(axes[0, 0], truth, "truth", **span)
            axes[1, 0].set_visible(False)
            for k, (name, x) in enumerate(shown.items(), 1):
                mean = field_of(known, x).mean(0)
                error = np.abs(mean - truth).sum() / np.abs(truth).sum()
                image(axes[0, k], mean, name, **span)
                image(axes[1, k], np.abs(mean - truth), f"error {100 * error:.3g} %",
                      vmin=0, vmax=0.2 * truth.max(), cmap="magma")  # fmt: skip
            return figure
        figure, axes = grid(1, len(shown), PAGE, 2.2)
        for axis, (name, x) in zip(np.atleast_1d(axes).flat, shown.items(), strict=True):
            values = field_of(known, x)
            if problem == "elliptic":
                grid_points = known.problem.model.grid  # type: ignore[attr-defined]
                axis.plot(grid_points, values[:40].T, color="#E69F00", linewidth=0.3, alpha=0.5)
                axis.plot(grid_points, values.mean(0), color="#B22222")
                axis.plot(grid_points, truth, color="0.1", linestyle=":")
                room = 0.4 * np.ptp(truth)
                axis.set_ylim(truth.min() - room, truth.max() + room)
                axis.set_xlabel("s")
            else:
                looks = {r"$\sigma$": "#0072B2", "$r$": "#E69F00", r"$\beta$": "#009E73"}
                for k, (label, colour) in enumerate(looks.items()):
                    ratio = values[:, k] / known.problem.model.centre[k]  # type: ignore
                    axis.hist(ratio, bins=np.linspace(0.5, 1.6, 56), density=True, color=colour,
                              alpha=0.6, label=label)  # fmt: skip
                    at = truth[k] / known.problem.model.centre[k]  # type: ignore[attr-defined]
                    axis.axvline(at, color=colour, linestyle="--", linewidth=1)
                axis.set_xlabel("Parameter / centre")
            axis.set_title(name, fontsize=8)
        if problem == "lorenz":
            handles, texts = np.atleast_1d(axes).flat[0].get_legend_handles_labels()
            figure.legend(handles, texts, loc="outside lower center", ncols=len(texts))
    return figure
