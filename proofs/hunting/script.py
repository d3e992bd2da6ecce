"""A standalone script for a finding: imports vLLM alone, does what the workload does, prints what happens, says whether the fault is there.

It holds what this one workload needs and nothing else, so that a maintainer reads it like a reproducer written by hand. What differs
between releases is settled here, when the script is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from textwrap import wrap
from zlib import crc32

from settled.proofs.found_properties import ENGINE_FAULT, MEANING
from settled.proofs.hunting.engines import VLLM, parse_engine
from settled.proofs.hunting.finding import Finding
from settled.proofs.hunting.script_configuration import configuration_values, needs_resolving
from settled.proofs.hunting.script_connector import ScriptedConnector
from settled.proofs.hunting.template import fill
from settled.proofs.watching import Key
from settled.reference.engines.operations import STOP_TOKEN, Abort, Add, Operation, Process, Report, Schedule, Workload
from settled.reference.engines.setup import EngineSetup, SetupError
from settled.reference.engines.vllm.releases import Release
from settled.reference.engines.vllm.steps import DraftsWithoutTokenError

_READS = ("read_resident", "rollback_resident", "write_owned")
_JUDGED = {"reads", "progress", "caps", "gate", "references", "counters", "computed"}  # features that come with a condition
# What the script's own comparison of references with holders sees; of another cause it says nothing.
_OF_REFERENCES = ("inspected: references_", "inspected: held_block_free", "inspected: free_block_lost")
_EXITS = "Exits 1 where the fault is there, 0 where it is not."
_ENDS = "Ends in the scheduler's exception where the fault is there, exits 0 where it is not."
_SHOWS = "Prints the scheduler's objects at the end; it does not judge them."
_NO_PROGRESS = ("nothing moves", "no end")  # how a run says that it gave up
_RESUMED_FLAG = "cached.resumed_from_preemption[cached.req_ids.index(request_id)]"


def standalone_script(workload: Workload, release: str, finding: Finding) -> str:
    """The text of the script, for one release of vLLM ("0.25.1"). It does what the run of the finding did, if that is known.

    Raises SetupError for a release that is no number, a group that vLLM has no spec for, a connector other than the mock.
    """
    known = Release(release)
    # A script serves what is left itself, and says so in one line: the run's own serving would only be longer.
    operations = workload.operations if _is_stuck(finding.key) else finding.done or workload.operations
    connector = ScriptedConnector(workload.setup, operations, known, serves=_is_stuck(finding.key))
    features = _features(workload.setup, operations, finding.key, known) | _present(connector.features)
    if features & _JUDGED or finding.key.property == ENGINE_FAULT:
        features |= {"judged"}
    if features & {"reads", "objects", "unchecked_drafts"}:
        features |= {"exits"}
    values = {
        **configuration_values(workload.setup, known),
        **connector.gaps,
        **_gaps(features, finding.key, known),
        "title": f"vLLM {release}: {MEANING.get(finding.key.property, finding.key.property)}.",
        "story": "\n".join(wrap(f"{finding.key.property}, {finding.key.cause}: {finding.sentence}", 120)),
        "release": release,
        "exits": _ENDS if finding.key.property == ENGINE_FAULT and "exits" not in features else _EXITS if "judged" in features else _SHOWS,
        "operations": "\n".join(_calls(operations, features, connector)),
    }
    text = files("settled.proofs.hunting").joinpath("reproducer.template").read_text(encoding="utf-8")
    return fill(text, features, values)


def script_for(finding: Finding) -> str | None:
    """What shows a finding without this project; None for an engine that has no such scripts, for one without a release, and where the
    workload needs what no script knows (a connector of vLLM's own): a finding is kept without one, rather than lost."""
    engine = parse_engine(finding.engine)
    if engine.name != VLLM or not engine.release:
        return None
    try:
        return standalone_script(finding.workload, engine.release, finding)
    except SetupError:
        return None


# ---- what is needed --------------------------------------------------------------------------------------------------


def _present(features: Mapping[str, bool]) -> frozenset[str]:
    return frozenset(name for name, is_present in features.items() if is_present)


def _is_stuck(key: Key) -> bool:
    """Whether requests do not finish, whatever keeps them: not an engine that hangs, or is busy without any."""
    return key.property == "admission_progress" and key.cause.startswith(_NO_PROGRESS) and not key.cause.endswith("no request is left")


def _features(setup: EngineSetup, operations: Sequence[Operation], key: Key, release: Release) -> frozenset[str]:
    """The regions of the template that this workload, this finding and this release need."""
    hashes = setup.enable_prefix_caching or setup.connector is not None
    reads = key.property in _READS
    freed = reads and key.cause.startswith(("freed", "reallocated"))
    loads = reads and key.cause.startswith(("loaded_over", "reallocated")) and setup.kv_consumer
    return _present(
        {
            "abort": any(isinstance(operation, Abort) for operation in operations),
            "contents": hashes,
            "drafts": setup.num_speculative_tokens > 0,
            "arrays": release.has("sampled_arrays"),
            "sync_drafts": setup.num_speculative_tokens > 0 and not setup.async_scheduling,
            "hashes": hashes,
            "mtp": setup.num_speculative_tokens > 0 and dict(setup.extra).get("speculative_method") == "mtp",
            "resolve": needs_resolving(setup, release),
            "retention": setup.enable_prefix_caching and release.has("retention_interval"),
            "stops": any(isinstance(operation, Process) and operation.stops for operation in operations),
            "reads": reads,
            "freed_in_flight": freed,
            "loads_over": loads,
            "losses": freed or loads,
            "states": key.property == "write_owned" and key.cause.startswith("shared") and key.kind == "mamba",
            "progress": _is_stuck(key),
            "caps": "above_cap" in key.cause,
            "gate": "gate_undercounts" in key.cause,
            "references": key.property == "single_owner" and key.cause.startswith(_OF_REFERENCES),
            "counters": key.property == "counters_symmetric" and key.cause == "inspected: in_flight",
            "computed": key.property == "counters_symmetric" and key.cause == "inspected: computed",
            "unchecked_drafts": key.cause.startswith(DraftsWithoutTokenError.__name__),
            "objects": not reads and key.property != ENGINE_FAULT,
        }
    )


def _gaps(features: frozenset[str], key: Key, release: Release) -> dict[str, str]:
    outputs = [
        *(["DraftTokenIds"] if "sync_drafts" in features else []),
        *(["KVConnectorOutput"] if "connector" in features else []),
        "ModelRunnerOutput",
    ]
    parameters = [*(["rejected=(0,)"] if "drafts" in features else []), *(["stops=()"] if "stops" in features else [])]
    arguments = ", eos_token_id=None" if release.has("eos_on_request") else ""
    if "hashes" in features:
        arguments += ", block_hasher=block_hasher"
    return {
        "collections": "Counter, deque" if "references" in features else "deque",
        "output_names": ", ".join(outputs),
        "request_names": "Request, RequestStatus" if {"abort", "stores"} & features else "Request",
        "drafts_global": ", awaits_drafts" if "sync_drafts" in features else "",
        "only_pruned": ' if cause == "pruned" else ()' if "[window]" in key.cause else "",
        "process_parameters": ", ".join(parameters),
        "stop_argument": f", stop_token_ids=[{STOP_TOKEN}]" if "stops" in features else "",
        "is_resumed": "request_id in cached.resumed_req_ids" if release.has("resumed_ids") else _RESUMED_FLAG,
        "request_arguments": arguments,
        "sampled": "[numpy.array(token_ids, dtype=int) for token_ids in sampled]" if release.has("sampled_arrays") else "sampled",
        "generation": "request.num_preemptions" if release.has("counts_preemptions") else "0",
        "preempted": ", preempted {request.num_preemptions} times" if release.has("counts_preemptions") else "",
    }


# ---- operations ------------------------------------------------------------------------------------------------------


def _calls(operations: Sequence[Operation], features: frozenset[str], connector: ScriptedConnector) -> Iterator[str]:
    for operation in operations:
        call = connector.call(operation) if isinstance(operation, Report) else _call(operation, features)
        if call is not None:
            yield call


def _call(operation: Add | Abort | Schedule | Process, features: frozenset[str]) -> str:
    match operation:
        case Add():
            return f'add("{operation.request_id}", prompt={_prompt(operation, features)}, max_tokens={operation.max_tokens})'
        case Abort():
            return f'abort("{operation.request_id}")'
        case Schedule():
            return "schedule()"
        case Process():
            arguments = []
            if "drafts" in features and operation.rejected not in ((), (0,)):
                arguments.append(f"rejected={operation.rejected}")
            if operation.stops:
                arguments.append(f"stops={operation.stops}")
            return f"process({', '.join(arguments)})"


def _prompt(add: Add, features: frozenset[str]) -> str:
    """Token ids, as `operations.prompt_of` has them. They matter only where they are hashed."""
    if "contents" not in features:
        return f"[7] * {add.prompt_tokens}"
    shared = min(add.shared_tokens, add.prompt_tokens)
    own = 100 + crc32(add.request_id.encode()) % 800
    parts = [f"tokens({add.family}, 0, {shared})"] if shared else []
    if shared < add.prompt_tokens:
        parts.append(f"tokens({own}, {shared}, {add.prompt_tokens})")
    return " + ".join(parts)
