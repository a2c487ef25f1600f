"""SIGINT and SIGTERM: recorded and polled between steps, or raised as an error at once."""

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from wflow._core.errors import Interrupted, without_traceback
from wflow._core.forks import threads_lost

_KINDS = (signal.SIGINT, signal.SIGTERM)
_AGAIN = 0.02  # seconds until a signal is sent again whose error Python dropped


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Catch SIGINT and SIGTERM: the list receives the signal, and a second one is not caught.

    Python hears a signal when the compiled step in progress returns.
    """
    caught: list[int] = []

    def note(kind: int, frame: FrameType | None) -> None:
        caught.append(kind)

    with _handled(note):
        yield caught


@contextmanager
def signals_held() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the end of the block, which must not be interrupted."""
    with caught_signals() as caught:
        yield
    if caught:
        signal.raise_signal(caught[0])


@contextmanager
def signals_as_errors(after: str | Callable[[], str]) -> Iterator[None]:
    """Raise `Interrupted` in the block on SIGINT and SIGTERM; a second signal is not caught.

    Python drops what a handler raises in a finalizer or in the callback of a weak reference. The
    signal is then sent again until the block is left. What is dropped otherwise counts at the end.

    Parameters
    ----------
    after : what the message says after the name of the signal, such as "ended the study; ..."
    """

    caught: list[int] = []

    def leave(kind: int, frame: FrameType | None) -> None:
        caught.append(kind)
        raise _Arrived(kind)

    try:
        with _handled(leave) as handle_again, _sent_again(handle_again):
            yield
        if caught:
            raise _Arrived(caught[0])
    except BaseException as error:
        # Compiled code may turn what the handler raised into another error (Cython: SystemError).
        if not caught or isinstance(error, Interrupted):
            raise
        text = after if isinstance(after, str) else after()
        raise interrupted(caught[0], text) from None


def interrupted(kind: int, text: str) -> Interrupted:
    """Return the exception of a signal; `text` follows its name and says how to resume."""
    return without_traceback(Interrupted(f"{signal.Signals(kind).name} {text}", kind))


class _Arrived(KeyboardInterrupt):
    """Exception raised by a handler; not an `Exception`, because libraries catch those."""

    def __init__(self, kind: int) -> None:
        super().__init__(kind)
        self.kind = kind


@contextmanager
def _sent_again(handle_again: Callable[[], None]) -> Iterator[None]:
    """Send a signal again after a moment, where Python dropped the error that it raised."""
    if not _on_main_thread():
        yield
        return
    main, show = threading.get_ident(), sys.unraisablehook
    inside, leaving = True, threading.Lock()

    def send(kind: int) -> None:
        time.sleep(_AGAIN)
        with leaving:
            if inside:
                signal.pthread_kill(main, kind)  # this also wakes a main thread that waits

    def dropped(unraisable: "sys.UnraisableHookArgs") -> None:
        if not isinstance(unraisable.exc_value, _Arrived):
            show(unraisable)
            return
        handle_again()
        # Not threading.Thread: its start takes locks that the main thread may hold here.
        _thread.start_new_thread(send, (unraisable.exc_value.kind,))

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        with leaving:
            inside = False
        sys.unraisablehook = show


@contextmanager
def _handled(handle: Callable[[int, FrameType | None], None]) -> Iterator[Callable[[], None]]:
    """Handle the first signal; later signals meet the handlers that wflow replaced.

    Yields
    ------
    function that lets `handle` have one more signal
    """
    if not _on_main_thread():
        yield lambda: None
        return
    kinds = (signal.SIGINT,) if threads_lost() else _KINDS
    previous: dict[int, Any] = {kind: signal.getsignal(kind) for kind in _KINDS}
    process = os.getpid()

    def first(kind: int, frame: FrameType | None) -> None:
        for other in kinds:
            signal.signal(other, outermost[other])
        if kind == signal.SIGTERM and os.getpid() != process:  # a fork, which this block is not for
            signal.raise_signal(kind)
        else:
            handle(kind, frame)

    def arm() -> None:
        for kind in kinds:
            signal.signal(kind, _First(first, outermost[kind]))

    outermost = {kind: getattr(old, "outermost", old) for kind, old in previous.items()}
    try:
        if threads_lost():  # SIGTERM may be of a layer that computed nothing: the process ends
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        arm()
        yield arm
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class _First:
    """A handler of wflow, with the handler that it replaced."""

    def __init__(self, handle: Callable[[int, FrameType | None], None], outermost: Any) -> None:
        self.handle, self.outermost = handle, outermost

    def __call__(self, kind: int, frame: FrameType | None) -> None:
        self.handle(kind, frame)
