"""Engines by the name that the command line gives them: NAME or NAME==RELEASE."""

from __future__ import annotations

import importlib
import re
from difflib import get_close_matches
from typing import NamedTuple, cast

from settled.model.disciplines import DISCIPLINES
from settled.reference.engines.environments.recipes import NEWEST
from settled.reference.engines.protocol import EngineFactory
from settled.reference.engines.reference_engine import ReferenceFactory

REFERENCE, VLLM, TOKENSPEED = "reference", "vllm", "tokenspeed"
RIGHT_DISCIPLINE = "settled"

# Engine → its module and the class there that builds engines of whichever release is installed beside it.
_FACTORIES = {
    VLLM: ("settled.reference.engines.vllm.adapter", "VllmFactory"),
    TOKENSPEED: ("settled.reference.engines.tokenspeed", "TokenSpeedFactory"),
}
ENGINES = (REFERENCE, *_FACTORIES)
_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")


class EngineError(ValueError):
    """No engine of that name, or another release than the one that is installed; the message says which. `hint`: how to mend it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class EngineName(NamedTuple):
    """`release` is "" where none is asked for, or the newest. The reference's releases are disciplines."""

    name: str
    release: str = ""

    def __str__(self) -> str:
        return f"{self.name}=={self.release}" if self.release else self.name


def parse_engine(text: str) -> EngineName:
    """Raises EngineError."""
    name, equals, release = text.partition("==")
    if name not in ENGINES:
        hint = "".join(f"did you mean {found}?" for found in get_close_matches(name, ENGINES, n=1))
        raise EngineError(f"unknown engine {text!r}; expected one of {', '.join(ENGINES)}, or one of them ==RELEASE", hint)
    if name == REFERENCE and (release or RIGHT_DISCIPLINE) not in DISCIPLINES:
        hint = "".join(f"did you mean {name}=={found}?" for found in get_close_matches(release, DISCIPLINES, n=1))
        raise EngineError(f"unknown discipline {release!r} of the reference; expected one of {', '.join(DISCIPLINES)}", hint)
    if equals and not _RELEASE.fullmatch(release):
        raise EngineError(f"{text!r}: expected NAME or NAME==RELEASE", f"{name} alone is the newest that is installed")
    return EngineName(name, "" if release == NEWEST and name != REFERENCE else release)


def factory_of(engine: EngineName) -> EngineFactory:
    """What builds the engine in this process. Raises EngineError, ModuleNotFoundError where the engine is not installed."""
    if engine.name == REFERENCE:
        return ReferenceFactory(DISCIPLINES[engine.release or RIGHT_DISCIPLINE])
    module, name = _FACTORIES[engine.name]
    factory = cast(EngineFactory, getattr(importlib.import_module(module), name)())
    if engine.release and factory.name.split()[-1] != engine.release:
        raise EngineError(f"{engine} is asked for, but {factory.name} is installed here", f"settled engines install {engine}")
    return factory
