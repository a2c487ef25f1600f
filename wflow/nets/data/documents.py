"""Documents of a corpus on disk, in blocks that processes share: JSON, Parquet, Arrow, plain text.

A corpus is a file, or a folder with files of one kind, in the order of their names:

- `.jsonl`, `.ndjson`: a JSON object a line;
- `.parquet`: tables;
- `.arrow`: tables of Arrow, as a stream or a file; a folder that the library `datasets` saved;
- `.txt`: documents between marks `<|endoftext|>`, or from one line that begins a document to the
  next; without either a file is a document.

`blocks` cuts a corpus without reading it, and `documents` reads one block: those documents that
begin in it, to their ends. Together the blocks hold each document once, in the order of the corpus,
whatever their size.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from wflow._core.checks import field, path_of, shown
from wflow._core.errors import InputError
from wflow._core.extras import install
from wflow._core.files import opened, read_json

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


class Piece(NamedTuple):
    """A part of one file: bytes `first` to `last`, or record batches or row groups so numbered."""

    path: Path
    first: int
    last: int
    size: int  # bytes, for the progress; of tables roughly


class Block(NamedTuple):
    """Neighbouring pieces of a corpus, of one file or of several small ones."""

    pieces: tuple[Piece, ...]
    size: int


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
    path = folder / "dataset_dict.json"
    splits = [_beside(path, name) for name in field(_json(path), "splits", list, path)]
    if not splits:
        raise InputError(f"{path} names no splits; save the data set again")
    if len(splits) > 1:
        raise InputError(
            f"{folder} holds the splits {', '.join(split.name for split in splits)}: give the "
            f"folder of one of them, such as {splits[0]}"
        )
    if not splits[0].is_dir():
        raise InputError(f"{splits[0]} is missing, and {path} names it")
    return splits[0]


def _saved(folder: Path) -> tuple[Path, ...]:
    """The files of a data set, in the order that its state.json gives."""
    path = folder / "state.json"
    state = _json(path)
    if state.get("_indices_data_files"):
        raise InputError(
            f"{folder} is a selection of rows of another data set: save it after "
            "flatten_indices() of the library datasets"
        )
    entries = field(state, "_data_files", list, path)
    names = [entry.get("filename") if isinstance(entry, dict) else entry for entry in entries]
    files = tuple(_beside(path, name) for name in names)
    if not files:
        raise InputError(f"{path} names no files; save the data set again")
    for file in files:
        if not file.is_file():
            raise InputError(f"{file} is missing, and {path} names it")
    return files


def _beside(path: Path, name: Any) -> Path:
    """The file or folder beside a description that its last part names."""
    last = path_of(name, f"a name in {path}").name if isinstance(name, str) else ""
    if last in ("", ".."):
        raise InputError(
            f"{path} names {shown(name)}: expected the name of a file; save the data set again"
        )
    return path.with_name(last)


def _json(path: Path) -> dict[str, Any]:
    with opened(path, "a description in JSON") as file:
        try:
            found = read_json(file, path)
        except InputError:
            raise
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, dict):
        raise InputError(f"{path} is no JSON object; save the data set again")
    return found


def blocks(corpus: Corpus, size: int) -> list[Block]:
    """Cut a corpus into blocks of about `size` bytes, in its order.

    Raises
    ------
    InputError
        For a table that cannot be read, is damaged or cut off, or lacks the column.
    """
    cut = {"jsonl": _ranges, "text": _ranges, "parquet": _row_groups, "arrow": _batches}
    found: list[Block] = []
    pieces: list[Piece] = []
    total = 0
    for piece in (one for file in corpus.files for one in cut[corpus.kind](corpus, file, size)):
        if pieces and pieces[-1].path == piece.path:
            both = pieces[-1].size + piece.size
            pieces[-1] = pieces[-1]._replace(last=piece.last, size=both)
        else:
            pieces.append(piece)
        total += piece.size
        if total >= size:
            found.append(Block(tuple(pieces), total))
            pieces, total = [], 0
    return [*found, Block(tuple(pieces), total)] if pieces else found


def documents(corpus: Corpus, block: Block) -> Iterator[str | None]:
    """Texts of a block; None for a row without a text.

    Raises
    ------
    InputError
        That names the file and the place of what cannot be read, or is longer than 64 MiB.
    """
    read = {"jsonl": _lines, "text": _texts, "parquet": _rows, "arrow": _rows_of_batches}
    for piece in block.pieces:
        yield from read[corpus.kind](corpus, piece)


# Ranges of bytes
# ---------------


def _ranges(corpus: Corpus, file: Path, size: int) -> Iterator[Piece]:
    total = os.path.getsize(file)
    for first in range(0, total, size):
        last = min(total, first + size)
        yield Piece(file, first, last, last - first)


@contextmanager
def _range(piece: Piece, what: str) -> Iterator[BinaryIO]:
    """The file of a range of bytes."""
    with opened(piece.path, what) as file:
        if os.fstat(file.fileno()).st_size < piece.last:
            raise InputError(f"{piece.path} became shorter while it was read; restore it")
        yield file


def _to_line(file: BinaryIO, piece: Piece) -> None:
    """Go to the first line that begins in a range."""
    if piece.first:
        file.seek(piece.first - 1)
        _line(file, piece.path, piece.first)


def _line(file: BinaryIO, path: Path, place: int) -> bytes:
    line = file.readline(_LONGEST + 1)
    if len(line) > _LONGEST:
        raise InputError(
            f"{path}: the line at byte {place:,} is longer than 64 MiB; expected shorter ones"
        )
    return line


# JSON lines
# ----------


def _lines(corpus: Corpus, piece: Piece) -> Iterator[str | None]:
    """Texts of the lines that begin in a range of bytes."""
    with _range(piece, "JSON lines") as file:
        _to_line(file, piece)
        while (place := file.tell()) < piece.last:
            line = _line(file, piece.path, place)
            if line.strip():
                yield _field(line, corpus.column, f"{piece.path}, the line at byte {place:,}")


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


def _texts(corpus: Corpus, piece: Piece) -> Iterator[str]:
    """Documents that begin in a range of bytes; lines end with a line feed alone."""
    with _range(piece, "a text") as file:
        found = (
            _marked(file, piece)
            if corpus.begins is None
            else _begun(file, piece, re.compile(corpus.begins.encode()))
        )
        for place, data in found:
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{piece.path}: byte {place + error.start:,} is no UTF-8 ({error.reason}); "
                    "convert the file"
                ) from None
            text = text.replace("\r\n", "\n")
            if place == 0:
                text = text.removeprefix("\ufeff")  # a byte order mark
            elif corpus.begins is None:
                text = text.removeprefix("\n")  # the end of the line of the mark
            yield text


def _marked(file: BinaryIO, piece: Piece) -> Iterator[tuple[int, bytes]]:
    """Places and bytes of documents that begin behind a mark, or with the file."""
    base = max(0, piece.first - len(MARK))  # of the data in the file
    begin = None if piece.first else 0
    data, at = bytearray(), 0
    file.seek(base)
    while True:
        found = data.find(MARK, at)
        if begin is not None:
            _check_length(piece.path, begin, base + (len(data) if found < 0 else found))
        if found >= 0:
            if begin is not None:
                yield begin, bytes(data[begin - base : found])
            begin = base + found + len(MARK)
            if begin >= piece.last:
                return
            del data[: begin - base]
            base, at = begin, 0
            continue
        at = max(0, len(data) - len(MARK) + 1)  # a mark may begin here
        if begin is None:
            if base + at >= piece.last:
                return
            del data[:at]
            base, at = base + at, 0
        part = file.read(_READ)
        if not part:
            break
        data += part
    if begin is not None and data:
        yield begin, bytes(data[begin - base :])


def _begun(file: BinaryIO, piece: Piece, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, bytes]]:
    """Places and bytes of documents that begin with a line of the pattern, or with the file."""
    _to_line(file, piece)
    place, begin = file.tell(), None if piece.first else 0
    lines: list[bytes] = []
    while line := _line(file, piece.path, place):
        if place and pattern.search(line.replace(b"\r\n", b"\n")):
            if begin is not None:
                yield begin, b"".join(lines)
            begin, lines = place, []
        if place >= piece.last and (begin is None or begin >= piece.last):
            return
        place += len(line)
        if begin is not None:
            lines.append(line)
            _check_length(piece.path, begin, place)
    if begin is not None and lines:
        yield begin, b"".join(lines)


def _check_length(path: Path, begin: int, end: int) -> None:
    if end - begin > _LONGEST:
        raise InputError(
            f"{path}: the document at byte {begin:,} has more than 64 MiB; say which lines begin a "
            "document (begins), or put <|endoftext|> between documents"
        )


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


def _row_groups(corpus: Corpus, file: Path, size: int) -> Iterator[Piece]:
    parquet = _arrow("pyarrow.parquet")
    with _faults(file), opened(file, "a Parquet file") as raw, parquet.ParquetFile(raw) as table:
        _check_column(table.schema_arrow, corpus, file)
        groups = table.metadata.num_row_groups
        sizes = [table.metadata.row_group(k).total_byte_size for k in range(groups)]
    yield from (Piece(file, k, k + 1, bytes_) for k, bytes_ in enumerate(sizes))


def _rows(corpus: Corpus, piece: Piece) -> Iterator[str | None]:
    parquet = _arrow("pyarrow.parquet")
    path, groups = piece.path, [*range(piece.first, piece.last)]
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


def _batches(corpus: Corpus, file: Path, size: int) -> Iterator[Piece]:
    with _record_batches(file) as (schema, batches):
        _check_column(schema, corpus, file)
        sizes = [batch.nbytes for batch in batches]
    yield from (Piece(file, k, k + 1, bytes_) for k, bytes_ in enumerate(sizes))


def _rows_of_batches(corpus: Corpus, piece: Piece) -> Iterator[str | None]:
    with _record_batches(piece.path) as (_, batches):
        yield from _values(islice(batches, piece.first, piece.last), corpus.column)
