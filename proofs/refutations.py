"""Every broken discipline with the properties it violates, and how to show it: search, decode, judge, run on the reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from settled.model.counterexample import decisions_of, events_of
from settled.model.disciplines import (
    CALLBACK,
    CAP_WITHOUT_IN_FLIGHT,
    CEIL,
    DISCARD_FLAG,
    DRAFTS_UNPRUNED,
    KEEPS_ONE,
    LOCAL_SUBTRACTION,
    MAMBA_LOCAL,
    NO_FENCE,
    NULL_AT_ALLOCATION,
    OPTIMISTIC,
    POOL_FENCE,
    RAW_FINISH,
    RIGHT,
    STALE_APPLIED,
    STALE_UNMARKED,
    UNDRAINED,
    Discipline,
)
from settled.model.events import Allocate, Config, Drop, Event, Finish, Hold, Preempt, Process, Release, Schedule, Touch
from settled.model.explicit import Claim, Setting
from settled.model.kinds import Kind, MambaAlign, SlidingWindow
from settled.model.monitor import Loss, Monitor, Report, Violation
from settled.model.properties import Contract, Property
from settled.model.search.bounded import WINDOW, Shortest, shortest_violation

_READ, _WRITE, _ROLLBACK = Property.READ_RESIDENT, Property.WRITE_OWNED, Property.ROLLBACK_RESIDENT
_COUNTERS, _HELD = Property.COUNTERS_SYMMETRIC, Property.HELD_BOUNDED


WINDOWED = SlidingWindow(WINDOW)


@dataclass(frozen=True)
class Refutation:
    """A discipline, a claim that it violates, and the length in events of the shortest trace that shows it.

    `length` counts what happens after the request was added: schedules, processes, preemptions, ends. It is a claim, checked at each
    run: every smaller length is unsatisfiable for every window, block size, table index and prompt, within `explicit.SCOPE`.
    """

    discipline: Discipline
    claim: Claim
    length: int
    kind: Kind = WINDOWED

    @property
    def violates(self) -> Property:
        return self.claim.prop

    @property
    def name(self) -> str:
        """The discipline, the property, and what else is asked if it is not the usual."""
        contract = "" if self.claim.contract is Contract.SETTLED else f"-{self.claim.contract}"
        return f"{self.discipline.name}-{self.violates}{'-in-flight' if self.claim.in_flight else ''}{contract}"

    @property
    def what(self) -> str:
        """The property, and what else is asked, in words."""
        half = " of a step in flight" if self.claim.in_flight else ""
        has_contract = self.violates in _OF_CONTRACTS and self.claim.contract is not Contract.SETTLED
        return f"{self.violates}{half}" + (f" under {self.claim.contract}" if has_contract else "")

    @property
    def setting(self) -> Setting:
        """A connector is shown finished tables where the prune before that is what is wrong."""
        return Setting(self.kind, self.discipline, connector=self.discipline is RAW_FINISH)


def _refutations(discipline: Discipline, kind: Kind | None = None, **lengths: int) -> list[Refutation]:
    """Under the settled contract a property by its own name, `in_flight_` before it for that half; `ordered_`: under stream_order."""
    return [Refutation(discipline, _CLAIMS[name], length, kind or WINDOWED) for name, length in lengths.items()]


_CLAIMS = {
    "read": Claim(_READ),
    "write": Claim(_WRITE),
    "in_flight_read": Claim(_READ, in_flight=True),
    "in_flight_write": Claim(_WRITE, in_flight=True),
    "ordered_read": Claim(_READ, Contract.STREAM_ORDER),
    "ordered_write": Claim(_WRITE, Contract.STREAM_ORDER),
    "rollback": Claim(_ROLLBACK),
    "counters": Claim(_COUNTERS),
    "held": Claim(_HELD),
}
# The first of each discipline is its headline.
REFUTATIONS = (
    *_refutations(OPTIMISTIC, read=2, in_flight_read=2, rollback=5, write=2, ordered_write=5),
    *_refutations(KEEPS_ONE, held=3),
    *_refutations(DRAFTS_UNPRUNED, held=3),
    *_refutations(STALE_APPLIED, counters=6),
    *_refutations(UNDRAINED, counters=3),
    *_refutations(STALE_UNMARKED, counters=3),
    *_refutations(CEIL, read=3, write=3, in_flight_write=4, ordered_read=3, ordered_write=3, rollback=4),
    *_refutations(NO_FENCE, read=2, in_flight_read=2, write=3),
    *_refutations(RAW_FINISH, read=2, in_flight_read=2, write=3),
    *_refutations(POOL_FENCE, rollback=5, write=5, ordered_write=5),
    *_refutations(CALLBACK, rollback=5, write=5, ordered_write=5),
    *_refutations(MAMBA_LOCAL, MambaAlign(), read=3, in_flight_read=3, write=3),
    *_refutations(LOCAL_SUBTRACTION, read=2, in_flight_read=2, write=2, rollback=7, ordered_write=7, held=3),
    *_refutations(CAP_WITHOUT_IN_FLIGHT, held=1),
    *_refutations(NULL_AT_ALLOCATION, read=1, write=1, ordered_read=1, ordered_write=1, rollback=4),
    *_refutations(DISCARD_FLAG, counters=3),
)

# Counters that are wrong after a preemption let a rejection of the ended generation take the computed count below a hit, so that the next
# step uses what the hit skipped. Each takes seconds to find: `settled refute` does where discipline and property are named.
CONSEQUENCES = tuple(
    refutation
    for discipline in (STALE_APPLIED, STALE_UNMARKED, DISCARD_FLAG)
    for refutation in _refutations(discipline, read=7, write=7, ordered_read=7, ordered_write=7)
)


_OF_CONTRACTS = (_READ, _WRITE)  # the others are judged by the host's clock, whatever the contract


def under(contract: Contract, *, with_consequences: bool = False) -> list[Refutation]:
    """What is refuted under a contract, the halves that speak of steps in flight left out."""
    listed = (*REFUTATIONS, *CONSEQUENCES) if with_consequences else REFUTATIONS
    whole = [refutation for refutation in listed if not refutation.claim.in_flight]
    free = [refutation for refutation in whole if refutation.violates not in _OF_CONTRACTS]
    # No writer of the bounded search is out of order, so the last two contracts are one there.
    searched = Contract.SETTLED if contract is Contract.SETTLED else Contract.STREAM_ORDER
    wanted = [refutation for refutation in whole if refutation in free or refutation.claim.contract is searched]
    return [replace(refutation, claim=refutation.claim._replace(contract=contract)) for refutation in wanted]


@dataclass(frozen=True)
class Counterexample:
    """A shortest trace, its events, and the monitor's verdict on them under the contract of the refutation."""

    refutation: Refutation
    shortest: Shortest
    events: tuple[Event, ...]
    report: Report

    @property
    def violation(self) -> Violation | None:
        """The first violation of what the refutation names."""
        return next(iter(matching(self.report, self.refutation.claim)), None)


def matching(report: Report, claim: Claim) -> list[Violation]:
    """The violations of a claim; of its half in flight those of a block that the step had when it was scheduled."""
    found = report.result(claim.prop).violations
    return [violation for violation in found if not (claim.in_flight and violation.cause.startswith(Loss.ABSENT))]


@dataclass(frozen=True)
class Replayed:
    """What the reference did with the same decisions, under the broken discipline and under the right one."""

    events: tuple[Event, ...]
    report: Report
    same_events: bool
    right_events: tuple[Event, ...]
    right_report: Report

    def agrees(self, refutation: Refutation) -> bool:
        """Same events, same violated property, and nothing violated once the discipline is right."""
        violated = bool(matching(self.report, refutation.claim))
        return self.same_events and violated and not any(result.count for result in self.right_report.properties)


def search(refutation: Refutation) -> Counterexample | None:
    """The shortest counterexample, or None if there is none within 2 events more than claimed. Raises UndecidedError."""
    shortest = shortest_violation(refutation.setting, refutation.claim, length_max=refutation.length + 2)
    if shortest is None:
        return None
    events = tuple(_told(shortest, refutation))
    return Counterexample(refutation, shortest, events, judge(events, refutation.claim.contract))


def _told(shortest: Shortest, refutation: Refutation) -> list[Event]:
    """By the model, block by block; of a state kind by the reference, which is given the steps."""
    if isinstance(refutation.kind, SlidingWindow):
        return events_of(shortest, refutation.discipline)
    from settled.reference.replay import replay

    return replay(decisions_of(shortest, refutation.discipline), refutation.discipline)


def judge(events: Iterable[Event], contract: Contract = Contract.SETTLED) -> Report:
    """The monitor's report on events that start with their config; line numbers count from 1."""
    numbered = list(enumerate(events, start=1))
    config = numbered[0][1]
    assert isinstance(config, Config)
    monitor = Monitor(config, contract)
    for line, event in numbered:
        monitor.feed(line, event)
    return monitor.finish()


def run_on_reference(counterexample: Counterexample) -> Replayed:
    """Executes the counterexample on the reference engine, broken and right. Raises ReplayError."""
    from settled.reference.replay import replay

    refutation = counterexample.refutation
    events = replay(counterexample.events, refutation.discipline)
    right = replay(counterexample.events, RIGHT)
    same = canonical(events) == canonical(counterexample.events)
    contract = refutation.claim.contract
    return Replayed(tuple(events), judge(events, contract), same, tuple(right), judge(right, contract))


# ---- comparing traces ------------------------------------------------------------------------------------------------

_COMPARED = (Schedule, Process, Preempt, Finish, Allocate, Touch, Release, Hold, Drop)


def canonical(events: Sequence[Event]) -> list[tuple[object, ...]]:
    """What two traces share if they tell the same story: steps, counters, table indices, and blocks by order of appearance."""
    names: dict[int, int] = {0: 0}

    def blocks(ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(names.setdefault(block, len(names)) for block in ids)

    story: list[tuple[object, ...]] = []
    for event in events:
        if not isinstance(event, _COMPARED):
            continue
        match event:
            case Schedule():
                entries = [
                    (e.request, e.start, e.tokens, e.drafts, tuple(map(blocks, e.new_blocks)), e.resumed, e.counters)
                    for e in event.requests
                ]
                story.append(("schedule", event.step, *entries))
            case Process():
                story.append(("process", event.step, *((e.request, e.sampled, e.rejected, e.counters) for e in event.requests)))
            case Allocate() | Touch():
                story.append((event.name, event.request, event.group, event.first_index, blocks(event.blocks)))
            case Release():
                paired = sorted(zip(event.indices, blocks(event.blocks), strict=True))
                story.append(("release", event.request, event.group, *paired, event.cause, tuple(sorted(blocks(event.freed)))))
            case Hold() | Drop():
                story.append((event.name, event.holder, tuple(sorted(blocks(event.blocks)))))
            case Preempt():
                story.append(("preempt", event.request))
            case Finish():
                story.append(("finish", event.request, event.reason))
    return story
