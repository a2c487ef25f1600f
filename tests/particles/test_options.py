"""The options of `wflow.solve`: how they are spelled, checked, and kept in run files."""

import dataclasses
import json
import re

import h5py
import numpy as np
import pytest
from run_layouts import same_bits, spoiled

import wflow
from wflow import Compute, InputError, SaveAt
from wflow.analysis.verify import verify
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


def test_a_type_checker_refuses_names_that_are_misspelled(tmp_path, cases):
    if not cases(0, 1):
        pytest.skip("with --long: mypy reads the whole package")
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


FLAT = {
    "save": {
        "every": "record_every", "snapshots": "snapshots", "paths": "snapshot_paths",
        "heads": "save_heads", "budget": "ledger",
    },
    "compute": {name: name for name in ("dtype", "method", "tolerance", "backend", "device")},
}  # fmt: skip


def flat(config):
    """A configuration as version 0.2 wrote it before its options were objects."""
    found = {key: value for key, value in config.items() if key not in FLAT}
    return found | {
        FLAT[group][key]: value for group in FLAT for key, value in config[group].items()
    }


def flattened(file):
    file.attrs["config"] = json.dumps(flat(json.loads(file.attrs["config"])))


def test_a_file_with_a_flat_configuration_opens_verifies_and_runs_again(tmp_path):
    out = tmp_path / "run.h5"
    with wflow.solve(X, LAW, **RUN, save=SAVE, out=out) as run:
        expected = run.load()
    old = spoiled(out, tmp_path, flattened)
    with h5py.File(old) as file:
        assert json.loads(file.attrs["config"])["record_every"] == 2
    with wflow.open(old) as opened, wflow.rerun(old) as again:
        assert opened.attrs["config"] == expected.attrs["config"]
        same_bits(again, expected)
    report = verify(old)
    assert report.passed, str(report)
    with wflow.solve(X, LAW, **RUN, save=SAVE, out=old, if_exists="resume") as found:
        same_bits(found, expected)
    with pytest.raises(InputError, match=r"save\.every"):
        save = dataclasses.replace(SAVE, every=1)
        wflow.solve(X, LAW, **RUN, save=save, out=old, if_exists="resume")
