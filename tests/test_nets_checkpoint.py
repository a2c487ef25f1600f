"""Checkpoints that were damaged, edited, or written for a network with other options."""

import copy

import pytest

torch = pytest.importorskip("torch")

from trainings import network, refused, run  # noqa: E402

from wflow.errors import InputError  # noqa: E402
from wflow.nets import train  # noqa: E402
from wflow.nets.gpt import GPT  # noqa: E402


def edited(path, **changes):
    """A checkpoint in which somebody changed something."""
    torch.save(torch.load(path, weights_only=True) | changes, path)


def missing(field, *names):
    """What the checkpoint of `run` holds under a name, less some of it."""
    return lambda saved: {field: {k: v for k, v in saved[field].items() if k not in names}}


def weights(changes):
    """Other weights than the checkpoint of `run` holds."""
    return lambda saved: {"model": saved["model"] | changes}


def misshapen(saved):
    state = copy.deepcopy(saved["optimizer"])
    state["state"][1]["exp_avg"] = torch.zeros(7)
    return {"optimizer": state}


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("KeyError: 'columns'", lambda saved: {"history": {}}),
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
        ("KeyError: 'param_groups'", lambda saved: {"optimizer": {}}),
        ("its optimizer is list", lambda saved: {"optimizer": []}),
        ("had other parameters", lambda saved: {"optimizer": {"param_groups": [], "state": {}}}),
        ("KeyError: 'state'", missing("optimizer", "state")),
        ("exp_avg of parameter 1", misshapen),
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
        ("its model is int", {"model": 3}),
        ("its model is NoneType", {"model": None}),
        ("no tensor but str", {"model": {"0.weight": "words"}}),
        ("its description is int", {"description": 3}),
        ("its description is no JSON", {"description": "{"}),
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
    with pytest.raises(InputError, match="'skip=True' in the file, 'skip=False' in the model"):
        train.train(gpt(skip=False), loss, batches, settings, out=tmp_path, resume=True)
