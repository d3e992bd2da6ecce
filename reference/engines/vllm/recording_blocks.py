"""What happens to blocks, attributed to requests, groups and table indices.

The pool says which blocks, the manager of a group whose method runs says whose they are, and the request's table before and after says
where. A request's table is remembered as the index of each block, so nothing is copied and nothing is compared where nothing happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from settled.model.events import Allocate, Move, Release, Touch
from settled.reference.engines.vllm.recording_cache import CacheRecorder
from settled.reference.engines.vllm.recording_fence import FenceRecorder
from settled.reference.engines.vllm.recording_holders import CONNECTOR, COPIES, ENGINE, Holders
from settled.reference.engines.vllm.recording_live import KnownRequest, Recording

_GROWING = (
    "allocate_new_blocks",
    "allocate_new_computed_blocks",
    "add_local_computed_blocks",
    "allocate_external_computed_blocks",
)
_NONE = object()
_NEVER_PRUNING = frozenset({"FullAttentionManager", "SinkFullAttentionManager"})  # asked at each step, and nothing ever happens


class BlockRecorder:
    """Wraps the pool, and of each manager the methods that call it."""

    def __init__(self, recording: Recording, *, touches_per_group: bool) -> None:
        self._recording = recording
        manager = recording.scheduler.kv_cache_manager
        self._pool = manager.block_pool
        self.managers: list[Any] = list(manager.coordinator.single_type_managers)
        self.holders = Holders(recording)
        self.fence = FenceRecorder(recording, self.holders)
        self.cache = CacheRecorder(recording, self._pool)
        self.copy_groups: dict[int, int] = {}  # target of a copy to be made → its group
        # A hit within a block, and with it a copy on write, needs hashes of less than a block.
        self._has_partial_hits = any(
            getattr(self._pool, "hash_block_size", single.block_size) != single.block_size for single in self.managers
        )
        self.admitted: str | None = None  # the request for which slots are being allocated
        self._request_id: str | None = None  # whose table a manager is working on
        self._group = 0
        self._fresh: list[int] = []
        self._touched: list[int] = []
        patches = recording.patches
        patches.wrap(self._pool, "get_new_blocks", self._around_get_new_blocks)
        patches.wrap(self._pool, "touch", self._around_touch_per_group if touches_per_group else self._around_touch)
        patches.wrap(self._pool, "free_blocks", self._around_free_blocks)
        for group, single in enumerate(self.managers):
            self._wrap_manager(group, single)
        self._hold_what_is_in_use()

    def _hold_what_is_in_use(self) -> None:
        """Some engines keep blocks for good before the first request comes."""
        used = [block.block_id for block in self._pool.blocks if block.ref_cnt > 0 and not block.is_null]
        if used:
            self.holders.hold(ENGINE, "pin", used)

    # ---- managers ----------------------------------------------------------------------------------------------------

    def _wrap_manager(self, group: int, manager: Any) -> None:
        patches = self._recording.patches
        for name in _GROWING:
            patches.wrap_if_present(manager, name, lambda original: self._around_growth(group, manager, original))
        if type(manager).__name__ not in _NEVER_PRUNING:
            patches.wrap(manager, "remove_skipped_blocks", lambda original: self._at_each_step(group, manager, original))
        patches.wrap(manager, "free", lambda original: self._within(group, original))
        patches.wrap_if_present(manager, "pop_blocks_for_free", lambda original: self._around_pop(group, original))

    def _within(self, group: int, original: Any) -> Any:
        """Blocks freed in the method are the request's."""

        def wrapped(request_id: str, *args: Any, **kwargs: Any) -> Any:
            self._request_id, self._group = request_id, group
            try:
                return original(request_id, *args, **kwargs)
            finally:
                self._request_id = None

        return wrapped

    def _around_pop(self, group: int, original: Any) -> Any:
        def pop_blocks_for_free(request_id: str) -> Any:
            is_freed_at_once = self._request_id is not None
            popped = original(request_id)
            if not is_freed_at_once and request_id in self._recording.requests.by_id:
                self.fence.popped(self._recording.requests.by_id[request_id], group)
            return popped

        return pop_blocks_for_free

    def _at_each_step(self, group: int, manager: Any, original: Any) -> Any:
        """What is done for each request in each step, with one or two counts of tokens: to pack them would cost more than all else here."""

        def wrapped(request_id: str, tokens: Any = _NONE, more: Any = _NONE, *args: Any, **kwargs: Any) -> Any:
            self._request_id = request_id
            self._group = group
            try:
                if kwargs or args or tokens is _NONE:
                    given = [argument for argument in (tokens, more, *args) if argument is not _NONE]
                    result = original(request_id, *given, **kwargs)
                elif more is _NONE:
                    result = original(request_id, tokens)
                else:
                    result = original(request_id, tokens, more)
            finally:
                self._request_id = None
            if self._fresh or self._touched:
                self._grew(self._recording.requests.by_id[request_id], group, manager, None, 0)
            return result

        return wrapped

    def _around_growth(self, group: int, manager: Any, original: Any) -> Any:
        tables = manager.req_to_blocks
        has_moves = getattr(manager, "mamba_cache_mode", None) == "align"
        can_copy = hasattr(manager, "_pending_cow_copies")

        def wrapped_exactly(request_id: str, *args: Any, **kwargs: Any) -> Any:
            length = len(tables[request_id]) if request_id in tables else 0
            copies = len(manager._pending_cow_copies) if can_copy else 0
            self._request_id, self._group = request_id, group
            try:
                result = original(request_id, *args, **kwargs)
            finally:
                self._request_id = None
            if self._fresh or self._touched or has_moves:
                self._grew(self._recording.requests.by_id[request_id], group, manager, length, copies)
            return result

        return wrapped_exactly if has_moves or (can_copy and self._has_partial_hits) else self._at_each_step(group, manager, original)

    def _grew(self, known: KnownRequest, group: int, manager: Any, length: int | None, num_copies: int) -> None:
        """A table has grown, from `length` entries or by no more than the blocks that the pool gave: where they stand."""
        blocks = manager.req_to_blocks.get(known.request.request_id, ())
        fresh, touched = self._fresh, self._touched
        table = known.tables[group]
        if length is None and len(fresh) == 1 and not touched and not getattr(manager, "_pending_cow_copies", ()):
            block = fresh[0]
            if blocks and blocks[-1].block_id == block and block not in table:  # one more at the end, as nearly always
                table[block] = last = len(blocks) - 1
                self._fresh = []
                self._recording.emit(Allocate(request=known.name, group=group, first_index=last, blocks=(block,)))
                return
        if length is None:
            length = max(0, len(blocks) - len(fresh) - len(touched))
        self._fresh, self._touched = [], []
        added = _places(blocks, length)
        if not all(block in added for block in (*fresh, *touched)):
            added = _places(blocks, 0)
        for block, index in added.items():
            former = table.get(block)
            if former is not None and former != index:
                self._recording.emit(Move(request=known.name, group=group, from_index=former, to_index=index, block=block))
                table[block] = index
        if touched:
            self._touched_by(known, group, manager, touched, added)
        if fresh:
            copies = manager._pending_cow_copies[num_copies:] if hasattr(manager, "_pending_cow_copies") else ()
            if copies:
                fresh = self._copied(known, group, copies, fresh)
            self._place(known, group, fresh, added, Allocate)

    def _touched_by(self, known: KnownRequest, group: int, manager: Any, touched: list[int], added: dict[int, int]) -> None:
        """Hits enter the table. The block in whose middle a hit ends does not: it is only kept until it has been copied."""
        partial = getattr(manager, "_partial_hit_reqs", {}).get(known.request.request_id)
        if partial is not None and partial[1].block_id in touched:
            source = partial[1].block_id
            touched = [block for block in touched if block != source]
            self.holders.hold(COPIES, "copy", (source,))
        if touched:
            self._place(known, group, touched, added, Touch)

    def _copied(self, known: KnownRequest, group: int, copies: Sequence[Any], fresh: list[int]) -> list[int]:
        """Copies on write are planned; the fresh blocks that enter the table otherwise come back.

        Either the table gets the copy in place of a block that was hit, and the copy is kept besides; or the request goes on in its own
        block, and the copy takes over what the prefix cache knew of it.
        """
        table = self._recording.requests.by_id[known.request.request_id].tables[group]
        for source, target in copies:
            self.copy_groups[target.block_id] = group
            fresh = [block for block in fresh if block != target.block_id]
            if source.block_id in table:
                self.holders.hold(COPIES, "copy", (source.block_id,))
            else:
                index = _index_of(self.managers[group].req_to_blocks[known.request.request_id], target)
                table[target.block_id] = index
                self._recording.emit(Allocate(request=known.name, group=group, first_index=index, blocks=(target.block_id,)))
            self.holders.hold(COPIES, "pin", (target.block_id,))
        self.cache.tell_moved()
        return fresh

    def _place(self, known: KnownRequest, group: int, ids: list[int], places: dict[int, int], event: type[Allocate] | type[Touch]) -> None:
        """Blocks enter a table: an event for each run of neighbours."""
        table, emit = known.tables[group], self._recording.emit
        run: list[int] = []
        first = 0
        for block in ids:
            index = places.get(block)
            if index is None:
                self._recording.unattributed.append(f"{event.name} of block {block} for {known.name}, which its table does not have")
                continue
            table[block] = index
            if run and index != first + len(run):
                emit(event(request=known.name, group=group, first_index=first, blocks=tuple(run)))
                run = []
            if not run:
                first = index
            run.append(block)
        if run:
            emit(event(request=known.name, group=group, first_index=first, blocks=tuple(run)))

    # ---- the pool ----------------------------------------------------------------------------------------------------

    def _around_get_new_blocks(self, original: Any) -> Any:
        def get_new_blocks(num_blocks: int) -> Any:
            if not num_blocks:
                return original(num_blocks)
            self.cache.begin_handing_out()
            try:
                blocks = original(num_blocks)
            finally:
                self.cache.end_handing_out()
            ids = [block.block_id for block in blocks]
            if self._request_id is None:
                self._recording.unattributed.append(f"blocks {ids} were taken for nobody")
            else:
                self._fresh += ids
            return blocks

        return get_new_blocks

    def _around_touch(self, original: Any) -> Any:
        def touch(blocks: Iterable[Any]) -> None:
            original(blocks)
            ids = [block.block_id for block in blocks if not block.is_null]
            if self._request_id is not None:
                self._touched += ids
            elif ids:
                self.holders.hold(CONNECTOR, "pin", ids)

        return touch

    def _around_touch_per_group(self, original: Any) -> Any:
        """The tables get the blocks right after the call: all groups' hits, each from the beginning of its table."""

        def touch(blocks: Sequence[Sequence[Any]]) -> None:
            original(blocks)
            known = self._recording.requests.by_id.get(self.admitted or "")
            for group, of_group in enumerate(blocks):
                places = {block.block_id: index for index, block in enumerate(of_group) if not block.is_null}
                if places and known is None:
                    self.holders.hold(CONNECTOR, "pin", list(places))
                elif known is not None:
                    self._place(known, group, list(places), places, Touch)

        return touch

    def _around_free_blocks(self, original: Any) -> Any:
        def free_blocks(ordered_blocks: Iterable[Any], *args: Any, **kwargs: Any) -> None:
            blocks = list(ordered_blocks)
            original(blocks, *args, **kwargs)
            owned = [block for block in blocks if not block.is_null]
            if owned:
                self._freed([block.block_id for block in owned], {block.block_id for block in owned if block.ref_cnt == 0})

        return free_blocks

    def _freed(self, ids: list[int], freed: set[int]) -> None:
        """References were given up; `freed` are the blocks with none left."""
        recording = self._recording
        if self._request_id is not None:
            self._released(recording.requests.by_id[self._request_id], self._group, ids, freed)
        elif self.fence.is_draining:
            self.fence.drained(ids, freed)
        else:
            holder = COPIES if self.fence.is_freeing_copies else self.holders.any_but_copies(ids)
            if holder is None or not self.holders.drop(holder, ids, freed):
                recording.unattributed.append(f"blocks {ids} were freed, which nobody held")

    def _released(self, known: KnownRequest, group: int, ids: list[int], freed: set[int]) -> None:
        table = known.tables[group]
        indices = [table.pop(block, -1) for block in ids]
        if -1 in indices:
            self._recording.unattributed.append(f"{known.name} released blocks {ids} of group {group}, where it held others")
            return
        self._recording.emit(
            Release(
                request=known.name,
                group=group,
                indices=tuple(indices),
                blocks=tuple(ids),
                cause=self._recording.cause or "window",
                freed=tuple(ids) if len(freed) == len(ids) else tuple([block for block in ids if block in freed]),
            )
        )
        if known.is_finished:
            self._recording.requests.forget_if_gone(known)


def _places(blocks: Sequence[Any], first: int) -> dict[int, int]:
    """The index of each block from an index on."""
    return {block.block_id: index for index, block in enumerate(blocks[first:], first) if not block.is_null}


def _index_of(blocks: Sequence[Any], block: Any) -> int:
    return next(index for index, held in enumerate(blocks) if held is block)
