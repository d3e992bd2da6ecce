"""Kinds that keep a state: which table indices a step reads and writes, and what the monitor makes of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from settled.model import events as ev
from settled.model.algebra import int_variable
from settled.model.interpret import compile_terms
from settled.model.kinds import kind_of
from settled.model.monitor import Verdict
from settled.model.monitor.groups import mask_of
from settled.model.monitor.slots import AlignedWithDrafts, StateMask
from settled.model.monitor.state import Entry, Request, Table
from settled.model.properties import Contract, Property
from settled.model.specs import MambaSpec

SETTLED, STREAM_ORDER = Contract.SETTLED, Contract.STREAM_ORDER
NONE = MambaSpec(block_size=64, mode="none", num_speculative_blocks=1)
ALIGN = MambaSpec(block_size=4, mode="align")
DRAFTS = MambaSpec(block_size=4, mode="align", num_speculative_blocks=2)


def _mask(spec: MambaSpec) -> StateMask:
    mask = mask_of(spec)
    assert isinstance(mask, StateMask)
    return mask


def _entry(start: int, tokens: int, drafts: int = 0, previous: Entry | None = None) -> Entry:
    request = Request("A", [Table()], [None], [])
    return Entry(1, 1, request, 0, start, tokens, drafts, [[]], [0], start + tokens, 0, previous=previous)


# ---- against the kind, token by token --------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [NONE, ALIGN, MambaSpec(block_size=1, mode="align"), MambaSpec(block_size=3, mode="align")], ids=str)
def test_an_index_is_read_or_written_iff_the_state_of_one_of_its_tokens_is(spec: MambaSpec) -> None:
    mask, kind = _mask(spec), kind_of(spec)
    assert kind is not None
    start, tokens, token = (int_variable(name) for name in ("start", "tokens", "token"))
    terms = [kind.step_reads(start, tokens, token), kind.step_writes(start, tokens, token, 3), kind.may_free(token, start)]
    define = compile_terms(terms, ("start", "tokens", "token"))
    size = spec.block_size
    for begin, count in itertools.product(range(13), range(1, 7)):
        told = [define(begin, count, position) for position in range(20 * size)]
        read = sorted({position // size for position, (is_read, _, _) in enumerate(told) if is_read})
        written = sorted({position // size for position, (_, is_written, _) in enumerate(told) if is_written})
        entry = _entry(begin, count)
        assert sorted(mask.reads(entry)) == sorted(mask.may_read(entry)) == sorted(mask.reads_now(entry)) == read
        assert sorted(mask.writes(entry)) == sorted(mask.may_write(entry)) == sorted(mask.writes_now(entry)) == written
        for index in range(20):
            assert mask.may_free_index(index, begin) == all(told[position][2] for position in range(index * size, (index + 1) * size))


def test_a_start_that_may_still_fall_leaves_two_blocks_open() -> None:
    mask, first = _mask(ALIGN), _entry(2, 4, drafts=3)
    entry = _entry(6, 1, previous=first)
    entry.rejectable = first.drafts
    assert (list(mask.reads(entry)), list(mask.may_read(entry)), list(mask.reads_now(entry))) == ([], [0, 1], [1])
    assert (list(mask.writes(entry)), list(mask.may_write(entry)), list(mask.writes_now(entry))) == ([], [0, 1], [1])


# ---- speculative blocks, against a worker that keeps states by table index -------------------------------------------


def _disagreements(spec: MambaSpec, seed: int) -> list[str]:
    """A request's steps, one after the other, on a table of states: index → the token after which the state there is.

    The worker is written from what vLLM's does: copies before and after the pass, states after drafts past the running one.
    """
    mask = _mask(spec)
    assert isinstance(mask, AlignedWithDrafts)
    choose, size = random.Random(seed), spec.block_size
    states: dict[int, int] = {}
    wrong: list[str] = []
    computed, previous, kept = 0, None, set[int]()
    for _ in range(60):
        tokens = choose.randint(1, 3 * size) if choose.random() < 0.3 else choose.randint(1, spec.num_speculative_blocks + 1)
        drafts = choose.randint(0, min(tokens - 1, spec.num_speculative_blocks))
        entry = _entry(computed, tokens, drafts, previous)
        read = list(mask.reads(entry))
        if computed and states.get(read[-1]) != computed - 1:
            wrong.append(f"step at {computed} reads the state after {states.get(read[-1])}")
        if set(read) != kept:
            wrong.append(f"step at {computed} reads {read}, not {kept}")
        running = (computed + tokens - 1) // size
        written = {running + draft: computed + tokens - drafts + draft - 1 for draft in range(drafts + 1)}
        accepted = choose.randint(0, drafts)
        computed += tokens - drafts + accepted
        kept = {running, running + accepted}  # the inputs of the convolution, and the state after the last accepted token
        full = computed // size * size
        if full >= entry.end - drafts and full:
            written[full // size - 1] = full - 1
            kept = {running} if full // size - 1 == running else kept
        states |= written
        if not set(mask.writes(entry)) <= set(written) <= set(mask.may_write(entry)):
            wrong.append(f"step to {computed} writes {sorted(written)}")
        entry.rejected = drafts - accepted
        if set(mask.writes_now(entry)) != set(written):
            wrong.append(f"step to {computed} wrote {sorted(written)}, not {sorted(mask.writes_now(entry))}")
        request = entry.request
        request.last, request.computed = entry, computed
        following = _entry(computed, 1, 0, entry)
        if set(mask.reads_next(request)) != set(mask.reads(following)) or set(mask.reads(following)) != set(mask.reads_now(following)):
            wrong.append(f"after {computed}, what is read next is told in two ways")
        previous = entry
    return wrong


@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
@pytest.mark.parametrize("drafts", [1, 3, 5])
def test_the_state_that_is_read_is_that_after_the_last_accepted_token(block_size: int, drafts: int) -> None:
    spec = MambaSpec(block_size=block_size, mode="align", num_speculative_blocks=drafts)
    assert [_disagreements(spec, seed) for seed in range(20)] == [[]] * 20


MUTANTS: dict[str, Callable[..., Any]] = {
    "_running": lambda mask, entry: entry.end // mask.block_size,
    "_filled": lambda mask, entry, rejected: None,
    "_kept": lambda mask, entry, rejected: (mask._running(entry), mask._running(entry) + entry.drafts - (rejected or 0)),
    "writes": lambda mask, entry: range(mask._running(entry), mask._running(entry) + 1),
    "may_write": lambda mask, entry: mask.writes(entry),
    "reads": lambda mask, entry: (max(entry.start - 1, 0) // mask.block_size,),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_formula_is_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(AlignedWithDrafts, name, MUTANTS[name])
    assert any(_disagreements(DRAFTS, seed) for seed in range(20))


# ---- in traces -------------------------------------------------------------------------------------------------------


def _started(kit: Any, spec: MambaSpec = DRAFTS, **config: Any) -> Any:
    """A has computed 4 tokens; its state is at index 0 (block 1), with speculative blocks at 1 and 2 (blocks 2 and 3)."""
    trace = kit.Builder(spec, **config).add().allocate(1, 2, 3).schedule(1, kit.entry(0, 4, [1, 2, 3]))
    return trace.process(1, kit.output())


def _drafting(kit: Any) -> Any:
    """Step 2 takes tokens 4 to 6, the last two of them drafts: its states go to indices 1 to 3 (blocks 2 to 4)."""
    return _started(kit).allocate(4, first=3).schedule(2, kit.entry(4, 3, [4], drafts=2))


def _read(trace: Any, contract: Contract = SETTLED) -> list[tuple[int | None, int | None]]:
    return [(found.step, found.index) for found in trace.judge(contract).result(Property.READ_RESIDENT).violations]


def test_a_right_run(kit: Any) -> None:
    trace = _drafting(kit).process(2, kit.output(rejected=1)).release({0: 1}).allocate(5, first=4)
    trace.schedule(3, kit.entry(6, 3, [5], drafts=2)).process(3, kit.output(rejected=2)).finish()
    trace.release({1: 2, 2: 3, 3: 4, 4: 5}, "finish").end(idle=True)
    assert all(trace.found(contract) == {} for contract in Contract)
    assert trace.judge(SETTLED).exit_code == 0


def test_the_state_before_the_step_is_freed_under_it(kit: Any) -> None:
    trace = _drafting(kit).release({0: 1})
    assert _read(trace) == [(2, 0)]
    assert trace.found(STREAM_ORDER) == {}


@pytest.mark.parametrize(("rejected", "lost"), [(2, None), (1, 2)])
def test_a_rollback_needs_the_slot_of_the_last_accepted_state(kit: Any, rejected: int, lost: int | None) -> None:
    trace = _drafting(kit).release({2: 3}).process(2, kit.output(rejected=rejected)).schedule(3)
    violations = trace.judge(STREAM_ORDER).result(Property.ROLLBACK_RESIDENT).violations
    assert [found.index for found in violations] == ([lost] if lost else [])


@pytest.mark.parametrize(("rejected", "lost"), [(0, 3), (1, 2), (2, None)])
def test_which_slot_a_step_reads_is_open_until_the_output_before_it(kit: Any, rejected: int, lost: int | None) -> None:
    """Step 3 is scheduled behind step 2: it reads the running index 1, and 2 or 3 if one or two drafts are accepted."""
    trace = _drafting(kit).schedule(3, kit.entry(7, 1)).release({2: 3, 3: 4})
    assert _read(trace) == []
    trace.process(2, kit.output(rejected=rejected))
    trace.process(3, kit.output())
    assert _read(trace) == ([(3, lost)] if lost else [])
    assert _read(_drafting(kit).schedule(3, kit.entry(7, 1)).release({1: 2})) == [(3, 1)]


def test_a_slot_that_is_gone_when_the_step_is_scheduled(kit: Any) -> None:
    trace = _drafting(kit).process(2, kit.output()).release({3: 4}).schedule(3, kit.entry(7, 1))
    assert _read(trace, STREAM_ORDER) == [(3, 3)]


def test_null_entries_that_nothing_reads_are_no_loss(kit: Any) -> None:
    """A first chunk of three blocks: the table has null at 0 and 1, the state at 2."""
    trace = kit.Builder(DRAFTS).add(prompt_tokens=16).allocate(1, 2, 3, first=2).schedule(1, kit.entry(0, 12, [0, 0, 1, 2, 3]))
    assert trace.process(1, kit.output()).end().found(SETTLED) == {}


def test_a_state_is_written_at_the_running_index_and_after_each_draft(kit: Any) -> None:
    trace = _drafting(kit).release({1: 2, 2: 3, 3: 4}, "preempt").add("B").allocate(2, 3, 4, request="B")
    written = trace.judge(SETTLED).result(Property.WRITE_OWNED).violations
    assert [(found.step, found.index) for found in written] == [(2, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize(("rejected", "harmed"), [(0, True), (1, True), (2, False)])
def test_a_block_that_the_accepted_tokens_fill_is_written_too(kit: Any, rejected: int, harmed: bool) -> None:
    """Step 3 takes tokens 6 to 8, two of them drafts, at running index 2; if token 7 is accepted, the state after it goes to index 1."""
    trace = _drafting(kit).process(2, kit.output(rejected=1)).allocate(5, first=4).schedule(3, kit.entry(6, 3, [5], drafts=2))
    trace.release({1: 2}, "preempt").add("B").allocate(2, request="B").process(3, kit.output(rejected=rejected)).end()
    written = trace.judge(SETTLED).result(Property.WRITE_OWNED).violations
    assert [(found.step, found.index) for found in written] == ([(3, 1)] if harmed else [])


@pytest.mark.parametrize(("spec", "blocks"), [(ALIGN, (1,)), (DRAFTS, (1, 2, 3))], ids=["no drafts", "drafts"])
@pytest.mark.parametrize(("tokens", "is_same"), [(4, True), (3, False)])
def test_a_shared_state_is_that_after_its_hash(kit: Any, spec: MambaSpec, blocks: tuple[int, ...], tokens: int, is_same: bool) -> None:
    """The hash of block 1 stands for the state after four tokens; a step that ends before keeps another state there."""
    trace = kit.Builder(spec, records=("content",)).add().allocate(*blocks)
    trace.put(ev.Cache(entries=(ev.CacheEntry(block=1, request="A", start=0, end=4),))).schedule(1, kit.entry(0, tokens, blocks))
    assert trace.add("B").touch(1, request="B").found() == ({} if is_same else {"write_owned": {"shared[never released]": 1}})


@pytest.mark.parametrize("tokens", [(3, 1), (1, 3), (2, 1)])
def test_a_state_on_the_way_to_the_one_that_is_shared_is_overwritten(kit: Any, tokens: tuple[int, int]) -> None:
    """Two steps of A end within block 1, whose hash stands for the state after four tokens: what the second leaves there counts."""
    first, second = tokens
    trace = kit.Builder(ALIGN, records=("content",)).add().allocate(1)
    trace.put(ev.Cache(entries=(ev.CacheEntry(block=1, request="A", start=0, end=4),)))
    trace.schedule(1, kit.entry(0, first, (1,))).schedule(2, kit.entry(first, second, ()))
    found = trace.add("B").touch(1, request="B").found()
    assert found == ({} if first + second == 4 else {"write_owned": {"shared[never released]": 1}})


# ---- moves -----------------------------------------------------------------------------------------------------------


def _moved(kit: Any, **config: Any) -> Any:
    """The running index goes from 0 to 2: block 2 moves from index 1 to 3, block 9 is fresh at 4, block 3 is the running state."""
    trace = _started(kit, **config).allocate(9, first=4)
    return trace.schedule(2, kit.entry(4, 8, [2, 9]))


def test_moves_that_are_not_recorded_are_inferred(kit: Any) -> None:
    trace = _moved(kit).process(2, kit.output()).finish().release({0: 1, 2: 3, 3: 2, 4: 9}, "finish").end(idle=True)
    assert trace.found(SETTLED) == {}


def test_an_engine_that_records_moves_moves_nothing_else(kit: Any) -> None:
    trace = _moved(kit, records=("copies",)).process(2, kit.output()).finish()
    assert trace.release({0: 1, 2: 3, 3: 2, 4: 9}, "finish").found(SETTLED)["single_owner"]["not_held"] == 1
    trace = _started(kit, records=("copies",)).put(ev.Move(request="A", group=0, from_index=1, to_index=3, block=2)).allocate(9, first=4)
    trace.schedule(2, kit.entry(4, 8, [2, 9])).process(2, kit.output()).finish()
    assert trace.release({0: 1, 2: 3, 3: 2, 4: 9}, "finish").end(idle=True).found(SETTLED) == {}


def test_a_table_that_grows_otherwise_moves_nothing(kit: Any) -> None:
    """Fresh blocks from index 3 on leave no room for a block that moved."""
    trace = _started(kit).allocate(8, 9, first=3).schedule(2, kit.entry(4, 8, [8, 9])).process(2, kit.output()).finish()
    assert trace.release({0: 1, 1: 2, 2: 3, 3: 8, 4: 9}, "finish").end(idle=True).found(SETTLED) == {}


def test_the_hit_of_a_new_request_stays_where_it_is(kit: Any) -> None:
    trace = kit.Builder(DRAFTS).add(prompt_tokens=16).put(ev.Cache(entries=(ev.CacheEntry(block=7),))).touch(7, first=0)
    trace.put(ev.Computed(request="A", computed=4, cause="hit", stale=False)).allocate(1, 2, 3, first=2)
    trace.schedule(1, kit.entry(4, 8, [7, 0, 1, 2, 3])).process(1, kit.output()).finish()
    assert trace.release({0: 7, 2: 1, 3: 2, 4: 3}, "finish").end(idle=True).found(SETTLED) == {}


def test_a_step_reads_a_slot_where_its_row_still_has_it(kit: Any) -> None:
    """Step 2 leaves the state after its accepted drafts at index 3 (block 4), which moves to 5 before step 3 reads it at 3."""
    trace = _drafting(kit).process(2, kit.output()).allocate(10, first=6)
    scheduled = kit.entry(7, 10, [3, 4, 10])
    assert trace.schedule(3, scheduled).found(SETTLED) == {}
    assert _read(trace.release({5: 4})) == [(3, 3)]


# ---- in place --------------------------------------------------------------------------------------------------------


def test_every_step_reads_and_writes_the_state_in_place(kit: Any) -> None:
    trace = kit.Builder(NONE).add().allocate(1, 2).schedule(1, kit.entry(0, 8, [1, 2])).process(1, kit.output())
    trace.schedule(2, kit.entry(8, 2, drafts=1))
    assert trace.found(SETTLED) == {}
    trace.release({0: 1, 1: 2}, "preempt").add("B").allocate(1, request="B")
    assert _read(trace) == [(2, 0), (2, 1), (2, 0)]
    assert [found.index for found in trace.judge(SETTLED).result(Property.WRITE_OWNED).violations] == [0]


def test_a_state_in_place_that_is_gone(kit: Any) -> None:
    trace = kit.Builder(NONE).add().allocate(1, 2).schedule(1, kit.entry(0, 8, [1, 2])).process(1, kit.output())
    trace.release({1: 2}).schedule(2, kit.entry(8, 2, drafts=1))
    assert _read(trace, STREAM_ORDER) == [(2, 1)]


# ---- what the trace says itself --------------------------------------------------------------------------------------


def test_recorded_indices_come_before_those_of_the_kind(kit: Any) -> None:
    trace = _started(kit, ALIGN).schedule(2, kit.entry(4, 1, reads=((2,),), writes=((1,),)))
    assert _read(trace.release({0: 1})) == []
    assert _read(trace.release({2: 3})) == [(2, 2)]
    trace.release({1: 2}).add("B").allocate(2, 3, request="B")
    assert [found.index for found in trace.judge(SETTLED).result(Property.WRITE_OWNED).violations] == [1]


def test_a_recorded_index_without_a_block(kit: Any) -> None:
    trace = _started(kit, ALIGN).schedule(2, kit.entry(4, 1, reads=((5,),), writes=((0,),)))
    assert _read(trace, STREAM_ORDER) == [(2, 5)]


def test_where_reads_are_recorded_a_rollback_waits_for_them(kit: Any) -> None:
    trace = _started(kit).schedule(2, kit.entry(4, 3, drafts=2, reads=((0,),), writes=((2,),))).release({1: 2})
    assert trace.process(2, kit.output(rejected=1)).schedule(3).found(STREAM_ORDER) == {}


def test_a_trace_that_starts_in_mid_run_does_not_say_which_slot_is_read(kit: Any) -> None:
    state = ev.State(
        requests=(ev.RequestState(request="A", prompt_tokens=4, computed=8, in_flight=0, stale=0),),
        unprocessed=(),
        tables={"A": ((0, 0, 3, 4),)},
    )
    trace = kit.Builder(DRAFTS).put(state).schedule(1, kit.entry(8, 1)).process(1, kit.output()).end()
    result = trace.judge(SETTLED).result(Property.READ_RESIDENT)
    assert (result.verdict, trace.found(SETTLED)) == (Verdict.NOT_CHECKED, {})
    assert "mid-run" in result.remarks[0]
