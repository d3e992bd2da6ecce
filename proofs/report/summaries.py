"""What check, hunt and fuzz came to, as suites of cases."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from settled.model.events import Config, Event
from settled.model.monitor import PropertyResult, Report, Verdict, Violation, default_contract
from settled.model.properties import Contract, Property
from settled.model.trace_io import encode_event, read_trace
from settled.proofs.fuzzing.campaign import Progress as FuzzProgress
from settled.proofs.fuzzing.corpus import Entry
from settled.proofs.hunting.campaign import Judged, Plan, Progress
from settled.proofs.hunting.corpus import reproducing_commands
from settled.proofs.hunting.finding import Finding, contract_name, rank
from settled.proofs.report.console import PIPE_COLUMNS, plain_text
from settled.proofs.report.found_picture import PICTURE_ROWS_MAX, events_of, first_violation, picture_of
from settled.proofs.report.picture import draw
from settled.proofs.report.signs import UNICODE
from settled.proofs.report.summary import Case, Outcome, Suite

FILE_ONLY = "-"  # standard input: nothing of it can be read again


# ---- check -----------------------------------------------------------------------------------------------------------


def suite_of_trace(report: Report, config: Config, trace: str) -> Suite:
    """A case a property. `trace`: the file, which is read again for the picture of each violated one; FILE_ONLY for none."""
    cases = [_case_of(result, report, trace) for result in report.properties]
    return Suite(subject=config.engine, done=f"{report.events} events of {trace}", cases=cases)


def _case_of(result: PropertyResult, report: Report, trace: str) -> Case:
    contract, name = report.contract.value, result.property.value
    if result.verdict is not Verdict.VIOLATED:
        outcome = Outcome.PASSED if result.verdict is Verdict.HOLDS else Outcome.SKIPPED
        why = "; ".join([result.verdict.value, *result.remarks, *report.unknown, *report.remarks])
        return Case(contract=contract, property_name=name, outcome=outcome, told="" if outcome is Outcome.PASSED else why)
    first = result.violations[0]
    more = f" {result.count - 1} more violations of it follow." if result.count > 1 else ""
    is_file = trace != FILE_ONLY
    commands = [shlex.join(["settled", "check", trace, "--contract", contract, "--property", name, "--picture"])] if is_file else []
    picture = _picture_in(Path(trace), first) if is_file else ""
    told = first.sentence() + more
    return Case(
        contract=contract, property_name=name, outcome=Outcome.FAILED, told=told, cause=first.cause, picture=picture, commands=commands
    )


def _picture_in(trace: Path, violation: Violation) -> str:
    with trace.open("rb") as lines:
        return _drawn(takewhile(lambda numbered: numbered[0] <= violation.line, read_trace(lines, str(trace))), violation)


def _drawn(events: Iterator[tuple[int, Event]], violation: Violation) -> str:
    return plain_text(draw(events, violation, width=PIPE_COLUMNS, signs=UNICODE, rows_max=PICTURE_ROWS_MAX))


_KNOWN = (Verdict.VIOLATED, Verdict.HOLDS)


# ---- hunt ------------------------------------------------------------------------------------------------------------


def suite_of_hunt(plan: Plan, progress: Progress, kept: Mapping[str, Path], error: str = "") -> Suite:
    """A case a finding, and one a contract and property of which no finding is told. `kept`: files of findings, by their names.

    `error`: why the hunt ended before it was over.
    """
    cases = [
        _found_case(finding, kept.get(finding.name)) for finding in sorted(progress.findings.values(), key=lambda each: rank(each.key))
    ]
    found = {(case.contract, case.property_name) for case in cases}
    cases += [case for case in _other_cases(plan, progress) if (case.contract, case.property_name) not in found]
    if error:
        cases.append(Case(contract=contract_name(plan.contract), property_name="harness", outcome=Outcome.ERROR, told=error))
    drawn = f"the workload of {plan.path}" if plan.path else f"{progress.workloads} workloads of mix {plan.mix}, seed {plan.seed}"
    return Suite(subject=progress.engine, done=f"{drawn}, {progress.steps} steps", cases=cases, seconds=progress.seconds)


def _found_case(finding: Finding, path: Path | None) -> Case:
    events = events_of(finding)
    contract = finding.contract
    if contract is None and events and isinstance(events[0], Config):
        contract = default_contract(events[0])
    again = reproducing_commands(finding, path) if path is not None else [finding.command]
    return Case(
        contract=contract_name(contract),
        property_name=finding.key.property,
        outcome=Outcome.FAILED,
        told=finding.sentence,
        cause=" ".join(filter(None, (finding.key.cause, finding.key.kind))),
        picture=plain_text(picture_of(finding, width=PIPE_COLUMNS, signs=UNICODE)),
        trace=finding.trace,
        commands=again,
    )


def _other_cases(plan: Plan, progress: Progress) -> Iterator[Case]:
    """A case for each contract and property that was judged. One that was checked in no workload is skipped.

    A finding is told once, under the contract of the workload that showed it first: others may show it under another contract.
    """
    for contract in sorted({judged.contract for judged in progress.verdicts}):
        for name in filter(plan.counts, dict.fromkeys([*(each.value for each in Property), *plan.properties])):
            violated, holds = [progress.verdicts.get(Judged(contract, name, verdict.value), 0) for verdict in _KNOWN]
            outcome = Outcome.FAILED if violated else Outcome.PASSED if holds else Outcome.SKIPPED
            told, commands = "" if holds else "checked in no workload", list[str]()
            if violated:
                told = f"violated in {violated} workload{'s' * (violated > 1)}, for causes that are told under another contract"
                commands = [finding.command for key, finding in progress.findings.items() if key.property == name][:1]
            yield Case(contract=contract, property_name=name, outcome=outcome, told=told, commands=commands)


# ---- fuzz ------------------------------------------------------------------------------------------------------------


def suites_of_fuzz(
    contract: Contract, seed: int, done: Mapping[str, FuzzProgress], kept: Sequence[Entry], traces: Mapping[str, Path], error: str = ""
) -> list[Suite]:
    """A suite a discipline. `kept`: findings of earlier runs that are still violated. `traces`: files of findings, by their names.

    `error`: why the last of them ended before it was over.
    """
    suites = []
    for name, progress in done.items():
        entries = [*[entry for entry in kept if entry.discipline.name == name], *progress.entries.values()]
        cases = [_entry_case(entry, traces.get(entry.name)) for entry in entries]
        found = {case.property_name for case in cases}
        is_judged = progress.runs > progress.undecided
        for each in Property:
            if each.value not in found:
                told = "" if is_judged else "no run was judged to its end"
                outcome = Outcome.PASSED if is_judged else Outcome.SKIPPED
                cases.append(Case(contract=contract.value, property_name=each.value, outcome=outcome, told=told))
        if error and progress is list(done.values())[-1]:
            cases.append(Case(contract=contract.value, property_name="harness", outcome=Outcome.ERROR, told=error))
        told_done = f"{progress.runs} runs, seed {seed}, {progress.operations} operations"
        suites.append(Suite(subject=f"settled.reference, discipline {name}", done=told_done, cases=cases))
    return suites


def _entry_case(entry: Entry, trace: Path | None) -> Case:
    events = list(enumerate(entry.events(), start=1))
    violation = first_violation(events, entry.contract, entry.key)
    judging = [] if trace is None else [shlex.join(["settled", "check", str(trace), "--contract", entry.contract.value, "--picture"])]
    return Case(
        contract=entry.contract.value,
        property_name=entry.key.property,
        outcome=Outcome.FAILED,
        told=entry.sentence,
        cause=" ".join(filter(None, (entry.key.cause, entry.key.kind))),
        picture="" if violation is None else _drawn(iter([each for each in events if each[0] <= violation.line]), violation),
        trace=[encode_event(event) for _, event in events],
        commands=[entry.command, *judging],
    )
