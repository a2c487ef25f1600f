"""Options of `wflow.solve` that are not needed every day: what to save, and how to compute."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import (
    Backend,
    Method,
    Precision,
    check_choice,
    number,
    reals,
    shown,
    switch,
    whole,
    wholes,
)
from wflow._core.errors import InputError

IfExists = Literal["error", "overwrite", "resume"]


@dataclass(frozen=True, kw_only=True)
class SaveAt:
    """What a run keeps, and when.

    Parameters
    ----------
    every : the energy budget is recorded every so many steps, and at the end
    snapshots : times at which tokens are kept (nearest steps); None: start and end
    paths : paths whose tokens are kept at the snapshots; the mean over all paths always is
    heads : keep the heads of these paths at the snapshots as well; `wflow verify` recomputes the
        energy from them
    budget : False to run without the energy; None: kept for tied heads, and not for (Q, K, V) heads
        or a causal mask, which have none

    Raises
    ------
    InputError
        By `wflow.solve`, for counts below one, times outside [0, t_final], paths that the run does
        not have, and for a budget of heads that have no energy.

    Source: docs/guide/run_files.md; the terms of the budget: docs/theory/energy.md.

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
        """These options as plain numbers and tuples; `name` is what messages call them.

        Raises
        ------
        InputError
            For a value that cannot be used, whatever the run.
        """
        times = None
        if self.snapshots is not None:
            times = reals(self.snapshots, f"{name}.snapshots")
            if times.ndim > 1:
                raise InputError(
                    f"{name}.snapshots are {shown(self.snapshots)}: expected a list of times"
                )
        paths = wholes(self.paths, f"{name}.paths")
        return SaveAt(
            every=whole(self.every, f"{name}.every"),
            snapshots=None if times is None else tuple(times.reshape(-1).tolist()),
            paths=tuple(paths.tolist()),
            heads=switch(self.heads, f"{name}.heads"),
            budget=None if self.budget is None else switch(self.budget, f"{name}.budget"),
        )


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How a run is computed: sums over pairs, precision, device, threads.

    Parameters
    ----------
    method : "exact" sums over all pairs, "fast" sums by series for d = 2 and 3, whose cost is
        linear in n, or "auto": at every step and path the one expected to take less time
    tolerance : relative error that fast sums keep below; `sum_error` in the result estimates it
    backend : "numba" on the processor, or "torch": exact sums on a GPU
    device : of the torch backend: "cuda", "cuda:1", ... or "cpu"; None means "cuda"
    dtype : "float64" or "float32", of tokens, heads and pair sums; the energy budget adds up in
        double precision
    threads : Numba threads; None: all
    batch : paths that are integrated together; None: by memory
    checkpoint_every : seconds between the states from which a killed run resumes

    The last three do not change a bit of the result.

    Raises
    ------
    InputError
        By `wflow.solve`, for unknown names, numbers out of range, more threads than the machine
        has, and fast sums for d > 3.

    Source: docs/theory/method.md, pair sums and the exact sums on a GPU.

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

    def checked(self, name: str = "compute") -> "Compute":
        """These options as plain numbers; `name` is what messages call them.

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
