"""A real engine core of the vLLM release that is installed, on a machine without a device: the executor alone is a stand-in."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from zlib import crc32

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import vllm.v1.engine.core as core_module
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.model_executor.models import registry
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK_SIZE = 16
NUM_BLOCKS = 112
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
    "torch_dtype": "float16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def known(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """The arguments that this release's function has."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in names}


@contextmanager
def no_model_code() -> Iterator[None]:
    """A configuration asks the class of the model what it is; importing it needs more packages than a scheduler does."""
    values: dict[str, Any] = {"architecture": "LlamaForCausalLM", "is_text_generation_model": True, "supports_pp": True}
    values |= {"attn_type": "decoder", "default_seq_pooling_type": "LAST", "default_tok_pooling_type": "ALL", "score_type": "bi-encoder"}
    info = registry._ModelInfo(
        **{field.name: values.get(field.name, False) for field in dataclasses.fields(registry._ModelInfo) if _is_required(field)}
    )
    with mock.patch.object(registry._ModelRegistry, "inspect_model_cls", return_value=(info, "LlamaForCausalLM")):
        yield


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


class StandInExecutor(Executor):
    """Samples tokens that depend on the request and on how many it has; keeps what it was told, to compare runs.

    `reports`: called with each scheduler output; what it returns goes with the model's output as the connector's report.
    """

    supports_pp = True

    def _init_executor(self) -> None:
        self.told: list[Any] = []
        self.sampled: dict[str, int] = {}
        self.reports: Callable[[Any], Any] = lambda scheduler_output: None

    def collective_rpc(self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None, non_block: bool = False) -> Any:
        return []

    def determine_available_memory(self) -> list[int]:
        page = next(iter(self.get_kv_cache_specs()[0].values())).page_size_bytes
        return [NUM_BLOCKS * page]  # the two groups share each block

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        sizes: dict[str, Any] = {"block_size": BLOCK_SIZE, "num_kv_heads": 1, "head_size": 16, "dtype": torch.float16}
        sizes |= known(FullAttentionSpec, use_mla=False)
        return [{"full": FullAttentionSpec(**sizes), "window": SlidingWindowSpec(**sizes, sliding_window=40)}]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [["NHD"]]

    @property
    def max_concurrent_batches(self) -> int:
        return 2 if self.scheduler_config.async_scheduling else 1

    def check_health(self) -> None: ...

    def shutdown(self) -> None: ...

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        self._step = scheduler_output
        self.told.append(_told(scheduler_output))
        waits_for_sampling = scheduler_output.total_num_scheduled_tokens and hasattr(Executor, "sample_tokens")
        return _now_or_later(None if waits_for_sampling else self._output(scheduler_output), non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        return _now_or_later(self._output(self._step), non_block)

    def _output(self, step: Any) -> Any:
        names = list(step.num_scheduled_tokens)
        output = {"req_ids": names, "req_id_to_index": {name: index for index, name in enumerate(names)}}
        output |= {"sampled_token_ids": [self._sample(name) for name in names], "kv_connector_output": self.reports(step)}
        output |= {"logprobs": None, "prompt_logprobs_dict": {}, "pooler_output": []}
        return ModelRunnerOutput(**known(ModelRunnerOutput, **output))

    def _sample(self, name: str) -> list[int]:
        count = self.sampled[name] = self.sampled.get(name, 0) + 1
        return [10 + crc32(f"{name} {count}".encode()) % 900]


class OneGroupExecutor(StandInExecutor):
    """A model without windows."""

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        return [{"full": super().get_kv_cache_specs()[0]["full"]}]


def _now_or_later(output: Any, non_block: bool) -> Any:
    if not non_block:
        return output
    future: Future[Any] = Future()
    future.set_result(output)
    return future


def _told(step: Any) -> Any:
    """What a worker learns of a step: tokens and blocks of each request."""
    cached = step.scheduled_cached_reqs
    blocks = {new.req_id: new.block_ids for new in step.scheduled_new_reqs} | dict(zip(cached.req_ids, cached.new_block_ids, strict=True))
    return dict(step.num_scheduled_tokens), blocks


def make_core(
    folder: Path,
    *,
    async_scheduling: bool = True,
    connector: dict[str, Any] | None = None,
    max_num_seqs: int = 16,
    executor: type[StandInExecutor] = StandInExecutor,
) -> Any:
    """An engine core, built as a server does it; `connector`: arguments of vLLM's KVTransferConfig."""
    (folder / "config.json").write_text(json.dumps(_MODEL))
    with no_model_code():
        model = ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="float16", seed=0, max_model_len=1024)
        sizes = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 256, "max_model_len": 1024}
        flags = {"enable_chunked_prefill": True, "is_encoder_decoder": False, "async_scheduling": async_scheduling}
        config = VllmConfig(
            model_config=model,
            cache_config=CacheConfig(**known(CacheConfig, block_size=BLOCK_SIZE, enable_prefix_caching=True, swap_space=0)),
            scheduler_config=SchedulerConfig(**known(SchedulerConfig, **sizes, **flags)),
            parallel_config=ParallelConfig(),
            device_config=DeviceConfig(device="cpu"),
            kv_transfer_config=KVTransferConfig(**known(KVTransferConfig, **connector)) if connector else None,
        )
        # Without a device vLLM would serve windows as full attention.
        config.scheduler_config.disable_hybrid_kv_cache_manager = False
        return EngineCore(config, executor, log_stats=False)


def shut_down(core: Any) -> None:
    """As a server does it, less the release of the device's memory."""
    with mock.patch.object(core_module, "cleanup_dist_env_and_memory"):
        core.shutdown()


def request(core: Any, name: str, prompt_tokens: int, max_tokens: int = 20) -> Any:
    """A request whose prompt begins as those of all others do."""
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    shared = [3 + position % 50 for position in range(prompt_tokens // 2)]
    prompt = shared + [60 + crc32(f"{name} {position}".encode()) % 900 for position in range(len(shared), prompt_tokens)]
    arguments: dict[str, Any] = {"request_id": name, "prompt_token_ids": prompt, "sampling_params": sampling, "pooling_params": None}
    arguments |= {"eos_token_id": 2, "block_hasher": core.request_block_hasher}
    return Request(**known(Request, **arguments))


def serve(core: Any, *, num_requests: int, steps_max: int = 2000, abort_each: int = 0) -> dict[str, list[int]]:
    """Serves requests that come one a step, and returns their tokens. Every `abort_each`-th is aborted four steps after it came."""
    tokens: dict[str, list[int]] = {}
    for step in range(steps_max):
        if step < num_requests:
            core.add_request(request(core, f"r{step}", 20 + 37 * step % 230))
        elif not core.scheduler.has_requests() and not core.batch_queue:
            return tokens
        leaving = step - 4
        if abort_each and 0 <= leaving < num_requests and leaving % abort_each == 0:
            core.abort_requests([f"r{leaving}"])
        outputs, _ = core.step_fn()
        for of_client in (outputs or {}).values():
            for output in of_client.outputs:
                tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
    raise AssertionError(f"{len(core.scheduler.requests)} requests are not through after {steps_max} steps")
