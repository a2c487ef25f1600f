"""Exceptions of wflow, all derived from `WflowError`."""

import signal
from functools import partial
from typing import Any


class WflowError(Exception):
    """Base of every error that wflow raises on purpose.

    Examples
    --------
    >>> import wflow
    >>> issubclass(wflow.BlowUpError, wflow.WflowError)
    True
    """


class InputError(WflowError, ValueError):
    """An argument, a flag or a file that cannot be used; the message says what to do.

    It is a `ValueError` as well.

    Examples
    --------
    >>> import wflow
    >>> wflow.tokens.uniform(n=0, d=3)
    Traceback (most recent call last):
        ...
    wflow._core.errors.InputError: n is 0: expected a whole number >= 1
    """


class RunFileError(InputError):
    """A run file that is missing, truncated, foreign, or does not fit the run asked for.

    Examples
    --------
    >>> import wflow
    >>> try:
    ...     wflow.open("no_such_run.h5")
    ... except wflow.RunFileError as error:
    ...     print("no_such_run.h5" in str(error))
    True
    """


class BlowUpError(WflowError, ArithmeticError):
    """The numerical solution diverged: tokens or heads are no longer meaningful numbers.

    Parameters
    ----------
    message : str
        What was wrong and what to do.
    time : float
        Time of the step that failed.
    path : int
        Number of the Monte Carlo path.
    score : float
        Largest bound ``|D^T x|`` on a score ``<x, D y>`` in that path at that time.

    Attributes
    ----------
    run : xarray.Dataset or None
        What was recorded, where no file holds it.

    Examples
    --------
    >>> import wflow
    >>> error = wflow.BlowUpError("step too large", time=0.5, path=0, score=1e9)
    >>> error.time, error.run
    (0.5, None)
    """

    def __init__(self, message: str, *, time: float, path: int, score: float) -> None:
        super().__init__(message)
        self.time, self.path, self.score = time, path, score
        self.run: Any = None

    def __reduce__(self) -> tuple:
        details: dict[str, Any] = {"time": self.time, "path": self.path, "score": self.score}
        return partial(type(self), self.args[0], **details), ()


class Interrupted(WflowError):
    """SIGINT or SIGTERM ended a run after a whole step; what was recorded can be resumed.

    Parameters
    ----------
    message : str
        What was interrupted and how to resume it.
    signum : int, default signal.SIGINT
        Number of the signal.

    Examples
    --------
    >>> import signal, wflow
    >>> wflow.Interrupted("stopped", signal.SIGTERM).signum == signal.SIGTERM
    True
    """

    def __init__(self, message: str, signum: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signum = int(signum)
