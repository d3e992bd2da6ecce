"""How an engine is built for a workload, as plain data that no engine is named in."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from settled.model.specs import KVCacheSpec


class SetupError(ValueError):
    """The engine does not accept this setup, or a workload asks for what no user of it could: misuse by the harness, never a finding.

    `hint`: how to mend it, if known.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class KVRole(StrEnum):
    """What a connector may do, as vLLM names it. A consumer loads into pool blocks."""

    PRODUCER = "kv_producer"
    CONSUMER = "kv_consumer"
    BOTH = "kv_both"


MOCK_CONNECTOR = "mock"  # loads, stores and reports as the workload tells it to; every engine has it


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSetup:
    """A KV connector. `name`: MOCK_CONNECTOR or the engine's own name of one of its connectors; `extra`: its own settings."""

    name: str = MOCK_CONNECTOR
    role: KVRole = KVRole.BOTH
    extra: tuple[tuple[str, int | str], ...] = ()

    @property
    def is_consumer(self) -> bool:
        """Whether it may load into pool blocks."""
        return self.role is not KVRole.PRODUCER


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """Sizes are in tokens unless they say blocks, sequences or steps; `num_blocks` counts the null block.

    How many steps may be in flight follows from `async_scheduling`, `pipeline_parallel_size` and the engine, which tells it
    (`Engine.max_in_flight_steps`). `hash_block_size`: tokens that one hash of the prefix cache covers (None: the engine's own choice).
    `num_speculative_tokens`: drafts that a decode step carries at most. `extra` are settings that only one engine knows.
    An engine raises SetupError for a setup that a user's command line could not bring about.
    """

    groups: tuple[KVCacheSpec, ...]
    num_blocks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    async_scheduling: bool = True
    pipeline_parallel_size: int = 1
    num_speculative_tokens: int = 0
    enable_prefix_caching: bool = False
    hash_block_size: int | None = None
    connector: ConnectorSetup | None = None
    extra: tuple[tuple[str, int | str], ...] = field(default=())

    @property
    def kv_consumer(self) -> bool:
        """Whether a connector may load into pool blocks."""
        return self.connector is not None and self.connector.is_consumer
