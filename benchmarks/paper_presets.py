"""What the preset `paper` of every study of networks asks of a GPU: memory, and operations.

    WFLOW_DATA=FOLDER python benchmarks/paper_presets.py [--page docs/results/paper_presets.md]

Each training of the preset is planned as the study plans it, and rows of its first batch go through
the network on torch's device `meta`: every shape is that of the real training, so that a mistake
shows, and nothing is computed. Operations of matrix products are counted by torch in the forward
and the backward pass; memory is that of the weights, their gradients, two moments of Adam and what
the forward pass keeps for the gradient. It is an upper bound, as some of that is shared: of the
continuous ViT `benchmarks/continuous_networks.py` measures 63 MB, where 73 MB are counted.
ModelNet40, IMDb and OpenWebText are replaced by data of their size. Times are operations over a
rate that the reader chooses: --rate, in 1e12 operations per second, that the card attains in such
networks.

Flows of [RWPO] and trainings by Pontryagin's principle choose their operations by values, or
differentiate within the backward pass: they are not counted. What a step of flows takes on one core
is on the pages of [densities](rwpo_benchmarks.md) and [digits](rwpo_digits.md).
"""

import argparse
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(folder) for folder in sorted(ROOT.glob("studies/*/"))]

from wflow import nets, study  # noqa: E402
from wflow._core.checks import positive  # noqa: E402
from wflow.cli import script  # noqa: E402
from wflow.study import networks  # noqa: E402

STUDIES = {
    "mnist_vit": "MnistVit", "cats_dogs": "CatsDogs", "sentiment": "Sentiment",
    "point_clouds": "PointClouds", "shakespeare_gpt": "ShakespeareGpt",
    "shakespeare_words": "ShakespeareWords", "web_text": "WebText",
    "nanogpt_sizes": "NanogptSizes",
}  # fmt: skip
COMMAND = "python benchmarks/paper_presets.py --page docs/results/paper_presets.md"


def model_net40(flags: Any) -> Any:
    """One random cloud in the place of all of ModelNet40: 9,843 for training, 2,468 for tests."""

    def clouds(count: int) -> tuple[Tensor, Tensor, Tensor]:
        points = torch.rand(1, flags.points, 3).expand(count, -1, -1)
        return points, torch.full((count,), flags.points), torch.arange(count) % 40

    names = tuple(f"class {k}" for k in range(40))
    found = nets.data.PointClouds(*clouds(9843), *clouds(2468), names, "one random cloud")
    return importlib.import_module("point_clouds").with_tests(flags, found)


def open_web_text(flags: Any) -> Any:
    """Random tokens of the vocabulary of GPT-2."""
    tokens = torch.randint(flags.vocabulary, (20 * flags.context,))
    return SimpleNamespace(
        train=tokens, test=tokens[: 2 * flags.context], vocabulary=flags.vocabulary
    )


def long_reviews(flags: Any) -> Any:
    """Reviews of one token, as long as the context, as many as [OTT] takes of IMDb."""
    module, tokens = importlib.import_module("sentiment"), [torch.ones(flags.context).long()]

    def part(count: int) -> tuple[tuple[str, ...], Tensor]:
        return ("",) * count, torch.zeros(count, dtype=torch.int64)

    reviews = nets.data.Reviews(*part(40_000), *part(10_000), "long reviews")
    data = module.Data(reviews, flags.vocabulary, tokens * 40_000, tokens * 10_000)
    return module.Splits(flags, {0: data})


SUBSTITUTES: dict[str, Callable[[Any], Any]] = {
    "sentiment": long_reviews, "point_clouds": model_net40, "web_text": open_web_text,
}  # fmt: skip


def first_rows(batches: Any, rows: int) -> tuple[Tensor, ...]:
    """Return the first rows of the batch of the first step."""
    if callable(batches):
        return tuple(each[:rows] for each in batches(0))
    return tuple(map(torch.stack, zip(*(batches[k] for k in range(rows)), strict=True)))


def one_row(run: networks.Run) -> tuple[int, int]:
    """Count operations of both passes of a row, and bytes kept between them.

    The first of two rows is left out, with what does not depend on their number.
    """
    model = run.model.to("meta").train()
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    found = []
    for rows in (1, 2):
        kept: dict[int, int] = {}

        def pack(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in weights:
                kept[storage._cdata] = storage.nbytes()
            return tensor

        batch = [each.to("meta") for each in first_rows(run.batches, rows)]
        with FlopCounterMode(display=False) as counter:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                total = run.objective(model, *batch).total
            total.backward()
        found.append((counter.get_total_flops(), sum(kept.values())))
    (first, held), (both, all_held) = found
    return both - first, all_held - held


@dataclass(frozen=True)
class Cost:
    """What the trainings of one model ask for."""

    model: str
    parameters: int
    rows: int  # of a part of a batch, in one process
    memory: float  # bytes
    step: float  # operations of a step
    all_steps: float  # those of all steps and seeds


def cost_of(name: str, run: networks.Run, seeds: int) -> Cost:
    """Count what a planned training asks for."""
    config = run.config
    body: Any = getattr(run.model, "body", None)
    count = sum(p.numel() for p in run.model.parameters())
    operations, kept = one_row(run)
    if getattr(body, "checkpointing", False):  # a step is kept again in the backward pass
        body.checkpointing = False
        kept += one_row(run)[1] // body.steps
    rows = config.batch // config.accumulate
    step = float(operations * config.batch)
    memory = 16 * count + rows * kept
    return Cost(name, count, rows, memory, step, step * config.steps * seeds)


def costs(name: str, flags: Any) -> list[Cost]:
    """Count what a preset of a study asks for, model by model."""
    experiment = importlib.import_module(name).EXPERIMENT
    data = SUBSTITUTES[name](flags) if name in SUBSTITUTES else experiment.load(flags)
    seeds = experiment.seeds(flags)
    found = []
    for model, what in experiment.models(flags).items():
        run = experiment.plan(flags, data, what, 0)
        found.append(cost_of(model, run, seeds if isinstance(seeds, int) else seeds[model]))
    return found


def page(rate: float) -> str:
    """Write the page of every model of every study."""
    rows = []
    for name, kind in STUDIES.items():
        habits = {"published": True} if name in ("cats_dogs", "sentiment") else {}  # their sizes
        flags = getattr(importlib.import_module(name), kind).of("paper", **habits)
        found = costs(name, flags)
        print(f"{name}: {sum(cost.all_steps for cost in found):.3g} operations", flush=True)
        for cost in found:
            rows.append({
                "study": name, "model": cost.model, "parameters": f"{cost.parameters:,}",
                "rows": f"{cost.rows}", "memory (GB)": f"{cost.memory / 1e9:.3g}",
                "a step (TFLOP)": f"{cost.step / 1e12:.3g}",
                "all steps and seeds (PFLOP)": f"{cost.all_steps / 1e15:.3g}",
                "hours": f"{cost.all_steps / rate / 3.6e15:.3g}",
            })  # fmt: skip
    text = (__doc__ or "").partition("\n\n    WFLOW")
    what = text[2].partition("\n\n")[2].strip()
    return f"""# What the published sizes ask of a GPU

    {COMMAND} --rate {rate:g}

{text[0]} torch {torch.__version__}, {date.today().isoformat()}.

{what}

Rows are those of a part of a batch in one process; several processes share them. Hours are those
of one GPU at {rate:g} TFLOP per second.

{study.markdown_table(rows)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--page", type=Path, help="the page that is written")
    parser.add_argument("--rate", type=float, default=20.0, help="1e12 operations per second")
    given = parser.parse_args()
    text = page(positive(given.rate, "--rate"))
    print(f"\n{text}")
    if given.page:
        given.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    script(main)
