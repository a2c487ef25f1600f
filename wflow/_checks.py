"""Checks of single numbers that many functions share: one rule, one wording."""

import math
import operator
from collections.abc import Collection
from typing import Any

import numpy as np

from wflow.errors import InputError


def whole(value: Any, name: str, least: int = 1, why: str = "") -> int:
    """Check that a value is a whole number >= least.

    Parameters
    ----------
    value : what was given
    name : what the message calls it
    least : smallest number that is taken
    why : reason for the bound, for the message

    Returns
    -------
    the number as int

    Raises
    ------
    InputError
        For a value that is no integer (True and 2.0 are none), or below `least`.
    """
    try:
        given = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        given = None
    if given is None or given < least:
        reason = f" ({why})" if why else ""
        raise InputError(f"{name} is {value!r}: expected a whole number >= {least}{reason}")
    return given


def positive(value: Any, name: str) -> float:
    """Check that a value is a finite real number > 0; InputError otherwise."""
    _check_real(value, name)
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} is {value}: expected a finite number > 0")
    return float(value)


def number(value: Any, name: str, least: float = -math.inf) -> float:
    """Check that a value is a finite real number >= least; InputError otherwise."""
    _check_real(value, name)
    if not (math.isfinite(value) and value >= least):
        bound = "" if least == -math.inf else f" >= {least:g}"
        raise InputError(f"{name} is {value}: expected a finite number{bound}")
    return float(value)


def _check_real(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(f"{name} is {value!r}: expected a number")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise InputError unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} is {value!r}: expected one of {', '.join(choices)}")
