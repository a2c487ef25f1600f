"""Tokenizers: single characters, the byte pairs of GPT-2, and byte pairs learnt from texts."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wflow._core.checks import switch, whole
from wflow._core.errors import InputError
from wflow._core.extras import required
from wflow._core.files import replace_file
from wflow.nets.checks import listed, tensor
from wflow.nets.checks import text as given_text
from wflow.nets.data.download import cache_folder

PAD = "<pad>"  # of learnt byte pairs
_LEAST = 257  # of their vocabulary: the bytes, and the token that fills short texts
_PIECE = 1 << 16  # characters that the library is given at a time: it takes 150 bytes for each
# Where a text may be cut, since no word of GPT-2 reaches across: behind a line end and before a
# space that stand alone, behind a letter or digit before a mark, behind a letter before a digit.
_CUT = re.compile(r"\S\n(?=\S)|\S(?= \S)|[^\W_](?=[,.;:!?、。，])|[A-Za-z](?=[0-9])")


class Tokenizer(Protocol):
    """Map between text and token numbers 0 .. vocabulary - 1: the interface of tokenizers.

    Parameters
    ----------
    *args, **kwargs : object
        Not used: any class with these methods is a tokenizer.

    Examples
    --------
    >>> from wflow import nets
    >>> tokenizer: nets.data.Tokenizer = nets.data.Characters("to be")
    >>> tokenizer.vocabulary
    5
    """

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""

    def encode(self, text: str) -> Tensor:
        """Map a text to token numbers.

        Parameters
        ----------
        text : str
            The text.

        Returns
        -------
        Tensor, shape (n,)
            Token numbers, int64.

        Raises
        ------
        InputError
            For a character that the vocabulary lacks.
        """

    def decode(self, tokens: Tensor | Iterable[int]) -> str:
        """Map token numbers to a text.

        Parameters
        ----------
        tokens : Tensor or iterable of int, shape (n,)
            Token numbers.

        Returns
        -------
        str
            The text without padding; bytes that are no UTF-8 come out as U+FFFD.

        Raises
        ------
        InputError
            For a number outside the vocabulary.
        """


class Characters(Tokenizer):
    """One token per character, numbered in the order of their code points.

    Parameters
    ----------
    text : str
        Text whose characters are the vocabulary.

    Raises
    ------
    InputError
        For an empty text.

    Examples
    --------
    >>> from wflow import nets
    >>> tokenizer = nets.data.Characters("hello")
    >>> tokenizer.encode("hole").tolist()
    [1, 3, 2, 0]
    """

    def __init__(self, text: str) -> None:
        if not given_text(text, "text"):
            raise InputError("the text is empty; expected at least one character")
        self._codes = np.unique(_code_points(text))

    @property
    def vocabulary(self) -> int:
        return len(self._codes)

    def encode(self, text: str) -> Tensor:
        codes = _code_points(given_text(text, "text"))
        numbers = np.searchsorted(self._codes, codes)
        known = self._codes[np.minimum(numbers, self.vocabulary - 1)] == codes
        if not known.all():
            missing = "".join(map(chr, np.unique(codes[~known])[:10]))
            raise InputError(
                f"the text has characters that the vocabulary lacks: {missing!r}; leave them out, "
                "or train on a text that has them"
            )
        return torch.from_numpy(numbers.astype(np.int64))

    def decode(self, tokens: Tensor | Iterable[int]) -> str:
        codes = self._codes[numbers_of(tokens, self.vocabulary)]
        return codes.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


class _BytePairs(Tokenizer):
    """Common part of both kinds of byte pairs; `_tokenizer` belongs to the library."""

    _tokenizer: Any

    @property
    def vocabulary(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> Tensor:
        pieces = self._pieces(given_text(text, "text"))
        return torch.cat([torch.zeros(0, dtype=torch.int64), *map(self._encode, pieces)])

    def _pieces(self, text: str) -> Iterable[str]:
        return [text]

    def _encode(self, text: str) -> Tensor:
        # Without the places of the tokens in the text, which nobody asks for.
        (found,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return torch.from_numpy(np.array(found.ids, dtype=np.int64))

    def decode(self, tokens: Tensor | Iterable[int]) -> str:
        numbers = numbers_of(tokens, self.vocabulary).tolist()
        return str(self._tokenizer.decode(numbers, skip_special_tokens=True))


class BytePairs(_BytePairs):
    """Byte-pair encoding of GPT-2 [1]_, by the library `tokenizers`.

    Text becomes UTF-8 bytes, is cut into words, and in each word the pairs of the merge list are
    joined in its order. Every text has tokens, and no special tokens are put in.

    Parameters
    ----------
    encoder : bytes
        Content of the published encoder.json: token (bytes written as letters) -> number.
    merges : bytes
        Content of the published vocab.bpe: one pair a line, below a line with the version.

    Raises
    ------
    InputError
        Without the package tokenizers, and for contents of another form.

    References
    ----------
    .. [1] Radford, Wu, Child, Luan, Amodei, Sutskever, "Language models are unsupervised multitask
       learners" (2019), section 2.2.

    Examples
    --------
    >>> from pathlib import Path
    >>> from wflow import nets
    >>> files = [Path("gpt2-bpe", name) for name in ("encoder.json", "vocab.bpe")]
    >>> pairs = nets.data.BytePairs(*(file.read_bytes() for file in files))  # doctest: +SKIP
    >>> pairs.encode("Hello world").tolist()  # doctest: +SKIP
    [15496, 995]
    """

    def __init__(self, encoder: bytes, merges: bytes) -> None:
        for name, given in (("encoder", encoder), ("merges", merges)):
            if not isinstance(given, bytes):
                raise InputError(f"{name} is {type(given).__name__}: expected the bytes of a file")
        library = tokenizers_library()
        letters = library.pre_tokenizers.ByteLevel.alphabet()  # one for each of the 256 bytes
        numbers, pairs = _published(encoder, merges, letters)
        model = library.models.BPE(vocab=numbers, merges=pairs)
        self._tokenizer = library.Tokenizer(model)
        # No space is put before the text, and words are cut as GPT-2 does.
        self._tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=True
        )
        self._tokenizer.decoder = library.decoders.ByteLevel()

    def _pieces(self, text: str) -> Iterator[str]:
        first = 0
        while first < len(text):
            cut = _CUT.search(text, first + _PIECE)
            last = len(text) if cut is None else cut.end()
            yield text[first:last]
            first = last


class TrainedBytePairs(_BytePairs):
    """Byte pairs learnt from texts [1]_: the most frequent pair of tokens becomes a token, again.

    Token 0 fills short texts and stands for none, tokens 1 to 256 are the bytes: every text can be
    encoded. Words are cut as those of GPT-2, and no pair reaches beyond a word. The same texts and
    settings give the same tokens; they are kept in the cache of downloads (where pooch is
    installed) under the checksum of texts and settings, since learning takes a minute for 25,000
    film reviews.

    Parameters
    ----------
    texts : sequence of str
        What is learnt from.
    vocabulary : int
        Number of tokens, at least 257; fewer if the texts have no more pairs.
    lowercase : bool, default True
        Whether capital letters are made small, in these texts and in those that are encoded.
    cached : bool, default True
        False neither looks into the cache nor writes to it.

    Raises
    ------
    InputError
        For texts that are no list of strings, none that is not empty, a vocabulary out of range,
        and without the package tokenizers.

    References
    ----------
    .. [1] Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units",
       ACL 2016, on bytes as by Radford et al. (2019), section 2.2.

    Examples
    --------
    >>> from wflow import nets
    >>> texts = ["to be or not to be"]
    >>> pairs = nets.data.TrainedBytePairs(texts, 260, cached=False)
    >>> pairs.vocabulary, pairs.decode(pairs.encode("To be"))
    (260, ' to be')
    """

    def __init__(
        self,
        texts: Sequence[str],
        vocabulary: int,
        *,
        lowercase: bool = True,
        cached: bool = True,
    ) -> None:
        given = [given_text(one, "a text") for one in listed(texts, "texts")]
        if not any(given):
            raise InputError("the texts are empty: expected something to learn byte pairs from")
        size = whole(vocabulary, "vocabulary", _LEAST)
        small = switch(lowercase, "lowercase")
        library = tokenizers_library()
        folder = cache_folder() if switch(cached, "cached") else None
        file = folder and folder / "byte-pairs" / f"{_key(given, size, small)}.json"
        self._tokenizer: Any = None
        if file and file.is_file():
            try:
                self._tokenizer = library.Tokenizer.from_file(str(file))
            except Exception:  # the library's own; a damaged file is learnt again
                self._tokenizer = None
        if self._tokenizer is None:
            self._tokenizer = _learnt(library, given, size, small)
            if file:
                content = self._tokenizer.to_str()
                try:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    replace_file(file, lambda draft: draft.write_text(content, encoding="utf-8"))
                except OSError:  # a cache that cannot be written to is none
                    pass
        # A text that holds the word for padding is encoded letter by letter.
        self._tokenizer.encode_special_tokens = True

    def encode_all(self, texts: Sequence[str]) -> list[Tensor]:
        """Map many texts to token numbers, on all cores.

        Parameters
        ----------
        texts : sequence of str
            The texts.

        Returns
        -------
        list of Tensor, shapes (n_i,)
            Token numbers of each text, int64.

        Raises
        ------
        InputError
            For what is no list of strings.
        """
        given = [given_text(one, "a text") for one in listed(texts, "texts")]
        found = self._tokenizer.encode_batch(given, add_special_tokens=False)
        return [torch.tensor(one.ids, dtype=torch.int64) for one in found]


class Occurring(Tokenizer):
    """Tokens of another tokenizer that occur in a text, with new numbers in their order.

    Parameters
    ----------
    tokenizer : Tokenizer
        Where the tokens come from.
    tokens : Tensor, shape (n,)
        Token numbers of the text.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: Tensor) -> None:
        self.tokenizer = tokenizer
        self.kept = tokens.unique()  # (vocabulary,), sorted

    @property
    def vocabulary(self) -> int:
        return len(self.kept)

    def renumber(self, tokens: Tensor) -> Tensor:
        """Map numbers of the other tokenizer to those of this one."""
        numbers = torch.searchsorted(self.kept, tokens)
        missing = self.kept[numbers.clamp(max=self.vocabulary - 1)] != tokens
        if missing.any():
            found = self.tokenizer.decode(tokens[missing][:10])
            raise InputError(
                f"the text has tokens that the vocabulary lacks, such as {found!r}; leave them "
                "out, or train on a text that has them"
            )
        return numbers

    def encode(self, text: str) -> Tensor:
        return self.renumber(self.tokenizer.encode(text))

    def decode(self, tokens: Tensor | Iterable[int]) -> str:
        numbers = torch.from_numpy(numbers_of(tokens, self.vocabulary))
        return self.tokenizer.decode(self.kept[numbers])


def _learnt(library: Any, texts: list[str], vocabulary: int, lowercase: bool) -> Any:
    """Train a tokenizer of the library."""
    levels = library.pre_tokenizers.ByteLevel
    tokenizer = library.Tokenizer(library.models.BPE())
    if lowercase:
        tokenizer.normalizer = library.normalizers.Lowercase()
    tokenizer.pre_tokenizer = levels(add_prefix_space=True, use_regex=True)
    tokenizer.decoder = library.decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        library.trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[PAD],
            initial_alphabet=sorted(levels.alphabet()),
            show_progress=False,
        ),
    )
    return tokenizer


def _key(texts: list[str], vocabulary: int, lowercase: bool) -> str:
    """Return the name of trained pairs in the cache, which depends on the library's version."""
    setting = [vocabulary, lowercase, version("tokenizers"), len(texts)]
    digest = hashlib.sha256(json.dumps(setting).encode())
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def _published(
    encoder: bytes, merges: bytes, letters: Iterable[str]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return numbers of the tokens, and pairs of tokens whose join is a token too.

    What does not hold together is refused here: the library ends by a panic on it.
    """
    wrong = "encoder.json and vocab.bpe cannot be used ({}); expected the files of GPT-2"
    try:
        numbers = json.loads(encoder)
        lines = merges.decode("utf-8").splitlines()
    except (ValueError, RecursionError) as error:
        raise InputError(wrong.format(error)) from None
    values = numbers.values() if isinstance(numbers, dict) else [None]
    whole = [value for value in values if type(value) is int]
    if len(whole) < len(values) or sorted(whole) != list(range(len(whole))):
        raise InputError(wrong.format("the tokens are not numbered 0, 1, 2, ..."))
    if missing := set(letters) - set(numbers):
        raise InputError(wrong.format(f"{len(missing)} of the 256 bytes are no tokens"))
    pairs = []
    for line in lines:
        if not line or line.startswith("#version:"):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= numbers.keys():
            raise InputError(wrong.format(f"{line!r} is no pair of tokens whose join is a token"))
        pairs.append((pair[0], pair[1]))
    return numbers, pairs


def tokenizers_library() -> Any:
    return required("tokenizers", "nets", "byte pairs", 'take tokens="characters"')


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint32)


def numbers_of(tokens: Tensor | Iterable[int], vocabulary: int) -> NDArray[np.int64]:
    """Return token numbers as an array (n,), each of them in the vocabulary."""
    if isinstance(tokens, Tensor):
        array = tensor(tokens, "tokens", "number").detach().cpu().numpy()
    else:
        given = listed(tokens, "tokens")
        if any(isinstance(token, bool | np.bool_) for token in given):
            raise InputError("tokens are booleans; expected whole numbers (n,)")
        try:
            array = np.asarray(given)
        except (RuntimeError, TypeError, ValueError):  # of tensors in the list, or of other lists
            raise InputError(
                "tokens are lists of different lengths, or no numbers; expected (n,)"
            ) from None
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"tokens have shape {array.shape} and type {array.dtype}; expected whole numbers (n,)"
        )
    if array.min() < 0 or array.max() >= vocabulary:
        raise InputError(
            f"tokens reach from {array.min()} to {array.max()}; expected 0 to {vocabulary - 1}, "
            "the numbers of the vocabulary"
        )
    return array.astype(np.int64)
