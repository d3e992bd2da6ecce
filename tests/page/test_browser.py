"""Pages in headless Chromium: nothing goes wrong, the violation is seen, keys and search work, light and dark, at 10,000 events too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import opened, pressed, settle, text
from hostile import MARKUP, hostile_trace
from traces import long_trace, recorded, short_trace

from settled.model.disciplines import DISCIPLINES
from settled.proofs.showing.page import SCRIPTS, page_of
from settled.proofs.showing.timeline import timeline_of

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("nothing_is_logged")]

RECORDED = ("v0.25.1-min-spec-reject", "v0.25.1-connector-overwrite", "v0.33.0-conn-apc-spec")
# Disciplines, and seeds whose runs violate them: with a block and without, in a step, before the next one, and in none.
BROKEN = {"drafts-unpruned": 5, "optimistic": 14, "undrained": 20, "mamba-local": 16, "no-fence": 8}
LONG_EVENTS = 10_000
# Generous, for machines that do other things at the same time: tests/bench/page_speed.py measures.
OPENED_MS_MAX, STEP_MS_MAX = 10_000, 500

# The share of the pixels of a canvas that are near a colour of the style sheet.
SHARE = """
const shown = document.getElementById(arguments[0]), style = getComputedStyle(document.documentElement);
const wanted = d3.rgb(style.getPropertyValue(arguments[1]).trim());
const copy = new OffscreenCanvas(shown.width, shown.height).getContext("2d", { willReadFrequently: true });
copy.drawImage(shown, 0, 0);
const { data } = copy.getImageData(0, 0, shown.width, shown.height);
let near = 0;
for (let place = 0; place < data.length; place += 4) {
  const distance = Math.abs(data[place] - wanted.r) + Math.abs(data[place + 1] - wanted.g) + Math.abs(data[place + 2] - wanted.b);
  if (distance < 12) near += 1;
}
return near / (data.length / 4);
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    traces = {name: recorded(name) for name in RECORDED}
    traces |= {"hostile": hostile_trace(), "long": long_trace(LONG_EVENTS)}
    traces["bare"] = recorded(RECORDED[0])[:1]
    traces |= {name: short_trace(DISCIPLINES[name], seed) for name, seed in BROKEN.items()}
    paths = {}
    for name, trace in traces.items():
        paths[name] = folder / f"{name}.html"
        paths[name].write_text(page_of(timeline_of(trace, name)), encoding="utf-8")
    return paths


def line(driver: Any) -> int:
    """Of the selected event."""
    return int(text(driver, "event-title").split(":")[0].removeprefix("line "))


def share(driver: Any, canvas: str, colour: str) -> float:
    return float(driver.execute_script(SHARE, canvas, colour))


def is_in_sight(driver: Any, element: str) -> bool:
    """Whether its upper part stands in the window without scrolling."""
    script = """
    const box = document.getElementById(arguments[0]).getBoundingClientRect();
    return box.top >= 0 && box.top + 100 < innerHeight && box.height > 50;
    """
    return bool(driver.execute_script(script, element))


# ---- what is seen at once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_violation_is_told_and_marked(driver: Any, pages: dict[str, Path], scheme: str) -> None:
    opened(driver, pages["v0.25.1-min-spec-reject"], scheme=scheme)
    assert text(driver, "headline").startswith("rollback_resident violated")
    assert "step 3 of request A reads tokens 30 to 31" in text(driver, "sentence")
    assert text(driver, "why") == "When it was freed, 65 tokens counted as computed, 5 were in flight, 60 were settled."
    assert line(driver) == 10
    for canvas in ("tokens", "time"):
        assert is_in_sight(driver, canvas)
        assert share(driver, canvas, "--bad") > 0.001
        assert share(driver, canvas, "--paper") > 0.3
    assert share(driver, "time", "--bad-paper") > 0.0005  # behind the label in the row of the block


def test_without_a_violation_nothing_is_red(driver: Any, pages: dict[str, Path]) -> None:
    opened(driver, pages["v0.33.0-conn-apc-spec"])
    assert text(driver, "headline").startswith("holds")
    assert text(driver, "number") == "no violation"
    assert share(driver, "time", "--bad") == share(driver, "tokens", "--bad") == 0
    assert share(driver, "time", "--accent") > 0


def test_the_theme_follows_the_system_and_the_button(driver: Any, pages: dict[str, Path]) -> None:
    script = "return [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor]"
    opened(driver, pages["v0.25.1-min-spec-reject"], scheme="dark")
    dark = driver.execute_script(script)
    driver.execute_script("document.getElementById('theme').click()")
    settle(driver)
    light = driver.execute_script(script)
    assert (dark[0], light[0]) == ("dark", "light")
    assert dark[1] != light[1]
    assert share(driver, "time", "--paper") > 0.3
    pressed(driver, "t")
    assert driver.execute_script(script) == dark


@pytest.mark.parametrize("width", [480, 800, 1440])
def test_nothing_is_wider_than_the_window(driver: Any, pages: dict[str, Path], width: int) -> None:
    driver.set_window_size(width, 1000)
    try:
        opened(driver, pages["v0.25.1-connector-overwrite"])
        assert driver.execute_script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert is_in_sight(driver, "tokens") or width < 800
    finally:
        driver.set_window_size(1440, 1000)


def test_on_paper_it_is_light_and_without_buttons(driver: Any, pages: dict[str, Path]) -> None:
    opened(driver, pages["v0.25.1-min-spec-reject"], scheme="dark")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    settle(driver)
    assert driver.execute_script("return document.documentElement.dataset.theme") == "light"
    assert driver.execute_script("return document.querySelector('.tools').offsetHeight") == 0
    assert share(driver, "time", "--bad") > 0.001
    driver.execute_script("window.dispatchEvent(new Event('afterprint'))")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


# ---- going through it ------------------------------------------------------------------------------------------------


def test_keys_step_through_the_events(driver: Any, pages: dict[str, Path]) -> None:
    opened(driver, pages["v0.25.1-min-spec-reject"])
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "Home", "ArrowLeft", "End", "ArrowRight"):
        pressed(driver, key)
        seen.append(line(driver))
    assert seen == [11, 12, 11, 1, 1, 93, 93]
    assert text(driver, "event-words") == "end of the trace, nothing in flight"
    assert '"event": "end"' in text(driver, "event-json")
    assert "line 93" in driver.execute_script("return document.getElementById('spoken').textContent")


def test_n_goes_through_the_violations(driver: Any, pages: dict[str, Path]) -> None:
    opened(driver, pages["v0.25.1-min-spec-reject"])
    seen = [(line(driver), text(driver, "number"))]
    for key in ("n", "n", "N", "N", "N"):
        pressed(driver, key)
        seen.append((line(driver), text(driver, "number").split(" of ")[0]))
    assert seen == [
        (10, "violation 1 of 10"),
        (12, "violation 2"),
        (40, "violation 3"),
        (12, "violation 2"),
        (10, "violation 1"),
        (10, "violation 1"),
    ]


def test_a_chapter_leads_to_its_event(driver: Any, pages: dict[str, Path]) -> None:
    opened(driver, pages["v0.25.1-min-spec-reject"])
    driver.execute_script("document.querySelector('#chapters li:last-child button').click()")
    settle(driver)
    assert line(driver) == 13
    assert driver.execute_script("return document.querySelector('#chapters [aria-current]').innerText").startswith("line 13")


def test_zoom_keeps_the_cursor_and_shows_more_or_less(driver: Any, pages: dict[str, Path]) -> None:
    opened(driver, pages["v0.25.1-connector-overwrite"])
    width = "const [from, to] = View.x().domain(); return to - from;"
    before = driver.execute_script(width)
    pressed(driver, "-")
    wider = driver.execute_script(width)
    pressed(driver, "0")
    assert before < wider < driver.execute_script(width) == pytest.approx(140)
    pressed(driver, "v")
    assert driver.execute_script(width) == pytest.approx(before)
    assert line(driver) == 7


def test_the_mouse_selects_drags_and_tells(driver: Any, pages: dict[str, Path]) -> None:
    opened(driver, pages["v0.25.1-min-spec-reject"])
    at = driver.execute_script(
        "const box = document.getElementById('time').getBoundingClientRect(); return [box.left, box.top, View.x()(10.5)];"
    )

    def mouse(kind: str, x: float, buttons: int = 0) -> None:
        place = {"x": at[0] + x, "y": at[1] + 60, "button": "left" if kind != "mouseMoved" or buttons else "none", "buttons": buttons}
        driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, "clickCount": 1, **place})

    mouse("mouseMoved", at[2])
    assert text(driver, "tip").startswith("line 11: step 2 processed")
    mouse("mousePressed", at[2], 1)
    mouse("mouseReleased", at[2])
    settle(driver)
    assert line(driver) == 11
    before = driver.execute_script("return View.x().domain()[0]")
    mouse("mousePressed", at[2], 1)
    for x in range(20, 220, 40):
        mouse("mouseMoved", at[2] - x, 1)
    mouse("mouseReleased", at[2] - 200)
    settle(driver)
    assert driver.execute_script("return View.x().domain()[0]") > before + 1


@pytest.mark.parametrize(
    ("query", "hits", "first"),
    [
        ("block 2", "6 events", "A releases block 2"),
        ("step 4", "2 events", "step 4 scheduled"),
        ("a", None, "A arrives"),
        ("zzz", "nothing", None),
    ],
)
def test_search_finds_requests_blocks_and_steps(
    driver: Any, pages: dict[str, Path], query: str, hits: str | None, first: str | None
) -> None:
    opened(driver, pages["v0.25.1-min-spec-reject"])
    pressed(driver, "/")
    assert driver.execute_script("return document.activeElement.id") == "query"
    pressed(driver, *query)
    if hits is not None:
        assert text(driver, "hits") == hits
    pressed(driver, "Enter")
    if first is not None:
        found = driver.execute_script("return View.state.hits.positions.map((position) => Model.events.words[position])")
        assert text(driver, "event-words") == found[0]
        assert any(words.startswith(first) for words in found)
    pressed(driver, "Escape")
    assert text(driver, "hits") == ""
    assert focused(driver) == "time"


def focused(driver: Any) -> str:
    return str(driver.execute_script("return document.activeElement.id"))


def test_keys_are_the_pages_again_after_a_choice_with_the_mouse(driver: Any, pages: dict[str, Path]) -> None:
    opened(driver, pages["v0.25.1-min-spec-reject"])
    choose = """
    const rows = document.getElementById("rows");
    rows.focus();
    rows.dispatchEvent(arguments[0] === "mouse" ? new Event("pointerdown") : new KeyboardEvent("keydown", { key: "ArrowDown" }));
    rows.dispatchEvent(new Event("change"));
    """
    driver.execute_script(choose, "keys")
    assert focused(driver) == "rows"
    driver.execute_script(choose, "mouse")
    assert focused(driver) == "time"
    driver.execute_script(choose, "keys")
    pressed(driver, "Escape")
    assert focused(driver) == "time"


def test_all_is_reached_by_the_keyboard_alone(driver: Any, pages: dict[str, Path]) -> None:
    """Each control gets the focus by Tab, and has a name."""
    opened(driver, pages["v0.25.1-min-spec-reject"])
    script = """
    const controls = [...document.querySelectorAll("button, select, input, canvas[tabindex], summary")];
    const nameless = (each) => !(each.getAttribute("aria-label") || each.labels?.length || each.textContent.trim());
    return controls.filter((each) => each.tabIndex < 0 || nameless(each)).map((each) => each.outerHTML);
    """
    assert driver.execute_script(script) == []


# ---- what a trace says, and how much ---------------------------------------------------------------------------------


def test_names_that_are_markup_are_shown_and_do_nothing(driver: Any, pages: dict[str, Path]) -> None:
    opened(driver, pages["hostile"])
    pressed(driver, *["ArrowLeft"] * 3, *["ArrowRight"] * 8, "Home", "n")
    driver.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    settle(driver)
    assert MARKUP in text(driver, "sentence")
    assert driver.execute_script("return [document.images.length, document.scripts.length]") == [
        0,
        2 + len(SCRIPTS),
    ]  # the data, the library
    pressed(driver, "Home", "ArrowRight", "ArrowRight")
    assert r'"request": "a\u001b[31m' in text(driver, "event-json")
    assert r"\u202e]]>" in text(driver, "event-json")
    assert "broken" not in driver.title.split("onerror")[0]
    assert driver.title.startswith(f"engine {MARKUP}")


@pytest.mark.parametrize("name", [*BROKEN, "hostile", "bare"])
def test_every_event_violation_and_table_can_be_drawn(driver: Any, pages: dict[str, Path], name: str) -> None:
    opened(driver, pages[name])
    drawn = driver.execute_script(
        """
        let drawn = 0;
        const each = (times, look) => { for (let place = 0; place < times; place++) { look(place); Main.draw(); drawn += 1; } };
        each(Model.size, View.go);
        each(Model.violations.length, View.select);
        for (const choice of ["all", "request", "violation"]) each(1, () => { View.choose(choice); View.show(0, Model.size); });
        each(Model.owners.length, (owner) => { View.state.owner = owner; });
        each(Model.data.groups.length, (group) => { View.state.group = group; });
        return drawn;
        """
    )
    assert drawn >= 5


def test_ten_thousand_events_open_and_step(driver: Any, pages: dict[str, Path]) -> None:
    opened(driver, pages["long"])
    opening = driver.execute_script("return performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert opening < OPENED_MS_MAX
    times = driver.execute_async_script(
        """
        const done = arguments[0], times = [];
        (async () => {
          for (const key of ["ArrowRight", "ArrowRight", "n", "0", "ArrowRight", "ArrowLeft", "v", "End", "ArrowLeft", "ArrowLeft"]) {
            const began = performance.now();
            document.dispatchEvent(new KeyboardEvent("keydown", { key }));
            await new Promise(requestAnimationFrame);
            times.push(performance.now() - began);
          }
          done(times);
        })();
        """
    )
    assert sorted(times)[len(times) // 2] < STEP_MS_MAX
    assert line(driver) == LONG_EVENTS - 2
