"""How this process was started: what run files record as its command, and `--help` as its name.

A script that the command `wflow` runs sees its own file in `sys.argv`; the user typed something
else, and repeats what is recorded here.
"""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_program: tuple[str, ...] = ()  # the words in the place of sys.argv[0]; empty: sys.argv[0] itself


@contextmanager
def started_as(*words: str) -> Iterator[None]:
    """Name what runs in the block, in the place of `sys.argv[0]`.

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
    """Give the name for a line of usage; None: that of the script."""
    return " ".join(_program) or None


def command_text() -> str:
    """Give the command line as text; bytes of names that are not text, as escapes."""
    words = [*(_program or sys.argv[:1]), *sys.argv[1:]]
    return shlex.join(words).encode(errors="backslashreplace").decode()
