"""Training and evaluation modes of a network, put back module by module."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def kept_modes(model: Any) -> Iterator[None]:
    """Give every module in a network back the mode it had, a frozen part in evaluation too.

    Parameters
    ----------
    model : the network; what is no module has no modes, and nothing is done
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        yield
    finally:
        for module, training in zip(modules, modes, strict=True):
            module.training = training


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode for a while; parameters and modes as for `kept_modes`."""
    with kept_modes(model):
        if isinstance(model, nn.Module):
            model.eval()
        yield
