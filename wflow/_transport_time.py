"""Distances over the snapshots of a run, which is read some megabytes at a time."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow.errors import InputError
from wflow.progress import progress as progress_bar
from wflow.sphere import as_tokens

if TYPE_CHECKING:
    from xarray import DataArray

_RELATIVE = ("final", "initial", "previous")
_BLOCK = 4 * 2**20  # bytes of snapshots in memory at a time
Cloud = NDArray[np.float64]


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
        tokens = _tokens(run, stack, "the run")
        chosen = _paths(tokens, paths)
        times = np.asarray(tokens["snapshot"].values, float)
        previous = isinstance(to, str) and to == "previous"
        if previous and len(times) < 2:
            raise InputError("the run has one snapshot; distances to the previous one need two")
        reference = _reference(to, tokens, chosen, times, stack)
        values = np.full((len(chosen), len(times) - previous), np.nan)
        with progress_bar(values.size, "distances", progress) as advance:
            for row, path in enumerate(chosen):
                clouds = _clouds(tokens, path, len(times))
                pairs = _with_previous(clouds) if previous else _with(clouds, reference, path)
                for column, (cloud, other) in enumerate(pairs):
                    if cloud is not None and other is not None:
                        values[row, column] = distance(cloud, other, p, **options)
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


def _tokens(run: Any, stack: ExitStack, what: str) -> "DataArray":
    """The snapshots of a run, not read yet."""
    from xarray import Dataset

    from wflow.runfile import open_run

    name = what
    if isinstance(run, str | os.PathLike):
        name = str(run)
        run = stack.enter_context(open_run(run))
    if not isinstance(run, Dataset):
        raise InputError(f"{what} is {type(run).__name__}: expected a run file or its Dataset")
    if "tokens" not in run or 0 in run["tokens"].shape:
        raise InputError(
            f"{name} holds no snapshots of tokens; run it again with snapshots=[times] and "
            "snapshot_paths=[paths] in wflow.solve"
        )
    return run["tokens"]


def _paths(tokens: "DataArray", paths: Sequence[int] | None) -> NDArray[np.int64]:
    kept = np.asarray(tokens["snapshot_path"].values, np.int64)
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


def _place(tokens: "DataArray", path: int) -> int:
    return int(np.flatnonzero(tokens["snapshot_path"].values == path)[0])


def _on_sphere(values: NDArray, path: int, at: int) -> Cloud | None:
    """One snapshot, put on the sphere (runs in single precision miss it); None where absent."""
    if np.isnan(values).all():
        return None
    norms = np.linalg.norm(values, axis=-1)
    if not np.allclose(norms, 1, atol=1e-5, rtol=0):
        raise InputError(
            f"the tokens of path {path}, snapshot {at}, are not on the unit sphere; a run of wflow "
            "was expected"
        )
    return as_tokens(values)


def _cloud(tokens: "DataArray", path: int, at: int) -> Cloud | None:
    """The cloud of one path and snapshot."""
    read = tokens.isel(snapshot_path=_place(tokens, path), snapshot=at)
    return _on_sphere(np.asarray(read.values, np.float64), path, at)


def _clouds(tokens: "DataArray", path: int, count: int) -> Iterator[Cloud | None]:
    """The clouds of one path in turn, read some megabytes at a time: a reading costs as much."""
    of_path = tokens.isel(snapshot_path=_place(tokens, path))
    block = max(1, _BLOCK // (8 * tokens.sizes["token"] * tokens.sizes["axis"]))
    for start in range(0, count, block):
        read = of_path.isel(snapshot=slice(start, min(start + block, count)))
        for at, values in enumerate(np.asarray(read.values, np.float64), start):
            yield _on_sphere(values, path, at)


Pairs = Iterator[tuple[Cloud | None, Cloud | None]]


def _with_previous(clouds: Iterator[Cloud | None]) -> Pairs:
    before = next(clouds)
    for cloud in clouds:
        yield cloud, before
        before = cloud


def _with(
    clouds: Iterator[Cloud | None], reference: Callable[[int], Iterator[Cloud | None]], path: int
) -> Pairs:
    yield from zip(clouds, reference(path), strict=False)


def _reference(
    to: Any, tokens: "DataArray", chosen: NDArray[np.int64], times: NDArray, stack: ExitStack
) -> Callable[[int], Iterator[Cloud | None]]:
    """For a path, the clouds that its snapshots are compared with, in turn."""
    from xarray import Dataset

    def always(cloud: Any) -> Iterator[Any]:
        while True:
            yield cloud

    if isinstance(to, str) and to in _RELATIVE:
        end = len(times) - 1 if to == "final" else 0
        return lambda path: always(_cloud(tokens, path, end))
    nowhere = isinstance(to, str) and not Path(to).exists() and not Path(f"{to}.partial").exists()
    if to is None or nowhere:
        raise InputError(
            f"to is {to!r}: expected {', '.join(_RELATIVE)}, a run file, or a cloud (m, d)"
        )
    if isinstance(to, str | os.PathLike | Dataset):
        other = _tokens(to, stack, "the other run")
        theirs = np.asarray(other["snapshot"].values, float)
        span = max(1.0, float(np.abs(times).max()))
        if theirs.shape != times.shape or not np.allclose(theirs, times, rtol=0, atol=1e-9 * span):
            raise InputError(
                f"the runs have snapshots at {_listed(times)} and at {_listed(theirs)}; run one of "
                "them again with the snapshots of the other"
            )
        _paths(other, chosen.tolist())
        return lambda path: _clouds(other, path, len(times))
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
