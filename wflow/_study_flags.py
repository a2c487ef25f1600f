"""Flags of the studies: what they mean, how they are checked, how a command line gives them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro

from wflow._checks import number, positive, whole
from wflow._embeddings import SUFFIXES
from wflow._workers import available_threads
from wflow.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MAX_SEED = 2**63


def _folder(words: list[str]) -> Path:
    if not words[0]:  # Path would make the current folder of it
        raise ValueError("it is empty: expected the name of a folder, such as results/study")
    return Path(words[0])


Folder = Annotated[
    Path,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="DIR",
        instance_from_str=_folder,
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda folder: [str(folder)],
    ),
]
"""Type of a flag that names a folder; an empty name is refused."""

Switch = tyro.conf.FlagCreatePairsOff[bool]
"""Type of a flag that is off unless it is given."""


def _shown(metavar: str, default: str) -> Any:
    """How `--help` shows a flag whose default depends on other flags."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """Flags of anything that writes results; `tyro` turns them into the command line."""

    out: Folder = Path("results/study")
    """Folder for run files, summary and figures."""
    resume: Annotated[
        Switch,
        tyro.conf.arg(
            help="Go on with what an earlier call left in --out; finished runs are kept, summary "
            "and figures are made anew."
        ),
    ] = False
    overwrite: Annotated[
        Switch, tyro.conf.arg(help="Replace the runs of this call in --out, and the summary.")
    ] = False
    verbose: Switch = False
    """Log on stderr what the runs do: start, checkpoints, end."""

    def check(self) -> None:
        """Refuse flags that make no study, before anything is computed or written.

        Raises
        ------
        InputError
            That names the flag, its value, and what was expected.
        """
        if self.resume and self.overwrite:
            raise InputError("--resume keeps what --overwrite would delete: give one of the two")


@dataclass(frozen=True, kw_only=True)
class Flags(OutputFlags):
    """Flags of every study of particles."""

    paths: int = 16
    """Monte Carlo paths; all share the initial tokens and heads."""
    t_final: float = 20.0
    """End time T."""
    dt: float = 5e-3
    """Time step."""
    seed: int = 0
    """Seed of initial heads and noise: one seed gives the same run bit for bit."""
    workers: int = 0
    """Worker processes of dask that share the paths of all runs; 0: all in this process."""
    scheduler: Annotated[str | None, _shown("ADDRESS", "none")] = None
    """Address of a dask scheduler that runs already, such as tcp://host:8786."""
    threads: Annotated[int | None, _shown("INT", "all cores, shared between the workers")] = None
    """Threads of each run, or of each worker."""

    def check(self) -> None:
        super().check()
        whole(self.paths, "--paths")
        for name in ("seed", "workers"):
            whole(getattr(self, name), flag(name), 0)
        if self.seed >= _MAX_SEED:
            raise InputError(f"--seed is {self.seed}: expected a whole number below 2^63")
        for name in ("t_final", "dt"):
            positive(getattr(self, name), flag(name))
        if self.threads is not None:
            most = math.inf if self.scheduler else available_threads()  # others' cores: unknown
            if not 1 <= self.threads <= most:
                upper = "" if math.isinf(most) else f" and at most {most}"
                raise InputError(
                    f"--threads is {self.threads}: expected a whole number >= 1{upper}"
                )
        if self.workers and self.scheduler:
            raise InputError(
                "--workers starts a cluster and --scheduler joins one: give one of them"
            )


@dataclass(frozen=True, kw_only=True)
class TokenFlags(Flags):
    """Flags of a study that starts from one cloud of tokens."""

    tokens: Annotated[
        str,
        tyro.conf.arg(  # no docstring: a line break in one would show
            help="Initial tokens: cross-polytope, uniform, clusters, digits, or a FILE with one "
            f"row of numbers per token, of the kinds {', '.join(SUFFIXES)}; FILE::KEY names an "
            "array in it."
        ),
    ] = "cross-polytope"
    n: Annotated[int | None, _shown("INT", "200; of a FILE all rows")] = None
    """Number of tokens; of digits or a FILE a random subset of that size."""
    d: Annotated[int | None, _shown("INT", "3; of a FILE as many as it has columns")] = None
    """Dimension: tokens live on the sphere S^(d-1). Digits and a FILE are reduced by PCA."""
    tokens_seed: int = 42
    """Seed of the initial tokens."""

    def check(self) -> None:
        super().check()
        whole(self.tokens_seed, "--tokens-seed", 0)
        if self.n is not None:
            whole(self.n, "--n")
        if self.d is not None:
            whole(self.d, "--d", 2, why="tokens live on the sphere S^(d-1)")

    def cloud(self) -> "NDArray[np.float64]":
        """The initial tokens (n, d) that the flags ask for."""
        return self.clouds(1)[0]

    def clouds(self, count: int) -> "NDArray[np.float64]":
        """Initial tokens (count, n, d) of that kind, by seeds --tokens-seed, + 1, + 2, ..."""
        import numpy

        from wflow import tokens

        # All 1797 digits would be eighty times the work of 200 tokens: that is for --n to ask.
        n = tokens.DEFAULT_N if self.n is None and self.tokens == "digits" else self.n
        seeds = range(self.tokens_seed, self.tokens_seed + count)
        return numpy.stack([tokens.make(self.tokens, n, self.d, seed) for seed in seeds])


@dataclass(frozen=True, kw_only=True)
class StudyFlags(TokenFlags):
    """Flags of a study that compares head counts."""

    heads: tuple[int, ...] = (64,)
    """Head counts H, one run each. Two or more are fitted by a power law in H."""
    sigma2: float = 0.0
    """Variance sigma^2 of the noise of the heads per unit time."""
    flow: Literal["softmax", "unnormalised", "effective"] = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    direction: Literal["descent", "ascent"] = "descent"
    """Whether the tokens move down or up the energy."""
    scheme: Literal["euler", "heun", "rk4"] = "euler"
    """Time stepping; heun and rk4 need heads without noise, --sigma2 0."""
    record_every: int = 5
    """Record the energy and its ledger every so many steps."""
    snapshots: Annotated[tuple[float, ...], _shown("[FLOAT ...]", "0 T/20 T/4 T/2 T")] = ()
    """Times at which tokens are stored."""
    save_heads: bool = True
    """Whether the heads of path 0 are stored; `wflow verify` recomputes the energy from them."""
    dtype: Literal["float64", "float32"] = "float64"
    """Precision of tokens and heads; the ledger is always double."""
    method: Literal["auto", "exact", "fast"] = "auto"
    """Exact sums over all pairs, fast ones by series (--d 2 or 3), or what takes less time."""
    tolerance: float = 1e-10
    """Relative error that fast sums keep below."""
    backend: Literal["numba", "torch"] = "numba"
    """Numba on the processor, or torch: exact sums on a GPU."""
    device: Annotated[str | None, _shown("DEVICE", "cuda for --backend torch")] = None
    """Device of the torch backend: cuda, cuda:1, ... or cpu."""
    fit_from: int = 1
    """Smallest head count that takes part in the fit a H^b."""
    resume: Annotated[
        Switch,
        tyro.conf.arg(
            help="Go on with what an earlier call left in --out; finished runs are kept. Summary "
            "and figures are made anew for the --heads of this call, comparison figures of other "
            "head counts are removed; their run files stay and are named."
        ),
    ] = False
    overwrite: Annotated[
        Switch,
        tyro.conf.arg(
            help="Replace the runs of --heads in --out, and the summary; figures of what is "
            "replaced are removed. Run files of other head counts stay and are named."
        ),
    ] = False

    def check(self) -> None:
        super().check()
        if not self.heads:
            raise InputError("--heads has no value: expected head counts, such as --heads 1 4 16")
        for heads in self.heads:
            whole(heads, "--heads")
        if len(set(self.heads)) < len(self.heads):
            raise InputError(f"--heads is {listed(self.heads)}: name every head count once")
        for name in ("record_every", "fit_from"):
            whole(getattr(self, name), flag(name))
        number(self.sigma2, "--sigma2", least=0.0)
        if self.scheme != "euler" and self.sigma2:
            raise InputError(
                f"--scheme {self.scheme} needs heads without noise, and --sigma2 is "
                f"{self.sigma2:g}: give --scheme euler or --sigma2 0"
            )
        outside = [t for t in self.snapshots if not 0 <= t <= self.t_final]
        if outside:
            raise InputError(
                f"--snapshots {listed(outside)}: expected times from 0 to --t-final "
                f"{self.t_final:g}"
            )


AnyFlags = TypeVar("AnyFlags", bound=OutputFlags)


def command_line(flags: type[AnyFlags], description: str | None) -> AnyFlags:
    """Read flags from the command line and check them; `--help` explains each with its default.

    Raises
    ------
    InputError
        Of `OutputFlags.check`.
    SystemExit
        For `--help` (0) and for arguments that cannot be read (2).
    """
    given = tyro.cli(flags, description=description)
    given.check()
    return given


def flag(name: str) -> str:
    """Name of a field on the command line."""
    return "--" + name.replace("_", "-")


def listed(values: Any) -> str:
    """Numbers as the command line takes them."""
    return " ".join(f"{value:g}" for value in values)


def _of_tokens(flags: Flags) -> str:
    """The flags that decide on the initial tokens; a study of its own says none of them."""
    if isinstance(flags, TokenFlags):
        return "--tokens, --n, --d or --tokens-seed"
    held = [name for name in ("n", "d", "paths", "reference") if hasattr(flags, name)]
    seed = "tokens_seed" if hasattr(flags, "tokens_seed") else "seed"
    return f"the initial tokens ({', '.join(map(flag, [*held, seed]))})"


def flags_of(differ: list[str], flags: Flags) -> str:
    """Name the flags behind the keys in which the configurations of two runs differ."""
    roots = [key.split(".")[0].split(" ")[0] for key in differ]
    names = []
    for key, root in zip(differ, roots, strict=True):
        field = key.rpartition(".")[2]
        if root == "x0":
            names.append(_of_tokens(flags))
        elif key == "law.name":
            own = hasattr(flags, "law")
            names.append("--law" if own else "the law of the heads (that of another study)")
        elif root == "law" and "law.name" in differ:
            continue  # parameters of two laws do not compare
        elif key in ("law.mean", "law.d"):
            names += [] if "x0" in roots else ["--d"]
        elif key == "law.exact":
            names.append("--ou")
        elif hasattr(flags, field):
            names.append(flag(field))
        else:
            names.append(key)
    return ", ".join(dict.fromkeys(names))
