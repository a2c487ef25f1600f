"""Files of data sets, from a local folder or a download, verified by their checksums."""

import gzip
import hashlib
import io
import math
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import path_of, whole
from wflow._core.errors import InputError
from wflow._core.extras import install
from wflow._core.files import Unpacked, opened, read_whole, replace_file
from wflow._core.memory import check_memory, most_unpacked

# The IDX format of MNIST: arrays of numbers behind a short header
# ----------------------------------------------------------------
# Third byte of the header -> element type in the file, the highest byte first.

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"  # an IDX file begins with two zero bytes, so the two cannot be confused
_CHUNK = 1 << 20


def read_idx(path: str | os.PathLike[str], *, dims: int | None = None) -> NDArray[Any]:
    """Read an array from an IDX file, gzip-compressed or not.

    The file holds two zero bytes, one byte for the type of the elements, one byte for the number k
    of dimensions, k sizes as unsigned 32-bit numbers, then the elements in C order; the highest
    byte of every number comes first [1]_.

    Parameters
    ----------
    path : str or path-like
        The file.
    dims : int, optional
        Number of dimensions that is expected; by default any.

    Returns
    -------
    ndarray
        Array of the sizes and the type that the header names, in the byte order of this machine.

    Raises
    ------
    InputError
        For a file that cannot be read, another format, an unknown element type, another number of
        dimensions, or elements that are too few or too many; the message names the file.

    References
    ----------
    .. [1] LeCun, Cortes, Burges, "The MNIST database of handwritten digits" (1998), section "File
       formats".

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from wflow import nets
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "pair")
    ...     _ = path.write_bytes(bytes([0, 0, 0x08, 1, 0, 0, 0, 2, 3, 255]))
    ...     nets.data.read_idx(path).tolist()
    [3, 255]
    """
    dims = None if dims is None else whole(dims, "dims", 1)
    with opened(path_of(path, "path"), "an IDX file") as file:
        try:
            data = read_whole(file, str(path))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error}); expected an IDX file") from None
    return parse_idx(data, str(path), dims=dims)


def parse_idx(data: bytes, name: str, *, dims: int | None = None) -> NDArray[Any]:
    """Make an array of the bytes of an IDX file: `read_idx` for what is in memory already.

    Parameters
    ----------
    data : bytes
        The whole file, compressed by gzip or not.
    name : str
        What messages call the file.
    dims : int, optional
        Number of dimensions that is expected; by default any.

    Returns
    -------
    ndarray
        As from `read_idx`.

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
        asked = f"{name}: an array of shape {shape}", "get it again"
        huge = size > most_unpacked(len(data))
        if not huge:
            check_memory(size, *asked)
        # One byte more shows what should not be there, and the first bytes a file that is cut off.
        body = _at_most(stream, _CHUNK if huge else size + 1)
        if huge and len(body) == _CHUNK:
            check_memory(size, *asked, stored=len(data))
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            f"{name}: its gzip stream is broken ({error}); get the file again"
        ) from None
    if len(body) != size:
        rest = f"only {len(body)}" if len(body) < size else "more"
        raise InputError(
            f"{name}: the header names an array of shape {shape}, {size} bytes, and {rest} follow "
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


VARIABLE = "WFLOW_DATA"


@dataclass(frozen=True)
class DataFile:
    """One published file.

    Attributes
    ----------
    path : str
        Where it lies below a data folder, parts joined by "/".
    sha256 : str
        Checksum of its contents in hexadecimal digits. The contents are the uncompressed bytes:
        mirrors compress the same file differently.
    addresses : tuple of str
        Where it can be downloaded, compressed by gzip or not; the first choice first.
    others : tuple of str
        Other paths under which mirrors and libraries keep the same file.
    packed : bool
        Whether it is an archive, which is read in a stream: the checksum is then that of the file
        as it is.
    """

    path: str
    sha256: str
    addresses: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    packed: bool = False

    @property
    def name(self) -> str:
        """Name of the file, without folders."""
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Obtained:
    """Files of a data set, as `obtain` returns them.

    Attributes
    ----------
    contents : tuple of bytes
        Uncompressed contents of the files, in their order; their checksums are right.
    paths : tuple of Path
        Where the files are.
    """

    contents: tuple[bytes, ...]
    paths: tuple[Path, ...]


def obtain(
    what: str, files: Sequence[DataFile], folder: str | os.PathLike[str] | None = None
) -> Obtained:
    """Contents of the files of a data set, each checked against its checksum.

    Where `folder` is given, only that folder is searched. Otherwise the folder that the
    environment variable WFLOW_DATA names is searched, then the cache of earlier downloads. Files
    that are complete in none of them are downloaded into the cache by pooch.

    Parameters
    ----------
    what : str
        Name of the data set, for messages.
    files : sequence of DataFile
        The files; each may be compressed by gzip, with `.gz` after its name.
    folder : str or path-like, optional
        Folder that holds the files at their paths, or side by side.

    Returns
    -------
    Obtained
        Contents and paths, in the order of the files.

    Raises
    ------
    InputError
        For a folder that does not exist or lacks the files, a checksum that differs (both are
        named, the file is left as it is), a download that fails, or a missing pooch.
    """
    for place in places(folder):
        paths = [path for file in files if (path := _find(place, file)) is not None]
        if len(paths) == len(files):
            return _read(files, paths)
    if folder is not None:
        raise InputError(
            f"{folder} does not hold {what}; expected "
            + " and ".join(file.path for file in files)
            + " (with or without the folder before the name, and .gz after it)"
        )
    if all(file.addresses for file in files):
        return _read(files, [download(file, files) for file in files])
    raise InputError(f"{what} is in no local folder and cannot be downloaded; {_by_hand(files)}")


def places(folder: str | os.PathLike[str] | None) -> list[Path]:
    """Folders that may hold data, in the order of the search: `folder` alone where it is given."""
    if folder is not None:
        place = path_of(folder, "folder")
        if not os.path.isdir(place):
            raise InputError(f"{folder}: no such folder; expected one that holds data files")
        return [place]
    named = os.environ.get(VARIABLE)
    if named and not Path(named).is_dir():
        raise InputError(
            f"the environment variable {VARIABLE} is {named!r}, and there is no such folder; set "
            "it to a folder that holds data files, or unset it"
        )
    places = [Path(named) if named else None, cache_folder()]
    return [place for place in places if place is not None]


def cache_folder() -> Path | None:
    """Where downloads are kept: the user's cache folder of this system; None without pooch."""
    try:
        return Path(import_module("pooch").os_cache("wflow"))
    except ImportError:
        return None


def _find(place: Path, file: DataFile) -> Path | None:
    """The first of the names of a file that is in a folder."""
    for name in (file.path, file.name, *file.others):
        for path in (place / name, place / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def _read(files: Sequence[DataFile], paths: Sequence[Path]) -> Obtained:
    contents = (checked(path, file.sha256) for path, file in zip(paths, files, strict=True))
    return Obtained(tuple(contents), tuple(paths))


def checked(path: Path, sha256: str) -> bytes:
    """Contents of a file, uncompressed, whose SHA-256 must be the one given.

    What is returned is what was checked: the file is read once, and unpacked into memory after its
    checksum was found right. InputError names both checksums.
    """
    with opened(path, "a file of a data set") as file:
        try:
            data = read_whole(file, path)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    digest = _digest(data, path)
    if digest != sha256:
        raise InputError(
            f"{path}: the SHA-256 of its contents is {digest}, expected {sha256}; the file is "
            "damaged or another one, and was left as it is: move it away and get it again"
        )
    return gzip.decompress(data) if data[:2] == _GZIP else data


def _digest(data: bytes, path: Path) -> str:
    """SHA-256 of the contents of a file, packed by gzip or not."""
    if data[:2] != _GZIP:
        return hashlib.sha256(data).hexdigest()
    digest = hashlib.sha256()
    try:
        with Unpacked(gzip.GzipFile(fileobj=io.BytesIO(data)), path, len(data)) as stream:  # type: ignore[arg-type]
            while part := stream.read(_CHUNK):
                digest.update(part)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            f"{path}: its gzip stream is broken ({error}), and it was left as it is: move it away "
            "and get it again"
        ) from None
    return digest.hexdigest()


def download(file: DataFile, among: Sequence[DataFile] = ()) -> Path:
    """Download a file into the cache and check it; a file that is there already is left alone.

    Parameters
    ----------
    file : DataFile
        What to get; its addresses are tried in order.
    among : sequence of DataFile
        All files of its data set, for the message.

    Returns
    -------
    Path
        Where it is in the cache, compressed as it came.

    Raises
    ------
    InputError
        Without pooch, or where no address gives the file with its checksum.
    """
    by_hand = _by_hand(among or [file])
    pooch, cache = _pooch(file, by_hand), cache_folder()
    assert cache is not None  # pooch is there
    found = _find(cache, file)
    if found is not None:
        return found
    faults = []
    for address in file.addresses:
        compressed = address.endswith(".gz") and not file.packed
        target = cache / (file.path + ".gz" if compressed else file.path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_file(target, partial(_fetch, pooch, address, file))
        except (OSError, ValueError) as error:  # an InputError is a ValueError
            faults.append(f"{address} ({type(error).__name__}: {error})")
        else:
            return target
    raise InputError(f"cannot download {file.name} from {'; '.join(faults)}; {by_hand}")


def _fetch(pooch: Any, address: str, file: DataFile, draft: Path) -> None:
    """Download to a draft, which is moved into place after its contents were verified."""
    pooch.get_logger().info("Downloading data from %s", address)
    pooch.HTTPDownloader()(address, str(draft), None)
    if file.packed:
        digest = pooch.file_hash(str(draft))
    else:
        with opened(draft, "a download") as found:
            digest = _digest(read_whole(found, draft), draft)
    if digest != file.sha256:
        raise InputError(f"the SHA-256 of its contents is {digest}, expected {file.sha256}")


def _pooch(file: DataFile, by_hand: str) -> Any:
    try:
        return import_module("pooch")
    except ImportError as error:
        raise InputError(
            f"{file.name} is not there, and a download needs pooch, which cannot be imported "
            f"({error}); install it with: {install('nets')}, or {by_hand}"
        ) from None


def _by_hand(files: Sequence[DataFile]) -> str:
    paths = " and ".join(file.path for file in files)
    return f"put {paths} into a folder and set {VARIABLE} to that folder"
