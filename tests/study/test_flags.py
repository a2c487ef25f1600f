"""The options of `solve` as flags of a study."""

import sys
from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from wflow import Compute, InputError, SaveAt, study
from wflow.study.flags import flags_of


def read(monkeypatch, *words: str, kind=study.StudyFlags):
    monkeypatch.setattr(sys, "argv", ["study.py", *words])
    return study.command_line(kind, "A study.")


@pytest.mark.parametrize(
    ("words", "save", "compute"),
    [
        ("", SaveAt(every=5, heads=True), Compute()),
        ("--save.every 7", SaveAt(every=7, heads=True), Compute()),
        ("--record_every=7", SaveAt(every=7, heads=True), Compute()),
        ("--save.snapshots 0 2.5", SaveAt(every=5, heads=True, snapshots=(0.0, 2.5)), Compute()),
        ("--snapshots 0 2.5", SaveAt(every=5, heads=True, snapshots=(0.0, 2.5)), Compute()),
        ("--save.paths 0 3", SaveAt(every=5, heads=True, paths=(0, 3)), Compute()),
        ("--save.no-heads", SaveAt(every=5), Compute()),
        ("--no-save-heads", SaveAt(every=5), Compute()),
        (
            "--method fast --tolerance 1e-6 --backend numba --device cpu --dtype float32",
            SaveAt(every=5, heads=True),
            Compute(method="fast", tolerance=1e-6, device="cpu", dtype="float32"),
        ),
        (
            "--compute.method exact --compute.batch 3 --compute.checkpoint-every 2 --threads 1",
            SaveAt(every=5, heads=True),
            Compute(method="exact", batch=3, checkpoint_every=2.0, threads=1),
        ),
    ],
)
def test_flags_are_the_options_of_solve_under_their_names_and_the_short_ones(
    monkeypatch, words, save, compute
):
    flags = read(monkeypatch, *words.split())
    assert (flags.save, flags.compute) == (save, compute)


@dataclass(frozen=True, kw_only=True)
class Own(study.Flags):
    """Flags of a study that has a tolerance itself."""

    tolerance: float = 0.5
    """Of the study."""


def test_a_short_name_is_left_to_the_study_that_has_such_a_flag(monkeypatch):
    flags = read(monkeypatch, "--tolerance", "0.25", "--compute.tolerance", "1e-6", kind=Own)
    assert (flags.tolerance, flags.compute.tolerance) == (0.25, 1e-6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--record-every 0", "--save.every is 0"),
        ("--save.paths -1", "--save.paths are"),
        ("--compute.batch 0", "--compute.batch is 0"),
        ("--tolerance nan", "--compute.tolerance is nan"),
    ],
)
def test_options_that_cannot_be_used_are_refused_by_the_name_of_the_flag(monkeypatch, words, said):
    with pytest.raises(InputError, match=said):
        read(monkeypatch, *words.split())


def test_options_in_which_runs_differ_are_named_as_flags_where_the_study_has_them():
    differ = ["save.every", "save.heads", "save.paths", "compute.dtype", "seed"]
    known = "--save.every, --save.heads, --save.paths, --compute.dtype, --seed"
    assert flags_of(differ, study.StudyFlags()) == known
    others = "save.every, save.heads, save.paths, --compute.dtype, --seed"
    assert flags_of(differ, study.Flags()) == others


@dataclass(frozen=True, kw_only=True)
class Typed(study.Flags):
    """Flags that are checked by their types."""

    angle: study.Angle = 1.0
    paths: study.TwoOrMore = 2
    betas: study.Distinct[study.Positive] = (1.0, 2.0)
    heads: study.Compared[study.Count] = (1, 2)


@pytest.mark.parametrize(
    "words",
    ["--angle 0", "--angle 3.2", "--paths 1", "--betas 1 1", "--betas 0", "--heads 4",
     "--heads 1 0", "--heads 2 2"],
)  # fmt: skip
def test_a_value_that_the_type_of_a_flag_does_not_take_is_refused(monkeypatch, words):
    with pytest.raises(InputError, match=words.split()[0]):
        read(monkeypatch, *words.split(), kind=Typed)
    assert read(monkeypatch, "--betas", "3", "--heads", "4", "2", kind=Typed).heads == (4, 2)


@dataclass(frozen=True, kw_only=True)
class Sized(study.StudyFlags):
    """Flags with presets."""

    presets: ClassVar = {"small": {"n": 5, "heads": (1, 2)}, "large": {"exact": True}}
    durations: ClassVar = {"small": "seconds"}
    preset: Literal["small", "large"] = "large"
    exact: study.Switch = False
    """Of the study."""
    output: str = "text"
    """A flag with the name of a box."""


def test_help_says_what_presets_stand_for_and_shows_the_flags_of_the_study_first(
    monkeypatch, capsys
):
    with pytest.raises(SystemExit):
        read(monkeypatch, "--help", kind=Sized)
    said = capsys.readouterr().out
    assert "small: seconds\n        --n 5 --heads 1 2\n" in said
    assert "large\n        --heads 64 --exact\n" in said
    words = ("--preset {", "Of the study.", "run options", "--flow ", "output options",
             "--save.every", "machine options", "--workers", "--compute.batch")  # fmt: skip
    places = [said.index(word) for word in words]
    assert places == sorted(places)
    given = read(monkeypatch, "--output", "x", "--out", "y", kind=Sized)
    assert (given.output, str(given.out)) == ("x", "y")
