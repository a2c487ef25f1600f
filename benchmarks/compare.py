"""One evaluation of velocity and energy terms, by wflow and by other libraries, side by side.

    python benchmarks/compare.py [--json benchmarks/results/compare.json]
    python benchmarks/compare.py --problems 200x64x3 --rounds 2 --starts 1

Double precision, softmax descent, with drift, noise and Itô term, for the problems n x heads x d.
The variants are in `variants.py`: wflow exact and fast, NumPy plain and in matrix products,
torch eager and compiled, JAX jit, KeOps; a library that is not installed is reported as such
(`pip install -e '.[bench]'` brings them). Each runs in a separate process, with as many threads
as wflow: the thread pools of several libraries in one process disturb each other.

Every variant must agree with NumPy's matrix products to 1e-9, in the velocity absolutely and in
each term relatively, before it is timed. Then the processes are asked in turn, round after round;
the others wait. All processes are started --starts times over, since a start lays out memory again.
Printed: median over all rounds with the smallest and largest; how much memory a step adds; the
first call, in which a library may compile; and the machine's limit for the same problem.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import variants
from report import RESULTS, machine, peak_memory, spread, steady, write

PROBLEMS = ("200x64x3", "2000x8x3", "1000x8x64")
TOLERANCE = 1e-9
LEAST = 0.3  # seconds of calls behind one number


class Shape(NamedTuple):
    n: int
    heads: int
    d: int

    @property
    def name(self) -> str:
        return f"n = {self.n}, H = {self.heads}, d = {self.d}"


def shape(text: str) -> Shape:
    """200x64x3 as n, heads, d."""
    try:
        n, heads, d = (int(word) for word in text.split("x"))
        if min(n, heads, d - 1) < 1:
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no problem: expected n x heads x d, such as 200x64x3"
        ) from None
    return Shape(n, heads, d)


class Child:
    """A process in which one variant waits to be asked."""

    def __init__(self, variant: str) -> None:
        self.variant = variant
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--serve", variant],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # errors come as answers
            text=True,
            env=variants.limit_threads(variants.threads()),
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        """The child's answer; {"error": ...} if it has none."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return dict(json.loads(line))
        return {"error": f"its process ended with status {self.process.wait()}"}

    def close(self) -> None:
        self.process.communicate()  # closes its input, which ends it


def serve(variant: str) -> None:
    """Answer questions from standard input, one JSON line each, until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    calls: dict[str, variants.Call] = {}
    for line in sys.stdin:
        question = json.loads(line)
        name = question["problem"]
        try:
            if question["do"] == "check":
                problem = variants.make(*shape(name))
                start = time.perf_counter()
                calls[name] = variants.VARIANTS[variant].make(problem)
                first = calls[name]()
                answer: dict[str, Any] = {"first_s": time.perf_counter() - start}
                reference = np.load(question["reference"])
                answer["gap"] = variants.gap(first, (reference["velocity"], reference["terms"]))
                del first
                with peak_memory() as memory:
                    calls[name]()
                answer["memory_mb"] = memory["mb"]
            else:
                answer = {"seconds": steady(calls[name], question["least"])}
        except Exception as error:  # a library that fails is a row of the table
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
        print(json.dumps(answer), file=answers, flush=True)


class Limits:
    """What the arithmetic of each problem takes at the least on this machine, round after round.

    d <= 8: multiply-adds and exponentials of the sums with every operand in a register, each value
    used for both tokens of a pair (`limits.py`). Beyond, where a step is matrix products: 2 d flops
    of the score and 2 (d + 1) of the sums of an ordered pair at the rate of `matrix_rate.py`, and
    its exponential in registers. Without the modules there are no limits.
    """

    LARGEST_D = 8
    PAIRS = 4_000_000

    def __init__(self, shapes: Sequence[Shape]) -> None:
        found = {name: importlib.util.find_spec(name) for name in ("limits", "matrix_rate")}
        self.shapes = [
            at
            for at in shapes
            if found["limits"] and (at.d <= self.LARGEST_D or found["matrix_rate"])
        ]
        self.taken: dict[Any, list[float]] = {}
        self.rates: list[float] = []
        self.calls: dict[Any, Any] = {}
        if self.shapes:
            import limits

            kinds = {kind: None for at in self.shapes for kind in self._kinds(at)}
            self.calls = limits.calls(kinds, self.PAIRS, variants.threads())
            for call in self.calls.values():
                call()  # compiles

    def _kinds(self, at: Shape) -> tuple[Any, ...]:
        from limits import Kind

        if at.d > self.LARGEST_D:
            return (Kind(0, False, False, "float64"),)
        return tuple(Kind(at.d, both, True, "float64") for both in (True, False))

    def round(self) -> None:
        """Measure everything once."""
        for key, call in self.calls.items():
            self.taken.setdefault(key, []).append(steady(call, 0.05))
        if any(at.d > self.LARGEST_D for at in self.shapes):
            from matrix_rate import matrix_rate

            self.rates.append(float(matrix_rate(variants.threads(), "float64")))

    def seconds(self, at: Shape) -> list[float]:
        """Seconds of the problem's arithmetic in every round."""
        import limits

        pairs = [np.array(limits.per_pair(self.taken, k, self.PAIRS)) for k in self._kinds(at)]
        if at.d > self.LARGEST_D:
            ordered = at.heads * at.n * at.n
            return list(ordered * (pairs[0] + (4 * at.d + 2) / np.array(self.rates)))
        each = {True: pairs[0], False: pairs[1]}
        return list(limits.of_step(each, at.n, at.heads, "float64"))


def measure(
    names: Sequence[str],
    shapes: Sequence[Shape],
    rounds: int,
    starts: int,
    least: float,
    limited: bool = True,
) -> tuple[dict[str, dict[str, dict[str, Any]]], dict[str, dict[str, str]]]:
    """Rows and left-out variants: problem -> variant -> figures, or why there are none."""
    taken: dict[tuple[Shape, str], list[float]] = {}
    facts: dict[tuple[Shape, str], dict[str, Any]] = {}
    left_out: dict[str, dict[str, str]] = {at.name: {} for at in shapes}
    limits = Limits(shapes if limited else [])

    def asked(at: Shape, name: str) -> bool:
        return name not in left_out[at.name]

    for at in shapes:
        for name in names:
            variant, lacking = variants.VARIANTS[name], variants.missing(name)
            if at.d > variant.largest_d:
                left_out[at.name][name] = f"for d <= {variant.largest_d} only"
            elif lacking is not None:
                left_out[at.name][name] = f"not installed ({lacking})"
            elif at.heads * (at.n * at.d) ** 2 > variant.most_work:
                left_out[at.name][name] = "not timed: minutes a step"
    with tempfile.TemporaryDirectory() as folder:
        files = {at: Path(folder) / f"{place}.npz" for place, at in enumerate(shapes)}
        for at, file in files.items():
            result = variants.matrix_products(np, *variants.make(*at))
            velocity, terms = variants.numbers(result)
            np.savez(file, velocity=velocity, terms=terms)
            del result
        for start in range(starts):
            children = {
                name: Child(name) for name in names if any(asked(at, name) for at in shapes)
            }
            for at, file in files.items():
                for name, child in children.items():
                    if not asked(at, name):
                        continue
                    found = child.ask(do="check", problem=text(at), reference=str(file))
                    if "error" in found:
                        left_out[at.name][name] = found["error"]
                    elif not found["gap"] <= TOLERANCE:
                        left_out[at.name][name] = f"wrong by {found['gap']:.2g}: not timed"
                    elif start == 0:
                        facts[at, name] = found
            for _ in range(rounds):
                limits.round()
                for at in shapes:
                    for name, child in children.items():
                        if not asked(at, name):
                            continue
                        time.sleep(0.2)  # the threads of the one before fall asleep
                        found = child.ask(do="time", problem=text(at), least=least)
                        if "error" in found:
                            left_out[at.name][name] = found["error"]
                        else:
                            taken.setdefault((at, name), []).append(found["seconds"])
            for child in children.values():
                child.close()
    rows: dict[str, dict[str, dict[str, Any]]] = {at.name: {} for at in shapes}
    for (at, name), values in taken.items():
        if asked(at, name):
            rows[at.name][name] = spread(values) | facts[at, name]
    for at in limits.shapes:
        rows[at.name]["machine's limit"] = spread(limits.seconds(at))
    return rows, left_out


def text(at: Shape) -> str:
    return "x".join(map(str, at))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=shape, nargs="+", default=[shape(p) for p in PROBLEMS])
    parser.add_argument("--variants", nargs="+", choices=variants.VARIANTS, metavar="NAME",
                        default=list(variants.VARIANTS), help="in quotes, as printed")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all variants per start")
    parser.add_argument("--starts", type=int, default=2, help="starts of all processes")
    parser.add_argument("--least", type=float, default=LEAST, help="seconds behind one number")
    parser.add_argument("--no-limits", action="store_true", help="leave out the machine's limit")
    parser.add_argument("--json", type=Path, default=RESULTS / "compare.json")
    parser.add_argument("--serve", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    if min(options.rounds, options.starts) < 1:
        parser.error("--rounds and --starts: expected 1 or more")

    names = options.variants
    rows, left_out = measure(
        names, options.problems, options.rounds, options.starts, options.least,
        not options.no_limits,
    )  # fmt: skip
    count = variants.threads()
    print(f"{machine()}, {count} threads, {options.starts} x {options.rounds} rounds, float64")
    for at in options.problems:
        table = rows[at.name]
        ours = table.get("wflow, exact", {}).get("median_ms")
        print(f"\n{at.name}")
        print(
            f"{'variant':<24}{'median ms':>11}{'min':>10}{'max':>10}{'times exact':>13}"
            f"{'memory MB':>11}{'first call s':>14}{'largest gap':>13}"
        )
        for name, row in table.items():
            if ours is not None:
                row["times_exact"] = row["median_ms"] / ours
            print(
                f"{name:<24}{row['median_ms']:>11.3f}{row['min_ms']:>10.3f}{row['max_ms']:>10.3f}"
                f"{_cell(row, 'times_exact', '13.3g')}{_cell(row, 'memory_mb', '11.1f')}"
                f"{_cell(row, 'first_s', '14.2f')}{_cell(row, 'gap', '13.1e')}"
            )
        for name, why in left_out[at.name].items():
            print(f"{name:<24}{why}")
    write(
        options.json, "python benchmarks/compare.py", count,
        problem={"dtype": "float64", "seed": 0, "flow": "softmax", "direction": "descent",
                 "fast_tolerance": variants.FAST_TOLERANCE, "agree_to": TOLERANCE,
                 "starts": options.starts, "rounds_per_start": options.rounds},
        times=rows,
        left_out=left_out,
    )  # fmt: skip


def _cell(row: dict[str, Any], key: str, form: str) -> str:
    width = form.partition(".")[0]
    return f"{'':>{width}}" if row.get(key) is None else f"{row[key]:>{form}}"


if __name__ == "__main__":
    main()
