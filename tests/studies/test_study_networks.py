"""The studies of networks, end to end and small."""

import json

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")

from scripts import call, script  # noqa: E402

from wflow import InputError, nets  # noqa: E402


@pytest.fixture
def digits():
    pytest.importorskip("sklearn")


def test_digits_study_writes_its_tables_and_resumes(
    tmp_path, monkeypatch, capsys, no_data, digits, request
):
    out = tmp_path / "mnist"
    flags = ["--preset", "smoke", "--epochs", "1", "--seeds", "2", "--out", str(out)]
    assert call("mnist_vit", monkeypatch, *flags, "--only", "continuous") == 0
    first = (out / "continuous-0" / "checkpoint.pt").stat().st_mtime_ns
    capsys.readouterr()
    request.getfixturevalue("sketched")
    assert call("mnist_vit", monkeypatch, *flags, "--resume") == 0
    assert (out / "continuous-0" / "checkpoint.pt").stat().st_mtime_ns == first
    said = capsys.readouterr().out
    assert "scikit-learn digits" in said and "published" not in said.lower()
    assert {"summary.h5", "summary.md", "learning_curves.png", "robustness.pdf"} <= {
        file.name for file in out.iterdir()
    }
    document = json.loads((out / "summary.json").read_text())
    assert document["findings"] == []  # of networks that have learnt for seconds
    with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
        assert table["accuracy_gaussian"].sizes == {"model": 3, "seed": 2, "level": 6}
        clean = table["accuracy_gaussian"].sel(level=0)
        assert np.array_equal(clean, table["final"])
        steps = table["accuracy_steps"].sel(model="continuous")
        assert np.isfinite(steps).all()
        assert (table["straightness"].sel(model=["unregularised", "continuous"]) >= 1).all()
    with pytest.raises(InputError, match=r"--overwrite|--resume"):
        call("mnist_vit", monkeypatch, *flags)


def test_digits_share_and_rate_are_those_of_the_flags(monkeypatch, no_data, digits):
    vision, text = script("mnist_vit"), script("shakespeare_gpt")
    flags = vision.MnistVit.of("smoke", digits=100)
    few, every = vision.load(flags), nets.data.digits()
    assert torch.equal(few.train_images, every.train_images[:100])
    assert few.source.startswith("the first 100 of")
    assert len(vision.plan(flags, few, "baseline", 0).batches.images) == 100
    flags = text.ShakespeareGpt.of("smoke", share=0.25, rate=0.5, device="cpu")
    source = nets.data.embedded_text()
    run = text.plan(flags, source, text.models(flags)["baseline"], 0)
    assert torch.equal(run.batches.tokens, source.train[: len(source.train) // 4])
    assert (run.config.schedule.rate, run.config.schedule.least) == (0.5, 0.05)


def test_the_published_vision_transformers_have_their_sizes(monkeypatch):
    study = script("mnist_vit")
    flags = study.MnistVit.of("paper")
    images = nets.data.Images(*[torch.zeros(1, 28, 28)] * 4, source="", mean=0.0, std=1.0)
    sizes = {
        name: sum(p.numel() for p in study.network(flags, name, images, 0).parameters())
        for name in study.MODELS
    }
    assert sizes == {"baseline": 59658, "unregularised": 17546, "continuous": 17546}


def test_text_study_writes_its_tables_and_samples(tmp_path, monkeypatch, capsys, no_data):
    out = tmp_path / "gpt"
    assert call("shakespeare_gpt", monkeypatch, "--preset", "smoke", "--out", str(out)) == 0
    assert "sonnets" in capsys.readouterr().out
    written = (out / "samples.txt").read_text()
    names = ["baseline", "unregularised", "node", "node with cost", "continuous"]
    assert all(f"## {name}\n" in written for name in names)
    with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
        assert table["model"].values.tolist() == names
        assert np.allclose(table["loss_replaced"].sel(rate=0), table["final"], rtol=1e-6)


@pytest.mark.parametrize("ablation", ["lam", "steps"])
def test_ablations_train_the_published_settings(ablation, monkeypatch):
    study = script("shakespeare_gpt")
    flags = study.ShakespeareGpt.of("paper", ablation=ablation)
    baseline, *models = study.models(flags).values()
    assert baseline.kind == "baseline" and {model.kind for model in models} == {"continuous"}
    expected = study.LAMS if ablation == "lam" else study.STEPS
    assert tuple(getattr(model, ablation) for model in models) == expected


def test_the_published_text_models_have_their_sizes():
    study = script("shakespeare_gpt")
    flags = study.ShakespeareGpt.of("paper")
    sizes = {
        name: study.network(flags, model, 65, 0).count()
        for name, model in study.models(flags).items()
    }
    assert sizes.pop("baseline") == 10646784
    assert set(sizes.values()) == {6164800}


def test_the_weight_of_the_cost_is_the_published_one_without_the_half(no_data):
    study = script("shakespeare_gpt")
    flags = study.ShakespeareGpt.of("smoke", device="cpu")
    run = study.plan(flags, nets.data.embedded_text(), study.models(flags)["continuous"], 0)
    run.model.eval()
    with torch.no_grad():
        inputs, targets = run.batches(0)
        loss = run.objective(run.model, inputs, targets)
        body, state = run.model.body, run.model.embed(inputs)
        total = 0.0
        for _ in range(body.steps):
            velocity = body.velocity_of(state)
            total += body.dt * velocity.square().mean()
            state = state + body.dt * velocity
    assert loss.total.item() == pytest.approx(
        loss.parts["data"].item() + flags.lam * float(total), rel=1e-6
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_absent_is_refused(tmp_path, monkeypatch, no_data):
    with pytest.raises(InputError, match="CUDA"):
        call("mnist_vit", monkeypatch, "--preset", "smoke", "--device", "cuda")


def test_missing_data_name_the_way_to_them(tmp_path, monkeypatch):
    pytest.importorskip("pooch")
    with pytest.raises(InputError, match="train-images"):
        call("mnist_vit", monkeypatch, "--data", str(tmp_path), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
