"""One run on many cores or machines: its paths are spread over workers of dask.

Studies do the same by `--workers N` and `--scheduler ADDRESS`; docs/guide/distributed.md says how
to set a cluster up.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_args

from numpy.typing import ArrayLike

from wflow._core.checks import check_choice, file_name, number, shown, switch, whole
from wflow._core.errors import BlowUpError, InputError
from wflow._core.extras import install
from wflow._core.processes import starting_processes
from wflow._core.progress import progress
from wflow._core.signals import signals_as_errors, signals_held
from wflow.heads.laws import HeadLaw
from wflow.particles.options import Compute, option
from wflow.runs.driver import IfExists
from wflow.runs.read import manifest_of, open_run, partial_of

if TYPE_CHECKING:
    import xarray
    from distributed import Client, Security

    from wflow.distributed.dispatch import Task


__all__ = ["solve"]

# Runs of a study, in this process or by workers
# ----------------------------------------------

Failed = Callable[[Path, BlowUpError], None]
"""Function of the file and the error of a run that failed; what it raises ends the others."""


class Pool(Protocol):
    """Function that computes a list of runs."""

    def __call__(self, tasks: list[Task], failed: Failed = ...) -> None:
        """Compute the runs; `failed` receives those of which all paths blow up."""


CONNECT_SECONDS = 10
TASK_SECONDS = 5.0  # what a task should take
_WORKERS_PER_CORE = 8  # more processes than that only fill the memory
_BARS = 8  # runs up to which each has a progress bar
_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def ends(file: Path, error: BlowUpError) -> None:
    """Raise the error of a run that failed."""
    raise error


@contextmanager
def pool(
    workers: int = 0,
    scheduler: Any = None,
    *,
    security: Security | None = None,
    threads: int | None = None,
    seconds: float = TASK_SECONDS,
) -> Iterator[Pool]:
    """Open the workers, and yield a function that computes a list of runs.

    Parameters
    ----------
    workers : worker processes started for this call; 0: one run after the other in this process
    scheduler : address of a dask scheduler that runs already, or a client of one
    security : certificates for an address tls://; default: those of Dask's configuration
    threads : of each worker that is started here; default: the cores, shared between them
    seconds : what a task should take

    Raises
    ------
    InputError
        As `check_workers` raises it, and where worker processes cannot start.
    """
    check_workers(workers, scheduler, security)
    if not workers and scheduler is None:
        yield in_this_process
        return
    from distributed import Client

    from wflow.distributed.dispatch import RESUME, by_workers

    def compute(tasks: list[Task], failed: Failed = ends) -> None:
        by_workers(client, [task for task in tasks if not _begun_here(task)], seconds, failed)
        in_this_process([task for task in tasks if _begun_here(task)], failed)

    with signals_as_errors(f"ended the study; {RESUME}"), _quiet_client(), ExitStack() as stack:
        with signals_held():  # dask does not clean up after half a start, or half an end
            if isinstance(scheduler, Client):
                client = scheduler
            elif scheduler is None:
                cluster = stack.enter_context(local_cluster(workers, threads))
                client = stack.enter_context(Client(cluster, set_as_default=False))
            else:
                how: dict[str, Any] = {"timeout": CONNECT_SECONDS, "security": security}
                client = stack.enter_context(Client(scheduler, set_as_default=False, **how))
        yield compute
        with signals_held():
            stack.close()


def check_workers(workers: int, scheduler: Any, security: Security | None = None) -> None:
    """Check, before any computation, that the requested workers are available.

    Raises
    ------
    InputError
        Where dask is not installed, for an address without a scheduler that answers within ten
        seconds and takes the certificates, or for more workers than this machine can bear.
    """
    if not workers and scheduler is None:
        return
    most = _WORKERS_PER_CORE * (os.cpu_count() or 1)
    if workers > most:
        raise InputError(
            f"--workers is {workers}: expected at most {most}, {_WORKERS_PER_CORE} for each core"
        )
    _check_installed()
    from distributed import Client

    if isinstance(scheduler, str) and scheduler.strip():
        _ring(scheduler, security)
    elif scheduler is not None and not isinstance(scheduler, Client):
        raise InputError(
            f"scheduler is {shown(scheduler)}: expected an address such as tcp://host:8786, or a "
            "distributed.Client; leave it out to compute in this process"
        )


def _check_installed() -> None:
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise InputError(
            f"--workers and --scheduler need dask: {install('dask')}, or leave them out"
        ) from None


def security_of(ca_file: str | None, cert: str | None, key: str | None) -> Security | None:
    """Read the certificates of the flags --tls-ca-file, --tls-cert and --tls-key, if given."""
    if ca_file is None:
        return None
    _check_installed()
    from distributed import Security

    return Security(
        require_encryption=True, tls_ca_file=ca_file, tls_client_cert=cert, tls_client_key=key
    )


def _ring(address: str, security: Security | None) -> None:
    """Raise InputError where no scheduler answers: a client that cannot connect waits long."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from distributed import Security
    from distributed.comm import connect

    async def ring() -> None:
        how = Security() if security is None else security
        comm = await connect(address, **how.get_connection_args("client"))
        await comm.close()

    try:
        with ThreadPoolExecutor(1) as aside:  # the thread of a notebook runs a loop already
            aside.submit(lambda: asyncio.run(asyncio.wait_for(ring(), CONNECT_SECONDS))).result()
    except Exception as error:  # whatever else may answer there
        raise InputError(
            f"no dask scheduler at --scheduler {address} within {CONNECT_SECONDS} s "
            f"({str(error) or type(error).__name__}); start one with `dask scheduler`, give the "
            "certificates of one at tls:// (--tls-ca-file, --tls-cert and --tls-key, or "
            "security=), or leave the flag out"
        ) from None


@contextmanager
def _quiet_client() -> Iterator[None]:
    """Suppress dask's traceback of a lost connection: our error reports it."""
    logger = logging.getLogger("distributed.client")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def local_cluster(workers: int, threads: int | None) -> Iterator[Any]:
    """Open worker processes on this machine, each with its share of the cores.

    Scheduler and workers listen on the loopback interface, which all users of the machine share,
    and take part only with those who have the key that is made here and stays in memory.
    """
    import dask
    from distributed import LocalCluster, Security

    share = str(threads or default_threads(workers))
    settings: dict[str, Any] = {
        # What limits the threads of BLAS must be there before it is loaded; dask sets it in this
        # process. Numba, which is loaded later, would refuse to compile here if it saw a change.
        "distributed.nanny.pre-spawn-environ": {name: share for name in _LIMITS},
        "distributed.nanny.environ": {"NUMBA_NUM_THREADS": share},
        # A worker that computes one long step is silent; here its death shows by its process.
        "distributed.scheduler.worker-ttl": None,
        # It samples the stack a hundred times a second: half the time of a worker's event loop.
        "distributed.worker.profile.enabled": False,
        # HTTP has no certificates: its servers, which cannot be left out, have no page.
        "distributed.scheduler.http.routes": [],
        "distributed.worker.http.routes": [],
    }
    # No limit of memory: runs stay small, and dask would kill a worker that nears it.
    with _environment_restored(), dask.config.set(settings):
        with starting_processes("computed paths", "Take fewer workers", RuntimeError):
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                memory_limit=0,
                security=Security.temporary(),
                dashboard_address=None,
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # any free port
                silence_logs="CRITICAL",
            )
        with cluster:
            yield cluster


@contextmanager
def _environment_restored() -> Iterator[None]:
    """Restore the limits of threads to their present values, for later children."""
    before = {name: os.environ.get(name) for name in _LIMITS}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def default_threads(workers: int) -> int | None:
    """Return the threads of a run where `workers` run at once; None lets the worker decide."""
    from wflow._core.threads import available  # loads Numba

    return max(1, available() // workers) if workers else None


def in_this_process(tasks: list[Task], failed: Failed = ends) -> None:
    """Compute runs one after the other, including those that workers began.

    Those with a mesh are of the mean-field equation.
    """
    from wflow.distributed import dispatch
    from wflow.particles.solver import solve

    def attempt(task: Task, bar: bool) -> None:
        try:
            compute({"progress": bar, **task})
        except BlowUpError as error:
            failed(Path(task["out"]), error)

    def compute(task: Task) -> None:
        if "mesh" in task:
            from wflow.meanfield.solver import solve as solve_equation

            solve_equation(**task).close()
        elif _resumes(task) and manifest_of(Path(task["out"])).exists():
            with signals_as_errors(f"ended the run; {dispatch.RESUME}"):
                dispatch.finish_parts(task, TASK_SECONDS)
        else:
            solve(**task).close()

    if len(tasks) <= _BARS:
        for task in tasks:
            attempt(task, True)
        return
    with progress(len(tasks), "runs") as advance:
        for task in tasks:
            attempt(task, False)
            advance(1)


def _resumes(task: Task) -> bool:
    return task.get("if_exists") == "resume"


def _begun_here(task: Task) -> bool:
    """Return whether a task continues a run that was started without workers."""
    return _resumes(task) and partial_of(Path(task["out"])).exists()


def solve(
    x0: ArrayLike,
    law: HeadLaw,
    *,
    out: str | Path,
    workers: int = 0,
    scheduler: str | Client | None = None,
    security: Security | None = None,
    task_seconds: float = TASK_SECONDS,
    **options: Any,
) -> xarray.Dataset:
    """Compute a run as `wflow.solve` does, bitwise identical, its paths spread over workers.

    The run is cut into tasks of some paths and some seconds each. Each writes a part into the
    folder `OUT.parts`, and the parts are joined into `out` at the end. A worker that dies is
    replaced, and its task continues from its last checkpoint. A run that was interrupted is
    continued by ``if_exists="resume"``, with any number of workers or none.

    Parameters
    ----------
    x0 : array_like, shape (n, d) or (paths, n, d)
        Initial tokens, as for `wflow.solve`.
    law : wflow.heads.HeadLaw
        How the heads move; a law of Python functions travels by cloudpickle.
    out : str or pathlib.Path
        Run file, in a folder that all workers see under the same name.
    workers : int, default 0
        Worker processes started on this machine for this call; 0 for none.
    scheduler : str or distributed.Client, optional
        Address of a dask scheduler, such as "tcp://host:8786", or a client of it.
    security : distributed.Security, optional
        Certificates for an address such as "tls://host:8786"; by default those of Dask's
        configuration.
    task_seconds : float, default 5.0
        What a task should take by an estimate, in seconds; one path is the least.
    **options
        Further arguments of `wflow.solve`, among them heads, t_final, dt, paths, seed, if_exists,
        save and compute. ``Compute(threads=)`` is for each worker; by default the cores of this
        machine are shared between `workers`, and a worker of `scheduler` takes as many as dask gave
        it.

    Returns
    -------
    xarray.Dataset
        The run file, read when it is used; without workers and scheduler that of `wflow.solve` in
        this process.

    Raises
    ------
    InputError
        For arguments of `wflow.solve` that cannot be used, a scheduler that does not answer within
        ten seconds or is not trusted, a law that cannot travel, a folder that the workers do not
        share, or a script that starts workers without the guard of the notes.
    WflowError
        For a scheduler that is lost, or a task that ends every worker; what was computed is kept.
    BlowUpError
        If the step size is too large in all paths, or with ``Compute(stop_at_blow_up=True)`` in
        one.
    Interrupted
        A KeyboardInterrupt, on SIGINT or SIGTERM.

    Notes
    -----
    A script that starts workers needs ``if __name__ == "__main__":`` around what it does.

    Examples
    --------
    >>> import numpy as np, tempfile, wflow
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = wflow.distributed.solve(
    ...         wflow.tokens.uniform(n=5, d=3, seed=0), wflow.heads.Frozen(),
    ...         heads=np.eye(3)[None], t_final=0.1, dt=0.05, out=f"{folder}/run.h5",
    ...     )  # workers=4 starts four processes
    ...     print(run.sizes["time"])
    ...     run.close()
    3
    """
    from wflow.particles import solver

    workers, seconds = whole(workers, "workers", 0), number(task_seconds, "task_seconds", least=0.0)
    if_exists, shown = options.get("if_exists", "error"), options.get("progress", False)
    check_choice("if_exists", if_exists, get_args(IfExists))
    if workers and scheduler is not None:
        raise InputError("workers starts a cluster and scheduler joins one: give one of them")
    if security is not None and not isinstance(scheduler, str):
        raise InputError("security is for the address of a scheduler: give both, or neither")
    compute = option(options.get("compute", Compute()), Compute, "compute")
    task = {"x0": x0, "law": law, "out": file_name(out, "out"), **options}
    task["progress"] = switch(shown, "progress")
    task["compute"] = replace(compute, threads=compute.threads or default_threads(workers))
    inspect.signature(solver.solve).bind(**task)  # TypeError for an option that there is not
    with pool(
        workers, scheduler, security=security, threads=compute.threads, seconds=seconds
    ) as run:
        run([task])
    return open_run(out)
