"""One trace, recorded or made by a workload of a row: lowered, searched for races, replayed in several orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from settled.model.events import Event
from settled.model.properties import Contract
from settled.proofs.differential.racing import found_races
from settled.proofs.differential.rows import Row
from settled.reference.device.compiled import CompiledLog
from settled.reference.device.compiling import compile_log
from settled.reference.device.foresight import NoSuchTokenError
from settled.reference.device.lowering import lower
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.orders import LaunchOrder
from settled.reference.device.payload import Numbers
from settled.reference.device.race import Race
from settled.reference.device.replay import replay
from settled.reference.device.results import Counts, Garbled, sentence
from settled.reference.device.trials import ALWAYS_TRIED, DIRECTED, ENQUEUED, trials
from settled.reference.device.worker import Worker
from settled.reference.workload import run_workload

POISONED = "poisoned"
ORDERS = (*ALWAYS_TRIED, DIRECTED, POISONED)
"""Directed: each race turned round. Poisoned: freed blocks overwritten at once, transfers first; under the contract `settled` alone, for
the others let a block be used again while steps still use it."""

STEPS = 24  # of a workload


@dataclass(slots=True)
class Outcome:
    """What a workload came to. `early_frees`, `races`: how many of either; `garbled`: in which orders something was read or stored wrong.

    `null_rows`: rows that read through a null entry as enqueued; `wrong_rows`: those of the first order that garbles. `contradictions`:
    what must not be, in words: something garbled in some orders only, without a race; outputs that differ where tags are right, or the
    other way round.
    """

    seed: int
    steps: int = 0
    ops: int = 0
    rows: int = 0
    early_frees: int = 0
    races: int = 0
    garbled: tuple[str, ...] = ()
    null_rows: int = 0
    wrong_rows: int = 0
    compared: int = 0  # outputs compared bit by bit, over all orders
    contradictions: list[str] = field(default_factory=list)
    first_race: str = ""
    first_garbled: str = ""


def run(row: Row, seed: int, *, numbers: Numbers | None = None, steps: int = STEPS) -> Outcome:
    """`numbers`: attention outputs are computed and compared too; None: tags alone.

    A step of tokens that there are not, as wrong counters make it, is garbled in every order, and has no launch that could be replayed.
    """
    events: list[Event] = []
    run_workload(row.family.draw(seed), discipline=row.discipline, fence=row.family.fence, steps=steps, sink=events.append)
    try:
        return judge(events, row.contract, row.worker, seed=seed, numbers=numbers)
    except NoSuchTokenError as error:
        return Outcome(seed, garbled=ALWAYS_TRIED, first_garbled=str(error))


def judge(events: Sequence[Event], contract: Contract, worker: Worker, *, seed: int = 0, numbers: Numbers | None = None) -> Outcome:
    """A whole trace, of the reference or of another engine. `seed`: of the random order. Raises LoweringError."""
    log = lower(events, worker=worker)
    frees, reuses = found_races(log, contract)
    outcome = Outcome(seed, ops=len(log.ops), early_frees=len(frees), races=len(reuses))
    first = next(iter((*reuses, *frees)), None)
    outcome.first_race = "" if first is None else first.sentence(log)
    garbled: list[str] = []
    compiled = compile_log(log)
    numbered = None if numbers is None else NumberedLog(compiled, numbers)
    for trial in trials(log, reuses, seed):
        if _replayed(outcome, trial.name, compiled, numbered, trial.order) and trial.name not in garbled:
            garbled.append(trial.name)
    if contract is Contract.SETTLED:
        poisoned = compile_log(lower(events, worker=worker, poisons=True))
        if _replayed(outcome, POISONED, poisoned, None, LaunchOrder(poisoned.log).transfers_first()):
            garbled.append(POISONED)
    outcome.garbled = tuple(garbled)
    outcome.contradictions += _without_a_race(garbled, frees, reuses)
    return outcome


def _without_a_race(garbled: Sequence[str], frees: Sequence[Race], reuses: Sequence[Race]) -> Iterator[str]:
    """Where nothing races all orders are alike; and poison touches nobody if no free comes too early."""
    orders = [order for order in ALWAYS_TRIED if order in garbled]
    if not reuses and 0 < len(orders) < len(ALWAYS_TRIED):
        yield f"garbled {', '.join(orders)} only, and there is no race"
    if POISONED in garbled and not (orders or frees or reuses):
        yield "garbled by poison, and no free comes too early"


def _replayed(outcome: Outcome, name: str, compiled: CompiledLog, numbered: NumberedLog | None, order: list[int]) -> bool:
    """Whether anything is wrong in that order."""
    result = replay(compiled, order, numbered, limit=1)
    counts = result.counts
    if name == ENQUEUED:
        outcome.steps, outcome.rows, outcome.null_rows = counts.steps, counts.rows, counts.rows_reading_null
    if numbered is not None:
        outcome.compared += counts.rows
        if counts.rows_garbled != counts.rows_differing:
            outcome.contradictions.append(f"{name}: {counts.rows_garbled} rows read wrong tags, {counts.rows_differing} outputs differ")
    if counts.is_clean:
        return False
    if not outcome.first_garbled:
        outcome.wrong_rows = counts.rows_garbled
        outcome.first_garbled = _sentence(name, compiled, result.garbled, counts)
    return True


def _sentence(name: str, compiled: CompiledLog, garbled: list[Garbled], counts: Counts) -> str:
    first = sentence(garbled[0], compiled.describe) if garbled else "a store"
    return f"{name}: {first} ({counts.rows_garbled} rows, {counts.stores_wrong} stores)"
