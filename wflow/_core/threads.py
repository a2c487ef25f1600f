"""Number of threads of the compiled functions."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numba

from wflow._core.checks import whole
from wflow._core.compiled import start_threads
from wflow._core.errors import InputError

# Pairs of tokens below which another thread costs more than it saves. A thread that sleeps between
# calls takes some 0.1 ms to wake, more on virtual cores: with 2^17 pairs a step of minimizing
# movements took three times as long on two threads as on one.
_PAIRS = 2**20


def available() -> int:
    """Number of threads that the compiled functions of this process can have."""
    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


def current() -> int:
    """Number of threads that compiled functions have when they are called now."""
    start_threads()
    return int(numba.get_num_threads())


def one_thread() -> None:
    """Give the compiled functions that this thread of Python calls no other threads."""
    numba.set_num_threads(1)


def threads_for(pairs: int, each: int = _PAIRS) -> AbstractContextManager[int]:
    """Give the compiled functions called within no more threads than `pairs` pairs are worth, so
    that every thread has `each` of them or more; yields their number."""
    start_threads()
    before = numba.get_num_threads()
    number = max(1, min(before, pairs // each))
    if number == before:  # setting it costs as much as a small step's arithmetic
        return nullcontext(number)
    return _fewer(number, before)


@contextmanager
def _fewer(number: int, before: int) -> Iterator[int]:
    numba.set_num_threads(number)
    try:
        yield number
    finally:
        numba.set_num_threads(before)


@contextmanager
def numba_threads(threads: int | None, name: str = "threads") -> Iterator[None]:
    """Limit the compiled functions called within to this many threads; None leaves them alone.

    `name` is what messages call the number.
    """
    if threads is None:
        yield
        return
    threads = whole(threads, name)
    if threads > available():
        raise InputError(f"{name} is {threads}: this machine offers {available()}")
    start_threads()
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        yield
    finally:
        numba.set_num_threads(before)
