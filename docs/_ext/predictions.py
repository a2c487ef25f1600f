"""Write the pages of predictions and the table of the README from the findings of the studies.

These are `docs/results/predictions.md`, and `docs/results/reproductions/*.md`, where a comment
`<!-- findings: Table 3 of mnist_vit, point_clouds_solids -->` has those of a source below it.

A study has its findings in `summary.json`. They are published in
`docs/results/findings/STUDY.json`, where texts may be shortened and get links; every verdict there
is one that a study decided.

    python docs/_ext/predictions.py                       # writes both
    python docs/_ext/predictions.py results/ou_heads ...  # takes their findings first

A file of findings that two folders of one study share is named by hand: see `point_clouds_solids`.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PAGE, README = RESULTS / "predictions.md", ROOT / "README.md"
REPRODUCTIONS = RESULTS / "reproductions"
FINDINGS = re.compile(r"(<!-- findings: (.+?) of (.+?) -->\n).*?(<!-- end of findings -->\n)", re.S)
BEGIN, END = "<!-- results: docs/_ext/predictions.py -->\n", "<!-- end of results -->\n"

HEAD = """# Predictions and verdicts

This page lists every prediction of the theory and every claim of the papers that a study tries,
with the verdict that the code of the study decides from its numbers. A claim that was tried below
the size of its paper is confirmed or not *at this size*; numbers that agree with a theorem are
*consistent* with it. Command, seed, device, data and date are on the page of each study; the rows
come from [its findings](https://github.com/wflow/wflow/blob/main/docs/results/findings).
"""
VERDICTS = ("confirmed", "consistent", "confirmed in part", "inconclusive", "not confirmed")
FOLDED = 170  # characters of a result from which its further cases are folded
# Heading, text, and files of findings, in the order of the page.
SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Tokens and heads",
        "",
        ("ou_heads", "oscillating_heads", "edi_defect", "metric", "jko", "long_time",
         "stability_tokens", "stability_weights", "clustering", "spectrum", "equilibria",
         "mean_field_limit", "mean_field_large", "noisy_tokens", "chaos", "lipschitz", "inference",
         "steering"),
    ),
    (
        "The mean-field equation",
        "",
        ("metastability", "phase_transition", "decay_equation", "mean_field_equation"),
    ),
    (
        "Proximal sampling and sparse transformers",
        "These rows test what [RWPO] states and claims. A row that begins with "
        '"corrected" tests the form that holds where the printed one does not; '
        "[the reasons](#theory-proximal-errata) are derived in the theory. Flows were "
        "trained far below the published size of [RWPO] Table 1: 500 iterations of posteriors and "
        "digits and 1,500 of planar densities for 12,001 and 6,001, batches of 128 to 512 for 512 "
        "to 4,096, $n_t = 8$ for 48; the plane for $d = 4$, 16 sources and conductivities for 128 "
        "and 32; noise of 0.05 for 0.01, and for 0.001 in impedance tomography.",
        ("rwpo_operator", "rwpo_sampler", "rwpo_digits", "rwpo_inverse", "rwpo_benchmarks"),
    ),
    (
        "Networks",
        "These rows test what [OTT] reports of its networks. Digits have the published size; the "
        "rest is compared with the presets for two cores: small networks, little data, up to three "
        "seeds. [All published tables](ott_tables.md) stand beside ours, row by row.",
        ("mnist_vit", "shakespeare_words", "point_clouds_solids", "point_clouds_digits", "web_text",
         "sentiment", "cats_dogs", "shakespeare_gpt", "trained_heads", "energy_stable_layers",
         "energy_stable_gpt"),
    ),
    (
        "Training as optimal control",
        "These rows test what [GPTOC] reports and expects of networks trained by the maximum "
        "principle, and of small GPTs, and what [LCTE2018] says of the method of successive "
        "approximations, in the presets for two cores. That Python is faster than Julia, and that "
        "larger batches are more stable, is not decided here.",
        ("pontryagin_resnet", "pontryagin_gpt", "nanogpt_sizes"),
    ),
)  # fmt: skip
PAPERS = ("mht", "glpr", "bkkrw", "rwpo", "ott", "gptoc", "lcte2018")
# Rows of the README: findings of a study, the place of one in them, and its claim in plain text.
MAIN = (
    ("ou_heads", 0, "Ornstein-Uhlenbeck heads: G² decays like H^s, s within 0.1 of -1"),
    ("edi_defect", 0, "the energy balance holds with G²"),
    (
        "stability_tokens",
        0,
        "two clouds part no faster than W₂(t) ≤ C exp(∫L) W₂(0), L bounded by the weights",
    ),
    ("mnist_vit", 0, "a continuous-time ViT is more accurate than one twice as wide"),
    ("rwpo_operator", 24, "the training phase of the sparse transformer inverts its layers"),
)


def read(name: str) -> dict[str, Any]:
    """The findings of a study."""
    text = (RESULTS / "findings" / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def short(verdict: str) -> str:
    """A verdict without the size at which it was found."""
    return verdict.removesuffix(" at this size")


def folded(found: str) -> str:
    """The numbers of a finding: the first case, and the others to unfold where they are long."""
    cases: list[str] = []
    for part in found.split("; "):
        if cases and cases[-1].count("(") > cases[-1].count(")"):
            cases[-1] += f"; {part}"
        else:
            cases.append(part)
    if len(found) <= FOLDED or len(cases) == 1:
        return found
    summary = f"{cases[0]} <i>and {len(cases) - 1} more</i>"
    return f"<details><summary>{summary}</summary>{'; '.join(cases[1:])}</details>"


def table(names: tuple[str, ...], source: str = "", folder: str = "") -> str:
    """A row for each finding of some studies, or for those that name a source."""
    rows = ["{.predictions}", "| prediction | verdict | result | source | study |",
            "| --- | --- | --- | --- | --- |"]  # fmt: skip
    named = re.compile(rf"{re.escape(source)}(?!\d)", re.IGNORECASE)
    for name in names:
        document = read(name)
        study = document["study"]
        label = f"{study}, {document['label']}" if "label" in document else study
        for f in filter(lambda f: named.search(f["source"]), document["findings"]):
            kind = short(f["verdict"]).replace(" ", "-")
            kind += f" {paper(f['source'])}"
            verdict = f'<span class="verdict {kind}">{f["verdict"]}</span>'
            cells = (f["prediction"], verdict, folded(f["found"]), f["source"])
            rows.append(f"| {' | '.join(cells)} | [{label}]({folder}{study}.md) |")
    return "\n".join(rows)


def paper(source: str) -> str:
    """The paper that a finding cites, or "other" for another one or a question of ours."""
    cited = re.search(rf"\[({'|'.join(PAPERS)})\]", source, re.IGNORECASE)
    return cited[1].lower() if cited else "other"


def choices(legend: str, group: str, counts: dict[str, int]) -> str:
    """Buttons that each show the rows of one class alone; no script has to run."""
    lines = [f'<fieldset class="choices"><legend>{legend}</legend>']
    for name, count in counts.items():
        kind, title = name.replace(" ", "-"), name.upper() if name in PAPERS else name
        checked = " checked" if name == "all" else ""
        lines.append(
            f'<label><input type="radio" name="{group}" id="{group}-{kind}"{checked}> {title} '
            f'<b class="verdict {kind}">{count}</b></label>'
        )
    rules = [
        f"article:has(#{group}-{kind}:checked) :is(table.predictions tbody tr, section section)"
        f":not(:has(.{kind})) {{ display: none; }}"
        for kind in (name.replace(" ", "-") for name in counts if name != "all")
    ]
    return "\n".join([*lines, "</fieldset>", "<style>", *rules, "</style>"])


def counts() -> str:
    """How many findings have each verdict and are of each paper, as buttons."""
    every = [f for _, _, names in SECTIONS for name in names for f in read(name)["findings"]]
    kinds = Counter(short(f["verdict"]) for f in every)
    papers = Counter(paper(f["source"]) for f in every)
    assert kinds.keys() <= set(VERDICTS), f"verdicts are {sorted(kinds)}"
    whole = {"all": len(every)}
    below = sum(f["verdict"].endswith(" at this size") for f in every)
    return "\n\n".join(
        [
            choices("Findings by verdict", "verdict", whole | {k: kinds[k] for k in VERDICTS}),
            choices("By paper", "paper", whole | {k: papers[k] for k in (*PAPERS, "other")}),
            f"{below} of them were found below the size of the paper. The [references]"
            "(../theory/references.md) name the papers.\n",
        ]
    )


def page() -> str:
    """The page of all predictions."""
    links = "\n".join(f"[{name.upper()}]: #ref-{name}" for name in PAPERS)
    parts = [HEAD, counts()]
    for heading, text, names in SECTIONS:
        parts += [f"## {heading}\n", *([f"{text}\n"] if text else []), f"{table(names)}\n"]
    return "\n".join([*parts, f"{links}\n"])


def reproduction(text: str) -> str:
    """A page of reproductions with the findings that its comments ask for."""

    def filled(match: re.Match[str]) -> str:
        begin, source, names, end = match.groups()
        return f"{begin}\n{table(tuple(names.split(', ')), source, '../')}\n\n{end}"

    return FINDINGS.sub(filled, text)


def readme(text: str) -> str:
    """The README with the table of its main results."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = ["| claim | verdict | found |", "| --- | --- | --- |"]
    for name, place, claim in MAIN:
        document = read(name)
        f, study = document["findings"][place], document["study"]
        link = f"[{claim}](docs/results/{study}.md)"
        rows.append(f"| {link} ({f['source']}) | {f['verdict']} | {f['found']} |")
    return before + BEGIN + "\n".join(rows) + "\n" + END + after


def publish(folder: Path) -> None:
    """Take the findings of a folder of results."""
    document = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    kept = {key: document[key] for key in ("study", "command", "created", "findings")}
    file = RESULTS / "findings" / f"{kept['study']}.json"
    file.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    for folder in sys.argv[1:]:
        publish(Path(folder))
    PAGE.write_text(page(), encoding="utf-8")
    for file, made in (
        {README: readme} | dict.fromkeys(REPRODUCTIONS.glob("*.md"), reproduction)
    ).items():
        file.write_text(made(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
