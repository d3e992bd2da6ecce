"""torch's own stream sanitizer against the race detector, on the same logs: one fake pointer a resource.

Where its rules differ. It does not know the host as an agent that touches memory, so the logs here have no host launches, and frees are
nothing (`stream_order`). A host sync is its synchronisation with an event: every stream, and every later one, comes after it. Of each
resource it keeps the last write and the reads since, over all streams; the detector keeps the latest of each stream. So after a race it
says less: the first race of each resource is the same, and all that it reports is among what the detector does.
"""

from __future__ import annotations

from random_logs import random_log
from torch.cuda._sanitizer import EventHandler

from settled.reference.device.detector import races
from settled.reference.device.ops import HOST, Free, HostSync, Launch, OpLog, Record, Wait

Found = tuple[int, int, int]  # second access, resource, stream of the first


def by_the_sanitizer(log: OpLog) -> set[Found]:
    handler = EventHandler()
    for stream in range(1, log.num_streams):
        handler._handle_stream_creation(stream)
    found: set[Found] = set()
    for index, op in enumerate(log.ops):
        match op:
            case Launch():
                names: dict[int, list[str]] = {resource: [] for resource in (*op.reads, *op.writes)}
                writes = set(op.writes)
                errors = handler._handle_kernel_launch(op.stream, set(op.reads) - writes, writes, set(), op.kind, names)
                found |= {(index, error.data_ptr, error.previous_access.stream) for error in errors}
            case Record():
                handler._handle_event_creation(op.event)
                handler._handle_event_record(op.event, op.stream)
            case Wait():
                handler._handle_event_wait(op.event, op.stream)
            case HostSync():
                handler._handle_event_synchronization(op.event)
            case Free():
                pass
    return found


def first_of_each_resource(found: set[Found]) -> dict[int, int]:
    firsts: dict[int, int] = {}
    for second, resource, _ in sorted(found):
        firsts.setdefault(resource, second)
    return firsts


def test_the_sanitizer_agrees() -> None:
    racy = clean = fewer = 0
    for seed in range(600):
        log = random_log(seed, num_ops=10 + seed % 30, num_streams=3 + seed % 4, num_blocks=2 + seed % 5, orderly=(0.3, 0.5, 0.7)[seed % 3])
        log.ops = [op for op in log.ops if not (isinstance(op, Launch) and op.stream == HOST)]
        ours = {(race.second.at, race.resource, race.first.stream) for race in races(log, "stream_order")}
        theirs = by_the_sanitizer(log)
        assert theirs <= ours, seed
        assert first_of_each_resource(theirs) == first_of_each_resource(ours), seed
        racy, clean, fewer = racy + bool(ours), clean + (not ours), fewer + (theirs < ours)
    assert racy > 200
    assert clean > 20
    assert fewer > 20
