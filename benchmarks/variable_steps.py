"""How many steps could adaptive steps save under Ornstein-Uhlenbeck heads?

    python benchmarks/variable_steps.py [--json benchmarks/results/variable_steps.json]

Along runs of the main job by "sra1", every step is repeated by two halves on the same Brownian
path; the rms difference of the tokens is c h^2, the strong local error. Errors of steps add in mean
square, so that steps of lengths h(t) end with int c^2 h^3 dt and cost int 1/h dt. The best lengths
are h ~ c^(-1/2), and at equal error they take the share

    (1/T) (int c^(1/2) dt)^(4/3) / (int c^2 dt)^(1/3)

of the steps of equal length. Stated is that share for a controller that knew c in advance: the same
lengths for all paths, lengths of each path from c over ten steps, and from every step. A real one
pays for its estimate, for rejected steps and for Brownian bridges besides.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from report import write

import wflow

D, T, DT, SEED, SIGMA = 3, 20.0, 0.02, 0, np.sqrt(2.0)
SIZES = {1: (64, 16), 8: (64, 8), 64: (200, 1)}  # heads: tokens, paths


def velocity(x: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """Softmax attention, descent; x (paths, n, d), heads (paths, H, d, d)."""
    scores = np.einsum("pia,phab,pjb->phij", x, heads, x, optimize=True)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mean = weights / weights.sum(-1, keepdims=True) @ x[:, None]
    v = -np.einsum("phab,phib->pia", heads, mean, optimize=True) / heads.shape[1]
    return v - (v * x).sum(-1, keepdims=True) * x


def step(
    x: np.ndarray, heads: np.ndarray, dt: float, W: np.ndarray, mean: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One step of "sra1"; W and its mean over the step are of the noise without its size."""
    drift, v = np.eye(D) - heads, velocity(x, heads)
    inner = heads + 0.75 * dt * drift + 1.5 * SIGMA * mean
    inner_v = velocity(wflow.sphere.normalise(x + 0.75 * dt * v), inner)
    end = heads + dt * (drift + 2 * (np.eye(D) - inner)) / 3 + SIGMA * W
    return wflow.sphere.normalise(x + dt * (v + 2 * inner_v) / 3), end


def local_errors(count: int, n: int, paths: int) -> np.ndarray:
    """Strong local errors (steps, paths) along runs with `count` heads."""
    rng = np.random.default_rng(SEED)

    def normal() -> np.ndarray:
        Z = rng.normal(size=(paths, count, D, D))
        return (Z + np.swapaxes(Z, -1, -2)) / 2

    x = np.repeat(wflow.tokens.cross_polytope(n, D, seed=42)[None], paths, 0)
    heads = np.repeat(2 * normal()[:1], paths, 0)
    errors, h = [], DT / 2
    for _ in range(round(T / DT)):
        W = [np.sqrt(h) * normal() for _ in range(2)]
        mean = [(each + np.sqrt(h / 3) * normal()) / 2 for each in W]
        whole, _ = step(x, heads, DT, W[0] + W[1], (mean[0] + W[0] + mean[1]) / 2)
        for half in range(2):
            x, heads = step(x, heads, h, W[half], mean[half])
        errors.append(np.sqrt(((whole - x) ** 2).sum(-1).mean(-1)))
    return np.array(errors)


def share(c: np.ndarray) -> float:
    """Share of the steps that the best lengths take, mean over the paths; c (steps, paths)."""
    return float(((c**0.5).mean(0) ** (4 / 3) / (c**2).mean(0) ** (1 / 3)).mean())


def smooth(c: np.ndarray, over: int) -> np.ndarray:
    """Root mean squares over so many steps."""
    return np.sqrt((c**2).reshape(-1, over, c.shape[1]).mean(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for heads, (n, paths) in SIZES.items():
        c = local_errors(heads, n, paths)
        rows.append({
            "heads": heads, "tokens": n, "paths": paths,
            "all paths alike": share(np.sqrt((c**2).mean(1, keepdims=True))) if paths > 1 else None,
            "ten steps": share(smooth(c, 10)), "every step": share(c),
        })  # fmt: skip
        print(rows[-1], flush=True)
    if flags.json:
        write(flags.json, f"python benchmarks/variable_steps.py --json {flags.json}", 2, rows=rows)


if __name__ == "__main__":
    main()
