"""Release by property, and its exit code: what is printed says what was checked, and loses nothing that was found."""

from __future__ import annotations

from collections import Counter
from io import StringIO

from rich.console import Console

from settled.proofs.cli.ending import EXIT_BAD_INPUT
from settled.proofs.hunting.campaign import Judged, Plan, Progress
from settled.proofs.hunting.releases import ReleaseHunt
from settled.proofs.report import releases
from settled.proofs.report.releases import cell, exit_code
from settled.proofs.runner import Exit

ORDER = "stream_order"


def hunted(verdicts: dict[tuple[str, str, str], int], **changes: object) -> ReleaseHunt:
    plan = Plan(engine="vllm==0.33.0", mix="all")
    progress = Progress("vllm 0.33.0", workloads=4)
    progress.verdicts = Counter({Judged(*judged): times for judged, times in verdicts.items()})
    for name, value in changes.items():
        setattr(progress, name, value)
    return ReleaseHunt(plan, progress)


def printed(*results: ReleaseHunt) -> dict[str, dict[str, str]]:
    """The cells of a table by contract and column."""
    out = StringIO()
    console = Console(file=out, width=400)
    releases._print(console, results[0].plan, results, 0, as_json=False)
    rows = [[part.strip() for part in line.strip("┃│ ").replace("┃", "│").split("│")] for line in out.getvalue().splitlines()]
    heads = next(row for row in rows if row[0] == "release")
    return {row[1]: dict(zip(heads, row, strict=True)) for row in rows if len(row) == len(heads) and row is not heads}


def test_holds_is_said_of_what_was_checked_alone() -> None:
    verdicts = Counter({Judged(ORDER, "write_owned", "holds"): 3, Judged(ORDER, "held_bounded", "not checked"): 3})
    assert cell(verdicts, ORDER, "write_owned") == "holds"
    assert cell(verdicts, ORDER, "held_bounded") == "·"
    assert cell(verdicts, ORDER, "read_resident") == "·"
    assert cell(verdicts, ORDER, "admission_progress") == "holds"
    verdicts[Judged(ORDER, "write_owned", "violated")] = 2
    assert "2" in cell(verdicts, ORDER, "write_owned")


def test_what_only_inspections_find_has_a_column() -> None:
    """The monitor has no such property."""
    row = printed(hunted({(ORDER, "single_owner", "holds"): 3, (ORDER, "cache_truthful", "violated"): 1}))[ORDER]
    assert row["cache truthful"] == "1"
    assert row["single owner"] == "holds"
    assert row["workloads"] == "3"


def test_an_engine_that_fails_before_its_first_event_has_a_row() -> None:
    row = printed(hunted({("", "engine_fault", "violated"): 4}))["none"]
    assert row["engine fault"] == "4"
    assert row["admission progress"] == row["read resident"] == "·"


def test_exit_codes() -> None:
    good = hunted({(ORDER, "single_owner", "holds"): 4})
    assert exit_code([good]) == Exit.HOLDS
    assert exit_code([good, hunted({}, workloads=0)]) == Exit.UNKNOWN
    assert exit_code([good, hunted({}, undecided=1)]) == Exit.UNKNOWN
    violated = hunted({}, findings={"key": "finding"})
    assert exit_code([good, violated]) == Exit.VIOLATED
    failed = hunted({})
    failed.error = "the worker ended"
    assert exit_code([violated, failed]) == EXIT_BAD_INPUT
