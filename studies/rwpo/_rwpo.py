"""What the trainings of flows in the studies of [RWPO] share.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from wflow import InputError, nets

PRINTED = Path(__file__).parents[1] / "published" / "rwpo.json"
PUBLISHED: dict[str, Any] = json.loads(PRINTED.read_text(encoding="utf-8"))  # numbers of [RWPO]


def check_names(given: Sequence[str], known: Collection[str], flag: str) -> None:
    """Refuse a flag that names none, an unknown one, or one of them twice."""
    if not given or not set(given) <= set(known) or len(set(given)) < len(given):
        raise InputError(f"{flag} is {' '.join(given)}: expected some of {', '.join(known)}, each "
                         "once")  # fmt: skip


def check_rates(rates: tuple[float, float]) -> None:
    """Refuse learning rates that rise."""
    if rates[1] > rates[0]:
        raise InputError(f"--rates is {rates[0]:g} {rates[1]:g}: expected the largest rate first")


def make_flow(phi: Any, steps: int, options: Mapping[str, Any] | None) -> Any:
    """A flow along a potential: OT-Flow for None, or one with a sparse transformer.

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
    """Rows of a batch: an independent context comes with it, before the rows of the loss."""
    independent = getattr(model, "context", "") == "independent"
    return batch + (model.tokens if independent else 0)


def config(flags: Any, model: Any, iterations: int, seed: int, **given: Any) -> Any:
    """A training with falling rates, measured `flags.evaluations` times."""
    every = max(1, iterations // flags.evaluations)
    return nets.train.TrainConfig(
        steps=iterations,
        batch=rows_of(model, flags.batch),
        schedule=nets.train.Cosine(flags.rates[0], flags.rates[1], 0, iterations),
        evaluate_every=every,
        checkpoint_every=2 * every,
        seed=seed,
        device=flags.device,
        precision=flags.precision,
        compile=flags.compile,
        **given,
    )
