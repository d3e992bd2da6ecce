"""Ctrl-C, taken where it can be: an exception raised inside a solver's bindings is lost or turned into another one.

ctypes makes an ArgumentError of a KeyboardInterrupt, and one that hits an object's `__del__` is only printed. So an interrupt that arrives
while a foreign frame is on the stack waits a few milliseconds and tries again.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

RETRY_SECONDS = 0.002
_FOREIGN = ("z3", "cvc5", "ctypes")


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it, an interrupt raises KeyboardInterrupt, and only in our own code. Where timers are missing, Python's way stays."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    previous = {number: signal.signal(number, _raise_or_retry) for number in (signal.SIGINT, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _raise_or_retry(_number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).split(".")[0] in _FOREIGN:
            signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
            return
        frame = frame.f_back
    raise KeyboardInterrupt
