"""Mamba `align` with drafts: one request's table of state slots, one arbitrary index of it, and one of the request's steps.

A block holds the recurrent state after some token, so a step names slots of the table instead of reading keys. Source: vLLM,
MambaManager.allocate_new_blocks and remove_skipped_blocks, and the worker's state copies. With R the block of a step's last token, drafts
included, and K slots for drafts:

* the step writes its states to the slots R to R + K, and may copy the state at a block's end to that block's own index;
* the next step reads the slot R + (accepted drafts), and R is that of the step as it really ran, after the rejections before it;
* a table is extended up to R + K. What lies between its old end and R stays null. Slots for drafts that R leaves behind move to the end.

The worker's row only grows, so it goes on naming a block at an index that it was moved away from. What is over-approximated: a step may
read any of the K + 1 slots behind the running one of its predecessor, whatever was accepted.

Positions are in tokens. An index is the block of the positions `first` to `last`; `slots` = K blocks, in tokens. Every edge of a block is
known by how it lies to the tracked index (`_aligned`), so that no product occurs. As in `tracked.py`, the environment allows more than
an engine does: a guard stays only if a theorem fails without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from settled.model import counters as count
from settled.model.algebra import (
    Bool,
    BoolTerm,
    Int,
    IntTerm,
    as_bool,
    as_int,
    bool_variable,
    both,
    either,
    implies,
    int_variable,
    maximum,
    negate,
    select,
)
from settled.model.counters import Counters
from settled.model.disciplines import Discipline


class SlotStep(NamedTuple):
    """A step of the request. `start` is its true start, `before_end` the true end of its predecessor, both as far as is known.

    `ahead` and `rejectable_ahead`: tokens of the unprocessed steps of its generation before it, and those of them that are drafts.
    `reads_below` and `writes_below`: where the table ended before and after it was extended for the step.
    """

    unprocessed: Bool
    stale: Bool
    start: Int
    tokens: Int
    drafts: Int
    ahead: Int
    rejectable_ahead: Int
    before_end: Int
    before_slots: Int  # what the predecessor may have written behind its running slot: `slots`, or 0 for a cached state
    reads_below: Int
    writes_below: Int
    row_held: Bool  # its row names a block at the tracked index


class Align(NamedTuple):
    """The table in the present generation, and the tracked step.

    `rejectable`: drafts of unprocessed steps. `last_end`: the true end of the last step, what it rejected itself included. `edge`: where
    the table ends. `named`: the worker's row names a block at the tracked index, `held`: the table still has it there.
    """

    computed: Int
    in_flight: Int
    rejectable: Int
    last_end: Int
    edge: Int
    held: Bool
    named: Bool
    step: SlotStep


@dataclass(frozen=True)
class AlignSystem:
    """What is fixed: the discipline, the tracked index, K in tokens, and the drafts a step carries at most."""

    discipline: Discipline
    first: IntTerm = field(default_factory=lambda: int_variable("first"))
    last: IntTerm = field(default_factory=lambda: int_variable("last"))
    slots: IntTerm = field(default_factory=lambda: int_variable("slots"))
    drafts_max: IntTerm = field(default_factory=lambda: int_variable("drafts a step"))

    def assumptions(self) -> dict[str, BoolTerm]:
        return {"0 <= first <= last": both(self.first >= 0, self.first <= self.last), "slots >= 0": self.slots >= 0}

    @property
    def block_size(self) -> IntTerm:
        return self.last - self.first + 1

    def frees(self, state: Align) -> BoolTerm:
        """vLLM's rule: the blocks before that of the last token of the basis."""
        basis = self.discipline.state_basis or self.discipline.free_basis
        relied_on = count.free_basis(Counters(state.computed, state.in_flight, 0), basis, self.drafts_max)
        return self.last < relied_on - 1

    def is_between(self, low: Int, high: Int) -> BoolTerm:
        """Whether the tracked index lies from the block of the position `low` to that of the position `high`."""
        return both(self.last >= low, self.first <= high)


class AlignAction(NamedTuple):
    """An event: it can happen if every condition of `guard` holds, and leads to `after`."""

    name: str
    guard: Mapping[str, BoolTerm]
    after: Align


NO_STEP = SlotStep(False, False, 0, 0, 0, 0, 0, 0, 0, 0, 0, False)
NO_TABLE = Align(0, 0, 0, 0, 0, False, False, NO_STEP)
TOKENS, DRAFTS, REJECTED, HIT, RUNNING = (int_variable(name) for name in ("tokens", "drafts", "rejected", "hit", "running slot"))
PRUNES = bool_variable("prunes")


def symbolic_align() -> Align:
    """A state whose every component is a variable."""
    truths = ("unprocessed", "stale", "row_held")
    step = SlotStep._make((bool_variable if name in truths else int_variable)(f"step.{name}") for name in SlotStep._fields)
    computed, in_flight, rejectable, last_end, edge = (int_variable(name) for name in Align._fields[:5])
    return Align(computed, in_flight, rejectable, last_end, edge, bool_variable("held"), bool_variable("named"), step)


def actions(state: Align, system: AlignSystem) -> list[AlignAction]:
    """Every event, from a state."""
    return [*_starts(state, system), *_schedules(state, system), *_processes(state), _end(state)]


# ---- schedules -------------------------------------------------------------------------------------------------------


def _starts(state: Align, system: AlignSystem) -> list[AlignAction]:
    """The first step of a generation, from a cached state or from nothing; there are no slots for drafts yet."""
    cached = both(HIT > 0, system.is_between(HIT - 1, HIT - 1))
    begun = state._replace(computed=HIT, last_end=HIT, edge=HIT, held=cached, named=cached)
    guard = {
        "no table": as_int(state.edge) == 0,
        "hit of whole blocks": both(HIT >= 0, _aligned(HIT, system)),
        **_sizes(begun, system),
    }
    return _scheduled("start", begun, _extended(begun, system, 0), guard, before_slots=0)


def _schedules(state: Align, system: AlignSystem) -> list[AlignAction]:
    pruned = state._replace(held=both(state.held, negate(both(PRUNES, system.frees(state)))))
    return _scheduled("schedule", pruned, _extended(pruned, system, system.slots), _sizes(pruned, system), before_slots=system.slots)


def _sizes(state: Align, system: AlignSystem) -> dict[str, BoolTerm]:
    """What a step carries, and which block its last token lies in."""
    end = as_int(state.computed) + TOKENS
    return {
        "a token and drafts": both(DRAFTS >= 0, DRAFTS < TOKENS),
        "a step among drafts fits a block": implies(either(as_int(state.rejectable) > 0, DRAFTS > 0), system.block_size >= TOKENS),
        "the running slot": both(RUNNING < end, end <= RUNNING + system.block_size, _aligned(RUNNING, system)),
    }


def _extended(state: Align, system: AlignSystem, movable: Int) -> Align:
    """The table with slots up to the running one and `slots` behind it. `movable`: how much of its end are slots for drafts."""
    old, edge = as_int(state.edge), maximum(state.edge, RUNNING + system.block_size + system.slots)
    left_behind = both(edge > old, system.first >= old - movable, system.first < old, system.last < RUNNING)
    fresh = both(system.first >= old, system.first < edge, system.first >= RUNNING)
    held = either(both(state.held, negate(left_behind)), fresh)
    return state._replace(edge=edge, held=held, named=either(state.named, held))


def _scheduled(name: str, before: Align, table: Align, guard: Mapping[str, BoolTerm], before_slots: Int) -> list[AlignAction]:
    end = as_int(before.computed) + TOKENS
    after = table._replace(
        computed=end,
        in_flight=as_int(before.in_flight) + TOKENS,
        rejectable=as_int(before.rejectable) + DRAFTS,
        last_end=end,
    )
    step = SlotStep(
        unprocessed=True,
        stale=False,
        start=before.computed,
        tokens=TOKENS,
        drafts=DRAFTS,
        ahead=before.in_flight,
        rejectable_ahead=before.rejectable,
        before_end=before.last_end,
        before_slots=before_slots,
        reads_below=before.edge,
        writes_below=table.edge,
        row_held=table.named,
    )
    return [
        AlignAction(f"{name} another step", guard, after),
        AlignAction(f"{name} the step", guard, after._replace(step=step)),
    ]


def _aligned(edge: Int, system: AlignSystem) -> BoolTerm:
    """An edge of a block lies at, or a block or more away from, the first position of the tracked index."""
    edge = as_int(edge)
    return either(edge == system.first, edge + system.block_size <= system.first, edge > system.last)


# ---- outputs ---------------------------------------------------------------------------------------------------------


def _processes(state: Align) -> list[AlignAction]:
    """`TOKENS` and `DRAFTS` are those of the step whose output is read; the steps before the tracked one come before it."""
    step = state.step
    sizes = {"a token and drafts": both(DRAFTS >= 0, DRAFTS < TOKENS)}
    rejections = {"rejections": both(REJECTED >= 0, REJECTED <= DRAFTS)}
    output = {**rejections, "among those in flight": _among(state.in_flight, state.rejectable)}
    before = {"before the step": both(step.unprocessed, _among(step.ahead, step.rejectable_ahead))}
    over = step._replace(unprocessed=False)
    return [
        AlignAction("process another step", {**sizes, **output}, _output(state)),
        AlignAction("process a step before the step", {**sizes, **output, **before}, _output(state)._replace(step=_moved(step))),
        AlignAction("process a stale step before the step", {**rejections, **before}, state._replace(step=_moved(step))),
        AlignAction("process the step", {**sizes, **output}, _output(state)._replace(step=over)),
        AlignAction("process the step, stale", {}, state._replace(step=over)),
    ]


def _among(tokens: Int, drafts: Int) -> BoolTerm:
    """Whether a step of `TOKENS` and `DRAFTS` can be one of steps with that many in all; every other has a token that is no draft."""
    others = as_int(tokens) - TOKENS
    return both(others >= 0, DRAFTS <= drafts, as_int(drafts) - DRAFTS <= others)


def _output(state: Align) -> Align:
    """Counters after an output. The last step's own rejections leave its end where its slots were counted from."""
    is_last = as_int(state.in_flight) == TOKENS
    return state._replace(
        computed=as_int(state.computed) - REJECTED,
        in_flight=as_int(state.in_flight) - TOKENS,
        rejectable=as_int(state.rejectable) - DRAFTS,
        last_end=select(is_last, state.last_end, as_int(state.last_end) - REJECTED),
    )


def _moved(step: SlotStep) -> SlotStep:
    """The step after the output of one before it, which is its predecessor if no other is ahead."""
    is_predecessor = as_int(step.ahead) == TOKENS
    return step._replace(
        start=as_int(step.start) - REJECTED,
        ahead=as_int(step.ahead) - TOKENS,
        rejectable_ahead=as_int(step.rejectable_ahead) - DRAFTS,
        before_end=select(is_predecessor, step.before_end, as_int(step.before_end) - REJECTED),
    )


def _end(state: Align) -> AlignAction:
    """Preemption, finish or abort: the table is given up. Who keeps its blocks for the steps in flight is theorem 3's business."""
    step = state.step._replace(stale=either(state.step.stale, state.step.unprocessed))
    return AlignAction("preempt, finish or abort", {}, NO_TABLE._replace(step=step))


# ---- what a step uses ------------------------------------------------------------------------------------------------


def may_read(step: SlotStep, system: AlignSystem) -> BoolTerm:
    """Whether the step may read the slot at the tracked index: one of those that its predecessor wrote, or the cached state."""
    newest = as_int(step.before_end) - 1
    return both(as_bool(step.unprocessed), as_int(step.start) > 0, system.is_between(newest, newest + step.before_slots))


def may_write(step: SlotStep, system: AlignSystem) -> BoolTerm:
    """Whether the step may write it: its running slot and those behind, or the block whose end it passes with what is accepted."""
    end = as_int(step.start) + step.tokens
    return both(as_bool(step.unprocessed), system.is_between(end - step.drafts - 1, end - 1 + system.slots))


def next_may_read(state: Align, system: AlignSystem) -> BoolTerm:
    """Whether the next step may read it."""
    newest = as_int(state.last_end) - 1
    return both(as_int(state.computed) > 0, system.is_between(newest, newest + system.slots))
