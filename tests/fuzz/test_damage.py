"""Run files that are damaged, foreign or hostile: detected, refused, and never replaced."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from run_layouts import same_bits, spoiled

import wflow
from wflow.analysis.verify import verify
from wflow.cli import main
from wflow.distributed.parts import Run, compute
from wflow.heads import Frozen, OrnsteinUhlenbeck
from wflow.particles.integrate import ParticleRun
from wflow.particles.problem import problem_of, problem_of_task
from wflow.runs import driver
from wflow.runs.read import checkpoint_of, former_of, partial_of
from wflow.runs.schema import dataset_attrs

Cases = Callable[[int, int], int]
OPTIONS = {
    "law": OrnsteinUhlenbeck(np.eye(3)), "heads": 2, "t_final": 0.12, "dt": 0.01, "paths": 3,
    "seed": 5, "save": wflow.SaveAt(snapshots=[0.0, 0.05, 0.12], paths=[0, 2], heads=True),
    "compute": wflow.Compute(batch=2, checkpoint_every=0.0),
}  # fmt: skip


X0 = wflow.tokens.cross_polytope(n=5, d=3, spread=0.05, seed=2)


def solve(out: Path | None, **changes: Any) -> Any:
    return wflow.solve(X0, **OPTIONS | changes, out=out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run.h5"
    solve(out).close()
    return out


def detected(path: Path) -> bool:
    try:
        return not verify(path).passed
    except wflow.RunFileError:
        return True


def flip(path: Path, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ (1 << bit % 8)]))


def test_every_flipped_bit_of_a_finished_file_is_detected_or_changes_nothing(
    whole: Path, tmp_path: Path, cases: Cases
) -> None:
    """Bytes of HDF5 that hold neither values nor attributes are not covered by a digest."""
    assert verify(whole).passed
    with wflow.open(whole) as ds:
        expected = ds.load()
    values = []
    with h5py.File(whole) as file:
        for name in [*file, *(f"state/{name}" for name in file["state"])]:
            if hasattr(file[name], "dtype") and (place := file[name].id.get_offset()) is not None:
                values.append((place, file[name].nbytes))
    around = [(0, whole.stat().st_size), (0, 2048), (0, min(place for place, _ in values))]
    spans, rng, missed = [*values, *around], random.Random(1), []
    for k in range(cases(30, 400)):  # as many in every part of the file, however small
        offset, size = spans[k % len(spans)]
        bit = 8 * (offset + rng.randrange(size)) + rng.randrange(8)
        copy = Path(shutil.copy(whole, tmp_path / "run.h5"))
        flip(copy, bit)
        if not detected(copy):
            with wflow.open(copy) as ds:
                same = ds.load().identical(expected)
            held = any(place <= bit // 8 < place + size for place, size in values)
            missed += [] if same and not held else [bit]
    assert not missed


def begun(out: Path) -> tuple[Any, ParticleRun]:
    """Return the writer of a new run."""
    problem = problem_of(X0, **OPTIONS)
    attrs = dataset_attrs(problem.config(), problem.seed)
    return driver.create(out, ParticleRun(problem), attrs, overwrite=False), ParticleRun(problem)


def unfinished(out: Path) -> None:
    """The run, stopped in the middle of its second batch."""
    writer, run = begun(out)
    steps = iter(range(100))
    options = {"save": writer.checkpoint, "stopping": lambda: next(steps) > 17}
    assert not driver.integrate_into(writer, run, None, **options)
    former_of(out).unlink()


def test_a_resume_from_flipped_bits_is_refused_or_gives_the_same_bits(
    whole: Path, tmp_path: Path, cases: Cases
) -> None:
    out = tmp_path / "run.h5"
    unfinished(out)
    kept = {path: path.read_bytes() for path in (partial_of(out), checkpoint_of(out))}
    with wflow.open(whole) as ds:
        expected = ds.load()
    rng, refused, equal = random.Random(3), 0, 0
    for k in range(cases(8, 90)):
        for path, raw in kept.items():
            path.write_bytes(raw)
        damaged = list(kept)[k % 2]
        flip(damaged, rng.randrange(8 * len(kept[damaged])))
        try:
            with solve(out, if_exists="resume") as run:
                same_bits(run, expected)
            equal += 1
            out.unlink()
        except wflow.RunFileError:
            refused += 1
    assert refused and (equal or refused < 90)  # few bits lie where they are written again


@pytest.mark.parametrize("name", ["martingale", "tokens", "initial_tokens"])
def test_a_change_before_the_checkpoint_is_named_at_the_resume(tmp_path: Path, name: str) -> None:
    out = tmp_path / "run.h5"
    unfinished(out)
    with h5py.File(partial_of(out), "r+") as file:
        file[name][0] *= 1.0000001
    with pytest.raises(wflow.RunFileError, match=name):
        solve(out, if_exists="resume")


def in_parts(out: Path, if_exists: str = "error") -> Run:
    return Run(problem_of_task({"x0": X0, **OPTIONS, "out": out}), out, if_exists)


def test_a_damaged_part_is_refused_at_the_merge_and_computed_again(
    whole: Path, tmp_path: Path
) -> None:
    run = in_parts(tmp_path / "run.h5")
    for paths in ((0, 2), (2, 3)):
        compute(run.part(paths))
        run.done.append(paths)
    with h5py.File(run.file((0, 2))) as file:
        place = file["martingale"].id.get_offset()
    flip(run.file((0, 2)), 8 * place + 77)
    with pytest.raises(wflow.RunFileError, match=r"martingale.*--resume"):
        run.join()
    run.close()
    with (
        wflow.distributed.solve(X0, **OPTIONS, out=run.out, if_exists="resume") as merged,
        wflow.open(whole) as ds,
    ):
        np.testing.assert_array_equal(merged["martingale"].values, ds["martingale"].values)
    assert os.listdir(tmp_path) == ["run.h5"] and verify(run.out).passed


UNREADABLE: dict[str, Callable[[h5py.File], object]] = {
    "text variable": lambda f: f.create_dataset("words", data="hello"),
    "config null": lambda f: f.attrs.__setitem__("config", "null"),
    "seed missing": lambda f: f.attrs.__delitem__("seed"),
    "time unsorted": lambda f: f["time"].write_direct(np.array(f["time"][:])[::-1].copy()),
}


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.filterwarnings("ignore")
def test_verify_and_info_say_what_is_wrong_with_a_file(whole, tmp_path, name, capsys) -> None:
    path = spoiled(whole, tmp_path, UNREADABLE[name])
    for command in ("verify", "info"):
        assert main([command, str(path)]) in (0, 1, 2)
        assert "Traceback" not in capsys.readouterr().err


def foreign_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["precious"] = np.arange(10.0)


FOREIGN: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("my notes"),
    "HDF5": foreign_hdf5,
    "directory": lambda path: path.mkdir(),
    "link": lambda path: path.symlink_to(path.parent / "elsewhere.h5"),
    "dangling link": lambda path: path.symlink_to(path.parent / "nowhere"),
    "pipe": lambda path: os.mkfifo(path),
}
SUFFIXES = (".partial", ".checkpoint", ".checkpoint.old", ".lock")


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [(kind, "") for kind in FOREIGN] + [(k, s) for k in ("text", "link") for s in SUFFIXES],
)
def test_nothing_foreign_is_replaced_or_removed(
    whole: Path, tmp_path: Path, kind: str, suffix: str
) -> None:
    shutil.copy(whole, tmp_path / "elsewhere.h5")
    out, taken = tmp_path / "run.h5", tmp_path / f"run.h5{suffix}"
    FOREIGN[kind](taken)

    def look() -> tuple[object, ...]:
        state = os.lstat(taken)
        content = taken.read_bytes() if os.path.isfile(taken) else b""
        return state.st_mode, state.st_ino, state.st_mtime_ns, content, sorted(os.listdir(tmp_path))

    before = look()
    for how in ("error", "overwrite", "resume"):
        if how == "resume" and (kind, suffix) == ("link", ""):
            continue  # a finished run may be read through a link
        with pytest.raises(wflow.RunFileError):
            solve(out, if_exists=how)
        assert look() == before


@pytest.mark.parametrize("name", ["00000-00003.h5", "run.json"])
def test_a_folder_of_parts_that_wflow_did_not_make_stays_as_it_is(tmp_path, name) -> None:
    out, file = tmp_path / "run.h5", tmp_path / "run.h5.parts" / name
    file.parent.mkdir()
    file.write_text("my notes")
    for how in ("error", "overwrite"):
        for start in (solve, in_parts):
            with pytest.raises(wflow.RunFileError):
                start(out, if_exists=how)
    assert list(file.parent.iterdir()) == [file] and file.read_text() == "my notes"
    assert not out.exists()


def test_a_run_killed_before_its_first_checkpoint_starts_with_resume(tmp_path: Path) -> None:
    out = tmp_path / "run.h5"
    begun(out)[0].abandon()
    with pytest.raises(wflow.RunFileError, match="belongs to another run"):
        solve(out, seed=6, if_exists="resume")
    solve(out, if_exists="resume").close()
    assert verify(out).passed


def test_a_changed_file_is_neither_run_again_nor_extended(whole: Path, tmp_path: Path) -> None:
    out = Path(shutil.copy(whole, tmp_path / "run.h5"))
    with h5py.File(out, "r+") as file:
        file["initial_tokens"][0] *= 1.0000001
    assert detected(out)
    with pytest.raises(wflow.RunFileError, match="initial_tokens"):
        wflow.rerun(out)
    with pytest.raises(wflow.RunFileError, match="initial_tokens"):
        solve(out, t_final=0.2, if_exists="resume")


def test_rounding_that_grows_fails_no_honest_file(tmp_path: Path) -> None:
    angles = 2 * np.pi * np.arange(8) / 8
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # an unstable equilibrium
    options = {
        "heads": 4 * np.eye(2)[None], "t_final": 20.0, "dt": 0.01,
        "save": wflow.SaveAt(every=10_000),
    }  # fmt: skip
    out = tmp_path / "run.h5"
    start = circle + 2e-16 * circle[:, ::-1]  # as another processor might round
    wflow.solve(start, Frozen(), **options, direction="ascent", out=out).close()

    def nominal(file: h5py.File) -> None:
        file["initial_tokens"][...] = circle

    name = "the first recorded step follows from the configuration"
    report = verify(spoiled(out, tmp_path, nominal))
    (check,) = (check for check in report.checks if check.name == name)
    assert check.passed is not False, str(check)


def test_a_process_killed_before_its_manifest_blocks_no_later_start(tmp_path: Path) -> None:
    folder = tmp_path / "run.h5.parts"
    folder.mkdir()
    (folder / f"run.json.{16 * 'a'}.new").write_text("{")
    run = in_parts(tmp_path / "run.h5")
    assert sorted(os.listdir(folder)) == ["run.json"]
    run.close()
