"""What `settled hunt` prints: findings as they come, with their pictures, then what was reached."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from settled.proofs.cli.ending import EXIT_INTERRUPTED
from settled.proofs.hunting.campaign import Plan, Progress, WorkloadFailedError, unjudged
from settled.proofs.hunting.corpus import HuntCorpus, kept_failure
from settled.proofs.hunting.faults import HarnessError
from settled.proofs.hunting.finding import Finding, contract_name, finding_as_dict, rank
from settled.proofs.hunting.launching import hunt_of
from settled.proofs.hunting.messages import progress_as_dict
from settled.proofs.report.console import make_console
from settled.proofs.report.found_text import Teller
from settled.proofs.report.progress_line import progress_line
from settled.proofs.report.reached import print_coverage
from settled.proofs.report.summaries import suite_of_hunt
from settled.proofs.report.summary import NO_SUMMARIES, SummaryFiles
from settled.proofs.runner import Exit
from settled.proofs.showing.writing import Pages

_REFUSALS_SHOWN = 5
_REFUSAL_LENGTH = 100


@dataclass
class _Session:
    """One call of the command."""

    console: Console
    plan: Plan
    teller: Teller
    progress: Progress | None = None

    @property
    def found(self) -> list[Finding]:
        """What matters most comes first."""
        findings = [] if self.progress is None else self.progress.findings.values()
        return sorted(findings, key=lambda finding: rank(finding.key))

    @property
    def exit(self) -> Exit:
        assert self.progress is not None
        if self.progress.findings:
            return Exit.VIOLATED
        is_judged = self.progress.workloads and not self.progress.undecided and not unjudged(self.plan, self.progress)
        return Exit.HOLDS if is_judged else Exit.UNKNOWN


def run(plan: Plan, *, folder: Path | None, pages: Path | None = None, as_json: bool, summaries: SummaryFiles = NO_SUMMARIES) -> Exit:
    """One hunt. Raises OSError, EngineError, HarnessError.

    What has been found until then is kept, and printed as JSON if asked for, before an interrupt or a HarnessError of a workload passes on.
    """
    summaries.make_room()
    console, corpus = make_console(), HuntCorpus(folder) if folder is not None else None
    session = _Session(console, plan, Teller(console, corpus, pages=Pages(pages) if pages is not None else None, is_quiet=as_json))
    try:
        with (
            progress_line(console, plan.engine, is_quiet=as_json) as say,
            hunt_of(plan, session.teller.tell, partial(_say_how_far, say)) as hunt,
        ):
            session.progress = hunt.progress
            hunt.run()
    except KeyboardInterrupt:
        _tell_what_is_left(session, as_json, EXIT_INTERRUPTED)
        _summarise(session, summaries, "interrupted")
        raise
    except WorkloadFailedError as error:
        _tell_what_is_left(session, as_json, Exit.BAD_INPUT)
        _summarise(session, summaries, str(error))
        raise HarnessError(f"{error}\n{kept_failure(corpus, plan, error)}") from error
    session.teller.tell_rest(session.found)
    if as_json:
        click.echo(json.dumps(_report(session, session.exit), indent=2))
    else:
        _print_summary(session, session.progress)
    _summarise(session, summaries)
    return session.exit


def _summarise(session: _Session, summaries: SummaryFiles, error: str = "") -> None:
    progress = session.progress
    if progress is not None:
        summaries.write(lambda: [suite_of_hunt(session.plan, progress, session.teller.kept, error)])


def _tell_what_is_left(session: _Session, as_json: bool, code: int) -> None:
    """Of a hunt that ends before it is over."""
    session.teller.tell_rest(session.found)
    if as_json:
        click.echo(json.dumps(_report(session, code), indent=2))


def _say_how_far(say: Callable[[str], None], progress: Progress) -> None:
    found = f", {len(progress.findings)} found" if progress.findings else ""
    refused = f", {progress.refused.total()} setups refused" if progress.refused else ""
    say(f"{progress.workloads} workloads, {progress.steps} steps{refused}{found}")


# ---- summaries -------------------------------------------------------------------------------------------------------


def _print_summary(session: _Session, progress: Progress) -> None:
    console = session.console
    if progress.workloads > 1:
        print_coverage(console, progress.coverage)
    if progress.workloads > 1 and progress.showing:
        _print_showing(console, progress)
    for reason, times in progress.refused.most_common(_REFUSALS_SHOWN):
        console.print(f"refused {times} times: {reason[:_REFUSAL_LENGTH]}", markup=False)
    for name in unjudged(session.plan, progress):
        console.print(f"note: {name} was checked in no workload", markup=False)
    speed = f"{progress.workloads / progress.seconds:.0f} workloads a second" if progress.seconds else "no workload"
    first = "" if progress.seconds_to_first is None else f", the first after {progress.seconds_to_first:.2f} s"
    console.print(
        f"{progress.engine}: {progress.workloads} workloads, {progress.operations} operations, {progress.steps} steps, {progress.events} "
        f"events in {progress.seconds:.1f} s ({speed}); {progress.refused.total()} setups refused; {len(progress.findings)} findings{first}"
        + (f"; {progress.undecided} workloads could not be judged" if progress.undecided else "")
    )
    console.print(f"{asked_text(session.plan)}; exit code {int(session.exit)}")


def asked_text(plan: Plan) -> str:
    """What was hunted for, in words."""
    contract = "by the configuration" if plan.contract is None else plan.contract
    only = f", only {', '.join(plan.properties)}" if plan.properties else ""
    return f"mix {plan.mix}, seed {plan.seed}, contract {contract}{only}"


def asked_of(plan: Plan) -> dict[str, Any]:
    """The same as plain values for JSON; `properties` is empty for all."""
    contract = contract_name(plan.contract)
    return {"mix": plan.mix, "seed": plan.seed, "contract": contract, "properties": list(plan.properties)}


def _print_showing(console: Console, progress: Progress) -> None:
    table = Table("property", "cause", "kind", "workloads")
    for key, times in sorted(progress.showing.items(), key=lambda each: (rank(each[0]), each[0])):
        table.add_row(key.property, escape(key.cause), key.kind, str(times))
    console.print(table)


def _report(session: _Session, code: int) -> dict[str, Any]:
    progress, kept = session.progress, session.teller.kept
    assert progress is not None
    findings = [
        {**finding_as_dict(finding), "kept": str(kept[finding.name]) if finding.name in kept else None} for finding in session.found
    ]
    return {**asked_of(session.plan), **progress_as_dict(progress), "findings": findings, "exit_code": int(code)}
