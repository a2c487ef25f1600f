"""Signals that arrive where Python drops what a handler raises."""

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable

import pytest

from wflow import Interrupted
from wflow._core.signals import signals_as_errors


class Thing:
    pass


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
    thing = Thing()
    noted = weakref.ref(thing, lambda _: Ends().__del__())
    del thing
    assert noted() is None


def swallowed_by_a_library() -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    except BaseException:
        pass


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
    class Wrong:
        def __del__(self) -> None:
            raise ValueError("wrong")

    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: ignored.append(dropped.exc_type))
    with signals_as_errors("ended it"):
        Wrong()
    assert ignored == [ValueError]


def test_the_second_signal_ends_the_process_though_the_first_met_a_finalizer() -> None:
    code = (
        "import os, signal, time\n"
        "from test_signals import Ends\n"
        "from wflow._core.signals import signals_as_errors\n"
        "with signals_as_errors('ended it'):\n"
        "    Ends()\n"
        "    try:\n"
        "        time.sleep(20)\n"
        "    finally:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(20)\n"
    )
    paths = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": paths}, timeout=15
    )
    assert done.returncode == -signal.SIGTERM


def test_signals_beside_the_garbage_of_many_files_are_not_lost(tmp_path) -> None:
    """Weak references to h5py's and xarray's objects end all the time while a file is read."""
    import numpy as np

    import wflow

    file = tmp_path / "run.h5"
    with wflow.solve(np.eye(3), wflow.heads.Frozen(), heads=1, t_final=0.1, dt=0.1, out=file):
        pass
    for number in range(15):
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, 0.05 + 0.003 * (number % 20))
        with pytest.raises(Interrupted), signals_as_errors("ended it"):
            until = time.monotonic() + 2
            while time.monotonic() < until:
                with wflow.open(file) as ds:
                    assert ds["time"].values.size
            raise AssertionError("the signal is lost")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
