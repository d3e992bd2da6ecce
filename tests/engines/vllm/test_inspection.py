"""Each inspection is broken once: a fault is planted in the live objects of the installed release, and exactly its anomaly is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from live import B, Live, mid_run, setup_of

from settled.model.specs import FullAttentionSpec
from settled.reference.engines.protocol import Offer
from settled.reference.engines.setup import ConnectorSetup


def test_nothing_is_wrong_in_mid_run_and_at_idle() -> None:
    live = mid_run(consumer=True)
    assert live.inspector.inspect(live.steps) == []
    assert len(live.steps) == live.engine.num_unprocessed_steps > 0
    assert live.drain(200)
    live.scheduler.schedule()
    assert live.inspector.at_idle() == []


# ---- the pool ------------------------------------------------------------------------------------------------------


def _free(live: Live) -> list[Any]:
    blocks: list[Any] = live.pool.free_block_queue.get_all_free_blocks()
    return blocks


def _unlink_free(live: Live) -> None:
    live.pool.free_block_queue.popleft()


def _count_free_once_more(live: Live) -> None:
    live.pool.free_block_queue.num_free_blocks += 1


def _cut_free_list(live: Live) -> None:
    _free(live)[-1].next_free_block = None


def _close_free_list(live: Live) -> None:
    _free(live)[-1].next_free_block = _free(live)[0]


def _break_back_link(live: Live) -> None:
    _free(live)[3].prev_free_block = _free(live)[1]


def _free_the_null_block(live: Live) -> None:
    live.pool.free_block_queue.append(live.pool.null_block)


def _free_a_held_block(live: Live) -> None:
    live.pool.free_block_queue.append(live.table("A")[-1])


def _hash_of(live: Live, index: int, group: int = 0, request: str = "A") -> Any:
    return live.table(request, group)[index].block_hash


def _forget_hash(live: Live) -> None:
    live.table("A")[0].reset_hash()


def _forget_entry(live: Live) -> None:
    live.pool.cached_block_hash_to_block.pop(_hash_of(live, 0), live.table("A")[0].block_id)


def _hash_the_null_block(live: Live) -> None:
    live.pool.null_block._block_hash = _hash_of(live, 0)


def _entry_of_another_id(live: Live) -> None:
    live.pool.cached_block_hash_to_block._cache[_hash_of(live, 0)] = {63: live.table("A")[0]}


def _swap_hashes(live: Live, left: Any, right: Any) -> None:
    """Two blocks carry each other's hash, in the cache as well."""
    for block in (left, right):
        live.pool.cached_block_hash_to_block.pop(block.block_hash, block.block_id)
    for name in ("_block_hash", "_block_hash_num_tokens"):
        if hasattr(left, name):
            kept = getattr(left, name), getattr(right, name)
            setattr(right, name, kept[0])
            setattr(left, name, kept[1])
    for block in (left, right):
        live.pool.cached_block_hash_to_block.insert(block.block_hash, block)


def _swap_with_what_is_gone(live: Live) -> None:
    own = live.table("A")[0]
    other = next(
        block for block in _free(live) if block.block_hash is not None and block.block_hash[-4:] == own.block_hash[-4:] and _end(block) == B
    )
    _swap_hashes(live, own, other)


def _end(block: Any) -> int:
    return int(getattr(block, "block_hash_num_tokens", None) or B)


def _swap_groups(live: Live) -> None:
    _swap_hashes(live, live.table("A", 0)[3], live.table("A", 1)[3])


def _swap_indices(live: Live) -> None:
    _swap_hashes(live, live.table("A")[0], live.table("A")[1])


def _shorten_hashes(live: Live) -> None:
    del live.request("A").block_hashes[3:]


POOL = {
    "free_block_lost": _unlink_free,
    "free_count": _count_free_once_more,
    "free_list_cut": _cut_free_list,
    "free_list_cycle": _close_free_list,
    "free_list_back_link": _break_back_link,
    "null_block_free": _free_the_null_block,
    "held_block_free": _free_a_held_block,
    "entry_without_hash": _forget_hash,
    "hash_without_entry": _forget_entry,
    "null_block_cached": _hash_the_null_block,
    "entry_id": _entry_of_another_id,
    "hash_of_other_tokens": _swap_with_what_is_gone,
    "hash_of_other_group": _swap_groups,
    "hash_of_other_index": _swap_indices,
    "hash_of_unknown_tokens": _shorten_hashes,
}


# ---- holders -------------------------------------------------------------------------------------------------------


def _one_reference_more(live: Live) -> None:
    live.table("A")[-1].ref_cnt += 1


def _one_reference_less(live: Live) -> None:
    live.table("A")[0].ref_cnt -= 1  # of two


def _leak_a_table(live: Live) -> None:
    live.managers[0].req_to_blocks["gone"] = []


def _repeat_a_block(live: Live) -> None:
    table = live.table("A")
    table[-1].ref_cnt += 1
    table.append(table[-1])


def _lose_a_deferred_free(live: Live) -> None:
    live.engine.abort("A")
    live.scheduler.deferred_frees.clear()


def _forget_to_drain(live: Live) -> None:
    live.engine.abort("A")
    _, blocks = live.scheduler.deferred_frees.pop()
    live.scheduler.deferred_frees.append((live.scheduler.processed_step_seq, blocks))


def _copy_without_a_reference(live: Live) -> None:
    live.managers[0]._pending_cow_copies.append((live.table("A")[0], live.table("A")[1]))


def _run_no_more(live: Live) -> None:
    live.scheduler.running.pop()


def _wait_and_run(live: Live) -> None:
    live.scheduler.waiting.add_request(live.request("A"))


def _finish_and_run(live: Live) -> None:
    from vllm.v1.request import RequestStatus

    live.request("A").status = RequestStatus.FINISHED_STOPPED


def _run_unknown(live: Live) -> None:
    for manager in live.managers:
        manager.free("A")
    del live.scheduler.requests["A"]


HOLDERS = {
    "references_above_holders": _one_reference_more,
    "references_below_holders": _one_reference_less,
    "table_without_request": _leak_a_table,
    "block_twice_in_table": _repeat_a_block,
    "references_above_holders deferred": _lose_a_deferred_free,
    "deferred_free_due": _forget_to_drain,
    "references_below_holders copy": _copy_without_a_reference,
    "request_in_no_queue": _run_no_more,
    "request_in_two_queues": _wait_and_run,
    "finished_request_queued": _finish_and_run,
    "unknown_request_queued": _run_unknown,
}


# ---- counters and bounds -------------------------------------------------------------------------------------------


def _one_token_more_in_flight(live: Live) -> None:
    live.request("A").num_in_flight_tokens += 1


def _stale_beyond_its_steps(live: Live) -> None:
    live.request("A").num_stale_output_tokens = 5


def _computed_ahead(live: Live) -> None:
    live.request("A").num_computed_tokens += 99


def _placeholders_below_none(live: Live) -> None:
    live.request("A").num_output_placeholders = -1


def _one_step_more(live: Live) -> None:
    live.scheduler.sched_step_seq += 1


def _gate_beyond_sizing(live: Live) -> None:
    live.managers[1].max_admission_blocks_per_request = 99


def _hold_beyond_the_cap(live: Live) -> None:
    live.table("A", 1).extend(live.pool.get_new_blocks(11))


COUNTERS_AND_BOUNDS = {
    "in_flight": _one_token_more_in_flight,
    "stale": _stale_beyond_its_steps,
    "computed": _computed_ahead,
    "placeholders": _placeholders_below_none,
    "step_sequence": _one_step_more,
    "gate_above_sizing[sliding_window]": _gate_beyond_sizing,
    "above_cap[sliding_window]": _hold_beyond_the_cap,
}
FAULTS: dict[str, Callable[[Live], None]] = {**POOL, **HOLDERS, **COUNTERS_AND_BOUNDS}
SINCE: dict[str, str] = {  # what the release must have for the fault to be planted
    "hash_of_other_index": "num_tokens_of_hash",
    "references_above_holders deferred": "deferred_frees",
    "deferred_free_due": "deferred_frees",
    "references_below_holders copy": "copies",
    "in_flight": "in_flight",
    "stale": "stale",
    "step_sequence": "deferred_frees",
    "gate_above_sizing[sliding_window]": "gate",
}


def _has(live: Live, what: str | None) -> bool:
    has = {
        None: True,
        "num_tokens_of_hash": hasattr(live.pool.null_block, "block_hash_num_tokens"),
        "deferred_frees": hasattr(live.scheduler, "deferred_frees"),
        "copies": hasattr(live.managers[0], "_pending_cow_copies"),
        "in_flight": hasattr(live.request("A"), "num_in_flight_tokens"),
        "stale": hasattr(live.request("A"), "num_stale_output_tokens"),
        "gate": hasattr(live.managers[1], "max_admission_blocks_per_request"),
    }
    return has[what]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_nothing_else(name: str) -> None:
    live = mid_run(consumer=True)
    assert live.causes() == set()
    if not _has(live, SINCE.get(name)):
        assert live.causes() == set()  # a release without that object: nothing can be planted, and nothing may be found
        return
    FAULTS[name](live)
    assert live.causes() == {name.split(" ")[0]}


def test_a_pin_that_holds_no_reference() -> None:
    pinned: list[int] = []
    live = mid_run(pins=lambda: pinned)
    pinned.append(live.table("A")[0].block_id)
    assert live.causes() == {"references_below_holders"}


def test_a_gate_that_counts_too_little() -> None:
    def count_nothing(scheduler: Any) -> None:
        for manager in scheduler.kv_cache_manager.coordinator.single_type_managers:
            manager.get_num_blocks_to_allocate = lambda *args, **keywords: 0

    live = Live(setup_of(), before=count_nothing)
    if not hasattr(live.managers[1], "max_admission_blocks_per_request"):
        return
    live.add("A", 70)
    assert live.schedule()
    assert live.causes() == {"gate_undercounts[full]", "gate_undercounts[sliding_window]"}


def test_what_a_request_takes_after_it_has_grown_is_no_matter_of_the_gate() -> None:
    live = Live(setup_of(FullAttentionSpec(block_size=B)))
    live.add("A", 5 * B)
    while len(live.table("A")) <= 5:
        live.turn()
        assert live.causes() == set()
    live.request("A").num_computed_tokens = 4 * B  # as a failed load leaves it
    assert not any(cause.startswith("gate") for cause in live.causes())


def test_a_gate_that_leaves_out_what_the_first_step_has_for_drafts() -> None:
    """The slots past the sequence, and in newer releases the padding of a request whose last token alone is left: no matter of a hit."""
    live = Live(setup_of(FullAttentionSpec(block_size=B), connector=ConnectorSetup(), num_speculative_tokens=17))
    if not hasattr(live.managers[0], "max_admission_blocks_per_request"):
        return
    live.add("A", 2 * B - 1, offer=Offer(2 * B - 2, is_async=False))
    assert live.schedule()
    assert live.causes() == {"gate_undercounts[full, lookahead]"}


# ---- idle -------------------------------------------------------------------------------------------------------


def _leave_request(live: Live) -> None:
    live.add("late", 5)


def _leave_pin(live: Live) -> None:
    live.inspector._pins = lambda: (1,)


def _leave_deferred(live: Live) -> None:
    live.scheduler.deferred_frees = [(99, live.pool.get_new_blocks(1))]
    live.scheduler.processed_step_seq = 0


def _leave_block(live: Live) -> None:
    live.pool.get_new_blocks(1)


def _leave_name(live: Live) -> None:
    live.managers[0].num_cached_block["A"] = 1


AT_IDLE: dict[str, tuple[Callable[[Live], None], set[str]]] = {
    "request_at_idle": (_leave_request, {"left_at_idle[Scheduler.requests]", "left_at_idle[Scheduler.waiting]"}),
    "pin_at_idle": (_leave_pin, {"references_below_holders"}),
    "deferred_free_at_idle": (_leave_deferred, {"pool_not_free_at_idle"}),
    "pool_not_free_at_idle": (_leave_block, {"references_above_holders"}),
    "left_at_idle[FullAttentionManager.num_cached_block]": (_leave_name, set()),
}


@pytest.mark.parametrize("cause", AT_IDLE)
def test_what_is_left_at_idle(cause: str) -> None:
    live = mid_run()
    assert live.drain(200)
    live.scheduler.schedule()
    assert live.inspector.at_idle() == []
    live.steps.clear()
    plant, beside = AT_IDLE[cause]
    plant(live)
    found = {anomaly.cause.replace("AsyncScheduler", "Scheduler") for anomaly in live.inspector.at_idle()}
    assert cause in found
    assert found <= {cause, *beside}
