"""Atomic writing of result files, which replaces only files that wflow wrote."""

import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from wflow._core.errors import InputError, RunFileError
from wflow._core.files import drafts, open_hdf5, open_regular, opened, read_json, read_whole
from wflow.runs.schema import FAMILY

STUDY = "wflow-study/"  # prefix of the schema of a summary
CREATOR = "wflow"  # creator named in a figure; without a version, so that its bytes stay the same
DRAFT = ".wflow"  # prefix of the names of drafts
_MARKS = {
    ".png": (b"\x89PNG", b"Software\0" + CREATOR.encode()),
    ".pdf": (b"%PDF", b"/Creator (" + CREATOR.encode() + b")"),
    ".md": (b"# ", b"; wflow "),  # the title of a summary names the version
    ".html": (b"<!DOCTYPE html>", b'<meta name="generator" content="wflow">'),
}
_UNMARKED = {  # early figures say only that Matplotlib drew them
    ".png": (b"\x89PNG", b"Software\0Matplotlib version"),
    ".pdf": (b"%PDF", b"/Creator (Matplotlib"),
}
COMPARISONS = ("gradient_over_time", "gradient_against_heads")
"""Figures of `wflow.study.run` that show several runs, without their ending."""
REPORT = "report.html"
"""The report of a study, in its folder."""
OF_ONE_RUN = re.compile(
    r"(.+)_(tokens_mean|tokens_path\d+|gradient_over_time|speed|energy_balance)"
)
"""Figures of `wflow.plots.plot_run`, without their ending: name of the run, kind."""


def replace_files(
    folder: Path,
    writers: Mapping[str, Callable[[Path], Any]],
    *,
    named: Collection[str] = (),
    stale: Iterable[str] = (),
    index: str | None = None,
) -> None:
    """Write several files under temporary names, then put all of them in place.

    Parameters
    ----------
    folder : where they go
    writers : name -> function that writes the file at a path it is given
    named : names that an earlier summary gives as its own, for `written_by_wflow`
    stale : names of earlier results that are removed where wflow wrote them
    index : the one that names the others: the former one goes before any of them is replaced, and
        the new one comes last, so that after a kill it is missing rather than wrong

    Raises
    ------
    InputError
        For a name that is taken by something that wflow did not write.
    OSError
        Where the folder cannot be written. Earlier files then stay.
    """
    names = sorted(writers, key=lambda name: name == index)
    with drafts(*[folder / DRAFT] * len(names)) as made:
        refuse_foreign(folder, writers, named)
        for name, draft in zip(names, made, strict=True):
            writers[name](draft)
        refuse_foreign(folder, writers, named)  # checked again, since writing takes a while
        gone = [folder / name for name in stale if written_by_wflow(folder / name, named)]
        if index is not None:
            (folder / index).unlink(missing_ok=True)
        for file in gone:
            file.unlink()
        for name, draft in zip(names, made, strict=True):
            os.replace(draft, folder / name)


def refuse_foreign(folder: Path, names: Iterable[str], named: Collection[str] = ()) -> None:
    """Raise InputError where a name belongs to a file that wflow did not write."""
    for name in foreign_among(folder, names, named):
        raise InputError(f"{refusal(folder / name)} or choose another name")


def foreign_among(folder: Path, names: Iterable[str], named: Collection[str] = ()) -> list[str]:
    """List the names of existing files that wflow did not write."""
    return [
        name
        for name in names
        if os.path.lexists(folder / name) and not written_by_wflow(folder / name, named)
    ]


def refusal(file: Path) -> str:
    """Return the message for a file that wflow did not write."""
    return (
        f"{file} is there and was not written by wflow, or by a version that did not mark its "
        "figures; only regular files of wflow are replaced: move it away"
    )


def written_by_wflow(file: Path, named: Collection[str] = ()) -> bool:
    """Return whether wflow wrote a file, by its contents or by an earlier summary.

    Parameters
    ----------
    file : path of a file; a folder, link, device or fifo is none of wflow's
    named : names that an earlier summary of the same folder gives as its own
    """
    try:
        if not stat.S_ISREG(os.lstat(file).st_mode):
            return False
        if file.name in named:
            return True
        if file.suffix == ".h5":
            return _schema_of(file).startswith(STUDY)
        if file.suffix == ".json":
            return bool(summary_document(file))
        if file.suffix not in _MARKS:
            return False
        with opened(file, "a result") as raw:
            content = read_whole(raw, file)
        return _has_marks(content, _MARKS[file.suffix]) or (
            file.suffix in _UNMARKED
            and _has_marks(content, _UNMARKED[file.suffix])
            and _belongs_to_results(file)
        )
    except (OSError, InputError):
        return False


def _has_marks(content: bytes, signs: tuple[bytes, bytes]) -> bool:
    start, mark = signs
    return content.startswith(start) and mark in content


def _belongs_to_results(figure: Path) -> bool:
    """Return whether a figure has a name that wflow gives, beside its run or summary."""
    folder, one = figure.parent, OF_ONE_RUN.fullmatch(figure.stem)
    if one is not None:
        names = (f"{one[1]}.h5", f"{one[1]}.h5.partial", one[1])
        if any(_schema_of(folder / name).startswith(FAMILY) for name in names):
            return True
    of_study = figure.stem in COMPARISONS or (one and re.fullmatch(r"H\d{5,}", one[1]))
    return bool(of_study) and any(
        written_by_wflow(folder / name) for name in ("summary.json", "summary.h5")
    )


def summary_document(file: Path) -> dict[str, Any]:
    """Read the document in the summary.json of a study; {} where the file is none."""
    try:
        if not stat.S_ISREG(os.lstat(file).st_mode):
            return {}
        with open_regular(file) as raw:
            document = read_json(raw, file)
        ours = str(document["schema"]).startswith(STUDY)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return document if ours else {}


def _schema_of(file: Path) -> str:
    """Return the schema that a regular HDF5 file names, or ""."""
    with suppress(RunFileError), open_hdf5(file) as content:
        return str(content.attrs.get("schema", ""))
    return ""
