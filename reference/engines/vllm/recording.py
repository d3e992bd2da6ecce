"""Records an unmodified, live scheduler of vLLM: instance attributes are wrapped, and each thing that happens becomes an event.

No class, no module and no decision of the scheduler is changed; `detach` puts every attribute back. It costs time only for requests to
which something happens. Source of what is told: vLLM's Scheduler, KVCacheManager, SingleTypeKVCacheManager and BlockPool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from settled.model.events import After, Config, End, Event, Job, State
from settled.reference.engines.protocol import Sink
from settled.reference.engines.vllm.recording_blocks import BlockRecorder
from settled.reference.engines.vllm.recording_configuration import config_of
from settled.reference.engines.vllm.recording_live import KnownRequests, Patches, Recording
from settled.reference.engines.vllm.recording_releases import features_of
from settled.reference.engines.vllm.recording_requests import RequestRecorder
from settled.reference.engines.vllm.recording_state import state_of
from settled.reference.engines.vllm.recording_steps import StepRecorder
from settled.reference.engines.vllm.recording_transfers import TransferRecorder


class SchedulerRecorder:
    """Attaches to a scheduler that serves nobody; the config goes to the sink at once, and the state, if there is something in the prefix
    cache.

    `engine` is the name that the config gives it, `max_in_flight_steps` the deepest pipeline that is legal for it. `config` is the config
    event, which a rotated trace needs again. `patches` makes the wrappers, where they need more around them (a live server's are guarded).
    Raises ValueError for a scheduler that has requests already.
    """

    def __init__(
        self, scheduler: Any, vllm_config: Any, sink: Sink, *, engine: str, max_in_flight_steps: int, patches: Patches | None = None
    ) -> None:
        if scheduler.requests:
            count = len(scheduler.requests)
            raise ValueError(f"the scheduler has {count} requests already: expected to be attached before the first, or when none is left")
        features = features_of(scheduler)
        self.config: Config = config_of(scheduler, vllm_config, features, engine=engine, max_in_flight_steps=max_in_flight_steps)
        sink(self.config)
        self._recording = Recording(scheduler, sink, KnownRequests(len(self.config.groups)), sink, patches or Patches())
        self._blocks = BlockRecorder(self._recording, touches_per_group=features.touches_per_group)
        self._requests = RequestRecorder(self._recording, self._blocks, features)
        self._steps = StepRecorder(self._recording, self._blocks, self._requests, counts_stale=features.counts_stale)
        self._transfers = TransferRecorder(self._recording)
        if self._blocks.cache.cached:
            sink(self.state())

    # ---- what a connector tells --------------------------------------------------------------------------------------

    def load_started(
        self,
        request_id: str,
        blocks_per_group: Sequence[Sequence[int]],
        *,
        handles: int = 1,
        step: int | None = None,
        after: tuple[After, ...] | None = None,
    ) -> Job:
        """From here on a connector may write into the blocks. `handles`: so many workers will report it.

        `step`: the step within which a synchronous load runs (`next_step`, when it is told while that is scheduled).
        """
        return self._transfers.started(request_id, blocks_per_group, is_load=True, handles=handles, step=step, after=after)

    def store_started(
        self,
        request_id: str,
        blocks_per_group: Sequence[Sequence[int]],
        *,
        handles: int = 1,
        step: int | None = None,
        after: tuple[After, ...] | None = None,
    ) -> Job:
        """From here on a connector may read the blocks."""
        return self._transfers.started(request_id, blocks_per_group, is_load=False, handles=handles, step=step, after=after)

    def transfer_done(
        self,
        job: Job,
        *,
        ok: bool,
        handle: int | str | None = None,
        failed: Sequence[Sequence[int]] | None = None,
        cancelled: bool | None = None,
    ) -> bool:
        """A handle of a load or store is over; False if that was told before, and nothing is recorded. `failed`: blocks per group."""
        return self._transfers.done(job, ok=ok, handle=handle, failed=failed, cancelled=cancelled)

    # ---- the trace ---------------------------------------------------------------------------------------------------

    @property
    def next_step(self) -> int:
        """The number that the step gets which is scheduled next, or is being scheduled."""
        return self._recording.last_step + 1

    def step_of(self, scheduler_output: Any) -> int | None:
        """The number of an unprocessed step."""
        step = self._steps.unprocessed.get(id(scheduler_output))
        return None if step is None else step.step

    def emit(self, event: Event) -> None:
        """An event of somebody else, in its place among the others."""
        self._recording.emit(event)

    def state(self) -> State:
        """Everything that is alive, between two calls of the scheduler: with the config, the beginning of another trace."""
        return state_of(self._recording, self._blocks, self._steps, self._transfers)

    def end(self, idle: bool) -> None:
        """The trace is complete; `idle`: the engine has nothing left to do."""
        self._recording.emit(End(idle=idle))

    def detach(self) -> None:
        """Puts back every attribute that was replaced. Nothing is recorded from here on."""
        self._recording.patches.undo()

    # ---- trust -------------------------------------------------------------------------------------------------------

    @property
    def unattributed(self) -> tuple[str, ...]:
        """A sentence for each operation of the pool that the recorder could not explain. A trace with one is worth nothing."""
        return tuple(self._recording.unattributed)

    def references(self) -> Counter[int]:
        """The references to each block that the events make: of tables, fenced tables and holders."""
        count: Counter[int] = Counter()
        for known in self._recording.requests.by_id.values():
            for table in known.tables:
                count.update(table.keys())
        for fenced in self._blocks.fence.fenced:
            if fenced.holder is None:
                count.update([block for _, _, block in fenced.entries])
        for held in self._blocks.holders.held.values():
            count.update(held)
        return count
