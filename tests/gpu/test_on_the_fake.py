"""What is said to a CUDA device alone, said to the fake one: where host memory is pinned, what is waited for, how a device is opened."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import differential
import machine
import pytest
from bench import open_bench
from fake_device import FakeGpu
from op_logs import index
from report import Report

from settled.proofs.report import on_device
from settled.reference.device.compiling import compile_log
from settled.reference.device.cuda import runtime
from settled.reference.device.cuda.against_cpu import NUMBERS, AgainstCpu, by_itself
from settled.reference.device.cuda.contiguous import contiguous_log
from settled.reference.device.cuda.launches import Launches
from settled.reference.device.cuda.runtime import CudaDevice
from settled.reference.device.cuda.variants import TILE
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import KeysPart
from settled.reference.device.trials import trials

pytestmark = pytest.mark.fake_device

HOST = ("staging", "loaded_tags", "loaded_keys", "loaded_values", "stored_tags", "stored_keys", "stored_values")
DEVICE = ("tags", "keys", "values", "table")


def test_what_copies_come_from_and_go_to_is_pinned_and_the_default_stream_is_waited_for() -> None:
    told = next(told for told in index("row") if told.row == "settled/stores")
    compiled = compile_log(told.log())
    with FakeGpu() as gpu:
        device = CudaDevice(gpu.platform)
        launches = Launches(compiled, NumberedLog(compiled, NUMBERS), device.place)
        buffers = launches.buffers
        assert all(gpu.is_pinned(getattr(buffers, name).data_ptr()) for name in HOST if getattr(buffers, name).numel())
        assert not any(gpu.is_pinned(getattr(buffers, name).data_ptr()) for name in DEVICE)
        assert gpu.cuda.default.waits == 1, "uploads are over before anybody uses another stream"
        launches.reset()
        assert gpu.cuda.default.waits == 3
        launches.run(compiled.log.launches()[0])
        assert launches.outcome().rows is launches.rows
        device.enqueue(1, device.place.synchronize)
        assert gpu.cuda.default.waits == 3, "inside of a stream that one is waited for, and no other"


@pytest.fixture
def as_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """The platform that a process finds is the fake one."""
    with FakeGpu() as gpu:
        monkeypatch.setattr(runtime, "Platform", lambda: gpu.platform)
        yield gpu


def test_a_bench_for_a_device_opens_it_and_puts_nothing_itself(as_cuda: FakeGpu, tmp_path: Path) -> None:
    with open_bench(Report("machine", tmp_path / "told.json"), 60.0, is_dry=False) as bench:
        assert bench.device.platform.cuda is as_cuda.cuda
        machine.run(bench)
        seen: list[int] = []
        bench.enqueue(1, lambda: seen.append(1))
        assert seen == [1]
        assert bench.queued is by_itself
        bench.device.need_streams(1)
        bench.device.keep_busy(1, 0.3)
        with pytest.raises(TimeoutError, match="did not end its work"):
            bench.drain(0.0)
        bench.drain()
    report = bench.report
    assert report.failures == []
    assert report.facts["device"] == "a fake device"
    assert report.facts["gates"] == "stream memory operations"
    assert report.facts["cycles_per_second"] == pytest.approx(as_cuda.cycles_per_second, rel=0.5)
    assert len(bench.device.streams) == machine.STREAMS == max(told.log().num_streams - 1 for told in index("row", "short"))


def test_a_device_where_a_closed_gate_holds_up_others_is_told(tmp_path: Path) -> None:
    with FakeGpu(shares_queue=True) as gpu, open_bench(Report("machine", tmp_path / "told.json"), 60.0, is_dry=True) as bench:
        bench.device = CudaDevice(gpu.platform)
        machine.run(bench)
    assert "one at a time: a closed gate holds up other streams" in bench.report.line


def test_settled_diff_opens_the_device_and_launches_go_there_by_themselves(as_cuda: FakeGpu) -> None:

    device, queued = on_device.opened()
    assert device.platform.cuda is as_cuda.cuda
    seen: list[int] = []
    log = index("short")[0].log()
    queued(seen.append, log)(3)
    assert seen == [3]


def test_a_dry_run_of_the_comparison_tries_what_garbles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = next(told for told in index("short") if told.row == "optimistic/loads")
    monkeypatch.setattr(differential, "index", lambda *sorts: [told])
    with open_bench(Report("differential", tmp_path / "told.json"), 600.0, is_dry=True) as bench:
        differential.run(bench)
    assert bench.report.failures == []
    assert bench.report.facts["rows"][told.row]["directed_garbled"] > 0


def test_what_is_first_garbled_is_told_in_words() -> None:
    told = next(told for told in index("short") if told.row == "optimistic/told-of-nulls/drafts/stream_order")
    with FakeGpu() as gpu:
        case = AgainstCpu(told.log(), CudaDevice(gpu.platform), queued=gpu.queued)
        in_order = case.first_runs[1]
    assert in_order.problems == []
    assert in_order.is_garbled
    assert in_order.first.startswith("launch ")
    assert "through a null entry" in in_order.first
    assert list(trials(case.log, case.races, told.seed))


def test_logs_read_several_tiles_the_last_one_short_from_blocks_that_contiguous_memory_does_not_have() -> None:
    """Otherwise equal bits over contiguous memory would say little."""
    for name in ("settled_one-staging-buffer_loads-6", "settled_told-of-nulls_drafts_stream_order-0"):
        told = next(told for told in index("row") if told.name == name)
        assert told.expected == "clean" or told.races, name
        compiled = compile_log(told.log())
        beside = compile_log(contiguous_log(compiled))
        found = 0
        for step, alone in zip(compiled.steps, beside.steps, strict=True):
            for part, laid_out in zip(step.work.parts, alone.work.parts, strict=True):
                reading = compiled.readings[part.group]
                if not isinstance(part, KeysPart) or reading is None:
                    continue
                size = compiled.log.groups[part.group].block_size
                assert isinstance(laid_out, KeysPart)
                for query in range(part.start, part.start + part.tokens):
                    for first, end in reading(query, part.prompt_tokens):
                        held = part.blocks[first // size : -(-end // size)]
                        is_scattered = any(one + 1 != other for one, other in pairwise(held))
                        in_a_row = laid_out.blocks[first // size : -(-end // size)]
                        assert all(one + 1 == other for one, other in pairwise(in_a_row))
                        found += end - first > 2 * TILE and (end - first) % TILE != 0 and is_scattered
        assert found > 10, name
