"""Two independent sets of formulas, the model's and the reference's: change one on either side, and a comparison notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from relation import check_runs, compiled_actions

from settled.model import caps, counters
from settled.model.algebra import as_int, both, constant_value, maximum
from settled.model.counters import Counters
from settled.model.disciplines import RIGHT, FreeBasis
from settled.model.kinds import FullAttention, SlidingWindow
from settled.model.search.induction import decide
from settled.model.search.solver import Z3
from settled.model.specs import FullAttentionSpec, SlidingWindowSpec
from settled.proofs.masks import CASES, mask_lemmas
from settled.reference import admission, kv_cache_manager, managers, outputs
from settled.reference.admission import max_admission_blocks_per_request

Mutate = Callable[[pytest.MonkeyPatch], None]


def problems() -> list[str]:
    """What the comparisons find: events against the relation, caps against caps, the mask against the skip formula."""
    compiled_actions.cache_clear()
    found = [*_bases_differ(), *_caps_differ(), *(f"lemma: {verdict.obligation.name}" for verdict in _lemmas() if not verdict.holds)]
    if found:
        return found
    try:
        return check_runs(range(16), RIGHT, RIGHT, steps=80)[1]
    except AssertionError as error:  # the bookkeeping over the events, or the engine's own assertions
        return [str(error)]
    finally:
        compiled_actions.cache_clear()


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
    """The admission caps, for small numbers and for those that vLLM publishes."""
    grid = [(w, b, m, length) for w in (1, 3, 8) for b in (1, 4) for m in (1, 5) for length in (2, 30)] + [(1024, 16, 2048, 16384)]
    differing = []
    for window, size, in_flight, length in grid:
        sliding = SlidingWindowSpec(block_size=size, window=window)
        full = FullAttentionSpec(block_size=size)
        pairs = [
            (caps.admission_cap(SlidingWindow(window), size, in_flight, length), sliding),
            (caps.admission_cap(FullAttention(), size, in_flight, length), full),
        ]
        for term, spec in pairs:
            theirs = admission.max_admission_blocks_per_request(spec, max_in_flight_tokens=in_flight, max_model_len=length)
            if constant_value(term) != theirs:
                differing.append(f"cap of {spec} with {in_flight} in flight: model {term}, reference {theirs}")
    return differing


def _lemmas() -> list[Any]:
    return [decide(obligation, Z3()) for obligation in mask_lemmas(CASES["sliding window"], RIGHT)]


def test_the_two_sides_agree() -> None:
    assert problems() == []


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
    patch.setattr(managers, "cdiv", lambda amount, size: -(-amount // size) + 1)


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


MUTANTS = [
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
    assert problems()
