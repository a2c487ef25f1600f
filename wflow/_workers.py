"""Where the runs of a study are computed: in this process, or by workers of dask."""

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from wflow.errors import InputError, Interrupted, WflowError
from wflow.progress import progress

Task = dict[str, Any]  # arguments of wflow.solve, `out` among them
Pool = Callable[[list[Task]], None]

CONNECT_SECONDS = 10
_BARS = 8  # runs up to which each has a progress bar of its own

_log = logging.getLogger("wflow")

# Numba's own threads serve one caller at a time in a process.
_one_run = threading.Lock()


@contextmanager
def pool(workers: int = 0, scheduler: str | None = None) -> Iterator[Pool]:
    """Open the place where runs are computed, and yield a function that computes a list of them.

    Parameters
    ----------
    workers : worker processes started for this call; 0: one run after the other in this process
    scheduler : address of a dask scheduler that runs already

    Raises
    ------
    InputError
        Where dask is not installed, or no scheduler answers within ten seconds.
    """
    if not workers and not scheduler:
        yield _in_this_process
        return
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise InputError(
            "--workers and --scheduler need dask: pip install 'wflow[dask]', or leave them out"
        ) from None
    with _signals_as_errors():
        if scheduler is None:
            # No limit of memory: runs stay small, and dask would kill a worker that nears it.
            with (
                LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    memory_limit=0,
                    dashboard_address=None,
                    silence_logs="ERROR",
                ) as cluster,
                Client(cluster) as client,
            ):
                yield lambda tasks: _by_workers(client, tasks)
            return
        try:
            client = Client(scheduler, timeout=CONNECT_SECONDS)
        except (OSError, ValueError) as error:
            raise InputError(
                f"no dask scheduler at --scheduler {scheduler} within {CONNECT_SECONDS} s "
                f"({error}); start one with `dask scheduler`, or leave the flag out"
            ) from None
        with client:
            yield lambda tasks: _by_workers(client, tasks)


def default_threads(workers: int) -> int | None:
    """Threads of one run where `workers` run at the same time; None leaves it to Numba."""
    return max(1, available_threads() // workers) if workers else None


def available_threads() -> int:
    """Number of threads that a run in this process can have."""
    from numba import config

    return int(config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


def _in_this_process(tasks: list[Task]) -> None:
    from wflow.solver import solve

    if len(tasks) <= _BARS:
        for task in tasks:
            solve(**task, progress=True).close()
        return
    with progress(len(tasks), "runs") as advance:
        for task in tasks:
            solve(**task).close()
            advance(1)


def _work(task: Task) -> float:
    """How much there is to compute: steps x paths x heads x n^2 d, up to a factor."""
    heads = task.get("heads")
    count = heads if isinstance(heads, int) else max(1, len(np.atleast_1d(heads)))  # type: ignore[arg-type]
    n, d = np.shape(task["x0"])[-2:]
    return task["t_final"] / task["dt"] * task.get("paths", 1) * count * n * n * (d + 7)


def _by_workers(client: Any, tasks: list[Task]) -> None:
    from distributed import as_completed

    # The longest run must not be the one that starts last.
    tasks = sorted(tasks, key=_work, reverse=True)
    remote = [task | {"out": Path(task["out"]).absolute()} for task in tasks]
    arguments = list(sys.argv), _log.getEffectiveLevel()
    with _logs_of(client), progress(len(tasks), "runs") as advance:
        futures = [client.submit(run_task, task, *arguments, pure=False) for task in remote]
        try:
            for future in as_completed(futures):
                error = future.result()
                if error:
                    raise WflowError(error)
                advance(1)
        except BaseException:
            client.cancel(futures)
            raise
    unseen = [task["out"] for task in tasks if not Path(task["out"]).exists()]
    if unseen:
        raise InputError(
            f"the workers wrote {unseen[0]} where this process cannot see it; give an --out on a "
            "disk that all of them share"
        )


def run_task(task: Task, command: list[str], log_level: int = logging.WARNING) -> str:
    """Compute one run in a worker; returns "" or what went wrong, which travels as plain text."""
    from wflow.solver import solve

    with _one_run:
        # The run file records the command that started the study, not that of the worker.
        own, sys.argv = sys.argv, command
        own_level = _log.level
        _log.setLevel(log_level)
        try:
            solve(**task).close()
        except WflowError as error:
            return str(error)
        finally:
            sys.argv = own
            _log.setLevel(own_level)
    return ""


@contextmanager
def _logs_of(client: Any) -> Iterator[None]:
    """Bring what workers log to this process, where somebody here listens."""
    if not _log.isEnabledFor(logging.INFO):
        yield
        return
    client.forward_logging("wflow", logging.INFO)
    try:
        yield
    finally:
        client.unforward_logging("wflow")


@contextmanager
def _signals_as_errors() -> Iterator[None]:
    """Leave on SIGINT and SIGTERM in good order: workers are stopped, their runs can be resumed."""

    def leave(number: int, frame: Any) -> None:
        name = signal.Signals(number).name
        raise Interrupted(
            f"{name} ended the study; give the same command with --resume to go on", number
        )

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
