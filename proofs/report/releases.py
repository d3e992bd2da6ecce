"""What `settled hunt ENGINE --releases ...` prints: findings as they come, then release × property."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from settled.model.monitor import Verdict
from settled.model.properties import Property
from settled.proofs.cli.ending import EXIT_INTERRUPTED
from settled.proofs.cli.refusal import EXIT_BAD_INPUT
from settled.proofs.found_properties import OF_EVERY_RUN
from settled.proofs.hunting.campaign import INSPECTED_EVERY, Judged, Plan, Progress, unjudged
from settled.proofs.hunting.corpus import HuntCorpus, kept_failure
from settled.proofs.hunting.finding import finding_as_dict
from settled.proofs.hunting.messages import progress_as_dict
from settled.proofs.hunting.releases import ReleaseHunt, ReleasesHunt
from settled.proofs.report.console import make_console
from settled.proofs.report.found_text import Teller
from settled.proofs.report.hunting import asked_of, asked_text
from settled.proofs.report.progress_line import progress_line
from settled.proofs.report.summaries import suite_of_hunt
from settled.proofs.report.summary import NO_SUMMARIES, SummaryFiles
from settled.proofs.runner import Exit
from settled.proofs.showing.writing import Pages

_COLUMNS = (*(each.value for each in Property), *OF_EVERY_RUN)


def run(
    plans: Sequence[Plan], *, folder: Path | None, pages: Path | None = None, as_json: bool, summaries: SummaryFiles = NO_SUMMARIES
) -> int:
    """One hunt for each plan. Raises OSError. Exit code 2 if a process failed, else 1 if anything is violated."""
    summaries.make_room()
    console, corpus = make_console(), HuntCorpus(folder) if folder is not None else None
    teller, counts = (
        Teller(console, corpus, pages=Pages(pages) if pages is not None else None, is_quiet=as_json, has_pictures=False),
        dict[str, int](),
    )
    with progress_line(console, f"{len(plans)} releases", is_quiet=as_json) as say:

        def tick(progress: Progress) -> None:
            counts[progress.engine] = progress.workloads
            say(", ".join(f"{engine}: {workloads}" for engine, workloads in sorted(counts.items())))

        hunt = ReleasesHunt(plans, teller.tell, tick)
        try:
            hunt.run()
        except KeyboardInterrupt:
            teller.tell_rest(finding for result in hunt.results for finding in result.progress.findings.values())
            _print(console, plans[0], hunt.results, EXIT_INTERRUPTED, as_json=as_json)
            summaries.write(
                lambda: [suite_of_hunt(each.plan, each.progress, teller.kept, each.error or "interrupted") for each in hunt.results]
            )
            raise
    teller.tell_rest(finding for result in hunt.results for finding in result.progress.findings.values())
    for result in hunt.results:
        if result.failed is not None:
            result.error += f"\n{kept_failure(corpus, result.plan, result.failed)}"
    code = exit_code(hunt.results)
    _print(console, plans[0], hunt.results, code, as_json=as_json)
    summaries.write(lambda: [suite_of_hunt(each.plan, each.progress, teller.kept, each.error) for each in hunt.results])
    return code


def exit_code(results: Sequence[ReleaseHunt]) -> int:
    """What goes wrong never ends with a verdict."""
    if any(result.error for result in results):
        return EXIT_BAD_INPUT
    if any(result.progress.findings for result in results):
        return int(Exit.VIOLATED)
    judged = all(each.progress.workloads and not each.progress.undecided and not unjudged(each.plan, each.progress) for each in results)
    return int(Exit.HOLDS if judged else Exit.UNKNOWN)


def _print(console: Console, plan: Plan, results: Sequence[ReleaseHunt], code: int, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_report(plan, results, code), indent=2))
        return
    columns = _columns(plan, results)
    table = Table("release", "contract", "workloads", *[name.replace("_", " ") for name in columns])
    for result in results:
        for contract in sorted({judged.contract for judged in result.progress.verdicts}):
            table.add_row(*_row(result, contract, columns))
    console.print(table)
    console.print("a number: workloads that violate it; holds: none of those in which it was checked; ·: checked in none")
    console.print(f"live objects are inspected in one workload of {INSPECTED_EVERY}: what only they show is counted in those alone")
    for result in results:
        if result.error:
            console.print(f"[bold red]{result.plan.engine} failed[/] after {result.progress.workloads} workloads: {escape(result.error)}")
    console.print(f"{asked_text(plan)}; exit code {code}")


def _columns(plan: Plan, results: Sequence[ReleaseHunt]) -> tuple[str, ...]:
    """What every release is judged by, and what inspections of live objects found besides."""
    found = {judged.property for result in results for judged in result.progress.verdicts}
    return tuple([name for name in (*_COLUMNS, *sorted(found - {*_COLUMNS})) if plan.counts(name)])


def _row(result: ReleaseHunt, contract: str, columns: Sequence[str]) -> list[str]:
    """`contract` is "" for workloads in which the engine failed before its first event."""
    verdicts = result.progress.verdicts
    workloads = max(_workloads(verdicts, contract, name) for name in columns)
    cells = [cell(verdicts, contract, name) for name in columns]
    return [result.progress.engine, contract or "none", str(workloads), *cells]


def cell(verdicts: dict[Judged, int], contract: str, name: str) -> str:
    """What a release does to a property under a contract."""
    violated = verdicts.get(Judged(contract, name, Verdict.VIOLATED.value), 0)
    if violated:
        return f"[bold red]{violated}[/]"
    if name in OF_EVERY_RUN:
        return "holds" if contract else "·"
    return "holds" if verdicts.get(Judged(contract, name, Verdict.HOLDS.value), 0) else "·"


def _workloads(verdicts: dict[Judged, int], contract: str, name: str) -> int:
    return sum(times for judged, times in verdicts.items() if judged.contract == contract and judged.property == name)


def _report(plan: Plan, results: Sequence[ReleaseHunt], code: int) -> dict[str, Any]:
    releases = [
        {
            **progress_as_dict(result.progress),
            "findings": [finding_as_dict(finding) for finding in result.progress.findings.values()],
            "error": result.error,
        }
        for result in results
    ]
    return {**asked_of(plan), "releases": releases, "exit_code": code}
