"""Signals that arrive where Python drops what a handler raises."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import wflow
from wflow import Interrupted
from wflow._core.signals import signals_as_errors


class Ends:
    """Gets a signal while it is deleted."""

    def __init__(self, kind: signal.Signals = signal.SIGTERM) -> None:
        self.kind = kind

    def __del__(self) -> None:
        os.kill(os.getpid(), self.kind)
        for _ in range(100):  # here Python calls the handler
            pass


def in_a_finalizer() -> None:
    Ends()


def in_a_callback_of_a_weak_reference() -> None:
    thing = type("Thing", (), {})()
    noted = weakref.ref(thing, lambda _: Ends().__del__())
    del thing
    assert noted() is None


def swallowed_by_a_library() -> None:
    with contextlib.suppress(BaseException):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)


def wait() -> None:
    for _ in range(2000):
        time.sleep(0.01)


@pytest.mark.parametrize("arrives", [in_a_finalizer, in_a_callback_of_a_weak_reference])
def test_a_signal_in_a_finalizer_ends_the_block_soon(
    arrives: Callable[[], None], monkeypatch, capsys
) -> None:
    begun, ignored = time.monotonic(), []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with pytest.raises(Interrupted, match="SIGTERM it") as stop, signals_as_errors("it"):
        arrives()
        wait()
    assert time.monotonic() - begun < 5
    assert stop.value.signum == signal.SIGTERM
    assert not ignored and not capsys.readouterr().err
    assert sys.unraisablehook == ignored.append
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("arrives", [in_a_finalizer, swallowed_by_a_library])
def test_a_signal_whose_error_is_dropped_ends_the_block_at_its_end(arrives) -> None:
    with pytest.raises(Interrupted, match="SIGTERM ended it"), signals_as_errors("ended it"):
        arrives()
    time.sleep(0.1)  # nothing comes after the block


def test_a_signal_that_meets_one_finalizer_after_the_other_is_not_lost() -> None:
    begun = time.monotonic()
    with pytest.raises(Interrupted, match="SIGINT ended it"), signals_as_errors("ended it"):
        Ends(signal.SIGINT)
        busy = Busy()
        del busy
        wait()
    assert time.monotonic() - begun < 5


class Busy:
    def __del__(self) -> None:
        time.sleep(0.3)


def test_other_errors_of_finalizers_are_shown_as_before(monkeypatch) -> None:
    wrong, ignored = type("Wrong", (), {"__del__": lambda _: 1 / 0}), []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: ignored.append(dropped.exc_type))
    with signals_as_errors("ended it"):
        wrong()
    assert ignored == [ZeroDivisionError]


KINDS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_carries_on_after_errors_stops(tmp_path, kind, monkeypatch, capsys) -> None:
    """And a script that this ends says how to resume, and has the status of the signal."""
    begun = []

    def drift(D, t):
        if t > 0.05:
            signal.raise_signal(kind)
        return -D

    def sweep() -> None:
        for seed in range(3):
            begun.append(seed)
            out = tmp_path / f"{seed}.h5"
            options = {"heads": 1, "t_final": 1.0, "dt": 0.1, "seed": seed, "out": out}
            try:
                wflow.solve(np.eye(3), wflow.heads.HeadLaw(drift), **options)
            except Exception:
                continue

    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with pytest.raises(KeyboardInterrupt, match="if_exists='resume'") as caught:
        sweep()
    assert begun == [0] and isinstance(caught.value, Interrupted)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.signum) == (str(caught.value), kind)
    with pytest.raises(SystemExit) as end:
        sys.excepthook(caught.type, caught.value, caught.tb)
    assert end.value.code == 128 + kind
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "if_exists='resume'" in said


def script(code: str, *flags: str, **options) -> subprocess.CompletedProcess[str]:
    """Return what a script does that a signal ends."""
    code = (
        "import atexit, signal\nfrom wflow._core.signals import signals_as_errors\n"
        "def stopped(kind):\n"
        "    with signals_as_errors('ended it: resume it'):\n"
        "        signal.raise_signal(kind)\n" + code
    )
    command = [sys.executable, *flags, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_that_a_signal_ends_has_its_status_and_no_traceback(kind) -> None:
    done = script(f"atexit.register(print, 'the end')\nstopped({int(kind)})\n")
    assert (done.returncode, done.stdout) == (128 + kind, "the end\n")
    assert done.stderr == f"wflow: {kind.name} ended it: resume it\n"


def test_other_errors_of_a_script_and_of_a_session_are_shown_as_before() -> None:
    caught = "try: stopped(2)\nexcept KeyboardInterrupt: pass\n"
    done = script(caught + "raise KeyError('its own')\n")
    assert done.returncode == 1 and "Traceback" in done.stderr and "its own" in done.stderr
    goes_on = script("stopped(2)\n", "-i", input="print('still here')\n")
    assert goes_on.returncode == 0 and "still here" in goes_on.stdout
    assert "Traceback" in goes_on.stderr and "ended it" in goes_on.stderr
