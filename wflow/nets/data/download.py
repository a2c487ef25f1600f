"""Files of data sets, from a local folder or a download, verified by their checksums."""

import gzip
import hashlib
import io
import math
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import path_of, whole
from wflow._core.errors import InputError
from wflow._core.extras import install
from wflow._core.files import opened

# The IDX format of MNIST: arrays of numbers behind a short header
# ----------------------------------------------------------------
# Third byte of the header -> element type in the file, the highest byte first.

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
    dims = None if dims is None else whole(dims, "dims", 1)
    with opened(path_of(path, "path"), "an IDX file") as file:
        try:
            data = file.read()
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error}); expected an IDX file") from None
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
    path : where it stands below a data folder, parts joined by "/"
    sha256 : checksum of its bytes, in hexadecimal digits
    addresses : where it can be downloaded, the first choice first; none: it cannot
    """

    path: str
    sha256: str
    addresses: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the file, without folders."""
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Obtained:
    """Files of a data set, as `obtain` returns them.

    Attributes
    ----------
    choice : number of the set of files that was taken
    contents : bytes of its files, in their order; their checksums are right
    paths : their paths
    """

    choice: int
    contents: tuple[bytes, ...]
    paths: tuple[Path, ...]


def obtain(
    what: str,
    choices: Sequence[Sequence[DataFile]],
    folder: str | os.PathLike[str] | None = None,
) -> Obtained:
    """Contents of the files of a data set, each checked against its checksum.

    Where `folder` is given, only that folder is looked at. Otherwise: the folder that the
    environment variable WFLOW_DATA names; ../shared/data beside a checkout of the project; the
    cache of earlier downloads. The first of the choices that is complete in one of these places
    is taken. Where there is none, the first choice that has addresses is downloaded into the
    cache by pooch.

    Parameters
    ----------
    what : name of the data set, for messages
    choices : sets of files, the one preferred first; one set is enough
    folder : folder that holds the files at their paths, or side by side

    Returns
    -------
    Obtained

    Raises
    ------
    InputError
        For a folder that does not exist or lacks the files, a checksum that differs (both are
        named, the file is left as it is), a download that fails, or a missing pooch.
    """
    places = _places(folder)
    for number, files in enumerate(choices):
        for place in places:
            paths = [path for file in files if (path := _find(place, file)) is not None]
            if len(paths) == len(files):
                return _read(number, files, paths)
    if folder is not None:
        raise InputError(
            f"{folder} does not hold {what}; expected "
            + ", or ".join(" and ".join(file.path for file in files) for files in choices)
            + " (with or without the folder before the name)"
        )
    for number, files in enumerate(choices):
        if all(file.addresses for file in files):
            return _read(number, files, [download(file, files) for file in files])
    raise InputError(
        f"{what} is in no local folder and cannot be downloaded; {_by_hand(choices[0])}"
    )


def _places(folder: str | os.PathLike[str] | None) -> list[Path]:
    """Folders that may hold data, in the order of the search."""
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
    places = [Path(named) if named else None, shared_folder(), cache_folder()]
    return [place for place in places if place is not None]


def shared_folder() -> Path | None:
    """The folder ../shared/data beside a checkout of the project; None where there is none."""
    root = Path(__file__).resolve().parents[3]
    folder = root.parent / "shared" / "data"
    return folder if (root / "pyproject.toml").is_file() and folder.is_dir() else None


def cache_folder() -> Path | None:
    """Where downloads are kept: the user's cache folder of this system; None without pooch."""
    try:
        return Path(import_module("pooch").os_cache("wflow"))
    except ImportError:
        return None


def _find(place: Path, file: DataFile) -> Path | None:
    for path in (place / file.path, place / file.name):
        if path.is_file():
            return path
    return None


def _read(number: int, files: Sequence[DataFile], paths: Sequence[Path]) -> Obtained:
    contents = (checked(path, file.sha256) for path, file in zip(paths, files, strict=True))
    return Obtained(number, tuple(contents), tuple(paths))


def checked(path: Path, sha256: str) -> bytes:
    """Read a file whose SHA-256 must be the one given.

    What is returned is what was checked: the file is read once. InputError names both checksums.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise InputError(
            f"{path}: its SHA-256 is {digest}, expected {sha256}; the file is damaged or another "
            "one, and was left as it is: move it away and get it again"
        )
    return data


def download(file: DataFile, among: Sequence[DataFile] = ()) -> Path:
    """Download a file into the cache and check it; a file that is there already is left alone.

    Parameters
    ----------
    file : what to get; its addresses are tried in order
    among : all files of its data set, for the message

    Returns
    -------
    path in the cache

    Raises
    ------
    InputError
        Without pooch, or where no address gives the file with its checksum.
    """
    by_hand = _by_hand(among or [file])
    pooch, cache = _pooch(file, by_hand), cache_folder()
    assert cache is not None  # pooch is there
    target = cache / file.path
    if target.exists():
        return target
    faults = []
    for address in file.addresses:
        try:
            pooch.retrieve(
                address, f"sha256:{file.sha256}", fname=target.name, path=target.parent
            )  # moved into place whole, after its checksum was verified
        except (OSError, ValueError) as error:
            faults.append(f"{address} ({type(error).__name__}: {error})")
        else:
            return target
    raise InputError(f"cannot download {file.name} from {'; '.join(faults)}; {by_hand}")


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
