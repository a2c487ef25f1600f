"""Gradients: the adjoint of a velocity against the velocity, and a run against torch and JAX.

    python benchmarks/adjoint.py [--json benchmarks/results/adjoint.json] [--rounds 5] [--steps 100]

The adjoint of one evaluation for a path of tokens with tied heads, whose velocity uses each kernel
value for both tokens of a pair, and with general heads, whose velocity computes each direction. A
whole gradient by Euler steps, heads at rest, stands beside `torch.autograd` of the same scan, with
all of its intermediate results in memory, and beside `jax.grad` of a compiled `jax.lax.scan`, where
JAX is installed. Sides run in turn, round after round, on all threads; the memory is what the first
call of a side adds at its peak, after a call for fewer tokens. That of JAX includes its compiler,
and less than 1 MB counts as 1 MB. Adjoints of many tokens by the fast sums stand beside the exact
one, where that is a matter of seconds, and beside the velocities by the fast sums.
"""

import argparse
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from report import in_turn, peak_memory, quotient, spread, write

import wflow
from wflow.kernels.evaluate import Sums, evaluate, velocity_adjoint

COMMAND = "python benchmarks/adjoint.py"
EVALUATIONS = ((200, 64, 3), (2000, 8, 3), (1000, 8, 12), (1000, 8, 64))  # tokens, heads, dimension
RUNS = ((200, 64), (2000, 8))  # tokens, heads
MANY = ((20_000, 8), (100_000, 8))  # tokens, heads
SECONDS = 20_000  # tokens, up to which the exact adjoint is a matter of seconds
D, DT = 3, 0.02


def cloud(n: int, heads: int, d: int = D) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(heads, d, d)) / np.sqrt(2 * d)
    return wflow.tokens.uniform(n, d, seed=0), z + z.swapaxes(-1, -2)


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


def by_jax(x0: np.ndarray, heads: np.ndarray, steps: int) -> Callable[[], Any]:
    """The same by JAX, compiled."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def on_sphere(y: Any) -> Any:
        return y / jnp.linalg.norm(y, axis=-1, keepdims=True)

    def step(x: Any, D: Any) -> Any:
        weights = jax.nn.softmax((x @ D) @ x.T, -1)
        v = -((weights @ x) @ D.swapaxes(-1, -2)).mean(0)
        return on_sphere(x + DT * (v - (v * x).sum(-1, keepdims=True) * x))

    def cosine(start: Any, D: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, _: (step(x, D), None), on_sphere(start), length=steps)
        return (x.mean(0) ** 2).sum()

    derivatives = jax.jit(jax.grad(cosine, (0, 1)))
    return lambda: jax.block_until_ready(derivatives(x0, heads))


def by_wflow(x0: np.ndarray, heads: np.ndarray, steps: int) -> Callable[[], Any]:
    def call() -> tuple[Any, ...]:
        found = wflow.gradient(
            x0, wflow.heads.Frozen(), heads=heads, t_final=steps * DT, dt=DT,
            loss=wflow.losses.MeanCosine(),
        )  # fmt: skip
        assert found.initial_heads is not None
        return found.x0, found.initial_heads[0]

    return call


def evaluations(n: int, heads: int, d: int, rounds: int) -> tuple[list[dict], list[dict]]:
    """One evaluation and its adjoint: times, and the adjoint over the velocities."""
    x, D = (array[None] for array in cloud(n, heads, d))
    lam = np.random.default_rng(1).normal(size=x.shape)
    taken = in_turn(
        {
            "velocity, tied": lambda: evaluate(x, D, symmetric=True),
            "velocity, general": lambda: evaluate(x, D),
            "adjoint": lambda: velocity_adjoint(x, D, lam),
        },
        rounds,
    )
    problem = {"n": n, "H": heads, "d": d}
    sides = {name: spread(values) for name, values in taken.items()}
    return [problem | {"variant": name} | side for name, side in sides.items()], [
        problem | {"variant": "adjoint", "over": name} | quotient(sides["adjoint"], sides[name])
        for name in sides
        if name != "adjoint"
    ]


def by_series(n: int, heads: int, rounds: int) -> tuple[list[dict], list[dict]]:
    """The adjoint of one evaluation by the fast sums, over their velocity and the exact adjoint."""
    x, D = (array[None] for array in cloud(n, heads))
    lam, sums = np.random.default_rng(1).normal(size=x.shape), Sums("fast")
    calls: dict[str, Callable[[], Any]] = {
        "velocity, fast": lambda: evaluate(x, D, symmetric=True, sums=sums),
        "adjoint, fast": lambda: velocity_adjoint(x, D, lam, sums=sums),
    }
    if n <= SECONDS:
        calls["adjoint, exact"] = lambda: velocity_adjoint(x, D, lam)
        pairs = zip(calls["adjoint, fast"]()[:2], calls["adjoint, exact"]()[:2], strict=True)
        assert max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs) < 1e-8
    problem = {"n": n, "H": heads, "d": D.shape[2]}
    sides = {name: spread(of) for name, of in in_turn(calls, rounds, least=0.0).items()}
    return [problem | {"variant": name} | side for name, side in sides.items()], [
        problem | {"variant": one, "over": other} | quotient(sides[one], sides[other])
        for one, other in (("adjoint, fast", "velocity, fast"), ("adjoint, exact", "adjoint, fast"))
        if one in sides
    ]


def runs(n: int, heads: int, steps: int, rounds: int) -> tuple[list[dict], list[dict]]:
    """A whole gradient on all sides: times and memory, and the others over wflow."""
    makers = {"wflow": by_wflow, "torch": by_torch}
    if importlib.util.find_spec("jax"):
        makers["jax"] = by_jax
    memory, found, calls = dict[str, float](), {}, {}
    for name, maker in makers.items():
        maker(*cloud(16, 2), 1)()  # loads what it needs
        calls[name] = maker(*cloud(n, heads), steps)
        with peak_memory() as peak:
            found[name] = [np.asarray(of) for of in calls[name]()]
        memory[name] = max(1.0, peak["mb"] or 0.0)
    for name, of in found.items():
        pairs = zip(of, found["wflow"], strict=True)
        assert max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs) < 1e-9, name
    problem = {"n": n, "H": heads, "steps": steps}
    taken = in_turn(calls, rounds, least=0.0)
    sides = {name: spread(values) for name, values in taken.items()}
    return [
        problem | {"variant": name} | side | {"peak_mb": memory[name]}
        for name, side in sides.items()
    ], [
        problem
        | {"variant": name, "over": "wflow"}
        | quotient(sides[name], sides["wflow"])
        | {"memory_times": memory[name] / memory["wflow"]}
        for name in sides
        if name != "wflow"
    ]


def main() -> None:
    """Time all sizes and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help="of a run; fewer for more pairs")
    flags = parser.parse_args()
    threads = numba.get_num_threads()
    torch.set_num_threads(threads)
    body: dict[str, list[dict]] = {
        name: [] for name in ("evaluations", "adjoint", "many_tokens", "fast", "runs", "ratios")
    }
    for size in EVALUATIONS:
        rows, ratios = evaluations(*size, flags.rounds)
        body["evaluations"] += rows
        body["adjoint"] += ratios
        print(*(f"{size}: {row['median_times']:.2f} of {row['over']}" for row in ratios), sep="; ")
    for n, heads in MANY:
        rows, ratios = by_series(n, heads, flags.rounds)
        body["many_tokens"] += rows
        body["fast"] += ratios
        for row in ratios:
            print(f"n = {n}: {row['median_times']:.1f} times {row['variant']} over {row['over']}")
    for n, heads in RUNS:
        steps = max(1, flags.steps * RUNS[0][0] ** 2 * RUNS[0][1] // (n * n * heads))
        rows, ratios = runs(n, heads, steps, flags.rounds)
        body["runs"] += rows
        body["ratios"] += ratios
        for row in ratios:
            print(
                f"n = {n}, H = {heads}, {steps} steps: {row['variant']} takes "
                f"{row['median_times']:.1f} times the time of wflow and "
                f"{row['memory_times']:.1f} times its memory"
            )
    if flags.json:
        command = f"{COMMAND} --rounds {flags.rounds} --steps {flags.steps}"
        write(flags.json, command, threads, device="cpu", seed=0, **body)


if __name__ == "__main__":
    main()
