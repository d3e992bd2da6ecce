"""Headless Chromium, as the distribution packages it, for pages that lie on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

WIDTH, HEIGHT = 1440, 1000
OPENED_SECONDS_MAX = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

# Draws the page anew; returns what was filled on a canvas: a text, or "" for a rectangle; from x to x, y, how tall; the colour.
# In CSS pixels.
DRAWN = """
const wanted = document.getElementById(arguments[0]), told = [], context = CanvasRenderingContext2D.prototype;
const { fillText, fillRect } = context;
context.fillText = function (text, x, y) {
  const wide = this.measureText(text).width, from = { left: x, start: x, right: x - wide, center: x - wide / 2 }[this.textAlign];
  if (this.canvas === wanted) told.push([String(text), from, from + wide, y, 0, this.fillStyle]);
  fillText.call(this, text, x, y);
};
context.fillRect = function (x, y, wide, tall) {
  if (this.canvas === wanted) told.push(["", x, x + wide, y, tall, this.fillStyle]);
  fillRect.call(this, x, y, wide, tall);
};
Main.draw();
Object.assign(context, { fillText, fillRect });
return told;
"""


@dataclass(frozen=True)
class Drawn:
    """A text, from its left to its right end, or a rectangle, whose text is empty; `y` is the middle of the one, the top of the other."""

    text: str
    begin: float
    end: float
    y: float
    tall: float
    colour: str


def missing() -> str:
    """What a browser test needs and this machine does not have; empty where nothing is missing."""
    lacks = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    lacks += [name for name in ("selenium",) if find_spec(name) is None]
    return f"{', '.join(lacks)} not installed (Debian: chromium and chromium-driver; Python: settled[test])" if lacks else ""


@contextmanager
def chromium(*, width: int = WIDTH, height: int = HEIGHT) -> Iterator[Any]:
    """A new browser with a profile of its own, and its driver, which reports what pages log."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with TemporaryDirectory(prefix="settled-chromium-") as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
        driver.set_page_load_timeout(OPENED_SECONDS_MAX)
        driver.set_script_timeout(OPENED_SECONDS_MAX)
        try:
            yield driver
        finally:
            driver.quit()


def opened(driver: Any, path: Path, *, scheme: str = "light") -> None:
    """Shows a page to somebody who prefers a colour scheme. Its scripts have run when this returns."""
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    driver.get(path.as_uri())
    assert driver.execute_script("return document.documentElement.dataset.ready") == "yes", driver.get_log("browser")


def settle(driver: Any) -> None:
    """Until what was asked for is drawn."""
    driver.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));")


def pressed(driver: Any, *keys: str) -> None:
    """Keys, by their names in JavaScript, sent to the page as a keyboard does."""
    for key in keys:
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": kind, "key": key, **(text if kind == "keyDown" else {})})
    settle(driver)


def messages(driver: Any) -> list[str]:
    """What the page logged since the last call."""
    return [entry["message"] for entry in driver.get_log("browser")]


def text(driver: Any, element: str) -> str:
    """What an element shows."""
    return str(driver.execute_script("return document.getElementById(arguments[0]).innerText", element))


def drawn(driver: Any, canvas: str) -> list[Drawn]:
    """All that is filled on a canvas, in the order of drawing."""
    return [Drawn(*each) for each in driver.execute_script(DRAWN, canvas)]
