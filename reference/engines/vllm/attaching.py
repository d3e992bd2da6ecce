"""Records a vLLM that somebody else drives in this process, such as a test: whatever the sink raises reaches the driver.

`live.py` records servers, which must not notice.
"""

from __future__ import annotations

from typing import Any

from settled.reference.engines.protocol import Sink
from settled.reference.engines.vllm.observed_transfers import ObservedTransfers
from settled.reference.engines.vllm.recording import SchedulerRecorder
from settled.reference.engines.vllm.recording_live import Patches
from settled.reference.engines.vllm.releases import installed_release
from settled.reference.engines.vllm.startup import max_concurrent_batches

_CORES_DEEP_MAX = 3  # a client lies between an LLMEngine and its core; a mock would have one in each without end
_ASYNCHRONOUS_CLIENT = "AsyncMPClient"  # of AsyncLLM, in every release: it has no other, whatever is set


class Attached:
    """A recording of a scheduler. `end` and `detach` may be called in any state of it."""

    def __init__(self, scheduler: Any, vllm_config: Any, sink: Sink, *, max_in_flight_steps: int) -> None:
        self._scheduler = scheduler
        self._patches = Patches()
        try:
            self._recorder = SchedulerRecorder(
                scheduler,
                vllm_config,
                sink,
                engine=installed_release().name,
                max_in_flight_steps=max_in_flight_steps,
                patches=self._patches,
            )
            if scheduler.connector is not None:
                ObservedTransfers(scheduler, self._recorder, self._patches)
        except BaseException:  # what a sink raises too
            self.detach()
            raise

    @property
    def unexplained(self) -> str:
        """What the recorder cannot explain of what was done with the pool, if anything: then what it recorded is worth nothing."""
        return next(iter(self._recorder.unattributed), "")

    def end(self) -> None:
        """Nothing more comes."""
        self._recorder.end(self._is_idle())

    def detach(self) -> None:
        """The scheduler is as it was."""
        self._patches.undo()

    def _is_idle(self) -> bool:
        """Whether the engine itself has nothing left to do."""
        state = self._recorder.state()
        return not (self._scheduler.requests or getattr(self._scheduler, "deferred_frees", None) or state.unprocessed or state.jobs)


def attach(engine: Any, sink: Sink, *, vllm_config: Any = None, max_in_flight_steps: int | None = None) -> Attached:
    """`engine`: an LLM, LLMEngine, EngineCore or Scheduler. The depth is that of the engine core, or what the configuration declares.

    Raises TypeError for anything else, ValueError if it serves somebody, or for a depth below 1.
    """
    if max_in_flight_steps is not None and max_in_flight_steps < 1:
        raise ValueError(f"max_in_flight_steps={max_in_flight_steps}: expected at least 1")
    found = engine_core_of(engine)
    scheduler, config = scheduler_and_config(found, vllm_config)
    if not scheduler.requests:  # else the recorder refuses it
        if getattr(found, "batch_queue", None):
            _process_what_is_left(found)
        if getattr(found, "batch_queue", None) or getattr(scheduler, "deferred_frees", None):
            raise ValueError(
                "steps of finished requests are still in flight: expected to be attached before the first request, or when idle"
            )
    depth = max_in_flight_steps or getattr(found, "batch_queue_size", None) or max_concurrent_batches(config, installed_release())
    return Attached(scheduler, config, sink, max_in_flight_steps=depth)


def _process_what_is_left(core: Any) -> None:
    """An asynchronous engine core may stop with a step of finished requests unprocessed, since nobody waits for it. By the core's own loop,
    that is what comes next."""
    for _ in range(1 + core.batch_queue_size):  # a turn may add a step, which tells the workers who finished
        if core.batch_queue:
            _, was_executed = core.step_fn()
            core.post_step(was_executed)


def scheduler_and_config(engine: Any, vllm_config: Any = None) -> tuple[Any, Any]:
    """The scheduler of what may be attached to, and its VllmConfig. Raises TypeError."""
    found = engine_core_of(engine)
    scheduler = getattr(found, "scheduler", found)
    config = vllm_config or getattr(found, "vllm_config", None)
    if not all(hasattr(scheduler, name) for name in ("kv_cache_manager", "update_from_output", "requests")):
        raise TypeError(f"cannot attach to a {type(engine).__name__}: expected an LLM, LLMEngine, EngineCore or Scheduler of vLLM")
    if config is None:
        raise TypeError(f"a {type(engine).__name__} without vllm_config: pass the one that it was made with, vllm_config=...")
    return scheduler, config


def engine_core_of(engine: Any) -> Any:
    """What lies within a front end; anything else as it is. Raises TypeError where it runs in another process."""
    found = getattr(engine, "llm_engine", engine)
    for _ in range(_CORES_DEEP_MAX):
        found = getattr(found, "engine_core", found)
    if found is not engine and not hasattr(found, "scheduler"):
        where = f"the engine core of this {type(engine).__name__}"
        if any(each.__name__ == _ASYNCHRONOUS_CLIENT for each in type(found).__mro__):
            raise TypeError(
                f"{where} always runs in another process, where a test cannot see it: expected an LLM or LLMEngine; "
                "or record it with SETTLED_TRACE=FILE"
            )
        raise TypeError(
            f"{where} runs in another process, where a test cannot see it: set VLLM_ENABLE_V1_MULTIPROCESSING=0 before it is made"
        )
    return found
