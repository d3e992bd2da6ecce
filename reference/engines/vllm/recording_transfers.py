"""Transfers, as connectors tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from settled.model.events import After, Job, Load, Loaded, PendingJob, PerGroup, Store, Stored
from settled.reference.engines.vllm.recording_live import Recording


@dataclass(slots=True, eq=False)
class _Transfer:
    request: str
    blocks: PerGroup
    is_load: bool
    handles: int
    over: set[int | str] = field(default_factory=set)


class TransferRecorder:
    """Numbers the jobs, and knows which are under way."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._under_way: dict[Job, _Transfer] = {}
        self._num_jobs = 0

    def started(
        self,
        request_id: str,
        blocks: Sequence[Sequence[int]],
        *,
        is_load: bool,
        handles: int,
        step: int | None,
        after: tuple[After, ...] | None,
    ) -> Job:
        """From here on a connector may touch the blocks. Raises KeyError for a request that is not there."""
        name = self._recording.requests.by_id[request_id].name
        self._num_jobs += 1
        job = self._num_jobs
        per_group = tuple(map(tuple, blocks))
        self._under_way[job] = _Transfer(name, per_group, is_load, handles)
        event = Load if is_load else Store
        self._recording.emit(event(job=job, request=name, blocks=per_group, handles=handles, step=step, after=after))
        return job

    def done(self, job: Job, *, ok: bool, handle: int | str | None, failed: Sequence[Sequence[int]] | None, cancelled: bool | None) -> bool:
        """A handle is over. False, and nothing is told, if that is known already: a report that comes twice."""
        transfer = self._under_way.get(job)
        if transfer is None or handle in transfer.over:
            return False
        if handle is not None:
            transfer.over.add(handle)
        transfer.handles -= 1
        if not transfer.handles:
            del self._under_way[job]
        event = Loaded if transfer.is_load else Stored
        per_group = None if failed is None else tuple(map(tuple, failed))
        self._recording.emit(event(job=job, ok=ok, handle=handle, failed=per_group, cancelled=cancelled))
        return True

    def pending(self) -> tuple[PendingJob, ...]:
        """The transfers under way, with the handles that are left."""
        return tuple(
            [
                PendingJob(
                    job=job,
                    request=transfer.request,
                    blocks=transfer.blocks,
                    kind="load" if transfer.is_load else "store",
                    handles=transfer.handles,
                )
                for job, transfer in self._under_way.items()
            ]
        )
