"""`settled corpus`: the public bugs, caught or not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from settled.proofs.cli.refusal import Refusal, UnknownNameError

if TYPE_CHECKING:
    from settled.proofs.corpus.rows import Case, Corpus


_ROWS_SHOWN = 5


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--family", help="Only the rows of this family, such as F2.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def corpus(ids: tuple[str, ...], family: str | None, as_json: bool) -> None:
    """Run the scenarios of the public bug reports; say of every row whether it is caught, and how many are.

    ID is a row of the index, such as vllm-project/vllm#47728, or the end of one, such as 47728. A scenario runs on the reference engine
    under the broken choice, and the monitor judges the trace without being told; its twin differs in that choice alone, and nothing may
    be found in it. Exit code 0: every scenario is caught, every twin clean. 1: one is not. 2: a file of the corpus is wrong, or the rows
    asked for do not exist.
    """
    from settled.proofs.corpus.loading import CorpusError, folder, load
    from settled.proofs.corpus.running import run_cases
    from settled.proofs.report.corpus import report

    try:
        known = load(folder())
        outcomes = run_cases(_wanted(known, ids, family))
    except CorpusError as error:
        raise Refusal(error) from error
    sys.exit(report(known, outcomes, details=bool(ids), as_json=as_json))


def _wanted(known: Corpus, ids: tuple[str, ...], family: str | None) -> list[Case]:
    """The rows asked for, in the order of the index. Raises UsageError where there is none, or more than one."""
    families = list(dict.fromkeys(case.row.family for case in known.cases))
    if family is not None and family not in families:
        raise UnknownNameError("family", family, families)
    chosen = {_named(known, name) for name in ids}
    wanted = [case for case in known.cases if (not ids or case.row.id in chosen) and family in (None, case.row.family)]
    if not wanted:
        raise click.UsageError(f"none of {', '.join(ids)} is of family {family}")
    return wanted


def _named(known: Corpus, name: str) -> str:
    found = [case.row.id for case in known.cases if case.row.id == name]
    found = found or [
        case.row.id for case in known.cases if case.row.id.endswith(name) and not case.row.id[-len(name) - 1 : -len(name)].isdigit()
    ]
    if len(found) != 1:
        more = f" and {len(found) - _ROWS_SHOWN} more" if len(found) > _ROWS_SHOWN else ""
        which = f"rows {', '.join(found[:_ROWS_SHOWN])}{more} match" if found else "no row matches"
        raise click.UsageError(f"{which} {name!r}; expected an id of the index, such as vllm-project/vllm#47728, or the end of one")
    return found[0]
