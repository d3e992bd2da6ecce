"""A folder of findings: for each a trace that `settled check` judges, and a file that says how it came about and runs again.

A finding is written at once and replaced when a smaller case is known; each file appears as a whole or not at all.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from settled.model.disciplines import DISCIPLINES, Discipline
from settled.model.events import Event
from settled.model.properties import Contract
from settled.model.trace_io import encode_event
from settled.proofs.folder import Folder, file_name
from settled.proofs.fuzzing.running import run_case
from settled.proofs.plain_specs import spec_as_dict, spec_of
from settled.proofs.watching import Key, key_of
from settled.reference.admission import check_pool_size
from settled.reference.config import EngineConfig, StaleOutputMode
from settled.reference.decisions import SORTS, Decision
from settled.reference.decoder import Case

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A finding: what is violated under which discipline and contract, and a case that shows it. `seed` and `run` found it first."""

    discipline: Discipline
    contract: Contract
    key: Key
    case: Case
    sentence: str
    seed: int
    run: int

    @property
    def name(self) -> str:
        """What its files are called: one name for each discipline, contract, property, cause and kind."""
        return file_name((self.discipline.name, self.contract.value, *self.key))

    @property
    def command(self) -> str:
        """Runs the case again, on any machine with this version."""
        words = ["settled", "fuzz", "--discipline", self.discipline.name, "--contract", self.contract.value]
        return shlex.join([*words, "--case", self.case.numbers.hex()])

    def reproduces(self) -> bool:
        """Whether the case still shows the finding."""
        return self.key in run_case(self.case, discipline=self.discipline, contract=self.contract, until=self.key).found

    def events(self) -> list[Event]:
        """The trace of the case, up to the decision that shows the finding."""
        return run_case(self.case, discipline=self.discipline, contract=self.contract, until=self.key, keep_events=True).events


class Corpus:
    """The findings in a folder, which is made if it is not there. Raises OSError where nothing can be written, CorpusError."""

    def __init__(self, path: Path) -> None:
        self.folder = Folder(path)
        self.entries = self.folder.read(_entry_of)

    def of(self, disciplines: Sequence[Discipline], contract: Contract) -> Iterator[Entry]:
        """The findings of these disciplines under this contract."""
        names = {discipline.name for discipline in disciplines}
        return (entry for entry in self.entries if entry.discipline.name in names and entry.contract is contract)

    def write(self, entry: Entry) -> Path:
        """Writes a finding in place of an earlier one of the same name; returns the path of its trace."""
        trace = self.folder.path / f"{entry.name}.ndjson"
        self.folder.replace(trace, "".join(encode_event(event) + "\n" for event in entry.events()))
        self.folder.replace(trace.with_suffix(".json"), json.dumps(as_dict(entry, trace), indent=1) + "\n")
        return trace


def as_dict(entry: Entry, trace: Path | None = None) -> dict[str, Any]:
    """Plain values for JSON."""
    commands = [entry.command]
    if trace is not None:
        commands.append(shlex.join(["settled", "check", str(trace), "--contract", entry.contract.value]))
    return {
        "format": FORMAT,
        "discipline": entry.discipline.name,
        "contract": entry.contract.value,
        **entry.key._asdict(),
        "sentence": entry.sentence,
        "seed": entry.seed,
        "run": entry.run,
        "config": _config_as_dict(entry.case.config),
        "decisions": [[decision.name, *decision.values] for decision in entry.case.decisions],
        "case": entry.case.numbers.hex(),
        "reproduce": commands,
    }


def _config_as_dict(config: EngineConfig) -> dict[str, Any]:
    plain = {field.name: getattr(config, field.name) for field in fields(config)}
    return {**plain, "groups": list(map(spec_as_dict, config.groups)), "discipline": config.discipline.name}


def _entry_of(raw: dict[str, Any]) -> Entry:
    if raw["format"] != FORMAT:
        raise ValueError(f"format {raw['format']!r}, expected {FORMAT}")
    discipline = DISCIPLINES[raw["discipline"]]
    decisions = tuple(_decision(name, values) for name, *values in raw["decisions"])
    return Entry(
        discipline=discipline,
        contract=Contract(raw["contract"]),
        key=key_of(raw),
        case=Case(_config_of(raw["config"], discipline), decisions, bytes.fromhex(raw["case"])),
        sentence=raw["sentence"],
        seed=raw["seed"],
        run=raw["run"],
    )


def _decision(name: str, values: list[int]) -> Decision:
    sort = SORTS[name]
    if len(values) != len(sort.arguments) or not all(isinstance(value, int) and value >= 0 for value in values):
        raise ValueError(f"{name} takes {len(sort.arguments)} numbers, not {values}")
    return Decision(name, tuple(values))


def _config_of(raw: dict[str, Any], discipline: Discipline) -> EngineConfig:
    groups = tuple(spec_of(group) for group in raw["groups"])
    stale = StaleOutputMode(raw["stale_output_mode"])
    config = EngineConfig(**{**raw, "groups": groups, "stale_output_mode": stale, "discipline": discipline})
    check_pool_size(config)
    return config
