"""Calls of every public function of the particle system with arguments that do not fit.

Each case starts from valid small arguments and replaces one or two of them. It passes if the call
works or raises an error of wflow, in a few seconds, without a numerical warning, and leaves every
argument as it was.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import json
import os
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

import wflow
from wflow import (
    clusters,
    equilibria,
    fits,
    flows,
    heads,
    jko,
    meanfield,
    metric,
    plots,
    sampling,
    sphere,
    stability,
    stationary,
    tokens,
    transport,
)
from wflow.heads import QKV, Frozen, HeadLaw, OrnsteinUhlenbeck, Schedule

SECONDS = 8.0  # of one call, compilation aside
SLOW = {"solve to a file", "distributed.solve"}  # on a disk, with the arguments of solve
TEXT = {("sphere.as_tokens", "name")}  # arguments that are used in messages alone
ROOM = 6 * 2**30  # bytes of address space beyond what the process has at the start

SPHERE, MODES = meanfield.Sphere(12), meanfield.Harmonics(4)

# What functions return or are handed: their arguments are taken as they are.
RESULTS = {
    "clusters.OmegaLimit", "clusters.PersistentCount", "clusters.Plateau", "clusters.Stationarity",
    "equilibria.Extremum", "fits.Line", "heads.Step", "jko.EnergyInequality", "jko.Step",
    "metric.Bounds", "flows.Cloud", "flows.Growth", "meanfield.Mesh", "meanfield.Modes",
    "metric.Distance", "sampling.AttentionMean", "stationary.State", "stationary.Transition",
    "transport.Entropic",
}  # fmt: skip


def public() -> set[str]:
    """Names of the public functions and classes, `module.name` or `name`."""
    found = {
        name
        for name in wflow.__all__
        if callable(value := getattr(wflow, name))
        and not (isinstance(value, type) and issubclass(value, BaseException))
    }
    for name in wflow._MODULES.keys() - {"nets", "study"}:  # test_net_calls, test_command_lines
        module = getattr(wflow, name)
        found |= {f"{name}.{n}" for n in module.__all__ if callable(getattr(module, n))}
    return found


class Case:
    """A function, and valid arguments of it by name; those left out have their defaults."""

    def __init__(self, call: Callable[..., Any], /, **arguments: Any) -> None:
        self.call, self.arguments = call, arguments
        with contextlib.suppress(ValueError):
            for name, parameter in inspect.signature(call).parameters.items():
                if parameter.default is not parameter.empty:
                    self.arguments.setdefault(name, parameter.default)


@functools.cache
def runs() -> dict[str, Any]:
    """Small runs in memory."""
    options = {"heads": 2, "t_final": 0.4, "dt": 0.05, "paths": 2}
    options["save"] = wflow.SaveAt(snapshots=[0, 0.2, 0.4], paths=[0, 1], heads=True)
    x, y = (tokens.uniform(5, 3, seed=seed) for seed in (0, 1))
    law = OrnsteinUhlenbeck(np.eye(3), sigma2=0.1)
    return {
        "run": wflow.solve(x, law, **options),
        "other": wflow.solve(y, law, **options),
        "speed": wflow.solve(x, law, causal=True, **options),
        "bare": wflow.solve(x, law, **{**options, "save": wflow.SaveAt(snapshots=[], paths=[])}),
        "densities": meanfield.solve(np.ones(12), law, mesh=SPHERE, heads=2, t_final=0.1, dt=0.01),
    }


def cloud(n: int = 5, d: int = 3, seed: int = 0) -> np.ndarray:
    return tokens.uniform(n, d, seed=seed)


def matrices(count: int = 2, d: int = 3) -> np.ndarray:
    z = np.random.default_rng(3).standard_normal((count, d, d))
    return (z + z.swapaxes(1, 2)) / 4


def study_in(folder: Path) -> str:
    """The folder of a study that has a summary and no runs."""
    study = folder / "study"
    study.mkdir(exist_ok=True)
    attrs = {"schema": "wflow-study/1", "study": "trial"}
    (study / "summary.json").write_text(json.dumps(attrs))
    xarray.Dataset({"mean": 1.0}, attrs=attrs).to_netcdf(study / "summary.h5", engine="h5netcdf")
    return str(study)


def posterior_and_prior(x: Any, y: Any, n: Any, seed: Any, **given: Any) -> np.ndarray:
    problem = sampling.forward.InverseProblem(**given)
    return np.append(problem.log_posterior(x, y)[0], problem.prior(n, seed))


def defined(function: Any) -> Any:
    """A diagnostic that is NaN, as it says, for what is constant: there with zeros."""
    return lambda samples: np.nan_to_num(function(samples))


def table(folder: Path) -> dict[str, Case]:
    """Valid arguments of every public function; `folder` is for files."""
    x, y, D, run, other = cloud(), cloud(seed=1), matrices(), runs()["run"], runs()["other"]
    law, file = OrnsteinUhlenbeck(np.eye(3), sigma2=0.1), str(folder / "run.h5")
    flow = {"flow": "softmax", "direction": "descent"}
    few = {"tolerance": 1e-6, "max_iterations": 50}
    steps, clouds = {"segments": 2, **few}, {"weights_x": np.full(5, 0.2)}
    options = {
        "heads": 2, "t_final": 0.2, "dt": 0.1, "paths": 1, "seed": 0, **flow, "scheme": "euler",
        "causal": False, "kappa": 0.0, "save": wflow.SaveAt(), "compute": wflow.Compute(),
        "if_exists": "error", "progress": False,
    }  # fmt: skip
    short = {"x0": x, "law": law, "heads": 2, "t_final": 0.2, "dt": 0.1}
    limit = {**options, "law": law, "out": None, "reconstruct": None}
    del limit["causal"]
    proximal = {"h": 0.1, "beta": 1.0, "prior": sampling.L1(2.0)}
    sampler = {"h": 0.05, "steps": 3, "snapshots": [0, 3]}
    fit = fits.power_law([1, 2, 4], np.array([[1.0, 1.1], [0.5, 0.6], [0.3, 0.2]]), resamples=50)
    rate = stability.growth_rate([0, 1, 2], [[1.0, 2.0, 3.0], [1.0, 2.5, 3.0]], resamples=50)
    circle = {name: run.drop_vars("heads") for name in ("ds",)}
    saved = folder / "saved.npy"
    np.save(saved, np.ones((4, 3)) + np.eye(4, 3))
    return {
        "solve": Case(wflow.solve, x0=x, law=law, **options),
        "solve to a file": Case(
            wflow.solve, x0=x, law=law, out=file, **{**options, "if_exists": "overwrite"}
        ),
        "SaveAt": Case(
            lambda **save: wflow.solve(**short, save=wflow.SaveAt(**save)), every=1,
            snapshots=[0.0, 0.2], paths=[0], heads=False, budget=None,
        ),
        "Compute": Case(
            lambda **compute: wflow.solve(**short, compute=wflow.Compute(**compute)), method="auto",
            tolerance=1e-10, backend="numba", device=None, dtype="float64", threads=None,
            batch=None, checkpoint_every=15.0,
        ),
        "Dopri5": Case(wflow.Dopri5),
        "Tableau": Case(
            wflow.Tableau, name="midpoint", order=2, nodes=(0.0, 0.5), matrix=((), (0.5,)),
            weights=(0.0, 1.0), embedded=(1.0, 0.0), embedded_order=1,
        ),
        "rerun": Case(wflow.rerun, path=file, compute=wflow.Compute(), dt=0.1),
        "open": Case(wflow.open, path=file),
        "open_study": Case(wflow.open_study, folder=study_in(folder)),
        "report": Case(wflow.report, source=file, out=str(folder / "report.html")),
        "verify": Case(wflow.verify, path=file, tolerance=1e-3),
        "energy": Case(wflow.energy, x=x, D=D),
        "velocity": Case(wflow.velocity, x=x, D=D),
        "upper_gradient_sq": Case(wflow.upper_gradient_sq, x=x, D=D),
        "dissipation": Case(wflow.dissipation, x=x, D=D),
        "edi_defect": Case(wflow.edi_defect, x=x, D=D),
        "mobility": Case(wflow.mobility, x=x, D=D),
        "effective_mobility": Case(wflow.effective_mobility, x=x, D=D),
        "distributed.solve": Case(
            wflow.distributed.solve, x0=x, law=law, out=file, task_seconds=1.0,
            **{**options, "if_exists": "overwrite"},
        ),
        "clusters.count": Case(clusters.count, x=x, scale=0.5),
        "clusters.labels": Case(clusters.labels, x=x, scale=0.5),
        "clusters.sizes": Case(clusters.sizes, x=x, scale=0.5),
        "clusters.persistent_count": Case(clusters.persistent_count, x=x),
        "clusters.order_parameter": Case(clusters.order_parameter, x=x),
        "clusters.nematic_order": Case(clusters.nematic_order, x=x),
        "clusters.entropy": Case(clusters.entropy, x=x, nodes=4),
        "clusters.stationarity": Case(clusters.stationarity, x=x, D=D),
        "clusters.over_time": Case(
            clusters.over_time, run=run, scale=0.5, quantities=["count", "entropy"]
        ),
        "clusters.time_to_one_cluster": Case(clusters.time_to_one_cluster, run=run, scale=0.5),
        "clusters.time_to_first_cluster": Case(clusters.time_to_first_cluster, run=run, scale=0.5),
        "clusters.plateaus": Case(
            clusters.plateaus, times=np.array([0.1, 1.0, 9.0]), counts=np.array([3.0, 3.0, 1.0])
        ),
        "clusters.omega_limit": Case(clusters.omega_limit, run=run, tail=0.9, windows=4),
        "equilibria.dirac_energy": Case(equilibria.dirac_energy, D=D[0], v=x[0]),
        "equilibria.pair_energy": Case(equilibria.pair_energy, D=D[0], v=x[0]),
        "equilibria.maximum": Case(equilibria.maximum, D=D[0]),
        "equilibria.minimum": Case(equilibria.minimum, D=D[0]),
        "equilibria.lower_bound": Case(equilibria.lower_bound, x=x, D=D[0] @ D[0], starts=4),
        "equilibria.uniform_energy": Case(equilibria.uniform_energy, beta=1.5, d=3),
        "equilibria.sampled_energy": Case(equilibria.sampled_energy, n=5, beta=1.5, d=3),
        "equilibria.minimal_cloud_energy": Case(
            equilibria.minimal_cloud_energy, n=4, beta=1.5, d=3
        ),
        "fits.PowerLaw": Case(fit.__call__, x=np.array([1.0, 2.0])),
        "fits.PowerLaw.band": Case(fit.band, x=np.array([1.0, 2.0])),
        "fits.power_law": Case(
            fits.power_law, x=np.array([1.0, 2.0, 4.0]), y_paths=np.abs(x[:3]) + 0.1, level=0.9,
            resamples=20,
        ),
        "fits.line": Case(
            fits.line, x=np.array([1.0, 2.0, 4.0]), y_paths=np.abs(x[:3]) + 0.1, of=np.log,
            level=0.9, resamples=20,
        ),
        "fits.mean_and_error": Case(fits.mean_and_error, samples=x, axis=0),
        "fits.json_number": Case(fits.json_number, value=1.5),
        "Flow": Case(wflow.Flow),
        "flows.Flow": Case(flows.Flow),
        "flows.flow_config": Case(flows.flow_config, flow="effective"),
        "flows.flow_from_config": Case(flows.flow_from_config, config="effective"),
        "flows.register": Case(flows.register, cls=flows.Softmax),
        "heads.QKV": Case(
            lambda **given: QKV(**given).matrices(), query=D, key=D, value=D, scale=1.0
        ),
        "heads.Frozen": Case(Frozen),
        "heads.HeadLaw": Case(HeadLaw, drift=lambda D, t: -D, diffusion=0.5),
        "heads.OrnsteinUhlenbeck": Case(OrnsteinUhlenbeck, mean=np.eye(3)),
        "heads.Oscillating": Case(heads.Oscillating, d=3),
        "heads.Schedule": Case(Schedule, times=[0.0, 1.0], values=np.stack([D, 2 * D])),
        "heads.CompoundPoisson": Case(heads.CompoundPoisson, law=law, rate=2.0, size=0.5),
        "heads.law_config": Case(heads.law_config, law=law),
        "heads.register": Case(heads.register, cls=OrnsteinUhlenbeck),
        "heads.law_from_config": Case(heads.law_from_config, config=heads.law_config(law)),
        "jko.step": Case(jko.step, x=x, D=D, tau=0.1, **steps),
        "jko.step weighted": Case(jko.step, x=x, D=D, tau=0.1, **{**steps, "metric": "weighted"}),
        "jko.variational_interpolation": Case(
            jko.variational_interpolation, x=x, D=D, tau=0.1, r=0.05, **steps
        ),
        "jko.energy_inequality": Case(jko.energy_inequality, x=x, D=D, tau=0.1, nodes=3, **steps),
        "jko.minimizing_movements": Case(
            jko.minimizing_movements, x0=x, law=law, heads=2, t_final=0.2, tau=0.1, dt=0.05, **steps
        ),
        "metric.action": Case(
            metric.action, curve=np.stack([x, y, x]), times=np.array([0.0, 0.5, 1.0]), D=D
        ),
        "metric.metric_derivative": Case(metric.metric_derivative, x=x, v=y, D=D),
        "metric.bounds": Case(metric.bounds, x=x, y=y, D=D),
        "metric.weighted_distance": Case(
            metric.weighted_distance, x=x, y=y, D=D, segments=2, **few
        ),
        "plots.energy_balance": Case(plots.energy_balance, ds=run),
        "plots.bifurcation": Case(
            plots.bifurcation,
            branches=stationary.branch(
                np.eye(2), stationary.Nodes.axial(2, 12), 1, kappa=(0.2, 1.0), max_points=3
            ),
        ),
        "plots.gradient_over_time": Case(plots.gradient_over_time, datasets={1: run, 2: other}),
        "plots.gradient_against_heads": Case(
            plots.gradient_against_heads, heads=[1, 2, 4], values=np.abs(x[:3]) + 0.1, fit=fit
        ),
        "plots.animate": Case(
            plots.animate, run=run, file=str(folder / "a.gif"), frames=2, fps=10.0, dpi=30.0
        ),
        "plots.clusters_over_time": Case(plots.clusters_over_time, ds=run, scale=0.5),
        "plots.heads_over_time": Case(plots.heads_over_time, ds=run),
        "plots.free_energy_over_time": Case(plots.free_energy_over_time, ds=runs()["densities"]),
        "plots.density_snapshots": Case(
            plots.density_snapshots, ds=runs()["densities"], times=[0.1]
        ),
        "plots.token_snapshots": Case(plots.token_snapshots, times=[0.2], **circle),
        "plots.plot_run": Case(plots.plot_run, ds=runs()["speed"], out_dir=str(folder / "figures")),
        "sampling.brwp": Case(sampling.brwp, x0=x, grad=np.tanh, prior=sampling.L1(0.5), **sampler),
        "sampling.myula": Case(
            sampling.myula, x0=x, grad=np.tanh, prior=sampling.L1(0.5), smoothing=0.1, **sampler
        ),
        "sampling.ula": Case(sampling.ula, x0=x, grad=np.tanh, **sampler),
        "sampling.targets.GaussianMixture": Case(
            lambda n, seed, **given: sampling.targets.GaussianMixture(**given).sample(n, seed),
            means=x, scale=0.5, weights=np.ones(5), lam=0.5, beta=2.0, n=3, seed=0,
        ),
        "sampling.targets.GaussianLaplace": Case(
            lambda points, **given: sampling.targets.GaussianLaplace(**given).log_density(points),
            mean=x[0],
            scale=0.5,
            lam=1.0,
            beta=2.0,
            points=x,
        ),
        "sampling.targets.BayesianLasso": Case(
            lambda points, **given: sampling.targets.BayesianLasso(**given).subgradient(points),
            matrix=x, data=np.ones(5), noise=0.5, lam=1.0, beta=1.0, points=x,
        ),
        "sampling.forward.Elliptic": Case(
            lambda source, **given: sampling.forward.Elliptic(**given).solve(source), dim=3,
            outputs=2, cells=8, alpha=0.01, width=0.1, source=np.ones(8),
        ),
        "sampling.forward.Lorenz": Case(
            lambda x, w, **given: sampling.forward.Lorenz(**given).vjp(x, w), windows=1, window=0.2,
            spin_up=0.0, dt=0.1, start=np.ones(3), centre=np.ones(3), scale=0.1, x=x, w=y,
        ),
        "sampling.forward.Impedance": Case(
            lambda x, points, **given: sampling.forward.Impedance(**given).conductivity(x, points),
            bumps=(1, 2),
            cells=4,
            patterns=2,
            electrodes=4,
            width=0.5,
            scale=0.5,
            basis=None,
            voltages=None,
            x=x[:, :2],
            points=np.full((3, 2), 0.5),
        ),
        "sampling.forward.InverseProblem": Case(
            posterior_and_prior, model=sampling.forward.Elliptic(3, 3, cells=8), lam=1.0,
            noise=np.full(3, 0.1), x=x, y=y, n=3, seed=0,
        ),
        "sampling.forward.Summary": Case(
            lambda y, **given: sampling.forward.Summary(**given)(y), mean=np.zeros(3), matrix=D[0],
            y=y,
        ),
        "sampling.reference.bayesian_lasso": Case(
            sampling.reference.bayesian_lasso, matrix=x, data=np.ones(5), lam=1.0, noise=0.5,
            draws=4, warmup=2,
        ),
        "sampling.reference.metropolis": Case(
            sampling.reference.metropolis, log_density=lambda x: (-0.5 * (x**2).sum(1), -x),
            start=x, gradient=True, covariance=np.eye(3), draws=4, warmup=2,
        ),
        "sampling.reference.pcn": Case(
            sampling.reference.pcn, log_likelihood=lambda x: -0.5 * (x**2).sum(1), dim=2, draws=4,
            warmup=2, chains=2,
        ),
        "sampling.reference.climb": Case(
            sampling.reference.climb, log_density=lambda x: (-0.5 * (x**2).sum(1), -x), start=x,
            iterations=5,
        ),
        "sampling.reference.tempered": Case(
            sampling.reference.tempered, log_likelihood=lambda x: -0.5 * (x**2).sum(1),
            log_prior=lambda x: -np.abs(x).sum(1), start=x, moves=2,
        ),
        "sampling.reference.laplace_from_normal": Case(
            sampling.reference.laplace_from_normal, xi=x, lam=1.0
        ),
        "sampling.reference.rank_test": Case(
            sampling.reference.rank_test, truth=x, draws=np.stack([x, y, y, x], 1), bins=2
        ),
        "sampling.reference.r_hat": Case(defined(sampling.reference.r_hat), samples=x.T),
        "sampling.reference.ess": Case(defined(sampling.reference.ess), samples=x.T),
        "sampling.frechet": Case(sampling.frechet, x=x, y=y + 0.5),
        "sampling.mmd": Case(sampling.mmd, x=x, y=y, bandwidths=np.array([0.5, 2.0])),
        "sampling.sliced_w2": Case(sampling.sliced_w2, x=x, y=y, projections=8),
        "sampling.w2": Case(sampling.w2, x=x, y=y + 0.5),
        "sampling.L1": Case(sampling.L1, lam=2.0),
        "sampling.NoPrior": Case(sampling.NoPrior),
        "sampling.Prior": Case(sampling.L1(2.0).log_normaliser, y=y, h=0.1, beta=1.0),
        "sampling.SmoothL1": Case(sampling.SmoothL1, lam=2.0),
        "sampling.separable": Case(
            sampling.separable, value=np.abs, derivative=np.sign, kinks=[0.0]
        ),
        "sampling.attention_mean": Case(
            sampling.attention_mean, x=x, context=y, **proximal, covariance=True
        ),
        "sampling.backward": Case(sampling.backward, x=x, context=y, **proximal),
        "sampling.backward_inverse": Case(
            sampling.backward_inverse, y=x, context=y, **proximal, tolerance=1e-12,
            max_iterations=50,
        ),
        "sampling.folded": Case(sampling.folded, x=x, context=y, **proximal),
        "sampling.interaction": Case(
            sampling.interaction, x=x, y=y, h=0.1, beta=1.0, prior=sampling.L1(2.0)
        ),
        "sampling.layer": Case(sampling.layer, x=x, context=y, **proximal),
        "sampling.score": Case(sampling.score, x=x, context=y, **proximal),
        "sphere.as_tokens": Case(sphere.as_tokens, x=y + 1.0),
        "sphere.normalise": Case(sphere.normalise, x=y + 1.0),
        "sphere.project": Case(sphere.project, x=x, v=y),
        "sphere.exponential": Case(sphere.exponential, x=x, u=sphere.project(x, y)),
        "stability.bound": Case(
            stability.bound, distance=np.array([0.1, 0.0]), exponent=np.array([1.0, 2.0])
        ),
        "stability.growth_constant": Case(stability.growth_constant, D=D),
        "stability.exponent": Case(stability.exponent, run=run),
        "stability.GrowthRate": Case(rate.__call__, t=np.array([0.0, 1.0])),
        "stability.growth_rate": Case(
            stability.growth_rate, times=np.array([0.0, 1.0, 2.0]),
            distances=np.array([[1.0, 2.0, 3.0], [1.0, 2.5, 3.0]]), level=0.9, resamples=20,
        ),
        "stability.compare": Case(stability.compare, run=run, other=other, costs=("chordal",)),
        "stationary.kernel_eigenvalue": Case(stationary.kernel_eigenvalue, beta=1.5, d=3, degree=1),
        "sampling.evolve_density": Case(
            sampling.evolve_density, density=np.ones(40), potential=np.abs,
            edges=np.linspace(-4, 4, 41), times=[0.1, 0.2], dt=0.05,
        ),
        "stationary.critical_diffusion": Case(
            stationary.critical_diffusion, beta=[1.5, -0.5], d=3, **flow
        ),
        "stationary.growth_rate": Case(
            stationary.growth_rate, beta=[1.5, -0.5], d=3, degree=2, kappa=0.1, **flow
        ),
        "stationary.transition": Case(
            stationary.transition, beta=[1.5, -0.5], d=3, flow="effective"
        ),
        "stationary.Nodes": Case(
            stationary.Nodes,
            centres=stationary.Nodes.circle(8).centres,
            areas=np.full(8, np.pi / 4),
        ),
        "stationary.density": Case(
            stationary.density, D=np.eye(2)[None], kappa=0.3, mesh=stationary.Nodes.circle(16),
            tolerance=1e-10, max_iterations=20, **flow,
        ),
        "stationary.branch": Case(
            stationary.branch, D=np.eye(2)[None], mesh=stationary.Nodes.axial(2, 12), start=1,
            kappa=(0.2, 1.0), step=0.3, max_points=4, defect=0.001,
        ),
        "stationary.stationary_order": Case(stationary.stationary_order, beta=4.0, d=3, kappa=0.2),
        "meanfield.Circle": Case(meanfield.Circle, cells=8),
        "meanfield.Sphere": Case(meanfield.Sphere, cells=12),
        "meanfield.Sphere of points": Case(meanfield.Sphere, cells=tokens.uniform(30, 3, seed=0)),
        "meanfield.Fourier": Case(meanfield.Fourier, degree=5),
        "meanfield.Harmonics": Case(meanfield.Harmonics, degree=4),
        "meanfield.density_of": Case(meanfield.density_of, tokens=x, mesh=SPHERE),
        "meanfield.sample": Case(meanfield.sample, density=np.ones(12), mesh=SPHERE, n=5),
        "meanfield.solve": Case(
            meanfield.solve, **{**limit, "kappa": 0.1, "scheme": "imex"}, density=np.ones(12),
            mesh=SPHERE,
        ),
        "meanfield.solve in harmonics": Case(
            meanfield.solve,
            **{**limit, "heads": np.eye(3)[None], "kappa": 1.0, "t_final": 0.02, "dt": 0.01},
            density=np.ones(MODES.cells),
            mesh=MODES,
        ),
        "transport.density_distance": Case(
            transport.density_distance, density=np.ones(12), other=x, mesh=SPHERE
        ),
        "tokens.cross_polytope": Case(tokens.cross_polytope, n=5, d=3),
        "tokens.uniform": Case(tokens.uniform, n=5, d=3),
        "tokens.clusters": Case(tokens.clusters, n=5, d=3, clusters=2),
        "tokens.digits": Case(tokens.digits, n=5),
        "tokens.load": Case(tokens.load, path=saved, d=3, n=3),
        "tokens.make": Case(tokens.make, spec="uniform", n=5, d=3),
        "tokens.pca": Case(tokens.pca, z=y, d=2),
        "transport.assignment": Case(transport.assignment, x=x, y=y),
        "transport.distance": Case(transport.distance, x=x, y=y),
        "transport.plan": Case(transport.plan, x=x, y=y, **clouds),
        "transport.transport_map": Case(transport.transport_map, x=x, y=y, **clouds),
        "transport.Metric": Case(transport.Metric),
        "transport.W2": Case(transport.W2),
        "transport.Weighted": Case(transport.Weighted, segments=2),
        "transport.wasserstein": Case(transport.wasserstein, x=x, y=y, **clouds, projections=5),
        "transport.w1": Case(transport.w1, x=x, y=y, method="sliced", projections=5, seed=0),
        "transport.w2": Case(transport.w2, x=cloud(4, 2), y=cloud(5, 2), method="circle"),
        "transport.weighted_distance": Case(
            transport.weighted_distance, x=x, y=y, D=D, segments=2, **few
        ),
        "transport.entropic": Case(
            transport.entropic, x=x, y=y, **clouds, tolerance=0.1, max_iterations=200
        ),
        "transport.over_time": Case(transport.over_time, run=run, paths=[0, 1], method="exact"),
    }  # fmt: skip


class Breaks:
    """An object of a user that fails whatever it is asked for."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("no array")

    def __len__(self) -> int:
        raise ZeroDivisionError("no length")

    def __index__(self) -> int:
        raise ZeroDivisionError("no index")

    def __float__(self) -> float:
        raise ZeroDivisionError("no number")

    def __fspath__(self) -> str:
        raise ZeroDivisionError("no path")

    def __bool__(self) -> bool:
        raise ZeroDivisionError("no truth")

    def __repr__(self) -> str:
        raise ZeroDivisionError("no text")


class Pretends:
    """An object that answers with something else than it is asked for."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        return [1.0, 2.0]

    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, k: int) -> int:
        return k

    def __float__(self) -> float:
        return 0.5

    def __fspath__(self) -> Any:
        return b"\xff"


class Nested:
    """An object whose array is one of objects."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.array([None, "a"], dtype=object)


HUGE = [2**31, 2**40, 2**62, 2**63, 2**70, -(2**70), 10**400, 1e150, 1e308, -1e308]
SMALL = [0, -1, 1, 2, 7, 3.7, -2.5, 1e-300, 5e-324, -0.0, float("nan"), float("inf"), -float("inf")]
NUMPY = [
    np.int64(3), np.int8(-1), np.uint64(2**63), np.float32(0.5), np.float16(0.1), np.bool_(True),
    np.longdouble("1e4000"), np.complex128(1j), np.str_("1"), np.datetime64("2020-01-01"),
    np.timedelta64(3, "s"), np.array(3), np.array(0.5), np.array("a"), np.array([]), np.ma.masked,
    np.array([[1.0, 2.0]]), np.array([True, False]),
]  # fmt: skip
TEXTS = ["", ".", "..", "1", "0.5", "abc", "\0", "\ud800", "x" * 300, "a/" * 3000, "x.partial"]
TEXTS += ["no/such/folder/x.h5", "softmax", "exact", "final", "mean", "cross-polytope", "true"]
OTHERS = [
    None, True, False, 1j, b"1", b"\xff", [], (), {}, [1, 2], [1, "2"], [[1], [1, 2]], {1: 2},
    {1.5}, range(3), object(), Breaks(), Pretends(), Nested(), len, int, Decimal("1.5"),
    Fraction(1, 2), Path("x"), Path("/"), slice(3), np, Frozen(), [None], ["a", "b"],
]  # fmt: skip


ANY = [*HUGE, *SMALL, *NUMPY, *TEXTS, *OTHERS]  # what takes the place of any argument


def layouts(array: np.ndarray, folder: Path) -> list[np.ndarray]:
    """Arrays of the same numbers, laid out in other ways."""
    doubled = np.repeat(array, 2, axis=0)[::2]
    frozen = array.copy()
    frozen.flags.writeable = False
    mapped = np.memmap(folder / "memmap", dtype=float, mode="w+", shape=array.shape or (1,))
    mapped = mapped.reshape(array.shape)
    mapped[...] = array
    swapped = array.astype(array.dtype.newbyteorder())
    backwards = array[::-1].copy()[::-1]
    return [
        np.asfortranarray(array), doubled, frozen, mapped, swapped, backwards, np.ma.array(array),
        array.astype(np.longdouble), array.tolist(),
    ]  # fmt: skip


def spoiled(array: np.ndarray, rng: np.random.Generator) -> list[Any]:
    """Arrays of another type, shape or content."""
    place = tuple(rng.integers(size) for size in array.shape) if array.size else ()
    with_one = {}
    for value in (np.nan, np.inf, -np.inf, 1e200, 0.0):
        with_one[value] = array.copy()
        with_one[value][place] = value
    mask = np.zeros(array.shape, bool)
    mask[place] = True
    wide = np.broadcast_to(0.5, (2**40, *array.shape[1:]))
    with np.errstate(over="ignore", invalid="ignore"):
        types = [array.astype(kind) for kind in ("f4", "f2", "i8", "u1", "c16", "U", "S", "O", "?")]
    return [
        *types, *with_one.values(), np.ma.array(array, mask=mask), wide,
        [np.ma.array(row, mask=True) for row in array], np.asarray(array).astype("M8[s]"),
        np.zeros(array.shape, [("a", "f8"), ("b", "i4")]), array[:0], array[..., :0], array[0],
        array[:1], array[None], array[..., None], array.T, array[:, None], array.ravel(),
        np.concatenate([array, array]), np.zeros_like(array), array * 1e150, array * 1e-200,
        array * 1e16, array * 1e4, -array, [*array.tolist()[:1], None], np.array(0.5),
        array + 1e-6, array[::-1], array * (1 + 1e-12),
    ]  # fmt: skip


def spoiled_run(ds: Any) -> list[Any]:
    """Runs that lack something."""
    text = ds.assign_attrs(config="{")
    bare = ds.drop_vars(["tokens", "density"], errors="ignore")
    one = ds["centres" if "centres" in ds else "initial_tokens"]
    parts = [
        {"time": slice(0, 0)}, {"snapshot": slice(0, 0)}, {"path": slice(0, 0)},
        {"snapshot_path": slice(0, 0)}, {"snapshot": slice(0, 1)}, {"axis": slice(0, 2)},
    ]  # fmt: skip
    return [
        bare, ds.drop_attrs(), text, ds.assign_attrs(config="[]"), one,
        *(ds.isel(part, missing_dims="ignore") for part in parts),
        ds * 1e3, ds * np.nan, *runs().values(),
    ]  # fmt: skip


def replacement(value: Any, rng: np.random.Generator, folder: Path) -> Any:
    """Something to pass in the place of a valid value."""
    choices: list[Any] = ANY
    if isinstance(value, np.ndarray) and rng.random() < 0.75:
        choices = layouts(value, folder) if rng.random() < 0.25 else spoiled(value, rng)
    elif isinstance(value, dict) and rng.random() < 0.5:
        keys = list(value)
        broken = dict(value)
        broken[keys[rng.integers(len(keys))]] = choices[rng.integers(len(choices))]
        choices = [broken, {key: value[key] for key in keys[1:]}, {}]
    elif hasattr(value, "data_vars") and rng.random() < 0.5:
        choices = spoiled_run(value)
    return choices[rng.integers(len(choices))]


def out_of_scope(name: str, argument: str, value: Any) -> bool:
    """Whether a call would start processes, or take long because it is asked for much."""
    if argument in ("workers", "scheduler"):
        return bool(isinstance(value, str) or (isinstance(value, int | np.integer) and value > 0))
    if (name, argument) in (
        ("clusters.entropy", "directions"), ("sampling.reference.tempered", "moves"),
    ):  # fmt: skip
        return isinstance(value, int | np.integer) and value >= 2**31
    return False


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Bound the memory, and end a call that hangs."""

    def expire(*_: Any) -> None:
        raise TimeoutError

    with open("/proc/self/statm", encoding="ascii") as sizes:
        used = int(sizes.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, expire)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGALRM, handler)


def is_numerical(warning: warnings.WarningMessage) -> bool:
    """Whether a warning comes from arithmetic or a deprecated use, not from a check of wflow."""
    text = str(warning.message)
    if issubclass(warning.category, RuntimeWarning):
        return any(words in text for words in ("encountered", "empty slice", "Degrees of freedom"))
    kinds = (DeprecationWarning, FutureWarning, np.exceptions.ComplexWarning)
    return issubclass(warning.category, kinds)


def snapshot(value: Any) -> Any:
    """A copy of what must not change: arrays, and the data of runs."""
    if isinstance(value, np.ndarray) and value.size < 10**6:
        return type(value), value.dtype, value.shape, value.strides, np.asarray(value).tobytes()
    if hasattr(value, "data_vars"):
        return {k: v.values.tobytes() for k, v in value.variables.items()}, copy.copy(value.attrs)
    if isinstance(value, list | dict):
        with contextlib.suppress(Exception):
            return repr(value)
    return None


def failure(case: Case, arguments: dict[str, Any]) -> str | None:
    """What is wrong with a call, None for nothing."""
    before = {name: snapshot(value) for name, value in arguments.items()}
    said = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            result = case.call(**arguments)
            if isinstance(result, float | np.ndarray) and np.isnan(result).any():
                said = "returns NaN"
            if hasattr(result, "close"):
                result.close()
        except wflow.WflowError as error:
            if len(str(error)) > 1500:
                said = f"a message of {len(str(error))} characters"
        except TimeoutError:
            said = f"takes more than {SECONDS:g} s"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"[:300]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    if said is None:
        warned = [w for w in caught if is_numerical(w)]
        if warned:
            where = f"{warned[0].filename}:{warned[0].lineno}"
            said = f"{warned[0].category.__name__}: {warned[0].message} ({where})"
    changed = [name for name, value in arguments.items() if snapshot(value) != before[name]]
    return f"changes {changed[0]}" if changed and said is None else said


def shown(value: Any) -> str:
    try:
        if isinstance(value, np.ndarray):
            return f"{type(value).__name__} {value.dtype} {value.shape} {value.strides}"
        return " ".join(repr(value).split())[:150]
    except Exception:
        return type(value).__name__


def prepared(folder: Path) -> dict[str, Case]:
    """Valid arguments, after every function was called once with them: compiled code is loaded."""
    valid = table(folder)
    wflow.solve(**valid["solve to a file"].arguments).close()
    for case in valid.values():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = case.call(**case.arguments)
            if hasattr(result, "close"):
                result.close()
    return valid


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calls")


@pytest.fixture(scope="module")
def valid(folder: Path) -> dict[str, Case]:
    return prepared(folder)


def test_every_public_function_and_argument_is_fuzzed(valid):
    known = {name.split(" ")[0].removesuffix(".band") for name in valid}
    assert public() - known == RESULTS & public()
    for name, case in valid.items():
        with contextlib.suppress(ValueError):
            parameters = inspect.signature(case.call).parameters.values()
            named = {
                p.name for p in parameters if p.kind != p.VAR_KEYWORD and p.kind != p.VAR_POSITIONAL
            }
            assert named <= set(case.arguments), name


def fuzzed(valid: dict[str, Case], folder: Path, count: int, seed: int = 0) -> list[str]:
    """Make calls and return what was wrong with them."""
    names = sorted(valid)
    wrong = []
    with limits():
        for k in range(count):
            rng = np.random.default_rng([seed, k])
            name = names[k % len(names)]
            case = valid[name]
            arguments = dict(case.arguments)
            open_ones = [argument for argument in arguments if (name, argument) not in TEXT]
            swapped = rng.permutation(open_ones)[: 1 + (rng.random() < 0.3)]
            for argument in swapped:
                value = replacement(arguments[argument], rng, folder)
                while out_of_scope(name, argument, value):
                    value = replacement(arguments[argument], rng, folder)
                arguments[argument] = value
                if isinstance(value, int | float) and abs(value) > 1e9:
                    break  # one huge number at a time: two may ask for what fits, but takes long
            said = failure(case, arguments)
            if said is not None:
                given = ", ".join(f"{a}={shown(arguments[a])}" for a in swapped)
                wrong.append(f"{k}: {name}({given}): {said}")
    return wrong


def test_calls_work_or_raise_an_error_of_wflow(valid, folder, monkeypatch, cases):
    monkeypatch.chdir(folder)
    wrong = fuzzed(valid, folder, cases(250, 2500))
    assert not wrong, "\n".join(wrong)


def forms(value: Any, folder: Path) -> list[Any]:
    """A valid value in other forms that mean the same."""
    if isinstance(value, np.ndarray):
        return [*layouts(value, folder), value.astype(object)]
    if type(value) is bool:
        return [np.bool_(value)]
    if type(value) is int:
        return [np.int64(value), np.int16(value), np.array(value)]
    if type(value) is not float:
        return []
    decimals = [Fraction(repr(value)), Decimal(repr(value)), np.array(value)]
    return [np.float64(value), np.longdouble(value), np.float32(value), *decimals]


def strangers(name: str, argument: str, value: Any) -> list[Any]:
    """What may look like a valid value of its kind, and must be refused."""
    if isinstance(value, np.ndarray):
        mask = np.zeros(value.shape, bool)
        mask.flat[0] = True
        kinds = ("U", "M8[s]", "c16", "?")
        unset = value.astype(object)
        unset.flat[0] = None
        return [
            np.ma.array(value, mask=mask),
            [np.ma.array(value, mask=mask)[0]],
            *(value.astype(int).astype(kind) for kind in kinds),
            *(value.astype(kind).astype(object) for kind in ("U", "c16", "?")),
            unset,
        ]
    if type(value) is bool:
        return ["no", "False", 0, 1, 0.0, np.int64(1), [True], None]
    if type(value) in (int, float):
        strange = ["1", b"1", True, np.bool_(True), 1j, np.ma.masked, np.timedelta64(1, "s")]
        return [*strange, float("nan")] if name != "fits.json_number" else strange
    return []


def as_plain(result: Any) -> Any:
    """A result in a form that can be compared; a run without the moment at which it was made."""
    if hasattr(result, "subtree"):
        return [as_plain(node.to_dataset()) for node in result.subtree]
    if hasattr(result, "data_vars"):
        result = result.drop_attrs().assign_attrs(
            {k: v for k, v in result.attrs.items() if k not in ("created", "history")}
        )
        return result.to_dict()
    if isinstance(result, meanfield.Modes):
        return [result.centres, result.areas, result.degree]
    if isinstance(result, meanfield.Mesh):
        return [result.centres, result.areas, result.faces]
    if isinstance(result, HeadLaw):
        return heads.law_config(result)
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return dataclasses.asdict(result)
    if isinstance(result, stationary.Nodes):
        return [result.centres, result.areas]
    if isinstance(result, stationary.State):
        return [result.density, result.kappa]
    return result.to_dict() if hasattr(result, "coords") else result


def test_valid_values_in_other_forms_give_the_same_results(valid, folder, monkeypatch, cases):
    monkeypatch.chdir(folder)
    rng, most = np.random.default_rng(0), cases(1, 99)
    with limits():
        for name, case in valid.items():
            if name in SLOW or name.startswith("plots."):
                continue
            expected = as_plain(case.call(**case.arguments))
            for argument, value in case.arguments.items():
                others = forms(value, folder)
                for k in rng.permutation(len(others))[:most]:
                    form = others[k]
                    given = {**case.arguments, argument: form}
                    assert failure(case, given) is None, (name, argument, type(form))
                    found = as_plain(case.call(**given))
                    np.testing.assert_equal(found, expected, err_msg=f"{name}, {argument}")


def test_what_is_no_number_no_switch_and_no_array_is_refused(valid, folder, monkeypatch):
    monkeypatch.chdir(folder)
    taken = []
    for name, case in valid.items():
        for argument, value in case.arguments.items():
            for strange in strangers(name, argument, value):
                with contextlib.suppress(wflow.InputError):
                    case.call(**{**case.arguments, argument: strange})
                    taken.append(f"{name}: {argument} = {shown(strange)}")
    assert not taken, "\n".join(taken)
