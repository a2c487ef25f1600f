"""Gradients by costates: time and memory beside back-propagation and checkpointing.

    python benchmarks/control.py [--json benchmarks/results/control.json]

One process, one run. For a residual network of 64 dense layers and for the bodies of nanoGPT in
three sizes, forward and backward pass of

- back-propagation: torch's graph of all layers;
- checkpoint: `torch.utils.checkpoint` around every layer;
- costates: the sweep of `wflow.nets.control`, which keeps the states;
- costates, sqrt: the same with every sqrt(L)-th state, the others computed again.

Times are those of the process on the CPU (on a GPU those of the clock), so that others on the
machine count less. The variants run in turn, in many rounds; ratios are medians of those within a
round, printed with the smallest and largest. Memory of activations is the peak of the tensors
beyond what stays between two passes, that is without the parameters, as torch counts them;
gradients count where they are there at that time.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from goals import COSTATES
from report import goal, spread, write
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from wflow._core.checks import positive, whole
from wflow.cli import script
from wflow.nets import GPT, control, train
from wflow.nets.blocks import Stack
from wflow.nets.control.sweep import swept
from wflow.study.networks import memory

COMMAND = "python benchmarks/control.py"
VARIANTS = ("back-propagation", "checkpoint", "costates", "costates, sqrt")
# width, context, batch, layers, heads of nanoGPT in the sizes of the report
SIZES = {"S": (16, 64, 16, 1, 2), "M": (32, 128, 32, 2, 4), "L": (64, 256, 64, 4, 8)}


class Case(NamedTuple):
    """Layers, and states to begin with."""

    name: str
    make: Callable[[], nn.Module]
    x: Tensor


def cases(device: torch.device, dropout: float) -> list[Case]:
    """The residual network and the bodies of the GPTs."""

    def resnet() -> nn.Module:
        layers = [nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(64)]
        return control.Dynamics(layers, 64.0).to(device)

    def gpt(width: int, context: int, depth: int, heads: int, dropout: float) -> nn.Module:
        sizes = {"width": width, "depth": depth, "heads": heads, "dropout": dropout}
        return GPT(vocabulary=65, context=context, **sizes).body.to(device)  # type: ignore[arg-type]

    found = [Case("ResNet, 64 layers of width 256, batch 1024", resnet, torch.randn(1024, 256))]
    for name, (width, context, batch, depth, heads) in SIZES.items():
        words = f"GPT {name}, {depth} x {heads} x {width}, {batch} x {context}"
        words += f", dropout {dropout:g}" if dropout else ""
        make = partial(gpt, width, context, depth, heads, dropout)
        found.append(Case(words, make, torch.randn(batch, context, width)))
    return [case._replace(x=case.x.to(device)) for case in found]


class Checkpointed(nn.Module):
    """A layer whose internals are computed again for the gradient."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layer, x, use_reentrant=False)  # type: ignore[no-any-return]


def variant(case: Case, kind: str) -> Callable[[], None]:
    """One forward and backward pass."""
    torch.manual_seed(0)
    body = case.make()
    layers = body.blocks if isinstance(body, Stack) else body.layers
    assert isinstance(layers, nn.ModuleList)
    if kind == "checkpoint":
        for place, layer in enumerate(layers):
            layers[place] = Checkpointed(layer)
    keep: Any = "sqrt" if "sqrt" in kind else 1

    def call() -> None:
        if kind.startswith("costates"):
            with swept(body, keep):
                found = body(case.x)
        else:
            found = body(case.x)
        state = found[0] if isinstance(found, tuple) else found
        state.square().mean().backward()
        for p in body.parameters():
            p.grad = None
        if case.x.device.type == "cuda":
            torch.cuda.synchronize(case.x.device)

    return call


def in_rounds(
    calls: dict[str, Callable[[], None]], rounds: int, least: float, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of every call in every round, over as many as take `least` seconds."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    taken: dict[str, list[float]] = {kind: [] for kind in calls}
    for number in range(rounds + 1):
        for kind, call in calls.items():
            start, count = clock(), 0
            while count == 0 or clock() - start < least:
                call()
                count += 1
            if number:  # the first finds caches cold
                taken[kind].append((clock() - start) / count)
    return taken


class Found(NamedTuple):
    """Rows of the page, and the ratios of a case."""

    rows: list[dict[str, Any]]
    ratios: list[dict[str, Any]]
    memory: dict[str, float]


def measure(case: Case, device: torch.device, rounds: int, least: float) -> Found:
    """Times and memory of the variants of a case."""
    calls = {kind: variant(case, kind) for kind in VARIANTS}
    peaks = {kind: memory(call, device) for kind, call in calls.items()}
    taken = in_rounds(calls, rounds, least, device)
    rows, ratios = [], []
    print(case.name)
    for kind, values in taken.items():
        share = peaks[kind] / peaks["back-propagation"]
        rows.append(
            {"network": case.name, "variant": kind}
            | spread(values)
            | {"peak_mb": peaks[kind], "of_back_propagation_percent": 100 * share}
        )
        print(f"  {kind:17s} {1e3 * np.median(values):9.2f} ms {peaks[kind]:8.1f} MB {share:7.1%}")
    for kind, base in (
        ("costates", "back-propagation"),
        ("costates", "checkpoint"),
        ("costates, sqrt", "back-propagation"),
    ):
        found = np.array(taken[kind]) / np.array(taken[base])
        of = {"network": case.name, "variant": kind, "over": base}
        ratios.append(of | spread(found.tolist(), "times"))
        low, middle, high = found.min(), np.median(found), found.max()
        print(f"  {kind} over {base}: {middle:.2f} ({low:.2f} to {high:.2f})")
    return Found(rows, ratios, {kind: peak / peaks[VARIANTS[0]] for kind, peak in peaks.items()})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dropout", type=float, default=0.0, help="of the GPTs; 0.2 in the report")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--least", type=float, default=0.1, help="seconds of each measurement")
    flags = parser.parse_args()
    device = train.device(flags.device)
    whole(flags.rounds, "--rounds")
    positive(flags.least, "--least")
    results = [
        measure(case, device, flags.rounds, flags.least) for case in cases(device, flags.dropout)
    ]
    ratios = [row for result in results for row in result.ratios]

    def slowest(base: str) -> dict[str, Any]:
        rows = [row for row in ratios if (row["variant"], row["over"]) == ("costates", base)]
        return max(rows, key=lambda row: float(row["median_times"]))

    resnet, large = results[0].memory, results[-1].memory
    # Names as in benchmarks/goals.py.
    found = (
        ("time of costates over back-propagation, all networks", slowest("back-propagation"), 1.5),
        (COSTATES, slowest("checkpoint"), 1.0),
        ("memory of costates over back-propagation, ResNet", resnet["costates"], 0.55),
        ("memory of costates over back-propagation, GPT L", large["costates"], 0.35),
        ("the same with every sqrt(L)-th state, ResNet", resnet["costates, sqrt"], 0.25),
    )
    body: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "passes": [row for result in results for row in result.rows],
        "ratios": ratios,
        "goals": [
            goal(what, COMMAND, value, target, least=False, unit="%" if target < 1 else "times")
            for what, value, target in found
        ],
    }
    if flags.json:
        write(flags.json, COMMAND, torch.get_num_threads(), **body)
    return 0


if __name__ == "__main__":
    script(main)
