"""The options by which a command leaves a summary for CI systems and issue trackers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path, dir_okay=False)


def summary_options(command: _Command) -> _Command:
    """Adds `--junit` and `--markdown`, as the parameters of these names."""
    add_markdown = click.option("--markdown", type=_FILE, metavar="FILE", help="Write a summary for an issue tracker, with pictures.")
    add_junit = click.option("--junit", type=_FILE, metavar="FILE", help="Write a summary as JUnit XML, for CI systems.")
    return add_junit(add_markdown(command))
