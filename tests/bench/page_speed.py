"""How fast the page of a trace of 10,000 events is made, opens in headless Chromium, and steps.

Run it as `python tests/bench/page_speed.py`; it needs chromium, chromedriver and selenium. Times of the browser are taken twice: by the
clock, and as processor time of the page's main thread (its tasks: scripts, layout, painting), which other work on the machine does not
change much. A step is a key and all that it leads to, until the next frame. Medians of the rounds and of the steps of all rounds. Exits
with 1 if the page takes 2 s or more to open, or a step 50 ms or more, in processor time; by the clock too with `--by-the-clock`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "page"))

from browser import chromium, missing
from traces import long_trace

from settled.proofs.showing.page import page_of
from settled.proofs.showing.timeline import timeline_of

EVENTS, ROUNDS, STEPS = 10_000, 5, 20
OPENED_MS_MAX, STEP_MS_MAX = 2000.0, 50.0
# What is measured, the keys before it, the key that is pressed again and again.
MEASURED = (("a step", (), "ArrowRight"), ("to the next violation", (), "n"), ("a step with all in sight", ("0",), "ArrowLeft"))

PRESS = """
const [key, times, done] = arguments;
(async () => {
  for (let place = 0; place < times; place++) {
    document.dispatchEvent(new KeyboardEvent("keydown", { key }));
    await new Promise(requestAnimationFrame);
  }
  done();
})();
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--by-the-clock", action="store_true", help="judge the times by the clock, too")
    asked = parser.parse_args()
    if missing():
        print(missing(), file=sys.stderr)
        return 2
    with TemporaryDirectory() as folder:
        path = _made(Path(folder) / "page.html")
        with chromium() as driver:
            driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
            rounds = [_round(driver, path) for _ in range(ROUNDS)]
    told = {what: tuple(median(each[what][place] for each in rounds) for place in range(2)) for what in rounds[0]}
    print(f"{'':26} {'clock, ms':>10} {'processor, ms':>14}")
    for what, (clock, processor) in told.items():
        print(f"{what:26} {clock:10.0f} {processor:14.0f}")
    judged = 2 if asked.by_the_clock else 1
    is_slow = any(max(each[-judged:]) >= (OPENED_MS_MAX if what == "open" else STEP_MS_MAX) for what, each in told.items())
    return int(is_slow)


def _made(path: Path) -> Path:
    trace = long_trace(EVENTS)
    began = time.process_time()
    text = page_of(timeline_of(trace, "long"))
    path.write_text(text, encoding="utf-8")
    print(f"{EVENTS} events: a page of {len(text) / 1e6:.1f} MB, made in {time.process_time() - began:.1f} s of processor time")
    return path


def _round(driver: Any, path: Path) -> dict[str, tuple[float, float]]:
    """Milliseconds by the clock, and of the main thread, for opening and for a step after each key."""
    driver.get("about:blank")
    began = _main_thread_seconds(driver)
    driver.get(path.as_uri())
    clock = float(driver.execute_script("return performance.getEntriesByType('navigation')[0].loadEventEnd"))
    now = _main_thread_seconds(driver)
    told = {"open": (clock, 1000 * (now - began if now > began else now))}  # a new page may begin with a new count
    for what, before, key in MEASURED:
        for each in before:
            driver.execute_async_script(PRESS, each, 1)
        thread, since = _main_thread_seconds(driver), time.perf_counter()
        driver.execute_async_script(PRESS, key, STEPS)
        told[what] = 1000 * (time.perf_counter() - since) / STEPS, 1000 * (_main_thread_seconds(driver) - thread) / STEPS
    return told


def _main_thread_seconds(driver: Any) -> float:
    metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


if __name__ == "__main__":
    sys.exit(main())
