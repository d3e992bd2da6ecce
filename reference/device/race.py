"""A race as plain data: two accesses of one resource that nothing orders, and the sentence that says which ordering is missing."""

from __future__ import annotations

from typing import NamedTuple

from settled.reference.device.ops import (
    HOST,
    BlocksWork,
    CopyWork,
    FillWork,
    Free,
    Launch,
    LaunchKind,
    OpLog,
    StepWork,
    TransferWork,
    stream_name,
)


class Place(NamedTuple):
    """An op, and its index in the log (`at`). A Free stands on the host's stream."""

    at: int
    op: Launch | Free

    @property
    def stream(self) -> int:
        return self.op.stream if isinstance(self.op, Launch) else HOST

    @property
    def kind(self) -> LaunchKind | None:
        """None of a Free."""
        return self.op.kind if isinstance(self.op, Launch) else None

    @property
    def line(self) -> int:
        """Of the event that the op comes from, counted from 1; 0: of none."""
        return self.op.line

    def reads(self, resource: int) -> bool:
        return isinstance(self.op, Launch) and resource in self.op.reads

    def writes(self, resource: int) -> bool:
        """A Free counts as a write of its blocks: from there on anybody may write them."""
        return resource in (self.op.writes if isinstance(self.op, Launch) else self.op.blocks)

    def requests(self, block: int) -> tuple[str, ...]:
        """Of a step or its write: whose tables hold the block. Otherwise, and for resources that are no blocks: none."""
        if not isinstance(self.op, Launch) or not isinstance(self.op.work, StepWork):
            return ()
        return tuple(dict.fromkeys(part.request for part in self.op.work.parts if block in part.blocks))

    @property
    def name(self) -> str:
        """For people: what the op is, without its stream."""
        if isinstance(self.op, Free):
            return "free"
        match self.op.work:
            case StepWork(step=step):
                return f"write of step {step}" if self.op.kind is LaunchKind.WRITE else f"step {step}"
            case TransferWork(job=job):
                return f"{self.op.kind} {job}"
            case FillWork(staging=staging):
                return f"{self.op.kind} of staging buffer {staging}"
            case CopyWork(source=source, target=target):
                return f"copy of block {source} into block {target}"
            case BlocksWork(blocks=blocks):
                return f"{self.op.kind} of {'block' if len(blocks) == 1 else 'blocks'} {', '.join(map(str, blocks))}"

    def _access(self, resource: int) -> str:
        if isinstance(self.op, Free):
            return "gives it back"
        return {(True, False): "reads it", (False, True): "writes it"}.get(
            (self.reads(resource), self.writes(resource)), "writes and reads it"
        )

    def sentence(self, resource: int) -> str:
        """Who touches the resource how, on which stream, where in the log and the trace."""
        whose = self.requests(resource)
        of = f" of {', '.join(whose)}" if whose else ""
        line = f", line {self.line}" if self.line else ""
        if self.stream == HOST:
            return f"the host's {self.name} {self._access(resource)} (op {self.at}{line})"
        return f"{self.name}{of} {self._access(resource)} on {stream_name(self.stream)} (op {self.at}{line})"


class Race(NamedTuple):
    """Two accesses of `resource`, at least one of them a write, which no order holds apart; `first` stands before `second` in the log.

    `first` is the latest such access on its stream: all earlier ones that the second does not come after race too and are not listed.
    `known`: the latest launch on the first's stream that comes before the second, None: there is none. `event`: the first event that was
    recorded after `first` on its stream and before `second` in the log: waiting for it there would have been right. None: none was.
    """

    resource: int
    first: Place
    second: Place
    known: Place | None
    event: int | None

    def missing_edge(self) -> str:
        """Which ordering would have made it right, and what the second's stream knew instead."""
        at, waiter = stream_name(self.first.stream), stream_name(self.second.stream)
        first = f"{self.first.name} on {at}"
        if self.second.stream == HOST:
            doing = "gave the block back" if self.second.kind is None else f"did its {self.second.name}"
            missing = f"the host had not seen {first} over when it {doing}"
        else:
            missing = f"{waiter} never waited for {first}, and the host had not seen it over when it enqueued {self.second.name}"
        known = "nothing" if self.known is None else f"{self.known.name} (op {self.known.at})"
        recorded = f"event {self.event} was recorded behind it" if self.event is not None else "no event was recorded behind it"
        return f"{missing}; the latest known to be over on {at} was {known}; {recorded}"

    def sentence(self, log: OpLog) -> str:
        """The race in words; `log` names the resource."""
        accesses = f"{self.first.sentence(self.resource)}, {self.second.sentence(self.resource)}"
        return f"{log.resource_name(self.resource)}: {accesses}: {self.missing_edge()}"
