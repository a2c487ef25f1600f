"""Tokens off the sphere, and arrays of other libraries, where a computation starts."""

import warnings

import numpy as np
import pytest

import wflow

X = wflow.tokens.uniform(12, 3, seed=0)
HEADS = np.eye(3)[None]
FROZEN = wflow.heads.Frozen()


def solve(x0):
    return wflow.solve(x0, FROZEN, heads=HEADS, t_final=0.1, dt=0.1)


STARTS = [
    solve,
    lambda x0: wflow.jko.minimizing_movements(x0, FROZEN, heads=HEADS, t_final=0.1, tau=0.1),
    lambda x0: wflow.meanfield.density_of(x0, wflow.meanfield.Sphere(42)),
]


@pytest.mark.parametrize("start", STARTS)
def test_tokens_off_the_sphere_give_a_warning(start):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on = start(X)
        start((1 + 5e-7) * X)
        start(X.astype(np.float32))
        start(X.astype(np.float16))
    with pytest.warns(wflow.WflowWarning, match="3 of 12 tokens .* 1 away") as caught:
        off = start(X * np.repeat([1.0, 2.0], [9, 3])[:, None])
    assert caught[0].filename == __file__
    close = (
        np.allclose(on, off) if isinstance(on, np.ndarray) else np.allclose(on.energy, off.energy)
    )
    assert close
    with pytest.warns(wflow.WflowWarning, match="inf away"):
        start(1e300 * X)


class OnDevice:
    """A tensor of torch on a device: NumPy cannot read it, and `cpu` copies it."""

    def __init__(self, values):
        self.values, self.dtype, self.copies = values, values.dtype, 0
        self.device = type("Device", (), {"type": "cuda"})()

    def __array__(self, dtype=None, copy=None):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self):
        self.copies += 1
        return self.values


def test_a_tensor_of_a_device_is_copied_to_the_host_once():
    given = OnDevice(X)
    assert np.array_equal(solve(given).energy, solve(X).energy)
    assert given.copies == 1
    assert wflow.energy(OnDevice(X), OnDevice(HEADS)) == wflow.energy(X, HEADS)


def test_tensors_are_read_as_arrays_and_those_without_values_are_refused():
    torch = pytest.importorskip("torch")
    assert np.array_equal(solve(torch.tensor(X)).energy, solve(X).energy)
    tensor = torch.tensor(X)
    for bad in (tensor.to("meta"), tensor.requires_grad_(), torch.tensor(X).bfloat16()):
        with pytest.raises(wflow.InputError, match="x0"):
            solve(bad)
