"""Attention of the proximal operator beside plain torch, its memory, and an OT-Flow iteration.

    python benchmarks/rwpo.py [--quick] [--threads 1] [--json benchmarks/results/rwpo.json]

The interaction layer of N tokens with the exact kernel of the L1 prior: the mean of the context
under the softmax, the trace of its Jacobian and the effective sample size.

- wflow: `wflow.sampling.attention_mean`, fused sums without an array of pairs;
- torch: the same formulas plainly, an N x N matrix of scores and its softmax;
- torch, flushed: the same with subnormal numbers taken as zero. Exponentials of scores reach them
  in many coordinates and in single precision, and arithmetic with them is slow; wflow has none;
- torch, SDPA: `scaled_dot_product_attention` with the bias as one more coordinate; mean and trace.

Forward and backward: a loss of mean and trace, gradients by all tokens,

- wflow.nets: `wflow.nets.generative.attention` with variances, chunks of scores;
- torch: the plain formulas by autograd.

OT-Flow: forward and backward of `wflow.nets.generative.Likelihood`, 8 steps of RK4, single
precision, with

- closed form: the Laplacian of the potential by its formula, as the package has it;
- gradient alone: the same steps without a Laplacian, and without a likelihood therefore;
- autograd: the Laplacian by d backward passes, the potential in plain operations.

"times operations" is the time of the closed form over that of the gradient alone, over the same
ratio of `Potential.operations`: at most 1 where the trace costs no more than its formula says.

Determinant: log det of the Jacobian of a layer on the way to the base and its gradient, N = 256
tokens and as many of context, with beta such that tokens interact,

- exact: the covariance under the weights, and its determinant;
- estimate: Lanczos' method with 8 random vectors. "error" is its root mean square error, "stated"
  the one that it states itself.

The plain matrices are left out where they have no room, and torch from 10,000 tokens on in more
than two coordinates, where it takes minutes; there are three rounds from there on. "share" is the
rate of the products of scores and sums, 2 flops per multiply-add, over that of NumPy's product of
two matrices; the exponentials count for nothing. Memory is the growth of the resident memory during
a forward call, in a process of its own.

The variants run in turn, round after round, on the same threads; the median over the rounds is
printed with the smallest and largest. Before it is timed, each must agree with wflow.
"""

import argparse
import ctypes.util
import itertools
import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from matrix_rate import matrix_product
from numpy.typing import NDArray
from report import RESULTS, goal, in_turn, peak_memory, spread, write
from threadpoolctl import threadpool_limits

from wflow import sampling
from wflow._core.memory import free_memory
from wflow.nets import generative
from wflow.nets.generative.determinant import Estimate, log_det_estimate, signs
from wflow.nets.generative.moments import Scores, attend, effective_size, interaction, proximal
from wflow.nets.generative.sparse import identity, log_abs_det

H, BETA, LAM = 1 / 48, 1.0, 2.0
Sizes = tuple[tuple[int, ...], ...]
SIZES, DIMENSIONS, PRECISIONS = (1024, 4096, 16_384), (2, 32, 128), ("float64", "float32")
TRAINED: Sizes = ((1024, 2), (4096, 2), (4096, 32), (4096, 128))
FLOWS: tuple[tuple[int, int, int], ...] = (
    (2, 48, 4096),
    (16, 128, 512),
    (64, 128, 512),
    (128, 128, 512),
)  # d, width, batch
DETERMINANTS, CONTEXT = (16, 64, 128, 256), 256
PROBES = 8
STEPS, BY_AUTOGRAD = 8, 2  # of RK4; largest d of the Laplacian by backward passes
MEMORY: tuple[int, ...] = (8192, 32_768, 131_072)
LARGE = 10_000
ORDER = 2000  # of the matrices whose product gives the rate
COMMAND = "python benchmarks/rwpo.py"
PARTS = ("forward", "forward_and_backward", "determinant", "ot_flow_iteration", "memory")
TOLERANCE = {"float64": 1e-9, "float32": 1e-2}  # of means and traces, beside wflow in double
Answer = tuple[Any, ...]


def cloud(n: int, d: int, dtype: str) -> NDArray[np.floating]:
    return np.random.default_rng(0).normal(size=(n, d)).astype(dtype)


def wflow_forward(x: NDArray[np.floating]) -> Answer:
    found = sampling.attention_mean(x, x, h=H, beta=BETA, prior=sampling.L1(LAM))
    return found.mean, found.trace, found.ess


def keys(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Squares of the tokens, and the bias of the exact kernel up to a constant."""
    a, c = BETA / (4 * H), BETA * LAM / 2
    rate = (2 * a) ** 0.5
    near = torch.logaddexp(
        torch.special.log_ndtr(rate * x - c / rate) - c * x,
        torch.special.log_ndtr(-rate * x - c / rate) + c * x,
    )
    squares = x.square().sum(1)
    return squares, -a * squares - near.sum(1)


def torch_forward(x: torch.Tensor) -> Answer:
    scale = BETA / (2 * H)
    squares, bias = keys(x)
    weights = torch.softmax(torch.addmm(bias, x, x.T, alpha=scale), 1)
    mean = weights @ x
    trace = scale * (weights @ squares - mean.square().sum(1))
    return mean, trace, 1 / weights.square().sum(1)


def flushed(call: Callable[[], Answer]) -> Answer:
    """The result of a call in which subnormal numbers are zero."""
    torch.set_flush_denormal(True)
    try:
        return call()
    finally:
        torch.set_flush_denormal(False)


def sdpa_forward(x: torch.Tensor) -> Answer:
    squares, bias = keys(x)
    q = torch.cat([BETA / (2 * H) * x, torch.ones_like(x[:, :1])], 1)
    k = torch.cat([x, bias[:, None]], 1)
    v = torch.cat([x, squares[:, None]], 1)
    found = torch.nn.functional.scaled_dot_product_attention(
        q[None, None], k[None, None], v[None, None], scale=1.0
    )[0, 0]
    mean = found[:, :-1]
    return mean, BETA / (2 * H) * (found[:, -1] - mean.square().sum(1))


def matrices_fit(n: int, dtype: str, count: int) -> bool:
    """Whether `count` matrices of all pairs have room, with some to spare."""
    return count * n * n * np.dtype(dtype).itemsize < 0.6 * free_memory()


def check(name: str, found: Answer, expected: Answer, dtype: str) -> None:
    """Means and traces must be those of wflow in double precision."""
    for one, other in zip(found[:2], expected[:2], strict=True):
        gap = float(np.max(np.abs(np.asarray(one, np.float64) - other)))
        if not gap < TOLERANCE[dtype]:
            raise SystemExit(f"{name} differs by {gap:.1e} from wflow in double precision")


def forward(n: int, d: int, dtype: str, rounds: int, order: int) -> list[dict[str, Any]]:
    """Rows of one size: times, and the share of the rate of matrix products."""
    x = cloud(n, d, dtype)
    tokens = torch.from_numpy(x)
    calls: dict[str, Callable[[], Any]] = {"wflow": lambda: wflow_forward(x)}
    if n < LARGE or d == 2:
        if matrices_fit(n, dtype, 3):
            calls["torch"] = lambda: torch_forward(tokens)
            if n < LARGE:
                calls["torch, flushed"] = lambda: flushed(lambda: torch_forward(tokens))
        calls["torch, SDPA"] = lambda: sdpa_forward(tokens)
    expected = wflow_forward(x.astype(np.float64))
    with torch.no_grad():
        for name, call in calls.items():
            check(name, call(), expected, dtype)
        calls["product"] = matrix_product(dtype, order)
        taken = in_turn(calls, min(rounds, 3) if n >= LARGE else rounds, least=0.05, pause=0.05)
    rate = 2.0 * order**3 / np.median(taken.pop("product"))
    ours = np.median(taken["wflow"])
    flops = 2.0 * n * n * (2 * d + 3)
    rows = []
    for name, values in taken.items():
        rows.append(
            {"N": n, "d": d, "precision": dtype, "variant": name, **spread(values)}
            | {"times_wflow": float(np.median(values) / ours)}
            | {"share": float(flops / np.median(values) / rate)}
        )
        tell(rows[-1])
    return rows


def trained(n: int, d: int, dtype: str, rounds: int) -> list[dict[str, Any]]:
    """Rows of forward and backward."""
    tokens = torch.from_numpy(cloud(n, d, dtype)).requires_grad_()
    scale = BETA / (2 * H)

    def ours() -> torch.Tensor:
        found = generative.attention(tokens, tokens, h=H, lam=LAM, beta=BETA, moments="variance")
        assert found.covariance is not None
        return found.mean.square().sum() + scale * found.covariance.sum()

    def plain() -> torch.Tensor:
        mean, trace, _ = torch_forward(tokens)
        return mean.square().sum() + trace.sum()

    def both(loss: Callable[[], torch.Tensor]) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(loss(), tokens)
        return gradient

    calls = {"wflow.nets": lambda: both(ours)}
    if matrices_fit(n, dtype, 5):
        calls["torch"] = lambda: both(plain)
        one, other = (call() for call in calls.values())
        gap = float((one - other).abs().max() / other.abs().max())
        if not gap < TOLERANCE[dtype]:
            raise SystemExit(f"gradients of torch differ by {gap:.1e}, relative, from wflow.nets")
    taken = in_turn(calls, rounds, least=0.05, pause=0.05)
    rows = []
    for name, values in taken.items():
        rows.append(
            {"N": n, "d": d, "precision": dtype, "variant": name, **spread(values)}
            | {"times_wflow": float(np.median(values) / np.median(taken["wflow.nets"]))}
        )
        tell(rows[-1])
    return rows


def memories(sizes: tuple[int, ...], d: int = 2) -> list[dict[str, Any]]:
    """Growth of the resident memory during one forward call; in a process of its own."""
    wflow_forward(cloud(100, d, "float64"))
    torch_forward(torch.from_numpy(cloud(100, d, "float64")))
    if libc := ctypes.util.find_library("c"):
        ctypes.CDLL(libc).mallopt(-3, 65_536)  # give freed arrays back to the system (glibc)
    rows = []
    for n in sizes:
        x = cloud(n, d, "float64")
        row: dict[str, Any] = {"N": n, "d": d, "precision": "float64"}
        calls: dict[str, Callable[[], Any]] = {"wflow": partial(wflow_forward, x)}
        if matrices_fit(n, "float64", 3):
            calls["torch"] = partial(torch_forward, torch.from_numpy(x))
        for name, call in calls.items():
            with peak_memory() as found:
                call()
            row[f"{name}_mb"] = found["mb"]
        rows.append(row)
        print(f"memory: {row}")
    return rows


def plain_potential(
    potential: generative.Potential, x: torch.Tensor, t: torch.Tensor
) -> torch.Tensor:
    """The potential in operations of torch alone, whose second derivatives autograd can train."""

    def log_cosh(r: torch.Tensor) -> torch.Tensor:
        size = r.abs()
        return size + torch.log1p(torch.exp(-2 * size))

    s = torch.cat([x, t[:, None]], 1)
    u = log_cosh(potential.opening(s))
    for layer in potential.residual:
        u = u + log_cosh(layer(u)) / len(potential.residual)
    quadratic = (s @ potential.A.T).square().sum(1) / 2
    return u @ potential.w + quadratic + s @ potential.b + potential.c


def flow_iteration(d: int, width: int, batch: int, rounds: int, order: int) -> list[dict[str, Any]]:
    """Rows of one flow: time of an iteration, and the share of the rate of matrix products."""
    torch.manual_seed(0)
    potential = generative.Potential(d, width=width)
    flow, loss = generative.OTFlow(potential, steps=STEPS), generative.Likelihood()
    x = torch.from_numpy(cloud(batch, d, "float32"))

    def gradient_alone(x: torch.Tensor, t: float) -> tuple[torch.Tensor, Any]:
        at = potential.derivatives(x, t, laplacian=False)
        return at.gradient, at.time.square() + at.gradient.square().sum(1)

    def by_autograd(x: torch.Tensor, t: float) -> tuple[torch.Tensor, Any]:
        x, time = x.requires_grad_(), torch.full((batch,), t, requires_grad=True)
        value = plain_potential(potential, x, time).sum()
        gradient, slope = torch.autograd.grad(value, (x, time), create_graph=True)
        rest = slope.square() + gradient.square().sum(1)
        for i in range(d):
            (row,) = torch.autograd.grad(gradient[:, i].sum(), x, create_graph=True)
            rest = rest + row[:, i]
        return gradient, rest

    def steps(derivatives: Callable[[torch.Tensor, float], tuple[torch.Tensor, Any]]) -> Any:
        at, total, h = x.clone(), torch.zeros(()), -1 / STEPS
        for k in range(STEPS, 0, -1):
            last, move = None, torch.zeros_like(x)
            for node, weight in ((0.0, 1 / 6), (0.5, 1 / 3), (0.5, 1 / 3), (1.0, 1 / 6)):
                point = at if last is None else at + node * h * last
                last, rest = derivatives(point, (k - node) / STEPS)
                move, total = move + weight * last, total + weight * rest.mean()
            at = at + h * move
        return total + at.square().mean()

    def both(call: Callable[[], torch.Tensor]) -> None:
        flow.zero_grad(set_to_none=True)
        call().backward()

    calls: dict[str, Callable[[], Any]] = {
        "closed form": lambda: both(lambda: loss(flow, x).total),
        "gradient alone": lambda: both(lambda: steps(gradient_alone)),
    }
    time = torch.full((batch,), 0.3)
    torch.testing.assert_close(plain_potential(potential, x, time), potential(x, time))
    if d <= BY_AUTOGRAD:
        calls["autograd"] = lambda: both(lambda: steps(by_autograd))
    calls["product"] = matrix_product("float32", order)
    taken = in_turn(calls, rounds, least=0.05, pause=0.05)
    rate = 2.0 * order**3 / np.median(taken.pop("product"))
    counts = {name: potential.operations(laplacian=name == "closed form") for name in taken}
    stages = 4 * STEPS * batch
    rows = []
    for name, values in taken.items():
        middle = float(np.median(values))
        row = {"d": d, "width": width, "batch": batch, "variant": name, **spread(values)}
        row["times_closed_form"] = middle / float(np.median(taken["closed form"]))
        if name != "autograd":
            row["share"] = float(
                3 * counts[name] * stages / middle / rate
            )  # the backward pass: twice
        if name == "closed form":
            operations = counts["closed form"] / counts["gradient alone"]
            row["times_operations"] = (
                middle / float(np.median(taken["gradient alone"])) / operations
            )
        rows.append(row)
        print(
            f"OT-Flow d {d:4} width {width} batch {batch} {name:<15}{row['median_ms']:10.1f} ms "
            f"({row['min_ms']:.1f} to {row['max_ms']:.1f}), {row['times_closed_form']:.2f} times "
            f"the closed form, share {100 * row.get('share', 0.0):.1f} %, "
            f"{row.get('times_operations', 0.0):.2f} times its operations",
            flush=True,
        )
    return rows


def determinants(d: int, rounds: int) -> list[dict[str, Any]]:
    """Rows of one dimension: exact and estimated log determinants of a layer, with gradients."""
    x, context = torch.from_numpy(cloud(2 * CONTEXT, d, "float64")).split(CONTEXT)
    x = x.clone().requires_grad_()
    beta = 8 * H / d  # scores of different tokens differ by a few units
    kappa = beta / (2 * H)
    vectors = signs(d, PROBES, x, 0)

    def layer() -> tuple[Scores, torch.Tensor]:
        slope = proximal(x, LAM * H, "soft")[1]
        return interaction(x, context, H, LAM, beta, "exact", "soft"), slope

    def exact() -> torch.Tensor:
        scores, slope = layer()
        at = attend(scores, context, "covariance", False)
        assert at.covariance is not None
        return log_abs_det(identity(kappa * at.covariance, slope, -0.5))[0]

    def estimate() -> Estimate:
        scores, slope = layer()
        return log_det_estimate(scores, context, 1 - slope / 2, kappa / 2, vectors, False)

    def backwards(log_det: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(log_det.sum(), x)[0]

    calls = {"exact": lambda: backwards(exact()), "estimate": lambda: backwards(estimate().log_det)}
    ess = float(effective_size(layer()[0], context, False).median())
    found, right = estimate(), exact()
    taken = in_turn(calls, rounds, least=0.05, pause=0.05)
    rows = []
    for name, values in taken.items():
        row = {"d": d, "N": CONTEXT, "variant": name, "ess": ess, **spread(values)}
        row["times_exact"] = float(np.median(values)) / float(np.median(taken["exact"]))
        if name == "estimate":
            row["error"] = float((found.log_det - right).detach().square().mean().sqrt())
            row["stated"] = float(found.error.square().mean().sqrt())
        rows.append(row)
        print(
            f"determinant d {d:4} {name:<9}{row['median_ms']:10.1f} ms ({row['min_ms']:.1f} to "
            f"{row['max_ms']:.1f}), {row['times_exact']:.2f} times exact, ESS {ess:.1f}, error "
            f"{row.get('error', 0.0):.2g}, stated {row.get('stated', 0.0):.2g}",
            flush=True,
        )
    return rows


def tell(row: dict[str, Any]) -> None:
    extra = f", share {100 * row['share']:.1f} %" if "share" in row else ""
    print(
        f"N {row['N']:6} d {row['d']:4} {row['precision']} {row['variant']:<15}"
        f"{row['median_ms']:10.2f} ms ({row['min_ms']:.2f} to {row['max_ms']:.2f}), "
        f"{row['times_wflow']:.2f} times wflow{extra}",
        flush=True,
    )


def goals_of(parts: dict[str, Any], n: int, command: str) -> list[dict[str, Any]]:
    """The goals, from all parts; what was not measured is None."""
    where = {"N": n, "d": 2, "precision": "float64", "variant": "torch"}
    hits = [row["times_wflow"] for row in parts.get("forward", []) if where.items() <= row.items()]
    traces = [row.get("times_operations", 0.0) for row in parts.get("ot_flow_iteration", [])]
    memory, grown = "exponent of its memory in N", None
    if "memory" in parts:
        less, most = parts["memory"][-2:]
        memory += f", {less['N']:,} to {most['N']:,}"
        if less["wflow_mb"] and most["wflow_mb"]:
            sizes = np.log(most["N"] / less["N"])
            grown = float(np.log(most["wflow_mb"] / less["wflow_mb"]) / sizes)
    return [
        goal(
            f"attention of the proximal operator over plain torch, N = {n:,}, d = 2, double",
            command, hits[0] if hits else None, 5.0, least=True, unit="times",
        ),
        goal(memory, command, grown, 1.05, least=False),
        goal(
            "OT-Flow iteration, trace over gradient, over the ratio of their operations",
            command, max(traces, default=None), 1.0, least=False,
        ),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS / "rwpo.json")
    parser.add_argument("--quick", action="store_true", help="small sizes, two rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS,
        help="what to measure; the other parts of the file stay as they are",
    )  # fmt: skip
    options = parser.parse_args()
    numba.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    sizes: tuple[int, ...] = SIZES
    memory, rounds, order, small, flow_sizes = MEMORY, options.rounds, ORDER, TRAINED, FLOWS
    if options.quick:
        sizes, memory, rounds, order, small = (512, 1024), (4096, 16_384), 2, 400, TRAINED[:1]
        flow_sizes = ((2, 48, 256),)

    def measured(part: str) -> list[dict[str, Any]]:
        if part == "memory":
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                return pool.submit(memories, memory).result()
        if part == "determinant":
            found = [determinants(d, rounds) for d in DETERMINANTS[: 1 if options.quick else None]]
        elif part == "ot_flow_iteration":
            found = [flow_iteration(*size, rounds, order) for size in flow_sizes]
        elif part == "forward_and_backward":
            found = [trained(n, d, "float64", rounds) for n, d in small]
        else:
            cases = itertools.product(PRECISIONS, DIMENSIONS, sizes)
            found = [forward(n, d, dtype, rounds, order) for dtype, d, n in cases]
        return [row for rows in found for row in rows]

    parts: dict[str, Any] = {}
    if options.json.exists() and set(options.parts) != set(PARTS):
        before = json.loads(options.json.read_text())
        parts = {part: before[part] for part in PARTS if part in before}
    with threadpool_limits(options.threads, user_api="blas"):
        parts |= {part: measured(part) for part in PARTS if part in options.parts}
    command = f"{COMMAND} --threads {options.threads}" + " --quick" * options.quick
    goals = goals_of(parts, sizes[1], command)
    for one in goals:
        print(f"{one['goal']}: {one['found']}, goal {one['target']}: {one['met']}")
    write(
        options.json, command, options.threads,
        problem={"h": H, "beta": BETA, "lam": LAM, "kernel": "exact", "seed": 0},
        **{part: parts[part] for part in PARTS if part in parts}, goals=goals,
    )  # fmt: skip


if __name__ == "__main__":
    main()
