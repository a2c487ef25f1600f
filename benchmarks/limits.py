"""The machine's limit for the exact sums: their arithmetic with every operand in a register.

    python benchmarks/limits.py

A pair of tokens costs d multiply-adds for the score, an exponential (`exp2` of
`wflow._core.compiler.vectors`), d + 1 multiply-adds for the sums, d + 1 more where the value serves
both tokens, and one for the Itô term. The loops here do just that: no loads, no stores, and as many
pairs together as is fastest of 2, 4, 6 and 8 registers. Printed: nanoseconds per pair on one thread
and on all, both precisions.
"""

import argparse
import functools
import platform
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic
from report import in_turn

from wflow._core.compiler.vectors import (
    exp2_together,
    fma_ir,
    native_lanes,
    register_lanes,
    splat_ir,
)

TOGETHER = (2, 4, 6, 8)
_SUMS = 8  # two multiply-adds a cycle, each four cycles long
_REGISTER = "=v,0" if platform.machine() in ("x86_64", "AMD64") else "=w,0"


class Kind(NamedTuple):
    """Which sums: dimension, whether a value serves both tokens, with the Itô term, precision."""

    d: int
    both: bool
    ito: bool
    dtype: str

    def multiply_adds(self) -> int:
        """Multiply-adds, or instructions of their price, of a pair of tokens."""
        exponential = 13 if self.dtype == "float64" else 10
        return self.d + exponential + (self.d + 1) * (2 if self.both else 1) + self.ito


def _loop(kind: Kind, together: int) -> Any:
    """Intrinsic turn(value, turns) -> number: so many turns of `together` registers of pairs."""
    terms = (kind.d + 1) * (2 if kind.both else 1) + kind.ito

    @intrinsic
    def turn(typingctx, value, turns):
        def codegen(context, builder, sig, args):
            dtype, index = sig.args[0], ir.IntType(types.intp.bitwidth)
            value, turns = args
            shape = ir.VectorType(value.type, native_lanes(context, dtype))

            def scaled(factor):
                return splat_ir(
                    builder, shape, builder.fmul(value, ir.Constant(value.type, factor))
                )

            z = [scaled(0.3), scaled(-0.2)]
            step = scaled(1e-6)

            def its_own(value):
                """The same register, which LLVM cannot recognise as the same for each chain."""
                kept = ir.FunctionType(shape, [shape])
                return builder.asm(kept, "", _REGISTER, [value], side_effect=False)

            entry = builder.block
            body, done = (builder.append_basic_block(name) for name in ("limit", "limit.done"))
            builder.branch(body)
            builder.position_at_end(body)
            count, moving = builder.phi(index), builder.phi(shape)
            before = [builder.phi(shape) for _ in range(_SUMS)]
            sums = list(before)
            # The exponents move a little every turn, so that nothing is computed only once.
            scores = [its_own(moving) for _ in range(together)]
            for k in range(kind.d):
                scores = [fma_ir(builder, z[k % 2], z[0], score) for score in scores]
            values = exp2_together(context, builder, dtype, scores)
            for term in range(terms):
                for c, u in enumerate(values):
                    at = (term * together + c) % _SUMS
                    if kind.both and term == kind.d + 1:
                        sums[at] = builder.fadd(u, sums[at])
                    else:
                        sums[at] = fma_ir(builder, u, z[term % 2], sums[at])
            following = builder.add(count, ir.Constant(index, 1))
            zero = ir.Constant(shape, [0.0] * shape.count)
            changes = [(count, ir.Constant(index, 0), following)]
            changes += [(moving, zero, builder.fadd(moving, step))]
            changes += [(b, zero, a) for b, a in zip(before, sums, strict=True)]
            for phi, first, later in changes:
                phi.add_incoming(first, entry)
                phi.add_incoming(later, body)
            builder.cbranch(builder.icmp_signed("<", following, turns), body, done)
            builder.position_at_end(done)
            total = functools.reduce(builder.fadd, sums)
            return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

        return value(value, types.intp), codegen

    return turn


@functools.cache
def register_loop(kind: Kind, together: int) -> Callable[[int, int], Any]:
    """Function (pairs, threads) that computes so many pairs, shared among threads."""
    turn = _loop(kind, together)

    @njit(parallel=True, error_model="numpy")
    def run(like, pairs, threads):
        turns = max(pairs // (register_lanes(like) * together * threads), 1)
        out = np.empty(threads, like.dtype)
        for thread in prange(threads):
            out[thread] = turn(like[thread], turns)
        return out

    def call(pairs: int, threads: int) -> Any:
        like = np.linspace(0.5, 0.6, threads).astype(kind.dtype)
        return run(like, pairs, threads)

    return call


def calls(kinds: Iterable[Kind], pairs: int, threads: int) -> dict[Any, Callable[[], Any]]:
    """Calls to time in turn with others: (kind, together) -> the arithmetic of `pairs` pairs."""
    return {
        ("limit", kind, together): functools.partial(register_loop(kind, together), pairs, threads)
        for kind in kinds
        for together in TOGETHER
    }


def per_pair(taken: dict[Any, list[float]], kind: Kind, pairs: int) -> list[float]:
    """Seconds per pair in every round, of the fastest number, from the times of `calls`."""
    fastest = min(TOGETHER, key=lambda together: float(np.median(taken["limit", kind, together])))
    return [seconds / pairs for seconds in taken["limit", kind, fastest]]


def pairs_of_step(n: int, heads: int, dtype: str, symmetric: bool) -> tuple[float, float]:
    """Pairs of tokens that a step computes once for both, and ordered pairs computed apart.

    Tied heads: tokens of one block meet themselves one way, those of two blocks once for both.
    """
    if not symmetric:
        return 0.0, float(heads) * n * n
    block = 8 if dtype == "float64" else 16
    within = float(heads) * n * min(block, n)
    return (float(heads) * n * n - within) / 2, within


def of_step(
    each: Mapping[bool, Any], n: int, heads: int, dtype: str, symmetric: bool = True
) -> Any:
    """Seconds of the arithmetic of one step, from those of a pair by whether it serves both tokens.

    `each` holds numbers, or an array with one number a round.
    """
    once, apart = pairs_of_step(n, heads, dtype, symmetric)
    return once * each[True] + apart * each[False]


def seconds_per_pair(
    kinds: Iterable[Kind], threads: int, rounds: int = 5, pairs: int = 4_000_000
) -> dict[Kind, list[float]]:
    """Seconds per pair on so many threads together, one number a round."""
    kinds = list(kinds)
    taken = in_turn(calls(kinds, pairs, threads), rounds, least=0.02, pause=0.05)
    return {kind: per_pair(taken, kind, pairs) for kind in kinds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[2, 3, 4, 8])
    options = parser.parse_args()
    kinds = [
        Kind(d, both, True, dtype)
        for d in options.dimensions
        for dtype in ("float64", "float32")
        for both in (False, True)
    ]
    print(f"{'d':>3} {'precision':<9} {'sums':<9}{'multiply-adds':>14}{'threads':>9}{'ns/pair':>9}")
    for threads in sorted({1, numba.get_num_threads()}):
        for kind, values in seconds_per_pair(kinds, threads, options.rounds).items():
            sums = "both ways" if kind.both else "one way"
            print(
                f"{kind.d:>3} {kind.dtype:<9} {sums:<9}{kind.multiply_adds():>14}{threads:>9}"
                f"{float(np.median(values)) * 1e9:>9.4f}"
            )


if __name__ == "__main__":
    main()
