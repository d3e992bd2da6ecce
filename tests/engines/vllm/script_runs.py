"""Runs a standalone script in this process, and reads from what it prints the same things that a trace says."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import NamedTuple

from settled.model.events import Allocate, Drop, Event, Process, Release, Schedule


class Happening(NamedTuple):
    """What happens between two steps' beginnings: which blocks leave the pool and come back; or a request's tokens in a step."""

    what: str
    values: tuple[object, ...]


class Printed(NamedTuple):
    """`ending`: None for a script that ran to its end, the argument of its sys.exit, or the exception that it died of."""

    text: str
    ending: object


def run_script(text: str) -> Printed:
    """As `python script.py` does, without importing vLLM once more."""
    main = ModuleType("__main__")
    former, sys.modules["__main__"] = sys.modules["__main__"], main
    out = io.StringIO()
    ending: object = None
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(text, "script.py", "exec"), main.__dict__)
    except SystemExit as error:
        ending = error.code
    except Exception as error:
        ending = error
    finally:
        sys.modules["__main__"] = former
    return Printed(out.getvalue(), ending)


_LINE = re.compile(
    r"^(?:!!!|   ) +(?:"
    r"schedule step (?P<step>\d+)|process step (?P<processed>\d+)|allocated: (?P<allocated>[\d ]+)|(?:pruned|freed): (?P<freed>[\d ]+)"
    r"|(?P<request>\w+): tokens (?P<first>\d+) to (?P<last>\d+);.*)$"
)


def of_text(text: str) -> list[Happening]:
    """What a script printed."""
    return list(_settled(_of_lines(text)))


def _of_lines(text: str) -> Iterator[Happening]:
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        if match["step"]:
            yield Happening("schedule", ())
        elif match["processed"]:
            yield Happening("process", ())
        elif match["allocated"]:
            yield Happening("allocated", tuple(map(int, match["allocated"].split())))
        elif match["freed"]:
            yield Happening("freed", tuple(map(int, match["freed"].split())))
        elif match["request"]:
            yield Happening("computes", (match["request"], int(match["first"]), int(match["last"]) + 1))


def of_events(events: Iterable[Event]) -> list[Happening]:
    """What a trace says."""
    return list(_settled(_of_events(events)))


def _of_events(events: Iterable[Event]) -> Iterator[Happening]:
    for event in events:
        match event:
            case Schedule():
                for each in event.requests:
                    yield Happening("computes", (each.request, each.start, each.start + each.tokens))
            case Allocate():
                yield Happening("allocated", event.blocks)
            case Release() | Drop():
                yield Happening("freed", event.freed)
            case Process():
                yield Happening("process", ())


def _settled(happenings: Iterable[Happening]) -> Iterator[Happening]:
    """Between the beginnings of steps, order within a call is the recorder's choice: blocks are sorted."""
    gathered: dict[str, list[object]] = {"allocated": [], "freed": []}
    for happening in happenings:
        if happening.what in gathered:
            gathered[happening.what] += happening.values
        elif happening.what != "schedule":
            yield from _gathered(gathered)
            yield happening
    yield from _gathered(gathered)


def _gathered(gathered: dict[str, list[object]]) -> Iterator[Happening]:
    for what, values in gathered.items():
        if values:
            yield Happening(what, tuple(sorted(values)))
            values.clear()
