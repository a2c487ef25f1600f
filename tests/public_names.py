"""The public names of the package, and whether their docstrings are in numpydoc form.

    python tests/public_names.py              all rooms (in `make lint`)
    python tests/public_names.py wflow.nets   the names below one or several rooms

`docs/_ext/api_pages.py` makes the pages of the API reference from the same `rooms` and `names_of`.
A public name is one in `__all__` of `wflow`, of the modules and packages that are its attributes,
and of those that these name in turn; with the methods and properties of its classes, and the
classes that are attributes of a function (`wflow.verify.Report`). The rules are
`[tool.numpydoc_validation]` in pyproject.toml, and five that numpydoc does not have:

    WF01  a function or class of a room has an Examples section with a doctest
    WF02  what raises InputError, or calls a check of arguments, has a Raises section that says when
    WF03  sources stand under References, and each of them is cited in the text
    WF04  |x| stands in a formula or in ``|x|``: as plain text it is a substitution for Sphinx
    WF05  a default in the type of a parameter, as in `float, default 1e-3`, is that of the code
"""

import ast
import functools
import importlib
import inspect
import itertools
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_OPTIONAL = {"torch", "distributed"}  # a room that needs one of them is left out without it


class PublicName(NamedTuple):
    """A public function, class, method or property.

    room : the module or package of which it is an attribute, such as "wflow.heads"
    name : as users write it, such as "wflow.heads.HeadLaw.drift"
    thing : the object, of a class method its function
    member : whether it belongs to a class
    """

    room: str
    name: str
    thing: Any
    member: bool


def rooms() -> dict[str, ModuleType]:
    """`wflow` and the modules and packages that hold its public names, by the names users write."""
    import wflow

    found = {"wflow": wflow}
    waiting = ["wflow"]
    while waiting:
        room = waiting.pop()
        for name, thing in names_of(found[room]).items():
            if inspect.ismodule(thing):
                found[f"{room}.{name}"] = thing
                waiting.append(f"{room}.{name}")
    return dict(sorted(found.items()))


def names_of(module: ModuleType) -> dict[str, Any]:
    """Public names of a module with what they name, but for those that lack an optional library."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, thing in vars(module).items()
            if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
        ]
    found = {}
    for name in names:
        try:
            found[name] = getattr(module, name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _OPTIONAL:
                raise
            continue
        if inspect.isfunction(found[name]):
            inner = vars(found[name]).items()
            found |= {f"{name}.{each}": cls for each, cls in inner if inspect.isclass(cls)}
    return found


def public_names() -> Iterator[PublicName]:
    """Yield every public function and class of the rooms, each followed by its methods."""
    for room, module in rooms().items():
        for name, thing in names_of(module).items():
            if getattr(type(thing), "__name__", "") == "CPUDispatcher":
                thing = thing.py_func
            if not (inspect.isfunction(thing) or inspect.isclass(thing)):
                continue  # a module, a constant, a type of an argument
            yield PublicName(room, f"{room}.{name}", thing, False)
            if inspect.isclass(thing):
                yield from _members(room, f"{room}.{name}", thing)


def _members(room: str, name: str, cls: type) -> Iterator[PublicName]:
    """Methods and properties that wflow gives a class, without those that only override one."""
    for attribute in dir(cls):
        home = next((base for base in cls.__mro__ if attribute in vars(base)), object)
        if attribute.startswith("_") or not home.__module__.startswith("wflow"):
            continue
        member = vars(home)[attribute]
        if isinstance(member, classmethod | staticmethod):
            member = member.__func__
        if not isinstance(member, FunctionType | property | functools.cached_property):
            continue
        if not member.__doc__ and inspect.getdoc(getattr(cls, attribute)):
            continue  # described where the method is introduced
        yield PublicName(room, f"{name}.{attribute}", member, True)


def faults(public: PublicName) -> list[str]:
    """Return what a docstring lacks, as lines of a code and a text."""
    from numpydoc.docscrape import get_doc_object
    from numpydoc.validate import Validator, error, validate

    class Checker(Validator):
        """Takes the fields of a class from Attributes as well, where users make none of it."""

        @property
        def doc_all_parameters(self) -> Any:
            sections = ["Parameters", "Other Parameters"]
            return self._doc_parameters(sections + ["Attributes"] * inspect.isclass(self.obj))

        @property
        def parameter_mismatches(self) -> list[tuple[str, str]]:
            if inspect.isclass(self.obj) and issubclass(self.obj, BaseException):
                return []
            if isinstance(self.obj, property | functools.cached_property):
                return []
            given = list(inspect.signature(self.obj).parameters.values())
            given = [_STARS.get(each.kind, "") + each.name for each in given][public.member :]
            documented = [name.replace("\\", "") for name in self.doc_parameters]
            documented += [name.replace("\\", "") for name in self.doc_other_parameters]
            attributes = set(self.doc_all_parameters) - set(documented)
            if inspect.isclass(self.obj):
                attributes |= _described_fields(self.obj)
            missing = [name for name in given if name not in documented and name not in attributes]
            extra = [name for name in documented if name not in given]
            if missing or extra:
                found = [error("PR01", missing_params=", ".join(missing))] if missing else []
                return found + ([error("PR02", unknown_params=", ".join(extra))] if extra else [])
            order = [name for name in given if name in documented]
            if order != documented:
                return [error("PR03", actual_params=order, documented_params=documented)]
            return []

    checker = Checker(get_doc_object(public.thing, config={"show_class_members": False}))
    errors = validate(public.name, validator_cls=lambda obj_name: checker)["errors"]
    lines = [f"{code} {text}" for code, text in errors if code in _rules()]
    if checker.raw_doc:
        lines += _own_faults(public, checker)
    return lines


def _described_fields(cls: type) -> set[str]:
    """Return fields with a text of their own, a string below them or the `help` of a flag."""
    found = set[str]()
    for base in cls.__mro__[:-1]:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError):
            continue
        body = getattr(tree, "body", [])
        for field, below in itertools.pairwise([*body, None]):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                if text or "help=" in ast.unparse(field.annotation):
                    found.add(field.target.id)
    return found


@functools.cache
def _rules() -> set[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return set(settings["tool"]["numpydoc_validation"]["checks"])


def _own_faults(public: PublicName, checker: Any) -> list[str]:
    doc, lines = checker.clean_doc, []
    if not public.member and ">>> " not in "\n".join(checker.examples):
        lines.append("WF01 No Examples section with a doctest")
    if not checker.doc["Raises"] and _checks_arguments(public.thing):
        lines.append("WF02 No Raises section, and the code raises InputError")
    if re.search(r"^Source:|\bSource: |\[(MHT|GLPR|OTT1?|RWPO|GPTOC|BKKRW)\]", doc, re.MULTILINE):
        lines.append("WF03 A source stands outside References")
    for label in re.findall(r"^\.\. \[(\w+)\]", doc, re.MULTILINE):
        if f"[{label}]_" not in doc:
            lines.append(f"WF03 Reference [{label}] is not cited in the text")
    if _substitutions(doc):
        lines.append(f"WF04 Not in a formula or in double backticks: {_substitutions(doc)[0]}")
    if not isinstance(public.thing, property | functools.cached_property):
        lines += _wrong_defaults(public.thing, checker.doc_parameters)
    return lines


def _wrong_defaults(thing: Any, documented: dict[str, Any]) -> Iterator[str]:
    try:
        parameters = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return
    for name, (kind, _) in documented.items():
        said = re.search(r"\bdefault(?: is|:|=)? *(.+)", kind)
        if name not in parameters or said is None:
            continue
        try:
            right = ast.literal_eval(said[1]) == parameters[name].default
        except (SyntaxError, ValueError):  # in words, or the name of a constant
            right = parameters[name].default is not inspect.Parameter.empty
        if not right:
            default = parameters[name].default
            yield f"WF05 Parameter {name!r} has the default {default!r}, and its type is {kind!r}"


def _substitutions(doc: str) -> list[str]:
    """What Sphinx takes for the name of a substitution, outside formulas, literals and examples."""
    text = doc.partition("\nExamples\n--------")[0]
    text = re.sub(r"^( *)\.\. math::.*(?:\n\1 +.*|\n(?=\n\1 ))*", "", text, flags=re.MULTILINE)
    return re.findall(r"\|\S(?:[^|\n]*\S)?\|", re.sub(r"``[^`]*``|:math:`[^`]*`", "", text))


def _checks_arguments(thing: Any) -> bool:
    """Whether the code of a function, or of the making of an object, may raise InputError."""
    if inspect.isclass(thing):
        made_by = [vars(thing).get(name) for name in ("__init__", "__post_init__")]
        return any(_checks_arguments(each) for each in made_by if inspect.isfunction(each))
    if isinstance(thing, property | functools.cached_property):
        return False
    checks = importlib.import_module("wflow._core.checks")
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(thing))))
    except (OSError, TypeError, SyntaxError):  # generated, as by a dataclass
        return False
    globals_ = inspect.unwrap(thing).__globals__
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        called = globals_.get(node.func.id)
        if node.func.id == "InputError":
            return True
        if inspect.isfunction(called) and called.__module__ == checks.__name__:
            return called.__name__ not in ("shown", "read_only", "reading")  # which refuse nothing
    return False


def main(asked: list[str]) -> int:
    """Print the faults of the rooms asked for; 1 where there are any."""

    def wanted(name: str) -> bool:
        return not asked or any(name == room or name.startswith(f"{room}.") for room in asked)

    seen, count, bad = set[int](), 0, 0
    for room, module in rooms().items():
        words = _substitutions(inspect.getdoc(module) or "") if wanted(room) else []
        bad += bool(words)
        for word in words:
            print(f"{room}: WF04 Not in a formula or in double backticks: {word}")
    for public in public_names():
        if not wanted(public.name) or id(public.thing) in seen:
            continue
        seen.add(id(public.thing))
        count += 1
        found = faults(public)
        bad += bool(found)
        for line in found:
            print(f"{public.name}: {line}")
    print(f"{count} public functions, classes and methods, {bad} with faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main(sys.argv[1:]))
