"""The reference engine behind the protocol, under a discipline of one's choice: a hunt that must find something can be tried on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from settled.model.disciplines import Discipline
from settled.reference.admission import blocks_for_one_request
from settled.reference.config import ConfigError, EngineConfig
from settled.reference.decided_connector import DecidedConnector, Part
from settled.reference.decided_connector import Ending as PartEnding
from settled.reference.decided_connector import Offer as NextOffer
from settled.reference.engine import Engine as Reference
from settled.reference.engine import Outcome as Sampled
from settled.reference.engines.protocol import Anomaly, Chooser, Ending, NewRequest, Offer, Sink, StepRequest, TransferPart
from settled.reference.engines.setup import MOCK_CONNECTOR, EngineSetup, SetupError
from settled.reference.request import Request, RequestStep
from settled.reference.transfers import Transfer

_NUM_BLOCKS_UNKNOWN = 2  # the least that a configuration can say
_IGNORED = {"speculative_method"}  # drafts are what the caller makes of them, however they are named
_ENDINGS = {Ending.GOOD: PartEnding.GOOD, Ending.FIRST_FAILED: PartEnding.FIRST_FAILED, Ending.ALL_FAILED: PartEnding.ALL_FAILED}


class ReferenceFactory:
    """Builds reference engines of one discipline."""

    def __init__(self, discipline: Discipline) -> None:
        self.discipline = discipline
        self.name = f"reference {discipline.name}"

    def create(self, setup: EngineSetup, sink: Sink | None, *, inspects: bool = True) -> ReferenceEngine:
        return ReferenceEngine(setup, self._config(setup, setup.num_blocks), sink)

    def min_num_blocks(self, setup: EngineSetup) -> int:
        return 1 + blocks_for_one_request(self._config(setup, _NUM_BLOCKS_UNKNOWN))

    def _config(self, setup: EngineSetup, num_blocks: int) -> EngineConfig:
        if set(dict(setup.extra)) - _IGNORED:
            raise SetupError("the reference has no settings of its own")
        if setup.connector is not None and (setup.connector.name != MOCK_CONNECTOR or setup.connector.extra):
            raise SetupError("the reference has the mock connector only")
        try:
            return EngineConfig(
                groups=setup.groups,
                num_blocks=num_blocks,
                max_in_flight_steps=setup.pipeline_parallel_size + setup.async_scheduling,
                max_num_batched_tokens=setup.max_num_batched_tokens,
                max_num_seqs=setup.max_num_seqs,
                max_model_len=setup.max_model_len,
                num_speculative_tokens=setup.num_speculative_tokens,
                num_lookahead_tokens=setup.num_speculative_tokens,
                enable_prefix_caching=setup.enable_prefix_caching,
                hash_block_size=setup.hash_block_size,
                kv_consumer=setup.kv_consumer,
                connector=setup.connector is not None,
                discipline=self.discipline,
            )
        except ConfigError as error:
            raise SetupError(str(error)) from error


class MockConnector(DecidedConnector):
    """Knows what it has for each request. An offer is good for one load."""

    def __init__(self) -> None:
        super().__init__()
        self.offers: dict[str, Offer] = {}
        self.stored: set[str] = set()

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        offer = self.offers.get(request.request_id)
        if offer is not None and offer.tokens > num_computed_tokens:
            self.offer = NextOffer(offer.tokens - num_computed_tokens, offer.is_async, offer.workers, _ENDINGS[offer.ending])
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, load: Transfer) -> None:
        super().update_state_after_alloc(request, load)
        self.offers.pop(request.request_id, None)

    def request_finished(self, request_id: str, block_ids: tuple[tuple[int, ...], ...]) -> bool:
        self.stores_finished = request_id in self.stored
        return super().request_finished(request_id, block_ids)


class ReferenceEngine:
    """One engine. A report that comes twice is refused by the reference itself, so none can be repeated."""

    name = "settled.reference"

    def __init__(self, setup: EngineSetup, config: EngineConfig, sink: Sink | None) -> None:
        self.setup = setup
        self.max_in_flight_steps = config.max_in_flight_steps
        self._connector = MockConnector() if config.connector else None
        try:
            self._engine = Reference(config, sink, connector=self._connector)
        except ConfigError as error:
            raise SetupError(str(error)) from error

    # ---- what hosts and models do ------------------------------------------------------------------------------------

    def add_request(self, request: NewRequest) -> None:
        if len(request.prompt_token_ids) >= self.setup.max_model_len:
            raise SetupError(f"a prompt of {len(request.prompt_token_ids)} tokens; expected fewer than {self.setup.max_model_len}")
        if self._connector is not None:
            if request.offer is not None:
                self._connector.offers[request.request_id] = request.offer
            if request.is_stored:
                self._connector.stored.add(request.request_id)
        self._engine.add_request(request.request_id, request.prompt_token_ids, max_tokens=request.max_tokens)

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    def unfinished_requests(self) -> Sequence[str]:
        return tuple(self._engine.scheduler.requests)

    @property
    def num_unprocessed_steps(self) -> int:
        return len(self._engine.unprocessed)

    def schedule(self) -> bool:
        return bool(self._engine.scheduler.requests) and self._engine.schedule() is not None

    def process(self, choose: Chooser) -> None:
        def sampled(entry: RequestStep) -> Sampled:
            request = StepRequest(entry.request.request_id, entry.tokens, entry.drafts, entry.samples)
            return Sampled(*choose(request))

        self._engine.process(sampled)

    def transfers(self) -> Sequence[TransferPart]:
        return tuple([_part(part) for part in self._reportable()])

    def report(self, part: TransferPart, ending: Ending) -> None:
        assert self._connector is not None
        reported = next(each for each in self._reportable() if _part(each) == part)
        self._engine.scheduler.update_from_workers([self._connector.report(reported, _ENDINGS[ending])])

    @property
    def is_idle(self) -> bool:
        return self._engine.is_idle

    def end(self) -> None:
        self._engine.end_recording()

    # ---- inspection --------------------------------------------------------------------------------------------------

    def inspect(self) -> Sequence[Anomaly]:
        return (*self._wrong_counters(), *self._leaks())

    def hindrance(self) -> str:
        return ""

    def _wrong_counters(self) -> Iterator[Anomaly]:
        scheduler = self._engine.scheduler
        for request in (*scheduler.requests.values(), *scheduler.draining.values()):
            in_steps = sum(entry.tokens for entry in request.unprocessed)
            if in_steps != request.num_in_flight_tokens:
                sentence = f"request {request.request_id}: {request.num_in_flight_tokens} tokens in flight, {in_steps} in unprocessed steps"
                yield Anomaly("counters_symmetric", "in flight against unprocessed steps", sentence)

    def _leaks(self) -> Iterator[Anomaly]:
        pool = self._engine.scheduler.kv_cache_manager.block_pool
        free, owned = pool.get_num_free_blocks(), len(pool.blocks) - 1
        if self._engine.is_idle and free < owned:
            yield Anomaly("single_owner", "blocks in use at idle", f"{owned - free} of {owned} blocks are in use at idle")

    def _reportable(self) -> list[Part]:
        return [] if self._connector is None else self._connector.reportable()


def _part(part: Part) -> TransferPart:
    transfer = part.transfer
    return TransferPart(transfer.job, transfer.request.request_id, transfer.is_load, part.worker, is_reported=False)
