"""Exceptions of wflow, all derived from `WflowError`."""

import signal
from functools import partial
from typing import Any


class WflowError(Exception):
    """Base of every error that wflow raises on purpose."""


class InputError(WflowError, ValueError):
    """An argument, a flag or a file that cannot be used; the message says what to do."""


class RunFileError(InputError):
    """A run file that is missing, truncated, foreign, or does not fit the run asked for."""


class BlowUpError(WflowError, ArithmeticError):
    """The numerical solution diverged: tokens or heads are no longer meaningful numbers.

    Attributes
    ----------
    time : float
        Time of the step that failed.
    path : int
        Number of the Monte Carlo path.
    score : float
        Largest bound |D^T x| on a score <x, D y> in that path at that time.
    run : xarray.Dataset or None
        What was recorded, where no file holds it.
    """

    def __init__(self, message: str, *, time: float, path: int, score: float) -> None:
        super().__init__(message)
        self.time, self.path, self.score = time, path, score
        self.run: Any = None

    def __reduce__(self) -> tuple:
        details: dict[str, Any] = {"time": self.time, "path": self.path, "score": self.score}
        return partial(type(self), self.args[0], **details), ()


class Interrupted(WflowError):
    """SIGINT or SIGTERM ended a run after a whole step; what was recorded can be resumed."""

    def __init__(self, message: str, signum: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signum = int(signum)
