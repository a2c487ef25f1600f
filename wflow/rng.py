"""Counter-based random numbers: any draw can be made again from (seed, purpose, path, step)."""

import numpy as np

NOISE, INITIAL_HEADS, TOKEN_NOISE = 0, 1, 2


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
        key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        self._bits = np.random.Philox(key=key)
        self._generator = np.random.Generator(self._bits)
        self._counter = np.zeros(4, np.uint64)
        self._state = self._bits.state
        self._state["state"]["counter"] = self._counter

    def draw(self, shape: tuple[int, ...], *, path: int, step: int, purpose: int = NOISE):
        """Array of independent standard normal numbers, float64, of the given shape."""
        self._counter[:] = (0, purpose, step, path)  # the first word counts within the draw
        self._bits.state = self._state
        return self._generator.standard_normal(shape)
