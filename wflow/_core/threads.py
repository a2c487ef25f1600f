"""Number of threads of the compiled functions, and the start of Numba's threads.

A parallel function is compiled twice, with threads and without, each when it is first needed. Where
one thread is to compute, the second is called, and Numba starts no threads: a process that has none
can be forked. In a fork of a process that had started them, one thread always computes.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numba

from wflow._core.checks import whole
from wflow._core.errors import InputError
from wflow._core.forks import threads_lost, threads_started

# Pairs of tokens below which another thread costs more than it saves. A thread that sleeps between
# calls takes some 0.1 ms to wake, more on virtual cores: with 2^17 pairs a step of minimizing
# movements took three times as long on two threads as on one.
_PAIRS = 2**20


class _Limit(threading.local):
    number: int | None = None  # None: as many as Numba says


_limit = _Limit()


def available() -> int:
    """Return the number of threads that the compiled functions of this process can have."""
    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


def current() -> int:
    """Return the number of threads that compiled functions have when they are called now."""
    if threads_lost():
        return 1
    if _limit.number is not None:
        return _limit.number
    return int(numba.get_num_threads()) if threads_started() else available()


def one_thread() -> None:
    """Limit the compiled functions that this Python thread calls to one thread."""
    _limit.number = 1


def threads_for(pairs: int, each: int = _PAIRS) -> AbstractContextManager[int]:
    """Limit the compiled functions called within to as many threads as `pairs` pairs are worth, so
    that every thread has at least `each` of them; yield the number of threads."""
    before = current()
    number = max(1, min(before, pairs // each))
    return nullcontext(number) if number == before else _limited(number)


@contextmanager
def numba_threads(threads: int | None, name: str = "threads") -> Iterator[None]:
    """Limit the compiled functions called within to this many threads; None sets no limit.

    `name` is what messages call the number.
    """
    if threads is None:
        yield
        return
    threads = whole(threads, name)
    if threads > available():
        raise InputError(f"{name} is {threads}: this machine offers {available()}")
    with _limited(threads):
        yield


@contextmanager
def _limited(number: int) -> Iterator[int]:
    before = _limit.number
    _limit.number = number
    try:
        yield number
    finally:
        _limit.number = before


def on_threads(parallel: Callable[..., Any], sequential: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `parallel`, or `sequential` for computation on one thread.

    Parameters
    ----------
    parallel, sequential : one function, compiled with parallel loops and without
    """

    @functools.wraps(parallel)
    def call(*arguments: Any) -> Any:
        number = current()
        if number == 1:
            return sequential(*arguments)
        with _one_at_a_time:
            held = _start_threads()
        with held:
            if _limit.number is None:
                return parallel(*arguments)
            before = numba.get_num_threads()
            if before == number:
                return parallel(*arguments)
            numba.set_num_threads(number)
            try:
                return parallel(*arguments)
            finally:
                numba.set_num_threads(before)

    return call


_one_at_a_time = threading.RLock()


@functools.cache
def _start_threads() -> AbstractContextManager[Any]:
    """Make Numba load its threads, with a short spin time while they wait.

    A thread of GNU OpenMP that waits spins for milliseconds before it sleeps; where other programs
    share the cores, the spinning takes the time of the thread it waits for: beside one busy process
    a step took up to 50 times longer. The library reads the setting when it is loaded, now; it does
    not stay in the environment, which belongs to the program.

    Returns
    -------
    what a call holds while it computes: the threading layer `workqueue` ends a process in which two
    threads of Python call it at once, so that there they wait for each other
    """
    given = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys()
    if not given:
        os.environ["GOMP_SPINCOUNT"] = "10000"
    try:
        numba.get_num_threads()
    finally:
        if not given:
            os.environ.pop("GOMP_SPINCOUNT", None)
    return _one_at_a_time if numba.threading_layer() == "workqueue" else nullcontext()
