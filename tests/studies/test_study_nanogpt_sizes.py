"""The study of small GPTs: published sizes, passages, BLEU, and a run that is resumed."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scripts import VERDICTS, Done, script  # noqa: E402

from wflow import InputError, nets  # noqa: E402
from wflow.study.networks import Results  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread", "no_data")

study = script("nanogpt_sizes")
SMOKE = study.NanogptSizes.of("smoke", device="cpu")
PAPER = study.NanogptSizes.of("paper", device="cpu")


@pytest.fixture
def corpus():
    return study.corpus(SMOKE, "characters")


@pytest.fixture
def corpora(corpus):
    floor = {"bleu": [30.0, 31.0, 30.5], "bleu_any": [40.0]}
    return study.Corpora({"characters": corpus}, floor)


def test_the_published_sizes_have_their_parameters_and_iterations(corpus):
    counts, steps = {}, []
    text = replace(corpus.text, train=torch.zeros(1_003_854, dtype=torch.int64))
    corpora = study.Corpora({"characters": corpus._replace(text=text)}, {})
    for name, size in study.SIZES["published"].items():
        net = study.network(PAPER, size, 65, 0)
        counts[name] = net.count(positions=True)
        d, n = size.width, size.context
        # Two layer norms, queries, keys, values and output, and a feed-forward layer of width 4 d.
        block = 2 * d + 4 * d**2 + 2 * d * 4 * d
        assert counts[name] == 65 * d + n * d + size.depth * block + d
        assert study.EARLY % size.evaluate_every == 0
        steps.append(study.plan(PAPER, corpora, (size, "characters"), 0).config.steps)
    assert counts == {"S": 5184, "M": 30912, "L": 217728}
    assert steps == [19_600, 4_900, 1_220]  # 20 epochs


def test_an_epoch_sees_every_window_at_most_once(corpus, corpora):
    model = study.models(SMOKE)["M characters"]
    run = study.plan(SMOKE, corpora, model, 0)
    inputs, targets = run.batches.tensors
    size, _ = model
    whole = (len(corpus.text.train) - 1) // size.context
    assert inputs.shape == targets.shape == (whole, size.context)
    assert torch.equal(inputs.flatten(), corpus.text.train[: inputs.numel()])
    assert torch.equal(targets.flatten(), corpus.text.train[1 : inputs.numel() + 1])
    assert run.config.steps == whole // size.batch
    assert (run.config.optimizer, run.config.rule(10**6), run.config.clip) == ("adam", 0.01, None)


def test_losses_are_those_of_the_logits(corpus):
    net = study.network(SMOKE, study.SIZES["tiny"]["L"], corpus.text.vocabulary, 0)
    inputs, targets = corpus.text.train[:64].view(2, 32), corpus.text.train[1:65].view(2, 32)
    net.eval()
    want = nets.train.cross_entropy(net(inputs).output, targets)
    assert study.NextToken()(net, inputs, targets).total.item() == pytest.approx(want.item())
    found = study.loss_on(net, corpus.text.train[:65], 32, torch.device("cpu"))
    assert found == pytest.approx(want.item(), rel=1e-6)


def test_passages_are_beginnings_and_what_follows_them(corpus):
    test = corpus.text.decode(corpus.text.test)
    flat = " ".join(test.split())
    begun = [study.plain(corpus.text.decode(row)) for row in corpus.beginnings]
    assert len(begun) == len(corpus.continuations) == SMOKE.passages
    places = []
    for beginning, rest in zip(begun, corpus.continuations, strict=True):
        assert len(rest.split()) == SMOKE.words and f"{beginning} {rest}" in flat
        places.append(flat.index(f"{beginning} {rest}"))
    assert places == sorted(places) and places[0] < 60 and places[-1] > 0.8 * len(flat)
    assert corpus.new >= max(map(len, corpus.continuations))
    few = replace(SMOKE, words=300)
    with pytest.raises(InputError, match="616"):
        study.corpus(few, "characters")


def test_frequencies_alone_have_the_loss_of_their_entropy():
    tokens = torch.tensor([0, 0, 0, 1, 1, 2])  # counted once more: 4, 3, 2 of 9
    text = nets.data.Text(tokens, torch.tensor([0, 2]), nets.data.Characters("abc"), "")
    assert study.frequency_loss(text) == pytest.approx(-(math.log(4 / 9) + math.log(2 / 9)) / 2)


def test_falls_are_shares_of_the_whole_fall():
    losses = np.concatenate([np.linspace(4, 2, 500), np.full(500, 2.0)])
    losses[475:525], losses[-50:] = 2.0, 1.0
    found = study.falls(losses, np.arange(0, 1001, 250), np.array([5.0, 4.0, 3.0, 2.5, 1.0]))
    assert found == pytest.approx({"early_train": 2 / 3, "early_test": 1 / 2, "late": 1.5 / 4})
    short = study.falls(losses[:400], np.array([0, 300, 400]), np.array([3.0, 2.0, 1.0]))
    assert short == {"late": 0.5}


def test_other_passages_do_not_hold_the_own_one():
    texts = ["a", "b", "c"]
    assert study.without_own(texts) == [["b", "c", "a"], ["c", "a", "b"]]


def test_the_likeliest_tokens_of_a_network_that_knows_the_text_are_the_text(corpus):
    text = corpus.text

    class Oracle(torch.nn.Module):
        def forward(self, tokens):
            place = int((text.test.unfold(0, tokens.shape[1], 1) == tokens[0]).all(1).nonzero()[0])
            after = text.test[place + 1 :][: tokens.numel()].view(tokens.shape)
            logits = torch.nn.functional.one_hot(after, text.vocabulary).float()
            return nets.Output(logits, torch.zeros(()))

    found, (came,) = study.likeliest(Oracle(), text, 50)
    assert found == came and len(found) == math.ceil((len(text.test) - 1) / 50)
    assert "".join(came).replace(" ", "") == "".join(text.decode(text.test[1:]).split())


def test_study_writes_its_tables_and_resumes(tmp_path, monkeypatch, capsys, sketched):
    run, out = script("nanogpt_sizes"), tmp_path / "sizes"
    checkpoint = out / "S-characters-0" / "checkpoint.pt"

    def done(*more):
        flags = ["--preset", "smoke", "--out", str(out), "--device", "cpu", *more]
        monkeypatch.setattr(sys, "argv", ["nanogpt_sizes", *flags])
        run.main()
        return Done(out, capsys.readouterr().out)

    monkeypatch.setattr(run, "metric", lambda: None)
    done("--only", "S characters")
    first = checkpoint.stat().st_mtime_ns
    every = done("--resume")
    assert "sonnets" in every.said and "published" not in every.said
    assert "pip install 'wflow-transformers[metrics]'" in every.said
    samples = (out / "samples.txt").read_text()
    assert samples.count("generated: ") == samples.count("held out: ") == 9
    assert every.findings == [] and every.table["test"].sizes == {"model": 3, "seed": 1}
    assert all(np.isfinite(every.table[key]).all() for key in ("test", "train", "bits"))
    assert np.isnan(every.table["bleu"]).all()
    assert (every.table["best"] <= every.table["test"]).all()

    # What was missing is measured where the package has come.
    monkeypatch.setattr(run, "metric", lambda: "tok:none")
    monkeypatch.setattr(run, "bleu", lambda written, references: 7.0)
    scored = done("--resume")
    assert "Sacrebleu: tok:none." in scored.said and scored.drawn("bleu", "losses_characters")
    assert (scored.table["bleu"] == 7).all() and (scored.table["bleu_next"] == 7).all()
    assert checkpoint.stat().st_mtime_ns == first


def records(flags, **changes):
    """Return records of networks that do what the report says, apart from the changes."""
    found = {}
    for name in study.models(flags):
        place = "SML".index(name[0])
        good = dict.fromkeys(study.SCALARS, 1.0)
        good |= {"test": 2.0 - 0.3 * place, "best": 2.0 - 0.3 * place, "late": 0.01}
        good |= {"early_train": 0.9, "early_test": 0.8, "iterations": 1000, "diverged": False}
        good |= {"bleu": 13.0 + place, "bleu_any": 20.0, "bleu_next": 15.0}
        runs = [good | {key: value + 0.001 * seed for key, value in good.items() if key in
                        ("test", "bleu")} for seed in range(2)]  # fmt: skip
        found[name] = [run | {"best": run["test"]} | changes.get(name[0], {}) for run in runs]
    return Results(found, {name: [] for name in found})


@pytest.mark.parametrize("metric", [None, "tok:13a"])
def test_findings_are_decided_by_the_numbers(metric, monkeypatch, corpora):
    flags = replace(SMOKE, seeds=2)
    monkeypatch.setattr(study, "metric", lambda: metric)
    good = study.findings(flags, corpora, records(flags))
    assert len(good) == (7 if metric is None else 12)
    assert {f.verdict for f in good} <= set(VERDICTS)
    by_lines = [f for f in good if "lines" in f.prediction]
    assert [f.verdict for f in by_lines] == ["not confirmed"]  # the sonnets have fewer
    assert all(f.verdict == "confirmed" for f in good if f not in by_lines)

    bad = {"test": 3.5, "best": 1.0, "late": 0.5, "early_train": 0.1, "early_test": 0.1}
    bad |= {"bleu": 2.0, "bleu_any": 2.0, "bleu_next": 2.0}
    changed = study.findings(flags, corpora, records(flags, L=bad))
    assert all(f.verdict == "confirmed in part" for f in changed
               if f not in by_lines and "another passage" not in f.prediction
               and "lines" not in f.prediction)  # fmt: skip
    close = records(flags, L={"bleu": 12.0001})
    close.records["L characters"][1]["bleu"] = 12.5
    if metric:
        text = [f for f in study.findings(flags, corpora, close) if "continuation" in f.prediction]
        assert text[0].verdict == "confirmed in part" and "over seeds" in text[0].found


def test_characters_and_byte_pairs_are_compared_by_size(monkeypatch, corpus):
    flags = replace(SMOKE, seeds=2, text="shakespeare")
    corpora = study.Corpora({"characters": corpus, "byte pairs": corpus}, {})
    monkeypatch.setattr(study, "metric", lambda: None)
    found = records(flags)
    for name, runs in found.records.items():
        for seed, record in enumerate(runs):
            pairs = name.endswith("byte pairs")
            record["bits"] = (2.0 if pairs else 3.0) + 0.1 * seed
            record["seconds"] = 10.0 + seed
            record["milliseconds"] = (7.0 if pairs else 5.0) + 0.1 * seed
    verdicts = {
        one.prediction.split(":")[0].split(" take")[0]: one.verdict
        for one in study.findings(flags, corpora, found)[-4:]
    }
    assert verdicts == {
        "tiny Shakespeare has around 70 different characters": "not confirmed",  # sonnets: 59
        "characters give worse results than pieces of words": "confirmed",
        "more tokens can increase the training time": "inconclusive",
        "an iteration": "confirmed",
    }


def test_a_short_training_says_nothing_of_its_first_iterations(monkeypatch, corpora):
    flags = replace(SMOKE, seeds=2)
    monkeypatch.setattr(study, "metric", lambda: None)
    short = records(flags, L={"iterations": 360, "early_train": math.nan})
    early = [f for f in study.findings(flags, corpora, short)
             if "iterations" in f.prediction]  # fmt: skip
    assert len(early) == 2 and all(f.verdict == "confirmed" for f in early)
    assert not any("L characters" in f.found for f in early)


def test_byte_pairs_have_the_vocabulary_of_those_that_occur(monkeypatch):
    sonnets = nets.data.embedded_text()
    asked = []

    def shakespeare(*, tokens, folder):
        asked.append((tokens, folder))
        return sonnets

    monkeypatch.setattr(nets.data, "shakespeare", shakespeare)
    flags = replace(SMOKE, text="shakespeare", data="folder")
    found = study.corpus(flags, "byte pairs")
    assert asked == [("gpt2", "folder")] and found.text.source.endswith("of which 59 occur")
    assert {*found.text.train.tolist(), *found.text.test.tolist()} == set(range(59))
    assert found.lines == sonnets.decode(torch.cat([sonnets.train, sonnets.test])).count("\n")
