"""A finding: what is violated on which engine, the workload that shows it, and its trace."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from settled.model.properties import Contract
from settled.model.trace_io import encode_event
from settled.proofs.folder import file_name
from settled.proofs.found_properties import ADMISSION_PROGRESS, ENGINE_FAULT
from settled.proofs.hunting.budget import CANDIDATE_CPU_SECONDS_MAX, Budget
from settled.proofs.hunting.faults import CPU_SECONDS_MAX
from settled.proofs.hunting.plain import operation_as_dict, operation_of, workload_as_dict, workload_of
from settled.proofs.hunting.running import INSPECTED, is_inspected, run_workload
from settled.proofs.watching import Found, Key, key_of
from settled.reference.engines.operations import Operation, Workload
from settled.reference.engines.protocol import EngineFactory

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`engine` is what `settled hunt` calls it, `contract` None the one that follows from the configuration. `mix`, `seed` and `number`
    found it first, or `path`, the file of a given workload. `trace`: the lines of the trace up to the violation, which is certain at
    `line`; `steps`: how many it schedules; `done`: the operations that it took, those with which a run serves what is left included.
    """

    engine: str
    contract: Contract | None
    key: Key
    sentence: str
    workload: Workload
    mix: str
    seed: int
    number: int
    trace: tuple[str, ...] = ()
    line: int = 0
    steps: int = 0
    done: tuple[Operation, ...] = ()
    path: str = ""

    @property
    def name(self) -> str:
        """What its files are called: one name for each engine, contract, property, cause and kind."""
        return file_name((self.engine, contract_name(self.contract), *self.key))

    @property
    def command(self) -> str:
        """Runs the workload again that found it first."""
        drawn = ["--mix", self.mix, "--seed", str(self.seed), "--number", str(self.number)]
        which = ["--workload", self.path] if self.path else drawn
        return shlex.join(["settled", "hunt", self.engine, *which, "--contract", contract_name(self.contract)])


def shown_by(
    factory: EngineFactory, finding: Finding, workload: Workload, *, budget: Budget | None = None, steps_max: int | None = None
) -> Finding | None:
    """The same finding, shown by another workload: with its trace, if it does show it, within `steps_max` scheduled steps.

    With a budget, which it charges, only what must be is inspected.
    """
    if budget is not None:
        budget.begin_run()
    run = run_workload(
        factory,
        workload,
        contract=finding.contract,
        until=finding.key,
        inspects=budget is None or is_inspected(finding.key),
        keep_events=True,
        cpu_seconds_max=CPU_SECONDS_MAX if budget is None else CANDIDATE_CPU_SECONDS_MAX,
        steps_max=steps_max,
    )
    if budget is not None:
        budget.spend(len(run.done))
    found = run.found.get(finding.key)
    if found is None:
        return None
    trace = tuple([encode_event(event) for event in run.events])
    return replace(finding, workload=workload, sentence=found.sentence, trace=trace, line=found.line, steps=run.steps, done=tuple(run.done))


def rank(key: Key) -> int:
    """What comes first: violated properties, then engines that fail, requests that do not end, and what only live objects show."""
    if is_inspected(key):
        return 3
    return {ENGINE_FAULT: 1, ADMISSION_PROGRESS: 2}.get(key.property, 0)


def told_once(found: Mapping[Key, Found]) -> dict[Key, Found]:
    """Without what the live objects show and the trace as well: the same property, for the same cause but for what it says in brackets."""
    by_trace = {(key.property, _bare(key.cause)) for key in found if not is_inspected(key)}
    return {key: each for key, each in found.items() if not (is_inspected(key) and (key.property, _bare(key.cause)) in by_trace)}


def _bare(cause: str) -> str:
    return cause.removeprefix(INSPECTED).partition("[")[0]


def contract_name(contract: Contract | None) -> str:
    """As the command line says it."""
    return "auto" if contract is None else contract.value


def contract_of(name: str) -> Contract | None:
    """Raises ValueError for a name that is none."""
    return None if name == "auto" else Contract(name)


def finding_as_dict(finding: Finding, *, with_trace: bool = True) -> dict[str, Any]:
    """Plain values for JSON."""
    plain = {
        "format": FORMAT,
        "engine": finding.engine,
        "contract": contract_name(finding.contract),
        **finding.key._asdict(),
        "sentence": finding.sentence,
        "mix": finding.mix,
        "seed": finding.seed,
        "number": finding.number,
        "path": finding.path,
        "steps": finding.steps,
        "line": finding.line,
        "workload": workload_as_dict(finding.workload),
        "done": list(map(operation_as_dict, finding.done)),
        "found_by": finding.command,
    }
    return {**plain, "trace": list(finding.trace)} if with_trace else plain


def finding_of(raw: dict[str, Any]) -> Finding:
    """What `finding_as_dict` wrote. Raises KeyError, TypeError, ValueError."""
    if raw["format"] != FORMAT:
        raise ValueError(f"format {raw['format']!r}, expected {FORMAT}")
    return Finding(
        engine=raw["engine"],
        contract=contract_of(raw["contract"]),
        key=key_of(raw),
        sentence=raw["sentence"],
        workload=workload_of(raw["workload"]),
        mix=raw["mix"],
        seed=raw["seed"],
        number=raw["number"],
        trace=tuple(raw.get("trace", ())),
        line=raw["line"],
        steps=raw["steps"],
        path=raw["path"],
        done=tuple(map(operation_of, raw["done"])),
    )
