"""State kinds: a block holds a recurrent state, the sum of all tokens up to one position, and is overwritten as the sequence grows.

A step reads one state and writes another. With drafts it writes a state after each token that may turn out to be the last accepted one:
the first in its running slot, those of the drafts in the slots behind it. Which of them the next step reads is known only when the
output has come back, so a step scheduled before that names every slot that it may be. What is named is resident: the state that the
next step reads never lies below the block of the last settled token, and nothing above that block is pruned.

`none`: one state and its draft slots, overwritten in place. `align`: like attention, the state after the tokens of block i stands at
index i, so that it can be cached; what lies between the ends of two steps stays null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from settled.model.disciplines import Rounding
from settled.model.events import NULL_BLOCK, CacheEntry, ReleaseCause
from settled.model.specs import MambaSpec
from settled.reference.free_queue import KVCacheBlock
from settled.reference.managers.base import SingleTypeKVCacheManager, TableEntries, TableState, cdiv, count_free
from settled.reference.pool import BlockPool
from settled.reference.prefix_cache import longest_suffix
from settled.reference.request import Request

Indices = tuple[int, ...]


class StateIndices(NamedTuple):
    """The table entries that a step may read and may write; `known`: that it does read and write them all, whatever outputs say."""

    reads: Indices
    writes: Indices
    known: bool


class MambaManager(SingleTypeKVCacheManager):
    """What both modes share. `num_speculative_blocks`: slots behind the running one, one for each draft of a step."""

    holds_states: ClassVar[bool] = True

    def __init__(self, spec: MambaSpec, group: int, pool: BlockPool, rounding: Rounding) -> None:
        super().__init__(spec, group, pool, rounding)
        self.num_speculative_blocks = spec.num_speculative_blocks

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """The next step needs the state after the last computed token."""
        return max(0, num_computed_tokens - 1)

    def step_indices(self, request: Request, start: int, tokens: int, drafts: int) -> StateIndices:
        """What a step of `tokens` tokens from `start` on, the last `drafts` of them drafts, reads and writes.

        To be called once a step, in order, when its blocks are allocated and the request's counters have not advanced.
        """
        raise NotImplementedError


class MambaNoneManager(MambaManager):
    """One state, overwritten in place: blocks 0 to `num_speculative_blocks`. A block is as long as a request may be. No prefix cache."""

    def get_num_blocks_to_allocate(
        self, request: Request, num_slots: int, num_tokens: int, *, num_hit_blocks: int = 0, first_index: int = 0
    ) -> int:
        return 0 if self.req_to_blocks.get(request.request_id) else 1 + self.num_speculative_blocks

    def allocate_new_blocks(self, request: Request, num_slots: int, num_tokens: int, *, first_index: int = 0) -> tuple[int, ...]:
        table = self.req_to_blocks.setdefault(request.request_id, [])
        return self._append_fresh(request.request_id, table, 1 + self.num_speculative_blocks - len(table))

    def blocks_for_sequence(self, num_tokens: int, kept: Sequence[KVCacheBlock]) -> int:
        return 1 + self.num_speculative_blocks

    def find_longest_cache_hit(self, hashes: Sequence[int], max_length: int, alignment: int) -> list[KVCacheBlock]:
        """Nothing: a state overwritten in place is never that of a full block."""
        return []

    def step_indices(self, request: Request, start: int, tokens: int, drafts: int) -> StateIndices:
        last_drafts = max([entry.drafts for entry in request.unprocessed if not entry.stale], default=self.num_speculative_blocks)
        reads = tuple(range(1 + last_drafts)) if start > 0 else ()
        return StateIndices(reads, tuple(range(1 + drafts)), len(reads) <= 1)


class AlignState(NamedTuple):
    """What is known about a request's states. Indices are those of its table."""

    has_slots: bool = False  # the draft slots have been allocated
    retired: int = 0  # entries below it have been pruned
    last_slots: tuple[int, int] | None = None  # first and last slot in which the last step may have left the state it ends with


class MambaAlignManager(MambaManager):
    """The state after the tokens of block i stands at index i; draft slots stand behind the running one and move along with it."""

    def __init__(self, spec: MambaSpec, group: int, pool: BlockPool, rounding: Rounding) -> None:
        super().__init__(spec, group, pool, rounding)
        self._states: dict[str, AlignState] = {}
        self._cached_this_step: set[int] = set()  # blocks, by id, whose state is computed in the step that is being scheduled

    # ---- pruning -----------------------------------------------------------------------------------------------------

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int, num_prompt_tokens: int, cause: ReleaseCause) -> None:
        """Like the others, but null entries lie between the states: a mark remembers how far earlier prunes came."""
        state = self._states.get(request_id)
        if state is None:
            return
        _, last = self.get_skipped_range(num_computed_tokens, num_prompt_tokens)
        if last <= state.retired:
            return
        table = self.req_to_blocks[request_id]
        last = min(last, len(table))
        null = self.pool.null_block
        held = [index for index in range(last - 1, state.retired - 1, -1) if table[index] is not null]
        self._states[request_id] = state._replace(retired=max(last, state.retired))
        self._prune(request_id, held, cause)

    # ---- allocation --------------------------------------------------------------------------------------------------

    def get_num_blocks_to_allocate(
        self, request: Request, num_slots: int, num_tokens: int, *, num_hit_blocks: int = 0, first_index: int = 0
    ) -> int:
        """One block for the running state, and once the draft slots. Lookahead takes none: draft models have no such layers."""
        present = len(self.req_to_blocks.get(request.request_id, ())) + num_hit_blocks
        missing = max(0, cdiv(num_tokens, self.block_size) + self.num_speculative_blocks - present)
        has_slots = request.request_id in self._states and self._states[request.request_id].has_slots
        return min(missing, 1 if has_slots else 1 + self.num_speculative_blocks)

    def allocate_new_blocks(self, request: Request, num_slots: int, num_tokens: int, *, first_index: int = 0) -> tuple[int, ...]:
        """Null up to the running slot, then draft slots that the step leaves behind, moved along, then fresh blocks."""
        request_id = request.request_id
        table = self.req_to_blocks.setdefault(request_id, [])
        state = self._states.get(request_id, AlignState())
        num_entries = cdiv(num_tokens, self.block_size) + self.num_speculative_blocks
        before = len(table)
        if num_entries > before:
            running = num_entries - self.num_speculative_blocks - 1
            table.extend([self.pool.null_block] * (running - before))
            if state.has_slots:
                for index in range(before - self.num_speculative_blocks, min(before, running)):
                    self._move(request_id, table, index)
            self._append_fresh(request_id, table, num_entries - len(table))
        if not state.has_slots:
            self._states[request_id] = state._replace(has_slots=True)
        return tuple([block.block_id for block in table[before:]])

    def _move(self, request_id: str, table: list[KVCacheBlock], index: int) -> None:
        block = table[index]
        if block.block_id == NULL_BLOCK:  # a broken free basis has pruned it
            return
        assert block.ref_cnt == 1, f"{block} is a draft slot of {request_id}, nobody else can hold it"
        assert block.block_hash is None, f"{block} is a draft slot of {request_id}, it cannot be cached"
        table.append(block)
        table[index] = self.pool.null_block
        if self.pool.recorder is not None:
            self.pool.recorder.move(request_id, self.group, index, len(table) - 1, block.block_id)

    def add_local_computed_blocks(self, request_id: str, kept: Sequence[KVCacheBlock]) -> None:
        super().add_local_computed_blocks(request_id, kept)
        if kept:
            self._states[request_id] = AlignState(last_slots=(len(kept) - 1, len(kept) - 1))

    def blocks_for_sequence(self, num_tokens: int, kept: Sequence[KVCacheBlock]) -> int:
        return max(0, cdiv(num_tokens, self.block_size) - len(kept)) + self.num_speculative_blocks + count_free(kept)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def step_indices(self, request: Request, start: int, tokens: int, drafts: int) -> StateIndices:
        """The running slot is that of the step's last token, drafts included.

        Drafts of unprocessed steps may be rejected, which lowers the start. When what is accepted ends a block, the step also copies
        that state to the block's own index, which is the running slot or the one before.
        """
        state = self._states[request.request_id]
        rejectable = sum([entry.drafts for entry in request.unprocessed if not entry.stale])
        _, in_flight, stale = request.counters
        settled_index = (start - (in_flight - stale) - 1) // self.block_size
        running = cdiv(start + tokens, self.block_size) - 1
        lowest_running = cdiv(start - rejectable + tokens, self.block_size) - 1
        lowest_write = cdiv(start - rejectable + tokens - drafts, self.block_size) - 1
        first, last = state.last_slots or (0, -1)
        reads = tuple(range(max(first, settled_index), last + 1))
        writes = tuple(range(lowest_write, running + drafts + 1))
        self._states[request.request_id] = state._replace(last_slots=(lowest_running, running + drafts))
        return StateIndices(reads, writes, len(writes) == 1 and len(reads) <= 1)

    # ---- prefix cache ------------------------------------------------------------------------------------------------

    def find_longest_cache_hit(self, hashes: Sequence[int], max_length: int, alignment: int) -> list[KVCacheBlock]:
        """Null, then the one state with which the prefix ends."""
        return longest_suffix(
            lambda index: self.cached_at(hashes, index),
            self.num_hashed_blocks(hashes, max_length),
            first_needed=lambda num_blocks: num_blocks - 1,
            blocks_aligned=alignment // self.block_size,
            null_block=self.pool.null_block,
        )

    def cache_blocks(self, request: Request, num_tokens: int, entries: list[CacheEntry] | None, *, unsaved_index: int = -1) -> None:
        """A block gets a hash only if some step leaves the state at its end there: a step of known tokens that runs past the end of the
        block in which it starts leaves there what it started from.
        """
        start = request.num_computed_tokens
        index = start // self.block_size
        if start % self.block_size and num_tokens > (index + 1) * self.block_size:
            unsaved_index = index
        first = self.num_cached_block.get(request.request_id, 0)
        super().cache_blocks(request, num_tokens, entries, unsaved_index=unsaved_index)
        table = self.req_to_blocks[request.request_id]
        self._cached_this_step.update([block.block_id for block in table[first : num_tokens // self.block_size] if block.block_hash])

    def is_computed_this_step(self, kept: Sequence[KVCacheBlock]) -> bool:
        """Whether a hit ends with a state that a request scheduled in this very step computes: it is not there when the step begins."""
        return bool(kept) and kept[-1].block_id in self._cached_this_step

    def new_step_starts(self) -> None:
        """What was cached so far is computed by earlier steps."""
        self._cached_this_step.clear()

    # ---- whole-request frees, going back -----------------------------------------------------------------------------

    def pop_blocks_for_free(self, request_id: str) -> TableEntries:
        self._states.pop(request_id, None)
        return super().pop_blocks_for_free(request_id)

    def save(self, request_id: str) -> TableState:
        return super().save(request_id)._replace(kind=self._states.get(request_id))

    def restore(self, request_id: str, state: TableState) -> None:
        super().restore(request_id, state)
        if isinstance(state.kind, AlignState):
            self._states[request_id] = state.kind
        else:
            self._states.pop(request_id, None)
