"""What `settled diff` prints: in which orders each row's workloads are garbled, and whether that is as it must be."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table

from settled.proofs.cli.ending import EXIT_INTERRUPTED
from settled.proofs.differential.campaign import Total, compare
from settled.proofs.differential.one import ORDERS, Outcome
from settled.proofs.differential.rows import Expected, Row
from settled.proofs.differential.tolerance import Tolerance, measure
from settled.proofs.report.console import make_console
from settled.proofs.report.progress_line import progress_line
from settled.proofs.runner import Exit

_STYLE = {True: "green", False: "bold red", None: "yellow"}
_WORD = {True: "yes", False: "NO", None: "not shown"}


def run(rows: Sequence[Row], *, workloads: int, seed: int, tags_only: bool, as_json: bool) -> Exit:
    """Compares, prints, returns how it ended. What has been compared until an interrupt or an error is printed before that passes on."""
    console = make_console()
    began = time.perf_counter()
    done = _Done(len(rows), workloads, seed, not tags_only)
    try:
        with progress_line(console, "settled diff", is_quiet=as_json) as say:

            def tell(total: Total) -> None:
                done.under_way = total
                say(f"row {len(done.totals) + 1} of {done.rows}: {total.row.name}, {total.workloads} workloads")

            for total in compare(rows, workloads=workloads, seed=seed, numbers=done.with_numbers, tell=tell):
                done.totals.append(total)
                done.under_way = None
        tolerance = measure() if done.with_numbers else None
    except BaseException as error:
        ended = EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else Exit.UNKNOWN
        done.print(console, None, time.perf_counter() - began, ended, as_json=as_json)
        raise
    code = _exit(done.totals)
    done.print(console, tolerance, time.perf_counter() - began, code, as_json=as_json)
    return code


@dataclass(slots=True)
class _Done:
    """What was asked for, and what has come of it: rows that are through, and the one that is not."""

    rows: int
    workloads: int  # a row
    seed: int
    with_numbers: bool
    totals: list[Total] = field(default_factory=list)
    under_way: Total | None = None

    def print(self, console: Console, tolerance: Tolerance | None, seconds: float, code: int, *, as_json: bool) -> None:
        totals = [*self.totals, *([] if self.under_way is None else [self.under_way])]
        if as_json:
            asked = {"workloads": self.workloads, "seed": self.seed, "numbers": self.with_numbers}
            ended = {"seconds": round(seconds, 1), "exit_code": int(code)}
            passes = None if tolerance is None else tolerance._asdict()
            click.echo(json.dumps({**asked, **ended, "rows": [_as_dict(total) for total in totals], "tolerance": passes}, indent=1))
            return
        _print_table(console, totals)
        for total in totals:
            _print_faults(console, total, self.seed)
        if tolerance is not None:
            console.print(
                f"a relative tolerance of {tolerance.relative:g} would pass {tolerance.passed} of {tolerance.rows} rows of a window of "
                f"{tolerance.window} whose oldest block was freed under them and overwritten; "
                f"as enqueued {tolerance.as_enqueued} are garbled",
                markup=False,
            )
        compared = sum(total.compared for total in totals)
        steps, ops = sum(total.steps for total in totals), sum(total.ops for total in totals)
        through = f"{len(totals)}" if len(self.totals) == self.rows else f"ended after {len(self.totals)} of {self.rows}"
        console.print(
            f"{through} rows of {self.workloads} workloads: {steps} steps, {ops} ops, {compared} outputs compared bit for bit, "
            f"{seconds:.1f} s; exit code {int(code)}",
            markup=False,
        )


def _exit(totals: Sequence[Total]) -> Exit:
    verdicts = [total.is_as_expected for total in totals]
    if False in verdicts:
        return Exit.VIOLATED
    return Exit.UNKNOWN if None in verdicts else Exit.HOLDS


def _print_table(console: Console, totals: Sequence[Total]) -> None:
    """Counts are of workloads."""
    table = Table(
        Column("discipline, worker, workloads", no_wrap=True),
        "early",
        "race",
        *ORDERS,
        "null",
        "must be",
        "is",
        box=None,
        pad_edge=False,
    )
    for number in range(1, 10):
        table.columns[number].justify = "right"
    for total in totals:
        verdict = total.is_as_expected
        counts = [total.freeing_early, total.racing, *(total.garbled[order] for order in ORDERS), total.reading_null]
        shown = [str(count) if count else "·" for count in counts]
        table.add_row(total.row.name, *shown, total.row.expected.value, f"[{_STYLE[verdict]}]{_WORD[verdict]}[/]")
    console.print(table)
    console.print(
        "\n  early, race: workloads with a free of what a step or transfer still uses; with accesses that nothing orders\n"
        "  clean: no race, nothing wrong in any order; races: wrong in some order, not as enqueued; early frees: harmless for bytes\n"
        "  as enqueued ... random: in which orders of the device something is read or stored wrong; directed: each race turned round;\n"
        "  poisoned: what is freed is overwritten at once. null: through a null table entry, as enqueued",
        markup=False,
    )


def _print_faults(console: Console, total: Total, seed: int) -> None:
    """Of a row that is not as it must be, and the first fault of the others."""
    for each in total.contradictions[:3]:
        console.print(f"{total.row.name}: {each}", style="bold red", markup=False)
    first = total.first
    if first is None:
        return
    console.print(f"\n{total.row.name}, seed {first.seed}", style="bold", markup=False)
    for line in filter(None, (first.first_race, first.first_garbled)):
        console.print(f"  {line}", markup=False)
    if total.is_as_expected is False and total.row.expected is Expected.CLEAN:
        console.print(f"  settled diff {total.row.name} --seed {first.seed} --workloads 1", markup=False)


def _as_dict(total: Total) -> dict[str, Any]:
    return {
        "row": total.row.name,
        "contract": total.row.contract.value,
        "expected": total.row.expected.value,
        "as_expected": total.is_as_expected,
        "workloads": total.workloads,
        "steps": total.steps,
        "ops": total.ops,
        "rows": total.rows,
        "outputs_compared": total.compared,
        "freeing_early": total.freeing_early,
        "racing": total.racing,
        "reading_null": total.reading_null,
        "garbled": {order: total.garbled[order] for order in ORDERS},
        "contradictions": total.contradictions,
        "first": None if total.first is None else _outcome(total.first),
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {"seed": outcome.seed, "race": outcome.first_race, "garbled": outcome.first_garbled}
