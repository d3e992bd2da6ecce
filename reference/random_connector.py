"""A connector in memory whose every answer is drawn from a seed: what it has, how it loads, when workers are through, what fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from settled.model.events import PerGroup
from settled.reference.request import Request, StepOutput
from settled.reference.transfers import Completion, Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorChances:
    """`match`: of having tokens to load, per request and attempt; `asynchronous`, `whole`: of such a load; `unknown`: of not knowing yet.
    `store`: per request and step; `store_finished`: per finished request. `complete`: per worker, transfer and time it is asked. `fail`,
    `cancel`: of each completed part.
    """

    match: float
    asynchronous: float
    whole: float
    unknown: float
    store: float
    store_finished: float
    complete: float
    fail: float
    cancel: float


class RandomConnector:
    """Offers any number of tokens that fits, for they were computed elsewhere. The same seed and the same calls give the same run."""

    def __init__(self, rng: Random, chances: ConnectorChances, *, num_workers: int = 1) -> None:
        self.rng = rng
        self.chances = chances
        self.num_workers = num_workers
        self.under_way: dict[tuple[int, int], Transfer] = {}  # by job and worker

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        if self._happens(self.chances.unknown):
            return None, False
        if not self._happens(self.chances.match):
            return 0, False
        is_async = self._happens(self.chances.asynchronous)
        most = request.num_tokens - num_computed_tokens - (not is_async)
        return most if self._happens(self.chances.whole) else self.rng.randint(0, most), is_async

    def update_state_after_alloc(self, request: Request, load: Transfer) -> None:
        self._start(load)

    def get_num_tokens_to_store(self, request: Request, num_settled_tokens: int) -> int:
        return num_settled_tokens if self._happens(self.chances.store) else 0

    def request_finished(self, request_id: str, block_ids: PerGroup) -> bool:
        return self._happens(self.chances.store_finished)

    def start_store(self, store: Transfer) -> None:
        self._start(store)

    def get_finished(self, step: StepOutput | None) -> Sequence[Completion]:
        """Workers are through in any order. A load within a step is over with its output; then it may turn out to have failed."""
        if not self.under_way:
            return ()
        done = []
        for (job, worker), transfer in list(self.under_way.items()):
            if self._is_done(transfer, step):
                del self.under_way[job, worker]
                done.append(self._completion(transfer, worker))
        self.rng.shuffle(done)
        return done

    def get_all_finished(self) -> Sequence[Completion]:
        """Everything is through now, loads within a step apart."""
        return [
            self._completion(self.under_way.pop((job, worker)), worker)
            for (job, worker), transfer in list(self.under_way.items())
            if transfer.step is None
        ]

    def _is_done(self, transfer: Transfer, step: StepOutput | None) -> bool:
        if transfer.step is not None:
            return step is not None and transfer.step == step.step
        return self._happens(self.chances.complete)

    def _start(self, transfer: Transfer) -> None:
        for worker in range(transfer.handles):
            self.under_way[transfer.job, worker] = transfer

    def _completion(self, transfer: Transfer, worker: int) -> Completion:
        handle = worker if transfer.handles > 1 else None
        if self._happens(self.chances.cancel):
            return Completion(transfer.job, handle, cancelled=True)
        if not self._happens(self.chances.fail):
            return Completion(transfer.job, handle)
        return Completion(transfer.job, handle, tuple([self._some(ids) for ids in transfer.where.ids]))

    def _some(self, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple([block_id for block_id in ids if self.rng.random() < 0.3])

    def _happens(self, chance: float) -> bool:
        return self.rng.random() < chance
