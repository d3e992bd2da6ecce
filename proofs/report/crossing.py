"""What `settled diff --exhaustive` prints: every order of small logs, against what the detector says of them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Column, Table

from settled.proofs.differential.exhaustive import ORDERS_MAX, STEPS, Crossed, Kind, cross
from settled.proofs.differential.rows import ROWS, Row
from settled.proofs.processes import in_order
from settled.proofs.report.console import make_console
from settled.proofs.report.progress_line import progress_line
from settled.proofs.runner import Exit

SHARD = 20  # logs


class Shard(NamedTuple):
    """Small enough to be sent to a process: ROWS[`row`], seeds from `first` on."""

    row: int
    first: int
    logs: int


def run(rows: Sequence[Row], *, logs: int, seed: int, as_json: bool) -> Exit:
    """`logs` of each row from `seed` on. Returns 1 if orders differ in which all races go the same way, 3 if a kind of race that was seen
    never garbles.
    """
    console = make_console()
    began = time.perf_counter()
    crossed = {ROWS.index(row): Crossed(row) for row in rows}
    shards = [Shard(row, first, min(SHARD, seed + logs - first)) for row in crossed for first in range(seed, seed + logs, SHARD)]
    with progress_line(console, "settled diff", is_quiet=as_json) as say, in_order(_cross, shards) as results:
        for shard, result in zip(shards, results, strict=True):
            crossed[shard.row].add(result)
            say(f"{ROWS[shard.row].name}, {sum(each.interleavings for each in crossed.values())} interleavings")
    every = list(crossed.values())
    silent = _silent(every)
    code = Exit.VIOLATED if any(each.unsound for each in every) else Exit.UNKNOWN if silent else Exit.HOLDS
    seconds = time.perf_counter() - began
    if as_json:
        told = {"logs": logs, "seed": seed, "steps": STEPS, "orders_max": ORDERS_MAX, "seconds": round(seconds, 1), "exit_code": int(code)}
        click.echo(json.dumps({**told, "rows": [_as_dict(each) for each in every]}, indent=1))
        return code
    _print(console, every, silent)
    interleavings = sum(each.interleavings for each in every)
    of_cut = sum(each.of_cut for each in every)
    wrong = sum(len(each.unsound) for each in every)
    console.print(
        f"{len(every)} rows of {logs} logs of {STEPS} steps: {interleavings} interleavings, {of_cut} of them of logs "
        f"that have more, {wrong} disagreements, {seconds:.1f} s; "
        f"exit code {int(code)}",
        markup=False,
    )
    return code


def _cross(shard: Shard) -> Crossed:
    return cross(ROWS[shard.row], range(shard.first, shard.first + shard.logs))


def _silent(every: Sequence[Crossed]) -> list[Kind]:
    """Kinds of races that were seen and never garbled anything."""
    seen: Counter[Kind] = sum([each.kinds for each in every], Counter())
    garbling: Counter[Kind] = sum([each.garbling for each in every], Counter())
    return sorted(kind for kind in seen if not garbling[kind])


def _print(console: Console, every: Sequence[Crossed], silent: Sequence[Kind]) -> None:
    headings = ("interleavings", "cut", "clean", "garbled always", "races, never", "races, some orders", "races, always")
    table = Table(
        Column("discipline, worker, workloads", no_wrap=True), *headings, "kinds of races: logs, garbled", box=None, pad_edge=False
    )
    for number in range(1, 8):
        table.columns[number].justify = "right"
    for each in every:
        logs = each.logs
        counts = [logs[False, "never"], logs[False, "always"], logs[True, "never"], logs[True, "in some orders"], logs[True, "always"]]
        kinds = ", ".join(
            f"{first}-{second} {times}, {each.garbling[first, second]}" for (first, second), times in sorted(each.kinds.items())
        )
        table.add_row(each.row.name, str(each.interleavings), str(each.cut), *(str(count) if count else "·" for count in counts), kinds)
    console.print(table)
    console.print(
        "\n  cut: logs with more orders than were tried. clean: no race, and wrong in no order. garbled always: no race is needed for it\n"
        "  kinds: what the earlier and the later access are; logs with such a race; how many of them it garbles, turned round",
        markup=False,
    )
    for each in every:
        for seed in dict.fromkeys(each.unsound):
            console.print(
                f"{each.row.name}, seed {seed}: orders differ in which every race goes the same way", style="bold red", markup=False
            )
    for first, second in silent:
        console.print(f"{first}-{second}: such races garbled nothing in these logs", style="yellow", markup=False)


def _as_dict(each: Crossed) -> dict[str, Any]:
    return {
        "row": each.row.name,
        "interleavings": each.interleavings,
        "interleavings_of_cut_logs": each.of_cut,
        "cut": each.cut,
        "logs": [{"races": races, "garbled": word, "logs": times} for (races, word), times in sorted(each.logs.items())],
        "kinds": [
            {"first": first, "second": second, "logs": times, "garbled": each.garbling[first, second]}
            for (first, second), times in sorted(each.kinds.items())
        ],
        "disagreements": each.unsound,
    }
