"""What the phases do on the host, on a fake device with interpreted kernels; and that they need little more than torch and triton."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from phases import PHASES

HERE = Path(__file__).parent
CHECKS = {"machine": 3, "differential": 40, "engine_traces": 25, "torn_read": 13, "flex_peer": 3, "figures": 7}


def narrowly(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process in which the project's own code may import the standard library, numpy, torch and triton alone."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command: Sequence[str] = [sys.executable, str(HERE / "narrow_imports.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
def test_the_whole_run_passes_on_the_fake_device_with_little_installed(tmp_path: Path) -> None:
    """`run.sh` itself, whose interpreter is one that imports narrowly. The summary, which needs nothing, is run so too."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "narrow_imports.py"}" "$@"\n', encoding="utf-8")
    interpreter.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(interpreter)}
    command = ["bash", str(HERE / "run.sh"), "--dry-run", str(tmp_path / "out")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told: dict[str, Any] = json.loads((tmp_path / "out" / "gpu.json").read_text(encoding="utf-8"))
    assert told["passed"]
    assert told["is_dry"]
    for phase in told["phases"]:
        assert phase["failures"] == []
        assert phase["checks"] >= CHECKS[phase["phase"]], phase["phase"]
        assert not phase["facts"].get("figures"), "nothing that was not measured"
    assert "GB/s" not in ran.stdout


@pytest.mark.slow
def test_the_projects_own_code_may_import_nothing_else(tmp_path: Path) -> None:
    script = tmp_path / "asks.py"
    for asked in ("settled.proofs.differential.rows", "settled.model.trace_io"):
        script.write_text(f"import {asked}\n", encoding="utf-8")
        ran = narrowly(str(script))
        assert ran.returncode == 1
        assert "ImportError" in ran.stderr
    script.write_text("import torch.nn.attention.flex_attention, triton, settled.reference.device.lowering\n", encoding="utf-8")
    assert narrowly(str(script)).returncode == 0, "what torch imports for itself is torch's affair"


def test_limits_and_plans_add_up() -> None:
    assert sum(phase.limit for phase in PHASES) < 8 * 60
    assert sum(phase.seconds for phase in PHASES) < 4.5 * 60
    assert all(phase.seconds < phase.limit for phase in PHASES)
