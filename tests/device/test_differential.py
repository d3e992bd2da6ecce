"""`settled diff`: what each row shows, what it takes to say so, and how the command ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from settled.model.disciplines import OPTIMISTIC
from settled.proofs.cli.main import cli
from settled.proofs.differential import campaign, one, racing
from settled.proofs.differential.campaign import Shard, Total, WorkloadError, run_shard
from settled.proofs.differential.families import FAMILIES
from settled.proofs.differential.one import POISONED, Outcome, run
from settled.proofs.differential.rows import ROWS, Expected, Row
from settled.proofs.report import differing
from settled.reference.device.payload import Numbers
from settled.reference.device.results import Counts
from settled.reference.device.trials import ALWAYS_TRIED, DIRECTED, ENQUEUED, TRANSFERS_FIRST

# Seeds that show what the row must; found by `settled diff ROW --json`, and the test fails if they no longer do.
SHOWING = {
    "no-fence/loads": 0,
    "optimistic/loads": 0,
    "raw-finish/loads": 21,
    "settled/one-staging-buffer/loads": 0,
    "settled/unawaited-loads/loads-in-steps": 0,
    "optimistic/fenced/loads": 0,
    "optimistic/drafts/stream_order": 0,
    "optimistic/told-of-nulls/drafts/stream_order": 0,
    "callback/told-of-nulls/drafts": 0,
}


def row_named(name: str) -> Row:
    (row,) = [row for row in ROWS if row.name == name]
    return row


def total_of(row: Row, *outcomes: Outcome) -> Total:
    total = Total(row)
    for outcome in outcomes:
        total.add(outcome)
    return total


@pytest.mark.parametrize("name", [row.name for row in ROWS if row.expected is Expected.CLEAN])
def test_right_rows_are_clean_and_bit_identical_to_contiguous_memory(name: str) -> None:
    row = row_named(name)
    outcomes = [run(row, seed, numbers=Numbers(), steps=25) for seed in range(3)]
    total = total_of(row, *outcomes)
    assert total.is_as_expected is True
    assert total.compared >= 4 * total.rows > 0
    assert not total.contradictions


def test_what_a_failed_load_did_not_bring_is_not_zeroed_behind_a_request_that_ended() -> None:
    """The zeroing once ran in whichever step came next; that of seed 461 outlived its request."""
    outcome = run(row_named("settled/loads"), 461)
    assert (outcome.early_frees, outcome.races, outcome.garbled) == (0, 0, ())


def test_a_step_before_the_first_token_is_wrong_in_every_order() -> None:
    """What a preempted step rejected is taken off a count that stands at 0."""
    outcome = run(row_named("stale-applied/preemptions"), 523)
    assert outcome.garbled == ALWAYS_TRIED
    assert "begins at token -2" in outcome.first_garbled
    assert not outcome.contradictions


@pytest.mark.parametrize(("name", "seed"), SHOWING.items())
def test_broken_rows_show_their_fault(name: str, seed: int) -> None:
    row = row_named(name)
    outcome = run(row, seed, numbers=Numbers())
    assert total_of(row, outcome).is_as_expected is True, outcome
    assert not outcome.contradictions
    assert outcome.first_race or outcome.first_garbled


def test_fault_1_needs_another_order_and_fault_2_none() -> None:
    early = run(row_named("optimistic/loads"), SHOWING["optimistic/loads"])
    assert early.early_frees > 0
    assert early.races > 0
    assert ENQUEUED not in early.garbled
    assert {TRANSFERS_FIRST, DIRECTED, POISONED} <= set(early.garbled)
    late = run(row_named("optimistic/told-of-nulls/drafts/stream_order"), 0)
    assert late.races == 0
    assert ENQUEUED in late.garbled
    assert "found through a null entry" in late.first_garbled
    assert late.null_rows > 0


def test_the_same_seed_gives_the_same_outcome() -> None:
    row = row_named("no-fence/loads")
    assert run(row, 3) == run(row, 3)


def test_families_are_what_they_say() -> None:
    for name, family in FAMILIES.items():
        for seed in range(8):
            config = family.draw(seed).config
            assert config.num_speculative_tokens == 0 or "loads" not in name
            assert config.kv_consumer or name in ("unfenced", "drafts", "states")
            assert config.connector or name not in ("loads", "loads-in-steps", "stores")


# ---- verdicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "outcome", "verdict"),
    [
        (Expected.CLEAN, Outcome(0, rows=1), True),
        (Expected.CLEAN, Outcome(0), None),
        (Expected.CLEAN, Outcome(0, early_frees=1), False),
        (Expected.CLEAN, Outcome(0, races=1), False),
        (Expected.CLEAN, Outcome(0, garbled=(POISONED,)), False),
        (Expected.CLEAN, Outcome(0, contradictions=["x"]), False),
        (Expected.RACES, Outcome(0), None),
        (Expected.RACES, Outcome(0, races=1), None),
        (Expected.RACES, Outcome(0, early_frees=1, garbled=(POISONED,)), None),
        (Expected.RACES, Outcome(0, races=1, garbled=(DIRECTED,)), True),
        (Expected.RACES, Outcome(0, races=1, garbled=(ENQUEUED, DIRECTED)), False),
        (Expected.FREES, Outcome(0), None),
        (Expected.FREES, Outcome(0, early_frees=1, garbled=(POISONED,)), True),
        (Expected.FREES, Outcome(0, early_frees=1, races=1), False),
        (Expected.FREES, Outcome(0, early_frees=1, garbled=(TRANSFERS_FIRST,)), False),
        (Expected.ALWAYS, Outcome(0, garbled=(TRANSFERS_FIRST,)), None),
        (Expected.ALWAYS, Outcome(0, garbled=(ENQUEUED,)), True),
        (Expected.ALWAYS, Outcome(0, garbled=(ENQUEUED,), contradictions=["x"]), False),
    ],
)
def test_a_row_is_as_it_must_be_or_not_or_not_yet(expected: Expected, outcome: Outcome, verdict: bool | None) -> None:
    assert total_of(replace(ROWS[0], expected=expected), outcome).is_as_expected is verdict


def test_a_right_row_that_runs_a_broken_discipline_is_found_out() -> None:
    row = replace(row_named("settled/loads"), discipline=OPTIMISTIC)
    assert total_of(row, run(row, SHOWING["optimistic/loads"])).is_as_expected is False


def test_something_garbled_without_a_race_is_a_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "races", lambda log, contract: [])
    outcome = run(row_named("no-fence/loads"), 0)
    assert outcome.contradictions
    assert "there is no race" in outcome.contradictions[0]


def test_orders_that_differ_without_a_race_and_poison_without_a_free_are_contradictions() -> None:
    def said(*garbled: str) -> list[str]:
        return list(one._without_a_race(garbled, (), ()))

    assert said() == said(*ALWAYS_TRIED) == said(*ALWAYS_TRIED, POISONED) == []
    assert said(ENQUEUED) == ["garbled as enqueued only, and there is no race"]
    assert said(POISONED) == ["garbled by poison, and no free comes too early"]


def test_tags_and_outputs_that_disagree_are_a_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    original = one.replay

    def replay(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        result.counts = Counts(rows=result.counts.rows, rows_differing=1)
        return result

    monkeypatch.setattr(one, "replay", replay)
    outcome = run(row_named("settled/loads"), 0, numbers=Numbers(), steps=5)
    assert "0 rows read wrong tags, 1 outputs differ" in outcome.contradictions[0]


def test_frees_and_reuses_are_told_apart() -> None:
    row = row_named("no-fence/loads")
    outcome = run(row, 0)
    assert outcome.early_frees > 0
    assert outcome.races > 0


def test_a_workload_that_cannot_be_judged_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **keywords: object) -> Outcome:
        raise ValueError("no such thing")

    monkeypatch.setattr(campaign, "run", broken)
    with pytest.raises(WorkloadError, match=f"{ROWS[3].name}, seed 20: ValueError: no such thing"):
        run_shard(Shard(3, 20, 10, False, 24))


def test_a_shard_is_its_seeds() -> None:
    index = ROWS.index(row_named("settled/loads"))
    outcomes = run_shard(Shard(index, 4, 2, False, 5))
    assert [outcome.seed for outcome in outcomes] == [4, 5]
    assert [outcome.compared for outcome in outcomes] == [0, 0]


# ---- the command -----------------------------------------------------------------------------------------------------


def diff(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["diff", *arguments])


def test_a_right_row_holds() -> None:
    result = diff("settled/loads", "--workloads", "2")
    assert result.exit_code == 0, result.output
    assert "1 rows of 2 workloads" in result.output
    assert "outputs compared bit for bit" in result.output


def test_a_fault_is_told_with_its_race_and_its_token() -> None:
    result = diff("no-fence/loads", "--workloads", "1", "--tags-only")
    assert result.exit_code == 0, result.output
    assert "never waited for step" in result.output
    assert "should hold request" in result.output


def test_too_few_workloads_end_with_3() -> None:
    result = diff("raw-finish/loads", "--workloads", "1", "--tags-only")
    assert result.exit_code == 3
    assert "not shown" in result.output


def test_a_row_that_is_not_as_it_must_be_ends_with_1_and_the_command_that_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any, **keywords: Any) -> Outcome:
        return Outcome(7, races=1, garbled=(ENQUEUED,), first_race="a race", first_garbled="a token")

    monkeypatch.setattr(campaign, "run", wrong)
    result = diff("settled/loads", "--workloads", "1")
    assert result.exit_code == 1
    assert "settled diff settled/loads --seed 7 --workloads 1" in result.output


def test_a_word_chooses_rows_and_json_has_them_all() -> None:
    result = diff("fenced", "--workloads", "2", "--tags-only", "--json")
    told = json.loads(result.output)
    assert [row["row"] for row in told["rows"]] == ["optimistic/fenced/loads"]
    assert told["rows"][0]["workloads"] == 2
    assert told["exit_code"] == result.exit_code == 0


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupt_loses_nothing(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    """The row that is through is told, and what was seen of the one under way."""
    first, second = ROWS[:2]

    def ended(rows: object, *, tell: Callable[[Total], None], **keywords: object) -> Iterator[Total]:
        tell(total_of(first, Outcome(0, rows=5), Outcome(1, rows=5)))
        yield total_of(first, Outcome(0, rows=5), Outcome(1, rows=5))
        tell(total_of(second, Outcome(0, rows=5)))
        raise KeyboardInterrupt

    monkeypatch.setattr(differing, "compare", ended)
    monkeypatch.setattr(differing, "progress_line", lambda *arguments, **keywords: nullcontext(lambda text: None))
    result = diff(first.name, second.name, "--workloads", "2", *(["--json"] if as_json else []))
    assert isinstance(result.exception, SystemExit)  # click's own ending; the command's makes 130 of it
    if as_json:
        told = json.loads(result.stdout)
        assert [(row["row"], row["workloads"]) for row in told["rows"]] == [(first.name, 2), (second.name, 1)]
        assert told["exit_code"] == 130
    else:
        assert "ended after 1 of 2 rows of 2 workloads" in result.output
        assert "exit code 130" in result.output


def test_an_error_loses_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(rows: object, *, tell: Callable[[Total], None], **keywords: object) -> Iterator[Total]:
        yield total_of(ROWS[0], Outcome(0, rows=5))
        raise WorkloadError("a workload, by name")

    monkeypatch.setattr(differing, "compare", ended)
    result = diff(ROWS[0].name, ROWS[1].name, "--workloads", "1", "--json")
    assert isinstance(result.exception, WorkloadError)
    told = json.loads(result.stdout)
    assert ([row["row"] for row in told["rows"]], told["exit_code"]) == ([ROWS[0].name], 3)


def test_bad_input_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert diff("nonsense").exit_code == 2
    assert "unknown row 'nonsense'" in diff("nonsense").output
    monkeypatch.setitem(sys.modules, "torch", None)
    result = diff("settled/loads")
    assert result.exit_code == 2
    assert "pip install 'settled[device]'" in result.output
