"""`settled show`: a trace as a picture, in the terminal or as a page, an image, or a file for Perfetto."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from settled.model.properties import Contract, Property
from settled.proofs.cli.refusal import Choice
from settled.proofs.cli.trace_input import check_outputs, opened, refusal_of

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("trace", metavar="TRACE")
@click.option(
    "--contract",
    type=Choice([contract.value for contract in Contract]),
    help="What makes a free safe. Default: settled if the trace's engine has a KV consumer, stream_order if not.",
)
@click.option(
    "--property",
    "properties",
    type=Choice([known.value for known in Property]),
    multiple=True,
    help="Judge this property only; may be given several times.",
)
@click.option("--html", type=_FILE, metavar="FILE", help="Write one page to look at in a browser; it loads nothing from anywhere.")
@click.option("--perfetto", type=_FILE, metavar="FILE", help="Write Chrome trace JSON, for ui.perfetto.dev.")
@click.option("--svg", type=_FILE, metavar="FILE", help="Write an image of the first violation and what is around it.")
def show(trace: str, contract: str | None, properties: tuple[str, ...], html: Path | None, perfetto: Path | None, svg: Path | None) -> None:
    """Show what a trace (NDJSON, schema version 1) tells: who holds which block, what each step in flight reads, what is violated.

    TRACE is a file, or - for standard input. Without an option, the first violation is drawn in the terminal. Exit codes are those of
    settled check.
    """
    from settled.model.trace_io import TraceError, read_trace
    from settled.proofs.report import showing
    from settled.proofs.showing.timeline import timeline_of
    from settled.proofs.showing.writing import Files

    wanted = [Property(name) for name in dict.fromkeys(properties)] or list(Property)
    check_outputs(trace, (html, perfetto, svg))
    try:
        with opened(trace) as (lines, source):
            timeline = timeline_of(list(read_trace(lines, source)), source, Contract(contract) if contract else None, wanted)
    except (TraceError, OSError) as error:
        raise refusal_of(trace, error) from error
    sys.exit(showing.run(timeline, Files(html=html, perfetto=perfetto, svg=svg)))
