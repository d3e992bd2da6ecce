"""What a violation is, in words and places: which event did what, and where on a picture it is marked."""

from __future__ import annotations

from dataclasses import dataclass

from settled.model.events import Process, Release
from settled.model.monitor import Violation
from settled.model.monitor.violation import tokens_text
from settled.model.properties import Property
from settled.proofs.showing.owners import PRUNES
from settled.proofs.showing.timeline import Timeline
from settled.proofs.showing.uses import Part
from settled.proofs.showing.words import words_of

_VERBS = {Property.READ_RESIDENT: "reads", Property.ROLLBACK_RESIDENT: "reads", Property.WRITE_OWNED: "writes"}


@dataclass(frozen=True, slots=True)
class Chapter:
    """One event of the story; `is_it`: the one with which the property broke."""

    position: int
    text: str
    is_it: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """A violation for a picture. The block is missed from the position `begin` to before `end`, by a step that is in flight from
    `scheduled` on if there is one. `block`: the one that the violation names, else the one whose release left the table index empty."""

    violation: Violation
    position: int
    block: int | None
    begin: int
    end: int
    scheduled: int | None
    chapters: tuple[Chapter, ...]
    why: str  # what the engine took for granted, "" where nothing was freed

    @property
    def verb(self) -> str:
        """What a step does with the block."""
        return _VERBS.get(self.violation.property, "uses")

    @property
    def label(self) -> str:
        """A few words for the row of the block."""
        found = self.violation
        if found.property not in _VERBS:
            return found.property.value
        return f"{'next step' if found.step is None else f'step {found.step}'} {self.verb} it"


def tell(timeline: Timeline, position: int, violation: Violation) -> Told:
    """The story of a violation that became certain at a position."""
    part = _part(timeline, violation, position)
    freed = timeline.position_of(violation.freed_at_line)
    at = timeline.position_of(violation.line)
    at = position if at is None else at
    scheduled = None if part is None else part.begin
    end = len(timeline.events) if part is None or part.end is None else part.end
    if part is None:
        end = at + 1
    block = _block(timeline, violation, freed)
    chapters = _chapters(timeline, violation, block, part, freed, at)
    return Told(violation, position, block, at, max(end, at + 1), scheduled, chapters, _why(timeline, violation, freed))


def _block(timeline: Timeline, violation: Violation, freed: int | None) -> int | None:
    release = None if freed is None else timeline.events[freed][1]
    if violation.block is not None or not isinstance(release, Release) or release.group != violation.group:
        return violation.block
    return dict(zip(release.indices, release.blocks, strict=True)).get(-1 if violation.index is None else violation.index)


def _part(timeline: Timeline, violation: Violation, position: int) -> Part | None:
    """The step's part of the request: step numbers may come again."""
    if violation.step is None or violation.request is None:
        return None
    owner = timeline.names.number(violation.request)
    found = [part for part in timeline.parts if part.step == violation.step and part.owner == owner and part.begin <= position]
    return found[-1] if found else None


def _chapters(
    timeline: Timeline, violation: Violation, block: int | None, part: Part | None, freed: int | None, at: int
) -> tuple[Chapter, ...]:
    told: list[Chapter] = []
    request, step = violation.request, violation.step
    if part is not None:
        told.append(
            Chapter(part.begin, f"step {step} of {request} is scheduled: tokens [{part.scheduled}, {part.scheduled + part.tokens})")
        )
    if freed is not None:
        cause = f" ({violation.release_cause})" if violation.release_cause else ""
        what = "its place" if block is None else f"block {block}"
        told.append(Chapter(freed, f"{violation.freed_by or request} lets go of {what}{cause}", at == freed))
    if violation.taken_by is not None:
        told.append(Chapter(at, f"block {block} goes to {violation.taken_by}", True))
    elif at != freed and (part is None or at != part.begin):
        told.append(Chapter(at, _breach(timeline, violation, at), True))
    if part is not None and part.start < part.scheduled:
        told += _rejections(timeline, part)
    if part is not None and part.end is not None and part.end > at:
        told.append(Chapter(part.end, f"only here the host knows that step {step} is over"))
    told.sort(key=lambda chapter: chapter.position)
    if not any(chapter.is_it for chapter in told):
        told = [Chapter(each.position, each.text, each.position == at) for each in told]
    return tuple(told)


def _breach(timeline: Timeline, violation: Violation, at: int) -> str:
    """What broke the property, where that was no release and no new owner."""
    event, request = timeline.events[at][1], violation.request
    if violation.property is Property.HELD_BOUNDED and violation.block is not None:
        return f"{request} still holds block {violation.block}"
    rejected = sum(each.rejected for each in event.requests if each.request == request) if isinstance(event, Process) else 0
    if isinstance(event, Process) and rejected and violation.step is None and violation.needed is not None:
        return f"step {event.step} rejects {rejected} of {request}'s drafts: the next step reads {tokens_text(violation.needed)}"
    return words_of(event)


def _rejections(timeline: Timeline, part: Part) -> list[Chapter]:
    """Outputs of earlier steps, read while this one is in flight: each moves its true start down."""
    told, start = [], part.scheduled
    name = timeline.names.names[part.owner]
    for position in range(part.begin + 1, len(timeline.events) if part.end is None else part.end):
        event = timeline.events[position][1]
        rejected = [each.rejected for each in event.requests if each.request == name] if isinstance(event, Process) else []
        if sum(rejected) and isinstance(event, Process):
            start -= sum(rejected)
            text = f"step {event.step} rejects {sum(rejected)} of {name}'s drafts: step {part.step} truly starts at token {start}"
            told.append(Chapter(position, text))
    return told


def _why(timeline: Timeline, violation: Violation, freed: int | None) -> str:
    if freed is None or violation.freed_by is None or violation.release_cause not in PRUNES:
        return ""
    counters = timeline.counters_before(timeline.names.number(violation.freed_by), freed)
    if counters is None:
        return ""
    return (
        f"When it was freed, {counters.computed} tokens counted as computed, {counters.in_flight} were in flight, "
        f"{counters.settled} were settled."
    )
