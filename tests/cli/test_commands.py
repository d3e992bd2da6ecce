"""The command line: what is accepted, what is refused, exit codes, and output for machines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from settled.model.search.solver import Z3, Cvc5
from settled.proofs.catalogue import THEOREMS
from settled.proofs.cli.main import COMMANDS, cli

TRACES = Path(__file__).parents[1] / "data" / "traces"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Exit code" in result.output


def test_the_whole_has_help() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(command in result.output for command in COMMANDS)
    assert run("nonsense").exit_code == 2


def test_importing_the_command_line_imports_no_solver() -> None:
    code = "import sys, settled.proofs.cli.main; assert not {'z3', 'cvc5', 'rich', 'msgspec'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- prove -----------------------------------------------------------------------------------------------------------


def test_prove_prints_a_row_an_obligation() -> None:
    result = run("prove", "t5")
    assert result.exit_code == 0
    assert result.output.count("kept blocks are read") == 3  # twice proved, once killed
    assert "exit code 0" in result.output


def test_prove_for_machines() -> None:
    result = run("prove", "T2", "T6", "--json")
    told = json.loads(result.output)
    assert told["exit_code"] == result.exit_code == 0
    assert set(told["theorems"]) == {"T2", "T6"}
    rows = [row for row in told["rows"] if "obligation" in row and "claim" in row]
    assert len(rows) == sum(
        len({o.name.removeprefix("cover: ") for o in part.build(part.discipline)}) for key in ("T2", "T6") for part in THEOREMS[key].parts
    )
    assert {word for row in rows for word in row["claim"].values()} == {"proved"}


def test_exported_queries_are_decided_as_their_comments_say(tmp_path: Path) -> None:
    assert run("prove", "T5", "--export", tmp_path).exit_code == 0
    scripts = sorted(tmp_path.rglob("*.smt2"))
    assert len(scripts) == 4
    z3 = Z3()
    for script in scripts:
        text = script.read_text(encoding="utf-8")
        expected = text.split("expected: ")[1].split(":")[0]
        solver = z3._z3.Solver()
        solver.from_string(text)
        assert str(solver.check()) == expected


def test_an_unknown_theorem_is_refused() -> None:
    result = run("prove", "T99")
    assert result.exit_code == 2
    assert "unknown theorem 'T99'; expected one of T1" in result.output


def test_a_missing_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvc5", None)
    result = run("prove", "T5", "--solver", "cvc5")
    assert result.exit_code == 2
    assert "cvc5 is not installed: pip install 'settled[cvc5]'" in result.output
    assert Cvc5.name == "cvc5"


# ---- refute ----------------------------------------------------------------------------------------------------------


def test_a_refutation_is_written_as_a_trace_that_check_refuses(tmp_path: Path) -> None:
    assert run("refute", "ceil", "--traces", tmp_path).exit_code == 0
    result = run("check", tmp_path / "ceil-read_resident.ndjson")
    assert result.exit_code == 1
    assert "step 2 of request A reads" in result.output


def test_refute_for_machines() -> None:
    result = run("refute", "no-fence", "--replay", "--json")
    told = json.loads(result.output)
    assert result.exit_code == told["exit_code"] == 0
    (refutation,) = told["refutations"]
    assert refutation["length"] == 2
    assert refutation["replay"] == {"same_events": True, "agrees": True}
    assert refutation["events"][0]["event"] == "config"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a discipline, or --all"),
        (("ceil", "--all"), "give a discipline, or --all"),
        (("nonsense",), "unknown discipline 'nonsense'; expected one of settled"),
        (("ceil", "--property", "nonsense"), "unknown property 'nonsense'; expected one of read_resident"),
        (("ceil", "--property", "single_owner"), "ceil is not known to break single_owner"),
        (("settled",), "settled is not known to break anything"),
    ],
)
def test_what_refute_refuses(arguments: tuple[str, ...], message: str) -> None:
    result = run("refute", *arguments)
    assert result.exit_code == 2
    assert message in result.output


# ---- check, doctor ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", sorted(TRACES.glob("*.ndjson")), ids=lambda path: path.stem)
def test_a_picture_never_fails(trace: Path) -> None:
    for contract in ("settled", "stream_order"):
        result = run("check", trace, "--contract", contract, "--picture")
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert result.exit_code in (0, 1)
        assert ("needs" in result.output) == (result.exit_code == 1)


def test_a_picture_of_standard_input_is_refused() -> None:
    result = run("check", "-", "--picture")
    assert result.exit_code == 2


def test_doctor_says_what_is_here() -> None:
    result = run("doctor")
    assert result.exit_code == 0
    assert all(name in result.output for name in ("z3-solver", "cvc5", "torch", "hypothesis"))
