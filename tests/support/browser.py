"""Headless Chromium, for pages: what a user sees, clicks and types. `needs_browser` skips where there is none."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER and find_spec("selenium")),
    reason="no selenium, or no Chromium with its driver here (on Debian: chromium, chromium-driver)",
)
# Wide enough for a table, and a telephone.
WIDE, NARROW = (1400, 900), (390, 844)


class Page:
    """A page in a browser, and what can be asked of it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, size: tuple[int, int] = WIDE, scheme: str = "light") -> None:
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == NARROW}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        # What moves is not there yet to be read.
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get("about:blank")
        self.driver.get(url)

    def js(self, code: str, *arguments: object) -> Any:
        return self.driver.execute_script(code, *arguments)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements("css selector", selector)
        return found

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def press(self, *keys: str) -> None:
        from selenium import webdriver

        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def search(self, text: str) -> None:
        self.one("#text").clear()
        self.one("#text").send_keys(text)
        self.until(lambda: self.js("return document.getElementById('status').dataset.text") == text)

    def until(self, true: Any) -> None:
        end = time.monotonic() + 10
        while not true():
            assert time.monotonic() < end, "waited 10 s"
            time.sleep(0.02)

    def contrasts(self, *selectors: str) -> list[float]:
        """The contrast of the text of each with what is behind it, by WCAG's formula."""
        found: list[float] = self.js(
            """
            const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
            const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
                .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
                .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
            const behind = (element) => {
                for (let at = element; at; at = at.parentElement) {
                    const color = rgb(getComputedStyle(at).backgroundColor);
                    if (color.length < 4 || color[3] > 0) return color;
                }
                return [255, 255, 255];
            };
            return arguments[0].map((selector) => {
                const element = document.querySelector(selector);
                const both = [light(rgb(getComputedStyle(element).color)), light(behind(element))];
                const [a, b] = both.sort((x, y) => y - x);
                return (a + 0.05) / (b + 0.05);
            });
            """,
            list(selectors),
        )
        return found


def chromium() -> Iterator[Any]:
    """The driver of a browser that is started, and ended."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    # The page is ours, and a container often has no sandbox to give.
    for each in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield started
    started.quit()


def watched(driver: Any) -> Iterator[Any]:
    """The driver of a page whose console stays empty, and that asks for nothing but itself."""
    driver.get_log("performance")
    yield driver
    assert driver.get_log("browser") == []
    asked = [json.loads(each["message"])["message"] for each in driver.get_log("performance")]
    urls = [each["params"]["request"]["url"] for each in asked if each["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith(("file:", "data:", "about:"))] == []
    assert len({url.partition("#")[0] for url in urls if url.startswith("file:")}) <= 1
