"""What a worker of dask is told, what it does, and what it answers."""

import hashlib
import logging
import os
import pickle
import platform
import threading
import time
import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import wflow
from wflow._job import Job, Range, compute
from wflow._threads import available
from wflow.errors import InputError, WflowError

_SIGHT_SECONDS = 30  # within which a file written by another machine must be seen

_log = logging.getLogger("wflow")

# Numba's own threads serve one caller at a time in a process.
_one_run = threading.Lock()


@dataclass
class Order:
    """What a worker is told: paths of a run, and where they go.

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
    if order.version != wflow.__version__:
        return Report(
            error=InputError(
                f"the worker on {_host()} has wflow {wflow.__version__}, and the study "
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
