"""A run in parts: some paths each, computed by any process and joined into one file.

The parts of the run `NAME.h5` lie in the folder `NAME.h5.parts`: `00008-00015.h5` holds the paths 8
to 15 and is an ordinary run file, streamed, checkpointed and resumed like any other; it keeps the
tokens of all its paths at the snapshots. `run.json` says which run they belong to, and the lock of
the run keeps other processes out. When all parts are there they are copied into `whole.h5`, in the
order of the paths, which then becomes `NAME.h5`, and the folder is removed.
"""

import json
import logging
import os
import platform
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wflow._core.errors import AccuracyWarning, BlowUpError, InputError, RunFileError, warn
from wflow._core.files import open_hdf5, replace_file
from wflow._core.identity import check_comparable, warn_not_comparable
from wflow._core.invocation import command_text
from wflow._core.threads import numba_threads
from wflow.particles.integrate import ParticleRun
from wflow.particles.problem import Problem
from wflow.runs import digests, disk, read
from wflow.runs.disk import InUse, disk_error
from wflow.runs.driver import IfExists, State, changed_settings, create, integrate_into
from wflow.runs.read import (
    differences,
    has_checkpoint,
    manifest_of,
    partial_of,
    parts_of,
    run_status,
)
from wflow.runs.schema import STATE, config_text, dataset_attrs, history_line
from wflow.runs.store import RunWriter

Range = tuple[int, int]  # paths first <= p < last

_IN_USE_SECONDS = 20.0  # for which a part that another process writes is waited for
_SIGHT_SECONDS = 30.0  # within which a file written by another machine must be seen
_NAME = re.compile(r"(\d+)-(\d+)\.h5")
_BLOCK = 2**20  # values copied at a time

_log = logging.getLogger("wflow")


# One part
# --------


@dataclass(frozen=True, eq=False)
class Part:
    """Some paths of a run, with all that a process needs to compute them.

    Attributes
    ----------
    file : name of the finished part
    problem : of its paths
    config : JSON text; made where the run starts, where the source code of its law is
    command : the command that started the run
    """

    file: Path
    problem: Problem
    config: str
    command: str


def compute(part: Part, threads: int | None = None) -> None:
    """Compute a part, from the checkpoint that an earlier process left of it.

    Parameters
    ----------
    part : the part; nothing is done where its file is there
    threads : Numba threads where the problem leaves them to the process

    Raises
    ------
    WflowError
        As `wflow.solve` does; also where this machine does not see the folder of the parts.
    """
    check_seen([part.file.parent])
    # A worker that was given up for dead may live on until it has computed the part.
    limit = time.monotonic() + _IN_USE_SECONDS
    while not _is_whole(part.file, part.config):
        try:
            with numba_threads(part.problem.compute.threads or threads):
                writer, state = _open_part(part)
                integrate_into(writer, ParticleRun(part.problem), state, save=writer.checkpoint)
        except InUse:
            if time.monotonic() > limit:
                raise
            time.sleep(0.2)
        except BlowUpError as error:
            error.args = (
                f"{error.args[0]}. What was recorded is in {part.file.parent}; run again with "
                "another output, or replace it (--overwrite)",
            )
            raise


def _is_whole(file: Path, config: str) -> bool:
    """Return whether a file is the finished part of this configuration."""
    if not file.exists():
        return False
    try:
        with open_hdf5(file) as opened:
            attrs = read.read_attrs(opened, file)
    except RunFileError as error:
        _log.warning("%s; its paths are computed again", error)
        return False
    stored = read.parse_config(attrs["config"], file)
    return bool(attrs["complete"]) and not differences(stored, json.loads(config))


def _open_part(part: Part) -> tuple[RunWriter, State | None]:
    """Open the writer of a part, and the state to continue from if one can be used."""
    file = part.file
    if partial_of(file).exists() and has_checkpoint(file):
        try:
            return RunWriter.resume(file, part.config)
        except InUse:
            raise
        except RunFileError as error:
            _log.warning("%s; its paths are computed again", error)
    disk.set_aside_damaged(file)
    attrs = dataset_attrs(part.config, part.problem.seed, part.command)
    return create(file, ParticleRun(part.problem), attrs, overwrite=True), None


def check_seen(files: list[Path]) -> None:
    """Raise InputError for a missing file, after waiting for disks that show it late."""
    limit = time.monotonic() + _SIGHT_SECONDS
    while unseen := [file for file in files if not file.exists()]:
        if time.monotonic() > limit:
            raise InputError(
                f"{platform.node()} does not see {unseen[0]}; give an --out on a disk that the "
                "study and all workers share, under the same name"
            )
        if unseen[0].parent.is_dir():
            os.listdir(unseen[0].parent)  # makes NFS look again
        time.sleep(0.5)


# All parts of a run
# ------------------


class Run:
    """A run that is computed in parts; other processes are kept out until `close`.

    Parameters
    ----------
    problem : the run
    out : name of its file
    if_exists : as for `wflow.solve`

    Raises
    ------
    InputError
        For files that are there and not to be used, which stay as they are.

    Attributes
    ----------
    finished : whether the run file is there
    done : paths of the parts that are computed
    begun : paths of the parts that an earlier process left unfinished
    """

    def __init__(self, problem: Problem, out: Path, if_exists: IfExists = "error") -> None:
        self.problem, self.out, self.folder = problem, out, parts_of(out)
        self.config, self.command = problem.config(), command_text()
        self.finished = if_exists == "resume" and run_status(out) == "complete"
        self.done: list[Range] = [(0, problem.paths)] if self.finished else []
        self.begun: list[Range] = []
        if self.finished:
            check_comparable(self.config)
            self._check_finished()
            if manifest_of(out).exists():  # a process died as it tidied up
                disk.remove_parts(out)
            return
        self._lock = disk.RunLock(out)
        try:
            if if_exists == "resume" and manifest_of(out).exists():
                self._find()
            else:
                self._make_folder(overwrite=if_exists == "overwrite")
        except BaseException:
            self._lock.release()
            raise

    def _check_finished(self) -> None:
        """Raise RunFileError where the finished run is another one."""
        if changed := changed_settings(self.out, self.config):
            raise RunFileError(
                f"{self.out} holds another finished run (differs in {', '.join(changed)}); choose "
                "another output or overwrite it (--overwrite); without workers, --resume extends it"
            )

    def _find(self) -> None:
        """Find the parts that are finished, and those that can be resumed; no path twice."""
        check_comparable(self.config)
        stored = read.manifest_config(self.out)
        if changed := differences(stored, json.loads(config_text(self.config))):
            raise RunFileError(
                f"{self.folder} belongs to another run: {', '.join(changed)} differ; resume with "
                "the settings it was started with, or start again with --overwrite"
            )
        named = {file.name.removesuffix(".partial") for file in self.folder.iterdir()}
        matches = filter(None, map(_NAME.fullmatch, sorted(named)))
        found = [(int(match[1]), int(match[2]) + 1) for match in matches]
        found = [paths for paths in found if 0 <= paths[0] < paths[1] <= self.problem.paths]
        whole = [paths for paths in found if _is_whole(self.file(paths), self.part(paths).config)]
        begun = [paths for paths in found if has_checkpoint(self.file(paths))]
        for group, kept in ((whole, self.done), (begun, self.begun)):
            for first, last in group:
                taken = self.done + self.begun
                if all(last <= other[0] or other[1] <= first for other in taken):
                    kept.append((first, last))

    def _make_folder(self, overwrite: bool) -> None:
        """Make an empty folder, and write in it to which run its parts belong."""
        disk.check_target(self.out, self.problem.layout(), overwrite)
        warn_not_comparable(self.config)
        if overwrite:
            disk.remove_run(self.out)
        disk.remove_parts(self.out)
        disk.remove(*disk.files_of(self.out)[2:])  # checkpoints of a run that is gone
        text = json.dumps({"schema": read.PARTS, "config": config_text(self.config)})
        try:
            self.folder.mkdir(exist_ok=True)
            replace_file(
                manifest_of(self.out), lambda draft: draft.write_text(text, encoding="utf-8")
            )
        except OSError as error:
            raise disk_error(error, "write", manifest_of(self.out)) from None

    def file(self, paths: Range) -> Path:
        """Return the name of the file of the finished part."""
        return self.folder / f"{paths[0]:05d}-{paths[1] - 1:05d}.h5"

    def part(self, paths: Range) -> Part:
        """Return the part of some paths."""
        problem = self.problem.part(*paths)
        own = {
            "paths": problem.paths,
            "first_path": problem.first_path,
            "save": asdict(problem.save),
        }
        return Part(self.file(paths), problem, config_text(self.config | own), self.command)

    def missing(self) -> Iterator[Range]:
        """Return the ranges of paths that no part holds."""
        at = 0
        for first, last in [*sorted(self.done + self.begun), (self.problem.paths,) * 2]:
            if at < first:
                yield at, first
            at = last

    def join(self) -> None:
        """Write the run file from its parts, and remove them.

        Every variable is bitwise identical to that of a run by one process. The file gets its name
        when it is complete; if the process is killed before that, the parts are joined again.

        Raises
        ------
        InputError
            For a part that this process does not see, or that is not as it was written and is to be
            computed again, and for a disk that fails; the other parts stay.
        """
        if self.finished:
            return
        files = [self.file(paths) for paths in self.done]
        check_seen(files)
        for file in files:
            try:
                digests.check(file, advice="its paths are computed again with --resume")
            except RunFileError:
                disk.set_aside(file)
                raise
        draft = self._joined()
        try:
            disk.place(draft, self.out)
        except OSError as error:
            raise disk_error(error, "finish", self.out, kept=True) from None
        disk.sync_directory(self.out.parent)
        disk.remove_parts(self.out)
        self.close()
        self.finished = True

    def _joined(self) -> Path:
        """Copy the parts into a new file in their folder, and return its name."""
        problem, file = self.problem, self.folder / "whole.h5"
        lines = [history_line(self.command)]
        attrs = dataset_attrs(self.config, problem.seed, self.command, history=lines)
        disk.set_aside_damaged(file)
        writer = create(file, ParticleRun(problem), attrs, overwrite=True)
        try:
            ParticleRun(problem).start(writer)
            total = np.zeros(problem.layout().shape("tokens_mean"))
            for paths in sorted(self.done):
                _copy(problem, writer, self.file(paths), paths, total)
            if "tokens_mean" in problem.layout().names:
                writer.write("tokens_mean", (), total / problem.paths)
            lost = int(writer.read(f"{STATE}/lost").sum())
            if lost == problem.paths:
                raise self._all_lost(writer)
            if lost:
                text = f"{lost} of {problem.paths} paths blew up: their values are NaN from then on"
                warn(text, AccuracyWarning)
            writer.add_history(history_line(f"put together from {len(self.done)} parts"))
            return writer.finish()
        except BaseException:
            writer.discard()
            raise

    def _all_lost(self, writer: RunWriter) -> BlowUpError:
        """Return the error of a run of which no path reached the end, with the first to blow up."""
        layout = self.problem.layout()
        name = next(name for name in layout.names if layout.dims(name) == ("path", "time"))
        counts = np.isfinite(writer.read(name)).sum(axis=1)
        path = int(counts.argmin())
        time = float(layout.times[counts[path]])
        text = f"all paths blow up, path {path} first, by time {time:g}; take a smaller dt, or "
        text += f"weaker heads. What was recorded is in {self.folder}; replace it (--overwrite)"
        return BlowUpError(text, time=time, path=path, score=float("nan"))

    def close(self) -> None:
        """Release the run to other processes; keep the parts, and remove an empty folder."""
        if self.finished:
            return
        if self.folder.is_dir() and not any(".h5" in file.name for file in self.folder.iterdir()):
            disk.remove_parts(self.out)
        self._lock.release()


def _copy(
    problem: Problem, writer: RunWriter, file: Path, paths: Range, total: NDArray[np.float64]
) -> None:
    """Copy a part to its place; its tokens are added to `total` (snapshot, token, axis)."""
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
        for name, values in part[STATE].items():
            if f"{STATE}/{name}" in writer.names:
                writer.write(f"{STATE}/{name}", (slice(first, last),), values[...])
        if "tokens_mean" not in layout.names:
            return
        chosen = {path: place for place, path in enumerate(problem.save.paths)}
        for at in range(layout.snapshots.size):
            for path, tokens in enumerate(part["tokens"][:, at], start=first):
                total[at] += tokens  # as Recorder.snapshot adds: path by path
                if path in chosen:
                    writer.write("tokens", (chosen[path], at), tokens)
                    if "heads" in layout.names:
                        heads = part["heads"][path - first, at]
                        writer.write("heads", (chosen[path], at), heads)
