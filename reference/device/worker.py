"""What the worker beside the scheduler does about order on the device, as data: the right way, and ways to get it wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """`name` is what the command line calls it."""

    name: str
    summary: str
    staging_ring: bool = True  # a staging buffer for every step that may be in flight; else one, overwritten while its upload is pending
    steps_wait: bool = True  # a step waits for the loads within it
    stores_wait: bool = True  # a store waits for what its `after` names
    told_of_nulls: bool = False  # a step uploads the scheduler's tables as they stand; else rows only grow, as vLLM's do
    loads_fenced: bool = False  # a load waits for the latest step, whatever its `after` names: makes any early free harmless for bytes


RIGHT_WORKER = Worker(name="right", summary="a staging buffer a step in flight, steps wait for their loads, stores for their writers")
FENCED = Worker(name="fenced", summary="besides, each load waits for the latest step", loads_fenced=True)
TOLD_OF_NULLS = Worker(
    name="told-of-nulls",
    summary="each step uploads the scheduler's tables, null entries included, where vLLM's rows only grow",
    told_of_nulls=True,
)
ONE_STAGING_BUFFER = Worker(
    name="one-staging-buffer",
    summary="one staging buffer for the block table, overwritten while its upload is pending",
    staging_ring=False,
)
UNAWAITED_LOADS = Worker(name="unawaited-loads", summary="steps do not wait for the loads within them", steps_wait=False)
UNORDERED_STORES = Worker(name="unordered-stores", summary="stores do not wait for the steps that write what they read", stores_wait=False)

WORKERS: dict[str, Worker] = {
    worker.name: worker for worker in (RIGHT_WORKER, FENCED, TOLD_OF_NULLS, ONE_STAGING_BUFFER, UNAWAITED_LOADS, UNORDERED_STORES)
}
