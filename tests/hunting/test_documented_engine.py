"""docs/engines.md: its code runs, its engine is whole, and its engine's mistake is found."""

from __future__ import annotations

import re
import runpy
from inspect import getmembers
from pathlib import Path
from typing import Any

import pytest

from settled.model.properties import Contract
from settled.model.specs import FullAttentionSpec, SlidingWindowSpec
from settled.proofs.hunting.running import run_workload
from settled.reference.engines.operations import Add, Process, Schedule, Workload
from settled.reference.engines.protocol import Engine, EngineFactory
from settled.reference.engines.setup import EngineSetup, SetupError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
SETUP = EngineSetup(
    groups=(SlidingWindowSpec(block_size=4, window=4),), num_blocks=9, max_num_batched_tokens=8, max_num_seqs=1, max_model_len=32
)
OPERATIONS = (Add("a", 9, 3), Add("b", 3, 4), Schedule(), Schedule(), Process(), Schedule(), Process(stops=(0,)))


@pytest.fixture(scope="module")
def tiny() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "engines" / "tiny.py"))


def test_the_code_of_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert scope["finding"].key.property == "read_resident"


def test_the_page_names_everything_that_the_protocol_asks(tiny: dict[str, Any]) -> None:
    for protocol, made in ((Engine, tiny["TinyEngine"]), (EngineFactory, tiny["TinyFactory"])):
        asked = {name for name, _ in getmembers(protocol) if not name.startswith("_")}
        assert asked
        for name in asked - {"name"}:
            assert re.search(rf"`{name}\b", PAGE), name
            assert hasattr(made, name), name


def test_the_engine_serves_everything_and_ends_idle(tiny: dict[str, Any]) -> None:
    run = run_workload(tiny["TinyFactory"](), Workload(SETUP, OPERATIONS), contract=Contract.SETTLED, keep_events=True)
    assert not run.found
    assert not run.is_undecided
    assert [event.name for event in run.events].count("finish") == 2
    assert run.events[-1].name == "end"


def test_what_it_does_not_have_is_refused(tiny: dict[str, Any]) -> None:
    full = EngineSetup(groups=(FullAttentionSpec(block_size=4),), num_blocks=9, max_num_batched_tokens=8, max_num_seqs=1, max_model_len=32)
    with pytest.raises(SetupError, match="one sliding window"):
        tiny["TinyFactory"]().create(full, None)
