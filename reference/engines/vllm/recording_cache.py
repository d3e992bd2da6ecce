"""What enters and leaves vLLM's prefix cache."""

from __future__ import annotations

from typing import Any

from settled.model.events import Cache, CacheEntry, Evict
from settled.reference.engines.vllm.recording_live import Recording


class CacheRecorder:
    """Follows the hashes of blocks. `cached` has the entries of each block, for a trace that begins in mid-run. What was cached before the
    recorder came has an entry without tokens: nothing tells which those were."""

    def __init__(self, recording: Recording, pool: Any) -> None:
        self.cached: dict[int, list[CacheEntry]] = {
            block.block_id: [CacheEntry(block=block.block_id)] for block in pool.blocks if block.block_hash is not None
        }
        self._recording = recording
        self._pool = pool
        self._evicted: list[CacheEntry] | None = None  # while the pool hands out blocks: what it evicts for that
        self._moved: list[tuple[int, int]] = []  # source and target of copies whose entries moved, until the copies are told
        patches = recording.patches
        patches.wrap(pool, "_maybe_evict_cached_block", self._around_evict)
        patches.wrap(pool, "cache_full_blocks", self._around_cache_full_blocks)
        patches.wrap_if_present(pool, "cache_partial_block", self._around_cache_partial_block)
        patches.wrap_if_present(pool, "move_block_hashes", self._around_move)
        patches.wrap(pool, "reset_prefix_cache", self._around_reset)

    def begin_handing_out(self) -> None:
        """Evictions from here on belong to one event."""
        self._evicted = []

    def end_handing_out(self) -> None:
        """Tells what was evicted since."""
        evicted, self._evicted = self._evicted, None
        if evicted:
            self._recording.emit(Evict(entries=tuple(evicted)))

    def _evict(self, block_id: int) -> None:
        """All entries of a block go."""
        self.cached.pop(block_id, None)
        entry = CacheEntry(block=block_id)
        if self._evicted is not None:
            self._evicted.append(entry)
        else:
            self._recording.emit(Evict(entries=(entry,)))

    def _cache(self, entries: list[CacheEntry]) -> None:
        for entry in entries:
            self.cached.setdefault(entry.block, []).append(entry)
        self._recording.emit(Cache(entries=tuple(entries)))

    def _around_evict(self, original: Any) -> Any:
        def wrapped(block: Any) -> bool:
            was_evicted: bool = original(block)
            if was_evicted:
                self._evict(block.block_id)
            return was_evicted

        return wrapped

    def _around_cache_full_blocks(self, original: Any) -> Any:
        def cache_full_blocks(
            request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int, block_size: int, kv_cache_group_id: int, **kwargs: Any
        ) -> None:
            if num_cached_blocks >= num_full_blocks:
                return
            new = range(num_cached_blocks, num_full_blocks)
            before = [blocks[index].block_hash for index in new]
            original(request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id, **kwargs)
            entries = []
            for index, former in zip(new, before, strict=True):
                block = blocks[index]
                if block.block_hash is None or block.is_null or block.block_hash == former:
                    continue
                if former is not None:
                    self._evict(block.block_id)  # it stood for a part of the block until now
                entries.append(self._entry(request, block.block_id, block.block_hash, kv_cache_group_id, index * block_size, block_size))
            if entries:
                self._cache(entries)

        return cache_full_blocks

    def _around_cache_partial_block(self, original: Any) -> Any:
        def cache_partial_block(
            request: Any, block: Any, num_tokens: int, kv_cache_group_id: int, block_size: int, *args: Any, **kwargs: Any
        ) -> Any:
            had = self.cached.get(block.block_id)
            found = original(request, block, num_tokens, kv_cache_group_id, block_size, *args, **kwargs)
            if found is not None:
                if had and kwargs.get("replace_existing_hashes"):
                    self._evict(block.block_id)
                name = _text(found)
                if all(entry.hash != name for entry in self.cached.get(block.block_id, ())):
                    start = (num_tokens - 1) // block_size * block_size
                    self._cache([self._entry(request, block.block_id, found, kv_cache_group_id, start, num_tokens - start)])
            return found

        return cache_partial_block

    def _around_move(self, original: Any) -> Any:
        def move_block_hashes(src_block: Any, dst_block: Any) -> None:
            original(src_block, dst_block)
            self._moved.append((src_block.block_id, dst_block.block_id))

        return move_block_hashes

    def tell_moved(self) -> None:
        """Tells which entries moved to a copy. What is copied is what they stand for: who asks at the copy must still find them there."""
        for source, target in self._moved:
            moved = self.cached.get(source)
            if moved:
                self._evict(source)
                self._cache([_of_block(entry, target) for entry in moved])
        self._moved.clear()

    def _around_reset(self, original: Any) -> Any:
        def reset_prefix_cache(*args: Any, **kwargs: Any) -> bool:
            was_reset: bool = original(*args, **kwargs)
            if was_reset and self.cached:
                self._recording.emit(Evict(entries=tuple([CacheEntry(block=block) for block in self.cached])))
                self.cached.clear()
            return was_reset

        return reset_prefix_cache

    def _entry(self, request: Any, block_id: int, block_hash: Any, group: int, start: int, num_tokens: int) -> CacheEntry:
        known = self._recording.requests.by_id[request.request_id]
        return CacheEntry(block=block_id, group=group, hash=_text(block_hash), request=known.name, start=start, end=start + num_tokens)


def _of_block(entry: CacheEntry, block_id: int) -> CacheEntry:
    return CacheEntry(block=block_id, group=entry.group, hash=entry.hash, request=entry.request, start=entry.start, end=entry.end)


def _text(block_hash: Any) -> str:
    """A hash as text; releases keep bytes, or a tuple of a hash and more."""
    return block_hash.hex() if isinstance(block_hash, bytes) else str(block_hash)
