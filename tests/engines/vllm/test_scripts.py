"""Standalone scripts in a release's environment: they do what the hunt did, find what it found, and find nothing in another workload."""

from __future__ import annotations

from itertools import islice

import pytest
from script_runs import of_events, of_text, run_script

from settled.model.events import Copy
from settled.model.properties import Contract
from settled.model.specs import FullAttentionSpec, SlidingWindowSpec
from settled.proofs.hunting.faults import HarnessError
from settled.proofs.hunting.finding import Finding, shown_by
from settled.proofs.hunting.running import run_workload
from settled.proofs.hunting.script import standalone_script
from settled.proofs.hunting.workloads import workloads
from settled.proofs.watching import Key
from settled.reference.engines.operations import Add, Process, Schedule, Workload
from settled.reference.engines.protocol import Offer
from settled.reference.engines.setup import ConnectorSetup, EngineSetup
from settled.reference.engines.vllm.adapter import VllmFactory

WORKLOADS = 40  # of each mix
FACTORY = VllmFactory()
RELEASE = FACTORY.release.version
IS_SETTLED = tuple(map(int, RELEASE.split("."))) >= (0, 26)  # frees on the settled count
WINDOW = SlidingWindowSpec(block_size=16, window=32)
SETUP = EngineSetup(groups=(WINDOW,), num_blocks=12, max_num_batched_tokens=64, max_num_seqs=4, max_model_len=256)
NOTHING = Key("none", "none", "")


def finding(workload: Workload, key: Key, contract: Contract | None = None) -> Finding:
    return Finding(engine="vllm", contract=contract, key=key, sentence="", workload=workload, mix="", seed=0, number=0)


@pytest.mark.parametrize("mix", ["windows", "chunks", "states", "connectors"])
def test_a_script_does_what_the_hunt_did(mix: str) -> None:
    """What every step computes, which blocks leave the pool and which come back are the same, to the end of the run."""
    compared = 0
    for drawn in islice(workloads(mix, 11, FACTORY), WORKLOADS):
        try:
            run = run_workload(FACTORY, drawn.workload, keep_events=True, inspects=False)
        except HarnessError:
            continue
        if any(key.property == "engine_fault" for key in run.found):
            continue
        if any(isinstance(event, Copy) for event in run.events):  # when the references of a copy go, a script does not print
            continue
        text = standalone_script(drawn.workload, RELEASE, finding(drawn.workload, NOTHING))
        known = standalone_script(drawn.workload, RELEASE, _after(drawn.workload, run.done))
        assert known != text or tuple(run.done) == drawn.workload.operations
        printed = run_script(known)
        assert printed.ending is None, printed.ending
        assert of_text(printed.text) == of_events(run.events)
        compared += 1
    assert compared >= WORKLOADS // 2


def _after(workload: Workload, done: list) -> Finding:
    return Finding(engine="vllm", contract=None, key=NOTHING, sentence="", workload=workload, mix="", seed=0, number=0, done=tuple(done))


CHUNKED = Workload(SETUP, (Add("r0", prompt_tokens=200, max_tokens=1),))
DRAFTS = Workload(
    EngineSetup(
        groups=(FullAttentionSpec(block_size=16), WINDOW),
        num_blocks=32,
        max_num_batched_tokens=64,
        max_num_seqs=4,
        max_model_len=256,
        num_speculative_tokens=4,
    ),
    (Add("r0", prompt_tokens=60, max_tokens=40), *[Schedule(), Schedule(), Process((4,))] * 8),
)
LOADED = Workload(
    EngineSetup(
        groups=(WINDOW,),
        num_blocks=8,
        max_num_batched_tokens=64,
        max_num_seqs=4,
        max_model_len=96,
        connector=ConnectorSetup(),
    ),
    (
        Add("r0", prompt_tokens=90, max_tokens=2),
        Schedule(),
        Add("r1", prompt_tokens=64, max_tokens=1, offer=Offer(32)),
        Schedule(),
        Schedule(),
    ),
)


@pytest.mark.parametrize(
    ("workload", "contract", "property_"),
    [
        pytest.param(CHUNKED, Contract.SETTLED, "read_resident", id="freed under a step"),
        pytest.param(DRAFTS, None, "rollback_resident", id="null after a rejection"),
        pytest.param(LOADED, None, "read_resident", id="loaded over"),
    ],
)
def test_a_script_says_what_the_monitor_said(workload: Workload, contract: Contract | None, property_: str) -> None:
    """It exits 1 where the hunt found it, and 0 in a release without it."""
    run = run_workload(FACTORY, workload, contract=contract, inspects=False)
    keys = [key for key in run.found if key.property == property_ and "[window" in key.cause]
    assert bool(keys) != IS_SETTLED
    for key in keys or [Key(property_, "freed[window]", "sliding_window"), Key(property_, "loaded_over[window]", "sliding_window")]:
        shown = shown_by(FACTORY, finding(workload, key, contract), workload) or finding(workload, key, contract)
        printed = run_script(standalone_script(workload, RELEASE, shown))
        assert printed.ending == (None if IS_SETTLED else "The fault is there."), printed
        assert ("!!!" in printed.text) != IS_SETTLED
