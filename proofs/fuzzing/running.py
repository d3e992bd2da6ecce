"""One case, run on the reference under the monitor: what it violates, and after which decision that was certain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from settled.model.disciplines import Discipline
from settled.model.events import Config, Event
from settled.model.monitor import Monitor, Violation
from settled.model.properties import Contract
from settled.reference.config import EngineConfig
from settled.reference.decisions import Decision, Player
from settled.reference.decoder import Case

ENGINE_FAULT = "engine_fault"  # stands in for a property where the engine itself fails: an assertion, a double free

Watch = Callable[[Player, Decision], None]
Watcher = Callable[[Event], None]


class Key(NamedTuple):
    """What tells one finding from another. `kind`: the kind of the group, "" where the violation names none."""

    property: str
    cause: str
    kind: str


class Found(NamedTuple):
    """The first violation of a key. `decision`: the index of the decision with which it became certain; their number: at the end."""

    key: Key
    decision: int
    line: int
    sentence: str


@dataclass(slots=True)
class Run:
    """What a case came to. `is_undecided`: the monitor could not judge all of it. `events` is empty unless they were asked for."""

    found: dict[Key, Found] = field(default_factory=dict)
    operations: int = 0
    num_events: int = 0
    is_undecided: bool = False
    events: list[Event] = field(default_factory=list)


class _Watched:
    """The sink of a run: a monitor, and others that listen."""

    def __init__(self, config: EngineConfig, contract: Contract, run: Run, listeners: Sequence[Watcher]) -> None:
        self.config, self.contract, self.run, self.listeners = config, contract, run, listeners
        self.monitor: Monitor | None = None
        self.decision = 0

    def __call__(self, event: Event) -> None:
        self.run.num_events += 1
        if self.monitor is None:
            assert isinstance(event, Config)
            self.monitor = Monitor(event, self.contract)
        for violation in self.monitor.feed(self.run.num_events, event):
            self._note(violation)
        for listen in self.listeners:
            listen(event)

    def _note(self, violation: Violation) -> None:
        kind = "" if violation.group is None else self.config.groups[violation.group].kind
        key = Key(violation.property, violation.cause, kind)
        if key not in self.run.found:
            self.run.found[key] = Found(key, self.decision, violation.line, violation.sentence())


def run_case(
    case: Case,
    *,
    discipline: Discipline | None = None,
    contract: Contract = Contract.SETTLED,
    decisions: Sequence[Decision] | None = None,
    until: Key | None = None,
    keep_events: bool = False,
    listeners: Sequence[Watcher] = (),
    after_each: Watch | None = None,
) -> Run:
    """Takes the case's decisions (or those given) on a fresh engine; stops early once `until` is found.

    `discipline` replaces that of the configuration. An exception of the engine is a finding of its own; ConfigError passes through.
    """
    run = Run()
    config = case.config if discipline is None else replace(case.config, discipline=discipline)
    heard = (*listeners, run.events.append) if keep_events else listeners
    watched = _Watched(config, contract, run, heard)
    player = Player(config, watched)
    wanted = case.decisions if decisions is None else decisions
    try:
        for watched.decision in range(len(wanted)):
            if player.take(wanted[watched.decision]) and after_each is not None:
                after_each(player, wanted[watched.decision])
            if until is not None and until in run.found:
                break
        else:
            watched.decision = len(wanted)
        player.end()
    except Exception as error:
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        key = Key(ENGINE_FAULT, type(error).__name__, "")
        run.found.setdefault(key, Found(key, watched.decision, run.num_events, f"the engine failed: {what}"))
    else:
        assert watched.monitor is not None
        run.is_undecided = bool(watched.monitor.finish().unknown)
    run.operations = player.operations
    return run
