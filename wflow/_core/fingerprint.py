"""Fingerprint of a custom head law, flow, metric, gradient or prior: a digest of its declaration.

A class declares its bases and attributes, an instance its class and state, a function the syntax
tree of its source, its defaults, and the globals and variables that it names. What these lead to
belongs to the declaration as well, as far as it is the user's. Installed packages, the standard
library and wflow enter by name and version. Comments, docstrings, annotations, the layout and
place of the source, and the order of definitions, attributes and sets do not enter.

A declaration has the same fingerprint in every process, notebook and version of Python. What has
none, such as a random generator or a function without source, is `NotComparable`.
"""

import ast
import builtins
import contextlib
import copy
import copyreg
import dataclasses
import enum
import functools
import hashlib
import inspect
import io
import itertools
import linecache
import os
import random
import symtable
import sys
import sysconfig
import textwrap
import types
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from importlib import metadata
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

SCHEME = "3"  # those of bytecode begin with "2", or with no number
_DEPTH = 200  # of objects within objects
_WRITTEN = {float, complex, bool, bytes, type(None), type(...), type(NotImplemented)}  # by repr


class NotComparable(Exception):
    """An object that cannot be compared with another; the text says why."""


class Declaration(NamedTuple):
    """What an object declares: a text, and further objects by name."""

    text: str
    parts: Sequence[tuple[str, Any]] = ()


def fingerprint(value: Any) -> str:
    """Return the digest of what an object declares.

    Parameters
    ----------
    value : a head law, a function, or any other object

    Returns
    -------
    "3:<128 bits>"

    Raises
    ------
    NotComparable
        For an object that leads to one without a declaration.
    """
    return f"{SCHEME}:{_hash(_Digests().of(value, type(value).__name__)).hex()[:32]}"


def of_bytecode(stored: Any) -> bool:
    """Return whether a fingerprint was made by a version of wflow that compared bytecode."""
    return isinstance(stored, str) and stored.partition(":")[0] != SCHEME


def why_different(stored: Any, given: Any) -> str:
    """Return in a few words why two fingerprints differ."""
    if stored is None or given is None:
        return "known of one of the two only"
    if of_bytecode(stored):
        return "made by an earlier version of wflow from bytecode, which cannot be compared"
    return "its code or data, or the version of a package that it uses"


class _Digests:
    """Digests of objects, each computed once."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[Any, bytes]] = {}  # by id, with the objects, which stay alive
        self._within: dict[int, str] = {}  # ids and names of the objects on the way to this one

    def of(self, value: Any, name: str) -> bytes:
        """Return the digest of an object, or the data of a plain one; `name` is for messages."""
        data = _plain(value)
        if data is not None:
            return data
        if id(value) in self._done:
            return self._done[id(value)][1]
        if id(value) in self._within:  # a function that calls itself, a class in its own method
            return b"level %d" % list(self._within).index(id(value))
        self._within[id(value)] = name
        try:
            declared = _declaration(value)
        except Exception as error:  # inspecting an object of the user may raise anything
            known = isinstance(error, NotComparable)
            reason = str(error) if known else f"cannot be compared ({error})"
            raise NotComparable(f"{self._place()} {reason}") from None
        if len(self._within) > _DEPTH:
            raise NotComparable(f"{self._place()} is nested too deeply")
        parts = [(_text(part), self.of(each, part)) for part, each in declared.parts]
        pieces = itertools.chain.from_iterable(sorted(parts) if _unordered(value) else parts)
        found = _hash(_text(declared.text), *pieces)
        del self._within[id(value)]
        self._done[id(value)] = value, found
        return found

    def _place(self) -> str:
        names = list(self._within.values())
        return " > ".join(names[1:] or names).replace(" > [", "[")


def _hash(*pieces: bytes) -> bytes:
    return hashlib.sha256(b"".join(b"%d " % len(piece) + piece for piece in pieces)).digest()


def _unordered(value: Any) -> bool:
    return type(value) in (set, frozenset)


def _plain(value: Any) -> bytes | None:
    """Return numbers, texts and the like as data; None for anything else."""
    kind = type(value)
    if kind is int:
        return b"int %x" % value
    if kind is str:
        return b"str " + _text(value)
    if kind in _WRITTEN:
        return f"{kind.__name__} {value!r}".encode()
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return f"{value.dtype.descr} ".encode() + value.tobytes()
    return None


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _declaration(value: Any) -> Declaration:
    """Return what an object declares, by its kind."""
    if what := _changing(value):
        raise NotComparable(f"is {what}")
    if isinstance(value, _Packaged):
        return Declaration(value.text())
    if isinstance(value, ModuleType):
        if installed(value.__name__):
            return Declaration(_Packaged(value.__name__, "").text())
        raise NotComparable("is a module that is used as a value: name its attributes")
    if isinstance(value, type):
        return _of_class(value)
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, np.ndarray):
        return _of_array(value)
    if type(value) in (list, tuple):
        return Declaration(type(value).__name__, [(f"[{i}]", x) for i, x in enumerate(value)])
    if _unordered(value):
        return Declaration("set", [("[]", item) for item in value])
    if type(value) in (dict, types.MappingProxyType):
        keys = [("key", key) for key in value]
        items = [(f"[{key!r}]" if type(key) is str else "[]", x) for key, x in value.items()]
        return Declaration("dict", keys + items)
    return _of_wrapper(value) or _of_instance(value)


def _changing(value: Any) -> str:
    """Return the kind of an object that changes as it is used; "" for other objects."""
    kinds = [np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random]
    if "torch" in sys.modules:
        kinds.append(sys.modules["torch"].Generator)
    if isinstance(value, tuple(kinds)):
        return "a random generator"
    method = isinstance(value, types.MethodType | types.BuiltinMethodType)
    if method and isinstance(value.__self__, tuple(kinds)):
        return "a method of a random generator"
    if isinstance(value, io.IOBase):
        return "an open file"
    if isinstance(value, Iterator) and not isinstance(value, type):
        return "an iterator"
    return ""


# Installed packages
# ------------------


class _Packaged(NamedTuple):
    """An object of an installed package, which its name and version identify."""

    module: str
    name: str

    def text(self) -> str:
        return f"{self.module}:{self.name} {_version(self.module.partition('.')[0])}"


@cache
def installed(module: str) -> bool:
    """Return whether a module is of the standard library, an installed package, or wflow."""
    top = module.partition(".")[0]
    known = [sys.modules[name] for name in (module, top) if name in sys.modules]
    file = next((each.__file__ for each in known if getattr(each, "__file__", None)), None)
    if module == "__main__" or file is None:
        return module != "__main__" and top in sys.stdlib_module_names
    path = os.path.abspath(file)
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if path.startswith(os.path.join(package, "_studies", "")):
        return False  # scripts, as in a checkout
    if {"site-packages", "dist-packages"} & set(path.split(os.sep)):
        return True
    folders = package, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")
    forms = {form(folder) for folder in folders for form in (os.path.abspath, os.path.realpath)}
    return any(path.startswith(folder + os.sep) for folder in forms)


@cache
def _version(package: str) -> str:
    """Return the version of the distribution of a package, "" for the standard library."""
    if package in sys.stdlib_module_names:
        return ""
    own = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(own, str):  # faster than reading the metadata of the installer
        return own
    names = metadata.packages_distributions().get(package, ())
    return " ".join(metadata.version(name) for name in sorted(names))


def _installed_class(cls: type) -> bool:
    if cls.__module__ != "builtins":
        return installed(cls.__module__)
    # A class that was made by exec may say that it is a built-in one.
    return any(cls is each for each in (*vars(builtins).values(), *vars(types).values()))


def _installed_function(function: FunctionType) -> bool:
    home = function.__globals__.get("__name__", "")
    module = sys.modules.get(home)
    return module is not None and vars(module) is function.__globals__ and installed(home)


# Classes, instances and arrays
# -----------------------------


def _of_class(cls: type) -> Declaration:
    if _installed_class(cls):
        return Declaration(_Packaged(cls.__module__, cls.__qualname__).text())
    own = {name: value for name, value in vars(cls).items() if _is_declared(name, value)}
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            own[f"field {field.name}"] = field.default, field.default_factory, field.kw_only
    members = dict[str, Any](getattr(cls, "__members__", {}) if issubclass(cls, enum.Enum) else {})
    fields = set(getattr(cls, "_fields", ()) if issubclass(cls, tuple) else ())
    if members or fields or dataclasses.is_dataclass(cls):  # to which the library adds its own
        left_out = fields | members.keys()
        own = {n: v for n, v in own.items() if n not in left_out and not _of_library(n, v)}
        own |= {f"member {name}": member.value for name, member in members.items()}
    bases = [(base.__name__, base) for base in (type(cls), *cls.__bases__)]
    return Declaration(f"class {cls.__qualname__}", bases + sorted(own.items()))


def _is_declared(name: str, value: Any) -> bool:
    """Return whether an attribute of a class is declared in it, and not derived by Python."""
    derived = types.MemberDescriptorType | types.GetSetDescriptorType
    if isinstance(value, derived) or name in ("_abc_impl", "__annotate__", "__annotate_func__"):
        return False
    special = name[:2] == "__" == name[-2:]
    return not special or callable(value) or hasattr(type(value), "__get__")


def _of_library(name: str, value: Any) -> bool:
    """Return whether the standard library made an attribute, as of an enumeration or dataclass."""
    if name[0] == "_" == name[-1] and not hasattr(type(value), "__get__"):
        return True  # such as _member_map_
    value = getattr(value, "__func__", value)
    value = inspect.unwrap(value) if callable(value) else value
    if not isinstance(value, FunctionType):
        return isinstance(value, types.BuiltinFunctionType)
    return value.__code__.co_filename == "<string>" or _installed_function(value)


def _of_instance(value: Any) -> Declaration:
    """Return class and state of an object, as pickle reads them."""
    cls = type(value)
    kind = [(cls.__name__, cls)]
    if isinstance(value, enum.Enum):
        return Declaration(f"member {value.name}", kind)
    if isinstance(value, set | frozenset):
        return Declaration("instance", [*kind, ("items", frozenset(value))])
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().resolve_conj().reshape(-1)
        data = hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()
        return Declaration(f"tensor {tuple(value.shape)} {value.dtype} {data}", kind)
    try:
        reduce = copyreg.dispatch_table.get(cls)
        reduced: Any = value.__reduce_ex__(4) if reduce is None else reduce(value)
    except Exception:
        raise NotComparable(f"is a {cls.__qualname__}, whose state cannot be compared") from None
    if isinstance(reduced, str):  # a global name
        return _of_compiled(value, reduced) if _installed_class(cls) else Declaration(reduced, kind)
    make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    parts = [*kind, ("make", make), ("arguments", arguments)]
    slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    for each in slots:
        if isinstance(each, dict) and all(isinstance(name, str) for name in each):
            kept = {name: each[name] for name in each if not _is_cache(cls, name)}
            parts += [(name.lstrip("_"), kept[name]) for name in sorted(kept)]
        elif each is not None:
            parts.append(("state", each))
    return Declaration("instance", [*parts, ("items", [*(items or ()), *(pairs or ())])])


def _of_compiled(value: Any, name: str) -> Declaration:
    home = getattr(value, "__module__", None) or "builtins"
    if not installed(home):
        raise NotComparable("is compiled code, whose source cannot be seen")
    return Declaration(_Packaged(home, name).text())


def _is_cache(cls: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(cls, name, None), functools.cached_property)


def _of_array(array: np.ndarray) -> Declaration:
    plain = np.asarray(array)
    text, parts = f"array {plain.shape} {plain.dtype.descr}", list[tuple[str, Any]]()
    if plain.dtype.hasobject:
        parts.append(("items", plain.ravel().tolist()))
    else:
        flat = np.ascontiguousarray(plain).reshape(-1).view(np.uint8)
        text += f" {hashlib.sha256(flat.data).hexdigest()}"
    if isinstance(array, np.ma.MaskedArray):
        parts.append(("mask", np.ma.getmaskarray(array)))
    if not _installed_class(type(array)):
        parts += [("class", type(array)), *sorted(vars(array).items())]
    return Declaration(text, parts)


def _of_wrapper(value: Any) -> Declaration | None:
    """Return what a wrapper of functions declares; None for anything else."""
    kind = type(value).__name__
    match value:
        case types.MethodType():
            name = value.__func__.__name__
            return Declaration(kind, [(name, value.__func__), ("self", value.__self__)])
        case property():
            parts = [(name, getattr(value, name)) for name in ("fget", "fset", "fdel")]
            return Declaration(kind, parts)
        case staticmethod() | classmethod():
            return Declaration(kind, [("function", value.__func__)])
        case functools.cached_property():
            return Declaration(kind, [("function", value.func)])
        case np.ufunc(__name__=name):
            for module in ("numpy", "scipy.special"):
                if getattr(sys.modules.get(module), name, None) is value:
                    return Declaration(_Packaged(module, name).text())
            raise NotComparable("is a ufunc, whose code cannot be seen")
        case types.BuiltinFunctionType() if isinstance(value.__self__, ModuleType | None):
            return _of_compiled(value, value.__qualname__)
    if _installed_class(type(value)) and not isinstance(value, np.vectorize):
        for name in ("py_func", "__wrapped__"):  # of Numba; of lru_cache and the like
            if isinstance(function := getattr(value, name, None), FunctionType):
                return Declaration(kind, [("function", function)])
    return None


# Functions
# ---------

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_TREES = dict[int, tuple[CodeType, _Function]]()  # by id of the code, which stays alive
_BLIND = {"eval", "exec", "globals", "__import__"}  # what these reach cannot be seen


def _of_function(function: FunctionType) -> Declaration:
    """Return the tree of a function, its defaults, and what it names and closes over."""
    code, home = function.__code__, function.__globals__
    cells = dict[str, Any]()
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:
            cells[name] = "a variable without a value"
    if _installed_function(function):
        text = _Packaged(home["__name__"], code.co_qualname).text()
        # Where it was made within a function, its name does not tell what it closes over.
        return Declaration(text, sorted(cells.items()) if "<" in code.co_qualname else [])
    tree = _tree(code)
    names = _globals_of(tree, code.co_freevars)
    if blind := sorted(names & _BLIND - home.keys()):
        raise NotComparable(f"calls {blind[0]}, and what that reaches cannot be seen")
    own = {name for name in names & home.keys() if name[:2] != "__"}  # not __file__ and the like
    named = {name: home[name] for name in own} | cells | _imported(tree, home)
    read = _attributes_read(tree)
    values = function.__defaults__ or ()
    arguments = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    parts = list(zip(arguments, values, strict=True))
    parts += sorted((function.__kwdefaults__ or {}).items())
    for name in sorted(named):
        parts += [_follow(name, named[name], chain) for chain in sorted(read.get(name, {()}))]
    attributes = {name: each for name, each in vars(function).items() if name != "__wrapped__"}
    return Declaration(f"function {_tree_text(tree)}", parts + sorted(attributes.items()))


def _tree(code: CodeType) -> _Function:
    """Return the syntax tree of a function, without its name and defaults.

    It is kept, since the file may change while the function runs.

    Raises
    ------
    NotComparable
        Where there is no source, or not the one that Python compiled.
    """
    if id(code) in _TREES:
        return _TREES[id(code)][1]
    text = ""
    for _ in range(2):
        text = "".join(linecache.getlines(code.co_filename))
        functions, codes = _parsed(text)
        if code in codes:
            break
        linecache.checkcache(code.co_filename)  # the file of a module that was loaded again
    else:
        other = "is not what its source says: that was changed since, or compiled by an import hook"
        raise NotComparable(other if text else "has no source")
    found = [node for node in functions if _begins(node) == (code.co_name, code.co_firstlineno)]
    if len(found) > 1:  # on one line: the innermost whose columns span those of the code
        found = [node for node in found if _spans(node, code)][-1:]
    if not found:
        raise NotComparable("cannot be told apart from other functions in its line")
    tree = copy.copy(found[0])
    tree.args = copy.copy(tree.args)
    tree.args.defaults, tree.args.kw_defaults = [], [None] * len(tree.args.kwonlyargs)
    if not isinstance(tree, ast.Lambda):
        tree.name = "_function"
    _TREES[id(code)] = code, tree
    return tree


@lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[list[_Function], set[CodeType]]:
    """Find the functions in a source file: their trees, outer ones first, and their code."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # in the cells of a notebook
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were shown when the file was imported
        try:
            tree = compile(text, "<source>", "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
            waiting = [compile(tree, "<source>", "exec", flags, dont_inherit=True)]
        except SyntaxError:
            return [], set()
    codes = set[CodeType]()
    while waiting:
        codes.add(code := waiting.pop())
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
    tree = _Cleaned().visit(tree)
    return [node for node in ast.walk(tree) if isinstance(node, _Function)], codes


class _Cleaned(ast.NodeTransformer):
    """A tree without docstrings and annotations."""

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.AnnAssign):
            node = ast.copy_location(
                ast.Assign([node.target], node.value or ast.Constant(None)), node
            )
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            described = ast.get_docstring(node, clean=False) is not None
            node.body = node.body[described:] or [ast.Pass()]
        if isinstance(node, ast.JoinedStr):  # Python 3.12 adds empty texts
            node.values = [each for each in node.values if getattr(each, "value", None) != ""]
        for name, empty in (("annotation", None), ("returns", None), ("type_params", [])):
            if getattr(node, name, None):
                setattr(node, name, empty)
        return self.generic_visit(node)


def _begins(node: _Function) -> tuple[str, int]:
    """Return name and first line of a function, as in its code."""
    if isinstance(node, ast.Lambda):
        return "<lambda>", node.lineno
    return node.name, min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _spans(node: _Function, code: CodeType) -> bool:
    """Return whether the body of a function spans all columns of the code."""
    body: Any = node.body if isinstance(node, ast.Lambda) else node
    begins, ends = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    places: list[Any] = [place for place in code.co_positions() if None not in place]
    return all(
        begins <= (first, column) and (last, end) <= ends
        for first, last, column, end in places
        if (first, column) != (last, end)  # of an instruction that only begins the function
    )


def _tree_text(node: Any) -> str:
    """Write a syntax tree as a text that is the same in all versions of Python."""
    if isinstance(node, ast.AST):
        fields = [
            f"{name}={_tree_text(value)}"
            for name, value in sorted(ast.iter_fields(node))
            if name not in ("ctx", "kind", "type_comment") and value is not None and value != []
        ]
        return f"{type(node).__name__}({' '.join(fields)})"
    if isinstance(node, list):
        return f"[{' '.join(map(_tree_text, node))}]"
    return hex(node) if type(node) is int else ascii(node)


def _globals_of(tree: _Function, free: tuple[str, ...]) -> set[str]:
    """Return the names of the globals that a function with these free variables reads."""
    inner = textwrap.indent(ast.unparse(tree), " ")
    table = symtable.symtable(f"def _({', '.join(free)}):\n{inner}", "<source>", "exec")
    tables, names = table.get_children(), set[str]()
    for each in tables:  # which grows
        tables += each.get_children()
        symbols = each.get_symbols()
        names |= {s.get_name() for s in symbols if s.is_global() and s.is_referenced()}
    return names


def _attributes_read(tree: _Function) -> dict[str, set[tuple[str, ...]]]:
    """List by name the attributes read of it: `a.b.c` gives ("b", "c"), and `a` gives ()."""
    read, inner = defaultdict[str, set[tuple[str, ...]]](set), set[int]()
    for node in ast.walk(tree):  # outer ones first
        base, chain = node, list[str]()
        while isinstance(base, ast.Attribute):
            inner.add(id(base.value))
            chain.insert(0, base.attr)
            base = base.value
        if isinstance(base, ast.Name) and id(node) not in inner:
            read[base.id].add(tuple(chain))
    return read


def _imported(tree: _Function, home: dict[str, Any]) -> dict[str, Any]:
    """Return what the import statements in a function bind."""
    bound = {name: home.get(name) for name in ("__name__", "__package__")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            with contextlib.suppress(ImportError):  # as the function may expect
                exec(compile(ast.Module([node], []), "<import>", "exec"), bound)
    return {name: value for name, value in bound.items() if name[:2] != "__"}


def _follow(name: str, value: Any, chain: tuple[str, ...]) -> tuple[str, Any]:
    """Return the attribute to which a chain leads, as far as the objects themselves hold it."""
    for attribute in chain:
        if isinstance(value, ModuleType):
            packaged = installed(value.__name__)
            value, home = getattr(value, attribute, "an attribute without a value"), value.__name__
            if packaged and not isinstance(value, ModuleType) and not _changing(value):
                value = value if _plain(value) is not None else _Packaged(home, attribute)
        else:
            own, of_class = _own(value), inspect.getattr_static(type(value), attribute, None)
            if attribute not in own or hasattr(type(of_class), "__set__"):
                break
            value = own[attribute]
        name += f".{attribute}"
    return name, value


def _own(value: Any) -> dict[str, Any]:
    """Return the attributes that lookups find in an object, without running code of its class."""
    if isinstance(value, type) or isinstance(type(value).__getattribute__, FunctionType):
        return {}
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        return {}
