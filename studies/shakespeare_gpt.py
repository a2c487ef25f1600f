"""Characters of Shakespeare with a GPT: discrete, continuous in time, and with its transport cost.

A causal transformer learns the next character. The baseline applies its blocks once; the continuous
models let fewer and narrower blocks be the velocity of the hidden states: all of them one system,
or one system per block (`node`, the N-ODE transformer). Test loss and perplexity on the last tenth
of the text, with characters replaced at random too, and samples: [OTT] section 5.4, Tables 3, 4, 5
and 10.

The published runs weigh the mean square of the velocity without the factor 1/2 of [OTT1] eq. 8:
`--lam` is theirs, twice that of `ContinuousTransformer(cost="mean")`.

    python studies/shakespeare_gpt.py --preset cpu
    python studies/shakespeare_gpt.py --preset paper --ablation lam

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, arXiv 2505.13499.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from _shakespeare_gpt import (
    LAMS,
    REPLACED,
    STEPS,
    Model,
    Setup,
    Size,
    examine,
    overfits,
    plan,
    report,
)

from wflow import InputError, nets, study
from wflow.cli import guarded
from wflow.study import networks, number, positive, whole
from wflow.study.networks import Results

DEFAULT_OUT = Path("results/shakespeare_gpt")


PRESETS = {
    "paper": Setup(),
    # 5,019 characters, few enough to overfit, as the whole text is in the published run; a
    # network four times narrower learns with four times the rate.
    "cpu": Setup(
        seeds=2,
        iterations=1000,
        batch=16,
        accumulate=1,
        context=64,
        baseline=Size(4, 4, 96),
        continuous=Size(3, 4, 80),
        steps=5,
        rate=4e-3,
        evaluate_every=125,
        share=0.005,
    ),
    "smoke": Setup(
        text="embedded",
        seeds=1,
        iterations=6,
        batch=4,
        accumulate=2,
        context=16,
        baseline=Size(2, 2, 16),
        continuous=Size(1, 2, 12),
        steps=2,
        evaluate_every=3,
    ),
}


@dataclass(frozen=True, kw_only=True)
class ShakespeareGpt(networks.NetFlags):
    """Flags of this study."""

    ablation: Literal["none", "lam", "steps"] = "none"
    """Compare weights lam of the transport cost, or numbers of steps, in place of the models; by
    default in a separate folder, results/shakespeare_gpt_lam or _steps."""
    iterations: int | None = None
    """Optimiser steps; default: of the preset."""
    rate: float | None = None
    """Learning rate after the warm-up; it falls to a tenth. Default: of the preset."""
    share: float | None = None
    """Share of the training text that is used, from its beginning; default: of the preset."""
    out: study.Folder = DEFAULT_OUT
    """Folder for checkpoints, metrics, summary, samples and figures."""

    def check(self) -> None:
        super().check()
        if self.iterations is not None:
            whole(self.iterations, "--iterations")
        if self.rate is not None:
            positive(self.rate, "--rate")
        if self.share is not None and not 0 < number(self.share, "--share") <= 1:
            raise InputError(f"--share is {self.share}: expected a number in (0, 1]")


def models(setup: Setup, ablation: str) -> dict[str, Model]:
    """The models of a comparison by name."""
    lam, steps = setup.lam, setup.steps
    chosen = [
        Model("baseline", "baseline", 0.0, 1),
        Model("unregularised", "continuous", 0.0, steps),
        Model("node", "node", 0.0, steps),
        Model("node with cost", "node", lam, steps),
        Model("continuous", "continuous", lam, steps),
    ]
    if ablation == "lam":
        chosen = [Model(f"lam={value:g}", "continuous", value, steps) for value in LAMS]
    elif ablation == "steps":
        chosen = [Model(f"steps={value}", "continuous", lam, value) for value in STEPS]
    return {model.name: model for model in chosen}


def tabulated(results: Results) -> Any:
    """All numbers as a Dataset."""
    return networks.dataset(
        results,
        {
            "final": ("test loss after the last iteration", "1"),
            "best": ("least test loss of any evaluation", "1"),
            "training": ("training loss, mean of the last 50 iterations", "1"),
            "straightness": ("arc length over chord of hidden states, first windows", "1"),
            "transport": ("transport cost with the factor 1/2, likewise", "1"),
            "milliseconds": ("median time of an iteration", "ms"),
            "seconds": ("time of all iterations", "s"),
        },
        {"replaced": ("loss_replaced", "rate", "test loss with characters replaced at random")},
        {"rate": (REPLACED, "share of characters replaced")},
    )


def findings(results: Results) -> list[study.Finding]:
    """Claims of the paper, with their verdicts."""

    def values(name: str, key: str) -> np.ndarray:
        return np.array([record[key] for record in results.records[name]])

    def gain(of: str, over: str) -> np.ndarray:
        return values(over, "final") - values(of, "final")

    def rise(name: str) -> np.ndarray:
        return values(name, "final") - values(name, "best")

    def loss(name: str) -> np.ndarray:
        replaced = values(name, "replaced")
        return replaced[:, -1] - replaced[:, 0]

    nothing = np.zeros(len(results.records["baseline"]))
    claims = [
        ("the continuous model with transport cost ends with a lower test loss than the larger "
         "baseline", "[OTT] Table 10", gain("continuous", "baseline"), nothing),
        ("the transport cost lowers the test loss of the continuous model", "[OTT] Table 5",
         gain("continuous", "unregularised"), nothing),
        ("it lowers it more than that of the N-ODE transformer",
         "[OTT] Appendix I, of sentiments and cats and dogs",
         gain("continuous", "unregularised"), gain("node with cost", "node")),
        ("with a tenth of the characters replaced the test loss of the continuous model rises less",
         "[OTT] Table 3", loss("baseline"), loss("continuous")),
        ("the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
         values("unregularised", "straightness"), values("continuous", "straightness")),
    ]  # fmt: skip
    if overfits(results):
        claims.append(
            ("the test loss of the continuous model rises less after its best value",
             "[OTT] Figure 6", rise("baseline"), rise("continuous"))
        )  # fmt: skip
    verdicts = []
    for statement, source, high, low in claims:
        text, verdict = networks.compared(high, low)
        verdicts.append(study.Finding(statement, source, f"difference {text}", verdict))
    return verdicts


def figures(results: Results) -> dict[str, Any]:
    """Learning curves, and the loss with characters replaced."""
    from wflow.plots.networks import Line, learning_curves, lines

    drawn = [
        Line(name, REPLACED, [record["replaced"] for record in runs])
        for name, runs in results.records.items()
    ]
    curves = {"data": "training loss", "test_loss": "test loss"}
    return {
        "learning_curves": learning_curves(results.histories, curves),
        "robustness": lines({"Characters replaced": ("Share replaced", drawn)}, "Test loss"),
    }


def main() -> int:
    flags = study.command_line(ShakespeareGpt, __doc__)
    if flags.ablation != "none" and flags.out == DEFAULT_OUT:
        flags = replace(flags, out=DEFAULT_OUT.with_name(f"{DEFAULT_OUT.name}_{flags.ablation}"))
    setup = networks.with_flags(PRESETS[flags.preset], flags)
    listed = models(setup, flags.ablation)
    names = networks.chosen(listed, setup.seeds, flags)
    with study.session("shakespeare_gpt", flags) as session:
        text = (
            nets.data.embedded_text()
            if setup.text == "embedded"
            else nets.data.shakespeare(tokens="characters", folder=flags.data)
        )
        results = networks.train_all(
            session,
            flags,
            names,
            setup.seeds,
            lambda name, seed: plan(listed[name], setup, text, flags, seed),
            lambda name, seed, training: examine(training, setup, text, seed),
        )
        pieces = [f"## {name}\n{runs[0]['sample']}\n" for name, runs in results.records.items()]
        as_published = networks.is_preset(setup, flags, PRESETS) and flags.ablation == "none"
        session.finish(
            table=tabulated(results),
            text=report(flags, setup, text, listed, results),
            findings=findings(results) if as_published and len(names) == len(listed) else [],
            figures=figures(results),
            texts={"samples.txt": "\n".join(pieces)},
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
