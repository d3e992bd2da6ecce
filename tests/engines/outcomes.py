"""Checks what `settled hunt vllm --releases 0.25.1,newest --mix windows --seed 22 --json` found: the first violates, the newest does not.

0.25.1 violates rollback_resident without a KV consumer, under `stream_order`, and read_resident with one, under `settled`.

Usage: python tests/engines/outcomes.py REPORT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

EXPECTED_OF_OLD = {("stream_order", "rollback_resident"), ("settled", "read_resident")}
OF_WINDOWS = ("read_resident", "rollback_resident", "write_owned")
WORKLOADS_MIN = 32  # under each contract


def main(path: str) -> None:
    releases = json.loads(Path(path).read_text(encoding="utf-8"))["releases"]
    old, newest = releases
    for release in releases:
        violated = sorted(f"{name} under {contract}" for contract, name in judged(release, "violated"))
        first = release["seconds_to_first"]
        print(f"{release['engine']}: {release['workloads']} workloads, violated: {', '.join(violated) or 'nothing'}; first after {first} s")
    for release in releases:
        assert not release["error"], release["error"]
    missed = EXPECTED_OF_OLD - set(judged(old, "violated"))
    assert not missed, f"0.25.1 must violate {missed}"
    for contract, _ in EXPECTED_OF_OLD:
        for name in OF_WINDOWS:
            assert (contract, name) not in judged(newest, "violated"), f"the newest release violates {name} under {contract}"
            times = judged(newest, "holds").get((contract, name), 0)
            assert times >= WORKLOADS_MIN, f"{name} was checked in {times} workloads of the newest release under {contract}: too few"


def judged(release: dict[str, Any], verdict: str) -> dict[tuple[str, str], int]:
    """In how many workloads, by contract and property."""
    return {(each["contract"], each["property"]): each["workloads"] for each in release["verdicts"] if each["verdict"] == verdict}


if __name__ == "__main__":
    main(sys.argv[1])
