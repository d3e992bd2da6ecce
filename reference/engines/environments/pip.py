"""An environment's own pip, run under the user's configuration, and what its failures mean."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

LINES_SHOWN = 12  # of a log, in a message
_VERSIONS_SHOWN = 8
_NO_VERSION = re.compile(r"Could not find a version that satisfies the requirement \S+ \(from versions: (?P<versions>[^)]*)\)")
_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|Max retries exceeded|Connection (?:refused|reset|broken)"
    r"|Network is unreachable|ProxyError|SSLError"
)


class InstallError(RuntimeError):
    """An environment or a release could not be installed; the message says why, and where the log is."""


class UnknownVersionError(InstallError):
    """The registry has the project and not this version of it; `known` are those that it has, in its order."""

    hint = "NAME==newest, or NAME alone, is the newest that there is for this Python"

    def __init__(self, what: str, known: Sequence[str], log: Path) -> None:
        super().__init__(f"{what}: no such version for this Python; there are {_nearby(what, known)}; the log is {log}")
        self.what, self.known, self.log = what, tuple(known), log

    def beside(self, other: UnknownVersionError) -> UnknownVersionError:
        """One error for two searches."""
        known = sorted({*self.known, *other.known}, key=_numbers)
        return UnknownVersionError(self.what, known, self.log)


class UnknownProjectError(InstallError):
    """The registry has nothing that could be asked for: no such project, or no file of this kind for this Python and platform."""

    hint = "is it there for this Python and platform? pip takes its registry from its own configuration: pip config list"


class NoNetworkError(InstallError):
    """The registry could not be reached."""

    hint = "is there a network? pip takes registry and proxy from its own configuration: pip config list"


def run_pip(python: Path, arguments: Sequence[str], log: Path, *, what: str, variables: Mapping[str, str] | None = None) -> None:
    """Runs `python -m pip ARGUMENTS` and appends its output to `log`. Raises InstallError, one of its kinds where pip tells which."""
    command = [str(python), "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    run_logged(command, log, what=what, variables=variables)


def run_logged(command: Sequence[str], log: Path, *, what: str, variables: Mapping[str, str] | None = None) -> None:
    """Runs a command and appends its output to `log`. Raises InstallError."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        out.write(f"$ {' '.join(command)}\n".encode())
        out.flush()
        began = out.tell()
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env={**environment, **(variables or {})}, check=False
        )
    if done.returncode:
        said = log.read_bytes()[began:].decode(errors="replace")
        raise _error(what, said, log)


def _error(what: str, said: str, log: Path) -> InstallError:
    where = f"the log is {log}"
    if _NO_NETWORK.search(said):
        return NoNetworkError(f"{what}: the package registry cannot be reached ({_reason(said)}); {where}")
    missing = _NO_VERSION.search(said)
    if missing is not None:
        known = [version.strip() for version in missing["versions"].split(",") if version.strip() not in ("", "none")]
        if known:
            return UnknownVersionError(what, known, log)
        return UnknownProjectError(f"{what}: the package registry has nothing of that name for this Python and platform; {where}")
    lines = [line for line in said.splitlines() if line.strip()][-LINES_SHOWN:]
    return InstallError("\n".join([f"{what} failed; {where}; it ends:", *(f"  {line}" for line in lines)]))


def _reason(said: str) -> str:
    found = _NO_NETWORK.search(said)
    return "" if found is None else found[0]


def _nearby(what: str, known: Sequence[str]) -> str:
    """The versions around the one asked for, in the registry's order."""
    wanted = what.partition("==")[2]
    place = sum(_numbers(version) < _numbers(wanted) for version in known)
    first = max(0, min(place - _VERSIONS_SHOWN // 2, len(known) - _VERSIONS_SHOWN))
    shown = known[first : first + _VERSIONS_SHOWN]
    return f"{'… ' if first else ''}{', '.join(shown)}{' …' if first + len(shown) < len(known) else ''}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version))
