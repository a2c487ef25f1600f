"""Papers of a run: which, why, and that their file fits CITATION.cff and the page of references."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import xarray

import wflow
from wflow.analysis.citations import _papers, bibliography
from wflow.cli import main

ROOT = Path(__file__).parents[2]
X = wflow.tokens.uniform(n=5, d=3, seed=0)


def test_a_run_in_memory_in_a_file_and_in_a_folder_has_the_papers_of_its_parts(tmp_path, capsys):
    law = wflow.heads.CompoundPoisson(wflow.heads.OrnsteinUhlenbeck(np.eye(3)), 2.0)
    options = {"heads": 2, "t_final": 0.1, "dt": 0.05, "scheme": "euler"}
    run = wflow.solve(X, law, **options, out=tmp_path / "run.h5")
    run.close()
    papers = wflow.cite(run)
    assert papers == wflow.cite(tmp_path / "run.h5") == wflow.cite(str(tmp_path))
    assert list(papers) == ["wflow", "MHT", "GLPR"]
    assert papers["MHT"].split(", ") == [
        "the jumps of the heads", "the Ornstein-Uhlenbeck heads", "its energy balance",
    ]  # fmt: skip
    assert main(["cite", str(tmp_path / "run.h5")]) == 0
    said = capsys.readouterr()
    assert said.out == f"{papers}\n" and not said.err
    assert f"version = {{{wflow.__version__}}}" in said.out


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ({"law": {"name": "Frozen"}, "flow": "effective", "scheme": {"name": "dopri5"},
          "compute": {"method": "fast"}}, {"GLPR", "MHT", "DP1980", "DLMF"}),
        ({"law": {"name": "Mine", "fingerprint": "1"}, "flow": {"name": "Own"}, "scheme": "rk4"},
         {"HNW1993"}),
        ({"mesh": {"kind": "Sphere"}, "kappa": 0.1}, {"MHT", "DGJ2003", "SG1969"}),
        ({"tau": 0.1, "metric": "weighted"}, {"MHT", "AGS2008"}),
        ({"sampler": "brwp", "prior": {"name": "L1", "lam": 1.0}}, {"HOL2025", "RWPO"}),
        ({"law": 3, "mesh": None, "scheme": [], "metric": {"name": "\x1b"}, "compute": 1}, set()),
    ],
)  # fmt: skip
def test_papers_of_a_configuration(config, keys):
    assert {key for key, _ in _papers({"config": json.dumps(config)})} == keys


def test_a_study_cites_what_its_findings_test():
    findings = [{"source": "[RWPO] eq. 3 and [BKKRW]"}, {"source": "[theory](x)"}, {}, 1]
    tree = xarray.DataTree(xarray.Dataset(attrs={"findings": json.dumps(findings)}))
    assert list(wflow.cite(tree)) == ["wflow", "RWPO", "BKKRW"]


def test_what_is_no_run_is_refused(tmp_path):
    for source in (xarray.Dataset(), 3, None, np.eye(3)):
        with pytest.raises(wflow.InputError, match="run"):
            wflow.cite(source)
    for source in (tmp_path, tmp_path / "no.h5"):
        with pytest.raises(wflow.RunFileError):
            wflow.cite(source)


def test_the_page_of_references_and_the_citation_of_the_package_are_those_of_the_file(monkeypatch):
    yaml = pytest.importorskip("yaml")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    pages = importlib.import_module("references")
    assert pages.PAGE.read_text(encoding="utf-8") == pages.page()
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert f"title = {{{cited['title']}}}" in bibliography()["wflow"]
    assert cited["repository-code"] in bibliography()["wflow"]
    for paper in cited["references"]:
        text = bibliography()[paper["abbreviation"]].replace("{", "").replace("}", "")
        assert paper["title"].lower() in text.replace("$L_1$", "L1").lower()
        for number in paper.get("identifiers", []):
            assert number["value"].removeprefix("arXiv:") in text
