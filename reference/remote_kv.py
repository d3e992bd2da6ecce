"""The scheduler's side of a KV connector: loads that requests wait for, loads within a step, stores, and what comes of failures.

An asynchronous load holds its blocks while the request waits (`WAITING_FOR_REMOTE_KVS`); no step runs for it. A synchronous load
runs within the step that first computes after it. A load that fails leaves the computed count at the first token that is not there,
if the request can compute on from it with the blocks that it has. It cannot where a block that it would need was never allocated,
for a load brings nothing that no query after it reads: then the request starts over without blocks, and all is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from settled.model.events import After, ComputedCause
from settled.model.specs import ChunkedLocalAttentionSpec, FullAttentionSpec, SlidingWindowSpec
from settled.reference.kv_cache_manager import SETTLED, free_basis_tokens
from settled.reference.prefix_cache import CacheHit
from settled.reference.request import Request, RequestStatus, RequestStep
from settled.reference.transfers import Completion, Transfer, TransferBlocks, TransferError, Transfers

if TYPE_CHECKING:
    from settled.reference.scheduler import Scheduler

LOADABLE_KINDS = (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec)  # what is skipped is a prefix: no state, no gap


class Prefix(NamedTuple):
    """What a request need not compute: a hit in the cache, and the tokens after it that a load brings."""

    hit: CacheHit
    num_external_tokens: int = 0
    is_async: bool = False


class RemoteKV:
    """Transfers of one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.config = scheduler.config
        self.connector = scheduler.connector
        self.kv_cache_manager = scheduler.kv_cache_manager
        self.transfers = Transfers(self.kv_cache_manager.block_pool)
        self.num_failed_loads = 0
        self.can_load = self.config.kv_consumer and all(isinstance(spec, LOADABLE_KINDS) for spec in self.config.groups)
        self.can_store = not self.kv_cache_manager.holds_states  # a step in flight may write a state that is settled
        self.block_sizes = tuple([spec.block_size for spec in self.config.groups])

    # ---- loads -------------------------------------------------------------------------------------------------------

    def get_computed_blocks(self, request: Request) -> Prefix | None:
        """The prefix that a request finds in the cache, and what the connector has after it; None if that is not known yet.

        The connector is asked about whole blocks: more than the rest of a hit that ends within one takes its place, so that the load
        does not meet the copy. Raises TransferError for more than there is: a synchronous load leaves one token to compute.
        """
        hit = self.kv_cache_manager.get_computed_blocks(request)
        if self.connector is None or not self.can_load:
            return Prefix(hit)
        tail = hit.num_tokens % self.kv_cache_manager.hit_alignment
        num_tokens, is_async = self.connector.get_num_new_matched_tokens(request, hit.num_tokens - tail)
        if num_tokens is None:
            return None
        left = request.num_tokens - hit.num_tokens + tail - (not is_async)
        if not 0 <= num_tokens <= left:
            raise TransferError(f"request {request.request_id!r}: {num_tokens} tokens offered, expected 0 to {left}")
        if num_tokens <= tail:
            return Prefix(hit)
        return Prefix(self.kv_cache_manager.without_tails(request, hit), num_tokens, is_async)

    def start_load(
        self,
        request: Request,
        hit: CacheHit,
        num_external_tokens: int,
        *,
        handles: int | None = None,
        is_gated: bool = True,
        has_running: bool = False,
    ) -> bool:
        """Gives the request its blocks and starts an asynchronous load; False if the pool has too few. `handles`: if not one a worker."""
        assert self.connector is not None
        start_token = hit.num_tokens
        new_blocks = self.kv_cache_manager.allocate_slots(
            request,
            0,
            hit=hit,
            num_external_tokens=num_external_tokens,
            delay_cache_blocks=True,
            full_sequence_must_fit=is_gated,
            keep_watermark=has_running,
        )
        if new_blocks is None:
            return False
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        request.num_computed_tokens = start_token + num_external_tokens
        if self.kv_cache_manager.recorder is not None:
            self.kv_cache_manager.recorder.hit(request.request_id, start_token, num_external_tokens)
        self._start(request, start_token, num_external_tokens, handles or self.connector.num_workers, step=None)
        return True

    def start_step_load(self, entry: RequestStep, handles: int) -> None:
        """The load that runs within the entry's step, before it reads."""
        self._start(entry.request, entry.start - entry.external_tokens, entry.external_tokens, handles, step=entry.step)
        entry.load = entry.request.pending_load

    def _start(self, request: Request, start_token: int, num_tokens: int, handles: int, *, step: int | None) -> None:
        where = self._blocks_of_tokens(request, start_token, start_token + num_tokens)
        after = self._after_steps() if self.config.transfers_wait and step is None else ()
        if not where:  # everything that it would bring is out of the window of the next query
            if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
                self._loaded(request)
            return
        load = self.transfers.start(request, where, is_load=True, handles=handles, start_token=start_token, step=step, after=after)
        request.pending_load = load.job
        self.kv_cache_manager.preparation.keep_bytes(where.ids)
        if self.connector is not None:
            self.connector.update_state_after_alloc(request, load)

    def _after_steps(self) -> tuple[After, ...]:
        """The last unprocessed step, and with it all before: steps are ordered among themselves."""
        scheduler = self.scheduler
        if scheduler.num_steps_processed == scheduler.num_steps_scheduled:
            return ()
        return (After(step=scheduler.next_step - 1),)

    def _blocks_of_tokens(self, request: Request, start: int, end: int) -> TransferBlocks:
        indices, blocks = [], []
        for manager in self.kv_cache_manager.managers:
            table = manager.req_to_blocks.get(request.request_id, [])
            first, last = start // manager.block_size, -(-end // manager.block_size)
            owned = [index for index in range(first, min(last, len(table))) if not table[index].is_null]
            indices.append(tuple(owned))
            blocks.append(tuple([table[index] for index in owned]))
        return TransferBlocks(tuple(indices), tuple(blocks))

    # ---- completions -------------------------------------------------------------------------------------------------

    def update_from_workers(self, completions: Sequence[Completion]) -> None:
        """Takes in what workers report. Raises TransferError at the first that does not fit; those before it count."""
        for completion in completions:
            transfer = self.transfers.handle_over(completion)
            if transfer is not None:
                self._over(transfer)

    def step_is_over(self, entries: Sequence[RequestStep]) -> None:
        """Loads within a step are over with it, whether the workers mention them or not."""
        for entry in entries:
            load = self.transfers.under_way.get(entry.load) if entry.load is not None else None
            if load is not None:
                for handle in sorted(set(range(load.handles)) - load.over)[: load.handles - load.num_over]:
                    self.update_from_workers((Completion(load.job, handle if load.handles > 1 else None),))

    def _over(self, transfer: Transfer) -> None:
        request = transfer.request
        for free in self.scheduler.fence.transfer_over(transfer.job):
            self.kv_cache_manager.free_deferred(free.request_id, free.tables)
        if request.pending_load != transfer.job:  # a store, or a load for which nobody waits any more
            if transfer.step is not None and transfer.has_failed:
                self._drop_stale_output(request)
            return
        request.pending_load = None
        if transfer.has_failed:
            self.num_failed_loads += 1
            self._recompute(request, transfer.first_invalid_token(self.block_sizes))
        elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
            self._loaded(request)

    def _loaded(self, request: Request) -> None:
        """Everything is there. If that is the whole prompt, its last token is computed again: something must be sampled from it."""
        self.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)
        if request.num_computed_tokens == request.num_tokens:
            self._set_computed(request, request.num_tokens - 1, "last_token")

    def _recompute(self, request: Request, first_invalid_token: int) -> None:
        """Takes the count back to what is valid, or to 0 (vLLM: kv_load_failure_policy "recompute")."""
        can_go_on = self.kv_cache_manager.can_go_back_to(request.request_id, first_invalid_token)
        num_valid_tokens = first_invalid_token if can_go_on else 0
        if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
            self._set_computed(request, num_valid_tokens, "load_failed")
            if num_valid_tokens > 0:
                self.kv_cache_manager.cache_blocks(request, num_valid_tokens)
                self.kv_cache_manager.zero_from(request.request_id, num_valid_tokens)
            else:
                self.scheduler.give_up_load(request)
            return
        # The load ran within a step: what that step and later ones computed from it is worth nothing.
        request.mark_stale()
        request.drop_stale_output = True
        request.start_over()
        self._set_computed(request, num_valid_tokens, "load_failed", stale=True)
        if num_valid_tokens > 0:
            self.kv_cache_manager.zero_from(request.request_id, num_valid_tokens)
        else:
            self.scheduler.preempt_after_failed_load(request)

    def _drop_stale_output(self, request: Request) -> None:
        """A load within a step has failed after a preemption: what is to be delivered was computed from it."""
        if request.num_stale_output_tokens and not request.drop_stale_output and not request.is_finished:
            request.drop_stale_output = True
            self._set_computed(request, 0, "load_failed", stale=True)

    def _set_computed(self, request: Request, num_tokens: int, cause: ComputedCause, *, stale: bool = False) -> None:
        request.num_computed_tokens = num_tokens
        if self.kv_cache_manager.recorder is not None:
            self.kv_cache_manager.recorder.computed(request.request_id, num_tokens, cause, stale=stale)

    # ---- stores ------------------------------------------------------------------------------------------------------

    def store_settled(self, entries: Sequence[RequestStep]) -> None:
        """Stores of running requests: full blocks of settled tokens, which nothing writes any more. They are pinned: a prune or a
        preemption does not wait for them.
        """
        assert self.connector is not None
        if not self.can_store:
            return
        for entry in entries:
            request = entry.request
            settled = min(free_basis_tokens(SETTLED, *request.counters), request.num_tokens)
            if request.pending_load is not None or settled <= request.num_stored_tokens:
                continue
            if request.last_step_sequence == 0:
                continue  # this step may compute what its first one hits
            end = min(self.connector.get_num_tokens_to_store(request, settled), settled)
            end -= end % self.kv_cache_manager.hit_alignment
            if end > request.num_stored_tokens:
                self.start_store(request, request.num_stored_tokens, end)

    def start_store(self, request: Request, start: int, end: int) -> None:
        """Stores the blocks of the tokens from `start` to `end`, as far as they are still there; `end` is settled."""
        request.num_stored_tokens = max(request.num_stored_tokens, end)
        where = self._blocks_of_tokens(request, start, end)
        if where and self.connector is not None:
            handles = self.connector.num_workers
            after = self._after_promises(request)
            store = self.transfers.start(request, where, is_load=False, handles=handles, pins=True, after=after)
            self.connector.start_store(store)

    def _after_promises(self, request: Request) -> tuple[After, ...]:
        """The step that a store waits for on the device, for what the request has hit.

        A block that it hit may be a promise: a step of another request, scheduled no later than the first one of this, still writes it.
        """
        if request.last_step_sequence == 0:
            return self._after_steps()
        if request.first_step_sequence <= self.scheduler.num_steps_processed:
            return ()
        return (After(step=request.unprocessed[-1].step),)

    def show_finished(self, request: Request) -> int | None:
        """Shows the connector the table of a finished request; the job that its blocks wait for, if there is one."""
        assert self.connector is not None
        if request.pending_load is not None:
            return None  # a load still writes into the table: there is nothing to show, and nothing that a prune may free
        self.kv_cache_manager.remove_skipped_blocks(request, "connector_finish")
        block_ids = self.kv_cache_manager.get_block_ids_for_computed_tokens(request)
        if not self.connector.request_finished(request.request_id, block_ids):
            return None
        where = self._blocks_of_tokens(request, 0, request.num_computed_tokens)
        if not where:
            return None
        # Steps in flight still write there, its own ones last.
        after = (After(step=request.unprocessed[-1].step),) if request.unprocessed else self._after_promises(request)
        store = self.transfers.start(request, where, is_load=False, handles=self.connector.num_workers, after=after)
        self.connector.start_store(store)
        return store.job
