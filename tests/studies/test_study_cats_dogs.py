"""The study of cats and dogs: sizes, weights, verdicts, and a small run of it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scripts import script  # noqa: E402

from wflow import nets  # noqa: E402
from wflow.study.networks import Results  # noqa: E402


def like_pictures(pixels: int = 96) -> nets.data.Images:
    images = torch.zeros(4, 3, pixels, pixels, dtype=torch.uint8)
    labels = torch.tensor([0, 1, 0, 1])
    return nets.data.Images(images, labels, images, labels, "", 0.45, 0.25, 2)


study = script("cats_dogs")
PUBLISHED = study.ott.PUBLISHED["Table 8"]


def test_the_published_networks_have_their_sizes():
    flags = study.CatsDogs.of("paper")
    sizes = {
        name: study.ott.parameters(study.network(flags, model, like_pictures(), 0).body)
        for name, model in study.models(flags).items()
    }
    assert sizes == dict.fromkeys(sizes, 1_479_040) | {"baseline": 1_774_848}
    assert {name: study.ott.millions(size) for name, size in sizes.items()} == PUBLISHED[
        "parameters"
    ]
    assert (flags.epochs, flags.batch, flags.rate, flags.steps) == (250, 64, 3e-5, 20)


def test_each_model_has_its_blocks_steps_and_weight():
    flags = study.CatsDogs.of("cpu")
    runs = {
        name: study.network(flags, model, like_pictures(), 0).body
        for name, model in study.models(flags).items()
    }
    skips = {name: {m.skip for m in body.modules() if isinstance(m, nets.blocks.Block)}
             for name, body in runs.items()}  # fmt: skip
    assert skips == {name: {"node" not in name} for name in runs}
    assert len(runs["baseline"]) == 6 and len(runs["node"].systems) == 5
    assert isinstance(runs["continuous"], nets.ContinuousTransformer)
    assert runs["node"].steps == runs["continuous"].steps == 4


@pytest.fixture
def images():
    pixels = torch.randint(0, 256, (12, 3, 8, 8), dtype=torch.uint8)
    labels = torch.arange(12) % 2
    return nets.data.Images(pixels, labels, pixels, labels, "", 0.4, 0.2, 2)


def small(**given):
    return study.CatsDogs.of("smoke", batch=6, device="cpu", **given)


def test_the_weight_of_the_cost_is_that_of_the_model(images):
    flags = small(lam=3.0, lam_node=2.0)
    expected = {"baseline": 0.0, "node": 0.0, "node with cost": 2.0, "unregularised": 0.0,
                "continuous": 3.0}  # fmt: skip
    for name, model in study.models(flags).items():
        run = study.plan(flags, images, model, 0)
        pixels, labels = run.batches(0)
        assert pixels.shape == (6, 3, 8, 8)
        with torch.no_grad():
            loss, cost = run.objective(run.model, pixels, labels), run.model(pixels).cost
        total = loss.parts["data"] + expected[name] * cost
        assert torch.allclose(loss.total, total, rtol=1e-6) and (cost > 0) == (name != "baseline")


def test_the_published_habit_crops_the_test_pictures(images):
    whole, cropped, again = (
        torch.cat([pixels for pixels, _ in study.tested(small(), images, cropped=seed)])
        for seed in (None, 3, 3)
    )
    assert torch.allclose(whole, (nets.data.unit(images.test_images) - 0.4) / 0.2)
    assert not torch.allclose(whole, cropped) and torch.equal(cropped, again)
    for published, inputs in ((False, whole), (True, cropped)):
        flags = small(published=published)
        run = study.plan(flags, images, study.models(flags)["baseline"], 3)
        with torch.no_grad():
            logits = run.model.eval()(inputs).output
        loss = torch.nn.functional.cross_entropy(logits, images.test_labels)
        assert run.evaluate(run.model)["test_loss"] == pytest.approx(float(loss), rel=1e-5)


def records(**accuracies):
    """Return results in which only the given accuracies (per cent) and motions differ."""
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


def found(**accuracies):
    return study.findings(study.CatsDogs.of("cpu"), None, records(**AS_PUBLISHED | accuracies))


def test_verdicts_follow_the_accuracies_and_their_spread():
    confirmed, undecided = "confirmed", "inconclusive"
    verdicts = [finding.verdict for finding in found()]
    assert verdicts == [confirmed] * 6 + [undecided] + [confirmed] * 2
    other = found(node=(79.0, 79.1, 79.2), continuous=(60.0, 70.0, 77.0))
    assert [f.verdict for f in other[:4]] == ["confirmed"] + ["not confirmed"] * 3
    assert other[4].verdict == "confirmed in part"
    gone = found(continuous=(np.nan, 79.0, 79.1))[6]
    assert (gone.verdict, gone.found) == ("not confirmed", "a model diverged")
    weak = found(baseline=(71.0, 71.5, 72.0))[0]
    assert (weak.verdict, weak.found) == ("not confirmed", "71.50 %")
    lost = found(baseline=(np.nan,) * 3)
    assert [f.verdict for f in lost[:3]] == ["not confirmed", "inconclusive", "inconclusive"]
    habits = study.CatsDogs.of("cpu", published=True)
    said = study.findings(habits, None, records(**AS_PUBLISHED))
    assert all(f.prediction.startswith("with the habits of the published code") for f in said)


def test_models_may_have_fewer_seeds():
    assert study.seeds(study.CatsDogs.of("cpu")) == {
        "baseline": 2, "node": 1, "node with cost": 1, "unregularised": 2, "continuous": 2,
    }  # fmt: skip
    assert set(study.seeds(study.CatsDogs.of("paper")).values()) == {3}
    fewer = {name: AS_PUBLISHED[name][:1] for name in ("node", "node_with_cost")}
    verdicts = [finding.verdict for finding in found(**fewer)]
    assert [verdicts[k] for k in (1, 4, 5)] == ["confirmed", "inconclusive", "inconclusive"]
    results = records(**AS_PUBLISHED | fewer)
    table = study.networks.dataset(results, {"final": ("accuracy", "1")}, {}, {})
    assert table.sizes["seed"] == 3 and np.isfinite(table["final"]).sum() == 11


def test_a_smaller_spread_is_confirmed_by_an_f_test_alone():
    steady, shaky = np.array([0.780, 0.7801, 0.7802]), np.array([0.70, 0.76, 0.79])
    assert study.steadier(shaky, steady).verdict == "confirmed"
    assert study.steadier(steady, shaky).verdict == "not confirmed"
    assert study.steadier(shaky, shaky[::-1]).verdict == "inconclusive"
    assert study.steadier(shaky[:1], shaky[:1]).verdict == "inconclusive"


def test_the_study_writes_its_tables_and_resumes(resumed, no_data):
    pytest.importorskip("sklearn")
    flags = ["--epochs", "1", "--device", "cpu"]
    done = resumed("cats_dogs", *flags, only="node with cost", then=("--only", "continuous"))
    assert "scikit-learn digits" in done.said and done.drawn("learning_curves")
    assert done.table["model"].values.tolist() == ["node with cost", "continuous"]
    assert np.array_equal(done.table["final"], done.table["whole"])
    assert (done.table["straightness"] >= 1).all() and np.isfinite(done.table["cropped"]).all()
