"""What a CPU replay tells of every read: the same as its result says of the wrong ones, and digests that do not know the order."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kinds import GROUPS
from logs import random_log

from settled.reference.device.compiling import compile_log
from settled.reference.device.judge import states_differing
from settled.reference.device.mismatches import garbled_of
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import HOST, Launch, OpLog
from settled.reference.device.outcome import NOT_RUN, outcome_before
from settled.reference.device.payload import mix
from settled.reference.device.replay import replay, replay_outcome
from settled.reference.device.rows import rows_of

torch.set_num_threads(1)


def shuffled(log: OpLog, seed: int) -> list[int]:
    """Any order that keeps the host's launches in their own: most of them garble."""
    order = log.launches()
    Random(seed).shuffle(order)
    host = iter(sorted(op for op in order if _stream(log, op) == HOST))
    return [next(host) if _stream(log, op) == HOST else op for op in order]


def _stream(log: OpLog, index: int) -> int:
    op = log.ops[index]
    assert isinstance(op, Launch)
    return op.stream


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_garbled_reads_are_those_of_the_result_in_any_order(groups: tuple[object, ...]) -> None:
    garbled = 0
    for seed in range(6):
        log = random_log(seed, groups, 6, 2, 32, 9)  # type: ignore[arg-type]
        compiled = compile_log(log)
        numbered = NumberedLog(compiled)
        for order in (log.launches(), shuffled(log, seed)):
            result = replay(compiled, order, numbered, limit=10_000)
            outcome = replay_outcome(compiled, numbered, order)
            found = garbled_of(outcome, compiled, replay_outcome(compiled, numbered, log.launches()))
            assert sorted(found) == sorted(result.garbled)
            assert outcome.is_clean == result.counts.is_clean
            garbled += len(found)
    assert garbled > 30


@pytest.mark.parametrize("told", ["wrong", "state_wrong", "store_wrong", "store_differing"])
def test_one_wrong_thing_of_any_sort_is_not_clean(told: str) -> None:
    """Also bytes of a store alone, whose tags are right."""
    compiled = compile_log(random_log(3, GROUPS["sink_window"], 6, 2, 32, 9))
    outcome = replay_outcome(compiled, NumberedLog(compiled))
    clean = {name: torch.zeros(1, dtype=torch.int32) for name in ("wrong", "state_wrong", "store_wrong", "store_differing")}
    assert replace(outcome, **clean).is_clean
    assert not replace(outcome, **{**clean, told: torch.ones(1, dtype=torch.int32)}).is_clean


@pytest.mark.parametrize(("name", "sort"), [("sink_window", "wrong"), ("mamba", "state_wrong")])
def test_what_has_not_run_is_not_clean(name: str, sort: str) -> None:
    groups = next(each for key, each in GROUPS.items() if name in key)
    compiled = compile_log(random_log(3, groups, 6, 2, 32, 9))
    before = getattr(outcome_before(rows_of(compiled), 8, torch.float64), sort)
    assert len(before)
    assert int(before.max()) == NOT_RUN


def test_a_state_differs_at_the_query_behind_which_it_stands() -> None:
    """State 0 is the one that is read, before the part's first token."""
    part = SimpleNamespace(start=4, tokens=2)
    step: Any = SimpleNamespace(state_parts=[0], work=SimpleNamespace(parts=[part]))
    right: Any = SimpleNamespace(states=torch.zeros(1, 3, 2))
    for state, found in ((0, set()), (1, {(0, 4)}), (2, {(0, 5)})):
        outputs = torch.zeros(1, 3, 2)
        outputs[0, state] = 1
        assert states_differing(step, outputs, right) == found


def test_a_digest_is_the_sum_of_the_mixed_tags_that_a_row_reads() -> None:
    log = random_log(3, GROUPS["sink_window"], 6, 2, 32, 9)
    compiled = compile_log(log)
    outcome = replay_outcome(compiled, NumberedLog(compiled), None)
    steps = {step.op: step for step in compiled.steps}
    for row, (op, number, query) in enumerate(outcome.rows.keys):
        part = steps[op].work.parts[number]
        reading = compiled.readings[part.group]
        assert reading is not None
        read = [position for first, end in reading(query, part.prompt_tokens) for position in range(first, end)]  # type: ignore[union-attr]
        tags = torch.tensor([part.expected[position - part.first] for position in read])  # type: ignore[union-attr]
        assert int(outcome.digests[row]) == int(mix(tags).sum())
    assert len(set(outcome.digests.tolist())) > 10
