"""Network registry: configurations of networks as JSON, and networks from configurations.

    config = nets.config(net)      # {"network": "GPT", "arguments": {"vocabulary": 65, ...}}
    net = nets.build(config)       # the same network, with weights drawn at random

A network in continuous time has its body beside its arguments: {"network": "GPT", "arguments":
{...}, "body": {"network": "ContinuousTransformer", "arguments": {"t_final": 1.0, ...}}}. Names are
those of registered classes (`register`); nothing else can be made from a configuration.
"""

import copy
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from wflow._core.errors import InputError
from wflow._core.tableaux import Tableau
from wflow.nets.checks import module

N = TypeVar("N", bound=nn.Module)

_CLASSES: dict[str, type[nn.Module]] = {}
_GIVEN = "_wflow_given"  # attribute of a network: its arguments, or why they cannot be written


def register(cls: type[N]) -> type[N]:
    """Decorate a class of networks, so that its networks have configurations and can be restored.

    The arguments of the constructor are kept with each network. They must be numbers, text, None,
    or lists and dictionaries of these; the first argument of a body may be the blocks that it
    wraps, and arguments that a class names in its attribute `PARTS` are registered networks, which
    it keeps under the same names. An attribute with the name of an argument has its current value:
    `body.steps = 4` counts. Keys of dictionaries become text. Files are compared with a network on
    torch's device `meta` before one with values is made, so the constructor must not read values
    of tensors.

    Parameters
    ----------
    cls : type
        Class of networks, known by its name.

    Returns
    -------
    type
        The class.

    Raises
    ------
    InputError
        For what is no class of networks, and for the name of another registered class.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> @nets.register
    ... class Wide(torch.nn.Module):
    ...     def __init__(self, width=8):
    ...         super().__init__()
    ...         self.map = torch.nn.Linear(width, width)
    >>> nets.config(Wide(4))
    {'network': 'Wide', 'arguments': {'width': 4}}
    """
    if not (inspect.isclass(cls) and issubclass(cls, nn.Module)):
        raise InputError(f"cls is {cls!r:.80}: expected a class of networks, a torch.nn.Module")
    known = _CLASSES.get(cls.__name__, cls)
    # A notebook that is run again registers its classes again.
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InputError(
            f"a network {cls.__name__} is registered, of {known.__module__}: give {cls!r} another "
            "name"
        )
    make, form = cls.__init__, inspect.signature(cls.__init__)

    @wraps(make)
    def making(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        if type(self) is cls:  # not of a class that was derived from it
            bound = form.bind(self, *arguments, **options)
            bound.apply_defaults()
            setattr(self, _GIVEN, _arguments_of(cls, bound))

    cls.__init__ = making  # type: ignore[method-assign]
    _CLASSES[cls.__name__] = cls
    return cls


def config(network: nn.Module) -> dict[str, Any]:
    """Return the configuration of a network, for JSON.

    Parameters
    ----------
    network : torch.nn.Module
        A network of a registered class; its body may have been replaced by one, too.

    Returns
    -------
    dict
        {"network": name, "arguments": {...}}, and "body" where it is another than the arguments
        make; `build` makes a network of the same form from it.

    Raises
    ------
    InputError
        For a network of a class that is not registered, and one that was changed otherwise.

    Examples
    --------
    >>> from wflow import nets
    >>> net = nets.ViT(image=(1, 8, 8), patch=4, width=8)
    >>> net.body = nets.ContinuousTransformer(net.body, steps=5)
    >>> nets.config(net)["body"]["arguments"]["steps"]
    5
    """
    plain = _config_of(module(network, "network"))
    body = getattr(network, "body", None)
    candidates = [plain]
    if isinstance(body, nn.Module) and _CLASSES.get(type(body).__name__) is type(body):
        candidates.append(plain | {"body": _config_of(body)})
    for one in candidates:
        with _outline():
            made = build(one)
        lines = first_difference(described(made), described(network))
        if lines is None and _shapes(made) == _shapes(network):
            return one
    old, new = lines or ("its parameters", "other ones")
    raise InputError(
        f"the {type(network).__name__} was changed after it was made: its arguments make '{old}', "
        f"and it has '{new}'; make the change in a custom class, and nets.register it"
    )


def build(config: Mapping[str, Any]) -> nn.Module:
    """Make a network from its configuration, with weights drawn as its constructor draws them.

    Parameters
    ----------
    config : mapping
        What `config` returned, or the same read from JSON.

    Returns
    -------
    torch.nn.Module
        The network, in training mode, on the CPU.

    Raises
    ------
    InputError
        For an unknown network or argument, and for values that the constructor refuses. Sizes are
        not limited: `nets.train.restore` compares them with the weights in a file first.

    Examples
    --------
    >>> from wflow import nets
    >>> net = nets.ViT(image=(1, 8, 8), patch=4, width=8)
    >>> type(nets.build(nets.config(net))).__name__
    'ViT'
    """
    return _network_of(config)


def filled(
    path: Path,
    config: Any,
    state: Mapping[str, Any],
    kind: type[N],
    own: Callable[[N, Any], Mapping[str, Any]] = lambda _, state: state,
) -> N:
    """Make a network from its configuration, filled with weights from a file.

    Parameters
    ----------
    path : Path
        The file, for the message.
    config : mapping
        What `config` returned.
    state : mapping
        Weights by name; one that two layers share may be there under its first name alone.
    kind : type
        Class of the network that is expected.
    own : callable, optional
        `own(network, state)` returns the weights under the names that the network has for them.

    Returns
    -------
    torch.nn.Module
        The network with its weights, in their precision, in evaluation mode on the CPU.

    Raises
    ------
    InputError
        For another network, an unknown one, and weights of other shapes.
    """
    try:
        with _outline():  # takes no memory
            empty = build(config)
    except InputError as error:
        raise InputError(f"{path} cannot be restored: {error}") from None
    if not isinstance(empty, kind):
        name = type(empty).__name__
        raise InputError(f"{path} holds a {name}: expected a {kind.__name__}")
    state = own(empty, state)
    firsts = shared(empty)
    state = {name: state[first] for name, first in firsts.items() if first in state} | dict(state)
    check_weights(path, state, empty)
    with torch.random.fork_rng([]), torch.device("cpu"):
        network = build(config)
    for name, value in network.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor):
            value.data = value.data.to(state[name].dtype)
    network.load_state_dict(state)
    return network.eval()  # type: ignore[return-value]  # checked above


def shared(network: nn.Module) -> dict[str, str]:
    """Return names of parameters and buffers, each with the first name of the same tensor."""
    return {name: first for name, (_, first) in _shapes(network).items()}


def check_weights(
    path: Path | str, saved: Mapping[str, Any], model: nn.Module, *, types: bool = False
) -> None:
    """Raise InputError for weights of other names or shapes than a network has; it names one.

    Parameters
    ----------
    path : Path or str
        What holds the weights, for the message.
    saved : mapping
        Weights by name.
    model : torch.nn.Module
        The network.
    types : bool, default False
        Whether they must be of the same type (float32, ...), too.
    """

    def form(value: Any) -> str:
        if not isinstance(value, torch.Tensor):
            return "absent" if value is None else type(value).__name__
        # A copy of complex numbers into real ones would lose half of them.
        kind = value.dtype if types else "complex" if value.is_complex() else "of shape"
        return f"{kind} {tuple(value.shape)}"

    own = model.state_dict()
    for name in own | dict(saved):
        there, here = form(saved.get(name)), form(own.get(name))
        if there != here:
            raise InputError(
                f"{path} holds another network: {name} is {there} there and {here} in the network; "
                "make the network that it was written for, or take another file"
            )


def described(model: nn.Module) -> str:
    """Return the printed form of a network, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(model))


def first_difference(before: str, now: str) -> tuple[str, str] | None:
    """Return the first lines in which two printed networks differ, or None."""
    pairs = zip_longest(before.splitlines(), now.splitlines(), fillvalue="nothing")
    return next(((old.strip(), new.strip()) for old, new in pairs if old != new), None)


@contextmanager
def _outline() -> Iterator[None]:
    """Make networks without values, on the device meta; the random numbers stay as they were."""
    with torch.random.fork_rng([]), torch.device("meta"):
        yield


def _network_of(config: Any, *inner: nn.Module) -> nn.Module:
    """Build the network of a configuration; that of a body is made around the `inner` one."""
    cls = _CLASSES.get(str(config.get("network"))) if isinstance(config, Mapping) else None
    if cls is None:
        raise InputError(
            f"the configuration {config!r:.80} names no registered network: expected as its "
            f"network one of {', '.join(sorted(_CLASSES))}; a custom class is known when the "
            "module that registers it (nets.register) has been imported"
        )
    try:
        given = dict(config["arguments"])
        for part in _parts_of(cls):
            given[part] = _network_of(given[part])
        wraps = next(iter(inspect.signature(cls).parameters), None) not in given
        network = cls(*inner if wraps else (), **given)
    except Exception as error:  # a constructor may raise anything
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        reason = " ".join(f"{kind}{error}".split())[:200]
        raise InputError(f"a {cls.__name__} cannot be made of its arguments: {reason}") from None
    if "body" in config:
        if not isinstance(getattr(network, "body", None), nn.Module):
            raise InputError(f"the configuration has a body, and {cls.__name__} has none")
        network.body = _network_of(config["body"], network.body)  # type: ignore[arg-type]
    return network


def _config_of(network: nn.Module) -> dict[str, Any]:
    """Return name and current arguments of one network, without its body."""
    cls = type(network)
    if _CLASSES.get(cls.__name__) is not cls:
        raise InputError(
            f"{cls.__name__} is no registered network: expected one of "
            f"{', '.join(sorted(_CLASSES))}; decorate a custom class with nets.register"
        )
    given = getattr(network, _GIVEN, f"the {cls.__name__} was made before it was registered")
    if isinstance(given, str):
        raise InputError(given)
    now = {key: _config_of(getattr(network, key)) for key in _parts_of(cls)}
    for key, value in given.items():
        try:
            now[key] = _as_json(getattr(network, key, value))
        except Exception:  # a parameter or a part of that name, or a property that fails
            now[key] = copy.deepcopy(value)
    return {"network": cls.__name__, "arguments": now}


def _parts_of(cls: type[nn.Module]) -> tuple[str, ...]:
    """Return the arguments of a class that are registered networks."""
    return getattr(cls, "PARTS", ())


def _arguments_of(cls: type[nn.Module], bound: inspect.BoundArguments) -> dict[str, Any] | str:
    """Return constructor arguments for JSON, without itself and what a body wraps; or a reason."""
    written: dict[str, Any] = {}
    for place, (key, value) in enumerate(bound.arguments.items()):
        kind = bound.signature.parameters[key].kind
        unused = kind is kind.VAR_POSITIONAL and not value
        inside = value if isinstance(value, list | tuple) else [value]
        wrapped = place == 1 and any(isinstance(part, nn.Module | Iterator) for part in inside)
        if place == 0 or unused or wrapped or key in _parts_of(cls):
            continue
        try:
            plain = _as_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            return (
                f"the argument {key} of {cls.__name__} cannot be written as JSON ({error}): "
                "expected finite numbers, text, None, or lists and dictionaries of these"
            )
        written |= plain if kind is kind.VAR_KEYWORD else {key: plain}
    return written


def _as_json(value: Any) -> Any:
    """Return a value in the form of JSON; keys of dictionaries are text."""
    return json.loads(json.dumps(value, default=_plain, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tableau):
        return value.config()
    raise TypeError(f"it holds {type(value).__name__}")


def _shapes(network: nn.Module) -> dict[str, Any]:
    """Return shapes of parameters and buffers by name, and which of them are the same."""
    firsts: dict[int, str] = {}
    return {
        name: (tuple(value.shape), firsts.setdefault(id(value), name))
        for name, value in network.state_dict(keep_vars=True).items()
        if isinstance(value, torch.Tensor)
    }
