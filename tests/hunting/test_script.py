"""Standalone scripts as text, without vLLM. That they do the same as the hunt is what `tests/engines/vllm/test_scripts.py` tests."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from settled.model.disciplines import DISCIPLINES
from settled.model.properties import Property
from settled.model.specs import CustomSpec, FullAttentionSpec, SlidingWindowSpec
from settled.proofs.found_properties import ADMISSION_PROGRESS, ENGINE_FAULT, MEANING
from settled.proofs.hunting.finding import Finding
from settled.proofs.hunting.script import script_for, standalone_script
from settled.proofs.hunting.template import fill
from settled.proofs.hunting.workloads import workloads
from settled.proofs.watching import Key
from settled.reference.engines import protocol
from settled.reference.engines.operations import Abort, Add, Process, Schedule, Workload
from settled.reference.engines.protocol import Offer
from settled.reference.engines.reference_engine import ReferenceFactory
from settled.reference.engines.setup import ConnectorSetup, EngineSetup, SetupError
from settled.reference.engines.vllm.releases import TESTED

GOLDEN = Path(__file__).parent / "golden"
SETUP = EngineSetup(
    groups=(SlidingWindowSpec(block_size=16, window=32),), num_blocks=12, max_num_batched_tokens=64, max_num_seqs=4, max_model_len=256
)
KEYS = (
    Key("read_resident", "freed[window]", "sliding_window"),
    Key("read_resident", "reallocated[finish]", "full"),
    Key("read_resident", "loaded_over[window]", "full"),
    Key("rollback_resident", "released_before_rollback[window]", "sliding_window"),
    Key("single_owner", "inspected: references_below_holders", ""),
    Key("counters_symmetric", "inspected: in_flight", ""),
    Key("counters_symmetric", "inspected: computed", ""),
    Key("held_bounded", "above_cap", "sliding_window"),
    Key("held_bounded", "below_need", "sliding_window"),
    Key("admission_gate", "inspected: gate_undercounts[full, lookahead]", ""),
    Key("admission_progress", "nothing moves, requests are left", ""),
    Key("admission_progress", "no end, preempted for ever[chunked_local]", ""),
    Key("engine_fault", "AssertionError in block_pool.py:free_blocks", ""),
)


def finding(workload: Workload, key: Key = KEYS[0]) -> Finding:
    return Finding(engine="vllm", contract=None, key=key, sentence="line 9: what happened.", workload=workload, mix="", seed=0, number=0)


def chunked_prefill() -> Workload:
    return Workload(SETUP, (Add("r0", prompt_tokens=128, max_tokens=1), Schedule(), Schedule(), Process()))


@pytest.mark.parametrize("release", ["0.25.1", "0.33.0"])
def test_a_script_reads_as_committed(release: str) -> None:
    workload = chunked_prefill()
    text = standalone_script(workload, release, finding(workload))
    assert text == (GOLDEN / f"chunked_prefill_{release}.py.txt").read_text(encoding="utf-8")


def test_all_that_can_be_found_has_words_for_readers_of_vllm() -> None:
    """The properties of traces, and those by which adapters tell what live objects show."""
    engines = Path(protocol.__file__).parent
    told = {
        name
        for path in engines.rglob("*.py")
        for name in re.findall(r"(?<!class )Anomaly\(\s*([A-Z]\w+|\"\w+\")", path.read_text(encoding="utf-8"))
    }
    names = {name.strip('"').lower() for name in told}
    assert len(names) >= 5
    assert names | {each.value for each in Property} | {ENGINE_FAULT, ADMISSION_PROGRESS} == set(MEANING)


def test_every_script_is_whole(tmp_path: Path) -> None:
    """No name that is not defined, no import that is not used, whatever the workload, the finding and the release."""
    for mix in ("all", "connectors"):
        for number, drawn in enumerate(islice(workloads(mix, 5, ReferenceFactory(DISCIPLINES["settled"])), 48)):
            key, release = KEYS[number % len(KEYS)], TESTED[number // 2 % len(TESTED)]
            text = standalone_script(drawn.workload, release, finding(drawn.workload, key))
            (tmp_path / f"{mix}_{number}.py").write_text(text, encoding="utf-8")
    check = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", "--quiet", str(tmp_path)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert _imported(tmp_path) - sys.stdlib_module_names == {"numpy", "torch", "vllm"}  # the first in the releases that take its arrays


def _imported(folder: Path) -> set[str]:
    nodes = [node for path in folder.glob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    named = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return named | {(node.module or "").split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}


def test_only_what_the_workload_needs_is_there() -> None:
    workload = chunked_prefill()
    plain = standalone_script(workload, "0.33.0", finding(workload))
    for word in ("drafts", "Connector", "resolve_kv_cache_block_sizes", "abort", "tokens(", "stops"):
        assert word not in plain
    drafting = Workload(replace(SETUP, num_speculative_tokens=3), (*workload.operations, Process(rejected=(3, 1)), Abort("r0")))
    lines = standalone_script(drafting, "0.33.0", finding(drafting)).splitlines()
    assert "process(rejected=(3, 1))" in lines
    assert 'abort("r0")' in lines


def test_what_the_run_did_comes_before_what_the_workload_says() -> None:
    """A run's own list has the serving of what was left."""
    workload = Workload(SETUP, (Add("r0", prompt_tokens=128, max_tokens=1),))
    known = replace(finding(workload), done=chunked_prefill().operations)
    assert "process()" in standalone_script(workload, "0.33.0", known).splitlines()
    assert "process()" not in standalone_script(workload, "0.33.0", finding(workload)).splitlines()


@pytest.mark.parametrize(
    ("cause", "property_", "is_judged"),
    [
        ("inspected: references_above_holders", "single_owner", True),
        ("inspected: pool_not_free_at_idle", "single_owner", False),
        ("inspected: in_flight", "counters_symmetric", True),
        ("inspected: placeholders", "counters_symmetric", False),
        ("inspected: computed", "counters_symmetric", True),
        ("inspected: gate_undercounts[full, lookahead]", "admission_gate", True),
        ("inspected: gate_above_sizing[sliding_window]", "admission_gate", False),
        ("nothing moves, requests are left", "admission_progress", True),
        ("no end, preempted for ever[chunked_local]", "admission_progress", True),
        ("nothing moves, no request is left", "admission_progress", False),
        ("hangs in scheduler.py:schedule", "admission_progress", False),
    ],
)
def test_a_script_says_that_a_fault_is_not_there_only_if_it_looks_for_it(cause: str, property_: str, is_judged: bool) -> None:
    workload = chunked_prefill()
    text = standalone_script(workload, "0.33.0", finding(workload, Key(property_, cause, "")))
    assert ("The fault is not there." in text) == is_judged


def test_what_a_step_reads_is_written_per_group() -> None:
    """By the mask of its kind."""
    hybrid = replace(SETUP, groups=(FullAttentionSpec(block_size=16), SlidingWindowSpec(block_size=16, window=33)))
    workload = Workload(hybrid, chunked_prefill().operations)
    text = standalone_script(workload, "0.33.0", finding(workload))
    assert "range((end - 1) // 16 + 1)" in text
    assert "range(max(0, start - 32) // 16, (end - 1) // 16 + 1)" in text


def test_what_cannot_be_written_is_refused() -> None:
    workload = chunked_prefill()
    with pytest.raises(SetupError, match="not a release"):
        standalone_script(workload, "newest", finding(workload))
    custom = replace(workload, setup=replace(SETUP, groups=(CustomSpec(block_size=16, name="mine"),)))
    with pytest.raises(SetupError, match="no spec"):
        standalone_script(custom, "0.33.0", finding(custom))
    offloading = replace(workload, setup=replace(SETUP, connector=ConnectorSetup(name="OffloadingConnector")))
    with pytest.raises(SetupError, match="OffloadingConnector"):
        standalone_script(offloading, "0.33.0", finding(offloading))


def test_a_template_keeps_the_regions_of_its_features() -> None:
    text = "a\n#: if x\nb $n\n#: if not y\nc\n#: end\n#: end\nd\n"
    assert fill(text, {"x"}, {"n": "1"}) == "a\nb 1\nc\nd\n"
    assert fill(text, {"x", "y"}, {"n": "1"}) == "a\nb 1\nd\n"
    assert fill(text, set(), {}) == "a\nd\n"


@pytest.mark.parametrize("text", ["#: if x\n", "#: end\n", "#: else\n"])
def test_a_broken_template_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="template"):
        fill(text, {"x"}, {})


def test_a_connector_of_vllms_own_has_no_script_and_its_finding_is_kept_all_the_same() -> None:
    own = replace(SETUP, connector=ConnectorSetup(name="OffloadingConnector"))
    assert script_for(replace(finding(Workload(own, ())), engine="vllm==0.33.0")) is None
    assert script_for(replace(finding(Workload(SETUP, ())), engine="vllm==0.33.0")) is not None


def test_a_script_of_a_stuck_request_reports_what_its_operations_leave() -> None:
    """Otherwise a load that nobody reports would look like the fault. One within a step reports itself."""
    setup = replace(SETUP, connector=ConnectorSetup())
    stuck = Key("admission_progress", "nothing moves, never admitted[full]", "")
    for is_async in (True, False):
        workload = Workload(setup, (Add("r0", prompt_tokens=128, max_tokens=1, offer=Offer(64, is_async=is_async)),))
        text = standalone_script(workload, "0.33.0", finding(workload, stuck))
        assert ("        report()\n" in text) == is_async
    assert "        report()\n" not in standalone_script(workload, "0.33.0", finding(workload))


def test_a_script_of_a_stuck_request_serves_what_is_left_itself() -> None:
    workload = Workload(SETUP, (Add("r0", prompt_tokens=128, max_tokens=1),))
    known = replace(finding(workload, Key("admission_progress", "no end, requests are left", "")), done=chunked_prefill().operations)
    assert "process()" not in standalone_script(workload, "0.33.0", known).splitlines()
