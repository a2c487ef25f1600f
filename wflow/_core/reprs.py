"""Short reprs: one line, that can be evaluated where that is possible, with large arrays named.

An array of more than nine numbers is shown by its shape, as `array(64, 3, 3)`.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from wflow._core.printable import printable

_ENTRIES = 9  # numbers of an array that are written out
_TEXT = 72  # characters of a text, or of an object of the user


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Write a call as a text: `Name(a=1.0, b=array(64, 3, 3))`.

    Parameters
    ----------
    name : str
        Class or function.
    arguments : mapping
        Names to values.

    Returns
    -------
    str
        One line.
    """
    inner = ", ".join(f"{key}={value_text(value)}" for key, value in arguments.items())
    return f"{name}({inner})"


def value_text(value: Any, digits: int | None = None) -> str:
    """Write a value on one line; of a large array or list of numbers its shape.

    Parameters
    ----------
    value : object
        A number, text, array, function or another object.
    digits : int, optional
        Significant digits of floats; by default all that tell them from others.

    Returns
    -------
    str
        The text.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and digits is not None:
        return f"{value:.{digits}g}"
    if isinstance(value, np.ndarray) or _is_table(value):
        array = np.asarray(value)
        if array.size > _ENTRIES:
            return f"array{array.shape}".replace(",)", ")")
        plain = value.tolist() if isinstance(value, np.ndarray) else value
        return _listed(plain, digits)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return _listed(value, digits)
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of an object of the user
        return f"<{type(value).__name__}>"
    text = printable(text)
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..."


def _is_table(value: Any) -> bool:
    """Return whether a list or tuple holds numbers that form an array."""
    if not isinstance(value, list | tuple) or not value:
        return False
    try:
        return np.asarray(value).dtype.kind in "biuf"
    except ValueError:  # rows of different lengths
        return False


def _listed(values: Any, digits: int | None) -> str:
    if not isinstance(values, list | tuple):
        return value_text(values, digits)
    inner = ", ".join(value_text(value, digits) for value in values[:_ENTRIES])
    inner += ", ..." if len(values) > _ENTRIES else ""
    if isinstance(values, list):
        return f"[{inner}]"
    return f"({inner},)" if len(values) == 1 else f"({inner})"


class ShortRepr:
    """Mixin of dataclasses, made with `repr=False`, whose repr is one short line.

    Fields that have their default, and those made with `field(repr=False)`, are left out.
    """

    _shown: ClassVar[tuple[str, ...]] = ()  # fields of the repr; all where there are none
    _digits: ClassVar[int | None] = None  # significant digits of floats

    def __repr__(self) -> str:
        parts = []
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            hidden = bool(self._shown) and each.name not in self._shown
            if each.repr and not hidden and not _same(value, each.default):
                parts.append(f"{each.name}={value_text(value, self._digits)}")
        more = ", ..." if self._shown else ""
        return f"{type(self).__name__}({', '.join(parts)}{more})"


class ShortResult(ShortRepr):
    """Mixin like `ShortRepr` for results, whose floats are shown to six digits."""

    _digits: ClassVar[int | None] = 6


def _same(value: Any, default: Any) -> bool:
    """Return whether a field has its default."""
    if default is dataclasses.MISSING or isinstance(value, np.ndarray):
        return False
    if isinstance(value, float) and isinstance(default, float) and math.isnan(value):
        return math.isnan(default)
    return type(value) is type(default) and bool(value == default)
