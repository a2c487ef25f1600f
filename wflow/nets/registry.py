"""Network registry: configurations of networks as JSON, and networks from configurations.

    config = nets.config(net)      # {"network": "GPT", "arguments": {"vocabulary": 65, ...}}
    net = nets.build(config)       # the same network, with weights drawn at random

A network in continuous time has its body beside its arguments: {"network": "GPT", "arguments":
{...}, "body": {"network": "ContinuousTransformer", "arguments": {"t_final": 1.0, ...}}}. Names are
those of registered classes (`register`); nothing else can be made from a configuration.
"""

import copy
import inspect
import itertools
import math
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from wflow._core.errors import InputError
from wflow._core.tableaux import Tableau
from wflow.nets.checks import dense, module

N = TypeVar("N", bound=nn.Module)

_CLASSES: dict[str, type[nn.Module]] = {}
_GIVEN = "_wflow_given"  # attribute of a network: its arguments, or why they cannot be written
_DEPTH = 8  # of lists in lists among the arguments
_FIELDS = {"network": str, "arguments": dict, "body": dict}  # of a configuration


def register(cls: type[N]) -> type[N]:
    """Decorate a class of networks, so that its networks have configurations and can be restored.

    The arguments of the constructor are kept with each network. They must be numbers, text, None,
    or lists and dictionaries of these; the first argument of a body may be the blocks that it
    wraps, and arguments that a class names in its attribute `PARTS` are registered networks, which
    it keeps under the same names. An attribute with the name of an argument has its current value:
    `body.steps = 4` counts. Files are compared with a network on torch's device `meta` before one
    with values is made, so the constructor must not read values of tensors.

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
    name, known = cls.__name__, _CLASSES.get(cls.__name__)
    # A notebook that is run again registers its classes again.
    if known is not None and _home(known) != _home(cls):
        raise InputError(
            f"a network {name} is registered, {_home(known)}: expected another name for "
            f"{_home(cls)}"
        )
    make, form = cls.__init__, inspect.signature(cls.__init__)

    @wraps(make)
    def making(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        if type(self) is cls:  # not of a class that was derived from it
            bound = form.bind(self, *arguments, **options)
            bound.apply_defaults()
            parts = _parts_of(cls)
            setattr(self, _GIVEN, _written(name, form, bound.arguments, parts))

    cls.__init__ = making  # type: ignore[method-assign]
    _CLASSES[name] = cls
    return cls


def config(network: nn.Module) -> dict[str, Any]:
    """The configuration of a network, for JSON.

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
    network = module(network, "network")
    for one in _candidates(network):
        try:
            with outline():
                made = _made(one)
            lines = first_difference(described(made), described(network))
            same = lines is None and _form(made) == _form(network)
        except Exception as error:  # of a custom class without values
            raise InputError(
                f"the {type(network).__name__} cannot be made again from its arguments: "
                f"{_line(error)}; check its constructor"
            ) from None
        if same:
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
    return _made(config)


def filled(
    config: Any,
    state: Mapping[str, Any],
    kind: type[N] = nn.Module,  # type: ignore[assignment]
    *,
    complete: bool = True,
) -> N:
    """Make a network from its configuration, filled with weights from a file.

    Nothing is made before the shapes of the weights have been compared with those that the
    configuration asks for.

    Parameters
    ----------
    config : mapping
        What `config` returned.
    state : mapping
        Weights by name.
    kind : type
        Class of the network that is expected.
    complete : bool, default True
        Whether a weight that two layers share must be there under both names.

    Returns
    -------
    torch.nn.Module
        The network with its weights, in their precision, in evaluation mode on the CPU.

    Raises
    ------
    InputError
        For another network, an unknown one, and weights that do not fit.
    """
    cls = class_of(config)
    if not issubclass(cls, kind):
        raise InputError(f"it is a {cls.__name__}: expected a {kind.__name__}")
    # A network registers a parameter that it shares, or replaces, more than once.
    with outline(most=4 * len(state) + 16):
        empty = build(config)
    if not complete:
        known = {name: state.get(first) for name, first in shared(empty).items()}
        state = known | dict(state)
    _check_values(state, empty)
    with torch.random.fork_rng([]), torch.device("cpu"):
        network = build(config)
    for name, value in network.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor):
            value.data = value.data.to(state[name].dtype)
    network.load_state_dict(state)
    return network.eval()  # type: ignore[return-value]  # checked above


def shared(network: nn.Module) -> dict[str, str]:
    """Names of parameters and buffers, each with the first name of the same tensor."""
    return {name: first for name, (_, first) in _form(network).items()}


def other_weight(
    saved: Mapping[str, Any], model: nn.Module, *, types: bool = False
) -> tuple[str, str, str] | None:
    """Name of the first parameter of another shape or type, what it is there, and here."""
    own = model.state_dict()
    for name in [*own, *(name for name in saved if name not in own)]:
        there, here = (_kind(state.get(name), types) for state in (saved, own))
        if there != here:
            return name, there, here
    return None


def _check_values(state: Mapping[str, Any], empty: nn.Module) -> None:
    """Check shapes, kinds of numbers, and that what the network shares is the same in the file."""
    other = other_weight(state, empty)
    if other is not None:
        name, there, here = other
        raise InputError(
            f"{name} is {there} in the file, and the configuration asks for one {here}; it "
            "is damaged, or was edited: take another copy of it"
        )
    firsts = shared(empty)
    for name, value in empty.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            continue
        stored = state[name]
        if (stored.is_floating_point(), stored.is_complex()) != (
            value.is_floating_point(),
            value.is_complex(),
        ):
            raise InputError(f"{name} is {stored.dtype} in the file: expected {value.dtype}")
        first = firsts[name]
        if first != name and not _same_bits(state[first], stored):
            raise InputError(f"{name} differs from {first}, and the network has one for both")


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    plain = (value.resolve_neg().resolve_conj().contiguous() for value in (one, other))
    raw = [value.flatten().view(torch.uint8) for value in plain]
    return one.dtype == other.dtype and torch.equal(*raw)


def _kind(value: Any, types: bool) -> str:
    if not isinstance(value, torch.Tensor):
        return "absent" if value is None else f"no tensor but {type(value).__name__}"
    if not dense(value):
        return "nested" if value.is_nested else f"stored as {value.layout}"
    if not types and value.is_complex():  # a copy into real numbers would lose half of it
        return f"complex, of shape {tuple(value.shape)}"
    return f"{value.dtype} {tuple(value.shape)}" if types else f"of shape {tuple(value.shape)}"


@contextmanager
def outline(most: int | None = None) -> Iterator[None]:
    """Make networks without values here, on the device meta; the random numbers stay as they were.

    Parameters
    ----------
    most : int, optional
        Number of parameters that they may have; None for any.

    Raises
    ------
    InputError
        For more of them, while they are made.
    """
    thread, counter = threading.get_ident(), itertools.count(1)

    def counted(*_: Any) -> None:
        if threading.get_ident() == thread and most is not None and next(counter) > most:
            raise InputError("it asks for more parameters than there are")

    handle = register_module_parameter_registration_hook(counted)
    try:
        with torch.random.fork_rng([]), torch.device("meta"):
            yield
    finally:
        handle.remove()


def class_of(config: Any, what: str = "the configuration") -> type[nn.Module]:
    """The registered class that a configuration names; its form is checked.

    Raises
    ------
    InputError
        For what is no configuration, and for an unknown name.
    """
    if not isinstance(config, Mapping):
        raise InputError(f"{what} is {type(config).__name__}: expected a dictionary")
    for key in config:
        if key not in _FIELDS:
            raise InputError(f"{what} has an entry {key!r:.40}: expected {', '.join(_FIELDS)}")
    for key, kind in _FIELDS.items():
        value = config.get(key)
        if not isinstance(value, kind) and (key != "body" or key in config):
            raise InputError(f"{key} of {what} is {type(value).__name__}: expected {kind.__name__}")
    name = config["network"]
    if name not in _CLASSES:
        raise InputError(
            f"{what} names the network {name!r:.60}, which is unknown: expected one of "
            f"{', '.join(sorted(_CLASSES))}; a custom class is known when the module that "
            "registers it (nets.register) has been imported"
        )
    return _CLASSES[name]


def described(model: nn.Module) -> str:
    """The printed form of a network, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(model))


def first_difference(before: str, now: str) -> tuple[str, str] | None:
    """The first lines in which two printed networks differ, or None."""
    pairs = zip_longest(before.splitlines(), now.splitlines(), fillvalue="nothing")
    return next(((old.strip(), new.strip()) for old, new in pairs if old != new), None)


def _made(config: Any, what: str = "the configuration", *inner: nn.Module) -> nn.Module:
    """The network of a configuration, called `what`; a body is made around the `inner` one."""
    cls = class_of(config, what)
    given, form = config["arguments"], inspect.signature(cls)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in form.parameters.values())
    for name in given:
        if name not in form.parameters and not open_ended:
            raise InputError(
                f"{what} gives {cls.__name__} the unknown argument {name!r:.60}: expected "
                f"{', '.join(form.parameters)}"
            )
    made = {key: _made(given[key], f"{key} of {what}") for key in _parts_of(cls) if key in given}
    try:
        network = cls(*inner, **given | made)
    except InputError as error:
        raise InputError(f"{what} does not fit {cls.__name__}: {error}") from None
    except Exception as error:  # a custom constructor may raise anything
        reason = f"{type(error).__name__}: {_line(error)}"
        raise InputError(f"{what} does not fit {cls.__name__} ({reason})") from None
    if "body" in config:
        body = getattr(network, "body", None)
        if not isinstance(body, nn.Module):
            raise InputError(f"{what} has a body, and {cls.__name__} has none")
        network.body = _made(config["body"], f"the body of {what}", body)
    return network


def _candidates(network: nn.Module) -> Iterator[dict[str, Any]]:
    """Configurations that may be that of a network: with its own body, and with the one it has."""
    plain = _config_of(network)
    yield plain
    body = getattr(network, "body", None)
    if isinstance(body, nn.Module) and _CLASSES.get(type(body).__name__) is type(body):
        yield plain | {"body": _config_of(body)}


def _config_of(network: nn.Module) -> dict[str, Any]:
    """Name and current arguments of one network, without its body."""
    name = type(network).__name__
    if _CLASSES.get(name) is not type(network):
        raise InputError(
            f"{name} is no registered network: expected one of {', '.join(sorted(_CLASSES))}; "
            "decorate a custom class with nets.register"
        )
    given = getattr(network, _GIVEN, f"the {name} was made before its class was registered")
    if isinstance(given, str):
        raise InputError(given)
    now = {}
    for key, value in given.items():
        if key in _parts_of(type(network)):
            now[key] = _config_of(getattr(network, key))
            continue
        try:
            now[key] = _plain(getattr(network, key, value))
        except Exception:  # a parameter or a part of that name, or a property that fails
            now[key] = value
    return {"network": name, "arguments": copy.deepcopy(now)}


def _parts_of(cls: type[nn.Module]) -> tuple[str, ...]:
    """Arguments of a class that are registered networks."""
    return getattr(cls, "PARTS", ())


def _written(
    name: str, form: inspect.Signature, arguments: Mapping[str, Any], parts: tuple[str, ...] = ()
) -> dict[str, Any] | str:
    """Arguments of a constructor for JSON, without itself and what a body wraps; or a reason."""
    written: dict[str, Any] = {}
    for place, (key, value) in enumerate(arguments.items()):
        kind = form.parameters[key].kind
        if key in parts:
            written[key] = None  # written when it is asked for
            continue
        if place == 0 or (place == 1 and _holds_networks(value)):
            continue
        if kind is inspect.Parameter.VAR_POSITIONAL and not value:
            continue
        if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            return f"the argument {key} of {name} has no name: make it a named one"
        try:
            plain = _plain(value)
        except TypeError as error:
            return (
                f"the argument {key} of {name} cannot be written as JSON, for it holds {error}: "
                "expected finite numbers, text, None, or lists and dictionaries of these"
            )
        written |= plain if kind is inspect.Parameter.VAR_KEYWORD else {key: plain}
    return written


def _holds_networks(value: Any) -> bool:
    """Whether an argument is a network or several, or an iterator that has been used up."""
    if isinstance(value, nn.Module | Iterator):
        return True
    return isinstance(value, list | tuple) and any(isinstance(part, nn.Module) for part in value)


def _plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it; a TypeError names what it has not."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Tableau):
        value = value.config()
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, list | tuple) and depth < _DEPTH:
        return [_plain(entry, depth + 1) for entry in value]
    if isinstance(value, dict) and depth < _DEPTH and all(type(key) is str for key in value):
        return {key: _plain(entry, depth + 1) for key, entry in value.items()}
    held = value if isinstance(value, int | float) else type(value).__name__
    raise TypeError(f"{held!s:.40}")


def _form(network: nn.Module) -> dict[str, Any]:
    """Shapes of parameters and buffers by name, and which of them are the same."""
    firsts: dict[int, str] = {}
    return {
        name: (tuple(value.shape), firsts.setdefault(id(value), name))
        for name, value in network.state_dict(keep_vars=True).items()
        if isinstance(value, torch.Tensor)
    }


def _home(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _line(error: BaseException) -> str:
    """A message in one line."""
    return " ".join(str(error).split())[:200]
