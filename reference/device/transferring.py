"""Loads and stores of a connector: a stream each, what they wait for, what they bring, and when the host knows that they are over."""

from __future__ import annotations

from settled.model.events import Job, Load, Loaded, Stored, Transfer
from settled.model.specs import MambaSpec
from settled.reference.device.blocks import Blocks, Tables
from settled.reference.device.enqueuing import Enqueuer
from settled.reference.device.foresight import Foresight, LoweringError
from settled.reference.device.ops import LaunchKind, Slots, TransferWork
from settled.reference.device.worker import Worker


class Transferring:
    """Jobs by their names. One launch stands for all handles of a job; the host knows it over with the last."""

    def __init__(self, queue: Enqueuer, blocks: Blocks, foresight: Foresight, worker: Worker) -> None:
        self.queue, self.blocks, self.foresight, self.worker = queue, blocks, foresight, worker
        self.stores_wait_for_latest = False
        self._events: dict[Job, int] = {}
        self._handles: dict[Job, int] = {}  # that are not over
        self._over: dict[Job, set[int | str]] = {}  # by name
        self._within: dict[int, list[int]] = {}  # by step: the events of the transfers within it

    def event_of(self, line: int, job: Job | None) -> int:
        if job is None or job not in self._events:
            raise LoweringError(line, f"no job {job!r} was started")
        return self._events[job]

    def within(self, step: int) -> list[int]:
        return self._within.pop(step, [])

    def start(self, line: int, event: Transfer, tables: Tables, after: list[int], latest_step: int | None) -> None:
        """`after`: the events that its stream waits for; `latest_step`: that of the step launched last.

        A transfer within a step runs in it, and so behind the steps before.
        """
        is_load, worker, queue = isinstance(event, Load), self.worker, self.queue
        self.blocks.take_hits(tables, so_far=True)
        stream = queue.stream_for(event.job)
        awaited = after if is_load or worker.stores_wait else []
        fenced = worker.loads_fenced if is_load else worker.stores_wait and self.stores_wait_for_latest
        if latest_step is not None and (fenced or event.step is not None):
            awaited = [*awaited, latest_step]
        for each in awaited:
            queue.wait(stream, each)
        blocks = tuple(sorted(set().union(*event.blocks)))
        if is_load:
            work = TransferWork(event.job, self._brought(line, event, tables))
            queue.launch(stream, LaunchKind.LOAD, (), blocks, work, line)
        else:
            work = TransferWork(event.job, self._stored(line, event, tables))
            queue.launch(stream, LaunchKind.STORE, blocks, (), work, line)
        self._events[event.job] = done = queue.record(stream)
        self._handles[event.job] = event.handles
        self._over[event.job] = set()
        if event.step is not None:
            self._within.setdefault(event.step, []).append(done)

    def over(self, line: int, event: Loaded | Stored) -> None:
        """A handle is over."""
        if event.job not in self._handles:
            raise LoweringError(line, f"no job {event.job!r} is under way")
        if event.handle is not None:
            if event.handle in self._over[event.job]:
                raise LoweringError(line, f"handle {event.handle!r} of job {event.job!r} is over already")
            self._over[event.job].add(event.handle)
        self._handles[event.job] -= 1
        if self._handles[event.job]:
            return
        del self._handles[event.job], self._over[event.job]
        self.queue.host_sync(self._events[event.job])
        self.queue.transfer_over(event.job)

    # ---- what moves --------------------------------------------------------------------------------------------------

    def _brought(self, line: int, event: Transfer, tables: Tables) -> tuple[Slots, ...]:
        """What the request counts as computed; garbage in blocks that turn out to have failed."""
        sequence, failed, moved = tables.sequence, self.foresight.failed.get(event.job, frozenset()), []
        for group, blocks in enumerate(event.blocks):
            spec = self.blocks.groups[group]
            for block in blocks:
                first = self._index(line, block, group, tables) * spec.block_size
                fails = failed is None or block in failed
                if len(sequence.tags[group]) <= first:  # the trace does not tell the count before the load
                    sequence.fill(first + spec.block_size)
                end = min(first + spec.block_size, len(sequence.tags[group]))
                if isinstance(spec, MambaSpec):
                    tags = sequence.fail_state(group, end) if fails else tuple(sequence.tags[group][:end])
                    moved.append(Slots(block, 0, tags, is_state=True))
                else:
                    tags = sequence.fail(group, first, end) if fails else tuple(sequence.tags[group][first:end])
                    moved.append(Slots(block, 0, tags))
        return tuple(moved)

    def _stored(self, line: int, event: Transfer, tables: Tables) -> tuple[Slots, ...]:
        """What is final; of states those that are the whole of their block."""
        settled, moved = self.foresight.settled[line], []
        for group, blocks in enumerate(event.blocks):
            spec = self.blocks.groups[group]
            for block in blocks:
                first = self._index(line, block, group, tables) * spec.block_size
                tags, end = tables.sequence.tags[group], min(first + spec.block_size, settled)
                if isinstance(spec, MambaSpec):
                    if first + spec.block_size <= settled:
                        moved.append(Slots(block, 0, tuple(tags[: first + spec.block_size]), is_state=True))
                elif end > first:
                    moved.append(Slots(block, 0, tuple(tags[first:end])))
        return tuple(moved)

    def _index(self, line: int, block: int, group: int, tables: Tables) -> int:
        """Where it stands in the request's table, or stood when it was allocated."""
        index = tables.index_of[group].get(block)
        if index is not None:
            return index
        place = self.blocks.place_of(block)
        if place is None or place.group != group:
            raise LoweringError(line, f"block {block} is in no table of group {group}")
        return place.table_index
