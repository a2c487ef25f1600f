"""The frame of a study: run files, summary, findings, figures in one folder."""

import json
import math
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import h5py
import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

import wflow
from wflow import Compute, InputError, Interrupted, fits, study
from wflow.heads import Frozen

SUMMARY = {"summary.h5", "summary.json", "summary.md", "report.html"}
TABLE = xr.Dataset({"rate": ("size", [1.0, 2.0], {"long_name": "rate"})}, {"size": [1, 2]})
FINDING = study.Finding("it falls", "[MHT] eq. 1", "slope -1", "confirmed")


def flags(out: Path, **changes) -> study.Flags:
    return study.Flags(out=out, compute=Compute(threads=1), **changes)


def runs(*scales: float, dt: float = 0.1) -> dict:
    shared = {"x0": wflow.tokens.uniform(6, 3, seed=1), "law": Frozen(), "t_final": 0.2, "dt": dt}
    return {f"scale_{scale:g}": shared | {"heads": scale * np.eye(3)[None]} for scale in scales}


def finish(session: study.Session, *stems: str) -> None:
    session.finish(TABLE, "a table", [FINDING], {stem: Figure() for stem in stems})


def write(out: Path, *stems: str, name: str = "trial", **changes) -> set[str]:
    """Run a study without runs; the files in its folder."""
    with study.session(name, flags(out, **changes)) as session:
        finish(session, *stems)
    return {file.name for file in out.iterdir()}


def test_a_study_extends_its_finished_runs(tmp_path) -> None:
    with study.session("trial", flags(tmp_path)) as session:
        session.solve(runs(1.0))
    longer = {name: task | {"t_final": 0.4} for name, task in runs(1.0).items()}
    with study.session("trial", flags(tmp_path, resume=True)) as session:
        file = session.solve(longer)["scale_1"]
    with wflow.open(file) as run:
        assert np.array_equal(run["energy"], wflow.solve(**longer["scale_1"])["energy"])


def test_a_session_leaves_run_files_summary_and_figures(tmp_path, capsys) -> None:
    out = tmp_path / "new" / "folder"
    with study.session("trial", flags(out)) as session:
        files = session.solve(runs(1.0, 2.0))
        finish(session, "curve")
    written = {"scale_1.h5", "scale_2.h5", *SUMMARY, "curve.png", "curve.pdf"}
    assert {file.name for file in out.iterdir()} == written
    document = json.loads((out / "summary.json").read_text())
    assert document["runs"] == {"scale_1": "scale_1.h5", "scale_2": "scale_2.h5"}
    assert document["findings"][0]["verdict"] == "confirmed"
    assert document["config"]["flags"]["compute"]["threads"] == 1
    with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
        assert table["rate"].values.tolist() == [1.0, 2.0]
        assert table.attrs["study"] == "trial"
    for text in (capsys.readouterr().out, (out / "summary.md").read_text()):
        assert "a table" in text and "**confirmed**: it falls ([MHT] eq. 1)" in text
    with wflow.open(files["scale_2"]) as run:
        direct = wflow.solve(**runs(2.0)["scale_2"])
        assert np.array_equal(run["energy"].values, direct["energy"].values)


def test_the_label_of_a_figure_is_its_caption_in_the_report(tmp_path) -> None:
    figures = {stem: Figure() for stem in ("first_curve", "second_curve")}
    figures["first_curve"].set_label("G² < 1 over time")
    with study.session("trial", flags(tmp_path)) as session:
        session.finish(TABLE, "a table", [FINDING], figures)
    page = (tmp_path / "report.html").read_text()
    for caption in ("G² &lt; 1 over time", "second curve"):
        assert f"<figcaption>{caption}</figcaption>" in page


def test_an_earlier_summary_is_kept_unless_asked(tmp_path) -> None:
    write(tmp_path)
    with pytest.raises(InputError, match="--resume"), study.session("trial", flags(tmp_path)):
        pass


def test_resume_keeps_finished_runs_and_drops_stale_figures(tmp_path) -> None:
    with study.session("trial", flags(tmp_path)) as session:
        file = session.solve(runs(1.0))["scale_1"]
        finish(session, "old", "both")
    made = file.stat().st_mtime_ns
    with study.session("trial", flags(tmp_path, resume=True)) as session:
        session.solve(runs(1.0, 3.0))
        finish(session, "both")
    assert file.stat().st_mtime_ns == made
    assert (tmp_path / "scale_3.h5").exists() and (tmp_path / "both.png").exists()
    assert not (tmp_path / "old.png").exists() and not (tmp_path / "old.pdf").exists()


def test_resume_refuses_runs_of_other_flags_before_it_computes(tmp_path) -> None:
    with study.session("trial", flags(tmp_path)) as session:
        session.solve(runs(1.0))
    shorter = {name: task | {"t_final": 0.1} for name, task in runs(0.5, 1.0).items()}
    for said, tasks in {"--dt": runs(0.5, 1.0, dt=0.05), "--t-final": shorter}.items():
        with (
            pytest.raises(InputError, match=f"differs in {said}"),
            study.session("trial", flags(tmp_path, resume=True)) as session,
        ):
            session.solve(tasks)
    assert not (tmp_path / "scale_0.5.h5").exists()


def test_bad_arguments_of_a_run_leave_no_folder_behind(tmp_path) -> None:
    with (
        pytest.raises(InputError, match="flow is 'uphill'"),
        study.session("trial", flags(tmp_path / "new")) as session,
    ):
        session.solve({"bad": runs(1.0)["scale_1"] | {"flow": "uphill"}})
    assert not (tmp_path / "new").exists()


def test_token_flags_make_the_cloud_they_name() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Own(study.TokenFlags):
        tokens: str = "uniform"
        n: int | None = 7
        d: int | None = 4

    assert Own(tokens_seed=3).cloud() == pytest.approx(wflow.tokens.uniform(7, 4, seed=3))
    with pytest.raises(InputError, match="--d is 1"):
        Own(d=1).check()
    with pytest.raises(InputError, match="--paths is 0"):
        Own(paths=0).check()


def test_markdown_tables_align_and_refuse_ragged_columns() -> None:
    lines = study.markdown_table({"H": ["1", "16"], "G^2": ["0.5", "0.01"]}).splitlines()
    assert lines[0] == "| H  | G^2  |" and lines[3] == "| 16 | 0.01 |"
    rows = [{"H": "1", "G^2": "0.5"}, {"H": "16", "G^2": "0.01"}]
    assert study.markdown_table(rows).splitlines() == lines
    for ragged in ({"H": ["1"], "G^2": []}, [*rows, {"H": "3", "W1": "0"}]):
        with pytest.raises(InputError, match="different"):
            study.markdown_table(ragged)


def test_two_studies_do_not_share_a_folder(tmp_path) -> None:
    out = tmp_path / "new"
    with study.session("first", flags(out)) as first:
        with (
            pytest.raises(InputError, match="another study"),
            study.session("second", flags(out)) as second,
        ):
            finish(second)
        assert out.is_dir()
        finish(first, "curve")
    assert json.loads((out / "summary.json").read_text())["study"] == "first"
    write(out, name="second", overwrite=True)
    assert json.loads((out / "summary.json").read_text())["study"] == "second"


@pytest.mark.parametrize("name", ["summary.h5", "summary.json", "summary.md", "curve.png"])
def test_overwrite_replaces_no_foreign_file(tmp_path, name) -> None:
    out, target = tmp_path / "out", tmp_path / "target"
    out.mkdir()
    target.write_text("mine")
    if name == "summary.h5":
        with h5py.File(out / name, "w") as hdf5:
            hdf5["mine"] = [1.0]
    else:
        (out / name).symlink_to(target)
    before = (out / name).lstat()
    for how in ({"overwrite": True}, {"resume": True}):
        with pytest.raises(InputError, match="not written by wflow"):
            write(out, "curve", **how)
    after = (out / name).lstat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert target.read_text() == "mine"
    summary = SUMMARY if name == "curve.png" else set()
    assert {file.name for file in out.iterdir()} == {name} | summary


def test_a_foreign_figure_costs_nothing_but_itself(tmp_path, capsys) -> None:
    mine = tmp_path / "curve.png"
    mine.write_text("mine")
    names = {*SUMMARY, "other.png", "other.pdf", "curve.png"}
    for how in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(InputError, match=r"curve\.png"):
            write(tmp_path, "curve", "other", **how)
        assert "a table" in capsys.readouterr().out
        assert {file.name for file in tmp_path.iterdir()} == names
    assert mine.read_text() == "mine"
    mine.unlink()
    assert write(tmp_path, "curve", "other", resume=True) == names | {"curve.pdf"}


def test_stale_figures_go_only_if_wflow_wrote_them(tmp_path) -> None:
    write(tmp_path, "old", "linked")
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "linked.png").unlink()
    (tmp_path / "linked.png").symlink_to(tmp_path / "mine.txt")
    names = write(tmp_path, "new", overwrite=True)
    assert names == {*SUMMARY, "mine.txt", "linked.png", "new.png", "new.pdf"}
    assert (tmp_path / "mine.txt").read_text() == "mine"


class Killed(BaseException):
    pass


def test_a_summary_is_never_partly_old_after_a_kill(tmp_path, monkeypatch) -> None:
    write(tmp_path, "curve", name="old")
    acts = {"replace": os.replace, "unlink": Path.unlink}
    for last in range(7):
        done = 0

        def act(name: str, *arguments: Any, last: int = last, **options: Any) -> None:
            nonlocal done
            if done == last:
                raise Killed
            done += 1
            acts[name](*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", partial(act, "replace"))
            patch.setattr(Path, "unlink", lambda *a, **k: act("unlink", *a, **k))
            with suppress(Killed):
                write(tmp_path, "curve", name=f"new{last}", overwrite=True)
        if (tmp_path / "summary.json").exists():
            document = json.loads((tmp_path / "summary.json").read_text())
            with xr.open_dataset(tmp_path / "summary.h5", engine="h5netcdf") as table:
                assert table.attrs["study"] == document["study"]
            assert (tmp_path / "summary.md").read_text().startswith(f"# {document['study']}\n")
    names = write(tmp_path, "curve", name="last", resume=True)
    assert names == {*SUMMARY, "curve.png", "curve.pdf"}


def test_drafts_of_a_killed_study_are_removed_by_the_next(tmp_path) -> None:
    (tmp_path / ".wflow-0123456789abcdef.new").write_text("half")
    (tmp_path / ".wflow-mine.new").write_text("mine")
    assert write(tmp_path) == {*SUMMARY, ".wflow-mine.new"}


@pytest.mark.parametrize("wrong", [{"scheduler": "\t\n"}, {"workers": 10**6}])
def test_workers_that_cannot_be_had_are_refused_first(tmp_path, wrong) -> None:
    (name,) = wrong
    with pytest.raises(InputError, match=name):
        write(tmp_path / "new", **wrong)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("begun", [True, False])
def test_a_signal_says_what_stays_and_leaves_no_empty_folder(tmp_path, begun) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(Interrupted, match="--resume" if begun else "SIGTERM") as caught,
        study.session("trial", flags(tmp_path / "new")) as session,
    ):
        if begun:
            session.solve(runs(1.0))
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.signum == signal.SIGTERM and signal.getsignal(signal.SIGTERM) is before
    left = [file.name for file in tmp_path.rglob("*")]
    assert left == (["new", "scale_1.h5"] if begun else [])


def law(slope: float, paths: int = 40, noise: float = 0.05) -> fits.PowerLaw:
    """Return a power law fitted to noisy samples of x^slope."""
    x = np.array([1.0, 2.0, 4.0, 8.0])
    rng = np.random.default_rng(3)
    y = x[:, None] ** slope * np.exp(noise * rng.standard_normal((4, paths)))
    return fits.power_law(x, y)


def test_a_slope_is_judged_by_its_tolerance_and_then_by_its_interval() -> None:
    near, far, rough = law(1.0), law(2.0), law(1.6, paths=4, noise=1.0)
    assert abs(rough.exponent - 1) > 0.1 and rough.exponent_ci[0] < 1.1
    for fit, verdict in ((near, "confirmed"), (far, "not confirmed"), (rough, "inconclusive")):
        found = study.Finding.slope("it grows", "here", fit, 1.0, 0.1)
        assert found.verdict == verdict
        low, high = fit.exponent_ci
        assert found.found == f"slope {fit.exponent:.3f} (95 % {low:.3f} to {high:.3f})"


def test_slopes_of_several_cases_are_judged_together() -> None:
    def verdict(*slopes: float, expected: Any = 1.0) -> str:
        laws = {str(k): law(slope) for k, slope in enumerate(slopes)}
        return study.Finding.slope("it grows", "here", laws, expected, 0.1).verdict

    assert verdict(1.0, 1.0) == "confirmed"
    assert verdict(1.0, 2.0) == "confirmed in part"
    assert verdict(3.0, 2.0) == "not confirmed"
    assert verdict(1.0, 2.0, expected={"0": 1.0, "1": 2.0}) == "confirmed"
    found = study.Finding.slope(
        "it falls", "here", {"at T": law(-1.0, noise=1e-3)}, -0.5, 0.1, root=True
    )
    assert found.verdict == "confirmed" and found.found.startswith(
        "at T slope -0.500 (95 % -0.500 to"
    )


@pytest.mark.parametrize(
    ("holds", "known", "verdict"),
    [
        (True, True, "confirmed"),
        (np.False_, True, "not confirmed"),
        ([True, True], True, "confirmed"),
        ([True, False], True, "confirmed in part"),
        ([[False], [False]], True, "not confirmed"),
        ([], True, "inconclusive"),
        ([True, True], [True, False], "confirmed in part"),
        ([True, False], [False, True], "inconclusive"),
        (True, False, "inconclusive"),
    ],
)
def test_a_finding_says_whether_all_or_some_known_cases_agree(holds, known, verdict) -> None:
    found = study.Finding.decided("it holds", "here", "numbers", holds, known=known)
    assert found.verdict == verdict


def test_claims_of_a_paper_say_where_they_were_tried_below_its_size() -> None:
    finding = study.Finding("it learns", "[OTT] Table 7", "0.9", "not confirmed")
    assert finding.at_this_size().verdict == "not confirmed at this size"
    for same in (replace(finding, source="this study"), replace(finding, verdict="inconclusive")):
        assert same.at_this_size() == same


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.05, 0.09, "confirmed"),
        (0.05, 0.4, "inconclusive"),
        (0.2, 0.4, "not confirmed"),
        (-0.4, -0.2, "not confirmed"),
        (math.nan, math.nan, "inconclusive"),
        ([0.0, 0.0], [0.01, math.nan], "confirmed in part"),
    ],
)
def test_an_interval_wider_than_the_limit_confirms_nothing(low, high, verdict) -> None:
    assert study.Finding.within("it is 0", "here", "numbers", low, high, 0.1).verdict == verdict


def test_the_whole_interval_of_a_slope_can_be_asked_for() -> None:
    def verdict(fit: fits.PowerLaw | None, tolerance: float) -> str:
        found = study.Finding.slope("it grows", "here", {"a": fit}, 1.0, tolerance, whole=True)
        return found.verdict

    noisy, single = law(1.0, noise=0.5), fits.power_law([1, 2, 4], [[1.0], [2.0], [4.0]])
    width = max(abs(bound - 1) for bound in noisy.exponent_ci)
    assert verdict(noisy, 1.01 * width) == "confirmed"
    assert verdict(noisy, 0.99 * width) == "inconclusive"
    assert verdict(law(1.5, noise=1e-3), 0.1) == "not confirmed"
    assert verdict(single, 0.1) == "inconclusive", "one path has no interval"
    assert verdict(None, 0.1) == "inconclusive"
    assert study.slope_text(None) == "not resolved"


@dataclass(frozen=True, kw_only=True)
class Sized(study.OutputFlags):
    presets: ClassVar = {"smoke": {"sizes": (1,), "arcs": 8}, "cpu": {}}
    preset: Literal["smoke", "cpu"] = "cpu"
    sizes: tuple[int, ...] = (1, 2, 3)
    arcs: int = 64


@pytest.mark.parametrize(
    ("words", "sizes", "arcs"),
    [
        ("", (1, 2, 3), 64),
        ("--preset smoke", (1,), 8),
        ("--arcs 16 --preset=smoke", (1,), 16),
        ("--preset cpu --sizes 5 6", (5, 6), 64),
    ],
)
def test_a_preset_is_the_default_of_other_flags(words, sizes, arcs, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["study", *words.split()])
    found = study.command_line(Sized, None)
    assert (found.sizes, found.arcs) == (sizes, arcs)


def test_a_mean_is_shown_with_its_standard_error() -> None:
    assert study.mean_text([1.0, 2.0, 3.0]) == "2.0 ± 0.6"
