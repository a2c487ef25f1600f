"""Digests of small results of all parts, to show that a change of the code changed no number.

    python benchmarks/same_numbers.py --json before.json
    python benchmarks/same_numbers.py --check before.json [--only 'solve_*']

Each line holds the name of a case and the SHA-256 of the names, types, shapes and bytes of all
arrays of its result. Text and attributes do not enter. The digests depend on the processor and on
the versions of the libraries, both in the JSON; `--check` names the arrays that differ. Everything
runs on one thread, by public names alone, and needs the extras `nets` and `studies`.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from fnmatch import fnmatch
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

os.environ.update({f"{name}_NUM_THREADS": "1" for name in ("NUMBA", "OMP", "OPENBLAS", "MKL")})

import llvmlite.binding
import numpy as np
import torch
import xarray

import wflow
import wflow.nets as nets
from wflow import clusters, equilibria, jko, metric, stability, stationary, transport

PACKAGES = ("numpy", "scipy", "numba", "llvmlite", "pot", "scikit-learn")
FLOWS: tuple["wflow.flows.FlowName", ...] = ("softmax", "unnormalised", "effective")
DIRECTIONS: tuple["wflow.study.Direction", ...] = ("descent", "ascent")
KINDS, TIMES = ("float64", "float32"), [0.0, 0.025, 0.05, 0.1]
SAVE = {"record_every": "every", "snapshot_paths": "paths", "save_heads": "heads",
        "ledger": "budget", "snapshots": "snapshots"}  # fmt: skip
COMPUTE = ("method", "tolerance", "backend", "device", "dtype", "threads", "batch",
           "checkpoint_every")  # fmt: skip


def solve(law: Any, n: int = 30, d: int = 3, *, x0: Any = None, **options: Any) -> xarray.Dataset:
    """`wflow.solve` with its present or its future options; 20 steps of uniform tokens."""
    options = {"t_final": 0.1, "dt": 0.005, "heads": 3, "seed": 1, "threads": 1} | options
    if hasattr(wflow, "SaveAt"):
        save = {new: options.pop(old) for old, new in SAVE.items() if old in options}
        options["compute"] = wflow.Compute(**{k: options.pop(k) for k in COMPUTE if k in options})
        options |= {"save": wflow.SaveAt(**save)} if save else {}
        for choice in ("overwrite", "resume"):
            if options.pop(choice, False):
                options["if_exists"] = choice
    return wflow.solve(cloud(n, d) if x0 is None else x0, law, **options)


def recorded(seed: int = 0, **options: Any) -> xarray.Dataset:
    """A run with snapshots of its tokens and heads."""
    return solve(ou(), x0=cloud(30, 3, seed), snapshots=TIMES, save_heads=True, **options)


def cloud(n: int, d: int, seed: int = 0) -> Any:
    return wflow.tokens.uniform(n, d, seed=seed)


def symmetric(heads: int, d: int) -> Any:
    """Random symmetric matrices (heads, d, d)."""
    z = 0.3 * np.random.default_rng(3).standard_normal((heads, d, d))
    return z + z.swapaxes(-1, -2)


def general(d: int, *lead: int) -> Any:
    """Random (Q, K, V) heads of shapes (*lead, 2, d) and (*lead, d, d)."""
    query, key, value = np.random.default_rng(4).standard_normal((3, *lead, d, d))
    return wflow.heads.QKV(query[..., :2, :], key[..., :2, :], value, scale=None)


def ou(d: int = 3, **options: Any) -> Any:
    return wflow.heads.OrnsteinUhlenbeck(np.eye(d), **options)


def movements(**how: Any) -> list[Any]:
    x, D = cloud(12, 3), symmetric(3, 3)
    run = jko.minimizing_movements(x, ou(), heads=2, t_final=0.1, tau=0.02, dt=0.01, **how)
    return [run, jko.step(x, D, 0.05, **how), jko.energy_inequality(x, D, 0.05, **how)]


def trained(make: Any, kind: str, weight: float = 0.0, body: str = "", **options: Any) -> Any:
    """History and final parameters of a network that is trained for four steps."""
    torch.manual_seed(0)
    model, train = make(), nets.train
    if body:
        model.body = getattr(nets, body)(model.body, **options)
    config = train.TrainConfig(steps=4, batch=4, clip=1.0, device="cpu")
    objective = train.objective(train.cross_entropy, weight)
    history = train.train(model, objective, partial(batch, kind), config)
    return history.drop_vars("seconds"), model.state_dict()


def batch(kind: str, step: int) -> tuple[torch.Tensor, ...]:
    """Four images, clouds of points, texts that end in padding, or texts and what follows."""
    numbers, classes = torch.from_numpy(cloud(4, 64, step)).float(), torch.tensor([0, 1, 2, 0])
    if kind == "text":
        text = nets.data.embedded_text().train
        return nets.data.CropBatches(text, context=12, batch=4)(step)
    if kind == "padded":
        return (1 + 7 * numbers[:, :12].abs()).long().tril(8), classes
    return numbers.view(4, 1, 8, 8) if kind == "image" else numbers.view(4, 32, 2), classes


def run_file() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.h5"
        solve(ou(), paths=2, save_heads=True, out=out).close()
        with wflow.open(out) as run:
            return run.load(), wflow.rerun(out), wflow.rerun(out, dt=0.01)


def resumed_run() -> Any:
    """A run that a signal ends in step 10 of each batch of paths, and that is resumed each time."""

    def drift(D: Any, t: float) -> Any:
        if abs(t - 0.05) < 1e-9:
            signal.raise_signal(signal.SIGINT)
        return -D

    law = wflow.heads.HeadLaw(drift, 1.0)
    how: dict[str, Any] = {"paths": 2, "batch": 1, "checkpoint_every": 0.0, "resume": True}
    with tempfile.TemporaryDirectory() as folder:
        for signals in range(3):
            with suppress(wflow.Interrupted), solve(law, **how, out=Path(folder) / "run.h5") as run:
                return run.load(), signals
    raise RuntimeError("the run was interrupted more than twice")


def tokens() -> Any:
    make = wflow.tokens
    found = {f"{w} {d}": make.make(w, 50, d, seed=1) for w in make.CLOUDS for d in (2, 3, 12)}
    with tempfile.TemporaryDirectory() as folder:
        np.save(file := Path(folder) / "embeddings.npy", cloud(50, 7))
        return found | {"file": make.load(file, d=3, n=20), "digits": make.digits(100, 4, seed=3)}


def nets_diagnostics() -> Any:
    torch.manual_seed(0)
    body = nets.ContinuousTransformer(vit().body, steps=4).double().requires_grad_(False)
    x, found = torch.randn(2, 3, 5, 16, dtype=torch.float64), nets.diagnostics
    one, two = (body.trajectory(part) for part in x)
    numbers = [f(one) for f in (found.straightness, found.speed_variation, found.step_costs)]
    constant = found.lipschitz(body, x[0], samples=2, iterations=3)
    return one, numbers, constant, found.transport_along(one, two, ground="geodesic")


def convex(loss: Any) -> Any:
    output, x1, x2 = (torch.from_numpy(cloud(n, 4, seed)) for n, seed in ((3, 0), (5, 1), (5, 2)))
    y1, y2 = (torch.from_numpy(cloud(5, 3, seed)) ** 2 for seed in (1, 2))
    problem = nets.convex.ConvexProblem(output, loss, steps=3, lam=4.0)
    velocities = problem.velocities(x1, y1)
    found = [problem.minimise(x1, y1, method=method) for method in ("newton", "lbfgs")]
    return velocities, found, problem.trajectory(x1, velocities), problem.stability(x1, y1, x2, y2)


still, oscillating, schedule = wflow.heads.Frozen, wflow.heads.Oscillating, wflow.heads.Schedule
vit = partial(nets.ViT, image=(1, 8, 8), patch=4, width=16, depth=2, heads=2, hidden=24)
gpt = partial(nets.GPT, vocabulary=65, context=12, width=16, depth=2, heads=2, dropout=0.1)
points = partial(nets.SetTransformer, features=2, classes=3, width=16, heads=2, inducing=4)
words = partial(nets.TextClassifier, vocabulary=9, context=12, classes=3, width=8, depth=2, heads=2)
CASES: dict[str, Callable[[], Any]] = {
    "solve_ou": lambda: solve(
        ou(), paths=3, batch=2, record_every=3, snapshots=TIMES, snapshot_paths=(0, 2)),
    "solve_ou_exact": lambda: solve(ou(2, rate=2.0, exact=True), d=2, flow="unnormalised"),
    "solve_oscillating_spread": lambda: solve(oscillating(3), flow="effective", scheme="heun"),
    "solve_oscillating_common": lambda: solve(oscillating(2, "common"), d=2, scheme="rk4"),
    "solve_oscillating_noise": lambda: solve(oscillating(5, sigma2=0.5), d=5, dtype="float32"),
    "solve_flows": lambda: {
        f"{f} {s}": solve(still(), n=150, d=5, heads=symmetric(3, 5), flow=f, direction=s)
        for f, s in product(FLOWS, DIRECTIONS)},
    "solve_schemes": lambda: {
        f"{s} {k}": solve(still(), n=130, scheme=s, dtype=k)
        for s, k in product(("euler", "heun", "rk4"), KINDS)},
    "solve_schedule": lambda: {
        k: solve(schedule(TIMES[:3], symmetric(6, 3).reshape(3, 2, 3, 3), k), scheme="rk4", heads=2)
        for k in ("constant", "linear")},
    "solve_schedule_general": lambda: solve(
        schedule(TIMES[:3], general(3, 3, 2)), heads=2, causal=True, scheme="heun"),
    "solve_head_law": lambda: {
        f"symmetric {s}": solve(
            wflow.heads.HeadLaw(lambda D, t: np.cos(t) - D, lambda D, t: np.cos(D[..., 0, 0]) ** 2,
                                symmetric=s), ledger=s) for s in (True, False)},
    "solve_general": lambda: {
        f"{d} causal {c}": solve(still(), n=150, d=d, heads=general(d, 3), causal=c)
        for d, c in product((2, 5, 12), (True, False))},
    "solve_causal": lambda: {k: solve(ou(), causal=True, dtype=k) for k in KINDS},
    "solve_token_noise": lambda: {
        k: solve(ou(), paths=3, batch=2, kappa=0.1, dtype=k) for k in KINDS},
    "solve_token_noise_fast": lambda: solve(
        still(), n=300, d=2, kappa=0.2, method="fast", flow="unnormalised", direction="ascent"),
    "solve_blocked": lambda: {
        f"{f} {k}": solve(ou(12), n=150, d=12, heads=symmetric(3, 12), flow=f, dtype=k)
        for f, k in product(FLOWS, KINDS)},
    "solve_fast": lambda: {
        f"{d} {k}": solve(ou(d), n=300, d=d, method="fast", tolerance=1e-6, dtype=k)
        for d, k in product((2, 3), KINDS)},
    "solve_auto": lambda: {
        str(n): solve(still(), n=n, heads=symmetric(8, 3), method="auto", dt=0.02)
        for n in (300, 1500)},
    "solve_starts": lambda: solve(ou(), x0=[cloud(30, 3, k) for k in range(3)], paths=3, batch=1),
    "solve_large_scores": lambda: solve(still(), heads=[500.0 * np.eye(3)], dt=1e-3),
    "solve_torch": lambda: {
        f"{d} {k}": solve(ou(d), d=d, backend="torch", device="cpu", dtype=k)
        for d, k in product((3, 12), KINDS)},
    "solve_torch_general": lambda: solve(
        still(), heads=general(3, 2), causal=True, backend="torch", device="cpu"),
    "one_cloud": lambda: {
        f"{name} {d}": getattr(wflow, name)(cloud(400, d).astype(k), symmetric(3, d))
        for name in ("energy", "mobility", "effective_mobility")
        for d, k in ((2, "float64"), (3, "float64"), (12, "float32"))},
    "one_cloud_flows": lambda: {
        f"{q} {d} {f} {s}": getattr(wflow, q)(cloud(300, d), symmetric(3, d), flow=f, direction=s)
        for q in ("velocity", "upper_gradient_sq", "dissipation", "edi_defect")
        for d, f, s in product((2, 5), FLOWS, DIRECTIONS)},
    "transport": lambda: {
        f"{w} {d} {m} {k}": getattr(transport, w)(cloud(30, d), cloud(m, d, 1), method=k)
        for w, d, m in (("w1", 3, 25), ("w2", 3, 30), ("w2", 3, 25), ("w1", 2, 25), ("w2", 2, 30))
        for k in transport.METHODS if k != "circle" or d == 2},
    "transport_plan": lambda: [
        function(cloud(30, d), cloud(m, d, 1)) for d, m in ((2, 30), (3, 30), (3, 25))
        for function in (transport.plan, transport.entropic, transport.distance)],
    "transport_over_time": lambda: [
        transport.over_time(recorded(), to=to)
        for to in ("final", "initial", "previous", cloud(20, 3))],
    "metric": lambda: [
        metric.metric_derivative(cloud(12, 3), cloud(12, 3, 1), symmetric(3, 3)),
        metric.action([cloud(12, 3), cloud(12, 3, 1)], [0.0, 1.0], symmetric(3, 3)),
        metric.weighted_distance(cloud(12, 3), cloud(12, 3, 1), symmetric(3, 3), segments=8)],
    "jko_w2": lambda: movements(metric="w2", direction="ascent"),
    "jko_weighted": lambda: movements(metric="weighted", segments=2),
    "stability": lambda: [
        [stability.growth_constant(symmetric(3, 3), flow=f, direction=s)
         for f, s in product(FLOWS, DIRECTIONS)],
        stability.growth_rate(TIMES, np.exp(np.outer([0.5, 0.6], TIMES)), resamples=100),
        stability.compare(recorded(), recorded(1)), stability.exponent(recorded())],
    "clusters": lambda: [
        [link(cloud(60, 3), 0.4) for link in (clusters.labels, clusters.count, clusters.sizes)],
        [measure(cloud(60, d)) for d in (2, 3, 5) for measure in (
            clusters.persistent_count, clusters.order_parameter, clusters.nematic_order,
            clusters.entropy)], clusters.stationarity(cloud(60, 3), symmetric(2, 3))],
    "clusters_over_time": lambda: [
        clusters.over_time(recorded(), 0.3), clusters.time_to_first_cluster(recorded(), 0.5),
        clusters.plateaus(range(1, 9), [5, 5, 3, 3, 3, 3, 2, 1])],
    "omega_limit": lambda: clusters.omega_limit(recorded(paths=2, t_final=0.4)),
    "equilibria": lambda: [
        [measure(symmetric(1, 3)[0]) for measure in (
            equilibria.dirac_energy, equilibria.pair_energy, equilibria.maximum)],
        [equilibria.uniform_energy(2.0, d) for d in (2, 3, 5)], equilibria.minimum(-np.eye(3)),
        equilibria.sampled_energy(50, 2, 3), equilibria.minimal_cloud_energy(12, 2, 3),
        equilibria.lower_bound(cloud(20, 3), np.diag([1.0, 2.0, 3.0]), starts=20)],
    "stationary": lambda: [
        [stationary.kernel_eigenvalue(1.5, d, k) for d in (2, 3, 5) for k in range(3)],
        stationary.critical_diffusion(1.5, 3), stationary.stationary_order(2.0, 3, 0.1)],
    "fits": lambda: wflow.fits.power_law([1, 2, 4], np.abs(cloud(3, 20)), resamples=200),
    "nets_vit": lambda: trained(vit, "image"),
    "nets_continuous": lambda: trained(
        vit, "image", 0.1, "ContinuousTransformer", steps=2, scheme="rk4", checkpointing=True),
    "nets_node": lambda: trained(vit, "image", 0.1, "NodeTransformer", steps=3, cost="sum"),
    "nets_gpt": lambda: trained(gpt, "text"),
    "nets_gpt_transport": lambda: trained(gpt, "text", 0.1, "ContinuousTransformer", steps=3),
    "nets_set": lambda: trained(points, "points", 0.1, "ContinuousTransformer"),
    "nets_text": lambda: trained(words, "padded", 0.1, "ContinuousTransformer", scheme="heun"),
    "nets_convex": lambda: [convex("squared"), convex("cross-entropy")],
}  # fmt: skip
CASES |= {case.__name__: case for case in (nets_diagnostics, run_file, resumed_run, tokens)}


def arrays(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Arrays and numbers of a nested result, each with its place as a name; text is left out."""
    value = value.to_dataset(name="values") if isinstance(value, xarray.DataArray) else value
    if isinstance(value, xarray.Dataset):
        value = {key: variable.values for key, variable in value.variables.items()}
    elif is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, list | tuple):
        value = value._asdict() if hasattr(value, "_asdict") else dict(enumerate(value))
    if isinstance(value, Mapping):
        for key in value:
            yield from arrays(value[key], f"{name}/{key}")
    elif (array := np.asarray(value)).dtype.kind in "biufc":
        yield name, array


def digest(name: str) -> dict[str, Any]:
    """Digests of a case, of all its arrays together and of each, and what they depend on."""
    parts = {}
    for place, array in sorted(arrays(CASES[name]()), key=lambda pair: pair[0]):
        head = f"{array.dtype.str} {array.shape} ".encode()
        parts[place] = hashlib.sha256(head + array.tobytes()).hexdigest()[:16]
    packages = (*PACKAGES, "torch") if name.startswith(("nets", "solve_torch")) else PACKAGES
    versions = {"processor": llvmlite.binding.get_host_cpu_name(), "python": sys.version.split()[0]}
    return {
        "sha256": hashlib.sha256(json.dumps(parts).encode()).hexdigest(),
        "versions": versions | {package: version(package) for package in packages},
        "arrays": parts,
    }


def difference(before: dict[str, Any] | None, now: dict[str, Any]) -> str:
    """The arrays and the versions of a case that differ."""
    if before is None:
        return "not in the file"
    if sorted(before["arrays"].values()) == sorted(now["arrays"].values()):
        return "the same arrays under other names"
    pairs = [(before[kind].items(), now[kind].items()) for kind in ("arrays", "versions")]
    return ", ".join(sorted({key for one, two in pairs for key, _ in one ^ two}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--check", type=Path, help="file of an earlier --json to compare with")
    parser.add_argument("--only", default="*", help="pattern of names, such as 'solve_*'")
    options = parser.parse_args()
    torch.set_num_threads(1)
    before = json.loads(options.check.read_text()) if options.check else {}
    names = [name for name in {**CASES, **before} if fnmatch(name, options.only)]
    if not names:
        parser.error(f"no case is called {options.only}: expected one of {', '.join(CASES)}")
    found, failed = {}, []
    for name in names:
        try:
            found[name] = digest(name)
        except Exception as error:  # the others are of use all the same
            failed.append(f"{name}: {type(error).__name__}: {error}")
            continue
        print(f"{name:<26}{found[name]['sha256']}", flush=True)
        if options.check and found[name]["sha256"] != before.get(name, {}).get("sha256"):
            failed.append(f"{name}: {difference(before.get(name), found[name])}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(*failed, f"{len(failed)} of {len(names)} cases failed or differ", sep="\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
