"""What every command prints, and what it says to common mistakes, is what the kept transcripts show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from situations import CASES, MISTAKES, Case
from transcripts import FOLDER, path_of, transcript

from settled.proofs.cli.main import COMMANDS

REWRITE = "python tests/cli/transcripts.py --write writes them anew"


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.is_slow else []) for case in CASES])
def test_a_command_prints_what_its_transcript_shows(case: Case, tmp_path: Path) -> None:
    assert transcript(case, tmp_path) == path_of(case).read_text(encoding="utf-8"), REWRITE


def test_there_is_a_transcript_for_each_case_and_for_nothing_else() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(path_of(case).name for case in CASES), REWRITE


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_help_and_a_run(command: str) -> None:
    lines = [case.line for case in CASES if case.name not in {each.name for each in MISTAKES}]
    assert f"settled {command} --help" in lines
    assert any(line.split()[:2] == ["settled", command] and "--help" not in line for line in lines)


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case.name)
def test_a_mistake_is_one_line_a_hint_and_no_verdict(case: Case) -> None:
    printed, _, ending = path_of(case).read_text(encoding="utf-8").partition("--- stderr\n")
    told, _, code = ending.partition("--- exit code ")
    line, hint = told.splitlines()
    assert re.match(r"settled( \w+)*: \S", line)
    assert hint.startswith("  hint: ")
    assert int(code) == case.code
    assert case.code in (2, 3, 130)
    assert "Traceback" not in printed + told
