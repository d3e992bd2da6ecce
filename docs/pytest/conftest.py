"""vLLM on a machine without a device: everything is vLLM's own but the executor, which computes nothing and rejects every draft.

With a device none of this is needed, but for the first line: the engine core must run in the process of the test.
"""

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.update(VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR")

import json
from concurrent.futures import Future

import pytest
import torch
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import SlidingWindowSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

BLOCK_SIZE, WINDOW = 16, 32
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000, "max_position_embeddings": 4096}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


class NoDevice(Executor):
    """A model of one layer with a sliding window. It samples the same token again and again, and no draft is right."""

    supports_pp = True

    @classmethod
    def supports_async_scheduling(cls):
        return True

    @property
    def max_concurrent_batches(self):
        return 2 if self.scheduler_config.async_scheduling else 1

    def _init_executor(self): ...
    def check_health(self): ...
    def shutdown(self): ...

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False):
        return [("generate",)] if method == "get_supported_tasks" else []

    def determine_available_memory(self):
        return [1 << 20]

    def get_kv_cache_specs(self):
        spec = SlidingWindowSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=16, dtype=torch.float16, sliding_window=WINDOW)
        return [{"layers.0": spec}]

    def get_supported_kv_cache_layouts(self):
        return [["NHD"]]

    def execute_model(self, scheduler_output, non_block=False):
        self.requests = list(scheduler_output.num_scheduled_tokens)
        return _answer(None if self.requests else EMPTY_MODEL_RUNNER_OUTPUT, non_block)  # None: the tokens are asked for apart

    def sample_tokens(self, grammar_output, non_block=False):
        output = ModelRunnerOutput(
            req_ids=self.requests,
            req_id_to_index={request: index for index, request in enumerate(self.requests)},
            sampled_token_ids=[[7] for _ in self.requests],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        return _answer(output, non_block)


def _answer(value, non_block):
    if not non_block:
        return value
    future = Future()
    future.set_result(value)
    return future


@pytest.fixture
def no_device(tmp_path, monkeypatch):
    """Arguments of an LLM: a model by name only, whose class is not imported, and the executor above."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL | SIZES))
    known = {"architecture": "LlamaForCausalLM", "is_text_generation_model": True, "supports_pp": True, "attn_type": "decoder"}
    known |= {
        "default_pooling_type": "LAST",
        "default_seq_pooling_type": "LAST",
        "default_tok_pooling_type": "ALL",
        "score_type": "bi-encoder",
    }
    model_info = registry._ModelInfo(**{name: known.get(name, False) for name in registry._ModelInfo.__dataclass_fields__})
    monkeypatch.setattr(registry._ModelRegistry, "inspect_model_cls", lambda *_, **__: (model_info, "LlamaForCausalLM"))
    monkeypatch.setattr(type(current_platform), "device_type", "cpu")
    for name in ("empty_cache", "empty_host_cache"):  # an engine that shuts down calls them
        monkeypatch.setattr(torch.accelerator, name, lambda: None, raising=False)
    model = str(tmp_path)
    drafts = {"method": "draft_model", "model": model, "num_speculative_tokens": 4}
    return {
        "model": model,
        "skip_tokenizer_init": True,
        "dtype": "float16",
        "max_model_len": 256,
        "block_size": BLOCK_SIZE,
        "distributed_executor_backend": NoDevice,
        "speculative_config": drafts,
        "enable_prefix_caching": False,
    }
