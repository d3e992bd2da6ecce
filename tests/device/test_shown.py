"""`settled refute --replay --bytes`: each shortest trace about bytes ends at a wrong token, the right discipline at none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from settled.model.properties import Contract
from settled.model.trace_io import read_trace
from settled.proofs.cli.main import cli
from settled.proofs.differential import shown
from settled.proofs.differential.shown import AS_ENQUEUED, NULL_OVERWRITTEN, OVERWRITTEN, show
from settled.proofs.refutations import Refutation, under
from settled.proofs.report.refuting import ABOUT_BYTES, attempt

TRACES = Path(__file__).parent.parent / "data" / "traces"
EVERY = [refutation for refutation in under(Contract.SETTLED, with_consequences=False) if refutation.violates in ABOUT_BYTES]
QUICK = {
    "optimistic-read_resident": OVERWRITTEN,
    "optimistic-rollback_resident": AS_ENQUEUED,
    "null-at-allocation-read_resident": NULL_OVERWRITTEN,
}


def refute(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["refute", *arguments])


@pytest.mark.parametrize(
    "refutation",
    [pytest.param(each, id=each.name, marks=() if each.name in QUICK else pytest.mark.slow) for each in EVERY],
)
def test_a_shortest_trace_ends_at_a_wrong_token_and_the_right_discipline_at_none(refutation: Refutation) -> None:
    on_bytes = attempt(refutation, replay=True, on_bytes=True).on_bytes
    assert on_bytes is not None
    assert on_bytes.agrees
    assert on_bytes.broken is not None
    assert on_bytes.broken.order == QUICK.get(refutation.name, on_bytes.broken.order)
    assert 0 < on_bytes.broken.counts.rows_differing == on_bytes.broken.counts.rows_garbled


def test_fault_1_is_poison_before_the_read_and_fault_2_a_null_read() -> None:
    told = json.loads(refute("optimistic", "--replay", "--bytes", "--json").output)["refutations"]
    said = {each["property"]: each["bytes"]["broken"] for each in told}
    assert "in step 1 query 0 of A reads position 0" in said["read_resident"]
    assert "found: poison" in said["read_resident"]
    assert "found through a null entry: zeroes" in said["rollback_resident"]
    assert all(each["bytes"]["right"] is None for each in told)


def test_the_first_wrong_token_is_printed() -> None:
    result = refute("ceil", "--property", "read_resident", "--replay", "--bytes")
    assert result.exit_code == 0, result.output
    assert "on real buffers: as enqueued, worker told-of-nulls: in step 2 query 2 of A reads position 1" in result.output
    assert "with the right discipline nothing is wrong" in result.output


def test_properties_that_are_not_about_bytes_have_no_such_line() -> None:
    result = refute("keeps-one", "--replay", "--bytes")
    assert result.exit_code == 0
    assert "real buffers" not in result.output


def test_buffers_on_which_nothing_is_wrong_disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "show", lambda events: None)
    result = refute("ceil", "--property", "read_resident", "--replay", "--bytes")
    assert result.exit_code == 1
    assert "nothing comes out wrong" in result.output


def test_a_right_discipline_that_is_wrong_on_the_buffers_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    with (TRACES / "v0.25.1-fullchunk-bs4.ndjson").open(encoding="utf-8") as lines:
        wrong = show([event for _, event in read_trace(lines)])
    assert wrong is not None
    monkeypatch.setattr(shown, "show", lambda events: wrong)
    assert refute("ceil", "--property", "read_resident", "--replay", "--bytes").exit_code == 1


@pytest.mark.slow
def test_a_recorded_trace_of_an_affected_release_shows_its_wrong_token_and_a_repaired_one_none() -> None:
    for release, wrong in (("0.25.1", True), ("0.26.0", False), ("0.33.0", False)):
        with (TRACES / f"v{release}-min-spec-reject.ndjson").open(encoding="utf-8") as lines:
            assert (show([event for _, event in read_trace(lines)]) is not None) is wrong


def test_what_it_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = refute("ceil", "--bytes")
    assert result.exit_code == 2
    assert "--bytes goes with --replay" in result.output
    monkeypatch.setitem(sys.modules, "torch", None)
    result = refute("ceil", "--replay", "--bytes")
    assert result.exit_code == 2
    assert "pip install 'settled[device]'" in result.output
