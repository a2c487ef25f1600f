"""Flags that make no study: they are named, and nothing is written."""

import shlex

import pytest
from scripts import OF_NETWORKS, call

from wflow import InputError

# Of each study: flags, and a part of the message. Values that the type of a flag refuses are in
# tests/study/test_flags.py; here is what a study checks itself.
REFUSED = {
    "clustering": {"--dt 0.7": "steps"},
    "decay_equation": {
        "--d 4": "meshes",
        "--n 50 20": "expected rising numbers",
        "--n 50": "2 or more",
        "--finer-paths 17": "--finer-paths is 17",
        "--points 15": "--points is 15",
    },
    "edi_defect": {
        "--t-final 0.3 --dt 0.2": "steps",
        "--t-final 0.05 --dt 0.002": "--t-final is 0.05",
    },
    "energy_stable_gpt": {"--heads 3": "heads", "--context 20000": "tokens"},
    "energy_stable_layers": {
        "--only movement": "--only",
        "--preset paper": "--preset is paper",
        "--heads 3 --width 8": "heads",
    },
    "jko": {"--taus 0.3 0.1": "steps"},
    "long_time": {"--t-final 0.5": "snapshot"},
    "mean_field_equation": {"--w2-sphere 10": "--w2-sphere is 10", "--cells 100": "cells"},
    "mean_field_large": {
        "--reference 50 --n 60 70": "--reference is 50",
        "--tolerance 1e-20 --method fast": "tolerance",
        "--dt 0.3": "steps",
    },
    "mean_field_limit": {"--n 50 25": "--n is 50 25", "--d 1": "--d is 1"},
    "metastability": {
        "--pair-n 5": "even",
        "--betas 1 2": "--betas",
        "--growth 1e30": "--start-betas",
        "--equation-betas 1 2 1e9": "--equation-betas",
    },
    "metric": {
        "--largest 100": "--largest is 100",
        "--deltas 0.02 0.013 --dt 0.01": "--deltas 0.013",
        "--t-final 1.0": "--t-final is 1",
    },
    "mnist_vit": {"--only best": "--only", "--data nowhere": "--data"},
    "nanogpt_sizes": {"--only 'XL characters'": "--only", "--temperature -1": "--temperature"},
    "noisy_tokens": {"--ratios 0.5 0.5000000001": "--ratios", "--t-final 0.01": "--t-final"},
    "ou_heads": {
        "--heads": "--heads",
        "--heads 4 4": "count",
        "--dt 0.03": "steps",
        "--t-final nan": "--t-final is nan",
        "--rate inf": "--rate is inf",
        "--seed 9223372036854775808": "--seed is 9223372036854775808: .* below 2",
        "--scheme rk4": "--scheme",
        "--snapshots 0 3": "--save.snapshots 3",
        "--tokens missing.npy": "missing.npy",
        "--resume --overwrite": "give one of the two",
        "--workers 1 --scheduler tcp://localhost:1": "give one of them",
        "--threads 100000": "--compute.threads",
    },
    "phase_transition": {
        "--d 4": "give --no-equation",
        "--beta 7": "above 6",
        "--ratios 0.5 0.8": "above 1.3",
    },
    "point_clouds": {"--only best": "--only", "--preset paper": "ModelNet40"},
    "pontryagin_gpt": {"--only XL": "--only", "--maximised 0": "--maximised is 0"},
    "pontryagin_resnet": {"--only donut": "--only", "--datasets donut donut": "--datasets"},
    "rwpo_benchmarks": {
        "--targets moon": "--targets",
        "--targets moons moons": "each once",
        "--steps 48 --variants 'attracting, all layers'": "--variants attracting, all layers",
    },
    "rwpo_inverse": {
        "--models flow": "--models",
        "--models sparse sparse": "each once",
        "--steps 48 --models sparse-kl ot-flow": "--models sparse-kl with --steps 48",
    },
    "rwpo_operator": {"--only kernel": "--only", "--cells 8": "--cells is 8"},
    "rwpo_sampler": {"--budgets 5 10": "3 or more"},
    "shakespeare_gpt": {
        "--data ''": "--data",
        "--share 0": "--share is 0",
        "--beginning 1951": "--beginning 1951",
    },
    "shakespeare_words": {"--only node": "--only", "--parts 3": "--parts"},
    "spectrum": {"--dims 2": "--dims is 2", "--t-final 5": "--t-final is 5"},
    "stability_tokens": {"--eps 1e-18": "--eps has 1e-18"},
    "stability_weights": {
        "--times 1000": "--times is 1000",
        "--eps 0.1 1e-300": "--eps has 1e-300",
    },
    "trained_heads": {
        "--t-final 1.5": "--t-final is 1.5",
        "--preset paper": "needs --checkpoint",
        "--checkpoint a/x.pt a/y.pt": "different names",
        "--checkpoint nowhere/checkpoint.pt": "does not exist",
        "--scheduler ' '": "scheduler",
    },
}
SIZES = {
    "mean_field_large": "--n 10 20 --reference 30",
    "ou_heads": "--n 12 --paths 3 --t-final 0.2 --dt 0.01 --threads 1 --heads 2",
}
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
    assert not (tmp_path / "out").exists()
