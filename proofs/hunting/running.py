"""One workload on one engine, under the monitor, served until the engine is idle."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from settled.model.events import Event, Finish
from settled.model.events import Schedule as Scheduled
from settled.model.monitor import Verdict
from settled.model.properties import Contract
from settled.model.trace_io import TraceError
from settled.proofs.found_properties import ADMISSION_PROGRESS
from settled.proofs.hunting.coverage import HuntCoverage
from settled.proofs.hunting.faults import CPU_SECONDS_MAX, HangError, fault_of, impossible, watchdog
from settled.proofs.watching import Found, Key, Watched, Watcher
from settled.reference.engines.operations import Add, Operation, Process, Report, Schedule, Workload, play
from settled.reference.engines.protocol import Engine, EngineFactory
from settled.reference.engines.setup import SetupError

INSPECTED = "inspected: "  # before the cause of what was found in the live objects
QUIET_ROUNDS_MAX = 8  # rounds without any progress after which an engine is stuck
_ROUNDS_MIN = 64
_FRUITLESS_ROUNDS_MIN = 64
_SCHEDULE, _PROCESS, _REPORT = Schedule(), Process(), Report()  # all drafts are accepted, all transfers end well


@dataclass(slots=True)
class Run:
    """What a workload came to. `steps` counts scheduled ones; `is_undecided`: the monitor could not judge all of it.

    `done` are the operations that could be done, the serving of what was left and one that raised included: played alone, they do the
    same. `events` is empty unless they were asked for. `verdicts` are by property, under `contract`.
    """

    found: dict[Key, Found] = field(default_factory=dict)
    done: list[Operation] = field(default_factory=list)
    steps: int = 0
    num_events: int = 0
    is_undecided: bool = False
    events: list[Event] = field(default_factory=list)
    contract: str = ""
    verdicts: dict[str, Verdict] = field(default_factory=dict)


def run_workload(
    factory: EngineFactory,
    workload: Workload,
    *,
    contract: Contract | None = None,
    until: Key | None = None,
    inspects: bool = True,
    keep_events: bool = False,
    coverage: HuntCoverage | None = None,
    cpu_seconds_max: float = CPU_SECONDS_MAX,
    steps_max: int | None = None,
) -> Run:
    """Plays the operations, then serves what is left until the engine is idle; stops early once `until` is found, or when more than
    `steps_max` steps have been scheduled.

    `contract` None: by the configuration, `settled` with a KV consumer and `stream_order` without. `inspects`: the live objects are
    compared after every operation. Raises SetupError if the engine does not accept the setup, HarnessError for a fault that is not the
    engine's.
    """
    result = Run()
    listeners: list[Watcher] = [] if coverage is None else [coverage.listen]
    if keep_events:
        listeners.append(result.events.append)
    if coverage is not None:
        coverage.begin(workload)
    watched = Watched(contract, listeners)
    served: _Served | None = None
    has_ended = False
    try:
        with watchdog(cpu_seconds_max):
            engine = factory.create(workload.setup, watched, inspects=inspects)
            served = _Served(engine, workload, watched, result, coverage, inspects, until, steps_max)
            served.play()
            served.serve()
            served.engine.end()
    except _EnoughError:
        pass
    except TraceError as error:
        watched.note(*impossible(error))
    except (Exception, HangError) as error:
        if served is None and isinstance(error, SetupError):
            raise
        watched.note(*fault_of(error))
    else:
        has_ended = True
    if served is not None and not has_ended:
        served.end_anyhow()
    result.found, result.num_events = watched.found, watched.num_events
    result.contract, result.verdicts, is_undecided = watched.judgement()
    result.is_undecided = has_ended and is_undecided
    return result


def is_inspected(key: Key) -> bool:
    """Whether it was found in the live objects, not in the trace."""
    return key.cause.startswith(INSPECTED)


class _EnoughError(Exception):
    """What was looked for is found, or does not come soon enough."""


class _Furthest:
    """A listener that sees whether a request is scheduled further than ever before, or ends."""

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}
        self._moved = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, Scheduled):
            for each in event.requests:
                if each.start + each.tokens > self._ends.get(each.request, -1):
                    self._ends[each.request] = each.start + each.tokens
                    self._moved = True
        elif isinstance(event, Finish):
            self._moved = True

    def take(self) -> bool:
        """Whether it was so since this was last asked."""
        moved, self._moved = self._moved, False
        return moved


@dataclass(slots=True)
class _Served:
    """A workload that an engine is serving."""

    engine: Engine
    workload: Workload
    watched: Watched
    result: Run
    coverage: HuntCoverage | None
    inspects: bool
    until: Key | None
    steps_max: int | None
    furthest: _Furthest = field(default_factory=_Furthest)

    def play(self) -> None:
        """Does the operations that can be done."""
        watched, operations = self.watched, self.workload.operations
        for watched.place, operation in enumerate(operations):
            self._do(operation)
        watched.place = len(operations)

    def serve(self) -> None:
        """Fills the pipeline, processes and reports until nothing is left.

        The oldest request moves once its steps in flight are processed, a round each, so there is a bound, and one on rounds in which no
        request gets further than ever before.
        """
        quiet = fruitless = 0
        self.watched.listeners.append(self.furthest)
        tokens = sum(each.prompt_tokens + each.max_tokens for each in self.workload.operations if isinstance(each, Add))
        wait = 1 + self.engine.max_in_flight_steps
        fruitless_max = _FRUITLESS_ROUNDS_MIN + wait * tokens // self._tokens_a_round()
        for _ in range(_ROUNDS_MIN + wait * tokens):
            if self.engine.is_idle:
                self._look()
                return
            quiet = 0 if self._round() else quiet + 1
            fruitless = 0 if self.furthest.take() else fruitless + 1
            if quiet == QUIET_ROUNDS_MAX:
                self._stuck("nothing moves")
                return
            if fruitless == fruitless_max:
                break
        self._stuck("no end")

    def end_anyhow(self) -> None:
        """What the engine changed in its process is put back, whatever state it is in."""
        with suppress(Exception):
            self.engine.end()

    def _tokens_a_round(self) -> int:
        """What the oldest request computes again in a round at least, after a preemption: whole blocks, or all that a step takes."""
        setup = self.workload.setup
        return max(1, min(setup.max_num_batched_tokens, *[spec.block_size for spec in setup.groups]))

    def _round(self) -> bool:
        """Whether anything moved."""
        moved = False
        for _ in [part for part in self.engine.transfers() if not part.is_reported]:
            moved |= self._do(_REPORT)
        for _ in range(self.engine.max_in_flight_steps):
            if not self._do(_SCHEDULE):
                break
            moved = True
        return self._do(_PROCESS) or moved

    def _do(self, operation: Operation) -> bool:
        is_schedule = type(operation) is Schedule
        if is_schedule and self.engine.num_unprocessed_steps >= self.engine.max_in_flight_steps:
            return False
        # Noted before: it may raise. A step without tokens counts as not dispatched, but an engine may have executed it.
        self.result.done.append(operation)
        if not play(self.engine, operation):
            if not is_schedule:
                self.result.done.pop()
            return False
        self.result.steps += is_schedule
        if self.coverage is not None:
            self.coverage.after(self.engine, operation)
        if self.inspects or self.until is not None or self.steps_max is not None:
            self._look()
        return True

    def _look(self) -> None:
        if self.inspects:
            for anomaly in self.engine.inspect():
                self.watched.note(Key(anomaly.property, f"{INSPECTED}{anomaly.cause}", ""), anomaly.sentence)
        if self.until is not None and self.until in self.watched.found:
            raise _EnoughError
        if self.steps_max is not None and self.result.steps > self.steps_max:
            raise _EnoughError

    def _stuck(self, how: str) -> None:
        left = self.engine.unfinished_requests()
        kept = self.engine.hindrance() or "requests are left"
        cause = f"{how}, {kept}" if left else f"{how}, no request is left"
        who = f"requests {', '.join(left)} are not finished" if left else "the engine is not idle"
        self.watched.note(Key(ADMISSION_PROGRESS, cause, ""), f"{how}: {who}, and every transfer has been reported")
        self._look()
