"""Whether two runs of the benchmarks agree: every median within the other run's printed spread.

A figure is any JSON object with keys median_UNIT, min_UNIT and max_UNIT (see `report.spread`). Two
runs agree on it where the median of one of them lies between the smallest and largest of the other:
what a reader of one table, with its spread, would call the same number.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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

    Returns
    -------
    compared : number of figures that both have; agreed : on how many they agree
    apart : file, figure, both medians and both spreads of the others, the worst ratio first
    machines, dates : those of the old and of the new run

    Raises
    ------
    SystemExit
        Where there is nothing to compare.
    """
    if old.is_dir() and new.is_dir():
        names = sorted({f.name for f in old.glob("*.json")} & {f.name for f in new.glob("*.json")})
        pairs = [(old / name, new / name) for name in names if name != "agreement.json"]
    else:
        pairs = [(old, new)]
    apart: list[dict[str, Any]] = []
    compared, machines, dates = 0, set(), set()
    for before, after in pairs:
        try:
            documents = [json.loads(file.read_text(encoding="utf-8")) for file in (before, after)]
        except (OSError, ValueError) as error:
            raise SystemExit(f"cannot compare {before} and {after}: {error}") from None
        machines |= {document.get("machine", "unknown") for document in documents}
        dates.add(tuple(document.get("date", "unknown") for document in documents))
        # Figures of the same name (rows without one of NAMES) are distinguished by their order.
        tables = [_numbered(document) for document in documents]
        for name in tables[0].keys() & tables[1].keys():
            one, other = tables[0][name], tables[1][name]
            compared += 1
            if not agree(one, other):
                apart.append({
                    "file": before.name, "figure": name, "old": one._asdict(),
                    "new": other._asdict(), "ratio": other.median / one.median,
                })  # fmt: skip
    if not compared:
        raise SystemExit(f"{old} and {new} have no figure in common: nothing to compare")
    apart.sort(key=lambda row: -max(row["ratio"], 1 / row["ratio"]))
    return {
        "compared": compared,
        "agreed": compared - len(apart),
        "apart": apart,
        "machines": sorted(machines),
        "dates": sorted(dates),
    }


def _numbered(document: Any) -> dict[str, Spread]:
    table: dict[str, Spread] = {}
    for name, value in spreads(document):
        key, copies = name, 1
        while key in table:
            copies += 1
            key = f"{name} ({copies})"
        table[key] = value
    return table
