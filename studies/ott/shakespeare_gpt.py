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

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import _ott as ott
import numpy as np
from _ott import claim, less, more

from wflow import nets, study
from wflow.cli import script
from wflow.study import networks, texts
from wflow.study.frame import Verdict
from wflow.study.networks import Record, Results, Run, Trained

DEFAULT_OUT = Path("results/shakespeare_gpt")
REPLACED = (0.0, 0.005, 0.01, 0.05, 0.1)  # share of the characters
LAMS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
STEPS = (1, 5, 10, 15, 20)
LITTLE = 0.1  # of a gain


@dataclass(frozen=True, kw_only=True)
class ShakespeareGpt(texts.TextFlags):
    """Flags of this study."""

    indifferent: ClassVar[frozenset[str]] = texts.TextFlags.indifferent | {"ablation"}
    durations: ClassVar = {
        "smoke": "seconds",
        "cpu": "minutes a model on two cores",
        "paper": "24 hours of a GPU",
    }
    presets: ClassVar = {
        "paper": {
            "iterations": 5000, "crops": 256, "context": 256, "dropout": 0.2, "rate": 1e-3,
            "evaluate_every": 250, "sample": 500,
        },
        # 5,019 characters, few enough to overfit, as the whole text is in the published run; a
        # network four times narrower learns with four times the rate.
        "cpu": {
            "seeds": 2, "iterations": 1000, "crops": 16, "parts": 1, "context": 64,
            "size_baseline": (4, 4, 96), "size": (3, 4, 80), "steps": 5, "dropout": 0.2,
            "rate": 4e-3, "evaluate_every": 125, "share": 0.005, "beginning": 32,
            "continuation": 32, "sample": 500,
        },
        "smoke": {
            "text": "embedded", "seeds": 1, "iterations": 6, "crops": 8, "parts": 2, "context": 16,
            "size_baseline": (2, 2, 16), "size": (1, 2, 12), "steps": 2, "rate": 1e-3,
            "evaluate_every": 3, "passages": 4, "beginning": 8, "continuation": 8, "sample": 60,
        },
    }  # fmt: skip
    preset_variants: ClassVar = {
        ("paper", "published", True): {"steps": 5},  # of the README of the published code
    }
    text: Literal["characters", "embedded"] = "characters"
    """The works of Shakespeare, or the sonnets that ship with the package; in characters."""
    size_baseline: tuple[study.Count, study.Count, study.Count] = (6, 6, 384)
    """Blocks, heads and width of the baseline."""
    size: tuple[study.Count, study.Count, study.Count] = (5, 5, 320)
    """Those of the continuous models."""
    ablation: Literal["none", "lam", "steps"] = "none"
    """Compare weights lam of the transport cost, or numbers of steps, in place of the models; by
    default in a separate folder, results/shakespeare_gpt_lam or _steps."""
    out: study.Folder = DEFAULT_OUT


class Model(NamedTuple):
    """One model of the comparison."""

    kind: ott.Kind
    lam: float
    steps: int


def models(flags: ShakespeareGpt) -> dict[str, Model]:
    """Return the models of a comparison by name."""
    lam, steps = flags.lam, flags.steps
    baseline = {"baseline": Model("baseline", 0.0, 1)}
    if flags.ablation == "lam":
        return baseline | {f"lam={each:g}": Model("continuous", each, steps) for each in LAMS}
    if flags.ablation == "steps":
        return baseline | {f"steps={each}": Model("continuous", lam, each) for each in STEPS}
    return baseline | {
        "unregularised": Model("continuous", 0.0, steps),
        "node": Model("node", 0.0, steps),
        "node with cost": Model("node", lam, steps),
        "continuous": Model("continuous", lam, steps),
    }


# Text and trainings
# ------------------


def load(flags: ShakespeareGpt) -> nets.data.Text:
    """Return the text in characters."""
    if flags.text == "embedded":
        return nets.data.embedded_text()
    return nets.data.shakespeare(tokens="characters", folder=flags.data)


def network(flags: ShakespeareGpt, model: Model, vocabulary: int, seed: int) -> nets.GPT:
    """Return a network with weights drawn from its seed."""
    import torch

    torch.manual_seed(seed)
    depth, heads, width = flags.size_baseline if model.kind == "baseline" else flags.size
    net = nets.GPT(
        vocabulary=vocabulary,
        context=flags.context,
        depth=depth,
        heads=heads,
        width=width,
        dropout=flags.dropout,
        norm=model.kind == "baseline",  # the published continuous models have no layer norms
        skip=model.kind != "node",  # [OTT] after eq. 13
    )
    net.body = ott.in_continuous_time(net.body, model.kind, model.steps)
    return net


def plan(flags: ShakespeareGpt, text: nets.data.Text, model: Model, seed: int) -> Run:
    """Return the training run of one model with one seed."""
    net = network(flags, model, text.vocabulary, seed)
    warm_up = min(100, flags.iterations // 2)
    return texts.training(flags, net, text, seed, lam=model.lam, warm_up=warm_up, betas=(0.9, 0.99))


# What was learnt
# ---------------


def measure(
    flags: ShakespeareGpt, text: nets.data.Text, model: Model, trained: Trained, seed: int
) -> Record:
    """Return all quantities of a trained network, and its loss with random characters."""

    def loss_with(rate: float) -> float:
        tokens = nets.data.replace_tokens(text.test, rate, text.vocabulary, seed)
        return texts.loss_on(trained.model, tokens, flags.context, trained.device)

    record = texts.measured(flags, text, trained, seed)
    if not trained.diverged:
        record["replaced"] = [loss_with(rate) for rate in REPLACED]
    return record


def findings(flags: ShakespeareGpt, text: nets.data.Text, results: Results) -> list[study.Finding]:
    """Return claims of the paper, with their verdicts."""
    none = flags.ablation == "none"
    found = compared(results) if none else ablated(results, flags.ablation)
    return ott.with_published_conventions(found, flags)


def compared(results: Results) -> list[study.Finding]:
    """Return claims on the models, with their verdicts."""

    def gentler(name: str, level: int) -> np.ndarray:
        return results.values(name, "replaced", 0) - results.values(name, "replaced", level)

    def gain(with_cost: str, without: str) -> np.ndarray:
        return results.values(without, "final") - results.values(with_cost, "final")

    table, robust = "[OTT] Table 10", "[OTT] Table 3"
    levels = range(1, len(REPLACED))
    labels = [f"{100 * rate:g} %" for rate in REPLACED[1:]]
    made = partial(claim, unit="")
    verdicts = [
        made("the continuous model with transport cost ends with a lower test loss than the larger "
             "baseline", table, less(results, "final")),
        made("the best test loss of the continuous model with transport cost is lower than that of "
             "the larger baseline", table, less(results, "best")),
        made("the perplexity of the continuous model with transport cost, the mean over windows, "
             "is lower than that of the larger baseline", table,
             less(results, "perplexity_windows")),
        made("the transport cost lowers the test loss of the continuous model", "[OTT] Table 5",
             less(results, "final", "unregularised")),
        made("the transport cost lowers the test loss of the continuous model more than that of "
             "the N-ODE transformer", "[OTT] Appendix I, of sentiments and cats and dogs",
             (gain("continuous", "unregularised"), gain("node with cost", "node"))),
        made("with characters replaced the test loss of the continuous model rises less than that "
             "of the baseline, for every share", robust,
             *((gentler("continuous", k), gentler("baseline", k)) for k in levels), labels=labels),
        made("the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
             less(results, "straightness", "unregularised")),
    ]  # fmt: skip
    if texts.overfits(results):
        verdicts.append(
            made("after its best value the test loss of the continuous model rises less than that "
                 "of the baseline", "[OTT] Figure 6",
                 (-texts.rise(results, "continuous"), -texts.rise(results, "baseline")))
        )  # fmt: skip
    scores = more(results, "forced_bertscore")
    if np.isfinite(scores).any():  # else there was no encoder
        verdicts.append(
            made("the continuous model has a higher BERT-F1 of next tokens than the baseline",
                 table, scores)
        )  # fmt: skip
    return verdicts


def ablated(results: Results, ablation: str) -> list[study.Finding]:
    """Return claims of [OTT] Appendix C and Table 5, with their verdicts."""
    final = {name: results.values(name, "final") for name in results.records}
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
        change, text = (
            high.mean() - low.mean(),
            f"{text}, standard deviation {noise:.2g} over seeds",
        )
        if change + noise < LITTLE * gain:
            verdict = "confirmed"
        elif change - noise < LITTLE * gain:
            verdict = "inconclusive"
    return [better, study.Finding(
        "the number of steps matters little: the test loss changes by less than "
        f"{100 * LITTLE:g} % of what the continuous model gains", "[OTT] Appendix C", text, verdict,
    )]  # fmt: skip


# Tables and figures
# ------------------


def report(flags: ShakespeareGpt, text: nets.data.Text, results: Results) -> str:
    """Return the tables, beside the published ones."""
    names, listed, published = list(results.records), models(flags), ott.PUBLISHED["Table 10"]
    final = published["final"] | ott.PUBLISHED["Table 5"]["lam"] | ott.PUBLISHED["Table 5"]["steps"]
    column = partial(networks.column, results)
    sizes = [network(flags, listed[name], text.vocabulary, 0).count() for name in names]
    main_table = {
        "model": names,
        "parameters": [f"{size / 1e6:.3g}M" for size in sizes],
        "final test loss": column("final", ".3f"),
        "published final": ott.beside(results, final),
        "difference": networks.differences(results, "final", networks.means(final), "+.2f"),
        "best": column("best", ".3f"),
        "published best": ott.beside(results, published["best"]),
        "perplexity": column("perplexity", ".2f"),
        "mean over windows": column("perplexity_windows", ".2f"),
        "published perplexity": ott.beside(results, published["perplexity"]),
        "training loss": column("training", ".3f"),
        **ott.motions(results),
        "ms per iteration": column("milliseconds", ".0f"),
    }
    if "; " not in results.devices and "baseline" in names:  # times of one machine
        times = {name: results.values(name, "milliseconds").mean() for name in names}
        main_table["times baseline"] = [f"{times[name] / times['baseline']:.2f}" for name in names]
    replaced, scores = ott.PUBLISHED["Table 3, characters"]["loss"], published["scores"]
    lead = (
        f"{networks.caption(flags, flags.seeds, results, texts.used(flags, text))} Sizes are "
        "blocks x heads x width; continuous models have no layer norms, T = 1, Euler steps, and "
        "lam weighs the cost without the 1/2, which the column has. The rate falls to a tenth of "
        f"it{'; gradients are summed over the parts of a batch' if flags.published else ''}. "
        "Perplexity is the exponential of the final test loss; the mean over windows is that of "
        f"the published code. Hidden states are those of {texts.WINDOWS} windows of the test text."
    )
    if flags.text == "characters":
        lead += (
            " A published iteration of the continuous model took 2.7 times that of the baseline "
            "(A100). Its perplexities are means over windows; Table 11 of [OTT] has 14.59 and "
            "4.22, the exponentials of its losses."
        )
    else:  # another text has no published values
        main_table, replaced, scores = networks.unpublished(main_table), {}, {}
    if {"baseline", "continuous"} <= set(names) and not texts.overfits(results):
        lead += (
            " The baseline does not overfit here: its test loss is lowest at the end. The "
            "published gain is one of avoided overfitting, which this set-up cannot show."
        )
    return "\n\n".join((
        lead,
        study.markdown_table(main_table),
        "Test loss with characters of the test text replaced at random, inputs and targets:",
        ott.by_level(results, "replaced", "replaced", REPLACED, replaced, ".3f", unit=""),
        texts.scored(flags, results, scores),
    ))  # fmt: skip


def figures(flags: ShakespeareGpt, results: Results) -> dict[str, study.Figure]:
    """Draw learning curves, the loss with characters replaced, and the losses of an ablation."""
    from wflow.plots.networks import Line, lines

    replaced = {
        "Characters replaced": ("Share replaced", ott.at_levels(results, "replaced", REPLACED))
    }
    made = ott.learning_curves(results, "test_loss") | {"robustness": lines(replaced, "Test loss")}
    settings = [name for name in results.records if "=" in name]
    if len(settings) > 1:
        x = [float(name.partition("=")[2]) for name in settings]
        panel = [
            Line(label, x, np.transpose([results.values(n, key) for n in settings]).tolist())
            for key, label in (("final", "last"), ("best", "least"))
        ]
        axis = "weight lam" if flags.ablation == "lam" else "steps"
        made["ablation"] = lines({"Continuous model": (axis, panel)}, "Test loss")
    return made


EXPERIMENT = networks.Experiment(
    name="shakespeare_gpt", models=models, load=load, plan=plan, measure=measure,
    numbers=texts.SCALARS,
    along={"replaced": ("loss_replaced", "rate", "test loss with characters replaced at random")},
    coords=lambda _: {"rate": (REPLACED, "share of characters replaced")}, text=report,
    findings=findings, figures=figures, texts=lambda _, results: texts.samples(results),
)  # fmt: skip


def main() -> None:
    flags = study.command_line(ShakespeareGpt, __doc__)
    if flags.ablation != "none" and flags.out == DEFAULT_OUT:
        flags = replace(flags, out=DEFAULT_OUT.with_name(f"{DEFAULT_OUT.name}_{flags.ablation}"))
    networks.run(EXPERIMENT, flags)


if __name__ == "__main__":
    script(main)
