"""Command lines: how `tyro` reads them, and names of files and folders."""

import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Annotated, Any

import tyro

from wflow._core.errors import InputError
from wflow._core.printable import printable

_SHOWN = 100  # characters of a word in a message


def _path_of(expected: str) -> Callable[[list[str]], Path]:
    def read(words: list[str]) -> Path:
        if not words[0]:  # Path would make the current folder of it
            raise ValueError(f"it is empty: expected {expected}")
        return Path(words[0])

    return read


def _path(metavar: str, expected: str) -> Any:
    """Return the rule by which `tyro` reads a path; an empty name is refused."""
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=_path_of(expected),
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda path: [str(path)],
    )


Folder = Annotated[Path, _path("DIR", "the name of a folder, such as results/study")]
"""Type of a flag that names a folder; an empty name is refused."""

RunFile = Annotated[Path, _path("FILE", "the name of a run file, such as results/run.h5")]
"""Type of an argument that names a run file; an empty name is refused."""

ConfigFile = Annotated[Path, _path("FILE", "the name of a configuration, such as config.toml")]
"""Type of an argument that names a configuration; an empty name is refused."""

NewRun = Annotated[Path, _path("FILE.h5", "the name of a run file to write, such as run.h5")]
"""Type of a flag that names a run file to write; an empty name is refused."""

Drawing = Annotated[Path, _path("FILE.png", "the name of a figure to write, such as figure.png")]
"""Type of a flag that names a figure to write; an empty name is refused."""

RunOrFolder = Annotated[Path, _path("FILE|DIR", "the name of a run file or of a study's folder")]
"""Type of an argument that names a run file or the folder of a study; an empty name is refused."""

Page = Annotated[Path, _path("FILE.html", "the name of a page, such as report.html")]
"""Type of a flag that names a page to write; an empty name is refused."""

Texts = Annotated[Path, _path("FOLDER", "the name of a folder or a file with texts")]
"""Type of an argument that names a corpus; an empty name is refused."""


def shown_as(metavar: str, default: str) -> Any:
    """Return the rule by which `--help` shows a flag whose default `tyro` cannot print."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


def read_words(kind: Any, words: Sequence[str], **options: Any) -> Any:
    """Read a command line by `tyro.cli`; messages quote words in short and printable form.

    Parameters
    ----------
    kind : what is read
    words : of the command line
    options : of `tyro.cli`

    Raises
    ------
    SystemExit
        For `--help` (0) and for words that cannot be read (2).
    """
    shown = [_shown(word) for word in words]
    if shown == list(words):
        return tyro.cli(kind, args=words, **options)
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(kind, args=words, **options)
    except SystemExit as stop:
        if stop.code:
            tyro.cli(kind, args=shown, **options)  # ends with the message, with these words
            print(printable(said.getvalue()), end="", file=sys.stderr)
        raise


def _shown(word: str) -> str:
    """Return a word in the form in which messages quote it."""
    word = printable(word, lines=False)
    return word if len(word) <= _SHOWN else f"{word[:_SHOWN]}..."


def check_folder(name: str | Path | None, flag: str) -> None:
    """Refuse a folder of data that is given and does not exist, whether it is read or not.

    Raises
    ------
    InputError
        That names the flag.
    """
    if name is not None and not os.path.isdir(name):  # Path("") would be the current folder
        what = "this is no folder" if os.path.lexists(name) else "there is no such folder"
        raise InputError(f"{flag} {name}: {what}; name one that exists, or leave {flag} out")
