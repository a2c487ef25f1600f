"""SIGINT and SIGTERM as something to be asked for between steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Catch SIGINT and SIGTERM: the list receives the signal, and a second one is not caught.

    Python hears a signal when the compiled step in progress returns.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    previous = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}

    def note(kind: int, frame) -> None:
        caught.append(kind)
        for other, handler in previous.items():
            signal.signal(other, handler)

    for kind in previous:
        signal.signal(kind, note)
    try:
        yield caught
    finally:
        for kind, handler in previous.items():
            signal.signal(kind, handler)
