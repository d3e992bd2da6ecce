"""Wrong formulas, planted one at a time in each kind, cap and rule: a claim about it is refuted, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from settled.model.algebra import as_int, both, maximum
from settled.model.disciplines import RIGHT
from settled.model.kinds import RSWA, ChunkedLocal, FullAttention, MambaAlign, MambaNone, SinkWindow, SlidingWindow
from settled.model.search.induction import Obligation, decide
from settled.model.search.solver import Z3
from settled.proofs import caps
from settled.proofs.catalogue import THEOREMS
from settled.proofs.masks import CASES, chunk_lemmas, mask_lemmas
from settled.proofs.theorem import Part

SOLVER = Z3()
KINDS = {
    "sliding window": SlidingWindow,
    "full attention": FullAttention,
    "chunked local": ChunkedLocal,
    "sink and window": SinkWindow,
    "R-SWA": RSWA,
}
NO_MORE, NO_LESS = "the skip formula frees no more than the mask", "and no less, but for the stated gap"


def refuted(obligations: list[Obligation]) -> set[str]:
    """The claims that are refuted; nothing may stay unknown."""
    words = {o.name: decide(o, SOLVER).word for o in obligations if not o.is_cover}
    assert set(words.values()) <= {"proved", "refuted"}
    return {name for name, word in words.items() if word == "refuted"}


def skip(kind: type, more: int) -> Callable[[pytest.MonkeyPatch], None]:
    """The kind's formula with so many tokens more."""
    right = kind.skipped_tokens  # type: ignore[attr-defined]
    return lambda patch: patch.setattr(kind, "skipped_tokens", lambda self, basis: maximum(right(self, basis) + more, 0))


@pytest.mark.parametrize("title", CASES)
def test_one_token_more_than_each_formula_is_refuted(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lemma about the mask, and at the conjunct `pruned` of theorems 3 and 4. R-SWA has one token to spare: two are too many."""
    skip(KINDS[title], 2 if title == "R-SWA" else 1)(monkeypatch)
    assert NO_MORE in refuted(mask_lemmas(CASES[title], RIGHT))
    for key in ("T3", "T4"):
        part = THEOREMS[key].part(title)
        (claim,) = [o for o in part.build(RIGHT) if o.name == "schedule another step"]
        verdict = decide(claim, SOLVER)
        assert verdict.word == "refuted"
        assert "pruned" in verdict.failed


@pytest.mark.parametrize("title", [title for title in CASES if title != "full attention"])
def test_one_token_less_than_each_formula_is_refuted(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It frees less than is stated, keeps what nobody reads, and holds what it need not."""
    skip(KINDS[title], -1)(monkeypatch)
    assert refuted(mask_lemmas(CASES[title], RIGHT)) == {NO_LESS}
    for part in (title, f"held_bounded, {title}"):
        assert refuted(THEOREMS["T5"].part(part).build(RIGHT))


def test_one_token_more_of_r_swa_is_its_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap is one key and no more: the formula without it is safe, and only the stated gap is refuted."""
    monkeypatch.setattr(RSWA, "skipped_tokens", lambda self, basis: maximum(as_int(basis) - self.window + 1, 0))
    assert refuted(mask_lemmas(CASES["R-SWA"], RIGHT)) == {NO_LESS}


@pytest.mark.parametrize("title", [title for title in CASES if title != "full attention"])
def test_a_gap_that_is_not_there_is_refuted(title: str) -> None:
    wider = replace(CASES[title], gap=lambda last, basis: last >= basis - 40)
    assert refuted(mask_lemmas(wider, RIGHT)) == {NO_LESS}


READS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sliding window": lambda self, query, token: both(as_int(token) >= 0, as_int(query) - self.window <= token, as_int(token) <= query),
    "chunked local": lambda self, query, token: both(as_int(token) >= 0, self.chunk_start(query) - 1 <= token, as_int(token) <= query),
    "sink and window": lambda self, query, token: both(as_int(token) >= 0, as_int(token) <= query, as_int(token) <= self.sink),
    "R-SWA": lambda self, query, token: both(as_int(token) >= 0, as_int(token) <= query, as_int(token) < self.prompt + query),
    "full attention": lambda self, query, token: both(as_int(token) >= 0, as_int(token) < query),
}


@pytest.mark.parametrize("title", READS)
def test_another_mask_is_told_apart_by_the_same_formula(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KINDS[title], "reads", READS[title])
    assert refuted(mask_lemmas(CASES[title], RIGHT))


# ---- state kinds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [1, -1])
def test_another_formula_of_mamba_align_is_refuted(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    skip(MambaAlign, more)(monkeypatch)
    found = refuted(THEOREMS["T3"].part("mask: mamba align, no drafts").build(RIGHT))
    assert ("the skip formula frees no more than the mask" if more > 0 else "and no less") in found
    assert "the skip formula is that of a window of two" in refuted(THEOREMS["T3"].part("mamba align, as a window of two").build(RIGHT))


def test_a_state_that_two_queries_read_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `align` a query reads one state. With the one before it the formula would free too much."""
    monkeypatch.setattr(
        MambaAlign, "reads", lambda self, query, token: both(as_int(token) >= 0, as_int(query) - 2 <= token, as_int(token) < query)
    )
    found = refuted(THEOREMS["T3"].part("mask: mamba align, no drafts").build(RIGHT))
    assert {"the skip formula frees no more than the mask", "and writes what the next step reads"} <= found


def test_a_formula_that_frees_a_state_overwritten_in_place_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MambaNone, "skipped_tokens", lambda self, basis: as_int(basis) + 1)
    assert "no block is freed" in refuted(THEOREMS["T3"].part("mask: mamba none").build(RIGHT))


def test_a_step_of_none_that_takes_one_slot_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MambaNone, "takes_block", lambda self, first, last, start, end: as_int(first) < end)
    assert "and the first step takes it" in refuted(THEOREMS["T3"].part("mask: mamba none").build(RIGHT))


# ---- chunks, prompts, the local subtraction --------------------------------------------------------------------------


def test_chunks_of_another_length_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lemmas speak of the division that the kind uses: with overlapping chunks they fail."""
    from settled.proofs import masks

    monkeypatch.setattr(masks, "chunks_of", lambda chunk, position, start, another: both(start + 1 <= position))
    assert "chunks do not overlap" in refuted(chunk_lemmas(RIGHT))


@pytest.mark.parametrize("hypothesis", ["freed", "the prompt grows past the token"])
def test_a_prompt_reads_the_gap_only_if_it_grows_past_it(hypothesis: str) -> None:
    assert refuted([_without(o, hypothesis) for o in THEOREMS["T3"].part("R-SWA, a prompt that grows").build(RIGHT)])


@pytest.mark.parametrize(
    ("part", "hypothesis"),
    [
        (kind + where, hypothesis)
        for kind in ("mamba", "sliding window")
        for where, hypothesis in (("", "F - stale <= K"), (", more in flight", "F - stale > K"))
    ],
)
def test_what_the_local_subtraction_needs(part: str, hypothesis: str) -> None:
    """At most K in flight for safety; more than K for harm."""
    theorem = THEOREMS["T7"].part(part)
    assert refuted([_without(o, hypothesis) for o in theorem.build(theorem.discipline)])


def _without(obligation: Obligation, hypothesis: str) -> Obligation:
    return replace(obligation, hypotheses={name: term for name, term in obligation.hypotheses.items() if name != hypothesis})


# ---- caps ------------------------------------------------------------------------------------------------------------

MAXIMA = ("sliding window, exact maximum", "chunked local, exact maximum")
PUBLISHED = ("sliding window, published cap", "chunked local, published cap")


@pytest.mark.parametrize("part", MAXIMA)
@pytest.mark.parametrize(("more", "broken"), [(-1, "at most"), (1, "reached")])
def test_another_maximum_is_refuted(part: str, more: int, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = caps.exact_maximum
    monkeypatch.setattr(caps, "exact_maximum", lambda *numbers: right(*numbers) + more)
    assert any(broken in name for name in refuted(THEOREMS["T8"].part(part).build(RIGHT)))


@pytest.mark.parametrize("part", PUBLISHED)
@pytest.mark.parametrize(("more", "broken"), [(-1, "enough"), (1, "exceeded")])
def test_another_published_cap_is_refuted(part: str, more: int, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = caps.admission_cap
    monkeypatch.setattr(caps, "admission_cap", lambda *numbers: right(*numbers) + more)
    assert any(broken in name for name in refuted(THEOREMS["T8"].part(part).build(RIGHT)))


# B >= 1 follows from any quotient by B.
NEEDED = {
    "sliding window, exact maximum": ("slots", "slots <= L", "M >= 1"),
    "sliding window, published cap": ("k <= 1", "k >= 2", "L is no bound", "B >= 1", "window >= 1"),
    "chunked local, exact maximum": (
        "slots",
        "slots <= L",
        "a chunk starts at most B - gcd into a block",
        "Bezout: a chunk starts B - gcd into a block",
    ),
    "chunked local, published cap": ("B - gcd + k <= 1", "B - gcd + k >= 2", "L is no bound", "chunk >= 1"),
    "slots": ("M", "counts", "slots so far"),
    "greatest common divisor": ("g >= 1", "positive", "B = g * b", "gcd"),
}


@pytest.mark.parametrize(("part", "hypothesis"), [(part, name) for part, names in NEEDED.items() for name in names])
def test_every_hypothesis_about_caps_is_needed(part: str, hypothesis: str) -> None:
    built = THEOREMS["T8"].part(part).build(RIGHT)
    assert any(hypothesis in o.hypotheses for o in built)
    words = {decide(_without(o, hypothesis), SOLVER).word for o in built if hypothesis in o.hypotheses}
    assert words != {"proved"}


def test_every_part_is_named_once() -> None:
    for theorem in THEOREMS.values():
        names = [part.name for part in theorem.parts]
        assert len(names) == len(set(names))
        assert all(isinstance(part, Part) for part in theorem.parts)
