"""Forks of a process that had started threads.

A fork has the memory of its parent and none of its threads. GNU OpenMP does not notice: PyTorch
waits there for threads that do not exist, and Numba, which does notice, computes nothing and sends
the process SIGTERM.
"""

import os
import sys

_lost: set[str] = set()


def threads_lost(library: str = "numba") -> bool:
    """Return whether this process is a fork of one with Numba's threads, or PyTorch ("torch")."""
    return library in _lost


def threads_started() -> bool:
    """Return whether Numba has started its threads, in this process or before it was forked."""
    layer = getattr(sys.modules.get("numba"), "threading_layer", None)
    if layer is None:
        return False
    try:
        layer()
    except ValueError:  # by its documentation, before any thread
        return False
    return True


def _forked() -> None:
    if threads_started():
        _lost.add("numba")
    if "torch" in sys.modules:
        _lost.add("torch")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
