"""Theorem 8 on numbers: maxima and published caps against a table counted block by block, and the traces of those exceeded."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from math import gcd
from pathlib import Path

import pytest
from click.testing import CliRunner

from settled.model.caps import admission_cap, exact_maximum
from settled.model.events import Allocate, Config, Event, Release, Schedule
from settled.model.kinds import ChunkedLocal, FullAttention, SlidingWindow
from settled.model.properties import Property
from settled.proofs.cap_table import SHOWN, TABLE, CapRow, Numbers, trace
from settled.proofs.cli.main import cli
from settled.proofs.refutations import judge
from settled.reference.replay import replay

EXCEEDED = [row for row in TABLE if not row.sound]


def oldest_read(row: CapRow, length: int, settled: int) -> int:
    """The lowest position that the query at `settled` reads, by listing what it reads."""
    if row.name == "sliding window":
        return min(range(max(0, settled - length + 1), settled + 1))
    return max(start for start in range(0, settled + 1, length))


def held(row: CapRow, size: int, length: int, settled: int, slots: int) -> int:
    """Blocks with a slot, less those all of whose tokens lie before what is read."""
    oldest = oldest_read(row, length, settled)
    return len({token // size for token in range(slots)} - {block for block in range(slots) if (block + 1) * size <= oldest})


def most(row: CapRow, size: int, length: int, in_flight: int, lookahead: int, model_len: int) -> int:
    """The most that is held, over every settled count and every number of tokens in flight."""
    return max(
        held(row, size, length, p, min(p + f + lookahead, model_len))
        for p in range(model_len)
        for f in range(1, min(in_flight, model_len - p) + 1)
    )


def cases(name: str) -> list[tuple[CapRow, int, int, int]]:
    """Lines of a kind with small sizes to which they apply: row, B, W or X, k."""
    return [
        (row, b, x, k)
        for row in TABLE
        if row.name == name
        for b, x, k in product(range(1, 6), range(1, 7), range(4))
        if row.applies(b, x, k)
    ]


@pytest.mark.parametrize("name", ["sliding window", "chunked local"])
def test_the_exact_maximum_is_what_a_counted_table_reaches(name: str) -> None:
    for row, b, x, k in cases(name):
        for in_flight in (1, 2, 5):
            exact = exact_maximum(row.make_kind(x), b, in_flight, k, gcd(b, x)).args[0]
            assert exact == most(row, b, x, in_flight, k, 2 * b * x + in_flight + k + 2), (name, b, x, k, in_flight)


def test_the_window_reaches_the_smaller_of_both_bounds_when_clamped() -> None:
    for row, b, x, k in cases("sliding window"):
        for in_flight, length in product((1, 3), range(1, 12)):
            exact = exact_maximum(row.make_kind(x), b, in_flight, k, gcd(b, x)).args[0]
            assert min(exact, -(-length // b)) == most(row, b, x, in_flight, k, length)


def test_a_clamped_chunk_reaches_less() -> None:
    """B = 2, X = 3, M = 2, L = 5: 2 blocks, though both bounds are 3."""
    row = TABLE[-1]
    assert exact_maximum(ChunkedLocal(3), 2, 2, 0, 1).args == (3,)
    assert most(row, 2, 3, 2, 0, 5) == 2
    assert all(
        most(row, b, x, m, 0, length) <= min(exact_maximum(ChunkedLocal(x), b, m, 0, gcd(b, x)).args[0], -(-length // b))
        for b, x, m, length in product(range(1, 5), range(1, 6), (1, 2, 4), range(1, 10))
    )


@pytest.mark.parametrize("name", ["sliding window", "chunked local"])
def test_a_published_cap_is_enough_exactly_where_the_table_says(name: str) -> None:
    """Over every M and L up to some bound; each case falls under exactly one line."""
    for row, b, x, k in cases(name):
        assert [other for other in TABLE if other.name == name and other.applies(b, x, k)] == [row]
        lengths = (1, b, 2 * b + x, 2 * b * x + 9 + k)
        exceeded = any(
            most(row, b, x, m, k, length) > admission_cap(row.make_kind(x), b, m, length).args[0]
            for m in range(1, b + 4)
            for length in lengths
        )
        assert exceeded is not row.sound, (name, b, x, k)


SMALLEST = {
    ("sliding window", "k >= 2"): Numbers(1, 1, 2, 0, 1, held=3, cap=2),
    ("chunked local", "B divides X, k >= 2"): Numbers(1, 1, 2, 0, 1, held=3, cap=2),
    ("chunked local", "B = 2, X odd, k >= 1"): Numbers(2, 1, 1, 1, 1, held=2, cap=1),
    ("chunked local", "otherwise"): Numbers(3, 1, 0, 2, 2, held=2, cap=1),
}


@pytest.mark.parametrize("row", EXCEEDED, ids=lambda row: f"{row.name}, {row.condition}")
def test_the_smallest_numbers(row: CapRow) -> None:
    found = row.smallest
    assert found == SMALLEST[row.name, row.condition]
    tokens = found.settled + found.in_flight
    fewer = [
        (p, f, b, x, k)
        for k, p, f, b, x in product(range(found.lookahead + 1), range(tokens), range(1, tokens + 1), range(1, 7), range(1, 7))
        if row.applies(b, x, k)
        and (k, p + f) < (found.lookahead, tokens)
        and held(row, b, x, p, p + f + k) > admission_cap(row.make_kind(x), b, f, p + f + k + x).args[0]
    ]
    assert fewer == []


def test_a_cap_that_is_enough_has_no_numbers() -> None:
    assert {row.smallest for row in TABLE if row.sound} == {None}
    assert SHOWN == Numbers(16, 24, 0, 41, 8, held=3, cap=2)


# ---- the traces ------------------------------------------------------------------------------------------------------


def most_in_table(events: list[Event]) -> int:
    """The most blocks that the request's table holds, by the block events alone."""
    now: set[int] = set()
    peak = 0
    for event in events:
        if isinstance(event, Allocate):
            now |= set(event.blocks)
        elif isinstance(event, Release):
            now -= set(event.blocks)
        peak = max(peak, len(now))
    return peak


def config_of(events: list[Event]) -> Config:
    assert isinstance(events[0], Config)
    return events[0]


@pytest.mark.parametrize(
    ("row", "numbers"),
    [*((row, row.smallest) for row in EXCEEDED), (TABLE[-1], SHOWN)],
    ids=lambda value: str(value)[:60].replace("\n", ""),
)
def test_a_trace_holds_more_than_its_recorded_cap(row: CapRow, numbers: Numbers) -> None:
    events = trace(row, numbers)
    (spec,) = config_of(events).groups
    assert spec.cap == numbers.cap
    assert most_in_table(events) == numbers.held > numbers.cap
    steps = [event for event in events if isinstance(event, Schedule)]
    assert len(steps) == 1 + -(-numbers.settled // numbers.in_flight)
    assert all(entry.tokens <= numbers.in_flight for step in steps for entry in step.requests)


@pytest.mark.parametrize(
    ("row", "numbers"),
    [*((row, row.smallest) for row in EXCEEDED), (TABLE[-1], SHOWN)],
    ids=lambda value: str(value)[:60].replace("\n", ""),
)
def test_the_monitor_and_the_reference_find_it_held_above_its_cap(row: CapRow, numbers: Numbers) -> None:
    """The reference plays the same steps; its own cap counts what vLLM's leaves out, so it is judged by the published one."""
    events = trace(row, numbers)
    report = judge(events)
    assert report.result(Property.HELD_BOUNDED).count == sum(result.count for result in report.properties) == 1
    played = replay(events)
    assert most_in_table(played) == numbers.held
    config = config_of(played)
    published = replace(config, groups=tuple(replace(spec, cap=numbers.cap) for spec in config.groups))
    assert judge([published, *played[1:]]).result(Property.HELD_BOUNDED).count == 1
    assert judge(played).result(Property.HELD_BOUNDED).count == 0


# ---- the command line ------------------------------------------------------------------------------------------------


def test_the_table_is_printed_and_its_traces_exported(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["prove", "T8", "--export", str(tmp_path)])
    assert result.exit_code == 0
    assert "otherwise             too small             B = 3, X = 1, k = 0, p = 2, M = 2: 2 held, cap 1" in result.stdout
    assert "B = 16, X = 24, k = 0, p = 41, M = 8: 3 held, cap 2" in result.stdout
    written = sorted((tmp_path / "T8" / "traces").glob("*.ndjson"))
    assert len(written) == len(EXCEEDED)
    judged = CliRunner().invoke(cli, ["check", str(written[-1])])
    assert "above_cap" in judged.stdout


def test_the_table_is_data_for_machines() -> None:
    told = json.loads(CliRunner().invoke(cli, ["prove", "T8", "--json"]).stdout)
    assert [line["sound"] for line in told["caps"]] == [row.sound for row in TABLE]
    assert told["caps"][-1]["smallest"] == {"B": 3, "X": 1, "k": 0, "p": 2, "M": 2, "held": 2, "cap": 1}
    assert "caps" not in json.loads(CliRunner().invoke(cli, ["prove", "T1", "--json"]).stdout)


def test_full_attention_holds_every_block() -> None:
    assert admission_cap(FullAttention(), 4, 1, 10).args == (3,)
    with pytest.raises(NotImplementedError, match="no exact maximum is known for full"):
        exact_maximum(FullAttention(), 4, 1, 0, 1)
    assert exact_maximum(SlidingWindow(5, 2), 4, 3, 0, 4).args == (3,)
