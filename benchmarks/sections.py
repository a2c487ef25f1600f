"""Pages of docs/performance: each from the JSON of a benchmark, no measured number typed."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from report import unit_of

from wflow.study.frame import markdown_table

Document = Mapping[str, Any]

VARIABLES = {
    "n": "number n of tokens",
    "H": "number H of heads",
    "d": "dimension d",
    "paths": "number of paths",
}
# What surrounds the figures of every benchmark, or has a separate place on the page.
HEAD = ("command", "date", "machine", "device", "cores", "threads", "versions", "problem", "goals")
NOT_MEASURED = "Not measured on this machine."


def figure(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, as a person writes it: 0.693, 12.3, 45,600."""
    if value is None or not math.isfinite(value):
        return "not measured" if value is None else str(value)
    if value == 0:
        return "0"
    text = f"{value:.{digits - 1}e}"
    size = int(text.partition("e")[2])
    if not -4 <= size < 9:
        return text
    return f"{float(text):,.{max(0, digits - 1 - size)}f}"


def spread_cell(row: Document, unit: str = "ms") -> str:
    """Median (smallest to largest), all with the decimals of the median; one round, one number."""
    if row.get("rounds") == 1:
        return figure(row[f"median_{unit}"])
    median, least, most = (row[f"{end}_{unit}"] for end in ("median", "min", "max"))
    if not 1e-4 <= median < 1e9:
        return f"{median:.3g} ({least:.3g} to {most:.3g})"
    decimals = max(0, 2 - math.floor(math.log10(median)))
    if decimals:
        median, least, most = (f"{value:,.{decimals}f}" for value in (median, least, most))
    else:
        median, least, most = (figure(value) for value in (median, least, most))
    return f"{median} ({least} to {most})"


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """A Markdown table from rows of the same keys."""
    columns = {title: [row[title] for row in rows] for title in rows[0]}
    return markdown_table(columns)


def made_by(document: Document) -> str:
    """The command, and how often it measured."""
    text = f"    {document['command']}"
    counts = sorted(set(_rounds(document)))
    if not counts:
        return text
    return f"{text}\n\nRounds: {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))}."


def _rounds(found: Any) -> Iterator[int]:
    """The numbers of rounds of all spreads within."""
    if isinstance(found, Mapping):
        if isinstance(found.get("rounds"), int):
            yield found["rounds"]
        found = list(found.values())
    if isinstance(found, list):
        for part in found:
            yield from _rounds(part)


def compare(document: Document) -> str:
    """Libraries side by side."""
    problem = document["problem"]
    lines = [
        made_by(document),
        "One evaluation of the velocity and every energy term (softmax descent; drift, noise and "
        "Itô term), double precision, the same arrays for all. Every library runs in a separate "
        f"process on {document['threads']} threads; the processes are asked in turn, and "
        f"restarted {problem['starts']} times. Before it is timed, each must "
        f"agree with NumPy to {problem['agree_to']:.0e}; *gap* is the largest difference found. "
        "*Memory* is what a step adds at its peak; *first call* includes compilation, where the "
        "library compiles and does not find its code on disk.",
    ]
    for name, variants in document["times"].items():
        rows = []
        for variant, row in variants.items():
            rows.append({
                "variant": variant,
                "ms, median (min to max)": spread_cell(row),
                "times wflow, exact": figure(row.get("times_exact")),
                "memory MB": _or_dash(row.get("memory_mb")),
                "first call s": _or_dash(row.get("first_s")),
                "gap": _or_dash(row.get("gap"), 1),
            })  # fmt: skip
        lines.append(f"## {name}")
        if rows:
            lines.append(table(rows))
        left_out = document["left_out"].get(name, {})
        if left_out:
            lines.append(
                "Left out: " + "; ".join(f"{variant}: {why}" for variant, why in left_out.items())
            )
    lines.append(
        "*Plain einsum* is NumPy with one `np.einsum` per formula. *Matrix products*, torch and "
        "JAX share the best order of the same sums that we know for matrix libraries: the kernel "
        "values, H × n × n numbers, are made once and read twice. KeOps makes a C++ kernel of the "
        "formula and stores none of them, as wflow. *wflow, fast* works to a tolerance of "
        f"{problem['fast_tolerance']:.0e} and exists for d = 2 and 3. The *machine's limit* is the "
        "arithmetic of the exact sums alone: up to d = 8 with every operand in a register, each "
        "kernel value used for both tokens of a pair; beyond, at the rate of matrix products, the "
        "exponentials in registers."
    )
    return "\n\n".join(lines)


def scaling(document: Document) -> str:
    """Exponents and points of every series."""
    series = document["series"]
    lines = [
        made_by(document),
        "Time of the same step as one of n, H, d and the number of paths grows. The exponent b of "
        "time = a x^b is fitted to all points and to the larger half, where what does not grow has "
        "less weight; ± is the standard error of a bootstrap over the rounds, *factor* the "
        "largest between a point and the fit.",
    ]
    rows = []
    for name, entry in series.items():
        for law in (entry["fit"], entry["fit_larger_half"]):
            error = law["exponent_error"]
            rows.append({
                "series": name,
                "range": f"{law['from']:,} to {law['to']:,}",
                "exponent": f"{law['exponent']:.3f}"
                + ("" if error is None else f" ± {error:.3f}"),
                "factor": f"{law['largest_factor']:.2f}",
            })  # fmt: skip
    lines.append(table(rows))
    for over, what in VARIABLES.items():
        chosen = {name: entry for name, entry in series.items() if entry["over"] == over}
        if not chosen:
            continue
        cells = {
            name: dict(zip(entry["points"], map(spread_cell, entry["times"]), strict=True))
            for name, entry in chosen.items()
        }
        rows = [
            {over: f"{x:,}"}
            | {_heading(chosen[name]): column.get(x, "–") for name, column in cells.items()}
            for x in sorted({x for column in cells.values() for x in column})
        ]
        lines += [f"Milliseconds over the {what}, median (min to max):", table(rows)]
    return "\n\n".join(lines)


def _heading(entry: Document) -> str:
    fixed = ", ".join(f"{key} = {value:,}" for key, value in entry["fixed"].items())
    return f"{entry['method']}, {fixed}"


def anything(document: Document, text: str = "") -> str:
    """The tables of a benchmark whose JSON holds rows: lists of objects, or objects by name."""
    parts = [made_by(document), *filter(None, [text])]
    loose = []
    for key, value in document.items():
        if key in HEAD or not value:
            continue
        title = key.replace("_", " ")
        if isinstance(value, dict) and all(isinstance(row, dict) for row in value.values()):
            rows = [{"": name} | row for name, row in value.items()]
        elif isinstance(value, list) and all(isinstance(row, dict) for row in value):
            rows = value
        elif unit := unit_of(value):
            loose.append(f"- {title}: {spread_cell(value, unit)} {unit}")
            continue
        elif isinstance(value, dict) and not any(isinstance(v, dict) for v in value.values()):
            rest = ", ".join(f"{name} {_plain(v)}" for name, v in value.items() if _is_plain(v))
            loose.append(f"- {title}: {rest}")
            continue
        elif _is_plain(value):
            loose.append(f"- {title}: {_plain(value)}")
            continue
        else:
            continue
        parts += [f"{title[0].upper()}{title[1:]}:", rows_table(rows)]
    if loose:
        parts.append("\n".join(loose))
    return "\n\n".join(parts)


def exact_sums(document: Document) -> str:
    """Shares of the limit, and what a step costs besides its heads."""
    rows = document["results"]
    parts = [
        made_by(document),
        "One path, velocity and every energy term, on all threads. *Tied* heads use a kernel "
        "value for both tokens of a pair, *general* ones compute each direction; *blocked* is "
        "matrix products. The limit is the arithmetic alone, with every operand in a register (d "
        "= 64: at the rate of NumPy's products, the exponentials in registers), measured in the "
        "same rounds. It drifts with the machine from one benchmark to another, and "
        "a step with it: compare shares, not milliseconds, between benchmarks. *Share of "
        "fastest* takes the fastest round of both.",
        rows_table(rows),
    ]
    fits = _fixed_and_heads(rows)
    if fits:
        parts += [
            "A step of 200 tokens as a + b H, from H = 8 and 64: a is what does not grow with the "
            "heads (the way from Python into compiled code, the start of the threads, the table of "
            "$1 + \\langle x_i, x_j\\rangle^2$, what ends a token), b the heads themselves.",
            table(fits),
        ]
    if document.get("plain"):
        parts += [
            "The plain loop that is the reference for all kernels, beside the vector kernel for "
            "general heads, both on one thread in double precision; *times* is the ratio of the "
            "two, the vector kernel also forming the energy's terms.",
            rows_table(document["plain"]),
        ]
    if "call" in document:
        calls = (f"{name} {spread_cell(row, 'us')}" for name, row in document["call"].items())
        parts.append(f"A call for 2 tokens and one head on one thread, us: {'; '.join(calls)}.")
    return "\n\n".join(parts)


def _fixed_and_heads(rows: Sequence[Document]) -> list[dict[str, str]]:
    """Microseconds that do and do not grow with the heads, by dimension, precision and sums."""
    smallest = min(row["n"] for row in rows)
    by_kind: dict[tuple[Any, ...], dict[int, Document]] = {}
    for row in rows:
        if row["n"] == smallest:
            key = row["d"], row["precision"], row["sums"]
            by_kind.setdefault(key, {})[row["heads"]] = row
    found = []
    for (d, precision, sums), of_heads in by_kind.items():
        if len(of_heads) != 2:
            continue
        (few, one), (many, other) = sorted(of_heads.items())
        each, limit = (
            1e3 * (other[key] - one[key]) / (many - few) for key in ("median_ms", "limit_ms")
        )
        found.append({
            "d": str(d),
            "precision": precision,
            "sums": sums,
            "a, us": figure(1e3 * one["median_ms"] - few * each),
            "b, us a head": figure(each),
            "limit, us a head": figure(limit),
            "limit / b": figure(limit / each),
        })  # fmt: skip
    return found


def matrix_rate(document: Document) -> str:
    """Blocked sums beside the rate of matrix products, loops and torch."""
    rows = []
    for row in document["rows"]:
        cells = {
            "d": str(row["d"]),
            "n": f"{row['n']:,}",
            "heads": str(row["heads"]),
            "precision": row["precision"],
            "blocked, ms": spread_cell(row),
            "Gflop/s": figure(row["gflops"]),
            "product, Gflop/s": figure(row["rate_gflops"]),
            "share": figure(row["share"]),
        }
        for side, there in (("loops", row["loops"]), ("torch", row.get("torch"))):
            cells[f"{side}, ms"] = spread_cell(there) if there else "–"
            cells[f"{side} over blocked"] = (
                spread_cell(there["times_blocked"], "times") if there else "–"
            )
        rows.append(cells)
    return "\n\n".join([
        made_by(document),
        "One path, velocity and every energy term, tied heads. *Share*: the flops of the step's "
        "products over time, over the rate of NumPy's product of two matrices in the same rounds; "
        "exponentials count for nothing. *Loops*: the sums for few coordinates. *torch*: batched "
        "products and exponentials, with heads × n × n numbers in memory. Ratios are taken within "
        "rounds.",
        table(rows),
    ])  # fmt: skip


def sphere_maps(document: Document) -> str:
    """Ratios by size and accuracy, then all times."""
    cases: dict[tuple[Any, ...], dict[str, Document]] = {}
    for row in document["times"]:
        key = row["d"], row["flow"], row["heads"], row["n"]
        cases.setdefault(key, {})[row["side"]] = row
    rows = []
    for (d, flow, heads, n), sides in cases.items():
        cells = {"d": str(d), "flow": flow, "heads": str(heads), "n": f"{n:,}"}
        for kind, title in (("", "within the tolerance"), (", as wflow", "as accurate as wflow")):
            others = {
                name.removesuffix(kind): row["median_ms"] for name, row in sides.items()
                if name != "wflow" and name.endswith(", as wflow") == bool(kind)
            }  # fmt: skip
            fastest = min(others, key=lambda name: others[name], default=None)
            cells[title] = (
                f"{figure(others[fastest] / sides['wflow']['median_ms'])} ({fastest})"
                if fastest
                else "–"
            )
        rows.append(cells)
    return "\n\n".join([
        made_by(document),
        "The velocity of one path from an array of tokens to an array of velocities, on one "
        f"thread, to a tolerance of {document['tolerance']:.0e}, by wflow's fast sums and by "
        "nonuniform Fourier transforms of ducc0 (d = 3) and finufft, whose degrees come from the "
        "same bounds; *degree* is that of the coefficients. A library gets the largest epsilon at "
        "which its velocity is within the tolerance of the exact one, and in the rows *as wflow* "
        "the largest at which it is as accurate as ours, or 1e-13; in both, none smaller than its "
        "series is worth. *Error*: against the exact velocity, at some tokens, over the largest "
        "one. The time of the fastest library over that of wflow:",
        table(rows),
        *_parts_of_ours(document),
        "All times:",
        rows_table(document["times"]),
    ])  # fmt: skip


def _parts_of_ours(document: Document) -> list[str]:
    if not document.get("parts"):
        return []
    of = document["parts_of"]
    return [
        f"Where wflow's time goes, unnormalised, d = 3, n = {of['n']:,}, H = {of['heads']}:",
        plain_times(document["parts"]),
    ]


def rows_table(rows: Sequence[Document]) -> str:
    """Rows of JSON as a table; median, smallest and largest of a unit share a column."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    shown: dict[str, list[str]] = {}
    for key in keys:
        end, _, unit = key.partition("_")
        if end == "rounds" or (end in ("min", "max") and f"median_{unit}" in keys):
            continue
        if end == "median" and f"min_{unit}" in keys:
            cells = [spread_cell(row, unit) if row.get(key) is not None else "–" for row in rows]
            shown[f"{unit.replace('_', ' ')}, median (min to max)"] = cells
        elif any(_is_plain(row[key]) for row in rows if key in row):
            shown[key.replace("_", " ")] = [_plain(row.get(key)) for row in rows]
    return markdown_table(shown)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | bool | int | float)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return figure(value)
    return value if isinstance(value, str) else "–"


def startup(document: Document) -> str:
    """Start-up times, imports, memory."""
    rows = [
        {"from the start of the process until": name, "s, median (min to max)": seconds}
        for name, row in document["times"].items()
        if name != "a later step"
        for seconds in [spread_cell(row, "s")]
    ]
    imports = ", ".join(
        f"{name} {figure(seconds, 2)}" for name, seconds in document["imports_s"].items()
    )
    figures = document["figures"]
    problem = document["problem"]
    return "\n\n".join([
        made_by(document),
        f"`{problem['study']}`, {problem['paths']} paths of {problem['n']} tokens, d = "
        f"{problem['d']}; a *first start* finds no compiled code on disk. One later step of these "
        f"paths takes {figure(document['times']['a later step']['median_s'] * 1e3)} ms.",
        table(rows),
        f"Seconds that modules take to import, by package, of {document['imports_total_s']:.2f} in "
        f"all (measured by `-X importtime`, which slows them down): {imports}.",
        f"Peak memory of that process: {figures['peak memory (MB)']:.0f} MB. Compiled code on "
        f"disk: {figures['compiled code on disk (MB)']:.1f} MB.",
    ])  # fmt: skip


def fast_sums(document: Document) -> str:
    """Fast against exact sums: times, errors, exponents, crossover."""
    problem = document["problem"]
    rows = [
        {
            "d": str(row["d"]),
            "heads": row["law"],
            "n": f"{row['n']:,}",
            "fast ms": spread_cell(row["fast"]),
            "exact ms": spread_cell(row["exact"]) if "exact" in row else "–",
            "exact / fast": _or_dash(row.get("speedup")),
            "velocities differ by": _or_dash(row.get("velocity_difference"), 2),
            "terms, relative": _or_dash(row.get("term_difference"), 2),
            "estimate": _or_dash(row.get("estimate"), 2),
        }
        for row in document["times"]
    ]
    slopes = "; ".join(
        f"{name}: {law['exponent']:.3f} ± {law['error']:.3f}"
        for name, law in document["exponents"].items()
    )
    meets = "; ".join(
        f"d = {at['d']}, H = {at['heads']}: n = {at['measured']:,}, chosen from "
        f"{at['chosen_from']:,}"
        for at in document["crossovers"]
    )
    span = next(iter(document["exponents"].values()))
    return "\n\n".join([
        made_by(document),
        f"One path with {problem['heads']} heads, velocity and every energy term, tolerance "
        f"{problem['tolerance']:.0e}, double precision; uniform tokens; median (min to max). "
        "*Estimate* is the bound of the relative error that a step reports.",
        table(rows),
        f"Exponent of the fast sums' time in n, from {span['from']:,} to {span['to']:,} tokens: "
        f"{slopes}.",
        "Tokens from which the fast sums take less time, and from which `method=\"auto\"` chooses "
        f"them: {meets}.",
        f"Peak memory of a process that takes two steps with 10^6 tokens: "
        f"{document['peak_memory_gb']:.2f} GB.",
    ])  # fmt: skip


def gpu_particles(document: Document) -> str:
    """Tokens per second and share of the card's limit."""
    rows = [
        {
            "tokens": row["case"],
            "heads": str(row["heads"]),
            "precision": row["dtype"],
            "sums": row["variant"],
            "ms, median (min to max)": spread_cell(row),
            "tokens per second": figure(row["tokens_per_second"]),
            "of the limit": _percent(row.get("share_of_limit")),
            "transfers": _percent(row.get("transfers_share")),
            "GPU memory GB": _or_dash(row.get("gpu_memory_gb")),
        }
        for row in document["results"]
    ]
    limits = sorted({row["limit"] for row in document["results"] if "limit" in row})
    gaps = ", ".join(
        f"{name} {gap:.0e}" for name, gap in document["differences_from_numba"].items()
    )
    return "\n\n".join([
        made_by(document),
        f"{document['device']}, {document['threads']} threads of {document['machine']}; d = 3, "
        "velocity and every energy term. A token counts once for every step. *triton* is the fused "
        "kernel, *tiles* the same sums as matrix products of tiles, *numba* the processor of the "
        "same machine. *Transfers* is the share of a call, as the solver makes it from NumPy "
        "arrays to NumPy arrays, that is not the sums. "
        + (f"The limit is that of a {' or '.join(limits)}. " if limits else "")
        + f"Largest differences to the Numba kernel: {gaps}.",
        table(rows),
    ])  # fmt: skip


def fused_step(document: Document) -> str:
    """The step of 64 heads and 200 tokens, and the memory of a study."""
    figures = document["figures"]
    text = [made_by(document), plain_times(document["times"])]
    memory = [name for name in figures if "memory" in name or "wall time" in name]
    text += [f"{name[0].upper()}{name[1:]}: {figure(figures[name])}." for name in memory]
    return "\n\n".join(text)


def rwpo(document: Document) -> str:
    """Attention of the proximal operator beside torch, an OT-Flow iteration, memory."""
    problem, threads = document["problem"], document["threads"]
    flushed = any("flushed" in row["variant"] for row in document.get("forward", ()))
    zero = ", *flushed* with subnormal numbers taken as zero" if flushed else ""
    said = {
        "forward": "Mean of the context, trace of its Jacobian and effective sample size, of N "
        f"tokens that attend to themselves, kernel {problem['kernel']}, h = {problem['h']:.3g}, "
        f"beta = {problem['beta']:g}, lambda = {problem['lam']:g}; threads: {threads}, for all "
        f"variants. *torch* forms the matrix of scores and its softmax{zero}; *SDPA* is "
        "`scaled_dot_product_attention`, without the sample size. "
        "*share* is the rate of the products of scores and sums over that of a product of two "
        "matrices; the exponentials count for nothing.",
        "forward_and_backward": "Gradients of a loss of mean and trace by all tokens, by "
        "`wflow.nets.generative.attention`, which computes the weights again in chunks, and by "
        "autograd through the plain matrices:",
        "determinant": "Log determinant of the Jacobian of a layer on the way to the base with its "
        "gradient, N tokens and as many of context: exact, from the covariances of the context, "
        "and estimated from 8 random vectors, with its root mean square error and the one that it "
        "states itself:",
        "ot_flow_iteration": "An iteration of OT-Flow, forward and backward, single precision, "
        "with the trace in closed form, with the gradient alone, and with the trace by backward "
        "passes. *times operations* is the time of the closed form over that of the gradient "
        "alone, over the ratio of their operation counts: at most 1 where the trace costs no more "
        "than its formula says.",
        "memory": "Growth of the resident memory during a forward call:",
    }
    parts = [made_by(document)]
    for key, text in said.items():
        if key in document:
            parts += [text, rows_table(document[key])]
    return "\n\n".join(parts)


def transport(document: Document) -> str:
    """Wasserstein distances beside POT, by problem, by size, and along runs."""
    problem = document["problem"]
    run = problem["series"]
    parts = [
        made_by(document),
        f"$W_2$ of two clouds of {problem['n']:,} uniform tokens, and the distances of the "
        f"{run['times']} snapshots of a run of {run['steps']:,} steps (n = {run['n']}, d = "
        f"{run['d']}, H = {run['heads']}, Ornstein-Uhlenbeck heads) to its last one. *Sphere*: S², "
        "geodesic cost; POT: arccos of the products, squared, and `ot.emd2`. *Chordal*: the chord "
        "as cost. *Weighted*: random weights on one cloud, the network simplex of POT in both. "
        "*Circle*: S¹, in wflow the closed form. *Time series*: `wflow.transport.over_time` from "
        "the run file; POT: a loop with all snapshots in memory.",
        rows_table([{"variant": name} | row for name, row in document["times"].items()]),
        "By kind of clouds and number of tokens:",
        _sides(document["sizes"], ("wflow", "POT")),
        "Distances along a run in one call, and in single calls:",
        _sides(document["series"], ("over_time", "w2")),
    ]
    return "\n\n".join(parts)


def _sides(rows: Sequence[Document], sides: Sequence[str]) -> str:
    """A table of rows with a spread of milliseconds for each side."""
    return table([
        {key: _plain(value) for key, value in row.items() if _is_plain(value)}
        | {f"{side}, ms": spread_cell(row[side]) for side in sides}
        for row in rows
    ])  # fmt: skip


def jko_step(document: Document) -> str:
    """A step of minimizing movements beside SciPy and torch."""
    problem = document["problem"]
    return "\n\n".join([
        made_by(document),
        f"n = {problem['n']}, d = {problem['d']}, tau = {problem['tau']}; the same problem to the "
        "same tolerance by `wflow.jko.step`, by SciPy's L-BFGS with gradients in NumPy (einsum), "
        "and by torch's L-BFGS with autograd.",
        rows_table(document["rows"]),
    ])  # fmt: skip


def figure_two(document: Document) -> str:
    """The study behind figure 2 of [MHT], beside its arithmetic in registers."""
    study = " ".join(document["problem"]["study"])
    return anything(
        document,
        f"The whole command `studies/ou_heads.py {study}`: runs with every energy term, run "
        "files, fits and figures. *Limit*: the pairs of all its steps by arithmetic in "
        "registers, measured before and after it. *One path*: start, fits and figures, and a "
        "hundredth of the steps.",
    )


def dask_scaling(document: Document) -> str:
    """Workers beside the serial run."""
    problem = document["problem"]
    return anything(
        document,
        f"{problem['paths']} paths of {round(problem['t_final'] / problem['dt']):,} steps, n = "
        f"{problem['n']}, d = {problem['d']}, H = {problem['heads']}, every energy term, one "
        "thread each: the run by itself, and by one and two workers that were started before. "
        "Tasks are meant to last 5 s, and up to three times as long where they hold few paths. "
        "*Machine gain*: two threads over one for arithmetic in registers, measured "
        "before and after each round; ratios are taken within rounds.",
    )


def digests(document: Document) -> str:
    """What digests cost a run, and how fast they are checked."""
    return anything(
        document,
        "The share is the time within the hashing functions over that of the run. The rates are "
        "those of a file in the cache of the system.",
    )


def clustering_grid(document: Document) -> str:
    """The phase diagram: seconds of each side, whole and by dimension."""
    problem, counts = document["problem"], document["counts"]
    cells = len(problem["betas"]) * len(problem["dims"])
    return "\n\n".join([
        made_by(document),
        f"The {cells} cells of `studies/clustering.py` at its defaults, {problem['starts']} runs "
        f"each: n = {problem['n']}, d from {min(problem['dims'])} to {max(problem['dims'])}, "
        f"{round(problem['t_final'] / problem['dt'])} steps of {problem['scheme']}, and the number "
        "of clusters at three times. In memory, without run files, as torch does it: batched "
        "matrix products without autograd. The heads are beta I, a matrix like any other to torch; "
        "wflow sees that it is diagonal. *torch, beta x* multiplies by the number in its place. "
        f"All sides in memory are timed for {len(problem['torch_betas'])} of the "
        f"{len(problem['betas'])} betas, which cost the same, and their seconds scaled to all; "
        "clusters are compared there.",
        table([
            {"all cells": side, "s, median (min to max)": spread_cell(row, "s")}
            for side, row in document["seconds"].items()
        ]),
        table([
            {"over wflow in memory": side, "times, median (min to max)": spread_cell(row, "times")}
            for side, row in document["over_wflow"].items()
        ]),
        "Seconds by dimension:",
        rows_table([{"d": d} | row for d, row in document["seconds_by_dimension"].items()]),
        _slower_at(document["seconds_by_dimension"]),
        f"Counts of clusters that differ between them: {counts['differ']} of "
        f"{counts['compared']:,}.",
    ])  # fmt: skip


def _slower_at(seconds: Mapping[str, Mapping[str, float]]) -> str:
    """In which dimensions each side in memory is faster than wflow."""
    ours = "wflow in memory"
    sides = [side for side in next(iter(seconds.values())) if side not in (ours, "wflow")]
    parts = []
    for side in sides:
        dims = [d for d, row in seconds.items() if row[side] < row[ours]]
        parts.append(f"{side}: {', '.join(dims) if dims else 'none'}")
    return f"Dimensions in which a side is faster than {ours}: {'; '.join(parts)}."


def plain_times(times: Mapping[str, Any]) -> str:
    """A table of name -> figures with median_ms, min_ms and max_ms."""
    return table([
        {"variant": name, "ms, median (min to max)": spread_cell(row)}
        for name, row in times.items()
    ])  # fmt: skip


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _or_dash(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else figure(value, digits)
