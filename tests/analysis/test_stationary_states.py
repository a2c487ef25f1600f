"""Stationary densities and branches against the equation stepped in time, and closed forms."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

import wflow
from wflow import stationary
from wflow.analysis.stationary import Nodes

FLOWS = ["softmax", "unnormalised", "effective"]
SIGN = {"ascent": 1.0, "descent": -1.0}


def velocity(flow, m, g):
    """Return the ascent of heads with denominators m and gradients g."""
    if flow == "softmax":
        return (g / m).mean(axis=0)
    return g.mean(axis=0) * ((1 / m).mean(axis=0) if flow == "effective" else 1.0)


class Fourier:
    """d_t rho = kappa rho'' - (rho v)', by FFT, on equidistant angles; classical Runge-Kutta."""

    def __init__(self, D, kappa, flow, direction, count=64):
        self.angle = 2 * np.pi * np.arange(count) / count
        x = np.stack([np.cos(self.angle), np.sin(self.angle)], axis=1)
        self.tangent = np.stack([-x[:, 1], x[:, 0]], axis=1)
        self.kernels = np.exp(np.einsum("ia,hab,jb->hij", x, D, x))
        # P_x D y exp(<x, D y>), the gradient in closed form
        self.slopes = np.einsum("ia,hab,jb->hij", self.tangent, D, x) * self.kernels
        self.kappa, self.flow, self.sign = kappa, flow, SIGN[direction]
        self.wave = 1j * np.fft.fftfreq(count, 1 / count)

    def rate(self, rho):
        mass = rho * 2 * np.pi / len(rho)
        m, g = self.kernels @ mass, self.slopes @ mass
        v = velocity(self.flow, m, g)
        spectrum = self.kappa * self.wave**2 * np.fft.fft(rho)
        return np.fft.ifft(spectrum - self.wave * np.fft.fft(rho * self.sign * v)).real

    def run(self, rho, t_final, dt):
        for _ in range(round(t_final / dt)):
            a = self.rate(rho)
            b = self.rate(rho + dt / 2 * a)
            c = self.rate(rho + dt / 2 * b)
            rho = rho + dt / 6 * (a + 2 * b + 2 * c + self.rate(rho + dt * c))
        return rho

    def jacobian(self, rho, step=1e-6):
        """By central differences, on changes without mass."""
        eye = np.eye(len(rho)) - 1 / len(rho)
        columns = [self.rate(rho + step * e) - self.rate(rho - step * e) for e in eye.T]
        return np.stack(columns, axis=1) / (2 * step)


def heads(seed, count=2, d=2, scale=0.5):
    z = scale * np.random.default_rng(seed).standard_normal((count, d, d))
    return z + z.swapaxes(1, 2)


@pytest.mark.parametrize("direction", ["ascent", "descent"])
@pytest.mark.parametrize("flow", FLOWS)
def test_growth_rates_on_the_circle_are_those_of_a_numerical_linearisation(flow, direction) -> None:
    betas, kappa = np.array([2.0, 0.7, -1.1]), 0.3
    solver = Fourier(betas[:, None, None] * np.eye(2), kappa, flow, direction, 32)
    matrix = solver.jacobian(np.full(32, 0.5 / np.pi))
    for degree in (1, 2, 3):
        mode = np.cos(degree * solver.angle)
        known = mode @ matrix @ mode / (mode @ mode)
        found = stationary.growth_rate(betas, 2, degree, kappa, flow, direction)
        assert found == pytest.approx(known, abs=2e-7)


def linearised(betas, kappa, flow, direction, degree, count=40):
    """On the sphere: the weak form on Legendre nodes, by differences of the velocity in height."""
    z, w = special.roots_legendre(count)
    w = w / 2
    kernels = np.array([special.i0(b * np.sqrt(np.outer(1 - z**2, 1 - z**2))) for b in betas])
    kernels = kernels * np.exp(betas[:, None, None] * np.outer(z, z))
    values = np.polynomial.legendre.legvander(z, count - 1)

    def slope(f):
        coefficients = (values * w[:, None]).T @ f * (2 * np.arange(count) + 1)
        return np.polynomial.legendre.legval(z, np.polynomial.legendre.legder(coefficients))

    def rate(p):
        m = kernels @ (w * p)
        dm = np.array([slope(each) for each in m])
        v = velocity(flow, m, dm)
        own = values[:, degree]
        flux = SIGN[direction] * p * v - kappa * slope(p)
        return (w * (1 - z**2) * slope(own)) @ flux / (w @ own**2)

    step = 1e-5 * values[:, degree]
    return (rate(1 + step) - rate(1 - step)) / 2e-5


@pytest.mark.parametrize("direction", ["ascent", "descent"])
@pytest.mark.parametrize("flow", FLOWS)
def test_growth_rates_on_the_sphere_are_those_of_a_legendre_solver(flow, direction) -> None:
    betas, kappa = np.array([2.0, 0.7, -1.1]), 0.3
    for degree in (1, 2, 3):
        known = linearised(betas, kappa, flow, direction, degree)
        found = stationary.growth_rate(betas, 3, degree, kappa, flow, direction)
        assert found == pytest.approx(known, abs=1e-7)


factors = st.lists(st.floats(-6, 6).filter(lambda b: abs(b) > 1e-3), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(factors, st.integers(2, 30), st.sampled_from(FLOWS), st.sampled_from(["ascent", "descent"]))
def test_no_mode_grows_above_the_critical_diffusion_and_one_does_below(betas, d, flow, way) -> None:
    critical = stationary.critical_diffusion(betas, d, flow, way)
    rates = [stationary.growth_rate(betas, d, k, critical, flow, way) for k in range(1, 60)]
    assert max(rates) <= 1e-12 * (1 + max(map(abs, rates)))
    if critical > 0:
        below = [stationary.growth_rate(betas, d, k, critical / 2, flow, way) for k in range(1, 60)]
        assert max(below) > 0
        assert stationary.transition(betas, d, flow, way).kappa == critical
    else:
        assert stationary.transition(betas, d, flow, way).order == "none"


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 50), st.integers(2, 40), st.integers(0, 12))
def test_eigenvalues_change_their_sign_with_odd_degrees(beta, d, degree) -> None:
    value = stationary.kernel_eigenvalue(beta, d, degree)
    assert stationary.kernel_eigenvalue(-beta, d, degree) == (-1) ** degree * value
    assert value >= stationary.kernel_eigenvalue(beta, d, degree + 1) >= 0


def test_equal_heads_are_one_head_and_flows_of_one_head_agree() -> None:
    for flow in FLOWS:
        one = stationary.transition(2.0, 3, flow)
        assert stationary.transition([2.0, 2.0], 3, flow)[2:4] == pytest.approx(one[2:4], abs=1e-14)
    assert stationary.transition(2.0, 3, "softmax") == stationary.transition(2.0, 3, "effective")


def test_without_interaction_nothing_grows() -> None:
    assert stationary.kernel_eigenvalue(0.0, 3, 0) == 1.0
    assert stationary.critical_diffusion(0.0, 3) == 0.0
    assert stationary.growth_rate(0.0, 3, 2, 0.5) == -3.0


def test_the_transition_without_denominator_turns_where_the_ratio_is_one_over_d() -> None:
    for d in (2, 3, 7):
        turn = optimize.brentq(
            lambda b, d=d: stationary.transition(b, d, "unnormalised").cubic, 0.3, 9
        )
        ratio = stationary.kernel_eigenvalue(turn, d, 2) / stationary.kernel_eigenvalue(turn, d, 1)
        assert ratio == pytest.approx(1 / d, rel=1e-9)


@pytest.mark.parametrize("d", [2, 3, 5, 40])
def test_with_the_softmax_one_head_orders_continuously(d) -> None:
    for beta in np.geomspace(0.01, 400, 15):
        found = stationary.transition(float(beta), d)
        assert (found.degree, found.order) == (1, "continuous")


@pytest.mark.parametrize(
    ("d", "betas", "flow", "degree"),
    [
        (2, [2.0], "softmax", 1),
        (3, [3.0], "unnormalised", 1),
        (3, [3.0, 1.0], "softmax", 1),
        (3, [3.0, 1.0], "effective", 1),
        (2, [3.0, -3.0], "effective", 2),
        (5, [2.0, 0.5], "effective", 1),
        (3, [4.0, -4.0], "softmax", 2),
    ],
)
def test_branches_leave_the_uniform_density_as_the_amplitude_equation_says(
    d, betas, flow, degree
) -> None:
    D, nodes = np.multiply.outer(betas, np.eye(d)), Nodes.axial(d, 32)
    found = stationary.transition(betas, d, flow)
    assert found.degree == degree
    limits = found.kappa / 2, found.kappa * 2
    options = {"kappa": limits, "flow": flow, "step": 0.02, "max_points": 2}
    branch = stationary.branch(D, nodes, degree, **options).isel(point=1)
    polynomial = (
        (lambda z: special.eval_gegenbauer(degree, d / 2 - 1, z))
        if d > 2
        else (lambda z: np.cos(degree * np.arccos(z)))
    )
    p = nodes.areas * polynomial(nodes.centres[:, -1]) / polynomial(1.0)
    share = p @ branch.density.values / (p @ (p / nodes.areas))
    amplitude = float(share) * nodes.areas.sum()
    bend = 1 - float(branch.kappa) / found.kappa
    if np.isnan(found.cubic):
        assert bend / amplitude == pytest.approx(found.quadratic, rel=0.05)
    else:
        assert bend / amplitude**2 == pytest.approx(found.cubic, rel=0.01)


@pytest.mark.parametrize("direction", ["ascent", "descent"])
@pytest.mark.parametrize("flow", FLOWS)
def test_densities_of_several_heads_rest_and_relax_at_the_rates_of_the_equation(
    flow, direction
) -> None:
    D, kappa = heads(5), 0.5
    state = stationary.density(D, kappa, Nodes.circle(64), flow=flow, direction=direction)
    assert state.residual < 1e-10 and state.defect < 1e-9 and state.stable
    solver = Fourier(D, kappa, flow, direction)
    assert np.abs(solver.rate(state.density)).max() < 1e-9
    rates = np.linalg.eigvals(solver.jacobian(state.density))
    known = np.sort(rates.real[np.abs(rates) > 1e-6])[::-1][:3]
    assert state.growth(3)[0].real == pytest.approx(known, abs=1e-5)


def test_a_long_run_from_a_disturbed_uniform_density_ends_on_the_stable_branch() -> None:
    D, kappa = 2 * np.eye(2)[None], 0.4
    solver = Fourier(D, kappa, "softmax", "ascent", 32)
    rho = solver.run((1 + 0.1 * np.cos(solver.angle)) / (2 * np.pi), 30.0, 1e-2)
    state = stationary.density(D, kappa, Nodes.axial(2, 48))
    exact = state.at(np.stack([np.sin(solver.angle), np.cos(solver.angle)], axis=1))
    assert rho == pytest.approx(exact, abs=1e-7)


@pytest.mark.parametrize("flow", FLOWS)
def test_the_axis_and_the_whole_sphere_give_the_same_density_and_rates(flow) -> None:
    D = np.multiply.outer([2.0, 0.8], np.eye(3))
    kappa = 0.8 * stationary.critical_diffusion([2.0, 0.8], 3, flow)
    state = stationary.density(D, kappa, Nodes.axial(3, 40), flow=flow)
    nodes = Nodes.sphere(12)
    whole = stationary.density(D, kappa, nodes, flow=flow, start=state.at(nodes.centres))
    assert whole.order == pytest.approx(state.order, abs=1e-5)
    assert whole.free_energy == pytest.approx(state.free_energy, abs=1e-5)
    # Orders 1 and 2 around the axis are pairs; the two rotations are left out of both.
    sectors = state.growth(3).real
    expected = np.sort(np.r_[sectors[0], np.repeat(sectors[1:].ravel(), 2)])[::-1]
    assert whole.growth(5)[0].real == pytest.approx(expected[:5], abs=2e-3)


def test_the_stationary_flux_of_effective_need_not_vanish_on_the_circle() -> None:
    D = heads(1, 3)
    state = stationary.density(D, 0.6, Nodes.circle(64), flow="effective")
    solver = Fourier(D, 0.6, "effective", "ascent")
    assert np.abs(solver.rate(state.density)).max() < 1e-9
    assert state.density.min() > 0
    points = np.stack([np.cos(solver.angle + 0.01), np.sin(solver.angle + 0.01)], axis=1)
    spectrum = np.fft.fft(state.density) * np.exp(0.01 * solver.wave)
    assert state.at(points) == pytest.approx(np.fft.ifft(spectrum).real, abs=1e-10)


def test_a_mesh_with_centres_and_areas_gives_the_density_at_its_order() -> None:
    # A Fibonacci cloud with the areas of its Voronoi cells; errors fall like those of a quadrature.
    from scipy.spatial import SphericalVoronoi

    D, errors = np.diag([1.0, -0.5, 2.0])[None], []
    fine = stationary.density(D, 0.4, Nodes.sphere(14))
    for count in (150, 600):
        k = np.arange(count) + 0.5
        z, angle = 1 - 2 * k / count, np.pi * (1 + 5**0.5) * k
        x = np.stack([np.cos(angle), np.sin(angle), z], axis=1)
        x[:, :2] *= np.sqrt(1 - z * z)[:, None]
        mesh = SimpleNamespace(centres=x, areas=SphericalVoronoi(x).calculate_areas(), dim=3)
        state = stationary.density(D, 0.4, mesh, start=fine.at(x))
        errors.append(np.abs(state.density - fine.at(x)).max() / fine.density.max())
    assert errors[0] < 0.03 and errors[1] < errors[0] / 2


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from(FLOWS[:2]), st.floats(0.5, 2))
def test_states_solve_the_formula_at_any_point(seed, count, flow, kappa) -> None:
    D, points = heads(seed, count, scale=0.4), wflow.tokens.uniform(6, 2, seed=seed)
    nodes = Nodes.circle(64)
    state = stationary.density(D, kappa, nodes, flow=flow)
    m = np.exp(np.einsum("ia,hab,jb->hij", points, D, nodes.centres)) @ (
        nodes.areas * state.density
    )
    potential = (m if flow == "unnormalised" else np.log(m)).mean(axis=0) / kappa
    ratio = np.log(state.at(points)) - potential
    assert np.ptp(ratio) < 1e-9
    assert nodes.areas @ state.density == pytest.approx(1, abs=1e-13)


def test_energies_are_those_of_a_cloud_of_the_nodes() -> None:
    D, kappa = heads(3), 0.7
    state = stationary.density(D, kappa, Nodes.circle(48), flow="unnormalised")
    x, mass = state.nodes.centres, state.nodes.areas * state.density
    kernels = np.exp(np.einsum("ia,hab,jb->hij", x, D, x))
    energy = np.einsum("i,hij,j->", mass, kernels, mass) / (2 * len(D))
    assert state.energy == pytest.approx(energy, rel=1e-12)
    entropy = -mass @ np.log(state.density)
    assert state.entropy == pytest.approx(entropy, rel=1e-10)
    assert state.free_energy == pytest.approx(-energy - kappa * entropy, rel=1e-10)


def folded(**options):
    D, nodes = 4 * np.eye(2), Nodes.axial(2, 40)
    options = {"kappa": (6.0, 20.0), "flow": "unnormalised", "step": 0.25} | options
    return stationary.branch(D, nodes, 1, **options)


@pytest.fixture(scope="module")
def branch():
    return folded()


def test_a_branch_turns_at_its_fold_and_changes_its_stability_there(branch) -> None:
    fold = int(np.flatnonzero(branch.fold)[0])
    critical = branch.attrs["critical_diffusion"]
    assert branch.fold.sum() == 1 and float(branch.kappa[fold]) == float(branch.kappa.max())
    assert float(branch.kappa[fold]) > 1.05 * critical
    assert not branch.stable[: fold + 1].any() and branch.stable[fold + 1 :].all()
    assert abs(float(branch.growth[fold].max())) < 1e-6
    assert float(branch.residual.max()) < 1e-10 and float(branch.defect.max()) < 1e-4
    assert "limits" in branch.attrs["end"]


def test_the_fold_is_where_no_density_is_found_beyond(branch) -> None:
    limit = float(branch.kappa[branch.fold][0])
    D, nodes = 4 * np.eye(2), Nodes.axial(2, 40)
    below = stationary.density(D, limit * (1 - 1e-3), nodes, flow="unnormalised")
    beyond = stationary.density(D, limit * (1 + 1e-3), nodes, flow="unnormalised")
    assert below.order > 0.4 and beyond.order < 1e-6
    assert folded(step=0.1).kappa.max() == pytest.approx(limit, rel=1e-8)


def test_free_energy_turns_by_the_entropy_along_a_branch(branch) -> None:
    # dF/dkappa = -S at stationary densities of a gradient flow.
    fine = folded(step=0.05, kappa=(9.0, 20.0)).isel(point=slice(-8, None))
    kappa, free = fine.kappa.values, fine.free_energy.values
    slopes = np.diff(free) / np.diff(kappa)
    middle = (fine.entropy.values[1:] + fine.entropy.values[:-1]) / 2
    assert slopes == pytest.approx(-middle, rel=2e-3)
    # Where both are stable the lower one is the uniform density near the fold, not near kappa_c.
    stable = branch.isel(point=branch.stable.values)
    gap = stable.free_energy - stable.free_energy_uniform
    assert float(gap[0]) > 0 > float(gap[int(np.argmin(np.abs(stable.kappa.values - 9.76)))])


def test_a_branch_goes_on_from_a_state_in_both_directions() -> None:
    D, nodes = heads(4), Nodes.circle(48)
    state = stationary.density(D, 0.6, nodes)
    down = stationary.branch(D, nodes, state, kappa=(0.4, 0.9))
    up = stationary.branch(D, nodes, state, kappa=(0.4, 0.9), side=-1)
    assert down.kappa.values[-1] < 0.4 and up.kappa.values[-1] > 0.9
    for branch in (down, up):
        kappa = float(branch.kappa[1])
        again = stationary.density(D, kappa, nodes, start=branch.density[1].values)
        assert again.density == pytest.approx(branch.density[1].values, abs=1e-9)


def test_both_sides_of_a_transcritical_branch_are_followed() -> None:
    D, nodes = np.multiply.outer([4.0, -4.0], np.eye(3)), Nodes.axial(3, 40)
    options = {"kappa": (0.3, 1.0), "step": 0.25}
    up, down = (stationary.branch(D, nodes, 2, side=side, **options) for side in (1, -1))
    assert up.kappa.max() > up.attrs["critical_diffusion"] and up.fold.sum() == 1
    assert down.kappa.max() == down.attrs["critical_diffusion"] and not down.fold.any()
    assert up.stable[-1] and not down.stable.any()
    assert float(up.order.max()) < 1e-9 < 0.3 < float(up.pair_order[-1])


def test_the_figure_has_dashes_where_the_branch_is_unstable(branch) -> None:
    figure = wflow.plots.bifurcation({"one": branch, "same": branch}, relative=True)
    lines = figure.axes[0].get_lines()
    assert {line.get_linestyle() for line in lines} >= {"-", "--"}
    fold = next(line for line in lines if line.get_marker() == "o")
    assert fold.get_xdata()[0] == pytest.approx(float(branch.kappa.max()) / float(branch.kappa[0]))
    difference = wflow.plots.bifurcation(branch, "free_energy_difference").axes[0]
    assert difference.get_ylabel().startswith("Free energy")


def test_a_narrow_density_has_a_large_defect() -> None:
    narrow = stationary.density(8 * np.eye(2), 0.02, Nodes.axial(2, 24))
    assert narrow.defect > 1e-3
    assert stationary.density(8 * np.eye(2), 0.02, Nodes.axial(2, 96)).defect < 1e-4
