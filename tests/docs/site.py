"""Checks of the built site, for tests and CI: `python tests/docs/site.py build/site`.

Without a browser: no page loads anything from a network, every link leads to a file of the site,
every public name is in the search index and in the inventory of objects. In a headless Chromium,
where one is installed: no table is wider than its column, every formula is rendered, no page
requests anything outside the site or writes an error to the console, the first screen of the home
page shows a picture and code, buttons of the predictions show what they count, and the search finds
what it should first. `--screenshots FOLDER` keeps pictures.
"""

import argparse
import functools
import http.server
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
# A script finds beside itself neither the helpers of the tests nor the extension of Sphinx.
sys.path[:0] = [str(place) for place in (ROOT, ROOT / "tests", ROOT / "docs" / "_ext")]

from browser import CHROMIUM, DRIVER, INSTALLED, browser, requested  # noqa: E402

WIDTH, HEIGHT = 1280, 1000
# What is searched, and the page that is found first.
SEARCHED = {
    "OrnsteinUhlenbeck": "api/wflow.heads.OrnsteinUhlenbeck.html",
    "w2": "api/wflow.transport.w2.html",
}
LINKED = ("heads.HeadLaw", "heads.Oscillating", "heads.Frozen", "SaveAt")  # on the page of solve
NUMBERS = re.compile(r"/(performance|results/ott_tables)")  # pages that are found last
RESOURCES = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}


class _Resources(HTMLParser):
    """Addresses that a browser loads without being asked, links, and names of places."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places.add(given.get("id") or "")
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        if tag == "link" and (given.get("rel") or "") in ("stylesheet", "preload", "icon"):
            self.found.append(given.get("href") or "")
        if tag in RESOURCES and given.get(RESOURCES[tag]):
            self.found.append(given[RESOURCES[tag]] or "")


def external_resources(site: Path) -> list[str]:
    """Return resources of pages and style sheets that come from a network: 'page: address'."""
    outside = re.compile(r"^(https?:)?//")
    wrong = []
    for page in sorted(site.rglob("*.html")):
        reader = _Resources()
        reader.feed(page.read_text(encoding="utf-8"))
        wrong += [f"{page.relative_to(site)}: {a}" for a in reader.found if outside.match(a)]
    for sheet in sorted(site.rglob("*.css")):
        for address in re.findall(r"url\(['\"]?(.*?)['\"]?\)", sheet.read_text(errors="replace")):
            if outside.match(address):
                wrong.append(f"{sheet.relative_to(site)}: {address}")
    return wrong


def broken_links(site: Path) -> list[str]:
    """Links of pages to no file or no place of the site: 'page: address'."""
    readers = {page: _Resources() for page in site.rglob("*.html") if "_static" not in page.parts}
    for page, reader in readers.items():
        reader.feed(page.read_text(encoding="utf-8"))
    wrong = []
    for page, reader in sorted(readers.items()):
        for address in {*reader.links, *reader.found}:
            link = urlsplit(address)
            if link.scheme or link.netloc:
                continue
            file = (page.parent / unquote(link.path)).resolve() if link.path else page
            known = readers[file].places if file in readers else None
            lost = known is not None and link.fragment and unquote(link.fragment) not in known
            if not file.is_file() or not file.is_relative_to(site) or lost:
                wrong.append(f"{page.relative_to(site)}: {address} leads nowhere")
    return wrong


def public_names() -> list[str]:
    """Return the full public names, as the API pages list them."""
    import api_pages

    return [name.path for name in api_pages.names()] + list(api_pages.rooms())


def missing_names(site: Path) -> list[str]:
    """Public names that objects, search index or signatures of the site lack."""
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda *parts: "/".join(parts))
    objects = {name for kind in inventory if kind.startswith("py:") for name in inventory[kind]}
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    searched = {
        f"{prefix}.{entry[4]}" if prefix else entry[4]
        for prefix, entries in index["objects"].items()
        for entry in entries
    }
    wrong = [f"{name}: not an object of the site" for name in public_names() if name not in objects]
    page = (site / "api" / "wflow.solve.html").read_text(encoding="utf-8")
    wrong += [
        f"wflow.solve: no link to {name}" for name in LINKED if f"wflow.{name}.html#" not in page
    ]
    return wrong + [
        f"{name}: not in the search index" for name in public_names() if name not in searched
    ]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Yield the site at an address of this machine: the search does not run from a file."""
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


# Tables wider than the column of text, in pixels beyond it, and formulas that failed.
_MEASURE = """
const done = arguments[0];
const ready = window.MathJax && MathJax.startup ? MathJax.startup.promise : Promise.resolve();
ready.then(() => {
  const wide = [], cut = [];
  for (const table of document.querySelectorAll('article table')) {
    const column = table.closest('article').getBoundingClientRect();
    const box = table.parentElement;
    const over = Math.max(table.getBoundingClientRect().right - column.right,
                          box.scrollWidth - box.clientWidth);
    if (over > 1) wide.push(Math.round(over));
  }
  for (const formula of document.querySelectorAll('article mjx-container[display="true"]')) {
    const over = formula.scrollWidth - formula.clientWidth;
    if (over > 1) cut.push(Math.round(over));
  }
  const math = document.querySelectorAll('article .math');
  const raw = [...math].filter(m => !m.querySelector('mjx-container')).length;
  const failed = document.querySelectorAll('article mjx-merror, article [data-mjx-error]').length;
  done({wide: wide, cut: cut, raw: raw, failed: failed});
});
"""


def requests_outside(driver: Any, address: str) -> list[str]:
    """Return what the page has requested from elsewhere since the last call."""
    own = (address, "data:", "blob:", "about:", "chrome:")
    return [url for url in requested(driver) if not url.startswith(own)]


def looked_at(site: Path, pictures: Path | None = None, only: str = "") -> list[str]:
    """Return what is wrong with the pages in a browser of 1280 pixels."""
    wrong: list[str] = []
    pages = [
        page.relative_to(site).as_posix()
        for page in sorted(site.rglob("*.html"))
        if "_static" not in page.parts and re.search(only, page.relative_to(site).as_posix())
    ]
    with served(site) as address, browser(WIDTH, HEIGHT) as driver:
        for page in pages:
            driver.get(f"{address}/{page}")
            state = driver.execute_async_script(_MEASURE)
            for key, text in (
                ("wide", "tables wider than their column, by pixels"),
                ("cut", "formulas wider than their column, by pixels"),
                ("raw", "formulas that are not rendered"),
                ("failed", "formulas with an error"),
            ):
                if state[key]:
                    wrong.append(f"{page}: {text}: {state[key]}")
            wrong += [f"{page}: requested {url}" for url in requests_outside(driver, address)]
            wrong += [
                f"{page}: console: {entry['message']}"
                for entry in driver.get_log("browser")
                if entry["level"] == "SEVERE" and "favicon" not in entry["message"]
            ]
            if pictures and page.count("/") < 2 and "/wflow." not in page:
                driver.save_screenshot(str(pictures / (page.replace("/", "-")[:-5] + ".png")))
        wrong += _first_screen(driver, address) + _filtered(driver, address)
        wrong += _searched(driver, address, pictures)
    return wrong


def _first_screen(driver: Any, address: str) -> list[str]:
    """What the home page lacks before one scrolls, in a window of 1280 x 800."""
    driver.get(f"{address}/index.html")
    inside = """return [...document.querySelectorAll('article ' + arguments[0])].some(e => {
        const box = e.getBoundingClientRect();
        return box.height > 100 && box.top >= 0 && box.bottom <= 800; })"""
    missing = [tag for tag in ("img", "pre") if not driver.execute_script(inside, tag)]
    return [f"index.html: no whole <{tag}> on the first screen" for tag in missing]


def _filtered(driver: Any, address: str) -> list[str]:
    """What the buttons of the page of predictions show that is not what they count."""
    driver.get(f"{address}/results/predictions.html")
    rows = "return [...document.querySelectorAll('table.predictions tbody tr')]"
    wrong = []
    for label in driver.find_elements("css selector", "fieldset.choices label"):
        label.click()
        seen = driver.execute_script(f"{rows}.filter(row => row.offsetParent).length")
        if seen != int(label.find_element("css selector", "b").text):
            wrong.append(f"predictions.html: {label.text} shows {seen} rows")
        label.find_element("xpath", "../label").click()  # all
    return wrong


def _searched(driver: Any, address: str, pictures: Path | None) -> list[str]:
    from selenium.webdriver.support.ui import WebDriverWait

    def found(words: str) -> list[str]:
        driver.get(f"{address}/search.html?q={words}")
        summary = "p.search-summary"
        WebDriverWait(driver, 60).until(
            lambda d: "finished" in d.find_element("css selector", summary).text
        )
        links = driver.find_elements("css selector", "#search-results ul.search a")
        return [link.get_attribute("href").partition("#")[0] for link in links]

    wrong = []
    for words, page in SEARCHED.items():
        links = found(words)
        if pictures:
            driver.save_screenshot(str(pictures / f"search-{words}.png"))
        if not links or not links[0].endswith(page):
            wrong.append(f"search: {words} does not find {page} first, but {links[:5]}")
    numbers = [bool(NUMBERS.search(link)) for link in found("table")]
    if numbers != sorted(numbers) or not any(numbers):
        wrong.append("search: pages of numbers are not found last")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path, help="folder of the built site")
    parser.add_argument("--screenshots", type=Path, help="folder for pictures of the main pages")
    parser.add_argument("--only", default="", help="pages whose path matches this pattern")
    flags = parser.parse_args()
    if flags.screenshots:
        flags.screenshots.mkdir(parents=True, exist_ok=True)
    site = flags.site.resolve()
    wrong = external_resources(site) + broken_links(site) + missing_names(site)
    if INSTALLED:
        wrong += looked_at(flags.site, flags.screenshots, flags.only)
    else:
        print(f"no {CHROMIUM} with {DRIVER}: pages were not looked at in a browser")
    print("\n".join(wrong) or f"{flags.site}: nothing wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
