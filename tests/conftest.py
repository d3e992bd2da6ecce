"""Helpers of a test folder are imported by plain name. Tests that drive a real engine are left out, aloud, where it is not installed."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

for folder in ("agreement", "cli", "device", "device/cuda", "gpu", "hunting", "monitor", "page", "quality", "engines/vllm"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

# What a shell or a CI system may have set, and tests and the commands that they start would heed: colours where texts are compared (some
# set FORCE_COLOR for every job), another encoding. One that forbids writing bytecode would have each command compile everything.
for name in ("FORCE_COLOR", "PYTHONIOENCODING", "PYTHONWARNINGS", "PYTHONDONTWRITEBYTECODE", "SETTLED_TRACE", "SETTLED_TRACEBACK"):
    os.environ.pop(name, None)

PACKAGES = {"vllm": "vllm", "tokenspeed": "tokenspeed_scheduler"}  # by the folder in tests/engines; `pytest -m engines` runs all of them
LEFT_OUT = [folder for folder, package in PACKAGES.items() if find_spec(package) is None]
collect_ignore_glob = [f"engines/{folder}/*" for folder in LEFT_OUT]


def pytest_report_header() -> list[str]:
    return [f"tests/engines/{folder}: left out, {PACKAGES[folder]} is not installed in this environment" for folder in LEFT_OUT]
