"""The study of film reviews, end to end and small."""

import dataclasses
import json

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from scripts import call, script  # noqa: E402

from wflow import nets  # noqa: E402
from wflow.study.networks import Results  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_data")


def test_the_study_writes_its_table_and_resumes(tmp_path, monkeypatch, capsys, request):
    request.getfixturevalue("sketched")
    out = tmp_path / "sentiment"
    flags = ["--preset", "smoke", "--epochs", "1", "--device", "cpu", "--out", str(out)]
    assert call("sentiment", monkeypatch, *flags, "--only", "continuous lam=0") == 0
    first = (out / "continuous-lam=0-0" / "checkpoint.pt").stat().st_mtime_ns
    capsys.readouterr()
    assert call("sentiment", monkeypatch, *flags, "--resume", "--only", "baseline") == 0
    assert (out / "continuous-lam=0-0" / "checkpoint.pt").stat().st_mtime_ns == first
    said = capsys.readouterr().out
    assert "invented reviews" in said and "published" not in said.lower()
    assert not (tmp_path / "cache" / "wflow").exists()
    assert json.loads((out / "summary.json").read_text())["findings"] == []
    with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
        assert table.sizes == {"model": 2, "seed": 1}
        assert (table["best"] >= table["final"]).all()
        moving = table.sel(model="continuous lam=0")
        assert (moving["straightness"] >= 1).all() and (moving["transport"] > 0).all()


def test_the_paper_preset_has_the_published_sizes_and_settings():
    study, parts = script("sentiment"), script("_sentiment")
    setup = study.PRESETS["paper"]
    # Table 9 counts the blocks alone: weights, biases and layer norms.
    with torch.device("meta"):
        sizes = {
            name: parts.millions(
                parts.parameters(parts.network(model, setup, 16_000, False, 0).body)
            )
            for name, model in parts.models(setup).items()
            if model.norms
        }
    assert sizes.pop("baseline") == "4.74M" and set(sizes.values()) == {"2.37M"}
    assert {name for name, model in parts.models(setup).items() if model.norms} == set(
        parts.PUBLISHED
    )
    assert (setup.epochs, setup.batch, setup.context, setup.seeds) == (15, 64, 512, 5)
    assert (setup.rate, setup.steps, setup.lam, setup.dropout) == (1e-4, 8, 0.5, 0.1)


def test_the_rate_falls_after_four_fifths_of_the_epochs(monkeypatch):
    study, parts = script("sentiment"), script("_sentiment")
    setup = dataclasses.replace(study.PRESETS["smoke"], epochs=15)
    flags = study.Sentiment(preset="smoke", device="cpu")
    data = parts.load(setup, flags, 0)
    run = parts.plan(parts.models(setup)["baseline"], setup, data, flags, 0)
    assert run.config.steps == 15 * run.batches.per_epoch
    assert run.config.schedule.boundaries == (12 * run.batches.per_epoch,)
    assert run.batches.bucket > 1 and not run.batches.pad_to_context


def test_the_published_habits_are_those_of_its_code(monkeypatch):
    study, parts = script("sentiment"), script("_sentiment")
    setup = study.PRESETS["smoke"]
    flags = study.Sentiment(preset="smoke", device="cpu", published=True)
    data = parts.load(setup, flags, 0)
    run = parts.plan(parts.models(setup)["continuous lam=0.5"], setup, data, flags, 0)
    assert run.model.head.pooling == "max with padding"
    tokens, labels = run.batches(0)
    assert tokens.shape[1] == setup.context
    logits = run.model.eval()(tokens)
    loss = run.objective(run.model, tokens, labels)
    again = torch.nn.functional.cross_entropy(logits.output.softmax(1), labels)
    assert torch.allclose(loss.parts["data"], again)
    assert torch.allclose(loss.total, again + 0.5 * logits.cost)
    asked = {}
    monkeypatch.setattr(
        nets.data, "imdb", lambda **options: asked.update(options) or parts.invented()
    )
    small = dataclasses.replace(setup, dataset="imdb")
    parts.load(small, flags, 3)
    assert asked == {"folder": None, "split": "joined", "seed": 3, "keep_duplicates": True}


def made(rows):
    """Results of three seeds: best accuracy by model, and whether its runs diverged."""
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
    study = script("sentiment")
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
    found = study.findings(study.PRESETS["cpu"], made(rows))
    verdicts = [finding.verdict for finding in found]
    assert verdicts[:6] == ["confirmed"] * 6
    assert verdicts[6] == "not confirmed"  # better at the end, too: more than published
    assert found[5].prediction.startswith("the N-ODE transformers")
    bounded = ["confirmed"] * 2 if blows_up else ["not confirmed", "inconclusive"]
    assert verdicts[-4:] == [*bounded, "confirmed", "confirmed"]
    assert found[-4].found.startswith("6 of 6" if blows_up else "0 of 6")
    assert found[-2].prediction.startswith("without layer norms") and "6 of 6" in found[-2].found


def test_a_weak_baseline_and_a_diverged_model_with_cost_are_said():
    study = script("sentiment")
    names = list(script("_sentiment").models(study.PRESETS["cpu"]))[1:]
    rows = {"baseline": (0.7, False)} | {name: (0.8, "0.5" in name) for name in names}
    found = study.findings(study.PRESETS["cpu"], made(rows))
    assert found[0].verdict == "not confirmed" and found[1].verdict == "not confirmed"
    assert found[-1].verdict == "not confirmed"
