"""Every key that a committed hunt showed has a cause: a kept finding, or what is told in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from settled.proofs.watching import Key, key_of

DATA = Path(__file__).parents[1] / "data"
CAUSES = json.loads((DATA / "hunts" / "causes.json").read_text(encoding="utf-8"))
HUNTS = [path.name for path in sorted((DATA / "hunts").glob("*.json")) if path.name != "causes.json"]
FINDINGS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (DATA / "findings" / "vllm").glob("*.json")}


def keys(rows: list[list[str]]) -> set[Key]:
    return {Key(*row) for row in rows}


def explained() -> set[Key]:
    return set().union(*map(keys, CAUSES["findings"].values()), *[keys(other["keys"]) for other in CAUSES["others"].values()])


def vllm_runs(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (run for run in raw.get("releases", [raw]) if run.get("engine", "").startswith("vllm"))


@pytest.mark.parametrize("name", HUNTS)
def test_every_key_of_a_hunt_has_a_cause(name: str) -> None:
    shown = [each for run in vllm_runs(json.loads((DATA / "hunts" / name).read_text(encoding="utf-8"))) for each in run["showing"]]
    assert not {key_of(each) for each in shown} - explained()


def test_a_cause_is_a_kept_finding_that_shows_one_of_its_keys() -> None:
    assert CAUSES["findings"].keys() <= FINDINGS.keys()
    for name, rows in CAUSES["findings"].items():
        assert any(key.property == FINDINGS[name]["property"] for key in keys(rows)), name
    assert all(other["why"] and other["keys"] for other in CAUSES["others"].values())


def test_findings_have_a_row_each_in_their_table() -> None:
    """Of causes, and of releases."""
    text = (DATA / "findings" / "README.md").read_text(encoding="utf-8")
    for name in FINDINGS:
        assert text.count(f"\n| `{name}` |") == 2, name
