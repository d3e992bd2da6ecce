"""FlexAttention as a peer of the kernel: the same rows, from the same memory, through a BlockMask made of the device's block table.

It shares no arithmetic with `attention.py` and gathers nothing: memory is one long sequence of keys, a row's mask names the pages that its
table row names, and what a key's position is follows from the page that it lies on. Eager, wherever memory is; nothing is compiled.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from settled.reference.device.compiled import CompiledLog, Step
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import KeysPart


class FlexError(ValueError):
    """A row reads two positions through one page, as null entries make it: a BlockMask has each page once."""


def flex_outputs(numbered: NumberedLog, step: Step, keys: Tensor, values: Tensor, table: Tensor) -> Tensor:
    """The outputs of the step's rows, [rows, head_dim], from memory and table as they stand after the step. Raises FlexError.

    `keys`, `values`: [slots, head_dim], those of the log's blocks first; `table` [rows, width], of block ids.
    """
    compiled = numbered.compiled
    rows = _Rows(compiled, step, table)
    queries = numbered.steps[step.op].queries[:, None, None, :].to(keys.device)
    pages = [whole[: compiled.num_slots].nan_to_num().expand(len(rows.queries), 1, -1, -1) for whole in (keys, values)]
    return flex_attention(queries, *pages, block_mask=rows.mask(keys.device))[:, 0, 0]


class _Rows:
    """For each row which page holds which block of the sequence, which positions it reads, and how large its blocks are."""

    def __init__(self, compiled: CompiledLog, step: Step, table: Tensor) -> None:
        self.page = compiled.page
        self.num_pages = compiled.log.num_blocks
        self.queries: list[int] = []
        self.sizes: list[int] = []
        self.pages: list[dict[int, int]] = []
        self.ranges: list[tuple[tuple[int, int], ...]] = []
        entries = table.tolist()
        for part in step.work.parts:
            reading = compiled.readings[part.group]
            if not isinstance(part, KeysPart) or reading is None:
                continue
            size = compiled.log.groups[part.group].block_size
            for query in range(part.start, part.start + part.tokens):
                self._add(entries[part.row], size, query, reading(query, part.prompt_tokens))

    def _add(self, row: list[int], size: int, query: int, ranges: tuple[tuple[int, int], ...]) -> None:
        blocks = sorted({position // size for first, end in ranges for position in range(first, end)})
        pages = {row[index]: index for index in blocks}
        if len(pages) != len(blocks):
            raise FlexError(f"query {query} reads blocks {blocks} through pages {[row[index] for index in blocks]}")
        self.queries.append(query)
        self.sizes.append(size)
        self.pages.append(pages)
        self.ranges.append(ranges)

    def mask(self, device: torch.device) -> BlockMask:
        rows, pieces = len(self.queries), max(map(len, self.ranges))
        counts = torch.tensor([len(pages) for pages in self.pages], dtype=torch.int32, device=device).reshape(rows, 1, 1)
        indices = torch.tensor([_padded(sorted(pages), self.num_pages) for pages in self.pages], dtype=torch.int32, device=device)
        block_of = torch.tensor([[pages.get(page, -1) for page in range(self.num_pages)] for pages in self.pages], device=device)
        firsts = torch.tensor([_padded([first for first, _ in ranges], pieces) for ranges in self.ranges], device=device)
        ends = torch.tensor([_padded([end for _, end in ranges], pieces) for ranges in self.ranges], device=device)
        sizes, page_slots = torch.tensor(self.sizes, device=device), self.page

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
            indices[:, None, None],
            None,
            None,
            BLOCK_SIZE=(1, page_slots),
            mask_mod=is_read,
            seq_lengths=(1, self.num_pages * page_slots),
        )


def _padded(values: list[int], length: int) -> list[int]:
    return values + [0] * (length - len(values))
