"""A decoded token with a wide window, one block of which somebody else's load has overwritten: what a tolerance makes of it."""

from __future__ import annotations

from logs import Host, foreign

from settled.model.specs import SlidingWindowSpec
from settled.reference.device.compiling import compile_log
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import Slots
from settled.reference.device.payload import Numbers
from settled.reference.device.replay import replay
from settled.reference.device.results import Counts
from settled.reference.device.tags import LOADED, Tag, pack

BLOCK_SIZE = 16


def one_block_overwritten(window: int, trial: int, numbers: Numbers) -> Counts:
    """One row, garbled: the prefix is loaded, then the block of the oldest tokens in the window is overwritten before the step runs."""
    prefix = window + BLOCK_SIZE
    host = Host((SlidingWindowSpec(block_size=BLOCK_SIZE, window=window),), num_blocks=prefix // BLOCK_SIZE + 4)
    request = host.add(prefix)
    request.number = trial
    request.tags[0] = [pack(Tag(trial, 0, 0, LOADED, position)) for position in range(prefix)]
    request.tables[0] = [host.take() for _ in range(prefix // BLOCK_SIZE)]
    pieces = enumerate(request.tables[0])
    host.load(*(Slots(block, 0, tuple(request.tags[0][index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE])) for index, block in pieces))
    host.load(Slots(request.tables[0][1], 0, foreign(100_000 + trial, BLOCK_SIZE)))
    host.step((request, 1))
    compiled = compile_log(host.log)
    return replay(compiled, None, NumberedLog(compiled, numbers), limit=0).counts
