"""What the README shows is what the commands print: every `$ settled ...` of its console blocks is run."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from settled.proofs.cli.main import cli

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```console\n\$ settled (?P<arguments>[^\n]*)\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = [(match["arguments"], match["output"]) for match in BLOCK.finditer((ROOT / "README.md").read_text(encoding="utf-8"))]


SLOW = {"weigh"}
CASES = [pytest.param(*shown, id=shown[0], marks=[pytest.mark.slow] if shown[0] in SLOW else []) for shown in SHOWN]


@pytest.mark.parametrize(("arguments", "expected"), CASES)
def test_the_readme_shows_what_is_printed(arguments: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`...` stands for anything, white space at line ends does not count."""
    monkeypatch.chdir(ROOT)
    printed = CliRunner().invoke(cli, shlex.split(arguments)).output
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(expected, printed, flags), printed


def test_the_readme_shows_something() -> None:
    assert len(SHOWN) >= 5
