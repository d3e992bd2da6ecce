"""The kernels: attention of single queries over gathered keys, and a recurrent state's steps.

Each is one function that both sides, the paged memory and the contiguous reference, go through with the same shapes: equal bytes give equal
bits. Nothing here knows blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from settled.reference.device.state_tensors import FACTOR


def attend(queries: Tensor, keys: Tensor, values: Tensor, is_read: Tensor) -> Tensor:
    """Softmax attention. [rows, head_dim], twice [rows, keys, head_dim] and [rows, keys] to [rows, head_dim].

    A key that is not read weighs 0. It must hold numbers all the same, or the row gets none. Keys that change places within a row change it
    by rounding, or not at all: tags see them, bits may not.
    """
    scores = (keys * queries.unsqueeze(1)).sum(-1) / keys.shape[-1] ** 0.5
    weights = torch.softmax(scores.masked_fill(~is_read, float("-inf")), -1)
    return (weights.unsqueeze(-1) * values).sum(1)


def advance(states: Tensor, inputs: Tensor) -> Tensor:
    """Steps of recurrent states: [states, head_dim] and [states, tokens, head_dim] to [states, tokens + 1, head_dim], the given first."""
    steps = [states]
    for token in range(inputs.shape[1]):
        sums = steps[-1] * FACTOR + inputs[:, token]
        steps.append(sums - sums.floor())
    return torch.stack(steps, 1)


def bits(numbers: Tensor) -> Tensor:
    """The numbers as integers: what is compared when outputs are. NaN is unequal to whatever else is there."""
    return numbers.contiguous().view(torch.int32 if numbers.dtype == torch.float32 else torch.int64)


def rows_differing(outputs: Tensor, expected: Tensor) -> list[int]:
    """The rows (first dimension) that are not equal bit for bit."""
    found, wanted = bits(outputs), bits(expected)
    if torch.equal(found, wanted):
        return []
    return (found != wanted).flatten(1).any(1).nonzero().flatten().tolist()  # type: ignore[no-any-return]
