"""Fingerprint of a custom head law, flow or metric: a digest of its data and its code.

What such an object reaches is a graph: an object leads to its attributes and its class, a class to
its bases and attributes, a function to its code, defaults, closure and the globals that it reads
(`encode`), a container to its items. The digest of a node is that of its data and of the digests of
what it leads to, so two objects have the same digest exactly if their graphs unfold to the same
tree. Names of functions and local variables, comments, docstrings, annotations, line
numbers, files, and the order of sets, attributes, keyword arguments and definitions do not enter;
the order of dicts does, since code can read it. The standard library, installed packages and wflow
enter by name and version.

Code enters as bytecode, which is there also for functions typed into a notebook, and which differs
between versions of Python: the digest says which one made it.
"""

import builtins
import copyreg
import dis
import functools
import hashlib
import importlib
import io
import os
import random
import sys
import sysconfig
import types
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

# Code: bytecode without what does not count, and the names it reads
# ------------------------------------------------------------------

Piece = bytes | int  # data, or the number of another object

# Instructions that only prepare what follows, or mark lines.
_IDLE = {"CACHE", "EXTENDED_ARG", "NOP", "RESUME", "NOT_TAKEN"}
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_CELLS = {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_IMPORTS = {"IMPORT_NAME", "IMPORT_FROM", "POP_TOP"}  # what precedes the storing of a module
# What a class statement stores beside what its body says.
_TEXT_OF_CLASS = {"__qualname__", "__doc__", "__firstlineno__", "__static_attributes__"}
_OF_MODULE = {
    "__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__", "__path__",
    "__builtins__", "__cached__", "__annotations__", "__debug__",
}  # fmt: skip
# *args, **kwargs, generator, coroutine, asynchronous generator: what changes how a call behaves.
_FLAGS = 0x04 | 0x08 | 0x20 | 0x80 | 0x200
_MISSING = object()


@dataclass(frozen=True)
class Named:
    """Something of an installed package, identified by its name."""

    module: str
    name: str


@dataclass(frozen=True, eq=False)
class Use:
    """An object that a function reads: a global, a variable that it closes over, or a part of one.

    path : the name by which the code reads it, such as `table` or `module.helper`
    value : the object; `Named` for parts of installed packages
    closed : whether the function closes over it
    """

    path: str
    value: Any
    closed: bool


def encode(code: CodeType, constant: Callable[[Any], Piece]) -> list[Piece]:
    """Code as data: instructions with what they refer to, and the parameters.

    Local variables are numbers, jumps lead to instructions by their position. Constants that no
    instruction loads, such as a docstring, are left out.
    """
    instructions = _instructions(code)
    offsets = [instruction.offset for instruction in instructions]
    jumps = {*dis.hasjrel, *dis.hasjabs}
    count = code.co_argcount + code.co_kwonlyargcount
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    text = [f"{counts} {code.co_varnames[:count]} {code.co_flags & _FLAGS}"]
    text.append(code.co_exceptiontable.hex())
    pieces: list[Piece] = []
    for instruction in instructions:
        name, value = instruction.opname, instruction.argval
        if name == "KW_NAMES":
            value = code.co_consts[instruction.arg or 0]  # dis of Python 3.11 does not look it up
        if instruction.opcode in dis.hasconst:
            text.append(name)
            nested = isinstance(value, CodeType)
            pieces += encode(value, constant) if nested else [constant(value)]
        elif instruction.opcode in jumps:
            text.append(f"{name} to {bisect_left(offsets, value)}")
        elif instruction.opcode in dis.hasname:
            text.append(f"{name} {value}")
        else:
            text.append(f"{name} {instruction.arg}")
    return ["\n".join(text).encode("utf-8", "surrogatepass"), *pieces, b"end of code"]


def _instructions(code: CodeType) -> list[dis.Instruction]:
    kept: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in _IDLE:
            continue
        if instruction.opname == "STORE_NAME" and instruction.argval in _TEXT_OF_CLASS:
            kept.pop()  # what it stores
            continue
        kept.append(instruction)
    return kept


def uses_of(function: FunctionType) -> list[Use]:
    """What a function and the functions in it read: globals and variables that it closes over.

    Of a module, and of an object with its own attributes, only the attributes that are read.
    A variable whose use is not seen, such as that of super(), counts as a whole.
    """
    cells = dict[str, Any]()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:
            cells[name] = Named("", "a variable without a value")
    # One name may be a global in one place and an import in another.
    by_use = dict[tuple[bool, str, int], Use]()
    for use in _walk(function.__code__, cells, function.__globals__):
        by_use[use.closed, use.path, id(use.value)] = use
    uses = list(by_use.values())
    seen = {use.path.partition(".")[0] for use in uses if use.closed}
    uses += [Use(name, value, True) for name, value in cells.items() if name not in seen]
    return sorted(uses, key=lambda use: (use.closed, use.path))


def _walk(code: CodeType, cells: dict[str, Any], globals_: dict[str, Any]) -> Iterator[Use]:
    """The names that code reads, each with what it stands for now."""
    imported = dict[str, Any]()  # local variables that hold a module
    top: Use | None = None  # on top of the stack, so far as it is known
    through = ""  # the installed module that it came from
    source = fresh = None  # of the current import statement: the module, and what it gave last
    before = [None, None, None]  # arguments of the instructions before this one
    previous = ""
    for instruction in _instructions(code):
        name, value = instruction.opname, instruction.argval
        if top is not None:
            part = _part(top.value, value) if name in _ATTRIBUTES else _MISSING
            if part is not _MISSING:
                if isinstance(top.value, ModuleType) and installed(top.value.__name__):
                    through = top.value.__name__
                top = Use(f"{top.path}.{value}", part, top.closed)
                continue
            yield _final(top, through)
            top, through = None, ""
        if isinstance(fresh, ModuleType) and previous in _IMPORTS and name not in _IMPORTS:
            if name.startswith("STORE_FAST") or name == "STORE_DEREF":
                stored = value[0] if isinstance(value, tuple) else value
                imported[stored] = fresh
                cells = cells | ({stored: fresh} if name == "STORE_DEREF" else {})
            elif name != "SWAP":
                yield Use(fresh.__name__, fresh, False)
            fresh = fresh if name == "SWAP" else None
        if name in _GLOBALS and value not in _OF_MODULE:
            top = Use(value, _global(value, globals_), False)
        elif name in _CELLS and value in cells:
            top = Use(value, cells[value], True)
        elif "LOAD_FAST" in name:
            local = value[-1] if isinstance(value, tuple) else value
            if local in imported:
                top = Use(local, imported[local], False)
        elif name == "IMPORT_NAME":
            source = fresh = _import(value, before[-2] or 0, before[-1], globals_)
        elif name == "IMPORT_FROM":
            base = fresh if previous == "POP_TOP" else source  # import a.b as c; from a import b, c
            fresh = getattr(base, value, _MISSING)
            if not isinstance(fresh, ModuleType):
                where = base.__name__ if isinstance(base, ModuleType) else ""
                yield _final(Use(f"{where}.{value}", fresh, False), where)
        previous, before = name, [*before[1:], value]
    if top is not None:
        yield _final(top, through)
    for nested in code.co_consts:
        if isinstance(nested, CodeType):
            visible = {n: v for n, v in cells.items() if n in nested.co_freevars}
            yield from _walk(nested, visible, globals_)


def _part(value: Any, name: str) -> Any:
    """The attribute of an object that code reads by its name, where it is the object's own."""
    if isinstance(value, ModuleType):
        return getattr(value, name, Named("", "a name without a value"))
    if isinstance(value, type) or isinstance(type(value).__getattribute__, FunctionType):
        return _MISSING
    own = dict_of(value)
    if name not in own:
        return _MISSING
    of_class = next((vars(c)[name] for c in type(value).__mro__ if name in vars(c)), None)
    return _MISSING if hasattr(type(of_class), "__set__") else own[name]


def dict_of(value: Any) -> dict[str, Any]:
    """The attributes of an object itself, without asking its class."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return own if isinstance(own, dict) else {}


def owner_of(value: Any) -> Any:
    """The object whose method this is, None for anything else."""
    return None if hasattr(type(value), "__getattr__") else getattr(value, "__self__", None)


def _final(use: Use, through: str) -> Use:
    """What is read, by its name where it is an object of an installed package."""
    value = use.value
    if value is _MISSING:
        return Use(use.path, Named("", "a name without a value"), use.closed)
    plain = isinstance(value, ModuleType | FunctionType | type | bool | int | float | str)
    if through and installed(through) and not plain and owner_of(value) is None:
        return Use(use.path, Named(through, use.path.rpartition(".")[2]), use.closed)
    return use


def _global(name: str, globals_: dict[str, Any]) -> Any:
    if name in globals_:
        return globals_[name]
    own = globals_.get("__builtins__", builtins)
    own = vars(own) if isinstance(own, ModuleType) else own
    return own.get(name, _MISSING)


def _import(name: str, level: int, names: Any, globals_: dict[str, Any]) -> Any:
    """The module of an import statement within a function: `a` for `import a.b`."""
    package = globals_.get("__package__") or globals_.get("__name__", "")
    try:
        module = importlib.import_module("." * level + name, package if level else None)
        for part in names or ():
            if not hasattr(module, part):
                importlib.import_module(f"{module.__name__}.{part}")
    except ImportError:
        return None  # as the function may expect
    return module if names or level else sys.modules.get(name.partition(".")[0])


_STUDIES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_studies", "")


@cache
def installed(module: str) -> bool:
    """Whether a module belongs to the standard library, to an installed package, or to wflow."""
    if module == "__main__":
        return False
    top = module.partition(".")[0]
    package = sys.modules.get(top)
    file = getattr(package, "__file__", None) or getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        origin = getattr(getattr(package, "__spec__", None), "origin", None)
        return top in sys.builtin_module_names or origin in ("built-in", "frozen")
    path = os.path.abspath(file)
    if path.startswith(_STUDIES):
        return False  # scripts, as in a checkout
    if {"site-packages", "dist-packages"} & set(path.split(os.sep)):
        return True
    return any(path.startswith(folder + os.sep) for folder in _folders())


@cache
def _folders() -> frozenset[str]:
    """Folders of the standard library and of this package."""
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib") if key in paths}
    folders.add(os.path.dirname(os.__file__))
    folders.add(os.path.dirname(os.path.dirname(__file__)))
    return frozenset({os.path.abspath(p) for p in folders} | {os.path.realpath(p) for p in folders})


def identify(module: str, name: str) -> list[Piece]:
    """An object of an installed package by its name and the version of the package.

    A compiled module of the user, which has no code to look at, is identified by its file.
    """
    pieces: list[Piece] = [b"named", f"{module}:{name}".encode()]
    if installed(module):
        return [*pieces, _version(module.partition(".")[0]).encode()]
    file = getattr(sys.modules.get(module), "__file__", None)
    if file and not file.endswith(".py"):
        with open(file, "rb") as raw:
            pieces.append(hashlib.file_digest(raw, "sha256").digest())
    return pieces


@cache
def _version(package: str) -> str:
    """Version of the distribution of a package, "" for the standard library."""
    if package in sys.stdlib_module_names:
        return ""
    own = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(own, str):  # faster than reading the metadata of the installer
        return own
    names = metadata.packages_distributions().get(package, ())
    return " ".join(metadata.version(name) for name in sorted(names))


# Reads that no fingerprint covers
# --------------------------------
# Objects of modules, and how a message describes a function that reads them.

_SOURCES = {
    ("sys", "modules"): "sys.modules",
    ("os", "environ"): "os.environ",
    ("os", "environb"): "os.environb",
    ("os", "getenv"): "os.getenv",
    ("os", "getenvb"): "os.getenvb",
    ("builtins", "open"): "a file (open)",
    ("os", "open"): "a file (os.open)",
    ("numpy", "load"): "a file (numpy.load)",
    ("numpy", "loadtxt"): "a file (numpy.loadtxt)",
    ("numpy", "genfromtxt"): "a file (numpy.genfromtxt)",
    ("numpy", "fromfile"): "a file (numpy.fromfile)",
    ("numpy", "memmap"): "a file (numpy.memmap)",
    ("pandas", "read_csv"): "a file (pandas.read_csv)",
    ("h5py", "File"): "a file (h5py.File)",
    ("torch", "load"): "a file (torch.load)",
}
# Attributes whose names say what they are, whatever object they belong to.
_OUTSIDE = {
    "__globals__": "the __globals__ of an object",
    "f_globals": "the f_globals of an object",
    "read_text": "a file (read_text)",
    "read_bytes": "a file (read_bytes)",
}


def outside_read(code: CodeType, uses: Iterable[Use]) -> str:
    """What code reads that cannot be seen in it; "" for nothing.

    uses : those of the function (`uses_of`)
    """
    resolved = set()
    for use in uses:
        resolved.add(use.path.rpartition(".")[2])
        value: Any = use.value
        if isinstance(value, Named):
            value = getattr(sys.modules.get(value.module), value.name, value)
        for (module, name), description in _SOURCES.items():
            if value is getattr(sys.modules.get(module), name, _SOURCES):
                return description
    # A name that leads to a function of the user says nothing: its own code does.
    outside = sorted(names_in(code) & _OUTSIDE.keys() - resolved)
    return _OUTSIDE[outside[0]] if outside else ""


def names_in(code: CodeType) -> set[str]:
    """Names of globals and attributes in code and the code within it."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(names_in, inner))


SCHEME = 2  # that of wflow 0.1.0, which saw only a part of a law, had no number
_PYTHON = f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
_MOST = 2_000_000  # objects in a law: one with more than that has no end
# Of a class: what Python or a decorator derives from the rest, and what is text.
_DERIVED = {
    "__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__annotations__",
    "__annotations_cache__", "__annotate__", "__annotate_func__", "__firstlineno__",
    "__static_attributes__", "__abstractmethods__", "_abc_impl", "__dataclass_fields__",
    "__dataclass_params__", "__match_args__", "__orig_bases__", "__parameters__",
    "__type_params__", "__classdictcell__",
}  # fmt: skip
_ARGUMENTS = {"_drift": "drift", "_diffusion": "diffusion"}  # of HeadLaw(drift, diffusion)
_DESCRIPTORS = (
    types.MemberDescriptorType
    | types.GetSetDescriptorType
    | types.MethodDescriptorType
    | types.WrapperDescriptorType
    | types.ClassMethodDescriptorType
)
# What calls of these reach cannot be seen in the code.
_BLIND = (eval, exec, globals, __import__, importlib.import_module)
# Methods that make an object or copy it, which a run does not call on one that it is handed.
_MAKING = {
    "__new__", "__init__", "__post_init__", "__init_subclass__", "__set_name__",
    "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__",
}  # fmt: skip
_HEAP_TYPE = 1 << 9  # flag of a class that was made by Python code
_UNORDERED = b"unordered"


class NotComparable(Exception):
    """A law that cannot be compared with another; the text says because of what, and where."""


def fingerprint(value: Any) -> str:
    """Digest of an object with all data, and all code outside of packages, that it reaches.

    Parameters
    ----------
    value : a head law, a function, or any other object

    Returns
    -------
    "2:<Python version>:<128 bits>", the same in every process

    Raises
    ------
    NotComparable
        For an object whose state cannot be compared, such as a random generator.
    """
    return f"{SCHEME}:{_PYTHON}:{_digest(_Graph(value).nodes)[:32]}"


def why_different(stored: Any, given: Any) -> str:
    """Say in a few words why two fingerprints differ."""
    if stored is None or given is None:
        return "known of one of the two laws only"
    scheme, _, rest = str(stored).partition(":")
    python = rest.partition(":")[0]
    if scheme != str(SCHEME):
        return "made by another version of wflow, which compared custom laws by other rules"
    if python != _PYTHON:
        return f"made by {python}, this is {_PYTHON}, and their bytecode cannot be compared"
    return "its code or data, or the version of a package that it uses"


class _Unordered(dict[Any, Any]):
    """A dict whose order means nothing: keyword arguments, or the attributes of an object."""


@dataclass(eq=False)
class _Node:
    """An object of the graph, what it consists of, and how it was reached."""

    value: Any
    parent: int
    verb: str
    name: str
    pieces: list[Piece] = field(default_factory=list)


class _Graph:
    """All objects that an object reaches, each once; no recursion, whatever their depth."""

    def __init__(self, root: Any) -> None:
        self.nodes: list[_Node] = []
        self._places: dict[int, int] = {}  # by id; the nodes keep the objects alive
        self._globals: dict[str, dict[int, str]] = {}
        self._reads: dict[int, str] = {}  # what functions read that cannot be compared
        self._places[id(root)] = 0
        self.nodes.append(_Node(root, -1, "is", type(root).__name__))
        at = 0
        while at < len(self.nodes):
            node = self.nodes[at]
            try:
                node.pieces = self._pieces(at, node.value)
            except NotComparable:
                raise
            except Exception as error:  # inspecting an object may raise anything
                raise self._refusal(at, f"{_kind(node.value)} ({error})") from None
            at += 1
        if self._reads:
            self._refuse_reads()

    def _ref(self, parent: int, value: Any, verb: str, name: str) -> Piece:
        """The data of a simple object, or the number of another one."""
        data = _simple(value)
        if data is not None:
            return data
        at = self._places.get(id(value))
        if at is None:
            at = self._places[id(value)] = len(self.nodes)
            self.nodes.append(_Node(value, parent, verb, name))
            if at > _MOST:
                raise self._refusal(at, f"more than {_MOST} objects")
        return at

    def _refusal(self, at: int, what: str) -> NotComparable:
        """For example "drift > helper uses a random generator (`rng`)"."""
        node = self.nodes[at]
        return NotComparable(f"{self._path(node.parent)} {node.verb} {what} (`{node.name}`)")

    def _path(self, at: int) -> str:
        names = list[str]()
        while at > 0:
            names.insert(0, self.nodes[at].name)
            at = self.nodes[at].parent
        return " > ".join(names).replace(" > [", "[") or f"the law {self.nodes[0].name}"

    def _refuse_reads(self) -> None:
        """Refuse a law that reads files and the like while it runs.

        Many classes read a file in a constructor or a method that no run calls. So of a class and
        a module only those attributes count whose names appear in code that runs.
        """
        names, made = set[str](), set[int]()
        known = -1
        while known != len(names) + len(made):
            known = len(names) + len(made)
            running = self._running(names, made)
            for at in running:
                function = self.nodes[at].value
                names |= names_in(function.__code__)
                for use in uses_of(function):
                    if isinstance(use.value, type) and use.path != "__class__":  # that of super()
                        made |= {id(cls) for cls in use.value.__mro__}
        for at, what in self._reads.items():
            if at in running:
                reason = f"reads {what}, and what that holds cannot be compared"
                raise NotComparable(f"{self._path(at)} {reason}")

    def _running(self, names: set[str], made: set[int]) -> set[int]:
        """Functions outside of packages that a run reaches.

        names : attributes that it reads
        made : ids of classes of which it makes objects
        """
        seen, waiting = {0}, [0]
        while waiting:
            node = self.nodes[waiting.pop()]
            parts = {piece for piece in node.pieces if isinstance(piece, int)}
            if isinstance(node.value, type | types.ModuleType):
                used, unused = set[int](), set[int]()
                for name, value in vars(node.value).items():
                    runs = name in names
                    if isinstance(node.value, type):
                        runs = _runs(node.value, name, names, made)
                    (used if runs else unused).add(self._places.get(id(value), -1))
                parts -= unused - used
            waiting += parts - seen
            seen |= parts
        return {
            at
            for at in seen
            if isinstance(self.nodes[at].value, types.FunctionType)
            and not installed(self.nodes[at].value.__globals__.get("__name__", ""))
        }

    def _pieces(self, at: int, value: Any) -> list[Piece]:
        """What an object consists of: data, and the numbers of other objects."""
        data = _simple(value)
        if data is not None:
            return [data]
        refused = _refused(value)
        if refused:
            raise self._refusal(at, refused)
        if isinstance(value, Named):
            return identify(value.module, value.name)
        if isinstance(value, types.ModuleType):
            return self._module(at, value)
        if isinstance(value, type):
            return self._class(at, value)
        if isinstance(value, types.FunctionType):
            return self._function(at, value)
        if isinstance(value, types.CodeType):
            return self._code(at, value)
        if isinstance(value, np.ndarray):
            return self._array(at, value)
        if type(value) in (list, tuple):
            return [type(value).__name__.encode(), *self._items(at, value)]
        if type(value) in (set, frozenset):
            return [_UNORDERED, *self._items(at, value)]
        if type(value) in (dict, types.MappingProxyType, _Unordered):
            return self._mapping(at, value)
        if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
            return self._builtin(at, value)
        if isinstance(value, _DESCRIPTORS):
            owner = self._ref(at, value.__objclass__, "belongs to", value.__objclass__.__name__)
            return [b"descriptor", value.__name__.encode(), owner]
        inner = _inner(value)
        if inner is not None:
            return self._named_parts(at, type(value).__name__, inner, "calls")
        if isinstance(value, np.ufunc):
            return self._ufunc(at, value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            flat = value.detach().cpu().contiguous().resolve_conj().reshape(-1)
            data = hashlib.sha256(flat.view(torch.uint8).numpy()).digest()
            return [b"tensor", f"{tuple(value.shape)} {value.dtype}".encode(), data]
        return self._instance(at, value)

    def _items(self, at: int, values: Iterable[Any]) -> list[Piece]:
        return [self._ref(at, item, "holds", f"[{i}]") for i, item in enumerate(values)]

    def _named_parts(
        self, at: int, kind: str, parts: dict[str, Any], verb: str, *, ordered: bool = False
    ) -> list[Piece]:
        pieces: list[Piece] = [kind.encode()]
        for name in parts if ordered else sorted(parts):
            shown = _ARGUMENTS.get(name, name)
            pieces += [_text(name), self._ref(at, parts[name], verb, shown)]
        return pieces

    def _mapping(self, at: int, value: Any) -> list[Piece]:
        ordered = not isinstance(value, _Unordered)
        if all(type(key) is str for key in value):
            named = {f"[{key!r}]": item for key, item in value.items()}
            return self._named_parts(at, "dict", named, "holds", ordered=ordered)
        items = self._items(at, value.items())
        return [b"dict", *items] if ordered else [_UNORDERED, b"dict", *items]

    def _module(self, at: int, module: types.ModuleType) -> list[Piece]:
        """A module that is used as a value: which part of it is used is unknown."""
        if installed(module.__name__):
            return identify(module.__name__, "")
        own = {n: v for n, v in vars(module).items() if not (n[:2] == "__" == n[-2:])}
        return self._named_parts(at, "module", own, "has")

    def _class(self, at: int, cls: type) -> list[Piece]:
        if _is_installed(cls):
            return identify(cls.__module__, cls.__qualname__)
        pieces: list[Piece] = [b"class", cls.__name__.encode()]
        pieces.append(self._ref(at, type(cls), "has the metaclass", type(cls).__name__))
        pieces += [self._ref(at, base, "inherits", base.__name__) for base in cls.__bases__]
        own = {name: value for name, value in vars(cls).items() if name not in _DERIVED}
        return pieces + self._named_parts(at, "attributes", own, "has")

    def _code(self, at: int, code: types.CodeType) -> list[Piece]:
        return encode(code, lambda constant: self._ref(at, constant, "holds", "constant"))

    def _function(self, at: int, function: types.FunctionType) -> list[Piece]:
        """Code, defaults, what it reads and closes over, and its attributes."""
        code, pieces, uses = function.__code__, list[Piece](), list[Use]()
        home = function.__globals__.get("__name__", "")
        known = sys.modules.get(home)
        if known is not None and vars(known) is function.__globals__ and installed(home):
            pieces = identify(home, code.co_qualname)
            if "<" not in code.co_qualname:
                return pieces
            # Made within a function of a package: its name does not tell what it closes over.
            cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
            uses = [Use(name, cell.cell_contents, True) for name, cell in cells]
        else:
            uses = uses_of(function)
        pieces += [b"function", *self._code(at, code)]
        values = function.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
        defaults = dict(zip(names, values, strict=True)) | (function.__kwdefaults__ or {})
        pieces += self._named_parts(at, "defaults", defaults, "has as a default")
        for use in uses:
            if any(use.value is blind for blind in _BLIND):
                what = "and what such a call reaches cannot be seen"
                raise NotComparable(f"{self.nodes[at].name} calls {use.path}, {what}")
            verb = "closes over" if use.closed else "uses"
            pieces += [_text(use.path), self._ref(at, use.value, verb, use.path)]
        read = outside_read(code, uses)
        if read:
            self._reads[at] = read
        own = {name: value for name, value in vars(function).items() if name != "__wrapped__"}
        return pieces + self._named_parts(at, "attributes", own, "holds")

    def _builtin(self, at: int, value: Any) -> list[Piece]:
        """A function of C, or a method of an object."""
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            module = value.__module__ or getattr(owner, "__name__", "")
            return identify(module, value.__qualname__)
        method = self._ref(at, owner, "is a method of", type(owner).__name__)
        return [b"method", value.__name__.encode(), method]

    def _ufunc(self, at: int, value: np.ufunc) -> list[Piece]:
        for module in ("numpy", "scipy.special"):
            if getattr(sys.modules.get(module), value.__name__, None) is value:
                return identify(module, value.__name__)
        raise self._refusal(at, "a ufunc, whose code cannot be seen")

    def _array(self, at: int, array: np.ndarray) -> list[Piece]:
        plain = np.asarray(array)
        pieces: list[Piece] = [b"array", f"{plain.shape} {plain.dtype.descr}".encode()]
        if plain.dtype.hasobject:
            pieces += self._items(at, plain.ravel().tolist())
        else:
            flat = np.ascontiguousarray(plain).reshape(-1)
            pieces.append(hashlib.sha256(flat.view(np.uint8)).digest())  # type: ignore[arg-type]
        if isinstance(array, np.ma.MaskedArray):
            pieces.append(self._ref(at, np.ma.getmaskarray(array), "has", "mask"))
        if not _is_installed(type(array)):
            pieces.append(self._ref(at, type(array), "is of the class", type(array).__name__))
            pieces += self._named_parts(at, "attributes", vars(array), "holds")
        return pieces

    def _instance(self, at: int, value: Any) -> list[Piece]:
        """Class, attributes, and what the object returns as its state (`__reduce_ex__`)."""
        cls = type(value)
        packaged = _is_installed(cls)
        if packaged:
            name = self._names_in(cls.__module__).get(id(value))
            if name is not None:
                return identify(cls.__module__, name)
        pieces: list[Piece] = [b"instance", self._ref(at, cls, "is of the class", cls.__name__)]
        speaks = False
        if isinstance(value, set | frozenset):  # its items have no order
            pieces.append(self._ref(at, frozenset(value), "holds", "items"))
        else:
            try:
                reduce = copyreg.dispatch_table.get(cls)
                reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
            except Exception:
                what = f"{_kind(value)}, whose state cannot be compared"
                raise self._refusal(at, what) from None
            if isinstance(reduced, str):
                return [*pieces, _text(reduced)]
            make, arguments, state, items, keyed = (*reduced, None, None, None)[:5]
            speaks = reduce is not None or any(
                getattr(cls, name) is not getattr(object, name)
                for name in ("__reduce_ex__", "__reduce__", "__getstate__")
            )
            said = {"maker": make, "arguments": arguments}
            said |= {"items": list(items or ()), "keys": dict(keyed or ())}
            pieces += self._named_parts(at, "said", said, "holds")
            if speaks:
                state = _Unordered(state) if type(state) is dict else state
                pieces.append(self._ref(at, state, "holds", "state"))
        if not (packaged and speaks):
            pieces += self._named_parts(at, "attributes", _attributes(value), "holds")
        return pieces

    def _names_in(self, module: str) -> dict[int, str]:
        """Global objects of a module of an installed package: id to name."""
        if module not in self._globals:
            own = vars(sys.modules[module]) if installed(module) else {}
            self._globals[module] = {id(value): name for name, value in own.items()}
        return self._globals[module]


def _attributes(value: Any) -> dict[str, Any]:
    """Attributes of an object from its __dict__ and __slots__, without cached results."""
    attributes = dict[str, Any]()
    for cls in type(value).__mro__:
        for name, member in vars(cls).items():
            if "__slots__" in vars(cls) and isinstance(member, types.MemberDescriptorType):
                try:
                    attributes[name] = member.__get__(value)
                except AttributeError:
                    continue  # not assigned
    for name, attribute in dict_of(value).items():
        of_class = next((vars(c)[name] for c in type(value).__mro__ if name in vars(c)), None)
        if not isinstance(of_class, functools.cached_property):
            attributes[name] = attribute
    return attributes


def _simple(value: Any) -> bytes | None:
    """Numbers, texts and the like as data; None for anything else."""
    kind = type(value)
    if kind is int:
        return b"int %x" % value
    if kind in (float, complex, bool, str, bytes) or value is None:
        return _text(f"{kind.__name__} {value!r}")
    if value is Ellipsis or value is NotImplemented:
        return repr(value).encode()
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return f"{value.dtype.descr} ".encode() + value.tobytes()
    return None


def _refused(value: Any) -> str:
    """What an object is that changes as it is used, "" for one that does not."""
    torch = sys.modules.get("torch")
    kinds = ((value, "a random generator"), (owner_of(value), "a method of a random generator"))
    for one, kind in kinds:
        if isinstance(one, np.random.Generator | np.random.RandomState | np.random.BitGenerator):
            return kind
        if isinstance(one, random.Random) or (torch and isinstance(one, torch.Generator)):
            return kind
    if isinstance(value, io.IOBase):
        return "an open file"
    if isinstance(value, types.GeneratorType):
        return "a generator"
    if isinstance(value, Iterator) and not isinstance(value, type):
        return "an iterator"
    return ""


def _inner(value: Any) -> dict[str, Any] | None:
    """What a wrapper of functions wraps; None for anything else."""
    if isinstance(value, functools.partial):
        return {"func": value.func, "args": value.args, "keywords": _Unordered(value.keywords)}
    if isinstance(value, types.MethodType):
        return {value.__func__.__name__: value.__func__, "self": value.__self__}
    if isinstance(value, property):
        return {"fget": value.fget, "fset": value.fset, "fdel": value.fdel}
    if isinstance(value, staticmethod | classmethod):
        return {"function": value.__func__}
    if isinstance(value, functools.cached_property):
        return {"function": value.func}
    if isinstance(value, functools._lru_cache_wrapper):
        return {"function": value.__wrapped__}
    if isinstance(value, np.vectorize):
        names = ("pyfunc", "otypes", "excluded", "signature")
        return {name: getattr(value, name, None) for name in names}
    if type(value).__module__.partition(".")[0] == "numba":
        makers = [getattr(value, name, None) for name in ("_dispatcher", "gufunc_builder")]
        for maker in (value, *makers):
            function = getattr(maker, "py_func", None) or getattr(maker, "_pyfunc", None)
            if function is not None:
                options = _Unordered(getattr(maker, "targetoptions", None) or {})
                return {"function": function, "options": options}
    return None


def _is_installed(cls: type) -> bool:
    """Whether a class belongs to Python or an installed package, where its name leads to it."""
    if not cls.__flags__ & _HEAP_TYPE:
        return True
    if not installed(cls.__module__):
        return False
    named: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        named = getattr(named, part, None)
    return named is cls


def _runs(cls: type, name: str, names: set[str], made: set[int]) -> bool:
    """Whether a run that reads these names, of attributes, calls a method of a class."""
    if name in _MAKING:
        return id(cls) in made
    if name in names or name[:2] == "__" == name[-2:]:
        return True
    # What a class of a package calls, of which the code is not looked at.
    return any(name in vars(base) for base in cls.__mro__[1:] if _is_installed(base))


def _kind(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _digest(nodes: list[_Node]) -> str:
    """Digest of the tree to which the graph unfolds from its first node.

    Nodes whose parts have digests get theirs from these. The rest lead to cycles: they start equal
    and are distinguished by the digests of their parts, round by round, until no round
    distinguishes more. That depends neither on where a cycle is entered nor on the order of
    unordered parts.
    """
    users: list[list[int]] = [[] for _ in nodes]
    waiting = [0] * len(nodes)
    for at, node in enumerate(nodes):
        for piece in node.pieces:
            if isinstance(piece, int):
                users[piece].append(at)
                waiting[at] += 1
    digests: dict[int, bytes] = {}
    ready = deque(at for at, count in enumerate(waiting) if not count)
    while ready:
        at = ready.popleft()
        digests[at] = _hash(nodes[at].pieces, digests)
        for user in users[at]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    rest = [at for at, count in enumerate(waiting) if count]
    digests |= dict.fromkeys(rest, b"")
    groups, before = min(len(rest), 1), 0
    while groups != before:
        before = groups
        fresh = {at: _hash(nodes[at].pieces, digests) for at in rest}
        digests |= fresh
        groups = len(set(fresh.values()))
    whole = hashlib.sha256(digests[0])
    for digest in sorted({digests[at] for at in rest}):
        whole.update(digest)
    return whole.hexdigest()


def _hash(pieces: list[Piece], digests: dict[int, bytes]) -> bytes:
    parts = [
        b"node " + digests[piece] if isinstance(piece, int) else b"data %d " % len(piece) + piece
        for piece in pieces
    ]
    if pieces and pieces[0] == _UNORDERED:
        parts.sort()
    return hashlib.sha256(b"".join(parts)).digest()
