"""The benchmarks' own arithmetic: variants that agree, spreads, goals, comparisons, the page."""

import copy
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import agreement  # noqa: E402
import compare  # noqa: E402
import goals  # noqa: E402
import performance  # noqa: E402
import processes  # noqa: E402
import report  # noqa: E402
import scaling  # noqa: E402
import sections  # noqa: E402
import variants  # noqa: E402

SHAPE = compare.Shape(40, 3, 3)


def results(median: float = 2.0) -> dict:
    """Return documents as the benchmarks write them, small."""
    head = {
        "command": "python benchmarks/x.py", "date": "2026-01-02T03:04:05+00:00",
        "machine": "2 cores of a test", "threads": 2, "versions": {"numpy": "2.0"},
    }  # fmt: skip
    row = {"median_ms": median, "min_ms": 1.5, "max_ms": 2.5, "rounds": 3}
    problem = {"starts": 1, "rounds_per_start": 3, "agree_to": 1e-9, "fast_tolerance": 1e-10}
    start = {"median_s": 1.25, "min_s": 1.0, "max_s": 1.5, "rounds": 3}
    fit = {"from": 1, "to": 10, "exponent": 1.5, "exponent_error": 0.01, "largest_factor": 1.1}
    return {
        "compare": head | {
            "problem": problem,
            "times": {SHAPE.name: {"wflow, exact": row | {"times_exact": 1.0}}},
            "left_out": {SHAPE.name: {"JAX, jit": "not installed (jax)"}},
        },
        "scaling": head | {
            "series": {"exact sums over n": {
                "method": "exact", "over": "n", "fixed": {"H": 8},
                "points": [1, 10], "times": [row, row],
                "fit": fit, "fit_larger_half": fit,
            }},
        },
        "startup": head | {
            "problem": {"study": "studies/x.py", "paths": 1, "n": 2, "d": 3},
            "times": {"study, first step done": start, "a later step": start},
            "imports_s": {"numba": 0.5}, "imports_total_s": 1.0,
            "figures": {"peak memory (MB)": 100.0, "compiled code on disk (MB)": 1.0},
        },
    }  # fmt: skip


def test_numpy_variants_give_the_step_of_wflow():
    problem = variants.make(*SHAPE)
    reference = variants.wflow_exact(problem)()
    for name in ("NumPy, plain einsum", "NumPy, matrix products"):
        assert variants.gap(variants.VARIANTS[name].make(problem)(), reference) < 1e-12


def test_fast_variant_keeps_its_tolerance():
    pytest.importorskip("wflow.kernels.harmonic.fast")
    problem = variants.make(400, 3, 3)
    assert variants.gap(variants.wflow_fast(problem)(), variants.wflow_exact(problem)()) < 1e-9


@pytest.mark.parametrize("name", ["torch, eager", "JAX, jit"])
def test_library_variants_give_the_step_of_wflow(name):
    lacking = variants.missing(name)
    if lacking is not None:
        pytest.skip(f"{lacking} is not installed")
    problem = variants.make(*SHAPE)
    reference = variants.wflow_exact(problem)()
    assert variants.gap(variants.VARIANTS[name].make(problem)(), reference) < 1e-12


def test_compare_runs_as_a_command_and_writes_its_figures(tmp_path):
    file = tmp_path / "compare.json"
    command = [sys.executable, str(BENCHMARKS / "compare.py"), "--problems", "30x2x3",
               "--variants", "wflow, exact", "NumPy, plain einsum", "--rounds", "1",
               "--starts", "1", "--least", "0", "--no-limits", "--json", str(file)]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = json.loads(file.read_text())["times"]["n = 30, H = 2, d = 3"]
    assert rows["wflow, exact"]["times_exact"] == 1
    assert rows["NumPy, plain einsum"]["gap"] < 1e-12
    assert f"{rows['NumPy, plain einsum']['median_ms']:.3f}" in said


def test_peak_memory_counts_what_is_allocated_within():
    # In a process of its own: this one may have memory left that other tests freed.
    code = (
        "import numpy as np, report\n"
        "with report.peak_memory() as found: np.ones(8_000_000)\n"
        "print(found['mb'])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(report.__file__).parent, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    if said.stdout.strip() == "None":
        pytest.skip("this system does not tell the peak of a part of a program")
    assert 55 < float(said.stdout) < 110


def test_an_installation_by_pip_has_the_requirements_and_nothing_else(tmp_path):
    def finds(module: str) -> bool:
        command = [sys.executable, "-S", "-c", f"import {module}"]
        done = subprocess.run(command, env=env, cwd=tmp_path, check=False, capture_output=True)
        return done.returncode == 0

    names = processes.required()
    assert {"wflow-transformers", "numpy", "h5py", "packaging"} <= names
    assert names.isdisjoint({"pytest", "hypothesis", "torch", "pyarrow", "dask"})
    with processes.as_installed_by_pip() as env:
        assert finds("wflow.runs.read") and not finds("pytest")


def test_fit_finds_the_exponent_and_the_point_that_departs():
    points = (1, 10, 100)
    exact = scaling.fit(points, [[2.0 * x**1.5] * 3 for x in points])
    assert exact["exponent"] == pytest.approx(1.5)
    assert exact["largest_factor"] == pytest.approx(1)
    bent = scaling.fit(points, [[1.0] * 3, [8.0] * 3, [1.0] * 3])
    assert bent["exponent"] == pytest.approx(0)
    assert bent["largest_factor"] == pytest.approx(4)  # the line lies at 2


def test_runs_agree_where_a_median_lies_in_the_others_spread():
    one = agreement.Spread(2.0, 1.5, 2.5)
    assert agreement.agree(one, agreement.Spread(2.4, 2.3, 9.0))
    assert agreement.agree(one, agreement.Spread(2.6, 1.9, 2.7))
    assert not agreement.agree(one, agreement.Spread(2.6, 2.3, 2.7))


def test_comparison_of_two_folders_names_what_differs(tmp_path):
    for name, median in (("old", 2.0), ("new", 2.6)):
        (tmp_path / name).mkdir()
        for stem, document in results(median).items():
            if name == "new":
                document = json.loads(json.dumps(document).replace("1.5,", "2.55,"))
                document["date"] = "2026-01-03T00:00"
            (tmp_path / name / f"{stem}.json").write_text(json.dumps(document))
    found = agreement.compare(tmp_path / "old", tmp_path / "new")
    # One row of compare and two of scaling; the start-up is the same in both.
    assert (found["compared"], found["agreed"]) == (5, 2)
    assert {row["file"] for row in found["apart"]} == {"compare.json", "scaling.json"}
    assert found["apart"][0]["difference"] == pytest.approx(0.6 / 2.6)
    assert performance.check(tmp_path / "old", tmp_path / "new") == 1
    kept = json.loads((tmp_path / "old" / "agreement.json").read_text())
    assert "2 of 5 medians" in performance.repeated(kept)
    assert found["files"]["scaling"]["half_within"] == pytest.approx(0.6 / 2.6)
    assert found["once"] == []


def test_goals_are_met_or_missed_by_how_much():
    least = goals.Goal("speed", 15.0, 20.0, True, "x.py", "times", "because")
    assert least.met is False
    assert least.row()["verdict"] == "missed by 25.0 %"
    assert least.reason == "because"
    most = goals.Goal("start", 1.5, 2.0, False, "x.py", "s", "because")
    assert most.met is True
    assert (most.row()["verdict"], most.reason) == ("met", "")
    nothing = goals.Goal("gpu", None, 1.0, True, "x.py")
    assert nothing.met is None
    assert nothing.row()["verdict"] == "not measured"


def test_page_shows_the_numbers_of_the_files_and_says_what_was_not_measured():
    documents = results()
    text = "".join(performance.pages(documents).values())
    for expected in ("2.00 (1.50 to 2.50)", "1.500 ± 0.010", "1.25 (1.00 to 1.50)",
                     "JAX, jit: not installed (jax)", "2 cores of a test"):  # fmt: skip
        assert expected in text
    missing = len(performance.SECTIONS) - len(documents)
    assert text.count(sections.NOT_MEASURED) == missing
    changed = copy.deepcopy(documents)
    changed["compare"]["times"][SHAPE.name]["wflow, exact"]["median_ms"] = 2.25
    assert "2.25 (1.50 to 2.50)" in performance.pages(changed)["compare"]


def test_paper_presets_are_counted_on_the_device_without_values():
    torch = pytest.importorskip("torch")
    import paper_presets
    from point_clouds import PointClouds

    from wflow.nets import train
    from wflow.study import networks

    model = torch.nn.Linear(3, 5, bias=False)
    objective = train.objective(lambda output, target: (output - target).square().mean(), 0.0)
    config = train.TrainConfig(steps=10, batch=8, schedule=train.Constant(0.1), accumulate=2)
    run = networks.Run(model, objective, lambda step: (torch.ones(8, 3), torch.ones(8, 5)), config,
                       lambda model: {})  # fmt: skip
    cost = paper_presets.cost_of("linear", run, seeds=3)
    # Products with the weights and for their gradient, two operations each; no input has one.
    assert (cost.parameters, cost.rows) == (15, 4) and cost.step == 8 * 2 * (2 * 15)
    assert cost.all_steps == 30 * cost.step and cost.memory >= 16 * 15 + 4 * 4 * 3

    found = {
        cost.model: cost for cost in paper_presets.costs("point_clouds", PointClouds.of("paper"))
    }
    assert found["baseline"].rows == 64 and found["continuous"].parameters < 1e6
    assert found["continuous"].step > 5 * found["baseline"].step


def test_small_operations_are_counted_and_extrapolated_in_depth():
    torch = pytest.importorskip("torch")
    import paper_presets
    import rwpo_benchmarks

    a, b = torch.ones(8, 3), torch.eye(3).expand(2, 3, 3).contiguous()
    with paper_presets.Counter() as found:
        a.T[:, :4].reshape(3, 4)  # views: they cost nothing
        a @ a[:3]
        torch.linalg.inv(b)
        a.mul_(2.0)
    product, inverse, scaled = 2 * 8 * 3 * 3, 2 * 2 * 27, 24
    assert found.operations == product + inverse + scaled and found.calls >= 3
    assert found.moved >= 4 * (24 + 9 + 24 + 2 * 18 + 2 * 24)  # read and written, in bytes

    flags = rwpo_benchmarks.RwpoBenchmarks.of("smoke", batch=300)
    for name in ("printed exact", "with itself"):  # own batch as context, and one beside it

        def plan(steps, model=rwpo_benchmarks.MODELS[name]):
            return rwpo_benchmarks.training(replace(flags, steps=steps), "moons", model, 0)

        true = paper_presets.one_step(plan(12))
        assert paper_presets.deep(plan, 12) == pytest.approx(true, rel=1e-3), name
