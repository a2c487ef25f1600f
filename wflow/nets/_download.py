"""Where the files of a data set come from: a folder at hand, or a download; checked either way."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from wflow.errors import InputError

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
    """What `obtain` found.

    Attributes
    ----------
    choice : number of the set of files that was taken
    contents : bytes of its files, in their order; their checksums are right
    paths : where they were read
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
    raise InputError(f"{what} is nowhere at hand and cannot be downloaded; {_by_hand(choices[0])}")


def _places(folder: str | os.PathLike[str] | None) -> list[Path]:
    """Folders that may hold data, in the order in which they are looked at."""
    if folder is not None:
        if not Path(folder).is_dir():
            raise InputError(f"{folder}: no such folder; expected one that holds data files")
        return [Path(folder)]
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
    root = Path(__file__).resolve().parents[2]
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
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise InputError(
            f"{path}: its SHA-256 is {found}, expected {sha256}; the file is damaged or another "
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
            )  # moved into place whole, after its checksum was found right
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
            f"{file.name} is not at hand, and a download needs pooch, which cannot be imported "
            f"({error}); install it with: pip install 'wflow[nets]', or {by_hand}"
        ) from None


def _by_hand(files: Sequence[DataFile]) -> str:
    paths = " and ".join(file.path for file in files)
    return f"put {paths} into a folder and set {VARIABLE} to that folder"
