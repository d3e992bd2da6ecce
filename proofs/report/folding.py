"""Lists that repeat themselves, in few words."""

from __future__ import annotations

from collections.abc import Sequence

_PERIOD_MAX = 8
_PARTS_MAX = 24


def folded(words: Sequence[str], *, times: str = "×", parts_max: int = _PARTS_MAX) -> str:
    """`a, b ×3, (c, d) ×120`: what comes directly after itself is told once, `times` before how often.

    Of more than `parts_max` parts, the last ones are left out.
    """
    parts: list[str] = []
    place = 0
    while place < len(words):
        period, count = _repeated(words, place)
        stretch = ", ".join(words[place : place + period])
        parts.append(stretch if count == 1 else f"{stretch} {times}{count}" if period == 1 else f"({stretch}) {times}{count}")
        place += period * count
    more = f", ... ({len(words)} in all)" if len(parts) > parts_max else ""
    return ", ".join(parts[:parts_max]) + more


def _repeated(words: Sequence[str], place: int) -> tuple[int, int]:
    """The stretch from here on that repeats itself for longest, and how often; the shortest of those."""
    best = (1, 1)
    for period in range(1, _PERIOD_MAX + 1):
        stretch = list(words[place : place + period])
        times = 1
        while len(stretch) == period and list(words[place + times * period : place + (times + 1) * period]) == stretch:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best
