"""What a weighing prints: a table of disciplines and properties, what fencing repairs, and what each discipline costs; or all as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import click
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from settled.model.disciplines import CALLBACK, DISCIPLINES, OPTIMISTIC, POOL_FENCE, RIGHT, Discipline
from settled.model.explicit import SCOPE
from settled.model.properties import Contract, Property
from settled.model.search.solver import solver_named
from settled.proofs.costs import COMPARED, SEEDS, STEPS, Cost, cost_of
from settled.proofs.processes import in_order
from settled.proofs.progress import STEPS_MAX, Progress, progress
from settled.proofs.refutations import WINDOWED
from settled.proofs.report.console import is_watched, make_console
from settled.proofs.runner import Exit
from settled.proofs.weighing import COLUMNS, IN_FLIGHT, SEARCHED, Cell, Weighing, Word, kind_weighed

_STYLE = {Word.PROVED: "green", Word.REFUTED: "bold red", Word.OPEN: "yellow", Word.UNKNOWN: "bold yellow"}
_HEADINGS = {
    IN_FLIGHT: "in flight",
    Property.READ_RESIDENT: "read",
    Property.WRITE_OWNED: "write",
    Property.ROLLBACK_RESIDENT: "rollback",
    Property.SINGLE_OWNER: "owner",
    Property.COUNTERS_SYMMETRIC: "counters",
    Property.HELD_BOUNDED: "held",
}


@dataclass(frozen=True)
class Weighed:
    """Everything that a run found out of one discipline."""

    discipline: Discipline
    cells: Sequence[Cell]
    progress: Progress
    cost: Cost | None  # of those that are compared

    def of(self, column: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.column == column]


def run(names: Sequence[str], *, as_json: bool) -> Exit:
    """Weighs the named disciplines, prints, returns 0, or 3 if a cell is unknown."""
    console = make_console()
    began = time.perf_counter()
    weighed = []
    with _progress_line(console, quiet=as_json) as status, in_order(_weigh, names) as rows:
        for number, row in enumerate(rows, 1):
            status.update(f"{number} of {len(names)}: {row.discipline.name}")
            weighed.append(row)
    unknown = [cell for row in weighed for cell in row.cells if cell.word is Word.UNKNOWN]
    code = Exit.UNKNOWN if unknown else Exit.HOLDS
    if as_json:
        click.echo(json.dumps({"disciplines": [_as_dict(row) for row in weighed], "exit_code": int(code)}, indent=2))
        return code
    _print_cells(console, weighed)
    for cell in unknown:
        console.print(f"  unknown: {cell.discipline.name}, {cell.column}: {cell.problem}", style="bold yellow", markup=False)
    _print_faults(console, weighed)
    _print_costs(console, weighed)
    console.print(f"\n{len(weighed)} disciplines, {time.perf_counter() - began:.1f} s; exit code {int(code)}", markup=False)
    return code


def _progress_line(console: Console, *, quiet: bool) -> Status:
    """A line that says what is being weighed, on a terminal only."""
    errors = Console(stderr=True, quiet=quiet or not sys.stderr.isatty() or not is_watched(console))
    return Status("", console=errors)


@cache
def _weighing() -> Weighing:
    """This process's own."""
    return Weighing(solver_named("z3"))


def _weigh(name: str) -> Weighed:
    discipline = DISCIPLINES[name]
    cost = cost_of(discipline) if discipline in COMPARED else None
    return Weighed(discipline, tuple(_weighing().cells(discipline)), progress(discipline), cost)


# ---- what holds ------------------------------------------------------------------------------------------------------


def _print_cells(console: Console, weighed: Sequence[Weighed]) -> None:
    table = Table("discipline", *_HEADINGS.values(), "finishes", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in weighed:
        name = row.discipline.name + ("" if kind_weighed(row.discipline) is WINDOWED else " (mamba align)")
        table.add_row(name, *(_shown(row.of(column.name)) for column in COLUMNS), _finishes(row.progress))
    console.print(table)
    console.print()
    for column in COLUMNS:
        console.print(f"  {_HEADINGS[column.name]:<10}{column.meaning}", markup=False)
    console.print(
        f"  {'finishes':<10}two small runs on the reference end within {STEPS_MAX} steps; runs, not proofs\n"
        "  T3, A1    proved: by the argument of that theorem (settled prove T3) for the discipline, for every window, block size, depth.\n"
        "            T8 of a sliding window with at most one lookahead slot, its need judged at max(0, C - F). A1 of read: what was null\n"
        "            when the step was scheduled is not counted where only a rollback made it needed, which is the column rollback\n"
        f"  x2        refuted: by a shortest trace of 2 events (settled refute), which the reference executes\n"
        f"  -         open: no proof covers it, no trace of up to {SEARCHED} events violates it (owner, held of states: not searched)\n"
        f"            Traces: {SCOPE}\n"
        f"  a/b/c     under the contracts {', '.join(Contract)}, where they differ. Under the last two every writer is taken to be\n"
        "            in order, or to wait for the block's event; under settled nothing is known of writers",
        markup=False,
    )


def _shown(cells: Sequence[Cell]) -> Text:
    """One word for all contracts, or one for each."""
    words = [(_word(cell), _STYLE[cell.word]) for cell in cells]
    if len(set(words)) == 1:
        return Text(*words[0])
    return Text("/").join(Text(*word) for word in words)


def _word(cell: Cell) -> str:
    match cell.word:
        case Word.PROVED:
            return cell.by
        case Word.REFUTED:
            return f"x{cell.length}"
        case Word.OPEN:
            return "-"
        case Word.UNKNOWN:
            return "?"


def _finishes(found: Progress) -> Text:
    stuck = [name for name, steps in asdict(found).items() if steps is None]
    return Text("yes") if not stuck else Text(f"stuck: {', '.join(stuck).replace('_', ' ')}", style="bold red")


def _print_faults(console: Console, weighed: Sequence[Weighed]) -> None:
    """What each way to prune makes of the two faults, in a sentence each."""
    console.print("\n[bold]The two faults[/]: a step in flight loses its block; a rollback needs a block that is gone")
    shown = [row for row in weighed if row.discipline in (OPTIMISTIC, POOL_FENCE, CALLBACK, RIGHT)]
    for row in sorted(shown, key=lambda row: (OPTIMISTIC, POOL_FENCE, CALLBACK, RIGHT).index(row.discipline)):
        (first,), (second,) = row.of(IN_FLIGHT), row.of(Property.ROLLBACK_RESIDENT)
        console.print(f"  {row.discipline.name:<11} fault 1 {_said(first) + ';':<34} fault 2 {_said(second)}", markup=False)


def _said(cell: Cell) -> str:
    match cell.word:
        case Word.PROVED:
            return f"does not occur, proved by {cell.by}"
        case Word.REFUTED:
            return f"occurs, shortest trace {cell.length} events"
        case _:
            return str(cell.word)


# ---- what it costs ---------------------------------------------------------------------------------------------------


def _print_costs(console: Console, weighed: Sequence[Weighed]) -> None:
    costs = [(row.discipline, row.cost) for row in weighed if row.cost is not None]
    if not costs:
        return
    console.print(f"\n[bold]Costs[/], over the same {len(SEEDS)} random workloads of {STEPS} steps each (sliding windows, full attention)")
    headings = ("blocks held", "peak", "pruned", "early", "wait", "given up", "wait", "preempted", "stuck", "tokens a step", "finished")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("discipline")
    for heading in headings:
        table.add_column(heading, justify="right")
    for discipline, cost in costs:
        numbers = (
            f"{cost.held_mean:.2f}",
            cost.held_peak,
            cost.pruned,
            f"{100 * cost.early / max(1, cost.pruned):.0f} %",
            f"{cost.pruned_wait_mean:.3f}",
            cost.given_up,
            f"{cost.given_up_wait_mean:.3f}",
            cost.preemptions,
            cost.stuck,
            f"{cost.sampled_per_step:.3f}",
            cost.finished,
        )
        table.add_row(discipline.name, *map(str, numbers))
    console.print(table)
    console.print(
        "  blocks held: out of the pool, mean over steps. pruned: blocks that a prune brought back to the pool; early: before the settled\n"
        "  count let them go; wait: steps from there to the pool. given up: blocks of whole tables, and their steps from the end of the\n"
        "  generation to the pool. stuck: requests given up as nothing moved. finished: requests",
        markup=False,
    )


# ---- JSON ------------------------------------------------------------------------------------------------------------


def _as_dict(row: Weighed) -> dict[str, Any]:
    return {
        "discipline": row.discipline.name,
        "kind": kind_weighed(row.discipline).name,
        "cells": [_cell_as_dict(cell) for cell in row.cells],
        "steps_to_finish": asdict(row.progress),
        "cost": None if row.cost is None else {**asdict(row.cost), **_means(row.cost)},
    }


def _cell_as_dict(cell: Cell) -> dict[str, Any]:
    plain = {"column": cell.column, "contract": cell.contract, "word": cell.word, "by": cell.by or None}
    return plain | {"length": cell.length, "searched": cell.searched, "problem": cell.problem or None}


def _means(cost: Cost) -> dict[str, float]:
    names = ("held_mean", "pruned_wait_mean", "given_up_wait_mean", "sampled_per_step")
    return {name: round(getattr(cost, name), 4) for name in names}
