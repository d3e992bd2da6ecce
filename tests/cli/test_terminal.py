"""Terminals and pipes: no colours and no progress where nobody looks on, nothing cut off where there is little room."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from unicodedata import east_asian_width

import pytest
from situations import CASES, TRACES, VIOLATED, Case
from transcripts import path_of

from settled.proofs.report.console import COLUMNS_MIN, PIPE_COLUMNS

START = "from settled.proofs.cli.main import main; main()"
CHECK, GRAPH = ("check", str(TRACES / VIOLATED)), ("graph", "window")
HUNT = ("hunt", "reference", "--mix", "windows", "--workloads", "3")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*\b3[0-7]m")
TABLE = "┏┃┡│└┗"


def environment(**variables: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")}
    return {**ours, "TERM": "xterm-256color", "PYTHONUTF8": "1", **variables}


def piped(*arguments: str, **variables: str) -> str:
    command = [sys.executable, "-c", START, *arguments]
    return subprocess.run(command, env=environment(**variables), capture_output=True, check=False).stdout.decode()


def on_a_terminal(*arguments: str, **variables: str) -> str:
    """What reaches a terminal, its control sequences too."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", START, *arguments]
    told = b""
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**variables)):
        os.close(theirs)
        with suppress(OSError):  # the other side is closed
            while part := os.read(ours, 1 << 16):
                told += part
    os.close(ours)
    return told.decode().replace("\r\n", "\n")


def columns(line: str) -> int:
    return sum(2 if east_asian_width(sign) in "WF" else 1 for sign in line)


# ---- pipes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_in_a_pipe_there_is_text_alone(case: Case) -> None:
    """Of every transcript, which are what pipes get."""
    text = path_of(case).read_text(encoding="utf-8")
    assert text.replace("\n", "").isprintable()
    for line in text.splitlines():
        assert line == line.rstrip()
        assert not line.startswith(tuple(TABLE)) or columns(line) <= PIPE_COLUMNS


def test_force_color_brings_colours_and_nothing_else() -> None:
    plain, coloured = piped(*CHECK), piped(*CHECK, FORCE_COLOR="1")
    assert not CONTROL.search(plain)
    assert COLOUR.search(coloured)
    assert CONTROL.sub("", coloured).split() == plain.split()
    assert not re.search(r"\x1b\[[^m]*[A-HJKhl]|\r", piped(*HUNT, FORCE_COLOR="1"))  # nothing moves or hides the cursor


def test_no_color_wins() -> None:
    assert not COLOUR.search(piped(*CHECK, FORCE_COLOR="1", NO_COLOR="1"))


# ---- terminals -------------------------------------------------------------------------------------------------------


def test_a_terminal_gets_colours_and_progress() -> None:
    told = on_a_terminal(*HUNT)
    assert COLOUR.search(told)
    assert "\x1b[?25l" in told  # the line of progress hides the cursor
    assert told.rindex("\x1b[?25h") > told.rindex("\x1b[?25l")  # and shows it again


def test_no_color_leaves_a_terminal_its_progress() -> None:
    told = on_a_terminal(*HUNT, NO_COLOR="1")
    assert not COLOUR.search(told)
    assert "\x1b[?25l" in told


def test_a_dumb_terminal_gets_text_alone() -> None:
    assert not CONTROL.search(on_a_terminal(*HUNT, TERM="dumb"))


@pytest.mark.parametrize("arguments", [CHECK, GRAPH, HUNT], ids=lambda arguments: arguments[0])
def test_a_narrow_terminal_breaks_words_and_loses_none(arguments: tuple[str, ...]) -> None:
    told = CONTROL.sub("", on_a_terminal(*arguments, COLUMNS="60", LINES="24"))
    rows = [line for line in told.splitlines() if line.startswith(tuple(TABLE))]
    assert rows
    assert {columns(row) for row in rows} == {60}
    assert "…" not in "".join(rows)


def test_a_terminal_of_a_few_columns_has_its_lines_broken_and_not_its_words() -> None:
    told = CONTROL.sub("", on_a_terminal(*CHECK, COLUMNS="12", LINES="24"))
    assert {columns(line) for line in told.splitlines() if line.startswith(tuple(TABLE))} == {COLUMNS_MIN}


@pytest.mark.slow
def test_a_narrow_terminal_shows_the_table_of_diff_whole() -> None:
    told = on_a_terminal("diff", "settled/loads", "--workloads", "1", "--tags-only", COLUMNS="60", NO_COLOR="1")
    table = CONTROL.sub("", told).partition("early, race")[0].split("\r")[-1]
    assert max(map(columns, table.splitlines())) <= 60
    assert "…" not in table
    assert "".join(line[:8].strip() for line in table.splitlines()).endswith("settled/loads")
