"""A KV connector whose scheduler side does what the workload says. `MockBook` decides; `MockConnector` is the class that vLLM builds.

It keeps to what connectors of vLLM's own do (NixlConnector, LMCache, ExampleConnector): a prefix of the prompt up to a block's end, or all
of it; one load a request; stores of requests that ended by themselves; nothing reported before a worker can have heard of the transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import lcm
from typing import Any

from settled.model.events import Job, PerGroup
from settled.reference.engines.protocol import Ending, NewRequest, Offer, TransferPart
from settled.reference.engines.setup import SetupError
from settled.reference.engines.vllm.releases import installed_release


@dataclass(slots=True, eq=False)
class Transfer:
    """A load or store. `blocks`: those that it touches, per group, in the order of the tokens.

    `not_before`: the first step whose output can tell of it. `synchronous`: it runs within that step. `reported` are the workers that are
    through, `told` those of them whose report the scheduler has been given.
    """

    job: Job
    request_id: str
    is_load: bool
    blocks: PerGroup
    workers: int
    not_before: int
    ending: Ending
    synchronous: bool = False
    reported: list[int] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """The scheduler knows of the last worker's report."""
        return len(self.told) == self.workers

    def failed_blocks(self, ending: Ending) -> PerGroup:
        """What a worker that ends so could not load, per group."""
        if ending is Ending.GOOD:
            return ((),) * len(self.blocks)
        return self.blocks if ending is Ending.ALL_FAILED else tuple([blocks[:1] for blocks in self.blocks])


class MockBook:
    """What the workload has told about requests, and the transfers that came of it.

    `block_sizes` are those of the groups, `alignment` that of a hit, in tokens. `recorder` hears of transfers when they start.
    """

    def __init__(self, block_sizes: Sequence[int], alignment: int, *, loads: bool, stores: bool) -> None:
        self.block_sizes = tuple(block_sizes)
        self.alignment = alignment
        self.loads = loads
        self.stores = stores
        self.recorder: Any = None
        self.transfers: list[Transfer] = []
        self.step = 0  # the last that was scheduled, or is being scheduled
        self.is_scheduling = False
        self._offers: dict[str, Offer] = {}
        self._stored: set[str] = set()
        self._local: dict[str, int] = {}  # tokens that the pool had for a request when it was asked last
        self._num_jobs = 0

    # ---- what the workload says --------------------------------------------------------------------------------------

    def expect(self, request: NewRequest) -> None:
        """Takes note of a request before the scheduler hears of it."""
        if request.offer is not None and self.loads:
            if request.offer.workers < 1:
                raise SetupError(f"request {request.request_id!r}: an offer by {request.offer.workers} workers")
            self._offers[request.request_id] = request.offer
        if request.is_stored and self.stores:
            self._stored.add(request.request_id)

    def parts(self) -> list[TransferPart]:
        """What may be reported now. A worker reports once; again only after all have, and not all of them: that much the aggregation of
        workers' outputs swallows, and one more would look to it like another transfer."""
        parts = []
        for transfer in self.transfers:
            if transfer.synchronous:
                continue
            for worker in range(transfer.workers):
                if worker not in transfer.reported:
                    parts.append(self._part(transfer, worker, is_reported=False))
                elif transfer.is_over and worker not in transfer.repeated and len(transfer.repeated) < transfer.workers - 1:
                    parts.append(self._part(transfer, worker, is_reported=True))
        return parts

    @staticmethod
    def _part(transfer: Transfer, worker: int, *, is_reported: bool) -> TransferPart:
        return TransferPart(transfer.job, transfer.request_id, transfer.is_load, worker, is_reported)

    def transfer(self, part: TransferPart) -> Transfer:
        """The transfer that a part is of. Raises SetupError for a part that may not be reported."""
        if part not in self.parts():
            raise SetupError(f"{part} cannot be reported now")
        return next(transfer for transfer in self.transfers if transfer.job == part.job)

    def forget_finished(self) -> None:
        """Drops transfers about which nothing more can be said."""
        if self.transfers:
            self.transfers = [each for each in self.transfers if not each.is_over or (each.workers > 1 and not each.synchronous)]

    @property
    def is_idle(self) -> bool:
        """Every transfer is over."""
        return all(transfer.is_over for transfer in self.transfers)

    # ---- what the scheduler asks -------------------------------------------------------------------------------------

    def matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Tokens beyond those computed that can be loaded, and whether beside the steps. Asked again until there is room for them."""
        offer = self._offers.get(request.request_id)
        if offer is None:
            return 0, False
        prompt = request.num_prompt_tokens
        # A load within a step leaves a token to compute, as ExampleConnector's and LMCache's do; NixlConnector's has all of them.
        whole = prompt if offer.is_async else prompt - 1
        available = whole if offer.tokens >= prompt else offer.tokens // self.alignment * self.alignment
        self._local[request.request_id] = num_computed_tokens
        tokens = max(0, available - num_computed_tokens)
        return tokens, offer.is_async and tokens > 0

    def allocated(self, request: Any, tables: Sequence[Sequence[int]], num_external_tokens: int) -> None:
        """Slots are there: the load starts. With no tokens to load there is nothing to do: the call comes for every request.

        A load may have no block at all: after a whole prompt that ends with a chunk, say, no token of it is needed. It is waited for all
        the same.
        """
        if num_external_tokens == 0:
            return
        offer = self._offers.pop(request.request_id)
        first = self._local[request.request_id]
        blocks = self._blocks(tables, first, first + num_external_tokens)
        workers = offer.workers if offer.is_async else 1
        step = None if offer.is_async or self.recorder is None else self.recorder.next_step
        self._num_jobs += 1  # as the recorder counts them
        job = self._num_jobs
        if self.recorder is not None:
            job = self.recorder.load_started(request.request_id, blocks, handles=workers, step=step)
        self.transfers.append(
            Transfer(job, request.request_id, True, blocks, workers, self._hears_at, offer.ending, synchronous=not offer.is_async)
        )

    def finished(self, request: Any, tables: Sequence[Sequence[int]]) -> bool:
        """Whether the request's blocks are stored first, and only then free. Not those of one that was aborted or failed."""
        from vllm.v1.request import RequestStatus

        self._offers.pop(request.request_id, None)
        if request.request_id not in self._stored:
            return False
        self._stored.discard(request.request_id)
        if request.status not in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED):
            return False
        blocks = self._blocks(tables, 0, request.num_tokens - 1)  # the last token was sampled, never computed
        if not any(blocks):
            return False
        self._num_jobs += 1
        job = self._num_jobs
        if self.recorder is not None:
            job = self.recorder.store_started(request.request_id, blocks)
        self.transfers.append(Transfer(job, request.request_id, False, blocks, 1, self._hears_at, Ending.GOOD))
        return True

    @property
    def _hears_at(self) -> int:
        """The step whose dispatch tells workers what is decided now."""
        return self.step if self.is_scheduling else self.step + 1

    def _blocks(self, tables: Sequence[Sequence[int]], start: int, end: int) -> PerGroup:
        """Per group the blocks of tokens start to end - 1, the null block left out."""
        return tuple(
            [
                tuple([block for block in table[start // size : -(-end // size)] if block])
                for table, size in zip(tables, self.block_sizes, strict=True)
            ]
        )


@cache
def _mock_connector_class() -> type:
    """The class is made when it is asked for: its base is vLLM's."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    serves_groups = installed_release().has("connector_groups")
    bases = (base.KVConnectorBase_V1, base.SupportsHMA) if serves_groups else (base.KVConnectorBase_V1,)

    class MockConnector(*bases):  # type: ignore[misc]
        """Scheduler side of the mock. The worker side is `workers.MockWorkers`; no worker ever builds this class."""

        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
            if serves_groups:
                super().__init__(vllm_config, role, kv_cache_config)
                sizes = [group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups]
            else:
                super().__init__(vllm_config, role)
                sizes = [vllm_config.cache_config.block_size]
            transfer = vllm_config.kv_transfer_config
            self.book = MockBook(sizes, lcm(*sizes), loads=transfer.is_kv_consumer, stores=transfer.is_kv_producer)

        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
            return self.book.matched_tokens(request, num_computed_tokens)

        def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
            self.book.allocated(request, blocks.get_block_ids(), num_external_tokens)

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            return base.KVConnectorMetadata()

        def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
            return self.book.finished(request, (block_ids,)), None

        def request_finished_all_groups(self, request: Any, block_ids: Sequence[list[int]]) -> tuple[bool, None]:
            return self.book.finished(request, block_ids), None

        def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
            raise SetupError("the mock has no worker side")

        def wait_for_layer_load(self, layer_name: str) -> None:
            raise SetupError("the mock has no worker side")

        def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
            raise SetupError("the mock has no worker side")

        def wait_for_save(self) -> None:
            raise SetupError("the mock has no worker side")

    return MockConnector


def __getattr__(name: str) -> type:
    """vLLM's factory finds the class here by name."""
    if name == "MockConnector":
        return _mock_connector_class()
    raise AttributeError(name)
