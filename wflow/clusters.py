"""Clusters of a token cloud, and what becomes of the tokens of a run in the long run.

Of one cloud: `labels`, `count` and `sizes` at a stated scale, `persistent_count` without one,
`order_parameter`, `nematic_order`, `entropy`, and `stationarity` under given heads. Of a run:
`over_time`, `time_to_one_cluster`, `time_to_first_cluster`, `plateaus`, `omega_limit`.
"""

from wflow._clusters_cloud import (
    PersistentCount,
    Stationarity,
    count,
    entropy,
    labels,
    nematic_order,
    order_parameter,
    persistent_count,
    sizes,
    stationarity,
)
from wflow._clusters_omega import OmegaLimit, omega_limit
from wflow._clusters_time import (
    QUANTITIES,
    Plateau,
    over_time,
    plateaus,
    time_to_first_cluster,
    time_to_one_cluster,
)

__all__ = [
    "QUANTITIES",
    "OmegaLimit",
    "PersistentCount",
    "Plateau",
    "Stationarity",
    "count",
    "entropy",
    "labels",
    "nematic_order",
    "omega_limit",
    "order_parameter",
    "over_time",
    "persistent_count",
    "plateaus",
    "sizes",
    "stationarity",
    "time_to_first_cluster",
    "time_to_one_cluster",
]
