"""Seeded random runs that go to the boundaries: tiny pools, small blocks, windows around block multiples, deep pipelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from settled.model.disciplines import RIGHT, Discipline
from settled.model.specs import (
    ChunkedLocalAttentionSpec,
    CustomSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    RSWASpec,
    SinkWindowSpec,
    SlidingWindowSpec,
)
from settled.reference.admission import blocks_for_one_request
from settled.reference.config import EngineConfig, StaleOutputMode
from settled.reference.engine import Engine, Outcome
from settled.reference.random_connector import ConnectorChances, RandomConnector
from settled.reference.recorder import Sink
from settled.reference.request import Request, RequestStep

Check = Callable[[Engine], None]

LOADABLE_KINDS = ("full", "sliding_window", "chunked_local")  # of hybrids of these a connector may load
ALL_KINDS = ("full", "sliding_window", "chunked_local", "sink_window", "rswa", "mamba none", "mamba align")

_IDLE_ROUNDS_MAX = 12  # rounds in which nothing moves before a request is given up; a connector may ask for patience in some


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a random run draws from. Chances are per round of the run; prompts start with one of a few shared prefixes."""

    seed: int
    config: EngineConfig
    prompt_tokens_max: int
    output_tokens_max: int
    requests_max: int  # unfinished at a time
    shared_prefixes: int
    chance_add: float
    chance_process: float  # of processing a step although another could be scheduled
    chance_abort: float
    chance_preempt: float
    chance_accept: float  # of each draft, after those before it
    chance_stop: float  # of an output
    connector_chances: ConnectorChances
    connector_workers: int


@dataclass(slots=True)
class RunSummary:
    """What a run did. `operations`: one request in one scheduled or processed step, or one control event of it: it is added, preempted,
    finished (stopped, or aborted), a transfer of it starts, or a worker reports it. What happens to its blocks on the way is none.
    `given_up`: requests aborted because nothing moved; always 0 under a right discipline.
    """

    steps: int = 0
    operations: int = 0
    added: int = 0
    aborted: int = 0
    preempted: int = 0
    given_up: int = 0
    transfers: int = 0
    failed_loads: int = 0


def random_workload(seed: int, *, kinds: Sequence[str] = ALL_KINDS) -> Workload:
    """The workload of a seed; the same for the same seed and kinds.

    `kinds`: names of attention kinds from ALL_KINDS, and `custom:NAME` for a registered mask.
    """
    rng = Random(seed)
    if kinds is ALL_KINDS and rng.random() < 0.25:
        kinds = LOADABLE_KINDS
    drafts = rng.choice((0, 0, 1, 2, 3, 4))
    max_model_len = rng.randint(12, 72)
    groups = _random_groups(rng, kinds, drafts, max_model_len)
    config = EngineConfig(
        groups=groups,
        num_blocks=2,
        max_in_flight_steps=rng.randint(1, 4),
        max_num_batched_tokens=rng.randint(1 + drafts, 24),
        max_num_seqs=rng.randint(1, 6),
        num_speculative_tokens=drafts,
        num_lookahead_tokens=rng.choice((0, 0, drafts, drafts + 1)),
        max_model_len=max_model_len,
        enable_prefix_caching=rng.random() < 0.6 and not any(_is_in_place(spec) for spec in groups),
        kv_consumer=rng.random() < 0.7,
        connector=rng.random() < 0.5,
        transfers_wait=rng.random() < 0.3,
        stale_output_mode=rng.choice(tuple(StaleOutputMode)),
    )
    # Drawn apart, so that a seed's run is not another one for them.
    apart = Random(seed ^ 0xF1AE)
    if config.cached_groups and apart.random() < 0.4:
        finest = config.tokens_per_hash
        config = replace(config, hash_block_size=apart.choice([size for size in range(1, finest + 1) if finest % size == 0]))
    config = replace(config, zero_fresh_blocks=apart.choice((None, None, True)), watermark=apart.choice((0.0, 0.0, 0.05, 0.2)))
    # From a pool that just holds one request of maximum length to one without pressure.
    spare_blocks = rng.choice((0, 0, 1, 3, 8, 30, 200))
    return Workload(
        seed=seed,
        config=replace(config, num_blocks=1 + blocks_for_one_request(config) + spare_blocks),
        prompt_tokens_max=rng.randint(1, max_model_len - 1),
        output_tokens_max=rng.randint(1, max_model_len),
        requests_max=rng.randint(1, 10),
        shared_prefixes=rng.randint(1, 3),
        chance_add=rng.choice((0.1, 0.3, 0.6)),
        chance_process=rng.choice((0.0, 0.2, 0.5)),
        chance_abort=rng.choice((0.0, 0.01, 0.05)),
        chance_preempt=rng.choice((0.0, 0.02, 0.08)),
        chance_accept=rng.choice((0.2, 0.5, 0.8)),
        chance_stop=rng.choice((0.0, 0.02, 0.1)),
        connector_chances=_random_chances(rng),
        connector_workers=rng.choice((1, 1, 2, 3)),
    )


def without_transfers(workload: Workload) -> Workload:
    """The same, but its connector is shown finished tables and does nothing else."""
    chances = replace(workload.connector_chances, match=0.0, unknown=0.0, store=0.0, store_finished=0.0)
    return replace(workload, connector_chances=chances)


def _random_chances(rng: Random) -> ConnectorChances:
    return ConnectorChances(
        match=rng.choice((0.0, 0.3, 0.9)),
        asynchronous=rng.choice((0.0, 0.5, 1.0)),
        whole=rng.choice((0.0, 0.3, 1.0)),
        unknown=rng.choice((0.0, 0.0, 0.2)),
        store=rng.choice((0.0, 0.1, 0.5)),
        store_finished=rng.choice((0.0, 0.5)),
        complete=rng.choice((0.05, 0.3, 0.9)),
        fail=rng.choice((0.0, 0.1, 0.5)),
        cancel=rng.choice((0.0, 0.0, 0.1)),
    )


def _random_groups(rng: Random, kinds: Sequence[str], drafts: int, max_model_len: int) -> tuple[KVCacheSpec, ...]:
    # Powers of two in most runs: hits of several groups must end at a multiple of every block size.
    sizes = (1, 2, 4, 8) if rng.random() < 0.7 else (1, 2, 3, 5, 6, 7)
    groups = []
    for _ in range(rng.randint(1, 3)):
        block_size = rng.choice(sizes)
        groups.append(_random_spec(rng, _random_kind(rng, kinds), block_size, drafts, max_model_len))
    return tuple(groups)


def _random_kind(rng: Random, kinds: Sequence[str]) -> str:
    others = [kind for kind in kinds if kind != "full"]
    if not others or ("full" in kinds and rng.random() < 0.3):
        return "full"
    return others[0] if len(others) == 1 else rng.choice(others)


def _random_spec(rng: Random, kind: str, block_size: int, drafts: int, max_model_len: int) -> KVCacheSpec:
    """A group of that kind; lengths lie around multiples of the block size, where the boundaries are."""
    match kind:
        case "full":
            return FullAttentionSpec(block_size=block_size)
        case "sliding_window":
            window = _near_multiple(rng, block_size)
            return SlidingWindowSpec(block_size=block_size, window=window, extra_retained=rng.choice((0, 0, 0, 1, 3)))
        case "chunked_local":
            return ChunkedLocalAttentionSpec(block_size=block_size, chunk=_near_multiple(rng, block_size))
        case "sink_window":
            return SinkWindowSpec(block_size=block_size, sink=rng.randint(0, 2 * block_size), window=_near_multiple(rng, block_size))
        case "rswa":
            return RSWASpec(block_size=block_size, window=_near_multiple(rng, block_size))
        case "mamba none":
            size = max_model_len + rng.randint(0, 2)
            return MambaSpec(block_size=size, mode="none", num_speculative_blocks=drafts)
        case "mamba align":
            size = block_size * (1 + drafts // block_size)  # a decode step of 1 + drafts tokens fits into a block
            return MambaSpec(block_size=size, mode="align", num_speculative_blocks=drafts)
        case _:
            return CustomSpec(block_size=block_size, name=kind.removeprefix("custom:"))


def _near_multiple(rng: Random, block_size: int) -> int:
    return max(1, block_size * rng.randint(0, 3) + rng.choice((-1, 0, 1, 2)))


def _is_in_place(spec: KVCacheSpec) -> bool:
    return isinstance(spec, MambaSpec) and spec.mode == "none"


class _Run:
    """One run: the engine, the random choices, and what has been counted."""

    def __init__(self, workload: Workload, discipline: Discipline, sink: Sink | None) -> None:
        self.workload = workload
        self.rng = Random(workload.seed ^ 0xB10C)
        self.connector = self._connector() if workload.config.connector else None
        config = replace(workload.config, discipline=discipline)
        self.engine = Engine(config, sink, connector=self.connector, drafter=self._num_drafts)
        self.summary = RunSummary()
        vocabulary = range(1, 1000)
        self.prefixes = [tuple(self.rng.choices(vocabulary, k=workload.prompt_tokens_max)) for _ in range(workload.shared_prefixes)]

    def _connector(self) -> RandomConnector:
        return RandomConnector(Random(self.rng.random()), self.workload.connector_chances, num_workers=self.workload.connector_workers)

    def round(self) -> bool:
        """Perhaps adds, aborts, preempts; then schedules or processes, and polls the connector. False when nothing could move."""
        workload, rng, requests = self.workload, self.rng, self.engine.scheduler.requests
        if len(requests) < workload.requests_max and (not requests or rng.random() < workload.chance_add):
            self._add()
        if workload.chance_abort and requests and rng.random() < workload.chance_abort:
            self.engine.abort(rng.choice(tuple(requests)))
            self.summary.aborted += 1
        if workload.chance_preempt and self.engine.scheduler.running and rng.random() < workload.chance_preempt:
            self.engine.preempt(rng.choice(self.engine.scheduler.running).request_id)
        has_moved = self._move()
        if self.connector is None:
            return has_moved
        reports = self.engine.poll()
        return has_moved or reports > 0

    def finish_transfers(self) -> bool:
        """All that is under way is over now; whether there was anything."""
        completions = self.connector.get_all_finished() if self.connector is not None else ()
        self.engine.scheduler.update_from_workers(completions)
        return len(completions) > 0

    def _move(self) -> bool:
        engine = self.engine
        rather_process = bool(engine.unprocessed) and self.rng.random() < self.workload.chance_process
        if engine.can_schedule and not rather_process:
            step = engine.schedule()
            if step is not None:
                self.summary.steps += 1
                self.summary.operations += len(step.entries)
                return True
        if not engine.unprocessed:
            return False
        self._process()
        return True

    def _process(self) -> None:
        self.summary.operations += len(self.engine.process(self._outcome).entries)

    def drain(self) -> None:
        """Aborts what is left and processes what is in flight."""
        for request_id in tuple(self.engine.scheduler.requests):
            self.engine.abort(request_id)
        while self.engine.unprocessed:
            self._process()
        self.finish_transfers()

    def give_up_oldest(self) -> None:
        self.engine.abort(next(iter(self.engine.scheduler.requests)))
        self.summary.given_up += 1

    def _add(self) -> None:
        workload, rng = self.workload, self.rng
        prefix = rng.choice(self.prefixes)
        num_tokens = rng.randint(1, workload.prompt_tokens_max)
        shared_tokens = rng.randint(0, num_tokens) if rng.random() < 0.5 else num_tokens
        own = rng.choices(range(1, 1000), k=num_tokens - shared_tokens)
        prompt = (*prefix[:shared_tokens], *own)
        max_tokens = None if rng.random() < 0.1 else rng.randint(1, workload.output_tokens_max)
        self.engine.add_request(f"r{self.summary.added}", prompt, max_tokens=max_tokens)
        self.summary.added += 1

    def _num_drafts(self, request: Request) -> int:
        most = self.workload.config.num_speculative_tokens
        return most if self.rng.random() < 0.7 else self.rng.randint(0, most)

    def _outcome(self, entry: RequestStep) -> Outcome:
        accepted = 0
        while accepted < entry.drafts and self.rng.random() < self.workload.chance_accept:
            accepted += 1
        return Outcome(accepted, stop=self.workload.chance_stop > 0 and self.rng.random() < self.workload.chance_stop)


def run_workload(
    workload: Workload,
    *,
    discipline: Discipline = RIGHT,
    fence: bool | None = None,
    steps: int = 1000,
    sink: Sink | None = None,
    check: Check | None = None,
) -> RunSummary:
    """Runs until `steps` steps are scheduled, then aborts the rest, drains, and ends the recording on an idle engine.

    `fence` replaces the discipline's choice; without one, loads wait on the device for the steps in flight. `check` is called after
    every round. When nothing moves for a few rounds, all transfers under way are over; when nothing moves still, the oldest request
    is aborted and counted as given up, so that a run ends under every discipline.
    """
    if fence is not None:
        discipline = replace(discipline, fence=fence)
        workload = replace(workload, config=replace(workload.config, transfers_wait=workload.config.transfers_wait or not fence))
    run = _Run(workload, discipline, sink)
    idle_rounds = 0
    while run.summary.steps < steps:
        idle_rounds = 0 if run.round() else idle_rounds + 1
        if idle_rounds > _IDLE_ROUNDS_MAX and run.finish_transfers():
            idle_rounds = 0
        if idle_rounds > _IDLE_ROUNDS_MAX and run.engine.scheduler.requests:
            run.give_up_oldest()
            idle_rounds = 0
        if check is not None:
            check(run.engine)
    run.drain()
    if check is not None:
        check(run.engine)
    scheduler = run.engine.scheduler
    run.summary.preempted = scheduler.num_preemptions
    transfers = scheduler.remote.transfers
    run.summary.transfers, run.summary.failed_loads = transfers.num_started, scheduler.remote.num_failed_loads
    # Every request that was added is finished now.
    run.summary.operations += 2 * run.summary.added + run.summary.preempted + transfers.num_started + transfers.num_reported
    run.engine.end_recording()
    assert run.engine.is_idle
    assert not any(run.engine.pool_snapshot()), "a drained engine has given every block back"
    return run.summary
