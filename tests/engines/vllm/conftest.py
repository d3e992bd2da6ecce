"""These tests run the vLLM release that is installed. They are apart from the project's own environment, which never has one."""

from __future__ import annotations

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

if find_spec("vllm") is not None:
    with warnings.catch_warnings():  # pytest makes errors of ours; vLLM and torch warn while they are imported
        warnings.simplefilter("ignore")
        import engine_core  # noqa: F401
