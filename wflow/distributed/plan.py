"""Division of a run into tasks of a few seconds each, and the state of these tasks."""

import math
import statistics
from pathlib import Path
from typing import Any

from wflow._core.errors import BlowUpError
from wflow._core.identity import check_comparable, warn_not_comparable
from wflow._core.invocation import command_text
from wflow.distributed.job import Job, Parts, Range, check_manifest, gaps
from wflow.io import disk
from wflow.io.read import manifest_of, run_status
from wflow.particles.problem import Problem, problem_of_task
from wflow.particles.solver import batch_size, open_finished

Task = dict[str, Any]  # arguments of wflow.solve, `out` among them


_SHORTEST = 1.0  # seconds: less is not worth its message and its files

# Cost on one core of a Xeon with AVX-512, for the first tasks of a run only: those that follow go
# by what these took. Seconds per pair of tokens, head and multiply-add, of which there are d + 7:
_PAIR = 1.1e-10
# Seconds of Python per step of a batch, whose code the sums push out of the caches, and of each
# path in it; seconds of a task for its message and its files.
_STEP, _PATH_STEP, _TASK = 4e-4, 2e-5, 0.05
# Where few paths fit into a task, what it takes once for all of them weighs more. Up to this share
# it may, or else tasks take longer, but never more than so many times what was asked.
_SHARE, _STRETCH = 0.04, 3.0
_FIRST = 16  # share of a run in its first tasks
_LARGE = 2**20  # bytes of a run that travel by disk and not in a message


class Run:
    """One run of a study: what of it is done, under way and still to do.

    Parameters
    ----------
    task : arguments of `wflow.solve`
    seconds : what a task should take

    Raises
    ------
    InputError
        For arguments that cannot be used, or files that are there and not to be used.
    """

    def __init__(self, task: Task, seconds: float) -> None:
        self.out, self.seconds = Path(task["out"]).absolute(), seconds
        if_exists = task.get("if_exists", "error")
        self.overwrite, self.resume = if_exists == "overwrite", if_exists == "resume"
        problem = problem_of_task(task)
        self.paths = problem.paths
        self.job = Job(problem=problem, config=problem.config(), command=command_text())
        self.warned = set[type]()  # kinds of warnings that it has given
        self.under_way = 0
        self._once = _TASK + _STEP * _evaluations(problem)  # of a task, whatever its paths
        estimate = seconds_per_path(problem, problem.compute.threads or 1)
        self.weight = max(1, round(1000 * estimate))  # of a path, in the bar of all runs
        self.length = max(estimate, min(seconds, estimate * self.paths))  # of its longest task
        self._estimate, self._measured = estimate, list[float]()
        self._parts: Parts | None = None  # none where one task computes the run
        self._begun: list[Range] = []  # parts that earlier processes began
        self._open: list[Range] = [(0, self.paths)]  # paths that belong to no part
        status = self._status()
        self.finished = status == "complete"
        warn_not_comparable(self.job.config)
        self._in_one = status == "partial"  # a run that was begun in one is ended in one

    def _status(self) -> str:
        """How far the run file got, checked to be one that this run may use."""
        if not self.resume:
            disk.check_target(self.out, self.job.problem.layout(), self.overwrite)
            return "absent"
        status, parts = run_status(self.out), manifest_of(self.out).exists()
        if status != "absent" or parts:
            check_comparable(self.job.config)
        if status == "complete":
            open_finished(self.job.config, self.out).close()
        elif parts:
            check_manifest(self.out, self.job.config)
        return status

    def begin(self, *, may_be_one: bool) -> int:
        """Take up what earlier processes left, or remove it where it is to be replaced.

        Parameters
        ----------
        may_be_one : whether a short run is computed in one task, without parts

        Returns
        -------
        number of paths that are there already
        """
        if self.finished:
            if manifest_of(self.out).exists():  # a process died as it tidied up
                disk.remove_parts(self.out)
            return self.paths
        if self.overwrite:
            self._remove_former()
        if not manifest_of(self.out).exists() and may_be_one:
            problem = self.job.problem
            small = problem.x0.nbytes + problem.scores.nbytes < _LARGE
            short = self.paths == 1 or self._once + self.pace * self.paths <= self.seconds
            self._in_one |= small and short
        if self._in_one:
            return 0
        self._parts = Parts(self.out, self.job, resume=self.resume)
        done, self._begun = self._parts.found()
        self._parts.add(*done)
        self._open = list(gaps(done + self._begun, self.paths))
        return sum(last - first for first, last in done)

    def _remove_former(self) -> None:
        """Remove the run that this one replaces, unless another process writes it."""
        lock = disk.RunLock(self.out)
        try:
            disk.check_target(self.out, self.job.problem.layout(), overwrite=True)
            disk.remove_run(self.out)
        finally:
            lock.release()

    @property
    def pace(self) -> float:
        """Seconds that a path adds to a task, by the last ones that ended."""
        return statistics.median(self._measured) if self._measured else self._estimate

    @property
    def left(self) -> float:
        """Seconds of work that is in no task yet, about."""
        waiting = [] if self.finished else self._begun + self._open
        return self.pace * sum(last - first for first, last in waiting)

    @property
    def folder(self) -> Path | None:
        """Folder of the parts, for files that live as long as they do."""
        return self._parts.folder if self._parts is not None else None

    def take(self, share: float) -> tuple[Path, Range | None] | None:
        """Run file and paths of the next task; None: no more. Paths None stand for the whole run.

        share : seconds of work that are left for each worker; the last tasks are as short as that
        """
        if self.left <= 0:
            return None
        self.under_way += 1
        if self._parts is None:
            self._open = []
            return self.out, None
        if self._begun:
            paths = self._begun.pop(0)
        else:
            first, last = self._open.pop(0)
            end = first + self._count(share, last - first)
            self._open[:0] = [(end, last)] if end < last else []
            paths = first, end
        return self._parts.file(paths), paths

    def _count(self, share: float, most: int) -> int:
        """Paths of a task out of `most`: one at least, a batch at most."""
        wanted = max(self.seconds, min(self._once / _SHARE, _STRETCH * self.seconds)) - self._once
        wanted = min(wanted, max(share, min(_SHORTEST, self.seconds)))
        # Before anything is measured, tasks may not be long however wrong the estimate is.
        batch = batch_size(self.job.problem)
        limit = batch if self._measured else math.ceil(self.paths / _FIRST)
        count = max(1, min(round(wanted / self.pace), most, limit, batch))
        return math.ceil(most / math.ceil(most / count))  # equal shares: no short task at the end

    def done(self, paths: Range | None, seconds: float) -> int:
        """Note that a task has ended, and what it took; returns its number of paths."""
        self.under_way -= 1
        first, last = paths or (0, self.paths)
        count = last - first
        least = _PATH_STEP * _evaluations(self.job.problem)
        self._measured = [*self._measured[-4:], max(least, (seconds - self._once) / count)]
        if self._parts is not None:
            self._parts.add((first, last))
        return count

    def unseen(self) -> list[Path]:
        """Files of finished tasks that this process does not see on the disk."""
        if self._parts is None:
            return [] if self.out.exists() else [self.out]
        found = self._parts.found()[0]
        return [self._parts.file(paths) for paths in gaps(found, self.paths)]

    def finish(self) -> None:
        """Put the parts of a run together of which every path is there."""
        if self._parts is not None:
            self._parts.merge()
        self.finished = True

    def placed(self, error: BlowUpError) -> BlowUpError:
        """The error of one of its tasks, with the place where what was recorded is."""
        where = self.folder or f"{self.out}.partial"
        error.args = (
            f"{error.args[0]}. What was recorded is in {where}; run again with another output, or "
            "replace it (--overwrite)",
        )
        return error

    def close(self) -> None:
        """Let other processes continue the run; where nothing was computed, nothing stays."""
        if self._parts is not None:
            self._parts.close()
            folder = self._parts.folder
            if folder.is_dir() and not any(".h5" in file.name for file in folder.iterdir()):
                disk.remove_parts(self.out)


def seconds_per_path(problem: Problem, threads: int) -> float:
    """About what a path adds by the exact sums: steps x (Python + heads x n^2 x (d + 7))."""
    n, d = problem.x0.shape[-2:]
    return _evaluations(problem) * (_PATH_STEP + _PAIR * problem.heads * n * n * (d + 7) / threads)


def _evaluations(problem: Problem) -> int:
    # Of adaptive steps at least one for each recorded time.
    steps = problem.steps if problem.control is None else problem.record_steps.size
    return steps * problem.scheme.stages
