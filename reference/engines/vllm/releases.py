"""What differs between releases of vLLM, in one table. Everything else asks the table for a capability by name.

`since` and `until` are the first tested releases that have it, and that have it no longer; a release between two tested ones is taken
for the older of the two, and one that is newer than all of them for the newest. Tested: `TESTED`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from settled.reference.engines.setup import SetupError

TESTED = (
    "0.11.0",
    "0.11.1",
    "0.11.2",
    "0.12.0",
    "0.13.0",
    "0.16.0",
    "0.18.1",
    "0.20.2",
    "0.23.0",
    "0.24.0",
    "0.25.1",
    "0.26.0",
    "0.29.0",
    "0.33.0",
)

_OLDEST = (0, 11, 0)


@dataclass(frozen=True, slots=True)
class Difference:
    """A capability that not every release has. `otherwise`: what the adapter does where it is missing."""

    since: str | None = None
    until: str | None = None
    what: str = ""
    otherwise: str = ""


DIFFERENCES: dict[str, Difference] = {
    # ---- start-up ----
    "scheduler_class": Difference(
        "0.11.1", None, "SchedulerConfig.get_scheduler_cls; it takes is_encoder_decoder", "the classes that the command line names"
    ),
    "scheduler_block_size": Difference("0.11.1", None, "the scheduler takes block_size", "it is not passed"),
    "checks_async": Difference(
        "0.11.1",
        None,
        "VllmConfig refuses what does not go with asynchronous scheduling, which any executor does",
        "the command line's own refusals, drafts and stages, and its executor, that of several processes",
    ),
    "hashing_module": Difference("0.11.1", None, "vllm.utils.hashing", "vllm.utils"),
    "start_up_returns_counts": Difference(
        None, "0.18.1", "_initialize_kv_caches returns (device blocks, host blocks, config)", "the config"
    ),
    "depth_on_config": Difference("0.23.0", None, "VllmConfig.max_concurrent_batches", "the executor class tells it"),
    "resolves_block_sizes": Difference(
        "0.20.2", None, "resolve_kv_cache_block_sizes; the scheduler takes hash_block_size", "one size, that of the cache config"
    ),
    "retention_interval": Difference("0.29.0", None, "KVCacheConfig.prefix_cache_retention_interval", "scripts do not pass it"),
    "swap_space": Difference(None, "0.18.1", "CacheConfig.swap_space, 4 GiB of host memory unless told", "no such setting"),
    "watermark": Difference("0.24.0", None, "SchedulerConfig.watermark", "refused when set"),
    # ---- kinds of groups ----
    "extra_retained": Difference("0.29.0", None, "SlidingWindowSpec.extra_retained_tokens, set by multi-module MTP", "refused"),
    "mamba_modes": Difference("0.16.0", None, "CacheConfig.mamba_cache_mode", "mode none alone"),
    "mamba_all": Difference("0.16.0", "0.33.0", "mamba_cache_mode all", "refused"),
    "rswa": Difference("0.25.1", None, "RSWASpec", "refused"),
    # ---- settings ----
    "hash_block_size": Difference("0.20.2", "0.26.0", "CacheConfig.hash_block_size", "see prefix_match_unit"),
    "reserve_full_isl": Difference("0.20.2", None, "SchedulerConfig.scheduler_reserve_full_isl", "refused when set"),
    "prefix_match_unit": Difference("0.26.0", None, "CacheConfig.prefix_match_unit, the new name of hash_block_size", "refused when set"),
    "draft_models": Difference("0.16.0", None, "speculative method draft_model, also when asynchronous", "eagle"),
    # ---- requests and steps ----
    "eos_on_request": Difference(None, "0.18.1", "Request takes eos_token_id", "it is not passed"),
    "resumed_ids": Difference("0.11.1", None, "CachedRequestData.resumed_req_ids", "resumed_from_preemption, a flag each"),
    "counts_preemptions": Difference("0.11.1", None, "Request.num_preemptions", "scripts tell no number"),
    "sampled_arrays": Difference("0.11.1", "0.12.0", "ModelRunnerOutput.sampled_token_ids are NumPy arrays", "lists"),
    "hash_lookahead": Difference("0.33.0", None, "get_request_block_hasher takes num_hash_lookahead_tokens", "it is not passed"),
    # ---- connectors ----
    "connector_groups": Difference(
        "0.11.1", None, "connectors are told of the groups; with SupportsHMA they serve several", "one group, by the cache config"
    ),
    "failed_blocks": Difference("0.11.1", None, "KVConnectorOutput.invalid_block_ids", "no load fails"),
    "failure_policy": Difference("0.13.0", None, "KVTransferConfig.kv_load_failure_policy", "refused when set"),
    "failed_requests": Difference(
        "0.33.0", None, "KVConnectorOutput.failed_recving; failed blocks of several groups are refused", "failed blocks"
    ),
    "offloading_jobs": Difference("0.23.0", None, "OffloadingConnector's metadata names jobs", "the connector is refused"),
    "simple_offload": Difference("0.23.0", None, "SimpleCPUOffloadConnector, its stores acknowledged by event", "refused"),
}
"""Each is asked for by `Release.has`."""


def _key(release: str) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", release)
    if match is None:
        raise SetupError(f"not a release of vLLM: {release!r}")
    return tuple([int(part or 0) for part in match.groups()])


@dataclass(frozen=True, slots=True)
class Release:
    """A release. `is_known` is false for one that is newer than every tested one: it is treated as the newest of them."""

    version: str

    @property
    def name(self) -> str:
        return f"vllm {self.version}"

    @property
    def is_known(self) -> bool:
        return _key(self.version) <= _key(TESTED[-1])

    def has(self, capability: str) -> bool:
        """Whether it has an entry of the table. Raises KeyError for what is not in the table."""
        return _has(self.version, capability)


@cache  # asked for every request
def _has(version: str, capability: str) -> bool:
    difference = DIFFERENCES[capability]
    release = _key(version)
    return (difference.since is None or release >= _key(difference.since)) and (
        difference.until is None or release < _key(difference.until)
    )


def installed_release() -> Release:
    """The release that `import vllm` finds. Raises SetupError if there is none, or one older than the oldest that is known."""
    try:
        release = version("vllm")
    except PackageNotFoundError:
        raise SetupError("vLLM is not installed in this environment", "settled engines install vllm") from None
    if _key(release) < _OLDEST:
        hint = "settled engines install vllm brings the newest release, and vllm==X another one"
        raise SetupError(f"vLLM {release} is older than 0.11.0, the oldest release that this adapter can drive", hint)
    return Release(release)
