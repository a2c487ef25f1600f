"""Token files: texts as numbers of two bytes on disk, which training reads in constant memory.

A folder holds `train.bin` and `val.bin`, unsigned numbers of 16 bits, the lowest byte first, and
nothing else: `numpy.memmap(file, "<u2", mode="r")` opens one, as nanoGPT does. `encoder.json` and
`vocab.bpe` are the byte pairs that made them, and `tokens.json`, which is written last, says how
many tokens there are, of which vocabulary, made of what, with the SHA-256 of every file.
"""

import hashlib
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wflow._core.checks import path_of, whole
from wflow._core.errors import InputError
from wflow._core.files import opened, read_file, read_object, replace_file
from wflow._core.progress import progress
from wflow._version import __version__
from wflow.nets.data.tokenize import BytePairs

SCHEMA = "wflow-tokens/1"
INDEX = "tokens.json"
JOURNAL = "preparing.json"  # in place of the index while the files are written
HALVES = {"train": "train.bin", "validation": "val.bin"}
PAIRS = ("encoder.json", "vocab.bpe")
MAX_VOCABULARY = 1 << 16  # tokens of a vocabulary that two bytes can tell apart
WIDTH = 2  # bytes of a token
_BLOCK = 1 << 22  # bytes read at a time
_MOST = 1 << 30  # bytes of one call: systems give at most 2 GiB


class TokenFile:
    """Tokens of one file, read where they are asked for.

    It stands for the tensor of its tokens in `CropBatches` and `windows`: both read what they
    return and nothing else, so memory does not grow with the file, and any number of processes
    share its pages in the cache of the system.

    Parameters
    ----------
    path : str or path-like
        The file.
    tokens : int
        How many it holds.
    vocabulary : int
        How many different tokens there are, 1 to 65,536.
    sha256 : str
        Its checksum, by which a training knows that it is resumed with the same text.

    Raises
    ------
    InputError
        For a file that is missing or of another length.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from wflow import nets
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "text.bin")
    ...     _ = path.write_bytes(np.arange(5, dtype="<u2").tobytes())
    ...     nets.data.TokenFile(path, tokens=5, vocabulary=7, sha256="")[1:4].tolist()
    [1, 2, 3]
    """

    def __init__(
        self, path: str | os.PathLike[str], *, tokens: int, vocabulary: int, sha256: str
    ) -> None:
        self._path = path_of(path, "path")
        self.tokens = self._length = whole(tokens, "tokens", 0)
        self.vocabulary = whole(vocabulary, "vocabulary", 1, most=MAX_VOCABULARY)
        if not isinstance(sha256, str):
            raise InputError(f"sha256 is {type(sha256).__name__}: expected hexadecimal digits")
        self.sha256 = sha256
        with opened(self._path, "a file of tokens") as file:
            size = os.fstat(file.fileno()).st_size
            if size != WIDTH * self.tokens:
                raise InputError(
                    f"{path} has {size:,} bytes: expected {WIDTH * self.tokens:,}, {tokens:,} "
                    "tokens; it is cut off or another file: copy it again, or prepare it again"
                )
            self._number = os.dup(file.fileno())

    def __del__(self) -> None:
        if hasattr(self, "_number"):
            os.close(self._number)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_number"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        given = {name: state[name] for name in ("vocabulary", "sha256")}
        # A process opens it again.
        self.__init__(state["_path"], tokens=state["_length"], **given)  # type: ignore[misc]
        self.tokens = state["tokens"]

    def __len__(self) -> int:
        return self.tokens

    def __getitem__(self, part: slice) -> Tensor:
        """Read neighbouring tokens.

        Parameters
        ----------
        part : slice
            Which ones; its step is 1.

        Returns
        -------
        Tensor, shape (n,)
            Token numbers, int64.
        """
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise InputError(f"part is {part!r:.80}: expected a slice, such as tokens[10:20]")
        first, last, _ = part.indices(self.tokens)
        return torch.from_numpy(self._read(first, max(0, last - first)).astype(np.int64))

    def first(self, tokens: int) -> "TokenFile":
        """Return the beginning of the text alone, without reading it.

        Parameters
        ----------
        tokens : int
            How many tokens, 0 to all.

        Returns
        -------
        TokenFile
            The same file with its checksum, which ends there.

        Raises
        ------
        InputError
            For more tokens than there are.
        """
        count = whole(tokens, "tokens", 0, most=self.tokens)
        found = TokenFile.__new__(TokenFile)
        found.__setstate__(vars(self) | {"tokens": count})
        return found

    def crops(self, begin: Tensor, length: int) -> Tensor:
        """Read several stretches of the same length.

        Parameters
        ----------
        begin : Tensor, shape (n,)
            Where they begin, integers from 0 to tokens - length.
        length : int
            Tokens in each.

        Returns
        -------
        Tensor, shape (n, length)
            Token numbers, int64.

        Raises
        ------
        InputError
            For places outside the file, a file that was cut off meanwhile, and tokens beyond the
            vocabulary, of a file that was changed.
        """
        length, places = whole(length, "length"), begin.tolist()
        if places and not 0 <= min(places) <= max(places) <= self.tokens - length:
            raise InputError(
                f"begin reaches from {min(places)} to {max(places)}: expected 0 to "
                f"{self.tokens - length}"
            )
        found = np.empty((len(places), length), dtype=np.int64)
        for row, place in zip(found, places, strict=True):
            row[:] = self._read(place, length)
        return torch.from_numpy(found)

    def prefetch(self, begin: Tensor, length: int) -> None:
        """Announce which stretches are read next, so that the system fetches them early.

        Parameters
        ----------
        begin : Tensor, shape (n,)
            Where they begin.
        length : int
            Tokens in each.
        """
        if hasattr(os, "posix_fadvise"):
            for place in begin.tolist():
                os.posix_fadvise(
                    self._number, WIDTH * place, WIDTH * length, os.POSIX_FADV_WILLNEED
                )

    def _read(self, first: int, count: int) -> np.ndarray:
        parts, place, end = [], WIDTH * first, WIDTH * (first + count)
        while place < end and (part := os.pread(self._number, min(end - place, _MOST), place)):
            parts.append(part)
            place += len(part)
        data = b"".join(parts)
        found = np.frombuffer(data, "<u2") if len(data) % WIDTH == 0 else np.empty(0, "<u2")
        if len(found) != count:
            raise InputError(
                f"{self._path} ends before token {first + count:,}: it was cut off while it was "
                "read; copy it again, and resume"
            )
        if count and found.max() >= self.vocabulary:
            raise InputError(
                f"{self._path} holds token {found.max()} between {first:,} and {first + count:,}: "
                f"expected 0 .. {self.vocabulary - 1}; the file is damaged: copy it again"
            )
        return found

    def verify(self, *, show: bool = False) -> None:
        """Compare the file with its checksum, which reads all of it.

        Parameters
        ----------
        show : bool, default False
            Show progress.

        Raises
        ------
        InputError
            Where they differ.
        """
        digest, place = hashlib.sha256(), 0
        with progress(WIDTH * self._length, f"checking {self._path.name}", enabled=show) as advance:
            while part := os.pread(self._number, _BLOCK, place):
                digest.update(part)
                place += len(part)
                advance(len(part))
        if digest.hexdigest() != self.sha256:
            raise InputError(
                f"{self._path}: its SHA-256 is {digest.hexdigest()}, expected {self.sha256}; the "
                "file is damaged or another one: copy it again, or prepare it again"
            )


class TokenFiles:
    """A text as token files: training and validation part, and the byte pairs that made them.

    Parameters
    ----------
    folder : str or path-like
        What `prepare_text` or `wflow data prepare` wrote.
    vocabulary : int, optional
        Vocabulary of the network that reads them; files of another one are refused.

    Attributes
    ----------
    train, validation : TokenFile
        The two parts.
    vocabulary, end_of_text : int
        Number of different tokens, and the token behind every document.
    description : dict
        All that tokens.json says.

    Raises
    ------
    InputError
        For a folder without finished token files, a damaged index, files of another length or
        vocabulary.

    Examples
    --------
    >>> from wflow import nets
    >>> text = nets.data.TokenFiles("openwebtext-tokens", vocabulary=50257)  # doctest: +SKIP
    >>> batches = nets.data.CropBatches(text.train, context=1024, batch=480)  # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike[str], *, vocabulary: int | None = None) -> None:
        self._folder = place = path_of(folder, "folder")
        index, what = place / INDEX, f"the folder in which wflow data prepare wrote {INDEX}"
        if place.is_dir() and not index.exists() and (place / JOURNAL).exists():
            raise InputError(
                f"{folder} holds token files that are not finished: give the command that made "
                "them with --resume"
            )
        self.description = found = read_description(index, what)
        try:
            self.vocabulary, self.end_of_text = int(found["vocabulary"]), int(found["end_of_text"])
            files = [found["files"][half] for half in HALVES]
            parts = [{key: file[key] for key in ("tokens", "sha256")} for file in files]
        except (LookupError, TypeError, ValueError):
            raise InputError(f"{index} is damaged: expected {what}; prepare it again") from None
        if vocabulary is not None and whole(vocabulary, "vocabulary") != self.vocabulary:
            raise InputError(
                f"{folder} holds tokens of a vocabulary of {self.vocabulary:,}, and the network's "
                f"is {vocabulary:,}: prepare the text with the tokenizer of the network, or change "
                "the network"
            )
        self.train, self.validation = (
            TokenFile(place / name, vocabulary=self.vocabulary, **part)
            for name, part in zip(HALVES.values(), parts, strict=True)
        )

    @property
    def source(self) -> str:
        """Name of the text and number of its tokens, for tables and figures."""
        found = self.description
        return (
            f"{found['name']}: {len(self.train):,} training and {len(self.validation):,} "
            f"validation tokens of {found['documents']:,} documents (vocabulary "
            f"{self.vocabulary:,})"
        )

    def tokenizer(self) -> BytePairs:
        """Return the tokenizer that made the files of the folder.

        Returns
        -------
        BytePairs
            It maps between text and the tokens of the files.

        Raises
        ------
        InputError
            For a tokenizer that was changed, or without the package tokenizers.
        """
        pairs = read_pairs(self._folder)
        for name, content in zip(PAIRS, pairs, strict=True):
            if hashlib.sha256(content).hexdigest() != self.description["tokenizer"][name]:
                raise InputError(
                    f"{self._folder / name} is not the file that made the tokens: copy the folder "
                    "again"
                )
        return BytePairs(*pairs)

    def verify(self, *, show: bool = False) -> None:
        """Compare both parts with their checksums, which reads all of them.

        Parameters
        ----------
        show : bool, default False
            Show progress.

        Raises
        ------
        InputError
            Where they differ.
        """
        self.train.verify(show=show)
        self.validation.verify(show=show)


def read_pairs(folder: Path) -> tuple[bytes, bytes]:
    """Read the contents of encoder.json and vocab.bpe in a folder."""
    encoder, merges = (read_file(folder / name, "byte pairs as GPT-2's") for name in PAIRS)
    return encoder, merges


def write_description(path: Path, content: dict[str, Any]) -> None:
    """Write tokens.json, or the journal in its place, atomically."""
    text = json.dumps({"schema": SCHEMA, "wflow": __version__} | content, indent=1) + "\n"
    replace_file(path, partial(Path.write_text, data=text, encoding="utf-8"))


def read_description(path: Path, what: str) -> dict[str, Any]:
    """Read what tokens.json, or the journal in its place, says of token files.

    Raises
    ------
    InputError
        For a file that is missing, damaged or of another kind.
    """
    found = read_object(path, what)
    if found.get("schema") != SCHEMA:
        raise InputError(f"{path} was not written by wflow: expected {what}; move it away")
    return found
