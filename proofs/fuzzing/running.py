"""One case, run on the reference under the monitor: what it violates, and after which decision that was certain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from settled.model.disciplines import Discipline
from settled.model.events import Event
from settled.model.properties import Contract
from settled.proofs.found_properties import ENGINE_FAULT
from settled.proofs.watching import Found, Key, Watched, Watcher
from settled.reference.decisions import Decision, Player
from settled.reference.decoder import Case

Watch = Callable[[Player, Decision], None]


@dataclass(slots=True)
class Run:
    """What a case came to. `is_undecided`: the monitor could not judge all of it. `events` is empty unless they were asked for."""

    found: dict[Key, Found] = field(default_factory=dict)
    operations: int = 0
    num_events: int = 0
    is_undecided: bool = False
    events: list[Event] = field(default_factory=list)


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
    config = case.config if discipline is None else replace(case.config, discipline=discipline)
    run = Run()
    watched = Watched(contract, (*listeners, run.events.append) if keep_events else listeners)
    run.found = watched.found
    player = Player(config, watched)
    wanted = case.decisions if decisions is None else decisions
    try:
        for watched.place in range(len(wanted)):
            if player.take(wanted[watched.place]) and after_each is not None:
                after_each(player, wanted[watched.place])
            if until is not None and until in run.found:
                break
        else:
            watched.place = len(wanted)
        player.end()
    except Exception as error:
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        watched.note(Key(ENGINE_FAULT, type(error).__name__, ""), f"the engine failed: {what}")
    else:
        run.is_undecided = watched.judgement().is_undecided
    run.operations, run.num_events = player.operations, watched.num_events
    return run
