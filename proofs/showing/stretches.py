"""Blocks over time, in stretches: several may hold a block at once, and what they hold overlaps, which a row or a thread cannot show."""

from __future__ import annotations

from settled.proofs.showing.timeline import Timeline

Stretch = tuple[int, int, list[str]]
"""From the position of an event to before another's, and who holds the block there, in one stretch for as long as these are the same."""


def stretches_of(timeline: Timeline) -> dict[int, list[Stretch]]:
    """By block, the null block left out."""
    changes: dict[int, dict[int, list[tuple[str, int]]]] = {}
    for each in timeline.owners.holdings:
        end = len(timeline.events) if each.end is None else each.end
        if each.block and end > each.begin:
            who = timeline.holder(each)
            of_block = changes.setdefault(each.block, {})
            of_block.setdefault(each.begin, []).append((who, 1))
            of_block.setdefault(end, []).append((who, -1))
    return {block: _held(of_block) for block, of_block in changes.items()}


def _held(changes: dict[int, list[tuple[str, int]]]) -> list[Stretch]:
    stretches: list[Stretch] = []
    holders: dict[str, int] = {}
    since = 0
    for position in sorted(changes):
        held = sorted(who for who, times in holders.items() if times)
        if held:
            stretches.append((since, position, held))
        for who, change in changes[position]:
            holders[who] = holders.get(who, 0) + change
        since = position
    return stretches
