"""The benchmarks' own arithmetic: variants that agree, spreads, goals, comparisons, the page."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
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
import sphere_maps  # noqa: E402
import startup  # noqa: E402
import variants  # noqa: E402

SHAPE = compare.Shape(40, 3, 3)


def results(median: float = 2.0) -> dict:
    """Documents as the benchmarks write them, small."""
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


def test_several_paths_hold_the_same_problem():
    problem = variants.make(*SHAPE)
    assert variants.gap(variants.wflow_exact(problem, 3)(), variants.wflow_exact(problem)()) == 0


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


@pytest.mark.parametrize("wrong", range(7))
def test_gap_sees_a_difference_in_the_velocity_and_in_every_term(wrong):
    velocity, terms = variants.numbers(variants.wflow_exact(variants.make(*SHAPE))())
    other = velocity.copy(), terms.copy()
    if wrong == 6:
        other[0][7, 1] += 1e-6
    else:
        other[1][wrong] *= 1 + 1e-6
    assert variants.gap(other, (velocity, terms)) == pytest.approx(1e-6, rel=1e-3)


class Answers:
    """Stands for the child process of a variant."""

    def __init__(self, variant: str) -> None:
        self.variant = variant

    def ask(self, **question):
        if question["do"] == "time":
            assert self.variant == "wflow, exact", "what is wrong or fails must not be timed"
            return {"seconds": 0.5}
        if self.variant == "torch, eager":
            return {"error": "RuntimeError: no"}
        gap = 1e-3 if self.variant == "NumPy, matrix products" else 1e-15
        return {"first_s": 1.0, "gap": gap, "memory_mb": 2.0}

    def close(self) -> None:
        pass


def test_variants_that_are_wrong_missing_or_fail_are_left_out_and_said(monkeypatch):
    monkeypatch.setattr(compare, "Child", Answers)
    monkeypatch.setattr(compare.Limits, "__init__", lambda limits, shapes: None)
    monkeypatch.setattr(compare.Limits, "shapes", [], raising=False)
    monkeypatch.setattr(compare.Limits, "round", lambda limits: None)
    monkeypatch.setattr(variants, "missing", lambda name: "jax" if "JAX" in name else None)
    names = ["wflow, exact", "wflow, fast", "NumPy, matrix products", "torch, eager", "JAX, jit"]
    at = compare.Shape(5, 1, 4)
    rows, left_out = compare.measure(names, [at], rounds=2, starts=2, least=0.0)
    assert list(rows[at.name]) == ["wflow, exact"]
    row = rows[at.name]["wflow, exact"]
    assert (row["median_ms"], row["rounds"], row["gap"]) == (500.0, 4, 1e-15)
    said = left_out[at.name]
    assert said["NumPy, matrix products"].startswith("wrong by 0.001")
    assert said["torch, eager"] == "RuntimeError: no"
    assert said["JAX, jit"] == "not installed (jax)"
    assert said["wflow, fast"] == "for d <= 3 only"


def test_limit_of_a_step_adds_up_its_pairs(monkeypatch):
    limits = pytest.importorskip("limits")
    monkeypatch.setattr(limits, "calls", lambda kinds, pairs, threads: {})
    at = compare.Shape(80, 2, 3)
    found = compare.Limits([at])
    for both, ns in ((True, 3.0), (False, 2.0)):
        for together in limits.TOGETHER:  # the fastest counts
            key = "limit", limits.Kind(3, both, True, "float64"), together
            found.taken[key] = [ns * 1e-9 * found.PAIRS * together / min(limits.TOGETHER)] * 2
    # Of 2 x 80 x 80 ordered pairs those of a block of 8 go one way, the others by twos.
    within = 2 * 80 * 8
    expected = (2 * 80 * 80 - within) / 2 * 3e-9 + within * 2e-9
    assert found.seconds(at) == pytest.approx([expected] * 2)


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


def test_sphere_maps_runs_as_a_command_and_says_what_is_missing(tmp_path, cases):
    if not cases(0, 1):
        pytest.skip("with --long; test_compare_runs_as_a_command has the shorter one")
    file = tmp_path / "sphere_maps.json"
    command = [sys.executable, str(BENCHMARKS / "sphere_maps.py"), "--tokens", "500", "--heads",
               "2", "--rounds", "1", "--json", str(file)]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    written = json.loads(file.read_text())
    # The tolerance is that of the mobilities, the error that of the largest velocity.
    assert all(row["error"] <= 4 * sphere_maps.TOLERANCE for row in written["times"])
    for d, libraries in sphere_maps.LIBRARIES.items():
        sides = {(row["flow"], row["side"]) for row in written["times"] if row["d"] == d}
        installed = set(libraries) - set(written["missing"])
        expected = {"wflow"}
        for called in sphere_maps.ACCURACIES:
            expected |= {called.format(name) for name in installed}
        assert sides == {(flow, side) for flow in sphere_maps.FLOWS for side in expected}
    for name in written["missing"]:
        assert f"pip install {name}" in said


@pytest.mark.parametrize("text", ["200x64", "200x64x1", "axbxc", "0x1x3"])
def test_a_problem_that_is_none_is_refused(text):
    with pytest.raises(Exception, match="expected n x heads x d"):
        compare.shape(text)


def test_spread_has_the_unit_in_its_keys():
    assert report.spread([0.001, 0.004, 0.002]) == {
        "median_ms": 2.0, "min_ms": 1.0, "max_ms": 4.0, "rounds": 3,
    }  # fmt: skip
    assert report.spread([1.0, 3.0], "s")["median_s"] == 2.0


def test_rounds_are_taken_in_turn():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    taken = report.in_turn(calls, rounds=3, least=0.0, pause=0.0)
    assert [len(values) for values in taken.values()] == [3, 3]
    rounds = "".join(order[2:])
    assert rounds == rounds[: len(rounds) // 3] * 3  # a.. b.. again and again


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


def test_peak_memory_is_that_of_the_child():
    ballast = b"x" * 300_000_000  # which a child that is forked begins with
    peak, wall = processes.peak_memory_mb(["-c", "b'x' * 80_000_000"])
    assert 80 < peak < 150 and wall > 0
    del ballast


@pytest.mark.parametrize(("seconds", "paths"), [(2.0, 24), (1.0, 48), (0.5, 96), (0.01, 96)])
def test_workers_get_as_many_paths_as_take_half_a_minute(monkeypatch, tmp_path, seconds, paths):
    def timed(task, out, client):  # `seconds` a path of 800 steps, and what a run takes in any case
        steps = round(task["t_final"] / dask_scaling.DT)
        return 0.1 + task["paths"] * steps * seconds / 800, 0.0

    dask_scaling = pytest.importorskip("dask_scaling")
    monkeypatch.setattr(dask_scaling, "timed", timed)
    assert dask_scaling.enough_paths(64, 800 * dask_scaling.DT, tmp_path) == paths


def test_fit_finds_the_exponent_and_the_point_that_departs():
    points = (1, 10, 100)
    exact = scaling.fit(points, [[2.0 * x**1.5] * 3 for x in points])
    assert exact["exponent"] == pytest.approx(1.5)
    assert exact["largest_factor"] == pytest.approx(1)
    bent = scaling.fit(points, [[1.0] * 3, [8.0] * 3, [1.0] * 3])
    assert bent["exponent"] == pytest.approx(0)
    assert bent["largest_factor"] == pytest.approx(4)  # the line lies at 2


def test_imports_are_added_up_by_package():
    said = (
        "import time: self [us] | cumulative | imported package\n"
        "import time:       300 |       1000 |     numba.core\n"
        "import time:       200 |       2000 |   numba\n"
        "import time:       100 |        100 | numpy\n"
    )
    found = startup.imports(said)
    assert found == pytest.approx({"numba": 5e-4, "numpy": 1e-4})
    assert list(found) == ["numba", "numpy"]


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


def test_one_measurement_is_not_compared_with_itself(tmp_path):
    for name, month in (("old", "01"), ("new", "02")):
        (tmp_path / name).mkdir()
        for stem, document in results(2.0).items():
            if stem != "startup":
                document["date"] = f"2026-{month}-03T00:00"
            (tmp_path / name / f"{stem}.json").write_text(json.dumps(document))
    (tmp_path / "new" / "alone.json").write_text("{}")
    assert performance.check(tmp_path / "old", tmp_path / "new") == 0
    kept = json.loads((tmp_path / "old" / "agreement.json").read_text())
    assert kept["once"] == ["alone", "startup"]
    with pytest.raises(SystemExit, match="measured twice"):
        performance.check(tmp_path / "old", tmp_path / "old")
    text = performance.repeated(kept)
    assert "Without a second run: alone, startup." in text and "2026-01-03 00:00" in text


def test_figures_of_rows_in_a_list_are_known_by_their_keys():
    rows = [{"n": n, "dtype": "float64", "median_ms": n, "min_ms": 1, "max_ms": 9} for n in (3, 5)]
    found = dict(agreement.spreads({"rows": rows}))
    assert found["rows / n = 5, dtype = float64 / median_ms"].median == 5


def test_nothing_in_common_is_said(tmp_path):
    for name in ("old.json", "new.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(SystemExit, match="nothing to compare"):
        agreement.compare(tmp_path / "old.json", tmp_path / "new.json")


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


def test_a_goal_whose_target_lies_within_the_spread_is_inconclusive():
    row = {"median_times": 1.02, "min_times": 0.98, "max_times": 1.05, "rounds": 3}
    found = [
        report.goal("near", "python x.py", row, 1.0, least=False, unit="times"),
        report.goal("far", "python x.py", row, 1.1, least=False, unit="times"),
        report.goal("close", "python x.py", 1.7996, 1.8, least=True, unit="times"),
        report.goal("share", "python x.py", 0.74996, 0.75, least=True, unit="%"),
    ]
    assert found[0]["found"] == 1.02 and found[0]["met"] is False
    documents = {"startup": {"goals": found, "machine": "one"}}
    documents["digests"] = {"goals": found[1:2], "machine": "two"}
    rows = {goal.what: goal.row() for goal in goals.collect(documents)}
    assert rows["near"]["verdict"] == "inconclusive (0.980 times to 1.05 times)"
    assert rows["close"]["found"] == "1.7996 times"
    assert rows["share"]["found"] == "74.996 %"
    text = goals.table(goals.collect(documents))
    assert "2 met, 2 missed, 1 inconclusive, " in text
    assert "(1): measured on two." in text and "met (1)" in text


def test_goals_without_a_benchmark_are_not_measured():
    found = goals.collect({})
    assert found
    assert all(goal.met is None for goal in found)
    assert "0 met, 0 missed" in goals.table(found)


def test_a_benchmarks_own_goals_replace_those_of_the_page():
    own = report.goal("a goal", "python benchmarks/x.py", 0.75, 0.8, least=True, unit="%")
    found = goals.collect({"startup": {"goals": [own]}})
    names = [goal.what for goal in found]
    assert "a goal" in names
    assert goals.PLACES["startup"][0].what not in names
    row = found[names.index("a goal")].row()
    assert (row["target"], row["found"]) == ("at least 80.0 %", "75.0 %")
    assert row["verdict"] == "missed by 6.2 %"


def test_goals_are_computed_where_a_benchmark_lists_none():
    ratios = {name: {"ratio": ratio} for name, ratio in (("sums", 3.5), ("terms", 0.9))}
    gaps = {"tiles float64": 2e-16, "triton float64": 3e-12, "tiles float32": 1e-6}
    documents = {
        "fast_sums_check": {"smallest_estimate_over_error": ratios},
        "gpu_particles": {"differences_from_numba": gaps},
    }
    found = {goal.what: goal for goal in goals.collect(documents)}
    estimate = found["error estimate over true error, smallest of 10,000 cases"]
    assert (estimate.found, estimate.met) == (0.9, False)
    double = found["GPU against CPU, double precision"]
    assert (double.found, double.met) == (3e-12, False)


def test_a_step_is_split_into_what_grows_with_the_heads_and_what_does_not():
    def row(heads: int, milliseconds: float) -> dict:
        return {
            "d": 3, "n": 200, "heads": heads, "precision": "float64", "sums": "tied",
            "median_ms": milliseconds, "limit_ms": 0.01 * heads,
        }  # fmt: skip

    text = sections.exact_sums({"command": "x", "results": [row(8, 0.2), row(64, 1.32)]})
    cells = [cell.strip() for cell in text.splitlines()[-1].split("|")[1:-1]]
    assert cells == ["3", "float64", "tied", "40.0", "20.0", "10.0", "0.500"]


def test_page_shows_the_numbers_of_the_files_and_says_what_was_not_measured():
    documents = results()
    text = performance.page(documents)
    for expected in ("2.00 (1.50 to 2.50)", "1.500 ± 0.010", "1.25 (1.00 to 1.50)",
                     "JAX, jit: not installed (jax)", "2 cores of a test"):  # fmt: skip
        assert expected in text
    missing = len(performance.SECTIONS) - len(documents)
    assert text.count(sections.NOT_MEASURED) == missing
    changed = copy.deepcopy(documents)
    changed["compare"]["times"][SHAPE.name]["wflow, exact"]["median_ms"] = 2.25
    assert "2.25 (1.50 to 2.50)" in performance.page(changed)


def test_page_survives_a_file_of_another_version(capsys):
    documents = results()
    del documents["scaling"]["series"]
    assert "scaling.json comes from another version" in performance.page(documents)
    assert "scaling.json" in capsys.readouterr().err


def test_what_a_wrapper_adds_to_a_loop_is_taken_within_rounds():
    pytest.importorskip("torch")
    import continuous_networks

    drift = np.linspace(1, 2, 30)  # of the machine: it hits all variants of a round
    noise = 0.01 * np.random.default_rng(0).standard_normal(30)
    taken = {
        "discrete": drift.tolist(),
        "loop": (1.05 * drift).tolist(),
        "wrapped": ((1.07 + noise) * drift).tolist(),
    }
    row = continuous_networks.over_loop({"network": "x"}, taken)
    assert row["median_points"] == pytest.approx(2 + 100 * np.median(noise))
    assert row["lower_95_points"] < row["median_points"] < row["upper_95_points"]
    assert row["upper_95_points"] - row["lower_95_points"] < 2  # that of one round is 4
    assert row["median_ratio"] == pytest.approx(1 + row["median_points"] / 105)
    assert row["rounds"] == 30
