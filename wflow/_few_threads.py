"""As many threads as the work is worth, for loops that call a compiled function over and over."""

from collections.abc import Iterator
from contextlib import contextmanager

import numba

# Pairs of tokens below which another thread costs more than it saves: about 0.1 ms of work, and
# several times the time that waking a thread takes where other programs share the cores.
_PAIRS = 2**17


@contextmanager
def threads_for(pairs: int) -> Iterator[None]:
    """Give the compiled functions called within no more threads than `pairs` pairs are worth."""
    before = numba.get_num_threads()
    numba.set_num_threads(max(1, min(before, pairs // _PAIRS)))
    try:
        yield
    finally:
        numba.set_num_threads(before)
