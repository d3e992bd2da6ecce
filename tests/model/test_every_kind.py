"""Every attention kind on small numbers: its mask by listing, and what its formula frees, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import NamedTuple

import pytest

from settled.model.algebra import as_int, int_variable
from settled.model.disciplines import Rounding
from settled.model.interpret import compile_terms
from settled.model.kinds import (
    RSWA,
    AnyChunks,
    ChunkedLocal,
    FullAttention,
    Kind,
    MambaAlign,
    MambaNone,
    SinkWindow,
    SlidingWindow,
    chunks_of,
    needed_sets_shrink,
)

POSITIONS, SIZES = range(16), range(1, 5)
QUERY, TOKEN, LATER, BASIS, FIRST, LAST = (int_variable(name) for name in ("query", "token", "later", "basis", "first", "last"))


class Sample(NamedTuple):
    """A kind with numbers, the keys that a query reads as a list, and how many tokens short of them its formula stays."""

    kind: Kind
    read: Callable[[int], Iterable[int]]
    gap: int = 0


SAMPLES = {
    "full": Sample(FullAttention(), lambda q: range(q + 1)),
    "window 1": Sample(SlidingWindow(1), lambda q: [q]),
    "window 4": Sample(SlidingWindow(4), lambda q: range(max(0, q - 3), q + 1)),
    "window 3, 2 extra": Sample(SlidingWindow(3, 2), lambda q: range(max(0, q - 2), q + 1), gap=2),
    "chunk 1": Sample(ChunkedLocal(1), lambda q: [q]),
    "chunk 3": Sample(ChunkedLocal(3), lambda q: range(q - q % 3, q + 1)),
    "chunk 4": Sample(ChunkedLocal(4), lambda q: range(q - q % 4, q + 1)),
    "sink 2, window 3": Sample(SinkWindow(2, 3), lambda q: [t for t in range(q + 1) if t < 2 or t > q - 3]),
    "sink 0, window 2": Sample(SinkWindow(0, 2), lambda q: range(max(0, q - 1), q + 1)),
    "prompt 5, window 2": Sample(RSWA(2, 5), lambda q: [t for t in range(q + 1) if t < 5 or t > q - 2], gap=1),
    "prompt 0, window 3": Sample(RSWA(3, 0), lambda q: range(max(0, q - 2), q + 1), gap=1),
    "mamba align": Sample(MambaAlign(), lambda q: [q - 1] if q else []),
}
sample_of_each = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)


def function(term: object, *inputs: str) -> Callable[..., bool]:
    compiled = compile_terms([term], inputs)  # type: ignore[list-item]
    return lambda *values: bool(compiled(*values)[0])


def may_free(sample: Sample, token: int, basis: int) -> bool:
    """In the past, and read by no query from here on: every later query is asked."""
    return token < basis and not any(token in sample.read(query) for query in range(basis, basis + 40))


@sample_of_each
def test_the_mask_by_listing(sample: Sample) -> None:
    reads = function(sample.kind.reads(QUERY, TOKEN), "query", "token")
    for query, token in product(POSITIONS, range(-2, 20)):
        assert reads(query, token) == (token in sample.read(query))


@sample_of_each
def test_needed_sets_shrink_and_the_rule_looks_at_one_query(sample: Sample) -> None:
    shrinks = function(needed_sets_shrink(sample.kind, QUERY, LATER, TOKEN), "query", "later", "token")
    frees = function(sample.kind.may_free(TOKEN, BASIS), "token", "basis")
    for query, later, token in product(POSITIONS, POSITIONS, POSITIONS):
        assert shrinks(query, later, token)
    for basis, token in product(POSITIONS, range(20)):
        assert frees(token, basis) == may_free(sample, token, basis)


@sample_of_each
def test_the_formula_frees_every_block_that_may_go_but_for_its_gap(sample: Sample) -> None:
    """A block whose last token is one of the `gap` highest that may go is kept."""
    frees = function(sample.kind.frees_block(FIRST, LAST, BASIS, Rounding.FLOOR), "first", "last", "basis")
    freed = kept = 0
    for basis, size, index in product(POSITIONS, SIZES, range(16)):
        block = range(index * size, (index + 1) * size)
        whole = all(may_free(sample, token, basis) for token in block)
        highest = [token for token in range(basis) if may_free(sample, token, basis)]
        spared = bool(sample.gap) and whole and block[-1] in highest[-sample.gap :]
        assert frees(block[0], block[-1], basis) == (whole and not spared), (basis, block)
        freed, kept = freed + (whole and not spared), kept + spared
    assert bool(kept) is bool(sample.gap)
    assert bool(freed) is (sample.kind.name != "full")


@sample_of_each
def test_rounding_up_frees_a_block_by_its_first_token(sample: Sample) -> None:
    """Never less than rounding down, and more for every kind that frees at all."""
    floor, ceil = (
        function(sample.kind.frees_block(FIRST, LAST, BASIS, rounding), "first", "last", "basis")
        for rounding in (Rounding.FLOOR, Rounding.CEIL)
    )
    more = 0
    for basis, size, index in product(POSITIONS, SIZES, range(16)):
        first, last = index * size, (index + 1) * size - 1
        assert ceil(first, last, basis) or not floor(first, last, basis)
        more += ceil(first, last, basis) and not floor(first, last, basis)
    assert bool(more) is (sample.kind.name != "full")


ATTENTION = {name: sample for name, sample in SAMPLES.items() if sample.kind.name != "mamba align"}


@pytest.mark.parametrize("sample", ATTENTION.values(), ids=ATTENTION)
def test_a_step_reads_what_its_queries_read(sample: Sample) -> None:
    reads = function(sample.kind.step_reads(int_variable("start"), int_variable("tokens"), TOKEN), "start", "tokens", "token")
    writes = function(sample.kind.step_writes(int_variable("start"), int_variable("tokens"), TOKEN, 2), "start", "tokens", "token")
    for start, tokens, token in product(range(10), range(1, 5), range(18)):
        assert reads(start, tokens, token) == any(token in sample.read(query) for query in range(start, start + tokens))
        assert writes(start, tokens, token) == (start <= token < start + tokens + 2)


# ---- state kinds -----------------------------------------------------------------------------------------------------


def test_a_step_of_align_reads_one_state_and_writes_one() -> None:
    kind = MambaAlign()
    for start, tokens in product(range(8), range(1, 5)):
        read = [token for token in range(-1, 16) if kind.step_reads(start, tokens, token).args[0]]
        written = [token for token in range(-1, 16) if kind.step_writes(start, tokens, token, 3).args[0]]
        assert (read, written) == ([start - 1] if start else [], [start + tokens - 1])
        blocks = [index for index in range(8) if kind.takes_block(2 * index, 2 * index + 1, start, start + tokens).args[0]]
        assert blocks == [(start + tokens - 1) // 2]


def test_a_step_of_none_uses_its_slots_from_the_first_one_on() -> None:
    """Two slots of 100 positions: blocks 0 and 1."""
    kind = MambaNone(slots=2, block_size=100)
    for start in (0, 7):
        blocks = [index for index in range(5) if kind.takes_block(100 * index, 100 * index + 99, start, start + 1).args[0]]
        assert blocks == [0, 1]
        assert all(kind.step_reads(start, 1, token).args[0] == kind.step_writes(start, 1, token, 0).args[0] for token in range(0, 400, 50))
    assert not any(
        kind.frees_block(100 * index, 100 * index + 99, basis, Rounding.FLOOR).args[0] for index in (0, 1) for basis in range(101)
    )


# ---- chunks ----------------------------------------------------------------------------------------------------------


def test_the_axiom_of_chunks_holds_of_the_division_and_of_no_shifted_one() -> None:
    def holds(x: int, y: int, chunk: int, shift: int) -> bool:
        start = as_int((x - shift) // chunk * chunk + shift)
        return bool(chunks_of(chunk, x, start, as_int(y // chunk * chunk)).args[0])

    for chunk, x, y in product(range(1, 6), range(-3, 14), range(-3, 14)):
        assert holds(x, y, chunk, 0)
    assert not all(holds(x, y, 4, 1) for x, y in product(range(14), range(14)))


def test_chunks_known_by_the_axiom_have_no_division() -> None:
    kind = AnyChunks(int_variable("chunk"))
    assert kind.chunk_start(QUERY).op == "apply"
    assert kind.axiom.symbol == kind.symbol
    assert ChunkedLocal(4).axiom is None
