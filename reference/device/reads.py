"""Which positions a part of a step reads, and which of its queries a wrong one garbles."""

from __future__ import annotations

from dataclasses import dataclass

from settled.reference.device.ops import KeysPart
from settled.reference.device.reading import Reading


@dataclass(slots=True)
class Found:
    """A key that is not what it should be."""

    expected: int
    found: int
    is_null: bool


def garbled_queries(part: KeysPart, reading: Reading, wrong: dict[int, Found]) -> list[tuple[int, int, bool]]:
    """(query, the first wrong position that it reads, whether it reads any through a null entry) for each query that reads a wrong key."""
    rows = []
    for query in range(part.start, part.start + part.tokens):
        ranges = reading(query, part.prompt_tokens)
        read = sorted(position for position in wrong if any(first <= position < end for first, end in ranges))
        if read:
            rows.append((query, read[0], any(wrong[position].is_null for position in read)))
    return rows


def read_by_part(part: KeysPart, reading: Reading) -> list[tuple[int, int]]:
    """The positions that some query of the part reads, as disjoint ascending ranges [first, end)."""
    if part.tokens == 1:
        return list(reading(part.start, part.prompt_tokens))
    merged: list[tuple[int, int]] = []
    for first, end in sorted(
        piece for query in range(part.start, part.start + part.tokens) for piece in reading(query, part.prompt_tokens)
    ):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged
