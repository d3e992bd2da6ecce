"""Op logs as text: one JSON object a line, the log's own facts first. What is written is read back equal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any, TextIO

from settled.model.specs import SPEC_BY_KIND, KVCacheSpec
from settled.reference.device.ops import (
    BlocksWork,
    CopyWork,
    FillWork,
    Free,
    HostSync,
    KeysPart,
    Launch,
    LaunchKind,
    Op,
    OpLog,
    Record,
    Slots,
    StatesPart,
    StepWork,
    TransferWork,
    Wait,
    Work,
)

VERSION = 1
_NAMES: dict[type, str] = {Launch: "launch", Record: "record", Wait: "wait", HostSync: "host_sync", Free: "free"}
_WORKS: dict[LaunchKind, type] = {
    LaunchKind.FILL: FillWork,
    LaunchKind.UPLOAD: FillWork,
    LaunchKind.ZERO: BlocksWork,
    LaunchKind.POISON: BlocksWork,
    LaunchKind.COPY: CopyWork,
}


class LogFormatError(ValueError):
    """A line is no op; the message says which line, and what was expected."""


def write_log(log: OpLog, out: TextIO) -> None:
    """Writes NDJSON."""
    head = {
        "op_log": VERSION,
        "groups": [{"kind": spec.kind, **asdict(spec)} for spec in log.groups],
        "num_blocks": log.num_blocks,
        "num_staging": log.num_staging,
        "num_streams": log.num_streams,
        "num_events": log.num_events,
        "assumptions": log.assumptions,
    }
    for line in (head, *({"op": _NAMES[type(op)], **asdict(op)} for op in log.ops)):
        out.write(json.dumps(line, separators=(",", ":")) + "\n")


def read_log(lines: Iterable[str], source: str = "<op log>") -> OpLog:
    """Reads what `write_log` wrote. Raises LogFormatError."""
    log: OpLog | None = None
    for number, line in enumerate(lines, start=1):
        try:
            raw = json.loads(line)
            if log is None:
                log = _head(raw)
            else:
                log.ops.append(_op(raw))
        except (KeyError, TypeError, ValueError) as error:
            said = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise LogFormatError(f"{source}, line {number}: {said}") from error
    if log is None:
        raise LogFormatError(f"{source}: empty, expected an op log")
    return log


def _head(raw: dict[str, Any]) -> OpLog:
    if raw["op_log"] != VERSION:
        raise ValueError(f"op log of version {raw['op_log']!r}, expected {VERSION}")
    groups = tuple([_spec(dict(each)) for each in raw["groups"]])
    return OpLog(groups, raw["num_blocks"], raw["num_staging"], raw["num_streams"], raw["num_events"], assumptions=list(raw["assumptions"]))


def _spec(raw: dict[str, Any]) -> KVCacheSpec:
    kind = raw.pop("kind")
    if kind not in SPEC_BY_KIND:
        raise ValueError(f"unknown kind {kind!r}")
    return SPEC_BY_KIND[kind](**raw)


def _op(raw: dict[str, Any]) -> Op:
    match raw.pop("op"):
        case "launch":
            kind = LaunchKind(raw["kind"])
            return Launch(raw["stream"], kind, tuple(raw["reads"]), tuple(raw["writes"]), _work(kind, raw["work"]), raw["line"])
        case "record":
            return Record(**raw)
        case "wait":
            return Wait(**raw)
        case "host_sync":
            return HostSync(**raw)
        case "free":
            return Free(tuple(raw["blocks"]), raw["line"])
        case other:
            raise ValueError(f"unknown op {other!r}, expected one of {', '.join(_NAMES.values())}")


def _work(kind: LaunchKind, raw: dict[str, Any]) -> Work:
    if kind in (LaunchKind.WRITE, LaunchKind.STEP):
        return StepWork(raw["step"], tuple([_plain(KeysPart if "first" in part else StatesPart, part) for part in raw["parts"]]))
    if kind in (LaunchKind.LOAD, LaunchKind.STORE):
        return TransferWork(raw["job"], tuple([_plain(Slots, slots) for slots in raw["slots"]]))
    work: Work = _plain(_WORKS[kind], raw)
    return work


def _plain(cls: type, raw: dict[str, Any]) -> Any:
    """A dataclass whose sequences are tuples, and tuples of tuples."""
    return cls(**{each.name: _frozen(raw[each.name]) for each in fields(cls)})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
