"""docs/reference.md is what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from settled.model.disciplines import DISCIPLINES
from settled.model.events import EVENT_BY_NAME
from settled.model.properties import Property
from settled.model.specs import SPEC_BY_KIND
from settled.proofs.cli.main import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "make_reference.py"))


def test_the_reference_is_current(made: dict[str, Any]) -> None:
    assert made["reference"]() == (DOCS / "reference.md").read_text(encoding="utf-8"), "python docs/make_reference.py writes it anew"


def test_everything_is_in_it(made: dict[str, Any]) -> None:
    text = made["reference"]()
    for name in (*Property, *DISCIPLINES, *EVENT_BY_NAME, *SPEC_BY_KIND):
        assert f"`{name}`" in text
    for command in COMMANDS:
        assert f"### `settled {command}" in text
    assert "--contract" in text
    assert "| 3 | unknown |" in text


def test_every_choice_and_every_value_is_explained(made: dict[str, Any]) -> None:
    lines = [line for line in made["_disciplines"]() if line.startswith("| `")]
    assert len(lines) > len(DISCIPLINES)
    assert all(cell.strip() for line in lines for cell in line.strip("|").split(" | "))
