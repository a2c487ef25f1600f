"""Time, error and memory of the fast sums on the circle and the sphere against the exact sums.

    python benchmarks/fast_sums.py [--json benchmarks/results/fast_sums.json]
    python benchmarks/fast_sums.py --check 10000
    python benchmarks/fast_sums.py --backend torch [--device cuda] [--largest 1000000]

One process, double precision: velocity and every energy term (drift, noise and Itô term) of one
path, as `wflow.solve` asks for them, softmax descent, tolerance 1e-10. Heads D = Z + Z^T, and
D = I + W with W symmetric noise as the Ornstein-Uhlenbeck law has it in the long run. Tokens are
uniform on the sphere. The exact sums take the same step up to `--exact-until` tokens, in turn with
the fast ones up to 20,000 and once beyond.

Peak memory is that of a child process that takes two steps with 10^6 tokens. `--check N` compares
estimates and true errors, against extended precision, in N random cases (`random_clouds.py`) and
prints the smallest ratio; the run ends with status 1 if it is below one.

`--backend torch` compares the series of `wflow/kernels/torch/series.py` on a device, from NumPy
arrays to NumPy arrays, with those of Numba on the processor of the same machine: both in turn, one
path of many tokens and many paths of 3,000, and where the exact sums on the device take part.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import random_clouds
from numpy.typing import NDArray
from processes import code_memory_gb
from report import RESULTS, goal, in_turn, spread, write

from wflow.analysis.fits import power_law
from wflow.kernels.harmonic.fast import choose, exact_cost, fast_sums, predicted_cost
from wflow.kernels.harmonic.series import plan
from wflow.kernels.pairs.fused import fused_sums
from wflow.kernels.pairs.headsums import SOFTMAX
from wflow.study.frame import machine

COMMAND = "python benchmarks/fast_sums.py"
TOLERANCE, HEADS, MILLION = 1e-10, 8, 1_000_000
LAWS = {"Z + Z^T": "drawn", "I + noise": "relaxed"}
Problem = tuple[NDArray[np.float64], ...]


def problem(n: int, d: int, heads: int = HEADS, law: str = "drawn", seed: int = 0) -> Problem:
    """x, D, drift, noise, sigma2 of one path, with its axis."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(3, heads, d, d))
    D, drift, noise = z + z.swapaxes(-1, -2)
    if law == "relaxed":
        D = np.eye(d) + D / 2  # diagonal variance sigma2/(2 rate) = 1, half of it off the diagonal
    x = rng.normal(size=(n, d))
    x /= np.linalg.norm(x, axis=1)[:, None]
    return tuple(a[None] for a in (x, D, drift, 0.07 * noise, np.full(heads, 2.0)))


def fast(given: Problem) -> tuple:
    x, D, drift, noise, sigma2 = given
    return fast_sums(x, D, D, drift, noise, sigma2, SOFTMAX, -1.0, TOLERANCE)


def exact(given: Problem) -> tuple:
    x, D, drift, noise, sigma2 = given
    return fused_sums(x, D, D, drift, noise, sigma2, SOFTMAX, -1.0, False, True)


def compare(n: int, d: int, law: str, rounds: int, exact_until: int) -> dict[str, Any]:
    """Times in turn, their ratio, and the largest difference of velocities and terms."""
    given = problem(n, d, law=LAWS[law])
    row: dict[str, Any] = {"n": n, "d": d, "heads": HEADS, "law": law}
    v, terms, error = fast(given)
    row["estimate"] = float(error[0])
    if n > exact_until:
        taken = in_turn({"fast": lambda: fast(given)}, rounds)
        row |= {"fast": spread(taken["fast"]), "fast_rounds_s": taken["fast"]}
        return row
    true, table = exact(given)
    row["velocity_difference"] = float(np.abs(v - true).max())
    row["term_difference"] = float(np.abs(terms / table - 1).max())
    if n <= 20_000:
        taken = in_turn({"fast": lambda: fast(given), "exact": lambda: exact(given)}, rounds)
        row["exact"] = spread(taken["exact"])
    else:
        start = time.perf_counter()
        exact(given)  # tens of seconds: once is enough
        seconds = time.perf_counter() - start
        taken = in_turn({"fast": lambda: fast(given)}, rounds)
        row["exact"] = spread([seconds])
    row |= {"fast": spread(taken["fast"]), "fast_rounds_s": taken["fast"]}
    row["speedup"] = row["exact"]["median_ms"] / row["fast"]["median_ms"]
    return row


def on_device(device: str, rounds: int, largest: int) -> list[dict[str, Any]]:
    """Times of the series by torch and by Numba in turn, and of the exact sums by torch."""
    from wflow.kernels.torch.series import series_sums
    from wflow.kernels.torch.sums import torch_sums

    rows = []
    cases = [(d, 1, n) for d in (3, 2) for n in (10_000, 100_000, MILLION)]
    cases += [(d, paths, 3000) for d in (3, 2) for paths in (16, 256)]
    for d, paths, n in cases:
        if paths * n > largest:
            continue
        several = [problem(n, d, law="relaxed", seed=seed) for seed in range(paths)]
        given = tuple(map(np.concatenate, zip(*several, strict=True)))
        x, D, drift, noise, sigma2 = given
        arrays = (x, D, D, drift, noise, sigma2)
        how: dict[str, Any] = {"flow": SOFTMAX, "sign": -1.0, "device": device}
        calls: dict[str, Callable] = {
            "torch": partial(series_sums, *arrays, tolerance=TOLERANCE, **how),
            "numba": partial(fast, given),
        }
        if paths * n * n * HEADS <= (1e9 if device == "cpu" else 1e12):
            calls["exact"] = partial(torch_sums, *arrays, causal=False, **how)
        (v, terms, _), (u, table, _) = calls["torch"](), calls["numba"]()
        row: dict[str, Any] = {"d": d, "paths": paths, "n": n, "heads": HEADS, "device": device}
        row["velocity_difference"] = float(np.abs(v - u).max())
        there = np.abs(table).max(axis=0) > 0  # no last moves
        gaps = np.abs(terms - table)[:, there] / np.abs(table).max(axis=0)[there]
        row["term_difference"] = float(gaps.max())
        row |= {name: spread(found) for name, found in in_turn(calls, rounds).items()}
        for name in ("numba", "exact"):
            if name in row:
                ratio = row[name]["median_ms"] / row["torch"]["median_ms"]
                row[f"{name}_over_torch"] = ratio
        rows.append(row)
        print(
            f"d={d} paths={paths:<4} n={n:<8}{row['torch']['median_ms']:>10.2f} ms by torch, Numba "
            f"takes {row['numba_over_torch']:.3g} times that"
            + (f", exact sums {row['exact_over_torch']:.3g} times" if "exact" in row else "")
            + f"; velocities differ by {row['velocity_difference']:.1e}",
            flush=True,
        )
    return rows


def crossover(d: int, heads: int, rounds: int) -> dict[str, Any]:
    """Number of tokens from which the fast sums take less time, and what `choose` believes."""

    def gain(n: int) -> float:
        given = problem(n, d, heads)
        calls: dict[str, Callable] = {"fast": lambda: fast(given), "exact": lambda: exact(given)}
        taken = in_turn(calls, rounds, least=0.05, pause=0.05)
        return min(taken["exact"]) / min(taken["fast"])

    low, high = 32, 8192
    while high / low > 1.1:
        middle = round((low * high) ** 0.5)
        low, high = (low, middle) if gain(middle) > 1 else (middle, high)
    first = 256
    while first < 8192:
        x, D = problem(first, d, heads)[:2]
        if choose(x, D, TOLERANCE, True)[0]:
            break
        first = round(1.02 * first)
    x, D = problem(high, d, heads)[:2]
    predicted = predicted_cost(x[0], D[0], plan(x[0], D[0], TOLERANCE), TOLERANCE)
    return {
        "d": d,
        "heads": heads,
        "measured": high,
        "chosen_from": first,
        "predicted_ms_there": predicted / 1e6,
        "predicted_exact_ms_there": exact_cost(high, heads, d, True) / 1e6,
    }


def peak_memory_gb() -> float:
    """Peak resident memory of a separate process that takes two steps with 10^6 tokens."""
    return code_memory_gb(
        "import fast_sums; given = fast_sums.problem(fast_sums.MILLION, 3);"
        "fast_sums.fast(given); fast_sums.fast(given)"
    )


def check(number: int, first: int) -> dict[str, Any]:
    """Smallest ratio of estimate to true error over random cases, and where it was found."""
    found = np.empty((number, 3))
    for place in range(number):
        found[place] = random_clouds.errors(random_clouds.case(first + place))
    smallest = {
        name: {"ratio": float(column.min()), "seed": first + int(column.argmin())}
        for name, column in zip(random_clouds.Errors._fields, found.T, strict=True)
    }
    return {"cases": number, "first_seed": first, "smallest_estimate_over_error": smallest}


def exponent(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Exponent of the fast sums' time against n, its standard error over the rounds, the range."""
    sizes = [row["n"] for row in rows]
    law = power_law(sizes, np.array([row["fast_rounds_s"] for row in rows]))
    return {
        "exponent": law.exponent,
        "error": law.exponent_error,
        "from": min(sizes),
        "to": max(sizes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of all variants")
    parser.add_argument("--exact-until", type=int, default=100_000, help="largest n summed exactly")
    parser.add_argument("--largest", type=int, default=MILLION, help="largest n of the fast sums")
    parser.add_argument("--check", type=int, default=0, help="only compare estimates with errors")
    parser.add_argument("--first-seed", type=int, default=0, help="first random case of --check")
    parser.add_argument("--json", type=Path, default=RESULTS / "fast_sums.json")
    parser.add_argument("--backend", choices=("numba", "torch"), default="numba")
    parser.add_argument("--device", default="cuda", help="of the torch backend: cuda, cuda:N, cpu")
    options = parser.parse_args()
    threads = numba.get_num_threads()
    if options.backend == "torch":
        from wflow.kernels.torch.sums import resolve_device

        device = resolve_device(options.device)
        print(f"{machine()}, {threads} threads, torch on {device}, H={HEADS} f64")
        rows = on_device(device, options.rounds, options.largest)
        write(options.json.with_name("fast_sums_torch.json"),
              f"{COMMAND} --backend torch --device {device}", threads, times=rows)  # fmt: skip
        return
    if options.check:
        found = check(options.check, options.first_seed)
        for name, entry in found["smallest_estimate_over_error"].items():
            print(f"{name}: smallest estimate/error {entry['ratio']:.4g} at seed {entry['seed']}")
        write(options.json.with_name("fast_sums_check.json"),
              f"{COMMAND} --check {options.check}", threads, **found)  # fmt: skip
        worst = min(entry["ratio"] for entry in found["smallest_estimate_over_error"].values())
        sys.exit(0 if worst >= 1 else 1)

    print(f"{machine()}, {threads} threads, {options.rounds} rounds, H={HEADS} f64")
    counts = [n for n in (1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000)
              if n <= options.largest] + [options.largest]  # fmt: skip
    times = []
    for d in (3, 2):
        for law in LAWS:
            for n in sorted(set(counts)):
                row = compare(n, d, law, options.rounds, options.exact_until)
                times.append(row)
                said = f"d={d} {law:<10} n={n:<9}{row['fast']['median_ms']:>11.2f} ms"
                if "exact" in row:
                    said += (
                        f"  exact {row['exact']['median_ms']:>11.1f} ms, "
                        f"{row['speedup']:.4g} times, velocities differ by "
                        f"{row['velocity_difference']:.1e}"
                    )
                print(said, flush=True)
    exponents = {
        f"d = {d}, {law}": exponent(
            [row for row in times if row["d"] == d and row["law"] == law and row["n"] >= 10_000]
        )
        for d in (3, 2)
        for law in LAWS
    }
    for name, entry in exponents.items():
        print(f"time ~ n^{entry['exponent']:.3f} +- {entry['error']:.3f} from n = 10,000: {name}")
    crossovers = [crossover(d, heads, 5) for d in (3, 2) for heads in (1, 8, 64)]
    for entry in crossovers:
        print(f"crossover d={entry['d']} H={entry['heads']}: measured n = {entry['measured']}, "
              f"chosen from {entry['chosen_from']}")  # fmt: skip
    memory = peak_memory_gb()
    print(f"peak memory with n = {MILLION}: {memory:.2f} GB")
    write(
        options.json, COMMAND, threads,
        problem={"heads": HEADS, "tolerance": TOLERANCE, "dtype": "float64", "seed": 0},
        times=times,
        exponents=exponents,
        crossovers=crossovers,
        peak_memory_gb=memory,
        goals=goals(times, exponents, memory),
    )  # fmt: skip


def goals(times: list, exponents: dict, memory: float) -> list[dict[str, Any]]:
    """What was asked of the fast sums, d = 3 and H = 8, the slower of both laws."""

    def worst(n: int, name: str, largest: bool) -> float | None:
        values = [row[name] for row in times if row["d"] == 3 and row["n"] == n and name in row]
        return (max if largest else min)(values) if values else None

    far = [row["velocity_difference"] for row in times if "velocity_difference" in row]
    steepest = max(entry["exponent"] for name, entry in exponents.items() if "d = 3" in name)
    return [
        goal("exact sums over fast ones, n = 20,000, H = 8, d = 3", COMMAND,
             worst(20_000, "speedup", False), 20.0, least=True, unit="times"),
        goal("exact sums over fast ones, n = 100,000, H = 8, d = 3", COMMAND,
             worst(100_000, "speedup", False), 100.0, least=True, unit="times"),
        goal("velocities of the fast sums against the exact ones", COMMAND, max(far), 1e-9,
             least=False),
        goal("exponent of the fast sums' time in n, to 1,000,000", COMMAND, steepest, 1.05,
             least=False),
        goal("memory of the fast sums, n = 1,000,000 (GB)", COMMAND, memory, 4.0, least=False),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
