"""What `settled graph` prints: how many states, where it is stuck, which circles there are, and who waits for whom."""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from settled.proofs.folder import naming
from settled.proofs.graphs.dot import Attributes, dot_lines
from settled.proofs.graphs.explore import Circle, StateGraph, explore
from settled.proofs.graphs.scenarios import SCENARIOS
from settled.proofs.graphs.waiting import cycle_of, wait_for_graph, why_stuck
from settled.proofs.report.console import make_console
from settled.proofs.runner import Exit


@dataclass(frozen=True, slots=True)
class Explored:
    """A scenario, all of its states, and the circles among them."""

    name: str
    states: StateGraph
    circles: list[Circle]
    seconds: float

    @property
    def exit(self) -> Exit:
        if self.states.stuck or self.circles:
            return Exit.VIOLATED
        return Exit.HOLDS if self.states.is_complete else Exit.UNKNOWN

    @property
    def worst(self) -> int | None:
        """A state to look at: a stuck one, or one of a circle in which requests wait for each other."""
        if self.states.stuck:
            return self.states.stuck[0]
        of_circles = [state for circle in self.circles for state in circle.states]
        waiting = [state for state in of_circles if cycle_of(wait_for_graph(self.states.engine(state)))]
        return next(iter(waiting or of_circles), None)


def print_list() -> Exit:
    """The scenarios, a line each."""
    for name, named in SCENARIOS.items():
        click.echo(f"{name}: {named.meaning}{'' if named.is_right else ' (wrong)'}")
    return Exit.HOLDS


def run(names: Sequence[str], *, states_max: int, folder: Path | None, as_json: bool) -> Exit:
    """Explores the scenarios; returns the worst exit code."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    explored = [_explore(name, states_max) for name in names]
    if folder is not None:
        for each in explored:
            _write(each, folder)
    if as_json:
        code = _code(explored)
        click.echo(json.dumps({"scenarios": {each.name: _as_dict(each) for each in explored}, "exit_code": int(code)}, indent=2))
        return code
    _print(make_console(), explored)
    return _code(explored)


def _explore(name: str, states_max: int) -> Explored:
    began = time.perf_counter()
    states = explore(SCENARIOS[name].scenario, states_max=states_max)
    circles = states.circles() if states.is_complete else []
    return Explored(name, states, circles, time.perf_counter() - began)


def _code(explored: Sequence[Explored]) -> Exit:
    """Violated beats unknown: what is stuck is stuck, whatever else there may be."""
    codes = {each.exit for each in explored}
    return next(code for code in (Exit.VIOLATED, Exit.UNKNOWN, Exit.HOLDS) if code in codes)


def _print(console: Console, explored: Sequence[Explored]) -> None:
    table = Table("scenario", "states", "transitions", "stuck", "circles", "ms", "what")
    for each in explored:
        graph, complete = each.states.graph, each.states.is_complete
        table.add_row(
            each.name,
            f"{graph.number_of_nodes()}{'' if complete else ' and more'}",
            str(graph.number_of_edges()),
            f"[bold red]{len(each.states.stuck)}[/]" if each.states.stuck else "0",
            f"[bold red]{len(each.circles)}[/]" if each.circles else "0" if complete else "[yellow]unknown[/]",
            f"{each.seconds * 1000:.0f}",
            escape(SCENARIOS[each.name].meaning),
        )
    console.print(table)
    for each in explored:
        _print_worst(console, each)
    console.print(f"exit code {int(_code(explored))}")


def _print_worst(console: Console, each: Explored) -> None:
    state = each.worst
    if state is None:
        return
    is_stuck = bool(each.states.stuck)
    console.print(f"\n[bold]{each.name}[/]: state {state} {'is stuck' if is_stuck else 'is in a circle'}")
    way = each.states.way_to(state)
    console.print(f"  the way there: {'; '.join(way) or 'it is the first'}", markup=False)
    if not is_stuck:
        circle = each.circles[0]
        exits = "others lead out of it" if circle.has_exit else "no decision leads out of it, so no request can finish any more"
        console.print(f"  round and round: {'; '.join(circle.labels)} ({exits})", markup=False)
    console.print(f"  {why_stuck(wait_for_graph(each.states.engine(state)))}", markup=False)


def _as_dict(each: Explored) -> dict[str, Any]:
    state = each.worst
    waits = None if state is None else wait_for_graph(each.states.engine(state))
    return {
        "states": each.states.graph.number_of_nodes(),
        "transitions": each.states.graph.number_of_edges(),
        "is_complete": each.states.is_complete,
        "stuck": each.states.stuck,
        "circles": [{"states": circle.states, "labels": circle.labels, "has_exit": circle.has_exit} for circle in each.circles],
        "worst": None if waits is None else {"state": state, "why": why_stuck(waits), "cycle": cycle_of(waits)},
        "exit_code": int(each.exit),
    }


def _write(each: Explored, folder: Path) -> None:
    stuck, circling = set(each.states.stuck), {state for circle in each.circles for state in circle.states}

    def look(node: Hashable) -> Attributes:
        if node in stuck:
            return {"color": "red", "xlabel": "stuck"}
        return {"color": "orange"} if node in circling else {"color": "green"} if node in each.states.done else {}

    lines = dot_lines(each.states.graph, each.name, edge_label="label", look=look)
    _write_lines(folder / f"{each.name}.dot", lines)
    if each.worst is not None:
        waits = wait_for_graph(each.states.engine(each.worst))
        on_cycle = set(cycle_of(waits))
        lines = dot_lines(waits, f"{each.name}, state {each.worst}", edge_label="reason", look=lambda node: _red(node in on_cycle))
        _write_lines(folder / f"{each.name}.waits.dot", lines)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with naming(path):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _red(is_red: bool) -> Attributes:
    return {"color": "red"} if is_red else {}
