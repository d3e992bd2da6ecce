"""What a host or a model can decide next, as small numbers: the alphabet of random runs.

A decision never says what the engine does with its blocks, only what is asked of it; what cannot be asked in the present state is left out.
So every sequence of decisions is a run, and a run without one of its decisions is a run as well. A new sort of decision is one more entry
of `SORTS`: the decoder, the strategies, the state machine and the coverage table follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from typing import NamedTuple, Protocol

from settled.model.specs import KVCacheSpec
from settled.reference.config import EngineConfig, StaleOutputMode
from settled.reference.decided_connector import DecidedConnector, Ending, Offer
from settled.reference.engine import Engine, Outcome, default_prompt
from settled.reference.plan import PlanError, PlannedStep
from settled.reference.recorder import Sink
from settled.reference.request import Request, RequestStatus, RequestStep, StepOutput


class Argument(NamedTuple):
    """A number that a decision takes: one of `values`, the simplest first, the more frequent several times."""

    name: str
    values: Sequence[int]


class Decision(NamedTuple):
    """One decision: the name of its sort, and a value for each of the sort's arguments."""

    name: str
    values: tuple[int, ...] = ()


class Player:
    """An engine, and the decisions that it is given. `operations`: one request in one schedule, process or control event."""

    def __init__(self, config: EngineConfig, sink: Sink | None = None) -> None:
        self.connector = DecidedConnector() if config.connector else None
        self.engine = Engine(config, sink, connector=self.connector, drafter=self._num_drafts)
        self.config = self.engine.config
        self.operations = 0
        self.added = 0
        self.drafts_held_back = 0  # of the drafts that a step's request could propose for its next one

    def take(self, decision: Decision) -> bool:
        """Does what the decision asks, if it can be done; whether it could. Raises KeyError for a sort that does not exist."""
        sort = SORTS[decision.name]
        if not sort.is_possible(self):
            return False
        with suppress(PlanError):  # a step that the pool or the batch has no room for
            sort.perform(self, *decision.values)
        return True

    def end(self) -> None:
        """Ends the recording; the engine need not be idle."""
        self.engine.end_recording()

    def unfinished(self, number: int) -> Request:
        """An unfinished request, counted from the oldest, and on from there."""
        requests = list(self.engine.scheduler.requests.values())
        return requests[number % len(requests)]

    def _num_drafts(self, _request: Request) -> int:
        return max(0, self.config.num_speculative_tokens - self.drafts_held_back)


class Sort(NamedTuple):
    """A sort of decision. `is_possible`: whether there is anything to do it to. `weight`: how often it comes among random ones."""

    meaning: str
    perform: Callable[..., None]
    is_possible: Callable[[Player], bool]
    arguments: tuple[Argument, ...] = ()
    weight: int = 1


# ---- requests --------------------------------------------------------------------------------------------------------


class Sizes(Protocol):
    """What a prompt can lie at the boundaries of. Lengths in tokens."""

    @property
    def groups(self) -> Sequence[KVCacheSpec]: ...

    @property
    def max_num_batched_tokens(self) -> int: ...

    @property
    def max_model_len(self) -> int: ...


@lru_cache(maxsize=64)
def boundary_lengths(config: Sizes) -> tuple[int, ...]:
    """Prompt lengths, in tokens and ascending, at which something changes: one token around every multiple of a block size, every
    length of a kind (window, chunk, sink) and the batch; then the longest prompt that the engine takes."""
    longest = config.max_model_len - 1
    around = {2, config.max_num_batched_tokens, longest}
    for spec in config.groups:
        around.update(range(spec.block_size, longest + 1, spec.block_size))
        sizes = [getattr(spec, field.name) for field in fields(spec) if field.name not in ("block_size", "cap")]
        around.update(size for size in sizes if isinstance(size, int))
    lengths = {length + offset for length in around for offset in (-1, 0, 1)}
    return tuple(sorted(length for length in lengths if 1 <= length <= longest))


def _add(player: Player, length: int, limit: int, prefix: int) -> None:
    lengths = boundary_lengths(player.config)
    request_id = f"r{player.added}"
    prompt = default_prompt(request_id, lengths[length % len(lengths)])
    if prefix:
        # Three families of prompts; from the fourth on, only their first half is the family's.
        family = default_prompt(f"family {prefix % 3}", len(prompt))
        shared = len(prompt) if prefix <= 3 else len(prompt) // 2
        prompt = family[:shared] + prompt[shared:]
    player.engine.add_request(request_id, prompt, max_tokens=limit or None)
    player.added += 1
    player.operations += 1


def _abort(player: Player, which: int) -> None:
    player.engine.abort(player.unfinished(which).request_id)
    player.operations += 1


def _preempt(player: Player, which: int, drops: int) -> None:
    running = player.engine.scheduler.running
    request = running[which % len(running)]
    player.engine.preempt(request.request_id, StaleOutputMode.DROP if drops else StaleOutputMode.DELIVER)
    player.operations += 1


# ---- steps -----------------------------------------------------------------------------------------------------------


def _count(player: Player, step: StepOutput | None) -> None:
    player.operations += 0 if step is None else len(step.entries)


def _schedule(player: Player, drafts_held_back: int) -> None:
    player.drafts_held_back = drafts_held_back
    _count(player, player.engine.schedule())


def _schedule_one(player: Player, which: int, tokens_held_back: int, drafts: int) -> None:
    """A step of one request: all that is left of its prompt but `tokens_held_back`, or one token and drafts."""
    request = player.unfinished(which)
    left = request.num_unscheduled_tokens
    if request.is_prefill_chunk and left > 1:
        if request.status is not RequestStatus.RUNNING:
            left -= player.engine.scheduler.kv_cache_manager.get_computed_blocks(request).num_tokens
        batch = min(left, player.config.max_num_batched_tokens)
        planned = PlannedStep(max(1, batch - tokens_held_back), 0)
    else:
        planned = PlannedStep(left + drafts, drafts)
    _count(player, player.engine.schedule({request.request_id: planned}))


def _process(player: Player, rejected: int, rejected_of_others: int, stop: int) -> None:
    """Of the oldest step the first request rejects `rejected` drafts (all, if it has fewer), and the others `rejected_of_others`; the
    request number `stop`, counted from 1, stops."""
    oldest = player.engine.unprocessed[0]
    place = {entry.request.request_id: number for number, entry in enumerate(oldest.entries)}

    def outcome(entry: RequestStep) -> Outcome:
        number = place[entry.request.request_id]
        rejects = rejected_of_others if number else rejected
        return Outcome(max(0, entry.drafts - rejects), stop=stop == number + 1)

    _count(player, player.engine.process(outcome))


def _drain(player: Player) -> None:
    """Aborts all that is left, processes what is in flight, and lets transfers end well: then the engine is idle."""
    for request_id in tuple(player.engine.scheduler.requests):
        player.engine.abort(request_id)
        player.operations += 1
    while player.engine.unprocessed:
        _count(player, player.engine.process())
    while player.connector is not None and player.connector.reportable():
        _report(player, 0, Ending.GOOD)


# ---- transfers -------------------------------------------------------------------------------------------------------


def _offer(player: Player, blocks: int, more_tokens: int, in_step: int, workers: int, ending: int) -> None:
    """The next request that asks can load so many blocks of the first group, and a few tokens more or less."""
    if player.connector is not None:
        tokens = max(0, blocks * player.config.groups[0].block_size + more_tokens)
        player.connector.offer = Offer(tokens, not in_step, workers, Ending(ending))


def _store(player: Player, at_finish: int) -> None:
    if player.connector is not None:
        player.connector.stores_next = not at_finish
        player.connector.stores_finished = bool(at_finish)


def _report(player: Player, which: int, ending: int) -> None:
    """A worker is through with its part of a load or store, counted from the oldest."""
    parts = player.connector.reportable() if player.connector is not None else []
    if player.connector is not None and parts:
        completion = player.connector.report(parts[which % len(parts)], Ending(ending))
        player.engine.scheduler.update_from_workers([completion])
        player.operations += 1


def _is_unfinished(player: Player) -> bool:
    return bool(player.engine.scheduler.requests)


def _is_schedulable(player: Player) -> bool:
    return player.engine.can_schedule and _is_unfinished(player)


def _is_unprocessed(player: Player) -> bool:
    return bool(player.engine.unprocessed)


def _has_connector(player: Player) -> bool:
    return player.connector is not None


def _may_load(player: Player) -> bool:
    return player.connector is not None and player.config.kv_consumer


_WHICH = Argument("which", range(8))
_ALL = 9  # more drafts than any step has
_REJECTED = (0, 1, _ALL, 0, 1, 2, 3)

SORTS: dict[str, Sort] = {
    "schedule": Sort(
        "dispatch the next step, as the scheduler chooses it",
        _schedule,
        _is_schedulable,
        (Argument("drafts_held_back", (0, 0, 0, 1, 2, _ALL)),),
        weight=10,
    ),
    "process": Sort(
        "take in the output of the oldest unprocessed step",
        _process,
        _is_unprocessed,
        (Argument("rejected", _REJECTED), Argument("rejected_of_others", _REJECTED), Argument("stop", range(24))),
        weight=9,
    ),
    "add": Sort(
        "add a request",
        _add,
        lambda _player: True,
        (Argument("length", range(64)), Argument("limit", range(24)), Argument("prefix", range(7))),
        weight=6,
    ),
    "schedule_one": Sort(
        "dispatch a step of one request",
        _schedule_one,
        _is_schedulable,
        (_WHICH, Argument("tokens_held_back", range(16)), Argument("drafts", range(6))),
        weight=4,
    ),
    "preempt": Sort(
        "preempt a running request",
        _preempt,
        lambda player: bool(player.engine.scheduler.running),
        (_WHICH, Argument("drops", (0, 1, 1))),
        weight=3,
    ),
    "abort": Sort("abort a request", _abort, _is_unfinished, (_WHICH,), weight=1),
    "offer": Sort(
        "let the next request that asks load what it wants",
        _offer,
        _may_load,
        (
            Argument("blocks", range(1, 8)),
            Argument("more_tokens", (0, 0, -1, 1)),
            Argument("in_step", (0, 0, 1)),
            Argument("workers", (1, 1, 2)),
            Argument("ending", (0, 0, 0, 1, 2, 3)),
        ),
        weight=3,
    ),
    "store": Sort(
        "store what the next running or finished request has",
        _store,
        _has_connector,
        (Argument("at_finish", (0, 1)),),
        weight=2,
    ),
    "report": Sort(
        "let a worker be through with a load or store",
        _report,
        lambda player: player.connector is not None and bool(player.connector.reportable()),
        (_WHICH, Argument("ending", (0, 0, 0, 0, 1, 2, 3))),
        weight=4,
    ),
    "drain": Sort("abort all requests and process all steps", _drain, lambda player: not player.engine.is_idle, weight=1),
}
DRAIN = Decision("drain")
