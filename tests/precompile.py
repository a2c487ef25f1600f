"""Compile the kernels that the tests call before they start, each by one process.

    python tests/precompile.py

Workers of pytest would each wait for the same kernel, or compile it twice. Where the compiled code
is on disk already, this takes seconds.
"""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from unittest.mock import patch

import numpy as np

import wflow
from wflow._core import threads
from wflow.kernels.evaluate import Sums, energy_laplacian, evaluate, head_sums, velocity_adjoint

DTYPES = ("float64", "float32")


def tokens(d: int, dtype: str = "float64") -> np.ndarray:
    return np.eye(6, d, dtype=dtype) + np.eye(6, d, -d, dtype=dtype)


def exact(d: int, symmetric: bool, dtypes: tuple[str, ...] = DTYPES) -> None:
    for dtype in dtypes:
        evaluate(tokens(d, dtype)[None], np.eye(d, dtype=dtype)[None, None], symmetric=symmetric)


def large(symmetric: bool) -> None:
    """Scores that need a shift have loops of their own, which take longest to compile."""
    evaluate(tokens(3)[None], 1e3 * np.eye(3)[None, None], symmetric=symmetric)


def fast() -> None:
    for d in (2, 3):
        x = wflow.tokens.uniform(3000, d, seed=0)  # enough that all passes are worth it
        evaluate(x[None], np.eye(d)[None, None], sums=Sums("fast"))


def diffusion() -> None:
    for dtype in DTYPES:
        energy_laplacian(tokens(3, dtype)[None], np.eye(3, dtype=dtype)[None, None])
    energy_laplacian(tokens(3)[None], np.eye(3)[None, None], Sums("fast"))


def sums_of_heads(d: int) -> None:
    for dtype in DTYPES:
        x, D = tokens(d, dtype)[None], np.eye(d, dtype=dtype)[None, None]
        for weights in (None, np.ones((1, x.shape[1]), dtype)):
            head_sums(x, D, weights=weights)
    if d == 3:
        head_sums(x, D, vectors=False)
        head_sums(wflow.tokens.uniform(3000, 3, seed=0)[None], np.eye(3)[None, None],
                  sums=Sums("fast"))  # fmt: skip


def adjoint(d: int) -> None:
    x = tokens(d)[None]
    velocity_adjoint(x, np.eye(d)[None, None], x)


def mobilities() -> None:
    wflow.mobility(tokens(3), np.eye(3)[None])
    wflow.metric.metric_derivative(tokens(3), tokens(3)[::-1], np.eye(3)[None])


def inverse_problems() -> None:
    model = wflow.sampling.forward.Lorenz(windows=1)
    model.vjp(np.zeros((1, 3)), np.ones((1, 3)))
    wflow.sampling.reference.bayesian_lasso(np.eye(2), np.ones(2), lam=1.0, noise=0.1, draws=4)


def proximal() -> None:
    prior = wflow.sampling.L1(1.0)
    for dtype in DTYPES:
        x = tokens(3, dtype)
        wflow.sampling.attention_mean(x, x, h=0.1, beta=1.0, prior=prior)


# The longest first, and after others what shares kernels with them. Of twelve coordinates: many; of
# one: any number, in loops with which the tests compare the others.
TASKS: list[tuple] = [
    (fast,),
    (exact, 12, True),
    (sums_of_heads, 9),
    (sums_of_heads, 3),
    (diffusion,),
    (exact, 3, True),
    (mobilities,),
    (exact, 2, True),
    (exact, 2, False),
    (exact, 3, False),
    (exact, 1, True),
    (adjoint, 3),
    (adjoint, 2),
    (adjoint, 5),
    (large, True),
    (large, False),
    (exact, 5, True, ("float64",)),
    (inverse_problems,),
    (proximal,),
]


def with_threads_and_without(task: Callable[..., None], *arguments: object) -> None:
    task(*arguments)  # so little that it takes one thread
    if threads.available() > 1:
        with patch.object(threads, "current", lambda: 2):
            task(*arguments)


def main() -> None:
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        every = [pool.submit(with_threads_and_without, *task) for task in TASKS]
        for count, done in enumerate(as_completed(every), 1):
            done.result()
            print(f"compiled {count} of {len(every)}", flush=True)


if __name__ == "__main__":
    main()
