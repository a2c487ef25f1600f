"""Finished runs that `if_exists="resume"` continues to a later end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import xarray as xr
from run_layouts import same_bits, stop_after

import wflow
from wflow.heads import CompoundPoisson, Frozen, OrnsteinUhlenbeck
from wflow.runs.store import RunWriter

Run = Callable[..., xr.Dataset]


def particles(end: float, **how: Any) -> xr.Dataset:
    options: dict[str, Any] = {"heads": 2, "dt": 0.01, "paths": 5, "seed": 4}
    options["save"] = wflow.SaveAt(snapshots=[t for t in (0, 0.05, 0.1, 0.2) if t <= end])
    options["compute"] = wflow.Compute(batch=2)
    x0 = wflow.tokens.cross_polytope(n=6, d=3, spread=0.05, seed=1)
    options |= {"law": OrnsteinUhlenbeck(np.eye(3)), "t_final": end} | how
    return wflow.solve(x0, **options)


def noisy_tokens(end: float, **how: Any) -> xr.Dataset:
    return particles(end, kappa=0.3, **how)


def jumping_heads(end: float, **how: Any) -> xr.Dataset:
    return particles(end, law=CompoundPoisson(OrnsteinUhlenbeck(np.eye(3)), 9.0, 0.5), **how)


def chosen_steps(end: float, **how: Any) -> xr.Dataset:
    how = {"save": wflow.SaveAt(every=1, snapshots=[0, 0.1])} | how
    law = wflow.heads.Oscillating(3, phases="spread")
    return particles(end, law=law, scheme="dopri5", dt=0.05, **how)


def densities(end: float, **how: Any) -> xr.Dataset:
    options: dict[str, Any] = {"heads": 2, "paths": 2, "mesh": wflow.meanfield.Circle(16)}
    save = wflow.SaveAt(snapshots=[0, 0.1])
    options |= {"law": OrnsteinUhlenbeck(np.eye(2)), "dt": 0.01, "save": save} | how
    return wflow.meanfield.solve(lambda x: 1 + 0.3 * x[:, 0], t_final=end, **options)


def samples(end: float, **how: Any) -> xr.Dataset:
    options: dict[str, Any] = {"h": 0.01, "beta": 1.0, "seed": 2}
    return wflow.sampling.ula(
        np.zeros((3, 4, 2)), lambda x: x, steps=round(100 * end), **options | how
    )


def movements(end: float, metric: str = "weighted", **how: Any) -> xr.Dataset:
    options: dict[str, Any] = {"heads": 2, "tau": 0.05, "dt": 0.025, "seed": 3, "path": 1} | how
    x0, law = wflow.tokens.uniform(6, 3, seed=1), OrnsteinUhlenbeck(np.eye(3))
    return wflow.jko.minimizing_movements(x0, law, t_final=end, metric=metric, **options)


def heads_at_rest(end: float, **how: Any) -> xr.Dataset:
    return particles(end, law=Frozen(), heads=np.eye(3)[None], **how)


@pytest.mark.parametrize(
    "solve",
    [particles, noisy_tokens, heads_at_rest, jumping_heads, chosen_steps, densities, samples,
     movements],
)  # fmt: skip
def test_a_run_extended_twice_is_that_of_the_longer_end(tmp_path: Path, solve: Run) -> None:
    out = tmp_path / "run.h5"
    solve(0.1, out=out).close()
    solve(0.15, out=out, if_exists="resume").close()
    with solve(0.2, out=out, if_exists="resume") as longer:
        same_bits(longer, solve(0.2))
        lines = longer.attrs["history"].splitlines()
        assert len(lines) == 3 and all("extended by" in line for line in lines[1:])
        assert longer.attrs["complete"] == 1
    assert wflow.verify(out).passed
    assert [file.name for file in tmp_path.iterdir()] == ["run.h5"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"end": 0.05}, "t_final"), ({"seed": 5}, "seed"), ({"dt": 0.005}, "dt"),
        ({"kappa": 0.1}, "kappa"),
        ({"dt": np.nextafter(0.01, 1)}, r"in dt: 0\.01 there, 0\.010000000000000002 here\)"),
        ({"save": wflow.SaveAt(every=2, snapshots=[0, 0.05, 0.1, 0.2])}, "every"),
        ({"save": wflow.SaveAt(snapshots=[0, 0.03, 0.1, 0.2])}, "snapshot at 0.03"),
    ],
)  # fmt: skip
def test_another_run_is_no_longer_one(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    out = tmp_path / "run.h5"
    particles(0.1, out=out).close()
    before = out.read_bytes()
    with pytest.raises(wflow.InputError, match=named):
        particles(**{"end": 0.2} | change, out=out, if_exists="resume")
    assert out.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def densities_of_chosen_steps(end: float, **how: Any) -> xr.Dataset:
    return densities(end, **{"law": Frozen(), "heads": np.eye(2)[None], "paths": 1} | how)


@pytest.mark.parametrize(
    ("solve", "first", "then", "said"),
    [
        (chosen_steps, {"save": wflow.SaveAt(every=4, snapshots=[0])}, {}, "cannot be extended"),
        (chosen_steps, {"save": wflow.SaveAt(every=2, snapshots=[0, 0.05, 0.1])},
         {"save": wflow.SaveAt(every=2, snapshots=[0, 0.1, 0.4])}, r"0\.05"),
        (densities_of_chosen_steps, {}, {"dt": None}, "evaluations"),
    ],
)  # fmt: skip
def test_chosen_steps_that_would_be_others_are_refused(tmp_path, solve, first, then, said) -> None:
    out = tmp_path / "run.h5"
    solve(0.1, out=out, **first).close()
    with pytest.raises(wflow.InputError, match=said):
        solve(1.0, out=out, if_exists="resume", **first | then)
    assert [file.name for file in tmp_path.iterdir()] == ["run.h5"]


OFTEN: dict[str, Any] = {"compute": wflow.Compute(batch=2, checkpoint_every=0.0)}
AT_ONCE = {"checkpoint_every": 0.0}


@pytest.mark.parametrize(
    ("solve", "often", "count"),
    [(particles, OFTEN, 0), (jumping_heads, OFTEN, 14), (samples, AT_ONCE, 3),
     (movements, AT_ONCE, 1), (densities, {"compute": wflow.Compute(**AT_ONCE)}, 3)],
)  # fmt: skip
def test_an_extension_that_was_killed_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solve: Run, often: dict[str, Any], count: int
) -> None:
    out = tmp_path / "run.h5"
    solve(0.1, out=out).close()
    before = out.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_after(patch, count)
        solve(0.2, out=out, if_exists="resume", **often)
    assert out.read_bytes() == before
    with pytest.raises(wflow.RunFileError, match=r"t_final|steps"):
        solve(0.3, out=out, if_exists="resume")
    with solve(0.2, out=out, if_exists="resume") as longer:
        same_bits(longer, solve(0.2))
        lines = longer.attrs["history"].splitlines()
        assert "extended by" in lines[1] and "resumed by" in lines[2]
    assert wflow.verify(out).passed
    assert [file.name for file in tmp_path.iterdir()] == ["run.h5"]


def test_an_extension_without_the_run_that_it_extends_is_refused(tmp_path, monkeypatch) -> None:
    out = tmp_path / "run.h5"
    particles(0.1, out=out).close()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_after(patch, 2)
        particles(0.2, out=out, if_exists="resume", **OFTEN)
    out.unlink()
    with pytest.raises(wflow.RunFileError, match=str(out.name)):
        particles(0.2, out=out, if_exists="resume")
    particles(0.2, out=out, if_exists="overwrite").close()
    assert wflow.verify(out).passed


def test_the_command_of_the_shorter_run_opens_it_while_its_extension_is_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run.h5"
    particles(0.1, out=out).close()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunWriter, "finish", Mock(side_effect=KeyboardInterrupt))
        particles(0.2, out=out, if_exists="resume")
    with particles(0.1, out=out, if_exists="resume") as shorter:
        same_bits(shorter, particles(0.1))
    with particles(0.2, out=out, if_exists="resume") as longer:
        same_bits(longer, particles(0.2))
