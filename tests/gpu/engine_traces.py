"""Op logs lowered from recordings of real vLLM releases: the affected ones garble where a load comes first, the fixed ones never do."""

from __future__ import annotations

from bench import Bench
from differential import compare
from op_logs import CLEAN, RACES, index

DRY = ("settled/everything", "optimistic/loads")
"""Recordings have too many rows for the interpreter."""


def run(bench: Bench) -> None:
    logs = [told for told in index("short") if told.row in DRY] if bench.is_dry else index("trace")
    rows = compare(bench, logs)
    for told in logs:
        row = rows.get(told.row)
        if row is None or not row.logs:
            continue  # told as a failure where it was found out
        garbled = row.directed_garbled
        if told.expected == CLEAN:
            bench.report.check(garbled == 0, f"{told.row}: {garbled} orders garbled; this release is fixed")
        else:
            bench.report.check(garbled > 0, f"{told.row}: garbled in no order; this release is affected")
        if told.expected == RACES:
            bench.report.check(row.races > 0, f"{told.row}: no race; this release is affected")
