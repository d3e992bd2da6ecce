"""Single kernels in the interpreter: the bytes they write, who wins, what a gate does; and that planted faults are noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from logs import Host
from looks import opened_at_look
from torch import Tensor
from workloads import FAULT_2, NUMBERS, made

from settled.model.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, SinkWindowSpec
from settled.reference.device.attention import bits
from settled.reference.device.compiling import compile_log
from settled.reference.device.cuda import kernels
from settled.reference.device.cuda.device_log import PART_FIELDS
from settled.reference.device.cuda.interpreted import interpreted_launches, replay_interpreted
from settled.reference.device.cuda.launches import BackEndError, Gate, Launches, check_back_end
from settled.reference.device.cuda.variants import TILE, attention_variant, copy_variant, variants_for
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import LaunchKind
from settled.reference.device.payload import KEY, VALUE, Numbers, payload
from settled.reference.device.replay import Replay, replay_outcome
from settled.reference.device.tags import NEVER_WRITTEN, ZEROED

torch.set_num_threads(1)
FULL, SINK, STATE = FullAttentionSpec(block_size=4), SinkWindowSpec(block_size=4, sink=3, window=6), MambaSpec(block_size=4, mode="none")


def launches_of(host: Host) -> Launches:
    compiled = compile_log(host.log)
    return interpreted_launches(compiled, NumberedLog(compiled, NUMBERS))


def prompt(tokens: int, *groups: KVCacheSpec) -> Launches:
    """FILL 0, UPLOAD 1, WRITE 2, STEP 3 of one request."""
    host = Host(groups)
    host.step((host.add(tokens), tokens))
    return launches_of(host)


def test_written_keys_and_values_are_those_of_payload_bit_for_bit() -> None:
    launches = prompt(21, FULL)
    for op in (0, 1, 2):
        launches.run(op)
    write = launches.compiled.writes[0]
    slots = launches.compiled.write_slots(write, 1).slots
    assert torch.equal(launches.buffers.tags[slots], write.tags)
    assert torch.equal(bits(launches.buffers.keys[slots]), bits(payload(write.tags, KEY, NUMBERS)))
    assert torch.equal(bits(launches.buffers.values[slots]), bits(payload(write.tags, VALUE, NUMBERS)))
    untouched = torch.ones(len(launches.buffers.tags), dtype=torch.bool)
    untouched[slots] = False
    before = launches_of(Host((FULL,)))
    assert torch.equal(launches.buffers.tags[untouched], before.buffers.tags[untouched])


def test_memory_after_every_launch_is_the_cpu_replays() -> None:
    host = Host((FULL, STATE))
    request, other = host.add(6), host.add(3)
    host.step((request, 6), (other, 3))
    host.copy(request.tables[0][0], 20)
    host.zero(21, 22)
    host.poison(request.tables[1][0])
    host.step((request, 2), (other, 1), lookahead=2)
    launches = launches_of(host)
    device = Replay(launches.compiled, launches.numbered)
    for op in host.log.launches():
        launches.run(op)
        device.run(op)
        assert torch.equal(launches.buffers.tags, device.memory.tags), launches.compiled.kinds[op]
        for mine, other_side in ((launches.buffers.keys, device.memory.keys), (launches.buffers.values, device.memory.values)):
            assert torch.equal(mine.isnan(), other_side.isnan())
            assert torch.equal(bits(mine.nan_to_num()), bits(other_side.nan_to_num()))


@pytest.mark.parametrize("groups", [(FULL,), (FULL, FULL), (STATE, STATE)], ids=["one part", "two parts", "states"])
def test_what_goes_to_one_slot_leaves_there_what_came_last(groups: tuple[KVCacheSpec, ...]) -> None:
    launches = prompt(2 * TILE + 2, *groups)
    kind = LaunchKind.STEP if STATE in groups else LaunchKind.WRITE
    order = [op for op in launches.log.launches() if launches.compiled.kinds[op] is kind]
    device = Replay(launches.compiled, launches.numbered)
    for op in order:  # without a table everything goes to the null block
        launches.run(op)
        device.run(op)
    assert torch.equal(launches.buffers.tags, device.memory.tags)
    assert int(launches.buffers.tags[0]) != ZEROED, "the null block was written to"


@triton.jit
def _ask_last(table, cells, offsets, kept, page, tokens, TILE: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    first = tl.program_id(0) * TILE
    at = first + tl.arange(0, TILE)
    is_token = at < tokens
    slots = tl.load(table + tl.load(cells + at, mask=is_token), mask=is_token) * page + tl.load(offsets + at, mask=is_token)
    tl.store(kept + at, kernels._is_last(table, cells, offsets, slots, at, first, tokens, page, TILE).to(tl.int32), mask=is_token)


def test_only_the_last_of_several_writes_to_a_slot_is_done_at_all() -> None:
    """The interpreter runs programs in turn, so that memory alone would not tell."""
    launches = prompt(2 * TILE + 2, FULL, FULL)
    write = launches.compiled.writes[0]
    for table in (0, 1):
        kept = torch.full((len(write.tags),), -1, dtype=torch.int32)
        entries = launches.buffers.fills[table].clone()
        told = launches._told
        _ask_last[(-(-len(kept) // TILE),)](
            entries, told["write_cells"], told["write_offsets"], kept, launches.buffers.page, len(kept), TILE=TILE
        )
        keep = launches.compiled.write_slots(write, table).keep
        expected = torch.ones_like(kept) if keep is None else torch.zeros_like(kept).index_fill(0, keep, 1)
        assert torch.equal(kept, expected)
        assert (keep is None) == bool(table), "the null block takes them all, real blocks take one each"


def test_a_launch_that_did_not_run_leaves_no_clean_outcome() -> None:
    launches = prompt(3, FULL, STATE)
    without_step, without_write = (replay_interpreted(launches, [op for op in range(4) if op != missing]) for missing in (3, 2))
    assert not without_step.is_clean
    assert without_step.counts() == "0 of 3 rows garbled, 0 of 1 states, 0 of 0 stores, 4 reads missing"
    assert not without_write.is_clean
    assert without_write.counts() == "3 of 3 rows garbled, 0 of 1 states, 0 of 0 stores"
    assert replay_interpreted(launches).is_clean, "reset forgets what came before"


def test_a_reset_leaves_nothing_of_a_run() -> None:
    """No table in a staging buffer either, nor what a store brought: another order would find it."""
    host = Host((FULL,))
    request = host.add(6)
    host.step((request, 6))
    host.store_block(request, 0, 0)
    launches = launches_of(host)
    buffers = launches.buffers
    names = [name for name in type(buffers).__slots__ if isinstance(getattr(buffers, name), Tensor)]
    before = {name: getattr(buffers, name).clone() for name in names}

    def changed() -> set[str]:
        return {name for name in names if not torch.equal(before[name].view(torch.uint8), getattr(buffers, name).view(torch.uint8))}

    assert replay_interpreted(launches).is_clean
    assert changed() == {"tags", "keys", "values", "table", "staging", "stored_tags", "stored_keys", "stored_values"}
    launches.reset()
    assert changed() == set()


def test_of_many_wrong_keys_the_first_is_told_and_what_stood_there() -> None:
    host = Host((FULL,))
    request = host.add(TILE + 8)
    prefill = host.step((request, TILE + 8))
    zero = host.zero(request.tables[0][TILE // 4], request.tables[0][TILE // 4 + 1])
    step = host.step((request, 2))
    launches = launches_of(host)
    order = [op for op in host.log.launches() if op not in (prefill, prefill - 1)]  # nothing is written but zeroes, a tile further on
    assert order.index(zero) < order.index(step)
    outcome = replay_interpreted(launches, order)
    assert outcome.differences(replay_outcome(launches.compiled, launches.numbered, order)) == []
    assert outcome.wrong[-2:].tolist() == [TILE + 8] * 2
    assert outcome.first[-2:].tolist() == [0, 0]
    assert outcome.found[-2:].tolist() == [NEVER_WRITTEN] * 2


@pytest.mark.parametrize("null", [0, TILE // 4])
def test_the_first_wrong_key_alone_says_whether_it_was_read_through_null(null: int) -> None:
    """A lane of a tile finds two wrong keys, one through a null entry: the first of the row, or the one a tile further on."""
    launches = prompt(TILE + 2, FULL)
    for op in (0, 1):
        launches.run(op)
    launches.buffers.table[0, null] = 0
    launches.run(3)
    outcome = launches.outcome()
    assert outcome.wrong[-1] > TILE
    assert (outcome.first[-1], outcome.is_null[-1]) == (0, null == 0)
    assert outcome.found[-1] == (NEVER_WRITTEN if null else ZEROED)


def test_a_state_in_the_first_cell_of_the_table_is_read() -> None:
    host = Host((STATE,))
    request = host.add(3)
    host.step((request, 3))
    host.step((request, 1))
    launches = launches_of(host)
    assert launches._told["parts"].view(-1, PART_FIELDS)[:, 0].tolist() == [-1, 0], "no state, then one in cell 0"
    outcome = replay_interpreted(launches)
    assert outcome.is_clean
    assert outcome.differences(replay_outcome(launches.compiled, launches.numbered)) == []
    without_table = [op for op in host.log.launches() if launches.compiled.kinds[op] is not LaunchKind.UPLOAD]
    through_null = replay_interpreted(launches, without_table)
    assert through_null.state_null.tolist() == [0, 1]
    assert through_null.differences(replay_outcome(launches.compiled, launches.numbered, without_table)) == []


# ---- the gate ----------------------------------------------------------------------------------------------------------


def decode() -> tuple[Launches, list[int], int]:
    """A prompt of a tile and a half, written and not read, then a step of two tokens. (launches, their order, that step)"""
    host = Host((FULL,))
    request = host.add(TILE + 8)
    prefill = host.step((request, TILE + 8))
    step = host.step((request, 2))
    return launches_of(host), [op for op in host.log.launches() if op != prefill], step


def gated(launches: Launches, op: int, row: int, tile: int, *, is_open: bool) -> Tensor:
    arrived = torch.zeros(1, dtype=torch.int32)
    launches.gate = Gate(op, row, tile, torch.tensor([int(is_open)], dtype=torch.int32), arrived, spins=3)
    return arrived


def test_a_gate_changes_nothing_that_is_read() -> None:
    launches, order, step = decode()
    without = replay_interpreted(launches, order)
    assert without.wrong.tolist() == [-1] * (TILE + 8) + [0, 0]
    for is_open, tile, says in ((True, 1, 1), (False, 2, 2)):  # the row has two tiles
        arrived = gated(launches, step, 1, tile, is_open=is_open)
        outcome = replay_interpreted(launches, order)
        assert arrived.tolist() == [says], "given up where nobody opens it"
        assert outcome.differences(without) == []
        assert outcome.rows_differing(without) == []


def test_a_gate_holds_one_row_at_one_tile() -> None:
    launches, order, step = decode()
    for row, tile in ((2, 1), (1, 3)):
        arrived = gated(launches, step, row, tile, is_open=False)
        replay_interpreted(launches, order)
        assert arrived.tolist() == [0], "no such row, no such tile"


def test_a_gate_is_looked_at_anew_until_it_opens_or_the_bound_and_at_one_tile_alone() -> None:
    launches, order, step = decode()
    for opens_at, told, says in ((1, [1], 1), (2, [1, 2], 1), (3, [1, 2, 3], 1), (4, [1, 2, 3], 2)):  # three looks at the most
        arrived = gated(launches, step, 1, 1, is_open=False)  # the row has two tiles
        assert launches.gate is not None
        with opened_at_look(launches.gate.go, opens_at) as looks:
            replay_interpreted(launches, order)
        assert (looks, arrived.tolist()) == (told, [says])


# ---- without tags, with heads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [torch.float32, torch.bfloat16])
def test_attention_with_heads_and_without_tags_is_softmax_attention(numbers: torch.dtype) -> None:
    heads, head_dim, page, tokens = 2, 8, 4, 10
    generator = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(6 * page, heads, head_dim, generator=generator).to(numbers) for _ in range(2))
    queries = torch.randn(1, heads, head_dim, generator=generator).to(numbers)
    table = torch.tensor([[5, 2, 4]], dtype=torch.int32)
    rows, ranges = torch.tensor([[0, page, 0, 1]], dtype=torch.int32), torch.tensor([[1, tokens, 0]], dtype=torch.int32)
    outputs = torch.zeros_like(queries)
    nothing = torch.zeros(1, dtype=torch.int64)
    variant = attention_variant(head_dim, heads=heads, tile=4, is_checked=False)
    told = (nothing, keys, values, table, rows, ranges, nothing, queries, outputs, *(nothing,) * 5, nothing, nothing)
    variant.launch((1, heads), *told, head_dim**-0.5, 0, page, 0, 0, 0)
    slots = [int(table[0, position // page]) * page + position % page for position in range(1, tokens)]
    weights = torch.softmax((keys[slots].float() * queries[0].float()).sum(-1) * head_dim**-0.5, 0)
    expected = (weights.unsqueeze(-1) * values[slots].float()).sum(0)
    assert torch.allclose(outputs[0].float(), expected, rtol=1e-5 if numbers == torch.float32 else 1e-2, atol=1e-6)


def test_blocks_are_copied_whole_and_no_further() -> None:
    page, slot = 17, 8  # one slot more than a tile
    keys, values = torch.arange(4 * page * slot, dtype=torch.float32), torch.arange(4 * page * slot, dtype=torch.float32) + 0.5
    tags = torch.arange(4 * page)
    expected = [tensor.view(4, -1).clone() for tensor in (tags, keys, values)]
    for tensor in expected:
        tensor[2], tensor[3] = tensor[0], tensor[1]
    pairs = torch.tensor([[0, 2], [1, 3]], dtype=torch.int32)
    copy_variant(slot, 16, is_tagged=True).launch((2, -(-page * slot // 16)), tags, keys, values, pairs, 0, page)
    for found, wanted in zip((tags, keys, values), expected, strict=True):
        assert torch.equal(found, wanted.flatten())


# ---- planted faults ----------------------------------------------------------------------------------------------------


def _wrong_tag(launches: Launches) -> None:
    launches._told["write_tags"][2] += 1


def _range_too_short(launches: Launches) -> None:
    launches._told["ranges"][-2] -= 1


def _range_too_early(launches: Launches) -> None:
    launches._told["ranges"][-3] -= 1


def _wrong_expectation(launches: Launches) -> None:
    launches._told["expected"][0] += 1


def _wrong_cell(launches: Launches) -> None:
    launches._told["write_cells"][0] += 1


@pytest.mark.parametrize("plant", [_wrong_tag, _range_too_short, _range_too_early, _wrong_expectation, _wrong_cell])
def test_what_is_planted_in_the_device_log_shows(plant: Callable[[Launches], None]) -> None:
    ready = made(FAULT_2)
    launches = interpreted_launches(ready.compiled, ready.numbered)
    plant(launches)
    assert replay_interpreted(launches, ready.order).differences(replay_outcome(ready.compiled, ready.numbered, ready.order))


@triton.jit
def _blind_to_low_bits(x):  # type: ignore[no-untyped-def]
    return x & -2


def test_a_digest_that_does_not_see_all_of_a_tag_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = made(FAULT_2)
    launches = interpreted_launches(ready.compiled, ready.numbered)
    expected = replay_outcome(ready.compiled, ready.numbered, ready.order)
    monkeypatch.setattr(kernels, "_mix", _blind_to_low_bits)
    assert replay_interpreted(launches, ready.order).differences(expected) == ["digests"]


# ---- what goes together ------------------------------------------------------------------------------------------------


def test_interpreted_kernels_are_refused_for_a_device() -> None:
    with pytest.raises(BackEndError, match="unset it"):
        check_back_end(torch.device("cuda"))
    with pytest.raises(BackEndError, match="not on meta"):
        check_back_end(torch.device("meta"))


def test_numbers_that_kernels_cannot_have_are_refused() -> None:
    compiled = compile_log(Host((FULL,)).log)
    with pytest.raises(ValueError, match="is_single=True"):
        interpreted_launches(compiled, NumberedLog(compiled, Numbers(head_dim=16)))
    with pytest.raises(ValueError, match="power of two"):
        variants_for(12)
