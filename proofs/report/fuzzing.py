"""What `settled fuzz` prints: findings as they come, then what was reached."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from settled.model.disciplines import Discipline
from settled.model.properties import Contract
from settled.proofs.cli.ending import EXIT_INTERRUPTED
from settled.proofs.fuzzing.campaign import Campaign, Plan, Progress, Told
from settled.proofs.fuzzing.corpus import Corpus, Entry, as_dict
from settled.proofs.fuzzing.coverage import Feature, by_section
from settled.proofs.fuzzing.running import run_case
from settled.proofs.report.console import make_console
from settled.proofs.report.progress_line import progress_line
from settled.proofs.report.reached import print_coverage
from settled.proofs.report.summaries import suites_of_fuzz
from settled.proofs.report.summary import NO_SUMMARIES, SummaryFiles
from settled.proofs.runner import Exit
from settled.proofs.showing.data import About
from settled.proofs.showing.writing import Pages
from settled.reference.decisions import Decision
from settled.reference.decoder import ConfigSpace, decode


@dataclass
class _Session:
    """One call of the command."""

    console: Console
    contract: Contract
    corpus: Corpus | None
    pages: Pages | None
    is_quiet: bool  # JSON at the end, nothing before
    kept: list[tuple[Entry, bool]] = field(default_factory=list)  # of the corpus, and whether it still reproduces
    done: dict[str, Progress] = field(default_factory=dict)
    traces: dict[str, Path] = field(default_factory=dict)  # by the finding's name

    def say(self, text: str) -> None:
        if not self.is_quiet:
            self.console.print(text)

    def tell(self, told: Told) -> None:
        """Prints a finding before it is written: a disk may be full."""
        entry = told.entry
        prop, cause, kind = entry.key
        if told.is_shrunk:
            decisions = ", ".join(map(_words, entry.case.decisions))
            self.say(f"  shrunk to {len(entry.case.decisions)} decisions: {escape(decisions)}")
            self.say(f"  {escape(entry.sentence)}\n  {escape(entry.command)}")
        else:
            of_kind = f", {kind}" if kind else ""
            self.say(f"[bold red]{entry.discipline.name}[/] violates [bold]{prop}[/] ({escape(cause)}{of_kind}) in run {entry.run}")
        if self.corpus is not None:
            trace = self.traces[entry.name] = self.corpus.write(entry)
            if told.is_shrunk:
                self.say(f"  kept as {escape(str(trace))}")
        if self.pages is not None:
            page = self.pages.write(entry.name, entry.events(), entry.contract, About(entry.key.property, entry.key.cause, entry.sentence))
            if told.is_shrunk:
                self.say(f"  shown in {escape(str(page))}")

    @property
    def exit(self) -> Exit:
        found = any(progress.entries for progress in self.done.values()) or any(still for _, still in self.kept)
        if found:
            return Exit.VIOLATED
        runs = sum(progress.runs for progress in self.done.values())
        undecided = sum(progress.undecided for progress in self.done.values())
        return Exit.HOLDS if runs + len(self.kept) > 0 and not undecided else Exit.UNKNOWN


def run(
    disciplines: Sequence[Discipline],
    contract: Contract,
    *,
    runs: int | None,
    seconds: float | None,
    seed: int,
    folder: Path | None,
    pages: Path | None = None,
    jobs: int,
    as_json: bool,
    summaries: SummaryFiles = NO_SUMMARIES,
) -> Exit:
    """Runs what the corpus keeps, then a campaign a discipline; `runs` and `seconds` are for each of them. Raises OSError, CorpusError.

    An interrupt passes through; what has been found until then is printed first if as JSON, and summarised.
    """
    summaries.make_room()
    corpus = Corpus(folder) if folder is not None else None
    session = _Session(make_console(), contract, corpus, Pages(pages) if pages is not None else None, as_json)
    began = time.perf_counter()
    if session.corpus is not None:
        _rerun(session, session.corpus, disciplines)

    def summarise(error: str = "") -> None:
        still = [entry for entry, is_still in session.kept if is_still]
        summaries.write(lambda: suites_of_fuzz(contract, seed, session.done, still, session.traces, error))

    try:
        _campaigns(session, disciplines, runs=runs, seconds=seconds, seed=seed, jobs=jobs)
    except KeyboardInterrupt:
        if as_json:
            click.echo(json.dumps(_report(session, seed, EXIT_INTERRUPTED), indent=2))
        summarise("interrupted")
        raise
    if as_json:
        click.echo(json.dumps(_report(session, seed, session.exit), indent=2))
    else:
        _print_summary(session, seed, time.perf_counter() - began)
    summarise()
    return session.exit


def _campaigns(
    session: _Session, disciplines: Sequence[Discipline], *, runs: int | None, seconds: float | None, seed: int, jobs: int
) -> None:
    for discipline in disciplines:
        known = frozenset(entry.key for entry, still in session.kept if still and entry.discipline is discipline)
        plan = Plan(discipline=discipline, contract=session.contract, seed=seed, runs=runs, seconds=seconds, jobs=jobs, known=known)
        with progress_line(session.console, discipline.name, is_quiet=session.is_quiet) as say:
            campaign = Campaign(plan, session.tell, partial(_say_how_far, say, plan))
            session.done[discipline.name] = campaign.progress
            campaign.run()


def run_one(discipline: Discipline, contract: Contract, numbers: bytes, *, as_json: bool) -> Exit:
    """One case: its configuration, its decisions, what they violate."""
    case = decode(numbers, ConfigSpace(discipline=discipline))
    result = run_case(case, contract=contract)
    code = Exit.VIOLATED if result.found else Exit.UNKNOWN if result.is_undecided else Exit.HOLDS
    if as_json:
        told = [{**each.key._asdict(), "decision": each.place, "sentence": each.sentence} for each in result.found.values()]
        click.echo(json.dumps({"case": numbers.hex(), "events": result.num_events, "found": told, "exit_code": int(code)}, indent=2))
        return code
    console = make_console()
    config = case.config
    for group, spec in enumerate(config.groups):
        console.print(f"group {group}: {spec}", markup=False)
    console.print(
        f"{config.num_blocks} blocks, depth {config.max_in_flight_steps}, {config.max_num_batched_tokens} tokens a step, "
        f"{config.num_speculative_tokens} drafts, {config.num_lookahead_tokens} lookahead slots, at most {config.max_model_len} tokens"
    )
    for number, decision in enumerate(case.decisions):
        console.print(f"{number:4} {_words(decision)}", markup=False)
        for found in result.found.values():
            if found.place == number:
                console.print(f"     [bold red]{found.key.property}[/] ({escape(found.key.cause)}): {escape(found.sentence)}")
    for found in result.found.values():
        if found.place == len(case.decisions):
            console.print(f" end [bold red]{found.key.property}[/] ({escape(found.key.cause)}): {escape(found.sentence)}")
    console.print(f"{result.num_events} events; exit code {int(code)}")
    return code


def _rerun(session: _Session, corpus: Corpus, disciplines: Sequence[Discipline]) -> None:
    for entry in corpus.of(disciplines, session.contract):
        still = entry.reproduces()
        session.kept.append((entry, still))
        word = "[bold red]still violated[/]" if still else "[green]no longer violated[/]"
        session.say(f"kept {entry.name}: {word}" + (f"\n  {escape(entry.command)}" if still else ""))


def _say_how_far(say: Callable[[str], None], plan: Plan, progress: Progress) -> None:
    of = f" of {plan.runs}" if plan.runs is not None else ""
    found = f", {len(progress.entries)} found" if progress.entries else ""
    say(f"{progress.runs}{of} runs, {progress.operations} operations{found}")


# ---- summaries -------------------------------------------------------------------------------------------------------


def _words(decision: Decision) -> str:
    return " ".join([decision.name, *map(str, decision.values)]) if any(decision.values) else decision.name


def _print_summary(session: _Session, seed: int, seconds: float) -> None:
    total: Counter[Feature] = Counter()
    for progress in session.done.values():
        total += progress.coverage
    if total:
        print_coverage(session.console, total)
    for name, progress in session.done.items():
        first = "" if progress.operations_to_first is None else f", the first after {progress.operations_to_first} operations"
        session.console.print(
            f"{name}: {progress.runs} runs, {progress.operations} operations, {progress.events} events; "
            f"{len(progress.entries)} new findings{first}"
            + (f"; {progress.undecided} runs could not be judged" if progress.undecided else "")
        )
    still = sum(still for _, still in session.kept)
    kept = f"; of {len(session.kept)} kept findings {still} still violated" if session.kept else ""
    session.console.print(f"contract {session.contract}, seed {seed}, {seconds:.1f} s{kept}; exit code {int(session.exit)}")


def _report(session: _Session, seed: int, code: int) -> dict[str, Any]:
    return {
        "contract": session.contract,
        "seed": seed,
        "kept": [{**as_dict(entry), "still": still} for entry, still in session.kept],
        "campaigns": {
            name: {
                "runs": progress.runs,
                "operations": progress.operations,
                "events": progress.events,
                "undecided": progress.undecided,
                "operations_to_first": progress.operations_to_first,
                "findings": [as_dict(entry) for entry in progress.entries.values()],
                "coverage": by_section(progress.coverage),
            }
            for name, progress in session.done.items()
        },
        "exit_code": int(code),
    }
