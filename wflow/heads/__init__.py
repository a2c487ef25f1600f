"""Head laws: evolution of the interaction matrices D_h in time.

`laws` has the laws (Ornstein-Uhlenbeck, oscillating, frozen, a schedule, with jumps, custom ones),
their configurations in run files, and the general (Q, K, V) heads; `process` moves heads by a law;
`matrices` makes isotropic heads and checks arrays of matrices. The package imports `_core` and
`io`, and is imported by whatever moves heads. Start with `laws`.
"""

from wflow.heads.laws import (
    QKV,
    CompoundPoisson,
    Frozen,
    HeadLaw,
    OrnsteinUhlenbeck,
    Oscillating,
    Schedule,
    Step,
    law_config,
    law_from_config,
    register,
)
from wflow.heads.matrices import isotropic

__all__ = [
    "QKV",
    "CompoundPoisson",
    "Frozen",
    "HeadLaw",
    "OrnsteinUhlenbeck",
    "Oscillating",
    "Schedule",
    "Step",
    "isotropic",
    "law_config",
    "law_from_config",
    "register",
]


def __dir__() -> list[str]:
    return __all__
