"""`settled doctor`: what is here, what is missing, and what would bring it."""

from __future__ import annotations

import click

# What it is for, what to install where it is missing; the first group is required.
_REQUIRED = {"z3-solver": "proofs", "click": "command line", "rich": "terminal output", "msgspec": "reading traces"}
_OPTIONAL = {
    "cvc5": ("second solver: prove --solver both", "cvc5"),
    "hypothesis": ("property-based tests", "test"),
    "pytest": ("the test suite", "test"),
    "torch": ("KV buffers on a device", "device"),
}


@click.command()
def doctor() -> None:
    """Say which versions are installed, which optional parts are missing and how to get them.

    Exit code 0 if everything that is required is here, 3 if not.
    """
    import platform
    import sys
    from importlib.metadata import PackageNotFoundError, version

    from rich.table import Table

    from settled.proofs.report.console import make_console

    def found(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    console = make_console()
    console.print(f"settled {found('settled') or '(not installed)'}, Python {platform.python_version()} on {platform.system()}")
    table = Table("package", "version", "for", "if missing")
    complete = True
    for package, purpose in _REQUIRED.items():
        here = found(package)
        complete = complete and here is not None
        table.add_row(package, here or "[bold red]missing[/]", purpose, "" if here else "pip install settled")
    for package, (purpose, extra) in _OPTIONAL.items():
        here = found(package)
        hint = "" if here else f"pip install 'settled\\[{extra}]'"
        table.add_row(package, here or "[yellow]missing[/]", purpose, hint)
    table.add_row("device", *_device(found("torch")))
    console.print(table)
    sys.exit(0 if complete else 3)


def _device(torch_version: str | None) -> tuple[str, str, str]:
    """(state, purpose, hint): whether torch sees a CUDA device. Importing torch takes seconds, so only if it is installed."""
    purpose = "differential GPU tests"
    if torch_version is None:
        return "[yellow]unknown[/]", purpose, "needs torch"
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0), purpose, ""
    return "[yellow]no CUDA device[/]", purpose, ""
