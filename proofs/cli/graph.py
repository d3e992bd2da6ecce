"""`settled graph`: every state of a small engine, and who waits for whom where it is stuck."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from settled.proofs.cli.numbers import Count
from settled.proofs.cli.refusal import UnknownNameError

STATES_MAX = 20_000


@click.command()
@click.argument("names", nargs=-1, metavar="[SCENARIO]...")
@click.option("--all", "everything", is_flag=True, help="All scenarios, the wrong ones too.")
@click.option("--list", "lists", is_flag=True, help="Say which scenarios there are.")
@click.option("--states-max", type=Count(min=1), default=STATES_MAX, show_default=True, help="Give up a scenario that has more states.")
@click.option(
    "--dot",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write SCENARIO.dot to DIR, all states, and SCENARIO.waits.dot, who waits for whom where it is stuck.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def graph(names: tuple[str, ...], everything: bool, lists: bool, states_max: int, folder: Path | None, as_json: bool) -> None:
    """Explore all states of small engines: those named, or all that should be right.

    A state is stuck when nothing but an abort leads on; in a circle the engine goes on for ever and no token is gained. Both are shown with
    the way there and who waits for whom. Exit code 0: neither is there. 1: one of them is. 2: bad input. 3: there are more states than
    --states-max.
    """
    from settled.proofs.graphs.scenarios import SCENARIOS
    from settled.proofs.report import graphing

    if lists and (names or everything or folder or as_json):
        raise click.UsageError("--list goes alone")
    if lists:
        sys.exit(graphing.print_list())
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        raise UnknownNameError("scenario", unknown[0], SCENARIOS)
    if names and everything:
        raise click.UsageError("name scenarios, or give --all")
    wanted = list(dict.fromkeys(names)) or [name for name, named in SCENARIOS.items() if named.is_right or everything]
    sys.exit(graphing.run(wanted, states_max=states_max, folder=folder, as_json=as_json))
