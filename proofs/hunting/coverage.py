"""What a hunt reaches, beside what its traces tell."""

from __future__ import annotations

from settled.proofs.fuzzing.coverage import DEPTH, EventCoverage, Feature
from settled.reference.engines.operations import Add, Operation, Process, Report, Workload
from settled.reference.engines.protocol import Engine

GROUPS, PIPELINE, CONNECTOR, OPERATION = "kinds of groups", "pipeline", "connector", "operations"


class HuntCoverage(EventCoverage):
    """Counts features. Give `begin` every workload, and `after` the engine after every operation that could be done."""

    def begin(self, workload: Workload) -> None:
        setup, counts = workload.setup, self.counts
        counts[Feature(GROUPS, " + ".join(spec.kind for spec in setup.groups))] += 1
        scheduling = "asynchronous" if setup.async_scheduling else "synchronous"
        counts[Feature(PIPELINE, f"{scheduling}, {setup.pipeline_parallel_size} stages")] += 1
        connector = "none" if setup.connector is None else f"{setup.connector.name} {setup.connector.role}"
        counts[Feature(CONNECTOR, connector)] += 1
        if setup.enable_prefix_caching:
            counts[Feature(PIPELINE, "prefix caching")] += 1
        if setup.num_speculative_tokens:
            counts[Feature(PIPELINE, f"{setup.num_speculative_tokens} drafts")] += 1

    def after(self, engine: Engine, operation: Operation) -> None:
        self.counts[Feature(OPERATION, _label(operation))] += 1
        self.counts[Feature(DEPTH, str(engine.num_unprocessed_steps))] += 1


def _label(operation: Operation) -> str:
    match operation:
        case Add(offer=None):
            return "add"
        case Add(offer=offer):
            assert offer is not None
            return f"add, {'asynchronous' if offer.is_async else 'synchronous'} load"
        case Report():
            return f"report: {operation.ending}" + (", again" if operation.again else "")
        case Process(stops=stops) if stops:
            return "process, with a stop"
    return type(operation).__name__.lower()
