"""How fast op logs are compiled and replayed, in steps and orders a second of processor time.

Run it as `python tests/bench/replay_speed.py`. Random logs as the tests make them, 3 requests with prompts of up to 60 tokens, windows of
4 to 32; medians of the rounds. Then orders of small logs, walked depth first with undo. Then how many garbled rows of wide windows a
relative tolerance would pass. Exits with 1 if tags are replayed at less than 8,000 steps a second or a garbled row's bits are right.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "device"))

from logs import random_log
from wide_windows import one_block_overwritten

from settled.model.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from settled.reference.device.compiling import compile_log
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import Launch, OpLog
from settled.reference.device.payload import Numbers
from settled.reference.device.replay import replay
from settled.reference.device.results import TOLERANCE
from settled.reference.device.small_replay import SmallReplay

TARGET = 8_000
ORDERS_MAX = 20_000  # a log
GROUPS: dict[str, tuple[KVCacheSpec, ...]] = {
    "window 4": (SlidingWindowSpec(block_size=4, window=4),),
    "window 32": (SlidingWindowSpec(block_size=4, window=32),),
    "window 16, full": (SlidingWindowSpec(block_size=4, window=16), FullAttentionSpec(block_size=4)),
    "window 16, state": (SlidingWindowSpec(block_size=4, window=16), MambaSpec(block_size=4, mode="none")),
}


def seconds(job: Callable[[], object]) -> float:
    began = time.process_time()
    job()
    return time.process_time() - began


def steps_a_second(rounds: int) -> float:
    """Prints a row for each of GROUPS. Returns the slowest of tags alone."""
    slowest = float("inf")
    print(f"{'steps a second':<20} {'compile':>9} {'tags':>9} {'numbers':>9} {'outputs':>9}")
    for name, groups in GROUPS.items():
        logs = [random_log(seed, groups, steps=40, num_blocks=400, longest_prompt=60) for seed in range(5)]
        columns: list[list[float]] = [[], [], [], []]
        for _ in range(rounds):
            for log in logs:
                compiled = compile_log(log)
                counted = NumberedLog(compiled)
                jobs: tuple[Callable[[], object], ...] = (
                    lambda log=log: compile_log(log),
                    lambda compiled=compiled: replay(compiled),
                    lambda compiled=compiled: NumberedLog(compiled),
                    lambda compiled=compiled, counted=counted: replay(compiled, None, counted),
                )
                for column, job in zip(columns, jobs, strict=True):
                    column.append(len(compiled.steps) / seconds(job))
        rates = [median(column) for column in columns]
        slowest = min(slowest, rates[1])
        print(f"{name:<20}" + "".join(f" {rate:>9,.0f}" for rate in rates), flush=True)
    return slowest


def orders_a_second(rounds: int) -> None:
    """All interleavings of the streams of small logs, synchronisation left out."""
    print(f"{'launches':>8} {'orders':>8} {'garbled':>8} {'a second':>9}")
    for seed in range(rounds):
        log = random_log(seed, (SlidingWindowSpec(block_size=2, window=4),), steps=4, requests=2)
        walk = _Walk(log)
        taken = seconds(walk.walk)
        print(f"{len(log.launches()):>8} {walk.orders:>8,} {walk.garbled:>8,} {walk.orders / taken:>9,.0f}", flush=True)


class _Walk:
    """Depth first; counts the orders and those in which something was misread."""

    def __init__(self, log: OpLog) -> None:
        self.small = SmallReplay(log)
        streams: dict[int, list[int]] = {}
        for index, op in enumerate(log.ops):
            if type(op) is Launch:
                streams.setdefault(max(op.stream, 1), []).append(index)  # the host's with the steps', as the host's syncs would have it
        self.queues = list(streams.values())
        self.at = [0] * len(self.queues)
        self.left = sum(map(len, self.queues))
        self.orders = self.garbled = 0

    def walk(self) -> None:
        if self.orders >= ORDERS_MAX:
            return
        if not self.left:
            self.orders += 1
            self.garbled += self.small.misreads > 0
            return
        self.left -= 1
        for which, queue in enumerate(self.queues):
            at = self.at[which]
            if at < len(queue):
                self.at[which] += 1
                self.small.do(queue[at])
                self.walk()
                self.small.undo()
                self.at[which] -= 1
        self.left += 1


def passed_by_a_tolerance(rows: int) -> bool:
    """Prints what share of garbled rows a tolerance passes. True when every one of them differs in bits."""
    all_differ = True
    print(f"{'one block of 16 overwritten':<32} {'passed at ' + format(TOLERANCE, 'g'):>14} {'bits equal':>11}")
    for window in (128, 1024, 4096):
        for factor in (4, 16, 32):
            numbers = Numbers(head_dim=64, query_factor=factor)
            counts = [one_block_overwritten(window, trial, numbers) for trial in range(rows)]
            passed = sum(one.rows_within_tolerance for one in counts) / rows
            equal = sum(1 - one.rows_differing for one in counts)
            all_differ &= equal == 0
            print(f"window {window:>4}, logits' deviation {factor / 3:>4.1f}  {passed:>13.0%} {equal:>11}", flush=True)
    return all_differ


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=100, help="garbled rows for each window and each factor")
    options = parser.parse_args()
    torch.set_num_threads(1)
    slowest = steps_a_second(options.rounds)
    orders_a_second(options.rounds)
    return 0 if passed_by_a_tolerance(options.rows) and slowest >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
