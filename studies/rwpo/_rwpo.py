"""What the trainings of flows in the studies of [RWPO] share.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tyro

from wflow import InputError, nets, study
from wflow.plots.figure import PAGE, grid, style
from wflow.plots.networks import draw_histories
from wflow.study import networks

MOST_APART = 16  # steps


def too_far(options: Mapping[str, Any] | None, steps: int) -> bool:
    """Return whether a flow has more than 16 layers of contexts apart from their queries.

    Every layer doubles the distance of a sample outside of the context: a flow of 48 steps begins
    at norms of 1e12. Tokens that attend to themselves, too, stay in place there.
    """
    return (
        options is not None
        and steps > MOST_APART
        and options.get("convention") != "published"
        and not options.get("itself")
        and options.get("attended") is None
    )


def check_near(options: Mapping[str, Mapping[str, Any] | None], steps: int, flag: str) -> None:
    """Refuse flows that `too_far` names, before anything is trained."""
    far = [name for name, given in options.items() if too_far(given, steps)]
    if far:
        raise InputError(
            f"{flag} {', '.join(far)} with --steps {steps}: a layer in each of more than "
            f"{MOST_APART} steps sends samples outside of its context to infinity; leave them out, "
            "or take models whose tokens attend to themselves"
        )


def check_names(given: Sequence[str], known: Collection[str], flag: str) -> None:
    """Refuse a flag that names none, an unknown one, or one of them twice."""
    if not given or not set(given) <= set(known) or len(set(given)) < len(given):
        raise InputError(f"{flag} is {' '.join(given)}: expected some of {', '.join(known)}, each "
                         "once")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SinglePrecision(networks.NetFlags):
    """Flags of studies whose determinants and inverses need single precision, uncompiled."""

    precision: tyro.conf.Suppress[Literal["float32"]] = "float32"
    compile: tyro.conf.Suppress[study.Switch] = False


@dataclass(frozen=True, kw_only=True)
class FlowFlags(SinglePrecision):
    """Flags of the studies that train flows of one size."""

    seeds: study.Count = 5
    """Number of training runs of each flow, with seeds 0, 1, ..."""
    steps: networks.Steps = 48
    """Steps n_t of the flows."""
    width: study.Count = 48
    """Width of the potential."""
    iterations: study.Count = 6001
    """Training iterations of each flow."""
    batch: study.Count = 4096
    """Points of a batch."""
    rates: tuple[study.Positive, study.Positive] = (1e-2, 1e-6)
    """Learning rates at the beginning and at the end."""
    alpha: tuple[study.Nonnegative, study.Nonnegative, study.Nonnegative] = (1.0, 0.01, 0.1)
    """Weights of likelihood, transport and HJB penalty."""
    evaluations: study.Count = 20
    """Evaluations in a training."""

    def check(self) -> None:
        super().check()
        first, last = self.rates
        if last > first:
            raise InputError(f"--rates is {first:g} {last:g}: expected the largest rate first")


def make_flow(phi: Any, steps: int, options: Mapping[str, Any] | None) -> Any:
    """Return a flow along a potential: OT-Flow for None, or one with a sparse transformer.

    Negative numbers in `attended` count from the step at the data.
    """
    from wflow.nets import generative

    if options is None:
        return generative.OTFlow(phi, steps=steps)
    given = dict(options)
    if given.get("attended") is not None:
        given["attended"] = tuple(k % (steps + 1) for k in given["attended"])
    return generative.SparseTransformerFlow(phi, steps=steps, **given)


def rows_of(model: Any, batch: int) -> int:
    """Return rows of a batch: an independent context comes with it, before the rows of the loss."""
    independent = getattr(model, "context", "") == "independent"
    return batch + (model.tokens if independent else 0)


def config(flags: FlowFlags, model: Any, iterations: int, seed: int, **given: Any) -> Any:
    """Return a training with falling rates, measured `flags.evaluations` times."""
    every = max(1, iterations // flags.evaluations)
    return nets.train.TrainConfig(
        steps=iterations,
        batch=rows_of(model, flags.batch),
        schedule=nets.train.Cosine(flags.rates[0], flags.rates[1], 0, iterations),
        evaluate_every=every,
        checkpoint_every=2 * every,
        seed=seed,
        device=flags.device,
        **given,
    )


def plain_ticks(axis: Any, ticks: Any, labels: Sequence[str] | None = None) -> None:
    """Label ticks of a logarithmic axis of Matplotlib, an `XAxis` or `YAxis`, as plain numbers."""
    axis.set_ticks(ticks, labels or [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


@style()
def learning_curves(
    panels: Mapping[str, Mapping[str, Sequence[study.Dataset]]],
    key: str,
    label: str,
    colours: Mapping[str, str],
    *,
    log: bool = False,
) -> study.Figure:
    """Draw one quantity over the training, a panel for each title: mean and range over seeds."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = grid(rows, columns, PAGE, 0.5 + 2.2 * rows)
    lines: dict[str, Any] = {}
    for axis, (title, histories) in zip(axes.flat, panels.items(), strict=False):
        draw_histories(axis, histories, key, colours, log=log)
        axis.set(title=title, xlabel="Iteration")
        lines |= {str(line.get_label()): line for line in axis.lines}
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel(label)
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4)
    return figure
