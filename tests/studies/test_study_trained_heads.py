"""The study of trained heads, end to end and small."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from wflow.nets import GPT, train  # noqa: E402

SMOKE = ["--preset", "smoke", "--paths", "2", "--t-final", "2", "--threads", "1"]


def checkpoint(folder: Path, gpt: GPT) -> Path:
    """Return the checkpoint of a training of one step."""

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


def test_study_trains_runs_and_writes_its_files(run_study, request):
    done = run_study("trained_heads", *SMOKE)
    table = done.table
    runs = {f"{n}_{k}.h5" for n in ("baseline", "continuous") for k in ("trained", "random0")}
    assert runs | {"training_baseline", "training_continuous"} < done.names
    assert done.drawn("over_time", "heads")
    assert table["cosine"].sizes == {"network": 2, "heads": 2, "path": 2, "time": 17}
    assert np.isfinite(table["w2_network"]).all() and (table["w2_initial"][..., 0] == 0).all()
    start = table["cosine"].isel(time=0)
    assert np.abs(start - start.isel(heads=0)).max() < 1e-12  # the same tokens
    assert np.abs(table["cosine"].isel(time=-1) - start).max() > 1e-3
    assert len(done.findings) == 4 and done.verdicts("gradient flow")[0] == "not confirmed"
    assert "| network" in done.said and "sonnets" in done.said
    request.getfixturevalue("sketched")
    assert run_study("trained_heads", *SMOKE, "--resume").findings == done.findings


def test_study_takes_checkpoints(tmp_path, run_study, sketched):
    from wflow.nets import data

    words = data.embedded_text().vocabulary
    files = [str(checkpoint(tmp_path / name, network(vocabulary=words))) for name in ("one", "two")]
    table = run_study("trained_heads", *SMOKE, "--checkpoint", *files).table
    assert table["network"].values.tolist() == ["one", "two"]
    same = table["cosine"].sel(network="one") - table["cosine"].sel(network="two")
    assert np.abs(same).max() == 0  # one network, twice
