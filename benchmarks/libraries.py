"""What wflow writes by hand beside a library that does the same, both sides in one run.

    python benchmarks/libraries.py [--rounds 5] [--json benchmarks/results/libraries.json]

- Training loop: `wflow.nets.train` against a plain loop of torch and against accelerate (Hugging
  Face), the same network, batches and optimiser. Milliseconds of a step, and whether the weights
  are the same.
- IDX files: `wflow.nets.data.read_idx` against idx2numpy, 10,000 images of 28 x 28.
- L-BFGS on the sphere: `wflow.transport.minimise` against scipy's L-BFGS-B and torch's L-BFGS with
  strong Wolfe conditions, on the energy of 12 tokens with one head, from the same starts. The
  norm of the gradient that each reaches when it is asked for the smallest, and its evaluations.
- Entropic transport: `wflow.transport.sinkhorn` against the iteration of POT in the log domain,
  two clouds on the sphere, seconds to W_2 within 1 % of the exact value.
- Single linkage: the merge heights of 2,000 tokens by the spanning tree of `wflow.clusters`, which
  keeps no matrix, against SciPy's `pdist` and `linkage`. Growth of the resident memory as well.

A library that is not installed is reported as missing.
"""

import argparse
import importlib
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import RESULTS, in_turn, peak_memory, spread, write
from torch import nn
from torch.nn import functional

from wflow import nets, tokens
from wflow.analysis.linkage import merge_heights
from wflow.transport import sinkhorn
from wflow.transport.minimise import minimise

STEPS, BATCH = 40, 50
TOKENS, BETA = 12, 4.0
CLOUD = 200
LINKED = 2000


def library(name: str) -> Any:
    """A module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


# Training loop


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nets.ViT(image=(1, 8, 8), patch=2, width=32)
    net.body = nets.ContinuousTransformer(net.body, steps=5)
    return net


def training(rounds: int) -> dict[str, Any]:
    images = nets.data.digits()
    batches = nets.data.ImageBatches(
        images.train_images, images.train_labels, batch=BATCH, mean=images.mean, std=images.std
    )
    found: dict[str, nn.Module] = {}

    def objective(net: nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits, cost = net(pixels)
        return functional.cross_entropy(logits, labels) + 0.01 * cost

    def ours() -> None:
        net = found["wflow.nets.train"] = network()
        config = nets.train.TrainConfig(steps=STEPS, batch=BATCH, device="cpu")
        loss = nets.train.objective(functional.cross_entropy, weight=0.01)
        nets.train.train(net, loss, batches, config)

    def adam(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)

    def plain() -> None:
        net = found["plain loop"] = network()
        optimizer = adam(net)
        for step in range(STEPS):
            loss = objective(net, *batches(step))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def accelerated() -> None:
        accelerator = library("accelerate").Accelerator(cpu=True)
        net, optimizer = accelerator.prepare(made := network(), adam(made))
        found["accelerate"] = made
        for step in range(STEPS):
            loss = objective(net, *batches(step))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    sides: dict[str, Callable[[], None]] = {"wflow.nets.train": ours, "plain loop": plain}
    if library("accelerate"):
        sides["accelerate"] = accelerated
    times = in_turn(sides, rounds, least=0.0)
    reference = list(found["plain loop"].parameters())
    rows = {
        name: spread([t / STEPS for t in taken])
        | {"same_weights": all(map(torch.equal, found[name].parameters(), reference))}
        for name, taken in times.items()
    }
    return {"steps": STEPS, "batch": BATCH, "rows": rows, "missing": missing("accelerate")}


# IDX files


def idx(rounds: int) -> dict[str, Any]:
    images = np.random.default_rng(0).integers(0, 256, (10_000, 28, 28)).astype(np.uint8)
    head = bytes([0, 0, 8, 3]) + np.array(images.shape, ">u4").tobytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "images")
        path.write_bytes(head + images.tobytes())
        cut = Path(folder, "cut")
        cut.write_bytes((head + images.tobytes())[:-100])
        sides: dict[str, Callable[[Path], Any]] = {"wflow.nets.data.read_idx": nets.data.read_idx}
        if other := library("idx2numpy"):
            sides["idx2numpy"] = lambda path: other.convert_from_file(str(path))
        for read in sides.values():
            assert np.array_equal(read(path), images)
        times = in_turn({name: partial(read, path) for name, read in sides.items()}, rounds)
        rows = {
            name: spread(times[name]) | {"of_a_cut_file": told(partial(read, cut))}
            for name, read in sides.items()
        }
    return {"rows": rows, "missing": missing("idx2numpy")}


def told(call: Callable[[], Any]) -> str:
    """What a call says of bad input: the kind of its error, or that it returned."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).rpartition('/')[2]}"[:160]
    return "returned an array"


# L-BFGS on the sphere


def energy(x: np.ndarray) -> tuple[float, np.ndarray]:
    """(1/2n^2) sum exp(beta <x_i, x_j>) and its gradient."""
    values = np.exp(BETA * x @ x.T)
    n = len(x)
    return float(values.sum()) / (2 * n * n), BETA * values @ x / (n * n)


def on_sphere(p: np.ndarray) -> tuple[float, np.ndarray]:
    """The same of p / |p|, with its gradient by p."""
    norm = np.linalg.norm(p, axis=1, keepdims=True)
    x = p / norm
    value, gradient = energy(x)
    return value, (gradient - (gradient * x).sum(1, keepdims=True) * x) / norm


def lbfgs(rounds: int) -> dict[str, Any]:
    from scipy.optimize import minimize

    def ours(x: np.ndarray) -> tuple[np.ndarray, int]:
        found = minimise(energy, x, tolerance=0.0, rounding=1e-16, max_iterations=1000)
        return found.x, found.evaluations

    def scipys(x: np.ndarray) -> tuple[np.ndarray, int]:
        def flat(p: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = on_sphere(p.reshape(x.shape))
            return value, gradient.ravel()

        options = {"maxiter": 1000, "maxfun": 10000, "ftol": 0.0, "gtol": 0.0, "maxcor": 12}
        found = minimize(flat, x.ravel(), jac=True, method="L-BFGS-B", options=options)
        return found.x.reshape(x.shape), int(found.nfev)

    def torchs(x: np.ndarray) -> tuple[np.ndarray, int]:
        p = torch.from_numpy(x.copy()).requires_grad_(True)
        search = torch.optim.LBFGS(
            [p], max_iter=1000, max_eval=10000, history_size=12, tolerance_grad=0.0,
            tolerance_change=0.0, line_search_fn="strong_wolfe",
        )  # fmt: skip
        count = 0

        def closure() -> torch.Tensor:
            nonlocal count
            count += 1
            value, gradient = on_sphere(p.detach().numpy())
            p.grad = torch.from_numpy(gradient)
            return torch.tensor(value, dtype=torch.float64)

        search.step(closure)  # type: ignore[no-untyped-call]
        return p.detach().numpy(), count

    sides = {"wflow.transport.minimise": ours, "scipy L-BFGS-B": scipys, "torch LBFGS": torchs}
    starts = 2 * rounds
    table: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sides}
    for seed in range(starts):
        x = np.random.default_rng(seed).standard_normal((TOKENS, 3))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        for name, side in sides.items():
            begin = time.perf_counter()
            p, evaluations = side(x)
            taken = time.perf_counter() - begin
            p = p / np.linalg.norm(p, axis=1, keepdims=True)
            reached = float(np.linalg.norm(on_sphere(p)[1]))
            table[name].append((reached, evaluations, taken))
    rows = {
        name: {
            "median_gradient": float(np.median([row[0] for row in found])),
            "largest_gradient": max(row[0] for row in found),
            "median_evaluations": float(np.median([row[1] for row in found])),
            **spread([row[2] for row in found]),
        }
        for name, found in table.items()
    }
    return {"tokens": TOKENS, "beta": BETA, "starts": starts, "rows": rows}


# Entropic transport


def entropic(rounds: int) -> dict[str, Any]:
    import ot

    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((CLOUD, 3)) for _ in range(2))
    y[:, 0] += 1.0  # clouds that differ by more than their sampling
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
    costs = np.arccos(np.clip(x @ y.T, -1, 1)) ** 2
    mass = np.full(CLOUD, 1 / CLOUD)
    exact = float(np.sqrt(ot.emd2(mass, mass, costs)))

    def ours() -> float:
        return float(np.sqrt(sinkhorn.bounds(costs, mass, mass, 2.0, None, 0.01, 10**5).upper))

    def pot(reg: float) -> float:
        plan = ot.sinkhorn(
            mass, mass, costs, reg * costs.max(), method="sinkhorn_log", numItermax=1000,
            stopThr=1e-4,
        )  # fmt: skip
        return float(np.sqrt((plan * costs).sum()))

    chosen = next(reg for reg in (1e-2, 3e-3, 1e-3, 3e-4) if abs(pot(reg) / exact - 1) <= 0.01)
    sides = {"wflow.transport.sinkhorn": ours, "POT sinkhorn_log": lambda: pot(chosen)}
    errors = {name: side() / exact - 1 for name, side in sides.items()}
    times = in_turn(sides, rounds, least=0.0)
    rows = {name: spread(times[name]) | {"relative_error": errors[name]} for name in sides}
    return {"points": CLOUD, "reg_of_pot": chosen, "rows": rows}


# Single linkage


def linkage(rounds: int) -> dict[str, Any]:
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import pdist

    x = tokens.uniform(LINKED, 3, seed=0)

    def scipys() -> np.ndarray:
        chords = hierarchy.linkage(pdist(x), method="single")[:, 2]
        return 2 * np.arcsin(np.minimum(chords / 2, 1.0))

    sides = {"wflow.analysis.linkage": lambda: merge_heights(x), "scipy linkage": scipys}
    reference = sides["scipy linkage"]()
    times = in_turn(sides, rounds)
    rows: dict[str, dict[str, Any]] = {}
    for name, side in sides.items():
        with peak_memory() as memory:
            found = side()
        difference = float(np.abs(found - reference).max())
        rows[name] = {
            **spread(times[name]),
            "difference": difference,
            "memory_mb": memory["mb"] or 0.0,
        }
    return {"tokens": LINKED, "rows": rows}


def missing(*names: str) -> list[str]:
    return [name for name in names if library(name) is None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS / "libraries.json")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    calls = {
        "training loop": training,
        "IDX files": idx,
        "L-BFGS on the sphere": lbfgs,
        "entropic transport": entropic,
        "single linkage": linkage,
    }
    sections = {}
    for title, call in calls.items():
        section = sections[title] = call(flags.rounds)
        print(f"\n{title}", flush=True)
        for name, row in section["rows"].items():
            numbers = (f"{key} {value}" if isinstance(value, str | bool) else f"{key} {value:.4g}"
                       for key, value in row.items())  # fmt: skip
            print(f"  {name}: {', '.join(numbers)}", flush=True)
        for name in section.get("missing", ()):
            print(f"  {name}: not installed")
    write(flags.json, f"python benchmarks/libraries.py --rounds {flags.rounds}", 1, **sections)


if __name__ == "__main__":
    main()
