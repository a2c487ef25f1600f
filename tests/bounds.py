"""Bounds on the memory and the time of calls that should be refused at once."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Hangs(BaseException):
    """A call took too long."""


@contextmanager
def bounded(room: int) -> Iterator[None]:
    """Let the process take at most so many bytes of address space more than it has."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `Hangs` in what takes longer."""

    def end(*_: Any) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
