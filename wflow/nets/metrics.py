"""Metrics of generated text: BLEU, ROUGE, BERTScore, perplexities, and the texts they compare.

    predictions, targets = metrics.teacher_forced(net, windows)
    found = metrics.scores(map(text.decode, predictions), map(text.decode, targets))

Two texts that a language model writes can be compared with a held-out one. `teacher_forced`
takes the likeliest token after each true one, as [OTT] does: every mistake is forgotten at once.
`generated` texts are what the network writes by itself, from a beginning. The scores of the first
are much higher, and say little about generated text.

Scores are those of sacrebleu, rouge-score and bert-score (extra `metrics`), in per cent.

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer Architectures",
arXiv 2505.13499, Tables 10, 12 and 13.
"""

import inspect
import math
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from wflow._core.checks import check_choice, number, path_of, whole
from wflow._core.errors import AccuracyWarning, InputError, warn
from wflow._core.extras import required
from wflow.nets.blocks import evaluating, output_of
from wflow.nets.checks import check_torch, listed, module, tensor
from wflow.nets.training.parallel import device as device_of

__all__ = [
    "Perplexities",
    "Scores",
    "bleu",
    "check_encoder",
    "generated",
    "losses",
    "passages",
    "perplexities",
    "scores",
    "signature",
    "teacher_forced",
]


def __dir__() -> list[str]:
    return __all__


Words = Literal["moses", "13a"]
Windows = Iterable[tuple[Tensor, Tensor]]
TextPairs = tuple[list[Tensor], list[Tensor]]

# Scores of texts
# ---------------


class Scores(NamedTuple):
    """Scores of predicted texts against their references, in per cent.

    Parameters
    ----------
    bleu : float
        BLEU-4 of the corpus.
    rouge1, rouge2, rougeL : float
        F-measures of words, of pairs of words, and of the longest common subsequence: means over
        texts. NaN, with a warning, where a prediction and its reference have no word at all.
    bertscore : float
        F-measure of BERTScore, a mean over texts; NaN without an encoder.
    bert_precision, bert_recall : float
        What it is made of.
    texts : int
        Pairs of texts that were compared.
    skipped : int
        Pairs that were not, since one of them is empty.

    Examples
    --------
    >>> from wflow import nets
    >>> found = nets.metrics.scores(["to be or not"], ["to be or not"])  # doctest: +SKIP
    >>> found.bleu, found.skipped  # doctest: +SKIP
    (100.0, 0)
    """

    bleu: float
    rouge1: float
    rouge2: float
    rougeL: float
    bertscore: float
    bert_precision: float
    bert_recall: float
    texts: int
    skipped: int


def scores(
    predictions: Iterable[str],
    references: Iterable[str],
    *,
    encoder: str | os.PathLike[str] | None = None,
    device: str = "auto",
) -> Scores:
    r"""Score texts by BLEU [1]_, ROUGE [2]_ and BERTScore [3]_, the scores of [4]_.

    A pair of which one text is empty, or white space alone, is skipped and counted: BERTScore and
    ROUGE are not defined there. Texts may be in any script.

    Parameters
    ----------
    predictions : iterable of str
        Predicted texts.
    references : iterable of str
        The text that each of them is compared with.
    encoder : str or path-like, optional
        Encoder of BERTScore: a folder in the layout of Hugging Face, or the name of one that is in
        the user's cache, such as "roberta-large", the usual one for English. Nothing is downloaded.
        The layer is the one that bert-score recommends for an encoder of that name, otherwise the
        last. None leaves BERTScore out.
    device : str, default "auto"
        Where the encoder computes, as for `nets.train.TrainConfig`.

    Returns
    -------
    Scores
        Scores in per cent; NaN where all pairs are skipped.

    Raises
    ------
    InputError
        For numbers of texts that differ, no texts, what is no text, a package that is missing, and
        an encoder that is not there or cannot be used; the message says what to do.

    Notes
    -----
    BLEU is `bleu`. ROUGE-1, ROUGE-2 and ROUGE-L are F-measures with Porter's stemmer, which changes
    words of ASCII letters alone. Words are runs of letters, digits and their combining marks after
    the normalisation NFKC and case folding of Unicode, so that é and e with an accent behind it are
    the same. In scripts that put no spaces between words (Chinese characters, kana, Thai, Lao,
    Khmer, Burmese) each character, with its marks, is a word. Texts in ASCII have the words of
    rouge-score.

    With unit vectors :math:`x_i` of the tokens of a reference and :math:`y_j` of those of a
    prediction, BERTScore is

    .. math:: R = \frac{1}{n} \sum_{i=1}^n \max_j x_i \cdot y_j, \qquad
       P = \frac{1}{m} \sum_{j=1}^m \max_i x_i \cdot y_j, \qquad F = \frac{2 P R}{P + R},

    without weights by frequency and without rescaling.

    References
    ----------
    .. [1] Papineni, Roukos, Ward, Zhu, "BLEU" (2002); Post, "A call for clarity in reporting BLEU
       scores" (2018).
    .. [2] Lin, "ROUGE: a package for automatic evaluation of summaries" (2004).
    .. [3] Zhang, Kishore, Wu, Weinberger, Artzi, "BERTScore: evaluating text generation with BERT"
       (2020), eqs. 1 and 2.
    .. [4] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, Table 13.

    Examples
    --------
    >>> from wflow import nets
    >>> predictions, references = ["the cat sat", ""], ["the cat slept", "a dog"]
    >>> found = nets.metrics.scores(predictions, references)  # doctest: +SKIP
    >>> round(found.rouge1, 1), found.skipped  # doctest: +SKIP
    (66.7, 1)
    """
    predicted = _checked_texts(predictions, "predictions")
    given = _checked_texts(references, "references")
    _same_length(predicted, given)
    kept = [pair for pair in zip(predicted, given, strict=True) if all(map(str.strip, pair))]
    skipped = len(predicted) - len(kept)
    rouge = _library("rouge_score.rouge_scorer")
    read = None if encoder is None else _encoder(str(path_of(encoder, "encoder")))
    place = device_of(device)
    if not kept:
        nan = math.nan
        return Scores(nan, nan, nan, nan, nan, nan, nan, texts=0, skipped=skipped)
    predicted, given = (list(texts) for texts in zip(*kept, strict=True))
    precision, recall, f_measure = [math.nan] * 3
    if read is not None:
        precision, recall, f_measure = read.score(predicted, given, place)
    return Scores(
        bleu=_corpus_bleu(predicted, [given], "moses"),
        **_rouge(rouge, kept),
        bertscore=f_measure,
        bert_precision=precision,
        bert_recall=recall,
        texts=len(kept),
        skipped=skipped,
    )


def bleu(predictions: Iterable[str], *references: Iterable[str], words: Words = "moses") -> float:
    r"""Return BLEU-4 of a corpus in per cent, by sacrebleu [1]_.

    Parameters
    ----------
    predictions : iterable of str
        Predicted texts.
    *references : iterable of str
        One or more, each of which has a reference for each of the predictions.
    words : {"moses", "13a"}
        How texts are split into words: `moses`, by sacremoses, as [2]_ does; `13a`, the default of
        sacrebleu.

    Returns
    -------
    float
        BLEU, 0 to 100.

    Raises
    ------
    InputError
        For numbers of texts that differ, no texts, what is no text, or a package that is missing.

    Notes
    -----
    With :math:`p_n` the share of the n-grams of the predictions that a reference has, :math:`c` and
    :math:`r` the numbers of words of predictions and references,

    .. math:: \mathrm{BLEU} = 100 \, \min(1, e^{1 - r/c}) \, (p_1 p_2 p_3 p_4)^{1/4}.

    Case counts, and orders without a match are smoothed (exponentially): see `signature`. Where no
    prediction has four words the score is 0, and a warning says so.

    References
    ----------
    .. [1] Post, "A call for clarity in reporting BLEU scores" (2018).
    .. [2] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, Table 13.

    Examples
    --------
    >>> from wflow import nets
    >>> nets.metrics.bleu(["to be or not to be"], ["to be or not to be"])  # doctest: +SKIP
    100.0
    """
    return _corpus_bleu(predictions, references, words)


def _corpus_bleu(
    predictions: Iterable[str], references: Iterable[Iterable[str]], words: Words
) -> float:
    measure = _bleu(words)
    predicted = _checked_texts(predictions, "predictions")
    given = [_checked_texts(each, "references") for each in references]
    if not given:
        raise InputError("there are no references: expected a text for each prediction")
    for each in given:
        _same_length(predicted, each)
    if words == "moses":
        split = _library("sacremoses").MosesTokenizer(lang="en").tokenize
        predicted = [split(text, return_str=True) for text in predicted]
        given = [[split(text, return_str=True) for text in each] for each in given]
    found = measure.corpus_score(predicted, given)
    if not found.totals[3]:  # no prediction has a sequence of four words
        warn(
            "no prediction has four words, and BLEU-4 is 0 whatever they are: give longer texts; "
            "where a language has no spaces, put them between its words",
            AccuracyWarning,
        )
    return min(float(found.score), 100.0)  # the exponential of a sum of logarithms rounds


def signature(words: Words = "moses") -> str:
    """Describe how BLEU is measured, as publications quote it.

    Parameters
    ----------
    words : {"moses", "13a"}
        As for `bleu`.

    Returns
    -------
    str
        Signature of sacrebleu without the number of references; for `moses` with the version of
        sacremoses.

    Raises
    ------
    InputError
        For a package that is missing.

    Examples
    --------
    >>> from wflow import nets
    >>> nets.metrics.signature("13a")  # doctest: +SKIP
    'case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0'
    """
    measure = _bleu(words)
    measure.corpus_score(["a"], [["a"]])  # before that it has no signature
    text = str(measure.get_signature()).partition("|")[2]
    if words == "moses":
        _library("sacremoses")
        text = text.replace("tok:none", f"tok:moses-{_version('sacremoses')}")
    return text


def _bleu(words: Words) -> Any:
    check_choice("words", words, ("moses", "13a"))
    library = _library("sacrebleu.metrics")
    # `force` says that texts which end in " ." are meant to be split already.
    return library.BLEU(tokenize="none" if words == "moses" else "13a", force=words == "moses")


# Words of ROUGE
# --------------

_ALONE = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U0001aff0-\U0001b16f\U00020000-\U0003ffff]"
)
"""A character of Thai, Lao, Burmese, Khmer, kana or Chinese: no spaces are between words there."""


class _Words:
    """Tokenizer of rouge-score for texts in any script; it keeps the words of ASCII texts."""

    def __init__(self) -> None:
        self._plain = _library("rouge_score.tokenizers").DefaultTokenizer(use_stemmer=True)

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text, stemmed where they are ASCII."""
        if text.isascii():
            return self._plain.tokenize(text)  # type: ignore[no-any-return]
        found: list[str] = []
        for word in _words(text):
            found += self._plain.tokenize(word) if word.isascii() else [word]
        return found


def _words(text: str) -> list[str]:
    """Return runs of letters, digits and marks; characters of scripts without spaces singly."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    found, word, single = [], "", False
    for character in folded:
        kind = unicodedata.category(character)
        if kind == "Cf" and character != "\u200b":  # joiners and marks of direction are in words
            continue
        alone = kind != "Nd" and _ALONE.match(character) is not None
        begins, goes_on = kind[0] in "LN", kind[0] == "M"
        if word and not (goes_on or (begins and not alone and not single)):
            found.append(word)
            word = ""
        if not word:
            single = alone
        if word or begins:
            word += character
    return [*found, word] if word else found


def _rouge(library: Any, pairs: list[tuple[str, str]]) -> dict[str, float]:
    """Return ROUGE in per cent, means over pairs of a prediction and its reference."""
    names, words = ("rouge1", "rouge2", "rougeL"), _Words()
    scorer = library.RougeScorer(names, use_stemmer=True, tokenizer=words)
    totals, wordless = dict.fromkeys(names, 0.0), 0
    for prediction, reference in pairs:
        found = scorer.score(reference, prediction)
        if not (found["rouge1"].fmeasure or any(map(words.tokenize, (prediction, reference)))):
            wordless += 1
        for name in names:
            totals[name] += 100 * found[name].fmeasure / len(pairs)
    if wordless:
        warn(
            f"{wordless} of {len(pairs)} pairs of texts have no word, neither the prediction nor "
            "the reference, and ROUGE is not defined: it is NaN; leave them out",
            AccuracyWarning,
        )
        return dict.fromkeys(names, math.nan)
    return {name: min(total, 100.0) for name, total in totals.items()}  # sums round


# BERTScore
# ---------


class _Encoder:
    """An encoder of Hugging Face, and the layer whose vectors are compared."""

    def __init__(self, name: str) -> None:
        config, self.tokenizer = _described(name)
        model = _loading(
            name,
            lambda library: library.AutoModel.from_pretrained(
                name, config=config, local_files_only=True
            ),
        )
        self.library = _library("bert_score.utils")
        self.model = model.eval()

    def score(
        self, predictions: list[str], references: list[str], place: torch.device
    ) -> tuple[float, float, float]:
        """Return precision, recall and F-measure in per cent, means over texts."""
        self.model.to(place)
        weights: defaultdict[int | None, float] = defaultdict(lambda: 1.0)
        weights[self.tokenizer.sep_token_id] = weights[self.tokenizer.cls_token_id] = 0.0
        found = self.library.bert_cos_score_idf(
            self.model,
            references,
            predictions,
            self.tokenizer,
            weights,
            device=place,
        )  # (texts, 3)
        # Products of unit vectors round, too.
        precision, recall, f_measure = (100 * found.double().mean(0)).clamp(-100, 100).tolist()
        return precision, recall, f_measure


@lru_cache(maxsize=1)
def _encoder(name: str) -> _Encoder:
    return _Encoder(name)


def check_encoder(encoder: str | os.PathLike[str]) -> None:
    """Refuse an encoder of BERTScore that is not there, before anything long begins.

    Its configuration and tokenizer are read, its weights are not.

    Parameters
    ----------
    encoder : str or path-like
        As for `scores`.

    Raises
    ------
    InputError
        For an encoder that is not there or no encoder alone, and a package that is missing.

    Examples
    --------
    >>> from wflow import nets
    >>> nets.metrics.check_encoder("roberta-large")  # doctest: +SKIP
    """
    _described(str(path_of(encoder, "encoder")))


def _described(name: str) -> tuple[Any, Any]:
    """Return configuration, with the layers that are used, and tokenizer of an encoder."""
    known = _library("bert_score.utils").model2layers

    def read(library: Any) -> tuple[Any, Any]:
        config = library.AutoConfig.from_pretrained(name, local_files_only=True)
        tokenizer = library.AutoTokenizer.from_pretrained(
            name, local_files_only=True, use_fast=False
        )
        last = config.num_hidden_layers
        layers = known.get(name, known.get(os.path.basename(os.path.normpath(name)), last))
        if config.is_encoder_decoder or layers > last:
            raise InputError(
                f"the encoder {name} has {last} layers and is a {config.model_type}: expected an "
                f"encoder alone, with at least {layers} layers"
            )
        config.num_hidden_layers = layers
        return config, tokenizer

    config, tokenizer = _loading(name, read)
    # Some tokenizers know no longest text; two positions of some encoders are for padding.
    longest = getattr(config, "max_position_embeddings", 512) - 2
    if tokenizer.model_max_length > longest + 2:
        tokenizer.model_max_length = longest
    return config, tokenizer


def _loading(name: str, read: Callable[[Any], Any]) -> Any:
    """Read a part of an encoder by transformers; errors say what was expected."""
    transformers = _library("transformers")
    check_torch()
    try:
        return read(transformers)
    except InputError:
        raise
    except Exception as error:  # a missing or damaged folder can fail in any way
        raise InputError(
            f"the encoder {name} cannot be loaded ({type(error).__name__}: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else 'no reason'}); "
            "expected a folder with config.json, weights and tokenizer, or the name of an encoder "
            "in the cache of Hugging Face, which nothing is downloaded to"
        ) from None


# Perplexities
# ------------


class Perplexities(NamedTuple):
    """The two numbers that are called perplexity.

    Parameters
    ----------
    of_mean : float
        The exponential of the mean loss over all tokens: the usual one.
    mean_of_sequences : float
        The mean over sequences of the exponential of the mean loss of each.

    Examples
    --------
    >>> from wflow import nets
    >>> nets.metrics.Perplexities(2.0, 2.5).of_mean
    2.0
    """

    of_mean: float
    mean_of_sequences: float


def perplexities(losses: Tensor | Iterable[Tensor]) -> Perplexities:
    r"""Return both perplexities of a language model, from its losses of each token.

    Parameters
    ----------
    losses : Tensor, shape (sequences, tokens), or iterable of Tensor
        Losses -log p of the next tokens; several tensors, (sequences, tokens) or (tokens,) each,
        where sequences differ in length.

    Returns
    -------
    Perplexities
        The usual one, and that of the published code of [1]_.

    Raises
    ------
    InputError
        For no losses, and what is no tensor of this shape.

    Notes
    -----
    Of losses :math:`\ell_{ij}` of token j of sequence i with :math:`n_i` tokens

    .. math:: \exp\Big(\frac{\sum_{ij} \ell_{ij}}{\sum_i n_i}\Big), \qquad
       \frac{1}{N} \sum_{i=1}^N \exp\Big(\frac{1}{n_i} \sum_j \ell_{ij}\Big).

    By Jensen's inequality the second is at least the first where all sequences are of one length.
    Table 10 of [1]_ has 17.26, the second, beside a loss of 2.68, whose exponential is 14.6.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, Tables 10, 11 and 13.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> found = nets.metrics.perplexities(torch.tensor([[2.0, 4.0], [8.0, 16.0]]).log())
    >>> round(found.of_mean, 4), round(found.mean_of_sequences, 4)
    (5.6569, 7.0711)
    """
    given = [losses] if isinstance(losses, Tensor) else listed(losses, "losses")
    rows: list[Tensor] = []
    for part in given:
        part = tensor(part, "losses", "real").detach().double()
        if part.ndim not in (1, 2) or not part.numel():
            raise InputError(
                f"losses are of shape {tuple(part.shape)}: expected (sequences, tokens)"
            )
        rows += part.reshape(-1, part.shape[-1]).cpu()
    if not rows:
        raise InputError("there are no losses: expected at least one sequence")
    whole_mean = torch.cat(rows).mean()
    means = torch.stack([row.mean() for row in rows])
    return Perplexities(float(whole_mean.exp()), float(means.exp().mean()))


# What a model writes
# -------------------


def losses(model: nn.Module, windows: Windows) -> list[Tensor]:
    """Compute the losses -log p of each next token of each window.

    Parameters
    ----------
    model : torch.nn.Module
        Network that returns losses (batch, tokens) of ``model(inputs, targets)``, as `nets.GPT`
        does.
    windows : iterable of tuple of Tensor
        Inputs and next tokens, (batch, tokens) each, such as `nets.data.windows`.

    Returns
    -------
    list of Tensor
        Losses (tokens,) of each window, in double precision on the CPU.

    Raises
    ------
    InputError
        For what is no network, no pair of tensors, or losses of another shape.

    Examples
    --------
    >>> from wflow import nets
    >>> text = nets.data.embedded_text()
    >>> net = nets.GPT(vocabulary=text.vocabulary, context=16, width=8, depth=1, heads=2)
    >>> found = nets.metrics.losses(net, nets.data.windows(text.test, context=16, batch=64))
    >>> len(found), nets.metrics.perplexities(found).of_mean > 1
    (123, True)
    """
    rows: list[Tensor] = []
    with evaluating(model), torch.no_grad():
        for inputs, targets, place in _batches(model, windows):
            _check_takes(model, inputs, targets)
            found = output_of(model(inputs.to(place), targets.to(place)))
            if found.shape != targets.shape:
                raise InputError(
                    f"the model returned {tuple(found.shape)} of targets {tuple(targets.shape)}: "
                    "expected a loss of each, as nets.GPT returns with targets"
                )
            rows += found.double().cpu()
    return rows


def teacher_forced(model: nn.Module, windows: Windows) -> TextPairs:
    r"""Return the likeliest next tokens after the true ones, and the true next tokens [1]_.

    Parameters
    ----------
    model : torch.nn.Module
        Network that returns logits (batch, tokens, vocabulary) of inputs, such as `nets.GPT`.
    windows : iterable of tuple of Tensor
        Inputs and next tokens, (batch, tokens) each, such as `nets.data.windows`.

    Returns
    -------
    tuple of list of Tensor
        Predictions and targets, (tokens,) for each window, on the CPU.

    Raises
    ------
    InputError
        For what is no network, no pair of tensors, or logits of another shape.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499: how its code makes the texts of Tables 10 and 13.

    Examples
    --------
    >>> from wflow import nets
    >>> text = nets.data.embedded_text()
    >>> net = nets.GPT(vocabulary=text.vocabulary, context=16, width=8, depth=1, heads=2)
    >>> windows = nets.data.windows(text.test, context=16)
    >>> predictions, targets = nets.metrics.teacher_forced(net, windows)
    >>> text.decode(targets[0])
    "?\nO! love's best"
    """
    predictions: list[Tensor] = []
    came: list[Tensor] = []
    with evaluating(model), torch.no_grad():
        for inputs, targets, place in _batches(model, windows):
            _check_takes(model, inputs)
            logits = output_of(model(inputs.to(place)))
            if logits.shape[:-1] != targets.shape:
                raise InputError(
                    f"the model returned {tuple(logits.shape)} of targets {tuple(targets.shape)}: "
                    "expected logits (batch, tokens, vocabulary)"
                )
            predictions += logits.argmax(-1).cpu()
            came += targets.cpu()
    return predictions, came


def passages(
    tokens: Tensor, *, beginning: int, continuation: int, most: int = 100
) -> tuple[Tensor, Tensor]:
    """Select passages of a text that do not overlap, evenly spread: beginnings, continuations.

    Parameters
    ----------
    tokens : Tensor, shape (n,)
        The text, integers.
    beginning : int
        Tokens that a network is given.
    continuation : int
        Tokens that follow.
    most : int, default 100
        Number of passages, or as many as there are.

    Returns
    -------
    tuple of Tensor
        Beginnings (passages, beginning) and continuations (passages, continuation), int64.

    Raises
    ------
    InputError
        For a text that is shorter than one passage, other shapes or types, numbers out of range.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> begun, rest = nets.metrics.passages(torch.arange(10), beginning=2, continuation=1, most=2)
    >>> begun.tolist(), rest.tolist()
    ([[0, 1], [6, 7]], [[2], [8]])
    """
    beginning, continuation = whole(beginning, "beginning"), whole(continuation, "continuation")
    each, most = beginning + continuation, whole(most, "most")
    if tensor(tokens, "tokens", "whole").ndim != 1 or len(tokens) < each:
        raise InputError(
            f"tokens are of shape {tuple(tokens.shape)}: expected (n,), at least {each}, one "
            f"passage of {beginning} + {continuation}; take a longer text or shorter passages"
        )
    found = len(tokens) // each
    places = torch.linspace(0, found - 1, min(found, most), dtype=torch.float64).long() * each
    cut = tokens.long()[places[:, None] + torch.arange(each)]
    return cut[:, :beginning], cut[:, beginning:]


def generated(
    model: Any,
    beginnings: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    batch: int = 64,
) -> TextPairs:
    """Generate continuations of beginnings, as long as the true ones: honest predictions.

    Parameters
    ----------
    model : nets.GPT
        Network with the method `generate`.
    beginnings : Tensor, shape (texts, tokens)
        What the network is given.
    targets : Tensor, shape (texts, new)
        What follows in the text.
    temperature : float, default 1.0
        As for `nets.GPT.generate`; 0 takes the likeliest token each time.
    top_k : int, optional
        As for `nets.GPT.generate`.
    seed : int, default 0
        Of the tokens that are drawn.
    batch : int, default 64
        Texts that are continued at a time; the draws depend on it.

    Returns
    -------
    tuple of list of Tensor
        Predictions and targets, (new,) for each text, on the CPU.

    Raises
    ------
    InputError
        For a network that does not generate, shapes that do not fit, numbers out of range.

    Examples
    --------
    >>> from wflow import nets
    >>> text = nets.data.embedded_text()
    >>> net = nets.GPT(vocabulary=text.vocabulary, context=16, width=8, depth=1, heads=2)
    >>> begun, rest = nets.metrics.passages(text.test, beginning=8, continuation=4, most=3)
    >>> predictions, targets = nets.metrics.generated(net, begun, rest)
    >>> len(predictions), predictions[0].shape
    (3, torch.Size([4]))
    """
    module(model, "model")
    if not callable(getattr(model, "generate", None)):
        raise InputError(
            f"model is {type(model).__name__}: expected a network that generates, such as nets.GPT"
        )
    tensor(beginnings, "beginnings", "whole")
    tensor(targets, "targets", "whole")
    if beginnings.ndim != 2 or targets.ndim != 2 or len(beginnings) != len(targets):
        raise InputError(
            f"beginnings are of shape {tuple(beginnings.shape)} and targets {tuple(targets.shape)}:"
            " expected (texts, tokens) and (texts, new)"
        )
    temperature = number(temperature, "temperature", 0)
    batch, seed = whole(batch, "batch"), whole(seed, "seed", 0)
    place = _place(model)
    generator = torch.Generator(device=place).manual_seed(seed)
    new, given = targets.shape[1], beginnings.shape[1]
    predictions: list[Tensor] = []
    for part in beginnings.split(batch):
        found = model.generate(
            part.to(place), new, temperature=temperature, top_k=top_k, generator=generator
        )
        predictions += found[:, given:].cpu()
    return predictions, list(targets.cpu())


def _batches(model: nn.Module, windows: Windows) -> Iterator[tuple[Tensor, Tensor, torch.device]]:
    """Yield checked inputs and targets of each batch, and the device of the model."""
    module(model, "model")
    try:
        batches = iter(windows)
    except TypeError:
        raise InputError(
            f"windows are {type(windows).__name__}: expected pairs of inputs and targets, such as "
            "nets.data.windows"
        ) from None
    place = _place(model)
    for pair in batches:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"a window is {type(pair).__name__}: expected inputs and targets")
        inputs, targets = (
            tensor(each, name, "whole")
            for each, name in zip(pair, ("inputs", "targets"), strict=True)
        )
        if inputs.ndim != 2 or inputs.shape != targets.shape:
            raise InputError(
                f"inputs are of shape {tuple(inputs.shape)} and targets "
                f"{tuple(targets.shape)}: expected (batch, tokens) both"
            )
        yield inputs, targets, place


def _check_takes(model: nn.Module, *given: Tensor) -> None:
    """Raise InputError where the network takes another number of arguments."""
    try:
        inspect.signature(model.forward).bind(*given)
    except TypeError as error:
        raise InputError(f"the model cannot be called with {len(given)} tensors: {error}") from None


def _place(model: nn.Module) -> torch.device:
    """Return the device of a model."""
    return next((weight.device for weight in model.parameters()), torch.device("cpu"))


# Packages and arguments
# ----------------------


def _library(name: str) -> Any:
    return required(name, "metrics", "the metrics of texts")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _checked_texts(values: Iterable[str], name: str) -> list[str]:
    if isinstance(values, str):
        raise InputError(f"{name} are one text: expected a list of texts")
    found = listed(values, name)
    for value in found:
        if not isinstance(value, str):
            raise InputError(f"{name} hold {type(value).__name__}: expected texts")
    if not found:
        raise InputError(f"{name} are empty: expected at least one text")
    return found


def _same_length(predictions: Sequence[str], references: Sequence[str]) -> None:
    if len(predictions) != len(references):
        raise InputError(
            f"there are {len(predictions)} predictions and {len(references)} references: expected "
            "one reference for each prediction"
        )
