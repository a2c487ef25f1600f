"""The report page in a browser: headless Chromium, from disk, with and without JavaScript."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from browser import CHROMIUM, DRIVER, INSTALLED, browser, requested
from matplotlib.figure import Figure

import wflow
from wflow import study
from wflow.study.frame import Verdict

pytest.importorskip("selenium", reason="selenium is not installed")
pytestmark = pytest.mark.skipif(
    not INSTALLED,
    reason=f"{CHROMIUM} or {DRIVER} is missing: Debian's chromium and chromium-driver",
)
SIZE = (1200, 900)
VERDICTS: tuple[Verdict, ...] = ("confirmed", "not confirmed")
PLAYS = "return document.querySelector('.hero canvas').dataset.frame > 0"
CUT = (
    "return [document.documentElement, ...document.querySelectorAll('.scroll, nav')]"
    ".filter((part) => part.scrollWidth > part.clientWidth)"
    ".map((part) => part.outerHTML.slice(0, 200))"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """Return the report of two runs."""
    folder = tmp_path_factory.mktemp("pages")
    x0 = wflow.tokens.cross_polytope(n=30, d=3, spread=0.2, seed=1)
    law = wflow.heads.OrnsteinUhlenbeck(np.eye(3), rate=1.0, sigma2=2.0)
    save = wflow.SaveAt(every=1, snapshots=np.linspace(0, 2, 21), heads=True)
    for heads in (2, 5):
        run = wflow.solve(
            x0, law, heads=heads, t_final=2.0, dt=0.02, paths=3, seed=0, save=save,
            out=folder / f"H{heads:05d}.h5",
        )  # fmt: skip
        run.close()
    return wflow.report(folder)


@pytest.fixture(scope="module")
def loaded(page) -> Iterator[Any]:
    with browser(*SIZE) as driver:
        driver.get(page.as_uri())
        yield driver


def see(driver: Any, selector: str) -> Any:
    """Scroll to an element, and wait until the page has drawn what is near it."""
    element = driver.find_element("css selector", selector)
    driver.execute_script("arguments[0].scrollIntoView({behavior: 'instant'})", element)
    driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 150))")
    return element


def pixels(driver: Any) -> str:
    script = "return document.querySelector('#r1 canvas').toDataURL()"
    return str(driver.execute_script(script))


def dragged(driver: Any, value: int) -> None:
    """Set the slider, as a hand does."""
    script = (
        "const s = document.querySelector('#r1 input[type=range]'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    driver.execute_script(script, value)


def test_it_loads_without_errors_and_without_a_request(loaded) -> None:
    for name in ("budget", "gradient", "tokens", "clusters", "heads"):
        see(loaded, f"#r1-{name}")
    drawn = loaded.find_elements("css selector", "#r1 figure[data-drawn]")
    assert len(drawn) == 4
    assert all(figure.find_elements("css selector", ".main-svg") for figure in drawn)
    assert [entry for entry in loaded.get_log("browser") if entry["level"] != "INFO"] == []
    asked = requested(loaded)
    own = ("file:///", "data:", "blob:", "chrome:", "chrome-untrusted:")
    assert [url for url in asked if not url.startswith(own)] == []
    assert len({url for url in asked if url.startswith("file:")}) == 1


def test_the_slider_moves_the_points(loaded) -> None:
    see(loaded, "#r1 .cloud")
    dragged(loaded, 0)
    first = pixels(loaded)
    dragged(loaded, 20)
    assert pixels(loaded) != first
    assert loaded.find_element("css selector", "#r1 output").text == "t = 2"
    dragged(loaded, 0)
    assert pixels(loaded) == first


def test_the_sphere_turns_by_keys_and_by_itself(loaded) -> None:
    see(loaded, "#r1 .cloud")
    before = pixels(loaded)
    loaded.find_element("css selector", "#r1 canvas").send_keys("\ue014")  # arrow to the right
    turned = pixels(loaded)
    assert turned != before
    box = loaded.find_element("css selector", "#r1 .turn")
    box.click()
    loaded.execute_async_script("setTimeout(arguments[0], 200)")
    box.click()
    assert pixels(loaded) != turned


def test_the_play_button_runs_to_the_end(loaded) -> None:
    see(loaded, "#r1 .cloud")
    dragged(loaded, 17)
    button = loaded.find_element("css selector", "#r1 .play")
    button.click()
    assert button.text == "Pause"
    script = """
      const [done] = arguments, until = performance.now() + 8000;
      const canvas = document.querySelector('#r1 canvas');
      (function wait() {
        if (canvas.dataset.frame === '20' || performance.now() > until) done(canvas.dataset.frame);
        else setTimeout(wait, 50);
      })();
    """
    assert loaded.execute_async_script(script) == "20"
    loaded.execute_async_script("setTimeout(arguments[0], 50)")
    assert button.text == "Play"


def test_curves_are_those_of_the_file(loaded, page) -> None:
    see(loaded, "#r1-budget")
    drawn = loaded.execute_script(
        "return document.querySelector('#r1 figure[data-chart=\"r1-budget\"] .live').data"
        ".filter((trace) => trace.name === 'E(t) − E(0)' && trace.meta !== 'band')[0].y"
    )
    with wflow.open(page.with_name("H00005.h5")) as run:
        energy = run["energy"].values
        mean = (energy - energy[:, :1]).mean(axis=0)
    assert np.allclose(drawn, mean, rtol=1e-6, atol=1e-7)


def test_another_run_can_be_chosen(loaded) -> None:
    choice = see(loaded, "#choose")
    sections = loaded.find_elements("css selector", "section.run")
    assert [section.is_displayed() for section in sections] == [False, True]
    loaded.execute_script(
        "arguments[0].value = 'r0'; arguments[0].dispatchEvent(new Event('change'))", choice
    )
    assert [section.is_displayed() for section in sections] == [True, False]
    see(loaded, "#r0-budget")
    assert loaded.find_elements("css selector", "#r0 figure[data-drawn]")
    loaded.execute_script(
        "arguments[0].value = 'r1'; arguments[0].dispatchEvent(new Event('change'))", choice
    )


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_the_first_screen_has_a_conclusion_and_the_sphere_and_nothing_is_cut(page, width, height):
    from selenium.webdriver.support.ui import WebDriverWait

    with browser(width, height) as driver:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        for source in (page, wflow.report(page.with_name("H00005.h5"))):
            driver.get(source.as_uri())
            assert "The energy" in driver.find_element("css selector", ".conclusion").text
            seen = {".hero .cloud canvas": height}
            seen |= {".hero .chart .live": height} if width > 1000 else {}
            for selector, lowest in seen.items():
                part = driver.find_element("css selector", selector).rect
                assert part["width"] > 0.3 * width and part["y"] + part["height"] <= lowest
            WebDriverWait(driver, 15).until(lambda found: found.execute_script(PLAYS))
            assert driver.execute_script(CUT) == []


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_a_study_leads_with_findings_beside_a_run_and_its_main_figure(tmp_path, width, height):
    stem = "problem=softmax,_unequal_heads,scheme=euler,step=0.02-b7bb6740"
    flags = study.OutputFlags(out=tmp_path)
    with study.session("trial", flags) as session:
        for name in (stem, f"{stem}-2"):
            session.files[name] = file = tmp_path / f"{name}.h5"
            x0 = wflow.tokens.uniform(5, 3, seed=0)
            wflow.solve(
                x0, wflow.heads.Frozen(), heads=2, t_final=0.1, dt=0.05, out=file,
                save=wflow.SaveAt(snapshots=(0, 0.1)),
            ).close()  # fmt: skip
        found = [study.Finding("E falls", "theory", "by 1", verdict) for verdict in VERDICTS]
        shown = {name: Figure(figsize=(7, 4)) for name in ("main", "another")}
        session.finish(xr.Dataset(), "| H |\n| - |\n| 4 |", found, shown)
    with browser(width, height) as driver:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        driver.get((tmp_path / "report.html").as_uri())
        beside = [".hero .badge", ".hero .chart .live"] if width > 1000 else []
        for selector in (".conclusion", ".hero canvas", *beside):
            part = driver.find_element("css selector", selector).rect
            assert part["y"] + part["height"] <= height, selector
        assert driver.find_element("css selector", ".main figcaption").text.lower() == "main"
        runs = driver.find_element("css selector", "#runs").rect
        assert runs["y"] > driver.find_element("css selector", ".main img").rect["y"]
        links = [
            link.get_attribute("href") for link in driver.find_elements("css selector", "nav a")
        ]
        assert sum("provenance" in link for link in links) == 1
        assert driver.execute_script(CUT) == []


def test_without_javascript_tables_and_static_figures_are_visible(page) -> None:
    with browser(*SIZE, javascript=False) as driver:
        driver.get(page.as_uri())
        for selector, count in (
            ("figure .static > svg", 10),
            ("section.run", 2),
            ("table:not(details *)", 7),
        ):
            found = driver.find_elements("css selector", selector)
            assert len(found) >= count
            assert all(part.is_displayed() for part in found)
        assert not driver.find_element("css selector", "figure .live").is_displayed()
        assert not driver.find_element("css selector", ".choose").is_displayed()
        assert "Without JavaScript" in driver.find_element("css selector", "main").text
