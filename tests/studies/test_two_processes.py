"""Studies of networks on several processes: trainings are those of one."""

import re
import shlex

import numpy as np
import pytest
import xarray as xr

pytest.importorskip("torch")

from scripts import FILES, Done, call
from trainings import torchrun

pytestmark = pytest.mark.usefixtures("no_data", "sketched", "one_thread")


# Of each study: flags beyond the preset, the training that is compared, and how close it is.
TRAININGS = {
    "cats_dogs": ("--epochs 1 --only continuous", "continuous-0", 1e-4),
    "mnist_vit": ("--epochs 1 --seeds 1 --only continuous", "continuous-0", 1e-4),
    "nanogpt_sizes": ("--seeds 1 --dropout 0 --only 'S characters'", "S-characters-0", 1e-4),
    "point_clouds": ("--seeds 1 --only continuous", "continuous-0", 1e-4),
    "sentiment": ("--epochs 1 --published --seeds 2 --only", "continuous-lam=0.5-0", 1e-5),
    "shakespeare_gpt": ("--only continuous", "continuous-0", 1e-5),
    "shakespeare_words": ("--only continuous", "continuous-0", 1e-5),
    "web_text": ("--only continuous", "continuous-0", 1e-5),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_two_processes_train_as_one(name, tmp_path, monkeypatch, only_long):
    if name in ("cats_dogs", "mnist_vit"):
        pytest.importorskip("sklearn")
    words, training, close = TRAININGS[name]
    flags = ["--preset", "smoke", "--device", "cpu", *shlex.split(words)]
    flags += ["continuous lam=0.5"] if name == "sentiment" else []
    call(name, monkeypatch, *flags, "--out", str(tmp_path / "one"))
    torchrun(FILES[name], *flags, "--out", tmp_path / "two")
    losses = []
    for place in ("one", "two"):
        with xr.open_dataset(tmp_path / place / training / "metrics.h5") as history:
            losses.append([history[key].values for key in ("loss", "test_loss")])
    for one, two in zip(*losses, strict=True):
        assert np.allclose(one, two, rtol=close, atol=0, equal_nan=True)
    assert "2 x CPU" in (tmp_path / "two" / "summary.md").read_text()


# Studies whose trainings are shared out, with flags beyond the preset.
SHARED = {
    "energy_stable_gpt": "--only plain descent",
    "energy_stable_layers": "--only plain descent",
    "pontryagin_gpt": "--only S 'S costates' 'S MSA'",
    "pontryagin_resnet": "--only 'donut classic' 'donut euler adam' 'donut euler emsa'",
    "rwpo_benchmarks": "--seeds 1 --only 'moons OT-Flow' 'moons chosen'",
    "rwpo_digits": "--seeds 1 --only 'OT-Flow d3' 'late layer d3'",
    "rwpo_inverse": "--problem lorenz --only 'lorenz ot-flow' 'lorenz itself-kl'",
}
OF_TIME = re.compile("second|memory|kilobytes|equal_time")


def results(folder):
    """What a study found, without times."""
    done = Done(folder, "")
    table = done.table.drop_vars([name for name in done.table if OF_TIME.search(name)])
    return table.drop_attrs(), done.findings, done.summary["runs"]


def assert_same(one, other):
    (table, *rest), (other_table, *other_rest) = results(one), results(other)
    xr.testing.assert_identical(table, other_table)
    assert rest == other_rest


@pytest.mark.parametrize("name", SHARED)
def test_trainings_are_shared_out(name, tmp_path, monkeypatch, only_long):
    flags = ["--preset", "smoke", "--device", "cpu", *shlex.split(SHARED[name])]
    call(name, monkeypatch, *flags, "--out", str(tmp_path / "one"))
    torchrun(FILES[name], *flags, "--out", tmp_path / "two")
    assert_same(tmp_path / "one", tmp_path / "two")


def test_a_failure_ends_all_processes_and_others_resume(tmp_path, monkeypatch, only_long):
    name, out = "pontryagin_resnet", tmp_path / "two"
    flags = ["--preset", "smoke", "--device", "cpu", *shlex.split(SHARED[name]), "--resume"]
    checkpoint = out / "donut-euler-emsa-0" / "checkpoint.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text("of another program")
    said = torchrun(FILES[name], *flags, "--out", out, fails=True)
    assert said.count("wflow: error:") == 1 and f"{checkpoint} cannot be read" in said
    assert not (out / "summary.json").exists()
    before = {file: file.stat().st_mtime_ns for file in out.glob("*/record.json")}
    checkpoint.unlink()
    torchrun(FILES[name], *flags, "--out", out, processes=3)
    assert before == {file: file.stat().st_mtime_ns for file in before}
    call(name, monkeypatch, *flags, "--out", str(tmp_path / "one"))
    assert_same(tmp_path / "one", out)
