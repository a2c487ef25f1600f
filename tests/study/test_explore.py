"""The explorer: its solver in JavaScript beside `wflow.solve`, its page in Chromium, its widget."""

import importlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, DRIVER, INSTALLED, browser, requested
from notebooks import executed

import wflow

HERE = Path(wflow.__file__).parent / "study"
MODULE = importlib.import_module("wflow.study.explore")
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>explorer</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="{0}/explore.css">
<style>body {{ margin: 1rem }} [data-theme=dark] body {{ background: #111 }}</style><div></div>
<script src="{0}/globe.js"></script><script src="{0}/explore.js"></script>
<script>wflowExplore.mount(document.querySelector("div"), wflowExplore.local({1}))</script>"""
SMALL = {"n": 20, "heads": 3, "steps": 60}


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("page") / "index.html"
    file.write_text(PAGE.format(HERE.as_uri(), json.dumps(SMALL)), "utf-8")
    return file.as_uri()


@pytest.fixture(scope="module")
def shown(page) -> Iterator[Any]:
    pytest.importorskip("selenium", reason="selenium is not installed")
    if not INSTALLED:
        pytest.skip(f"{CHROMIUM} or {DRIVER} is missing: Debian's chromium and chromium-driver")
    with browser(1280, 1000) as driver:
        driver.get(page)
        yield driver


def moved(driver: Any, key: str, value: object) -> None:
    """Set a control of the page, by its place, as a hand does."""
    driver.execute_script(
        "const [place, value] = arguments, c = document.querySelectorAll('.controls label')[place];"
        "const i = c.querySelector('input, select'); i.value = value;"
        "i.dispatchEvent(new Event(i.matches('select') ? 'change' : 'input'))",
        ["flow", "direction", "law", "n", "d", "beta", "heads", "sigma"].index(key),
        value,
    )


def waited(driver: Any, seconds: float) -> None:
    driver.execute_async_script("setTimeout(arguments[1], 1000 * arguments[0])", seconds)


def frame(driver: Any) -> int:
    return int(driver.execute_script("return document.querySelector('div').dataset.frame"))


@pytest.mark.parametrize("flow", ["softmax", "unnormalised", "effective"])
@pytest.mark.parametrize("direction", ["ascent", "descent"])
def test_the_solver_of_the_page_gives_the_numbers_of_solve(shown, flow, direction):
    x0 = wflow.tokens.uniform(n=40, d=3, seed=1)
    z = np.random.default_rng(0).standard_normal((3, 3, 3))
    D = (z + z.transpose(0, 2, 1)) / 2  # stronger ones amplify the rounding in ascent
    run = wflow.solve(
        x0, wflow.heads.Frozen(), heads=D, t_final=2.0, dt=0.02, flow=flow, direction=direction,
        save=wflow.SaveAt(every=1, snapshots=[2.0]),
    )  # fmt: skip
    settings = {"flow": flow, "direction": direction, "dt": 0.02, "steps": 100, "kappa": 0}
    settings |= {"law": "random", "seed": 0, "n": 40}
    energy, points = shown.execute_script(
        "const [s, x, D] = arguments, film = wflowExplore.solve(s, x, D), energy = []; let f;"
        "while ((f = film.next())) { energy.push(f.energy); s.end = Array.from(f.points); }"
        "return [energy, s.end]",
        settings, x0.ravel().tolist(), D.ravel().tolist(),
    )  # fmt: skip
    assert np.allclose(energy, run.energy[0], rtol=1e-10, atol=0)
    end = run.tokens[0, -1].values
    assert np.allclose(np.reshape(points, (-1, 3)), end, rtol=0, atol=1e-10)


def test_the_noise_of_the_page_is_that_of_the_law_and_of_the_theory(shown):
    normals = np.random.default_rng(2).standard_normal(15)
    x = wflow.tokens.uniform(n=2, d=3, seed=0)
    D = np.diag([1.0, 2.0, 3.0])
    settings = {"kappa": 0.1, "dt": 0.1, "law": "ou", "rate": 0.5, "beta": 4, "sigma": 1.5}
    tokens, heads = shown.execute_script(
        "const [s, x, D, z] = arguments;"
        "wflowExplore.step(x, D, s, x.map(() => 0), () => z.shift()); return [x, D]",
        settings, x.ravel().tolist(), D.ravel().tolist(), normals.tolist(),
    )  # fmt: skip
    u = np.sqrt(2 * 0.1 * 0.1) * wflow.sphere.project(x, normals[:6].reshape(2, 3))
    size = np.linalg.norm(u, axis=1, keepdims=True)
    assert np.allclose(np.reshape(tokens, (2, 3)), np.cos(size) * x + np.sin(size) / size * u)
    law = wflow.heads.OrnsteinUhlenbeck(4 * np.eye(3), rate=0.5, sigma2=1.5**2)
    step = law.step(D[None, None], 0.0, 0.1, normals[6:].reshape(1, 1, 3, 3))
    assert np.allclose(np.reshape(heads, (3, 3)), D + (0.1 * step.drift + step.noise)[0, 0])


def test_the_code_of_the_page_runs_and_is_what_the_widget_shows(shown):
    for law, kappa, d in itertools.product(("equal", "random", "ou"), (0, 0.05), (2, 3, 5)):
        settings = {**SMALL, "law": law, "kappa": kappa, "d": d, "sigma": 0.7, "steps": 15}
        code, settings = shown.execute_script(
            "const s = wflowExplore.local(arguments[0]).settings; return [wflowExplore.code(s), s]",
            settings,
        )
        found: dict[str, Any] = {}
        exec(code, found)
        run = MODULE._run(**settings)
        assert np.array_equal(found["run"].energy, run.energy)
        assert found["run"].sizes["head"] == (1 if law == "equal" else 3)


def test_sliders_and_buttons_move_the_tokens(shown, page):
    shown.get(page)
    button = shown.find_element("css selector", "button")
    assert button.text == "Pause"
    waited(shown, 0.5)
    assert frame(shown) > 5, "it plays from the start"
    button.click()
    stopped = frame(shown)
    waited(shown, 0.2)
    assert (button.text, frame(shown)) == ("Play", stopped)
    energy = shown.find_element("css selector", ".side > output").text
    moved(shown, "beta", 9)
    moved(shown, "law", "random")
    waited(shown, 0.3)
    assert frame(shown) == 0, "another setting begins anew, and stays paused"
    assert shown.find_element("css selector", ".side > output").text != energy
    canvas = "return document.querySelector('.sphere').toDataURL()"
    before = shown.execute_script(canvas)
    shown.find_element("css selector", ".sphere").send_keys("\ue014")  # arrow to the right
    turned = shown.execute_script(canvas)
    assert turned != before
    shown.execute_script("document.documentElement.dataset.theme = 'dark'")
    waited(shown, 0.1)
    assert shown.execute_script(canvas) != turned, "colours follow the theme"
    button.send_keys(" ")
    waited(shown, 3)
    assert (button.text, frame(shown)) == ("Play", SMALL["steps"])
    assert [entry for entry in shown.get_log("browser") if entry["level"] != "INFO"] == []
    own = ("file:", "data:", "blob:", "chrome:", "chrome-untrusted:", "about:")
    assert [url for url in requested(shown) if not url.startswith(own)] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_and_motion_is_reduced_where_it_is_asked(shown, page, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    shown.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    reduced = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    shown.execute_cdp_cmd("Emulation.setEmulatedMedia", reduced)
    shown.get(page)
    shown.find_element("css selector", "summary").click()
    waited(shown, 0.3)
    assert frame(shown) == 0
    root = "const r = document.documentElement; return [r.scrollWidth, r.clientWidth]"
    assert len(set(shown.execute_script(root))) == 1
    shown.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


# In a notebook
# -------------


def test_without_anywidget_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    MODULE._explorer.cache_clear()
    with pytest.raises(wflow.InputError, match=r"wflow-transformers\[explore\]"):
        wflow.explore()


@pytest.fixture
def notebook(shown, page) -> tuple[Any, dict[str, Any], Any]:
    """The page with a kernel that answers by hand, its settings and their run."""
    shown.get(page)
    settings = shown.execute_script("return wflowExplore.local(arguments[0]).settings", SMALL)
    run = MODULE._run(**settings)
    film = {
        key: list(value) if isinstance(value, bytes) else value
        for key, value in MODULE._film(run).items()
    }
    shown.execute_async_script(
        """const [script, settings, film, done] = arguments, el = document.querySelector("div");
        for (const key of ["times", "energy", "points"])
          film[key] = new DataView(Uint8Array.from(film[key]).buffer);
        window.model = { settings, film: { settings, ...film }, get(key) { return this[key]; },
          set(key, value) { this[key] = value; }, save_changes() { this.asked = this.settings; },
          on(name, f) { this.changed = f; }, off() {},
          answer(settings, more) { this.film = { settings, ...film, ...more }; this.changed(); } };
        const blob = new Blob([script], { type: "text/javascript" });
        import(URL.createObjectURL(blob)).then((module) => {
          el.replaceChildren(); module.default.render({ model, el }); done(); });""",
        MODULE._module(), settings, film,
    )  # fmt: skip
    return shown, settings, run


def test_the_page_of_a_notebook_shows_the_film(notebook):
    shown, _, run = notebook
    waited(shown, 2.5)
    energy = shown.find_element("css selector", ".side > output").text
    assert energy.endswith(f"energy {run.energy[0, -1].item():#.6g}")


def test_the_page_of_a_notebook_waits_for_the_film_that_it_asked_for_last(notebook):
    shown, settings, _ = notebook

    def answered(settings: dict[str, Any], **more: object) -> list[object]:
        """What the page shows after a film: its state, a problem, and the slider of beta."""
        return shown.execute_script(
            "model.answer(...arguments); const text = (name) => document.querySelector(name)."
            "textContent; return [text('.buttons output'), text('.problem'),"
            "Number(document.querySelector('.controls input[max=\"12\"]').value)]",
            settings, more,
        )  # fmt: skip

    moved(shown, "beta", 6)
    waited(shown, 0.5)
    six, nine = {**settings, "beta": 6}, {**settings, "beta": 9}
    assert shown.execute_script("return model.asked") == six
    moved(shown, "beta", 9)
    assert answered(six) == ["computing", "", 9], "before nine is asked for"
    waited(shown, 0.5)
    assert shown.execute_script("return model.asked") == nine
    assert answered(six) == ["computing", "", 9]
    assert answered(settings, error="too large", failed=six) == ["computing", "", 9]
    assert answered(nine) == ["", "", 9]
    moved(shown, "beta", 12)
    waited(shown, 0.5)
    failed = {**settings, "beta": 12}
    assert answered(nine, error="too large", failed=failed) == ["", "too large", 9]


def test_another_setting_gives_another_run(shown):
    pytest.importorskip("anywidget")
    explorer = wflow.explore(**SMALL)
    defaults = shown.execute_script("return wflowExplore.local(arguments[0]).settings", SMALL)
    assert explorer.settings == defaults
    first = explorer.film["points"]
    explorer.settings = {**explorer.settings, "law": "ou", "d": 5}
    assert explorer.film["points"] != first
    assert explorer.film["d"] == explorer.run.sizes["axis"] == 5
    points = np.frombuffer(explorer.film["points"], "<f4").reshape(-1, SMALL["n"], 3)
    assert len(points) == SMALL["steps"] + 1


BAD = [{"n": 0}, {"d": 1}, {"heads": 0}, {"heads": 2.5}, {"sigma": -1}, {"rate": 0}, {"dt": 0}]
BAD += [{"law": "typo"}, {"flow": "none"}, {"beta": "4"}, {"seed": -1}, {"steps": True}]
BAD += [{"nonsense": 1}]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_settings_that_cannot_be_used_change_nothing(bad):
    pytest.importorskip("anywidget")
    explorer = wflow.explore(**SMALL)
    settings, film, run = explorer.settings, explorer.film, explorer.run
    with pytest.raises(wflow.InputError, match=next(iter(bad))):
        explorer.settings = {**settings, **bad}
    assert (explorer.settings, explorer.film) == (settings, film) and explorer.run is run
    if "nonsense" not in bad:
        with pytest.raises(wflow.InputError, match=next(iter(bad))):
            wflow.explore(**{**SMALL, **bad})


def test_a_step_that_is_too_large_changes_nothing_and_is_said_on_the_page():
    pytest.importorskip("anywidget")
    explorer = wflow.explore(**SMALL)
    settings, film, run = explorer.settings, explorer.film, explorer.run
    with pytest.raises(wflow.BlowUpError):
        explorer.settings = {**settings, "dt": 1e5}
    assert explorer.settings == settings and explorer.run is run
    added = {"error": explorer.film["error"], "failed": {**settings, "dt": 1e5}}
    assert explorer.film == {**film, **added} and "blows up" in explorer.film["error"]
    explorer.settings = {**settings, "beta": 5.0}
    assert "error" not in explorer.film and explorer.run is not run
    with pytest.raises(wflow.BlowUpError):
        wflow.explore(**{**SMALL, "dt": 1e5})


def test_a_notebook_shows_it(tmp_path, monkeypatch):
    pytest.importorskip("anywidget")
    cells = executed(
        ["import wflow\nexplorer = wflow.explore(n=10, steps=20)\nexplorer",
         "explorer.settings = {**explorer.settings, 'beta': 8.0}\nexplorer.run.sizes['time']"],
        tmp_path, monkeypatch,
    )  # fmt: skip
    assert "application/vnd.jupyter.widget-view+json" in cells[0].outputs[-1].data
    assert cells[1].outputs[-1].data["text/plain"] == "21"
