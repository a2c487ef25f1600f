"""Command lines with wrong words: a result, or status 2 with one message and nothing written."""

import dataclasses
import os
import random
import shutil
import sys
import traceback
import typing
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
from bounds import Hangs, bounded, within
from run_layouts import STEERING, steers
from scripts import NAMES as STUDIES
from scripts import OF_NETWORKS, script

import wflow
from wflow import InputError, study
from wflow.cli import commands
from wflow.study import frame

SECONDS = 60  # a command that takes longer to refuse its words hangs
MEMORY = 4 << 30  # bytes that a command may take
LINES = 30  # of an error that tyro puts into a box; those of wflow have one

NUMBERS = ["nan", "inf", "-inf", "-1", "0", "-0.0", "1.5", "1e-320", "1e308", "1e400", "-1e9",
           "1000000000000", "9" * 30, "9" * 400, "", " ", "x", "True", "None", "1,2", "0x10",
           "\u0663", "2"]  # fmt: skip
NAMES = ["", " ", ".", "..", "a" * 300, "a/" * 600, os.fsdecode(b"\xff\xfe"), "\u00e9\u4e2d",
         f"-{STEERING}", STEERING, "a\nb", "$(x)'",
         "-", "--", "~", "none", "../../nowhere", "tcp://127.0.0.1:9", "tcp://", "localhost:x",
         "[::1]:1", "cuda:99", "digits", "uniform"]  # fmt: skip


class Accepted(BaseException):
    """The command line stood all checks: here the runs would begin."""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder of files that no command may take for its own, hang on, or change."""
    folder = tmp_path / "hostile"
    (folder / "folder").mkdir(parents=True)
    (folder / "text.h5").write_text("not HDF5")
    (folder / "empty.h5").touch()
    (folder / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00")
    (folder / "numbers.csv").write_text("1,2,3\n4,5,x\n")
    (folder / "rows.csv").write_text("1,2,3\n4,5,6\n7,8,10\n1,0,0\n")
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with h5py.File(folder / "foreign.h5", "w") as file:
        file["mine"] = [1.0]
    (folder / "link.h5").symlink_to("foreign.h5")
    (folder / "loop.h5").symlink_to("loop.h5")
    for kind in ("h5", "npy", "pt"):
        os.mkfifo(folder / f"fifo.{kind}")
        (folder / f"device.{kind}").symlink_to("/dev/zero")
    with wflow.solve(np.eye(3), wflow.heads.Frozen(), heads=1, t_final=0.1, dt=0.1,
                     out=folder / "run.h5"):  # fmt: skip
        pass
    shutil.copy(folder / "run.h5", folder / f"run{STEERING}\n.h5")
    shutil.copy(folder / "run.h5", folder / os.fsdecode(b"run\xff$(x).h5"))
    for name in ("summary.h5", "summary.json"):  # of a study's folder, but foreign
        (folder / "folder" / name).write_text("mine")
    return folder


def snapshot(*folders: Path) -> dict[Path, tuple[int, int, int]]:
    """Return what lies in the folders: kind, size and time of change of every file."""
    found = {}
    for folder in folders:
        for place in sorted(folder.rglob("*")):
            state = os.lstat(place)
            changed = 0 if place.is_dir() else state.st_mtime_ns
            found[place] = state.st_mode, state.st_size * bool(changed), changed
    return found


def flags_of(module: ModuleType) -> type:
    """Return the class of the flags of a study, which are the cases of this driver."""
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, study.OutputFlags)
        and value.__module__ == module.__name__
    ]
    (found,) = [one for one in own if not any(one in other.__mro__[1:] for other in own)]
    return found


def words(rng: random.Random, hint: Any, hostile: Path) -> list[str]:
    """Return values of one flag, most of them wrong."""
    files = [str(file) for file in sorted(hostile.iterdir())]
    files += ["/dev/null", "/proc/self/mem", f"{hostile / 'text.h5'}/below", "missing.h5"]
    kinds, many = set[Any](), False
    waiting = [hint]
    while waiting:
        kind = waiting.pop()
        many |= typing.get_origin(kind) is tuple
        kinds.add(kind)
        waiting += [part for part in typing.get_args(kind) if not isinstance(part, str)]
    if bool in kinds:
        return rng.choice([[], [], ["yes"], ["True"]])
    pool = NAMES + 2 * files if kinds & {str, Path} else NUMBERS
    if rng.random() < 0.1:
        pool = NUMBERS + NAMES
    literal = [text for kind in kinds for text in typing.get_args(kind) if isinstance(text, str)]
    pool = pool + literal
    return [rng.choice(pool) for _ in range(rng.choice([0, 1, 2, 3]) if many else 1)]


def flags(kind: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and types of the flags of a class, those of options such as `save.every` included."""
    of = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        name, hint = prefix + field.name.replace("_", "-"), of[field.name]
        if hint in (wflow.SaveAt, wflow.Compute):
            yield from flags(hint, f"{name}.")
        elif name != "save.budget":  # which no study takes
            yield name, hint


def wrong_lines(name: str, module: ModuleType, hostile: Path, count: int) -> Iterator[list[str]]:
    """Yield every flag of a study once with wrong words, then two or three of them together."""
    of = dict(flags(flags_of(module)))
    fields = list(of)
    rng = random.Random(name)
    order = rng.sample(fields, len(fields))
    for number in range(count):
        chosen = [order[number]] if number < len(order) else rng.sample(fields, rng.randint(2, 3))
        line = ["--preset", "smoke"] if "preset" in fields else []
        line += ["--n", "4", "8", "--reference", "8"] if name == "mean_field_large" else []
        for field in chosen:
            line += ["--" + field, *words(rng, of[field], hostile)]
        if rng.random() < 0.05:
            line += rng.choice([["--flag", "1"], ["word"], ["--out"], ["-x"]])
        yield line


def outcome(
    run: Callable[[], int], listing: Callable[[], Any], capsys: Any, also: tuple[int, ...] = ()
) -> tuple[int | None, str]:
    """Return status of a command, and what is wrong with how it ended; nothing for 0 or a message.

    The status is None where the runs would begin; `also` is right, too.
    """
    there = listing()
    capsys.readouterr()
    by_tyro, status = False, None
    with within(SECONDS), bounded(MEMORY), warnings.catch_warnings():
        warnings.simplefilter("default")  # as in a separate process
        try:
            status = commands.guarded(run)
        except Accepted:
            return None, ""
        except SystemExit as stop:
            status, by_tyro = stop.code if isinstance(stop.code, int) else 1, True
        except Hangs:
            return 1, "hangs"
        except BaseException:
            return 1, traceback.format_exc()
    printed = capsys.readouterr()
    if found := steers(printed.out + printed.err):
        return status, f"printed {found}"
    said = printed.err
    if status not in (0, 2, *also):
        return status, f"status {status}: {said}"
    if status == 2:
        ours = [text for text in said.splitlines() if text.startswith("wflow: error: ")]
        if not said.strip() or len(ours) != (not by_tyro) or len(said.splitlines()) > LINES:
            return status, f"not one message: {said}"
        if listing() != there:
            return status, f"wrote {set(listing()) ^ set(there)}: {said}"
    return status, ""


@pytest.mark.parametrize("name", STUDIES)
def test_a_wrong_flag_of_a_study_is_a_message(
    name, tmp_path, monkeypatch, capsys, cases, hostile
) -> None:
    if name in OF_NETWORKS:
        pytest.importorskip("torch")
    module = script(name)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("COLUMNS", "100")

    stop_at_runs(monkeypatch, module)
    monkeypatch.setattr("wflow.distributed.client.CONNECT_SECONDS", 0.2)
    refused, wrong = 0, []
    for line in wrong_lines(name, module, hostile, cases(2, 30)):
        monkeypatch.setattr(sys, "argv", [f"studies/{name}.py", *line])
        status, fault = outcome(module.main, lambda: snapshot(work, hostile), capsys)
        refused += status == 2
        if list(work.iterdir()):
            fault += f" left {list(work.iterdir())}"
        wrong += [f"{' '.join(line)}: {fault}"] if fault else []
    assert not wrong, "\n\n".join(wrong)
    assert refused >= cases(0, 10)


def stop_at_runs(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    """Runs, parts, preparation, training and downloads are as far as a wrong flag may get."""

    def begins(*_: Any, **__: Any) -> None:
        raise Accepted

    @contextmanager
    def pool(*_: Any, **__: Any) -> Iterator[Callable[[Any], None]]:
        yield begins

    def offline(*_: Any, **__: Any) -> None:
        raise InputError("no network")

    monkeypatch.setattr(frame, "pool", pool)
    if hasattr(module, "PARTS"):
        monkeypatch.setattr(module, "PARTS", dict.fromkeys(module.PARTS, begins))
    for sampler in ("brwp", "myula", "ula"):
        monkeypatch.setattr(wflow.sampling, sampler, begins)
    for name in ("lyapunov", "lipschitz"):
        monkeypatch.setattr(wflow, name, begins)
    for owner, name in ((wflow.inference, "fit"), (wflow.control, "steer")):
        monkeypatch.setattr(owner, name, begins)
    if "torch" in sys.modules:
        from wflow.nets import data, train
        from wflow.nets.data import download

        monkeypatch.setattr(train, "train", begins)
        monkeypatch.setattr(data, "prepare_text", begins)
        monkeypatch.setattr(download, "download", offline)


def test_wrong_words_of_the_command_wflow_are_a_message(
    tmp_path, monkeypatch, capsys, cases, hostile
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    rng = random.Random(0)
    files = [str(file) for file in sorted(hostile.iterdir())]
    names = [*files, "/dev/null", "/dev/zero", "missing.h5", "/proc/self/mem", *NAMES]
    wrong = []
    flag = {"plot": ["--out"], "verify": ["--tolerance"], "info": ["--config"], "compare": [],
            "solve": ["--set"]}  # fmt: skip
    for number in range(cases(20, 150)):
        command = rng.choice([*flag])
        line = [command, names[number] if number < len(names) else rng.choice(names)]
        if rng.random() < 0.4:
            line += [*flag[command], rng.choice(NUMBERS if command == "verify" else names)]
        kept = [hostile] if command == "plot" else [tmp_path]
        also = (1,) if command in ("verify", "compare") else ()  # the check failed
        _, fault = outcome(partial(commands.main, line), partial(snapshot, *kept), capsys, also)
        wrong += [f"{' '.join(line)}: {fault}"] if fault else []
    assert not wrong, "\n\n".join(wrong)
