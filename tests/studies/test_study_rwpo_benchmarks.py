"""The study of flows on densities in the plane: end to end and small, and what it decides."""

import json

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")

from scripts import call, script  # noqa: E402

from wflow.study.networks import Results  # noqa: E402

NAME = "rwpo_benchmarks"


def test_trials_choose_a_variant_and_are_taken_up_with_what_is_finished(
    tmp_path, monkeypatch, capsys, sketched
):
    flags = ["--preset", "smoke", "--seeds", "1", "--device", "cpu", "--out", str(tmp_path)]
    call(NAME, monkeypatch, *flags, "--only", "moons OT-Flow")
    assert not list(tmp_path.glob("trial*"))  # nothing is to be chosen
    call(NAME, monkeypatch, *flags, "--only", "moons chosen", "--resume")
    files = sorted(tmp_path.glob("*/checkpoint.pt"))
    assert len(files) == 4
    first = [file.stat().st_mtime_ns for file in files]
    call(NAME, monkeypatch, *flags, "--only", "moons chosen", "--resume")
    assert [file.stat().st_mtime_ns for file in files] == first
    said = capsys.readouterr().out
    assert "chosen: attracting, last two layers" in said
    assert json.loads((tmp_path / "summary.json").read_text())["findings"] == []
    with xr.open_dataset(tmp_path / "summary.h5", engine="h5netcdf") as table:
        assert table["model"].values.tolist() == ["OT-Flow", "chosen"]
        assert np.isfinite(table[["sliced_w2", "mmd", "nll", "equal_time"]].to_array()).all()
        assert (table["lost"] == 0).all()


def test_flows_train_in_four_dimensions_and_without_layers_that_begin_too_far(run_study, sketched):
    models = ("moons printed exact", "moons with itself")
    flags = ("--preset", "smoke", "--seeds", "1", "--dim", "4")
    done = run_study(NAME, *flags, "--only", *models)
    assert np.isfinite(done.table[["sliced_w2", "mmd"]].to_array()).all()
    study = script(NAME)
    paper = study.names(study.RwpoBenchmarks.of("paper"))
    assert {"moons with itself", "moons chosen"} <= {*paper} and "moons corrected" not in paper


def made(distances, times=(1.0, 1.0)):
    """Return results with given distances, target -> model -> seeds, and times of a step."""
    found = Results({}, {})
    for target, models in distances.items():
        for (model, values), seconds in zip(models.items(), times, strict=True):
            found.records[f"{target} {model}"] = [
                {"sliced_w2": value, "nll": value, "step_seconds": seconds} for value in values
            ]
            found.histories[f"{target} {model}"] = [
                xr.Dataset(
                    {"sliced_w2": ("evaluation", np.array([10.0, 1.0, value]))},
                    {"evaluation": [0, 50, 100], "step": range(100)},
                    {"complete": 1},
                )
                for value in values
            ]
    return found


def test_claims_are_decided_for_every_target_and_overall():
    study = script(NAME)
    plain, better, worse = [0.2, 0.21, 0.19], [0.1, 0.11, 0.1], [0.4, 0.39, 0.41]

    def verdict(key="sliced_w2", **targets):
        given = {name: {"OT-Flow": plain, "corrected": own} for name, own in targets.items()}
        return study.closer(made(given), "corrected", "OT-Flow", key, "", "").verdict

    assert verdict(moons=better, rings=better) == "confirmed"
    assert verdict(moons=better, rings=worse) == "confirmed in part"
    assert verdict(moons=worse, rings=worse) == "not confirmed"
    assert verdict(moons=[0.1, 0.5, 0.19]) == "inconclusive"
    assert verdict(moons=better, key="nll") == "confirmed"


def test_in_equal_time_the_slower_flow_has_taken_fewer_steps():
    study = script(NAME)
    given = {"OT-Flow": [0.2, 0.2], "corrected": [0.1, 0.1]}
    found = made({"moons": given}, times=(1.0, 4.0))  # of 100 s, 25 of its steps
    own, base = study.equal_time(found, "moons", "corrected")
    assert own == pytest.approx([10**0.5] * 2)  # halfway from 10 to 1, on a log scale
    assert base == pytest.approx([0.2] * 2)
    finding = study.closer(found, "corrected", "OT-Flow", "equal_time", "", "")
    assert finding.verdict == "not confirmed"


def test_speed_counts_the_steps_to_a_level():
    study = script(NAME)
    history = xr.Dataset(
        {"sliced_w2": ("evaluation", np.array([100.0, 1.0, 0.01]))}, {"evaluation": [0, 50, 100]}
    )
    for level, steps in {10.0: 25, 0.1: 75, 200.0: 0, 1e-3: np.inf}.items():
        assert study.steps_to(history, level) == pytest.approx(steps)

    def faster(plain, own):
        found = made({"moons": {"OT-Flow": plain, "corrected": own}})
        return study.faster(found, "corrected", "", "")

    assert faster([0.5, 0.5], [0.01, 0.02]).verdict == "confirmed"
    late = faster([0.5, 0.5], [0.9, 0.95])
    assert late.verdict == "not confirmed" and "2 of 2 runs do not get there" in late.found
    # At the level before the first step, both of them: neither is faster.
    assert "nan" not in faster([8.0, 8.0], [8.0, 8.0]).found
    assert faster([8.0, 8.0], [8.0, 8.0]).verdict == "inconclusive"


def test_the_variant_is_chosen_among_those_that_ended():
    trials = script(NAME).Trials(Results({}, {}), {"one": 0.5, "two": np.nan, "three": 0.2})
    assert trials.best == "three"


def test_the_compared_flows_have_the_same_potential_and_the_presets_those_of_table_1():
    study = script(NAME)
    paper = study.RwpoBenchmarks.of("paper")
    assert (paper.steps, paper.width, paper.iterations, paper.batch) == (48, 48, 6001, 4096)
    small = study.RwpoBenchmarks.of("smoke", device="cpu")
    models = study.MODELS | {"chosen": study.Model(study.VARIANTS["attracting, all layers"])}
    flows = {name: study.network(small, model, "moons", 3) for name, model in models.items()}
    plain = flows["OT-Flow"]
    weights = plain.potential.state_dict()
    for name, flow in flows.items():
        own = flow.potential.state_dict()
        if models[name].start is None:
            assert all(torch.equal(weights[key], own[key]) for key in weights), name
        counts = [sum(p.numel() for p in f.parameters()) for f in (flow, plain)]
        assert counts[0] == counts[1] + len(getattr(flow, "trainable", ()))
    run = study.training(small, "moons", models["chosen"], 0)
    assert run.config.batch == small.batch + flows["chosen"].tokens  # rows of the loss, and context
