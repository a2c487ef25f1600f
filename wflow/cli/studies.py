"""Studies by their names: the list of them, their titles, and how one is run.

A study is a script in `studies/` or one of its folders, which Python runs as a file; its name is
that of the file. A wheel carries a copy of the folder.
"""

import ast
import os
import runpy
import sys
from pathlib import Path

from wflow._core.errors import InputError
from wflow._core.invocation import started_as
from wflow._core.printable import printable

_PACKAGE = Path(__file__).resolve().parents[1]
_SUBJECTS = {
    ".": "Transformers as interacting particles, [MHT]",
    "ott": "Transformers in continuous time with transport cost, [OTT]",
    "rwpo": "Sparse transformers and the proximal operator, [RWPO]",
    "control": "Training by Pontryagin's principle, [GPTOC]",
}  # of the folders of studies
_PLACES = (_PACKAGE / "_studies", _PACKAGE.parent / "studies")  # of a wheel, of a checkout


def folder() -> Path:
    """Return the folder of the scripts.

    Raises
    ------
    InputError
        Where this copy of wflow has none.
    """
    for place in _PLACES:
        if place.is_dir():
            return place
    raise InputError(
        f"this copy of wflow, {_PACKAGE}, has no studies: expected them in {_PLACES[0]} or "
        f"{_PLACES[1]}; install the wheel, or a checkout by pip install -e ."
    )


def scripts() -> dict[str, Path]:
    """Return the script of every study by its name, sorted."""
    found = {file.stem: file for file in folder().glob("**/[a-z]*.py")}
    return dict(sorted(found.items()))


def names() -> list[str]:
    """Return the names of all studies, sorted."""
    return list(scripts())


def _described(script: Path) -> tuple[str, str]:
    """Return title and presets of a study, with their durations, from its text: nothing is run."""
    module = ast.parse(script.read_text(encoding="utf-8"))
    fields = {
        ast.unparse(node.target): node.value
        for node in ast.walk(module)
        if isinstance(node, ast.AnnAssign)
    }
    durations = ast.literal_eval(fields.get("durations") or "{}")
    presets = fields.get("presets")
    if isinstance(presets, ast.Dict):
        durations |= {ast.literal_eval(key): "" for key in presets.keys if key} | durations
    taken = [": ".join(filter(None, preset)) for preset in durations.items()]
    return (ast.get_docstring(module) or "").partition("\n")[0], "; ".join(taken)


def listing() -> str:
    """Return what `wflow study list` prints: folders with their studies, titles, and presets."""
    studies = scripts()
    width = max(map(len, studies))
    groups: dict[str, list[str]] = {group: [] for group in _SUBJECTS}
    for name, file in studies.items():
        group = str(file.parent.relative_to(folder()))
        title, presets = _described(file)
        lines = groups.setdefault(group, [])
        lines.append(f"  {name:<{width}}  {title}")
        if presets:
            lines.append(f"  {'':<{width}}    --preset {presets}")
    filled = {group: lines for group, lines in groups.items() if lines}
    return "\n".join("\n".join([_SUBJECTS.get(g, g), *lines]) for g, lines in filled.items())


def check_name(name: str) -> None:
    """Refuse a name that no study has.

    Raises
    ------
    InputError
        That names the study that was probably meant.
    """
    every = "`wflow study list` names all"
    if name == "list":
        raise InputError("`wflow study list` takes no flags")
    if not name or name.startswith("-"):
        raise InputError(f"expected the name of a study before its flags: {every}")
    if name not in names():
        stem = Path(name).name.removesuffix(".py")  # of studies/ou_heads.py, too
        from wflow._core.checks import did_you_mean  # loads NumPy

        known = ["list", *names()]
        hint = f"; did you mean {stem}?" if stem in known else did_you_mean(stem, known)
        raise InputError(f"there is no study {name!r}{hint or f': {every}'}")


def run(name: str = "", *flags: str) -> int:
    """Run a study as `python studies/NAME.py` does, in this process.

    Parameters
    ----------
    name : str
        Name of the study.
    *flags : str
        Its command line. Summary and run files record it after `wflow study NAME`.

    Returns
    -------
    int
        Exit status of the script.

    Raises
    ------
    InputError
        For a name that no study has.
    """
    check_name(name)
    script = scripts()[name]
    argv, path = sys.argv, sys.path
    sys.argv, sys.path = [str(script), *flags], [str(script.parent), *path]  # as for a script
    try:
        with started_as("wflow", "study", name):
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as stop:
        return _status(stop)
    finally:
        sys.argv, sys.path = argv, path
    return os.EX_OK


def _status(stop: SystemExit) -> int:
    """Return the exit status that Python makes of the argument of `sys.exit`."""
    if isinstance(stop.code, str):
        print(printable(stop.code), file=sys.stderr)
        return 1
    return stop.code or os.EX_OK  # None: no fault
