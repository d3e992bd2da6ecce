"""The tour: what is proved, how the old behaviour breaks, and a recorded release before and after the fix."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import as_file, files

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from settled.model.disciplines import OPTIMISTIC
from settled.model.events import Config, Event
from settled.model.monitor import Monitor, Report, Verdict, Violation
from settled.model.properties import Contract, Property
from settled.model.search.solver import solver_named
from settled.model.trace_io import read_trace
from settled.proofs.catalogue import THEOREMS
from settled.proofs.refutations import under
from settled.proofs.report.console import make_console
from settled.proofs.report.picture import draw
from settled.proofs.report.proving import exit_code
from settled.proofs.report.refuting import attempt, print_outcome
from settled.proofs.report.signs import signs_for
from settled.proofs.runner import Exit, KillerRow, Row, prove

AFFECTED, FIXED = "v0.24.0-min-spec-reject.ndjson", "v0.26.0-min-spec-reject.ndjson"
TWO_FAULTS = (Property.READ_RESIDENT, Property.ROLLBACK_RESIDENT)
PICTURE_ROWS_MAX = 8


def run() -> Exit:
    """Prints every stop of the tour; returns the worst of their exit codes."""
    console = make_console()
    return max(stop(console) for stop in (_prove, _refute, _judge))


def _prove(console: Console) -> Exit:
    console.print("[bold]1. The fix, proved[/] for every window, block size, pipeline depth and trace length (settled prove)\n")
    solver = solver_named("z3")
    table = Table("theorem", "says", "obligations", "killed by", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    everything: list[Row | KillerRow] = []
    for theorem in THEOREMS.values():
        rows = list(prove(theorem, [solver]))
        everything += rows
        proved = sum(row.word == "proved" for row in rows if isinstance(row, Row))
        claims = sum(bool(row.word) for row in rows if isinstance(row, Row))
        killers = dict.fromkeys(row.killer.discipline.name for row in rows if isinstance(row, KillerRow) and row.kills)
        table.add_row(theorem.key, escape(theorem.sentence), f"{proved} of {claims} proved", ", ".join(killers))
    console.print(table)
    return exit_code(everything)


def _refute(console: Console) -> Exit:
    console.print("\n[bold]2. What was before, broken[/] by its shortest traces, which the reference then runs (settled refute --replay)")
    faults = [known for known in under(Contract.SETTLED) if known.discipline is OPTIMISTIC and known.violates in TWO_FAULTS]
    outcomes = [attempt(refutation, replay=True) for refutation in faults]
    for outcome in outcomes:
        print_outcome(console, outcome)
    return max(outcome.exit for outcome in outcomes)


def _judge(console: Console) -> Exit:
    console.print("\n[bold]3. A real release, judged[/] on the same workload: vLLM 0.24.0, and 0.26.0 with the fix (settled check)\n")
    exits = []
    for name in (AFFECTED, FIXED):
        events = list(_recorded(name))
        report = _watch(events)
        _print_report(console, events, report)
        exits.append(report.exit_code)
    console.print("\nNext: settled refute --all --replay, settled prove --solver both, and settled check on a trace of your own engine.")
    return Exit.HOLDS if exits == [Exit.VIOLATED, Exit.HOLDS] else Exit.UNKNOWN


def _recorded(name: str) -> Iterator[tuple[int, Event]]:
    with as_file(files("settled.proofs") / "data" / name) as path, path.open("rb") as lines:
        yield from read_trace(lines, name)


def _watch(events: list[tuple[int, Event]]) -> Report:
    config = events[0][1]
    assert isinstance(config, Config)
    monitor = Monitor(config)
    for line, event in events:
        monitor.feed(line, event)
    return monitor.finish()


def _print_report(console: Console, events: list[tuple[int, Event]], report: Report) -> None:
    config = events[0][1]
    assert isinstance(config, Config)
    verdicts = ", ".join(f"{result.property} {result.verdict}" for result in report.properties if result.verdict is not Verdict.NOT_CHECKED)
    console.print(f"{config.engine}, contract {report.contract}: {verdicts}", markup=False)
    worst = _first_violation(report)
    if worst is not None:
        until = [(line, event) for line, event in events if line <= worst.line]
        console.print(draw(until, worst, rows_max=PICTURE_ROWS_MAX, width=console.width, signs=signs_for(console.encoding)))
        console.print(f"  {worst.sentence()}", markup=False)


def _first_violation(report: Report) -> Violation | None:
    found = report.result(Property.ROLLBACK_RESIDENT).violations
    return found[0] if found else None
