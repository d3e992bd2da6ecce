"""The op log: what the host asks of the device, in the order in which it asks, as plain data. Every consumer reads this one definition.

A launch is work on one stream that reads and writes resources; `record`, `wait` and `host_sync` order launches of different streams as
CUDA's events do. The host is an agent too, on stream HOST: its launches run at once. Resources are integers: block ids first, then what
the log names beside them. Lengths and positions are in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar, dataclass_transform

from settled.model.specs import KVCacheSpec

HOST, COMPUTE, JANITOR, FIRST_TRANSFER = 0, 1, 2, 3
"""Streams: the host itself, the steps', the one that poisons freed blocks, and from here on one for each transfer under way at once."""

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True)
def _plain(cls: type[_Class]) -> type[_Class]:
    """A frozen dataclass to the type checker, a plain one at run time: logs have hundreds of thousands of ops."""
    return dataclass(slots=True)(cls)


class LaunchKind(StrEnum):
    """What a launch does."""

    FILL = "fill"  # the host writes a step's table rows into a staging buffer
    UPLOAD = "upload"  # a staging buffer is copied into the device's block table
    WRITE = "write"  # the first half of a forward pass: a step's keys into their slots, lookahead slots too
    STEP = "step"  # the second half: a step's states, then attention over its keys
    ZERO = "zero"
    COPY = "copy"  # a block's contents into another, copy-on-write
    LOAD = "load"
    STORE = "store"
    POISON = "poison"  # of freed blocks, so that whoever still reads them notices


# ---- what a launch works on ------------------------------------------------------------------------------------------


@_plain
class FillWork:
    """Of a FILL (host memory) and an UPLOAD (device memory): `staging` is the index of the buffer, `rows` the block ids by table index."""

    staging: int
    rows: tuple[tuple[int, ...], ...]


@_plain
class KeysPart:
    """A request's tokens in one group of keys: its share of a step.

    Queries stand at `start` to `start + tokens - 1`, true positions, with rejections known. `tags`: what is written at `start` and on, one
    a slot; those past the queries are lookahead slots. `first`: the lowest position that some query reads; `expected`: the tags that
    memory which never loses anything would hold at `first` to `start + tokens - 1`, after the step has written. `row`: which row of the
    step's table; `blocks`: what should stand in it. `prompt_tokens` of the request. `is_delivered`: somebody gets the output.
    """

    request: str
    group: int
    row: int
    blocks: tuple[int, ...]
    start: int
    tokens: int
    prompt_tokens: int
    tags: tuple[int, ...]
    first: int
    expected: tuple[int, ...]
    is_delivered: bool


@_plain
class StatesPart:
    """A request's tokens in one group of states.

    `read`: the table index of the state after the first `start` tokens, None at the beginning of the sequence; `before`: the tags of those
    tokens, of which that state is made. `tags`: one a token of the step. `writes`: (table index, number of tokens of the step after
    which the state stands there), in the order in which they are written.
    """

    request: str
    group: int
    row: int
    blocks: tuple[int, ...]
    start: int
    tokens: int
    read: int | None
    before: tuple[int, ...]
    tags: tuple[int, ...]
    writes: tuple[tuple[int, int], ...]
    is_delivered: bool


@_plain
class StepWork:
    """Of a WRITE and the STEP right behind it, two kernels of one forward pass; one object for both.

    The WRITE does the keys of all parts; there is none where no part has keys. The STEP reads the states of all parts, then writes what
    becomes of them, then reads the keys of all parts. What gets between the two may garble what a step reads of its own tokens.
    """

    step: int
    parts: tuple[KeysPart | StatesPart, ...]


@_plain
class BlocksWork:
    """Of a ZERO and a POISON."""

    blocks: tuple[int, ...]


@_plain
class CopyWork:
    """All slots of block `source` into block `target`."""

    source: int
    target: int


@_plain
class Slots:
    """Slots of one block: `tags` are written to (LOAD) or should be read from (STORE) the slots `first`, `first + 1`, ... of `block`.

    For states `tags` is the whole sequence up to the state, and `first` 0: `is_state`.
    """

    block: int
    first: int
    tags: tuple[int, ...]
    is_state: bool = False


@_plain
class TransferWork:
    """Of a LOAD and a STORE: what moves, block by block."""

    job: int | str
    slots: tuple[Slots, ...]


Work = FillWork | StepWork | BlocksWork | CopyWork | TransferWork


# ---- ops -------------------------------------------------------------------------------------------------------------


@_plain
class Launch:
    """Work on a stream, after all that stands before it there. `line`: of the event that it comes from, counted from 1 (0: of none)."""

    stream: int
    kind: LaunchKind
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    work: Work
    line: int = 0


@_plain
class Record:
    """`event` happens when all that stands before it on the stream has. Each event is recorded once."""

    event: int
    stream: int


@_plain
class Wait:
    """What follows on the stream waits for the event."""

    stream: int
    event: int


@_plain
class HostSync:
    """The host waits for the event, or has seen that it happened."""

    event: int


@_plain
class Free:
    """Blocks go back to the pool: from here on the host may give them to anybody."""

    blocks: tuple[int, ...]
    line: int = 0


Op = Launch | Record | Wait | HostSync | Free


@dataclass(slots=True)
class OpLog:
    """`groups` share one pool of `num_blocks` blocks, the null block (0) included. The resources that follow the blocks:
    `num_staging` staging buffers, then the device's block table. Streams are counted from HOST; events from 0.
    """

    groups: tuple[KVCacheSpec, ...]
    num_blocks: int
    num_staging: int
    num_streams: int = FIRST_TRANSFER
    num_events: int = 0
    ops: list[Op] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)

    def staging(self, index: int) -> int:
        """The resource of a staging buffer."""
        return self.num_blocks + index

    @property
    def table(self) -> int:
        """The resource of the device's block table, slot mapping included: slots follow from it and the positions."""
        return self.num_blocks + self.num_staging

    def resource_name(self, resource: int) -> str:
        if resource < self.num_blocks:
            return f"block {resource}"
        return "the block table" if resource == self.table else f"staging buffer {resource - self.num_blocks}"

    def launches(self) -> list[int]:
        """The indices of the launches in `ops`."""
        return [index for index, op in enumerate(self.ops) if type(op) is Launch]


def stream_name(stream: int) -> str:
    """For people."""
    named = {HOST: "host", COMPUTE: "compute", JANITOR: "janitor"}
    return named.get(stream, f"transfer {stream - FIRST_TRANSFER}")
