"""Changes of custom head laws: each is noticed, and what is no change is not taken for one.

A law is a small module, and modules beside it where it imports some. `«old|new»` marks what the
change replaces; `=== name` begins a module beside.
"""

import hashlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import h5py
import numpy as np
import pytest

import wflow
from wflow._core.fingerprint import NotComparable, fingerprint
from wflow._core.rng import CounterNormals
from wflow.analysis.verify import Check, verify
from wflow.distributed.parts import Run, compute
from wflow.heads import HeadLaw, OrnsteinUhlenbeck, law_config
from wflow.io.read import differences
from wflow.particles.problem import problem_of_task
from wflow.study.flags import OutputFlags
from wflow.study.folder import check_output

HEADER = "import functools\nimport numpy as np\nfrom wflow.heads import *\n"
OPTIONS = {"heads": 2, "t_final": 0.1, "dt": 0.05}

CHANGES = {
    "constant of a lambda": "law = HeadLaw(lambda D, t: -«1.0|2.0» * D)",
    "operator": "law = HeadLaw(lambda D, t: -D «*|/» 2.0)",
    "comparison": "law = HeadLaw(lambda D, t: -D if t «<|<=» 0.5 else D)",
    "order of operands": "law = HeadLaw(lambda D, t: «D - t|t - D»)",
    "text constant": "law = HeadLaw(lambda D, t: np.linalg.norm(D, «'fro'|'nuc'») * D)",
    "name of a keyword": "law = HeadLaw(lambda D, t: np.clip(D, **dict(«a_min|a_max»=0.0)))",
    "name of a method": "law = HeadLaw(lambda D, t: D - D.«min|max»())",
    "what an except clause returns": """
def drift(D, t):
    try:
        return -D / t
    except ZeroDivisionError:
        return «-D|D»
law = HeadLaw(drift)""",
    "which error is caught": """
class A(Exception): pass
class B(Exception): pass
def drift(D, t):
    try:
        raise A
    except «A|B»:
        return -D
law = HeadLaw(drift)""",
    "what a try statement covers": """
def drift(D, t):
    «try:
        D = D / t|D = D / t
    try:
        pass»
    except ZeroDivisionError:
        pass
    return D
law = HeadLaw(drift)""",
    "default": "law = HeadLaw(lambda D, t, rate=«1.0|2.0»: -rate * D)",
    "keyword-only default": "law = HeadLaw(lambda D, t, *, rate=«1.0|2.0»: -rate * D)",
    "default that is an array": "law = HeadLaw(lambda D, t, M=np.eye(2) * «1|2»: M - D)",
    "argument of a partial": """
def drift(rate, D, t): return -rate * D
law = HeadLaw(functools.partial(drift, «1.0|2.0»))""",
    "keyword of a partial": """
def drift(D, t, rate=1.0): return -rate * D
law = HeadLaw(functools.partial(drift, rate=«3.0|2.0»))""",
    "function of a partial": """
def one(D, t, rate): return -rate * D
def two(D, t, rate): return rate * D
law = HeadLaw(functools.partial(«one|two», rate=1.0))""",
    "partial of a partial": """
def drift(a, b, D, t): return -a * b * D
law = HeadLaw(functools.partial(functools.partial(drift, «1.0|2.0»), 3.0))""",
    "closure over a number": """
def make(rate): return lambda D, t: -rate * D
law = HeadLaw(make(«1.0|2.0»))""",
    "closure over an array": """
def make(M): return lambda D, t: M - D
law = HeadLaw(make(np.array([[1.0, 0.0], [0.0, «1.0|2.0»]])))""",
    "closure over a class": """
def make():
    class Target:
        rate = «1.0|2.0»
    return lambda D, t: -Target.rate * D
law = HeadLaw(make())""",
    "closure over an object": """
class Target:
    def __init__(self, rate): self.rate = rate
    def __call__(self, D): return -self.rate * D
def make(target): return lambda D, t: target(D)
law = HeadLaw(make(Target(«1.0|2.0»)))""",
    "closure of a closure": """
def outer(rate):
    def scale(D): return -rate * D
    return lambda D, t: (lambda: scale(D))()
law = HeadLaw(outer(«1.0|2.0»))""",
    "closure that only a comprehension reads": """
def make(rates): return lambda D, t: -sum([r * x for r in rates for x in [D]])
law = HeadLaw(make([1.0, «1.0|2.0»]))""",
    "global": "RATE = «1.0|2.0»\nlaw = HeadLaw(lambda D, t: -RATE * D)",
    "global in a nested lambda": """
RATE = «1.0|2.0»
law = HeadLaw(lambda D, t: (lambda x: -RATE * x)(D))""",
    "global in a comprehension": """
RATES = (1.0, «1.0|2.0»)
law = HeadLaw(lambda D, t: -sum([r * D for r in RATES]))""",
    "global in a nested function": """
RATE = «1.0|2.0»
def drift(D, t):
    def inner(x):
        return -RATE * x
    return inner(D)
law = HeadLaw(drift)""",
    "global in the body of a local class": """
RATE = «1.0|2.0»
def drift(D, t):
    class Local:
        rate = RATE
    return -Local.rate * D
law = HeadLaw(drift)""",
    "global in a default of a nested function": """
RATE = «1.0|2.0»
def drift(D, t):
    def inner(x, rate=RATE): return -rate * x
    return inner(D)
law = HeadLaw(drift)""",
    "global function": """
def target(t): return np.cos(«1.0|2.0» * t)
law = HeadLaw(lambda D, t: target(t) - D)""",
    "function that a function calls": """
def inner(t): return np.cos(«1.0|2.0» * t)
def target(t): return inner(t) + 1
law = HeadLaw(lambda D, t: target(t) - D)""",
    "functions that call each other": """
def even(n): return 1.0 if n == 0 else odd(n - 1)
def odd(n): return «0.0|0.5» if n == 0 else even(n - 1)
law = HeadLaw(lambda D, t: -even(4) * D)""",
    "function that calls itself": """
def power(n): return 1.0 if n == 0 else «2.0|3.0» * power(n - 1)
law = HeadLaw(lambda D, t: -power(3) * D)""",
    "constant of an imported module": """
import helper
law = HeadLaw(lambda D, t: -helper.RATE * D)
=== helper
RATE = «1.0|2.0»""",
    "function of an imported module": """
import helper as h
law = HeadLaw(lambda D, t: h.drift(D))
=== helper
def drift(D): return -«1.0|2.0» * D""",
    "global of a function of an imported module": """
from helper import drift
law = HeadLaw(drift)
=== helper
RATE = «1.0|2.0»
def drift(D, t): return -RATE * D""",
    "constant imported by its name": """
from helper import RATE
law = HeadLaw(lambda D, t: -RATE * D)
=== helper
RATE = «1.0|2.0»""",
    "module in a package": """
import package.inner.table
law = HeadLaw(lambda D, t: -package.inner.table.RATE * D)
=== package/__init__
=== package/inner/__init__
=== package/inner/table
RATE = «1.0|2.0»""",
    "relative import": """
from package import law
=== package/__init__
from .laws import law
=== package/laws
from wflow.heads import HeadLaw
from . import table
law = HeadLaw(lambda D, t: -table.RATE * D)
=== package/table
RATE = «1.0|2.0»""",
    "import within the function": """
def drift(D, t):
    import helper
    return -helper.RATE * D
law = HeadLaw(drift)
=== helper
RATE = «1.0|2.0»""",
    "import of a name within the function": """
def drift(D, t):
    from helper import RATE, OTHER
    return -RATE * D
law = HeadLaw(drift)
=== helper
RATE, OTHER = «1.0|2.0», 3.0""",
    "import of a module of a package within the function": """
def drift(D, t):
    import package.table as table
    return -table.RATE * D
law = HeadLaw(drift)
=== package/__init__
=== package/table
RATE = «1.0|2.0»""",
    "module that a closure holds": """
def make():
    import helper
    return lambda D, t: -helper.RATE * D
law = HeadLaw(make())
=== helper
RATE = «1.0|2.0»""",
    "module that is used as a value": """
import helper
law = HeadLaw(lambda D, t: -getattr(helper, "RA" + "TE") * D)
=== helper
RATE = «1.0|2.0»""",
    "method": """
class Mine(HeadLaw):
    def drift(self, D, t): return -«1.0|2.0» * D
law = Mine()""",
    "class attribute": """
class Mine(HeadLaw):
    rate = «1.0|2.0»
    def drift(self, D, t): return -self.rate * D
law = Mine()""",
    "inherited method": """
class Base(HeadLaw):
    def drift(self, D, t): return -«1.0|2.0» * D
class Mine(Base): pass
law = Mine()""",
    "inherited class attribute": """
class Base(HeadLaw):
    rate = «1.0|2.0»
    def drift(self, D, t): return -self.rate * D
class Middle(Base): pass
class Mine(Middle): pass
law = Mine()""",
    "base class of an imported module": """
import helper
class Mine(helper.Base): pass
law = Mine()
=== helper
from wflow.heads import HeadLaw
class Base(HeadLaw):
    def drift(self, D, t): return -«1.0|2.0» * D""",
    "order of the base classes": """
class A:
    def drift(self, D, t): return -D
class B:
    def drift(self, D, t): return D
class Mine(«A, B|B, A», HeadLaw): pass
law = Mine()""",
    "property": """
class Mine(HeadLaw):
    @property
    def rate(self): return «1.0|2.0»
    def drift(self, D, t): return -self.rate * D
law = Mine()""",
    "cached property": """
class Mine(HeadLaw):
    @functools.cached_property
    def rate(self): return «1.0|2.0»
    def drift(self, D, t): return -self.rate * D
law = Mine()""",
    "static method": """
class Mine(HeadLaw):
    @staticmethod
    def rate(): return «1.0|2.0»
    def drift(self, D, t): return -self.rate() * D
law = Mine()""",
    "class method": """
class Mine(HeadLaw):
    @classmethod
    def rate(cls): return «1.0|2.0»
    def drift(self, D, t): return -self.rate() * D
law = Mine()""",
    "custom descriptor": """
class Rate:
    def __get__(self, instance, owner): return «1.0|2.0»
class Mine(HeadLaw):
    rate = Rate()
    def drift(self, D, t): return -self.rate * D
law = Mine()""",
    "__getattr__": """
class Mine(HeadLaw):
    def __getattr__(self, name): return {"rate": «1.0|2.0»}[name]
    def drift(self, D, t): return -self.rate * D
law = Mine()""",
    "object that refuses unknown attributes": """
class Rates:
    __slots__ = ("rate",)
    def __init__(self, rate): self.rate = rate
    def __getattr__(self, name): raise KeyError(name)
    def __call__(self, t): return self.rate
R = Rates(«1.0|2.0»)
law = HeadLaw(lambda D, t: -R(t) * R.rate * D)""",
    "metaclass": """
class Meta(type):
    rate = «1.0|2.0»
class Mine(HeadLaw, metaclass=Meta):
    def drift(self, D, t): return -type(type(self)).rate * D
law = Mine()""",
    "method that calls super()": """
class Base(HeadLaw):
    def drift(self, D, t): return -«1.0|2.0» * D
class Mine(Base):
    def drift(self, D, t): return super().drift(D, t) + 1
law = Mine()""",
    "attribute of the law": """
class Mine(HeadLaw):
    def __init__(self, rate): super().__init__(); self.rate = rate
    def drift(self, D, t): return -self.rate * D
law = Mine(«1.0|2.0»)""",
    "type of a number": """
class Mine(HeadLaw):
    def __init__(self, rate): super().__init__(); self.rate = rate
    def drift(self, D, t): return -self.rate * D
law = Mine(«2.0|np.float32(2.0)»)""",
    "one entry of an array": """
M = np.zeros((50, 50))
M[«3, 4|4, 3»] = 1.0
law = HeadLaw(lambda D, t: M[:2, :2] - D)""",
    "type of an array": "M = np.zeros(3, «'f4'|'i4'»)\nlaw = HeadLaw(lambda D, t: M[0] - D)",
    "shape of an array": "M = np.zeros(«(2, 3)|(3, 2)»)\nlaw = HeadLaw(lambda D, t: M[0, 0] - D)",
    "array of objects": """
M = np.array([None, «1.0|2.0»], object)
law = HeadLaw(lambda D, t: -M[1] * D)""",
    "mask of an array": """
M = np.ma.masked_array([1.0, 2.0], «[True, False]|[False, True]»)
law = HeadLaw(lambda D, t: -M.sum() * D)""",
    "array in a dict in a list": """
TABLE = [{"a": (np.zeros(2), np.array([0.0, «1.0|2.0»]))}]
law = HeadLaw(lambda D, t: -TABLE[0]["a"][1][1] * D)""",
    "value of a dict": "T = {'a': 1.0, 'b': «1.0|2.0»}\nlaw = HeadLaw(lambda D, t: -T['b'] * D)",
    "key of a dict": "T = {«1|2»: 1.0, 3: 2.0}\nlaw = HeadLaw(lambda D, t: -T.get(1, 5) * D)",
    "order of a dict": """
T = {«'a': 1.0, 'b': 2.0|'b': 2.0, 'a': 1.0»}
law = HeadLaw(lambda D, t: -list(T.values())[0] * D)""",
    "order of a dict with other keys": """
T = {«(1, 2): 1, 3.0: 2|3.0: 2, (1, 2): 1»}
law = HeadLaw(lambda D, t: -list(T.values())[0] * D)""",
    "order of an OrderedDict": """
from collections import OrderedDict
T = OrderedDict(«a=1.0, b=2.0|b=2.0, a=1.0»)
law = HeadLaw(lambda D, t: -list(T.values())[0] * D)""",
    "order of a subclass of dict": """
class Table(dict): pass
T = Table(«a=1.0, b=2.0|b=2.0, a=1.0»)
law = HeadLaw(lambda D, t: -list(T.values())[0] * D)""",
    "order of a dict behind a mapping proxy": """
from types import MappingProxyType
T = MappingProxyType({«'a': 1.0, 'b': 2.0|'b': 2.0, 'a': 1.0»})
law = HeadLaw(lambda D, t: -list(T.values())[0] * D)""",
    "order of a dict that is an attribute": """
class Mine(HeadLaw):
    def __init__(self, **terms): super().__init__(); self.terms = terms
    def drift(self, D, t): return -list(self.terms.values())[0] * D
law = Mine(«a=1.0, b=2.0|b=2.0, a=1.0»)""",
    "item of a set": "T = {1.0, «2.0|3.0»}\nlaw = HeadLaw(lambda D, t: -sum(T) * D)",
    "order of a list": "T = [«1.0, 2.0|2.0, 1.0»]\nlaw = HeadLaw(lambda D, t: -T[0] * D)",
    "list or tuple of lists": """
T = [[1.0], «[2.0]|[3.0]»]
law = HeadLaw(lambda D, t: -T[1][0] * D)""",
    "list that holds itself": """
T = [«1.0|2.0»]
T.append(T)
law = HeadLaw(lambda D, t: -T[1][0] * D)""",
    "default of a dataclass": """
from dataclasses import dataclass
@dataclass(frozen=True)
class Settings:
    rate: float = «1.0|2.0»
S = Settings
law = HeadLaw(lambda D, t: -S().rate * D)""",
    "field of a dataclass": """
from dataclasses import dataclass, field
@dataclass
class Settings:
    rates: list = field(default_factory=lambda: [1.0])
S = Settings(«[1.0]|[2.0]»)
law = HeadLaw(lambda D, t: -S.rates[0] * D)""",
    "field of a dataclass with slots": """
from dataclasses import dataclass
@dataclass(slots=True)
class Settings:
    rate: float
S = Settings(«1.0|2.0»)
law = HeadLaw(lambda D, t: -S.rate * D)""",
    "slots": """
class Settings:
    __slots__ = ("rate",)
    def __init__(self, rate): self.rate = rate
class More(Settings):
    __slots__ = ("other",)
S = More(«1.0|2.0»)
law = HeadLaw(lambda D, t: -S.rate * D)""",
    "named tuple": """
from typing import NamedTuple
class Settings(NamedTuple):
    rate: float = 1.0
S = Settings(«3.0|2.0»)
law = HeadLaw(lambda D, t: -S.rate * D)""",
    "enumeration": """
from enum import Enum
class Rate(Enum):
    SLOW = «1.0|2.0»
    FAST = 3.0
law = HeadLaw(lambda D, t: -Rate.SLOW.value * D)""",
    "member of an enumeration": """
from enum import Enum
class Rate(Enum):
    SLOW = 1.0
    FAST = 3.0
RATE = Rate.«SLOW|FAST»
law = HeadLaw(lambda D, t: -RATE.value * D)""",
    "attribute of a namespace": """
from types import SimpleNamespace
args = SimpleNamespace(rate=«1.0|2.0», out="a")
law = HeadLaw(lambda D, t: -args.rate * D)""",
    "__call__ of an object": """
class Drift:
    def __call__(self, D, t): return -«1.0|2.0» * D
law = HeadLaw(Drift())""",
    "attribute of an object that is called": """
class Drift:
    def __init__(self, rate): self.rate = rate
    def __call__(self, D, t): return -self.rate * D
law = HeadLaw(Drift(«1.0|2.0»))""",
    "object of a bound method": """
class Model:
    def __init__(self, rate): self.rate = rate
    def drift(self, D, t): return -self.rate * D
law = HeadLaw(Model(«1.0|2.0»).drift)""",
    "subclass of dict": """
class Table(dict):
    scale = 1.0
T = Table(rate=«1.0|2.0»)
law = HeadLaw(lambda D, t: -T["rate"] * D)""",
    "function behind lru_cache": """
@functools.lru_cache
def rate(t): return «1.0|2.0»
law = HeadLaw(lambda D, t: -rate(t) * D)""",
    "function behind a decorator": """
def decorated(function):
    @functools.wraps(function)
    def call(*args): return function(*args)
    return call
@decorated
def drift(D, t): return -«1.0|2.0» * D
law = HeadLaw(drift)""",
    "argument of a decorator": """
def scaled(by):
    def decorate(function):
        @functools.wraps(function)
        def call(*args): return by * function(*args)
        return call
    return decorate
@scaled(«1.0|2.0»)
def drift(D, t): return -D
law = HeadLaw(drift)""",
    "function behind a decorator of the standard library": """
import contextlib
@contextlib.contextmanager
def rate(): yield «1.0|2.0»
def drift(D, t):
    with rate() as r: return -r * D
law = HeadLaw(drift)""",
    "attribute of a function": """
def drift(D, t): return -drift.rate * D
drift.rate = «1.0|2.0»
law = HeadLaw(drift)""",
    "list of functions": """
TERMS = [lambda D: -D, lambda D: «1.0|2.0» * D]
law = HeadLaw(lambda D, t: sum(f(D) for f in TERMS))""",
    "compiled function": """
import numba
@numba.njit
def rate(t): return «1.0|2.0»
law = HeadLaw(lambda D, t: -rate(t) * D)""",
    "option of a compiled function": """
import numba
@numba.njit(fastmath=«False|True»)
def rate(t): return t + 1.0
law = HeadLaw(lambda D, t: -rate(t) * D)""",
    "global of a compiled function": """
import numba
RATE = «1.0|2.0»
@numba.njit
def rate(t): return RATE
law = HeadLaw(lambda D, t: -rate(t) * D)""",
    "compiled ufunc": """
import numba
@numba.vectorize
def rate(t): return t * «1.0|2.0»
law = HeadLaw(lambda D, t: -rate(D))""",
    "function behind np.vectorize": """
rate = np.vectorize(lambda t: t * «1.0|2.0»)
law = HeadLaw(lambda D, t: -rate(D))""",
    "ufunc": "f = «np.sin|np.cos»\nlaw = HeadLaw(lambda D, t: -f(D))",
    "function of NumPy": "from numpy import «tril|triu» as f\nlaw = HeadLaw(lambda D, t: -f(D))",
    "built-in function": "f = «min|max»\nlaw = HeadLaw(lambda D, t: -f(1, t) * D)",
    "method of an array": "f = np.arange(3.0).«sum|max»\nlaw = HeadLaw(lambda D, t: -f() * D)",
    "class of an installed package": """
from collections import «Counter|OrderedDict» as kind
law = HeadLaw(lambda D, t: -len(kind()) * D)""",
    "object of the standard library": """
from fractions import Fraction
RATE = Fraction(«1|2», 3)
law = HeadLaw(lambda D, t: -float(RATE) * D)""",
    "interpolation of SciPy": """
from scipy.interpolate import CubicSpline
rate = CubicSpline([0.0, 1.0, 2.0], [0.0, «1.0|2.0», 0.0])
law = HeadLaw(lambda D, t: -rate(t) * D)""",
    "drift of a subclass of OrnsteinUhlenbeck": """
class Mine(OrnsteinUhlenbeck):
    def drift(self, D, t): return super().drift(D, t) * «1.0|2.0»
law = Mine(np.eye(3))""",
    "step of a subclass of OrnsteinUhlenbeck": """
class Mine(OrnsteinUhlenbeck):
    def step(self, D, t, dt, normals): return super().step(D, t, dt * «1.0|2.0», normals)
law = Mine(np.eye(3))""",
    "attribute of a subclass of OrnsteinUhlenbeck": """
class Mine(OrnsteinUhlenbeck):
    def __init__(self, scale): super().__init__(np.eye(3)); self.scale = scale
    def drift(self, D, t): return super().drift(D, t) * self.scale
law = Mine(«1.0|2.0»)""",
    "target of a subclass of Oscillating": """
class Mine(Oscillating):
    def target(self, t, heads): return super().target(«t|2 * t», heads)
law = Mine(3)""",
    "subclass of Schedule": """
class Mine(Schedule):
    def _at(self, table, t): return super()._at(table, «t|t / 2»)
law = Mine([0.0, 1.0], np.array([0 * np.eye(3), np.eye(3)])[:, None], "linear")""",
    "subclass of Frozen": """
class Mine(Frozen):
    def drift(self, D, t): return «-D|D»
law = Mine()""",
    "subclass with the name of its base": """
import wflow.heads as h
class OrnsteinUhlenbeck(h.OrnsteinUhlenbeck):
    def drift(self, D, t): return -«1.0|2.0» * D
law = OrnsteinUhlenbeck(np.eye(3))""",
    "subclass with its own config": """
class Mine(OrnsteinUhlenbeck):
    def drift(self, D, t): return -«1.0|2.0» * D
    def to_config(self): return {"mean": np.eye(3).tolist()}
law = Mine(np.eye(3))""",
    "registered law": """
@register
class Registered(HeadLaw):
    def __init__(self, rate): super().__init__(); self.rate = rate
    def drift(self, D, t): return -«1.0|2.0» * self.rate * D
    def to_config(self): return {"rate": self.rate}
law = Registered(0.5)""",
    "method replaced on a law of wflow": """
law = OrnsteinUhlenbeck(np.eye(3))
law.drift = lambda D, t: -«1.0|2.0» * D""",
    "diffusion": "law = HeadLaw(None, lambda D, t: «1.0|2.0»)",
    "size of the noise": "law = HeadLaw(None, «1.0|2.0»)",
    "symmetry": "law = HeadLaw(lambda D, t: -D, symmetric=«True|False»)",
}

SAME = {
    "comment": "law = HeadLaw(lambda D, t: -D)  # «one|another»",
    "moved down": "«|\n\n# moved\n\nX = 1\n\n»def drift(D, t): return -D\nlaw = HeadLaw(drift)",
    "docstring": """
def drift(D, t):
    «"one"|"another"»
    return -D if t else None
law = HeadLaw(drift)""",
    "docstring or none": """
def drift(D, t):
    «"one"|»
    if t: return None
    return -D
law = HeadLaw(drift)""",
    "docstring of a class": """
class Mine(HeadLaw):
    "«one|another»"
    def drift(self, D, t): return -D
law = Mine()""",
    "docstring of a local class": """
def drift(D, t):
    class Local:
        "«one|another»"
        rate = 1.0
    return -Local.rate * D
law = HeadLaw(drift)""",
    "lines": "law = HeadLaw(lambda D, t: «-D * 2 + 1|(\n    -D * 2\n    + 1\n)»)",
    "name of a local variable": """
def drift(D, t):
    «a|b» = 2 * t
    return -«a|b» * D
law = HeadLaw(drift)""",
    "name of the function": "def «f|g»(D, t): return -D\nlaw = HeadLaw(«f|g»)",
    "order of keyword arguments of a partial": """
def drift(D, t, a, b): return -a * b * D
law = HeadLaw(functools.partial(drift, «a=1.0, b=2.0|b=2.0, a=1.0»))""",
    "order of options of a compiled function": """
import numba
@numba.njit(«fastmath=True, nogil=True|nogil=True, fastmath=True»)
def rate(t): return t + 1.0
law = HeadLaw(lambda D, t: -rate(t) * D)""",
    "order of attributes": """
class Mine(HeadLaw):
    def drift(self, D, t): return -self.a * D
law = Mine()
«law.a, law.b = 1, 2|law.b, law.a = 2, 1»""",
    "order of attributes of a namespace": """
from types import SimpleNamespace
S = SimpleNamespace(«a=1.0, b=2.0|b=2.0, a=1.0»)
law = HeadLaw(lambda D, t: -vars(S)["a"] * D)""",
    "order of a set": """
T = {«'a', 'b', 'c'|'c', 'b', 'a'»}
law = HeadLaw(lambda D, t: -len(T) * D)""",
    "order of methods": """
class Mine(HeadLaw):
    «a = 1.0
    def f(self): return 1
    |def f(self): return 1
    a = 1.0
    »
    def drift(self, D, t): return -self.a * D
law = Mine()""",
    "order of functions": """
«def f(t): return 1.0
def g(t): return 2.0
|def g(t): return 2.0
def f(t): return 1.0
»law = HeadLaw(lambda D, t: -f(t) * g(t) * D)""",
    "copy of an array": "M = np.eye(2)«|.copy()»\nlaw = HeadLaw(lambda D, t: M - D)",
    "layout of an array": """
M = np.array([[1.0, 2.0], [3.0, 4.0]]«|, order='F'»)
law = HeadLaw(lambda D, t: M - D)""",
    "part of a larger array": """
M = «np.arange(2.0)|np.arange(4.0)[:2]»
law = HeadLaw(lambda D, t: M[0] - D)""",
    "annotations": "def drift(D, t«|: float»)«| -> float»: return -D\nlaw = HeadLaw(drift)",
    "annotation of a field": """
from dataclasses import dataclass
@dataclass
class S:
    rate: «float|'int'» = 1.0
s = S()
law = HeadLaw(lambda D, t: -s.rate * D)""",
    "one list twice or two lists": """
a = [1.0]
T = [a, «a|[1.0]»]
law = HeadLaw(lambda D, t: -T[1][0] * D)""",
    "constant that Python folds": "law = HeadLaw(lambda D, t: -D * «6.0|(2.0 * 3.0)»)",
    "global that is not used": "X = «1|2»\nlaw = HeadLaw(lambda D, t: -D)",
    "attribute with the name of a global": """
real = «1.0|2.0»
law = HeadLaw(lambda D, t: -D.real)""",
    "part of a module that is not used": """
import helper
law = HeadLaw(lambda D, t: -helper.RATE * D)
=== helper
RATE, OTHER = 1.0, «2.0|3.0»
def other(): return «1|2»""",
    "part of a namespace that is not used": """
from types import SimpleNamespace
args = SimpleNamespace(rate=1.0, resume=«False|True»)
law = HeadLaw(lambda D, t: -args.rate * D)""",
    "part of a namespace that a closure does not use": """
from types import SimpleNamespace
def make(args): return lambda D, t: -args.rate * D
law = HeadLaw(make(SimpleNamespace(rate=1.0, resume=«False|True»)))""",
    "function moved to another module": """
«from helper import rate|def rate(t): return 1.0»
law = HeadLaw(lambda D, t: -rate(t) * D)
=== helper
def rate(t): return 1.0""",
    "name of the file": """
«import one as m|import two as m»
law = HeadLaw(lambda D, t: -m.rate(t) * D)
=== one
def rate(t): return 1.0
=== two
def rate(t): return 1.0""",
    "cached values": """
class Mine(HeadLaw):
    @functools.cached_property
    def rate(self): return 1.0
    def drift(self, D, t): return -self.rate * D
law = Mine()
«|law.drift(1.0, 0.0)»""",
    "cached calls": """
@functools.lru_cache
def rate(t): return 1.0
law = HeadLaw(lambda D, t: -rate(t) * D)
«|rate(0.0)»""",
    "compiled or not yet": """
import numba
@numba.njit
def rate(t): return 1.0
law = HeadLaw(lambda D, t: -rate(t) * D)
«|rate(0.0)»""",
}

# What cannot be compared, and what is said of it.
NOT_COMPARABLE = {
    "drift closes over a random generator (`rng`)": """
def make(rng): return lambda D, t: rng.normal() * D
law = HeadLaw(make(np.random.default_rng(0)))""",
    "drift uses a random generator (`RNG`)": """
RNG = np.random.default_rng(0)
law = HeadLaw(lambda D, t: RNG.normal() * D)""",
    "drift > noise uses a method of a random generator (`np.random.normal`)": """
def noise(D): return np.random.normal()
law = HeadLaw(lambda D, t: noise(D))""",
    "drift uses a method of a random generator (`gauss`)": """
from random import gauss
law = HeadLaw(lambda D, t: gauss(0, 1) * D)""",
    "the law Mine holds a random generator (`rng`)": """
class Mine(HeadLaw):
    def __init__(self): super().__init__(); self.rng = np.random.default_rng(0)
    def drift(self, D, t): return self.rng.normal() * D
law = Mine()""",
    "Mine has a random generator (`rng`)": """
class Mine(OrnsteinUhlenbeck):
    rng = np.random.default_rng(0)
law = Mine(np.eye(3))""",
    "diffusion has as a default an open file (`file`)": """
law = HeadLaw(None, lambda D, t, file=open(__file__): 1.0)""",
    "drift uses a generator (`steps`)": """
steps = (i for i in range(100))
law = HeadLaw(lambda D, t: -next(steps) * D)""",
    "drift uses an iterator (`steps`)": """
import itertools
steps = itertools.count()
law = HeadLaw(lambda D, t: -next(steps) * D)""",
    "drift closes over a _thread.lock, whose state cannot be compared (`guard`)": """
import threading
def make(guard):
    def drift(D, t):
        with guard: return -D
    return drift
law = HeadLaw(make(threading.Lock()))""",
    "drift > TABLE[1]['a'] holds a random generator (`[0]`)": """
TABLE = [1, {"a": [np.random.default_rng(0)]}]
law = HeadLaw(lambda D, t: TABLE[1]["a"][0].normal() * D)""",
    "drift calls eval": "law = HeadLaw(lambda D, t: eval('-D'))",
    "drift calls importlib.import_module": """
import importlib
law = HeadLaw(lambda D, t: -importlib.import_module("math").pi * D)""",
    "drift reads sys.modules, and what that holds": """
import sys
law = HeadLaw(lambda D, t: -sys.modules["math"].pi * D)""",
    "drift reads the __globals__ of an object, and what that holds": """
R = 1.0
def f(): return 0.0
law = HeadLaw(lambda D, t: -f.__globals__["R"] * D)""",
    "drift reads os.environ, and what that holds": """
import os
law = HeadLaw(lambda D, t: -float(os.environ.get("WFLOW_RATE", 1)) * D)""",
    "drift > rate reads os.environ, and what that holds": """
from os import environ
def rate(): return float(environ["HOME"] != "")
law = HeadLaw(lambda D, t: -rate() * D)""",
    "drift reads os.getenv, and what that holds": """
def drift(D, t):
    import os
    return -float(os.getenv("WFLOW_RATE", "1")) * D
law = HeadLaw(drift)""",
    "drift reads a file (open), and what that holds": """
def drift(D, t):
    with open(__file__) as file: return -len(file.read()) * D
law = HeadLaw(drift)""",
    "drift reads a file (read_text), and what that holds": """
from pathlib import Path
law = HeadLaw(lambda D, t: -len(Path(__file__).read_text()) * D)""",
    "drift reads a file (read_bytes), and what that holds": """
from pathlib import Path
P = Path(__file__)
law = HeadLaw(lambda D, t: -len(P.read_bytes()) * D)""",
    "drift reads a file (numpy.loadtxt), and what that holds": """
law = HeadLaw(lambda D, t: -np.loadtxt(["1.0"]) * D)""",
    "drift reads a file (numpy.fromfile), and what that holds": """
from numpy import fromfile
law = HeadLaw(lambda D, t: -float(fromfile(__file__, "u1", 1)[0]) * D)""",
    "drift reads a file (numpy.load), and what that holds": """
import io
def table():
    held = io.BytesIO(); np.save(held, 1.0); held.seek(0)
    return held
law = HeadLaw(lambda D, t: -np.load(table()) * D)""",
    "Mine > scale reads a file (open), and what that holds": """
class Mine(HeadLaw):
    @property
    def rate(self): return self.scale()
    def scale(self):
        with open(__file__) as file: return 1.0
    def drift(self, D, t): return -self.rate * D
law = Mine()""",
    "drift > Table > __init__ reads a file (open), and what that holds": """
class Table:
    def __init__(self):
        with open(__file__) as file: self.rate = len(file.read())
law = HeadLaw(lambda D, t: -Table().rate * D)""",
    "Mine > target reads a file (open), and what that holds": """
class Mine(Oscillating):
    def target(self, t, heads):
        open(__file__).close()
        return super().target(t, heads)
law = Mine(3)""",
    "drift uses a ufunc, whose code cannot be seen (`f`)": """
f = np.frompyfunc(lambda x: -x, 1, 1)
law = HeadLaw(lambda D, t: f(D).astype(float))""",
}

# Laws that read a file or the environment before they run, or never.
READ_BEFORE = {
    "in a constructor": """
class Mine(HeadLaw):
    def __init__(self):
        super().__init__()
        with open(__file__) as file: self.rate = len(file.read())
    def drift(self, D, t): return super().drift(D, t) or -self.rate * D
law = Mine()""",
    "in the constructor of an object that it holds": """
class Table:
    def __init__(self, path): self.rate = len(np.fromfile(path, "u1"))
    def at(self, t): return self.rate
T = Table(__file__)
law = HeadLaw(lambda D, t: -T.at(t) * D)""",
    "in a class method that makes it": """
from dataclasses import dataclass
from pathlib import Path
@dataclass
class Settings:
    rate: float
    @classmethod
    def read(cls, path): return cls(len(Path(path).read_text()))
    def save(self, path):
        with open(path, "w") as file: file.write(str(self.rate))
S = Settings.read(__file__)
def drift(D, t, s=S): return -s.rate * D
law = HeadLaw(drift)""",
    "in a module": """
import os
RATE = float(len(os.environ) > 0) + len(open(__file__).read())
law = HeadLaw(lambda D, t: -RATE * D)""",
    "through names of its own": """
def open(t): return t
def read_text(t): return open(t)
class Box:
    environ, load = 1.0, 2.0
law = HeadLaw(lambda D, t: -read_text(t) * Box.environ * Box.load * D)""",
    "in an installed package": """
import tempfile, os
law = HeadLaw(lambda D, t: -len(os.path.join(tempfile.gettempdir(), "a")) * D)""",
}


def write(folder: Path, text: str, new: bool) -> Path:
    """The modules of a law in a folder, before or after the change."""
    text = re.sub(r"«(.*?)\|(.*?)»", lambda m: m[1 + new], text, flags=re.DOTALL)
    first, *others = re.split(r"^=== (.*)\n?", text, flags=re.MULTILINE)
    folder.mkdir(parents=True)
    (folder / "mylaw.py").write_text(HEADER + first)
    for name, source in zip(others[::2], others[1::2], strict=True):
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return folder


@contextmanager
def loaded(folder: Path) -> Iterator[HeadLaw]:
    """The law of the modules in a folder, imported as if for the first time."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield importlib.import_module("mylaw").law
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]


def identity_of(folder: Path) -> tuple[str, str]:
    """Fingerprint and configuration of the law in a folder."""
    with loaded(folder) as law:
        return fingerprint(law), json.dumps(law_config(law))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_law_changes_its_fingerprint(change, tmp_path):
    old = identity_of(write(tmp_path / "old", CHANGES[change], False))
    new = identity_of(write(tmp_path / "new", CHANGES[change], True))
    assert old[0] != new[0] and old[1] != new[1]


@pytest.mark.parametrize("change", SAME)
def test_what_does_not_change_a_law_keeps_its_fingerprint(change, tmp_path):
    old = identity_of(write(tmp_path / "old", SAME[change], False))
    new = identity_of(write(tmp_path / "new", SAME[change], True))
    assert old[0] == new[0]


@pytest.mark.parametrize("case", READ_BEFORE)
def test_a_law_that_reads_before_it_runs_can_be_compared(case, tmp_path):
    assert identity_of(write(tmp_path / "law", READ_BEFORE[case], False))[0].startswith("2:")


def test_fingerprints_are_those_of_other_processes_whatever_their_hash_seed(tmp_path):
    """All laws above, in a process with another hash seed, in the reverse order."""
    texts = [*CHANGES.values(), *SAME.values(), *READ_BEFORE.values()]
    folders = [write(tmp_path / f"{i:03d}", text, False) for i, text in enumerate(texts)]
    here = {str(folder): identity_of(folder)[0] for folder in folders}
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from test_laws import identity_of\n"
        "print(json.dumps({f: identity_of(Path(f))[0] for f in sys.argv[2:]}))"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), *list(here)[::-1]]
    env = os.environ | {"PYTHONHASHSEED": "1"}
    assert json.loads(subprocess.check_output(command, env=env)) == here


def test_a_law_that_is_typed_in_has_the_fingerprint_of_the_one_in_a_file(tmp_path):
    for name in ("inherited method", "closure over an object", "global in a nested function"):
        folder = write(tmp_path / name, CHANGES[name], False)
        typed: dict = {"__name__": "__main__"}
        exec((folder / "mylaw.py").read_text(), typed)  # as a notebook does: there is no file
        assert fingerprint(typed["law"]) == identity_of(folder)[0]


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
    table = np.random.default_rng(0).standard_normal(12_500_000)  # 100 MB
    shared: list = [1.0]
    for _ in range(1000):
        shared = [shared, shared]  # 2^1000 paths
    rings = [[i] for i in range(1000)]
    for i, ring in enumerate(rings):
        ring += [rings[i - 1], rings[i - 2], rings]
    begun = time.perf_counter()
    hashlib.sha256(table).digest()
    hashing = time.perf_counter() - begun
    begun = time.perf_counter()
    fingerprint(HeadLaw(lambda D, t: table[0] * shared[0] * rings[0] * D))
    assert time.perf_counter() - begun < 3 * hashing + 2.0


END_TO_END = [
    "keyword of a partial",
    "drift of a subclass of OrnsteinUhlenbeck",
    "subclass with its own config",
    "function of an imported module",
    "keyword-only default",
    "inherited method",
    "property",
    "closure over a class",
    "subclass with the name of its base",
    "method replaced on a law of wflow",
]


def test_a_run_is_neither_resumed_nor_run_again_with_a_changed_law(cases, tmp_path):
    for change in END_TO_END[: cases(4, len(END_TO_END))]:
        check_end_to_end(tmp_path / change, CHANGES[change])


def check_end_to_end(folder: Path, text: str) -> None:
    out, x0 = folder / "run.h5", np.eye(3)
    with loaded(write(folder / "old", text, False)) as law:
        first = wflow.solve(x0, law, out=out, **OPTIONS)
        wflow.solve(x0, law, out=out, if_exists="resume", **OPTIONS).close()
        again = wflow.rerun(out, law=law)
        assert all(np.array_equal(first[name], again[name]) for name in first.data_vars)
        first.close()
    with pytest.raises(wflow.InputError, match=r"is custom: .*law=\.\.\..*wflow\.solve"):
        wflow.rerun(out)
    assert replayed(out).passed is None and "is custom" in replayed(out).note
    with loaded(write(folder / "new", text, True)) as law:
        with pytest.raises(wflow.InputError, match=r"law\.fingerprint \(its code or data"):
            wflow.solve(x0, law, out=out, if_exists="resume", **OPTIONS)
        with pytest.raises(wflow.InputError, match=r"differs from that of the run in fingerprint"):
            wflow.rerun(out, law=law)


def test_a_registered_law_is_made_again_where_it_is_that_of_the_run(tmp_path):
    text, out, x0 = CHANGES["registered law"], tmp_path / "run.h5", np.eye(3)
    with loaded(write(tmp_path / "old", text, False)) as law:
        first = wflow.solve(x0, law, out=out, **OPTIONS)
        again = wflow.rerun(out)
        assert all(np.array_equal(first[name], again[name]) for name in first.data_vars)
        wflow.solve(x0, law, out=out, if_exists="resume", **OPTIONS).close()
        first.close()
        assert replayed(out).passed
    with loaded(write(tmp_path / "new", text, True)) as law:
        with pytest.raises(wflow.InputError, match=r"registered law .* differs .* fingerprint"):
            wflow.rerun(out)
        with pytest.raises(wflow.InputError, match=r"law\.fingerprint \(its code or data"):
            wflow.solve(x0, law, out=out, if_exists="resume", **OPTIONS)
        assert replayed(out).passed is None
        assert "differs from that of the run" in replayed(out).note


def replayed(out: Path) -> Check:
    step = "the first recorded step follows from the configuration"
    return next(check for check in verify(out).checks if check.name == step)


def test_rerun_refuses_a_configuration_that_is_not_that_of_a_whole_run(tmp_path):
    from run_layouts import spoiled

    out = tmp_path / "run.h5"
    wflow.solve(np.eye(3), OrnsteinUhlenbeck(np.eye(3)), out=out, **OPTIONS).close()
    with h5py.File(out) as file:
        config = json.loads(file.attrs["config"])
    for change, said in (
        (config | {"first_path": 0}, "holds first_path"),
        ({key: value for key, value in config.items() if key != "dt"}, "lacks dt"),
        (config | {"law": 3}, "config.law is 3"),
        (config | {"law": {"name": "OrnsteinUhlenbeck", "speed": 3}}, "cannot be made"),
        (config | {"law": config["law"] | {"fingerprint": "0123"}}, "is custom"),
    ):
        text = json.dumps(change)
        changed = spoiled(
            out, tmp_path, lambda file, text=text: file.attrs.update({"config": text})
        )
        with pytest.raises(wflow.InputError, match=said):
            wflow.rerun(changed)


def test_workers_and_studies_refuse_runs_of_a_changed_law(tmp_path):
    flags = OutputFlags(out=tmp_path, resume=True)
    task = {"x0": np.eye(3), "paths": 2, **OPTIONS}
    out = tmp_path / "run.h5"

    def begin(law):
        run = Run(problem_of_task(task | {"law": law}), out)
        compute(run.part((0, 1)))
        run.close()

    with loaded(write(tmp_path / "old", CHANGES["property"], False)) as law:
        begin(law)
    with loaded(write(tmp_path / "new", CHANGES["property"], True)) as law:
        with pytest.raises(wflow.WflowError, match=r"law\.fingerprint"):
            Run(problem_of_task(task | {"law": law}), out, "resume")
        with pytest.raises(wflow.InputError, match=r"law\.fingerprint"):
            check_output(out, task | {"law": law}, flags)

    rng, out = np.random.default_rng(0), tmp_path / "other.h5"
    law = HeadLaw(lambda D, t: rng.normal() * D)
    said = r"because drift closes over a random generator \(`rng`\)"
    with pytest.warns(UserWarning, match=said):
        begin(law)
    with pytest.raises(wflow.InputError, match=said):
        Run(problem_of_task(task | {"law": law}), out, "resume")
    with pytest.raises(wflow.InputError, match=said):
        check_output(out, task | {"law": law}, flags)


def test_a_run_in_memory_says_nothing_of_resuming():
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wflow.solve(np.eye(3), HeadLaw(lambda D, t: rng.normal() * D), **OPTIONS)


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


def test_a_law_that_stays_as_it_is_is_not_said_to_change(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for law in (HeadLaw(lambda D, t: -D), OrnsteinUhlenbeck(np.eye(3))):
            wflow.solve(
                np.eye(3), law, out=tmp_path / "run.h5", if_exists="overwrite", **OPTIONS
            ).close()


def test_a_fingerprint_of_another_scheme_or_python_is_said_to_be_one():
    asked = {"law": law_config(HeadLaw(lambda D, t: -D))}
    old = {"law": {"name": "HeadLaw", "symmetric": True, "fingerprint": "0123456789abcdef"}}
    assert "made by another version of wflow" in differences(old, asked)[0]
    other = {"law": asked["law"] | {"fingerprint": "2:cpython-3.99:0123"}}
    assert "made by cpython-3.99, this is" in differences(other, asked)[0]
    changed = {"law": asked["law"] | {"fingerprint": asked["law"]["fingerprint"][:-1]}}
    assert "its code or data" in differences(changed, asked)[0]


@pytest.mark.parametrize("said", NOT_COMPARABLE)
def test_what_cannot_be_compared_is_named_when_the_run_starts(said, tmp_path):
    out, x0 = tmp_path / "run.h5", np.eye(3)
    with loaded(write(tmp_path / "law", NOT_COMPARABLE[said], False)) as law:
        with pytest.raises(NotComparable, match=re.escape(said)):
            fingerprint(law)
        with pytest.warns(
            UserWarning, match="cannot be resumed because " + re.escape(said)
        ) as warned:
            wflow.solve(x0, law, out=out, **OPTIONS).close()
        assert sum("cannot be resumed" in str(warning.message) for warning in warned) == 1
        for later in (
            lambda: wflow.solve(x0, law, out=out, if_exists="resume", **OPTIONS),
            lambda: wflow.rerun(out, law=law),
        ):
            with pytest.raises(wflow.InputError, match=re.escape(said)):
                later()
