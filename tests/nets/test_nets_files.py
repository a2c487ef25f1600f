"""Files of trainings: which are replaced, and two trainings in one folder."""

import contextlib
import os
import shutil
import subprocess
import sys
import time

import pytest
import torch
from trainings import FILES, ROOT, Points, assert_same, bytes_of, network, run

from wflow import InputError
from wflow.nets import train

pytestmark = pytest.mark.usefixtures("one_thread")


def words(path):
    path.write_text("text of another program")


def link(path):
    target = path.with_name("target")
    words(target)
    path.symlink_to(target)


def link_to_nothing(path):
    path.symlink_to(path.with_name("nothing"))


def foreign_hdf5(path):
    import h5py

    with h5py.File(path, "w") as file:
        file["x"] = 1.0


def foreign_zip(path):
    torch.save({"weights": torch.zeros(3)}, path)


KINDS = [words, link, link_to_nothing, foreign_hdf5, foreign_zip, os.mkfifo, os.mkdir]


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
def test_what_wflow_did_not_write_is_never_replaced_in_a_folder(make, name, tmp_path):
    make(tmp_path / name)
    with unchanged(tmp_path / name):
        for options in ({}, {"overwrite": True}, {"resume": True}):
            with pytest.raises(InputError, match=str(tmp_path)):
                run(tmp_path, **options)
    assert not (tmp_path / "nothing").exists()


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
    path, made = tmp_path / train.CHECKPOINT, []

    def appear():
        make(path)
        made.append(os.lstat(path))

    with pytest.raises(InputError, match=r"checkpoint\.pt"):
        run(tmp_path, batches=Points(fault=appear, at=1))
    assert not any(".new" in p.name for p in tmp_path.iterdir())
    now = os.lstat(path)
    assert (now.st_mode, now.st_ino) == (made[0].st_mode, made[0].st_ino)


@pytest.mark.parametrize("make", [words, link_to_nothing, os.mkfifo, foreign_zip])
def test_save_model_replaces_files_of_its_own_only(make, tmp_path):
    make(tmp_path / "w.pt")
    with unchanged(tmp_path / "w.pt"), pytest.raises(InputError, match=r"w\.pt"):
        train.save_model(tmp_path / "w.pt", network())


def test_save_model_does_not_replace_a_checkpoint(trained, tmp_path):
    shutil.copy(trained / train.CHECKPOINT, tmp_path)
    with pytest.raises(InputError, match="save_model"):
        train.save_model(tmp_path / train.CHECKPOINT, network())
    train.save_model(tmp_path / "w.pt", network())
    train.save_model(tmp_path / "w.pt", network(1), "again")
    assert train.load_model(tmp_path / "w.pt", network()) == "again"


def test_a_checkpoint_that_is_cut_off_can_be_overwritten(trained, tmp_path):
    path = tmp_path / train.CHECKPOINT
    path.write_bytes((trained / train.CHECKPOINT).read_bytes()[:2000])
    run(tmp_path, overwrite=True)
    train.load_model(path, network())


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, link_to_nothing])
def test_reading_refuses_what_is_no_file_at_once(make, tmp_path):
    path = tmp_path / train.CHECKPOINT
    make(path)
    reading = [
        lambda: train.load_model(path, network()),
        lambda: train.restore(path),
        lambda: run(tmp_path, resume=True),
    ]
    for read in reading:
        with pytest.raises(InputError, match=r"checkpoint\.pt"):
            read()
    for device in ("/dev/null", "/dev/zero"):
        with pytest.raises(InputError, match=f"{device} is a device"):
            train.load_model(device, network())


@pytest.mark.parametrize("path", ["", "\0", None, b"w.pt", "x" * 300])
def test_paths_that_name_no_file_are_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for act in (
        lambda: train.load_model(path, network()),
        lambda: train.save_model(path, network()),
        lambda: train.restore(path),
        lambda: run(path) if path is not None else train.load_model(path, network()),
    ):
        with pytest.raises(InputError):
            act()
    assert not any(tmp_path.iterdir())


def test_the_drafts_of_a_killed_training_are_removed_and_nothing_else(tmp_path):
    drafts = [f"{name}.0123abcd.new" for name in FILES]
    others = ["checkpoint.pt.new", "notes.0123abcd.new", "checkpoint.pt.mine.new"]
    for name in (*drafts, *others):
        words(tmp_path / name)
    (tmp_path / "metrics.h5.89abcdef.new").symlink_to(tmp_path / others[0])
    run(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {*FILES, *others, "metrics.h5.89abcdef.new"}


# --- two trainings at once ---------------------------------------------------------------------


def test_a_second_training_in_a_folder_is_refused(tmp_path):
    def second():
        with pytest.raises(InputError, match=f"another training writes to {tmp_path}"):
            run(tmp_path, overwrite=True)

    assert_same(run(tmp_path, batches=Points(fault=second, at=5)), run())
    run(tmp_path, overwrite=True)  # the lock has gone with the training


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
