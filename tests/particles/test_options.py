"""The options of `wflow.solve`: how they are spelled, and kept in run files."""

import json
import re

import numpy as np
import pytest
from run_layouts import same_bits

import wflow
from wflow import Compute, SaveAt
from wflow.heads import OrnsteinUhlenbeck

LAW = OrnsteinUhlenbeck(np.eye(3))
RUN = {"heads": 2, "t_final": 0.2, "dt": 0.05, "paths": 2, "seed": 1}
X = wflow.tokens.cross_polytope(n=6, d=3, spread=0.05, seed=42)


# ---- the signature


SOLVE = "wflow.solve([[1.0, 0.0]], Frozen(), heads=1, t_final=1.0, dt=0.5, {})"
JKO = "wflow.jko.minimizing_movements([[1.0, 0.0]], Frozen(), heads=1, t_final=1.0, tau=0.5, {})"
VELOCITY = "wflow.velocity([[1.0, 0.0]], [[[1.0, 0.0], [0.0, 1.0]]], {})"
CALLS = [
    (SOLVE, 'flow="softmax", if_exists="resume", out="run.h5", scheme=wflow.Dopri5()', True),
    (SOLVE, "save=wflow.SaveAt(every=5, snapshots=[0.0, 1.0], paths=range(2))", True),
    (SOLVE, 'flow="sofmax"', False),
    (SOLVE, 'scheme="rk5"', False),
    (SOLVE, 'compute=wflow.Compute(dtype="float16")', False),
    (SOLVE, "save=wflow.Compute()", False),
    (JKO, "metric=wflow.transport.W2(), scheme=wflow.Dopri5()", True),
    (JKO, 'metric="w3"', False),
    (VELOCITY, 'flow="effective", direction="ascent", method="fast"', True),
    (VELOCITY, 'direction="up"', False),
]  # each with whether it is taken


def test_a_type_checker_refuses_names_that_are_misspelled(tmp_path, only_long):
    api = pytest.importorskip("mypy.api")
    script = tmp_path / "script.py"
    lines = ["import wflow", "from wflow.heads import Frozen", ""]
    script.write_text("\n".join([*lines, *(call.format(option) for call, option, _ in CALLS), ""]))
    cache = f"--cache-dir={tmp_path / 'cache'}"
    said, _, _ = api.run(
        ["--follow-imports=silent", "--ignore-missing-imports", cache, str(script)]
    )
    wrong = {int(number) for number in re.findall(r"script\.py:(\d+): error", said)}
    first = len(lines) + 1
    assert wrong == {first + k for k, (_, _, taken) in enumerate(CALLS) if not taken}, said


# ---- run files


SAVE = SaveAt(every=2, snapshots=[0.0, 0.1, 0.2], paths=[1], heads=True)


def test_a_configuration_holds_the_options_as_objects(tmp_path):
    compute = Compute(method="exact", dtype="float32", threads=1, batch=1, checkpoint_every=3.0)
    with wflow.solve(X, LAW, **RUN, save=SAVE, compute=compute, out=tmp_path / "run.h5") as run:
        config = json.loads(run.attrs["config"])
    assert config["save"] == {
        "every": 2, "snapshots": [0.0, 0.1, 0.2], "paths": [1], "heads": True, "budget": True,
    }  # fmt: skip
    assert config["compute"] == {"dtype": "float32"}  # threads and batches decide on no bit


def test_a_rerun_keeps_the_options_that_are_not_changed(tmp_path):
    out = tmp_path / "run.h5"
    run = wflow.solve(X, LAW, **RUN, save=SAVE, compute=Compute(dtype="float32"), out=out)
    same_bits(wflow.rerun(out), run)
    other = wflow.rerun(out, compute=Compute(threads=1))
    assert other["tokens"].dtype == run["tokens"].dtype
    assert json.loads(other.attrs["config"])["compute"] == {"dtype": "float64"}
    assert json.loads(other.attrs["config"])["save"]["every"] == 2
    run.close()
