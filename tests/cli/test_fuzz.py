"""`settled fuzz`: findings, the commands that show them again, the corpus folder, and how a run ends."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from settled.model.disciplines import UNDRAINED
from settled.model.properties import Contract
from settled.proofs.cli.main import cli
from settled.proofs.fuzzing.shrinking import Shrinker
from settled.proofs.report import fuzzing
from settled.proofs.report.summary import SummaryFiles

START = "from settled.proofs.cli.main import main; main()"
FEW = ("--discipline", "undrained", "--runs", "5")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["fuzz", *map(str, arguments)])


def commands_in(output: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in re.findall(r"^ *(settled fuzz .*--case .*)$", output, re.MULTILINE)]


def test_a_right_discipline_holds_and_says_what_was_reached() -> None:
    result = run("--runs", "15")
    assert result.exit_code == 0
    assert "settled: 15 runs" in result.output
    assert "0 new findings" in result.output
    for section in ("causes", "decisions", "drafts rejected", "free blocks after a step", "pipeline depth", "pairs of events"):
        assert section in result.output


def test_every_finding_is_printed_with_the_command_that_shows_it_again() -> None:
    result = run(*FEW)
    assert result.exit_code == 1
    assert "undrained violates counters_symmetric" in result.output
    commands = commands_in(result.output)
    assert commands
    for command in commands:
        again = CliRunner().invoke(cli, command)
        assert again.exit_code == 1
        assert "counters_symmetric" in again.output


def test_a_case_of_the_right_discipline_holds() -> None:
    (command, *_) = commands_in(run(*FEW).output)
    case = command[command.index("--case") + 1]
    assert run("--case", case).exit_code == 0
    told = json.loads(run("--case", case, "--discipline", "undrained", "--json").output)
    assert told["exit_code"] == 1
    assert told["found"][0]["property"] == "counters_symmetric"


def test_the_corpus_is_run_first_and_nothing_is_found_twice(tmp_path: Path) -> None:
    first = run(*FEW, "--corpus", tmp_path)
    assert first.exit_code == 1
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert any(name.startswith("undrained-settled-counters_symmetric") and name.endswith(".ndjson") for name in written)
    again = run(*FEW, "--corpus", tmp_path)
    assert again.exit_code == 1
    assert "still violated" in again.output
    assert "0 new findings" in again.output
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == written
    assert run("--runs", "0", "--discipline", "undrained", "--corpus", tmp_path).exit_code == 1
    assert run("--runs", "1", "--corpus", tmp_path).exit_code == 0  # the findings are another discipline's


def test_a_kept_trace_is_judged_by_check(tmp_path: Path) -> None:
    run(*FEW, "--corpus", tmp_path)
    for trace in tmp_path.glob("*.ndjson"):
        assert CliRunner().invoke(cli, ["check", str(trace), "--contract", "settled"]).exit_code == 1


def test_a_finding_that_is_repaired_is_said_to_be(tmp_path: Path) -> None:
    run(*FEW, "--corpus", tmp_path)
    for path in tmp_path.glob("*.json"):
        path.write_text(path.read_text(encoding="utf-8").replace('"undrained"', '"settled"'), encoding="utf-8")
    result = run("--runs", "1", "--corpus", tmp_path)
    assert result.exit_code == 0
    assert "no longer violated" in result.output


def test_the_same_seed_tells_the_same_to_machines() -> None:
    one, two = (json.loads(run(*FEW, "--json").output) for _ in range(2))
    assert one == two
    (campaign,) = one["campaigns"].values()
    assert campaign["runs"] == 5
    assert campaign["findings"]
    assert campaign["coverage"]["decisions"]["schedule"] > 0


def test_nothing_that_was_run_is_unknown() -> None:
    assert run("--runs", "0").exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--discipline", "nonsense"), "unknown discipline 'nonsense'; expected one of settled"),
        (("--case", "xyz"), "--case 'xyz': expected hexadecimal digits"),
        (("--case", "00", "--discipline", "ceil", "--discipline", "vllm"), "--case runs under one discipline"),
        (("--jobs", "0"), "0 is not in the range"),
        (("--runs", "-1"), "-1 is not in the range"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


# ---- how it ends -----------------------------------------------------------------------------------------------------


def test_a_damaged_corpus_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]", encoding="utf-8")
    result = run("--runs", "1", "--corpus", tmp_path)
    assert result.exit_code == 2
    assert "x.json: not a finding of this version" in result.output


def process(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", START, "fuzz", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_folder_that_cannot_be_made_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with process("--runs", "1", "--corpus", str(tmp_path / "file" / "below")) as started:
        stdout, stderr = started.communicate(timeout=240)
    assert started.returncode == 2
    assert stdout == b""
    assert stderr.decode().startswith(f"settled fuzz: {tmp_path}/file/below: Not a directory\n  hint: ")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_folder_that_cannot_be_written_is_bad_input() -> None:
    with process("--runs", "1", "--corpus", "/proc/self") as started:
        stdout, stderr = started.communicate(timeout=240)
    assert started.returncode == 2
    assert stdout == b""
    assert re.fullmatch(rb"settled fuzz: /proc/self: [A-Z][a-z ]+\n  hint: .+\n", stderr)


def test_an_interrupt_keeps_what_was_found(tmp_path: Path) -> None:
    with process("--discipline", "undrained", "--seconds", "600", "--corpus", str(tmp_path)) as started:
        assert started.stdout is not None
        started.stdout.readline()  # the first finding has been told
        started.stdout.readline()  # and written and shrunk
        started.send_signal(signal.SIGINT)
        _, stderr = started.communicate(timeout=240)
    assert (started.returncode, stderr.splitlines()[0]) == (130, b"settled fuzz: interrupted")
    assert not list(tmp_path.glob("*.part"))
    kept = list(tmp_path.glob("*.json"))
    assert kept
    for path in kept:
        assert CliRunner().invoke(cli, ["check", str(path.with_suffix(".ndjson")), "--contract", "settled"]).exit_code == 1


def test_an_interrupt_tells_machines_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: Shrinker) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Shrinker, "run", interrupted)
    summaries = SummaryFiles(tmp_path / "junit.xml", tmp_path / "summary.md")
    with pytest.raises(KeyboardInterrupt):
        fuzzing.run([UNDRAINED], Contract.SETTLED, runs=5, seconds=None, seed=0, folder=None, jobs=1, as_json=True, summaries=summaries)
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == 130
    assert told["campaigns"]["undrained"]["findings"]
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert root.attrib["errors"] == "1"
    assert int(root.attrib["failures"]) >= 1
    assert "interrupted" in (tmp_path / "summary.md").read_text(encoding="utf-8")
