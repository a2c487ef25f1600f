"""Options of `wflow.solve` that are not needed every day: what to save, and how to compute."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import (
    Backend,
    Method,
    Precision,
    check_choice,
    number,
    shown,
    switch,
    times_of,
    whole,
    wholes,
)
from wflow._core.errors import InputError
from wflow._core.reprs import ShortRepr


@dataclass(frozen=True, kw_only=True, repr=False)
class SaveAt(ShortRepr):
    """What a run keeps, and when.

    Parameters
    ----------
    every : int, default 1
        The energy budget is recorded every so many steps, and at the end.
    snapshots : array_like of float, optional
        Times from 0 to t_final at which tokens are kept (nearest steps). None keeps the start and
        the end.
    paths : sequence of int, default (0,)
        Paths whose tokens are kept at the snapshots; the mean over all paths always is.
    heads : bool, default False
        Keep the heads of these paths at the snapshots as well; `wflow verify` recomputes the energy
        from them.
    budget : bool, optional
        Whether the energy and its budget are computed. None computes them for tied heads, and not
        for (Q, K, V) heads or a causal mask, which have none.

    Raises
    ------
    InputError
        By `wflow.solve`, for counts below one, times outside [0, t_final], paths that the run does
        not have, and for a budget of heads that have no energy.

    Notes
    -----
    In the theory: :ref:`the terms of the budget <theory-budget>`.

    Examples
    --------
    >>> import wflow
    >>> save = wflow.SaveAt(every=5, snapshots=[0.0, 0.5, 1.0], heads=True)
    >>> save.every, save.paths
    (5, (0,))
    """

    every: int = 1
    snapshots: Sequence[float] | NDArray[np.floating] | None = None
    paths: Sequence[int] | NDArray[np.integer] = (0,)
    heads: bool = False
    budget: bool | None = None

    def checked(self, name: str = "save") -> "SaveAt":
        """Return these options as plain numbers and tuples.

        Parameters
        ----------
        name : str, default "save"
            What messages call the options.

        Returns
        -------
        SaveAt
            The same options, checked.

        Raises
        ------
        InputError
            For a value that cannot be used, whatever the run.
        """
        found = None
        if self.snapshots is not None:
            found = times_of(self.snapshots, f"{name}.snapshots")
            if found.ndim > 1:
                raise InputError(
                    f"{name}.snapshots are {shown(self.snapshots)}: expected a list of times"
                )
        paths = wholes(self.paths, f"{name}.paths")
        return SaveAt(
            every=whole(self.every, f"{name}.every"),
            snapshots=None if found is None else tuple(found.reshape(-1).tolist()),
            paths=tuple(paths.tolist()),
            heads=switch(self.heads, f"{name}.heads"),
            budget=None if self.budget is None else switch(self.budget, f"{name}.budget"),
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Compute(ShortRepr):
    """How a run is computed: sums over pairs, precision, device, threads.

    Parameters
    ----------
    method : {"auto", "exact", "fast"}, default "auto"
        "exact" sums over all pairs, "fast" sums by series for d = 2 and 3, whose cost is linear in
        n, or "auto": at every step and path the one expected to take less time, by measurements
        on processors; with the torch backend always "exact".
    tolerance : float, default 1e-10
        Relative error that fast sums keep below; `sum_error` in the result estimates it.
    backend : {"numba", "torch"}, default "numba"
        "numba" on the processor, or "torch": the same sums on a GPU.
    device : str, optional
        Device of the torch backend: "cuda", "cuda:1", ... or "cpu". None means "cuda".
    dtype : {"float64", "float32"}, default "float64"
        "float64" or "float32", of tokens, heads and pair sums; the energy budget adds up in double
        precision.
    threads : int, optional
        Numba threads. None means all.
    batch : int, optional
        Paths that are integrated together. None means as many as fit into some memory.
    checkpoint_every : float, default 15.0
        Seconds between the states from which a killed run resumes.
    stop_at_blow_up : bool, default False
        Whether a path that blows up ends the run. Otherwise its values, and means over all paths,
        are NaN from there on, and the others continue.

    Raises
    ------
    InputError
        By `wflow.solve`, for unknown names, numbers out of range, more threads than the machine
        has, and fast sums for d > 3.

    Notes
    -----
    Threads, batch, checkpoint_every and stop_at_blow_up do not change a bit of the result.

    In the theory: :ref:`pair sums <theory-pair-sums>`, :ref:`fast sums <theory-fast-sums>`,
    :ref:`sums on a GPU <theory-gpu-sums>`.

    Examples
    --------
    >>> import wflow
    >>> wflow.Compute(method="fast", threads=2).tolerance
    1e-10
    """

    method: Method = "auto"
    tolerance: float = 1e-10
    backend: Backend = "numba"
    device: str | None = None
    dtype: Precision = "float64"
    threads: int | None = None
    batch: int | None = None
    checkpoint_every: float = 15.0
    stop_at_blow_up: bool = False

    def checked(self, name: str = "compute") -> "Compute":
        """Return these options as plain numbers.

        Parameters
        ----------
        name : str, default "compute"
            What messages call the options.

        Returns
        -------
        Compute
            The same options, checked.

        Raises
        ------
        InputError
            For a value that cannot be used, whatever the run.
        """
        for key, kind in (("method", Method), ("backend", Backend), ("dtype", Precision)):
            check_choice(f"{name}.{key}", getattr(self, key), get_args(kind))
        threads, batch = self.threads, self.batch
        return replace(
            self,
            tolerance=number(self.tolerance, f"{name}.tolerance"),
            threads=None if threads is None else whole(threads, f"{name}.threads"),
            batch=None if batch is None else whole(batch, f"{name}.batch"),
            checkpoint_every=number(self.checkpoint_every, f"{name}.checkpoint_every", least=0.0),
            stop_at_blow_up=switch(self.stop_at_blow_up, f"{name}.stop_at_blow_up"),
        )


Options = TypeVar("Options", SaveAt, Compute)


def option(given: Any, kind: type[Options], name: str) -> Options:
    """Check that an argument is a `SaveAt` or a `Compute`, and what it holds.

    Raises
    ------
    InputError
        For another object, and for what `kind.checked` refuses.
    """
    if not isinstance(given, kind):
        example = "every=5" if kind is SaveAt else "threads=2"
        raise InputError(
            f"{name} is {shown(given)}: expected a wflow.{kind.__name__}, such as "
            f"{name}=wflow.{kind.__name__}({example})"
        )
    return given.checked(name)
