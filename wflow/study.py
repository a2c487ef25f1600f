"""What the study scripts share: flags, one run file per head count, summary, figures.

A study solves the same problem for several head counts and asks how the squared upper gradient
G^2, averaged over the second half of the time, depends on the number of heads. A script adds its
own flags to `StudyFlags`, makes its head law, and hands both to `run`.
"""

import json
import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from wflow import _study_summary as summary
from wflow._problem import pose
from wflow._workers import default_threads, pool
from wflow.errors import InputError

if TYPE_CHECKING:
    from wflow.heads import HeadLaw

SNAPSHOTS = (0, 1 / 20, 1 / 4, 1 / 2, 1)  # times of the token snapshots, in units of T

Flags = TypeVar("Flags", bound="StudyFlags")


@dataclass(frozen=True, kw_only=True)
class StudyFlags:
    """Flags of every study; `tyro` turns them into the command line."""

    heads: tuple[int, ...] = (64,)
    """Head counts H, one run each. Two or more are fitted by a power law in H."""
    tokens: str = "cross-polytope"
    """Initial tokens: cross-polytope, uniform, clusters, digits, or a FILE (rows of numbers)."""
    n: int = 200
    """Number of tokens; of digits or a FILE a random subset of that size."""
    d: int = 3
    """Dimension: tokens live on the sphere S^(d-1). A FILE with more columns is reduced by PCA."""
    tokens_seed: int = 42
    """Seed of the initial tokens."""
    paths: int = 16
    """Monte Carlo paths; all share the initial tokens and heads."""
    t_final: float = 20.0
    """End time T."""
    dt: float = 5e-3
    """Time step."""
    seed: int = 0
    """Seed of initial heads and noise: one seed gives the same run bit for bit."""
    flow: Literal["softmax", "unnormalised", "effective"] = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    direction: Literal["descent", "ascent"] = "descent"
    """Whether the tokens move down or up the energy."""
    scheme: Literal["euler", "heun", "rk4"] = "euler"
    """Time stepping; heun and rk4 need a law without noise."""
    record_every: int = 5
    """Record the energy and its ledger every so many steps."""
    snapshots: tuple[float, ...] = ()
    """Times at which tokens are stored; none given: 0, T/20, T/4, T/2, T."""
    save_heads: bool = True
    """Store the heads of path 0 with its tokens, so that `wflow verify` recomputes the energy."""
    dtype: Literal["float64", "float32"] = "float64"
    """Precision of tokens and heads; the ledger is always double."""
    fit_from: int = 1
    """Smallest head count that takes part in the fit a H^b."""
    out: Path = Path("results/study")
    """Folder for run files, summary and figures."""
    resume: bool = False
    """Go on with what an earlier call left in --out; finished runs are kept."""
    overwrite: bool = False
    """Replace what an earlier call left in --out."""
    workers: int = 0
    """Runs computed at the same time by worker processes of dask; 0: all in this process."""
    scheduler: str | None = None
    """Address of a dask scheduler that runs already, such as tcp://host:8786."""
    threads: int | None = None
    """Threads of each run; default: all cores, shared out between the workers."""

    def run_file(self, heads: int) -> Path:
        """Where the run of a head count goes."""
        return self.out / f"H{heads:05d}.h5"


def check_flags(flags: StudyFlags) -> None:
    """Refuse flags that make no study, before anything is computed or written.

    Raises
    ------
    InputError
        That names the flag, its value, and what was expected.
    """
    least: tuple[tuple[str, float], ...] = (
        ("n", 1),
        ("d", 2),
        ("paths", 1),
        ("record_every", 1),
        ("fit_from", 1),
        ("seed", 0),
        ("tokens_seed", 0),
        ("workers", 0),
    )
    for name, low in least:
        value = getattr(flags, name)
        if value < low:
            raise InputError(f"{_flag(name)} is {value}: expected at least {low:g}")
    if not flags.heads or min(flags.heads) < 1:
        raise InputError(f"--heads is {_list(flags.heads)}: expected head counts of at least 1")
    if len(set(flags.heads)) < len(flags.heads):
        raise InputError(f"--heads is {_list(flags.heads)}: name every head count once")
    for name in ("t_final", "dt"):
        value = getattr(flags, name)
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{_flag(name)} is {value}: expected a finite time greater than 0")
    outside = [t for t in flags.snapshots if not 0 <= t <= flags.t_final]
    if outside:
        raise InputError(
            f"--snapshots {_list(outside)}: expected times from 0 to --t-final {flags.t_final:g}"
        )
    if flags.threads is not None and flags.threads < 1:
        raise InputError(f"--threads is {flags.threads}: expected at least 1")
    if flags.resume and flags.overwrite:
        raise InputError("--resume keeps what --overwrite would delete: give one of the two")
    if flags.workers and flags.scheduler:
        raise InputError("--workers starts a cluster and --scheduler joins one: give one of them")


def run(name: str, flags: StudyFlags, law: "HeadLaw") -> int:
    """Solve for every head count, fit, and write run files, summary and figures into `flags.out`.

    Parameters
    ----------
    name : name of the study, for the summary
    flags : the flags of the command line
    law : head law of all runs

    Returns
    -------
    exit status 0

    Raises
    ------
    InputError
        For flags, tokens or files that cannot be used; nothing has been written then.
    """
    from wflow import tokens

    check_flags(flags)
    counts = sorted(flags.heads)
    files = {heads: flags.run_file(heads) for heads in counts}
    problem: dict[str, Any] = {
        "x0": tokens.make(flags.tokens, flags.n, flags.d, flags.tokens_seed),
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
        _check_output(files[task["heads"]], pose(**task).config(), flags)
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
    drawn = ", ".join(figure.stem for figure in figures if figure.suffix == ".png")
    print(
        f"\nIn {flags.out}: run files {', '.join(file.name for file in files.values())}; "
        f"{' and '.join(summary.FILES)}; figures (PNG and PDF) {drawn}"
    )
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


def _check_output(file: Path, config: dict[str, Any], flags: StudyFlags) -> None:
    """Before anything is computed: is this run file free, or that of the run asked for?"""
    from wflow import runfile

    if flags.overwrite or runfile.run_status(file) == "absent":
        return
    if not flags.resume:
        _refuse_existing(file.parent, [file.name, f"{file.name}.partial"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not complete is why it is resumed
        with runfile.open_run(file) as ds:
            held = json.loads(ds.attrs["config"])
    asked = json.loads(runfile.config_text(config))
    differ = sorted(k for k in held.keys() | asked.keys() if held.get(k) != asked.get(k))
    if differ:
        raise InputError(
            f"{file} holds a run that differs in {', '.join(differ)}: give the flags it was made "
            "with, --overwrite in the place of --resume, or another --out"
        )


def _keep_or_replace(file: Path, flags: StudyFlags) -> dict[str, Any]:
    """Arguments of `solve` that say what becomes of an earlier run file."""
    from wflow.runfile import checkpoint_of, run_status

    anew = flags.overwrite
    if flags.resume and run_status(file) == "partial" and not checkpoint_of(file).exists():
        # Ended before its first checkpoint: there is no state to go on from, and little to lose.
        anew = True
    return {"out": file, "overwrite": anew, "resume": flags.resume and not anew}


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


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _list(values: Any) -> str:
    return " ".join(f"{value:g}" for value in values)


def command_line(flags: type[Flags], description: str | None) -> Flags:
    """Read flags from the command line; `--help` explains each with its default."""
    import tyro

    return tyro.cli(flags, description=description, config=(tyro.conf.FlagCreatePairsOff,))
