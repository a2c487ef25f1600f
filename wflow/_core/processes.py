"""Processes that compute for this one: how they start and end.

Each imports the script that starts it. Without a main guard it would start processes in turn, so
that Python ends it, with a traceback; here it ends in silence, and the script says why.
"""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import current_process, get_context, parent_process
from pathlib import Path
from typing import Any

from wflow._core.errors import InputError, without_traceback

_MARK = "WFLOW_UNGUARDED"  # names a file in which a process leaves that the guard is missing


def check_main_guard() -> None:
    """Stop a worker process that imports an unguarded script which started it.

    What starts processes calls this before it touches any file.

    Raises
    ------
    SystemExit
        In a process that was started within `starting_processes`, which raises the error.
    InputError
        In one that was started by others.
    """
    # By this Python itself refuses to start processes; it has no public name.
    if not getattr(current_process(), "_inheriting", False):
        return
    with suppress(KeyError, OSError):
        Path(os.environ[_MARK]).touch()
        sys.exit(1)
    raise _unguarded()


@contextmanager
def starting_processes(
    did: str, advice: str, broken: type[RuntimeError] = BrokenProcessPool
) -> Iterator[None]:
    """Start processes in the block, and report why if they end prematurely.

    Parameters
    ----------
    did : what they are for, such as "made tokens"
    advice : sentence for a process that was killed
    broken : what the block raises then

    Raises
    ------
    InputError
        Where one was killed; where the script lacks the guard, a script that the error ends prints
        its two lines alone.
    """
    check_main_guard()
    before = os.environ.get(_MARK)
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder, "unguarded")
        os.environ[_MARK] = str(mark)
        try:
            yield
        except broken as error:
            if mark.exists():
                raise _unguarded() from None
            raise InputError(
                f"a process that {did} was killed, perhaps for want of memory, or could not start "
                f"({error}): a script needs if __name__ == '__main__' around the call. {advice}"
            ) from None
        finally:
            del os.environ[_MARK]
            if before is not None:
                os.environ[_MARK] = before


class _Unguarded(InputError):
    def __str__(self) -> str:
        return str(self.args[0])  # two lines, which quote nothing


def _unguarded() -> InputError:
    return without_traceback(
        _Unguarded(
            "the processes that were to compute import this script, which starts processes itself\n"
            'put the call under `if __name__ == "__main__":`, and start the script again'
        )
    )


def pool(count: int, begin: Callable[..., Any], *args: Any) -> ProcessPoolExecutor:
    """Open processes that end with this one and ignore Ctrl-C; `begin` prepares each of them."""
    return ProcessPoolExecutor(count, get_context("spawn"), _begin, (begin, *args))


def _begin(begin: Callable[..., Any], *args: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    begin(*args)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
