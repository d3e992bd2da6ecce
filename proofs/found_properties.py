"""What a fuzzer or a hunt finds violated, by name: the properties of a trace, and what only the engine itself shows."""

from __future__ import annotations

ENGINE_FAULT = "engine_fault"  # stands in for a property where the engine itself fails: an assertion, a double free
ADMISSION_PROGRESS = "admission_progress"
OF_EVERY_RUN = (ADMISSION_PROGRESS, ENGINE_FAULT)  # seen in whatever a workload comes to
OF_INSPECTIONS = ("admission_gate", "cache_truthful", "transfer_terminates")  # told by vLLM's live objects alone, by no trace

# What each says of a vLLM scheduler, for readers who know vLLM and not this project.
MEANING = {
    "read_resident": "a dispatched step reads a KV cache block that is null, or back in the pool",
    "rollback_resident": "after rejected drafts a step reads a KV cache block that was nulled before",
    "write_owned": "a dispatched step writes into a KV cache block that its request has lost",
    "single_owner": "reference counts of KV cache blocks differ from what holds them",
    "counters_symmetric": "a request's counters differ from what its steps say",
    "held_bounded": "a request holds KV cache blocks that it does not need, or more than its cap",
    "admission_gate": "the admission gate counts fewer KV cache blocks for a request than it then holds",
    ADMISSION_PROGRESS: "a request never finishes",
    "cache_truthful": "the prefix cache and the KV cache blocks that it names differ",
    "transfer_terminates": "a transfer has ended, and KV cache blocks are kept for it",
    ENGINE_FAULT: "the scheduler fails",
}
