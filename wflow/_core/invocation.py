"""The command of this process, as run files record it and `--help` shows it.

A script that the command `wflow` runs sees its own file in `sys.argv`; the user typed something
else, and repeats what is recorded here.
"""

import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from wflow._core.printable import UNPRINTABLE, decoded

_program: tuple[str, ...] = ()  # the words in the place of sys.argv[0]; empty: sys.argv[0] itself


@contextmanager
def started_as(*words: str) -> Iterator[None]:
    """Name the program that runs in the block, in place of `sys.argv[0]`.

    Parameters
    ----------
    *words : str
        Such as "wflow", "study", "ou_heads".
    """
    global _program
    before, _program = _program, words
    try:
        yield
    finally:
        _program = before


def program() -> str | None:
    """Return the name for a line of usage; None for that of the script."""
    return " ".join(_program) or None


def command_text() -> str:
    """Return the command line as a shell reads it."""
    return shell_line([*(_program or sys.argv[:1]), *sys.argv[1:]])


def shell_line(words: Iterable[str]) -> str:
    """Write a command as a shell reads it: each word is quoted, and can be printed.

    Parameters
    ----------
    words : iterable of str
        The program and its arguments.

    Returns
    -------
    str
        One line.
    """
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    word = decoded(word)
    if not UNPRINTABLE.search(word):
        return shlex.quote(word)
    quoted = UNPRINTABLE.sub(_octal, re.sub(r"([\\'])", r"\\\1", word))
    return f"$'{quoted}'"  # of bash, zsh, ksh and POSIX since 2024


def _octal(found: re.Match[str]) -> str:
    """Write the bytes of a character as escapes of a shell."""
    errors = "surrogateescape" if "\udc80" <= found[0] <= "\udcff" else "surrogatepass"
    return "".join(f"\\{byte:03o}" for byte in found[0].encode("utf-8", errors))
