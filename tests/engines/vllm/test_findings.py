"""What was found in a release shows again on that release: to the hunt, and to the committed script, which is the one that it writes."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from driving import FACTORY
from script_runs import run_script

from settled.proofs.hunting.corpus import workload_in
from settled.proofs.hunting.finding import finding_of
from settled.proofs.hunting.running import run_workload
from settled.proofs.hunting.script import script_for
from settled.proofs.watching import key_of

FOLDER = Path(__file__).parents[2] / "data" / "findings" / "vllm"
FINDINGS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
# vLLM fails, and the script with it.
RAISED = [name for name, raw in FINDINGS.items() if raw["property"] == "engine_fault" and name != "drafts-without-token"]
OF_RELEASE = [name for name, raw in FINDINGS.items() if raw["engine"].replace("==", " ") == FACTORY.name]


def test_there_are_findings() -> None:
    assert FINDINGS


@pytest.mark.parametrize("name", OF_RELEASE)
def test_a_finding_shows_again(name: str) -> None:
    raw = FINDINGS[name]
    run = run_workload(FACTORY, workload_in(raw))
    assert key_of(raw) in run.found, sorted(run.found)


@pytest.mark.parametrize("name", OF_RELEASE)
def test_its_script_shows_it(name: str) -> None:
    """Exit code 1, which is what a text in sys.exit makes, and so does what vLLM itself raises."""
    printed = run_script((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    if name in RAISED:
        assert isinstance(printed.ending, Exception)
        frame = traceback.extract_tb(printed.ending.__traceback__)[-1]
        assert FINDINGS[name]["cause"] == f"{type(printed.ending).__name__} in {Path(frame.filename).name}:{frame.name}"
        return
    assert printed.ending == "The fault is there.", printed
    assert "schedule step 0" in printed.text


@pytest.mark.parametrize("name", FINDINGS)
def test_its_script_is_what_a_hunt_writes(name: str) -> None:
    assert (FOLDER / f"{name}.py").read_text(encoding="utf-8") == script_for(finding_of(FINDINGS[name]))


def test_a_script_runs_in_a_process_of_its_own() -> None:
    """Nothing that this process has put in place helps it. One with a connector, where there is one: start-up asks more of it."""
    if not OF_RELEASE:
        pytest.skip("no finding of this release is kept")
    name = max([each for each in OF_RELEASE if each not in RAISED], key=lambda each: "connector" in FINDINGS[each]["workload"]["setup"])
    done = subprocess.run([sys.executable, str(FOLDER / f"{name}.py")], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.endswith("The fault is there.\n")
