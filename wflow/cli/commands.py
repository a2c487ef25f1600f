"""The command `wflow`: solve, inspect, compare and report runs, run studies, prepare data."""

import codecs
import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import tyro

from wflow._core.command_line import (
    ConfigFile,
    Drawing,
    Folder,
    NewRun,
    Page,
    RunFile,
    RunOrFolder,
    Texts,
    read_words,
    shown_as,
)
from wflow._core.errors import InputError, Interrupted, WflowError, last_words
from wflow._core.extras import install
from wflow._core.printable import printable
from wflow._core.signals import signals_as_errors
from wflow._version import __version__
from wflow.cli import studies

_Switch = Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(help_behavior_hint="")]


@dataclass(frozen=True)
class Solve:
    """Compute the run of a configuration: the arguments of `wflow.solve` in a file."""

    file: tyro.conf.Positional[ConfigFile]
    """Configuration, .toml or .json; or a run file, which is run again."""
    out: Annotated[NewRun | None, shown_as("FILE.h5", "beside the configuration, by its name")] = (
        None
    )
    """Run file to write."""
    set: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(metavar="KEY=VALUE", help_behavior_hint="(may be given several times)"),
    ] = ()
    """Change a value, such as dt=0.01, law.rate=2 or tokens=cloud.npy."""
    resume: _Switch = False
    """Continue an unfinished run, or extend a finished one."""
    overwrite: _Switch = False
    """Replace the run file."""

    def __call__(self) -> int:
        from wflow.cli.configuration import read
        from wflow.particles.solver import solve_problem
        from wflow.runs.read import final_of

        if self.resume and self.overwrite:
            raise InputError("--resume and --overwrite are both given: choose one of them")
        problem, where = read(self.file, self.set)
        out = self.out or where.get("out") or final_of(self.file).with_suffix(".h5")
        exists: Any = where.get("if_exists", "error")
        exists = "resume" if self.resume else "overwrite" if self.overwrite else exists
        with solve_problem(problem, out, exists, where.get("progress", True)):
            pass
        return Info(Path(out))()


@dataclass(frozen=True)
class Info:
    """Describe a run file: the run, its provenance and its main numbers."""

    file: tyro.conf.Positional[RunFile]
    """Run file, or the .partial of an unfinished run."""
    config: _Switch = False
    """Print its configuration as TOML, which `wflow solve` reads."""

    def __call__(self) -> int:
        if self.config:
            from wflow.cli.configuration import configuration, toml

            print(toml(configuration(self.file)), end="")
            return 0
        from wflow.analysis.description import describe
        from wflow.runs.read import open_run

        with open_run(self.file) as ds:
            lines = describe(ds)
        width = max(len(name) for name, _ in lines)
        print(_name(self.file))
        for name, text in lines:
            print(f"  {name:<{width}}  {text}")
        return 0


@dataclass(frozen=True)
class Plot:
    """Draw every figure that a run file allows, as PNG and PDF."""

    file: tyro.conf.Positional[RunFile]
    """Run file, or the .partial of an unfinished run."""
    out: Annotated[Folder | None, shown_as("DIR", "the folder of the file")] = None
    """Folder for the figures."""

    def __call__(self) -> int:
        from wflow.plots.runs import plot_run
        from wflow.runs.read import open_run

        with open_run(self.file) as ds:
            written = plot_run(ds, self.file.parent if self.out is None else self.out)
        for path in written:
            print(_name(path))
        return 0


@dataclass(frozen=True)
class Verify:
    """Recompute the numbers of a run file, and report pass or fail (exit status 0 or 1)."""

    file: tyro.conf.Positional[RunFile]
    """Run file."""
    tolerance: float = 0.05
    """Mean residual of the energy balance that passes, as a share of the energy turned over."""

    def __call__(self) -> int:
        from wflow.analysis.verify import verify

        report = verify(self.file, tolerance=self.tolerance, progress=True)
        print(report)
        return 0 if report.passed else 1


@dataclass(frozen=True)
class Compare:
    """Compare two run files (exit status 0 for the same numbers, 1 for different ones)."""

    first: Annotated[tyro.conf.Positional[RunFile], tyro.conf.arg(name="a")]
    """Run file, or the .partial of an unfinished run."""
    second: Annotated[tyro.conf.Positional[RunFile], tyro.conf.arg(name="b")]
    """The other run file."""
    tolerance: float = 0.0
    """Largest relative difference that counts as none; with 0 only equal values are the same."""
    figure: Annotated[Drawing | None, shown_as("FILE.png", "none")] = None
    """Figure to draw, .png or .pdf: both runs, and W2 along time."""

    def __call__(self) -> int:
        from wflow.plots.comparison import compare
        from wflow.plots.figure import draw
        from wflow.runs.results import replace_files

        drawn = self.figure
        if drawn is not None and drawn.suffix not in (".png", ".pdf"):
            raise InputError(f"--figure {drawn}: expected a name that ends in .png or .pdf")
        if drawn is not None and not drawn.parent.is_dir():
            raise InputError(f"--figure {drawn}: there is no folder {drawn.parent}")
        found = compare(self.first, self.second, tolerance=self.tolerance)
        print(found)
        if drawn is not None:
            write = partial(draw, found.plot(), drawn.suffix[1:])
            replace_files(drawn.parent, {drawn.name: write})
            print(_name(drawn))
        return 0 if found.same else 1


@dataclass(frozen=True)
class ReportPage:
    """Write one page of HTML about a run or a study, which opens without network."""

    source: tyro.conf.Positional[RunOrFolder]
    """Run file, the .partial of an unfinished run, or the folder of a study."""
    out: Annotated[Page | None, shown_as("FILE.html", "beside the run file, or in the folder")] = (
        None
    )
    """The page to write."""
    light: bool = False
    """Write a static page, as a rule below 500 kB: RUN_light.html or report_light.html."""

    def __call__(self) -> int:
        from wflow.study.report import write

        print(_name(write(self.source, self.out, light=self.light)))
        return 0


@dataclass(frozen=True)
class Cite:
    """Print the papers that a run or a study relies on, as BibTeX, each with its reason."""

    source: tyro.conf.Positional[RunOrFolder]
    """Run file, the .partial of an unfinished run, or the folder of a study."""

    def __call__(self) -> int:
        from wflow.analysis.citations import cite

        print(printable(cite(self.source).bibtex))
        return 0


@dataclass(frozen=True)
class Study:
    """Run a study: `wflow study NAME [flags]`; `wflow study list` names them."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME [flags]")]
    """A study, and its flags, which `wflow study NAME --help` explains; or the word `list`."""

    def __call__(self) -> int:
        return studies.run(self.name)


@dataclass(frozen=True)
class Data:
    """Prepare a text for training: `wflow data prepare openwebtext FOLDER`."""

    action: tyro.conf.Positional[Literal["prepare"]]
    """What to do: prepare."""
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """What tables call the text, such as openwebtext."""
    source: tyro.conf.Positional[Texts]
    """A file or folder of .jsonl, .txt (also .gz), .parquet or .arrow, or one of `datasets`."""
    out: Annotated[Folder | None, shown_as("DIR", "FOLDER-tokens, beside it")] = None
    """Folder for the token files."""
    column: str = "text"
    """Field or column with the text."""
    begins: Annotated[str | None, shown_as("REGEX", "none")] = None
    """Lines of plain text that begin a document; otherwise <|endoftext|> lies between documents."""
    validation: float = 0.0005
    """Share of the documents that is held back, by a digest of their text."""
    seed: int = 2357
    """Which documents are held back."""
    tokenizer: Annotated[Folder | None, shown_as("DIR", "those of GPT-2")] = None
    """Folder with other byte pairs, encoder.json and vocab.bpe."""
    workers: Annotated[int | None, shown_as("INT", "one for each core")] = None
    """Processes that make tokens."""
    resume: _Switch = False
    """Continue what an earlier call left in --out."""
    overwrite: _Switch = False
    """Replace the token files in --out."""

    def __call__(self) -> int:
        try:
            from wflow.nets.data.preparing import prepare_text
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise InputError(f"token files need torch: {install('nets')}") from None

        source = Path(os.path.abspath(self.source))
        out = source.with_name(f"{source.stem}-tokens") if self.out is None else self.out
        text = prepare_text(
            source,
            out,
            name=self.name,
            column=self.column,
            begins=self.begins,
            validation=self.validation,
            seed=self.seed,
            tokenizer=self.tokenizer,
            workers=self.workers,
            resume=self.resume,
            overwrite=self.overwrite,
            show=True,
        )
        print(f"{_name(out)}\n  {printable(text.source)}")
        for half, kept in text.description["files"].items():
            print(f"  {half:<10}  {kept['documents']:,} documents, SHA-256 {kept['sha256']}")
        for key, what in (("empty", "empty, left out"), ("repaired", "no valid Unicode, repaired")):
            if text.description[key]:
                print(f"  {text.description[key]:,} documents were {what}")
        return 0


Command = (
    Annotated[Solve, tyro.conf.subcommand("solve")]
    | Annotated[Info, tyro.conf.subcommand("info")]
    | Annotated[Plot, tyro.conf.subcommand("plot")]
    | Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[ReportPage, tyro.conf.subcommand("report")]
    | Annotated[Cite, tyro.conf.subcommand("cite")]
    | Annotated[Study, tyro.conf.subcommand("study")]
    | Annotated[Data, tyro.conf.subcommand("data")]
)
_NAMES = ("solve", "info", "plot", "verify", "compare", "report", "cite", "study", "data")


@dataclass(frozen=True)
class _Wflow:
    """Command line of `wflow`, as `tyro` reads it."""

    command: Command
    version: _Switch = False
    """Print the version and exit."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `wflow`.

    Parameters
    ----------
    argv : arguments after the name of the command; None: those of the process

    Returns
    -------
    exit status: 0; 1 where `verify` fails; 2 for a mistake of the user; of `wflow study` that of
    the study

    Raises
    ------
    SystemExit
        For `--help` (0) and for arguments that cannot be read (2); without arguments the help
        is printed as an error, and 2 returned.
    """
    words = sys.argv[1:] if argv is None else list(argv)

    def run() -> int:
        match words:
            case []:
                with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(SystemExit):
                    main(["--help"])
                return 2
            case ["--version", *_]:
                print(f"wflow {__version__}")
                return 0
            case ["study", "list"]:
                print(studies.listing())
                return 0
            case ["study", *rest] if rest[:1] not in (["-h"], ["--help"]):
                return studies.run(*rest)  # whose script reads the flags
            case [name, *_] if not name.startswith("-") and name not in _NAMES:
                raise InputError(f"there is no command {name!r}{_meant(name)}")
        read = read_words(
            _Wflow,
            words,
            prog="wflow",
            description=__doc__,
            config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes),
        )
        return int(read.command())

    return guarded(run)


def _meant(name: str) -> str:
    """Return the end of the message about an unknown command."""
    from wflow._core.checks import did_you_mean  # loads NumPy

    if hint := did_you_mean(name, _NAMES):
        return hint
    if name.removesuffix(".py") in studies.names():
        return f"; did you mean wflow study {name.removesuffix('.py')}?"
    return f": expected one of {', '.join(_NAMES)}"


def script(main: Callable[[], int | None]) -> NoReturn:
    """Run the main function of a script and end the process with the exit status of `guarded`."""
    sys.exit(guarded(main))


def guarded(main: Callable[[], int | None]) -> int:
    """Run the main function of a script; errors become a message and an exit status.

    Parameters
    ----------
    main : returns the exit status, or None for 0

    Returns
    -------
    what `main` returns; 2 for a WflowError, a file that the system refuses or too little memory;
    128 + number for a signal (Interrupted, KeyboardInterrupt, a reader that closed the pipe). A
    fault of wflow itself keeps its traceback.
    """
    _print_whatever()
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            with signals_as_errors("ended the command; what it had written before is kept"):
                status = main()
                sys.stdout.flush()  # here, so that a closed pipe shows inside the guard
                return status or 0
        except (Interrupted, WflowError) as error:
            words, status = last_words(error)
            # Of several processes that get a signal number 0 says so.
            several = isinstance(error, Interrupted) and "TORCHELASTIC_RUN_ID" in os.environ
            if several and os.environ.get("RANK", "0") != "0":
                return status
            return _complain(words, status)
        except KeyboardInterrupt:
            return _complain("wflow: interrupted", 130)
        except BrokenPipeError:
            # What is still in the buffer would raise again when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except MemoryError:
            message = "needs more memory than there is; smaller --n, --heads or --paths, "
            return _complain(f"wflow: error: {message}larger --save.every", 2)
        except OSError as error:
            what = f"{_name(error.filename)}: " if error.filename else ""
            return _complain(f"wflow: error: {what}{error.strerror or error}", 2)


def _print_whatever() -> None:
    """Print characters that the encoding of the terminal lacks as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        writes_all = codecs.lookup(stream.encoding).name == "utf-8"
        if not (
            writes_all and stream.errors == "surrogateescape"
        ):  # which writes names as they are
            stream.reconfigure(errors="backslashreplace")


def _name(path: Path | str) -> str:
    return printable(str(path), lines=False)


def _complain(message: str, status: int) -> int:
    print(printable(message), file=sys.stderr)
    return status


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(printable(f"wflow: warning: {message}", lines=False), file=sys.stderr)
