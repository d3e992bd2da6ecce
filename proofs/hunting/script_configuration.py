"""A setup as the Python text of vLLM's configuration, for one release."""

from __future__ import annotations

from settled.model.specs import ChunkedLocalAttentionSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, RSWASpec, SlidingWindowSpec
from settled.reference.engines.setup import EngineSetup, SetupError
from settled.reference.engines.vllm.releases import Release

_METHOD = "speculative_method"  # the setting that is no scheduler's


def configuration_values(setup: EngineSetup, release: Release) -> dict[str, str]:
    """The gaps of the template that the configuration fills. Raises SetupError for a group that vLLM has no spec for."""
    return {
        "config_names": ", ".join(sorted(_config_names(setup))),
        "interface_names": ", ".join(sorted(_interface_names(setup, release))),
        "num_blocks": str(setup.num_blocks),
        "max_num_batched_tokens": str(setup.max_num_batched_tokens),
        "max_num_seqs": str(setup.max_num_seqs),
        "max_model_len": str(setup.max_model_len),
        "async_scheduling": str(setup.async_scheduling),
        "num_speculative_tokens": str(setup.num_speculative_tokens),
        "cache_arguments": _cache_arguments(setup, release),
        "encoder_argument": "is_encoder_decoder=False, " if release.has("scheduler_class") else "",
        "scheduler_arguments": _scheduler_arguments(setup),
        "parallel_arguments": _parallel_arguments(setup),
        "draft_arguments": _draft_arguments(setup, release),
        "specs": "\n".join([f"    {spec_text(spec, release)}," for spec in setup.groups]),
        "reads": "\n".join([f"    {reads_text(spec)}," for spec in setup.groups]),
        "hashing_module": "vllm.utils.hashing" if release.has("hashing_module") else "vllm.utils",
        "hasher_arguments": _hasher_arguments(setup, release),
        "block_size_arguments": _block_size_arguments(setup, release),
        "depth": _depth_text(setup, release),
        "scheduler": "AsyncScheduler" if setup.async_scheduling else "Scheduler",
        "scheduler_module": "async_scheduler" if setup.async_scheduling else "scheduler",
    }


def needs_resolving(setup: EngineSetup, release: Release) -> bool:
    """Whether the release itself has to say what the scheduler's block and a hash cover: not where all of them are one block."""
    sizes = {spec.block_size for spec in setup.groups}
    is_uniform = len(sizes) == 1 and setup.hash_block_size in (None, *sizes)
    return not is_uniform and release.has("resolves_block_sizes")


# ---- groups ----------------------------------------------------------------------------------------------------------


def spec_text(spec: KVCacheSpec, release: Release) -> str:
    """The call that makes vLLM's spec of the group. Heads and states are as small as they get: nothing is stored."""
    attention = f"block_size={spec.block_size}, num_kv_heads=1, head_size=16, dtype=torch.float16"
    match spec:
        case FullAttentionSpec():
            return f"FullAttentionSpec({attention})"
        case SlidingWindowSpec():
            retained = f", extra_retained_tokens={spec.extra_retained}" if spec.extra_retained else ""
            return f"SlidingWindowSpec({attention}, sliding_window={spec.window}{retained})"
        case ChunkedLocalAttentionSpec():
            return f"ChunkedLocalAttentionSpec({attention}, attention_chunk_size={spec.chunk})"
        case RSWASpec():
            return f"RSWASpec({attention}, rswa_window={spec.window})"
        case MambaSpec():
            mode = f', mamba_cache_mode="{spec.mode}"' if release.has("mamba_modes") else ""
            speculative = f", num_speculative_blocks={spec.num_speculative_blocks}" if spec.num_speculative_blocks else ""
            return f"MambaSpec(block_size={spec.block_size}, shapes=((16,),), dtypes=(torch.float16,){mode}{speculative})"
    raise SetupError(f"vLLM has no spec for a group of kind {spec.kind}")


def reads_text(spec: KVCacheSpec) -> str:
    """The function from the positions of a step's queries to the table entries that they read, by the mask of the kind."""
    size = spec.block_size
    last = f"(end - 1) // {size} + 1"
    match spec:
        case FullAttentionSpec():
            return f"lambda start, end: range({last})"
        case SlidingWindowSpec() | RSWASpec():  # R-SWA reads its prompt as well
            return f"lambda start, end: range(max(0, start - {spec.window - 1}) // {size}, {last})"
        case ChunkedLocalAttentionSpec():
            return f"lambda start, end: range(start // {spec.chunk} * {spec.chunk} // {size}, {last})"
        case MambaSpec(mode="none"):
            return "lambda start, end: range(min(start, 1))"
        case MambaSpec():
            return f"lambda start, end: range((start - 1) // {size}, (start - 1) // {size} + 1) if start else ()"
    raise SetupError(f"vLLM has no spec for a group of kind {spec.kind}")


def _interface_names(setup: EngineSetup, release: Release) -> set[str]:
    return {"KVCacheConfig", "KVCacheGroupSpec"} | {spec_text(spec, release).partition("(")[0] for spec in setup.groups}


# ---- settings --------------------------------------------------------------------------------------------------------


def _config_names(setup: EngineSetup) -> set[str]:
    names = {"CacheConfig", "DeviceConfig", "ModelConfig", "ParallelConfig", "SchedulerConfig", "VllmConfig"}
    if setup.num_speculative_tokens:
        names.add("SpeculativeConfig")
    if setup.connector is not None:
        names.add("KVTransferConfig")
    return names


def _cache_block_size(setup: EngineSetup) -> int:
    sizes = [spec.block_size for spec in setup.groups if not (isinstance(spec, MambaSpec) and spec.mode == "none")]
    return min(sizes, default=16)


def _cache_arguments(setup: EngineSetup, release: Release) -> str:
    parts = [f"block_size={_cache_block_size(setup)}", f"enable_prefix_caching={setup.enable_prefix_caching}"]
    if release.has("swap_space"):
        parts.append("swap_space=0")
    if setup.hash_block_size is not None:
        name = "prefix_match_unit" if release.has("prefix_match_unit") else "hash_block_size"
        parts.append(f"{name}={setup.hash_block_size}")
    mamba = next((spec for spec in setup.groups if isinstance(spec, MambaSpec)), None)
    if mamba is not None:
        parts.append(f"mamba_block_size={mamba.block_size}")
        if release.has("mamba_modes"):
            parts.append(f'mamba_cache_mode="{mamba.mode}"')
    return ", ".join(parts)


def _scheduler_arguments(setup: EngineSetup) -> str:
    chosen = [f", {name}={value!r}" for name, value in setup.extra if name != _METHOD]
    if setup.connector is not None:
        chosen.append(", disable_hybrid_kv_cache_manager=False")
    return "".join(chosen)


def _parallel_arguments(setup: EngineSetup) -> str:
    size = setup.pipeline_parallel_size
    return f'pipeline_parallel_size={size}, distributed_executor_backend="mp"' if size > 1 else ""


def _draft_arguments(setup: EngineSetup, release: Release) -> str:
    method = str(dict(setup.extra).get(_METHOD, "draft_model" if release.has("draft_models") else "eagle"))
    drafter = {"ngram": "prompt_lookup_max=4", "mtp": "model=drafter_folder.name"}
    return f'method="{method}", ' + drafter.get(str(method), "model=model_folder.name")


def _block_size_arguments(setup: EngineSetup, release: Release) -> str:
    if needs_resolving(setup, release):
        return "block_size=block_size, hash_block_size=hash_block_size,"
    if release.has("resolves_block_sizes"):
        size = setup.groups[0].block_size
        return f"block_size={size}, hash_block_size={size},"
    return f"block_size={_cache_block_size(setup)}," if release.has("scheduler_block_size") else ""


def _hasher_arguments(setup: EngineSetup, release: Release) -> str:
    size = "hash_block_size" if needs_resolving(setup, release) else str(_cache_block_size(setup))
    return f"{size}, sha256" + (", vllm_config.num_hash_lookahead_tokens" if release.has("hash_lookahead") else "")


def _depth_text(setup: EngineSetup, release: Release) -> str:
    if release.has("depth_on_config"):
        return "vllm_config.max_concurrent_batches"
    size = setup.pipeline_parallel_size
    return "2" if size == 1 and setup.async_scheduling else str(size)
