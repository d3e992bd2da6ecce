"""`settled check`: a recorded trace, judged event by event."""

from __future__ import annotations

import json
import sys
from itertools import takewhile
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from settled.model.properties import Contract, Property
from settled.proofs.cli.refusal import Choice
from settled.proofs.cli.summary_options import summary_options
from settled.proofs.cli.trace_input import check_outputs, opened, refusal_of

if TYPE_CHECKING:
    from rich.console import Console

    from settled.model.events import Config
    from settled.model.monitor import Monitor, PropertyResult, Report

PICTURE_ROWS_MAX = 12
_STYLE = {"holds": "green", "violated": "bold red", "not checked": "yellow", "undecided": "yellow"}
_EXIT_MEANING = {0: "holds", 1: "violated", 3: "unknown"}


@click.command(name="check")
@click.argument("trace", metavar="TRACE")
@click.option(
    "--contract",
    type=Choice([contract.value for contract in Contract]),
    help="What makes a free safe. Default: settled if the trace's engine has a KV consumer, stream_order if not.",
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    type=Choice([name.value for name in Property]),
    help="Check this property only; may be given several times.",
)
@click.option("--picture", is_flag=True, help="Draw the first violation; reads the file a second time.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a page that shows the trace and all that it violates; reads the file a second time.",
)
@summary_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def check(
    trace: str,
    contract: str | None,
    properties: tuple[str, ...],
    picture: bool,
    html: Path | None,
    junit: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Check a trace (NDJSON, schema version 1) of an engine, line by line; TRACE is a file, or - for standard input.

    Exit code 0: every property that the trace records holds. 1: one is violated. 2: the input is not a valid trace. 3: unknown, as
    events were lost, the trace stops too early, or it has groups of a kind that is not modelled.
    """
    from settled.model.trace_io import TraceError

    if picture and as_json:
        raise click.UsageError("--picture is for people, --json for machines: give one of them")
    if (picture or html) and trace == "-":
        option = "--picture" if picture else "--html"
        raise click.UsageError(f"{option} needs a file: standard input cannot be read a second time")
    check_outputs(trace, (html, junit, markdown))
    if (picture or html) and not Path(trace).is_file() and Path(trace).exists():
        raise click.UsageError("--picture and --html read the trace a second time: give a file, not a pipe")
    wanted = [Property(name) for name in dict.fromkeys(properties)] or list(Property)
    try:
        with opened(trace) as (lines, source):
            monitor, config = _watch(lines, source, Contract(contract) if contract else None, wanted)
    except (TraceError, OSError) as error:
        raise refusal_of(trace, error) from error
    report = monitor.finish()
    if as_json:
        click.echo(json.dumps({"trace": source, "engine": config.engine, **report.as_dict()}, indent=2))
    else:
        _print(report, config, source, default=contract is None)
        if picture:
            _print_picture(report, trace)
    if html is not None:
        _write_page(trace, contract, wanted, html)
    if junit or markdown:
        from settled.proofs.report.summaries import suite_of_trace
        from settled.proofs.report.summary import SummaryFiles

        SummaryFiles(junit, markdown).write(lambda: [suite_of_trace(report, config, trace)])
    sys.exit(report.exit_code)


def _watch(lines: IO[bytes], source: str, contract: Contract | None, properties: list[Property]) -> tuple[Monitor, Config]:
    """Feeds every line to a monitor; only one line is held at a time."""
    from settled.model.events import Config
    from settled.model.monitor import Monitor
    from settled.model.trace_io import read_trace

    events = read_trace(lines, source)
    line, config = next(events)
    assert isinstance(config, Config)
    monitor = Monitor(config, contract, properties, source=source)
    monitor.feed(line, config)
    for line, event in events:
        monitor.feed(line, event)
    return monitor, config


def _why_default(config: Config) -> str:
    if not config.kv_consumer:
        return "without a KV consumer"
    return "with a KV consumer" if config.max_in_flight_steps > 1 else "with one step in flight"


def _print(report: Report, config: Config, source: str, *, default: bool) -> None:
    from rich.table import Table

    from settled.proofs.report.console import make_console

    console = make_console()
    why = f"the default {_why_default(config)}" if default else "as asked"
    console.print(f"{source}: {config.engine}, {report.events} events", markup=False)
    for group, spec in enumerate(config.groups):
        console.print(f"  group {group}: {spec.kind}, blocks of {spec.block_size} tokens", markup=False)
    console.print(f"contract {report.contract} ({why}): {report.contract.meaning}", markup=False)
    table = Table("property", "verdict", "found", "of which, and remarks")
    for result in report.properties:
        notes = [f"{count} {cause}" for cause, count in result.causes.items()]
        in_part = result.groups and len(result.groups) < len(config.groups)
        where = f" for group {', '.join(map(str, result.groups))}" if in_part else ""
        verdict = f"[{_STYLE[result.verdict]}]{result.verdict}{where}[/]"
        table.add_row(result.property, verdict, str(result.count), _escaped("\n".join([*notes, *result.remarks])))
    console.print(table)
    for result in report.properties:
        _print_violations(console, result)
    for text in (*report.unknown, *report.remarks):
        console.print(f"note: {text}", markup=False)
    console.print(f"{_EXIT_MEANING[report.exit_code]} (exit code {report.exit_code})", markup=False)


def _print_picture(report: Report, trace: str) -> None:
    """Draws the earliest violation, with what its request did just before."""
    from settled.model.trace_io import read_trace
    from settled.proofs.report.console import make_console
    from settled.proofs.report.picture import draw
    from settled.proofs.report.signs import signs_for

    found = [violation for result in report.properties for violation in result.violations]
    if not found:
        return
    earliest = min(found, key=lambda violation: violation.line)
    console = make_console()
    with Path(trace).open("rb") as lines:
        events = takewhile(lambda numbered: numbered[0] <= earliest.line, read_trace(lines, trace))
        drawing = draw(events, earliest, width=console.width, signs=signs_for(console.encoding), rows_max=PICTURE_ROWS_MAX)
    console.print()
    console.print(drawing)
    console.print(f"  {earliest.sentence()}", markup=False)


def _write_page(trace: str, contract: str | None, properties: list[Property], html: Path) -> None:
    from settled.model.trace_io import read_trace
    from settled.proofs.showing.timeline import timeline_of
    from settled.proofs.showing.writing import Files, write_pictures

    with Path(trace).open("rb") as lines:
        timeline = timeline_of(list(read_trace(lines, trace)), trace, Contract(contract) if contract else None, properties)
    write_pictures(timeline, Files(html=html))


def _print_violations(console: Console, result: PropertyResult) -> None:
    if not result.violations:
        return
    console.print(f"\n{result.property}: {result.property.meaning}", markup=False, style="bold")
    for violation in result.violations:
        console.print(f"  {violation.sentence()}", markup=False)
    if result.count > len(result.violations):
        console.print(f"  ... and {result.count - len(result.violations)} more", markup=False)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
