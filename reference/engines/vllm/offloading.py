"""The workers' side of vLLM's own offloading connectors: it reads their metadata as their workers do, and acknowledges what it names.

When a transfer ends is the workload's to say, as with the mock, within what their workers allow: OffloadingConnectorWorker starts a store
with the step after the one that names it, and waits for those that it is told to flush; SimpleCPUOffloadWorker ends transfers of a
direction in order. Neither knows of failed transfers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from settled.model.events import Job, PerGroup
from settled.reference.engines.protocol import Ending, TransferPart
from settled.reference.engines.setup import SetupError
from settled.reference.engines.vllm.releases import Release
from settled.reference.engines.vllm.steps import Step
from settled.reference.engines.vllm.transfer_workers import Workers


class _Named(NamedTuple):
    """A transfer that a step's metadata names. `key`: the connector's own number of it."""

    key: int
    request_id: str
    is_load: bool
    blocks: PerGroup
    synchronous: bool = False


@dataclass(slots=True, eq=False)
class _Running:
    named: _Named
    job: Job
    not_before: int
    """The first step whose output can tell that it is over."""
    is_reported: bool = False


class OffloadingWorkers(Workers):
    """Those of OffloadingConnector, whose metadata names jobs (from 0.23 on)."""

    def __init__(self, scheduler: Any, recorder: Any) -> None:
        self.scheduler = scheduler
        self.recorder = recorder
        self.num_workers = int(scheduler.vllm_config.parallel_config.world_size)
        self._running: list[_Running] = []
        self._num_jobs = 0

    @property
    def has_news(self) -> bool:  # type: ignore[override]
        """A worker that is asked tells what is over."""
        return any(each.is_reported for each in self._running)

    @property
    def is_idle(self) -> bool:  # type: ignore[override]
        return not self._running

    def dispatch(self, step: Step) -> None:
        metadata = step.scheduler_output.kv_connector_metadata
        for each in self._flushed(metadata, step):
            each.is_reported = True
            each.not_before = min(each.not_before, step.number)
        for named in self._named(metadata):
            self._start(named, step)
        for each in self._flushed(metadata, step):  # those of this very step
            each.is_reported = True
            each.not_before = step.number

    def _start(self, named: _Named, step: Step) -> None:
        self._num_jobs += 1
        job: Job = self._num_jobs
        if self.recorder is not None and named.request_id in self.scheduler.requests:
            within = self.recorder.next_step - 1 if named.synchronous else None  # the step has been recorded by now
            start = self.recorder.load_started if named.is_load else self.recorder.store_started
            job = start(named.request_id, named.blocks, step=within)
        self._running.append(_Running(named, job, self._ends_at(named, step), is_reported=named.synchronous))

    def parts(self) -> Sequence[TransferPart]:
        return [
            TransferPart(each.job, each.named.request_id, each.named.is_load, 0, False) for each in self._running if not each.is_reported
        ]

    def report(self, part: TransferPart, ending: Ending) -> None:
        for each in self._running:
            if each.job == part.job and not each.is_reported:
                each.is_reported = True
                return
        raise SetupError(f"{part} cannot be reported now")

    def attach(self, step: Step, output: Any) -> None:
        over = self._over(step.number)
        self._running = [each for each in self._running if each not in over]
        output.kv_connector_output = self._output([each.named for each in over])
        for each in over:
            if self.recorder is not None:
                self.recorder.transfer_done(each.job, ok=True, handle=0)

    def _over(self, number: int) -> list[_Running]:
        return [each for each in self._running if each.is_reported and each.not_before <= number]

    # ---- what differs between the connectors -------------------------------------------------------------------------

    def _named(self, metadata: Any) -> Iterable[_Named]:
        for is_load, jobs in ((True, metadata.load_jobs), (False, metadata.store_jobs)):
            for key, entry in jobs.items():
                device = entry.dst_spec if is_load else entry.src_spec
                yield _Named(key, entry.req_id, is_load, self._blocks(device), synchronous=getattr(entry, "sync", False))

    def _blocks(self, device: Any) -> PerGroup:
        groups = len(self.scheduler.kv_cache_config.kv_cache_groups)
        if len(device.group_sizes) != groups:
            raise SetupError(f"the connector moves {len(device.group_sizes)} of {groups} groups: which ones is not known")
        blocks = iter([int(block) for block in device.block_ids])
        return tuple([tuple([next(blocks) for _ in range(size)]) for size in device.group_sizes])

    def _flushed(self, metadata: Any, step: Step) -> list[_Running]:
        keys = metadata.jobs_to_flush or ()
        return [each for each in self._running if each.named.key in keys]

    def _ends_at(self, named: _Named, step: Step) -> int:
        return step.number if named.is_load else step.number + 1

    def _output(self, over: Sequence[_Named]) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
        from vllm.v1.outputs import KVConnectorOutput

        metadata = OffloadingWorkerMetadata(completed_jobs={named.key: self.num_workers for named in over}) if over else None
        received = {named.request_id for named in over if named.is_load and not named.synchronous}
        return KVConnectorOutput(finished_recving=received or None, kv_connector_worker_meta=metadata)


class SimpleOffloadWorkers(OffloadingWorkers):
    """Those of SimpleCPUOffloadConnector, whose metadata numbers an event for all loads of a step, and one for all stores."""

    def _named(self, metadata: Any) -> Iterable[_Named]:
        if metadata.load_event >= 0:
            request_ids = list(metadata.load_event_to_reqs[metadata.load_event])
            for request_id in request_ids:
                yield _Named(metadata.load_event, request_id, True, self._those_of(request_id, metadata.load_gpu_blocks))
        if metadata.store_event >= 0:
            by_request = self._by_request(metadata.store_gpu_blocks)
            if not by_request:
                yield _Named(metadata.store_event, "", False, ())
            for request_id, blocks in by_request.items():
                yield _Named(metadata.store_event, request_id, False, blocks)

    def _those_of(self, request_id: str, blocks: Iterable[int]) -> PerGroup:
        """Which of the blocks a request's table has, per group."""
        wanted = set(map(int, blocks))
        tables = self.scheduler.kv_cache_manager.get_block_ids(request_id)
        return tuple([tuple([block for block in table if block in wanted]) for table in tables])

    def _by_request(self, blocks: Iterable[int]) -> Mapping[str, PerGroup]:
        """Whose blocks a store reads: of those that several share, the first one's. What nobody has any more is held by the connector."""
        left = set(map(int, blocks))
        found: dict[str, PerGroup] = {}
        for request_id in self.scheduler.requests:
            mine = self._those_of(request_id, left)
            if any(mine):
                found[request_id] = mine
                left -= {block for group in mine for block in group}
        return found

    def _flushed(self, metadata: Any, step: Step) -> list[_Running]:
        return [each for each in self._running if each.not_before < step.number] if metadata.need_flush else []

    def _ends_at(self, named: _Named, step: Step) -> int:
        return step.number

    def _over(self, number: int) -> list[_Running]:
        """An event is over with all of its parts, and after those before it."""
        over: list[_Running] = []
        for is_load in (True, False):
            mine = [each for each in self._running if each.named.is_load == is_load]
            for key in sorted({each.named.key for each in mine}):
                parts = [each for each in mine if each.named.key == key]
                if not all(each.is_reported and each.not_before <= number for each in parts):
                    break
                over += parts
        return over

    def _output(self, over: Sequence[_Named]) -> Any:
        from vllm.v1.outputs import KVConnectorOutput
        from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

        stores = {named.key: self.num_workers for named in over if not named.is_load}
        received = {named.request_id for named in over if named.is_load}
        metadata = SimpleCPUOffloadWorkerMetadata(completed_store_events=stores) if stores else None
        return KVConnectorOutput(finished_recving=received or None, kv_connector_worker_meta=metadata)


def offloading_workers_of(scheduler: Any, release: Release, recorder: Any) -> Workers:
    """The workers' side of one of vLLM's own connectors. Raises SetupError for one that is not driven here."""
    name = type(scheduler.connector).__name__
    if name == "OffloadingConnector" and release.has("offloading_jobs"):
        return OffloadingWorkers(scheduler, recorder)
    if name == "SimpleCPUOffloadConnector" and release.has("simple_offload"):
        return SimpleOffloadWorkers(scheduler, recorder)
    raise SetupError(f"the workers' side of {name} of {release.name} is not driven here")
