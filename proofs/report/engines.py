"""What `settled engines list` prints, and what `settled doctor` says of engines."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import click
from rich.table import Table
from rich.text import Text

from settled.proofs.report.console import make_console
from settled.proofs.runner import Exit
from settled.reference.engines.environments.home import engines_folder, size_bytes
from settled.reference.engines.environments.installed import Installed, installed_releases, python_tag
from settled.reference.engines.environments.launching import launching
from settled.reference.engines.environments.recipes import recipe_named

_MEGABYTE = 1 << 20
_SECONDS_TO_IMPORT = 300
_AT_ONCE = 2


class _Row(NamedTuple):
    """A release; `fault` is "" if it can be imported, else the last thing it said."""

    release: Installed
    size_bytes: int
    fault: str


def list_engines(*, as_json: bool) -> Exit:
    """Imports every installed release in a process of its own, and prints a row for each."""
    releases = installed_releases()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        rows = list(pool.map(_row, releases))
    code = Exit.HOLDS if rows and not any(row.fault for row in rows) else Exit.UNKNOWN
    if as_json:
        told = {
            "folder": str(engines_folder()),
            "python": python_tag(),
            "releases": [_as_dict(row) for row in rows],
            "exit_code": int(code),
        }
        click.echo(json.dumps(told, indent=2))
    elif rows:
        _print(rows)
    else:
        click.echo(f"no release is installed for {python_tag()} in {engines_folder()}: settled engines install vllm")
    return code


def fault_of(release: Installed) -> str:
    """Why a release cannot be imported, in one line; "" if it can."""
    probe = recipe_named(release.engine).probe
    with launching(release) as launch:
        try:
            done = subprocess.run(
                [*launch.python, "-c", f"import {probe}"],
                env=dict(launch.variables),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS_TO_IMPORT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""


def _row(release: Installed) -> _Row:
    return _Row(release, size_bytes(release.folder), fault_of(release))


def _as_dict(row: _Row) -> dict[str, str | int | bool]:
    release = row.release
    return {
        "engine": release.engine,
        "version": release.version,
        "imports": not row.fault,
        "fault": row.fault,
        "size_bytes": row.size_bytes,
        "source": release.source,
        "folder": str(release.folder),
        "interpreter": str(release.python),
    }


def _print(rows: list[_Row]) -> None:
    table = Table("engine", "release", "imports", "MB")
    table.add_column("where", overflow="fold")
    for row in rows:
        release = row.release
        state = Text(row.fault or "yes", style="bold red" if row.fault else "")
        table.add_row(release.engine, release.version, state, f"{row.size_bytes / _MEGABYTE:.0f}", str(release.folder))
    console = make_console()
    console.print(table)
    for python in sorted({row.release.python for row in rows}):
        environment = python.parents[1]
        console.print(f"{environment}: {size_bytes(environment) / _MEGABYTE:.0f} MB, {python_tag()}", markup=False)
