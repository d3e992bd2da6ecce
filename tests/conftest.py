"""Helpers of a test folder are imported by their plain name. Tests that drive vLLM are left out, aloud, where it is not installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

for folder in ("agreement", "hunting", "monitor", "quality", "engines/vllm"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

HAS_VLLM = find_spec("vllm") is not None
collect_ignore_glob = [] if HAS_VLLM else ["engines/vllm/*"]


def pytest_report_header() -> str:
    return f"tests/engines/vllm: {'run on the installed vLLM' if HAS_VLLM else 'left out, vLLM is not installed in this environment'}"
