"""The code of Start and of the user guide runs as it is printed, each page from top to bottom."""

import inspect
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot

import wflow
from wflow.cli import main

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["start", "guide/tour", "guide/flows", "guide/laws", "guide/schemes", "guide/budget"]
PAGES += ["guide/transport", "guide/stationary", "guide/run_files", "guide/command_line"]
PAGES += ["guide/warnings"]
PAGES += ["guide/sweeps", "guide/gradients", "guide/fitting"]
PAGES += ["results/reproductions/glpr"]


def blocks(page: str) -> list[str]:
    """The Python code of a page, but for blocks after a comment that says they are not run."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    text = re.sub(r"<!-- not run -->\n```python\n.*?```", "", text, flags=re.DOTALL)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    codes = blocks(page)
    assert codes
    for code in codes:
        exec(compile(code, page, "exec"), names)
    pyplot.close("all")
    assert capsys.readouterr().out.strip()


def test_the_code_of_the_readme_prints_what_stands_below_it(tmp_path, monkeypatch, capsys):
    """The home page of the site includes both from the README."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    code, printed = re.findall(r"```(?:python|text)\n(.*?)```", text, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == printed
    assert (tmp_path / "tokens.gif").stat().st_size < 1e6
    assert len(text.encode()) < 7000


NETWORKS = [
    "networks",
    "hugging_face",
    "training",
    "texts",
    "saving",
    "control",
    "sparse_transformers",
    "sums",
]


@pytest.mark.parametrize("page", [f"guide/{page}" for page in NETWORKS])
def test_the_code_of_a_page_with_networks_runs(page, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("transformers" if page == "guide/hugging_face" else "sklearn")
    test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys)


def test_the_loop_with_accelerate_trains_and_saves(tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from wflow import nets

    text = (DOCS / "guide" / "training.md").read_text(encoding="utf-8")
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "Accel" in c)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    vit = nets.ViT(image=(1, 4, 4), patch=2, classes=2, width=8, heads=2)
    vit.body = nets.ContinuousTransformer(vit.body, steps=2)
    before = [parameter.clone() for parameter in vit.parameters()]
    samples = TensorDataset(torch.randn(16, 1, 4, 4), torch.arange(16) % 2)
    given = {"vit": vit, "loader": DataLoader(samples, batch_size=4)}
    given |= {"optimizer": torch.optim.Adam(vit.parameters()), "functional": torch.nn.functional}
    exec(compile(code, "guide/training", "exec"), given)
    again = list(nets.ViT.from_pretrained("vit").parameters())
    assert not any(torch.equal(*pair) for pair in zip(before, again, strict=True))


def test_the_example_of_processes_computes_in_one_process_too():
    names: dict[str, object] = {"__name__": "page"}
    for code in blocks("guide/processes"):
        exec(compile(code, "guide/processes", "exec"), names)
    assert names["final_energy"](0) == names["final_energy"](0) > 0


def test_the_cells_of_the_explorer_set_what_it_shows():
    pytest.importorskip("anywidget")
    names: dict[str, Any] = {}
    for code in blocks("explore"):
        exec(compile(code, "explore", "exec"), names)
    assert names["explorer"].run.sizes["axis"] == names["explorer"].film["settings"]["d"] == 16


def test_the_study_that_is_there_to_copy_runs_and_is_short(tmp_path, monkeypatch, capsys):
    (code,) = [code for code in blocks("extending") if "study.session" in code]
    assert len(code.splitlines()) <= 80
    script = tmp_path / "fluctuations.py"
    script.write_text(code, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [str(script), "--preset", "smoke", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert not end.value.code
    assert "Var E" in capsys.readouterr().out
    assert (tmp_path / "variance.png").exists()


def test_the_commands_of_a_page_compute_the_configuration_in_it(tmp_path, monkeypatch, capsys):
    text = (DOCS / "guide/command_line.md").read_text(encoding="utf-8")
    config, commands = re.findall(r"```(?:toml|sh)\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(config, encoding="utf-8")
    for command in commands.splitlines():
        words, _, target = command.removeprefix("wflow ").partition(" > ")
        assert main(words.split()) == 0, command
        said = capsys.readouterr().out
        if target:
            Path(target).write_text(said, encoding="utf-8")


def test_every_page_of_the_guide_is_listed():
    index = (DOCS / "guide" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"\]\((\w+)\.md\)", index)
    assert sorted(listed) == sorted(page.stem for page in (DOCS / "guide").glob("[!i]*.md"))


def test_the_example_of_spread_paths_is_a_script(tmp_path, monkeypatch, capsys):
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    signature = inspect.signature(wflow.distributed.solve)
    asked = {}

    def serial(*arguments, **options):
        asked.update(signature.bind(*arguments, **options).arguments)
        small = {"heads": 2, "t_final": 0.05, "dt": 5e-3, "seed": options["seed"]}
        return wflow.solve(*arguments, out=options["out"], **small)

    monkeypatch.setattr(wflow.distributed, "solve", serial)
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("guide/distributed")[0], "distributed", "exec"), {"__name__": "__main__"})
    assert asked["workers"] == 4 and asked["options"]["paths"] == 100
    assert float(capsys.readouterr().out) > 0
