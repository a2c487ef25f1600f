"""Compare the summaries of all studies, at a size of seconds, in two checkouts.

    python benchmarks/same_summaries.py --before ../wflow-before --after . --out build/summaries
        [--only 'rwpo_*']

Every study runs in both checkouts with the same flags, one thread and no GPU. Each line says
whether the variables of `summary.h5` are the same, names, types, shapes and every bit, and the
predictions of `summary.json` with their verdicts. What measures time, memory or speed is left out.
A folder that is there is not made again, so that the checkout before runs once.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import xarray

SMALL = "--n 12 --paths 3 --t-final 0.2 --dt 0.01 --heads 1 2 4"
FLOWS = "--n 6 --paths 2 --heads 2"
PARTICLES = {
    "chaos": "--n 4 --paths 2 --heads 2 --betas 1 --t-final 13",
    "clustering": "--betas 1 9 --dims 2 16 --n 8 --paths 4 --t-final 20 --dt 0.25 --series-betas "
    "1 2 --series-n 8 --series-paths 2 --series-t 60",
    "decay_equation": "--preset smoke",
    "edi_defect": "--n 12 --t-final 0.8 --dt 0.01 --halvings 1 --heads 3 --noisy-heads 1 4 "
    "--paths 8",
    "equilibria": "--n 4 --paths 2 --sizes 2 3 --t-final 20",
    "jko": f"{FLOWS} --taus 0.03125 0.015625 --t-final 0.25 --dt 0.0078125",
    "lipschitz": "--n 4 8 16 --betas 1 2 --heads 1 2 --paths 2 --tokens 4 --times 2",
    "long_time": "--n 10 --t-final 24 --dt 0.1 --noisy-dt 0.1 --noisy-heads 2 8 --spread-heads 2 "
    "--heads 2 --paths 4",
    "mean_field_equation": "--preset smoke",
    "mean_field_large": "--n 100 200 --reference 300 --paths 3 --method fast --t-final 0.2 --dt "
    "0.1 --heads 2",
    "mean_field_limit": "--t-final 0.2 --dt 0.05 --heads 2 --n 6 12 24 --d 2 3 --paths 3",
    "metastability": "--preset smoke",
    "metric": f"{FLOWS} --times 0 0.2 --deltas 0.02 0.01 --t-final 0.22 --dt 0.01 --pairs 6 "
    "--segments 4",
    "noisy_tokens": "--n 20 --paths 2 --ratios 0.5 2 --t-final 1 --ledger-paths 4 --ledger-heads 2",
    "oscillating_heads": SMALL,
    "ou_heads": SMALL,
    "phase_transition": "--preset smoke --n 20 --betas 1 3",
    "spectrum": "--dims 3 4 --heads 1 2 --starts 2 --n 6 --t-final 7 --dt 0.25",
    "stability_tokens": "--n 4 --paths 2 --eps 0.01 --heads 2 --t-final 0.2 --times 3 --sizes 0.1 "
    "0.2",
    "stability_weights": "--n 4 --law-heads 4 --heads 1 2 --base-heads 1 --eps 0.01 0.1 --paths 2 "
    "--t-final 0.1 --times 1",
}
NETWORKS = "--preset smoke --device cpu"
SLOW = {"rwpo_benchmarks": "--seeds 1", "rwpo_digits": "--seeds 1", "mnist_vit": "--epochs 1"}
MEASURED = re.compile(
    "kilobytes|equal_time|second|time_of|memory|speedup|per_step|milliseconds|throughput|peak|cost_of"
)


def flags_of(name: str) -> list[str]:
    """Flags with which a study takes seconds, on one thread."""
    if name in PARTICLES:
        return f"{PARTICLES[name]} --threads 1".split()
    flags = f"{NETWORKS} {SLOW.get(name, '')}".split()
    return flags[:2] if name in ("rwpo_operator", "rwpo_sampler", "trained_heads") else flags


def study(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `wflow study` with the code of a checkout."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("NUMBA", "OMP", "OPENBLAS", "MKL")}
    return subprocess.run(
        [sys.executable, "-m", "wflow", "study", *words],
        env=os.environ | threads | {"PYTHONPATH": str(checkout), "MPLBACKEND": "agg"},
        cwd=checkout, capture_output=True, text=True, check=False,
    )  # fmt: skip


def differences(before: Path, after: Path) -> list[str]:
    """Name what differs between the results of a study."""
    files = [folder / "summary.h5" for folder in (before, after)]
    one, other = (xarray.load_dataset(file, engine="h5netcdf") for file in files)
    names = sorted(set(one.variables) | set(other.variables), key=str)
    found = [str(name) for name in names if not _same(one, other, str(name))]
    texts = [json.loads((folder / "summary.json").read_text()) for folder in (before, after)]
    if _said(texts[0]) != _said(texts[1]):
        found.append("findings")
    return found


def _same(one: xarray.Dataset, other: xarray.Dataset, name: str) -> bool:
    if MEASURED.search(name):
        return (name in one.variables) == (name in other.variables)
    if name not in one.variables or name not in other.variables:
        return False
    a, b = one[name], other[name]
    same = a.dims == b.dims and a.dtype == b.dtype and a.shape == b.shape
    if same and a.dtype.kind in "fiub":
        return a.values.tobytes() == b.values.tobytes()
    return same and bool(np.all(a.values == b.values))


def _said(summary: dict[str, object]) -> list[tuple[str, str]]:
    """Predictions and verdicts; what was found may hold times."""
    findings = summary.get("findings", [])
    assert isinstance(findings, list)
    return [(f["prediction"], f["verdict"]) for f in findings]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    for name in ("before", "after", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", default="*", help="studies, as a pattern")
    given = parser.parse_args()
    listed = study(given.before, "list").stdout
    names = re.findall(r"^ *([a-z][a-z_0-9]*) {2,}", listed, re.MULTILINE)
    chosen = sorted(name for name in names if fnmatch(name, given.only))
    if not chosen:
        parser.error(f"no study is called {given.only}")
    bad = 0
    for name in chosen:
        folders, said = [], ""
        for which in ("before", "after"):
            folder = given.out.resolve() / which / name
            folders.append(folder)
            if not (folder / "summary.json").exists():
                begun = time.perf_counter()
                flags = [*flags_of(name), "--out", str(folder), "--overwrite"]
                done = study(getattr(given, which).resolve(), name, *flags)
                said += f", {which} {time.perf_counter() - begun:.0f} s"
                if done.returncode:
                    said += f" ENDED with {done.returncode}: {done.stderr.strip()[-300:]}"
        if all((folder / "summary.json").exists() for folder in folders):
            differ = differences(*folders)
            bad += bool(differ)
            print(
                f"{name}: {'DIFFERS in ' + ', '.join(differ) if differ else 'same'}{said}",
                flush=True,
            )
        else:
            bad += 1
            print(f"{name}: no result{said}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
