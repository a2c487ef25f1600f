"""Densities in the plane: their supports and moments, and streams as functions of the step."""

import numpy as np
import pytest
import torch

from wflow.nets import data
from wflow.nets.data.densities import PLANAR


@pytest.mark.parametrize("name", PLANAR)
def test_samples_depend_on_name_seed_and_part_alone(name):
    x = data.planar(name, 50, seed=3)
    assert x.shape == (50, 2) and x.dtype == torch.float32 and x.abs().max() < 12
    assert torch.equal(data.planar(name, 20, seed=3), x[:20])
    others = [data.planar(name, 50, seed=4)]
    others += [data.planar(name, 50, seed=3, part=part) for part in ("train", "validation")]
    others += [data.PlanarBatches(name, batch=50, seed=3)(step)[0] for step in (0, 1)]
    drawn = torch.cat([x, *others])  # two uniform numbers of 32 bits are seldom equal
    assert len(drawn.unique(dim=0)) > len(drawn) - 3


def normalised(name: str, n: int = 20_000) -> np.ndarray:
    return data.planar(name, n, seed=1).double().numpy()


def test_moons_are_two_half_circles():
    x = normalised("moons")
    below = np.linalg.norm(x - [1.0, 0.8], axis=1), x[:, 1] - 0.8
    above = np.linalg.norm(x - [-1.0, -0.2], axis=1), x[:, 1] + 0.2
    on_lower = (abs(below[0] - 2) < 0.8) & (below[1] < 0.9)
    on_upper = (abs(above[0] - 2) < 0.8) & (above[1] > -0.9)
    assert (on_lower | on_upper).mean() > 0.999
    assert abs(on_upper.mean() - 0.5) < 0.1


def test_rings_are_four_circles_of_equal_weight():
    radius = np.linalg.norm(normalised("rings"), axis=1)
    rings = np.rint(radius / 0.75)
    assert set(rings) == {1, 2, 3, 4} and np.abs(radius - 0.75 * rings).std() < 0.08
    assert np.allclose([np.mean(rings == k) for k in (1, 2, 3, 4)], 0.25, atol=0.015)


def test_spirals_are_symmetric_and_turn_three_half_times():
    x = normalised("two_spirals")
    assert np.abs(x.mean(axis=0)).max() < 0.05
    angle = np.linalg.norm(x, axis=1) * 3
    assert 8.5 < np.quantile(angle, 0.99) < 3 * np.pi + 1
    share = np.mean(angle < 1.5 * np.pi)  # of an angle like the root of a uniform number
    assert abs(share - 0.25) < 0.05


def test_eight_gaussians_have_their_centres_and_width():
    x = normalised("eight_gaussians")
    centre = np.rint(np.arctan2(x[:, 1], x[:, 0]) * 4 / np.pi) % 8
    means = np.array([x[centre == k].mean(axis=0) for k in range(8)])
    assert np.allclose(np.linalg.norm(means, axis=1), 8**0.5, atol=0.05)
    assert np.allclose(np.bincount(centre.astype(int)) / len(x), 1 / 8, atol=0.01)
    spread = (x - means[centre.astype(int)]).std(axis=0)
    assert np.allclose(spread, 8**-0.5, rtol=0.05)


def test_checkerboard_is_uniform_on_eight_squares():
    cells = np.floor(normalised("checkerboard") / 2).astype(int)
    assert set((cells[:, 0] + cells[:, 1]) % 2) == {0} and cells.min() == -2 and cells.max() == 1
    _, counts = np.unique(cells, axis=0, return_counts=True)
    assert len(counts) == 8 and np.allclose(counts / len(cells), 1 / 8, atol=0.01)


def test_swiss_roll_and_pinwheel_have_the_moments_of_their_formulas():
    t = 1.5 * np.pi * (1 + 2 * (np.arange(100_000) + 0.5) / 100_000)
    roll = np.stack([t * np.cos(t), t * np.sin(t)], axis=1) / 5
    x = normalised("swiss_roll")
    assert np.allclose(x.mean(axis=0), roll.mean(axis=0), atol=0.05)
    assert np.allclose(np.cov(x.T), np.cov(roll.T) + 0.04 * np.eye(2), atol=0.06)
    x = normalised("pinwheel")
    assert np.allclose(x.mean(axis=0), 0, atol=0.05)  # by symmetry, as is the covariance
    assert np.allclose(np.cov(x.T), 2 * (1 + 0.09 + 0.01) * np.eye(2), atol=0.08)


def test_the_cross_is_sparse():
    x = normalised("cross")
    small = np.abs(x) < 0.25
    assert small.any(axis=1).all()
    assert np.allclose((~small).mean(axis=0), np.exp(-0.25) / 2, atol=0.02)
    assert abs(np.abs(x[~small]).mean() - 1.25) < 0.03  # exponential beyond 1/4
