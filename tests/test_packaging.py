"""What is packaged under which name: install commands, links, citation, and an editable install."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import wflow
from wflow._core.extras import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, TOOLS = SETTINGS["project"], SETTINGS["tool"]
EXTRAS = PROJECT["optional-dependencies"]
REPOSITORY = PROJECT["urls"]["Repository"]
FOLDERS = ("wflow", "studies", "benchmarks", "tests", "docs", "examples", ".ci")
TEXTS = (".py", ".md", ".rst", ".txt", ".toml", ".cff", ".html", ".css", ".sh", ".ipynb", "")
MADE = {"__pycache__", "gallery", "generated", "_build"}  # folders of what is built
OLD_NAME = "wf" + "low"


def texts() -> Iterator[tuple[str, str]]:
    """Yield names and contents of the project's files that a person reads."""
    files = [file for file in ROOT.iterdir() if file.is_file() and not file.name.startswith(".")]
    for folder in FOLDERS:
        files += [file for file in sorted((ROOT / folder).rglob("*")) if file.is_file()]
    for file in files:
        name = file.relative_to(ROOT)
        if file.suffix in TEXTS and not MADE & {*name.parts}:
            yield str(name), file.read_text(encoding="utf-8")


def requirements(text: str) -> Iterator[str]:
    """Yield what the commands `pip install` of a text install; a comma, say, ends a command."""
    for command in re.findall(r"pip install ([^\n`|;&#]*)", text.replace("\\", "")):
        for quoted, word in re.findall(r"'([^']*)'|(\S+)", command):
            yield quoted or word.strip("\"'.,:()") or "."
            if word[-1:] in (",", ":", ")"):
                break


def faults(text: str) -> list[str]:
    """Return requirements of another project, and extras that there are not."""
    wrong = re.findall(rf"(?<![\w.-]){OLD_NAME}\[[a-z, ]+\]", text.replace("\\", ""))
    for requirement in requirements(text):
        name, _, extras = requirement.rstrip("]").partition("[")
        if re.split("[=<>~!]", name)[0] == OLD_NAME:
            wrong.append(requirement)
        if name in (".", DISTRIBUTION) and not {*filter(None, extras.split(","))} <= EXTRAS.keys():
            wrong.append(requirement)
    return wrong


def test_every_install_command_names_the_distribution() -> None:
    found = {}
    for name, text in texts():
        if name != "tests/test_packaging.py" and (wrong := faults(text)):
            found[name] = wrong
    assert not found, f"expected {DISTRIBUTION}, or -e in a checkout: {found}"


def test_extras_that_contain_extras_name_the_distribution() -> None:
    for requirement in (one for extra in EXTRAS.values() for one in extra):
        assert re.split(r"[\[<>=]", requirement)[0] != OLD_NAME
        if requirement.startswith(DISTRIBUTION):
            inner = requirement.removeprefix(DISTRIBUTION).strip("[]").split(",")
            assert {*inner} <= EXTRAS.keys()


def test_links_of_the_first_page_lead_to_files_here_and_on_an_index() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert "docs/figures/tokens.gif" in targets
    for target in targets:
        assert (ROOT / target).is_file(), f"there is no {target}"
    for each in TOOLS["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    for target, link in zip(targets, re.findall(r"\]\(([^)]+)\)", text), strict=True):
        kind = "raw" if target.endswith(".gif") else "blob"
        assert link == f"{REPOSITORY}/{kind}/main/{target}"


def test_the_address_of_the_documentation_is_a_page_of_the_repository() -> None:
    page = PROJECT["urls"]["Documentation"].removeprefix(f"{REPOSITORY}/blob/main/")
    text = (ROOT / page).read_text(encoding="utf-8")
    assert page.endswith(".md") and text.startswith("# ") and ":::" not in text


@pytest.mark.parametrize(
    "file",
    ["CITATION.cff", "CONTRIBUTING.md", "recipe/recipe.yaml", "docs/development/releases.md"],
)
def test_the_repository_has_one_address(file) -> None:
    addresses = re.findall(r"https://github\.com/[\w.-]+/[\w-]+", (ROOT / file).read_text("utf-8"))
    assert set(addresses) == {REPOSITORY}


def test_the_citation_has_the_version_and_all_papers() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0" and cited["version"] == wflow.__version__
    assert cited["license"] == PROJECT["license"]
    assert {each["abbreviation"] for each in cited["references"]} == {
        "MHT", "OTT", "OTT1", "RWPO", "GPTOC",
    }  # fmt: skip
    numbers = [one["value"] for each in cited["references"] for one in each.get("identifiers", ())]
    assert len(numbers) == 4 and all(re.fullmatch(r"arXiv:\d{4}\.\d{5}", one) for one in numbers)
    for each in cited["references"]:
        assert each["title"] and each["year"] and all("family-names" in a for a in each["authors"])


def test_the_conda_recipe_has_the_version_and_the_dependencies() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == wflow.__version__
    found = "\n".join(recipe["requirements"]["run"]).replace("-base", "").replace(" ", "")
    needed = ["python" + PROJECT["requires-python"], *PROJECT["dependencies"]]
    assert set(found.split("\n")) == set(needed)


def test_a_script_beside_a_clone_imports_the_package(tmp_path) -> None:
    """A folder `wflow` beside a script is a namespace, which must come after the installed one."""
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        pytest.skip(f"{DISTRIBUTION} is not installed here")
    if not any(file.suffix == ".pth" for file in files):
        pytest.skip("the install is no editable one")
    (tmp_path / "wflow").symlink_to(ROOT, target_is_directory=True)
    (tmp_path / "script.py").write_text("import wflow\nprint(wflow.heads.Frozen, wflow.__file__)\n")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Frozen" in done.stdout and str(Path("wflow", "__init__.py")) in done.stdout
