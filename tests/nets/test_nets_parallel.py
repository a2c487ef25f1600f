"""Training by two processes over Gloo equals one process with the same global batch.

`torchrun` runs this very file (`main`); the tests read what it left.
"""

import builtins
import contextlib
import functools
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import trainings
import xarray
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from trainings import Body, crash, terminate, torchrun

from wflow import InputError, Interrupted, WflowError
from wflow.nets import ContinuousTransformer, train
from wflow.nets.training import parallel

RANK = int(os.environ.get("RANK", "0"))


class Net(Body):
    """The network of the trainer's tests in double precision, with dropout."""

    def __init__(self, seed=0, dropout=0.0):
        super().__init__(wrap=functools.partial(ContinuousTransformer, checkpointing=True))
        torch.manual_seed(seed)
        self.embed, self.head = nn.Linear(6, 6), nn.Sequential(nn.Dropout(dropout), self.head)
        self.double()


class Points(trainings.Points):
    """Points in R^6 with labels; calls `fault` at one step in one process."""

    def __init__(self, fault=None, at=-1, rank=1):
        super().__init__(fault=fault, at=at if rank == RANK else -1)

    def __call__(self, step):
        x, labels = super().__call__(step)
        return x.double(), labels


class Spoilt(Points):
    """Points of which one is not finite, in the last process at step 6."""

    def __call__(self, step):
        x, labels = super().__call__(step)
        x[-1] *= torch.nan if step == 6 and RANK == 1 else 1
        return x, labels


SETTINGS = {
    "steps": 10,
    "schedule": train.Cosine(1e-2, 1e-3, 2, 10),
    "clip": 0.2,
    "accumulate": 2,
    "evaluate_every": 4,
}


def evaluate(model):
    x, labels = Points()(99)
    return {"accuracy": float((model(x)[0].argmax(1) == labels).double().mean())}


def run(out, model=None, batches=None, resume=False, **changes):
    """Return one training: its Dataset and the network."""
    options = {"config": SETTINGS | changes, "evaluate": evaluate, "resume": resume}
    objective = train.objective(functional.cross_entropy, 0.5)
    model, found = trainings.run(
        out, model or Net(), batches or Points(), objective=objective, **options
    )
    return found, model


def main(folder, compiled):
    """What each process does under torchrun."""
    errors = {}

    def refused(name, **options):
        try:
            run(**options)
        except (WflowError, Interrupted) as error:
            step = getattr(error, "step", None)
            errors[name] = [type(error).__name__, str(error), step]

    _, model = run(folder / "two", model=Net(seed=RANK))  # process 0's weights count
    torch.save(model.state_dict(), folder / f"weights{RANK}.pt")
    run(folder / "half", model=Net(seed=5), resume=True)  # begun by one process
    run(folder / "unbroken", model=Net(dropout=0.3))
    if compiled:
        torch.compile = functools.partial(torch.compile, backend="eager")
        run(folder / "compiled", compile=True)
    refused("signal", out=folder / "signal", model=Net(dropout=0.3), batches=Points(terminate, 5))
    run(folder / "signal", model=Net(5, dropout=0.3), resume=True)
    learn(folder)
    refused("sampler", out=folder / "rows", batches=DataLoader(ROWS, 4))
    refused("taken", out=folder / "two")
    refused("other", out=folder / "two", resume=True, seed=3)
    refused("rows", out=folder / "rows", batch=6)
    refused("nan", out=folder / "nan", batches=Spoilt())
    (folder / f"errors{RANK}.json").write_text(json.dumps(errors))
    end_after_an_exchange()


ROWS = TensorDataset(torch.arange(96.0).double().sin().reshape(16, 6), torch.arange(16))


def learn(folder):
    """Trainings by a loader that the processes share: a whole one, one that is cut off and ends."""
    seen = []

    def objective(model, x, number):
        seen.extend(number.tolist())
        return train.Loss(model(x)[0].square().mean(), {})

    def cut(model):
        return evaluate(model) if len(seen) < 12 else crash()

    def trained(**options):
        torch.manual_seed(0)
        loader = DataLoader(ROWS, 2, sampler=DistributedSampler(ROWS, 2, RANK))
        settings = trainings.config(**SETTINGS | {"steps": 12, "batch": 4, "accumulate": 1})
        train.train(Net(dropout=0.3), objective, loader, settings, **options)

    trained(out=folder / "whole", evaluate=evaluate)
    (folder / f"seen{RANK}.json").write_text(json.dumps(seen))
    seen.clear()
    with contextlib.suppress(RuntimeError):
        trained(out=folder / "cut", evaluate=cut)
    trained(out=folder / "cut", evaluate=evaluate, resume=True)


def end_after_an_exchange():
    """Leave Gloo's threads no time to drop its tensors, and let the interpreter end slowly."""

    class Last:
        def __del__(self, sleep=time.sleep):
            sleep(0.5)

    builtins.last = Last()
    sys.setswitchinterval(1000)
    parallel.process_group("cpu").gather(torch.zeros(1, 1, dtype=torch.float64), 0)


@pytest.fixture(scope="module")
def two(tmp_path_factory, request):
    """Return the folder in which two processes have worked; with --long compiled, too."""
    folder = tmp_path_factory.mktemp("two")
    with pytest.raises(RuntimeError):
        run(folder / "half", batches=Points(crash, 7, rank=0))
    torchrun(__file__, folder, *["compiled"] * request.config.getoption("--long"))
    return folder


@pytest.fixture(scope="module")
def one():
    """Return the same training in this process."""
    return run(None)


def metrics(folder):
    with xarray.open_dataset(folder / train.METRICS, engine="h5netcdf") as found:
        return found.load()


def errors(folder, name):
    """Return what both processes raised: the same."""
    each = [json.loads((folder / f"errors{rank}.json").read_text())[name] for rank in (0, 1)]
    assert each[0] == each[1]
    return each[0]


def test_two_processes_are_one_with_the_same_batch(two, one):
    found, expected = metrics(two / "two"), one[0]
    for name in ("loss", "data", "transport", "gradient_norm"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-11, err_msg=name)
    assert (expected["gradient_norm"] > 0.2).any()  # clipped after the sum over the processes
    np.testing.assert_array_equal(found["accuracy"], expected["accuracy"])
    assert found["evaluation"].values.tolist() == [0, 4, 8, 10]
    assert found.attrs["devices"].startswith("2 x CPU")
    weights = [torch.load(two / f"weights{rank}.pt", weights_only=True) for rank in (0, 1)]
    for name, value in one[1].state_dict().items():
        assert torch.equal(weights[0][name], weights[1][name])
        torch.testing.assert_close(weights[0][name], value, rtol=1e-10, atol=1e-12)


def test_compiled_blocks_are_averaged_over_the_processes(two, one, only_long):
    for name in ("loss", "gradient_norm"):
        np.testing.assert_allclose(metrics(two / "compiled")[name], one[0][name], rtol=1e-11)


def test_a_training_begun_by_one_process_resumes_with_two(two, one):
    found = metrics(two / "half")
    np.testing.assert_allclose(found["loss"], one[0]["loss"], rtol=1e-11)
    assert [place[:7] for place in found.attrs["devices"].split("; ")] == ["1 x CPU", "2 x CPU"]


def test_a_signal_to_one_process_stops_both_and_they_go_on_to_the_bit(two):
    kind, message, _ = errors(two, "signal")
    assert kind == "Interrupted" and "SIGTERM" in message and "after step 6 of 10" in message
    found, expected = metrics(two / "signal"), metrics(two / "unbroken")
    xarray.testing.assert_identical(found.drop_vars("seconds"), expected.drop_vars("seconds"))


def test_a_signal_in_what_process_0_does_alone_reaches_the_others(monkeypatch):
    sent = []
    monkeypatch.setattr(parallel.dist, "broadcast_object_list", lambda values, src: sent.append(1))

    def task():
        raise Interrupted("SIGTERM ended an evaluation", signal.SIGTERM)

    with pytest.raises(Interrupted, match="SIGTERM"):
        parallel.Processes(torch.device("cpu"), rank=0, count=2).on_rank_zero(task)
    assert sent


def test_what_process_0_refuses_all_refuse(two):
    kind, message, _ = errors(two, "taken")
    assert kind == "InputError" and "exists" in message
    kind, message, _ = errors(two, "other")
    assert kind == "InputError" and "seed (0 there, 3 here)" in message
    assert metrics(two / "two").attrs["complete"] == 1


def test_two_processes_share_a_loader_by_its_sampler(two):
    one, other = (json.loads((two / f"seen{rank}.json").read_text()) for rank in (0, 1))
    for epoch in (slice(0, 8), slice(8, 16), slice(16, 24)):
        assert sorted(one[epoch] + other[epoch]) == list(range(16))
    assert one[:8] != one[8:16]
    resumed, whole = metrics(two / "cut"), metrics(two / "whole")
    xarray.testing.assert_identical(resumed.drop_vars("seconds"), whole.drop_vars("seconds"))
    kind, message, _ = errors(two, "sampler")
    assert kind == "InputError" and "torch.utils.data.DistributedSampler for 2" in message


def test_a_batch_that_does_not_divide_is_refused(two):
    kind, message, _ = errors(two, "rows")
    assert kind == "InputError" and "2 processes times accumulate = 2" in message
    assert not (two / "rows").exists()


def test_a_loss_that_is_not_finite_in_one_process_stops_both(two):
    kind, _, step = errors(two, "nan")
    assert (kind, step) == ("NonFiniteLossError", 6)
    assert metrics(two / "nan").sizes["step"] == 4


def test_a_broken_environment_is_refused(monkeypatch):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="RANK"):
        run(None)
    with pytest.raises(InputError, match="RANK"):
        parallel.distribute([1], str)
    with pytest.raises(InputError, match="one GPU each"):
        run(None, device="cuda:0")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(InputError, match="whole number"):
        run(None)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert parallel.process_group("cpu").count == 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["compiled"])
