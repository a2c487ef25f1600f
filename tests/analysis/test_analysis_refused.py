"""What the functions of `wflow.analysis` refuse, with the words of the message that matter."""

import functools

import numpy as np
import pytest
import xarray

import wflow
from wflow import clusters, equilibria, fits, stability, stationary
from wflow.analysis.stationary import Nodes
from wflow.heads import QKV, Frozen, OrnsteinUhlenbeck, Oscillating

X, EYE, CIRCLE, AXIAL = np.eye(3), np.eye(2), Nodes.circle(16), Nodes.axial(2, 16)
GENERAL = QKV(*np.random.default_rng(0).standard_normal((3, 2, 3, 3)))
LAW = OrnsteinUhlenbeck(0.3 * np.eye(3), rate=1.0, sigma2=0.2)
ONES = np.ones((2, 2))
POWER = fits.power_law([1, 2, 4], np.array([[1.0, 1.1], [0.5, 0.6], [0.3, 0.2]]), resamples=10)
BOUNDS = {"heads": 2, "t_final": 0.4, "dt": 0.1, "seed": 1}


@functools.cache
def bare() -> xarray.Dataset:
    """Return a run without tokens."""
    options = {"heads": 1, "t_final": 1.0, "dt": 0.1, "save": wflow.SaveAt(paths=())}
    return wflow.solve(wflow.tokens.uniform(5, 3), Frozen(), **options)


def run(law=LAW, x=X, **changes) -> xarray.Dataset:
    return wflow.solve(x, law, **(BOUNDS | changes))


def exponent(law=LAW, **changes) -> xarray.DataArray:
    return stability.exponent(run(law, **changes))


def compared(law=LAW, x=X, **changes) -> xarray.Dataset:
    return stability.compare(run(), run(law, x, **changes))


REFUSED = [
    (lambda: clusters.labels(2 * X, 0.1), "normalise"),
    (lambda: clusters.count(X, 30), "radians"),
    (lambda: clusters.plateaus([1, 2], [1]), "counts"),
    (lambda: clusters.plateaus([2, 1], [1, 1]), "increasing"),
    (lambda: clusters.over_time("missing.h5", 0.1), "missing.h5"),
    (lambda: clusters.over_time(bare(), 0.1), "holds no tokens.*SaveAt"),
    (lambda: clusters.time_to_first_cluster(bare(), 0.1), "holds no tokens.*SaveAt"),
    (lambda: clusters.over_time(run(), 0.1, quantities=["clusters"]), "largest_share"),
    (lambda: clusters.omega_limit(bare(), windows=20), "too few"),
    (lambda: clusters.omega_limit(bare().drop_vars("weight_power")), "neither .* nor speed_sq"),
    (lambda: clusters.omega_limit(bare().isel(time=slice(0, 0))), "no record times"),
    (lambda: equilibria.minimum(np.diag([1.0, 2.0])), "closed form"),
    (lambda: equilibria.pair_energy(X, share=1.5), "share"),
    (lambda: equilibria.maximum([[0.0, 1.0], [0.0, 0.0]]), "not symmetric"),
    (lambda: equilibria.pair_energy(X, [1.0, 1.0, 0.0]), "unit vector"),
    (lambda: equilibria.minimal_cloud_energy(7, 1.0, 3), "n = 7"),
    (lambda: equilibria.lower_bound(EYE, np.diag([1.0, -1.0])), "eigenvalue -1"),
    (lambda: equilibria.lower_bound(2 * EYE, EYE), "unit sphere"),
    (lambda: fits.power_law([2, 2], ONES), "two different x"),
    (lambda: fits.power_law([1, 2], [1.0, 2.0]), "one path"),
    (lambda: fits.power_law([0, 2], ONES), r"x\[0\] is 0.0"),
    (lambda: fits.power_law([1, 2], [[1.0, 0.0], [1, 1]]), r"y_paths\[0, 1\] is 0.0"),
    (lambda: POWER.band([-1.0]), "positive"),
    (lambda: fits.line([0, 1], ONES, of="log"), "of is 'log'.*TypeError"),
    (lambda: compared(seed=2), "differ in .*seed"),
    (lambda: compared(flow="effective"), "differ in .*flow"),
    (lambda: compared(OrnsteinUhlenbeck(X)), "differ in law"),
    (lambda: compared(save=wflow.SaveAt(snapshots=[0.1, 0.2])), "snapshot times"),
    (lambda: stability.compare(run(Frozen(), heads=1), run(Frozen(), EYE, heads=1)),
     "dimension 3 and 2"),
    (lambda: stability.compare(run(), run(), costs=("euclidean",)), "expected one of chordal"),
    (lambda: stability.compare(run(), run(), law=OrnsteinUhlenbeck(X)), "law differs"),
    (lambda: stability.exponent(run(), law=Frozen()), "law differs"),
    (lambda: exponent(Frozen(), heads=GENERAL), "Q, K, V"),
    (lambda: exponent(Frozen(), causal=True), "causal"),
    (lambda: exponent(Frozen(), kappa=0.1), "noise on the tokens"),
    (lambda: stability.exponent(run(Oscillating(3)), weights="snapshots"), r"SaveAt\(heads=True\)"),
    (lambda: stability.exponent(run().drop_vars("tokens")), "no tokens"),
    (lambda: stability.exponent(run().drop_attrs()), "no run of wflow"),
    (lambda: stability.growth_rate([0, 1], [0, 2]), "positive"),
    (lambda: stability.growth_rate([0, 0], [1, 2]), "increasing"),
    (lambda: stationary.stationary_order(1.0, 3, 1e-5), "too narrow to resolve; take kappa >="),
    (lambda: stationary.stationary_order(800.0, 3, 1.0, "unnormalised"), "take a smaller beta"),
    (lambda: stationary.stationary_order(1e5, 3, 1.0), "take beta <="),
    (lambda: stationary.stationary_order(1.0, 3000, 0.1), "d is 3000"),
    (lambda: stationary.density([[0, 1], [0, 0]], 1.0, CIRCLE), "not symmetric"),
    (lambda: stationary.density(X, 1.0, CIRCLE), "dimension 3 and the mesh is in"),
    (lambda: stationary.density(100 * EYE, 1.0, CIRCLE), "resolve kernels up to 8.53"),
    (lambda: stationary.density([[0, 1], [1, 0]], 1.0, AXIAL), "need heads with"),
    (lambda: stationary.density(2 * EYE, 0.1, Nodes.axial(2, 48), max_iterations=0,
                                tolerance=1e-14), "no stationary density was found at kappa"),
    (lambda: Nodes(np.eye(4), np.ones(4)), "areas must be > 0 with the sum 19.7"),
    (lambda: Nodes(wflow.tokens.uniform(30, 4), np.full(30, np.pi**2 / 15)), "d = 2, 3"),
    (lambda: stationary.branch(EYE, CIRCLE, 1, kappa=(0.1, 1)), "Nodes.axial"),
    (lambda: stationary.branch(EYE, AXIAL, 1, kappa=(1, 0.1)), "least < largest"),
    (lambda: stationary.branch(-EYE, AXIAL, 1, kappa=(0.1, 1)), "no branch"),
    (lambda: stationary.branch(EYE, CIRCLE, stationary.density(2 * EYE, 0.3, CIRCLE),
                               kappa=(0.1, 1.0)), "no stationary density of these heads"),
    (lambda: wflow.verify(run().drop_attrs()), "no run: expected a run file"),
    (lambda: wflow.verify(run().assign_attrs(config="{")), "no run: expected a run file"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_used_is_refused(call, words):
    with pytest.raises(wflow.WflowError, match=words):
        call()
