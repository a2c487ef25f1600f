"""Bayesian inverse problems with conditional flows, with and without sparse attention.

Elliptic source, Lorenz-63 parameters, impedance tomography: [RWPO] section 4.2. Flows conditional
on the data are trained on simulated pairs by their likelihood, and on data alone by the divergence
from the posterior through the adjoint of the forward model. They are compared with references
(Gibbs, Langevin chains with R-hat), by ranks of the truth over many data sets, and by the errors of
the paper's figures 4 to 6.

    python studies/rwpo/rwpo_inverse.py --preset cpu
    python studies/rwpo/rwpo_inverse.py --preset cpu --problem lorenz --out results/rwpo_lorenz

[RWPO] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein Proximal
Operator with L1 Prior", 2025.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from _rwpo_inverse import (
    MODELS,
    NUMBERS,
    Case,
    Setup,
    curves,
    fields,
    histograms,
    measured,
    plan,
    problems_of,
    report,
    split,
)

from wflow import InputError, study
from wflow._core.checks import whole
from wflow.cli import guarded
from wflow.study import networks
from wflow.study.networks import Results

CPU = {
    "elliptic": Case(16, 0.05, 48, 256, 1e-2, cells=128),
    "lorenz": Case(3, 0.05, 48, 256, 1e-2),
    "impedance": Case(16, 0.05, 48, 256, 1e-2, cells=16, scale=0.3, tests=4),
}
SMALL = {
    "elliptic": Case(4, 0.1, 8, 32, 1e-2, cells=16, tests=2),
    "lorenz": Case(3, 0.1, 8, 32, 1e-2, tests=2),
    "impedance": Case(4, 0.1, 8, 32, 1e-2, cells=4, tests=2),
}
PRESETS = {
    "paper": Setup(),
    "cpu": Setup(
        seeds=3, steps=8, iterations=500, least=1e-4, tokens=128, pairs=10_000, draws=2000,
        ranked=150, alpha=(1.0, 0.05, 0.01), cases=CPU,
    ),
    "smoke": Setup(
        seeds=1, steps=2, iterations=4, tokens=16, pairs=100, draws=50, ranked=20, cases=SMALL,
        alpha=(1.0, 0.05, 0.01),
    ),
}  # fmt: skip
ProblemName = Literal["elliptic", "lorenz", "impedance"]


@dataclass(frozen=True, kw_only=True)
class RwpoInverse(networks.NetFlags):
    """Flags of this study."""

    problem: tuple[ProblemName, ...] = ("elliptic", "lorenz", "impedance")
    """Inverse problems."""
    models: tuple[str, ...] = tuple(MODELS)
    """Models to train for each problem."""
    iterations: int | None = None
    """Training iterations; default: of the preset."""
    dim: int | None = None
    """Number of bumps of the elliptic problem and of impedance, a power of 2 for the latter;
    default: of the preset."""
    tokens: int | None = None
    """Number of tokens of a context; default: of the preset."""
    steps: int | None = None
    """Steps n_t of the flows; default: of the preset."""
    lam: tyro.conf.Suppress[float | None] = None
    data: Annotated[str | None, tyro.conf.Suppress] = None
    out: study.Folder = Path("results/rwpo_inverse")
    """Folder for checkpoints, metrics, references, summary and figures."""

    def check(self) -> None:
        super().check()
        for flag, names in (("--problem", self.problem), ("--models", self.models)):
            if not names or len(set(names)) < len(names):
                raise InputError(f"{flag} is {' '.join(names)}: name each one once")
        for name in self.models:
            if name not in MODELS:
                raise InputError(f"--models {name}: expected some of {', '.join(MODELS)}")
        for name in ("iterations", "dim", "tokens"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), f"--{name}")
        if self.dim is not None and "impedance" in self.problem and self.dim & (self.dim - 1):
            raise InputError(f"--dim is {self.dim}: expected a power of 2 for impedance")


def findings(results: Results) -> list[study.Finding]:
    """Claims of the paper and of this study, with their verdicts."""

    def values(problem: str, model: str, key: str) -> np.ndarray:
        return np.array([r[key] for r in results.records[f"{problem} {model}"]])

    found = []
    for problem in problems_of(results):
        have = {split(name)[1] for name in results.records if split(name)[0] == problem}

        def add(statement: str, source: str, low: str, high: str, key: str, problem: str = problem,
                have: set[str] = have) -> None:  # fmt: skip
            """Confirmed if the key is smaller for `low` than for `high`."""
            if {low, high} <= have:
                pair = values(problem, high, key), values(problem, low, key)
                text, verdict = networks.paired(*pair)
                text = f"{low} {pair[1].mean():.3g}, {high} {pair[0].mean():.3g}: {text}"
                found.append(study.Finding(f"{problem}: {statement}", source, text, verdict))

        figure = {"elliptic": "figure 4", "lorenz": "figure 5", "impedance": "figure 6"}[problem]
        source = f"[RWPO] {figure}"
        add("the validation loss decreases faster with the sparse transformer than without",
            source, "sparse", "ot-flow", "area")  # fmt: skip
        add("the posterior mean is more accurate with the sparse transformer", source,
            "sparse", "ot-flow", "mean_error")  # fmt: skip
        add("the posterior deviations are more accurate with it", source,
            "sparse", "ot-flow", "spread_error")  # fmt: skip
        add("the relative L1 error is smaller with it", source, "sparse", "ot-flow", "relative_l1")
        add("the same by the reverse divergence", "[RWPO] section 4.2", "sparse-kl", "ot-flow-kl",
            "relative_l1")  # fmt: skip
        add("the flow as printed is more accurate than OT-Flow, by the reverse divergence",
            "[RWPO] section 4.2", "printed-kl", "ot-flow-kl", "relative_l1")  # fmt: skip
        add("attention in the step at the base alone lowers the held-out NLL", "this study",
            "first", "ot-flow", "validation")  # fmt: skip
        add("reversed layers in the last two steps lower the held-out NLL", "this study",
            "attracting", "ot-flow", "validation")  # fmt: skip
        if {"supervised", "ot-flow-kl"} <= have:
            ratio = values(problem, "supervised", "variance_ratio")
            without = values(problem, "ot-flow-kl", "variance_ratio")
            verdict = networks.paired(ratio, 0.95 * without)[1]
            found.append(study.Finding(
                f"{problem}: with the supervised term the posterior keeps its variance, within 5 "
                "per cent", "[RWPO] section 4.2",
                f"trace of the covariance over that of the reference {ratio.mean():.3g} with the "
                f"term, {without.mean():.3g} without", verdict,
            ))  # fmt: skip
        for model in ("ot-flow", "sparse", "ot-flow-kl"):
            if model in have:
                p = values(problem, model, "rank_p")
                found.append(study.Finding.decided(
                    f"{problem}: the posterior of {model} is calibrated", "this study",
                    f"rank tests, p = {', '.join(f'{v:.2g}' for v in p)} over seeds (level 0.01)",
                    np.nan_to_num(p) > 0.01,
                ))  # fmt: skip
    return found


def main() -> int:
    flags = study.command_line(RwpoInverse, __doc__)
    setup = networks.with_flags(PRESETS[flags.preset], flags)
    if flags.dim is not None:
        sized = {
            name: replace(case, dim=case.dim if name == "lorenz" else flags.dim)
            for name, case in setup.cases.items()
        }
        setup = replace(setup, cases=sized)
    every = [f"{problem} {model}" for problem in flags.problem for model in flags.models]
    names = networks.chosen(every, setup.seeds, flags)
    with study.session("rwpo_inverse", flags) as session:
        results = networks.train_all(
            session,
            flags,
            names,
            setup.seeds,
            lambda name, seed: plan(name, setup, flags, seed),
            lambda name, seed, training: measured(name, setup, flags, training, seed),
        )
        drawn: dict[str, Any] = {
            "validation": curves(results),
            "ranks": histograms(results),
        }
        for problem in problems_of(results):
            drawn[problem] = fields(setup, flags, results, problem)
        enough = setup.seeds >= PRESETS[flags.preset].seeds
        whole = networks.is_preset(setup, flags, PRESETS) and enough
        complete = whole and {split(name)[1] for name in names} == {*MODELS}
        session.finish(
            table=networks.dataset(results, NUMBERS, {}, {}),
            text=report(flags, setup, results, complete),
            findings=findings(results) if whole else [],
            figures=drawn,
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
