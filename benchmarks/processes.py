"""Peak memory of separate processes, with what is installed here or what pip installs for wflow."""

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


def required() -> set[str]:
    """Names of the distributions that `pip install` of wflow alone installs."""
    found: set[str] = set()
    waiting = ["wflow-transformers"]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found.add(name)
            needs = [Requirement(text) for text in metadata.requires(name) or ()]
            waiting += [need.name for need in needs if not need.marker or need.marker.evaluate()]
    return found


@contextmanager
def as_installed_by_pip() -> Iterator[dict[str, str]]:
    """Environment in which `python -S` finds wflow and its requirements, and nothing else.

    Libraries import optional packages that they find: pandas imports pyarrow, xarray imports dask.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in required():
            distribution = metadata.distribution(name)
            tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
            for top in tops:
                link = Path(folder) / top
                if not link.exists():
                    link.symlink_to(str(distribution.locate_file(top)))
        yield os.environ | {"PYTHONPATH": os.pathsep.join((folder, str(ROOT)))}


def peak_memory_mb(
    arguments: Sequence[str], env: Mapping[str, str] | None = None
) -> tuple[float, float]:
    """Peak resident memory (MB = 1e6 bytes) and wall time of Python with these arguments.

    `env` is an environment of `as_installed_by_pip`. A small process starts the command, since a
    child inherits the peak of its parent.
    """
    between = (
        "import resource, subprocess, sys, time; start = time.perf_counter();"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL,"
        " stderr=subprocess.DEVNULL);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, time.perf_counter() - start)"
    )
    command = [sys.executable, *(["-S"] if env else []), *arguments]
    said = subprocess.check_output([sys.executable, "-c", between, *command], text=True, env=env)
    peak, wall = (float(word) for word in said.split())
    return peak * (1 if platform.system() == "Darwin" else 1024) / 1e6, wall


def study_memory_mb(
    flags: Sequence[str], env: Mapping[str, str] | None = None
) -> tuple[float, float]:
    """The same of the study `ou_heads`, whose results are removed."""
    with tempfile.TemporaryDirectory() as folder:
        study = [str(ROOT / "studies" / "ou_heads.py"), *flags, "--out", str(Path(folder) / "run")]
        return peak_memory_mb(study, env)


def code_memory_gb(code: str) -> float:
    """Peak resident memory (GB = 1e9 bytes) of code that may import benchmarks, as pip installs."""
    code = f"import sys; sys.path.insert(0, sys.argv[1]); {code}"
    with as_installed_by_pip() as env:
        return peak_memory_mb(["-c", code, str(ROOT / "benchmarks")], env)[0] / 1e3
