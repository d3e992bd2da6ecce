"""Golden transcripts: what commands print, kept in tests/data/transcripts and compared by test_transcripts.py.

`python tests/cli/transcripts.py --write [NAME]...` writes them anew, or those that are named. Every case runs in a folder of its own making
(`situations.py`), without colours, and by a clock that goes on by a fixed step whenever it is looked at, so that seconds and rates are what
the command makes of the clock. What else varies, `normalised` replaces.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import chdir
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import NamedTuple
from unittest.mock import patch

from situations import CASES, Case, prepare

from settled.proofs.cli.ending import TRACEBACK_VARIABLE, run_to_the_end
from settled.proofs.cli.main import run
from settled.proofs.report import diagnosis

FOLDER = Path(__file__).parents[1] / "data" / "transcripts"
TICK_SECONDS = 1 / 1024
_OF_PIP = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT")
_UNSET = ("FORCE_COLOR", "COLUMNS", "LINES", "PYTHONIOENCODING", TRACEBACK_VARIABLE, "SETTLED_TRACE", *_OF_PIP)
_ALONE = f"""
import itertools, os, sys, time
ticks = itertools.count()
time.perf_counter = lambda: next(ticks) * {TICK_SECONDS!r}
exec(os.environ["SETTLED_BEFORE"])
from settled.proofs.cli.main import main
main()
"""
# What varies from run to run and from machine to machine: the pattern, and what stands for it.
_VARYING = (
    (re.compile(rf"{re.escape(gettempdir())}/settled-worker-\w+\.log"), "LOG"),
    (re.compile(r"\b(z3|cvc5) \d+(\.\d+)+"), r"\1 VERSION"),
    (re.compile(r"\bPython \d+\.\d+\.\d+ on \w+"), "Python VERSION on SYSTEM"),
    (re.compile(r"\bpython3\.\d+"), "pythonVERSION"),
    (re.compile(r"(environment-\w+-pythonVERSION)-[0-9a-f]{8}"), r"\1-DIGEST"),
    (re.compile(r": \d+ s, from"), ": SECONDS s, from"),
)


class Told(NamedTuple):
    """What a command printed, and how it ended."""

    stdout: str
    stderr: str
    code: int


def transcript(case: Case, folder: Path) -> str:
    """The text that is kept. `folder` is empty, and filled for the case."""
    prepare(folder)
    told = _in_a_process(case, folder) if case.before or case.is_alone else _here(case, folder)
    parts = [f"# {case.about}", f"$ {case.line}", "", "--- stdout", told.stdout, "--- stderr", told.stderr, f"--- exit code {told.code}"]
    return "\n".join(part.rstrip("\n") if part else part for part in parts).replace("\n\n--- stderr", "\n--- stderr") + "\n"


def path_of(case: Case) -> Path:
    return FOLDER / f"{case.name}.txt"


def normalised(text: str, folder: Path) -> str:
    """The text with what varies replaced."""
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    return text.replace(str(folder), "FOLDER").replace(json.dumps(str(folder))[1:-1], "FOLDER")


# ---- running ---------------------------------------------------------------------------------------------------------


def _here(case: Case, folder: Path) -> Told:
    """In this process: the command line as the console script runs it."""
    arguments = shlex.split(case.line)[1:]
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    ticks = count()
    with (
        patch.object(sys, "stdout", out),
        patch.object(sys, "stderr", err),
        patch.object(time, "perf_counter", lambda: next(ticks) * TICK_SECONDS),
        patch.object(diagnosis, "installed", lambda package: "1.2.3"),
        patch.dict(os.environ, _environment(case, folder), clear=True),
        chdir(folder),
    ):
        code = run_to_the_end(run, arguments)
        texts = []
        for stream in (out, err):
            stream.flush()
            assert isinstance(stream.buffer, io.BytesIO)
            texts.append(normalised(stream.buffer.getvalue().decode(), folder))
    return Told(*texts, code)


def _in_a_process(case: Case, folder: Path) -> Told:
    """As a shell runs it; `settled` is a function of the shell. `case.before` is Python that comes first in its process."""
    shell = f'settled() {{ "$PYTHON" -c "$SETTLED_CODE" "$@"; }}\n{case.line}'
    variables = {"PYTHON": sys.executable, "SETTLED_CODE": _ALONE, "SETTLED_BEFORE": case.before, **_environment(case, folder)}
    done = subprocess.run(["bash", "-c", shell], cwd=folder, env=variables, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    out, err = (normalised(text.decode(), folder) for text in (done.stdout, done.stderr))
    return Told(out, err, done.returncode)


def _environment(case: Case, folder: Path) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if name not in _UNSET}
    return {
        **ours,
        "NO_COLOR": "1",
        "TERM": "xterm",
        "PYTHONUTF8": "1",
        "SETTLED_HOME": str(folder / case.home),
        "CC": str(folder / "cc"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": (folder / "registry").as_uri(),
        "CUDA_VISIBLE_DEVICES": "",
    }


# ---- writing ---------------------------------------------------------------------------------------------------------


def main(names: Sequence[str]) -> None:
    """Writes the transcripts (all, or those named), and removes those of which there is no case any more."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        if old not in map(path_of, CASES):
            old.unlink()
    for case in [each for each in CASES if not names or each.name in names]:
        with TemporaryDirectory() as folder:
            text = transcript(case, Path(folder).resolve())
        if not path_of(case).exists() or path_of(case).read_text(encoding="utf-8") != text:
            print(path_of(case).name)
            path_of(case).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"] or set(sys.argv[2:]) - {case.name for case in CASES}:
        sys.exit("usage: python tests/cli/transcripts.py --write [NAME]...")
    main(sys.argv[2:])
