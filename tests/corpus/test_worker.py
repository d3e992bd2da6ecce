"""The worker's rows: as the scheduler tells, or one of the ways to get them wrong."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from settled.model.events import Add, Config, Event, Preempt, Process, ProcessedRequest, Schedule, ScheduledRequest
from settled.model.specs import FullAttentionSpec, MambaSpec
from settled.proofs.corpus.rows import Choice, DummyRun, Rows, StateColumn
from settled.proofs.corpus.worker import as_the_worker_saw_it


def scheduled(step: int, new_blocks: tuple[int, ...], *, resumed: bool = False) -> Schedule:
    entry = ScheduledRequest(request="A", start=0, tokens=1, drafts=0, new_blocks=(new_blocks,), resumed=resumed)
    return Schedule(step=step, requests=(entry,))


def processed(step: int) -> Process:
    return Process(step=step, requests=(ProcessedRequest(request="A", sampled=0, rejected=0),))


TOLD: list[Event] = [
    Add(request="A", prompt_tokens=9),
    scheduled(0, (1, 2)),
    scheduled(1, (3,)),
    Preempt(request="A"),
    processed(0),
    processed(1),
    scheduled(2, (4, 5), resumed=True),
    scheduled(3, ()),
    scheduled(4, (6,)),
]


def rows_told(events: list[Event]) -> list[tuple[tuple[int, ...], bool]]:
    return [(event.requests[0].new_blocks[0], event.requests[0].resumed) for event in events if isinstance(event, Schedule)]


def test_a_right_worker_changes_nothing() -> None:
    assert as_the_worker_saw_it(TOLD, Choice(rows=Rows.TOLD)) == TOLD


def test_a_resumed_request_may_be_appended_to_its_old_row() -> None:
    expected = [((1, 2), False), ((3,), False), ((4, 5), False), ((), False), ((6,), False)]
    assert rows_told(as_the_worker_saw_it(TOLD, Choice(rows=Rows.APPENDED))) == expected


def test_what_a_preempted_request_grew_by_may_be_handed_out_once_more() -> None:
    expected = [((1, 2), False), ((3,), False), ((4, 5), True), ((3,), False), ((6,), False)]
    assert rows_told(as_the_worker_saw_it(TOLD, Choice(rows=Rows.STASHED))) == expected


def test_a_dummy_run_goes_over_the_row_that_was_left() -> None:
    run = DummyRun(row_of="A", start=3, tokens=2, after_step=1)
    seen = as_the_worker_saw_it(TOLD, Choice(rows=Rows.KEPT), [run])
    (position,) = [index for index, (before, _) in enumerate(pairwise(seen)) if before == processed(1)]
    added, step, output, over = seen[position + 1 : position + 5]
    assert isinstance(step, Schedule)
    assert isinstance(output, Process)
    (entry,) = step.requests
    assert (entry.new_blocks, entry.start, entry.tokens) == (((1, 2, 3),), 3, 2)
    assert added == Add(request=entry.request, prompt_tokens=5)
    assert over.name == "finish"
    assert [event for event in seen if event in TOLD] == TOLD


def test_a_dummy_run_of_a_right_worker_is_an_empty_step() -> None:
    run = DummyRun(row_of="A", start=3, tokens=2, after_step=1)
    seen = as_the_worker_saw_it(TOLD, Choice(rows=Rows.TOLD), [run])
    assert [event for event in seen if event not in TOLD] == [
        Schedule(step=1_000_000, requests=()),
        Process(step=1_000_000, requests=()),
    ]


def test_a_dummy_run_needs_its_place() -> None:
    with pytest.raises(ValueError, match="the trace does not come to where it belongs"):
        as_the_worker_saw_it(TOLD, Choice(rows=Rows.KEPT), [DummyRun(row_of="A", start=0, tokens=1, after_step=9)])


def test_a_state_may_be_looked_for_one_column_too_far() -> None:
    """Only in groups of aligned states, and only where a step starts at a block boundary."""
    groups = (FullAttentionSpec(block_size=4), MambaSpec(block_size=4, mode="align"))
    config = Config(
        schema=1,
        engine="e",
        num_blocks=9,
        max_in_flight_steps=1,
        max_batched_tokens=8,
        num_draft_tokens=0,
        prefix_caching=False,
        kv_consumer=False,
        groups=groups,
    )

    def reads(start: int, choice: Choice) -> tuple[tuple[int, ...], ...] | None:
        entry = replace(scheduled(0, ()).requests[0], start=start, new_blocks=((), ()), reads=((), ((start - 1) // 4,) if start else ()))
        step = as_the_worker_saw_it([config, Schedule(step=0, requests=(entry,))], choice)[1]
        assert isinstance(step, Schedule)
        return step.requests[0].reads

    wrong = Choice(state_column=StateColumn.NEXT)
    assert [reads(start, Choice()) for start in (0, 4, 5, 8)] == [((), ()), ((), (0,)), ((), (1,)), ((), (1,))]
    assert [reads(start, wrong) for start in (0, 4, 5, 8)] == [((), ()), ((), (1,)), ((), (1,)), ((), (2,))]
