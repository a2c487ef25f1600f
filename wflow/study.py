"""What the study scripts share: flags, runs, summary, findings, figures.

`session` serves a study of any kind. `run` is a whole study by itself: it solves the same problem
for several head counts and asks how the squared upper gradient G^2, averaged over the second half
of the time, depends on the number of heads; a script adds its own flags to `StudyFlags`, makes its
head law, and hands both over.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wflow import _study_summary as summary
from wflow._study_files import config_differences, configuration
from wflow._study_flags import (
    Flags,
    Folder,
    OutputFlags,
    StudyFlags,
    Switch,
    TokenFlags,
    command_line,
    flags_of,
)
from wflow._study_session import Finding, Session, markdown_table, session
from wflow.errors import WflowError

if TYPE_CHECKING:
    from wflow.heads import HeadLaw

__all__ = [
    "SNAPSHOTS",
    "Finding",
    "Flags",
    "Folder",
    "OutputFlags",
    "Session",
    "StudyFlags",
    "Switch",
    "TokenFlags",
    "command_line",
    "markdown_table",
    "run",
    "session",
]

SNAPSHOTS = (0, 1 / 20, 1 / 4, 1 / 2, 1)  # times of the token snapshots, in units of T

# What a study writes besides its summary. Nothing else in a folder is ever touched.
_RUN_FILE = re.compile(r"H\d{5,}\.h5(\.partial|\.parts)?")
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
    x0 = flags.cloud()
    flags = replace(flags, n=x0.shape[0], d=x0.shape[1])  # the summary says what they were
    law = law_of(x0.shape[1])
    counts = sorted(flags.heads)
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
        "method": flags.method,
        "tolerance": flags.tolerance,
        "backend": flags.backend,
        "device": flags.device,
        "save_heads": flags.save_heads,
        "ledger": True,
        "snapshots": flags.snapshots or tuple(flags.t_final * s for s in SNAPSHOTS),
    }
    with session(name, flags) as opened:
        tasks = {f"H{heads:05d}": problem | {"heads": heads} for heads in counts}
        files = dict(zip(counts, opened.solve(tasks).values(), strict=True))

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
    others = _other_runs(flags, files, configuration(problem | {"heads": counts[-1]}))
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
        run = file.with_name(file.name.removesuffix(".partial").removesuffix(".parts"))
        if not _RUN_FILE.fullmatch(file.name) or run in files.values():
            continue
        try:
            differ = [key for key in config_differences(run, asked) if key.split(".")[0] != "heads"]
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
