"""What `settled show` prints: the verdict, then the picture of the first violation, or where pictures were written."""

from __future__ import annotations

from rich.console import Console

from settled.model.monitor import Violation
from settled.proofs.report.console import make_console
from settled.proofs.report.picture import draw
from settled.proofs.report.signs import signs_for
from settled.proofs.showing.data import notes_of
from settled.proofs.showing.story import tell
from settled.proofs.showing.timeline import Timeline
from settled.proofs.showing.writing import Files, write_pictures

PICTURE_ROWS_MAX = 12
_MEANING = {0: "holds", 1: "violated", 3: "unknown"}


def run(timeline: Timeline, files: Files) -> int:
    """Writes what is wanted; returns the exit code of the verdict. Raises OSError."""
    console = make_console()
    written = write_pictures(timeline, files)
    print_verdict(console, timeline)
    for path in written:
        console.print(f"written: {path}", markup=False)
    if timeline.violations and not written:
        print_picture(console, timeline, *timeline.violations[0])
    code = timeline.report.exit_code
    console.print(f"{_MEANING[code]} (exit code {code})", markup=False)
    return code


def print_verdict(console: Console, timeline: Timeline) -> None:
    """One line for the trace, one for what was judged."""
    told = [f"{result.property} {result.verdict}{f' {result.count} times' * bool(result.count)}" for result in timeline.report.properties]
    console.print(f"{timeline.source}: {timeline.config.engine}, {len(timeline.events)} events, contract {timeline.contract}", markup=False)
    console.print(f"  {', '.join(told)}", markup=False)
    for text in notes_of(timeline.report):
        console.print(f"note: {text}", markup=False)


def print_picture(console: Console, timeline: Timeline, position: int, violation: Violation) -> None:
    """The violation's request up to the violation, and why."""
    until = [(line, event) for line, event in timeline.events if line <= violation.line]
    console.print()
    console.print(draw(until, violation, width=console.width, signs=signs_for(console.encoding), rows_max=PICTURE_ROWS_MAX))
    told = tell(timeline, position, violation)
    console.print(f"  {violation.sentence()} {told.why}".rstrip(), markup=False)
