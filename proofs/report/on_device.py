"""What `settled diff --device cuda` prints: in which orders each row's workloads garble on the device, beside the CPU."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table

from settled.proofs.differential.on_device import DeviceTotal, compare_on_device
from settled.proofs.differential.rows import Row
from settled.proofs.report.console import make_console
from settled.proofs.report.progress_line import progress_line
from settled.proofs.runner import Exit
from settled.reference.device.cuda.against_cpu import Queued, by_itself
from settled.reference.device.cuda.driver import DriverError
from settled.reference.device.cuda.launches import BackEndError
from settled.reference.device.cuda.runtime import CudaDevice, CudaError
from settled.reference.device.cuda.streams import StreamsError
from settled.reference.device.cuda.tickets import ProbeError
from settled.reference.device.trials import ALWAYS_TRIED, DIRECTED

ORDERS = (*ALWAYS_TRIED, DIRECTED)
_STYLE = {True: "green", False: "bold red", None: "yellow"}
_WORD = {True: "yes", False: "NO", None: "not shown"}


def run(rows: Sequence[Row], *, workloads: int, seed: int, as_json: bool) -> Exit:
    """Compares, prints, returns how it ended."""
    console = make_console()
    began = time.perf_counter()
    totals: list[DeviceTotal] = []
    try:
        device, queued = opened()
        with progress_line(console, "settled diff", is_quiet=as_json) as say:

            def tell(total: DeviceTotal) -> None:
                say(f"row {len(totals) + 1} of {len(rows)}: {total.row.name}, {total.workloads} workloads")

            for total in compare_on_device(rows, device, workloads=workloads, seed=seed, queued=queued, tell=tell):
                totals.append(total)
    except (BackEndError, CudaError, DriverError, ProbeError, StreamsError) as error:
        click.echo(f"settled diff: the CUDA device cannot be used: {error}", err=True)
        return Exit.UNKNOWN
    verdicts = [total.is_as_expected for total in totals]
    code = Exit.VIOLATED if False in verdicts else Exit.UNKNOWN if None in verdicts else Exit.HOLDS
    seconds, gates = time.perf_counter() - began, device.tickets.gates.name
    if as_json:
        told = {
            "device": "cuda",
            "gates": gates,
            "workloads": workloads,
            "seed": seed,
            "seconds": round(seconds, 1),
            "exit_code": int(code),
        }
        click.echo(json.dumps({**told, "rows": [_as_dict(total) for total in totals]}, indent=1))
        return code
    _print(console, totals)
    runs, compared = sum(total.runs for total in totals), sum(total.compared for total in totals)
    console.print(
        f"{len(totals)} rows of {workloads} workloads on the device: {runs} runs, {compared} outputs compared bit for bit with contiguous "
        f"memory, orders directed by {gates}, {seconds:.1f} s; exit code {int(code)}",
        markup=False,
    )
    return code


def opened() -> tuple[CudaDevice, Queued]:
    """The device, and how launches get to its streams."""
    return CudaDevice(), by_itself


def _print(console: Console, totals: Sequence[DeviceTotal]) -> None:
    table = Table(
        Column("discipline, worker, workloads", no_wrap=True), "race", *ORDERS, "natural", "must be", "is", box=None, pad_edge=False
    )
    for number in range(1, 3 + len(ORDERS)):
        table.columns[number].justify = "right"
    for total in totals:
        pairs = [_pair(total.garbled[order], total.garbled_on_cpu[order]) for order in ORDERS]
        natural = f"{total.natural_garbled} of {total.natural}" if total.natural else "·"
        verdict = total.is_as_expected
        word = f"[{_STYLE[verdict]}]{_WORD[verdict]}[/]"
        table.add_row(total.row.name, str(total.racing or "·"), *pairs, natural, total.row.expected.value, word)
    console.print(table)
    console.print(
        "\n  race: workloads with accesses that nothing orders. as enqueued ... directed: garbled workloads, on the device | on the CPU\n"
        "  natural: runs in natural timing that garbled, of logs that race; with steps as short as they are, and of a millisecond",
        markup=False,
    )
    for total in totals:
        for problem in total.problems[:3]:
            console.print(f"{total.row.name}: {problem}", style="bold red", markup=False)
        if len(total.problems) > 3:
            console.print(f"{total.row.name}: {len(total.problems)} problems in all", style="bold red", markup=False)
        if total.first:
            console.print(f"{total.row.name}: first garbled on the device: {total.first}", markup=False)


def _pair(on_device: int, on_cpu: int) -> str:
    return f"{on_device}|{on_cpu}" if on_device or on_cpu else "·"


def _as_dict(total: DeviceTotal) -> dict[str, Any]:
    return {
        "row": total.row.name,
        "expected": total.row.expected.value,
        "as_expected": total.is_as_expected,
        "workloads": total.workloads,
        "racing": total.racing,
        "runs": total.runs,
        "outputs_compared": total.compared,
        "garbled_on_device": {order: total.garbled[order] for order in ORDERS},
        "garbled_on_cpu": {order: total.garbled_on_cpu[order] for order in ORDERS},
        "natural_runs_of_racing_logs": total.natural,
        "natural_runs_garbled": total.natural_garbled,
        "first": total.first,
        "problems": total.problems,
    }
