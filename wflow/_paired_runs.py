"""Runs under one bound: what they must share, and the exponent along their heads."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow import _growth, _snapshots
from wflow._head_path import head_path
from wflow.errors import InputError
from wflow.heads import HeadLaw, law_from_config

if TYPE_CHECKING:
    import xarray

FloatArray = NDArray[np.float64]
Config = dict[str, Any]

# What two runs may differ in and still have the same heads at the same times.
_FREE = {"x0", "t_final", "paths", "record_every", "snapshots", "snapshot_paths", "save_heads"}
_FREE |= {"ledger", "dtype"}


@contextmanager
def opened(run: "xarray.Dataset | str | Path") -> Iterator[tuple["xarray.Dataset", Config]]:
    """A run and its configuration; a file is closed at the end, a Dataset stays as it is.

    Raises
    ------
    InputError
        For a run without tokens, or one that the bound is not about.
    """
    with _snapshots.opened(run) as ds:
        if "config" not in ds.attrs:
            raise InputError(
                f"the {type(ds).__name__} is no run of wflow: it has no attribute config; give a "
                "run file, or a Dataset from wflow.solve or wflow.open"
            )
        config = json.loads(ds.attrs["config"])
        _snapshots.require_tokens(ds)
        _refuse(config)
        yield ds, config


def _refuse(config: Config) -> None:
    heads, law = config["heads"], config["law"]
    general = isinstance(heads, dict) and "values_sha256" in heads
    if general or (law.get("name") == "Schedule" and law.get("values") is not None):
        what = "general (Q, K, V) heads"
    elif config["causal"]:
        what = "the causal mask, under which tokens are not exchangeable"
    elif config.get("kappa"):
        what = "noise on the tokens"
    else:
        return
    raise InputError(f"the bound on W2 is not about {what}: give runs of tied heads without it")


def check_same_weights(config: Config, other: Config) -> None:
    """Raise InputError unless both runs have the same heads at the same times, and one flow."""
    from wflow.runfile import differences

    differ = {key.split(".")[0].split(" ")[0] for key in differences(config, other)} - _FREE
    fixed = not isinstance(config["heads"], int) and config["law"].get("name") in _QUIET
    if fixed:
        differ.discard("seed")  # it draws neither heads nor noise
    if differ:
        raise InputError(
            f"the runs differ in {', '.join(sorted(differ))}: the bound compares tokens under the "
            "same heads; give runs that differ in x0 alone"
        )


_QUIET = ("Frozen", "Schedule")


def check_same_axes(first: "xarray.Dataset", second: "xarray.Dataset") -> None:
    """Raise InputError unless the tokens of both runs have the same dimension d."""
    if first.sizes["axis"] != second.sizes["axis"]:
        raise InputError(
            f"the runs have tokens of dimension {first.sizes['axis']} and {second.sizes['axis']}: "
            "expected the same d"
        )


def shared(
    first: "xarray.Dataset", second: "xarray.Dataset", name: str, tolerance: float
) -> tuple[tuple[list[int], list[int]], NDArray[Any]]:
    """Places in both runs of the values of a coordinate that both have, and those values."""
    here, there = first[name].values, second[name].values
    nearest = [int(np.argmin(np.abs(there - value))) for value in here]
    pairs = [(i, j) for i, j in enumerate(nearest) if abs(there[j] - here[i]) < tolerance]
    places = [i for i, _ in pairs], [j for _, j in pairs]
    return places, here[places[0]]


def over_snapshots(ds: "xarray.Dataset", config: Config) -> FloatArray:
    """Trapezoidal sum of L over the snapshots, from the heads that the run holds."""
    if "heads" not in ds:
        raise InputError(
            "the run holds no heads at its snapshots: run it again with save_heads=True, or take "
            "weights='path'"
        )
    norms = _growth.norms(ds["heads"].values)
    constant = _growth.parts(norms, config["flow"]).one_sided(config["direction"])
    total = np.zeros_like(constant)
    pieces = np.diff(ds["snapshot"].values) * (constant[:, 1:] + constant[:, :-1]) / 2
    total[:, 1:] = np.cumsum(pieces, axis=1)
    return total


def over_path(
    ds: "xarray.Dataset",
    config: Config,
    law: HeadLaw | None,
    times: NDArray[Any],
    paths: NDArray[Any],
) -> tuple[FloatArray, FloatArray]:
    """Exponent and growth constant, each (paths, times), with the heads made again step by step."""
    law = law_from_config(config["law"]) if law is None else _same_law(law, config)
    heads = config["heads"]
    if law.initial() is not None:
        heads = None
    elif not isinstance(heads, int):
        heads = ds["initial_heads"].values
    dt = config["dt"]
    places = np.rint(times / dt).astype(np.int64)
    total, constant = np.zeros((2, len(paths), len(places)))
    rows = [0] if law.deterministic else range(len(paths))
    for row in rows:
        steps = int(places[-1])
        walk = head_path(
            law,
            heads=heads,
            d=ds.sizes["axis"],
            t_final=max(steps, 1) * dt,
            dt=dt,
            seed=config["seed"],
            path=int(paths[row]),
            scheme=config["scheme"],
        )
        norms = np.array([_growth.norms(D) for _, D in walk])  # (steps + 1, heads)
        rates, added = _rates(norms, config, dt)
        summed = np.concatenate([[0.0], np.cumsum(added)])
        total[row], constant[row] = summed[places], rates[places]
    if law.deterministic:
        total[1:], constant[1:] = total[0], constant[0]
    return total, constant


def _same_law(law: HeadLaw, config: Config) -> HeadLaw:
    """The law given for a run, if the run was made with it."""
    from wflow.runfile import config_text, differences

    if not isinstance(law, HeadLaw):
        raise InputError(f"law is {law!r}: expected a wflow.heads law, the one of the run")
    differ = differences(config["law"], json.loads(config_text(law.config())))
    if differ:
        raise InputError(
            f"the law differs from that of the run in {', '.join(differ)}: give the law that the "
            "run was made with"
        )
    return law


def _rates(norms: FloatArray, config: Config, dt: float) -> tuple[FloatArray, FloatArray]:
    """L at every step (steps + 1,), and what each step adds to the exponent (steps,)."""
    parts = _growth.parts(norms, config["flow"])
    rate, lipschitz = parts.one_sided(config["direction"]), parts.lipschitz()
    if config["scheme"] != "euler":
        # Each norm is convex along heads that move on a line, and L grows with each; L itself need
        # not be convex (`effective`: one head grows as another shrinks).
        largest = _growth.parts(np.maximum(norms[1:], norms[:-1]), config["flow"])
        return rate, dt * largest.one_sided(config["direction"])
    with np.errstate(over="ignore"):
        return rate, np.log1p(2 * dt * rate + (dt * lipschitz) ** 2)[:-1] / 2
