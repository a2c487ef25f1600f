"""Configurations of head laws, flows and metrics in files, and the objects made from them.

A class of wflow is known by its name and parameters. A custom one, a subclass or an object with
functions, is known by its fingerprint as well, which is compared before a run is resumed or run
again. A `Registry` holds the classes of one kind by name.
"""

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, Generic, Self, TypeGuard, TypeVar

from wflow._core.checks import did_you_mean, made_of, shown
from wflow._core.errors import InputError, WflowWarning, warn
from wflow._core.fingerprint import NotComparable, fingerprint, of_bytecode, why_different
from wflow._core.reprs import Shown, value_text

# Parts of the configuration of a run that may be custom.
_NAMED = ("law", "flow", "metric", "grad", "prior")
# What identifies an object in a configuration, beside its parameters.
_IDENTITY = {"name", "jumps", "fingerprint", "not_comparable"}
_FUNCTIONS = "its Python functions and classes"


class Described(Shown):
    """An object that says its parameters, from which a run file makes it again."""

    def to_config(self) -> dict[str, Any]:
        """Return the parameters for the run file: names to numbers, texts, lists and arrays.

        They are what `from_config` needs. An object whose arrays are too large for a text gives
        their SHA-256 digest as `sha256`.

        Returns
        -------
        dict
            Parameters by name; empty by default.
        """
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make the object from the parameters that `to_config` returned, as read from JSON.

        Parameters
        ----------
        config : dict
            Parameters by name.

        Returns
        -------
        Described
            An object of the class.

        Raises
        ------
        InputError
            For parameters that the class does not have, or lacks.
        """
        return made_of(cls, config, cls.__name__)

    @classmethod
    def missing_in(cls, config: Mapping[str, Any]) -> str:
        """Return the parameters that `from_config` needs and a configuration lacks.

        Parameters
        ----------
        config : Mapping
            Parameters by name.

        Returns
        -------
        str
            What is missing, in words; "" where nothing is.
        """
        if "sha256" in config:
            return "its matrices, of which a run file holds a SHA-256 digest"
        return ""

    def _parameter_texts(self) -> Mapping[str, str]:
        settings = dict(self.to_config())
        if "sha256" in settings:
            settings["sha256"] = settings["sha256"][:8]
        unset = [key for key, value in settings.items() if value is None or value is False]
        return {key: value_text(settings[key]) for key in settings if key not in unset}


_T = TypeVar("_T", bound=Described)


class Registry(Generic[_T]):
    """Registry of the classes of one kind by name, and of the configurations of their objects.

    Parameters
    ----------
    base : the class that all of them derive from; its own objects are custom
    kind : what messages and the configuration of a run call an object: "law"
    noun : the same in full: "head law"
    where : the public module that has `register`; None where objects are never made again
    classes : of wflow
    """

    def __init__(
        self, base: type[_T], kind: str, noun: str, where: str | None, *classes: type[_T]
    ) -> None:
        self.base, self.kind, self.noun, self.where = base, kind, noun, where
        self.classes: dict[str, type[_T]] = {cls.__name__: cls for cls in classes}
        self._remedy = f"give the {kind} that the run was made with ({kind}=...), or call "
        self._remedy += "wflow.solve with it"

    def register(self, cls: Any) -> Any:
        """Register a class under its name.

        Raises
        ------
        InputError
            For anything but a subclass of the base, and for the name of another class.
        """
        if not (isinstance(cls, type) and issubclass(cls, self.base)):
            raise InputError(
                f"register was given {shown(cls)}: expected a subclass of {self.base.__name__}"
            )
        known = self.classes.get(cls.__name__)
        places = {(each.__module__, each.__qualname__) for each in (cls, known or cls)}
        if len(places) > 1:
            raise InputError(
                f"a {self.noun} of another module is registered as {cls.__name__!r}: give the "
                "class another name"
            )
        self.classes[cls.__name__] = cls
        return cls

    def is_custom(self, thing: _T) -> bool:
        """Return whether an object has code that wflow lacks: a subclass, a method, a part."""
        cls = type(thing)
        if not self._is_of_wflow(cls):
            return True
        return any(
            self.is_custom(part)
            if isinstance(part, self.base)
            else callable(part) or callable(getattr(cls, name, None))
            for name, part in vars(thing).items()
        )

    def _is_of_wflow(self, cls: type) -> bool:
        """Return whether a class of wflow describes its objects completely."""
        return cls is not self.base and _stands_in_wflow(cls)

    def config(self, thing: _T, **more: Any) -> dict[str, Any]:
        """Return name and parameters of an object; of a custom one, `more` and what identifies it.

        That is its `fingerprint`, or None, and the reason as `not_comparable`, where it cannot be
        compared.

        Raises
        ------
        InputError
            For a `to_config` that returns anything but a dict, or one with a name of these.
        """
        name, config = {"name": type(thing).__name__}, thing.to_config()
        if not self.is_custom(thing):
            return name | config
        if not isinstance(config, dict):
            raise InputError(
                f"{type(thing).__name__}.to_config() returned a {type(config).__name__}: expected "
                "a dict of names to numbers, texts and lists, for the run file"
            )
        taken = sorted(config.keys() & _IDENTITY)
        if taken:
            raise InputError(
                f"{type(thing).__name__}.to_config() names a parameter {taken[0]!r}, by which a "
                f"run file identifies the {self.kind}: give it another name"
            )
        try:
            return name | config | more | {"fingerprint": fingerprint(thing)}
        except NotComparable as reason:
            return name | config | more | {"fingerprint": None, "not_comparable": str(reason)}

    def from_config(self, config: Any) -> _T:
        """Make an object again from its configuration.

        Raises
        ------
        InputError
            For a custom one whose class is not registered or is another than that of the run, for
            a configuration that does not hold all of it, and for parameters that do not fit.
        """
        if not isinstance(config, dict):
            raise InputError(
                f"{self.kind} is {shown(config)}: expected its name, or what {self.kind}_config "
                "returns"
            )
        name, custom = config.get("name"), is_custom_config(config)
        cls = self.classes.get(name) if isinstance(name, str) else None
        if cls is not None and custom and self._is_of_wflow(cls):
            cls = None  # a custom class with the name of one of wflow
        if cls is None and not custom and "sha256" not in config:
            known = [each for each in self.classes if each != self.base.__name__]
            hint = did_you_mean(str(name), known) or f": expected one of {', '.join(known)}"
            raise InputError(
                f"no {self.noun} is registered as {shown(name)}{hint} (of your own, import the "
                f"module that registers it, {self._remedy})"
            )
        missing = (cls or self.base).missing_in(config)
        if not missing and cls in (None, self.base):
            missing = _FUNCTIONS
        if missing or cls is None:
            what = "is custom" if custom else "cannot be made again"
            hint = ", or import the module whose class is registered"
            hint = f"{hint} ({self.where}.register)" if self.where else ""
            raise InputError(
                f"the {self.kind} {name!r} {what}: its configuration lacks {missing}; "
                f"{self._remedy}{hint if custom else ''}"
            )
        try:
            thing = cls.from_config({key: config[key] for key in config if key not in _IDENTITY})
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            raise InputError(
                f"the {self.kind} {name!r} cannot be made from its parameters: {error}"
            ) from None
        if custom or self.is_custom(thing):
            self._check_remade(config, thing)
        return thing

    def _check_remade(self, config: Mapping[str, Any], thing: Any) -> None:
        """Raise InputError unless an object made from a configuration is the one described."""
        name = config["name"]
        if not isinstance(thing, self.base):
            raise InputError(
                f"{name}.from_config returned a {type(thing).__name__}: expected the {self.noun}"
            )
        check_comparable({self.kind: config})
        stored, now = config.get("fingerprint"), self.config(thing).get("fingerprint")
        if stored != now:
            left_out = "" if of_bytecode(stored) else ", or its to_config leaves out a parameter"
            raise InputError(
                f"the registered {self.kind} {name!r} differs from that of the run in fingerprint "
                f"({why_different(stored, now)}){left_out}; {self._remedy}"
            )


@cache  # asked in every evaluation
def _stands_in_wflow(cls: type) -> bool:
    module = sys.modules.get(cls.__module__) if cls.__module__.startswith("wflow.") else None
    return getattr(module, cls.__name__, None) is cls


def is_custom_config(config: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return whether the configuration of a part of a run is that of a custom object."""
    return isinstance(config, Mapping) and "fingerprint" in config


def check_comparable(config: Mapping[str, Any]) -> None:
    """Raise InputError for a run that cannot be resumed, because of a custom part of it.

    config : of the run
    """
    kind, reason = _not_comparable(config)
    if reason:
        raise InputError(
            f"cannot tell whether the {kind} is the one that began this run, because {reason}; "
            "build it from functions, numbers and arrays, or start again with --overwrite (in "
            "Python: if_exists='overwrite')"
        )


def warn_not_comparable(config: Mapping[str, Any]) -> None:
    """Warn at the start of a run that cannot be resumed, because of a custom part of it.

    config : of the run
    """
    _, reason = _not_comparable(config)
    if reason:
        warn(f"this run cannot be resumed because {reason}", WflowWarning)


def warn_changed_itself(config: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Warn at the end of a run of which a custom part is no longer the one that began it.

    Parameters
    ----------
    config, now : configuration of the run at its start and at its end
    """
    for kind in _NAMED:
        begun, ended = config.get(kind), now.get(kind)
        if not is_custom_config(begun) or begun["fingerprint"] is None:
            continue
        if not is_custom_config(ended) or ended["fingerprint"] != begun["fingerprint"]:
            warn(
                f"the {kind} changed itself while it ran (its fingerprint differs): resume or "
                "run again with a new instance of it",
                WflowWarning,
            )


def _not_comparable(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the part of a run that cannot be compared, and why; "" twice if there is none."""
    for kind in _NAMED:
        part = config.get(kind)
        if is_custom_config(part) and part["fingerprint"] is None:
            reason = part.get("not_comparable", f"its {kind} holds values that cannot be compared")
            return kind, str(reason)
    return "", ""
