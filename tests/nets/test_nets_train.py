"""The trainer: its schedules, its arithmetic, and what it writes."""

import copy
import functools
import json
import sys
import types
from pathlib import Path
from typing import ClassVar

import h5py
import numpy as np
import pytest
import torch
import xarray
from torch import nn
from torch.nn import functional
from trainings import (
    FILES,
    OBJECTIVE,
    Body,
    Points,
    assert_same,
    config,
    crash,
    evaluate,
    network,
    run,
)

from wflow import InputError
from wflow.nets import train
from wflow.nets.continuous import ContinuousTransformer, NodeTransformer

pytestmark = pytest.mark.usefixtures("one_thread")


# --- schedules and configuration -------------------------------------------------------------


def test_cosine_rises_to_its_rate_and_falls_to_its_least():
    rate = train.Cosine(1.0, 0.1, 4, 24)
    assert [rate(s) for s in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rate(4) == 1.0
    assert rate(14) == pytest.approx(0.55)  # half way
    assert rate(24) == rate(100) == pytest.approx(0.1)
    assert all(rate(s) > rate(s + 1) for s in range(4, 24))


def test_step_decay_changes_at_its_boundaries():
    rate = train.StepDecay((5e-4, 5e-5, 5e-6), (35, 41))
    assert [rate(s) for s in (0, 34, 35, 40, 41, 99)] == [5e-4, 5e-4, 5e-5, 5e-5, 5e-6, 5e-6]
    assert train.Constant(0.3)(7) == 0.3


def test_numbers_of_numpy_are_taken_and_written(tmp_path):
    settings = {
        "steps": np.int64(12),
        "seed": np.int32(0),
        "clip": np.float64(0.5),
        "weight_decay": np.float64(0.1),
        "betas": np.array([0.9, 0.999]),
        "compile": np.bool_(False),
        "schedule": train.Cosine(np.float64(1e-2), np.float64(1e-3), np.int64(2), np.int64(12)),
    }
    assert_same(run(tmp_path, config=settings), run())
    decay = train.StepDecay(np.array([1e-3, 1e-4]), np.array([5]))
    assert decay == train.StepDecay((1e-3, 1e-4), (5,))
    again = json.loads(json.dumps(config(schedule=decay).as_dict()))
    assert again["schedule"] == {"kind": "StepDecay", "rates": [1e-3, 1e-4], "boundaries": [5]}
    assert (again["steps"], again["betas"], again["clip"]) == (12, [0.9, 0.999], 0.5)


# --- arithmetic ------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_a_training_is_the_plain_loop_written_out(kind, accumulate):
    model, plain = network(dropout=0).double(), network(dropout=0).double()
    model(torch.randn(8, 6).double()).sum().backward()  # gradients before a training do not count

    def batches(step):
        x, labels = Points()(step)
        return x.double(), labels

    settings = config(optimizer=kind, accumulate=accumulate)
    found = train.train(model, train.objective(functional.cross_entropy), batches, settings)

    matrices = [p for p in plain.parameters() if p.ndim == 2]
    vectors = [p for p in plain.parameters() if p.ndim == 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    maker = torch.optim.Adam if kind == "adam" else torch.optim.AdamW
    optimizer = maker(groups, lr=1.0, weight_decay=0.1)
    losses, norms = [], []
    for step in range(12):
        for group in optimizer.param_groups:
            group["lr"] = settings.schedule(step)
        x, labels = batches(step)
        loss = functional.cross_entropy(plain(x), labels)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(plain.parameters(), 0.5)))
        optimizer.step()
        losses.append(loss.item())
    assert max(norms) > 0.5 > min(norms)  # clipped and not clipped
    np.testing.assert_allclose(found["loss"], losses, rtol=1e-10)
    np.testing.assert_allclose(found["gradient_norm"], norms, rtol=1e-9)
    assert found["rate"].values.tolist() == [settings.schedule(s) for s in range(12)]
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_the_objective_adds_the_cost_of_a_network_that_has_one():
    x, labels = Points()(0)
    logits, cost = torch.randn(8, 3, dtype=torch.bfloat16), torch.tensor(2.0)
    data = functional.cross_entropy(logits.float(), labels)
    loss = OBJECTIVE(lambda x: (logits, cost), x, labels)
    assert float(loss.total) == pytest.approx(float(data) + 0.2)
    assert (float(loss.parts["data"]), float(loss.parts["transport"])) == (float(data), 2.0)
    alone = OBJECTIVE(lambda x: logits, x, labels)
    assert float(alone.total) == float(data) and float(alone.parts["transport"]) == 0


def test_cross_entropy_takes_the_mean_over_samples_and_tokens():
    logits, targets = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    expected = -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()
    torch.testing.assert_close(train.cross_entropy(logits, targets), expected)


def test_bfloat16_computes_in_half_and_keeps_weights_whole():
    model, seen = network(), set()
    model[0].register_forward_hook(lambda module, given, result: seen.add(result.dtype))
    _, found = run(model=model, config={"precision": "bfloat16"})
    assert seen == {torch.bfloat16}  # in evaluation, too
    assert all(p.dtype == torch.float32 for p in model.parameters())
    _, single = run()
    np.testing.assert_allclose(found["loss"], single["loss"], rtol=0.05)
    assert not np.array_equal(found["loss"], single["loss"])


@pytest.mark.parametrize(
    ("wrap", "layers"), [(ContinuousTransformer, 3), (NodeTransformer, 1), (None, 2)]
)
def test_a_compiled_network_trains_as_it_does_and_one_graph_serves_all_steps(
    wrap, layers, monkeypatch
):
    graphs = []

    def make():
        return network(dropout=0) if wrap is None else Body(wrap=wrap)

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiler = functools.partial(torch.compile, backend=backend, fullgraph=True)
    plain = run(model=make())
    monkeypatch.setattr(torch, "compile", compiler)
    torch._dynamo.reset()
    model, found = run(model=make(), config={"compile": True})
    assert len(graphs) == 1  # one graph with no break, compiled once
    maps = [node for node in graphs[0].graph.nodes if "linear" in str(node.target)]
    assert len([node for node in maps if node.op == "call_function"]) == layers
    np.testing.assert_allclose(found["loss"], plain[1]["loss"], rtol=1e-5)
    assert str(model) == str(plain[0])  # nothing compiled is left in it
    assert ((plain[1]["transport"] > 0) == (wrap is not None)).all()
    np.testing.assert_allclose(
        plain[1]["loss"], plain[1]["data"] + 0.1 * plain[1]["transport"], rtol=1e-5
    )


def test_evaluation_changes_nothing_and_happens_when_it_is_due():
    often = run(config={"evaluate_every": 2})
    seldom = run(config={"evaluate_every": None})
    never = run(evaluate=None)
    assert often[1]["evaluation"].values.tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert seldom[1]["evaluation"].values.tolist() == [0, 12]
    assert "evaluation" not in never[1].dims
    for other in (seldom, never):
        assert np.array_equal(often[1]["loss"], other[1]["loss"])
    ends = [found["accuracy"].values[[0, -1]].tolist() for _, found in (often, seldom)]
    assert ends[0] == ends[1]  # its random numbers are those of the step
    assert often[1]["accuracy"][-1] > often[1]["accuracy"][0]


def test_evaluation_sees_the_network_at_rest_and_modes_and_random_numbers_are_left_alone():
    model, seen, modes = network().eval(), [], set()

    def look(model):
        seen.append((model.training, torch.is_grad_enabled()))
        return {}

    model[2].register_forward_hook(lambda module, given, result: modes.add(module.training))
    run(model=model, evaluate=look)
    assert seen == [(False, False)] * 4 and modes == {True}
    assert not model.training  # as it was given
    model.train()[2].eval()
    before = torch.get_rng_state()
    run(model=model)
    assert torch.equal(torch.get_rng_state(), before)
    assert [part.training for part in model.modules()] == [True, True, True, False, True]


def test_dropout_depends_on_the_seed():
    assert not np.array_equal(run(config={"seed": 1})[1]["loss"], run()[1]["loss"])


# --- files -----------------------------------------------------------------------------------


def test_metrics_are_in_hdf5_and_json_as_they_are_returned(tmp_path):
    _, found = run(tmp_path / "a" / "b", label="points")
    folder = tmp_path / "a" / "b"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    with xarray.open_dataset(folder / train.METRICS, engine="h5netcdf") as read:
        xarray.testing.assert_identical(read.load(), found)
    with h5py.File(folder / train.METRICS) as plain:  # as any other language sees it
        assert plain["loss"].shape == (12,) and plain["loss"].dtype == np.float64
        assert plain["loss"].dims[0][0].name == "/step"
        assert plain["accuracy"].dims[0][0].name == "/evaluation"

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    text = json.loads((folder / train.METRICS_JSON).read_text(), parse_constant=refuse)
    assert text["loss"] == found["loss"].values.tolist()
    assert text["step"] == list(range(12)) and text["evaluation"] == [0, 5, 10, 12]
    assert text["label"] == "points" and text["steps_done"] == 12 and text["complete"] == 1
    assert text["config"]["schedule"]["kind"] == "Cosine"
    assert text["config"]["objective"] == {
        "kind": "TransportObjective",
        "loss": "cross_entropy",
        "weight": 0.1,
    }
    assert text["parameters"] == 6 * 16 + 16 + 16 * 3 + 3
    assert (found["seconds"] > 0).all()


def test_an_evaluation_that_is_not_finite_is_null_in_json(tmp_path):
    _, found = run(tmp_path, evaluate=lambda model: {"gap": float("nan")})
    assert np.isnan(found["gap"]).all()
    assert json.loads((tmp_path / train.METRICS_JSON).read_text())["gap"] == [None] * 4


def test_weights_travel_by_file_and_by_checkpoint(tmp_path):
    model, other = network(1), network(2)
    train.save_model(tmp_path / "w.pt", model, {"text": "a network", "width": 16})
    assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]
    assert train.load_model(tmp_path / "w.pt", other) == {"text": "a network", "width": 16}
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    trained, _ = run(tmp_path)
    assert "Dropout(p=0.2" in train.load_model(tmp_path / train.CHECKPOINT, other)
    assert torch.equal(trained[0].weight, other[0].weight)


def test_weights_of_another_shape_are_refused_and_the_network_stays(tmp_path):
    train.save_model(tmp_path / "w.pt", network(width=17), "")
    model = network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=r"w\.pt.*0\.weight.*\(17, 6\).*\(16, 6\)"):
        train.load_model(tmp_path / "w.pt", model)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    with pytest.raises(InputError, match="absent"):
        train.load_model(tmp_path / "w.pt", nn.Linear(2, 2))
    with pytest.raises(InputError, match="does not exist"):
        train.load_model(tmp_path / "none.pt", model)
    with pytest.raises(InputError, match="JSON"):
        train.save_model(tmp_path / "v.pt", model, {"f": evaluate})
    with pytest.raises(InputError, match="cannot write"):
        train.save_model(tmp_path / "none" / "v.pt", model, "")


class Board:
    """TensorBoard's writer: numbers by name and step; those from `purge_step` on are dropped."""

    written: ClassVar[dict] = {}

    def __init__(self, log_dir, purge_step):
        self.folder = Path(log_dir)
        for numbers in self.written.values():
            for step in [step for step in numbers if step >= purge_step]:
                del numbers[step]

    def add_scalar(self, name, value, step):
        self.written.setdefault(name, {})[step] = value

    def close(self):
        self.folder.mkdir()


@pytest.mark.parametrize("at", [None, 6])
def test_tensorboard_gets_every_number_also_of_a_run_that_was_resumed(tmp_path, monkeypatch, at):
    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Board
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    monkeypatch.setattr(Board, "written", {})
    board, options = tmp_path / "tensorboard", {"evaluate_every": 4, "checkpoint_every": 4}
    if at is not None:
        with pytest.raises(RuntimeError, match="power cut"):
            run(tmp_path, batches=Points(fault=crash, at=at), tensorboard=True, config=options)
        board.rmdir()
    for _ in range(2):  # the second one finds a training that is done
        _, found = run(tmp_path, tensorboard=True, resume=True, config=options)
        assert list(Board.written["loss"].values()) == found["loss"].values.tolist()
        assert list(Board.written["accuracy"].items()) == [
            (step, found["accuracy"].sel(evaluation=step)) for step in (0, 4, 8, 12)
        ]
        board.rmdir()


def test_log_gets_every_number_of_steps_and_evaluations_in_order(tmp_path):
    told = []
    _, found = run(tmp_path, log=lambda step, numbers: told.append((step, numbers)),
                   config={"evaluate_every": 4})  # fmt: skip
    steps = [step for step, _ in told]
    assert steps == sorted(steps)
    losses = [numbers["loss"] for _, numbers in told if "loss" in numbers]
    assert losses == found["loss"].values.tolist()
    shares = {step: numbers["accuracy"] for step, numbers in told if "accuracy" in numbers}
    assert shares == dict(zip(found["evaluation"].values, found["accuracy"].values, strict=True))


def test_what_log_changes_or_draws_leaves_the_training_as_it_is(tmp_path):
    def spoil(step, numbers):
        numbers.clear()
        torch.rand(3)

    _, plain = run(tmp_path / "a")
    _, found = run(tmp_path / "b", log=spoil)
    np.testing.assert_array_equal(plain["loss"], found["loss"])
    np.testing.assert_array_equal(plain["accuracy"], found["accuracy"])


def test_tensorboard_itself_reads_what_is_written(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    _, found = run(tmp_path, tensorboard=True)
    events = reader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    values = [event.value for event in events.Scalars("loss")]
    np.testing.assert_allclose(values, found["loss"], rtol=1e-6)
    assert [event.step for event in events.Scalars("accuracy")] == [0, 5, 10, 12]


def test_tensorboard_that_is_absent_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match="pip install"):
        run(tmp_path / "out", tensorboard=True)
    assert not (tmp_path / "out").exists()
