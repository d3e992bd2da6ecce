"""What making one finding small may cost."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

OPERATIONS_MAX = 8000  # of all runs together: the same on every machine, so the same finding always becomes the same small one
CPU_SECONDS_MAX = 20.0  # a bound for engines that are slow, which few findings reach
CANDIDATE_CPU_SECONDS_MAX = 3.0  # of one run
_OPERATIONS_A_RUN = 8  # building an engine takes about as long


@dataclass(slots=True)
class Budget:
    """`operations` and `cpu_seconds` are what is left of it; `ends`: by `time.monotonic`, None for never."""

    operations: int = OPERATIONS_MAX
    cpu_seconds: float = CPU_SECONDS_MAX
    ends: float | None = None
    _began: float = field(default_factory=time.process_time)

    def begin_run(self) -> None:
        """One that may be refused."""
        self.operations -= _OPERATIONS_A_RUN

    def spend(self, operations: int) -> None:
        """Takes in what a run has done."""
        self.operations -= operations

    def is_spent(self) -> bool:
        """Whether there shall be no other run."""
        if self.operations <= 0 or time.process_time() - self._began >= self.cpu_seconds:
            return True
        return self.ends is not None and time.monotonic() >= self.ends
