"""`settled refute`: the shortest trace by which a discipline breaks a property, and its run on the reference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from settled.model.properties import Contract, Property
from settled.proofs.cli.refusal import Choice, UnknownNameError

if TYPE_CHECKING:
    from settled.proofs.refutations import Refutation


@click.command()
@click.argument("discipline", required=False)
@click.option("--all", "everything", is_flag=True, help="Every discipline and every property that it breaks.")
@click.option("--property", "prop", type=Choice([known.value for known in Property], case_sensitive=False), help="Only this property.")
@click.option(
    "--contract",
    type=Choice([contract.value for contract in Contract]),
    default=Contract.SETTLED.value,
    show_default=True,
    help="What makes a free safe; under the last two, no writer is out of order.",
)
@click.option("--replay", is_flag=True, help="Execute each counterexample on the reference engine, broken and right.")
@click.option("--bytes", "on_bytes", is_flag=True, help="With --replay: on real KV buffers too, down to the first wrong token.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of pictures.")
@click.option(
    "--traces",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write each counterexample to DIR as a schema v1 trace; with --replay also what the right discipline does, as NAME.right.ndjson.",
)
@click.option(
    "--html",
    "pages",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write each counterexample to DIR as a page; with --replay also what the right discipline does, as NAME.right.html.",
)
def refute(
    discipline: str | None,
    everything: bool,
    prop: str | None,
    contract: str,
    replay: bool,
    on_bytes: bool,
    as_json: bool,
    folder: Path | None,
    pages: Path | None,
) -> None:
    """Break DISCIPLINE (optimistic, ceil, stale-applied, ...): find its shortest counterexample, draw it, say why.

    Shortest: every smaller length is unsatisfiable, for every window, block size, table index and prompt, of one request with steps as
    vLLM makes them and hits on its own blocks only. A discipline that breaks no such property but keeps requests from finishing is run
    instead. Exit code 0: every counterexample was found, at the length that is claimed, and replays. 1: a replay, or the buffers, disagree.
    3: no counterexample, another length, or no answer.
    """
    from settled.proofs.report import refuting

    if everything == (discipline is not None):
        raise click.UsageError("give a discipline, or --all")
    if on_bytes and not replay:
        raise click.UsageError("--bytes goes with --replay")
    if on_bytes:
        from settled.proofs.cli.missing import need

        need("torch", "real KV buffers")
    name = discipline.lower() if discipline is not None else None
    if name == STUCK and prop is None:
        sys.exit(refuting.run_stuck(name, as_json=as_json))
    wanted = _wanted(name, prop, Contract(contract))
    sys.exit(refuting.run(wanted, replay=replay, on_bytes=on_bytes, as_json=as_json, folder=folder, pages=pages))


# It frees nothing that is needed: what it breaks is progress, which a run shows and no bounded search.
STUCK = "preempt-fenced"


def _wanted(discipline: str | None, prop: str | None, contract: Contract) -> list[Refutation]:
    """The known refutations of a discipline (None: of all) and a property (None: of all) under a contract.

    `CONSEQUENCES` only where both are named. Raises UsageError where there is none.
    """
    from settled.model.disciplines import DISCIPLINES
    from settled.proofs.refutations import under

    if discipline is not None and discipline not in DISCIPLINES:
        raise UnknownNameError("discipline", discipline, DISCIPLINES)
    if discipline is not None and DISCIPLINES[discipline].is_right:
        raise click.UsageError(f"{discipline} is a right discipline: nothing is known to break it")
    known = under(contract, with_consequences=discipline is not None and prop is not None)
    of_discipline = [refutation for refutation in known if discipline in (None, refutation.discipline.name)]
    wanted = [refutation for refutation in of_discipline if prop in (None, refutation.violates)]
    if not wanted:
        breaks = ", ".join(dict.fromkeys(refutation.violates for refutation in of_discipline)) or "nothing"
        where = "" if contract is Contract.SETTLED else f" under {contract}"
        if discipline is None:
            raise click.UsageError(f"no discipline is known to break {prop}{where}; those that are broken: {breaks}")
        what = "any property" if prop is None else prop
        raise click.UsageError(f"{discipline} is not known to break {what}{where}; it breaks {breaks}")
    return wanted
