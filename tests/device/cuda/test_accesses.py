"""What kernels touch: every address lies in memory that the launch was given, and no program of it meets what another one writes.

The interpreter sees neither by itself: its programs run in turn, and what lies behind a tensor is read like any other memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from logs import Host
from triton.runtime import interpreter
from workloads import NUMBERS, WORKLOADS, Workload, made

from settled.model.specs import FullAttentionSpec, MambaSpec
from settled.reference.device.compiling import compile_log
from settled.reference.device.cuda.interpreted import interpreted_launches, replay_interpreted
from settled.reference.device.cuda.launches import Gate, Launches
from settled.reference.device.cuda.variants import TILE, Variant, attention_variant, copy_variant
from settled.reference.device.numbered import NumberedLog

torch.set_num_threads(1)
FAST = [workload for workload in WORKLOADS if workload.is_fast]


@dataclass
class Watch:
    """Stands between the interpreter and memory. `problems`: in words. `launched`: names of kernels.

    `spans`: (first byte, end) of what the launch was given; `read`, `written`: addresses, by program.
    """

    problems: list[str] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    read: dict[object, list[Any]] = field(default_factory=dict)
    written: dict[object, list[Any]] = field(default_factory=dict)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        given, _ = self._given(self.read, pointers, mask, np.dtype(dtype).itemsize)
        return interpreter_of_triton.load(pointers, given, other, dtype)

    def store(self, pointers: Any, value: Any, mask: Any) -> Any:
        given, addresses = self._given(self.written, pointers, mask, value.itemsize)
        if len(np.unique(addresses)) < len(addresses):
            self._tell("writes an address twice at once")
        return interpreter_of_triton.store(pointers, value, given)

    def _given(self, noted: dict[object, list[Any]], pointers: Any, mask: Any, size: int) -> tuple[Any, Any]:
        """(The mask without what was not given, which is told and not done; the addresses that are left.)"""
        mask, addresses = np.broadcast_to(mask, pointers.shape), pointers.astype(np.int64)
        inside = np.zeros(pointers.shape, dtype=bool)
        for first, end in self.spans:
            inside |= (addresses >= first) & (addresses + size <= end)
        if (mask & ~inside).any():
            self._tell(f"{'reads' if noted is self.read else 'writes'} what it was not given")
        given = np.ascontiguousarray(mask & inside)
        noted.setdefault(interpreter.interpreter_builder.grid_idx, []).append(addresses[given])
        return given, addresses[given]

    def _tell(self, what: str) -> None:
        self.problems.append(f"{self.launched[-1]} {what}")

    def begin(self, name: str, arguments: tuple[object, ...]) -> None:
        self.launched.append(name)
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        self.spans = [(each.data_ptr(), each.data_ptr() + each.nbytes) for each in tensors]
        self.read, self.written = {}, {}

    def end(self) -> None:
        written = {program: np.unique(np.concatenate(each)) for program, each in self.written.items()}
        everything = np.concatenate(list(written.values()))
        if len(np.unique(everything)) < len(everything):
            self._tell("writes what another program of the launch writes")
        for program, each in self.read.items():
            others = [addresses for other, addresses in written.items() if other != program]
            if others and np.isin(np.concatenate(each), np.concatenate(others)).any():
                self._tell("reads what another program of the launch writes")


interpreter_of_triton = interpreter._interpreter


@contextmanager
def watched() -> Iterator[Watch]:
    watch, launch = Watch(), Variant.launch

    def watched_launch(self: Variant, grid: tuple[int, ...], *arguments: object) -> None:
        watch.begin(self.kernel.__name__, arguments)
        launch(self, grid, *arguments)
        watch.end()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_interpreter", watch)
        patch.setattr(Variant, "launch", watched_launch)
        yield watch


def of_two_tiles() -> Launches:
    """FILL 0, UPLOAD 1, WRITE 2, STEP 3: keys of a tile and two tokens, of two requests, and their states."""
    host = Host((FullAttentionSpec(block_size=4), MambaSpec(block_size=4, mode="none")))
    host.step((host.add(TILE), TILE), (host.add(2), 2))
    compiled = compile_log(host.log)
    return interpreted_launches(compiled, NumberedLog(compiled, NUMBERS))


@pytest.mark.parametrize("workload", FAST, ids=[workload.name for workload in FAST])
def test_kernels_touch_what_they_are_given_and_programs_do_not_meet(workload: Workload) -> None:
    ready = made(workload)
    launches = interpreted_launches(ready.compiled, ready.numbered)
    with watched() as watch:
        replay_interpreted(launches, ready.order)
    assert watch.problems == []
    assert {"write_kernel", "attention_kernel"} <= set(watch.launched)


def test_nor_do_they_where_everything_goes_to_one_block() -> None:
    """Without a table; then with one, and a row that is held up."""
    launches = of_two_tiles()
    arrived = torch.zeros(1, dtype=torch.int32)
    with watched() as watch:
        for op in (2, 3):
            launches.run(op)
        launches.gate = Gate(3, TILE + 1, 1, torch.zeros(1, dtype=torch.int32), arrived, spins=2)
        assert replay_interpreted(launches).is_clean
    assert arrived.tolist() == [2]
    assert watch.problems == []
    step = ["state_read_kernel", "state_write_kernel", "attention_kernel"]
    assert watch.launched == ["write_kernel", *step, "write_kernel", *step]


def test_nor_do_they_with_heads_and_in_copies_that_end_within_a_tile() -> None:
    heads, head_dim, page = 3, 8, 5
    keys, values = torch.rand(4 * page, heads, head_dim), torch.rand(4 * page, heads, head_dim)
    tags, nothing = torch.arange(4 * page), torch.zeros(1, dtype=torch.int64)
    table = torch.tensor([[1, 3], [2, 0]], dtype=torch.int32)
    rows, ranges = (
        torch.tensor([[0, page, 0, 1], [2, page, 1, 1]], dtype=torch.int32),
        torch.tensor([[1, 10, 0], [0, 5, 0]], dtype=torch.int32),
    )
    queries, outputs = torch.rand(2, heads, head_dim), torch.zeros(2, heads, head_dim)
    told = (nothing, keys, values, table, rows, ranges, nothing, queries, outputs, *(nothing,) * 7)
    with watched() as watch:
        attention_variant(head_dim, heads=heads, tile=4, is_checked=False).launch((2, heads), *told, 1.0, 0, page, 0, 0, 0)
        pairs, slot = torch.tensor([[0, 2], [1, 3]], dtype=torch.int32), heads * head_dim
        copied = copy_variant(slot, 16, is_tagged=True)
        copied.launch((2, -(-page * slot // 16)), tags, keys, values, pairs, 0, page)
        assert watch.problems == []
        assert torch.equal(keys[: 2 * page], keys[2 * page :])
        copied.launch((2, 1), tags, keys, values, torch.tensor([[0, 1], [1, 2]], dtype=torch.int32), 0, page)
        copied.launch((2, 1), tags, keys, values, torch.tensor([[0, 2], [1, 2]], dtype=torch.int32), 0, page)
        copied.launch((1, 1), tags, keys, values, torch.tensor([[0, 4]], dtype=torch.int32), 0, page)
    assert set(watch.problems) == {
        "copy_kernel reads what another program of the launch writes",
        "copy_kernel writes what another program of the launch writes",
        "copy_kernel writes what it was not given",
    }
