"""Where a step's tokens stand: cells of the block table, and from them and a table the slots of memory.

A cell is an entry of the table, row times width plus index; with the position's offset in its block it gives the slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class Runs:
    """Runs of positions, gathered over a whole log and expanded in one go: row, block size, first position and length of each."""

    rows: list[int] = field(default_factory=list)
    block_sizes: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, row: int, block_size: int, first: int, count: int) -> None:
        self.rows.append(row)
        self.block_sizes.append(block_size)
        self.firsts.append(first)
        self.counts.append(count)

    def width(self) -> int:
        """Table entries that a row must have."""
        return max(
            ((first + count - 1) // size + 1 for first, count, size in zip(self.firsts, self.counts, self.block_sizes, strict=True)),
            default=0,
        )

    def cells(self, width: int) -> tuple[Tensor, Tensor]:
        """(cells, offsets in the block) of every position, run after run."""
        counts = torch.tensor(self.counts, dtype=torch.int64)
        ends = counts.cumsum(0)
        rows, sizes, shifts = (
            torch.repeat_interleave(values, counts)
            for values in (
                torch.tensor(self.rows, dtype=torch.int64),
                torch.tensor(self.block_sizes, dtype=torch.int64),
                torch.tensor(self.firsts, dtype=torch.int64) - (ends - counts),
            )
        )
        positions = torch.arange(len(shifts)) + shifts
        return rows * width + positions // sizes, positions % sizes


def last_of_each(slots: Tensor) -> Tensor | None:
    """Indices that keep the last write to each slot, where several go to one; None where none do."""
    values = slots.tolist()
    if len(values) < 2:
        return None
    last = {slot: index for index, slot in enumerate(values)}
    return None if len(last) == len(values) else torch.tensor(sorted(last.values()), dtype=torch.int64)
