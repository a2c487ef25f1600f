"""Invalid arguments of networks and trainings, and their messages."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from trainings import network, run  # noqa: E402

from wflow import InputError, nets  # noqa: E402
from wflow.nets import blocks, diagnostics, particles, train  # noqa: E402

SIZES = {"width": 8, "heads": 2}
GPT = SIZES | {"vocabulary": 7, "context": 5, "depth": 1}
VIT = SIZES | {"image": (1, 4, 4), "patch": 2}
SETS = SIZES | {"features": 3, "classes": 3, "inducing": 2}
SETTINGS = {"steps": 2, "batch": 4}
BLOCKS = [blocks.Block(8, 2)]

SWITCHES = [
    *((blocks.Attention, SIZES, name) for name in ("causal", "bias", "qkv_bias", "project")),
    (blocks.FeedForward, {"width": 8, "hidden": 8}, "bias"),
    *((blocks.Block, SIZES, name) for name in ("causal", "norm", "bias", "qkv_bias", "project")),
    (blocks.Block, SIZES, "skip"),
    *((nets.GPT, GPT, name) for name in ("norm", "bias", "skip")),
    *((nets.ViT, VIT, name) for name in ("qkv_bias", "project", "skip")),
    *((nets.TextClassifier, GPT | {"classes": 3}, name) for name in ("norm", "skip")),
    *((nets.SetTransformer, SETS, name) for name in ("norm", "skip")),
    (nets.ContinuousTransformer, {"blocks": BLOCKS}, "checkpointing"),
    (nets.NodeTransformer, {"blocks": BLOCKS}, "checkpointing"),
    (train.TrainConfig, SETTINGS, "compile"),
    *((run, {}, name) for name in ("resume", "overwrite", "tensorboard")),
]


@pytest.mark.parametrize(("make", "given", "name"), SWITCHES)
@pytest.mark.parametrize("value", ["False", "no", 0, 1.0, [], np.int64(1)])
def test_a_switch_is_true_or_false(make, given, name, value):
    with pytest.raises(InputError, match=f"{name} is .*expected True or False"):
        make(**given, **{name: value})


@pytest.mark.parametrize(("make", "given", "name"), SWITCHES[:-4])
def test_a_switch_of_numpy_is_one(make, given, name):
    sized = {} if name != "project" else {"head_width": 4}
    found = make(**given, **sized, **{name: np.True_})
    if isinstance(found, nn.Module):
        assert str(found) == str(make(**given, **sized, **{name: True}))


@pytest.mark.parametrize(
    ("make", "given", "name"),
    [
        (blocks.Attention, SIZES, "heads"),
        (nets.GPT, GPT, "vocabulary"),
        (nets.GPT, GPT, "depth"),
        (nets.ViT, VIT, "patch"),
        (nets.ContinuousTransformer, {"blocks": BLOCKS}, "steps"),
        (nets.ContinuousTransformer, {"blocks": BLOCKS}, "batch_dim"),
        (train.TrainConfig, SETTINGS, "steps"),
        (train.TrainConfig, SETTINGS, "checkpoint_every"),
        (train.Constant, {}, "rate"),
        (train.StepDecay, {"boundaries": ()}, "rates"),
        (train.TrainConfig, SETTINGS, "betas"),
        (train.TrainConfig, SETTINGS, "device"),
    ],
)
@pytest.mark.parametrize("value", [True, "3", 2.5j, None, np.array([3])])
def test_a_number_is_a_number(make, given, name, value):
    if (name, type(value)) in (("device", str), ("rates", np.ndarray)):
        return  # what these are
    with pytest.raises(InputError):
        make(**given | {name: value})


def test_sizes_beyond_memory_are_refused():
    for make, given, name in (
        (nets.GPT, GPT, "vocabulary"),
        (nets.ViT, VIT, "classes"),
        (blocks.FeedForward, {"width": 8, "hidden": 8}, "hidden"),
        (blocks.TokenEmbedding, {"vocabulary": 7, "context": 5, "width": 8}, "context"),
    ):
        for size in (2**60, 10**30):
            with pytest.raises(InputError, match=r"sizes that fit into the memory|below 2\^63"):
                make(**given | {name: size})


def test_a_missing_argument_is_said_by_its_name():
    with pytest.raises(TypeError, match="vocabulary"):
        nets.GPT(width=8)


def test_inputs_of_another_precision_are_refused_unless_autocast_is_on():
    net = nets.ViT(**VIT)
    wide = torch.zeros(2, 1, 4, 4, dtype=torch.float64)
    with pytest.raises(InputError, match=r"torch\.float32"):
        net(wide)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert net(torch.zeros(2, 1, 4, 4, dtype=torch.bfloat16)).output.isfinite().all()
    with pytest.raises(InputError, match="meta"):
        net(torch.zeros(2, 1, 4, 4, device="meta"))
    assert nets.ViT(**VIT).to("meta")(torch.zeros(2, 1, 4, 4, device="meta")).output.is_meta


def test_an_empty_batch_of_hidden_states_is_refused():
    with pytest.raises(InputError, match=r"\(0, 4, 8\)"):
        nets.ContinuousTransformer(BLOCKS)(torch.zeros(0, 4, 8))


def test_masked_arrays_and_texts_are_no_tensors():
    masked = np.ma.masked_array([1.0, 2.0], [True, False])
    for value in (masked, "words", np.zeros((2, 3)), [[1.0, 2.0]]):
        with pytest.raises(InputError, match="x is"):
            diagnostics.lipschitz(nn.Linear(3, 2), value)
    with pytest.raises(InputError, match="masked"):
        particles.head_law(nets.GPT(**GPT), radius=np.ma.masked_array([1.0], [True]))


def test_class_numbers_out_of_range_are_refused():
    with pytest.raises(InputError, match=r"expected 0 \.\. classes - 1"):
        train.cross_entropy(torch.zeros(4, 3), torch.tensor([0, 1, 2, 3]))
    with pytest.raises(InputError, match=r"\(4, 3\).*\(3,\)"):
        train.cross_entropy(torch.zeros(4, 3), torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("make", [nets.ContinuousTransformer, nets.NodeTransformer, blocks.Stack])
def test_blocks_that_are_no_networks_are_refused_with_advice(make):
    for given, found in ((3, "blocks is int"), ([3], "a block is int"), (nn.Linear, "blocks is")):
        with pytest.raises(InputError, match=rf"{found}.*expected a torch.nn.Module.*net\.body"):
            make(given)


@pytest.mark.parametrize("batches", [lambda step: None, lambda step: torch.zeros(8, 6), 3])
def test_batches_that_are_no_tuples_are_refused(batches):
    with pytest.raises(InputError, match="batches"):
        run(batches=batches)


@pytest.mark.parametrize(
    "changes", [{"model": 3}, {"objective": 3}, {"evaluate": 3}, {"label": 3}, {"out": 3}]
)
def test_a_training_of_other_things_is_refused(changes):
    options = {"out": None, "model": network()} | changes
    with pytest.raises(InputError, match=next(iter(changes))):
        run(options.pop("out"), options.pop("model"), **options)
