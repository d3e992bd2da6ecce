"""`settled diff --device cuda`: on a fake device, without one, and what a row must show there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from click.testing import CliRunner, Result
from fake_device import FakeGpu
from op_logs import index

from settled.proofs.cli.main import cli
from settled.proofs.differential import on_device as differential
from settled.proofs.differential.on_device import DeviceTotal
from settled.proofs.differential.rows import ROWS, Expected, Row
from settled.proofs.report import on_device as report
from settled.reference.device.cuda import absence
from settled.reference.device.cuda.against_cpu import Run
from settled.reference.device.cuda.driver import DriverError
from settled.reference.device.cuda.launches import BackEndError
from settled.reference.device.cuda.runtime import CudaDevice, CudaError
from settled.reference.device.cuda.streams import StreamsError
from settled.reference.device.cuda.tickets import ProbeError
from settled.reference.device.ops import OpLog

pytestmark = pytest.mark.fake_device


def diff(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["diff", "--device", "cuda", *arguments])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short logs, for kernels are interpreted."""
    logs = {told.row: told.log() for told in index("short")}

    def short(row: Row, seed: int, steps: int) -> OpLog:
        return logs[row.name]

    monkeypatch.setattr("settled.reference.device.cuda.absence.why_absent", lambda: "")
    monkeypatch.setattr(differential, "_log", short)
    monkeypatch.setattr(differential, "STEP_SECONDS", (0.0,))
    with FakeGpu() as gpu:
        monkeypatch.setattr(report, "opened", lambda: (CudaDevice(gpu.platform), gpu.queued))
        yield


@pytest.mark.usefixtures("fake")
def test_the_device_stands_beside_the_cpu() -> None:
    result = diff("settled/everything", "optimistic/loads", "--workloads", "1")
    assert result.exit_code == 0, result.output
    assert "1|1" in result.output
    assert "2 rows of 1 workloads on the device" in result.output
    assert "orders directed by stream memory operations" in result.output


@pytest.mark.usefixtures("fake")
def test_json_has_both(monkeypatch: pytest.MonkeyPatch) -> None:
    result = diff("optimistic/told-of-nulls/drafts/stream_order", "--workloads", "1", "--json")
    told = json.loads(result.output)
    (row,) = told["rows"]
    assert result.exit_code == told["exit_code"] == 0
    assert row["garbled_on_device"]["as enqueued"] == row["garbled_on_cpu"]["as enqueued"] == 1
    assert row["problems"] == []
    assert row["outputs_compared"] > 0


def test_without_a_device_it_ends_with_2_and_one_line() -> None:
    result = diff("settled/loads")
    assert result.exit_code == 2
    assert result.output.startswith("settled diff: no CUDA device: ")
    line, hint = result.output.splitlines()
    assert line
    assert "--device cpu needs none" in hint


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("settled.reference.device.cuda.absence.why_absent", lambda: "triton is not installed")
    result = diff("settled/loads")
    assert result.exit_code == 2
    assert "triton is not installed\n  hint: pip install 'settled[cuda]'\n" in result.output
    monkeypatch.setattr("settled.reference.device.cuda.absence.why_absent", lambda: "no headers of Python: gcc does not find Python.h")
    assert "gcc does not find Python.h\n  hint: install python3-dev, on some systems python3-devel" in diff("settled/loads").output


def test_a_device_that_cannot_be_used_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise CudaError("CUDA_MODULE_LOADING is 'LAZY'")

    monkeypatch.setattr("settled.reference.device.cuda.absence.why_absent", lambda: "")
    monkeypatch.setattr(report, "opened", broken)
    result = diff("settled/loads")
    assert result.exit_code == 3
    assert "the CUDA device cannot be used: CUDA_MODULE_LOADING is 'LAZY'" in result.output


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    "error",
    [
        DriverError("cuStreamQuery", 719, "CUDA_ERROR_LAUNCH_FAILED"),
        ProbeError("no gates"),
        StreamsError("late"),
        BackEndError("TRITON_INTERPRET is set"),
    ],
)
def test_a_device_that_fails_on_the_way_is_unknown_too(error: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not a row that is not as it must be."""

    def broken(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(differential, "_add", broken)
    result = diff("settled/everything")
    assert result.exit_code == 3, result.output
    assert result.output.endswith(f"the CUDA device cannot be used: {error}\n")


@pytest.mark.parametrize("arguments", [["--tags-only"], ["--exhaustive"], ["--trace", __file__]])
def test_what_the_device_does_not_do_is_said(arguments: list[str]) -> None:
    result = diff(*arguments)
    assert result.exit_code == 2
    assert "--device cuda goes with rows alone" in result.output


def test_a_device_that_differs_ends_with_1_and_its_first_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(rows: Sequence[Row], device: CudaDevice, *, tell: Callable[[DeviceTotal], None], **keywords: object) -> Iterator[DeviceTotal]:
        total = DeviceTotal(rows[0])
        total.add(2, True, [WRONG], [("as enqueued", Run("as enqueued", problems=[f"problem {number}" for number in range(5)]))])
        tell(total)
        yield total
        yield DeviceTotal(rows[0])

    monkeypatch.setattr("settled.reference.device.cuda.absence.why_absent", lambda: "")
    monkeypatch.setattr(report, "compare_on_device", wrong)
    with FakeGpu() as gpu:
        monkeypatch.setattr(report, "opened", lambda: (CudaDevice(gpu.platform), gpu.queued))
        result = diff("settled/loads")
    assert result.exit_code == 1
    for words in (
        "seed 2: problem 0",
        "seed 2: problem 2",
        "5 problems in all",
        "first garbled on the device: seed 2, x: 2 rows, 0 stores",
        "1 of 1",
    ):
        assert words in result.output
    assert "problem 3" not in result.output


def test_the_device_gets_the_workloads_that_the_cpu_gets() -> None:
    row = next(row for row in ROWS if row.name == "optimistic/told-of-nulls/drafts/stream_order")
    (told,) = [told for told in index("row") if told.row == row.name and told.seed == 7]
    assert differential._log(row, 7, differential.STEPS) == told.log()


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("triton", "triton is not installed"),
        ("libcuda", "no NVIDIA driver"),
        ("cuda", "is built without CUDA"),
        ("device", "torch finds no CUDA device"),
        ("environment", "CUDA_MODULE_LOADING is 'LAZY'"),
        ("nothing", ""),
    ],
)
def test_why_there_is_no_device(missing: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise RuntimeError("no NVIDIA driver")

    monkeypatch.setattr(absence, "find_spec", lambda name: None if name == missing else name)
    monkeypatch.setattr("settled.reference.device.cuda.driver.load_libcuda", no_driver if missing == "libcuda" else lambda: None)
    monkeypatch.setattr(torch.version, "cuda", None if missing == "cuda" else "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: missing == "nothing")
    monkeypatch.setattr(os, "environ", {"CUDA_MODULE_LOADING": "LAZY"} if missing == "environment" else {})
    told = absence.why_absent()
    assert said in told
    assert bool(told) is (missing != "nothing")


def row_of(expected: Expected) -> Row:
    return next(row for row in ROWS if row.expected is expected)


CLEAN, WRONG = Run("x", wanted_rows=0, compared=1), Run("x", rows_garbled=2, wanted_rows=2, compared=1)


@pytest.mark.parametrize(
    ("expected", "is_racing", "enqueued", "other", "verdict"),
    [
        (Expected.CLEAN, False, CLEAN, CLEAN, True),
        (Expected.CLEAN, True, CLEAN, CLEAN, False),
        (Expected.CLEAN, False, CLEAN, WRONG, False),
        (Expected.RACES, True, CLEAN, WRONG, True),
        (Expected.RACES, True, CLEAN, CLEAN, None),
        (Expected.RACES, False, CLEAN, CLEAN, None),
        (Expected.RACES, True, WRONG, WRONG, False),
        (Expected.FREES, False, CLEAN, CLEAN, True),
        (Expected.FREES, False, CLEAN, WRONG, False),
        (Expected.ALWAYS, False, WRONG, WRONG, True),
        (Expected.ALWAYS, False, CLEAN, CLEAN, None),
    ],
)
def test_a_row_is_as_it_must_be_or_not_or_not_yet(
    expected: Expected, is_racing: bool, enqueued: Run, other: Run, verdict: bool | None
) -> None:
    total = DeviceTotal(row_of(expected))
    total.add(0, is_racing, [CLEAN], [("as enqueued", enqueued), ("transfers first", other)])
    assert total.is_as_expected is verdict


def test_a_device_that_is_not_as_the_cpu_says_is_wrong_whatever_the_row() -> None:
    total = DeviceTotal(row_of(Expected.RACES))
    total.add(3, True, [CLEAN], [("as enqueued", CLEAN), ("transfers first", Run("transfers first", problems=["it differs"]))])
    assert total.is_as_expected is False
    assert total.problems == ["seed 3: it differs"]
