"""Flags of the studies: their types, their checks, and the command line."""

import argparse
import ast
import inspect
import math
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from functools import partial
from itertools import chain, pairwise
from numbers import Integral, Real
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_type_hints,
)  # fmt: skip

import tyro

from wflow._core.checks import Direction, FlowName, SchemeName, number, positive, whole
from wflow._core.command_line import Folder, read_words, shown_as
from wflow._core.errors import InputError
from wflow._core.extras import missing
from wflow._core.invocation import program
from wflow._core.tableaux import TABLEAUX
from wflow.particles.options import Compute, SaveAt
from wflow.sphere.embeddings import SUFFIXES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_T = TypeVar("_T")
_MAX_SEED = 2**63
_LARGEST = 10**9  # limit of all counts
_PRESET_WIDTH = 86  # characters of a line of flags in the list of presets


Switch = tyro.conf.FlagCreatePairsOff[bool]
"""Type of a flag that is off unless it is given."""


class Checked(NamedTuple):
    """Annotation of a flag whose values are checked before anything is computed.

    Examples
    --------
    >>> from typing import Annotated
    >>> from wflow.study.flags import Checked
    >>> from wflow import InputError
    >>> def even(value, name):
    ...     if value % 2:
    ...         raise InputError(f"{name} is {value}: expected an even number")
    >>> Even = Annotated[int, Checked(even)]
    """

    check: Callable[[Any, str], Any]
    """Function of a value and the flag that raises InputError."""
    together: bool = False
    """Whether a flag of several values is checked as a whole, and not each value."""


def _share(value: Any, name: str) -> None:
    if not 0 < number(value, name) <= 1:
        raise InputError(f"{name} is {value}: expected a number in (0, 1]")


def _angle(value: Any, name: str) -> None:
    if not 0 < number(value, name) < math.pi:
        raise InputError(f"{name} is {value:g}: expected radians, between 0 and pi")


Count = Annotated[int, Checked(whole)]
"""Type of a flag that is a whole number >= 1."""
Natural = Annotated[int, Checked(partial(whole, least=0))]
"""Type of a flag that is a whole number >= 0."""
Dimension = Annotated[
    int, Checked(partial(whole, least=2, why="tokens live on the sphere S^(d-1)"))
]
"""Type of a flag that is the dimension of tokens on the sphere."""
Positive = Annotated[float, Checked(positive)]
"""Type of a flag that is a finite number > 0."""
Nonnegative = Annotated[float, Checked(partial(number, least=0.0))]
"""Type of a flag that is a finite number >= 0."""
Share = Annotated[float, Checked(_share)]
"""Type of a flag that is a number in (0, 1]."""
Angle = Annotated[float, Checked(_angle)]
"""Type of a flag that is an angle in radians, a number in (0, pi)."""
TwoOrMore = Annotated[int, Checked(partial(whole, least=2))]
"""Type of a flag that is a whole number >= 2, such as the paths of a mean with its error."""


def _checks(hint: Any) -> list[Checked]:
    """Return the checks in a type, such as those of `Count | None` and `tuple[Count, ...]`."""
    own = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Checked)]
    return own + [check for part in get_args(hint) for check in _checks(part)]


def _checks_of(flags: type) -> dict[str, list[Checked]]:
    """Return the checks of every field, those of the classes that the flags extend included."""
    found: dict[str, list[Checked]] = {}
    for cls in flags.__mro__:
        for name, hint in get_type_hints(cls, include_extras=True).items():
            known = found.setdefault(name, [])
            known += [check for check in _checks(hint) if check not in known]
    return found


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """Flags of anything that writes results; `tyro` turns them into the command line.

    Examples
    --------
    >>> from wflow import study
    >>> study.OutputFlags().resume
    False
    """

    needs: ClassVar[dict[str, str]] = {}
    """Packages without which the study does not start, and the extra that brings each."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Of a class with a flag --preset: preset -> defaults of other fields, instead of those of the
    class."""
    durations: ClassVar[dict[str, str]] = {}
    """Preset -> about how long it takes, for `--help` and `wflow study list`."""
    preset_variants: ClassVar[dict[tuple[str, str, Any], dict[str, Any]]] = {}
    """(preset, field, value) -> defaults that change where that field has that value."""
    question: ClassVar[str] = ""
    """First line of the description; `command_line` sets that of the flags which it returns."""

    out: Folder = Path("results/study")
    """Folder for run files, summary and figures."""
    resume: Annotated[
        Switch,
        tyro.conf.arg(
            help="Continue what an earlier call left in --out; finished runs are kept, summary "
            "and figures are made again."
        ),
    ] = False
    overwrite: Annotated[
        Switch, tyro.conf.arg(help="Replace the runs of this call in --out, and the summary.")
    ] = False
    verbose: Switch = False
    """Log on stderr what the runs do: start, checkpoints, end."""

    def check(self) -> None:
        """Refuse flags that define no study, before anything is computed or written.

        Raises
        ------
        InputError
            That names the flag, its value, and what was expected.
        """
        if self.resume and self.overwrite:
            raise InputError("--resume keeps what --overwrite would delete: give one of the two")
        checks = _checks_of(type(self))
        for field in fields(self):
            given, name, checked = getattr(self, field.name), flag(field.name), []
            for value in given if isinstance(given, tuple) else (given,):
                if isinstance(value, Real | Decimal) and not isinstance(value, Integral):
                    value = number(value, name)
                for each in checks.get(field.name, ()) if value is not None else ():
                    if not each.together:
                        each.check(value, name)
                checked.append(value)
                if isinstance(value, int) and value > _LARGEST and "seed" not in field.name:
                    raise InputError(f"{name} is {value}: expected a number up to {_LARGEST}")
            plain = tuple(checked) if isinstance(given, tuple) else checked[0]
            object.__setattr__(self, field.name, plain)  # the decimal 0.1 for np.float32(0.1)
            for each in checks.get(field.name, ()):
                if each.together and plain is not None:
                    each.check(plain, name)

    @classmethod
    def of(cls, preset: str, **given: Any) -> Self:
        """Return the flags of a preset, with some values replaced.

        The class itself makes flags with the defaults of its fields, whatever their preset.

        Parameters
        ----------
        preset : str
            Name in `presets`.
        **given : Any
            Values of other fields.

        Returns
        -------
        OutputFlags
            An object of the class.

        Raises
        ------
        InputError
            For a preset that the class does not have.

        Examples
        --------
        >>> from dataclasses import dataclass
        >>> from typing import ClassVar
        >>> from wflow import study
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Mine(study.Flags):
        ...     presets: ClassVar = {"small": {"paths": 2}, "large": {}}
        ...     preset: str = "large"
        >>> Mine.of("small", seed=1).paths
        2
        """
        if preset not in cls.presets:
            raise InputError(f"preset is {preset!r}: expected one of {', '.join(cls.presets)}")
        values = {"preset": preset, **cls.presets[preset]}
        for (name, field, value), changed in cls.preset_variants.items():
            if name == preset and {**values, **given}.get(field) == value:
                values |= changed
        return cls(**{**values, **given})


@dataclass(frozen=True, kw_only=True)
class Flags(OutputFlags):
    """Flags of every study of particles.

    Examples
    --------
    >>> from wflow import study
    >>> study.Flags(paths=4).paths
    4
    """

    paths: Count = 16
    """Monte Carlo paths; all share the initial tokens and heads."""
    t_final: Positive = 20.0
    """End time T."""
    dt: Positive = 5e-3
    """Time step."""
    seed: Natural = 0
    """Seed of initial heads and noise: one seed gives the same run bit for bit."""
    workers: Natural = 0
    """Worker processes of dask (extra dask) that share the paths; 0: all in this process, as runs
    of the mean-field equation always are."""
    scheduler: Annotated[str | None, shown_as("ADDRESS", "none")] = None
    """Address of a dask scheduler that runs already, such as tcp://host:8786 or tls://host:8786."""
    tls_ca_file: Annotated[str | None, shown_as("FILE", "that of Dask's configuration")] = None
    """Certificate by which a scheduler at tls:// is trusted."""
    tls_cert: Annotated[str | None, shown_as("FILE", "that of Dask's configuration")] = None
    """Certificate that is shown to it."""
    tls_key: Annotated[str | None, shown_as("FILE", "in the certificate's file")] = None
    """Key of that certificate."""
    compute: Compute = Compute()
    """How the runs are computed."""

    def check(self) -> None:
        super().check()
        if self.seed >= _MAX_SEED:
            raise InputError(f"--seed is {self.seed}: expected a whole number below 2^63")
        threads = self.compute.checked("--compute").threads
        if threads is not None and not self.scheduler:  # other machines' cores are unknown
            from wflow._core.threads import available  # loads Numba

            if threads > available():
                raise InputError(
                    f"--compute.threads is {threads}: expected a whole number >= 1 and at most "
                    f"{available()}"
                )
        if self.workers and self.scheduler:
            raise InputError(
                "--workers starts a cluster and --scheduler joins one: give one of them"
            )
        files = (self.tls_ca_file, self.tls_cert, self.tls_key)
        if files != (None, None, None) and None in (self.scheduler, *files[:2]):
            raise InputError(
                "--tls-ca-file, --tls-cert and --tls-key are for --scheduler tls://HOST:PORT: give "
                "all four, or --tls-key in the file of --tls-cert"
            )


@dataclass(frozen=True, kw_only=True)
class TokenFlags(Flags):
    """Flags of a study that starts from one cloud of tokens.

    Examples
    --------
    >>> from wflow import study
    >>> study.TokenFlags(tokens="uniform", n=5, d=3).cloud().shape
    (5, 3)
    """

    tokens: Annotated[
        str,
        tyro.conf.arg(  # no docstring: a line break in one would show
            help="Initial tokens: cross-polytope, uniform, clusters, digits (extra studies), or a "
            f"FILE with one row of numbers per token, of the kinds {', '.join(SUFFIXES)}; "
            "FILE::KEY names an array in it."
        ),
    ] = "cross-polytope"
    n: Annotated[Count | None, shown_as("INT", "200; of a FILE all rows")] = None
    """Number of tokens; of digits or a FILE a random subset of that size."""
    d: Annotated[Dimension | None, shown_as("INT", "3; of a FILE as many as it has columns")] = None
    """Dimension: tokens live on the sphere S^(d-1). Digits and a FILE are reduced by PCA."""
    tokens_seed: Natural = 42
    """Seed of the initial tokens."""

    def cloud(self) -> "NDArray[np.float64]":
        """Return the initial tokens that the flags ask for.

        Returns
        -------
        ndarray of float64, shape (n, d)
            Unit vectors.
        """
        return self.clouds(1)[0]

    def clouds(self, count: int) -> "NDArray[np.float64]":
        """Return several clouds of that kind, by seeds --tokens-seed, + 1, + 2, ...

        Parameters
        ----------
        count : int
            Number of clouds.

        Returns
        -------
        ndarray of float64, shape (count, n, d)
            Unit vectors.
        """
        import numpy

        from wflow.sphere import tokens

        # All 1797 digits would take eighty times the work of 200 tokens; --n must ask for them.
        n = tokens.DEFAULT_N if self.n is None and self.tokens == "digits" else self.n
        seeds = range(self.tokens_seed, self.tokens_seed + count)
        return numpy.stack([tokens.make(self.tokens, n, self.d, seed) for seed in seeds])


@dataclass(frozen=True, kw_only=True)
class StudyFlags(TokenFlags):
    """Flags of a study that compares head counts.

    Examples
    --------
    >>> from wflow import study
    >>> study.StudyFlags(heads=(1, 4, 16)).heads
    (1, 4, 16)
    """

    heads: tuple[Count, ...] = (64,)
    """Head counts H, one run each. Two or more are fitted by a power law in H."""
    sigma2: Nonnegative = 0.0
    """Variance sigma^2 of the noise of the heads per unit time."""
    flow: FlowName = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    direction: Direction = "descent"
    """Whether the tokens move down or up the energy."""
    scheme: SchemeName = "euler"
    """Time stepping; all but euler and sra1 need heads without noise, --sigma2 0."""
    save: SaveAt = SaveAt(every=5, heads=True)
    """What the runs keep, and when."""
    fit_from: Count = 1
    """Smallest head count that takes part in the fit a H^b."""
    resume: Annotated[
        Switch,
        tyro.conf.arg(
            help="Continue what an earlier call left in --out; finished runs are kept. Summary "
            "and figures are made again for the --heads of this call, comparison figures of other "
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
        if len(set(self.heads)) < len(self.heads):
            raise InputError(f"--heads is {listed(self.heads)}: name every head count once")
        if self.sigma2 and not TABLEAUX[self.scheme].admits_noise:
            raise InputError(
                f"--scheme {self.scheme} needs heads without noise, and --sigma2 is "
                f"{self.sigma2:g}: give --scheme euler, --scheme sra1 or --sigma2 0"
            )
        times = self.save.checked("--save").snapshots
        outside = [t for t in times or () if not 0 <= t <= self.t_final]
        if outside:
            raise InputError(
                f"--save.snapshots {listed(outside)}: expected times from 0 to --t-final "
                f"{self.t_final:g}"
            )


AnyFlags = TypeVar("AnyFlags", bound=OutputFlags)


def command_line(flags: type[AnyFlags], description: str | None) -> AnyFlags:
    """Read flags from the command line and check them; `--help` explains each with its default.

    Parameters
    ----------
    flags : type
        Subclass of `OutputFlags`.
    description : str or None
        What `--help` says before the flags, such as the docstring of the script.

    Returns
    -------
    OutputFlags
        An object of the class.

    Raises
    ------
    InputError
        Of `OutputFlags.check`.
    SystemExit
        For `--help` (0) and for arguments that cannot be read (2).

    Examples
    --------
    >>> import sys
    >>> from wflow import study
    >>> given, sys.argv = sys.argv, ["study", "--paths", "4"]
    >>> study.command_line(study.Flags, "A study.").paths
    4
    >>> sys.argv = given
    """
    text = inspect.cleandoc(description or "")
    if program():  # show the examples as they are typed here
        text = re.sub(r"\bpython studies/(?:\w+/)?(\w+)\.py", r"wflow study \1", text)
    description = "\n\n".join([text, *_presets_text(flags), *missing(flags.needs)])
    default = _preset(flags)
    given: AnyFlags = read_words(
        flags, sys.argv[1:], prog=program(), description=description, default=default,
        registry=_rules(default),
    )  # fmt: skip
    given.check()
    object.__setattr__(given, "question", text.partition("\n")[0].removesuffix("."))
    return given


def _preset(flags: type[AnyFlags]) -> AnyFlags:
    """Return the flags with the defaults that the preset and variant of the command line have."""
    if not flags.presets:
        return flags()
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in dict.fromkeys(["preset", *(field for _, field, _ in flags.preset_variants)]):
        parser.add_argument(flag(name), dest=name, nargs="?", const=True)
    given = vars(parser.parse_known_args(sys.argv[1:])[0])
    preset = given["preset"] or _default(flags, "preset")
    if preset not in flags.presets:
        return flags()  # tyro refuses the unknown preset
    asked = {field: value for _, field, value in flags.preset_variants if given[field] == value}
    before = {field: getattr(flags.of(preset), field) for field in asked}  # tyro sets it again
    return replace(flags.of(preset, **asked), **before)


def _presets_text(flags: type[OutputFlags]) -> list[str]:
    """Return the paragraph of `--help` about the presets: durations, and what they stand for."""
    if not flags.presets:
        return []
    names = dict.fromkeys(chain.from_iterable(flags.presets.values()))
    switches = {
        n for n, hint in get_type_hints(flags, include_extras=True).items() if hint == Switch
    }
    lines = ["Presets, and the flags that each of them stands for:", ""]
    for preset in flags.presets:
        lines.append(f"    {': '.join([preset, *filter(None, [flags.durations.get(preset)])])}")
        given = flags.of(preset)
        row = ""
        for name in names:
            value = getattr(given, name)
            if value is None or (value is False and name in switches):
                continue  # as without the flag
            words = _typed(name, value)
            text = shlex.join(words)  # on one line where that is possible
            for part in [text] if len(text) <= _PRESET_WIDTH else map(shlex.quote, words):
                if row and len(row) + len(part) >= _PRESET_WIDTH:
                    lines.append(f"        {row}")
                    row = ""
                row += f"{' ' if row else ''}{part}"
        lines.append(f"        {row}")
    return ["\n".join(lines)]


def _typed(name: str, value: Any) -> list[str]:
    """Return a flag and its values as they are typed."""
    if isinstance(value, bool):
        return [flag(name if value else f"no_{name}")]
    values = value if isinstance(value, tuple) else (value,)
    return [flag(name), *(f"{each:g}" if isinstance(each, float) else str(each) for each in values)]


def _default(flags: type[OutputFlags], name: str) -> Any:
    return next(field.default for field in fields(flags) if field.name == name)


# Flags of the dataclasses `SaveAt` and `Compute`, such as --save.every, also have the shorter names
# that they had before they were grouped; a study may define a flag of such a name itself.
_SHORT = {
    "save": {"every": "record_every", "snapshots": "snapshots", "heads": "save_heads"},
    "compute": {
        name: name for name in ("method", "tolerance", "backend", "device", "dtype", "threads")
    },
}
_TYPES: dict[str, Any] = {"snapshots": tuple[float, ...], "paths": tuple[int, ...]}
_DEFAULTS = {
    "snapshots": ("[FLOAT ...]", "by the size of the run"),
    "device": ("DEVICE", "cuda for the torch backend"),
    "threads": ("INT", "all cores, shared between the workers"),
    "batch": ("INT", "by memory"),
}
_BOX = "box_of_"  # before a title: a study may have a flag of that name
# Boxes of --help after that of the study, in this order: title -> fields. Of "run" are all others.
_BOXES = {
    "run": (),
    "output": ("out", "resume", "overwrite", "verbose", "save"),
    "machine": ("device", "precision", "compile", "workers", "scheduler", "tls_ca_file",
                "tls_cert", "tls_key", "compute"),
}  # fmt: skip


def _rules(default: OutputFlags) -> tyro.constructors.ConstructorRegistry:
    """Return the rules by which `tyro` reads flags: boxes of `--help`, options of `solve`.

    The study's flags come first, in the order in which it declares them; what every study has
    follows in the boxes "run", "output" and "machine". Of `SaveAt` and `Compute` every field but
    the budget is a flag.
    """
    flags = type(default)
    registry = tyro.constructors.ConstructorRegistry()
    hints = get_type_hints(flags, include_extras=True)
    names = [field.name for field in fields(flags)]
    box_of = {name: box for box, members in _BOXES.items() for name in members}
    own = [
        name
        for cls in reversed(flags.__mro__)
        if not cls.__module__.startswith("wflow.study.")
        for name in inspect.get_annotations(cls)
    ]
    own = [name for name in dict.fromkeys(["preset", *own]) if name in names and name not in box_of]
    boxes = {type(title, (), {}): title for title in _BOXES}

    def specs(name: str, shown: Any) -> list[tyro.constructors.StructFieldSpec]:
        value = getattr(default, name)
        if isinstance(value, SaveAt | Compute):
            return list(_specs_of(name, value, names, shown))
        hint: Any = Annotated[hints[name], shown]
        text = partial(_text_of, flags, name)
        return [tyro.constructors.StructFieldSpec(name, hint, value, helptext=text)]

    @registry.struct_rule
    def rule(info: tyro.constructors.StructTypeInfo) -> Any:
        if info.type in boxes:
            inside = _BOXES[boxes[info.type]] or [
                n for n in names if n not in own and n not in box_of
            ]
            shown = tyro.conf.arg(prefix_name=False)
            made = [each for n in inside if n in names for each in specs(n, shown)]
            return tyro.constructors.StructConstructorSpec(dict, tuple(made))
        if info.type is not flags:
            return None
        found = [each for name in own for each in specs(name, tyro.conf.arg())]
        for kind, title in boxes.items():
            box: Any = Annotated[kind, tyro.conf.arg(name=title)]
            found.append(tyro.constructors.StructFieldSpec(_BOX + title, box, kind(), helptext=""))

        def instance(**given: Any) -> Any:
            values = {key: value for key, value in given.items() if not key.startswith(_BOX)}
            for title in _BOXES:
                values |= given[_BOX + title]
            for name in [name for name in ("save", "compute") if hasattr(default, name)]:
                part = {key: values.pop(key) for key in [*values] if key.startswith(f"{name}.")}
                part = {key.partition(".")[2]: value for key, value in part.items()}
                if name == "save":
                    part["snapshots"] = part["snapshots"] or None
                values[name] = replace(getattr(default, name), **part)
            return flags(**values)

        return tyro.constructors.StructConstructorSpec(instance, tuple(found))

    return registry


def _specs_of(
    group: str, default: Any, taken: Sequence[str], shown: Any
) -> Iterator[tyro.constructors.StructFieldSpec]:
    """Yield the flags of `SaveAt` or `Compute`, such as --save.every."""
    kind = type(default)
    types, texts = get_type_hints(kind) | _TYPES, _field_texts(kind)
    for name in [field.name for field in fields(kind) if field.name != "budget"]:
        short = _SHORT[group].get(name)
        metavar, hint = _DEFAULTS.get(name, (None, None))
        described = tyro.conf.arg(
            help=texts[name],
            aliases=None if short is None or short in taken else [flag(short)],
            metavar=metavar,
            help_behavior_hint=None if hint is None else f"(default: {hint})",
        )
        annotated: Any = Annotated[types[name], described, shown]
        value = getattr(default, name)
        if value is None and name in _TYPES:
            value = ()
        yield tyro.constructors.StructFieldSpec(f"{group}.{name}", annotated, value)


def _text_of(flags: type, name: str) -> str:
    """Return the text below a field, in the class that declares it last with one."""
    for cls in flags.__mro__:
        if name in inspect.get_annotations(cls):
            try:
                (found,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
            except OSError:  # a class that was typed in an interpreter
                continue
            for line, after in pairwise(found.body if isinstance(found, ast.ClassDef) else []):
                if ast.unparse(getattr(line, "target", line)) == name and isinstance(
                    after, ast.Expr
                ):
                    return " ".join(ast.literal_eval(after.value).split())
    return ""


def _field_texts(kind: type) -> dict[str, str]:
    """Return the descriptions of the fields in the docstring of a dataclass, for `--help`."""
    given = inspect.getdoc(kind) or ""
    lines = re.findall(r"^(\w+) : .*\n((?:    .*\n?)+)", given, re.MULTILINE)
    # The default shows what None means.
    return {name: re.sub(r" None\b.*", "", " ".join(text.split())) for name, text in lines}


def flag(name: str) -> str:
    """Return the name of a field on the command line."""
    return "--" + name.replace("_", "-")


def listed(values: Any) -> str:
    """Return numbers as the command line takes them."""
    return " ".join(map(_number_text, values))


def _number_text(value: float | str) -> str:
    return str(value) if isinstance(value, int | str) else f"{value:g}"


def distinct(values: Sequence[float | str], name: str, least: int = 1) -> None:
    """Refuse values that are not distinct (numbers to six digits) or too few.

    Parameters
    ----------
    values : sequence of float or str
        Values of a flag; names of run files are made of them.
    name : str
        The flag, such as "--taus".
    least : int, default 1
        How many are needed.

    Raises
    ------
    InputError
        That names the flag and its values.

    Examples
    --------
    >>> from wflow import study
    >>> study.distinct([0.1, 0.2], "--taus")
    """
    if len(values) < least or len(set(map(_number_text, values))) < len(values):
        raise InputError(
            f"{name} is {listed(values) or 'empty'}: expected {least} or more values, each once"
            + (" to six digits" if any(isinstance(value, float) for value in values) else "")
        )


Distinct = Annotated[tuple[_T, ...], Checked(distinct, together=True)]
"""Type of a flag of several values, each of which is given once: `Distinct[Count]`."""
Compared = Annotated[tuple[_T, ...], Checked(partial(distinct, least=2), together=True)]
"""Type of a flag of two or more values, each of which is given once: `Compared[Positive]`."""


def _of_tokens(flags: Flags) -> str:
    """Name the flags that define the initial tokens; a study may have others than these."""
    if isinstance(flags, TokenFlags):
        return "--tokens, --n, --d or --tokens-seed"
    names = [name for name in ("n", "d", "paths", "reference") if hasattr(flags, name)]
    seed = "tokens_seed" if hasattr(flags, "tokens_seed") else "seed"
    return f"the initial tokens ({', '.join(map(flag, [*names, seed]))})"


def flags_of(differ: list[str], flags: Flags) -> str:
    """Name the flags behind the keys in which the configurations of two runs differ."""
    roots = [key.split(".")[0].split(" ")[0] for key in differ]
    names = []
    for key, root in zip(differ, roots, strict=True):
        field = key.rpartition(".")[2]
        if root == "x0":
            names.append(_of_tokens(flags))
        elif root in ("save", "compute"):
            names.append(flag(key) if hasattr(flags, root) else key)
        elif key == "law.name":
            own = hasattr(flags, "law")
            names.append("--law" if own else "the law of the heads (that of another study)")
        elif root == "law" and "law.name" in differ:
            continue  # parameters of two laws cannot be compared
        elif key in ("law.mean", "law.d"):
            names += [] if "x0" in roots else ["--d"]
        elif hasattr(flags, field):
            names.append(flag(field))
        else:
            names.append(key)
    return ", ".join(dict.fromkeys(names))
