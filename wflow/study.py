"""What the study scripts share: flags, one run file per head count, summary, figures.

A study solves the same problem for several head counts and asks how the squared upper gradient
G^2, averaged over the second half of the time, depends on the number of heads. A script adds its
own flags to `StudyFlags`, makes its head law, and hands both to `run`.
"""

import json
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wflow import _study_summary as summary
from wflow._problem import pose
from wflow._runread import checkpoint_of, differences, partial_of
from wflow._study_flags import Folder, StudyFlags, command_line, flags_of
from wflow._workers import default_threads, pool
from wflow.errors import InputError, WflowError

if TYPE_CHECKING:
    from wflow.heads import HeadLaw

__all__ = ["SNAPSHOTS", "Folder", "StudyFlags", "command_line", "run"]

SNAPSHOTS = (0, 1 / 20, 1 / 4, 1 / 2, 1)  # times of the token snapshots, in units of T

# What a study writes besides its summary. Nothing else in a folder is ever touched.
_RUN_FILE = re.compile(r"H\d{5,}\.h5(\.partial)?")
_COMPARISON = re.compile(r"(gradient_over_time|gradient_against_heads)\.(png|pdf)")
_OF_ONE_RUN = re.compile(
    r"(H\d{5,})_(tokens_mean|tokens_path\d+|gradient_over_time|energy_balance)\.(png|pdf)"
)


def run(name: str, flags: StudyFlags, law_of: "Callable[[int], HeadLaw]") -> int:
    """Solve for every head count, fit, and write run files, summary and figures into `flags.out`.

    Parameters
    ----------
    name : name of the study, for the summary
    flags : the flags, checked (as `command_line` does)
    law_of : head law of all runs, made for the dimension d of the tokens

    Returns
    -------
    exit status 0

    Raises
    ------
    InputError
        For flags, tokens or files that cannot be used; nothing has been written then.
    """
    with _log_on_stderr(flags.verbose):
        return _run(name, flags, law_of)


def _run(name: str, flags: StudyFlags, law_of: "Callable[[int], HeadLaw]") -> int:
    from wflow import tokens

    # All 1797 digits would be eighty times the work of 200 tokens: that is for --n to ask.
    n = tokens.DEFAULT_N if flags.n is None and flags.tokens == "digits" else flags.n
    x0 = tokens.make(flags.tokens, n, flags.d, flags.tokens_seed)
    flags = replace(flags, n=x0.shape[0], d=x0.shape[1])  # the summary says what they were
    law = law_of(x0.shape[1])
    counts = sorted(flags.heads)
    files = {heads: flags.run_file(heads) for heads in counts}
    problem: dict[str, Any] = {
        "x0": x0,
        "law": law,
        "t_final": flags.t_final,
        "dt": flags.dt,
        "paths": flags.paths,
        "seed": flags.seed,
        "flow": flags.flow,
        "direction": flags.direction,
        "scheme": flags.scheme,
        "record_every": flags.record_every,
        "dtype": flags.dtype,
        "save_heads": flags.save_heads,
        "ledger": True,
        "causal": False,
        "snapshot_paths": (0,),
        "snapshots": flags.snapshots or tuple(flags.t_final * s for s in SNAPSHOTS),
    }
    tasks = [problem | {"heads": heads} for heads in counts]
    for task in tasks:
        asked = pose(**task).config()
        _check_output(files[task["heads"]], asked, flags)
    if not (flags.resume or flags.overwrite):
        _refuse_existing(flags.out, summary.FILES)
    where = {"threads": flags.threads or default_threads(flags.workers)}
    tasks = [task | where | _keep_or_replace(files[task["heads"]], flags) for task in tasks]
    with pool(flags.workers, flags.scheduler) as compute, _folder(flags.out):
        compute(tasks)

    table = summary.summarise(files)
    fit = summary.fit_scaling(table, flags.fit_from)
    print(summary.report(table, fit, flags.fit_from))
    summary.write(flags.out, name, flags, law.config(), table, fit, files)
    figures = _figures(flags, files, table, fit)
    _remove_stale(flags, files, figures)
    drawn = ", ".join(figure.stem for figure in figures if figure.suffix == ".png")
    print(
        f"\nIn {flags.out}: run files {', '.join(file.name for file in files.values())}; "
        f"{' and '.join(summary.FILES)}; figures (PNG and PDF) {drawn}"
    )
    others = _other_runs(flags, files, asked)
    if others:
        print(f"\nAlso in {flags.out}, and not in this summary:")
        print("\n".join(f"  {other}" for other in others))
    return 0


def _figures(flags: StudyFlags, files: dict[int, Path], table: Any, fit: Any) -> list[Path]:
    """Comparison of the head counts, and all figures of the run with the most heads."""
    from wflow import plots, runfile

    written: list[Path] = []
    with ExitStack() as stack:
        runs = {h: stack.enter_context(runfile.open_run(file)) for h, file in files.items()}
        if len(runs) > 1:
            figure = plots.gradient_over_time(runs)
            written += plots.save(figure, flags.out, "gradient_over_time")
            average = table["upper_gradient_sq"].values
            figure = plots.gradient_against_heads(list(runs), average, fit, flags.fit_from)
            written += plots.save(figure, flags.out, "gradient_against_heads")
        written += plots.plot_run(runs[max(runs)], flags.out)
    return written


def _check_output(file: Path, asked: dict[str, Any], flags: StudyFlags) -> None:
    """Before anything is computed: is this run file free, or that of the run asked for?"""
    from wflow import runfile

    if flags.overwrite or runfile.run_status(file) == "absent":
        return
    if not flags.resume:
        _refuse_existing(file.parent, [file.name, f"{file.name}.partial"])
    differ = _differences(file, asked)
    if differ:
        raise InputError(
            f"{file} holds a run that differs in {flags_of(differ, flags)}: give the flags it was "
            "made with, --overwrite in the place of --resume, or another --out"
        )
    if runfile.run_status(file) == "partial" and not _never_started(file):
        runfile.load_state(file)  # a state that is missing shows now, not after other runs


def _differences(file: Path, asked: dict[str, Any]) -> list[str]:
    """Keys in which the configuration of a run file differs from the one asked for."""
    from wflow.runfile import config_text

    with _open(file) as ds:
        return differences(json.loads(ds.attrs["config"]), json.loads(config_text(asked)))


@contextmanager
def _open(file: Path) -> Iterator[Any]:
    """The run of that name, unfinished or not."""
    from wflow import runfile

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not complete is why it is resumed
        partial = runfile.run_status(file) == "partial"
        with runfile.open_run(partial_of(file) if partial else file) as ds:
            yield ds


def _never_started(file: Path) -> bool:
    """Whether an unfinished run died before it recorded anything: nothing is lost with it."""
    if checkpoint_of(file).exists() or not partial_of(file).exists():
        return False
    with _open(file) as ds:
        return not any(ds.sizes.get(dim, 0) for dim in ("time", "snapshot"))


def _keep_or_replace(file: Path, flags: StudyFlags) -> dict[str, Any]:
    """Arguments of `solve` that say what becomes of an earlier run file."""
    anew = flags.overwrite or (flags.resume and _never_started(file))
    return {"out": file, "overwrite": anew, "resume": flags.resume and not anew}


def _remove_stale(flags: StudyFlags, files: dict[int, Path], drawn: Iterable[Path]) -> None:
    """Remove figures of an earlier call that show other runs than those in the folder now."""
    if not (flags.resume or flags.overwrite):
        return
    kept = set(drawn)
    replaced = {file.stem for file in files.values()} if flags.overwrite else set[str]()
    for file in set(flags.out.iterdir()) - kept:
        one = _OF_ONE_RUN.fullmatch(file.name)
        if (_COMPARISON.fullmatch(file.name) or (one and one[1] in replaced)) and file.is_file():
            file.unlink()


def _other_runs(flags: StudyFlags, files: dict[int, Path], asked: dict[str, Any]) -> list[str]:
    """Run files in the folder that this call has not made: each with what sets it apart."""
    lines = []
    for file in sorted(flags.out.iterdir()):
        run = file.with_name(file.name.removesuffix(".partial"))
        if not _RUN_FILE.fullmatch(file.name) or run in files.values():
            continue
        try:
            differ = [key for key in _differences(run, asked) if key.split(".")[0] != "heads"]
        except WflowError:
            lines.append(f"{file.name}, which cannot be read")
            continue
        if differ:
            lines.append(f"{file.name}, which differs in {flags_of(differ, flags)}")
        else:
            count = int(run.stem[1:])
            lines.append(
                f"{file.name}, of the same settings: add {count} to --heads, with --resume, to "
                "take it in"
            )
    return lines


def _refuse_existing(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        if (folder / name).exists():
            raise InputError(
                f"{folder / name} exists: add --resume to go on with it, --overwrite to replace "
                "it, or choose another --out"
            )


@contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """Make the folder; if what follows fails before it writes anything, take it away again."""
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make --out {folder}: {error.strerror}; choose a folder that can be written"
        ) from None
    try:
        yield
    except BaseException:
        for path in made:  # innermost first
            if any(path.iterdir()):
                break
            path.rmdir()
        raise


@contextmanager
def _log_on_stderr(verbose: bool) -> Iterator[None]:
    """Show what wflow logs, for the time of a study."""
    if not verbose:
        yield
        return
    from rich.console import Console
    from rich.logging import RichHandler

    logger = logging.getLogger("wflow")
    handler, level = RichHandler(console=Console(stderr=True), show_path=False), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
