"""Optimal transport between token clouds, metrics of clouds, and minimizing movements.

`distances` has Wasserstein distances, plans and maps (`circle`: exact on S^1; `sinkhorn`: entropic
transport with bounds), `densities` distances of densities over a mesh; `metric` the metrics as
objects, with the discrete action, and the distance weighted by the effective mobility; `jko`
minimizing movements; `minimise` the optimiser on the sphere, `linear_assignment` the assignment
problem, `mobility` the effective mobility. It imports the packages from `_core` to `particles`;
`analysis` and the packages after it may import it. Start with `distances`.
"""

from wflow.transport.densities import density_distance
from wflow.transport.distances import (
    COSTS,
    EXACT_PAIRS,
    METHODS,
    Entropic,
    assignment,
    distance,
    entropic,
    over_time,
    plan,
    transport_map,
    w1,
    w2,
    wasserstein,
)
from wflow.transport.metric import W2, Metric, Weighted, weighted_distance

__all__ = [
    "COSTS",
    "EXACT_PAIRS",
    "METHODS",
    "W2",
    "Entropic",
    "Metric",
    "Weighted",
    "assignment",
    "density_distance",
    "distance",
    "entropic",
    "over_time",
    "plan",
    "transport_map",
    "w1",
    "w2",
    "wasserstein",
    "weighted_distance",
]


def __dir__() -> list[str]:
    return __all__
