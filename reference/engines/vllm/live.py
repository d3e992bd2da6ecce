"""Records the engine cores of a running server. Loaded only where recording is asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from settled.model.events import Event
from settled.reference.engines.trace_files import TraceFiles
from settled.reference.engines.trace_writer import TraceWriter
from settled.reference.engines.vllm.live_settings import LiveSettings
from settled.reference.engines.vllm.observed_transfers import ObservedTransfers
from settled.reference.engines.vllm.recording import SchedulerRecorder
from settled.reference.engines.vllm.recording_guard import Guard, GuardedPatches

_RECORDER = "_settled_recorder"  # an attribute of an engine core; and of the hook, so that it is installed once
_log = logging.getLogger("vllm.settled")  # vLLM's own logger hands on what is told below it

Encoder = Callable[[Event], bytes]


def install(settings: LiveSettings, encode: Encoder) -> None:
    """Has every engine core of this process recorded, from its first request to its shutdown. May be called again: nothing changes.

    vLLM loads plugins as late as in the constructor of the engine core, and the scheduler may be of a user's class: so the hook is the
    method that every request passes on its way in.
    """
    from vllm.v1.engine.core import EngineCore

    if hasattr(EngineCore.add_request, _RECORDER):
        return
    add_request, shutdown = EngineCore.add_request, EngineCore.shutdown

    @wraps(add_request)
    def recorded_add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _RECORDER not in vars(self):
            setattr(self, _RECORDER, _attach(self, settings, encode))
        return add_request(self, *args, **kwargs)

    @wraps(shutdown)
    def recorded_shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = vars(self).get(_RECORDER)
        if recorder is not None:
            setattr(self, _RECORDER, None)
            recorder.close()
        return shutdown(self, *args, **kwargs)

    setattr(recorded_add_request, _RECORDER, True)
    EngineCore.add_request, EngineCore.shutdown = recorded_add_request, recorded_shutdown


def _attach(core: Any, settings: LiveSettings, encode: Encoder) -> EngineCoreRecorder | None:
    try:
        return EngineCoreRecorder(core, settings, encode)
    except Exception as error:
        tell_failure(error)
        return None


def tell_failure(error: Exception) -> None:
    """Says once that a recording cannot go on, though the server does."""
    _log.error("settled: recording ends, the server goes on: %s: %s", type(error).__name__, error, exc_info=error)


def path_of(path: Path, vllm_config: Any) -> Path:
    """`trace.ndjson` becomes `trace.core3.ndjson` for the engine core of data-parallel rank 3."""
    parallel = vllm_config.parallel_config
    # Ranks that share nothing each call themselves 0; the index still tells them apart, in releases that have it.
    rank = getattr(parallel, "data_parallel_index", parallel.data_parallel_rank)
    return path.with_name(f"{path.stem}.core{rank}{path.suffix}")


class RecordingError(RuntimeError):
    """The recorder cannot explain what the scheduler did: what it would write from here on is worth nothing."""


class EngineCoreRecorder:
    """Records one engine core's scheduler in files of its own. Everything that it does in the engine's thread is guarded."""

    def __init__(self, core: Any, settings: LiveSettings, encode: Encoder) -> None:
        self._core = core
        self._guard = Guard(self._fail)
        self._patches = GuardedPatches(self._guard)
        files = TraceFiles(path_of(settings.path, core.vllm_config), file_bytes=settings.file_bytes, files_max=settings.files_max)
        self._writer = TraceWriter(files, encode, tell_failure, buffer_records=settings.buffer_records)
        # For a process that ends without a shutdown. It keeps the writer alive, and not the engine.
        self._at_exit = Finalize(None, self._writer.close, exitpriority=10)
        try:
            self._recorder = self._attach(core)
        except Exception:
            self._stop()
            raise
        _log.info("settled: recording to %s", files.current)

    def _attach(self, core: Any) -> SchedulerRecorder:
        from vllm.version import __version__

        recorder = SchedulerRecorder(
            core.scheduler,
            core.vllm_config,
            self._writer.write,
            engine=f"vllm {__version__}",
            max_in_flight_steps=core.batch_queue_size,
            patches=self._patches,
        )
        if core.scheduler.connector is not None:
            ObservedTransfers(core.scheduler, recorder, self._patches)
        self._patches.wrap(core.scheduler, "schedule", self._around_schedule)
        return recorder

    def close(self) -> None:
        """Ends the trace and waits until it is written. It has an `end` only if nothing is missing before it."""
        try:
            if not (self._guard.has_failed or self._guard.is_cut):
                self._recorder.end(self._is_idle())
        except Exception as error:
            self._guard.fail(error)
        self._stop()
        self._writer.close()

    def _is_idle(self) -> bool:
        """Whether the engine itself believes that nothing is left to do."""
        scheduler, state = self._core.scheduler, self._recorder.state()
        is_busy = scheduler.requests or self._core.batch_queue or getattr(scheduler, "deferred_frees", None)
        return not (is_busy or state.jobs)

    def _around_schedule(self, original: Any) -> Any:
        def schedule(*args: Any, **kwargs: Any) -> Any:
            self._between_steps()
            return original(*args, **kwargs)

        return schedule

    def _between_steps(self) -> None:
        if self._recorder.unattributed:
            raise RecordingError(self._recorder.unattributed[0])
        if self._writer.needs_opening:
            self._writer.open_anew(self._recorder.config, self._recorder.state())
        elif self._writer.is_over:
            self._stop()

    def _fail(self, error: Exception) -> None:
        tell_failure(error)
        self._stop()

    def _stop(self) -> None:
        """The engine is as it was; what is buffered is still written."""
        self._patches.undo()
        self._writer.finish()
