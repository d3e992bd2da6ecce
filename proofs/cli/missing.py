"""Packages and tools that are not here, or do not work: which command needs what, and what brings it."""

from __future__ import annotations

from importlib.util import find_spec
from traceback import walk_tb

from settled.proofs.cli.refusal import Refusal
from settled.proofs.report.diagnosis import EXTRA_OF, MODULES


def need(module: str, purpose: str) -> None:
    """Raises Refusal where a package is not installed; it is not imported. `purpose`: what needs it, in the plural."""
    if find_spec(module) is None:
        raise Refusal(f"{module} is not installed: {purpose} need it", remedy(module))


def remedy(module: str, *, is_broken: bool = False) -> str:
    """The command that brings a package, or brings it anew."""
    package = MODULES.get(module, module)
    if is_broken:
        return f"pip install --force-reinstall {package}"
    return f"pip install 'settled[{EXTRA_OF[package]}]'" if package in EXTRA_OF else "pip install settled"


def broken_package(error: BaseException) -> str | None:
    """The package of ours whose import ended with this error: it is not installed, or something in it fails when it is loaded."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in MODULES:
        name = (error.name or "").partition(".")[0]
        if name not in _being_imported(error):
            return name
    return next(iter(_being_imported(error)), None)


def _being_imported(error: BaseException) -> list[str]:
    """Packages of ours whose modules were being run, the outermost first."""
    frames = [frame for frame, _line in walk_tb(error.__traceback__) if frame.f_code.co_name == "<module>"]
    names = [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame in frames]
    return [name for name in names if name in MODULES]
