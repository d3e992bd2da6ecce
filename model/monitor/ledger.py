"""`single_owner`: the pool's books, kept beside the engine's.

A reference belongs to a table entry of a request (deferred ones included, until the release that ends them) or to a named holder.
The checks: fresh blocks come from the free pool, a release names what is held, `freed` lists exactly the blocks left without a
reference, the null block is never owned, and nothing is held once the engine is idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from settled.model.events import NULL_BLOCK, CacheEntry
from settled.model.monitor.findings import Findings
from settled.model.monitor.state import Request
from settled.model.monitor.violation import Violation
from settled.model.properties import Property


class Ledger:
    """Reference counts per block, holders other than requests, and what is in the prefix cache. Sizes are in blocks."""

    def __init__(self, num_blocks: int, findings: Findings) -> None:
        self.references = [0] * num_blocks
        self.shared_blocks = 0  # those with more than one reference
        self.cached: dict[int, list[CacheEntry]] = {}
        self.has_content = False
        self._holders: dict[str, Counter[int]] = {}
        self._findings = findings

    # ---- references --------------------------------------------------------------------------------------------------

    def allocate(self, request: Request, group: int, index: int, block: int, line: int) -> None:
        """A fresh block enters a table."""
        if block == NULL_BLOCK or self.references[block]:
            self._refused(request, group, index, block, line)
        if block != NULL_BLOCK:
            self.add_reference(block)
            self.cached.pop(block, None)

    def touch(self, request: Request, group: int, index: int, block: int, line: int) -> None:
        """A cached block enters a table."""
        if block == NULL_BLOCK:
            self._report("null_block", f"request {request.name} touched the null block", line, request, group, index, block)
        else:
            self.add_reference(block)

    def add_reference(self, block: int) -> None:
        """One reference more."""
        self.references[block] += 1
        self.shared_blocks += self.references[block] == 2

    def replaced(self, request: Request, group: int, index: int, former: int, line: int) -> None:
        """A table entry that still held a block was overwritten: that reference can never come back."""
        what = f"request {request.name} put a block at index {index} of group {group}, where it still held block {former}"
        self._report("entry_overwritten", what, line, request, group, index, former)

    def give_up(self, block: int) -> bool:
        """One reference less; whether none is left."""
        self.references[block] -= 1
        self.shared_blocks -= self.references[block] == 1
        return self.references[block] == 0

    def not_held(self, request: str, group: int, index: int, block: int, held: int, line: int) -> None:
        """A release names a block that the request does not hold there."""
        free = " (it is in the pool already)" if block != NULL_BLOCK and not self.references[block] else ""
        there = f"block {held}" if held else "nothing"
        what = f"request {request} released block {block}{free} at index {index} of group {group}, where it held {there}"
        cause = "null_block" if block == NULL_BLOCK else "double_free" if free else "not_held"
        self._report(cause, what, line, request, group, index, block)

    def compare_freed(self, freed: list[int], claimed: tuple[int, ...], line: int, owner: Request | str) -> None:
        """The engine's list of freed blocks against the blocks that lost their last reference."""
        if tuple(freed) == claimed or (len(freed) == len(claimed) and sorted(freed) == sorted(claimed)):
            return
        expected, found = Counter(freed), Counter(claimed)
        name = owner if isinstance(owner, str) else owner.name
        for block in (found - expected).elements():
            left = self.references[block]
            what = f"{name} freed block {block}, which " + (f"has {left} references left" if left else "it did not hold last")
            self._report("freed_while_held", what, line, owner, None, None, block)
        for block in (expected - found).elements():
            what = f"{name} gave up the last reference to block {block}, which did not return to the pool"
            self._report("not_freed", what, line, owner, None, None, block)

    # ---- holders other than requests ---------------------------------------------------------------------------------

    def hold(self, holder: str, blocks: Iterable[int], line: int) -> None:
        """References of a named holder."""
        held = self._holders.setdefault(holder, Counter())
        for block in blocks:
            if block == NULL_BLOCK:
                self._report("null_block", f"holder {holder} holds the null block", line, holder, None, None, block)
            else:
                held[block] += 1
                self.add_reference(block)

    def drop(self, holder: str, blocks: Iterable[int], line: int) -> list[int]:
        """A holder gives up references; the blocks freed by it."""
        held = self._holders.setdefault(holder, Counter())
        freed = []
        for block in blocks:
            if not held[block]:
                what = f"holder {holder} dropped block {block}, which it does not hold"
                self._report("not_held", what, line, holder, None, None, block)
            else:
                held[block] -= 1
                if self.give_up(block):
                    freed.append(block)
        self._holders[holder] = +held
        if not self._holders[holder]:
            del self._holders[holder]
        return freed

    # ---- the prefix cache --------------------------------------------------------------------------------------------

    def cache(self, entries: Iterable[CacheEntry]) -> None:
        """Entries enter the prefix cache."""
        self.has_content = True
        for entry in entries:
            known = self.cached.setdefault(entry.block, [])
            if entry not in known:
                known.append(entry)

    def evict(self, entries: Iterable[CacheEntry]) -> None:
        """Entries leave it; one without a hash takes all of its block's."""
        self.has_content = True
        for entry in entries:
            kept = [known for known in self.cached.get(entry.block, ()) if entry.hash is not None and known.hash != entry.hash]
            if kept:
                self.cached[entry.block] = kept
            else:
                self.cached.pop(entry.block, None)

    def same_bytes(self, block: int, first: int, last: int) -> bool:
        """Whether the block's hash stands for the tokens from `first` to `last`, so that any writer writes the same bytes."""
        return any(
            (entry.start is None or entry.start <= first) and (entry.end is None or last < entry.end)
            for entry in self.cached.get(block, ())
        )

    # ---- the end -----------------------------------------------------------------------------------------------------

    def idle(self, requests: Iterable[Request], line: int) -> None:
        """Nothing may be held by requests."""
        for request in requests:
            for group, table in enumerate(request.tables):
                for index, block in enumerate(table.blocks):
                    if block != NULL_BLOCK:
                        what = f"the engine is idle, but request {request.name} still holds block {block}"
                        self._report("held_at_end", what, line, request, group, index, block)
            for group, blocks in request.fenced:
                for index, block in enumerate(blocks):
                    if block != NULL_BLOCK:
                        what = f"the engine is idle, but the fence of request {request.name} still keeps block {block}"
                        self._report("fenced_at_end", what, line, request, group, index, block)

    # ---- reports -----------------------------------------------------------------------------------------------------

    def _refused(self, request: Request, group: int, index: int, block: int, line: int) -> None:
        if block == NULL_BLOCK:
            what, cause = f"request {request.name} was given the null block as a fresh block", "null_block"
        else:
            count = self.references[block]
            what = f"request {request.name} was given block {block} as a fresh block while it has {count} reference(s)"
            cause = "allocated_while_held"
        self._report(cause, what, line, request, group, index, block)

    def _report(self, cause: str, what: str, line: int, owner: Request | str, group: int | None, index: int | None, block: int) -> None:
        self._findings.add(
            Violation(
                property=Property.SINGLE_OWNER,
                contract=self._findings.contract,
                line=line,
                cause=cause,
                detail=what,
                request=owner if isinstance(owner, str) else owner.name,
                group=group,
                index=index,
                block=block,
            )
        )
