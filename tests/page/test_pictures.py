"""What the pictures of a page say: the texts and bars that are drawn, where, in which colour."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import Drawn, drawn, opened, pressed, text
from hostile import hostile_trace
from traces import Trace, recorded, short_trace

from settled.model import events as ev
from settled.model.disciplines import OPTIMISTIC
from settled.model.specs import SlidingWindowSpec
from settled.proofs.showing.page import page_of
from settled.proofs.showing.timeline import timeline_of

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("nothing_is_logged")]


def texts(driver: Any, canvas: str) -> list[str]:
    return [each.text for each in drawn(driver, canvas) if each.text]


def colour(driver: Any, name: str) -> str:
    return str(driver.execute_script("return Theme.colour(arguments[0])", name))


def show(driver: Any, folder: Path, trace: Trace, *, width: int = 1440) -> None:
    path = folder / "page.html"
    path.write_text(page_of(timeline_of(trace, "trace")), encoding="utf-8")
    driver.set_window_size(width, 1000)
    opened(driver, path)


def row_of(drawings: list[Drawn], name: str) -> float:
    (y,) = {each.y for each in drawings if each.text == name}
    return y


# ---- the table of a request ------------------------------------------------------------------------------------------


def rejected_trace() -> Trace:
    """A block goes back to the pool too early; step 1 rejects its drafts; no step in flight reads it, but the next one does."""
    return [
        *enumerate(
            [
                ev.Config(
                    schema=1,
                    engine="hand-made",
                    num_blocks=16,
                    max_in_flight_steps=2,
                    max_batched_tokens=8,
                    num_draft_tokens=2,
                    prefix_caching=False,
                    kv_consumer=False,
                    groups=(SlidingWindowSpec(block_size=1, window=2),),
                ),
                ev.Add(request="A", prompt_tokens=2),
                ev.Allocate(request="A", group=0, first_index=0, blocks=(1, 2, 3, 4, 5)),
                ev.Schedule(step=0, requests=(scheduled(0, 2, 0, 1, 2, 3, 4, 5),)),
                ev.Process(step=0, requests=(ev.ProcessedRequest(request="A", sampled=1, rejected=0),)),
                ev.Schedule(step=1, requests=(scheduled(2, 3, 2),)),
                ev.Release(request="A", group=0, indices=(0, 1, 2), blocks=(1, 2, 3), cause="window", freed=(1, 2, 3)),
                ev.Add(request="B", prompt_tokens=1),
                ev.Allocate(request="B", group=0, first_index=0, blocks=(3,)),
                ev.Process(step=1, requests=(ev.ProcessedRequest(request="A", sampled=1, rejected=2),)),
                ev.End(idle=False),
            ],
            start=1,
        )
    ]


def scheduled(start: int, tokens: int, drafts: int, *blocks: int) -> ev.ScheduledRequest:
    return ev.ScheduledRequest(request="A", start=start, tokens=tokens, drafts=drafts, new_blocks=(blocks,), resumed=False)


def test_what_the_next_step_needs_has_a_row_of_its_own(driver: Any, tmp_path: Path) -> None:
    """Where the lost token stands, in red, at the event that took the drafts back and nowhere else; and who has the block now."""
    show(driver, tmp_path, rejected_trace())
    assert text(driver, "chapters").split("\n")[-1].endswith("step 1 rejects 2 of A's drafts: the next step reads token 2")
    drawings = drawn(driver, "tokens")
    y, bad = row_of(drawings, "next step"), colour(driver, "bad")
    heads = {each.text: each.begin - 1 for each in drawings if each.text.isdigit() and each.y < 30}
    (need,) = [each for each in drawings if not each.text and each.colour == bad]
    assert (need.begin, need.end) == pytest.approx((heads["2"], heads["3"]), abs=1.5)
    assert abs(need.y - y) < 12
    assert "reads" in {each.text for each in drawings if abs(each.y - y) < 6}
    assert "block 3 went to B [0]" in {each.text for each in drawings}
    assert not any(each.text.startswith("step ") for each in drawings)
    pressed(driver, "ArrowRight")
    assert "next step" not in texts(driver, "tokens")
    pressed(driver, "ArrowLeft")
    assert "next step" in texts(driver, "tokens")
    driver.execute_script("View.state.owner = 1")
    assert "next step" not in texts(driver, "tokens")


def test_a_violation_without_a_step_is_marked_in_the_row_of_the_block_that_was_lost(driver: Any, tmp_path: Path) -> None:
    show(driver, tmp_path, rejected_trace())
    drawings = drawn(driver, "time")
    assert abs(row_of(drawings, "next step reads it") - row_of(drawings, "block 3")) < 6
    assert next(each.text for each in drawings if each.text.startswith("block ")) == "block 3"


def test_marks_of_settled_and_computed_tokens_never_cover_each_other(driver: Any, tmp_path: Path) -> None:
    for width in (1440, 420):
        show(driver, tmp_path, recorded("v0.25.1-min-spec-reject"), width=width)
        for _ in range(20):
            marks = sorted((each for each in drawn(driver, "tokens") if each.y == 9), key=lambda each: each.begin)
            assert marks
            assert all(one.end <= other.begin for one, other in pairwise(marks))
            assert all(each.begin >= 0 and each.end <= driver.execute_script("return View.width()") for each in marks)
            pressed(driver, "ArrowRight")
    driver.set_window_size(1440, 1000)


# ---- the time line ---------------------------------------------------------------------------------------------------


def test_who_got_the_block_is_readable_beside_what_is_violated(driver: Any, tmp_path: Path) -> None:
    """The very place where an engineer looks: the row of the block, where the step reads it while somebody else has it."""
    show(driver, tmp_path, recorded("v0.25.1-connector-overwrite"))
    drawings = drawn(driver, "time")
    label_y = row_of(drawings, "block 5")
    beside = [each for each in drawings if each.text and abs(each.y - label_y) < 6 and each.begin > 104]
    assert [each.text for each in beside] == ["A g1[0]", "A g0[5]", "step 1 reads it"]
    in_order = sorted(beside, key=lambda each: each.begin)
    assert all(one.end <= other.begin for one, other in pairwise(in_order))


def test_several_holders_of_a_block_stand_below_each_other(driver: Any, tmp_path: Path) -> None:
    show(driver, tmp_path, recorded("v0.33.0-conn-apc-spec"))
    drawings = drawn(driver, "time")
    first, second = (next(each.y for each in drawings if each.text == name) for name in ("block 1", "block 2"))
    held = [each for each in drawings if each.text.endswith(" g0[0]")]
    assert {each.text for each in held} >= {"r0 g0[0]", "L2 g0[0]", "L4 g0[0]"}
    assert len({each.y for each in held}) == 3
    assert second - first > 2 * min(abs(one.y - other.y) for one in held for other in held if one.y != other.y) > 28
    # where the row of a block stands is where the search scrolls to
    pressed(driver, "/", *"block 12")
    assert "block 12" in texts(driver, "time")


# ---- words beside the pictures ---------------------------------------------------------------------------------------


def test_an_unknown_verdict_says_why(driver: Any, tmp_path: Path) -> None:
    show(driver, tmp_path, recorded("v0.33.0-swa-a")[:-1])
    assert text(driver, "headline") == "unknown"
    assert text(driver, "sentence") == "Why: the trace has no `end` event: its tail was not judged."
    assert "Note: held_bounded: " in text(driver, "about")


def test_long_names_stay_within_their_panels(driver: Any, tmp_path: Path) -> None:
    """Every element but those that cut their own text off."""
    script = """
    const cut = (each) => getComputedStyle(each).textOverflow === "ellipsis" || /^(SELECT|INPUT|CANVAS|OPTION)$/.test(each.tagName);
    const isWider = (each) => each.clientWidth > 2 && each.scrollWidth > each.clientWidth + 1;
    const wide = [...document.querySelectorAll("body *")].filter((each) => !cut(each) && isWider(each));
    return wide.map((each) => `${each.tagName} ${each.id}`);
    """
    for width in (1440, 420):
        show(driver, tmp_path, hostile_trace(), width=width)
        assert driver.execute_script(script) == []
    driver.set_window_size(1440, 1000)


def test_the_number_of_a_violation_stands_at_its_first_line(driver: Any, tmp_path: Path) -> None:
    show(driver, tmp_path, short_trace(OPTIMISTIC, 14), width=500)
    script = "return getComputedStyle(document.querySelector('#all-violations li button')).verticalAlign"
    assert driver.execute_script(script) == "top"
    driver.set_window_size(1440, 1000)
