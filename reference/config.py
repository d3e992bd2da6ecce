"""What an engine is built from: the groups, the pool, the pipeline, the discipline."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import gcd

from settled.model.disciplines import RIGHT, Discipline
from settled.model.specs import CrossAttentionSpec, CustomSpec, KVCacheSpec, MambaSpec
from settled.reference.masks import is_registered


class ConfigError(ValueError):
    """The engine cannot be built like this; the message says which field is wrong."""


class StaleOutputMode(StrEnum):
    """What becomes of the output of steps that were in flight when their request was preempted."""

    DELIVER = "deliver"  # its tokens count; the request resumes only after all of it has come back
    DROP = "drop"  # it is thrown away; the request may resume at once


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """`num_blocks` counts the null block; `max_in_flight_steps` is the pipeline depth (1: synchronous scheduling).

    `num_speculative_tokens` is the number of drafts that a decode step carries at most, `num_lookahead_tokens` the slots
    that a step may write past its tokens. Without `enable_chunked_prefill` a prefill is one step; with it, one takes at most
    `long_prefill_token_threshold` tokens of it (0: any number). `kv_consumer` says that a connector may load into pool blocks;
    `connector`, that there is one, which may load, store, and is shown the table of every finished request; `transfers_wait`, that
    an asynchronous load waits on the device for the steps in flight when it starts.

    `hash_block_size`: tokens that one hash of the prefix cache covers, a divisor of every block size (None: the greatest). If it is
    given and smaller than a block, and all groups are full attention, a hit may end within a block, which is then copied.
    `zero_fresh_blocks`: fresh blocks are zeroed before a step uses them (None: those of keys, if a group of states shares the pool, for
    bytes of a state may read as NaN). `watermark`: the part of the pool that stays free when a request is admitted beside running ones.
    Raises ConfigError.
    """

    groups: tuple[KVCacheSpec, ...]
    num_blocks: int
    max_in_flight_steps: int = 1
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    num_speculative_tokens: int = 0
    num_lookahead_tokens: int = 0
    max_model_len: int = 16384
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    enable_prefix_caching: bool = False
    hash_block_size: int | None = None
    zero_fresh_blocks: bool | None = None
    watermark: float = 0.0
    kv_consumer: bool = False
    connector: bool = False
    transfers_wait: bool = False
    stale_output_mode: StaleOutputMode = StaleOutputMode.DELIVER
    discipline: Discipline = RIGHT

    def __post_init__(self) -> None:
        if not self.groups:
            raise ConfigError("groups: at least one KV cache group is needed")
        at_least = {
            "num_blocks": 2,
            "max_in_flight_steps": 1,
            "max_num_batched_tokens": 1,
            "max_num_seqs": 1,
            "num_speculative_tokens": 0,
            "long_prefill_token_threshold": 0,
            "num_lookahead_tokens": 0,
            "max_model_len": 2,
        }
        if self.hash_block_size is not None:
            at_least["hash_block_size"] = 1
        for name, minimum in at_least.items():
            if getattr(self, name) < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, not {getattr(self, name)}")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}: a prefill of up to {self.max_model_len} tokens must fit into a "
                "step without enable_chunked_prefill"
            )
        if self.hash_block_size is not None and any(spec.block_size % self.hash_block_size for spec in self.cached_groups):
            raise ConfigError(f"hash_block_size: {self.hash_block_size} does not divide every block size")
        if not 0 <= self.watermark < 1:
            raise ConfigError(f"watermark must be at least 0 and below 1, not {self.watermark}")
        for index, spec in enumerate(self.groups):
            problem = self._problem_with(spec)
            if problem is not None:
                raise ConfigError(f"groups[{index}]: {problem}")

    @property
    def max_in_flight_tokens(self) -> int:
        """M: tokens scheduled and not processed, at most: one full batch for every step of the pipeline."""
        return self.max_in_flight_steps * self.max_num_batched_tokens

    @property
    def cached_groups(self) -> tuple[KVCacheSpec, ...]:
        """The groups whose blocks the prefix cache may know: all but states overwritten in place."""
        return tuple([spec for spec in self.groups if not (isinstance(spec, MambaSpec) and spec.mode == "none")])

    @property
    def tokens_per_hash(self) -> int:
        """Tokens that one hash covers."""
        if self.hash_block_size is not None:
            return self.hash_block_size
        return gcd(*(spec.block_size for spec in self.cached_groups)) or 1

    def zeroes(self, spec: KVCacheSpec) -> bool:
        """Whether fresh blocks of a group are zeroed."""
        if self.zero_fresh_blocks is not None:
            return self.zero_fresh_blocks
        return not isinstance(spec, MambaSpec) and any(isinstance(other, MambaSpec) for other in self.groups)

    def _problem_with(self, spec: KVCacheSpec) -> str | None:
        """Why the engine cannot serve a group; None if it can."""
        match spec:
            case CrossAttentionSpec():
                return "the reference engine has no encoder, so no manager for kind 'cross'"
            case CustomSpec() if not is_registered(spec.name):
                return f"no mask named {spec.name!r} is registered; call settled.reference.masks.register_mask first"
            case MambaSpec():
                return self._problem_with_states(spec)
            case _:
                return None

    def _problem_with_states(self, spec: MambaSpec) -> str | None:
        if spec.mode == "all":
            return "the reference engine has no manager for mamba mode 'all'"
        if spec.num_speculative_blocks < self.num_speculative_tokens:
            return f"{spec.num_speculative_blocks} draft slots for up to {self.num_speculative_tokens} drafts a step"
        if spec.mode == "align" and spec.block_size <= self.num_speculative_tokens:
            return f"a decode step of 1 + {self.num_speculative_tokens} tokens must fit into a block of {spec.block_size} tokens"
        if spec.mode == "none" and spec.block_size < self.max_model_len:
            return f"one block holds the state of a whole request: block_size {spec.block_size}, max_model_len {self.max_model_len}"
        if spec.mode == "none" and self.enable_prefix_caching:
            return "a state overwritten in place (mamba mode 'none') cannot be cached"
        return None
