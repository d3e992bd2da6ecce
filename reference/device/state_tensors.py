"""Tags and numbers of states, for many sequences at once: the closed forms, on integers.

A state's numbers lie on the grid of multiples of 2**-(bits - 1) in [0, 1), and a token with input p makes `3 s + p - floor(3 s + p)` of
s. On that grid everything is exact, fused or not, in float32 as in float64; and the step is one to one, so no wrong token fades. (A real
state decays. Here a wrong token must be seen however long ago it was.) The kernel, in `attention.py`, steps in floats; this here does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from settled.reference.device.payload import INPUT, Numbers, integers, mix
from settled.reference.device.states import EMPTY, MULTIPLIER, SIGN, signed

FACTOR = 3
EMPTY_NUMBER = 0.5


def _powers(base: int, count: int) -> Tensor:
    """base**0 to base**(count - 1), wrapping."""
    powers = [1]
    for _ in range(count - 1):
        powers.append(powers[-1] * base & (1 << 64) - 1)
    return torch.tensor([signed(power) for power in powers], dtype=torch.int64)


def _sums(terms: Tensor, ends: Tensor) -> Tensor:
    """Of consecutive pieces, wrapping; `ends` is where each stops."""
    sums = torch.cat((terms.new_zeros((1, *terms.shape[1:])), terms.cumsum(0)))
    return sums[ends] - sums[torch.cat((ends.new_zeros(1), ends[:-1]))]


def _weighted(sequences: Sequence[Sequence[int]], base: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(tags, power of the base for each, ends, power for what stood before) of all sequences, end to end."""
    lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
    ends = lengths.cumsum(0)
    tags = torch.tensor([tag for sequence in sequences for tag in sequence], dtype=torch.int64)
    powers = _powers(base, int(lengths.max()) + 1)
    return tags, powers[torch.repeat_interleave(ends, lengths) - 1 - torch.arange(len(tags))], ends, powers[lengths]


def folds(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """`states.fold` of each sequence: the tensors of all a and all b."""
    if not sequences:
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    tags, weights, ends, before = _weighted(sequences, MULTIPLIER)
    return before, _sums(mix(tags) * weights, ends)


def chains(sequences: Sequence[Sequence[int]]) -> Tensor:
    """`states.chain` of each sequence."""
    a, b = folds(sequences)
    return EMPTY * a + b | SIGN


def numbers_of(sequences: Sequence[Sequence[int]], numbers: Numbers) -> Tensor:
    """The states' numbers, [sequences, head_dim], from the empty state on."""
    if not sequences:
        return torch.zeros(0, numbers.head_dim, dtype=numbers.dtype)
    tags, weights, ends, before = _weighted(sequences, FACTOR)
    one = 1 << numbers.bits - 1
    different, which = torch.unique(tags, return_inverse=True)  # a request's states are made of the same first tokens
    inputs = integers(different, INPUT, numbers)[which]
    grid = before.unsqueeze(1) * (one // 2) + _sums(inputs * weights.unsqueeze(1), ends)
    return (grid & one - 1).to(numbers.dtype) / one
