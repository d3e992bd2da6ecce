"""The table of releases has every capability that is asked for by name, and no other: its user is found in the source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from settled.reference.engines.vllm.releases import DIFFERENCES

ROOT = Path(__file__).parents[2]
_ASKED = re.compile(r"""\.has\(([^)]*)\)""")
_NAME = re.compile(r'"(\w+)"')


def _asked_for() -> Iterator[str]:
    for package in ("reference", "proofs"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for arguments in _ASKED.findall(path.read_text(encoding="utf-8")):
                yield from _NAME.findall(arguments)


def test_what_is_asked_for_is_in_the_table_and_nothing_else() -> None:
    """A name that is missing ends a hunt at its first finding; a row that nobody asks for says nothing."""
    assert set(_asked_for()) == set(DIFFERENCES)
