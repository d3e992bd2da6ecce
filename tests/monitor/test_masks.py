"""What the monitor says of whole blocks is what the mask says of their tokens, one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from settled.model import lifetime
from settled.model.algebra import BoolTerm, Int, IntTerm, as_int, both, either, int_variable, maximum
from settled.model.interpret import compile_terms
from settled.model.kinds import Kind, kind_of
from settled.model.lifetime import Step
from settled.model.monitor import groups
from settled.model.monitor.groups import mask_of
from settled.model.monitor.keys import Shape, TokenMask
from settled.model.specs import (
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

PROMPT = 5  # of the request, where a kind depends on it
STARTS, TOKENS, INDICES = range(15), range(1, 7), range(7)


@dataclass(frozen=True)
class EvenOnes(Kind):
    """A user's mask with holes everywhere: the last `window` keys, and of those before them the first `sink` at even positions."""

    window: int
    sink: int
    name = "even ones"

    def reads(self, query: Int, token: Int) -> BoolTerm:
        is_even = as_int(token) == (as_int(token) // 2) * 2
        in_reach = either(as_int(query) - self.window < token, both(as_int(token) < self.sink, is_even))
        return both(as_int(token) >= 0, as_int(token) <= query, in_reach)

    def skipped_tokens(self, basis: Int) -> IntTerm:
        return maximum(0, 0)


CUSTOM: dict[str, Kind] = {"even": EvenOnes(3, 9)}
SPECS = [
    FullAttentionSpec(block_size=1),
    FullAttentionSpec(block_size=4),
    *(
        SlidingWindowSpec(block_size=block_size, window=window, extra_retained=extra)
        for block_size, window, extra in itertools.product((1, 3, 4), (1, 4, 5), (0, 2))
    ),
    *(ChunkedLocalAttentionSpec(block_size=block_size, chunk=chunk) for block_size, chunk in itertools.product((1, 3, 4), (1, 2, 4, 6))),
    *(
        SinkWindowSpec(block_size=block_size, sink=sink, window=window)
        for block_size, sink, window in itertools.product((1, 3, 4), (0, 1, 4, 6), (1, 2, 5))
    ),
    *(RSWASpec(block_size=block_size, window=window) for block_size, window in itertools.product((1, 2, 3, 4), (1, 2, 5))),
    *(CustomSpec(block_size=block_size, name="even") for block_size in (1, 3, 4)),
]
STATES = [
    MambaSpec(block_size=4, mode="none"),
    *(MambaSpec(block_size=block_size, mode="align", num_speculative_blocks=drafts) for block_size in (1, 3) for drafts in (0, 2)),
]


def _mask(spec: KVCacheSpec) -> TokenMask:
    mask = mask_of(spec, PROMPT, CUSTOM)
    assert isinstance(mask, TokenMask)
    return mask


def _definitions(spec: KVCacheSpec) -> Callable[..., Any]:
    """The definitions themselves, token by token: read by a query, read by a step, written by a step, free-able at a basis."""
    kind = CUSTOM[spec.name] if isinstance(spec, CustomSpec) else kind_of(spec, PROMPT)
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


def _block(spec: KVCacheSpec, index: int) -> range:
    return range(index * spec.block_size, (index + 1) * spec.block_size)


def _differences(spec: KVCacheSpec) -> list[tuple[int, int, int]]:
    """Where the mask of whole blocks and the tokens' disagree: (start, tokens, index)."""
    mask, define = _mask(spec), _definitions(spec)
    return [
        (start, tokens, index)
        for start, tokens, index in itertools.product(STARTS, TOKENS, INDICES)
        if (mask.reads_index(start, tokens, index), mask.writes_index(start, tokens, index), mask.may_free_index(index, start))
        != (
            any(define(start, tokens, token)[1] for token in _block(spec, index)),
            any(define(start, tokens, token)[2] for token in _block(spec, index)),
            all(define(start, tokens, token)[3] for token in _block(spec, index)),
        )
    ]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_block_is_read_or_written_iff_one_of_its_tokens_is(spec: KVCacheSpec) -> None:
    assert _differences(spec) == []


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_positions_that_a_step_needs_of_a_block(spec: KVCacheSpec) -> None:
    mask, define = _mask(spec), _definitions(spec)
    for start, tokens, index in itertools.product(STARTS, TOKENS, INDICES):
        read = [token for token in _block(spec, index) if define(start, tokens, token)[1]]
        written = [token for token in _block(spec, index) if define(start, tokens, token)[2]]
        if read:
            assert mask.read_tokens(start, tokens, index) == (read[0], read[-1])
        if written:
            assert mask.written_tokens(start, tokens, index) == (written[0], written[-1])


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_with_tokens_below_one_only_what_lies_before_start_plus_tokens_counts(spec: KVCacheSpec) -> None:
    mask, define = _mask(spec), _definitions(spec)
    for start, tokens, index in itertools.product(STARTS, range(-4, 1), INDICES):
        kept = [token for token in _block(spec, index) if token < start + tokens]
        assert mask.reads_index(start, tokens, index) == any(define(start, 1, token)[0] for token in kept)
        assert not mask.writes_index(start, tokens, index)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_first_blocks_that_no_prune_takes(spec: KVCacheSpec) -> None:
    mask = _mask(spec)
    taken = [index for index in range(20) if mask.is_skipped(index, 1000)]
    if isinstance(spec, SinkWindowSpec | RSWASpec):
        assert mask.kept == taken[0]
        assert taken == list(range(mask.kept, 20))
    else:
        assert mask.kept == 0


@pytest.mark.parametrize("spec", [*(spec for spec in SPECS if not isinstance(spec, CustomSpec)), *STATES], ids=str)
def test_the_highest_basis_on_which_a_block_is_kept(spec: KVCacheSpec) -> None:
    mask = mask_of(spec, PROMPT)
    assert mask is not None
    for index in range(mask.kept, 12):
        skipped = [mask.is_skipped(index, basis) for basis in range(120)]
        assert skipped == [basis > mask.kept_to(index) for basis in range(120)]
        assert mask.kept_to(index) <= mask.kept_to(index + 1)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_an_interval_of_blocks_that_is_not_read_is_known_by_its_ends(spec: KVCacheSpec) -> None:
    mask = _mask(spec)
    for start, tokens, first in itertools.product(STARTS, TOKENS, INDICES):
        for end in range(first, (start + tokens - 1) // spec.block_size + 2):
            if not mask._reads_some(start, tokens, first, end):
                assert not any(mask.reads_index(start, tokens, index) for index in range(first, end))
            assert not mask._reads_some(start, tokens, end, end)


def test_needed_tokens_are_the_read_ones_of_the_block() -> None:
    mask = _mask(SlidingWindowSpec(block_size=32, window=128))
    assert mask.read_tokens(158, 1, 0) == (31, 31)
    assert mask.read_tokens(158, 1, 4) == (128, 158)
    assert mask.written_tokens(158, 1, 4) == (158, 158)


def test_a_block_with_a_sink_in_its_first_half() -> None:
    mask = _mask(SinkWindowSpec(block_size=8, sink=3, window=4))
    assert mask.read_tokens(100, 1, 0) == (0, 2)
    assert not mask.may_free_index(0, 1000)
    assert mask.may_free_index(1, 19)  # the query at 19 reads from 16 on
    assert not mask.may_free_index(1, 18)
    assert mask.kept == 1


def test_the_mask_of_rswa_follows_each_prompt() -> None:
    spec = RSWASpec(block_size=4, window=4)
    short, long = mask_of(spec, 4), mask_of(spec, 12)
    assert short is not None
    assert long is not None
    assert [short.may_free_index(index, 40) for index in range(3)] == [False, True, True]
    assert [long.may_free_index(index, 40) for index in range(4)] == [False, False, False, True]
    assert mask_of(spec) is None  # without a prompt nothing is known


@pytest.mark.parametrize(
    "spec",
    [CrossAttentionSpec(block_size=4), MambaSpec(block_size=4, mode="all"), CustomSpec(block_size=4, name="unknown")],
    ids=lambda spec: spec.kind,
)
def test_a_kind_without_a_model_has_no_mask(spec: KVCacheSpec) -> None:
    assert mask_of(spec, PROMPT, CUSTOM) is None


# ---- the comparison itself -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "spec"),
    [
        (Shape.SUFFIX, SinkWindowSpec(block_size=3, sink=4, window=2)),
        (Shape.SUFFIX, RSWASpec(block_size=3, window=2)),
        (Shape.ENDS, CustomSpec(block_size=3, name="even")),
    ],
    ids=str,
)
def test_a_shape_that_is_claimed_wrongly_is_seen(monkeypatch: pytest.MonkeyPatch, wrong: Shape, spec: KVCacheSpec) -> None:
    caches = (groups._built_in, groups._formulas_with_prompt, groups._mask_with_prompt)
    for cached in caches:
        cached.cache_clear()
    monkeypatch.setattr(groups, "shape_of", lambda kind: wrong)
    assert _differences(spec) != []
    for cached in caches:
        cached.cache_clear()
