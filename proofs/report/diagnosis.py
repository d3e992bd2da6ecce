"""What is here and what is missing, as data. Needs nothing but the standard library to start: all else may be what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

# What it is for; the first group is required.
_REQUIRED = {
    "z3-solver": "proofs",
    "click": "command line",
    "rich": "terminal output",
    "msgspec": "reading traces",
    "hypothesis": "strategies and state machine",
    "networkx": "state graphs",
}
# ... and which extra brings it.
_OPTIONAL = {
    "cvc5": ("second solver: prove --solver both", "cvc5"),
    "pytest": ("the test suite; the fixture for your own tests", "test"),
    "pytest-xdist": ("the test suite, on all processors", "test"),
    "pyyaml": ("tests of the workflows", "test"),
    "mypy": ("type checks", "test"),
    "ruff": ("format and lint", "test"),
    "import-linter": ("import rules", "test"),
    "hatchling": ("building the wheel", "test"),
    "coverage": ("whether tests reach every line", "test"),
    "selenium": ("the browser tests of pages", "test"),
    "torch": ("real KV buffers: diff, refute --bytes", "device"),
    "numpy": ("what torch needs of arrays", "device"),
    "triton": ("kernels: diff --device cuda", "cuda"),
}

EXTRA_OF = {package: extra for package, (_, extra) in _OPTIONAL.items()}
_IMPORTED_AS = {"z3-solver": "z3", "pytest-xdist": "xdist", "import-linter": "importlinter"}
# Module → the package that brings it.
MODULES = {_IMPORTED_AS.get(package, package): package for package in (*_REQUIRED, *_OPTIONAL)}


class Finding(NamedTuple):
    """One line of the diagnosis. `state` is a version, or says what is wrong; `hint`, what to do about it."""

    name: str
    state: str
    purpose: str
    hint: str = ""
    is_good: bool = True
    is_required: bool = False


def installed(package: str) -> str | None:
    """The version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def diagnose() -> Iterator[Finding]:
    """Versions first, then what takes a moment: solvers that decide a query, a device that torch sees."""
    for package, purpose in _REQUIRED.items():
        yield _package(package, purpose, "pip install settled", is_required=True)
    for package, (purpose, extra) in _OPTIONAL.items():
        yield _package(package, purpose, f"pip install 'settled[{extra}]'", is_required=False)
    yield _solver("z3", "z3-solver", is_required=True)
    yield _solver("cvc5", "cvc5", is_required=False)
    yield _engines()
    yield _c_compiler()
    yield _device()


def _package(package: str, purpose: str, hint: str, *, is_required: bool) -> Finding:
    here = installed(package)
    return Finding(package, here or "missing", purpose, "" if here else hint, here is not None, is_required)


def _solver(name: str, package: str, *, is_required: bool) -> Finding:
    """Whether a solver really answers: an installed package may lack its library."""
    what = f"{name} decides a query"
    if installed(package) is None:
        return Finding(what, "unknown", "proofs", f"needs {package}", False, is_required)
    try:
        from settled.model.algebra import int_variable
        from settled.model.search.solver import Status, solver_named

        x, solver = int_variable("x"), solver_named(name)
        told = [solver.check({"low": x >= 3, "high": x <= bound}).status for bound in (3, 2)]
        is_right = told == [Status.SAT, Status.UNSAT]
        words = "yes" if is_right else f"no: {' and '.join(told)} instead of sat and unsat"
    except Exception as error:
        is_right, words = False, f"damaged: {_first_line(error)}"
    return Finding(what, words, "proofs", "" if is_right else f"pip install --force-reinstall {package}", is_right, is_required)


def _device() -> Finding:
    """Whether torch sees a CUDA device. Importing torch takes seconds, so only if it is installed."""
    purpose = "differential GPU tests"
    if installed("torch") is None:
        return Finding("device", "unknown", purpose, "needs torch", False)
    try:
        import torch

        if torch.cuda.is_available():
            return Finding("device", str(torch.cuda.get_device_name(0)), purpose)
    except Exception as error:
        return Finding("device", f"damaged torch: {_first_line(error)}", purpose, "pip install --force-reinstall torch", False)
    return Finding("device", "no CUDA device", purpose, "", False)


def _c_compiler() -> Finding:
    """What Triton builds the launchers of its kernels with: what CC names, or else gcc or clang."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    found = next(filter(None, map(shutil.which, names)), None)
    hint = "" if found else "install gcc or clang, or name one by CC"
    return Finding("C compiler", Path(found).name if found else "missing", "kernels on a CUDA device", hint, found is not None)


def _engines() -> Finding:
    """The releases that lie here; `settled engines list` tells whether each can be imported."""
    from settled.reference.engines.environments.installed import installed_releases

    try:
        here = ", ".join(str(release) for release in installed_releases())
    except (OSError, ValueError) as error:
        return Finding("engines", f"unreadable: {error}", "settled hunt", getattr(error, "hint", ""), False)
    return Finding("engines", here or "none", "settled hunt", "" if here else "settled engines install vllm", bool(here), False)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
