"""The study of film reviews, end to end and small."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from scripts import script  # noqa: E402

from wflow import nets  # noqa: E402
from wflow.study.networks import Results  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_data")
study = script("sentiment")


def test_the_study_writes_its_table_and_resumes(tmp_path, resumed):
    flags = ["--epochs", "1", "--device", "cpu"]
    done = resumed("sentiment", *flags, only="continuous lam=0", then=("--only", "baseline"))
    assert "invented reviews" in done.said and not (tmp_path / "cache" / "wflow").exists()
    assert done.table.sizes == {"model": 2, "seed": 1}
    assert (done.table["best"] >= done.table["final"]).all()
    moving = done.table.sel(model="continuous lam=0")
    assert (moving["straightness"] >= 1).all() and (moving["transport"] > 0).all()


def test_the_paper_preset_has_the_published_sizes_and_settings():
    flags = study.Sentiment.of("paper")
    normed = {name: model for name, model in study.models(flags).items() if model.norms}
    # Table 9 counts the blocks alone: weights, biases and layer norms.
    with torch.device("meta"):
        sizes = {
            name: study.ott.millions(
                study.ott.parameters(study.network(flags, model, 16_000, 0).body)
            )
            for name, model in normed.items()
        }
    earlier = {"node lam=0.01", "continuous lam=0.01"}  # of [OTT1]
    assert set(sizes) == set(study.ott.PUBLISHED["Table 9"]["final"]) | earlier
    assert sizes.pop("baseline") == "4.74M" and set(sizes.values()) == {"2.37M"}
    assert (flags.epochs, flags.batch, flags.context, flags.seeds) == (15, 64, 512, 5)
    assert (flags.rate, flags.steps, flags.lam, flags.dropout) == (1e-4, 8, 0.5, 0.1)


def test_the_rate_falls_after_four_fifths_of_the_epochs():
    flags = study.Sentiment.of("smoke", epochs=15, device="cpu")
    run = study.plan(flags, study.Splits(flags), study.models(flags)["baseline"], 0)
    assert run.config.steps == 15 * run.batches.per_epoch
    assert run.config.schedule.boundaries == (12 * run.batches.per_epoch,)
    assert run.batches.bucket > 1 and not run.batches.pad_to_context


def test_the_published_habits_are_those_of_its_code(monkeypatch):
    flags = study.Sentiment.of("smoke", device="cpu", published=True)
    run = study.plan(flags, study.Splits(flags), study.models(flags)["continuous lam=0.5"], 0)
    assert run.model.head.pooling == "max with padding"
    tokens, labels = run.batches(0)
    assert tokens.shape[1] == flags.context
    logits = run.model.eval()(tokens)
    loss = run.objective(run.model, tokens, labels)
    again = torch.nn.functional.cross_entropy(logits.output.softmax(1), labels)
    assert torch.allclose(loss.parts["data"], again)
    assert torch.allclose(loss.total, again + 0.5 * logits.cost)
    asked = []
    monkeypatch.setattr(
        nets.data, "imdb", lambda **options: asked.append(options) or study.invented()
    )
    splits = study.Splits(study.Sentiment.of("smoke", dataset="imdb", published=True))
    for seed in (3, 3, 4):
        splits.of(seed)
    joined = {"folder": None, "split": "joined", "keep_duplicates": True}
    assert asked == [joined | {"seed": 3}, joined | {"seed": 4}]


def made(rows):
    """Return results of three seeds: best accuracy by model, and whether its runs diverged."""
    keys = ("final", "best", "test_loss", "training", "straightness")
    records = {}
    for name, (best, diverged) in rows.items():
        spread = np.array([-1e-3, 0.0, 1e-3])
        records[name] = [
            dict.fromkeys(keys, np.nan if diverged else best + spread[k])
            | {"diverged": diverged, "largest": 1e9 if diverged else 3.0}
            for k in range(3)
        ]
    return Results(records, {})


@pytest.mark.parametrize("blows_up", [True, False])
def test_the_verdicts_follow_the_numbers(blows_up):
    rows = {
        "baseline": (0.84, False),
        "node lam=0": (0.83, blows_up),
        "node lam=0.001": (0.83, False),
        "node lam=0.5": (0.831, False),
        "continuous lam=0": (0.83, blows_up),
        "continuous lam=0.001": (0.82, False),
        "continuous lam=0.5": (0.86, False),
    }
    free = {
        f"{name} without norms": row for name, row in rows.items() if name[-3:] in ("m=0", "0.5")
    }
    rows |= {name: (0.8, name.split()[1] == "lam=0") for name in free}
    found = study.findings(study.Sentiment.of("cpu"), None, made(rows))
    verdicts = [finding.verdict for finding in found]
    assert verdicts[:6] == ["confirmed"] * 6
    assert verdicts[6] == "not confirmed"  # better at the end, too: more than published
    assert found[5].prediction.startswith("the N-ODE transformers")
    bounded = ["confirmed"] * 2 if blows_up else ["not confirmed", "inconclusive"]
    assert verdicts[-4:] == [*bounded, "confirmed", "confirmed"]
    assert found[-4].found.startswith("6 of 6" if blows_up else "0 of 6")
    assert found[-2].prediction.startswith("without layer norms") and "6 of 6" in found[-2].found


def test_a_weak_baseline_and_a_diverged_model_with_cost_are_said():
    names = list(study.models(study.Sentiment.of("cpu")))[1:]
    rows = {"baseline": (0.7, False)} | {name: (0.8, "0.5" in name) for name in names}
    found = study.findings(study.Sentiment.of("cpu"), None, made(rows))
    assert found[0].verdict == "not confirmed" and found[1].verdict == "not confirmed"
    assert found[-1].verdict == "not confirmed"
