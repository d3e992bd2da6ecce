"""The files of a test that failed: for each engine its trace, and the page beside it. They are named after the test."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from zlib import crc32

from settled.model.properties import Property
from settled.proofs.folder import Folder
from settled.proofs.pytesting.asked import Asked
from settled.proofs.pytesting.judged import Judged
from settled.proofs.showing.data import NOTHING, About
from settled.proofs.showing.writing import Pages

NAME_LENGTH_MAX = 120


def keep(judged: Judged, asked: Asked) -> list[str]:
    """Writes the files, in place of those of an earlier run; tells where they are, and the commands that show the same again.

    What cannot be written is told as well, and hides nothing else.
    """
    name = name_of(asked.test, judged.number)
    path = asked.folder / f"{name}.ndjson"
    try:
        Folder(asked.folder).replace(path, b"".join(judged.lines()).decode())
        page = Pages(asked.folder).write(name, [event for _, event in judged.events()], judged.contract, _about(judged), asked.properties)
    except OSError as error:
        return [f"the trace is not kept: {error.filename or asked.folder}: {error.strerror}"]
    assert page is not None  # there is a config
    shown, contract = _relative(path), ["--contract", judged.contract.value]
    properties: list[str] = []
    if asked.properties != tuple(Property):
        properties = [word for name in asked.properties for word in ("--property", name.value)]
    return [
        f"trace: {shown}",
        f"page:  {_relative(page)}",
        f"again: {shlex.join(['settled', 'check', shown, *contract, *properties, '--picture'])}",
        f"       {shlex.join(['settled', 'show', shown, *contract, *properties])}",
    ]


def _about(judged: Judged) -> About:
    """What the page opens at."""
    if not judged.violations:
        return NOTHING
    first = judged.violations[0]
    return About(first.property.value, first.cause, first.sentence())


def name_of(test: str, number: int) -> str:
    """From a test's id: the same in every run, different for different tests, and fit for any file system."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", ".", re.sub(r"\.py(?=::)", "", test)).strip(".")
    is_unique = re.fullmatch(r"[\w/]+(\.py)?(::\w+)*", test, re.ASCII) is not None and len(name) <= NAME_LENGTH_MAX
    if not is_unique:
        name = f"{name[:NAME_LENGTH_MAX]}-{crc32(test.encode()):08x}"
    return name if number == 1 else f"{name}.engine{number}"


def _relative(path: Path) -> str:
    """As short as it can be typed from here."""
    here = os.path.relpath(path)
    return here if not here.startswith(os.pardir) else str(path)
