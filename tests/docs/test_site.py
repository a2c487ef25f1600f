"""The sources of the site, and the checks of the built one: tests/docs/site.py."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "gallery" not in page.parts]
BUILT = ROOT / "build" / "site"


@pytest.fixture
def checks():
    spec = importlib.util.spec_from_file_location("site_checks", Path(__file__).parent / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_resources_from_a_network_are_found(checks, tmp_path):
    (tmp_path / "good.html").write_text(
        '<link rel="stylesheet" href="_static/a.css"><a href="https://example.org">a link</a>'
        '<script src="_static/a.js"></script><img src="data:image/png;base64,AA">'
    )
    assert checks.external_resources(tmp_path) == []
    (tmp_path / "bad.html").write_text(
        '<script src="https://example.org/a.js"></script><img src="//example.org/a.png">'
        '<link rel="stylesheet" href="http://example.org/a.css">'
    )
    (tmp_path / "bad.css").write_text("@font-face { src: url('https://example.org/a.woff') }")
    found = checks.external_resources(tmp_path)
    assert [line.split(":")[0] for line in found] == ["bad.html"] * 3 + ["bad.css"]


def test_links_of_built_pages_that_lead_nowhere_are_found(checks, tmp_path):
    (tmp_path / "a.html").write_text('<h2 id="here"></h2><a href="b.html"></a><a href="#here"></a>')
    (tmp_path / "b.html").write_text('<a href="https://example.org/x"></a><a href="a.html#here">')
    assert checks.broken_links(tmp_path) == []
    links = ("/a.html", "gone.html", "../a.html", "a.html#gone")
    (tmp_path / "b.html").write_text("".join(f'<a href="{link}"></a>' for link in links))
    assert len(checks.broken_links(tmp_path)) == len(links)


def test_links_between_pages_lead_to_files():
    for page in [*PAGES, ROOT / "README.md", ROOT / "CHANGELOG.md"]:
        text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+\.md)[^)]*\)", text):
            if not re.match(r"\w+://", target):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_code_of_the_pages_fits_80_columns():
    """The width of a code block of the site in a window of 1280 pixels."""
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        text = page.read_text(encoding="utf-8")
        for kind, code in re.findall(r"^```(.*?)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            wide = [line for line in code.splitlines() if len(line) > 80]
            assert kind == "{raw} html" or not wide, f"{page.relative_to(ROOT)}: {wide}"


def test_anchors_of_the_theory_are_unique_and_those_that_are_used_exist():
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    anchors = [
        name for text in texts.values() for name in re.findall(r"^\(([\w-]+)\)=$", text, re.M)
    ]
    assert len(anchors) == len(set(anchors)) > 60
    labels = {
        name for text in texts.values() for name in re.findall(r"\$\$ \(([\w-]+)\)$", text, re.M)
    }
    used = {
        name for text in texts.values() for name in re.findall(r"\{ref\}`[^`<]*<([\w-]+)>`", text)
    }
    used |= {
        name
        for text in texts.values()
        for name in re.findall(r"\]\(#((?:theory|ref)-[\w-]+)\)", text)
    }
    assert used <= set(anchors)
    equations = {name for text in texts.values() for name in re.findall(r"\{eq\}`([\w-]+)`", text)}
    assert equations <= labels


def test_formulas_of_the_pages_are_latex():
    """No sums, norms or brackets of Unicode where MathJax renders formulas."""
    for page in PAGES:
        text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r"[Σ∫⟨⟩ᵀ√]|W₂|G²|σ²", re.sub(r"!\[[^]]*\]", "", text)), page.name


@pytest.mark.skipif(not (BUILT / "objects.inv").exists(), reason="the site is not built")
def test_the_built_site_finds_every_public_name_and_loads_nothing_from_a_network(checks):
    pytest.importorskip("sphinx")
    assert checks.external_resources(BUILT) == []
    assert (BUILT / "_static" / "mathjax" / "tex-chtml.js").exists()
