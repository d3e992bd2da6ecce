"""Op logs as text: what is written is read back equal, and a line that is no op is named."""

from __future__ import annotations

import io

import pytest
from kinds import GROUPS
from logs import random_log

from settled.reference.device.log_io import LogFormatError, read_log, write_log
from settled.reference.device.ops import COMPUTE, FIRST_TRANSFER, HostSync, Launch, LaunchKind, OpLog, Record, Slots, TransferWork, Wait


def log_of(kind: str) -> OpLog:
    """With every kind of launch, one of states among the transfers."""
    log = random_log(1, GROUPS[kind], steps=30)
    state = TransferWork("a job", (Slots(1, 0, (3, 4), is_state=True),))
    log.ops += [Launch(FIRST_TRANSFER, LaunchKind.LOAD, (), (1,), state, 7), Record(0, COMPUTE), Wait(FIRST_TRANSFER, 0), HostSync(0)]
    log.num_events = 1
    log.assumptions.append("something")
    return log


def written(log: OpLog) -> list[str]:
    out = io.StringIO()
    write_log(log, out)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("kind", GROUPS)
def test_what_is_written_is_read_back_equal(kind: str) -> None:
    log = log_of(kind)
    assert read_log(written(log)) == log
    assert len(written(log)) == len(log.ops) + 1


def test_the_logs_have_every_kind_of_launch() -> None:
    assert {op.kind for kind in GROUPS for op in log_of(kind).ops if isinstance(op, Launch)} == set(LaunchKind)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "x, line 3: Expecting property name"),
        ('{"op": "launch"}', "x, line 3: no 'kind'"),
        ('{"op": "launch", "kind": "read"}', "x, line 3: 'read' is not a valid LaunchKind"),
        ('{"op": "step"}', "x, line 3: unknown op 'step', expected one of launch, record, wait, host_sync, free"),
    ],
)
def test_a_line_that_is_no_op_is_named(line: str, message: str) -> None:
    with pytest.raises(LogFormatError) as raised:
        read_log([*written(log_of("full"))[:2], line], "x")
    assert str(raised.value).startswith(message)


def test_what_is_no_op_log_is_named() -> None:
    with pytest.raises(LogFormatError, match="x: empty, expected an op log"):
        read_log([], "x")
    with pytest.raises(LogFormatError, match="line 1: op log of version 2, expected 1"):
        read_log(['{"op_log": 2}'])
