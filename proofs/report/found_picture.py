"""What a hunt found, drawn from its trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

from rich.console import Console, RenderableType
from rich.text import Text

from settled.model.events import Add, Config, Event, Finish
from settled.model.monitor import Monitor, Violation
from settled.model.properties import Contract
from settled.model.trace_io import decode_line
from settled.proofs.hunting.finding import Finding
from settled.proofs.report.console import PIPE_COLUMNS
from settled.proofs.report.picture import draw
from settled.proofs.report.signs import UNICODE, Signs
from settled.proofs.watching import Key

PICTURE_ROWS_MAX = 12


def picture_of(finding: Finding, *, width: int, signs: Signs) -> RenderableType:
    """The violation and what its request did before. For what no event of the trace shows, what the request did that it is about."""
    events = list(enumerate(events_of(finding), start=1))
    subject = first_violation(events, finding.contract, finding.key) or _about(finding, events)
    if subject is None:
        return Text("no picture: the trace ends before it tells of a request", style="dim")
    until = [(line, event) for line, event in events if line <= subject.line]
    return draw(until, subject, width=width, signs=signs, rows_max=PICTURE_ROWS_MAX)


def picture_text(finding: Finding) -> str:
    """The picture as plain text, under what it shows."""
    out = StringIO()
    console = Console(file=out, width=PIPE_COLUMNS, highlight=False, soft_wrap=True)
    console.print(f"{finding.engine} violates {finding.key.property} ({finding.key.cause})\n{finding.sentence}\n", markup=False)
    console.print(picture_of(finding, width=PIPE_COLUMNS, signs=UNICODE))
    return out.getvalue()


def events_of(finding: Finding) -> list[Event]:
    """The events of its trace, which holds no others."""
    decoded = (decode_line(line, finding.name, number) for number, line in enumerate(finding.trace, start=1))
    return [event for event in decoded if event is not None]


@dataclass(frozen=True, slots=True)
class _About:
    """What a finding is about that is no event of the trace."""

    line: int
    request: str
    group: int | None
    step: None = None
    index: None = None
    block: None = None
    needed: None = None


def _about(finding: Finding, events: list[tuple[int, Event]]) -> _About | None:
    """The request that the sentence names first, or the oldest that is not finished."""
    ids = [event.request for _, event in events if isinstance(event, Add)]
    ended = {event.request for _, event in events if isinstance(event, Finish)}
    named = [word for word in re.findall(r"[^\s,']+", finding.sentence) if word in ids]
    group = re.search(r"group (\d+)", finding.sentence)
    for request in (*named, *[each for each in ids if each not in ended], *ids):
        return _About(events[-1][0], request, int(group[1]) if group else None)
    return None


def first_violation(events: Sequence[tuple[int, Event]], contract: Contract | None, key: Key) -> Violation | None:
    """The first of the key's property and cause."""
    if not events or not isinstance(events[0][1], Config):
        return None
    monitor = Monitor(events[0][1], contract)
    for line, event in events:
        for violation in monitor.feed(line, event):
            if (violation.property, violation.cause) == (key.property, key.cause):
                return violation
    return None
