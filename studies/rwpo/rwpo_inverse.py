"""Bayesian inverse problems with conditional flows, with and without sparse attention.

Elliptic source, Lorenz-63 parameters, impedance tomography: [RWPO] section 4.2. Flows conditional
on the data are trained on simulated pairs by their likelihood, and on data alone by the divergence
from the posterior through the adjoint of the forward model. They are compared with references
(Gibbs, Langevin chains with R-hat), by ranks of the truth over many data sets, and by the errors of
the paper's figures 4 to 6.

    python studies/rwpo/rwpo_inverse.py --preset cpu
    python studies/rwpo/rwpo_inverse.py --preset cpu --problem lorenz --out results/rwpo_lorenz
    torchrun --nproc-per-node 8 studies/rwpo/rwpo_inverse.py --preset paper

[RWPO] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein Proximal
Operator with L1 Prior", 2025.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import tyro
from _rwpo import SinglePrecision, check_names, check_near, learning_curves, make_flow, rows_of
from numpy.typing import NDArray

from wflow import InputError, nets, study
from wflow.cli import script
from wflow.plots.figure import PAGE, grid, style
from wflow.sampling import forward, reference
from wflow.study import networks
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    import torch

FloatArray = NDArray[np.float64]
PUBLISHED = Path(__file__).parents[1] / "published" / "rwpo.json"
LAM = 2.0


@dataclass(frozen=True)
class Model:
    """A flow: options of `SparseTransformerFlow` (None is OT-Flow), and what it is trained by."""

    options: dict[str, Any] | None
    reverse: bool = False  # by the reverse divergence, else by the likelihood of pairs
    supervised: float = 0.0  # weight of the printed supervised term


TRAINED: dict[str, Any] = {"lam": LAM, "trainable": ("lam", "beta")}  # beta = 1 at the beginning
PRINTED = TRAINED | {"convention": "published"}  # (22) to (24)
EXACT, LAPLACE = (PRINTED | {"kernel": kernel} for kernel in ("exact", "laplace"))
ITSELF = TRAINED | {"itself": True}
MODELS = {
    "ot-flow": Model(None),
    "sparse": Model(TRAINED),
    "itself": Model(ITSELF),
    "first": Model(TRAINED | {"attended": (1,)}),  # in the step at the base alone
    "attracting": Model(TRAINED | {"attended": (-2, -1), "convention": "attracting"}),
    "ot-flow-kl": Model(None, reverse=True),
    "sparse-kl": Model(TRAINED, reverse=True),
    "itself-kl": Model(ITSELF, reverse=True),
    "printed-kl": Model(PRINTED, reverse=True),
    "printed-exact-kl": Model(EXACT, reverse=True),
    "printed-laplace-kl": Model(LAPLACE, reverse=True),
    "supervised": Model(None, reverse=True, supervised=1.0),
    "printed-exact-supervised": Model(EXACT, reverse=True, supervised=1.0),
    "itself-supervised": Model(ITSELF, reverse=True, supervised=1.0),
}


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


CASES = {
    "paper": {
        "elliptic": Case(128, 1e-2, 128, 1024, 1e-3, cells=256),
        "lorenz": Case(3, 1e-2, 128, 1024, 1e-3),
        "impedance": Case(32, 1e-3, 512, 512, 5e-3, cells=32),
    },
    "cpu": {
        "elliptic": Case(16, 0.05, 48, 256, 1e-2, cells=128),
        "lorenz": Case(3, 0.05, 48, 256, 1e-2),
        "impedance": Case(16, 0.05, 48, 256, 1e-2, cells=16, scale=0.3, tests=4),
    },
    "smoke": {
        "elliptic": Case(4, 0.1, 8, 32, 1e-2, cells=16, tests=2),
        "lorenz": Case(3, 0.1, 8, 32, 1e-2, tests=2),
        "impedance": Case(4, 0.1, 8, 32, 1e-2, cells=4, tests=2),
    },
}
NEAR = tuple(name for name in MODELS if name not in ("sparse", "sparse-kl"))  # at any n_t
ProblemName = Literal["elliptic", "lorenz", "impedance"]


@dataclass(frozen=True, kw_only=True)
class RwpoInverse(SinglePrecision):
    """Flags of this study."""

    indifferent: ClassVar[frozenset[str]] = frozenset({"problem", "models"})
    durations: ClassVar = {"smoke": "seconds", "cpu": "minutes a model on two cores"}
    presets: ClassVar = {
        "paper": {"models": NEAR},
        "cpu": {
            "steps": 8, "iterations": 500, "least": 1e-4, "tokens": 128, "pairs": 10_000,
            "draws": 2000, "ranked": 150, "alpha": (1.0, 0.05, 0.01),
        },
        "smoke": {
            "seeds": 1, "steps": 2, "iterations": 4, "tokens": 16, "pairs": 100, "draws": 50,
            "ranked": 20, "alpha": (1.0, 0.05, 0.01),
        },
    }  # fmt: skip
    problem: tuple[ProblemName, ...] = ("elliptic", "lorenz", "impedance")
    """Inverse problems."""
    models: tuple[str, ...] = tuple(MODELS)
    """Models to train for each problem."""
    seeds: study.Count = 3
    steps: networks.Steps = 48
    """Steps n_t of the flows."""
    iterations: study.Count = 12_001
    """Training iterations."""
    least: study.Positive = 1e-6
    """Learning rate at the end."""
    dim: study.Count | None = None
    """Number of bumps of the elliptic problem and of impedance, a power of 2 for the latter;
    default: of the preset."""
    tokens: study.Count = 256
    """Number of tokens of a context."""
    pairs: study.Count = 20_000
    """Simulated pairs of the training."""
    draws: study.Count = 4000
    """Draws of each reference chain."""
    ranked: study.Count = 1000
    """Data sets of the rank test."""
    alpha: tuple[study.Nonnegative, study.Nonnegative, study.Nonnegative] = (1.0, 1.0, 0.1)
    """Weights of likelihood or divergence, transport and HJB penalty."""
    data: Annotated[str | None, tyro.conf.Suppress] = None
    out: study.Folder = Path("results/rwpo_inverse")
    """Folder for checkpoints, metrics, references, summary and figures."""

    def check(self) -> None:
        super().check()
        check_names(self.problem, CASES["paper"], "--problem")
        check_names(self.models, MODELS, "--models")
        check_near({name: MODELS[name].options for name in self.models}, self.steps, "--models")
        if self.dim is not None and "impedance" in self.problem and self.dim & (self.dim - 1):
            raise InputError(f"--dim is {self.dim}: expected a power of 2 for impedance")
        if self.tokens > self.pairs:
            raise InputError(f"--tokens is {self.tokens}: expected at most --pairs {self.pairs}")
        most = min(self.case(name).rate for name in self.problem)
        if self.least > most:
            raise InputError(f"--least is {self.least:g}: expected at most {most:g}")

    def case(self, problem: str) -> Case:
        """Return the sizes of a problem."""
        case = CASES[self.preset][problem]
        return case if problem == "lorenz" else replace(case, dim=self.dim or case.dim)

    @property
    def whole(self) -> bool:
        """Whether the sizes are those of a preset, with as many seeds."""
        return networks.is_published(self) and self.seeds >= type(self).of(self.preset).seeds


# Problems
# --------


class Data(NamedTuple):
    """An inverse problem with its pairs."""

    case: Case
    problem: forward.InverseProblem
    summary: forward.Summary
    train: forward.Pairs
    check: forward.Pairs  # of validation, rank tests and references
    directions: FloatArray  # (k, d): those of which the data say more than the prior

    def field(self, x: FloatArray) -> FloatArray:
        """Return the field that parameters (n, d) describe, (n, m)."""
        model = self.problem.model
        if isinstance(model, forward.Elliptic):
            return x @ model.basis.T
        return model.parameters(x) if isinstance(model, forward.Lorenz) else model.conductivity(x)  # type: ignore

    def relative_l1(self, x: FloatArray, k: int) -> float:
        """Return the error of the mean field of a sample, with data set k."""
        exact = self.field(self.check.x[k : k + 1])[0]
        return float(np.abs(self.field(x).mean(0) - exact).sum() / np.abs(exact).sum())


@functools.cache
def load(flags: RwpoInverse) -> dict[str, Data]:
    """Return the problems, with their pairs."""
    return {name: simulated(flags, name) for name in flags.problem}


def simulated(flags: RwpoInverse, name: str) -> Data:
    """Return a problem and its pairs."""
    case = flags.case(name)
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
    train, check = (problem.simulate(*each) for each in ((flags.pairs, 11), (2 * flags.ranked, 12)))
    return Data(case, problem, problem.summary(1000, most=64), train, check, informed(problem))


def informed(problem: forward.InverseProblem) -> FloatArray:
    """Return directions in which the mean information of the data exceeds that of the prior."""
    points = problem.prior(12, seed=13)
    prior = 0.5 * problem.lam**2 * np.eye(problem.model.dim)
    total = sum(np.linalg.inv(problem.gaussian_covariance(x)) - prior for x in points)
    values, vectors = np.linalg.eigh(total / len(points))
    return vectors.T[::-1][: max(1, int((values > prior[0, 0]).sum()))][:8]


def tensors(*arrays: FloatArray) -> tuple[torch.Tensor, ...]:
    import torch

    return tuple(torch.as_tensor(array, dtype=torch.float32) for array in arrays)


# Trainings
# ---------

Name = tuple[str, str]  # problem and model


def network(flags: RwpoInverse, known: Data, model: Model, seed: int) -> Any:
    """Return a flow near the identity, with weights drawn from its seed."""
    import torch

    torch.manual_seed(seed)
    case, options = known.case, model.options
    phi = nets.generative.Potential(
        case.dim, width=case.width, condition=known.summary.size, start=0.1
    )
    own = options is not None and options.get("convention") == "published"  # batch as context
    if options is None or own:
        return make_flow(phi, flags.steps, options)
    flow = make_flow(phi, flags.steps, options | {"tokens": flags.tokens})
    x, y = (part[-flags.tokens :] for part in (known.train.x, known.train.y))
    flow.set_context(*tensors(x, known.summary(y)))
    return flow


def plan(flags: RwpoInverse, data: dict[str, Data], name: Name, seed: int) -> Run:
    """Return the training run of one model with one seed."""
    known, model = data[name[0]], MODELS[name[1]]
    flow = network(flags, known, model, seed)
    rows = rows_of(flow, known.case.batch)

    def batches(step: int) -> tuple[torch.Tensor, ...]:
        rng = np.random.default_rng([14, seed, step])
        chosen = rng.integers(0, len(known.train.x), rows)
        clean = known.train.clean[chosen]
        y = clean + known.problem.noise * rng.standard_normal(clean.shape)
        batch = tensors(known.train.x[chosen], known.summary(y), y)
        return batch if model.reverse else batch[:2]

    objective: Any = nets.generative.Likelihood(flags.alpha)
    if model.reverse:
        objective = nets.generative.ReverseKL(
            known.problem, flags.alpha, supervised=model.supervised
        )
    iterations = flags.iterations
    config = nets.train.TrainConfig(
        steps=iterations,
        batch=rows,
        schedule=nets.train.Cosine(known.case.rate, flags.least, 20, max(iterations, 21)),
        clip=10.0,
        evaluate_every=max(1, iterations // 20),
        checkpoint_every=max(1, iterations // 4),
        seed=seed,
        device=flags.device,
    )
    held_out = tensors(known.check.x[:256], known.summary(known.check.y[:256]))

    def evaluate(flow: torch.nn.Module) -> dict[str, float]:
        """Return the negative log likelihood of held-out pairs."""
        x, features = (each.to(flow.potential.w) for each in held_out)  # type: ignore
        density = flow.log_density(x, features)  # type: ignore[operator]
        return {"validation": float(-density.mean())}

    return Run(flow, objective, batches, config, evaluate)


# References
# ----------


def references(flags: RwpoInverse, name: str, known: Data) -> dict[str, FloatArray]:
    """Return draws from the posteriors of the first data sets, (tests, draws, d), from a file."""
    file = flags.out / f"reference-{name}.npz"
    key = repr((known.case, flags.draws))
    if file.exists():
        with np.load(file) as kept:
            if str(kept["key"]) == key:
                return {k: kept[k] for k in kept.files if k != "key"}
    chains = [reference_of(name, known, known.check.y[k], flags.draws, seed=k)
              for k in range(known.case.tests)]  # fmt: skip
    draws = [chain["samples"].values.reshape(-1, known.case.dim) for chain in chains]
    found = {
        "draws": np.array([x[:: max(1, len(x) // 2000)][:2000] for x in draws]),
        "r_hat": np.array([float(chain["r_hat"].max()) for chain in chains]),
        "ess": np.array([float(chain["ess"].min()) for chain in chains]),
    }
    draft = flags.out / f".reference-{name}-{os.getpid()}.npz"
    np.savez(draft, key=key, draws=found["draws"], r_hat=found["r_hat"], ess=found["ess"])
    draft.replace(file)
    return found


def reference_of(name: str, known: Data, y: FloatArray, draws: int, seed: int) -> Any:
    """Return chains of one posterior: by Gibbs where the model is linear, else by Langevin."""
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


def draw(flow: Any, features: FloatArray, count: int, seed: int) -> FloatArray:
    """Return samples (n, count, d) of the posteriors of n data sets."""
    import torch

    weight = flow.potential.w
    each = torch.as_tensor(features).to(weight).repeat_interleave(count, 0)
    with torch.no_grad():
        x = flow.sample(len(each), seed=seed, y=each)
    return x.double().cpu().numpy().reshape(len(features), count, -1)


def measure(
    flags: RwpoInverse, data: dict[str, Data], name: Name, training: Trained, seed: int
) -> Record:
    """Return all quantities of a trained flow."""
    import torch

    record: Record = {"ranks": None, "draws": None}
    if training.diverged:
        return record
    problem, model = name
    known, flow = data[problem], training.model
    exact = references(flags, problem, known)
    curve = training.history["validation"].values
    if not model.startswith("printed"):  # what it sums is no log density
        record |= {"validation": float(curve[-1]), "area": float(curve[1:].mean())}
    tests = known.case.tests
    features = known.summary(known.check.y)
    drawn = draw(flow, features[:tests], 300, seed=100 + seed)
    prior = 2 / LAM**2
    errors = []
    for k, (sample, right) in enumerate(zip(drawn, exact["draws"], strict=True)):
        values, vectors = np.linalg.eigh(np.cov(right.T))
        narrow = values < 0.5 * prior
        kept = vectors[:, narrow] if narrow.any() else vectors[:, :1]
        mine, theirs = sample @ kept, right @ kept
        gap = (mine.mean(0) - theirs.mean(0)) / theirs.std(0)
        ratio = np.log(mine.std(0) / theirs.std(0))
        errors.append([
            np.sqrt((gap**2).mean()), np.sqrt((ratio**2).mean()), ratio.mean(),
            sample.var(axis=0).sum() / right.var(axis=0).sum(),
            known.relative_l1(sample, k), known.relative_l1(right, k),
        ])  # fmt: skip
    *medians, mine_l1, exact_l1 = np.transpose(errors)
    measured = ("mean_error", "spread_error", "spread_bias", "variance_ratio")
    record |= {key: float(np.median(v)) for key, v in zip(measured, medians, strict=True)}
    rows = slice(flags.ranked, 2 * flags.ranked)
    ranked = draw(flow, features[rows], 31, seed=200 + seed) @ known.directions.T
    ranks = reference.rank_test(known.check.x[rows] @ known.directions.T, ranked)
    if MODELS[model].options is not None:
        with torch.no_grad():
            given = tensors(known.check.x[:256], features[:256])
            sizes = flow.ess(*(each.to(flow.potential.w) for each in given))  # type: ignore
        record["attention"] = float(np.nanmean(sizes.cpu().numpy()))
    return record | {
        "relative_l1": float(np.mean(mine_l1)),
        "reference_l1": float(np.mean(exact_l1)),
        "rank_p": float(min(1.0, ranks.p_value.min() * len(ranks.p_value))),
        "coverage_50": float(ranks.coverage[:, 0].mean()),
        "coverage_90": float(ranks.coverage[:, 1].mean()),
        "ranks": ranks.counts.tolist(),
        "draws": drawn[0].tolist(),  # of the first data set, for the figures
    }


# What was found
# --------------

CORRECTED = {"sparse": "corrected", "itself": "corrected, tokens attend to themselves"}
SECTION = "[RWPO] section 4.2"
# Whether the key is smaller for the first model than for the second; [RWPO] names its figure.
CLAIMS = (
    *(claim for model, words in CORRECTED.items() for claim in (
        *((f"{statement} ({words})", "", model, "ot-flow", key) for statement, key in (
            ("the validation loss decreases faster with the sparse transformer than without",
             "area"),
            ("the posterior mean is more accurate with the sparse transformer", "mean_error"),
            ("the posterior deviations are more accurate with the sparse transformer",
             "spread_error"),
            ("the relative L1 error is smaller with the sparse transformer", "relative_l1"))),
        ("the relative L1 error is smaller with the sparse transformer, by the reverse divergence "
         f"({words})", SECTION, f"{model}-kl", "ot-flow-kl", "relative_l1"),
    )),
    *((f"the printed flow with {kernel} is more accurate than OT-Flow, by the reverse divergence",
       SECTION, model, "ot-flow-kl", "relative_l1")
      for model, kernel in (("printed-kl", "its misprinted kernel"),
                            ("printed-exact-kl", "the exact kernel"),
                            ("printed-laplace-kl", "Laplace's kernel"))),
    *((f"{words} with the supervised term is more accurate than OT-Flow with it", SECTION,
       model, "supervised", "relative_l1")
      for model, words in (("printed-exact-supervised", "the printed flow with the exact kernel"),
                           ("itself-supervised", f"the flow ({CORRECTED['itself']})"))),
    ("attention in the step at the base alone lowers the held-out NLL", "this study",
     "first", "ot-flow", "validation"),
    ("reversed layers in the last two steps lower the held-out NLL", "this study",
     "attracting", "ot-flow", "validation"),
)  # fmt: skip
FIGURES = {"elliptic": "figure 4", "lorenz": "figure 5", "impedance": "figure 6"}


def by_problem(results: Results) -> dict[str, Results]:
    """Return the results of each problem, by the models alone."""
    found: dict[str, Results] = {}
    for name, records in results.records.items():
        problem, _, model = name.partition(" ")
        part = found.setdefault(problem, Results({}, {}))
        part.records[model] = records
        part.histories[model] = results.histories.get(name, [])
    return found


def findings(problem: str, results: Results) -> list[study.Finding]:
    """Return claims of the paper and of this study about a problem, with their verdicts."""

    values, found = results.values, []
    for statement, source, low, high, key in CLAIMS:
        if {low, high} <= set(results.records):
            more, less = values(high, key), values(low, key)
            text, verdict = networks.paired(more, less)
            text = f"{low} {less.mean():.3g}, {high} {more.mean():.3g}: {text}"
            source = source or f"[RWPO] {FIGURES[problem]}"
            found.append(study.Finding(f"{problem}: {statement}", source, text, verdict))
    if {"supervised", "ot-flow-kl"} <= set(results.records):
        ratio, without = (values(model, "variance_ratio") for model in ("supervised", "ot-flow-kl"))
        found.append(study.Finding(
            f"{problem}: with the supervised term the posterior keeps its variance, within 5 per "
            "cent", SECTION,
            f"trace of the covariance over that of the reference {ratio.mean():.3g} with the "
            f"term, {without.mean():.3g} without", networks.paired(ratio, 0.95 * without)[1],
        ))  # fmt: skip
    for model in ("ot-flow", "sparse", "itself", "ot-flow-kl"):
        if model in results.records:
            p = values(model, "rank_p")
            found.append(study.Finding.decided(
                f"{problem}: the posterior of {model} is calibrated", "this study",
                f"rank tests, p = {', '.join(f'{v:.2g}' for v in p)} over seeds (level 0.01)",
                np.nan_to_num(p) > 0.01,
            ))  # fmt: skip
    return found


# Tables and figures
# ------------------

COLUMNS = {
    "validation": "held-out NLL", "area": "mean NLL in training", "mean_error": "mean error",
    "spread_error": "log deviation error", "spread_bias": "log deviation bias",
    "variance_ratio": "variance ratio", "relative_l1": "relative L1", "rank_p": "rank test p",
    "coverage_50": "50 %", "coverage_90": "90 %", "attention": "ESS", "seconds": "s",
}  # fmt: skip


def report(flags: RwpoInverse, data: dict[str, Data], results: Results) -> str:
    """Write a table for each problem, and what the references are worth."""
    source = (
        f"simulated pairs, lambda = {LAM:g}; {flags.iterations} iterations, n_t = {flags.steps}, "
        f"contexts of {flags.tokens} tokens"
    )
    parts, problems = [networks.caption(flags, flags.seeds, results, source)], by_problem(results)
    trained = {model for part in problems.values() for model in part.records}
    if not flags.whole or trained != {*MODELS}:
        parts.insert(0, "Partial run: not the sizes, seeds or models of a preset.")
    for problem, part in problems.items():
        known = data[problem]
        exact = references(flags, problem, known)
        table = {"model": list(part.records)} | {
            title: networks.column(part, key, ".3g") for key, title in COLUMNS.items()
        }
        first = next(iter(part.records.values()))[0]
        parts.append(
            f"{problem}: d = {known.case.dim}, {known.problem.model.outputs} observations in "
            f"{known.summary.size} summaries, relative noise {known.case.noise:g}, "
            f"{len(known.directions)} informed directions tested by ranks of {flags.ranked} data "
            f"sets; {known.case.tests} references, largest R-hat {exact['r_hat'].max():.3f}, "
            f"least ESS {exact['ess'].min():.0f}, relative L1 error "
            f"{first['reference_l1']:.3g}:\n\n{study.markdown_table(table)}"
        )
    if "impedance" in problems:
        printed = json.loads(PUBLISHED.read_text(encoding="utf-8"))["Figure 6"]
        without, with_it = (
            ", ".join(f"{v:g}" for v in printed[key]) for key in ("without", "with")
        )
        parts.append(
            "Published relative L1 errors of three inclusions (figure 6), per cent: without "
            f"attention {without}; with it {with_it}."
        )
    return "\n\n".join(parts)


COLOURS = {
    "ot-flow": "#0072B2",
    "sparse": "#D55E00",
    "itself": "#8B4000",
    "first": "#CC79A7",
    "attracting": "#882255",
    "ot-flow-kl": "#56B4E9",
    "sparse-kl": "#E69F00",
    "itself-kl": "#B8860B",
    "printed-kl": "0.3",
    "printed-exact-kl": "0.5",
    "printed-laplace-kl": "0.7",
    "supervised": "#009E73",
    "printed-exact-supervised": "#66A61E",
    "itself-supervised": "#1B9E77",
}


def curves(problems: Mapping[str, Results]) -> study.Figure:
    """Draw the held-out negative log likelihood over the training, one panel for each problem."""
    shown = [m for m in COLOURS if not m.startswith("printed") and "supervised" not in m]
    panels = {
        problem: {model: results.histories.get(model, []) for model in shown}
        for problem, results in problems.items()
    }
    figure = learning_curves(panels, "validation", "Held-out NLL", COLOURS)
    for axis, drawn in zip(figure.axes, panels.values(), strict=False):
        values = [run["validation"].values for runs in drawn.values() for run in runs]
        least = min((float(np.nanmin(v)) for v in values), default=np.inf)
        most = max((float(np.nanmax(v[:1])) for v in values), default=-np.inf)
        if np.isfinite(least) and np.isfinite(most):
            axis.set_ylim(least - 0.05 * (most - least), most + 0.3 * (most - least))
    return figure


@style()
def histograms(problems: Mapping[str, Results]) -> study.Figure:
    """Draw rank histograms of the informed directions, first seed; cut bars show their height."""
    ranks = {
        problem: {model: np.sum(runs[0]["ranks"], axis=0) for model, runs in part.records.items()
                  if runs[0]["ranks"] is not None}
        for problem, part in problems.items()
    }  # fmt: skip
    columns = max(map(len, ranks.values()))
    figure, axes = grid(len(ranks), columns, PAGE, 1.3 * len(ranks) + 0.5)
    for row, (problem, own) in zip(axes, ranks.items(), strict=True):
        for axis, (model, counts) in zip(row, own.items(), strict=False):
            share = counts / counts.sum() * len(counts)
            axis.bar(range(len(share)), share, width=0.9, color=COLOURS[model])
            for place in np.flatnonzero(share > 3):
                axis.text(place, 2.95, f"{share[place]:.1f}", ha="center", va="top", fontsize=5)
            axis.axhline(1.0, color="0.3", linewidth=0.8)
            axis.set(ylim=(0, 3), xticks=[])
            axis.set_title(model, fontsize=7)
        row[0].set_ylabel(problem)
        for axis in row[len(own) :]:
            axis.set_visible(False)
    return figure


@style()
def fields(problem: str, known: Data, reference: np.ndarray, results: Results) -> study.Figure:
    """Draw the posterior of one data set: the reference beside flows without and with attention."""
    wanted = ("ot-flow", "sparse", "itself", "ot-flow-kl", "printed-exact-kl")
    first = {name: results.records[name][0]["draws"] for name in wanted if name in results.records}
    shown = {"reference": reference}
    shown |= {name: np.array(draws) for name, draws in first.items() if draws is not None}
    truth = known.field(known.check.x[:1])[0]
    model: Any = known.problem.model
    if problem == "impedance":
        n = model.cells
        figure, axes = grid(2, len(shown) + 1, PAGE, 3.0)
        span = {"vmin": truth.min(), "vmax": truth.max()}

        def image(axis: Any, values: np.ndarray, title: str, **look: Any) -> None:
            axis.imshow(values.reshape(n, n).T, origin="lower", extent=(0, 1, 0, 1), **look)
            axis.set_title(title, fontsize=7)
            axis.set(xticks=[], yticks=[])

        image(axes[0, 0], truth, "truth", **span)
        axes[1, 0].set_visible(False)
        for k, (name, x) in enumerate(shown.items(), 1):
            mean = known.field(x).mean(0)
            error = np.abs(mean - truth).sum() / np.abs(truth).sum()
            image(axes[0, k], mean, name, **span)
            image(axes[1, k], np.abs(mean - truth), f"error {100 * error:.3g} %",
                  vmin=0, vmax=0.2 * truth.max(), cmap="magma")  # fmt: skip
        return figure
    figure, axes = grid(1, len(shown), PAGE, 2.2)
    for axis, (name, x) in zip(axes.flat, shown.items(), strict=True):
        values = known.field(x)
        if problem == "elliptic":
            axis.plot(model.grid, values[:40].T, color="#E69F00", linewidth=0.3, alpha=0.5)
            axis.plot(model.grid, values.mean(0), color="#B22222")
            axis.plot(model.grid, truth, color="0.1", linestyle=":")
            room = 0.4 * np.ptp(truth)
            axis.set(xlabel="s", ylim=(truth.min() - room, truth.max() + room))
        else:
            looks = {r"$\sigma$": "#0072B2", "$r$": "#E69F00", r"$\beta$": "#009E73"}
            for k, (label, colour) in enumerate(looks.items()):
                ratio = values[:, k] / model.centre[k]
                axis.hist(ratio, bins=np.linspace(0.5, 1.6, 56), density=True, color=colour,
                          alpha=0.6, label=label)  # fmt: skip
                axis.axvline(truth[k] / model.centre[k], color=colour, linestyle="--", linewidth=1)
            axis.set_xlabel("Parameter / centre")
        axis.set_title(name, fontsize=8)
    if problem == "lorenz":
        handles, texts = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside lower center", ncols=len(texts))
    return figure


def figures(flags: RwpoInverse, results: Results) -> dict[str, Any]:
    """Draw learning curves, ranks, and posteriors of every problem."""
    problems, data = by_problem(results), load(flags)
    drawn = {"validation": curves(problems), "ranks": histograms(problems)}
    for problem, part in problems.items():
        exact = references(flags, problem, data[problem])
        drawn[problem] = fields(problem, data[problem], exact["draws"][0], part)
    return drawn


def decide(flags: RwpoInverse, _: dict[str, Data], results: Results) -> list[study.Finding]:
    """Return claims about every problem, where there are as many seeds as the preset has."""
    problems = by_problem(results).items() if flags.whole else ()
    return [finding for problem, part in problems for finding in findings(problem, part)]


EXPERIMENT = networks.Experiment(
    name="rwpo_inverse",
    models=lambda flags: {f"{p} {m}": (p, m) for p in flags.problem for m in flags.models},
    load=load, plan=plan, measure=measure, numbers=NUMBERS,
    text=report, findings=decide, figures=figures,
)  # fmt: skip


def main() -> None:
    networks.run(EXPERIMENT, study.command_line(RwpoInverse, __doc__))


if __name__ == "__main__":
    script(main)
