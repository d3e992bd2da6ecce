"""Traces of real vLLM releases: every verdict of the index, per property and contract. Source: shared/traces/README.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from settled.model.events import Config
from settled.model.monitor import Monitor, Report, Verdict
from settled.model.properties import Contract, Property
from settled.model.trace_io import read_trace

TRACES = Path(__file__).parent.parent / "data" / "traces"
INDEX: list[dict[str, Any]] = json.loads((TRACES / "index.json").read_text())


def _judge(file: str, contract: Contract) -> Report:
    with (TRACES / file).open("rb") as lines:
        events = read_trace(lines, file)
        line, config = next(events)
        assert isinstance(config, Config)
        monitor = Monitor(config, contract, source=file)
        monitor.feed(line, config)
        for line, event in events:
            monitor.feed(line, event)
    return monitor.finish()


@pytest.mark.parametrize("contract", [Contract.SETTLED, Contract.STREAM_ORDER])
@pytest.mark.parametrize("recorded", INDEX, ids=lambda recorded: recorded["file"])
def test_every_verdict_agrees(recorded: dict[str, Any], contract: Contract) -> None:
    report = _judge(recorded["file"], contract)
    assert report.events == recorded["events"] + 1
    expected = {Property(name): bool(found) for name, found in recorded["verdict"][contract].items()}
    assert {name: report.result(name).verdict is Verdict.VIOLATED for name in expected} == expected
    assert report.result(Property.HELD_BOUNDED).verdict is Verdict.NOT_CHECKED
    assert report.complete
    assert report.unknown == ()


def test_the_index_speaks_of_every_trace_and_no_other() -> None:
    assert sorted(recorded["file"] for recorded in INDEX) == sorted(path.name for path in TRACES.glob("*.ndjson"))


# The index's checker counts each loss of a block by an unprocessed step once, as this one does. Only where drafts are in flight do
# the counts differ: it judges by the lowest possible start, the monitor by the true one.
@pytest.mark.parametrize(
    "recorded", [recorded for recorded in INDEX if not recorded["config"]["nspec"]], ids=lambda recorded: recorded["file"]
)
def test_without_drafts_the_counts_agree_too(recorded: dict[str, Any]) -> None:
    report = _judge(recorded["file"], Contract.SETTLED)
    for name, found in recorded["verdict"]["settled"].items():
        assert report.result(Property(name)).causes == found


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
