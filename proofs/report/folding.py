"""Lists that repeat themselves, in few words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

_PERIOD_MAX = 8
_PARTS_MAX = 24


class _Split(NamedTuple):
    """Words told and stretches, the fewer the better; the first stretch: how long it is (negative: the longer the better), of what."""

    words: int
    stretches: int
    length: int
    period: int
    how_often: int


def folded(words: Sequence[str], *, times: str = "×", parts_max: int = _PARTS_MAX) -> str:
    """`a, b ×3, (c, d) ×120`: what comes directly after itself is told once, `times` before how often.

    Of more than `parts_max` parts, the last ones are left out.
    """
    parts: list[str] = []
    for place, period, count in _stretches(words):
        stretch = ", ".join(words[place : place + period])
        parts.append(stretch if count == 1 else f"{stretch} {times}{count}" if period == 1 else f"({stretch}) {times}{count}")
    more = f", ... ({len(words)} in all)" if len(parts) > parts_max else ""
    return ", ".join(parts[:parts_max]) + more


def _stretches(words: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Where each begins, how many words it has, and how often it comes: with the fewest words in all, then the fewest stretches."""
    best = [_Split(0, 0, 0, 0, 0)] * (len(words) + 1)  # of what lies from a place on
    for place in reversed(range(len(words))):
        repeated = [(period, _times(words, place, period)) for period in range(1, min(_PERIOD_MAX, len(words) - place) + 1)]
        options = [(1, 1), *[(period, count) for period, count in repeated if count > 1]]
        best[place] = min(_split(best[place + period * count], period, count) for period, count in options)
    place = 0
    while place < len(words):
        first = best[place]
        yield place, first.period, first.how_often
        place += first.period * first.how_often


def _split(rest: _Split, period: int, count: int) -> _Split:
    return _Split(rest.words + period, rest.stretches + 1, -period * count, period, count)


def _times(words: Sequence[str], place: int, period: int) -> int:
    """How often the words from here on come one directly after the other."""
    same = place + period
    while same < len(words) and words[same] == words[same - period]:
        same += 1
    return (same - place) // period
