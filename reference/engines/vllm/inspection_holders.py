"""Who holds what: reference counts against all holders, tables against requests, requests against queues, and what is left at idle."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

from settled.reference.engines.protocol import Anomaly
from settled.reference.engines.vllm.inspection_view import View, held

SINGLE_OWNER, ADMISSION_PROGRESS, TRANSFER_TERMINATES = "single_owner", "admission_progress", "transfer_terminates"
_NAMED_MAX = 5  # blocks that one sentence names
# What the next step's message to the workers takes along, and clears.
_OF_NEXT_STEP = frozenset({"finished_req_ids", "finished_req_ids_dict", "prev_step_scheduled_req_ids", "reset_preempted_req_ids"})
_CONNECTOR_MODULES = ("vllm.distributed.kv_transfer.", "vllm.v1.simple_kv_offload.", "vllm.v1.kv_offload.")


def references(view: View, extra_pins: Iterable[int]) -> Iterator[Anomaly]:
    """Each block has as many references as tables, deferred frees, copies and pins hold it."""
    holders: Counter[int] = Counter(extra_pins)
    holders.update(view.pins())
    for manager in view.managers:
        for table in manager.req_to_blocks.values():
            holders.update([block.block_id for block in table])
    for _, blocks in view.deferred_frees():
        holders.update([block.block_id for block in blocks])
    holders.update([block.block_id for block in view.copies()])
    wrong = [block for block in view.pool.blocks if block.ref_cnt != holders[block.block_id] and not block.is_null]
    for cause, is_above in (("references_above_holders", True), ("references_below_holders", False)):
        blocks = [block for block in wrong if (block.ref_cnt > holders[block.block_id]) is is_above]
        if blocks:
            counts = ", ".join([f"{block.block_id} ({block.ref_cnt} and {holders[block.block_id]})" for block in blocks[:_NAMED_MAX]])
            yield Anomaly(SINGLE_OWNER, cause, f"{len(blocks)} block(s) with other references than holders (both counted): {counts}")


def tables(view: View) -> Iterator[Anomaly]:
    """Only requests that the scheduler knows have a table; in it no block stands twice."""
    for group, manager in enumerate(view.managers):
        for request_id, table in manager.req_to_blocks.items():
            what = f"the table of request {request_id} in group {group}"
            if request_id not in view.requests:
                yield Anomaly(SINGLE_OWNER, "table_without_request", f"{what} has {held(table)} blocks, and the request is gone")
            own = [block.block_id for block in table if not block.is_null]
            if len(own) != len(set(own)):
                twice = sorted([block for block, count in Counter(own).items() if count > 1])
                yield Anomaly(SINGLE_OWNER, "block_twice_in_table", f"{what} names blocks {twice} more than once")


def queues(view: View) -> Iterator[Anomaly]:
    """Each unfinished request is in exactly one queue, and a finished one in none."""
    queued = Counter([request.request_id for request in view.queued()])
    for request_id, request in view.requests.items():
        count = queued.pop(request_id, 0)
        if request.is_finished() and count:
            yield Anomaly(ADMISSION_PROGRESS, "finished_request_queued", f"request {request_id} is finished and in {count} queue(s)")
        elif not request.is_finished() and count != 1:
            cause = "request_in_no_queue" if not count else "request_in_two_queues"
            yield Anomaly(ADMISSION_PROGRESS, cause, f"request {request_id} ({request.status.name}) is in {count} queues")
    for request_id in queued:
        yield Anomaly(ADMISSION_PROGRESS, "unknown_request_queued", f"request {request_id} is queued, and the scheduler does not know it")


def fences(view: View) -> Iterator[Anomaly]:
    """A deferred free waits for a step that is unprocessed."""
    for fence, blocks in view.deferred_frees():
        processed = view.scheduler.processed_step_seq
        if fence <= processed:
            what = f"{held(blocks)} blocks wait for step {fence} to be processed, and {processed} steps are"
            yield Anomaly(ADMISSION_PROGRESS, "deferred_free_due", what)
            return  # those behind it wait for it


def left_at_idle(view: View, request_ids: frozenset[str], extra_pins: Iterable[int]) -> Iterator[Anomaly]:
    """Nothing of a request is left: no table, no reference, no deferred free, no state in the scheduler or its connector."""
    if view.requests:
        yield Anomaly(ADMISSION_PROGRESS, "request_at_idle", f"idle, but requests {sorted(view.requests)[:_NAMED_MAX]} are there")
    pinned = sorted({*extra_pins, *view.pins()})
    if pinned:
        yield Anomaly(TRANSFER_TERMINATES, "pin_at_idle", f"idle, but a connector pins blocks {pinned[:_NAMED_MAX]}")
    if view.deferred_frees():
        blocks = sum([held(blocks) for _, blocks in view.deferred_frees()])
        yield Anomaly(SINGLE_OWNER, "deferred_free_at_idle", f"idle, but {blocks} blocks wait behind a fence")
    is_free = view.pool.free_block_queue.num_free_blocks
    if is_free != len(view.pool.blocks) - 1:
        yield Anomaly(SINGLE_OWNER, "pool_not_free_at_idle", f"idle, but {is_free} of {len(view.pool.blocks) - 1} blocks are free")
    for owner, name in _left_over(view, request_ids):
        module = type(owner).__module__
        cause = f"left_at_idle[{type(owner).__name__}.{name}]"
        what = f"idle, but {type(owner).__name__}.{name} ({module}) still has an entry of a request that is finished"
        is_connector = module.startswith(_CONNECTOR_MODULES)
        yield Anomaly(TRANSFER_TERMINATES if is_connector else SINGLE_OWNER, cause, what)


def _left_over(view: View, request_ids: frozenset[str]) -> Iterator[tuple[Any, str]]:
    """Containers that name a request, and who has them."""
    owners = [view.scheduler, view.kv_cache_manager, view.kv_cache_manager.coordinator, *view.managers]
    owners += _connector_parts(getattr(view.scheduler, "connector", None))
    for owner in owners:
        for name, value in vars(owner).items():
            if name not in _OF_NEXT_STEP and _names(value, request_ids):
                yield owner, name


def _connector_parts(connector: Any) -> list[Any]:
    """A connector of vLLM's own, and the objects that it delegates to."""
    parts: list[Any] = []
    waiting = deque([connector])
    while waiting:
        part = waiting.popleft()
        if type(part).__module__.startswith(_CONNECTOR_MODULES) and hasattr(part, "__dict__") and part not in parts:
            parts.append(part)
            waiting.extend(vars(part).values())
    return parts


def _names(value: Any, request_ids: frozenset[str]) -> bool:
    """Whether a container has a request, by its id or itself."""
    if not isinstance(value, dict | set | list | deque):
        return False
    ids = [one if isinstance(one, str) else getattr(one, "request_id", None) for one in value]
    return any(one in request_ids for one in ids)
