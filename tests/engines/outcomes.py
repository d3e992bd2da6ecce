"""Checks what `settled hunt vllm --releases 0.25.1,newest --mix windows --json` found: the first violates, the newest does not.

Usage: python tests/engines/outcomes.py REPORT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

OF_WINDOWS = {"read_resident", "rollback_resident", "write_owned"}
WORKLOADS_MIN = 50


def main(path: str) -> None:
    old, newest = json.loads(Path(path).read_text(encoding="utf-8"))["releases"]
    for release in (old, newest):
        violated = sorted({each["property"] for each in release["showing"]})
        first = release["seconds_to_first"]
        print(f"{release['engine']}: {release['workloads']} workloads, violated: {', '.join(violated) or 'nothing'}; first after {first} s")
        assert not release["error"], release["error"]
        assert release["workloads"] >= WORKLOADS_MIN, "too few workloads to say anything"
    assert "rollback_resident" in {each["property"] for each in old["showing"]}, "0.25.1 must violate rollback_resident"
    found = {each["property"] for each in newest["showing"]} & OF_WINDOWS
    assert not found, f"the newest release violates {', '.join(sorted(found))}"


if __name__ == "__main__":
    main(sys.argv[1])
