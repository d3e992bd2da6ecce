"""Bandwidth: what the device can do at most, as copies measured here, and against it paged and contiguous attention and block copies.

Medians by the device's own events, in GB/s (10**9 bytes). What is measured is checked first: attention against float64, copies byte for
byte. A dry run runs it all on small sizes, checks it, and measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from bench import Bench
from paged_memory import SHAPE, SMALL, PagedMemory, Shape, attention_variants, far_from_truth
from torch import Tensor

SECONDS = 20.0  # for one round
BUSY, BUSY_LONG = 5e-3, 50e-3
"""Seconds for which the stream is kept busy while the host puts on it what is measured, one kernel or hundreds of copies: an idle device
would wait for the host between the first event and the work, and the wait would count. Copies beyond what a launch queue takes, some
thousand commands, would be put there afterwards, whatever the seconds. Whether the host was late all the same is looked at and told.
"""
TRUTH = 1e-2
"""Of attention in bfloat16 with float32 sums, relative to the norm of a row: bfloat16 has 8 bits."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of whole copies; blocks copied on the device, and moved one by one; `tries`: (tile, warps, stages) of attention; `rounds` that
    count, behind `warm_ups` that do not; `tried_rounds` of each try.
    """

    shape: Shape
    copy_bytes: int
    host_bytes: int
    blocks_copied: int
    blocks_moved: int
    tries: tuple[tuple[int, int, int], ...]
    rounds: int
    tried_rounds: int
    warm_ups: int


FULL = Sizes(SHAPE, 4 << 30, 256 << 20, 4096, 256, ((16, 2, 1), (32, 4, 1), (64, 4, 1), (128, 8, 1)), 15, 5, 2)
DRY = Sizes(SMALL, 4096, 4096, 4, 2, ((16, 1, 1),), 1, 1, 0)


class Meter:
    """Measures on stream 1, and keeps what it found among the phase's facts."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.sizes = DRY if bench.is_dry else FULL
        self.late = 0  # rounds in which the device was through with its other work before the host had put all of this there
        bench.report.facts["figures"] = {}
        self.events = bench.device.driver.new_event(is_timed=True), bench.device.driver.new_event(is_timed=True)
        bench.device.measure_clock()

    def seconds(self, work: Callable[[], None], rounds: int, busy: float = BUSY) -> list[float]:
        """Of each round, behind those that do not count. Raises TimeoutError."""
        return [self._once(work, busy) for _ in range(self.sizes.warm_ups + rounds)][self.sizes.warm_ups :]

    def _once(self, work: Callable[[], None], busy: float) -> float:
        device, (first, second) = self.bench.device, self.events
        device.keep_busy(1, busy)
        device.record(first, 1)
        self.bench.enqueue(1, work)
        device.record(second, 1)
        self.late += device.driver.has_happened(first)
        if not device.wait_until(lambda: device.driver.has_happened(second), SECONDS):
            raise TimeoutError(f"a measured piece of work did not end in {SECONDS:g} s")
        return device.driver.seconds_between(first, second)

    def measure(
        self, name: str, moved: int, work: Callable[[], None], *, ceiling: str | None = None, note: str = "", busy: float = BUSY
    ) -> None:
        """`moved`: bytes read and written in one round."""
        self.late = 0
        times = self.seconds(work, self.sizes.rounds, busy)
        if self.late:
            note += f"; the host was late in {self.late} of {self.sizes.warm_ups + len(times)} rounds, and its time counts"
        if self.bench.is_dry:
            return
        figures: dict[str, Any] = self.bench.report.facts["figures"]
        milliseconds = {"median": median(times) * 1e3, "least": min(times) * 1e3, "most": max(times) * 1e3}
        figure = {"gb_per_s": moved / median(times) / 1e9, "bytes": moved, "rounds": len(times), "milliseconds": milliseconds, "note": note}
        if ceiling is not None:
            figure |= {"ceiling": ceiling, "of_ceiling": figure["gb_per_s"] / figures[ceiling]["gb_per_s"]}
        figures[name] = figure
        self.bench.report.save()


def run(bench: Bench) -> None:
    meter = Meter(bench)
    _device_copy(meter)
    _host_copies(meter)
    with torch.no_grad():
        memory = PagedMemory(meter.sizes.shape, meter.sizes.blocks_copied, bench.device.torch_device)
        best = _attention(meter, memory)
        _block_copies(meter, memory)
    figures = bench.report.facts["figures"]
    bench.report.line = (
        "kernels and copies were right; nothing was measured"
        if bench.is_dry
        else f"paged attention {figures['attention, paged']['of_ceiling']:.0%} of a device copy ({best})"
    )


def _device_copy(meter: Meter) -> None:
    count = meter.sizes.copy_bytes // 4
    source = torch.arange(count, dtype=torch.int32, device=meter.bench.device.torch_device)
    target = torch.zeros_like(source)
    _settle(meter.bench)
    meter.measure("device copy", 2 * source.nbytes, lambda: _copy(target, source), note="read and written")
    meter.bench.report.check(torch.equal(target, source), "device copy: something else arrived")


def _host_copies(meter: Meter) -> None:
    bench = meter.bench
    count = meter.sizes.host_bytes // 4
    host, back = (bench.device.platform.pinned(count) for _ in range(2))
    host.copy_(torch.arange(count, dtype=torch.int32))
    there = torch.zeros(count, dtype=torch.int32, device=bench.device.torch_device)
    _settle(bench)
    meter.measure("host to device", host.nbytes, lambda: _copy(there, host), note="pinned memory")
    meter.measure("device to host", host.nbytes, lambda: _copy(back, there), note="pinned memory")
    bench.report.check(torch.equal(back, host), "host and device: something else arrived")


def _attention(meter: Meter, memory: PagedMemory) -> str:
    """The variant that is fastest over paged memory, for both."""
    bench, shape = meter.bench, memory.shape
    _settle(bench)
    variants = attention_variants(shape, meter.sizes.tries)
    tried = {}
    for name, variant in variants.items():
        tried[name] = median(meter.seconds(lambda variant=variant: memory.attend(variant, memory.paged), meter.sizes.tried_rounds))  # type: ignore[misc]
        _check_attention(bench, memory, f"attention, paged, {name}", memory.paged)
    if not bench.is_dry:
        bench.report.facts["variants_milliseconds"] = {name: seconds * 1e3 for name, seconds in tried.items()}
    best = min(tried, key=lambda name: tried[name])
    moved = shape.bytes_read
    note = f"{shape}, {best}"
    for name, table in (("contiguous", memory.identity), ("paged", memory.paged)):
        meter.measure(
            f"attention, {name}", moved, lambda table=table: memory.attend(variants[best], table), ceiling="device copy", note=note
        )  # type: ignore[misc]
        _check_attention(bench, memory, f"attention, {name}", table)
    return best


def _check_attention(bench: Bench, memory: PagedMemory, name: str, table: Tensor) -> None:
    far = far_from_truth(memory, table)
    bench.report.check(far <= TRUTH, f"{name}: {far:.1e} from float64, more than {TRUTH:g}")
    memory.outputs.fill_(float("nan"))
    _settle(bench)


def _block_copies(meter: Meter, memory: PagedMemory) -> None:
    bench = meter.bench
    sources, targets = memory.blocks_to_copy()
    moved = 4 * len(sources) * memory.shape.block_bytes  # keys and values, read and written
    pairs = torch.stack((sources, targets), 1).to(torch.int32).contiguous()
    _settle(bench)
    meter.measure("block copy", moved, lambda: memory.copy_blocks(pairs), ceiling="device copy", note="a kernel, blocks at random")
    is_right = all(torch.equal(whole[targets.long()], whole[sources.long()]) for whole in (memory.keys, memory.values))
    bench.report.check(is_right, "block copy: something else arrived")
    _moved_by_block(meter, memory, sources[: meter.sizes.blocks_moved].tolist())


def _moved_by_block(meter: Meter, memory: PagedMemory, blocks: list[int]) -> None:
    """As a connector does: a copy of keys and one of values for each block."""
    bench = meter.bench
    host = [bench.device.platform.pinned(len(blocks), *memory.keys.shape[1:], dtype=memory.keys.dtype) for _ in range(2)]
    moved = 2 * len(blocks) * memory.shape.block_bytes
    note = f"{len(blocks)} blocks, two copies of {memory.shape.block_bytes // 1024} KiB each"

    def store() -> None:
        for here, there in _by_block(memory, blocks, host):
            _copy(there, here)

    def load() -> None:
        for here, there in _by_block(memory, blocks, host):
            _copy(here, there)

    right = [whole[blocks].clone() for whole in (memory.keys, memory.values)]
    _settle(bench)
    meter.measure("store, block by block", moved, store, ceiling="device to host", note=note, busy=BUSY_LONG)
    for whole in (memory.keys, memory.values):
        whole[blocks] = 0
    _settle(bench)
    meter.measure("load, block by block", moved, load, ceiling="host to device", note=note, busy=BUSY_LONG)
    is_right = all(torch.equal(whole[blocks], kept) for whole, kept in zip((memory.keys, memory.values), right, strict=True))
    bench.report.check(is_right, "blocks to the host and back: something else arrived")


def _by_block(memory: PagedMemory, blocks: list[int], host: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    for at, block in enumerate(blocks):
        for whole, kept in zip((memory.keys, memory.values), host, strict=True):
            yield whole[block], kept[at]


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _settle(bench: Bench) -> None:
    """What torch's default stream does is over before other streams go on."""
    bench.device.place.synchronize()
