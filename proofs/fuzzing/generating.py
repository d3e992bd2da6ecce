"""Random cases by the shard: a fixed number of runs with a seed of their own, so that it does not matter who does which, or when.

Within a shard, a case that reaches something new is kept, and every fourth case is one of the kept ones with a few decisions changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from settled.model.properties import Contract
from settled.proofs.fuzzing.coverage import Coverage
from settled.proofs.fuzzing.running import Run, run_case
from settled.reference.decisions import DRAIN, Decision
from settled.reference.decoder import Case, ConfigSpace, NumbersOfBytes, decode, read_decision, with_decisions

RUNS_A_SHARD = 50
MUTATED_EVERY = 4
_DECISIONS_MAX = 150
_BYTES_OF_CONFIG = 24
_BYTES_A_DECISION = 3
_KEPT_MAX = 100


class Tried(NamedTuple):
    """A case and what its run came to. `run` counts all runs of a campaign from 0."""

    run: int
    case: Case
    result: Run


class ShardJob(NamedTuple):
    """What a worker needs to know."""

    seed: int
    shard: int
    runs: int
    space: ConfigSpace
    contract: Contract


def tries(job: ShardJob, coverage: Coverage) -> Iterator[Tried]:
    """Runs the cases of a shard, one by one; `coverage` counts what they reach."""
    rng = Random(f"{job.seed}/{job.shard}")
    kept: list[Case] = []
    for number in range(job.runs):
        case = _mutated(rng, rng.choice(kept), kept) if kept and number % MUTATED_EVERY == MUTATED_EVERY - 1 else _fresh(rng, job.space)
        reached = len(coverage.counts)
        result = run_case(
            case,
            contract=job.contract,
            decisions=(*case.decisions, DRAIN),
            listeners=(coverage.listen,),
            after_each=coverage.after,
        )
        if len(coverage.counts) > reached and len(kept) < _KEPT_MAX:
            kept.append(case)
        yield Tried(job.shard * RUNS_A_SHARD + number, case, result)


def _fresh(rng: Random, space: ConfigSpace) -> Case:
    return decode(rng.randbytes(_BYTES_OF_CONFIG + rng.randrange(_BYTES_A_DECISION * _DECISIONS_MAX)), space)


def _mutated(rng: Random, case: Case, kept: list[Case]) -> Case:
    """The same configuration; some decisions left out, repeated, replaced, or followed by those of another case."""
    decisions = list(case.decisions)
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(decisions) + 1)
        length = rng.randint(1, 6)
        match rng.randrange(4):
            case 0:
                del decisions[place : place + length]
            case 1:
                decisions[place:place] = decisions[place : place + length]
            case 2:
                decisions[place : place + 1] = [_random_decision(rng) for _ in range(length)]
            case _:
                other = rng.choice(kept).decisions
                decisions[place:] = other[rng.randrange(len(other) + 1) :]
    return with_decisions(case, decisions[: 2 * _DECISIONS_MAX])


def _random_decision(rng: Random) -> Decision:
    return read_decision(NumbersOfBytes(rng.randbytes(_BYTES_A_DECISION + 1)))
