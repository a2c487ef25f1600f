"""Files of trainings and networks: damaged ones, those of earlier versions and of others."""

import contextlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from archives import Hostile  # noqa: E402
from torch.torch_version import TorchVersion  # noqa: E402
from trainings import FILES, ROOT, Points, assert_same, bytes_of, crash, network, refused, run  # noqa: E402

from wflow import InputError  # noqa: E402
from wflow._core import memory  # noqa: E402
from wflow.nets import checks, train  # noqa: E402
from wflow.nets.models.gpt import GPT  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def flipped(place):
    """Change one bit at a share of the file."""

    def damage(path):
        raw = bytearray(path.read_bytes())
        raw[int(place * len(raw))] ^= 4
        path.write_bytes(raw)

    return damage


def cut(size):
    return lambda path: path.write_bytes(path.read_bytes()[:size])


def saved_again(change):
    """Load the contents, and write them by torch alone."""

    def damage(path):
        torch.save(change(torch.load(path, weights_only=True)), path)

    return damage


DAMAGES = {
    "empty": cut(0),
    "half": cut(2000),
    "less one byte": cut(-1),
    "less the digest": cut(-64),
    "a bit of a tensor": flipped(0.5),
    "foreign": saved_again(lambda content: {"a": 1}),
    "newer": saved_again(lambda content: content | {"format": "wflow-training/9"}),
    "code": saved_again(lambda content: content | {"extra": Hostile("touched")}),
    "code in a pickle": lambda path: path.write_bytes(pickle.dumps(Hostile("touched"), 2)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_in_one_line_and_nothing_changes(damage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(tmp_path, config={"steps": 2}, evaluate=None)
    train.save_model(tmp_path / "w.pt", network(1), "words")
    for name in (train.CHECKPOINT, "w.pt"):
        DAMAGES[damage](tmp_path / name)
        model = network()
        before = [value.clone() for value in model.parameters()]
        for read in (lambda p, m: train.load_model(p, m), lambda p, m: train.restore(p)):
            with pytest.raises(InputError) as error:
                read(tmp_path / name, model)
            assert str(tmp_path / name) in str(error.value)
            assert len(str(error.value).splitlines()) == 1
        assert all(map(torch.equal, before, model.parameters()))
    refused(tmp_path, r"checkpoint\.pt", config={"steps": 2}, evaluate=None, resume=True)
    assert not (tmp_path / "touched").exists()


def test_a_file_of_save_model_is_no_checkpoint(tmp_path):
    train.save_model(tmp_path / train.CHECKPOINT, network())
    refused(tmp_path, "expected a checkpoint of a training", resume=True)


def test_a_whole_file_that_memory_has_no_room_for_is_not_called_damaged(tmp_path, monkeypatch):
    train.save_model(tmp_path / "w.pt", network())
    monkeypatch.setattr(memory, "SMALL", 0)
    monkeypatch.setattr(memory, "free_memory", lambda: 10)
    with pytest.raises(InputError, match=r"w\.pt") as caught:
        train.load_model(tmp_path / "w.pt", network())
    assert "damaged" not in str(caught.value) and "again" not in str(caught.value)


def test_a_full_disk_is_reported_in_its_own_words(tmp_path):
    resource = pytest.importorskip("resource")  # a limit of the size of files fails as a disk does
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(InputError, match=r"w\.pt: File too large; "):
            train.save_model(tmp_path / "w.pt", torch.nn.Linear(200, 200))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("value", [np.zeros(2), lambda: 0, object()])
def test_what_could_not_be_read_again_is_not_written(value, tmp_path):
    class Odd(torch.nn.Linear):
        def get_extra_state(self):
            return value

    with pytest.raises(InputError, match=r"cannot write .*w\.pt"):
        train.save_model(tmp_path / "w.pt", Odd(2, 2))
    assert not any(tmp_path.iterdir())


def test_a_buffer_that_repeats_its_memory_is_saved(tmp_path):
    model, other = network(), network(1)
    for one in (model, other):
        one.register_buffer("mask", torch.ones(1).expand(3, 4))
    train.save_model(tmp_path / "w.pt", model)
    other.mask = torch.zeros(3, 4)
    train.load_model(tmp_path / "w.pt", other)
    assert torch.equal(other.mask, torch.ones(3, 4))


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


# --- files of earlier versions ---------------------------------------------------------------


def aged(path, version):
    """Write a file as that version did: 1 had no digests, 2 no configuration of the network."""
    content = torch.load(path, weights_only=True)
    content["format"] = content["format"].replace("/4", f"/{version}")
    if version < 3:
        del content["network"]
    if version > 1:
        content["digests"] = {"model": "one of every tensor and field"}
    if version > 1 and "optimizer" in content:
        content["optimizer"]["idle"] = []
    torch.save({name: value for name, value in content.items() if value is not None}, path)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_files_of_earlier_versions_load_and_resume_and_damage_is_noticed(tmp_path, version):
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, batches=Points(fault=crash, at=9))
    torch.manual_seed(0)
    gpt = GPT(vocabulary=7, context=4, width=8, depth=1, heads=2)
    train.save_model(tmp_path / "w.pt", gpt, "words")
    for name in (train.CHECKPOINT, "w.pt"):
        aged(tmp_path / name, version)
    found = GPT(vocabulary=7, context=4, width=8, depth=1, heads=2)
    assert train.load_model(tmp_path / "w.pt", found) == "words"
    assert torch.equal(found.head.weight, gpt.head.weight)
    if version == 3:
        assert torch.equal(train.restore(tmp_path / "w.pt").head.weight, gpt.head.weight)
    else:
        with pytest.raises(InputError, match=r"w\.pt .*earlier version.*load_model"):
            train.restore(tmp_path / "w.pt")
    whole = (tmp_path / train.CHECKPOINT).read_bytes()
    for damage in (flipped(0.5), cut(-9)):
        damage(tmp_path / train.CHECKPOINT)
        refused(tmp_path, r"checkpoint\.pt", resume=True)
        (tmp_path / train.CHECKPOINT).write_bytes(whole)
    assert_same(run(tmp_path, model=network(9), resume=True), run())
    content = torch.load(tmp_path / train.CHECKPOINT, weights_only=True)
    assert content["format"].endswith("/4")


# --- another training -------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", ["0.weight", "3.bias"])
def test_a_resume_with_other_trained_parameters_is_refused(tmp_path, frozen):
    def partly(name):
        model = network()
        model.get_parameter(name).requires_grad_(False)
        return model

    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, model=partly("3.weight"), batches=Points(fault=crash, at=9))
    refused(tmp_path, "requires_grad", model=partly(frozen), resume=True)
    run(tmp_path, model=partly("3.weight"), resume=True)


def test_a_parameter_without_a_gradient_has_no_state_and_resumes(tmp_path):
    def partly(seed=0):
        model = network(seed)
        model.unused = torch.nn.Linear(2, 2)
        model.forward = lambda x: model[3](model[2](model[1](model[0](x))))
        return model

    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, model=partly(), batches=Points(fault=crash, at=9))
    assert_same(run(tmp_path, model=partly(9), resume=True), run(model=partly()))


# --- files of others, of a kill and of two trainings ------------------------------------------


def words(path):
    path.write_text("text of another program")


def link(path):
    target = path.with_name("target")
    words(target)
    path.symlink_to(target)


def foreign_hdf5(path):
    import h5py

    with h5py.File(path, "w") as file:
        file["x"] = 1.0


KINDS = [words, link, foreign_hdf5, os.mkfifo, os.mkdir]


@contextlib.contextmanager
def unchanged(path):
    """The path is of the same kind at the end, and all files of its folder are the same bytes."""
    before, files = os.lstat(path), bytes_of_regular(path.parent)
    yield
    now = os.lstat(path)
    assert (now.st_mode, now.st_ino) == (before.st_mode, before.st_ino)
    assert bytes_of_regular(path.parent) == files


def bytes_of_regular(folder):
    files = (path for path in folder.iterdir() if not path.is_fifo())
    return {path.name: path.read_bytes() for path in files if path.is_file()}


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_what_wflow_did_not_write_is_never_replaced(make, name, tmp_path):
    path = tmp_path / name
    make(path)
    calls = [
        *(partial(run, tmp_path, **{option: True}) for option in ("resume", "overwrite")),
        partial(run, tmp_path),
        partial(train.save_model, path, network()),
        partial(train.load_model, path, network()),
        partial(train.restore, path),
    ]
    with unchanged(path):
        for call in calls:
            with pytest.raises(InputError, match=str(tmp_path)):
                call()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    run(folder)
    return folder


@pytest.mark.parametrize("make", [words, link])
@pytest.mark.parametrize("name", [train.METRICS, train.METRICS_JSON])
def test_a_resumed_training_does_not_replace_it_either(make, name, trained, tmp_path):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).unlink()
    make(tmp_path / name)
    with unchanged(tmp_path / name), pytest.raises(InputError, match=name):
        run(tmp_path, resume=True)


@pytest.mark.parametrize("make", [words, link])
def test_files_that_appear_during_a_training_are_kept(make, tmp_path):
    with pytest.raises(InputError, match=r"checkpoint\.pt"):
        run(tmp_path, batches=Points(fault=lambda: make(tmp_path / train.CHECKPOINT), at=1))
    assert {path.name for path in tmp_path.iterdir()} <= {train.CHECKPOINT, "target"}
    assert (tmp_path / train.CHECKPOINT).read_text() == "text of another program"


def test_save_model_does_not_replace_a_checkpoint(trained, tmp_path):
    shutil.copy(trained / train.CHECKPOINT, tmp_path)
    with pytest.raises(InputError, match="save_model"):
        train.save_model(tmp_path / train.CHECKPOINT, network())
    words(tmp_path / "w.pt.0123456789abcdef.new")  # of a save that was killed
    train.save_model(tmp_path / "w.pt", network())
    train.save_model(tmp_path / "w.pt", network(1), "again")
    assert train.load_model(tmp_path / "w.pt", network()) == "again"
    assert {file.name for file in tmp_path.iterdir()} == {train.CHECKPOINT, "w.pt"}


def test_a_checkpoint_that_is_cut_off_can_be_overwritten(trained, tmp_path):
    path = tmp_path / train.CHECKPOINT
    path.write_bytes((trained / train.CHECKPOINT).read_bytes()[:2000])
    run(tmp_path, overwrite=True)
    train.load_model(path, network())


def test_the_drafts_of_a_killed_training_are_removed_and_nothing_else(tmp_path):
    drafts = [f"{name}.0123abcd.new" for name in FILES]
    others = ["checkpoint.pt.new", "notes.0123abcd.new", "checkpoint.pt.mine.new"]
    for name in (*drafts, *others):
        words(tmp_path / name)
    (tmp_path / "metrics.h5.89abcdef.new").symlink_to(tmp_path / others[0])
    run(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {*FILES, *others, "metrics.h5.89abcdef.new"}


def test_a_killed_training_leaves_a_checkpoint_that_loads_and_does_not_block_the_next(tmp_path):
    program = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from trainings import *\n"
        f"run({str(tmp_path)!r}, config={{'steps': 10**6, 'checkpoint_every': 1}})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / train.METRICS_JSON).exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(InputError, match="another training"):
            run(tmp_path, overwrite=True)
        for _ in range(20):  # any file that a reader finds is whole
            train.load_model(tmp_path / train.CHECKPOINT, network())
    finally:
        process.kill()
        process.wait()
    saved = torch.load(tmp_path / train.CHECKPOINT, weights_only=True)
    assert saved["history"]["rows"].shape[0] == saved["step"] > 0
    assert_same(run(tmp_path, overwrite=True), run())
    assert sorted(bytes_of(tmp_path)) == sorted(FILES)
