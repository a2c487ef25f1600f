"""The studies of networks, end to end and small."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scripts import script  # noqa: E402

from wflow import nets  # noqa: E402


@pytest.fixture
def digits():
    pytest.importorskip("sklearn")


def test_digits_study_writes_its_tables_and_resumes(run_study, no_data, digits, reported, request):
    flags = ["--preset", "smoke", "--epochs", "1", "--seeds", "1"]
    first = run_study("mnist_vit", *flags, "--only", "continuous")
    kept = first.out / "continuous-0" / "checkpoint.pt"
    before = kept.stat().st_mtime_ns
    request.getfixturevalue("sketched")
    done = run_study("mnist_vit", *flags, "--resume")
    assert kept.stat().st_mtime_ns == before and done.findings == []
    table = done.table
    assert "scikit-learn digits" in done.said
    assert done.drawn("learning_curves", "robustness") and "report.html" in done.names
    assert table["accuracy_gaussian"].sizes == {"model": 4, "seed": 1, "level": 6}
    assert np.array_equal(table["accuracy_gaussian"].sel(level=0), table["final"])
    assert np.isfinite(table["accuracy_steps"].sel(model="continuous")).all()
    assert (table["straightness"].sel(model=["unregularised", "continuous"]) >= 1).all()


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
        for name in study.DISCRETE + study.CONTINUOUS
    }
    assert sizes == {"baseline": 92938, "attention alone": 59658} | dict.fromkeys(
        ("unregularised", "continuous"), 17546
    )


def test_text_study_writes_its_tables_and_samples(run_study, no_data):
    done = run_study("shakespeare_gpt", "--preset", "smoke", "--iterations", "4")
    written = (done.out / "samples.txt").read_text()
    names = ["baseline", "unregularised", "node", "node with cost", "continuous"]
    assert "sonnets" in done.said and all(f"## {name}\n" in written for name in names)
    assert done.table["model"].values.tolist() == names
    replaced = done.table["loss_replaced"].sel(rate=0)
    assert np.allclose(replaced, done.table["final"], rtol=1e-6)


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
