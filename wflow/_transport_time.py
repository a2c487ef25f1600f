"""Distances over the snapshots of a run, which is read some megabytes at a time."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._snapshots import Cloud, cloud, clouds, opened, require_tokens
from wflow.errors import InputError
from wflow.progress import progress as progress_bar

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

_RELATIVE = ("final", "initial", "previous")


def distances(
    distance: Callable[..., float],
    run: Any,
    to: Any,
    p: float,
    paths: Sequence[int] | None,
    progress: bool,
    options: dict[str, Any],
) -> "DataArray":
    """Distances of the snapshots of a run by `distance(x, y, p, **options)`; see `over_time`."""
    import xarray

    with ExitStack() as stack:
        ds = _run(run, stack, "the run")
        chosen = _paths(ds, paths)
        times = np.asarray(ds["snapshot"].values, float)
        previous = isinstance(to, str) and to == "previous"
        if previous and len(times) < 2:
            raise InputError("the run has one snapshot; distances to the previous one need two")
        reference = _reference(to, ds, chosen, times, stack)
        values = np.full((len(chosen), len(times) - previous), np.nan)
        with progress_bar(values.size, "distances", progress) as advance:
            for row, path in enumerate(chosen):
                own = clouds(ds, _place(ds, path))
                pairs = _with_previous(own) if previous else _with(own, reference, path)
                for column, (x, y) in enumerate(pairs):
                    if x is not None and y is not None:
                        values[row, column] = distance(x, y, p, **options)
                    advance(1)
    attrs: dict[str, Any] = {
        "long_name": f"distance W_{p:g} to {_named(to)}",
        "units": "1",
        "cost": options.get("cost", "geodesic"),
        "method": options.get("method", "auto"),
    }
    at = times[1:] if previous else times
    coords: dict[str, Any] = {
        "snapshot_path": ("snapshot_path", chosen, {"long_name": "Monte Carlo path"}),
        "snapshot": ("snapshot", at, {"long_name": "time of the snapshot", "units": "1"}),
    }
    if previous:
        since = {"long_name": "time since the previous snapshot", "units": "1"}
        coords["elapsed"] = ("snapshot", np.diff(times), since)
    dims = ("snapshot_path", "snapshot")
    return xarray.DataArray(values, coords, dims, name="wasserstein", attrs=attrs)


def _run(run: Any, stack: ExitStack, what: str) -> "Dataset":
    """A run with snapshots, which are not read yet."""
    ds = stack.enter_context(opened(run, what))
    require_tokens(ds, str(run) if isinstance(run, str | os.PathLike) else what)
    return ds


def _paths(ds: "Dataset", paths: Sequence[int] | None) -> NDArray[np.int64]:
    kept = np.asarray(ds["snapshot_path"].values, np.int64)
    if paths is None:
        return kept
    chosen = np.atleast_1d(np.asarray(paths))
    missing = [path for path in chosen.tolist() if path not in kept]
    if missing or not chosen.size or chosen.ndim > 1:
        raise InputError(
            f"paths are {chosen.tolist()}, and the run kept the tokens of {kept.tolist()}; choose "
            "from those, or run again with snapshot_paths"
        )
    return chosen.astype(np.int64)


def _place(ds: "Dataset", path: int) -> int:
    return int(np.flatnonzero(ds["snapshot_path"].values == path)[0])


Pairs = Iterator[tuple[Cloud | None, Cloud | None]]


def _with_previous(own: Iterator[Cloud | None]) -> Pairs:
    before = next(own)
    for x in own:
        yield x, before
        before = x


def _with(
    own: Iterator[Cloud | None], reference: Callable[[int], Iterator[Cloud | None]], path: int
) -> Pairs:
    yield from zip(own, reference(path), strict=False)


def _reference(
    to: Any, ds: "Dataset", chosen: NDArray[np.int64], times: NDArray, stack: ExitStack
) -> Callable[[int], Iterator[Cloud | None]]:
    """For a path, the clouds that its snapshots are compared with, in turn."""

    def always(cloud: Any) -> Iterator[Any]:
        while True:
            yield cloud

    if isinstance(to, str) and to in _RELATIVE:
        end = len(times) - 1 if to == "final" else 0
        return lambda path: always(cloud(ds, _place(ds, path), end))
    nowhere = isinstance(to, str) and not Path(to).exists() and not Path(f"{to}.partial").exists()
    if to is None or nowhere:
        raise InputError(
            f"to is {to!r}: expected {', '.join(_RELATIVE)}, a run file, or a cloud (m, d)"
        )
    if isinstance(to, str | os.PathLike) or hasattr(to, "data_vars"):
        other = _run(to, stack, "the other run")
        theirs = np.asarray(other["snapshot"].values, float)
        span = max(1.0, float(np.abs(times).max()))
        if theirs.shape != times.shape or not np.allclose(theirs, times, rtol=0, atol=1e-9 * span):
            raise InputError(
                f"the runs have snapshots at {_listed(times)} and at {_listed(theirs)}; run one of "
                "them again with the snapshots of the other"
            )
        _paths(other, chosen.tolist())
        return lambda path: clouds(other, _place(other, path))
    return lambda path: always(to)


def _listed(times: NDArray) -> str:
    shown = ", ".join(f"{t:g}" for t in times[:6])
    return f"t = {shown}{', ...' if len(times) > 6 else ''} ({len(times)} times)"


def _named(to: Any) -> str:
    if isinstance(to, str) and to in _RELATIVE:
        return f"the {to} snapshot"
    if isinstance(to, str | os.PathLike):
        return f"the same snapshot of {Path(to).name}"
    return "the same snapshot of another run" if hasattr(to, "data_vars") else "a given cloud"
