"""Errors of wflow, derived from `WflowError`, its warnings, and `Interrupted`, which is neither."""

import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from wflow._core.printable import printable

AnyError = TypeVar("AnyError", bound=BaseException)


def _printable_record(record: logging.LogRecord) -> bool:
    """Make the message of a record printable; every record passes."""
    message = record.getMessage()
    if message != (text := printable(message, lines=False)):
        record.msg, record.args = text, None
    return True


logging.getLogger("wflow").addFilter(_printable_record)  # which names files in what it logs


class WflowError(Exception):
    """Base of every error that wflow raises on purpose.

    Examples
    --------
    >>> import wflow
    >>> issubclass(wflow.BlowUpError, wflow.WflowError)
    True
    """

    def __str__(self) -> str:
        return printable(super().__str__(), lines=False)  # messages quote files and their names


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


class WflowWarning(UserWarning):
    """Base of every warning that wflow gives.

    It names the line of the caller, and is shown once per line, as Python does by default.

    Examples
    --------
    >>> import wflow
    >>> issubclass(wflow.AccuracyWarning, wflow.WflowWarning)
    True
    """


class AccuracyWarning(WflowWarning, RuntimeWarning):
    """A result that is less accurate or of less use than asked for; the message says why.

    It is a `RuntimeWarning` as well, the category of NumPy for its arithmetic.

    Examples
    --------
    >>> import warnings, numpy as np, wflow
    >>> with warnings.catch_warnings():
    ...     warnings.filterwarnings("ignore", category=wflow.AccuracyWarning)
    ...     energy = wflow.energy(wflow.tokens.uniform(n=4, d=3), [800 * np.eye(3)])
    """


class CacheWarning(WflowWarning):
    """A cache that cannot be read or written: results are the same and take longer.

    Examples
    --------
    >>> import warnings, wflow
    >>> warnings.filterwarnings("ignore", category=wflow.CacheWarning)
    """


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM ended a run after a whole step; what was recorded can be resumed.

    It is a `KeyboardInterrupt` and no `Exception`, so that a loop that carries on after errors
    stops. A script that it ends prints the message, without a traceback, and has the exit status
    128 + `signum`: 130 for SIGINT, 143 for SIGTERM.

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


def last_words(error: BaseException) -> tuple[str, int]:
    """Return the message and exit status of a program that ends by an exception of wflow."""
    if isinstance(error, Interrupted):
        return f"wflow: {printable(str(error), lines=False)}", 128 + error.signum
    return f"wflow: error: {error}", 2


def without_traceback(error: AnyError) -> AnyError:
    """Let a script that the error ends print its `last_words` alone; return the error."""
    vars(error)["without_traceback"] = True
    if not isinstance(sys.excepthook, _LastWords):
        sys.excepthook = _LastWords(sys.excepthook)
    return error


class _LastWords:
    """A `sys.excepthook` for one error; all other errors go to the previous hook."""

    def __init__(self, before: Callable[..., Any]) -> None:
        self.before = before

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        goes_on = hasattr(sys, "ps1") or sys.flags.inspect
        if goes_on or not hasattr(error, "without_traceback"):
            self.before(kind, error, trace)
            return
        message, status = last_words(error)
        print(message, file=sys.stderr)
        raise SystemExit(status)


_INNER = ("wflow", "numba", "torch")  # packages whose frames lie between a warning and its user


def warn(text: str, category: type[WflowWarning]) -> None:
    """Warn at the line of the user that called wflow, however deep the call is.

    Every warning of the package is given here.
    """
    import warnings

    frame, level = sys._getframe(), 1
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _INNER:
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]
    warnings.warn(printable(text, lines=False), category, stacklevel=level)
