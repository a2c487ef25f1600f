"""The folder of a study: its contents, and which files may be written to it."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wflow._core.errors import InputError
from wflow._core.identity import check_comparable
from wflow.runs.disk import check_target
from wflow.runs.driver import not_extensible
from wflow.runs.read import (
    config_differences,
    load_state,
    manifest_of,
    never_started,
    partial_of,
    parts_of,
    run_status,
)
from wflow.runs.results import summary_document
from wflow.study.flags import Flags, flags_of

if TYPE_CHECKING:
    from wflow.meanfield.solver import MeanField
    from wflow.particles.problem import Problem


def problem_of_task(task: Mapping[str, Any]) -> "Problem | MeanField":
    """Check a task, and return the problem of `wflow.solve` or, for a mesh, `meanfield.solve`."""
    # These imports load Numba.
    if "mesh" in task:
        from wflow.meanfield.solver import problem_of_task as of_equation

        return of_equation(task)
    from wflow.particles.problem import problem_of_task as of_particles

    return of_particles(task)


def check_output(file: Path, task: Mapping[str, Any], flags: Flags) -> None:
    """Check, before any computation, that a run file is free or belongs to the requested run."""
    problem = problem_of_task(task)
    if flags.overwrite or (run_status(file) == "absent" and not manifest_of(file).exists()):
        check_target(file, problem.layout(), overwrite=flags.overwrite)
        return
    if not flags.resume:
        names = (file, partial_of(file), parts_of(file))
        refuse_existing(file.parent, [name.name for name in names])
    asked = problem.config()
    check_comparable(asked)
    differ = config_differences(file, asked)
    here = not getattr(flags, "workers", 0)  # workers do not extend runs
    extends = here and run_status(file) == "complete"
    if differ and (not extends or not_extensible(file, asked, problem.layout())):
        raise InputError(
            f"{file} holds a run that differs in {flags_of(differ, flags)}: give the flags it was "
            "made with, --overwrite in the place of --resume, or another --out"
        )
    if run_status(file) == "partial" and not never_started(file):
        load_state(file)  # a missing state is reported now, not after other runs


def keep_or_replace(file: Path, flags: Flags) -> dict[str, Any]:
    """Return the arguments of `solve` that decide about an earlier run file."""
    if flags.overwrite or (flags.resume and never_started(file)):
        return {"out": file, "if_exists": "overwrite"}
    return {"out": file, "if_exists": "resume" if flags.resume else "error"}


def refuse_existing(folder: Path, names: Iterable[str]) -> None:
    """Raise InputError where one of the files exists."""
    for name in names:
        if os.path.lexists(folder / name):
            raise InputError(
                f"{folder / name} exists: add --resume to continue it, --overwrite to replace "
                "it, or choose another --out"
            )


def earlier_results(folder: Path) -> set[str]:
    """Return the names of the files that an earlier summary of this folder gives as its own."""
    document = summary_document(folder / "summary.json")
    figures, texts = (document.get(key, []) for key in ("figures", "texts"))
    names = {"summary.h5", "summary.json", "summary.md"} if document else set[str]()
    if isinstance(figures, list):
        names |= {f"{stem}.{kind}" for stem in figures for kind in ("png", "pdf")}
    if isinstance(texts, list):
        names |= {str(name) for name in texts}
    return {name for name in names if Path(name).name == name}  # of this folder only


@contextmanager
def log_on_stderr(verbose: bool) -> Iterator[None]:
    """Log to stderr during a study."""
    if not verbose:
        yield
        return
    from rich.console import Console
    from rich.logging import RichHandler

    logger = logging.getLogger("wflow")
    handler, level = RichHandler(console=Console(stderr=True), show_path=False), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
