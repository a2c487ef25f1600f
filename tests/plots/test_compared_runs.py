"""`wflow.compare` and `wflow compare`: what differs between two runs."""

import h5py
import numpy as np
import pytest

import wflow
from wflow.cli import main

X = wflow.tokens.uniform(n=8, d=3, seed=0)
OU = wflow.heads.OrnsteinUhlenbeck(np.eye(3))
SHORT = {"heads": 2, "t_final": 0.4, "dt": 0.05, "save": wflow.SaveAt(snapshots=[0, 0.2, 0.4])}


def solve(**changes):
    return wflow.solve(**{"x0": X, "law": OU} | SHORT | changes)


@pytest.fixture(scope="module")
def run():
    return solve()


def test_the_largest_difference_of_each_quantity_is_that_of_its_values(run):
    other = solve(seed=1)
    found = wflow.compare(run, other)
    gap = np.abs(run.energy - other.energy)
    row = found.quantities.sel(quantity="energy")
    assert not found.same and set(found.settings) == {"seed"} and not found.notes
    assert float(row.absolute) == float(gap.max())
    assert float(row.time) == float(run.time[int(np.argmax(gap.values[0]))])
    largest = max(float(np.abs(ds.energy).max()) for ds in (run, other))
    assert float(row.relative) == float(gap.max()) / largest
    w2 = wflow.transport.over_time(run, to=other)
    np.testing.assert_array_equal(found.w2, w2)
    worst = float(found.quantities.relative.max())
    assert wflow.compare(run, other, tolerance=worst).same
    assert found.to_dataframe().loc["energy", "absolute"] == row.absolute
    assert len(found.plot().axes) == 4
    assert "seed" in repr(found) and "W₂" in found._repr_html_()


def test_equal_runs_are_the_same_also_where_they_are_nan(run):
    lost = run.copy(deep=True)
    lost["energy"][0, 3:] = np.nan
    assert wflow.compare(lost, lost).same
    found = wflow.compare(run, lost, tolerance=1e9)
    assert not found.same and np.isinf(found.quantities.sel(quantity="energy").absolute)


def test_runs_are_compared_where_they_overlap(run):
    longer = solve(t_final=0.8, paths=3, save=wflow.SaveAt(snapshots=[0, 0.4, 0.8], paths=(0, 2)))
    found = wflow.compare(longer, run)
    assert found.same and list(found.w2.snapshot.values) == [0, 0.4]
    assert "tokens_mean: means over other paths" in found.notes


def test_what_cannot_be_compared_is_said(run):
    other = wflow.solve(wflow.tokens.uniform(n=5, d=2, seed=0), wflow.heads.Frozen(),
                        heads=2, t_final=0.3, dt=0.03, causal=True)  # fmt: skip
    found = wflow.compare(run, other)
    said = " ".join(found.notes)
    for words in ("energy, which b", "initial_tokens: 8 and 5", "speed_sq, which a", "dimensions"):
        assert words in said
    assert not found.same and not found.quantities.sizes["quantity"] and found.w2 is None
    with pytest.raises(wflow.InputError, match="common"):
        found.plot()


def test_runs_without_a_common_time_after_the_start_are_not_the_same(run):
    found = wflow.compare(run, solve(t_final=0.27, dt=0.09, save=wflow.SaveAt()))
    assert (
        not found.same and (found.quantities.absolute == 0).all() and "after time 0" in str(found)
    )
    assert "11 times that only one run has" in found.notes
    none = wflow.SaveAt(snapshots=[])
    pair = [solve(law=wflow.heads.Frozen(), save=none, causal=causal) for causal in (False, True)]
    assert not wflow.compare(*pair).same


def test_runs_that_agree_to_rounding_pass_one_tolerance(run):
    fast = solve(compute=wflow.Compute(method="fast"))
    assert not wflow.compare(run, fast).same and wflow.compare(run, fast, tolerance=1e-10).same


def test_lost_tokens_are_nan_in_the_distance_and_what_is_no_run_is_refused(run):
    lost = run.copy(deep=True)
    lost["tokens"][:, 1] = np.nan
    assert "nan at most, at t = 0.2" in str(wflow.compare(run, lost))
    with pytest.raises(wflow.InputError, match="b is a Dataset that is no run"):
        wflow.compare(run, wflow.sweep({"seed": [0, 1]}, X, OU, **SHORT))


def test_distances_of_other_numbers_of_tokens_are_bounded_unless_asked_for(monkeypatch, run):
    other = solve(x0=X[:5])
    assert wflow.compare(run, other).w2.shape == (1, 3)
    monkeypatch.setattr("wflow.plots.comparison._PAIRS", 39)
    assert "w2=True" in wflow.compare(run, other).notes[-1]
    assert wflow.compare(run, other, w2=True).w2.shape == (1, 3)
    assert wflow.compare(run, other, w2=False).w2 is None


def test_other_kinds_of_runs_are_compared():
    movements = [
        wflow.jko.minimizing_movements(
            X, wflow.heads.Frozen(), heads=2, t_final=0.1, tau=0.05, seed=k
        )
        for k in (0, 1)
    ]
    assert wflow.compare(movements[0], movements[0]).same
    assert not wflow.compare(*movements).same
    mesh = wflow.meanfield.Circle(16)
    limit = wflow.meanfield.solve(
        np.ones(16), wflow.heads.Frozen(), mesh=mesh, heads=2, t_final=0.1, dt=0.01
    )
    assert wflow.compare(limit, limit).same


def test_the_command_tells_by_its_status(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        solve(seed=seed, out=f"{name}.h5").close()
    (tmp_path / "cut.h5").write_bytes((tmp_path / "a.h5").read_bytes()[:9000])
    (tmp_path / "text.h5").write_text("text")
    assert main(["compare", "a.h5", "b.h5"]) == 0
    assert main(["compare", "a.h5", "c.h5", "--figure", "f.png"]) == 1
    assert (tmp_path / "f.png").exists() and "seed" in capsys.readouterr().out
    assert main(["compare", "a.h5", "c.h5", "--tolerance", "10"]) == 0
    capsys.readouterr()
    wrong = [["."], ["no.h5"], ["cut.h5"], ["text.h5"], ["b.h5", "--tolerance", "-1"],
             ["c.h5", "--figure", "f.gif"], ["c.h5", "--figure", "no/f.png"]]  # fmt: skip
    for words in wrong:
        assert main(["compare", "a.h5", *words]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_changed_value_in_a_file_is_found(tmp_path):
    file = tmp_path / "a.h5"
    solve(out=file).close()
    other = tmp_path / "b.h5"
    other.write_bytes(file.read_bytes())
    with h5py.File(other, "r+") as opened:
        opened["tokens"][0, 1, 2, 0] += 1e-7
    found = wflow.compare(file, other)
    differ = found.quantities.where(found.quantities.absolute > 0, drop=True)
    assert list(differ["quantity"].values) == ["tokens"] and float(differ.time[0]) == 0.2
