"""Progress of a long run on stderr: a bar on a terminal, a line at every tenth in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]
_PACE = 2.0  # seconds per tenth of a run, under which a log has no need of lines


@contextmanager
def progress(total: int, label: str = "", enabled: bool = True) -> Iterator[Advance]:
    """Show how far a loop has come and how long the rest will take.

    `with progress(steps, "H = 64") as advance: ... advance(1)`. On a terminal this is a bar; where
    stderr goes to a file or a pipe, one line at every 10 %, so that a log stays short: none where
    a tenth takes less than two seconds.

    Parameters
    ----------
    total : number of steps of the whole run
    label : what runs
    enabled : False shows nothing, and `advance` does nothing

    Yields
    ------
    function advance(k): k more steps are done. The first call does not count in the time left: it
    holds what a resumed run did earlier, or the time that compilation took.
    """
    if not enabled or total <= 0:
        yield lambda k: None
    elif sys.stderr.isatty():
        with _bar(total, label) as advance:
            yield advance
    else:
        yield _lines(total, label)


@contextmanager
def _bar(total: int, label: str) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        Remaining(),
    )
    # Four times a second is enough for the eye and leaves the cores to the compiled loops.
    bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=4)
    with bar:
        task = bar.add_task(label, total=total)
        yield lambda k: bar.update(task, advance=k)


def _lines(total: int, label: str) -> Advance:
    begun = time.monotonic()
    first: tuple[float, int] | None = None  # moment and count of the first call
    count = tenth = 0
    printed = False

    def advance(k: int) -> None:
        nonlocal first, count, tenth, printed
        count += k
        reached = min(10, 10 * count // total)
        if first is None:
            first = time.monotonic(), count
            tenth = reached if count < total else 0
        if reached <= tenth:
            return
        tenth = reached
        now = time.monotonic()
        pace = (now - first[0]) * total / 10 / max(1, count - first[1])
        if pace < _PACE and not printed:
            return
        printed = True
        name = f"{label}: " if label else ""
        note = f"{name}{10 * reached} %"
        if count >= total:
            note += f", done in {duration(now - begun)}"
        elif count > first[1]:
            left = (now - first[0]) * (total - count) / (count - first[1])
            note += f", {duration(left)} left"
        print(note, file=sys.stderr, flush=True)

    return advance


def duration(seconds: float) -> str:
    """Write a time for people: `8 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
