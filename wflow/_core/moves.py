"""Public names that have moved, which keep working for some versions with a DeprecationWarning."""

from collections.abc import Callable
from typing import Any

MOVES = {
    "wflow.nets.train.Team": "wflow.nets.train.Processes",
    "wflow.nets.train.team": "wflow.nets.train.process_group",
    "wflow.study.count_steps": "wflow._core.checks.count_steps",
    "wflow.study.number": "wflow._core.checks.number",
    "wflow.study.positive": "wflow._core.checks.positive",
    "wflow.study.whole": "wflow._core.checks.whole",
    "wflow.study.networks.kept": "wflow.study.networks.cached_record",
    "wflow.study.networks.in_first": "wflow.study.networks.on_rank_zero",
}
"""What users wrote, and where it is now; `docs/guide/moves.md` lists them with what to do."""


def moved_names(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module, which finds the names that have moved from it.

    Parameters
    ----------
    module : str
        Name of the module, as users write it.

    Returns
    -------
    callable
        Takes the name of an attribute and returns what it is now, with a DeprecationWarning.
    """

    def found(name: str) -> Any:
        old = f"{module}.{name}"
        if old not in MOVES:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        import warnings
        from pkgutil import resolve_name

        warnings.warn(f"{old} has moved to {MOVES[old]}", DeprecationWarning, stacklevel=2)
        return resolve_name(MOVES[old])

    return found
