"""Reads and writes traces: one JSON object a line, validated against the events of `events.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, TextIO

import msgspec

from settled.model.events import EVENT_BY_NAME, SCHEMA_VERSION, Config, Event
from settled.model.specs import SPEC_BY_KIND, KVCacheSpec


class TraceError(ValueError):
    """A line that is not schema v1: says what is wrong, on which line (counted from 1) of which source."""

    def __init__(self, source: str, line: int, message: str) -> None:
        super().__init__(f"{source}:{line}: {message}")
        self.source, self.line, self.message = source, line, message


def read_trace(lines: Iterable[str | bytes], source: str = "<trace>") -> Iterator[tuple[int, Event]]:
    """Yields (line number from 1, event), the config first. Events named x_... and unknown keys are left out.

    Raises TraceError at the first line that is not valid; a trace without any line is an error too.
    """
    seen_config = False
    number = 0
    for number, line in enumerate(lines, start=1):
        event = decode_line(line, source, number)
        if event is None:
            continue
        if not seen_config and not isinstance(event, Config):
            raise TraceError(source, number, f"the first event must be config, not {event.name}")
        seen_config = True
        yield number, event
    if not seen_config:
        raise TraceError(source, number + 1, "the trace is empty: expected a config line")


def decode_line(line: str | bytes, source: str, number: int) -> Event | None:
    """The event on one line; None for an extension event (x_...). Raises TraceError."""
    try:
        raw = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise TraceError(source, number, f"not a JSON object (truncated?): {error}") from None
    if not isinstance(raw, dict):
        raise TraceError(source, number, f"expected a JSON object, found {type(raw).__name__}")
    name = raw.get("event")
    if not isinstance(name, str):
        raise TraceError(source, number, "missing key 'event'")
    if name.startswith("x_"):
        return None
    cls = EVENT_BY_NAME.get(name)
    if cls is None:
        raise TraceError(source, number, f"unknown event {name!r}; expected one of {', '.join(EVENT_BY_NAME)}")
    try:
        return _decode_config(raw) if cls is Config else msgspec.convert(raw, cls)
    except (msgspec.ValidationError, ValueError) as error:
        raise TraceError(source, number, f"{name}: {_tidy(str(error))}") from None


def encode_event(event: Event) -> str:
    """One line of NDJSON, without the line end; optional keys at their default are left out."""
    return msgspec.json.encode({"event": event.name, **_plain(event)}).decode()


def write_trace(events: Iterable[Event], out: TextIO) -> None:
    """Writes one event a line."""
    for event in events:
        out.write(encode_event(event) + "\n")


# The least value of each number of a config: blocks, steps or tokens.
_AT_LEAST = {
    "num_blocks": 1,
    "max_in_flight_steps": 1,
    "max_batched_tokens": 1,
    "num_draft_tokens": 0,
    "num_lookahead_tokens": 0,
    "max_model_len": 1,
}


def _decode_config(raw: dict[str, Any]) -> Config:
    if raw.get("schema") != SCHEMA_VERSION:
        raise ValueError(f"schema {raw.get('schema')!r} is not supported; expected {SCHEMA_VERSION}")
    groups = raw.get("groups")
    if not isinstance(groups, list) or not groups:
        raise ValueError("groups must be a list of at least one group")
    specs = tuple(_decode_spec(index, group) for index, group in enumerate(groups))
    config = replace(msgspec.convert({**raw, "groups": []}, Config), groups=specs)
    for field, least in _AT_LEAST.items():
        value = getattr(config, field)
        if value is not None and value < least:
            raise ValueError(f"{field} must be at least {least}, not {value}")
    return config


def _decode_spec(index: int, raw: Any) -> KVCacheSpec:
    kind = raw.get("kind") if isinstance(raw, dict) else None
    cls = SPEC_BY_KIND.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(f"group {index}: unknown kind {kind!r}; expected one of {', '.join(SPEC_BY_KIND)}")
    try:
        return msgspec.convert(raw, cls)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"group {index} ({kind}): {error}") from None


def _plain(value: Any) -> Any:
    """Dataclasses as dicts without the optional keys that are at their default, all the way down."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not is_dataclass(value):
        return value
    plain = {
        field.name: _plain(getattr(value, field.name))
        for field in fields(value)
        if field.default is MISSING or getattr(value, field.name) != field.default
    }
    return {"kind": value.kind, **plain} if isinstance(value, KVCacheSpec) else plain


def _tidy(message: str) -> str:
    return re.sub(r"Object missing required field (`\w+`)( - at `\$(.*)`)?", r"missing key \1\2", message)
