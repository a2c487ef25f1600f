"""What a run of minimizing movements hands over: one Dataset with named dims."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._jko_step import Step

if TYPE_CHECKING:
    import xarray

# Variable, field of Step, long name, source.
_SERIES = (
    ("energy", "energy_after", "energy E(t_k, x^k)", "[MHT] eq. 21"),
    ("energy_before", "energy_before", "energy E(t_k, x^{k-1})", "[MHT] eq. 21"),
    ("distance_sq", "distance_sq", "squared distance W^2(x^k, x^{k-1})", "[MHT] eq. 58, 69"),
    (
        "inequality_gap",
        "inequality_gap",
        "fall of the energy in the step (ascent: rise) less W^2/(2 tau)",
        "[MHT] Theorem 3.11",
    ),
    ("iterations", "iterations", "iterations of L-BFGS", None),
    ("gradient_norm", "gradient_norm", "gradient left, in the metric of the step", None),
    ("converged", "converged", "whether the step met its tolerance", None),
    ("recouplings", "recouplings", "better matchings found in the step", None),
)


def dataset(
    clouds: NDArray[np.floating],
    tau: float,
    energy: float,
    steps: list[Step],
    settings: dict[str, Any],
) -> "xarray.Dataset":
    """Tokens clouds (K + 1, n, d) and the numbers of K steps from a cloud of the given energy."""
    import xarray

    start = {"energy": energy, "energy_before": energy, "converged": True}
    data: dict[str, Any] = {}
    source: str | None = "[MHT] eq. 58, 69"
    attrs = {"long_name": "tokens x^k", "units": "1", "source": source}
    data["tokens"] = (("time", "token", "axis"), clouds, attrs)
    for name, attribute, long_name, source in _SERIES:
        values = [getattr(step, attribute) for step in steps]
        attrs = {"long_name": long_name, "units": "1"}
        if source is not None:
            attrs["source"] = source
        first = start.get(name, type(values[0])(0))
        data[name] = (("time",), np.array([first, *values]), attrs)
    time = np.arange(len(clouds)) * tau
    return xarray.Dataset(
        data,
        coords={"time": ("time", time, {"long_name": "time t_k", "units": "1"})},
        attrs={
            "title": "minimizing movements",
            "metric": settings["metric"],
            "direction": settings["direction"],
            "tau": tau,
            "gradient_flow": "unnormalised" if settings["metric"] == "w2" else "effective",
            "steps_not_converged": sum(not step.converged for step in steps),
            "config": json.dumps(settings),
        },
    )
