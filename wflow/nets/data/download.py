"""Files of data sets, from a local folder or a download, verified by their checksums."""

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from wflow._core.checks import path_of
from wflow._core.errors import InputError
from wflow._core.extras import required
from wflow._core.files import read_file
from wflow._core.memory import most_unpacked

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


def obtain(
    what: str, files: Sequence[DataFile], folder: str | os.PathLike[str] | None = None
) -> list[bytes]:
    """Return the uncompressed contents of the files of a data set, as `locate` finds them.

    Raises
    ------
    InputError
        As `locate`, and for a checksum that differs: both are named, the file is left as it is.
    """
    paths = locate(what, files, folder)
    return [checked(path, file.sha256) for path, file in zip(paths, files, strict=True)]


def locate(
    what: str, files: Sequence[DataFile], folder: str | os.PathLike[str] | None = None
) -> list[Path]:
    """Find the files of a data set, or download them.

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
    list of Path
        Where they are, in the order of the files.

    Raises
    ------
    InputError
        For a folder that does not exist or lacks the files, a download that fails, or a missing
        pooch.
    """
    for place in places(folder):
        paths = [path for file in files if (path := _find(place, file)) is not None]
        if len(paths) == len(files):
            return paths
    names = " and ".join(file.path for file in files)
    if folder is not None or not all(file.addresses for file in files):
        addresses = " and ".join(file.addresses[0] for file in files if file.addresses)
        raise missing(what, names, folder, f"get {addresses or names}")
    return [download(file, names) for file in files]


def places(folder: str | os.PathLike[str] | None) -> list[Path]:
    """Return folders that may hold data, in the order of the search: only `folder` if given."""
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
    """Return the user's cache folder of this system for downloads; None without pooch."""
    try:
        return Path(import_module("pooch").os_cache("wflow"))
    except ImportError:
        return None


def missing(
    what: str, names: str, folder: str | os.PathLike[str] | None, advice: str
) -> InputError:
    """Return the error for a data set that was not found; the advice says where to get it."""
    searched = ", ".join(map(str, places(folder))) or "none is given"
    return InputError(
        f"{what} is in no local folder ({searched}); expected {names}: {advice}, put it into a "
        f"folder and set {VARIABLE} to that folder"
    )


def _find(place: Path, file: DataFile) -> Path | None:
    """Return the first of the names of a file that exists in a folder."""
    names = (file.path, file.name, *file.others)
    paths = (place / f"{name}{end}" for name in names for end in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def checked(path: Path, sha256: str) -> bytes:
    """Return contents of a file, uncompressed, whose SHA-256 must be the one given."""
    data = unpacked(read_file(path, "a file of a data set"), path)
    check_digest(path, hashlib.sha256(data).hexdigest(), sha256)
    return data


def unpacked(data: bytes, name: str | Path) -> bytes:
    """Return contents of a file that may be compressed by gzip; refuse a broken stream."""
    if data[:2] != b"\x1f\x8b":
        return data
    most = int(most_unpacked(len(data)))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            content = stream.read(most + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            f"{name}: its gzip stream is broken ({error}); move the file away and get it again"
        ) from None
    if len(content) > most:
        raise InputError(f"{name} unpacks to more than {most:,} bytes; get it again")
    return content


def check_digest(path: Path, digest: str, sha256: str) -> None:
    """Raise InputError where the SHA-256 of a file is not the one that is expected."""
    if digest != sha256:
        raise InputError(
            f"{path}: the SHA-256 of its contents is {digest}, expected {sha256}; the file is "
            "damaged or another one, and was left as it is: move it away and get it again"
        )


def download(file: DataFile, names: str) -> Path:
    """Download a file into the cache, where it appears after its checksum was verified.

    Parameters
    ----------
    file : DataFile
        What to get; its addresses are tried in order.
    names : str
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
    by_hand = f"put {names} into a folder and set {VARIABLE} to that folder"
    pooch = required("pooch", "nets", f"downloads of {file.name}", by_hand)

    def verified(address: str, target: str, _: Any) -> None:
        pooch.HTTPDownloader()(address, target, None)
        if file.packed:
            check_digest(Path(target), pooch.file_hash(target), file.sha256)
        else:
            checked(Path(target), file.sha256)

    faults = []
    for address in file.addresses:
        name = file.path + (".gz" if address.endswith(".gz") and not file.packed else "")
        cache = pooch.create(cache_folder(), "", registry={name: None}, urls={name: address})
        try:
            return Path(cache.fetch(name, downloader=verified))
        except (OSError, ValueError) as error:  # an InputError is a ValueError
            faults.append(f"{address} ({type(error).__name__}: {error})")
    raise InputError(f"cannot download {file.name} from {'; '.join(faults)}; {by_hand}")
