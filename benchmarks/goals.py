"""Every goal of speed and scale: its target, what was found, and whether that is enough.

Found numbers come from the JSON of the benchmarks. Why a goal is missed is known by people: WHY.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sections import figure

from wflow.study.frame import markdown_table

Documents = Mapping[str, Mapping[str, Any]]

# Title of a goal -> why it was missed or not decided, or met in part only; shown there.
SHORT = "exact sums, share of the machine's limit, n = 200, d = 2, 3, 4"
TIED = "exact sums, tied, share of the machine's limit, n = 1,000 to 20,000, d = 2 to 8"
SINGLE = "exact sums, single precision over double, steps over 0.3 ms"
WRAPPER = "overhead of the continuous wrapper over an Euler loop by hand, ViT"
OVERHEAD = "overhead of workers against the serial run, tasks of 5 s"
WORKERS = "two workers over one, share of the gain of two threads in registers"
DIGESTS = "digests, share of a run"
SERIES = "50 distances along a run over 50 single ones, n = 200"
LONG_SERIES = "50 distances along a run over 50 single ones, n = 2,000"
PRODUCTS = "exact sums, share of the rate of matrix products, d = 64"
BLOCKED = "blocked sums, single precision over double, least of d >= 64"
MEMORY = "memory of `ou_heads --heads 64 --paths 16` as installed by pip (MB)"
FIGURE = "`ou_heads --heads 1 10 100 --paths 100 --scheme euler --dt 0.005`, figure 2 of [MHT] (s)"
DEEP = "one path, d = 768, n = 256: torch over wflow, slower of both precisions"
SPHERE_MAPS = tuple(  # d = 3 and 2
    f"fastest of {side} over wflow's fast sums, worst of all sizes"
    for side in ("ducc0 and finufft, d = 3", "finufft, d = 2")
)
W2 = "$W_2$ over POT's emd2, the slowest of 50 to 5,000 tokens"
COSTATES = "time of costates over checkpointing of each layer"
FILES = "phase diagram with its run files"
OVER_TORCH = "phase diagram in memory, time of torch over that of wflow"
FIRST = "first start of a study, with compilation (s)"
ADJOINT = "adjoint of an evaluation over its velocity, tied heads, worst case"
GRADIENT = "gradient of a run, fastest of torch and JAX over wflow, worst case"
WHY: dict[str, str] = {
    ADJOINT: "a pair and head take 52 multiply-adds where the velocity of tied heads takes 13, and "
    "6 products where it takes 2 in many coordinates",
    GRADIENT: "JAX computes the steps of many heads and few tokens as fast",
    SHORT: "what does not grow with the heads, a in the table of `exact_sums`, is a fifth to "
    "a quarter of a step of 8 heads, and about half of it is the call itself: Python, arguments, "
    "the way into compiled code. The heads alone, b there, reach 78 % and more",
    TIED: "at d = 8 with AVX2 two blocks of tokens have 19 running sums, and there are 16 "
    "registers: the loop reads or writes memory 401 times (173 times the stack) for 248 "
    "multiply-adds, at d = 3 171 times for 128",
    SINGLE: "what does not grow with the heads, a in the table of `exact_sums`, does not "
    "shrink with the precision as the heads do",
    BLOCKED: "the rounds of the shortest step, 200 tokens, differ by as much: `exact_sums` has the "
    "same case",
    FILES: "the difference to the runs in memory is that of the files: each is laid out and "
    "flushed six times",
    FIGURE: "with AVX2 the arithmetic alone, the limit in `figure_two`, takes about twice the "
    "goal. A run with AVX-512, whose file was not kept, took 255 s",
    DIGESTS: "missed by the run that stores every token of every path at every step and has one "
    "head of 50 tokens, where a step is hardly longer than its hashing; `digests` has the shares",
    W2: "the rounds of the shortest calls, 50 tokens, differ by as much",
    SERIES: "each distance is computed from nothing: a start from the assignment before, which "
    "these times still have, saves less than half here and was removed. Costs of all pairs, "
    "reading and Python are left, and threads cost what they save on so small problems",
    LONG_SERIES: "what there is to gain is the second thread, which solves another distance of the "
    "series; a single call already has it for the costs of the pairs",
    OVERHEAD: "a task of five seconds holds some of the paths; what a step does besides the pair "
    "sums (with AVX-512 0.3 ms of Python, 0.5 where they push its code out of the caches) is "
    "shared by the paths of one batch, all of them in the serial run",
    WORKERS: "besides what a step does in Python, the last tasks do not end together, and the "
    "file is finished by one process",
    COSTATES: "both compute each layer of the ResNet twice",
    SPHERE_MAPS[0]: "for the unnormalised flow with many heads, which needs one series for all of "
    "them. A library transforms grids, and what it does for a token does not grow with the degree; "
    "ours runs the recursion through all degrees, and returns the energy and its terms. The "
    "page of `sphere_maps` has the parts",
    WRAPPER: "what is added to the loop is the cost. Its pass over the velocities forward takes "
    "less than one point; backward, two products and two sums of velocities that have left the "
    "caches take three, and as much from one function that fuses them, whose Python takes what "
    "the passes save; the Python of a step takes half a point. One node of the graph for all steps "
    "took a tenth more than the loop, and is not used",
}


# A JSON file that is not called as its script is.
COMMANDS = {"fast_sums_check": "python benchmarks/fast_sums.py --check 10000"}


class Goal(NamedTuple):
    """`found` is to be at least (or at most) `target`; None where nothing was measured."""

    what: str
    found: float | None
    target: float
    least: bool
    command: str
    unit: str = ""
    why: str = ""
    ends: Sequence[float] | None = None  # smallest and largest of the rounds, where known
    machine: str = ""

    @property
    def met(self) -> bool | None:
        if self.found is None:
            return None
        return self.found >= self.target if self.least else self.found <= self.target

    @property
    def decided(self) -> bool:
        """Whether the target lies outside the spread of the rounds, where that is known."""
        return self.ends is None or not self.ends[0] < self.target < self.ends[1]

    def row(self) -> dict[str, str]:
        """The goal as a row of the table."""
        verdict = "not measured"
        if self.found is not None and self.met:
            verdict = "met"
        elif self.found is not None:
            verdict = f"missed by {_distance(self.found, self.target)}"
        if self.ends is not None and not self.decided:
            verdict = f"inconclusive ({self._number(self.ends[0])} to {self._number(self.ends[1])})"
        return {
            "goal": self.what,
            "target": f"{'at least' if self.least else 'at most'} {self._number(self.target)}",
            "found": "–" if self.found is None else self._beside(self.found),
            "verdict": verdict,
            "benchmark": f"`{self.command.removeprefix('python ')}`",
        }

    @property
    def reason(self) -> str:
        """Why it is missed, undecided or not measured, as far as anyone has said."""
        if self.met and self.decided:
            return ""
        return "; ".join(filter(None, (self.why, WHY.get(self.what))))

    def _number(self, value: float, digits: int = 3) -> str:
        if self.unit == "%":
            return f"{100 * value:.{digits - 2}f} %"
        text = f"{value:.1e}" if 0 < abs(value) < 1e-3 else figure(value, digits)
        return f"{text} {self.unit}".strip()

    def _beside(self, found: float) -> str:
        """The number with as many digits as tell it from the target."""
        same = self._number(found) == self._number(self.target) and found != self.target
        return self._number(found, 5 if same else 3)


def _distance(found: float, target: float) -> str:
    share = 100 * abs(found / target - 1)
    return f"{share:.1f} %" if share >= 0.05 else f"{share:.1g} %"


def collect(documents: Documents) -> list[Goal]:
    """All goals in the order of the page; a goal whose benchmark is missing has found = None.

    A benchmark's own list of goals (`report.goal`) comes before what is computed here.
    """
    found = []
    for name, places in PLACES.items():
        document = documents.get(name, {})
        machine = document.get("machine", "")
        if "goals" in document:
            found += [_own(entry, machine) for entry in document["goals"]]
            continue
        for place in places:
            try:
                value = place.of(document)
            except (KeyError, TypeError, IndexError, ValueError):
                value = None  # no file, or one of another version
            command = COMMANDS.get(name, f"python benchmarks/{name}.py")
            found.append(Goal(
                place.what, value, place.target, place.least, command, place.unit, machine=machine
            ))  # fmt: skip
    return found


def _own(entry: Mapping[str, Any], machine: str) -> Goal:
    return Goal(
        entry["goal"], entry["found"], entry["target"], entry["least"], entry["command"],
        entry.get("unit", ""), entry.get("why", ""), entry.get("ends"), machine,
    )  # fmt: skip


def tally(goals: list[Goal]) -> str:
    """How many goals are met, missed, ...; a spread that holds the target decides nothing."""
    met, missed, none = (
        sum(goal.met is value and goal.decided for goal in goals) for value in (True, False, None)
    )
    open_ = len(goals) - met - missed - none
    return (
        f"{met} met, {missed} missed, "
        + f"{open_} inconclusive, " * bool(open_)
        + f"{none} not measured"
    )


def table(goals: list[Goal]) -> str:
    """Return the goals as a Markdown table, how many are met, and why some are missed."""
    rows = [goal.row() for goal in goals]
    machines = Counter(goal.machine for goal in goals if goal.machine).most_common()
    others = {name: place for place, (name, _) in enumerate(machines[1:], 1)}
    for goal, row in zip(goals, rows, strict=True):
        if goal.machine in others and goal.found is not None:
            row["verdict"] += f" ({others[goal.machine]})"
    text = f"{tally(goals)}. A goal is inconclusive where its target lies within the spread of the "
    text += "rounds; not every benchmark gives that of the number found."
    for name, place in others.items():
        text += f" ({place}): measured on {name}."
    columns = {title: [row[title] for row in rows] for title in rows[0]}
    reasons = [f"- {goal.what}: {goal.reason}" for goal in goals if goal.reason]
    why = "Goals are missed or inconclusive for these reasons:" * bool(reasons)
    cards = "{.cards}\n" + markdown_table(columns)  # on a phone; docs/_static/predictions.css
    return "\n\n".join(filter(None, (text, cards, why, "\n".join(reasons))))


class Place(NamedTuple):
    """A goal whose number is a function of one benchmark's JSON."""

    what: str
    target: float
    least: bool
    unit: str = ""
    of: Callable[[Mapping[str, Any]], float | None] = lambda document: None


def _estimate(document: Mapping[str, Any]) -> float:
    ratios = document["smallest_estimate_over_error"].values()
    return float(min(entry["ratio"] for entry in ratios))


def _double_gap(document: Mapping[str, Any]) -> float:
    gaps = document["differences_from_numba"]
    return float(max(gap for name, gap in gaps.items() if "float64" in name))


def _adjoint(document: Mapping[str, Any]) -> float:
    rows = [row for row in document["adjoint"] if row["over"] == "velocity, tied"]
    return float(max(row["median_times"] for row in rows))


STUDY_MEMORY = "peak memory of ou_heads --heads 64 --paths 16 as installed by pip (MB)"

# In the order of the page; what a benchmark does not list itself.
PLACES: dict[str, tuple[Place, ...]] = {
    "exact_sums": (
        Place(SHORT, 0.75, True, "%"),
        Place(TIED, 0.8, True, "%"),
        Place(PRODUCTS, 0.7, True, "%"),
        Place(SINGLE, 1.8, True, "times"),
    ),
    "fused_step": (
        Place(
            "a step of 64 heads and 200 tokens over plain einsum",
            30.0,
            True,
            "times",
            lambda document: document["figures"]["speedup over einsum numpy"],
        ),
        Place(MEMORY, 400.0, False, "", lambda document: document["figures"][STUDY_MEMORY]),
    ),
    "figure_two": (Place(FIGURE, 330.0, False, "s"),),
    "matrix_rate": (Place(DEEP, 1.0, True, "times"), Place(BLOCKED, 1.8, True, "times")),
    "sphere_maps": tuple(Place(what, 1.0, True, "times") for what in SPHERE_MAPS),
    "startup": (
        Place("second start of a study begins stepping (s)", 2.0, False),
        Place(FIRST, 12.0, False),
    ),
    "fast_sums": (
        Place("exact sums over fast ones, n = 20,000, H = 8, d = 3", 20.0, True, "times"),
        Place("exact sums over fast ones, n = 100,000, H = 8, d = 3", 100.0, True, "times"),
        Place("velocities of the fast sums against the exact ones", 1e-9, False),
        Place("exponent of the fast sums' time in n, to 1,000,000", 1.05, False),
        Place("memory of the fast sums, n = 1,000,000 (GB)", 4.0, False),
    ),
    "fast_sums_check": (
        Place("error estimate over true error, smallest of 10,000 cases", 1.0, True, "", _estimate),
    ),
    "dask_scaling": (
        Place(OVERHEAD, 0.05, False, "%"),
        Place(WORKERS, 0.97, True, "%"),
    ),
    "digests": (
        Place(DIGESTS, 0.02, False, "%"),
        Place("digests checked by resume", 500.0, True, "MB/s"),
        Place("digests checked by verify", 500.0, True, "MB/s"),
    ),
    "transport": (
        Place(W2, 1.0, False, "times"),
        Place(SERIES, 0.5, False, "times"),
        Place(LONG_SERIES, 0.5, False, "times"),
    ),
    "clustering_grid": (
        Place(OVER_TORCH, 1.0, True, "times"),
        Place(FILES, 20.0, False, "s"),
    ),
    "gpu_particles": (Place("GPU against CPU, double precision", 1e-12, False, "", _double_gap),),
    "continuous_networks": (
        Place(WRAPPER, 3.0, False, "points"),
        Place("peak memory with checkpointing over without, 20 steps", 0.5, False, "%"),
    ),
    "token_files": (
        Place("a training step that waits for data", 0.02, False, "%"),
        Place("tokens per second and core over those of tokenizers alone", 0.7, True),
        Place("memory of the second half over that of the first", 1.1, False),
    ),
    "rwpo": (
        Place(
            "attention of the proximal operator over plain torch, N = 4,096, d = 2, double",
            5.0,
            True,
            "times",
        ),
        Place("exponent of its memory in N", 1.05, False),
        Place(
            "OT-Flow iteration, trace over gradient, over the ratio of their operations", 1.0, False
        ),
    ),
    "adjoint": (
        Place(ADJOINT, 3.5, False, "times", _adjoint),
        Place(
            GRADIENT,
            5.0,
            True,
            "times",
            lambda document: min(row["median_times"] for row in document["ratios"]),
        ),
        Place(
            "memory of torch and JAX over wflow's, gradient of a run, least",
            20.0,
            True,
            "times",
            lambda document: min(row["memory_times"] for row in document["ratios"]),
        ),
    ),
    "control": (
        Place("time of costates over back-propagation, all networks", 1.5, False, "times"),
        Place(COSTATES, 1.0, False, "times"),
        Place("memory of costates over back-propagation, ResNet", 0.55, False, "%"),
        Place("memory of costates over back-propagation, GPT L", 0.35, False, "%"),
        Place("the same with every sqrt(L)-th state, ResNet", 0.25, False, "%"),
    ),
    "meanfield": (
        Place("mean field, steps on S^1, 512 cells, 8 moving heads", 500.0, True, "a second"),
        Place("mean field, steps on S^2, 10,242 cells, 8 moving heads", 25.0, True, "a second"),
        Place("exponent of the time of a step in the cells, S^2", 1.1, False),
        Place("mean field, peak memory, 163,842 cells (GB)", 2.0, False),
    ),
}
