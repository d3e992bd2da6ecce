"""Tags, output bits, ground truth, FlexAttention, plain Python, threads: all say the same of random logs in random orders."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import warnings
from random import Random

import pytest
import torch
from kinds import GROUPS
from logs import Host, foreign, random_log

from settled.model.specs import SlidingWindowSpec
from settled.reference.device.compiled import Step
from settled.reference.device.compiling import compile_log
from settled.reference.device.flex import FlexError, flex_outputs
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import COMPUTE, HostSync, Launch, LaunchKind, OpLog, Record, Slots, Wait
from settled.reference.device.payload import Numbers
from settled.reference.device.replay import Replay, replay
from settled.reference.device.small_replay import SmallReplay
from settled.reference.device.threads import ThreadsError, run_threads
from settled.reference.device.truth import true_outputs

torch.set_num_threads(1)
KINDS = pytest.mark.parametrize("kind", GROUPS)
KEYS = pytest.mark.parametrize("kind", [kind for kind in GROUPS if kind != "mamba"])


def shuffled(log: OpLog, seed: int) -> list[int]:
    order = log.launches()
    Random(seed).shuffle(order)
    return order


def three_moved(log: OpLog, seed: int) -> list[int]:
    """Three launches elsewhere, so that much stays right: a shuffle tears each step from its write."""
    order, draw = log.launches(), Random(seed)
    for _ in range(3):
        launch = order.pop(draw.randrange(len(order)))
        order.insert(draw.randrange(len(order) + 1), launch)
    return order


@KINDS
@pytest.mark.parametrize("numbers", [Numbers(), Numbers(head_dim=4, is_single=True)], ids=["float64", "float32"])
def test_a_tag_is_wrong_exactly_where_the_output_differs(kind: str, numbers: Numbers) -> None:
    garbled = right = 0
    for seed in range(5):
        log = random_log(seed, GROUPS[kind])
        compiled = compile_log(log)
        counted = NumberedLog(compiled, numbers)
        assert replay(compiled, None, counted).counts.is_clean
        order = three_moved(log, seed)
        counts = replay(compiled, order, counted, limit=0).counts
        result = replay(compiled, order, counted, limit=10_000)
        assert all(row.differs and row.position >= 0 for row in result.garbled)
        assert counts.rows_garbled == counts.rows_differing == sum(row.part >= 0 for row in result.garbled)
        garbled, right = garbled + counts.rows_garbled, right + counts.rows - counts.rows_garbled
    assert garbled > 20
    assert right > 20


def flex_of(device: Replay, step: Step) -> torch.Tensor:
    """Of memory as it stands."""
    numbered, memory = device.numbers, device.memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch advises to compile
        return flex_outputs(numbered, step, memory.keys, memory.values, device.compiled.tables[memory.table])


@KEYS
@pytest.mark.parametrize(("numbers", "bound"), [(Numbers(), 1e-12), (Numbers(is_single=True), 1e-5)], ids=["float64", "float32"])
def test_outputs_are_near_the_ground_truth_and_flex_attention(kind: str, numbers: Numbers, bound: float) -> None:
    log = random_log(11, GROUPS[kind])
    compiled = compile_log(log)
    counted = NumberedLog(compiled, numbers)
    device = Replay(compiled, counted)
    holes = 0
    for op in log.launches():
        device.run(op)
        step = compiled.launches[op]
        if isinstance(step, Step):
            truth = true_outputs(compiled, step, numbers)
            assert float((device.outputs - truth).abs().max()) < bound
            assert float((flex_of(device, step) - truth).abs().max()) < bound
            holes += sum(block == 0 for part in step.work.parts for block in part.blocks)
    assert device.result.counts.is_clean
    assert holes or kind == "full", "blocks that no query reads any more are null entries"


def test_flex_attention_sees_what_the_kernel_sees_in_a_garbled_memory() -> None:
    host = Host((SlidingWindowSpec(block_size=2, window=4),))
    request = host.add(4)
    host.step((request, 4))
    host.load(Slots(host.free(request, 0, 0), 0, foreign(7, 2)))
    last = host.step((request, 1))
    compiled = compile_log(host.log)
    counted = NumberedLog(compiled)
    device = Replay(compiled, counted)
    for op in host.log.launches():
        device.run(op)
    step = compiled.launches[last]
    assert isinstance(step, Step)
    assert device.result.counts.rows_reading_null == 1
    assert float((flex_of(device, step) - device.outputs).abs().max()) < 1e-12
    device.memory.table = 0
    with pytest.raises(FlexError, match=r"query 4 reads blocks \[0, 1, 2\] through pages \[0, 0, 0\]"):
        flex_of(device, step)


@KINDS
def test_the_small_replay_says_the_same_and_undoes_all(kind: str) -> None:
    for seed in range(6):
        log = random_log(seed, GROUPS[kind])
        compiled = compile_log(log)
        small = SmallReplay(log)
        before = list(small.tags)
        for order in (log.launches(), shuffled(log, seed), three_moved(log, seed)):
            device = Replay(compiled, limit=10_000)
            for op in order:
                device.run(op)
            assert small.run(order) == device.result.garbled
            assert small.tags == device.memory.tags.tolist()
            assert (small.misreads > 0) == bool(device.result.garbled)
            assert small.path == order
            for _ in order:
                small.undo()
            assert (small.tags, small.misreads, small.path, small.table) == (before, 0, [], 0)
            assert small.staging == [0] * log.num_staging
    with pytest.raises(IndexError):
        small.undo()


def test_the_small_replay_does_without_torch() -> None:
    code = "import sys, settled.reference.device.small_replay; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_undo_goes_back_one_launch() -> None:
    log = random_log(3, GROUPS["window and state"])
    small = SmallReplay(log)
    for op in shuffled(log, 3):
        before = (list(small.tags), small.table, list(small.staging), small.misreads)
        misread = small.do(op)
        assert (misread is not None) == (small.misreads > before[3])
        small.undo()
        assert (list(small.tags), small.table, list(small.staging), small.misreads) == before
        small.do(op)
    free = next(index for index, op in enumerate(log.ops) if type(op) is not Launch)
    with pytest.raises(ValueError, match=f"op {free} is no launch"):
        small.do(free)


# ---- threads ---------------------------------------------------------------------------------------------------------


def synchronised(seed: int) -> OpLog:
    """A random log in which each launch waits for the one before it: no thread may overtake."""
    log = random_log(seed, GROUPS["window and state"])
    plain, log.ops = log.ops, []
    for op in plain:
        if type(op) is Launch:
            if log.num_events:
                log.ops.append(HostSync(log.num_events - 1) if op.stream == 0 else Wait(op.stream, log.num_events - 1))
            log.ops += [op, Record(log.num_events, op.stream)]
            log.num_events += 1
        else:
            log.ops.append(op)
    return log


def test_threads_that_wait_for_each_other_run_as_enqueued() -> None:
    log = synchronised(1)
    compiled = compile_log(log)
    device = Replay(compiled, NumberedLog(compiled))
    delays = Random(1)
    assert run_threads(log, device.run, delay=lambda kind: delays.random() / 1000) == log.launches()
    assert device.result.counts.is_clean
    assert device.result.counts.steps > 5


def test_threads_left_alone_do_what_some_order_does() -> None:
    log = random_log(2, GROUPS["sliding_window"])
    compiled = compile_log(log)
    device = Replay(compiled)
    order = run_threads(log, device.run, delay=lambda kind: 0.002 if kind is LaunchKind.STEP else 0.0)
    assert sorted(order) == log.launches()
    assert order != log.launches()
    assert device.result == replay(compiled, order)


def test_directed_threads_run_the_order_that_is_asked_for() -> None:
    host = Host((SlidingWindowSpec(block_size=2, window=4),))
    request = host.add(4)
    host.step((request, 4))
    step = host.step((request, 1))
    load = host.load(Slots(host.free(request, 0, 0), 0, foreign(7, 2)))
    enqueued = host.log.launches()
    load_first = [*enqueued[:-2], load, step]
    compiled = compile_log(host.log)
    for order, garbled in ((enqueued, 0), (load_first, 1)):
        device = Replay(compiled, NumberedLog(compiled))
        assert run_threads(host.log, device.run, order=order) == order
        assert device.result == replay(compiled, order, NumberedLog(compiled))
        assert device.result.counts.rows_garbled == garbled


def test_an_order_that_cannot_be_ends_at_the_deadline() -> None:
    log = random_log(2, GROUPS["full"])
    order = log.launches()
    began = time.monotonic()
    with pytest.raises(ThreadsError, match="the deadline passed; waited for the ticket of launch"):
        run_threads(log, lambda op: None, order=[*order[1:], order[0]], seconds=0.2)  # a host launch last
    assert time.monotonic() - began < 10
    with pytest.raises(ValueError, match="names every launch of the log once"):
        run_threads(log, lambda op: None, order=order[1:])


def test_a_wait_for_an_event_that_never_comes_ends_at_the_deadline() -> None:
    log = random_log(2, GROUPS["full"])
    log.ops.append(HostSync(0))
    with pytest.raises(ThreadsError, match="the deadline passed; waited for event 0"):
        run_threads(log, lambda op: None, seconds=0.2)


def test_a_launch_that_hangs_is_not_waited_for() -> None:
    log = random_log(2, GROUPS["full"])
    hang = threading.Event()
    began = time.monotonic()

    def launch(op: int) -> None:
        if log.ops[op].stream == COMPUTE:  # type: ignore[union-attr]
            hang.wait(60)

    with pytest.raises(ThreadsError, match="the deadline passed"):
        run_threads(log, launch, seconds=0.2)
    hang.set()
    assert time.monotonic() - began < 30


def test_what_a_launch_raises_is_handed_on() -> None:
    log = synchronised(2)
    failing = [op for op in log.launches() if log.ops[op].stream > 0][3]  # type: ignore[union-attr]

    def launch(op: int) -> None:
        if op == failing:
            raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError, match="here"):
        run_threads(log, launch)
