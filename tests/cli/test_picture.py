"""Pictures of hand-made traces, read back as text: what each row shows, what fits, and what is kept in memory."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from rich.console import Console

from settled.model import events as ev
from settled.model.monitor import Violation
from settled.model.properties import Contract, Property
from settled.model.specs import CrossAttentionSpec, KVCacheSpec, MambaSpec, RSWASpec, SlidingWindowSpec
from settled.proofs.report.picture import draw
from settled.proofs.report.signs import ASCII, UNICODE, Signs, signs_for
from settled.proofs.report.story import Story

WINDOW = SlidingWindowSpec(block_size=4, window=4)
CAPTIONS = 2  # lines of the heading


def config(*groups: KVCacheSpec) -> ev.Config:
    return ev.Config(
        schema=1,
        engine="hand-made",
        num_blocks=100_000,
        max_in_flight_steps=2,
        max_batched_tokens=64,
        num_draft_tokens=2,
        prefix_caching=True,
        kv_consumer=True,
        groups=groups or (WINDOW,),
    )


def violation(line: int, **keys: Any) -> Violation:
    given = {"request": "A", "group": 0, "cause": "freed[window]", "detail": "so it is", **keys}
    return Violation(property=Property.READ_RESIDENT, contract=Contract.SETTLED, line=line, **given)


def schedule(step: int, start: int, tokens: int, *, drafts: int = 0, request: str = "A", counters: Any = None) -> ev.Schedule:
    part = ev.ScheduledRequest(
        request=request, start=start, tokens=tokens, drafts=drafts, new_blocks=((),), resumed=False, counters=counters
    )
    return ev.Schedule(step=step, requests=(part,))


def process(step: int, rejected: int = 0) -> ev.Process:
    return ev.Process(step=step, requests=(ev.ProcessedRequest(request="A", sampled=1, rejected=rejected),))


def allocate(*blocks: int, first: int = 0, request: str = "A", group: int = 0) -> ev.Allocate:
    return ev.Allocate(request=request, group=group, first_index=first, blocks=blocks)


def touch(*blocks: int, first: int = 0) -> ev.Touch:
    return ev.Touch(request="A", group=0, first_index=first, blocks=blocks)


def release(blocks: dict[int, int], cause: Any = "window") -> ev.Release:
    return ev.Release(request="A", group=0, indices=tuple(blocks), blocks=tuple(blocks.values()), cause=cause, freed=tuple(blocks.values()))


def load(job: int, *blocks: int, request: str = "B") -> ev.Load:
    return ev.Load(job=job, request=request, blocks=(blocks,))


def lines(
    events: Sequence[ev.Event], found: Violation, *, width: int = 160, signs: Signs = UNICODE, rows_max: int | None = None
) -> list[str]:
    """The picture as it is printed."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, soft_wrap=True)
    console.print(draw(enumerate(events, start=1), found, width=width, signs=signs, rows_max=rows_max))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def rows(events: Sequence[ev.Event], found: Violation, **keys: Any) -> list[str]:
    """Its rows, single spaces between their parts."""
    return [re.sub(r" +", " ", line).strip() for line in lines(events, found, **keys)[CAPTIONS:-1]]


# ---- which part of the trace -----------------------------------------------------------------------------------------


def test_after_a_gap_the_second_config_and_the_state_count() -> None:
    wide = SlidingWindowSpec(block_size=2, window=2)
    state = ev.State(
        requests=(ev.RequestState(request="A", prompt_tokens=6, computed=6, in_flight=2, stale=0),),
        unprocessed=(
            ev.UnprocessedStep(
                step=7, requests=(ev.UnprocessedRequest(request="A", start=4, tokens=2, drafts=0, rows=((0, 8, 9),), live=True),)
            ),
        ),
        tables={"A": ((0, 8, 9),)},
    )
    events = [config(), allocate(1, 2), schedule(1, 0, 8), ev.Gap(events=3), config(wide), state, release({1: 8})]
    assert rows(events, violation(7, step=7, index=1, block=8, needed=(3, 3))) == [
        "6 state 6 2 0 ∅∅ ·· ··",
        "6 step 7: unprocessed [4, 6) ∅∅ ·r ww",
        "7 release (window) ∅∅ ×× ··",
        "7 step 7 needs !",
    ]
    # Before the gap it is the first config that counts.
    assert rows(events, violation(3, step=1, index=0, needed=(0, 3))) == ["3 step 1: schedule [0, 8) wwww wwww", "3 step 1 needs !!!!"]


# ---- tables and generations ------------------------------------------------------------------------------------------


def test_a_deferred_release_after_a_resumption_is_of_the_old_table() -> None:
    events = [
        config(),
        allocate(1, 2),
        schedule(1, 0, 8),
        ev.Preempt(request="A"),
        touch(1),  # a prefix hit: the same block at the same index
        allocate(5, first=1),
        schedule(2, 4, 4),
        release({1: 2, 0: 1}, "deferred"),
        process(1),
    ]
    assert rows(events, violation(9)) == [
        "3 step 1: schedule [0, 8) wwww wwww",
        "4 preempt ···· ····",
        "7 step 2: schedule [4, 8) ·rrr wwww",
        "8 release (deferred, old table) ···· ····",
        "9 step 1: process ···· ····",
    ]


def test_a_deferred_release_before_a_resumption_is_drawn() -> None:
    events = [config(), allocate(1, 2), ev.Preempt(request="A"), schedule(2, 0, 0), release({1: 2, 0: 1}, "deferred"), process(1)]
    assert rows(events, violation(6))[1:] == ["4 step 2: schedule [0, 0) ···· ····", "5 release (deferred) ×××× ××××", "6 step 1: process"]


@pytest.mark.parametrize("cause", ["finish", "abort", "preempt"])
def test_after_a_whole_request_release_the_entries_are_gone(cause: str) -> None:
    end = ev.Preempt(request="A") if cause == "preempt" else ev.Finish(request="A", reason="stop")
    events = [config(), allocate(1, 2, 3), release({0: 1}), end, release({2: 3, 1: 2}, cause), process(1)]
    assert rows(events, violation(6))[1:] == [
        f"4 {'preempt' if cause == 'preempt' else 'finish (stop)'} ∅∅∅∅ ···· ····",
        f"5 release ({cause}) ∅∅∅∅ ×××× ××××",
        "6 step 1: process",
    ]


def test_a_move_is_drawn() -> None:
    events = [config(), allocate(1, 2), ev.Move(request="A", group=0, from_index=0, to_index=2, block=1)]
    assert rows(events, violation(3)) == ["3 move [0] → [2] ∅∅∅∅ ···· ····"]
    assert rows(events, violation(3), signs=ASCII) == ["3 move [0] -> [2] 0000 .... ...."]


def test_other_requests_and_groups_are_left_out() -> None:
    two = config(WINDOW, WINDOW)
    events = [
        two,
        allocate(1),
        allocate(2, first=1, request="B"),
        allocate(3, first=1, group=1),
        schedule(1, 0, 4, request="B"),
        process(1),
    ]
    assert rows(events, violation(6)) == ["6 step 1: process ····"]


# ---- loads -----------------------------------------------------------------------------------------------------------


def test_a_load_is_shown_if_it_touches_a_block_in_sight() -> None:
    events = [config(), allocate(1, 2, 3), release({0: 1}), load(7, 20, 21), load(8, 2, 3, 30), load(9, 1)]
    assert rows(events, violation(6, index=0, block=1)) == [
        "3 release (window) ×××× ···· ····",
        "5 load, job 8, for B: blocks 2, 3 ∅∅∅∅ ···· ····",
        "6 load, job 9, for B: block 1 ∅∅∅∅ ···· ····",
    ]


def test_a_load_beside_the_columns_is_not_shown() -> None:
    count = 60
    events = [config(), allocate(*range(1, count + 1)), load(1, 50), load(2, 3)]
    shown = rows(events, violation(4, index=0, block=1), width=80)
    assert [row.split(":")[0] for row in shown] == ["4 load, job 2, for B"]


def test_many_blocks_of_a_load_are_counted() -> None:
    events = [config(), allocate(*range(1, 8)), load(1, *range(1, 8))]
    assert "blocks 1, 2, 3, 4 and 3 more" in rows(events, violation(3, index=0))[0]


# ---- what is absent --------------------------------------------------------------------------------------------------


def test_a_needed_entry_that_is_absent_is_null() -> None:
    """Null entries at the head of a hit are in no event, and a step may reach past its table."""
    events = [config(), touch(5, first=1), schedule(1, 6, 4)]
    assert rows(events, violation(3, step=1, index=2, needed=(8, 9))) == ["3 step 1: schedule [6, 10) ∅∅∅∅ rrww ∅∅", "3 step 1 needs !!"]


def test_a_violation_without_a_request_has_no_table() -> None:
    assert lines([config(), allocate(1)], violation(2, request=None, group=None)) == ["no picture: the violation is not about one request"]


def test_a_request_that_was_never_seen_has_no_table() -> None:
    assert lines([config(), allocate(1, request="B")], violation(2)) == ["no picture: nothing is known of request A before line 2"]


def test_a_violation_without_a_group_has_no_blocks() -> None:
    events = [config(WINDOW, WINDOW), allocate(1), schedule(1, 0, 4, counters=(4, 4, 0))]
    assert [line.split() for line in lines(events, violation(3, group=None))] == [
        ["line", "event", "C", "F", "stale"],
        ["3", "step", "1:", "schedule", "[0,", "4)", "4", "4", "0"],
    ]


def test_the_only_group_is_shown_for_a_violation_without_one() -> None:
    events = [config(), allocate(1), schedule(1, 0, 4, counters=(4, 4, 0))]
    assert rows(events, violation(3, group=None)) == ["3 step 1: schedule [0, 4) 4 4 0 wwww"]


def test_the_mask_of_a_kind_that_depends_on_the_prompt() -> None:
    events = [config(RSWASpec(block_size=4, window=2)), ev.Add(request="A", prompt_tokens=3), allocate(1, 2, 3), schedule(1, 9, 2)]
    assert rows(events, violation(5))[-1] == "4 step 1: schedule [9, 11) rrr· ···· rww·"
    del events[1]
    assert lines(events, violation(4)) == ["no picture: the prompt of request A, on which rswa depends, is not known"]


def test_the_state_of_a_state_kind() -> None:
    """A step reads the state after token 7 and writes that after token 9; a slot that keeps another block's state is needed whole."""
    events = [config(MambaSpec(block_size=4, mode="align")), allocate(1, 2, 3), schedule(1, 8, 2)]
    assert rows(events, violation(4))[-1] == "3 step 1: schedule [8, 10) ···· ···r ·w··"
    assert rows(events, violation(4, index=1, needed=(7, 7)))[-1] == "4 the next step needs !"
    assert rows(events, violation(4, index=2, needed=(7, 7)))[-1] == "4 the next step needs !!!!"


def test_a_kind_that_is_not_modelled() -> None:
    events = [config(CrossAttentionSpec(block_size=4)), allocate(1), process(1)]
    assert lines(events, violation(3)) == ["no picture: kind cross is not modelled"]


# ---- what fits -------------------------------------------------------------------------------------------------------


def _long(block_size: int, blocks: int) -> list[ev.Event]:
    """A trace with big numbers everywhere; its last event is the schedule of a step with drafts."""
    end = blocks * block_size
    return [
        config(SlidingWindowSpec(block_size=block_size, window=2 * block_size)),
        allocate(*range(1, blocks + 1)),
        schedule(1_000_000, end - 8, 5, counters=(end - 3, 5, 0)),
        process(1_000_000, rejected=3),
        schedule(1_000_001, end - 6, 6, drafts=3, counters=(end, 6, 0)),
    ]


@pytest.mark.parametrize("width", [80, 100, 160, 200])
@pytest.mark.parametrize("block_size", [4, 16, 32, 1000])
@pytest.mark.parametrize("blocks", [3, 9000])
def test_nothing_is_cut(width: int, block_size: int, blocks: int) -> None:
    first, end = (blocks - 1) * block_size, blocks * block_size
    numbered = [(1 if line == 1 else line + 1_000_000, event) for line, event in enumerate(_long(block_size, blocks), start=1)]
    found = violation(1_000_005, step=1_000_001, index=blocks - 1, block=blocks, needed=(end - 1, end - 1))
    out = io.StringIO()
    Console(file=out, width=width, soft_wrap=True).print(draw(numbered, found, width=width))
    *table, _legend = out.getvalue().splitlines()
    text = "\n".join(table)
    assert all(len(line) <= width for line in table)
    assert "…" not in text
    assert all(whole in text for whole in (f"[{blocks - 1}]", f"{first}..{end - 1}", "1000005", str(end), "stale"))
    assert {"step", "1000000:", "schedule", f"[{end - 8},", "process,", "rejected", "needs"} <= set(text.split())
    signs = re.findall(r"(?<!\S)[·wrd]+(?!\S)", text)
    assert {len(run) for run in signs} == {len(UNICODE.squeezed(" " * block_size))}


def test_wider_terminals_show_more_columns() -> None:
    events = _long(16, 90)
    found = violation(5, index=80)
    heads = {width: [int(index) for index in re.findall(r"\[(\d+)\]", lines(events, found, width=width)[0])] for width in (80, 120, 200)}
    assert [len(heads[width]) for width in (80, 120, 200)] == sorted({len(heads[width]) for width in (80, 120, 200)})
    assert all(80 in shown for shown in heads.values())


def test_a_narrow_terminal_gets_a_line() -> None:
    assert lines(_long(16, 90), violation(5, index=80), width=40) == ["no picture: it does not fit into 40 columns"]


def test_only_the_last_rows_before_the_violation_are_shown() -> None:
    events = [config(), allocate(1), *(process(step) for step in range(1, 30))]
    assert [row.split()[0] for row in rows(events, violation(20), rows_max=3)] == ["18", "19", "20", *map(str, range(21, 32))]


def test_a_long_trace_is_not_kept() -> None:
    """Read once, a row at a time: an event is let go before the third one after it comes."""
    alive: list[int] = []

    class Witness(ev.Process):
        __slots__ = ()

        def __del__(self) -> None:
            alive[0] -= 1

    def endless() -> Iterator[tuple[int, ev.Event]]:
        yield 1, config()
        yield 2, allocate(1)
        for line in range(3, 500):
            alive[0] += 1
            yield line, Witness(step=line, requests=(ev.ProcessedRequest(request="A", sampled=1, rejected=0),))
            assert alive[0] <= 2

    alive.append(0)
    story = Story(violation(600), arrow="→", rows_max=12).read(endless())
    assert len(story.rows()) == 12


# ---- signs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "signs"),
    [("utf-8", UNICODE), ("utf-16", UNICODE), ("ascii", ASCII), ("latin-1", ASCII), ("cp1252", ASCII), ("none", ASCII)],
)
def test_signs_follow_the_encoding(encoding: str, signs: Signs) -> None:
    assert signs_for(encoding) is signs


@pytest.mark.parametrize("signs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_a_large_block_shows_the_most_telling_of_its_signs(signs: Signs) -> None:
    block = signs.held * 30 + "w" + "r" + signs.null + signs.held * 31
    assert signs.squeezed(block) == signs.held * 7 + "r" + signs.null + signs.held * 7
    assert signs.squeezed(" " * 5) == " " * 5
