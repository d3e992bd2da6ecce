"""The monitor: feed it a trace event by event; it tells what is violated as soon as that is certain, and the verdict at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from settled.model import events as ev
from settled.model.kinds import Kind
from settled.model.monitor import blocks, rotation, steps, transfers
from settled.model.monitor.findings import NOTHING, Findings, Told
from settled.model.monitor.live import BadEventError, Live, StepRecord
from settled.model.monitor.report import PropertyResult, Report, Verdict
from settled.model.monitor.violation import Violation
from settled.model.properties import Contract, Property
from settled.model.trace_io import TraceError, printable

ALL_PROPERTIES = tuple(Property)
BY_MASK = (Property.READ_RESIDENT, Property.ROLLBACK_RESIDENT, Property.WRITE_OWNED, Property.HELD_BOUNDED)
OF_BLOCKS = (Property.SINGLE_OWNER, Property.HELD_BOUNDED)

Handler = Callable[[Live, int, Any], None]


def default_contract(config: ev.Config) -> Contract:
    """Without a connector that loads into pool blocks, the order of the compute stream is enough.

    So it is where the host waits for each step: a load begins when a step is scheduled, and then no other is unprocessed. What an abort
    frees in between, the device is through with, and nobody takes it before the output is processed (vLLM's EngineCore.step).
    """
    return Contract.SETTLED if config.kv_consumer and config.max_in_flight_steps > 1 else Contract.STREAM_ORDER


class Monitor:
    """Judges one trace under one contract, online. Its memory is bounded by what is alive in the engine.

    `feed` takes events in order, the config left out or fed first; `finish` gives the report. Both raise nothing but TraceError, for an
    event that the trace's own past makes impossible (an unknown request, an id out of range).

    `custom` has the kinds of the groups that a trace calls `custom`, by the name that it gives them; a group whose name is not there is
    not modelled. A custom kind costs a call for each token of a block that is asked about, and its needed-sets must shrink.
    """

    def __init__(
        self,
        config: ev.Config,
        contract: Contract | None = None,
        properties: Iterable[Property] = ALL_PROPERTIES,
        *,
        source: str = "<trace>",
        custom: Mapping[str, Kind] | None = None,
    ) -> None:
        self.contract = contract or default_contract(config)
        self._source = source
        self._findings = Findings(self.contract, properties)
        self._custom = dict(custom or {})
        self._live = Live(config, self._findings, self._custom)
        self._events = 0
        self._gaps = 0
        self._may_restore = True  # a state may follow: the event before was a config
        self._is_blind = False  # a gap was seen, and no config and state since
        self._ended = False
        self._unjudged = 0  # suspects whose true start the trace does not tell
        self._saw_counters = False

    def feed(self, line: int, event: ev.Event) -> Sequence[Violation]:
        """The violations that became certain with this event. Raises TraceError."""
        self._events += 1
        handler = HANDLERS.get(type(event))
        try:
            if handler is None or self._is_blind or self._ended:
                self._set_up(line, event)
            else:
                self._may_restore = False
                handler(self._live, line, event)
        except BadEventError as error:
            raise TraceError(self._source, line, f"{event.name}: {error}", error.hint) from None
        return self._findings.take_fresh() if self._findings.fresh else NOTHING

    def counters(self, request: str) -> tuple[int, int, int] | None:
        """Tokens computed, in flight and stale, as the trace makes them; None for a request that is not there."""
        known = self._live.requests.get(request)
        return None if known is None else (known.computed, known.in_flight, known.stale)

    def unprocessed_steps(self) -> Iterable[StepRecord]:
        """The steps in flight, oldest first, with what is known of each so far. To be looked at only, before the next event is fed."""
        return self._live.steps.values()

    # ---- events about the trace itself -------------------------------------------------------------------------------

    def _set_up(self, line: int, event: ev.Event) -> None:
        match event:
            case ev.Config():
                self._configure(event)
            case ev.State() if self._may_restore:
                self._is_blind = self._may_restore = False
                rotation.restore(self._live, line, event)
            case ev.State():
                raise BadEventError("expected directly after a config only")
            case _ if self._ended:
                raise BadEventError("the trace has ended: expected nothing after `end`")
            case ev.Gap():
                self._gaps += 1
                self._close(judge=False)
                self._is_blind, self._may_restore = True, False
            case ev.End():
                self._end(line, event)

    def _configure(self, config: ev.Config) -> None:
        if self._events > 1 and not self._is_blind:
            raise BadEventError(
                "expected on the first line, or after a gap", "two recordings in one file? each has a config line and is checked alone"
            )
        if self._events > 1:
            self._live = Live(config, self._findings, self._custom)
        self._may_restore = True

    def _end(self, line: int, event: ev.End) -> None:
        self._ended = True
        if self._is_blind:
            return
        live = self._live
        live.residency.no_finish_followed()
        self._close(judge=True)
        if event.idle:
            for request in live.requests.values():
                live.counts.idle(request, line)
            live.ledger.idle(live.requests.values(), line)

    def _close(self, *, judge: bool) -> None:
        """Nothing more will be known of the steps in flight: their suspects are judged by the starts known, or counted."""
        live = self._live
        self._saw_counters |= live.counts.saw_counters
        self._unjudged += len(live.residency.rollbacks) + transfers.loads_unplaced(live)
        for record in live.steps.values():
            for entry in record.entries:
                if judge:
                    live.residency.settle(entry)
                self._unjudged += len(entry.suspects or ())

    # ---- the verdict -------------------------------------------------------------------------------------------------

    def finish(self) -> Report:
        """The verdict. Without an `end` event the tail of the trace is not judged."""
        if not self._ended and not self._is_blind:
            self._close(judge=False)
        return Report(
            contract=self.contract,
            events=self._events,
            complete=self._ended and not self._gaps,
            properties=tuple([self._result(name) for name in self._findings.properties]),
            unknown=self._unknown(),
            remarks=() if self._ended else ("the trace has no `end` event: its tail was not judged",),
        )

    def _unknown(self) -> tuple[str, ...]:
        reasons = [f"group {group} ({kind}) is not modelled" for group, kind in self._live.unmodelled]
        if self._gaps:
            reasons.append(f"the recorder lost events ({self._gaps} gap{'s' if self._gaps > 1 else ''})")
        if self._unjudged:
            reasons.append(f"the trace stops before {self._unjudged} possible violation(s) could be decided")
        return tuple(reasons)

    def _result(self, name: Property) -> PropertyResult:
        findings = self._findings
        tally = findings.tallies[name]
        causes = dict(sorted(tally.causes.items()))
        groups, remarks = self._scope(name)
        return PropertyResult(
            property=name,
            verdict=self._verdict(name, bool(causes), groups),
            count=sum(causes.values()),
            causes=causes,
            groups=groups,
            remarks=remarks,
            violations=Told(tally.kept),
        )

    def _verdict(self, name: Property, violated: bool, groups: tuple[int, ...]) -> Verdict:
        if violated:
            return Verdict.VIOLATED
        if not groups or self._findings.undecided[name] or not self._had_matter(name):
            return Verdict.NOT_CHECKED
        cut_short = self._unjudged and name in BY_MASK
        return Verdict.UNDECIDED if self._gaps or cut_short or not self._ended else Verdict.HOLDS

    def _had_matter(self, name: Property) -> bool:
        """Whether the trace has an event of which the property speaks at all."""
        return self._findings.saw_blocks if name in OF_BLOCKS else self._findings.saw_steps

    def _scope(self, name: Property) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The groups for which a property was checked, and what was not."""
        groups = tuple(range(self._live.num_groups))
        remarks = [f"{reason} ({count} times)" for reason, count in self._findings.undecided[name].items()]
        remarks += [printable(remark) for remark in self._findings.remarks[name]]
        if not self._had_matter(name):
            remarks.append(f"not checked: the trace has no {'blocks taken or given up' if name in OF_BLOCKS else 'requests in steps'}")
        if name in BY_MASK:
            groups = tuple([group for group in groups if self._live.modelled[group]])
            remarks += [f"not checked for group {group}: kind {kind} is not modelled" for group, kind in self._live.unmodelled]
        if name is Property.HELD_BOUNDED:
            remarks += [f"not checked for group {group}: no cap is recorded" for group in groups if not self._has_cap(group)]
            groups = tuple([group for group in groups if self._has_cap(group)])
        if name is Property.COUNTERS_SYMMETRIC and not (self._saw_counters or self._live.counts.saw_counters):
            remarks.append("no counters are recorded: judged by the start of each step and at the end")
        return groups, tuple(remarks)

    def _has_cap(self, group: int) -> bool:
        return self._live.config.groups[group].cap is not None


# ---- requests ------------------------------------------------------------------------------------------------------


def _add(live: Live, line: int, event: ev.Add) -> None:
    live.new_request(event.request, event.prompt_tokens)


def _computed(live: Live, line: int, event: ev.Computed) -> None:
    request = live.active_request(event.request)
    if event.computed < 0:
        raise BadEventError(f"computed is {event.computed}: expected at least 0")
    fell_by = request.computed - event.computed
    if event.stale or fell_by > 0:
        steps.end_generation(live, request, stale=event.stale)
    request.computed = event.computed
    if fell_by > 0:
        live.residency.rolled_back(request, line, fell_by, because=event.cause)


def _preempt(live: Live, line: int, event: ev.Preempt) -> None:
    request = live.active_request(event.request)
    live.residency.no_finish_followed(request)
    steps.end_generation(live, request, stale=True)
    request.end_tables()


def _finish(live: Live, line: int, event: ev.Finish) -> None:
    request = live.active_request(event.request)
    live.residency.finished(request)
    steps.end_generation(live, request, stale=True)
    request.finished = True
    live.forget_if_gone(request)


HANDLERS: dict[type[ev.Event], Handler] = {
    ev.Add: _add,
    ev.Computed: _computed,
    ev.Preempt: _preempt,
    ev.Finish: _finish,
    ev.Schedule: steps.schedule,
    ev.Process: steps.process,
    ev.Allocate: blocks.allocate,
    ev.Touch: blocks.touch,
    ev.Release: blocks.release,
    ev.Hold: blocks.hold,
    ev.Drop: blocks.drop,
    ev.Move: blocks.move,
    ev.Copy: blocks.copy,
    ev.Zero: blocks.zero,
    ev.Cache: blocks.cache,
    ev.Evict: blocks.evict,
    ev.Load: transfers.load,
    ev.Store: transfers.store,
    ev.Loaded: transfers.loaded,
    ev.Stored: transfers.stored,
}
