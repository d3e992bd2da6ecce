"""Why outputs are compared bit for bit: what a relative tolerance would pass of rows that are garbled by a block freed too early.

A request decodes behind a wide window; the block of the window's oldest tokens is freed under the step, and another request's load writes
it first. The keys are as random as the tags; queries are sharpened until the logits spread as a trained model's may.
"""

from __future__ import annotations

from typing import NamedTuple

from settled.model.events import SCHEMA_VERSION, Add, Allocate, Computed, Config, Event, Load, Loaded, Release, Schedule, ScheduledRequest
from settled.model.specs import SlidingWindowSpec
from settled.reference.device.compiling import compile_log
from settled.reference.device.lowering import lower
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.orders import LaunchOrder
from settled.reference.device.payload import Numbers
from settled.reference.device.replay import replay
from settled.reference.device.results import TOLERANCE

BLOCK_SIZE, WINDOW = 16, 1024  # tokens
ROWS = 40
_NUMBERS = Numbers(head_dim=64, query_factor=16)


class Tolerance(NamedTuple):
    """`rows` garbled with transfers first, all of which differ bit for bit; `passed`: those that a relative tolerance of `relative` passes;
    `as_enqueued`: those garbled in the order of the log."""

    window: int
    relative: float
    rows: int
    passed: int
    as_enqueued: int


def measure(*, window: int = WINDOW, rows: int = ROWS) -> Tolerance:
    """A trace a row, each with other keys."""
    garbled = passed = as_enqueued = 0
    for trial in range(rows):
        compiled = compile_log(lower(_freed_too_early(window, trial)))
        numbers = NumberedLog(compiled, _NUMBERS)
        as_enqueued += replay(compiled, None, numbers, limit=0).counts.rows_garbled
        counts = replay(compiled, LaunchOrder(compiled.log).transfers_first(), numbers, limit=0).counts
        assert counts.rows_garbled == counts.rows_differing, "tags and bits say the same"
        garbled += counts.rows_garbled
        passed += counts.rows_within_tolerance
    return Tolerance(window, TOLERANCE, garbled, passed, as_enqueued)


def _freed_too_early(window: int, trial: int) -> list[Event]:
    """Requests added before make the tags, and so the keys, others in each trial."""
    size, start = BLOCK_SIZE, window + BLOCK_SIZE
    table = tuple(range(1, start // size + 2))
    oldest = table[1]  # the next query's window begins in it
    config = Config(
        schema=SCHEMA_VERSION,
        engine="settled.reference",
        num_blocks=len(table) + 1,
        max_in_flight_steps=2,
        max_batched_tokens=start,
        num_draft_tokens=0,
        prefix_caching=False,
        kv_consumer=True,
        groups=(SlidingWindowSpec(block_size=size, window=window),),
        records=("order",),
    )
    step = ScheduledRequest(request="a", start=start, tokens=1, drafts=0, new_blocks=(table,), resumed=False)
    return [
        config,
        *[Add(request=f"before {number}", prompt_tokens=1) for number in range(trial)],
        Add(request="a", prompt_tokens=start + 1),
        Allocate(request="a", group=0, first_index=0, blocks=table),
        Computed(request="a", computed=start, cause="external", stale=False),
        Load(job=0, request="a", blocks=(table[:-1],)),
        Loaded(job=0, ok=True),
        Schedule(step=1, requests=(step,)),
        Release(request="a", group=0, indices=(1,), blocks=(oldest,), cause="window", freed=(oldest,)),
        Add(request="b", prompt_tokens=size + 1),
        Allocate(request="b", group=0, first_index=0, blocks=(oldest,)),
        Computed(request="b", computed=size, cause="external", stale=False),
        Load(job=1, request="b", blocks=((oldest,),)),
    ]
