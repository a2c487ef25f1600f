"""Diagnostics of continuous-time transformers, from their hidden states.

`measures` has costs, straightness and speed; `constants` the Lipschitz constants; `stability` the
bound of forward propagation; `clouds` the Wasserstein distances between hidden states. Start with
`measures`.
"""

from wflow.nets.diagnostics.measures import (
    Bound,
    Lipschitz,
    Stability,
    Transport,
    check_stability,
    hidden_transport,
    lipschitz,
    operator_norm,
    speed_variation,
    stability_bound,
    step_costs,
    straightness,
    transport_along,
    transport_ratio,
)

__all__ = [
    "Bound",
    "Lipschitz",
    "Stability",
    "Transport",
    "check_stability",
    "hidden_transport",
    "lipschitz",
    "operator_norm",
    "speed_variation",
    "stability_bound",
    "step_costs",
    "straightness",
    "transport_along",
    "transport_ratio",
]


def __dir__() -> list[str]:
    return __all__
