"""One HTML page of what `read` gives, which opens from disk and asks no network.

The template is `page.html`, with `page.css` and `page.js`, beside this module, and `globe.js` above
it. Everything that comes from a file is text for the page and never markup, and the policy of the
page admits no script but the two that this module puts into it, by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import math
import os
import platform
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wflow._core.checks import path_of, shown, switch
from wflow._core.errors import InputError, RunFileError
from wflow._core.invocation import shell_line
from wflow._core.printable import printable, without_latex
from wflow._version import __version__
from wflow.analysis.description import with_error
from wflow.plots.charts import Chart, escaped, plain
from wflow.plots.figure import MAX_PANELS, evenly, rectangle, rounded, time_texts
from wflow.plots.tokens import view
from wflow.runs.results import REPORT, replace_files
from wflow.runs.schema import is_movement, law_name
from wflow.study.report.read import (
    FRAMES,
    TOKENS,
    Clock,
    DrawnTokens,
    Section,
    Study,
    read_file,
    read_run,
    read_study,
)

if TYPE_CHECKING:
    from xarray import Dataset


def write(
    source: Dataset | str | os.PathLike[str],
    out: str | Path | None = None,
    *,
    light: bool = False,
) -> Path:
    """Write the report of a run or of a study, one HTML page, and return where it is.

    The page begins with a sentence of conclusion and the tokens of a run beside its energy; in a
    study its findings stand beside those of one of its runs, and its main figure follows. Below are
    the tables and further figures of a study, then of each run clusters, heads and the checks of
    `wflow.verify` and, last, where it comes from and how to run it again. The page opens from disk,
    without a network. What is missing of an unfinished run or study is named on it.

    Parameters
    ----------
    source : path_like or xarray.Dataset
        Run file, ``.partial`` of an unfinished run, folder of a study, or a run in memory.
    out : path_like, optional
        The page, ``*.html``. Default: ``report.html`` in the folder, ``RUN.html`` beside the run
        file, and ``report.html`` in the current folder for a run in memory; ``*_light.html`` for
        a light one. An earlier report is replaced.
    light : bool, default False
        Write a static page of less than 500 kB, with small figures and without a player. Of a study
        it has three runs at most.

    Returns
    -------
    pathlib.Path
        Where the page is.

    Raises
    ------
    InputError
        For a page that cannot be written or would replace a file that wflow did not write.
    RunFileError
        For a file that is no run or is damaged, and a folder that holds nothing of wflow.

    Examples
    --------
    >>> import tempfile, wflow
    >>> x0 = wflow.tokens.cross_polytope(n=20, d=3, seed=0)
    >>> run = wflow.solve(x0, wflow.heads.Frozen(), heads=2, t_final=0.1, dt=0.01, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = wflow.report(run, f"{folder}/run.html")
    ...     page.stat().st_size < 7_000_000
    True
    """
    light = switch(light, "light")
    if hasattr(source, "data_vars"):
        place, page = Path(REPORT), _page_of_run(_in_memory(source, light))  # type: ignore[arg-type]
    else:
        if not isinstance(source, str | os.PathLike):
            raise InputError(
                f"source is {shown(source)}: expected a run file, the folder of a study, or the "
                "Dataset of wflow.solve"
            )
        path = path_of(source, "source")
        if path.is_dir():
            place = path / REPORT
            try:
                page = _page_of_study(read_study(path, Clock(), light))
            except (AttributeError, LookupError, TypeError) as error:
                raise RunFileError(
                    f"{path / 'summary.json'} is damaged ({error!r}): give the command of the "
                    "study again with --resume"
                ) from None
        else:
            section = read_file(path, Clock(), light)
            known = section.name.endswith((".h5", ".hdf5", ".nc"))  # dt0.01 must not become dt0
            stem = Path(section.name).stem if known else section.name
            place, page = path.with_name(f"{stem}.html"), _page_of_run(section)
    if light:  # beside the whole page
        place = place.with_name(f"{place.stem}_light.html")
    if out is not None:
        place = path_of(out, "out")
        if place.suffix != ".html" or place.is_dir():
            raise InputError(f"out is {place}: expected the name of a page, such as report.html")
    text = page.html(light)
    try:
        replace_files(place.parent, {place.name: lambda file: file.write_text(text, "utf-8")})
    except OSError as error:
        raise InputError(
            f"cannot write the report {place}: {error.strerror or error}; choose another --out"
        ) from None
    return place


def _in_memory(ds: Dataset, light: bool) -> Section:
    axes = "path" in ds.sizes or "inequality_gap" in ds
    if not (isinstance(ds.attrs.get("config"), str) and axes):
        raise InputError(
            "source is a Dataset that is no run: expected that of wflow.solve or wflow.open"
        )
    source = ds.encoding.get("source")
    name = Path(source).name if isinstance(source, str) else "run"
    return read_run(ds, name, Clock(), light=light)


@dataclass(eq=False)
class Page:
    """The parts of a page: HTML, already escaped, and data for the script."""

    title: str
    lead: str
    body: list[str] = field(default_factory=list)
    charts: dict[str, Any] = field(default_factory=dict)
    clouds: dict[str, Any] = field(default_factory=dict)

    def chart(self, chart: Chart, key: str) -> str:
        """Add the data of a chart for the script, and return its figure."""
        self.charts[key] = chart.data()
        return chart.figure(key)

    def html(self, light: bool = False) -> str:
        """Return the whole page, a light one without scripts."""
        folder = Path(__file__).parent
        style, script, frame = (
            (folder / f"page.{kind}").read_text("utf-8") for kind in ("css", "js", "html")
        )
        script = (folder.parent / "globe.js").read_text("utf-8") + script
        plots = "" if light else _plot_library()
        body, scripts = self.body, ""
        if not plots and not light:
            body = [_banner(["plotly is not installed: the curves are static."]), *body]
        if not light:
            charts = self.charts if plots else {}
            data = json.dumps({"charts": charts, "clouds": self.clouds}, allow_nan=False)
            data = data.replace("<", "\\u003c")
            scripts = f'<script type="application/json" id="data">{data}</script>\n'
            scripts += f"<script>{plots}</script>\n<script>{script}</script>"
            static = "Without JavaScript the figures are static; all tables are complete."
            body = [f'<noscript><p class="absent">{static}</p></noscript>', *body]
        parts = {
            "title": escaped(self.title),
            "lead": self.lead,
            "body": "\n".join(body),
            "style": style,
            "scripts": scripts,
            "hashes": "'none'"
            if light
            else " ".join(f"'sha256-{_sha256(code)}'" for code in (plots, script)),
            "written": escaped(
                f"Written by wflow {__version__} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, "
                f"Python {platform.python_version()}, {platform.system()} {platform.machine()}. "
                f"At most {TOKENS:,} tokens and {FRAMES} times of a run are drawn."
            ),
        }
        # In one pass: what is put in is never searched for places.
        return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], frame)


def _sha256(code: str) -> str:
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def _plot_library() -> str:
    """Return the script of plotly, a file of its package; empty where it is not installed."""
    found = importlib.util.find_spec("plotly")
    if found is None or not found.origin:
        return ""
    file = Path(found.origin).with_name("package_data") / "plotly.min.js"
    try:
        text = file.read_text("utf-8")
    except OSError:
        return ""
    return "" if "</script" in text.lower() else text


# Parts of a page
# ---------------


def _prose(value: Any) -> str:
    """Convert any value to text of a page: backticks as code, formulas as plain text."""
    text = re.sub(r"\^2(?![\d.])", "²", without_latex(str(value)))
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escaped(text))


def _absent(why: str) -> str:
    return f'<p class="absent">{_prose(why)}</p>'


def _table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), kind: str = "") -> str:
    """Return a table whose first column names the rows."""
    top = "".join(f'<th scope="col">{escaped(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{escaped(first)}</th>'
        + "".join(f"<td>{escaped(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    top = f"<thead><tr>{top}</tr></thead>" if top else ""
    made = f'<div class="scroll"><table class="{kind}">{top}<tbody>{body}</tbody></table></div>'
    return _labelled(made)


def _labelled(table: str) -> str:
    """Name every cell by its column, for narrow screens on which rows are shown as lists."""
    heads = re.findall(r"<th scope=.col[^>]*>(.*?)</th>", table)
    heads = [re.sub("<[^>]+>", "", text) for text in heads]

    def row(match: re.Match[str]) -> str:
        names = chain(heads, repeat(""))
        return re.sub(
            "<(td|th)(?=[ >])", lambda cell: f'{cell[0]} data-label="{next(names)}"', match[0]
        )

    top, _, body = table.partition("<tbody>")
    return f"{top}<tbody>{re.sub('<tr>.*?</tr>', row, body, flags=re.DOTALL)}"


def _banner(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escaped(line)}</li>" for line in lines)
    return f'<div class="banner" role="note"><strong>What is missing</strong><ul>{items}</ul></div>'


def _tiles(pairs: Iterable[tuple[str, str]]) -> str:
    items = "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>"
        for name, value in pairs
        if value
    )
    return f'<dl class="tiles">{items}</dl>' if items else ""


def _picture(content: bytes, description: str, caption: str) -> str:
    data = base64.b64encode(content).decode()
    return (
        f'<figure><img alt="{escaped(description)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escaped(caption)}</figcaption></figure>"
    )


def _command(command: str, file: str | None = None) -> str:
    """Say how to run again: the command that was recorded, and `wflow.rerun` of the file."""
    lines, command = [], printable(command, lines=False)
    if command:
        try:
            first = shlex.split(command)[0]
        except (ValueError, IndexError):  # it was cut, or is none
            first = command.split(" ")[0]
        lines.append(f"python {command}" if first.endswith(".py") else command)
    if file:
        name = repr(file)  # in double quotes where it can be, which a shell quotes easily
        name = name if {"'", '"'} & {*file} else f'"{name[1:-1]}"'
        lines.append(shell_line(["python", "-c", f"import wflow; wflow.rerun({name})"]))
    text = "\n".join(lines)
    return f"<pre><code>{escaped(text)}</code></pre>" if text else ""


def _markdown(text: str) -> str:
    """Convert Markdown to HTML: without raw HTML, links and images, which could ask a network."""
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    reader.disable(["image", "link", "autolink", "html_inline", "html_block"])
    made = str(reader.render(printable(text)))
    made = re.sub(r"<(/?)h([1-4])>", lambda m: f"<{m[1]}h{int(m[2]) + 2}>", made)
    made = made.replace("<th>", '<th scope="col">').replace("<th style=", '<th scope="col" style=')
    made = made.replace("<table>", '<div class="scroll"><table class="numbers">')
    made = made.replace("</table>", "</table></div>")
    return re.sub(r"<table.*?</table>", lambda table: _labelled(table[0]), made, flags=re.DOTALL)


# Tokens
# ------


def _cloud_data(cloud: DrawnTokens) -> dict[str, Any]:
    """Return tokens for the script: positions as 16-bit integers, 32767 for 1.5."""
    whole = np.round(np.clip(cloud.points / 1.5, -1, 1) * 32767).astype("<i2")
    return {
        "times": rounded(cloud.times),
        "tokens": cloud.points.shape[1],
        "axes": cloud.points.shape[2],
        "d": cloud.d,
        "xyz": base64.b64encode(whole.tobytes()).decode(),
    }


def _cloud_svg(cloud: DrawnTokens) -> str:
    """Draw the tokens at up to six times, seen from one side."""
    frames, times = evenly(len(cloud.times), MAX_PANELS), time_texts(cloud.times)
    rows, columns = rectangle(len(frames), 3)
    size, radius = 150.0, 67.0
    parts = [
        f'<svg viewBox="0 0 {size * columns:g} {(size + 22) * rows:g}" role="img" '
        f'style="max-width:{220 * columns}px" aria-label="{escaped(cloud.caption)}">'
    ]
    step = max(1, math.ceil(cloud.points.shape[1] / 250))
    for k, frame in enumerate(frames):
        points = cloud.points[frame, ::step]
        seen = points @ view().T if points.shape[1] == 3 else np.c_[points, np.ones(len(points))]
        x, y = size * (k % columns + 0.5), (size + 22) * (k // columns) + size / 2
        parts.append(f'<circle class="ball" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')
        near = seen[:, 2] >= 0
        for side, there in (("far", seen[~near]), ("near", seen[near])):
            d = "".join(f"M{x + radius * u:.1f} {y - radius * v:.1f}h0" for u, v in there[:, :2])
            parts.append(f'<path class="token {side}" d="{d}"/>')
        label = f"t = {times[frame]}"
        parts.append(f'<text class="tick mid" x="{x:g}" y="{y + size / 2 + 14:g}">{label}</text>')
    return "".join([*parts, "</svg>"])


def _cloud_figure(cloud: DrawnTokens, name: str) -> str:
    """Return the viewer, and the static figure that is shown without a script."""
    last = len(cloud.times) - 1
    caption = escaped(cloud.caption)
    start = f"t = {time_texts(cloud.times)[0]}"
    few = f"<p>The still figure has {MAX_PANELS} snapshots.</p>" if last >= MAX_PANELS else ""
    turn = (
        '<label class="check"><input type="checkbox" class="turn"> turn</label>'
        "<p>Drag the sphere, or use the arrow keys on it.</p>"
    )
    return (
        f'<figure class="cloud" data-cloud="{name}"><div class="live" hidden>'
        f'<canvas tabindex="0" role="img" aria-label="{caption}"></canvas>'
        '<div class="controls"><button type="button" class="play" aria-pressed="false">'
        f'Play</button><input type="range" min="0" max="{last}" value="0" step="1" '
        f'aria-label="Time of the snapshot" aria-valuetext="{start}"><output>{start}</output>'
        '<label>colour <select class="tint"><option value="depth">depth</option>'
        '<option value="start">place at the first time</option></select></label>'
        f"{turn if cloud.points.shape[2] == 3 else ''}</div></div>"
        f'<div class="static">{_cloud_svg(cloud)}{few}</div><figcaption>{caption}</figcaption>'
        "</figure>"
    )


# A run
# -----


def _page_of_run(section: Section) -> Page:
    page = Page(section.name, _conclusion(section.conclusion))
    page.body.append(f'<section class="run">{_section_html(section, "r0", page, 2)}</section>')
    return page


def _conclusion(text: str) -> str:
    return f'<p class="conclusion">{_prose(text)}</p>' if text else ""


def _chips(sections: Sequence[Section]) -> str:
    """Say what was run, in a line of facts, as far as all runs share them."""
    keys = {"flow": "dynamics", "heads H": "heads", "tokens": "tokens", "paths": "paths",
            "time": "time", "seed": "seed"}  # fmt: skip
    facts = {"law": {law_name(section.config) for section in sections}}
    facts |= {text: {section.fact(key) for section in sections} for text, key in keys.items()}
    items = "".join(
        f"<li><span>{text}</span> {escaped(value)}</li>"
        for text, values in facts.items()
        if len(values) == 1
        for value in values
        if value and "?" not in value
    )
    return f'<ul class="chips">{items}</ul>' if items else ""


def _hero(section: Section, key: str, page: Page, titles: Callable[[str, str], str]) -> list[str]:
    """Return the tokens, or the density, of a run and its energy, or what it has instead."""
    parts = []
    kinds = [("budget", "Energy budget", "The run holds no energy.")]
    if is_movement(section.config):
        kinds = [("movements", "Energy and distances", "Nothing was recorded.")]
    if "sampler" in section.config:
        kinds = [
            ("sampler", "Diagnostics", "Nothing was recorded."),
            ("gradient", "Speed", "Nothing was recorded."),
        ]
    elif "mesh" in section.config:
        parts.append(titles("tokens", "Density") + _density_html(section))
    else:
        drawn = _absent(section.no_tokens)
        if section.cloud is not None:
            page.clouds[key] = _cloud_data(section.cloud)
            drawn = _cloud_figure(section.cloud, key)
        parts.append(titles("tokens", "Tokens") + drawn)
    for name, text, absent in kinds:
        found = section.charts.get(name)
        chart = page.chart(found, f"{key}-{name}") if found else _absent(absent)
        parts.append(titles(name, text) + chart)
    return parts


def _side_by_side(parts: Sequence[str], kind: str = "hero") -> str:
    return f'<div class="{kind}">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


def _section_html(section: Section, key: str, page: Page, level: int, again: bool = False) -> str:
    """Write one run: its parts in order, those that are missing named.

    What is shown `again` has its tokens and energy at the top of the page, and nothing besides it.
    """

    def title(name: str, text: str) -> str:
        return f'<h{level} id="{key}-{name}">{text}</h{level}>'

    parts = [
        _banner(section.missing),
        "" if again else _side_by_side(_hero(section, key, page, title)) + _chips([section]),
        _tiles(
            [
                ("G², second half", section.fact("upper_gradient_sq").partition(",")[0]),
                ("speed², second half", section.fact("speed_sq").partition(",")[0]),
                ("effective tokens", section.fact("ess(T)")),
                ("absorbed coordinates", section.fact("absorbed(T)")),
                ("verified", section.verdict()),
            ]
        ),
    ]
    if section.balance:
        head = ("energy balance", "at the last time: mean ± standard error")
        parts.append(_table(section.balance, head, "balance"))

    def chart(name: str, text: str, absent: str = "") -> None:
        found = section.charts.get(name)
        if found or absent:
            drawn = page.chart(found, f"{key}-{name}") if found else _absent(absent)
            parts.extend([title(name, text), drawn])

    sampler, movement = "sampler" in section.config, is_movement(section.config)
    if not sampler:
        if not movement:
            chart("gradient", "Dissipation and G²", "The run holds neither G² nor the speed.")
        if "mesh" in section.config:
            chart("free_energy", "Free energy", "The run holds no entropy.")
        chart("clusters", "Clusters")
        chart("heads", "Heads", "The heads were not recorded over time (save.heads).")
        law = section.fact("law") or "not recorded"
        parts.append(f'<p class="law">Head law: {escaped(law)}</p>')
    if section.spectrum:
        titles = ("", "least eigenvalue", "mean", "largest", "mean Frobenius norm")
        parts.append(_table(section.spectrum, titles, "numbers"))
    parts += [title("checks", "Verification"), _checks_html(section)]
    parts += [title("numbers", "Numbers"), "<details><summary>What <code>wflow info</code> prints"]
    parts += ["</summary>", _table(section.facts, kind="info"), "</details>"]
    # The contents of a study name the provenance of its summary alone.
    within = f"<h{level}>Provenance of the run</h{level}>"
    parts.append(title("provenance", "Provenance") if level == 2 else within)
    parts.append(_table(section.provenance, kind="info"))
    may_run = section.complete and not (sampler or movement)
    file = section.file.name if section.file and may_run else None
    parts.append(_command(section.fact("command"), file))
    return "\n".join(part for part in parts if part)


def _density_html(section: Section) -> str:
    if section.density is None:
        return _absent("No density can be drawn: no snapshot of it was recorded.")
    words, content = section.density
    return f'<div class="pictures">{_picture(content, words, words)}</div>'


def _checks_html(section: Section) -> str:
    words = {True: "pass", False: "fail", None: "skip"}
    rows = []
    for check in section.checks:
        word = words[check.passed]
        known = not math.isnan(check.value)
        cells = [f"{value:.3g}" if known else "" for value in (check.value, check.limit)]
        note = f"<small>{_prose(check.note)}</small>" if check.note else ""
        rows.append(
            f'<tr><td><span class="badge {word}">{word}</span></td><th scope="row">'
            f"{escaped(check.name)}{note}</th><td>{cells[0]}</td><td>{cells[1]}</td></tr>"
        )
    head = "".join(f'<th scope="col">{text}</th>' for text in ("", "check", "found", "limit"))
    which = ", as <code>wflow verify</code> makes them."
    if section.partial:
        which = (
            ": those of the energy balance. <code>wflow verify</code> also makes those that take "
            "longer: digests, and energies and steps computed again."
        )
    verdict = escaped(section.verdict().partition(";")[0])
    return (
        f"<p>{verdict}{which}</p>"
        f"<details{' open' if 'fail' in verdict else ''}><summary>All checks</summary>"
        f'<div class="scroll"><table class="checks"><thead><tr>{head}</tr></thead><tbody>'
        f"{''.join(rows)}</tbody></table></div></details>"
    )


# A study
# -------

_FEW = 3  # findings that are no longer than the tokens and energy beside them


def _page_of_study(study: Study) -> Page:
    document = study.document
    question = document.get("question")
    lead = f'<p class="question">{_prose(question)}</p>' if question else ""
    page = Page(f"Study {study.name}", lead + _conclusion(_conclusion_of_study(study)))
    runs = document.get("runs")
    if question and isinstance(runs, list) and len(runs) < 3:
        page.lead += _absent("A verdict takes three or more head counts, as `--heads 1 2 4 8`.")
    body = page.body
    body.append(_banner(study.missing))
    charts = {k: page.chart(chart, f"s-{k}") for k, chart in enumerate(study.charts.values())}
    captions = document.get("captions", {})
    words = {stem: captions.get(stem, stem.replace("_", " ")) for stem in study.pictures}
    pictures = [
        _picture(content, f"Figure of the study: {words[stem]}", words[stem])
        for stem, content in study.pictures.items()
    ]
    found = document.get("findings", [])
    findings = _findings_html(found)
    count = len(study.sections) + len(study.rest)
    main = ""
    if (pictures or charts) and (findings or count != 1):
        main = pictures.pop(0) if pictures else charts.pop(0)
    drawn = [k for k, section in enumerate(study.sections) if section.cloud or section.density]
    best = max(drawn or range(len(study.sections)), key=lambda k: _worth(study, k), default=0)
    parts = [findings] if findings else []
    example = bool(drawn or (study.sections and not findings))
    if example:
        run = study.sections[best]
        named = escaped(_called(run))
        parts += _hero(run, f"r{best}", page, lambda _, text: f"<h3>{text}: {named}</h3>")
        if main and drawn and not _has_energy(run):
            parts.pop()  # the main figure takes the place of what is absent
    beside = len(found) > _FEW or len(parts) < (3 if drawn and findings else 2)
    parts += [main] if main and beside else []
    chips = _chips(study.sections)
    if findings and not beside:  # few: there is room below them
        parts[0], chips = parts[0] + chips, ""
    if parts:
        kind = f"hero {('one', 'two', 'three')[min(len(parts), 3) - 1]}" if findings else "hero"
        body.append(_side_by_side(parts, kind))
    if main and not beside:
        body.append(f'<div class="main">{main}</div>')
    body.append(chips)
    body.append(_tables_html(study))
    if study.charts:
        body.append('<section><h2 id="learning">Learning curves</h2>')
        head = ("model", "seeds", "steps", "last loss, mean")
        body.append(_table(study.networks, head, "numbers"))
        titles = [escaped(chart.title) for chart in study.charts.values()]
        body += [f"<h3>{titles[k]}</h3>{chart}" for k, chart in charts.items()]
        body.append("</section>")
    if pictures:
        body.append('<section><h2 id="figures">Figures</h2><div class="pictures">')
        body += [*pictures, "</div></section>"]
    if study.sections:
        body.append(_runs_html(study, page, count == 1 and example))
    rows = [
        (key, plain(value if isinstance(value, str) else json.dumps(value)))
        for key in ("schema", "created", "versions", "config")
        if (value := document.get(key)) is not None
    ]
    command = _command(plain(document["command"])) if document.get("command") else ""
    if rows or command:
        body.append('<section><h2 id="provenance">Provenance</h2>')
        body.append(_table(rows, kind="info") + command + "</section>")
    return page


def _has_energy(section: Section) -> bool:
    return not section.charts.keys().isdisjoint(("budget", "movements"))


def _worth(study: Study, place: int) -> tuple[bool, bool, int]:
    """Rank the runs: the first screen has the last one with tokens and, if possible, energy."""
    section = study.sections[place]
    return section.cloud is not None, _has_energy(section), place


def _called(section: Section) -> str:
    """Return the name of a run: its number of heads where the study varies that."""
    found = re.fullmatch(r"H0*(\d+)", section.name)
    if found and found[1] == section.fact("heads"):
        return "1 head" if found[1] == "1" else f"{found[1]} heads"
    return f"run {section.name}"


def _conclusion_of_study(study: Study) -> str:
    """Say in a sentence what a study found: its verdicts, its fit, or what its last run found."""
    findings = study.document.get("findings")
    if findings:
        counts = Counter(entry["verdict"] for entry in findings).most_common()
        if len(findings) == 1:
            first = str(findings[0]["prediction"])
            return f"{first[:1].upper()}{first[1:]}: {counts[0][0]}."
        listed = ", ".join(f"{count} {verdict}" for verdict, count in counts)
        return f"The study tests {len(findings)} predictions: {listed}."
    fit = study.document.get("fit")
    if fit:
        low, high = fit["exponent_ci"]
        range_ = f" ({100 * fit['level']:.0f} %: {low:.3f} to {high:.3f})" if low and high else ""
        return f"G² goes like H^b with the number of heads H, b = {fit['exponent']:.3f}{range_}."
    count = len(study.sections) + len(study.rest)
    if findings is not None and count > 1:
        return f"The study decides no prediction at this size; the tables show its {count} runs."
    if study.sections:
        last = study.sections[-1]
        return last.conclusion and f"{_called(last)}: {last.conclusion}"
    losses = {model: float(loss) for model, *_, loss in study.networks if loss != "–"}
    if losses:
        listed = ", ".join(f"{loss:.4g} ({model})" for model, loss in islice(losses.items(), 4))
        more = f", and {len(losses) - 4} more" if len(losses) > 4 else ""
        return f"The training loss ends, on average, at {listed}{more}."
    return ""


def _findings_html(findings: Sequence[Mapping[str, str]]) -> str:
    if not findings:
        return ""
    badges = {"confirmed": "pass", "consistent": "pass", "not confirmed": "fail"}

    def badge(verdict: str) -> str:
        return badges.get(verdict.removesuffix(" at this size"), "part")

    cards = "".join(
        f'<li><span class="badge {badge(entry["verdict"])}">'
        f'{escaped(entry["verdict"])}</span><p class="claim">{_prose(entry["prediction"])} '
        f"<cite>{_prose(entry['source'])}</cite></p><p>{_prose(entry['found'])}</p></li>"
        for entry in findings
    )
    return f'<section><h2 id="findings">Findings</h2><ul class="findings">{cards}</ul></section>'


def _tables_html(study: Study) -> str:
    """Return the tables of the study: its text, or the numbers of its runs and their fit."""
    parts = []
    if study.text:
        parts.append(f'<div class="prose">{_markdown(study.text)}</div>')
    runs = study.document.get("runs")
    if isinstance(runs, list):
        titles = {
            "upper_gradient_sq": "G² (t ≥ T/2)",
            **_parts_of_gradient(runs),
            "dissipation": "dissipation (t ≥ T/2)",
            "energy_initial": "E(0)",
            "energy_final": "E(T)",
            "edi_residual_final": "residual",
            "edi_residual_upper_gradient_final": "residual with G²",
        }
        keys = [key for key in titles if all(key in row for row in runs)]
        rows = [(str(row["heads"]), *(_mean_cell(row, key) for key in keys)) for row in runs]
        parts.append(_table(rows, ("heads H", *(titles[key] for key in keys)), "numbers"))
        note = "Mean ± standard error over the paths. G² is the squared upper gradient."
        if "mean_velocity" in keys:
            note += " Its parts are estimates, and that from the mean velocity may be negative."
        parts.append(f"<p>{note}</p>")
    for key, what in (("fit", "G²"), ("fit_head_variance", "variance over heads")):
        if fit := study.document.get(key):
            head = ("", "value", "interval", "standard error")
            parts.append(f"<h3>Fit {what} = a H^b</h3>" + _table(_fit_rows(fit), head, "numbers"))
    title = "Averages over time and paths" if isinstance(runs, list) else "Tables"
    return f'<section><h2 id="table">{title}</h2>{"".join(parts)}</section>' if parts else ""


def _parts_of_gradient(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Name the parts of G², which are known of the paths alone that have snapshots."""
    errors = [row.get("head_variance", {}).get("standard_error") for row in runs]
    whose = "one path" if errors.count(None) == len(runs) else "paths with snapshots"
    parts = {"head_variance": "the variance over heads", "mean_velocity": "the mean velocity"}
    return {key: f"part of G² from {part} ({whose})" for key, part in parts.items()}


def _mean_cell(row: Mapping[str, Any], key: str) -> str:
    """Write a mean with its error; a part of G² without one has the digits of G²."""
    mean, error = row[key]["mean"], row[key]["standard_error"]
    if mean is None:
        return "–"
    if error is None and key in ("head_variance", "mean_velocity"):
        whole = row.get("upper_gradient_sq", {}).get("standard_error") or math.nan
        return with_error(mean, whole).partition(" ±")[0]
    return with_error(mean, math.nan if error is None else error)


def _fit_rows(fit: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield prefactor, exponent and the other numbers of a fit, with the digits of their errors."""

    def number(value: float | None, error: float | None = None) -> str:
        if value is None:
            return ""
        return with_error(value, error).partition(" ±")[0] if error else f"{value:.5g}"

    for name, symbol in (("prefactor", "a"), ("exponent", "b")):
        error = fit[f"{name}_error"]
        low, high = (number(bound, error) for bound in fit[f"{name}_ci"])
        interval = f"{100 * fit['level']:.0f} %: {low} to {high}" if low and high else ""
        yield symbol, number(fit[name], error), interval, number(error, error)
    yield "Pearson correlation", number(fit["pearson"]), "", ""
    yield "head counts", number(fit["points"]), "", ""
    yield "fit from H =", number(fit["heads_from"]), "", ""


def _runs_html(study: Study, page: Page, again: bool) -> str:
    """Return the list of runs, and a section for each of them."""
    columns = {"status": "status", "heads": "heads", "tokens": "tokens", "paths": "paths",
               "E(0)": "E(0)", "E(T)": "E(T)", "edi_residual(T)": "residual",
               "upper_gradient_sq": "G²"}  # fmt: skip
    rows = [
        (section.name, *(section.fact(key).partition(", mean")[0] for key in columns),
         section.verdict())
        for section in study.sections
    ]  # fmt: skip
    head = ("run", *columns.values(), "verification")
    parts = ['<section><h2 id="runs">Runs</h2>', _table(rows, head, "runs")]
    if study.rest:
        names = ", ".join(study.rest[:200])
        parts.append(
            f"<p>{len(study.rest)} more runs have no section on this page: {escaped(names)}. "
            "<code>wflow report FILE</code> writes a page for each.</p>"
        )
    several = len(study.sections) > 1
    if several:
        options = "".join(
            f'<option value="r{k}">{escaped(_called(section).removeprefix("run "))}</option>'
            for k, section in enumerate(study.sections)
        )
        parts.append(
            '<p class="choose" hidden><label>Run <select id="choose">'
            f"{options}</select></label></p>"
        )
    parts.append("</section>")
    for k, section in enumerate(study.sections):
        said = _prose(section.conclusion) in page.lead
        parts.append(
            f'<section class="run" id="r{k}"><h2 class="name">Run {escaped(section.name)}</h2>'
            f"{'' if said else _conclusion(section.conclusion)}"
            f"{_section_html(section, f'r{k}', page, 3, again)}</section>"
        )
    return "\n".join(parts)
