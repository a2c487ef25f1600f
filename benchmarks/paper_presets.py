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
differentiate within the backward pass. One step of them is taken on the CPU, and all that torch is
asked for in it is counted: operations of products, inverses and eigenvectors, bytes that are read
and written, and calls. Costs of a flow are a line in its $n_t$, which is laid through $n_t$ = 4
and 8; Newton's method in some flows is taken to need as many iterations as there. A call of few
rows takes a GPU as long as its start does, so that hours are the sum of three times: operations
over --rate, bytes over --bandwidth, and calls times --start.
"""

import argparse
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
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
SMALL = {
    "rwpo_benchmarks": "RwpoBenchmarks", "rwpo_digits": "RwpoDigits",
    "rwpo_inverse": "RwpoInverse", "pontryagin_resnet": "PontryaginResnet",
    "pontryagin_gpt": "PontryaginGpt",
}  # fmt: skip
BY_DATA = ("rwpo_benchmarks", "pontryagin_resnet")  # names begin with density or data set
HABITS: dict[str, dict[str, Any]] = {
    "cats_dogs": {"published": True}, "sentiment": {"published": True},  # their sizes
    # The other models cost as much as one of these.
    "rwpo_inverse": {"models": ("ot-flow", "itself", "ot-flow-kl", "printed-exact-kl")},
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


def densities(flags: Any) -> Any:
    """No trials: the variant that they would choose is the first."""
    return importlib.import_module("rwpo_benchmarks").Trials(
        networks.Results({}, {}), {flags.variants[0]: 0.0}
    )


def latents(flags: Any) -> Any:
    """Normal vectors in place of latent ones."""
    drawn = {d: torch.randn(2000, d) for d in flags.dims}
    return SimpleNamespace(latents={
        d: SimpleNamespace(train=z, test=z, beta=0.02) for d, z in drawn.items()
    })  # fmt: skip


def inverse_problems(flags: Any) -> Any:
    """Few pairs, which are drawn from with repetitions."""
    few = replace(flags, pairs=1100, ranked=128)
    return importlib.import_module("rwpo_inverse").load(few)


SUBSTITUTES: dict[str, Callable[[Any], Any]] = {
    "sentiment": long_reviews, "point_clouds": model_net40, "web_text": open_web_text,
    "rwpo_benchmarks": densities, "rwpo_digits": latents, "rwpo_inverse": inverse_problems,
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
    steps: int  # of all seeds
    moved: float = 0.0  # bytes that are read and written in a step
    calls: float = 0.0  # of a step

    @property
    def all_steps(self) -> float:
        """Operations of all steps and seeds."""
        return self.step * self.steps

    def hours(self, rate: float, bandwidth: float, start: float) -> float:
        """Time of all steps: rate in 1e12 operations, bandwidth in 1e12 bytes per second."""
        seconds = self.step / rate / 1e12 + self.moved / bandwidth / 1e12 + self.calls * start
        return self.steps * seconds / 3600


def parameters(run: networks.Run) -> int:
    return sum(p.numel() for p in run.model.parameters())


def cost_of(name: str, run: networks.Run, seeds: int) -> Cost:
    """Count what a planned training asks for."""
    config = run.config
    body: Any = getattr(run.model, "body", None)
    operations, kept = one_row(run)
    if getattr(body, "checkpointing", False):  # a step is kept again in the backward pass
        body.checkpointing = False
        kept += one_row(run)[1] // body.steps
    rows = config.batch // config.accumulate
    memory = 16 * parameters(run) + rows * kept
    step = float(operations * config.batch)
    return Cost(name, parameters(run), rows, memory, step, config.steps * seeds)


# Flows, and trainings by Pontryagin's principle: small operations, and many
# ----------------------------------------------------------------------------


def tensors(*values: Any) -> list[Tensor]:
    """Return the tensors of arguments or results of an operation."""
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors(*value)
    return found


def operations(func: Any, given: list[Tensor], results: list[Tensor]) -> int:
    """Count those of one call: 2 n k m of a product (n, k) (k, m), else one for each result."""
    aten, kind = torch.ops.aten, func.overloadpacket
    count = sum(result.numel() for result in results)
    if kind in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm):
        return 2 * count * given[-1].shape[-2]
    if kind is aten.linalg_inv_ex:
        return 2 * results[0].numel() * results[0].shape[-1]
    if kind is aten._linalg_eigh:
        return 9 * given[0].numel() * given[0].shape[-1]  # reduction and QR steps
    if "scaled_dot_product" in func.__name__:
        return (10 if "backward" in func.__name__ else 4) * given[0].numel() * given[1].shape[-2]
    return count


class Counter(TorchDispatchMode):
    """Counts calls that compute something, their operations, and bytes they read and write.

    `FlopCounterMode` stops where a backward pass differentiates.
    """

    calls = moved = operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        read, written = tensors(*args, *(kwargs or {}).values()), tensors(out)
        places = {tensor.untyped_storage().data_ptr() for tensor in read}
        in_place = func.__name__.partition(".")[0].endswith("_")
        if in_place or any(t.untyped_storage().data_ptr() not in places for t in written):
            self.calls += 1  # others return a view
            self.moved += sum(t.numel() * t.element_size() for t in read + written)
            self.operations += operations(func, read, written)
        return out


DEPTHS = (4, 8)  # steps of a flow


def one_step(run: networks.Run) -> NDArray[np.float64]:
    """Count a step: operations, bytes that are moved, calls, and the peak of memory in bytes."""
    rows = run.config.batch
    batch = first_rows(run.batches, rows)
    config = replace(run.config, steps=1, device="cpu")

    def step() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # folds of flows before their training
            nets.train.train(run.model, run.objective, lambda step: batch, config)

    peak = 1e6 * networks.memory(step, torch.device("cpu"))
    with Counter() as found:
        step()
    return np.array([found.operations, found.moved, found.calls, peak])


def deep(plan: Callable[[int], networks.Run], steps: int) -> NDArray[np.float64]:
    """Count a step of a flow: a line through two numbers of its own steps."""
    few, more = (one_step(plan(depth)) for depth in DEPTHS)
    return few + (more - few) * (steps - DEPTHS[0]) / (DEPTHS[1] - DEPTHS[0])


def cost_of_small(
    name: str, run: networks.Run, seeds: int, plan: Callable[[int], networks.Run]
) -> Cost:
    """Count what a training of many small operations asks for."""
    rows, model = run.config.batch, cast(Any, run.model)
    found = deep(plan, model.steps) if hasattr(model, "potential") else one_step(run)
    step, moved, calls, peak = map(float, found)
    memory = 16 * parameters(run) + peak
    return Cost(name, parameters(run), rows, memory, step, run.config.steps * seeds, moved, calls)


# The page
# --------


def paper(name: str) -> Any:
    """Return the flags of the published size."""
    kind = (STUDIES | SMALL)[name]
    return getattr(importlib.import_module(name), kind).of("paper", **HABITS.get(name, {}))


def costs(name: str, flags: Any) -> Iterator[Cost]:
    """Count what a preset of a study asks for, model by model: once for all its data sets."""
    experiment = importlib.import_module(name).EXPERIMENT
    data = SUBSTITUTES[name](flags) if name in SUBSTITUTES else experiment.load(flags)
    seeds, models = experiment.seeds(flags), experiment.models(flags)
    alike: dict[str, list[str]] = {}  # names that differ in their data set
    for model in models:
        alike.setdefault(model.partition(" ")[2] if name in BY_DATA else model, []).append(model)
    for title, (first, *_) in alike.items():

        def plan(steps: int, model: Any = models[first]) -> networks.Run:
            return experiment.plan(replace(flags, steps=steps), data, model, 0)

        run = experiment.plan(flags, data, models[first], 0)
        all_seeds = (seeds if isinstance(seeds, int) else seeds[first]) * len(alike[title])
        if name in SMALL:
            yield cost_of_small(title, run, all_seeds, plan)
        else:
            yield cost_of(title, run, all_seeds)


def columns(name: str, cost: Cost) -> dict[str, str]:
    """Return what both tables show of a model."""
    return {
        "study": name, "model": cost.model, "parameters": f"{cost.parameters:,}",
        "rows": f"{cost.rows}", "memory (GB)": f"{cost.memory / 1e9:.3g}",
        "a step (TFLOP)": f"{cost.step / 1e12:.3g}",
    }  # fmt: skip


def page(rate: float, bandwidth: float, start: float) -> str:
    """Write the page of every model of every study."""
    rows, rows_of_small = [], []
    for name in STUDIES | SMALL:
        for cost in costs(name, paper(name)):
            print(f"{name} {cost.model}", flush=True)
            hours = {"hours": f"{cost.hours(rate, bandwidth, start):.3g}"}
            if name in STUDIES:
                work = {"all steps and seeds (PFLOP)": f"{cost.all_steps / 1e15:.3g}"}
                rows.append(columns(name, cost) | work | hours)
                continue
            rows_of_small.append(columns(name, cost) | {
                "bytes of a step (GB)": f"{cost.moved / 1e9:.3g}",
                "calls of a step": f"{cost.calls:,.0f}", "steps and seeds": f"{cost.steps:,}",
            } | hours)  # fmt: skip
    text = (__doc__ or "").partition("\n\n    WFLOW")
    networks_text, _, small_text = text[2].partition("\n\n")[2].strip().partition("\n\n")
    settings = f"--rate {rate:g} --bandwidth {bandwidth:g} --start {1e6 * start:g}"
    return f"""# What the published sizes ask of a GPU

    {COMMAND} {settings}

{text[0]} torch {torch.__version__}, {date.today().isoformat()}.

{networks_text}

Rows are those of a part of a batch in one process; several processes share them. Hours are those
of one GPU at {rate:g} TFLOP per second.

{study.markdown_table(rows)}

## Many small operations

{small_text}

Here that is {rate:g} TFLOP and {bandwidth:g} TB per second, and {1e6 * start:g} microseconds to
start a call; none of it has been tried on a GPU. Trainings on several densities or data sets have
one row, and the trials before the densities none; of the models of `rwpo_inverse` four stand for
all. Steps of the method of successive approximations (MSA) differ in length: the third is counted.

{study.markdown_table(rows_of_small)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--page", type=Path, help="the page that is written")
    for name, value, unit in (
        ("--rate", 20.0, "1e12 operations per second"),
        ("--bandwidth", 2.0, "1e12 bytes per second"),
        ("--start", 5.0, "microseconds to start a call"),
    ):
        parser.add_argument(name, type=float, default=value, help=unit)
    given = parser.parse_args()
    rate, bandwidth, start = (
        positive(getattr(given, name), f"--{name}") for name in ("rate", "bandwidth", "start")
    )
    text = page(rate, bandwidth, start / 1e6)
    print(f"\n{text}")
    if given.page:
        given.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    script(main)
