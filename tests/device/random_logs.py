"""Small random op logs, and happens-before over them by plain closure: what the detector and the orders are checked against."""

from __future__ import annotations

import random

from settled.model.specs import FullAttentionSpec
from settled.reference.device.ops import (
    COMPUTE,
    FIRST_TRANSFER,
    HOST,
    JANITOR,
    BlocksWork,
    FillWork,
    Free,
    HostSync,
    KeysPart,
    Launch,
    LaunchKind,
    Op,
    OpLog,
    Record,
    StepWork,
    TransferWork,
    Wait,
)
from settled.reference.device.race import Race

Pair = tuple[int, int, int]  # resource, first, second
GROUPS = (FullAttentionSpec(block_size=4),)


def step(number: int, *, reads: tuple[int, ...] = (), writes: tuple[int, ...] = (), request: str = "a", line: int = 0) -> Launch:
    """On the compute stream, of one request, whose table holds what is read and written."""
    blocks = tuple(dict.fromkeys(reads + writes))
    part = KeysPart(request, 0, 0, blocks, 0, 1, 1, (1,), 0, (1,), True)
    return Launch(COMPUTE, LaunchKind.STEP, reads, writes, StepWork(number, (part,)), line)


def load(job: int, *blocks: int, stream: int = FIRST_TRANSFER, line: int = 0) -> Launch:
    return Launch(stream, LaunchKind.LOAD, (), blocks, TransferWork(job, ()), line)


def store(job: int, *blocks: int, stream: int = FIRST_TRANSFER, line: int = 0) -> Launch:
    return Launch(stream, LaunchKind.STORE, blocks, (), TransferWork(job, ()), line)


def poison(*blocks: int) -> Launch:
    return Launch(JANITOR, LaunchKind.POISON, (), blocks, BlocksWork(blocks))


def fill(log: OpLog, staging: int = 0) -> Launch:
    return Launch(HOST, LaunchKind.FILL, (), (log.staging(staging),), FillWork(staging, ()))


def upload(log: OpLog, staging: int = 0) -> Launch:
    return Launch(COMPUTE, LaunchKind.UPLOAD, (log.staging(staging),), (log.table,), FillWork(staging, ()))


def log_of(*ops: Op, num_blocks: int = 8, num_staging: int = 2, num_streams: int = FIRST_TRANSFER + 2) -> OpLog:
    events = [op.event for op in ops if isinstance(op, Record)]
    return OpLog(GROUPS, num_blocks, num_staging, num_streams, max(events, default=-1) + 1, list(ops))


def random_log(seed: int, *, num_ops: int = 16, num_streams: int = 4, num_blocks: int = 4, orderly: float = 0.4) -> OpLog:
    """Launches by every agent, records, waits, host syncs and frees; `orderly`: the share of ops that order others."""
    draw = random.Random(seed)
    ops: list[Op] = []
    num_events = 0
    while len(ops) < num_ops:
        if draw.random() >= orderly:
            ops.append(_random_access(draw, len(ops), num_streams, num_blocks))
        elif num_events == 0 or draw.random() < 0.4:
            ops.append(Record(num_events, draw.randrange(1, num_streams)))
            num_events += 1
        elif draw.random() < 0.7:
            ops.append(Wait(draw.randrange(1, num_streams), draw.randrange(num_events)))
        else:
            ops.append(HostSync(draw.randrange(num_events)))
    return OpLog(GROUPS, num_blocks, 0, num_streams, num_events, ops)


def _random_access(draw: random.Random, number: int, num_streams: int, num_blocks: int) -> Op:
    def some(most: int) -> tuple[int, ...]:
        return tuple(draw.sample(range(num_blocks), draw.randint(0, min(most, num_blocks))))

    if draw.random() < 0.1:
        return Free(some(2) or (1,))
    stream = draw.randrange(num_streams)
    if stream == HOST:
        return Launch(HOST, LaunchKind.FILL, some(1), some(1), FillWork(0, ()))
    if stream == COMPUTE:
        return step(number, reads=some(3), writes=some(1))
    if stream == JANITOR:
        return Launch(JANITOR, LaunchKind.POISON, (), some(2), BlocksWork((1,)))
    return load(number, *some(2), stream=stream) if draw.random() < 0.5 else store(number, *some(2), stream=stream)


# ---- happens-before, written once more, from the meaning of each op ----------------------------------------------------


def before(log: OpLog, *, frees: bool = False) -> dict[int, set[int]]:
    """By index, for each launch (each Free too, where asked): all that come before it. Every op is a node, every edge is followed."""
    edges: dict[int, set[int]] = {}
    last_on: dict[int, int] = {}  # stream to its last op
    recorded: dict[int, int] = {}
    for index, op in enumerate(log.ops):
        edges[index] = set()
        if isinstance(op, HostSync):
            edges[index].add(recorded[op.event])
            stream = HOST
        elif isinstance(op, Free):
            stream = HOST
        else:
            stream = op.stream
        if isinstance(op, Wait):
            edges[index].add(recorded[op.event])
        if isinstance(op, Record):
            recorded[op.event] = index
        edges[index] |= {last_on[agent] for agent in {stream, HOST} if agent in last_on}
        last_on[stream] = index
    reached: dict[int, set[int]] = {}
    for index in edges:
        reached[index] = set().union(edges[index], *(reached[earlier] for earlier in edges[index]))
    nodes = {index for index, op in enumerate(log.ops) if isinstance(op, Launch) or (frees and isinstance(op, Free))}
    return {index: reached[index] & nodes for index in sorted(nodes)}


def _touched(op: Op) -> tuple[set[int], set[int]]:
    if isinstance(op, Free):
        return set(), set(op.blocks)
    assert isinstance(op, Launch)
    return set(op.reads), set(op.writes)


def by_brute_force(log: OpLog, contract: str) -> set[Pair]:
    """Every two accesses that conflict and are not ordered; of those with one second access, the latest of each stream."""
    earlier = before(log, frees=contract == "settled")
    latest: dict[tuple[int, int, int], int] = {}
    for second in earlier:
        for first in earlier:
            if first >= second or first in earlier[second]:
                continue
            (reads, writes), (more_reads, more_writes) = _touched(log.ops[first]), _touched(log.ops[second])
            stream = getattr(log.ops[first], "stream", HOST)
            for resource in (writes & (more_reads | more_writes)) | (reads & more_writes):
                latest[resource, stream, second] = max(first, latest.get((resource, stream, second), -1))
    return {(resource, first, second) for (resource, _, second), first in latest.items()}


def pairs(found: list[Race]) -> set[Pair]:
    return {(race.resource, race.first.at, race.second.at) for race in found}
