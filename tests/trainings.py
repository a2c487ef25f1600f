"""A small training that the tests of the trainer share: network, data, configuration."""

import copy
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import xarray
from torch import nn
from torch.nn import functional

from wflow import InputError
from wflow.nets import train
from wflow.nets.continuous import ContinuousTransformer

ROOT = Path(__file__).resolve().parents[1]
FILES = (train.CHECKPOINT, train.METRICS, train.METRICS_JSON)


class Points:
    """Points in R^6, labelled by the largest of three coordinates; calls `fault` at one step."""

    def __init__(self, batch=8, seed=0, fault=None, at=-1):
        self.batch, self.seed, self._fault, self._at = batch, seed, fault, at

    def __call__(self, step):
        if step == self._at:
            self._fault()
        generator = torch.Generator().manual_seed(1000 * self.seed + step)
        x = torch.randn(self.batch, 6, generator=generator)
        return x, x[:, :3].argmax(1)


def network(seed=0, width=16, dropout=0.2):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, 3))


def config(**changes):
    settings = {
        "steps": 12,
        "batch": 8,
        "schedule": train.Cosine(1e-2, 1e-3, 2, 12),
        "optimizer": "adamw",
        "weight_decay": 0.1,
        "clip": 0.5,
        "evaluate_every": 5,
        "checkpoint_every": 4,
        "device": "cpu",
    }
    return train.TrainConfig(**settings | changes)


def evaluate(model):
    x, labels = Points(64, seed=7)(0)
    found = model(x + 0.1 * torch.randn_like(x))  # random, as a robustness test is
    logits = found[0] if isinstance(found, tuple) else found
    return {"accuracy": (logits.argmax(1) == labels).double().mean()}


OBJECTIVE = train.objective(functional.cross_entropy, 0.1)


def run(out=None, model=None, batches=None, **options):
    """Run a training of these; return the network and the Dataset."""
    changes = options.pop("config", {})
    model = network() if model is None else model
    options = {"evaluate": evaluate, "objective": OBJECTIVE} | options
    batches = Points() if batches is None else batches
    return model, train.train(model, batches=batches, config=config(**changes), out=out, **options)


def assert_same(one, other):
    """Two trainings, equal to the bit but for the time they took."""
    for (_, a), (_, b) in zip(
        one[0].state_dict().items(), other[0].state_dict().items(), strict=True
    ):
        assert torch.equal(a, b)
    xarray.testing.assert_identical(one[1].drop_vars("seconds"), other[1].drop_vars("seconds"))


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class Body(nn.Module):
    """A network with a continuous body."""

    def __init__(self, steps=3, wrap=ContinuousTransformer):
        super().__init__()
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU()) for _ in range(3)]
        self.embed, self.body, self.head = (
            nn.Linear(6, 6),
            wrap(blocks, steps=steps),
            nn.Linear(6, 3),
        )

    def forward(self, x):
        state, cost = self.body(self.embed(x))
        return self.head(state), cost


def torchrun(program, *arguments, processes=2, fails=False):
    """Run a program, in which these modules can be imported; returns what it says on stderr."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += [f"--nproc-per-node={processes}"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*launch, str(program), *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr


def crash():
    raise RuntimeError("power cut")


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def refused(folder, match, **options):
    """An InputError, and a folder in which nothing changed."""
    before = bytes_of(folder)
    model = options.pop("model", None) or network()
    weights = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=match):
        run(folder, model=model, **options)
    assert bytes_of(folder) == before
    assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())
