"""Strict checks of numbers, switches, arrays and paths, in every function that takes them."""

import json
import os
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

import wflow
from wflow import InputError, clusters, equilibria, fits, jko, metric, stationary, tokens, transport
from wflow._core import checks, memory
from wflow.heads import OrnsteinUhlenbeck

X = tokens.uniform(6, 3, seed=0)
D = np.diag([1.0, 0.5, -0.5])[None]
LAW = OrnsteinUhlenbeck(np.eye(3), sigma2=0.0)
RUN = {"heads": 2, "t_final": 0.2, "dt": 0.1}


@pytest.mark.parametrize(
    ("t_final", "dt", "proposed"),
    [(20, 0.3, "0.25"), (20, 0.007, "0.005"), (1, 2, "1"), (0.1, 0.03, "0.025"), (7, 0.3, "0.25")],
)
def test_a_step_that_does_not_divide_the_time_gets_a_round_one_proposed(t_final, dt, proposed):
    with pytest.raises(InputError, match=f"example dt = {proposed}$") as error:
        wflow.solve(X, LAW, heads=2, t_final=t_final, dt=dt)
    wflow.solve(X, LAW, heads=2, t_final=t_final, dt=float(str(error.value).split()[-1]))


@pytest.mark.parametrize(
    ("strange", "message"),
    [
        (np.ma.array(X, mask=X > 0.5), "masked entries"), ((X * 9).astype("m8[s]"), "time spans"),
        ((X > 0).astype(object), "objects"), ([[1.0, 2.0], [1.0]], "inhomogeneous"),
        (pd.DataFrame(X).mask(X > 0.5).convert_dtypes(), "objects"),
        (np.broadcast_to(0.5, (2**45, 3)), "memory"),
    ],
)  # fmt: skip
def test_arrays_hold_real_numbers(strange, message):
    with pytest.raises(InputError, match=message):
        checks.reals(strange, "x")


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x.astype(object),
        lambda x: pd.DataFrame(x).convert_dtypes(),
        lambda x: [[np.float64(entry) for entry in row] for row in x],
        lambda x: [[Decimal(entry) for entry in row] for row in x.tolist()],
        lambda x: [[Fraction(entry) for entry in row] for row in x.tolist()],
    ],
)
def test_numbers_that_are_objects_are_the_same_numbers(form):
    assert np.array_equal(checks.reals(form(X), "x"), X)
    assert wflow.energy(form(X), D) == wflow.energy(X, D)


def test_whole_numbers_beyond_those_of_numpy_are_numbers():
    assert checks.reals([2**70, 1], "x")[0] == 2.0**70
    with pytest.raises(InputError, match="x must be"):
        checks.reals([10**400, 1], "x")


def test_a_configuration_that_cannot_be_written_is_refused_before_the_work(monkeypatch):
    law = OrnsteinUhlenbeck(np.eye(3), sigma2=0.0)
    monkeypatch.setattr(law, "to_config", lambda: {"rate": object()})
    monkeypatch.setattr(jko.StepProblem, "solve", lambda *_, **__: pytest.fail("work was done"))
    with pytest.raises(InputError, match="cannot be written as JSON"):
        jko.minimizing_movements(X, law, heads=2, t_final=0.2, tau=0.1)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("", "expected a path"), (".", "not a folder"), ("results/", "not a folder"),
        ("a\0b.h5", "expected a path"), (7, "expected a path"), ("x" * 300 + ".h5", "255"),
        ("x/" * 2500 + "run.h5", "shorter"), ("run.h5.partial", "the finished run, run.h5"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("solve", [wflow.solve, wflow.distributed.solve])
def test_the_path_of_an_output_is_checked_at_the_start(solve, out, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        solve(X, LAW, **RUN, out=out)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "call",
    [
        lambda n: tokens.uniform(n, 3),
        lambda n: wflow.solve(X, LAW, **{**RUN, "heads": n}),
        lambda n: wflow.solve(X, LAW, **RUN, paths=n),
        lambda n: wflow.solve(X, LAW, **{**RUN, "t_final": n * 1.0, "dt": 1.0}),
        lambda n: jko.minimizing_movements(X, LAW, heads=1, t_final=1.0 * n, tau=1.0),
        lambda n: jko.step(X, D, 0.1, metric="weighted", segments=n),
        lambda n: jko.energy_inequality(X, D, 0.1, nodes=n),
        lambda n: metric.weighted_distance(X, X[::-1], D, segments=n),
        lambda n: equilibria.lower_bound(X, D[0] @ D[0], starts=n),
        lambda n: equilibria.minimal_cloud_energy(n, 1.0, 2),
        lambda n: fits.power_law([1, 2], [[1.0, 2.0], [2.0, 3.0]], resamples=n),
        lambda n: transport.w2(X, X[::-1], method="sliced", projections=n),
    ],
)
@pytest.mark.parametrize("size", [2**40, 2**62])
def test_sizes_beyond_memory_are_refused_with_what_to_reduce(call, size):
    with pytest.raises(InputError, match=r"memory|too many to count"):
        call(size)


def test_the_limit_of_address_space_counts_as_memory(monkeypatch):
    monkeypatch.setattr(memory, "_of_process", lambda: 1e6)
    with pytest.raises(InputError, match=r"needs 0.012 GB of memory, and 0.001 GB are free; take"):
        tokens.uniform(100_000, 3)


CACHED = "anon 5\nactive_file 1000000000\ninactive_file 2000000000\n"
V1 = {"memory.limit_in_bytes": 9e9, "memory.usage_in_bytes": 3e9}


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, np.inf),
        ("0::/a/b", {"a/b": {"memory.max": 8e9, "memory.current": 5e9}}, 3e9),
        ("0::/a/b", {"a": {"memory.max": 8e9, "memory.current": 7e9}, "a/b": {}}, 1e9),
        ("0::/", {"": {"memory.max": 8e9, "memory.current": 7e9, "memory.stat": CACHED}}, 4e9),
        ("3:cpu:/a\n4:cpuacct,memory:/a\n0::/", {"memory/a": V1}, 6e9),
        ("4:memory:/docker/host", {"memory": V1}, 6e9),
        ("nonsense", {}, np.inf),
    ],
)
def test_limits_of_control_groups_count_as_memory(groups, files, expected, tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for group, contents in files.items():
        folder = tmp_path / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            text = content if isinstance(content, str) else f"{int(content)}\n"
            (folder / name).write_text(text)
    assert memory._of_cgroups(tmp_path) == expected


@pytest.mark.parametrize("size", [1e16, 1e150, 1e300])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_scores_that_a_precision_cannot_tell_apart_are_refused(size, dtype):
    x, heads = X.astype(dtype), D * size
    for call in (wflow.velocity, wflow.energy, wflow.mobility, clusters.stationarity):
        with pytest.raises(InputError, match=r"expected norms up to (4.5e\+15|8.4e\+06)"):
            call(x, heads)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_large_scores_that_it_can_give_numbers_or_infinity_with_a_warning(dtype):
    x, heads = X.astype(dtype), D * (0.9 / float(np.finfo(dtype).eps))
    assert np.isfinite(wflow.velocity(x, heads)).all()
    assert np.isfinite(clusters.stationarity(x, heads)).all()
    for name in ("energy", "mobility", "dissipation", "upper_gradient_sq"):
        with pytest.warns(RuntimeWarning, match="beta = "):
            assert not np.isnan(getattr(wflow, name)(x, heads)).any()


def test_velocities_out_of_range_are_infinite_with_a_warning_and_never_nan():
    vertices = np.concatenate([np.eye(3), -np.eye(3)])  # gradients with entries that are zero
    with pytest.warns(RuntimeWarning, match="velocity leaves the range"):
        found = wflow.velocity(vertices, D * 1e4 + 1.0, flow="unnormalised")
    assert np.isinf(found).any() and not np.isnan(found).any()


@pytest.mark.parametrize("d", [2, 3, 10, 101])
def test_closed_forms_go_on_where_scipy_has_no_bessel_functions(d):
    # 1 - (d - 1) / (2 beta) + O(beta^-2)
    for beta in (2.0**31, 1e12):
        expected = 1 - (d - 1) / (2 * beta)
        assert stationary.critical_diffusion(beta, d) == pytest.approx(expected, rel=1e-14)
        assert stationary.kernel_eigenvalue(beta, d, 1) == np.inf
        assert equilibria.uniform_energy(beta, d) == np.inf
    assert stationary.critical_diffusion(1e308, d) == 1.0
    assert stationary.kernel_eigenvalue(1e8, d, 10**9) == 0.0


def test_the_two_forms_of_the_ratio_of_bessel_functions_meet():
    order = 0.5
    for beta in (1e6, 1e8):
        center = np.hypot(beta, np.sqrt((order + 0.5) * (order + 1.5)))
        known = stationary.critical_diffusion(beta, 3)
        assert beta / (order + 0.5 + center) == pytest.approx(known, rel=1e-14)


def test_entropy_of_tokens_of_the_same_seed_is_that_of_other_seeds():
    # The random directions were the tokens themselves, and their tangential part was rounding.
    x = tokens.uniform(400, 3, seed=0)
    values = [clusters.entropy(x, seed=seed, directions=1) for seed in range(4)]
    assert np.isfinite(values).all()
    assert values[0] == pytest.approx(np.mean(values[1:]), abs=4 * np.std(values[1:]) + 1e-3)


def test_messages_stay_short_and_say_what_an_object_is():
    class Silent:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    for value in (Silent(), 10**5000, "x" * 10_000):
        with pytest.raises(InputError) as caught:
            checks.whole(value, "n")
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "given",
    [
        np.float16(0.1), np.float32(0.1), np.longdouble("0.1"), np.array(0.1, "f4"), np.array(0.1),
        Fraction(1, 10), Decimal("0.1"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_number_of_any_type_is_the_decimal_that_it_prints_as(given):
    run = wflow.solve(X, LAW, heads=2, t_final=1, dt=given)
    assert json.loads(run.attrs["config"])["dt"] == 0.1 and run.sizes["time"] == 11
    assert checks.number(given, "x") == 0.1


def test_a_step_of_an_array_of_single_precision_can_be_resumed_by_its_decimal(tmp_path):
    options = {"heads": 2, "t_final": np.float32(0.3), "out": tmp_path / "run.h5"}
    first = wflow.solve(X, LAW, **options, dt=np.linspace(0, 0.3, 4, dtype="f4")[1])
    again = wflow.solve(X, LAW, **options | {"t_final": 0.3}, dt=0.1, if_exists="resume")
    assert first.identical(again)


def test_a_tensor_and_a_flag_of_single_precision_are_decimals_as_well():
    torch = pytest.importorskip("torch")
    assert checks.number(torch.tensor(0.1), "x") == 0.1
    flags = wflow.study.Flags(dt=np.float32(0.1), t_final=Fraction(1, 2))
    flags.check()
    assert (flags.dt, flags.t_final) == (0.1, 0.5)


def test_times_of_single_precision_are_those_of_the_steps():
    times = np.array([0.0, 0.1, 0.2], "f4")
    layers = np.arange(3.0)[:, None, None, None] * np.eye(3)
    run = wflow.solve(
        X, wflow.heads.Schedule(times, layers, "constant"), t_final=0.3, dt=0.1,
        save=wflow.SaveAt(snapshots=np.linspace(0, 0.3, 4, dtype="f4"), heads=True),
    )  # fmt: skip
    assert run.snapshot.values.tolist() == [0.0, 0.1, 0.2, 3 * 0.1]
    assert run.heads.values[0, :, 0, 0, 0].tolist() == [0.0, 1.0, 2.0, 2.0]


def test_a_snapshot_is_that_of_the_nearest_step_and_none_lies_outside_of_the_run():
    options = {"heads": 2, "t_final": 1, "dt": 0.1}
    asked = [-1e-12, 0.12, 0.449, np.sum(np.full(10, 0.1)), np.nextafter(1, 2)]
    run = wflow.solve(X, LAW, **options, save=wflow.SaveAt(snapshots=asked))
    np.testing.assert_allclose(run.snapshot, [0, 0.1, 0.4, 1])
    for time in (-0.01, 1.05, 1.0001, 1e300):
        with pytest.raises(InputError, match="between 0 and 1"):
            wflow.solve(X, LAW, **options, save=wflow.SaveAt(snapshots=[0, time]))
