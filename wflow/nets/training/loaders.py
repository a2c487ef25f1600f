"""Sources of the batches of a training: functions of the step, data sets, data loaders.

A function of the step and a data set are read by place, so that a training that is resumed sees
the same batches whatever happened before. A `torch.utils.data.DataLoader` is an iterator, and its
order depends on generators. Here it becomes a function of the step as far as that can be:

- Global random numbers are drawn from (seed, epoch, process) before an epoch begins, which fixes
  the order of a loader without a generator and the seeds of its workers, and from (seed, step,
  process) before each batch, which fixes what a data set draws in this process.
- The states of the generators of loader and sampler at the beginning of the epoch are stored in the
  checkpoint. To resume, they are set, the epoch begins again, and the batches that were taken are
  read and dropped.
- `set_epoch` of a sampler is called with the number of the epoch, as DistributedSampler needs it.

Not reproduced are random numbers of other libraries that a data set draws in this process, those of
persistent workers, which survive from epoch to epoch, and samplers with another state.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from wflow._core.errors import InputError
from wflow.nets.data.batches import Purpose, permutation
from wflow.nets.training.identity import named
from wflow.nets.training.parallel import Processes

EPOCH, BATCH = 2, 3  # purposes of random numbers, beside those of `train`


class Source(Protocol):
    """Batches of a training, step after step."""

    local: bool  # whether a batch is this process's share already

    def __call__(self, step: int, /) -> Any: ...

    def identity(self) -> dict[str, Any]:
        """Return settings that identify a training and its continuation, for JSON."""

    def state(self) -> dict[str, Any] | None:
        """Return what a checkpoint must hold of it, beside the number of steps."""

    def restore(self, state: Any, step: int) -> None:
        """Continue after a number of steps; InputError for a source that is read otherwise."""

    def close(self) -> None:
        """Stop what runs in the background."""


def source_of(batches: Any, *, batch: int, seed: int, processes: Processes) -> Source:
    """Return the source that `train` was given, by its kind.

    Raises
    ------
    InputError
        For what is no source of batches, and a loader that does not fit the configuration.
    """
    if isinstance(batches, DataLoader):
        return Loaded(batches, batch=batch, seed=seed, processes=processes)
    if isinstance(batches, Dataset) and not isinstance(batches, IterableDataset):
        if not hasattr(batches, "__len__"):
            raise InputError(
                f"the data set {type(batches).__name__} has no length: give a DataLoader of it, "
                "with a sampler"
            )
        return Rows(batches, batch=batch, seed=seed)
    if callable(batches):
        return Stepwise(batches)
    raise InputError(
        f"batches is {type(batches).__name__}: expected a torch.utils.data.DataLoader, a data set "
        "with a length, or a function of the step, batches(step) -> tensors, such as "
        "nets.data.ImageBatches or nets.data.CropBatches"
    )


class Stepwise:
    """Batches by a function of the step: nothing to store, and nothing to stop."""

    local = False

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __call__(self, step: int) -> Any:
        return self._batches(step)

    def identity(self) -> dict[str, Any]:
        return named(self._batches)

    def state(self) -> dict[str, Any] | None:
        return None

    def restore(self, state: Any, step: int) -> None:
        pass

    def close(self) -> None:
        pass


class Rows(Stepwise):
    """A data set in a new random order in each epoch, drawn from (seed, epoch); whole batches."""

    def __init__(self, dataset: Any, *, batch: int, seed: int) -> None:
        super().__init__(dataset)
        self._batch, self._seed = batch, seed
        if batch > len(dataset):
            raise InputError(
                f"batch is {batch}: expected at most {len(dataset)}, the length of the data set"
            )
        self._order: tuple[int, Any] | None = None  # of the last epoch used

    def __call__(self, step: int) -> Any:
        epoch, place = divmod(step, len(self._batches) // self._batch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, permutation(len(self._batches), self._seed, Purpose.ORDER, epoch)
        rows = self._order[1][place * self._batch : (place + 1) * self._batch]
        redraw(self._seed, BATCH, step)
        return default_collate([self._batches[int(row)] for row in rows])


class Loaded:
    """Batches of a DataLoader, epoch after epoch."""

    def __init__(self, loader: DataLoader, *, batch: int, seed: int, processes: Processes) -> None:
        self._loader, self._seed, self._processes = loader, seed, processes
        self.local = processes.count > 1
        _check_shares(loader, batch, processes)
        self._iterator: Iterator[Any] | None = None
        self._epoch, self._taken = 0, 0
        self._begun: list[Tensor] = self._generator_states()  # at the beginning of the epoch

    def __call__(self, step: int) -> Any:
        if self._iterator is None:
            self._begin()
        found = self._next(step)
        if found is None:
            if not self._taken:
                raise InputError("the DataLoader gave no batch in an epoch: expected at least one")
            self._epoch, self._taken = self._epoch + 1, 0
            self._begun = self._generator_states()
            self._begin()
            found = self._next(step)
            if found is None:
                raise InputError(
                    f"the DataLoader gave no batch in epoch {self._epoch}: its data set cannot be "
                    "read again; give one that can, or a function of the step"
                )
        self._taken += 1
        return found[0]

    def identity(self) -> dict[str, Any]:
        loader = self._loader
        sampler = _sampler(loader)
        return {
            "kind": "DataLoader",
            "dataset": named(loader.dataset),
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "sampler": named(sampler)["kind"],
            # The rank is another in every process, and the epoch another in every epoch.
            "sampler_settings": {
                key: value
                for key, value in named(sampler).items()
                if key not in ("kind", "data_source", "dataset", "generator", "rank", "epoch")
                and isinstance(value, bool | int | float | str)
            },
        }

    def state(self) -> dict[str, Any] | None:
        """Return the place in the epoch, and the generators of every process at its start."""
        everyone = self._processes.collect(self._begun)
        return {"epoch": self._epoch, "taken": self._taken, "generators": everyone}

    def restore(self, state: Any, step: int) -> None:
        everyone, generators = state["generators"], self._generators()
        if len(everyone) != self._processes.count:
            raise InputError(
                f"the data were read by {len(everyone)} processes, and now there are "
                f"{self._processes.count}: resume with as many, or give the data set itself"
            )
        begun = everyone[self._processes.rank]
        if len(begun) != len(generators):
            raise InputError(
                f"the DataLoader had {len(begun)} generators, and has {len(generators)}: resume "
                "with one that is made in the same way"
            )
        for generator, saved in zip(generators, begun, strict=True):
            generator.set_state(saved)
        self._epoch, self._taken, self._begun = state["epoch"], state["taken"], begun
        self._begin()
        for place in range(self._taken):
            if self._next(step - self._taken + place) is None:
                raise InputError(
                    f"the DataLoader has {place} batches in an epoch, and had {self._taken} or "
                    "more: resume with the same data"
                )

    def close(self) -> None:
        self._iterator = None  # its workers end with it

    def _begin(self) -> None:
        for part in (self._loader.dataset, _sampler(self._loader), self._loader.batch_sampler):
            if callable(begin := getattr(part, "set_epoch", None)):
                begin(self._epoch)
        redraw(self._seed, EPOCH, self._epoch, self._processes.rank)
        self._iterator = iter(self._loader)

    def _next(self, step: int) -> tuple[Any] | None:
        """Return the next batch of the epoch, in a tuple; None at its end."""
        redraw(self._seed, BATCH, step, self._processes.rank)
        assert self._iterator is not None
        try:
            return (next(self._iterator),)
        except StopIteration:
            return None

    def _generators(self) -> list[torch.Generator]:
        """Return the generators that the order of the loader depends on, each once."""
        parts = (self._loader, _sampler(self._loader), self._loader.batch_sampler)
        found = [getattr(part, "generator", None) for part in parts]
        unique = {id(one): one for one in found if isinstance(one, torch.Generator)}
        return list(unique.values())

    def _generator_states(self) -> list[Tensor]:
        return [generator.get_state() for generator in self._generators()]


def redraw(*key: int) -> None:
    """Draw torch's random numbers from here on from a key: seed, purpose, step, process."""
    torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]) >> 1)


def rows_of(values: Any, name: str, most: int, *, exact: bool) -> tuple[Tensor, ...]:
    """Return a batch as a tuple of tensors, its rows counted.

    Parameters
    ----------
    values : object
        What a source gave.
    name : str
        What messages call it.
    most : int
        Number of rows that is expected.
    exact : bool
        Whether it must be a tuple, and fewer rows are an error. Of a loader, a data set may give
        single tensors, and the last batch of an epoch may be shorter.

    Raises
    ------
    InputError
        For anything else than tensors of so many rows.
    """
    batch = (values,) if isinstance(values, Tensor) and not exact else values
    if not isinstance(batch, tuple | list):
        advice = "" if exact else "; give the DataLoader a collate_fn that returns one"
        raise InputError(
            f"{name} is {type(values).__name__}: expected a tuple of tensors of {most} rows{advice}"
        )
    shapes = [  # sparse and jagged tensors have one; it is an error of other nested tensors
        tuple(t.shape)
        if isinstance(t, Tensor) and not (t.is_nested and t.layout == torch.strided)
        else type(t).__name__
        for t in batch
    ]
    rows = shapes[0][0] if shapes and isinstance(shapes[0], tuple) and shapes[0] else 0
    same = all(isinstance(shape, tuple) and shape[:1] == (rows,) for shape in shapes)
    if not same or not rows or rows > most or (exact and rows != most):
        raise InputError(
            f"{name} holds {shapes}: expected tensors of {most} rows, which is the batch of the "
            "configuration"
        )
    return tuple(batch)


def _sampler(loader: DataLoader) -> Any:
    """Return the sampler that gives the order, which may be within the batch sampler."""
    inner = getattr(loader.batch_sampler, "sampler", None)
    return loader.sampler if inner is None else inner


def _check_shares(loader: DataLoader, batch: int, processes: Processes) -> None:
    """Check the size of the batches, and that several processes see different data."""
    count = processes.count
    if loader.batch_size is not None and loader.batch_size * count != batch:
        times = f" in each of {count} processes" if count > 1 else ""
        raise InputError(
            f"the DataLoader gives {loader.batch_size} rows{times}, and batch is {batch} in the "
            f"configuration: expected batch = {loader.batch_size * count}"
        )
    if count == 1 or isinstance(loader.dataset, IterableDataset):
        return
    shares = getattr(_sampler(loader), "num_replicas", None)
    if shares is None:
        shares = getattr(loader.batch_sampler, "num_replicas", None)
    if shares != count:
        found = type(_sampler(loader)).__name__ + ("" if shares is None else f" for {shares}")
        raise InputError(
            f"{count} processes would read the same data (the sampler is a {found}): expected a "
            f"torch.utils.data.DistributedSampler for {count}, or give the data set itself"
        )
