"""Traces of real engines, lowered and replayed: clean as enqueued, but for the one whose engine frees what a rejection brings back."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from settled.model.trace_io import read_trace
from settled.reference.device.compiling import compile_log
from settled.reference.device.lowering import lower
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import OpLog
from settled.reference.device.replay import replay
from settled.reference.device.results import sentence
from settled.reference.device.small_replay import SmallReplay

torch.set_num_threads(1)
TRACES = Path(__file__).parents[1] / "data" / "traces"
GARBLED = {"v0.25.1-fullchunk-bs4.ndjson": 5}
"""Rows garbled in the order of the engine itself: rejected drafts bring back queries whose keys were freed (`rollback_resident`)."""


def lowered(name: str) -> OpLog:
    with (TRACES / name).open(encoding="utf-8") as lines:
        return lower([event for _, event in read_trace(lines)])


def test_every_trace_lowers_and_is_clean_as_enqueued_but_for_known_ones() -> None:
    garbled = {}
    steps = 0
    for path in sorted(TRACES.glob("*.ndjson")):
        counts = replay(compile_log(lowered(path.name))).counts
        steps += counts.steps
        assert counts.stores_wrong == 0
        if not counts.is_clean:
            garbled[path.name] = counts.rows_garbled
    assert garbled == GARBLED
    assert steps > 2500


@pytest.mark.parametrize("name", ["v0.33.0-conn-apc-spec", "v0.33.0-mamba-align-spec", "v0.33.0-fullchunk-bs4", "v0.29.0-conn"])
def test_outputs_are_bit_identical_to_contiguous_memory_and_shuffled_they_are_not(name: str) -> None:
    log = lowered(f"{name}.ndjson")
    compiled = compile_log(log)
    counted = NumberedLog(compiled)
    assert replay(compiled, None, counted).counts.is_clean
    order = log.launches()
    Random(1).shuffle(order)
    result = replay(compiled, order, counted, limit=100_000)
    assert result.counts.rows_garbled == result.counts.rows_differing > 0
    for row in result.garbled:
        row.differs = None
    assert SmallReplay(log).run(order) == result.garbled


def test_a_rollback_below_what_was_freed_garbles_as_enqueued() -> None:
    """vLLM 0.25.1 frees on optimistic counts: a rejection puts the query at 14 back into a chunk whose first block another request has."""
    compiled = compile_log(lowered("v0.25.1-fullchunk-bs4.ndjson"))
    result = replay(compiled, None, NumberedLog(compiled))
    assert result.counts.rows_garbled_delivered == result.counts.rows_differing == 5
    assert sentence(result.garbled[0], compiled.describe) == (
        "launch 17: position 0, read by query 14 of part 1, should hold request 0, generation 0, group 1, position 0; "
        "found: request 1, generation 0, group 1, position 68"
    )
