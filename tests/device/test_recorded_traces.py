"""`settled diff --trace`: traces that real releases wrote, on real buffers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from settled.model.trace_io import read_trace
from settled.proofs.cli.main import cli
from settled.reference.device.log_io import read_log
from settled.reference.device.lowering import lower

TRACES = Path(__file__).parents[1] / "data" / "traces"


def diff(trace: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["diff", "--trace", str(TRACES / f"{trace}.ndjson"), *arguments])


@pytest.mark.parametrize(
    ("release", "wrong"),
    [("v0.24.0", True), ("v0.25.1", True), ("v0.26.0", False), ("v0.33.0", False)],
)
def test_a_load_overwrites_what_a_step_of_an_affected_release_reads(release: str, wrong: bool) -> None:
    result = diff(f"{release}-connector-overwrite", "--json")
    told = json.loads(result.output)["rows_only_grow"]
    assert result.exit_code == wrong
    assert (told["races"] > 0, told["early_frees"] > 0) == (wrong, wrong)
    assert "as enqueued" not in told["garbled"]
    assert ("transfers first" in told["garbled"]) is wrong
    assert told["outputs_compared"] > 1000
    assert not told["contradictions"]


def test_the_optimistic_basis_put_back_does_the_same() -> None:
    told = json.loads(diff("v0.33.0-connector-overwrite-optimistic", "--json").output)["rows_only_grow"]
    assert told["races"] > 0
    assert "directed" in told["garbled"]


@pytest.mark.parametrize(("release", "wrong"), [("v0.25.1", True), ("v0.26.0", False)])
def test_rejected_drafts_of_an_affected_release_end_in_null_reads(release: str, wrong: bool) -> None:
    told = json.loads(diff(f"{release}-min-spec-reject", "--json").output)
    assert told["rows_only_grow"]["garbled"] == []  # the worker still has the old block, and nobody else has taken it
    assert ("as enqueued" in told["told_of_nulls"]["garbled"]) is wrong
    assert ("found through a null entry" in told["told_of_nulls"]["first_garbled"]) is wrong


def test_it_is_told_in_words_with_what_was_assumed() -> None:
    result = diff("v0.25.1-connector-overwrite")
    assert result.exit_code == 1
    for words in ("assumed: the trace does not record", "never waited for step 23", "position 95, read by query 126"):
        assert words in result.output


def test_the_contract_is_the_callers() -> None:
    told = json.loads(diff("v0.25.1-connector-overwrite", "--contract", "stream_order", "--json").output)
    assert told["contract"] == "stream_order"
    assert told["rows_only_grow"]["early_frees"] == 0
    assert told["rows_only_grow"]["races"] > 0


def test_the_op_log_is_written_and_read_back(tmp_path: Path) -> None:
    written = tmp_path / "log.ndjson"
    assert diff("v0.26.0-swa-b", "--op-log", str(written)).exit_code == 0
    with (TRACES / "v0.26.0-swa-b.ndjson").open(encoding="utf-8") as lines, written.open(encoding="utf-8") as log:
        assert read_log(log) == lower([event for _, event in read_trace(lines)])


def test_a_trace_without_a_step_has_shown_nothing(tmp_path: Path) -> None:
    cut = tmp_path / "cut.ndjson"
    cut.write_text((TRACES / "v0.26.0-swa-b.ndjson").read_text(encoding="utf-8").splitlines()[0] + "\n", encoding="utf-8")
    result = CliRunner().invoke(cli, ["diff", "--trace", str(cut)])
    assert result.exit_code == 3
    assert "0 steps" in result.output
    assert "exit code 3" in result.output


def test_bad_input_is_named(tmp_path: Path) -> None:
    cut = tmp_path / "cut.ndjson"
    lines = (TRACES / "v0.26.0-swa-b.ndjson").read_text(encoding="utf-8").splitlines()
    cut.write_text("\n".join([lines[0], '{"event":"gap","events":3}']) + "\n", encoding="utf-8")
    result = CliRunner().invoke(cli, ["diff", "--trace", str(cut)])
    assert result.exit_code == 2
    assert f"settled diff: {cut}: event 2: a gap event" in result.output
    cut.write_text("nonsense\n", encoding="utf-8")
    assert CliRunner().invoke(cli, ["diff", "--trace", str(cut)]).exit_code == 2
    for arguments in (
        ["settled/loads", "--trace", str(cut)],
        ["--exhaustive", "--trace", str(cut)],
        ["--contract", "settled"],
        ["--op-log", "x"],
    ):
        assert CliRunner().invoke(cli, ["diff", *arguments]).exit_code == 2
