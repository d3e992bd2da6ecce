"""What a dry run leaves out: every log of every row with a device that is the CPU, and figures that are kept. Nothing here is measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import differential
import engine_traces
import figures
import pytest
from bench import Bench
from fake_device import FakeGpu
from op_logs import Told, index
from report import Report

from settled.reference.device.compiling import compile_log
from settled.reference.device.cuda.against_cpu import Queued, Run, by_itself
from settled.reference.device.cuda.runtime import CudaDevice
from settled.reference.device.ops import OpLog
from settled.reference.device.replay import replay
from settled.reference.device.trials import Trial, races_of_launches


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """As on a device, but for the device."""
    with FakeGpu() as gpu:
        yield Bench(CudaDevice(gpu.platform), Report("a phase", tmp_path / "told.json"), 600.0, False, gpu.cuda.put, gpu.queued)


class CpuAlone:
    """Takes the place of a log on a device: each order is replayed, natural timing is the order of the log."""

    extra = 0  # rows that are found garbled and are not

    def __init__(self, log: OpLog, device: CudaDevice, queued: Queued = by_itself) -> None:
        self.log = log
        self.races = races_of_launches(log)
        self.compiled = compile_log(log)
        self.first_runs = [self.directed(Trial("one stream", log.launches()))]

    def natural(self, step_seconds: float) -> Run:
        return self.directed(Trial("natural timing", self.log.launches()))

    def directed(self, trial: Trial) -> Run:
        counts = replay(self.compiled, trial.order, limit=0).counts
        return Run(str(trial), counts.rows_garbled + self.extra, counts.stores_wrong, counts.rows_garbled, counts.stores_wrong, counts.rows)


def first_of_each_row(*sorts: str) -> list[Told]:
    return list({(told.sort, told.row): told for told in reversed(index(*sorts))}.values())


def test_every_row_goes_through_and_agrees_with_the_index(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differential, "AgainstCpu", CpuAlone)
    monkeypatch.setattr(differential, "index", first_of_each_row)
    differential.run(bench)
    report = bench.report
    report.is_over = True
    assert report.failures == []
    assert report.has_passed
    assert report.facts["logs"] == report.facts["of"] > 20
    rows = report.facts["rows"]
    assert rows["optimistic/loads"]["directed_garbled"] > 0 == rows["optimistic/loads"]["natural_garbled"]
    assert all(row["natural"] >= differential.AT_ONCE + differential.BUSY for row in rows.values())
    report.save()
    assert json.loads(report.path.read_text(encoding="utf-8"))["passed"]


def test_recordings_go_through(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differential, "AgainstCpu", CpuAlone)
    engine_traces.run(bench)
    assert bench.report.failures == []
    assert bench.report.facts["logs"] == 8


def test_a_right_log_that_garbles_and_a_log_that_nobody_got_to_are_failures(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(CpuAlone):
        extra = 1

    monkeypatch.setattr(differential, "AgainstCpu", Wrong)
    right = [told for told in index("short") if told.expected == "clean"]
    differential.compare(bench, right)
    assert bench.report.failed > 0
    assert all("garbled, and nothing may be" in failure for failure in bench.report.failures)
    bench.seconds = -1.0
    differential.compare(bench, right)
    assert bench.report.failures[-1] == f"no time for {', '.join(sorted(told.row for told in right))}"


def test_a_log_that_raises_says_nothing_of_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Raises(CpuAlone):
        def natural(self, step_seconds: float) -> Run:
            raise RuntimeError("out of luck")

    monkeypatch.setattr(differential, "AgainstCpu", Raises)
    logs = index("short")
    differential.compare(bench, logs)
    assert bench.report.failures == [f"{told.name}: RuntimeError: out of luck" for told in logs]


def test_an_index_that_says_something_else_is_found_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differential, "AgainstCpu", CpuAlone)
    told = next(told for told in index("short") if told.expected == "races")
    differential.compare(bench, [replace(told, races=7, orders=[each | {"rows_garbled": 99} for each in told.orders])])
    assert "the index says 7" in bench.report.failures[0]
    assert len(bench.report.failures) == 1 + len(told.orders)


def test_figures_are_kept_with_their_ceilings(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FULL", replace(figures.DRY, rounds=3, tries=((16, 1, 1), (16, 2, 1)), warm_ups=1, tried_rounds=1))
    figures.run(bench)
    assert bench.report.failures == []
    kept = bench.report.facts["figures"]
    assert list(kept) == [
        "device copy",
        "host to device",
        "device to host",
        "attention, contiguous",
        "attention, paged",
        "block copy",
        "store, block by block",
        "load, block by block",
    ]
    for name, figure in kept.items():
        assert figure["gb_per_s"] > 0
        assert figure["rounds"] == 3
        assert ("of_ceiling" in figure) == (name not in ("device copy", "host to device", "device to host"))
    assert kept["device copy"]["bytes"] == 2 * figures.DRY.copy_bytes
    assert len(bench.report.facts["variants_milliseconds"]) == 2


def test_attention_that_is_wrong_is_no_figure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "far_from_truth", lambda memory, table: 0.5)
    monkeypatch.setattr(figures, "FULL", figures.DRY)
    figures.run(bench)
    assert [failure.split(":")[1] for failure in bench.report.failures] == [" 5.0e-01 from float64, more than 0.01"] * 3
