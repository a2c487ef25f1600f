"""What the studies of [OTT] share: accuracies, and how hidden states move.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from wflow import nets
from wflow.study import networks
from wflow.study.networks import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

MOTION = ("straightness", "speed_variation", "transport")


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def classified(
    model: torch.nn.Module, batches: Iterable[tuple[torch.Tensor, ...]], device: torch.device
) -> dict[str, float]:
    """Share of right answers and mean cross-entropy over batches (inputs..., labels)."""
    import torch

    rows, right, loss = 0, 0, 0.0
    for logits, labels in networks.outputs(model, batches, device):
        rows += len(labels)
        right += int((logits.argmax(1) == labels).sum())
        loss += float(torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum"))
    return {"accuracy": right / rows, "test_loss": loss / rows}


def steepest(history: Any) -> float:
    """Largest norm of a gradient in a training that is finite; NaN where none is."""
    norms = history["gradient_norm"].values
    finite = norms[np.isfinite(norms)]
    return float(finite.max()) if finite.size else math.nan


def motion(body: torch.nn.Module, hidden: torch.Tensor, **context: Any) -> Record:
    """How straight hidden states move through a body, and at which cost; NaN for discrete ones."""
    import torch

    if not isinstance(body, nets.ContinuousTransformer | nets.NodeTransformer):
        return dict.fromkeys(MOTION, math.nan)
    with torch.no_grad():
        path = body.trajectory(hidden.detach(), **context)
    valid = context.get("valid")
    return {
        "straightness": float(nets.diagnostics.straightness(path, valid=valid).mean()),
        "speed_variation": float(nets.diagnostics.speed_variation(path, valid=valid).mean()),
        "transport": float(path.costs.sum()),
    }
