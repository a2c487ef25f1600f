"""A run cut by its paths into parts that any process computes, and put together to the same bits.

The parts of the run `NAME.h5` lie in the folder `NAME.h5.parts`: `00008-00015.h5` holds the paths 8
to 15 and is an ordinary run file, streamed, checkpointed and resumed like any other; it keeps the
tokens of all its paths at the snapshots. `run.json` says which run they belong to, `lock` keeps a
second study out. When all paths are there, `merge` writes `NAME.h5` and the folder goes.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from wflow import _rundisk, _runread
from wflow._job import Job, Range, is_whole
from wflow._problem import Problem
from wflow._rundisk import disk_error
from wflow._runread import checkpoint_of, manifest_of, parts_of
from wflow.errors import RunFileError
from wflow.runfile import RunWriter, config_text, dataset_attrs, differences
from wflow.solver import write_initial_state

_NAME = re.compile(r"(\d+)-(\d+)\.h5")
_BLOCK = 2**20  # values copied at a time


class Parts:
    """The folder of the parts of one run; one process at a time holds it open.

    Parameters
    ----------
    out : name of the finished run file
    job : the run
    resume : go on with parts that are there; they must be of this run

    Raises
    ------
    RunFileError
        For parts of another run, or in use by another process, or a disk that fails.
    """

    def __init__(self, out: Path, job: Job, *, resume: bool) -> None:
        self.out, self.folder, self.job = out, parts_of(out), job
        try:
            self.folder.mkdir(exist_ok=True)
            self._lock = FileIO(self.folder / "lock", "a")
        except OSError as error:
            raise disk_error(error, "make", self.folder) from None
        try:
            _rundisk.lock(self._lock, out)
            if resume and manifest_of(out).exists():
                check_manifest(out, job.config)
            else:
                self._begin()
        except BaseException:
            self._lock.close()
            raise

    def _begin(self) -> None:
        """Empty the folder, then say of which run its parts will be."""
        manifest = manifest_of(self.out)
        _rundisk.remove(manifest)
        for file in self.folder.iterdir():
            if ".h5" in file.name:
                _rundisk.remove(file)
        draft = manifest.with_suffix(".new")
        text = json.dumps({"schema": _runread.PARTS, "config": config_text(self.job.config)})
        try:
            with open(draft, "w", encoding="utf-8") as raw:
                raw.write(text)
                raw.flush()
                os.fsync(raw.fileno())
            os.replace(draft, manifest)
        except OSError as error:
            _rundisk.remove(draft)
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
            if is_whole(self.file(paths), self.job.part(paths)[1]):
                whole.add(paths)
            elif checkpoint_of(self.file(paths)).exists():
                begun.add(paths)
        kept: list[Range] = []
        for paths in [*sorted(whole), *sorted(begun)]:
            if all(paths[1] <= other[0] or other[1] <= paths[0] for other in kept):
                kept.append(paths)
        return sorted(whole & set(kept)), sorted(begun & set(kept))

    def merge(self) -> None:
        """Write the run file from the parts, in the order of the paths, and remove them.

        Every variable has the bits of a run by one process. The new file appears under its name
        when it is whole; a merge that is killed begins again.

        Raises
        ------
        RunFileError
            Where paths are missing, or the disk fails; the parts then stay.
        """
        problem, parts = self.job.problem, self.found()[0]
        ends = [0, *(last for _, last in parts)]
        if [first for first, _ in parts] != ends[:-1] or ends[-1] != problem.paths:
            raise RunFileError(
                f"parts are missing in {self.folder}; give the same command with --resume"
            )
        draft = self.folder / "whole.h5"
        attrs = dataset_attrs(self.job.config, problem.seed, self.job.command)
        writer = RunWriter.create(draft, problem.layout(), attrs, overwrite=True)
        try:
            write_initial_state(problem, writer)
            total = None
            for paths in parts:
                total = _copy(problem, writer, self.file(paths), paths, total)
            if total is not None:
                writer.write("tokens_mean", (), total / problem.paths)
            writer.finish()
        except BaseException:
            writer.abandon()
            raise
        try:
            os.replace(draft, self.out)
        except OSError as error:
            raise disk_error(error, "finish", self.out, kept=True) from None
        _rundisk.sync_directory(self.out.parent)
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Let another process go on with the parts."""
        self._lock.close()


def part_file(out: Path, paths: Range) -> Path:
    """Name of the finished part of a run."""
    return parts_of(out) / f"{paths[0]:05d}-{paths[1] - 1:05d}.h5"


def check_manifest(out: Path, config: dict[str, Any]) -> None:
    """Raise RunFileError where the parts beside `out` belong to another run than this one."""
    changed = differences(_runread.manifest_config(out), json.loads(config_text(config)))
    if changed:
        raise RunFileError(
            f"{parts_of(out)} belongs to another run: {', '.join(changed)} differ; resume with the "
            "settings it was started with, or start anew with --overwrite"
        )


def _copy(
    problem: Problem, writer: RunWriter, file: Path, paths: Range, total: Any
) -> np.ndarray | None:
    """Copy a part to its place in the run; returns the sum of tokens (snapshot, token, axis)."""
    first, last = paths
    layout = problem.layout()
    with _runread.open_hdf5(file) as part:
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
        chosen = {int(path): place for place, path in enumerate(problem.snapshot_paths)}
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
