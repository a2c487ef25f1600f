"""Run the tests of compiled code with other versions of Numba and Python.

    python tests/versions.py [--only WORD]

The oldest Numba that `pyproject.toml` allows and the newest, with this Python; the newest with each
of Python 3.11 to 3.14 that is on the path or among the versions of pyenv. Environments lie in
`build/versions`, and their compiled code with them. The last line of each run is printed, and which
Python was not found.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "versions"
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
TESTS = (
    "tests/_core/test_compiler.py", "tests/_core/test_vectors.py", "tests/_core/test_tasks.py",
    "tests/_core/test_forks.py", "tests/fuzz/test_code_cache.py", "tests/kernels",
    "tests/sphere/test_harmonics.py", "tests/particles/test_solver.py",
    "tests/meanfield/test_spectral.py", "tests/sampling/test_proximal.py",
)  # fmt: skip


def oldest() -> str:
    """Return the lower bound of Numba."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return re.search(r"numba>=([\d.]+)", " ".join(project["dependencies"]))[1]


def interpreter(python: str) -> str | None:
    """Return a command of that name that runs: a shim of pyenv may not."""
    version = python.removeprefix("python")
    pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/{python}"))
    for command in filter(None, (shutil.which(python), *map(str, pyenv))):
        if subprocess.run([command, "--version"], capture_output=True, check=False).returncode == 0:
            return command
    return None


def cases() -> list[tuple[str, str | None, str]]:
    """Name, interpreter (None where there is none) and requirement of Numba of each run."""
    here = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = [(f"{here}, numba {oldest()}", sys.executable, f"numba=={oldest()}")]
    for python in (here, *(other for other in PYTHONS if other != here)):
        command = sys.executable if python == here else interpreter(python)
        found.append((f"{python}, newest numba", command, "numba"))
    return found


def environment(name: str, command: str, numba: str) -> Path:
    """Return the interpreter of an environment with wflow, that Numba, and what the tests need."""
    folder = FOLDER / re.sub(r"[^\w.]+", "-", name)
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([command, "-m", "venv", "--clear", folder], check=True)
    packages = "pytest", "hypothesis", "mpmath", "scikit-learn", numba
    install = [python, "-m", "pip", "install", "--quiet", "--upgrade", "--editable", ROOT]
    subprocess.run([*install, *packages], check=True)
    return python


def run(name: str, command: str, numba: str) -> bool:
    """Run the tests once; returns whether they pass."""
    try:
        python = environment(name, command, numba)
    except subprocess.CalledProcessError as error:
        print(f"{name} could not be installed: {error}", flush=True)
        return False
    cache = {"NUMBA_CACHE_DIR": str(python.parents[1] / "code")}
    version = "import numba, sys; print(sys.version.split()[0], numba.__version__)"
    print(name, "is", subprocess.check_output([python, "-c", version], text=True).strip())
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        cwd=ROOT,
        env=os.environ | cache | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    print("\n".join(done.stdout.splitlines()[-1 if done.returncode == 0 else -30 :]), flush=True)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="run the cases whose names have this word")
    only = parser.parse_args().only
    passed = True
    for name, command, numba in cases():
        if only not in name:
            continue
        if command is None:
            print(name, "was not found")
        else:
            passed &= run(name, command, numba)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
