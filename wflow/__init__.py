"""wflow: transformers as interacting particles, with every term of their energy accounted for.

`wflow.solve` simulates multi-head attention on the sphere; `wflow.open` reads what it wrote.
Names are loaded when they are first used: `import wflow` compiles and imports nothing heavy.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "solve": ("wflow.solver", "solve"),
    "rerun": ("wflow.solver", "rerun"),
    "open": ("wflow.runfile", "open_run"),
    "energy": ("wflow.attention", "energy"),
    "mobility": ("wflow.attention", "mobility"),
    "effective_mobility": ("wflow.attention", "effective_mobility"),
    "velocity": ("wflow.attention", "velocity"),
    "upper_gradient_sq": ("wflow.attention", "upper_gradient_sq"),
    "dissipation": ("wflow.attention", "dissipation"),
    "edi_defect": ("wflow.attention", "edi_defect"),
    "WflowError": ("wflow.errors", "WflowError"),
    "InputError": ("wflow.errors", "InputError"),
    "RunFileError": ("wflow.errors", "RunFileError"),
    "BlowUpError": ("wflow.errors", "BlowUpError"),
    "Interrupted": ("wflow.errors", "Interrupted"),
}
_MODULES = (
    "cluster",
    "clusters",
    "equilibria",
    "fits",
    "heads",
    "jko",
    "metric",
    "plots",
    "sphere",
    "stability",
    "stationary",
    "tokens",
    "transport",
)

__all__ = [*sorted(_HOMES), *_MODULES]

if TYPE_CHECKING:
    from wflow import (
        cluster,
        clusters,
        equilibria,
        fits,
        heads,
        jko,
        metric,
        plots,
        sphere,
        stability,
        stationary,
        tokens,
        transport,
    )
    from wflow.attention import (
        dissipation,
        edi_defect,
        effective_mobility,
        energy,
        mobility,
        upper_gradient_sq,
        velocity,
    )
    from wflow.errors import BlowUpError, InputError, Interrupted, RunFileError, WflowError
    from wflow.runfile import open_run as open
    from wflow.solver import rerun, solve


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"wflow.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'wflow' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
