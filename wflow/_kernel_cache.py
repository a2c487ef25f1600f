"""Compiled functions that are kept on disk, and compiled again when a file they rest on changes."""

import hashlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

# A thread of GNU OpenMP that waits spins for milliseconds before it sleeps; where other programs
# share the cores, the spinning takes the time of the thread it waits for: beside one busy process
# a step took up to 50 times longer. Read when the first parallel function starts.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def variant(*marks: object) -> Callable[[Callable], Callable]:
    """Decorator of a function that is compiled in several variants, closures over these `marks`.

    Compiled code that is read from disk is linked by names. Numba tells the variants apart by
    numbers that begin anew in each process, so that two variants kept by two processes could have
    one name, and one of them would be run for both.
    """

    def rename(function: Callable) -> Callable:
        mark = "_".join(str(mark) for mark in marks)
        function.__qualname__ = f"{function.__qualname__}_{mark}"
        function.__name__ = f"{function.__name__}_{mark}"
        return function

    return rename


def compiled(entry_points: Callable[[str, bool], Any], *modules: ModuleType) -> Any:
    """Call `entry_points(source, cache)`, which compiles the functions that Python calls.

    Numba's cache on disk notices a change in the file of the cached function, not in what that
    function calls. `source`, a digest of all the files, becomes part of the cache key instead: the
    functions must name it.

    Parameters
    ----------
    entry_points : returns the functions, made by `njit(cache=cache, ...)`
    modules : whose files hold what the functions call; the file of `entry_points` is added
    """
    files = [entry_points.__code__.co_filename, *(str(module.__file__) for module in modules)]
    digest = hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()
    try:
        return entry_points(digest, True)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        warnings.warn(
            "compiled code cannot be kept on disk, so every start compiles again (half a minute); "
            "set NUMBA_CACHE_DIR to a folder that can be written",
            stacklevel=3,
        )
        return entry_points(digest, False)
