"""What each engine's environment is made of, as data."""

from __future__ import annotations

import re
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import NamedTuple

NEWEST = "newest"
_EXAMPLES = f"for example vllm==0.25.1, vllm=={NEWEST}, or vllm, which is the newest, too"
_REQUEST = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*?)\s*(==\s*(?P<version>\S+))?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")


class RequestError(ValueError):
    """What was asked for names no engine, or no release; the message says which. `hint`: how to mend it, if known."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Source(Enum):
    """What a release is made from."""

    PURE = "the Python files of its source distribution; where that fails, those of its binary wheel"
    WHEEL = "its binary wheel"


class Recipe(NamedTuple):
    """`engine`: its name on the command line; `project`: its name in a package registry; `package`: what of it is imported.

    `with_dependencies` are requirements that pip resolves with all that they need. `requirements` is a file beside this one with everything
    else that the release imports, pinned, and installed without dependencies. `probe` is the module that tells whether a release works.
    """

    engine: str
    project: str
    package: str
    source: Source
    with_dependencies: tuple[str, ...]
    requirements: Path
    probe: str


_HERE = Path(__file__).parent
RECIPES = (
    Recipe("vllm", "vllm", "vllm", Source.PURE, ("torch==2.13.0",), _HERE / "vllm.txt", "vllm.v1.core.sched.scheduler"),
    Recipe(
        "tokenspeed",
        "tokenspeed-scheduler",
        "tokenspeed_scheduler",
        Source.WHEEL,
        (),
        _HERE / "tokenspeed.txt",
        "tokenspeed_scheduler",
    ),
)


class Request(NamedTuple):
    """A release that is asked for. `version` None: the newest that the registry has for this Python."""

    recipe: Recipe
    version: str | None

    def __str__(self) -> str:
        return f"{self.recipe.project}=={self.version or NEWEST}"


def recipe_named(name: str) -> Recipe:
    """By the engine's name or its project's. Raises RequestError."""
    plain = name.lower().replace("_", "-")
    for recipe in RECIPES:
        if plain in (recipe.engine, recipe.project):
            return recipe
    known = [recipe.project for recipe in RECIPES]
    hint = "".join(f"did you mean {found}?" for found in get_close_matches(plain, known, n=1)) or _EXAMPLES
    raise RequestError(f"unknown engine {name!r}; expected one of {', '.join(known)}", hint)


def parse_request(text: str) -> Request:
    """`vllm==0.25.1`, `vllm==newest` or `vllm`. Raises RequestError."""
    match = _REQUEST.fullmatch(text.strip())
    if match is None:
        raise RequestError(f"{text!r}: expected NAME==VERSION, NAME=={NEWEST} or NAME", _EXAMPLES)
    version = match["version"]
    if version is not None and not _VERSION.fullmatch(version):
        raise RequestError(f"{text!r}: {version!r} is no version; expected one such as 0.25.1, or {NEWEST}", _EXAMPLES)
    return Request(recipe_named(match["name"]), None if version in (None, NEWEST) else version)
