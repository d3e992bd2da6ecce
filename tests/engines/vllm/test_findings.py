"""What was found in a release shows again on that release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from driving import FACTORY

from settled.proofs.hunting.corpus import workload_in
from settled.proofs.hunting.running import run_workload
from settled.proofs.watching import key_of

FOLDER = Path(__file__).parents[2] / "data" / "findings" / "vllm"
FINDINGS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
OF_RELEASE = [name for name, raw in FINDINGS.items() if raw["engine"].replace("==", " ") == FACTORY.name]


def test_there_are_findings() -> None:
    assert FINDINGS


@pytest.mark.parametrize("name", OF_RELEASE)
def test_a_finding_shows_again(name: str) -> None:
    raw = FINDINGS[name]
    run = run_workload(FACTORY, workload_in(raw))
    assert key_of(raw) in run.found, sorted(run.found)
