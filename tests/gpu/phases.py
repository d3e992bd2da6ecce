"""The phases of tests/gpu, each a process of its own: what it is called, and how long it may take.

python tests/gpu/phases.py    prints a name and a limit in seconds a line
"""

from __future__ import annotations

import sys
from typing import NamedTuple


class Phase(NamedTuple):
    """The module of that name has `run(bench)`. `seconds`: after which it begins nothing new; `limit`: after which it is killed, if those
    before it have left nothing of theirs.
    """

    name: str
    about: str
    seconds: float
    limit: int


PHASES = (
    Phase("machine", "device, versions, gates", 30, 75),
    Phase("differential", "every log in every order", 100, 150),
    Phase("engine_traces", "recordings of vLLM releases", 20, 45),
    Phase("torn_read", "a block overwritten in mid-read", 20, 40),
    Phase("flex_peer", "FlexAttention over the same memory", 15, 70),
    Phase("figures", "bandwidth against measured ceilings", 50, 90),
)
"""Limits add up to less than 8 minutes, the times that are planned to about 4. The first phase is the first to load all of CUDA's code."""

PATIENCE = 8
"""A dry run may take so many times as long: whoever interprets kernels beside other processes has no device's clock."""


if __name__ == "__main__":
    for phase in PHASES:
        print(phase.name, phase.limit * (PATIENCE if "--dry-run" in sys.argv else 1))
