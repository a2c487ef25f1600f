"""The page of the published tables: complete without results, and decided by them."""

import json
import sys

import numpy as np
import pytest
import xarray as xr

pytest.importorskip("torch")

from scripts import script

from wflow import InputError

maker = script("ott_tables")
CAPTION = "Preset {}; data: pictures; CPU, float32; 2 seeds; 7 s of training in all."


def write(folder, study, values, preset="cpu", findings=(), **flags):
    """The summary of a study: (model, seed) numbers by name."""
    folder.mkdir()
    models = list(next(iter(values.values())))
    table = xr.Dataset(
        {key: (("model", "seed"), np.array(list(rows.values()))) for key, rows in values.items()}
        | {"seconds": (("model", "seed"), np.full((len(models), 2), 3.5))},
        {"model": models, "seed": [0, 1]},
    )
    table["seconds"].loc[{"model": "node", "seed": 1}] = np.nan  # it has one seed
    table.to_netcdf(folder / "summary.h5", engine="h5netcdf")
    text = f"# {study}\n\n{CAPTION.format(preset)} ± is the standard deviation over seeds. More."
    (folder / "summary.md").write_text(text)
    document = {
        "study": study,
        "command": f"/a/studies/ott/{study}.py --preset {preset} --only b 'c d' --out x --resume",
        "created": "2026-11-23T10:00:00",
        "config": {"flags": {"preset": preset, **flags}},
        "findings": list(findings),
    }
    (folder / "summary.json").write_text(json.dumps(document))


def rows(page, heading):
    """Return cells of the first table below a heading."""
    part = page.partition(f"## {heading}")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_published_row_is_there_without_results():
    page = maker.page([], "made by a test")
    names = (*map(str, range(1, 14)), "9 of [OTT1]")
    assert all(f"## Table {name}: " in page for name in names) and page.count("\n## ") == 14
    command = "torchrun --nproc-per-node 2 studies/ott/shakespeare_gpt.py --preset paper"
    assert f"`{command} --ablation lam`" in page
    # [OTT] Tables 8, 9, 3, 5, 11 and 13.
    for number in ("77.6 ± 0.86", "82.1 ± 0.89", "55.4", "2.29", "38.47", "38.05"):
        assert f" {number} " in page
    counts = [
        sum(len(list(maker.rows(part, None, False))) for part in parts)
        for _, parts in maker.TABLES.values()
    ]
    assert counts == [6, 11, 46, 13, 6, 6, 10, 14, 14, 12, 20, 4, 20]
    assert all(cells[-2:] == ["–", "–"] for cells in rows(page, "Table 8"))


def test_rows_have_our_numbers_and_the_side_of_the_baseline(tmp_path):
    final = {
        "baseline": [0.70, 0.71],
        "node": [0.60, np.nan],
        "node with cost": [0.80, 0.81],
        "unregularised": [0.705, 0.71],
        "continuous": [0.75, 0.76],
    }
    claim = {"prediction": "it is better", "source": "[OTT] Table 8", "found": "+5",
             "verdict": "confirmed"}  # fmt: skip
    other = claim | {"source": "[OTT] Prop. 1", "prediction": "it is straight"}
    write(tmp_path / "a", "cats_dogs", {"final": final, "best": final}, findings=[claim, other])
    write(tmp_path / "smoke", "cats_dogs", {"final": final}, preset="smoke")
    write(tmp_path / "b", "jko", {"final": final})
    page = maker.page(maker.found([tmp_path]), "made by a test")
    table = {cells[0]: cells for cells in rows(page, "Table 8") if cells[1].startswith("final")}
    assert table["baseline"][2:] == ["77.6 ± 0.86", "70.50 ± 0.71", "–"]
    assert table["N-ODE"][3:] == ["60.00", "inconclusive"]  # one seed
    assert table["N-ODE with cost"][4] == "not confirmed at this size"  # published below
    assert table["continuous, no cost"][4] == "inconclusive"
    assert table["continuous with cost"][3:] == ["75.50 ± 0.71", "confirmed at this size"]
    assert "`studies/ott/cats_dogs.py --preset cpu`. " + CAPTION.format("cpu") in page
    assert "2026-11-23." in page and "More." not in page
    assert "- it is better: **confirmed** (+5)" in page and "straight" not in page
    assert "has not been run" in page.partition("## Table 8")[2].partition("\n## ")[0]


def test_published_sizes_have_differences_and_divergence_is_a_result(tmp_path):
    names = ["baseline", *(name for name in maker.FILMS["final"] if name != "baseline"), "node"]
    final = {name: [0.83, 0.84] for name in names} | {"node lam=0": [np.nan] * 2}
    write(tmp_path / "a", "sentiment", {"final": final, "best": final}, preset="paper")
    page = maker.page(maker.found([tmp_path]), "made by a test")
    table = {cells[0]: cells for cells in rows(page, "Table 9") if cells[1].startswith("best")}
    assert table["baseline"][2:] == ["83.9 ± 0.26", "83.50 ± 0.71", "-0.40", "–"]
    assert table["node lam=0"][2:] == ["diverged", "diverged", "–", "confirmed"]
    assert table["continuous lam=0"][2:] == ["diverged", "83.50 ± 0.71", "–", "not confirmed"]
    assert "has not been run" not in page.partition("## Table 9")[2].partition("\n## ")[0]


def test_scores_that_no_model_has_are_missing_and_not_diverged(tmp_path):
    loss = {"baseline": [3.3, 3.4], "node": [3.3, np.nan], "continuous": [2.7, 2.8]}
    scores = {name: [np.nan] * 2 for name in loss}
    columns = {"final": loss, "forced_bertscore": scores}
    write(tmp_path / "a", "shakespeare_gpt", columns)
    page = maker.page(maker.found([tmp_path]), "made by a test")
    table = {(cells[0], cells[1]): cells[3:] for cells in rows(page, "Table 10")}
    shown = table["continuous with cost", "final test loss"]
    assert shown == ["2.750 ± 0.071", "confirmed at this size"]
    assert table["continuous with cost", "BERT-F1 (%)"] == ["–", "–"]


def test_the_command_writes_the_page(tmp_path, monkeypatch, capsys):
    out = tmp_path / "tables.md"
    monkeypatch.setattr(sys, "argv", ["ott_tables.py", str(tmp_path), "--out", str(out)])
    maker.main()
    assert "wrote" in capsys.readouterr().out
    command = "# The tables of [OTT]\n\n    python docs/_ext/ott_tables.py"
    assert out.read_text().startswith(command)
    monkeypatch.setattr(sys, "argv", ["ott_tables.py", str(tmp_path / "none"), "--out", str(out)])
    with pytest.raises(InputError, match="folder"):
        maker.main()


@pytest.mark.parametrize(
    ("preset", "given", "whole"),
    [
        ("paper", {}, True),
        ("paper", {"published": True}, True),
        ("paper", {"published": True, "steps": 10}, False),
        ("paper", {"lam": 2.0}, False),
        ("paper", {"crops": 8, "parts": 4}, False),
        ("paper", {"encoder": "roberta-large"}, True),
        ("cpu", {}, False),
    ],
)
def test_only_the_unchanged_preset_has_the_published_size(preset, given, whole):
    flags = maker.ShakespeareGpt.of(preset, **given)
    assert maker.of_published_size("shakespeare_gpt", vars(flags)) == whole
