"""Reads the corpus from its folder: an index of all rows, a file for each row with scenarios, and reasons for the rest.

The format is described in `FORMAT.md` beside the files. Everything is checked here, so that a scenario that is loaded can be run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from settled.model.disciplines import DISCIPLINES
from settled.model.events import Config, Event, Process, Schedule
from settled.model.properties import Contract, Property
from settled.model.trace_io import TraceError, decode_line
from settled.proofs.corpus.rows import Case, Choice, Corpus, DummyRun, Mark, Recording, Row, Rows, Scenario, Script, StateColumn

INDEX, SCOPE = "index.json", "scope.json"
_PARTS = (INDEX, SCOPE)
_File = TypeVar("_File")


class CorpusError(ValueError):
    """A file of the corpus is not as it should be: says which, where in it, and what was expected."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")


def folder() -> Path:
    """Where the corpus lies: beside the package in a wheel, in the tests of a checkout. Raises CorpusError."""
    places = (Path(__file__).parents[1] / "data" / "bugs", Path(__file__).resolve().parents[2] / "tests" / "data" / "bugs")
    for place in places:
        if (place / INDEX).is_file():
            return place
    raise CorpusError(INDEX, f"not found: expected it in {' or '.join(map(str, places))}")


def load(place: Path) -> Corpus:
    """The whole corpus. Raises CorpusError for a file that is missing or wrong, or a row that is not accounted for."""
    rows = _read(place / INDEX, list[_Row])
    scope = _read(place / SCOPE, _Scope)
    twice = [row_id for row_id, times in Counter(row.id for row in rows).items() if times > 1]
    if twice:
        raise CorpusError(INDEX, f"row {twice[0]!r} stands there twice")
    files = _files(place)
    known = {row.id for row in rows}
    for row_id, (path, _) in files.items():
        if row_id not in known:
            raise CorpusError(path.name, f"row {row_id!r} is not in {INDEX}")
    for row_id in scope.not_encoded:
        if row_id not in known:
            raise CorpusError(SCOPE, f"not_encoded: row {row_id!r} is not in {INDEX}")
        if row_id in files:
            raise CorpusError(SCOPE, f"not_encoded: row {row_id!r} has scenarios in {files[row_id][0].name}")
    return Corpus(families=tuple(scope.families), cases=tuple(_case(row, files, scope) for row in rows))


def _case(row: _Row, files: dict[str, tuple[Path, _Case]], scope: _Scope) -> Case:
    known = Row(row.id, row.family, row.catchable, row.cause)
    if row.id in files:
        path, case = files[row.id]
        return Case(row=known, title=case.title, numbers=case.numbers, scenarios=tuple(_scenarios(path, case)))
    reason = scope.not_encoded.get(row.id, "")
    if not reason:
        if row.family in scope.families and known.mark is not Mark.NOT_CATCHABLE:
            raise CorpusError(SCOPE, f"row {row.id!r} of family {row.family} is {known.mark}, but has neither a file nor a reason here")
        reason = "marked as not catchable" if known.mark is Mark.NOT_CATCHABLE else f"family {row.family} is not taken up yet"
    return Case(row=known, reason=reason)


# ---- files as they are written ---------------------------------------------------------------------------------------


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    family: str
    catchable: str
    cause: str


class _Scope(msgspec.Struct, forbid_unknown_fields=True):
    families: list[str]
    not_encoded: dict[str, str]


class _Choice(msgspec.Struct, forbid_unknown_fields=True):
    discipline: str = "settled"
    rows: Rows = Rows.TOLD
    state_column: StateColumn = StateColumn.LAST
    retained: int = 0


class _DummyRun(msgspec.Struct, forbid_unknown_fields=True):
    row_of: str
    start: int
    tokens: int
    after_step: int


class _Recorded(msgspec.Struct, forbid_unknown_fields=True):
    broken_choice: str
    repaired_choice: str
    broken: list[msgspec.Raw]
    repaired: list[msgspec.Raw]


class _Scenario(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    mapping: str
    contract: Contract
    property: Property
    events: list[msgspec.Raw] = []
    broken: _Choice | None = None
    repaired: _Choice | None = None
    dummy_runs: list[_DummyRun] = []
    over_read: int = 0
    recorded: _Recorded | None = None


class _Case(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    title: str
    numbers: str
    scenarios: list[_Scenario]


def _read(path: Path, kind: type[_File]) -> _File:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise CorpusError(path.name, f"{error.strerror}: expected a readable file in {path.parent}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise CorpusError(path.name, str(error)) from error


def _files(place: Path) -> dict[str, tuple[Path, _Case]]:
    files: dict[str, tuple[Path, _Case]] = {}
    for path in sorted(place.glob("*.json")):
        if path.name in _PARTS:
            continue
        case = _read(path, _Case)
        if case.id in files:
            raise CorpusError(path.name, f"row {case.id!r} has a file already: {files[case.id][0].name}")
        files[case.id] = path, case
    return files


# ---- a scenario, checked ---------------------------------------------------------------------------------------------


def _scenarios(path: Path, case: _Case) -> list[Scenario]:
    if not case.scenarios:
        raise CorpusError(path.name, "scenarios: expected at least one")
    names = Counter(scenario.name for scenario in case.scenarios)
    if len(names) != len(case.scenarios):
        raise CorpusError(path.name, f"scenarios: {names.most_common(1)[0][0]!r} stands there twice, expected names that differ")
    return [_scenario(f"{path.name}: scenario {raw.name!r}", raw) for raw in case.scenarios]


def _scenario(where: str, raw: _Scenario) -> Scenario:
    broken, repaired = _scripts(where, raw) if raw.recorded is None else _recordings(where, raw, raw.recorded)
    return Scenario(
        name=raw.name,
        mapping=raw.mapping,
        contract=raw.contract,
        property=raw.property,
        broken=broken,
        repaired=repaired,
        source=where,
    )


def _scripts(where: str, raw: _Scenario) -> tuple[Script, Script]:
    if raw.broken is None or raw.repaired is None or not raw.events:
        raise CorpusError(where, "expected `events`, `broken` and `repaired`, or `recorded`")
    broken, repaired = _choice(f"{where}: broken", raw.broken), _choice(f"{where}: repaired", raw.repaired)
    unlike = broken.differences(repaired)
    if len(unlike) != 1:
        raise CorpusError(where, f"broken and repaired differ in {' and '.join(unlike) or 'nothing'}: expected exactly one field")
    if not repaired.is_right:
        raise CorpusError(f"{where}: repaired", f"{', '.join(repaired.differences(Choice()))}: expected a right choice")
    if raw.over_read < 0:
        raise CorpusError(where, f"over_read is {raw.over_read}: expected at least 0 tokens")
    events = _events(f"{where}: events", raw.events)
    runs = tuple(_dummy_run(where, run) for run in raw.dummy_runs)
    script = Script(events=events, choice=broken, dummy_runs=runs, over_read=raw.over_read)
    return script, replace(script, choice=repaired)


def _choice(where: str, raw: _Choice) -> Choice:
    discipline = DISCIPLINES.get(raw.discipline)
    if discipline is None:
        raise CorpusError(where, f"unknown discipline {raw.discipline!r}: expected one of {', '.join(DISCIPLINES)}")
    if raw.retained < 0:
        raise CorpusError(where, f"retained is {raw.retained}: expected at least 0 tokens")
    return Choice(discipline=discipline, rows=raw.rows, state_column=raw.state_column, retained=raw.retained)


def _dummy_run(where: str, raw: _DummyRun) -> DummyRun:
    if raw.start < 0 or raw.tokens < 1:
        raise CorpusError(where, f"dummy_runs: start {raw.start}, tokens {raw.tokens}: expected at least 0 and 1")
    return DummyRun(row_of=raw.row_of, start=raw.start, tokens=raw.tokens, after_step=raw.after_step)


def _recordings(where: str, raw: _Scenario, recorded: _Recorded) -> tuple[Recording, Recording]:
    if raw.broken or raw.repaired or raw.events or raw.dummy_runs or raw.over_read:
        raise CorpusError(where, "`recorded` stands alone: expected no `events`, `broken`, `repaired`, `dummy_runs`, `over_read`")
    broken = _events(f"{where}: recorded.broken", recorded.broken)
    repaired = _events(f"{where}: recorded.repaired", recorded.repaired)
    if broken == repaired or _without_counters(broken) != _without_counters(repaired):
        raise CorpusError(where, "recorded: broken and repaired must differ, and in `counters` alone")
    return Recording(events=broken, choice=recorded.broken_choice), Recording(events=repaired, choice=recorded.repaired_choice)


def _without_counters(events: Iterable[Event]) -> list[Event]:
    """What happened, whatever the engine counted."""
    return [_uncounted(event) for event in events]


def _uncounted(event: Event) -> Event:
    if isinstance(event, Schedule):
        return replace(event, requests=tuple(replace(entry, counters=None) for entry in event.requests))
    if isinstance(event, Process):
        return replace(event, requests=tuple(replace(entry, counters=None) for entry in event.requests))
    return event


def _events(where: str, lines: Sequence[msgspec.Raw]) -> tuple[Event, ...]:
    events: list[Event] = []
    for number, line in enumerate(lines):
        at = f"{where}[{number}]"
        try:
            event = decode_line(bytes(line), where, number)
        except TraceError as error:
            raise CorpusError(at, error.message) from error
        if event is None or isinstance(event, Config) != (number == 0):
            raise CorpusError(at, "expected the config first, then events of schema v1, none of them an extension")
        events.append(event)
    return tuple(events)
