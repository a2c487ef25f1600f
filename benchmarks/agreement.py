"""Whether two runs of the benchmarks agree: every median within the other run's printed spread.

A figure is any JSON object with keys median_UNIT, min_UNIT and max_UNIT (see `report.spread`). Two
runs agree on it where the median of one of them lies between the smallest and largest of the other:
what a reader of one table, with its spread, would call the same number.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

NAMES = (
    "variant", "name", "method", "law", "n", "heads", "d", "dtype", "precision", "sums", "case",
    "backend",
)  # fmt: skip


class Spread(NamedTuple):
    median: float
    least: float
    most: float


def spreads(document: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[str, Spread]]:
    """Every figure of a JSON document, with its place in it as a name."""
    if isinstance(document, dict):
        for key, value in document.items():
            unit = key.removeprefix("median")
            least, most = document.get(f"min{unit}"), document.get(f"max{unit}")
            if key != unit and value is not None and least is not None and most is not None:
                yield " / ".join((*where, key)), Spread(value, least, most)
            else:
                yield from spreads(value, (*where, key))
    elif isinstance(document, list):
        for place, value in enumerate(document):
            yield from spreads(value, (*where, _label(place, value)))


def _label(place: int, row: Any) -> str:
    if not isinstance(row, dict):
        return str(place)
    known = [f"{name} = {row[name]}" for name in NAMES if isinstance(row.get(name), str | int)]
    return ", ".join(known) or str(place)


def agree(one: Spread, other: Spread) -> bool:
    """Whether either median lies within the other's spread."""
    return other.least <= one.median <= other.most or one.least <= other.median <= one.most


def compare(old: Path, new: Path) -> dict[str, Any]:
    """Compare two JSON files, or the files that two folders have in common.

    Files of one date are one measurement, and left out.

    Returns
    -------
    compared : number of figures that both have; agreed : on how many they agree
    apart : file, figure, both medians and both spreads of the others, and their difference, the
        largest first
    files : for each file its dates, `compared` and `agreed`, and the median and the 90th percentile
        of the differences of its medians, as shares of the larger
    once : files that are in one folder only, are one measurement, or have no figure in common
    machines, dates : those of the old and of the new run

    Raises
    ------
    SystemExit
        Where there is nothing to compare.
    """
    if old.is_dir() and new.is_dir():
        names = sorted({f.name for f in old.glob("*.json")} & {f.name for f in new.glob("*.json")})
        pairs = [(old / name, new / name) for name in names if name != "agreement.json"]
        every = {file.stem for folder in (old, new) for file in folder.glob("*.json")}
        once = sorted(every - {Path(name).stem for name in names})
    else:
        pairs, once = [(old, new)], []
    apart: list[dict[str, Any]] = []
    files: dict[str, dict[str, Any]] = {}
    compared, machines, dates = 0, set(), set()
    for before, after in pairs:
        try:
            documents = [json.loads(file.read_text(encoding="utf-8")) for file in (before, after)]
        except (OSError, ValueError) as error:
            raise SystemExit(f"cannot compare {before} and {after}: {error}") from None
        taken = [document.get("date", "unknown") for document in documents]
        if "date" in documents[0] and taken[0] == taken[1]:
            once.append(before.stem)
            continue
        machines |= {document.get("machine", "unknown") for document in documents}
        dates.add(tuple(taken))
        # Figures of the same name (rows without one of NAMES) are distinguished by their order.
        tables = [_numbered(document) for document in documents]
        common = sorted(tables[0].keys() & tables[1].keys())
        differ, differences = 0, []
        for name in common:
            one, other = tables[0][name], tables[1][name]
            differences.append(_difference(one.median, other.median))
            if not agree(one, other):
                differ += 1
                apart.append({
                    "file": before.name, "figure": name, "old": one._asdict(),
                    "new": other._asdict(), "difference": differences[-1],
                })  # fmt: skip
        compared += len(common)
        if not common:
            once.append(before.stem)
        else:
            files[before.stem] = {
                "dates": taken,
                "compared": len(common),
                "agreed": len(common) - differ,
                "half_within": float(np.median(differences)),
                "nine_of_ten_within": float(np.quantile(differences, 0.9)),
            }
    if not compared:
        raise SystemExit(
            f"{old} and {new} have no figure in common that was measured twice: nothing to compare"
        )
    apart.sort(key=lambda row: -row["difference"])
    return {
        "compared": compared,
        "agreed": compared - len(apart),
        "apart": apart,
        "files": files,
        "once": sorted(set(once) - {"agreement"}),
        "machines": sorted(machines),
        "dates": sorted(dates),
    }


def _difference(one: float, other: float) -> float:
    """By how much two numbers differ, as a share of the larger."""
    return abs(one - other) / max(abs(one), abs(other)) if one != other else 0.0


def _numbered(document: Any) -> dict[str, Spread]:
    table: dict[str, Spread] = {}
    for name, value in spreads(document):
        key, copies = name, 1
        while key in table:
            copies += 1
            key = f"{name} ({copies})"
        table[key] = value
    return table
