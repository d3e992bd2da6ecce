"""What the replay finds: nothing where the order is right, and the very token where a fault was planted."""

from __future__ import annotations

import pytest
import torch
from logs import Host, foreign

from settled.model.specs import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from settled.reference.device.compiling import CompileError, compile_log
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import HOST, FillWork, LaunchKind, OpLog, Slots, StepWork
from settled.reference.device.orders import LaunchOrder
from settled.reference.device.replay import Replay, replay
from settled.reference.device.results import Result, sentence
from settled.reference.device.states import chain, fold, stepped
from settled.reference.device.tags import NEVER_WRITTEN, POISONED, ZEROED, Tag, pack

torch.set_num_threads(1)
WINDOW = SlidingWindowSpec(block_size=2, window=4)
FULL = FullAttentionSpec(block_size=4)
STATE = MambaSpec(block_size=4, mode="none")


def run(log: OpLog, order: list[int] | None = None) -> Result:
    """With numbers; tags alone must say the same of tags."""
    compiled = compile_log(log)
    result, tags_alone = replay(compiled, order, NumberedLog(compiled)), replay(compiled, order)
    assert [(row.op, row.part, row.query, row.position, row.found) for row in result.garbled] == [
        (row.op, row.part, row.query, row.position, row.found) for row in tags_alone.garbled
    ]
    assert tags_alone.counts.rows_garbled == result.counts.rows_garbled == result.counts.rows_differing
    assert all(row.differs for row in result.garbled)
    return result


def early(order: list[int], launch: int, before: int) -> list[int]:
    """The order with one launch moved before another."""
    rest = [op for op in order if op != launch]
    at = rest.index(before)
    return [*rest[:at], launch, *rest[at:]]


def freed_too_early() -> tuple[Host, int, int]:
    """The block of positions 0 and 1 is freed while the step of query 4, which reads position 1, is still to run. (host, step, load)"""
    host = Host((WINDOW,))
    request = host.add(4)
    host.step((request, 4))
    step = host.step((request, 1))
    block = host.free(request, 0, 0)
    return host, step, host.load(Slots(block, 0, foreign(7, 2)))


def test_a_block_freed_too_early_garbles_only_when_the_load_runs_first() -> None:
    host, step, load = freed_too_early()
    order = host.log.launches()
    assert run(host.log).counts.is_clean, "as enqueued"
    result = run(host.log, early(order, load, step))
    (row,) = result.garbled
    assert (row.op, row.part, row.query, row.position) == (step, 0, 4, 1)
    assert (row.expected, row.found) == (pack(Tag(0, 0, 0, 0, 1)), foreign(7, 2)[1])
    assert (row.is_null, row.is_delivered, row.is_state, row.differs) == (False, True, False, True)
    counts = result.counts
    assert (counts.steps, counts.rows, counts.rows_garbled, counts.rows_garbled_delivered, counts.tokens_wrong) == (2, 5, 1, 1, 1)
    assert (counts.rows_reading_null, counts.tokens_null, counts.stores_wrong) == (0, 0, 0)
    assert "request 0, generation 0, group 0, position 1" in sentence(row)
    assert "found: request 7, generation 0, group 0, position 1" in sentence(row)


@pytest.mark.parametrize("fault", ["load", "poison"])
def test_what_comes_between_the_write_and_the_step_garbles_the_steps_own_tokens(fault: str) -> None:
    host = Host((WINDOW,))
    request = host.add(7)
    step = host.step((request, 7))
    write = step - 1
    block = host.free(request, 0, 0)  # as if no query had positions 0 and 1 to read any more
    launch = host.poison(block) if fault == "poison" else host.load(Slots(block, 0, foreign(7, 2)))
    order = LaunchOrder(host.log)
    assert run(host.log).counts.is_clean, "as enqueued"
    assert run(host.log, order.directed(write, launch)).counts.is_clean, "before the write, which writes it anew"
    between = order.directed(step, launch)
    assert between[between.index(launch) - 1] == write
    found = foreign(7, 2) if fault == "load" else (POISONED, POISONED)
    assert [(row.op, row.query, row.position, row.found) for row in run(host.log, between).garbled] == [
        *((step, query, 0, found[0]) for query in range(4)),
        (step, 4, 1, found[1]),
    ]


def test_a_step_without_its_write_finds_what_stood_there() -> None:
    host = Host((WINDOW, STATE))
    request = host.add(4)
    step = host.step((request, 4))
    without = [op for op in host.log.launches() if op != step - 1]
    assert [(row.part, row.found) for row in run(host.log, without).garbled] == [(0, NEVER_WRITTEN)] * 4, "the state is the step's own"


def test_poison_and_zeroes_and_a_copy_garble_like_a_load() -> None:
    for fault, found in (("poison", POISONED), ("zero", ZEROED), ("copy", NEVER_WRITTEN)):
        host = Host((WINDOW,))
        request = host.add(4)
        host.step((request, 4))
        step = host.step((request, 1))
        block = host.free(request, 0, 0)
        launch = host.copy(20, block) if fault == "copy" else getattr(host, fault)(block)
        assert run(host.log).counts.is_clean
        (row,) = run(host.log, early(host.log.launches(), launch, step)).garbled
        assert (row.position, row.found, row.is_null) == (1, found, False)


def test_a_read_through_a_null_entry_is_counted_apart() -> None:
    host = Host((WINDOW,))
    request = host.add(4)
    host.step((request, 4))
    host.free(request, 0, 0)  # position 1 is still read by query 4
    host.step((request, 1))
    result = run(host.log)
    (row,) = result.garbled
    assert (row.position, row.found, row.is_null) == (1, ZEROED, True)
    assert (result.counts.tokens_null, result.counts.tokens_wrong, result.counts.rows_reading_null) == (1, 0, 1)
    assert "through a null entry: zeroes" in sentence(row)


def test_a_write_through_a_null_entry_is_really_made() -> None:
    host = Host((WINDOW,))
    victim, request = host.add(4), host.add(4)
    host.step((victim, 4), (request, 3))
    host.free(request, 0, 1)  # where position 3 will be written
    host.free(victim, 0, 0)
    host.step((request, 1), (victim, 1))
    compiled = compile_log(host.log)
    device = Replay(compiled, NumberedLog(compiled))
    for op in host.log.launches():
        device.run(op)
    assert device.memory.tags[1] == pack(Tag(1, 0, 0, 0, 3)), "slot 1 of the null block"
    found = {(row.part, row.position): row for row in device.result.garbled}
    assert list(found) == [(0, 2), (1, 1)], "the request's own key is found where it was wrongly written, and by the victim too"
    assert found[1, 1].found == pack(Tag(1, 0, 0, 0, 3))
    assert found[1, 1].is_null
    assert found[1, 1].differs


def test_a_staging_buffer_overwritten_too_early_reads_anothers_rows() -> None:
    host = Host((FULL,), num_staging=1)
    one, other = host.add(4), host.add(4)
    host.step((one, 4))
    step = host.step((one, 1))
    host.step((other, 5))
    order = host.log.launches()
    assert run(host.log).counts.is_clean
    fill, upload = order[8], order[5]
    assert host.log.ops[fill].kind is LaunchKind.FILL  # type: ignore[union-attr]
    result = run(host.log, early(order, fill, upload))
    rows = [row for row in result.garbled if row.op == step]
    assert [(row.query, row.position, row.found) for row in rows] == [(4, 0, NEVER_WRITTEN)], "it stands on the other's blocks"
    assert result.counts.tokens_wrong == 4, "all but its own"


def test_one_wrong_token_of_long_ago_makes_the_state_wrong() -> None:
    host = Host((STATE,), num_blocks=4)
    request = host.add(60)
    steps = [host.step((request, 20)) for _ in range(4)]
    block = request.tables[0][0]
    tags = list(request.tags[0])
    tags[3] += 1
    load = host.load(Slots(block, 0, tuple(tags[:20]), is_state=True))
    order = host.log.launches()
    assert order[-1] == load
    first_fill_of_second_step = order[order.index(steps[1]) - 2]
    result = run(host.log, early(order, load, first_fill_of_second_step))
    assert result.counts.rows_garbled == 60
    assert [row.position for row in result.garbled] == [20] * 20 + [40] * 20 + [60] * 20
    row = result.garbled[0]
    assert (row.expected, row.found, row.is_state) == (chain(request.tags[0][:20]), chain(tags[:20]), True)
    compiled = compile_log(host.log)
    assert compiled.describe(row.expected) == "the state of 20 tokens of request 0"
    assert compiled.describe(row.found) == "a state of other tokens"
    assert result.counts.tokens_wrong == 3


def test_a_right_state_may_be_loaded_copied_and_stored() -> None:
    host = Host((STATE, WINDOW), num_blocks=20)
    request = host.add(6)
    host.step((request, 6))
    block, target = request.tables[0][0], host.take()
    host.copy(block, target)
    request.tables[0][0] = target
    host.poison(block)
    host.store(Slots(target, 0, tuple(request.tags[0]), is_state=True))
    host.zero(target)
    host.load(Slots(target, 0, tuple(request.tags[0]), is_state=True))
    host.step((request, 2))
    assert run(host.log).counts.is_clean


def test_a_state_is_no_key_and_is_written_before_keys_are_read() -> None:
    host = Host((STATE, WINDOW), num_blocks=20)
    request = host.add(4)
    host.step((request, 4))
    request.tables[0][0] = request.tables[1][1]
    step = host.step((request, 1))
    found = {row.part: row for row in run(host.log).garbled if row.op == step}
    assert found[0].found == pack(Tag(0, 0, 1, 0, 2))
    assert found[1].found == stepped(found[0].found, *fold(request.tags[0][4:]))
    assert (found[1].position, found[1].expected) == (2, pack(Tag(0, 0, 1, 0, 2)))


def test_a_null_state_is_a_null_read_and_poison_makes_it_wrong() -> None:
    host = Host((STATE,), num_blocks=4)
    request = host.add(4)
    step = host.step((request, 4))
    poison = host.poison(request.tables[0][0])
    host.step((request, 1))
    result = run(host.log)
    assert [row.found for row in result.garbled] == [POISONED]
    assert run(host.log, early(host.log.launches(), poison, step)).counts.is_clean
    host.free(request, 0, 0)
    host.step((request, 1))
    last = run(host.log).garbled[-1]
    assert (last.is_null, last.found, last.position) == (True, ZEROED, 5)


def test_discarded_rows_are_counted_apart() -> None:
    host = Host((WINDOW,))
    request = host.add(4)
    host.step((request, 4))
    host.free(request, 0, 0)
    host.step((request, 1), is_delivered=False)
    counts = run(host.log).counts
    assert (counts.rows_garbled, counts.rows_garbled_delivered) == (1, 0)


def test_a_store_of_a_block_that_was_given_away_brings_the_wrong_slots() -> None:
    host = Host((WINDOW,))
    request = host.add(4)
    host.step((request, 4))
    store = host.store_block(request, 0, 0)
    block = request.tables[0][0]
    load = host.load(Slots(block, 1, foreign(7, 1)), stream=4)
    assert run(host.log).counts.is_clean
    compiled = compile_log(host.log)
    device = Replay(compiled, NumberedLog(compiled))
    for op in early(host.log.launches(), load, store):
        device.run(op)
    (row,) = device.result.garbled
    assert (row.op, row.part, row.position, row.found, row.differs) == (store, -1, 1, foreign(7, 1)[0], True)
    assert (device.result.counts.stores_wrong, device.result.counts.store_slots_wrong) == (1, 1)
    assert device.memory.host_tags.tolist() == [request.tags[0][0], foreign(7, 1)[0]]
    assert "a store's slot 1 should hold" in sentence(row)


def test_lookahead_slots_are_written_and_nobody_reads_them() -> None:
    host = Host((WINDOW,))
    request = host.add(4)
    host.step((request, 4), lookahead=3)
    host.step((request, 2), lookahead=3)
    assert run(host.log).counts.is_clean
    assert run(host.log).counts.rows == 6


def test_memory_begins_unwritten_and_a_table_null() -> None:
    host = Host((FULL,))
    request = host.add(4)
    host.step((request, 4))
    _, upload, write, step = host.log.launches()
    assert [row.found for row in run(host.log, [upload, step]).garbled] == [ZEROED] * 4, "an unfilled buffer is null too"
    assert run(host.log, [write, step]).counts.is_clean, "four keys through one null entry: written there, found there"
    assert [row.found for row in run(host.log, [*host.log.launches()[:2], step]).garbled] == [NEVER_WRITTEN] * 4


def test_what_is_no_launch_is_not_run() -> None:
    host, _, load = freed_too_early()
    with pytest.raises(KeyError):
        Replay(compile_log(host.log)).run(load - 1)


def test_the_limit_bounds_what_is_kept_not_what_is_counted() -> None:
    host, step, load = freed_too_early()
    compiled = compile_log(host.log)
    result = replay(compiled, early(host.log.launches(), load, step), limit=0)
    assert result.garbled == []
    assert result.counts.rows_garbled == 1


@pytest.mark.parametrize("fault", ["staging", "block", "slots", "table", "group"])
def test_what_no_device_can_do_is_refused(fault: str) -> None:
    host = Host((WINDOW, STATE))
    request = host.add(4)
    step = host.step((request, 4))
    ops = host.log.ops
    if fault == "staging":
        host.launch(HOST, LaunchKind.FILL, FillWork(2, ()))
    elif fault == "block":
        host.zero(32)
    elif fault == "slots":
        host.load(Slots(3, 1, foreign(7, 2)))
    elif fault == "table":
        host.launch(HOST, LaunchKind.FILL, FillWork(0, ((99,),)))
    else:
        work = ops[step].work  # type: ignore[union-attr]
        assert isinstance(work, StepWork)
        work.parts[0].group = 1
    message = {
        "staging": "there is no staging buffer 2",
        "block": "there is no block 32",
        "slots": "block 3 has 2 slots",
        "table": "names a block outside of 0 to 31",
        "group": "no kernel reads keys of group 1, mamba",
    }
    with pytest.raises(CompileError, match=message[fault]):
        compile_log(host.log)
