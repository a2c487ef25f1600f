"""Exact particle sums on a GPU: tokens per second and share of the card's own limit.

    PYTHONPATH=. python benchmarks/gpu_particles.py [--device cuda] [--json FILE] [--quick] [--tune]

Random tokens at d = 3 with velocity and every energy term (drift, noise, Itô term), double and
single precision: n = 200 tokens x 1000 paths with 64 heads, and n = 100,000 x 1 path with 8.

- triton: the fused kernel of `wflow/kernels/torch/triton.py` on arrays on the card;
- tiles: the same sums as matrix products of tiles (`wflow/kernels/torch/tiles.py`);
- numba: the kernel that runs without a GPU, on the processor of the same machine;
- limit: the kernel's multiply-adds and exponentials with every operand in a register, written in
  Triton too; without Triton the rate of a large matrix product over the multiply-adds of a pair.

A token counts once for every evaluation of the sums: an Euler step. "call" is one evaluation as the
solver makes it, from NumPy arrays to NumPy arrays, and "transfers" its share that is not the sums;
"solve" is the time of a step of a whole `wflow.solve` of the first problem. Where the clock and the
FP64 lanes of the card are known, `share_of_peak` is the share of its peak in multiply-adds.
Before anything is timed, every variant is compared with the Numba kernel, velocities and terms, and
with itself; what is timed is compared again. `--tune` also times other numbers of heads per pass,
of unrolled tokens and of groups than those that the kernel takes. The file is written after each
case.

Needs torch, triton, numba and numpy only; for the solver xarray, h5py and rich as well.
"""
# A name in a Triton kernel may hold tuples of several lengths, joined by + only.
# mypy: disable-error-code="assignment, misc"
# ruff: noqa: RUF005

import argparse
import importlib.util
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

from wflow.kernels.pairs import fused
from wflow.kernels.pairs.headsums import SOFTMAX, TERMS
from wflow.kernels.torch import sums as torch_sums
from wflow.runs.schema import version_of
from wflow.study.frame import machine

D = 3
CASES = {"200 x 1000 paths": (1000, 200, 64), "100,000 x 1 path": (1, 100_000, 8)}
QUICK = {"50 x 4 paths": (4, 50, 4), "400 x 1 path": (1, 400, 2)}
DOUBLE, SINGLE = "float64", "float32"
TOLERANCE = {DOUBLE: 1e-12, SINGLE: 2e-5}
# (paths, n, heads, norm of one strong head): both builds of the kernel, more tokens than it sums
# up in one piece, odd heads. At 70 scores need a shift in both precisions and stay in range.
CHECKS = ((3, 61, 5, 0.0), (3, 61, 5, 70.0), (1, 2100, 5, 0.0))
# FP64 multiply-adds that a multiprocessor starts per cycle, by compute capability.
LANES = {(6, 0): 32, (7, 0): 32, (8, 0): 64, (9, 0): 64, (10, 0): 64}
SOLVE_STEPS = (2, 12)
HAS_TRITON = importlib.util.find_spec("triton") is not None

if HAS_TRITON:
    import triton
    import triton.language as tl

    from wflow.kernels.torch import triton as triton_kernel
    from wflow.kernels.torch.triton import LAUNCH, _number, exp2

    @triton.jit
    def _limit(
        out, turns, kind: tl.constexpr, bits: tl.constexpr, together: tl.constexpr,
        unroll: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        """The arithmetic of the Triton kernel at d = 3 for `turns` tokens j, in registers.

        `base`, whose bits count the tokens, keeps them different, so that none is left out.
        """
        lane = tl.program_id(0) * block + tl.arange(0, block)
        x = lane.to(kind) * _number(1e-9, lane.to(kind))
        step = _number(1e-9, x)
        y = (x + _number(0.3, x), x - _number(0.2, x), x + _number(0.1, x))
        own = (x + _number(0.05, x), x - _number(0.15, x), x + _number(0.25, x))
        z = ()
        sums = ()
        for a in tl.static_range(together * 3):
            z = z + (x + _number(0.1 * a, x),)
        for _ in tl.static_range(together * 5):
            sums = sums + (_number(0.0, x),)
        base = step
        for _ in tl.range(0, turns, loop_unroll_factor=unroll):
            base = (base.to(bits, bitcast=True) + 1).to(kind, bitcast=True)
            c = tl.fma(own[2], y[2], tl.fma(own[1], y[1], tl.fma(own[0], y[0], base)))
            pair = tl.fma(c, c, step)
            fresh = ()
            for a in tl.static_range(together):
                s = tl.fma(z[3 * a], y[0], base)
                s = tl.fma(z[3 * a + 1], y[1], s)
                u = exp2(tl.fma(z[3 * a + 2], y[2], s))
                fresh = fresh + (sums[5 * a] + u,)
                for k in tl.static_range(3):
                    fresh = fresh + (tl.fma(u, y[k], sums[5 * a + 1 + k]),)
                fresh = fresh + (tl.fma(u, pair, sums[5 * a + 4]),)
            sums = fresh
        total = sums[0]
        for k in tl.static_range(1, together * 5):
            total = total + sums[k]
        tl.store(out + lane, total)


def arguments(paths: int, n: int, heads: int, dtype: str, seed: int = 0) -> list[np.ndarray]:
    """x, score, value, drift, noise, sigma2, as the solver has them with noisy heads."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(paths, n, D))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    z = rng.normal(size=(3, paths, heads, D, D)) / 2
    score, drift, noise = (z + z.swapaxes(-1, -2)).astype(dtype)
    drift = np.concatenate([drift, noise], axis=1)  # and what the heads moved in the last step
    return [x.astype(dtype), score, score, drift, noise, np.full((paths, heads), 2.0, dtype)]


def on_device(arrays: list[np.ndarray], device: str) -> list[torch.Tensor]:
    tensors = [torch_sums.upload(a, device) for a in arrays]
    tensors[2] = tensors[1]
    return tensors


def evaluate(
    tensors: list[torch.Tensor], strong: np.ndarray, triton: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    x, score, value, drift, noise, sigma2 = tensors
    with torch.inference_mode():
        return torch_sums.device_sums(
            x, score, value, drift, noise, sigma2, SOFTMAX, -1.0, False, strong, triton
        )


def from_numpy_to_numpy(arrays: list[np.ndarray], device: str) -> tuple[np.ndarray, np.ndarray]:
    x, score, value, drift, noise, sigma2 = arrays
    return torch_sums.torch_sums(
        x, score, value, drift, noise, sigma2, SOFTMAX, -1.0, False, device
    )


def with_numba(arrays: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    rest: tuple[Any, ...] = (SOFTMAX, -1.0, False, arrays[2] is arrays[1])
    return fused.fused_sums(*arrays, *rest)


def timed(call: Callable[[], Any], device: str, rounds: int, least: float) -> list[float]:
    """Seconds of a call in each round, over as many calls in a row as take `least` seconds."""

    def once(repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        if device != "cpu":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / repeats

    call()  # compiles
    if device != "cpu":
        torch.cuda.synchronize(device)
    repeats = max(1, round(least / max(once(1), 1e-6)))
    return [once(repeats) for _ in range(rounds)]


def spread(seconds: list[float]) -> dict[str, float]:
    return {
        "median_ms": statistics.median(seconds) * 1e3,
        "min_ms": min(seconds) * 1e3,
        "max_ms": max(seconds) * 1e3,
        "rounds": len(seconds),
    }


def limit_rate(device: str, dtype: str, heads: int, rounds: int) -> tuple[float, str]:
    """Pairs (head, i, j) per second that the device's arithmetic allows, and how that was found."""
    double = dtype == DOUBLE
    if device != "cpu" and HAS_TRITON:
        together, unroll = triton_kernel.heads_and_unroll(D, heads, double)
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        # Four times what a multiprocessor can hold, so that the last programs weigh little.
        programs, turns = 4 * 32 * processors, 1 << 14
        out = torch.empty(programs * 32, dtype=getattr(torch, dtype), device=device)
        kinds = (tl.float64, tl.int64) if double else (tl.float32, tl.int32)

        def run() -> None:
            _limit[(programs,)](out, turns, *kinds, together, unroll, 32, **LAUNCH)

        best = min(timed(run, device, rounds, 0.05))
        return programs * 32 * turns * together / best, "register-only kernel"
    size = 512 if device == "cpu" else 8192
    a, b = (torch.rand((size, size), dtype=getattr(torch, dtype), device=device) for _ in "ab")
    best = min(timed(lambda: a @ b, device, rounds, 0.02))
    return size**3 / best / (3 * D + 18), "matrix product over multiply-adds of a pair"


def peak_rate(device: str, dtype: str, heads: int) -> float | None:
    """Pairs (head, i, j) per second at the card's FP64 peak, by the multiply-adds of a pair."""
    if device == "cpu" or dtype != DOUBLE or not HAS_TRITON:
        return None
    properties = torch.cuda.get_device_properties(device)
    lanes = LANES.get((properties.major, properties.minor))
    clock = getattr(properties, "clock_rate", None)  # kHz
    if lanes is None or not clock:
        return None
    together, _ = triton_kernel.heads_and_unroll(D, heads, True)
    per_pair = D + 14 + (D + 2) + (D + 1) / together  # 24 for two heads together
    return properties.multi_processor_count * lanes * clock * 1e3 / per_pair


Sums = tuple[np.ndarray, np.ndarray]


def differences(found: Sums, expected: Sums, arrays: list[np.ndarray]) -> dict[str, float]:
    """Largest difference of velocities and of each term, relative to the scale of its summands."""
    (v, table), (u, exact) = found, expected
    columns = dict(zip(TERMS, exact.T, strict=True))
    energy, size = columns["energy"], columns["max_score"].max()
    speed = max(float(np.abs(u).max()), size, 1.0)
    drift, noise = (np.linalg.norm(a, axis=(-2, -1)).max() for a in arrays[3:5])
    scales = {
        "energy": energy,
        "weight_power": energy * drift,
        "backward_work": energy * drift,
        "second_variation": energy * noise**2,
        "ito_power": energy * arrays[5].max(),
        "martingale": energy * noise,
        "dissipation": 2 * energy * size * speed,
        "upper_gradient_sq": columns["upper_gradient_sq"] + 2 * energy * speed**2,
        "edi_defect": columns["upper_gradient_sq"] + 2 * energy * speed * size,
        "speed_sq": speed**2,
        "max_speed": speed,
        "max_score": size,
    }
    gaps = {"velocity": float(np.abs(v - u).max()) / speed}
    for at, name in enumerate(TERMS):
        gaps[name] = float((np.abs(table[:, at] - exact[:, at]) / scales[name]).max())
    return gaps


def agree(what: str, found: Sums, expected: Sums, arrays: list[np.ndarray], dtype: str) -> float:
    """The largest of `differences`; ends the program where it is beyond the tolerance."""
    gaps = differences(found, expected, arrays)
    wrong = {name: gap for name, gap in gaps.items() if not gap <= TOLERANCE[dtype]}
    if wrong:
        errors = ", ".join(f"{name} by {gap:.3e}" for name, gap in wrong.items())
        sys.exit(f"{what} in {dtype} is wrong: {errors}; allowed are {TOLERANCE[dtype]:g}")
    return max(gaps.values())


def on_host(pair: tuple[torch.Tensor, torch.Tensor]) -> Sums:
    return pair[0].cpu().numpy(), pair[1].cpu().numpy()


def check(device: str, variants: list[str]) -> dict[str, float]:
    """Largest difference of each variant to the Numba kernel: see `differences`."""
    found = {}
    for paths, n, heads, size in CHECKS:
        exact = arguments(paths, n, heads, DOUBLE, seed=1)
        if size:
            exact[1][-1, 2] *= size / np.linalg.norm(exact[1][-1, 2], 2)
        for dtype in (DOUBLE, SINGLE):
            arrays = [a.astype(dtype) for a in exact]
            arrays[2] = arrays[1]
            # For single precision the numbers that it holds.
            expected = with_numba([a.astype(DOUBLE) for a in arrays])
            strong = torch_sums.strong_heads(arrays[1])
            assert strong.any() == bool(size)
            tensors = on_device(arrays, device)
            for variant in variants:
                chosen = variant == "triton"
                sums, again = (on_host(evaluate(tensors, strong, chosen)) for _ in range(2))
                label = f"{variant} {dtype} n = {n}{', a strong head' if size else ''}"
                found[label] = agree(label, sums, expected, arrays, dtype)
                print(f"{label:<40} differs from numba by {found[label]:.2e}", flush=True)
                if not all(np.array_equal(a, b) for a, b in zip(sums, again, strict=True)):
                    sys.exit(f"{label}: two calls give different bits")
    return found


def measure(
    name: str, size: tuple[int, int, int], dtype: str, device: str, variants: list[str],
    rounds: int, least: float, references: dict[str, Sums],
) -> list[dict[str, Any]]:  # fmt: skip
    """One row per variant for a problem of (paths, n, heads), double precision first.

    `references` keeps what Numba finds for a case, to which the variants are compared.
    """
    paths, n, heads = size
    arrays = arguments(*size, dtype)
    strong = torch_sums.strong_heads(arrays[1])
    tensors = on_device(arrays, device)
    pairs = float(paths) * n * n * heads
    limit, found_by = limit_rate(device, dtype, heads, rounds)
    peak = peak_rate(device, dtype, heads)
    head: dict[str, Any] = {
        "case": name,
        "paths": paths,
        "n": n,
        "heads": heads,
        "d": D,
        "dtype": dtype,
    }
    rows = []
    results = {}
    if dtype == DOUBLE:
        seconds = timed(
            lambda: references.update({name: with_numba(arrays)}), "cpu", max(1, rounds // 2), 0.0
        )
        row = head | {"variant": "numba"} | spread(seconds)
        row |= {
            "tokens_per_second": paths * n / row["median_ms"] * 1e3,
            "ps_per_pair": row["median_ms"] / 1e3 / pairs * 1e12,
            "threads": numba.get_num_threads(),
        }
        rows.append(row)
        show(row)
    for variant in variants:
        chosen = variant == "triton"
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats(device)
        results[variant] = on_host(evaluate(tensors, strong, chosen))
        what = f"{variant}, {name},"
        gap = agree(what, results[variant], references[name], arrays, dtype)
        seconds = timed(partial(evaluate, tensors, strong, chosen), device, rounds, least)
        row = head | {"variant": variant} | spread(seconds)
        median = row["median_ms"] / 1e3
        row |= {
            "tokens_per_second": paths * n / median,
            "ps_per_pair": median / pairs * 1e12,
            "share_of_limit": pairs / limit / median,
            "limit": found_by,
            "limit_ms": pairs / limit * 1e3,
            "difference_from_numba": gap,
        }
        if peak is not None and chosen:
            row |= {"share_of_peak": pairs / peak / median, "peak_ms": pairs / peak * 1e3}
        if device != "cpu":
            row["gpu_memory_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
        if variant == variants[0]:
            whole = timed(partial(from_numpy_to_numpy, arrays, device), device, rounds, least)
            call = statistics.median(whole)
            row |= {"call_ms": call * 1e3, "transfers_share": max(0.0, 1 - median / call)}
        rows.append(row)
        show(row)
    first, *others = results.values()
    for other in others:
        gap = agree(f"difference of variants, {name},", other, first, arrays, dtype)
        rows[-1]["largest_difference_of_variants"] = gap
    return rows


def solve_step(size: tuple[int, int, int], device: str) -> list[dict[str, Any]]:
    """Milliseconds of a step of `wflow.solve`: the time by which more steps make a run longer.

    With the batches of paths that the solver chooses, and with all paths together.
    """
    import wflow

    paths, n, heads = size
    x0 = arguments(1, n, 1, DOUBLE)[0][0]
    law = wflow.heads.OrnsteinUhlenbeck(np.eye(D))

    def run(steps: int, batch: int | None) -> float:
        start = time.perf_counter()
        wflow.solve(
            x0, law, heads=heads, t_final=steps * 2.0**-10, dt=2.0**-10, paths=paths,
            compute=wflow.Compute(method="exact", backend="torch", device=device, batch=batch),
        )  # fmt: skip
        return time.perf_counter() - start

    rows = []
    few, many = SOLVE_STEPS
    for batch in (None, paths):
        run(1, batch)  # compiles
        seconds = [(run(many, batch) - run(few, batch)) / (many - few) for _ in range(3)]
        row: dict[str, Any] = {"paths": paths, "n": n, "heads": heads, "batch": batch}
        rows.append(row | {"dtype": DOUBLE} | spread(seconds))
        print(f"solve, batch {batch}: {rows[-1]['median_ms']:.3f} ms a step", flush=True)
    return rows


def show(row: dict[str, Any]) -> None:
    text = f"{row['case']:<18}{row['dtype']:<9}{row['variant']:<8}{row['median_ms']:>10.3f} ms"
    text += f" ({row['min_ms']:.3f}-{row['max_ms']:.3f})  {row['tokens_per_second']:.3e} tokens/s"
    text += f"  {row['ps_per_pair']:.3f} ps/pair"
    if "share_of_limit" in row:
        text += f"  {row['share_of_limit']:.1%} of limit"
    if "share_of_peak" in row:
        text += f"  {row['share_of_peak']:.1%} of peak"
    if "call_ms" in row:
        text += f"  call {row['call_ms']:.3f} ms, transfers {row['transfers_share']:.1%}"
    print(text, flush=True)


def tune(
    cases: dict[str, tuple[int, int, int]], device: str, rounds: int, rows: list[dict[str, Any]],
    save: Callable[[], None],
) -> None:  # fmt: skip
    """Times of the kernel with other settings than its usual ones, saved one by one."""
    usual, groups = triton_kernel.heads_and_unroll, triton_kernel._GROUPS
    try:
        for dtype, together, unroll, split in (
            (DOUBLE, 1, 4, 4), (DOUBLE, 2, 2, 4), (DOUBLE, 2, 4, 2), (DOUBLE, 2, 4, 4),
            (DOUBLE, 2, 4, 8), (DOUBLE, 4, 2, 4), (SINGLE, 2, 4, 4), (SINGLE, 4, 2, 4),
            (SINGLE, 4, 4, 2), (SINGLE, 4, 4, 4), (SINGLE, 8, 2, 4),
        ):  # fmt: skip
            triton_kernel.heads_and_unroll = lambda *_, a=together, u=unroll: (a, u)
            triton_kernel._GROUPS = split
            for name, size in cases.items():
                arrays = arguments(*size, dtype)
                strong = torch_sums.strong_heads(arrays[1])
                tensors = on_device(arrays, device)
                row: dict[str, Any] = {"case": name, "dtype": dtype, "together": together}
                row |= {"unroll": unroll, "groups": split}
                try:
                    call = partial(evaluate, tensors, strong, True)
                    row |= spread(timed(call, device, rounds, 0.05))
                except Exception as error:  # too many registers, say: others may do
                    row["error"] = f"{type(error).__name__}: {error}"
                rows.append(row)
                print(*(f"{k} {v}" for k, v in row.items()), flush=True)
                save()
    finally:
        triton_kernel.heads_and_unroll, triton_kernel._GROUPS = usual, groups


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (default: cuda)")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/gpu_particles.json"))
    parser.add_argument("--quick", action="store_true", help="tiny problems, as the tests run them")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds of every variant")
    parser.add_argument("--tune", action="store_true", help="try other shapes of the kernel")
    flags = parser.parse_args(words)
    device = torch_sums.resolve_device(flags.device)
    cases = QUICK if flags.quick else CASES
    rounds, least = (2, 0.0) if flags.quick else (flags.rounds, 0.2)
    kernel = device != "cpu" and HAS_TRITON and os.environ.get("WFLOW_TRITON", "1") != "0"
    variants = ["triton", "tiles"] if kernel else ["tiles"]
    name = machine() if device == "cpu" else torch.cuda.get_device_name(device)
    print(f"{name}, torch {torch.__version__}, {numba.get_num_threads()} threads of {machine()}")

    start = time.perf_counter()
    rows: list[dict[str, Any]] = []
    body: dict[str, Any] = {
        "command": "python benchmarks/gpu_particles.py " + " ".join(words or sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "device": name,
        "cores": os.cpu_count(),
        "threads": numba.get_num_threads(),
        "versions": {"python": platform.python_version(), "cuda": torch.version.cuda}
        | {p: version_of(p) for p in ("wflow", "numpy", "numba", "torch", "triton")},
        "differences_from_numba": check(device, variants),
        "results": rows,
    }

    def save() -> None:
        body["seconds"] = time.perf_counter() - start
        flags.json.parent.mkdir(parents=True, exist_ok=True)
        flags.json.write_text(json.dumps(body, indent=2) + "\n")

    save()
    references: dict[str, Sums] = {}
    for case, size in cases.items():
        for dtype in (DOUBLE, SINGLE):
            rows += measure(case, size, dtype, device, variants, rounds, least, references)
            save()
        references.clear()
        if "solve" not in body:
            try:
                body["solve"] = solve_step(size, device)
            except ImportError as error:
                body["solve"] = f"not measured: {error}"
                print(body["solve"])
            save()
    if flags.tune and kernel:
        body["tuning"] = []
        tune(cases, device, rounds, body["tuning"], save)
    print(f"wrote {flags.json}")


if __name__ == "__main__":
    main()
