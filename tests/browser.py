"""Headless Chromium for reports and for the built site.

Debian's packages chromium and chromium-driver; the driver is named, so that selenium downloads
none. Importing this module needs no selenium.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
INSTALLED = CHROMIUM.exists() and DRIVER.exists()
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip


@contextmanager
def browser(width: int, height: int, javascript: bool = True) -> Iterator[Any]:
    """Yield a driver with a profile of its own, which keeps what pages log and request."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    if not javascript:
        setting = {"profile.managed_default_content_settings.javascript": 2}
        options.add_experimental_option("prefs", setting)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--window-size={width},{height}", f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
        driver.set_page_load_timeout(60)
        try:
            yield driver
        finally:
            driver.quit()


def requested(driver: Any) -> list[str]:
    """Return addresses that pages have requested since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
