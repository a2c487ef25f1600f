"""Disk cache of compiled functions, invalidated when a source file that they depend on changes."""

import functools
import hashlib
import inspect
import itertools
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
        functions = entry_points(source, True)
    except RuntimeError:  # Numba finds no folder that can be written
        given = os.environ.get("NUMBA_CACHE_DIR")
        beside = Path(entry_points.__code__.co_filename).with_name("__pycache__")
        places = ", ".join(filter(None, (given, str(beside))))
        _warn_not_kept(f"{places} or the user's cache folder (none of them can be written)")
        return _callable(entry_points(source, False), False)
    return _callable(functions, True)


COMPILING_TIME = "10 s to a minute"
"""How long the kernels of one run take to compile: the exact sums, and the fast ones."""


class _Cache:
    """Disk cache of one function, where damaged files and a full disk cost time and no call.

    Numba's own cache, `inner`, raises what a damaged index or a full disk raises, and links a file
    of code as it is. Here the code lies in the same files, with a checksum and its key: what is
    damaged, or belongs to other arguments (two processes may write one file), is compiled and
    written again. Code that cannot be written runs all the same. Only this class uses the inner
    parts of Numba's cache; the methods and the property are those that Numba calls.
    """

    def __init__(self, inner: Any) -> None:
        self._inner, self._parts, self._files = inner, inner._impl, inner._cache_file

    @property
    def cache_path(self) -> str:
        return str(self._inner.cache_path)

    def flush(self) -> None:
        self._inner.flush()

    def load_overload(self, types: Any, target: Any) -> Any:
        """The code for these types of arguments; None where there is none that can be used."""
        target.refresh()
        key = self._inner._index_key(types, target.codegen())
        name = self._names().get(key)
        if name is None:
            return None
        try:
            content = Path(self._files._data_path(name)).read_bytes()
            checksum, body = content[:_CHECKSUM], content[_CHECKSUM:]
            if hashlib.sha256(body).digest() != checksum:
                raise ValueError("the checksum differs")
            written, parts = pickle.loads(body)
            if written != key:
                raise ValueError("the code is that of other arguments")
            return self._parts.rebuild(target, parts)
        except OSError:  # removed, or not readable: it is written again
            return None
        except Exception as error:  # also what linking raises
            self._forget(name, error)
            return None

    def save_overload(self, types: Any, code: Any) -> None:
        """Keep the code; the index is written last, so that it never names a file of older code."""
        if not self._parts.check_cachable(code):
            return
        key = self._inner._index_key(types, code.codegen)
        body = self._files._dump((key, self._parts.reduce(code)))
        names = self._names()
        free = (self._files._data_name(number) for number in itertools.count(1))
        name = names.get(key) or next(name for name in free if name not in names.values())
        try:
            self._parts.locator.ensure_cache_path()
            with self._files._open_for_write(self._files._data_path(name)) as file:
                file.write(hashlib.sha256(body).digest() + body)
            if key not in names:
                self._files._save_index(names | {key: name})
        except OSError as error:
            _warn_not_kept(f"{self.cache_path} ({error.strerror or error})")

    def _names(self) -> dict[Any, str]:
        """The index: the file of each key."""
        try:
            return dict(self._files._load_index())
        except OSError:
            return {}
        except Exception as error:  # a damaged pickle may raise anything
            self._forget(self._files._index_name, error)
            return {}

    def _forget(self, name: str, error: Exception) -> None:
        """Remove the index of this function, so that its files are written again."""
        with suppress(OSError):
            os.unlink(self._files._index_path)
        _warn_once(
            "damaged",
            f"the compiled code in {os.path.join(self.cache_path, str(name))} cannot be used "
            f"({type(error).__name__}: {error}), nor perhaps other files of this folder; such code "
            f"is compiled again ({COMPILING_TIME}) and replaced",
        )


_CHECKSUM = hashlib.sha256().digest_size
warned: set[str] = set()  # the kinds of trouble that this process was warned of


def _warn_not_kept(where: str) -> None:
    """Warn that compiled code is lost at the end of this process."""
    _warn_once(
        "not kept",
        f"compiled code cannot be kept in {where}: results are the same, but every start compiles "
        f"again ({COMPILING_TIME}); make room there, or set NUMBA_CACHE_DIR to a folder that can "
        "be written",
    )


def _warn_once(kind: str, text: str) -> None:
    """Warn once in this process of each kind of trouble: many functions share a folder."""
    if kind in warned:
        return
    warned.add(kind)
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in ("wflow", "numba"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)  # the line that called wflow


def _callable(functions: Any, cache: bool) -> Any:
    """The functions; parallel ones run without threads where one thread is to compute."""
    if isinstance(functions, tuple):
        return tuple(_callable(function, cache) for function in functions)
    assert "source" in functions.py_func.__code__.co_freevars, functions  # see `compiled`
    if cache:
        functions._cache = _Cache(functions._cache)
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
    compiled: Any = njit(cache=cache, error_model="numpy", nogil=True)(variant("sequential")(copy))
    if cache:
        compiled._cache = _Cache(compiled._cache)
    return compiled


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
