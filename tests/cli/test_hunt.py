"""`settled hunt`: findings, the commands that show them again, the corpus folder, and how a run ends."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from settled.model.monitor import Verdict
from settled.proofs.cli.main import cli
from settled.proofs.hunting import campaign
from settled.proofs.hunting.corpus import HuntCorpus
from settled.proofs.hunting.faults import HarnessError
from settled.proofs.hunting.finding import finding_of
from settled.proofs.hunting.plain import workload_as_dict, workload_of
from settled.proofs.hunting.running import run_workload
from settled.proofs.watching import Judgement, Watched
from settled.reference.engines.operations import Workload
from settled.reference.engines.reference_engine import ReferenceEngine
from settled.reference.engines.setup import SetupError

START = "from settled.proofs.cli.main import main; main()"
BROKEN = "reference==optimistic"
FEW = (BROKEN, "--mix", "windows", "--workloads", "30", "--contract", "stream_order")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["hunt", *map(str, arguments)])


def commands_in(output: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in re.findall(r"^ *(settled (?:hunt|check) .*)$", output, re.MULTILINE)]


def test_a_right_engine_holds_and_says_what_was_reached() -> None:
    result = run("reference", "--workloads", "32")
    assert result.exit_code == 0
    assert "32 workloads" in result.output
    assert "0 findings" in result.output
    for section in ("causes", "operations", "drafts rejected", "kinds of groups", "pipeline depth", "connector"):
        assert section in result.output


def test_every_finding_is_printed_with_its_picture_and_the_command_that_shows_it_again() -> None:
    result = run(*FEW)
    assert result.exit_code == 1
    told = f"{BROKEN} violates rollback_resident (released_before_schedule[window], sliding_window) in workload"
    assert result.output.count(told) == 1
    assert ": 3 scheduled steps\n" in result.output.partition(told)[2]
    assert re.search(r"^  add, .*schedule.* ×\d", result.output, re.MULTILINE)
    assert "needs" in result.output  # of the picture
    (command, *_) = commands_in(result.output)
    again = CliRunner().invoke(cli, command)
    assert again.exit_code == 1
    assert "violates rollback_resident" in again.output


def test_a_number_shows_exactly_the_same_finding_here_and_with_releases() -> None:
    told = json.loads(run(*FEW, "--json").output)["findings"]
    number = str(told[0]["number"])
    first = [finding for finding in told if finding["number"] == int(number)]
    one = ("--mix", "windows", "--number", number, "--contract", "stream_order", "--json")
    again = json.loads(run(BROKEN, *one).output)
    assert again["findings"][: len(first)] == first
    (release,) = json.loads(run("reference", "--releases", "optimistic", *one).output)["releases"]
    assert release["findings"] == [{name: value for name, value in each.items() if name != "kept"} for each in again["findings"]]


def test_the_corpus_keeps_a_trace_a_picture_and_a_workload_that_runs_again(tmp_path: Path) -> None:
    result = run(*FEW, "--corpus", tmp_path)
    (path, *_) = sorted(tmp_path.glob("*.json"))
    assert path.name.startswith("reference.optimistic-stream_order-rollback_resident")
    assert sorted(each.suffix for each in tmp_path.iterdir() if each.stem == path.stem) == [".json", ".ndjson", ".txt"]
    told = json.loads(path.read_text(encoding="utf-8"))
    assert finding_of({**told, "trace": []}).steps == 3
    assert "line" in path.with_suffix(".txt").read_text(encoding="utf-8")
    assert told["sentence"] in path.with_suffix(".txt").read_text(encoding="utf-8")
    for command in told["reproduce"]:
        assert shlex.split(command)[1:] in commands_in(result.output)
        again = CliRunner().invoke(cli, shlex.split(command)[1:])
        assert again.exit_code == 1
        assert "rollback_resident" in again.output
    repaired = run("reference", "--workload", path)
    assert repaired.exit_code == 0


def test_a_larger_finding_does_not_take_the_place_of_a_smaller(tmp_path: Path) -> None:
    run(*FEW, "--corpus", tmp_path)
    (path, *_) = sorted(tmp_path.glob("*.json"))
    told = json.loads(path.read_text(encoding="utf-8"))
    finding = finding_of({**told, "trace": []})
    assert HuntCorpus(tmp_path).write(finding, picture="", script=None, is_shrunk=False) is None
    assert json.loads(path.read_text(encoding="utf-8")) == told
    assert HuntCorpus(tmp_path).write(finding, picture="", script="print()\n", is_shrunk=True) == path
    assert path.with_suffix(".py").read_text(encoding="utf-8") == "print()\n"


def test_the_contract_can_be_forced() -> None:
    result = run(*FEW, "--contract", "settled")
    assert result.exit_code == 1
    assert "violates read_resident" in result.output


def test_json_is_one_object() -> None:
    result = run(*FEW, "--json")
    assert result.exit_code == 1
    told = json.loads(result.output)
    assert (told["mix"], told["seed"], told["contract"], told["exit_code"], told["workloads"]) == ("windows", 0, "stream_order", 1, 30)
    assert {finding["property"] for finding in told["findings"]} >= {"rollback_resident"}
    assert workload_of(told["findings"][0]["workload"]).operations
    assert told["coverage"]["kinds of groups"]
    assert run("reference", "--workloads", "0", "--json").exit_code == 3


def test_what_was_asked_for_and_never_checked_does_not_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = ("--workloads", "3", "--mix", "windows", "--property", "held_bounded")
    assert run("reference", *asked).exit_code == 0
    monkeypatch.setattr(Watched, "judgement", lambda self: Judgement("settled", {"held_bounded": Verdict.NOT_CHECKED}, False))
    result = run("reference", *asked, "--junit", tmp_path / "junit.xml")
    assert result.exit_code == 3
    assert "held_bounded was checked in no workload" in result.output
    assert 'skipped="1"' in (tmp_path / "junit.xml").read_text(encoding="utf-8")


def test_releases_have_a_row_for_what_no_trace_tells(tmp_path: Path) -> None:
    asked = ("--workloads", "3", "--mix", "windows", "--property", "engine_fault", "--junit", tmp_path / "junit.xml")
    result = run("reference", "--releases", "settled,optimistic", *asked)
    assert result.exit_code == 0
    assert len(re.findall(r"reference (?:settled|optimistic) .* 3 .* holds", result.output)) == 2
    assert (tmp_path / "junit.xml").read_text(encoding="utf-8").count('name="engine_fault"') == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sglang",), "unknown engine 'sglang'"),
        (("reference==nonsense",), "unknown discipline 'nonsense'"),
        (("reference", "--mix", "nonsense"), "'nonsense' is not one of"),
        (("reference", "--number", "1", "--workload", __file__), "give one of them"),
        (("reference", "--workload", __file__, "--junit", __file__), "would be written over the workload"),
        (("reference", "--workload", __file__), "not a finding of this version"),
        (("vllm==0.0.0",), "settled engines install vllm==0.0.0"),
    ],
)
def test_bad_input_is_named(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_fault_of_the_harness_is_loud_and_keeps_its_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: ReferenceEngine, choose: object) -> None:
        raise SetupError("planted")

    monkeypatch.setattr(ReferenceEngine, "process", refuse)
    result = run("reference", "--workloads", "3", "--corpus", tmp_path)
    assert result.exit_code == 2
    assert "planted" in result.output
    (command,) = [shlex.split(line.partition("is kept: ")[2])[1:] for line in result.output.splitlines() if "is kept" in line]
    assert CliRunner().invoke(cli, command).exit_code == 2
    (kept,) = tmp_path.glob("harness-failed-reference-0.json")
    workload = workload_of(json.loads(kept.read_text(encoding="utf-8"))["workload"])
    assert isinstance(workload, Workload)
    assert workload_as_dict(workload)["operations"]


def test_a_fault_of_the_harness_loses_nothing_that_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[object] = []

    def run_some(*arguments: Any, **keywords: Any) -> Any:
        if len(ran) == 20:
            raise HarnessError("planted")
        ran.append(arguments)
        return run_workload(*arguments, **keywords)

    monkeypatch.setattr(campaign, "run_workload", run_some)
    result = run(BROKEN, "--mix", "windows", "--contract", "settled", "--json", "--corpus", tmp_path)
    assert (result.exit_code, len(ran)) == (2, 20)
    told = json.loads(result.stdout)
    assert (told["workloads"], told["exit_code"]) == (20, 2)
    assert told["findings"]
    assert all(Path(finding["kept"]).exists() for finding in told["findings"])


def test_an_interrupt_keeps_what_was_found(tmp_path: Path) -> None:
    arguments = ["hunt", BROKEN, "--mix", "windows", "--contract", "settled", "--seconds", "600", "--corpus", str(tmp_path)]
    with subprocess.Popen([sys.executable, "-c", START, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()  # the first finding has been told
        while not list(tmp_path.glob("*.json")):
            assert started.poll() is None
            time.sleep(0.02)
        started.send_signal(signal.SIGINT)
        _, stderr = started.communicate(timeout=240)
    assert (started.returncode, stderr.splitlines()[0]) == (130, b"settled hunt: interrupted")
    assert not list(tmp_path.glob("*.part"))
    for path in tmp_path.glob("*.json"):
        trace = path.with_suffix(".ndjson")
        assert CliRunner().invoke(cli, ["check", str(trace), "--contract", "settled"]).exit_code == 1
