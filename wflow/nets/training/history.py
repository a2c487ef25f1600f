"""History of a training: metrics of its steps and evaluations, stored in checkpoint and files."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray

from wflow._core.errors import InputError
from wflow._core.extras import install
from wflow._version import __version__
from wflow.analysis.fits import json_number

if TYPE_CHECKING:
    from xarray import Dataset

METRICS, METRICS_JSON = "metrics.h5", "metrics.json"
_STEP = {
    "loss": "objective, mean over the batch",
    "gradient_norm": "norm of the gradient before clipping",
    "rate": "learning rate",
    "seconds": "time of a step, without evaluation and saving; mean since the last reading",
}
_UNITS = {"seconds": "s"}
_TAKEN = {*_STEP, "step", "evaluation"}

Log = Callable[[int, Mapping[str, float]], None]


class History:
    """The numbers of every step and of every evaluation, and where they were computed.

    Attributes
    ----------
    columns : object
        Names of the numbers of a step.
    rows : object
        One tuple per step, in the order of the columns.
    evaluations : object
        (steps done, numbers by name), one per evaluation.
    peak_memory : object
        Peak of the bytes that torch allocated on a GPU, 0 on a CPU.
    places : object
        One line for each device and number of processes that the run was on.
    """

    def __init__(self) -> None:
        self.columns: tuple[str, ...] = ()
        self.rows: list[tuple[float, ...]] = []
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        self.peak_memory = 0
        self.places: list[str] = []

    def begin(self, parts: tuple[str, ...]) -> None:
        """Set the names of the parts of the loss, before the first step or after a resume.

        Raises
        ------
        InputError
            For names that are taken, or other ones than the run had.
        """
        measured = tuple(self.evaluations[0][1]) if self.evaluations else ()
        _check_free(parts, "part of the loss", also=measured)
        columns = ("loss", *parts, "gradient_norm", "rate", "seconds")
        if self.columns and columns != self.columns:
            raise InputError(
                f"the loss has the parts {', '.join(parts) or '(none)'}; expected the same at "
                f"every step: {', '.join(self.columns[1:-3]) or '(none)'}"
            )
        self.columns = columns

    def evaluated(self, step: int, values: Mapping[str, float]) -> dict[str, float]:
        """Add an evaluation; the same names each time.

        Raises
        ------
        InputError
            For names that are taken or change, or values that are no numbers.
        """
        try:
            numbers = {str(name): float(value) for name, value in values.items()}
        except (AttributeError, TypeError, ValueError, RuntimeError):
            raise InputError(
                f"evaluate returned {values!r}: expected numbers by name, {{'accuracy': 0.9}}"
            ) from None
        _check_free(tuple(numbers), "number of an evaluation", also=self.columns)
        if self.evaluations and set(numbers) != set(self.evaluations[0][1]):
            raise InputError(
                f"evaluate returned {', '.join(numbers)}; expected the same names each time: "
                f"{', '.join(self.evaluations[0][1])}"
            )
        self.evaluations.append((step, numbers))
        return numbers

    def at(self, place: str) -> None:
        """Record a device and number of processes."""
        if place not in self.places:
            self.places.append(place)

    def state(self) -> dict[str, Any]:
        """Return the history as tensors, numbers and text, which a checkpoint may hold."""
        names = list(self.evaluations[0][1]) if self.evaluations else []
        return {
            "columns": list(self.columns),
            "rows": torch.tensor(self.rows, dtype=torch.float64),
            "names": names,
            "evaluated": [step for step, _ in self.evaluations],
            "values": torch.tensor(
                [[numbers[name] for name in names] for _, numbers in self.evaluations],
                dtype=torch.float64,
            ),
            "peak_memory": self.peak_memory,
            "places": list(self.places),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "History":
        """Return the history from its `state`."""
        history = cls()
        history.columns = tuple(state["columns"])
        history.rows = [tuple(row) for row in state["rows"].tolist()]
        history.evaluations = [
            (step, dict(zip(state["names"], values, strict=True)))
            for step, values in zip(state["evaluated"], state["values"].tolist(), strict=True)
        ]
        history.peak_memory = state["peak_memory"]
        history.places = list(state["places"])
        return history

    def dataset(self, attrs: Mapping[str, Any]) -> "Dataset":
        """Return the history as a Dataset.

        Parameters
        ----------
        attrs : mapping
            Attributes to add: text and numbers.

        Returns
        -------
        xarray.Dataset
            Over `step` (number of the step, from 0) loss, its parts, gradient_norm, rate, seconds;
            over `evaluation` (number of steps done) what `evaluate` returned.
        """
        variables: dict[str, Any] = {}
        coords: dict[str, Any] = {
            "step": ("step", np.arange(len(self.rows)), {"long_name": "number of the step"})
        }
        table = np.array(self.rows, dtype=np.float64).reshape(len(self.rows), len(self.columns))
        for name, values in zip(self.columns, table.T, strict=True):
            words = _STEP.get(name, f"part of the loss: {name}")
            variables[name] = ("step", values, _attrs(name, words))
        if self.evaluations:
            steps = np.array([step for step, _ in self.evaluations])
            coords["evaluation"] = ("evaluation", steps, {"long_name": "steps done"})
            for name in self.evaluations[0][1]:
                values = np.array([numbers[name] for _, numbers in self.evaluations])
                variables[name] = ("evaluation", values, _attrs(name, f"evaluation: {name}"))
        own = {
            "steps_done": len(self.rows),
            "peak_memory_bytes": self.peak_memory,
            "devices": "; ".join(self.places),
            "wflow": __version__,
        }
        return xarray.Dataset(variables, coords, dict(attrs) | own)


def metrics_json(dataset: "Dataset") -> str:
    """Return the numbers of a history for JSON, one line for each; NaN and infinity become null."""
    lines = {str(name): value for name, value in dataset.attrs.items()}
    lines["config"] = json.loads(dataset.attrs["config"])
    for name, values in dataset.variables.items():
        plain = values.values.tolist()
        whole = values.dtype.kind == "i"
        lines[str(name)] = plain if whole else [json_number(value) for value in plain]
    text = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in lines.items())
    return "{\n" + ",\n".join(text) + "\n}\n"


def check_tensorboard() -> Any:
    """Return the writer of TensorBoard's files.

    Raises
    ------
    InputError
        Where the package is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            f"tensorboard=True needs the package tensorboard ({error}); install it with: "
            f"{install('tensorboard')}, or leave the flag out"
        ) from None
    return SummaryWriter


@contextmanager
def tensorboard_log(folder: Path | None, begin: int) -> Iterator[Log]:
    """Write numbers for TensorBoard; None writes nothing.

    Parameters
    ----------
    folder : Path
        Where its files go.
    begin : int
        The step at which this run begins; what an earlier one wrote from there on is dropped.

    Yields
    ------
    iterator of Log
        Function log(step, numbers by name).
    """
    if folder is None:
        yield lambda step, numbers: None
        return
    try:
        writer = check_tensorboard()(log_dir=str(folder), purge_step=begin)
    except OSError as error:
        raise InputError(
            f"cannot write into {folder}: {error.strerror}; free space, or leave tensorboard out"
        ) from None

    def log(step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    try:
        yield log
    finally:
        writer.close()


def _check_free(names: tuple[str, ...], what: str, also: tuple[str, ...] = ()) -> None:
    for name in names:
        if not name or "/" in name:
            raise InputError(f"a {what} is named {name!r}: expected a name without slashes")
        if name in _TAKEN or name in also:
            raise InputError(
                f"a {what} is named {name!r}, which names another quantity of the run already: "
                f"choose another name, such as {'test_' + name!r}"
            )


def _attrs(name: str, words: str) -> dict[str, str]:
    return {"long_name": words, "units": _UNITS.get(name, "1")}


def machine(device: torch.device, count: int) -> str:
    """Return device, number of processes and version of torch, as text."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return f"{count} x {name}, torch {torch.__version__}"


def peak_memory(device: torch.device) -> int:
    """Return the peak of bytes that torch allocated on a GPU since the last reset; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
