"""What a process without a device lacks, so that vLLM's own start-up runs in it: settings, a model's configuration, its inspection.

None of this is read by a scheduler. It is put in place once a process, before vLLM is imported for the first time where that matters.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import logging
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from settled.reference.engines.operations import VOCABULARY_SIZE

MAX_POSITIONS = 1 << 20  # tokens; above every max_model_len that a workload asks for
ARCHITECTURE = "LlamaForCausalLM"

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",  # read by init_none_hash: the same workload gives the same hashes
}

_MODEL: dict[str, Any] = {
    "architectures": [ARCHITECTURE],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": VOCABULARY_SIZE,
    "max_position_embeddings": MAX_POSITIONS,
    "torch_dtype": "float16",
}

# What a registry would find out by importing the model's code, which needs a device. All else that it asks is answered with no.
_MODEL_FACTS: dict[str, Any] = {
    "architecture": ARCHITECTURE,
    "is_text_generation_model": True,
    "supports_pp": True,
    "attn_type": "decoder",
    "default_seq_pooling_type": "LAST",
    "default_tok_pooling_type": "ALL",
    "default_pooling_type": "LAST",
    "score_type": "bi-encoder",
}


@cache
def prepare_process() -> None:
    """Makes vLLM importable and able to start up here. Changes the environment and three methods of vLLM's, for the life of the process."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # A start-up every few milliseconds would fill the screen with advice. Releases before 0.29 set the level as they are imported.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    _answer_model_inspection()
    _support_hybrid_kv_cache()


@cache
def model_folder(**changes: int | tuple[str, ...]) -> str:
    """A folder with a model's config.json, removed at exit. `changes` are further keys of it."""
    folder = tempfile.mkdtemp(prefix="settled-model-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (Path(folder) / "config.json").write_text(json.dumps(_MODEL | changes))
    return folder


def _answer_model_inspection() -> None:
    from vllm.model_executor.models import registry

    facts = {}
    for each in dataclasses.fields(registry._ModelInfo):
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            facts[each.name] = _MODEL_FACTS.get(each.name, False if "bool" in str(each.type) else None)
    info = registry._ModelInfo(**facts)
    registry._ModelRegistry.inspect_model_cls = lambda self, architectures, model_config=None: (info, ARCHITECTURE)


def _support_hybrid_kv_cache() -> None:
    """As CUDA's platform answers: without it, every windowed group would be turned into a full one."""
    from vllm.platforms import current_platform

    type(current_platform).support_hybrid_kv_cache = classmethod(lambda cls: True)
