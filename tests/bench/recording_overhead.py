"""What recording costs an engine core's loop, with and without in one run, in CPU time. Needs a vLLM release beside the project.

    python tests/bench/recording_overhead.py [requests at once, 64]

The executor is a stand-in and its steps take no time: on a device, where an engine core mostly waits, the share is far smaller.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "engines" / "vllm"))

from engine_core import make_core, request, setup_of, shut_down, step

from settled.model.trace_encoding import encode_line
from settled.reference.engines.vllm.live import install
from settled.reference.engines.vllm.live_settings import LiveSettings

ROUNDS = 5
DECODE_STEPS = 300


def seconds_a_step(core: Any, num_requests: int, name: str) -> tuple[float, float]:
    """Of the engine's thread, and of the whole process. Decoding alone: all requests run, each samples a token a step."""
    for number in range(num_requests):
        core.add_request(request(core, f"{name}-{number}", 40, max_tokens=DECODE_STEPS + 100))
    while any(served.num_output_tokens < 2 for served in core.scheduler.requests.values()):
        step(core)
    thread, process = time.thread_time(), time.process_time()
    for _ in range(DECODE_STEPS):
        step(core)
    thread, process = time.thread_time() - thread, time.process_time() - process
    core.abort_requests(list(core.scheduler.requests))
    while core.batch_queue or core.scheduler.has_requests():
        step(core)
    return thread / DECODE_STEPS, process / DECODE_STEPS


def main() -> None:
    num_requests = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        setup = setup_of(max_num_seqs=num_requests, spare_blocks=num_requests * 60)
        plain = make_core(setup)
        seconds_a_step(plain, num_requests, "warm")
        without = min(seconds_a_step(plain, num_requests, f"plain{turn}") for turn in range(ROUNDS))
        install(LiveSettings(path=folder / "trace.ndjson"), encode_line)
        recorded = make_core(setup)
        with_recording = min(seconds_a_step(recorded, num_requests, f"recorded{turn}") for turn in range(ROUNDS))
        shut_down(recorded)
        written = sum(path.stat().st_size for path in folder.glob("trace.*"))
    steps = ROUNDS * DECODE_STEPS
    for whose, before, after in zip(("engine's thread", "process"), without, with_recording, strict=True):
        print(f"{num_requests} requests, {whose}: {before * 1e6:.0f} us a step, recorded {after * 1e6:.0f}, ratio {after / before:.2f}")
    print(f"{written / steps:.0f} bytes a step")


if __name__ == "__main__":
    main()
