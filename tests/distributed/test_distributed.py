"""Runs whose paths are spread over workers: the same bits, whatever dies on the way."""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_layouts import same_bits, stop_after

import wflow
from wflow import _version, study
from wflow.distributed import client as pools
from wflow.distributed.dispatch import cut
from wflow.distributed.parts import Run, compute
from wflow.heads import CompoundPoisson, Frozen, HeadLaw, OrnsteinUhlenbeck
from wflow.particles.problem import problem_of_task
from wflow.runs.disk import RunLock
from wflow.runs.schema import dataset_attrs
from wflow.runs.store import RunWriter

library = pytest.importorskip("distributed", reason="the extra dask is not installed")
from distributed.comm import connect  # noqa: E402

SAVE = wflow.SaveAt(every=3, snapshots=[0, 0.2, 0.5], paths=[1, 2, 5], heads=True)


def problem(**changes: Any) -> dict[str, Any]:
    """Return the seven paths with everything that a run file can hold."""
    settings = {
        "x0": wflow.tokens.cross_polytope(n=12, d=3, spread=0.05, seed=1),
        "law": OrnsteinUhlenbeck(np.eye(3)), "heads": 2, "t_final": 0.5, "dt": 0.005, "paths": 7,
        "seed": 3, "save": SAVE, "kappa": 0.05, "compute": wflow.Compute(threads=1),
    }  # fmt: skip
    return settings | changes


def check_same(one: Any, other: Any) -> None:
    """Two runs have the same variables to the bit and the same configuration."""
    same_bits(one, other)
    for name in ("config", "seed", "schema", "title", "complete"):
        assert one.attrs[name] == other.attrs[name]


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the problem as one process computes it."""
    return wflow.solve(**problem(), out=tmp_path_factory.mktemp("serial") / "run.h5").load()


def in_parts(task: dict[str, Any], out: Path, cuts: list[int]) -> Run:
    """Compute the paths between the cuts as workers do, in this process."""
    run = Run(problem_of_task(task), out)
    for paths in itertools.pairwise(cuts):
        compute(run.part(paths))
        run.done.append(paths)
    return run


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Yield two workers of one thread each."""
    with (
        pools.local_cluster(2, 1) as workers,
        library.Client(workers, set_as_default=False) as made,
    ):
        yield made


def spread(client: Any, out: Path, **changes: Any) -> Any:
    """Solve by the workers, each path a task."""
    options = problem(**changes) | {"out": out, "scheduler": client, "task_seconds": 0.0}
    return wflow.distributed.solve(**options)


def when(happened: Callable[[], Any], act: Callable[[], Any]) -> threading.Thread:
    """Act as soon as something has happened."""

    def watch() -> None:
        limit = time.monotonic() + 120
        while not happened():
            assert time.monotonic() < limit, "it never happened"
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


FROZEN = {"kappa": 0.0, "law": Frozen()}
SINGLE = wflow.Compute(dtype="float32")
CASES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "one": ({}, [0, 7]),
    "seven starts": ({"x0": np.stack([wflow.tokens.uniform(5, 3, seed=s) for s in range(7)])},
                     [*range(8)]),
    "rk4": (FROZEN | {"scheme": "rk4", "save": replace(SAVE, heads=False)}, [0, 2, 6, 7]),
    "dopri5": (FROZEN | {"scheme": "dopri5"}, [0, 2, 6, 7]),
    "float32": ({"save": replace(SAVE, paths=[]), "compute": SINGLE}, [0, 2, 6, 7]),
    "batches": ({"save": replace(SAVE, snapshots=[], budget=False),
                 "compute": wflow.Compute(batch=2)}, [0, 3, 7]),
    "jumps": ({"law": CompoundPoisson(OrnsteinUhlenbeck(np.eye(3)), 5.0, 0.5)}, [0, 3, 7]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_parts_merge_to_the_bits_of_the_serial_run(tmp_path, name) -> None:
    changes, cuts = CASES[name]
    task = problem(**changes)
    in_parts(task, tmp_path / "run.h5", cuts).join()
    assert [file.name for file in tmp_path.iterdir()] == ["run.h5"]
    with wflow.open(tmp_path / "run.h5") as merged:
        check_same(merged, wflow.solve(**task, out=tmp_path / "serial.h5"))


def test_workers_compute_the_bits_of_the_serial_run_and_keep_the_command(
    client, serial, tmp_path
) -> None:
    with spread(client, tmp_path / "run.h5") as run:
        check_same(run, serial)
        assert run.attrs["command"].split()[0] in " ".join(sys.argv)
    assert [file.name for file in tmp_path.iterdir()] == ["run.h5"]


def test_a_run_begun_without_workers_is_ended_with_them(client, tmp_path, monkeypatch) -> None:
    often = wflow.Compute(threads=1, checkpoint_every=0.0)
    task, out = problem(compute=often), tmp_path / "run.h5"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_after(patch, 0)
        wflow.solve(**task, out=out)
    with spread(client, out, compute=often, if_exists="resume") as run:
        check_same(run, wflow.solve(**task, out=tmp_path / "serial.h5"))


def test_a_law_of_functions_travels_and_one_that_cannot_is_refused(client, tmp_path) -> None:
    rate, guard = 2.0, threading.Lock()
    law = HeadLaw(lambda D, t: -rate * D)
    with spread(client, tmp_path / "run.h5", law=law) as run:
        check_same(run, wflow.solve(**problem(law=law), out=tmp_path / "serial.h5"))

    def drift(D, t):
        with guard:
            return -D

    with pytest.raises(wflow.InputError, match="law cannot travel"):
        spread(client, tmp_path / "x.h5", law=HeadLaw(drift))
    assert not list(tmp_path.glob("x.h5*"))


def test_a_worker_killed_in_mid_run_is_replaced_and_the_bits_stay(client, tmp_path) -> None:
    out, often = tmp_path / "run.h5", wflow.Compute(threads=1, checkpoint_every=0.05)
    task = {"t_final": 4.0, "compute": often}
    victim = min(client.run(os.getpid).values())

    def running() -> bool:
        return len(list(out.parent.glob("run.h5.parts/*.checkpoint"))) > 1

    killer = when(running, lambda: os.kill(victim, signal.SIGKILL))
    with spread(client, out, **task) as run:
        killer.join()
        check_same(run, wflow.solve(**problem(**task), out=tmp_path / "serial.h5"))
    client.wait_for_workers(2, timeout=60)
    after = set(client.run(os.getpid).values())
    assert victim not in after and len(after) == 2
    assert not (tmp_path / "run.h5.parts").exists()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_that_blows_up_is_not_tried_again(client, tmp_path) -> None:
    task = {"law": OrnsteinUhlenbeck(np.eye(3), rate=500.0)}
    with pytest.raises(wflow.BlowUpError, match=r"run\.h5\.parts") as caught:
        spread(client, tmp_path / "run.h5", **task)
    assert 0 <= caught.value.path < 7 and caught.value.time > 0
    task |= {"compute": wflow.Compute(stop_at_blow_up=True), "if_exists": "overwrite"}
    with pytest.raises(wflow.BlowUpError, match=r"run\.h5\.parts"):
        spread(client, tmp_path / "run.h5", **task)
    parts = list((tmp_path / "run.h5.parts").glob("*.h5.partial"))
    assert 1 <= len(parts) <= 4  # those that were under way, and no other


def test_a_worker_of_another_version_is_refused(client, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(_version, "__version__", "9.9")
    with pytest.raises(wflow.InputError, match=r"9\.9"):
        spread(client, tmp_path / "run.h5")


@pytest.mark.parametrize("by", ["this process", "workers"])
def test_resume_keeps_finished_parts_and_computes_the_others(
    client, serial, tmp_path, monkeypatch, by
) -> None:
    task, out = problem(), tmp_path / "run.h5"
    in_parts(task, out, [0, 2, 3]).close()
    folder = tmp_path / "run.h5.parts"
    made = {file.name: file.stat().st_mtime_ns for file in folder.glob("*.h5")}
    assert set(made) == {"00000-00001.h5", "00002-00002.h5"}
    # Neither half a part nor that of another run is taken for a whole one.
    whole = (folder / "00000-00001.h5").read_bytes()
    (folder / "00003-00003.h5").write_bytes(whole[: len(whole) // 2])
    (folder / "00004-00005.h5").write_bytes(whole)
    (folder / "whole.h5.partial").write_bytes(whole[:1000])  # of a merge that was killed

    kept: dict[str, int] = {}
    join = Run.join

    def look(run: Run) -> None:
        kept.update({name: (folder / name).stat().st_mtime_ns for name in made})
        join(run)

    monkeypatch.setattr(Run, "join", look)
    options = {"scheduler": client, "task_seconds": 0.0} if by == "workers" else {}
    with wflow.distributed.solve(**task, out=out, if_exists="resume", **options) as run:
        check_same(run, serial)
    assert kept == made and [file.name for file in tmp_path.iterdir()] == ["run.h5"]
    before = out.stat().st_mtime_ns
    # Nothing is left to do.
    monkeypatch.undo()
    wflow.distributed.solve(**task, out=out, if_exists="resume", **options).close()
    assert out.stat().st_mtime_ns == before


def test_parts_are_neither_ignored_nor_mixed_up(tmp_path) -> None:
    task, out = problem(), tmp_path / "run.h5"
    in_parts(task, out, [0, 2]).close()
    for solve in (wflow.solve, wflow.distributed.solve):
        with pytest.raises(wflow.RunFileError, match="parts of an unfinished run"):
            solve(**task, out=out)
    with pytest.raises(wflow.RunFileError, match="what was computed of it is in"):
        wflow.open(out)
    with pytest.raises(wflow.InputError, match="seed differ"):
        wflow.distributed.solve(**problem(seed=4), out=out, if_exists="resume")
    with wflow.solve(**problem(seed=4), out=out, if_exists="overwrite") as run:
        assert run.attrs["seed"] == 4
    assert [file.name for file in tmp_path.iterdir()] == ["run.h5"]


def test_a_part_that_another_process_writes_is_waited_for(tmp_path) -> None:
    with closing(in_parts(problem(), tmp_path / "run.h5", [0, 3])) as run:
        part = run.part((3, 7))
        lock = RunLock(part.file)
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(compute, part)
            time.sleep(0.3)
            assert not waiting.done() and not part.file.exists()
            lock.release()
        assert waiting.result() is None and part.file.exists()


def test_two_studies_do_not_write_the_same_run(tmp_path) -> None:
    task, out = problem(), tmp_path / "run.h5"
    with closing(in_parts(task, out, [0, 2])):
        for how in ("resume", "overwrite"):
            with pytest.raises(wflow.RunFileError, match="being written"):
                wflow.distributed.solve(**task, out=out, if_exists=how)


def test_a_worker_of_a_replaced_run_does_not_call_the_new_part_whole(tmp_path) -> None:
    made, writers = [], []
    for seed in (1, 2):
        run = Run(problem_of_task(problem(seed=seed)), tmp_path / "run.h5", "overwrite")
        made.append(run.part((0, 7)))
        attrs = dataset_attrs(made[-1].config, seed)
        layout = made[-1].problem.layout()
        writers.append(RunWriter.create(made[-1].file, layout, attrs, overwrite=True))
        run.close()
    with pytest.raises(wflow.RunFileError, match="replaced"):
        writers[0].finish()
    assert made[0].file == made[1].file and not made[1].file.exists()
    assert writers[1].finish() == made[1].file


def test_a_scheduler_is_found_from_a_notebook_whose_thread_runs_a_loop(client) -> None:
    async def cell() -> None:
        pools.check_workers(0, client.scheduler.address, client.security)
        with pools.pool(0, client.scheduler.address, security=client.security) as run:
            run([])

    asyncio.run(cell())


def pem(folder: Path, security: Any) -> list[str]:
    """Return files with the certificate of the cluster, that of a client and its key."""
    contents = security.tls_ca_file, security.tls_client_cert, security.tls_client_key
    files = [folder / name for name in ("ca.pem", "cert.pem", "key.pem")]
    for file, content in zip(files, contents, strict=True):
        file.write_text(content)
    return [str(file) for file in files]


def connected(address: str, security: Any) -> bool:
    """Whether a server of dask takes messages of a client: those that run code are among them."""

    async def greet() -> None:
        comm = await connect(address, timeout=0.3, **security.get_connection_args("client"))
        await comm.close()

    try:
        asyncio.run(greet())
    except (OSError, TypeError):
        return False
    return True


def test_strangers_run_nothing_on_a_local_cluster(client) -> None:
    """Scheduler, workers and what watches over them, all of them on the loopback interface."""
    workers = client.scheduler_info()["workers"]
    found = [client.scheduler.address, *workers, *(each["nanny"] for each in workers.values())]
    assert len(found) == 5
    assert all(address.startswith("tls://127.0.0.1:") for address in found)
    assert all(connected(address, client.security) for address in found)
    for stranger in (library.Security(), library.Security.temporary()):
        assert not any(connected(address, stranger) for address in found)
    plain = [address.replace("tls", "tcp") for address in found]
    assert not any(connected(address, library.Security()) for address in plain)


def test_a_scheduler_at_tls_is_joined_with_its_certificates(client, serial, tmp_path) -> None:
    address, (ca, cert, key) = client.scheduler.address, pem(tmp_path, client.security)
    out = tmp_path / "run.h5"
    security = library.Security(
        tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key, require_encryption=True
    )
    options = {"scheduler": address, "security": security}
    with wflow.distributed.solve(**problem(), out=out, **options) as run:
        assert run.attrs["complete"] == 1
    # The same by the flags of a study, where the key may lie in the file of the certificate.
    (tmp_path / "both.pem").write_text(Path(cert).read_text() + Path(key).read_text())
    files = {"tls_ca_file": ca, "tls_cert": str(tmp_path / "both.pem")}
    flags = study.Flags(out=tmp_path / "study", scheduler=address, **files)
    flags.check()
    with study.session("trial", flags) as session:
        session.solve({"run": problem()})
    with wflow.open(tmp_path / "study" / "run.h5") as again:
        check_same(again, serial)


def test_certificates_that_cannot_be_used(client, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pools, "CONNECT_SECONDS", 1)
    address, own = client.scheduler.address, pem(tmp_path, client.security)
    foreign = pools.security_of(*pem(tmp_path, library.Security.temporary()))
    for options, said in (
        ({"scheduler": address}, "--tls-ca-file"),
        ({"scheduler": address, "security": foreign}, "no dask scheduler"),
        ({"scheduler": "tcp://127.0.0.1:9", "security": foreign}, "encryption required"),
        ({"scheduler": client, "security": foreign}, "security is for"),
    ):
        with pytest.raises(wflow.InputError, match=said):
            wflow.distributed.solve(**problem(out=tmp_path / "run.h5"), **options)
    for more, said in (
        ({"scheduler": address, "tls_cert": own[1]}, "--tls-ca-file, --tls-cert"),
        ({"tls_ca_file": own[0], "tls_cert": own[1]}, "--scheduler tls://"),
    ):
        with pytest.raises(wflow.InputError, match=said):
            study.Flags(**more).check()


def dask(*words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "dask", *words, "--no-dashboard"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_a_scheduler_that_dies_leaves_what_resume_completes(tmp_path) -> None:
    task, out = problem(t_final=4.0), tmp_path / "run.h5"
    file = tmp_path / "scheduler.json"
    scheduler = dask("scheduler", "--host", "127.0.0.1:0", "--scheduler-file", str(file))
    worker = dask("worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-nanny")
    try:
        when(lambda: file.exists() and file.read_text().endswith("}"), lambda: None).join(60)
        address = json.loads(file.read_text())["address"]
        folder = tmp_path / "run.h5.parts"
        killer = when(lambda: len(list(folder.glob("*.h5"))) > 1, scheduler.kill)
        with pytest.raises(wflow.WflowError, match=rf"{address} is lost.*--resume"):
            wflow.distributed.solve(**task, out=out, scheduler=address, task_seconds=0.0)
        killer.join()
        worker.wait(60)  # it ends by itself
    finally:
        scheduler.kill()
        worker.kill()
    assert not out.exists() and len(list(folder.glob("*.h5"))) < 7
    with wflow.distributed.solve(**task, out=out, if_exists="resume") as run:
        check_same(run, wflow.solve(**task, out=tmp_path / "serial.h5"))


def test_arguments_that_cannot_be_used(tmp_path, monkeypatch, silent_address) -> None:
    monkeypatch.setattr(pools, "CONNECT_SECONDS", 1)
    out = tmp_path / "run.h5"
    for options, said in (
        ({"scheduler": silent_address}, "no dask scheduler"),
        ({"scheduler": "localhost"}, "missing port"),
        ({"scheduler": silent_address, "workers": 1}, "give one of them"),
        ({"workers": -1}, "workers is -1"),
        ({"workers": 10**6}, "--workers is"),
    ):
        with pytest.raises(wflow.InputError, match=said):
            wflow.distributed.solve(**problem(), out=out, **options)
    assert not list(tmp_path.iterdir())


def test_tasks_take_the_seconds_asked_for_and_cover_every_path_once(tmp_path) -> None:
    def counts(seconds: float, workers: int = 2, later: float = 0.0, **changes: Any) -> list[int]:
        with closing(Run(problem_of_task(problem(**changes)), tmp_path / "run.h5")) as run:
            ranges = cut(run, workers, seconds, later)
        assert ranges[0][0] == 0 and ranges[-1][1] == run.problem.paths
        assert all(one[1] == other[0] for one, other in itertools.pairwise(ranges))
        return [last - first for first, last in ranges]

    # About 0.1 s a path: tasks of 5 s, and at the end short ones, so that no worker waits long.
    long = {"paths": 1000, "t_final": 25.0}
    usual = counts(5.0, **long)
    assert 20 <= max(usual) <= 150 and usual[-1] <= max(usual) / 4
    assert len(counts(5.0, later=1000.0, **long)) < len(usual)  # other runs follow
    assert max(counts(5.0, workers=50, **long)) < max(usual)
    assert counts(0.0) == [1] * 7
    assert max(counts(1e9, later=1e12, paths=50, compute=wflow.Compute(batch=4))) == 4
