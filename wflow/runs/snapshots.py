"""Snapshots of a run, read one cloud at a time: a run may exceed the memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import path_of
from wflow._core.errors import InputError
from wflow.runs.schema import single, solve_with
from wflow.sphere.geometry import as_tokens

if TYPE_CHECKING:
    from xarray import Dataset

Tokens = NDArray[np.float64]

_SAME_TIME = 1e-9  # distance of times that are the same, in units of the largest
BLOCK_BYTES = 2**22  # bytes read at once: reading every small snapshot separately takes longer


@contextmanager
def dataset_of(run: "Dataset | str | Path", what: str = "the run") -> Iterator["Dataset"]:
    """Open the file of a run, and close it at the end; a Dataset is yielded unchanged."""
    from wflow.runs.read import open_run

    if isinstance(run, str | os.PathLike):
        with open_run(path_of(run, what)) as ds:
            yield ds
        return
    if not hasattr(run, "data_vars"):
        raise InputError(
            f"{what} is a {type(run).__name__}: expected a run file, or the Dataset of wflow.solve "
            "or wflow.open"
        )
    yield run


def require_tokens(ds: "Dataset", what: str = "the run") -> None:
    """Raise InputError unless the run holds tokens of single paths."""
    if not {"tokens", "snapshot", "snapshot_path"} <= set(ds.variables) or not ds["tokens"].size:
        raise InputError(
            f"{what} holds no tokens. {solve_with('snapshots=[times], paths=[the paths]')}"
        )


def token_type(ds: "Dataset") -> type[np.float32 | np.float64]:
    """Return the type in which tokens were computed, whatever the type in which they are stored."""
    from wflow.runs.read import parse_config

    config = parse_config(ds.attrs.get("config", "{}"), "the run")
    narrow = single(config) or ds["tokens"].dtype == np.float32
    return np.float32 if narrow else np.float64


def clouds(ds: "Dataset", place: int) -> Iterator[Tokens | None]:
    """Yield the clouds (n, d) of one snapshot path, by its index; None for one not recorded.

    Raises
    ------
    InputError
        For tokens that are not on the unit sphere to single precision.
    """
    for _, _, cloud in _in_blocks(ds, place, place + 1):
        yield cloud


def all_clouds(ds: "Dataset") -> Iterator[tuple[int, int, Tokens | None]]:
    """Yield the clouds of every snapshot path, with the indices of paths and snapshots."""
    return _in_blocks(ds, 0, ds.sizes["snapshot_path"])


def _in_blocks(ds: "Dataset", first: int, last: int) -> Iterator[tuple[int, int, Tokens | None]]:
    """Yield clouds of some snapshot paths, reading whole paths at once where a block holds them."""
    tokens = ds["tokens"].transpose("snapshot_path", "snapshot", "token", "axis")
    snapshots = ds.sizes["snapshot"]
    block = max(1, BLOCK_BYTES // (8 * ds.sizes["token"] * ds.sizes["axis"]))
    together = max(1, block // snapshots)
    for place in range(first, last, together):
        paths = tokens[place : min(place + together, last)]
        for start in range(0, snapshots, block):
            values: NDArray[Any] = paths[:, start : start + block].values
            read, whole = _on_sphere(np.asarray(values, np.float64), place, start)
            for p, k in np.ndindex(whole.shape):
                yield place + p, start + k, read[p, k] if whole[p, k] else None


def cloud(ds: "Dataset", place: int, at: int) -> Tokens | None:
    """Read one cloud; `at` may count from the end."""
    tokens = ds["tokens"].transpose("snapshot_path", "snapshot", "token", "axis")[place, at]
    read, whole = _on_sphere(np.asarray(tokens.values, np.float64)[None, None], place, at)
    return read[0, 0] if whole[0, 0] else None


def _on_sphere(tokens: Tokens, place: int, start: int) -> tuple[Tokens, NDArray[np.bool_]]:
    """Put some snapshots of some paths on the sphere, and return which of them were recorded.

    Runs in single precision miss the sphere by their rounding. All are checked at once: for small
    clouds, one by one takes longer than what is computed of them.

    Parameters
    ----------
    tokens : (paths, snapshots, n, d)
    place, start : of the first path and snapshot, for the message
    """
    whole: NDArray[np.bool_] = np.asarray(np.isfinite(tokens).all(axis=(2, 3)))
    found = tokens[whole]
    if not found.size:
        return tokens, whole
    norms = np.sqrt(np.einsum("...k,...k->...", found, found))
    away = np.abs(norms - 1).max(axis=1) > 1e-5
    if away.any():
        p, k = np.argwhere(whole)[np.argmax(away)]
        raise InputError(
            f"the tokens of snapshot path {place + p}, snapshot {start + k}, are not on the unit "
            "sphere; a run of wflow was expected"
        )
    found = as_tokens(found, "tokens")
    if whole.all():
        return found.reshape(tokens.shape), whole
    tokens = tokens.copy()
    tokens[whole] = found
    return tokens, whole


def same_times(*times: NDArray[Any]) -> list[NDArray[Any]]:
    """Return the times of several runs, those that differ by rounding alone made equal.

    So 3 steps of 0.1 end with one of 0.3. Each keeps its shape (times,).
    """
    every = np.unique(np.concatenate(times))
    apart = np.diff(every) > _SAME_TIME * np.abs(every).max(initial=0)
    first = every[np.append(True, apart)] if len(every) else every
    place = np.cumsum(np.append(0, apart))
    return [first[place[np.searchsorted(every, each)]] for each in times]
