"""Files of densities: run again to the same bits, and verified, whole and damaged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from mean_field_references import CIRCLE_HEADS, start
from run_layouts import same_bits, spoiled

import wflow
from wflow import meanfield
from wflow.cli import main
from wflow.heads import Frozen, HeadLaw, OrnsteinUhlenbeck, Oscillating
from wflow.meanfield import Circle, Fourier, Harmonics, Sphere

POINTS = np.random.default_rng(0).normal(size=(60, 3))
STARTS = np.random.default_rng(1).random((2, 16)) + 0.5
RUNS: dict[str, dict[str, Any]] = {
    "circle": {"mesh": Circle(16), "law": Oscillating(2), "kappa": 0.1, "t_final": 0.7},
    "reconstructed": {"mesh": Circle(64), "flow": "effective", "direction": "ascent"},
    "implicit": {"mesh": Sphere(42), "kappa": 0.1, "scheme": "imex", "dt": 0.01},
    "points": {"mesh": Sphere(POINTS), "kappa": 0.05, "flow": "unnormalised"},
    "fourier": {"mesh": Fourier(16), "heads": CIRCLE_HEADS, "kappa": 0.1},
    "harmonics": {"mesh": Harmonics(8), "heads": np.eye(3)[None], "kappa": 0.1, "dt": 0.01},
    "noisy": {
        "mesh": Circle(16), "law": OrnsteinUhlenbeck(np.eye(2)), "dt": 0.005, "kappa": 0.1,
        "paths": 3,
    },
    "starts": {"mesh": Circle(16), "density": STARTS, "paths": 2, "kappa": 0.05},
    "without an energy": {"mesh": Circle(16), "heads": CIRCLE_HEADS, "budget": False},
}  # fmt: skip


def solved(file: Path, name: str, **changes: Any) -> Any:
    given: dict[str, Any] = {"density": start, "law": Frozen(), "heads": 2, "t_final": 0.1}
    given |= RUNS[name] | changes
    paths = tuple(range(given.get("paths", 1)))
    t = given["t_final"]
    given["save"] = wflow.SaveAt(
        snapshots=[0.0, 0.5 * t, t], heads=True, paths=paths, budget=given.pop("budget", None)
    )
    with meanfield.solve(out=file, **given) as run:
        return run.load()


def checks(path: Path) -> dict[str, Any]:
    return {check.name: check for check in wflow.verify(path).checks}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("densities")
    for name in ("circle", "noisy", "fourier"):
        solved(folder / f"{name}.h5", name)
    return {name: folder / f"{name}.h5" for name in ("circle", "noisy", "fourier")}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_run_again_to_the_same_bits_and_passes(tmp_path, name, cases):
    if name in ("reconstructed", "implicit", "fourier") and not cases(0, 1):
        pytest.skip("with --long")
    run = solved(tmp_path / "run.h5", name)
    again = wflow.rerun(tmp_path / "run.h5", out=tmp_path / "again.h5")
    assert again.attrs["config"] == run.attrs["config"]
    same_bits(again, run)
    assert "run.h5 run again by" in again.attrs["history"]
    again.close()
    report = wflow.verify(tmp_path / "again.h5")
    made = [check.name for check in report.checks if check.passed]
    assert report.passed, str(report)
    assert "the first recorded step follows from the configuration" in made
    assert "the initial densities and heads are those of the configuration" in made
    said = str(report)
    assert "token" not in said.replace("noise of tokens", ""), said
    at_the_start = "energy at time 0 follows from the initial density and heads"
    assert (at_the_start in made) == ("without" not in name)


def test_a_run_is_run_again_with_other_arguments(tmp_path: Path) -> None:
    file = tmp_path / "run.h5"
    run = solved(file, "circle")
    coarse = wflow.rerun(file, t_final=0.35, save=wflow.SaveAt())
    assert np.array_equal(coarse.time, np.arange(101) * (0.35 / 100))
    steps = wflow.rerun(file, dt=0.007)
    assert "steps" not in json.loads(steps.attrs["config"])
    assert np.abs(steps.density[0, -1] - run.density[0, -1]).max() < 1e-3
    finer = wflow.rerun(file, mesh=Circle(32), density=start)
    assert finer.sizes["cell"] == 32
    same = wflow.rerun(file, density=start)
    assert np.array_equal(same.density, run.density)
    with pytest.raises(wflow.InputError, match="density"):
        wflow.rerun(file, mesh=Circle(32))
    with pytest.raises(TypeError, match="x0"):
        wflow.rerun(file, x0=np.eye(2))


class Own(HeadLaw):
    """Heads that stay."""


class Mine(meanfield.Mesh):
    """A mesh of a class of one's own."""


def test_what_a_file_does_not_hold_is_given_again(tmp_path: Path) -> None:
    file = tmp_path / "run.h5"
    arcs = Circle(16)
    mesh = Mine(arcs.centres, arcs.areas, arcs.faces, arcs.lengths, arcs.distances)
    run = solved(file, "circle", mesh=mesh, law=Own())
    with pytest.raises(wflow.InputError, match="law"):
        wflow.rerun(file)
    with pytest.raises(wflow.InputError, match="mesh="):
        wflow.rerun(file, law=Own())
    again = wflow.rerun(file, law=Own(), mesh=mesh)
    assert np.abs(again.density - run.density).max() < 1e-14
    found = checks(file)
    assert found["the mesh is that of the configuration"].passed is None
    assert found["the first recorded step follows from the configuration"].passed is None


@pytest.mark.parametrize(
    ("mesh", "says"),
    [
        ({"kind": "Circle", "cells": 18}, "cells"),
        ({"kind": "Fourier", "degree": 10**12}, "made again"),
    ],
)
def test_a_mesh_that_is_not_that_of_the_file_is_refused(files, tmp_path, mesh, says):
    path = spoiled(files["circle"], tmp_path, configured(mesh=mesh))
    with pytest.raises(wflow.RunFileError, match=says):
        wflow.rerun(path)
    assert checks(path)["the mesh is that of the configuration"].passed is False


def scaled(name: str, factor: float, at: Any = ()) -> Callable[[h5py.File], None]:
    def act(file: h5py.File) -> None:
        values = file[name][()]
        values[at] *= factor
        file[name][...] = values

    return act


def moved(name: str, by: float, at: Any) -> Callable[[h5py.File], None]:
    """Return mass from a cell to the next: the mass stays."""

    def act(file: h5py.File) -> None:
        values = file[name][()]
        values[(*at, 3)] -= by
        values[(*at, 4)] += by
        file[name][...] = values

    return act


def configured(**changes: Any) -> Callable[[h5py.File], None]:
    def act(file: h5py.File) -> None:
        config = json.loads(file.attrs["config"])
        file.attrs["config"] = json.dumps(config | changes)

    return act


ENERGY = "energy follows from the stored densities and heads"
ENERGY_AT_0 = "energy at time 0 follows from the"
START = "the initial densities and heads are those of the configuration"
DAMAGE = [
    ("noisy", scaled("density", 1.001, (1, -1)), "every density has unit mass"),
    ("noisy", moved("density", 10.0, (2, 1)), "no density is negative"),
    ("noisy", moved("density_mean", 1e-6, (1,)), "density_mean is the mean of the densities"),
    ("noisy", moved("density", 1e-6, (1, 1)), "entropy follows from the stored densities"),
    ("noisy", moved("density", 1e-6, (1, 1)), ENERGY),
    ("noisy", scaled("heads", 1.001, (1, 2)), ENERGY),
    ("noisy", scaled("entropy", 1 + 1e-8, (2, 3)), "free_energy is that of energy and entropy"),
    ("noisy", moved("initial_density", 1e-6, ()), START),
    ("noisy", moved("initial_density", 1e-6, ()), f"{ENERGY_AT_0} initial density and heads"),
    ("noisy", scaled("areas", 1.01), "the mesh is that of the configuration"),
    ("noisy", lambda file: file.pop("centres"), "the mesh is stored"),
    ("circle", scaled("dissipated", 1.2), "running integrals are the sums of their rates"),
    ("circle", scaled("dissipated", 1.2), "edi_residual is what its terms leave"),
    ("circle", configured(kappa=0.2), "the first recorded step follows from the configuration"),
    ("fourier", scaled("spectral_tail", 1e12, (0, 5)), "every density is resolved by its modes"),
    ("fourier", moved("density", 0.01, (0, 1)), "spectral_tail follows from the stored densities"),
]


@pytest.mark.parametrize(("run", "act", "line"), DAMAGE)
def test_every_damage_fails_its_own_line(files, tmp_path, run, act, line):
    found = checks(spoiled(files[run], tmp_path, act))
    assert found[line].passed is False, "\n".join(map(str, found.values()))


def test_a_balance_without_the_dissipation_fails(files: dict[str, Path], tmp_path: Path) -> None:
    def act(file: h5py.File) -> None:
        file["edi_residual"][...] -= file["dissipated"][...]
        file["dissipated"][...] = 0.0

    check = checks(spoiled(files["circle"], tmp_path, act))["the energy balance closes"]
    assert check.passed is False and "errors of cells and steps" in check.note


def test_the_commands_know_files_of_densities(files, tmp_path, capsys):
    file = str(files["circle"])
    assert main(["verify", file]) == 0
    assert "every density has unit mass" in capsys.readouterr().out
    assert main(["info", file]) == 0
    said = capsys.readouterr().out
    assert "free_energy(T)" in said and "entropy(T)" in said and "numerical_diffusion" in said
    assert main(["plot", file, "--out", str(tmp_path)]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert {"circle_free_energy.png", "circle_density_mean.png"} <= names
    assert main(["report", file, "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "every density has unit mass" in page and "initial density" in page
    assert ">Free energy</h" in page
