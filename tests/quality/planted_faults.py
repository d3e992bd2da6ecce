"""Planted faults for the monitor: hand-made traces, each with one fault that one of the monitor's checks finds.

Blocks hold 4 tokens and the window is 4 unless it is said: the query at position q reads q-3 to q.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from trace_builder import FULL, TraceBuilder, entry, output

from settled.model import events as ev
from settled.model.monitor.violation import Loss
from settled.model.properties import Contract
from settled.model.specs import MambaSpec, SlidingWindowSpec

CAPPED = SlidingWindowSpec(block_size=4, window=4, cap=3)
ROOMY = SlidingWindowSpec(block_size=4, window=4, cap=9)
STATES = MambaSpec(block_size=4, mode="align")


class Fault(NamedTuple):
    """A trace with one fault, and the contract under which it is one."""

    trace: TraceBuilder
    contract: Contract = Contract.SETTLED


def _in_flight(*blocks: int, **config: Any) -> TraceBuilder:
    """A has 8 tokens processed, and step 2, which reads 5 to 8 and writes 8, in flight."""
    blocks = blocks or (1, 2, 3)
    trace = TraceBuilder(**config).add().allocate(*blocks).schedule(1, entry(0, 8, blocks)).process(1, output())
    return trace.schedule(2, entry(8, 1))


def _writing(**config: Any) -> TraceBuilder:
    """Step 1 of A, in flight, writes block 1; what is cached is recorded."""
    return TraceBuilder(FULL, records=("content",), **config).add().allocate(1).schedule(1, entry(0, 4, [1]))


def _rolled_back() -> TraceBuilder:
    """Step 2 of A rejects 3 drafts and goes back to 8; block 2, with tokens 4 to 7, is gone. B has a step in flight."""
    trace = TraceBuilder().add().add("B").allocate(1, 2, 3).allocate(4, request="B").schedule(1, entry(0, 7, [1, 2, 3]))
    trace.process(1, output()).schedule(2, entry(7, 4, drafts=3)).schedule(3, entry(0, 2, [4], request="B"))
    return trace.release({0: 1, 1: 2}).process(2, output(rejected=3))


def _suspect() -> TraceBuilder:
    """Step 2 of A writes and reads token 12 in block 4 unless step 1 rejects drafts; block 4 is released under it."""
    trace = TraceBuilder().add().allocate(1, 2, 3, 4).schedule(1, entry(8, 4, [1, 2, 3, 4], drafts=3)).schedule(2, entry(12, 1))
    return trace.release({3: 4})


def _moved(*, from_index: int, to_index: int, block: int) -> TraceBuilder:
    trace = TraceBuilder(STATES).add().allocate(1, 2)
    return trace.put(ev.Move(request="A", group=0, from_index=from_index, to_index=to_index, block=block))


def _restored() -> TraceBuilder:
    """A trace that starts in mid-run: the step in flight reads block 2, which A has released and nobody owns."""
    part = ev.UnprocessedRequest(request="A", start=8, tokens=1, drafts=0, rows=((1, 2, 3),), live=True)
    known = ev.RequestState(request="A", prompt_tokens=8, computed=9, in_flight=1, stale=0)
    step = ev.UnprocessedStep(step=2, requests=(part,))
    trace = TraceBuilder().put(ev.State(requests=(known,), unprocessed=(step,), tables={"A": ((1, 0, 3),)}))
    return trace.add("B").allocate(2, request="B")


def _capped_prune() -> TraceBuilder:
    trace = TraceBuilder(ROOMY).add().allocate(1, 2, 3, 4).schedule(1, entry(0, 13, [1, 2, 3, 4])).process(1, output())
    return trace.release({1: 2})


def _kept_at_schedule() -> TraceBuilder:
    trace = TraceBuilder(CAPPED).add().allocate(1, 2, 3).schedule(1, entry(0, 8, [1, 2, 3])).process(1, output())
    return trace.schedule(2, entry(8, 1))


def _hold(trace: TraceBuilder, kind: Any, *blocks: int) -> TraceBuilder:
    return trace.put(ev.Hold(holder="h", kind=kind, blocks=blocks))


def _drop(trace: TraceBuilder, freed: tuple[int, ...], *blocks: int) -> TraceBuilder:
    return trace.put(ev.Drop(holder="h", blocks=blocks, freed=freed))


def _fenced() -> TraceBuilder:
    """A is preempted and begins again; what its first generation held never comes back."""
    trace = TraceBuilder(FULL).add().allocate(1).schedule(1, entry(0, 4, [1])).put(ev.Preempt(request="A"))
    trace.allocate(2).schedule(2, entry(0, 4, [2], resumed=True)).process(1, output()).process(2, output()).finish()
    return trace.release({0: 2}, "finish").end(idle=True)


def _load(trace: TraceBuilder, *blocks: int, contract: Contract = Contract.STREAM_ORDER) -> Fault:
    return Fault(trace.load(7, *blocks), contract)


def _written_only() -> TraceBuilder:
    """Step 2 of A may write tokens 9 to 12 beside its own, so it writes block 4 and does not read it."""
    return _in_flight(1, 2, 3, 4, num_lookahead_tokens=4, records=("order",))


def _gone(**keys: Any) -> ev.Release:
    return ev.Release(**{"request": "A", "group": 0, "indices": (), "blocks": (), "cause": "finish", "freed": (), **keys})


def _lost_write() -> Fault:
    return Fault(_written_only().release({3: 4}).add("B").allocate(4, request="B"))


def _finished() -> TraceBuilder:
    return TraceBuilder().add().allocate(1).finish().release({0: 1}, "finish")


def _shared_at_schedule() -> Fault:
    trace = TraceBuilder(FULL, records=("content",)).add().allocate(1).add("B").touch(1, request="B")
    return Fault(trace.schedule(1, entry(0, 4, [1])))


def _hit_while_written() -> Fault:
    return Fault(_writing().add("B").touch(1, request="B"))


def _hit_after_release() -> Fault:
    return Fault(
        _writing()
        .put(ev.Cache(entries=(ev.CacheEntry(block=1, request="A", start=0, end=3),)))
        .put(ev.Preempt(request="A"))
        .release({0: 1}, "preempt")
        .add("B")
        .touch(1, request="B"),
        Contract.STREAM_ORDER,
    )


def _null(way: str) -> Fault:
    trace = TraceBuilder().add()
    match way:
        case "allocate":
            return Fault(trace.allocate(0))
        case "touch":
            return Fault(trace.touch(0))
        case "release":
            return Fault(trace.allocate(1, first=1).release({0: 0}, freed=()))
    return Fault(_hold(trace, "pin", 0))


def _absent(contract: Contract = Contract.STREAM_ORDER) -> Fault:
    trace = TraceBuilder().add().allocate(1, 2, 3).schedule(1, entry(0, 8, [1, 2, 3])).process(1, output())
    return Fault(trace.release({1: 2}).schedule(2, entry(8, 1)), contract)


def _absent_write(contract: Contract) -> Fault:
    """The step keeps its state at index 1, where nothing is."""
    trace = TraceBuilder(STATES).add().allocate(1).schedule(1, entry(0, 4, [1], reads=((),), writes=((1,),)))
    return Fault(trace, contract)


def _loaded_over(contract: Contract) -> Fault:
    trace = TraceBuilder(records=("order",)).add().allocate(1, 2, 3).schedule(1, entry(0, 8, [1, 2, 3])).process(1, output())
    trace.schedule(2, entry(8, 1)).add("B")
    return _load(trace, 2, contract=contract)


def _shared(contract: Contract) -> Fault:
    return Fault(_shared_at_schedule().trace, contract)


def _wrong_starts() -> tuple[Fault, ...]:
    def behind() -> TraceBuilder:
        return TraceBuilder(FULL).add().allocate(1, 2).schedule(1, entry(0, 4, [1, 2]))

    return Fault(behind().schedule(2, entry(3, 1))), Fault(behind().schedule(2, entry(5, 1)))


def _wrong_counters(at: str) -> Fault:
    wrong = {"counters": (4, 0, 0)} if at == "schedule" else {}
    trace = TraceBuilder(FULL).add().allocate(1).schedule(1, entry(0, 4, [1], **wrong))
    return Fault(trace if wrong else trace.process(1, output(counters=(4, 4, 0))))


def _in_flight_at_end() -> Fault:
    trace = TraceBuilder().add().allocate(1).schedule(1, entry(0, 4, [1])).finish().release({0: 1}, "finish")
    return Fault(trace.end(idle=True), Contract.STREAM_ORDER)


def _held_at_end() -> Fault:
    return Fault(TraceBuilder().add().allocate(1).finish().end(idle=True))


def _allocated_twice() -> Fault:
    return Fault(TraceBuilder().add().allocate(1).add("B").allocate(1, request="B"))


def _failed_load() -> Fault:
    """A's load fails from token 4 on, and block 1, with tokens 0 to 3, is gone."""
    trace = TraceBuilder().add().allocate(1, 2, 3).put(ev.Computed(request="A", computed=8, cause="external", stale=False))
    return Fault(trace.release({0: 1}).put(ev.Computed(request="A", computed=4, cause="load_failed", stale=False)).end())


def _rolled_back_then_scheduled() -> Fault:
    return Fault(_rolled_back().schedule(4, entry(2, 1, request="B")), Contract.STREAM_ORDER)


def _suspect_processed() -> Fault:
    return Fault(_suspect().process(1, output()).process(2, output()))


HARMED: dict[tuple[Loss, bool], Callable[[Contract], Fault]] = {
    (Loss.ABSENT, False): _absent,
    (Loss.ABSENT, True): _absent_write,
    (Loss.FREED, False): lambda contract: Fault(_in_flight().release({1: 2}), contract),
    (Loss.REALLOCATED, False): lambda contract: Fault(_restored(), contract),
    (Loss.REALLOCATED, True): lambda contract: Fault(_lost_write().trace, contract),
    (Loss.LOADED_OVER, False): _loaded_over,
    (Loss.LOADED_OVER, True): lambda contract: _load(_written_only().add("B"), 4, contract=contract),
    (Loss.SHARED, True): _shared,
}
"""A loss, and whether the step writes (or else reads) the block: a fault of that sort and of no other."""


FAULTS: dict[str, Callable[[], tuple[Fault, ...]]] = {
    "blocks.allocate: live.residency.lost": lambda: (_lost_write(), Fault(_restored())),
    "blocks.allocate: ledger.replaced": lambda: (Fault(TraceBuilder().add().allocate(1).allocate(2)),),
    "blocks.allocate: live.bounds.grew": lambda: (Fault(TraceBuilder(CAPPED).add().allocate(1, 2, 3, 4)),),
    "blocks.touch: sharing.joined": lambda: (_hit_while_written(),),
    "blocks.touch: live.ledger.replaced": lambda: (Fault(TraceBuilder().add().allocate(1).touch(2)),),
    "blocks.touch: live.bounds.grew": lambda: (Fault(TraceBuilder(CAPPED).add().touch(1, 2, 3, 4)),),
    "blocks.release: live.ledger.not_held": lambda: (Fault(_finished().put(_gone(indices=(0,), blocks=(1,)))),),
    "blocks.release: live.ledger.compare_freed": lambda: (Fault(_finished().put(_gone(freed=(1,)))),),
    "blocks.release: live.ledger.compare_freed #2": lambda: (
        Fault(TraceBuilder().add().allocate(1).release({0: 1}, freed=())),
        Fault(TraceBuilder().add().allocate(1).add("B").touch(1, request="B").release({0: 1}, freed=[1])),
    ),
    "blocks.release: live.bounds.pruned": lambda: (Fault(_capped_prune()),),
    "blocks._release_all: live.ledger.not_held": lambda: (
        Fault(TraceBuilder().add().allocate(1, 2).release({0: 1}).release({0: 1}, freed=())),
        Fault(TraceBuilder().add().allocate(1).add("B").allocate(2, request="B").release({0: 2}, freed=())),
        _null("release"),
    ),
    "blocks._release_all: live.residency.released": lambda: (Fault(_in_flight().release({1: 2})),),
    "blocks._release_all: live.residency.lost": lambda: (Fault(_in_flight().release({1: 2})),),
    "blocks.move: live.ledger.not_held": lambda: (Fault(_moved(from_index=1, to_index=3, block=1)),),
    "blocks.move: live.ledger.replaced": lambda: (Fault(_moved(from_index=0, to_index=1, block=1)),),
    "blocks.hold: sharing.joined": lambda: (Fault(_hold(_writing(), "copy", 1)),),
    "blocks.drop: live.residency.lost": lambda: (Fault(_drop(_hold(_in_flight(), "pin", 2).release({1: 2}, freed=()), (2,), 2)),),
    "blocks.drop: live.ledger.compare_freed": lambda: (Fault(_drop(_hold(TraceBuilder(), "pin", 1), (), 1)),),
    "bounds.Bounds.grew: self._report": lambda: (Fault(TraceBuilder(CAPPED).add().allocate(1, 2, 3, 4)),),
    "bounds.Bounds.pruned: self._report": lambda: (Fault(_capped_prune()),),
    "bounds.Bounds._report: self._findings.add": lambda: (Fault(_capped_prune()),),
    "counts.Counts.before_schedule: self._report": _wrong_starts,
    "counts.Counts.compare: self._report": lambda: (_wrong_counters("schedule"), _wrong_counters("process")),
    "counts.Counts.idle: self._report": lambda: (_in_flight_at_end(),),
    "counts.Counts._report: self._findings.add": lambda: (_in_flight_at_end(),),
    "ledger.Ledger.allocate: self._refused": lambda: (_allocated_twice(), _null("allocate")),
    "ledger.Ledger.touch: self._report": lambda: (_null("touch"),),
    "ledger.Ledger.touch: self._report #2": lambda: (Fault(TraceBuilder(records=("content",)).add().touch(1)),),
    "ledger.Ledger.replaced: self._report": lambda: (Fault(TraceBuilder().add().allocate(1).allocate(2)),),
    "ledger.Ledger.not_held: self._report": lambda: (_null("release"), Fault(_finished().put(_gone(indices=(0,), blocks=(1,))))),
    "ledger.Ledger.compare_freed: self._report": lambda: (Fault(_finished().put(_gone(freed=(1,)))),),
    "ledger.Ledger.compare_freed: self._report #2": lambda: (Fault(TraceBuilder().add().allocate(1).release({0: 1}, freed=())),),
    "ledger.Ledger.hold: self._report": lambda: (_null("hold"),),
    "ledger.Ledger.drop: self._report": lambda: (Fault(_drop(TraceBuilder(), (), 1)),),
    "ledger.Ledger.idle: self._report": lambda: (_held_at_end(),),
    "ledger.Ledger.idle: self._report #2": lambda: (Fault(_fenced()),),
    "ledger.Ledger._refused: self._report": lambda: (_allocated_twice(), _null("allocate")),
    "ledger.Ledger._report: self._findings.add": lambda: (_allocated_twice(),),
    "monitor.Monitor._end: live.residency.no_finish_followed": lambda: (Fault(_rolled_back().end(), Contract.STREAM_ORDER),),
    "monitor.Monitor._end: live.counts.idle": lambda: (_in_flight_at_end(),),
    "monitor.Monitor._end: live.ledger.idle": lambda: (_held_at_end(), Fault(_fenced())),
    "monitor.Monitor._close: live.residency.settle": lambda: (Fault(_suspect().end()),),
    "monitor._computed: live.residency.rolled_back": lambda: (_failed_load(),),
    "monitor._preempt: live.residency.no_finish_followed": lambda: (
        Fault(_rolled_back().put(ev.Preempt(request="A")), Contract.STREAM_ORDER),
    ),
    "residency.Residency.lost: self.judge": lambda: (_lost_write(), Fault(_in_flight().release({1: 2}))),
    "residency.Residency.judge: self._report": lambda: (_lost_write(), _absent(), _loaded_over(Contract.STREAM_ORDER)),
    "residency.Residency.shared: self.judge": lambda: (_shared_at_schedule(), _hit_while_written()),
    "residency.Residency.settle: self._report": lambda: (Fault(_suspect().end()), _suspect_processed()),
    "residency.Residency.scheduled: self.judge": lambda: (_absent(),),
    "residency.Residency.no_finish_followed: self._report_rollback": lambda: (Fault(_rolled_back().end(), Contract.STREAM_ORDER),),
    "residency.Residency._report: self._findings.found": lambda: (_absent(), _lost_write()),
    "residency.Residency._report_rollback: self._findings.add": lambda: (Fault(_rolled_back().end(), Contract.STREAM_ORDER),),
    "rotation._restore_entry: live.residency.released": lambda: (Fault(_restored()),),
    "sharing.scheduled: live.residency.shared": lambda: (_shared_at_schedule(),),
    "sharing.joined: live.residency.shared": lambda: (_hit_while_written(),),
    "sharing.joined: live.residency.shared #2": lambda: (_hit_after_release(),),
    "steps.schedule: residency.no_finish_followed": lambda: (_rolled_back_then_scheduled(),),
    "steps.schedule: counts.before_schedule": _wrong_starts,
    "steps.schedule: bounds.pruned": lambda: (Fault(_kept_at_schedule()),),
    "steps.schedule: counts.compare": lambda: (_wrong_counters("schedule"),),
    "steps.schedule: residency.scheduled": lambda: (_absent(),),
    "steps.schedule: sharing.scheduled": lambda: (_shared_at_schedule(),),
    "steps.process: live.residency.no_finish_followed": lambda: (
        Fault(_rolled_back().process(3, output(request="B")), Contract.STREAM_ORDER),
    ),
    "steps.process: live.residency.settle": lambda: (_suspect_processed(),),
    "steps.process: live.counts.compare": lambda: (_wrong_counters("process"),),
    "steps._take_back: live.residency.rolled_back": lambda: (Fault(_rolled_back().end(), Contract.STREAM_ORDER),),
    "transfers.load: _judge": lambda: (_load(_in_flight().release({1: 2}).add("B").allocate(2, request="B"), 2),),
    "transfers.load: _judge #2": lambda: (_loaded_over(Contract.STREAM_ORDER),),
    "transfers._judge: live.residency.judge": lambda: (_loaded_over(Contract.STREAM_ORDER),),
}
"""Each check, and the faults that only it finds."""
