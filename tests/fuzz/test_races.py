"""Processes that start the same run at the same time: one computes it, nothing is lost."""

import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wflow
from wflow.analysis.verify import verify
from wflow.distributed.parts import Run, compute
from wflow.heads import OrnsteinUhlenbeck
from wflow.particles.problem import problem_of_task

Outcome = tuple[str, str]


def task(seed: int, steps: int) -> dict[str, Any]:
    return {
        "x0": wflow.tokens.cross_polytope(n=6, d=3, spread=0.05, seed=1),
        "law": OrnsteinUhlenbeck(np.eye(3)), "heads": 2, "t_final": 0.01 * steps, "dt": 0.01,
        "paths": 2, "seed": seed, "compute": wflow.Compute(checkpoint_every=0.0),
    }  # fmt: skip


def serve(orders: Any, answers: Any, barrier: Any) -> None:
    """Compute runs on request, each from the moment at which all processes are ready."""
    while (order := orders.get()) is not None:
        out, how, seed, steps, wait = order
        barrier.wait()
        if wait:
            time.sleep(wait)
        try:
            wflow.solve(**task(seed, steps), out=out, **how).close()
            answers.put(("whole", ""))
        except wflow.WflowError as error:
            answers.put((type(error).__name__, str(error)))
        except BaseException as error:
            answers.put(("crash", repr(error)))


@pytest.fixture(scope="module")
def race() -> Iterator[Callable[..., list[Outcome]]]:
    """Yield `race(out, hows, seeds, steps, waits)`: what became of the runs of two processes."""
    context = multiprocessing.get_context("spawn")
    answers, barrier = context.Queue(), context.Barrier(2)
    orders = [context.Queue() for _ in range(2)]
    servers = [
        context.Process(target=serve, args=(queue, answers, barrier), daemon=True)
        for queue in orders
    ]
    for server in servers:
        server.start()

    def run(out: Path, hows: list[dict], seeds: list[int], steps: int, waits: list[float]):
        for queue, how, seed, wait in zip(orders, hows, seeds, waits, strict=True):
            queue.put((out, how, seed, steps, wait))
        return [answers.get(timeout=300) for _ in servers]

    yield run
    for queue in orders:
        queue.put(None)
    for server in servers:
        server.join(30)
        server.kill()


@pytest.mark.parametrize("how", ["error", "overwrite", "resume"])
def test_of_two_simultaneous_starts_one_succeeds_and_the_other_learns_why(
    race, tmp_path: Path, cases: Callable[[int, int], int], how: str
) -> None:
    rng = random.Random(how)
    for k in range(cases(1, 14)):
        out, steps = tmp_path / f"run{k}.h5", rng.choice([1, 5, 25])
        seeds = [1, 1] if how == "resume" else [1, 2]
        waits = [0.0, rng.choice([0.0, 0.002, 0.02])]
        outcomes = race(out, [{"if_exists": how}] * 2, seeds, steps, waits)
        words = [word for word, _ in outcomes]
        assert "whole" in words and set(words) <= {"whole", "RunFileError", "InUse"}, outcomes
        for word, message in outcomes:
            if word != "whole":
                known = "being written by process", "there already", "complete: nothing to resume"
                assert any(text in message for text in known), message
        assert verify(out).passed
        with wflow.open(out) as ds:
            found = ds.load()
        again = [wflow.solve(**task(seed, steps)) for seed in dict.fromkeys(seeds)]
        assert any(found["energy"].equals(run["energy"]) for run in again)
        assert not found["initial_tokens"].isnull().any()
    assert all(name.endswith(".h5") for name in os.listdir(tmp_path))


def test_a_process_that_is_killed_leaves_a_lock_that_blocks_nobody(tmp_path: Path) -> None:
    out = tmp_path / "run.h5"
    (tmp_path / "run.h5.lock").write_text('{"wflow": "lock", "host": "far", "pid": 1}')
    wflow.solve(**task(1, 2), out=out).close()
    assert os.listdir(tmp_path) == ["run.h5"]


def test_a_run_in_parts_replaces_no_file_that_came_first(tmp_path: Path) -> None:
    out, other = tmp_path / "run.h5", tmp_path / "other.h5"
    wflow.solve(**task(1, 2), out=out).close()
    run = Run(problem_of_task(task(2, 2)), other)
    every = (0, run.problem.paths)
    compute(run.part(every))
    run.done.append(every)
    shutil.copy(out, other)
    with pytest.raises(wflow.RunFileError, match=r"other\.h5"):
        run.join()
    run.close()
    assert out.read_bytes() == other.read_bytes()
    other.unlink()
    wflow.distributed.solve(**task(2, 2), out=other, if_exists="resume").close()
    assert verify(other).passed
