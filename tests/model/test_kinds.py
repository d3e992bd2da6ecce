"""Kinds on small numbers: what the mask allows against what the published formulas free, counted token by token."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from settled.model.algebra import BoolTerm, Int, Term, as_int, constant_value, int_variable
from settled.model.caps import admission_cap
from settled.model.disciplines import Rounding
from settled.model.interpret import compile_terms
from settled.model.kinds import (
    RSWA,
    AnyShrinking,
    ChunkedLocal,
    FullAttention,
    Kind,
    MambaAlign,
    MambaNone,
    SinkWindow,
    SlidingWindow,
    ceil_div,
    in_block,
    kind_of,
    needed_sets_shrink,
)
from settled.model.specs import (
    SPEC_BY_KIND,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    CustomSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    RSWASpec,
    SinkWindowSpec,
    SlidingWindowSpec,
)

WINDOWS, EXTRAS, POSITIONS, BLOCK_SIZES = range(1, 7), range(4), range(21), range(1, 6)
W, EXTRA, BASIS, TOKEN, FIRST, LAST, LATER = (int_variable(name) for name in ("W", "extra", "basis", "token", "first", "last", "later"))
SLIDING = SlidingWindow(W, EXTRA)


def on_integers(term: Term, *inputs: Term) -> Callable[..., int]:
    """A term as a function of integers."""
    compiled = compile_terms([term], [symbol.args[0] for symbol in inputs])
    return lambda *values: compiled(*values)[0]


def sees(window: int, query: int, token: int) -> bool:
    """A query sees the last `window` keys, its own included: the mask, by listing them."""
    return token in range(max(0, query - window + 1), query + 1)


reads = on_integers(SLIDING.reads(BASIS, TOKEN), W, BASIS, TOKEN)
may_free = on_integers(SLIDING.may_free(TOKEN, BASIS), W, TOKEN, BASIS)
skipped = on_integers(SLIDING.skipped_tokens(BASIS), W, EXTRA, BASIS)
frees = {rounding: on_integers(SLIDING.frees_block(FIRST, LAST, BASIS, rounding), W, EXTRA, BASIS, FIRST, LAST) for rounding in Rounding}


def blocks(size: int) -> list[tuple[int, int]]:
    """First and last token of the blocks that lie about the positions."""
    return [(first, first + size - 1) for first in range(0, max(POSITIONS) + size, size)]


# ---- the mask --------------------------------------------------------------------------------------------------------


def test_a_sliding_window_reads_the_last_keys() -> None:
    for window, query, token in product(WINDOWS, POSITIONS, range(-3, 25)):
        assert reads(window, query, token) == sees(window, query, token)


def test_a_token_may_go_iff_it_is_past_and_no_query_from_here_on_reads_it() -> None:
    """The rule looks at the query at the basis only; here every later query is asked."""
    for window, basis, token in product(WINDOWS, POSITIONS, range(25)):
        needed = any(sees(window, query, token) for query in range(basis, basis + 50))
        assert may_free(window, token, basis) == (token < basis and not needed)


def test_needed_sets_shrink() -> None:
    """Once a past token is not read, no later query reads it: for both kinds, and for any kind by its own axiom."""
    shrink = on_integers(needed_sets_shrink(SLIDING, BASIS, LATER, TOKEN), W, BASIS, LATER, TOKEN)
    full = on_integers(needed_sets_shrink(FullAttention(), BASIS, LATER, TOKEN), BASIS, LATER, TOKEN)
    for query, later, token in product(POSITIONS, POSITIONS, POSITIONS):
        assert full(query, later, token)
        assert all(shrink(window, query, later, token) for window in WINDOWS)


def test_needed_sets_that_grow_are_told_apart() -> None:
    """A mask whose later queries read more, as R-SWA's with an extended prompt: the property is not a tautology."""

    class AllAtTen(SlidingWindow):
        def reads(self, query: Int, token: Int) -> BoolTerm:
            return SlidingWindow(100 if constant_value(as_int(query)) == 10 else 2).reads(query, token)

    kind = AllAtTen(2)
    verdicts = {(q, r): needed_sets_shrink(kind, q, r, 0).args[0] for q, r in product(range(1, 12), repeat=2)}
    assert {pair for pair, holds in verdicts.items() if not holds} == {(q, 10) for q in range(2, 10)}


def test_any_shrinking_mask_speaks_of_its_own_token_only() -> None:
    kind = AnyShrinking(TOKEN)
    assert kind.reads(BASIS, TOKEN).op == "apply"
    assert kind.frees_block(FIRST, LAST, BASIS, Rounding.FLOOR) is kind.may_free(TOKEN, BASIS)
    with pytest.raises(ValueError, match="its own token only"):
        kind.reads(BASIS, FIRST)
    with pytest.raises(NotImplementedError):
        kind.skipped_tokens(BASIS)
    with pytest.raises(NotImplementedError):
        kind.frees_block(FIRST, LAST, BASIS, Rounding.CEIL)


# ---- the skip formula ------------------------------------------------------------------------------------------------


def test_skipped_tokens_are_those_that_the_mask_lets_go_less_the_extra() -> None:
    for window, extra, basis in product(WINDOWS, EXTRAS, POSITIONS):
        free_able = sum(bool(may_free(window, token, basis)) for token in range(25))
        assert skipped(window, extra, basis) == max(0, free_able - extra)


def test_rounding_down_frees_only_blocks_all_of_whose_tokens_may_go() -> None:
    for window, extra, basis, size in product(WINDOWS, EXTRAS, POSITIONS, BLOCK_SIZES):
        for first, last in blocks(size):
            if frees[Rounding.FLOOR](window, extra, basis, first, last):
                assert all(may_free(window, token, basis) for token in range(first, last + 1))


def test_rounding_down_without_extra_frees_every_such_block() -> None:
    for window, basis, size in product(WINDOWS, POSITIONS, BLOCK_SIZES):
        for first, last in blocks(size):
            whole = all(may_free(window, token, basis) for token in range(first, last + 1))
            assert frees[Rounding.FLOOR](window, 0, basis, first, last) == whole


def test_extra_retained_tokens_keep_a_block_that_the_mask_would_let_go() -> None:
    assert frees[Rounding.FLOOR](2, 0, 5, 0, 3)
    assert may_free(2, 3, 5)
    assert not frees[Rounding.FLOOR](2, 1, 5, 0, 3)


def test_rounding_up_frees_a_block_with_a_token_that_is_needed() -> None:
    """At most one, at the boundary, and none with blocks of one token."""
    for size in BLOCK_SIZES:
        wrong = [
            sum(
                bool(frees[Rounding.CEIL](window, 0, basis, first, last))
                and not all(may_free(window, token, basis) for token in range(first, last + 1))
                for first, last in blocks(size)
            )
            for window, basis in product(WINDOWS, POSITIONS)
        ]
        assert max(wrong) == (0 if size == 1 else 1)


def test_full_attention_frees_nothing() -> None:
    kind = FullAttention()
    for basis, token in product(POSITIONS, POSITIONS):
        assert kind.may_free(token, basis).args == (False,)
        for rounding in Rounding:
            assert kind.frees_block(token, token + 3, basis, rounding).args == (False,)


# ---- kinds of specs --------------------------------------------------------------------------------------------------

KINDS: list[tuple[KVCacheSpec, Kind | None]] = [
    (FullAttentionSpec(block_size=4), FullAttention()),
    (SlidingWindowSpec(block_size=4, window=7, extra_retained=2), SlidingWindow(7, 2)),
    (ChunkedLocalAttentionSpec(block_size=4, chunk=8), ChunkedLocal(8)),
    (MambaSpec(block_size=4, mode="align"), MambaAlign()),
    (MambaSpec(block_size=64, mode="none", num_speculative_blocks=2), MambaNone(3, 64)),
    (MambaSpec(block_size=4, mode="all"), None),
    (SinkWindowSpec(block_size=4, sink=1, window=4), SinkWindow(1, 4)),
    (RSWASpec(block_size=4, window=5), RSWA(5, 9)),
    (CrossAttentionSpec(block_size=4), None),
    (CustomSpec(block_size=4, name="mine"), None),
]


@pytest.mark.parametrize(("spec", "kind"), KINDS, ids=lambda value: value.kind if isinstance(value, KVCacheSpec) else "")
def test_the_kind_of_each_spec(spec: KVCacheSpec, kind: Kind | None) -> None:
    assert kind_of(spec, prompt=9) == kind


def test_the_kind_of_rswa_needs_the_prompt() -> None:
    with pytest.raises(ValueError, match="expected its prompt"):
        kind_of(RSWASpec(block_size=4, window=4))


def test_no_spec_is_left_out_above() -> None:
    assert {type(spec) for spec, _ in KINDS} == set(SPEC_BY_KIND.values())


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_below_one_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"block_size must be at least 1 token, not {size}"):
        FullAttentionSpec(block_size=size)
    with pytest.raises(ValueError, match=f"window must be at least 1 token, not {size}"):
        SlidingWindowSpec(block_size=4, window=size)
    with pytest.raises(ValueError, match=f"chunk must be at least 1 token, not {size}"):
        ChunkedLocalAttentionSpec(block_size=4, chunk=size)


# ---- the admission cap -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batches", "cap"), [(1, 129), (2, 193)])
def test_47728_admission_cap(batches: int, cap: int) -> None:
    """vLLM pull request #47728, its test of the cap: W = 1024, B = 16, L = 16384, 1024 batched tokens, one step in flight and two."""
    assert admission_cap(SlidingWindow(1024), 16, batches * 1024, 16384).args == (cap,)


def held_blocks(window: int, extra: int, size: int, settled: int, end: int) -> int:
    """Blocks in a table right after slots were made below `end`: all but those with nothing but tokens that may go and are not extra."""
    oldest_kept = settled - window + 1 - extra
    return len({token // size for token in range(end) if token >= oldest_kept})


def most_held(window: int, extra: int, size: int, in_flight_max: int, length: int) -> int:
    """The most that one request holds, over every settled count and every number of tokens in flight."""
    return max(
        held_blocks(window, extra, size, settled, settled + in_flight)
        for settled in range(length)
        for in_flight in range(1, min(in_flight_max, length - settled) + 1)
    )


def test_the_sliding_window_cap_bounds_what_a_request_holds() -> None:
    """And it is reached, so a smaller number would be wrong."""
    reached = 0
    for window, extra, size, in_flight, length in product(range(1, 6), range(2), range(1, 5), range(1, 6), range(1, 15)):
        cap = admission_cap(SlidingWindow(window, extra), size, in_flight, length).args[0]
        most = most_held(window, extra, size, in_flight, length)
        assert most <= cap, (window, extra, size, in_flight, length)
        reached += most == cap
    assert reached > 0


def test_the_full_attention_cap_is_what_a_request_holds() -> None:
    for size, length in product(range(1, 5), range(1, 15)):
        assert admission_cap(FullAttention(), size, 3, length).args[0] == len({token // size for token in range(length)})


def test_no_cap_is_published_for_an_unknown_mask() -> None:
    with pytest.raises(NotImplementedError, match="no admission cap is published for any shrinking mask"):
        admission_cap(AnyShrinking(TOKEN), 16, 1024, 16384)


# ---- blocks ----------------------------------------------------------------------------------------------------------


def test_blocks_that_tokens_need_are_counted() -> None:
    for tokens, size in product(range(20), BLOCK_SIZES):
        assert ceil_div(tokens, size).args[0] == len({token // size for token in range(tokens)})


def test_a_token_lies_in_its_block() -> None:
    for size, token in product(BLOCK_SIZES, POSITIONS):
        where = [first // size for first, last in blocks(size) if in_block(token, first, last).args[0]]
        assert where == [token // size]
