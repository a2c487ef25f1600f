"""Trainings with data loaders and schedulers of torch: as a plain loop, and resumed bitwise."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils import data as torch_data
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from trainings import Points, assert_same, config, crash, evaluate, network, run

from wflow import InputError
from wflow.nets import train

pytestmark = pytest.mark.usefixtures("one_thread")

X, LABELS = Points(30)(0)  # 3 whole batches of 8 and one of 6
PAIRS = TensorDataset(X, LABELS)


class Noisy(Dataset):
    """Points with noise that is drawn when they are read."""

    def __len__(self):
        return len(X)

    def __getitem__(self, row):
        return X[row] + 0.1 * torch.randn(6), LABELS[row]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(PAIRS)


def seeded():
    return torch.Generator().manual_seed(3)


def in_batches():
    return torch_data.BatchSampler(torch_data.RandomSampler(PAIRS, generator=seeded()), 8, False)


def weighted():
    return torch_data.WeightedRandomSampler(torch.arange(1.0, 31), 20, generator=seeded())


LOADERS = {
    "in order": lambda: DataLoader(Noisy(), 8),
    "whole batches": lambda: DataLoader(Noisy(), 8, shuffle=True, drop_last=True),
    "generator": lambda: DataLoader(Noisy(), 8, shuffle=True, generator=seeded()),
    "sampler": lambda: DataLoader(Noisy(), 8, sampler=weighted()),
    "batch sampler": lambda: DataLoader(Noisy(), batch_sampler=in_batches()),
    "distributed": lambda: DataLoader(
        Noisy(), 8, sampler=torch_data.DistributedSampler(PAIRS, 1, 0)
    ),
    "stream": lambda: DataLoader(Stream(), 8),
    "data set": Noisy,
    "workers": lambda: DataLoader(Noisy(), 8, shuffle=True, num_workers=1),
}


class PowerCut:
    """The evaluation of these trainings, with a crash at the third one: after step 10 of 12."""

    def __init__(self):
        self._calls = 0

    def __call__(self, model):
        self._calls += 1
        return crash() if self._calls == 3 else evaluate(model)


@pytest.mark.parametrize("name", list(LOADERS))
def test_a_loader_that_was_cut_off_is_resumed_bitwise(name, tmp_path):
    make = LOADERS[name]
    whole = run(batches=make())
    torch.manual_seed(99)  # what else a program draws does not matter
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, batches=make(), evaluate=PowerCut())
    torch.manual_seed(7)
    assert_same(whole, run(tmp_path, network(9), batches=make(), resume=True))


def orders(batches, steps=12, **changes):
    """Return labels of every batch of a training."""
    seen = []

    def objective(model, x, labels):
        seen.append(labels.tolist())
        return train.Loss(model(x).square().mean(), {})

    train.train(network(), objective, batches, config(steps=steps, **changes))
    return seen


def test_a_loader_gives_its_batches_epoch_after_epoch_the_short_one_too():
    want = [LABELS[k : k + 8].tolist() for k in (0, 8, 16, 24)]
    assert orders(DataLoader(PAIRS, 8)) == 3 * want
    assert orders(DataLoader(PAIRS, 8, drop_last=True)) == 4 * want[:3]


def test_orders_differ_between_epochs_and_seeds_and_hold_every_sample():
    rows = TensorDataset(torch.randn(30, 6), torch.arange(30))
    for make in (lambda: DataLoader(rows, 6, shuffle=True), lambda: rows):
        seen = orders(make(), steps=10, batch=6)
        first, second = (list(itertools.chain(*seen[k : k + 5])) for k in (0, 5))
        assert sorted(first) == sorted(second) == list(range(30)) and first != second
        assert orders(make(), steps=10, batch=6) == seen
        assert orders(make(), steps=10, batch=6, seed=1) != seen
    generator = seeded()
    loader = DataLoader(rows, 6, shuffle=True, generator=generator)
    want = [labels.tolist() for _ in range(2) for _, labels in loader]
    generator.manual_seed(3)
    assert orders(loader, steps=10, batch=6) == want  # as a plain loop over the loader


def test_parts_of_a_short_batch_weigh_by_their_rows():
    batches = DataLoader(TensorDataset(X.double(), LABELS), 8)
    changes = {"steps": 4, "optimizer": "adam", "weight_decay": 0.0, "evaluate_every": None}
    one, other = (
        run(None, network(dropout=0.0).double(), batches, config=changes | more, evaluate=None)
        for more in ({}, {"accumulate": 4})
    )
    assert np.allclose(one[1]["loss"], other[1]["loss"], rtol=1e-12, atol=0)
    pairs = zip(one[0].parameters(), other[0].parameters(), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-7, atol=1e-9) for a, b in pairs)


class Words(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, row):
        return {"x": X[row]}


class Once(IterableDataset):
    def __init__(self):
        self._rows = iter(PAIRS)

    def __iter__(self):
        return self._rows


def test_loaders_that_do_not_fit_are_refused():
    empty, few = TensorDataset(X[:0]), TensorDataset(X[:5], LABELS[:5])
    for batches in (
        *(DataLoader(PAIRS, 7), DataLoader(PAIRS, batch_size=None), DataLoader(Words(), 8)),
        *(DataLoader(empty, 8), few, Stream(), [1, 2], DataLoader(Once(), 8)),
    ):
        with pytest.raises(InputError, match="batch"):
            run(batches=batches)


def test_another_loader_is_another_training_and_other_workers_are_not(tmp_path):
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, batches=DataLoader(PAIRS, 8), evaluate=PowerCut())
    for other, match in (
        (DataLoader(TensorDataset(X + 1, LABELS), 8), "batches.dataset.tensors"),
        (DataLoader(PAIRS, 8, shuffle=True), "batches.sampler"),
        (DataLoader(PAIRS, 8, drop_last=True), "batches.drop_last"),
        (PAIRS, "batches"),
    ):
        with pytest.raises(InputError, match=f"differs in {match}"):
            run(tmp_path, batches=other, resume=True)
    run(tmp_path, batches=DataLoader(PAIRS, 8, num_workers=1, pin_memory=False), resume=True)


def test_a_loader_that_is_read_otherwise_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, batches=LOADERS["generator"](), evaluate=PowerCut())
    with pytest.raises(InputError, match="1 generators, and has 0"):
        run(tmp_path, batches=DataLoader(Noisy(), 8, shuffle=True), resume=True)


# Schedulers of torch

SCHEDULERS = {
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=12),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / math.sqrt(1 + step)),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 1e-4, 1e-2, 3, cycle_momentum=False),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.ExponentialLR(o, 0.8)], [4]
    ),
    "chain": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 3), lr_scheduler.PolynomialLR(o, 9)], o
    ),
}


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), **{"lr": 3e-3, "weight_decay": 0.0} | options)


@pytest.mark.parametrize("name", [None, *SCHEDULERS])
def test_a_training_is_the_plain_loop_over_its_loader_and_scheduler(name):
    model, plain = network(dropout=0.0), network(dropout=0.0)
    make = SCHEDULERS.get(name, lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0))
    given = make(adamw(model))
    state = str(given.state_dict())
    schedule = given if name else train.Constant(3e-3)
    changes = {"schedule": schedule, "weight_decay": 0.0, "clip": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = run(model=model, batches=DataLoader(PAIRS, 8), config=changes)[1]
    assert str(given.state_dict()) == state  # as it was
    assert given.optimizer.param_groups[0]["lr"] == given.get_last_lr()[0]
    optimizer = adamw(plain, fused=True)
    scheduler, rates, losses = make(optimizer), [], []
    for x, labels in itertools.chain(*[DataLoader(PAIRS, 8)] * 3):
        loss = nn.functional.cross_entropy(plain(x), labels)
        rates.append(optimizer.param_groups[0]["lr"])
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if len(rates) < 12:
            scheduler.step()
    assert history["rate"].values.tolist() == rates and (len(set(rates)) > 1) == (name is not None)
    assert history["loss"].values.tolist() == losses
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


def test_a_training_with_a_scheduler_is_resumed_and_another_scheduler_is_refused(tmp_path):
    def settings(most):
        scheduler = lr_scheduler.OneCycleLR(adamw(network()), most, total_steps=12)
        return {"schedule": scheduler, "weight_decay": 0.0}

    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, config=settings(1e-2), evaluate=PowerCut())
    with pytest.raises(InputError, match=r"schedule\.first"):
        run(tmp_path, config=settings(2e-2), resume=True)
    resumed = run(tmp_path, config=settings(1e-2), resume=True)
    assert_same(resumed, run(config=settings(1e-2)))


def groups(optimizer):
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 1.0})
    return lr_scheduler.ExponentialLR(optimizer, 0.9)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lr_scheduler.ReduceLROnPlateau, "ReduceLROnPlateau"),
        (lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=5), "6 of 12"),
        (lambda o: lr_scheduler.ExponentialLR(o, -1.0), "ExponentialLR"),
        (groups, "groups"),
        (lambda o: o, "schedule is AdamW"),
        (lambda o: lr_scheduler.ExponentialLR(torch.optim.SGD(o.param_groups, 1), 0.9), "SGD"),
        (lambda o: lr_scheduler.ExponentialLR(adamw(network(), weight_decay=0.3), 1), "0.3, and"),
        (lambda o: lr_scheduler.ExponentialLR(adamw(network(), eps=1e-5), 1), "eps"),
    ],
)
def test_schedulers_that_do_not_fit_are_refused(make, match):
    with pytest.raises(InputError, match=match):
        config(schedule=make(adamw(network())), weight_decay=0.0)
