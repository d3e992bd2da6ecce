"""The command line: what is accepted, what is refused, exit codes, and output for machines."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from settled.model.search.solver import Z3, Cvc5
from settled.proofs import processes
from settled.proofs.catalogue import THEOREMS
from settled.proofs.cli.main import COMMANDS, cli
from settled.proofs.costs import cost_of
from settled.proofs.masks import CASES, FREEING
from settled.proofs.report import weighing

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
    proved, killed = len(CASES) + 1, len(FREEING) + 1  # the attention kinds, and mamba align
    assert result.output.count("kept blocks are read") == proved + killed
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


def test_a_theorem_named_twice_is_decided_once() -> None:
    once, twice = (json.loads(run("prove", *names, "--json").output) for names in (("T5",), ("T5", "t5")))
    assert [row["theorem"] for row in twice["rows"]] == [row["theorem"] for row in once["rows"]]


@pytest.mark.parametrize("key", ["T5", pytest.param("T8", marks=pytest.mark.slow), pytest.param("found", marks=pytest.mark.slow)])
def test_exported_queries_are_what_was_decided_and_are_decided_as_their_comments_say(key: str, tmp_path: Path) -> None:
    result = run("prove", key, "--export", tmp_path, "--json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)["rows"]
    scripts = sorted(tmp_path.rglob("*.smt2"))
    decided = sum(len(row.get("claim", ())) + len(row.get("cover", ())) + ("killer" in row) for row in rows)
    assert len(scripts) == decided > 10
    z3 = Z3()
    for script in scripts:
        text = script.read_text(encoding="utf-8")
        expected = text.split("expected: ")[1].split(":")[0]
        solver = z3._z3.Solver()
        solver.from_string(text)
        assert str(solver.check()) == expected, script


def test_killers_are_exported_as_refuted(tmp_path: Path) -> None:
    assert run("prove", "T5", "--export", tmp_path).exit_code == 0
    killers = list(tmp_path.glob("T5/killed-by-*/**/*.smt2"))
    assert len(killers) == len(THEOREMS["T5"].killers) > 0
    assert {path.relative_to(tmp_path).parts[1] for path in killers} == {"killed-by-vllm"}
    assert all("; expected: sat: refuted under vllm\n" in path.read_text(encoding="utf-8") for path in killers)


def test_an_unknown_theorem_is_refused() -> None:
    result = run("prove", "T99")
    assert result.exit_code == 2
    assert "unknown theorem 'T99'; expected one of T1" in result.output


def test_a_missing_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvc5", None)
    result = run("prove", "T5", "--solver", "cvc5")
    assert result.exit_code == 2
    assert result.stderr == "settled prove: cvc5 is not installed\n  hint: pip install 'settled[cvc5]'\n"
    assert Cvc5.name == "cvc5"


# ---- refute ----------------------------------------------------------------------------------------------------------


def test_a_refutation_is_written_as_a_trace_that_check_refuses(tmp_path: Path) -> None:
    assert run("refute", "ceil", "--traces", tmp_path).exit_code == 0
    result = run("check", tmp_path / "ceil-read_resident.ndjson")
    assert result.exit_code == 1
    assert "step 2 of request A reads" in result.output


def test_check_tells_the_broken_run_from_the_right_one(tmp_path: Path) -> None:
    assert run("refute", "Optimistic", "--replay", "--traces", tmp_path).exit_code == 0
    written = {path.name: run("check", path).exit_code for path in tmp_path.iterdir()}
    assert written == {
        "optimistic-read_resident.ndjson": 1,
        "optimistic-read_resident.right.ndjson": 0,
        "optimistic-rollback_resident.ndjson": 1,
        "optimistic-rollback_resident.right.ndjson": 0,
        "optimistic-write_owned.ndjson": 1,
        "optimistic-write_owned.right.ndjson": 0,
    }


def test_refute_for_machines() -> None:
    result = run("refute", "no-fence", "--replay", "--json")
    told = json.loads(result.output)
    assert result.exit_code == told["exit_code"] == 0
    refutation, written = told["refutations"]
    assert (refutation["property"], refutation["contract"], refutation["length"]) == ("read_resident", "settled", 2)
    assert (written["property"], written["length"]) == ("write_owned", 3)
    assert refutation["replay"] == {"same_events": True, "agrees": True}
    assert refutation["events"][0]["event"] == "config"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a discipline, or --all"),
        (("ceil", "--all"), "give a discipline, or --all"),
        (("nonsense",), "unknown discipline 'nonsense'; expected one of settled"),
        (("ceil", "--property", "nonsense"), "'nonsense' is not one of 'read_resident'"),
        (("ceil", "--property", "single_owner"), "ceil is not known to break single_owner; it breaks read_resident"),
        (("--all", "--property", "single_owner"), "no discipline is known to break single_owner; those that are broken: read_resident"),
        (("no-fence", "--contract", "event"), "no-fence is not known to break any property under event; it breaks nothing"),
        (("settled",), "settled is a right discipline: nothing is known to break it"),
        (("VLLM", "--property", "read_resident"), "vllm is a right discipline: nothing is known to break it"),
    ],
)
def test_what_refute_refuses(arguments: tuple[str, ...], message: str) -> None:
    result = run("refute", *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_refute_under_another_contract() -> None:
    told = json.loads(run("refute", "optimistic", "--contract", "stream_order", "--property", "write_owned", "--json").output)
    (refutation,) = told["refutations"]
    assert (refutation["contract"], refutation["length"]) == ("stream_order", 5)
    assert refutation["violation"]["cause"].startswith("released_before_schedule")


def test_a_discipline_that_keeps_requests_from_finishing_is_run() -> None:
    result = run("refute", "preempt-fenced")
    assert result.exit_code == 0
    assert "have not finished after 200 steps" in result.output
    assert "which returned 0 blocks at once" in result.output
    told = json.loads(run("refute", "preempt-fenced", "--json").output)
    assert (told["property"], told["broken"]["steps"], told["right"]["steps"]) == ("admission_progress", None, 7)


# ---- weigh -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_weighing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of one run instead of 24, and all in this process. `test_documents.py` weighs as the command does."""
    monkeypatch.setattr(weighing, "cost_of", partial(cost_of, seeds=(0,)))
    monkeypatch.setattr(processes.os, "cpu_count", lambda: 1)


@pytest.mark.slow
def test_weigh_says_plainly_what_a_fence_repairs(small_weighing: None) -> None:
    result = run("weigh", "Pool-Fence", "settled")
    assert result.exit_code == 0
    rows = {line.split()[0]: line.split()[1:] for line in result.output.splitlines() if line.startswith(("pool-fence  ", "settled  "))}
    assert rows["pool-fence"]
    assert "pool-fence  fault 1 does not occur, proved by A1;      fault 2 occurs, shortest trace 5 events" in result.output
    assert "settled     fault 1 does not occur, proved by T3;      fault 2 does not occur, proved by T4" in result.output


def test_weigh_for_machines(small_weighing: None) -> None:
    told = json.loads(run("weigh", "cap-without-in-flight", "--json").output)
    (weighed,) = told["disciplines"]
    cells = {(cell["column"], cell["contract"]): cell for cell in weighed["cells"]}
    assert (cells["held_bounded", None]["word"], cells["held_bounded", None]["length"]) == ("refuted", 1)
    assert (cells["read_resident", "event"]["word"], cells["read_resident", "event"]["by"]) == ("proved", "T3")
    assert weighed["steps_to_finish"]["smallest_pool"] is None
    assert weighed["cost"]["steps"] > 0
    assert told["exit_code"] == 0


def test_weigh_refuses_what_it_does_not_know() -> None:
    result = run("weigh", "nonsense")
    assert result.exit_code == 2
    assert "unknown discipline 'nonsense'; expected one of settled" in result.output


# ---- check -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", sorted(TRACES.glob("*.ndjson")), ids=lambda path: path.stem)
def test_a_picture_never_fails(trace: Path) -> None:
    for contract in ("settled", "stream_order"):
        result = run("check", trace, "--contract", contract, "--picture")
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert result.exit_code in (0, 1)
        assert ("needs" in result.output) == (result.exit_code == 1)


@pytest.mark.parametrize("arguments", [("-", "--picture"), (TRACES / "v0.24.0-abort.ndjson", "--picture", "--json")])
def test_pictures_that_are_refused(arguments: tuple[str | Path, ...]) -> None:
    result = run("check", *arguments)
    assert result.exit_code == 2
    assert "Usage: " in result.output
