"""What the studies of [OTT] share: models, trainings by epochs, accuracies, verdicts, tables.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from wflow import nets, study
from wflow.study import networks
from wflow.study.networks import Results, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch
    from torch import nn

    from wflow.plots.networks import Line

PRINTED = Path(__file__).parents[1] / "published" / "ott.json"
PUBLISHED: dict[str, Any] = json.loads(PRINTED.read_text(encoding="utf-8"))  # tables of [OTT]
Kind = Literal["baseline", "continuous", "node"]
Pair = tuple[np.ndarray, np.ndarray]  # numbers of two models, one for each seed


# Models and trainings
# --------------------


class Model(NamedTuple):
    """A model of a comparison, and the weight lam of its transport cost."""

    kind: Kind
    lam: float = 0.0


def in_continuous_time(body: nn.Module, kind: Kind, steps: int, **options: Any) -> nn.Module:
    """Return blocks as they are, as the velocity of one system, or as a system each (N-ODE)."""
    if kind == "baseline":
        return body
    form = nets.ContinuousTransformer if kind == "continuous" else nets.NodeTransformer
    return form(body, steps=steps, **options)  # type: ignore[arg-type]


def parameters(*blocks: nn.Module, biases: bool = True) -> int:
    """Count the parameters of blocks, with their layer norms; without biases if asked."""
    named = [each for block in blocks for each in block.named_parameters()]
    return sum(p.numel() for name, p in named if biases or not name.endswith("bias"))


def training(
    flags: Any,
    seed: int,
    net: nn.Module,
    objective: nets.train.Objective,
    source: Any,
    schedule: nets.train.Schedule,
    tests: Callable[[], Iterable[tuple[torch.Tensor, ...]]],
    *,
    checkpoints: int = 1,
) -> Run:
    """Return a training by Adam for the epochs of the flags, evaluated on `tests` after each.

    A checkpoint is written every `checkpoints` epochs.
    """
    epoch, processes = source.per_epoch, nets.train.process_group(flags.device)
    config = nets.train.TrainConfig(
        steps=flags.epochs * epoch, batch=flags.batch, schedule=schedule, evaluate_every=epoch,
        checkpoint_every=checkpoints * epoch, seed=seed, device=flags.device,
        precision=flags.precision, compile=flags.compile,
    )  # fmt: skip

    def evaluate(model: nn.Module) -> dict[str, float]:
        return networks.classified(model, tests(), processes.device, processes)

    return Run(net, objective, source, config, evaluate)


# What was learnt
# ---------------


def trained_texts(inputs: str) -> dict[str, tuple[str, str]]:
    """Return text and unit of the quantities of every classifier, of which on some inputs."""
    return {
        "final": ("test accuracy after the last epoch", "1"),
        "best": ("best test accuracy of any epoch", "1"),
        "straightness": (f"arc length over chord of hidden states, {inputs}", "1"),
        "speed_variation": ("standard deviation over mean of the speed, likewise", "1"),
        "transport": ("transport cost, likewise", "1"),
        "seconds": ("time of the training steps", "s"),
    }


def steepest(history: Any) -> float:
    """Return the largest norm of a gradient in a training that is finite; NaN where none is."""
    return largest(history["gradient_norm"].values)


def largest(values: Iterable[float]) -> float:
    """Return the largest finite number; NaN where none is finite."""
    return max((float(value) for value in values if math.isfinite(value)), default=math.nan)


# Verdicts
# --------


def more(
    results: Results, key: str, than: str = "baseline", place: Any = ..., model: str = "continuous"
) -> Pair:
    """Return a quantity of a model and of another, for a claim that the former has more of it."""
    return results.values(model, key, place), results.values(than, key, place)


def less(
    results: Results, key: str, than: str = "baseline", place: Any = ..., model: str = "continuous"
) -> Pair:
    """Return a quantity of a model and of another, for a claim that the former has less of it."""
    high, low = more(results, key, than, place, model)
    return -high, -low


def claim(
    statement: str,
    source: str,
    *pairs: Pair,
    unit: str = "points",
    labels: Sequence[str] = (),
) -> study.Finding:
    """Decide whether the first numbers of each pair exceed the second: see `networks.compared`."""
    texts, verdicts = zip(*(networks.compared(*pair, unit=unit) for pair in pairs), strict=True)
    if labels:
        texts = tuple(f"{label}: {text}" for label, text in zip(labels, texts, strict=True))
    return study.Finding(statement, source, "; ".join(texts), networks.joint(verdicts))


def no_better(
    statement: str, source: str, *pairs: Pair, labels: Sequence[str] = ()
) -> study.Finding:
    """Decide whether accuracies do not exceed others by more than their spread."""
    found = claim(statement, source, *pairs, labels=labels)
    opposite: dict[study.frame.Verdict, study.frame.Verdict]
    opposite = {"confirmed": "not confirmed", "not confirmed": "confirmed"}
    verdicts = []
    for better, worse in pairs:
        _, verdict = networks.compared(better, worse)
        known = min(np.size(better), np.size(worse)) > 1 and np.isfinite([*better, *worse]).all()  # type: ignore[misc]
        within: study.frame.Verdict = "confirmed" if known else "inconclusive"
        verdicts.append(opposite.get(verdict, within))
    return replace(found, verdict=networks.joint(verdicts))


def with_published_conventions(found: Sequence[study.Finding], flags: Any) -> list[study.Finding]:
    """Return verdicts that say whether the habits of the published code were followed."""
    if not flags.published:
        return list(found)
    words = "with the habits of the published code: "
    return [replace(finding, prediction=words + finding.prediction) for finding in found]


# Tables and figures
# ------------------


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def millions(count: int) -> str:
    return f"{count / 1e6:.2f}M" if count >= 5e4 else f"{count:,}"


def accuracies(
    results: Results, published: Mapping[str, Mapping[str, str]]
) -> dict[str, list[str]]:
    """Return columns of the test accuracies of the last and the best epoch, beside printed ones."""
    final, best = published["final"], published["best"]
    return {
        "test accuracy (%)": networks.column(results, "final", percent),
        "published (%)": beside(results, final),
        "difference": networks.differences(results, "final", networks.means(final), "+.1f", 100),
        "best epoch (%)": networks.column(results, "best", percent),
        "published best (%)": beside(results, best),
    }


def motions(results: Results) -> dict[str, list[str]]:
    """Return columns of how hidden states move."""
    styles = {
        "arc over chord": ("straightness", ".3f"),
        "speed variation": ("speed_variation", ".3f"),
        "transport cost": ("transport", ".3g"),
    }
    return {title: networks.column(results, *how) for title, how in styles.items()}


def beside(results: Results, printed: Mapping[str, str]) -> list[str]:
    """Return the column of what is printed of every model."""
    return [printed.get(name, "–") for name in results.records]


def by_level(
    results: Results,
    key: str,
    title: str,
    levels: Sequence[float],
    printed: Mapping[str, Sequence[Any]],
    style: str | Callable[[float], str] = percent,
    unit: str = " (%)",
) -> str:
    """Return the table of a quantity at every level of a perturbation, beside what is printed."""
    rows = [networks.column(results, key, style, k) for k in range(len(levels))]
    table = {title: [f"{level:g}" for level in levels]}
    for name, *cells in zip(results.records, *rows, strict=True):
        table[f"{name}{unit}"] = cells
        if name in printed:
            table[f"published, {name}"] = [f"{value}" for value in printed[name]]
    return study.markdown_table(table)


def at_levels(
    results: Results, key: str, levels: Sequence[float], names: Iterable[str] = ()
) -> list[Line]:
    """Return lines of a quantity against the level of a perturbation, of some models or all."""
    from wflow.plots.networks import Line

    chosen = names or results.records
    return [Line(name, levels, [r[key] for r in results.records[name]]) for name in chosen]


def learning_curves(
    results: Results, *shown: Literal["test_loss", "accuracy"]
) -> dict[str, study.Figure]:
    """Draw the figure of the training loss, and of what else of a training is to be shown."""
    from wflow.plots import networks as plots

    titles = {"data": "training loss", "test_loss": "test loss", "accuracy": "test accuracy"}
    curves = {key: titles[key] for key in ("data", *shown)}
    return {"learning_curves": plots.learning_curves(results.histories, curves)}
