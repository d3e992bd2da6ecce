"""`settled corpus`: rows, details, recall, exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from settled.proofs.cli.main import cli
from settled.proofs.corpus import loading

BUGS = Path(__file__).parents[1] / "data" / "bugs"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["corpus", *arguments])


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the corpus that the command reads instead of the real one."""
    place = tmp_path / "bugs"
    shutil.copytree(BUGS, place)
    monkeypatch.setattr(loading, "folder", lambda: place)
    return place


def spoil(place: Path, name: str, *replaced: tuple[str, str]) -> None:
    text = (place / name).read_text(encoding="utf-8")
    for before, after in replaced:
        assert before in text
        text = text.replace(before, after)
    (place / name).write_text(text, encoding="utf-8")


def test_all_rows_and_the_recall() -> None:
    result = run()
    assert result.exit_code == 0
    assert "of 26 catchable rows of F1, F2, F7, F9" in result.output
    assert "of all 147 rows of the index: " in result.output
    assert "not catchable" in result.output
    assert "exit code 0" in result.output
    assert "TODO" not in result.output


def test_a_row_with_its_details() -> None:
    result = run("13501")
    assert result.exit_code == 0
    assert "reads token 31 through index 0" in result.output
    assert "broken: optimistic; repaired: settled" in result.output
    assert "twin: nothing is violated" in result.output
    assert "1 of 147 rows; recall is told over all rows" in result.output


def test_a_row_that_is_not_encoded_says_why() -> None:
    result = run("vllm-project/vllm#39186")
    assert result.exit_code == 0
    assert "transfer_terminates" in result.output


def test_a_family() -> None:
    told = json.loads(run("--family", "F1", "--json").output)
    assert {row["family"] for row in told["rows"]} == {"F1"}
    assert len(told["rows"]) == 7
    assert told["recall"] is None
    later = run("--family", "F3")
    assert later.exit_code == 0
    assert "family F3 is not taken up yet" in later.output


def test_for_machines() -> None:
    result = run("--json")
    told = json.loads(result.output)
    assert result.exit_code == told["exit_code"] == 0
    assert len(told["rows"]) == told["recall"]["all"]["rows"] == 147
    assert told["recall"]["taken_up"]["catchable"] == 26
    (row,) = [row for row in told["rows"] if row["id"] == "vllm-project/vllm#47728"]
    assert [scenario["property"] for scenario in row["scenarios"]] == ["read_resident", "rollback_resident"]
    assert row["scenarios"][0]["violation"]["release_cause"] == "window"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["99999"], "no row matches '99999'"),
        (["7728"], "no row matches '7728'"),
        (["--family", "F13"], "unknown family 'F13'; expected one of F1, "),
    ],
)
def test_rows_that_do_not_exist(arguments: list[str], expected: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert expected in result.output


def test_a_scenario_that_is_missed(copied: Path) -> None:
    spoil(copied, "ascend-13501.json", ('"read_resident"', '"counters_symmetric"'))
    result = run("13501")
    assert result.exit_code == 1
    assert "counters_symmetric is not violated; found read_resident" in result.output
    everything = run()
    assert everything.exit_code == 1
    assert "missed" in everything.output


def test_a_twin_that_is_not_clean(copied: Path) -> None:
    spoil(copied, "vllm-35755.json", ('"counters": [5, 1, 0]', '"counters": [5, 2, 0]'))
    result = run("35755")
    assert result.exit_code == 1
    assert "twin: line 7: after step 1" in result.output
    assert json.loads(run("35755", "--json").output)["rows"][0]["status"] == "twin not clean"


def test_a_wrong_file(copied: Path) -> None:
    spoil(copied, "ascend-13501.json", ('"optimistic"', '"optimist"'))
    result = run("13501")
    assert result.exit_code == 2
    assert "settled corpus: ascend-13501.json: scenario 'positions 158 and 159': broken: unknown discipline 'optimist'" in result.output
