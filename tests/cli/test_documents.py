"""What the documents show is what the commands print, and no command in them is one that nothing runs."""

from __future__ import annotations

import re
from pathlib import Path

import documents
import pytest
from documents import (
    DOCUMENTS,
    ROOT,
    RUN_HERE,
    Block,
    Shown,
    all_blocks,
    blocks_of,
    is_current,
    is_slow,
    needs_engines,
    printed_by,
    renewed,
)

from settled.proofs.cli.main import COMMANDS, cli

REWRITE = "python tests/cli/documents.py --write brings the outputs up to date"
BLOCKS = all_blocks()
SETS = list(
    dict.fromkeys(block.commands for block in BLOCKS if not needs_engines(block.commands))
)  # each is run once, wherever it is shown
CASES = [pytest.param(each, id="; ".join(each), marks=[pytest.mark.slow] if is_slow(each) else []) for each in SETS]

# Commands that are shown without being run here, by how they begin: the file by which they are, and words of it.
ELSEWHERE = {
    ".venv/bin/settled ": (".ci/run", "^\\.venv/bin/settled "),
    "settled engines ": (".ci/run", "engines install"),
    "settled hunt vllm --releases ": (".ci/run", "hunt vllm --releases"),
    "SETTLED_TRACE=": ("tests/engines/vllm/test_live_recording.py", "SETTLED_TRACE"),
    "settled check /var/tmp/trace.core0.0.ndjson": ("tests/engines/vllm/test_live_recording.py", "core0.0.ndjson"),
    "python3 -m venv .venv && ": (".ci/run", "commands[1]"),
    "python docs/make_reference.py": ("tests/cli/test_reference.py", "make_reference.py"),
    "python tests/cli/documents.py --write": ("tests/cli/test_documents.py", "documents.rewrite"),
    "python tests/cli/transcripts.py --write": ("tests/cli/test_transcripts.py", "transcripts"),
    ".ci/run": (".ci/run", "set -euo"),
    "pytest -q --tb=short": ("tests/engines/test_pytest_plugin.py", "pytest"),
    "python -m pip install pytest PATH": (".ci/run", "pip wheel --no-deps"),
    "cd docs/pytest && pytest -q --tb=short": ("tests/engines/test_pytest_plugin.py", "pytest"),
    "pytest -m engines": (".ci/run", "-m engines tests/engines"),
    "pytest -m slow": (".ci/run", "pytest -q -m slow"),
    "pytest -n 0 tests/monitor/test_books.py": ("tests/monitor/test_books.py", "def test_"),
    "ruff format . && ruff check .": (".ci/run", "ruff check ."),
    "mypy -p settled": (".ci/run", "mypy -p settled"),
    "lint-imports": (".ci/run", "lint-imports"),
}


@pytest.mark.parametrize("commands", CASES)
def test_a_document_shows_what_is_printed(commands: tuple[str, ...]) -> None:
    printed = printed_by(commands)
    for block in BLOCKS:
        if block.commands == commands:
            for shown, text in zip(block.shown, printed, strict=True):
                assert is_current(shown, text), f"{block.where}: {shown.command}: {REWRITE}\n{text}"


def test_every_document_of_the_reader_shows_something() -> None:
    counts = {document.name: sum(block.document == document for block in BLOCKS) for document in DOCUMENTS}
    assert counts["README.md"] >= 5
    assert all(counts[name] for name in ("tutorial.md", "reading.md", "proofs.md", "engines.md", "CONTRIBUTING.md"))


# ---- commands that are not in console blocks --------------------------------------------------------------------------


def _other_commands(document: Path) -> list[str]:
    """Lines of other code blocks, fenced or indented, that begin as a command does."""
    text = re.sub(
        r"^```(console|python|text|yaml|ini|toml)\n.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    fenced = [line for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) for line in block.splitlines()]
    indented = re.findall(r"^    (\S.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return [line.split("  #")[0].strip() for line in (*fenced, *indented) if line.strip()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_a_command_that_is_not_run_here_is_run_elsewhere(document: Path) -> None:
    shown = [command for block in blocks_of(document) for command in block.commands if not command.startswith(RUN_HERE)]
    for line in (*_other_commands(document), *shown):
        found = {where for begin, where in ELSEWHERE.items() if line.startswith(begin)}
        assert len(found) == 1, line
        ((file, words),) = found
        assert words in (ROOT / file).read_text(encoding="utf-8"), line


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_a_command_in_a_sentence_exists_with_its_options(document: Path) -> None:
    for line in re.findall(r"`settled ([a-z][^`]*)`", document.read_text(encoding="utf-8")):
        name, *words = line.split()
        assert name in COMMANDS, line
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        if words and name == "engines":
            continue
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert {word for word in words if word.startswith("--")} <= known, line


# ---- links ------------------------------------------------------------------------------------------------------------


def _anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_a_link_leads_somewhere(document: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


# ---- rewriting -------------------------------------------------------------------------------------------------------


def test_gaps_stand_for_anything() -> None:
    assert is_current(Shown("", ("one ... three", "...", "five")), "one two three\nfour\nfive\n")
    assert is_current(Shown("", ()), "\n")
    assert not is_current(Shown("", ("one ... three",)), "one two\n")
    assert not is_current(Shown("", ("a.c",)), "abc\n")


def test_what_is_stale_is_renewed_and_what_was_left_out_stays_out() -> None:
    shown = ("solvers: ...", "...", "T2 proved", "...", "25 proved; ... s")
    printed = "solvers: z3\n\nT1 proved\nT2 proved at last\nmore\n26 proved; 3 s\n"
    assert renewed(shown, printed)[0] == "solvers: ..."
    assert renewed(shown, printed)[-1] == "26 proved; 3 s"
    assert documents.GAP in renewed(shown, printed)
    assert is_current(Shown("", tuple(renewed(shown, printed))), printed)
    assert renewed(("a", "b"), "a\nc\n") == ["a", "c"]


def test_a_document_is_rewritten_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    monkeypatch.setattr(documents, "printed_by", lambda commands: tuple(f"{command} now\n" for command in commands))
    page = tmp_path / "page.md"
    page.write_text("before\n```console\n$ ls one\nls one now\n$ ls two\nold\n```\nafter\n```console\n$ ls three\nolder\n```\n")
    assert documents.rewrite(page) == ["page.md:3: ls two", "page.md:10: ls three"]
    assert page.read_text(encoding="utf-8") == (
        "before\n```console\n$ ls one\nls one now\n$ ls two\nls two now\n```\nafter\n```console\n$ ls three\nls three now\n```\n"
    )
    assert documents.rewrite(page) == []


def test_blocks_are_found_where_they_stand() -> None:
    (first, *_) = [block for block in BLOCKS if block.document == ROOT / "README.md"]
    assert isinstance(first, Block)
    assert (ROOT / "README.md").read_text(encoding="utf-8")[first.start :].startswith(f"$ {first.commands[0]}\n")
