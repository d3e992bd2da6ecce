"""A timeline as plain values for a page: compact lists, which `assets/model.js` unpacks.

Positions count events from 0; `end` is the first position past a span, the number of events where it never ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from settled.model.events import Event, Process, Schedule
from settled.model.monitor import Report
from settled.model.monitor.report import EXIT_UNKNOWN
from settled.model.specs import KVCacheSpec
from settled.model.trace_io import encode_event, printable
from settled.proofs.showing.lanes import Lanes, lanes_of
from settled.proofs.showing.story import Told, tell
from settled.proofs.showing.timeline import Timeline
from settled.proofs.showing.uses import Part, Run
from settled.proofs.showing.words import words_of


@dataclass(frozen=True, slots=True)
class About:
    """What a page is about: a property, and the cause of its violation if that is known; what was found, in a sentence.

    Where the trace shows no violation of the sort, the sentence stands for it: an engine may fail, or not come to an end.
    """

    property: str = ""
    cause: str = ""
    sentence: str = ""


NOTHING = About()


def page_data(timeline: Timeline, about: About = NOTHING) -> dict[str, Any]:
    """All that a page shows."""
    end = len(timeline.events)
    first = _first(timeline, about)
    return {
        "source": printable(timeline.source),
        "engine": printable(timeline.config.engine),
        "finding": None if first is not None or not about.sentence else {"property": about.property, "sentence": printable(about.sentence)},
        "first": first or 0,
        "contract": {"name": timeline.contract, "meaning": timeline.contract.meaning, "isDefault": timeline.is_default_contract},
        "numBlocks": timeline.config.num_blocks,
        "depth": timeline.config.max_in_flight_steps,
        "groups": [{"kind": spec.kind, "blockSize": spec.block_size, "text": group_text(spec)} for spec in timeline.config.groups],
        "verdict": _verdict(timeline.report),
        "numViolations": timeline.num_violations,
        "violations": [_violation(timeline, tell(timeline, position, found)) for position, found in timeline.violations],
        "owners": [printable(name) for name in timeline.names.names],
        "ownerIsRequest": timeline.names.is_request,
        "prompts": timeline.prompts,
        "events": _events(timeline),
        "steps": [[span.step, span.begin, end if span.end is None else span.end] for span in timeline.steps],
        "holdings": _holdings(timeline),
        "cached": [[block, begin, end if until is None else until] for block, begin, until in timeline.owners.cached],
        "parts": [_part(part, end) for part in timeline.parts],
        "workerRows": timeline.rows.rows,
        "counters": {
            owner: [[each.position, each.computed, each.in_flight, each.stale, each.settled] for each in known]
            for owner, known in timeline.counters.items()
        },
        "lanes": _lanes(lanes_of(timeline), end),
    }


def _first(timeline: Timeline, about: About) -> int | None:
    """The number of the first violation that a page is about; None if there is none."""
    for number, (_, found) in enumerate(timeline.violations):
        if about.property in ("", found.property) and about.cause in ("", found.cause):
            return number
    return None


def group_text(spec: KVCacheSpec) -> str:
    """A group's parameters in words, lengths in tokens."""
    told = [f"blocks of {spec.block_size}"]
    for name in ("window", "sink", "chunk", "mode", "extra_retained", "num_speculative_blocks", "name"):
        value = getattr(spec, name, None)
        if value not in (None, 0):
            told.append(f"{name.replace('_', ' ')} {value}")
    return f"{spec.kind}, {', '.join(told)}"


def notes_of(report: Report) -> list[str]:
    """What `settled check` says of the trace as a whole; of each property, where that gives no reason for an unknown verdict."""
    notes = [*report.unknown, *report.remarks]
    if report.exit_code != EXIT_UNKNOWN or report.unknown:
        return notes
    return [*notes, *(f"{result.property}: {remark}" for result in report.properties for remark in result.remarks)]


def reasons_of(report: Report) -> list[str]:
    """Why a verdict is unknown: what the whole trace lacks, else what is said of each property."""
    return [*report.unknown, *report.remarks] or notes_of(report)


def _verdict(report: Report) -> dict[str, Any]:
    return {
        "exitCode": report.exit_code,
        "reasons": [printable(text) for text in reasons_of(report)] if report.exit_code == EXIT_UNKNOWN else [],
        "notes": [printable(text) for text in notes_of(report)],
        "properties": [
            {
                "name": result.property,
                "meaning": result.property.meaning,
                "verdict": result.verdict,
                "count": result.count,
                "remarks": [printable(remark) for remark in result.remarks],
            }
            for result in report.properties
        ],
    }


def _violation(timeline: Timeline, told: Told) -> dict[str, Any]:
    found = told.violation
    return {
        "property": found.property,
        "cause": printable(found.cause),
        "sentence": found.sentence(),
        "why": told.why,
        "verb": told.verb,
        "label": told.label,
        "position": _at(timeline, told),
        "certain": told.position,
        "begin": told.begin,
        "end": told.end,
        "scheduled": told.scheduled,
        "owner": None if found.request is None else timeline.names.number(found.request),
        "group": found.group,
        "index": found.index,
        "block": told.block,
        "step": found.step,
        "needed": found.needed,
        "chapters": [[each.position, printable(each.text), each.is_it] for each in told.chapters],
    }


def _at(timeline: Timeline, told: Told) -> int:
    """Where it happened; a violation can become certain later than that."""
    at = timeline.position_of(told.violation.line)
    return told.position if at is None else at


def _events(timeline: Timeline) -> dict[str, Any]:
    kinds = sorted({event.name for _, event in timeline.events})
    number = {kind: place for place, kind in enumerate(kinds)}
    return {
        "kinds": kinds,
        "lines": [line for line, _ in timeline.events],
        "kind": [number[event.name] for _, event in timeline.events],
        "owner": [_owner(timeline, event) for _, event in timeline.events],
        "words": [printable(words_of(event)) for _, event in timeline.events],
        "json": [encode_event(event) for _, event in timeline.events],
    }


def _owner(timeline: Timeline, event: Event) -> int | None:
    """The request that an event is about, of a step the first."""
    name = event.requests[0].request if isinstance(event, Schedule | Process) and event.requests else getattr(event, "request", None)
    return timeline.names.number(name) if isinstance(name, str) else None


def _holdings(timeline: Timeline) -> list[list[int | None]]:
    """In the order of their beginnings."""
    end = len(timeline.events)
    return [
        [each.block, each.owner, each.group, each.index, each.begin, end if each.end is None else each.end, each.ended]
        for each in timeline.owners.holdings
    ]


def _part(part: Part, end: int) -> list[Any]:
    uses = [[use.row, use.length, _plain(use.reads), _plain(use.writes)] for use in part.uses]
    until = end if part.end is None else part.end
    return [part.step, part.owner, part.begin, until, part.scheduled, part.start, part.tokens, part.drafts, uses]


def _plain(runs: list[Run]) -> list[list[int]]:
    return [list(run) for run in runs]


def _lanes(lanes: Lanes, end: int) -> dict[str, Any]:
    return {
        "note": printable(lanes.note),
        "lanes": [
            {
                "name": lane.name,
                "slots": lane.num_slots,
                "bars": [
                    [bar.begin, end if bar.end is None else bar.end, bar.slot, bar.kind, printable(bar.label), bar.step]
                    for bar in lane.bars
                ],
            }
            for lane in lanes.lanes
        ],
        "waits": [[wait.lane, wait.of, wait.to_lane, wait.to] for wait in lanes.waits],
    }
