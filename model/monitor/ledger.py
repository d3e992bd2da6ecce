"""`single_owner`: the pool's books, kept beside the engine's.

A reference belongs to a table entry of a request (deferred ones included, until the release that ends them) or to a named holder.
The checks: fresh blocks come from the free pool, a release names what is held, `freed` lists exactly the blocks left without a
reference, a hit is on a block that the prefix cache knows, the null block is never owned, and no request holds anything once the
engine is idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from settled.model.events import NULL_BLOCK, CacheEntry
from settled.model.monitor.findings import Findings
from settled.model.monitor.state import Request
from settled.model.monitor.violation import Violation
from settled.model.properties import Property

HolderKind = Literal["pin", "copy"]
_KINDS: tuple[HolderKind, ...] = ("pin", "copy")
NAMED_MAX = 5  # holders that a remark names


def _one_less(counter: Counter[int], block: int) -> None:
    counter[block] -= 1
    if not counter[block]:
        del counter[block]


class Ledger:
    """Reference counts per block, holders other than requests, and what is in the prefix cache. Sizes are in blocks.

    `knows_cache`: every entry of the prefix cache is recorded, so a block without one is none that a request can hit.
    """

    def __init__(self, num_blocks: int, findings: Findings, *, knows_cache: bool = False) -> None:
        self.references = [0] * num_blocks
        self.shared: set[int] = set()  # blocks that more than one reference uses
        self.cached: dict[int, list[CacheEntry]] = {}
        self.has_content = self.knows_cache = knows_cache
        self._pins: Counter[int] = Counter()  # the references that only keep a block in memory
        self._copies: Counter[int] = Counter()  # the references of copies to be made
        self._holders: dict[tuple[str, HolderKind], Counter[int]] = {}
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
            return
        if self.knows_cache and not self.references[block] and block not in self.cached:
            what = f"request {request.name} hit block {block}, which is free and has no entry in the prefix cache"
            self._report("hit_uncached", what, line, request, group, index, block)
        self.add_reference(block)

    def is_empty(self, block: int) -> bool:
        """Whether a block is known to be free and to stand for nothing: whoever takes it, takes it as a fresh one."""
        return self.knows_cache and not self.references[block] and block not in self.cached

    def users(self, block: int) -> int:
        """How many references use what is in the block; a pin only keeps it in memory."""
        return self.references[block] - self._pins[block] if self._pins else self.references[block]

    def add_reference(self, block: int) -> None:
        """One reference more, of a user."""
        self.references[block] += 1
        if self.users(block) == 2:
            self.shared.add(block)

    def replaced(self, request: Request, group: int, index: int, former: int, line: int) -> None:
        """A table entry that still held a block was overwritten: that reference can never come back."""
        what = f"request {request.name} put a block at index {index} of group {group}, where it still held block {former}"
        self._report("entry_overwritten", what, line, request, group, index, former)

    def give_up(self, block: int) -> bool:
        """One user's reference less; whether none is left."""
        left = self.references[block] = self.references[block] - 1
        if left and self.users(block) == 1:
            self.shared.discard(block)
        return left == 0

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

    def hold(self, holder: str, kind: HolderKind, blocks: Iterable[int], line: int) -> None:
        """References of a named holder."""
        held = self._holders.setdefault((holder, kind), Counter())
        for block in blocks:
            if block == NULL_BLOCK:
                self._report("null_block", f"holder {holder} holds the null block", line, holder, None, None, block)
                continue
            held[block] += 1
            if kind == "pin":
                self.references[block] += 1
                self._pins[block] += 1
            else:
                self.add_reference(block)
                self._copies[block] += 1
        if not held:
            del self._holders[holder, kind]

    def drop(self, holder: str, blocks: Iterable[int], line: int) -> list[int]:
        """A holder gives up references, pins first; the blocks freed by it."""
        freed = []
        for block in blocks:
            kind = self._kind_held(holder, block)
            if kind is None:
                what = f"holder {holder} dropped block {block}, which it does not hold"
                self._report("not_held", what, line, holder, None, None, block)
                continue
            _one_less(self._holders[holder, kind], block)
            if kind == "pin":
                self.references[block] -= 1
                _one_less(self._pins, block)
                is_free = self.references[block] == 0
            else:
                is_free = self.give_up(block)
                _one_less(self._copies, block)
            if is_free:
                freed.append(block)
        for key in _KINDS:
            if not self._holders.get((holder, key), True):
                del self._holders[holder, key]
        return freed

    def copied(self, block: int) -> None:
        """A block is copied at the start of a step: writes of that step and of later ones come after it, and what is held for the copy
        only keeps the block in memory."""
        holder = next((holder for (holder, kind), held in self._holders.items() if kind == "copy" and block in held), None)
        if holder is None:
            return
        held = self._holders[holder, "copy"]
        _one_less(held, block)
        if not held:
            del self._holders[holder, "copy"]
        self._holders.setdefault((holder, "pin"), Counter())[block] += 1
        _one_less(self._copies, block)
        self._pins[block] += 1
        if self.users(block) == 1:
            self.shared.discard(block)

    def _kind_held(self, holder: str, block: int) -> HolderKind | None:
        return next((kind for kind in _KINDS if block in self._holders.get((holder, kind), ())), None)

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

    def same_bytes(self, request: str, group: int, block: int, first: int, last: int, *, ends_there: bool = False) -> bool | None:
        """Whether the block's hash stands for what a request writes at the tokens from `first` to `last`. If all others only copy the
        block, what is written past the hash's tokens is nobody's business: a copy is made for those tokens.

        `ends_there`: the block keeps a state, so its hash must stand for the tokens up to `last` and for no more.

        None if that cannot be known: an entry of another request says so only if this one has the same tokens, and one with half a
        range may end anywhere. An entry with no range at all is taken to stand for these tokens, as the recorded traces of engines
        demand: they record the block alone, which was hashed for what is scheduled to be written there.
        """
        found: bool | None = False
        is_only_copied = block in self._copies and self.users(block) - self._copies[block] <= 1
        for entry in self.cached.get(block, ()):
            if entry.group is not None and entry.group != group:
                continue
            if (entry.start is not None and entry.start > first) or (entry.end is not None and last >= entry.end and not is_only_copied):
                continue
            if ends_there and entry.end not in (None, last + 1):
                continue
            if (entry.start is None) == (entry.end is None) and entry.request in (None, request):
                return True
            found = None
        return found

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
        if self._holders:
            held = [f"{holder} ({held.total()})" for (holder, _), held in list(self._holders.items())[:NAMED_MAX]]
            more = f" and {len(self._holders) - NAMED_MAX} more" if len(self._holders) > NAMED_MAX else ""
            self._findings.remark(Property.SINGLE_OWNER, f"idle, but holders keep blocks: {', '.join(held)}{more}")

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
