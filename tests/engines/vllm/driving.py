"""Set-ups and runs that tests of the adapter share."""

from __future__ import annotations

import random
from collections.abc import Sequence

from settled.model.events import Event
from settled.model.monitor.monitor import Monitor
from settled.model.monitor.report import Verdict
from settled.model.properties import Property
from settled.model.specs import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from settled.reference.engines.operations import Abort, Add, Process, Report, Schedule, play
from settled.reference.engines.protocol import Ending, Offer, Outcome, StepRequest
from settled.reference.engines.setup import EngineSetup
from settled.reference.engines.vllm.adapter import VllmEngine, VllmFactory

FACTORY = VllmFactory()


def at_least(release: str) -> bool:
    """Whether the installed release is that one or a later one."""
    return _numbers(FACTORY.release.version) >= _numbers(release)


def _numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".")[:3]]


def full(block_size: int = 16) -> KVCacheSpec:
    return FullAttentionSpec(block_size=block_size)


def window(tokens: int, block_size: int = 16) -> KVCacheSpec:
    return SlidingWindowSpec(block_size=block_size, window=tokens)


def setup_of(groups: Sequence[KVCacheSpec] = (full(), window(32)), **changes: object) -> EngineSetup:
    sizes: dict[str, object] = {"num_blocks": 96, "max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 256}
    return EngineSetup(groups=tuple(groups), **(sizes | changes))  # type: ignore[arg-type]


def accept_all(row: StepRequest) -> Outcome:
    return Outcome(row.drafts)


def reject_all(row: StepRequest) -> Outcome:
    return Outcome(0)


def serve(engine: VllmEngine, *, steps: int = 600) -> bool:
    """Serves what is there, all transfers ending well; whether the engine then is idle."""
    for _ in range(steps):
        if engine.is_idle:
            return True
        for part in engine.transfers():
            if not part.is_reported:
                engine.report(part, Ending.GOOD)
        if engine.num_unprocessed_steps < engine.max_in_flight_steps and engine.schedule():
            continue
        if engine.num_unprocessed_steps:
            engine.process(accept_all)
    return engine.is_idle


def random_run(setup: EngineSetup, seed: int, *, operations: int = 80) -> tuple[VllmEngine, list[Event]]:
    """A run of random operations, served to its end and recorded."""
    rng = random.Random(seed)
    events: list[Event] = []
    engine = FACTORY.create(setup, events.append)
    for number in range(operations):
        draw = rng.random()
        if draw < 0.15:
            offer = None
            if setup.connector is not None and rng.random() < 0.5:
                offer = Offer(rng.choice([32, 64, 200]), is_async=rng.random() < 0.6, workers=rng.choice([1, 2]))
            shared = rng.choice([0, 150])
            play(engine, Add(f"r{number}", rng.randint(1, 150), rng.randint(1, 30), 0, shared, offer, rng.random() < 0.3))
        elif draw < 0.18 and engine.unfinished_requests():
            play(engine, Abort(rng.choice(engine.unfinished_requests())))
        elif draw < 0.6:
            play(engine, Schedule())
        elif draw < 0.9:
            play(engine, Process(rejected=(rng.randint(0, 3),), stops=(0,) if rng.random() < 0.1 else ()))
        else:
            play(engine, Report(rng.randint(0, 3), again=rng.random() < 0.3))
    assert serve(engine)
    engine.end()
    return engine, events


def violated(events: Sequence[Event]) -> set[Property]:
    """The properties that the monitor finds violated, under the contract that the setup asks for."""
    monitor = Monitor(events[0])  # type: ignore[arg-type]
    for line, event in enumerate(events[1:], start=2):
        monitor.feed(line, event)
    return {result.property for result in monitor.finish().properties if result.verdict is Verdict.VIOLATED}
