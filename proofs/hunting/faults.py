"""Whose fault an exception is: the engine's, which is a finding, or the harness's, which ends the hunt."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import NamedTuple, NoReturn

from settled.model.trace_io import TraceError
from settled.proofs.found_properties import ENGINE_FAULT
from settled.proofs.watching import Key
from settled.reference.engines.protocol import EngineFailedError
from settled.reference.engines.setup import SetupError

CPU_SECONDS_MAX = 20.0  # of one workload
_PROJECT = "settled."
_LIBRARIES = sys.stdlib_module_names | {"msgspec", "numpy", "pydantic", "torch"}  # what engines call
_REFERENCE, _ADAPTERS = "settled.reference.", "settled.reference.engines."


class HarnessError(RuntimeError):
    """The harness itself failed, or asked for what no user of the engine could: nothing is known about the engine.

    `hint`: how to mend it, if known.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class HangError(BaseException):
    """A call into the engine does not come back. No `except Exception` on the way swallows it."""


class Fault(NamedTuple):
    """A failure of the engine: its key, and what happened in words."""

    key: Key
    sentence: str


def fault_of(error: BaseException) -> Fault:
    """What an exception that came out of a workload says about the engine. Raises HarnessError if it says nothing.

    It is told from others by its type and the innermost function of the engine, not by its message, which has numbers.
    """
    if isinstance(error, SetupError):
        raise HarnessError(f"the workload asks for what the engine's users cannot: {error}") from error
    where = error.where if isinstance(error, EngineFailedError) else _innermost(error)
    if where is None:
        raise HarnessError(f"{type(error).__name__} in the harness: {error}") from error
    if isinstance(error, HangError):
        return Fault(Key("admission_progress", f"hangs in {where}", ""), f"the engine does not come back from {where}")
    name = type(error.__cause__ if isinstance(error, EngineFailedError) and error.__cause__ is not None else error).__name__
    what = f"{name}: {error}".partition("\n")[0].removesuffix(": ")
    return Fault(Key(ENGINE_FAULT, f"{name} in {where}", ""), f"the engine failed in {where}: {what}")


def impossible(error: TraceError) -> Fault:
    """An event that the trace's own past rules out: the engine did what none may do, or the recorder tells it wrongly."""
    event = error.message.partition(":")[0]
    return Fault(Key(ENGINE_FAULT, f"impossible event: {event}", ""), f"line {error.line} of the trace is impossible: {error.message}")


def _innermost(error: BaseException) -> str | None:
    """The engine's innermost function, as file:function; None if a frame of the harness lies within it.

    What a library does that the engine calls counts for its caller.
    """
    frames = [frame for frame, _line in walk_tb(error.__traceback__)]
    if isinstance(error, HangError):
        frames.pop()  # the handler of the signal
    for frame in reversed(frames):
        module = str(frame.f_globals.get("__name__", ""))
        if _is_harness(module):
            return None
        if module.partition(".")[0] not in _LIBRARIES:
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"
    return None


def _is_harness(module: str) -> bool:
    return module.startswith(_ADAPTERS) or (module.startswith(_PROJECT) and not module.startswith(_REFERENCE))


@contextmanager
def watchdog(seconds: float = CPU_SECONDS_MAX) -> Iterator[None]:
    """Raises HangError in the midst of what takes more CPU seconds; only in the main thread, where signals arrive."""

    def bark(_number: int, _frame: FrameType | None) -> NoReturn:
        raise HangError

    former = signal.signal(signal.SIGPROF, bark)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)
