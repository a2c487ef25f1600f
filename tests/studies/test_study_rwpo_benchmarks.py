"""The study of flows on densities in the plane: end to end and small, and what it decides."""

import json

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")

from scripts import call, script  # noqa: E402

from wflow import InputError  # noqa: E402

NAME = "rwpo_benchmarks"


def test_parts_share_a_folder_and_the_tables_are_read_from_it(
    tmp_path, monkeypatch, capsys, sketched
):
    out = tmp_path / "rwpo"
    flags = ["--preset", "smoke", "--seeds", "1", "--out", str(out)]
    with pytest.raises(InputError, match="no finished training"):
        call(NAME, monkeypatch, *flags, "--part", "tables")
    some = ["--only", "OT-Flow", "chosen"]
    with pytest.raises(InputError, match="--part trials"):  # that choose the variant
        call(NAME, monkeypatch, *flags, "--part", "train", "--only", "chosen")
    assert call(NAME, monkeypatch, *flags, "--part", "trials") == 0
    assert call(NAME, monkeypatch, *flags, "--part", "train", *some) == 0
    result = out / "moons-chosen-0" / "result.h5"
    first = result.stat().st_mtime_ns
    assert call(NAME, monkeypatch, *flags, "--part", "train", *some, "--resume") == 0
    assert call(NAME, monkeypatch, *flags, "--part", "tables", "--resume") == 0
    assert result.stat().st_mtime_ns == first
    said = capsys.readouterr().out
    assert "chosen: attracting, last two layers" in said
    assert json.loads((out / "summary.json").read_text())["findings"] == []
    with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
        assert table["model"].values.tolist() == ["OT-Flow", "chosen"]
        assert np.isfinite(table[["sliced_w2", "mmd", "nll", "equal_time"]].to_array()).all()
        assert (table["lost"] == 0).all()
    with pytest.raises(InputError, match="other settings"):
        call(NAME, monkeypatch, *flags, "--part", "tables", "--resume", "--steps", "5")


def made(study, distances, times=(1.0, 1.0)):
    """Results with given distances, target -> model -> seeds, and times of a step."""
    found = study.Found()
    for target, models in distances.items():
        for (model, values), seconds in zip(models.items(), times, strict=True):
            found.records[target, model] = [
                {"sliced_w2": value, "nll": value, "step_seconds": seconds, "diverged": False}
                for value in values
            ]
            found.histories[target, model] = [
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
    unclear = [0.1, 0.5, 0.19]

    def verdict(**targets):
        given = {name: {"OT-Flow": plain, "corrected": own} for name, own in targets.items()}
        asked = made(study, given), "corrected", "OT-Flow", "sliced_w2", "", ""
        return study.closer(*asked).verdict

    assert verdict(moons=better, rings=better) == "confirmed"
    assert verdict(moons=better, rings=worse) == "confirmed in part"
    assert verdict(moons=worse, rings=worse) == "not confirmed"
    assert verdict(moons=unclear) == "inconclusive"
    found = made(study, {"moons": {"OT-Flow": plain, "corrected": better}})
    assert study.closer(found, "corrected", "OT-Flow", "nll", "", "").verdict == "confirmed"


def test_in_equal_time_the_slower_flow_has_taken_fewer_steps():
    study = script(NAME)
    given = {"OT-Flow": [0.2, 0.2], "corrected": [0.1, 0.1]}
    found = made(study, {"moons": given}, times=(1.0, 4.0))  # of 100 s, 25 of its steps
    study.add_equal_time(found)
    record = found.records["moons", "corrected"][0]
    assert record["equal_time"] == pytest.approx(10**0.5)  # halfway from 10 to 1, on a log scale
    assert record["equal_time_base"] == pytest.approx(0.2)
    finding = study.closer(found, "corrected", "OT-Flow", "equal_time", "", "")
    assert finding.verdict == "not confirmed"


def test_speed_counts_the_steps_to_a_level():
    study = script(NAME)
    history = xr.Dataset(
        {"sliced_w2": ("evaluation", np.array([100.0, 1.0, 0.01]))}, {"evaluation": [0, 50, 100]}
    )
    assert study.steps_to(history, 10.0) == pytest.approx(25)
    assert study.steps_to(history, 0.1) == pytest.approx(75)
    assert study.steps_to(history, 200.0) == 0
    assert study.steps_to(history, 1e-3) == np.inf
    given = {"OT-Flow": [0.5, 0.5], "corrected": [0.01, 0.02]}
    finding = study.faster(made(study, {"moons": given}), "corrected", "", "")
    assert finding.verdict == "confirmed" and "count as" not in finding.found
    given = {"OT-Flow": [0.5, 0.5], "corrected": [0.9, 0.95]}
    finding = study.faster(made(study, {"moons": given}), "corrected", "", "")
    assert finding.verdict == "not confirmed" and "2 of 2 runs do not get there" in finding.found


def test_the_variant_is_chosen_among_those_that_ended():
    study = script(NAME)
    found = {"one": 0.5, "two": np.nan, "three": 0.2}
    assert study.chosen(found) == "three"


def test_the_compared_flows_have_the_same_potential_and_the_presets_those_of_table_1():
    study = script(NAME)
    paper = study.RwpoBenchmarks.of("paper")
    assert (paper.steps, paper.width, paper.iterations, paper.batch) == (48, 48, 6001, 4096)
    assert paper.rates == (1e-2, 1e-6) and set(study.PAPER) < set(study.TARGETS)
    small = study.RwpoBenchmarks.of("smoke", device="cpu")
    models = study.MODELS | {"chosen": study.Model(study.VARIANTS["attracting, all layers"])}
    flows = {name: study.network(small, model, "moons", 3) for name, model in models.items()}
    weights = flows["OT-Flow"].potential.state_dict()
    for name, flow in flows.items():
        own = flow.potential.state_dict()
        if models[name].start is None:
            assert all(torch.equal(weights[key], own[key]) for key in weights), name
        extra = len(getattr(flow, "trainable", ()))
        counts = [sum(p.numel() for p in f.parameters()) for f in (flow, flows["OT-Flow"])]
        assert counts[0] == counts[1] + extra
    run = study.plan(small, study.Task("", "moons", models["chosen"]), 0)
    assert run.config.batch == small.batch + flows["chosen"].tokens  # rows of the loss, and context
