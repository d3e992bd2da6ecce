"""What is proved of each kind's mask: its needed-sets shrink, and its published formula frees no more than the mask allows."""

from __future__ import annotations

from settled.model import lifetime
from settled.model.algebra import BoolTerm, IntTerm, both, implies, int_variable, maximum
from settled.model.disciplines import Discipline
from settled.model.kinds import FullAttention, Kind, SlidingWindow, ceil_div, in_block, needed_sets_shrink
from settled.model.lifetime import Step
from settled.model.search.induction import Named, Obligation

WINDOW, EXTRA = int_variable("window"), int_variable("extra_retained")
SLIDING_WINDOW = SlidingWindow(WINDOW, EXTRA)
FULL_ATTENTION = FullAttention()

KIND_ASSUMPTIONS: dict[str, dict[str, BoolTerm]] = {
    SLIDING_WINDOW.name: {"window >= 1": WINDOW >= 1, "extra_retained >= 0": EXTRA >= 0},
    FULL_ATTENTION.name: {},
}

_QUERY, _LATER, _TOKEN = int_variable("query"), int_variable("later query"), int_variable("token")
_FIRST, _LAST, _BASIS = int_variable("first"), int_variable("last"), int_variable("p")


def mask_lemmas(kind: Kind, discipline: Discipline) -> list[Obligation]:
    """Each kind's claims, for every window, position and block."""
    assumed = KIND_ASSUMPTIONS[kind.name]
    frees = kind.frees_block(_FIRST, _LAST, _BASIS, discipline.rounding)
    block = {"the block holds the token": both(_FIRST >= 0, in_block(_TOKEN, _FIRST, _LAST)), "p >= 0": _BASIS >= 0}
    return [
        _claim("needed-sets shrink", assumed, needed_sets_shrink(kind, _QUERY, _LATER, _TOKEN)),
        _claim("a query reads its own key", {**assumed, "query >= 0": _QUERY >= 0}, kind.reads(_QUERY, _QUERY)),
        _claim("and none after it", {**assumed, "a later key": _QUERY < _TOKEN}, implies(kind.reads(_QUERY, _TOKEN), False)),
        *_step_lemmas(kind, assumed),
        _claim("the skip formula frees no more than the mask", {**assumed, **block}, implies(frees, kind.may_free(_TOKEN, _BASIS))),
        _claim("and no less, with nothing extra retained", {**assumed, **block, "EXTRA = 0": EXTRA == 0}, _no_less(kind, frees)),
    ]


def _step_lemmas(kind: Kind, assumed: Named) -> list[Obligation]:
    """What a step reads is what its queries read, no more and no less."""
    start, tokens = int_variable("start"), int_variable("tokens")
    step = Step(True, False, start, tokens, 0, 0)
    positions = {**assumed, "start >= 0": start >= 0, "tokens >= 1": tokens >= 1, "token >= 0": _TOKEN >= 0}
    a_query = {"a query of the step": both(start <= _QUERY, _QUERY < start + tokens), "it reads the token": kind.reads(_QUERY, _TOKEN)}
    witness = maximum(start, _TOKEN)
    some_query = both(start <= witness, witness < start + tokens, kind.reads(witness, _TOKEN))
    return [
        _claim("a step reads what any of its queries reads", {**positions, **a_query}, lifetime.reads(step, kind, _TOKEN)),
        _claim("and nothing else", {**positions, "the step reads the token": lifetime.reads(step, kind, _TOKEN)}, some_query),
    ]


def _no_less(kind: Kind, frees: BoolTerm) -> BoolTerm:
    return implies(both(kind.may_free(_FIRST, _BASIS), kind.may_free(_LAST, _BASIS)), frees)


def block_lemmas(_: Discipline) -> list[Obligation]:
    """The whole blocks that a number of skipped tokens frees are those whose last token is skipped, for every block size."""
    index, size, skipped = int_variable("table index"), int_variable("block size"), int_variable("skipped tokens")
    assumed = {"table index >= 0": index >= 0, "block size >= 1": size >= 1, "skipped tokens >= 0": skipped >= 0}
    first, last = index * size, index * size + (size - 1)

    def floor(tokens: IntTerm) -> BoolTerm:
        return (index < tokens // size) == (last < tokens)

    rounded_up = skipped + size - 1
    return [
        _claim("floor: the last token is skipped", assumed, floor(skipped)),
        _claim(
            "ceil: the first token is skipped",
            {**assumed, "floor, of skipped + block size - 1": floor(rounded_up)},
            (index < ceil_div(skipped, size)) == (first < skipped),
        ),
    ]


def _claim(name: str, hypotheses: Named, conclusion: BoolTerm) -> Obligation:
    return Obligation(name, hypotheses, {name: conclusion})
