"""In which orders the launches of a log may run: linear extensions of happens-before, some by policy, one directed at a race.

The host's launches take part. They run in the order of the log, after what the host had seen over, and before every launch enqueued after
them; but a launch enqueued before them may still run after them. An order is a list of op indices.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from settled.reference.device.clocks import NOTHING, Clocks
from settled.reference.device.ops import COMPUTE, HOST, HostSync, Launch, OpLog, Record, Wait

Cut = tuple[int, ...]
"""How many launches of each stream have run."""


class OrderError(ValueError):
    """An order that is asked for does not exist; the message says why."""


class LaunchOrder:
    """Happens-before between the launches of a log. Raises OpLogError.

    `streams[stream]`: the op indices of its launches, in their order. `needs[index]`: how many launches of each stream, its own
    included, have to run before that launch.
    """

    def __init__(self, log: OpLog) -> None:
        self.log = log
        self.launches = log.launches()
        self.streams: list[list[int]] = [[] for _ in range(log.num_streams)]
        self.needs: dict[int, Cut] = {}
        self._place: dict[int, int] = {}  # of a launch on its stream
        clocks = Clocks(log)
        for index, op in enumerate(log.ops):
            if isinstance(op, Launch):
                self._launch(clocks, op, index)
            elif isinstance(op, Record):
                clocks.record(index, op.event, op.stream)
            elif isinstance(op, Wait):
                clocks.wait(index, op.stream, op.event)
            elif isinstance(op, HostSync):
                clocks.host_sync(index, op.event)

    def _launch(self, clocks: Clocks, op: Launch, index: int) -> None:
        known = clocks.seen if op.stream == HOST else map(max, clocks.seen, clocks.launch(index, op.stream))
        self._place[index] = len(self.streams[op.stream])
        needs = [0 if latest == NOTHING else self._place[latest] + 1 for latest in known]
        needs[HOST] = len(self.streams[HOST])
        needs[op.stream] = len(self.streams[op.stream])
        self.needs[index] = tuple(needs)
        self.streams[op.stream].append(index)

    def comes_before(self, first: int, second: int) -> bool:
        """Whether launch `first` has to run before launch `second`; op indices."""
        return self._place[first] < self.needs[second][self._stream(first)]

    def _stream(self, index: int) -> int:
        op = self.log.ops[index]
        assert isinstance(op, Launch)
        return op.stream

    def enqueue(self) -> list[int]:
        """The order of the log: each launch runs at once. What a quiet machine does, and why ordinary tests see no race."""
        return self.launches[:]

    def transfers_first(self) -> list[int]:
        """Whatever is not a step or an upload as early as the constraints allow: loads, stores, poison, the host."""
        return self._by(lambda ready: min(ready, key=lambda index: (self._stream(index) == COMPUTE, index)))

    def compute_first(self) -> list[int]:
        """Steps and uploads as early as the constraints allow; before each only what it needs, in the order of the log."""
        done = [0] * len(self.streams)
        order: list[int] = []
        for index in self.streams[COMPUTE]:
            order += self._run_to(done, self.needs[index])
            order.append(index)
            done[COMPUTE] += 1
        return order + self._run_to(done, tuple(map(len, self.streams)))

    def _run_to(self, done: list[int], cut: Cut) -> list[int]:
        """The launches between `done`, which is moved there, and the cut."""
        between: list[int] = []
        for stream, (begin, end) in enumerate(zip(done, cut, strict=True)):
            between += self.streams[stream][begin:end]
            done[stream] = max(begin, end)
        return sorted(between)

    def random(self, seed: int) -> list[int]:
        """Each time one of the streams that can go on, drawn evenly."""
        draw = random.Random(seed)
        return self._by(draw.choice)

    def directed(self, first: int, second: int) -> list[int]:
        """The order of the log up to launch `first`; then `second` and what it needs; then `first` and the rest.

        Raises OrderError if `first` has to run before `second`, and for what are no two launches in the order of the log.
        """
        for index in (first, second):
            if index not in self.needs:
                raise OrderError(f"op {index} is no launch")
        if first >= second:
            raise OrderError(f"op {first} does not stand before op {second}")
        if self.comes_before(first, second):
            raise OrderError(f"launch {first} comes before launch {second} in every order")
        ahead = [index for index in self.launches if index < first]
        moved = [index for index in self.launches if first < index < second and self.comes_before(index, second)]
        rest = [index for index in self.launches if first < index != second and index not in set(moved)]
        return [*ahead, *moved, second, first, *rest]

    def _by(self, choose: Callable[[list[int]], int]) -> list[int]:
        """Runs what `choose` takes of the launches that can run, given in the order of their streams, until all have."""
        done = [0] * len(self.streams)
        order: list[int] = []
        while len(order) < len(self.launches):
            chosen = choose(self.ready(tuple(done)))
            order.append(chosen)
            done[self._stream(chosen)] += 1
        return order

    def ready(self, done: Cut) -> list[int]:
        """The launches that can run next: heads of their streams that miss nothing."""
        heads = [launches[count] for launches, count in zip(self.streams, done, strict=True) if count < len(launches)]
        return [head for head in heads if all(map(int.__le__, self.needs[head], done))]

    def following(self, done: Cut) -> list[tuple[int, Cut]]:
        """The launches that can run next, each with the cut that it leads to."""
        steps = []
        for head in self.ready(done):
            stream = self._stream(head)
            steps.append((head, (*done[:stream], done[stream] + 1, *done[stream + 1 :])))
        return steps
