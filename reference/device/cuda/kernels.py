"""The launches of an op log as Triton kernels: one source for the interpreter, for ahead-of-time compilation and for a device.

Memory is as in `device_log.py`. Kernels find slots through the device's block table alone, so that a wrong table makes them read and write
elsewhere. Nothing is atomic and nobody writes what another program of its launch writes: the same memory gives the same bits. Arithmetic is
that of `payload.py`, `states.py` and `state_tensors.py`; the order within a step is that of `replay.py`.

No name has a docstring inside a kernel's body that Triton would have to compile; what a kernel does stands above it.
"""

import triton
import triton.language as tl

from settled.reference.device import payload, state_tensors, states

GOLDEN, FIRST, SECOND = tl.constexpr(payload.GOLDEN), tl.constexpr(payload.FIRST), tl.constexpr(payload.SECOND)
QUERY, KEY, VALUE, INPUT = (tl.constexpr(vector) for vector in range(4))
SIGN = tl.constexpr(states.SIGN)
FACTOR = tl.constexpr(state_tensors.FACTOR)
NOWHERE = tl.constexpr(2**31 - 1)  # past every position

TRITON_VERSION = tuple(map(int, triton.__version__.split(".")[:2]))
IS_INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether the kernels below run in Triton's interpreter: decided by TRITON_INTERPRET when this module is imported."""


@triton.jit
def _mix(x):
    x = x + GOLDEN
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * SECOND
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


# The numbers of tags, [tags, HEAD_DIM], in float32: 22 bits of a word, i / 2**21 - 1.
@triton.jit
def _payload(tags, VECTOR: tl.constexpr, HEAD_DIM: tl.constexpr):
    words = tl.arange(0, HEAD_DIM).to(tl.int64) + VECTOR * HEAD_DIM
    drawn = (_mix(_mix(tags)[:, None] + words[None, :]) >> 42) & 0x3FFFFF
    return drawn.to(tl.float32) * (1.0 / 2097152.0) - 1.0


# Which of `slots`, those of the indices `at`, no later index below `end` goes to as well. `offsets` None: slot 0 of a block.
@triton.jit
def _is_last(table, cells, offsets, slots, at, begin, end, page, TILE: tl.constexpr):
    overwritten = tl.zeros([TILE], tl.int32)
    for begin_of_tile in range(begin, end, TILE):
        others = begin_of_tile + tl.arange(0, TILE)
        is_there = others < end
        cell = tl.load(cells + others, mask=is_there, other=0)
        other_slots = tl.load(table + cell, mask=is_there, other=0) * page
        if offsets is not None:
            other_slots += tl.load(offsets + others, mask=is_there, other=0)
        is_same = (other_slots[None, :] == slots[:, None]) & (others[None, :] > at[:, None]) & is_there[None, :]
        overwritten += tl.sum(is_same.to(tl.int32), 1)
    return overwritten == 0


# WRITE: tokens `begin` to `end` of the log, TILE of them a program. Of several that go to one slot, as through null entries, the last wins.
@triton.jit(do_not_specialize=["begin", "end", "page"])
def write_kernel(tags, keys, values, table, cells, offsets, new_tags, begin, end, page, HEAD_DIM: tl.constexpr, TILE: tl.constexpr):
    first = begin + tl.program_id(0) * TILE
    at = first + tl.arange(0, TILE)
    is_token = at < end
    cell = tl.load(cells + at, mask=is_token, other=0)
    slots = tl.load(table + cell, mask=is_token, other=0) * page + tl.load(offsets + at, mask=is_token, other=0)
    is_kept = is_token & _is_last(table, cells, offsets, slots, at, first, end, page, TILE)
    new = tl.load(new_tags + at, mask=is_token, other=0)
    tl.store(tags + slots, new, mask=is_kept)
    numbers = slots.to(tl.int64)[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    tl.store(keys + numbers, _payload(new, KEY, HEAD_DIM), mask=is_kept[:, None])
    tl.store(values + numbers, _payload(new, VALUE, HEAD_DIM), mask=is_kept[:, None])


# The first third of a STEP: a program reads the state of a part into scratch, and goes on with it token by token.
# A part, PART_FIELDS integers: table cell (-1: the empty state), tokens, first token among all parts', first row of scratch.
@triton.jit(do_not_specialize=["begin", "page", "empty_slot"])
def state_read_kernel(
    tags,
    keys,
    table,
    parts,
    expected,
    token_tags,
    found_tags,
    wrong,
    is_null,
    scratch,
    begin,
    page,
    empty_slot,
    HEAD_DIM: tl.constexpr,
    PART_FIELDS: tl.constexpr,
):
    part = begin + tl.program_id(0)
    fields = parts + part * PART_FIELDS
    cell = tl.load(fields)
    tokens = tl.load(fields + 1)
    first_token = tl.load(fields + 2)
    first_row = tl.load(fields + 3)
    block = tl.load(table + cell, mask=cell >= 0, other=0)
    slot = tl.where(cell >= 0, block * page, empty_slot)
    tag = tl.load(tags + slot)
    tl.store(found_tags + part, tag)
    tl.store(wrong + part, (tag != tl.load(expected + part)).to(tl.int32))
    tl.store(is_null + part, ((cell >= 0) & (block == 0)).to(tl.int32))
    lanes = tl.arange(0, HEAD_DIM)
    state = tl.load(keys + slot.to(tl.int64) * HEAD_DIM + lanes)
    tl.store(scratch + first_row.to(tl.int64) * HEAD_DIM + lanes, state)
    for token in range(tokens):
        word = tl.load(token_tags + first_token + token)
        drawn = (_mix(_mix(word) + INPUT * HEAD_DIM + lanes.to(tl.int64)) >> 42) & 0x3FFFFF
        total = FACTOR * state + (drawn.to(tl.float32) * (1.0 / 2097152.0) - 1.0)
        state = total - tl.floor(total)
        tl.store(scratch + (first_row + token + 1).to(tl.int64) * HEAD_DIM + lanes, state)


# The second third of a STEP: from scratch to where the states go, TILE of them a program; the last to a slot wins.
# `factors` and `addends` make the new tag of the one that was read, whatever that was.
@triton.jit(do_not_specialize=["begin", "end", "page"])
def state_write_kernel(
    tags,
    keys,
    values,
    table,
    cells,
    parts_of,
    rows,
    factors,
    addends,
    found_tags,
    scratch,
    begin,
    end,
    page,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
):
    first = begin + tl.program_id(0) * TILE
    at = first + tl.arange(0, TILE)
    is_state = at < end
    slots = tl.load(table + tl.load(cells + at, mask=is_state, other=0), mask=is_state, other=0) * page
    is_kept = is_state & _is_last(table, cells, None, slots, at, first, end, page, TILE)
    read = tl.load(found_tags + tl.load(parts_of + at, mask=is_state, other=0), mask=is_state, other=0)
    made = (read * tl.load(factors + at, mask=is_state, other=0) + tl.load(addends + at, mask=is_state, other=0)) | SIGN
    tl.store(tags + slots, made, mask=is_kept)
    lanes = tl.arange(0, HEAD_DIM)[None, :]
    row = tl.load(rows + at, mask=is_state, other=0).to(tl.int64)
    numbers = tl.load(scratch + row[:, None] * HEAD_DIM + lanes, mask=is_kept[:, None], other=0.0)
    places = slots.to(tl.int64)[:, None] * HEAD_DIM + lanes
    tl.store(keys + places, numbers, mask=is_kept[:, None])
    tl.store(values + places, numbers, mask=is_kept[:, None])


# The last third of a STEP: softmax attention of a row and head a program, over the ranges of positions that the row reads.
#
# A row, ROW_FIELDS integers: first table cell, block size, first of its ranges, how many. A range, RANGE_FIELDS integers: first position,
# end, where the tags that it should find begin in `expected`. Tiles follow from ranges alone, never from blocks: memory laid out otherwise
# gives the same bits. IS_CHECKED: the tags of what is read are compared, counted and digested; without, only keys and values are touched.
# IS_GATED: row `gate_row` of the launch says that it has arrived when it is through with `gate_tile` tiles, and goes on when `go` is
# not 0, or after `gate_spins` looks; `arrived` becomes 1, and then 2 if nobody let it on. `.wt` writes it through to the host at once: no
# fence follows as long as the kernel waits.
@triton.jit(
    do_not_specialize=["begin", "page", "gate_row", "gate_tile", "gate_spins"],
    do_not_specialize_on_alignment=["go", "arrived"],
)
def attention_kernel(
    tags,
    keys,
    values,
    table,
    rows,
    ranges,
    expected,
    queries,
    outputs,
    digests,
    wrong,
    first_wrong,
    found_tags,
    is_null,
    go,
    arrived,
    scale,
    begin,
    page,
    gate_row,
    gate_tile,
    gate_spins,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
    ROW_FIELDS: tl.constexpr,
    RANGE_FIELDS: tl.constexpr,
    IS_CHECKED: tl.constexpr,
    IS_GATED: tl.constexpr,
):
    row = begin + tl.program_id(0)
    head = tl.program_id(1)
    first_cell = tl.load(rows + row * ROW_FIELDS)
    block_size = tl.load(rows + row * ROW_FIELDS + 1)
    first_range = tl.load(rows + row * ROW_FIELDS + 2)
    end_range = first_range + tl.load(rows + row * ROW_FIELDS + 3)
    lanes = tl.arange(0, HEAD_DIM)
    at_output = (row.to(tl.int64) * HEADS + head) * HEAD_DIM + lanes
    query = tl.load(queries + at_output).to(tl.float32)

    highest = -1.0e30  # below every score; finite, so that keys without numbers meet no difference of infinities
    total = 0.0
    output = tl.zeros([HEAD_DIM], tl.float32)
    digest = tl.zeros([TILE], tl.int64)
    count = tl.zeros([TILE], tl.int32)
    first = tl.full([TILE], NOWHERE, tl.int32)
    found = tl.zeros([TILE], tl.int64)
    through_null = tl.zeros([TILE], tl.int32)
    tiles = 0
    for which in range(first_range, end_range):
        begin_position = tl.load(ranges + which * RANGE_FIELDS)
        end_position = tl.load(ranges + which * RANGE_FIELDS + 1)
        for begin_of_tile in range(begin_position, end_position, TILE):
            positions = begin_of_tile + tl.arange(0, TILE)
            is_read = positions < end_position
            block = tl.load(table + first_cell + positions // block_size, mask=is_read, other=0)
            slots = block.to(tl.int64) * page + positions % block_size
            numbers = (slots * HEADS + head)[:, None] * HEAD_DIM + lanes[None, :]
            key = tl.load(keys + numbers, mask=is_read[:, None], other=0.0, cache_modifier=".cg").to(tl.float32)
            value = tl.load(values + numbers, mask=is_read[:, None], other=0.0, cache_modifier=".cg").to(tl.float32)
            scores = tl.where(is_read, tl.sum(key * query[None, :], 1) * scale, -float("inf"))
            is_number = scores == scores  # keys that hold none make the output none, and no maximum
            new_highest = tl.maximum(highest, tl.max(tl.where(is_number, scores, -1.0e30), 0))
            weights = tl.exp(scores - new_highest)
            decay = tl.exp(highest - new_highest)
            total = total * decay + tl.sum(weights, 0)
            output = output * decay + tl.sum(weights[:, None] * value, 0)
            highest = new_highest
            if IS_CHECKED:
                tag = tl.load(tags + slots, mask=is_read, other=0, cache_modifier=".cg")
                at_expected = tl.load(ranges + which * RANGE_FIELDS + 2) + positions - begin_position
                is_wrong = is_read & (tag != tl.load(expected + at_expected, mask=is_read, other=0))
                digest += tl.where(is_read, _mix(tag), 0)
                count += is_wrong.to(tl.int32)
                is_first = is_wrong & (first == NOWHERE)
                first = tl.where(is_first, positions, first)
                found = tl.where(is_first, tag, found)
                through_null = tl.where(is_first, (block == 0).to(tl.int32), through_null)
            tiles += 1
            if IS_GATED:
                if (tl.program_id(0) == gate_row) & (tiles == gate_tile):
                    tl.debug_barrier()
                    tl.store(arrived, 1, cache_modifier=".wt")
                    is_open = tl.load(go, volatile=True)
                    spins = 1
                    while (is_open == 0) & (spins < gate_spins):
                        is_open = tl.load(go, volatile=True)
                        spins += 1
                    if is_open == 0:
                        tl.store(arrived, 2, cache_modifier=".wt")
                    tl.debug_barrier()

    tl.store(outputs + at_output, output / total)
    if IS_CHECKED:
        lowest = tl.min(first, 0)
        is_lowest = (first == lowest) & (first != NOWHERE)
        tl.store(digests + row, tl.sum(digest, 0))
        tl.store(wrong + row, tl.sum(count, 0))
        tl.store(first_wrong + row, tl.where(lowest == NOWHERE, -1, lowest))
        tl.store(found_tags + row, tl.sum(tl.where(is_lowest, found, 0), 0))
        tl.store(is_null + row, tl.sum(tl.where(is_lowest, through_null, 0), 0))


# ZERO and POISON: blocks `begin` and on of a list, a program each; `number` into keys and values.
@triton.jit(do_not_specialize=["begin", "page", "tag"])
def fill_kernel(tags, keys, values, blocks, number, begin, page, tag, HEAD_DIM: tl.constexpr, TILE: tl.constexpr):
    block = tl.load(blocks + begin + tl.program_id(0)).to(tl.int64)
    filled = tl.zeros([TILE, HEAD_DIM], tl.float32) + number
    for begin_of_tile in range(0, page, TILE):
        offsets = begin_of_tile + tl.arange(0, TILE)
        is_slot = offsets < page
        slots = block * page + offsets
        tl.store(tags + slots, tl.zeros([TILE], tl.int64) + tag, mask=is_slot)
        numbers = slots[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
        tl.store(keys + numbers, filled, mask=is_slot[:, None])
        tl.store(values + numbers, filled, mask=is_slot[:, None])


# COPY: a program copies TILE numbers of a block, keys and values; the first of a block its tags too, if IS_TAGGED.
# `pairs`: source and target, pair `begin` and on. SLOT: numbers of a slot; as a constant it tells how far addresses are aligned.
@triton.jit(do_not_specialize=["begin", "page"])
def copy_kernel(tags, keys, values, pairs, begin, page, SLOT: tl.constexpr, TILE: tl.constexpr, IS_TAGGED: tl.constexpr):
    numbers = page * SLOT
    pair = begin + tl.program_id(0)
    source = tl.load(pairs + pair * 2).to(tl.int64)
    target = tl.load(pairs + pair * 2 + 1).to(tl.int64)
    offsets = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_number = offsets < numbers
    tl.store(keys + target * numbers + offsets, tl.load(keys + source * numbers + offsets, mask=is_number), mask=is_number)
    tl.store(values + target * numbers + offsets, tl.load(values + source * numbers + offsets, mask=is_number), mask=is_number)
    if IS_TAGGED:
        if tl.program_id(1) == 0:
            for begin_of_tile in range(0, page, TILE):
                slots = begin_of_tile + tl.arange(0, TILE)
                is_slot = slots < page
                tl.store(tags + target * page + slots, tl.load(tags + source * page + slots, mask=is_slot), mask=is_slot)
