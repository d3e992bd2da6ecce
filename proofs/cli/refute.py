"""`settled refute`: the shortest trace by which a discipline breaks a property, and its run on the reference."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("discipline", required=False)
@click.option("--all", "everything", is_flag=True, help="Every discipline and every property that it breaks.")
@click.option("--property", "prop", help="Only this property.")
@click.option("--replay", is_flag=True, help="Execute each counterexample on the reference engine, broken and right.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of pictures.")
@click.option(
    "--traces", "folder", type=click.Path(path_type=Path, file_okay=False), help="Write each counterexample to DIR as a schema v1 trace."
)
def refute(discipline: str | None, everything: bool, prop: str | None, replay: bool, as_json: bool, folder: Path | None) -> None:
    """Break DISCIPLINE (optimistic, ceil, stale-applied, ...): find its shortest counterexample, draw it, say why.

    Shortest: every smaller length is unsatisfiable, for every window, block size and prompt. Exit code 0: every counterexample was found,
    at the length that is claimed, and replays. 1: a replay disagrees. 3: no counterexample, another length, or no answer.
    """
    from settled.model.disciplines import DISCIPLINES
    from settled.model.properties import Property
    from settled.proofs.refutations import REFUTATIONS
    from settled.proofs.report import refuting

    if everything == (discipline is not None):
        raise click.UsageError("give a discipline, or --all")
    if discipline is not None and discipline not in DISCIPLINES:
        raise click.UsageError(f"unknown discipline {discipline!r}; expected one of {', '.join(DISCIPLINES)}")
    if prop is not None and prop not in {known.value for known in Property}:
        raise click.UsageError(f"unknown property {prop!r}; expected one of {', '.join(Property)}")
    wanted = [
        refutation
        for refutation in REFUTATIONS
        if (everything or refutation.discipline.name == discipline) and (prop is None or refutation.violates == prop)
    ]
    if not wanted:
        raise click.UsageError(f"{discipline or 'no discipline'} is not known to break {prop or 'anything'}: see settled prove")
    sys.exit(refuting.run(wanted, replay=replay, as_json=as_json, folder=folder))
