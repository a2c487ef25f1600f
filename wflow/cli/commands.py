"""The command `wflow`: inspect, plot, verify and report runs, and run studies."""

import codecs
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from wflow._core.command_line import Folder, Page, RunFile, RunOrFolder, shown_as
from wflow._core.errors import InputError, Interrupted, WflowError
from wflow._core.hints import did_you_mean
from wflow._core.signals import signals_as_errors
from wflow._version import __version__
from wflow.cli import studies

if TYPE_CHECKING:
    from xarray import Dataset

_WIDEST = 160  # characters of a parameter that `info` prints


@dataclass(frozen=True)
class Info:
    """Describe a run file: the run, its provenance and its main numbers."""

    file: tyro.conf.Positional[RunFile]
    """Run file, or the .partial of an unfinished run."""

    def __call__(self) -> int:
        from wflow.io.runfile import open_run

        with open_run(self.file) as ds:
            lines = describe(ds)
        width = max(len(name) for name, _ in lines)
        print(self.file)
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
        from wflow.io.runfile import open_run
        from wflow.plots.runs import plot_run

        with open_run(self.file) as ds:
            written = plot_run(ds, self.file.parent if self.out is None else self.out)
        for path in written:
            print(path)
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
class Report:
    """Write one page of HTML about a run or a study, which opens without network."""

    source: tyro.conf.Positional[RunOrFolder]
    """Run file, or the folder of a study."""
    out: Annotated[Page | None, shown_as("FILE.html", "beside the run file, or in the folder")] = (
        None
    )
    """The page to write."""

    def __call__(self) -> int:
        print(import_module("wflow.study.report").write(self.source, self.out))
        return 0


@dataclass(frozen=True)
class Study:
    """Run a study: `wflow study NAME [flags]`; `wflow study list` says what there is."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME [flags]")]
    """A study, and its flags, which `wflow study NAME --help` explains; or the word `list`."""


Command = (
    Annotated[Info, tyro.conf.subcommand("info")]
    | Annotated[Plot, tyro.conf.subcommand("plot")]
    | Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Study, tyro.conf.subcommand("study")]
)
_NAMES = ("info", "plot", "verify", "report", "study")


@dataclass(frozen=True)
class _Wflow:
    """What `tyro` reads of a command line."""

    command: Command
    version: Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(help_behavior_hint="")] = (
        False
    )
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
        For `--help` (0) and for arguments that cannot be read (2).
    """
    words = sys.argv[1:] if argv is None else list(argv)

    def run() -> int:
        match words:
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
        read = tyro.cli(
            _Wflow,
            prog="wflow",
            description=__doc__,
            args=words,
            config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes),
        )
        return read.command()

    return guarded(run)


def _meant(name: str) -> str:
    """The end of the message about a command that there is not."""
    if hint := did_you_mean(name, _NAMES):
        return hint
    if name.removesuffix(".py") in studies.names():
        return f"; did you mean wflow study {name.removesuffix('.py')}?"
    return f": expected one of {', '.join(_NAMES)}"


def guarded(main: Callable[[], int]) -> int:
    """Run the main function of a script; errors become a message and an exit status.

    Parameters
    ----------
    main : returns the exit status

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
                return status
        except Interrupted as stop:
            return _complain(f"wflow: {stop}", 128 + stop.signum)
        except WflowError as error:
            return _complain(f"wflow: error: {error}", 2)
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
            what = f"{error.filename}: " if error.filename else ""
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


def _complain(message: str, status: int) -> int:
    print(message, file=sys.stderr)
    return status


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"wflow: warning: {message}", file=sys.stderr)


def describe(ds: "Dataset") -> list[tuple[str, str]]:
    """Give what `wflow info` prints: pairs of a name and a text.

    Parameters
    ----------
    ds : a run, of `wflow.open` or `wflow.solve`

    Returns
    -------
    list of (name, text)
    """
    import json

    from wflow.io.schema import head_count

    config = json.loads(ds.attrs["config"])
    sizes = ds.sizes
    times = ds["time"].values
    lines = [("status", "complete" if ds.attrs["complete"] else "NOT COMPLETE")]
    lines += [("title", str(ds.attrs["title"]))] if "title" in ds.attrs else []
    lines += [
        ("law", _law(config)),
        ("heads", str(head_count(config, sizes) or "?")),
        ("tokens", f"n = {sizes.get('token', '?')}, d = {sizes.get('axis', '?')}"),
        ("paths", str(sizes["path"])),
        ("dynamics", _dynamics(config)),
        ("time", f"to {config.get('t_final', '?')} in steps of {config.get('dt', '?')}"),
        ("precision", str(config.get("compute", {}).get("dtype", "?"))),
        ("sums", _sums(config.get("compute", {}))),
        ("recorded", f"{times.size} times" + (f" up to {times[-1]:g}" if times.size else "")),
    ]
    if "snapshot" in ds.coords:
        shots = ds["snapshot"].values
        stored = [name for name in ("tokens", "tokens_mean", "heads") if name in ds]
        lines.append(("snapshots", f"{_times(shots)} of {', '.join(stored)}"))
    names = ("seed", "command", "created", "wflow_version", "numpy_version", "numba_version")
    lines += [(name, _short(ds.attrs[name])) for name in names if name in ds.attrs]
    return lines + _numbers(ds)


def _numbers(ds: "Dataset") -> list[tuple[str, str]]:
    """Means over the paths, with their standard error."""
    times = ds["time"].values
    if not times.size:
        return []
    late = ds["time"] >= (times[0] + times[-1]) / 2
    lines = []
    if "energy" in ds:
        lines += [
            ("E(0)", _mean(ds["energy"][:, 0].values)),
            ("E(T)", _mean(ds["energy"][:, -1].values)),
        ]
        lines += [
            (f"{name}(T)", _mean(ds[name][:, -1].values))
            for name in ("edi_residual", "edi_residual_upper_gradient")
            if name in ds
        ]
    for name in ("upper_gradient_sq", "speed_sq"):
        if name in ds:
            means = ds[name].isel(time=late.values).mean("time", skipna=True).values
            lines.append((name, f"{_mean(means)}, mean over the second half"))
    if "sum_error" in ds and ds["sum_error"].notnull().any():
        lines.append(("sum_error", f"{float(ds['sum_error'].max()):.3g} at most"))
    return lines


def _sums(compute: dict[str, Any]) -> str:
    """Method of the sums over pairs; a file names none for exact sums by Numba."""
    text = str(compute.get("method", "exact"))
    if "tolerance" in compute:
        text += f", tolerance {compute['tolerance']}"
    if "backend" in compute:
        text += f", by {compute['backend']} on {compute.get('device', '?')}"
    return text


def _mean(values: Any) -> str:
    import numpy as np

    from wflow.analysis.fits import mean_and_error

    known = values[~np.isnan(values)]
    if not known.size:
        return "not recorded"
    if not np.isfinite(known).all():
        return f"{known.mean():.6g}"
    mean, error = mean_and_error(known)
    return f"{mean:.6g}" if known.size == 1 else f"{mean:.6g} ± {error:.2g}"


def _law(config: dict[str, Any]) -> str:
    from wflow.io.schema import law_name

    name = law_name(config)
    if not name:
        return "?"
    rest = ", ".join(f"{key} = {value}" for key, value in config["law"].items() if key != "name")
    return _short(f"{name}({rest})")


def _short(text: Any) -> str:
    text = str(text)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 4]} ..."


def _scheme(config: dict[str, Any]) -> str:
    """The time stepping: tolerances where they choose the steps, order of a custom tableau."""
    scheme = config.get("scheme", "?")
    if not isinstance(scheme, dict):
        return str(scheme)
    keys = ("order",) if "nodes" in scheme else scheme.keys() - {"name"}
    settings = [f"{key} = {value}" for key, value in scheme.items() if key in keys]
    return f"{scheme.get('name', '?')} ({', '.join(settings)})"


def _dynamics(config: dict[str, Any]) -> str:
    """Flow, direction, scheme, mask and diffusion of the tokens."""
    from wflow.io.schema import flow_name

    words = [flow_name(config), str(config.get("direction", "?")), _scheme(config)]
    words += ["causal mask"] if config.get("causal") else []
    words += [f"tokens diffuse by kappa = {config['kappa']:g}"] if config.get("kappa") else []
    return ", ".join(words)


def _times(values: Any) -> str:
    texts = [f"{value:g}" for value in values]
    if len(texts) > 8:
        texts = [*texts[:4], "...", *texts[-2:]]
    return "t = " + ", ".join(texts) if texts else "none yet"
