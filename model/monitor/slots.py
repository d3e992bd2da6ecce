"""Kinds that keep a state instead of keys (Mamba): which table indices a step reads and writes.

Mode `none` overwrites the blocks at the first indices in place. Mode `align` writes the state after a step's last token at the index of
that token's block, the running index. With speculative blocks the running state is that after the tokens which are no drafts, and the
states after each draft stand at the indices that follow. The next step reads the one after the last accepted token, and at the running
index the inputs of the convolution, which are kept there for all drafts. When the accepted tokens fill a block, the state at its end is
copied into it. The indices follow the start as it was scheduled, which counts drafts in flight as accepted. Source: vLLM,
MambaManager.allocate_new_blocks, and the copies before and after a forward pass (vllm/v1/worker/mamba_utils.py). Indices that the trace
records (`reads`, `writes`) come before all of this.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from settled.model.algebra import int_variable
from settled.model.disciplines import Rounding
from settled.model.events import NULL_BLOCK
from settled.model.interpret import compile_term
from settled.model.kinds import Kind, MambaNone
from settled.model.monitor.masks import Mask
from settled.model.monitor.state import RESTORED_GENERATION, Entry, Request, Table

Indices = tuple[int, ...] | range


class StateMask(Mask):
    """What all state kinds share: a step uses a few indices, each known or one of several that outputs to come decide between."""

    keeps_states = True

    def __init__(self, kind: Kind, block_size: int) -> None:
        super().__init__(block_size)
        index, basis = int_variable("index"), int_variable("basis")
        first, last = index * block_size, index * block_size + (block_size - 1)
        # If the state after the block's last token may go, so may the earlier ones.
        self.may_free_index = compile_term(kind.may_free(last, basis), ("index", "basis"))
        self.is_skipped = compile_term(kind.frees_block(first, last, basis, Rounding.FLOOR), ("index", "basis"))

    # ---- what a kind says --------------------------------------------------------------------------------------------

    @abstractmethod
    def reads(self, entry: Entry) -> Indices:
        """The indices that a step reads, whatever is rejected."""

    @abstractmethod
    def may_read(self, entry: Entry) -> Indices:
        """The indices that a step may read; those of `reads` once all that matters is known."""

    @abstractmethod
    def reads_now(self, entry: Entry) -> Indices:
        """The indices that a step reads if nothing more is rejected."""

    @abstractmethod
    def writes(self, entry: Entry) -> Indices:
        """The indices that a step writes, whatever is rejected."""

    @abstractmethod
    def may_write(self, entry: Entry) -> Indices:
        """The indices that a step may write."""

    @abstractmethod
    def writes_now(self, entry: Entry) -> Indices:
        """The indices that a step writes if nothing more is rejected."""

    @abstractmethod
    def reads_next(self, request: Request) -> Indices:
        """The indices that a request's next step reads for certain."""

    # ---- what the monitor asks ---------------------------------------------------------------------------------------

    def needs(self, entry: Entry, group: int, index: int, lookahead: int, written: bool) -> bool | None:
        recorded = _recorded(entry, group, written=written)
        if recorded is not None:
            return index in recorded
        if index in (self.writes(entry) if written else self.reads(entry)):
            return True
        return None if index in (self.may_write(entry) if written else self.may_read(entry)) else False

    def needs_now(self, entry: Entry, group: int, index: int, lookahead: int, written: bool) -> bool:
        recorded = _recorded(entry, group, written=written)
        if recorded is not None:
            return index in recorded
        return index in (self.writes_now(entry) if written else self.reads_now(entry))

    def may_use(self, entry: Entry, group: int, index: int, lookahead: int) -> bool:
        return any(self.needs(entry, group, index, lookahead, written) is not False for written in (False, True))

    def may_use_some(self, entry: Entry, group: int, first: int, last: int, lookahead: int) -> bool:
        return True

    def written(self, entry: Entry, group: int, lookahead: int) -> Iterable[int]:
        recorded = _recorded(entry, group, written=True)
        return [index for index in (self.may_write(entry) if recorded is None else recorded) if index < entry.lengths[group]]

    def written_span(self, entry: Entry, group: int, index: int, lookahead: int) -> tuple[int, int] | None:
        if self.needs(entry, group, index, lookahead, True) is False:
            return None
        token = self.written_token(entry, index)
        return token, token

    def written_token(self, entry: Entry, index: int) -> int:
        """The token after which a step writes the state at an index."""
        return entry.start + entry.tokens - 1

    def needed(self, start: int, tokens: int, index: int, lookahead: int, written: bool) -> tuple[int, int]:
        """The token after which the state is read, or written."""
        token = start + tokens - 1 if written else max(start - 1, 0)
        return token, token

    def needed_next(self, computed: int, index: int) -> tuple[int, int]:
        token = max(computed - 1, 0)
        return token, token

    def absent(self, entry: Entry, group: int) -> Iterable[int]:
        table = entry.request.tables[group]
        reads = self.may_read(entry) if entry.reads is None else entry.reads[group]
        writes = self.writes(entry) if entry.writes is None else entry.writes[group]
        used = {*reads, *writes}
        return [index for index in sorted(used) if not table.is_sound(index, entry.row_block(group, index), through_moves=True)]

    def gone(self, request: Request, group: int) -> Iterable[int]:
        table = request.tables[group]
        return [index for index in self.reads_next(request) if table.block_at(index) == NULL_BLOCK]


def _recorded(entry: Entry, group: int, *, written: bool) -> tuple[int, ...] | None:
    recorded = entry.writes if written else entry.reads
    return None if recorded is None else recorded[group]


class InPlace(StateMask):
    """Mode `none`: every step reads and writes the blocks at the first indices, one and one more for each speculative block."""

    def __init__(self, kind: MambaNone, block_size: int) -> None:
        super().__init__(kind, block_size)
        assert isinstance(kind.slots, int)
        self._slots = range(kind.slots)

    def reads(self, entry: Entry) -> Indices:
        return self._slots

    may_read = reads_now = writes = may_write = writes_now = reads

    def reads_next(self, request: Request) -> Indices:
        return self._slots


class Aligned(StateMask):
    """Mode `align` without speculative blocks: a step reads the state before its start, and writes that after its last token."""

    def reads(self, entry: Entry) -> Indices:
        return _if_one(self.may_read(entry))

    def may_read(self, entry: Entry) -> range:
        return self._blocks(entry.start - entry.rejectable - 1, entry.start - 1)

    def reads_now(self, entry: Entry) -> Indices:
        return self._blocks(entry.start - 1, entry.start - 1)

    def writes(self, entry: Entry) -> Indices:
        return _if_one(self.may_write(entry))

    def may_write(self, entry: Entry) -> range:
        last = entry.start + entry.tokens - 1
        return self._blocks(last - entry.rejectable, last)

    def writes_now(self, entry: Entry) -> Indices:
        last = entry.start + entry.tokens - 1
        return self._blocks(last, last)

    def reads_next(self, request: Request) -> Indices:
        return self._blocks(request.computed - 1, request.computed - 1)

    def _blocks(self, first: int, last: int) -> range:
        """The indices of the blocks of the tokens `first` to `last`; those before token 0 have none."""
        return range(max(first, 0) // self.block_size, last // self.block_size + 1)


def _if_one(candidates: range) -> Indices:
    return candidates if len(candidates) == 1 else ()


class AlignedWithDrafts(StateMask):
    """Mode `align` with speculative blocks: the states after drafts stand at the indices past the running one."""

    def __init__(self, kind: Kind, block_size: int, num_speculative_blocks: int) -> None:
        super().__init__(kind, block_size)
        self.num_speculative_blocks = num_speculative_blocks

    def reads(self, entry: Entry) -> Indices:
        previous = entry.previous
        if previous is None:
            return self._first_reads(entry.request, entry.generation, entry.end - entry.tokens)
        return self._kept(previous, previous.rejected)

    def may_read(self, entry: Entry) -> Indices:
        previous = entry.previous
        if previous is None or previous.rejected is not None:
            return self.reads(entry)
        return self.writes(previous)

    def reads_now(self, entry: Entry) -> Indices:
        previous = entry.previous
        return self.reads(entry) if previous is None else self._kept(previous, previous.rejected or 0)

    def reads_next(self, request: Request) -> Indices:
        last = request.last
        if last is None:
            return self._first_reads(request, request.generation, request.computed)
        return () if last.reads is not None else self._kept(last, last.rejected)  # where reads are recorded, the next step will say

    def writes(self, entry: Entry) -> range:
        running = self._running(entry)
        return range(running, running + min(entry.drafts, self.num_speculative_blocks) + 1)

    def may_write(self, entry: Entry) -> Indices:
        """Those, and the blocks that the accepted tokens may fill."""
        written = self.writes(entry)
        first_filled = -(-(entry.end - entry.drafts) // self.block_size) - 1
        return range(max(min(first_filled, written.start), 0), written.stop)

    def writes_now(self, entry: Entry) -> Indices:
        filled = self._filled(entry, entry.rejected or 0)
        return self.writes(entry) if filled is None else (filled, *self.writes(entry))

    def _running(self, entry: Entry) -> int:
        """The running index of a step."""
        return (entry.end - 1) // self.block_size

    def written_token(self, entry: Entry, index: int) -> int:
        running = self._running(entry)
        return (index + 1) * self.block_size - 1 if index < running else entry.end - entry.drafts - 1 + index - running

    def _filled(self, entry: Entry, rejected: int) -> int | None:
        """The index of the block into which the state at its end is copied after a step; None if no accepted token fills one."""
        blocks = (entry.end - rejected) // self.block_size
        return blocks - 1 if blocks * self.block_size >= entry.end - entry.drafts and blocks else None

    def _kept(self, entry: Entry, rejected: int | None) -> Indices:
        """Where a step leaves what the next one reads; while its output is not known, what is certain of it."""
        running = self._running(entry)
        if rejected is None or self._filled(entry, rejected) == running:
            return (running,)  # the block at the running index is full: the last state was copied there
        return (running, running + min(entry.drafts - rejected, self.num_speculative_blocks))

    def _first_reads(self, request: Request, generation: int, start: int) -> Indices:
        """What the first step of a generation reads: the state of the block that a hit ends with. Nothing is known of a generation
        that began before the trace."""
        if start <= 0 or (request.is_restored and generation == RESTORED_GENERATION):
            return ()
        return ((start - 1) // self.block_size,)

    def moves(self, table: Table, required: int) -> list[tuple[int, int]]:
        """The moves (from, to) that bring the speculative blocks past the running index when a table grows to `required` entries.

        An engine that records no moves makes them just before the allocation that makes the table so long.
        """
        length, running = len(table.blocks), required - self.num_speculative_blocks - 1
        if not table.has_fresh:
            return []
        from_indices = range(max(length - self.num_speculative_blocks, 0), min(length, running))
        return list(zip(from_indices, range(max(length, running), required), strict=False))
