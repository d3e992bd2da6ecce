"""Bytes as a pure function of the tag: what K, V, a query and a state's input hold.

Word `j` of a tag is `mix(mix(tag) + j)` in wrapping 64-bit integers, with splitmix64's `mix`. A number takes the word's highest bits, 52
for float64, 22 for float32, as an integer i, and is i / 2**(bits - 1) - 1, in [-1, 1). That is exact: every back-end that has 64-bit
integers gets the same bits. Words 0 to head_dim - 1 make the query, the next head_dim K, the next V, the last the state's input.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GOLDEN, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # splitmix64's constants, signed

QUERY, KEY, VALUE, INPUT = range(4)


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the buffers compute with. `head_dim` in numbers a key; `is_single`: float32, else float64.

    `query_factor` multiplies the queries, a power of two to stay exact: the larger, the fewer keys make up an output.
    """

    head_dim: int = 8
    is_single: bool = False
    query_factor: int = 1

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.is_single else torch.float64

    @property
    def bits(self) -> int:
        """Random bits a number."""
        return 22 if self.is_single else 52


def mix(x: Tensor) -> Tensor:
    """splitmix64's step and finaliser on int64, wrapping. Shifts are logical, hence the masks."""
    x = x + GOLDEN
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * SECOND
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def integers(tags: Tensor, vector: int, numbers: Numbers) -> Tensor:
    """The integers i, [..., head_dim], of QUERY, KEY, VALUE or INPUT."""
    words = torch.arange(vector * numbers.head_dim, (vector + 1) * numbers.head_dim, device=tags.device)
    return (mix(mix(tags).unsqueeze(-1) + words) >> 12 & (1 << 52) - 1) >> 52 - numbers.bits


def payload(tags: Tensor, vector: int, numbers: Numbers) -> Tensor:
    """The numbers, [..., head_dim]."""
    drawn = integers(tags, vector, numbers).to(numbers.dtype) / (1 << numbers.bits - 1) - 1
    return drawn * numbers.query_factor if vector == QUERY else drawn
