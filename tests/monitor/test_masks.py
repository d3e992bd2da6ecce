"""What the monitor says of whole blocks is what the mask says of their tokens, one by one."""

from __future__ import annotations

import itertools

import pytest

from settled.model import lifetime
from settled.model.algebra import int_variable
from settled.model.interpret import compile_terms
from settled.model.kinds import kind_of
from settled.model.lifetime import Step
from settled.model.monitor.masks import mask_of
from settled.model.specs import ChunkedLocalAttentionSpec, FullAttentionSpec, KVCacheSpec, SlidingWindowSpec

SPECS = [
    FullAttentionSpec(block_size=1),
    FullAttentionSpec(block_size=4),
    *(
        SlidingWindowSpec(block_size=block_size, window=window, extra_retained=extra)
        for block_size, window, extra in itertools.product((1, 3, 4), (1, 4, 5), (0, 2))
    ),
]


def _definitions(spec: KVCacheSpec):
    """The definitions themselves, token by token: read by a query, read by a step, written by a step, free-able at a basis."""
    kind = kind_of(spec)
    assert kind is not None
    start, tokens, token = (int_variable(name) for name in ("start", "tokens", "token"))
    step = Step(True, False, start, tokens, 0, 0)
    terms = [
        kind.reads(start, token),
        lifetime.reads(step, kind, token),
        lifetime.writes(step, kind, token, 0),
        kind.may_free(token, start),
    ]
    return compile_terms(terms, ("start", "tokens", "token"))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_block_is_read_or_written_iff_one_of_its_tokens_is(spec: KVCacheSpec) -> None:
    mask, define = mask_of(spec), _definitions(spec)
    assert mask is not None
    for start, tokens, index in itertools.product(range(15), range(1, 7), range(7)):
        block = range(index * spec.block_size, (index + 1) * spec.block_size)
        assert mask.reads_index(start, tokens, index) == any(define(start, tokens, token)[1] for token in block)
        assert mask.writes_index(start, tokens, index) == any(define(start, tokens, token)[2] for token in block)
        assert mask.may_free_index(index, start) == all(define(start, tokens, token)[3] for token in block)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_what_a_step_reads_is_one_interval_that_ends_at_its_last_query(spec: KVCacheSpec) -> None:
    mask, define = mask_of(spec), _definitions(spec)
    assert mask is not None
    for start, tokens in itertools.product(range(15), range(1, 7)):
        read = [token for token in range(30) if define(start, tokens, token)[1]]
        assert read == list(range(mask.lowest_read(start), start + tokens))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_with_tokens_below_one_only_what_lies_before_start_plus_tokens_counts(spec: KVCacheSpec) -> None:
    mask, define = mask_of(spec), _definitions(spec)
    assert mask is not None
    for start, tokens, index in itertools.product(range(15), range(-4, 1), range(7)):
        block = range(index * spec.block_size, (index + 1) * spec.block_size)
        kept = [token for token in block if token < start + tokens]
        assert mask.reads_index(start, tokens, index) == any(define(start, 1, token)[0] for token in kept)
        assert not mask.writes_index(start, tokens, index)


def test_needed_tokens_are_the_read_ones_of_the_block() -> None:
    mask = mask_of(SlidingWindowSpec(block_size=32, window=128))
    assert mask is not None
    assert mask.needed_tokens(158, 1, 0, written=False) == (31, 31)
    assert mask.needed_tokens(158, 1, 4, written=False) == (128, 158)
    assert mask.needed_tokens(158, 1, 4, written=True) == (158, 158)


def test_a_kind_without_a_model_has_no_mask() -> None:
    assert mask_of(ChunkedLocalAttentionSpec(block_size=4, chunk=8)) is None
