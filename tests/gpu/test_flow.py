"""What a dry run leaves out: every log of every row with a device that is the CPU, and figures that are kept. Nothing here is measured."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import differential
import engine_traces
import figures
import flex_peer
import pytest
import torch
import torn_read
from bench import Bench
from fake_device import FakeGpu
from op_logs import Told, index
from report import Report

from settled.reference.device.compiled import Step
from settled.reference.device.compiling import compile_log
from settled.reference.device.cuda.against_cpu import Queued, Run, by_itself
from settled.reference.device.cuda.runtime import CudaDevice
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import OpLog
from settled.reference.device.replay import replay
from settled.reference.device.trials import Trial, races_of_launches

pytestmark = pytest.mark.fake_device


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


# ---- a torn read, FlexAttention ------------------------------------------------------------------------------------------


def test_a_device_whose_streams_wait_for_each_other_shows_no_torn_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torn_read, "SECONDS", 2.0)
    with FakeGpu(shares_queue=True) as gpu:
        bench = Bench(CudaDevice(gpu.platform), Report("torn_read", tmp_path / "told.json"), 60.0, True, gpu.cuda.put, gpu.queued)
        torn_read.run(bench)
    said = " ".join(bench.report.failures)
    assert "unfenced: the load did not end while the kernel stood at its gate" in said
    assert "unfenced: no torn read: 0 of 128 keys are wrong" in said
    assert "fenced: the load did not wait" not in said


def test_a_fence_that_does_not_hold_is_found_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaDevice, "wait", lambda device, stream, event: None)
    monkeypatch.setattr(torn_read, "CLOSED_SECONDS", torn_read.SECONDS)  # until the load ends, however busy this machine is
    torn_read.run(bench)
    unfenced_load, garbled = bench.report.failures
    assert unfenced_load == "fenced: the load did not wait for the kernel"
    assert garbled.startswith("fenced: 1 of 1 rows garbled")


def test_a_peer_that_computes_something_else_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def zeroes(numbered: NumberedLog, step: Step, *memory: object) -> torch.Tensor:
        return torch.zeros_like(numbered.steps[step.op].outputs)

    monkeypatch.setattr(flex_peer, "flex_outputs", zeroes)
    monkeypatch.setattr(flex_peer, "ROWS", (flex_peer.DRY,))
    monkeypatch.setattr(flex_peer, "index", lambda sort: [told for told in index("short") if told.row == flex_peer.DRY])
    flex_peer.run(bench)
    assert bench.report.failures == ["settled_everything-382-short: 5 of 5 rows further than 1e-05 from FlexAttention's"]


def test_a_peer_that_computes_no_numbers_is_far(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_peer, "index", lambda sort: [told for told in index("short") if told.row == flex_peer.DRY])
    monkeypatch.setattr(flex_peer, "ROWS", (flex_peer.DRY,))
    monkeypatch.setattr(flex_peer, "_log", lambda bench, told: [0.0, float("nan")])
    flex_peer.run(bench)
    assert bench.report.failures == ["settled_everything-382-short: 1 of 2 rows further than 1e-05 from FlexAttention's"]


# ---- figures -------------------------------------------------------------------------------------------------------------


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


def test_a_figure_is_of_the_device_alone_and_not_of_the_host_that_puts_work_on_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FULL", replace(figures.DRY, rounds=1))
    meter = figures.Meter(bench)
    late: list[bool] = []

    def work() -> None:
        """A host that is slow."""
        time.sleep(0.05)
        late.append(bench.device.driver.has_happened(meter.events[0]))

    def slowly() -> float:
        device = bench.device
        device.record(meter.events[0], 1)
        work()
        device.record(meter.events[1], 1)
        bench.drain()
        return device.driver.seconds_between(*meter.events)

    monkeypatch.setattr(bench, "put", lambda each: each())
    assert slowly() > 0.04, "what it would be"
    assert meter.seconds(work, 1, busy=1.0)[0] < 0.04
    assert late == [True, False]
    assert meter.late == 0


def test_a_host_that_was_late_is_told_beside_the_figure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FULL", replace(figures.DRY, rounds=2, warm_ups=1))
    monkeypatch.setattr(bench, "put", lambda each: each())
    meter = figures.Meter(bench)
    meter.measure("slow", 1, lambda: time.sleep(0.2), note="a note", busy=1e-3)
    meter.measure("in time", 1, lambda: None, note="a note", busy=1.0)
    notes = [figure["note"] for figure in bench.report.facts["figures"].values()]
    assert notes == ["a note; the host was late in 3 of 3 rounds, and its time counts", "a note"]


def test_attention_that_is_wrong_is_no_figure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "far_from_truth", lambda memory, table: 0.5)
    monkeypatch.setattr(figures, "FULL", figures.DRY)
    figures.run(bench)
    assert [failure.split(":")[1] for failure in bench.report.failures] == [" 5.0e-01 from float64, more than 0.01"] * 3
