"""Characters of Shakespeare with a GPT: discrete, continuous in time, and with its transport cost.

A causal transformer learns the next character. The baseline applies its blocks once; the continuous
models let fewer and narrower blocks be the velocity of the hidden states: all of them one system,
or one system per block (`node`, the N-ODE transformer). Test loss and perplexity on the last tenth
of the text, with characters replaced at random too, and samples: [OTT] section 5.4, Tables 3, 4, 5
and 10.

The published runs weigh the mean square of the velocity without the factor 1/2 of [OTT1] eq. 8:
`--lam` is theirs, twice that of `ContinuousTransformer(cost="mean")`.

    python studies/ott/shakespeare_gpt.py --preset cpu
    python studies/ott/shakespeare_gpt.py --preset paper --ablation lam

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, arXiv 2505.13499.
"""

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from _ott import claim, with_habits
from _shakespeare_gpt import (
    LAMS,
    PRESETS,
    PUBLISHED_STEPS,
    REPLACED,
    STEPS,
    Model,
    Setup,
    examine,
    load,
    plan,
    report,
)

from wflow import study
from wflow.cli import guarded
from wflow.study import networks
from wflow.study.frame import Verdict
from wflow.study.networks import Results
from wflow.study.texts import SCALARS, TextFlags, overfits, samples

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
    what = "weight of the cost" if ablation == "lam" else "number of steps"
    better = claim(
        f"with every {what} the continuous model ends with a lower test loss than the baseline",
        "[OTT] Table 5", *((-values, -baseline) for values in final.values()), unit="",
        labels=list(final),
    )  # fmt: skip
    if ablation == "lam":
        others = {name: values for name, values in final.items() if name != "lam=1"}
        least = claim(
            "the test loss is least at lam = 1", "[OTT] Table 5",
            *((-final["lam=1"], -values) for values in others.values()), unit="",
            labels=list(others),
        )  # fmt: skip
        return [better, least]
    means = np.array([values.mean() for values in final.values()])
    low, *_, high = sorted(final.values(), key=np.mean)
    gain = baseline.mean() - means.mean()
    text = f"{means.max() - means.min():.3f} of {gain:.3f}"
    verdict: Verdict = "not confirmed"
    if not np.isfinite([*means, gain]).all():
        text = "a model diverged"
    elif min(len(low), len(high), len(baseline)) == 1:
        text, verdict = f"{text}, one seed, spread unknown", "inconclusive"
    else:
        noise = float(np.hypot(low.std(ddof=1), high.std(ddof=1)))
        change, text = high.mean() - low.mean(), f"{text}, spread over seeds {noise:.2g}"
        if change + noise < LITTLE * gain:
            verdict = "confirmed"
        elif change - noise < LITTLE * gain:
            verdict = "inconclusive"
    return [better, study.Finding(
        "the number of steps matters little: the test loss changes by less than "
        f"{100 * LITTLE:g} % of what the continuous model gains", "[OTT] Appendix C", text, verdict,
    )]  # fmt: skip


def findings(results: Results) -> list[study.Finding]:
    """Claims of the paper, with their verdicts."""

    def values(name: str, key: str) -> np.ndarray:
        return np.array([record[key] for record in results.records[name]])

    def less(key: str, than: str = "baseline") -> tuple[np.ndarray, np.ndarray]:
        return -values("continuous", key), -values(than, key)

    def rise(name: str) -> np.ndarray:
        return values(name, "final") - values(name, "best")

    def loss(name: str, level: int) -> np.ndarray:
        replaced = values(name, "replaced")
        return replaced[:, level] - replaced[:, 0]

    def gain(with_cost: str, without: str) -> np.ndarray:
        return values(without, "final") - values(with_cost, "final")

    table, robust = "[OTT] Table 10", "[OTT] Table 3"
    levels = range(1, len(REPLACED))
    labels = [f"{100 * rate:g} %" for rate in REPLACED[1:]]
    made = partial(claim, unit="")
    verdicts = [
        made("the continuous model with transport cost ends with a lower test loss than the larger "
             "baseline", table, less("final")),
        made("its best test loss is lower, too", table, less("best")),
        made("its perplexity, the mean over windows, is lower", table, less("perplexity_windows")),
        made("the transport cost lowers the test loss of the continuous model", "[OTT] Table 5",
             less("final", "unregularised")),
        made("it lowers it more than that of the N-ODE transformer",
             "[OTT] Appendix I, of sentiments and cats and dogs",
             (gain("continuous", "unregularised"), gain("node with cost", "node"))),
        made("with characters replaced the test loss of the continuous model rises less, for every "
             "share", robust,
             *((-loss("continuous", k), -loss("baseline", k)) for k in levels), labels=labels),
        made("the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
             less("straightness", "unregularised")),
    ]  # fmt: skip
    if overfits(results):
        verdicts.append(
            made("the test loss of the continuous model rises less after its best value",
                 "[OTT] Figure 6", (-rise("continuous"), -rise("baseline")))
        )  # fmt: skip
    scores = values("continuous", "forced_bertscore"), values("baseline", "forced_bertscore")
    if np.isfinite(scores).any():  # else there was no encoder
        verdicts.append(
            made("the continuous model has the higher BERT-F1 of next tokens", table, scores)
        )
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
    asked = replace(PRESETS[flags.preset], published=flags.published)
    if flags.published and flags.preset == "paper":
        asked = replace(asked, steps=PUBLISHED_STEPS)
    setup = networks.with_flags(asked, flags)
    listed = models(setup, flags.ablation)
    names = networks.chosen(listed, setup.seeds, flags)
    with study.session("shakespeare_gpt", flags) as session:
        text = networks.on_rank_zero(flags, lambda: load(setup, flags))
        results = networks.train_all(
            session,
            flags,
            names,
            setup.seeds,
            lambda name, seed: plan(listed[name], setup, text, flags, seed),
            lambda name, seed, trained: examine(name, trained, setup, text, flags, seed),
        )
        found = []
        whole = networks.is_preset(setup, flags, {flags.preset: asked})
        if whole and len(names) == len(listed):
            none = flags.ablation == "none"
            found = findings(results) if none else ablated(results, flags.ablation)
        session.finish(
            table=tabulated(results),
            text=report(flags, setup, text, listed, results),
            findings=with_habits(found, flags),
            figures=figures(results, flags.ablation),
            texts={"samples.txt": samples(results)},
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
