"""Runs cut into tasks of a few seconds, which the workers of Dask compute."""

import logging
import os
import pickle
import platform
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from wflow import _version
from wflow._core.errors import BlowUpError, InputError, WflowError
from wflow._core.progress import progress
from wflow._core.threads import available
from wflow.distributed.parts import Part, Range, Run, compute
from wflow.particles.integrate import ParticleRun
from wflow.particles.problem import Problem, problem_of_task

_SHORTEST = 1.0  # seconds: less is not worth its message and its files
# Seconds per pair of tokens, head and multiply-add, of which there are d + 7: on one core of a Xeon
# with AVX-512, and on a GPU. Seconds of Python per step of a batch, and of each path in it.
_PAIR = {"numba": 1.1e-10, "torch": 1e-12}
_STEP, _PATH_STEP = 4e-4, 2e-5
# What a task takes once for all of its paths may be this share of it. Otherwise it is longer, but
# no more than so many times what was asked.
_SHARE, _STRETCH = 0.04, 3.0

RESUME = (
    "what was computed is kept: give the same command with --resume (in Python: "
    "if_exists='resume') to continue, with any number of workers"
)
Task = dict[str, Any]  # arguments of wflow.solve, `out` among them

_log = logging.getLogger("wflow")
_one_part = threading.Lock()  # Numba's threads serve one caller at a time in a process


# In the process of the study
# ---------------------------


def by_workers(
    client: Any, tasks: list[Task], seconds: float, failed: Callable[[Path, BlowUpError], None]
) -> None:
    """Compute runs by the workers of a client.

    Parameters
    ----------
    client : distributed.Client
    tasks : arguments of `wflow.solve` for each run, with `out`
    seconds : what a task of a worker should take
    failed : receives the file and the error of a run that blew up; what it raises ends the others

    Raises
    ------
    WflowError
        As `wflow.distributed.solve` does.
    """
    from distributed import as_completed

    waiting = [(problem_of_task(task), task) for task in tasks]
    waiting.sort(key=lambda each: pace(each[0]), reverse=True)  # the last tasks are short ones
    total = sum(_weight(problem) * problem.paths for problem, _ in waiting)
    label = f"{len(tasks)} run{'s' if len(tasks) > 1 else ''}"
    shown = any(task.get("progress", True) for task in tasks)
    computing: dict[Any, tuple[Run, Range]] = {}
    ended = as_completed(loop=client.loop)
    with progress(total, label, shown) as advance, ExitStack() as stack:
        try:
            while waiting or computing:
                # Each worker has its next task ready when one ends.
                while waiting and len(computing) < 2 * (workers := _workers(client)):
                    run = _run(*waiting.pop(0))
                    stack.callback(run.close)
                    advance(_weight(run.problem) * _count(run.done))
                    later = sum(pace(problem) * problem.paths for problem, _ in waiting)
                    cuts = cut(run, workers, seconds, later)
                    futures = _submitted(client, run, cuts)
                    computing |= {f: (run, paths) for f, paths in zip(futures, cuts, strict=True)}
                    ended.update(futures)
                    if not cuts:
                        _join(run, failed)
                if not computing:
                    continue
                run, paths = computing.pop(future := next(ended))
                try:
                    taken = _result(client, future, run)
                except BlowUpError as error:  # with stop_at_blow_up; its other parts join nothing
                    failed(run.out, error)
                    continue
                _log.info("%s: paths %d to %d in %.2f s", run.out, *_named(paths), taken)
                run.done.append(paths)
                advance(_weight(run.problem) * _count([paths]))
                if _count(run.done) == run.problem.paths:
                    _join(run, failed)
                    _log.info("%s: complete", run.out)
        except BaseException:
            if client.status == "running":
                client.cancel(list(computing), force=True)
            raise


def finish_parts(task: Task, seconds: float) -> None:
    """Compute the missing parts of a run in this process, and join them."""
    run = _run(problem_of_task(task), task)
    bar = progress(run.problem.paths, f"{run.out.name}, paths", task["progress"])
    with closing(run), bar as advance:
        advance(_count(run.done))
        for paths in cut(run, 1, seconds):
            compute(run.part(paths))
            run.done.append(paths)
            advance(_count([paths]))
        run.join()


def _run(problem: Problem, task: Task) -> Run:
    return Run(problem, Path(task["out"]).absolute(), task.get("if_exists", "error"))


def _join(run: Run, failed: Callable[[Path, BlowUpError], None]) -> None:
    try:
        run.join()
    except BlowUpError as error:
        failed(run.out, error)


def _count(ranges: list[Range]) -> int:
    return sum(last - first for first, last in ranges)


def cut(run: Run, workers: int, seconds: float, later: float = 0.0) -> list[Range]:
    """Divide the paths of a run into tasks; parts that were started come first.

    A task takes about `seconds` by an estimate. The last tasks are shorter, so that no worker waits
    long: a task is at most half of a worker's share of what is left.

    Parameters
    ----------
    run : the run
    workers : how many share the work
    seconds : what a task should take
    later : seconds of work that come after this run
    """
    once, path = _STEP * _evaluations(run.problem), pace(run.problem)
    longest = max(seconds, min(once / _SHARE, _STRETCH * seconds))
    ranges, missing = list(run.begun), list(run.missing())
    left = later + path * _count(missing)
    for first, last in missing:
        while first < last:
            wanted = min(longest, max(left / (2 * workers), min(_SHORTEST, seconds)))
            count = max(
                1, min(round(wanted / path), ParticleRun(run.problem).plan.batch, last - first)
            )
            ranges.append((first, first + count))
            first += count
            left -= path * count
    return ranges


def pace(problem: Problem) -> float:
    """Estimate the seconds of a path: steps x (Python + heads x n^2 x (d + 7))."""
    n, d = problem.x0.shape[-2:]
    sums = _PAIR[problem.compute.backend] * problem.heads * n * n * (d + 7)
    return _evaluations(problem) * (_PATH_STEP + sums / (problem.compute.threads or 1))


def _weight(problem: Problem) -> int:
    """Return the weight of a path in the bar of all runs."""
    return max(1, round(1000 * pace(problem)))


def _evaluations(problem: Problem) -> int:
    # Of adaptive steps at least one for each recorded time.
    steps = problem.steps if problem.control is None else problem.record_steps.size
    return steps * problem.scheme.stages


def _named(paths: Range) -> Range:
    """Return the first and the last of some paths."""
    return paths[0], paths[1] - 1


def _workers(client: Any) -> int:
    """Return the number of workers; wait for the first."""
    try:
        if not client.nthreads():
            _log.warning("the dask scheduler has no workers yet: waiting for them")
            client.wait_for_workers(1)
        return len(client.nthreads())
    except (OSError, RuntimeError):
        raise _lost(client) from None


def _submitted(client: Any, run: Run, cuts: list[Range]) -> list[Any]:
    """Submit the parts of a run, and return their futures."""
    import cloudpickle

    try:
        parts = [cloudpickle.dumps(run.part(paths)) for paths in cuts]
    except Exception as error:  # pickling calls code of the user's objects
        raise InputError(
            f"the head law cannot travel to other processes ({error}); build it from functions, "
            "numbers and arrays, or leave --workers and --scheduler out"
        ) from None
    calls = [pickle.dumps(_Call(part, _version.__version__)) for part in parts]
    unique = os.urandom(4).hex()
    names = [f"wflow-{run.out.stem}-{first}-{last}-{unique}" for first, last in map(_named, cuts)]
    return client.map(pickle.loads, calls, key=names, pure=False) if cuts else []


def _result(client: Any, future: Any, run: Run) -> float:
    """Return the seconds that a task took, or the error that it raised."""
    from distributed import KilledWorker
    from distributed.comm import CommClosedError

    try:
        return future.result()
    except (CancelledError, CommClosedError):
        raise _lost(client) from None
    except KilledWorker as error:
        raise WflowError(f"{error} Is its memory too small? For {run.out} {RESUME}") from None
    except ImportError as error:
        raise InputError(
            f"a worker cannot load the run ({error}): install wflow {_version.__version__} there, "
            "and the modules of the head law"
        ) from None


def _lost(client: Any) -> WflowError:
    address = getattr(client.scheduler, "address", "")
    return WflowError(f"the connection to the dask scheduler {address} is lost; {RESUME}")


# In a worker
# -----------


class _Call:
    """Call of `run_part`, which is made where its pickle is read.

    To Dask a task is bytes and `pickle.loads`. A worker that cannot load wflow then fails in the
    task and says so; one that cannot read its messages would be restarted for ever.
    """

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __reduce__(self) -> tuple[Callable[..., float], tuple[Any, ...]]:
        return run_part, self.args


def run_part(data: bytes, version: str) -> float:
    """Compute a pickled part in a worker, and return the seconds that it took."""
    from distributed import get_worker

    if version != _version.__version__:
        raise InputError(
            f"the worker on {platform.node()} has wflow {_version.__version__}, and the study "
            f"{version}: install the same version on both"
        )
    part: Part = pickle.loads(data)
    with _one_part:
        begun = time.monotonic()
        compute(part, max(1, min(get_worker().state.nthreads, available())))
        return time.monotonic() - begun
