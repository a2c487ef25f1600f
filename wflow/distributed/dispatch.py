"""Dask worker protocol: tasks sent to the workers, and their reports."""

import hashlib
import logging
import math
import os
import pickle
import platform
import queue
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from wflow import _version
from wflow._core.errors import BlowUpError, InputError, WflowError
from wflow._core.progress import Advance, progress
from wflow._core.threads import available
from wflow.distributed.job import Job, Range, compute
from wflow.distributed.plan import Run, Task
from wflow.io.disk import disk_error

# The worker: order, computation, answer
# --------------------------------------

_SIGHT_SECONDS = 30  # within which a file written by another machine must be seen

_log = logging.getLogger("wflow")

# Numba's own threads serve one caller at a time in a process.
_one_run = threading.Lock()


@dataclass
class Order:
    """A task for a worker: paths of a run, and the file they are written to.

    source : the pickled `Job`, or the file that holds it
    digest : SHA-256 of the pickled job
    """

    source: bytes | Path
    digest: str
    file: Path
    paths: Range | None
    version: str
    log_level: int


@dataclass
class Report:
    """What a worker answers; an error of wflow is an answer and not tried again."""

    seconds: float = 0.0
    error: WflowError | None = None
    warned: list[tuple[type[Warning], str]] = field(default_factory=list)


def run_order(order: Order) -> Report:
    """Compute paths of a run in a worker."""
    if order.version != _version.__version__:
        return Report(
            error=InputError(
                f"the worker on {_host()} has wflow {_version.__version__}, and the study "
                f"{order.version}: install the same version on both"
            )
        )
    report = Report()
    with _one_run, warnings.catch_warnings(record=True) as caught:
        own_level = _log.level
        _log.setLevel(order.log_level)
        begun = time.monotonic()
        try:
            job = _job_of(order)
            _log.info("%s: begins", order.file)
            compute(job, order.file, order.paths, threads=_own_threads())
            _log.info("%s: complete", order.file)
        except WflowError as error:
            report.error = error
        finally:
            _log.setLevel(own_level)
        report.seconds = time.monotonic() - begun
    report.warned = [(warning.category, str(warning.message)) for warning in caught]
    return report


def _job_of(order: Order) -> Job:
    """The run that an order belongs to; from the shared disk, where it is large."""
    source = order.source
    if isinstance(source, Path):
        return _job_in(source, order.digest)
    return _unpickled(source)


@lru_cache(maxsize=1)
def _job_in(file: Path, digest: str) -> Job:
    if not seen([file]):
        raise InputError(
            f"the worker on {_host()} does not see {file}; give an --out on a disk that all "
            "workers and the study share, under the same name"
        )
    data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise InputError(f"{file} is not what the study wrote: start it again with --resume")
    return _unpickled(data)


def _unpickled(data: bytes) -> Job:
    try:
        return pickle.loads(data)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"the worker on {_host()} cannot load the head law ({error}): define it in the script "
            "that starts the study, or install its module there"
        ) from None


def _own_threads() -> int:
    """Threads of a run on this worker: as many as dask gave the worker, and as there are."""
    from distributed import get_worker

    return max(1, min(get_worker().state.nthreads, available()))


def _host() -> str:
    return platform.node()


def seen(files: list[Path]) -> bool:
    """Whether files are there, waiting for a network disk that shows them late."""
    limit = time.monotonic() + _SIGHT_SECONDS
    while True:
        for folder in {file.parent for file in files}:
            if folder.is_dir():
                os.listdir(folder)  # makes NFS look again
        if all(file.exists() for file in files):
            return True
        if time.monotonic() > limit:
            return False
        time.sleep(0.5)


PATIENCE = 10  # seconds after which the lack of workers is said


def by_workers(client: Any, tasks: list[Task], seconds: float) -> None:
    """Compute runs by the workers of a client; see docs/guide/clusters.md."""
    runs = [Run(task, seconds) for task in tasks]
    # The longest task must not be the one that starts last.
    runs.sort(key=lambda run: run.length, reverse=True)
    total = sum(run.weight * run.paths for run in runs)
    label = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    shown = any(task.get("progress", True) for task in tasks)
    with _logs_of(client), progress(total, label, shown) as advance, ExitStack() as stack:
        for run in runs:
            stack.callback(run.close)
        _Dispatch(client, runs, advance).compute()


@dataclass(frozen=True)
class _Call:
    """Reading the pickle of it computes the order: `pickle.loads` gives the report."""

    order: Order

    def __reduce__(self) -> tuple:
        return run_order, (self.order,)


class _Dispatch:
    """Hands tasks to the workers, a few at a time, and takes their answers."""

    def __init__(self, client: Any, runs: list[Run], advance: Advance) -> None:
        self.client, self.advance = client, advance
        self.waiting = list(runs)  # the first one is under way
        self.sources: dict[Path, tuple[bytes | Path, str]] = {}
        self.flying: dict[Any, tuple[Run, Range | None]] = {}
        self.ended: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def compute(self) -> None:
        last = time.monotonic()  # when there last was a worker; infinity: their lack was said
        try:
            while self.waiting or self.flying:
                workers = self._workers()
                # Each worker has its next task ready when one ends.
                while self.waiting and len(self.flying) < 2 * max(1, workers):
                    self._submit(max(1, workers))
                if workers:
                    last = time.monotonic()
                elif time.monotonic() - last > PATIENCE:
                    _log.warning("the dask scheduler has no workers: waiting for them")
                    last = math.inf
                if not self.flying:
                    continue
                try:
                    future = self.ended.get(timeout=1.0)
                except queue.Empty:
                    continue
                self._answer(future)
        except BaseException:
            if self.client.status == "running":
                self.client.cancel(list(self.flying), force=True)
            raise

    def _workers(self) -> int:
        """Number of workers that are there now."""
        status = self.client.status
        if status == "running":
            try:
                return len(self.client.nthreads())
            except (OSError, RuntimeError):
                pass
        raise self._gone()

    def _gone(self) -> WflowError:
        return WflowError(
            f"the connection to the dask scheduler {_address(self.client)} is lost; what was "
            "computed is kept: give the same command with --resume (in Python: "
            "if_exists='resume'), with any number of workers"
        )

    def _submit(self, workers: int) -> None:
        """Hand out the next task."""
        run = self.waiting[0]
        if run.out not in self.sources:
            data = _pickled(run)  # a law that cannot travel has left nothing behind
            self.advance(run.weight * run.begin(may_be_one=True))
            self.sources[run.out] = _source(run, data)
        order = run.take(sum(run.left for run in self.waiting) / workers)
        if order is None:
            self.waiting.pop(0)
            if not run.under_way:
                self._finish(run)
            return
        file, paths = order
        source, digest = self.sources[run.out]
        message = Order(source, digest, file, paths, _version.__version__, _log.getEffectiveLevel())
        # To dask an order is bytes: a worker that cannot load wflow then fails in the task and says
        # so; one that cannot read its messages would be restarted for ever.
        data = pickle.dumps(_Call(message))
        future = self.client.submit(pickle.loads, data, pure=False, key=_key(run, paths))
        self.flying[future] = run, paths
        future.add_done_callback(self.ended.put)

    def _answer(self, future: Any) -> None:
        """Take the answer of a task."""
        run, paths = self.flying.pop(future)
        report = self._report(future, run, paths)
        for category, text in report.warned:
            if category not in run.warned:
                run.warned.add(category)
                warnings.warn(text, category, stacklevel=2)
        if isinstance(report.error, BlowUpError):
            raise run.placed(report.error)
        if report.error is not None:
            raise report.error
        first, last = paths or (0, run.paths)
        _log.info("%s: paths %d to %d in %.2f s", run.out, first, last - 1, report.seconds)
        self.advance(run.weight * run.done(paths, report.seconds))
        if run not in self.waiting and not run.under_way:
            self._finish(run)

    def _report(self, future: Any, run: Run, paths: Range | None) -> Report:
        from concurrent.futures import CancelledError

        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        try:
            return future.result()
        except KilledWorker as error:
            which = "" if paths is None else f"paths {paths[0]} to {paths[1] - 1} of "
            raise WflowError(
                f"{error.allowed_failures + 1} workers died as they computed {which}{run.out}, the "
                f"last at {error.last_worker.address}: is its memory too small? What was computed "
                "is kept: give the same command with --resume (in Python: if_exists='resume')"
            ) from None
        except (CancelledError, CommClosedError):
            raise self._gone() from None
        except (ImportError, AttributeError) as error:
            if (getattr(error, "name", "") or "wflow").partition(".")[0] != "wflow":
                raise
            raise InputError(
                f"the workers cannot load wflow {_version.__version__} ({error}): install it there"
            ) from None

    def _finish(self, run: Run) -> None:
        """Put a run together when all of its paths are there."""
        if run.finished:
            return
        missing = run.unseen()
        if missing and not seen(missing):
            raise InputError(
                f"the workers wrote {missing[0]} where this process does not see it; give an "
                "--out on a disk that all of them share"
            )
        run.finish()
        self.sources[run.out] = b"", ""
        _log.info("%s: complete", run.out)


def _pickled(run: Run) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps(run.job)
    except Exception as error:  # pickling calls code of the user's objects
        raise InputError(
            f"the head law cannot travel to other processes ({error}); build it from functions, "
            "numbers and arrays, or leave --workers and --scheduler out"
        ) from None


def _source(run: Run, data: bytes) -> tuple[bytes | Path, str]:
    """The pickled run, or the file in the folder of its parts that holds it; and its SHA-256."""
    digest = hashlib.sha256(data).hexdigest()
    if run.folder is None:
        return data, digest
    file = run.folder / f"job-{digest[:16]}.pkl"
    try:
        file.write_bytes(data)
    except OSError as error:
        raise disk_error(error, "write", file) from None
    return file, digest


def _key(run: Run, paths: Range | None) -> str:
    """Name of a task in dask: unique, and readable on the dashboard."""
    which = "all" if paths is None else f"{paths[0]}-{paths[1] - 1}"
    return f"wflow-{run.out.stem}-{which}-{os.urandom(4).hex()}"


def _address(client: Any) -> str:
    return str(getattr(client.scheduler, "address", "") or "")


@contextmanager
def _logs_of(client: Any) -> Iterator[None]:
    """Bring what workers log to this process, if its logger takes messages."""
    if not _log.isEnabledFor(logging.INFO):
        yield
        return
    client.forward_logging("wflow", logging.INFO)
    try:
        yield
    finally:
        if client.status == "running":
            client.unforward_logging("wflow")
