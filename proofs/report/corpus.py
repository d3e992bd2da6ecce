"""What `settled corpus` prints: a line a row, the recall over all rows, and, for rows that were asked for, what happened in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from settled.proofs.corpus.rows import Corpus, Mark, Recording, Scenario, Script
from settled.proofs.corpus.running import Outcome, Status, Tried
from settled.proofs.report.console import make_console
from settled.proofs.runner import Exit

_STYLE = {
    Status.CAUGHT: "green",
    Status.MISSED: "bold red",
    Status.TWIN_NOT_CLEAN: "bold red",
    Status.NOT_ENCODED: "yellow",
    Status.NOT_CATCHABLE: "dim",
}


def report(corpus: Corpus, outcomes: Sequence[Outcome], *, details: bool, as_json: bool) -> Exit:
    """Prints what became of the rows; returns the exit code. `details`: say of each scenario what it is and what was found."""
    code = exit_of(outcomes)
    is_whole = len(outcomes) == len(corpus.cases)
    if as_json:
        recall = _recall(corpus, outcomes) if is_whole else None
        told = {"rows": list(map(_as_dict, outcomes)), "recall": recall, "exit_code": int(code)}
        click.echo(json.dumps(told, indent=2))
        return code
    console = make_console()
    taken_up = [outcome for outcome in outcomes if outcome.case.row.family in corpus.families]
    _print_rows(console, taken_up if is_whole else outcomes)
    if details:
        for outcome in outcomes:
            _print_details(console, outcome)
    for line in recall_lines(corpus, outcomes):
        console.print(line, markup=False)
    console.print(f"exit code {int(code)}", markup=False)
    return code


def exit_of(outcomes: Iterable[Outcome]) -> Exit:
    """0 if every scenario is caught and every twin is clean, otherwise 1."""
    wrong = any(tried.status is not Status.CAUGHT for outcome in outcomes for tried in outcome.tried)
    return Exit.VIOLATED if wrong else Exit.HOLDS


# ---- recall ----------------------------------------------------------------------------------------------------------


def recall_lines(corpus: Corpus, outcomes: Sequence[Outcome]) -> list[str]:
    """How many rows were caught, of how many: of the families taken up, and of the whole index, encoded or not."""
    if len(outcomes) < len(corpus.cases):
        return [f"{len(outcomes)} of {len(corpus.cases)} rows; recall is told over all rows: leave ID and --family out"]
    recall = _recall(corpus, outcomes)
    taken_up, everything = recall["taken_up"], recall["all"]
    return [
        f"caught {taken_up['caught']} of {taken_up['catchable']} catchable rows of {', '.join(corpus.families)}, "
        f"and {taken_up['caught_partly']} of {taken_up['partly']} partly catchable ones",
        f"{everything['rows'] - taken_up['rows']} rows are of families that are not taken up yet",
        f"of all {everything['rows']} rows of the index: {everything['caught']} of {everything['catchable']} catchable, "
        f"{everything['caught_partly']} of {everything['partly']} partly catchable; {everything['not_catchable']} are not catchable",
    ]


def _recall(corpus: Corpus, outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    taken_up = [outcome for outcome in outcomes if outcome.case.row.family in corpus.families]
    return {"taken_up": _counted(taken_up), "all": _counted(outcomes)}


def _counted(outcomes: Sequence[Outcome]) -> dict[str, int]:
    def rows(mark: Mark, *, caught: bool = False) -> int:
        return sum(outcome.case.row.mark is mark and (not caught or outcome.status is Status.CAUGHT) for outcome in outcomes)

    return {
        "rows": len(outcomes),
        "catchable": rows(Mark.CATCHABLE),
        "caught": rows(Mark.CATCHABLE, caught=True),
        "partly": rows(Mark.PARTLY),
        "caught_partly": rows(Mark.PARTLY, caught=True),
        "not_catchable": rows(Mark.NOT_CATCHABLE),
    }


# ---- rows ------------------------------------------------------------------------------------------------------------


def _print_rows(console: Console, outcomes: Sequence[Outcome]) -> None:
    table = Table("row", "family", "mark", "outcome", "by, or why not", "broken / repaired choice")
    for outcome in outcomes:
        row, status = outcome.case.row, outcome.status
        choices = dict.fromkeys(" / ".join(_choices(tried.scenario)) for tried in outcome.tried)
        table.add_row(
            escape(row.id),
            row.family,
            escape(row.catchable),
            f"[{_STYLE[status]}]{status}[/]",
            escape(_why(outcome)),
            escape("\n".join(choices)),
        )
    console.print(table)


def _why(outcome: Outcome) -> str:
    if not outcome.tried:
        return outcome.case.reason
    lines = []
    for tried in outcome.tried:
        wanted, which = tried.scenario.property, f" ({tried.scenario.name})" if len(outcome.tried) > 1 else ""
        match tried.status:
            case Status.CAUGHT:
                assert tried.violation is not None
                lines.append(f"{wanted}, line {tried.violation.line}{which}")
            case Status.MISSED:
                lines.append(f"{wanted} is not violated; found {', '.join(tried.found) or 'nothing'}{which}")
            case _:
                lines.append(f"twin: {'; '.join(tried.twin_problems)}{which}")
    return "\n".join(lines)


def _choices(scenario: Scenario) -> tuple[str, str]:
    """What the broken and the repaired engine chose, where they differ."""
    broken, repaired = scenario.broken, scenario.repaired
    if isinstance(broken, Script) and isinstance(repaired, Script):
        return ", ".join(broken.choice.differences(repaired.choice)), ", ".join(repaired.choice.differences(broken.choice))
    assert isinstance(broken, Recording)
    assert isinstance(repaired, Recording)
    return broken.choice, repaired.choice


def _print_details(console: Console, outcome: Outcome) -> None:
    case = outcome.case
    console.print(f"\n[bold]{escape(case.row.id)}[/] {escape(case.title or case.row.cause)}")
    if case.scenarios:
        console.print(f"  reported: {case.numbers}", markup=False)
    for tried in outcome.tried:
        scenario = tried.scenario
        console.print(f"  {scenario.name}: {scenario.mapping}", markup=False)
        broken, repaired = _choices(scenario)
        console.print(f"    contract {scenario.contract}; broken: {broken}; repaired: {repaired}", markup=False)
        if tried.violation is not None:
            console.print(f"    {scenario.property}: {tried.violation.sentence()}", markup=False)
        else:
            console.print(f"    {scenario.property} is not violated", markup=False)
        console.print(f"    twin: {'; '.join(tried.twin_problems) or 'nothing is violated'}", markup=False)
    if not outcome.tried:
        console.print(f"  {outcome.status}: {case.reason}", markup=False)


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    row = outcome.case.row
    told = {"id": row.id, "family": row.family, "catchable": row.catchable, "cause": row.cause, "status": outcome.status}
    if not outcome.tried:
        return {**told, "reason": outcome.case.reason}
    return {**told, "title": outcome.case.title, "numbers": outcome.case.numbers, "scenarios": list(map(_scenario_as_dict, outcome.tried))}


def _scenario_as_dict(tried: Tried) -> dict[str, Any]:
    scenario = tried.scenario
    broken, repaired = _choices(scenario)
    return {
        "name": scenario.name,
        "status": tried.status,
        "mapping": scenario.mapping,
        "contract": scenario.contract,
        "property": scenario.property,
        "broken": broken,
        "repaired": repaired,
        "violation": None if tried.violation is None else tried.violation.as_dict(),
        "found": list(tried.found),
        "twin_exit_code": tried.twin.exit_code,
    }
