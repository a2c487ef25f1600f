"""Training by several processes over torch.distributed: of one network, or of many.

`torchrun` starts the processes and sets RANK, LOCAL_RANK and WORLD_SIZE for each. In a
`process_group` every process holds the whole network; gradients are averaged by torch's
DistributedDataParallel, over NCCL on GPUs and Gloo on CPUs. By `distribute` each process trains
other networks, alone, and they exchange results only. Without torchrun there is one process, and
nothing is exchanged.
"""

import atexit
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import count as counted
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from wflow._core.errors import InputError, Interrupted, WflowError

Job = TypeVar("Job")
Result = TypeVar("Result")

_ALONE = ContextVar("alone", default=False)  # whether the block of an `alone` runs
_ROUNDS = counted()  # calls of `distribute`
_PIECE = 2**22  # bytes of a value in the store, which takes twice as many
_PAUSE = 0.1  # seconds between two looks into the store
_PATIENCE = timedelta(hours=2)
_GLOO_SECONDS = 0.2  # until its threads have certainly run once more


@dataclass(frozen=True)
class Processes:
    """The processes that train one network, from the view of one of them.

    Attributes
    ----------
    device : torch.device
        Where this process computes.
    rank : int, default 0
        Its number; number 0 writes files and shows progress.
    count : int, default 1
        Number of processes.
    others : bool, default False
        Whether other processes train other networks beside it.
    """

    device: torch.device
    rank: int = 0
    count: int = 1
    others: bool = False

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the network with gradients averaged over processes, which start from rank 0's."""
        if self.count == 1:
            return model
        on_gpu = self.device.type == "cuda"
        return DistributedDataParallel(model, device_ids=[self.device] if on_gpu else None)

    def no_sync(self, module: nn.Module, more: bool) -> AbstractContextManager:
        """Accumulate gradients in the process while more parts of the step follow."""
        if more and isinstance(module, DistributedDataParallel):
            return module.no_sync()
        return nullcontext()

    def check_batch(self, batch: int, accumulate: int) -> None:
        """Raise InputError unless the rows of a batch divide equally, so that means are means."""
        if batch % (self.count * accumulate):
            raise InputError(
                f"batch is {batch}: expected a multiple of {self.count * accumulate}, that is "
                f"{self.count} process{'es' if self.count > 1 else ''} times accumulate = "
                f"{accumulate}; change one of them"
            )

    def parts(
        self, batch: tuple[Tensor, ...], accumulate: int, *, local: bool = False
    ) -> list[tuple[Tensor, ...]]:
        """Return this process's rows of a batch, on its device, in `accumulate` parts.

        The parts are equal where the rows divide equally. With `local` the batch is that of this
        process alone.
        """
        rows = len(batch[0]) if local else len(batch[0]) // self.count
        first = 0 if local else self.rank * rows
        mine = [self._moved(t[first : first + rows]) for t in batch]
        return list(zip(*(t.chunk(accumulate) for t in mine), strict=True))

    def collect(self, value: Result) -> list[Result]:
        """Return the values of all processes, in their order; every process calls it."""
        if self.count == 1:
            return [value]
        everyone: list[Any] = [None] * self.count
        dist.all_gather_object(everyone, value)
        return everyone

    def gather(self, values: Tensor, signum: int) -> tuple[NDArray[np.float64], int]:
        """Return means of values over the processes, and the signal that any caught (or 0).

        Parameters
        ----------
        values : Tensor, shape (steps, quantities)
            On the device.
        signum : int
            Number of the signal this process caught, 0 for none.

        Returns
        -------
        tuple of objects
            Means (steps, quantities), signal; the same in every process.
        """
        if self.count == 1:
            return values.cpu().numpy(), signum
        # One exchange for both: the signal is appended to the values.
        mine = torch.cat([values.flatten(), values.new_tensor([float(signum)])])
        everyone = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(everyone, mine)
        table = torch.stack(everyone).cpu().numpy()  # (processes, values and signal)
        return table[:, :-1].mean(axis=0).reshape(values.shape), int(table[:, -1].max())

    def any_signal(self, caught: list[int]) -> int:
        """Return the signal that any of the processes caught, or 0."""
        nothing = torch.zeros(0, dtype=torch.float64, device=self.device)
        return self.gather(nothing, max(caught, default=0))[1]

    def on_rank_zero(self, task: Callable[[], Result]) -> Result:
        """Run a task in process 0 only; all processes get its result, or raise its error.

        Without this, an error in process 0 would leave the others waiting for it.
        """
        if self.count == 1:
            return task()
        outcome: list = [None, None]  # result, error
        if self.rank == 0:
            try:
                outcome[0] = task()
            except (WflowError, Interrupted) as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def _moved(self, rows: Tensor) -> Tensor:
        if self.device.type == "cuda" and rows.device.type == "cpu":
            # The copy then overlaps with computation; rows must be contiguous for that.
            rows = rows.contiguous().pin_memory()
        return rows.to(self.device, non_blocking=True)


def device(name: str) -> torch.device:
    """Return the device of a name.

    Parameters
    ----------
    name : str
        `auto` (a GPU where there is one, else the CPU), `cpu`, `cuda`, `cuda:1`, ...; under
        torchrun `auto` and `cuda` are the GPU of the process's LOCAL_RANK.

    Returns
    -------
    torch.device
        The device.

    Raises
    ------
    InputError
        For CUDA where there is none, a GPU that is not there, or another name.

    Examples
    --------
    >>> from wflow.nets import train
    >>> train.device("cpu")
    device(type='cpu')
    """
    kind, _, number = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind not in ("auto", "cpu", "cuda") or (number and (kind != "cuda" or not number.isdigit())):
        raise InputError(f"device is {name!r}: expected auto, cpu, cuda, or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cpu" or (kind == "auto" and not count):
        return torch.device("cpu")
    if not count:
        raise InputError(
            f"device is {name!r}, and torch finds no CUDA device here: choose device cpu or auto, "
            "or install a torch that is built for the GPU"
        )
    place = int(number or os.environ.get("LOCAL_RANK", "0"))
    if place >= count:
        raise InputError(
            f"there is no GPU number {place} here, torch finds {count}: choose another device, or "
            "start at most one process for each GPU"
        )
    return torch.device("cuda", place)


def process_group(name: str) -> Processes:
    """The processes that torchrun started, or this one alone, as it is in a job of `distribute`.

    Parameters
    ----------
    name : str
        Device, as for `device`.

    Raises
    ------
    InputError
        For a device that is not there, or WORLD_SIZE without what else torchrun sets.
    """
    count = _environment("WORLD_SIZE", 1)
    if count == 1 and not _joined():
        return Processes(device(name))
    if name.startswith("cuda:") and not _ALONE.get():
        raise InputError(f"device is {name}: several processes take one GPU each, give cuda")
    own = device(name)
    if own.type == "cuda":
        torch.cuda.set_device(own)  # for NCCL and pinned memory
    if _ALONE.get():
        return Processes(own, others=True)
    if not _joined():
        _check_variables(count)
        # Once for all trainings of this program: torchrun's store allows one rendezvous.
        # The others wait while process 0 evaluates and saves.
        dist.init_process_group("nccl" if own.type == "cuda" else "gloo", timeout=_PATIENCE)
        atexit.register(_leave)
    return Processes(own, dist.get_rank(), dist.get_world_size())


@contextmanager
def alone() -> Iterator[None]:
    """Let this process work by itself in the block: others wait for it, or train other networks."""
    outside = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(outside)


def distribute(jobs: Sequence[Job], task: Callable[[Job], Result]) -> list[Result]:
    """The results of a task for all jobs, each done by one of the processes of torchrun.

    The first process that is free takes the next job, and trains alone in it. Every process calls
    this with the same jobs and gets all results, pickled. No job begins before process 0 has come.
    Waiting has no limit of time and ends by a signal: torchrun sends one where a process fails.

    Parameters
    ----------
    jobs : sequence of objects
        What is to be done.
    task : callable
        Function of a job, whose result can be pickled.

    Raises
    ------
    InputError
        For WORLD_SIZE without what else torchrun sets.
    """
    count = _environment("WORLD_SIZE", 1)
    if count == 1 or _ALONE.get():
        return [task(job) for job in jobs]
    _check_variables(count)
    store = dist.PrefixStore(f"wflow/{next(_ROUNDS)}", _store())
    if os.environ["RANK"] == "0":
        store.set("open", "")
    _wait(store, "open")
    while (place := store.add("taken", 1) - 1) < len(jobs):
        with alone():
            data = pickle.dumps(task(jobs[place]))
        pieces = range(0, len(data), _PIECE)
        for first in pieces:
            piece = data[first : first + _PIECE]
            store.set(f"{place}/{first}", piece)  # type: ignore[arg-type]
        store.set(f"{place}", str(len(data)))
    results = []
    for place in range(len(jobs)):
        _wait(store, f"{place}")
        pieces = range(0, int(store.get(f"{place}")), _PIECE)
        results.append(pickle.loads(b"".join(store.get(f"{place}/{first}") for first in pieces)))
    return results


def _wait(store: dist.Store, key: str) -> None:
    """Wait for a key by looking: Python hears no signal while the store itself waits."""
    while not store.check([key]):
        time.sleep(_PAUSE)


@cache
def _store() -> dist.Store:
    """The store that torchrun holds for its processes; that of process 0 for other launchers."""
    held = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=os.environ["RANK"] == "0" and not held,
        wait_for_workers=False,
    )
    return dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)


def _check_variables(count: int) -> None:
    """Raise InputError unless the environment has what torchrun sets beside WORLD_SIZE."""
    missing = [k for k in ("RANK", "MASTER_ADDR", "MASTER_PORT") if k not in os.environ]
    if missing:
        raise InputError(
            f"WORLD_SIZE is {count} and {', '.join(missing)} not set: start several processes "
            "by torchrun (torchrun --nproc-per-node 2 ...), or unset WORLD_SIZE"
        )


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def _leave() -> None:
    """Leave the process group while the interpreter is whole.

    A thread of Gloo drops the tensors of the last exchange after Python has gone past it, and needs
    the interpreter for that; one that finds it closed aborts the process. DistributedDataParallel
    keeps the group alive, so that destroying it does not join these threads.
    """
    if not _joined():
        return
    gloo = dist.get_backend() == "gloo"
    dist.destroy_process_group()
    if gloo:
        time.sleep(_GLOO_SECONDS)


def _environment(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"{name} is {text!r} in the environment: expected a whole number >= 1")
    return int(text)
