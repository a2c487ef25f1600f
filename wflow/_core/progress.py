"""Progress of a long run: a bar on a terminal or in a notebook, a line at every tenth in a log."""

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from wflow._core.compiler.watch import COMPILING_TIME, compilation
from wflow._core.printable import printable

Advance = Callable[[int], None]
_PACE = 2.0  # seconds per tenth of a run, under which a log has no need of lines
_REFRESH = 0.25  # seconds: enough for the eye, and leaves the cores to the compiled loops
COMPILING = f"compiling (once per machine, {COMPILING_TIME})"


@contextmanager
def progress(
    total: int, label: str = "", enabled: bool = True, *, bar: bool = True
) -> Iterator[Advance]:
    """Show how far a loop has come and how long the rest will take.

    `with progress(steps, "H = 64") as advance: ... advance(1)`. On a terminal this is a bar, and in
    a notebook one output that is replaced as it moves and stays in its last state. Where stderr
    goes to a file or a pipe, it is one line at every 10 %, so that a log stays short: none where a
    tenth takes less than two seconds. While kernels of wflow are compiled it says so.

    Parameters
    ----------
    total : int
        Number of steps of the whole run.
    label : str
        What runs.
    enabled : bool
        False shows nothing, and `advance` does nothing.
    bar : bool
        False writes lines to a terminal too, as other processes write to it at the same time.

    Yields
    ------
    callable
        advance(k): k more steps are done. The first call does not count in the time left: it holds
        what a resumed run did earlier, or the time that compilation took.
    """
    if not enabled or total <= 0:
        yield lambda k: None
        return
    label = printable(label, lines=False)
    with ExitStack() as stack:
        shown: Display
        if (publish := _notebook()) is not None:
            shown = stack.enter_context(_in_notebook(total, label, publish))
        elif bar and sys.stderr.isatty():
            shown = stack.enter_context(_bar(total, label))
        else:
            shown = _Lines(total, label)
        stack.enter_context(compilation(shown.compiling))
        yield shown.advance


class Display(Protocol):
    """Interface of a display of progress."""

    def advance(self, k: int) -> None:
        """Show that k more steps are done."""

    def compiling(self, active: bool) -> None:
        """Show that compilation begins, or that it has ended."""


class _Bar:
    """Progress bar of the library rich."""

    def __init__(self, bar: Any, total: int, label: str) -> None:
        self._bar, self._total, self._label = bar, total, label
        self._task = bar.add_task(label, total=total)

    def advance(self, k: int) -> None:
        self._bar.update(self._task, advance=k)

    def compiling(self, active: bool) -> None:
        label = _labelled(self._label, COMPILING) if active else self._label
        # Without a total the bar pulses and shows no percentage.
        next(t for t in self._bar.tasks if t.id == self._task).total = (
            None if active else self._total
        )
        self._bar.update(self._task, description=label)
        self._bar.refresh()


@contextmanager
def _bar(total: int, label: str) -> Iterator[_Bar]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        Remaining(),
    )
    bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=1 / _REFRESH)
    with bar:
        yield _Bar(bar, total, label)


class _Clock:
    """Clock of a run: the steps done, and the time left at the present pace."""

    def __init__(self, total: int) -> None:
        self.total, self.count = total, 0
        self.begun = time.monotonic()
        self.first: tuple[float, int] | None = None  # moment and count of the first call

    def add(self, k: int) -> bool:
        """Count k more steps; return whether this is the first call."""
        self.count += k
        if self.first is not None:
            return False
        self.first = time.monotonic(), self.count
        return True

    @property
    def pace(self) -> float:
        """Seconds per tenth of the run."""
        assert self.first is not None
        moment, count = self.first
        return (time.monotonic() - moment) * self.total / 10 / max(1, self.count - count)

    def words(self) -> str:
        """Return the time left, or the time taken, in words; "" where it is unknown."""
        now = time.monotonic()
        if self.count >= self.total:
            return f"done in {duration(now - self.begun)}"
        if self.first is None or self.count <= self.first[1]:
            return ""
        left = (now - self.first[0]) * (self.total - self.count) / (self.count - self.first[1])
        return f"{duration(left)} left"


class _Lines:
    """Progress as one line at every tenth of a run, on stderr."""

    def __init__(self, total: int, label: str) -> None:
        self._clock, self._label = _Clock(total), label
        self._tenth = 0
        self._printed = self._told = False

    def advance(self, k: int) -> None:
        clock = self._clock
        first = clock.add(k)
        reached = min(10, 10 * clock.count // clock.total)
        if first:
            self._tenth = reached if clock.count < clock.total else 0
        if reached <= self._tenth:
            return
        self._tenth = reached
        if clock.pace < _PACE and not self._printed:
            return
        self._printed = True
        words = clock.words()
        self._print(f"{10 * reached} %" + (f", {words}" if words else ""))

    def compiling(self, active: bool) -> None:
        if active and not self._told:
            self._told = True
            self._print(COMPILING)

    def _print(self, text: str) -> None:
        print(_labelled(self._label, text), file=sys.stderr, flush=True)


def _labelled(label: str, text: str) -> str:
    return f"{label}: {text}" if label else text


# Notebooks
# ---------

Publish = Callable[..., Any]


def _notebook() -> Publish | None:
    """Return `IPython.display.display` where this process is the kernel of a notebook."""
    if "IPython" not in sys.modules:  # which a kernel has loaded
        return None
    from IPython import get_ipython
    from IPython.display import display

    shell = get_ipython()
    return display if getattr(shell, "kernel", None) is not None else None


class _Output:
    """Output of a notebook's cell, replaced as the run proceeds.

    Text beside HTML, so that it can be read where no HTML is shown. It needs no widgets: the last
    state is in the notebook that is saved.
    """

    def __init__(self, total: int, label: str, publish: Publish) -> None:
        self._clock, self._label = _Clock(total), label
        self._note, self._shown = "", time.monotonic()
        self._handle = publish(self._content(), raw=True, display_id=True)

    def _content(self) -> dict[str, str]:
        clock = self._clock
        percent = 100 * min(clock.count, clock.total) // clock.total
        words = self._note or clock.words()
        text = f"{percent} %" + (f", {words}" if words else "")
        if self._note:
            text = self._note
        label = f"{html.escape(self._label)} " if self._label else ""
        value = "" if self._note else f' value="{percent}"'  # without one the bar pulses
        bar = f'<progress{value} max="100" style="vertical-align: middle"></progress>'
        return {
            "text/plain": _labelled(self._label, text),
            "text/html": f"<div>{label}{bar} {html.escape(text)}</div>",
        }

    def show(self) -> None:
        """Replace the output by the present state."""
        self._shown = time.monotonic()
        self._handle.update(self._content(), raw=True)

    def advance(self, k: int) -> None:
        self._clock.add(k)
        if time.monotonic() - self._shown >= _REFRESH:
            self.show()

    def compiling(self, active: bool) -> None:
        self._note = COMPILING if active else ""
        self.show()


@contextmanager
def _in_notebook(total: int, label: str, publish: Publish) -> Iterator[_Output]:
    output = _Output(total, label, publish)
    try:
        yield output
    finally:
        output.show()


def duration(seconds: float) -> str:
    """Return a time for people: `8 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
