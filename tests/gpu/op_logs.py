"""The op logs in tests/data/gpu, and what must come out of each. Needs only the standard library and settled.reference."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from settled.reference.device.log_io import read_log
from settled.reference.device.ops import OpLog

FOLDER = Path(__file__).resolve().parents[1] / "data" / "gpu"
CLEAN, RACES, FREES, ALWAYS = "clean", "races", "early frees", "every order"


@dataclass(frozen=True, slots=True)
class Told:
    """A line of the index. `row`: of `settled diff`, or a recording; `seed`: of the random order too; `orders`: what the CPU found in each,
    in the order of `trials`."""

    file: str
    row: str
    sort: str
    seed: int
    expected: str
    steps: int
    rows: int
    races: int
    orders: list[dict[str, Any]]

    @property
    def name(self) -> str:
        return self.file.removesuffix(".ndjson.gz")

    def log(self) -> OpLog:
        """Raises LogFormatError."""
        with gzip.open(FOLDER / self.file, "rt", encoding="utf-8") as lines:
            return read_log(lines, self.file)


def index(*sorts: str) -> list[Told]:
    """The logs of these sorts, the first of each row first, then the second of each: a run that is cut short has seen every row."""
    by_row: dict[tuple[str, str], list[Told]] = {}
    for line in json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))["logs"]:
        told = Told(**line)
        if told.sort in sorts:
            by_row.setdefault((told.sort, told.row), []).append(told)
    return list(_in_turn(by_row.values()))


def _in_turn(rows: Iterable[list[Told]]) -> Iterator[Told]:
    for each in zip_longest(*rows):
        yield from filter(None, each)
