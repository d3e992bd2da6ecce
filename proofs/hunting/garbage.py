"""How often Python looks for garbage while a hunt runs."""

from __future__ import annotations

import gc

_YOUNG_OBJECTS_MAX = 10_000  # so many more are made than dropped before it looks among them; a workload makes some thousands


def collect_seldom() -> None:
    """To be called once an engine is imported: as vLLM's engine core does, what lives then is left alone for good, or each collection
    goes through all of it. What a workload leaves behind in cycles is small, and waits for the next ones'."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS_MAX)
