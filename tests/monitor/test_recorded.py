"""Traces of real vLLM releases: every verdict of the index, per property and contract. Source: shared/traces/README.md."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from settled.model import events as ev
from settled.model.monitor import Monitor, Report, Verdict
from settled.model.properties import Contract, Property
from settled.model.trace_io import read_trace

TRACES = Path(__file__).parent.parent / "data" / "traces"
INDEX: list[dict[str, Any]] = json.loads((TRACES / "index.json").read_text(encoding="utf-8"))
JUDGED = [Contract.SETTLED, Contract.STREAM_ORDER]  # the contracts of the index


@dataclass(frozen=True)
class Deviation:
    """A recorded finding that is not found here, and with it the verdict: where it would stand, and why it does not."""

    file: str
    contract: Contract
    property: Property
    line: int
    step: int
    request: str
    group: int
    index: int
    reason: str


DEVIATIONS = [
    Deviation(
        file="v0.25.1-fullchunk.ndjson",
        contract=Contract.STREAM_ORDER,
        property=Property.WRITE_OWNED,
        line=48,
        step=8,
        request="r1",
        group=1,
        index=7,
        reason="r1 released indices 4 to 7 (tokens 64 to 127) at line 47. Step 8 is scheduled at 129 behind step 7 with 3 drafts: had all "
        "been rejected it would start at 126 and write 126 and 127. Line 49 says that none was: its true start is 129, in the next chunk.",
    )
]


@dataclass(frozen=True)
class OtherCount:
    """The verdict agrees and the number of findings does not: by how much more (or fewer) are found here, and why."""

    files: tuple[str, ...]
    property: Property
    contracts: tuple[Contract, ...]
    more: dict[str, int]
    reason: str


def _releases(name: str, *releases: str) -> tuple[str, ...]:
    return tuple(f"v{release}-{name}.ndjson" for release in releases)


BOTH = (Contract.SETTLED, Contract.STREAM_ORDER)
SETTLED = (Contract.SETTLED,)
TRUE_START = "the recorded checker takes the lowest start that a step may have, this one the true start, which lies above"
AT_THE_OUTPUT = "a rollback is judged at the output as well, not only at the step that is scheduled next"
COUNTS = [
    OtherCount(
        _releases("fullswa-spec5", "0.24.0", "0.25.1"),
        Property.READ_RESIDENT,
        SETTLED,
        {"freed[finish]": -3, "reallocated[window]": -1},
        TRUE_START,
    ),
    OtherCount(
        _releases("fullswa-spec5", "0.26.0", "0.29.0", "0.33.0"), Property.READ_RESIDENT, SETTLED, {"freed[finish]": -2}, TRUE_START
    ),
    OtherCount(
        _releases("fullswa-spec5", "0.24.0", "0.25.1"),
        Property.ROLLBACK_RESIDENT,
        BOTH,
        {"released_before_schedule": 1},
        "a step that reads two blocks which a rollback made needed again has lost two",
    ),
    OtherCount(
        _releases("fullchunk-bs4", "0.25.1"),
        Property.WRITE_OWNED,
        BOTH,
        {"not_owned_at_schedule": -6, "released_before_schedule": 3},
        TRUE_START + "; what is left are line 24 (r0, index 3), line 71 (r1, index 31) and line 135 (r3, index 23), by another name",
    ),
    OtherCount(_releases("fullchunk", "0.25.1"), Property.WRITE_OWNED, BOTH, {"not_owned_at_schedule": -1}, "the deviation above"),
    OtherCount(
        _releases("depth3-preempt", "0.33.0"),
        Property.READ_RESIDENT,
        SETTLED,
        {"freed[preempt]": -2, "reallocated[preempt]": -2},
        TRUE_START,
    ),
    OtherCount(_releases("depth3-preempt", "0.33.0"), Property.WRITE_OWNED, SETTLED, {"reallocated[preempt]": -2}, TRUE_START),
    OtherCount(
        _releases("swa-b", "0.24.0"),
        Property.ROLLBACK_RESIDENT,
        BOTH,
        {"released_before_rollback": 2},
        AT_THE_OUTPUT + ": line 41 (r1, index 21), line 98 (r3, index 15)",
    ),
    OtherCount(
        _releases("swa-decode", "0.25.1"),
        Property.ROLLBACK_RESIDENT,
        BOTH,
        {"released_before_rollback": 1},
        AT_THE_OUTPUT + ": line 66 (r1, index 6)",
    ),
    OtherCount(
        _releases("mamba-align-spec", "0.25.1", "0.26.0", "0.29.0", "0.33.0"),
        Property.READ_RESIDENT,
        SETTLED,
        {"freed[finish]": 1, "reallocated[finish]": 1},
        "the recorded checker has a step read the block of the token before its start; step 13 of r2 reads two, the "
        "running index 8 of step 12 and the state after its third draft at index 11, freed at line 86 and given to r3 at line 87",
    ),
]


def _judge(file: str, contract: Contract) -> Report:
    with (TRACES / file).open("rb") as lines:
        events = read_trace(lines, file)
        line, config = next(events)
        assert isinstance(config, ev.Config)
        monitor = Monitor(config, contract, source=file)
        monitor.feed(line, config)
        for line, event in events:
            monitor.feed(line, event)
    return monitor.finish()


@pytest.mark.parametrize("contract", JUDGED)
@pytest.mark.parametrize("recorded", INDEX, ids=lambda recorded: recorded["file"])
def test_every_verdict_agrees(recorded: dict[str, Any], contract: Contract) -> None:
    report = _judge(recorded["file"], contract)
    assert report.events == recorded["events"] + 1
    expected = {Property(name): bool(found) for name, found in recorded["verdict"][contract].items()}
    for deviation in DEVIATIONS:
        if (deviation.file, deviation.contract) == (recorded["file"], contract):
            assert expected[deviation.property]
            expected[deviation.property] = False
    assert {name: report.result(name).verdict is Verdict.VIOLATED for name in expected} == expected
    assert report.result(Property.HELD_BOUNDED).verdict is Verdict.NOT_CHECKED
    assert report.complete
    assert report.unknown == ()


def test_the_index_speaks_of_every_trace_and_no_other() -> None:
    assert sorted(recorded["file"] for recorded in INDEX) == sorted(path.name for path in TRACES.glob("*.ndjson"))


# ---- where this monitor comes to another verdict, or to another number ------------------------------------------------


def test_the_verdicts_that_agree() -> None:
    verdicts = [(recorded["file"], contract, name) for recorded in INDEX for contract in JUDGED for name in recorded["verdict"][contract]]
    assert (len(INDEX), len(verdicts), len(verdicts) - len(DEVIATIONS)) == (91, 910, 909)


@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda deviation: deviation.file)
def test_a_deviation_hangs_on_the_true_start_alone(deviation: Deviation) -> None:
    """Had the step before rejected its drafts, the finding would be there, at that line and index."""
    with (TRACES / deviation.file).open("rb") as lines:
        events = list(read_trace(lines, deviation.file))
    config = events[0][1]
    assert isinstance(config, ev.Config)
    monitor = Monitor(config, deviation.contract)
    for line, event in events:
        if isinstance(event, ev.Process) and event.step == deviation.step - 1:
            outputs = [replace(part, rejected=3) if part.request == deviation.request else part for part in event.requests]
            event = replace(event, requests=tuple(outputs))
        monitor.feed(line, event)
    found = monitor.finish().result(deviation.property).violations
    where = [(each.line, each.step, each.request, each.group, each.index) for each in found]
    assert (deviation.line, deviation.step, deviation.request, deviation.group, deviation.index) in where


def _plain(causes: dict[str, int]) -> dict[str, int]:
    """Counts by cause; the recorded checker does not say who released what was gone when a step was scheduled."""
    plain: dict[str, int] = {}
    for cause, count in causes.items():
        name = cause.split("[")[0]
        key = cause if name in ("freed", "reallocated", "loaded_over") else name
        plain[key] = plain.get(key, 0) + count
    return plain


@pytest.mark.parametrize("contract", JUDGED)
@pytest.mark.parametrize("recorded", INDEX, ids=lambda recorded: recorded["file"])
def test_the_counts_agree_too_but_for_those_that_are_listed(recorded: dict[str, Any], contract: Contract) -> None:
    report = _judge(recorded["file"], contract)
    for name, found in recorded["verdict"][contract].items():
        expected, here = _plain(found), _plain(report.result(Property(name)).causes)
        more = {cause: here.get(cause, 0) - expected.get(cause, 0) for cause in {*here, *expected}}
        listed = [
            other.more
            for other in COUNTS
            if recorded["file"] in other.files and (other.property, contract in other.contracts) == (Property(name), True)
        ]
        assert {cause: count for cause, count in more.items() if count} == (listed[0] if listed else {})


# From 0.26.0 on, vLLM frees at finish, preempt and abort at once, safe by stream order; what is left under `settled` has such causes.
@pytest.mark.parametrize(
    "file",
    [
        recorded["file"]
        for recorded in INDEX
        if recorded["engine"].split()[1] not in ("0.24.0", "0.25.1") and "optimistic" not in recorded["file"]
    ],
)
def test_fixed_releases_lose_blocks_at_whole_request_frees_only(file: str) -> None:
    causes = {cause for result in _judge(file, Contract.SETTLED).properties for cause in result.causes}
    assert all(cause.endswith(("[finish]", "[preempt]", "[abort]")) for cause in causes)


def test_the_event_contract_is_not_claimed_without_recorded_order() -> None:
    report = _judge("v0.24.0-connector-overwrite.ndjson", Contract.EVENT)
    assert report.result(Property.READ_RESIDENT).verdict is Verdict.NOT_CHECKED
    assert "no `order` in records" in report.result(Property.READ_RESIDENT).remarks[0]
