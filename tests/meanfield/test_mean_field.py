"""The mean-field equation: the energy budget, positivity, mass, heads as those of the particles."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mean_field_references import CIRCLE_HEADS, DIRECTIONS, FLOWS, last, solve, start
from run_layouts import same_bits

import wflow
from wflow import meanfield
from wflow.heads import HeadLaw, OrnsteinUhlenbeck, Oscillating
from wflow.meanfield import Circle, Fourier, Harmonics, Sphere
from wflow.meanfield.solver import Densities


@pytest.mark.parametrize(
    ("mesh", "tolerance"),
    [(Circle(64), 1e-3), (Sphere(642), 1e-3), (Fourier(6), 1e-13), (Harmonics(6), 1e-13)],
)
def test_harmonics_decay_by_diffusion_alone(mesh: Any, tolerance: float) -> None:
    kappa, t, d = 0.5, 0.3, mesh.dim + 1
    run = solve(
        mesh, t, lambda x: 1 + 0.5 * x[:, 0] + 0.4 * x[:, 0] * x[:, 1], heads=np.zeros((1, d, d)),
        kappa=kappa,
    )  # fmt: skip
    decay = [math.exp(-kappa * degree * (degree + d - 2) * t) for degree in (1, 2)]
    x = mesh.centres
    exact = 1 + 0.5 * decay[0] * x[:, 0] + 0.4 * decay[1] * x[:, 0] * x[:, 1]
    assert mesh.integrate(np.abs(last(run) - exact / mesh.integrate(exact))) < tolerance


@pytest.mark.parametrize("flow", FLOWS)
def test_the_budget_closes_at_second_order(flow: Any) -> None:
    residuals = []
    law = HeadLaw(lambda D, t: np.eye(2) - D)
    for cells in (32, 64):
        run = solve(Circle(cells), 0.2, law=law, kappa=0.05, flow=flow, save=wflow.SaveAt(every=20))
        assert abs(float(run.work_weights[0, -1])) > 5e-3  # the heads do work
        residuals.append(float(abs(run.edi_residual[0, -1])))
    assert residuals[1] < 1e-2 and residuals[0] / residuals[1] > 3


@pytest.mark.parametrize("flow", FLOWS)
def test_the_terms_of_the_budget_are_their_sums_over_cells(flow: Any) -> None:
    kappa, sigma2, errors = 0.1, 2.0, []
    law = OrnsteinUhlenbeck(np.zeros((2, 2)), sigma2=sigma2)
    for cells in (32, 64):
        mesh = Circle(cells)
        run = solve(mesh, 1e-6, law=law, dt=1e-6, kappa=kappa, flow=flow)
        x, w, D = mesh.centres, mesh.areas * run.density[0, 0].values, CIRCLE_HEADS
        scores = np.einsum("ia,hab,jb->hij", x, D, x)
        U = np.exp(scores) * w
        m, S, mean = U.sum(axis=2), U @ x, w @ U.sum(axis=2).T / 2
        g = np.einsum("hab,hib->hia", D, S)
        g -= np.einsum("hia,ia->hi", g, x)[..., None] * x
        b = 1 / (1 / m).mean(axis=0)
        v = -(g / m[..., None]).mean(axis=0) if flow == "softmax" else -g.mean(axis=0)
        v = v / b[:, None] if flow == "effective" else v
        b = np.ones_like(b) if flow == "unnormalised" else b
        turned = np.einsum("hab,ib->hia", D, x)
        square = np.einsum("hia,hia->hi", turned, turned)[:, None]
        exact = {
            "energy": mean.mean(),
            "dissipation": -w @ np.einsum("ia,ia->i", g.mean(axis=0), v),
            "upper_gradient_sq": w @ (b * np.einsum("ia,ia->i", v, v)),
            # f = -D: the drift of the law.
            "weight_power": -np.einsum("i,hij->", w, U * scores) / 4,
            "ito_power": sigma2 / 16 * np.einsum("i,hij->", w, U * (1 + (x @ x.T) ** 2)),
            "diffusion_power": w @ (U * (square - scores**2 - scores)).sum(axis=(0, 2)) * kappa / 2,
        }
        errors.append({name: abs(float(run[name][0, 0]) - of) for name, of in exact.items()})
    for name in ("energy", "weight_power", "ito_power"):
        assert errors[1][name] < 1e-14, name
    for name in ("dissipation", "upper_gradient_sq", "diffusion_power"):
        assert 3.5 < errors[0][name] / errors[1][name] < 4.5, name


@pytest.mark.parametrize("mesh", [Circle(32), Fourier(16)])
def test_one_head_and_the_effective_flow_have_no_defect(mesh: Any) -> None:
    for flow, heads in (("softmax", CIRCLE_HEADS[:1]), ("effective", CIRCLE_HEADS)):
        run = solve(mesh, 0.02, heads=heads, flow=flow, kappa=0.1)
        assert float(abs(run.edi_defect).max()) < 1e-14


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("scheme", ["euler", "ssp2", "imex"])
def test_the_free_energy_of_the_unnormalised_flow_falls(direction: Any, scheme: Any) -> None:
    run = solve(
        Circle(32), 1.0, dt=0.05 if scheme == "imex" else None, kappa=0.1, flow="unnormalised",
        direction=direction, scheme=scheme,
    )  # fmt: skip
    assert (np.diff(run.free_energy[0]) < 1e-13).all()


def test_imex_lowers_the_free_energy_for_any_step_where_the_kernel_is_positive() -> None:
    # For D with eigenvalues >= 0 the energy is convex in the density; at the start of the step it
    # is above its tangent in ascent, and the entropy is treated implicitly.
    D = np.array([np.diag([2.0, 0.5])])
    run = solve(
        Circle(64), 200.0, lambda x: np.exp(2 * x[:, 1]), heads=D, dt=4.0, kappa=0.3,
        flow="unnormalised", direction="ascent", scheme="imex",
    )  # fmt: skip
    assert (np.diff(run.free_energy[0]) < 1e-13).all()
    # The end is a Gibbs state, rho ~ exp(phi/kappa), of the discrete equation itself.
    mesh = Circle(64)
    U = np.exp(mesh.centres @ D[0] @ mesh.centres.T)
    gibbs = np.exp(U @ (mesh.areas * last(run)) / 0.3)
    assert np.allclose(last(run), gibbs / mesh.integrate(gibbs), rtol=1e-8)


def test_the_energy_falls_along_the_effective_flow_without_diffusion() -> None:
    run = solve(Circle(64), 2.0, flow="effective")
    assert (np.diff(run.energy[0]) < 1e-13).all()


def test_densities_stay_positive_and_keep_their_mass(cases: Any) -> None:
    tried = settings(deadline=None, max_examples=cases(8, 1000), derandomize=True)
    tried(given(data=st.data())(positivity))()


def positivity(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    mesh = data.draw(st.sampled_from([Circle(5), Circle(24), Sphere(12), Sphere(42)]))
    kappa = data.draw(st.sampled_from([0.0, 1e-4, 0.1, 10.0]))
    scheme = data.draw(st.sampled_from(["euler", "ssp2", "ssp3", "imex"]))
    reconstruct = data.draw(st.sampled_from([None, scheme != "imex"]))
    d = mesh.dim + 1
    Z = rng.normal(size=(2, d, d)) * data.draw(st.sampled_from([0.1, 1.0, 2.0]))
    density = rng.random(mesh.cells) * (rng.random(mesh.cells) < 0.5)
    density[rng.integers(mesh.cells)] += 1.0
    run = solve(
        mesh, 0.02, density, heads=Z + np.swapaxes(Z, 1, 2), kappa=kappa,
        dt=0.005 if scheme == "imex" else None, scheme=scheme, reconstruct=reconstruct,
        flow=data.draw(st.sampled_from(FLOWS)), direction=data.draw(st.sampled_from([*DIRECTIONS])),
        save=wflow.SaveAt(snapshots=[0.01, 0.02]),
    )  # fmt: skip
    assert float(run.density.min()) >= 0.0
    # Strong heads take very many steps, each of which rounds.
    assert np.abs(run.density.values @ mesh.areas - 1).max() < 1e-11


@pytest.mark.parametrize(
    ("mesh", "kappa", "most"),
    [(Circle(64), 0.01, 100_000), (Fourier(8), 4.0, 5_000), (Harmonics(6), 4.0, 5_000)],
)
def test_mass_over_many_steps(mesh: Any, kappa: float, most: int, cases: Any) -> None:
    steps, d = cases(100, most), mesh.dim + 1
    run = solve(
        mesh, steps * 1e-3, lambda x: 2 + x[:, 0], law=Oscillating(d), heads=np.eye(d)[None] / 4,
        dt=1e-3, kappa=kappa, save=wflow.SaveAt(every=steps, budget=False),
    )  # fmt: skip
    assert abs(mesh.integrate(last(run)) - 1) < 1e-13


def test_a_turned_mesh_has_the_turned_solution() -> None:
    # A fifth of a turn about an axis through a corner maps the icosahedral grid to itself.
    mesh = Sphere(162)
    axis = mesh.centres[0]
    w = np.array([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]])
    angle = 2 * math.pi / 5
    R = np.eye(3) + math.sin(angle) * w + (1 - math.cos(angle)) * (w @ w)
    image = mesh.nearest(mesh.centres @ R.T)
    assert np.abs(mesh.centres[image] - mesh.centres @ R.T).max() < 1e-12
    D = wflow.heads.Oscillating(3).target(0.3, 2) / 3
    kwargs: Any = {"mesh": mesh, "t_final": 0.1, "dt": 0.01, "kappa": 0.05}
    plain = solve(heads=D, **kwargs)
    turned = solve(density=lambda x: start(x @ R), heads=R @ D @ R.T, **kwargs)
    assert np.abs(last(turned)[image] - last(plain)).max() < 1e-10


def test_heads_are_those_of_the_particles() -> None:
    law = OrnsteinUhlenbeck(np.eye(2))
    kwargs: Any = {
        "heads": 3, "t_final": 0.1, "dt": 0.01, "paths": 2, "seed": 5,
        "save": wflow.SaveAt(heads=True, paths=(0, 1)),
    }  # fmt: skip
    run = solve(Circle(16), law=law, **kwargs)
    particles = wflow.solve(wflow.tokens.uniform(5, 2, seed=0), law, **kwargs)
    assert np.array_equal(run.heads, particles.heads)


def test_heads_that_are_no_gradient_move_densities_by_their_velocities() -> None:
    D = CIRCLE_HEADS + np.array([[0.0, 0.4], [-0.4, 0.0]])
    save = wflow.SaveAt(budget=False)
    kwargs: Any = {"heads": D, "t_final": 0.2, "kappa": 0.1, "save": save}
    fine = last(solve(Circle(256), **kwargs))
    errors = [np.abs(last(solve(Circle(n), **kwargs)) - fine[:: 256 // n]) for n in (32, 64)]
    errors = [error.max() for error in errors]
    assert 3.3 < errors[0] / errors[1] < 5
    values = wflow.heads.QKV(*(np.eye(2)[None] for _ in range(3)))
    qkv = solve(Circle(32), 0.1, heads=values)
    tied = solve(Circle(32), 0.1, heads=np.eye(2)[None], direction="ascent")
    assert np.abs(last(qkv) - last(tied)).max() < 1e-3


class Half(wflow.Flow):
    """Half the velocity of softmax attention, in the same metric."""

    def velocity(self, cloud: Any) -> Any:
        return 0.5 * cloud.attention()

    def log_metric(self, cloud: Any) -> Any:
        return cloud.log_effective_mobility()


def test_custom_flows_run_and_keep_the_budget() -> None:
    kwargs: Any = {"mesh": Circle(64), "heads": CIRCLE_HEADS}
    run = solve(flow=Half(), t_final=0.4, kappa=0.05, **kwargs)
    plain = solve(t_final=0.2, kappa=0.1, **kwargs)
    assert np.abs(last(run) - last(plain)).max() < 1e-3
    assert float(run.dissipation[0, 0] / plain.dissipation[0, 0]) == pytest.approx(0.5, rel=1e-2)
    assert abs(float(run.edi_residual[0, -1])) < 1e-3


def test_the_entropy_has_the_sign_of_that_of_stationary_states() -> None:
    run = solve(Sphere(42), 0.01, np.ones(42), heads=np.eye(3)[None], kappa=0.1)
    assert float(run["entropy"][0, 0]) == pytest.approx(np.log(4 * np.pi))
    expected = float(run["energy"][0, 0]) - 0.1 * float(run["entropy"][0, 0])
    assert float(run["free_energy"][0, 0]) == pytest.approx(expected)


class Breaks(Half):
    """Has no velocity from some evaluation on."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.left = last

    def velocity(self, cloud: Any) -> Any:
        self.left -= 1
        return super().velocity(cloud) * (np.nan if self.left < 0 else 1.0)


@pytest.mark.parametrize("mesh", [Circle(16), Fourier(16)])
@pytest.mark.parametrize("evaluations", [0, 1, 3, 7])
@pytest.mark.parametrize("dt", [None, 0.01])
def test_velocities_that_are_no_numbers_end_the_run(mesh, evaluations, dt):
    with pytest.raises(wflow.BlowUpError, match="flow"):
        solve(mesh, 100.0 if dt is None else 0.1, flow=Breaks(evaluations), dt=dt)


@pytest.mark.parametrize("mesh", [Circle(64), Sphere(162), Fourier(16), Harmonics(10)])
@pytest.mark.parametrize("method", ["exact", "fast"])
def test_sums_by_torch_give_the_run_of_numba(mesh, method):
    pytest.importorskip("torch")
    d = mesh.dim + 1
    by_numba, by_torch = (
        solve(
            mesh, 0.02, law=OrnsteinUhlenbeck(np.eye(d)), heads=2, dt=0.01, kappa=0.1, paths=2,
            compute=wflow.Compute(method=method, **backend),
        )
        for backend in ({}, {"backend": "torch", "device": "cpu"})
    )  # fmt: skip
    assert '"backend": "torch"' in by_torch.attrs["config"]
    for name in ("density", "energy", "edi_residual"):
        np.testing.assert_allclose(by_torch[name], by_numba[name], rtol=1e-9, atol=1e-11)


BY_TORCH = {"method": "fast", "backend": "torch", "device": "cpu"}


@pytest.mark.parametrize(
    ("law", "mesh", "sums"),
    [
        (Oscillating(2), Circle(16), {}),
        (OrnsteinUhlenbeck(np.eye(2)), Circle(16), {}),
        (OrnsteinUhlenbeck(np.eye(2)), Circle(16), BY_TORCH),
        (Oscillating(2), Fourier(16), {}),
    ],
)
def test_a_run_in_a_file_resumes_to_the_same_bits(tmp_path, monkeypatch, law, mesh, sums):
    if sums:
        pytest.importorskip("torch")
    kwargs: Any = {
        "mesh": mesh, "heads": np.stack([np.eye(2), np.diag([0.5, -0.5])]), "t_final": 0.1,
        "kappa": 0.1, "paths": 2,
        "dt": None if law.deterministic else 0.001,
        "compute": wflow.Compute(checkpoint_every=0.0, **sums),
    }  # fmt: skip
    whole = solve(law=law, **kwargs)
    out = tmp_path / "run.h5"
    advance = Densities.advance

    def cut(self: Densities, step: int) -> int:
        if step == 60:
            raise MemoryError
        return advance(self, step)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(Densities, "advance", cut)
        solve(law=law, out=out, **kwargs)
    with meanfield.solve(start, law, out=out, if_exists="resume", **kwargs) as run:
        same_bits(run, whole)
    with wflow.open(out) as again:
        assert again.density.dims == ("snapshot_path", "snapshot", "cell")
        assert np.array_equal(again.centres, mesh.centres)


def test_tokens_are_deposited_with_their_mass() -> None:
    mesh, x = Sphere(42), wflow.tokens.uniform(100, 3, seed=1)
    run = solve(mesh, 0.01, x, heads=np.eye(3)[None])
    assert np.array_equal(run.initial_density, meanfield.density_of(x, mesh))


def test_a_step_that_the_bound_overtakes_is_refused_where_it_does() -> None:
    law = HeadLaw(lambda D, t: 40 * D)
    with pytest.raises(wflow.BlowUpError, match="bound") as caught:
        solve(Circle(16), 0.1, law=law, dt=1e-2)
    assert 0 < caught.value.time < 0.1


@pytest.mark.parametrize("beta", [708.0, 1e150])
@pytest.mark.parametrize("scheme", ["imex", "euler"])
def test_heads_out_of_range_blow_up_without_warnings_of_numpy(beta, scheme):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "an energy term")  # by wflow, once a run
        with pytest.raises((wflow.BlowUpError, wflow.InputError)):
            solve(
                meanfield.Circle(16), 0.02, lambda x: 1 + 0.1 * x[:, 0],
                heads=beta * np.eye(2)[None], dt=0.01, kappa=0.1, flow="unnormalised",
                scheme=scheme,
            )  # fmt: skip


@pytest.mark.parametrize(("mesh", "scheme"), [(Circle(32), "ssp3"), (meanfield.Fourier(10), "rk4")])
@pytest.mark.parametrize("method", ["velocity", "log_metric", "drift"])
def test_warnings_of_functions_of_the_user_are_not_ignored(method, mesh, scheme):
    def warns(name):
        return np.log(np.zeros(1) if name == method else np.ones(1))[0]

    class Own(wflow.Flow):
        name = "own"

        def velocity(self, cloud):
            warns("velocity")
            return 0 * cloud.x

        def log_metric(self, cloud):
            warns("log_metric")
            return np.zeros(cloud.x.shape[:2])

    # A stage of the schemes is at t = 0.005, within the step.
    law = HeadLaw(lambda D, t: 0 * D * (t == 0.005 and warns("drift") != 1))
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        solve(mesh, 0.01, law=law, dt=0.01, kappa=0.1, flow=Own(), scheme=scheme)


@pytest.mark.parametrize("method", ["velocity", "log_metric"])
@pytest.mark.parametrize("mesh", [Circle(8), Fourier(10)], ids=repr)
def test_what_a_flow_returns_for_one_path_is_not_taken_for_all(method, mesh):
    class Own(wflow.Flow):
        name = "own"

        def velocity(self, cloud):
            return 0 * cloud.x[0] if method == "velocity" else 0 * cloud.x

        def log_metric(self, cloud):
            return np.zeros(cloud.x.shape[1])

    with pytest.raises(wflow.InputError, match=rf"own\.{method}.* returned an array of .*shape"):
        solve(mesh, 0.02, dt=0.01, kappa=0.1, paths=2, flow=Own())
