"""Looking at a page: what lines and bars say at each event, where keys, the mouse and the search lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import drawn, opened, pressed, settle, text
from traces import Trace, recorded

from settled.model import events as ev
from settled.model.specs import SlidingWindowSpec
from settled.proofs.showing.data import About
from settled.proofs.showing.page import page_of
from settled.proofs.showing.timeline import timeline_of

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("nothing_is_logged")]

SPECULATIVE, CONNECTOR, MANY = "v0.25.1-min-spec-reject", "v0.25.1-connector-overwrite", "v0.33.0-conn-apc-spec"

# Draws the page anew; returns how often a function of the canvases was called, for hatches of one colour.
CALLED = """
const [name, colour] = arguments, was = Canvas[name];
let calls = 0;
Canvas[name] = (...rest) => { calls += colour === null || rest.at(-1) === Theme.colour(colour); was(...rest); };
Main.draw();
Canvas[name] = was;
return calls;
"""


def show(driver: Any, folder: Path, trace: Trace, about: About | None = None) -> None:
    timeline = timeline_of(trace, "trace")
    path = folder / "page.html"
    path.write_text(page_of(timeline, about) if about else page_of(timeline), encoding="utf-8")
    driver.set_window_size(1440, 1000)
    opened(driver, path)


def made(*events: ev.Event) -> Trace:
    """On one group, with blocks of one token and a window of two."""
    config = ev.Config(
        schema=1,
        engine="hand-made",
        num_blocks=16,
        max_in_flight_steps=2,
        max_batched_tokens=8,
        num_draft_tokens=2,
        prefix_caching=False,
        kv_consumer=True,
        groups=(SlidingWindowSpec(block_size=1, window=2),),
    )
    return list(enumerate([config, *events], start=1))


def add(request: str) -> ev.Add:
    return ev.Add(request=request, prompt_tokens=2)


def allocate(request: str, *blocks: int) -> ev.Allocate:
    return ev.Allocate(request=request, group=0, first_index=0, blocks=blocks)


def schedule(step: int, start: int, tokens: int, *blocks: int, drafts: int = 0) -> ev.Schedule:
    part = ev.ScheduledRequest(request="A", start=start, tokens=tokens, drafts=drafts, new_blocks=(blocks,), resumed=False)
    return ev.Schedule(step=step, requests=(part,))


def process(step: int) -> ev.Process:
    return ev.Process(step=step, requests=(ev.ProcessedRequest(request="A", sampled=1, rejected=0),))


def go(driver: Any, line: int) -> None:
    driver.execute_script("View.go(arguments[0])", line - 1)
    settle(driver)


def texts(driver: Any, canvas: str) -> list[str]:
    return [each.text for each in drawn(driver, canvas) if each.text]


def line(driver: Any) -> int:
    return int(text(driver, "event-title").split(":")[0].removeprefix("line "))


def shown_request(driver: Any) -> str:
    return str(driver.execute_script("return Model.owners[View.state.owner]"))


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def test_lines_in_the_rows_of_blocks_are_what_the_step_reads_and_writes(driver: Any, tmp_path: Path) -> None:
    """Step 1 is at token 2 and has three: with a window of two tokens it reads tokens 1 to 4 and writes tokens 2 to 4."""
    show(
        driver,
        tmp_path,
        made(add("A"), allocate("A", 9, 8, 7, 6, 5), schedule(0, 0, 2, 9, 8, 7, 6, 5), process(0), schedule(1, 2, 3, drafts=2)),
    )
    go(driver, 6)
    drawings = drawn(driver, "time")
    accent = driver.execute_script("return Theme.colour('accent')")
    rows = {each.text: each.y for each in drawings if each.text.startswith("block ")}
    lines = [each for each in drawings if each.colour == accent and each.tall in (1.5, 3) and each.y > min(rows.values()) - 13]
    told = {tall: {name for name, y in rows.items() for each in lines if each.tall == tall and -13 < each.y - y < 13} for tall in (1.5, 3)}
    assert told == {1.5: {"block 8", "block 7", "block 6", "block 5"}, 3: {"block 7", "block 6", "block 5"}}
    assert "drafts" in texts(driver, "tokens")


def test_a_table_behind_a_fence_is_hatched_and_no_longer_the_requests(driver: Any, tmp_path: Path) -> None:
    show(
        driver,
        tmp_path,
        made(add("A"), allocate("A", 9), schedule(0, 0, 1, 9), ev.Preempt(request="A"), ev.Add(request="B", prompt_tokens=2)),
    )
    go(driver, 4)
    assert "block 9" in texts(driver, "tokens")
    assert driver.execute_script(CALLED, "hatch", "dim") == 1
    go(driver, 5)
    assert "block 9" not in texts(driver, "tokens")
    pressed(driver, "0")
    assert driver.execute_script(CALLED, "hatch", "dim") == 1
    show(driver, tmp_path, made(add("A"), allocate("A", 9), schedule(0, 0, 1, 9)))
    assert driver.execute_script(CALLED, "hatch", "dim") == 0


def test_nothing_is_missed_before_it_is_gone(driver: Any, tmp_path: Path) -> None:
    show(driver, tmp_path, recorded(CONNECTOR))
    bad = driver.execute_script("return Theme.colour('bad')")
    seen = {}
    for at in (6, 7):
        go(driver, at)
        seen[at] = [each for each in drawn(driver, "tokens") if each.colour == bad]
    assert "next step" not in texts(driver, "tokens")  # a step in flight reads it
    assert seen[6] == []
    assert len(seen[7]) > 2
    assert "block 5 is free" in {each.text for each in seen[7]}


def test_a_step_is_told_where_it_truly_starts(driver: Any, tmp_path: Path) -> None:
    show(driver, tmp_path, recorded(SPECULATIVE))
    assert "truly [61, 66), scheduled [65, 70)" in texts(driver, "tokens")
    assert text(driver, "event-counters") == "A: computed 65 → 70, in flight 5 → 10, stale 0, settled 60"


def test_marks_of_steps_and_numbers_of_null_entries(driver: Any, tmp_path: Path) -> None:
    """A step that is never processed has no mark at the end of the trace."""
    show(driver, tmp_path, made(add("A"), allocate("A", 9, 8, 7), schedule(0, 0, 3, 9, 8, 7), process(0), release_of(9), schedule(1, 3, 1)))
    pressed(driver, "0")
    shown = texts(driver, "time")
    assert {each for each in shown if each[0] in "▼▲"} == {"▼ s0", "▲ p0", "▼ s1"}
    assert [each for each in shown if each.startswith("∅")] == ["∅ 1"]


def release_of(block: int) -> ev.Release:
    return ev.Release(request="A", group=0, indices=(0,), blocks=(block,), cause="window", freed=(block,))


def test_an_arrow_stands_only_for_what_is_still_waited_for(driver: Any, tmp_path: Path) -> None:
    store, begin = ev.Store(job=1, request="A", blocks=((9,),)), (add("A"), allocate("A", 9), schedule(0, 0, 1, 9))
    show(driver, tmp_path, made(*begin, store))
    assert driver.execute_script(CALLED, "arrow", None) == 1
    show(driver, tmp_path, made(*begin, process(0), store))
    assert driver.execute_script("return Model.data.lanes.waits.length") == 1
    assert driver.execute_script(CALLED, "arrow", None) == 0


# ---- whom it is about ------------------------------------------------------------------------------------------------


def test_the_request_that_is_shown_stays_until_it_has_nothing_left(driver: Any, tmp_path: Path) -> None:
    gone = ev.Release(request="A", group=0, indices=(0,), blocks=(9,), cause="finish", freed=(9,))
    run = (add("A"), allocate("A", 9), add("B"), allocate("B", 8), ev.Finish(request="A", reason="stop"), gone, add("C"))
    show(driver, tmp_path, made(*run))
    seen = {}
    for at in range(2, 9):
        go(driver, at)
        seen[at] = shown_request(driver)
    assert seen == {2: "A", 3: "A", 4: "A", 5: "A", 6: "A", 7: "A", 8: "C"}


def test_counters_are_those_of_the_request_that_is_shown(driver: Any, tmp_path: Path) -> None:
    """Also where it is the second one of a step; and the search by its name finds that step."""
    trace = recorded(MANY)
    at, event = next((at, each) for at, each in trace if isinstance(each, ev.Schedule) and len(each.requests) > 1)
    second = event.requests[1].request
    show(driver, tmp_path, trace)
    go(driver, at)
    assert not text(driver, "event-counters").startswith(second)
    pressed(driver, "/", *second)
    go(driver, at)
    assert shown_request(driver) == second
    assert text(driver, "event-counters").startswith(f"{second}: computed ")
    assert at - 1 in driver.execute_script("return View.state.hits.positions")


# ---- going through it ------------------------------------------------------------------------------------------------


def test_brackets_lead_to_the_ends_of_the_step_in_flight(driver: Any, tmp_path: Path) -> None:
    show(driver, tmp_path, made(add("A"), allocate("A", 9, 8), schedule(0, 0, 1, 9, 8), add("B"), add("C"), process(0)))
    seen = []
    for key in ("]", "["):
        go(driver, 5)
        pressed(driver, key)
        seen.append(line(driver))
    assert seen == [7, 4]


def test_arrows_up_and_down_scroll_the_blocks(driver: Any, tmp_path: Path) -> None:
    show(driver, tmp_path, recorded(CONNECTOR))
    first = [next(each for each in texts(driver, "time") if each.startswith("block "))]
    for key in ("ArrowDown", "ArrowUp"):
        pressed(driver, key)
        first.append(next(each for each in texts(driver, "time") if each.startswith("block ")))
    assert first[0] == first[2] == "block 5"
    assert first[1] != first[0]


def test_shift_and_enter_goes_back_through_what_was_found(driver: Any, tmp_path: Path) -> None:
    show(driver, tmp_path, recorded(SPECULATIVE))
    enter = """
    const key = new KeyboardEvent("keydown", { key: "Enter", shiftKey: arguments[0] });
    document.getElementById("query").dispatchEvent(key);
    """
    pressed(driver, "/", *"step 4")
    seen = []
    for shift in (True, True, False, False):
        driver.execute_script(enter, shift)
        settle(driver)
        seen.append((line(driver), text(driver, "hits")))
    assert seen == [(15, "2 of 2"), (12, "1 of 2"), (15, "2 of 2"), (12, "1 of 2")]


def test_a_click_on_the_overview_leads_anywhere(driver: Any, tmp_path: Path) -> None:
    show(driver, tmp_path, recorded(CONNECTOR))
    click = """
    const box = document.getElementById("time").getBoundingClientRect();
    const place = { bubbles: true, clientX: box.right - 3, clientY: box.top + arguments[0] };
    document.getElementById("time").dispatchEvent(new MouseEvent("click", place));
    """
    driver.execute_script(click, 60)
    settle(driver)
    assert line(driver) < 20
    driver.execute_script(click, 6)
    settle(driver)
    assert line(driver) > 135


def test_the_pictures_follow_the_width_of_the_window(driver: Any, tmp_path: Path) -> None:
    show(driver, tmp_path, recorded(CONNECTOR))
    script = "const shown = document.getElementById('time'); return [shown.width, View.width(), shown.clientWidth]"
    wide = driver.execute_script(script)
    driver.set_window_size(700, 1000)
    settle(driver)
    narrow = driver.execute_script(script)
    driver.set_window_size(1440, 1000)
    assert narrow[0] < wide[0] - 200
    assert abs(narrow[1] - narrow[2]) <= 2


def test_a_finding_that_no_event_shows_is_looked_at_from_the_end(driver: Any, tmp_path: Path) -> None:
    trace = recorded(MANY)
    show(driver, tmp_path, trace, About("engine_fault", "KeyError", "the engine failed."))
    assert line(driver) == trace[-1][0]
    assert text(driver, "headline").startswith("engine_fault violated")
    assert text(driver, "sentence") == "the engine failed."
