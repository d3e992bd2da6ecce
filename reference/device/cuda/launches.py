"""The launches of a log on any torch device: the kernels on a CUDA device, or in Triton's interpreter on the CPU.

All that launches need is allocated, uploaded and pinned when `Launches` is made; `run` only enqueues on torch's current stream. The one
exception is a FILL, the host's own work, which is done when `run` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from settled.reference.device.compiled import CompiledLog, Step, Table
from settled.reference.device.cuda import kernels
from settled.reference.device.cuda.buffers import buffers_for
from settled.reference.device.cuda.device_log import device_log
from settled.reference.device.cuda.place import Place
from settled.reference.device.cuda.variants import TILE, variants_for
from settled.reference.device.memory import NUMBERS_OF
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import LaunchKind
from settled.reference.device.outcome import Outcome, add_stores, outcome_before
from settled.reference.device.tags import POISONED, ZEROED


class BackEndError(RuntimeError):
    """These tensors and these kernels do not go together; the message says what to change."""


@dataclass(slots=True)
class Gate:
    """Holds up one row of one STEP in the middle of its attention, for another stream to get between.

    `op`: the STEP; `row`: of its rows of attention, from 0; `tile`: after how many tiles (of `variants.TILE` positions, counted over all
    the ranges of the row). `go`, `arrived`: one int32 each, in device memory or pinned. The kernel writes 1 to `arrived`, then looks at
    `go` until it is not 0, at most `spins` times; if nobody let it on it writes 2 to `arrived` and goes on.
    """

    op: int
    row: int
    tile: int
    go: Tensor
    arrived: Tensor
    spins: int


class Launches:
    """Memory, and for each launch what it enqueues. Raises BackEndError, and ValueError for numbers that kernels cannot compute with.

    `gate`, if set, holds for every later run. `buffers` may be looked at between launches.
    """

    def __init__(self, compiled: CompiledLog, numbered: NumberedLog, place: Place, *, gate: Gate | None = None) -> None:
        check_back_end(place.device)
        if not numbered.numbers.is_single:
            raise ValueError("kernels compute in float32; make the NumberedLog with Numbers(is_single=True)")
        self.compiled, self.numbered, self.place, self.gate = compiled, numbered, place, gate
        self.log = compiled.log
        self.variants = variants_for(numbered.numbers.head_dim)
        self._log = device_log(compiled, numbered)
        self.rows = self._log.rows
        self.buffers = buffers_for(compiled, self._log, numbered.numbers, place)
        self._told = {name: tensor.to(place.device) for name, tensor in self._log.tensors.items()}
        self._before = outcome_before(self.rows, numbered.numbers.head_dim, numbered.numbers.dtype)
        self._found = {name: getattr(self._before, name).to(place.device, copy=True) for name in READ}
        self._copies = {op: list(self._copies_of(op)) for op in self._log.segments}
        self._run_kind: dict[LaunchKind | None, Callable[[int], None]] = {
            LaunchKind.FILL: self._fill,
            LaunchKind.UPLOAD: self._upload,
            LaunchKind.WRITE: self._write,
            LaunchKind.STEP: self._step,
            LaunchKind.ZERO: self._zero,
            LaunchKind.COPY: self._copy,
            LaunchKind.LOAD: self._move,
            LaunchKind.STORE: self._move,
            LaunchKind.POISON: self._poison,
        }
        place.synchronize()

    def run(self, op: int) -> None:
        """Enqueues launch `op`. Raises KeyError for what is none."""
        run = self._run_kind[self.compiled.kinds[op]]
        with self.place.current():
            run(op)

    def reset(self) -> None:
        """Memory as before the first launch, nothing read: one set of buffers serves many orders.

        Waits for the current stream, before and after; nothing may be under way on others.
        """
        with self.place.current():
            self.place.synchronize()
            self.buffers.reset()
            for name, found in self._found.items():
                found.copy_(getattr(self._before, name))
            self.place.synchronize()

    def outcome(self) -> Outcome:
        """What was read, on the host. Whoever ran the launches on streams of his own has waited for them."""
        with self.place.current():
            found = {name: tensor.to("cpu", copy=True) for name, tensor in self._found.items()}
        outcome = Outcome(self.rows, **found)
        buffers = self.buffers
        add_stores(outcome, self.compiled, self.numbered, buffers.stored_tags, buffers.stored_keys, buffers.stored_values)
        return outcome

    # ---- a method a kind -----------------------------------------------------------------------------------------------

    def _fill(self, op: int) -> None:
        fill = self.compiled.launches[op]
        assert isinstance(fill, Table)
        self.buffers.staging[fill.staging].copy_(self.buffers.fills[fill.table])

    def _upload(self, op: int) -> None:
        upload = self.compiled.launches[op]
        assert isinstance(upload, Table)
        self.buffers.table.copy_(self.buffers.staging[upload.staging], non_blocking=True)

    def _write(self, op: int) -> None:
        tokens, told, buffers = self._log.writes[op], self._told, self.buffers
        if tokens:
            self.variants.write.launch(
                (_tiles(tokens),),
                buffers.tags,
                buffers.keys,
                buffers.values,
                buffers.table,
                told["write_cells"],
                told["write_offsets"],
                told["write_tags"],
                tokens.start,
                tokens.stop,
                buffers.page,
            )

    def _step(self, op: int) -> None:
        step = self.compiled.launches[op]
        assert isinstance(step, Step)
        if self.rows.states_of[op]:
            self._read_states(op)
        if self._log.outs[op]:
            self._write_states(op)
        if self.rows.of_step[op]:
            self._attend(op)

    def _zero(self, op: int) -> None:
        self._fill_blocks(op, ZEROED)

    def _poison(self, op: int) -> None:
        self._fill_blocks(op, POISONED)

    def _copy(self, op: int) -> None:
        buffers, pairs = self.buffers, self._log.pairs[op]
        numbers = buffers.page * self.numbered.numbers.head_dim
        self.variants.copy.launch(
            (len(pairs), -(-numbers // self.variants.copy.constants["TILE"])),
            buffers.tags,
            buffers.keys,
            buffers.values,
            self._told["pairs"],
            pairs.start,
            buffers.page,
        )

    def _move(self, op: int) -> None:
        for target, source in self._copies[op]:
            target.copy_(source, non_blocking=True)

    # ---- parts of them -------------------------------------------------------------------------------------------------

    def _read_states(self, op: int) -> None:
        parts, told, found, buffers = self.rows.states_of[op], self._told, self._found, self.buffers
        self.variants.state_read.launch(
            (len(parts),),
            buffers.tags,
            buffers.keys,
            buffers.table,
            told["parts"],
            told["state_expected"],
            told["state_tags"],
            found["state_found"],
            found["state_wrong"],
            found["state_null"],
            found["state_outputs"],
            parts.start,
            buffers.page,
            self.compiled.num_slots,
        )

    def _write_states(self, op: int) -> None:
        outs, told, found, buffers = self._log.outs[op], self._told, self._found, self.buffers
        self.variants.state_write.launch(
            (_tiles(outs),),
            buffers.tags,
            buffers.keys,
            buffers.values,
            buffers.table,
            told["out_cells"],
            told["out_of"],
            told["out_rows"],
            told["out_factors"],
            told["out_addends"],
            found["state_found"],
            found["state_outputs"],
            outs.start,
            outs.stop,
            buffers.page,
        )

    def _attend(self, op: int) -> None:
        rows, told, found, buffers = self.rows.of_step[op], self._told, self._found, self.buffers
        gate = self.gate if self.gate is not None and self.gate.op == op else None
        (self.variants.attention if gate is None else self.variants.gated).launch(
            (len(rows), 1),
            buffers.tags,
            buffers.keys,
            buffers.values,
            buffers.table,
            told["rows"],
            told["ranges"],
            told["expected"],
            told["queries"],
            found["outputs"],
            found["digests"],
            found["wrong"],
            found["first"],
            found["found"],
            found["is_null"],
            buffers.table if gate is None else gate.go,
            buffers.table if gate is None else gate.arrived,
            self.numbered.numbers.head_dim**-0.5,
            rows.start,
            buffers.page,
            0 if gate is None else gate.row,
            0 if gate is None else gate.tile,
            0 if gate is None else gate.spins,
        )

    def _fill_blocks(self, op: int, tag: int) -> None:
        blocks, buffers = self._log.blocks[op], self.buffers
        if blocks:
            self.variants.fill.launch(
                (len(blocks),),
                buffers.tags,
                buffers.keys,
                buffers.values,
                self._told["blocks"],
                NUMBERS_OF[tag],
                blocks.start,
                buffers.page,
                tag,
            )

    def _copies_of(self, op: int) -> list[tuple[Tensor, Tensor]]:
        """(target, source) of each copy of a LOAD or a STORE: three a block."""
        buffers = self.buffers
        memory = (buffers.tags, buffers.keys, buffers.values)
        if self.compiled.kinds[op] is LaunchKind.LOAD:
            host = (buffers.loaded_tags, buffers.loaded_keys, buffers.loaded_values)
        else:
            host = (buffers.stored_tags, buffers.stored_keys, buffers.stored_values)
        pairs = [
            (here[segment.slot : segment.slot + segment.count], there[segment.at : segment.at + segment.count])
            for segment in self._log.segments[op]
            for here, there in zip(memory, host, strict=True)
        ]
        return pairs if self.compiled.kinds[op] is LaunchKind.LOAD else [(there, here) for here, there in pairs]


READ = ("digests", "wrong", "first", "found", "is_null", "outputs", "state_found", "state_wrong", "state_null", "state_outputs")
"""What launches write of an `Outcome` on the device."""


def check_back_end(device: torch.device) -> None:
    """Raises BackEndError where tensors of the device and the kernels do not go together."""
    if device.type == "cpu" and not kernels.IS_INTERPRETED:
        raise BackEndError("on the CPU kernels run in Triton's interpreter: set TRITON_INTERPRET=1 before anything imports triton")
    if device.type == "cpu" and kernels.TRITON_VERSION < (3, 7):
        raise BackEndError("Triton's interpreter works with numpy 2.4 and newer from triton 3.7 on: upgrade triton")
    if device.type == "cuda" and kernels.IS_INTERPRETED:
        raise BackEndError("TRITON_INTERPRET is set, so kernels would run on the CPU: unset it before anything imports triton")
    if device.type not in ("cpu", "cuda"):
        raise BackEndError(f"kernels run on cuda, or interpreted on cpu, not on {device.type}")


def _tiles(entries: range) -> int:
    return -(-len(entries) // TILE)
