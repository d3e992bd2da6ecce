"""What a hunt reaches, beside what its traces tell."""

from __future__ import annotations

from functools import cache

from settled.proofs.fuzzing.coverage import DEPTH, EventCoverage, Feature, feature
from settled.reference.engines.operations import Add, Operation, Process, Report, Workload
from settled.reference.engines.protocol import Engine

GROUPS, PIPELINE, CONNECTOR, OPERATION = "kinds of groups", "pipeline", "connector", "operations"


class HuntCoverage(EventCoverage):
    """Counts features. Give `begin` every workload, and `after` the engine after every operation that could be done."""

    def begin(self, workload: Workload) -> None:
        setup, counts = workload.setup, self.counts
        counts[feature(GROUPS, " + ".join(spec.kind for spec in setup.groups))] += 1
        scheduling = "asynchronous" if setup.async_scheduling else "synchronous"
        counts[feature(PIPELINE, f"{scheduling}, {setup.pipeline_parallel_size} stages")] += 1
        connector = "none" if setup.connector is None else f"{setup.connector.name} {setup.connector.role}"
        counts[feature(CONNECTOR, connector)] += 1
        if setup.enable_prefix_caching:
            counts[feature(PIPELINE, "prefix caching")] += 1
        if setup.num_speculative_tokens:
            counts[feature(PIPELINE, f"{setup.num_speculative_tokens} drafts")] += 1

    def after(self, engine: Engine, operation: Operation) -> None:
        self.counts[_of_operation(operation)] += 1
        self.counts[_of_depth(engine.num_unprocessed_steps)] += 1


@cache
def _of_depth(num_unprocessed_steps: int) -> Feature:
    return Feature(DEPTH, str(num_unprocessed_steps))


def _of_operation(operation: Operation) -> Feature:
    if isinstance(operation, Add):
        offer = operation.offer
        return feature(OPERATION, "add" if offer is None else f"add, {'asynchronous' if offer.is_async else 'synchronous'} load")
    if isinstance(operation, Report):
        return feature(OPERATION, f"report: {operation.ending}" + (", again" if operation.again else ""))
    if isinstance(operation, Process) and operation.stops:
        return feature(OPERATION, "process, with a stop")
    return _of_class(type(operation).__name__)


@cache
def _of_class(name: str) -> Feature:
    return Feature(OPERATION, name.lower())
