"""The monitor's tables and books stay cheap: what is known to be sound is not looked at again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from settled.model.events import NULL_BLOCK
from settled.model.monitor.bounds import Bounds
from settled.model.monitor.findings import Findings
from settled.model.monitor.groups import mask_of
from settled.model.monitor.ledger import Ledger
from settled.model.monitor.state import Request, Table
from settled.model.properties import Contract, Property
from settled.model.specs import SlidingWindowSpec


def _table(*blocks: int) -> Table:
    table = Table()
    for index, block in enumerate(blocks):
        if block != NULL_BLOCK:
            table.put(index, block)
    return table


def test_a_table_that_its_row_repeats_is_sound() -> None:
    table = _table(1, 2, 3)
    table.replace_row((1, 2))
    table.extend_row((3,))
    assert (table.sound_from, table.held, table.lowest_prunable()) == (0, 3, 0)


def test_what_is_released_is_not_sound_and_not_held() -> None:
    table = _table(1, 2, 3)
    table.replace_row((1, 2, 3))
    table.take(0, None)
    table.take(1, None)
    assert (table.doubt_from, table.sound_from, table.held, table.lowest_prunable()) == (0, 2, 1, 2)


def test_below_what_is_released_the_table_is_sound() -> None:
    """Sinks and prompts: the gap lies between blocks that stay."""
    table = _table(1, 2, 3, 4, 5)
    table.replace_row((1, 2, 3, 4, 5))
    for index in (3, 2):
        table.take(index, None)
    assert (table.doubt_from, table.sound_from) == (2, 4)
    table.take(0, None)
    assert (table.doubt_from, table.sound_from) == (0, 4)


def test_the_first_blocks_that_a_prune_never_takes_are_not_prunable() -> None:
    table = Table(kept=2)
    for index in range(4):
        table.put(index, index + 1)
    assert table.lowest_prunable() == 2
    table.take(2, None)
    assert table.lowest_prunable() == 3


def test_a_row_that_differs_is_not_sound() -> None:
    table = _table(1, 2, 3, 4)
    table.replace_row((1, 9))
    assert (table.doubt_from, table.sound_from) == (1, 2)
    table.extend_row((3, 8))
    assert (table.doubt_from, table.sound_from) == (1, 4)


def test_a_replaced_row_is_sound_again() -> None:
    table = _table(1, 2)
    table.replace_row((1, 9))
    table.replace_row((1, 2))
    assert table.sound_from == 0


def test_a_table_starts_over_once_it_holds_nothing() -> None:
    table = _table(1, 2)
    table.take(0, None)
    table.take(1, None)
    assert (table.blocks, table.lowest_prunable()) == ([], None)
    table.put(2, 7)
    assert (table.blocks, table.held, table.lowest_prunable()) == ([0, 0, 7], 1, 2)


def test_the_ledger_knows_whether_anything_is_shared() -> None:
    ledger = Ledger(4, Findings(Contract.SETTLED, Property))
    request = Request("A", [Table()], [None], [])
    ledger.allocate(request, 0, 0, 1, 1)
    assert not ledger.shared
    ledger.touch(request, 0, 0, 1, 2)
    assert ledger.shared == {1}
    assert not ledger.give_up(1)
    assert not ledger.shared
    assert ledger.give_up(1)


def _start_over_with_no_block(table: Table) -> None:
    table.take(4, None)
    table.take(5, None)
    table.put(0, 7)


def _start_over_behind_a_fence(table: Table) -> None:
    table.detach()
    table.put(0, 7)


def _fill_a_gap(table: Table) -> None:
    table.put(0, 7)


@pytest.mark.parametrize("change", [_fill_a_gap, _start_over_with_no_block, _start_over_behind_a_fence])
def test_a_block_that_comes_in_below_those_kept_is_looked_at(change: Callable[[Table], None]) -> None:
    mask = mask_of(SlidingWindowSpec(block_size=4, window=4))
    assert mask is not None
    table, findings = Table(), Findings(Contract.SETTLED, Property)
    request = Request("A", [table], [mask], [(0, mask, table)], [(0, mask, table)], computed=20)
    bounds = Bounds([True], [8], findings)
    for index in range(6):
        table.put(index, 1 + index)
    for index in range(4):
        table.take(index, None)
    bounds.pruned(request, 1)
    assert not findings.fresh
    change(table)
    bounds.pruned(request, 2)
    assert [violation.index for violation in findings.take_fresh()] == [0]
