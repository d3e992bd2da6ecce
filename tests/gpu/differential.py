"""Every log of tests/data/gpu, on the device and on the CPU: one stream, natural timing, directed orders."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bench import Bench
from op_logs import CLEAN, Told, index

from settled.reference.device.cuda.against_cpu import AgainstCpu, Run
from settled.reference.device.trials import DIRECTED, TRANSFERS_FIRST, trials

STEP_SECONDS = 1e-3  # about what a forward pass takes
AT_ONCE, BUSY = 3, 6  # natural runs of a log, with nothing before a step and with the stream kept busy


@dataclass(slots=True)
class Row:
    """Of all logs of a row. `natural`: runs in natural timing, `natural_garbled`: of them; `natural_logs`: logs that garbled in some."""

    logs: int = 0
    runs: int = 0
    races: int = 0
    directed_garbled: int = 0
    compared: int = 0
    natural: int = 0
    natural_garbled: int = 0
    natural_logs: int = 0
    repeated: int = 0  # directed runs that came to their deadline first


def run(bench: Bench) -> None:
    logs = index("short") if bench.is_dry else index("row", "short", "poisoned")
    compare(bench, logs)


def compare(bench: Bench, logs: list[Told]) -> dict[str, Row]:
    """The logs in turn, as far as there is time; the first log of each row has to be among them."""
    report = bench.report
    rows: dict[str, Row] = {}
    for told in logs:
        if bench.is_spent or not report.check(not bench.device.is_lost, "work was left on the device that does not end"):
            break
        row = rows.setdefault(told.row, Row())
        try:
            _log(bench, told, row)
        except Exception as error:  # a log that fails says nothing of the others
            report.fail(f"{told.name}: {type(error).__name__}: {error}")
        done = sum(each.logs for each in rows.values())
        report.facts = {"logs": done, "of": len(logs), "rows": {name: asdict(each) for name, each in rows.items()}}
        report.line = _line(rows, done, len(logs))
        report.save()
    unseen = {told.row for told in logs} - rows.keys()
    report.check(not unseen, f"no time for {', '.join(sorted(unseen))}")
    return rows


def _log(bench: Bench, told: Told, row: Row) -> None:
    case = AgainstCpu(told.log(), bench.device, queued=bench.queued)
    row.logs += 1
    row.races += len(case.races)
    bench.report.check(len(case.races) == told.races, f"{told.name}: {len(case.races)} races, the index says {told.races}")
    for each in case.first_runs:
        _judge(bench, told, row, each)
    natural = [case.natural(step_seconds=seconds) for seconds in _steps(bench)]
    for each in natural:
        _judge(bench, told, row, each)
    row.natural += len(natural)
    row.natural_garbled += sum(each.is_garbled for each in natural)
    row.natural_logs += any(each.is_garbled for each in natural)
    for trial, expected in zip(trials(case.log, case.races, told.seed), told.orders, strict=True):
        if not _is_tried(bench, trial.name, row):
            continue
        found = case.directed(trial)
        row.directed_garbled += found.is_garbled
        row.repeated += found.is_repeated
        _judge(bench, told, row, found)
        _judge_by_index(bench, told, found, expected)


def _steps(bench: Bench) -> list[float]:
    return [0.0] if bench.is_dry else [0.0] * AT_ONCE + [STEP_SECONDS] * BUSY


def _is_tried(bench: Bench, name: str, row: Row) -> bool:
    return name in (TRANSFERS_FIRST, DIRECTED) if bench.is_dry else True


def _judge(bench: Bench, told: Told, row: Row, found: Run) -> None:
    """What the log must be besides what the CPU found in it."""
    row.runs += 1
    row.compared += found.compared
    for problem in found.problems:
        bench.report.fail(f"{told.name}: {problem}")
    bench.report.check(not (found.is_garbled and told.expected == CLEAN), f"{told.name}: {found.order}: garbled, and nothing may be")
    bench.report.checks += not found.problems


def _judge_by_index(bench: Bench, told: Told, found: Run, expected: dict[str, Any]) -> None:
    """The CPU of this machine and that which wrote the index must have found the same."""
    here, there = (found.wanted_rows, found.wanted_stores), (expected["rows_garbled"], expected["stores_wrong"])
    said = f"{told.name}: {found.order}: rows and stores garbled: {here} on this CPU, {there} in the index"
    bench.report.check(here == there or bool(found.problems), said)


def _line(rows: dict[str, Row], done: int, of: int) -> str:
    racing = [row for row in rows.values() if row.races]
    natural = (
        f"natural timing garbled {sum(row.natural_garbled for row in racing)} of {sum(row.natural for row in racing)} runs of racing logs"
    )
    runs, compared = sum(row.runs for row in rows.values()), sum(row.compared for row in rows.values())
    garbled = sum(row.directed_garbled for row in rows.values())
    return f"{done} of {of} logs, {runs} runs, {compared} outputs compared, {garbled} directed orders garbled as on the CPU; {natural}"
