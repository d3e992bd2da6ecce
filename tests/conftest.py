"""Helpers of a test folder are imported by their plain name."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("agreement", "hunting", "monitor", "quality"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
