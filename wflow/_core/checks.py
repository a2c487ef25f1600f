"""Argument checks shared by all packages, with one rule and one wording for each kind."""

import inspect
import math
import numbers
import operator
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from wflow._core.errors import InputError

# Names that arguments take: here, so that flags of a command line know them without compiled code.
FlowName = Literal["softmax", "unnormalised", "effective"]
Direction = Literal["descent", "ascent"]
SchemeName = Literal["euler", "sra1", "heun", "rk4", "dopri5"]
MetricName = Literal["w2", "weighted"]
Method = Literal["auto", "exact", "fast"]
Backend = Literal["numba", "torch"]
Precision = Literal["float64", "float32"]
T = TypeVar("T")

LARGEST_WHOLE = 2**63 - 1
"""Largest whole number that arrays and compiled functions can hold."""

_SHOWN = 100  # characters of an argument in a message
_SHOWN_ENTRIES = 9  # of an array whose values a message shows
_LONGEST_NAME = 255  # bytes, on the file systems in use
_LONGEST_PATH = 4000  # bytes, leaves space for the files beside a run
_ENDING = 32  # bytes that the names of an unfinished run, its state and its parts add at most
_KINDS = {"b": "booleans", "c": "complex numbers", "U": "text", "S": "text", "M": "dates"}
_KINDS |= {"m": "time spans", "O": "objects", "V": "records"}


def shown(value: Any) -> str:
    """Return one line of the repr of an argument for a message; of a large array the shape."""
    try:
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple) and math.prod(shape) > _SHOWN_ENTRIES:
            return f"an array of shape {shape}"
        text = repr(value)
    except Exception:  # of an object of the user, or an integer of thousands of digits
        return f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def did_you_mean(word: str, words: Collection[str]) -> str:
    """Return the end of a message that suggests the name that was probably meant.

    Parameters
    ----------
    word : str
        What was given; a hyphen is as good as an underscore.
    words : collection of str
        What could be given.

    Returns
    -------
    str
        Such as "; did you mean uniform?", or "" where no word is close.
    """
    by_form = {name.replace("_", "-"): name for name in words}
    close = get_close_matches(word.replace("_", "-"), by_form, n=1)
    return f"; did you mean {by_form[close[0]]}?" if close else ""


def whole(value: Any, name: str, least: int = 1, why: str = "", most: float = LARGEST_WHOLE) -> int:
    """Check that a value is a whole number from `least` to `most`.

    Parameters
    ----------
    value : Any
        What was given.
    name : str
        What the message calls it.
    least : int, default 1
        Smallest number that is taken.
    why : str, default ""
        Reason for the lower bound, for the message.
    most : float, default 2**63 - 1
        Largest number that is taken.

    Returns
    -------
    int
        The number.

    Raises
    ------
    InputError
        For a value that is no integer (True and 2.0 are none), or out of range.
    """
    try:
        unfit = isinstance(value, bool) or np.ma.is_masked(value)
        given = None if unfit else operator.index(value)
    except Exception:  # whatever the object given does when it is asked for a number
        given = None
    if given is None or given < least:
        reason = f" ({why})" if why else ""
        bound = "" if least == -LARGEST_WHOLE else f" >= {least}"
        raise InputError(f"{name} is {shown(value)}: expected a whole number{bound}{reason}")
    if given > most:
        limit = "below 2^63" if most == LARGEST_WHOLE else f"up to {most}"
        raise InputError(f"{name} is {shown(value)}: expected a whole number {limit}")
    return given


def positive(value: Any, name: str) -> float:
    """Check that a value is a finite real number > 0, and return it as float.

    Parameters
    ----------
    value : Any
        What was given.
    name : str
        What the message calls it.

    Returns
    -------
    float
        The number.

    Raises
    ------
    InputError
        For a value that is no number, not finite or not positive.
    """
    given = _real(value, name)
    if not (math.isfinite(given) and given > 0):
        raise InputError(f"{name} is {shown(value)}: expected a finite number > 0")
    return given


def count_steps(t_final: float, dt: float, name: str = "dt") -> int:
    """Return the number of steps of length dt up to t_final.

    Parameters
    ----------
    t_final : float
        End time.
    dt : float
        Length of a step, in the same unit.
    name : str, default "dt"
        What messages call the step.

    Returns
    -------
    int
        Number of steps.

    Raises
    ------
    InputError
        For a time or step that is not positive and finite, or a time that is no multiple of dt.
    """
    dt, t_final = positive(dt, name), positive(t_final, "t_final")
    ratio = t_final / dt if t_final < 2**53 * dt else math.inf
    if not ratio < 2**53:
        raise InputError(
            f"t_final = {t_final} is {ratio:.3g} steps of {name} = {dt}: too many to count"
        )
    steps = round(ratio)
    if steps < 1 or abs(steps * dt - t_final) > 1e-9 * t_final:
        raise InputError(
            f"t_final = {t_final} is not a whole number of steps of {name} = {dt}; take for "
            f"example {name} = {_step_that_divides(t_final, dt):.12g}"
        )
    return steps


def _step_that_divides(t_final: float, dt: float) -> float:
    """Return the largest step up to dt of one or two digits that divides t_final, else about dt."""
    decade = 10.0 ** math.floor(math.log10(min(dt, t_final)))
    for unit in (decade, decade / 10):
        for digits in (8, 5, 4, 2.5, 2, 1.25, 1):
            step = digits * unit
            if 0 < step <= dt and abs(round(t_final / step) * step - t_final) <= 1e-12 * t_final:
                return step
    return t_final / max(math.ceil(t_final / dt), 1)


def number(value: Any, name: str, least: float = -math.inf) -> float:
    """Check that a value is a finite real number >= least, and return it as float.

    Parameters
    ----------
    value : Any
        What was given.
    name : str
        What the message calls it.
    least : float, default -inf
        Smallest number that is taken.

    Returns
    -------
    float
        The number.

    Raises
    ------
    InputError
        For a value that is no number, not finite or too small.
    """
    given = _real(value, name)
    if not (math.isfinite(given) and given >= least):
        bound = "" if least == -math.inf else f" >= {least:g}"
        raise InputError(f"{name} is {shown(value)}: expected a finite number{bound}")
    return given


def _real(value: Any, name: str) -> float:
    """Return a real number as double: of lower precision, the decimal that it prints as.

    Numbers are Python's and NumPy's, fractions, decimals, and arrays and tensors of no axis.
    """
    try:
        if getattr(value, "shape", None) == () and not _has_mask(value):
            value = np.asarray(on_host(value))[()]
        # A time span counts as an integer, and decimals as no number.
        real = isinstance(value, numbers.Real | Decimal)
        if not real or isinstance(value, bool | np.timedelta64):
            raise TypeError
        narrow = isinstance(value, np.floating) and np.finfo(value.dtype).bits < 64
        return float(str(value) if narrow else value)
    except OverflowError:  # an integer beyond the range of doubles
        return math.inf
    except Exception:  # whatever the object given does when it is asked for a number
        raise InputError(f"{name} is {shown(value)}: expected a number") from None


def on_host(values: Any) -> Any:
    """Return a tensor of torch that lies on a device in the memory of the host; others as they are.

    NumPy reads tensors of the host without a copy, and arrays of JAX from whatever device.
    """
    device = getattr(getattr(values, "device", None), "type", "cpu")
    return values if device == "cpu" else values.cpu()


def switch(value: Any, name: str) -> bool:
    """Check that a value is True or False (Python's or NumPy's); InputError otherwise."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} is {shown(value)}: expected True or False")
    return bool(value)


def function(value: Any, name: str, of: str = "") -> Callable[..., Any]:
    """Check that a value can be called; the error says what it is a function of."""
    if not callable(value):
        expected = f"a function of {of}" if of else "a function"
        raise InputError(f"{name} is {shown(value)}: expected {expected}")
    return value  # type: ignore[no-any-return]


def reals(
    values: Any, name: str, *, finite: bool = True, single: bool = False
) -> NDArray[np.float64]:
    """Check an array of real numbers and return a contiguous copy of it in double precision.

    Numbers in lists and arrays are taken, also as objects (a nullable frame of pandas, fractions,
    decimals); booleans, text, dates, complex numbers, other objects and arrays with masked entries
    are not.

    Parameters
    ----------
    values : what was given
    name : what the message calls it
    finite : refuse NaN and infinity
    single : leave an array of single precision as it is

    Raises
    ------
    InputError
        For anything that is no such array.
    """
    expected = f"{name} must be an array of real numbers"
    try:
        values = on_host(values)
        if _has_mask(values):
            raise TypeError("it has masked entries; fill or remove them first")
        if str(getattr(values, "dtype", "")).endswith("bfloat16"):
            raise TypeError("NumPy has no bfloat16; convert them to single precision first")
        if getattr(values, "is_nested", False) is True:
            raise TypeError("it is a nested tensor; pad it to a dense one")
        given = np.asarray(values)
        if given.dtype.kind not in "iuf" and given.size and not _holds_numbers(given):
            raise TypeError(f"it holds {_KINDS.get(given.dtype.kind, str(given.dtype))}")
        kind = np.float32 if single and given.dtype == np.float32 else np.float64
        with np.errstate(over="ignore"):  # an extended precision number beyond doubles is infinite
            array = np.array(given, dtype=kind, order="C")  # results do not depend on the layout
    except MemoryError:
        raise InputError(f"{name} needs more memory than there is: give a part of it") from None
    except Exception as error:  # whatever the object given does when it is asked for an array
        raise InputError(f"{expected}: {str(error)[:200]}") from None
    if finite and not np.all(np.isfinite(array)):
        raise InputError(f"{name} holds values that are not finite; remove or repair them")
    return array  # type: ignore[return-value]  # single precision is for those who ask for it


def rounding(dtype: Any) -> float:
    """Return the unit of rounding of a NumPy type: that of floats, at least that of doubles."""
    kind = np.dtype(dtype)
    return max(float(np.finfo(kind).eps) if kind.kind == "f" else 0.0, float(np.finfo(float).eps))


def sum_tolerance(unit: float, count: int) -> float:
    """Return how far the sum of `count` weights may be from one by rounding.

    In single precision, softmax of torch and division by a cumulative sum are off by up to
    sqrt(count) units in 1 to 10^6 weights. Callers divide by the sum in double precision.

    Parameters
    ----------
    unit : unit of rounding of the type in which the weights were given, as of `rounding`
    count : number of weights
    """
    return max(1e-8, min(unit * (8 + 2 * math.sqrt(count)), 0.01))


def returned(
    values: Any,
    shape: tuple[int, ...],
    name: str,
    *,
    finite: bool = True,
    kind: Any = np.float64,
    repeats: bool = False,
    other: tuple[int, ...] | None = None,
) -> NDArray[Any]:
    """Check what a function of the user returned: real numbers of a shape.

    Parameters
    ----------
    values : what was returned
    shape : that it should have
    name : what the message calls the function
    finite : refuse NaN and infinity
    kind : floating-point type of the result
    repeats : whether one number, or one matrix of the last two axes, may be returned for all; other
        shapes are refused, for they may be of one path or head
    other : another shape that it may have

    Raises
    ------
    InputError
        For anything that is no such array.
    """
    try:
        given = reals(values, name, finite=False, single=True)
        if given.shape not in (shape, other, *(((), shape[-2:]) if repeats else ())):
            raise ValueError
        with np.errstate(over="ignore"):  # what is beyond float32 is refused below
            fit = given.astype(kind, copy=False)
        if repeats and fit.shape != shape:
            fit = np.broadcast_to(fit, shape)
    except ValueError:  # InputError of the check is one, too
        what = f"a {type(values).__name__}"
        if isinstance(values, np.ma.MaskedArray):
            what += " with masked entries"
        elif isinstance(values, np.ndarray):
            what = f"an array of {values.dtype} of shape {values.shape}"
        expected = f"of shape {shape}" + (f" or {other}" if other else "")
        if repeats:
            one = "one number" if len(shape) == 2 else "one number or matrix"
            expected = f"that broadcast to {shape}: of that shape, or {one}"
        raise InputError(f"{name} returned {what}: expected real numbers {expected}") from None
    if finite and not np.isfinite(fit).all():
        raise InputError(f"{name} returned a value that is not finite: expected finite numbers")
    return fit


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return the same array, into which a user's code cannot write."""
    own = array.view()
    own.flags.writeable = False
    return own


@contextmanager
def reading(kind: str, method: str, argument: str) -> Iterator[None]:
    """Run code of the user that is handed arrays which it must not change.

    Parameters
    ----------
    kind : what its object is: "law"
    method : the code, such as "Decay.drift"
    argument : the array that it is handed
    """
    try:
        yield
    except ValueError as error:
        written = "read-only" in str(error) or "WRITEABLE" in str(error)
        if not written or isinstance(error, InputError):
            raise
        raise InputError(
            f"{method} writes into an array that is read-only ({error}): a {kind} must not write "
            f"into {argument}; return a new array"
        ) from error


def times_of(values: Any, name: str) -> NDArray[np.float64]:
    """Check an array of times as `reals` does; of lower precision, take what each prints as.

    The steps of a run are decimals as a rule: 0.1 in single precision is the time of a step of 0.1.
    """
    checked = reals(values, name)
    given = np.asarray(values)
    if given.dtype.kind == "f" and given.dtype.itemsize < checked.dtype.itemsize:
        return np.array([_real(each, name) for each in given.flat]).reshape(given.shape)
    return checked


def wholes(values: Any, name: str, least: int = 0) -> NDArray[np.int64]:
    """Check one whole number or a list (k,) of them, each >= least, and return them as (k,)."""
    given = np.atleast_1d(reals(values, name))
    if given.ndim != 1 or np.any(given != np.rint(given)):
        raise InputError(f"{name} are {shown(values)}: expected a list of whole numbers")
    if np.any(given < least) or np.any(given > 2**53):  # beyond that doubles skip some
        raise InputError(f"{name} are {shown(values)}: expected whole numbers >= {least}")
    return given.astype(np.int64)


def _holds_numbers(given: NDArray[Any]) -> bool:
    """Return whether all entries of an array of objects are real numbers."""
    kinds = {type(entry) for entry in given.flat} if given.dtype == object else {bool}
    return all(
        issubclass(kind, numbers.Real | Decimal) and not issubclass(kind, bool | np.timedelta64)
        for kind in kinds
    )


def _has_mask(values: Any) -> bool:
    """Return whether an array has masked entries, or lists hold such an array."""
    if isinstance(values, list | tuple):
        return any(_has_mask(entry) for entry in values)
    return isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values)


_JSON = {
    int: "a whole number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def field(record: Mapping[str, Any], name: str, kind: type[T], where: object) -> T:
    """Return a field of a JSON object in a file, after a check of its type; true is no number.

    Parameters
    ----------
    record : the object
    name : of the field
    kind : int, str, bool, list or dict
    where : the file, for the message

    Raises
    ------
    InputError
        For a field that is missing or of another type.
    """
    value = record.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        found = f"{name} = {shown(value)}" if name in record else f"no {name}"
        raise InputError(
            f"{where} has {found}: expected {_JSON[kind]}; it is damaged, or was edited: get it "
            "again"
        )
    return value


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise InputError unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} is {shown(value)}: expected one of {', '.join(choices)}")


def made_of(kind: Callable[..., T], settings: Mapping[str, Any], what: str) -> T:
    """Call a function or class with settings by name.

    Raises
    ------
    InputError
        For settings that it does not have, or that it needs; `what` names their table.
    """
    known = inspect.signature(kind).parameters.values()
    named = [each for each in known if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    names = [each.name for each in named]
    for name in settings:
        if name not in names and len(named) == len(known):
            hint = did_you_mean(name, names)
            hint = hint or (f": expected {', '.join(names)}" if names else ": it has none")
            raise InputError(f"there is no setting {what}.{name}{hint}")
    missing = [each.name for each in named if each.default is each.empty]
    missing = [name for name in missing if name not in settings]
    if missing:
        raise InputError(f"{what} lacks {', '.join(missing)}: give {what}.{missing[0]}")
    return kind(**settings)


def path_of(value: Any, name: str) -> Path:
    """Check that a value is text or a path that can name a file or a folder."""
    try:
        text = os.fspath(value)
        if not isinstance(text, str) or not text or "\0" in text:
            raise TypeError
        whole_length = len(os.fsencode(text))
        longest = max(len(os.fsencode(part)) for part in Path(text).parts or (text,))
    except Exception:  # whatever the object given does when it is asked for a path
        raise InputError(f"{name} is {shown(value)}: expected a path") from None
    if longest > _LONGEST_NAME:
        raise InputError(
            f"{name} is {shown(value)}: a name in it has {longest} bytes, and file systems take "
            f"{_LONGEST_NAME}; choose a shorter one"
        )
    if whole_length > _LONGEST_PATH:
        raise InputError(
            f"{name} has {whole_length} bytes, and systems take paths of {_LONGEST_PATH}; choose a "
            "shorter one"
        )
    return Path(text)


def file_name(value: Any, name: str) -> Path:
    """Check that a value can be the path of a run file that is to be written.

    Raises
    ------
    InputError
        For what is no path, a folder such as "." and "..", a name that is too long, and the name
        of an unfinished run.
    """
    path = path_of(value, name)
    if path.name in ("", "..") or os.fspath(value).endswith(os.sep):
        raise InputError(f"{name} is {shown(value)}: expected the path of a run file, not a folder")
    if path.name.endswith(".partial"):
        finished = path.name.removesuffix(".partial")
        raise InputError(
            f"{name} is {shown(value)}: unfinished runs have such names; give the name of the "
            f"finished run, {finished}"
        )
    if len(os.fsencode(path.name)) + _ENDING > _LONGEST_NAME:
        raise InputError(
            f"{name} is {shown(value)}: the files beside a run have longer names; choose one of at "
            f"most {_LONGEST_NAME - _ENDING} bytes"
        )
    return path
