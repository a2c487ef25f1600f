"""Work for a given error of the tokens under Ornstein-Uhlenbeck heads, beside diffrax.

    python benchmarks/work_precision.py [--json benchmarks/results/work_precision.json]
        [--figure docs/figures/work_precision.png]

The schemes of wflow run on the same Brownian paths at all steps (those of the finest run, summed),
and so do the schemes of diffrax on its Brownian tree. Stated are, for every scheme and step,

- the strong error of the tokens at the end, the mean over paths of sqrt(mean |x - x_fine|^2),
  against the scheme of order 1.5 of the same library with the finest steps;
- the error of the mean dissipation of these paths at the end;
- the residual of the energy balance (rms), and that with the Stratonovich integral of the heads;
- velocities computed per unit of time, and milliseconds for a path, all paths in one call: with
  the whole energy budget, and without it, which is what diffrax computes. The random numbers of
  wflow are drawn for each step; those of diffrax come from a Brownian tree that resolves a quarter
  of the finest step, so that all its schemes see one path.

Then the work at an error of the tokens of 1e-3, and at a residual of 5e-3, interpolated between
steps in logarithms.
"""

import argparse
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from report import in_turn, spread, write

import wflow
from wflow._core.tableaux import TABLEAUX
from wflow.heads import OrnsteinUhlenbeck

D, T, SEED = 3, 1.0, 0
LEVELS = {"error": 1e-3, "residual": 5e-3}
STEPS = {"euler": (16, 64, 256, 1024), "sra1": (8, 16, 32, 64, 128)}
OTHERS = {"Euler": (16, 64, 256, 1024), "SRA1": (8, 16, 32, 64, 128), "ShARK": (8, 16, 32, 64, 128)}


def law(exact: bool, paths: Any = None) -> OrnsteinUhlenbeck:
    """The law of the main job; on the given Brownian paths, or its own random numbers."""
    if paths is None:
        return OrnsteinUhlenbeck(np.eye(D), exact=exact)
    return paths.on(OrnsteinUhlenbeck)(np.eye(D), exact=exact)


class Paths:
    """Brownian paths of the heads, in the finest steps."""

    def __init__(self, fine: int, paths: int, heads: int) -> None:
        rng = np.random.default_rng(SEED)
        shape = (paths, fine, heads, D, D)
        self.dt = T / fine
        self.W = np.sqrt(self.dt) * rng.standard_normal(shape)
        second = np.sqrt(self.dt) * rng.standard_normal(shape)
        self.area = self.dt * (self.W + second / np.sqrt(3)) / 2

    def normals(self, dt: float, t: float) -> tuple[np.ndarray, np.ndarray]:
        """What a law draws for the step from t: of its increment, and independent of it."""
        here = slice(round(t / self.dt), round((t + dt) / self.dt))
        W, area = self.W[:, here], self.area[:, here].sum(1)
        total = W.sum(1)
        area = area + self.dt * (np.cumsum(W, 1) - W).sum(1)
        return total / np.sqrt(dt), (2 * area / dt - total) * np.sqrt(3 / dt)

    def on(self, kind: type) -> type:
        """A law of that kind, moved by these paths."""
        paths = self

        class OnPaths(kind):
            def step(self, D, t, dt, normals):
                return super().step(D, t, dt, paths.normals(dt, t)[0])

            def additive_step(self, D, t, dt, normals, mean_normals):
                return super().additive_step(D, t, dt, *paths.normals(dt, t))

        return OnPaths


def run(size: tuple[int, int, int], scheme: Any, steps: int, paths: Any, exact: bool, budget: bool):
    """All paths in one call."""
    n, heads, count = size
    return wflow.solve(
        wflow.tokens.uniform(n, D, seed=SEED), law(exact, paths), heads=[np.eye(D)] * heads,
        t_final=T, dt=T / steps, paths=count, seed=SEED, scheme=scheme,
        save=wflow.SaveAt(paths=range(count), snapshots=[T], every=steps, budget=budget),
        compute=wflow.Compute(batch=count),
    )  # fmt: skip


def strong(found: np.ndarray, fine: np.ndarray) -> float:
    """Mean over paths of the rms distance of the tokens (paths, n, d)."""
    return float(np.sqrt(((found - fine) ** 2).sum(-1).mean(-1)).mean())


def rms(values: np.ndarray) -> float:
    return float(np.sqrt((values**2).mean()))


def of_wflow(size: tuple[int, int, int], fine: int, rounds: int) -> list[dict[str, Any]]:
    """The rows of wflow."""
    paths, rows = Paths(fine, size[2], size[1]), []
    best = run(size, "sra1", fine, paths, False, True)
    for scheme, exact in (("euler", False), ("euler", True), ("sra1", False), ("sra1", True)):
        for steps in STEPS[scheme]:
            found = run(size, scheme, steps, paths, exact, True)
            calls = {
                name: functools.partial(run, size, scheme, steps, None, exact, budget)
                for name, budget in (("budget", True), ("velocities", False))
            }
            taken = in_turn(calls, rounds)
            gap = found.dissipation.values[:, -1].mean() - best.dissipation.values[:, -1].mean()
            rows.append({
                "scheme": f"wflow {scheme}" + (", exact heads" if exact else ""),
                "steps": steps,
                "error": strong(found.tokens.values[:, -1], best.tokens.values[:, -1]),
                "weak_error_dissipation": abs(float(gap)),
                "residual": rms(found.edi_residual.values[:, -1]),
                "residual_stratonovich": rms(found.edi_residual_stratonovich.values[:, -1]),
                "evaluations": steps * TABLEAUX[scheme].stages,
                **{f"{k}_a_path": spread([each / size[2] for each in v]) for k, v in taken.items()},
            })  # fmt: skip
            print_row(rows[-1])
    return rows


def of_diffrax(size: tuple[int, int, int], fine: int, rounds: int) -> list[dict[str, Any]]:
    """The rows of diffrax: tokens and heads as one equation, compiled once for each step."""
    import diffrax
    import jax
    import jax.numpy as jnp
    import lineax

    jax.config.update("jax_enable_x64", True)
    n, heads, count = size
    # Heads D = (A + A^T)/2, so that every entry of A has noise of its own; the state is flat.
    tokens, entries = n * D, heads * D * D
    shape = jax.ShapeDtypeStruct((entries,), jnp.float64)
    begin = wflow.tokens.uniform(n, D, seed=SEED)
    start = jnp.concatenate([jnp.asarray(begin).ravel(), jnp.tile(jnp.eye(D).ravel(), heads)])
    noise = jnp.concatenate([jnp.zeros((tokens, entries)), np.sqrt(2.0) * jnp.eye(entries)])
    operator = lineax.MatrixLinearOperator(noise)

    def drift(t, y, args):
        x, A = y[:tokens].reshape(n, D), y[tokens:].reshape(heads, D, D)
        x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        D_h = (A + jnp.swapaxes(A, -1, -2)) / 2
        scores = jnp.einsum("ia,hab,jb->hij", x, D_h, x)
        mean = jnp.einsum("hij,jk->hik", jax.nn.softmax(scores, axis=-1), x)
        moved = -jnp.einsum("hab,hib->ia", D_h, mean) / heads
        moved = moved - (moved * x).sum(-1, keepdims=True) * x
        return jnp.concatenate([moved.ravel(), (jnp.eye(D) - A).ravel()])

    def diffusion(t, y, args):
        return operator

    @functools.partial(jax.jit, static_argnames=("scheme", "steps"))
    def solved(scheme, steps):
        def one(key):
            tree = diffrax.VirtualBrownianTree(
                0.0, T, T / fine / 4, shape, key, levy_area=diffrax.SpaceTimeLevyArea
            )
            terms = diffrax.MultiTerm(diffrax.ODETerm(drift), diffrax.ControlTerm(diffusion, tree))
            found = diffrax.diffeqsolve(
                terms,
                getattr(diffrax, scheme)(),
                0.0,
                T,
                T / steps,
                start,
                max_steps=steps + 1,
            )
            x = found.ys[-1][:tokens].reshape(n, D)
            return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

        return jax.vmap(one)(jax.random.split(jax.random.key(SEED), count))

    best, rows = np.asarray(solved("SRA1", fine)), []
    for scheme, every in OTHERS.items():
        for steps in every:
            found = np.asarray(solved(scheme, steps))
            call: Callable[[], Any] = functools.partial(
                lambda s, k: jax.block_until_ready(solved(s, k)), scheme, steps
            )
            taken = in_turn({"velocities": call}, rounds)["velocities"]
            rows.append({
                "scheme": f"diffrax {scheme}",
                "steps": steps,
                "error": strong(found, best),
                "evaluations": steps * (1 if scheme == "Euler" else 2),
                "velocities_a_path": spread([each / count for each in taken]),
            })  # fmt: skip
            print_row(rows[-1])
    return rows


def print_row(row: dict[str, Any]) -> None:
    """One line."""
    times = [
        f"{row[key]['median_ms']:8.3f}" for key in ("velocities_a_path", "budget_a_path")
        if key in row
    ]  # fmt: skip
    more = (
        f" dissipation {row['weak_error_dissipation']:.1e} residual {row['residual']:.1e}"
        f" Stratonovich {row['residual_stratonovich']:.1e}"
        if "residual" in row
        else ""
    )
    print(
        f"{row['scheme']:26} {row['steps']:5} steps  error {row['error']:.2e}  "
        f"{row['evaluations']:5} velocities  ms {' '.join(times)}{more}",
        flush=True,
    )


def at_level(rows: list[dict[str, Any]], name: str, level: float) -> list[dict[str, Any]]:
    """Evaluations and milliseconds of every scheme where `name` is `level`, or None beyond."""
    found, times = [], "budget_a_path" if name == "residual" else "velocities_a_path"
    rows = [row for row in rows if name in row]
    for scheme in dict.fromkeys(row["scheme"] for row in rows):
        mine = sorted((row for row in rows if row["scheme"] == scheme), key=lambda r: r[name])
        sizes = np.log([row[name] for row in mine])
        entry: dict[str, Any] = {"scheme": scheme, "evaluations": None, "ms": None}
        if sizes[0] <= np.log(level) <= sizes[-1]:
            work = {
                "evaluations": [row["evaluations"] for row in mine],
                "ms": [row[times]["median_ms"] for row in mine],
            }
            for key, values in work.items():
                entry[key] = float(np.exp(np.interp(np.log(level), sizes, np.log(values))))
        found.append(entry)
        print(f"{scheme:26} {name} {level:g}: {entry['evaluations']} velocities, {entry['ms']} ms")
    return found


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Errors of the tokens and residuals against the time of a path."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = {
        "error": ("strong error of the tokens", "velocities_a_path"),
        "residual": ("residual of the balance (rms)", "budget_a_path"),
    }
    figure, axes = plt.subplots(1, 2, figsize=(8.0, 3.4), layout="constrained")
    for axis, (name, (label, time)) in zip(axes, panels.items(), strict=True):
        for scheme in dict.fromkeys(row["scheme"] for row in rows):
            mine = [row for row in rows if row["scheme"] == scheme and name in row]
            if mine and "exact" not in scheme:
                ms = [row[time]["median_ms"] for row in mine]
                style = "o--" if "diffrax" in scheme else "o-"
                axis.loglog(ms, [row[name] for row in mine], style, markersize=3.5, label=scheme)
        axis.set(xlabel="milliseconds a path", ylabel=label)
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8)
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--paths", type=int, default=16)
    parser.add_argument("--fine", type=int, default=4096, help="steps of the reference")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path, help="PNG of the work-precision diagram")
    flags = parser.parse_args()
    size = flags.tokens, flags.heads, flags.paths
    rows = of_wflow(size, flags.fine, flags.rounds)
    if importlib.util.find_spec("diffrax"):
        rows += of_diffrax(size, flags.fine, flags.rounds)
    else:
        print("diffrax is not installed: its rows are missing")
    levels = {f"{name} {level:g}": at_level(rows, name, level) for name, level in LEVELS.items()}
    if flags.figure:
        draw(rows, flags.figure)
    if flags.json:
        command = f"python benchmarks/work_precision.py --json {flags.json}"
        write(flags.json, command, 2, size=size, fine=flags.fine, rows=rows, at=levels)


if __name__ == "__main__":
    main()
