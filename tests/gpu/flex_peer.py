"""FlexAttention over the device's own memory and block table: a paged kernel that shares no arithmetic with ours must compute the same."""

from __future__ import annotations

import warnings
from functools import partial

import torch
from bench import Bench
from op_logs import Told, index
from torch import Tensor

from settled.reference.device.compiled import Step
from settled.reference.device.compiling import compile_log
from settled.reference.device.cuda.against_cpu import NUMBERS
from settled.reference.device.cuda.launches import Launches
from settled.reference.device.flex import flex_outputs
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import LaunchKind

TOLERANCE = 1e-5  # relative to the norm of a row: float32 on both sides
ROWS = ("settled/unfenced/stream_order", "settled/everything", "settled/loads")
DRY = "settled/everything"


def run(bench: Bench) -> None:
    report = bench.report
    logs = [told for told in index("short") if told.row == DRY] if bench.is_dry else [told for told in index("row") if told.row in ROWS]
    worst, rows, done = 0.0, 0, 0
    for told in logs:
        if bench.is_spent:
            break
        found = _log(bench, told)
        worst, rows, done = max(worst, *found), rows + len(found), done + 1
        far = sum(not distance <= TOLERANCE for distance in found)  # NaN is far
        report.check(bool(found) and not far, f"{told.name}: {far} of {len(found)} rows further than {TOLERANCE:g} from FlexAttention's")
        report.facts = {"logs": done, "rows": rows, "largest_distance": worst, "tolerance": TOLERANCE}
        report.line = f"{done} of {len(logs)} logs, {rows} rows, largest distance {worst:.1e}, tolerance {TOLERANCE:g}"
        report.save()
    report.check(done > 0, "no time for any log")


def _log(bench: Bench, told: Told) -> list[float]:
    """The distance of each row. Launch by launch, since memory is looked at behind each step."""
    compiled = compile_log(told.log())
    numbered = NumberedLog(compiled, NUMBERS)
    launches = Launches(compiled, numbered, bench.device.place)
    launch = bench.queued(launches.run, launches.log)
    peers: dict[int, Tensor] = {}
    for op in launches.log.launches():
        if compiled.kinds[op] is LaunchKind.FILL:
            launch(op)
        else:
            bench.device.enqueue(1, partial(launch, op))
        bench.drain()
        step = compiled.launches[op]
        if isinstance(step, Step) and numbered.steps[op].rows:
            peers[op] = _peer(numbered, step, launches)
    outcome = launches.outcome()
    bench.report.check(outcome.is_clean, f"{told.name}: {outcome.counts()}")
    distances: list[float] = []
    for op, peer in peers.items():
        ours = outcome.outputs[launches.rows.of_step[op].start : launches.rows.of_step[op].stop]
        distances += ((ours - peer).double().norm(dim=1) / ours.double().norm(dim=1)).tolist()
    return distances


def _peer(numbered: NumberedLog, step: Step, launches: Launches) -> Tensor:
    buffers = launches.buffers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch advises to compile
        with torch.no_grad():
            return flex_outputs(numbered, step, buffers.keys, buffers.values, buffers.table).cpu()
