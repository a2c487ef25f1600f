"""The API reference: a page for every public name, made from the docstrings when the site is built.

Which names are public is said by `tests/public_names.py`. A name is documented where users import
it (`wflow.jko.step`), not where it is defined. `names()` lists them, for the pages here and for the
tests of the finished site.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from numpy.typing import ArrayLike
from numpydoc.xref import DEFAULT_LINKS
from sphinx.addnodes import pending_xref
from sphinx.errors import PycodeError
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.inspect import signature, stringify_signature
from sphinx.util.typing import stringify_annotation

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
import public_names

# Rooms in the order of the page, with what is in them; a room that is not named here comes last.
GROUPS = {
    "Simulation": {
        "wflow": "Solving, run files and their checks, energies of one cloud, errors, citations",
        "wflow.tokens": "Clouds of tokens to start from",
        "wflow.losses": "Losses of `wflow.gradient`, with their derivatives",
        "wflow.inference": "Heads and parameters of their laws from observed tokens",
        "wflow.control": "Heads that carry tokens to a target",
        "wflow.interop": "Runs as differentiable functions of torch and JAX",
        "wflow.heads": "Head laws, and heads of (Q, K, V)",
        "wflow.flows": "Flows, and how to define one",
        "wflow.sphere": "Projection, normalisation, geodesics",
        "wflow.meanfield": "The mean-field equation: meshes, densities, their solver",
        "wflow.distributed": "Paths spread over processes and machines",
    },
    "Geometry": {
        "wflow.transport": "Wasserstein distances, plans and metrics",
        "wflow.metric": "Action, metric derivative, weighted distance",
        "wflow.jko": "Minimizing movements",
    },
    "Analysis": {
        "wflow.clusters": "Clusters, order, entropy, stationarity",
        "wflow.equilibria": "Extremal energies and measures",
        "wflow.stationary": "Stationary laws of tokens that diffuse, their branches and stability",
        "wflow.stability": "Growth of the distance between two flows",
        "wflow.fits": "Lines, power laws, means and errors",
    },
    "Figures and studies": {
        "wflow.plots": "Figures of runs",
        "wflow.study": "The frame of a study: flags, session, findings",
    },
    "Networks": {
        "wflow.nets": "Continuous-time transformers and networks in torch",
    },
}
ORDER = [room for group in GROUPS.values() for room in group]


@dataclass(frozen=True)
class Name:
    """A public name: where users find it, and what it is."""

    room: str  # module, under its public name
    name: str
    value: Any

    @property
    def path(self) -> str:
        return f"{self.room}.{self.name}"

    @property
    def kind(self) -> str:
        if inspect.isclass(self.value):
            return "exception" if issubclass(self.value, BaseException) else "class"
        return "function" if inspect.isroutine(self.value) else "data"


_KNOWN: set[str] = set()  # what a page may link to
_PATHS: dict[
    str, str
] = {}  # public paths of classes, by their last names and where they are defined


def rooms() -> dict[str, ModuleType]:
    """The public modules by their public names, in the order of the pages."""

    def place(room: str) -> tuple[int, str]:
        home = ".".join(room.split(".")[:2])
        return (ORDER.index(home) if home in ORDER else len(ORDER)), room

    found = public_names.rooms()
    return {room: found[room] for room in sorted(found, key=place)}


def names() -> list[Name]:
    """Every public name, in the order of the rooms."""
    modules = rooms()
    return [
        Name(room, name, value)
        for room, module in modules.items()
        for name, value in sorted(public_names.names_of(module).items())
        if f"{room}.{name}" not in modules
    ]


def members(cls: type) -> list[str]:
    """Public methods and documented attributes of a class, those of its bases in wflow included."""
    found: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith("wflow"):
            continue
        try:
            commented = ModuleAnalyzer.for_module(base.__module__).find_attr_docs()
        except PycodeError:
            commented = {}
        found |= {
            name: None
            for where, name in commented
            if where == base.__qualname__ and not name.startswith("_")
        }
        for name, value in vars(base).items():
            method = inspect.isroutine(value) or isinstance(
                value, property | classmethod | staticmethod
            )
            if name.startswith("_") or not method:
                continue
            if (inspect.getdoc(getattr(cls, name)) or "").startswith("Alias for field"):
                continue
            if inspect.getdoc(getattr(cls, name)):
                found[name] = None
    return list(found)


def comment_of(module: ModuleType, name: str) -> str:
    """The comment of a constant: on its line, or directly above."""
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError):
        return ""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if not any(isinstance(target, ast.Name) and target.id == name for target in targets):
            continue
        tail = lines[node.end_lineno - 1][node.end_col_offset :]
        if "#" in tail:
            return tail.split("#", 1)[1].strip(" :")
        above = []
        for line in reversed(lines[: node.lineno - 1]):
            if not line.startswith("#"):
                break
            above.append(line.lstrip("#: "))
        return " ".join(reversed(above))
    return ""


def title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n\n"


def page_name(name: Name, listed: list[Name]) -> str:
    """The name of the page of a name: some file systems take W2 and w2 for one."""
    taken = any(other.path == name.path.lower() != name.path for other in listed)
    return f"{name.path}.{name.kind}" if taken else name.path


def page_of_name(name: Name, shown: dict[int, Name]) -> str:
    """The page of a class, function or error; of the second name of an object, a pointer."""
    text = title(name.path) + f".. currentmodule:: {name.room}\n\n"
    first = shown.setdefault(id(name.value), name)
    if first is not name:
        role = "func" if name.kind == "function" else "class"
        directive = "py:function" if name.kind == "function" else f"py:{name.kind}"
        call = "(...)" if name.kind == "function" else ""
        text += f".. {directive}:: {name.name}{call}\n\n"
        return text + f"   The same as :{role}:`{first.path}`.\n"
    if name.kind == "function":
        text += f".. autofunction:: {name.name}\n"
    else:
        home = f"{name.room}::" * ("." in name.name)  # an attribute of a function
        text += f".. auto{name.kind}:: {home}{name.name}\n"
        if listed := members(name.value):
            text += f"   :members: {', '.join(listed)}\n"
    return text + f"\n.. minigallery:: {name.path}\n   :add-heading: Examples in the gallery\n"


def page_of_room(room: str, module: ModuleType, listed: list[Name], inner: list[str]) -> str:
    text = title(room)
    text += f".. automodule:: {room}\n   :no-members:\n\n.. currentmodule:: {room}\n\n"
    headings = {"class": "Classes", "function": "Functions", "exception": "Errors"}
    for kind, heading in headings.items():
        of_kind = [name for name in listed if name.kind == kind]
        if of_kind:
            text += f".. rubric:: {heading}\n\n.. autosummary::\n\n"
            text += "".join(f"   {name.name}\n" for name in of_kind) + "\n"
    constants = [name for name in listed if name.kind == "data"]
    if constants:
        text += ".. rubric:: Constants\n\n"
        for name in constants:
            value = textwrap.shorten(repr(name.value), 160)
            text += f".. py:data:: {name.name}\n   :value: {value}\n\n"
            text += f"   {comment_of(module, name.name)}\n\n"
    pages = [page_name(name, listed) for name in listed if name.kind != "data"]
    if pages or inner:
        text += ".. toctree::\n   :hidden:\n\n"
        text += "".join(f"   {page}\n" for page in [*inner, *pages])
    return text


def page_of_all(found: dict[str, ModuleType]) -> str:
    text = title("API")
    text += (
        "Every public name has a page, made from its docstring. Import names from where they are "
        "listed here; the modules behind them may move. Arrays are NumPy's, and results are "
        "datasets of xarray.\n\n"
    )
    top = [room for room in found if room.count(".") <= 1]
    placed = {room for group in GROUPS.values() for room in group}
    groups = {**GROUPS, "Other": {room: "" for room in top if room not in placed}}
    for group, contents in groups.items():
        present = {room: what for room, what in contents.items() if room in found}
        if not present:
            continue
        text += f".. rubric:: {group}\n\n.. list-table::\n   :widths: 30 70\n\n"
        for room, what in present.items():
            text += f"   * - :doc:`{room} <{room}>`\n     - {what}\n"
        text += "\n.. toctree::\n   :hidden:\n\n"
        text += "".join(f"   {room}\n" for room in present) + "\n"
    return text


def write(folder: Path) -> None:
    """Write the pages, touch none that is as it was, and remove those of names that are gone."""
    found, everything = rooms(), names()
    shown: dict[int, Name] = {}
    pages = {"index": page_of_all(found)}
    for room, module in found.items():
        listed = [name for name in everything if name.room == room]
        inner = [other for other in found if other.rpartition(".")[0] == room and room != "wflow"]
        pages[room] = page_of_room(room, module, listed, inner)
        for name in listed:
            if name.kind != "data":
                pages[page_name(name, listed)] = page_of_name(name, shown)
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.rst"):
        if old.stem not in pages:
            old.unlink()
    for page, text in pages.items():
        file = folder / f"{page}.rst"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def _before_reading(app: Any, config: Any) -> None:
    for room, module in rooms().items():
        sys.modules.setdefault(room, module)  # autodoc imports wflow.jko
        missing = {*getattr(module, "__all__", ())} - {*public_names.names_of(module)}
        if missing:
            listed = ", ".join(sorted(missing))
            print(f"no pages of {listed} in {room}: its library is missing", file=sys.stderr)
    write(Path(app.confdir) / "api")
    _KNOWN.update(name.path for name in names())
    _KNOWN.update(rooms())
    classes = [name for name in names() if name.kind in ("class", "exception")]
    for name in reversed(classes):  # the first path of a class has its page
        _PATHS[f"{name.value.__module__}.{name.value.__qualname__}"] = name.path
    last_names = Counter(path.rpartition(".")[2] for path in _PATHS.values())
    for path in [*_PATHS.values()]:
        if last_names[last := path.rpartition(".")[2]] == 1:
            _PATHS[last] = path
    # Types of parameters: names of classes here are links, and no others are.
    config.numpydoc_xref_aliases = {word: word for word in DEFAULT_LINKS} | {
        name.path: f":class:`{name.path}`" for name in classes
    }


def _find_class(app: Any, env: Any, node: pending_xref, content: nodes.Node) -> Any:
    """Link `Frozen`, and the type of a signature by the private module that defines it."""
    path = _PATHS.get(node.get("reftarget", ""))
    if node.get("refdomain") != "py" or path is None:
        return None
    place = node["refdoc"], app.builder, "class", path, node, content
    return env.domains["py"].resolve_xref(env, *place)


def _shorten(
    app: Any, what: str, name: str, value: Any, options: Any, given: str | None, back: str | None
) -> Any:
    """Write types by their public paths, and leave out those of flags, which are annotated."""
    if given and "tyro." in given:
        return stringify_signature(signature(value), show_annotation=False), None
    array = stringify_annotation(ArrayLike, "smart")
    home = getattr(value, "__globals__", {})

    def public(found: re.Match[str]) -> str:
        cls = home.get(found[0])
        path = _PATHS.get(f"{cls.__module__}.{cls.__qualname__}") if inspect.isclass(cls) else None
        return path or found[0]

    return tuple(
        text and re.sub(r"(?<![\w.~'])[A-Z]\w*\b(?!\()", public, text.replace(array, "ArrayLike"))
        for text in (given, back)
    )


def _link_names(app: Any, doctree: nodes.document) -> None:
    """Link `wflow.solve` in code of a page to its page here."""
    for literal in list(doctree.findall(nodes.literal)):
        text = literal.astext()
        if text in _KNOWN and not isinstance(literal.parent, nodes.reference | pending_xref):
            link = pending_xref("", refdomain="py", reftype="obj", reftarget=text)
            link["refdoc"] = app.env.docname
            literal.replace_self(link)
            link += literal


def setup(app: Any) -> dict[str, Any]:
    app.connect("config-inited", _before_reading, priority=400)  # before numpydoc
    app.connect("autodoc-process-signature", _shorten)
    app.connect("doctree-read", _link_names)
    app.connect("missing-reference", _find_class)
    return {"parallel_read_safe": True}
