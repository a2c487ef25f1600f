"""The study of cats and dogs: sizes, weights, verdicts, and a small run of it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")

from scripts import call, script  # noqa: E402

from wflow import nets  # noqa: E402
from wflow.study.networks import Results  # noqa: E402


def like_pictures(pixels: int = 96) -> nets.data.Images:
    images = torch.zeros(4, 3, pixels, pixels, dtype=torch.uint8)
    labels = torch.tensor([0, 1, 0, 1])
    return nets.data.Images(images, labels, images, labels, "", 0.45, 0.25, 2)


def test_the_published_networks_have_their_sizes():
    study, parts = script("cats_dogs"), script("_cats_dogs")
    setup = study.PRESETS["paper"]
    sizes = {
        name: parts.parameters(parts.network(model, setup, like_pictures(), 0).body)
        for name, model in parts.models(setup).items()
    }
    assert sizes == dict.fromkeys(sizes, 1_479_040) | {"baseline": 1_774_848}
    assert {name: parts.millions(size) for name, size in sizes.items()} == parts.PUBLISHED_SIZE
    assert (setup.epochs, setup.batch, setup.rate, setup.steps) == (250, 64, 3e-5, 20)


def test_each_model_has_its_blocks_steps_and_weight():
    study, parts = script("cats_dogs"), script("_cats_dogs")
    setup = study.PRESETS["cpu"]
    runs = {
        name: parts.network(model, setup, like_pictures(), 0).body
        for name, model in parts.models(setup).items()
    }
    skips = {name: {m.skip for m in body.modules() if isinstance(m, nets.blocks.Block)}
             for name, body in runs.items()}  # fmt: skip
    assert skips == {name: {"node" not in name} for name in runs}
    assert len(runs["baseline"]) == 6 and len(runs["node"].systems) == 5
    assert isinstance(runs["continuous"], nets.ContinuousTransformer)
    assert runs["node"].steps == runs["continuous"].steps == 4


@pytest.fixture
def small():
    """The set-up of `smoke` with pictures in colours."""
    study, parts = script("cats_dogs"), script("_cats_dogs")
    images = torch.randint(0, 256, (12, 3, 8, 8), dtype=torch.uint8)
    labels = torch.arange(12) % 2
    setup = replace(study.PRESETS["smoke"], batch=6)
    return study, parts, setup, nets.data.Images(images, labels, images, labels, "", 0.4, 0.2, 2)


def test_the_weight_of_the_cost_is_that_of_the_model(small):
    study, parts, setup, images = small
    flags = study.CatsDogs(preset="smoke", device="cpu", lam=3.0, lam_node=2.0)
    setup = study.networks.with_flags(setup, flags)
    expected = {"baseline": 0.0, "node": 0.0, "node with cost": 2.0, "unregularised": 0.0,
                "continuous": 3.0}  # fmt: skip
    for name, model in parts.models(setup).items():
        run = parts.plan(model, setup, images, flags, 0)
        pixels, labels = run.batches(0)
        assert pixels.shape == (6, 3, 8, 8)
        with torch.no_grad():
            loss, cost = run.objective(run.model, pixels, labels), run.model(pixels).cost
        total = loss.parts["data"] + expected[name] * cost
        assert torch.allclose(loss.total, total, rtol=1e-6) and (cost > 0) == (name != "baseline")


def test_the_published_habit_crops_the_test_pictures(small):
    study, parts, setup, images = small
    whole, cropped = (
        torch.cat([pixels for pixels, _ in parts.tested(setup, images, cropped=seed)])
        for seed in (None, 3)
    )
    assert torch.allclose(whole, (nets.data.unit(images.test_images) - 0.4) / 0.2)
    assert not torch.allclose(whole, cropped)
    again = torch.cat([pixels for pixels, _ in parts.tested(setup, images, cropped=3)])
    assert torch.equal(cropped, again)
    model = parts.models(setup)["baseline"]
    accuracies = {}
    for published in (False, True):
        flags = study.CatsDogs(preset="smoke", device="cpu", published=published)
        run = parts.plan(model, setup, images, flags, 3)
        accuracies[published] = run.evaluate(run.model)["test_loss"]
    inputs = {False: whole, True: cropped}
    with torch.no_grad():
        for published, found in accuracies.items():
            logits = run.model.eval()(inputs[published]).output
            loss = torch.nn.functional.cross_entropy(logits, images.test_labels)
            assert found == pytest.approx(float(loss), rel=1e-5)


def test_a_resumed_training_sees_the_crops_of_an_unbroken_one(small):
    study, parts, setup, images = small
    flags = study.CatsDogs(preset="smoke", device="cpu")
    model = parts.models(setup)["continuous"]
    one, two = (parts.plan(model, setup, images, flags, 1).batches for _ in range(2))
    unbroken = [one(step)[0] for step in range(6)]
    assert all(torch.equal(two(step)[0], unbroken[step]) for step in (4, 5))
    assert not torch.equal(unbroken[4], unbroken[5])


def records(**accuracies):
    """Results in which only the given accuracies (per cent) and motions differ."""
    names = ["baseline", "node", "node with cost", "unregularised", "continuous"]
    found = {}
    for name in names:
        values = accuracies[name.replace(" ", "_")]
        found[name] = [
            {"final": v / 100, "best": v / 100 + 0.01,
             "training": 0.5 - (name == "continuous") * 0.1 + 0.001 * k,
             "straightness": 1.1 - (name == "continuous") * 0.05 + 0.001 * k}
            for k, v in enumerate(values)
        ]  # fmt: skip
    return Results(found, {})


AS_PUBLISHED = {
    "baseline": (77.0, 77.6, 78.2),
    "node": (75.2, 75.6, 76.0),
    "node_with_cost": (75.58, 75.6, 75.62),
    "unregularised": (77.9, 78.2, 78.5),
    "continuous": (78.7, 79.0, 79.3),
}


def test_verdicts_follow_the_accuracies_and_their_spread():
    parts = script("_cats_dogs")
    verdicts = [finding.verdict for finding in parts.findings(records(**AS_PUBLISHED))]
    confirmed, undecided = "confirmed", "inconclusive"
    assert verdicts == [confirmed] * 6 + [undecided] + [confirmed] * 2
    other = AS_PUBLISHED | {"node": (79.0, 79.1, 79.2), "continuous": (60.0, 70.0, 77.0)}
    verdicts = [finding.verdict for finding in parts.findings(records(**other))]
    assert verdicts[:4] == ["confirmed"] + ["not confirmed"] * 3
    assert verdicts[4] == "confirmed in part"
    gone = AS_PUBLISHED | {"continuous": (np.nan, 79.0, 79.1)}
    text = parts.findings(records(**gone))[6]
    assert (text.verdict, text.found) == ("not confirmed", "a model diverged")
    weak = parts.findings(records(**AS_PUBLISHED | {"baseline": (71.0, 71.5, 72.0)}))
    assert weak[0].verdict == "not confirmed" and weak[0].found == "71.50 %"
    lost = parts.findings(records(**AS_PUBLISHED | {"baseline": (np.nan,) * 3}))
    assert [f.verdict for f in lost[:3]] == ["not confirmed", "inconclusive", "inconclusive"]


def test_models_may_have_fewer_seeds():
    study, parts = script("cats_dogs"), script("_cats_dogs")
    assert parts.seeds(study.PRESETS["cpu"]) == {
        "baseline": 2, "node": 1, "node with cost": 1, "unregularised": 2, "continuous": 2,
    }  # fmt: skip
    assert set(parts.seeds(study.PRESETS["paper"]).values()) == {3}
    fewer = AS_PUBLISHED | {name: AS_PUBLISHED[name][:1] for name in ("node", "node_with_cost")}
    results = records(**fewer)
    found = parts.findings(results)
    assert [found[k].verdict for k in (1, 4, 5)] == ["confirmed", "inconclusive", "inconclusive"]
    table = study.networks.dataset(results, {"final": ("accuracy", "1")}, {}, {})
    assert table.sizes["seed"] == 3 and np.isfinite(table["final"]).sum() == 11


def test_a_smaller_spread_is_confirmed_by_an_f_test_alone():
    parts = script("_cats_dogs")
    steady, shaky = np.array([0.780, 0.7801, 0.7802]), np.array([0.70, 0.76, 0.79])
    assert parts.steadier(shaky, steady).verdict == "confirmed"
    assert parts.steadier(steady, shaky).verdict == "not confirmed"
    assert parts.steadier(shaky, shaky[::-1]).verdict == "inconclusive"
    assert parts.steadier(shaky[:1], shaky[:1]).verdict == "inconclusive"


def test_the_study_writes_its_tables_and_resumes(tmp_path, monkeypatch, capsys, sketched):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("WFLOW_DATA", str(tmp_path / "nothing"))
    out = tmp_path / "pets"
    flags = ["--preset", "smoke", "--epochs", "1", "--device", "cpu", "--out", str(out)]
    assert call("cats_dogs", monkeypatch, *flags, "--only", "node with cost") == 0
    first = (out / "node-with-cost-0" / "checkpoint.pt").stat().st_mtime_ns
    assert call("cats_dogs", monkeypatch, *flags, "--only", "continuous", "--resume") == 0
    assert (out / "node-with-cost-0" / "checkpoint.pt").stat().st_mtime_ns == first
    said = capsys.readouterr().out
    assert "scikit-learn digits" in said and "published" not in said.lower()
    assert {"summary.h5", "summary.md", "report.html", "learning_curves.png"} <= {
        file.name for file in out.iterdir()
    }
    assert json.loads((out / "summary.json").read_text())["findings"] == []
    with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
        assert table["model"].values.tolist() == ["node with cost", "continuous"]
        assert np.array_equal(table["final"], table["whole"])
        assert (table["straightness"] >= 1).all() and np.isfinite(table["cropped"]).all()
