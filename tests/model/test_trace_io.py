"""Traces are read back as they were written, and a line that is not schema v1 is named by its number and its key."""

from __future__ import annotations

import gzip
import io
import json
import time
from dataclasses import MISSING, Field, fields
from typing import Any

import pytest

from settled.model import events as ev
from settled.model.specs import (
    SPEC_BY_KIND,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    CustomSpec,
    FullAttentionSpec,
    MambaSpec,
    RSWASpec,
    SinkWindowSpec,
    SlidingWindowSpec,
)
from settled.model.trace_io import TraceError, _decode_any, _decode_plain, decode_line, encode_event, read_trace, write_trace

SPECS = (
    FullAttentionSpec(block_size=16, cap=1024),
    SlidingWindowSpec(block_size=16, window=128, extra_retained=3, cap=9),
    ChunkedLocalAttentionSpec(block_size=16, chunk=64),
    MambaSpec(block_size=400, mode="align", num_speculative_blocks=2),
    SinkWindowSpec(block_size=16, sink=4, window=32),
    RSWASpec(block_size=16, window=32),
    CrossAttentionSpec(block_size=16),
    CustomSpec(block_size=16, name="mine"),
)
CONFIG = ev.Config(
    schema=1,
    engine="hand-made",
    num_blocks=32,
    max_in_flight_steps=2,
    max_batched_tokens=64,
    num_draft_tokens=1,
    prefix_caching=True,
    kv_consumer=True,
    groups=SPECS,
    num_lookahead_tokens=1,
    max_model_len=256,
    records=("counters", "content"),
)
AFTER = (ev.After(step=1), ev.After(job="j"))
ENTRY = ev.CacheEntry(block=3, group=0, hash="abc", request="A", start=0, end=16)
TRANSFER: dict[str, Any] = {"job": "j", "request": "A", "blocks": ((1, 2), ()), "handles": 2, "step": 4, "after": AFTER}
DONE: dict[str, Any] = {"job": 7, "ok": False, "handle": "h", "failed": ((2,), ()), "cancelled": True}

# Every event with every optional key set to something else than its default.
FULL: dict[type[ev.Event], ev.Event] = {
    ev.Config: CONFIG,
    ev.State: ev.State(
        requests=(ev.RequestState(request="A", prompt_tokens=10, computed=8, in_flight=2, stale=0),),
        unprocessed=(
            ev.UnprocessedStep(
                step=7, requests=(ev.UnprocessedRequest(request="A", start=6, tokens=2, drafts=1, rows=((1, 0), (2,)), live=True),)
            ),
        ),
        tables={"A": ((1, 0), (2,))},
        holders=(ev.Hold(holder="x", kind="pin", blocks=(1,)),),
        cached=(ENTRY, ev.CacheEntry(block=4)),
        jobs=(ev.PendingJob(job=1, request="A", blocks=((1,), ()), kind="store", handles=2),),
    ),
    ev.Gap: ev.Gap(events=12),
    ev.End: ev.End(idle=True),
    ev.Add: ev.Add(request="A", prompt_tokens=10, max_tokens=5),
    ev.Computed: ev.Computed(request="A", computed=16, cause="external", stale=True, local=4, external=12),
    ev.Preempt: ev.Preempt(request="A", output="deliver"),
    ev.Finish: ev.Finish(request="A", reason="length"),
    ev.Schedule: ev.Schedule(
        step=1,
        requests=(
            ev.ScheduledRequest(
                request="A",
                start=0,
                tokens=4,
                drafts=3,
                new_blocks=((1, 2), ()),
                resumed=True,
                counters=(4, 4, 0),
                reads=((0,), ()),
                writes=((0, 1), ()),
            ),
        ),
        after=AFTER,
    ),
    ev.Process: ev.Process(step=1, requests=(ev.ProcessedRequest(request="A", sampled=1, rejected=3, counters=(1, 0, 0)),)),
    ev.Allocate: ev.Allocate(request="A", group=1, first_index=2, blocks=(5, 6), after=AFTER),
    ev.Touch: ev.Touch(request="A", group=0, first_index=0, blocks=(5,)),
    ev.Release: ev.Release(request="A", group=0, indices=(0, 1), blocks=(5, 6), cause="connector_finish", freed=(6,)),
    ev.Hold: ev.Hold(holder="x", kind="copy", blocks=(1, 2)),
    ev.Drop: ev.Drop(holder="x", blocks=(1, 2), freed=(2,)),
    ev.Move: ev.Move(request="A", group=0, from_index=3, to_index=1, block=9),
    ev.Copy: ev.Copy(step=1, group=0, source=2, target=3, after=AFTER),
    ev.Zero: ev.Zero(step=1, blocks=(2, 3), after=AFTER),
    ev.Cache: ev.Cache(entries=(ENTRY,)),
    ev.Evict: ev.Evict(entries=(ENTRY, ev.CacheEntry(block=4, hash=17))),
    ev.Load: ev.Load(**TRANSFER),
    ev.Store: ev.Store(**TRANSFER),
    ev.Loaded: ev.Loaded(**DONE),
    ev.Stored: ev.Stored(**DONE),
}
EVENTS = pytest.mark.parametrize("event", FULL.values(), ids=lambda event: event.name)


def optional(event: ev.Event) -> list[Field[Any]]:
    return [field for field in fields(event) if field.default is not MISSING]


def without_optional_keys(event: ev.Event) -> ev.Event:
    return type(event)(**{field.name: getattr(event, field.name) for field in fields(event) if field.default is MISSING})


# ---- round trips -----------------------------------------------------------------------------------------------------


def test_every_event_and_every_kind_is_among_the_samples() -> None:
    assert set(FULL) == set(ev.EVENT_BY_NAME.values())
    assert {type(spec) for spec in SPECS} == set(SPEC_BY_KIND.values())
    for event in FULL.values():
        assert all(getattr(event, field.name) != field.default for field in optional(event)), event.name


@EVENTS
def test_an_event_with_every_optional_key_comes_back(event: ev.Event) -> None:
    line = encode_event(event)
    assert "\n" not in line
    assert decode_line(line, "t", 1) == event
    assert set(json.loads(line)) == {"event"} | {field.name for field in fields(event)}


@EVENTS
def test_an_event_without_optional_keys_comes_back_and_writes_none(event: ev.Event) -> None:
    bare = without_optional_keys(event)
    line = encode_event(bare)
    assert decode_line(line, "t", 1) == bare
    assert set(json.loads(line)) == {"event"} | {field.name for field in fields(event) if field.default is MISSING}


@EVENTS
def test_each_optional_key_comes_back_alone(event: ev.Event) -> None:
    required = {field.name: getattr(event, field.name) for field in fields(event) if field.default is MISSING}
    for field in optional(event):
        alone = type(event)(**required, **{field.name: getattr(event, field.name)})
        assert decode_line(encode_event(alone), "t", 1) == alone


def test_a_written_trace_is_read_back_with_line_numbers() -> None:
    out = io.StringIO()
    events = list(FULL.values())
    write_trace(events, out)
    assert list(read_trace(io.StringIO(out.getvalue()))) == list(enumerate(events, start=1))
    assert list(read_trace(out.getvalue().encode().splitlines())) == list(enumerate(events, start=1))


# ---- what is ignored -------------------------------------------------------------------------------------------------


def test_extension_events_are_left_out_and_still_count_as_lines() -> None:
    lines = ['{"event": "x_host", "anything": [1, {}]}', encode_event(CONFIG), '{"event": "x_"}', encode_event(FULL[ev.End])]
    assert list(read_trace(lines)) == [(2, CONFIG), (4, FULL[ev.End])]


@EVENTS
def test_unknown_keys_are_ignored(event: ev.Event) -> None:
    """Also in nested values: every object of the line gets a key that nobody knows."""

    def widen(value: Any, *, key: bool = True) -> Any:
        if isinstance(value, list):
            return [widen(item) for item in value]
        if isinstance(value, dict):
            return {name: widen(item, key=name != "tables") for name, item in value.items()} | ({"x_later": 1} if key else {})
        return value

    assert decode_line(json.dumps(widen(json.loads(encode_event(event)))), "t", 1) == event


# ---- errors ----------------------------------------------------------------------------------------------------------


def config_with(**changes: Any) -> str:
    return json.dumps(json.loads(encode_event(CONFIG)) | changes)


def config_without(key: str) -> str:
    return json.dumps({name: value for name, value in json.loads(encode_event(CONFIG)).items() if name != key})


def window_group(**changes: Any) -> str:
    return config_with(groups=[{"kind": "sliding_window", "block_size": 16, "window": 8} | changes])


BAD: dict[str, tuple[str | bytes, str]] = {
    "truncated JSON": ('{"event": "add", "request": "A', "not a JSON object (truncated?)"),
    "an empty line": ("", "an empty line: expected a JSON object, one event a line"),
    "a line of spaces": (b"  \r\n", "an empty line: expected a JSON object, one event a line"),
    "gzip": (gzip.compress(b'{"event": "end", "idle": true}'), "compressed by gzip: expected the text itself"),
    "UTF-16": ('{"event": "end", "idle": true}'.encode("utf-16"), "text in UTF-16: expected UTF-8"),
    "UTF-16 without a mark": ('{"event": "end", "idle": true}'.encode("utf-16-le"), "null bytes: not UTF-8 text"),
    "a byte order mark": ('\ufeff{"event": "end", "idle": true}', "a byte order mark comes first: expected UTF-8 without one"),
    "a byte order mark in bytes": (b'\xef\xbb\xbf{"event": "end"}', "a byte order mark comes first: expected UTF-8 without one"),
    "deep nesting": ('{"event": "end", "idle": ' + "[" * 5000 + "]" * 5000 + "}", "nested too deeply: expected an event of schema v1"),
    "bytes that are not text": (b'{"event": "\xff"}', "not a JSON object"),
    "a list": ("[1, 2]", "expected a JSON object, found list"),
    "a number": ("17", "expected a JSON object, found int"),
    "no event": ('{"request": "A"}', "missing key 'event'"),
    "an event that is no name": ('{"event": 3}', "key 'event' is int: expected the name of an event"),
    "an unknown event": ('{"event": "allocated"}', "unknown event 'allocated'; expected one of config, state,"),
    "a missing key": ('{"event": "add", "request": "A"}', "add: missing key `prompt_tokens`"),
    "a missing nested key": (
        '{"event": "process", "step": 1, "requests": [{"request": "A", "sampled": 1}]}',
        "process: missing key `rejected` - at `$.requests[",
    ),
    "a wrong type": (
        '{"event": "add", "request": "A", "prompt_tokens": "10"}',
        "add: Expected `int`, got `str` - at `$.prompt_tokens`",
    ),
    "a truth value for a number": ('{"event": "gap", "events": true}', "gap: Expected `int`, got `bool` - at `$.events`"),
    "a fraction for a number": ('{"event": "gap", "events": 1.5}', "at `$.events`"),
    "a wrong nested type": (
        '{"event": "release", "request": "A", "group": 0, "indices": [0], "blocks": ["x"], "cause": "window", "freed": []}',
        "release: Expected `int`, got `str` - at `$.blocks[",
    ),
    "an unknown cause": (
        '{"event": "finish", "request": "A", "reason": "bored"}',
        "finish: Invalid enum value 'bored' - at `$.reason`",
    ),
    "two counters": (
        '{"event": "process", "step": 1, "requests": [{"request": "A", "sampled": 1, "rejected": 0, "counters": [1, 2]}]}',
        "process: Expected `array` of length 3, got 2 - at `$.requests[",
    ),
    "schema 2": (config_with(schema=2), "config: schema 2 is not supported; expected 1"),
    "no schema": (config_without("schema"), "config: missing key `schema`: expected 1"),
    "no engine": (config_without("engine"), "config: missing key `engine`"),
    "no groups": (config_without("groups"), "config: groups must be a list of at least one group"),
    "an empty list of groups": (config_with(groups=[]), "config: groups must be a list of at least one group"),
    "no blocks in the pool": (config_with(num_blocks=0), "config: num_blocks must be at least 1, not 0"),
    "no steps in flight": (config_with(max_in_flight_steps=0), "config: max_in_flight_steps must be at least 1, not 0"),
    "no batched tokens": (config_with(max_batched_tokens=0), "config: max_batched_tokens must be at least 1, not 0"),
    "an unknown kind": (window_group(kind="sliding"), "config: group 0: unknown kind 'sliding'; expected one of full, sliding_window,"),
    "a group without a kind": (config_with(groups=[{"block_size": 16}]), "config: group 0: unknown kind None"),
    "a group that is no object": (config_with(groups=[3]), "config: group 0: unknown kind None"),
    "a window of 0": (window_group(window=0), "config: group 0 (sliding_window): window must be at least 1 token, not 0"),
    "a block size of 0": (window_group(block_size=0), "config: group 0 (sliding_window): block_size must be at least 1 token, not 0"),
    "a negative cap": (window_group(cap=-1), "config: group 0 (sliding_window): cap must be at least 0 blocks, not -1"),
    "a chunk of 0": (
        config_with(groups=[{"kind": "full", "block_size": 1}, {"kind": "chunked_local", "block_size": 16, "chunk": 0}]),
        "config: group 1 (chunked_local): chunk must be at least 1 token, not 0",
    ),
    "no window": (
        config_with(groups=[{"kind": "sliding_window", "block_size": 16}]),
        "config: group 0 (sliding_window): missing key `window`",
    ),
    "a window of the wrong type": (window_group(window="8"), "config: group 0 (sliding_window): Expected `int`, got `str` - at `$.window`"),
}


LIMITED: dict[str, tuple[str, str]] = {
    "blocks in the pool": (config_with(num_blocks=2**24 + 1), "config: num_blocks must be at most 16777216 (blocks), not 16777217"),
    "a number beyond 64 bits": (config_with(num_blocks=10**30), "config: num_blocks must be at most 16777216"),
    "groups": (config_with(groups=[{"kind": "full", "block_size": 16}] * 65), "config: groups must be at most 64, not 65"),
    "a block size": (window_group(block_size=10**10), "block_size must be at most 2147483648 (tokens), not 10000000000 - at `$.groups[0]"),
    "a window": (window_group(window=2**31 + 1), "window must be at most 2147483648"),
    "an index of a fresh block": (
        '{"event": "allocate", "request": "A", "group": 0, "first_index": 1000000000000, "blocks": [1]}',
        "allocate: first_index must be at most 1048576 (table indices), not 1000000000000 - at `$.first_index`",
    ),
    "an index that is moved to": (
        '{"event": "move", "request": "A", "group": 0, "from_index": 0, "to_index": 10000000000, "block": 1}',
        "move: to_index must be at most 1048576",
    ),
    "a negative index that is moved from": (
        '{"event": "move", "request": "A", "group": 0, "from_index": -1, "to_index": 0, "block": 1}',
        "move: from_index must be at least 0, not -1",
    ),
    "a negative released index": (
        '{"event": "release", "request": "A", "group": 0, "indices": [0, -1], "blocks": [1, 2], "cause": "window", "freed": []}',
        "release: indices must be at least 0, not -1 - at `$.indices[1]`",
    ),
    "a start": (
        '{"event": "schedule", "step": 1, "requests": [{"request": "A", "start": 1000000000000000000, "tokens": 1, "drafts": 0, '
        '"new_blocks": [[]], "resumed": false}]}',
        "schedule: start must be at most 2147483648 (tokens), not 1000000000000000000 - at `$.requests[0].start`",
    ),
    "a negative step": ('{"event": "schedule", "step": -1, "requests": []}', "schedule: step must be at least 0, not -1"),
    "a negative sample": (
        '{"event": "process", "step": 1, "requests": [{"request": "A", "sampled": -1, "rejected": 0}]}',
        "process: sampled must be at least 0, not -1",
    ),
    "a negative prompt": ('{"event": "add", "request": "A", "prompt_tokens": -1}', "add: prompt_tokens must be at least 0, not -1"),
    "a negative maximum": (
        '{"event": "add", "request": "A", "prompt_tokens": 1, "max_tokens": -5}',
        "add: max_tokens must be at least 0, not -5",
    ),
    "a negative gap": ('{"event": "gap", "events": -3}', "gap: events must be at least 0, not -3"),
    "a negative counter of a state": (
        '{"event": "state", "requests": [{"request": "A", "prompt_tokens": 1, "computed": -1, "in_flight": 0, "stale": 0}], '
        '"unprocessed": [], "tables": {}}',
        "state: computed must be at least 0, not -1 - at `$.requests[0].computed`",
    ),
}


@pytest.mark.parametrize("name", LIMITED)
@pytest.mark.parametrize("encoding", [None, "utf-8"])
def test_a_number_out_of_its_limits_is_named(name: str, encoding: str | None) -> None:
    line, message = LIMITED[name]
    with pytest.raises(TraceError) as found:
        decode_line(line.encode(encoding) if encoding else line, "t", 1)
    assert message in str(found.value)


def test_numbers_at_their_limits_are_read() -> None:
    edge = '{"event": "add", "request": "-1 of 1234567", "prompt_tokens": 2147483648, "max_tokens": 0, "x_later": -1e9}'
    assert decode_line(edge, "t", 1) == ev.Add(request="-1 of 1234567", prompt_tokens=2**31, max_tokens=0)
    counters = (-1, 0, -3)  # an engine that counts wrongly is a finding of the monitor's, no bad line
    output = ev.ProcessedRequest(request="A", sampled=1, rejected=0, counters=counters)
    event = ev.Process(step=2**53, requests=(output,))
    assert decode_line(encode_event(event), "t", 1) == event


def test_usual_lines_are_read_in_one_go() -> None:
    """Names and hashes with digits and signs do not make a line unusual; a number past a million does, wherever it stands."""
    usual = [
        '{"event":"add","request":"chatcmpl-1234567-89","prompt_tokens":999999}',
        ' { "event" : "cache", "entries": [{"block": 1,"hash":-12345678901234567, "request": "-12345678"}]}',
        *(encode_event(event) for event in FULL.values() if not isinstance(event, ev.Config | ev.State)),
    ]
    for line in usual:
        assert _decode_plain(line) == _decode_any(line, "t", 1) != None  # noqa: E711
    unusual = [
        '{"event":"gap","events":1234567}',
        '{"event":"gap","events": -1}',
        '{"event":"release","request":"A","group":0,"indices":[1234567],"blocks":[1],"cause":"window","freed":[]}',
        '{"event":"release","request":"A","group":0,"indices":[1,\t-1],"blocks":[1,2],"cause":"window","freed":[]}',
        '{"request":"A","event":"preempt"}',
        '{"event":"preempt","request":"A","event":"preempt"}',
        '{"event":"preempt","request":"A","\\u0065vent":"x_else"}',
        '{"event":"gap"}',
        '{"event":"gap","events":"\ud800"}',
        '{"event":"gap",',
    ]
    assert [_decode_plain(line) for line in unusual] == [None] * len(unusual)


def test_a_number_of_absurd_length_is_rejected_at_once() -> None:
    begun = time.process_time()
    with pytest.raises(TraceError):
        decode_line('{"event": "gap", "events": ' + "9" * 100_000 + "}", "t", 1)
    assert time.process_time() - begun < 1


def test_control_characters_of_a_message_are_escaped() -> None:
    with pytest.raises(TraceError) as found:
        decode_line('{"event": "finish", "request": "A", "reason": "\\u001b[31mred"}', "t", 1)
    assert "\\x1b[31mred" in str(found.value)
    assert str(found.value).isprintable()


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named(name: str) -> None:
    line, message = BAD[name]
    with pytest.raises(TraceError) as found:
        decode_line(line, "run.ndjson", 7)
    assert message in str(found.value)
    assert str(found.value).startswith("run.ndjson:7: ")
    assert (found.value.source, found.value.line) == ("run.ndjson", 7)


def test_reading_stops_at_the_bad_line_with_its_number() -> None:
    lines = [encode_event(CONFIG), '{"event": "x_note"}', encode_event(FULL[ev.Add]), '{"event": "add"']
    reader = read_trace(lines, "run.ndjson")
    assert [next(reader)[0], next(reader)[0]] == [1, 3]
    with pytest.raises(TraceError, match=r"^run\.ndjson:4: not a JSON object"):
        next(reader)


@pytest.mark.parametrize(("lines", "number"), [([], 1), (['{"event": "x_only"}'], 2)], ids=["no line", "extensions only"])
def test_an_empty_trace_is_an_error(lines: list[str], number: int) -> None:
    with pytest.raises(TraceError, match=rf"^t:{number}: the trace is empty: expected a config line$"):
        list(read_trace(lines, "t"))


def test_the_first_event_is_the_config() -> None:
    with pytest.raises(TraceError, match=r"^t:2: the first event must be config, not add$"):
        list(read_trace(['{"event": "x_note"}', encode_event(FULL[ev.Add]), encode_event(CONFIG)], "t"))
