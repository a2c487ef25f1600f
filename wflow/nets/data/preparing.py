"""Prepare a text for training: documents become token files, by several processes, resumable.

The corpus is cut into blocks in a fixed order. Processes turn blocks into tokens; this process
writes them, in the order of the blocks, so the files do not depend on the number of processes or on
the size of the blocks. Every few seconds what is written is put on the disk, and then the journal
`preparing.json` says how much that is, and its SHA-256. A preparation that is resumed compares both
with the files, drops what is behind, and continues with the next block. The index `tokens.json`
comes last: without it no file is taken for whole.

As in nanoGPT's preparation of OpenWebText every document ends with the end-of-text token, and a
share of 0.0005 of the documents is held back for validation. Which ones is decided by a digest of
their text in place of a shuffle: it needs no second pass, the order of the documents does not
matter, and the same text, of which the web holds copies, is never in both parts.
"""

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wflow._core.checks import field, number, path_of, switch, whole
from wflow._core.errors import InputError
from wflow._core.files import (
    LARGEST_JSON,
    claim_folder,
    opened,
    read_whole,
    released,
    remove_drafts,
    replace_file,
)
from wflow._core.processes import check_main_guard, pool, starting_processes
from wflow._core.progress import progress
from wflow._version import __version__
from wflow.nets.checks import text as given_text
from wflow.nets.data.datasets import Folder, gpt2_pairs
from wflow.nets.data.documents import MARK, Block, Corpus, blocks, documents, find
from wflow.nets.data.token_files import (
    HALVES,
    INDEX,
    JOURNAL,
    MOST,
    PAIRS,
    SCHEMA,
    TokenFiles,
    digest_of,
    read_document,
    written_part,
)
from wflow.nets.data.tokenize import BytePairs

SHARE, SEED = 0.0005, 2357  # of nanoGPT's preparation
_BLOCK = 1 << 22  # bytes of text in a block
_COMMIT = 2.0  # seconds between two entries of the journal
_UNFINISHED = {half: f"{name}.partial" for half, name in HALVES.items()}
_NAMES = (*HALVES.values(), *_UNFINISHED.values(), *PAIRS, INDEX, JOURNAL)


class _Rule(NamedTuple):
    """How documents become tokens, by given byte pairs."""

    corpus: Corpus
    share: float
    seed: int


class _Counts(NamedTuple):
    """What a block came to."""

    tokens: tuple[bytes, bytes]  # of the halves, ready for their files
    documents: tuple[int, int]
    empty: int
    repaired: int


# One block
# ---------


class _Encoder:
    """Turns blocks into tokens, in any process."""

    def __init__(self, rule: _Rule, pairs: tuple[bytes, bytes]) -> None:
        self.rule = rule
        self.pairs = BytePairs(*pairs)
        self.end = np.array([end_of_text(pairs[0])], "<u2")
        self.bound, self.key = int(rule.share * 2**64), rule.seed.to_bytes(8, "little")

    def __call__(self, block: Block) -> _Counts:
        halves: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        counts, empty, repaired = [0, 0], 0, 0
        for text in documents(self.rule.corpus, block):
            if text is None or not text.strip():
                empty += 1
                continue
            try:
                data = text.encode("utf-8")
            except UnicodeEncodeError:  # halves of surrogate pairs, which JSON may hold
                text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
                data, repaired = text.encode("utf-8"), repaired + 1
            half = self._half(data)
            counts[half] += 1
            halves[half].extend([self.pairs.encode(text).numpy().astype("<u2"), self.end])
        first, second = (np.concatenate(part).tobytes() if part else b"" for part in halves)
        return _Counts((first, second), (counts[0], counts[1]), empty, repaired)

    def _half(self, data: bytes) -> int:
        """0 for training, 1 for validation."""
        digest = hashlib.blake2b(data, digest_size=8, key=self.key).digest()
        return int(int.from_bytes(digest, "little") < self.bound)


def end_of_text(encoder: bytes) -> int:
    """Number of the token that ends a document."""
    found = json.loads(encoder).get(MARK.decode())
    if found is None:
        raise InputError(
            f"encoder.json has no token {MARK.decode()}, which ends every document: expected one"
        )
    return int(found)


# Several processes
# -----------------

_encoder: _Encoder  # of a process


def _begin(rule: _Rule, folder: Path) -> None:
    """Make a process ready.

    It reads the byte pairs from the folder. Sent through the pipe of a process that starts, which
    holds 64 KiB, they would let the first process wait for ever where this one dies before.
    """
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = _Encoder(rule, _pairs(folder))


def _encoded(block: Block) -> _Counts:
    return _encoder(block)


def _all(rule: _Rule, folder: Path, todo: Sequence[Block], workers: int) -> Iterator[_Counts]:
    """What the blocks come to, in their order; a few are in memory at a time."""
    if workers == 1 or not todo:
        yield from map(_Encoder(rule, _pairs(folder)), todo)
        return
    rule = rule._replace(corpus=replace(rule.corpus, files=()))  # blocks name their files
    advice = "Repeat it with resume (--resume), and fewer workers (--workers)"
    waiting: deque[Future[_Counts]] = deque()
    with starting_processes("made tokens", advice):
        processes = pool(min(workers, len(todo)), _begin, rule, folder)
        try:
            for block in todo:
                waiting.append(processes.submit(_encoded, block))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            processes.shutdown(cancel_futures=True)


# The folder
# ----------


class _Half:
    """One of the two files while it is written."""

    def __init__(self, folder: Path, half: str, kept: dict[str, Any]) -> None:
        self.final, self.path = folder / HALVES[half], folder / _UNFINISHED[half]
        self.tokens, self.documents, sha256 = written_part(kept, folder / JOURNAL)
        self.hash = hashlib.sha256()
        if not self.path.exists() and self.final.exists():  # a kill came between the last two steps
            os.replace(self.final, self.path)
        number = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        self.file = os.fdopen(number, "r+b")
        place, end = 0, 2 * self.tokens
        while place < end and (part := self.file.read(min(_BLOCK, end - place))):
            self.hash.update(part)
            place += len(part)
        if place < end or self.hash.hexdigest() != sha256:
            self.file.close()
            what = "is cut off" if place < end else "is damaged"
            raise InputError(
                f"{self.path} {what}: its first {end:,} bytes are not what was written; prepare "
                "the text again with --overwrite"
            )
        self.file.seek(end)
        self.file.truncate()

    def add(self, tokens: bytes, documents: int) -> None:
        self.file.write(tokens)
        self.hash.update(tokens)
        self.tokens += len(tokens) // 2
        self.documents += documents

    def commit(self) -> dict[str, Any]:
        """Put everything on the disk, and say what that is."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return {
            "tokens": self.tokens,
            "documents": self.documents,
            "sha256": self.hash.hexdigest(),
        }

    def close(self) -> None:
        with suppress(OSError):  # of a full disk: what counts was put there by `commit`
            self.file.close()


_COUNTS = ("blocks", "empty", "repaired")  # of what was done
_NOTHING = {"tokens": 0, "documents": 0, "sha256": hashlib.sha256().hexdigest()}


def prepare_text(
    source: Folder,
    out: Folder,
    *,
    name: str = "openwebtext",
    column: str = "text",
    begins: str | None = None,
    validation: float = SHARE,
    seed: int = SEED,
    tokenizer: Folder | tuple[bytes, bytes] = None,
    workers: int | None = None,
    block: int = _BLOCK,
    resume: bool = False,
    overwrite: bool = False,
    show: bool = False,
) -> TokenFiles:
    """Turn a text into token files, as nanoGPT [1]_ prepares OpenWebText [2]_.

    Every document becomes byte pairs with the end-of-text token behind them. A document is held
    back for validation where the first 64 bits of a digest of its text, keyed by the seed, are
    below ``validation * 2**64``: copies of a text are in one part, and order does not matter. Files
    do not depend on the number of processes.

    Parameters
    ----------
    source : str or path-like
        A file or a folder of files `.jsonl`, `.parquet`, `.arrow` or `.txt`, or a folder that the
        library `datasets` saved.
    out : str or path-like
        Folder for the token files.
    name : str, default "openwebtext"
        What tables call the text.
    column : str, default "text"
        Field or column with the text; plain text has none.
    begins : str, optional
        Regular expression of the lines of plain text that begin a document. By default documents
        lie between marks ``<|endoftext|>``, and a file without one is a document. Line ends
        ``\\r\\n`` of plain text become ``\\n``, and a byte order mark is left out.
    validation : float, default 0.0005
        Share of the documents, between 0 and 1.
    seed : int, default 2357
        Which ones, integer >= 0.
    tokenizer : str or path-like, or tuple of bytes, optional
        Folder with encoder.json and vocab.bpe, or the contents of the two; at most 65,536 tokens,
        one of them ``<|endoftext|>``. By default those of GPT-2.
    workers : int, optional
        Number of processes; by default one for each core. With 1 none is started. They import the
        script that calls this: there the call stands below ``if __name__ == "__main__":``.
    block : int, default 4194304
        Bytes of text that a process takes at a time.
    resume : bool, default False
        Continue what an earlier call left in `out`, to the same bytes.
    overwrite : bool, default False
        Replace the token files in `out`.
    show : bool, default False
        Show progress.

    Returns
    -------
    TokenFiles
        The finished files.

    Raises
    ------
    InputError
        For texts that cannot be read, an output that exists, belongs to others or is damaged,
        another preparation that runs there, a full disk, a part without any document, a process
        that was killed, or a script without the guard.

    References
    ----------
    .. [1] Karpathy, "nanoGPT" (2022), data/openwebtext/prepare.py.
    .. [2] Gokaslan, Cohen, "OpenWebText corpus" (2019).

    Examples
    --------
    >>> from wflow import nets
    >>> text = nets.data.prepare_text("openwebtext", "tokens", workers=8)  # doctest: +SKIP
    >>> len(text.train)  # doctest: +SKIP
    9035582198
    """
    for label, word in (("name", name), ("column", column), ("begins", begins)):
        if begins is not None or label != "begins":
            given_text(word, label)
    resume, overwrite = switch(resume, "resume"), switch(overwrite, "overwrite")
    show = switch(show, "show")
    if resume and overwrite:
        raise InputError("resume keeps what overwrite would delete: give one of the two")
    share = number(validation, "validation", 0)
    if not 0 < share < 1:
        raise InputError(f"validation is {validation}: expected a share between 0 and 1")
    seed, block = whole(seed, "seed", 0), whole(block, "block")
    workers = whole(_cores() if workers is None else workers, "workers")
    if workers > 1:
        check_main_guard()
    folder, corpus = path_of(out, "out"), find(path_of(source, "source"), column, begins)
    given = tokenizer if isinstance(tokenizer, tuple) else _pairs(tokenizer)
    vocabulary, end = BytePairs(*given).vocabulary, end_of_text(given[0])
    if vocabulary > MOST:
        raise InputError(
            f"the tokenizer has {vocabulary:,} tokens, and a token file has two bytes for "
            f"each: expected at most {MOST:,}"
        )
    rule = _Rule(corpus, share, seed)
    setting = _setting(rule, given, name, block) | {"vocabulary": vocabulary, "end_of_text": end}
    with ExitStack() as stack:
        stack.enter_context(_claimed(folder))
        stack.enter_context(_disk(folder))
        if not _whole(folder, setting, resume=resume, overwrite=overwrite):
            _prepare(folder, rule, given, setting, block, workers, show)
    return TokenFiles(folder)


def _pairs(folder: Folder) -> tuple[bytes, bytes]:
    """The byte pairs of a folder, or those of GPT-2."""
    if folder is None:
        return gpt2_pairs()
    contents = []
    for name in PAIRS:
        path = path_of(folder, "tokenizer") / name
        with opened(path, "byte pairs as GPT-2's") as file:
            contents.append(read_whole(file, path))
    return contents[0], contents[1]


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _setting(rule: _Rule, pairs: tuple[bytes, bytes], name: str, block: int) -> dict[str, Any]:
    """All that the files and the journal depend on."""
    files = [(file, os.stat(file)) for file in rule.corpus.files]
    # The time of change is for the journal: copies of a text give the same files.
    listing = [[file.name, found.st_size, found.st_mtime_ns] for file, found in files]
    return {
        "name": name,
        "kind": rule.corpus.kind,
        "column": rule.corpus.column,
        "begins": rule.corpus.begins,
        "share": rule.share,
        "seed": rule.seed,
        "source_files": len(files),
        "source_bytes": sum(found.st_size for _, found in files),
        "tokenizer": {
            file: hashlib.sha256(content).hexdigest()
            for file, content in zip(PAIRS, pairs, strict=True)
        },
        "listing": hashlib.sha256(json.dumps(listing).encode()).hexdigest(),
        "block": block,
    }


_OF_JOURNAL = ("listing", "block")  # settings that do not change the files


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other preparations out of it; take it away if it stays empty."""
    try:
        made, lock = claim_folder(folder)
    except BlockingIOError:
        raise InputError(
            f"another preparation is running in {folder}: wait for it, stop it, or choose another "
            "folder"
        ) from None
    except OSError as error:
        raise InputError(f"cannot make {folder}: {error.strerror}; choose another folder") from None
    with released(made, lock):
        remove_drafts(folder, _NAMES)
        yield


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """A disk that is full or fails becomes a message that says how to continue."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"cannot write into {folder}: {error.strerror or error}; what was finished is kept: "
            "free space, and give the same command with --resume"
        ) from None


def _whole(folder: Path, setting: dict[str, Any], *, resume: bool, overwrite: bool) -> bool:
    """Whether the folder holds finished files, to be kept; `overwrite` makes it free first.

    Raises
    ------
    InputError
        For files of others, an earlier preparation without `resume` or `overwrite`, and one with
        other settings.
    """
    there = [file for name in _NAMES if os.path.lexists(file := folder / name)]
    if not there:
        return False
    for file in there:
        if file.is_symlink() or not file.is_file():
            raise InputError(f"{file} is no regular file: move it away, or choose another folder")
    known = next((f for name in (INDEX, JOURNAL) if (f := folder / name) in there), None)
    if known is None:
        raise InputError(
            f"{there[0]} is there and was not written by wflow: move it away, or choose another "
            "folder"
        )
    if overwrite:
        _own(known)
        for file in sorted(there, key=lambda file: file == known):  # by which they are known
            file.unlink()
        return False
    if not resume:
        raise InputError(
            f"{known} exists: add --resume to continue, --overwrite to replace the token files, or "
            "choose another --out"
        )
    found = read_document(known, "a preparation of token files")
    asked = setting if known.name == JOURNAL else _lasting(setting)
    kept = found.get("setting") if known.name == JOURNAL else found
    differ = [key for key in asked if not isinstance(kept, dict) or kept.get(key) != asked[key]]
    if differ:
        raise InputError(
            f"{folder} holds token files that differ in {', '.join(differ)} (listing: the files "
            "were changed): give the settings they were made with, --overwrite in the place of "
            "--resume, or another --out"
        )
    if known.name == INDEX:
        (folder / JOURNAL).unlink(missing_ok=True)  # a kill came before the last step
    return known.name == INDEX


def _own(file: Path) -> None:
    """Raise InputError unless wflow wrote an index or a journal, damaged or not."""
    try:
        with opened(file, "an index of token files") as whole:
            mine = SCHEMA.encode() in whole.read(LARGEST_JSON)
    except (OSError, InputError):
        mine = False
    if not mine:
        raise InputError(f"{file} was not written by wflow: move it away, or choose another folder")


def _lasting(setting: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in setting.items() if key not in _OF_JOURNAL}


def _document(**content: Any) -> bytes:
    document = {"schema": SCHEMA, "wflow": __version__} | content
    document["sha256"] = digest_of(document)
    return (json.dumps(document, indent=1) + "\n").encode()


def _write(path: Path, content: bytes) -> None:
    replace_file(path, lambda draft: draft.write_bytes(content))


def _prepare(
    folder: Path,
    rule: _Rule,
    pairs: tuple[bytes, bytes],
    setting: dict[str, Any],
    size: int,
    workers: int,
    show: bool,
) -> None:
    """Write what is missing."""
    journal = folder / JOURNAL
    todo = blocks(rule.corpus, size)
    if not journal.exists():
        kept: dict[str, Any] = dict.fromkeys(_COUNTS, 0)
        kept |= {half: _NOTHING for half in HALVES}
        _write(journal, _document(setting=setting, **kept))
    for file, content in zip(PAIRS, pairs, strict=True):
        _write(folder / file, content)
    kept = read_document(journal, "the journal of a preparation")
    done, empty, repaired = (whole(field(kept, key, int, journal), key, 0) for key in _COUNTS)
    with ExitStack() as stack:
        halves = {half: _Half(folder, half, field(kept, half, dict, journal)) for half in HALVES}
        for part in halves.values():
            stack.callback(part.close)

        def commit() -> dict[str, Any]:
            found: dict[str, Any] = {half: part.commit() for half, part in halves.items()}
            counts = dict(zip(_COUNTS, (done, empty, repaired), strict=True))
            _write(journal, _document(setting=setting, **counts, **found))
            return found

        advance = stack.enter_context(
            progress(sum(one.size for one in todo), f"preparing {setting['name']}", enabled=show)
        )
        if done:
            advance(sum(one.size for one in todo[:done]))
        results = _all(rule, folder, todo[done:], workers)
        stack.callback(results.close)  # type: ignore[attr-defined]
        last = time.monotonic()
        for one, counts in zip(todo[done:], results, strict=True):
            for part, tokens, number_ in zip(
                halves.values(), counts.tokens, counts.documents, strict=True
            ):
                part.add(tokens, number_)
            done, empty, repaired = done + 1, empty + counts.empty, repaired + counts.repaired
            if time.monotonic() - last > _COMMIT:
                commit()
                last = time.monotonic()
            advance(one.size)
        found = commit()
    if not any(part.documents for part in halves.values()):
        raise InputError(
            f"the {len(rule.corpus.files)} file(s) of the text hold no document that is not empty"
            + (f" ({empty:,} are empty)" if empty else "")
            + ": give another source, with --overwrite"
        )
    for half, part in halves.items():
        if not part.tokens:
            raise InputError(
                f"no document fell into the {half} part, of "
                f"{sum(p.documents for p in halves.values())}: take another share or seed "
                "(--validation, --seed), with --overwrite"
            )
    for part in halves.values():
        os.replace(part.path, part.final)
    lasting = _lasting(setting)
    total = {"documents": sum(part.documents for part in halves.values())}
    index = _document(**lasting, **total, empty=empty, repaired=repaired, files=found)
    _write(folder / INDEX, index)
    journal.unlink()
