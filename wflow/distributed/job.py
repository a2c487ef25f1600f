"""The part of a run that a worker computes: some or all of its paths, and its file.

The parts of the run `NAME.h5` lie in the folder `NAME.h5.parts`: `00008-00015.h5` holds the paths 8
to 15 and is an ordinary run file, streamed, checkpointed and resumed like any other; it keeps the
tokens of all its paths at the snapshots. `run.json` says which run they belong to, `lock` keeps a
second study out. Parts are copied into `whole.h5` as they come, in the order of their paths; when
all paths are there, `merge` makes `NAME.h5` of it and the folder goes.
"""

import json
import logging
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wflow._core.errors import InputError, RunFileError
from wflow._core.files import open_hdf5, replace_file
from wflow._core.threads import numba_threads
from wflow.io import digests, disk
from wflow.io import read as reading
from wflow.io.disk import InUse, disk_error
from wflow.io.driver import State, create, integrate_into
from wflow.io.read import (
    checkpoint_of,
    differences,
    manifest_of,
    never_started,
    partial_of,
    parts_of,
)
from wflow.io.schema import config_text, dataset_attrs, history_line
from wflow.io.store import RunWriter
from wflow.particles.problem import Problem

# One run, or some of its paths
# -----------------------------

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
    """

    problem: Problem
    config: dict[str, Any]
    command: str

    def part(self, paths: Range | None) -> tuple[Problem, str]:
        """The problem of some of the paths, or of the whole run (None), and its configuration."""
        if paths is None:
            return self.problem, config_text(self.config)
        part = self.problem.part(*paths)
        own = {"paths": part.paths, "first_path": part.first_path, "save": asdict(part.save)}
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
    """Compute paths of a run into a run file, continuing what an earlier process left.

    A part that another process writes is waited for. If that lasts, this one computes it by itself
    under another name: a lock may outlive its process on a network disk, and a worker that
    was given up for dead may live. Both would write the same bits.

    Parameters
    ----------
    job : the run
    file : name of the finished file
    paths : which paths; None for the whole run
    threads : Numba threads where the problem leaves them to the process
    stopping, tick : as in `wflow.particles.integrate.integrate`

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
        with open_hdf5(file) as opened:
            attrs = reading.read_attrs(opened, file)
    except RunFileError as error:
        _log.warning("%s; its paths are computed again", error)
        return False
    held = reading.parse_config(attrs["config"], file)
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
        with numba_threads(problem.compute.threads or threads):
            writer, state = _opened(job, file, problem, config, own=paths is not None)
            return integrate_into(
                writer,
                problem,
                state=state,
                save=writer.checkpoint,
                stopping=stopping,
                tick=tick,
            )
    except MemoryError:
        raise InputError(
            f"{problem.paths} paths of {problem.x0.shape[-2]} tokens and {problem.heads} heads "
            "need more memory than the worker has; take fewer tokens or heads, or larger workers"
        ) from None


def _opened(
    job: Job, file: Path, problem: Problem, config: str, own: bool
) -> tuple[RunWriter, State | None]:
    """The writer of some paths, and the state that an earlier process left of them.

    own : whether the file is in the folder of the parts, where it is computed from its start if
        that state cannot be used. Elsewhere only this run is replaced, if it never started: another
        process may have put its own there
    """
    if partial_of(file).exists() and checkpoint_of(file).exists():
        try:
            return RunWriter.resume(file, config)
        except InUse:
            raise
        except RunFileError as error:
            if not own:
                raise
            _log.warning("%s; its paths are computed again", error)
    if own:
        disk.set_aside_damaged(file)
    attrs = dataset_attrs(config, problem.seed, job.command)
    replace = own or never_started(file, json.loads(config))
    return create(file, problem, attrs, overwrite=replace), None


# Parts on disk
# -------------

_NAME = re.compile(r"(\d+)-(\d+)\.h5")
_BLOCK = 2**20  # values copied at a time


class Parts:
    """The folder of the parts of one run; one process at a time holds it open.

    Parameters
    ----------
    out : name of the finished run file
    job : the run
    resume : continue parts that are there; they must be of this run

    Raises
    ------
    RunFileError
        For parts of another run, a run that is there or in use by another process, or a disk that
        fails.
    """

    def __init__(self, out: Path, job: Job, *, resume: bool) -> None:
        self.out, self.folder, self.job = out, parts_of(out), job
        # The file of the whole run: paths before `_end` are copied, the others wait by their start.
        self._whole: RunWriter | None = None
        self._total: np.ndarray | None = None
        self._copied, self._end = set[Range](), 0
        self._waiting = dict[int, Range]()
        self._lock = disk.RunLock(out)
        try:
            if resume and manifest_of(out).exists():
                check_manifest(out, job.config)
                return
            # Another process may have begun, and ended, since it was checked.
            disk.check_target(out, job.problem.layout(), overwrite=False)
            disk.remove(checkpoint_of(out))  # of a run that is gone
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        """Empty the folder, then say of which run its parts will be."""
        disk.remove_parts(self.out)
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise disk_error(error, "make", self.folder) from None
        manifest = manifest_of(self.out)
        text = json.dumps({"schema": reading.PARTS, "config": config_text(self.job.config)})
        try:
            replace_file(manifest, lambda draft: draft.write_text(text, encoding="utf-8"))
        except OSError as error:
            raise disk_error(error, "write", manifest) from None

    def file(self, paths: Range) -> Path:
        """Name of the finished part."""
        return part_file(self.out, paths)

    def found(self) -> tuple[list[Range], list[Range]]:
        """Paths of finished parts, and of those that can be resumed; no path twice."""
        whole, begun = set[Range](), set[Range]()
        for file in self.folder.iterdir():
            match = _NAME.fullmatch(file.name.removesuffix(".partial"))
            paths = match and (int(match[1]), int(match[2]) + 1)
            if not paths or not 0 <= paths[0] < paths[1] <= self.job.problem.paths:
                continue
            if paths in self._copied or is_whole(self.file(paths), self.job.part(paths)[1]):
                whole.add(paths)
            elif checkpoint_of(self.file(paths)).exists():
                begun.add(paths)
        kept: list[Range] = []
        for paths in [*sorted(whole), *sorted(begun)]:
            if all(paths[1] <= other[0] or other[1] <= paths[0] for other in kept):
                kept.append(paths)
        return sorted(whole & set(kept)), sorted(begun & set(kept))

    def add(self, *parts: Range) -> None:
        """Take note of finished parts, and copy those whose turn it is, while others are computed.

        Raises
        ------
        RunFileError
            For a part that is not as it was written, or a disk that fails.
        """
        self._waiting |= {paths[0]: paths for paths in parts}
        # One that a network disk does not show yet is left for later.
        while (paths := self._waiting.get(self._end)) and self.file(paths).exists():
            self._append(paths)

    def merge(self) -> None:
        """Write the run file from the parts, in the order of the paths, and remove them.

        Every variable has the bits of a run by one process. The new file appears under its name
        when it is whole; a merge that is killed begins again.

        Raises
        ------
        RunFileError
            Where paths are missing, or the disk fails; the parts then stay.
        """
        problem = self.job.problem
        self.add(*(paths for paths in self.found()[0] if paths[0] >= self._end))
        if self._end != problem.paths or self._whole is None:
            raise RunFileError(
                f"parts are missing in {self.folder}; give the same command with --resume"
            )
        writer, self._whole = self._whole, None
        try:
            if self._total is not None:
                writer.write("tokens_mean", (), self._total / problem.paths)
            writer.add_history(history_line(f"put together from {len(self._copied)} parts"))
            draft = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        try:
            disk.place(draft, self.out)
        except OSError as error:
            raise disk_error(error, "finish", self.out, kept=True) from None
        disk.sync_directory(self.out.parent)
        disk.remove_parts(self.out)
        self.close()

    def _append(self, paths: Range) -> None:
        """Copy the part whose turn it is into the file of the whole run."""
        if self._whole is None:
            self._whole = self._begin_whole()
        self._check(self.file(paths))
        self._total = _copy(self.job.problem, self._whole, self.file(paths), paths, self._total)
        self._copied.add(paths)
        self._end = paths[1]

    def _begin_whole(self) -> RunWriter:
        problem, draft = self.job.problem, self.folder / "whole.h5"
        lines = [history_line(self.job.command)]
        attrs = dataset_attrs(self.job.config, problem.seed, self.job.command, history=lines)
        disk.set_aside_damaged(draft)
        writer = create(draft, problem, attrs, overwrite=True)
        try:
            problem.start(writer)
        except BaseException:
            writer.discard()
            raise
        return writer

    def _check(self, part: Path) -> None:
        """Raise RunFileError for a part that is not as it was written; its paths are then open."""
        try:
            digests.check(part, advice="its paths are computed again with --resume")
        except RunFileError:
            disk.set_aside(part)
            raise

    def close(self) -> None:
        """Let another process continue the parts, which stay; what was copied of them goes."""
        if self._whole is not None:
            self._whole.discard()
            self._whole = None
        self._lock.release()


def part_file(out: Path, paths: Range) -> Path:
    """Name of the finished part of a run."""
    return parts_of(out) / f"{paths[0]:05d}-{paths[1] - 1:05d}.h5"


def check_manifest(out: Path, config: dict[str, Any]) -> None:
    """Raise RunFileError where the parts beside `out` belong to another run than this one."""
    changed = differences(reading.manifest_config(out), json.loads(config_text(config)))
    if changed:
        raise RunFileError(
            f"{parts_of(out)} belongs to another run: {', '.join(changed)} differ; resume with the "
            "settings it was started with, or start again with --overwrite"
        )


def _copy(
    problem: Problem, writer: RunWriter, file: Path, paths: Range, total: Any
) -> np.ndarray | None:
    """Copy a part to its place in the run; returns the sum of tokens (snapshot, token, axis)."""
    first, last = paths
    layout = problem.layout()
    with open_hdf5(file) as part:
        for name in layout.names:
            if layout.dims(name) == ("path", "time"):
                width = max(1, _BLOCK // (last - first))
                for start in range(0, layout.times.size, width):
                    values = part[name][:, start : start + width]
                    columns = slice(start, start + values.shape[1])
                    writer.write(name, (slice(first, last), columns), values)
        if "tokens_mean" not in layout.names:
            return None
        if total is None:
            total = np.zeros(layout.shape("tokens_mean"))
        chosen = {path: place for place, path in enumerate(problem.save.paths)}
        for at in range(layout.snapshots.size):
            for path, tokens in enumerate(part["tokens"][:, at], start=first):
                total[at] += tokens  # as Recorder.snapshot adds: path by path
                if path in chosen:
                    writer.write("tokens", (chosen[path], at), tokens)
                    if "heads" in layout.names:
                        heads = part["heads"][path - first, at]
                        writer.write("heads", (chosen[path], at), heads)
    return total


def gaps(taken: list[Range], paths: int) -> Iterator[Range]:
    """Ranges of paths that no part covers."""
    at = 0
    for first, last in sorted(taken):
        if at < first:
            yield at, first
        at = last
    if at < paths:
        yield at, paths
