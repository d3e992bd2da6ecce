"""What recording and checking add to vLLM's own step time.

Three engines serve the same requests, step by step in turn: one alone, one with a recorder, one with a recorder and the monitor. What
is compared is the processor's time in the scheduler's `schedule` and `update_from_output`, the recorder's part in them included; so neither
what else the machine does nor the driver counts. None of them is made for inspections: the wrapped gate would slow the one alone too.
Run it with a release's interpreter: `python tests/bench/engine_overhead.py`.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from settled.model.events import Config, Event
from settled.model.monitor.monitor import Monitor
from settled.model.specs import FullAttentionSpec, SlidingWindowSpec
from settled.reference.engines.operations import Add, prompt_of
from settled.reference.engines.protocol import NewRequest, Outcome, StepRequest
from settled.reference.engines.setup import EngineSetup
from settled.reference.engines.vllm.adapter import VllmFactory

BLOCK_SIZE = 16  # tokens
PROMPT = 200  # tokens


class Checking:
    """Takes events and judges them."""

    def __init__(self) -> None:
        self.monitor: Monitor | None = None
        self.events = 0
        self.violations = 0

    def __call__(self, event: Event) -> None:
        self.events += 1
        if self.monitor is None:
            assert isinstance(event, Config)
            self.monitor = Monitor(event)
        else:
            self.violations += len(self.monitor.feed(self.events, event))


def setup_of(requests: int, *, caches: bool, drafts: int) -> EngineSetup:
    return EngineSetup(
        groups=(FullAttentionSpec(block_size=BLOCK_SIZE), SlidingWindowSpec(block_size=BLOCK_SIZE, window=64)),
        num_blocks=requests * 60 + 1,
        max_num_batched_tokens=2048,
        max_num_seqs=requests,
        max_model_len=512,
        num_speculative_tokens=drafts,
        enable_prefix_caching=caches,
    )


def accept(request: StepRequest) -> Outcome:
    return Outcome(request.drafts // 2)


class Timed:
    """An engine at full load, and the seconds that its scheduler has taken."""

    def __init__(self, setup: EngineSetup, sink: Callable[[Event], None] | None) -> None:
        self.engine: Any = VllmFactory().create(setup, sink, inspects=False)
        self.seconds = 0.0
        for number in range(setup.max_num_seqs):
            add = Add(f"r{number}", PROMPT, 250, family=number % 5, shared_tokens=64)
            self.engine.add_request(NewRequest(add.request_id, prompt_of(add), add.max_tokens))
        while not all(request.num_computed_tokens >= PROMPT for request in self.engine.scheduler.requests.values()):
            self.step()
        scheduler = self.engine.scheduler
        scheduler.schedule = self._timing(scheduler.schedule)
        scheduler.update_from_output = self._timing(scheduler.update_from_output)

    def _timing(self, original: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            begin = time.process_time()
            result = original(*args, **kwargs)
            self.seconds += time.process_time() - begin
            return result

        return wrapped

    def step(self) -> None:
        while self.engine.num_unprocessed_steps < self.engine.max_in_flight_steps:
            self.engine.schedule()
        self.engine.process(accept)


def measured(setup: EngineSetup, steps: int) -> tuple[float, float, float]:
    """Seconds a step of the scheduler alone; and the parts of them that tracing adds, and tracing and checking."""
    checking = Checking()
    sinks = (None, lambda event: None, checking)
    engines = alone, traced, checked = [Timed(setup, sink) for sink in sinks]
    gc.collect()
    gc.freeze()  # as vLLM's engine core does once it has started
    for _ in range(steps):
        for timed in engines:
            timed.step()
    gc.unfreeze()
    assert all(len(timed.engine.unfinished_requests()) == setup.max_num_seqs for timed in engines)
    assert not checking.violations
    return alone.seconds / steps, traced.seconds / alone.seconds - 1, checked.seconds / alone.seconds - 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5, help="each with fresh engines; medians are printed")
    arguments = parser.parse_args()
    print(
        f"{VllmFactory().name}: {arguments.requests} running requests, full attention and a window of 64; "
        f"medians of {arguments.rounds} rounds of {arguments.steps} steps"
    )
    for caches, drafts in ((False, 0), (True, 0), (True, 2)):
        setup = setup_of(arguments.requests, caches=caches, drafts=drafts)
        rounds = [measured(setup, arguments.steps) for _ in range(arguments.rounds)]
        own, tracing, checking = [median(figures) for figures in zip(*rounds, strict=True)]
        kind = f"prefix cache {'on' if caches else 'off'}, {drafts} drafts"
        each = f"{1e3 * own:.2f} ms a step of the scheduler's own"
        print(f"  {kind}: {each}; tracing +{100 * tracing:.0f} %, tracing and checking +{100 * checking:.0f} %")


if __name__ == "__main__":
    main()
