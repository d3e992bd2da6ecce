"""What the documents show: console blocks, run as they stand, and the text that they should hold.

`python tests/cli/documents.py --write [NAME.md]...` brings the output of every block up to date that this environment can run. A block
whose first line is ```console shows commands after `$ `, each followed by what it prints. `...` stands for anything, white space at line
ends does not count. The commands of one block run one after another in one folder, in which `docs` and `tests` are those of the checkout;
documents that show the same block share its run.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from click.testing import CliRunner

from settled.proofs.cli.main import cli

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
GAP = "..."
_BLOCK = re.compile(r"^```console\n(?P<text>\$ .*?)^```$", re.MULTILINE | re.DOTALL)

# By how a command begins. The others run in the fast suite.
SLOW = ("settled weigh", "settled prove T3 T4", "settled diff settled/loads optimistic", "settled refute --all")
ENGINES = ("settled hunt vllm", "settled hunt tokenspeed")
RUN_HERE = ("settled ", "ls ", "cat ")  # blocks of others are shown by tests of their own
ALONE = ("settled prove", "settled refute")  # in a process of its own: what a solver finds may depend on what it was asked before
_SETTLED = "from settled.proofs.cli.main import main; main()"


class Shown(NamedTuple):
    """A command of a block and the output below it, line by line."""

    command: str
    lines: tuple[str, ...]


class Block(NamedTuple):
    """A console block, from `start` to `end` in the text of its document."""

    document: Path
    start: int
    end: int
    shown: tuple[Shown, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(each.command for each in self.shown)

    @property
    def where(self) -> str:
        line = self.document.read_text(encoding="utf-8").count("\n", 0, self.start) + 1
        return f"{self.document.relative_to(ROOT)}:{line}"


def blocks_of(document: Path) -> Iterator[Block]:
    for match in _BLOCK.finditer(document.read_text(encoding="utf-8")):
        shown: list[Shown] = []
        for line in match["text"].splitlines():
            if line.startswith("$ "):
                shown.append(Shown(line[2:], ()))
            else:
                shown[-1] = Shown(shown[-1].command, (*shown[-1].lines, line))
        yield Block(document, match.start("text"), match.end("text"), tuple(shown))


def all_blocks() -> list[Block]:
    """Those that are run here."""
    found = [block for document in DOCUMENTS if document.exists() for block in blocks_of(document)]
    return [block for block in found if all(command.startswith(RUN_HERE) for command in block.commands)]


def is_slow(commands: tuple[str, ...]) -> bool:
    return any(command.startswith(SLOW) for command in commands)


def needs_engines(commands: tuple[str, ...]) -> bool:
    return any(command.startswith(ENGINES) for command in commands)


# ---- running ---------------------------------------------------------------------------------------------------------


@cache
def printed_by(commands: tuple[str, ...]) -> tuple[str, ...]:
    """What each command prints, to standard output and standard error together."""
    with TemporaryDirectory() as folder, chdir(Path(folder)):
        for name in ("docs", "tests"):
            Path(name).symlink_to(ROOT / name, target_is_directory=True)
        return tuple(_run(command) for command in commands)


def _run(command: str) -> str:
    program, *arguments = shlex.split(command)
    if command.startswith(ALONE):
        started = [sys.executable, "-c", _SETTLED, *arguments]
        ours = {**os.environ, "PYTHONUTF8": "1"}
        done = subprocess.run(started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ours, encoding="utf-8", check=False)
        return done.stdout
    if program == "settled":
        return CliRunner().invoke(cli, arguments).output
    if program == "ls":
        return "".join(f"{path.name}\n" for path in sorted(Path(*arguments).iterdir()))
    if program == "cat":
        return Path(*arguments).read_text(encoding="utf-8")
    raise ValueError(f"{command}: expected a command that begins with settled, ls or cat")


# ---- comparing and rewriting -----------------------------------------------------------------------------------------


def is_current(shown: Shown, printed: str) -> bool:
    return _matches("\n".join(shown.lines), printed)


def renewed(lines: tuple[str, ...], printed: str) -> list[str]:
    """The shown lines with what is printed now in place of what no longer is. What was left out stays left out.

    A changed line beside a gap takes the printed lines next to it, and the gap the rest.
    """
    now = [line.rstrip() for line in printed.splitlines()]
    kept = [next((line for line in lines if line != GAP and _matches(line, new)), new) for new in now]
    told: list[str] = []
    for kind, i, j, k, m in SequenceMatcher(None, list(lines), kept, autojunk=False).get_opcodes():
        told += kept[k:m] if kind == "equal" else _replaced(list(lines[i:j]), kept[k:m])
    return [line for line, former in zip(told, [None, *told], strict=False) if not line == former == GAP]


def _replaced(old: list[str], new: list[str]) -> list[str]:
    if GAP not in old:
        return new
    before, after = old.index(GAP), len(old) - 1 - old.index(GAP)
    if before + after >= len(new):
        return new
    return [*new[:before], GAP, *new[len(new) - after :]]


def _matches(shown: str, printed: str) -> bool:
    """Whether a text is what is shown: `...` stands for anything, white space for white space."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(shown, printed, flags)


def rewrite(document: Path) -> list[str]:
    """Brings the outputs of a document up to date; says which blocks were not."""
    text, changed = document.read_text(encoding="utf-8"), []
    for block in reversed([block for block in blocks_of(document) if block.commands[0].startswith(RUN_HERE)]):
        if needs_engines(block.commands) and "SETTLED_HOME" not in os.environ:
            print(f"{block.where}: left as it is: SETTLED_HOME does not say where releases are")
            continue
        told = []
        for shown, printed in zip(block.shown, printed_by(block.commands), strict=True):
            stale = not is_current(shown, printed)
            told += [f"$ {shown.command}", *(renewed(shown.lines, printed) if stale else shown.lines)]
            changed += [f"{block.where}: {shown.command}"] if stale else []
        text = text[: block.start] + "".join(f"{line}\n" for line in told) + text[block.end :]
    document.write_text(text, encoding="utf-8")
    return changed[::-1]


def main(names: list[str]) -> None:
    """Rewrites the documents of those names, or all."""
    for document in DOCUMENTS:
        if not names or document.name in names:
            for line in rewrite(document):
                print(line)


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"]:
        sys.exit("usage: python tests/cli/documents.py --write [NAME.md]...")
    main(sys.argv[2:])
