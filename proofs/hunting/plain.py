"""Workloads and keys as plain values for JSON, and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec

from settled.proofs.plain_specs import spec_as_dict, spec_of
from settled.reference.engines.operations import Abort, Add, Operation, Process, Report, Schedule, Workload
from settled.reference.engines.setup import EngineSetup

_BY_NAME: dict[str, type[Operation]] = {kind.__name__.lower(): kind for kind in (Add, Abort, Schedule, Process, Report)}


class WorkloadError(ValueError):
    """Not a workload of this version; the message says what is wrong."""


def workload_as_dict(workload: Workload) -> dict[str, Any]:
    """What differs from its default only, so that a reader sees what matters."""
    setup = {**_told(workload.setup), "groups": [spec_as_dict(spec) for spec in workload.setup.groups]}
    return {"setup": setup, "operations": list(map(operation_as_dict, workload.operations))}


def operation_as_dict(operation: Operation) -> dict[str, Any]:
    """Its name, and what differs from its default."""
    return {"do": type(operation).__name__.lower(), **_told(operation)}


def workload_of(raw: Any) -> Workload:
    """What `workload_as_dict` wrote. Raises WorkloadError."""
    try:
        setup = dict(raw["setup"])
        groups = tuple(spec_of(group) for group in setup.pop("groups"))
        without_groups = msgspec.convert({**setup, "groups": []}, EngineSetup)
        told = {field.name: getattr(without_groups, field.name) for field in fields(EngineSetup)}
        return Workload(EngineSetup(**{**told, "groups": groups}), tuple(map(operation_of, raw["operations"])))
    except KeyError as error:
        raise WorkloadError(f"{error} is missing or unknown") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise WorkloadError(str(error)) from error


def operation_of(raw: dict[str, Any]) -> Operation:
    """What `operation_as_dict` wrote. Raises KeyError, ValueError."""
    values = dict(raw)
    return msgspec.convert(values, _BY_NAME[values.pop("do")])


def _told(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not at their default."""
    plain: dict[str, Any] = {}
    for each in fields(value):
        told = getattr(value, each.name)
        if told != each.default:
            plain[each.name] = msgspec.to_builtins(told) if each.name != "groups" else told
    return plain
