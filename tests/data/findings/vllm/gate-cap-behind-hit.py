"""vLLM 0.33.0: the admission gate counts fewer KV cache blocks for a request than it then holds.

admission_gate, inspected: gate_undercounts[sliding_window, behind a hit]: request r2 was admitted with 3 blocks of
group 0 (sliding_window) for its 9 tokens, and holds 4

Drives the scheduler of vLLM alone: no GPU, no weights, no compiled code. Written for vLLM 0.33.0.

    PYTHONHASHSEED=0 python THIS_FILE

Exits 1 where the fault is there, 0 where it is not.
"""

import json
import os
import sys
import tempfile
from collections import deque
from pathlib import Path
from types import SimpleNamespace

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.model_executor.models import registry
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

# ---- the configuration -----------------------------------------------------------------------------------------------

# A model by name only: its class is never imported, its weights are never loaded.
model_folder = tempfile.TemporaryDirectory()
Path(model_folder.name, "config.json").write_text(
    json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000, "max_position_embeddings": 1048576,
                "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4})
)
known = {"architecture": "LlamaForCausalLM", "is_text_generation_model": True, "supports_pp": True, "attn_type": "decoder",
         "default_pooling_type": "LAST", "default_seq_pooling_type": "LAST", "default_tok_pooling_type": "ALL", "score_type": "bi-encoder"}
model_info = registry._ModelInfo(**{name: known.get(name, False) for name in registry._ModelInfo.__dataclass_fields__})
registry._ModelRegistry.inspect_model_cls = lambda *_, **__: (model_info, "LlamaForCausalLM")

model_config = ModelConfig(model=model_folder.name, skip_tokenizer_init=True, dtype="float16", max_model_len=10)
parallel_config = ParallelConfig()
vllm_config = VllmConfig(
    model_config=model_config,
    cache_config=CacheConfig(block_size=2, enable_prefix_caching=True),
    scheduler_config=SchedulerConfig(
        max_num_batched_tokens=5, max_num_seqs=1, max_model_len=10,
        is_encoder_decoder=False, enable_chunked_prefill=True, async_scheduling=False,
    ),
    parallel_config=parallel_config,
    device_config=DeviceConfig(device="cpu"),
)
vllm_config.cache_config.num_gpu_blocks = 5
specs = [
    SlidingWindowSpec(block_size=2, num_kv_heads=1, head_size=16, dtype=torch.float16, sliding_window=2),
]
kv_cache_config = KVCacheConfig(
    num_blocks=5,
    kv_cache_tensors=[],
    kv_cache_groups=[KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)],
    prefix_cache_retention_interval=vllm_config.cache_config.prefix_cache_retention_interval,
)
init_none_hash(sha256)
block_hasher = get_request_block_hasher(2, sha256, vllm_config.num_hash_lookahead_tokens)
scheduler = Scheduler(
    vllm_config=vllm_config, kv_cache_config=kv_cache_config, block_size=2, hash_block_size=2,
    structured_output_manager=StructuredOutputManager(vllm_config),
)
cache = scheduler.kv_cache_manager

# ---- what is watched -------------------------------------------------------------------------------------------------

unprocessed = deque()  # dispatched steps whose output the scheduler has not seen
rows = {}  # the worker's block tables: they only grow, nobody tells the worker of an entry that became null
offences = []
num_steps = 0
cause = "freed"


def log(line, is_offence=False):
    print("!!!" if is_offence else "   ", line)
    if is_offence:
        offences.append(line)


def get_new_blocks(*args, _original=cache.block_pool.get_new_blocks, **kwargs):
    blocks = _original(*args, **kwargs)
    if blocks:
        log(f"    allocated: {' '.join(str(block.block_id) for block in blocks)}")
    return blocks


def free_blocks(blocks, *args, _original=cache.block_pool.free_blocks, **kwargs):
    blocks = list(blocks)
    _original(blocks, *args, **kwargs)
    freed = [block.block_id for block in blocks if block.ref_cnt == 0 and not block.is_null]
    if freed:
        log(f"    {cause}: {' '.join(map(str, freed))}")


counted = {}  # request: for each group the blocks, and the tokens, that the admission gate counted when it was last asked, and by which step


def listen_to_gate(group, count):
    def get_num_blocks_to_allocate(request_id, num_tokens, hits, *args, apply_admission_cap=False, **kwargs):
        num_blocks = count(request_id, num_tokens, hits, *args, apply_admission_cap=apply_admission_cap, **kwargs)
        if apply_admission_cap:  # the answer leaves out what the request shares with others, and what it has
            num_blocks_of_all = num_blocks + sum(block.ref_cnt > 0 and not block.is_null for block in hits) + num_held(request_id, group)
            counted.setdefault(request_id, {})[group] = num_blocks_of_all, num_tokens, num_steps
        return num_blocks

    return get_num_blocks_to_allocate


def num_held(request_id, group):
    return sum(not block.is_null for block in cache.coordinator.single_type_managers[group].req_to_blocks.get(request_id, ()))


def with_cause(method, name):
    def wrapped(*args, **kwargs):
        global cause
        before, cause = cause, name
        try:
            return method(*args, **kwargs)
        finally:
            cause = before

    return wrapped


cache.block_pool.get_new_blocks, cache.block_pool.free_blocks = get_new_blocks, free_blocks
for manager in cache.coordinator.single_type_managers:
    manager.remove_skipped_blocks = with_cause(manager.remove_skipped_blocks, "pruned")
for group, manager in enumerate(cache.coordinator.single_type_managers):
    manager.get_num_blocks_to_allocate = listen_to_gate(group, manager.get_num_blocks_to_allocate)

# ---- the operations --------------------------------------------------------------------------------------------------


def tokens(family, start, stop):
    return [10 + (family * 37 + position * 7) % 983 for position in range(start, stop)]


def add(request_id, prompt, max_tokens):
    log(f"add {request_id}: {len(prompt)} prompt tokens, at most {max_tokens} more")
    sampling_params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    scheduler.add_request(
        Request(request_id=request_id, prompt_token_ids=prompt, sampling_params=sampling_params, pooling_params=None, block_hasher=block_hasher)
    )


def schedule():
    global num_steps
    if len(unprocessed) == vllm_config.max_concurrent_batches or not scheduler.has_requests():
        return False
    log(f"schedule step {num_steps}")
    output = scheduler.schedule()
    for new in output.scheduled_new_reqs:
        rows[new.req_id] = [list(ids) for ids in new.block_ids]
    cached = output.scheduled_cached_reqs
    for request_id, new_ids in zip(cached.req_ids, cached.new_block_ids):
        if request_id in cached.resumed_req_ids:
            rows[request_id] = [[] for _ in specs]
        for row, ids in zip(rows[request_id], new_ids or ()):
            row.extend(ids)
    step = SimpleNamespace(number=num_steps, output=output, parts=[], lost={})
    for request_id, count in output.num_scheduled_tokens.items():
        request = scheduler.requests[request_id]
        part = SimpleNamespace(
            request_id=request_id, start=request.num_computed_tokens - count, tokens=count,
            samples=request.num_computed_tokens >= request.num_tokens,
            last_token=request.all_token_ids[-1],
            row=[list(row) for row in rows[request_id]], table=cache.get_block_ids(request_id),
        )
        step.parts.append(part)
        log(f"  {request_id}: tokens {part.start} to {part.start + count - 1}; tables {part.table}")
    num_steps += 1
    unprocessed.append(step)
    if not any(each.parts for each in unprocessed):
        while unprocessed:
            process()
    return bool(step.parts)


def process():
    if not unprocessed:
        return
    step = unprocessed.popleft()
    log(f"process step {step.number}")
    sampled = []
    for part in step.parts:
        num_sampled = int(part.samples)
        request = scheduler.requests.get(part.request_id)
        token = part.last_token if request is None else request.all_token_ids[-1]
        sampled.append([10 + (token - 10 + 7 * i) % 983 for i in range(1, num_sampled + 1)])
    request_ids = [part.request_id for part in step.parts]
    scheduler.update_from_output(
        step.output,
        ModelRunnerOutput(
            req_ids=request_ids, req_id_to_index={request_id: i for i, request_id in enumerate(request_ids)},
            sampled_token_ids=sampled, logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
        ),
    )


add("r1", prompt=tokens(0, 0, 4) + tokens(693, 4, 5), max_tokens=1)
add("r2", prompt=tokens(0, 0, 4) + tokens(559, 4, 9), max_tokens=1)
schedule()
process()
schedule()

# The scheduler's objects, after all that.
wrong = []
for request_id, request in scheduler.requests.items():
    log(f"{request_id}: {request.status.name}, {request.num_tokens} tokens, {request.num_computed_tokens} computed")
    log(f"  tables {cache.get_block_ids(request_id)}")
    for group, (num_blocks, num_tokens, asking_step) in counted.get(request_id, {}).items():
        is_within = request.num_computed_tokens <= num_tokens or asking_step == num_steps - 1
        if is_within and num_held(request_id, group) > num_blocks:
            what = f"{request_id} holds {num_held(request_id, group)} blocks of group {group}"
            wrong.append(f"{what}, and the admission gate counted {num_blocks} for its {num_tokens} tokens")
for line in wrong:
    log(line, is_offence=True)
if wrong:
    sys.exit("The fault is there.")
print("The fault is not there.")
