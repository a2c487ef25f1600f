"""The folder of a study as a tree: its summary, its runs and its trainings, read lazily."""

import json
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wflow._core.checks import path_of
from wflow._core.errors import RunFileError, WflowWarning, warn
from wflow._core.files import BROKEN, check_claims, check_stored, open_hdf5
from wflow._core.printable import printable
from wflow._core.signals import signals_held
from wflow.runs.read import open_run, partial_of, parts_of
from wflow.runs.results import STUDY, summary_document
from wflow.runs.schema import FAMILY

if TYPE_CHECKING:
    import xarray

SUMMARY, METRICS = "summary.h5", "metrics.h5"
_TEXTS = ("findings", "fit", "config", "versions")  # of summary.json, as JSON in the attributes


def open_study(folder: str | Path) -> "xarray.DataTree":
    """Open the folder of a study as a tree that reads values when they are used.

    The root has the attributes of the study (`study`, `command`, `created`, `findings` as JSON, and
    so on) and no variables: a child would have to share its coordinates, and runs have times of
    their own. The node `summary` holds the numbers of summary.h5, and each run or training is a
    node that is named by the stem of its file, or by its folder.

    A study that did not reach its end is opened as far as it got, with the attribute
    ``complete = 0`` and a warning; so is one that has lost a file or of which one is damaged.

    Parameters
    ----------
    folder : str or Path
        What ``--out`` of the study named.

    Returns
    -------
    xarray.DataTree
        The study; close it, or use it in a `with`.

    Raises
    ------
    RunFileError
        For a folder that is missing or empty, or holds neither a summary nor a run of wflow.

    See Also
    --------
    wflow.open : One run file.

    Examples
    --------
    >>> import tempfile, wflow
    >>> folder = tempfile.mkdtemp()
    >>> x0 = wflow.tokens.uniform(n=5, d=3, seed=0)
    >>> for heads in (1, 2):
    ...     wflow.solve(
    ...         x0, wflow.heads.Frozen(), heads=heads, t_final=0.1, dt=0.05,
    ...         out=f"{folder}/H{heads:05d}.h5",
    ...     ).close()
    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # these runs have no summary
    ...     study = wflow.open_study(folder)
    >>> sorted(study.children)
    ['H00001', 'H00002']
    >>> study["H00002/energy"].sizes["time"]
    3
    """
    import xarray

    folder = path_of(folder, "folder")
    _check_folder(folder)
    nodes: dict[str, xarray.Dataset] = {}
    lost: list[str] = []
    document = summary_document(folder / "summary.json")
    with ExitStack() as stack, warnings.catch_warnings(record=True) as partial:
        warnings.simplefilter("always")
        for stem, file in _files(folder):
            name = printable(stem, lines=False)
            try:
                nodes[name] = _open(file, document)
            except RunFileError as error:
                lost.append(f"{file.relative_to(folder)} ({error})")
                continue
            stack.callback(nodes[name].close)
        lost += [f"{name} (the file is missing)" for name in _missing(folder, document)]
        if document and not (folder / SUMMARY).exists():
            lost.append(f"{SUMMARY} (the file is missing)")
        if not nodes and not document:
            raise RunFileError(_none(folder, lost))
        stack.pop_all()
    unfinished = [str(warning.message) for warning in partial]
    if not document:
        unfinished.insert(0, "it has no whole summary: finish the study with --resume")
    complete = bool(document) and not unfinished and not lost
    attrs = _attrs(document) | {"complete": int(complete)}
    if lost:
        attrs["left_out"] = printable("; ".join(lost), lines=False)
        unfinished.append(f"left out: {attrs['left_out']}")
    if unfinished:
        message = f"the study in {folder} is not complete: {'; '.join(unfinished)}"
        warn(message, WflowWarning)
    children: dict[str, Any] = {f"/{name}": ds for name, ds in nodes.items()}
    tree = xarray.DataTree.from_dict({"/": xarray.Dataset(attrs=attrs), **children})
    for name, ds in nodes.items():
        tree[name].set_close(ds.close)  # the tree holds copies, which close nothing
        tree[name].encoding |= {"source": ds.encoding.get("source", "")}
    tree.name = printable(folder.resolve().name, lines=False)
    return tree


def _check_folder(folder: Path) -> None:
    """Raise RunFileError unless the folder contains something."""
    if folder.is_file():
        raise RunFileError(
            f"{folder} is a file: open_study takes the folder of a study; wflow.open opens a run"
        )
    try:
        empty = not any(folder.iterdir())
    except FileNotFoundError:
        raise RunFileError(f"{folder} does not exist; give the --out of a study") from None
    except OSError as error:
        raise RunFileError(f"{folder} cannot be read: {error.strerror}") from None
    if empty:
        raise RunFileError(f"{folder} is empty: give the --out of a study that was run")


def _none(folder: Path, lost: list[str]) -> str:
    """Return the message for a folder in which nothing can be opened."""
    if lost:
        return f"nothing in {folder} can be read: {'; '.join(lost)}; restore it from a copy"
    return (
        f"{folder} is no folder of a study: it holds neither summary.json nor a run file of wflow; "
        "give the --out of a study"
    )


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names of the nodes and their files: the summary, runs, and trainings."""
    if (folder / SUMMARY).exists():
        yield "summary", folder / SUMMARY
    found: dict[str, Path] = {}
    for file in sorted(folder.glob("*.h5")):
        found[file.stem] = file
    for file in sorted(folder.glob("*.h5.partial")):
        found.setdefault(Path(file.stem).stem, file)
    for file in sorted(folder.glob("*.h5.parts")):
        found.setdefault(Path(file.stem).stem, file.with_suffix(""))
    found.pop("summary", None)
    for name, file in sorted(found.items()):
        if _is_run(file):
            yield name, file
    for file in sorted(folder.glob(f"*/{METRICS}")):
        yield file.parent.name, file


def _is_run(file: Path) -> bool:
    """Return whether a file is a run; an unreadable file counts, so that it is reported."""
    if not file.exists():
        return parts_of(file).is_dir()
    try:
        with open_hdf5(file) as content:
            return str(content.attrs.get("schema", "")).startswith(FAMILY)
    except RunFileError:
        return True


def _open(file: Path, document: dict[str, Any]) -> "xarray.Dataset":
    if file.name not in (SUMMARY, METRICS):
        return open_run(file)
    from wflow.runs import lazy

    with open_hdf5(file) as content:
        schema = str(content.attrs.get("schema", ""))
        if file.name == SUMMARY and not schema.startswith(STUDY):
            raise RunFileError(f"it is no summary of wflow: its schema is {schema!r}")
        found = [check_stored(content, name, file) for name in content]
        check_claims(content, (data for data in found if hasattr(data, "dtype")), file)
        created = str(content.attrs.get("created", ""))
    if file.name == SUMMARY and document and created != document.get("created", created):
        raise RunFileError("it is of another time than summary.json; run again with --resume")
    try:
        with signals_held():  # h5netcdf does not clean up after a failed opening
            return lazy.foreign_dataset(file)
    except BROKEN as error:
        raise RunFileError(f"{file} cannot be read: {error}") from None


def _missing(folder: Path, document: dict[str, Any]) -> list[str]:
    """List the run files that the summary names and the folder lacks."""
    runs = document.get("runs", {})
    names = list(runs.values()) if isinstance(runs, dict) else []
    if isinstance(runs, list):
        names = [run.get("file") for run in runs if isinstance(run, dict)]
    files = [folder / name for name in names if isinstance(name, str) and name != METRICS]
    return [f.name for f in files if not (f.exists() or partial_of(f).exists())]


def _attrs(document: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of the root: texts of the summary as they are, the rest as JSON."""
    attrs = {k: printable(v) for k, v in document.items() if isinstance(v, str)}
    return attrs | {key: json.dumps(document[key]) for key in _TEXTS if key in document}
