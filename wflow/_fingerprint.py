"""A digest that tells two user laws apart: of values, functions, and what they close over."""

import hashlib
from collections.abc import Set
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np


def fingerprint(value: Any) -> str | None:
    """Digest of a value, of a function with all that it closes over, or of an object.

    Tells two user laws apart when a run is resumed. None for what cannot be compared.
    """
    parts = _parts(value, ())
    return None if parts is None else hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _parts(value: Any, seen: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        return repr(value)
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return None
        return (value.shape, str(value.dtype), hashlib.sha256(value.tobytes()).hexdigest())
    if id(value) in seen:
        return "itself"
    seen = (*seen, id(value))
    if isinstance(value, ModuleType | BuiltinFunctionType | np.ufunc | type):
        return getattr(value, "__qualname__", getattr(value, "__name__", repr(value)))
    if isinstance(value, CodeType):
        return _all(seen, value.co_code, *value.co_consts, *value.co_names)
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        used = [value.__globals__[n] for n in value.__code__.co_names if n in value.__globals__]
        return _all(seen, value.__code__, value.__defaults__, *cells, *used)
    if isinstance(value, MethodType):
        return _all(seen, value.__func__, value.__self__)
    if isinstance(value, list | tuple | set | frozenset):
        return _all(seen, *(sorted(value, key=repr) if isinstance(value, Set) else value))
    if isinstance(value, dict):
        return _all(seen, *(item for pair in sorted(value.items(), key=repr) for item in pair))
    if hasattr(value, "__dict__") and not hasattr(value, "__slots__"):
        kind = type(value)
        own = {} if kind.__module__.startswith("wflow.") else vars(kind)
        methods = {k: v for k, v in own.items() if isinstance(v, FunctionType)}
        return _all(seen, kind.__qualname__, vars(value), methods)
    return None


def _all(seen: tuple[int, ...], *values: Any) -> Any:
    parts = [_parts(value, seen) for value in values]
    return None if any(part is None for part in parts) else tuple(parts)
