"""What is proved of each kind's mask: its needed-sets shrink, and its published formula frees what the mask allows, less a stated gap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from settled.model import lifetime
from settled.model.algebra import BoolTerm, Int, IntTerm, as_bool, both, either, implies, int_variable, maximum, negate
from settled.model.disciplines import Discipline
from settled.model.kinds import (
    RSWA,
    AnyChunks,
    FullAttention,
    Kind,
    SinkWindow,
    SlidingWindow,
    ceil_div,
    chunks_of,
    in_block,
    needed_sets_shrink,
)
from settled.model.lifetime import Step
from settled.model.search.induction import Named, Obligation, with_axiom

WINDOW, EXTRA, CHUNK, SINK, PROMPT = (int_variable(name) for name in ("window", "extra_retained", "chunk", "sink", "prompt"))
FULL_ATTENTION = FullAttention()
SLIDING_WINDOW = SlidingWindow(WINDOW, EXTRA)
CHUNKED_LOCAL = AnyChunks(CHUNK)
SINK_WINDOW = SinkWindow(SINK, WINDOW)
R_SWA = RSWA(WINDOW, PROMPT)


def _no_gap(last: IntTerm, basis: IntTerm) -> BoolTerm:
    return as_bool(False)


def _extra_retained(last: IntTerm, basis: IntTerm) -> BoolTerm:
    return last >= basis - WINDOW + 1 - EXTRA


def _one_key_more(last: IntTerm, basis: IntTerm) -> BoolTerm:
    return last == basis - WINDOW


@dataclass(frozen=True)
class Case:
    """A kind with symbolic parameters, as theorems speak of it.

    `gap(last, basis)`: which of the blocks that the mask lets go at `basis` the kind's formula keeps, by their last token. Every block
    that holds a token below `prefix` is kept for good.
    """

    kind: Kind
    assumptions: Named = field(default_factory=dict)
    gap: Callable[[IntTerm, IntTerm], BoolTerm] = _no_gap
    prefix: Int = 0


# The attention kinds. A prompt is one number, so it does not grow; `growing_prompt` shows what happens when it does.
CASES: dict[str, Case] = {
    "sliding window": Case(SLIDING_WINDOW, {"window >= 1": WINDOW >= 1, "extra_retained >= 0": EXTRA >= 0}, gap=_extra_retained),
    "full attention": Case(FULL_ATTENTION),
    "chunked local": Case(CHUNKED_LOCAL, {"chunk >= 1": CHUNK >= 1}),
    "sink and window": Case(SINK_WINDOW, {"window >= 1": WINDOW >= 1, "sink >= 0": SINK >= 0}, prefix=SINK),
    "R-SWA": Case(R_SWA, {"window >= 1": WINDOW >= 1, "prompt >= 0": PROMPT >= 0}, gap=_one_key_more, prefix=PROMPT),
}

FREEING = tuple(title for title in CASES if title != "full attention")  # full attention frees nothing, so nothing breaks it here
NO_MORE = "the skip formula frees no more than the mask"

_QUERY, _LATER, _TOKEN = int_variable("query"), int_variable("later query"), int_variable("token")
_FIRST, _LAST, _BASIS = int_variable("first"), int_variable("last"), int_variable("p")


def mask_lemmas(case: Case, discipline: Discipline) -> list[Obligation]:
    """Each kind's claims, for every window, chunk, position and block."""
    kind, assumed = case.kind, case.assumptions
    frees = kind.frees_block(_FIRST, _LAST, _BASIS, discipline.rounding)
    block = {**assumed, "the block holds the token": both(_FIRST >= 0, in_block(_TOKEN, _FIRST, _LAST)), "p >= 0": _BASIS >= 0}
    ends = both(kind.may_free(_FIRST, _BASIS), kind.may_free(_LAST, _BASIS))
    exactly = frees == both(ends, negate(case.gap(_LAST, _BASIS)))
    obligations = [
        *reading_lemmas(kind, assumed),
        claim(NO_MORE, block, implies(frees, kind.may_free(_TOKEN, _BASIS))),
        claim("what may go has no hole", block, implies(ends, kind.may_free(_TOKEN, _BASIS))),
        claim("and no less, but for the stated gap", block, exactly),
    ]
    return with_axiom(obligations, kind.axiom)


def reading_lemmas(kind: Kind, assumed: Named) -> list[Obligation]:
    """What the generic theorems assume of a mask, and what a step of several queries reads: what one of them reads, no more, no less."""
    start, tokens = int_variable("start"), int_variable("tokens")
    step = Step(True, False, start, tokens, 0, 0)
    positions = {**assumed, "start >= 0": start >= 0, "tokens >= 1": tokens >= 1, "token >= 0": _TOKEN >= 0}
    a_query = {"a query of the step": both(start <= _QUERY, _QUERY < start + tokens), "it reads the token": kind.reads(_QUERY, _TOKEN)}
    witness = maximum(start, _TOKEN)
    some_query = both(start <= witness, witness < start + tokens, kind.reads(witness, _TOKEN))
    return [
        claim("needed-sets shrink", {**assumed, "token >= 0": _TOKEN >= 0}, needed_sets_shrink(kind, _QUERY, _LATER, _TOKEN)),
        claim("a query reads its own key", {**assumed, "query >= 0": _QUERY >= 0}, kind.reads(_QUERY, _QUERY)),
        claim("and none after it", {**assumed, "a later key": _QUERY < _TOKEN}, negate(kind.reads(_QUERY, _TOKEN))),
        claim("a step reads what any of its queries reads", {**positions, **a_query}, lifetime.reads(step, kind, _TOKEN)),
        claim("and nothing else", {**positions, "the step reads the token": lifetime.reads(step, kind, _TOKEN)}, some_query),
    ]


def block_lemmas(_: Discipline) -> list[Obligation]:
    """The whole blocks that a number of skipped tokens frees are those whose last token is skipped, for every block size."""
    index, size, skipped = int_variable("table index"), int_variable("block size"), int_variable("skipped tokens")
    assumed = {"table index >= 0": index >= 0, "block size >= 1": size >= 1, "skipped tokens >= 0": skipped >= 0}
    first, last = index * size, index * size + (size - 1)

    def floor(tokens: IntTerm) -> BoolTerm:
        return (index < tokens // size) == (last < tokens)

    rounded_up = skipped + size - 1
    return [
        claim("floor: the last token is skipped", assumed, floor(skipped)),
        claim(
            "ceil: the first token is skipped",
            {**assumed, "floor, of skipped + block size - 1": floor(rounded_up)},
            (index < ceil_div(skipped, size)) == (first < skipped),
        ),
    ]


def chunk_lemmas(_: Discipline) -> list[Obligation]:
    """`position // chunk * chunk` satisfies the axiom by which chunks enter the other proofs, for every chunk.

    The quotients are named by what defines them, `k * chunk <= x < (k + 1) * chunk`, which is the first lemma.
    """
    x, y, k, n = int_variable("x"), int_variable("y"), int_variable("x's chunk"), int_variable("y's chunk")
    start_x, start_y = k * CHUNK, n * CHUNK
    quotient = both(x // CHUNK * CHUNK <= x, x < x // CHUNK * CHUNK + CHUNK)
    chosen = {
        "x lies in its chunk": both(start_x <= x, x < start_x + CHUNK),
        "y lies in its chunk": both(start_y <= y, y < start_y + CHUNK),
    }
    assumed = {"chunk >= 1": CHUNK >= 1}
    return [
        claim("a division finds the chunk", assumed, quotient),
        claim(
            "chunk numbers are ordered as their starts",
            assumed,
            either(k == n, both(k < n, start_x + CHUNK <= start_y), start_y + CHUNK <= start_x),
        ),
        claim("a chunk starts at 0 or later exactly from 0 on", {**assumed, **chosen}, (start_x >= 0) == (x >= 0)),
        claim("chunks do not overlap", {**assumed, **chosen}, chunks_of(CHUNK, x, start_x, start_y)),
    ]


def growing_prompt(discipline: Discipline) -> list[Obligation]:
    """R-SWA in a streaming session that extends the prompt: whatever was freed in the gap is read as soon as the prompt reaches past it."""
    frees = R_SWA.frees_block(_FIRST, _LAST, _BASIS, discipline.rounding)
    longer = int_variable("longer prompt")
    hypotheses = {
        **CASES["R-SWA"].assumptions,
        "freed": both(frees, _FIRST >= 0, in_block(_TOKEN, _FIRST, _LAST)),
        "the prompt grows past the token": both(longer > PROMPT, longer > _TOKEN),
    }
    return [
        claim("the next query reads what was freed", hypotheses, RSWA(WINDOW, longer).reads(_BASIS, _TOKEN)),
        claim("which the old prompt does not", hypotheses, negate(R_SWA.reads(_BASIS, _TOKEN))),
    ]


def claim(name: str, hypotheses: Named, conclusion: BoolTerm) -> Obligation:
    """One conclusion, named as the obligation."""
    return Obligation(name, hypotheses, {name: conclusion})
