"""Compiled code on disk: a file for each function and types of its arguments.

The files lie in a folder whose name is a digest of everything that compiled functions share: the
sources of the kernels and of this package, the versions of Numba, llvmlite and Python, and the
processor. An edit there, be it in a comment, leads to another folder; the last few of them are
kept. They lie in `$NUMBA_CACHE_DIR` if that is set, else in `__pycache__` of the package, or in the
user's cache folder where that cannot be written. Code is read from all of these places, also from
those that cannot be written. A file that is damaged is compiled and written again. Code that cannot
be written anywhere runs all the same, with a warning.
"""

import functools
import hashlib
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite
import numba

from wflow._core.compiler.undocumented import attribute, dumps, processor, rebuild
from wflow._core.compiler.watch import COMPILING_TIME
from wflow._core.errors import CacheWarning, warn

_PACKAGE = Path(__file__).parents[2]
# Compiled functions of other files are called by those of their own file alone.
_SHARED = ("_core/compiler", "kernels", "sphere")
_WITHOUT = ("kernels/torch", "kernels/evaluate.py")  # of these, what no compiled function can call
_CHECKSUM = hashlib.sha256().digest_size
_FOLDERS_KEPT = 8


def keep(compiled: Any, function: Callable) -> Any:
    """Let a function of `numba.njit` keep its code on disk; returns it."""
    attribute(compiled, "_cache")
    compiled._cache = DiskCache(function)
    return compiled


class DiskCache:
    """The compiled code of one function. Numba calls these methods and the property."""

    def __init__(self, function: Callable) -> None:
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._source = Path(function.__code__.co_filename)

    @property
    def cache_path(self) -> str:
        return str(places()[0])

    def flush(self) -> None:
        """There is nothing to forget: no index is held."""

    def load_overload(self, types: Any, target: Any) -> Any:
        """The code for these types of arguments; None where there is none that can be used."""
        target.refresh()
        codegen = target.codegen()
        key = self._key(types)
        for place in places():
            file = self._file(place, codegen, key)
            try:
                content = file.read_bytes()
            except OSError:  # there is none, or it cannot be read
                continue
            try:
                checksum, body = content[:_CHECKSUM], content[_CHECKSUM:]
                if hashlib.sha256(key + body).digest() != checksum:
                    raise ValueError("the checksum differs")
                return rebuild(target, *pickle.loads(body))
            except Exception as error:  # also what linking raises
                with suppress(OSError):
                    file.unlink()
                _warn_once(
                    "damaged",
                    f"the compiled code in {file} cannot be used ({type(error).__name__}: "
                    f"{error}), nor perhaps other files of this folder; such code is compiled "
                    f"again ({COMPILING_TIME}) and replaced",
                )
        return None

    def save_overload(self, types: Any, code: Any) -> None:
        """Keep the code in the first place that can be written."""
        if code.lifted or code.library.has_dynamic_globals:
            return  # it holds addresses of this process
        key = self._key(types)
        body = dumps(code._reduce())
        content = hashlib.sha256(key + body).digest() + body
        failures = []
        for place in places():
            file = self._file(place, code.codegen, key)
            try:
                _make_folder(file.parent)
                _write(file, content)
                return
            except OSError as error:
                failures.append(f"{file.parent} ({error.strerror or error})")
        _warn_once(
            "not kept",
            f"compiled code cannot be kept in {', nor in '.join(failures)}: results are the same, "
            f"but every start compiles again ({COMPILING_TIME}); make room there, or set "
            "NUMBA_CACHE_DIR to a folder that can be written",
        )

    def _key(self, types: Any) -> bytes:
        """The function, the text of its file and the types of its arguments."""
        return "\n".join((self._name, _digest_of_file(self._source), str(types))).encode()

    def _file(self, place: Path, codegen: Any, key: bytes) -> Path:
        name = f"{self._name}-{hashlib.sha256(key).hexdigest()[:16]}.code"
        return place / f"wflow-{_digest_of_shared(processor(codegen))}" / name


def places() -> list[Path]:
    """Where folders of compiled code may lie, in the order in which they are tried."""
    given = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    found = [Path(given)] if given else []
    found.append(_PACKAGE / "__pycache__")
    return found + ([Path(user, "wflow")] if os.path.isabs(user) else [])


@functools.cache
def _digest_of_file(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@functools.cache
def _digest_of_shared(described: tuple[str, ...]) -> str:
    """Digest of what all compiled functions depend on, for that processor."""
    versions = numba.__version__, llvmlite.__version__, sys.implementation.cache_tag, sys.version
    digest = hashlib.sha256("\n".join((*described, *versions)).encode())
    without = [_PACKAGE / name for name in _WITHOUT]
    for folder in _SHARED:
        for file in sorted((_PACKAGE / folder).rglob("*.py")):
            if not any(file.is_relative_to(other) for other in without):
                digest.update(_digest_of_file(file).encode())
    return digest.hexdigest()[:16]


def _make_folder(folder: Path) -> None:
    """Make a folder of compiled code, and remove all but the newest few beside it."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    others = [other for other in folder.parent.glob("wflow-*") if other != folder]
    with suppress(OSError):  # another process may remove them, too
        others.sort(key=lambda other: other.stat().st_mtime, reverse=True)
        for other in others[_FOLDERS_KEPT - 1 :]:
            shutil.rmtree(other, ignore_errors=True)


def _write(file: Path, content: bytes) -> None:
    """Write a file at once, so that no other process reads a part of it."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as temporary:
            temporary.write(content)
        os.replace(name, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


warned: set[str] = set()  # the kinds of trouble that this process was warned of


def _warn_once(kind: str, text: str) -> None:
    """Warn once in this process of each kind of trouble: many functions share a folder."""
    if kind in warned:
        return
    warned.add(kind)
    warn(text, CacheWarning)
