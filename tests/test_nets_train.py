"""The trainer: its arithmetic, what it writes, how it goes on, and what it refuses."""

import copy
import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from wflow.errors import InputError, Interrupted  # noqa: E402
from wflow.nets import _checkpoint, train  # noqa: E402
from wflow.nets.continuous import ContinuousTransformer, NodeTransformer  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
FILES = (train.CHECKPOINT, train.METRICS, train.METRICS_JSON)


class Points:
    """Points in R^6 and which of their first three coordinates is largest; may do harm once."""

    def __init__(self, batch=8, seed=0, harm=None, at=-1):
        self.batch, self.seed, self._harm, self._at = batch, seed, harm, at

    def __call__(self, step):
        if step == self._at:
            self._harm()
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
    """A training of these; returns the network and the Dataset."""
    changes = options.pop("config", {})
    model = network() if model is None else model
    options = {"evaluate": evaluate, "objective": OBJECTIVE} | options
    batches = batches or Points()
    return model, train.train(model, batches=batches, config=config(**changes), out=out, **options)


def assert_same(one, other):
    """Two trainings, equal to the bit but for the time they took."""
    for (_, a), (_, b) in zip(
        one[0].state_dict().items(), other[0].state_dict().items(), strict=True
    ):
        assert torch.equal(a, b)
    xarray.testing.assert_identical(one[1].drop_vars("seconds"), other[1].drop_vars("seconds"))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Networks this small lose time with more threads, most of all beside other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: train.Constant(0),
        lambda: train.Cosine(1e-3, 2e-3, 0, 10),
        lambda: train.Cosine(1e-3, 1e-4, 10, 10),
        lambda: train.StepDecay((1e-3,), (5,)),
        lambda: train.StepDecay((1e-3, 1e-4, 1e-5), (5, 4)),
        lambda: config(steps=0),
        lambda: config(batch=2.5),
        lambda: config(betas=(0.9, 1.0)),
        lambda: config(clip=0.0),
        lambda: config(optimizer="sgd"),
        lambda: config(precision="float16"),
        lambda: config(schedule=lambda step: 1e-3),
        lambda: config(evaluate_every=0),
        lambda: config(weight_decay=-1),
        lambda: train.objective(functional.mse_loss, -1),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(InputError):
        make()


def test_a_configuration_survives_json():
    plain = config(schedule=train.StepDecay((1e-3, 1e-4), (5,))).as_dict()
    again = json.loads(json.dumps(plain))
    assert again["schedule"] == {"kind": "StepDecay", "rates": [1e-3, 1e-4], "boundaries": [5]}
    assert (again["steps"], again["betas"], again["clip"]) == (12, [0.9, 0.999], 0.5)


# --- arithmetic ------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_a_training_is_the_plain_loop_written_out(kind, accumulate):
    model, plain = network(dropout=0).double(), network(dropout=0).double()

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


def test_evaluation_sees_the_network_at_rest_and_training_goes_on_in_its_own_mode():
    model, seen = network().eval(), []

    def look(model):
        seen.append((model.training, torch.is_grad_enabled()))
        return {}

    modes = set()
    model[2].register_forward_hook(lambda module, given, result: modes.add(module.training))
    run(model=model, evaluate=look)
    assert seen == [(False, False)] * 4 and modes == {True}
    assert not model.training  # as it was given


def test_training_gives_every_module_its_own_mode_back(tmp_path):
    model = network()
    model[2].eval()
    run(model=model)
    assert [part.training for part in model.modules()] == [True, True, True, False, True]


def test_the_callers_random_numbers_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    model = network()
    torch.manual_seed(5)
    run(model=model)
    assert torch.equal(torch.rand(3), expected)


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


def test_weights_travel_by_file(tmp_path):
    model = network(1)
    train.save_model(tmp_path / "w.pt", model, {"text": "a network", "width": 16})
    other = network(2)
    assert train.load_model(tmp_path / "w.pt", other) == {"text": "a network", "width": 16}
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]


def test_weights_can_be_taken_from_a_checkpoint(tmp_path):
    model, _ = run(tmp_path)
    other = network(3)
    assert "Dropout(p=0.2" in train.load_model(tmp_path / train.CHECKPOINT, other)
    assert torch.equal(model[0].weight, other[0].weight)


def test_weights_of_another_shape_are_refused_and_the_network_stays(tmp_path):
    train.save_model(tmp_path / "w.pt", network(width=17), "")
    model = network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=r"w\.pt.*0\.weight.*\(17, 6\).*\(16, 6\)"):
        train.load_model(tmp_path / "w.pt", model)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    with pytest.raises(InputError, match="weight is absent in the file"):
        train.load_model(tmp_path / "w.pt", nn.Linear(2, 2))
    with pytest.raises(InputError, match="does not exist"):
        train.load_model(tmp_path / "none.pt", model)
    with pytest.raises(InputError, match="JSON"):
        train.save_model(tmp_path / "v.pt", model, {"f": evaluate})
    with pytest.raises(InputError, match="cannot write"):
        train.save_model(tmp_path / "none" / "v.pt", model, "")


def test_tensorboard_gets_every_number(tmp_path, monkeypatch):
    written, folders = {}, []

    class Writer:
        def __init__(self, log_dir, purge_step):
            folders.append((log_dir, purge_step))

        def add_scalar(self, name, value, step):
            written.setdefault(name, {})[step] = value

        def close(self):
            folders.append("closed")

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    _, found = run(tmp_path, tensorboard=True)
    assert folders == [(str(tmp_path / "tensorboard"), 0), "closed"]
    assert list(written["loss"].values()) == found["loss"].values.tolist()
    assert list(written["accuracy"]) == [0, 5, 10, 12]


def test_tensorboard_that_is_absent_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match="pip install tensorboard"):
        run(tmp_path / "out", tensorboard=True)
    assert not (tmp_path / "out").exists()


# --- going on --------------------------------------------------------------------------------


def crash():
    raise RuntimeError("power cut")


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("at", [3, 4, 7, 10, 11])
def test_a_crashed_training_goes_on_to_the_same_curve_to_the_bit(tmp_path, at):
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, batches=Points(harm=crash, at=at))
    assert (tmp_path / train.CHECKPOINT).exists() == (at >= 4)
    assert_same(run(tmp_path, model=network(9 if at >= 4 else 0), resume=True), run())


@pytest.mark.parametrize("at", [0, 6, 9])
def test_a_signal_ends_a_training_after_the_step_and_it_goes_on(tmp_path, at):
    with pytest.raises(Interrupted, match=f"SIGTERM.*after step {at + 1} of 12.*resume") as caught:
        run(tmp_path, batches=Points(harm=terminate, at=at))
    assert caught.value.signum == signal.SIGTERM
    with xarray.open_dataset(tmp_path / train.METRICS, engine="h5netcdf") as partial:
        assert partial.sizes["step"] == at + 1 and partial.attrs["complete"] == 0
    assert_same(run(tmp_path, model=network(9), resume=True), run())


def test_a_signal_in_the_last_step_leaves_a_whole_training(tmp_path):
    with pytest.raises(Interrupted, match="whole"):
        run(tmp_path, batches=Points(harm=terminate, at=11))
    assert_same(run(tmp_path, batches=Points(harm=crash, at=11), resume=True), run())


def test_a_finished_training_is_read_and_not_done_again(tmp_path):
    done = run(tmp_path)
    (tmp_path / train.METRICS).unlink()  # the kill came before it
    again = run(tmp_path, model=network(9), batches=Points(harm=crash, at=0), resume=True)
    assert_same(done, again)
    xarray.testing.assert_identical(done[1], again[1])
    assert (tmp_path / train.METRICS).exists()


def test_resume_begins_where_there_is_nothing(tmp_path):
    assert_same(run(tmp_path / "new", resume=True), run())


def test_metrics_follow_the_checkpoint_after_a_kill_between_them(tmp_path, monkeypatch):
    writer, calls = train._Run._write_metrics, []

    def killed(self):
        calls.append(self.done)
        if self.done == 8:
            raise KeyboardInterrupt
        writer(self)

    with monkeypatch.context() as patch:
        patch.setattr(train._Run, "_write_metrics", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    assert calls == [4, 8]
    text = json.loads((tmp_path / train.METRICS_JSON).read_text())
    assert text["steps_done"] == 4
    with pytest.raises(RuntimeError):
        run(tmp_path, batches=Points(harm=crash, at=8), resume=True)
    text = json.loads((tmp_path / train.METRICS_JSON).read_text())
    assert text["steps_done"] == 8 and text["evaluation"] == [0, 5]
    assert_same(run(tmp_path, resume=True), run())


def test_a_disk_that_fills_up_keeps_the_checkpoint(tmp_path, monkeypatch):
    save = torch.save

    def fill(content, draft):
        save(content, draft)
        if content["step"] == 8:
            draft.write_bytes(draft.read_bytes()[:1000])
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fill)
        with pytest.raises(InputError, match=r"checkpoint\.pt: No space left"):
            run(tmp_path)
    assert sorted(bytes_of(tmp_path)) == sorted(FILES)
    assert torch.load(tmp_path / train.CHECKPOINT, weights_only=True)["step"] == 4
    assert_same(run(tmp_path, resume=True), run())


def test_a_process_killed_at_any_time_leaves_a_checkpoint_that_loads(tmp_path):
    program = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from test_nets_train import *\n"
        f"run({str(tmp_path)!r}, config={{'steps': 10**6, 'checkpoint_every': 1}})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / train.CHECKPOINT).exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        for _ in range(20):  # any file that a reader finds is whole
            _checkpoint.read(tmp_path / train.CHECKPOINT)
    finally:
        process.kill()
        process.wait()
    saved = _checkpoint.read(tmp_path / train.CHECKPOINT)
    assert saved["history"]["rows"].shape[0] == saved["step"] > 0
    train.load_model(tmp_path / train.CHECKPOINT, network())


def test_readings_that_wait_change_nothing_and_name_the_right_step(tmp_path, monkeypatch):
    def seldom(self, caught):
        return self.done % 6 == 0

    each = run()
    monkeypatch.setattr(train._Run, "_reading_due", seldom)
    # Savings and evaluations come with readings, as they do on a GPU.
    every = {"checkpoint_every": 6, "evaluate_every": 6}
    assert np.array_equal(run(config=every)[1]["loss"], each[1]["loss"])
    with pytest.raises(train.NonFiniteLossError) as caught:
        run(batches=Sour(at=8), config=every)
    assert caught.value.step == 8 and caught.value.history.sizes["step"] == 9


# --- what is not finite ----------------------------------------------------------------------


class Sour(Points):
    """Points with one that is not a number in one step."""

    def __call__(self, step):
        x, labels = Points(self.batch, self.seed)(step)
        if step == self._at:
            x[3, 2] = float("nan")
        return x, labels


def test_a_loss_that_is_not_finite_stops_with_its_step_and_keeps_the_checkpoint(tmp_path):
    with pytest.raises(train.NonFiniteLossError, match="step 6: loss nan") as caught:
        run(tmp_path, batches=Sour(at=6))
    assert caught.value.step == 6
    assert np.isnan(caught.value.loss) and np.isnan(caught.value.gradient_norm)
    assert caught.value.history["loss"].notnull().values.tolist() == [True] * 6 + [False]
    saved = _checkpoint.read(tmp_path / train.CHECKPOINT)
    assert saved["step"] == 4 and all(v.isfinite().all() for v in saved["model"].values())
    again = pickle.loads(pickle.dumps(caught.value))  # processes hand it to each other
    assert (str(again), again.step) == (str(caught.value), 6)


def test_a_gradient_that_is_not_finite_stops_although_the_loss_is():
    def kinked(model, x, labels):
        logits = model(x)
        zero = (logits - logits.detach()).sum().abs().sqrt()  # 0, with slope 0 times infinity
        return train.Loss(functional.cross_entropy(logits, labels) + zero, {})

    with pytest.raises(train.NonFiniteLossError) as caught:
        run(objective=kinked)
    assert caught.value.step == 0 and np.isfinite(caught.value.loss)
    assert np.isnan(caught.value.gradient_norm)


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    wild = {"schedule": train.Constant(1e39), "steps": 1, "weight_decay": 0.0}
    with pytest.raises(train.NonFiniteLossError, match="weights"):
        run(tmp_path, config=wild, evaluate=None)
    assert not any(tmp_path.iterdir())


# --- what is refused -------------------------------------------------------------------------


def refused(folder, match, **options):
    """An InputError, and a folder in which nothing changed."""
    before = bytes_of(folder)
    model = options.pop("model", None) or network()
    weights = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=match):
        run(folder, model=model, **options)
    assert bytes_of(folder) == before
    assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())


def test_results_that_are_there_are_kept_unless_told_otherwise(tmp_path):
    old = run(tmp_path)
    refused(tmp_path, r"checkpoint\.pt exists.*resume.*overwrite")
    refused(tmp_path, "choose one", resume=True, overwrite=True)
    new = run(tmp_path, overwrite=True, config={"seed": 4})
    assert not np.array_equal(old[1]["loss"], new[1]["loss"])
    with xarray.open_dataset(tmp_path / train.METRICS, engine="h5netcdf") as read:
        xarray.testing.assert_identical(read.load(), new[1])
    (tmp_path / train.CHECKPOINT).unlink()
    refused(tmp_path, r"metrics\.h5 exists")
    refused(tmp_path, r"checkpoint\.pt does not exist", resume=True)


def test_overwriting_begins_when_there_is_something_new(tmp_path):
    run(tmp_path)
    refused(tmp_path, "rows", overwrite=True, batches=Points(batch=7))


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        (r"steps \(12 there, 13 here\)", {"config": {"steps": 13}}),
        (
            r"schedule\.least \(0\.001 there, 0\.0 here\)",
            {"config": {"schedule": train.Cosine(1e-2, 0.0, 2, 12)}},
        ),
        (r"seed \(0 there, 1 here\)", {"config": {"seed": 1}}),
        (r"accumulate", {"config": {"accumulate": 2}}),
        (r"clip", {"config": {"clip": None}}),
        (r"betas", {"config": {"betas": (0.9, 0.99)}}),
        (r"objective\.weight", {"objective": train.objective(functional.cross_entropy, 0.2)}),
        (r"objective\.loss", {"objective": train.objective(functional.nll_loss, 0.1)}),
        (r"batches\.seed", {"batches": Points(seed=1)}),
        (r"batches\.kind", {"batches": Sour()}),
    ],
)
def test_a_checkpoint_of_another_configuration_is_refused_by_name(tmp_path, field, changes):
    run(tmp_path)
    refused(tmp_path, field, resume=True, **changes)


def test_a_checkpoint_of_another_network_is_refused_by_name(tmp_path):
    run(tmp_path / "a")
    refused(
        tmp_path / "a",
        r"0\.weight is torch\.float32 \(16, 6\)",
        model=network(width=8),
        resume=True,
    )
    refused(tmp_path / "a", r"0\.weight.*torch\.float64", model=network().double(), resume=True)
    refused(
        tmp_path / "a", r"Dropout\(p=0\.2.*Dropout\(p=0\.3", model=network(dropout=0.3), resume=True
    )
    run(tmp_path / "b", model=Body(steps=3))
    refused(tmp_path / "b", "steps=3.*steps=4", model=Body(steps=4), resume=True)


def test_how_a_run_goes_on_may_change(tmp_path):
    with pytest.raises(RuntimeError):
        run(tmp_path, batches=Points(harm=crash, at=9))
    changed = run(tmp_path, config={"checkpoint_every": 3, "device": "auto"}, resume=True)
    if not torch.cuda.is_available():
        assert np.array_equal(changed[1]["loss"], run()[1]["loss"])


class Hostile:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_with_code_in_it_is_refused_and_nothing_runs(tmp_path, zipped):
    out, trap = tmp_path / "out", tmp_path / "made"
    run(out)
    content = torch.load(out / train.CHECKPOINT, weights_only=True) | {"extra": Hostile(trap)}
    if zipped:
        torch.save(content, out / train.CHECKPOINT)
    else:
        (out / train.CHECKPOINT).write_bytes(pickle.dumps({"extra": Hostile(trap)}, protocol=2))
    refused(out, r"checkpoint\.pt.*open.*nothing in it was executed", resume=True)
    with pytest.raises(InputError, match=r"checkpoint\.pt"):
        train.load_model(out / train.CHECKPOINT, network())
    assert not trap.exists()
    if zipped:  # the trap is a real one
        torch.load(out / train.CHECKPOINT, weights_only=False)["extra"].close()
        assert trap.exists()


def test_a_truncated_checkpoint_is_refused(tmp_path):
    run(tmp_path)
    whole = (tmp_path / train.CHECKPOINT).read_bytes()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / train.CHECKPOINT).write_bytes(whole[:size])
        refused(tmp_path, r"checkpoint\.pt cannot be read", resume=True)


@pytest.mark.parametrize("content", [{"a": 1}, [1, 2], {"format": "wflow-training/1"}])
def test_a_foreign_file_is_refused(tmp_path, content):
    torch.save(content, tmp_path / train.CHECKPOINT)
    refused(tmp_path, r"checkpoint\.pt", resume=True)
    with pytest.raises(InputError, match=r"checkpoint\.pt"):
        train.load_model(tmp_path / train.CHECKPOINT, network())


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make"):
        run(tmp_path / "file")
    for option in ("resume", "overwrite", "tensorboard"):
        with pytest.raises(InputError, match="give out"):
            run(**{option: True})


def test_a_device_that_is_absent_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert train.device("auto") == train.device("cpu") == torch.device("cpu")
    for name in ("cuda", "cuda:1"):
        with pytest.raises(InputError, match="no CUDA device"):
            train.device(name)
    for name in ("gpu", "cuda:x", "cpu:0", "auto:1", None):
        with pytest.raises(InputError, match="expected auto, cpu"):
            train.device(name)
    with pytest.raises(InputError, match="no CUDA device"):
        run(tmp_path / "out", config={"device": "cuda"})
    assert not (tmp_path / "out").exists()


def test_a_gpu_number_that_is_absent_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert train.device("auto") == train.device("cuda") == torch.device("cuda", 0)
    assert train.device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(InputError, match="no GPU number 2"):
        train.device("cuda:2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert train.device("auto") == torch.device("cuda", 1)


def test_objectives_batches_and_evaluations_that_do_not_fit_are_refused():
    cases = [
        ("expected tensors of 8 rows", {"batches": Points(batch=4)}),
        ("expected tensors of 8 rows", {"batches": lambda step: (torch.zeros(8, 6), 3)}),
        ("multiple of 3", {"config": {"accumulate": 3}}),
        ("no Loss", {"objective": lambda model, x, y: model(x).sum()}),
        ("no Loss", {"objective": lambda model, x, y: train.Loss(model(x), {})}),
        (
            "named 'rate'",
            {"objective": lambda model, x, y: train.Loss(s := model(x).sum(), {"rate": s})},
        ),
        ("named 'loss'", {"evaluate": lambda model: {"loss": 1.0}}),
        ("without slashes", {"evaluate": lambda model: {"test/loss": 1.0}}),
        ("named 'data'", {"evaluate": lambda model: {"data": 1.0}}),
        ("expected numbers by name", {"evaluate": lambda model: 0.5}),
        ("expected numbers by name", {"evaluate": lambda model: {"a": torch.zeros(2)}}),
        ("no parameters", {"model": nn.Identity()}),
    ]
    for match, options in cases:
        with pytest.raises(InputError, match=match):
            run(**options)


def test_names_that_change_on_the_way_are_refused():
    def fickle(model, x, labels):
        loss = OBJECTIVE(model, x, labels)
        return loss if len(calls) < 5 else train.Loss(loss.total, {"other": loss.total})

    calls = []
    with pytest.raises(InputError, match="same each time"):
        run(objective=fickle, batches=lambda step: calls.append(step) or Points()(step))
    with pytest.raises(InputError, match="same names each time"):
        names = iter("ab")
        run(evaluate=lambda model: {next(names): 1.0})
