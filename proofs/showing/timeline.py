"""A trace as what a picture of it needs: spans over the positions of its events, counters, steps, and what is violated where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from settled.model import counters as count
from settled.model.algebra import int_variable
from settled.model.counters import Counters
from settled.model.events import (
    Add,
    Computed,
    Config,
    Event,
    Gap,
    Preempt,
    Process,
    Schedule,
    State,
)
from settled.model.interpret import compile_term
from settled.model.monitor import Monitor, Report, Violation
from settled.model.monitor.state import Entry
from settled.model.properties import Contract, Property
from settled.proofs.showing.owners import Holding, Names, Owners
from settled.proofs.showing.uses import Part, Rows, uses_of

VIOLATIONS_MAX = 500  # that are shown; all are counted

settled_tokens = compile_term(count.settled(Counters(*map(int_variable, "cfs"))), tuple("cfs"))


@dataclass(frozen=True, slots=True)
class CountersAt:
    """A request's counters after the event at a position, in tokens."""

    position: int
    computed: int
    in_flight: int
    stale: int

    @property
    def settled(self) -> int:
        return int(settled_tokens(self.computed, self.in_flight, self.stale))


@dataclass(slots=True)
class StepSpan:
    """A step in flight, from its schedule to before `end`, the position of its process event (None: the trace ends before)."""

    step: int
    begin: int
    end: int | None = None


@dataclass(slots=True)
class Timeline:
    """Positions count events from 0; each event has the line on which it stands. `owner` is an index of `names`."""

    source: str
    config: Config
    events: list[tuple[int, Event]]
    contract: Contract
    is_default_contract: bool
    report: Report
    names: Names
    owners: Owners
    rows: Rows
    parts: list[Part]
    steps: list[StepSpan]
    counters: dict[int, list[CountersAt]]
    prompts: dict[int, int]
    violations: list[tuple[int, Violation]] = field(default_factory=list)  # by line; with the position at which each became certain
    num_violations: int = 0
    _position_of_line: dict[int, int] = field(default_factory=dict)

    def position_of(self, line: int | None) -> int | None:
        """Of the event on a line."""
        if not self._position_of_line:
            self._position_of_line.update((line, position) for position, (line, _) in enumerate(self.events))
        return None if line is None else self._position_of_line.get(line)

    def holder(self, holding: Holding) -> str:
        """Who it is, and where in whose table: "A [3]", "A g1[3]" where there are several groups, or the name of a holder without one."""
        name, group = self.names.names[holding.owner], f"g{holding.group}" if len(self.config.groups) > 1 else ""
        return name if holding.index < 0 else f"{name} {group}[{holding.index}]"

    def counters_before(self, owner: int, position: int) -> CountersAt | None:
        """The counters that a request had before the event at a position."""
        known = [each for each in self.counters.get(owner, ()) if each.position < position]
        return known[-1] if known else None


def timeline_of(
    events: Sequence[tuple[int, Event]], source: str, contract: Contract | None = None, properties: Iterable[Property] = tuple(Property)
) -> Timeline:
    """Reads a whole trace, numbered by line, its config first; judges those properties. Raises TraceError as the monitor does."""
    return _Builder(events, source, contract, properties).build()


class _Builder:
    def __init__(self, events: Sequence[tuple[int, Event]], source: str, contract: Contract | None, properties: Iterable[Property]) -> None:
        config = events[0][1]
        assert isinstance(config, Config)
        self.events, self.config = list(events), config
        self.monitor = Monitor(config, contract, properties, source=source)
        self.names, self.rows = Names(), Rows()
        self.owners = Owners(self.names)
        self.timeline = Timeline(
            source=source,
            config=config,
            events=self.events,
            contract=self.monitor.contract,
            is_default_contract=contract is None,
            report=self.monitor.finish(),
            names=self.names,
            owners=self.owners,
            rows=self.rows,
            parts=[],
            steps=[],
            counters={},
            prompts={},
        )
        self.open_steps: dict[int, StepSpan] = {}
        self.begun: dict[int, int] = {}  # step → where it was scheduled
        self.lookahead = config.num_lookahead_tokens

    def build(self) -> Timeline:
        timeline = self.timeline
        for position, (line, event) in enumerate(self.events):
            self._before(position, event)
            for violation in self.monitor.feed(line, event):
                timeline.num_violations += 1
                if len(timeline.violations) < VIOLATIONS_MAX:
                    timeline.violations.append((position, violation))
            self.owners.take(position, event)
            self._after(position, event)
        self._take_parts(None, None)
        self.owners.finish()
        timeline.report = self.monitor.finish()
        timeline.violations.sort(key=lambda found: (found[1].line, found[0]))
        return timeline

    def _before(self, position: int, event: Event) -> None:
        """While a step is still unprocessed: by now all earlier outputs are known, and so its true start is."""
        if isinstance(event, Process):
            self._take_parts(position, event.step)
        elif isinstance(event, Gap):
            self._take_parts(position, None)
        elif isinstance(event, Config):
            self.lookahead = event.num_lookahead_tokens

    def _after(self, position: int, event: Event) -> None:
        match event:
            case Schedule():
                self._begin_step(position, event.step)
                self._count(position, [each.request for each in event.requests])
            case Process():
                self._count(position, [each.request for each in event.requests])
            case Add():
                self.timeline.prompts[self.names.number(event.request)] = event.prompt_tokens
                self._count(position, [event.request])
            case Computed() | Preempt():
                self._count(position, [event.request])
            case State():
                for step in event.unprocessed:
                    self._begin_step(position, step.step)
                for known in event.requests:
                    self.timeline.prompts[self.names.number(known.request)] = known.prompt_tokens
                self._count(position, [known.request for known in event.requests])

    def _begin_step(self, position: int, step: int) -> None:
        span = StepSpan(step, position)
        self.open_steps[step] = span
        self.timeline.steps.append(span)

    def _take_parts(self, position: int | None, step: int | None) -> None:
        """Those of a step that is about to be processed; without one, of all that are in flight."""
        for record in list(self.monitor.unprocessed_steps()):
            if step is None or record.step == step:
                span = self.open_steps.pop(record.step)
                span.end = position
                self.timeline.parts.extend(self._part(span, entry) for entry in record.entries)

    def _part(self, span: StepSpan, entry: Entry) -> Part:
        owner = self.names.number(entry.request.name)
        uses = uses_of(entry, self.lookahead, self.rows)
        return Part(
            step=span.step,
            owner=owner,
            begin=span.begin,
            end=span.end,
            scheduled=entry.end - entry.tokens,
            start=entry.start,
            tokens=entry.tokens,
            drafts=entry.drafts,
            uses=uses,
        )

    def _count(self, position: int, requests: Iterable[str]) -> None:
        for request in requests:
            known = self.monitor.counters(request)
            if known is not None:
                self.timeline.counters.setdefault(self.names.number(request), []).append(CountersAt(position, *known))
