"""Every kind that keeps keys, in a trace: what may be freed under a step in flight, and what may not.

Blocks hold 4 tokens. A has 20 tokens processed in blocks 1 to 6 and step 2, the query at 20, in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from settled.model import events as ev
from settled.model.algebra import BoolTerm, Int, IntTerm, as_int, both, either, maximum
from settled.model.kinds import Kind
from settled.model.monitor import Monitor, Report, Verdict, keys
from settled.model.properties import Contract, Property
from settled.model.specs import ChunkedLocalAttentionSpec, CustomSpec, KVCacheSpec, MambaSpec, RSWASpec, SinkWindowSpec

SETTLED, STREAM_ORDER = Contract.SETTLED, Contract.STREAM_ORDER
CHUNKED = ChunkedLocalAttentionSpec(block_size=4, chunk=8)
SINK = SinkWindowSpec(block_size=4, sink=6, window=4)
RSWA = RSWASpec(block_size=4, window=4)
CUSTOM = CustomSpec(block_size=4, name="strided")
PROMPT = 9


@dataclass(frozen=True)
class Strided(Kind):
    """The last `window` keys, and of those before `old` each eighth."""

    window: int
    old: int
    name = "strided"

    def reads(self, query: Int, token: Int) -> BoolTerm:
        is_eighth = as_int(token) == (as_int(token) // 8) * 8
        in_reach = either(as_int(query) - self.window < token, both(as_int(token) < self.old, is_eighth))
        return both(as_int(token) >= 0, as_int(token) <= query, in_reach)

    def skipped_tokens(self, basis: Int) -> IntTerm:
        return maximum(as_int(basis) - self.window + 1, 0)

    def frees_block(self, first: Int, last: Int, basis: Int, rounding: Any) -> BoolTerm:
        return both(as_int(first) >= self.old, Kind.frees_block(self, first, last, basis, rounding))


KINDS: dict[str, Kind] = {"strided": Strided(4, 12)}


def _in_flight(kit: Any, spec: KVCacheSpec, **config: Any) -> Any:
    trace = kit.Builder(spec, **config).add(prompt_tokens=PROMPT).allocate(1, 2, 3, 4, 5, 6)
    return trace.schedule(1, kit.entry(0, 20, [1, 2, 3, 4, 5, 6])).process(1, kit.output()).schedule(2, kit.entry(20, 1))


def _judge(trace: Any, contract: Contract = SETTLED, kinds: dict[str, Kind] = KINDS) -> Report:
    monitor = Monitor(trace.config, contract, custom=kinds)
    for line, event in enumerate(trace.events, start=1):
        monitor.feed(line, event)
    return monitor.finish()


def _found(trace: Any, contract: Contract = SETTLED) -> dict[str, dict[str, int]]:
    return {str(result.property): result.causes for result in _judge(trace, contract).properties if result.causes}


# What the query at 20 reads of each block: the first and the last position.
READS = {
    CHUNKED: {4: (16, 19), 5: (20, 20)},
    SINK: {0: (0, 3), 1: (4, 5), 4: (17, 19), 5: (20, 20)},
    RSWA: {0: (0, 3), 1: (4, 7), 2: (8, 8), 4: (17, 19), 5: (20, 20)},
    CUSTOM: {0: (0, 0), 2: (8, 8), 4: (17, 19), 5: (20, 20)},
}


@pytest.mark.parametrize("spec", READS, ids=lambda spec: spec.kind)
def test_freed_under_a_step_that_reads_it(kit: Any, spec: KVCacheSpec) -> None:
    for index in range(6):
        trace = _in_flight(kit, spec).release({index: index + 1})
        found = _judge(trace).result(Property.READ_RESIDENT).violations
        assert {violation.index: violation.needed for violation in found} == {
            at: needed for at, needed in READS[spec].items() if at == index
        }
        assert _found(trace, STREAM_ORDER) == {}


@pytest.mark.parametrize("spec", READS, ids=lambda spec: spec.kind)
def test_gone_before_the_step_is_scheduled(kit: Any, spec: KVCacheSpec) -> None:
    for index in range(6):
        trace = _in_flight(kit, spec)
        trace.events[-1:] = [*kit.Builder(spec).release({index: index + 1}).events[1:], trace.events[-1]]
        causes = _found(trace, STREAM_ORDER)
        assert ("read_resident" in causes) == (index in READS[spec])
        assert ("write_owned" in causes) == (index == 5)


@pytest.mark.parametrize("spec", READS, ids=lambda spec: spec.kind)
def test_a_right_prune_and_a_block_more(kit: Any, spec: KVCacheSpec) -> None:
    freeable = [index for index in range(6) if index not in READS[spec]]
    trace = _in_flight(kit, spec).release({index: index + 1 for index in freeable}).process(2, kit.output())
    trace.schedule(3, kit.entry(21, 1)).process(3, kit.output()).finish()
    trace.release({index: index + 1 for index in READS[spec]}, "finish").end(idle=True)
    assert _found(trace) == {}
    assert _judge(trace).exit_code == 0


@pytest.mark.parametrize("spec", [SINK, RSWA], ids=lambda spec: spec.kind)
def test_what_stays_for_ever_is_missed_by_every_later_step(kit: Any, spec: KVCacheSpec) -> None:
    """The first blocks are lost, the gap above them was pruned rightly: the window's end alone would not show it."""
    trace = _in_flight(kit, spec).process(2, kit.output()).release({3: 4}).release({1: 2}).schedule(3, kit.entry(21, 1))
    found = _judge(trace, STREAM_ORDER).result(Property.READ_RESIDENT).violations
    assert [(violation.step, violation.index) for violation in found] == [(3, 1)]


def test_a_mask_that_was_thought_to_be_a_window_misses_that(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker, broken: only the highest doubtful entry is looked at."""
    monkeypatch.setattr(
        keys.TokenMask, "_reads_some", lambda self, start, tokens, first, end: first < end and self.reads_index(start, tokens, end - 1)
    )
    with pytest.raises(AssertionError):
        test_what_stays_for_ever_is_missed_by_every_later_step(kit, SINK)


# ---- rollbacks -------------------------------------------------------------------------------------------------------


def test_a_rollback_below_a_chunk(kit: Any) -> None:
    """Pruned at 24 = 21 + 3 accepted drafts, chunk 16 to 23 is gone; a rejection takes the request back to 23."""
    trace = kit.Builder(CHUNKED).add().allocate(1, 2, 3, 4, 5, 6).schedule(1, kit.entry(0, 20, [1, 2, 3, 4, 5, 6])).process(1, kit.output())
    trace.schedule(2, kit.entry(20, 4, drafts=3)).release({4: 5, 5: 6}).process(2, kit.output(rejected=1)).schedule(3)
    found = _judge(trace, STREAM_ORDER).result(Property.ROLLBACK_RESIDENT).violations
    assert [(violation.index, violation.needed) for violation in found] == [(4, (16, 19)), (5, (20, 22))]


# ---- prompts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompt", "kept"), [(4, {0}), (9, {0, 1, 2})])
def test_each_request_has_its_own_mask(kit: Any, prompt: int, kept: set[int]) -> None:
    trace = _in_flight(kit, RSWA)
    trace.events[1] = ev.Add(request="A", prompt_tokens=prompt)
    trace.release({0: 1, 1: 2, 2: 3})
    found = _judge(trace).result(Property.READ_RESIDENT).violations
    assert {violation.index for violation in found} == kept


def test_a_prompt_that_is_not_known(kit: Any) -> None:
    """A finished request whose step is in flight when the trace begins: its prompt is not told."""
    rows = ((1, 2, 3, 4, 5, 6),)
    part = ev.UnprocessedRequest(request="A", start=20, tokens=1, drafts=0, rows=rows, live=False)
    state = ev.State(requests=(), unprocessed=(ev.UnprocessedStep(step=1, requests=(part,)),), tables={"A": rows})
    trace = kit.Builder(RSWA).put(state).release({0: 1}, "deferred").end()
    result = _judge(trace).result(Property.READ_RESIDENT)
    assert (result.verdict, result.count) == (Verdict.NOT_CHECKED, 0)
    assert "prompt" in result.remarks[0]


# ---- masks by name ---------------------------------------------------------------------------------------------------


def test_a_name_without_a_kind_is_not_modelled(kit: Any) -> None:
    trace = _in_flight(kit, CUSTOM).release({0: 1}).end()
    report = _judge(trace, kinds={"another": KINDS["strided"]})
    assert (report.exit_code, report.unknown) == (3, ("group 0 (custom) is not modelled",))
    assert _judge(trace).exit_code == 1


# ---- held_bounded ----------------------------------------------------------------------------------------------------

# What a prune at 20 takes by the kind's claim.
TAKEN = {
    ChunkedLocalAttentionSpec(block_size=4, chunk=8, cap=6): [0, 1, 2, 3],
    SinkWindowSpec(block_size=4, sink=6, window=4, cap=6): [2, 3],
    RSWASpec(block_size=4, window=4, cap=6): [3],
    CustomSpec(block_size=4, name="strided", cap=6): [3],
    MambaSpec(block_size=4, mode="align", cap=6): [0, 1, 2, 3],
}


@pytest.mark.parametrize("spec", TAKEN, ids=lambda spec: spec.kind)
def test_below_the_need_is_what_the_kind_says(kit: Any, spec: KVCacheSpec) -> None:
    """What a prune never takes, the sink and the prompt, is not below the need; a block of the gap is."""
    for left in (None, *TAKEN[spec]):
        trace = kit.Builder(spec).add(prompt_tokens=PROMPT).allocate(1, 2, 3, 4, 5, 6)
        trace.schedule(1, kit.entry(0, 20, [1, 2, 3, 4, 5, 6])).process(1, kit.output())
        trace.release({index: index + 1 for index in TAKEN[spec] if index != left}).schedule(2, kit.entry(20, 1))
        found = _judge(trace).result(Property.HELD_BOUNDED).violations
        assert {violation.index for violation in found} == ({left} if left is not None else set())
        assert {violation.cause for violation in found} <= {"below_need"}


def test_a_state_in_place_is_never_below_the_need(kit: Any) -> None:
    trace = kit.Builder(MambaSpec(block_size=64, mode="none", num_speculative_blocks=1, cap=2)).add().allocate(1, 2)
    trace.schedule(1, kit.entry(0, 20, [1, 2])).process(1, kit.output()).schedule(2, kit.entry(20, 1)).end()
    result = _judge(trace).result(Property.HELD_BOUNDED)
    assert (result.verdict, result.groups) == (Verdict.HOLDS, (0,))
