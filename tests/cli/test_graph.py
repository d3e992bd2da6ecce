"""`settled graph`: tables, words, DOT files and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from settled.proofs.cli.main import cli
from settled.proofs.graphs.scenarios import SCENARIOS


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["graph", *map(str, arguments)])


def test_the_right_ones_are_explored_by_default() -> None:
    result = run("--json")
    told = json.loads(result.output)
    assert result.exit_code == told["exit_code"] == 0
    assert set(told["scenarios"]) == {name for name, named in SCENARIOS.items() if named.is_right}
    assert all(each["is_complete"] and not each["stuck"] for each in told["scenarios"].values())


def test_a_wrong_one_is_shown_with_its_cycle(tmp_path: Path) -> None:
    result = run("cap-circle", "cap-stuck", "--dot", tmp_path)
    assert result.exit_code == 1
    assert "cap-circle: state 1 is in a circle" in result.output
    assert "no decision leads out of it" in result.output
    assert "a cycle: r0 waits for the pool (r0 lacks 2 blocks, 0 free); the pool waits for r0 (r0 holds 2 blocks)" in result.output
    assert "cap-stuck: state 0 is stuck" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}{kind}.dot" for name in ("cap-circle", "cap-stuck") for kind in ("", ".waits")
    }
    assert '"r0" -> "the pool" [label="lacks 2 blocks, 0 free"];' in (tmp_path / "cap-circle.waits.dot").read_text(encoding="utf-8")
    assert (tmp_path / "cap-circle.dot").read_text(encoding="utf-8").count(" -> ") == 4


def test_too_many_states_are_unknown() -> None:
    result = run("window", "--states-max", "5")
    assert result.exit_code == 3
    assert "5 and more" in result.output


def test_what_is_stuck_beats_what_is_unknown() -> None:
    assert run("window", "cap-stuck", "--states-max", "5").exit_code == 1


def test_scenarios_are_listed() -> None:
    result = run("--list")
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == len(SCENARIOS)
    assert "cap-circle: a cap without the tokens in flight" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("nonsense",), "unknown scenario 'nonsense'; expected one of window"), (("window", "--all"), "name scenarios, or give --all")],
)
def test_what_is_refused(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
