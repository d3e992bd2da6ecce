"""The workers' side of connectors: what comes back beside sampled tokens. Their outputs are aggregated by vLLM's own KVOutputAggregator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from settled.reference.engines.protocol import Ending, NewRequest, TransferPart
from settled.reference.engines.vllm.mock_connector import MockBook, Transfer
from settled.reference.engines.vllm.offloading import offloading_workers_of
from settled.reference.engines.vllm.releases import Release
from settled.reference.engines.vllm.steps import Step, outputs_module
from settled.reference.engines.vllm.transfer_workers import Workers


@dataclass(frozen=True, slots=True)
class _Report:
    transfer: Transfer
    worker: int
    ending: Ending
    is_again: bool


class MockWorkers(Workers):
    """What the workers of the mock connector tell, as the workload says: they report in the order in which they are told to."""

    def __init__(self, book: MockBook, release: Release) -> None:
        self.book = book
        self._fails_requests = len(book.block_sizes) > 1
        self._knows_failed_blocks = release.has("failed_blocks")
        self._knows_failed_requests = release.has("failed_requests")
        self._pending: list[_Report] = []
        self._aggregators: dict[int, Any] = {}  # by number of workers, as in deployments of that many

    @property
    def has_news(self) -> bool:  # type: ignore[override]
        """True as well when nothing but a finished request is left, which releases before 0.24 wait with until the next request comes."""
        return bool(self._pending)

    @property
    def is_idle(self) -> bool:  # type: ignore[override]
        return self.book.is_idle and not self._pending

    def expect(self, request: NewRequest) -> None:
        self.book.expect(request)

    def step_starts(self, number: int) -> None:
        self.book.step = number
        self.book.is_scheduling = True

    def dispatch(self, step: Step) -> None:
        self.book.is_scheduling = False

    def parts(self) -> Sequence[TransferPart]:
        return self.book.parts()

    def report(self, part: TransferPart, ending: Ending) -> None:
        transfer = self.book.transfer(part)
        if not self._can_end(transfer, ending):
            ending = Ending.GOOD
        self._pending.append(_Report(transfer, part.worker, ending, part.is_reported))
        (transfer.repeated if part.is_reported else transfer.reported).append(part.worker)

    def _can_end(self, transfer: Transfer, ending: Ending) -> bool:
        """Stores do not fail, nor does what touches no block. With several groups, only requests can (from 0.33 on), whose load is not
        within a step: before there is no way to tell of it, and a worker tries again until it has succeeded. So it is with one (to 0.11.0).
        """
        if ending is Ending.GOOD:
            return True
        can_be_told = self._knows_failed_requests and not transfer.synchronous if self._fails_requests else self._knows_failed_blocks
        return transfer.is_load and any(transfer.blocks) and can_be_told

    def attach(self, step: Step, output: Any) -> None:
        due = self._within(step)
        if self._pending:
            due = [report for report in self._pending if report.transfer.not_before <= step.number] + due
            self._pending = [report for report in self._pending if report.transfer.not_before > step.number]
        output.kv_connector_output = self._aggregate(due)
        for report in due:
            self._tell(report)

    def taken_in(self, step: Step) -> None:
        self.book.forget_finished()

    def _within(self, step: Step) -> list[_Report]:
        """Loads that run within a step are over with it, and are told of only if they fail."""
        reports = []
        for transfer in self.book.transfers:
            if transfer.synchronous and transfer.not_before == step.number:
                ending = transfer.ending if self._can_end(transfer, transfer.ending) else Ending.GOOD
                transfer.reported.append(0)
                reports.append(_Report(transfer, 0, ending, False))
        return reports

    def _tell(self, report: _Report) -> None:
        """The host learns of it, just before it acts on it."""
        if report.is_again:
            return
        transfer = report.transfer
        transfer.told.append(report.worker)
        if self.book.recorder is not None:
            good = report.ending is Ending.GOOD
            failed = None if good else transfer.failed_blocks(report.ending)
            self.book.recorder.transfer_done(transfer.job, ok=good, handle=report.worker, failed=failed)

    # ---- outputs -----------------------------------------------------------------------------------------------------

    def _aggregate(self, reports: Sequence[_Report]) -> Any:
        """One KVConnectorOutput of all workers."""
        merged = outputs_module().KVConnectorOutput()
        if not reports:
            return merged
        for workers in sorted({report.transfer.workers for report in reports}):
            told = self._aggregate_of(workers, [report for report in reports if report.transfer.workers == workers])
            merged.finished_sending = (merged.finished_sending or set()) | (told.finished_sending or set()) or None
            merged.finished_recving = (merged.finished_recving or set()) | (told.finished_recving or set()) or None
            if self._knows_failed_blocks:
                merged.invalid_block_ids |= told.invalid_block_ids
            if self._knows_failed_requests:
                merged.failed_recving |= told.failed_recving
        return merged

    def _aggregate_of(self, workers: int, reports: Sequence[_Report]) -> Any:
        outputs = [SimpleNamespace(kv_connector_output=self._output(reports, worker)) for worker in range(workers)]
        if workers not in self._aggregators:
            from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator

            self._aggregators[workers] = KVOutputAggregator(workers)
        return self._aggregators[workers].aggregate(outputs).kv_connector_output

    def _output(self, reports: Sequence[_Report], worker: int) -> Any:
        output = outputs_module().KVConnectorOutput(finished_sending=set(), finished_recving=set())
        for report in reports:
            if report.worker != worker:
                continue
            transfer = report.transfer
            if not transfer.synchronous:
                (output.finished_recving if transfer.is_load else output.finished_sending).add(transfer.request_id)
            failed = {block for blocks in transfer.failed_blocks(report.ending) for block in blocks}
            if failed and self._fails_requests:
                output.failed_recving.add(transfer.request_id)
            elif failed:
                output.invalid_block_ids |= failed
        return output


def workers_of(scheduler: Any, release: Release, recorder: Any) -> Workers:
    """The workers' side of the connector that a scheduler was built with. `recorder`, if any, hears of its transfers."""
    connector = scheduler.connector
    if connector is None:
        return Workers()
    book = getattr(connector, "book", None)
    if isinstance(book, MockBook):
        book.recorder = recorder
        return MockWorkers(book, release)
    return offloading_workers_of(scheduler, release, recorder)
