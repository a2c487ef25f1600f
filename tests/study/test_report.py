"""The report page: what it holds, how large it is, and which files it refuses."""

import ast
import base64
import html
import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from run_layouts import steers

import wflow
from wflow import InputError, study
from wflow.analysis.description import describe, with_error
from wflow.cli.commands import main
from wflow.plots.runs import RESIDUALS
from wflow.study.frame import write_results
from wflow.study.report import read

FROZEN = wflow.heads.Frozen()
PAGE = b'<!DOCTYPE html>\n<html><meta name="generator" content="wflow"></html>'


def solve(out: Path | None = None, **changes):
    arguments = {
        "law": wflow.heads.OrnsteinUhlenbeck(np.eye(3), rate=1.0, sigma2=2.0),
        "heads": 3, "t_final": 0.4, "dt": 0.02, "paths": 2, "seed": 3,
        "save": wflow.SaveAt(every=1, snapshots=np.linspace(0, 0.4, 11), heads=True),
    }  # fmt: skip
    x0 = wflow.tokens.cross_polytope(n=24, d=3, spread=0.2, seed=1)
    return wflow.solve(x0, out=out, **(arguments | changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("report") / "H00003.h5"
    solve(file).close()
    return file


class Parts(HTMLParser):
    """Kinds of scripts, rows of tables, addresses and words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts, self.addresses, self.rows, self.words = [], [], [], []
        self.hidden = False  # within a script or a style
        self.feed(text)
        self.rows = [[cell.strip() for cell in row] for row in self.rows]
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs) -> None:
        self.hidden = tag in ("script", "style")
        if tag == "script":
            self.scripts.append(dict(attrs).get("type", "code"))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.addresses += [v for k, v in attrs if k in ("src", "href", "action", "data") and v]
        assert not [k for k, _ in attrs if k.startswith("on")]

    def handle_endtag(self, tag) -> None:
        self.hidden = False
        if tag == "table":
            self.rows.append([])

    def handle_data(self, data) -> None:
        if not self.hidden:
            self.words.append(data)
            if self.rows and self.rows[-1]:
                self.rows[-1][-1] += data


def page_of(source, out: Path) -> tuple[str, Parts]:
    text = wflow.report(source, out).read_text("utf-8")
    return text, Parts(text)


def data_of(text: str) -> dict:
    """Return what a page gives to its script."""
    return json.loads(re.search(r'id="data">(.*?)</script>', text)[1])


@pytest.mark.parametrize("save", [{}, {"snapshots": []}])
def test_numbers_are_those_of_info_and_no_others(tmp_path, save, capsys) -> None:
    file = tmp_path / "run.h5"
    with solve(file, save=wflow.SaveAt(**save)) as run:
        expected = describe(run)
    assert main(["info", str(file)]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for _, text in expected)
    text, _ = page_of(file, tmp_path / "page.html")
    table = text[text.index("<code>wflow info</code> prints") :]
    assert [tuple(row) for row in Parts(table[: table.index("</table>")]).rows] == expected


def test_a_number_of_the_balance_stands_once_beside_what_info_prints(run, tmp_path) -> None:
    with wflow.open(run) as stored:
        facts = dict(describe(stored))
    text, parts = page_of(run, tmp_path / "page.html")
    assert parts.text.count("Provenance") == 1
    shown = Parts(re.sub("<details.*?</details>", "", text, flags=re.DOTALL)).text
    for name in ("E(0)", "E(T)"):
        assert shown.count(facts[name].partition(",")[0]) == 1, name
    balance = {row[0]: row[1] for row in parts.rows if len(row) == 2}
    for name in RESIDUALS:
        found = [value for words, value in balance.items() if words.endswith(f"({name})")]
        assert len(found) == 1, name


def test_a_page_asks_no_network_and_has_its_tables_and_figures_without_a_script(
    run, tmp_path
) -> None:
    text, parts = page_of(run, tmp_path / "page.html")
    assert parts.scripts == ["application/json", "code", "code"]
    assert all(address.startswith(("data:", "#")) for address in parts.addresses)
    body = text[text.index("<body>") : text.index('<script type="application/json"')]
    drawn = re.findall(r'<div class="static"[^>]*><svg [^>]*role="img"', body)
    assert len(drawn) == body.count('<div class="static"') == 5
    assert "http" not in body
    verdict = [row[0] for row in parts.rows if "the energy balance closes" in " ".join(row)]
    assert verdict == ["pass"]


def test_a_page_is_small_and_written_where_it_is_asked_for(run, tmp_path) -> None:
    assert wflow.report(run) == run.with_suffix(".html")
    assert run.with_suffix(".html").stat().st_size < 7_000_000
    assert main(["report", str(run), "--out", str(tmp_path / "a.html")]) == 0
    assert (tmp_path / "a.html").read_bytes().count(b"plotly.js v") == 1


def test_at_most_2000_tokens_and_150_times_are_drawn_and_the_page_says_so(tmp_path) -> None:
    frames, n = 200, 4000
    x = wflow.tokens.cross_polytope(n=n, d=3, spread=0.3, seed=0)
    small = solve()
    ds = small.drop_vars([v for v in small.variables if "snapshot" in small[v].dims])
    ds = ds.drop_vars(["initial_tokens", "initial_heads", "energy"])
    ds = ds.assign_coords(snapshot=np.arange(frames) / 10, snapshot_path=[0])
    dims = ("snapshot_path", "snapshot", "token", "axis")
    ds["tokens"] = (dims, np.broadcast_to(x, (1, frames, n, 3)))
    text, parts = page_of(ds, tmp_path / "page.html")
    cloud = data_of(text)["clouds"]["r0"]
    assert len(cloud["times"]) == read.FRAMES == 150 and cloud["tokens"] <= 2000
    for drawn in (f"{cloud['tokens']:,} of the 4,000 tokens", "150 of the 200"):
        assert drawn in parts.text
    assert len(text) < 7_000_000


def test_a_light_page_is_small_and_static(run, tmp_path) -> None:
    for k in range(3):
        (tmp_path / f"r{k}.h5").symlink_to(run)
    page = tmp_path / "light.html"
    assert main(["report", str(tmp_path), "--out", str(page), "--light"]) == 0
    text = page.read_text("utf-8")
    parts = Parts(text)
    assert len(text) < 500_000 and parts.scripts == []
    assert text.count('<section class="run"') == 3 and "<svg" in text


def test_numbers_have_the_digits_of_their_error() -> None:
    cases = {(0.0384, 0.0052): "0.038 ± 0.005", (1.70397, 0.0): "1.704", (0.2, np.nan): "0.2"}
    cases |= {(0.00098, 0.0011): "0.0010 ± 0.0011", (3.2e9, 4.4e7): "3.20e+09 ± 4e+07"}
    assert {given: with_error(*given) for given in cases} == cases


def test_times_have_no_digits_of_rounding() -> None:
    run = solve(t_final=0.7, dt=0.1, save=wflow.SaveAt())
    assert run.wflow.config["t_final"] != 0.7
    said = dict(describe(run))
    assert said["time"] == "to 0.7 in steps of 0.1" and "OrnsteinUhlenbeck" in said["law"]


def test_in_higher_dimensions_principal_axes_are_drawn_and_named(tmp_path) -> None:
    x = wflow.tokens.cross_polytope(n=50, d=6, spread=0.3, seed=0)
    ds = solve().drop_dims(["axis", "axis_out", "snapshot_path"])
    ds = ds.assign_coords(snapshot_path=[0])
    ds["tokens"] = (("snapshot_path", "snapshot", "token", "axis"), np.stack([[x] * 11]))
    text, parts = page_of(ds, tmp_path / "page.html")
    assert "first three principal axes" in parts.text and "d = 6" in parts.text
    assert data_of(text)["clouds"]["r0"]["axes"] == 3


def test_positions_on_the_page_are_those_of_the_file(run, tmp_path) -> None:
    text, _ = page_of(run, tmp_path / "page.html")
    raw = np.frombuffer(base64.b64decode(data_of(text)["clouds"]["r0"]["xyz"]), "<i2")
    with wflow.open(run) as ds:
        assert np.abs(raw.reshape(11, 24, 3) * 1.5 / 32767 - ds["tokens"].values[0]).max() < 3e-5


@pytest.mark.parametrize(("dtype", "count"), [("float64", 4), ("float32", 1)])
def test_clusters_of_a_run_are_those_of_its_precision(dtype, count, tmp_path) -> None:
    angle = np.ravel(6e-4 * np.arange(4)[:, None] + [0, 1.2e-7])  # pairs, a unit of single apart
    x = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    options = {"heads": np.zeros((1, 2, 2)), "t_final": 1.0, "dt": 0.5}
    save, compute = wflow.SaveAt(snapshots=[1.0]), wflow.Compute(dtype=dtype)
    run = wflow.solve(x, wflow.heads.Frozen(), save=save, compute=compute, **options)
    text, _ = page_of(run, tmp_path / "page.html")
    charts = data_of(text)["charts"]
    drawn = charts["r0-clusters"]["panels"][0]["curves"][1]["y"]["f4"]
    assert np.frombuffer(base64.b64decode(drawn), "<f4").tolist() == [count]


def test_what_a_file_says_is_text_and_never_markup(tmp_path) -> None:
    attack = "<script>alert(1)</script><img src=http://x onerror=alert(2)>{{data}}"
    run = solve()
    run.attrs["title"] = run.attrs["command"] = run.attrs["created"] = attack
    config = json.loads(run.attrs["config"])
    config["law"]["name"] = attack
    run.attrs["config"] = json.dumps(config)
    text, parts = page_of(run, tmp_path / "page.html")
    assert parts.scripts == ["application/json", "code", "code"]
    assert html.escape(attack, quote=True) in text and "<img" not in text
    assert attack.split("{")[0] in parts.text


def test_a_number_that_is_not_finite_breaks_no_page(tmp_path) -> None:
    run = solve()
    run["energy"][:, 3:] = np.inf
    run["upper_gradient_sq"][0] = np.nan
    run["dissipated"][:] = 1e300
    run["tokens"][0, 4] = np.nan
    text, _ = page_of(run, tmp_path / "page.html")
    data = re.search(r'id="data">(.*?)</script>', text)[1]
    assert "NaN" not in data and "Infinity" not in data
    assert len(json.loads(data)["clouds"]["r0"]["times"]) == 10


QKV = wflow.heads.QKV(*np.random.default_rng(0).normal(size=(3, 2, 3, 3)))


@pytest.mark.parametrize(
    "changes",
    [
        {"save": wflow.SaveAt(snapshots=[], budget=False)},
        {"save": wflow.SaveAt(every=5, snapshots=[0.0], budget=True)},
        {"save": wflow.SaveAt(every=10**6, budget=True)},
        {"save": wflow.SaveAt(budget=False), "heads": QKV, "law": FROZEN},
    ],
    ids=["nothing", "one snapshot", "few records", "no energy"],
)
def test_runs_that_record_little_have_a_page(tmp_path, changes) -> None:
    text, parts = page_of(solve(**changes), tmp_path / "page.html")
    assert "Not shown" not in text and "Numbers" in parts.text


@pytest.mark.parametrize("content", [None, b"", b"hello"])
def test_a_file_that_is_no_run_is_refused_as_by_info(tmp_path, content, capsys) -> None:
    file = tmp_path / "run.h5"
    if content is not None:
        file.write_bytes(content)
    messages = []
    for command in ("report", "info"):
        assert main([command, str(file)]) == 2
        messages.append(capsys.readouterr().err)
    assert messages[0] == messages[1] and "run.h5" in messages[0]
    assert not list(tmp_path.glob("*.html"))


def test_a_changed_byte_is_named(run, tmp_path) -> None:
    content = bytearray(run.read_bytes())
    with h5py.File(run) as file:
        at = file["tokens"].id.get_offset()
    content[at + 11] ^= 1
    (tmp_path / "run.h5").write_bytes(content)
    _, parts = page_of(tmp_path / "run.h5", tmp_path / "page.html")
    assert "SHA-256 differs: tokens" in parts.text and "checks fail" in parts.text


def test_an_unfinished_run_says_how_far_it_came(run, tmp_path) -> None:
    partial = tmp_path / "run.h5.partial"
    shutil.copy(run, partial)
    with h5py.File(partial, "r+") as content:
        content["energy"][:, 10:] = np.nan
    for source in (partial, tmp_path / "run.h5"):
        _, parts = page_of(source, tmp_path / "page.html")
        assert "recorded up to t = 0.18 of t = 0.4" in parts.text
    assert wflow.report(partial) == tmp_path / "run.html"


def write_study(folder: Path, text: str = "") -> None:
    folder.mkdir(exist_ok=True)
    table = xr.Dataset({"slope": ((), 1.0)})
    document = {
        "schema": "wflow-study/1", "study": "trial", "command": "studies/trial.py",
        "created": "now", "versions": {"wflow": "0"}, "config": {},
        "runs": {"a": "a.h5", "b": "b.h5"},
        "findings": [
            {"prediction": "E <falls>", "source": "[MHT]", "found": "-1", "verdict": "confirmed"}
        ],
    }  # fmt: skip
    head = "# trial\n\n    studies/trial.py\n\n2 cores; now; wflow 0\n\n"
    page = f"{head}{text}\n\n- **confirmed**: E"
    write_results(folder, table, document, {}, {"summary.md": page})


def test_a_study_shows_findings_tables_and_its_runs(tmp_path) -> None:
    for name in "ab":
        solve(tmp_path / f"{name}.h5", seed=ord(name)).close()
    write_study(tmp_path, "| H | slope |\n| - | - |\n| 4 | <b>-1</b> ![x](http://y/z.png) |")
    text = (tmp_path / "report.html").read_text()
    parts = Parts(text)
    assert "confirmed" in parts.text and "E <falls>" in parts.text
    assert ["4", "<b>-1</b> ![x](http://y/z.png)"] in parts.rows
    assert "<img" not in text and text.count('<section class="run"') == 2
    names = [row[0] for row in parts.rows if "complete" in row]
    assert names[:2] == ["a", "b"]
    charts = data_of(text)["charts"]
    assert {"r0-budget", "r1-budget"} <= set(charts)
    assert len(text) < 7_000_000


def test_one_damaged_run_among_good_ones_is_named(tmp_path, run) -> None:
    for name in "abc":
        shutil.copy(run, tmp_path / f"{name}.h5")
    (tmp_path / "b.h5").write_bytes(run.read_bytes()[:2000])
    write_study(tmp_path)
    parts = Parts((tmp_path / "report.html").read_text())
    status = {row[0]: row[1] for row in parts.rows if len(row) == 10}
    assert status["a"] == status["c"] == "complete" and "b" not in status
    assert "b.h5 is truncated" in parts.text
    assert "not in the summary of the study: c." in parts.text


@pytest.mark.parametrize("key", ["figures", "findings", "runs"])
def test_a_damaged_summary_is_refused_with_a_message(tmp_path, key) -> None:
    write_study(tmp_path)
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {key: 7}))
    with pytest.raises(wflow.RunFileError, match=r"summary\.json is damaged"):
        wflow.report(tmp_path)


def test_a_folder_of_runs_alone_has_a_page(tmp_path, run) -> None:
    shutil.copy(run, tmp_path / "a.h5")
    assert main(["report", str(tmp_path)]) == 0
    parts = Parts((tmp_path / "report.html").read_text())
    assert "summary.json is missing" in parts.text
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty"):
        wflow.report(tmp_path / "empty")


def test_runs_beyond_those_that_fit_on_a_page_are_named(tmp_path, run, monkeypatch) -> None:
    monkeypatch.setattr(read, "RUNS", 4)
    for k in range(6):
        (tmp_path / f"r{k:02d}.h5").symlink_to(run)
    text, parts = page_of(tmp_path, tmp_path / "page.html")
    assert len(text) < 7_000_000
    assert text.count('<section class="run"') == 4
    assert "2 more runs have no section on this page: r01, r04" in parts.text


def history(folder: Path, losses: np.ndarray) -> None:
    folder.mkdir(parents=True)
    steps = np.arange(len(losses))
    ds = xr.Dataset({"loss": ("step", losses)}, {"step": steps}, {"complete": len(losses) // 500})
    ds.to_netcdf(folder / "metrics.h5", engine="h5netcdf")


def test_a_study_of_networks_has_learning_curves(tmp_path) -> None:
    for model in ("plain", "continuous"):
        for seed in range(2):
            history(tmp_path / f"{model}-{seed}", np.linspace(3, 1 + seed, 500))
    history(tmp_path / "begun-0", np.linspace(3, 2, 50))
    history(tmp_path / "none-0", np.empty(0))  # the first loss was not finite
    (tmp_path / "plain-2").mkdir()
    (tmp_path / "plain-2" / "metrics.h5").write_text("damaged")
    text, parts = page_of(tmp_path, tmp_path / "page.html")
    assert ["plain", "2", "500", "1.5"] in parts.rows
    assert "plain-2/metrics.h5" in parts.text
    assert parts.text.count("the training did not reach its end") == 2
    chart = data_of(text)["charts"]["s-0"]
    names = [curve["name"] for curve in chart["panels"][0]["curves"]]
    assert names == ["begun", "continuous", "plain"]


def test_a_report_replaces_reports_and_nothing_else(run, tmp_path) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(PAGE)
    wflow.report(run, page)
    assert page.stat().st_size > len(PAGE)
    for content in (b"<!DOCTYPE html>mine", b""):
        page.write_bytes(content)
        with pytest.raises(InputError, match="written by wflow"):
            wflow.report(run, page)
        assert page.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize("out", ["page.pdf", "no/such/folder/page.html", "folder.html"])
def test_a_page_that_cannot_be_written_is_an_error(run, tmp_path, out) -> None:
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InputError):
        wflow.report(run, tmp_path / out)


def test_a_study_of_head_counts_ends_with_a_report_and_replaces_no_foreign_one(
    tmp_path, sketched, capsys
) -> None:
    page = tmp_path / "report.html"
    flags = {"heads": (2,), "n": 20, "d": 3, "paths": 1, "t_final": 0.2, "dt": 0.02}

    def run(**how):
        study.run("trial", study.StudyFlags(out=tmp_path, **flags, **how), lambda d: FROZEN)

    page.write_text("mine")
    for how in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(InputError, match="written by wflow"):
            run(**how)
    assert page.read_text() == "mine"
    page.unlink()
    run(resume=True)
    assert "report.html" in capsys.readouterr().out
    assert "Run H00002" in Parts(page.read_text()).text


@pytest.mark.parametrize("name", ["H1 $(touch x).h5", 'it\'s `x` "$(x)"\x1b\u202e.h5'])
def test_the_command_to_run_again_is_safe_to_paste(run, tmp_path, name) -> None:
    page = wflow.report(shutil.copy(run, tmp_path / name), tmp_path / "page.html")
    text = page.read_text("utf-8")
    lines = html.unescape(re.search(r"<pre><code>(.*?)</code>", text, re.DOTALL)[1]).splitlines()
    program, flag, code = shlex.split(lines[-1])
    assert (program, flag) == ("python", "-c")
    literal = re.fullmatch(r"import wflow; wflow\.rerun\((.*)\)", code)[1]
    assert ast.literal_eval(literal) == name
    assert not steers(text[: text.index("<script")])
