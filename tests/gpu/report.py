"""What a phase found, as plain data: checks, failures, facts. Saved again and again, so that a phase that is killed leaves what it had."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FAILURES_MAX = 50  # told in words; all are counted


@dataclass(slots=True)
class Report:
    """`checks`, `failed`: how many. `facts`: for the JSON; `line`: for the table. `is_over`: the phase came to its end."""

    phase: str
    path: Path
    is_dry: bool = False
    checks: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    line: str = ""
    is_over: bool = False
    began: float = field(default_factory=time.monotonic)

    @property
    def has_passed(self) -> bool:
        """A phase that checked nothing has not."""
        return self.is_over and self.checks > 0 and self.failed == 0

    def check(self, holds: bool, what: str) -> bool:
        self.checks += 1
        if not holds:
            self.fail(what)
        return holds

    def fail(self, what: str) -> None:
        self.failed += 1
        if len(self.failures) < FAILURES_MAX:
            self.failures.append(what)
            print(f"{self.phase}: {what}", flush=True)

    def save(self) -> None:
        told = asdict(self)
        del told["path"], told["began"]
        told["passed"], told["seconds"] = self.has_passed, round(time.monotonic() - self.began, 1)
        half = self.path.with_suffix(".part")  # a phase may be killed at any time, and what it saved before must stay whole
        half.write_text(json.dumps(told), encoding="utf-8")
        half.replace(self.path)
