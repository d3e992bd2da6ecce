"""`settled tour`: the whole story in one command."""

from __future__ import annotations

import sys

import click


@click.command()
def tour() -> None:
    """Prove the fix, break what was before, run the break, judge a real release before and after: all in one go.

    Exit code 0: the proofs hold, both faults are refuted and replay, and the recorded releases are judged as they should be. Otherwise
    1 or 3, as the step that went wrong says.
    """
    from settled.proofs.report import touring

    sys.exit(touring.run())
