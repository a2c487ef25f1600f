"""Disk cache of compiled functions, invalidated when a source file that they depend on changes."""

import functools
import hashlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any


def variant(*marks: object) -> Callable[[Callable], Callable]:
    """Decorator of a function that is compiled in several variants, closures over these `marks`.

    Compiled code that is read from disk is linked by names. Numba tells the variants apart by
    numbers that start again in each process, so that two variants kept by two processes could have
    one name, and one of them would be run for both.
    """

    def rename(function: Callable) -> Callable:
        mark = "_".join(str(mark) for mark in marks)
        function.__qualname__ = f"{function.__qualname__}_{mark}"
        function.__name__ = f"{function.__name__}_{mark}"
        return function

    return rename


_INTERNAL: dict[str, Any] = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def internal(function: Callable | None = None, **options: Any) -> Any:
    """Decorator of a compiled function that compiled functions call, and never Python.

    A call from Python would end the process: there are no wrappers for it, nor for one from C,
    which are a tenth of what there is to compile.
    """
    from numba import njit

    decorate = njit(**(_INTERNAL | options))
    return decorate if function is None else decorate(function)


def made_by(make: Callable[..., Callable]) -> Callable[[Callable], Callable]:
    """Decorator of a declaration f(*constants, *arguments), for which `make(*constants)` stands.

    The constants are the parameters of `make`, which is called while a compiled caller that names
    them is compiled, and returns a plain function of the same arguments. An entry point or a task
    that held that function in a closure could not be found again on disk; one that called it
    through another function would have its code optimised and translated once more.
    """
    from numba.extending import overload

    count = len(inspect.signature(make).parameters)

    def declare(function: Callable) -> Callable:
        overload(function, prefer_literal=True, strict=False, jit_options=_INTERNAL)(  # type: ignore[arg-type]
            lambda *types: make(*(kind.literal_value for kind in types[:count]))
        )
        return function

    return declare


def compiled(entry_points: Callable[[str, bool], Any], *modules: ModuleType) -> Any:
    """Call `entry_points(source, cache)`, which compiles the functions that Python calls.

    Numba's cache on disk notices a change in the file of the cached function, not in what that
    function calls. `source`, a digest of the file of `entry_points`, of `modules`, and of all code
    that compiled functions share (`_SHARED`), becomes part of the cache key instead: the functions
    must name it.

    Parameters
    ----------
    entry_points : returns the functions, made by `njit(cache=cache, ...)`, and the tasks of their
        loops, made by `internal(..., cache=cache)`
    modules : other modules whose compiled functions are called
    """
    digest = hashlib.sha256(_shared())
    for file in (entry_points.__code__.co_filename, *(str(module.__file__) for module in modules)):
        digest.update(Path(file).read_bytes())
    source = digest.hexdigest()
    try:
        return _callable(entry_points(source, True), True)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        warnings.warn(
            "compiled code cannot be kept on disk, so every start compiles again (10 s or so); "
            "set NUMBA_CACHE_DIR to a folder that can be written",
            stacklevel=3,
        )
        return _callable(entry_points(source, False), False)


def _callable(functions: Any, cache: bool) -> Any:
    """The functions; parallel ones run without threads where one thread is to compute."""
    if isinstance(functions, tuple):
        return tuple(_callable(function, cache) for function in functions)
    assert "source" in functions.py_func.__code__.co_freevars, functions  # see `compiled`
    if not functions.targetoptions.get("parallel"):
        return functions
    from wflow._core.threads import on_threads

    return on_threads(functions, _sequential(functions.py_func, cache))


def _sequential(function: FunctionType, cache: bool) -> Any:
    """The function compiled without parallel loops: the same operations in the same order."""
    from numba import njit

    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, None, function.__closure__
    )
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    # Numba's cache on disk tells functions apart by their names, not by their options.
    return njit(cache=cache, error_model="numpy", nogil=True)(variant("sequential")(copy))


@contextmanager
def compilation(tell: Callable[[bool], None]) -> Iterator[None]:
    """Within the block, tell when a function of wflow is compiled that is not in the disk cache.

    Parameters
    ----------
    tell : callable
        Called with True where compilation begins, and with False where it has ended. Functions
        that another one compiles on its way count as a part of it.
    """
    if "numba" not in sys.modules:  # there is nothing to compile
        yield
        return
    from numba.core import event

    class Listener(event.Listener):
        depth = 0

        def on_start(self, event: Any) -> None:
            if _of_wflow(event):
                self.depth += 1
                if self.depth == 1:
                    tell(True)

        def on_end(self, event: Any) -> None:
            if _of_wflow(event):
                self.depth -= 1
                if self.depth == 0:
                    tell(False)

    with event.install_listener("numba:compile", Listener()):
        yield


def _of_wflow(event: Any) -> bool:
    """Whether an event of the compiler is about a function of this package."""
    function = getattr((event.data or {}).get("dispatcher"), "py_func", None)
    return str(getattr(function, "__module__", "")).partition(".")[0] == __package__.split(".")[0]


@functools.cache
def _shared() -> bytes:
    """SHA-256 of the files of `_SHARED`."""
    digest = hashlib.sha256()
    for file in _SHARED:
        digest.update(file.read_bytes())
    return digest.digest()


_PACKAGE = Path(__file__).parents[1]
_SHARED = (
    _PACKAGE / "_core" / "compiled.py",
    _PACKAGE / "_core" / "simd.py",
    _PACKAGE / "_core" / "tasks.py",
    _PACKAGE / "sphere" / "harmonics.py",
    *sorted((_PACKAGE / "kernels").rglob("*.py")),
)
