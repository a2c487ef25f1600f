"""Studies of networks on two processes: the training is that of one."""

import shlex

import numpy as np
import pytest
import xarray as xr

pytest.importorskip("torch")

from scripts import FILES, call
from trainings import torchrun

pytestmark = pytest.mark.usefixtures("no_data", "sketched")

# Of each study: flags beyond the preset, the training that is compared, and how close it is.
TRAININGS = {
    "cats_dogs": ("--epochs 1 --only continuous", "continuous-0", 1e-4),
    "mnist_vit": ("--epochs 1 --seeds 1 --only continuous", "continuous-0", 1e-4),
    "nanogpt_sizes": ("--seeds 1 --dropout 0 --only 'S characters'", "S-characters-0", 1e-4),
    "point_clouds": ("--seeds 1 --only continuous", "continuous-0", 1e-4),
    "sentiment": ("--epochs 1 --only", "continuous-lam=0.5-0", 1e-5),
    "shakespeare_gpt": ("--only continuous", "continuous-0", 1e-5),
    "shakespeare_words": ("--only continuous", "continuous-0", 1e-5),
    "web_text": ("--only continuous", "continuous-0", 1e-5),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_two_processes_train_as_one(name, tmp_path, monkeypatch, cases):
    if not cases(0, 1):
        pytest.skip("with --long: processes are slow to start")
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
