"""Memory as launches use it: slots and the block table on the device, staging buffers and what transfers move in pinned host memory.

On a CPU all of it is ordinary memory, for the interpreter. Sizes are in slots, integers and numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from settled.reference.device.compiled import CompiledLog
from settled.reference.device.cuda.device_log import DeviceLog
from settled.reference.device.cuda.place import Place
from settled.reference.device.memory import NUMBERS_OF
from settled.reference.device.payload import Numbers
from settled.reference.device.state_tensors import EMPTY_NUMBER
from settled.reference.device.states import EMPTY
from settled.reference.device.tags import NEVER_WRITTEN, ZEROED


@dataclass(slots=True)
class Buffers:
    """`tags` [slots + 1], `keys` and `values` [slots + 1, head_dim], `table` [rows, width]: the device's; the last slot holds the empty
    state. `staging` [buffers, rows, width], `loaded_*` (LOADs read them) and `stored_*` (STOREs write them): the host's, pinned.
    `fills` [tables, rows, width]: what the host writes into staging buffers, its own.
    """

    page: int
    tags: Tensor
    keys: Tensor
    values: Tensor
    table: Tensor
    staging: Tensor
    fills: Tensor
    loaded_tags: Tensor
    loaded_keys: Tensor
    loaded_values: Tensor
    stored_tags: Tensor
    stored_keys: Tensor
    stored_values: Tensor

    def reset(self) -> None:
        """As before the first launch: the null block zeroed, all else never written. Nothing may be under way."""
        empty = len(self.tags) - 1
        self.tags.fill_(NEVER_WRITTEN)
        self.tags[: self.page].fill_(ZEROED)
        self.tags[empty:].fill_(EMPTY)
        for numbers in (self.keys, self.values):
            numbers.fill_(NUMBERS_OF[NEVER_WRITTEN])
            numbers[: self.page].fill_(NUMBERS_OF[ZEROED])
            numbers[empty:].fill_(EMPTY_NUMBER)
        self.table.fill_(0)
        self.staging.fill_(0)
        self.stored_tags.fill_(NEVER_WRITTEN)
        self.stored_keys.fill_(NUMBERS_OF[NEVER_WRITTEN])
        self.stored_values.fill_(NUMBERS_OF[NEVER_WRITTEN])


def buffers_for(compiled: CompiledLog, log: DeviceLog, numbers: Numbers, place: Place) -> Buffers:
    """Allocated, reset, and what LOADs bring put into place."""
    slots, head_dim = compiled.num_slots + 1, numbers.head_dim
    fills = compiled.tables.to(torch.int32)

    def on_device(*shape: int, dtype: torch.dtype = numbers.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=place.device)

    def on_host(*shape: int, dtype: torch.dtype = numbers.dtype) -> Tensor:
        return place.host(*shape, dtype=dtype)

    buffers = Buffers(
        compiled.page,
        on_device(slots, dtype=torch.int64),
        on_device(slots, head_dim),
        on_device(slots, head_dim),
        on_device(*fills.shape[1:], dtype=torch.int32),
        on_host(max(1, compiled.log.num_staging), *fills.shape[1:], dtype=torch.int32),
        fills,
        on_host(*log.loaded_tags.shape, dtype=torch.int64).copy_(log.loaded_tags),
        on_host(*log.loaded_keys.shape).copy_(log.loaded_keys),
        on_host(*log.loaded_values.shape).copy_(log.loaded_values),
        on_host(compiled.host_slots, dtype=torch.int64),
        on_host(compiled.host_slots, head_dim),
        on_host(compiled.host_slots, head_dim),
    )
    buffers.reset()
    return buffers
