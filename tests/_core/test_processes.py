"""Processes that start without a main guard, or die."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import wflow
from wflow import InputError, study
from wflow._core.processes import pool, starting_processes

ROOT = Path(__file__).resolve().parents[2]

LIGHT = """
from wflow._core.processes import pool, starting_processes
with starting_processes("computed", "Try again"):
    pool(2, int).submit(int, 3).result()
"""
PATHS = """
import sys
import numpy as np, wflow
wflow.distributed.solve(
    wflow.tokens.uniform(5, 3, seed=0), wflow.heads.Frozen(), heads=np.eye(3)[None], t_final=0.1,
    dt=0.05, out=sys.argv[1] + "/run.h5", workers=2,
)
"""
TEXT = """
import json, sys
from pathlib import Path
from tokenizers.pre_tokenizers import ByteLevel
from wflow.nets.data import prepare_text
letters = {token: k for k, token in enumerate([*sorted(ByteLevel.alphabet()), "<|endoftext|>"])}
pairs = json.dumps(letters).encode(), b"#version: 0.2\\n"
source = Path(sys.argv[1], "texts.txt")
if not source.exists():
    source.write_text("<|endoftext|>".join(["an owl " * 1000] * 400))
prepare_text(source, sys.argv[1] + "/out", tokenizer=pairs, workers=2)
"""
TRAINING = """
import sys
import torch
from wflow import nets
net = nets.ControlledResNet(2, layers=4, t_final=1.0, scheme="euler", width=4)
x = torch.rand(20, 2)
config = nets.train.TrainConfig(
    steps=2, batch=20, optimizer=nets.control.MSA(workers=2, iterations=2), device="cpu"
)
objective = nets.train.objective(torch.nn.functional.cross_entropy)
nets.train.train(net, objective, lambda step: (x, x.argmax(1)), config, out=sys.argv[1] + "/out")
"""


def run(code: str, folder: Path) -> subprocess.Popen[str]:
    """Return a script in a session of its own, by which its processes are known."""
    file = folder / "script.py"
    file.write_text(code)
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(file), str(folder)],
        stderr=subprocess.PIPE, text=True, env=env, start_new_session=True,
    )  # fmt: skip


def check_two_lines(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert said.count("\n") == 2 and "if __name__ ==" in said.splitlines()[1]
    deadline = time.monotonic() + 10
    while True:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return  # no process of the session is left
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_script_without_main_guard_ends_with_two_lines(tmp_path) -> None:
    check_two_lines(run(LIGHT, tmp_path))


@pytest.mark.parametrize("code", [PATHS, TEXT, TRAINING], ids=["paths", "text", "training"])
def test_whatever_starts_processes_needs_the_main_guard(code, tmp_path, only_long) -> None:
    pytest.importorskip("distributed" if code == PATHS else "torch")
    pytest.importorskip("cryptography" if code == PATHS else "tokenizers")
    check_two_lines(run(code, tmp_path))


@pytest.fixture
def in_a_started_process(monkeypatch) -> None:
    """This process was started, by others, and imports the script that started it."""
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)


def test_paths_in_a_process_that_imports_the_script(in_a_started_process, tmp_path) -> None:
    options = {"heads": np.eye(3)[None], "t_final": 0.1, "dt": 0.05, "out": tmp_path / "run.h5"}
    given = np.eye(3), wflow.heads.Frozen()
    with pytest.raises(InputError, match=r"__main__"):
        wflow.distributed.solve(*given, workers=1, **options)
    with (
        pytest.raises(InputError, match="__main__"),
        study.session("trial", study.Flags(out=tmp_path / "study", workers=1)),
    ):
        pytest.fail("the block has begun")
    assert not list(tmp_path.iterdir())
    wflow.distributed.solve(*given, **options).close()  # starts none


def test_networks_in_a_process_that_imports_the_script(in_a_started_process, tmp_path) -> None:
    torch = pytest.importorskip("torch")
    from wflow import nets

    with pytest.raises(InputError, match="__main__"):
        nets.data.prepare_text(tmp_path / "nowhere", tmp_path / "out", workers=2)
    net = nets.ControlledResNet(2, layers=2, t_final=1.0, scheme="euler", width=2)
    x, method = torch.rand(4, 2), nets.control.MSA(workers=2, iterations=1)
    config = nets.train.TrainConfig(steps=1, batch=4, optimizer=method, device="cpu")
    objective = nets.train.objective(torch.nn.functional.cross_entropy)
    with pytest.raises(InputError, match="__main__"):
        nets.train.train(net, objective, lambda _: (x, x.argmax(1)), config, out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_process_that_dies_is_an_error_that_says_what_to_do() -> None:
    """And it leaves the environment as it was; until then Ctrl-C is for this process alone."""
    before = dict(os.environ)
    with (
        pytest.raises(InputError, match=r"that computed was killed.*Try again") as caught,
        starting_processes("computed", "Try again"),
        pool(1, int) as processes,
    ):
        assert processes.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN
        processes.submit(os._exit, 1).result()
    assert not hasattr(caught.value, "without_traceback")
    assert dict(os.environ) == before
