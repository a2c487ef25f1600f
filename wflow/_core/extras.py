"""The name under which wflow is installed, and messages about missing extras.

On the package index the name wflow belongs to another project: every message names the
distribution, by `install`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from wflow._core.errors import InputError

DISTRIBUTION = "wflow-transformers"


def install(extra: str) -> str:
    """Return the command that installs an extra.

    Parameters
    ----------
    extra : str
        Name of the extra, such as "nets".

    Returns
    -------
    str
        The command, for a message: it holds a space, so a colon should precede it.
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def required(module: str, extra: str, purpose: str, otherwise: str = "") -> Any:
    """Import a module that an extra brings.

    Parameters
    ----------
    module : str
        Its name, such as "safetensors.torch".
    extra : str
        Name of the extra.
    purpose : str
        What needs it, a plural for the message.
    otherwise : str, default ""
        What to do in place of installing it.

    Returns
    -------
    module
        The module.

    Raises
    ------
    InputError
        Where it cannot be imported; the message has the command that installs the extra.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            f"{purpose} need the package {module.partition('.')[0]}, which cannot be imported "
            f"({error}); install it with: {install(extra)}{otherwise and f', or {otherwise}'}"
        ) from None


def missing(packages: dict[str, str]) -> list[str]:
    """Name the packages that are not installed, without importing any.

    Parameters
    ----------
    packages : dict of str to str
        Name of a package, as it is imported, and the extra that brings it.

    Returns
    -------
    list of str
        For each that is missing a sentence with the command that installs its extra.
    """
    return [
        f"{name} is not installed here; the extra {extra} brings it: {install(extra)}"
        for name, extra in packages.items()
        if not _is_there(name)
    ]


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        return False
