"""Gradients: the adjoint of a velocity against the velocity, and a run against autograd of torch.

    python benchmarks/adjoint.py [--json benchmarks/results/adjoint.json] [--rounds 5] [--steps 100]

The adjoint of one evaluation for a path of tokens with tied heads, whose velocity uses each kernel
value for both tokens of a pair, and with general heads, whose velocity computes each direction. A
whole gradient by Euler steps, heads at rest, stands beside `torch.autograd` of the same scan, with
all of its intermediate results in memory. Sides run in turn, round after round, on all threads; the
memory is what the first call of a side adds at its peak.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from report import in_turn, peak_memory, quotient, spread, write

import wflow
from wflow.kernels.evaluate import evaluate, velocity_adjoint

SIZES = ((200, 64), (2000, 8))  # tokens, heads
D, DT = 3, 0.02


def cloud(n: int, heads: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(heads, D, D)) / np.sqrt(2 * D)
    return wflow.tokens.uniform(n, D, seed=0), z + z.swapaxes(-1, -2)


def by_torch(x0: np.ndarray, heads: np.ndarray, steps: int) -> Callable[[], Any]:
    """The mean cosine at the end of the same run, differentiated by torch."""

    def on_sphere(y: torch.Tensor) -> torch.Tensor:
        return y / y.norm(dim=-1, keepdim=True)

    def call() -> tuple[torch.Tensor, ...]:
        start, D = (torch.tensor(array, requires_grad=True) for array in (x0, heads))
        x = on_sphere(start)
        for _ in range(steps):
            weights = torch.softmax((x @ D) @ x.T, -1)
            v = -((weights @ x) @ D.transpose(-1, -2)).mean(0)
            x = on_sphere(x + DT * (v - (v * x).sum(-1, keepdim=True) * x))
        return torch.autograd.grad((x.mean(0) ** 2).sum(), (start, D))

    return call


def by_wflow(x0: np.ndarray, heads: np.ndarray, steps: int) -> Callable[[], Any]:
    def call() -> tuple[Any, ...]:
        found = wflow.gradient(
            x0, wflow.heads.Frozen(), heads=heads, t_final=steps * DT, dt=DT,
            loss=wflow.losses.MeanCosine(),
        )  # fmt: skip
        assert found.initial_heads is not None
        return found.x0, found.initial_heads[0]

    return call


def velocities(n: int, heads: int, rounds: int) -> dict[str, Any]:
    """One evaluation and its adjoint."""
    x, D = (array[None] for array in cloud(n, heads))
    lam = np.random.default_rng(1).normal(size=x.shape)
    taken = in_turn(
        {
            "tied": lambda: evaluate(x, D, symmetric=True),
            "general": lambda: evaluate(x, D),
            "adjoint": lambda: velocity_adjoint(x, D, lam),
        },
        rounds,
    )
    sides = {name: spread(values) for name, values in taken.items()}
    ratios = {name: quotient(sides["adjoint"], sides[name]) for name in ("tied", "general")}
    return {"n": n, "heads": heads, **sides, "over": ratios}


def gradients(n: int, heads: int, steps: int, rounds: int) -> dict[str, Any]:
    """A whole gradient on both sides, their agreement and memory."""
    given = (*cloud(n, heads), steps)
    calls = {"wflow": by_wflow(*given), "torch": by_torch(*given)}
    for side in (by_wflow, by_torch):
        side(*cloud(16, 2), 1)()  # loads what it needs
    memory, found = {}, {}
    for name, call in calls.items():
        with peak_memory() as peak:
            found[name] = call()
        memory[name] = peak["mb"]
    pairs = zip(found["wflow"], found["torch"], strict=True)
    apart = max(np.abs(a - b.numpy()).max() / np.abs(a).max() for a, b in pairs)
    sides = {name: spread(values) for name, values in in_turn(calls, rounds, least=0.0).items()}
    return {
        "n": n, "heads": heads, "steps": steps, **sides, "memory_mb": memory,
        "relative_difference": float(apart),
        "torch_over_wflow": quotient(sides["torch"], sides["wflow"]),
    }  # fmt: skip


def main() -> None:
    """Time all sizes and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help="of a run; fewer for more pairs")
    flags = parser.parse_args()
    threads = numba.get_num_threads()
    torch.set_num_threads(threads)
    rows: list[dict[str, Any]] = []
    for n, heads in SIZES:
        steps = max(1, flags.steps * SIZES[0][0] ** 2 * SIZES[0][1] // (n * n * heads))
        row = velocities(n, heads, flags.rounds)
        rows.append(row)
        over = {kind: f"{ratio['median_times']:.2f}" for kind, ratio in row["over"].items()}
        print(f"n = {n}, {heads} heads: the adjoint takes {over} velocities")
        row = gradients(n, heads, steps, flags.rounds)
        rows.append(row)
        print(
            f"  {steps} steps: wflow {row['wflow']['median_ms']:.0f} ms, torch over wflow "
            f"{row['torch_over_wflow']['median_times']:.1f} times, memory {row['memory_mb']} MB, "
            f"relative difference {row['relative_difference']:.1e}"
        )
    if flags.json:
        write(flags.json, f"python benchmarks/adjoint.py --json {flags.json}", threads, rows=rows)


if __name__ == "__main__":
    main()
