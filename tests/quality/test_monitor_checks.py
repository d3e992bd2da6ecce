"""Each single check of the monitor finds a planted fault that the whole monitor misses without it.

A check is a place where the monitor's source calls for a judgement or a report; they are read from the source, so a new one without a
planted fault fails here. A check is switched off by compiling its function without that call. What harms under which contract is a
table of the monitor's: each of its entries is a check as well.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
from planted_faults import FAULTS, HARMED

import settled.model.monitor as monitor_package
from settled.model.monitor import residency
from settled.model.monitor.violation import Loss
from settled.model.properties import Contract, Property

OF_FINDINGS = ("findings.add", "findings.found")
JUDGEMENTS = (
    *("_judge", "_refused", "_report", "_report_rollback", "before_schedule", "compare", "compare_freed", "grew", "idle", "joined"),
    *("judge", "lost", "no_finish_followed", "not_held", "pruned", "released", "replaced", "rolled_back", "scheduled", "settle", "shared"),
)


class Check(NamedTuple):
    """A call in the source: the module, the function around it, and which of the function's statements it is."""

    module: Any
    function: str
    statement: int


def _checks() -> dict[str, Check]:
    found: dict[str, Check] = {}
    for path in sorted(Path(inspect.getfile(monitor_package)).parent.glob("*.py")):
        for function, node in _functions(ast.parse(path.read_text(encoding="utf-8")), ()):
            count: Counter[str] = Counter()
            for statement, part in enumerate(_own_calls(node)):
                called = ast.unparse(part.value.func)  # type: ignore[attr-defined]
                if _is_check(called):
                    count[called] += 1
                    name = f"{path.stem}.{function}: {called}" + (f" #{count[called]}" if count[called] > 1 else "")
                    found[name] = Check(import_module(f"{monitor_package.__name__}.{path.stem}"), function, statement)
    return found


def _is_check(called: str) -> bool:
    return called.endswith(OF_FINDINGS) or called.rpartition(".")[2] in JUDGEMENTS


def _functions(node: ast.AST, outer: tuple[str, ...]) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, (*outer, child.name))
        elif isinstance(child, ast.FunctionDef):
            yield ".".join((*outer, child.name)), child


def _own_calls(function: ast.FunctionDef) -> list[ast.Expr]:
    """The statements of a function that only call something."""
    return [part for part in ast.walk(function) if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call)]


def _without(check: Check) -> tuple[FunctionType, CodeType]:
    """The function around a check, and its code without it."""
    path = Path(inspect.getfile(check.module))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    function = dict(_functions(tree, ()))[check.function]
    call = _own_calls(function)[check.statement]
    call.value = ast.copy_location(ast.Constant(None), call.value)
    live: Any = check.module
    for name in check.function.split("."):
        live = getattr(live, name)
    return live, _code_of(compile(tree, path, "exec"), check.function)


def _code_of(code: CodeType, function: str) -> CodeType:
    for name in function.split("."):
        code = next(part for part in code.co_consts if isinstance(part, CodeType) and part.co_name == name)
    return code


CHECKS = _checks()


def test_every_check_has_a_planted_fault() -> None:
    assert set(FAULTS) == set(CHECKS)


def test_no_check_hides_within_a_larger_statement() -> None:
    calls = 0
    for path in Path(inspect.getfile(monitor_package)).parent.glob("*.py"):
        parts = [part for part in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(part, ast.Call)]
        calls += len([part for part in parts if _is_check(ast.unparse(part.func))])
    assert calls == len(CHECKS)


def test_the_faults_break_every_property() -> None:
    found = {name for faults in FAULTS.values() for fault in faults() for name in fault.trace.found(fault.contract)}
    assert found == set(Property)


@pytest.mark.parametrize("name", FAULTS)
def test_without_the_check_its_fault_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(fault.trace.found(fault.contract) for fault in FAULTS[name]())
    function, code = _without(CHECKS[name])
    monkeypatch.setattr(function, "__code__", code)
    assert [fault.trace.found(fault.contract) for fault in FAULTS[name]()] == [{} for _ in FAULTS[name]()]


ENTRIES = [
    pytest.param(contract, loss, is_written, id=f"{contract}-{loss}-{'write' if is_written else 'read'}")
    for contract, harmed in residency._HARMED.items()
    for loss, uses in harmed.items()
    for is_written in uses
]


@pytest.mark.parametrize(("contract", "loss", "is_written"), ENTRIES)
def test_what_harms_under_a_contract(contract: Contract, loss: Loss, is_written: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = HARMED[loss, is_written](contract)
    assert fault.trace.found(contract)
    uses = residency._HARMED[contract]
    monkeypatch.setitem(uses, loss, tuple([use for use in uses[loss] if use is not is_written]))
    assert fault.trace.found(contract) == {}
