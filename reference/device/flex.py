"""FlexAttention as a peer of the kernel: the same rows, from the same memory, through a BlockMask made of the device's block table.

It shares no arithmetic with `attention.py` and gathers nothing: memory is one long sequence of keys, a row's mask names the pages that its
table row names, and what a key's position is follows from the page that it lies on. Eager on the CPU; nothing is compiled.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from settled.reference.device.compiled import CompiledLog, Step
from settled.reference.device.memory import Memory
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import KeysPart


class FlexError(ValueError):
    """A row reads two positions through one page, as null entries make it: a BlockMask has each page once."""


def flex_outputs(numbered: NumberedLog, step: Step, memory: Memory) -> Tensor:
    """The outputs of the step's rows, [rows, head_dim], from memory and table as they stand after the step. Raises FlexError."""
    compiled = numbered.compiled
    rows = _Rows(compiled, step, compiled.tables[memory.table])
    queries = numbered.steps[step.op].queries[:, None, None, :]
    keys, values = (whole[: compiled.num_slots].expand(len(rows.queries), 1, -1, -1) for whole in (memory.keys, memory.values))
    return flex_attention(queries, keys.nan_to_num(), values.nan_to_num(), block_mask=rows.mask())[:, 0, 0]


class _Rows:
    """For each row which page holds which block of the sequence, which positions it reads, and how large its blocks are."""

    def __init__(self, compiled: CompiledLog, step: Step, table: Tensor) -> None:
        self.page = compiled.page
        self.num_pages = compiled.log.num_blocks
        self.queries: list[int] = []
        self.sizes: list[int] = []
        self.pages: list[dict[int, int]] = []
        self.ranges: list[tuple[tuple[int, int], ...]] = []
        for part in step.work.parts:
            reading = compiled.readings[part.group]
            if not isinstance(part, KeysPart) or reading is None:
                continue
            size = compiled.log.groups[part.group].block_size
            for query in range(part.start, part.start + part.tokens):
                self._add(table[part.row].tolist(), size, query, reading(query, part.prompt_tokens))

    def _add(self, row: list[int], size: int, query: int, ranges: tuple[tuple[int, int], ...]) -> None:
        blocks = sorted({position // size for first, end in ranges for position in range(first, end)})
        pages = {row[index]: index for index in blocks}
        if len(pages) != len(blocks):
            raise FlexError(f"query {query} reads blocks {blocks} through pages {[row[index] for index in blocks]}")
        self.queries.append(query)
        self.sizes.append(size)
        self.pages.append(pages)
        self.ranges.append(ranges)

    def mask(self) -> BlockMask:
        rows = len(self.queries)
        counts = torch.tensor([len(pages) for pages in self.pages], dtype=torch.int32).reshape(rows, 1, 1)
        indices = torch.zeros(rows, 1, 1, self.num_pages, dtype=torch.int32)
        block_of = torch.full((rows, self.num_pages), -1, dtype=torch.int64)
        pieces = max(map(len, self.ranges))
        firsts, ends = torch.zeros(rows, pieces, dtype=torch.int64), torch.zeros(rows, pieces, dtype=torch.int64)
        for row, (pages, ranges) in enumerate(zip(self.pages, self.ranges, strict=True)):
            indices[row, 0, 0, : len(pages)] = torch.tensor(sorted(pages), dtype=torch.int32)
            for page, block in pages.items():
                block_of[row, page] = block
            for piece, (first, end) in enumerate(ranges):
                firsts[row, piece], ends[row, piece] = first, end
        sizes, page_slots = torch.tensor(self.sizes), self.page

        def is_read(row: Tensor, head: Tensor, query: Tensor, slot: Tensor) -> Tensor:
            block, offset = block_of[row, slot // page_slots], slot % page_slots
            position = block * sizes[row] + offset
            is_in = (block >= 0) & (offset < sizes[row])
            in_range = (firsts[row, 0] <= position) & (position < ends[row, 0])
            for piece in range(1, pieces):
                in_range = in_range | (firsts[row, piece] <= position) & (position < ends[row, piece])
            return is_in & in_range

        return BlockMask.from_kv_blocks(
            counts,
            indices,
            None,
            None,
            BLOCK_SIZE=(1, page_slots),
            mask_mod=is_read,
            seq_lengths=(1, self.num_pages * page_slots),
        )
