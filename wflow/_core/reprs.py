"""Short reprs, as text and as HTML: evaluable where that is possible, with large arrays named.

An array of more than nine numbers is shown by its shape, as `array(64, 3, 3)`, a multiple of the
identity as `2 I₃`.
"""

import dataclasses
import html
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from wflow._core.printable import printable

_ENTRIES = 9  # numbers of an array that are written out
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_TEXT = 72  # characters of a text, or of an object of the user


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
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:
        return str(int(value))
    if isinstance(value, np.ndarray) or _is_table(value):
        array = np.asarray(value)
        if multiple := _identity_text(array, digits):
            return multiple
        if array.size > _ENTRIES:
            return f"array{array.shape}".replace(",)", ")")
        plain = value.tolist() if isinstance(value, np.ndarray) else value
        return _listed(plain, digits)
    if isinstance(value, list | tuple):
        return _listed(value, digits)
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of an object of the user
        return f"<{type(value).__name__}>"
    text = printable(text)
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..."


def _identity_text(array: np.ndarray, digits: int | None) -> str:
    """Write a multiple of the identity, as `I₃` or `2 I₃`; "" for another array."""
    if array.ndim != 2 or len(array) != array.shape[1] or len(array) < 2:
        return ""
    factor = array.flat[0]
    if not factor or not np.array_equal(array, factor * np.eye(len(array))):
        return ""
    times = "" if factor == 1 else f"{value_text(factor, digits)} "
    return f"{times}I{str(len(array)).translate(_SUBSCRIPTS)}"


def _is_table(value: Any) -> bool:
    """Return whether a list or tuple holds numbers that form an array."""
    if not isinstance(value, list | tuple) or not value:
        return False
    try:
        return np.asarray(value).dtype.kind in "biuf"
    except ValueError:  # rows of different lengths
        return False


def _listed(values: Any, digits: int | None) -> str:
    if not isinstance(values, list | tuple):  # an array without dimensions
        return value_text(values, digits)
    inner = ", ".join(value_text(value, digits) for value in values[:_ENTRIES])
    inner += ", ..." if len(values) > _ENTRIES else ""
    if isinstance(values, list):
        return f"[{inner}]"
    return f"({inner},)" if len(values) == 1 else f"({inner})"


class Shown:
    """Mixin of objects that show parameters: a call as a text, and a small table in a notebook."""

    _shown: ClassVar[tuple[str, ...]] = ()  # the only parameters that are shown; all by default

    def _title(self) -> str:
        return type(self).__name__

    def _parameter_texts(self) -> Mapping[str, str]:
        """Return the parameters that are shown, by name, written out."""
        raise NotImplementedError

    def __repr__(self) -> str:
        try:
            inner = ", ".join(f"{name}={text}" for name, text in self._parameter_texts().items())
        except Exception:  # of a class of the user, or of an object that is not made yet
            return f"{self._title()}(...)"
        return f"{self._title()}({inner}{', ...' if self._shown else ''})"

    def _repr_html_(self) -> str:
        try:
            texts = self._parameter_texts()
        except Exception:
            return f"<code>{html.escape(repr(self))}</code>"
        left = 'style="text-align: left"'
        rows = "".join(
            f"<tr><th {left}>{html.escape(name)}</th><td {left}>{html.escape(text)}</td></tr>"
            for name, text in texts.items()
        )
        head = f'<tr><th colspan="2" {left}>{html.escape(self._title())}</th></tr>'
        return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


class ShortRepr(Shown):
    """Mixin of dataclasses, made with `repr=False`, whose repr is one short line.

    Fields that have their default, and those made with `field(repr=False)`, are left out.
    """

    _digits: ClassVar[int | None] = None  # significant digits of floats

    def _parameter_texts(self) -> Mapping[str, str]:
        texts = {}
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            hidden = bool(self._shown) and each.name not in self._shown
            if each.repr and not hidden and not _same(value, each.default):
                texts[each.name] = value_text(value, self._digits)
        return texts


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
