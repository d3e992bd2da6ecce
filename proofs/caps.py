"""Theorem 8: what one request holds right after a prune and an allocation, at most; and which published caps are too small.

Every block size, window, chunk and number of tokens is symbolic. Quotients are named by what defines them (`quotients.py`), and each claim
states the facts about products that it rests on, which are lemmas of their own.
"""

from __future__ import annotations

from settled.model import counters as count
from settled.model.algebra import Int, IntTerm, as_int, both, either, int_variable, maximum, minimum
from settled.model.caps import admission_cap, blocks_held, exact_maximum
from settled.model.counters import Counters
from settled.model.disciplines import CAP_WITHOUT_IN_FLIGHT, RIGHT, VLLM, Discipline
from settled.model.kinds import ChunkedLocal, Kind, SlidingWindow, ceil_div
from settled.model.search.induction import Named, Obligation
from settled.model.search.quotients import ordered, with_quotients
from settled.proofs.masks import CHUNK, EXTRA, WINDOW, claim
from settled.proofs.theorem import Killer, Part, Theorem

BLOCK_SIZE, GCD = int_variable("B"), int_variable("gcd(B, X)")
IN_FLIGHT_MAX, LOOKAHEAD, LENGTH = int_variable("M"), int_variable("k"), int_variable("L")
SLIDING, CHUNKED = SlidingWindow(WINDOW, EXTRA), ChunkedLocal(CHUNK)
_P, _SLOTS = int_variable("p"), int_variable("slots")
_REACH = WINDOW - 1 + EXTRA  # what is kept below p

_SIZES = {"B >= 1": BLOCK_SIZE >= 1, "M >= 1": IN_FLIGHT_MAX >= 1, "k >= 0": LOOKAHEAD >= 0, "L >= 1": LENGTH >= 1}
_WINDOWED = {**_SIZES, "window >= 1": WINDOW >= 1, "extra_retained >= 0": EXTRA >= 0}
_CHUNKED = {**_SIZES, "chunk >= 1": CHUNK >= 1, "1 <= gcd <= B": both(GCD >= 1, GCD <= BLOCK_SIZE)}
# A schedule leaves slots for no more than p + M + k positions (`slots` below), all of them below L.
_SLOTTED = {
    "p >= 0": _P >= 0,
    "slots": both(_SLOTS >= _P, _SLOTS <= _P + IN_FLIGHT_MAX + LOOKAHEAD),
    "slots <= L": _SLOTS <= LENGTH,
}
_OF_LENGTH = ceil_div(LENGTH, BLOCK_SIZE)


def _most(kind: Kind) -> IntTerm:
    return exact_maximum(kind, BLOCK_SIZE, IN_FLIGHT_MAX, LOOKAHEAD, GCD)


def _published(kind: Kind, discipline: Discipline, in_flight_max: Int = IN_FLIGHT_MAX) -> IntTerm:
    return admission_cap(kind, BLOCK_SIZE, in_flight_max if discipline.cap_counts_in_flight else 0, LENGTH)


def _products(*pairs: tuple[Int, Int], size: IntTerm = BLOCK_SIZE) -> Named:
    """Facts about products, for these pairs of factors, as a hypothesis; the lemma is `products are ordered`."""
    return {f"products of {size!r} are ordered": ordered(size, *pairs)}


# ---- slots -----------------------------------------------------------------------------------------------------------


def slots_made(discipline: Discipline) -> list[Obligation]:
    """Slots that were made are never taken back, so what counts is the furthest; a prune relies on a count that it outruns by M + k."""
    counters = Counters(int_variable("computed"), int_variable("in_flight"), int_variable("stale"))
    tokens = int_variable("tokens")
    basis = count.free_basis(counters, discipline.free_basis)
    made = maximum(_SLOTS, as_int(counters.computed) + tokens + LOOKAHEAD)
    hypotheses = {
        "counts": both(as_int(counters.stale) >= 0, as_int(counters.in_flight) >= counters.stale, count.settled(counters) >= 0),
        "M": both(tokens >= 1, as_int(counters.in_flight) + tokens <= IN_FLIGHT_MAX),
        "k >= 0": LOOKAHEAD >= 0,
        "slots so far": _SLOTS <= basis + IN_FLIGHT_MAX + LOOKAHEAD,
    }
    return [claim("a schedule makes slots within M + k of what the prune relied on", hypotheses, made <= basis + IN_FLIGHT_MAX + LOOKAHEAD)]


# ---- sliding window --------------------------------------------------------------------------------------------------


def window_maximum(_: Discipline) -> list[Obligation]:
    most, held = _most(SLIDING), blocks_held(SLIDING, BLOCK_SIZE, _P, _SLOTS)
    tail, head = ceil_div(_SLOTS, BLOCK_SIZE), SLIDING.skipped_tokens(_P) // BLOCK_SIZE
    # The witness: a window that starts at the end of a block, with all of M in flight, as far as L lets it.
    p = minimum(_REACH + BLOCK_SIZE - 1, LENGTH - 1)
    slots = minimum(p + minimum(IN_FLIGHT_MAX, LENGTH - p) + LOOKAHEAD, LENGTH)
    reached = blocks_held(SLIDING, BLOCK_SIZE, p, slots)
    last, skipped = ceil_div(slots, BLOCK_SIZE), SLIDING.skipped_tokens(p) // BLOCK_SIZE
    ends = [(last, most), (most, last), (last, _OF_LENGTH), (_OF_LENGTH, last), (_OF_LENGTH, most), (most, _OF_LENGTH)]
    return with_quotients(
        [
            claim(
                "at most 1 + ceil((W - 2 + extra + M + k) / B)",
                {**_WINDOWED, **_SLOTTED, **_products((tail - head - 1, most - 1))},
                held <= most,
            ),
            claim("at most ceil(L / B)", {**_WINDOWED, **_SLOTTED, **_products((tail, _OF_LENGTH), (head, -1))}, held <= _OF_LENGTH),
            claim(
                "the smaller of both is reached",
                {**_WINDOWED, **_products((skipped, 0), (skipped, -1), *ends)},
                reached == minimum(most, _OF_LENGTH),
            ),
        ]
    )


def window_published(discipline: Discipline) -> list[Obligation]:
    most, published = _most(SLIDING), _published(SLIDING, discipline)
    few = {**_WINDOWED, "k <= 1": LOOKAHEAD <= 1}
    # M such that what is kept and in flight ends with a block.
    in_flight_max = (_REACH + 1) * BLOCK_SIZE - _REACH
    more = exact_maximum(SLIDING, BLOCK_SIZE, in_flight_max, LOOKAHEAD, GCD)
    enough = {**_WINDOWED, "k >= 2": LOOKAHEAD >= 2, "L is no bound": LENGTH >= in_flight_max + _REACH + BLOCK_SIZE + LOOKAHEAD}
    exceeded = _published(SLIDING, discipline, in_flight_max)
    return with_quotients(
        [
            claim(
                WINDOW_ENOUGH,
                {**few, **_products((most - 1, published - 1), (_OF_LENGTH, published - 1))},
                minimum(most, _OF_LENGTH) <= published,
            ),
            claim("such an M is at least 1", {**_WINDOWED, **_products((1, _REACH + 1), (_REACH, 0))}, in_flight_max >= 1),
            claim(
                "it is exceeded for some M if k >= 2",
                {**enough, **_products((more - 1, _REACH + 1), (exceeded - 1, _REACH + 1), (_OF_LENGTH, more - 1))},
                minimum(more, _OF_LENGTH) > exceeded,
            ),
        ]
    )


# ---- chunked local ---------------------------------------------------------------------------------------------------


def _chunk_maximum(_: Discipline) -> list[Obligation]:
    most, held = _most(CHUNKED), blocks_held(CHUNKED, BLOCK_SIZE, _P, _SLOTS)
    tail, head = ceil_div(_SLOTS, BLOCK_SIZE), CHUNKED.skipped_tokens(_P) // BLOCK_SIZE
    offset = {"a chunk starts at most B - gcd into a block": CHUNKED.skipped_tokens(_P) - head * BLOCK_SIZE <= BLOCK_SIZE - GCD}
    # The witness: the last query of a chunk that starts that far into a block, with all of M in flight.
    c, n = int_variable("c"), int_variable("n")
    bezout = {"Bezout: a chunk starts B - gcd into a block": both(c >= 0, c * CHUNK == n * BLOCK_SIZE + BLOCK_SIZE - GCD)}
    p = c * CHUNK + CHUNK - 1
    slots = p + IN_FLIGHT_MAX + LOOKAHEAD
    last, chunk, skipped = ceil_div(slots, BLOCK_SIZE), p // CHUNK, CHUNKED.skipped_tokens(p) // BLOCK_SIZE
    facts = {
        **_products((chunk, c), (c, chunk), size=CHUNK),
        **_products((skipped, n), (n, skipped), (last, n + most), (n + most, last)),
    }
    reached = blocks_held(CHUNKED, BLOCK_SIZE, p, slots)
    return with_quotients(
        [
            claim(
                "at most ceil((B - gcd + X - 1 + M + k) / B)",
                {**_CHUNKED, **_SLOTTED, **offset, **_products((tail, head + most))},
                held <= most,
            ),
            claim(
                "at most ceil(L / B)",
                {**_CHUNKED, **_SLOTTED, **_products((tail, _OF_LENGTH), (head, -1)), **_products((_P // CHUNK, -1), size=CHUNK)},
                held <= _OF_LENGTH,
            ),
            claim("reached, if L is no bound", {**_CHUNKED, **bezout, **facts}, reached == most),
        ]
    )


def _chunk_published(discipline: Discipline) -> list[Obligation]:
    most, published = _most(CHUNKED), _published(CHUNKED, discipline)
    few = {**_CHUNKED, "B - gcd + k <= 1": BLOCK_SIZE - GCD + LOOKAHEAD <= 1}
    in_flight_max = (CHUNK + 1) * BLOCK_SIZE - CHUNK
    more = exact_maximum(CHUNKED, BLOCK_SIZE, in_flight_max, LOOKAHEAD, GCD)
    enough = {
        **_CHUNKED,
        "B - gcd + k >= 2": BLOCK_SIZE - GCD + LOOKAHEAD >= 2,
        "L is no bound": LENGTH >= in_flight_max + CHUNK + BLOCK_SIZE + LOOKAHEAD,
    }
    exceeded = _published(CHUNKED, discipline, in_flight_max)
    return with_quotients(
        [
            claim(_CHUNK_ENOUGH, {**few, **_products((most, published), (_OF_LENGTH, published))}, minimum(most, _OF_LENGTH) <= published),
            claim("such an M is at least 1", {**_CHUNKED, **_products((1, CHUNK + 1), (CHUNK, 0))}, in_flight_max >= 1),
            claim(
                "it is exceeded for some M if B - gcd + k >= 2",
                {**enough, **_products((more, CHUNK + 1), (exceeded, CHUNK + 1), (_OF_LENGTH, CHUNK + 1))},
                minimum(more, _OF_LENGTH) > exceeded,
            ),
        ]
    )


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _products_lemmas(_: Discipline) -> list[Obligation]:
    n, m = int_variable("n"), int_variable("m")
    return [claim("products are ordered as their factors", {"B >= 1": BLOCK_SIZE >= 1}, ordered(BLOCK_SIZE, (n, m)))]


def _gcd_lemmas(_: Discipline) -> list[Obligation]:
    """With B = g * b and X = g * x, as the greatest common divisor g divides both."""
    g, b, x, c, n, d = (int_variable(name) for name in ("g", "b", "x", "c", "n", "d"))
    u, v, t = int_variable("u"), int_variable("v"), int_variable("t")
    into = c * (g * x) - n * (g * b)
    positive = {"g >= 1": g >= 1, "b >= 1": b >= 1}
    return [
        claim("how far a chunk starts into a block is a multiple of g", {}, g * b - into == g * (b - (c * x - n * b))),
        claim("a positive multiple of g is at least g", {**positive, "positive": g * d >= 1}, g * d >= g),
        claim(
            "B - gcd <= 1 exactly if B divides X, or B = 2",
            {**positive, "B = g * b": BLOCK_SIZE == g * b, **_products((b, 1), (b, 2), size=g)},
            (BLOCK_SIZE - g <= 1) == either(b == 1, BLOCK_SIZE == 2),
        ),
        claim("Bezout's coefficients may be moved below 0", {}, (u - t * b) * (g * x) + (v + t * x) * (g * b) == u * (g * x) + v * (g * b)),
        claim("and then tell the chunk", {"gcd": u * CHUNK + v * BLOCK_SIZE == g}, -1 * u * CHUNK == (v - 1) * BLOCK_SIZE + BLOCK_SIZE - g),
    ]


_WINDOW_CAP, _CHUNK_CAP = "sliding window, published cap", "chunked local, published cap"
WINDOW_ENOUGH, _CHUNK_ENOUGH = "the published cap is enough if k <= 1", "the published cap is enough if B - gcd + k <= 1"

CAPS = Theorem(
    key="T8",
    name="caps",
    sentence=(
        "Right after a prune and an allocation a request holds at most 1 + ceil((W - 2 + extra + M + k) / B) blocks of a sliding "
        "window and ceil((B - gcd(B, X) + X - 1 + M + k) / B) of chunked local attention, and both are reached; with slots clamped to L, "
        "the smaller of that and ceil(L / B), reached for the window. vLLM's caps are enough for every M and L exactly if k <= 1 "
        "(window), and if B divides X and k <= 1, or B = 2 and k = 0 (chunked)."
    ),
    assumptions=(
        "B, X, W, M, L >= 1, extra and k >= 0, all symbolic; every position below p + M + k gets a slot at most, L clamps it",
        "p never falls within a generation (T2); the request prunes at every schedule, before it allocates",
        "M tokens at most are scheduled and unprocessed when the step is scheduled, stale ones included",
        "gcd(B, X) divides B and X, and is u * X + v * B for some integers (Bezout); the lemmas say what is used of it",
        "reached: by a prompt of p + M tokens, computed in steps that leave nothing in flight before the last ones",
    ),
    parts=(
        Part("slots", RIGHT, slots_made),
        Part("slots, max(0, C - F)", VLLM, slots_made),
        Part("sliding window, exact maximum", RIGHT, window_maximum),
        Part(_WINDOW_CAP, RIGHT, window_published),
        Part("chunked local, exact maximum", RIGHT, _chunk_maximum),
        Part(_CHUNK_CAP, RIGHT, _chunk_published),
        Part("products", RIGHT, _products_lemmas),
        Part("greatest common divisor", RIGHT, _gcd_lemmas),
    ),
    killers=(
        Killer(CAP_WITHOUT_IN_FLIGHT, _WINDOW_CAP, WINDOW_ENOUGH, WINDOW_ENOUGH),
        Killer(CAP_WITHOUT_IN_FLIGHT, _CHUNK_CAP, _CHUNK_ENOUGH, _CHUNK_ENOUGH),
    ),
)
