"""One phase in this process.

python tests/gpu/run_phase.py PHASE --out FILE [--dry-run]
python tests/gpu/run_phase.py --missing [--dry-run]    says what is missing here, and ends with 3 if something is
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from bench import open_bench
from phases import PATIENCE, PHASES
from report import Report

NEEDED = ("numpy", "torch", "triton")
EXIT_MISSING = 3  # an error of Python's ends with 1


def missing(is_dry: bool) -> str:
    """Why nothing can be run here; empty where it can."""
    for name in NEEDED:
        if find_spec(name) is None:
            return f"{name} is not installed"
    if is_dry:
        return ""
    from settled.reference.device.cuda.absence import why_absent

    return why_absent()


def run(name: str, path: Path, is_dry: bool) -> Report:
    """Everything that goes wrong is a failure of the phase."""
    (phase,) = [phase for phase in PHASES if phase.name == name]
    report = Report(phase.name, path, is_dry)
    report.save()
    try:
        import torch

        torch.set_num_threads(1 if is_dry else 4)
        with open_bench(report, phase.seconds * (PATIENCE if is_dry else 1), is_dry) as bench:
            importlib.import_module(phase.name).run(bench)
    except Exception:
        report.fail(traceback.format_exc(limit=-6))
    report.is_over = True
    report.save()
    return report


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", nargs="?", choices=[phase.name for phase in PHASES])
    parser.add_argument("--out", type=Path, help="where the phase tells what it found, as JSON")
    parser.add_argument("--dry-run", action="store_true", help="a fake device and interpreted kernels")
    parser.add_argument("--missing", action="store_true")
    given = parser.parse_args(arguments)
    if given.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    if given.missing:
        reason = missing(given.dry_run)
        print(reason or "nothing is missing")
        return EXIT_MISSING if reason else 0
    if given.phase is None or given.out is None:
        parser.error("a phase and --out are needed")
    return 0 if run(given.phase, given.out, given.dry_run).has_passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
