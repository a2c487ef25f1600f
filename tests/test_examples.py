"""The gallery: every example has a title and uses public names only, and the quick ones run.

Each states what it claims here, and `make docs` executes all of them.
"""

import ast
import re
import runpy
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot

import wflow

matplotlib.use("agg")

GALLERY = Path(__file__).resolve().parents[1] / "examples"
EXAMPLES = sorted(GALLERY.glob("*/plot_*.py"))
QUICK = ("1_basics/plot_2_which_flow", "1_basics/plot_8_julia_matlab")
LINES = 120  # of code, without text and blank lines
# What the text of an example claims, of the variables that it leaves.
CLAIMS = {
    "1_basics/plot_0_animation": ["1 <= over['count'][-1] < 10"],
    "1_basics/plot_1_first_flow": ["abs(change - sum(terms.values())) < 1e-12"],
    "1_basics/plot_2_which_flow": [
        "all((abs(r.dissipation - r.upper_gradient_sq).max() > 1e-3 * r.dissipation.max())"
        " == (f == 'softmax' and h > 1) for (f, h), r in runs.items())",
        "np.allclose(tokens_at_end('softmax', 1), tokens_at_end('effective', 1), atol=1e-12)",
        "not np.allclose(tokens_at_end('softmax', 8), tokens_at_end('effective', 8), atol=1e-3)",
    ],
    "1_basics/plot_3_which_scheme": [
        "all(abs(np.polyfit(np.log(steps[2:]), np.log(errors[s][2:]), 1)[0] + p) < 0.25"
        " for s, p in zip(stages, (1, 2, 4)))"
    ],
    "1_basics/plot_4_which_method": [
        "all(error < 10 * tol for error, tol in zip(errors, tolerances))",
        "run.sum_error.max() < 1e-8",
    ],
    "1_basics/plot_5_own_head_law": [
        "(abs(on - exact) <= 4 * np.sqrt(2 / samples) * exact + 0.01).all()",
        "report.passed",
        "np.array_equal(stored.energy, run.energy)",
        "np.array_equal(again.energy, run.energy)",
    ],
    "1_basics/plot_6_own_flow": [
        "gap < 1e-12",
        "report.passed",
        "np.allclose(run.dissipation, run.upper_gradient_sq, rtol=1e-10)",
    ],
    "1_basics/plot_7_xarray": ["np.isclose(again, run.energy.isel(path=3, time=-1), rtol=1e-12)"],
    "1_basics/plot_8_julia_matlab": ["np.array_equal(reverse[:, :, -1, 0].T, stored[0, -1])"],
    "1_basics/plot_9_verify_resume": [
        "np.array_equal(run.energy, direct.energy)",
        "np.array_equal(run.tokens, direct.tokens)",
        "report.passed",
        "not bad.passed",
    ],
    "2_dynamics/plot_1_energy_budget": [
        "0.8 < exponent < 1.2",
        "abs(mean[-1]) < abs(mean[0]) / 4",
    ],
    "2_dynamics/plot_2_gradient_against_heads": ["-1.15 < fit.exponent < -0.85"],
    "2_dynamics/plot_3_defect": [
        "abs(end.edi_residual) < abs(coarse.edi_residual[-1]) / 8",
        "abs(gap) < 0.01",
        "np.isclose(defect, wflow.edi_defect(x, D), rtol=1e-10)",
        "np.isclose(wflow.dissipation(x, D) - wflow.upper_gradient_sq(x, D), defect, rtol=1e-10)",
    ],
    "2_dynamics/plot_4_oscillating_heads": [
        "abs(ratio - 1) < 0.05",
        "level['spread', 16] < level['common', 16] / 100",
    ],
    "2_dynamics/plot_5_clusters": [
        "last[1.0][1] == 1 and not last[1.0][0]",  # one cluster, without a plateau
        "last[9.0][0]",  # metastable
    ],
    "2_dynamics/plot_6_equilibria": [
        "(solve(D, 'ascent', 40.0).energy <= best.energy + 1e-12).all() and reached.any()",
        "max(off) < 1e-5",
        "np.isclose(uniform, np.sinh(beta) / beta / 2)",
        "(excess[:, -1] < 1e-2 * excess[:, 0]).all()",
    ],
    "2_dynamics/plot_7_noise_and_order": [
        "np.isclose(critical, 1 / np.tanh(beta) - 1 / beta)",
        "all(abs(r - wflow.stationary.stationary_order(beta, d, k * critical)) < 0.05"
        " for k, r in zip(measured, order) if k < 0.85)",
    ],
    "2_dynamics/plot_8_stability": [
        "pair.holds_chordal.all() and pair.holds_geodesic.all()",
    ],
    "2_dynamics/plot_9_phase_transition": ["state.stable and state.defect < 1e-6"],
    "3_geometry/plot_1_w2_along_a_run": [
        "start[-1] <= length",
        "(abs(speed / between - 1) < 0.02).all()",
        "bounds.lower <= exact <= bounds.value",
    ],
    "3_geometry/plot_2_weighted_metric": [
        "c1 <= min(ratios) and max(ratios) <= c2",
        "np.isclose(G, wflow.metric.metric_derivative(x0, wflow.velocity(x0, D), D))",
        "abs(order - 1) < 0.2",
    ],
    "3_geometry/plot_3_minimizing_movements": [
        "all(m.converged.all() and (m.inequality_gap >= 0).all() for m in movements.values())",
        "abs(slope - 1) < 0.1",
    ],
    "4_networks/plot_1_trained_heads": ["history.loss[-10:].mean() < 0.75 * history.loss[0]"],
    "4_networks/plot_2_continuous_transformer": [
        "all(accuracy(model) > 0.85 for model, _ in rows.values())"
    ],
    "4_networks/plot_3_straight_trajectories": [
        "np.mean(straight[-1]) < np.mean(straight[0]) / 2",
        "np.mean(accurate) > 0.85",
    ],
    "4_networks/plot_4_maximum_principle": [
        "bool((msa.loss_after < msa.loss).all())",  # with one batch no step raises the loss
        "msa.loss[-1] < 0.6 * msa.loss[0]",
    ],
    "5_scale/plot_1_million_tokens": ["run.sum_error.max() < 1e-8", "error < 1e-7"],
    "5_scale/plot_2_mean_field_limit": ["abs(fit.exponent / 2 + 0.5) < 0.1"],
    "5_scale/plot_3_distributed": ["np.array_equal(serial.energy, run.energy)"],
    "5_scale/plot_4_mean_field_equation": ["run.density.min() >= 0"],
    "6_sampling/plot_1_proximal_operator": [
        "abs(np.exp(log_density(0.1)).sum() * spacing - 1) < 1e-3",
        "max(errors['exact']) < 1e-6",
        "errors['laplace'][-1] < errors['laplace'][0] < min(errors['published'])",
        "sizes[1.0][-1] < 1.5 < 30 < sizes[0.1][1]",
        "np.abs(back - cloud).max() < 1e-12",
    ],
    "6_sampling/plot_2_samplers": ["runs['BRWP']['ess'][0, -1] > 20", "variance < 0.5"],
    "6_sampling/plot_3_flows": ["error < 1e-8"],
}


def name(path):
    return path.relative_to(GALLERY).with_suffix("").as_posix()


def attribute(node):
    """Return `a.b.c` for a chain of attributes, else None."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def resolve(dotted):
    """The object that a dotted name below `wflow` names, each part in the `__all__` above it."""
    found = wflow
    for part in dotted.split(".")[1:]:
        public = getattr(found, "__all__", None)
        if public is None:  # a class or a value: what it has is its own matter
            return
        assert part in public, f"{part} of {dotted} is not public"
        found = getattr(found, part)


def test_every_example_has_claims():
    assert CLAIMS.keys() == {name(path) for path in EXAMPLES}


def test_the_gallery_has_at_least_twenty_examples_in_sections_with_a_header():
    assert len(EXAMPLES) >= 20
    for folder in {GALLERY, *(path.parent for path in EXAMPLES)}:
        assert (folder / "GALLERY_HEADER.rst").is_file()
    stems = [path.stem for path in EXAMPLES]
    assert len(set(stems)) == len(stems), "two pages would have one name"


@pytest.mark.parametrize("path", EXAMPLES, ids=name)
def test_an_example_opens_with_a_title_and_is_short(path):
    text = path.read_text()
    tree = ast.parse(text)
    title, line = ast.get_docstring(tree).splitlines()[:2]
    assert set(line) == {"="} and len(line) == len(title)
    code = [row for row in text.splitlines() if row.strip() and not row.startswith("#")]
    assert len(code) - len(ast.get_docstring(tree).splitlines()) <= LINES
    assert "# %%" in text and "plt.savefig" not in text
    assert not re.search(r"\b__file__\b|(?<!['\w])/(tmp|home|work)/", text), (
        "must run as a notebook"
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=name)
def test_an_example_uses_public_names_only(path):
    tree = ast.parse(path.read_text())
    modules = {"wflow"}
    if "torch" in path.read_text():
        pytest.importorskip("torch")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert not alias.name.startswith("wflow."), f"{alias.name}: import it from wflow"
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "wflow":
            for alias in node.names:
                resolve(f"{node.module}.{alias.name}")
                modules.add(alias.asname or alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_") or node.attr == "__init__", node.attr
            dotted = attribute(node)
            if dotted is not None and dotted.split(".")[0] in modules:
                prefix = "" if dotted.startswith("wflow.") else "wflow."
                resolve(prefix + dotted)


@pytest.mark.parametrize("example", CLAIMS)
def test_what_an_example_says_holds_and_it_leaves_no_file(example, tmp_path, monkeypatch, cases):
    if example not in QUICK[: cases(1, len(QUICK))] and not cases(0, 1):
        pytest.skip("runs with --long")
    if example.startswith("4_") or example.endswith("3_flows"):
        pytest.importorskip("torch")
        pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(GALLERY / f"{example}.py"), run_name="__main__")
    pyplot.close("all")
    for claim in CLAIMS[example]:
        assert eval(claim, {"np": np, "wflow": wflow} | names), claim
    assert not list(tmp_path.iterdir())
