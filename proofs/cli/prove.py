"""`settled prove`: the theorems."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from settled.proofs.cli.refusal import Choice, Refusal, UnknownNameError


@click.command()
@click.argument("theorems", nargs=-1, metavar="[THEOREM]...")
@click.option("--solver", type=Choice(["z3", "cvc5", "both"]), default="z3", show_default=True, help="Who decides the obligations.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@click.option(
    "--export",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write every obligation, the refuted ones of the killers too, to DIR as SMT-LIB 2.6, and a trace for each cap that is too small.",
)
@click.option(
    "--mask",
    metavar="FILE[:NAME]",
    help="Prove theorems 3 and 4 for your own mask, and 5 for its rule: a Python file with reads(query, token), and, if it has a rule, "
    "frees(first, last, basis) or skipped_tokens(basis).",
)
def prove(theorems: tuple[str, ...], solver: str, as_json: bool, folder: Path | None, mask: str | None) -> None:
    """Prove the theorems (all of them, or those named: T1, T3, found, ...), one row per obligation.

    With --mask, prove what they say of that mask, and of the theorems only those that are named. The file is executed, and each of its
    functions called once: the formula that it returns is the mask. One that shrinks is served by the reference in random runs.

    Exit code 0: everything is proved, every cover is reachable, every killer refutes. 1: an obligation is refuted, or a run with the mask
    violates a property. 3: an answer is unknown, a cover is unreachable, a killer does not kill, or two solvers disagree.
    """
    from settled.model.search.solver import SolverMissingError, solver_named
    from settled.proofs import mask_runs, user_masks
    from settled.proofs.catalogue import THEOREMS
    from settled.proofs.report import capping, exporting, proving

    known = {**{key.lower(): key for key in THEOREMS}, "found": "found"}
    keys = list(dict.fromkeys(known.get(name.lower(), "") for name in theorems))
    if "" in keys:
        unknown = next(name for name in theorems if name.lower() not in known)
        raise UnknownNameError("theorem", unknown, known.values())
    wanted = proving.Wanted(keys or list(known.values()))
    try:
        if mask is not None:
            theirs = user_masks.load_mask(mask)
            own = {user_masks.KEY: user_masks.theorem_of(theirs)}
            notes, runs = user_masks.notes_of(theirs), mask_runs.run_if_it_shrinks(theirs)
            remarks = [*notes, *([runs.sentence()] if runs else [])]
            wanted = proving.Wanted([*keys, *own], {**THEOREMS, **own}, {user_masks.KEY: lambda: remarks}, bool(runs and runs.found))
        solvers = [solver_named(name) for name in (("z3", "cvc5") if solver == "both" else (solver,))]
    except (SolverMissingError, user_masks.MaskError) as error:
        raise Refusal(error) from error
    if folder is not None:
        click.echo(f"{exporting.export(wanted.keys, folder, wanted.theorems)} obligations written to {folder}", err=True)
        if "T8" in wanted.keys:
            click.echo(f"{capping.write_traces(folder / 'T8' / 'traces')} traces written to {folder / 'T8' / 'traces'}", err=True)
    show = proving.print_json if as_json else proving.print_tables
    sys.exit(show(wanted, solvers))
