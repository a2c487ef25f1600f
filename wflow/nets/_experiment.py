"""What the studies of networks share: flags, presets, training of every run, tables over seeds."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wflow import study
from wflow._checks import whole
from wflow.errors import InputError
from wflow.nets import train

if TYPE_CHECKING:
    from xarray import Dataset

FloatArray = NDArray[np.float64]
PresetName = Literal["smoke", "cpu", "paper"]
AnySetup = TypeVar("AnySetup")


@dataclass(frozen=True, kw_only=True)
class NetFlags(study.OutputFlags):
    """Flags of every study of networks."""

    preset: PresetName = "cpu"
    """smoke: seconds, data that needs no download; cpu: minutes on two cores; paper: the published
    set-up, for a GPU."""
    only: tuple[str, ...] = ()
    """Models to train, by name; the others are left to another call, with --resume."""
    seeds: int | None = None
    """Number of training runs of each model, with seeds 0, 1, ...; default: of the preset."""
    device: str = "auto"
    """Device: auto (a GPU where there is one), cpu, cuda, cuda:1, ..."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the forward pass; bfloat16 by autocast."""
    compile: study.Switch = False
    """Compile the networks by torch.compile."""
    data: str | None = None
    """Folder with the data; default: $WFLOW_DATA, ../shared/data, then a download."""

    def check(self) -> None:
        super().check()
        if self.seeds is not None:
            whole(self.seeds, "--seeds")
        if len(set(self.only)) < len(self.only):
            raise InputError(f"--only is {' '.join(self.only)}: name every model once")
        train.device(self.device)  # refused before anything is written


def with_flags(setup: AnySetup, flags: NetFlags) -> AnySetup:
    """The set-up of a preset, with what the flags say otherwise (flags that are not None)."""
    given = {
        field.name: value
        for field in fields(setup)  # type: ignore[arg-type]
        if (value := getattr(flags, field.name, None)) is not None
    }
    return replace(setup, **given)  # type: ignore[type-var]


class Run(NamedTuple):
    """One training run: everything that `train.train` is given."""

    model: nn.Module
    objective: train.Objective
    batches: train.Batches
    config: train.TrainConfig
    evaluate: Callable[[nn.Module], dict[str, float]]


class Trained(NamedTuple):
    """A trained network, its history, and how long the training took."""

    model: nn.Module
    history: "Dataset"
    device: torch.device


def chosen(names: Iterable[str], flags: NetFlags) -> list[str]:
    """The models that `--only` names, or all.

    Raises
    ------
    InputError
        For a name that is none of them.
    """
    names = list(names)
    unknown = [name for name in flags.only if name not in names]
    if unknown:
        raise InputError(f"--only {' '.join(unknown)}: expected some of {', '.join(names)}")
    return [name for name in names if not flags.only or name in flags.only]


def trained(session: study.Session, flags: NetFlags, name: str, run: Run) -> Trained:
    """Train one run in its own folder, or take up what `--resume` finds there."""
    out = flags.out / name
    history = train.train(
        run.model,
        run.objective,
        run.batches,
        run.config,
        out=out,
        evaluate=run.evaluate,
        resume=flags.resume and (out / train.CHECKPOINT).exists(),
        overwrite=flags.overwrite,
        label=name,
    )
    session.files[name] = out / train.METRICS
    device = train.device(run.config.device)
    return Trained(run.model.to(device).eval(), history, device)


def described(name: str) -> str:
    """The device as tables name it."""
    device = train.device(name)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads of {study.machine()}"


@torch.no_grad()
def outputs(
    model: nn.Module, batches: Iterable[tuple[Tensor, ...]], device: torch.device
) -> Iterable[tuple[Tensor, Tensor]]:
    """(output, targets) of every batch, in evaluation mode."""
    training = model.training
    model.eval()
    try:
        for inputs, targets in batches:
            yield model(inputs.to(device)).output, targets.to(device)
    finally:
        model.train(training)


def mean_and_spread(values: Sequence[float] | FloatArray, style: Callable[[float], str]) -> str:
    """Mean and standard deviation over seeds; the value alone for one seed."""
    found = np.asarray(values, dtype=float)
    if found.size == 1:
        return style(float(found[0]))
    return f"{style(float(found.mean()))} ± {style(float(found.std(ddof=1)))}"


def percent(value: float) -> str:
    """A fraction in per cent, without the sign."""
    return f"{100 * value:.2f}"


def versus(published: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """A column of published values; a dash where there is none."""
    return [published.get(name, "–") for name in names]


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self._start


def stacked(records: Mapping[str, Sequence[Mapping[str, Any]]], key: str) -> FloatArray:
    """One quantity of all records: (model, seed, ...)."""
    return np.array([[record[key] for record in runs] for runs in records.values()], dtype=float)
