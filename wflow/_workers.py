"""Where the runs of a study are computed: in this process, or by workers of dask."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wflow.errors import BlowUpError, InputError, Interrupted
from wflow.progress import progress

if TYPE_CHECKING:
    from wflow._plan import Task

Pool = Callable[["list[Task]"], None]

CONNECT_SECONDS = 10
TASK_SECONDS = 5.0  # what a task should take
_BARS = 8  # runs up to which each has a progress bar of its own
_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@contextmanager
def pool(
    workers: int = 0,
    scheduler: Any = None,
    *,
    threads: int | None = None,
    seconds: float | None = None,
) -> Iterator[Pool]:
    """Open the place where runs are computed, and yield a function that computes a list of them.

    Parameters
    ----------
    workers : worker processes started for this call; 0: one run after the other in this process
    scheduler : address of a dask scheduler that runs already, or a client of one
    threads : of each worker that is started here; default: the cores, shared between them
    seconds : what a task should take; default `TASK_SECONDS`

    Raises
    ------
    InputError
        Where dask is not installed, or no scheduler answers within ten seconds.
    """
    if not workers and not scheduler:
        yield in_this_process
        return
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "--workers and --scheduler need dask: pip install 'wflow[dask]', or leave them out"
        ) from None
    from wflow._dispatch import by_workers

    wanted = TASK_SECONDS if seconds is None else seconds
    with _signals_as_errors(), _quiet_client(), ExitStack() as stack:
        if isinstance(scheduler, Client):
            client = scheduler
        elif scheduler is None:
            cluster = stack.enter_context(local_cluster(workers, threads))
            client = stack.enter_context(Client(cluster, set_as_default=False))
        else:
            client = stack.enter_context(_client_of(scheduler))
        yield lambda tasks: by_workers(client, tasks, wanted)


@contextmanager
def local_cluster(workers: int, threads: int | None) -> Iterator[Any]:
    """Worker processes on this machine, each with its share of the cores."""
    import dask
    from distributed import LocalCluster

    share = str(threads or default_threads(workers))
    settings = {
        # What limits the threads of BLAS must be there before it is loaded; dask sets it in this
        # process. Numba, which is loaded later, would refuse to compile here if it saw a change.
        "distributed.nanny.pre-spawn-environ": {name: share for name in _LIMITS},
        "distributed.nanny.environ": {"NUMBA_NUM_THREADS": share},
        # A worker that computes one long step is silent; here its death shows by its process.
        "distributed.scheduler.worker-ttl": None,
    }
    # No limit of memory: runs stay small, and dask would kill a worker that nears it.
    with (
        _environment_restored(),
        dask.config.set(settings),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            memory_limit=0,
            dashboard_address=None,
            scheduler_kwargs={
                "dashboard_address": "127.0.0.1:0"
            },  # a port of its own, whoever runs
            silence_logs="CRITICAL",
        ) as cluster,
    ):
        yield cluster


@contextmanager
def _environment_restored() -> Iterator[None]:
    """Give the limits of threads back the values they have now, for later children."""
    before = {name: os.environ.get(name) for name in _LIMITS}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _client_of(address: str) -> Any:
    """A client of a scheduler that runs already."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from distributed import Client, Security
    from distributed.comm import connect

    async def ring() -> None:
        # Asked before there is a client: one that cannot connect takes long to go away.
        comm = await connect(address, **Security().get_connection_args("client"))
        await comm.close()

    try:
        with ThreadPoolExecutor(1) as aside:  # a notebook's thread has a loop of its own running
            aside.submit(lambda: asyncio.run(asyncio.wait_for(ring(), CONNECT_SECONDS))).result()
        return Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except Exception as error:  # whatever else may answer there
        said = str(error) or type(error).__name__
        raise InputError(
            f"no dask scheduler at --scheduler {address} within {CONNECT_SECONDS} s ({said}); "
            "start one with `dask scheduler`, or leave the flag out"
        ) from None


def default_threads(workers: int) -> int | None:
    """Threads of one run where `workers` run at the same time; None leaves it to the worker."""
    return max(1, available_threads() // workers) if workers else None


def available_threads() -> int:
    """Number of threads that a run in this process can have."""
    from wflow._threads import available  # loads Numba

    return available()


def in_this_process(tasks: "list[Task]") -> None:
    """Compute runs one after the other, and end those that workers began."""
    from wflow.solver import solve

    def compute(task: "Task", bar: bool) -> None:
        task = {"progress": bar, **task}
        if has_parts(task):
            _end_parts(task)
        else:
            solve(**task).close()

    if len(tasks) <= _BARS:
        for task in tasks:
            compute(task, True)
        return
    with progress(len(tasks), "runs") as advance:
        for task in tasks:
            compute(task, False)
            advance(1)


def has_parts(task: "Task") -> bool:
    """Whether a task goes on with a run that workers began."""
    from wflow._runread import manifest_of

    return bool(task.get("resume")) and manifest_of(Path(task["out"])).exists()


def _end_parts(task: "Task") -> None:
    """Compute what is missing of a run in parts, in this process, and put it together."""
    from wflow._job import compute
    from wflow._plan import Run
    from wflow._signals import caught_signals

    run = Run(task, TASK_SECONDS)
    try:
        here = run.begin(may_be_one=False)
        label, shown = f"{run.out.name}, paths", task["progress"]
        with caught_signals() as caught, progress(run.paths, label, shown) as advance:
            advance(here)
            while not caught and (order := run.take(float("inf"))):
                file, paths = order
                begun = time.monotonic()
                stopped = not compute(run.job, file, paths, stopping=lambda: bool(caught))
                if not stopped:
                    advance(run.done(paths, time.monotonic() - begun))
        if caught:
            raise Interrupted(
                f"{signal.Signals(caught[0]).name} ended the run after a whole step; what there is "
                f"of it is in {run.folder}. Give the same command with --resume (in Python: "
                "resume=True) to go on",
                caught[0],
            )
        run.finish()
    except BlowUpError as error:
        raise run.placed(error) from None
    finally:
        run.close()


@contextmanager
def _quiet_client() -> Iterator[None]:
    """Keep dask from printing the traceback of a lost connection: our error says it."""
    logger = logging.getLogger("distributed.client")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _signals_as_errors() -> Iterator[None]:
    """Leave on SIGINT and SIGTERM in good order: workers are stopped, their runs can be resumed."""

    def leave(number: int, frame: Any) -> None:
        name = signal.Signals(number).name
        raise Interrupted(
            f"{name} ended the study; give the same command with --resume (in Python: resume=True) "
            "to go on",
            number,
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
