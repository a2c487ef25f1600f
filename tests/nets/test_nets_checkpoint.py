"""Checkpoints that were damaged, edited, or written for a network with other options."""

import copy
import json
import tomllib
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.torch_version import TorchVersion  # noqa: E402
from trainings import Points, assert_same, crash, network, refused, run  # noqa: E402

from wflow import InputError  # noqa: E402
from wflow._core import memory  # noqa: E402
from wflow.nets import checks, train  # noqa: E402
from wflow.nets.models.gpt import GPT  # noqa: E402
from wflow.nets.training.checkpoint import digests, sealed  # noqa: E402


def edited(path, **changes):
    """A changed file whose digests were computed again."""
    content = torch.load(path, weights_only=True) | changes
    content.pop("digests", None)
    torch.save(sealed(content), path)


def missing(field, *names):
    """What the checkpoint of `run` holds under a name, less some of it."""
    return lambda saved: {field: {k: v for k, v in saved[field].items() if k not in names}}


def weights(changes):
    """Other weights than the checkpoint of `run` holds."""
    return lambda saved: {"model": saved["model"] | changes}


def recorded(**changes):
    """Another history than the checkpoint of `run` holds."""
    return lambda saved: {"history": saved["history"] | changes}


def moved(place, **changes):
    """Another state of the optimiser at a parameter; a function takes the state that was there."""

    def change(saved):
        optimizer = copy.deepcopy(saved["optimizer"])
        state = optimizer["state"][place]
        for name, value in changes.items():
            state[name] = value(state[name]) if callable(value) else value
        return {"optimizer": optimizer}

    return change


def states(change):
    """Other entries in the state of the optimiser: change(entries)."""

    def changed(saved):
        optimizer = copy.deepcopy(saved["optimizer"])
        change(optimizer["state"])
        return {"optimizer": optimizer}

    return changed


def tampered(values):
    """A tensor whose first entry is below zero."""
    return torch.full_like(values, 1.0).index_fill(0, torch.tensor([0]), -1.0)


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("KeyError: 'rows'", lambda saved: {"history": {}}),
        ("its history is int", lambda saved: {"history": 3}),
        ("KeyError: 'places'", missing("history", "places")),
        ("rows of history", lambda saved: {"step": saved["step"] - 1}),
        ("its step is float", lambda saved: {"step": 12.0}),
        ("damaged", lambda saved: {"history": saved["history"] | {"columns": ["loss"]}}),
        ("damaged", lambda saved: {"history": saved["history"] | {"rows": torch.zeros(12)}}),
        ("its config is no JSON", lambda saved: {"config": "{"}),
        ("its config is no configuration", lambda saved: {"config": "[]"}),
        ("its config is dict", lambda saved: {"config": {}}),
        ("its description is int", lambda saved: {"description": 1}),
        ("has no idle", lambda saved: {"optimizer": {}}),
        ("KeyError: 'param_groups'", missing("optimizer", "param_groups")),
        ("its optimizer is list", lambda saved: {"optimizer": []}),
        (
            "had other parameters",
            lambda saved: {"optimizer": saved["optimizer"] | {"param_groups": []}},
        ),
        ("KeyError: 'state'", missing("optimizer", "state")),
        ("exp_avg of parameter 1", moved(1, exp_avg=torch.zeros(7))),
        ("step is -1 of 12", lambda saved: {"step": -1}),
        ("step is 0 of 12", lambda saved: {"step": 0}),
        ("step is 9999 of 12", lambda saved: {"step": 9999}),
        ("12 steps were done", recorded(rows=torch.zeros(11, 6, dtype=torch.float64))),
        ("torch.float32", recorded(rows=torch.zeros(12, 6))),
        ("one name twice", recorded(columns=["loss"] * 6)),
        ("evaluations after .*13", recorded(evaluated=[0, 5, 10, 13])),
        ("evaluations after", recorded(evaluated=[0, 10, 5, 12])),
        ("names that are no text", recorded(names=[1])),
        ("none of a training", recorded(peak_memory=1.5)),
        ("no text", recorded(places=[torch.zeros(2)])),
        ("not finite", weights({"0.weight": torch.full((16, 6), torch.nan)})),
        ("0.weight is torch.float64", weights({"0.weight": torch.ones(16, 6).double()})),
        ("0.weight is no tensor but str", weights({"0.weight": "words"})),
        ("exp_avg of parameter 0 is torch.float64", moved(0, exp_avg=torch.Tensor.double)),
        ("exp_avg_sq of parameter 2 is str", moved(2, exp_avg_sq="words")),
        ("exp_avg_sq of parameter 0 is below 0", moved(0, exp_avg_sq=tampered)),
        ("exp_avg_sq of parameter 0 is below 0", moved(0, exp_avg_sq=lambda v: v * torch.nan)),
        ("exp_avg of parameter 0 is not finite", moved(0, exp_avg=lambda v: v * torch.inf)),
        ("step of parameter 3 is 13", moved(3, step=torch.tensor(13.0))),
        ("step of parameter 3 is -1", moved(3, step=torch.tensor(-1.0))),
        ("step of parameter 3 is nan", moved(3, step=torch.tensor(torch.nan))),
        ("step of parameter 3 is torch.int64", moved(3, step=torch.tensor(12))),
        ("not Adam's state", moved(3, extra=torch.tensor(12))),
        ("not Adam's state", states(lambda entries: entries[0].pop("step"))),
        ("too many states, or too few", states(lambda entries: entries.pop(2))),
        ("too many states, or too few", states(lambda entries: entries.update({9: entries[1]}))),
        ("TypeError", states(lambda entries: entries.update({"words": entries[1]}))),
        ("TypeError", states(lambda entries: entries.update({1: 3}))),
        ("its model is int", lambda saved: {"model": 3}),
        ("0.weight is no tensor but int", weights({"0.weight": 3})),
        ("extra is no tensor but int", weights({"extra": 3})),
    ],
)
def test_an_edited_checkpoint_is_refused_and_nothing_changes(words, change, tmp_path, saved_run):
    path = tmp_path / train.CHECKPOINT
    path.write_bytes(saved_run)
    edited(path, **change(torch.load(path, weights_only=True)))
    refused(tmp_path, rf"checkpoint\.pt.*{words}", model=network(9), resume=True)


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    run(folder)
    return (folder / train.CHECKPOINT).read_bytes()


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("model", {"model": 3}),
        ("NoneType", {"model": None}),
        ("tensor", {"model": {"0.weight": "words"}}),
        ("description", {"description": 3}),
        ("JSON", {"description": "{"}),
    ],
)
def test_an_edited_file_of_weights_is_refused_and_nothing_changes(match, changes, tmp_path):
    path, model = tmp_path / "w.pt", network()
    train.save_model(path, network(1), "words")
    edited(path, **changes)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=rf"w\.pt.*{match}"):
        train.load_model(path, model)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_checkpoint_of_a_network_with_other_options_is_refused(tmp_path):
    def gpt(**options):
        torch.manual_seed(0)
        return GPT(vocabulary=7, context=4, width=8, depth=1, heads=2, **options)

    def batches(step):
        tokens = torch.arange(2 * 5).reshape(2, 5) % 7
        return tokens[:, :-1], tokens[:, 1:]

    settings = train.TrainConfig(steps=1, batch=2, device="cpu")
    loss = train.objective(train.cross_entropy)
    train.train(gpt(), loss, batches, settings, out=tmp_path)
    with pytest.raises(InputError, match="skip=False"):
        train.train(gpt(skip=False), loss, batches, settings, out=tmp_path, resume=True)


def test_state_of_another_precision_is_refused_both_ways(tmp_path):
    def wide():
        return network().double()

    def batches(step):
        x, labels = Points()(step)
        return x.double(), labels

    run(tmp_path, model=wide(), batches=batches, evaluate=None)
    path = tmp_path / train.CHECKPOINT
    edited(path, **moved(0, exp_avg_sq=torch.Tensor.float)(torch.load(path, weights_only=True)))
    words = r"checkpoint\.pt.*exp_avg_sq of parameter 0 is torch.float32 .*expected torch.float64"
    refused(tmp_path, words, model=wide(), batches=batches, evaluate=None, resume=True)


def test_every_tensor_and_every_field_has_a_digest(tmp_path, saved_run):
    path = tmp_path / train.CHECKPOINT
    path.write_bytes(saved_run)
    whole = torch.load(path, weights_only=True)
    names = {f"model/{name}" for name in whole["model"]} | {"history/rows", "history/values"}
    names |= {
        f"optimizer/state/{k}/{name}"
        for k in range(4)
        for name in ("step", "exp_avg", "exp_avg_sq")
    }
    assert set(whole["digests"]) == names | set(whole) - {"digests"}
    changes = {
        "model/0.weight": {"model": whole["model"] | {"0.weight": -whole["model"]["0.weight"]}},
        "history/rows": recorded(rows=whole["history"]["rows"] + 1)(whole),
        "optimizer/state/1/exp_avg": moved(1, exp_avg=torch.zeros(16))(whole),
        "step": {"step": 11},
        "format": {"format": "wflow-model/3"},
        "config": {"config": whole["config"].replace('"seed": 0', '"seed": 1')},
        "extra": {"extra": 1},
        "the table of digests": {"digests": None},
    }
    for name, change in changes.items():
        torch.save(whole | change, path)
        refused(tmp_path, rf"checkpoint\.pt.* {name} does not have the SHA-256", resume=True)
        with pytest.raises(InputError, match="SHA-256"):
            train.load_model(path, network())
        with pytest.raises(InputError, match="SHA-256"):
            train.restore(path)


def test_digests_tell_values_apart_by_their_bits_and_types():
    values = [0.0, -0.0, 0, False, None, "", "0", [], (), {}, [0], [[0]], (0,), {0: 0}, {"0": 0}]
    values += [float("nan"), [1, [2]], [[1], 2], ["ab", "c"], ["a", "bc"], "\ud800", 10**5000]
    values += [torch.zeros(1), -torch.zeros(1), torch.zeros(1, 1), torch.zeros(2)]
    values += [torch.zeros(1).double(), torch.zeros(0), torch.zeros(0, 2), torch.tensor(0.0)]
    values += [torch.zeros(4, dtype=torch.int8), torch.zeros(4, dtype=torch.bool)]
    values += [torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.complex64)]
    found = [digests({"x": value})["x"] for value in values]
    assert len(set(found)) == len(values)


def test_digests_depend_on_contents_alone():
    rows = torch.arange(12.0).reshape(3, 4)
    one = {"x": {"a": rows, "b": [1, rows[0]]}}
    other = {"x": {"b": [1, rows[0].clone()], "a": rows.T.contiguous().T}}
    assert digests(one) == digests(other)
    assert digests({"x": torch.zeros(1).expand(2).contiguous()}) == digests({"x": torch.zeros(2)})


def nested(depth):
    """Lists in lists, each of which holds the next one twice: small in a file, huge as a tree."""
    found = [0]
    for _ in range(depth):
        found = [found, found]
    return found


@pytest.mark.parametrize("content", [nested(14), nested(30)])
def test_a_small_file_that_is_huge_when_read_is_refused(content, tmp_path):
    torch.save({"format": "wflow-model/3", "model": content, "digests": {}}, tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"w\.pt.*(more entries|too many levels)"):
        train.load_model(tmp_path / "w.pt", network())


def test_a_compressed_file_is_refused_before_it_is_unpacked(tmp_path):
    train.save_model(tmp_path / "w.pt", network())
    with (
        zipfile.ZipFile(tmp_path / "w.pt") as whole,
        zipfile.ZipFile(tmp_path / "z.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for entry in whole.infolist():
            packed.writestr(entry.filename, whole.read(entry))
    with pytest.raises(InputError, match=r"z\.pt"):
        train.load_model(tmp_path / "z.pt", network())


def test_a_whole_file_that_memory_has_no_room_for_is_not_called_damaged(tmp_path, monkeypatch):
    train.save_model(tmp_path / "w.pt", network())
    monkeypatch.setattr(memory, "SMALL", 0)
    monkeypatch.setattr(memory, "free_memory", lambda: 10)
    with pytest.raises(InputError, match=r"w\.pt") as caught:
        train.load_model(tmp_path / "w.pt", network())
    assert "damaged" not in str(caught.value) and "again" not in str(caught.value)


def test_a_tensor_that_repeats_its_memory_is_saved_in_full(tmp_path):
    model, other = network(), network(1)
    for one in (model, other):
        one.register_buffer("mask", torch.ones(1).expand(3, 4))
    train.save_model(tmp_path / "w.pt", model)
    other.mask = torch.zeros(3, 4)
    train.load_model(tmp_path / "w.pt", other)
    assert torch.equal(other.mask, torch.ones(3, 4))


# --- files of earlier versions ---------------------------------------------------------------


def aged(path):
    """A file as version 0.1.0 wrote it, without digests."""
    content = torch.load(path, weights_only=True)
    content["format"] = content["format"].replace("/3", "/1")
    for name in ("digests", "network"):
        content.pop(name)
    content.get("optimizer", {}).pop("idle", None)
    torch.save(content, path)


def test_files_without_digests_load_and_say_so(tmp_path):
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, batches=Points(fault=crash, at=9))
    train.save_model(tmp_path / "w.pt", network(3), "words")
    for name in (train.CHECKPOINT, "w.pt"):
        aged(tmp_path / name)
    model = network()
    with pytest.warns(UserWarning, match="digests"):
        assert train.load_model(tmp_path / "w.pt", model) == "words"
    assert torch.equal(model[0].weight, network(3)[0].weight)
    with pytest.warns(UserWarning, match="digests"):
        resumed = run(tmp_path, model=network(9), resume=True)
    assert_same(resumed, run())
    assert torch.load(tmp_path / train.CHECKPOINT, weights_only=True)["format"].endswith("/3")


def test_an_edited_file_without_digests_is_refused_by_its_form(tmp_path):
    run(tmp_path)
    path = tmp_path / train.CHECKPOINT
    aged(path)
    torch.save(torch.load(path, weights_only=True) | {"step": 9999}, path)
    with pytest.warns(UserWarning, match="no digests"):
        refused(tmp_path, r"checkpoint\.pt.*step is 9999 of 12", resume=True)


def test_parameters_that_share_memory_in_a_file_do_not_share_it_after_a_resume(tmp_path):
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, batches=Points(fault=crash, at=9))
    path = tmp_path / train.CHECKPOINT
    optimizer = torch.load(path, weights_only=True)["optimizer"]
    for state in optimizer["state"].values():
        state["step"] = optimizer["state"][0]["step"]
    edited(path, optimizer=optimizer)
    assert_same(run(tmp_path, model=network(9), resume=True), run())


def test_a_parameter_without_a_gradient_is_idle_and_resumes(tmp_path):
    def partly(seed=0):
        model = network(seed)
        model.unused = torch.nn.Linear(2, 2)
        model.forward = lambda x: model[3](model[2](model[1](model[0](x))))
        return model

    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, model=partly(), batches=Points(fault=crash, at=9))
    assert torch.load(tmp_path / train.CHECKPOINT, weights_only=True)["optimizer"]["idle"]
    run(tmp_path, model=partly(9), resume=True)


def test_an_old_torch_reads_no_file_in_which_code_could_run(tmp_path, monkeypatch):
    """The bound of the extras is that of the check, and both ways to a pickle go through it."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = [entry for extra in project["optional-dependencies"].values() for entry in extra]
    bounds = {entry for entry in extras if entry.startswith("torch")}
    assert bounds == {f"torch>={checks.SAFE_TORCH}"}
    train.save_model(tmp_path / "weights.pt", network(3))
    config = {"model_type": "gpt2", "n_head": 1, "n_embd": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save({}, tmp_path / "pytorch_model.bin")
    train.load_model(tmp_path / "weights.pt", network(4))
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.9.1+cpu"))
    for read in (
        lambda: train.load_model(tmp_path / "weights.pt", network(4)),
        lambda: GPT.from_pretrained(tmp_path),
    ):
        with pytest.raises(InputError, match=r"2\.10"):
            read()
