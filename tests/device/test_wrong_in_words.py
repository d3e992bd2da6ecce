"""What the host keeps about blocks and sequences, and how one wrong read is put into words: single cases that whole replays rarely meet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from logs import Host

from settled.model.specs import FullAttentionSpec, MambaSpec
from settled.reference.device.blocks import Tables
from settled.reference.device.compiled import CompiledLog
from settled.reference.device.compiling import compile_log
from settled.reference.device.contents import Sequence
from settled.reference.device.foresight import LoweringError
from settled.reference.device.judge import Judge
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import LaunchKind, Slots
from settled.reference.device.outcome import add_stores
from settled.reference.device.reads import Found, garbled_queries
from settled.reference.device.replay import Replay, replay_outcome
from settled.reference.device.results import Result
from settled.reference.device.rows import moves_of
from settled.reference.device.transferring import Transferring

torch.set_num_threads(1)
FULL, STATE = FullAttentionSpec(block_size=4), MambaSpec(block_size=4, mode="none")


def stored() -> CompiledLog:
    """A step of six tokens; a STORE of a block of keys and of the state."""
    host = Host((FULL, STATE))
    request = host.add(6)
    host.step((request, 6))
    keys, state = Slots(request.tables[0][0], 0, tuple(request.tags[0][:4])), tuple(request.tags[1])
    host.store(keys, Slots(request.tables[1][0], 0, state, is_state=True))
    return compile_log(host.log)


# ---- what the host keeps ---------------------------------------------------------------------------------------------


def test_a_new_generation_knows_nothing_of_states_that_a_load_did_not_bring() -> None:
    sequence = Sequence("a", 0, 8, 1)
    garbage = sequence.fail_state(0, 2)
    assert sequence.state_with_failures(0, [1, 2, 3]) == [*garbage, 3]
    sequence.restart(0)
    assert sequence.state_with_failures(0, [1, 2, 3]) == [1, 2, 3]


def test_a_block_that_stands_elsewhere_by_now_is_still_found_there() -> None:
    tables = Tables(Sequence("a", 0, 8, 1), 1)
    tables.hold(0, 0, [7, 8])
    tables.hold(0, 2, [7])
    tables.release(0, [0, 1], [7, 8])
    assert tables.index_of == [{7: 2}]
    assert tables.as_held() == [(0, 0, 7)]


def test_a_block_was_allocated_in_one_group_alone() -> None:
    blocks: Any = SimpleNamespace(place_of={7: SimpleNamespace(group=1, table_index=2)}.get)
    transferring = Transferring(None, blocks, None, None)  # type: ignore[arg-type]
    tables = Tables(Sequence("a", 0, 8, 2), 2)
    assert transferring._index(5, 7, 1, tables) == 2
    for block, group in ((7, 0), (8, 1)):
        with pytest.raises(LoweringError, match=f"block {block} is in no table of group {group}"):
            transferring._index(5, block, group, tables)


# ---- in words --------------------------------------------------------------------------------------------------------


def test_a_query_reads_null_wherever_among_its_wrong_keys_it_does() -> None:
    part: Any = SimpleNamespace(start=2, tokens=3, prompt_tokens=8)
    wrong = {1: Found(5, 6, False), 3: Found(5, 0, True)}
    assert garbled_queries(part, lambda query, prompt: [(0, query + 1)], wrong) == [(2, 1, False), (3, 1, True), (4, 1, True)]


def test_a_state_of_the_right_tag_may_differ_all_the_same() -> None:
    compiled = stored()
    result = Result(limit=10)
    (step,) = compiled.steps
    number = step.state_parts[0]
    Judge(compiled, result).states(step, compiled.step_slots(step, 1), step.state_expected, {(number, 4)})
    (told,) = result.garbled
    assert (told.part, told.query, told.position, told.is_state, told.differs) == (number, 4, -1, True, True)
    assert (result.counts.rows_differing, result.counts.rows_garbled, result.counts.tokens_wrong) == (1, 0, 0)


@pytest.mark.parametrize(("first", "is_state"), [(1, False), (4, True)])
def test_a_wrong_slot_of_a_store_is_a_state_or_a_key(first: int, is_state: bool) -> None:
    compiled = stored()
    result = Result(limit=10)
    (store,) = moves_of(compiled, LaunchKind.STORE)
    tags = store.tags.clone()
    tags[first:] += 1
    Judge(compiled, result).store(store, tags, False)
    (told,) = result.garbled
    assert (told.position, told.is_state) == (first, is_state)
    assert result.counts.store_slots_wrong == 5 - first


@pytest.mark.parametrize("sort", ["keys", "values"])
def test_a_store_of_right_tags_is_wrong_where_keys_or_values_are(sort: str) -> None:
    compiled = stored()
    numbered = NumberedLog(compiled)
    *before, last = compiled.log.launches()
    assert compiled.kinds[last] is LaunchKind.STORE
    (store,) = moves_of(compiled, LaunchKind.STORE)
    device = Replay(compiled, numbered)
    for op in before:
        device.run(op)
    getattr(device.memory, sort)[store.slots[2]] += 1
    device.run(last)
    assert device.result.counts.stores_wrong == 1
    assert device.result.counts.store_slots_wrong == 0
    outcome = replay_outcome(compiled, numbered)
    assert outcome.store_differing.tolist() == [0]
    memory = device.memory
    add_stores(outcome, compiled, numbered, memory.host_tags, memory.host_keys, memory.host_values)
    assert (outcome.store_wrong.tolist(), outcome.store_differing.tolist()) == ([0], [1])
