"""Tests of a real vLLM: run them with a release's interpreter, `python -m pytest -o addopts= tests/engines/vllm`."""

from __future__ import annotations

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

HAS_VLLM = find_spec("vllm") is not None

if HAS_VLLM:
    with warnings.catch_warnings():  # what vLLM and torch warn of is theirs, while they are imported
        warnings.simplefilter("ignore")
        import engine_core  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """And later. Without a release each test is shown, and counted, as skipped."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))
            item.add_marker(pytest.mark.skipif(not HAS_VLLM, reason="no vLLM release is installed here"))
