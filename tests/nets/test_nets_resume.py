"""Interrupted trainings: how they are resumed, what is kept, and what is refused."""

import functools
import json
import pickle
import signal

import numpy as np
import pytest
import xarray

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from trainings import (  # noqa: E402
    FILES,
    OBJECTIVE,
    Body,
    Points,
    assert_same,
    bytes_of,
    crash,
    network,
    refused,
    run,
    terminate,
)

from wflow import (  # noqa: E402
    InputError,
    Interrupted,
    nets,
)
from wflow.nets import train  # noqa: E402
from wflow.nets.data.batches import EpochBatches  # noqa: E402
from wflow.nets.training import identity  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("at", [3, 4, 10])
def test_a_crashed_training_resumes_to_the_same_curve_to_the_bit(tmp_path, at):
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, batches=Points(fault=crash, at=at))
    assert (tmp_path / train.CHECKPOINT).exists() == (at >= 4)
    assert_same(run(tmp_path, model=network(9 if at >= 4 else 0), resume=True), run())


def sources():
    """Return batches whose rows, order or pixels are drawn, each with a network for them."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(14) % 3
    texts = [torch.full((1 + 5 * k % 7,), 1 + k % 9) for k in range(14)]
    pixels = torch.rand(14, 3, 8, 8, generator=draw)
    points, counts = torch.randn(14, 9, 3, generator=draw), torch.arange(14) % 5 + 5
    sizes = {"classes": 3, "width": 8, "heads": 2}
    return {
        "texts": (
            lambda: nets.data.TextBatches(texts, labels, batch=4, context=6, bucket=2, seed=1),
            lambda: nets.TextClassifier(vocabulary=11, context=6, depth=1, dropout=0.1, **sizes),
        ),
        "crops": (
            lambda: nets.data.ImageBatches(
                pixels, labels, batch=4, seed=1, augment=nets.data.RandomCrops(seed=1)
            ),
            lambda: nets.ViT(image=(3, 8, 8), patch=4, depth=1, **sizes),
        ),
        "clouds": (
            lambda: nets.data.CloudBatches(
                points, counts, labels, batch=4, points=6, seed=1,
                augment=nets.data.RandomPoses(seed=1),
            ),
            lambda: nets.SetTransformer(features=3, inducing=2, **sizes),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["texts", "crops", "clouds"])
def test_a_training_on_drawn_batches_resumes_in_the_middle_of_an_epoch(tmp_path, name, monkeypatch):
    batches, made = sources()[name]

    def trained(**options):
        torch.manual_seed(0)
        config = train.TrainConfig(steps=8, batch=4, checkpoint_every=2, device="cpu")
        model = made()
        objective = train.objective(train.cross_entropy)
        return model, train.train(model, objective, batches(), config, **options)

    whole = trained()
    real, at = EpochBatches.__call__, 5  # epochs have three steps

    def until(self, step):
        return real(self, step) if step < at else crash()

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        patch.setattr(EpochBatches, "__call__", until)
        trained(out=tmp_path)
    assert_same(trained(out=tmp_path, resume=True), whole)


def test_a_crash_between_the_parts_of_a_batch_leaves_nothing_behind(tmp_path):
    model, calls = network(), []

    def fragile(net, *batch):
        calls.append(batch)
        if len(calls) == 12:  # the second part of a step
            crash()
        return OBJECTIVE(net, *batch)

    options = {"config": {"accumulate": 2}, "objective": fragile}
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, model=model, **options)
    assert any(p.grad is not None for p in model.parameters())
    assert_same(run(tmp_path, model=model, resume=True, **options), run(**options))


@pytest.mark.parametrize("at", [0, 6])
def test_a_signal_ends_a_training_after_the_step_and_it_resumes(tmp_path, at):
    with pytest.raises(Interrupted, match=f"SIGTERM.*after step {at + 1} of 12.*resume") as caught:
        run(tmp_path, batches=Points(fault=terminate, at=at))
    assert caught.value.signum == signal.SIGTERM
    with xarray.open_dataset(tmp_path / train.METRICS, engine="h5netcdf") as partial:
        assert partial.sizes["step"] == at + 1 and partial.attrs["complete"] == 0
    assert_same(run(tmp_path, model=network(9), resume=True), run())


def test_a_signal_in_the_last_step_leaves_a_whole_training(tmp_path):
    with pytest.raises(Interrupted, match="whole"):
        run(tmp_path, batches=Points(fault=terminate, at=11))
    assert_same(run(tmp_path, batches=Points(fault=crash, at=11), resume=True), run())


def test_a_finished_training_is_read_and_not_done_again(tmp_path):
    done = run(tmp_path)
    (tmp_path / train.METRICS).unlink()  # the kill came before it
    again = run(tmp_path, model=network(9), batches=Points(fault=crash, at=0), resume=True)
    assert_same(done, again)
    xarray.testing.assert_identical(done[1], again[1])
    assert (tmp_path / train.METRICS).exists()


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
        run(tmp_path, batches=Points(fault=crash, at=8), resume=True)
    text = json.loads((tmp_path / train.METRICS_JSON).read_text())
    assert text["steps_done"] == 8 and text["evaluation"] == [0, 5]
    assert_same(run(tmp_path, resume=True), run())


def test_a_disk_that_fills_up_keeps_the_checkpoint(tmp_path, monkeypatch):
    save = torch.save

    def fill(content, draft):
        save(content, draft)
        if content["step"] == 8:
            draft.truncate(1000)
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fill)
        with pytest.raises(InputError, match="No space left"):
            run(tmp_path)
    assert sorted(bytes_of(tmp_path)) == sorted(FILES)
    assert torch.load(tmp_path / train.CHECKPOINT, weights_only=True)["step"] == 4
    assert_same(run(tmp_path, resume=True), run())


def test_readings_that_wait_change_nothing_and_name_the_right_step(tmp_path, monkeypatch):
    def seldom(self, caught):
        return self.done % 6 == 0

    each = run()
    monkeypatch.setattr(train._Run, "_reading_due", seldom)
    # Savings and evaluations come with readings, as they do on a GPU.
    every = {"checkpoint_every": 6, "evaluate_every": 6}
    assert np.array_equal(run(config=every)[1]["loss"], each[1]["loss"])
    with pytest.raises(train.NonFiniteLossError) as caught:
        run(batches=WithNaN(at=8), config=every)
    assert caught.value.step == 8 and caught.value.history.sizes["step"] == 9


# --- what is not finite ----------------------------------------------------------------------


class WithNaN(Points):
    """Points with one that is not a number in one step."""

    def __call__(self, step):
        x, labels = Points(self.batch, self.seed)(step)
        if step == self._at:
            x[3, 2] = float("nan")
        return x, labels


def test_a_loss_that_is_not_finite_stops_with_its_step_and_keeps_the_checkpoint(tmp_path):
    with pytest.raises(train.NonFiniteLossError, match="step 6: loss nan") as caught:
        run(tmp_path, batches=WithNaN(at=6))
    assert caught.value.step == 6
    assert np.isnan(caught.value.loss) and np.isnan(caught.value.gradient_norm)
    assert caught.value.history["loss"].notnull().values.tolist() == [True] * 6 + [False]
    saved = torch.load(tmp_path / train.CHECKPOINT, weights_only=True)
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


def test_existing_results_are_kept_unless_overwrite_is_asked(tmp_path):
    old = run(tmp_path)
    refused(tmp_path, r"checkpoint\.pt exists.*resume.*overwrite")
    refused(tmp_path, "choose one", resume=True, overwrite=True)
    refused(tmp_path, "rows", overwrite=True, batches=Points(batch=7))  # before it is replaced
    new = run(tmp_path, overwrite=True, config={"seed": 4})
    assert not np.array_equal(old[1]["loss"], new[1]["loss"])
    with xarray.open_dataset(tmp_path / train.METRICS, engine="h5netcdf") as read:
        xarray.testing.assert_identical(read.load(), new[1])
    (tmp_path / train.CHECKPOINT).unlink()
    refused(tmp_path, r"metrics\.h5 exists")
    refused(tmp_path, r"checkpoint\.pt does not exist", resume=True)


def test_a_checkpoint_of_another_configuration_is_refused_by_name(tmp_path):
    run(tmp_path)
    nll = train.objective(functional.nll_loss, 0.1)
    cases = {
        r"steps \(12 there, 13 here\)": {"config": {"steps": 13}},
        r"schedule\.least \(0\.001 there, 0\.0 here\)": {
            "config": {"schedule": train.Cosine(1e-2, 0.0, 2, 12)}
        },
        "accumulate": {"config": {"accumulate": 2}},
        "clip": {"config": {"clip": None}},
        "betas": {"config": {"betas": (0.9, 0.99)}},
        r"objective\.weight": {"objective": train.objective(functional.cross_entropy, 0.2)},
        r"objective\.loss": {"objective": nll},
        r"batches\.seed": {"batches": Points(seed=1)},
        r"batches\.kind": {"batches": WithNaN()},
    }
    for field, changes in cases.items():
        refused(tmp_path, field, resume=True, **changes)


def entropy(**options):
    return train.objective(functools.partial(functional.cross_entropy, **options))


WEIGHTS = torch.ones(3), torch.arange(3.0)
LOSSES = {
    r"objective\.kind": (functools.partial(OBJECTIVE), OBJECTIVE),
    r"objective\.loss\.keywords\.label_smoothing \(0\.1 there, 0\.2 here\)": (
        entropy(label_smoothing=0.1), entropy(label_smoothing=0.2)
    ),
    r"objective\.loss\.keywords\.weight .*sha256": [entropy(weight=one) for one in WEIGHTS],
    r"objective\.loss\.weight .*sha256": [
        train.objective(nn.CrossEntropyLoss(weight=one)) for one in WEIGHTS
    ],
}  # fmt: skip


@pytest.mark.parametrize("words", LOSSES)
def test_a_checkpoint_of_another_loss_is_refused_by_name(tmp_path, words):
    before, after = LOSSES[words]
    run(tmp_path, objective=before, config={"steps": 4})
    refused(tmp_path, words, objective=after, config={"steps": 4}, resume=True)
    run(tmp_path, objective=before, config={"steps": 4}, resume=True)


def test_a_checkpoint_of_another_network_is_refused_by_name(tmp_path):
    run(tmp_path / "a")
    run(tmp_path / "b", model=Body(steps=3))
    for folder, words, model in (
        ("a", r"0\.weight is torch\.float32 \(16, 6\)", network(width=8)),
        ("a", r"0\.weight.*torch\.float64", network().double()),
        ("a", r"Dropout\(p=0\.2.*Dropout\(p=0\.3", network(dropout=0.3)),
        ("b", "steps=3.*steps=4", Body(steps=4)),
    ):
        refused(tmp_path / folder, words, model=model, resume=True)


def test_options_of_computing_may_change_at_a_resume(tmp_path):
    with pytest.raises(RuntimeError):
        run(tmp_path, batches=Points(fault=crash, at=9))
    changed = run(tmp_path, config={"checkpoint_every": 3, "device": "auto"}, resume=True)
    if not torch.cuda.is_available():
        assert np.array_equal(changed[1]["loss"], run()[1]["loss"])


def test_of_two_trainings_at_once_in_one_folder_one_is_refused(tmp_path):
    refused = []

    def second():
        with pytest.raises(InputError) as caught:
            run(tmp_path / "net", resume=True)
        refused.append(str(caught.value))

    assert_same(run(tmp_path / "net", batches=Points(fault=second, at=6)), run())
    assert str(tmp_path / "net") in refused[0]


def test_a_folder_that_cannot_be_made_or_was_not_given_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for out, options in (
        (tmp_path / "file", {}), (None, {"resume": True}), (None, {"overwrite": True}),
        (None, {"tensorboard": True}),
    ):  # fmt: skip
        with pytest.raises(InputError, match=r"cannot make|give out"):
            run(out, **options)


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
    with pytest.raises(InputError, match="names"):
        names = iter("ab")
        run(evaluate=lambda model: {next(names): 1.0})


def test_arrays_of_any_layout_and_type_identify_an_objective():
    odd = [np.array([1.0]).astype(">f8"), np.arange(4)[::-1], np.array(["a"]), np.array([1j])]
    found = [identity.named(functools.partial(abs, x))["arguments"] for x in odd]
    sparse = identity.named(functools.partial(abs, torch.eye(2).to_sparse()))
    assert len({str(each) for each in found}) == 4 and "sha256" in str(sparse)
