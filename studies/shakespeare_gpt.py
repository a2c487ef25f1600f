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
    PRESETS,
    PUBLISHED_STEPS,
    REPLACED,
    STEPS,
    Model,
    Setup,
    examine,
    overfits,
    plan,
    report,
)
from _texts import SCALARS, TextFlags

from wflow import nets, study
from wflow.cli import guarded
from wflow.study import networks
from wflow.study.networks import Results

DEFAULT_OUT = Path("results/shakespeare_gpt")
LITTLE = 0.1  # of a gain


@dataclass(frozen=True, kw_only=True)
class ShakespeareGpt(TextFlags):
    """Flags of this study."""

    ablation: Literal["none", "lam", "steps"] = "none"
    """Compare weights lam of the transport cost, or numbers of steps, in place of the models; by
    default in a separate folder, results/shakespeare_gpt_lam or _steps."""
    out: study.Folder = DEFAULT_OUT
    """Folder for checkpoints, metrics, summary, samples and figures."""


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
        chosen[1:] = [Model(f"lam={value:g}", "continuous", value, steps) for value in LAMS]
    elif ablation == "steps":
        chosen[1:] = [Model(f"steps={value}", "continuous", lam, value) for value in STEPS]
    return {model.name: model for model in chosen}


def tabulated(results: Results) -> Any:
    """All numbers as a Dataset."""
    return networks.dataset(
        results,
        SCALARS,
        {"replaced": ("loss_replaced", "rate", "test loss with characters replaced at random")},
        {"rate": (REPLACED, "share of characters replaced")},
    )


def ablated(results: Results, ablation: str) -> list[study.Finding]:
    """Claims of [OTT] Appendix C and Table 5, with their verdicts."""
    final = {
        name: np.array([record["final"] for record in runs])
        for name, runs in results.records.items()
    }
    baseline = final.pop("baseline")
    means = {name: float(values.mean()) for name, values in final.items()}
    found = {name: networks.compared(baseline, values) for name, values in final.items()}
    what = "weight of the cost" if ablation == "lam" else "number of steps"
    verdicts = [
        study.Finding(
            f"with every {what} the continuous model ends with a lower test loss than the baseline",
            "[OTT] Table 5", "; ".join(f"{name}: {text}" for name, (text, _) in found.items()),
            networks.joint([verdict for _, verdict in found.values()]),
        )
    ]  # fmt: skip
    if ablation == "lam":
        best = "lam=1"
        pairs = {
            name: networks.compared(values, final[best])
            for name, values in final.items()
            if name != best
        }
        return [*verdicts, study.Finding(
            "the test loss is least at lam = 1", "[OTT] Table 5",
            "; ".join(f"{name}: {text}" for name, (text, _) in pairs.items()),
            networks.joint([verdict for _, verdict in pairs.values()]),
        )]  # fmt: skip
    change = max(means.values()) - min(means.values())
    gain = float(baseline.mean()) - float(np.mean(list(means.values())))
    return [*verdicts, study.Finding.decided(
        f"the number of steps matters little: the test loss changes by less than {100 * LITTLE:g} "
        "% of what the continuous model gains", "[OTT] Appendix C",
        f"{change:.3f} of {gain:.3f}", change < LITTLE * gain,
    )]  # fmt: skip


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


def figures(results: Results, ablation: str) -> dict[str, Any]:
    """Learning curves, the loss with characters replaced, and the losses of an ablation."""
    from wflow.plots.networks import Line, learning_curves, lines

    drawn = [
        Line(name, REPLACED, [record["replaced"] for record in runs])
        for name, runs in results.records.items()
    ]
    curves = {"data": "training loss", "test_loss": "test loss"}
    made = {
        "learning_curves": learning_curves(results.histories, curves),
        "robustness": lines({"Characters replaced": ("Share replaced", drawn)}, "Test loss"),
    }
    settings = [name for name in results.records if "=" in name]
    if len(settings) > 1:
        x = [float(name.partition("=")[2]) for name in settings]
        of = {"final": "last", "best": "least"}
        panel = [
            Line(
                label,
                x,
                np.transpose([[r[key] for r in results.records[n]] for n in settings]).tolist(),
            )
            for key, label in of.items()
        ]
        axis = "weight lam" if ablation == "lam" else "steps"
        made["ablation"] = lines({"Continuous model": (axis, panel)}, "Test loss")
    return made


def main() -> int:
    flags = study.command_line(ShakespeareGpt, __doc__)
    if flags.ablation != "none" and flags.out == DEFAULT_OUT:
        flags = replace(flags, out=DEFAULT_OUT.with_name(f"{DEFAULT_OUT.name}_{flags.ablation}"))
    asked = PRESETS[flags.preset]
    if flags.published and flags.preset == "paper":
        asked = replace(asked, steps=PUBLISHED_STEPS)
    setup = networks.with_flags(asked, flags)
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
            lambda name, seed, trained: examine(name, trained, setup, text, flags, seed),
        )
        pieces = [f"## {name}\n{runs[0]['sample']}\n" for name, runs in results.records.items()]
        found = []
        if networks.is_preset(setup, flags, PRESETS) and len(names) == len(listed):
            none = flags.ablation == "none"
            found = findings(results) if none else ablated(results, flags.ablation)
        session.finish(
            table=tabulated(results),
            text=report(flags, setup, text, listed, results),
            findings=found,
            figures=figures(results, flags.ablation),
            texts={"samples.txt": "\n".join(pieces)},
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
