"""Training of continuous-time transformers: what the wrapper costs, and what checkpointing saves.

    python benchmarks/continuous_networks.py [--json benchmarks/results/continuous_networks.json]

One process, one run. For each network, a training iteration (forward, loss, backward, AdamW) of

- discrete: the blocks applied M times in a row, x <- f(x), with the loss alone: as many evaluations
  of the blocks as the continuous model makes;
- loop: x <- x + dt f(x) written by hand, without a cost: what any sum of Euler costs;
- wrapped: `ContinuousTransformer` with M Euler steps, loss and lam times the transport cost;
- checkpointed: the same, with the inside of each step computed again for the gradient.

The overhead is the time of `wrapped` over `discrete`, minus 1, and that of `loop` beside it. The
variants run in turn, in many short rounds; the overhead is the median of the ratios within a round,
printed with the smallest and largest. What the wrapper adds to the loop by hand is the difference
of the two overheads within a round, in points, and the ratio of their times, each with a percentile
interval of its median by a bootstrap over the rounds. Peak memory is that of the tensors, beyond
what stays between two iterations, as torch counts them.

The GPT of [OTT] Table 4 at its published size: an iteration of the baseline (6 x 6 x 384, blocks
applied once), of the continuous model with its cost (5 x 5 x 320, 5 steps, as the README of the
published code has it), and of one without the cost, which needs more steps: 10, those of the paper.
On a CPU with fewer windows in a batch.

On a GPU also the GPT step in bfloat16 with `torch.compile`: tokens per second, share of the card's
rate of matrix products measured in the same run, and the same step of a plain GPT loop without the
wrapper.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from report import goal, spread, write
from torch import Tensor, nn
from torch.nn import functional

from wflow._core.checks import positive, whole
from wflow.cli import script
from wflow.nets import GPT, ContinuousTransformer, ViT, train
from wflow.study.networks import memory

VARIANTS = ("discrete", "loop", "wrapped", "checkpointed")
STEPS, PAPER_STEPS, FEW_STEPS = 20, 10, 5  # ours; of the published GPT in the paper, in its code
COMMAND = "python benchmarks/continuous_networks.py"
RESAMPLES, LEVEL = 10_000, 0.95  # of the bootstrap over the rounds


class Case(NamedTuple):
    """A network, its inputs and targets."""

    name: str
    make: Callable[[], Any]
    inputs: Tensor
    targets: Tensor
    steps: int


class Repeated(nn.Module):
    """x <- f(x), M times: the discrete network with as many evaluations; or x <- x + dt f(x)."""

    def __init__(self, blocks: nn.Module, steps: int, dt: float | None = None) -> None:
        super().__init__()
        self.blocks, self.steps, self.dt = blocks, steps, dt

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        for _ in range(self.steps):
            found = self.blocks(x, **context)
            x = found if self.dt is None else torch.add(x, found, alpha=self.dt)
        return x


def moving(kind: str, blocks: nn.Module, steps: int) -> nn.Module:
    """The blocks as the body of a variant."""
    if kind == "once":
        return blocks
    if kind == "discrete":
        return Repeated(blocks, steps)
    if kind == "loop":
        return Repeated(blocks, steps, 1 / steps)
    return ContinuousTransformer(blocks, steps=steps, checkpointing=kind == "checkpointed")


def cases(device: torch.device) -> list[Case]:
    """The networks of the two experiments; the GPT of the paper's size on a GPU."""
    large = device.type == "cuda"
    depth, heads, width = (5, 5, 320) if large else (3, 4, 128)
    context, rows = (256, 64) if large else (128, 8)
    tokens = torch.randint(65, (rows, context + 1), device=device)
    digits = torch.randn(100, 1, 28, 28, device=device)
    return [
        Case(
            "ViT, width 64, batch 100",
            lambda: ViT(width=64),
            digits,
            torch.randint(10, (100,), device=device),
            STEPS,
        ),
        Case(
            f"GPT, {depth} x {heads} x {width}, {rows} x {context}",
            lambda: GPT(
                vocabulary=65, context=context, width=width, depth=depth, heads=heads, norm=False
            ),
            tokens[:, :-1],
            tokens[:, 1:],
            STEPS,
        ),
    ]


def variant(case: Case, kind: str, device: torch.device) -> Callable[[], None]:
    """One training iteration of a case."""
    torch.manual_seed(0)
    model = case.make().to(device)
    model.body = moving(kind, model.body, case.steps)
    # A learning rate of 0 keeps the weights, and so the work, the same for ever.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    with_cost = kind in ("wrapped", "checkpointed")

    def iteration() -> None:
        output, cost = model(case.inputs)
        loss = functional.cross_entropy(output.flatten(0, -2), case.targets.flatten())
        if with_cost:
            loss = loss + 0.01 * cost
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return iteration


def timed(call: Callable[[], None], least: float) -> float:
    """Mean seconds of a call over as many as take `least` seconds."""
    start, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - start < least:
        call()
        count += 1
    return (time.perf_counter() - start) / count


class Result(NamedTuple):
    """Rows of the page: each variant, overhead of `wrapped` and of `loop`, one over the other."""

    variants: list[dict[str, Any]]
    overhead: list[dict[str, Any]]
    over_loop: dict[str, Any]


def measure(case: Case, device: torch.device, rounds: int, least: float) -> Result:
    """Times, overhead and memory of the variants of a case."""
    calls = {kind: variant(case, kind, device) for kind in VARIANTS}
    taken = in_rounds(calls, rounds, least)
    peaks = {kind: memory(call, device) for kind, call in calls.items()}
    of = {"network": case.name, "steps": case.steps}
    result = Result(
        [
            of | {"variant": kind} | spread(values) | {"peak_mb": peaks[kind]}
            for kind, values in taken.items()
        ],
        overheads(of, taken),
        over_loop(of, taken),
    )
    print(f"{case.name}, {case.steps} steps")
    for kind, values in taken.items():
        print(f"  {kind:13s} {1e3 * np.median(values):9.2f} ms {peaks[kind]:8.1f} MB")
    for row in result.overhead:
        found = (f"{row[f'{key}_percent']:.2f}" for key in ("median", "min", "max"))
        print("  overhead of {}: {} % ({} to {})".format(row["variant"], *found))
    row = result.over_loop
    for unit in ("points", "ratio"):
        found = (f"{row[f'{key}_{unit}']:.3f}" for key in ("median", "lower_95", "upper_95"))
        print("  wrapped over loop: {} {unit}, interval {} to {}".format(*found, unit=unit))
    return result


def table_four(device: torch.device, rounds: int, least: float) -> list[dict[str, Any]]:
    """Time iterations of the models of [OTT] Table 4, in rounds with the baseline."""
    windows = 60 if device.type == "cuda" else 1
    tokens = torch.randint(65, (windows, 257), device=device)
    sizes = {"baseline": (6, 6, 384, 0), "continuous": (5, 5, 320, FEW_STEPS),
             "unregularised": (5, 5, 320, PAPER_STEPS)}  # fmt: skip
    kinds = {"baseline": "once", "continuous": "wrapped", "unregularised": "without cost"}
    calls = {}
    for name, (depth, heads, width, steps) in sizes.items():
        make = partial(
            GPT, vocabulary=65, context=256, width=width, depth=depth, heads=heads, dropout=0.2,
            norm=not steps,
        )  # fmt: skip
        case = Case(name, make, tokens[:, :-1], tokens[:, 1:], steps)
        calls[name] = variant(case, kinds[name], device)
    taken = in_rounds(calls, rounds, least)
    rows = []
    for name, (depth, heads, width, steps) in sizes.items():
        ratio = spread((np.array(taken[name]) / np.array(taken["baseline"])).tolist(), "ratio")
        size = {"network": f"{depth} x {heads} x {width}", "steps": steps, "windows": windows}
        rows.append({"model": name} | size | spread(taken[name]) | ratio)
        print(f"  {name:13s} {rows[-1]['median_ms']:9.1f} ms {ratio['median_ratio']:6.2f}")
    return rows


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Multiply-adds per second of a large product of matrices, the best of some."""
    n = 8192
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    best = 0.0
    for _ in range(10):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(5):
            a @ b
        torch.cuda.synchronize(device)
        best = max(best, 5 * n**3 / (time.perf_counter() - start))
    return best


def compiled_step(case: Case, kind: str, device: torch.device) -> Callable[[], None]:
    """One iteration at bfloat16 with compiled blocks, with the wrapper or in a plain loop."""
    torch.manual_seed(0)
    model = case.make().to(device)
    blocks = model.body
    blocks.compile()
    model.body = moving(kind, blocks, PAPER_STEPS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)

    def iteration() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output, cost = model(case.inputs)
            loss = functional.cross_entropy(output.flatten(0, -2), case.targets.flatten())
        (loss + 0.01 * cost).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize(device)

    return iteration


def compiled_gpt(case: Case, device: torch.device, rounds: int, least: float) -> dict[str, Any]:
    """The GPT step at bfloat16 with `torch.compile`: rows for the page."""
    calls = {kind: compiled_step(case, kind, device) for kind in ("discrete", "loop", "wrapped")}
    taken = in_rounds(calls, rounds, least)
    rate = matrix_rate(device, torch.bfloat16)
    tokens = case.inputs.numel()
    model = case.make()
    width, depth = model.embed.token.embedding_dim, len(model.body)
    # Per token and evaluation of a block: 12 width^2 products, and scores and means of values.
    products = depth * PAPER_STEPS * (12 * width**2 + case.inputs.shape[1] * width)
    of = {"network": case.name, "steps": PAPER_STEPS}
    rows = []
    for kind, values in taken.items():
        seconds = float(np.median(values))
        rate_of_tokens = tokens / seconds
        share = 3 * products * rate_of_tokens / rate
        found = {"tokens_per_second": rate_of_tokens, "share_of_matrix_rate": share}
        rows.append(of | {"variant": kind} | spread(values) | found)
        print(f"  compiled bfloat16 {kind}: {rate_of_tokens:.0f} tokens/s, {100 * share:.0f} %")
    return {
        "compiled_bfloat16": rows,
        "compiled_overhead": overheads(of, taken),
    }


def in_rounds(
    calls: dict[str, Callable[[], None]], rounds: int, least: float
) -> dict[str, list[float]]:
    """Seconds of every call in every round, after each has run for a while."""
    for call in calls.values():
        timed(call, least)
    taken: dict[str, list[float]] = {kind: [] for kind in calls}
    for _ in range(rounds):
        for kind, call in calls.items():
            taken[kind].append(timed(call, least))
    return taken


def overheads(of: dict[str, Any], taken: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Per cent that the wrapper, and Euler's sum alone, add to the discrete network."""

    def row(kind: str) -> dict[str, Any]:
        ratios = np.array(taken[kind]) / np.array(taken["discrete"]) - 1
        return of | {"variant": kind} | spread((100 * ratios).tolist(), "percent")

    return [row("wrapped"), row("loop")]


def over_loop(of: dict[str, Any], taken: dict[str, list[float]]) -> dict[str, Any]:
    """What the wrapper adds to the loop by hand: points of the discrete network, and a ratio."""
    discrete, loop, wrapped = (np.array(taken[kind]) for kind in ("discrete", "loop", "wrapped"))
    found = {"points": 100 * (wrapped - loop) / discrete, "ratio": wrapped / loop}
    row = dict(of)
    for unit, values in found.items():
        lower, upper = interval(values)
        row |= spread(values.tolist(), unit) | {
            f"lower_95_{unit}": lower,
            f"upper_95_{unit}": upper,
        }
    return row


def interval(values: np.ndarray) -> tuple[float, float]:
    """Percentile interval of the median, by a bootstrap over the rounds."""
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    ends = np.quantile(np.median(values[draws], axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(ends[0]), float(ends[1])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--least", type=float, default=0.5, help="seconds of each measurement")
    flags = parser.parse_args()
    device = train.device(flags.device)
    whole(flags.rounds, "--rounds")
    positive(flags.least, "--least")
    found = cases(device)
    results = [measure(case, device, flags.rounds, flags.least) for case in found]
    body: dict[str, Any] = {
        "device": _name(device),
        "iterations": [row for result in results for row in result.variants],
        "overhead": [row for result in results for row in result.overhead],
        "wrapped_over_loop": [result.over_loop for result in results],
        "table_4": table_four(device, flags.rounds, flags.least),
    }
    if device.type == "cuda":
        body |= compiled_gpt(found[-1], device, flags.rounds, flags.least)
    vit = results[0].over_loop
    saved = []
    for result in results:
        peak = {row["variant"]: row["peak_mb"] for row in result.variants}
        saved.append(peak["checkpointed"] / peak["wrapped"])
    body["goals"] = [
        goal(
            "overhead of the continuous wrapper over an Euler loop by hand, ViT",
            COMMAND, vit["median_points"], 3.0, least=False, unit="points",
            why=f"interval of the median {vit['lower_95_points']:.1f} to "
            f"{vit['upper_95_points']:.1f} points",
        ),
        goal(
            "peak memory with checkpointing over without, 20 steps",
            COMMAND, max(saved), 0.5, least=False, unit="%",
        ),
    ]  # fmt: skip
    if flags.json:
        write(flags.json, COMMAND, torch.get_num_threads(), **body)
    return 0


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


if __name__ == "__main__":
    script(main)
