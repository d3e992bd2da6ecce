"""`settled`: one command a file, imported when it is called."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

try:
    import click
except ModuleNotFoundError:
    print("settled: click is not installed\n  hint: pip install settled", file=sys.stderr)
    sys.exit(2)

from settled.proofs.cli.ending import run_to_the_end
from settled.proofs.cli.refusal import UnknownNameError

SHELL_COMPLETION = "_SETTLED_COMPLETE"  # click's name: set by the shell that asks for completions

# Command → what `settled --help` says of it. The module of the same name holds the command of the same name.
COMMANDS = {
    "tour": "The whole story in one command: the proof, the break, the run, a real release.",
    "prove": "Prove the theorems: a row per obligation, covers, killers.",
    "refute": "Break a discipline: its shortest counterexample, then run it.",
    "weigh": "Weigh the alternatives: what each breaks, what each costs.",
    "corpus": "Run the scenarios of public bug reports: which are caught.",
    "check": "Judge a recorded trace, event by event.",
    "show": "Show a trace: in the terminal, as a page, an image, or for Perfetto.",
    "fuzz": "Run the reference under random decisions: what is violated, shrunk and kept.",
    "hunt": "Run a real engine under random workloads: what is violated, shrunk and kept.",
    "diff": "Run the reference on real KV buffers: races, garbled outputs, in which order.",
    "graph": "All states that a small engine reaches: where it is stuck, and who waits for whom.",
    "engines": "Install releases of real engines, and say which are here.",
    "doctor": "Say what is installed here, and what is missing.",
}


class LazyGroup(click.Group):
    """Imports a command only when it is needed, so that each starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"settled.proofs.cli.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises UsageError, with a hint where the name of a command is misspelt."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UnknownNameError("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(name="settled", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="settled")
def cli() -> None:
    """Can a KV-cache block be returned to the pool while something may still need it?

    Exit codes: 0 holds, 1 violated, 2 bad input or usage, 3 unknown, 130 interrupted.
    """


def run(arguments: Sequence[str]) -> None:
    """One command line. Unlike click's own entry it lets every exception through, a broken pipe too, which click ends with 1."""
    if SHELL_COMPLETION in os.environ:
        cli.main(list(arguments), prog_name="settled")
    with cli.make_context("settled", list(arguments)) as context:
        cli.invoke(context)


def main() -> None:
    """The console script."""
    sys.exit(run_to_the_end(run, sys.argv[1:]))
