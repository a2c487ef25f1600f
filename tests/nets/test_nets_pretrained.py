"""Networks in folders: bitwise round trips, folders that are refused, GPT-2 of Hugging Face."""

import hashlib
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from archives import Hostile  # noqa: E402
from torch import nn  # noqa: E402

from wflow import InputError, nets  # noqa: E402
from wflow._core.files import locked, own_folder  # noqa: E402
from wflow.nets import files, pretrained  # noqa: E402

FILES = {"config.json", "model.safetensors"}


def gpt(**changes):
    sizes = {"vocabulary": 11, "context": 7, "width": 6, "depth": 2, "heads": 3}
    return nets.GPT(**sizes | changes)


def words(path):
    path.write_text('{"model_type": "bert"}')


def tensors(path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, path, {"format": "pt"})


def link(path):
    path.symlink_to("nothing")


def refused(match):
    return pytest.raises(InputError, match=match)


@pytest.fixture
def saved(tmp_path):
    gpt().save_pretrained(tmp_path / "net")
    return tmp_path / "net"


def test_a_folder_is_what_other_programs_read(saved):
    from safetensors.torch import load_file

    state = load_file(saved / "model.safetensors")
    assert "transformer.wte.weight" in state and "lm_head.weight" not in state  # shared: once
    config = json.loads((saved / "config.json").read_text())
    assert config["format"] == "wflow-network/1" and config["network"] == "GPT"
    assert config["arguments"]["heads"] == 3


def test_an_earlier_save_is_replaced_and_nothing_else_is_touched(saved):
    (saved / "notes.txt").write_text("mine")
    gpt(depth=1).save_pretrained(saved)
    assert len(nets.GPT.from_pretrained(saved).body) == 1
    assert {file.name for file in saved.iterdir()} == FILES | {"notes.txt"}


def left_by_kills(save, folder, copies, monkeypatch):
    """Copies of a folder as a kill leaves it before and after each step that a save takes."""
    made = []

    def copied(step):
        def call(*given, **named):
            made.append(copies / f"{len(made)}")
            shutil.copytree(folder, made[-1])
            found = step(*given, **named)
            made.append(copies / f"{len(made)}")
            shutil.copytree(folder, made[-1])
            return found

        return call

    with monkeypatch.context() as patch:
        for name in ("replace", "fsync", "unlink"):
            patch.setattr(os, name, copied(getattr(os, name)))
        patch.setattr(Path, "write_bytes", copied(Path.write_bytes))
        save(folder)
    return made


def test_a_save_between_reading_configuration_and_weights_is_read_whole(saved, monkeypatch):
    read, other = pretrained.read_weights, gpt(depth=1)

    def late(path, sha256=None):
        monkeypatch.setattr(pretrained, "read_weights", read)
        other.save_pretrained(saved)
        return read(path, sha256)

    monkeypatch.setattr(pretrained, "read_weights", late)
    assert len(nets.GPT.from_pretrained(saved).body) == 1


def test_a_kill_while_a_save_replaces_another_leaves_one_of_both(tmp_path, monkeypatch):
    old, new, later = (nets.ViT(image=(1, 2, 2), patch=2, width=2, depth=1) for _ in range(3))
    old.save_pretrained(tmp_path / "net")
    copies = left_by_kills(new.save_pretrained, tmp_path / "net", tmp_path / "a", monkeypatch)
    assert len(copies) >= 12
    found = [one_of(nets.ViT.from_pretrained(folder), [old, new]) for folder in copies]
    assert found == sorted(found) and {*found} == {0, 1}
    for k, folder in enumerate(copies[3::4]):  # a second kill, and the save after it
        which = one_of(nets.ViT.from_pretrained(folder), [old, new])
        within = tmp_path / f"b{k}"
        for left in left_by_kills(later.save_pretrained, folder, within, monkeypatch)[::2]:
            assert one_of(nets.ViT.from_pretrained(left), [old, new, later]) in (which, 2)
        assert {file.name for file in folder.iterdir()} == FILES
        assert one_of(nets.ViT.from_pretrained(folder), [old, new, later]) == 2


def one_of(net, others):
    """Return the number of the network with the same weights."""
    state = net.state_dict()
    for k, other in enumerate(others):
        own = other.state_dict()
        if list(own) == list(state) and all(torch.equal(own[name], state[name]) for name in own):
            return k
    return None


def test_a_kill_of_a_first_save_leaves_no_network_or_the_new_one(tmp_path, monkeypatch):
    (tmp_path / "net").mkdir()
    new = gpt(depth=1)
    for folder in left_by_kills(new.save_pretrained, tmp_path / "net", tmp_path / "a", monkeypatch):
        if (folder / "config.json").exists():
            assert one_of(nets.GPT.from_pretrained(folder), [new]) == 0
        gpt(depth=2).save_pretrained(folder)
        assert {file.name for file in folder.iterdir()} == FILES


@pytest.mark.parametrize("training", [False, True])
def test_saves_to_one_folder_at_once_leave_one_of_them(tmp_path, monkeypatch, training):
    others = [gpt(depth=1) for _ in range(4)]
    replace = os.replace

    def slow(*paths):
        time.sleep(0.005)
        replace(*paths)

    monkeypatch.setattr(os, "replace", slow)
    with own_folder(tmp_path / "net", "training") if training else nullcontext():
        with ThreadPoolExecutor(4) as pool:  # a lock is that of an open file, not of a process
            saves = [pool.submit(other.save_pretrained, tmp_path / "net") for other in others * 2]
        for save in saves:
            save.result()
    assert {file.name for file in (tmp_path / "net").iterdir()} == FILES
    assert one_of(nets.GPT.from_pretrained(tmp_path / "net"), others) is not None


def test_a_save_does_not_wait_for_another_one_for_ever(saved, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE", 0.05)
    with locked(saved, f"model.safetensors{files.LOCK}"), refused(str(saved)):
        gpt(depth=1).save_pretrained(saved)
    assert len(nets.GPT.from_pretrained(saved).body) == 2


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("make", [words, tensors, os.mkfifo, link])
def test_what_another_program_wrote_is_kept(tmp_path, name, make):
    make(tmp_path / name)
    before = os.lstat(tmp_path / name)
    with refused(f"{name} is .*it stays as it is"):
        gpt().save_pretrained(tmp_path)
    after = os.lstat(tmp_path / name)  # the time of the last access may be another
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert os.listdir(tmp_path) == [name]


def test_a_save_that_fails_keeps_the_earlier_files_and_leaves_no_folder(
    saved, tmp_path, monkeypatch
):
    def full(number):
        raise OSError(28, "No space left on device")

    before = {name: (saved / name).read_bytes() for name in FILES}
    monkeypatch.setattr(os, "fsync", full)
    for folder in (saved, tmp_path / "a" / "new"):
        with refused("No space left"):
            gpt(depth=1).save_pretrained(folder)
    assert {name: (saved / name).read_bytes() for name in FILES} == before
    assert not (tmp_path / "a").exists()


def edited(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda f: shutil.rmtree(f), "folder"),
        (lambda f: (f / "config.json").unlink(), "config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
        (lambda f: (f / "config.json").write_text("{"), "config.json"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json"),
        (lambda f: edited(f, format=None, model_type="bert"), "bert"),
        (lambda f: edited(f, format="wflow-network/9"), "newer"),
        (lambda f: edited(f, network="ViT", arguments={}), "ViT"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x"), "SHA-256"),
    ],
)
def test_a_folder_that_cannot_be_read_is_read_once_and_refused_by_name(
    saved, damage, match, monkeypatch
):
    damage(saved)
    read, calls = pretrained._read, []
    monkeypatch.setattr(pretrained, "_read", lambda *given: calls.append(given) or read(*given))
    with refused(match) as caught:
        nets.GPT.from_pretrained(saved)
    assert str(saved) in str(caught.value) and len(calls) <= 1


def test_a_network_without_a_configuration_is_refused_before_anything_is_written(tmp_path):
    net = gpt()
    net.head.extra = nn.Linear(2, 2)
    with refused("changed"):
        net.save_pretrained(tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_without_safetensors_the_message_says_how_to_install_it(saved, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with refused("safetensors"):
        nets.GPT.from_pretrained(saved)


# GPT-2 as Hugging Face lays it out


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("transformers")


def published(library, **changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": 23, "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3}
    net = library.GPT2LMHeadModel(library.GPT2Config(**sizes | changes)).eval()
    with torch.no_grad():
        for parameter in net.parameters():  # biases and norms that are not zeros and ones
            parameter.add_(0.3 * torch.randn_like(parameter))
    return net


@pytest.mark.parametrize("gelu", ["gelu_new", "gelu"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str
)
def test_a_folder_of_gpt_2_gives_the_logits_of_the_library(
    library, tmp_path, dtype, tolerance, gelu
):
    theirs = published(library, activation_function=gelu).to(dtype)
    theirs.save_pretrained(tmp_path)
    ours = nets.GPT.from_pretrained(tmp_path)
    assert ours.embed.token.weight.dtype == dtype and not ours.training
    assert ours.head.weight is ours.embed.token.weight
    tokens = torch.randint(0, 23, (3, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want, found = theirs(tokens).logits, ours(tokens).output
    assert (want - found).abs().max() <= tolerance * want.abs().max()


@pytest.mark.parametrize("legacy", [False, True])
def test_weights_in_a_pickle_are_read_as_tensors_alone(library, tmp_path, legacy):
    theirs = published(library)
    theirs.save_pretrained(tmp_path)
    want = nets.GPT.from_pretrained(tmp_path).state_dict()
    (tmp_path / "model.safetensors").unlink()
    path = tmp_path / "pytorch_model.bin"
    torch.save(theirs.state_dict(), path, _use_new_zipfile_serialization=not legacy)
    found = nets.GPT.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(want[k], found[k]) for k in want)
    sparse = {"transformer.wte.weight": want["embed.token.weight"].to_sparse()}
    hostile = {"wte.weight": Hostile(tmp_path / "touched")}
    for content, match in (
        (hostile, "executed"), ([1, 2], "list"), (theirs.state_dict() | sparse, "wte.weight")
    ):  # fmt: skip
        torch.save(content, path, _use_new_zipfile_serialization=not legacy)
        with refused(match):
            nets.GPT.from_pretrained(tmp_path)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"activation_function": "relu"}, "activation_function"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"n_inner": 13}, "n_inner = 13: expected 48"),
        ({"n_head": None}, "n_head"),
        ({"n_head": 5}, "5 heads"),
        ({"vocab_size": 24}, "vocab_size"),
        ({"n_layer": 3}, "n_layer"),
    ],
)
def test_a_gpt_2_with_other_settings_is_refused(library, tmp_path, changes, match):
    published(library).save_pretrained(tmp_path)
    edited(tmp_path, **changes)
    with refused(match):
        nets.GPT.from_pretrained(tmp_path)


def test_a_gpt_2_with_damaged_or_missing_weights_is_refused(library, tmp_path):
    published(library).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with refused("model.safetensors"):
        nets.GPT.from_pretrained(tmp_path)
    path.unlink()
    with refused("model.safetensors"):
        nets.GPT.from_pretrained(tmp_path)
    with refused("gpt2"):
        nets.ViT.from_pretrained(tmp_path)


@pytest.mark.parametrize("gelu", ["gelu_new", "gelu"])
def test_a_gpt_2_comes_back_to_the_library_as_it_was(library, tmp_path, gelu):
    theirs = published(library, activation_function=gelu, eos_token_id=5)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = nets.GPT.from_pretrained(tmp_path / "theirs", dropout=0.2)
    ours.save_pretrained(tmp_path / "ours")
    assert one_of(nets.GPT.from_pretrained(tmp_path / "ours"), [ours]) == 0
    assert nets.config(nets.Pretrained.from_pretrained(tmp_path / "ours")) == nets.config(ours)
    tokens = torch.randint(0, 23, (3, 16), generator=torch.Generator().manual_seed(1))
    for kind in (library.GPT2LMHeadModel, library.AutoModelForCausalLM):
        again, report = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
        assert not any(report.values())
        assert again.config.resid_pdrop == again.config.embd_pdrop == again.config.attn_pdrop == 0.2
        assert again.lm_head.weight is again.transformer.wte.weight
        assert again.config.eos_token_id == again.generation_config.eos_token_id == 5
        with torch.no_grad():
            want, found = theirs(tokens).logits, again.eval()(tokens).logits
        assert (want - found).abs().max() <= 1e-5 * want.abs().max()
        assert all(torch.equal(v, again.state_dict()[k]) for k, v in theirs.state_dict().items())
    again.save_pretrained(tmp_path / "saved again")  # with our settings in the configuration
    assert one_of(nets.GPT.from_pretrained(tmp_path / "saved again"), [ours]) == 0


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_network_of_ours_that_is_a_gpt_2_is_one_for_the_library(library, tmp_path, bias, dtype):
    ours = gpt(bias=bias).to(dtype).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    ours.save_pretrained(tmp_path)
    assert one_of(nets.GPT.from_pretrained(tmp_path), [ours]) == 0
    theirs = library.GPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.float64)
    tokens = torch.randint(0, 11, (3, 7))
    with torch.no_grad():
        want, found = ours.double()(tokens).output, theirs.eval()(tokens).logits
    assert (want - found).abs().max() <= 1e-12 * want.abs().max()


class Derived(nets.GPT):
    """A network of which nobody knows what it computes."""


@pytest.mark.parametrize("make", ["body", "norm", "skip", "vit", "derived"])
def test_the_library_refuses_folders_of_networks_that_it_does_not_have(library, tmp_path, make):
    from safetensors import safe_open

    options = {make: False} if make in ("norm", "skip") else {}
    net = gpt(**options)
    if make == "body":
        net.body = nets.ContinuousTransformer(net.body, steps=2)
    if make == "vit":
        net = nets.ViT(image=(1, 2, 2), patch=2, width=2, depth=1)
    if make == "derived":
        sizes = {"vocabulary": 11, "context": 7, "width": 6, "depth": 2, "heads": 3}
        net = nets.register(Derived)(**sizes)
    net.save_pretrained(tmp_path)
    assert one_of(nets.Pretrained.from_pretrained(tmp_path), [net]) == 0
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "wflow"  # by which versions before 5 refuse it
    for kind in (library.GPT2LMHeadModel, library.BertModel):
        with pytest.raises(ValueError, match="wflow"):
            kind.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="wflow"):
        library.AutoModel.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "name", ["x", "transformer.h.2.ln_1.weight", "transformer.h.1.ln_1.weight"]
)
def test_a_folder_with_other_weights_than_its_network_has_is_refused(saved, name):
    from safetensors.torch import load_file, save_file

    path = saved / "model.safetensors"
    state = load_file(path)
    state[name] = state.pop(name, torch.zeros(6))[:5]
    save_file(state, path)
    edited(saved, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    with refused("another network"):
        nets.GPT.from_pretrained(saved)


def test_folders_of_the_first_format_are_read(saved):
    net = nets.GPT.from_pretrained(saved)
    net._to_transformers = lambda config, state: ({}, state)  # names of ours, nothing for others
    net.save_pretrained(saved)
    assert one_of(nets.GPT.from_pretrained(saved), [net]) == 0
