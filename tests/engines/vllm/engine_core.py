"""A real engine core of the vLLM release that is installed, on a machine without a device: the executor alone is a stand-in."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any
from unittest import mock
from zlib import crc32

import vllm.v1.engine.core as core_module
from vllm.sampling_params import SamplingParams
from vllm.v1.executor.abstract import Executor
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from settled.model.specs import FullAttentionSpec, SlidingWindowSpec
from settled.reference.engines.setup import ConnectorSetup, EngineSetup
from settled.reference.engines.vllm.configuration import layer_specs, page_bytes, vllm_config_for
from settled.reference.engines.vllm.releases import Release, installed_release
from settled.reference.engines.vllm.startup import min_num_blocks
from settled.reference.engines.vllm.steps import Step, sampled_token_ids, step_of

EngineCore = core_module.EngineCore
BLOCK_SIZE = 16
WINDOW = 40
ONE_GROUP = (FullAttentionSpec(block_size=BLOCK_SIZE),)
HYBRID = (*ONE_GROUP, SlidingWindowSpec(block_size=BLOCK_SIZE, window=WINDOW))
RELEASE: Release = installed_release()


class StandInExecutor(Executor):
    """Accepts and samples what depends on the request and on how often it sampled; keeps what it was told, to compare runs.

    `reports`: called with each scheduler output; what it returns goes with the model's output as the connector's report.
    `is_slow`: no output is there before it is asked for, so that the pipeline fills up (before 0.23 a loop does not wait for that).
    """

    supports_pp = True
    setup: EngineSetup
    requests: dict[str, Any]
    is_slow = False

    def _init_executor(self) -> None:
        self.told: list[Any] = []
        self.sampled: dict[str, int] = {}
        self.reports: Callable[[Any], Any] = lambda scheduler_output: None

    def collective_rpc(self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None, non_block: bool = False) -> Any:
        return []

    def determine_available_memory(self) -> list[int]:
        return [self.setup.num_blocks * page_bytes(self.setup)]

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        return [dict(layer_specs(self.setup, RELEASE))]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [["NHD"]]

    @property
    def max_concurrent_batches(self) -> int:
        return 2 if self.scheduler_config.async_scheduling else self.parallel_config.pipeline_parallel_size

    def check_health(self) -> None: ...

    def shutdown(self) -> None: ...

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        self._step = step_of(len(self.told), scheduler_output, self.requests)
        self.told.append(_told(scheduler_output))
        waits_for_sampling = scheduler_output.total_num_scheduled_tokens and hasattr(Executor, "sample_tokens")
        return _now_or_later(None if waits_for_sampling else self._output(self._step), non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        return _now_or_later(self._output(self._step), non_block, is_done=not self.is_slow)

    def take_draft_token_ids(self) -> Any:
        """Where drafts are not placeholders, the scheduler is given them after each step."""
        drafts = [7] * self.setup.num_speculative_tokens
        names = [row.request_id for row in self._step.rows if row.samples]
        return DraftTokenIds(names, [list(drafts) for _ in names])

    def _output(self, step: Step) -> Any:
        names = [row.request_id for row in step.rows]
        sampled = [self._sample(row.request_id, row.drafts) if row.samples else [] for row in step.rows]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled_token_ids(sampled, RELEASE),
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=self.reports(step.scheduler_output),
        )

    def _sample(self, name: str, drafts: int) -> list[int]:
        count = self.sampled[name] = self.sampled.get(name, 0) + 1
        chance = crc32(f"{name} {count}".encode())
        return [10 + (chance + position) % 900 for position in range(1 + chance % (drafts + 1))]


class _SlowFuture(Future[Any]):
    """Has its result, and does not say so."""

    def done(self) -> bool:
        return False


def _now_or_later(output: Any, non_block: bool, *, is_done: bool = True) -> Any:
    if not non_block:
        return output
    future: Future[Any] = Future() if is_done else _SlowFuture()
    future.set_result(output)
    return future


def _told(step: Any) -> Any:
    """What a worker learns of a step: tokens and blocks of each request."""
    cached = step.scheduled_cached_reqs
    blocks = {new.req_id: new.block_ids for new in step.scheduled_new_reqs} | dict(zip(cached.req_ids, cached.new_block_ids, strict=True))
    return dict(step.num_scheduled_tokens), blocks


def setup_of(
    *,
    async_scheduling: bool = True,
    drafts: int = 0,
    groups: Any = HYBRID,
    connector: ConnectorSetup | None = None,
    max_num_seqs: int = 16,
    spare_blocks: int = 0,
) -> EngineSetup:
    """A pool so small that requests are preempted, unless there are spare blocks."""
    setup = EngineSetup(
        groups=groups,
        num_blocks=1,
        max_num_batched_tokens=max(128, max_num_seqs * (1 + drafts)),
        max_num_seqs=max_num_seqs,
        max_model_len=640,
        async_scheduling=async_scheduling,
        num_speculative_tokens=drafts,
        enable_prefix_caching=True,
        connector=connector,
    )
    return replace(setup, num_blocks=min_num_blocks(setup, RELEASE) + spare_blocks)


def make_core(setup: EngineSetup) -> Any:
    """An engine core, built as a server does it."""
    executor = type("Executor", (StandInExecutor,), {"setup": setup})
    core = EngineCore(vllm_config_for(setup, RELEASE), executor, log_stats=False)
    core.model_executor.requests = core.scheduler.requests
    return core


def shut_down(core: Any) -> None:
    """As a server does it, less the release of the device's memory."""
    with mock.patch.object(core_module, "cleanup_dist_env_and_memory", create=True):
        core.shutdown()


def request(core: Any, name: str, prompt_tokens: int, max_tokens: int = 20) -> Any:
    """A request whose prompt begins as those of all others do."""
    shared = math.ceil(prompt_tokens / 2)
    own = [60 + crc32(f"{name} {position}".encode()) % 900 for position in range(shared, prompt_tokens)]
    optional = {"eos_token_id": 2} if RELEASE.has("eos_on_request") else {}
    return Request(
        request_id=name,
        prompt_token_ids=[3 + position % 50 for position in range(shared)] + own,
        sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        pooling_params=None,
        block_hasher=core.request_block_hasher,
        **optional,
    )


def step(core: Any) -> dict[str, list[int]]:
    """One turn of the engine core's loop; the tokens that it hands out."""
    outputs, was_executed = core.step_fn()
    core.post_step(was_executed)
    return {output.request_id: output.new_token_ids for of_client in (outputs or {}).values() for output in of_client.outputs}


def serve(core: Any, *, num_requests: int, abort_each: int = 0, steps_max: int = 2000) -> dict[str, list[int]]:
    """Serves requests that come one a step, and returns their tokens. Every `abort_each`-th is aborted four steps after it came."""
    tokens: dict[str, list[int]] = {}
    for turn in range(steps_max):
        if turn < num_requests:
            core.add_request(request(core, f"r{turn}", 20 + 37 * turn % 230))
        elif not core.scheduler.has_requests() and not core.batch_queue:
            return tokens
        leaving = turn - 4
        if abort_each and 0 <= leaving < num_requests and leaving % abort_each == 0:
            core.abort_requests([f"r{leaving}"])
        for name, new in step(core).items():
            tokens.setdefault(name, []).extend(new)
    raise AssertionError(f"{len(core.scheduler.requests)} requests are not through after {steps_max} steps")
