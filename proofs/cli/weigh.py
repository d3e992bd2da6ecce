"""`settled weigh`: the alternatives compared, by what they break and by what they cost."""

from __future__ import annotations

import sys

import click

from settled.proofs.cli.refusal import UnknownNameError


@click.command()
@click.argument("disciplines", nargs=-1, metavar="[DISCIPLINE]...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def weigh(disciplines: tuple[str, ...], as_json: bool) -> None:
    """Weigh the disciplines (all, or those named): which property holds under which contract, proved or refuted, and at what cost.

    Every cell is decided now, by proofs and searches. Exit code 0: every cell is proved, refuted as it is known to be, or open. 3: a
    solver gave up, or an answer contradicts what is known.
    """
    from settled.model.disciplines import DISCIPLINES
    from settled.proofs.report import weighing

    wanted = list(dict.fromkeys(name.lower() for name in disciplines)) or list(DISCIPLINES)
    for name in wanted:
        if name not in DISCIPLINES:
            raise UnknownNameError("discipline", name, DISCIPLINES)
    sys.exit(weighing.run(wanted, as_json=as_json))
