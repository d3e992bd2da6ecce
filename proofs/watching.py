"""The sink of a run: a monitor that judges every event, and what tells one finding from another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from settled.model.events import Config, Event
from settled.model.monitor import Monitor, Verdict, Violation
from settled.model.monitor.findings import NOTHING
from settled.model.properties import Contract

Watcher = Callable[[Event], None]


class Key(NamedTuple):
    """What tells one finding from another. `kind`: the kind of the group, "" where the violation names none."""

    property: str
    cause: str
    kind: str


class Found(NamedTuple):
    """The first violation of a key. `place`: the index of what was being done when it became certain; their number: at the end."""

    key: Key
    place: int
    line: int
    sentence: str


class Judgement(NamedTuple):
    """The contract ("" without an event), the verdict on each property, and whether the monitor could not judge all of it."""

    contract: str
    verdicts: dict[str, Verdict]
    is_undecided: bool


class Watched:
    """A sink that judges under one contract (None: the default of the configuration that it is fed), and passes events on to others.

    `place` is the index of what is being done; the caller moves it.
    """

    def __init__(self, contract: Contract | None, listeners: Sequence[Watcher] = ()) -> None:
        self.contract, self.listeners = contract, list(listeners)
        self.monitor: Monitor | None = None
        self.kinds: tuple[str, ...] = ()
        self.found: dict[Key, Found] = {}
        self.num_events = 0
        self.place = 0

    def __call__(self, event: Event) -> None:
        self.num_events += 1
        if self.monitor is None:
            assert isinstance(event, Config)
            self.monitor = Monitor(event, self.contract)
            self.kinds = tuple([spec.kind for spec in event.groups])
        violations = self.monitor.feed(self.num_events, event)
        if violations is not NOTHING:  # nearly always: not even iterated
            for violation in violations:
                self._note(violation)
        for listen in self.listeners:
            listen(event)

    def note(self, key: Key, sentence: str) -> None:
        """Takes in what is found by other means, unless it is known."""
        if key not in self.found:
            self.found[key] = Found(key, self.place, self.num_events, sentence)

    def judgement(self) -> Judgement:
        """What is known so far; what was noted by other means counts as violated."""
        found = {key.property: Verdict.VIOLATED for key in self.found}
        if self.monitor is None:
            return Judgement("", found, False)
        report = self.monitor.finish()
        verdicts = {result.property.value: result.verdict for result in report.properties}
        return Judgement(report.contract.value, verdicts | found, bool(report.unknown))

    def _note(self, violation: Violation) -> None:
        kind = "" if violation.group is None else self.kinds[violation.group]
        key = Key(violation.property, violation.cause, kind)
        if key not in self.found:
            self.found[key] = Found(key, self.place, violation.line, violation.sentence())


def key_of(raw: dict[str, Any]) -> Key:
    """A key from plain values. Raises KeyError, TypeError."""
    key = Key(raw["property"], raw["cause"], raw["kind"])
    for field, word in key._asdict().items():
        if not isinstance(word, str):
            raise TypeError(f"{field} is {word!r}, expected text")
    return key
