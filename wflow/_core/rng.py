"""Counter-based random numbers: every draw is a function of (seed, purpose, path, step)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NOISE, INITIAL_HEADS, TOKEN_NOISE, NOISE_MEAN, JUMPS = 0, 1, 2, 3, 4


class CounterNormals:
    """Standard normal numbers keyed by (seed, purpose, path, step).

    Philox 4x64 turns a 256-bit counter into random bits. Path, step and purpose are words of that
    counter, so a draw depends on nothing that was drawn before: not on threads, batches of paths,
    or where a run was resumed.

    Parameters
    ----------
    seed : int >= 0
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        self._bits = np.random.Philox(key=key)
        self._generator = np.random.Generator(self._bits)
        # Of Python numbers, which NumPy reads faster than arrays.
        start: dict[str, Any] = {**self._bits.state}
        start["state"], start["buffer"] = {"counter": (0,) * 4, "key": key.tolist()}, (0,) * 4
        self._state: Any = start

    def __reduce__(self) -> tuple:
        return CounterNormals, (self._seed,)  # it has no other state: each draw sets the counter

    def draw(self, shape: tuple[int, ...], *, path: int, step: int, purpose: int = NOISE):
        """Draw independent standard normal numbers, float64, of the given shape."""
        return self.generator(path, step, purpose).standard_normal(shape)

    def draw_paths(
        self, shape: tuple[int, ...], *, paths: Sequence[int], step: int, purpose: int = NOISE
    ) -> NDArray[np.float64]:
        """Draw the arrays of several paths, (paths, *shape)."""
        drawn = np.empty((len(paths), *shape))
        for path, its in zip(paths, drawn, strict=True):
            self.generator(path, step, purpose).standard_normal(out=its)
        return drawn

    def generator(self, path: int, step: int, purpose: int) -> np.random.Generator:
        """Return the generator at the start of a draw; it is valid until the next draw."""
        # The first word of the counter counts within the draw.
        self._state["state"]["counter"] = (0, purpose, int(step), int(path))
        self._bits.state = self._state
        return self._generator
