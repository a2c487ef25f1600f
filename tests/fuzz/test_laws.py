"""Changes of custom head laws are noticed, and what is no change is not taken for one."""

import ast
import enum
import functools
import importlib
import json
import linecache
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import notebooks
import numpy as np
import pytest
from interpreters import python
from run_layouts import spoiled

import wflow
from wflow._core.fingerprint import NotComparable, fingerprint
from wflow._core.rng import CounterNormals
from wflow.analysis.verify import Check, verify
from wflow.distributed.parts import Run, compute
from wflow.heads import HeadLaw
from wflow.particles.problem import problem_of_task
from wflow.study.flags import OutputFlags
from wflow.study.folder import check_output

OPTIONS = {"heads": 2, "t_final": 0.1, "dt": 0.05}

# Modules of a law. `«change: old|new»` marks what is replaced: one change at a time is a change of
# the law. With `=` before its name it is none.
MODULES = """
import enum, functools, types
from dataclasses import dataclass, field
from typing import NamedTuple
import numba
import numpy as np
from numpy import «function of NumPy: tril|triu» as part
from wflow.heads import HeadLaw, OrnsteinUhlenbeck
import helper as h
import package.table
from helper import target
from package.laws import Base

RATE = «global: 1.0|2.0»
UNUSED = «=global that is not read: 1|2»
x = «=global with the name of a variable: 1|2»

def literals(D, t):
    «=docstring: "one"|"another"»
    x«=annotation of a variable: |: float» = «constant: 1|2» + «type of a constant: 1|1.0»
    # «=comment: a|b»
    try: x «operator: +|-»= D.«name of a method: min|max»()
    except ZeroDivisionError: return «what an except clause returns: 1|2»
    class Local:
        «=docstring of a local class: "one"|"another"»
        rate = «local class: 1|2»
    return Local.rate * x

DEFAULT = «value of a default: 1.0|2.0»
def defaults(D, t=«default: 1|2», d=DEFAULT, *, k=«keyword-only default: 1|2»): pass
def «=name of a function: f|g»(): return 1
NAMED = «=name of a function: f|g»

one, two = lambda: «first lambda of a line: 1|2», lambda: «second lambda of a line: 1|2»
def nested(): return lambda: (lambda x: «lambda in a lambda: 1|2»)()

def close(a, b, c, args):
    class Target: rate = c
    def scale(): return a
    return lambda: (lambda: scale())() + b + Target.rate + args.rate
closed = close(
    «closure of a closure: 1|2», «variable of a closure: 1|2», «closure over a class: 1|2»,
    types.SimpleNamespace(rate=«part of a namespace: 1|2», y=«=part that is not read: 1|2»),
)

INNER = «global in a comprehension: 1|2»
def inner():
    class Local:
        def rate(self): return [INNER for _ in range(2)]

def even(n): return 1 if n == 0 else odd(n - 1)
def odd(n): return «function in a cycle: 0|1» if n == 0 else even(n - 1)
«=order of functions: def a(): pass
def b(): pass
|def b(): pass
def a(): pass
»
def imports(): return h.RATE, package.table.RATE, target, a, b
def importing():
    from helper import LATE

class Mine(Base):
    «=docstring of a class: "one"|"another"»
    rate = «class attribute: 1|2»
    def drift(self, D, t): return super().drift(D, t) + «method: 1|2»
    @property
    def p(self): return «property: 1|2»
    @functools.cached_property
    def c(self): return «cached property: 1|2»
    @staticmethod
    def s(): return «static method: 1|2»
    @classmethod
    def m(cls): return «class method: 1|2»
Mine.later = «attribute that a class was given later: 1|2»
mine = Mine()
mine.own = «attribute of an object: 1|2»
«=order of attributes: mine.y, mine.z = 1, 2|mine.z, mine.y = 2, 1»
«=cached value: |mine.c»
class A: pass
class B: pass
class C(«order of base classes: A, B|B, A»): pass
class OU(OrnsteinUhlenbeck):
    def step(self, D, t, dt, normals): return super().step(D, t, «override: dt|2 * dt», normals)
replaced = OrnsteinUhlenbeck(np.eye(3))
replaced.drift = lambda D, t: «method replaced on an object: 1|2»

@dataclass(slots=True, order=True)
class Data:
    rate: «=annotation of a field: float|int» = «default of a field: 1.0|2.0»
    rates: list = field(default_factory=lambda: [«factory of a field: 1|2»])
class Named(NamedTuple):
    rate: float = «default of a named tuple: 1|2»
class Rate(enum.Enum):
    SLOW = «enumeration: 1|2»
    FAST = 3
OBJECTS = (
    Data(«field: 1|2»), Named(«field of a named tuple: 1|2»),
    Rate.«member of an enumeration: SLOW|FAST»,
)
M = np.zeros((9, 9))
M[«entry of an array: 3, 4|4, 3»] = 1.0
ARRAYS = (
    np.zeros(3, «type of an array: 'f4'|'i4'»), np.zeros(«shape of an array: (2, 3)|(3, 2)»),
    np.array([None, «array of objects: 1|2»], object), np.eye(2)«=layout of an array: |.T.copy()»,
    M,
)
DATA = [
    {"a": («item of a list in a dict: 1|2»,), «key of a dict: 1|2»: 0}, «type of a number: 1|True»,
    {«order of a dict: 'a': 1, 'b': 2|'b': 2, 'a': 1»}, {«=order of a set: 'a', 'b'|'b', 'a'»},
    {1.0, «item of a set: 2.0|3.0»}, np.«type of a NumPy number: float32|float64»(1),
]
DATA.append(DATA)

@functools.lru_cache
def cached(): return «function behind lru_cache: 1|2»
«=cached call: |cached()»
def scaled(by):
    def decorate(function):
        @functools.wraps(function)
        def call(): return by * function()
        return call
    return decorate
@scaled(«argument of a decorator: 1|2»)
def decorated(): return «function behind a decorator: 1|2»
decorated.rate = «attribute of a function: 1|2»
COMPILED = «global of a compiled function: 1|2»
@numba.njit(fastmath=«option of a compiled function: False|True»)
def compiled(): return COMPILED
«=compiled or not yet: |compiled()»
WRAPPED = (
    functools.partial(one, «argument of a partial: 1|2», k=«keyword of a partial: 1|2»),
    np.vectorize(lambda t: «function behind np.vectorize: 1|2»), mine.drift, np.«ufunc: sin|cos»,
    «built-in function: min|max», np.arange(3.0).«method of an array: sum|max», part,
)
ALL = (
    literals, defaults, NAMED, one, two, nested, closed, inner, even, imports, importing, mine, C,
    OU, replaced, OBJECTS, ARRAYS, DATA, cached, decorated, compiled, WRAPPED,
)
law = HeadLaw(lambda D, t: (ALL, RATE), «size of the noise: 1|2», symmetric=«symmetry: True|False»)
=== helper
RATE, LATE = «constant of a module: 1|2», «import within a function: 1|2»
OTHER = «=constant of a module that is not read: 1|2»
GLOBAL = «global of a function of a module: 1|2»
def target(): return GLOBAL
=== package/__init__
=== package/table
RATE = «constant of a module in a package: 1|2»
=== package/laws
from wflow.heads import HeadLaw
from . import table
class Base(HeadLaw):
    def drift(self, D, t): return «inherited method: 1|2» * table.RATE
"""
MARK = re.compile(r"«(.*?): ?(.*?)\|(.*?)»", re.DOTALL)
MARKS = dict.fromkeys(mark[0] for mark in MARK.findall(MODULES))

# Laws that run.
FUNCTION = """
from helper import drift
from wflow.heads import HeadLaw
law = HeadLaw(drift)
=== helper
RATE = «rate: 1.0|2.0»
def drift(D, t): return -RATE * D"""
REGISTERED = """
from wflow.heads import HeadLaw, register
@register
class Registered(HeadLaw):
    def __init__(self, rate): super().__init__(); self.rate = rate
    def drift(self, D, t): return -«rate: 1.0|2.0» * self.rate * D
    def to_config(self): return {"rate": self.rate}
law = Registered(0.5)"""
SUBCLASS = """
import numpy as np
import wflow.heads as h
class OrnsteinUhlenbeck(h.OrnsteinUhlenbeck):
    def drift(self, D, t): return «rate: 1.0|2.0» * super().drift(D, t)
law = OrnsteinUhlenbeck(np.eye(3))"""

HEADER = "import numpy as np\nfrom wflow.heads import HeadLaw, OrnsteinUhlenbeck\n"
# What cannot be compared, and what a message names.
NOT_COMPARABLE = {
    "drift > rng is a random generator": """
def make(rng): return lambda D, t: rng.normal() * D
law = HeadLaw(make(np.random.default_rng(0)))""",
    "drift > noise > np.random.normal is a method of a random generator": """
def noise(D): return np.random.normal()
law = HeadLaw(lambda D, t: noise(D))""",
    "diffusion > file is an open file": """
law = HeadLaw(None, lambda D, t, file=open(__file__): 1.0)""",
    "drift calls eval": "law = HeadLaw(lambda D, t: eval('-D'))",
    "drift has no source": "law = HeadLaw(eval('lambda D, t: -D'))",
    "drift > helper is a module": """
import helper
law = HeadLaw(lambda D, t: -getattr(helper, "RA" + "TE") * D)
=== helper
RATE = 1.0""",
}


def write(folder: Path, text: str, *changes: str) -> Path:
    """Return the modules of a law in a folder, with some changes."""
    text = MARK.sub(lambda mark: mark[3] if mark[1] in changes else mark[2], text)
    first, *others = re.split(r"^=== (.*)\n?", text, flags=re.MULTILINE)
    folder.mkdir(parents=True)
    for name, source in zip(["mylaw", *others[::2]], [first, *others[1::2]], strict=True):
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return folder


@contextmanager
def loaded(folder: Path, name: str = "mylaw") -> Iterator[HeadLaw]:
    """Yield the law of the modules in a folder, imported as if for the first time."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield importlib.import_module(name).law
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]


def identity_of(folder: Path, name: str = "mylaw") -> str:
    with loaded(folder, name) as law:
        return fingerprint(law)


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> str:
    return identity_of(write(tmp_path_factory.mktemp("law") / "law", MODULES))


@pytest.mark.parametrize("change", [mark for mark in MARKS if not mark.startswith("=")])
def test_a_change_of_a_law_is_seen(change, original, tmp_path):
    assert identity_of(write(tmp_path / "law", MODULES, change)) != original


def test_what_does_not_count_is_no_change(original, tmp_path):
    none = [mark for mark in MARKS if mark.startswith("=")]
    assert identity_of(write(tmp_path / "law", MODULES, *none)) == original


def test_another_text_of_a_law_in_another_file_is_the_same_law(original, tmp_path):
    folder = write(tmp_path / "law", MODULES)
    for file in folder.rglob("*.py"):
        text = ast.unparse(ast.parse(file.read_text()))  # without comments, in another layout
        file.write_text(f"from __future__ import annotations\n\n{text}")
    (folder / "mylaw.py").rename(folder / "moved.py")
    assert identity_of(folder, "moved") == original


def test_fingerprints_are_those_of_other_processes_whatever_their_hash_seed(original, tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import mylaw\n"
        "from wflow._core.fingerprint import fingerprint; print(fingerprint(mylaw.law))"
    )
    folder = write(tmp_path / "law", MODULES)
    for seed in "12":
        assert python("-c", code, folder, PYTHONHASHSEED=seed).stdout.strip() == original


def test_fingerprints_are_those_of_other_versions_of_python():
    @dataclass(frozen=True)
    class Settings:
        rate: float = 1.0
        rates: list = field(default_factory=list)

    class Rate(enum.Enum):
        SLOW, FAST = 1, 2

    @functools.lru_cache
    def drift(D, t=Rate.FAST, *, s=Settings(), more=None):
        """Use what versions of Python parse, compile or store in other ways."""
        texts = f"{t!r:>{10}}{'a'}b{t=} {D:}"
        match [i for i in range(3) if i] or {"x": D}:
            case [1, *rest] | {"x": rest}:
                return [lambda *a, k=s.rate, **b: (yield rest), texts, 10**20, 1e400, -1j, ...]
        return None

    assert fingerprint(drift) == "3:79152f95a19147b86288e2fdd2042973"


def test_a_law_in_a_notebook_has_the_fingerprint_of_the_one_in_a_file(tmp_path, monkeypatch):
    cells, expected = ["from wflow._core.fingerprint import fingerprint"], []
    lambdas = "from wflow.heads import HeadLaw\nlaw = HeadLaw(lambda D, t: -D, lambda D, t: 1.0)"
    for i, text in enumerate([SUBCLASS, REGISTERED, lambdas]):
        folder = write(tmp_path / str(i), text)
        expected.append(identity_of(folder))
        first, _, last = (folder / "mylaw.py").read_text().rpartition("law = ")
        cells += [first, f"%precision 3\nlaw = {last}\nprint(fingerprint(law))"]
    done = notebooks.executed(cells, tmp_path, monkeypatch)
    assert all(text in done[2 + 2 * i].outputs[0].text for i, text in enumerate(expected))


def test_a_law_whose_file_was_edited_after_its_import_is_known_by_what_runs(tmp_path):
    for name in ("known", "new"):
        folder = write(tmp_path / name, FUNCTION)
        helper = folder / "helper.py"
        with loaded(folder) as law:
            before = fingerprint(law) if name == "known" else None
            helper.write_text(helper.read_text().replace("-RATE", "-2 * RATE"))
            linecache.checkcache()
            new = pytest.raises(NotComparable, match="source")
            with nullcontext() if before is not None else new:
                assert fingerprint(law) == before


def test_tensors_and_networks_in_a_law_are_compared():
    torch = pytest.importorskip("torch")

    def law(seed, weight=1.0):
        torch.manual_seed(seed)
        network, table = torch.nn.Linear(2, 2), weight * torch.ones(2, dtype=torch.bfloat16)
        return HeadLaw(lambda D, t: network(torch.tensor(D)).detach().numpy() + table[0].item())

    assert fingerprint(law(0)) == fingerprint(law(0))
    assert len({fingerprint(law(0)), fingerprint(law(1)), fingerprint(law(0, 2.0))}) == 3


def test_numbers_by_counter_are_compared_by_their_seed():
    def law(seed):
        normals = CounterNormals(seed)
        return HeadLaw(lambda D, t: normals.draw((), path=0, step=round(t)) * D)

    used = law(0)
    used.drift(np.eye(2), 3.0)
    assert fingerprint(used) == fingerprint(law(0)) != fingerprint(law(1))


def test_fingerprints_of_large_and_of_tangled_laws_are_quick():
    table = np.random.default_rng(0).standard_normal(2_500_000)  # 20 MB
    shared: list = [1.0]
    for _ in range(100):
        shared = [shared, shared]  # 2^100 ways to its end
    begun = time.perf_counter()
    fingerprint(HeadLaw(lambda D, t: table[0] * shared[0] * D))
    assert time.perf_counter() - begun < 5.0


@pytest.mark.parametrize("text", [FUNCTION, REGISTERED, SUBCLASS])
def test_a_run_is_neither_resumed_nor_run_again_with_a_changed_law(text, tmp_path):
    out, x0 = tmp_path / "run.h5", np.eye(3)
    registered = text is REGISTERED
    with loaded(write(tmp_path / "old", text)) as law:
        first = wflow.solve(x0, law, out=out, **OPTIONS)
        wflow.solve(x0, law, out=out, if_exists="resume", **OPTIONS).close()
        again = wflow.rerun(out) if registered else wflow.rerun(out, law=law)
        assert all(np.array_equal(first[name], again[name]) for name in first.data_vars)
        first.close()
        assert replayed(out).passed is (True if registered else None)
    with loaded(write(tmp_path / "new", text, "rate")) as law:
        for later in (
            lambda: wflow.solve(x0, law, out=out, if_exists="resume", **OPTIONS),
            lambda: wflow.rerun(out, law=law),
            lambda: wflow.rerun(out),
        ):
            with pytest.raises(wflow.InputError, match="law"):
                later()
        assert replayed(out).passed is None


def replayed(out: Path) -> Check:
    step = "the first recorded step follows from the configuration"
    return next(check for check in verify(out).checks if check.name == step)


def test_a_run_whose_law_was_known_by_bytecode_says_so(tmp_path):
    out, x0 = tmp_path / "run.h5", np.eye(3)

    def of_bytecode(file):
        config = json.loads(file.attrs["config"])
        config["law"]["fingerprint"] = "2:cpython-3.11:0123456789abcdef"
        file.attrs["config"] = json.dumps(config)

    with loaded(write(tmp_path / "law", REGISTERED)) as law:
        first = wflow.solve(x0, law, out=out, **OPTIONS).load()
        run = spoiled(out, tmp_path, of_bytecode)
        assert replayed(run).passed is None
        with pytest.raises(wflow.InputError, match="bytecode"):
            wflow.solve(x0, law, out=run, if_exists="resume", **OPTIONS)
        with pytest.raises(wflow.InputError, match="bytecode"):
            wflow.rerun(run)
        with pytest.warns(UserWarning, match="bytecode"):
            again = wflow.rerun(run, law=law)
        assert all(np.array_equal(first[name], again[name]) for name in first.data_vars)


def test_workers_and_studies_refuse_runs_of_a_changed_law(tmp_path):
    out, flags = tmp_path / "run.h5", OutputFlags(out=tmp_path, resume=True)
    task = {"x0": np.eye(3), "paths": 2, **OPTIONS}
    with loaded(write(tmp_path / "old", SUBCLASS)) as law:
        run = Run(problem_of_task(task | {"law": law}), out)
        compute(run.part((0, 1)))
        run.close()
    with loaded(write(tmp_path / "new", SUBCLASS, "rate")) as law:
        with pytest.raises(wflow.WflowError, match="fingerprint"):
            Run(problem_of_task(task | {"law": law}), out, "resume")
        with pytest.raises(wflow.InputError, match="fingerprint"):
            check_output(out, task | {"law": law}, flags)


class Counting(HeadLaw):
    """Keeps what it is asked while it runs."""

    def __init__(self, end=False):
        super().__init__()
        self.times, self.end = {}, end

    def drift(self, D, t):
        self.times[t] = True
        if self.end:
            os.kill(os.getpid(), signal.SIGTERM)
        return -D


@pytest.mark.parametrize("end", [False, True])
def test_a_law_that_changes_itself_while_it_runs_is_named_at_the_end(end, tmp_path):
    out, x0, law = tmp_path / "run.h5", np.eye(3), Counting(end)
    ended = pytest.raises(wflow.Interrupted) if end else nullcontext()
    with pytest.warns(UserWarning, match="changed itself while it ran") as warned, ended:
        wflow.solve(x0, law, out=out, **OPTIONS)
    assert len(warned) == 1 and warned[0].filename == __file__
    with pytest.raises(wflow.InputError, match="fingerprint"):
        wflow.solve(x0, law, out=out, if_exists="resume", **OPTIONS)
    if not end:
        assert wflow.rerun(out, law=Counting()).attrs["complete"]


@pytest.mark.parametrize("said", NOT_COMPARABLE)
def test_what_cannot_be_compared_is_named_when_the_run_starts(said, tmp_path):
    out, x0 = tmp_path / "run.h5", np.eye(3)
    with loaded(write(tmp_path / "law", HEADER + NOT_COMPARABLE[said])) as law:
        with pytest.warns(UserWarning, match=re.escape(said)) as warned:
            wflow.solve(x0, law, out=out, **OPTIONS).close()
        assert sum("cannot be resumed" in str(warning.message) for warning in warned) == 1
        with pytest.raises(wflow.InputError, match=re.escape(said)):
            wflow.solve(x0, law, out=out, if_exists="resume", **OPTIONS)
        with pytest.raises(wflow.InputError, match=re.escape(said)):
            wflow.rerun(out, law=law)
