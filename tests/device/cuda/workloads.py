"""Small logs for the interpreter, which runs about thirty rows of attention a second: rows of `settled diff`, and logs by hand.

Seeds and numbers of steps were searched for; what each must show is asserted where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import logs
from kinds import GROUPS

from settled.model.events import Event
from settled.proofs.differential.rows import ROWS
from settled.reference.device.compiled import CompiledLog
from settled.reference.device.compiling import compile_log
from settled.reference.device.lowering import lower
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import OpLog
from settled.reference.device.orders import LaunchOrder
from settled.reference.device.payload import Numbers
from settled.reference.workload import run_workload

NUMBERS = Numbers(head_dim=16, is_single=True)


@dataclass(frozen=True, slots=True)
class Workload:
    """`order`: of the launches of its log. `is_clean`: nothing is wrong in it. `is_fast`: part of the fast suite."""

    name: str
    log: Callable[[], OpLog]
    order: Callable[[OpLog], list[int]]
    is_clean: bool
    is_fast: bool = False


@dataclass(slots=True)
class Made:
    """A workload, ready to run."""

    compiled: CompiledLog
    numbered: NumberedLog
    order: list[int]


def row_log(name: str, seed: int, steps: int, *, poisons: bool = False) -> OpLog:
    """A workload of a row of `settled diff`."""
    (row,) = [row for row in ROWS if row.name == name]
    events: list[Event] = []
    run_workload(row.family.draw(seed), discipline=row.discipline, fence=row.family.fence, steps=steps, sink=events.append)
    return lower(events, worker=row.worker, poisons=poisons)


def made(workload: Workload) -> Made:
    compiled = compile_log(workload.log())
    return Made(compiled, NumberedLog(compiled, NUMBERS), workload.order(compiled.log))


def _transfers_first(log: OpLog) -> list[int]:
    return LaunchOrder(log).transfers_first()


def _enqueued(log: OpLog) -> list[int]:
    return log.launches()


def _random(seed: int) -> Callable[[OpLog], list[int]]:
    return lambda log: LaunchOrder(log).random(seed)


def _row(name: str, seed: int, steps: int, *, is_clean: bool = False, is_fast: bool = False, poisons: bool = False) -> Workload:
    """In the order that garbles if any does: transfers first."""
    label = f"{name} {seed}" + (" poisoned" if poisons else "")
    return Workload(label, lambda: row_log(name, seed, steps, poisons=poisons), _transfers_first, is_clean, is_fast)


def _hand(kind: str, seed: int, *, is_clean: bool, is_fast: bool = False, longest_prompt: int = 8) -> Workload:
    """By hand: as enqueued it is right, in an order that forgets all waits it is not."""
    order = _enqueued if is_clean else _random(seed)
    name = f"{kind} by hand {seed}{'' if is_clean else ', random order'}"
    return Workload(name, lambda: logs.random_log(seed, GROUPS[kind], 5, 2, 32, longest_prompt), order, is_clean, is_fast)


FAULT_1 = _row("optimistic/loads", 45, 4, is_fast=True)
FAULT_2 = _row("optimistic/told-of-nulls/drafts/stream_order", 34, 3, is_fast=True)

WORKLOADS = (
    FAULT_1,
    FAULT_2,
    _row("settled/unordered-stores/stores", 36, 3, is_fast=True),
    _row("settled/one-staging-buffer/loads", 41, 4, is_fast=True),
    _row("settled/everything", 4, 6, is_clean=True, is_fast=True, poisons=True),
    _hand("window and state", 1, is_clean=False, is_fast=True),
    _hand("window and state", 2, is_clean=True, is_fast=True),
    _hand("custom", 1, is_clean=False, is_fast=True),
    _hand("rswa", 2, is_clean=False),
    _hand("rswa", 3, is_clean=True),
    _hand("full", 1, is_clean=False, longest_prompt=40),
    _hand("full", 1, is_clean=True, longest_prompt=40),
    _hand("mamba", 1, is_clean=False),
    _hand("custom", 0, is_clean=True),
    _row("optimistic/loads", 19, 4),
    _row("optimistic/told-of-nulls/drafts/stream_order", 24, 3),
    _row("settled/one-staging-buffer/loads", 30, 4),
    _row("null-at-allocation/drafts/stream_order", 8, 3),
    _row("optimistic/drafts/stream_order", 44, 5),
    _row("settled/everything", 10, 6, is_clean=True, poisons=True),
    _row("settled/everything", 2, 12, is_clean=True),
    _row("settled/loads", 5, 6, is_clean=True),
    _row("settled/stores", 11, 8, is_clean=True),
    _row("settled/states/stream_order", 0, 5, is_clean=True),
    _row("settled/states/stream_order", 3, 5, is_clean=True),
)
