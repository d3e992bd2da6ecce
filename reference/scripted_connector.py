"""Transfers of a script: a connector that does what the script says, and the script's blocks told in those of the engine."""

from __future__ import annotations

from collections.abc import Sequence

from settled.model.events import Allocate, Job, Load, PerGroup, Store, Touch, TransferDone
from settled.reference.connector import LastTableConnector
from settled.reference.request import Request, StepOutput
from settled.reference.transfers import Completion, Transfer


class ScriptedConnector(LastTableConnector):
    """Offers nothing by itself: the script starts loads. Stores start, and workers report, when the script says so."""

    def __init__(self) -> None:
        super().__init__()
        self.stores: dict[str, tuple[int, int]] = {}  # of running requests with the next step: end in tokens, handles
        self.stores_at_finish: dict[str, int] = {}  # handles
        self.started: list[Transfer] = []
        self.reports: list[Completion] = []  # that come with the next output

    def get_num_tokens_to_store(self, request: Request, num_settled_tokens: int) -> int:
        end, self.num_workers = self.stores.pop(request.request_id, (0, 1))
        return end

    def request_finished(self, request_id: str, block_ids: PerGroup) -> bool:
        super().request_finished(request_id, block_ids)
        self.num_workers = self.stores_at_finish.get(request_id, 1)
        return request_id in self.stores_at_finish

    def update_state_after_alloc(self, request: Request, load: Transfer) -> None:
        self.started.append(load)

    def start_store(self, store: Transfer) -> None:
        self.started.append(store)

    def get_finished(self, step: StepOutput | None) -> Sequence[Completion]:
        reports, self.reports = self.reports, []
        return reports


class ScriptedTransfers:
    """Which of the engine's transfers stands for which job of the script. Blocks correspond by their place in the table."""

    def __init__(self, connector: ScriptedConnector, num_groups: int) -> None:
        self.connector = connector
        self.num_groups = num_groups
        self._places: list[dict[tuple[str, int], int]] = [{} for _ in range(num_groups)]  # (request, script's block) → table index
        self._jobs: dict[Job, tuple[Load | Store, Transfer]] = {}
        self._awaited: list[Load | Store] = []  # told by the script, not yet started by the engine

    def placed(self, event: Allocate | Touch) -> None:
        """The script puts blocks into a table."""
        for index, block in enumerate(event.blocks, start=event.first_index):
            self._places[event.group][event.request, block] = index

    def awaits(self, event: Load | Store) -> None:
        """The engine starts this transfer by itself, with a step or at a finish."""
        self._awaited.append(event)

    def pair(self) -> None:
        """Pairs what the engine has started with what the script tells, in order, by request and sort."""
        for transfer in list(self.connector.started):
            for event in self._awaited:
                if event.request == transfer.request.request_id and isinstance(event, Load) == transfer.is_load:
                    self._jobs[event.job] = (event, transfer)
                    self._awaited.remove(event)
                    self.connector.started.remove(transfer)
                    break

    def span(self, event: Store, block_sizes: Sequence[int]) -> tuple[int, int] | None:
        """From which token to which the blocks of a store reach; None if the script has not placed them."""
        places = [self._indices(event, group) for group in range(self.num_groups)]
        ends = [(min(indices) * size, (max(indices) + 1) * size) for indices, size in zip(places, block_sizes, strict=True) if indices]
        return (min(start for start, _ in ends), max(end for _, end in ends)) if ends else None

    def _indices(self, event: Load | Store, group: int) -> list[int]:
        places = self._places[group]
        return [places[event.request, block] for block in event.blocks[group] if (event.request, block) in places]

    def completion(self, done: TransferDone) -> Completion | None:
        """The report of the engine's transfer; None if it has none: everything that it would move was out of every window."""
        self.pair()
        known = self._jobs.get(done.job)
        if known is None:
            return None
        event, transfer = known
        handle = done.handle if isinstance(done.handle, int) else None
        if handle is None and transfer.handles > 1:
            handle = transfer.num_over
        failed = None if done.failed is None else self._failed(event, transfer, done.failed)
        return Completion(transfer.job, handle, failed, cancelled=bool(done.cancelled))

    def _failed(self, event: Load | Store, transfer: Transfer, failed: PerGroup) -> PerGroup:
        told = []
        for group, blocks in enumerate(failed):
            at = dict(zip(transfer.where.indices[group], transfer.where.ids[group], strict=True))
            indices = [self._index(event, transfer, group, block) for block in blocks]
            told.append(tuple([at[index] for index in indices if index in at]))
        return tuple(told)

    def _index(self, event: Load | Store, transfer: Transfer, group: int, block: int) -> int | None:
        """By the script's own table; without one, counted from the last block of the transfer, since what is left out are the first."""
        place = self._places[group].get((event.request, block))
        if place is not None or block not in event.blocks[group]:
            return place
        from_end = len(event.blocks[group]) - event.blocks[group].index(block)
        indices = transfer.where.indices[group]
        return indices[-from_end] if from_end <= len(indices) else None
