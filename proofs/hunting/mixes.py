"""What a hunt draws, as data: a mix is a table of weights. The same mix, seed and number always give the same workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple


class Pipeline(NamedTuple):
    """How many steps may be in flight follows from these two, and the engine."""

    async_scheduling: bool
    pipeline_parallel_size: int


ASYNC, SYNC = Pipeline(True, 1), Pipeline(False, 1)
STAGES, ASYNC_STAGES, THREE_STAGES = Pipeline(False, 2), Pipeline(True, 2), Pipeline(True, 3)

# The kinds of a setup's groups.
WINDOW, FULL, CHUNK, RSWA, MAMBA_NONE, MAMBA_ALIGN = "window", "full", "chunk", "rswa", "mamba none", "mamba align"
Kinds = tuple[str, ...]

# Without one; the mock in a role; vLLM's own, by their names.
NO_CONNECTOR, PRODUCER, CONSUMER, BOTH = "none", "producer", "consumer", "both"
OFFLOADING = ("OffloadingConnector", "SimpleCPUOffloadConnector")


Settings = tuple[tuple[str, int | str], ...]
METHODS: Mapping[str, int] = MappingProxyType({"": 6, "eagle": 2, "ngram": 1})  # how drafts are made; "": the engine's own choice
SCHEDULING: Mapping[Settings, int] = MappingProxyType(
    {
        (): 10,
        (("watermark", "0.1"),): 1,
        (("long_prefill_token_threshold", 16),): 1,
        (("scheduler_reserve_full_isl", 0),): 2,
        (("long_prefill_token_threshold", 8), ("scheduler_reserve_full_isl", 0)): 1,
    }
)


def _table(weights: Mapping[Kinds, int]) -> Mapping[Kinds, int]:
    return MappingProxyType(dict(weights))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Weights by option. Sizes in tokens unless they say blocks; `percent_...` in percent of the setups or requests that could."""

    summary: str
    groups: Mapping[Kinds, int]
    drafts: Mapping[int, int] = field(default_factory=lambda: {0: 3, 1: 2, 3: 4, 5: 2})
    pipelines: Mapping[Pipeline, int] = field(default_factory=lambda: {ASYNC: 10, SYNC: 1, STAGES: 2, ASYNC_STAGES: 1, THREE_STAGES: 1})
    connectors: Mapping[str, int] = field(default_factory=lambda: {NO_CONNECTOR: 1})
    block_sizes: Mapping[int, int] = field(default_factory=lambda: {16: 4, 8: 1, 32: 1})
    spare_blocks: Mapping[int, int] = field(default_factory=lambda: {0: 3, 1: 3, 2: 2, 4: 2, 8: 2, 40: 1})
    methods: Mapping[str, int] = field(default_factory=lambda: METHODS)
    scheduling: Mapping[Settings, int] = field(default_factory=lambda: SCHEDULING)
    percent_recompute: int = 50  # of the setups with a mock connector: failed loads are computed instead of failing the request
    percent_prefix_caching: int = 60
    percent_hash_block: int = 75  # of the cached setups with several groups: a hash covers a part of a block
    percent_extra_retained: int = 20
    percent_shared: int = 50
    percent_related: int = 65  # of the workloads of cached setups: prompts go on from one another
    percent_crowded: int = 65  # of all workloads: requests that fill the pool together and then grow
    percent_stop: int = 10
    percent_abort: int = 12
    percent_abort_consumer: int = 12  # in place of it, where a connector may load
    percent_stored: int = 30
    percent_offered: int = 70
    percent_whole_load: int = 30  # of the loads that are offered, as all that follow
    percent_sync_load: int = 25
    percent_failed_load: int = 50
    percent_failed_report: int = 40
    percent_report_again: int = 10


_WINDOWS = _table({(WINDOW,): 3, (FULL, WINDOW): 3, (WINDOW, WINDOW): 1, (FULL, WINDOW, WINDOW): 1})
_CHUNKS = _table({(CHUNK,): 2, (FULL, CHUNK): 3, (WINDOW, CHUNK): 1})
_STATES = _table({(MAMBA_NONE,): 1, (FULL, MAMBA_NONE): 2, (FULL, MAMBA_ALIGN): 3, (FULL, WINDOW, MAMBA_ALIGN): 1})
_LOADS = {CONSUMER: 2, BOTH: 5, PRODUCER: 1}
_OFFLOADS = dict.fromkeys(OFFLOADING, 1)

MIXES: Mapping[str, Mix] = MappingProxyType(
    {
        "windows": Mix(
            summary="sliding windows, alone and in hybrids; half of them with loads of a part of a prompt that all end well",
            groups=_WINDOWS,
            drafts={0: 1, 1: 2, 3: 4, 5: 2},
            block_sizes={4: 3, 8: 3, 16: 3, 32: 1},  # a window leaves small blocks often
            connectors={NO_CONNECTOR: 1, CONSUMER: 1},
            # Without what is a finding of its own: several stages that are not asynchronous (drafts without a token), mtp beside hits.
            pipelines={ASYNC: 10, SYNC: 1, ASYNC_STAGES: 1, THREE_STAGES: 1},
            methods={"": 1},
            scheduling={(): 1},
            percent_extra_retained=0,
            percent_hash_block=0,
            percent_crowded=15,
            percent_abort_consumer=0,
            percent_stored=0,
            percent_whole_load=0,
            percent_sync_load=0,
            percent_failed_load=0,
            percent_failed_report=0,
            percent_report_again=0,
        ),
        "chunks": Mix(summary="chunked local attention, whole chunks a block or not", groups=_CHUNKS),
        "states": Mix(summary="Mamba none and align, alone and in hybrids", groups=_STATES),
        "full": Mix(
            summary="full attention, and reference windows (R-SWA), which keep the prompt", groups=_table({(FULL,): 3, (RSWA,): 1})
        ),
        "connectors": Mix(
            summary="windows, chunks and full attention with a mock connector: loads, stores, failures, repeated reports",
            groups=_table({(FULL,): 3, **_WINDOWS, **_CHUNKS}),
            connectors=_LOADS,
        ),
        "offloading": Mix(
            summary="vLLM's own offloading connectors: what the pool loses is loaded from the host's memory again",
            groups=_table({(FULL,): 3, **_WINDOWS, **_CHUNKS}),
            connectors=_OFFLOADS,
            percent_prefix_caching=90,
            percent_shared=80,
        ),
        "all": Mix(
            summary="everything, with and without a connector",
            groups=_table({(FULL,): 3, (RSWA,): 2, **_WINDOWS, **_CHUNKS, **{kinds: 2 * weight for kinds, weight in _STATES.items()}}),
            connectors={NO_CONNECTOR: 12, **{role: 2 * weight for role, weight in _LOADS.items()}, **_OFFLOADS},
        ),
    }
)
DEFAULT_MIX = "all"
