"""A short trace on real buffers: the first token that comes out wrong, and in which order of the device that happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from settled.model.events import NULL_BLOCK, Event
from settled.reference.device.compiled import CompiledLog
from settled.reference.device.compiling import compile_log
from settled.reference.device.lowering import lower
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import JANITOR, BlocksWork, Launch, LaunchKind, OpLog, StepWork
from settled.reference.device.orders import LaunchOrder
from settled.reference.device.payload import Numbers
from settled.reference.device.replay import replay
from settled.reference.device.results import Counts, Garbled, sentence
from settled.reference.device.worker import RIGHT_WORKER, TOLD_OF_NULLS, Worker

AS_ENQUEUED, OVERWRITTEN = "as enqueued", "what is freed is overwritten at once"
NULL_OVERWRITTEN = "somebody else writes into the null block"


@dataclass(frozen=True, slots=True)
class Shown:
    """`order` and `worker`: how the device ran; `token`: the first wrong one, in words. `counts`: of the whole trace."""

    worker: Worker
    order: str
    token: str
    counts: Counts
    is_null: bool

    def __str__(self) -> str:
        worker = "" if self.worker is RIGHT_WORKER else f", worker {self.worker.name}"
        outputs = f"{self.counts.rows_differing} of {self.counts.rows} attention outputs differ from contiguous memory"
        return f"{self.order}{worker}: {self.token}; {outputs}"


def show(events: Sequence[Event]) -> Shown | None:
    """The first wrong token of a trace, by the simplest way in which there is one; None if there is none.

    The ways: as enqueued, with rows that only grow and with a worker that is told of nulls; then with freed blocks overwritten, as a load
    may, before what still uses them; then with the null block, which is everybody's, overwritten before a step's reads.
    """
    for worker in (RIGHT_WORKER, TOLD_OF_NULLS):
        log = lower(events, worker=worker)
        shown = _shown(worker, AS_ENQUEUED, log, log.launches())
        if shown is not None:
            return shown
    log = lower(events, poisons=True)
    for order in _poisoned_orders(log):
        shown = _shown(RIGHT_WORKER, OVERWRITTEN, log, order)
        if shown is not None:
            return shown
    for log, order in _with_null_overwritten(lower(events)):
        shown = _shown(RIGHT_WORKER, NULL_OVERWRITTEN, log, order)
        if shown is not None:
            return shown
    return None


def _poisoned_orders(log: OpLog) -> Iterator[list[int]]:
    """Each poisoning as early as it may run, before the launch that still uses the block."""
    order = LaunchOrder(log)
    yield order.transfers_first()
    poisons = [index for index in log.launches() if _stream(log, index) == JANITOR]
    for second in poisons:
        for first in log.launches():
            if first < second and _stream(log, first) != JANITOR and not order.comes_before(first, second):
                yield order.directed(first, second)


def _with_null_overwritten(log: OpLog) -> Iterator[tuple[OpLog, list[int]]]:
    """For each step: enqueued behind it, run before it reads."""
    written = Launch(JANITOR, LaunchKind.POISON, (), (NULL_BLOCK,), BlocksWork((NULL_BLOCK,)))
    for index in log.launches():
        if _kind(log, index) is LaunchKind.STEP:
            changed = replace(log, ops=[*log.ops[: index + 1], written, *log.ops[index + 1 :]])
            yield changed, LaunchOrder(changed).directed(index, index + 1)


def _kind(log: OpLog, index: int) -> LaunchKind:
    op = log.ops[index]
    assert isinstance(op, Launch)
    return op.kind


def _stream(log: OpLog, index: int) -> int:
    op = log.ops[index]
    assert isinstance(op, Launch)
    return op.stream


def _shown(worker: Worker, order: str, log: OpLog, launches: list[int]) -> Shown | None:
    compiled = compile_log(log)
    result = replay(compiled, launches, NumberedLog(compiled, Numbers()), limit=1)
    if result.counts.is_clean:
        return None
    garbled = result.garbled[0]
    return Shown(worker, order, _token(compiled, garbled), result.counts, garbled.is_null)


def _token(compiled: CompiledLog, garbled: Garbled) -> str:
    op = compiled.log.ops[garbled.op]
    assert isinstance(op, Launch)
    if not isinstance(op.work, StepWork):
        return sentence(garbled, compiled.describe)
    request = op.work.parts[garbled.part].request
    what = f"the state of {garbled.position} tokens" if garbled.is_state else f"position {garbled.position}"
    through = " through a null entry" if garbled.is_null else ""
    should, found = compiled.describe(garbled.expected), compiled.describe(garbled.found)
    return f"in step {op.work.step} query {garbled.query} of {request} reads {what}: it should hold {should}; found{through}: {found}"
