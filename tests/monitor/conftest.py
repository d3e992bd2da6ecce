"""What the tests of the monitor take from `trace_builder`: pytest's importlib mode has no plain imports between test files."""

from __future__ import annotations

import pytest
from trace_builder import FULL, WINDOW, TraceBuilder, entry, output


class Kit:
    """The builder and its parts."""

    Builder = TraceBuilder
    FULL = FULL
    WINDOW = WINDOW
    entry = staticmethod(entry)
    output = staticmethod(output)


@pytest.fixture
def kit() -> type[Kit]:
    return Kit
