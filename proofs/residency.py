"""Theorems 3 and 4: what an unprocessed step uses is still there, and so is what the next step reads after a rollback."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from settled.model import tracked, tracked_properties
from settled.model.algebra import both, int_variable
from settled.model.disciplines import (
    CALLBACK,
    CEIL,
    LOCAL_SUBTRACTION,
    MAMBA_LOCAL,
    NO_FENCE,
    OPTIMISTIC,
    POOL_FENCE,
    RAW_FINISH,
    RIGHT,
    STALE_APPLIED,
    VLLM,
    Discipline,
)
from settled.model.kinds import AnyShrinking
from settled.model.properties import Contract, Property
from settled.model.search.induction import Named, Obligation
from settled.model.tracked import System, Tracked
from settled.proofs import mamba
from settled.proofs.counters import COUNTS, IN_ORDER_OUTPUT
from settled.proofs.invariant import induction
from settled.proofs.masks import CASES, FREEING, NO_MORE, Case, block_lemmas, chunk_lemmas, growing_prompt, mask_lemmas
from settled.proofs.theorem import Killer, Part, Theorem

ANY_MASK = AnyShrinking(int_variable("token"))
GENERIC = Case(ANY_MASK)
# The conjuncts on which each theorem rests; those that it does not need are left out.
OWNED = (*COUNTS, "pruned", "pruned is null", "row is the table's", "fence ends with the step", "entry of b is held", "single owner")
IN_USE = (*OWNED, "row", "fence", "given away after use")
NEXT_STEP = (*OWNED, "resident")
IN_ORDER = (*COUNTS, "pruned", "row", "every writer is ordered")

_ANY, _ANY_VLLM = "any shrinking mask", "any shrinking mask, max(0, C - F)"
SLOTS, _ALIGN = "mamba align, slots", "mamba align, no drafts"
_NO_FENCE = "no fence, no load, any shrinking mask"
NO_LOAD = {"every writer is ordered after the step": both(tracked.ORDERED, tracked.WAITS)}


def residency(case: Case, discipline: Discipline) -> list[Obligation]:
    """Theorem 3 for one kind."""
    return induction(case.kind, discipline, assumptions=case.assumptions, only=IN_USE, properties=_in_use)


def _in_use(state: Tracked, system: System) -> Named:
    return {**_uses(state, system, Contract), Property.SINGLE_OWNER: tracked_properties.single_owner(state)}


def _uses(state: Tracked, system: System, contracts: Iterable[Contract]) -> Named:
    """What a step reads and writes, under each of the contracts."""
    statements = {Property.READ_RESIDENT: tracked_properties.read_resident, Property.WRITE_OWNED: tracked_properties.write_owned}
    return {f"{name}, {contract}": says(state, system, contract) for name, says in statements.items() for contract in contracts}


def in_order(case: Case, discipline: Discipline) -> list[Obligation]:
    """Without a KV consumer nobody writes a block out of order: then no fence is needed under stream_order."""
    return induction(case.kind, discipline, assumptions={**case.assumptions, **NO_LOAD}, only=IN_ORDER, properties=in_order_use)


def in_order_use(state: Tracked, system: System) -> Named:
    """What a step reads and writes, under the contracts that look at the order of writers."""
    return _uses(state, system, [Contract.STREAM_ORDER, Contract.EVENT])


def rollback(case: Case, discipline: Discipline) -> list[Obligation]:
    """Theorem 4 for one kind."""
    return induction(case.kind, discipline, assumptions=case.assumptions, only=NEXT_STEP, properties=_after_rollback)


def _after_rollback(state: Tracked, system: System) -> Named:
    return {Property.ROLLBACK_RESIDENT: tracked_properties.rollback_resident(state, system)}


ENVIRONMENT = (
    "needed-sets shrink, and no query reads a key after its own (both proved for each built-in kind)",
    "0 <= first <= token <= last, lookahead >= 0, window >= 1, chunk >= 1, sink >= 0, extra_retained >= 0",
    "R-SWA: a request's prompt does not grow (a streaming session that extends it reads the gap: proved below)",
    *IN_ORDER_OUTPUT,
    "the computed count falls only by rejections, and to 0 where a generation ends: no failed load, no external hit, no session",
    "a hit comes at computed = 0, into an empty table, in whole blocks",
    "a step has slots for its tokens and its lookahead when it is scheduled (positions from the maximum model length on are never written)",
    "a fresh block comes from the free ones, others release only what they hold, the null block is never handed out",
    "a request takes a block in use only through a prefix-cache hit, which means to write the same bytes",
    "mamba: a step has at most K drafts, K the slots for them, and a step with drafts, or behind unprocessed ones, fits a block",
    "mamba: a step may read any of the K + 1 slots of the step before, whatever was accepted; a block that moves is read at its old index",
)

READ_RESIDENT = Theorem(
    key="T3",
    name="read_resident, write_owned",
    sentence=(
        "No unprocessed step, stale and finished ones included, reads or writes a block that is null, free or someone else's: for every "
        "kind whose needed-sets shrink, every block size, pipeline depth, and number of requests, under each contract. Without loads "
        "and under stream_order this needs no fence."
    ),
    assumptions=ENVIRONMENT,
    parts=(
        Part(_ANY, RIGHT, partial(residency, GENERIC)),
        Part(_ANY_VLLM, VLLM, partial(residency, GENERIC)),
        *(Part(title, RIGHT, partial(residency, case)) for title, case in CASES.items()),
        Part(_NO_FENCE, NO_FENCE, partial(in_order, GENERIC)),
        *(Part(f"mask: {title}", RIGHT, partial(mask_lemmas, case)) for title, case in CASES.items()),
        Part("R-SWA, a prompt that grows", RIGHT, growing_prompt),
        Part(SLOTS, RIGHT, mamba.used_slots),
        Part("mamba align, as a window of two", RIGHT, mamba.as_a_window),
        Part(f"mask: {_ALIGN}", RIGHT, mamba.align_lemmas),
        Part("mask: mamba none", RIGHT, mamba.none_lemmas),
        Part("chunks", RIGHT, chunk_lemmas),
        Part("blocks", RIGHT, block_lemmas),
    ),
    killers=(
        Killer(OPTIMISTIC, _ANY, "schedule another step", "pruned"),
        Killer(OPTIMISTIC, _NO_FENCE, "schedule another step", "pruned"),
        Killer(NO_FENCE, _ANY, "preempt, finish or abort", "fence"),
        Killer(RAW_FINISH, _ANY, "prune before a connector's finish", "pruned"),
        Killer(CEIL, "sliding window", "schedule another step", "pruned"),
        *(Killer(CEIL, f"mask: {title}", NO_MORE, NO_MORE) for title in (*FREEING, _ALIGN)),
        Killer(MAMBA_LOCAL, SLOTS, "schedule another step", "held"),
    ),
)

ROLLBACK_RESIDENT = Theorem(
    key="T4",
    name="rollback_resident",
    sentence=(
        "After any rejection, preemption or abort, all that the next step reads is still in the request's table and not in the pool: no "
        "rollback makes a pruned block needed again."
    ),
    assumptions=ENVIRONMENT,
    parts=(
        Part(_ANY, RIGHT, partial(rollback, GENERIC)),
        Part(_ANY_VLLM, VLLM, partial(rollback, GENERIC)),
        *(Part(title, RIGHT, partial(rollback, case)) for title, case in CASES.items()),
        Part(SLOTS, RIGHT, mamba.next_slots),
    ),
    killers=(
        Killer(OPTIMISTIC, _ANY, "schedule another step", "pruned"),
        Killer(POOL_FENCE, _ANY, "schedule another step", "pruned"),
        Killer(CALLBACK, _ANY, "schedule another step", "pruned"),
        Killer(LOCAL_SUBTRACTION, _ANY, "schedule another step", "pruned"),
        Killer(STALE_APPLIED, _ANY, "process a stale step", "pruned"),
        Killer(OPTIMISTIC, SLOTS, "schedule another step", "held"),
        Killer(MAMBA_LOCAL, SLOTS, "schedule another step", "held"),
    ),
)
