"""What the phases found: a table for people, gpu.json and gpu.txt for later.

python tests/gpu/summary.py PARTS OUT    PARTS: a NAME.json and a NAME.code (exit code and limit) a phase, as run.sh leaves them
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from phases import PHASES, Phase

KILLED = (124, 137)  # what `timeout` ends with
DRY = "dry run: a fake device and interpreted kernels; it says nothing about a device, and nothing was measured"


def told_of(phase: Phase, parts: Path) -> dict[str, Any]:
    """What the phase saved, with how its process ended. Only a process that ended with 0 has passed."""
    path = parts / f"{phase.name}.json"
    code, limit = map(int, (parts / f"{phase.name}.code").read_text(encoding="utf-8").split())
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"phase": phase.name, "passed": False}
    if told.get("is_over"):
        told["ended"] = "passed" if told["passed"] and code == 0 else "FAILED"
    else:
        told["ended"] = f"KILLED after {limit} s" if code in KILLED else f"CRASHED, exit code {code}"
    told["passed"], told["exit_code"] = told["ended"] == "passed", code
    return told


def lines_of(phases: Sequence[dict[str, Any]], is_dry: bool) -> Iterator[str]:
    for told in phases:
        for failure in told.get("failures", ()):
            yield f"{told['phase']}: {failure}"
        if told.get("failed", 0) > len(told.get("failures", ())):
            yield f"{told['phase']}: {told['failed']} failures in all"
    if is_dry:
        yield DRY
    else:
        yield from _figures(phases)
    for told in phases:
        counted = f"{told.get('checks', 0):6d} checks {told.get('seconds', 0):6.1f} s"
        yield f"{told['phase']:14s} {told['ended']:8s} {counted}  {told.get('line', '')}".rstrip()


def _figures(phases: Sequence[dict[str, Any]]) -> Iterator[str]:
    for told in phases:
        for name, figure in told.get("facts", {}).get("figures", {}).items():
            share = f"  {figure['of_ceiling']:4.0%} of {figure['ceiling']}" if "ceiling" in figure else ""
            yield f"{name:34s} {figure['gb_per_s']:9.1f} GB/s{share}  {figure['note']}".rstrip()


def main(arguments: Sequence[str]) -> int:
    parts, out = map(Path, arguments)
    phases = [told_of(phase, parts) for phase in PHASES]
    is_dry = any(told.get("is_dry") for told in phases)
    has_passed = all(told["passed"] for told in phases)
    failed = [told["phase"] for told in phases if not told["passed"]]
    end = f"{len(phases) - len(failed)} of {len(phases)} phases passed" + (f"; failed: {', '.join(failed)}" if failed else "")
    lines = [*lines_of(phases, is_dry), f"tests/gpu{', dry run' if is_dry else ''}: {end}; {out / 'gpu.json'}"]
    told = {"passed": has_passed, "is_dry": is_dry, "date": datetime.now(UTC).isoformat(timespec="seconds"), "phases": phases}
    (out / "gpu.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    (out / "gpu.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return 0 if has_passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
