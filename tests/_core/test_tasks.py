"""Tasks that compiled loops call by address."""

import numpy as np
import pytest
from numba import njit, prange, types
from numba.core.errors import TypingError

from wflow._core.compiler.functions import loop_body
from wflow._core.compiler.tasks import address, call


@loop_body
def put_squares(task, values, out):
    if values[task] < 0:
        raise ValueError("expected values >= 0")
    out[task] = values[task] ** 2


FLAT = types.float64[::1]
TYPES = (types.intp, FLAT, FLAT)


@njit(parallel=True)
def squares(values, out, task_at):
    for task in prange(len(values)):
        call(task_at, (np.intp(task), values, out))


@njit
def one(values, out, task_at):
    call(task_at, (0, values, out))


def test_a_parallel_loop_runs_its_task_for_every_place():
    values, out = np.arange(100.0), np.full(100, -1.0)
    squares(values, out, address(put_squares, TYPES))
    np.testing.assert_array_equal(out, values**2)


def test_arrays_that_may_not_be_written_are_the_same_to_a_task():
    values, out = np.full(1, 3.0), np.zeros(1)
    values.flags.writeable = False
    one(values, out, address(put_squares, TYPES))
    assert out == 9.0


def test_an_error_of_a_task_reaches_python():
    with pytest.raises(ValueError, match="expected values >= 0"):
        one(np.full(1, -3.0), np.zeros(1), address(put_squares, TYPES))


@pytest.mark.parametrize(
    "values", [np.zeros(1, "float32"), np.zeros((1, 1)), np.zeros(4)[::2], np.zeros(1, int)]
)
def test_arguments_for_which_there_is_no_code_are_refused_when_the_caller_is_compiled(values):
    place = address(put_squares, TYPES)
    with pytest.raises(TypingError, match="no task takes arguments of the types"):
        one(values, np.zeros(1), place)
