"""The study of trained heads, end to end and small."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")

from scripts import call  # noqa: E402

from wflow.nets import GPT, ContinuousTransformer, NodeTransformer, particles, train  # noqa: E402

SMOKE = ["--preset", "smoke", "--paths", "2", "--t-final", "2", "--threads", "1"]


def checkpoint(folder: Path, gpt: GPT) -> Path:
    """The checkpoint of a training of one step."""

    def batches(step: int) -> tuple[torch.Tensor, ...]:
        tokens = torch.arange(2 * 7).reshape(2, 7) % gpt.vocabulary
        return tokens[:, :-1], tokens[:, 1:]

    config = train.TrainConfig(steps=1, batch=2, device="cpu")
    train.train(gpt, train.objective(train.cross_entropy), batches, config, out=folder)
    return folder / train.CHECKPOINT


def network(**options) -> GPT:
    torch.manual_seed(0)
    sizes = {"vocabulary": 9, "context": 8, "width": 12, "depth": 2, "heads": 3}
    return GPT(**(sizes | options))


def test_study_trains_runs_and_writes_its_files(tmp_path, monkeypatch, capsys, request):
    out = tmp_path / "heads"
    assert call("trained_heads", monkeypatch, *SMOKE, "--out", str(out)) == 0
    names = {file.name for file in out.iterdir()}
    runs = {f"{n}_{k}.h5" for n in ("baseline", "continuous") for k in ("trained", "random0")}
    drawn = {f"{stem}.{kind}" for stem in ("over_time", "heads") for kind in ("png", "pdf")}
    folders = {"training_baseline", "training_continuous"}
    assert names == runs | drawn | folders | {
        "summary.h5",
        "summary.json",
        "summary.md",
        "report.html",
    }
    with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
        assert table["cosine"].sizes == {"network": 2, "heads": 2, "path": 2, "time": 17}
        assert all("long_name" in table[name].attrs for name in table.data_vars)
        assert np.isfinite(table["w2_network"]).all() and (table["w2_initial"][..., 0] == 0).all()
        start = table["cosine"].isel(time=0)
        assert np.abs(start - start.isel(heads=0)).max() < 1e-12  # the same tokens
        assert np.abs(table["cosine"].isel(time=-1) - start).max() > 1e-3
    document = json.loads((out / "summary.json").read_text())
    verdicts = {one["prediction"]: one["verdict"] for one in document["findings"]}
    assert len(verdicts) == 4
    assert next(v for text, v in verdicts.items() if "gradient flow" in text) == "not confirmed"
    said = capsys.readouterr().out
    assert "| network" in said and "sonnets" in said
    request.getfixturevalue("sketched")
    again = [*SMOKE, "--out", str(out), "--resume"]
    assert call("trained_heads", monkeypatch, *again) == 0
    assert json.loads((out / "summary.json").read_text())["findings"] == document["findings"]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", ["discrete", "continuous", "node"])
def test_a_checkpoint_gives_its_network_back(kind, skip, tmp_path):
    gpt = network(norm=kind == "discrete", bias=kind == "discrete", skip=skip,
                  gelu="tanh" if kind == "discrete" else "none", dropout=0.1)  # fmt: skip
    if kind == "continuous":
        gpt.body = ContinuousTransformer(gpt.body, t_final=0.5, steps=3, scheme="heun")
    elif kind == "node":
        options = {"velocity": "residual", "cost": "sum", "checkpointing": True}
        gpt.body = NodeTransformer(gpt.body, steps=2, **options)
    found = train.restore(checkpoint(tmp_path / "run", gpt))
    text = torch.randint(0, 9, (2, 8), generator=torch.Generator().manual_seed(0))
    gpt.eval()
    assert torch.equal(found(text).output, gpt(text).output)
    assert torch.equal(found(text).cost, gpt(text).cost)
    assert not found.training and str(found) == str(gpt)
    one, two = particles.head_law(found), particles.head_law(gpt)
    assert one.to_config() == two.to_config()


def test_study_takes_checkpoints(tmp_path, monkeypatch, sketched):
    from wflow.nets import data

    files = [
        str(checkpoint(tmp_path / name, network(vocabulary=data.embedded_text().vocabulary)))
        for name in ("one", "two")
    ]
    flags = [*SMOKE, "--checkpoint", *files, "--out", str(tmp_path / "out")]
    assert call("trained_heads", monkeypatch, *flags) == 0
    with xr.open_dataset(tmp_path / "out" / "summary.h5", engine="h5netcdf") as table:
        assert table["network"].values.tolist() == ["one", "two"]
        same = table["cosine"].sel(network="one") - table["cosine"].sel(network="two")
        assert np.abs(same).max() == 0  # one network, twice
