"""The session of a study: its runs, summary, findings and figures."""

from __future__ import annotations

import json
import os
import platform
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from wflow._core.errors import InputError
from wflow._core.files import own_folder
from wflow._core.invocation import command_text
from wflow._core.printable import printable, without_latex
from wflow._core.processes import check_main_guard
from wflow._core.progress import Advance, progress
from wflow._core.reprs import ShortResult
from wflow._core.signals import signals_as_errors, signals_held
from wflow.analysis.description import with_error
from wflow.analysis.fits import mean_and_error
from wflow.distributed.client import (
    check_workers,
    default_threads,
    in_this_process,
    pool,
    security_of,
)
from wflow.distributed.sweep import points
from wflow.runs.read import open_run
from wflow.runs.results import (
    DRAFT,
    REPORT,
    STUDY,
    foreign_among,
    refusal,
    refuse_foreign,
    replace_files,
)
from wflow.runs.schema import CONVENTIONS, history_line, version_of
from wflow.study import report
from wflow.study.cases import Labels, tabulate
from wflow.study.flags import Flags, OutputFlags
from wflow.study.folder import (
    check_output,
    earlier_results,
    keep_or_replace,
    log_on_stderr,
    refuse_existing,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

    from wflow.analysis.fits import PowerLaw

SUMMARY = ("summary.h5", "summary.json")
_PACKAGES = ("wflow", "numpy", "scipy", "numba", "pot", "xarray", "h5netcdf")


Verdict = Literal[
    "confirmed", "consistent", "confirmed in part", "not confirmed", "inconclusive",
    "confirmed at this size", "confirmed in part at this size", "not confirmed at this size",
]  # fmt: skip
AT_THIS_SIZE = " at this size"


@dataclass(frozen=True, repr=False)
class Finding(ShortResult):
    """Result of a study about one prediction.

    Parameters
    ----------
    prediction : str
        The statement, as the theory makes it.
    source : str
        Paper and theorem, or chapter of the theory.
    found : str
        The numbers, and where the prediction holds if only in part.
    verdict : {"confirmed", "consistent", "confirmed in part", "not confirmed", "inconclusive"}
        Decided by the study's code from its numbers: "consistent" where they agree with a theorem,
        which runs do not prove, "confirmed in part" where it holds in some of the cases that it
        covers, "inconclusive" where an effect is within its spread or was not
        measured. A claim of a paper that was tried below its size is, for example, "confirmed at
        this size".

    Examples
    --------
    >>> from wflow import study
    >>> study.Finding.decided("E falls", "chain rule", "1 of 2 runs", [True, False]).verdict
    'confirmed in part'
    """

    prediction: str
    source: str
    found: str
    verdict: Verdict

    def at_this_size(self) -> Finding:
        """Return the finding of a study below the size of the paper whose claim it tries.

        Returns
        -------
        Finding
            With "at this size" in its verdict, where the verdict decides a claim of a paper.

        Examples
        --------
        >>> from wflow import study
        >>> study.Finding("it learns", "[Paper] 7", "0.9", "confirmed").at_this_size().verdict
        'confirmed at this size'
        """
        if self.verdict == "inconclusive" or not self.source.startswith("["):
            return self
        return replace(self, verdict=cast(Verdict, self.verdict + AT_THIS_SIZE))

    def of_theorem(self) -> Finding:
        """Return the finding about a statement that is proved, which runs do not prove again.

        Returns
        -------
        Finding
            With "consistent" in the place of "confirmed".

        Examples
        --------
        >>> from wflow import study
        >>> study.Finding("E falls", "chain rule", "by 0.3", "confirmed").of_theorem().verdict
        'consistent'
        """
        return replace(self, verdict="consistent") if self.verdict == "confirmed" else self

    @classmethod
    def decided(
        cls,
        prediction: str,
        source: str,
        found: str,
        holds: ArrayLike,
        *,
        known: ArrayLike = True,
    ) -> Finding:
        """Return a finding about cases in each of which the prediction holds or does not.

        A case that is not known neither confirms nor refutes. Where the prediction holds in every
        case it is confirmed, where it holds in some it is confirmed in part; where it is seen to
        hold in none it is inconclusive if some case is not known, or there is none, and otherwise
        not confirmed.

        Parameters
        ----------
        prediction : str
            The statement, as the theory makes it.
        source : str
            Paper and theorem, or chapter of the theory.
        found : str
            The numbers.
        holds : bool or array_like of bool
            Whether it holds, or one value per case.
        known : bool or array_like of bool, default True
            Whether the numbers decide a case: not where they are missing, or within their error.

        Returns
        -------
        Finding
            The finding with its verdict.
        """
        cases, decided = np.broadcast_arrays(np.asarray(holds, bool), np.asarray(known, bool))
        verdict: Verdict = "not confirmed" if decided.size and decided.all() else "inconclusive"
        if (seen := cases & decided).any():
            verdict = "confirmed" if seen.all() else "confirmed in part"
        return cls(prediction, source, found, verdict)

    @classmethod
    def within(
        cls,
        prediction: str,
        source: str,
        found: str,
        low: ArrayLike,
        high: ArrayLike,
        limit: ArrayLike,
    ) -> Finding:
        """Return a finding about numbers, known by intervals, that are predicted to be small.

        The prediction holds where the whole interval [low, high] lies in [-limit, limit], fails
        where it lies outside, and is not known elsewhere, nor where a number is NaN: an interval
        that is too wide confirms nothing.

        Parameters
        ----------
        prediction : str
            The statement, as the theory makes it.
        source : str
            Paper and theorem, or chapter of the theory.
        found : str
            The numbers.
        low : float or array_like
            Lower end of the interval, of every case.
        high : float or array_like
            Upper end.
        limit : float or array_like
            Largest size.

        Returns
        -------
        Finding
            The finding with its verdict, by `decided`.

        Examples
        --------
        >>> from wflow import study
        >>> study.Finding.within("a is 0", "theory", "-0.01 to 0.4", -0.01, 0.4, 0.1).verdict
        'inconclusive'
        """
        least, most, size = (np.asarray(value, dtype=float) for value in (low, high, limit))
        holds = (least >= -size) & (most <= size)
        fails = (least > size) | (most < -size)
        return cls.decided(prediction, source, found, holds, known=holds | fails)

    @classmethod
    def slope(
        cls,
        prediction: str,
        source: str,
        fits: PowerLaw | Mapping[str, PowerLaw | None],
        expected: float | Mapping[str, float],
        tolerance: float,
        *,
        root: bool = False,
        whole: bool = False,
        note: str = "",
    ) -> Finding:
        """Return a finding about the exponents of power laws.

        An exponent within the tolerance of what is expected is confirmed; one beyond it is
        inconclusive if its interval reaches that range, and not confirmed otherwise. Exponents that
        differ in this are confirmed in part, or, where none is confirmed, inconclusive. So is an
        exponent that the numbers do not resolve: its fit is None, or its interval holds 0.

        Parameters
        ----------
        prediction : str
            The statement, as the theory makes it.
        source : str
            Paper and theorem, or chapter of the theory.
        fits : wflow.fits.PowerLaw, or dict of str to PowerLaw or None
            One fit, or label -> fit.
        expected : float, or dict of str to float
            Exponent, or label -> exponent.
        tolerance : float
            Largest difference that counts as none.
        root : bool, default False
            Whether the fits are of mean squares, and the prediction is about their roots.
        whole : bool, default False
            Whether the whole interval must be within the tolerance, as the exponent of few paths
            may be there by chance; where only a part of it is, the exponent is inconclusive.
        note : str, default ""
            Text that is added to the numbers.

        Returns
        -------
        Finding
            The finding with its verdict.
        """
        laws = fits if isinstance(fits, Mapping) else {"": fits}
        verdicts: list[Verdict] = []
        for label, fit in laws.items():
            if fit is None:
                verdicts.append("inconclusive")
                continue
            wanted = expected[label] if isinstance(expected, Mapping) else expected
            scale = 0.5 if root else 1.0
            low, high = (scale * bound for bound in fit.exponent_ci)
            near = abs(scale * fit.exponent - wanted) <= tolerance
            if whole:
                near = low >= wanted - tolerance and high <= wanted + tolerance
            reached = low <= wanted + tolerance and high >= wanted - tolerance
            if near and not (wanted and low <= 0.0 <= high):
                verdicts.append("confirmed")
            elif near or reached or (whole and not np.isfinite(low)):
                verdicts.append("inconclusive")
            else:
                verdicts.append("not confirmed")
        verdict = verdicts[0]
        if len(set(verdicts)) > 1:
            verdict = "confirmed in part" if "confirmed" in verdicts else "inconclusive"
        found = "; ".join(
            f"{label} slope {slope_text(fit, root=root)}".strip() for label, fit in laws.items()
        )
        return cls(prediction, source, found + note, verdict)


def slope_text(fit: PowerLaw | None, style: str = ".3f", *, root: bool = False) -> str:
    """Write the exponent of a fit and its interval.

    Parameters
    ----------
    fit : wflow.fits.PowerLaw or None
        A fit; None where there is none, as the numbers do not resolve it.
    style : str, default ".3f"
        Format of the numbers.
    root : bool, default False
        Whether to write those of the root of what was fitted.

    Returns
    -------
    str
        Exponent and interval, or "not resolved".

    Examples
    --------
    >>> from wflow import fits, study
    >>> study.slope_text(fits.power_law([1, 2, 4], [[3.0], [1.5], [0.75]]))
    '-1.000'
    """
    if fit is None:
        return "not resolved"
    scale = 0.5 if root else 1.0
    low, high = (scale * bound for bound in fit.exponent_ci)
    interval = f" ({100 * fit.level:.0f} % {low:{style}} to {high:{style}})"
    return f"{scale * fit.exponent:{style}}" + (interval if np.isfinite(low) else "")


def mean_text(samples: ArrayLike) -> str:
    """Write the mean ± standard error of independent samples, for a cell of a table.

    The error has one digit, two where it begins with 1, and the mean has the digits that it leaves;
    a mean without an error has four.

    Parameters
    ----------
    samples : array_like, shape (N,)
        Real samples.

    Returns
    -------
    str
        Mean and error.

    Raises
    ------
    InputError
        For values that are not real numbers, or no samples.

    Examples
    --------
    >>> from wflow import study
    >>> study.mean_text([1.02, 3.01])
    '2.0 ± 1.0'
    """
    mean, error = mean_and_error(samples, finite=False)
    return with_error(float(mean), float(error))


class Session:
    """One call of a study; made by `wflow.study.session`.

    Parameters
    ----------
    name : str
        Name of the study, for the summary.
    flags : OutputFlags
        Its flags, checked.

    Attributes
    ----------
    files : dict of str to pathlib.Path
        Run files that were written, by the names of the runs.

    Examples
    --------
    >>> from pathlib import Path
    >>> import tempfile
    >>> from wflow import study
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     flags = study.OutputFlags(out=Path(folder, "results"))
    ...     with study.session("trial", flags) as session:
    ...         print(session.name, session.files)
    trial {}
    """

    def __init__(self, name: str, flags: OutputFlags) -> None:
        self.name, self.flags, self.question = name, flags, flags.question
        self.files: dict[str, Path] = {}

    def solve(self, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
        """Compute every run, or keep what `--resume` finds of it.

        Parameters
        ----------
        runs : dict of str to dict
            Arguments of `wflow.solve`, or with a mesh of `wflow.meanfield.solve`, by the names of
            the runs, without `out` and `if_exists`; `compute` is that of the flags. Runs of the
            mean-field equation are computed by this process, after the others.

        Returns
        -------
        dict of str to pathlib.Path
            Run files NAME.h5 in the study's folder, by name.

        Raises
        ------
        InputError
            For arguments or files that cannot be used; nothing has been computed then.
        """
        flags = self.flags
        assert isinstance(flags, Flags), "only a study of particles has runs to solve"
        files = {name: flags.out / f"{name}.h5" for name in runs}
        threads = flags.compute.threads
        share = threads or default_threads(flags.workers)
        computed = {
            name: replace(task.get("compute", flags.compute), threads=share)
            for name, task in runs.items()
        }
        runs = {name: {**task, "compute": computed[name]} for name, task in runs.items()}
        for name, file in files.items():
            check_output(file, runs[name], flags)
        tasks = [{**task, **keep_or_replace(files[name], flags)} for name, task in runs.items()]
        equations = [task for task in tasks if "mesh" in task]
        if particles := [task for task in tasks if "mesh" not in task]:
            security = _security(flags)
            with pool(
                flags.workers, flags.scheduler, security=security, threads=threads
            ) as compute:
                compute(particles)
        in_this_process(equations)
        self.files |= files
        return files

    def sweep(
        self,
        cases: Labels,
        reduce: Callable[..., Mapping[str, ArrayLike]],
        variables: Mapping[str, str | tuple[Sequence[str], str]],
        along: Labels | None = None,
        **task: Any,
    ) -> Dataset:
        """Compute a run for every combination of labels, and return a labelled table of them.

        The runs are those of `wflow.sweep`: a dimension of `cases` is an argument of the run, or a
        name on which arguments depend that are functions. Their files have names such as
        ``kappa=0.1,start=uniform.h5``.

        Parameters
        ----------
        cases : dict of str to tuple
            Dimension -> (labels, text), the dimensions that are swept.
        reduce : callable
            Function of the Dataset of a run, whose value is a dict of arrays by name; further
            parameters are names of dimensions.
        variables : dict of str to str or tuple
            Name -> text of a number, or (dimensions, text) of an array that one run has.
        along : dict of str to tuple, optional
            Dimension -> (labels, text), those dimensions.
        **task
            Arguments of `wflow.solve`, values or functions of dimensions; `compute` is that of the
            flags.

        Returns
        -------
        xarray.Dataset
            The table, as that of `wflow.study.tabulate`.

        Raises
        ------
        InputError
            As `solve` and `wflow.study.tabulate` raise it.
        """
        import wflow.plots.accessor  # noqa: F401  # gives `reduce` run.wflow

        grid = {dim: labels for dim, (labels, _) in cases.items()}
        _, found = points(grid, task, reduce)
        files = self.solve({point.name: point.task() for point in found})
        at = {tuple(point.labels.values()): point for point in found}

        def measure(*labels: Any) -> Mapping[str, ArrayLike]:
            point = at[labels]
            with open_run(files[point.name]) as run:
                return cast(Mapping[str, ArrayLike], point.reduced(reduce, run))

        return tabulate(cases, measure, variables, along)

    def progress(self, total: int, label: str) -> AbstractContextManager[Advance]:
        """Show the progress of a loop of the study: `with ... as advance: advance(1)`.

        Parameters
        ----------
        total : int
            Number of passes of the loop.
        label : str
            Text beside the bar.

        Returns
        -------
        context manager
            Its value is a function of the number of passes that were made.
        """
        return progress(total, label)

    def finish(
        self,
        table: Dataset,
        text: str,
        findings: Sequence[Finding],
        figures: Mapping[str, Figure],
        texts: Mapping[str, str] | None = None,
    ) -> None:
        """Write the summary and the figures, and print the findings.

        Parameters
        ----------
        table : xarray.Dataset
            The study's numbers, written to summary.h5.
        text : str
            The report that is printed, Markdown.
        findings : sequence of Finding
            One per prediction.
        figures : dict of str to matplotlib.figure.Figure
            Figures by name, written as PNG and PDF; the label of one is its caption in the report.
        texts : dict of str to str, optional
            Content of further text files, by name.
        """
        source = provenance(self.name, self.question)
        document = source | {
            "config": {"flags": asdict(self.flags) | {"out": str(self.flags.out)}},
            "runs": {name: file.name for name, file in self.files.items()},
            "findings": [asdict(finding) for finding in findings],
        }
        found = f"{text}\n\n{findings_text(findings)}" if findings else text
        page = (
            f"# {self.name}\n\n    {source['command']}\n\n{machine()}; {source['created']}; "
            f"wflow {source['versions']['wflow']}\n\n{found}\n"
        )
        texts = dict(texts or {}) | {"summary.md": page}
        former = earlier_results(self.flags.out)
        print(printable(found))
        write_results(self.flags.out, table, document, figures, texts, stale=former)
        runs = f"{len(self.files)} run file{'s' if len(self.files) != 1 else ''}"
        made = f"In {self.flags.out}: {runs}; summary.h5, summary.json, summary.md and {REPORT}"
        made += f"; figures (PNG and PDF) {', '.join(figures)}" if figures else ""
        print(f"\n{printable(made, lines=False)}")


@contextmanager
def session(name: str, flags: OutputFlags) -> Iterator[Session]:
    """Open the folder of a study: `with study.session(name, flags) as session: ...`.

    Everything that takes time belongs inside: the folder is checked, and kept from other studies,
    and the scheduler has answered, before the block begins.

    Parameters
    ----------
    name : str
        Name of the study, for the summary.
    flags : OutputFlags
        Its flags, checked (as `command_line` does).

    Yields
    ------
    Session
        The session.

    Raises
    ------
    InputError
        Where the folder holds an earlier summary and neither --resume nor --overwrite is given,
        where it cannot be used, or where workers were asked for and there is no dask.
    Interrupted
        A KeyboardInterrupt, on SIGINT and SIGTERM.

    Examples
    --------
    >>> from pathlib import Path
    >>> import tempfile
    >>> import numpy as np, wflow
    >>> from wflow import study
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with study.session("trial", study.Flags(out=Path(folder, "results"))) as session:
    ...         files = session.solve({"one": dict(
    ...             x0=wflow.tokens.uniform(5, 3, seed=0), law=wflow.heads.Frozen(),
    ...             heads=np.eye(3)[None], t_final=0.1, dt=0.05,
    ...         )})
    >>> files["one"].name
    'one.h5'
    """
    if not first_process(flags):
        yield Session(name, flags)
        return
    if isinstance(flags, Flags) and flags.workers:
        check_main_guard()  # before the folder, which the script has already
    with ExitStack() as stack:
        stack.enter_context(signals_as_errors(lambda: _after_signal(flags)))
        stack.enter_context(log_on_stderr(flags.verbose))
        stack.enter_context(own_folder(flags.out, "study", [DRAFT], option="--out"))
        if flags.resume or flags.overwrite:
            refuse_foreign(flags.out, (*SUMMARY, "summary.md"), earlier_results(flags.out))
        else:
            refuse_existing(flags.out, SUMMARY)
        refuse_foreign(flags.out, [REPORT])
        if isinstance(flags, Flags):
            check_workers(flags.workers, flags.scheduler, _security(flags))
        yield Session(name, flags)


def _security(flags: Flags) -> Any:
    """Return the certificates for --scheduler, or None."""
    return security_of(flags.tls_ca_file, flags.tls_cert, flags.tls_key)


def first_process(flags: OutputFlags) -> bool:
    """Whether this process has the folder: of several that torchrun started for a study, number 0.

    Other launchers set RANK too, and a study that torchrun cannot distribute is one process.
    """
    shared = getattr(flags, "torchrun", False) and os.environ.get("WORLD_SIZE", "1") != "1"
    return not shared or os.environ.get("RANK", "0") == "0"


def _after_signal(flags: OutputFlags) -> str:
    """Return what a message adds to the name of a signal that ended a study."""
    if not flags.out.is_dir():
        return "ended the study before it wrote anything"
    instead = " in the place of --overwrite" if flags.overwrite else ""
    return (
        f"ended the study; finished runs are kept in {flags.out}: give the same command with "
        f"--resume{instead} to continue"
    )


def provenance(name: str, question: str = "") -> dict[str, Any]:
    """Return the provenance of a summary: study and its question, command, date, versions."""
    return {
        "schema": f"{STUDY}1",
        "study": name,
        **({"question": question} if question else {}),
        "command": command_text(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {package: version_of(package) for package in _PACKAGES},
    }


def write_results(
    folder: Path,
    table: Dataset,
    document: dict[str, Any],
    figures: Mapping[str, Figure],
    texts: Mapping[str, str],
    *,
    stale: Iterable[str] = (),
) -> None:
    """Write figures, texts, summary.h5 (the numbers), summary.json (the document) and the report.

    Parameters
    ----------
    document : it gets the names of the figures and texts, and captions
    figures : by name; the label of a figure is its caption in the report
    stale : names of earlier results, removed where they are not written again

    Raises
    ------
    InputError
        Where the folder cannot be written, or a file that wflow did not write has one of the
        names. If it is that of a figure or a text, everything else is written.
    """
    from wflow.plots.figure import draw

    named = earlier_results(folder)
    drawn = {stem: (f"{stem}.png", f"{stem}.pdf") for stem in figures}
    names = [*chain.from_iterable(drawn.values()), *texts, REPORT]
    foreign = foreign_among(folder, names, named)
    figures = {stem: figures[stem] for stem in figures if not {*drawn[stem]} & {*foreign}}
    texts = {name: texts[name] for name in texts if name not in foreign}

    attrs = {
        key: json.dumps(value) if isinstance(value, dict | list) else value
        for key, value in document.items()
        if key in ("schema", "study", "command", "created", "versions", "config")
    }
    cf = {
        "title": f"wflow study {document['study']}",
        "Conventions": CONVENTIONS,
        "source": f"wflow {version_of('wflow')}",
        "history": history_line(document["command"]),
    }
    dataset = table.assign_attrs(attrs | cf)
    document = document | {"figures": list(figures), "texts": sorted(texts)}
    document["captions"] = {k: label for k, each in figures.items() if (label := each.get_label())}
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    writers: dict[str, Callable[[Path], Any]] = {
        f"{stem}.{kind}": partial(draw, figure, kind)
        for stem, figure in figures.items()
        for kind in ("png", "pdf")
    }
    writers["summary.h5"] = partial(_write_netcdf, dataset)
    for name, content in (*texts.items(), ("summary.json", text)):
        writers[name] = partial(Path.write_text, data=content, encoding="utf-8")
    try:
        replace_files(
            folder,
            writers,
            named=named,
            stale={*stale, REPORT} - set(writers),  # a report of the earlier summary is stale
            index="summary.json",
        )
    except OSError as error:
        raise InputError(
            f"cannot write the summary into {folder}: {error.strerror or error}; the run files "
            "are kept: free space and give the same command with --resume"
        ) from None
    if REPORT not in foreign:
        report.write(folder)
    for name in foreign:
        raise InputError(
            f"{refusal(folder / name)} and give the same command with --resume; the summary is "
            "written"
        )


def _write_netcdf(dataset: Dataset, file: Path) -> None:
    with signals_held():  # h5netcdf does not clean up after a failed opening
        dataset.to_netcdf(file, engine="h5netcdf")


def markdown_table(
    columns: Mapping[str, Sequence[str]] | Sequence[Mapping[str, str]],
) -> str:
    """Write a table in Markdown that also reads well as plain text.

    Parameters
    ----------
    columns : dict of str to sequence of str, or sequence of dict of str to str
        Title -> cells; or one mapping title -> cell for every row.

    Returns
    -------
    str
        The table.

    Raises
    ------
    InputError
        For columns of different lengths, or rows with different titles.

    Examples
    --------
    >>> from wflow import study
    >>> print(study.markdown_table({"H": ["1", "16"], "G^2": ["0.4", "0.03"]}))
    | H  | G^2  |
    | -- | ---- |
    | 1  | 0.4  |
    | 16 | 0.03 |
    """
    if not isinstance(columns, Mapping):
        rows_given = list(columns)
        titles = list(rows_given[0]) if rows_given else []
        for row in rows_given:
            if list(row) != titles:
                raise InputError(f"the rows of a table have different titles: {titles}, {[*row]}")
        columns = {title: [row[title] for row in rows_given] for title in titles}
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
    """Return the number of cores and the name of the processor, for the head of a report."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if found := re.search(r"^model name\s*: (.+)$", text, re.MULTILINE):
            name = found[1]
    return f"{os.cpu_count()} cores of {name}"


def findings_text(findings: Sequence[Finding]) -> str:
    """Write the findings as a Markdown list that also reads well in a terminal."""
    entries = []
    for f in findings:
        entry = f"- **{f.verdict}**: {f.prediction} ({f.source}). Found: {f.found}."
        entries.append(
            textwrap.fill(without_latex(entry), 100, subsequent_indent="  ", break_long_words=False)
        )
    return "\n".join(entries)
