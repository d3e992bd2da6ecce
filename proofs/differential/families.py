"""Workloads for the buffers, by seed: random runs of the reference, turned towards what a row of the table is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType

from settled.reference.admission import blocks_for_one_request
from settled.reference.config import EngineConfig
from settled.reference.workload import ALL_KINDS, LOADABLE_KINDS, Workload, random_workload

KEY_KINDS = tuple(kind for kind in ALL_KINDS if not kind.startswith("mamba"))
STATE_KINDS = ("full", "mamba none", "mamba align")


@dataclass(frozen=True, slots=True)
class Family:
    """`draw`: the workload of a seed. `fence`: in place of the discipline's own; without one, loads wait for steps in flight."""

    name: str
    summary: str
    draw: Callable[[int], Workload]
    fence: bool | None = None


def _everything(seed: int) -> Workload:
    return _with(random_workload(seed), kv_consumer=True)


def _loads(seed: int) -> Workload:
    """Many loads into what was just freed, for the pool has little else; and nothing else that could go wrong: no drafts."""
    rng = Random(seed ^ 0x10AD)
    workload = _without_drafts(random_workload(seed, kinds=LOADABLE_KINDS))
    chances = replace(
        workload.connector_chances, match=0.9, asynchronous=1.0, whole=rng.choice((0.0, 0.3)), unknown=0.0, store=0.0, store_finished=0.0
    )
    workload = replace(workload, connector_chances=chances, chance_add=0.6, requests_max=max(4, workload.requests_max))
    return _with(workload, spare_blocks=rng.choice((0, 1, 2, 4)), connector=True, kv_consumer=True, transfers_wait=False, watermark=0.0)


def _loads_in_steps(seed: int) -> Workload:
    workload = _loads(seed)
    return replace(workload, connector_chances=replace(workload.connector_chances, asynchronous=0.0))


def _stores(seed: int) -> Workload:
    workload = _loads(seed)
    chances = replace(workload.connector_chances, match=0.3, store=0.9, store_finished=0.9)
    return replace(workload, connector_chances=chances)


def _drafts(seed: int) -> Workload:
    """Many drafts, most of them rejected, and no connector."""
    return _draft(random_workload(seed, kinds=KEY_KINDS), seed)


def _states(seed: int) -> Workload:
    return _draft(random_workload(seed, kinds=STATE_KINDS), seed)


def _draft(workload: Workload, seed: int) -> Workload:
    rng = Random(seed ^ 0xD4AF)
    workload = replace(workload, chance_accept=rng.choice((0.2, 0.5)), chance_add=0.6)
    return _with(workload, connector=False, kv_consumer=False)


def _preemptions(seed: int) -> Workload:
    workload = _everything(seed)
    return replace(workload, chance_preempt=0.15, chance_abort=0.05)


def _without_drafts(workload: Workload) -> Workload:
    return _with(workload, num_speculative_tokens=0, num_lookahead_tokens=0)


def _with(workload: Workload, *, spare_blocks: int | None = None, **changes: object) -> Workload:
    """Other settings, two steps in flight at least, and `spare_blocks` in the pool beside one request of maximum length (None: as many as
    before).
    """
    config = workload.config
    if spare_blocks is None:
        spare_blocks = config.num_blocks - 1 - blocks_for_one_request(config)
    changed: EngineConfig = replace(config, **{"max_in_flight_steps": max(2, config.max_in_flight_steps), **changes})  # type: ignore[arg-type]
    return replace(workload, config=replace(changed, num_blocks=1 + blocks_for_one_request(changed) + spare_blocks))


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            Family("everything", "every kind, hybrids, cache, drafts, connector, preemptions", _everything),
            Family("unfenced", "the same without a fence: loads wait on the device for the steps in flight", random_workload, fence=False),
            Family("loads", "windows and chunks under asynchronous loads, no drafts", _loads),
            Family("loads-in-steps", "the same with loads within steps", _loads_in_steps),
            Family("stores", "the same with stores", _stores),
            Family("drafts", "kinds of keys with drafts, most of them rejected, no connector", _drafts),
            Family("states", "Mamba with drafts, most of them rejected, no connector", _states),
            Family("preemptions", "everything, with preemptions and aborts under steps in flight", _preemptions),
        )
    }
)
