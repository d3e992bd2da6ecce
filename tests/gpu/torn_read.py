"""A block overwritten while one attention kernel is inside its loop: a torn read, proved by events, and its fenced counterpart.

A request decodes; every block that its query reads is given to a load of somebody else. The kernel stops between two tiles until the host
lets it on. In the unfenced case the load's event has happened by then and the kernel's has not: it read the first half before the load and
the second half after it. Fenced, the load waits for the kernel's event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench import Bench

from settled.model.specs import FullAttentionSpec
from settled.reference.device.compiling import compile_log
from settled.reference.device.cuda.against_cpu import NUMBERS
from settled.reference.device.cuda.launches import Gate, Launches
from settled.reference.device.cuda.variants import TILE
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import (
    COMPUTE,
    FIRST_TRANSFER,
    HOST,
    FillWork,
    KeysPart,
    Launch,
    LaunchKind,
    OpLog,
    Slots,
    StepWork,
    TransferWork,
)
from settled.reference.device.outcome import Outcome
from settled.reference.device.tags import Tag, describe, pack

TILES = 8
BLOCK_SIZE = TILE  # tokens: the tile that is read next is a block of its own
TOKENS = TILES * TILE
GATE_TILE = TILES // 2
SPINS = 4_000_000  # looks at pinned memory, of a microsecond or so each: the kernel ends even if nobody lets it on
SECONDS = 5.0  # for each thing that the host waits for
CLOSED_SECONDS = 0.02  # how long the fenced load is looked at before it counts as held back
READ, OVERWRITE = 4, 5  # ops of the log


@dataclass(slots=True)
class Seen:
    """`has_arrived`: the kernel was inside its loop. `writer_ended`, `reader_ended`: whether their events had happened before the host let
    the kernel on.
    """

    has_arrived: bool = False
    writer_ended: bool = False
    reader_ended: bool = False
    has_drained: bool = False


def run(bench: Bench) -> None:
    launches, gate = _made(bench)
    _warm_up(bench, launches, gate)
    for is_fenced in (False, True):
        seen = _run(bench, launches, gate, is_fenced)
        _judge(bench, launches.outcome(), seen, is_fenced, int(gate.arrived[0]))
        bench.report.save()


def the_log() -> OpLog:
    """The prompt is loaded on the compute stream, the last token written, its query asked; then the load of somebody else."""
    blocks = tuple(range(1, TILES + 1))
    log = OpLog((FullAttentionSpec(block_size=BLOCK_SIZE),), len(blocks) + 1, 1, FIRST_TRANSFER + 1)
    mine, others = ([pack(Tag(request, 0, 0, 0, token)) for token in range(TOKENS)] for request in (0, 1))
    part = KeysPart("a", 0, 0, blocks, TOKENS - 1, 1, TOKENS - 1, tuple(mine[-1:]), 0, tuple(mine), True)
    table, step = FillWork(0, (blocks,)), StepWork(0, (part,))
    works = (
        (HOST, LaunchKind.FILL, table),
        (COMPUTE, LaunchKind.UPLOAD, table),
        (COMPUTE, LaunchKind.LOAD, TransferWork("prompt", _slots(blocks, mine[:-1]))),
        (COMPUTE, LaunchKind.WRITE, step),
        (COMPUTE, LaunchKind.STEP, step),
        (FIRST_TRANSFER, LaunchKind.LOAD, TransferWork("others", _slots(blocks, others))),
    )
    log.ops += [Launch(stream, kind, (), (), work) for stream, kind, work in works]
    return log


def _slots(blocks: tuple[int, ...], tags: list[int]) -> tuple[Slots, ...]:
    pieces = [tuple(tags[first : first + BLOCK_SIZE]) for first in range(0, len(tags), BLOCK_SIZE)]
    return tuple([Slots(block, 0, piece) for block, piece in zip(blocks, pieces, strict=True)])


def _made(bench: Bench) -> tuple[Launches, Gate]:
    go, arrived = bench.device.platform.pinned(1), bench.device.platform.pinned(1)
    gate = Gate(READ, 0, GATE_TILE, go, arrived, SPINS)
    compiled = compile_log(the_log())
    bench.device.need_streams(FIRST_TRANSFER)
    return Launches(compiled, NumberedLog(compiled, NUMBERS), bench.device.place, gate=gate), gate


def _warm_up(bench: Bench, launches: Launches, gate: Gate) -> None:
    """With the gate open: everything is compiled and loaded, and nothing is garbled in the log's own order."""
    gate.go[0] = 1
    launch = _begin(bench, launches)
    for op in (READ, OVERWRITE):
        bench.device.enqueue(COMPUTE, partial(launch, op))
    bench.drain()
    outcome = launches.outcome()
    bench.report.check(outcome.is_clean, f"gate open: {outcome.counts()}")
    bench.report.check(int(gate.arrived[0]) == 1, "gate open: the kernel did not come to its gate")


def _begin(bench: Bench, launches: Launches) -> Callable[[int], None]:
    """All up to the read, over on the device."""
    launches.reset()
    launch = bench.queued(launches.run, launches.log)
    launch(0)
    for op in range(1, READ):
        bench.device.enqueue(COMPUTE, partial(launch, op))
    bench.drain()
    return launch


def _run(bench: Bench, launches: Launches, gate: Gate, is_fenced: bool) -> Seen:
    device, seen = bench.device, Seen()
    reader, writer = device.new_events(2)
    gate.go[0], gate.arrived[0] = 0, 0
    launch = _begin(bench, launches)
    try:
        device.enqueue(COMPUTE, partial(launch, READ))
        device.record(reader, COMPUTE)
        seen.has_arrived = device.wait_until(lambda: int(gate.arrived[0]) != 0, SECONDS)
        if is_fenced:
            device.wait(FIRST_TRANSFER, reader)
        device.enqueue(FIRST_TRANSFER, partial(launch, OVERWRITE))
        device.record(writer, FIRST_TRANSFER)
        seen.writer_ended = device.wait_until(lambda: device.driver.has_happened(writer), CLOSED_SECONDS if is_fenced else SECONDS)
        seen.reader_ended = device.driver.has_happened(reader)
    finally:
        gate.go[0] = 1
        seen.has_drained = device.drain(SECONDS)
    device.discard((reader, writer))
    return seen


def _judge(bench: Bench, outcome: Outcome, seen: Seen, is_fenced: bool, arrived: int) -> None:
    name, report = "fenced" if is_fenced else "unfenced", bench.report
    wrong, first = int(outcome.wrong[0]), int(outcome.first[0])
    report.check(seen.has_drained, f"{name}: the device did not end")
    report.check(seen.has_arrived and arrived == 1, f"{name}: the kernel was not held up at its gate (it says {arrived})")
    report.check(not seen.reader_ended, f"{name}: the kernel had ended before the host let it on")
    if is_fenced:
        report.check(not seen.writer_ended, "fenced: the load did not wait for the kernel")
        report.check(outcome.is_clean, f"fenced: {outcome.counts()}")
    else:
        report.check(seen.writer_ended, "unfenced: the load did not end while the kernel stood at its gate")
        is_torn = 0 < first < TOKENS and wrong == TOKENS - first
        report.check(is_torn, f"unfenced: no torn read: {wrong} of {TOKENS} keys are wrong, from position {first} on")
        report.check(first == GATE_TILE * TILE, f"unfenced: torn at position {first}, the gate is behind {GATE_TILE * TILE}")
        report.line = f"torn at position {first} of {TOKENS}: {describe(int(outcome.found[0]))}; fenced: as it must be"
    report.facts[name] = {
        "writer_ended_before_reader": seen.writer_ended and not seen.reader_ended,
        "keys_wrong": wrong,
        "first_wrong": first,
        "of": TOKENS,
    }
