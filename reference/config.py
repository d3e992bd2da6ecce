"""What an engine is built from: the groups, the pool, the pipeline, the discipline."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from settled.model.disciplines import RIGHT, Discipline
from settled.model.specs import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec

SUPPORTED_KINDS = (FullAttentionSpec, SlidingWindowSpec)


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
    that a step may write past its tokens. `kv_consumer` says that a connector may load into pool blocks; `connector`, that
    a connector is shown the table of every finished request. Raises ConfigError.
    """

    groups: tuple[KVCacheSpec, ...]
    num_blocks: int
    max_in_flight_steps: int = 1
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    num_speculative_tokens: int = 0
    num_lookahead_tokens: int = 0
    max_model_len: int = 16384
    enable_prefix_caching: bool = False
    kv_consumer: bool = False
    connector: bool = False
    stale_output_mode: StaleOutputMode = StaleOutputMode.DELIVER
    discipline: Discipline = RIGHT

    def __post_init__(self) -> None:
        if not self.groups:
            raise ConfigError("groups: at least one KV cache group is needed")
        for index, spec in enumerate(self.groups):
            if not isinstance(spec, SUPPORTED_KINDS):
                raise ConfigError(f"groups[{index}]: the reference engine has no manager for kind {spec.kind!r}")
        at_least = {
            "num_blocks": 2,
            "max_in_flight_steps": 1,
            "max_num_batched_tokens": 1,
            "max_num_seqs": 1,
            "num_speculative_tokens": 0,
            "num_lookahead_tokens": 0,
            "max_model_len": 2,
        }
        for name, minimum in at_least.items():
            if getattr(self, name) < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, not {getattr(self, name)}")

    @property
    def max_in_flight_tokens(self) -> int:
        """M: tokens scheduled and not processed, at most: one full batch for every step of the pipeline."""
        return self.max_in_flight_steps * self.max_num_batched_tokens
