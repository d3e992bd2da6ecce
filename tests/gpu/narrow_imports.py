"""Runs a script of this folder as on a machine that has the standard library, numpy, torch and triton, and what those bring for themselves.

    python tests/gpu/narrow_imports.py SCRIPT [ARGUMENT]...

Whatever else the project's own code asks for raises.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ALLOWED = {"numpy", "torch", "triton", "settled"}


class Narrow(MetaPathFinder):
    """Stands before all other finders."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        top = name.partition(".")[0]
        if name.startswith("settled.proofs"):
            raise ImportError(f"{name}: the proofs need more than there is")
        if top in ALLOWED or top in sys.stdlib_module_names or (HERE / f"{top}.py").exists():
            return None
        if _is_ours(_importer()):
            raise ImportError(f"{name} is asked for by the project's own code")
        return None


def _importer() -> str:
    """The file of the code that imports."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


def _is_ours(file: str) -> bool:
    resolved = Path(file).resolve()
    return any(resolved.is_relative_to(ROOT / folder) for folder in ("model", "reference", "proofs", "tests"))


if __name__ == "__main__":
    sys.meta_path.insert(0, Narrow())
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
