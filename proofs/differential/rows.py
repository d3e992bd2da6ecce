"""What `settled diff` compares, as a table: discipline, worker, workloads, contract, and what must come out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from settled.model.disciplines import (
    CALLBACK,
    CEIL,
    DISCARD_FLAG,
    LOCAL_SUBTRACTION,
    NO_FENCE,
    NULL_AT_ALLOCATION,
    OPTIMISTIC,
    POOL_FENCE,
    RAW_FINISH,
    RIGHT,
    STALE_APPLIED,
    STALE_UNMARKED,
    VLLM,
    Discipline,
)
from settled.model.properties import Contract
from settled.proofs.differential.families import FAMILIES, Family
from settled.reference.device.worker import (
    FENCED,
    ONE_STAGING_BUFFER,
    RIGHT_WORKER,
    TOLD_OF_NULLS,
    UNAWAITED_LOADS,
    UNORDERED_STORES,
    Worker,
)


class Expected(StrEnum):
    """What a row must show, over its workloads together."""

    CLEAN = "clean"  # no race, nothing garbled in any order, every output bit-identical to contiguous memory
    RACES = "races"  # accesses race; as enqueued nothing is garbled, in some other order something is
    FREES = "early frees"  # blocks are freed too early, and the device's own order makes that harmless for bytes
    ALWAYS = "every order"  # what is read is gone, whatever the device does: no race is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`name` is what the command line calls it."""

    name: str
    discipline: Discipline
    family: Family
    worker: Worker = RIGHT_WORKER
    contract: Contract = Contract.SETTLED
    expected: Expected


def _row(
    discipline: Discipline, family: str, expected: Expected, worker: Worker = RIGHT_WORKER, contract: Contract = Contract.SETTLED
) -> Row:
    parts = [discipline.name, "" if worker is RIGHT_WORKER else worker.name, family, "" if contract is Contract.SETTLED else contract.value]
    name = "/".join(filter(None, parts))
    return Row(name=name, discipline=discipline, family=FAMILIES[family], worker=worker, contract=contract, expected=expected)


ROWS: tuple[Row, ...] = (
    _row(RIGHT, "everything", Expected.CLEAN),
    _row(VLLM, "everything", Expected.CLEAN),
    _row(RIGHT, "preemptions", Expected.CLEAN),
    _row(RIGHT, "loads", Expected.CLEAN),
    _row(RIGHT, "loads-in-steps", Expected.CLEAN),
    _row(RIGHT, "stores", Expected.CLEAN),
    _row(RIGHT, "unfenced", Expected.CLEAN, contract=Contract.STREAM_ORDER),
    _row(RIGHT, "drafts", Expected.CLEAN, TOLD_OF_NULLS, Contract.STREAM_ORDER),
    _row(RIGHT, "states", Expected.CLEAN, contract=Contract.STREAM_ORDER),
    _row(RIGHT, "states", Expected.CLEAN, TOLD_OF_NULLS, Contract.STREAM_ORDER),
    _row(OPTIMISTIC, "loads", Expected.RACES),
    _row(NO_FENCE, "loads", Expected.RACES),
    _row(RAW_FINISH, "loads", Expected.RACES),
    _row(RIGHT, "loads", Expected.RACES, ONE_STAGING_BUFFER),
    _row(RIGHT, "loads-in-steps", Expected.RACES, UNAWAITED_LOADS),
    _row(RIGHT, "stores", Expected.RACES, UNORDERED_STORES),
    _row(OPTIMISTIC, "loads", Expected.FREES, FENCED),
    _row(OPTIMISTIC, "drafts", Expected.ALWAYS, contract=Contract.STREAM_ORDER),
    _row(OPTIMISTIC, "drafts", Expected.ALWAYS, TOLD_OF_NULLS, Contract.STREAM_ORDER),
    _row(POOL_FENCE, "drafts", Expected.ALWAYS, TOLD_OF_NULLS),
    _row(CALLBACK, "drafts", Expected.ALWAYS, TOLD_OF_NULLS),
    _row(CEIL, "drafts", Expected.ALWAYS, contract=Contract.STREAM_ORDER),
    _row(LOCAL_SUBTRACTION, "drafts", Expected.ALWAYS, contract=Contract.STREAM_ORDER),
    _row(NULL_AT_ALLOCATION, "drafts", Expected.ALWAYS, contract=Contract.STREAM_ORDER),
    _row(STALE_APPLIED, "preemptions", Expected.ALWAYS),
    _row(STALE_UNMARKED, "preemptions", Expected.ALWAYS),
    _row(DISCARD_FLAG, "preemptions", Expected.ALWAYS),
)
