"""The device's memory and the host's: slots of tags, K and V; the block table; staging buffers; what stores have brought to the host.

The table and a staging buffer hold the number of a table of the compiled log, since they are only ever written as a whole. Slot `num_slots`
is no block's: it holds the empty state, for those who begin a sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from settled.reference.device.compiled import CompiledLog
from settled.reference.device.payload import Numbers
from settled.reference.device.state_tensors import EMPTY_NUMBER
from settled.reference.device.states import EMPTY
from settled.reference.device.tags import NEVER_WRITTEN, POISONED, ZEROED

NUMBERS_OF = {ZEROED: 0.0, POISONED: float("nan"), NEVER_WRITTEN: float("nan")}


class Memory:
    """As it stands before the first launch: the null block zeroed, all else never written. `numbers` None: tags alone."""

    def __init__(self, compiled: CompiledLog, numbers: Numbers | None) -> None:
        self.table = 0
        self.staging = [0] * compiled.log.num_staging
        slots = compiled.num_slots
        self.tags = torch.full((slots + 1,), NEVER_WRITTEN, dtype=torch.int64)
        self.tags[: compiled.page] = ZEROED
        self.tags[slots] = EMPTY
        self.host_tags = torch.full((compiled.host_slots,), NEVER_WRITTEN, dtype=torch.int64)
        self.has_numbers = numbers is not None
        self.keys: Tensor = None
        self.values: Tensor = None
        self.host_keys: Tensor = None
        self.host_values: Tensor = None
        if numbers is not None:
            self.keys = torch.full((slots + 1, numbers.head_dim), NUMBERS_OF[NEVER_WRITTEN], dtype=numbers.dtype)
            self.keys[: compiled.page] = NUMBERS_OF[ZEROED]
            self.keys[slots] = EMPTY_NUMBER
            self.values = self.keys.clone()
            self.host_keys = torch.full((compiled.host_slots, numbers.head_dim), NUMBERS_OF[NEVER_WRITTEN], dtype=numbers.dtype)
            self.host_values = self.host_keys.clone()

    def write(self, slots: Tensor, tags: Tensor, keys: Tensor | None, values: Tensor | None) -> None:
        """The slots are different ones."""
        self.tags.index_copy_(0, slots, tags)
        if self.has_numbers:
            self.keys.index_copy_(0, slots, keys)
            self.values.index_copy_(0, slots, values)

    def fill(self, slots: Tensor, tag: int) -> None:
        """With zeroes or poison."""
        self.tags.index_fill_(0, slots, tag)
        if self.has_numbers:
            self.keys.index_fill_(0, slots, NUMBERS_OF[tag])
            self.values.index_fill_(0, slots, NUMBERS_OF[tag])

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Slot by slot."""
        self.write(
            targets,
            self.tags[sources],
            self.keys[sources] if self.has_numbers else None,
            self.values[sources] if self.has_numbers else None,
        )

    def bring(self, slots: Tensor, at: int) -> None:
        """To the host, from `at` on there."""
        end = at + len(slots)
        self.host_tags[at:end] = self.tags[slots]
        if self.has_numbers:
            self.host_keys[at:end] = self.keys[slots]
            self.host_values[at:end] = self.values[slots]
