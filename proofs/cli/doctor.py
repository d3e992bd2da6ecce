"""`settled doctor`: what is here, what is missing, and what would bring it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from settled.proofs.report.diagnosis import Finding


@click.command()
def doctor() -> None:
    """Say which versions are installed, whether the solvers answer, which optional parts are missing and how to get them.

    Exit code 0 if everything that is required is here and works, 3 if not.
    """
    import platform

    from settled.proofs.report.diagnosis import diagnose, installed

    click.echo(f"settled {installed('settled') or '(not installed)'}, Python {platform.python_version()} on {platform.system()}")
    findings = list(diagnose())
    try:
        _print_table(findings)
    except ImportError:  # rich itself may be what is missing
        for finding in findings:
            click.echo(f"{finding.name}: {finding.state}  ({finding.purpose})  {finding.hint}".rstrip())
    sys.exit(0 if all(finding.is_good for finding in findings if finding.is_required) else 3)


def _print_table(findings: Sequence[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from settled.proofs.report.console import make_console

    table = Table("what", "state", "for", "if missing")
    for finding in findings:
        style = "" if finding.is_good else "bold red" if finding.is_required else "yellow"
        table.add_row(finding.name, Text(finding.state, style=style), finding.purpose, Text(finding.hint))
    make_console().print(table)
