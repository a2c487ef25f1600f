"""Text of files and names on a terminal: what steers it is shown as an escape."""

import logging
import os
import shutil
import subprocess

import pytest

import wflow
from wflow._core.invocation import shell_line
from wflow._core.printable import printable
from wflow._core.progress import progress
from wflow._core.reprs import value_text

STEERING = (
    "\x1b[31m\x9b1A\x07\r\b\x7f\u202e\u2066\u200e\u200f\u061c\u200b\u2060\ufeff\u2028\xad\udcff"
)
HONEST = [
    "größe", "Wärme ±0,5 µm", "Ω ≥ ∫ρ log ρ", "数据", "مرحبا بالعالم", "שלום", "हिन्दी", "❤️ 😀",
    "a\u00a0b", "e\u0301", "C:\\x1b\n\tx",
]  # fmt: skip


@pytest.mark.parametrize("text", HONEST)
def test_honest_text_stays_as_it_is(text) -> None:
    assert printable(text) == text


def test_what_steers_a_terminal_or_is_invisible_is_an_escape() -> None:
    for character in filter(lambda c: not c.isprintable(), STEERING):
        shown = printable(f"a{character}b")
        assert shown.startswith("a\\") and shown.isascii() and shown.isprintable()
    assert printable("a\n\tb") == "a\n\tb"
    assert printable("a\n\tb", lines=False) == r"a\n\tb"


WORDS = ["wflow", "", "a b", "$(touch x)", "`x`", "it's", '"', "\\", "-x", "a\nb", "é"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_shell_reads_the_words_of_a_command_that_is_pasted() -> None:
    words = [*WORDS, "\x1b[31m'\\", "\x1b'\\7", os.fsdecode(b"fol\xffder7")]
    line = shell_line(words)
    assert printable(line, lines=False) == line
    script = os.fsencode(f"printf '%s\\0' {line}")
    read = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert read.split(b"\0")[:-1] == [os.fsencode(word) for word in words]


def test_errors_logs_labels_and_reprs_are_printable(capsys, caplog) -> None:
    error = wflow.RunFileError(f"{STEERING}\nforged is damaged")
    assert printable(str(error), lines=False) == str(error)
    with caplog.at_level(logging.INFO, "wflow"):
        logging.getLogger("wflow").info("%s: %d steps", f"{STEERING}\nforged", 3)
    (record,) = caplog.records
    assert printable(record.getMessage(), lines=False) == record.getMessage()

    class Named:
        def __repr__(self) -> str:
            return STEERING

    assert printable(value_text(Named()), lines=False) == value_text(Named())
    with progress(1, f"{STEERING}\nforged") as advance:
        advance(0)
        progress_lines = capsys.readouterr().err
    assert "\x1b" not in progress_lines and "\nforged" not in progress_lines
