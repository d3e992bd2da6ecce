"""What a worker tells the process that started it: one JSON object a line."""

from __future__ import annotations

from collections import Counter
from typing import Any

from settled.proofs.fuzzing.coverage import Feature, by_section
from settled.proofs.hunting.campaign import Judged, Plan, Progress
from settled.proofs.hunting.finding import contract_name, contract_of
from settled.proofs.hunting.plain import workload_as_dict, workload_of
from settled.proofs.watching import key_of

FOUND, SHRUNK, PROGRESS, DONE, FAILED = "found", "shrunk", "progress", "done", "failed"


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "engine": plan.engine,
        "mix": plan.mix,
        "seed": plan.seed,
        "first": plan.first,
        "workloads": plan.workloads,
        "seconds": plan.seconds,
        "contract": contract_name(plan.contract),
        "properties": list(plan.properties),
        "path": plan.path,
        "workload": None if plan.workload is None else workload_as_dict(plan.workload),
    }


def plan_of(raw: dict[str, Any]) -> Plan:
    """What `plan_as_dict` wrote. Raises KeyError, TypeError, ValueError."""
    contract = contract_of(raw["contract"])
    workload = None if raw["workload"] is None else workload_of(raw["workload"])
    return Plan(**{**raw, "contract": contract, "properties": tuple(raw["properties"]), "workload": workload})


def progress_as_dict(progress: Progress) -> dict[str, Any]:
    """Plain values for JSON; findings are told one by one."""
    return {
        "engine": progress.engine,
        "workloads": progress.workloads,
        "operations": progress.operations,
        "steps": progress.steps,
        "events": progress.events,
        "undecided": progress.undecided,
        "seconds": round(progress.seconds, 3),
        "seconds_to_first": progress.seconds_to_first,
        "showing": [{**key._asdict(), "workloads": times} for key, times in sorted(progress.showing.items())],
        "verdicts": [{**judged._asdict(), "workloads": times} for judged, times in sorted(progress.verdicts.items())],
        "refused": dict(sorted(progress.refused.items())),
        "coverage": by_section(progress.coverage),
    }


def take_progress(progress: Progress, raw: dict[str, Any]) -> None:
    """Brings a progress up to what `progress_as_dict` wrote; its findings stay. Raises KeyError, TypeError."""
    for name in ("engine", "workloads", "operations", "steps", "events", "undecided", "seconds", "seconds_to_first"):
        setattr(progress, name, raw[name])
    progress.showing = Counter({key_of(each): each["workloads"] for each in raw["showing"]})
    progress.verdicts = Counter(
        {Judged(each["contract"], each["property"], each["verdict"]): each["workloads"] for each in raw["verdicts"]}
    )
    progress.refused = Counter(raw["refused"])
    progress.coverage = Counter(
        {Feature(section, what): times for section, told in raw["coverage"].items() for what, times in told.items()}
    )
