"""Prepare a text for training: documents become token files, by several processes, resumable.

A corpus is a file, or a folder with files of one kind, in the order of their names:

- `.jsonl`, `.ndjson`: a JSON object a line;
- `.txt`: documents between marks `<|endoftext|>`, or from one line that begins a document to the
  next; without either a file is a document;
- `.parquet`, `.arrow`: tables, those of a folder that the library `datasets` saved included.

Lines of JSON and plain text may be packed (`.gz`, `.bz2`, `.lz4`, `.zst`). This process reads the
documents, others turn them into tokens, and this one writes these in the order of the corpus: the
files do not depend on the number of processes. Every few seconds what is written is put on the
disk, and then the journal `preparing.json` says how many tokens these are, and up to which row of
which file. A preparation that is resumed drops what is behind, skips these rows, and continues. The
index `tokens.json` comes last: without it no file is taken for whole.

As in nanoGPT's preparation of OpenWebText every document ends with the end-of-text token, and a
share of 0.0005 of the documents is held back for validation. Which ones is decided by a digest of
their text in place of a shuffle: it needs no second pass, the order of the documents does not
matter, and the same text, of which the web holds copies, is never in both parts.
"""

import hashlib
import json
import os
import re
import time
from collections import Counter, deque
from collections.abc import Collection, Generator, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from functools import lru_cache, partial
from io import BufferedReader, TextIOWrapper
from itertools import islice
from multiprocessing import cpu_count
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from wflow._core.checks import number, path_of, switch, whole
from wflow._core.errors import InputError
from wflow._core.extras import required
from wflow._core.files import opened, own_folder, read_object, replace_file
from wflow._core.processes import check_main_guard, pool, starting_processes
from wflow._core.progress import progress
from wflow.nets.checks import text as given_text
from wflow.nets.data.datasets import Folder, gpt2_pairs
from wflow.nets.data.token_files import (
    HALVES,
    INDEX,
    JOURNAL,
    MAX_VOCABULARY,
    PAIRS,
    WIDTH,
    TokenFiles,
    read_description,
    read_pairs,
    write_description,
)
from wflow.nets.data.tokenize import BytePairs

SHARE, SEED = 0.0005, 2357  # of nanoGPT's preparation
MARK = "<|endoftext|>"
_BATCH = 1 << 20  # characters that a process is given at a time
_COMMIT = 2.0  # seconds between two entries of the journal
_LONGEST = 1 << 26  # characters of a document, bytes of a line of JSON
_BUFFER = 1 << 20  # bytes of an unpacked file
_ROWS = 256  # of a table at a time
_PACKED = {".gz": "gzip", ".bz2": "bz2", ".lz4": "lz4", ".zst": "zstd"}
_NAME = re.compile(
    r".+\.(?:(jsonl|ndjson|txt|parquet|arrow)|(json|jsonl|ndjson|txt)\.(?:gz|bz2|lz4|zst))", re.I
)
_EXPECTED = (  # lines of JSON that are packed are called .json.gz, too
    ".jsonl, .ndjson, .txt (these and .json with .gz, .bz2, .lz4 or .zst), .parquet or .arrow; of "
    "a data set that `datasets` saved, the folder of one split"
)
_FILE, _END = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"  # begin of a file of Arrow, end of a stream


# The corpus
# ----------


class Corpus(NamedTuple):
    """Files of one kind (`jsonl`, `text`, `parquet`, `arrow`), and where the text is in them."""

    kind: str
    files: list[Path]
    column: str = "text"
    begins: re.Pattern[str] | None = None


def find(source: Path, column: str = "text", begins: str | None = None) -> Corpus:
    """Find the files of a corpus; of a folder hidden files and those of another kind are left out.

    Raises
    ------
    InputError
        For what is not there, no files of a known kind or of several kinds, or a wrong `begins`.
    """
    if not source.exists():
        raise InputError(f"{source} does not exist; expected a file or a folder with texts")
    files, state = [source], source / "state.json"
    if state.is_file():  # of a data set that `datasets` saved; others beside them are its caches
        listed = read_object(state, "the list of files of a data set").get("_data_files", [])
        try:
            files = [source / file["filename"] for file in listed]
        except (TypeError, KeyError):
            raise InputError(f"{state} names no files: save the data set again") from None
    elif source.is_dir():  # macOS leaves files such as ._a.jsonl beside others
        files = [file for file in sorted(source.glob("[!.]*")) if _kind(file) and file.is_file()]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise InputError(f"{missing[0]} is missing, or no file; save the data set again")
    kinds = sorted({_kind(file) for file in files})
    if len(kinds) != 1 or not kinds[0]:
        what = f"files of several kinds: {', '.join(kinds)}" if kinds[1:] else "no texts"
        raise InputError(f"{source} holds {what}; expected names of one kind, {_EXPECTED}")
    if begins is not None and kinds[0] != "text":
        raise InputError(f"begins is {begins!r}, and {source} is no plain text: leave it out")
    try:
        return Corpus(kinds[0], files, column, re.compile(begins) if begins is not None else None)
    except re.error as error:
        raise InputError(f"begins is {begins!r}: no regular expression ({error})") from None


def _kind(file: Path) -> str:
    found = _NAME.fullmatch(file.name)
    suffix = (found[1] or found[2]).lower() if found else ""
    return {"json": "jsonl", "ndjson": "jsonl", "txt": "text"}.get(suffix, suffix)


def documents(corpus: Corpus, file: Path) -> Iterator[tuple[str | None, int]]:
    """Yield the texts of a file, None for a row without one, and how many bytes are read.

    Raises
    ------
    InputError
        That names the file, and how many rows precede what is damaged, no text, not in UTF-8, or
        longer than 64 MiB.
    """
    read = {"jsonl": _lines, "text": _documents, "parquet": _parquet, "arrow": _arrow}[corpus.kind]
    count, packed = 0, _PACKED.get(file.suffix.lower())
    with opened(file, "a text") as raw:
        try:
            unpacked = raw
            if packed is not None:
                unpacked = BufferedReader(_library().input_stream(raw, packed), _BUFFER)
            for text in read(corpus, file, unpacked):
                if not isinstance(text, str | None):
                    raise ValueError(f"{corpus.column!r} is {type(text).__name__}, expected a text")
                yield text, raw.tell()
                count += 1
        except InputError:
            raise
        except Exception as error:  # pyarrow and the codecs raise a dozen kinds
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(
                f"{file} cannot be read behind row {count:,} ({reason:.200}); is it damaged, cut "
                "off, or of another kind? Mend it, or get it again"
            ) from None


def _lines(corpus: Corpus, _: Path, raw: BufferedReader) -> Iterator[Any]:
    while line := raw.readline(_LONGEST + 1):
        _check_length(len(line))
        if line.strip():
            row = json.loads(line)
            _check_column(corpus, row if isinstance(row, dict) else [type(row).__name__])
            yield row[corpus.column]


def _documents(corpus: Corpus, _: Path, raw: BufferedReader) -> Iterator[str]:
    # Lines end with a line feed: a carriage return within a line stays.
    stream = TextIOWrapper(raw, "utf-8-sig", newline="\n")
    found = _marked(stream) if corpus.begins is None else _begun(stream, corpus.begins)
    for place, text in enumerate(found):
        text = text.replace("\r\n", "\n")
        # The end of the line of a mark is no part of the document behind it.
        yield text.removeprefix("\n") if place and corpus.begins is None else text


def _marked(stream: IO[str]) -> Iterator[str]:
    rest = ""
    while part := stream.read(_BATCH):
        *whole, rest = (rest + part).split(MARK)
        yield from whole
        _check_length(len(rest))
    if rest:
        yield rest


def _begun(stream: IO[str], begins: re.Pattern[str]) -> Iterator[str]:
    lines: list[str] = []
    length = 0
    while line := stream.readline(_LONGEST + 1):
        if lines and begins.search(line.replace("\r\n", "\n")):
            yield "".join(lines)
            lines, length = [], 0
        lines.append(line)
        length += len(line)
        _check_length(length)
    if lines:
        yield "".join(lines)


def _parquet(corpus: Corpus, _: Path, raw: BufferedReader) -> Iterator[Any]:
    with _library("parquet").ParquetFile(raw) as table:
        _check_column(corpus, table.schema_arrow.names)
        for batch in table.iter_batches(_ROWS, columns=[corpus.column], use_threads=False):
            yield from _values(corpus, batch)


def _arrow(corpus: Corpus, file: Path, raw: BufferedReader) -> Iterator[Any]:
    ipc, stream = _library("ipc"), raw.read(len(_FILE)) != _FILE
    raw.seek(max(0, os.fstat(raw.fileno()).st_size - len(_END)))
    if stream and raw.read() != _END:
        raise ValueError("its end is missing")
    with _library().memory_map(str(file)) as mapped:  # a batch may be larger than the memory
        reader = ipc.open_stream(mapped) if stream else ipc.open_file(mapped)
        _check_column(corpus, reader.schema.names)
        count = 0 if stream else reader.num_record_batches
        for batch in reader if stream else map(reader.get_batch, range(count)):
            raw.seek(mapped.tell())  # for the progress
            yield from _values(corpus, batch)


def _values(corpus: Corpus, batch: Any) -> Iterator[Any]:
    values = batch.column(batch.schema.get_field_index(corpus.column))
    values.validate(full=True)  # without it a wrong offset is a segmentation fault
    for first in range(0, len(values), _ROWS):
        yield from values.slice(first, _ROWS).to_pylist()


def _check_column(corpus: Corpus, names: Collection[str]) -> None:
    if (count := list(names).count(corpus.column)) != 1:
        found = f"{count} columns" if count else "no column"
        raise ValueError(f"{found} {corpus.column!r} in {', '.join(map(str, names)):.80}")


def _check_length(length: int) -> None:
    if length > _LONGEST:
        raise ValueError(
            "what follows has more than 64 MiB: say which lines begin a document (begins), or put "
            f"{MARK} between documents"
        )


def _library(part: str = "") -> Any:
    return required(f"pyarrow.{part}".rstrip("."), "studies", "tables and packed texts")


# Tokens
# ------


# Where a batch ends: number of the file, of its row, and of the bytes of all files until there.
_Place = tuple[int, int, int]


def _batches(corpus: Corpus, sizes: list[int], done: _Place) -> Iterator[tuple[list[Any], _Place]]:
    """Yield the texts that are left, about a megabyte at a time, and where they end."""
    texts: list[str | None] = []
    length = 0
    for k, file in enumerate(corpus.files[done[0] :], done[0]):
        skip = done[1] if k == done[0] else 0
        for row, (text, read) in enumerate(islice(documents(corpus, file), skip, None), skip + 1):
            texts.append(text)
            length += len(text or "")
            if length >= _BATCH:
                yield texts, (k, row, sum(sizes[:k]) + min(read, sizes[k]))
                texts, length = [], 0
    yield texts, (len(sizes), 0, sum(sizes))


# Tokens of both parts, and how many documents are in each, empty or repaired.
_Made = tuple[list[bytes], Counter[str]]


@lru_cache(1)
def _tokenizer(folder: Path, *digests: str) -> BytePairs:
    """Read the byte pairs of a folder, whose digests are given, once in each process."""
    return BytePairs(*read_pairs(folder))


def _encode(folder: Path, setting: dict[str, Any], texts: list[str | None]) -> _Made:
    """Turn documents into tokens, in any process."""
    pairs = _tokenizer(folder, *setting["tokenizer"].values())
    bound, key = int(setting["share"] * 2**64), setting["seed"].to_bytes(8, "little")
    parts: dict[str, list[bytes]] = {half: [] for half in HALVES}
    counts: Counter[str] = Counter()
    for text in texts:
        if text is None or not text.strip():
            counts["empty"] += 1
            continue
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:  # halves of surrogate pairs, which JSON may hold
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            data = text.encode("utf-8")
            counts["repaired"] += 1
        digest = hashlib.blake2b(data, digest_size=8, key=key).digest()
        half = "validation" if int.from_bytes(digest, "little") < bound else "train"
        tokens = np.append(pairs.encode(text).numpy(), setting["end_of_text"])
        parts[half].append(tokens.astype("<u2").tobytes())
        counts[half] += 1
    return [b"".join(part) for part in parts.values()], counts


def _all(encode: Any, batches: Iterator[Any], workers: int) -> Generator[tuple[_Made, _Place]]:
    """Yield what the batches come to, in their order; a few are in memory at a time."""
    if workers == 1:
        yield from ((encode(texts), end) for texts, end in batches)
        return
    waiting: deque[tuple[Future[_Made], _Place]] = deque()
    advice = "Repeat it with resume (--resume), and fewer workers (--workers)"
    with starting_processes("made tokens", advice):
        processes = pool(workers, os.putenv, "TOKENIZERS_PARALLELISM", "false")
        try:
            for texts, end in batches:
                waiting.append((processes.submit(encode, texts), end))
                if len(waiting) > 2 * workers:
                    made, place = waiting.popleft()
                    yield made.result(), place
            yield from ((made.result(), place) for made, place in waiting)
        finally:
            processes.shutdown(cancel_futures=True)


# The folder
# ----------


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
        A file or a folder of files `.jsonl`, `.parquet`, `.arrow` or `.txt`, in small or capital
        letters, or a folder that the library `datasets` saved. Lines of JSON and plain text may be
        packed: `.gz`, `.bz2`, `.lz4`, `.zst`. Hidden files are left out.
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
    resume : bool, default False
        Continue what an earlier call left in `out`, to the same bytes. The files of the text must
        have their names, sizes and times of change.
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
    if resume and overwrite:
        raise InputError("resume keeps what overwrite would delete: give one of the two")
    share, seed = number(validation, "validation", 0), whole(seed, "seed", 0)
    if not 0 < share < 1:
        raise InputError(f"validation is {validation}: expected a share between 0 and 1")
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cpu_count()
    if whole(workers, "workers") > 1:
        check_main_guard()
    folder, corpus = path_of(out, "out"), find(path_of(source, "source"), column, begins)
    if isinstance(tokenizer, tuple):
        pairs = tokenizer
    else:
        pairs = gpt2_pairs() if tokenizer is None else read_pairs(path_of(tokenizer, "tokenizer"))
    vocabulary, end = BytePairs(*pairs).vocabulary, json.loads(pairs[0]).get(MARK)
    if end is None:
        raise InputError(f"encoder.json has no token {MARK}, which ends every document")
    if vocabulary > MAX_VOCABULARY:
        raise InputError(
            f"the tokenizer has {vocabulary:,} tokens, and a token file has two bytes for "
            f"each: expected at most {MAX_VOCABULARY:,}"
        )
    found = [(file.name, os.stat(file)) for file in corpus.files]
    digests = [hashlib.sha256(content).hexdigest() for content in pairs]
    setting = {  # what the files depend on
        "name": name,
        "kind": corpus.kind,
        "column": column,
        "begins": begins,
        "share": share,
        "seed": seed,
        "source_files": len(found),
        "source_bytes": sum(status.st_size for _, status in found),
        "tokenizer": dict(zip(PAIRS, digests, strict=True)),
        "vocabulary": vocabulary,
        "end_of_text": end,
    }
    # The times are for the journal alone: copies of a text give the same files.
    listing = [[file, status.st_size, status.st_mtime_ns] for file, status in found]
    try:
        with own_folder(folder, "preparation", (*PAIRS, INDEX, JOURNAL)):
            done = _earlier(folder, setting, listing, resume, overwrite)
            if done is not None:
                # First: the other files are known as ours by the journal.
                journal = setting | {"listing": listing}
                write_description(folder / JOURNAL, journal | done)
                for file, content in zip(PAIRS, pairs, strict=True):
                    replace_file(folder / file, partial(Path.write_bytes, data=content))
                _write_tokens(folder, corpus, journal, done, workers, switch(show, "show"))
                write_description(folder / INDEX, setting | _index(folder, done))
            (folder / JOURNAL).unlink(missing_ok=True)  # a kill may come before this step
    except OSError as error:  # of a disk that is full, among others
        raise InputError(
            f"cannot write into {folder}: {error.strerror or error}; what was finished is kept: "
            "free space, and give the same command with --resume"
        ) from None
    return TokenFiles(folder)


def _earlier(
    folder: Path, setting: dict[str, Any], listing: list[Any], resume: bool, overwrite: bool
) -> dict[str, Any] | None:
    """Return what an earlier preparation has done; None of one that is finished.

    Raises
    ------
    InputError
        For files of others, an earlier preparation without `resume` or `overwrite`, and one with
        other settings.
    """
    names = (INDEX, JOURNAL, *HALVES.values(), *PAIRS)
    there = [file for name in names if os.path.lexists(file := folder / name)]
    found = read_description(there[0], "a description of token files") if there else {}
    if there and resume:
        finished = there[0].name == INDEX
        asked = setting if finished else setting | {"listing": listing}
        differ = [key for key, value in asked.items() if found.get(key) != value]
        if differ:
            raise InputError(
                f"{folder} holds token files that differ in {', '.join(differ)} (listing: the "
                "files were changed): give the settings they were made with, --overwrite in the "
                "place of --resume, or another --out"
            )
        if not finished and (lost := set(_NOTHING) - set(found)):
            raise InputError(
                f"{there[0]} is damaged, it has no {', '.join(sorted(lost))}: give --overwrite in "
                "the place of --resume"
            )
        return None if finished else {key: found[key] for key in _NOTHING}
    if there and not overwrite:
        raise InputError(
            f"{there[0]} exists: add --resume to continue, --overwrite to replace the token files, "
            "or choose another --out"
        )
    for file in reversed(there):  # that by which they are known is the last
        file.unlink()
    return dict(_NOTHING)


_NOTHING = {"end": (0, 0, 0), "bytes": (0, 0), "counts": {}}


def _write_tokens(
    folder: Path,
    corpus: Corpus,
    journal: dict[str, Any],
    done: dict[str, Any],
    workers: int,
    show: bool,
) -> None:
    """Write what is missing, and the journal of what is `done` every few seconds."""
    sizes = [size for _, size, _ in journal["listing"]]
    workers = min(workers, 1 + (sum(sizes) - done["end"][2]) // _BATCH)

    def commit() -> None:
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        write_description(folder / JOURNAL, journal | done)

    with ExitStack() as stack:
        files = [stack.enter_context(open(folder / name, "ab")) for name in HALVES.values()]
        for file, size in zip(files, done["bytes"], strict=True):
            if file.tell() < size:
                raise InputError(
                    f"{file.name} is cut off: expected the {size:,} bytes that were written; "
                    "prepare the text again with --overwrite"
                )
            file.truncate(size)
        commit()
        last = time.monotonic()
        label = f"preparing {journal['name']}"
        advance = stack.enter_context(progress(sum(sizes), label, enabled=show))
        advance(done["end"][2])
        encode = partial(_encode, folder, journal)
        results = _all(encode, _batches(corpus, sizes, done["end"]), workers)
        for (tokens, counts), end in stack.enter_context(closing(results)):
            for file, part in zip(files, tokens, strict=True):
                file.write(part)
            advance(end[2] - done["end"][2])
            done["counts"] = Counter(done["counts"]) + counts
            done |= {"end": end, "bytes": [file.tell() for file in files]}
            if time.monotonic() - last > _COMMIT:
                commit()
                last = time.monotonic()
        commit()


def _index(folder: Path, done: dict[str, Any]) -> dict[str, Any]:
    """Count the documents and tokens of both parts, with the SHA-256 of each."""
    counts, parts = Counter(done["counts"]), {}
    total = counts["train"] + counts["validation"]
    for (half, name), size in zip(HALVES.items(), done["bytes"], strict=True):
        if not counts[half]:
            raise InputError(
                f"of {total:,} documents none fell into the {half} part ({counts['empty']:,} are "
                "empty): take another share, seed or source, with --overwrite"
            )
        with open(folder / name, "rb") as part:
            digest = hashlib.file_digest(part, "sha256").hexdigest()
        parts[half] = {"tokens": size // WIDTH, "documents": counts[half], "sha256": digest}
    others = {key: counts[key] for key in ("empty", "repaired")}
    return {"documents": total} | others | {"files": parts}
