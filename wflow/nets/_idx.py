"""The IDX file format, in which MNIST is published: arrays of numbers behind a short header."""

import gzip
import io
import math
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from wflow._checks import whole
from wflow.errors import InputError

# Third byte of the header -> element type as it stands in the file, the highest byte first.
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"  # an IDX file begins with two zero bytes, so the two cannot be confused
_CHUNK = 1 << 20


def read_idx(path: str | os.PathLike[str], *, dims: int | None = None) -> NDArray[Any]:
    """Read an array from an IDX file, gzip-compressed or not.

    The file is: two zero bytes, one byte for the type of the elements, one byte for the number k
    of dimensions, k sizes as unsigned 32-bit numbers, then the elements in C order; the highest
    byte of every number comes first. Source: LeCun, Cortes, Burges, "The MNIST database of
    handwritten digits" (1998), section "File formats".

    Parameters
    ----------
    path : file
    dims : number of dimensions that is expected; None takes any

    Returns
    -------
    array of the sizes and the type that the header names, in the byte order of this machine

    Raises
    ------
    InputError
        For a file that cannot be read, another format, an unknown element type, another number of
        dimensions, or elements that are too few or too many; the message names the file.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error}); expected an IDX file"
        ) from None
    return parse_idx(data, str(path), dims=dims)


def parse_idx(data: bytes, name: str, *, dims: int | None = None) -> NDArray[Any]:
    """Make an array of the bytes of an IDX file: `read_idx` for what is in memory already.

    Parameters
    ----------
    data : bytes of the whole file, gzip-compressed or not
    name : what messages call the file
    dims : number of dimensions that is expected; None takes any

    Returns
    -------
    array, as from `read_idx`

    Raises
    ------
    InputError
        As `read_idx`.
    """
    dims = None if dims is None else whole(dims, "dims", 1)
    raw = io.BytesIO(data)
    stream: BinaryIO = gzip.GzipFile(fileobj=raw) if data[:2] == _GZIP else raw  # type: ignore[assignment]
    try:
        dtype, shape = _header(stream, name, dims)
        size = math.prod(shape) * dtype.itemsize
        body = _at_most(stream, size + 1)  # one byte more shows what should not be there
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            f"{name}: its gzip stream is broken ({error}); get the file again"
        ) from None
    if len(body) != size:
        found = f"only {len(body)}" if len(body) < size else "more"
        raise InputError(
            f"{name}: the header names an array of shape {shape}, {size} bytes, and {found} follow "
            "it; the file is cut off or damaged: get it again"
        )
    try:
        flat = np.frombuffer(body, dtype).astype(dtype.newbyteorder("="), copy=False)
        return flat.reshape(shape)
    except ValueError as error:
        raise InputError(f"{name}: no array can have the shape {shape} ({error})") from None


def _header(stream: BinaryIO, name: str, dims: int | None) -> tuple[Any, tuple[int, ...]]:
    """Element type and sizes that the header names."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise InputError(
            f"{name}: begins with the bytes {magic.hex(' ') or 'of an empty file'}; expected an "
            "IDX file, which begins with 00 00"
        )
    kind, count = magic[2], magic[3]
    if kind not in TYPES:
        known = ", ".join(f"0x{code:02x}" for code in TYPES)
        raise InputError(f"{name}: element type 0x{kind:02x} is not one of the format's: {known}")
    if count == 0 or (dims is not None and count != dims):
        expected = "at least 1" if dims is None else str(dims)
        raise InputError(f"{name}: has {count} dimensions; expected {expected}")
    sizes = stream.read(4 * count)
    if len(sizes) < 4 * count:
        raise InputError(f"{name}: ends within its header; get the file again")
    return np.dtype(TYPES[kind]), tuple(int(n) for n in np.frombuffer(sizes, ">u4"))


def _at_most(stream: BinaryIO, size: int) -> bytearray:
    """The next bytes of a stream, `size` at most.

    In pieces: sizes in a damaged header may be huge, and memory is taken only for what is there.
    """
    body = bytearray()
    while len(body) < size and (part := stream.read(min(_CHUNK, size - len(body)))):
        body += part
    return body
