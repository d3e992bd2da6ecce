"""What a proof run prints: a row per obligation, or the same as JSON."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from settled.proofs.caps import CAPS
from settled.proofs.catalogue import THEOREMS
from settled.proofs.report.capping import caps_as_data, print_caps
from settled.proofs.report.console import make_console
from settled.proofs.runner import Exit, FoundRow, KillerRow, Row, Solvers, find_and_verify, prove
from settled.proofs.theorem import Theorem

AnyRow = Row | KillerRow | FoundRow
_STYLE = {"proved": "green", "reachable": "green", "refuted": "bold red", "unknown": "bold yellow", "unreachable": "bold yellow"}


@dataclass(frozen=True)
class Wanted:
    """What to prove: keys in order, the theorems that they name (`found` is none), and remarks on them, made when they are printed.

    `is_violated`: something beside the obligations, told in a remark, is violated.
    """

    keys: Sequence[str]
    theorems: Mapping[str, Theorem] = field(default_factory=lambda: THEOREMS)
    remarks: Mapping[str, Callable[[], list[str]]] = field(default_factory=dict)
    is_violated: bool = False


def run(wanted: Wanted, solvers: Solvers) -> Iterator[tuple[str, Iterator[AnyRow]]]:
    """The rows of each theorem, as they are decided."""
    for key in wanted.keys:
        yield key, (find_and_verify(solvers) if key == "found" else prove(wanted.theorems[key], solvers))


def exit_code(rows: Iterable[AnyRow], *, is_violated: bool = False) -> Exit:
    """The worst of the rows, and of what is known beside them: a refuted obligation before an unknown one."""
    codes = {row.exit for row in rows} | ({Exit.VIOLATED} if is_violated else set())
    return Exit.VIOLATED if Exit.VIOLATED in codes else max(codes, default=Exit.UNKNOWN)


def print_tables(wanted: Wanted, solvers: Solvers) -> Exit:
    """Prints theorem by theorem; returns the exit code."""
    console = make_console()
    began = time.perf_counter()
    console.print("solvers: " + ", ".join(f"{solver.name} {solver.version}" for solver in solvers), markup=False)
    everything: list[AnyRow] = []
    for key, decided in run(wanted, solvers):
        _print_heading(console, wanted.theorems.get(key))
        rows = list(decided)
        _print_theorem(console, rows)
        if key == CAPS.key:
            print_caps(console)
        for line in _remarks(wanted, key):
            console.print(f"  {line}", style="bold", markup=False)
        everything += rows
    code = exit_code(everything, is_violated=wanted.is_violated)
    _print_summary(console, everything, code, time.perf_counter() - began)
    return code


def _remarks(wanted: Wanted, key: str) -> list[str]:
    return wanted.remarks[key]() if key in wanted.remarks else []


def _print_heading(console: Console, theorem: Theorem | None) -> None:
    if theorem is None:
        console.print("\n[bold]An invariant that the solver finds by itself[/] (Spacer, settled basis, sliding window)")
        return
    console.print(f"\n[bold]{theorem.key} {escape(theorem.name)}[/]  {escape(theorem.sentence)}")
    for assumption in theorem.assumptions:
        console.print(f"  assumes: {assumption}", markup=False)


def _print_theorem(console: Console, rows: Sequence[AnyRow]) -> None:
    for row in rows:
        if isinstance(row, FoundRow):
            _print_found(console, row)
    for part, group in groupby((row for row in rows if isinstance(row, Row)), key=lambda row: row.part):
        console.print(_part_table(part, list(group)))
    killers = [row for row in rows if isinstance(row, KillerRow)]
    for killer in killers:
        _print_killer(console, killer)


def _part_table(part: str, rows: Sequence[Row]) -> Table:
    table = Table(title=part, title_justify="left", title_style="italic", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("obligation", min_width=44)
    table.add_column("claim", min_width=8)
    table.add_column("cover", min_width=9)
    table.add_column("ms", justify="right")
    table.add_column("rests on")
    for row in rows:
        core = ", ".join(name for name in row.core if not name.startswith(("guard: ", "not the conclusion")))
        table.add_row(f"  {row.name}", _styled(row.word), _styled(row.cover_word), f"{row.seconds * 1000:.0f}", Text(core, style="dim"))
        for verdict in row.verdicts.values():
            if verdict.failed:
                table.add_row(Text(f"    fails: {', '.join(verdict.failed)}", style="red"))
    return table


def _print_killer(console: Console, row: KillerRow) -> None:
    killer = row.killer
    where = f"{killer.part}: {killer.obligation}, at {str(killer.conjunct)!r}"
    if row.kills:
        console.print(f"  [red]killed[/] by [bold]{killer.discipline.name}[/] ({escape(killer.discipline.summary)})  {escape(where)}")
    else:
        said = ", ".join(f"{name}: {verdict.word}" for name, verdict in row.verdicts.items())
        console.print(f"  [bold yellow]NOT KILLED[/] by {killer.discipline.name}: expected {escape(where)}; {escape(said)}")


def _print_found(console: Console, row: FoundRow) -> None:
    if not row.conjuncts:
        console.print(f"  [bold yellow]unknown[/] Spacer found no invariant: {escape(row.reason)}")
        return
    console.print(f"  found in {row.seconds * 1000:.0f} ms:")
    for conjunct in row.conjuncts:
        console.print(f"    {conjunct}", markup=False)
    word = "reaches the bad state" if row.is_unsafe_when_optimistic else "DOES NOT reach the bad state"
    console.print(f"  on the optimistic basis it {word} ({row.killer_seconds * 1000:.0f} ms)")


def _print_summary(console: Console, rows: Sequence[AnyRow], code: Exit, seconds: float) -> None:
    words = _count(rows)
    kills = sum(isinstance(row, KillerRow) and row.kills for row in rows)
    killers = sum(isinstance(row, KillerRow) for row in rows)
    parts = [f"{count} {word}" for word, count in words.items()]
    console.print(f"\n{', '.join(parts)}; {kills} of {killers} killers kill; {seconds:.1f} s", markup=False)
    console.print(f"exit code {int(code)}", style="green" if code is Exit.HOLDS else "bold red", markup=False)


def _count(rows: Sequence[AnyRow]) -> Counter[str]:
    words: Counter[str] = Counter()
    for row in rows:
        if isinstance(row, Row):
            words.update(word for word in (row.word, row.cover_word) if word)
    return words


def _styled(word: str) -> Text:
    return Text(word, style=_STYLE.get(word, "bold yellow"))


def print_json(wanted: Wanted, solvers: Solvers) -> Exit:
    """The same as one JSON object."""
    rows = [row for _, decided in run(wanted, solvers) for row in decided]
    code = exit_code(rows, is_violated=wanted.is_violated)
    summary = {
        "solvers": {solver.name: solver.version for solver in solvers},
        "theorems": {
            key: {
                "name": theorem.name,
                "sentence": theorem.sentence,
                "assumptions": list(theorem.assumptions),
                "remarks": _remarks(wanted, key),
            }
            for key in wanted.keys
            if (theorem := wanted.theorems.get(key)) is not None
        },
        "rows": [_as_dict(row) for row in rows],
        **({"caps": caps_as_data()} if CAPS.key in wanted.keys else {}),
        "exit_code": int(code),
    }
    click.echo(json.dumps(summary, indent=2))
    return code


def _as_dict(row: AnyRow) -> dict[str, Any]:
    match row:
        case Row():
            return {
                "theorem": row.theorem,
                "part": row.part,
                "obligation": row.name,
                "claim": {name: verdict.word for name, verdict in row.verdicts.items()},
                "cover": {name: verdict.word for name, verdict in row.covers.items()},
                "seconds": round(row.seconds, 6),
                "core": list(row.core),
            }
        case KillerRow():
            return {
                "theorem": row.theorem,
                "killer": row.killer.discipline.name,
                "part": row.killer.part,
                "obligation": row.killer.obligation,
                "conjunct": row.killer.conjunct,
                "kills": row.kills,
            }
        case FoundRow():
            return {"theorem": "found", "invariant": list(row.conjuncts), "seconds": round(row.seconds, 6)}
