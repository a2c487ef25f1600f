"""Write the page of references from the bibliography of `wflow.cite`.

python docs/_ext/references.py
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "theory" / "references.md"
sys.path.insert(0, str(ROOT))

HEAD = """(theory-references)=
# References

`wflow.cite(run)`, and `wflow cite run.h5` in the shell, print those that a run relies on as BibTeX,
each with its reason. This page is written from their file, `wflow/analysis/references.bib`, by
`docs/_ext/references.py`.
"""


def page() -> str:
    """The page: an entry and an anchor for each paper, in the order of the file."""
    from wflow.analysis.citations import bibliography

    entries = [entry(key, text) for key, text in bibliography().items() if key != "wflow"]
    return "\n".join([HEAD, *entries])


def entry(key: str, text: str) -> str:
    """One paper: authors, title, and where it appeared."""
    fields = dict(re.findall(r"^  (\w+) = \{(.*)\},$", text, re.MULTILINE))
    plain = {name: re.sub(r"[{}]", "", value) for name, value in fields.items()}
    authors = [author.partition(",")[0] for author in plain.get("author", "").split(" and ")]
    names = ", ".join(filter(None, authors)).replace(", others", " et al.")
    where = [plain[name] for name in ("booktitle", "institution", "publisher") if name in plain]
    where += [f"{plain['journal']} {plain['volume']}"] if "journal" in plain else []
    where += [f"arXiv {plain['eprint']}"] if "eprint" in plain else []
    where += [plain[name] for name in ("note", "year") if name in plain]
    lead = f"{names}, " if names else ""
    return f"(ref-{key.lower()})=\n[{key}]\n: {lead}*{plain['title']}*, {', '.join(where)}.\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
