"""Metrics of texts: the libraries' documented examples, definitions, and what is refused."""

import math
import random
import sys
import warnings

import pytest
import torch

from wflow import InputError, nets
from wflow.nets import metrics

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def library():
    """The packages of the extra."""
    for package in ("sacrebleu", "sacremoses", "rouge_score"):
        pytest.importorskip(package)


# Scores


def test_rouge_is_that_of_the_documented_example(library):
    # README of rouge-score, with its stemmer: precision 6/8, recall 6/9 of single words.
    found = metrics.scores(
        ["The quick brown dog jumps on the log."], ["The quick brown fox jumps over the lazy dog"]
    )
    assert found.rouge1 == pytest.approx(100 * 0.7058823529411765)
    assert found.rougeL == pytest.approx(100 * 0.5882352941176471)  # subsequence of 5 words
    assert (found.texts, found.skipped) == (1, 0) and math.isnan(found.bertscore)


def test_bleu_is_that_of_the_documented_example(library):
    # README of sacrebleu: BLEU = 48.53 82.4/50.0/45.5/37.5, hyp_len = 17, ref_len = 18.
    written = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
    first = ["The dog bit the man.", "It was not unexpected.", "The man bit him first."]
    second = ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."]
    found = metrics.bleu(written, first, second, words="13a")
    want = 100 * math.exp(1 - 18 / 17) * (14 / 17 * 7 / 14 * 5 / 11 * 3 / 8) ** 0.25
    assert found == pytest.approx(want) and f"{found:.2f}" == "48.53"
    assert "tok:13a" in metrics.signature("13a")


def test_bleu_splits_words_as_moses_does(library):
    # README of sacremoses: "ain't" are the words ain &apos;t. Matches of 7 words: all but one.
    pair = ["It isn't so bad at all"], ["It ain't so bad at all"]
    want = 100 * (6 / 7 * 4 / 6 * 3 / 5 * 2 / 4) ** 0.25
    assert metrics.bleu(*pair) == metrics.scores(*pair).bleu == pytest.approx(want)
    one = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25  # in one piece: all but one of 6
    assert metrics.bleu(*pair, words="13a") == pytest.approx(one)
    shorter, held_out = "the cat sat on", "the cat sat on the mat yesterday"
    assert metrics.bleu([shorter], [held_out]) == pytest.approx(100 * math.exp(1 - 7 / 4))
    assert "tok:moses-" in metrics.signature()


def test_pairs_with_an_empty_text_are_skipped_and_counted(library):
    written = ["to be or not to be", "", "  \n", "that is"]
    found = metrics.scores(written, ["to be or not to be", "a", "b", " "])
    assert (found.texts, found.skipped) == (1, 3)
    assert found[:4] == pytest.approx((100, 100, 100, 100))
    none = metrics.scores(iter([""]), iter(["a"]))
    assert (none.texts, none.skipped) == (0, 1) and all(map(math.isnan, none[:7]))


def test_a_text_of_any_script_has_the_rouge_of_its_words(library):
    cyrillic, hindi, thai = "Привет, мир: как дела?", "मैं आज स्कूल जाता हूँ", "สวัสดีชาวโลก"
    for text in (cyrillic, hindi, thai, "猫坐在垫子上。", "안녕하세요 세계 여러분 반갑습니다"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on BLEU of few words
            same = metrics.scores([text], [text])
            other = metrics.scores([text], ["eight English words that none of them has"])
        assert same[1:4] == (100, 100, 100) and other[1:4] == (0, 0, 0)


def test_words_differ_by_their_accents_and_not_by_how_these_are_written(library):
    def rouge(one, other):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return metrics.scores([one], [other]).rouge1

    assert rouge("été", "t") == rouge("मैं", "में") == rouge("猫", "狗") == 0  # vowel signs count
    composed = "Été à la Straße, ｆｕｌｌ"
    assert rouge(composed, "e\u0301te\u0301 a\u0300 LA strasse full") == 100
    assert rouge("دا\u200cنا", "دانا") == 100  # a joiner is no letter
    assert rouge("猫坐在垫子上", "狗坐在垫子上") == pytest.approx(100 * 5 / 6)  # by characters
    assert rouge("running in Zürich", "runs in Zürich") == 100  # ASCII words are stemmed


def test_the_words_of_ascii_texts_are_those_of_the_library(library):
    from rouge_score.tokenizers import DefaultTokenizer

    rng, theirs, ours = random.Random(0), DefaultTokenizer(use_stemmer=True), metrics._Words()
    for _ in range(300):
        text = "".join(chr(rng.randrange(128)) for _ in range(rng.randrange(40)))
        assert ours.tokenize(f"{text} 猫") == [*theirs.tokenize(text), "猫"]


def test_texts_without_words_have_no_rouge(library):
    with pytest.warns(UserWarning, match="1 of 2 pairs"):
        found = metrics.scores(["🎉 !!", "so it is now"], ["🎉 !!", "so it is now"])
    assert all(map(math.isnan, found[1:4])) and found.texts == 2
    assert metrics.scores(["...", "a b c d"], ["the cat", "a b c d"]).rouge1 == 50  # nothing shared


def test_equal_texts_score_no_more_than_100(library):
    texts = [" ".join(f"w{k}" for k in range(count)) for count in range(4, 15)]
    assert {metrics.bleu([text], [text]) for text in texts} == {100}
    for count in (3, 7, 49):
        assert max(metrics.scores(texts[:1] * count, texts[:1] * count)[:4]) <= 100


def test_bleu_of_fewer_than_four_words_is_zero_with_a_warning(library):
    for call in (metrics.bleu, lambda *pair: metrics.scores(*pair).bleu):
        with pytest.warns(UserWarning, match="four words") as caught:
            assert call(["the cat sat"], ["the cat sat"]) == 0
        assert caught[0].filename == __file__


@pytest.fixture
def encoder(only_long, tmp_path_factory):
    """A tiny encoder, in a folder whose name has what some libraries read as another model."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("bert_score")
    folder = tmp_path_factory.mktemp("t5")
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on mat dog ##s a"
    (folder / "vocab.txt").write_text(words.replace(" ", "\n"))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=13, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=40,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def test_bertscore_is_that_of_its_definition(library, encoder):
    from transformers import AutoModel

    ids = [[2, 5, 6, 7, 3], [2, 5, 6, 11, 7, 8, 5, 9, 3]]  # "the cat sat", its reference
    model = AutoModel.from_pretrained(encoder).eval()
    with torch.no_grad():
        states = [model(torch.tensor([row])).last_hidden_state[0] for row in ids]
    predicted, given = (torch.nn.functional.normalize(state, dim=1) for state in states)
    near = predicted @ given.T  # (5, 9); first and last token are matched, and weigh nothing
    precision = near.max(1).values[1:-1].mean().item()
    recall = near.max(0).values[1:-1].mean().item()
    found = metrics.scores(["the cat sat", ""], ["the cats sat on the mat", "a"], encoder=encoder)
    assert found.bert_precision == pytest.approx(100 * precision, rel=1e-5)
    assert found.bert_recall == pytest.approx(100 * recall, rel=1e-5)
    both = 2 * precision * recall / (precision + recall)
    assert found.bertscore == pytest.approx(100 * both, rel=1e-5)
    assert (found.texts, found.skipped) == (1, 1)
    long = " ".join(["the cat sat"] * 30)  # more tokens than the encoder has positions
    assert metrics.scores([long], [long], encoder=str(encoder)).bertscore == pytest.approx(100)
    with pytest.raises(InputError, match=r"config\.json"):
        metrics.scores(["a"], ["a"], encoder=encoder / "nothing-there")


def test_a_package_that_is_missing_is_named(monkeypatch):
    for module in ("sacrebleu.metrics", "rouge_score.rouge_scorer"):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(InputError, match=module.partition(".")[0]):
            metrics.scores(["a"], ["a"])


@pytest.mark.parametrize(
    ("predictions", "references", "words"),
    [
        (["a"], ["a", "b"], "1 predictions and 2 references"),
        ([], [], "predictions are empty"),
        ("text", ["a"], "predictions"),
        (["a"], [1], "references"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(predictions, references, words):
    with pytest.raises(InputError, match=words):
        metrics.scores(predictions, references)


# Perplexities


def test_perplexities_are_those_of_their_formulas():
    losses = torch.tensor([[2.0, 4.0], [8.0, 16.0]]).log()
    found = metrics.perplexities(losses)
    assert found.of_mean == pytest.approx(1024 ** (1 / 4))
    assert found.mean_of_sequences == pytest.approx((8**0.5 + 128**0.5) / 2)
    ragged = metrics.perplexities([losses, torch.tensor([32.0]).log()])
    assert ragged.of_mean == pytest.approx(32768 ** (1 / 5))
    assert ragged.mean_of_sequences == pytest.approx((8**0.5 + 128**0.5 + 32) / 3)
    assert metrics.perplexities(torch.full((4, 5), 2.0)) == pytest.approx([math.exp(2)] * 2)


# What a model writes


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nets.GPT(vocabulary=7, context=6, width=8, depth=1, heads=2, dropout=0.5)


TOKENS = torch.randint(0, 7, (40,), generator=torch.Generator().manual_seed(1))


def test_losses_and_predictions_are_those_of_the_logits(net):
    found = metrics.losses(net, nets.data.windows(TOKENS, context=6, batch=4))
    predicted, targets = metrics.teacher_forced(net, nets.data.windows(TOKENS, context=6, batch=4))
    assert net.training  # and dropout was off
    assert torch.equal(torch.cat(targets), TOKENS[1:])
    assert [len(row) for row in predicted] == [len(row) for row in found] == [6] * 6 + [3]
    net.eval()
    with torch.no_grad():
        logits = net(TOKENS[None, :6]).output[0]
    assert torch.equal(predicted[0], logits.argmax(-1))
    want = torch.nn.functional.cross_entropy(logits, TOKENS[1:7], reduction="none")
    assert torch.allclose(found[0].float(), want, atol=1e-6) and found[0].dtype == torch.float64


def test_continuations_are_generated_from_beginnings_alone(net):
    begun, rest = metrics.passages(TOKENS, beginning=5, continuation=3, most=4)
    assert begun.shape == (4, 5) and rest.shape == (4, 3)
    assert torch.equal(begun[0], TOKENS[:5]) and torch.equal(rest[-1], TOKENS[37:])
    predicted, targets = metrics.generated(net, begun, rest, seed=3, batch=3)
    assert torch.equal(torch.stack(targets), rest) and len(predicted) == 4
    generator = torch.Generator().manual_seed(3)
    first = net.generate(begun[:3], 3, generator=generator)
    assert torch.equal(torch.stack(predicted[:3]), first[:, 5:])
    likeliest, _ = metrics.generated(net, begun, torch.zeros_like(rest), temperature=0)
    assert torch.equal(torch.stack(likeliest), net.generate(begun, 3, temperature=0)[:, 5:])
