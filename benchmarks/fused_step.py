"""Time of the fused step against einsum and against the machine's own limit; memory of a run.

    python benchmarks/fused_step.py [--json benchmarks/results/fused_step.json]

One process, one run, double precision, n = 200 tokens, 64 heads, d = 3:

- fused: velocity and every energy term (with drift, noise, Itô term) as `wflow.solve` asks for
  them, each kernel value used for both tokens of a pair; "one way": each direction computed, as for
  general heads;
- einsum: the same quantities written plainly with NumPy's einsum; "ordered" lets it choose the
  order of contraction (optimize=True: matrix products); and with torch where it is installed;
- limit: the same multiply-adds and exponentials with every operand in a register, on the same
  number of threads, for both ways of summing (`limits.py`).

The variants run in turn, round after round, so that a drift of the machine's speed hits all; the
median over rounds is printed with the smallest and largest. Peak memory is that of a child process
`studies/ou_heads.py --heads 64 --paths 16` with compiled code on disk, by the operating system's
account: once with what `pip install` of wflow alone installs, once with every package installed
here, since libraries import optional ones that they find.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
from goals import STUDY_MEMORY
from limits import Kind, calls, of_step, per_pair
from processes import as_installed_by_pip, study_memory_mb
from report import in_turn, write
from variants import TERMS, plain_einsum

from wflow.attention.cloud import evaluate
from wflow.study.frame import machine

N, HEADS, D = 200, 64, 3
LIMIT_PAIRS = 8_000_000  # pairs of a call of the limit
EVERYTHING = "its memory with every package that is installed here (MB)"
STUDY = ["--heads", "64", "--paths", "16"]


def einsum_torch() -> Callable | None:
    """The same with torch, if it is installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(numba.get_num_threads())

    def step(x, D, f, B, sigma2):
        n, heads = len(x), len(D)
        U = torch.exp(torch.einsum("ia,hab,jb->hij", x, D, x))
        m = U.sum(2) / n
        S = torch.einsum("hij,jb->hib", U, x) / n
        g = torch.einsum("hab,hib->hia", D, S)
        g = g - torch.einsum("hia,ia->hi", g, x)[..., None] * x
        v = -(g / m[..., None]).mean(0)
        b = 1 / (1 / m).mean(0)
        gbar = g.mean(0)
        pairs = 2 * heads * n * n
        gram = 1 + torch.einsum("ia,ja->ij", x, x) ** 2
        return v, [
            U.sum() / pairs,
            torch.einsum("hij,ia,hab,jb->", U, x, f, x) / pairs,
            torch.einsum("h,hij,ij->", sigma2, U, gram) / (4 * pairs),
            torch.einsum("hij,ia,hab,jb->", U, x, B, x) / pairs,
            -(gbar * v).sum() / n,
            (b * (v * v).sum(1)).mean(),
        ]

    return lambda *arrays: step(*(torch.from_numpy(a) for a in arrays))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds of all variants")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/fused_step.json"))
    parser.add_argument("--skip-memory", action="store_true", help="leave out the study's memory")
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D))
    x /= np.linalg.norm(x, axis=1)[:, None]
    z = rng.normal(size=(3, HEADS, D, D)) / 2
    heads, drift, noise = z + z.swapaxes(-1, -2)
    sigma2 = np.full(HEADS, 2.0)
    arrays = (x, heads, drift, noise, sigma2)
    batch = [a[None] for a in arrays]
    threads = numba.get_num_threads()

    def fused(symmetric=True):
        x, D, f, B, s = batch
        return evaluate(x, D, drift=f, noise=B, sigma2=s, symmetric=symmetric)

    pairs = HEADS * N * N
    kinds = [Kind(D, both, True, "float64") for both in (True, False)]
    registers = calls(kinds, LIMIT_PAIRS, threads)
    variants: dict[str, Callable] = {
        "fused": fused,
        "fused, one way": lambda: fused(False),
        "einsum numpy": lambda: plain_einsum(*arrays),
        "einsum numpy, ordered": lambda: plain_einsum(*arrays, optimize=True),
    }
    torch_step = einsum_torch()
    if torch_step is not None:
        variants["einsum torch"] = lambda: torch_step(*arrays)

    reference, terms = plain_einsum(*arrays)
    velocity, energies = fused()
    gap = max(abs(energies[k][0] / t - 1) for k, t in zip(TERMS, terms, strict=True))
    gap = max(gap, float(np.abs(velocity[0] - reference).max()))

    taken = in_turn(variants | registers, options.rounds, least=0.05)
    times = {name: taken[name] for name in variants}
    each = {kind.both: np.array(per_pair(taken, kind, LIMIT_PAIRS)) for kind in kinds}
    for name, tied in (("limit", True), ("limit, one way", False)):
        times[name] = of_step(each, N, HEADS, "float64", tied).tolist()

    table = {
        name: {
            "median_ms": float(np.median(values)) * 1e3,
            "min_ms": min(values) * 1e3,
            "max_ms": max(values) * 1e3,
            "ns_per_pair": float(np.median(values)) / pairs * 1e9,
        }
        for name, values in times.items()
    }
    median = {name: row["median_ms"] for name, row in table.items()}
    figures = {
        f"speedup over {name}": median[name] / median["fused"]
        for name in median
        if name.startswith("einsum")
    }
    figures["share of the limit"] = median["limit"] / median["fused"]
    figures["share of the limit, one way"] = median["limit, one way"] / median["fused, one way"]
    figures["largest difference to einsum numpy"] = gap
    if not options.skip_memory:
        study_memory_mb([*STUDY[:3], "1"])  # compiles
        with as_installed_by_pip() as env:
            figures[STUDY_MEMORY], figures["its wall time (s)"] = study_memory_mb(STUDY, env)
        figures[EVERYTHING], _ = study_memory_mb(STUDY)

    print(f"{machine()}, {threads} threads, {options.rounds} rounds, n={N} H={HEADS} d={D} f64")
    print(f"{'variant':<24}{'median ms':>11}{'min':>9}{'max':>9}{'ns/pair':>10}")
    for name, row in table.items():
        print(
            f"{name:<24}{row['median_ms']:>11.3f}{row['min_ms']:>9.3f}{row['max_ms']:>9.3f}"
            f"{row['ns_per_pair']:>10.3f}"
        )
    for name, value in figures.items():
        print(f"{name}: {value:.4g}")
    write(
        options.json, "python benchmarks/fused_step.py", threads,
        problem={"n": N, "heads": HEADS, "d": D, "dtype": "float64", "seed": 0},
        times=table,
        figures=figures,
    )  # fmt: skip


if __name__ == "__main__":
    main()
