"""The pages docs/performance.md and docs/performance/*.md from the JSON files of all benchmarks.

    python benchmarks/performance.py [--results benchmarks/results] [--page docs/performance.md]
    python benchmarks/performance.py --check OLD NEW

Nothing is measured here and no number stands here: a figure that no benchmark has written appears
as not measured. `--check` compares two JSON files, or two folders of them, of the same benchmarks:
it says which medians lie outside the other run's spread, ends with status 1 if there are any, and
writes agreement.json into the folder OLD, which the page of goals then shows. Each subfolder of the
results holds the files of another machine and is named after it: the page of goals lists those on
which the verdicts differ.
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import agreement
import goals
import sections
from report import RESULTS

Others = Mapping[str, dict[str, dict[str, Any]]]
PAGE = Path("docs/performance.md")
WIDTH = 118

# Title, JSON file and page, section; in the order of the list.
SECTIONS: tuple[tuple[str, str, Callable[[sections.Document], str]], ...] = (
    ("One step, side by side", "compare", sections.compare),
    ("The exact sums and the machine's limit", "exact_sums", sections.exact_sums),
    ("Large dimensions: blocked matrix products", "matrix_rate", sections.matrix_rate),
    ("The fast sums", "fast_sums", sections.fast_sums),
    ("The fast sums beside nonuniform Fourier transforms", "sphere_maps", sections.sphere_maps),
    ("How the cost grows", "scaling", sections.scaling),
    (
        "The step of 64 heads and 200 tokens, and the memory of a study",
        "fused_step",
        sections.fused_step,
    ),
    ("Figure 2 of [MHT]", "figure_two", sections.figure_two),
    ("Start-up", "startup", sections.startup),
    ("Many paths on several workers", "dask_scaling", sections.dask_scaling),
    ("Wasserstein distances", "transport", sections.transport),
    ("A step of minimizing movements", "jko_step", sections.jko_step),
    ("Clustering phase diagram", "clustering_grid", sections.clustering_grid),
    ("Digests of run files", "digests", sections.digests),
    ("On a GPU", "gpu_particles", sections.gpu_particles),
    ("Continuous-time networks", "continuous_networks", sections.anything),
    ("Attention of the proximal operator, and OT-Flow", "rwpo", sections.rwpo),
    ("Gradients by costates", "control", sections.anything),
    ("Gradients of runs", "adjoint", sections.anything),
    ("Large texts: preparing them, and training from them", "token_files", sections.anything),
    ("The mean-field equation", "meanfield", sections.anything),
)
MADE = "<!-- Written by benchmarks/performance.py from benchmarks/results/*.json: do not edit. -->"
# What the first page says, page of the details, and what is found: the fastest library beside a
# problem of compare.json, or the title of a goal.
MAIN: tuple[tuple[str, str, str], ...] = (
    ("a step with its energy balance, 64 heads and 200 tokens: fastest library over wflow",
     "compare", "n = 200, H = 64, d = 3"),
    ("the same, 8 heads and 2,000 tokens", "compare", "n = 2000, H = 8, d = 3"),
    ("the same, 8 heads and 1,000 tokens of dimension 64", "compare", "n = 1000, H = 8, d = 64"),
    ("exact sums over fast ones, 100,000 tokens", "fast_sums",
     "exact sums over fast ones, n = 100,000, H = 8, d = 3"),
    ("nonuniform Fourier transforms over the fast sums, worst case on the sphere", "sphere_maps",
     goals.SPHERE_MAPS[0]),
    ("exact sums of 200 tokens, share of the machine's limit, worst case", "exact_sums",
     goals.SHORT),
    ("the study behind figure 2 of [MHT]", "figure_two", goals.FIGURE),
    ("$W_2$ over POT's, worst case", "transport", goals.W2),
    ("plain torch over the attention of the proximal operator, 4,096 tokens", "rwpo",
     "attention of the proximal operator over plain torch, N = 4,096, d = 2, double"),
    ("memory of costates over that of back-propagation, ResNet", "control",
     "memory of costates over back-propagation, ResNet"),
)  # fmt: skip
SHOWN = 5  # rows of it that are not folded
METHOD = """In each benchmark the variants run in turn, round after round, so that a drift of the
machine's speed hits all of them; a figure is the median over the rounds, with the smallest and the
largest. The figures are in `benchmarks/results/*.json`, those of other machines in folders there.
The version "wflow 0.2.0" is the development version before 0.1.0, which had that name.
"""


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """The JSON files of a folder by their names; those that cannot be read are left out, aloud."""
    documents = {}
    for file in sorted(folder.glob("*.json")):
        try:
            documents[file.stem] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            print(f"left out: {file}: {error}", file=sys.stderr)
    return documents


def pages(documents: dict[str, dict[str, Any]], others: Others | None = None) -> dict[str, str]:
    """The pages by name, Markdown: "" is the first one; `others` are documents of other machines
    by their folders.
    """
    names = [*(name for _, name, _ in SECTIONS), *goals.COMMANDS]
    shown = {name: documents[name] for name in names if name in documents}
    reached = goals.collect(documents)
    found = {"": [first(documents, reached)]}
    parts = ["# Method, machines and goals", METHOD, machines(shown), "## Goals"]
    parts.append(goals.table(reached))
    parts += [
        elsewhere(name, other, reached)
        for name, other in (others or {}).items()
        if any(goal.met is not None for goal in goals.collect(other))
    ]
    try:
        parts.append(repeated(documents.get("agreement")))
    except KeyError:  # of an earlier version
        parts.append(repeated(None))
    found["goals"] = parts
    for title, name, section in SECTIONS:
        found[name] = [f"# {title}", details(name, section, documents)]
        if name in documents:
            found[name].insert(1, machines({name: documents[name]}))
    return {name: joined(parts) for name, parts in found.items()}


def details(
    name: str, section: Callable[[sections.Document], str], documents: dict[str, dict[str, Any]]
) -> str:
    """A section, or why there is none."""
    if name not in documents:
        return sections.NOT_MEASURED
    try:
        return section(documents[name])
    except (KeyError, TypeError, IndexError) as error:
        print(f"{name}.json is not as this page expects: {error!r}", file=sys.stderr)
        return f"{name}.json comes from another version of its benchmark: run it again."


def first(documents: dict[str, dict[str, Any]], reached: list[goals.Goal]) -> str:
    """Return the main numbers, how many goals are met, and the tree of pages."""
    rows = []
    by_title = {goal.what: goal.row() for goal in reached}
    for what, name, key in MAIN:
        if name == "compare":
            found, goal = fastest(documents.get(name, {}), key), ""
        else:
            row = by_title[key]
            found, goal = row["found"], f"{row['target']}: {row['verdict']}"
        link = f"[{name}](performance/{name}.md)"
        rows.append({"what": what, "found": found, "goal": goal, "details": link})
    machine = documents.get("compare", {}).get("machine", "an unknown machine")
    tree = ["goals", *(name for _, name, _ in SECTIONS)]
    return "\n\n".join([
        "# Performance",
        f"The numbers are medians of `make bench` on {machine}; ratios are of times in one run.",
        "{.cards}\n" + sections.table(rows[:SHOWN]),
        f":::{{dropdown}} {len(rows) - SHOWN} more numbers\n{{.cards}}\n"
        f"{sections.table(rows[SHOWN:])}\n:::",
        f"The tally of all goals is: {goals.tally(reached)}. [Method, machines and "
        "goals](performance/goals.md) says which goals are missed, and why.",
        "\n".join(["```{toctree}", ":hidden:", "", *(f"performance/{n}" for n in tree), "```"]),
    ])  # fmt: skip


def fastest(document: Mapping[str, Any], problem: str) -> str:
    """Time of the fastest library over that of wflow, and its name."""
    times = {
        variant: row["times_exact"]
        for variant, row in document.get("times", {}).get(problem, {}).items()
        if not variant.startswith(("wflow", "machine")) and "times_exact" in row
    }
    if not times:
        return "–"
    variant = min(times, key=lambda name: times[name])
    return f"{sections.figure(times[variant])} times ({variant})"


def joined(parts: list[str]) -> str:
    """The text of a page, its paragraphs in lines of the width of the other pages."""
    blocks = "\n\n".join(part.strip("\n") for part in [MADE, *parts] if part).split("\n\n")
    return "\n\n".join(map(wrapped, blocks)) + "\n"


def wrapped(block: str) -> str:
    """A paragraph, or each entry of a list, in lines of the width of the other pages."""
    if block.startswith(("|", "#", "    ", "<!--", "```", ":::", "performance/", "{.")):
        return block
    return "\n".join(
        textwrap.fill(
            line, WIDTH, subsequent_indent="  " if line.startswith("- ") else "",
            break_long_words=False, break_on_hyphens=False,
        )
        for line in (block.split("\n") if block.startswith("- ") else [block])
    )  # fmt: skip


def machines(documents: dict[str, dict[str, Any]]) -> str:
    """Which machine, when, and with which versions; files that differ are named."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, document in documents.items():
        versions = {k: v for k, v in document.get("versions", {}).items() if v != "unknown"}
        listed = ", ".join(f"{package} {version}" for package, version in versions.items())
        where = document.get("machine") or document.get("device") or "unknown machine"
        count = document.get("threads", "unknown")
        threads = f"{count} thread{'' if count == 1 else 's'}"
        key = (str(where), threads, document.get("date", "")[:10], listed)
        groups.setdefault(key, []).append(name)
    if not groups:
        return "Nothing has been measured yet."
    return "\n".join(
        f"- {', '.join(names)}: {'; '.join(part for part in key if part)}."
        for key, names in groups.items()
    )


def elsewhere(name: str, documents: dict[str, dict[str, Any]], here: list[goals.Goal]) -> str:
    """How many goals another machine meets, and those on which it and this one differ."""
    found = {goal.what: goal for goal in goals.collect(documents)}
    dates = sorted({document["date"][:10] for document in documents.values() if "date" in document})
    shared = [found[goal.what] for goal in here if goal.what in found]
    text = (
        f"On another machine, {name} ({' to '.join(dict.fromkeys(dates[:1] + dates[-1:]))}, with "
        f"the code of those days; `benchmarks/results/{name}`), of the same goals: "
        f"{goals.tally(shared)}."
    )
    differ = [
        f"- {goal.what}: {'met' if goal.met else 'missed'} here ({goal.row()['found']}), "
        f"{'met' if there.met else 'missed'} there ({there.row()['found']})"
        for goal in here
        if (there := found.get(goal.what)) and {goal.met, there.met} == {True, False}
        if goal.decided and there.decided
    ]
    if not differ:
        return text + " No verdict differs."
    return text + " Verdicts that differ:\n\n" + "\n".join(differ)


def repeated(found: dict[str, Any] | None) -> str:
    """Whether a second run agreed."""
    if found is None:
        return "Whether a second run agrees: not measured (`make bench-again`)."
    days = sorted({date[:16].replace("T", " ") for pair in found["dates"] for date in pair})
    text = (
        f"Two runs (`make bench` and `make bench-again`, {days[0]} to {days[-1]}, UTC): "
        f"{found['agreed']} of {found['compared']} medians lie within the spread of the other run, "
        "as printed. A spread of few rounds is narrow: the table gives the median and the 90th "
        "percentile of the differences too, as shares of the larger median."
    )
    table = sections.table([
        {
            "benchmark": name,
            "medians": str(row["compared"]),
            "within the spread": str(row["agreed"]),
            "median difference": f"{100 * row['half_within']:.1f} %",
            "90th percentile": f"{100 * row['nine_of_ten_within']:.1f} %",
        }
        for name, row in found["files"].items()
    ])  # fmt: skip
    worst = "; ".join(
        f"{row['file'].removesuffix('.json')}: {row['figure']} "
        f"({row['old']['median']:.3g} and {row['new']['median']:.3g})"
        for row in found["apart"][:5]
    )
    rest = [f"Furthest apart: {worst}."] if worst else []
    if found["once"]:
        rest.append(f"Without a second run: {', '.join(found['once'])}.")
    return "\n\n".join([text, table, " ".join(rest)])


def check(old: Path, new: Path) -> int:
    """Compare two runs, print what differs, keep the comparison; 1 if anything does."""
    found = agreement.compare(old, new)
    for row in found["apart"]:
        spans = (f"{row[k]['median']:.4g} ({row[k]['least']:.4g} to {row[k]['most']:.4g})"
                 for k in ("old", "new"))  # fmt: skip
        print(f"{row['file']}: {row['figure']}: {' and '.join(spans)}")
    if len(found["machines"]) > 1:
        print(f"the runs come from different machines: {', '.join(found['machines'])}")
    print(f"{found['agreed']} of {found['compared']} medians lie within the other run's spread")
    if old.is_dir():
        (old / "agreement.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 1 if found["apart"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of JSON files")
    parser.add_argument("--page", type=Path, default=PAGE, help="the others are in a folder of it")
    parser.add_argument("--check", type=Path, nargs=2, metavar=("OLD", "NEW"))
    options = parser.parse_args()
    if options.check:
        return check(*options.check)
    documents = load(options.results)
    if not documents:
        parser.error(f"{options.results} holds no JSON file: run `make bench` first")
    folder = options.page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    folders = sorted(place for place in options.results.iterdir() if place.is_dir())
    others = {place.name: load(place) for place in folders}
    for name, text in pages(documents, others).items():
        file = folder / f"{name}.md" if name else options.page
        file.write_text(text, encoding="utf-8")
    print(f"wrote {options.page} and {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
