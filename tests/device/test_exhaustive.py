"""Every order of small logs against the detector, and how `settled diff --exhaustive` ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from settled.proofs.cli.main import cli
from settled.proofs.differential import exhaustive, racing
from settled.proofs.differential.exhaustive import Crossed, cross
from settled.proofs.differential.rows import ROWS, Row
from settled.proofs.report import crossing

SEEDS = range(12)


def row_named(name: str) -> Row:
    (row,) = [row for row in ROWS if row.name == name]
    return row


def crossed(name: str, *, orders_max: int = 300) -> Crossed:
    return cross(row_named(name), SEEDS, orders_max=orders_max)


def test_right_logs_have_no_race_and_are_wrong_in_no_order() -> None:
    found = crossed("settled/loads")
    assert found.logs == {(False, "never"): len(SEEDS)}
    assert found.interleavings > len(SEEDS)
    assert not found.unsound


def test_what_is_wrong_in_some_orders_races() -> None:
    found = crossed("settled/unawaited-loads/loads-in-steps")
    assert found.logs[True, "in some orders"] > 0
    assert sum(found.garbling.values()) > 0
    assert not found.unsound


def test_what_is_always_wrong_needs_no_race() -> None:
    found = crossed("null-at-allocation/drafts/stream_order")
    assert found.logs[False, "always"] > 0
    assert not found.unsound


def test_a_detector_that_misses_races_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "races", lambda log, contract: [])
    assert crossed("settled/unawaited-loads/loads-in-steps").unsound


def test_orders_are_cut_and_counted() -> None:
    found = cross(row_named("settled/loads"), range(6), orders_max=5)
    assert found.cut > 0
    assert found.interleavings <= 6 * 5


def test_logs_add_up() -> None:
    row = row_named("no-fence/loads")
    whole, parts = cross(row, range(4), orders_max=50), Crossed(row)
    for seed in range(4):
        parts.add(cross(row, [seed], orders_max=50))
    assert parts == whole


# ---- the command -----------------------------------------------------------------------------------------------------


def diff(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["diff", "--exhaustive", *arguments])


def test_it_holds_and_says_how_many_orders() -> None:
    result = diff("settled/preemptions", "--workloads", "3")
    assert result.exit_code == 0, result.output
    assert "0 disagreements" in result.output


def test_a_disagreement_ends_with_1_and_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(row: Row, seeds: Any) -> Crossed:
        return Crossed(row, interleavings=1, unsound=[5])

    monkeypatch.setattr(crossing, "cross", wrong)
    result = diff("settled/loads", "--workloads", "1")
    assert result.exit_code == 1
    assert "settled/loads, seed 5: orders differ in which every race goes the same way" in result.output


def test_races_that_garble_nothing_end_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhaustive, "_is_wrong", lambda log, launches: False)
    monkeypatch.setattr(exhaustive, "_is_wrong_next", lambda replay, launches, kept: False)
    result = diff("settled/unawaited-loads/loads-in-steps", "--workloads", "6", "--json")
    told = json.loads(result.output)
    assert result.exit_code == told["exit_code"] == 3
    assert told["rows"][0]["kinds"]


def test_options_that_say_nothing_are_refused() -> None:
    assert diff("settled/loads", "--tags-only").exit_code == 2
