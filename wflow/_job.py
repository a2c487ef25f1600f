"""A run as those who compute it need it, and the computing of some or all of its paths."""

import json
import logging
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wflow import _runread
from wflow._march import State
from wflow._problem import Problem
from wflow._rundisk import InUse, refuse_if_running
from wflow._runread import checkpoint_of, partial_of
from wflow._threads import numba_threads
from wflow.errors import InputError, RunFileError
from wflow.runfile import RunWriter, config_text, dataset_attrs, differences
from wflow.solver import march_into

Range = tuple[int, int]  # paths first <= p < last

_PATIENCE = 20.0  # seconds for which paths that another process computes are waited for

_log = logging.getLogger("wflow")


@dataclass(frozen=True, eq=False)
class Job:
    """A run as those who compute its parts need it.

    Attributes
    ----------
    problem : the whole run
    config : its configuration, made once: the digest of a user law is not asked of other processes
    command : the command that started it, for the run files
    batch : paths that march together
    threads : Numba threads; None leaves it to the process
    checkpoint_every : seconds between the states from which a killed part resumes
    """

    problem: Problem
    config: dict[str, Any]
    command: str
    batch: int
    threads: int | None
    checkpoint_every: float

    def part(self, paths: Range | None) -> tuple[Problem, str]:
        """The problem of some of the paths, or of the whole run (None), and its configuration."""
        if paths is None:
            return self.problem, config_text(self.config)
        part = self.problem.part(*paths)
        own = {
            "paths": part.paths,
            "first_path": part.first_path,
            "snapshot_paths": part.snapshot_paths.tolist(),
            "save_heads": part.save_heads,
        }
        return part, config_text(self.config | own)


def compute(
    job: Job,
    file: Path,
    paths: Range | None,
    *,
    threads: int | None = None,
    stopping: Callable[[], bool] = lambda: False,
    tick: Callable[[int], None] = lambda steps: None,
) -> bool:
    """Compute paths of a run into a run file, going on with what an earlier process left.

    A part that another process writes is waited for. If that lasts, this one computes it by itself
    under a name of its own: a lock may outlive its process on a network disk, and a worker that
    was given up for dead may live. Both would write the same bits.

    Parameters
    ----------
    job : the run
    file : name of the finished file
    paths : which paths; None for the whole run
    threads : Numba threads where the job leaves them to the process
    stopping, tick : as in `wflow._march.march`

    Returns
    -------
    whether it is complete, and not ended by `stopping`

    Raises
    ------
    WflowError
        As `wflow.solve` does.
    """
    config = job.part(paths)[1]
    limit = time.monotonic() + _PATIENCE
    target = file
    while not is_whole(file, config):
        try:
            complete = _compute(job, target, paths, threads, stopping, tick)
        except InUse:
            if time.monotonic() < limit:
                time.sleep(0.2)
            elif paths is None or target != file:
                raise
            else:
                target = file.with_name(f"{file.stem}.{platform.node()}.{os.getpid()}.h5")
            continue
        if not complete:
            return False
        if target != file:
            os.replace(target, file)
    return True


def is_whole(file: Path, config: str) -> bool:
    """Whether a file is the finished run of this configuration; what is none is computed again."""
    if not file.exists():
        return False
    try:
        with _runread.open_hdf5(file) as opened:
            attrs = _runread.read_attrs(opened, file)
    except RunFileError as error:
        _log.warning("%s; its paths are computed again", error)
        return False
    held = _runread.parse_config(attrs["config"], file)
    return bool(attrs["complete"]) and not differences(held, json.loads(config))


def _compute(
    job: Job,
    file: Path,
    paths: Range | None,
    threads: int | None,
    stopping: Callable[[], bool],
    tick: Callable[[int], None],
) -> bool:
    problem, config = job.part(paths)
    try:
        with numba_threads(job.threads or threads):
            writer, state = _opened(job, file, problem, config, anew=paths is not None)
            return march_into(
                writer,
                problem,
                batch=min(job.batch, problem.paths),
                state=state,
                save=writer.checkpoint,
                save_every=job.checkpoint_every,
                stopping=stopping,
                tick=tick,
            )
    except MemoryError:
        raise InputError(
            f"{problem.paths} paths of {problem.x0.shape[-2]} tokens and {problem.heads} heads "
            "need more memory than the worker has; take fewer tokens or heads, or larger workers"
        ) from None


def _opened(
    job: Job, file: Path, problem: Problem, config: str, anew: bool
) -> tuple[RunWriter, State | None]:
    """The writer of some paths, and the state that an earlier process left of them.

    anew : begin again where that state cannot be used
    """
    if partial_of(file).exists() and checkpoint_of(file).exists():
        try:
            return RunWriter.resume(file, config)
        except InUse:
            raise
        except RunFileError as error:
            if not anew:
                raise
            _log.warning("%s; its paths are computed again", error)
    refuse_if_running(partial_of(file))  # before a new file is laid out beside it
    attrs = dataset_attrs(config, problem.seed, job.command)
    return RunWriter.create(file, problem.layout(), attrs, overwrite=True), None
