"""Reads and writes traces: one JSON object a line, validated against the events of `events.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, TextIO

import msgspec

from settled.model.events import EVENT_BY_NAME, SCHEMA_VERSION, Config, Event
from settled.model.specs import SPEC_BY_KIND, KVCacheSpec
from settled.model.trace_encoding import encode_line


class TraceError(ValueError):
    """A line that is not schema v1: says what is wrong, on which line (counted from 1) of which source.

    `hint`: how to mend it, if known.
    """

    def __init__(self, source: str, line: int, message: str, hint: str = "") -> None:
        message = printable(message)  # it goes to a terminal
        super().__init__(f"{source}:{line}: {message}")
        self.source, self.line, self.message, self.hint = source, line, message, hint


def printable(text: str) -> str:
    """Text of a trace with its control characters escaped, so that none of them reaches a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii") for char in text)


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
            hint = "the beginning is missing: a trace is whole from its config line on"
            raise TraceError(source, number, f"the first event must be config, not {event.name}", hint)
        seen_config = True
        yield number, event
    if not seen_config:
        hint = "nothing was recorded: was the engine started with SETTLED_TRACE=FILE, and did a request reach it?"
        raise TraceError(source, number + 1, "the trace is empty: expected a config line", hint)


def decode_line(line: str | bytes, source: str, number: int) -> Event | None:
    """The event on one line; None for an extension event (x_...). Raises TraceError."""
    return _decode_plain(line) or _decode_any(line, source, number)


def _decode_plain(line: str | bytes) -> Event | None:
    """The event on a line as engines write it: its name comes first, once, and no number can be out of its limits. None for any other
    line, a wrong one included."""
    try:
        text = line.encode() if isinstance(line, str) else line
        start = _NAMED.match(text)
        decoder = _DECODERS.get(start[1]) if start else None
        if decoder is None or text.count(b'"event"') != 1 or b"\\" in text or _may_break_limits(text):
            return None
        return decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _decode_any(line: str | bytes, source: str, number: int) -> Event | None:
    """The event on any line, read key by key; says what is wrong with one that is not valid."""
    try:
        raw = msgspec.json.decode(line)
    except RecursionError:
        raise TraceError(source, number, "nested too deeply: expected an event of schema v1", _HINT_SCHEMA) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise TraceError(source, number, _why_no_json(line, str(error)), _hint_for_no_json(line, number)) from None
    if not isinstance(raw, dict):
        raise TraceError(source, number, f"expected a JSON object, found {type(raw).__name__}", _HINT_SCHEMA)
    name = raw.get("event")
    if not isinstance(name, str):
        found = f"key 'event' is {type(name).__name__}: expected the name of an event" if "event" in raw else "missing key 'event'"
        raise TraceError(source, number, found, _HINT_SCHEMA)
    if name.startswith("x_"):
        return None
    cls = EVENT_BY_NAME.get(name)
    if cls is None:
        raise TraceError(source, number, f"unknown event {name!r}; expected one of {', '.join(EVENT_BY_NAME)}", _like(name, EVENT_BY_NAME))
    try:
        if cls is Config:
            return _decode_config(raw)
        event: Event = msgspec.convert(raw, cls)
        _check_limits(event)
        return event
    except (msgspec.ValidationError, ValueError) as error:
        raise TraceError(source, number, f"{name}: {_tidy(str(error))}", getattr(error, "hint", "")) from None


def encode_event(event: Event) -> str:
    """One line of NDJSON, without the line end; optional keys at their default are left out."""
    return encode_line(event).decode()


def write_trace(events: Iterable[Event], out: TextIO) -> None:
    """Writes one event a line."""
    for event in events:
        out.write(encode_event(event) + "\n")


# ---- limits ----------------------------------------------------------------------------------------------------------

# The least and the most of every number, by the name of its key, and what it counts. The most is far above any engine, and low enough
# that one line of a trace can ask for little memory and time: a table index costs a list entry, a block of the pool a counter. Block
# ids and groups have their ends in the config; the monitor checks them.
_TOKENS_MAX, _INDEX_MAX, _BLOCKS_MAX, _COUNT_MAX, _GROUPS_MAX = 2**31, 2**20, 2**24, 2**53, 64
_TOKENS, _LENGTH, _SIGNED = (0, _TOKENS_MAX, "tokens"), (1, _TOKENS_MAX, "tokens"), (-_TOKENS_MAX, _TOKENS_MAX, "tokens")
_INDEX = (0, _INDEX_MAX, "table indices")
_LIMITS: dict[str, tuple[int, int, str]] = {
    "num_blocks": (1, _BLOCKS_MAX, "blocks"),
    "max_in_flight_steps": (1, _INDEX_MAX, "steps"),
    "handles": (0, _INDEX_MAX, "handles"),
    "num_speculative_blocks": (0, _INDEX_MAX, "blocks"),
    "cap": (0, _COUNT_MAX, "blocks"),
    **dict.fromkeys(("step", "events"), (0, _COUNT_MAX, "a count")),
    **dict.fromkeys(("block_size", "window", "chunk", "max_batched_tokens", "max_model_len"), _LENGTH),
    **dict.fromkeys(("extra_retained", "sink", "num_draft_tokens", "num_lookahead_tokens"), _TOKENS),
    **dict.fromkeys(("prompt_tokens", "max_tokens", "computed", "local", "external", "in_flight", "stale"), _TOKENS),
    **dict.fromkeys(("start", "end", "tokens", "drafts", "sampled", "rejected"), _TOKENS),
    "counters": _SIGNED,  # what the engine says of itself: a negative one is a finding
    **dict.fromkeys(("first_index", "indices", "from_index", "to_index", "reads", "writes"), _INDEX),
}
# Digits to 0, and what may stand before a number to a colon.
_NUMBERS_ALIKE = bytes(ord("0") if byte in b"0123456789" else ord(":") if byte in b"[, \t\r\n" else byte for byte in range(256))


def _may_break_limits(line: bytes) -> bool:
    """Whether a number below 0 or above a million may stand on a line: no limit lies between, and most lines have none. Cheap."""
    text = line.translate(_NUMBERS_ALIKE).replace(b'"hash":', b"_")  # a hash has no limits
    return b":-" in text or b":0000000" in text


def _check_limits(value: Any, name: str = "", where: str = "$") -> None:
    """Raises ValueError if a number somewhere in an event is out of its limits."""
    if isinstance(value, int) and not isinstance(value, bool) and name in _LIMITS:
        least, most, unit = _LIMITS[name]
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value} - at `{where}`")
        if value > most:
            raise ValueError(f"{name} must be at most {most} ({unit}), not {value} - at `{where}`")
    elif isinstance(value, tuple):
        for position, item in enumerate(value):
            _check_limits(item, name, f"{where}[{position}]")
    elif is_dataclass(value):
        for field in fields(value):
            _check_limits(getattr(value, field.name), field.name, f"{where}.{field.name}")


_NAMED = re.compile(rb'\s*\{\s*"event"\s*:\s*"(\w+)"')
_DECODERS = {name.encode(): msgspec.json.Decoder(cls) for name, cls in EVENT_BY_NAME.items() if cls is not Config}


# ---- parts -----------------------------------------------------------------------------------------------------------


class _HintedError(ValueError):
    """An error that says how to mend it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def _decode_config(raw: dict[str, Any]) -> Config:
    if "schema" not in raw:
        raise _HintedError(f"missing key `schema`: expected {SCHEMA_VERSION}", _HINT_SCHEMA)
    if raw["schema"] != SCHEMA_VERSION:
        newer = isinstance(raw["schema"], int) and raw["schema"] > SCHEMA_VERSION
        hint = "the trace comes from a newer recorder: pip install --upgrade settled" if newer else _HINT_SCHEMA
        raise _HintedError(f"schema {raw['schema']!r} is not supported; expected {SCHEMA_VERSION}", hint)
    groups = raw.get("groups")
    if not isinstance(groups, list) or not groups:
        raise ValueError("groups must be a list of at least one group")
    if len(groups) > _GROUPS_MAX:
        raise ValueError(f"groups must be at most {_GROUPS_MAX}, not {len(groups)}")
    specs = tuple(_decode_spec(index, group) for index, group in enumerate(groups))
    config = replace(msgspec.convert({**raw, "groups": []}, Config), groups=specs)
    _check_limits(config)
    return config


def _decode_spec(index: int, raw: Any) -> KVCacheSpec:
    kind = raw.get("kind") if isinstance(raw, dict) else None
    cls = SPEC_BY_KIND.get(kind) if isinstance(kind, str) else None
    if cls is None:
        hint = (isinstance(kind, str) and _like(kind, SPEC_BY_KIND)) or "a kind of your own is custom, with a name: it is not judged"
        raise _HintedError(f"group {index}: unknown kind {kind!r}; expected one of {', '.join(SPEC_BY_KIND)}", hint)
    try:
        return msgspec.convert(raw, cls)
    except (msgspec.ValidationError, ValueError) as error:
        hint = _HINT_LENGTH.get(str(error).partition(" ")[0], "")
        raise _HintedError(f"group {index} ({kind}): {error}", hint) from None


def _tidy(message: str) -> str:
    return re.sub(r"Object missing required field (`\w+`)( - at `\$(.*)`)?", r"missing key \1\2", message)


def _like(name: str, known: Iterable[str]) -> str:
    return "".join(f"did you mean {found}?" for found in get_close_matches(name, list(known), n=1))


_HINT_SCHEMA = (
    "expected a trace as SETTLED_TRACE=FILE makes vLLM write, and settled's --traces and --corpus: one event a line, a config first"
)
_HINT_LENGTH = {
    "window": "a group whose queries read every earlier token is of kind full",
    "chunk": "a group whose queries read every earlier token is of kind full",
    "block_size": "tokens that one block holds, in vLLM --block-size: 16 is usual",
}

# What the first bytes of a line betray that is no JSON.
_GIVEAWAYS = (
    (b"\x1f\x8b", "compressed by gzip: expected the text itself, such as from `zcat TRACE | settled check -`"),
    (b"\xff\xfe", "text in UTF-16: expected UTF-8"),
    (b"\xfe\xff", "text in UTF-16: expected UTF-8"),
    (b"\xef\xbb\xbf", "a byte order mark comes first: expected UTF-8 without one"),
)


def _hint_for_no_json(line: str | bytes, number: int) -> str:
    if number == 1 or line[-1:] in ("\n", b"\n"):
        return _HINT_SCHEMA
    return f"the writer was stopped in the midst of this line: what stands before, head -n {number - 1}, is whole"


def _why_no_json(line: str | bytes, error: str) -> str:
    """Why a line cannot be read, in words for the usual mistakes."""
    start = line[:64].encode(errors="replace") if isinstance(line, str) else line[:64]
    if not line.strip():
        return "an empty line: expected a JSON object, one event a line"
    for giveaway, what in _GIVEAWAYS:
        if start.startswith(giveaway):
            return what
    if b"\0" in start:
        return "null bytes: not UTF-8 text (UTF-16, or a binary file?)"
    return f"not a JSON object (truncated?): {error}"
