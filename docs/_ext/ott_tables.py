"""The tables of [OTT] beside those of the studies: writes docs/results/ott_tables.md.

Every folder below the given ones that holds the summary of a study of [OTT] is read; summaries of
the preset smoke are left out. A row has the published number, ours, and whether ours lies on the
same side of the baseline by more than the spread over seeds.

    python docs/_ext/ott_tables.py results --out docs/results/ott_tables.md

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, arXiv 2505.13499.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wflow import InputError, study
from wflow._core.files import opened, read_json, replace_file
from wflow.cli import script
from wflow.study import networks
from wflow.study.frame import AT_THIS_SIZE
from wflow.study.texts import SCORES

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "studies" / "ott"))

from _ott import PUBLISHED  # noqa: E402
from cats_dogs import CatsDogs  # noqa: E402
from mnist_vit import LEVELS, MnistVit  # noqa: E402
from point_clouds import DROPPED, PointClouds  # noqa: E402
from sentiment import Sentiment  # noqa: E402
from shakespeare_gpt import REPLACED, ShakespeareGpt  # noqa: E402
from shakespeare_words import ShakespeareWords  # noqa: E402
from web_text import WebText  # noqa: E402

if TYPE_CHECKING:
    from xarray import Dataset

BASELINE = "baseline"
MEASURED = Path("benchmarks", "results", "continuous_networks.json")  # of Table 4
LABELS = {
    "node": "N-ODE",
    "node with cost": "N-ODE with cost",
    "unregularised": "continuous, no cost",
    "continuous": "continuous with cost",
}
FLAGS: dict[str, Any] = {
    "mnist_vit": MnistVit, "cats_dogs": CatsDogs, "sentiment": Sentiment,
    "point_clouds": PointClouds, "shakespeare_gpt": ShakespeareGpt,
    "shakespeare_words": ShakespeareWords, "web_text": WebText,
}  # fmt: skip
NOTES = {  # on a study, or on a table: what was trained apart from the summary that is read
    "mnist_vit": "The baseline has 92,938 parameters; it was trained on 2026-11-27, "
    "`--only baseline`.",
    "9 of [OTT1]": "Table 4 of [OTT1] has the first of these numbers. The models with lam = 0.01 "
    "were trained [apart](sentiment.md#the-slight-cost-of-the-first-version), two seeds, "
    "2026-11-29.",
    "10": "BERTScore: all-MiniLM-L6-v2, [trained again for it](shakespeare_gpt.md#bertscore), "
    "2 seeds, 2026-11-28.",
    "13": "BERTScore: all-MiniLM-L6-v2, [trained again for it](web_text.md#bertscore), 2 seeds, "
    "2026-11-29.",
}
GPUS = dict(zip(FLAGS, (1, 8, 2, 8, 2, 2, 8), strict=True))  # on which the preset `paper` runs


def published(name: str) -> str:
    """The command that runs the preset of the published sizes."""
    count = GPUS[name]
    start = "python" if count == 1 else f"torchrun --nproc-per-node {count}"
    habits = " --published" if name in ("cats_dogs", "sentiment") else ""  # sizes, splits of [OTT]
    return f"{start} studies/ott/{name}.py --preset paper{habits}"


def of_published_size(study: str, flags: Mapping[str, Any]) -> bool:
    """Whether a study was the preset `paper`; None is a default in older summaries."""
    habits = {name: flags[name] for name in ("published",) if name in flags}
    asked = FLAGS[study].of("paper", **habits)
    ignored = asked.indifferent - {"dataset"}

    def plain(value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value  # as summary.json has it

    same = (
        plain(flags.get(name)) in (None, plain(value))
        for name, value in networks.settings(asked).items()
        if name not in ignored
    )
    return flags["preset"] == "paper" and all(same)


@dataclass(frozen=True)
class Quantity:
    """A column of a published table: model -> printed number, and where ours is."""

    title: str
    key: str  # of summary.h5
    published: Mapping[str, str]
    place: tuple[str, float] | None = None  # dimension and coordinate
    scale: float = 1.0
    style: str = ".3f"
    apply: Callable[[Any], Any] = lambda values: values

    def ours(self, table: Dataset, model: str) -> Any:
        """One number per seed, NaN of diverged runs; empty where nothing was measured.

        That is: where the model was not trained, or no model has a number of this quantity.
        """
        if self.key not in table or model not in table["model"].values:
            return np.empty(0)
        if not table[self.key].notnull().any():
            return np.empty(0)
        rows = table[self.key].sel(model=model)
        if self.place is not None:
            rows = rows.sel({self.place[0]: self.place[1]}, method="nearest")
        seeds = table["seconds"].sel(model=model).notnull().values  # fewer than other models
        return self.scale * self.apply(rows.values[seeds])


@dataclass(frozen=True)
class Part:
    """What one study has of a table."""

    study: str
    quantities: tuple[Quantity, ...]
    ablation: str = "none"
    claims: tuple[str, ...] = ()  # beginnings of the sources of its findings


@dataclass(frozen=True)
class Source:
    """The summary of a study."""

    study: str
    flags: Mapping[str, Any]
    caption: str
    command: str
    findings: tuple[Mapping[str, str], ...]
    table: Dataset = field(repr=False)


def percents(title: str, key: str, published: Mapping[str, str], *place: Any) -> Quantity:
    return Quantity(title, key, published, place or None, scale=100, style=".2f")


def levels(
    key: str,
    dim: str,
    steps: Iterable[float],
    published: Mapping[str, tuple[float, ...]],
    title: str,
) -> tuple[Quantity, ...]:
    """Accuracies at every level of a perturbation."""
    return tuple(
        percents(
            f"{title} {step:g}", key, {m: f"{v[k]:g}" for m, v in published.items()}, dim, step
        )
        for k, step in enumerate(steps)
    )


def replaced(title: str, published: Mapping[str, Any], **changes: Any) -> tuple[Quantity, ...]:
    """Losses, or what is made of them, at every share of replaced characters."""
    return tuple(
        Quantity(
            f"{title}, {rate:g} replaced", "loss_replaced",
            {model: values[k] for model, values in published.items()}, ("rate", rate), **changes,
        )
        for k, rate in enumerate(REPLACED)
    )  # fmt: skip


def scores(published: Mapping[str, Mapping[str, float]]) -> tuple[Quantity, ...]:
    """Scores of next tokens that are published."""
    return tuple(
        Quantity(
            f"{SCORES[name]} (%)", f"forced_{name}",
            {model: f"{values[name]:g}" for model, values in published.items()}, style=".2f",
        )
        for name in next(iter(published.values()), ())
    )  # fmt: skip


def losses(printed: Mapping[str, Any]) -> tuple[Quantity, ...]:
    """Test losses, and what else is printed of texts."""
    found = [
        Quantity("best test loss", "best", printed["best"]),
        Quantity("final test loss", "final", printed["final"]),
    ]
    if "perplexity" in printed:
        title, key = "perplexity, mean over windows", "perplexity_windows"
        found.append(Quantity(title, key, printed["perplexity"], style=".2f"))
    return *found, *scores(printed.get("scores", {}))


def accuracies(printed: Mapping[str, Any]) -> tuple[Quantity, Quantity]:
    """Accuracies of the best epoch and of the last one."""
    return percents(BEST, "best", printed["best"]), percents(FINAL, "final", printed["final"])


def named(values: Mapping[str, str], *starts: str) -> dict[str, str]:
    """The published values of the baseline and of models whose names begin so."""
    return {name: v for name, v in values.items() if name == BASELINE or name.startswith(starts)}


FINAL, BEST = "final test accuracy (%)", "best test accuracy (%)"
GPT, WORDS, WEB, CLOUDS, DIGITS, PETS, FILMS = (
    PUBLISHED[f"Table {number}"] for number in (10, 12, 13, 6, 7, 8, 9)
)
EARLIER = {  # [OTT1] prints the numbers of [OTT] Table 9 with another lam, in Table 4, too
    key: {name.replace("lam=0.001", "lam=0.01"): printed for name, printed in FILMS[key].items()}
    for key in ("best", "final")
}
CHARACTERS, NOISE = PUBLISHED["Table 3, characters"]["loss"], PUBLISHED["Table 3, digits"]
TABLES: dict[str, tuple[str, tuple[Part, ...]]] = {
    "1": ("Text generation", (
        Part("shakespeare_gpt", losses(GPT)[1:2]),
        Part("shakespeare_words", losses(WORDS)[1:2]),
        Part("web_text", losses(WEB)[1:2]),
    )),
    "2": ("Point clouds, images and sentiment", (
        Part("point_clouds", (percents(BEST, "best", named(CLOUDS["best"], "continuous")),)),
        Part("mnist_vit", accuracies(DIGITS)[:1]),
        Part("cats_dogs", (percents(FINAL, "final", named(PETS["final"], "unreg", "cont")),)),
        Part("sentiment", (percents(BEST, "best", named(FILMS["best"], "continuous lam=0.")),)),
    )),
    "3": ("Robustness", (
        Part("shakespeare_gpt", replaced("test loss", CHARACTERS)),
        Part("point_clouds", levels("accuracy_dropped", "share", DROPPED,
                                    PUBLISHED["Table 3, points"]["accuracy"],
                                    "accuracy (%), points dropped")),
        Part("mnist_vit", tuple(
            quantity
            for noise in ("gaussian", "uniform")
            for quantity in levels(f"accuracy_{noise}", "level", LEVELS, NOISE[noise],
                                   f"accuracy (%), {noise} noise")
        )),
    )),
    "5": ("Weight of the transport cost, and steps", tuple(
        Part("shakespeare_gpt", (Quantity("final test loss", "final", PUBLISHED["Table 5"][name]),),
             name)
        for name in ("lam", "steps")
    )),
    "6": ("Point clouds", (
        Part("point_clouds", accuracies(CLOUDS), claims=("[OTT] Appendix I",)),
    )),
    "7": ("Digits of MNIST", (Part("mnist_vit", accuracies(DIGITS)),)),
    "8": ("Cats and dogs", (
        Part("cats_dogs", accuracies(PETS), claims=("[OTT] Appendix I",)),
    )),
    "9": ("Sentiment", (Part("sentiment", accuracies(FILMS), claims=("[OTT] Appendix I",)),)),
    "9 of [OTT1]": ("Sentiment, lam = 0.01 in place of 0.001", (
        Part("sentiment", accuracies(EARLIER)),
    )),
    "10": ("Characters of Shakespeare", (Part("shakespeare_gpt", losses(GPT)),)),
    "11": ("Perplexity with characters replaced", (
        Part("shakespeare_gpt", (
            *replaced("test loss", CHARACTERS),
            *replaced("perplexity", PUBLISHED["Table 11"]["perplexity"], apply=np.exp,
                      style=".2f"),
        )),
    )),
    "12": ("Byte pairs of Shakespeare", (Part("shakespeare_words", losses(WORDS)),)),
    "13": ("Web text", (Part("web_text", losses(WEB)),)),
}  # fmt: skip


def found(folders: Iterable[Path]) -> list[Source]:
    """The summaries of studies of [OTT] below some folders, published sizes first."""
    import xarray

    sources = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is no folder: expected one with the results of studies")
        for file in sorted(folder.rglob("summary.json")):
            with opened(file, "the summary of a study") as text:
                document = read_json(text, file)
            flags = document.get("config", {}).get("flags", {})
            if document.get("study") not in GPUS or flags.get("preset") == "smoke":
                continue
            page = (file.parent / "summary.md").read_text(encoding="utf-8")
            caption = next(line for line in page.splitlines() if line.startswith("Preset "))
            caption, _, _ = caption.partition(" ± is the standard deviation")
            with xarray.open_dataset(file.parent / "summary.h5", engine="h5netcdf") as table:
                sources.append(
                    Source(
                        document["study"],
                        flags,
                        f"{caption.strip()} {document['created'].partition('T')[0]}.",
                        repeated(document["command"]),
                        tuple(document["findings"]),
                        table.load(),
                    )
                )
    return sorted(sources, key=lambda source: source.flags["preset"] != "paper")


def repeated(command: str) -> str:
    """The command that repeats all of a study which was trained in parts.

    >>> repeated("/home/me/studies/ott/web_text.py --preset cpu --only a 'b c' --out x --resume")
    'studies/ott/web_text.py --preset cpu'
    """
    script, *words = shlex.split(command)
    kept = [f"studies/ott/{Path(script).name}"]
    within = ""
    for word in words:
        within = word if word.startswith("--") else within
        if within.partition("=")[0] not in ("--only", "--out", "--resume", "--overwrite"):
            kept.append(word)
    return shlex.join(kept)


def rows(part: Part, table: Dataset | None, whole_size: bool) -> Iterator[dict[str, str]]:
    """Published and ours, row by row."""
    for quantity in part.quantities:
        base = BASELINE in quantity.published
        for model, printed in quantity.published.items():
            ours = np.empty(0) if table is None else quantity.ours(table, model)
            finite = ours[np.isfinite(ours)]
            text = "–"
            if ours.size:
                text = networks.mean_and_spread(ours.tolist(), partial(show, quantity.style))
                text = "diverged" if not finite.size and model != BASELINE else text
            row = {
                "model": LABELS.get(model, model),
                "quantity": quantity.title,
                "published": printed.replace("NaN", "diverged"),
                "ours": text,
            }
            if whole_size:
                known = finite.size and number(printed) == number(printed)
                row["difference"] = f"{finite.mean() - number(printed):+.2f}" if known else "–"
            verdict = "–"
            if base and model != BASELINE and table is not None and ours.size:
                verdict = same_side(quantity, model, ours, quantity.ours(table, BASELINE))
                if not whole_size and verdict not in ("inconclusive", "–"):
                    verdict += AT_THIS_SIZE
            yield row | {"verdict": verdict}


def show(style: str, value: float) -> str:
    return format(value, style)


def number(printed: str) -> float:
    return float(printed.split()[0])


def same_side(quantity: Quantity, model: str, ours: Any, baseline: Any) -> str:
    """Whether a model lies on the published side of the baseline."""
    published = number(quantity.published[model])
    if math.isnan(published):  # the published training blew up
        lost = int((~np.isfinite(ours)).sum())
        if not lost:
            return "not confirmed"
        return "confirmed" if lost == ours.size else "confirmed in part"
    gap = published - number(quantity.published[BASELINE])
    if not gap or not baseline.size:
        return "–"
    sign = math.copysign(1, gap)
    return networks.compared(sign * ours, sign * baseline)[1]


def page(sources: list[Source], command: str) -> str:
    """The page: every table with its parts, each for every summary of its study."""
    pieces = [HEAD.format(command=command)]
    for name, (title, parts) in TABLES.items():
        if name == "5":
            pieces += times()
        pieces.append(f"## Table {name}: {title}")
        pieces += [NOTES[name]] if name in NOTES else []
        for part in parts:
            mine = [
                source
                for source in sources
                if source.study == part.study
                and source.flags.get("ablation", "none") == part.ablation
            ]
            option = "" if part.ablation == "none" else f" --ablation {part.ablation}"
            if not any(source.flags["preset"] == "paper" for source in mine):
                pieces.append(
                    f"[{part.study}]({part.study}.md) at the published size has not been run; on "
                    f"GPUs: `{published(part.study)}{option}`."
                )
            if not mine:
                pieces.append(study.markdown_table(list(rows(part, None, False))))
            for source in mine:
                size = of_published_size(source.study, source.flags)
                pieces += [
                    f"[{part.study}]({part.study}.md), `{source.command}`. {source.caption}"
                    + (f" {NOTES[source.study]}" if source.study in NOTES else ""),
                    study.markdown_table(list(rows(part, source.table, size))),
                ]
                pieces += claims(part, name, source)
    return "\n\n".join(pieces) + "\n"


def times() -> list[str]:
    """Write Table 4, the times of an iteration, beside those of the benchmark."""
    printed = PUBLISHED["Table 4"]["milliseconds"]
    found = json.loads((ROOT / MEASURED).read_text(encoding="utf-8"))
    ours = {row["model"]: row for row in found["table_4"]}
    table = [
        {
            "model": LABELS.get(name, name),
            "published (ms)": f"{value:g}",
            "over the baseline": f"{value / printed[BASELINE]:.2f}",
            "blocks x heads x width, steps": f"{ours[name]['network']}, {ours[name]['steps'] or 1}",
            "ours (ms)": f"{ours[name]['median_ms']:.0f}",
            "ours, over the baseline": "{median_ratio:.2f} ({min_ratio:.2f} to {max_ratio:.2f})"
            .format(**ours[name]),
        }
        for name, value in printed.items()
    ]  # fmt: skip
    first = next(iter(ours.values()))
    return [
        "## Table 4: Time of a training iteration",
        f"`{found['command']}`, {found['machine']}, batches of {first['windows']} x 256 tokens, "
        f"median of {first['rounds']} rounds, {found['date'].partition('T')[0]}; the ratio is that "
        "within a round, with its range. [OTT] does not name the numbers of steps: 5, of its code, "
        "and 10, of its other tables, are taken here.",
        study.markdown_table(table),
    ]


def claims(part: Part, table: str, source: Source) -> list[str]:
    """What the study decided of this table, in its own words."""
    starts = (f"[OTT] Table {table}", *part.claims)
    said = [
        f"- {finding['prediction']}: **{finding['verdict']}** ({finding['found']})"
        for finding in source.findings
        if finding["source"].split(",")[0] in starts or finding["source"] in starts
    ]
    return ["\n".join(said)] if said else []


HEAD = """# The tables of [OTT]

    {command}

Tables 1 to 13 of [OTT], row by row, beside the studies and benchmarks of this package. A verdict
says whether a model lies on the published side of the baseline: confirmed where the means differ by
more than the standard deviations over seeds together, inconclusive within them and for one seed.
Below a table stand the claims that its study decides. Numbers of smaller presets, and of other
data, are no repetition of the published ones: for them the side alone is compared, "at this size".

Published counts of parameters are those of our networks of the preset `paper` to the printed digit;
a test of each study holds the rule of counting, which its page states. Where a row has no number of
ours the model was not trained at that size. Rows of BERTScore need an encoder, which the option
`--encoder` of the studies of texts loads; the table names it. [OTT] does not name its own: the
order of the models is compared, not the numbers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, help="folders with results of studies")
    parser.add_argument("--out", type=Path, required=True, help="the page that is written")
    given = parser.parse_args()
    names = " ".join(map(str, given.folders))
    command = f"python docs/_ext/ott_tables.py {names} --out {given.out}"
    text = page(found(given.folders), command)
    replace_file(given.out, lambda draft: draft.write_text(text, encoding="utf-8"))
    print(f"wrote {given.out}")


if __name__ == "__main__":
    script(main)
