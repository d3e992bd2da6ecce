"""The phases on a real device, a process each; without one they are skipped, with the reason. `tests/gpu/run.sh` needs no pytest."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from phases import PHASES, Phase

from settled.reference.device.cuda.absence import why_absent
from settled.reference.device.cuda.runtime import ENVIRONMENT

RUN_PHASE = Path(__file__).parent / "run_phase.py"
pytestmark = pytest.mark.gpu


@pytest.fixture
def whole_device() -> Iterator[None]:
    """One phase at a time, however many workers pytest has: each measures, and holds up streams."""
    with (Path(tempfile.gettempdir()) / "settled-gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def environment() -> dict[str, str]:
    """Kernels are compiled, and CUDA finds what it needs when it starts."""
    dropped = ("TRITON_INTERPRET", "CUDA_LAUNCH_BLOCKING", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | ENVIRONMENT


@pytest.mark.usefixtures("whole_device")
@pytest.mark.parametrize("phase", PHASES, ids=[phase.name for phase in PHASES])
def test_the_phase_passes_on_the_device(phase: Phase, tmp_path: Path) -> None:
    missing = why_absent()
    if missing:
        pytest.skip(f"no CUDA device: {missing}")
    out = tmp_path / "told.json"
    ran = subprocess.run(
        [sys.executable, str(RUN_PHASE), phase.name, "--out", str(out)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=sum(each.limit for each in PHASES),  # what run.sh gives a phase at the most
        check=False,
    )
    told = json.loads(out.read_text(encoding="utf-8"))
    assert told["failures"] == []
    assert told["checks"] > 0
    assert ran.returncode == 0, ran.stdout + ran.stderr
