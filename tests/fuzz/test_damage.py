"""Run files that are damaged, foreign or hostile: detected, refused, and never replaced."""

import json
import os
import random
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from run_layouts import escapes, same_bits, spoiled, steers

import wflow
from wflow.analysis.verify import verify
from wflow.cli import main
from wflow.heads import Frozen, OrnsteinUhlenbeck
from wflow.particles.integrate import ParticleRun
from wflow.particles.problem import problem_of
from wflow.runs import driver
from wflow.runs.read import checkpoint_of, former_of, partial_of
from wflow.runs.schema import config_text, dataset_attrs

Cases = Callable[[int, int], int]
OPTIONS = {
    "law": OrnsteinUhlenbeck(np.eye(3)), "heads": 2, "t_final": 0.12, "dt": 0.01, "paths": 3,
    "seed": 5, "save": wflow.SaveAt(snapshots=[0.0, 0.05, 0.12], paths=[0, 2], heads=True),
    "compute": wflow.Compute(batch=2, checkpoint_every=0.0),
}  # fmt: skip


def x0() -> np.ndarray:
    return wflow.tokens.cross_polytope(n=5, d=3, spread=0.05, seed=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run.h5"
    wflow.solve(x0(), **OPTIONS, out=out).close()
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


def bits(rng: random.Random, count: int, spans: list[tuple[int, int]]) -> list[int]:
    """Places of bits: as many in every part of the file, however small."""
    chosen = []
    for k in range(count):
        offset, size = spans[k % len(spans)]
        chosen.append(8 * (offset + rng.randrange(size)) + rng.randrange(8))
    return chosen


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
    copy = tmp_path / "run.h5"
    around = [(0, whole.stat().st_size), (0, 2048), (0, min(place for place, _ in values))]
    missed = []
    for bit in bits(random.Random(1), cases(80, 400), [*values, *around]):
        shutil.copy(whole, copy)
        flip(copy, bit)
        if not detected(copy):
            with wflow.open(copy) as ds:
                same = ds.load().identical(expected)
            held = any(place <= bit // 8 < place + size for place, size in values)
            missed += [] if same and not held else [bit]
    assert not missed


def unfinished(out: Path) -> None:
    """The run, stopped in the middle of its second batch."""
    problem = problem_of(x0(), **OPTIONS)
    attrs = dataset_attrs(problem.config(), problem.seed)
    writer = driver.create(out, ParticleRun(problem), attrs, overwrite=False)
    steps = iter(range(100))
    options = {"save": writer.checkpoint, "stopping": lambda: next(steps) > 17}
    assert not driver.integrate_into(writer, ParticleRun(problem), None, **options)
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
    for k in range(cases(12, 90)):
        for path, raw in kept.items():
            path.write_bytes(raw)
        damaged = list(kept)[k % 2]
        flip(damaged, rng.randrange(8 * len(kept[damaged])))
        try:
            with wflow.solve(x0(), **OPTIONS, out=out, if_exists="resume") as run:
                same_bits(run, expected)
            equal += 1
            assert verify(out).passed
            out.unlink()
        except wflow.RunFileError:
            refused += 1
    assert refused and (equal or refused < 90)  # few bits lie where they are written again


@pytest.mark.parametrize("name", ["energy", "martingale", "tokens", "heads", "initial_tokens"])
def test_a_change_before_the_checkpoint_is_named_at_the_resume(tmp_path: Path, name: str) -> None:
    out = tmp_path / "run.h5"
    unfinished(out)
    with h5py.File(partial_of(out), "r+") as file:
        file[name][0] *= 1.0000001
    with pytest.raises(wflow.RunFileError, match=name):
        wflow.solve(x0(), **OPTIONS, out=out, if_exists="resume")


def test_a_damaged_part_is_refused_at_the_merge_and_computed_again(tmp_path: Path) -> None:
    from wflow.distributed.parts import Run, compute
    from wflow.particles.problem import problem_of_task

    out = tmp_path / "run.h5"
    task = {"x0": x0(), **OPTIONS, "out": out}
    run = Run(problem_of_task(task), out)
    for paths in ((0, 2), (2, 3)):
        compute(run.part(paths))
        run.done.append(paths)
    part = run.file((0, 2))
    with h5py.File(part) as file:
        place = file["martingale"].id.get_offset()
    flip(part, 8 * place + 77)
    with pytest.raises(wflow.RunFileError, match=r"martingale.*--resume"):
        run.join()
    run.close()
    with (
        wflow.distributed.solve(**task, if_exists="resume") as merged,
        wflow.solve(**task | {"out": None}) as ds,
    ):
        np.testing.assert_array_equal(merged["martingale"].values, ds["martingale"].values)
    assert os.listdir(tmp_path) == ["run.h5"] and verify(out).passed


def config(**changes: object) -> Callable[[h5py.File], None]:
    def act(file: h5py.File) -> None:
        held = json.loads(file.attrs["config"])
        for key, value in changes.items():
            inner, _, name = key.rpartition("__")
            (held[inner] if inner else held)[name] = value
        file.attrs["config"] = config_text(held)

    return act


TIES: list[dict[str, object]] = [
    {"law__rate": 1.5}, {"law__mean": (2 * np.eye(3)).tolist()}, {"law__sigma2": 1.0},
    {"law__exact": True}, {"flow": "effective"}, {"direction": "ascent"}, {"dt": 0.02}, {"seed": 6},
    {"x0": {"shape": [5, 3], "sha256": "0" * 64}}, {"heads": 3}, {"kappa": 0.1}, {"paths": 4},
    {"t_final": 0.11}, {"save__paths": [0, 1]}, {"save__snapshots": [0.0, 0.06, 0.12]},
    {"save__heads": False}, {"save__every": 2}, {"compute__dtype": "float32"},
]  # fmt: skip


def test_a_configuration_that_is_not_that_of_the_data_fails_even_without_digests(
    whole: Path, tmp_path: Path, cases: Callable[[int, int], int]
) -> None:
    assert verify(spoiled(whole, tmp_path, lambda file: None)).passed
    for changes in TIES[:: cases(3, 1)]:
        assert detected(spoiled(whole, tmp_path, config(**changes))), changes


def huge(file: h5py.File) -> None:
    """Ten gigabytes of energies in a few bytes."""
    sizes = {"path": 10**4, "time": 125_000}
    for name in list(file):
        del file[name]
    file.flush()
    for name, size in sizes.items():
        file.create_dataset(name, (size,), "<i8" if name == "path" else "<f8").make_scale(name)
    for name in ("energy", "work_weights"):
        data = file.create_dataset(name, tuple(sizes.values()), "<f8", fillvalue=1.0)
        for dim, scale in zip(data.dims, sizes, strict=True):
            dim.attach_scale(file[scale])


def external(file: h5py.File) -> None:
    secret = Path(file.filename).with_name("secret")
    secret.write_bytes(bytes(80))
    file.create_dataset("unknown", (10,), "<f8", external=[(str(secret), 0, 80)])


HOSTILE: dict[str, Callable[[h5py.File], None]] = {
    "text variable": lambda f: f.create_dataset("words", data="hello"),
    "dt as text": config(dt="0.01"),
    "steps beyond count": config(dt=1e-300),
    "law unknown": config(law={"name": "Frozen", "rate": [1]}),
    "law wrong": config(law__mean="x"),
    "heads null": config(heads=None),
    "save as list": config(save=[1]),
    "complete two": lambda f: f.attrs.__setitem__("complete", 2),
    "created number": lambda f: f.attrs.__setitem__("created", 5),
    "seed missing": lambda f: f.attrs.__delitem__("seed"),
    "config bytes": lambda f: f.attrs.__setitem__("config", np.bytes_(b"\xff\xfe")),
    "config deep": lambda f: f.attrs.__setitem__("config", "[" * 20_000),
    "time as text": lambda f: (f.__delitem__("time"), f.create_dataset("time", data="x")),
    "time unsorted": lambda f: f["time"].write_direct(np.array(f["time"][:])[::-1].copy()),
    "external storage": external,
    "external link": lambda f: f.__setitem__("far", h5py.ExternalLink("/etc/passwd", "x")),
    "soft link": lambda f: f.__setitem__("soft", h5py.SoftLink("/energy")),
    "group": lambda f: f.create_group("inner").create_dataset("x", data=[1.0]),
    "huge sizes": huge,
    "escapes": escapes,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_verify_and_info_never_raise_on_a_hostile_file(
    whole: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], cases
) -> None:
    if list(HOSTILE).index(name) % cases(3, 1) and name != "escapes":
        pytest.skip("with --long")
    path = spoiled(whole, tmp_path, HOSTILE[name])
    for command in ("verify", "info"):
        assert main([command, str(path)]) in (0, 1, 2)
        said = capsys.readouterr()
        assert "Traceback" not in said.err and not steers(said.out + said.err)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detected(path)
    if name in ("huge sizes", "external storage", "external link"):
        with pytest.raises(wflow.RunFileError):
            wflow.open(path)


def foreign_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["precious"] = np.arange(10.0)


def archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("precious.npy", "numbers")


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
    except (OSError, AttributeError):
        pytest.skip("no device can be made here")


FOREIGN: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("my notes"),
    "empty": lambda path: path.touch(),
    "HDF5": foreign_hdf5,
    "zip": archive,
    "directory": lambda path: path.mkdir(),
    "link": lambda path: path.symlink_to(path.parent / "elsewhere.h5"),
    "dangling link": lambda path: path.symlink_to(path.parent / "nowhere"),
    "pipe": lambda path: os.mkfifo(path),
    "device": device,
}


@pytest.mark.parametrize("suffix", ["", ".partial", ".checkpoint", ".checkpoint.old", ".lock"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_nothing_foreign_is_replaced_or_removed(
    whole: Path, tmp_path: Path, kind: str, suffix: str
) -> None:
    if (kind, suffix) == ("empty", ".lock"):
        pytest.skip("an empty lock file is one of a process that was killed")
    shutil.copy(whole, tmp_path / "elsewhere.h5")
    out, taken = tmp_path / "run.h5", tmp_path / f"run.h5{suffix}"
    FOREIGN[kind](taken)

    def look() -> tuple[object, ...]:
        state = os.lstat(taken)
        content = taken.read_bytes() if os.path.isfile(taken) else b""
        return state.st_mode, state.st_ino, state.st_mtime_ns, content, sorted(os.listdir(tmp_path))

    before = look()
    for how in ({}, {"if_exists": "overwrite"}, {"if_exists": "resume"}):
        if how == {"if_exists": "resume"} and (kind, suffix) == ("link", ""):
            continue  # a finished run may be read through a link
        with pytest.raises(wflow.RunFileError):
            wflow.solve(x0(), **OPTIONS, out=out, **how)
        assert look() == before


@pytest.mark.parametrize("kind", ["parts", "manifest", "link", "text", "pipe"])
def test_a_folder_of_parts_that_wflow_did_not_make_stays_as_it_is(
    tmp_path: Path, kind: str
) -> None:
    from wflow.distributed.parts import Run
    from wflow.particles.problem import problem_of_task

    out, folder, other = tmp_path / "run.h5", tmp_path / "run.h5.parts", tmp_path / "other"
    other.mkdir()
    (other / "00000-00003.h5").write_text("my notes")
    if kind in ("parts", "manifest"):
        shutil.copytree(other, folder)
    if kind == "manifest":
        (folder / "run.json").write_text("also mine")
    if kind in ("link", "text", "pipe"):
        makers = {"link": lambda: folder.symlink_to(other), "text": lambda: folder.write_text("x")}
        makers.get(kind, lambda: os.mkfifo(folder))()
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    for how in ({}, {"if_exists": "overwrite"}):
        with pytest.raises(wflow.RunFileError):
            wflow.solve(x0(), **OPTIONS, out=out, **how)
        with pytest.raises(wflow.RunFileError):
            Run(problem_of_task({"x0": x0(), **OPTIONS}), out, *how.values())
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


def test_a_run_killed_before_its_first_checkpoint_starts_with_resume(tmp_path: Path) -> None:
    out, problem = tmp_path / "run.h5", problem_of(x0(), **OPTIONS)
    attrs = dataset_attrs(problem.config(), problem.seed)
    driver.create(out, ParticleRun(problem), attrs, overwrite=False).abandon()
    with pytest.raises(wflow.RunFileError, match="belongs to another run"):
        wflow.solve(x0(), **OPTIONS | {"seed": 6}, out=out, if_exists="resume")
    wflow.solve(x0(), **OPTIONS, out=out, if_exists="resume").close()
    assert verify(out).passed


def test_a_changed_file_is_neither_run_again_nor_extended(whole: Path, tmp_path: Path) -> None:
    out = Path(shutil.copy(whole, tmp_path / "run.h5"))
    with h5py.File(out, "r+") as file:
        file["initial_tokens"][0] *= 1.0000001
    assert detected(out)
    with pytest.raises(wflow.RunFileError, match="initial_tokens"):
        wflow.rerun(out)
    with pytest.raises(wflow.RunFileError, match="initial_tokens"):
        wflow.solve(x0(), **OPTIONS | {"t_final": 0.2}, out=out, if_exists="resume")


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
    from wflow.distributed.parts import Run
    from wflow.particles.problem import problem_of_task

    folder = tmp_path / "run.h5.parts"
    folder.mkdir()
    (folder / f"run.json.{16 * 'a'}.new").write_text("{")
    run = Run(problem_of_task({"x0": x0(), **OPTIONS}), tmp_path / "run.h5")
    assert sorted(os.listdir(folder)) == ["run.json"]
    run.close()
