"""Clusters along the snapshots of a run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._checks import number, whole
from wflow._clusters_cloud import (
    check_scale,
    count,
    entropy,
    nematic_order,
    order_parameter,
    persistent_count,
    sizes,
)
from wflow._snapshots import clouds, opened, require_tokens
from wflow.errors import InputError
from wflow.progress import progress as progress_bar

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

FloatArray = NDArray[np.float64]

QUANTITIES = {
    "count": "number of clusters at the scale",
    "largest_share": "share of the tokens in the largest cluster at the scale",
    "persistent_count": "number of clusters of the most persistent partition",
    "persistence": "persistence of that partition",
    "order_parameter": "order parameter |mean token|",
    "nematic_order": "largest eigenvalue of the second moment of the tokens",
    "entropy": "entropy of the smoothed cloud against the uniform law",
}
"""What `over_time` can compute: name -> what it is."""


def over_time(
    run: "Dataset | str | Path",
    scale: float,
    *,
    quantities: Sequence[str] | None = None,
    bandwidth: float = 0.25,
    progress: bool = False,
) -> "Dataset":
    """Clusters, order and entropy at every snapshot of a run, read some megabytes at a time.

    Parameters
    ----------
    run : run file, or Dataset of `wflow.solve` or `wflow.open`
    scale : of `count` and `largest_share`, in radians (`labels`)
    quantities : names of `QUANTITIES`; None takes all
    bandwidth : of `entropy`, in radians
    progress : show a bar with the time left

    Returns
    -------
    Dataset (snapshot_path, snapshot), a variable per quantity; NaN where a run that is not
    complete has no tokens

    Raises
    ------
    InputError
        For a run without tokens, unknown quantities, or a scale or bandwidth out of range.
    """
    import xarray

    check_scale(scale)
    names = _names(quantities)
    with opened(run) as ds:
        require_tokens(ds)
        shape = ds.sizes["snapshot_path"], ds.sizes["snapshot"]
        values = {name: np.full(shape, np.nan) for name in names}
        with progress_bar(shape[0] * shape[1], "clusters", progress) as advance:
            for p in range(shape[0]):
                for k, x in enumerate(clouds(ds, p)):
                    if x is not None:
                        for name, value in _measure(x, scale, names, bandwidth).items():
                            values[name][p, k] = value
                    advance(1)
        coords = {name: ds[name].load() for name in ("snapshot_path", "snapshot")}
    table = xarray.Dataset(coords=coords, attrs={"scale": float(scale)})
    for name in names:
        attrs = {"long_name": QUANTITIES[name], "units": "1"}
        table[name] = (("snapshot_path", "snapshot"), values[name], attrs)
    if "entropy" in names:
        table["entropy"].attrs["bandwidth"] = float(bandwidth)
    return table


def _names(quantities: Sequence[str] | None) -> tuple[str, ...]:
    """Names of `QUANTITIES`, all for None; InputError for anything else."""
    if quantities is None:
        return tuple(QUANTITIES)
    given = quantities if isinstance(quantities, list | tuple | set | dict) else None
    if not given or not all(isinstance(name, str) and name in QUANTITIES for name in given):
        raise InputError(
            f"quantities is {quantities!r}: expected a list of some of {', '.join(QUANTITIES)}"
        )
    return tuple(given)


def _measure(
    x: FloatArray, scale: float, names: Sequence[str], bandwidth: float
) -> dict[str, float]:
    """The quantities of one cloud."""
    values: dict[str, float] = {}
    if "count" in names or "largest_share" in names:
        found = sizes(x, scale)
        values |= {"count": len(found), "largest_share": found[0] / len(x)}
    if "persistent_count" in names or "persistence" in names:
        most = persistent_count(x)
        values |= {"persistent_count": most.count, "persistence": most.persistence}
    if "order_parameter" in names:
        values["order_parameter"] = order_parameter(x)
    if "nematic_order" in names:
        values["nematic_order"] = nematic_order(x)
    if "entropy" in names:
        values["entropy"] = entropy(x, bandwidth)
    return {name: values[name] for name in names}


def time_to_one_cluster(run: "Dataset | str | Path", scale: float) -> "DataArray":
    """Time of the first snapshot at which all tokens are in one cluster.

    Parameters
    ----------
    run : run file, or Dataset of `wflow.solve` or `wflow.open`
    scale : of single linkage, in radians (`labels`)

    Returns
    -------
    DataArray (snapshot_path,); NaN where no snapshot shows one cluster

    Raises
    ------
    InputError
        For a run without tokens, or a scale out of range.
    """
    check_scale(scale)
    return _first_time(
        run, lambda x: count(x, scale) == 1, "time at which all tokens are in one cluster"
    )


def time_to_first_cluster(
    run: "Dataset | str | Path", scale: float, *, share: float = 0.1
) -> "DataArray":
    """Time of the first snapshot at which some cluster holds a share of the tokens, two at least.

    Parameters
    ----------
    run : run file, or Dataset of `wflow.solve` or `wflow.open`
    scale : of single linkage, in radians (`labels`)
    share : the share, in (0, 1]; the tokens it takes are rounded up, and at least two

    Returns
    -------
    DataArray (snapshot_path,); NaN where no snapshot shows such a cluster

    Raises
    ------
    InputError
        For a run without tokens, or a scale or share out of range.
    """
    check_scale(scale)
    if not 0 < number(share, "share") <= 1:
        raise InputError(f"share is {share}: expected a share of the tokens, above 0 and up to 1")

    def reached(x: FloatArray) -> bool:
        least = max(2, math.ceil(share * len(x) - 1e-9))
        return bool(sizes(x, scale)[0] >= least)

    return _first_time(
        run, reached, f"time of the first cluster of a share {share:g} of the tokens"
    )


def _first_time(
    run: "Dataset | str | Path", reached: Callable[[FloatArray], bool], name: str
) -> "DataArray":
    """First snapshot time at which the cloud of each path is as asked for; NaN for never."""
    import xarray

    with opened(run) as ds:
        require_tokens(ds)
        times = ds["snapshot"].values
        paths = ds["snapshot_path"].load()
        first = np.full(len(paths), np.nan)
        for p in range(len(paths)):
            for time, x in zip(times, clouds(ds, p), strict=True):
                if x is not None and reached(x):
                    first[p] = time
                    break
    attrs = {"long_name": name, "units": "1"}
    return xarray.DataArray(first, {"snapshot_path": paths}, ("snapshot_path",), attrs=attrs)


@dataclass(frozen=True)
class Plateau:
    """A time during which the number of clusters stays the same.

    Attributes
    ----------
    start, end : first time with that count, and first time without it (the last time where it
        was not seen to end)
    count : number of clusters, above one
    ended : whether it was seen to end
    """

    start: float
    end: float
    count: int
    ended: bool


def plateaus(
    times: ArrayLike, counts: ArrayLike, *, min_length: float = 0.1, below: int | None = None
) -> list[Plateau]:
    """Metastable plateaus: maximal times of a constant count > 1, long on a log scale of time.

    Metastable states of attention live exponentially long in beta, so that lengths are measured
    as log(end / start), in units of log(t_last / t_first) over the positive times.

    Parameters
    ----------
    times : (k,), increasing, >= 0; time 0 is left out
    counts : (k,), numbers of clusters; NaN (not recorded) ends a plateau
    min_length : share of the log of time that a plateau must last, in (0, 1)
    below : counts from here on are no plateau; give n, so that tokens that have not yet met are
        none

    Returns
    -------
    list of Plateau, in order of time

    Raises
    ------
    InputError
        For times that do not increase, counts of another length, or numbers out of range.

    Source: metastability in [GLPR] sections 5 and 7; docs/mathematics.md, clusters.
    """
    t, c = _series(times, counts)
    if not 0 < number(min_length, "min_length") < 1:
        raise InputError(f"min_length is {min_length}: expected a share between 0 and 1")
    most = math.inf if below is None else whole(below, "below", 2)
    t, c = t[t > 0], c[t > 0]
    if len(t) < 2:
        return []
    least = min_length * math.log(t[-1] / t[0])
    ends = np.append(np.flatnonzero(np.diff(c) != 0) + 1, len(c))  # NaN differs from NaN
    found, start = [], 0
    for end in ends:
        ended = bool(end < len(t) and np.isfinite(c[end]))
        last = t[end] if ended else t[end - 1]
        if 1 < c[start] < most and math.log(last / t[start]) >= least:
            found.append(Plateau(float(t[start]), float(last), int(c[start]), ended))
        start = int(end)
    return found


def _series(times: ArrayLike, counts: ArrayLike) -> tuple[FloatArray, FloatArray]:
    try:
        t, c = np.asarray(times, np.float64), np.asarray(counts, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"times and counts must be numbers: {error}") from None
    if t.ndim != 1 or t.shape != c.shape:
        raise InputError(
            f"times have shape {t.shape} and counts {c.shape}: expected both (k,), the series of "
            "one path"
        )
    if not (np.all(np.diff(t) > 0) and np.isfinite(t).all() and np.all(t >= 0)):
        raise InputError("times must be finite, >= 0 and increasing; sort them")
    return t, c
