"""The network path: continuous-time transformers with optimal-transport regularisation, in torch.

    vit = nets.ViT(width=64)
    vit.body = nets.ContinuousTransformer(vit.body, t_final=1.0, steps=20)
    logits, cost = vit(images)
    loss = functional.cross_entropy(logits, labels) + lam * cost

Names are loaded when they are first used, as those of `wflow` are; they need torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "ContinuousTransformer": "continuous",
    "NodeTransformer": "continuous",
    "Flow": "continuous",
    "Output": "continuous",
    "Trajectory": "continuous",
    "ViT": "vit",
    "GPT": "gpt",
    "TextClassifier": "text",
    "SetTransformer": "set_transformer",
}
_MODULES = ("convex", "data", "diagnostics", "layers", "particles", "train")

__all__ = [*sorted(_HOMES), *_MODULES]

if TYPE_CHECKING:
    from wflow.nets import convex, data, diagnostics, layers, particles, train
    from wflow.nets.continuous import (
        ContinuousTransformer,
        Flow,
        NodeTransformer,
        Output,
        Trajectory,
    )
    from wflow.nets.gpt import GPT
    from wflow.nets.set_transformer import SetTransformer
    from wflow.nets.text import TextClassifier
    from wflow.nets.vit import ViT


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module 'wflow.nets' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"wflow.nets.{_HOMES.get(name, name)}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"wflow.nets.{name} needs torch: pip install 'wflow[nets]'", name="torch"
        ) from error
    value = getattr(module, name) if name in _HOMES else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
