"""vLLM 0.33.0: a request never finishes.

admission_progress, nothing moves, never admitted[full, sliding_window]: nothing moves: requests r2, r3 are not
finished, and every transfer has been reported

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
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

# ---- a connector that does what the operations say -------------------------------------------------------------------

OFFERS = {"r2": 1, "r3": 8}  # request: tokens of its prompt that the connector can load
transfers = []
reports = []  # what workers are through with, and no output has told yet


class MockConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config, role, kv_cache_config=None):
        super().__init__(vllm_config, role, kv_cache_config)
        self.hits = {}  # request: tokens that the pool had for it

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        self.hits[request.request_id] = num_computed_tokens
        tokens = max(0, OFFERS.get(request.request_id, 0) - num_computed_tokens)
        return tokens, tokens > 0

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens:
            first = self.hits[request.request_id]
            del OFFERS[request.request_id]
            start_transfer("load", request.request_id, blocks.get_block_ids(), first, first + num_external_tokens)

    def request_finished(self, request, block_ids):
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request, block_ids):
        OFFERS.pop(request.request_id, None)
        return False, None

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    start_load_kv = wait_for_layer_load = save_kv_layer = wait_for_save = None  # workers never build this class


def start_transfer(kind, request_id, tables, start, end):
    blocks = [
        block
        for table, spec in zip(tables, specs)
        for block in table[start // spec.block_size : -(-end // spec.block_size)]
        if block
    ]
    log(f"    {kind} of {request_id} starts: tokens {start} to {end - 1}, blocks {' '.join(map(str, blocks)) or 'none'}")
    workers = 1
    transfers.append(
        SimpleNamespace(kind=kind, request_id=request_id, blocks=blocks, step=num_steps, unreported=workers, untold=workers, has_failed=False)
    )
    return True


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
type(current_platform).support_hybrid_kv_cache = classmethod(lambda cls: True)  # as a GPU's platform says

model_config = ModelConfig(model=model_folder.name, skip_tokenizer_init=True, dtype="float16", max_model_len=9)
parallel_config = ParallelConfig()
vllm_config = VllmConfig(
    model_config=model_config,
    cache_config=CacheConfig(block_size=1, enable_prefix_caching=False),
    scheduler_config=SchedulerConfig(
        max_num_batched_tokens=10, max_num_seqs=1, max_model_len=9,
        is_encoder_decoder=False, enable_chunked_prefill=True, async_scheduling=False, disable_hybrid_kv_cache_manager=False,
    ),
    parallel_config=parallel_config,
    device_config=DeviceConfig(device="cpu"),
    kv_transfer_config=KVTransferConfig(kv_connector="MockConnector", kv_connector_module_path="__main__", kv_role="kv_consumer", kv_load_failure_policy="recompute"),
)
vllm_config.cache_config.num_gpu_blocks = 20
specs = [
    FullAttentionSpec(block_size=1, num_kv_heads=1, head_size=16, dtype=torch.float16),
    SlidingWindowSpec(block_size=1, num_kv_heads=1, head_size=16, dtype=torch.float16, sliding_window=1),
]
kv_cache_config = KVCacheConfig(
    num_blocks=20,
    kv_cache_tensors=[],
    kv_cache_groups=[KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)],
)
init_none_hash(sha256)
block_hasher = get_request_block_hasher(1, sha256, vllm_config.num_hash_lookahead_tokens)
scheduler = Scheduler(
    vllm_config=vllm_config, kv_cache_config=kv_cache_config, block_size=1, hash_block_size=1,
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
    if len(unprocessed) == vllm_config.max_concurrent_batches or not (scheduler.has_requests() or reports):
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


def report(which=0, failed=slice(0)):
    """A worker is through with the transfer number `which` of those that are left."""
    left = [transfer for transfer in transfers for _ in range(transfer.unreported)]
    if not left:
        return
    transfer = left[which % len(left)]
    transfer.unreported -= 1
    log(f"report {transfer.kind} of {transfer.request_id}; it failed for blocks {transfer.blocks[failed]}")
    reports.append(SimpleNamespace(transfer=transfer, failed=failed))


def told_with(step):
    """What the workers tell of transfers with the output of a step: of those that they had heard of by then."""
    told = KVConnectorOutput(finished_sending=set(), finished_recving=set())
    for each in [each for each in reports if each.transfer.step <= step.number]:
        reports.remove(each)
        each.transfer.untold -= 1
        if each.transfer.untold == 0:
            (told.finished_recving if each.transfer.kind == "load" else told.finished_sending).add(each.transfer.request_id)
        each.transfer.has_failed |= bool(each.transfer.blocks[each.failed])
        if each.transfer.has_failed and each.transfer.untold == 0:
            told.failed_recving.add(each.transfer.request_id)
    return told


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
            kv_connector_output=told_with(step),
        ),
    )


add("r2", prompt=tokens(559, 0, 6), max_tokens=1)
add("r3", prompt=tokens(513, 0, 8), max_tokens=1)
schedule()
report(failed=slice(1))

# Whoever can be served, is served now.
for _ in range(16 + 4 * sum(request.num_tokens + request.max_tokens for request in scheduler.requests.values())):
    while any(transfer.unreported for transfer in transfers):
        report()
    while schedule():
        pass
    process()

# The scheduler's objects, after all that.
wrong = []
for request_id, request in scheduler.requests.items():
    log(f"{request_id}: {request.status.name}, {request.num_tokens} tokens, {request.num_computed_tokens} computed")
    log(f"  tables {cache.get_block_ids(request_id)}")
    wrong.append(f"{request_id} is not finished: {request.num_computed_tokens} of {request.num_tokens} tokens, preempted {request.num_preemptions} times")
for line in wrong:
    log(line, is_offence=True)
if wrong:
    sys.exit("The fault is there.")
print("The fault is not there.")
