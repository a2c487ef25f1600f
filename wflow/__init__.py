"""wflow: transformers as interacting particles, with every term of their energy accounted for.

`wflow.solve` simulates multi-head attention on the sphere; `wflow.open` reads what it wrote.
Names are loaded when they are first used: `import wflow` compiles and imports nothing heavy.
"""

import importlib
from typing import TYPE_CHECKING, Any

from wflow._core import forks as _forks  # notes whether threads had started before a fork
from wflow._version import __version__ as __version__

_HOMES = {
    "solve": ("wflow.particles.solver", "solve"),
    "sweep": ("wflow.distributed.sweep", "sweep"),
    "rerun": ("wflow.analysis.rerun", "rerun"),
    "gradient": ("wflow.gradients.adjoint", "gradient"),
    "Gradient": ("wflow.gradients.adjoint", "Gradient"),
    "lyapunov": ("wflow.gradients.lyapunov", "lyapunov"),
    "lipschitz": ("wflow.gradients.lipschitz", "lipschitz"),
    "SaveAt": ("wflow.particles.options", "SaveAt"),
    "Compute": ("wflow.particles.options", "Compute"),
    "Dopri5": ("wflow._core.adaptive", "Dopri5"),
    "Flow": ("wflow.attention.flows", "Flow"),
    "Tableau": ("wflow._core.tableaux", "Tableau"),
    "open": ("wflow.runs.read", "open_run"),
    "Comparison": ("wflow.plots.comparison", "Comparison"),
    "compare": ("wflow.plots.comparison", "compare"),
    "verify": ("wflow.analysis.verify", "verify"),
    "cite": ("wflow.analysis.citations", "cite"),
    "report": ("wflow.study.report", "write"),
    "explore": ("wflow.study.explore", "explore"),
    "open_study": ("wflow.runs.studies", "open_study"),
    "energy": ("wflow.attention.cloud", "energy"),
    "mobility": ("wflow.attention.cloud", "mobility"),
    "effective_mobility": ("wflow.attention.cloud", "effective_mobility"),
    "velocity": ("wflow.attention.cloud", "velocity"),
    "upper_gradient_sq": ("wflow.attention.cloud", "upper_gradient_sq"),
    "dissipation": ("wflow.attention.cloud", "dissipation"),
    "edi_defect": ("wflow.attention.cloud", "edi_defect"),
    "WflowError": ("wflow._core.errors", "WflowError"),
    "InputError": ("wflow._core.errors", "InputError"),
    "RunFileError": ("wflow._core.errors", "RunFileError"),
    "BlowUpError": ("wflow._core.errors", "BlowUpError"),
    "WflowWarning": ("wflow._core.errors", "WflowWarning"),
    "AccuracyWarning": ("wflow._core.errors", "AccuracyWarning"),
    "CacheWarning": ("wflow._core.errors", "CacheWarning"),
    "Interrupted": ("wflow._core.errors", "Interrupted"),
}
_MODULES = {
    "heads": "wflow.heads",
    "flows": "wflow.attention.flows",
    "tokens": "wflow.sphere.tokens",
    "sphere": "wflow.sphere",
    "transport": "wflow.transport",
    "meanfield": "wflow.meanfield",
    "sampling": "wflow.sampling",
    "losses": "wflow.gradients.losses",
    "inference": "wflow.gradients.inference",
    "control": "wflow.gradients.control",
    "interop": "wflow.gradients.interop",
    "metric": "wflow.transport.metric",
    "jko": "wflow.transport.jko",
    "clusters": "wflow.analysis.clusters",
    "equilibria": "wflow.analysis.equilibria",
    "stationary": "wflow.analysis.stationary",
    "stability": "wflow.analysis.stability",
    "fits": "wflow.analysis.fits",
    "distributed": "wflow.distributed",
    "nets": "wflow.nets",
    "plots": "wflow.plots",
    "study": "wflow.study",
}
# Those that make or open Datasets give these their accessor, `ds.wflow`, which loads xarray.
_ACCESSOR = "wflow.plots.accessor"
_OF_DATASETS = (
    "solve", "sweep", "rerun", "open", "open_study", "explore", "distributed", "meanfield",
    "sampling", "jko",
)  # fmt: skip

__all__ = [*sorted(_HOMES), *sorted(_MODULES)]

if TYPE_CHECKING:
    from wflow import distributed, heads, meanfield, nets, plots, sampling, sphere, study, transport
    from wflow._core.adaptive import Dopri5
    from wflow._core.errors import (
        AccuracyWarning,
        BlowUpError,
        CacheWarning,
        InputError,
        Interrupted,
        RunFileError,
        WflowError,
        WflowWarning,
    )
    from wflow._core.tableaux import Tableau
    from wflow.analysis import clusters, equilibria, fits, stability, stationary
    from wflow.analysis.citations import cite
    from wflow.analysis.rerun import rerun
    from wflow.analysis.verify import verify
    from wflow.attention import flows
    from wflow.attention.cloud import (
        dissipation,
        edi_defect,
        effective_mobility,
        energy,
        mobility,
        upper_gradient_sq,
        velocity,
    )
    from wflow.attention.flows import Flow
    from wflow.distributed.sweep import sweep
    from wflow.gradients import control, inference, interop, losses
    from wflow.gradients.adjoint import Gradient, gradient
    from wflow.gradients.lipschitz import lipschitz
    from wflow.gradients.lyapunov import lyapunov
    from wflow.particles.options import Compute, SaveAt
    from wflow.particles.solver import solve
    from wflow.plots.comparison import Comparison, compare
    from wflow.runs.read import open_run as open
    from wflow.runs.studies import open_study
    from wflow.sphere import tokens
    from wflow.study.explore import explore
    from wflow.study.report import write as report
    from wflow.transport import jko, metric


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    elif name in _HOMES:
        module, attribute = _HOMES[name]
        value = getattr(importlib.import_module(module), attribute)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _OF_DATASETS:
        importlib.import_module(_ACCESSOR)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
