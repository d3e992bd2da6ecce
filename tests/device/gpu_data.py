"""Writes tests/data/gpu: op logs for a machine that has a device and little else, and in index.json what must come out of each.

    python tests/device/gpu_data.py

Deterministic, but for how gzip packs: test_gpu_data.py compares the folder with what this writes. Three sorts of logs: workloads of the
rows of `settled diff`; short ones of some rows, which a dry run takes; some with freed blocks poisoned; recordings of vLLM releases.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from settled.model.events import Event
from settled.model.trace_io import read_trace
from settled.proofs.differential.one import STEPS
from settled.proofs.differential.rows import ROWS, Expected, Row
from settled.reference.device.compiling import compile_log
from settled.reference.device.log_io import write_log
from settled.reference.device.lowering import lower
from settled.reference.device.ops import KeysPart, Launch, OpLog, StatesPart, StepWork
from settled.reference.device.replay import replay
from settled.reference.device.trials import ENQUEUED, races_of_launches, trials
from settled.reference.device.worker import RIGHT_WORKER, TOLD_OF_NULLS, Worker
from settled.reference.workload import run_workload

DATA = Path(__file__).parents[1] / "data"
OUT = DATA / "gpu"
SEEDS_MAX = 200  # looked at for a log that shows what its row must
RIGHT_LOGS, RACING_LOGS = 3, 4
EVERYTHING, COVERING_SEEDS = "settled/everything", 100

# Rows that are garbled whatever the device does: fault 2 stands for all of them, the others are faults of the scheduler alone. The row of
# vLLM's own basis frees the same blocks as the first and has the same logs.
ALWAYS = {"optimistic/told-of-nulls/drafts/stream_order": 3, "optimistic/drafts/stream_order": 1}
# Runs with few rows, of (steps, seed), for the interpreter.
SHORT = {
    "settled/everything": (5, 382),
    "settled/states/stream_order": (4, 86),
    "optimistic/loads": (4, 45),
    "optimistic/told-of-nulls/drafts/stream_order": (5, 232),
}
# With freed blocks overwritten at once, which nothing orders behind a step that still uses them.
POISONED = {"settled/loads": Expected.CLEAN, "optimistic/loads": Expected.RACES, "optimistic/fenced/loads": Expected.RACES}

# Recordings: of releases that are affected by fault 1, by fault 2, and of releases that are not.
TRACES: tuple[tuple[str, Worker, Expected], ...] = (
    ("v0.24.0-connector-overwrite", RIGHT_WORKER, Expected.RACES),
    ("v0.25.1-connector-overwrite", RIGHT_WORKER, Expected.RACES),
    ("v0.26.0-connector-overwrite", RIGHT_WORKER, Expected.CLEAN),
    ("v0.33.0-connector-overwrite", RIGHT_WORKER, Expected.CLEAN),
    ("v0.25.1-connector-overwrite-swa", RIGHT_WORKER, Expected.RACES),
    ("v0.26.0-connector-overwrite-swa", RIGHT_WORKER, Expected.CLEAN),
    ("v0.25.1-min-spec-reject", TOLD_OF_NULLS, Expected.ALWAYS),
    ("v0.26.0-min-spec-reject", TOLD_OF_NULLS, Expected.CLEAN),
)


class Entry(NamedTuple):
    """A log. `row`: of `settled diff`, or a recording and its worker. `sort`: row, short, poisoned or trace. `seed` draws orders."""

    row: str
    sort: str
    seed: int
    expected: Expected
    log: OpLog

    @property
    def file(self) -> str:
        seed = {"row": f"-{self.seed}", "trace": ""}.get(self.sort, f"-{self.seed}-{self.sort}")
        return f"{self.row.replace('/', '_')}{seed}.ndjson.gz"


def entries() -> Iterator[Entry]:
    for row in ROWS:
        wanted = {Expected.CLEAN: RIGHT_LOGS, Expected.RACES: RACING_LOGS, Expected.FREES: 1}.get(row.expected, ALWAYS.get(row.name, 0))
        if row.name == EVERYTHING:
            yield from _covering(row)
        elif row.name != "vllm/everything":
            yield from islice(_showing(row), wanted)
    for row in ROWS:
        if row.name in SHORT:
            yield _short(row, *SHORT[row.name])
        if row.name in POISONED:
            yield next(_showing(row, POISONED[row.name], sort="poisoned"))
    for trace, worker, expected in TRACES:
        name = "/".join(filter(None, (trace, "" if worker is RIGHT_WORKER else worker.name)))
        yield Entry(name, "trace", 0, expected, lowered(trace, worker))


def _covering(row: Row) -> Iterator[Entry]:
    """The first logs, and each of the next that has a kind of launch, a kind of group or both sorts of groups where none before had."""
    seen: set[object] = set()
    for entry in _showing(row):
        if entry.seed >= COVERING_SEEDS:
            return
        found = facts_of(entry.log)
        if entry.seed < RIGHT_LOGS or found - seen:
            yield entry
        seen |= found


def facts_of(log: OpLog) -> set[object]:
    parts = {type(part) for part in _parts(log)}
    launches = {op.kind for op in log.ops if type(op) is Launch}
    return launches | {(spec.kind, getattr(spec, "mode", "")) for spec in log.groups} | ({"keys and states"} if len(parts) > 1 else set())


def _parts(log: OpLog) -> Iterator[KeysPart | StatesPart]:
    for op in log.ops:
        if type(op) is Launch and isinstance(op.work, StepWork):
            yield from op.work.parts


def lowered(trace: str, worker: Worker) -> OpLog:
    with (DATA / "traces" / f"{trace}.ndjson").open("rb") as lines:
        return lower([event for _, event in read_trace(lines)], worker=worker)


def _short(row: Row, steps: int, seed: int) -> Entry:
    entry = Entry(row.name, "short", seed, row.expected, _log(row, steps, seed))
    if not is_shown(entry):
        raise RuntimeError(f"{row.name}: {steps} steps of seed {seed} do not show what they should")
    return entry


def _log(row: Row, steps: int, seed: int, *, poisons: bool = False) -> OpLog:
    events: list[Event] = []
    run_workload(row.family.draw(seed), discipline=row.discipline, fence=row.family.fence, steps=steps, sink=events.append)
    return lower(events, worker=row.worker, poisons=poisons)


def _showing(row: Row, expected: Expected | None = None, sort: str = "row") -> Iterator[Entry]:
    """The logs, in the order of their seeds, that alone show what the row must. Raises RuntimeError where no more are found."""
    for seed in range(SEEDS_MAX):
        entry = Entry(row.name, sort, seed, expected or row.expected, _log(row, STEPS, seed, poisons=sort == "poisoned"))
        if is_shown(entry):
            yield entry
    raise RuntimeError(f"{row.name}: too few of {SEEDS_MAX} seeds show what they should")


def is_shown(entry: Entry) -> bool:
    reuses = races_of_launches(entry.log)
    if bool(reuses) is not (entry.expected is Expected.RACES):
        return False
    if "/states" in entry.row and not any(isinstance(part, StatesPart) for part in _parts(entry.log)):
        return False
    compiled = compile_log(entry.log)
    wrong = [trial.name for trial in trials(entry.log, reuses, entry.seed) if not replay(compiled, trial.order, limit=0).counts.is_clean]
    if entry.expected is Expected.ALWAYS:
        return ENQUEUED in wrong
    return bool(wrong) is bool(reuses) and ENQUEUED not in wrong


def told_of(entry: Entry) -> dict[str, object]:
    """The entry's line of the index: what the CPU makes of it."""
    compiled = compile_log(entry.log)
    reuses = races_of_launches(entry.log)
    orders = []
    for trial in trials(entry.log, reuses, entry.seed):
        counts = replay(compiled, trial.order, limit=0).counts
        wrong = {"rows_garbled": counts.rows_garbled, "stores_wrong": counts.stores_wrong}
        orders.append({"name": trial.name, "turned": trial.turned, **wrong})
    return {
        "file": entry.file,
        "row": entry.row,
        "sort": entry.sort,
        "seed": entry.seed,
        "expected": entry.expected.value,
        "steps": counts.steps,
        "rows": counts.rows,
        "races": len(reuses),
        "orders": orders,
    }


def contents() -> dict[str, bytes]:
    """By file name."""
    files: dict[str, bytes] = {}
    lines: list[dict[str, object]] = []
    for entry in entries():
        text = io.StringIO()
        write_log(entry.log, text)
        files[entry.file] = gzip.compress(text.getvalue().encode(), 9, mtime=0)
        lines.append(told_of(entry))
    rows = ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    files["index.json"] = f'{{"written_by":"python tests/device/gpu_data.py","logs":[\n{rows}\n]}}\n'.encode()
    return files


def main(arguments: Sequence[str]) -> int:
    out = Path(arguments[0]) if arguments else OUT
    out.mkdir(parents=True, exist_ok=True)
    files = contents()
    for stale in {path.name for path in out.iterdir()} - files.keys():
        (out / stale).unlink()
    for name, content in files.items():
        (out / name).write_bytes(content)
    print(f"{out}: {len(files) - 1} logs, {sum(map(len, files.values()))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
