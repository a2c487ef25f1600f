"""The folder of a training: one training at a time, and a checkpoint of the same one or none."""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import nn

from wflow._core.errors import InputError
from wflow._core.files import open_hdf5, own_folder
from wflow.nets.files import Kind, check_replaceable, marked
from wflow.nets.registry import check_weights, described, first_difference
from wflow.nets.training.checkpoint import TRAINING, config_text, read
from wflow.nets.training.history import METRICS, METRICS_JSON
from wflow.runs.read import differences

CHECKPOINT = "checkpoint.pt"
TENSORBOARD = "tensorboard"


def _is_metrics(path: Path) -> bool:
    try:
        with open_hdf5(path) as content:
            return {"label", "config", "steps_done", "wflow"} <= set(content.attrs)
    except InputError:
        return False


KINDS = {
    CHECKPOINT: TRAINING,
    METRICS: Kind("metrics file", _is_metrics),
    METRICS_JSON: Kind("metrics file", marked(b'{\n"label": ', b'\n"config": {')),
}
"""The files of a training."""


def open_folder(
    stack: ExitStack,
    folder: Path,
    config: Mapping[str, Any],
    model: nn.Module,
    *,
    resume: bool,
    overwrite: bool,
) -> dict[str, Any] | None:
    """Lock and check the folder of a training before anything is computed or written.

    Parameters
    ----------
    stack : ExitStack
        Holds the lock on the folder until it is closed.
    folder : Path
        Folder of the training.
    config : mapping
        What the training is (`identity`).
    model : torch.nn.Module
        The network.
    resume, overwrite : bool
        Whether earlier results are continued or replaced.

    Returns
    -------
    dict
        The checkpoint to resume from; None begins.

    Raises
    ------
    InputError
        For results that are there and neither resumed nor overwritten, a folder that cannot be
        written or that another training writes to, a damaged checkpoint, one of another training,
        and foreign files at the names of those of the training.
    """
    stack.enter_context(own_folder(folder, "training", KINDS))
    there = [name for name in KINDS if os.path.lexists(folder / name)]
    if there and not (resume or overwrite):
        raise InputError(
            f"{folder / there[0]} exists: give resume=True to resume it, overwrite=True to "
            "replace it, or choose another folder"
        )
    saved = _same_training(folder / CHECKPOINT, config, model) if there and resume else None
    for name in there:
        check_replaceable(folder / name, KINDS[name])
    return saved  # with overwrite, what is there stays until there is something in its place


def _same_training(path: Path, config: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """The checkpoint at a path; InputError names what differs from the training given."""
    saved = read(path, TRAINING)
    stored, given = json.loads(saved["config"]), json.loads(json.dumps(config))
    different = differences(stored, given)
    if different:
        words = (f"{k} ({_setting(stored, k)} there, {_setting(given, k)} here)" for k in different)
        raise InputError(
            f"{path} belongs to a run that differs in {', '.join(words)}: give what it was made "
            "with, choose another folder, or replace it with overwrite=True"
        )
    check_weights(path, saved["model"], model, types=True)
    lines = first_difference(saved["description"], described(model))
    # Versions of torch may print the same network in other words.
    network = json.loads(config_text(model))
    known = isinstance(network, dict) and json.loads(saved["network"]) == network
    if lines is not None and not known:
        raise InputError(
            f"{path} holds another network: '{lines[0]}' in the file, '{lines[1]}' in the model; "
            "make the model that the file was written for, choose another folder, or "
            "overwrite=True"
        )
    return saved


def _setting(config: Any, name: str) -> Any:
    """The setting of a dotted name."""
    for key in name.split("."):
        config = config.get(key) if isinstance(config, dict) else None
    return config
