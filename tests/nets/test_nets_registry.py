"""Configurations of networks: written, stored in files, and built into networks."""

import copy
import functools
import json
import tracemalloc

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from torch import nn  # noqa: E402
from trainings import network  # noqa: E402

from wflow import InputError, nets  # noqa: E402
from wflow.nets import train  # noqa: E402
from wflow.nets.blocks import Block  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS = {"vocabulary": 9, "context": 8, "width": 12, "depth": 2, "heads": 3}
KINDS = {
    "ViT": (nets.ViT, {"image": (1, 8, 8), "patch": 4, "width": 8, "depth": 2, "hidden": 9}),
    "GPT": (nets.GPT, TOKENS | {"gelu": "tanh", "bias": True, "dropout": 0.1}),
    "TextClassifier": (nets.TextClassifier, TOKENS | {"classes": 3, "pooling": "max", "pad": 2}),
    "SetTransformer": (
        nets.SetTransformer,
        {"features": 3, "classes": 2, "width": 8, "heads": 2, "inducing": 4, "seeds": 2},
    ),
}
BODIES = {
    "discrete": lambda body: body,
    "continuous": lambda body: nets.ContinuousTransformer(body, 0.5, 3, scheme="heun"),
    "node": lambda body: nets.NodeTransformer(body, steps=2, velocity="residual", cost="sum"),
}


def made(name, body="discrete", seed=0, **changes):
    torch.manual_seed(seed)
    cls, options = KINDS[name]
    net = cls(**options | changes)
    net.body = BODIES[body](net.body)
    return net


def inputs(name):
    generator = torch.Generator().manual_seed(3)
    if name in ("GPT", "TextClassifier"):
        return torch.randint(0, 9, (2, 8), generator=generator)
    return torch.randn((2, 1, 8, 8) if name == "ViT" else (2, 5, 3), generator=generator)


def bits(value):
    return value.contiguous().flatten().view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", KINDS)
def test_a_network_comes_back_bitwise_from_a_file_and_from_a_folder(name, body, dtype, tmp_path):
    net = made(name, body).to(dtype).eval()
    with torch.no_grad():
        next(net.parameters()).view(-1)[:2] = torch.tensor([float("nan"), -0.0])
    train.save_model(tmp_path / "w.pt", net, "words")
    net.save_pretrained(tmp_path / "a" / "net")
    before = torch.get_rng_state()
    both = train.restore(tmp_path / "w.pt"), type(net).from_pretrained(tmp_path / "a" / "net")
    assert torch.equal(torch.get_rng_state(), before)
    x = inputs(name)
    x = x.to(dtype) if x.is_floating_point() else x
    own = net.state_dict()
    for found in both:
        assert type(found) is type(net) and str(found) == str(net)
        assert not any(part.training for part in found.modules())
        assert nets.config(found) == nets.config(net)
        assert len(list(found.parameters())) == len(list(net.parameters()))  # shared stays so
        other = found.state_dict()
        assert list(own) == list(other) and all(own[k].dtype == other[k].dtype for k in own)
        assert all(torch.equal(bits(own[k]), bits(other[k])) for k in own)
        assert torch.equal(bits(net(x).output), bits(found(x).output))


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", KINDS)
def test_a_configuration_gives_its_network_back(name, body):
    net = made(name, body)
    config = nets.config(net)
    assert json.loads(json.dumps(config, allow_nan=False)) == config
    assert config["network"] == name and ("body" in config) == (body != "discrete")
    given = {k: list(v) if isinstance(v, tuple) else v for k, v in KINDS[name][1].items()}
    assert config["arguments"].items() >= given.items()
    if body == "continuous":
        assert config["body"]["arguments"] == {
            "t_final": 0.5, "steps": 3, "scheme": "heun", "velocity": "block", "cost": "mean",
            "checkpointing": False, "batch_dim": 0, "returns": "flow",
        }  # fmt: skip
    again = nets.build(config)
    assert str(again) == str(net) and again.training and nets.config(again) == config


def test_a_checkpoint_of_a_training_gives_its_network_back(tmp_path):
    gpt = made("GPT", "continuous")
    batches = lambda step: (inputs("GPT")[:, :-1], inputs("GPT")[:, 1:])  # noqa: E731
    settings = train.TrainConfig(steps=2, batch=2, device="cpu")
    train.train(gpt, train.objective(train.cross_entropy), batches, settings, out=tmp_path)
    found = train.restore(tmp_path / train.CHECKPOINT, nets.GPT)
    assert found.vocabulary == 9
    assert torch.equal(found(inputs("GPT")).output, gpt.eval()(inputs("GPT")).output)
    with pytest.raises(InputError, match=r"checkpoint\.pt"):
        train.restore(tmp_path / train.CHECKPOINT, nets.ViT)


def test_what_was_changed_at_inference_is_in_the_configuration():
    for body in ("continuous", "node"):
        net = made("ViT", body)
        net.body.steps, net.body.t_final = 7, 2.0
        arguments = nets.config(net)["body"]["arguments"]
        assert (arguments["steps"], arguments["t_final"]) == (7, 2.0)
        assert nets.build(nets.config(net)).body.steps == 7


def test_a_copy_has_the_configuration_and_numbers_of_numpy_are_numbers():
    net = nets.GPT(**TOKENS | {"width": np.int64(12), "dropout": np.float32(0.5)})
    found = nets.config(copy.deepcopy(net))
    assert found["arguments"]["width"] == 12 and type(found["arguments"]["width"]) is int
    assert found["arguments"]["dropout"] == 0.5
    found["arguments"]["width"] = 24
    assert nets.config(net)["arguments"]["width"] == 12


def changed(name, place, value):
    """Return a maker of networks with another value at a dotted place."""

    def make():
        net = made(name)
        *parts, last = place.split(".")
        setattr(functools.reduce(getattr, parts, net), last, value)
        return net

    return make


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (network, "nets.register"),
        (changed("ViT", "body", nn.Identity()), "Stack"),
        (changed("GPT", "embed.dropout", 0.4), r"dropout=0\.1"),
        (changed("GPT", "head.weight", nn.Parameter(torch.zeros(9, 12))), "parameters"),  # shared
        (changed("ViT", "body", nets.ContinuousTransformer([Block(8, 2)])), "ViT was changed"),
        (lambda: nets.ContinuousTransformer([Block(8, 2)]), "missing.*blocks"),
        (lambda: type("Derived", (nets.GPT,), {})(**TOKENS), "Derived is no registered network"),
    ],
)
def test_a_network_without_a_configuration_is_saved_and_says_why_it_cannot_be_restored(
    make, match, tmp_path
):
    net = make()
    with pytest.raises(InputError, match=match):
        nets.config(net)
    train.save_model(tmp_path / "w.pt", net)
    with pytest.raises(InputError, match=rf"w\.pt does not say.*{match}.*load_model"):
        train.restore(tmp_path / "w.pt")
    train.load_model(tmp_path / "w.pt", make())


@nets.register
class Bend(nn.Module):
    """A network of a user, with blocks inside."""

    def __init__(self, width, *, sizes=(2, 3), options=None, **others):
        super().__init__()
        self.width, self.sizes = width, sizes
        self.maps = nn.ModuleList(nn.Linear(width, n) for n in sizes)
        self.body = nets.ContinuousTransformer(nn.Linear(width, width), steps=2)
        self.register_buffer("count", torch.zeros(3, dtype=torch.int64))


@nets.register
class Twice(nn.Module):
    """A body of a user."""

    def __init__(self, inner, times=2):
        super().__init__()
        self.inner, self.times = inner, times

    def forward(self, x, **context):
        for _ in range(self.times):
            x = self.inner(x, **context)
        return x

    def extra_repr(self):
        return f"times={self.times}"


def test_classes_and_bodies_of_users_are_restored_by_name(tmp_path):
    net = Bend(4, sizes=[3, 1], options={"a": [1, None, "x"]}, more=2.5)
    net.count += 2**40
    train.save_model(tmp_path / "w.pt", net)
    found = train.restore(tmp_path / "w.pt", Bend)
    assert torch.equal(found.count, net.count) and found.sizes == [3, 1]
    assert nets.config(found) == {
        "network": "Bend",
        "arguments": {"width": 4, "sizes": [3, 1], "options": {"a": [1, None, "x"]}, "more": 2.5},
    }
    vit = made("ViT")
    vit.body = Twice(vit.body, 3)
    train.save_model(tmp_path / "v.pt", vit)
    found = train.restore(tmp_path / "v.pt")
    assert isinstance(found.body, Twice) and found.body.times == 3
    assert torch.equal(found(inputs("ViT")).output, vit.eval()(inputs("ViT")).output)


@nets.register
class Shy(nn.Linear):
    """A network of a user that cannot be made without values."""

    def __init__(self):
        super().__init__(2, 2)
        if self.weight.sum() > 100:
            raise AssertionError


@nets.register
class Quiet(nn.Module):
    """A network of a user that has no constructor, nor anything else."""


def test_a_network_that_says_nothing_of_itself_does_not_end_a_training(tmp_path):
    before = Quiet.__new__(Quiet)
    nn.Module.__init__(before)
    others = torch.zeros(2), float("nan"), np.float32("inf"), object(), b"x", {1}
    for net, match in (
        (Shy(), "Shy cannot be made of its arguments.*meta"),
        (before, "Quiet was made before"),
        *((Bend(2, options=value), "options of Bend cannot be written") for value in others),
    ):
        train.save_model(tmp_path / "w.pt", net)
        with pytest.raises(InputError, match=rf"w\.pt does not say.*{match}"):
            train.restore(tmp_path / "w.pt")
    train.save_model(tmp_path / "w.pt", Quiet())
    assert isinstance(train.restore(tmp_path / "w.pt"), Quiet)


def test_a_name_belongs_to_one_class_and_only_classes_of_networks_have_one():
    class GPT(nn.Module):
        pass

    with pytest.raises(InputError, match=r"wflow\.nets\.models"):
        nets.register(GPT)
    for value in (3, int, nn.Linear(2, 2), "GPT", None):
        with pytest.raises(InputError, match="networks"):
            nets.register(value)
    assert nets.register(Twice) is Twice


# --- configurations written by others ----------------------------------------------------------


REFUSED = {
    "'os.system'.* names no registered network: expected .*Bend": {"network": "os.system"},
    "{} names no registered network": {"body": {}},
    "a GPT cannot be made of its arguments": {"arguments": None},
    "unexpected keyword argument 'device'": {"arguments": {"device": "cuda"}},
    "width is '12': expected a whole number": {"arguments": {"width": "12"}},
    "scheme is 'magic': expected one of": {"body": {"arguments": {"scheme": "magic"}}},
    "ContinuousTransformer cannot be made .* 'x'": {"body": {"arguments": {"x": 1}}},
    r"embed.token.weight is of shape \(9, 12\) there and of shape \(10, 12\)": {
        "arguments": {"vocabulary": 10}
    },
    r"embed.position.weight .* of shape \(1099511627776, 12\)": {"arguments": {"context": 2**40}},
    "network cannot be made": {"arguments": {"vocabulary": 2**62}},
    r"body.blocks.blocks.1.* is of shape .* absent": {"arguments": {"depth": 1}},
}


def merged(config, changes):
    """Return a configuration with changes at any depth."""
    return config | {
        key: merged(config[key], value) if isinstance(value, dict) and value else value
        for key, value in changes.items()
    }


@pytest.mark.parametrize("match", REFUSED)
def test_a_configuration_that_does_not_fit_is_refused_by_name_and_takes_no_memory(match, tmp_path):
    made("GPT", "continuous").save_pretrained(tmp_path / "net")
    path = tmp_path / "net" / "config.json"
    path.write_text(json.dumps(merged(json.loads(path.read_text()), REFUSED[match])))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=rf"net.*({match})") as error:
            nets.GPT.from_pretrained(tmp_path / "net")
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()
    assert len(str(error.value).splitlines()) == 1


def test_a_network_that_prints_itself_in_other_words_is_resumed_by_its_configuration(
    tmp_path, monkeypatch
):
    batches = lambda step: (inputs("GPT")[:, :-1], inputs("GPT")[:, 1:])  # noqa: E731
    settings = train.TrainConfig(steps=1, batch=2, device="cpu")
    given = train.objective(train.cross_entropy), batches, settings
    train.train(made("GPT"), *given, out=tmp_path)
    monkeypatch.setattr(nn.Linear, "_get_name", lambda self: "LinearMap")
    train.train(made("GPT"), *given, out=tmp_path, resume=True)
    with pytest.raises(InputError, match="another network"):
        train.train(made("GPT", dropout=0.2), *given, out=tmp_path, resume=True)
