"""Labelled cases of a study: initial heads and seeds, and tables of their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.errors import InputError
from wflow._core.progress import Advance
from wflow._core.progress import progress as shown
from wflow._core.rng import INITIAL_HEADS, CounterNormals
from wflow.distributed.sweep import table

if TYPE_CHECKING:
    from xarray import Dataset

FloatArray = NDArray[np.float64]
Labels = Mapping[str, tuple[Sequence[Any] | NDArray[Any], str]]
"""Dimension -> (labels, text): the coordinates of a table."""


def tabulate(
    cases: Labels,
    measure: Callable[..., Mapping[str, ArrayLike]],
    variables: Mapping[str, str | tuple[Sequence[str], str]],
    along: Labels | None = None,
    progress: str | Advance = "",
) -> Dataset:
    """Measure every combination of labels and return the numbers as a labelled table.

    ``measure(a, b, ...)`` is called once for each combination, the last dimension fastest, with the
    labels in the order of `cases`. What it returns under a name becomes
    ``table[name].sel(first=a, second=b, ...)``.

    Parameters
    ----------
    cases : dict of str to tuple
        Dimension -> (labels, text), the dimensions that are swept.
    measure : callable
        Function of the labels of one case, whose value is a dict of arrays by name; every case
        returns the same names and shapes.
    variables : dict of str to str or tuple
        Name -> text of a number, or (dimensions, text) of an array that one case has.
    along : dict of str to tuple, optional
        Dimension -> (labels, text), those dimensions.
    progress : str or callable, default ""
        Text beside a bar that shows how far it has come, no bar if it is empty; or a
        function that is called with 1 after every case, as `Session.progress` gives it.

    Returns
    -------
    xarray.Dataset
        Every variable over the dimensions of `cases` and its own, with `long_name` and `units`.

    Raises
    ------
    InputError
        Where `measure` returns other names than `variables` has, or arrays of another shape than
        its dimensions.

    Examples
    --------
    >>> from wflow import study
    >>> table = study.tabulate(
    ...     {"n": ([10, 20], "number of tokens")},
    ...     lambda n: {"inverse": 1 / n},
    ...     {"inverse": "1/n"},
    ... )
    >>> table["inverse"].values.tolist()
    [0.1, 0.05]
    """
    import xarray

    coords = {**cases, **(along or {})}
    described = {
        name: ((), text) if isinstance(text, str) else (tuple(text[0]), text[1])
        for name, text in variables.items()
    }
    sizes = {dim: len(labels) for dim, (labels, _) in coords.items()}
    rows: list[Dataset | None] = []
    bar: AbstractContextManager[Advance] = (
        nullcontext(progress)
        if callable(progress)
        else shown(math.prod(sizes[dim] for dim in cases), progress, bool(progress))
    )
    with bar as advance:
        for labels in product(*(labels for labels, _ in cases.values())):
            values = measure(*labels)
            if not isinstance(values, Mapping) or set(values) != set(variables):
                has = sorted(values) if isinstance(values, Mapping) else values
                raise InputError(
                    f"the case {labels} has {has}: expected a dict of {sorted(variables)}, once "
                    "each"
                )
            row = {name: (dims, np.asarray(values[name])) for name, (dims, _) in described.items()}
            for name, (dims, array) in row.items():
                if array.shape != tuple(sizes[dim] for dim in dims):
                    raise InputError(
                        f"{name} of the case {labels} has shape {array.shape}: expected "
                        f"{tuple(sizes[dim] for dim in dims)}, the lengths of {dims}"
                    )
            rows.append(xarray.Dataset(row))
            advance(1)
    numbers = table({dim: labels for dim, (labels, _) in cases.items()}, rows)
    return dataset(
        {
            name: ((*cases, *dims), numbers[name].values, text)
            for name, (dims, text) in described.items()
        },
        coords,
    )


def dataset(
    variables: Mapping[str, tuple[str | Sequence[str], ArrayLike, str]], coords: Labels
) -> Dataset:
    """Make a table of numbers without units, each with its description.

    Parameters
    ----------
    variables : dict of str to tuple
        Name -> (dimensions, values, text).
    coords : dict of str to tuple
        Dimension -> (labels, text).

    Returns
    -------
    xarray.Dataset
        The table; `long_name` is the text, and what is a number has the unit 1.

    Examples
    --------
    >>> from wflow import study
    >>> table = study.dataset(
    ...     {"cost": ("n", [1.0, 4.0], "time of a step")}, {"n": ([10, 20], "number of tokens")}
    ... )
    >>> table["cost"].attrs["long_name"]
    'time of a step'
    """
    import xarray

    def described(values: Any, text: str) -> dict[str, str]:
        number = np.asarray(values).dtype.kind in "iuf"
        return {"long_name": text} | ({"units": "1"} if number else {})

    return xarray.Dataset(
        {
            name: (dims if isinstance(dims, str) else tuple(dims), values, described(values, text))
            for name, (dims, values, text) in variables.items()
        },
        {
            dim: (dim, np.asarray(labels), described(labels, text))
            for dim, (labels, text) in coords.items()
        },
    )


def initial_heads(seed: int, heads: int, d: int) -> FloatArray:
    """Return the heads Z + Z^T, Z standard normal, that a run of a seed starts from.

    Parameters
    ----------
    seed : int
        Seed of the run.
    heads : int
        Number of heads.
    d : int
        Dimension of the tokens.

    Returns
    -------
    ndarray of float64, shape (heads, d, d)
        Symmetric matrices.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import study
    >>> D = study.initial_heads(seed=0, heads=2, d=3)
    >>> D.shape, np.array_equal(D, D.swapaxes(1, 2))
    ((2, 3, 3), True)
    """
    z = CounterNormals(seed).draw((heads, d, d), path=0, step=0, purpose=INITIAL_HEADS)
    return np.asarray(z + z.swapaxes(-1, -2))


def seed_of(*key: int) -> int:
    """Return a seed for a key of whole numbers; draws of different keys are independent.

    Parameters
    ----------
    *key : int
        Whole numbers >= 0, such as a seed and the number of a case.

    Returns
    -------
    int
        Seed below 2^32.

    Examples
    --------
    >>> from wflow import study
    >>> study.seed_of(0, 1) == study.seed_of(0, 1) != study.seed_of(1, 0)
    True
    """
    return int(np.random.SeedSequence(key).generate_state(1, np.uint32)[0])
