"""What a refutation prints: the picture, the sentence, the run on the reference, and a table of all; or the same as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from settled.model.counters import Counters, settled
from settled.model.disciplines import DISCIPLINES, RIGHT
from settled.model.events import Event, Process, Release, Schedule
from settled.model.explicit import SCOPE
from settled.model.kinds import SlidingWindow
from settled.model.properties import Property
from settled.model.search.bounded import Shortest, UndecidedError
from settled.model.trace_io import encode_event, write_trace
from settled.proofs.folder import naming
from settled.proofs.progress import STEPS_MAX, two_requests
from settled.proofs.refutations import Counterexample, Refutation, Replayed, run_on_reference, search
from settled.proofs.report.console import make_console
from settled.proofs.report.picture import draw
from settled.proofs.report.signs import signs_for
from settled.proofs.runner import Exit
from settled.proofs.showing.data import About
from settled.proofs.showing.writing import Pages

if TYPE_CHECKING:
    from settled.proofs.differential.shown import Shown

ABOUT_BYTES = (Property.READ_RESIDENT, Property.WRITE_OWNED, Property.ROLLBACK_RESIDENT)


@dataclass(frozen=True)
class Outcome:
    """What became of one refutation."""

    refutation: Refutation
    counterexample: Counterexample | None
    replayed: Replayed | None
    seconds: float
    problem: str = ""
    on_bytes: OnBytes | None = None

    @property
    def exit(self) -> Exit:
        if self.problem:
            return Exit.UNKNOWN
        agrees = self.replayed is None or self.replayed.agrees(self.refutation)
        return Exit.HOLDS if agrees and (self.on_bytes is None or self.on_bytes.agrees) else Exit.VIOLATED


@dataclass(frozen=True)
class OnBytes:
    """What real buffers make of the counterexample, and of the same decisions under the right discipline."""

    broken: Shown | None
    right: Shown | None

    @property
    def agrees(self) -> bool:
        """A token comes out wrong, and with the right discipline none."""
        return self.broken is not None and self.right is None


def run(
    refutations: Sequence[Refutation],
    *,
    replay: bool,
    on_bytes: bool,
    as_json: bool,
    folder: Path | None = None,
    pages: Path | None = None,
) -> Exit:
    """Searches, judges, replays and prints each refutation; returns the worst exit code. `on_bytes`: on real buffers too, with torch.

    Traces go to `folder`, pages to `pages`.
    """
    console, page_folder = make_console(), None if pages is None else Pages(pages)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)  # fails before the search, not after it
    outcomes = []
    for refutation in refutations:
        outcome = attempt(refutation, replay=replay, on_bytes=on_bytes)
        outcomes.append(outcome)
        if folder is not None and outcome.counterexample is not None:
            _write(outcome.counterexample, outcome.replayed, folder)
        if page_folder is not None and outcome.counterexample is not None:
            _write_pages(outcome.counterexample, outcome.replayed, page_folder)
        if not as_json:
            print_outcome(console, outcome)
    code = max((outcome.exit for outcome in outcomes), default=Exit.UNKNOWN)
    if as_json:
        click.echo(json.dumps({"refutations": [_as_dict(outcome) for outcome in outcomes], "exit_code": int(code)}, indent=2))
    elif len(outcomes) > 1:
        _print_summary(console, outcomes, code)
    return code


def run_stuck(name: str, *, as_json: bool) -> Exit:
    """A discipline that is refuted by a run in which nothing finishes; returns 1 if it does finish, or the right one does not."""
    broken, right = two_requests(DISCIPLINES[name]), two_requests(RIGHT)
    code = Exit.HOLDS if broken.steps is None and broken.freed_by_preempting == 0 and right.steps is not None else Exit.VIOLATED
    if as_json:
        runs = {"broken": asdict(broken), "right": asdict(right), "steps_max": STEPS_MAX}
        click.echo(json.dumps({"discipline": name, "property": "admission_progress", **runs, "exit_code": int(code)}, indent=2))
        return code
    console = make_console()
    console.print(f"\n[bold]{name}[/] ({escape(DISCIPLINES[name].summary)}) violates [bold]admission_progress[/]")
    ended = "have not finished" if broken.steps is None else f"finish after {broken.steps} steps"
    console.print(
        f"  shown by a run, not by a search: two requests that fill the pool between them {ended} after {STEPS_MAX} steps and "
        f"{broken.preemptions} preemptions, which returned {broken.freed_by_preempting} blocks at once.\n"
        f"  The right discipline waits for the step in flight: they finish after {right.steps} steps and {right.preemptions} preemptions, "
        f"which returned {right.freed_by_preempting} blocks at once.",
        markup=False,
    )
    return code


def attempt(refutation: Refutation, *, replay: bool, on_bytes: bool = False) -> Outcome:
    """One refutation, from the search to the replay, and to the buffers if its property is about bytes."""
    began = time.perf_counter()
    try:
        counterexample = search(refutation)
    except UndecidedError as error:
        return Outcome(refutation, None, None, time.perf_counter() - began, str(error))
    problem = _problem(refutation, counterexample)
    replayed = run_on_reference(counterexample) if replay and counterexample and not problem else None
    shown = _on_bytes(replayed) if on_bytes and replayed is not None and refutation.violates in ABOUT_BYTES else None
    return Outcome(refutation, counterexample, replayed, time.perf_counter() - began, problem, shown)


def _on_bytes(replayed: Replayed) -> OnBytes:
    from settled.proofs.differential.shown import show

    return OnBytes(show(replayed.events), show(replayed.right_events))


def _problem(refutation: Refutation, counterexample: Counterexample | None) -> str:
    if counterexample is None:
        return f"no counterexample within {refutation.length + 2} events"
    if counterexample.shortest.length != refutation.length:
        return f"the shortest counterexample has {counterexample.shortest.length} events, not {refutation.length}"
    if counterexample.violation is None:
        return f"the monitor does not find {refutation.violates} violated"
    return ""


def _write(counterexample: Counterexample, replayed: Replayed | None, folder: Path) -> None:
    """As NDJSON, for `settled check` to tell apart."""
    for name, events in _traces(counterexample, replayed).items():
        path = folder / f"{name}.ndjson"
        with naming(path), path.open("w", encoding="utf-8") as out:
            write_trace(events, out)


def _write_pages(counterexample: Counterexample, replayed: Replayed | None, pages: Pages) -> None:
    claim = counterexample.refutation.claim
    for name, events in _traces(counterexample, replayed).items():
        pages.write(name, events, claim.contract, About(claim.prop))


def _traces(counterexample: Counterexample, replayed: Replayed | None) -> dict[str, tuple[Event, ...]]:
    """By name: the broken trace, and what the right discipline makes of the same decisions."""
    name = counterexample.refutation.name
    right = {} if replayed is None else {f"{name}.right": replayed.right_events}
    return {name: counterexample.events, **right}


def print_outcome(console: Console, outcome: Outcome) -> None:
    """The picture of one refutation, why, and what its replay came to."""
    refutation = outcome.refutation
    console.print(f"\n[bold]{refutation.discipline.name}[/] ({escape(refutation.discipline.summary)}) violates [bold]{refutation.what}[/]")
    if outcome.problem or outcome.counterexample is None:
        console.print(f"  [bold yellow]unknown[/] {escape(outcome.problem)}")
        return
    counterexample, violation = outcome.counterexample, outcome.counterexample.violation
    assert violation is not None
    shortest = counterexample.shortest
    console.print(
        f"  shortest: {shortest.length} events; every shorter length is unsatisfiable ({SCOPE}). "
        f"Here window {_window(shortest)}, block size {shortest.block_size}, prompt {shortest.prompt} tokens."
    )
    console.print(draw(enumerate(counterexample.events, start=1), violation, width=console.width, signs=signs_for(console.encoding)))
    console.print(f"  {why(counterexample)}", markup=False)
    if outcome.replayed is not None:
        _print_replay(console, outcome.replayed, refutation)
    if outcome.on_bytes is not None:
        _print_bytes(console, outcome.on_bytes)


def why(counterexample: Counterexample) -> str:
    """One or two sentences: what was violated, and what the engine took for granted when it freed the block."""
    violation = counterexample.violation
    assert violation is not None
    sentence = violation.sentence()
    if violation.freed_at_line is None:
        return sentence
    release = counterexample.events[violation.freed_at_line - 1]
    computed, in_flight, stale = _counters_before(counterexample, violation.freed_at_line)
    certain = settled(Counters(computed, in_flight, stale))
    if isinstance(release, Release) and release.cause in ("window", "connector_finish"):
        return f"{sentence} When it was freed {computed} tokens counted as computed, {in_flight} were in flight, {certain!r} were settled."
    return sentence


def _counters_before(counterexample: Counterexample, line: int) -> tuple[int, int, int]:
    """(computed, in flight, stale) as the last event before the line showed them."""
    for event in reversed(counterexample.events[: line - 1]):
        if isinstance(event, Schedule | Process) and event.requests[0].counters is not None:
            return event.requests[0].counters
    return (0, 0, 0)


def _print_replay(console: Console, replayed: Replayed, refutation: Refutation) -> None:
    count = replayed.report.result(refutation.violates).count
    right = sum(result.count for result in replayed.right_report.properties)
    same = "same events" if replayed.same_events else "[bold red]other events[/]"
    console.print(
        f"  replay on the reference: {same}, {refutation.violates} violated {count} times; with the right discipline the same decisions "
        f"violate {'nothing' if right == 0 else f'[bold red]{right} times[/]'}"
    )


def _print_bytes(console: Console, on_bytes: OnBytes) -> None:
    wrong = "[bold red]nothing comes out wrong[/]" if on_bytes.broken is None else escape(str(on_bytes.broken))
    right = "nothing is wrong" if on_bytes.right is None else f"[bold red]{escape(str(on_bytes.right))}[/]"
    console.print(f"  on real buffers: {wrong}; with the right discipline {right}")


def _print_summary(console: Console, outcomes: Sequence[Outcome], code: Exit) -> None:
    table = Table("discipline", "property", "events", "window", "block size", "replay", "s")
    for outcome in outcomes:
        shortest = outcome.counterexample.shortest if outcome.counterexample else None
        numbers = (str(shortest.length), _window(shortest), str(shortest.block_size)) if shortest else ("-", "-", "-")
        table.add_row(
            outcome.refutation.discipline.name, outcome.refutation.what, *numbers, _replay_word(outcome), f"{outcome.seconds:.1f}"
        )
    console.print()
    console.print(table)
    total = sum(outcome.seconds for outcome in outcomes)
    console.print(f"{len(outcomes)} refutations, {total:.1f} s; exit code {int(code)}", markup=False)


def _window(shortest: Shortest) -> str:
    """The window of a kind that has one, in tokens."""
    return repr(shortest.kind.window) if isinstance(shortest.kind, SlidingWindow) else "-"


def _replay_word(outcome: Outcome) -> str:
    if outcome.problem:
        return "unknown"
    if outcome.replayed is None:
        return "not run"
    return "agrees" if outcome.replayed.agrees(outcome.refutation) else "[bold red]disagrees[/]"


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "discipline": outcome.refutation.discipline.name,
        "property": outcome.refutation.violates,
        "contract": outcome.refutation.claim.contract,
        "in_flight": outcome.refutation.claim.in_flight,
        "problem": outcome.problem,
        "seconds": round(outcome.seconds, 3),
    }
    if outcome.counterexample is not None:
        shortest = outcome.counterexample.shortest
        plain |= {
            "length": shortest.length,
            "window": shortest.kind.window if isinstance(shortest.kind, SlidingWindow) else None,
            "block_size": shortest.block_size,
            "prompt_tokens": shortest.prompt,
            "events": [json.loads(encode_event(event)) for event in outcome.counterexample.events],
            "violation": outcome.counterexample.violation.as_dict() if outcome.counterexample.violation else None,
        }
    if outcome.replayed is not None:
        plain["replay"] = {"same_events": outcome.replayed.same_events, "agrees": outcome.replayed.agrees(outcome.refutation)}
    if outcome.on_bytes is not None:
        broken, right = outcome.on_bytes.broken, outcome.on_bytes.right
        plain["bytes"] = {"broken": None if broken is None else str(broken), "right": None if right is None else str(right)}
    return plain
