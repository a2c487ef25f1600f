"""Byte pairs that are learnt from texts, for data without a published vocabulary."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from wflow._core.checks import switch, whole
from wflow._core.errors import InputError
from wflow._core.files import replace_file
from wflow.nets.checks import listed
from wflow.nets.checks import text as given_text
from wflow.nets.data.download import cache_folder
from wflow.nets.data.tokenize import numbers_of, tokenizers_library

PAD = "<pad>"
_LEAST = 257  # the bytes, and the token that fills short texts


class TrainedBytePairs:
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

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are, that for padding among them."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> Tensor:
        """Map a text to token numbers.

        Parameters
        ----------
        text : str
            The text.

        Returns
        -------
        Tensor, shape (n,)
            Token numbers from 1, int64.
        """
        return self.encode_all([given_text(text, "text")])[0]

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

    def decode(self, tokens: Tensor | Iterable[int]) -> str:
        """Map token numbers to a text.

        Parameters
        ----------
        tokens : Tensor or iterable of int, shape (n,)
            Token numbers.

        Returns
        -------
        str
            The text, with a space before its first word, and without padding.

        Raises
        ------
        InputError
            For a number outside the vocabulary.
        """
        numbers = numbers_of(tokens, self.vocabulary).tolist()
        return str(self._tokenizer.decode(numbers, skip_special_tokens=True))


def _learnt(library: Any, texts: list[str], vocabulary: int, lowercase: bool) -> Any:
    """A tokenizer of the library, trained."""
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
    """Name of what is learnt in the cache; by another version of the library it may be other."""
    setting = [vocabulary, lowercase, version("tokenizers"), len(texts)]
    digest = hashlib.sha256(json.dumps(setting).encode())
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
