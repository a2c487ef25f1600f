"""The studies of Shakespeare with scores of texts: published sizes, habits, verdicts, a resume."""

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")

from scripts import VERDICTS, script  # noqa: E402

from wflow import nets  # noqa: E402
from wflow.study import texts  # noqa: E402
from wflow.study.networks import Results  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread", "no_data")

study, characters = script("shakespeare_words"), script("shakespeare_gpt")
parts = script("_gpt2")


def flags_of(*line, monkeypatch):
    monkeypatch.setattr("sys.argv", ["study", "--device", "cpu", *line])
    return study.study.command_line(study.ShakespeareWords, None)


def test_the_published_networks_have_their_parameters():
    # Embedding, shared with the output; blocks of 12 d^2 + 13 d with biases; the final norm. As in
    # nanoGPT, which prints millions, the position embedding does not count.
    d = 768
    want = 50_257 * d + 12 * (12 * d**2 + 13 * d) + 2 * d
    assert f"{want / 1e6:.1f}M" == parts.PARAMETERS
    for kind in (study.ShakespeareWords, script("web_text").WebText):
        paper = kind.of("paper")
        with torch.device("meta"):
            for model in parts.models(paper).values():
                assert parts.network(paper, model, 50_257, 0).count() == want


def test_the_final_norm_is_part_of_the_velocity():
    flags = study.ShakespeareWords.of("smoke", steps=3)
    net, plain = (
        parts.network(flags, parts.models(flags)[name], 11, 0)
        for name in ("continuous", "baseline")
    )
    with torch.no_grad():  # the same weights; a norm that is not the one of the start
        plain.head.norm.weight += torch.linspace(0, 1, 16)
        for new, old in zip(net.parameters(), plain.parameters(), strict=True):
            assert new.shape == old.shape or new.ndim == 1
        net.body.blocks.blocks[-1].load_state_dict(plain.head.norm.state_dict())
        tokens = torch.tensor([[3, 1, 4, 1, 5]])
        state = net.embed(tokens)
        for _ in range(3):
            state = state + plain.head.norm(plain.body(state)) / 3
        want = torch.nn.functional.linear(state, plain.embed.token.weight)
        assert torch.allclose(net(tokens).output, want, atol=1e-6)


def test_the_loss_has_the_published_weight_and_scale():
    text = nets.data.embedded_text()
    flags, habits = (
        study.ShakespeareWords.of("smoke", device="cpu", published=habit) for habit in (False, True)
    )
    baseline, _, model = parts.models(flags).values()
    run, published = (parts.plan(each, text, model, 0) for each in (flags, habits))
    inputs, targets = run.batches(0)
    loss = run.objective(run.model, inputs, targets)
    output, cost = run.model(inputs)
    data = nets.train.cross_entropy(output, targets)
    assert loss.total.item() == pytest.approx(data.item() + 2 * flags.lam * cost.item())
    assert loss.parts["data"].item() == pytest.approx(data.item())
    summed = published.objective(run.model, inputs, targets).total.item()
    assert summed == pytest.approx(flags.parts * loss.total.item())
    rates = [published.config.rule(step) for step in range(flags.iterations)]
    assert rates == sorted(rates) and rates[-1] < flags.rate  # it only rises
    assert run.config.rule(flags.iterations) == pytest.approx(flags.rate / 10)
    plain = parts.plan(flags, text, baseline, 0)
    assert plain.objective(plain.model, inputs, targets).parts["transport"] == 0


@pytest.mark.parametrize(
    ("line", "iterations", "parts_of", "preset"),
    [
        ("--preset paper", 500, 4, True),
        ("--published --preset paper", 2000, 4, True),
        ("--preset paper --published --parts 8", 2000, 8, True),
        ("--preset paper --published --iterations 7", 7, 4, False),
        ("--published", 1500, 1, True),
    ],
)
def test_published_habits_are_those_of_the_paper_preset(
    line, iterations, parts_of, preset, monkeypatch
):
    flags = flags_of(*line.split(), monkeypatch=monkeypatch)
    assert (flags.iterations, flags.parts) == (iterations, parts_of)
    assert flags.published == ("--published" in line)
    assert study.networks.is_published(flags) == preset


def test_parts_divide_the_batch_and_leave_the_training_as_it_is(run_study, sketched):
    flags = ["--preset", "smoke", "--device", "cpu", "--only", "continuous", "--parts"]
    losses = []
    for count in ("1", "4"):
        out = run_study("shakespeare_words", *flags, count, to=count).out
        with xr.open_dataset(out / "continuous-0" / "metrics.h5", engine="h5netcdf") as history:
            losses.append(history["loss"].values)
    assert np.allclose(*losses, rtol=1e-5, atol=0)


def test_study_writes_its_tables_and_resumes(resumed, monkeypatch):
    monkeypatch.setattr("wflow.study.texts.missing", lambda _: ["not installed"])
    done = resumed("shakespeare_words", "--device", "cpu", only="continuous")
    table = done.table
    assert "sonnets" in done.said and "pip install 'wflow-transformers[metrics]'" in done.said
    assert (done.out / "samples.txt").read_text().count("## ") == 3
    assert table["model"].values.tolist() == ["baseline", "unregularised", "continuous"]
    assert np.allclose(table["perplexity"], np.exp(table["final"]))
    assert (table["perplexity_windows"] >= 0.99 * table["perplexity"]).all()
    assert np.isnan(table["forced_bleu"]).all()
    assert np.isfinite(table["straightness"].sel(model="continuous")).all()
    assert np.isnan(table["straightness"].sel(model="baseline")).all()


def test_texts_are_scored_where_the_packages_are(run_study, sketched):
    for package in ("sacrebleu", "sacremoses", "rouge_score"):
        pytest.importorskip(package)
    flags = ["--preset", "smoke", "--device", "cpu", "--only", "baseline"]
    done = run_study("shakespeare_words", *flags)
    for key in ("forced_bleu", "forced_rouge1", "generated_bleu", "generated_rougeL"):
        assert 0 <= done.table[key].item() <= 100
    summary = (done.out / "summary.md").read_text()
    assert "tok:moses-" in summary and "skipped: " in summary


def results(**changes):
    """Return records of networks that do what the paper says, apart from the changes."""
    found = {}
    for place, name in enumerate(("continuous", "unregularised", "baseline")):
        good = dict.fromkeys(texts.SCALARS, 1.0)
        good |= {"best": 4.0 + place, "final": 4.1 + 1.5 * place, "straightness": 1 + 0.1 * place}
        good |= {"forced_rougeL": 30.0 - place, "generated_rougeL": 20.0 - place, "diverged": False}
        good |= changes.get(name, {})
        found[name] = [{key: value + 0.001 * seed for key, value in good.items()}
                       for seed in range(2)]  # fmt: skip
    return Results(found, {name: [] for name in found})


def found(**changes):
    return parts.findings(study.ShakespeareWords.of("cpu"), None, results(**changes))


def test_findings_are_decided_by_the_numbers():
    good = found()
    assert len(good) == 7 and all(finding.verdict == "confirmed" for finding in good)
    bad = found(continuous={"final": 10.0, "best": 8.0, "straightness": 2.0})
    assert [f.verdict for f in bad[:5]] == ["not confirmed"] * 5
    flat = found(baseline={"final": 5.9, "best": 5.9})
    assert len(flat) == 6 and not any("rises" in finding.prediction for finding in flat)
    gone = found(baseline=dict.fromkeys(texts.SCALARS, np.nan))
    assert gone[0].verdict == "inconclusive" and "compared with diverged" in gone[0].found
    unscored = found(continuous={"forced_rougeL": np.nan})
    assert len(unscored) == 7 and {f.verdict for f in unscored} <= set(VERDICTS)
    nothing = {name: {"forced_rougeL": np.nan} for name in ("continuous", "baseline")}
    assert len(found(**nothing)) == 6


def test_an_encoder_is_named_without_its_place():
    pytest.importorskip("sacrebleu")
    pytest.importorskip("sacremoses")
    given = results()
    for records in given.records.values():
        for record in records:
            record["skipped"] = 0
    flags = study.ShakespeareWords.of("cpu", encoder="/home/me/some_package/model")
    said = texts.scored(flags, given, {})
    assert "with some_package/model." in said and "/home" not in said and "BERT-F1" in said


def ablation(names, finals, baseline=3.0):
    """Return records of an ablation."""
    pairs = {"baseline": baseline} | dict(zip(names, finals, strict=True))
    records = {name: [{"final": value + 0.001 * seed} for seed in range(2)]
               for name, value in pairs.items()}  # fmt: skip
    return Results(records, {})


def test_ablations_are_decided_by_the_numbers():
    lams = [f"lam={value:g}" for value in characters.LAMS]
    steps = [f"steps={value}" for value in characters.STEPS]
    good = characters.ablated(ablation(lams, [2.9, 2.6, 2.4, 2.1, 2.0, 2.2]), "lam")
    assert [f.verdict for f in good] == ["confirmed"] * 2
    bad = characters.ablated(ablation(lams, [3.2, 2.6, 2.4, 1.9, 2.0, 2.2]), "lam")
    assert [f.verdict for f in bad] == ["confirmed in part"] * 2
    good = characters.ablated(ablation(steps, [2.02, 2.0, 2.01, 2.03, 2.05]), "steps")
    assert [f.verdict for f in good] == ["confirmed"] * 2
    close = characters.ablated(ablation(steps, [2.0, 2.0, 2.0, 2.0, 2.0985]), "steps")
    assert close[1].verdict == "inconclusive"  # within the spread of a tenth of the gain
    bad = characters.ablated(ablation(steps, [2.5, 2.0, 2.01, 2.03, 3.5]), "steps")
    assert [f.verdict for f in bad] == ["confirmed in part", "not confirmed"]
