"""What a proof run prints of caps: the table of theorem 8, its smallest numbers, and the traces that go with an export."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from settled.model.trace_io import write_trace
from settled.proofs.cap_table import SHOWN, TABLE, CapRow, Numbers, trace
from settled.proofs.folder import naming


def print_caps(console: Console) -> None:
    """A table for each kind, a line a case."""
    for (name, exact, published), rows in groupby(TABLE, key=lambda row: (row.name, row.exact, row.published)):
        console.print(f"caps, in blocks, {name}: exact maximum {exact} (L no bound), published {published}", style="italic", markup=False)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in ("  where", "the published cap is", "smallest numbers that exceed it"):
            table.add_column(heading)
        for row in rows:
            word = "[green]enough[/]" if row.sound else "[bold red]too small[/]"
            table.add_row(f"  {row.condition}", word, _show(row, row.smallest))
        console.print(table)
    console.print(f"  in the last case, with sizes as engines have them: {_show(TABLE[-1], SHOWN)}", markup=False)


def caps_as_data() -> list[dict[str, Any]]:
    """The same for JSON."""
    return [
        {
            "kind": row.name,
            "where": row.condition,
            "exact": row.exact,
            "published": row.published,
            "sound": row.sound,
            "smallest": None if row.smallest is None else _as_dict(row, row.smallest),
        }
        for row in TABLE
    ]


def write_traces(folder: Path) -> int:
    """A shortest trace for each cap that is too small, as NDJSON under `folder`; returns how many. Raises OSError."""
    exceeded = [(row, row.smallest) for row in TABLE if row.smallest is not None]
    folder.mkdir(parents=True, exist_ok=True)
    for number, (row, numbers) in enumerate(exceeded, 1):
        path = folder / f"{row.name.replace(' ', '-')}-{number}.ndjson"
        with naming(path), path.open("w", encoding="utf-8") as out:
            write_trace(trace(row, numbers), out)
    return len(exceeded)


def _show(row: CapRow, numbers: Numbers | None) -> str:
    if numbers is None:
        return ""
    shown = ", ".join(f"{name} = {value}" for name, value in _as_dict(row, numbers).items() if name not in ("held", "cap"))
    return f"{shown}: {numbers.held} held, cap {numbers.cap}"


def _as_dict(row: CapRow, numbers: Numbers) -> dict[str, int]:
    length = "W" if row.name == "sliding window" else "X"
    return {
        "B": numbers.block_size,
        length: numbers.length,
        "k": numbers.lookahead,
        "p": numbers.settled,
        "M": numbers.in_flight,
        "held": numbers.held,
        "cap": numbers.cap,
    }
