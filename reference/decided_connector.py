"""A connector that does what it is told next: what it offers, what it stores, and when a worker is through, well or badly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from settled.model.events import PerGroup
from settled.reference.connector import LastTableConnector
from settled.reference.request import Request, StepOutput
from settled.reference.transfers import Completion, Transfer


class Ending(IntEnum):
    """How a worker's part of a transfer ends."""

    GOOD = 0
    FIRST_FAILED = 1  # of each group the first block
    ALL_FAILED = 2
    CANCELLED = 3


@dataclass(frozen=True, slots=True)
class Offer:
    """For the next request that asks: tokens at most, and how they come. `ending` is that of a load within a step."""

    tokens: int
    is_async: bool = True
    workers: int = 1
    ending: Ending = Ending.GOOD


class Part(NamedTuple):
    """A worker's part of a transfer that is under way."""

    transfer: Transfer
    worker: int

    def completion(self, ending: Ending) -> Completion:
        """The worker's report. What a store could not read is not valid elsewhere, which is no failure here."""
        job, handle = self.transfer.job, self.worker if self.transfer.handles > 1 else None
        if ending is Ending.CANCELLED:
            return Completion(job, handle, cancelled=True)
        if ending is Ending.GOOD or not self.transfer.is_load:
            return Completion(job, handle)
        count = 1 if ending is Ending.FIRST_FAILED else None
        return Completion(job, handle, tuple([ids[:count] for ids in self.transfer.where.ids]))


class DecidedConnector(LastTableConnector):
    """Offers and stores nothing unless told to; each thing it is told counts once."""

    def __init__(self) -> None:
        super().__init__()
        self.offer: Offer | None = None
        self.step_endings: dict[int, Ending] = {}  # of loads within a step, by job
        self.stores_next = False  # what the next running request has computed
        self.stores_finished = False  # all of the next finished request
        self.parts: list[Part] = []  # under way, oldest first; loads within a step too
        self._asked: Offer | None = None

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        offer, self.offer = self.offer, None
        self._asked = offer
        if offer is None:
            return 0, False
        most = request.num_tokens - num_computed_tokens - (not offer.is_async)
        self.num_workers = offer.workers
        return min(offer.tokens, most), offer.is_async

    def update_state_after_alloc(self, request: Request, load: Transfer) -> None:
        if self._asked is not None:
            self.step_endings[load.job] = self._asked.ending
        self._start(load)

    def get_num_tokens_to_store(self, request: Request, num_settled_tokens: int) -> int:
        stores, self.stores_next = self.stores_next, False
        return num_settled_tokens if stores else 0

    def request_finished(self, request_id: str, block_ids: PerGroup) -> bool:
        super().request_finished(request_id, block_ids)
        stores, self.stores_finished = self.stores_finished, False
        return stores

    def start_store(self, store: Transfer) -> None:
        self._start(store)

    def get_finished(self, step: StepOutput | None) -> Sequence[Completion]:
        """Loads within the step; the rest reports when it is told to."""
        if step is None:
            return ()
        return [part.completion(self.step_endings.pop(part.transfer.job, Ending.GOOD)) for part in self._take(step.step)]

    def reportable(self) -> list[Part]:
        """Parts that may report at any time."""
        return [part for part in self.parts if part.transfer.step is None]

    def report(self, part: Part, ending: Ending) -> Completion:
        """The part is over."""
        self.parts.remove(part)
        return part.completion(ending)

    def _take(self, step: int) -> list[Part]:
        over = [part for part in self.parts if part.transfer.step == step]
        self.parts = [part for part in self.parts if part.transfer.step != step]
        return over

    def _start(self, transfer: Transfer) -> None:
        self.parts += [Part(transfer, worker) for worker in range(transfer.handles)]
