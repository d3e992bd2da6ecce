"""The system of state slots follows a table that is played block by block, and every slot that a step really uses is one that it may use.

The player is written from what vLLM's manager and worker do, with Python lists and without a line of the model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from settled.model import align
from settled.model.algebra import Term, as_bool, as_int, both
from settled.model.align import Align, AlignSystem, SlotStep
from settled.model.disciplines import RIGHT
from settled.model.interpret import compile_terms
from settled.model.values import leaves

SYSTEM = AlignSystem(RIGHT)
STATE = align.symbolic_align()
NAMES = [leaf.args[0] for leaf in leaves(STATE)]
CHOICES = ["tokens", "drafts", "rejected", "hit", "running slot", "prunes"]
CONSTANTS = ["first", "last", "slots", "drafts a step"]


def _compiled(*terms: Any) -> Callable[..., tuple[Any, ...]]:
    made = [term if isinstance(term, Term) else as_bool(term) if isinstance(term, bool) else as_int(term) for term in terms]
    return compile_terms(made, [*NAMES, *CHOICES, *CONSTANTS])


ACTIONS = {a.name: (_compiled(both(*a.guard.values())), _compiled(*leaves(a.after)), tuple(a.guard)) for a in align.actions(STATE, SYSTEM)}
USES = _compiled(align.may_read(STATE.step, SYSTEM), align.may_write(STATE.step, SYSTEM), align.next_may_read(STATE, SYSTEM))


@dataclass
class Played:
    """A step, with the row of the worker when it was scheduled."""

    tokens: int
    drafts: int
    row: list[int]


@dataclass
class Player:
    """One request's table. `block_size` B, `slots` K, in blocks."""

    block_size: int
    slots: int
    table: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    computed: int = 0
    settled: int = 0
    has_slots: bool = False
    steps: list[Played] = field(default_factory=list)
    ids: int = 0

    def fresh(self) -> int:
        self.ids += 1
        return self.ids

    def running(self, end: int) -> int:
        return -(-end // self.block_size) - 1

    def hit(self, blocks: int) -> None:
        self.table = [0] * (blocks - 1) + [self.fresh()]
        self.row = list(self.table)
        self.computed = self.settled = blocks * self.block_size

    def prune(self) -> None:
        for index in range(max(0, (self.settled - 1) // self.block_size)):
            if index < len(self.table):
                self.table[index] = 0

    def extend(self, end: int) -> None:
        before, running = len(self.table), self.running(end)
        needed = running + 1 + self.slots
        if needed > before:
            self.table += [0] * (running - before)
            if self.has_slots:
                for index in range(before - self.slots, before):
                    if index < running:
                        self.table.append(self.table[index])
                        self.table[index] = 0
            self.table += [self.fresh() for _ in range(needed - len(self.table))]
            self.row += self.table[before:]
        self.has_slots = True


def run(seed: int, *, fits: bool = True) -> Iterator[tuple[Player, str, dict[str, int]]]:
    """Random decisions: the player after each, with what was done and its choices.

    `fits`: a step with drafts, or behind unprocessed ones, fits a block.
    """
    choose = random.Random(seed)
    size, slots = choose.randint(2, 5), choose.randint(0, 3)
    player = Player(size, slots)
    drafting_from = choose.randint(0, 14)
    for _ in range(40):
        if player.steps and (len(player.steps) > 3 or choose.random() < 0.45):
            step = player.steps[0]
            rejected = choose.randint(0, step.drafts)
            player.settled += step.tokens - rejected
            player.computed -= rejected
            player.steps.pop(0)
            yield player, "process", {"tokens": step.tokens, "drafts": step.drafts, "rejected": rejected}
            continue
        hit = 0
        if not player.table and choose.random() < 0.5:
            hit = choose.randint(1, 3)
            player.hit(hit)
        begins = not player.has_slots
        decodes = player.computed >= drafting_from
        drafts = choose.randint(0, min(slots, size - 1) if fits else slots) if decodes else 0
        tokens = 1 + drafts if decodes else choose.randint(1, 3 * size)
        if player.has_slots:
            player.prune()
        player.extend(player.computed + tokens)
        end = player.computed + tokens
        player.steps.append(Played(tokens, drafts, list(player.row)))
        player.computed = end
        running = player.running(end) * size
        name = "start" if begins else "schedule"
        yield player, name, {"tokens": tokens, "drafts": drafts, "hit": hit * size, "running slot": running}


def _values(state: Align, chosen: dict[str, int], index: int, player: Player) -> list[int]:
    size = player.block_size
    choices = {"rejected": 0, "hit": 0, "running slot": 0, "tokens": 1, "drafts": 0, "prunes": 1, **chosen}
    constants = [index * size, index * size + size - 1, player.slots * size, player.slots]
    return [*leaves(state), *(choices[name] for name in CHOICES), *constants]


def _action_name(kind: str, state: Align, tracked_now: bool) -> str:
    step: SlotStep = state.step
    if kind != "process":
        return f"{kind} the step" if tracked_now else f"{kind} another step"
    if not step.unprocessed:
        return "process another step"
    return "process the step" if step.ahead == 0 else "process a step before the step"


@pytest.mark.parametrize("seed", range(60))
def test_the_system_follows_a_played_table(seed: int) -> None:
    """Every index, each third schedule tracked: guards hold, and `held`, `named`, the counters and the row are what the player has."""
    for index in range(0, 14, 2):
        state, track = align.NO_TABLE, seed % 5
        tracked_steps = 0
        for player, kind, chosen in run(seed):
            is_schedule = kind != "process"
            tracked_now = is_schedule and not state.step.unprocessed and tracked_steps % 3 == track % 3
            name = _action_name(kind, state, tracked_now)
            tracked_steps += is_schedule
            guard, after, _ = ACTIONS[name]
            values = _values(state, chosen, index, player)
            assert guard(*values)[0], (name, chosen, state)
            state = _rebuilt(after(*values))
            in_table = index < len(player.table)
            assert state.held == (in_table and player.table[index] != 0), (name, index, player.table)
            assert state.named == (index < len(player.row) and player.row[index] != 0)
            assert (state.computed, state.in_flight) == (player.computed, player.computed - player.settled)
            assert state.edge == len(player.table) * player.block_size
            assert state.rejectable == sum(step.drafts for step in player.steps)
            if tracked_now:
                assert state.step.row_held == (index < len(player.row) and player.row[index] != 0)


def _rebuilt(numbers: tuple[Any, ...]) -> Align:
    *table, held, named = numbers[:7]
    return Align(*table, held=bool(held), named=bool(named), step=SlotStep._make(numbers[7:]))


class Use(NamedTuple):
    """A slot that a step really uses: the block that its row names there, and whether the model allows for the use."""

    use: str
    block: int
    is_allowed_for: bool


def uses(seed: int, *, fits: bool = True) -> Iterator[Use]:
    """The worker's own arithmetic: a step starts where the one before was accepted up to, and reads its running slot + accepted drafts."""
    rows: list[Played] = []
    position = read_from = before_end = -1
    slots_before = 0
    for player, kind, chosen in run(seed, fits=fits):
        if kind != "process":
            rows.append(player.steps[-1])
            if kind == "start":
                position = before_end = chosen["hit"]
                read_from = chosen["hit"] // player.block_size - 1
            continue
        row, size, end = rows.pop(0).row, player.block_size, position + chosen["tokens"]
        step = SlotStep(True, False, position, chosen["tokens"], chosen["drafts"], 0, 0, before_end, slots_before, 0, 0, True)
        if position > 0:
            yield Use("read", row[read_from], _allows(step, read_from, player)[0])
        for slot in range(player.running(end), player.running(end) + chosen["drafts"] + 1):
            yield Use("write", row[slot], _allows(step, slot, player)[1])
        position, read_from = end - chosen["rejected"], player.running(end) + chosen["drafts"] - chosen["rejected"]
        if position // size * size >= end - chosen["drafts"]:
            whole = position // size - 1
            yield Use("copy the state at a block's end", row[whole], _allows(step, whole, player)[1])
        before_end, slots_before = end, player.slots * size


def _allows(step: SlotStep, index: int, player: Player) -> tuple[bool, bool]:
    reads, writes, _ = USES(*_values(align.NO_TABLE._replace(step=step), {}, index, player))
    return bool(reads), bool(writes)


def test_what_a_step_really_uses_is_in_its_row_and_allowed_for() -> None:
    used = [use for seed in range(300) for use in uses(seed)]
    assert all(use.block != 0 and use.is_allowed_for for use in used)
    assert {use.use for use in used} == {"read", "write", "copy the state at a block's end"}


def test_the_runs_have_moves_and_rejections_that_cross_a_block() -> None:
    moves = crossings = 0
    for seed in range(300):
        before: list[int] = []
        for player, kind, chosen in run(seed):
            gone = [block for index, block in enumerate(before) if block and index < len(player.table) and not player.table[index]]
            moves += sum(block in player.table for block in gone)
            before = list(player.table)
            if kind == "process":
                end = player.computed + chosen["rejected"]
                crossings += player.running(end) != player.running(player.computed)
    assert moves > 50
    assert crossings > 50


def test_with_steps_longer_than_a_block_a_slot_that_is_used_can_be_null() -> None:
    """Why the theorem asks that a step with drafts fits a block: with B = 2 and K = 3 the real arithmetic names a null entry."""
    assert any(use.block == 0 for seed in range(300) for use in uses(seed, fits=False))
