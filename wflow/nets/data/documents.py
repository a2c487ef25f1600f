"""Documents of a corpus on disk, in blocks that processes share: JSON, Parquet, Arrow, plain text.

A corpus is a file, or a folder with files of one kind, in the order of their names:

- `.jsonl`, `.ndjson`: a JSON object a line;
- `.parquet`: tables;
- `.arrow`: tables of Arrow, as a stream or a file; a folder that the library `datasets` saved;
- `.txt`: documents between marks `<|endoftext|>`, or from one line that begins a document to the
  next; without either a file is a document.

`blocks` cuts a corpus without reading all of it (plain text is searched for the marks), and
`documents` reads one block. Together the blocks hold each document once, in the order of the
corpus, whatever their size.
"""

import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from wflow._core.errors import InputError
from wflow._core.extras import install
from wflow._core.files import opened

KINDS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "text",
}
MARK = b"<|endoftext|>"
_LONGEST = 1 << 26  # bytes of a document, and of a line
_READ = 1 << 20  # bytes at a time
_ROWS = 256  # of a table at a time
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream of Arrow
_FILE = b"ARROW1"  # how a file of Arrow begins, and a stream does not


class Block(NamedTuple):
    """A part of one file: bytes `first` to `last`, or record batches or row groups so numbered."""

    path: Path
    first: int
    last: int
    size: int  # bytes, for the progress; of tables roughly


@dataclass(frozen=True)
class Corpus:
    """Files of one kind, and where the text is in them.

    Attributes
    ----------
    kind : str
        `jsonl`, `parquet`, `arrow` or `text`.
    files : tuple of Path
        The files, in their order.
    column : str
        Name of the field or column with the text.
    begins : str, optional
        Regular expression of the lines of plain text that begin a document.
    """

    kind: str
    files: tuple[Path, ...]
    column: str = "text"
    begins: str | None = None

    def __post_init__(self) -> None:
        if self.begins is None:
            return
        if self.kind != "text":
            raise InputError(
                f"begins is {self.begins!r}, and the corpus is {self.kind}: expected plain text, "
                "leave it out"
            )
        try:
            re.compile(self.begins.encode())
        except re.error as error:
            raise InputError(
                f"begins is {self.begins!r}: no regular expression ({error})"
            ) from None


def find(source: Path, column: str = "text", begins: str | None = None) -> Corpus:
    """Find the files of a corpus.

    Raises
    ------
    InputError
        For what is not there, no files of a known kind, or files of several kinds.
    """
    if not source.exists():
        raise InputError(f"{source} does not exist; expected a file or a folder with texts")
    if source.is_file():
        if source.suffix not in KINDS:
            raise InputError(f"{source}: expected a name that ends in {', '.join(KINDS)}")
        return Corpus(KINDS[source.suffix], (source,), column, begins)
    if (source / "dataset_dict.json").is_file():
        source = _split(source)
    if (source / "state.json").is_file():
        return Corpus("arrow", _saved(source), column, begins)
    files = [file for file in sorted(source.iterdir()) if file.suffix in KINDS and file.is_file()]
    kinds = sorted({KINDS[file.suffix] for file in files})
    if len(kinds) != 1:
        what = f"files of several kinds: {', '.join(kinds)}" if kinds else "no texts"
        raise InputError(
            f"{source} holds {what}; expected files of one kind, whose names end in "
            f"{', '.join(KINDS)}"
        )
    return Corpus(kinds[0], tuple(files), column, begins)


def _split(folder: Path) -> Path:
    """The folder of the only split of a DatasetDict, or of its training part."""
    names = _json(folder / "dataset_dict.json").get("splits")
    if not isinstance(names, list) or not names:
        raise InputError(f"{folder / 'dataset_dict.json'} names no splits; save the data set again")
    if len(names) > 1:
        raise InputError(
            f"{folder} holds the splits {', '.join(map(str, names))}: give the folder of one of "
            f"them, such as {folder / str(names[0])}"
        )
    return folder / Path(str(names[0])).name


def _saved(folder: Path) -> tuple[Path, ...]:
    """The files of a data set, in the order that its state.json gives."""
    state = _json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise InputError(
            f"{folder} is a selection of rows of another data set: save it after "
            "flatten_indices() of the library datasets"
        )
    listed = state.get("_data_files")
    names = [entry.get("filename") for entry in listed or () if isinstance(entry, dict)]
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"{folder / 'state.json'} names no files; save the data set again")
    files = tuple(folder / Path(str(name)).name for name in names)
    for file in files:
        if not file.is_file():
            raise InputError(f"{file} is missing, and {folder / 'state.json'} names it")
    return files


def _json(path: Path) -> dict[str, Any]:
    with opened(path, "a description in JSON") as file:
        try:
            found = json.load(file)
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, dict):
        raise InputError(f"{path} is no JSON object; save the data set again")
    return found


def blocks(corpus: Corpus, size: int) -> list[Block]:
    """Cut a corpus into blocks of about `size` bytes of text, in its order.

    Raises
    ------
    InputError
        For a file that cannot be read, is damaged or cut off, lacks the column, or holds a document
        of more than 64 MiB.
    """
    cut = {"jsonl": _ranges, "text": _stretches, "parquet": _row_groups, "arrow": _batches}
    return [block for file in corpus.files for block in cut[corpus.kind](corpus, file, size)]


def documents(corpus: Corpus, block: Block) -> Iterator[str | None]:
    """Texts of a block; None for a row without a text.

    Raises
    ------
    InputError
        That names the file and the place of what cannot be read.
    """
    read = {"jsonl": _lines, "text": _texts, "parquet": _rows, "arrow": _rows_of_batches}
    return read[corpus.kind](corpus, block)


# JSON lines
# ----------


def _ranges(corpus: Corpus, file: Path, size: int) -> Iterator[Block]:
    total = os.path.getsize(file)
    for first in range(0, total, size):
        last = min(total, first + size)
        yield Block(file, first, last, last - first)


def _lines(corpus: Corpus, block: Block) -> Iterator[str | None]:
    """Texts of the lines that begin in a range of bytes."""
    with opened(block.path, "JSON lines") as file:
        if block.first:
            file.seek(block.first - 1)
            _line(file, block.path, block.first)
        while (place := file.tell()) < block.last:
            line = _line(file, block.path, place)
            if line.strip():
                yield _field(line, corpus.column, f"{block.path}, the line at byte {place:,}")


def _line(file: BinaryIO, path: Path, place: int) -> bytes:
    line = file.readline(_LONGEST + 1)
    if len(line) > _LONGEST:
        raise InputError(
            f"{path}: the line at byte {place:,} is longer than 64 MiB; expected shorter ones"
        )
    return line


def _field(line: bytes, column: str, where: str) -> str | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where}: no JSON ({error}); is the file cut off there? Repair or remove the line"
        ) from None
    if not isinstance(row, dict) or column not in row:
        found = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise InputError(f"{where}: has no {column!r} but {found:.80}; say where the text is")
    if not isinstance(row[column], str | None):
        raise InputError(f"{where}: {column!r} is {type(row[column]).__name__}; expected a text")
    return row[column]


# Plain text
# ----------


def _bounds(file: BinaryIO, path: Path, begins: str | None) -> Iterator[tuple[int, int]]:
    """Where a document ends and where the next one begins."""
    if begins is not None:
        pattern, place = re.compile(begins.encode()), 0
        while line := _line(file, path, place):
            if place and pattern.search(line):
                yield place, place
            place += len(line)
        return
    base, rest = 0, b""
    while part := file.read(_READ):
        data, at = rest + part, 0
        while (found := data.find(MARK, at)) >= 0:
            at = found + len(MARK)
            yield base + found, base + at
        kept = max(at, len(data) - len(MARK) + 1)
        base, rest = base + kept, data[kept:]


def _stretches(corpus: Corpus, file: Path, size: int) -> Iterator[Block]:
    """Whole documents, together `size` bytes or a little more."""
    with opened(file, "a text") as source:
        total = os.fstat(source.fileno()).st_size
        first = begin = 0
        for end, following in chain(_bounds(source, file, corpus.begins), [(total, total)]):
            if end - begin > _LONGEST:
                raise InputError(
                    f"{file}: the document at byte {begin:,} has {end - begin:,} bytes, more than "
                    "64 MiB; say which lines begin a document (begins), or put <|endoftext|> "
                    "between documents"
                )
            begin = following
            if begin - first >= size or end == total > first:
                yield Block(file, first, begin, begin - first)
                first = begin


def _texts(corpus: Corpus, block: Block) -> Iterator[str]:
    with opened(block.path, "a text") as file:
        file.seek(block.first)
        data = file.read(block.last - block.first)
    if len(data) < block.last - block.first:
        raise InputError(f"{block.path} became shorter while it was read; restore it")
    begin, total = 0, len(data)
    bounds = _bounds(io.BytesIO(data), block.path, corpus.begins)
    for end, following in chain(bounds, [(total, total)]):
        if begin == end == total:  # nothing is behind the last mark
            return
        place = block.first + begin
        try:
            text = data[begin:end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{block.path}: byte {place + error.start:,} is no UTF-8 ({error.reason}); "
                "convert the file"
            ) from None
        # What follows a mark on its line is the end of that line.
        yield text.removeprefix("\n") if place and corpus.begins is None else text
        begin = following


# Tables
# ------


def _arrow(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            f"tables are read by pyarrow, which cannot be imported ({error}); install it with: "
            f"{install('studies')}"
        ) from None


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """Damage that pyarrow finds becomes an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        text = " ".join(str(error).split())
        raise InputError(
            f"{path} is damaged, cut off, or of another kind ({text:.200}); get it again"
        ) from None


def _check_column(schema: Any, corpus: Corpus, file: Path) -> None:
    arrow = _arrow("pyarrow")
    if corpus.column not in schema.names:
        raise InputError(
            f"{file} has no column {corpus.column!r} but {', '.join(schema.names):.80}; say where "
            "the text is"
        )
    kind = schema.field(corpus.column).type
    if arrow.types.is_dictionary(kind):
        kind = kind.value_type
    if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
        raise InputError(f"{file}: the column {corpus.column!r} is {kind}; expected texts")


def _row_groups(corpus: Corpus, file: Path, size: int) -> Iterator[Block]:
    parquet = _arrow("pyarrow.parquet")
    with _faults(file), opened(file, "a Parquet file") as raw, parquet.ParquetFile(raw) as table:
        _check_column(table.schema_arrow, corpus, file)
        groups = table.metadata.num_row_groups
        sizes = [table.metadata.row_group(k).total_byte_size for k in range(groups)]
    yield from _gathered(file, sizes, size)


def _rows(corpus: Corpus, block: Block) -> Iterator[str | None]:
    parquet = _arrow("pyarrow.parquet")
    path, groups = block.path, [*range(block.first, block.last)]
    with _faults(path), opened(path, "Parquet") as raw, parquet.ParquetFile(raw) as table:
        rows = table.iter_batches(_ROWS, groups, [corpus.column], use_threads=False)
        yield from _values(rows, corpus.column)


def _values(batches: Any, column: str) -> Iterator[str | None]:
    for batch in batches:
        values = batch.column(batch.schema.get_field_index(column))
        for first in range(0, len(values), _ROWS):
            yield from values.slice(first, _ROWS).to_pylist()


@contextmanager
def _record_batches(file: Path) -> Iterator[tuple[Any, Any]]:
    """Schema and record batches of a table, in either form."""
    ipc = _arrow("pyarrow.ipc")
    with _faults(file), opened(file, "a table of Arrow") as check:
        begin = check.read(len(_FILE))
        if begin != _FILE:
            check.seek(-min(len(_END), os.fstat(check.fileno()).st_size), os.SEEK_END)
            if check.read() != _END:
                raise InputError(f"{file} is cut off: its end is missing; get it again")
        with _arrow("pyarrow").memory_map(str(file)) as mapped:
            if begin == _FILE:
                reader = ipc.open_file(mapped)
                found = (reader.get_batch(k) for k in range(reader.num_record_batches))
                yield reader.schema, found
            else:
                reader = ipc.open_stream(mapped)
                yield reader.schema, reader


def _batches(corpus: Corpus, file: Path, size: int) -> Iterator[Block]:
    with _record_batches(file) as (schema, batches):
        _check_column(schema, corpus, file)
        sizes = [batch.nbytes for batch in batches]
    yield from _gathered(file, sizes, size)


def _rows_of_batches(corpus: Corpus, block: Block) -> Iterator[str | None]:
    with _record_batches(block.path) as (_, batches):
        yield from _values(islice(batches, block.first, block.last), corpus.column)


def _gathered(file: Path, sizes: list[int], size: int) -> Iterator[Block]:
    """Neighbours of together `size` bytes or a little more."""
    first = total = 0
    for k, bytes_ in enumerate(sizes, 1):
        total += bytes_
        if total >= size or k == len(sizes):
            yield Block(file, first, k, total)
            first, total = k, 0
