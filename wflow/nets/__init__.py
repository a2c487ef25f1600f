"""Networks: continuous-time transformers with optimal-transport regularisation, in torch.

    vit = nets.ViT(width=64)
    vit.body = nets.ContinuousTransformer(vit.body, t_final=1.0, steps=20)
    logits, cost = vit(images)
    loss = functional.cross_entropy(logits, labels) + lam * cost

`blocks` has the parts of transformers, `continuous` the dynamical systems made of them, `movement`
attention as a minimizing movement, `models` whole networks, `registry` their configurations,
`pretrained` their folders; `training`, `data` and `diagnostics` serve them; `control` reads them as
control problems; `generative` has flows between densities, `convex` is a test problem with a known
solution, `particles` turns trained heads into a head law; `metrics` scores texts. Only `study`
imports this package. Start with `continuous`.
Names are loaded when they are first used, as those of `wflow` are; they need torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from wflow._core.extras import install

_HOMES = {
    "ContinuousTransformer": "continuous",
    "NodeTransformer": "continuous",
    "MinimizingMovement": "movement",
    "Flow": "blocks",
    "Output": "blocks",
    "Trajectory": "continuous",
    "ViT": "models.vit",
    "GPT": "models.gpt",
    "Pretrained": "pretrained",
    "ControlledResNet": "models.controlled",
    "TextClassifier": "models.text",
    "SetTransformer": "models.set_transformer",
    "build": "registry",
    "config": "registry",
    "register": "registry",
}
_MODULES = {
    "blocks": "blocks",
    "control": "control",
    "convex": "convex",
    "data": "data",
    "diagnostics": "diagnostics",
    "generative": "generative",
    "metrics": "metrics",
    "particles": "particles",
    "train": "training.train",
}

__all__ = [*sorted(_HOMES), *_MODULES]

if TYPE_CHECKING:
    from wflow.nets import (
        blocks,
        control,
        convex,
        data,
        diagnostics,
        generative,
        metrics,
        particles,
    )
    from wflow.nets.blocks import Flow, Output
    from wflow.nets.continuous import ContinuousTransformer, NodeTransformer, Trajectory
    from wflow.nets.models.controlled import ControlledResNet
    from wflow.nets.models.gpt import GPT
    from wflow.nets.models.set_transformer import SetTransformer
    from wflow.nets.models.text import TextClassifier
    from wflow.nets.models.vit import ViT
    from wflow.nets.movement import MinimizingMovement
    from wflow.nets.pretrained import Pretrained
    from wflow.nets.registry import build, config, register
    from wflow.nets.training import train


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"wflow.nets.{(_HOMES | _MODULES)[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"wflow.nets.{name} needs torch: {install('nets')}", name="torch"
        ) from error
    value = getattr(module, name) if name in _HOMES else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
