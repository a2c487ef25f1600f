"""What every study does around its own question: runs, summary, findings, figures."""

import json
import os
import platform
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wflow import _study_files
from wflow._study_flags import Flags, OutputFlags
from wflow._workers import default_threads, pool
from wflow.errors import InputError
from wflow.progress import Advance, progress
from wflow.schema import version_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

SUMMARY = ("summary.h5", "summary.json")
_PACKAGES = ("wflow", "numpy", "scipy", "numba", "pot", "xarray", "h5netcdf")


@dataclass(frozen=True)
class Finding:
    """What a study found about one prediction.

    Attributes
    ----------
    prediction : the statement, as the theory makes it
    source : paper and theorem, or section of docs/mathematics.md
    found : the numbers, and where the prediction holds if only in part
    verdict : decided by the study's code from its numbers
    """

    prediction: str
    source: str
    found: str
    verdict: Literal["held", "held in part", "not held"]


class Session:
    """One call of a study; made by `wflow.study.session`."""

    def __init__(self, name: str, flags: OutputFlags) -> None:
        self.name, self.flags = name, flags
        self.files: dict[str, Path] = {}

    def solve(self, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
        """Compute every run, or keep what `--resume` finds of it.

        Parameters
        ----------
        runs : name -> arguments of `wflow.solve`, without `out` and what belongs to it

        Returns
        -------
        name -> run file NAME.h5 in the study's folder

        Raises
        ------
        InputError
            For arguments or files that cannot be used; nothing has been computed then.
        """
        flags = self.flags
        assert isinstance(flags, Flags), "only a study of particles has runs to solve"
        files = {name: flags.out / f"{name}.h5" for name in runs}
        for name, file in files.items():
            _study_files.check_output(file, _study_files.configuration(runs[name]), flags)
        where = {"threads": flags.threads or default_threads(flags.workers)}
        tasks = [
            dict(task) | where | _study_files.keep_or_replace(files[name], flags)
            for name, task in runs.items()
        ]
        with pool(flags.workers, flags.scheduler, threads=flags.threads) as compute:
            compute(tasks)
        self.files |= files
        return files

    def progress(self, total: int, label: str) -> AbstractContextManager[Advance]:
        """Show how far a loop of the study has come: `with ... as advance: advance(1)`."""
        return progress(total, label)

    def finish(
        self,
        table: "Dataset",
        text: str,
        findings: Sequence[Finding],
        figures: "Mapping[str, Figure]",
    ) -> None:
        """Write summary and figures, and print what was found.

        Parameters
        ----------
        table : the study's numbers, written to summary.h5
        text : the report that is printed, Markdown
        findings : one per prediction
        figures : name -> figure, written as PNG and PDF
        """
        from wflow._figure import save

        folder = self.flags.out
        flags = asdict(self.flags) | {"out": str(self.flags.out)}
        source = provenance(self.name)
        runs = {name: file.name for name, file in self.files.items()}
        document = source | {
            "config": {"flags": flags},
            "runs": runs,
            "findings": [asdict(finding) for finding in findings],
            "figures": sorted(figures),
        }
        report = f"{text}\n\n{_findings_text(findings)}" if findings else text
        page = (
            f"# {self.name}\n\n    {source['command']}\n\n{machine()}; {source['created']}; "
            f"wflow {source['versions']['wflow']}\n\n{report}\n"
        )
        former = _former_figures(folder)
        write_summary(folder, table, document, page)
        for stem, figure in figures.items():
            save(figure, folder, stem)
        for stem in former - set(figures):
            for kind in ("png", "pdf"):
                (folder / f"{stem}.{kind}").unlink(missing_ok=True)
        print(report)
        print(f"\nIn {folder}: {len(runs)} run file{'s' if len(runs) != 1 else ''}", end="")
        print("; summary.h5, summary.json and summary.md", end="")
        print(f"; figures (PNG and PDF) {', '.join(figures)}" if figures else "")


@contextmanager
def session(name: str, flags: OutputFlags) -> Iterator[Session]:
    """Open the folder of a study: `with study.session(name, flags) as session: ...`.

    Parameters
    ----------
    name : name of the study, for the summary
    flags : its flags, checked (as `command_line` does)

    Raises
    ------
    InputError
        Where the folder holds an earlier summary, and neither --resume nor --overwrite is given.
    """
    if not (flags.resume or flags.overwrite):
        _study_files.refuse_existing(flags.out, SUMMARY)
    with ExitStack() as stack:
        stack.enter_context(_study_files.log_on_stderr(flags.verbose))
        stack.enter_context(_study_files.study_folder(flags.out))
        yield Session(name, flags)


def provenance(name: str) -> dict[str, Any]:
    """What made a summary: study, command, date, versions."""
    return {
        "schema": "wflow-study/1",
        "study": name,
        "command": shlex.join(sys.argv),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {package: version_of(package) for package in _PACKAGES},
    }


def write_summary(
    folder: Path, table: "Dataset", document: dict[str, Any], page: str | None = None
) -> None:
    """Write summary.h5 (the numbers), summary.json (the document) and summary.md (the page)."""
    attrs = {
        key: json.dumps(value) if isinstance(value, dict | list) else value
        for key, value in document.items()
        if key in ("schema", "study", "command", "created", "versions", "config")
    }
    dataset = table.assign_attrs(attrs | {"title": f"wflow study {document['study']}"})
    text = json.dumps(document, indent=2, allow_nan=False)
    writers: dict[str, Any] = {
        "summary.h5": lambda file: dataset.to_netcdf(file, engine="h5netcdf"),
        "summary.json": lambda file: file.write_text(text + "\n", encoding="utf-8"),
    }
    if page is not None:
        writers["summary.md"] = lambda file: file.write_text(page, encoding="utf-8")
    _study_files.replace_files(folder, writers)


def markdown_table(columns: Mapping[str, Sequence[str]]) -> str:
    """Write a table in Markdown that also reads well as plain text: title -> cells.

    Raises
    ------
    InputError
        For columns of different lengths.
    """
    lengths = {title: len(cells) for title, cells in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"the columns of a table have different lengths: {lengths}")
    widths = [max(map(len, (title, *cells))) for title, cells in columns.items()]
    rows = [tuple(columns), tuple("-" * w for w in widths), *zip(*columns.values(), strict=True)]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    )


def machine() -> str:
    """The processor and its number of cores, for the head of a report."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} cores of {models[0] if models else name}"


def _findings_text(findings: Sequence[Finding]) -> str:
    """A Markdown list that also reads well in a terminal."""
    entries = []
    for f in findings:
        entry = f"- **{f.verdict}**: {f.prediction} ({f.source}). Found: {f.found}."
        entries.append(textwrap.fill(entry, 100, subsequent_indent="  ", break_long_words=False))
    return "\n".join(entries)


def _former_figures(folder: Path) -> set[str]:
    """Figures that an earlier summary of this folder names."""
    try:
        document = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        return {str(stem) for stem in document["figures"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
