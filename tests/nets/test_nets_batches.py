"""Batches and perturbations of data: pure functions of a seed, with the requested rate."""

import itertools

import numpy as np
import pytest
import torch

from wflow.nets import data
from wflow.nets.data import batches as batching

# Random numbers


def test_purposes_differ_and_keep_their_numbers():
    known = {
        "ORDER": 0, "CROPS": 1, "SPLIT": 2, "GAUSS": 3, "UNIFORM": 4, "REPLACE": 5, "DROP": 6,
        "TRAIN": 7, "VALIDATION": 8, "TEST": 9, "AUGMENT": 20, "BUCKETS": 32, "SURFACE": 40,
        "SUBSET": 41, "POSES": 42, "SOLIDS": 43, "TEST_SOLIDS": 44, "ROTATE": 45,
        "TEST_SUBSET": 46,
    }  # fmt: skip
    # Aliases are listed, too: a resumed training draws what it drew before.
    assert {name: int(one) for name, one in batching.Purpose.__members__.items()} == known
    assert len(set(known.values())) == len(known)
    drawn = [tuple(batching.bits(1, one, 2).random_raw(2)) for one in batching.Purpose]
    assert len(set(drawn)) == len(known)


# Batches


def numbered(n: int = 10) -> tuple:
    """Return images of 2 x 3 pixels whose value is their number; labels the same."""
    values = torch.arange(n, dtype=torch.uint8)
    return values[:, None, None].expand(n, 2, 3).clone(), values


def augmented(augment, *shape):
    """Return batches of the same inputs, changed at random."""
    inputs = torch.rand(6, *shape, generator=torch.Generator().manual_seed(0))
    return lambda step: (augment(inputs, step),)


LENGTHS = torch.arange(100) % 9 + 1
SOURCES = {
    "images": lambda seed: data.ImageBatches(*numbered(100), batch=7, seed=seed),
    "crops of a text": lambda seed: data.CropBatches(
        torch.arange(500), context=8, batch=5, seed=seed
    ),
    "clouds": lambda seed: data.CloudBatches(
        torch.rand(100, 9, 3, generator=torch.Generator().manual_seed(0)), LENGTHS,
        torch.arange(100), batch=7, points=5, seed=seed,
    ),
    "texts": lambda seed: data.TextBatches(
        [torch.full((int(n),), k + 1) for k, n in enumerate(LENGTHS)], torch.arange(100), batch=7,
        context=9, bucket=3, seed=seed,
    ),
    "points of a density": lambda seed: data.PlanarBatches("moons", batch=5, seed=seed),
    "crops of pictures": lambda seed: augmented(data.RandomCrops(seed), 3, 10, 12),
    "poses of clouds": lambda seed: augmented(data.RandomPoses(seed), 5, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_batches_are_a_pure_function_of_seed_and_step(name):
    def same(some, others):
        return all(map(torch.equal, some, others))

    one, two, other = (SOURCES[name](seed) for seed in (4, 4, 5))
    steps = [0, 33, 5, 5, 1000, 1, 0]
    forwards = {step: one(step) for step in steps}
    assert all(same(two(step), forwards[step]) for step in reversed(steps))
    assert not same(one(5), forwards[0]) and not same(other(0), forwards[0])


def test_an_epoch_has_no_image_twice_and_drops_what_is_left_over():
    batches = data.ImageBatches(*numbered(10), batch=3, seed=1)
    assert batches.per_epoch == 3
    rows = np.concatenate([batches.rows(step) for step in range(120)]).reshape(40, 9)
    epochs = [tuple(epoch) for epoch in rows.tolist()]
    assert all(len(set(epoch)) == 9 for epoch in epochs) and len(set(epochs)) == 40
    left = {(set(range(10)) - set(epoch)).pop() for epoch in epochs}
    assert left == set(range(10))  # every image is dropped in some epoch, none in all


def test_image_batches_normalise_pixels_in_the_unit_interval():
    images, labels = numbered(10)
    batches = data.ImageBatches(images, labels, batch=4, mean=0.1307, std=0.3081)
    pixels, targets = batches(0)
    assert pixels.shape == (4, 1, 2, 3) and pixels.dtype == torch.float32
    assert targets.dtype == torch.int64 and targets.tolist() == batches.rows(0).tolist()
    expected = (targets.double() / 255 - 0.1307) / 0.3081
    assert torch.allclose(pixels[:, 0, 1, 2].double(), expected, rtol=1e-6)
    colour = data.ImageBatches(torch.rand(10, 3, 4, 4), labels, batch=2)(1)[0]
    assert colour.shape == (2, 3, 4, 4)
    assert torch.equal(data.unit(images).double(), images.to(torch.float32).div(255).double())


def test_evaluation_visits_every_image_once_in_order():
    images, labels = numbered(10)
    batches = data.ImageBatches(images, labels, batch=4)
    parts = list(batches.evaluation(3))
    assert [len(part[1]) for part in parts] == [3, 3, 3, 1]
    assert torch.cat([part[1] for part in parts]).tolist() == list(range(10))
    assert torch.equal(torch.cat([part[0] for part in parts])[:, 0] * 255, images.float())
    assert len(list(batches.evaluation())) == 3


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32])
def test_crops_are_shifted_by_one(dtype):
    given = {"context": 8, "batch": 5, "seed": 2, "vocabulary": 50}
    inputs, targets = data.CropBatches(torch.arange(50).to(dtype), **given)(7)
    assert inputs.shape == targets.shape == (5, 8) and inputs.dtype == torch.int64
    assert torch.equal(targets, inputs + 1) and torch.equal(inputs[:, 1:], targets[:, :-1])


def test_crops_begin_everywhere_alike():
    batches = data.CropBatches(torch.arange(12), context=8, batch=1000, seed=0)
    begins = torch.cat([batches(step)[0][:, 0] for step in range(4)])
    counts = begins.bincount()
    assert len(counts) == 4 and (counts - 1000).abs().max() < 5 * 1000**0.5
    only = data.CropBatches(torch.arange(9), context=8, batch=2)(0)
    assert only[1][:, -1].tolist() == [8, 8]


def test_windows_make_every_token_a_target_once():
    for n, batch in itertools.product((2, 5, 8, 9, 10, 16, 17, 50), (1, 3)):
        parts = list(data.windows(torch.arange(n), context=8, batch=batch))
        assert torch.cat([targets.flatten() for _, targets in parts]).tolist() == [*range(1, n)]
        for inputs, targets in parts:
            assert torch.equal(targets, inputs + 1)
            assert inputs.shape[1] <= 8 and len(inputs) <= batch
        assert all(inputs.shape[1] == 8 for inputs, _ in parts[:-1])


# Perturbations


@pytest.mark.parametrize(
    ("noise", "spread"), [(data.gaussian_noise, 1.0), (data.uniform_noise, 3**-0.5)]
)
def test_noise_has_its_level_and_is_scaled_by_it(noise, spread):
    images = torch.full((40, 1, 28, 28), 0.5)
    shift = noise(images, 0.2, seed=3) - images
    n = shift.numel()
    assert abs(shift.mean()) < 5 * 0.2 * spread / n**0.5
    assert abs(shift.std() / (0.2 * spread) - 1) < 5 / n**0.5
    assert torch.equal(noise(images, 0.0, seed=3), images)
    assert torch.allclose(noise(images, 0.4, seed=3) - images, 2 * shift, atol=1e-6)
    assert not torch.equal(noise(images, 0.2, seed=4) - images, shift)
    assert noise(images.double(), 0.2, seed=3).dtype == torch.float64
    if noise is data.uniform_noise:
        assert shift.abs().max() <= 0.2 + 1e-6 and shift.abs().max() > 0.199


def test_replaced_tokens_differ_at_the_rate_and_a_higher_rate_hits_the_same_ones():
    tokens = torch.from_numpy(np.random.default_rng(3).integers(0, 65, 100_000))
    low, high = (data.replace_tokens(tokens, rate, 65, seed=1) for rate in (0.05, 0.1))
    for new, rate in ((low, 0.05), (high, 0.1)):
        changed = (new != tokens).double().mean()
        assert abs(changed - rate) < 5 * (rate * (1 - rate) / 100_000) ** 0.5
        assert new.min() >= 0 and new.max() <= 64 and new.dtype == tokens.dtype
    hit = low != tokens
    assert torch.equal(low[hit], high[hit])
    counts = ((low[hit] - tokens[hit]) % 65).bincount(minlength=65)  # uniform on 1 .. 64
    assert counts[0] == 0 and counts[1:].min() > 78 - 5 * 9 and counts.max() < 78 + 5 * 9
    assert torch.equal(data.replace_tokens(tokens, 0, 65), tokens)
    few = tokens[:2000].view(20, 100)
    assert (data.replace_tokens(few.to(torch.uint8), 1, 65) != few).all()


def test_dropped_points_leave_the_others_in_order():
    clouds = torch.arange(40).repeat(6, 1)[:, :, None].expand(6, 40, 3).double()
    kept, fewer = (data.drop_points(clouds, rate, seed=2) for rate in (0.25, 0.5))
    assert kept.shape == (6, 30, 3) and kept.dtype == torch.float64
    assert (kept[:, 1:, 0] > kept[:, :-1, 0]).all()
    many, few = ([set(row) for row in clouds[:, :, 0].tolist()] for clouds in (kept, fewer))
    assert len(set(map(frozenset, many))) == 6  # each cloud loses its own
    assert all(one <= other for one, other in zip(few, many, strict=True))
    assert torch.equal(data.drop_points(clouds, 0, seed=2), clouds)
    assert data.drop_points(clouds, 1.0).shape == (6, 1, 3)
