"""Two independent sets of formulas, the model's and the reference's: change one on either side, and a comparison notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import gcd
from typing import Any

import pytest
from relation import compiled_actions, first_problem

from settled.model import caps, counters, kinds
from settled.model.algebra import as_int, both, constant_value, int_variable, maximum
from settled.model.counters import Counters
from settled.model.disciplines import RIGHT, FreeBasis, Rounding
from settled.model.interpret import compile_term
from settled.model.kinds import SlidingWindow
from settled.model.search.induction import decide
from settled.model.search.solver import Z3
from settled.model.specs import (
    ChunkedLocalAttentionSpec,
    CustomSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    RSWASpec,
    SinkWindowSpec,
    SlidingWindowSpec,
)
from settled.proofs.masks import CASES, mask_lemmas
from settled.reference import admission, kv_cache_manager, managers, outputs
from settled.reference.admission import max_admission_blocks_per_request
from settled.reference.engine import Engine
from settled.reference.free_queue import PoolError
from settled.reference.managers import base
from settled.reference.masks import register_mask
from settled.reference.pool import BlockPool
from settled.reference.request import RequestStep
from settled.reference.workload import random_workload, run_workload

Mutate = Callable[[pytest.MonkeyPatch], None]


def problems() -> Iterator[str]:
    """What the comparisons find, as they find it: caps against caps, the mask against the skip formula, events against the relation."""
    compiled_actions.cache_clear()
    yield from _bases_differ()
    yield from _caps_differ()
    yield from _prunes_differ()
    yield from _lemmas_fail()
    try:
        problem = first_problem(range(16), RIGHT, RIGHT, steps=80)
    except (AssertionError, PoolError) as error:  # the bookkeeping over the events, or the engine's own checks
        problem = str(error)
    finally:
        compiled_actions.cache_clear()
    if problem is not None:
        yield problem


def _bases_differ() -> list[str]:
    """The counts on which a prune relies. Runs cannot tell the two safe ones apart: while output is stale p is still the hit, and what
    that skips was never adopted."""
    grid = [(computed, in_flight, stale) for computed in range(7) for in_flight in range(5) for stale in range(in_flight + 1)]
    return [
        f"{basis} of {counts}"
        for basis in FreeBasis
        for counts in grid
        for drafts in (0, 2)
        if constant_value(counters.free_basis(Counters(*counts), basis, drafts))
        != kv_cache_manager.free_basis_tokens(basis, *counts, drafts)
    ]


def _caps_differ() -> list[str]:
    """The admission caps, for small numbers and for those that vLLM publishes: what is published, where that is sound."""
    lengths = (2, 30, 10**6)
    windows = [
        (kinds.SlidingWindow(w, extra), SlidingWindowSpec(block_size=b, window=w, extra_retained=extra), m, length)
        for w, extra in ((1, 0), (3, 2), (8, 0))
        for b in (1, 4)
        for m in (1, 5)
        for length in lengths
    ]
    chunks = [
        (kinds.ChunkedLocal(x), ChunkedLocalAttentionSpec(block_size=b, chunk=x), m, length)
        for x, b in ((8, 4), (3, 2), (6, 1), (1024, 16))
        for m in (1, 5, 2048)
        for length in lengths
    ]
    full = [(kinds.FullAttention(), FullAttentionSpec(block_size=4), 5, length) for length in lengths]
    differing = []
    for kind, spec, in_flight, length in [*windows, *chunks, *full]:
        published = constant_value(caps.admission_cap(kind, spec.block_size, in_flight, length))
        theirs = admission.max_admission_blocks_per_request(spec, max_in_flight_tokens=in_flight, max_model_len=length)
        if published != theirs:
            differing.append(f"cap of {spec} with {in_flight} in flight: model {published}, reference {theirs}")
    for block_size, chunk, in_flight in ((16, 24, 8), (4, 6, 3), (5, 3, 7), (3, 5, 2)):
        exact = constant_value(caps.exact_maximum(kinds.ChunkedLocal(chunk), block_size, in_flight, 0, gcd(block_size, chunk)))
        spec = ChunkedLocalAttentionSpec(block_size=block_size, chunk=chunk)
        theirs = admission.max_admission_blocks_per_request(spec, max_in_flight_tokens=in_flight, max_model_len=10**6)
        if exact != theirs:
            differing.append(f"exact maximum of {spec} with {in_flight} in flight: model {exact}, reference {theirs}")
    return differing


PROMPT = 5
KINDS: list[tuple[kinds.Kind, KVCacheSpec]] = [
    (kinds.FullAttention(), FullAttentionSpec(block_size=3)),
    (kinds.SlidingWindow(4, 0), SlidingWindowSpec(block_size=3, window=4)),
    (kinds.SlidingWindow(1, 2), SlidingWindowSpec(block_size=2, window=1, extra_retained=2)),
    (kinds.ChunkedLocal(6), ChunkedLocalAttentionSpec(block_size=3, chunk=6)),
    (kinds.ChunkedLocal(5), ChunkedLocalAttentionSpec(block_size=2, chunk=5)),
    (kinds.SinkWindow(4, 3), SinkWindowSpec(block_size=3, sink=4, window=3)),
    (kinds.SinkWindow(0, 5), SinkWindowSpec(block_size=2, sink=0, window=5)),
    (kinds.RSWA(4, PROMPT), RSWASpec(block_size=3, window=4)),
    (kinds.RSWA(1, PROMPT), RSWASpec(block_size=1, window=1)),
    (kinds.MambaAlign(), MambaSpec(block_size=4, mode="align")),
    (kinds.MambaNone(1, 64), MambaSpec(block_size=64, mode="none")),
]
STRIDED = CustomSpec(block_size=3, name="test.strided")


FIRST, LAST, BASIS = (int_variable(name) for name in ("first", "last", "basis"))


def _prunes_differ() -> Iterator[str]:
    """Which blocks a prune frees, block by block, at every basis of a small run."""
    for kind, spec in KINDS:
        for rounding in Rounding:
            manager = managers.make_manager(spec, 0, BlockPool(2, enable_caching=False), rounding)
            frees = compile_term(kind.frees_block(FIRST, LAST, BASIS, rounding), ["first", "last", "basis"])
            for basis in range(40):
                first, last = manager.get_skipped_range(basis, PROMPT)
                for index in range(basis // spec.block_size + 2):
                    start = index * spec.block_size
                    if frees(start, start + spec.block_size - 1, basis) != (first <= index < last):
                        yield f"{spec} at {basis}, {rounding.value}: block {index}"


def _lemmas_fail() -> Iterator[str]:
    solver = Z3()
    for obligation in mask_lemmas(CASES["sliding window"], RIGHT):
        if not decide(obligation, solver).holds:
            yield f"lemma: {obligation.name}"


def test_the_two_sides_agree() -> None:
    assert list(problems()) == []


# ---- the model's side ------------------------------------------------------------------------------------------------


def skips_one_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlidingWindow, "skipped_tokens", lambda self, basis: maximum(as_int(basis) - self.window + 2 - self.extra_retained, 0))


def skips_one_less(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlidingWindow, "skipped_tokens", lambda self, basis: maximum(as_int(basis) - self.window - self.extra_retained, 0))


def forgets_what_is_retained(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlidingWindow, "skipped_tokens", lambda self, basis: maximum(as_int(basis) - self.window + 1, 0))


def reads_one_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        SlidingWindow,
        "reads",
        lambda self, query, token: both(as_int(token) >= 0, as_int(query) - self.window <= token, as_int(token) <= query),
    )


def reads_one_less(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        SlidingWindow,
        "reads",
        lambda self, query, token: both(as_int(token) >= 0, as_int(query) - self.window + 1 < token, as_int(token) <= query),
    )


def reads_the_next_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        SlidingWindow,
        "reads",
        lambda self, query, token: both(as_int(token) >= 0, as_int(query) - self.window < token, as_int(token) <= as_int(query) + 1),
    )


def settles_one_more(patch: pytest.MonkeyPatch) -> None:
    right = counters.settled
    patch.setattr(counters, "settled", lambda c: right(c) + 1)


def settles_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(counters, "settled", lambda c: as_int(c.computed))


def settles_without_stale(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(counters, "settled", lambda c: as_int(c.computed) - c.in_flight)


def schedule_forgets_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(counters, "schedule", lambda c, tokens: Counters(as_int(c.computed) + tokens, c.in_flight, c.stale))


def process_forgets_rejections(patch: pytest.MonkeyPatch) -> None:
    right = counters.process
    patch.setattr(counters, "process", lambda c, tokens, rejected, discipline: right(c, tokens, 0, discipline))


def preempt_keeps_computed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(counters, "preempt", lambda c, discipline: Counters(c.computed, c.in_flight, c.in_flight))


def caps_one_more(patch: pytest.MonkeyPatch) -> None:
    right = caps.admission_cap
    patch.setattr(caps, "admission_cap", lambda *numbers: right(*numbers) + 1)


def divides_downwards(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(caps, "ceil_div", lambda tokens, size: as_int(tokens) // size)


# ---- the reference's side --------------------------------------------------------------------------------------------


def manager_skips_one_more(patch: pytest.MonkeyPatch) -> None:
    right = managers.SlidingWindowManager.get_num_skipped_tokens
    patch.setattr(managers.SlidingWindowManager, "get_num_skipped_tokens", lambda self, tokens: right(self, tokens) + 1)


def manager_skips_one_less(patch: pytest.MonkeyPatch) -> None:
    right = managers.SlidingWindowManager.get_num_skipped_tokens
    patch.setattr(managers.SlidingWindowManager, "get_num_skipped_tokens", lambda self, tokens: max(0, right(self, tokens) - 1))


def manager_allocates_one_block_more(patch: pytest.MonkeyPatch) -> None:
    right = base.SingleTypeKVCacheManager.allocate_new_blocks
    patch.setattr(
        base.SingleTypeKVCacheManager,
        "allocate_new_blocks",
        lambda self, request, slots, tokens, **more: right(self, request, slots + self.block_size, tokens, **more),
    )


def basis_without_stale(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kv_cache_manager, "free_basis_tokens", lambda basis, computed, in_flight, *_: computed - in_flight)


def basis_is_computed(patch: pytest.MonkeyPatch) -> None:
    right = kv_cache_manager.free_basis_tokens
    patch.setattr(kv_cache_manager, "free_basis_tokens", lambda basis, *counts: right(FreeBasis.COMPUTED, *counts))


def rolls_back_one_less(patch: pytest.MonkeyPatch) -> None:
    right = outputs._roll_back
    patch.setattr(outputs, "_roll_back", lambda request, tokens: right(request, max(0, tokens - 1)))


def reference_caps_one_less(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        admission, "max_admission_blocks_per_request", lambda *spec, **numbers: max_admission_blocks_per_request(*spec, **numbers) - 1
    )


# ---- every kind, on either side: one token, or one block, more or less ------------------------------------------------


def _skips(kind: type[Any], change: Callable[[Any, Any], Any]) -> Mutate:
    """The skip formula of a kind or of a manager, changed."""
    name = "skipped_tokens" if issubclass(kind, kinds.Kind) else "get_num_skipped_tokens"

    def mutate(patch: pytest.MonkeyPatch) -> None:
        right = getattr(kind, name)
        patch.setattr(kind, name, lambda self, basis: change(self, right(self, basis)))

    mutate.__name__ = f"{kind.__name__}_skips_another_number"
    return mutate


def _one_more(self: Any, skipped: Any) -> Any:
    return skipped + 1


def _keeps_more(attribute: str, change: int) -> Mutate:
    """The blocks at the head that a kind keeps for ever."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        kind: type[Any] = {"sink": managers.SinkWindowManager, "prompt": managers.RSWAManager}[attribute]
        right = kind.get_skipped_range
        patch.setattr(kind, "get_skipped_range", lambda self, *tokens: (right(self, *tokens)[0] + change, right(self, *tokens)[1]))

    mutate.__name__ = f"manager_keeps_{attribute}_and_{change}_blocks"
    return mutate


def reference_forgets_what_stays_before_a_chunk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "gcd", lambda block_size, chunk: block_size)


def model_forgets_what_stays_before_a_chunk(patch: pytest.MonkeyPatch) -> None:
    right = caps.exact_maximum
    patch.setattr(caps, "exact_maximum", lambda kind, size, in_flight, lookahead, _: right(kind, size, in_flight, lookahead, size))


OTHER_KINDS = [
    *(_skips(kind, _one_more) for kind in (kinds.ChunkedLocal, kinds.SinkWindow, kinds.RSWA, kinds.MambaAlign, kinds.MambaNone)),
    *(
        _skips(manager, _one_more)
        for manager in (managers.ChunkedLocalAttentionManager, managers.SinkWindowManager, managers.RSWAManager, managers.MambaManager)
    ),
    *(_keeps_more(attribute, change) for attribute in ("sink", "prompt") for change in (-1, 1)),
    reference_forgets_what_stays_before_a_chunk,
    model_forgets_what_stays_before_a_chunk,
]
MUTANTS = [
    *OTHER_KINDS,
    skips_one_more,
    skips_one_less,
    forgets_what_is_retained,
    reads_one_more,
    reads_one_less,
    reads_the_next_key,
    settles_one_more,
    settles_what_is_in_flight,
    settles_without_stale,
    schedule_forgets_in_flight,
    process_forgets_rejections,
    preempt_keeps_computed,
    caps_one_more,
    divides_downwards,
    manager_skips_one_more,
    manager_skips_one_less,
    manager_allocates_one_block_more,
    basis_without_stale,
    basis_is_computed,
    rolls_back_one_less,
    reference_caps_one_less,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_changed_formula_is_noticed(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    assert next(problems(), None) is not None


# ---- a mask that a user brings ---------------------------------------------------------------------------------------


def strided(query: int, token: int) -> bool:
    """The last four keys, and every third one for ever."""
    return query - token < 4 or token % 3 == 0


def windowed(query: int, token: int) -> bool:
    return query - token < 4


def test_a_users_mask_frees_what_its_own_rule_frees() -> None:
    """The manager that asks a sliding window token by token frees what the formula frees; a strided one frees no block of 3."""
    register_mask("test.windowed", windowed)
    register_mask(STRIDED.name, strided)
    pool = BlockPool(2, enable_caching=False)
    asked = managers.CustomManager(CustomSpec(block_size=3, name="test.windowed"), 0, pool, Rounding.FLOOR)
    stride = managers.CustomManager(STRIDED, 0, pool, Rounding.FLOOR)
    for basis in range(40):
        _, last = managers.make_manager(SlidingWindowSpec(block_size=3, window=4), 0, pool, Rounding.FLOOR).get_skipped_range(basis, 0)
        freed = [index for index in range(basis // 3 + 1) if asked.is_skipped(index, basis)]
        assert freed == list(range(last))
        assert not any(stride.is_skipped(index, basis) for index in range(basis // 3 + 1))


# ---- states: which table entries a step uses -------------------------------------------------------------------------


def test_the_states_that_a_step_names_are_those_of_the_model() -> None:
    """Without drafts the reference names what the mask gives: the block of the token before the start, and that of the last token."""
    kind, start, tokens, token = kinds.MambaAlign(), *(int_variable(name) for name in ("start", "tokens", "token"))
    does_read = compile_term(kind.step_reads(start, tokens, token), ["start", "tokens", "token"])
    does_write = compile_term(kind.step_writes(start, tokens, token, 0), ["start", "tokens", "token"])
    seen = 0
    for seed in range(40):
        steps: list[RequestStep] = []
        workload = random_workload(seed, kinds=("mamba align",))
        config = replace(workload.config, num_speculative_tokens=0, num_lookahead_tokens=0)
        run_workload(replace(workload, config=config), steps=40, check=collecting(steps))
        for step in steps:
            assert step.indices is not None
            for group, spec in enumerate(config.groups):
                for index in range((step.start + step.tokens) // spec.block_size + 1):
                    block = range(index * spec.block_size, (index + 1) * spec.block_size)
                    reads = any(does_read(step.start, step.tokens, position) for position in block)
                    writes = any(does_write(step.start, step.tokens, position) for position in block)
                    assert reads == (index in step.indices.reads[group])
                    assert writes == (index in step.indices.writes[group])
                    seen += reads + writes
    assert seen > 1000


def collecting(steps: list[RequestStep]) -> Callable[[Engine], None]:
    """After every move, the newest step in flight."""
    return lambda engine: steps.extend(engine.unprocessed[-1].entries if engine.unprocessed else ())
