"""The tour shows the proof, both faults executed, and the releases told apart; and it notices when a stop goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from settled.proofs.catalogue import THEOREMS
from settled.proofs.cli.main import cli
from settled.proofs.report import touring

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_tour_shows_all_stops() -> None:
    result = CliRunner().invoke(cli, ["tour"])
    assert result.exit_code == 0, result.output
    assert "T3 " in result.output
    assert "proved" in result.output
    assert result.output.count("replay on the reference: same events") == 2
    assert "vllm 0.24.0, contract stream_order: read_resident holds, rollback_resident violated" in result.output
    assert "vllm 0.26.0, contract stream_order: read_resident holds, rollback_resident holds" in result.output


def test_releases_that_are_not_told_apart_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touring, "AFFECTED", touring.FIXED)
    monkeypatch.setattr(touring, "THEOREMS", {"T5": THEOREMS["T5"]})  # the proofs are another stop
    result = CliRunner().invoke(cli, ["tour"])
    assert result.exit_code == 3


@pytest.mark.parametrize("name", [touring.AFFECTED, touring.FIXED])
def test_the_tour_judges_the_recorded_traces_unchanged(name: str) -> None:
    assert (ROOT / "proofs" / "data" / name).read_bytes() == (ROOT / "tests" / "data" / "traces" / name).read_bytes()
