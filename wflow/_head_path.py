"""The heads of a run in advance, without its tokens: no head law looks at them."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from wflow._checks import whole
from wflow._matrices import Matrices, is_symmetric
from wflow._problem import Problem
from wflow.errors import BlowUpError, InputError
from wflow.heads import QKV, HeadLaw
from wflow.rng import CounterNormals
from wflow.schemes import SCHEMES, Stage, advance
from wflow.solver import posed


def head_path(
    law: HeadLaw,
    *,
    heads: int | ArrayLike | QKV | None = None,
    d: int,
    t_final: float,
    dt: float,
    seed: int = 0,
    path: int = 0,
    scheme: str = "euler",
    every: int = 1,
) -> Iterator[tuple[float, Matrices]]:
    """Heads D_h(t) of one path: those of `wflow.solve` with the same arguments, bit for bit.

    D <- D + f dt + sigma dW_sym (or a step of `scheme` for a law without noise), with the random
    numbers of (seed, path, step). Nothing is stored: one step is made when it is asked for.

    Parameters
    ----------
    law, heads, t_final, dt, seed, scheme : as in `wflow.solve`
    d : dimension of the tokens
    path : number of the Monte Carlo path
    every : yield every so many steps; the number of steps is a multiple of it

    Yields
    ------
    t, D : the time, from 0 to t_final, and the heads (heads, d, d) then: an array of its own

    Raises
    ------
    InputError
        For an argument that cannot be used, before anything is yielded; for a law that makes heads
        asymmetric though it says that it keeps them symmetric; for (Q, K, V) heads.
    BlowUpError
        For heads that leave the finite numbers.

    Source: docs/mathematics.md section 2; [MHT] section 6.
    """
    path = whole(path, "path", 0)
    every = whole(every, "every")
    problem = posed(
        np.eye(1, whole(d, "d", 2, why="tokens live on the sphere S^(d-1)")),
        law,
        heads=heads,
        t_final=t_final,
        dt=dt,
        paths=path + 1,
        seed=seed,
        scheme=scheme,
        snapshots=(0.0,),
        snapshot_paths=(path,),
        ledger=False,
    )
    if problem.values is not None:
        raise InputError(
            "general (Q, K, V) heads have score and value matrices of their own and no energy: "
            "expected heads (heads, d, d)"
        )
    if problem.steps % every:
        raise InputError(
            f"every is {every}: expected a divisor of the {problem.steps} steps of dt = {dt:g}"
        )
    return _march(problem, path, every)


def _march(problem: Problem, path: int, every: int) -> Iterator[tuple[float, Matrices]]:
    law, dt, scheme = problem.law, problem.dt, SCHEMES[problem.scheme]
    normals = CounterNormals(problem.seed)
    D: Matrices = np.array(problem.scores[None], np.float64)  # one path
    kept_symmetric = law.symmetric and is_symmetric(D)
    x: Matrices = np.eye(1, D.shape[-1])[None]  # one token at rest: a scheme moves both
    for step in range(problem.steps + 1):
        t = step * dt
        if step % every == 0:
            yield t, D[0].copy()
        if step == problem.steps:
            return
        noise = None
        if not law.deterministic:
            noise = normals.draw(D.shape[1:], path=path, step=step)[None]
        law_step = law.step(D, t, dt, noise)
        within = law.drift_within(t, dt)
        drift = law_step.drift if scheme.order == 1 else within(D, t)

        def stage_at(node: float, x, D, within=within, t=t) -> Stage:
            return Stage(np.zeros_like(x), within(D, t + node * dt), {})

        first = Stage(np.zeros_like(x), drift, {})
        x, D, _ = advance(scheme, x, D, dt, first, law_step.noise, stage_at)
        if not np.isfinite(D).all():
            raise BlowUpError(
                f"the heads leave the finite numbers before time {t + dt:g} in path {path}; take "
                "a smaller dt, or a weaker drift",
                time=t + dt,
                path=path,
                score=float("inf"),
            )
        if kept_symmetric and not is_symmetric(D):
            raise InputError(
                f"the law {type(law).__name__} made heads asymmetric before time {t + dt:g}, but "
                "says that it keeps them symmetric; mend its drift, or give it symmetric=False"
            )
        jumped = law.jump(t, dt)
        if jumped is not None:
            D = np.array(np.broadcast_to(jumped, D.shape), np.float64)
