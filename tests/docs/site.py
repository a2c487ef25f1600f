"""Checks of the built site, for tests and CI: `python tests/docs/site.py build/site`.

Without a browser: no page loads anything from a network, every public name is in the search index
and in the inventory of objects. In a headless Chromium, where one is installed: no table is wider
than its column, every formula is rendered, no page requests anything outside the site or writes an
error to the console, and the search finds a class. `--screenshots FOLDER` keeps pictures.
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

ROOT = Path(__file__).resolve().parents[2]
# A script finds beside itself neither the helpers of the tests nor the extension of Sphinx.
sys.path[:0] = [str(place) for place in (ROOT, ROOT / "tests", ROOT / "docs" / "_ext")]

from browser import CHROMIUM, DRIVER, INSTALLED, browser, requested  # noqa: E402

WIDTH, HEIGHT = 1280, 1000
SEARCHED = "OrnsteinUhlenbeck"
RESOURCES = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}


class _Resources(HTMLParser):
    """Addresses that a browser loads without being asked."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
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


def public_names() -> list[str]:
    """Return the full public names, as the API pages list them."""
    import api_pages

    return [name.path for name in api_pages.names()] + list(api_pages.rooms())


def missing_names(site: Path) -> list[str]:
    """Public names that the inventory of objects or the search index of the site lacks."""
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
        wrong += _searched(driver, address, pictures)
    return wrong


def _searched(driver: Any, address: str, pictures: Path | None) -> list[str]:
    from selenium.common.exceptions import TimeoutException
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(f"{address}/search.html?q={SEARCHED}")
    try:
        links = WebDriverWait(driver, 20).until(
            lambda d: [
                link.get_attribute("href")
                for link in d.find_elements("css selector", "#search-results a")
            ]
        )
    except TimeoutException:
        links = []
    if pictures:
        driver.save_screenshot(str(pictures / "search.png"))
    page = f"api/wflow.heads.{SEARCHED}.html"
    if not any(page in link for link in links):
        return [f"search: {SEARCHED} does not find {page}, but {links}"]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path, help="folder of the built site")
    parser.add_argument("--screenshots", type=Path, help="folder for pictures of the main pages")
    parser.add_argument("--only", default="", help="pages whose path matches this pattern")
    flags = parser.parse_args()
    if flags.screenshots:
        flags.screenshots.mkdir(parents=True, exist_ok=True)
    wrong = external_resources(flags.site) + missing_names(flags.site)
    if INSTALLED:
        wrong += looked_at(flags.site, flags.screenshots, flags.only)
    else:
        print(f"no {CHROMIUM} with {DRIVER}: pages were not looked at in a browser")
    print("\n".join(wrong) or f"{flags.site}: nothing wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
