"""One run on many cores or machines: its paths are spread over workers of dask.

Studies do the same by `--workers N` and `--scheduler ADDRESS`; docs/cluster.md says how to set a
cluster up.
"""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from wflow._checks import number, whole
from wflow._workers import TASK_SECONDS, default_threads, pool
from wflow.errors import InputError
from wflow.heads import HeadLaw

if TYPE_CHECKING:
    import xarray
    from distributed import Client

__all__ = ["solve"]


def solve(
    x0: ArrayLike,
    law: HeadLaw,
    *,
    out: str | Path,
    workers: int = 0,
    scheduler: "str | Client | None" = None,
    threads: int | None = None,
    task_seconds: float = TASK_SECONDS,
    **options: Any,
) -> "xarray.Dataset":
    """Compute a run as `wflow.solve` does, its paths spread over workers; the same bits.

    The run is cut into tasks of some paths and some seconds each. Each writes a part of its own
    into the folder `OUT.parts`, and parts that are whole are put together into `out` at the end. A
    worker that dies is replaced, and its task goes on from its last checkpoint. What a study that
    died leaves is taken up by `resume=True`, with any number of workers or none.

    A script that starts workers needs `if __name__ == "__main__":` around what it does.

    Parameters
    ----------
    x0, law : as for `wflow.solve`; a law of Python functions travels by cloudpickle
    out : run file, in a folder that all workers see under the same name
    workers : worker processes started on this machine for this call; 0: none
    scheduler : address of a dask scheduler, such as "tcp://host:8786", or a `distributed.Client`
    threads : Numba threads of each worker; default: the cores of this machine shared between
        `workers`, or as many as dask gave a worker of `scheduler`
    task_seconds : what a task should take; one path is the least
    options : further arguments of `wflow.solve`, among them heads, t_final, dt, paths, seed,
        overwrite, resume, batch and checkpoint_every

    Returns
    -------
    xarray.Dataset of the run file, read when it is used; without workers and scheduler that of
    `wflow.solve` in this process

    Raises
    ------
    InputError
        For arguments of `wflow.solve` that cannot be used, a scheduler that does not answer within
        ten seconds, a law that cannot travel, or a folder that the workers do not share.
    WflowError
        For a scheduler that is lost, or a task that ends every worker; what was computed is kept.
    BlowUpError, Interrupted
        As for `wflow.solve`.

    Source: docs/cluster.md.
    """
    from wflow import solver

    workers, seconds = whole(workers, "workers", 0), number(task_seconds, "task_seconds", least=0.0)
    threads = None if threads is None else whole(threads, "threads")
    if workers and scheduler is not None:
        raise InputError("workers starts a cluster and scheduler joins one: give one of them")
    if not isinstance(out, str | Path):
        raise InputError(f"out is {out!r}: expected the path of a run file")
    if options.get("overwrite") and options.get("resume"):
        raise InputError("overwrite and resume exclude each other: choose one")
    task = {"x0": x0, "law": law, "out": Path(out), **options}
    task["threads"] = threads or default_threads(workers)
    task["progress"] = bool(options.get("progress", False))  # as in `wflow.solve`
    inspect.signature(solver.solve).bind(**task)  # TypeError for an option that there is not
    with pool(workers, scheduler, threads=threads, seconds=seconds) as compute:
        compute([task])
    return solver.open_run(out)
