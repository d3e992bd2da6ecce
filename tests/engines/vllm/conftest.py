"""Tests of a real vLLM, run with a release's interpreter: `python -m pytest -o addopts= tests/engines/vllm`."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("vllm") is not None:
    with warnings.catch_warnings():  # what vLLM and torch warn of is theirs, while they are imported
        warnings.simplefilter("ignore")
        import engine_core  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """And later."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))
