"""A setup as vLLM's own configuration objects, through the checks that a user's command line goes through.

What vLLM settles in code that needs a model or a device is required here by hand, as its source has it; `_require` says so each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from settled.model.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    RSWASpec,
    SlidingWindowSpec,
)
from settled.reference.engines.setup import MOCK_CONNECTOR, ConnectorSetup, EngineSetup, SetupError
from settled.reference.engines.vllm.releases import Release
from settled.reference.engines.vllm.stand_ins import model_folder, prepare_process

MOCK_CLASS = "MockConnector"
MOCK_MODULE = "settled.reference.engines.vllm.mock_connector"

SETTINGS = ("speculative_method", "watermark", "long_prefill_token_threshold", "scheduler_reserve_full_isl")
"""What `EngineSetup.extra` may name, as vLLM names it. `speculative_method`: draft_model (the default), eagle, ngram or mtp."""

_FAILURE_POLICY = "kv_load_failure_policy"  # a connector's `extra` may name it: recompute or fail; otherwise the release's default
_OFFLOADING = {"OffloadingConnector": "offloading_jobs", "SimpleCPUOffloadConnector": "simple_offload"}  # what each needs to be driven
_DEFAULT_BLOCK_SIZE = 16  # tokens, where no attention group has one
_MTP_ARCHITECTURE = "Step3p5ForCausalLM"  # one that vLLM gives a module for each draft: its windows keep extra tokens
_ELEMENT = 16  # elements of a head in the group with the largest blocks


@contextmanager
def refused() -> Iterator[None]:
    """What vLLM raises at construction is its answer to a user: the setup is not accepted."""
    try:
        yield
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise SetupError(f"not accepted by this release: {str(error).strip() or type(error).__name__}") from error


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SetupError(message)


def settings(setup: EngineSetup) -> dict[str, int | str]:
    """`setup.extra` by name. Raises SetupError for a name that is not one of SETTINGS."""
    for name, _ in setup.extra:
        _require(name in SETTINGS, f"unknown setting {name!r}: expected one of {', '.join(SETTINGS)}")
    return dict(setup.extra)


def check_setup(setup: EngineSetup, release: Release) -> None:
    """Raises SetupError for what a user cannot ask of this release."""
    _require(bool(setup.groups), "no groups: an engine without KV cache has nothing to free")
    _require(setup.max_num_batched_tokens >= setup.max_num_seqs, "max_num_batched_tokens is below max_num_seqs")
    for spec in setup.groups:
        match spec:
            case MambaSpec():
                _check_mamba(spec, setup, release)
            case SlidingWindowSpec() if spec.extra_retained:
                _require(release.has("extra_retained"), f"{release.name} has no extra retained tokens")
            case RSWASpec():
                _require(release.has("rswa"), f"{release.name} has no R-SWA")
            case FullAttentionSpec() | SlidingWindowSpec() | ChunkedLocalAttentionSpec():
                pass
            case _:
                raise SetupError(f"{release.name} has no group of kind {spec.kind}")
    retained = {spec.extra_retained for spec in setup.groups if isinstance(spec, SlidingWindowSpec)}
    expected = max(0, setup.num_speculative_tokens - 1) if speculative_method(setup, release) == "mtp" else 0
    _require(retained <= {expected}, f"every sliding window keeps {expected} extra tokens in this setup, not {sorted(retained)}")
    if any(isinstance(spec, ChunkedLocalAttentionSpec) for spec in setup.groups):
        _require(speculative_method(setup, release) not in ("eagle", "mtp"), "chunked local attention with eagle turns hybrid groups off")
    if setup.connector is not None:
        needed = _OFFLOADING.get(setup.connector.name)
        _require(needed is None or release.has(needed), f"{setup.connector.name} of {release.name} is not driven here")
    if setup.async_scheduling and not release.has("checks_async"):
        _require(setup.num_speculative_tokens == 0, f"{release.name} does not schedule asynchronously with drafts")
        _require(setup.pipeline_parallel_size == 1, f"{release.name} does not schedule asynchronously with several stages")
    if setup.hash_block_size is not None:
        settable = release.has("prefix_match_unit") or release.has("hash_block_size")
        _require(settable, f"{release.name} has no setting for the hash block size")


def _check_mamba(spec: MambaSpec, setup: EngineSetup, release: Release) -> None:
    """As MambaModelConfig and HybridAttentionMambaModelConfig settle it: the mode follows prefix caching, the block size the mode."""
    _require(spec.mode == "none" or release.has("mamba_modes"), f"{release.name} has Mamba mode none alone")
    _require(spec.mode != "all" or release.has("mamba_all"), f"{release.name} has no Mamba mode all")
    _require((spec.mode != "none") == setup.enable_prefix_caching, f"Mamba mode {spec.mode} does not go with prefix caching as set")
    attention = [each.block_size for each in setup.groups if not isinstance(each, MambaSpec)]
    if spec.mode == "none":
        _require(spec.block_size == setup.max_model_len, "in Mamba mode none a block covers max_model_len tokens")
    elif spec.mode == "align" and attention:
        _require(set(attention) == {spec.block_size}, "in Mamba mode align a block covers as many tokens as an attention group's")
    _require(
        spec.num_speculative_blocks == setup.num_speculative_tokens,
        "a Mamba group has as many speculative blocks as there are speculative tokens",
    )


def speculative_method(setup: EngineSetup, release: Release) -> str | None:
    """How drafts are made; None without drafts."""
    if setup.num_speculative_tokens == 0:
        return None
    return str(settings(setup).get("speculative_method", "draft_model" if release.has("draft_models") else "eagle"))


def vllm_config_for(setup: EngineSetup, release: Release) -> Any:
    """The VllmConfig of a setup, without its pool: the same object whenever all but `num_blocks` is equal.

    Raises SetupError for what the release does not accept. Start-up writes block sizes into it, and some releases leave the length there
    that would fit into a pool that they refuse: both are put back.
    """
    config = _vllm_config(replace(setup, num_blocks=1), release)
    config.cache_config.block_size = cache_block_size(setup)
    config.model_config.max_model_len = setup.max_model_len
    return config


@lru_cache(maxsize=512)
def _vllm_config(setup: EngineSetup, release: Release) -> Any:
    prepare_process()
    check_setup(setup, release)
    import vllm.config as classes

    with refused():
        model = _model_config(setup.max_model_len)
        executor = _executor(setup, release)
        parallel = _parallel_config(setup.pipeline_parallel_size, executor)
        optional: dict[str, Any] = {}
        method = speculative_method(setup, release)
        if method is not None:
            optional["speculative_config"] = _speculative_config(
                method, setup.num_speculative_tokens, setup.max_model_len, setup.pipeline_parallel_size, executor
            )
        if setup.connector is not None:
            optional["kv_transfer_config"] = _transfer_config(setup.connector, release)
        return classes.VllmConfig(
            model_config=model,
            cache_config=_cache_config(setup, release),
            scheduler_config=_scheduler_config(setup, release),
            parallel_config=parallel,
            device_config=classes.DeviceConfig(device="cpu"),
            **optional,
        )


@lru_cache(maxsize=64)
def _model_config(max_model_len: int) -> Any:
    """Costs 4 ms: setups with the same length share it. Nothing in it depends on the groups."""
    from vllm.config import ModelConfig

    return ModelConfig(model=model_folder(), skip_tokenizer_init=True, dtype="float16", seed=0, max_model_len=max_model_len)


def _executor(setup: EngineSetup, release: Release) -> str:
    """As vLLM chooses it."""
    has_processes = setup.pipeline_parallel_size > 1 or (setup.async_scheduling and not release.has("checks_async"))
    return "mp" if has_processes else "uni"


@cache
def _parallel_config(stages: int, executor: str) -> Any:
    from vllm.config import ParallelConfig

    return ParallelConfig(pipeline_parallel_size=stages, distributed_executor_backend=executor)


@lru_cache(maxsize=256)
def _speculative_config(method: str, tokens: int, max_model_len: int, stages: int, executor: str) -> Any:
    from vllm.config import SpeculativeConfig

    drafter: dict[str, Any] = {"model": model_folder()}
    if method == "ngram":
        drafter = {"prompt_lookup_max": 4}
    elif method == "mtp":
        drafter = {"model": model_folder(architectures=(_MTP_ARCHITECTURE,), num_nextn_predict_layers=tokens)}
    return SpeculativeConfig(
        method=method,
        num_speculative_tokens=tokens,
        target_model_config=_model_config(max_model_len),
        target_parallel_config=_parallel_config(stages, executor),
        **drafter,
    )


def _scheduler_config(setup: EngineSetup, release: Release) -> Any:
    from vllm.config import SchedulerConfig

    chosen = {name: value for name, value in settings(setup).items() if name != "speculative_method"}
    _require("watermark" not in chosen or release.has("watermark"), f"{release.name} has no watermark")
    # A release takes no notice of a setting that it does not have.
    _require(
        "scheduler_reserve_full_isl" not in chosen or release.has("reserve_full_isl"),
        f"{release.name} has no scheduler_reserve_full_isl",
    )
    optional: dict[str, Any] = {"is_encoder_decoder": False} if release.has("scheduler_class") else {}
    return SchedulerConfig(
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        max_model_len=setup.max_model_len,
        enable_chunked_prefill=True,
        async_scheduling=setup.async_scheduling,
        # Asked for outright: some releases turn hybrid groups off beside a connector unless told.
        disable_hybrid_kv_cache_manager=False,
        **optional,
        **chosen,
    )


def _cache_config(setup: EngineSetup, release: Release) -> Any:
    from vllm.config import CacheConfig

    optional: dict[str, Any] = {"swap_space": 0} if release.has("swap_space") else {}
    if setup.hash_block_size is not None:
        optional["prefix_match_unit" if release.has("prefix_match_unit") else "hash_block_size"] = setup.hash_block_size
    mamba = next((spec for spec in setup.groups if isinstance(spec, MambaSpec)), None)
    if mamba is not None:
        optional["mamba_block_size"] = mamba.block_size
        if release.has("mamba_modes"):
            optional["mamba_cache_mode"] = mamba.mode
    return CacheConfig(
        block_size=cache_block_size(setup), cache_dtype="auto", enable_prefix_caching=setup.enable_prefix_caching, **optional
    )


def cache_block_size(setup: EngineSetup) -> int:
    """CacheConfig.block_size as a user sets it, in tokens: start-up may replace it by the smallest of the groups'."""
    sizes = [spec.block_size for spec in setup.groups if not (isinstance(spec, MambaSpec) and spec.mode == "none")]
    return min(sizes, default=_DEFAULT_BLOCK_SIZE)


def _transfer_config(connector: ConnectorSetup, release: Release) -> Any:
    from vllm.config import KVTransferConfig

    extra = dict(connector.extra)
    _require(_FAILURE_POLICY not in extra or release.has("failure_policy"), f"{release.name} has no {_FAILURE_POLICY}")
    optional: dict[str, Any] = {_FAILURE_POLICY: extra.pop(_FAILURE_POLICY)} if _FAILURE_POLICY in extra else {}
    if connector.name == MOCK_CONNECTOR:
        optional["kv_connector_module_path"] = MOCK_MODULE
    return KVTransferConfig(
        kv_connector=MOCK_CLASS if connector.name == MOCK_CONNECTOR else connector.name,
        kv_role=connector.role.value,
        kv_connector_extra_config=extra,
        engine_id="settled",  # a random one would make equal workloads differ
        **optional,
    )


# ---- KV cache specs ----------------------------------------------------------------------------------------------------------------


def layer_specs(setup: EngineSetup, release: Release) -> dict[str, Any]:
    """One layer for each group, by name: vLLM makes its groups of them. All have pages of equal size, as its pool demands."""
    page = page_bytes(setup)
    with refused():
        return {f"layers.{index}": _layer_spec(spec, page, release) for index, spec in enumerate(setup.groups)}


def page_bytes(setup: EngineSetup) -> int:
    """Bytes of a block of one layer: keys and values of 2 bytes an element."""
    return 2 * 2 * _ELEMENT * math.lcm(*[spec.block_size for spec in setup.groups if not isinstance(spec, MambaSpec)])


def _layer_spec(spec: KVCacheSpec, page: int, release: Release) -> Any:
    import torch
    import vllm.v1.kv_cache_interface as classes

    if isinstance(spec, MambaSpec):
        mode = {"mamba_cache_mode": spec.mode} if release.has("mamba_modes") else {}
        return classes.MambaSpec(
            block_size=spec.block_size,
            shapes=((_ELEMENT,),),
            dtypes=(torch.float16,),
            page_size_padded=page,
            num_speculative_blocks=spec.num_speculative_blocks,
            **mode,
        )
    shape: dict[str, Any] = {
        "block_size": spec.block_size,
        "num_kv_heads": 1,
        "head_size": page // (2 * 2 * spec.block_size),
        "dtype": torch.float16,
    }
    match spec:
        case SlidingWindowSpec():
            # Start-up itself adds the extra retained tokens.
            return classes.SlidingWindowSpec(sliding_window=spec.window, **shape)
        case ChunkedLocalAttentionSpec():
            return classes.ChunkedLocalAttentionSpec(attention_chunk_size=spec.chunk, **shape)
        case RSWASpec():
            return classes.RSWASpec(rswa_window=spec.window, **shape)
        case _:
            return classes.FullAttentionSpec(**shape)


def describes(spec: KVCacheSpec, made: Any) -> bool:
    """Whether a group that start-up made is the one that the setup asks for."""
    import vllm.v1.kv_cache_interface as classes

    if made.block_size != spec.block_size:
        return False
    match spec:
        case SlidingWindowSpec():
            retained = getattr(made, "extra_retained_tokens", 0)
            return type(made) is classes.SlidingWindowSpec and (made.sliding_window, retained) == (spec.window, spec.extra_retained)
        case ChunkedLocalAttentionSpec():
            return type(made) is classes.ChunkedLocalAttentionSpec and made.attention_chunk_size == spec.chunk
        case MambaSpec():
            return type(made) is classes.MambaSpec and made.num_speculative_blocks == spec.num_speculative_blocks
        case RSWASpec():
            return type(made) is classes.RSWASpec and made.rswa_window == spec.window
        case _:
            return type(made) is classes.FullAttentionSpec and made.sliding_window is None and made.attention_chunk_size is None
