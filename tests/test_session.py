"""The frame of a study: run files, summary, findings, figures in one folder."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

import wflow
from wflow import study
from wflow.errors import InputError
from wflow.heads import Frozen

TABLE = xr.Dataset({"rate": ("size", [1.0, 2.0], {"long_name": "rate"})}, {"size": [1, 2]})
FINDING = study.Finding("it falls", "[MHT] eq. 1", "slope -1", "held")


def flags(out: Path, **changes) -> study.Flags:
    return study.Flags(out=out, threads=1, **changes)


def runs(*scales: float, dt: float = 0.1) -> dict:
    x0 = wflow.tokens.uniform(6, 3, seed=1)
    return {
        f"scale_{scale:g}": {
            "x0": x0,
            "law": Frozen(),
            "heads": scale * np.eye(3)[None],
            "t_final": 0.2,
            "dt": dt,
        }
        for scale in scales
    }


def finish(session: study.Session, *stems: str) -> None:
    session.finish(TABLE, "a table", [FINDING], {stem: Figure() for stem in stems})


def test_a_session_leaves_run_files_summary_and_figures(tmp_path, capsys) -> None:
    out = tmp_path / "new" / "folder"
    with study.session("trial", flags(out)) as session:
        files = session.solve(runs(1.0, 2.0))
        finish(session, "curve")
    assert {file.name for file in out.iterdir()} == {
        "scale_1.h5",
        "scale_2.h5",
        "summary.h5",
        "summary.json",
        "summary.md",
        "curve.png",
        "curve.pdf",
    }
    document = json.loads((out / "summary.json").read_text())
    assert document["runs"] == {"scale_1": "scale_1.h5", "scale_2": "scale_2.h5"}
    assert document["findings"][0]["verdict"] == "held"
    assert document["config"]["flags"]["threads"] == 1
    with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
        assert table["rate"].values.tolist() == [1.0, 2.0]
        assert table.attrs["study"] == "trial"
    for text in (capsys.readouterr().out, (out / "summary.md").read_text()):
        assert "a table" in text and "**held**: it falls ([MHT] eq. 1)" in text
    with wflow.open(files["scale_2"]) as run:
        direct = wflow.solve(**runs(2.0)["scale_2"])
        assert np.array_equal(run["energy"].values, direct["energy"].values)


def test_an_earlier_summary_is_kept_unless_asked(tmp_path) -> None:
    with study.session("trial", flags(tmp_path)) as session:
        finish(session)
    with (
        pytest.raises(InputError, match=r"summary.h5 exists: add --resume"),
        study.session("trial", flags(tmp_path)),
    ):
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
    with (
        pytest.raises(InputError, match="differs in --dt"),
        study.session("trial", flags(tmp_path, resume=True)) as session,
    ):
        session.solve(runs(0.5, 1.0, dt=0.05))
    assert not (tmp_path / "scale_0.5.h5").exists()


def test_bad_arguments_of_a_run_leave_no_folder_behind(tmp_path) -> None:
    task = runs(1.0)["scale_1"] | {"flow": "uphill"}
    with (
        pytest.raises(InputError, match="flow is 'uphill'"),
        study.session("trial", flags(tmp_path / "new")) as session,
    ):
        session.solve({"bad": task})
    assert not (tmp_path / "new").exists()


def test_many_runs_share_one_progress_bar_and_all_finish(tmp_path) -> None:
    scales = np.linspace(0.1, 1.0, 10)
    with study.session("trial", flags(tmp_path)) as session:
        files = session.solve(runs(*scales))
    assert len(files) == 10 and all(file.exists() for file in files.values())


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
    with pytest.raises(InputError, match="different lengths"):
        study.markdown_table({"H": ["1"], "G^2": []})
