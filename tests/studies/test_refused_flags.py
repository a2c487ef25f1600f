"""Flags that make no study: they are named, and nothing is written."""

import shlex

import pytest
from scripts import OF_NETWORKS, call

from wflow import InputError

# Of each study: flags, and a part of the message.
REFUSED = {
    "clustering": {
        "--betas 1 1": "--betas",
        "--betas -1": "--betas is -1",
        "--dims 1": "--dims",
        "--scale 4": "--scale",
        "--dt 0.7": "steps",
    },
    "decay_equation": {
        "--d 4": "meshes",
        "--n 50 20": "expected rising numbers",
        "--n 50": "2 or more",
        "--finer-paths 17": "--finer-paths is 17",
        "--points 15": "--points is 15",
        "--preset smoke --dt 0.2": "above the bound",
    },
    "edi_defect": {
        "--heads 1": "--heads is 1",
        "--t-final 0.3 --dt 0.2": "steps",
        "--t-final 0.05 --dt 0.002": "--t-final is 0.05",
    },
    "equilibria": {
        "--beta 0": "--beta is 0",
        "--sizes 4 4": "--sizes",
    },
    "jko": {
        "--taus 0.1 0.1": "--taus",
        "--taus 0.3 0.1": "steps",
        "--heads 1": "--heads is 1",
        "--sigma2 0": "--sigma2 is 0",
        "--taus -0.5 0.5": "--taus",
    },
    "long_time": {
        "--paths 1": "--paths is 1",
        "--sigma2 0": "--sigma2 is 0",
        "--noisy-heads 4 4": "--noisy-heads",
        "--t-final 0.5": "snapshot",
    },
    "mean_field_equation": {
        "--d 5": "meshes",
        "--n 10": "2 or more",
        "--w2-sphere 10": "--w2-sphere is 10",
        "--cells 100": "cells",
    },
    "mean_field_large": {
        "--n 100 50": "--n is 100 50",
        "--reference 50 --n 60 70": "--reference is 50",
        "--tolerance 1e-20 --method fast": "tolerance",
        "--dt 0.3": "steps",
    },
    "mean_field_limit": {
        "--n 50": "--n is 50",
        "--n 50 25": "--n is 50 25",
        "--d 1": "--d is 1",
        "--paths 1": "--paths is 1",
        "--heads 0": "--heads is 0",
        "--sigma2 -1": "--sigma2 is -1",
    },
    "metastability": {
        "--angle 4": "--angle is 4",
        "--pair-n 5": "even",
        "--betas 1 2": "--betas",
        "--growth 1e30": "--start-betas",
        "--equation-betas 1 2 1e9": "--equation-betas",
    },
    "metric": {
        "--largest 100": "--largest is 100",
        "--deltas 0.01": "--deltas",
        "--deltas 0.02 0.013 --dt 0.01": "--deltas 0.013",
        "--t-final 1.0": "--t-final is 1",
        "--paths 1": "--paths is 1",
        "--times -1": "--times",
    },
    "mnist_vit": {
        "--only best": "--only",
        "--epochs 0": "--epochs is 0",
        "--digits 0": "--digits is 0",
        "--lam -1": "--lam is -1",
        "--data nowhere": "--data",
    },
    "nanogpt_sizes": {
        "--only 'XL characters'": "--only",
        "--epochs 0": "--epochs is 0",
        "--rate 0": "--rate is 0",
        "--temperature -1": "--temperature is -1",
        "--seeds 0": "--seeds is 0",
    },
    "noisy_tokens": {
        "--ratios 0": "--ratios",
        "--ratios 1 1": "--ratios",
        "--ratios 0.5 0.5000000001": "--ratios",
        "--t-final 0.01": "--t-final",
    },
    "ou_heads": {
        "--heads 0": "--heads is 0",
        "--heads": "--heads",
        "--heads 4 4": "count",
        "--n 0": "--n is 0",
        "--d 1": "--d is 1",
        "--paths 0": "--paths is 0",
        "--dt -0.01": "--dt is -0.01",
        "--dt 0.03": "steps",
        "--t-final nan": "--t-final is nan",
        "--sigma2 -1": "--sigma2 is -1",
        "--sigma2 nan": "--sigma2 is nan",
        "--rate 0": "--rate",
        "--rate inf": "--rate is inf",
        "--seed -1": "--seed is -1",
        "--seed 9223372036854775808": "--seed is 9223372036854775808: .* below 2",
        "--scheme rk4": "--scheme",
        "--snapshots 0 3": "--save.snapshots 3",
        "--tokens missing.npy": "missing.npy",
        "--resume --overwrite": "give one of the two",
        "--workers 1 --scheduler tcp://localhost:1": "give one of them",
        "--threads 0": "--compute.threads is 0",
        "--threads 100000": "--compute.threads",
    },
    "phase_transition": {
        "--d 1": "--d is 1",
        "--d 4": "give --no-equation",
        "--beta 7": "above 6",
        "--n 3": "--n is 3",
        "--ratios 0.5 0.8": "above 1.3",
    },
    "point_clouds": {
        "--only best": "--only",
        "--points 0": "--points is 0",
        "--rate -1": "--rate",
        "--preset paper": "ModelNet40",
    },
    "pontryagin_gpt": {
        "--only XL": "--only",
        "--iterations 0": "--iterations is 0",
        "--maximised 0": "--maximised is 0",
        "--rate 0": "--rate is 0",
        "--rho 0": "--rho is 0",
        "--seeds 0": "--seeds is 0",
    },
    "pontryagin_resnet": {
        "--only donut": "--only",
        "--datasets donut donut": "--datasets",
        "--width 1": "--width is 1",
        "--layers 0": "--layers is 0",
        "--maximisations 0": "--maximisations is 0",
        "--rho 0": "--rho is 0",
        "--adam -1": "--adam is -1",
        "--seeds 0": "--seeds is 0",
    },
    "rwpo_benchmarks": {
        "--targets moon": "--targets",
        "--targets moons moons": "each once",
        "--iterations 0": "--iterations is 0",
        "--only best": "--only",
    },
    "rwpo_inverse": {
        "--models flow": "--models",
        "--models sparse sparse": "each once",
    },
    "rwpo_operator": {
        "--only kernel": "--only",
        "--cells 8": "--cells is 8",
    },
    "rwpo_sampler": {
        "--threads 0": "--threads is 0",
        "--budgets 5 10": "3 or more",
    },
    "shakespeare_gpt": {
        "--data ''": "--data",
        "--steps 0": "--steps is 0",
        "--share 0": "--share is 0",
        "--rate 0": "--rate is 0",
        "--seeds 0": "--seeds is 0",
        "--resume --overwrite": "give one of the two",
    },
    "shakespeare_words": {
        "--only node": "--only",
        "--iterations 0": "--iterations is 0",
        "--share 2": "--share is 2",
        "--rate 0": "--rate is 0",
    },
    "spectrum": {
        "--dims 2": "--dims is 2",
        "--heads 2 2": "--heads",
        "--starts 1": "--starts is 1",
        "--scale 4": "--scale is 4",
        "--rates 1 0": "--rates is 0",
        "--t-final 5": "--t-final is 5",
    },
    "stability_tokens": {
        "--sizes 1": "--sizes",
        "--eps -1": "--eps is -1",
        "--eps 1e-18": "--eps has 1e-18",
    },
    "stability_weights": {
        "--heads 4": "--heads",
        "--times 1000": "--times is 1000",
        "--eps 0.1 1e-300": "--eps has 1e-300",
        "--law-heads 1": "--law-heads is 1",
    },
    "trained_heads": {
        "--t-final 1.5": "--t-final is 1.5",
        "--dt 2": "--dt is 2",
        "--scale 4": "--scale is 4",
        "--tokens 1": "--tokens is 1",
        "--preset paper": "needs --checkpoint",
        "--checkpoint a/x.pt a/y.pt": "different names",
        "--checkpoint nowhere/checkpoint.pt": "does not exist",
        "--data nowhere": "--data",
        "--scheduler nowhere": "--scheduler",
        "--scheduler ' '": "scheduler",
    },
}
SIZES = {
    "mean_field_large": "--n 10 20 --reference 30",
    "ou_heads": "--n 12 --paths 3 --t-final 0.2 --dt 0.01 --threads 1 --heads 2",
}
LATE = [("decay_equation", "--preset smoke --dt 0.2")]  # found when the runs on cells begin
CASES = [(name, flags) for name, refused in REFUSED.items() for flags in refused]


@pytest.mark.parametrize(("name", "flags"), CASES)
def test_flags_that_make_no_study_are_refused_before_anything_is_written(
    name, flags, tmp_path, monkeypatch
):
    given = shlex.split(flags)
    if "--scheduler" in given:
        pytest.importorskip("distributed", reason="the extra dask is not installed")
    if name in OF_NETWORKS:
        pytest.importorskip("torch")
        given = ["--preset", "smoke", *given]
    given = [*SIZES.get(name, "").split(), *given]
    monkeypatch.delenv("WFLOW_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(InputError, match=REFUSED[name][flags]):
        call(name, monkeypatch, *given, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists() or (name, flags) in LATE
