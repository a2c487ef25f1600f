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
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from bounds import Hangs, bounded, within

import wflow
from wflow import fits, heads, meanfield, sampling, sphere, stability, stationary, tokens
from wflow.heads import Frozen, HeadLaw, OrnsteinUhlenbeck
from wflow.plots import figure
from wflow.sampling import forward, targets

SECONDS = 8.0  # of one call, compilation aside
SLOW = {"solve to a file", "distributed.solve", "verify"}  # on a disk
TEXT = {("sphere.as_tokens", "name")}  # arguments that are used in messages alone
ROOM = 6 * 2**30  # bytes of address space beyond what the process has at the start

SPHERE, MODES = meanfield.Sphere(12), meanfield.Harmonics(4)

# What functions return or are handed: their arguments are taken as they are.
RESULTS = {
    "Comparison", "Gradient", "clusters.OmegaLimit", "clusters.PersistentCount", "clusters.Plateau",
    "clusters.Stationarity", "control.Steering", "inference.Fit", "inference.Undecided",
    "equilibria.Extremum", "fits.Line", "heads.Step", "jko.EnergyInequality", "jko.Step",
    "metric.Bounds", "flows.Cloud", "flows.Growth", "meanfield.Mesh", "meanfield.Modes",
    "metric.Distance", "sampling.AttentionMean", "stationary.State", "stationary.Transition",
    "transport.Entropic",
}  # fmt: skip


def public() -> set[str]:
    """Return names of the public functions and classes, `module.name` or `name`."""
    found = {
        name
        for name in wflow.__all__
        if callable(value := getattr(wflow, name))
        and not (isinstance(value, type) and issubclass(value, BaseException))
    }
    # Of test_net_calls, test_command_lines, and of libraries that may be missing.
    for name in wflow._MODULES.keys() - {"nets", "study", "interop"}:
        module = getattr(wflow, name)
        found |= {f"{name}.{n}" for n in module.__all__ if callable(getattr(module, n))}
    return found


class Case:
    """A function, and valid arguments of it by name; those left out have their defaults."""

    def __init__(self, call: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self.call, self.arguments = call, dict(arguments)
        with contextlib.suppress(ValueError):
            for name, parameter in inspect.signature(call).parameters.items():
                if parameter.default is not parameter.empty:
                    self.arguments.setdefault(name, parameter.default)


def cloud(n: int = 5, d: int = 3, seed: int = 0) -> np.ndarray:
    return tokens.uniform(n, d, seed=seed)


X, Y, LAW = cloud(), cloud(seed=1), OrnsteinUhlenbeck(np.eye(3), sigma2=0.1)
SHORT = {"x0": X, "law": LAW, "heads": 2, "t_final": 0.2, "dt": 0.1}


@functools.cache
def runs() -> dict[str, Any]:
    """Return the small runs in memory."""
    options = {"law": LAW, "heads": 2, "t_final": 0.4, "dt": 0.05, "paths": 2}
    options["save"] = wflow.SaveAt(snapshots=[0, 0.2, 0.4], paths=[0, 1], heads=True)
    bare = {**options, "save": wflow.SaveAt(snapshots=[], paths=[])}
    return {
        "run": wflow.solve(X, **options),
        "other": wflow.solve(Y, **options),
        "speed": wflow.solve(X, causal=True, **options),
        "bare": wflow.solve(X, **bare),
        "densities": meanfield.solve(np.ones(12), LAW, mesh=SPHERE, heads=2, t_final=0.1, dt=0.01),
    }


def study_in(folder: Path) -> str:
    """Return the folder of a study that has a summary and no runs."""
    study = folder / "study"
    study.mkdir(exist_ok=True)
    attrs = {"schema": "wflow-study/1", "study": "trial"}
    (study / "summary.json").write_text(json.dumps(attrs))
    xarray.Dataset({"mean": 1.0}, attrs=attrs).to_netcdf(study / "summary.h5", engine="h5netcdf")
    return str(study)


def posterior_and_prior(x: Any, y: Any, n: Any, seed: Any, **given: Any) -> np.ndarray:
    problem = forward.InverseProblem(**given)
    return np.append(problem.log_posterior(x, y)[0], problem.prior(n, seed))


def defined(function: Any) -> Any:
    """Return a diagnostic that is NaN, as it says, for what is constant: there with zeros."""
    return lambda samples: np.nan_to_num(function(samples))


def then(cls: type, method: str) -> Callable[..., Any]:
    """Make an object and call its method, with the arguments of both."""

    def call(**given: Any) -> Any:
        own = {name: given.pop(name) for name in inspect.signature(cls).parameters if name in given}
        return getattr(cls(**own), method)(**given)

    return call


FIT = fits.power_law([1, 2, 4], np.array([[1.0, 1.1], [0.5, 0.6], [0.3, 0.2]]), resamples=50)
RATE = stability.growth_rate([0, 1, 2], [[1.0, 2.0, 3.0], [1.0, 2.5, 3.0]], resamples=50)


def swept(
    grid: Any, x0: Any, law: Any, on_error: Any = "nan", out: Any = None, progress: Any = False,
    **solve: Any,
) -> Any:  # fmt: skip
    """Sweep without workers, and without a function of the user, whose errors are its own."""
    given = {"on_error": on_error, "out": out, "progress": progress}
    return wflow.sweep(grid, x0, law, **given, **solve)


# What is called otherwise than by its name.
CALLS: dict[str, Callable[..., Any]] = {
    "sweep": swept,
    "SaveAt": lambda **save: wflow.solve(**SHORT, save=wflow.SaveAt(**save)),
    "Compute": lambda **compute: wflow.solve(**SHORT, compute=wflow.Compute(**compute)),
    "fits.PowerLaw": FIT.__call__,
    "fits.PowerLaw.band": FIT.band,
    "heads.QKV": then(heads.QKV, "matrices"),
    "sampling.Prior": sampling.L1(2.0).log_normaliser,
    "sampling.targets.GaussianMixture": then(targets.GaussianMixture, "sample"),
    "sampling.targets.GaussianLaplace": then(targets.GaussianLaplace, "log_density"),
    "sampling.targets.BayesianLasso": then(targets.BayesianLasso, "subgradient"),
    "sampling.forward.Elliptic": then(forward.Elliptic, "solve"),
    "sampling.forward.Lorenz": then(forward.Lorenz, "vjp"),
    "sampling.forward.Impedance": then(forward.Impedance, "conductivity"),
    "sampling.forward.InverseProblem": posterior_and_prior,
    "sampling.forward.Summary": then(forward.Summary, "__call__"),
    "sampling.reference.r_hat": defined(sampling.reference.r_hat),
    "sampling.reference.ess": defined(sampling.reference.ess),
    "stability.GrowthRate": RATE.__call__,
}


def arguments(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the valid arguments of every public function; `folder` is for files."""
    found: dict[str, dict[str, Any]] = {}

    def add(module: str, names: str, **given: Any) -> None:
        """Let functions of a module, "" for the root, have these arguments."""
        found.update({f"{module}.{name}".lstrip("."): given for name in names.split(", ")})

    z = np.random.default_rng(3).standard_normal((2, 3, 3))
    D, run, other = (z + z.swapaxes(1, 2)) / 4, runs()["run"], runs()["other"]
    file, saved, three = str(folder / "run.h5"), folder / "saved.npy", np.array([1.0, 2.0, 4.0])
    np.save(saved, np.ones((4, 3)) + np.eye(4, 3))
    D2, positive = np.eye(2)[None], np.abs(X[:3]) + 0.1

    # fmt: off
    flow = {"flow": "softmax", "direction": "descent"}
    options = {
        **SHORT, "paths": 1, "seed": 0, **flow, "scheme": "euler", "causal": False, "kappa": 0.0,
        "save": wflow.SaveAt(), "compute": wflow.Compute(), "if_exists": "error", "progress": False,
    }
    add("", "gradient", loss=wflow.losses.MeanCosine(), every_evaluation=True,
        **{k: v for k, v in options.items() if k not in ("if_exists", "progress")})
    add("", "lyapunov", exponents=2, transient=0.2, **{
        k: v for k, v in options.items() if k not in ("save", "if_exists", "progress")
    } | {"t_final": 2.4})
    add("", "lipschitz", x=X, heads=D)
    exact = {**flow, "scheme": "euler", "causal": False, "compute": wflow.Compute(), "seed": 0}
    add("inference", "fit", observed=np.stack([X, X]), times=[0.1, 0.2], law=Frozen(), heads=D[:1],
        estimate=["heads"], symmetric=True, x0=X, noise=1.0, level=0.5, resamples=4, resolution=1.0,
        starts=1, dt=0.1, **exact)
    add("control", "steer", x0=X, target=X, heads=D, pieces=2, penalty=0.1, symmetric=True,
        t_final=0.2, dt=0.1, iterations=2, tolerance=1e-3, **exact)
    add("losses", "Tokens, W2", target=X)
    add("losses", "MeanCosine, Energy")
    filed = options | {"out": file, "if_exists": "overwrite"}
    add("", "solve", **options)
    add("", "solve to a file", **filed)
    add("", "sweep", grid={"seed": [0, 1]}, x0=X, law=LAW, heads=2, t_final=0.2, dt=0.1)
    add("distributed", "solve", task_seconds=1.0, **filed)
    add("", "SaveAt", every=1, snapshots=[0.0, 0.2], paths=[0], heads=False, budget=None)
    add("", "Compute", method="auto", tolerance=1e-10, backend="numba", device=None,
        dtype="float64", threads=None, batch=None, checkpoint_every=15.0)
    add("", "Dopri5, Flow")
    add("", "Tableau", name="midpoint", order=2, nodes=(0.0, 0.5), matrix=((), (0.5,)),
        weights=(0.0, 1.0), embedded=(1.0, 0.0), embedded_order=1)
    add("", "rerun", path=file, compute=wflow.Compute(), dt=0.1)
    add("", "open", path=file, chunks={"time": 2})
    add("", "open_study", folder=study_in(folder))
    add("", "report", source=file, out=str(folder / "report.html"))
    add("", "explore", n=5, heads=2, steps=4)
    add("", "cite", source=file)
    add("", "verify", path=file, tolerance=1e-3)
    add("", "compare", a=file, b=run, tolerance=1e-3)
    add("", "energy, velocity, upper_gradient_sq, dissipation, edi_defect, mobility, "
        "effective_mobility", x=X, D=D)

    add("clusters", "count, labels, sizes", x=X, scale=0.5)
    add("clusters", "persistent_count, order_parameter, nematic_order", x=X)
    add("clusters", "entropy", x=X, nodes=4)
    add("clusters", "stationarity", x=X, D=D)
    add("clusters", "over_time", run=run, scale=0.5, quantities=["count", "entropy"])
    add("clusters", "time_to_one_cluster, time_to_first_cluster", run=run, scale=0.5)
    add("clusters", "plateaus", times=np.array([0.1, 1.0, 9.0]), counts=np.array([3.0, 3.0, 1.0]))
    add("clusters", "omega_limit", run=run, tail=0.9, windows=4)
    add("equilibria", "dirac_energy, pair_energy", D=D[0], v=X[0])
    add("equilibria", "maximum, minimum", D=D[0])
    add("equilibria", "lower_bound", x=X, D=D[0] @ D[0], starts=4)
    add("equilibria", "uniform_energy", beta=1.5, d=3)
    add("equilibria", "sampled_energy", n=5, beta=1.5, d=3)
    add("equilibria", "minimal_cloud_energy", n=4, beta=1.5, d=3)
    add("fits", "PowerLaw, PowerLaw.band", x=np.array([1.0, 2.0]))
    add("fits", "power_law", x=three, y_paths=positive, level=0.9, resamples=20)
    add("fits", "line", x=three, y_paths=positive, of=np.log, level=0.9, resamples=20)
    add("fits", "mean_and_error", samples=X, axis=0)
    add("fits", "json_number", value=1.5)
    add("flows", "Flow")
    add("flows", "flow_config", flow="effective")
    add("flows", "flow_from_config", config="effective")
    add("flows", "register", cls=wflow.flows.Softmax)
    add("heads", "isotropic", beta=[1.0, 2.0], d=3)
    add("heads", "QKV", query=D, key=D, value=D, scale=1.0)
    add("heads", "Frozen")
    add("heads", "HeadLaw", drift=lambda D, t: -D, diffusion=0.5)
    add("heads", "OrnsteinUhlenbeck", mean=np.eye(3))
    add("heads", "Oscillating", d=3)
    add("heads", "Schedule", times=[0.0, 1.0], values=np.stack([D, 2 * D]))
    add("heads", "CompoundPoisson", law=LAW, rate=2.0, size=0.5)
    add("heads", "law_config", law=LAW)
    add("heads", "law_from_config", config=heads.law_config(LAW))
    add("heads", "register", cls=OrnsteinUhlenbeck)

    few = {"segments": 2, "tolerance": 1e-6, "max_iterations": 50}
    step = {"x": X, "D": D, "tau": 0.1, **few}
    add("jko", "step", **step)
    add("jko", "step weighted", **step, metric="weighted")
    add("jko", "variational_interpolation", r=0.05, **step)
    add("jko", "energy_inequality", nodes=3, **step)
    add("jko", "minimizing_movements", **SHORT | {"tau": 0.1, "dt": 0.05}, **few)
    add("metric", "action", curve=np.stack([X, Y, X]), times=np.array([0.0, 0.5, 1.0]), D=D)
    add("metric", "metric_derivative", x=X, v=Y, D=D)
    add("metric", "bounds", x=X, y=Y, D=D)
    add("metric", "weighted_distance", x=X, y=Y, D=D, **few)
    add("transport", "weighted_distance", x=X, y=Y, D=D, **few)
    weighted = {"x": X, "y": Y, "weights_x": np.full(5, 0.2)}
    add("transport", "assignment, distance", x=X, y=Y)
    add("transport", "plan, transport_map", **weighted)
    add("transport", "Metric, W2")
    add("transport", "Weighted", segments=2)
    add("transport", "wasserstein", **weighted, projections=5)
    add("transport", "w1", x=X, y=Y, method="sliced", projections=5, seed=0)
    add("transport", "w2", x=cloud(4, 2), y=cloud(5, 2), method="circle")
    add("transport", "entropic", **weighted, tolerance=0.1, max_iterations=200)
    add("transport", "over_time", run=run, paths=[0, 1], method="exact")
    add("transport", "density_distance", density=np.ones(12), other=X, mesh=SPHERE)

    one = stationary.branch(
        np.eye(2), stationary.Nodes.axial(2, 12), 1, kappa=(0.2, 1.0), max_points=3
    )
    add("plots", "energy_balance, heads_over_time", ds=run)
    add("plots", "bifurcation", branches=one)
    add("plots", "gradient_over_time", datasets={1: run, 2: other})
    add("plots", "gradient_against_heads", heads=[1, 2, 4], values=positive, fit=FIT)
    add("plots", "animate", run=run, file=str(folder / "a.gif"), frames=2, fps=10.0, dpi=30.0)
    add("plots", "clusters_over_time", ds=run, scale=0.5)
    add("plots", "free_energy_over_time", ds=runs()["densities"])
    add("plots", "density_snapshots", ds=runs()["densities"], times=[0.1])
    add("plots", "token_snapshots", times=[0.2], ds=run.drop_vars("heads"))
    add("plots", "sweep", table=wflow.sweep({"seed": [0, 1]}, **SHORT), name="energy")
    add("plots", "plot_run", ds=runs()["speed"], out_dir=str(folder / "figures"))

    l1 = sampling.L1(2.0)
    proximal = {"x": X, "context": Y, "h": 0.1, "beta": 1.0, "prior": l1}
    sampler = {"x0": X, "grad": np.tanh, "h": 0.05, "steps": 3, "snapshots": [0, 3]}
    add("sampling", "ula", **sampler)
    add("sampling", "to_arviz", run=sampling.ula(**sampler), burn_in=0.5)
    add("sampling", "brwp", prior=sampling.L1(0.5), **sampler)
    add("sampling", "myula", prior=sampling.L1(0.5), smoothing=0.1, **sampler)
    add("sampling", "attention_mean", **proximal, covariance=True)
    add("sampling", "backward, folded, layer, score", **proximal)
    add("sampling", "backward_inverse", y=X, context=Y, h=0.1, beta=1.0, prior=l1,
        tolerance=1e-12, max_iterations=50)
    add("sampling", "interaction", x=X, y=Y, h=0.1, beta=1.0, prior=l1)
    add("sampling", "frechet, w2", x=X, y=Y + 0.5)
    add("sampling", "mmd", x=X, y=Y, bandwidths=np.array([0.5, 2.0]))
    add("sampling", "sliced_w2", x=X, y=Y, projections=8)
    add("sampling", "L1, SmoothL1", lam=2.0)
    add("sampling", "NoPrior")
    add("sampling", "Prior", y=Y, h=0.1, beta=1.0)
    add("sampling", "separable", value=np.abs, derivative=np.sign, kinks=[0.0])
    add("sampling", "evolve_density", density=np.ones(40), potential=np.abs,
        edges=np.linspace(-4, 4, 41), times=[0.1, 0.2], dt=0.05)
    add("sampling.targets", "GaussianMixture", means=X, scale=0.5, weights=np.ones(5), lam=0.5,
        beta=2.0, n=3, seed=0)
    add("sampling.targets", "GaussianLaplace", mean=X[0], scale=0.5, lam=1.0, beta=2.0, x=X)
    add("sampling.targets", "BayesianLasso", matrix=X, data=np.ones(5), noise=0.5, lam=1.0,
        beta=1.0, x=X)
    add("sampling.forward", "Elliptic", dim=3, outputs=2, cells=8, alpha=0.01, width=0.1,
        source=np.ones(8))
    add("sampling.forward", "Lorenz", windows=1, window=0.2, spin_up=0.0, dt=0.1, start=np.ones(3),
        centre=np.ones(3), scale=0.1, x=X, w=Y)
    add("sampling.forward", "Impedance", bumps=(1, 2), cells=4, patterns=2, electrodes=4, width=0.5,
        scale=0.5, basis=None, voltages=None, x=X[:, :2], points=np.full((3, 2), 0.5))
    add("sampling.forward", "InverseProblem", model=forward.Elliptic(3, 3, cells=8), lam=1.0,
        noise=np.full(3, 0.1), x=X, y=Y, n=3, seed=0)
    add("sampling.forward", "Summary", mean=np.zeros(3), matrix=D[0], y=Y)
    normal = {"log_density": lambda x: (-0.5 * (x**2).sum(1), -x), "start": X}
    short = {"draws": 4, "warmup": 2}
    likelihood = {"log_likelihood": lambda x: -0.5 * (x**2).sum(1)}
    add("sampling.reference", "bayesian_lasso", matrix=X, data=np.ones(5), lam=1.0, noise=0.5,
        **short)
    add("sampling.reference", "metropolis", **normal, gradient=True, covariance=np.eye(3), **short)
    add("sampling.reference", "pcn", **likelihood, dim=2, chains=2, **short)
    add("sampling.reference", "climb", **normal, iterations=5)
    add("sampling.reference", "tempered", **likelihood, log_prior=lambda x: -np.abs(x).sum(1),
        start=X, moves=2)
    add("sampling.reference", "laplace_from_normal", xi=X, lam=1.0)
    add("sampling.reference", "rank_test", truth=X, draws=np.stack([X, Y, Y, X], 1), bins=2)
    add("sampling.reference", "r_hat, ess", samples=X.T)

    add("sphere", "as_tokens, normalise", x=Y + 1.0)
    add("sphere", "project", x=X, v=Y)
    add("sphere", "exponential", x=X, u=sphere.project(X, Y))
    add("stability", "bound", distance=np.array([0.1, 0.0]), exponent=np.array([1.0, 2.0]))
    add("stability", "growth_constant", D=D)
    add("stability", "exponent", run=run)
    add("stability", "GrowthRate", t=np.array([0.0, 1.0]))
    add("stability", "growth_rate", times=np.array([0.0, 1.0, 2.0]),
        distances=np.array([[1.0, 2.0, 3.0], [1.0, 2.5, 3.0]]), level=0.9, resamples=20)
    add("stability", "compare", run=run, other=other, costs=("chordal",))
    add("stationary", "kernel_eigenvalue", beta=1.5, d=3, degree=1)
    add("stationary", "critical_diffusion", beta=[1.5, -0.5], d=3, **flow)
    add("stationary", "growth_rate", beta=[1.5, -0.5], d=3, degree=2, kappa=0.1, **flow)
    add("stationary", "transition", beta=[1.5, -0.5], d=3, flow="effective")
    add("stationary", "stationary_order", beta=4.0, d=3, kappa=0.2)
    add("stationary", "Nodes", centres=stationary.Nodes.circle(8).centres,
        areas=np.full(8, np.pi / 4))
    add("stationary", "density", D=D2, kappa=0.3, mesh=stationary.Nodes.circle(16), tolerance=1e-10,
        max_iterations=20, **flow)
    add("stationary", "branch", D=D2, mesh=stationary.Nodes.axial(2, 12), start=1, kappa=(0.2, 1.0),
        step=0.3, max_points=4, defect=0.001)
    limit = {k: v for k, v in options.items() if k not in ("x0", "causal")}
    limit |= {"out": None, "reconstruct": None}
    add("meanfield", "Circle", cells=8)
    add("meanfield", "Sphere", cells=12)
    add("meanfield", "Sphere of points", cells=cloud(30))
    add("meanfield", "Fourier", degree=5)
    add("meanfield", "Harmonics", degree=4)
    add("meanfield", "density_of", tokens=X, mesh=SPHERE)
    add("meanfield", "sample", density=np.ones(12), mesh=SPHERE, n=5)
    add("meanfield", "solve", **limit | {"kappa": 0.1, "scheme": "imex"}, density=np.ones(12),
        mesh=SPHERE)
    add("meanfield", "solve in harmonics", density=np.ones(MODES.cells), mesh=MODES,
        **limit | {"heads": np.eye(3)[None], "kappa": 1.0, "t_final": 0.02, "dt": 0.01})
    add("tokens", "cross_polytope, uniform", n=5, d=3)
    add("tokens", "clusters", n=5, d=3, clusters=2)
    add("tokens", "digits", n=5)
    add("tokens", "load", path=saved, d=3, n=3)
    add("tokens", "make", spec="uniform", n=5, d=3)
    add("tokens", "pca", z=Y, d=2)
    # fmt: on
    return found


def table(folder: Path) -> dict[str, Case]:
    """Return the cases by name; a second case of a function has more words in its name."""
    return {
        name: Case(CALLS.get(name) or attrgetter(name.split(" ")[0])(wflow), given)
        for name, given in arguments(folder).items()
    }


HUGE = [2**31, 2**62, 2**63, -(2**70), 10**400, 1e150, 1e308]
SMALL = [0, -1, 1, 2, 7, 3.7, -2.5, 5e-324, -0.0, float("nan"), float("inf"), -float("inf")]
NUMPY = [
    np.int64(3), np.uint64(2**63), np.float32(0.5), np.float16(0.1), np.bool_(True),
    np.longdouble("1e4000"), np.complex128(1j), np.str_("1"), np.timedelta64(3, "s"), np.array(3),
    np.array("a"), np.array([]), np.ma.masked, np.array([[1.0, 2.0]]), np.array([True, False]),
]  # fmt: skip
TEXTS = ["", ".", "1", "abc", "\0", "\ud800", "x" * 300, "a/" * 3000, "no/such/folder/x.h5"]
TEXTS += ["softmax", "exact", "final", "mean", "cross-polytope"]
OTHERS = [
    None, True, 1j, b"\xff", [], (), {}, [1, 2], [1, "2"], [[1], [1, 2]], {1: 2}, {1.5}, range(3),
    object(), len, int, Decimal("1.5"), Fraction(1, 2), Path("x"), Path("/"), np, Frozen(), [None],
]  # fmt: skip
ANY = [*HUGE, *SMALL, *NUMPY, *TEXTS, *OTHERS]  # what takes the place of any argument


def layouts(array: np.ndarray) -> list[Any]:
    """Return arrays of the same numbers, laid out in other ways."""
    frozen = array.copy()
    frozen.flags.writeable = False
    return [
        np.asfortranarray(array), np.repeat(array, 2, axis=0)[::2], frozen,
        array.astype(array.dtype.newbyteorder()), array[::-1].copy()[::-1], np.ma.array(array),
        array.astype(np.longdouble), array.tolist(),
    ]  # fmt: skip


def spoiled(array: np.ndarray, rng: np.random.Generator) -> list[Any]:
    """Return arrays of another type, shape or content."""
    place = tuple(rng.integers(size) for size in array.shape) if array.size else ()
    found: list[Any] = []
    for value in (np.nan, np.inf, 1e200, 0.0):
        found.append(array.copy())
        found[-1][place] = value
    with np.errstate(over="ignore", invalid="ignore"):
        found += [array.astype(kind) for kind in ("f4", "f2", "i8", "c16", "U", "O", "?")]
    return [
        *found, np.ma.masked_equal(array, array.flat[0] if array.size else 0), array[:0],
        np.broadcast_to(0.5, (2**40, *array.shape[1:])), np.zeros(array.shape, [("a", "f8")]),
        array[..., :0], array[0], array[:1], array[None], array[..., None], array.T, array.ravel(),
        np.concatenate([array, array]), np.zeros_like(array), array * 1e150, array * 1e-200,
        array * 1e4, -array, [*array.tolist()[:1], None], array + 1e-6, array[::-1],
    ]  # fmt: skip


def replacement(value: Any, rng: np.random.Generator) -> Any:
    """Something to pass in the place of a valid value."""
    choices: list[Any] = ANY
    if isinstance(value, np.ndarray) and rng.random() < 0.75:
        choices = layouts(value) if rng.random() < 0.25 else spoiled(value, rng)
    elif isinstance(value, dict) and rng.random() < 0.5:
        first, *others = value
        broken = value | {first: choices[rng.integers(len(choices))]}
        choices = [broken, {key: value[key] for key in others}, {}]
    elif hasattr(value, "data_vars") and rng.random() < 0.5:
        parts = [{"time": slice(0)}, {"snapshot": slice(0)}, {"path": slice(0)}]
        choices = [
            value.drop_vars(["tokens", "density"], errors="ignore"), value.drop_attrs(),
            value.assign_attrs(config="{"), value * np.nan, *runs().values(),
            *(value.isel(part, missing_dims="ignore") for part in parts),
        ]  # fmt: skip
    return choices[rng.integers(len(choices))]


def out_of_scope(name: str, argument: str, value: Any) -> bool:
    """Return whether a call would start processes, or take long because it is asked for much."""
    if argument in ("workers", "scheduler"):
        return bool(isinstance(value, str) or (isinstance(value, int | np.integer) and value > 0))
    if (name, argument) in (
        ("clusters.entropy", "directions"), ("sampling.reference.tempered", "moves"),
    ):  # fmt: skip
        return isinstance(value, int | np.integer) and value >= 2**31
    return False


def is_numerical(warning: warnings.WarningMessage) -> bool:
    """Whether a warning comes from arithmetic or a deprecated use, not from a check of wflow."""
    text = str(warning.message)
    if issubclass(warning.category, RuntimeWarning):
        return any(words in text for words in ("encountered", "empty slice", "Degrees of freedom"))
    kinds = (DeprecationWarning, FutureWarning, np.exceptions.ComplexWarning)
    return issubclass(warning.category, kinds)


def snapshot(value: Any) -> Any:
    """Return a copy of what must not change: arrays, and the data of runs."""
    if isinstance(value, np.ndarray) and value.size < 10**6:
        return type(value), value.dtype, value.shape, value.strides, np.asarray(value).tobytes()
    if hasattr(value, "data_vars"):
        return {k: v.values.tobytes() for k, v in value.variables.items()}, copy.copy(value.attrs)
    if isinstance(value, list | dict):
        with contextlib.suppress(Exception):
            return repr(value)
    return None


def attempt(case: Case, arguments: dict[str, Any]) -> tuple[str | None, Any]:
    """Return what is wrong with a call, None for nothing, and what it returns."""
    before = {name: snapshot(value) for name, value in arguments.items()}
    said = result = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with within(SECONDS):
                result = case.call(**arguments)
            if isinstance(result, float | np.ndarray) and np.isnan(result).any():
                said = "returns NaN"
            if hasattr(result, "close"):
                result.close()
        except wflow.WflowError as error:
            if len(str(error)) > 1500:
                said = f"a message of {len(str(error))} characters"
        except Hangs:
            said = f"takes more than {SECONDS:g} s"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"[:300]
    warned = [w for w in caught if is_numerical(w)]
    if said is None and warned:
        said = f"{warned[0].category.__name__}: {warned[0].message} ({warned[0].filename})"
    changed = [name for name, value in arguments.items() if snapshot(value) != before[name]]
    return (f"changes {changed[0]}" if changed and said is None else said), result


def shown(value: Any) -> str:
    try:
        if isinstance(value, np.ndarray):
            return f"{type(value).__name__} {value.dtype} {value.shape} {value.strides}"
        return " ".join(repr(value).split())[:150]
    except Exception:
        return type(value).__name__


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calls")


@pytest.fixture(scope="module")
def valid(folder: Path) -> Iterator[dict[str, Case]]:
    """Yield the cases, after every function was called once: compiled code is loaded."""
    valid = table(folder)
    wflow.solve(**valid["solve to a file"].arguments).close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure, "draw", lambda drawn, kind, file: file.touch())
        for case in valid.values():
            attempt(case, case.arguments)
        yield valid


def test_every_public_function_and_argument_is_fuzzed(valid):
    known = {name.split(" ")[0].removesuffix(".band") for name in valid}
    assert public() - known == RESULTS & public()
    for name, case in valid.items():
        with contextlib.suppress(ValueError):
            taken = inspect.signature(case.call).parameters.values()
            named = {p.name for p in taken if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
            assert named <= set(case.arguments), name


def test_calls_work_or_raise_an_error_of_wflow(valid, folder, monkeypatch, cases):
    monkeypatch.chdir(folder)
    names, wrong = sorted(valid), []
    with bounded(ROOM):
        for k in range(cases(250, 2500)):
            rng, name = np.random.default_rng([0, k]), names[k % len(names)]
            arguments = dict(valid[name].arguments)
            open_ones = [argument for argument in arguments if (name, argument) not in TEXT]
            swapped = rng.permutation(open_ones)[: 1 + (rng.random() < 0.3)]
            for argument in swapped:
                value = replacement(arguments[argument], rng)
                # The error of a function of the user, as int of an array, is passed on.
                own = argument == "voltages" or callable(arguments[argument])
                while out_of_scope(name, argument, value) or (own and value is int):
                    value = replacement(arguments[argument], rng)
                arguments[argument] = value
                if isinstance(value, int | float) and abs(value) > 1e9:
                    break  # one huge number at a time: two may ask for what fits, but takes long
            said, _ = attempt(valid[name], arguments)
            if said is not None:
                given = ", ".join(f"{a}={shown(arguments[a])}" for a in swapped)
                wrong.append(f"{k}: {name}({given}): {said}")
    assert not wrong, "\n".join(wrong)


def forms(value: Any) -> list[Any]:
    """Return a valid value in other forms that mean the same."""
    if isinstance(value, np.ndarray):
        return [*layouts(value), value.astype(object)]
    if type(value) is bool:
        return [np.bool_(value)]
    if type(value) is int:
        return [np.int64(value), np.int16(value), np.array(value)]
    if type(value) is not float:
        return []
    decimals = [Fraction(repr(value)), Decimal(repr(value)), np.array(value)]
    return [np.float64(value), np.longdouble(value), np.float32(value), *decimals]


def strangers(name: str, value: Any) -> list[Any]:
    """Return what may look like a valid value of its kind, and must be refused."""
    if isinstance(value, np.ndarray):
        mask = np.zeros(value.shape, bool)
        mask.flat[0] = True
        unset = value.astype(object)
        unset.flat[0] = None
        masked = np.ma.array(value, mask=mask)
        kinds = [value.astype(int).astype(kind) for kind in ("U", "M8[s]", "c16", "?")]
        return [masked, [masked[0]], unset, *kinds, value.astype("U").astype(object)]
    if type(value) is bool:
        return ["no", 0, 1, 0.0, np.int64(1), [True], None]
    if type(value) in (int, float):
        strange = ["1", b"1", True, np.bool_(True), 1j, np.ma.masked, np.timedelta64(1, "s")]
        return [*strange, float("nan")] if name != "fits.json_number" else strange
    return []


def as_plain(result: Any) -> Any:
    """A result in a form that can be compared; a run without the moment at which it was made."""
    if hasattr(result, "subtree"):
        return [as_plain(node.to_dataset()) for node in result.subtree]
    if hasattr(result, "data_vars"):
        made = ("created", "history")
        kept = {k: v for k, v in result.attrs.items() if k not in made}
        return result.drop_attrs().assign_attrs(kept).to_dict()
    if isinstance(result, HeadLaw):
        return heads.law_config(result)
    if hasattr(result, "film"):  # the explorer, where anywidget is installed
        return result.film
    if isinstance(result, stationary.State):
        return [result.density, result.kappa]
    if isinstance(result, wflow.Comparison):
        return str(result)
    if hasattr(result, "centres") and not hasattr(result, "coords"):  # meshes, modes and nodes
        return [result.centres, result.areas]
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        plain = {k: v for k, v in dataclasses.asdict(result).items() if not k.startswith("_")}
        return {k: as_plain(v) if isinstance(v, HeadLaw) else v for k, v in plain.items()}
    return result.to_dict() if hasattr(result, "coords") else result


def test_valid_values_in_other_forms_give_the_same_results(valid, folder, monkeypatch, cases):
    monkeypatch.chdir(folder)
    rng, each = np.random.default_rng(0), cases(False, True)
    with bounded(ROOM):
        for name, case in valid.items():
            others = {a: found for a, value in case.arguments.items() if (found := forms(value))}
            if not others or name in SLOW or name.startswith("plots."):
                continue
            expected = as_plain(case.call(**case.arguments))
            changes = [{a: found[rng.integers(len(found))] for a, found in others.items()}]
            if each:
                changes += [{a: form} for a, found in others.items() for form in found]
            for changed in changes:
                said, found = attempt(case, case.arguments | changed)
                kinds = f"{name}, {', '.join(f'{a}: {type(v)}' for a, v in changed.items())}"
                assert said is None, (kinds, said)
                np.testing.assert_equal(as_plain(found), expected, kinds)


def test_what_is_no_number_no_switch_and_no_array_is_refused(valid, folder, monkeypatch):
    monkeypatch.chdir(folder)
    taken = []
    for name, case in valid.items():
        for argument, value in case.arguments.items():
            for strange in strangers(name, value):
                with contextlib.suppress(wflow.InputError):
                    case.call(**{**case.arguments, argument: strange})
                    taken.append(f"{name}: {argument} = {shown(strange)}")
    assert not taken, "\n".join(taken)
