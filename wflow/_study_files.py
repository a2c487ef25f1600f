"""The folder of a study: what stands in it, and what may be written there."""

import json
import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wflow._runread import (
    checkpoint_of,
    differences,
    manifest_config,
    manifest_of,
    partial_of,
    parts_of,
)
from wflow._study_flags import Flags, flags_of
from wflow.errors import InputError
from wflow.runfile import config_text, load_state, open_run, run_status


def configuration(task: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration of the run that `wflow.solve(**task)` makes, its arguments checked."""
    from wflow.solver import posed  # loads Numba

    return posed(**task).config()


def check_output(file: Path, asked: dict[str, Any], flags: Flags) -> None:
    """Before anything is computed: is this run file free, or that of the run asked for?"""
    parts = manifest_of(file).exists()
    if flags.overwrite or (run_status(file) == "absent" and not parts):
        return
    if not flags.resume:
        names = (file, partial_of(file), parts_of(file))
        refuse_existing(file.parent, [name.name for name in names])
    differ = config_differences(file, asked)
    if differ:
        raise InputError(
            f"{file} holds a run that differs in {flags_of(differ, flags)}: give the flags it was "
            "made with, --overwrite in the place of --resume, or another --out"
        )
    if run_status(file) == "partial" and not _never_started(file):
        load_state(file)  # a state that is missing shows now, not after other runs


def config_differences(file: Path, asked: dict[str, Any]) -> list[str]:
    """Keys in which the configuration of a run file differs from the one asked for."""
    if run_status(file) == "absent":
        return differences(manifest_config(file), json.loads(config_text(asked)))
    with _open(file) as ds:
        return differences(json.loads(ds.attrs["config"]), json.loads(config_text(asked)))


@contextmanager
def _open(file: Path) -> Iterator[Any]:
    """The run of that name, unfinished or not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not complete is why it is resumed
        partial = run_status(file) == "partial"
        with open_run(partial_of(file) if partial else file) as ds:
            yield ds


def _never_started(file: Path) -> bool:
    """Whether an unfinished run died before it recorded anything: nothing is lost with it."""
    if checkpoint_of(file).exists() or not partial_of(file).exists():
        return False
    with _open(file) as ds:
        return not any(ds.sizes.get(dim, 0) for dim in ("time", "snapshot"))


def keep_or_replace(file: Path, flags: Flags) -> dict[str, Any]:
    """Arguments of `solve` that say what becomes of an earlier run file."""
    anew = flags.overwrite or (flags.resume and _never_started(file))
    return {"out": file, "overwrite": anew, "resume": flags.resume and not anew}


def refuse_existing(folder: Path, names: Iterable[str]) -> None:
    """Raise InputError where one of the files is there."""
    for name in names:
        if (folder / name).exists():
            raise InputError(
                f"{folder / name} exists: add --resume to go on with it, --overwrite to replace "
                "it, or choose another --out"
            )


@contextmanager
def study_folder(folder: Path) -> Iterator[None]:
    """Make the folder; if what follows fails before it writes anything, take it away again."""
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make --out {folder}: {error.strerror}; choose a folder that can be written"
        ) from None
    try:
        yield
    except BaseException:
        for path in made:  # innermost first
            if any(path.iterdir()):
                break
            path.rmdir()
        raise


def replace_files(folder: Path, writers: Mapping[str, Any]) -> None:
    """Write several files of a folder, each by `writer(draft)`, and put all in place at the end.

    Raises
    ------
    InputError
        Where the folder cannot be written; earlier files then stay.
    """
    drafts = {name: folder / f"{name}.new" for name in writers}
    try:
        for name, write in writers.items():
            write(drafts[name])
        for name, draft in drafts.items():
            os.replace(draft, folder / name)
    except OSError as error:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
        raise InputError(
            f"cannot write the summary into {folder}: {error.strerror or error}; the run files "
            "are kept: make room and give the same command with --resume"
        ) from None


@contextmanager
def log_on_stderr(verbose: bool) -> Iterator[None]:
    """Show what wflow logs, for the time of a study."""
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
