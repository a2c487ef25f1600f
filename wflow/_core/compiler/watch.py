"""Notice of compilation, for progress lines; loads no Numba."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

COMPILING_TIME = "10 s to a minute"
"""How long the kernels of one run take to compile: the exact sums, and the fast ones."""


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
