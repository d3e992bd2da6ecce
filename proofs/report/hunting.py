"""What `settled hunt` prints: findings as they come, with their pictures, then what was reached."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from settled.proofs.cli.ending import EXIT_INTERRUPTED
from settled.proofs.hunting.campaign import Plan, Progress, Told, WorkloadFailedError
from settled.proofs.hunting.corpus import HuntCorpus, kept_failure, reproducing_commands
from settled.proofs.hunting.faults import HarnessError
from settled.proofs.hunting.finding import Finding, contract_name, finding_as_dict
from settled.proofs.hunting.launching import hunt_of
from settled.proofs.hunting.messages import progress_as_dict
from settled.proofs.hunting.script import script_for
from settled.proofs.report.console import make_console
from settled.proofs.report.found_picture import picture_of, picture_text
from settled.proofs.report.progress_line import progress_line
from settled.proofs.report.reached import print_coverage
from settled.proofs.report.signs import signs_for
from settled.proofs.runner import Exit

_REFUSALS_SHOWN = 5
_REFUSAL_LENGTH = 100


@dataclass
class _Session:
    """One call of the command."""

    console: Console
    plan: Plan
    corpus: HuntCorpus | None
    is_quiet: bool  # JSON at the end, nothing before
    progress: Progress | None = None
    kept: dict[str, Path] = field(default_factory=dict)  # by the finding's name

    def say(self, text: str) -> None:
        if not self.is_quiet:
            self.console.print(text)

    def tell(self, told: Told) -> None:
        """Prints a finding before it is written: a disk may be full."""
        finding = told.finding
        if told.is_shrunk:
            self._tell_shrunk(finding)
        else:
            of_kind = f", {finding.key.kind}" if finding.key.kind else ""
            words = f"[bold red]{escape(finding.engine)}[/] violates [bold]{finding.key.property}[/]"
            self.say(f"{words} ({escape(finding.key.cause)}{of_kind}) in workload {finding.number}")
            self.say(f"  {escape(finding.command)}")
        if self.corpus is not None:
            path = self.corpus.write(finding, picture=picture_text(finding), script=script_for(finding), is_shrunk=told.is_shrunk)
            if path is not None:
                self.kept[finding.name] = path
            if path is not None and told.is_shrunk:
                self.say("".join(f"  {escape(command)}\n" for command in reproducing_commands(finding, path)).rstrip())

    def _tell_shrunk(self, finding: Finding) -> None:
        operations = ", ".join(type(each).__name__.lower() for each in finding.done)
        self.say(f"  shrunk to {finding.steps} scheduled steps: {operations}")
        if not self.is_quiet:
            self.console.print(picture_of(finding, width=self.console.width, signs=signs_for(self.console.encoding)))
        self.say(f"  {escape(finding.sentence)}")

    @property
    def exit(self) -> Exit:
        assert self.progress is not None
        if self.progress.findings:
            return Exit.VIOLATED
        return Exit.HOLDS if self.progress.workloads and not self.progress.undecided else Exit.UNKNOWN


def run(plan: Plan, *, folder: Path | None, as_json: bool) -> Exit:
    """One hunt. Raises OSError, EngineError, HarnessError.

    An interrupt passes through; as JSON, what has been found until then is printed first.
    """
    session = _Session(make_console(), plan, HuntCorpus(folder) if folder is not None else None, as_json)
    try:
        with (
            progress_line(session.console, plan.engine, is_quiet=as_json) as say,
            hunt_of(plan, session.tell, partial(_say_how_far, say)) as hunt,
        ):
            session.progress = hunt.progress
            hunt.run()
    except KeyboardInterrupt:
        if as_json:
            click.echo(json.dumps(_report(session, EXIT_INTERRUPTED), indent=2))
        raise
    except WorkloadFailedError as error:
        raise HarnessError(f"{error}\n{kept_failure(session.corpus, plan, error)}") from error
    if as_json:
        click.echo(json.dumps(_report(session, session.exit), indent=2))
    else:
        _print_summary(session, session.progress)
    return session.exit


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
    speed = f"{progress.workloads / progress.seconds:.0f} workloads a second" if progress.seconds else "no workload"
    first = "" if progress.seconds_to_first is None else f", the first after {progress.seconds_to_first:.2f} s"
    console.print(
        f"{progress.engine}: {progress.workloads} workloads, {progress.operations} operations, {progress.steps} steps, {progress.events} "
        f"events in {progress.seconds:.1f} s ({speed}); {progress.refused.total()} setups refused; {len(progress.findings)} findings{first}"
        + (f"; {progress.undecided} workloads could not be judged" if progress.undecided else "")
    )
    plan = session.plan
    contract = "by the configuration" if plan.contract is None else plan.contract
    console.print(f"mix {plan.mix}, seed {plan.seed}, contract {contract}; exit code {int(session.exit)}")


def _print_showing(console: Console, progress: Progress) -> None:
    table = Table("property", "cause", "kind", "workloads")
    for key, times in sorted(progress.showing.items()):
        table.add_row(key.property, escape(key.cause), key.kind, str(times))
    console.print(table)


def _report(session: _Session, code: int) -> dict[str, Any]:
    plan, progress = session.plan, session.progress
    assert progress is not None
    findings = [
        {**finding_as_dict(finding), "kept": str(session.kept[finding.name]) if finding.name in session.kept else None}
        for finding in progress.findings.values()
    ]
    asked = {"mix": plan.mix, "seed": plan.seed, "contract": contract_name(plan.contract)}
    return {**asked, **progress_as_dict(progress), "findings": findings, "exit_code": int(code)}
